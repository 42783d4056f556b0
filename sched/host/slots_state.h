/* The fields of a host's slots core, and what its files share. Picture and rules: shoal/slots.h. */
#ifndef SHOAL_SLOTS_STATE_H
#define SHOAL_SLOTS_STATE_H

#include "shoal/slots.h"

struct slot {
    uint8_t state; /* enum shoal_slot_state */
    bool idle;     /* the kernel says so: lock free, cgroup empty */
    bool spent;    /* this generation has been leased, or denied for good: no CONFIRM of it any more */
    struct shoal_job_id job;
    uint64_t generation;
    uint64_t worker_id; /* LEASED, DRAINING, HELD */
    uint32_t priority;  /* TENTATIVE: the claim, and until when */
    uint64_t ticket_ms;
    uint64_t until_ns;
    struct shoal_job_id target; /* who deserves it, by this host's own allocation */
    /* Of the newest grant. */
    uint32_t gpu_mib;
    uint64_t gpu_pack; /* 0: the whole slot */
};

/* A report that is repeated until the leader has acknowledged exactly it. */
struct item {
    uint64_t seq; /* 0: nothing to report */
    uint64_t acked;
    uint64_t sent;
    uint64_t sent_ns;
};

/* Orders that the shell is to get and that are not emitted yet: bits of `want`. */
#define WANT_RUN 1u
#define WANT_RENEW 2u
#define WANT_FREEZE 4u
#define WANT_THAW 8u
#define WANT_KILL 16u

struct worker {
    bool used;
    bool run; /* RUN was emitted, or the runner has it */
    bool frozen;
    bool killed;   /* KILL without grace was emitted */
    bool expired;  /* its lease is over: the slot is published as free, and whoever claims it has it cleared */
    bool unproven; /* from the store: no runner has confirmed it yet */
    uint8_t want;
    uint32_t job; /* index */
    struct shoal_placement place;
    uint64_t term;
    uint64_t deadline_ns;
    uint64_t kill_ns;  /* 0: none; the end of a grace */
    uint64_t grace_ns; /* of the wanted KILL */
    uint64_t proof_ns; /* unproven until then */
    struct item item;
    uint64_t quiet_ns; /* its report waits until then for what comes with it: most tasks end soon (S8) */
    struct shoal_worker_report report;
    bool unfit; /* it said that no engine of the job can run here; why is the report's text */
    struct shoal_ranks broken; /* members whose links broke before it closed `report.epoch` */
    /* Towards the worker: what it was told on its present connection, and what it is to be told. */
    uint32_t sent_call;
    uint64_t sent_epoch;
    uint32_t final_call, sent_final;
    bool release, sent_release, stop, sent_stop;
    uint8_t stop_reason;
    char stop_text[256];
    uint64_t sent_mark;
};

enum blob_state { BLOB_NONE, BLOB_FETCHING, BLOB_HERE };

struct hjob {
    bool used;
    bool opened; /* JOB_OPEN was emitted */
    bool closing;
    bool keep; /* an array with more tasks (S8) */
    bool sources_new; /* GUARDIANS is to be emitted */
    struct shoal_job_id id;
    uint32_t generation;
    uint64_t term;
    struct shoal_node_id leader; /* zero: not known (adopted from a runner) */
    uint64_t seq;
    uint64_t empty_ns; /* since when it has no worker here; 0: it has */
    size_t spec_len;
    uint8_t source_count;
    struct shoal_node_id sources[SHOAL_HOST_SOURCES_MAX];
    /* The call that engines here load. */
    uint32_t call;
    uint64_t job_seed;
    struct shoal_hash bundle;
    enum blob_state bundle_state;
    uint64_t fetch_ns; /* when to ask again */
    /* The newest epoch handed out here; its snapshot may have to be fetched first. */
    struct shoal_hash snapshot;
    enum blob_state snapshot_state;
    uint64_t snapshot_ns;
    uint64_t revoked;      /* word */
    uint64_t revoked_sent; /* REVOKE emitted up to here */
    uint64_t flood_word;   /* to be flooded to the other members' hosts */
    uint64_t mark;         /* records acknowledged, of `call` */
    struct item train;
    uint64_t train_worker;
    struct shoal_call train_call;
    bool train_state_wanted;
    uint64_t train_state_worker;
    struct item manifest;
    bool manifest_wanted, manifest_made, manifest_ok;
    uint32_t manifest_call;
    struct shoal_hash manifest_hash;
    char manifest_text[200];
    /* The epoch that this host makes of the last one by itself (S7 of slots.h). */
    uint64_t shrinking; /* word of the epoch whose members here are closing; 0: none */
    uint64_t shrink_ns; /* given up then */
    struct item shrunk; /* the epoch of this job is one of ours, not known to be committed */
    struct item snap;
    uint32_t snap_call;
    uint64_t snap_step;
    struct shoal_hash snap_hash;
    /* Progress: `step` from every worker's control page too, the rest from rank 0's records. */
    bool progress_new;
    uint64_t progress_ns;    /* last sent */
    uint64_t progress_epoch; /* of `step`: its word, since a host's own epochs (e,k) have first steps, too */
    uint32_t record_e;       /* of the newest record */
    uint64_t rate_step, rate_ns;
    uint32_t progress_call, data_epoch, engines, rate_milli;
    uint64_t step, record_step, logged_step;
    bool has_metrics; /* of `record_step` */
    bool metrics_new; /* not sent to this leader yet */
    int64_t loss_micro, metric_micro;
    bool report_all;
};

/* A lease for a driver, promised and not confirmed yet. */
struct driver_promise {
    struct shoal_job_id job;
    uint64_t generation; /* 0: free */
    uint64_t until_ns;
};

struct shoal_slots {
    struct shoal_slots_options options;
    bool drain;                   /* S10 */
    uint64_t until_reattached_ns; /* S11: the latest; 0: they have been told */
    uint64_t version;             /* of the record */
    uint64_t published;
    uint64_t table_version; /* of what encode() writes */
    uint64_t last_generation;
    struct slot slots[SHOAL_SLOTS_MAX];
    struct driver_promise promises[SHOAL_HOST_JOBS_MAX];
    struct worker workers[SHOAL_HOST_WORKERS_MAX];
    uint32_t jobs_max;
    struct hjob *jobs;
    struct shoal_worker_epoch *epochs;             /* one per job */
    struct shoal_worker_train_state *train_states; /* one per job */
    uint8_t *specs;                                /* SHOAL_JOB_SPEC_BYTES_MAX per job */
    bool blocked;                                  /* actions were full: step again at once */
    uint64_t deadline_ns;
    struct shoal_host_message in;  /* scratch */
    struct shoal_host_message out; /* scratch */
    struct shoal_slots_stats stats;
};

/* Everything one step needs. */
struct slots_step {
    struct shoal_slots *slots;
    uint64_t now_ns;
    struct shoal_slots_actions *actions;
};

/* slots.c */
struct shoal_slots_action *slots_emit(struct slots_step *s, enum shoal_slots_action_kind kind); /* NULL: full */
struct shoal_host_order *slots_order(struct slots_step *s, enum shoal_host_order_kind kind);    /* as above */
/* Send `slots->out`, whose kind and union are set, to `to` about `job`. False: no room. */
bool slots_send(struct slots_step *s, const struct hjob *job, struct shoal_node_id to, uint64_t seq);
struct hjob *slots_find_job(struct shoal_slots *slots, struct shoal_job_id id);
struct hjob *slots_add_job(struct shoal_slots *slots, struct shoal_job_id id, uint32_t generation); /* NULL: full */
struct worker *slots_find_worker(struct shoal_slots *slots, uint64_t worker_id);
struct worker *slots_add_worker(struct shoal_slots *slots, struct hjob *job, const struct shoal_placement *place);
static inline uint32_t slots_job_index(const struct shoal_slots *slots, const struct hjob *job)
{
    return (uint32_t)(job - slots->jobs);
}
static inline struct shoal_worker_epoch *slots_epoch(const struct shoal_slots *slots, const struct hjob *job)
{
    return &slots->epochs[slots_job_index(slots, job)];
}
static inline bool worker_lives(const struct worker *worker)
{
    return worker->used && worker->report.phase != SHOAL_PHASE_EXITED;
}
static inline bool item_open(const struct item *item) { return item->seq != 0 && item->seq != item->acked; }
void slots_item_touch(struct hjob *job, struct item *item);
void slots_worker_changed(struct shoal_slots *slots, struct worker *worker);
void slots_changed(struct shoal_slots *slots); /* the record: publish it */
void slots_worker_kill(struct worker *worker, uint64_t grace_ns, uint64_t now_ns);
void slots_worker_exited(struct slots_step *s, struct worker *worker, int32_t status, bool signalled, const char *text);
/* S9: the only ways in which a slot's state and a worker's phase change. */
void slots_slot_move(struct slot *slot, enum shoal_slot_state state);
void slots_worker_move(struct worker *worker, enum shoal_phase phase);
void slots_job_revoke(struct slots_step *s, struct hjob *job, uint64_t word);
void slots_worker_freeze_due(struct slots_step *s, struct worker *worker);
void slots_job_forget(struct shoal_slots *slots, struct hjob *job);
/* Bytes that a message has taken of the step's pool. */
void slots_pool_take(struct shoal_slots_actions *actions, size_t len);
/* Enters an event into the tables; its consequences follow in the same step (slots_drive.c). */
SHOAL_MUST_CHECK enum shoal_err slots_on_event(struct slots_step *s, const struct shoal_slots_event *event);
void slots_reattached(struct slots_step *s); /* no runner is waited for any longer */

/* slots_shrink.c */
/* `worker` of the revoked epoch has died: if all its members are here, the next one may be made here. */
void slots_shrink_begin(struct slots_step *s, struct hjob *job);
void slots_shrink_turn(struct slots_step *s, struct hjob *job);
/* True while the report of `worker` waits for the epoch without the dead, which is told first (K2, K3). */
bool slots_shrink_withholds(const struct shoal_slots *slots, const struct hjob *job, const struct worker *worker);

/* slots_lease.c: messages of leaders. */
/* S8: `slot`, which `worker` has left, is promised to the worker's job again, if it is to be kept. */
bool slots_keeps(const struct shoal_slots *slots, const struct worker *worker);
void slots_keep(struct slots_step *s, struct slot *slot, struct worker *worker);
void slots_on_message(struct slots_step *s, struct shoal_node_id from);

/* slots_cards.c: S14. */
/* Why slot `index` cannot be had with so much of its card; NULL: it can, or it is of none. */
const char *slots_card_refuses(const struct shoal_slots *slots, uint32_t index, uint32_t mib, uint64_t pack);
/* Reads the cards of the record, and which whole slots are free; `free` has a bit for each slot that nobody holds. */
void slots_cards_record(const struct shoal_slots *slots, uint64_t free, struct shoal_slots_record *record);

/* slots_worker.c: local workers. */
/* Progress is of this call and epoch from now on. */
void slots_progress_of(struct hjob *job, uint32_t call, struct shoal_epoch epoch);
void slots_on_worker(struct slots_step *s, struct worker *worker, const struct shoal_worker_message *message);
void slots_drive_worker(struct slots_step *s, struct worker *worker);

#endif
