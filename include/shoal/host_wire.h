/* Messages between the leader of a job and the slots core of a host (PROTOCOLS 6, 7, 12).
 *
 *   leader                                   host
 *     | RESERVE ------------------------------> | tentative, 2 s
 *     | <------------------------------ OFFER   | slots with generations, or a refusal with the record version
 *     |   (placement committed)                 |
 *     | CONFIRM ------------------------------> | lease, RUN
 *     | RENEW (3 s, echoes the host's stamp) -> |
 *     | CALL, EPOCH, ORDER -------------------> | to its workers
 *     | <----------------------------- WORKER   | one worker's whole state, whenever it changes
 *     | <-- TRAIN, PROGRESS, FILES, ...         |
 *     | ACK (highest report) -----------------> |
 *
 * H1. Reports and orders are states, not deltas: a message lost, repeated or late does no harm; both sides repeat until
 *     the other's state shows that it arrived.
 * H2. Every message names job, recovery generation and term; a host refuses a term below the newest it has seen of the
 *     job.
 * H3. Every message of a host carries its slot clock (`stamp`) and host epoch: the source of what RENEW echoes. */
#ifndef SHOAL_HOST_WIRE_H
#define SHOAL_HOST_WIRE_H

#include "shoal/host.h"
#include "shoal/ranks.h"

#define SHOAL_HOST_WIRE_VERSION 1
/* Below SHOAL_FRAME_BYTES_MAX: a CONFIRM with a specification, or an epoch. */
#define SHOAL_HOST_MESSAGE_MAX (64 * SHOAL_KIB)

enum shoal_host_kind {
    /* leader to host */
    SHOAL_HOST_RESERVE,
    SHOAL_HOST_CANCEL, /* tentative slots of this job are free again */
    SHOAL_HOST_CONFIRM,
    SHOAL_HOST_RENEW,
    SHOAL_HOST_CALL,
    SHOAL_HOST_EPOCH,
    SHOAL_HOST_REVOKE, /* host to host too: the flood */
    SHOAL_HOST_ORDER,
    SHOAL_HOST_TRAIN_STATE,
    SHOAL_HOST_MAKE_MANIFEST,
    SHOAL_HOST_ACK,
    SHOAL_HOST_MARK,   /* the ledger holds the records up to here (progress.call, records_acked): tell the workers */
    SHOAL_HOST_REPORT, /* tell me all */
    SHOAL_HOST_END,    /* the job has ended: drop what is left of it */
    /* host to leader */
    SHOAL_HOST_OFFER,
    SHOAL_HOST_WORKER,
    SHOAL_HOST_DRAIN, /* another claimant deserves this slot: give it back */
    SHOAL_HOST_TRAIN,
    SHOAL_HOST_PROGRESS,
    SHOAL_HOST_MANIFEST,
    SHOAL_HOST_SNAPSHOT,
    SHOAL_HOST_UNKNOWN, /* answer to RENEW and ORDER: I hold no such lease, and shall not. Worker 0: I have nothing of
                           the job */
    SHOAL_HOST_SHRUNK,  /* the epoch (e,k+1) that this host has made of (e,k), since all its members are here */
    SHOAL_HOST_BROKEN, /* a worker's links that broke before it closed its epoch; before its WORKER, on the same link */
    SHOAL_HOST_UNFIT, /* why no engine of this job can run here, by the word of `worker_id`; before its WORKER, on the same link */
    SHOAL_HOST_STANDS, /* a worker in an epoch has done the same for a minute; again each ten seconds while it does */
    SHOAL_HOST_KIND_COUNT,
};

enum shoal_order {
    SHOAL_ORDER_NONE,
    SHOAL_ORDER_WRITE_FINAL,
    SHOAL_ORDER_RELEASE, /* everything is committed: exit 0 */
    SHOAL_ORDER_STOP,    /* end, by the message; SIGTERM for who has no socket; killed after the grace */
    SHOAL_ORDER_KILL,    /* at once */
    SHOAL_ORDER_FORGET,  /* the group has dropped it: its report is wanted no more. Kills if it still lives */
    SHOAL_ORDER_COUNT,
};

/* How far a worker has come, as its host knows. Phases follow in this order; only a new connection of its library, or a
 * restart of its agent, takes it back as far as HELLO or STARTED. EXITED is final (S9 of slots.h). */
enum shoal_phase {
    SHOAL_PHASE_LEASED,  /* RUN was asked for */
    SHOAL_PHASE_STARTED, /* the process is there */
    SHOAL_PHASE_HELLO,   /* its library is connected */
    SHOAL_PHASE_READY,   /* loaded the call `ready_call` */
    SHOAL_PHASE_EXITED,  /* confirmed dead; or it never ran (`status` -1, text) */
    SHOAL_PHASE_COUNT,
};

#define SHOAL_HOST_TEXT_BYTES 512

struct shoal_worker_report {
    uint64_t worker_id;
    uint32_t attempt;
    uint8_t role;  /* enum shoal_job_role */
    uint8_t phase; /* enum shoal_phase */
    uint32_t slot;
    uint64_t lease_generation;
    bool ran; /* RUN was asked for; false in EXITED: it never started, nothing was lost */
    bool frozen;
    bool stuck;     /* its heartbeat word stands still, or it is dying: it does no step any more, EXITED follows */
    int32_t status; /* EXITED; SHOAL_STATUS_UNSTARTED with `ran` false: its host could not start it */
    bool signalled;
    uint32_t call; /* newest call that it was given and has said HELLO or READY for */
    uint32_t ready_call;
    struct shoal_epoch epoch;             /* newest epoch it was given (or said it is in) */
    bool closed;                          /* it left that epoch */
    struct shoal_ranks unheard;           /* members of that epoch that it does not hear */
    uint64_t applied_step, complete_step; /* as of the newest HELLO or CLOSED */
    uint32_t done_call;                   /* DONE was said for this call */
    uint64_t final_step, state_digest;
    uint32_t files_call; /* final files of this call are written */
    bool failed, user_code;
    char numeric_class[SHOAL_CLASS_TEXT_BYTES];
    char text[SHOAL_HOST_TEXT_BYTES]; /* EXITED: why, or the last line of stderr; failed: the cause */
    struct shoal_call_sizes sizes;    /* phase READY */
    uint16_t address_len;
    uint8_t address[SHOAL_TRANSPORT_ADDRESS_MAX];
    /* EXITED, of a task whose job was said to have more: its slot is promised to the job again, as a RESERVE would
     * have promised it. 0: it is not. */
    uint64_t next_generation;
};

struct shoal_lease_name {
    uint64_t worker_id;
    uint64_t lease_generation;
};

struct shoal_host_message {
    uint8_t kind;
    struct shoal_job_id job;
    uint32_t generation; /* recovery generation */
    uint64_t term;
    /* From a host (H3); from a leader: host_epoch 0, stamp 0. */
    uint32_t host_epoch;
    uint64_t stamp;
    uint64_t seq; /* WORKER, TRAIN, MANIFEST, SNAPSHOT: the report's number on this host and job; ACK: seen up to */
    union {
        struct {
            uint64_t request; /* the leader's number; OFFER repeats it */
            uint32_t priority;
            uint64_t ticket_ms;
            uint32_t slot_count;
            uint8_t slots[SHOAL_SLOTS_MAX];
            bool driver; /* a lease without a slot is wanted too */
            /* Of a card that kernels share. Only hosts that offer shares are asked so: versions before refuse the message. */
            uint32_t gpu_mib;
            uint64_t gpu_pack; /* 0: the whole slot */
        } reserve;
        struct {
            uint64_t request;
            uint64_t record_version; /* of this host's slots, what a refusal names */
            uint32_t slot_count;     /* granted */
            uint8_t slots[SHOAL_SLOTS_MAX];
            uint64_t generations[SHOAL_SLOTS_MAX];
            bool driver;
            uint64_t driver_generation;
            uint32_t refused; /* how many slots were not granted */
            char text[160];   /* why not, of the first refused */
        } offer;
        struct {
            uint32_t placement_count; /* of this host */
            struct shoal_placement placements[SHOAL_SLOTS_MAX + 1];
            uint8_t source_count;
            struct shoal_node_id sources[SHOAL_HOST_SOURCES_MAX]; /* guardians: who has the bundle */
            struct shoal_view spec;                               /* encoded shoal_job_spec */
            uint64_t echo; /* newest stamp of this host that the leader has: the leases count from it */
            bool keep;     /* an array has more tasks: promise it each slot that one of these leaves (S8) */
        } confirm;
        struct {
            uint64_t echo; /* newest stamp of this host that the leader has */
            struct shoal_epoch epoch;
            uint32_t lease_count;
            struct shoal_lease_name leases[SHOAL_SLOTS_MAX + 2];
        } renew;
        struct {
            uint32_t call;
            uint64_t job_seed;
            struct shoal_hash bundle;
            uint8_t source_count;
            struct shoal_node_id sources[SHOAL_HOST_SOURCES_MAX];
        } call;
        struct shoal_worker_epoch epoch;
        struct shoal_epoch revoke;
        struct {
            uint64_t worker_id;
            uint64_t lease_generation;
            uint8_t order;  /* enum shoal_order */
            uint8_t reason; /* enum shoal_stop_reason */
            uint32_t call;
            uint64_t grace_ns;
            char text[256];
        } order;
        struct {
            uint64_t worker_id; /* the driver */
            struct shoal_worker_train_state state;
        } train_state;
        struct {
            uint32_t call; /* 0: the whole RESULT_DIR */
            bool ok;       /* MANIFEST */
            struct shoal_hash hash;
            char text[200];
        } manifest; /* MAKE_MANIFEST, MANIFEST */
        struct shoal_worker_report worker;
        struct {
            uint64_t worker_id;
        } drain; /* UNKNOWN too */
        struct {
            uint64_t worker_id;
            struct shoal_call call; /* call, job_seed, engines_max, bundle, signature */
        } train;
        struct {
            uint32_t call;
            uint64_t step;
            uint64_t records_acked; /* 0: nothing new */
            uint64_t logged_step;   /* from the driver's host */
            uint32_t data_epoch;
            uint32_t engines;
            uint32_t rate_milli;
            bool has_metrics;
            int64_t loss_micro, metric_micro;
        } progress; /* MARK too */
        struct {
            uint32_t call;
            uint64_t step;
            struct shoal_hash hash;
        } snapshot;
        struct {
            uint64_t worker_id;
            struct shoal_epoch epoch;
            struct shoal_ranks ranks; /* of that epoch */
        } broken;
        struct {
            uint64_t worker_id;
            char text[SHOAL_HOST_WHY_BYTES];
        } unfit;
        struct {
            uint64_t worker_id;
            struct shoal_epoch epoch;
            uint8_t activity; /* enum shoal_activity; a newer one is none that is known */
        } stands;
    } u;
};

/* TOO_BIG: over `cap`. Large struct: keep one per owner. */
SHOAL_MUST_CHECK enum shoal_err shoal_host_encode(const struct shoal_host_message *message, uint8_t *bytes, size_t cap,
                                                  size_t *len);
/* Views point into `bytes`. MALFORMED. */
SHOAL_MUST_CHECK enum shoal_err shoal_host_decode(struct shoal_view bytes, struct shoal_host_message *message);
/* True for the kinds that go to a host's slots core, false for those that go to a job's leader. */
bool shoal_host_kind_to_host(uint8_t kind);
/* The answer to the host that sent `bytes`, when the job's group is gone for good: END, of the same generation and term.
 * False: malformed. */
bool shoal_host_answer_end(struct shoal_view bytes, uint8_t *answer, size_t cap, size_t *len);
/* Kind and job of an encoded message, for routing. False: malformed. */
bool shoal_host_peek(struct shoal_view bytes, uint8_t *kind, struct shoal_job_id *job);

#endif
