/* The waist between a host's control plane and what it runs: one set of events and orders for every layer.
 *
 *     runner, workers, blob store          shell (agent, simulator)       sched         slots
 *     ---------------------------          ------------------------       -----         -----
 *     a process starts, ends, speaks  -->  struct shoal_host_event   -->  embeds it --> embeds it
 *     a process is run, frozen, told  <--  struct shoal_host_order   <--  embeds it <-- embeds it
 *
 * N1. Nobody between the shell and the slots core translates: an event or an order is handed on as it is. A new kind is
 *     added here, where it is made and where it is used, and nowhere else.
 * N2. Everything in an event is borrowed for the step; an event without pointers may be kept by value. Everything in an
 *     order is borrowed until the next step of the core that gave it. */
#ifndef SHOAL_HOST_H
#define SHOAL_HOST_H

#include "shoal/job.h"

/* Hosts that a blob may be fetched from: the guardians of its job. */
#define SHOAL_HOST_SOURCES_MAX 5
/* Why something failed, in words for a person. */
#define SHOAL_HOST_WHY_BYTES 200

/* ---- Events: from the shell to the core ------------------------------------------------------------------------ */

enum shoal_host_event_kind {
    SHOAL_HOST_ON_STARTED,
    SHOAL_HOST_ON_EXITED,
    SHOAL_HOST_ON_SLOT_IDLE,  /* the slot's lock is free and its cgroup empty */
    SHOAL_HOST_ON_RUNNER,     /* after an agent's restart: these live, or their EXITED follows; any other worker of the
                                 * job here is dead */
    SHOAL_HOST_ON_REATTACHED, /* after an agent's start: every runner that lives has been told */
    SHOAL_HOST_ON_MESSAGE,    /* a worker says something */
    SHOAL_HOST_ON_STUCK,      /* the watchdog: a worker's heartbeat word stands still */
    SHOAL_HOST_ON_DYING,      /* killed, or crashed: its memory is being torn down, EXITED follows */
    SHOAL_HOST_ON_STEPPED,    /* a worker's control page: how far it is, whoever ships the records */
    SHOAL_HOST_ON_STANDS,     /* the same: it has done one thing for long */
    SHOAL_HOST_ON_BLOB,       /* the answer to FETCH */
    SHOAL_HOST_ON_MANIFEST,   /* the answer to MANIFEST */
    SHOAL_HOST_ON_RECORDS_MARK, /* the shell's ledger holds the records up to here on a majority of the guardians */
};

/* A worker that a runner has found alive. */
struct shoal_host_live {
    uint64_t worker_id;
    uint32_t slot; /* SHOAL_SLOT_NONE: a driver */
    int32_t pid;
    uint8_t role; /* enum shoal_job_role */
    bool frozen;
    uint8_t token[SHOAL_JOB_TOKEN_BYTES];
    uint64_t deadline_ns; /* of its lease, as the runner holds it */
    uint64_t lease_generation;
};

/* Its host could not start it: no process, no descriptor, or a file that could not be opened. Nothing of the user's code ran, and
 * another host may do better. Readers of before take it as any status below 0: nobody knows how it ended. */
#define SHOAL_STATUS_UNSTARTED (-2)

struct shoal_host_event {
    enum shoal_host_event_kind kind;
    union {
        struct {
            uint64_t worker_id;
            int32_t pid;
        } started;
        struct {
            uint64_t worker_id;
            int32_t status; /* exit code, or the signal; SHOAL_STATUS_UNSTARTED */
            bool signalled;
            char text[SHOAL_HOST_WHY_BYTES]; /* why it could not start, or the last line of its stderr; "" */
        } exited;
        struct {
            uint32_t slot;
        } idle;
        struct {
            struct shoal_job_id job;
            uint32_t generation; /* recovery generation */
            const struct shoal_host_live *workers;
            size_t worker_count;
        } runner;
        struct {
            uint64_t worker_id;
            const struct shoal_worker_message *message; /* STUCK, DYING: unused */
        } worker;                                       /* MESSAGE, STUCK, DYING */
        struct {
            uint64_t worker_id;
            uint64_t epoch_word, step; /* it has applied this step in this epoch */
        } stepped;
        struct {
            uint64_t worker_id;
            uint64_t epoch_word;
            uint8_t activity; /* enum shoal_activity */
        } stands;
        struct {
            struct shoal_hash hash;
            bool ok;
            char text[SHOAL_HOST_WHY_BYTES];
        } blob;
        struct {
            struct shoal_job_id job;
            uint32_t call;
            bool ok;
            struct shoal_hash hash;
            char text[SHOAL_HOST_WHY_BYTES];
        } manifest;
        struct {
            struct shoal_job_id job;
            uint32_t call;
            uint64_t step;
        } records_mark;
    } u;
};

/* ---- Orders: from the core to the shell ------------------------------------------------------------------------ */

enum shoal_host_order_kind {
    SHOAL_HOST_DO_JOB_OPEN,   /* prepare local files of a job that will run here */
    SHOAL_HOST_DO_JOB_CLOSED, /* nothing of it runs here any more: its runner may end */
    SHOAL_HOST_DO_RUN,
    SHOAL_HOST_DO_RENEW,
    SHOAL_HOST_DO_FREEZE,
    SHOAL_HOST_DO_THAW,
    SHOAL_HOST_DO_KILL,
    SHOAL_HOST_DO_SEND,     /* a message to a worker */
    SHOAL_HOST_DO_REVOKE,   /* raise `revoked` on the job's control page to at least this word */
    SHOAL_HOST_DO_FETCH,    /* fetch and hold a blob for the job; answered by BLOB, at once if it is here */
    SHOAL_HOST_DO_GUARDIANS, /* who keeps what the job leaves here: its group's members, now */
    SHOAL_HOST_DO_MANIFEST, /* a manifest of RESULT_DIR/model here, chunks flushed on 2 hosts; answered by MANIFEST */
};

struct shoal_host_order {
    enum shoal_host_order_kind kind;
    union {
        struct {
            struct shoal_job_id job;
            uint32_t generation;    /* recovery generation */
            struct shoal_view spec; /* OPEN: encoded shoal_job_spec */
        } job;                      /* JOB_OPEN, JOB_CLOSED */
        struct {
            struct shoal_job_id job;
            uint32_t generation;
            struct shoal_placement placement;
            uint64_t deadline_ns; /* of the lease, on this host's clock */
        } run;
        struct {
            uint64_t worker_id;
            uint64_t deadline_ns; /* RENEW */
            uint64_t grace_ns;    /* KILL: SIGTERM first, SIGKILL after this; 0: SIGKILL at once */
        } worker;                 /* RENEW, FREEZE, THAW, KILL */
        struct {
            uint64_t worker_id;
            const struct shoal_worker_message *message;
            size_t message_bytes; /* of it that are there: the largest kinds are many times the smallest */
        } send;
        struct {
            struct shoal_job_id job;
            uint64_t epoch_word;
        } revoke;
        struct {
            struct shoal_job_id job;
            struct shoal_hash hash;
            struct shoal_node_id sources[SHOAL_HOST_SOURCES_MAX];
            uint8_t source_count;
        } fetch; /* GUARDIANS, without a hash */
        struct {
            struct shoal_job_id job;
            uint32_t generation;
            uint32_t call; /* 0: the whole RESULT_DIR */
        } manifest;
    } u;
};

#endif
