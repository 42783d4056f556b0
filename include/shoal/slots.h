/* The core of one host's slots: who holds what until when, and the workers that run here (PROTOCOLS 6, 7, 12 to 14).
 *
 *            RESERVE            CONFIRM              RENEW              lease over, killed      SLOT_IDLE
 *     FREE -----------> TENTATIVE -------> LEASED <--------> LEASED ----------------> HELD ---------------> FREE
 *       ^                 | 2 s               | unrenewed 10 s: frozen    ^
 *       +-----------------+                   +--> DRAINING --------------+
 *
 * S1. A slot's generation rises with every grant; a CONFIRM or RENEW of another generation is refused.
 * S2. A lease ends `lease_ns` after the newest stamp of this host that a renewal echoed: a late renewal extends
 *     nothing.
 * S3. No grant while a lease stands, a worker of the slot lives, or the kernel's lock is held (HELD until SLOT_IDLE).
 * S4. Terms and recovery generations below those seen of a job are refused.
 * S5. Unrenewed for freeze_ns: frozen, memory kept; thawed only by a renewal that names its epoch or a later one in
 *     which it is a member. Killed before the slot goes to another, or kill_ns after the lease ended.
 * S6. A worker's death revokes the running epoch of its job here at once, and is told to the leader and to the hosts of
 *     the other members.
 * S7. Every epoch (e,0) that is handed out here was committed. Where all its members are here, this host makes (e,k+1)
 *     itself when one dies (sched/host/slots_shrink.c), and reports it; what the group commits above it wins.
 * S8. The slot that a task of an array leaves is promised to the same job at once, while its leader has more tasks and
 *     nobody else deserves the slot; the promise is one of S1, and runs out like any other.
 * S10. While the host is drained no slot is promised, kept or shown as free; what runs goes on until its leader moves it.
 * S9. A slot's state and a worker's phase move only as the tables of sched/host/slots.c say. EXITED is final.
 * S11. After an agent's start nothing is promised, opened or started, and nothing is said to be unknown, before every
 *     runner has said what lives here, or 5 s have passed: what started last may not be in the table.
 * S12. A worker that has ended is kept until its leader says FORGET, which is told once and may be lost: each 2 s its end
 *     is told again, and whoever knows that the job's group is gone for good answers END.
 * S14. Of a card that kernels share no more memory is promised than it has, nor a part of one that is leased whole, nor the
 *     whole of one that is shared (C1 and C2 of shoal/cards.h; sched/host/slots_cards.c).
 * S13. The shell is told who guards a job here (GUARDIANS) after JOB_OPEN, also of an earlier life, and whenever its leader
 *     says something else: that is where this host's part of the job's files and records goes.
 * S15. A script, a driver or a task that the host kills itself, for its leader or since its lease is over, is told as lost:
 *     it has not ended by what it did, whoever leads by then.
 *
 * Pure: no I/O, no clock, no chance; allocates in create and restore only. `now_ns` is the host's CLOCK_BOOTTIME; a
 * "stamp" is the `now_ns` of a step.
 *
 * Files in worker messages: a text "blob:<64 hex digits>" in bundle_path, snapshot_path or files_path stands for a
 * blob. Towards workers the shell puts the local path in its place (the core has had it fetched before). From workers,
 * the shell first stores the file (TRAIN: bundle_path; SNAPSHOT: path), on two hosts, then hands the message over with
 * the text. */
#ifndef SHOAL_SLOTS_H
#define SHOAL_SLOTS_H

#include "shoal/cards.h"
#include "shoal/host_wire.h"
#include "shoal/memory.h"

struct shoal_slots; /* state: its fields live in sched/host/slots_state.h */

struct shoal_slots_options {
    struct shoal_node_id self;
    uint32_t host_epoch;
    uint32_t slots;        /* at most SHOAL_SLOTS_MAX; with the shares of cards */
    uint8_t device;        /* enum shoal_job_device: CPU or GPU */
    uint32_t cards;        /* that kernels may share; 0: none, else the first slots are theirs: shoal/cards.h */
    uint32_t shares;       /* of each */
    uint32_t card_mib[SHOAL_CARDS_MAX];
    uint32_t jobs_max;     /* 0: 64; jobs with workers here at one time */
    uint64_t lease_ns;     /* 0: 15 s */
    uint64_t freeze_ns;    /* 0: 10 s */
    uint64_t tentative_ns; /* 0: 2 s */
    uint64_t kill_ns;      /* 0: 10 min frozen */
    uint64_t repeat_ns;    /* 0: 500 ms; reports not acknowledged are sent again */
    bool reattaches;       /* the shell says REATTACHED: S11 */
    uint64_t start_ns;
};

enum shoal_slots_event_kind {
    SHOAL_SLOTS_TIMER,
    SHOAL_SLOTS_FRAME,  /* a host_wire message for this host (shoal_host_kind_to_host) */
    SHOAL_SLOTS_LINK,   /* to `node` is up (again): reports are repeated at once */
    SHOAL_SLOTS_TARGET, /* this host's own allocation: who deserves each slot. Zero: nobody */
    SHOAL_SLOTS_DRAIN,  /* whether this host is being drained: then nothing new starts here */
    SHOAL_SLOTS_ENDED,  /* the job's group is gone for good: what waits for its leader here waits no more */
    SHOAL_SLOTS_HOST,   /* what the shell says of workers, blobs and the ledger: host.h */
};

struct shoal_slots_event {
    enum shoal_slots_event_kind kind;
    union {
        struct {
            struct shoal_node_id from;
            struct shoal_view bytes;
        } frame;
        struct shoal_node_id link;
        bool drain;
        struct {
            struct shoal_job_id jobs[SHOAL_SLOTS_MAX];
        } target;
        struct shoal_job_id ended;
        struct shoal_host_event host;
    } u;
};

enum shoal_slots_action_kind {
    SHOAL_SLOTS_SEND,    /* a host_wire message to `to` (maybe this node: hand it to the lead here) */
    SHOAL_SLOTS_PUBLISH, /* the slots record changed */
    SHOAL_SLOTS_ORDER,   /* for the shell: host.h */
};

struct shoal_slots_action {
    enum shoal_slots_action_kind kind;
    union {
        struct {
            struct shoal_node_id to;
            struct shoal_view bytes;
        } send;
        struct {
            uint64_t version;
            struct shoal_view payload; /* shoal_slots_record_decode */
        } publish;
        struct shoal_host_order order;
    } u;
};

#define SHOAL_SLOTS_ACTIONS_MAX 384
#define SHOAL_SLOTS_POOL_BYTES (SHOAL_MIB)

/* Memory of the caller: taken once. Views in actions point into `pool` or into the core: valid until the next step.
 * What finds no room is made again by the next step (the deadline is then in the past). */
struct shoal_slots_actions {
    uint32_t count;
    size_t pool_used;
    struct shoal_slots_action list[SHOAL_SLOTS_ACTIONS_MAX];
    _Alignas(16) uint8_t pool[SHOAL_SLOTS_POOL_BYTES];
};

/* FULL: no memory. */
SHOAL_MUST_CHECK enum shoal_err shoal_slots_create(struct shoal_slots **slots,
                                                   const struct shoal_slots_options *options);
/* After an agent's restart in the same host epoch, from the rebuildable store; then RUNNER events reconcile. MALFORMED,
 * or STALE (another host epoch: every lease of it is void): as if nothing had been kept, use create. */
SHOAL_MUST_CHECK enum shoal_err shoal_slots_restore(struct shoal_slots **slots,
                                                    const struct shoal_slots_options *options, struct shoal_view bytes);
void shoal_slots_destroy(struct shoal_slots *slots); /* accepts NULL */

/* MALFORMED: a frame that does not decode. `actions` is emptied first. */
SHOAL_MUST_CHECK enum shoal_err shoal_slots_step(struct shoal_slots *slots, const struct shoal_slots_event *event,
                                                 uint64_t now_ns, struct shoal_slots_actions *actions);
uint64_t shoal_slots_deadline_ns(const struct shoal_slots *slots);

/* The table for the rebuildable store: write it (without sync) when the version differs from the last written. */
#define SHOAL_SLOTS_STATE_BYTES_MAX (4 * SHOAL_MIB)
uint64_t shoal_slots_version(const struct shoal_slots *slots);
SHOAL_MUST_CHECK enum shoal_err shoal_slots_encode(const struct shoal_slots *slots, uint8_t *bytes, size_t cap,
                                                   size_t *len);

/* The record that PUBLISH carries. */
struct shoal_slots_record {
    uint64_t version;
    uint32_t host_epoch;
    uint32_t slots;
    uint8_t device;
    uint64_t stamp;
    uint64_t free; /* bit i: slot i can be reserved */
    uint64_t draining;
    struct shoal_cards cards; /* their shares are none of `slots`: versions before do not know them */
};
/* On the wire: a head of kind SLOTS and a map. TOO_BIG: over `cap`. */
SHOAL_MUST_CHECK enum shoal_err shoal_slots_record_encode(const struct shoal_slots_record *record, uint8_t *bytes,
                                                          size_t cap, size_t *len);
SHOAL_MUST_CHECK enum shoal_err shoal_slots_record_decode(struct shoal_view bytes, struct shoal_slots_record *record);

/* ---- Looking inside -------------------------------------------------------------------------------------------- */

enum shoal_slot_state {
    SHOAL_SLOT_FREE,
    SHOAL_SLOT_TENTATIVE,
    SHOAL_SLOT_LEASED,
    SHOAL_SLOT_DRAINING,
    SHOAL_SLOT_HELD, /* the lease is over, the kernel's lock or a process is not */
    SHOAL_SLOT_STATE_COUNT,
};

struct shoal_slot_status {
    enum shoal_slot_state state;
    struct shoal_job_id job;
    uint64_t worker_id;
    uint64_t lease_generation;
    uint64_t term;
    uint64_t deadline_ns;
    bool frozen;
    uint32_t gpu_mib; /* of a card that is shared; 0: all of the slot */
};
bool shoal_slots_has_job(const struct shoal_slots *slots, struct shoal_job_id job);
uint32_t shoal_slots_count(const struct shoal_slots *slots);
void shoal_slots_slot(const struct shoal_slots *slots, uint32_t slot, struct shoal_slot_status *status);
void shoal_slots_record(const struct shoal_slots *slots, struct shoal_slots_record *record);
/* The job of a live worker here, for the socket's HELLO: token must match. False: not ours. */
bool shoal_slots_worker_job(const struct shoal_slots *slots, uint64_t worker_id, const uint8_t token[16],
                            struct shoal_job_id *job);
/* Nodes to which support is wanted: leaders of jobs that work here. Returns how many there are. */
size_t shoal_slots_leaders(const struct shoal_slots *slots, struct shoal_node_id *nodes, size_t cap);

struct shoal_slots_stats {
    uint64_t reserves, grants, refusals, confirms, confirms_refused, renewals, renewals_late;
    uint64_t freezes, thaws, kills, expired;
    uint64_t stale_terms, malformed, unknown_workers;
    uint64_t reports, repeats;
    uint64_t actions_full, jobs_full;
    uint64_t shrinks; /* epochs that this host has made by itself */
};
void shoal_slots_stats(const struct shoal_slots *slots, struct shoal_slots_stats *stats);
void shoal_slots_memory(struct shoal_memory *memory);

#endif
