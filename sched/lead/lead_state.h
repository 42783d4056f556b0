/* The fields of a job's controller, and what its files share. Picture and rules: shoal/lead.h. */
#ifndef SHOAL_LEAD_STATE_H
#define SHOAL_LEAD_STATE_H

#include "link_breaks.h"
#include "shoal/lead.h"
#include "shoal/job_entry.h"

/* Workers that one job may have at a time, which are those that its log names; and hosts that matter to it: of its workers, or
 * to be asked. Of a job's own bounds (`worker_cap`, `host_cap`) these are the largest. */
#define LEAD_WORKERS_MAX SHOAL_PLACEMENTS_MAX
#define LEAD_HOSTS_MAX (2 * SHOAL_PLACEMENTS_MAX)
#define LEAD_NEVER UINT64_MAX

/* A placement of the job, and what is known of it. */
struct lworker {
    bool used;
    bool reported;   /* the host has told this leader of it */
    bool stale;      /* its host was out of reach since: the report may be old, nothing is built on it */
    bool was_member; /* of an epoch that this leader saw */
    bool cut_off;    /* its data links broke too often: it is left out, and ended (E7 of lead_epoch.c) */
    bool leaving;    /* the allocation takes its slot away, or its host asks for it */
    bool dead;       /* confirmed dead, or its lease has ended: to be dropped */
    bool lost;       /* gone without an exit status: its host or its lease was lost */
    struct shoal_placement place;
    uint64_t lapse_ns;   /* its lease has ended by then, by this leader's clock (L2) */
    uint64_t seq;        /* newest report seen */
    uint64_t confirm_ns; /* last CONFIRM sent; 0: never */
    uint8_t order;       /* the order last sent, and when */
    uint8_t stands;      /* enum shoal_activity */
    uint64_t order_ns;
    uint64_t ready_ns; /* when it first was ready for the running call; 0: not */
    uint64_t ended_ns; /* when it was first told to end; 0: never */
    struct shoal_worker_report report;
    struct shoal_epoch broken_epoch; /* of which `broken` was said */
    struct shoal_ranks broken;       /* members whose data links broke */
    uint64_t stands_ns; /* when it was last heard that it has done `stands` for long; 0: never */
};

struct lhost {
    bool used;
    uint8_t health;     /* enum shoal_lead_health */
    bool draining;      /* its workers move elsewhere */
    bool no_slots;      /* it takes no workers, nor drivers */
    uint32_t cut_offs;  /* members there that were left out since their links broke */
    uint64_t barred_ns; /* not asked for a slot before */
    struct shoal_node_id node;
    uint32_t host_epoch; /* 0: not known */
    uint64_t stamp;      /* newest heard, and when */
    uint64_t stamp_ns;
    uint64_t silent_ns; /* since when; 0: it is not */
    uint32_t links;     /* of its SHOAL_LEAD_HOST, when it was last well */
    uint64_t slots_version;
    uint64_t refused_version; /* not asked again before its record is newer */
    uint64_t refused_ns;      /* or before a while has passed */
    /* The reservation under way. */
    uint64_t request; /* 0: none */
    uint64_t request_ns;
    uint64_t asked; /* bit i: slot i */
    bool asked_driver;
    uint64_t call_ns, epoch_ns, revoke_ns, report_ns, end_ns, manifest_ns; /* last sent */
    uint32_t call_sent;
    uint64_t epoch_sent;
    uint64_t mark_sent;
    uint32_t guardians_told; /* the version of the guardians that it was told */
    bool returned; /* it was out of reach: to be asked what it has */
    bool involved; /* it has, or had, workers of this job in this leader's time */
};

#define LEAD_IDLE_EPOCHS_MAX 20u /* that end for nothing, without a step in between: then the call ends */
#define LEAD_FAILURES_MAX 10u /* rounds of deaths without a step in between: then the job ends */

/* A slot promised and not placed yet. */
struct lgrant {
    struct shoal_node_id node;
    uint32_t slot;
    uint32_t host_epoch;
    uint64_t generation;
    uint64_t until_ns; /* not used after it: the promise lasts a little longer */
};

/* A host that could not start workers of the job (U5 of lead_unfit.c). */
struct lout {
    struct shoal_node_id node;
    uint64_t until_ns; /* it is left out until then; 0: it is not */
    uint32_t count;    /* times in a row; 0: this place is free */
};

#define LEAD_OUTS_MAX 16u

struct shoal_lead {
    struct shoal_lead_options options;
    const struct shoal_job *job;
    struct shoal_rand rand;
    uint64_t started_ns;
    bool supported;
    bool proposing;
    uint64_t proposed_ns;
    uint64_t retry_ns;
    uint64_t wall_ms;
    uint32_t generation; /* of the job, as last seen */
    uint64_t next_request;
    uint64_t renew_ns; /* next round */
    uint8_t guardian_count;
    uint32_t guardians_version; /* counted up when they change */
    struct shoal_node_id guardians[SHOAL_HOST_SOURCES_MAX];
    /* The allocation. */
    bool has_target;
    uint32_t target;
    uint32_t target_slot_count;
    char target_why[256];
    /* Placement. */
    uint32_t grant_count;
    uint64_t gather_ns;  /* when the first of the grants came */
    uint64_t backoff_ns; /* a gang that did not come together waits until then */
    uint64_t again_ns;    /* no replica is started before: one has ended by itself */
    uint32_t again_count; /* so many did since one stood */
    char again_text[SHOAL_JOB_REASON_BYTES]; /* how; or what else a service waits for */
    uint8_t canary; /* of a service, as it was told with the floor */
    bool need_told;
    uint32_t need_revision;     /* of the document that says it */
    struct shoal_gpu_need need; /* of a service, as it was told with the floor */
    uint32_t floor; /* of a service: replicas that it gives to nobody; UINT32_MAX: all */
    uint32_t backoffs;
    /* Epochs. */
    bool revoking;      /* the running epoch is to end */
    bool shrunk_due;    /* `shrunk` is to be committed (E6 of lead_epoch.c) */
    uint64_t closed_ns; /* when the first member's CLOSED was known; 0: none */
    uint64_t joiner_ns; /* when the first joiner was seen; 0: none waits */
    uint64_t first_ready_ns;
    uint64_t epoch_seen_ns; /* when the committed epoch was first seen here */
    uint64_t epoch_seen;    /* word */
    bool links_judged;      /* of the epoch that is being revoked */
    struct link_breaks *links;
    /* Epochs that end for nothing (lead_idle.c). */
    uint32_t idle_epochs;   /* since the last step */
    uint64_t idle_word;     /* the last epoch that was looked at */
    uint64_t idle_debt_ns;  /* when the last of them is paid for */
    uint64_t idle_worker;   /* who left the last epoch first, and where; 0: nobody had, when it was to end */
    struct shoal_node_id idle_node;
    char cut_off[SHOAL_JOB_REASON_BYTES]; /* the last member that was left out for its links, and why; said until */
    uint64_t cut_off_ns;
    /* Hosts that are left out (lead_unfit.c). */
    uint32_t unfit_count, unfit_cap;
    char unfit_why[SHOAL_HOST_WHY_BYTES + 80]; /* of the last one */
    struct lout outs[LEAD_OUTS_MAX];
    /* Progress. */
    uint32_t step_call;
    uint64_t step;
    uint64_t record_step; /* of which the metrics are */
    uint64_t logged_step, records_acked;
    uint32_t data_epoch, engines, rate_milli;
    uint64_t stepped_ns; /* when the last step was heard of; 0: none was */
    uint64_t usual_ns;   /* a step, when training went on; 0: not known */
    uint64_t looked_ns;  /* the newest step of this core, for who looks at it from outside */
    bool has_metrics;
    int64_t loss_micro, metric_micro;
    bool data_epoch_due;
    struct shoal_data_epoch data_epoch_done;
    uint64_t progress_ns; /* last PROGRESS entry */
    uint32_t failures;    /* rounds of deaths since the last step: many at once are one */
    uint64_t failure_ns;
    uint32_t driver_deaths; /* by signals, since the last step */
    char last_death[200]; /* how a worker ended last that did not end well */
    /* Calls. */
    bool train_due; /* the driver called train() and that is not in the log yet */
    struct shoal_call train;
    uint32_t driver_call; /* the call that the present driver waits for; 0: none */
    uint64_t driver_worker;
    uint64_t manifest_ns; /* last asked for, and for which call */
    uint32_t manifest_asked;
    bool snapshot_due;
    struct shoal_call snapshot;
    bool manifest_ok;
    uint32_t manifest_call;
    struct shoal_hash manifest;
    uint64_t train_state_ns;
    uint32_t train_state_count;
    uint64_t train_state_key;
    uint64_t train_state_worker;
    uint64_t ran_ns; /* when a process of it was first seen to have run; 0: not yet */
    bool ended_well; /* every script has; only the result is missing (J6) */
    /* The end. */
    char fail_text[SHOAL_JOB_REASON_BYTES]; /* not empty: the job is to end with ERROR */
    char *call_text;      /* elastic jobs: why call `call_failed` failed; train() raises with it in the driver */
    uint32_t call_failed; /* 0: none that this leader knows of */
    int32_t fail_code;
    bool deleted_said;
    char pending[SHOAL_JOB_REASON_BYTES];
    /* Gossip. */
    uint64_t summary_ns;
    uint64_t demand_said; /* of the newest DEMAND: demand_mark() in lead_look.c */
    uint64_t summary_demand; /* of the newest SUMMARY, the same */
    uint8_t summary_state;
    size_t summary_len;
    uint8_t summary[SHOAL_RECORD_PAYLOAD_MAX];

    bool blocked;
    uint64_t deadline_ns;
    uint64_t moving_ns;  /* since when workers on draining hosts have others elsewhere beside them; 0: they do not */
    uint64_t surplus_ns; /* since when the allocation yields less than is held; 0: it does not */
    /* Taken at create, by the job's size. */
    uint32_t worker_cap, host_cap;
    struct shoal_lead_slot *target_slots; /* as many as the job may have placements; the grants, too */
    struct lgrant *grants;
    struct lworker *workers;
    struct lhost *hosts;
    struct shoal_worker_epoch *shrunk;  /* elastic jobs; else NULL, as the links */
    struct shoal_node_id *unfit;        /* unfit_cap of them */
    struct shoal_lead_scratch *scratch; /* of the step under way */
    struct shoal_lead_stats stats;
};

/* Every job's controller takes this, however small the job; workers and hosts come on top. */
_Static_assert(sizeof(struct shoal_lead) <= 16 * SHOAL_KIB,
               "the controllers of thousands of waiting jobs fit in memory");

struct lead_step {
    struct shoal_lead *lead;
    uint64_t now_ns;
    struct shoal_lead_actions *actions;
};

/* lead_idle.c */
/* The running epoch is to end. */
void lead_idle_begin(struct shoal_lead *lead, const struct shoal_worker_epoch *last);
/* The running epoch is closed, and the next is to be made: false, if not yet. */
bool lead_idle_judge(struct lead_step *s, const struct shoal_worker_epoch *last);
/* So many ended for nothing that the call is to end. */
bool lead_idle_too_often(const struct shoal_lead *lead);
void lead_idle_text(const struct shoal_lead *lead, char *text, size_t cap); /* empty: there is nothing to say */

/* lead_look.c */
void lead_pace(struct lead_step *s); /* the rate of one that stands */

/* lead.c */
static inline void lead_wake(struct lead_step *s, uint64_t at_ns)
{
    if (at_ns < s->lead->deadline_ns)
        s->lead->deadline_ns = at_ns;
}
/* Send `lead->out`, whose kind and union are set. False: no room. */
bool lead_send(struct lead_step *s, struct shoal_node_id to, uint64_t seq);
/* Propose `lead->entry`. False: one is under way, or no room. */
bool lead_propose(struct lead_step *s);
/* An empty entry of `kind` in lead->entry, or NULL when nothing may be proposed now. */
struct shoal_job_entry *lead_entry(struct lead_step *s, uint8_t kind);
bool lead_propose_state(struct lead_step *s, uint8_t state, int32_t exit_code, bool result_wanted, const char *reason);
struct lhost *lead_host(struct shoal_lead *lead, struct shoal_node_id node); /* found or added; NULL: full */
struct lhost *lead_find_host(struct shoal_lead *lead, struct shoal_node_id node);
struct lworker *lead_worker(struct shoal_lead *lead, uint64_t worker_id);
const struct lworker *lead_find_worker(const struct shoal_lead *lead, uint64_t worker_id);
/* Order `worker`, again after a second while it does not follow. */
void lead_order(struct lead_step *s, struct lworker *worker, enum shoal_order order, uint32_t call, const char *text,
                uint8_t reason, uint64_t grace_ns);
/* A worker died, or says that it cannot go on. */
void lead_failure(struct lead_step *s);
/* How a dead worker has ended; `who` begins the sentence after "the". */
void lead_exit_text(const struct lworker *w, const char *who, char *text, size_t cap);
__attribute__((format(printf, 3, 4))) void lead_fail(struct shoal_lead *lead, int32_t code, const char *format, ...);
__attribute__((format(printf, 2, 3))) void lead_pending(struct shoal_lead *lead, const char *format, ...);
void lead_blob_text(struct shoal_hash hash, char *text);
static inline bool lworker_lives(const struct lworker *w)
{
    return w->used && !w->dead && w->report.phase != SHOAL_PHASE_EXITED;
}
static inline bool host_lost(const struct lhost *host) { return host != NULL && host->health != SHOAL_LEAD_HOST_WELL; }

/* lead_place.c */
void lead_on_offer(struct lead_step *s, struct lhost *host);
bool lead_place(struct lead_step *s); /* true: proposed something */
bool lead_drop(struct lead_step *s);
void lead_confirm(struct lead_step *s);
void lead_renew(struct lead_step *s);
void lead_want(const struct shoal_lead *lead, uint32_t *min, uint32_t *max);
/* The allocation names this slot as the job's. */
bool lead_in_target(const struct shoal_lead *lead, const struct shoal_placement *place);
/* A host has kept the slot that a task has left: a promise as if it had been asked for. */
void lead_on_kept(struct lead_step *s, const struct lhost *host, const struct shoal_worker_report *report);

/* lead_array.c */
/* The reason why a service has fewer replicas than it is to have; "": it has as many. */
const char *lead_array_waits(const struct shoal_lead *lead);
/* A replica ended by itself: the next start waits. */
void lead_array_ended(struct lead_step *s, const struct lworker *worker);
/* The ends of tasks that the log does not hold yet, into an entry of kind TASKS. Returns how many. */
uint32_t lead_array_ends(const struct shoal_lead *lead, struct shoal_job_entry *entry);
void lead_array_want(const struct shoal_lead *lead, uint32_t *min, uint32_t *max);
bool lead_array_drop(struct lead_step *s);
bool lead_array_finish(struct lead_step *s);

/* lead_epoch.c */
bool lead_epoch(struct lead_step *s);
void lead_on_shrunk(struct lead_step *s, const struct lhost *host);
void lead_tell_epoch(struct lead_step *s);
bool lead_is_member(const struct shoal_lead *lead, uint64_t worker_id);
bool lead_closed_in(const struct lworker *w, struct shoal_epoch epoch);
bool lead_eligible(struct lead_step *s, const struct lworker *w, const struct shoal_call *call, bool leavers);
/* `m`: its place in `last`. True: the state of that epoch does not end with the others. */
bool lead_carries_state(const struct lworker *w, const struct shoal_rank_member *m, const struct shoal_worker_epoch *last);

/* lead_links.c: E7 */
/* The worker lives, its host is well, and nothing keeps it from taking part. */
bool lead_is_well(struct lead_step *s, const struct lworker *w);
void lead_on_broken(struct lead_step *s, const struct lhost *host);
void lead_judge_links(struct lead_step *s, const struct shoal_call *call, const struct shoal_worker_epoch *last);
bool lead_readmit(struct shoal_lead *lead); /* true: some that were cut off may be members again */
void lead_kill_cut_off(struct lead_step *s);

/* lead_unfit.c */
bool lead_is_unfit(const struct shoal_lead *lead, struct shoal_node_id node);
/* No engine of the job can run there, for the reason given: words about the host. */
void lead_leave_out(struct shoal_lead *lead, struct shoal_node_id node, const char *why);
void lead_on_unfit(struct lead_step *s, const struct lhost *host);
/* U5: its host could not start it; its host has started it; hosts whose time is over take part again; this one does not now. */
void lead_unstarted(struct lead_step *s, const struct lworker *w);
void lead_started(struct shoal_lead *lead, struct shoal_node_id node);
void lead_let_in(struct lead_step *s);
bool lead_starts_nothing(const struct shoal_lead *lead, struct shoal_node_id node);
/* U4. */
void lead_on_plain_jobs(struct shoal_lead *lead, struct shoal_node_id node);
/* U3. */
void lead_unfit_for_call(struct shoal_lead *lead);
/* Names those that were left out before the last one; "": there are none. */
void lead_unfit_others(const struct shoal_lead *lead, char *text, size_t cap);

/* lead_call.c */
void lead_on_train(struct lead_step *s, uint64_t worker_id, const struct shoal_call *call);
bool lead_calls(struct lead_step *s);
void lead_tell_call(struct lead_step *s);
void lead_tell_driver(struct lead_step *s);
bool lead_finish(struct lead_step *s);
bool lead_progress(struct lead_step *s);
bool lead_clears_failed(const struct shoal_lead *lead); /* the last call failed, and engines of it are still there */
bool lead_rerun(
    const struct shoal_lead *lead); /* a script of the gang was lost: all of it goes, the next attempt follows */

/* lead_look.c */
void lead_publish(struct lead_step *s);

#endif
