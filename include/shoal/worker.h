/* The contract of the agent, the runner and a worker's library on one host: the environment, the control page, and the
 * messages of the worker's socket (PROTOCOLS 7, 11 to 14).
 *
 *   agent <--SEQPACKET, messages below--> libshoal in an engine, a driver or a C worker
 *   agent <--control page (memfd, made by the runner, outlives the agent)--> libshoal
 *   worker <--host arena (memfd, made by the runner)--> worker
 *
 * The life of an engine, the agent's messages at the right:
 *
 *   HELLO  ->                          after connect, and again after every reconnect (an agent may restart)
 *          <- CALL                     there is a train() call: its bundle lies at this path
 *   READY  ->                          loaded; my transport address; may be made a member
 *          <- EPOCH                    a committed epoch; who is in it, what is decided, who has the state
 *   UNHEARD ->                         members on other hosts from which nothing has come lately, at each change
 *   CLOSED ->                          I left epoch (e,k) for good; the last step I applied, the last I completed
 *   RECORDS -> <- RECORDS_ACKED        rank 0 ships the step records, others keep them until they are acknowledged
 *   DONE   -> <- WRITE_FINAL           the last step is applied; one worker is asked to write the final files
 *   FILES  -> <- RELEASE               written; after the manifest is committed everyone may exit 0
 *          <- STOP                     end now (stopped, shrunk); FAILED -> says why a worker cannot go on
 *
 * I1. After a worker has sent CLOSED for (e,k) it publishes nothing more in (e,k): its arena words of that epoch stand.
 * I2. A revoke (control page, `revoked` >= my epoch) makes a worker leave every wait at once and close; planned changes
 *     use it too. A mini-batch in computation is finished first, and its sum is kept for the next epoch.
 * I3. With D the `decided_step` of the new epoch, every member applies D exactly once: one that applied it already does
 *     nothing, one that completed it applies, one that has not fetches the reduced result from `holder`, a joiner takes
 *     the state of `donor` after D. Then step D + 1 begins.
 * I4. All messages carry (job, recovery generation) through the connection's HELLO; older epochs are refused.
 *
 * Every message: u8 kind, u8 version, u8 oldest readable, then the fields in the order of the struct (wire.h). */
#ifndef SHOAL_WORKER_H
#define SHOAL_WORKER_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "shoal/ids.h"
#include "shoal/limits.h"
#include "shoal/ranks.h"

/* 2: CLOSED says which links broke. 3: ranks beyond 63. 4: FAILED says that the host is the cause. */
#define SHOAL_WORKER_VERSION 4
#define SHOAL_WORKER_OLDEST 1 /* that can read it: what was added stands at the end of a message */

/* After a recv() that failed: nothing is there now, and the next one may find something. A socket whose other end closed with
 * messages unread says ECONNRESET once (Linux), before what that end had sent last: why a worker failed is among that. */
static inline bool shoal_worker_recv_later(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR || error == ECONNRESET;
}

/* The environment of a worker, set by the runner beside that of spec/training-contract 2. */
#define SHOAL_ENV_SOCKET "SHOAL_AGENT_SOCKET"   /* path of the agent's worker socket (SOCK_SEQPACKET) */
#define SHOAL_ENV_CONTROL_FD "SHOAL_CONTROL_FD" /* descriptor of the control page */
#define SHOAL_ENV_ARENA_FD "SHOAL_ARENA_FD"     /* descriptor of the host arena */
#define SHOAL_ENV_SLOT "SHOAL_SLOT"             /* index into shoal_control_page.slots; absent for a driver */
#define SHOAL_ENV_WORKER "SHOAL_WORKER_ID"      /* decimal */
#define SHOAL_ENV_JOB "SHOAL_JOB_ID"            /* shoal-... */
#define SHOAL_ENV_GENERATION "SHOAL_GENERATION" /* recovery generation, decimal */
#define SHOAL_ENV_NODE "SHOAL_NODE_ID"          /* 32 hex digits */
#define SHOAL_ENV_TOKEN "SHOAL_TOKEN" /* 32 hex digits: secret of this worker's lease, see shoal_rank_member */
/* Of an engine: a link to the bundle of the newest call that came here, for the engine server to preload. */
#define SHOAL_ENV_CALL_BUNDLE "SHOAL_CALL_BUNDLE"
/* What the logs of the job may take on this host, decimal: for the runner. */
#define SHOAL_ENV_LOG_MIB "SHOAL_LOG_MIB"
/* "<inode>:<path>": the pipe that a process has as stdout when it starts, and the file that what is written to it goes to. */
#define SHOAL_ENV_STDOUT "SHOAL_STDOUT"
/* The way of training data between hosts: interfaces that are trusted, "lo" or "lo,eth1", or, standing above them, those
 * where it is sealed. An IPv4 address of this host names its interface as well. */
#define SHOAL_ENV_FABRIC "SHOAL_FABRIC_TRUSTED"
#define SHOAL_ENV_TRANSPORT "SHOAL_TRANSPORT" /* between hosts that trust the network: tcp; ucx: nothing else; or none */
#define SHOAL_ENV_FABRIC_SEALED "SHOAL_FABRIC_SEALED"

/* The activity that a worker is in, for `top`, `show` and the watchdog. */
enum shoal_activity {
    SHOAL_ACTIVITY_LOADING,   /* bundle, data set */
    SHOAL_ACTIVITY_READY,     /* waits for an epoch */
    SHOAL_ACTIVITY_ENTERING,  /* wires up, takes or gives state */
    SHOAL_ACTIVITY_COMPUTING, /* a mini-batch */
    SHOAL_ACTIVITY_REDUCING,
    SHOAL_ACTIVITY_APPLYING,
    SHOAL_ACTIVITY_VALIDATING,
    SHOAL_ACTIVITY_CALLBACK, /* user callbacks, checkpoint */
    SHOAL_ACTIVITY_DONE,
    SHOAL_ACTIVITY_COUNT,
};

/* One worker's words; two cache lines, so that workers do not share any. Written by the worker unless said. */
struct shoal_control_slot {
    _Atomic uint64_t worker_id;    /* 0: nobody. Written by the runner before the process starts */
    _Atomic uint64_t heartbeat;    /* counted up by the library thread each 20 ms, in a step or not */
    _Atomic uint64_t epoch_word;   /* the epoch this worker is in */
    _Atomic uint64_t started_step; /* the step it works on */
    _Atomic uint64_t complete_step;
    _Atomic uint64_t applied_step;
    _Atomic uint64_t minibatches; /* committed mini-batches that this worker computed */
    _Atomic uint32_t activity;    /* enum shoal_activity */
    _Atomic int32_t pid;
    _Atomic uint32_t robust;        /* robust futex held by the library thread while the process lives */
    _Atomic uint32_t frozen;        /* written by the runner: stopped on purpose, the watchdog keeps away */
    _Atomic uint64_t join_pause_ns; /* the last pause of this worker for a join or a change of epoch */
    _Atomic uint64_t updates;       /* optimizer updates: applied steps x parameters */
    /* For who measures, all by CLOCK_MONOTONIC: time in the caller's hands, from assign or a publish to the next
     * publish; since when it has the present mini-batch (stands until it has another); when it first completed a step
     * in the newest epoch in which it completed any. */
    _Atomic uint64_t computed_ns;
    _Atomic uint64_t computing_ns;
    _Atomic uint64_t first_epoch_word;
    _Atomic uint64_t first_complete_ns;
    uint64_t reserved;
};
_Static_assert(sizeof(struct shoal_control_slot) == 128, "two cache lines a worker");

#define SHOAL_CONTROL_MAGIC 0x6c6f72746e6f6353ull
struct shoal_control_page {
    uint64_t magic;
    uint32_t version;
    uint32_t oldest;
    uint8_t job[16]; /* the job id, zero padded */
    uint32_t generation;
    uint32_t slots_max;            /* SHOAL_SLOTS_MAX of the writer */
    _Atomic uint64_t published;    /* newest (e,k) handed to workers here; the agent alone writes it */
    _Atomic uint64_t revoked;      /* epochs up to this word are revoked; the agent alone writes it */
    _Atomic uint32_t revoke_futex; /* counted up after every change of `revoked` or `published`; wakes waiters */
    _Atomic uint32_t arena_lock;   /* robust futex: who grows the arena */
    _Atomic uint64_t arena_bytes;
    uint64_t reserved[7];
    struct shoal_control_slot slots[SHOAL_SLOTS_MAX];
};

enum shoal_worker_kind {
    SHOAL_WORKER_HELLO,
    SHOAL_WORKER_CALL,
    SHOAL_WORKER_READY,
    SHOAL_WORKER_EPOCH,
    SHOAL_WORKER_CLOSED,
    SHOAL_WORKER_RECORDS,
    SHOAL_WORKER_RECORDS_ACKED,
    SHOAL_WORKER_DONE,
    SHOAL_WORKER_WRITE_FINAL,
    SHOAL_WORKER_FILES,
    SHOAL_WORKER_RELEASE,
    SHOAL_WORKER_STOP,
    SHOAL_WORKER_FAILED,
    SHOAL_WORKER_SNAPSHOT,      /* engine: a snapshot file of step D lies at this path */
    SHOAL_WORKER_TRAIN,         /* driver: train() was called */
    SHOAL_WORKER_TRAIN_STATE,   /* agent to driver: what became of the call */
    SHOAL_WORKER_TRAIN_RECORDS, /* agent to driver: step records for the loggers, in order */
    SHOAL_WORKER_TRAIN_ACKED,   /* driver: loggers have seen the records up to this step */
    SHOAL_WORKER_UNHEARD,       /* engine: these members of my epoch, on other hosts, are silent */
    SHOAL_WORKER_KIND_COUNT,
};

enum shoal_role { SHOAL_ROLE_ENGINE, SHOAL_ROLE_DRIVER, SHOAL_ROLE_COUNT };

#define SHOAL_CLASS_TEXT_BYTES 160
#define SHOAL_PATH_TEXT_BYTES 1024
#define SHOAL_FAILURE_TEXT_BYTES 4096
#define SHOAL_NAME_TEXT_BYTES 64
#define SHOAL_METRICS_MAX 16 /* values per mini-batch: the loss, then the metrics */

struct shoal_worker_hello {
    struct shoal_job_id job;
    uint32_t generation;
    uint8_t role; /* enum shoal_role */
    uint64_t worker_id;
    uint32_t slot;
    int32_t pid;
    uint8_t token[16];
    char numeric_class[SHOAL_CLASS_TEXT_BYTES]; /* instruction set, framework build, threads, device */
    /* Its state, so that a restarted agent knows: the call it has loaded (0: none), its epoch, whether that is
     * closed, its steps. Followed by another READY if it is ready. */
    uint32_t call;
    struct shoal_epoch epoch;
    bool closed;
    uint64_t applied_step;
    uint64_t complete_step;
};

/* Agent to engine: load this train() call. Calls count from 1. */
struct shoal_worker_call {
    uint32_t call;
    uint64_t job_seed;
    char bundle_path[SHOAL_PATH_TEXT_BYTES]; /* a local file, kept while the call runs */
};

/* Engine to agent: loaded. Every engine of a call must say the same sizes; a difference ends the job with both. */
struct shoal_worker_ready {
    uint32_t call;
    uint32_t virtual_workers; /* V, the sync interval */
    uint64_t sum_elems;       /* float32 elements of the gradient */
    uint64_t copy_bytes;      /* buffers, copied from the lowest v */
    uint64_t samples;         /* length of the data set */
    uint32_t minibatch;       /* samples of a full mini-batch */
    uint32_t data_epochs;
    uint64_t steps_per_epoch; /* train steps of one data epoch */
    uint8_t metric_count;
    char metric_names[SHOAL_METRICS_MAX][SHOAL_NAME_TEXT_BYTES]; /* [0] is "loss" */
    struct shoal_view address;                                   /* <= SHOAL_TRANSPORT_ADDRESS_MAX */
};

struct shoal_rank_member {
    uint64_t worker_id;
    struct shoal_node_id node;
    uint32_t slot;
    uint32_t v_begin; /* of the first step of the epoch; from the next on, shoal_balanced_range() */
    uint32_t v_end;
    bool has_state; /* false: a joiner, takes the donor's state */
    uint8_t token[16];
    uint16_t address_len;
    uint8_t address[SHOAL_TRANSPORT_ADDRESS_MAX];
};

/* Agent to engine. A worker that is not among the members is out: it waits for RELEASE or STOP, and publishes
 * nothing. */
struct shoal_worker_epoch {
    struct shoal_epoch epoch;
    uint32_t call;
    uint64_t decided_step;  /* D: applied by everyone before step D + 1 */
    uint64_t holder;        /* worker id that completed D (0: D is the start state, nobody needs a result) */
    uint64_t donor;         /* worker id whose state joiners take (0: all start from the bundle, or from `snapshot`) */
    uint64_t records_acked; /* rank 0 ships records from here on */
    char snapshot_path[SHOAL_PATH_TEXT_BYTES]; /* not empty: everyone starts from this file, which is of step D */
    uint32_t member_count;
    struct shoal_rank_member members[SHOAL_RANKS_MAX]; /* in rank order */
};

/* No more than there is of it: most epochs are small. */
static inline void shoal_worker_epoch_copy(struct shoal_worker_epoch *to, const struct shoal_worker_epoch *from)
{
    memcpy(to, from, offsetof(struct shoal_worker_epoch, members) + from->member_count * sizeof(from->members[0]));
}

struct shoal_worker_closed {
    struct shoal_epoch epoch;
    uint64_t applied_step;
    uint64_t complete_step;
    struct shoal_ranks broken; /* my data links with these broke, or nothing passed them for long. Of version 2; ranks beyond 63: of 3 */
};

/* Consecutive step records, see shoal/step_record.h. */
struct shoal_worker_records {
    uint32_t call;
    uint64_t first_step;
    uint32_t count;
    struct shoal_view records;
};

struct shoal_worker_acked {
    uint32_t call;
    uint64_t step;
};

/* Members that were not heard for SHOAL_BEAT_UNHEARD_NS over their data connections, or broke them. Alone it
 * is no evidence of a death, with lost support it is (PROTOCOLS 12). */
struct shoal_worker_unheard {
    struct shoal_epoch epoch;
    struct shoal_ranks ranks; /* those beyond 63: of version 3 */
};

struct shoal_worker_done {
    uint32_t call;
    uint64_t final_step;
    uint64_t state_digest; /* of parameters, optimizer state, buffers: equal in every member */
};

struct shoal_worker_stop {
    uint8_t reason; /* enum shoal_stop_reason */
    char text[256];
};
enum shoal_stop_reason {
    SHOAL_STOP_USER,
    SHOAL_STOP_SHRUNK,
    SHOAL_STOP_SUPERSEDED,
    SHOAL_STOP_ERROR,
    SHOAL_STOP_COUNT
};

struct shoal_worker_failed {
    uint32_t call;
    bool user_code; /* the user's function raised: the job ends with ERROR. Otherwise only this worker is replaced */
    char text[SHOAL_FAILURE_TEXT_BYTES]; /* cause first, then a trace */
    bool unfit; /* no engine of the job can run on this host: the job goes on without it. Of version 4 */
};

struct shoal_worker_snapshot {
    uint32_t call;
    uint64_t step;
    char path[SHOAL_PATH_TEXT_BYTES];
};

/* Driver to agent: the bundle lies at a local path, complete and closed. */
struct shoal_worker_train {
    uint32_t call;
    uint64_t job_seed;
    uint32_t engines_max; /* of engines_number; the job's limit applies too */
    char bundle_path[SHOAL_PATH_TEXT_BYTES];
    char signature[1024]; /* names, shapes, arguments: a rerun of the script must give the same, else ERROR */
};

enum shoal_train_state {
    SHOAL_TRAIN_WAITING,
    SHOAL_TRAIN_RUNNING,
    SHOAL_TRAIN_FINISHED,
    SHOAL_TRAIN_FAILED,
    SHOAL_TRAIN_COUNT
};

struct shoal_worker_train_state {
    uint32_t call;
    uint8_t state; /* enum shoal_train_state */
    uint32_t engines;
    uint64_t acked_step; /* loggers saw up to here in an earlier life of the driver */
    uint64_t final_step;
    char files_path[SHOAL_PATH_TEXT_BYTES]; /* FINISHED: directory of the final files, local */
    char text[SHOAL_FAILURE_TEXT_BYTES];    /* FAILED: why */
};

/* One message, decoded; texts are copied, views point into the datagram. Big: keep one per connection, not on a
 * stack. */
struct shoal_worker_message {
    uint8_t kind;
    union {
        struct shoal_worker_hello hello;
        struct shoal_worker_call call;
        struct shoal_worker_ready ready;
        struct shoal_worker_epoch epoch;
        struct shoal_worker_closed closed;
        struct shoal_worker_unheard unheard;
        struct shoal_worker_records records; /* TRAIN_RECORDS too */
        struct shoal_worker_acked acked;     /* RECORDS_ACKED, TRAIN_ACKED, WRITE_FINAL and FILES (call only) */
        struct shoal_worker_done done;
        struct shoal_worker_stop stop; /* RELEASE too */
        struct shoal_worker_failed failed;
        struct shoal_worker_snapshot snapshot;
        struct shoal_worker_train train;
        struct shoal_worker_train_state train_state;
    };
};

/* The share of rank `rank` of `size` in V mini-batches: contiguous, the first V % size ranks have one more. */
static inline void shoal_balanced_range(uint32_t virtual_workers, uint32_t size, uint32_t rank, uint32_t *begin,
                                        uint32_t *end)
{
    uint32_t share = virtual_workers / size;
    uint32_t more = virtual_workers % size;

    *begin = rank * share + (rank < more ? rank : more);
    *end = *begin + share + (rank < more ? 1 : 0);
}

#endif
