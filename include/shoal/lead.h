/* The controller of one job, on the node that leads its group (PROTOCOLS 6, 7, 12 to 14).
 *
 *     committed state of the job --\
 *     allocation (TARGET)         --+--> what should be, minus what is --> entries to propose, messages to hosts
 *     reports of the hosts        --/
 *
 * L1. Nothing is told to a host that is not committed: CONFIRM after PLACE, EPOCH after its entry, RELEASE after the
 *     manifest. One proposal is under way at a time; what to do next is worked out anew from the committed state.
 * L2. A new leader starts from the committed state and asks every host for its reports; it needs nothing else. What it
 *     does not know yet of a host it does not decide on, until the leases there must have ended (lease + 1 s by its own
 *     clock, counted from its election).
 * L3. Epoch e+1 is proposed only when epoch e is closed (one member's CLOSED, or all its members are confirmed dead),
 *     or every lease of its members has ended.
 * L4. The decided step D is the highest step that a report calls complete; a member holds it.
 * L5. A lease is dropped from the job only when the host says that the worker is dead, or lease + 1 s has passed.
 * L6. A host with workers knows who guards the job now: it pushes files, ledger and checkpoints to them. When the group's
 *     members have changed, or its link was down, a CONFIRM tells it, without a placement if it has all of them.
 *
 * Pure: no I/O, no clock; chance from the given rand (tokens: the owner seeds it from the system); allocates in create
 * only. The owner creates it when this node leads and the state machine has applied an entry of the new term (or
 * everything before it), steps it with every event, and destroys it when leadership ends. Messages to this node itself
 * are SENDs too. */
#ifndef SHOAL_LEAD_H
#define SHOAL_LEAD_H

#include "shoal/cards.h"
#include "shoal/host_wire.h"
#include "shoal/memory.h"
#include "shoal/rand.h"
#include "shoal/job_facts.h"
#include "shoal/job_entry.h"

struct shoal_lead; /* state: its fields live in sched/lead/lead_state.h */

struct shoal_lead_options {
    const struct shoal_job *job; /* borrowed for the lead's life: the replica, changed by apply between steps */
    struct shoal_node_id self;
    uint64_t term;
    uint64_t now_ns;
    struct shoal_rand rand;
    uint64_t lease_ns;        /* 0: 15 s, as on the hosts */
    uint64_t renew_ns;        /* 0: 3 s */
    uint64_t gather_ns;       /* 0: 50 ms; joiners that come together enter together */
    uint64_t first_gather_ns; /* 0: 1 s; the first epoch of a call waits so long for workers already granted */
    uint64_t slow_ns;         /* 0: 300 ms; a closed epoch waits so long for reports of the others */
    uint64_t stop_grace_ns;   /* 0: 30 s */
    uint32_t attempts_max;    /* 0: SHOAL_ATTEMPTS_MAX; of a script whose host was lost */
};

enum shoal_lead_event_kind {
    SHOAL_LEAD_TIMER,
    SHOAL_LEAD_APPLIED,   /* entries of this job were applied: `changed` = OR of what shoal_job_apply returned */
    SHOAL_LEAD_REFUSED,   /* the proposal under way was not taken (FULL, leadership in doubt): worked out again later */
    SHOAL_LEAD_FRAME,     /* a host_wire message for this job's leader */
    SHOAL_LEAD_TARGET,    /* the allocation of the newest view */
    SHOAL_LEAD_HOST,      /* health of a host */
    SHOAL_LEAD_SUPPORTED, /* whether a quorum supports this leader now; only then are leases renewed (start: true) */
    SHOAL_LEAD_GUARDIANS,
    SHOAL_LEAD_RECORDS_MARK,
    SHOAL_LEAD_FLOOR, /* of a service: how many replicas its profile has at least; until it is said, all count as that */
};

enum shoal_lead_health {
    SHOAL_LEAD_HOST_WELL,   /* heard; slots may be asked for */
    SHOAL_LEAD_HOST_SILENT, /* support lost for its silent time: its workers enter no new epoch */
    SHOAL_LEAD_HOST_GONE, /* gossip: dead or left, or a connection is refused. As silent, and nothing new goes there */
};

struct shoal_lead_slot {
    struct shoal_node_id node;
    uint32_t slot;
};

struct shoal_lead_event {
    enum shoal_lead_event_kind kind;
    uint64_t wall_ms; /* display, in entries */
    union {
        unsigned changed;
        struct {
            struct shoal_node_id from;
            struct shoal_view bytes;
        } frame;
        struct {
            uint32_t count;                      /* slots this job deserves; may be more than listed */
            const struct shoal_lead_slot *slots; /* where: those held and kept, then those to ask for */
            uint32_t slot_count;
            const char *why; /* shoal_allocate_explain */
        } target;
        struct {
            struct shoal_node_id node;
            enum shoal_lead_health health;
            bool draining;          /* its workers move elsewhere, as places there are to be had */
            bool no_slots;          /* it takes no workers; nor a driver, where another host can */
            bool plain_jobs;        /* its agent is of a version that takes no job of so many workers as this one may have */
            uint32_t host_epoch;    /* as known; a higher one than a lease's voids the lease: the workers are dead */
            uint32_t links;         /* how often its link came up: another number, and what was sent is lost */
            uint64_t slots_version; /* of its newest slots record: a refusal names it */
        } host;
        bool supported;
        struct {
            const struct shoal_node_id *nodes;
            uint32_t count;
        } guardians;
        struct {
            uint32_t call;
            uint64_t step;
        } records_mark;
        struct {
            uint32_t count;
            uint8_t canary; /* as in the summary */
            uint32_t revision;
            struct shoal_gpu_need need;
        } floor;
    } u;
};

enum shoal_lead_action_kind {
    SHOAL_LEAD_SEND,    /* a host_wire message, to a host or to this node's own slots core */
    SHOAL_LEAD_PROPOSE, /* an entry of kind USER; answered by APPLIED, or by REFUSED */
    SHOAL_LEAD_SUMMARY, /* for gossip: PUBLISH_SUMMARY */
    SHOAL_LEAD_DEMAND,  /* the summary again, for those who wait: what it wants or holds has changed */
    SHOAL_LEAD_DELETE,  /* ended and deleted: the group may be removed, with a tombstone */
};

struct shoal_lead_action {
    enum shoal_lead_action_kind kind;
    struct shoal_node_id to;
    struct shoal_view bytes;
    bool demand_new; /* SUMMARY: it says something else of slots than the last one */
};

#define SHOAL_LEAD_ACTIONS_MAX 512
#define SHOAL_LEAD_POOL_BYTES (8 * SHOAL_MIB)

/* Memory that a step works in; nothing in it outlives the step. */
struct shoal_lead_scratch {
    struct shoal_host_message in, out;
    struct shoal_job_entry entry;
};

/* Memory of the caller, taken once; serves all leads. What finds no room is made again by a later step. */
struct shoal_lead_actions {
    uint32_t count;
    size_t pool_used;
    struct shoal_lead_scratch scratch;
    struct shoal_lead_action list[SHOAL_LEAD_ACTIONS_MAX];
    _Alignas(16) uint8_t pool[SHOAL_LEAD_POOL_BYTES];
};

SHOAL_MUST_CHECK enum shoal_err shoal_lead_create(struct shoal_lead **lead, const struct shoal_lead_options *options);
void shoal_lead_destroy(struct shoal_lead *lead); /* accepts NULL */
/* MALFORMED: a frame that does not decode or is of another job. `actions` is emptied first. */
SHOAL_MUST_CHECK enum shoal_err shoal_lead_step(struct shoal_lead *lead, const struct shoal_lead_event *event,
                                                uint64_t now_ns, struct shoal_lead_actions *actions);
/* Memory that it has taken. */
size_t shoal_lead_bytes(const struct shoal_lead *lead);
/* UINT64_MAX: only an event can change anything (an ended job whose workers are all gone). */
uint64_t shoal_lead_deadline_ns(const struct shoal_lead *lead);

/* A stamp of `node` heard in its support datagrams (this node: its own clock), host epoch with it. Cheap; no step. */
void shoal_lead_stamp(struct shoal_lead *lead, struct shoal_node_id node, uint32_t host_epoch, uint64_t stamp);

/* ---- Looking ---------------------------------------------------------------------------------------------------- */

/* The slots that this job wants of the mesh, for the view of every allocation made here. */
void shoal_lead_demand(const struct shoal_lead *lead, uint32_t *min, uint32_t *max);
/* Reads what its kernels need of a card. False: a service's document says something newer, which this lead was not told yet. */
bool shoal_lead_need(const struct shoal_lead *lead, struct shoal_gpu_need *need);
/* Hosts on which no engine of it can run, beside what the allocation knows; valid until the next step. */
const struct shoal_node_id *shoal_lead_unfit(const struct shoal_lead *lead, uint32_t *count);
/* The i-th slot that is promised and not placed yet (SHOAL_SLOT_NONE: the driver's); false: there are fewer. */
bool shoal_lead_reserved(const struct shoal_lead *lead, uint32_t i, struct shoal_lead_slot *slot);
/* False: its worker is confirmed dead, so that its slot may be another job's already, though the log still has it. */
bool shoal_lead_holds(const struct shoal_lead *lead, const struct shoal_placement *place);
void shoal_lead_summary(const struct shoal_lead *lead, struct shoal_job_summary *summary);
/* The last SUMMARY could not be passed on: it is made again. */
void shoal_lead_summary_lost(struct shoal_lead *lead);
/* shoal_job_facts with progress and the pending reason. */
void shoal_lead_facts(const struct shoal_lead *lead, struct shoal_job_facts *facts);
/* The reasons that hold it up, for `why`: lines for a person, "" when nothing does. */
void shoal_lead_why(const struct shoal_lead *lead, char *text, size_t cap);
/* Hosts with workers of this job: support is wanted with them. Returns how many there are. */
size_t shoal_lead_hosts(const struct shoal_lead *lead, struct shoal_node_id *nodes, size_t cap);

struct shoal_lead_stats {
    uint64_t proposals, proposals_refused;
    uint64_t reserves, offers, offers_refused, confirms, renewals;
    uint64_t epochs, revokes, repeats, stale, actions_full;
    uint64_t cut_offs; /* members left out since their data links broke */
};
void shoal_lead_stats(const struct shoal_lead *lead, struct shoal_lead_stats *stats);
/* Memory of a host that leads every group it holds. */
void shoal_lead_memory(struct shoal_memory *memory);

#endif
