/* The state of one node's control plane, shared by the sched*.c files and by nobody else.
 *
 *   sched.c          step, settling, deadlines, looking inside
 *   sched_node.c     what is known of nodes; host-pair support and what it means to groups
 *   sched_group.c    the table of groups; one raft driven, its actions carried out, entries applied
 *   sched_store.c    snapshots, installs, restore after a start, removed ids
 *   sched_found.c    tickets, guardians, founding
 *   sched_settle.c   foundings that find no majority
 *   sched_digest.c   replicas compared, and rebuilt
 *   sched_request.c  requests: here, forwarded, asked around
 *   sched_recover.c  the next recovery generation, from a single replica
 *   sched_keep.c     membership upkeep: growth and replacement of guardians
 *   sched_park.c     pending jobs that leave memory, and come back
 *   sched_archive.c  ended jobs: from groups to records on three hosts
 *   sched_copy.c     the mesh's signed copy
 *   sched_index.c    what lists show of each job
 *   sched_lead.c     leads of jobs
 *   sched_slots.c    this host's slots
 *   sched_local.c    what leads and slots tell each other
 *   sched_summary.c  jobs' summaries, from gossip and into it
 *   sched_news.c     free slots and demands, told directly to those who wait
 *   sched_view.c     hosts and jobs in one view, and its allocation
 *   sched_interest.c support that jobs want */
#ifndef SCHED_STATE_H
#define SCHED_STATE_H

#include "shoal/job.h"
#include "shoal/lead.h"
#include "shoal/mesh.h"
#include "shoal/raft.h"
#include "shoal/sched.h"
#include "shoal/slots.h"
#include "shoal/support.h"
#include "sched_wire.h"

#define SCHED_NEVER UINT64_MAX

/* A group's line: recovery generation - 1 (16 bits), and who founded it (16 bits); 0 as it was founded first. The high
 * half of every term (sched_recover.c). */
#define SCHED_LINE_SHIFT 32
static inline uint64_t sched_line(uint64_t term) { return term >> SCHED_LINE_SHIFT; }

#define SCHED_REQUEST_NS (2500 * SHOAL_MS)
#define SCHED_SUBMIT_NS (30 * SHOAL_S)
#define SCHED_RETRY_NS (100 * SHOAL_MS)
/* A forwarded request that is not answered in this time is asked again elsewhere. */
#define SCHED_ANSWER_NS (600 * SHOAL_MS)
#define SCHED_HOPS_MAX 3
#define SCHED_FOUND_RETRY_NS (500 * SHOAL_MS)
#define SCHED_SNAPSHOT_ENTRIES 512
#define SCHED_SNAPSHOT_BYTES (256 * SHOAL_KIB)
#define SCHED_SNAPSHOT_IDLE_NS (30 * SHOAL_S)
#define SCHED_DIGEST_ENTRIES 1024
#define SCHED_DOOM_NS (3 * SHOAL_S)
/* A group without a leader asks around after this time. */
#define SCHED_ORPHAN_NS (10 * SHOAL_S)
#define SCHED_MESH_TARGET 5
#define SCHED_ASKED_MAX 8
#define SCHED_TOLD_MAX (SHOAL_GROUP_NODES_MAX + 4)
#define SCHED_WAITERS_MAX 8
#define SCHED_NEEDS_MAX 4
/* Room that one raft step may need. */
#define SCHED_ROOM_ACTIONS (SHOAL_RAFT_ACTIONS_MAX + 64)
#define SCHED_ROOM_ENTRIES 64
/* Sends stop here, so that what must not be lost still fits. */
#define SCHED_POOL_KEPT (512 * SHOAL_KIB)
/* Due so often at one instant, a part of the core is made to wait this long: settling must come to an end. */
#define SCHED_DUE_MAX 32
#define SCHED_DUE_PAUSE_NS SHOAL_MS
/* Rounds of settling in one step; what is left comes in the next one. */
#define SCHED_TURNS_MAX 4096

/* A host as a group's raft was told of it, and the group as that host was told of it. */
struct sched_told {
    struct shoal_node_id node;
    bool supported;
    bool supporting;
    uint64_t claimed; /* its claim, as told to the raft; 0: none */
    uint64_t claim;   /* ours towards it; 0: none */
    bool broken;      /* its replica has stopped: it is to be rebuilt (leader) */
    uint64_t parked;  /* it has parked the group, which ended at this index then; 0: no */
};

/* The digest that a guardian's machine came to. */
struct sched_digest {
    struct shoal_node_id node;
    uint64_t index, digest;
};

struct sched_waiter {
    struct shoal_node_id node;
    uint64_t nonce;
};

struct sched_need {
    struct shoal_raft_id peer;
    uint64_t index;
    uint64_t offset;
};

struct sched_side; /* what belongs to a lead: sched_lead.c */

/* A host that should hold a record, and whether it does. */
struct sched_copy {
    struct shoal_node_id node;
    bool holds, final;
};

struct archived_body {
    struct shoal_buf bytes;
    struct archive_record record; /* points into `bytes` */
};

/* How far a record of the archive has come here. From HELD on it is durable, from FINAL on as final. */
enum archived_state {
    ARCHIVED_NEW,      /* its row has just been made; never seen outside the function that makes it */
    ARCHIVED_FETCHING, /* its blobs are on their way */
    ARCHIVED_WRITING,  /* its blobs are here; it is not durable yet */
    ARCHIVED_HELD,     /* durable, but not as final */
    ARCHIVED_FINAL,    /* durable as final, and its bytes are in memory */
    ARCHIVED_COLD,     /* as FINAL, but its bytes are in the store alone (A8) */
    ARCHIVED_LOADING,  /* as COLD, and the shell reads its bytes */
};
#define ARCHIVED_STATES (ARCHIVED_LOADING + 1)

/* A record of the archive that is here, or on its way here. */
struct sched_archived {
    struct shoal_job_id id;
    struct shoal_hash hash;     /* of its bytes */
    enum archived_state state;
    struct archived_body *body; /* NULL: COLD or LOADING */
    uint64_t spec_mark;
    size_t heap_at;
    struct sched_archived *warm_next, *warm_prev; /* final ones with a body, the longest in memory first */
    uint64_t stay_ns;                             /* it was loaded: not cold before */
    bool warm;
    bool marked;  /* its hard state says that it is final: an agent that starts reads no more of it */
    bool final;   /* somebody to whom it is final has said so (A3); durable only from FINAL on */
    uint64_t writes;           /* counts what was given to the store: its index there */
    uint64_t written;          /* mark of the first write of this life; 0: none yet */
    uint64_t final_at;         /* mark of the write that says final; 0: none yet */
    uint64_t since;            /* archive_version */
    struct shoal_node_id from; /* offered it: told when it is stored */
    uint64_t look_ns;
    uint64_t drop_ns; /* not fetched by then: forgotten */
    uint8_t looks;    /* in a row that found something missing */
    uint8_t host_count;
    struct sched_copy hosts[SHOAL_ARCHIVE_COPIES]; /* who should hold it; this node too */
};

struct sched_group {
    struct shoal_job_id id;
    uint64_t life; /* of this group on this node: marks name it, so that an older life's are not believed */
    struct shoal_raft *raft;
    struct shoal_mesh *mesh; /* the mesh group's machine; NULL in a job's group */
    struct shoal_job *job;   /* NULL until the founding record is applied */
    struct shoal_lead *lead;
    struct sched_side *side;

    uint64_t applied;
    uint64_t applied_term;
    uint64_t config_index; /* newest committed configuration */
    uint64_t snapshot_index;
    uint64_t log_bytes; /* since the snapshot */
    bool snapshot_saving;

    bool leads;
    bool founded; /* a founding record or snapshot was applied */
    bool stopped; /* its digest differs: takes no part any more */
    bool refused;
    bool record_known; /* spec_hash and target are set */
    bool bundle_asked;
    bool bundle_here;
    bool mesh_is;
    bool role_changed;
    bool hurry; /* recovered: it is below its target, and grows at once */
    uint64_t term;
    struct shoal_node_id leader;

    struct shoal_hash spec_hash;
    struct shoal_hash bundle_hash;
    uint8_t target;

    /* Founding: who is told when the record is durable. */
    uint64_t found_seq; /* of the PERSIST that carries it; 0: none under way */
    bool found_durable;
    uint8_t waiter_count;
    struct sched_waiter waiters[SCHED_WAITERS_MAX];
    uint64_t orphan_ns;   /* no leader is known: asks then whether it is a member still */
    uint64_t refuse_term; /* REFUSED was proposed in this term */
    uint64_t complete_ns; /* a holder without a majority offers the record again then */
    uint32_t complete_tries;

    /* Snapshots: the one that followers are given, the one that comes in. */
    struct shoal_buf snap;
    struct shoal_raft_snapshot snap_at;
    uint64_t snap_used_ns;
    struct shoal_buf part;
    uint64_t part_index;
    uint8_t need_count;
    struct sched_need needs[SCHED_NEEDS_MAX]; /* beyond it the raft asks again */

    /* Digests of the machine at the newest multiple of SCHED_DIGEST_ENTRIES. */
    uint64_t digest_index, digest;
    struct sched_digest digests[SHOAL_SCHED_SOURCES_MAX]; /* the others' newest */
    uint64_t rebuild_ns;                                  /* stopped: asks then to be rebuilt */

    /* Reads: those that wait share the next round. */
    uint64_t read_serial; /* of the round under way; 0: none */
    bool reads_waiting;

    /* Upkeep of the membership (leader). */
    uint64_t below_since_ns; /* 0: at its target */
    uint64_t keep_ns;        /* look again then */
    uint64_t doomed_ns;      /* removed then; SCHED_NEVER: lives */
    bool gone_for_good;      /* its id is remembered */
    bool gone_archived;      /* the archive has it */

    /* Ended, on its way into the archive (leader): sched_archive.c. */
    uint64_t archive_ns;     /* look again then */
    bool archive_due;        /* the time since its end is over */
    bool ended_led;          /* counted among the ended ones that are led here */
    bool archive_making;     /* the shell lists its blobs */
    uint64_t archive_end_ns; /* every holder has it as final since then; 0: not yet */
    uint8_t archive_host_count;
    struct sched_copy archive_hosts[SHOAL_ARCHIVE_COPIES];

    /* The queue of pending jobs (leader): sched_park.c. */
    bool held;    /* it waits without a lead */
    bool called;  /* its turn has come: it is not held */
    bool shown;   /* counted among those with a lead that only wait */
    bool counted; /* counted among those held */
    uint64_t called_ns;
    uint64_t stay_ns;     /* it has come back: not parked before */
    uint64_t park_ask_ns; /* followers are not asked again before */

    /* Told hosts, dirty queue, deadline heap. */
    uint8_t told_count;
    struct sched_told told[SCHED_TOLD_MAX];
    bool dirty;
    struct sched_group *next_dirty;
    /* What lists show of it: sched_index.c. */
    bool index_dirty;
    struct sched_group *index_next, *index_prev;
    uint64_t index_mark; /* of the row emitted last; 0: none */
    uint64_t due_ns;     /* when it was due last, and how often at that instant */
    uint32_t due_count;
    uint64_t floor_ns; /* not due again before */
    uint64_t deadline_ns;
    size_t heap_at;

    unsigned changed; /* of the job, not yet told to the lead */
    bool lead_refused;
    uint64_t lead_ns;
};

/* A group that has left memory. */
enum parked_state {
    PARKED_WRITING, /* its mark is on its way to the disk */
    PARKED_QUIET,
    PARKED_LOADING, /* the shell reads it */
};
#define PARKED_STATES 3

struct sched_parked {
    struct shoal_job_id id;
    uint8_t state; /* enum parked_state */
    uint8_t guardian_count;
    uint8_t target;
    uint8_t device; /* enum shoal_job_device: whose queue */
    bool behind;    /* a guardian had not got all of it */
    bool wanted;    /* somebody asked for it */
    bool turn;      /* it is loaded since its turn has come */
    bool first;     /* it is wanted by this node: the others are woken, and this one campaigns */
    uint16_t owner; /* places in the table of hosts */
    uint16_t guardians[SHOAL_SCHED_SOURCES_MAX];
    uint32_t priority;
    uint32_t heap_at;
    uint64_t ticket_ms;
    uint64_t mark; /* of the write that parked it */
};

struct sched_park; /* rows and queue: sched_park.c */

/* The ways in which a RESTORE concerns the parked groups. */
enum parked_how {
    PARKED_NOT,   /* nothing: it is restored */
    PARKED_STAYS, /* it is dealt with */
    PARKED_COMES, /* it is restored; then sched_park_came() or sched_park_fails() */
};

struct sched_node {
    struct shoal_sched_node info;
    uint64_t since_ns; /* of its state */
    uint32_t links;    /* how often its link came up */
};

enum request_state {
    REQUEST_FREE, /* the place is not in use: its request has been answered (R1) */
    REQUEST_WAITING,   /* tried again at retry_ns */
    REQUEST_FORWARDED, /* to `asked` */
    REQUEST_ASKING,    /* who knows this job? */
    REQUEST_PROPOSED,  /* answered when (index, term) is applied */
    REQUEST_READING,   /* waits for a read round of its group */
    REQUEST_FOUNDING,
    REQUEST_SURVEY,   /* RECOVER: what the other guardians hold */
    REQUEST_COPY,     /* waits for this node's copy of the mesh to reach `version` */
    REQUEST_DELETING, /* an archived job: waits for the other holders to forget it */
};
#define REQUEST_STATES (REQUEST_DELETING + 1)

struct sched_request {
    enum request_state state;
    uint64_t serial;
    uint64_t id; /* the shell's, or the origin's */
    bool foreign;
    struct shoal_node_id origin;
    uint8_t hops;
    uint8_t pauses; /* waited for an election here */
    enum shoal_sched_request_kind kind;
    struct shoal_job_id job;
    bool linearizable;
    bool local_only;
    bool sent;      /* forwarded once: a change must not be sent twice */
    bool recovered; /* RECOVER: founded here, to be told once it leads */
    char by[SHOAL_SCHED_BY_BYTES];
    uint64_t deadline_ns;
    uint64_t retry_ns;
    struct shoal_node_id asked;
    struct shoal_node_id hint;   /* who might lead; zero: unknown */
    struct shoal_node_id rumour; /* a leader that one who does not hold the group has heard of */
    uint64_t index, term;
    uint64_t read_serial; /* 0: waits for the next round */
    uint64_t read_index;  /* serve when applied up to here; 0: not confirmed yet */
    uint64_t version;
    uint8_t ask_count;
    uint8_t answered; /* bit i: ask[i] has answered */
    struct shoal_node_id ask[SCHED_ASKED_MAX];
    struct shoal_buf command;
};

enum guardian_answer { GUARDIAN_SILENT, GUARDIAN_STORED, GUARDIAN_OTHER, GUARDIAN_REFUSED, GUARDIAN_SETTLED };

struct sched_founding {
    bool used;
    uint64_t request; /* serial */
    struct shoal_sched_ticket ticket;
    struct shoal_buf record;
    enum guardian_answer answers[SHOAL_SCHED_SOURCES_MAX];
    char text[SCHED_TEXT_BYTES];
    uint64_t retry_ns;
};

/* A founding that waits for its bundle on this guardian. */
struct sched_fetching {
    bool used;
    struct shoal_node_id from;
    uint64_t nonce;
    struct shoal_hash hash;
    struct shoal_buf record;
    uint64_t deadline_ns;
};
#define SCHED_FETCHING_MAX 64

/* A founding that this node said no to: settled later, with it as a witness. */
struct sched_refusal {
    bool used;
    struct shoal_job_id id;
    uint64_t settle_ns;
    struct shoal_raft_config config; /* the ticket's guardians */
};
#define SCHED_REFUSALS_MAX 64

/* The word of a member of a group about its replica. */
struct sched_replica {
    struct shoal_raft_member member;
    bool answered;
    bool holds;
    uint64_t term, last_index, last_term;
};

struct sched_survey {
    bool used;
    uint64_t request; /* serial */
    uint64_t end_ns;
    unsigned count, self;
    struct sched_replica list[SHOAL_GROUP_NODES_MAX];
};
#define SCHED_SURVEYS_MAX 8u

enum gone_why {
    GONE_DELETED,  /* or refused */
    GONE_MOVED,    /* the group lives on elsewhere: this node may become a member again, but founds it no more */
    GONE_ARCHIVED, /* the group has ended: the archive has the job */
    GONE_WHYS,
};

struct sched_gone {
    struct shoal_job_id id;
    uint8_t why;                   /* enum gone_why */
    uint64_t spec_mark;            /* ARCHIVED: the first bytes of the specification's hash */
    uint64_t written;              /* gone_version that holds it: durable when gone_durable is there */
    uint64_t since;                /* archive_version */
    struct shoal_raft_floor floor; /* MOVED: what its replica answered for */
};

/* This host's slots: sched_slots.c. */
struct sched_slots {
    struct shoal_slots *core;
    struct shoal_slots_actions *actions;
    uint64_t due_ns; /* when its deadline was met last, and how often at that instant */
    uint32_t due_count;
    uint64_t floor_ns;     /* not due again before */
    uint64_t kept_version; /* of the table that was kept last */
    uint64_t kept_ns;
    struct shoal_buf bytes;
    uint64_t news_free; /* free slots, as told by news last */
};

/* Messages between leads and slots of this node: sched_local.c. */
struct sched_local {
    struct shoal_view list[SHOAL_SCHED_LOCAL_MAX]; /* point into `pool` */
    size_t count, at;
    struct shoal_buf pool;
};

/* A job as gossip, or its leader's news, told of it last. */
struct sched_heard {
    struct shoal_job_summary summary;
    struct shoal_sched_version version;
    bool news; /* its demand is from news: gossip of the same version may be older */
};

/* Jobs as gossip knows them: sched_summary.c. */
struct sched_summaries {
    struct sched_heard *list; /* in order of ids */
    size_t count, cap;
};

/* A change of free slots or of a demand is told directly to so many nodes; beyond it gossip does. */
#define SCHED_NEWS_NODES 8

/* Working memory of the allocation, grown where nodes and summaries are admitted: sched_view.c. */
struct sched_view {
    struct shoal_allocate *work;
    struct shoal_allocate_host *hosts;
    int32_t *slots, *given;
    struct shoal_allocate_job *jobs;
    struct shoal_allocate_grant *grants;
    struct shoal_lead_slot *list;
    uint32_t hosts_max, slots_max, jobs_max;
    uint32_t host_count, slot_count, job_count;
    uint64_t due_ns; /* evaluate then; SCHED_NEVER: nothing changed */
    uint64_t done_ns;
    /* Who leads the first jobs that wait for slots, this node left out: sched_news.c. */
    uint32_t waiting_count;
    struct shoal_node_id waiting[SCHED_NEWS_NODES];
};

/* Nodes whose support jobs want: sched_interest.c. */
#define SCHED_INTEREST_MAX 256
struct sched_interest {
    struct shoal_node_id nodes[SCHED_INTEREST_MAX];
    size_t count;
    uint64_t due_ns; /* worked out anew then; SCHED_NEVER: nothing changed */
};

struct shoal_sched {
    struct shoal_node_id self;
    struct shoal_store_id store;
    struct shoal_incarnation incarnation;
    struct shoal_sched_options options;
    struct shoal_rand chance;

    /* The step under way. */
    uint64_t now;
    uint64_t wall_ms;
    struct shoal_sched_actions *actions;
    struct shoal_raft_actions raft_actions;
    struct shoal_support_actions support_actions;
    struct shoal_entry *held[SHOAL_SCHED_ENTRIES_MAX]; /* entries in this step's PERSISTs */
    uint32_t held_count;
    bool more;

    bool restored; /* start-up is over */
    struct shoal_support *support;
    struct shoal_support_health health;
    uint8_t store_percent; /* in use */

    struct sched_group **groups; /* in order of ids */
    size_t group_count;
    size_t groups_max;
    struct sched_group **heap; /* by deadline */
    size_t heap_count;
    struct sched_group *dirty_first, *dirty_last;
    struct sched_group *index_first, *index_last;
    size_t index_gone;                 /* deleted ids that are to be emitted after a start */
    struct shoal_job_spec *index_spec; /* scratch */
    uint64_t lives;

    struct sched_node *nodes; /* in order of ids */
    size_t node_count;
    size_t node_cap;

    struct sched_request *requests;
    uint64_t request_serial;
    uint32_t request_count;
    uint64_t requests_ns; /* the earliest retry or deadline */

    struct sched_founding *foundings;
    uint64_t foundings_ns;
    struct sched_fetching *fetching;
    struct sched_survey surveys[SCHED_SURVEYS_MAX];
    struct sched_refusal refusals[SCHED_REFUSALS_MAX];
    uint64_t settle_ns; /* the earliest */

    /* Ids removed, refused, or moved to other guardians, oldest first; kept in the store as the snapshot of a group of
     * its own. */
    struct sched_gone *gone;
    size_t gone_count;
    struct shoal_job_id gone_floor; /* newest forgotten */
    uint64_t gone_version;
    bool gone_dirty;
    uint64_t gone_durable; /* version */
    struct shoal_buf gone_bytes;

    struct sched_park *park;

    /* The archive. */
    struct sched_archived **archive;      /* in order of ids */
    struct sched_archived **archive_heap; /* by look_ns */
    size_t archive_cap;
    struct sched_archived *warm_first, *warm_last;
    size_t warm_count;
    uint32_t archive_loading;
    uint32_t ended_led; /* ended jobs that are led here */
    size_t archive_count;
    size_t archive_bytes; /* in memory */
    uint64_t archive_version;
    uint64_t archive_look_ns; /* the earliest */

    /* The mesh's copy. */
    struct shoal_mesh *mesh; /* decoded; NULL: none */
    struct shoal_buf copy;   /* as kept and given away */
    uint64_t copy_version;
    struct mesh_hint mesh_hint; /* the newest heard of, or our own */
    struct shoal_node_id mesh_leader;
    bool copy_dirty; /* the group here has applied something new */
    struct {
        uint64_t version; /* 0: nothing under way */
        uint64_t heard;   /* newest version heard of */
        struct shoal_node_id from;
        struct shoal_buf bytes;
        uint64_t total;
        uint64_t retry_ns;
    } getting;

    /* Jobs. */
    struct shoal_lead_actions *lead_actions;
    struct shoal_job_entry *job_scratch;
    struct shoal_tasks_page tasks_page; /* scratch */
    struct shoal_buf scratch; /* of snapshots and answers, taken at create */
    struct sched_slots slots;
    struct sched_local local;
    struct sched_summaries summaries;
    struct sched_view view;
    struct sched_interest interest;

    struct shoal_sched_stats stats;
};

/* sched.c */
struct shoal_sched_action *sched_act(struct shoal_sched *s, enum shoal_sched_action_kind kind);
bool sched_has_room(const struct shoal_sched *s);
/* Bytes of the action pool; NULL when it is full. `keep`: what must stay free after it. */
uint8_t *sched_pool(struct shoal_sched *s, size_t len, size_t keep);
struct shoal_view sched_pool_copy(struct shoal_sched *s, struct shoal_view view);
/* A frame; dropped and counted when there is no room. */
void sched_send(struct shoal_sched *s, struct shoal_node_id to, const struct frame *frame);
void sched_send_view(struct shoal_sched *s, struct shoal_node_id to, struct shoal_view bytes, bool bulk);
struct shoal_hash sched_hash(const struct shoal_sched *s, struct shoal_view bytes);
bool sched_is_self(const struct shoal_sched *s, struct shoal_node_id node);
/* The first digits of a node's id behind the text, for a message to people; nothing when it is full. */
void sched_add_name(char *text, size_t cap, struct shoal_node_id node);

/* sched_node.c */
struct sched_node *sched_node_find(const struct shoal_sched *s, struct shoal_node_id id);
bool sched_node_available(const struct shoal_sched *s, const struct sched_node *node); /* may guard */
void sched_on_node(struct shoal_sched *s, const struct shoal_sched_node *node);
void sched_on_link(struct shoal_sched *s, struct shoal_node_id node, enum shoal_sched_link_state state);
void sched_support_timer(struct shoal_sched *s);
enum shoal_err sched_on_datagram(struct shoal_sched *s, struct shoal_node_id from, struct shoal_view bytes);
void sched_group_told(struct shoal_sched *s, struct sched_group *g); /* told hosts = members */
void sched_group_untell(struct shoal_sched *s, struct sched_group *g);
void sched_group_claims(struct shoal_sched *s, struct sched_group *g);
/* 0: heard, or never of interest; else since when nothing was heard of it. */
uint64_t sched_silent_since(const struct shoal_sched *s, struct shoal_node_id node);
/* Rendezvous order: the higher the nearer. */
uint64_t sched_score(const struct shoal_sched *s, struct shoal_job_id job, struct shoal_node_id node);

/* sched_group.c */
struct sched_group *sched_group_find(const struct shoal_sched *s, struct shoal_job_id id);
enum shoal_err sched_group_admit(struct shoal_sched *s, struct shoal_job_id id, struct sched_group **g);
void sched_group_free(struct sched_group *g);
void sched_group_remove(struct shoal_sched *s, struct sched_group *g);
void sched_group_dirty(struct shoal_sched *s, struct sched_group *g);
void sched_group_rearm(struct shoal_sched *s, struct sched_group *g);
void sched_group_clean(struct shoal_sched *s, struct sched_group *g); /* take it from the dirty queue's head */
void sched_raft_options(struct shoal_sched *s, struct shoal_raft_options *options);
/* Tell support's news, then step; carries the actions out. */
SHOAL_MUST_CHECK enum shoal_err sched_group_step(struct shoal_sched *s, struct sched_group *g,
                                                 const struct shoal_raft_event *event);
void sched_group_sync(struct shoal_sched *s, struct sched_group *g);
void sched_carry_out(struct shoal_sched *s, struct sched_group *g);
void sched_group_due(struct shoal_sched *s, struct sched_group *g);
void sched_group_apply(struct shoal_sched *s, struct sched_group *g, uint64_t upto); /* entries of the log here */
uint64_t sched_group_line(const struct sched_group *g);                              /* of the replica here */
/* (line, configuration): the higher one is the newer. */
uint64_t sched_group_config_version(const struct sched_group *g);
enum shoal_err sched_on_raft(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_on_stored(struct shoal_sched *s, struct shoal_job_id group, struct shoal_sched_mark mark);
void sched_group_doom(struct shoal_sched *s, struct sched_group *g, uint64_t after_ns, bool for_good);
void sched_say_gone(struct shoal_sched *s, struct shoal_node_id to, struct shoal_job_id id);
void sched_on_gone(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
/* To one that asks or campaigns and is no member (any more) of a group that is here. */
void sched_say_superseded(struct shoal_sched *s, const struct sched_group *g, struct shoal_node_id to);
void sched_say_removed(struct shoal_sched *s, struct sched_group *g, struct shoal_node_id to);
/* Propose a USER entry; `ctx` comes back when refused. NULL: no memory. The reference is the caller's. */
struct shoal_entry *sched_propose(struct shoal_sched *s, struct sched_group *g, struct shoal_view bytes, uint64_t ctx);
/* A copy of the job's founding record as it stands in the log; empty when it is no longer held. */
struct shoal_view sched_group_record(const struct sched_group *g);
size_t sched_group_guardians(const struct sched_group *g, struct shoal_node_id *nodes, size_t cap); /* voters */

/* The kinds of requests that own a ctx. */
#define SCHED_CTX_LEAD (1ull << 62)
#define SCHED_CTX_READ (1ull << 61)
#define SCHED_CTX_KEEP (1ull << 60)

/* sched_park.c */
enum shoal_err sched_park_create(struct shoal_sched *s);
void sched_park_destroy(struct shoal_sched *s);
/* True: this pending job, led here, gets no lead yet. */
bool sched_park_holds(struct shoal_sched *s, struct sched_group *g);
void sched_park_count(struct shoal_sched *s, struct sched_group *g);  /* after its lead or its job has changed */
void sched_park_forget(struct shoal_sched *s, struct sched_group *g); /* it is about to be removed */
/* True: it has left memory. */
bool sched_park_tend(struct shoal_sched *s, struct sched_group *g);
void sched_on_park(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
bool sched_park_stored(struct shoal_sched *s, struct shoal_job_id id, struct shoal_sched_mark mark);
bool sched_is_parked(const struct shoal_sched *s, struct shoal_job_id id);
/* The node that brings it back when its turn comes. False: it is not parked here. */
bool sched_park_owner(const struct shoal_sched *s, struct shoal_job_id id, struct shoal_node_id *owner);
/* It is wanted now. False: it is not parked here. */
bool sched_park_wake(struct shoal_sched *s, struct shoal_job_id id);
void sched_park_want(struct shoal_sched *s, struct shoal_job_id id); /* by this node, of one that is parked here */
enum parked_how sched_park_restore(struct shoal_sched *s, const struct shoal_sched_event *event);
/* When a group that comes back campaigns, if nobody leads it; 0: it was not parked. */
uint64_t sched_park_campaign(struct shoal_sched *s, struct shoal_job_id id);
void sched_park_came(struct shoal_sched *s, struct sched_group *g);
void sched_park_fails(struct shoal_sched *s, struct shoal_job_id id);
void sched_park_due(struct shoal_sched *s);
uint64_t sched_park_deadline(const struct shoal_sched *s);
void sched_park_stats(const struct shoal_sched *s, struct shoal_sched_stats *stats);

/* sched_store.c */
/* Snapshot and mark of a group at rest, in one write. False: no memory or no room, nothing is written. */
bool sched_store_park(struct shoal_sched *s, struct sched_group *g, const struct park_mark *mark, uint64_t seq);
void sched_persist(struct shoal_sched *s, struct sched_group *g, const struct shoal_raft_action *action);
void sched_snapshot_take(struct shoal_sched *s, struct sched_group *g);
/* The configuration of a group without entries. False: no memory. */
bool sched_snapshot_witness(struct shoal_sched *s, struct sched_group *g);
void sched_snapshot_found(struct shoal_sched *s, struct sched_group *g); /* the whole of a new line */
void sched_snapshot_give(struct shoal_sched *s, struct sched_group *g);
void sched_snapshot_part(struct shoal_sched *s, struct sched_group *g, const struct shoal_raft_action *action);
bool sched_snapshot_stored(struct shoal_sched *s, struct sched_group *g, struct shoal_sched_mark mark);
enum shoal_err sched_on_restore(struct shoal_sched *s, const struct shoal_sched_event *event);
void sched_on_restored(struct shoal_sched *s);
bool sched_is_gone(const struct shoal_sched *s, struct shoal_job_id id); /* for good */
bool sched_may_found(const struct shoal_sched *s, struct shoal_job_id id);
void sched_gone_add(struct shoal_sched *s, struct shoal_job_id id, enum gone_why why, struct shoal_hash spec_hash);
struct sched_gone *sched_gone_find(const struct shoal_sched *s, struct shoal_job_id id);
void sched_gone_archived(struct shoal_sched *s, struct shoal_job_id id, uint64_t spec_mark);
uint64_t sched_spec_mark(struct shoal_hash spec_hash);
bool sched_gone_stored(struct shoal_sched *s, struct shoal_job_id group,
                       struct shoal_sched_mark mark); /* false: not theirs */
bool sched_gone_is_durable(const struct shoal_sched *s, struct shoal_job_id id);
void sched_gone_save(struct shoal_sched *s);
/* Of a replica that was, and may again become, a member: T5. */
void sched_gone_keep_floor(struct shoal_sched *s, const struct sched_group *g);
void sched_gone_set_floor(struct shoal_sched *s, struct sched_group *g);

/* sched_found.c */
void sched_submit(struct shoal_sched *s, struct sched_request *r, const struct shoal_sched_request *request);
void sched_ticket(struct shoal_sched *s, struct sched_request *r, const struct shoal_sched_request *request);
enum shoal_err sched_on_found(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_on_found_reply(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_founding_end(struct shoal_sched *s, uint64_t request_serial); /* the request has ended */
struct sched_founding *sched_founding_of(const struct shoal_sched *s, uint64_t request_serial);
void sched_foundings_due(struct shoal_sched *s);
void sched_found_durable(struct shoal_sched *s, struct sched_group *g);
void sched_on_bundle(struct shoal_sched *s, struct shoal_hash hash, bool ok, const char *text);
void sched_bundle_want(struct shoal_sched *s, struct sched_group *g);
void sched_found_complete(struct shoal_sched *s, struct sched_group *g); /* offer the record to the other guardians */
void sched_mesh_init(struct shoal_sched *s, struct sched_request *r);

/* sched_digest.c */
void sched_on_digest(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_take_digest(struct shoal_sched *s, struct sched_group *g);
uint64_t sched_group_state_digest(struct shoal_sched *s, const struct sched_group *g);
void sched_group_stop(struct shoal_sched *s, struct sched_group *g, const char *why); /* this replica is no good */
void sched_rebuild_ask(struct shoal_sched *s, struct sched_group *g);
void sched_on_rebuild(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
bool sched_is_broken(const struct sched_group *g, struct shoal_node_id node); /* says so to this leader */

/* sched_settle.c */
void sched_settle_later(struct shoal_sched *s, const struct shoal_sched_ticket *t); /* this node has said no */
void sched_settle_forget(struct shoal_sched *s, struct shoal_job_id id);            /* yes after all */
bool sched_settle_waits(struct shoal_sched *s, struct shoal_job_id id);
void sched_settle_due(struct shoal_sched *s);
void sched_settle_lead(struct shoal_sched *s, struct sched_group *g);

/* sched_request.c */
void sched_on_request(struct shoal_sched *s, const struct shoal_sched_request *request);
void sched_on_foreign(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_on_response(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_on_who(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
unsigned sched_could_know(const struct shoal_sched *s, struct shoal_job_id job,
                          struct shoal_node_id nodes[SCHED_ASKED_MAX]);
void sched_on_who_reply(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
/* The only way from one state to another: a move that the table does not know is a bug (R1). */
void sched_request_move(struct sched_request *r, enum request_state to);
bool sched_request_open(const struct shoal_sched *s, struct shoal_job_id job);         /* one names it */
struct sched_request *sched_request_get(const struct shoal_sched *s, uint64_t serial); /* NULL: ended */
__attribute__((format(printf, 5, 6))) void sched_request_end(struct shoal_sched *s, struct sched_request *r,
                                                             enum shoal_err err, struct shoal_view bytes,
                                                             const char *format, ...);
void sched_requests_due(struct shoal_sched *s);
/* Another leads the job now, or nobody (zero): who waits looks again, and so does a read that asked another one. */
void sched_requests_led(struct shoal_sched *s, struct shoal_job_id job, struct shoal_node_id leader);
void sched_requests_link_down(struct shoal_sched *s, struct shoal_node_id node);
void sched_requests_applied(struct shoal_sched *s, struct sched_group *g, uint64_t index, uint64_t term,
                            enum shoal_err err, const char *text);
void sched_requests_rejected(struct shoal_sched *s, struct sched_group *g, uint64_t ctx, enum shoal_err err);
void sched_requests_read(struct shoal_sched *s, struct sched_group *g, uint64_t serial, uint64_t index);
void sched_requests_readable(struct shoal_sched *s, struct sched_group *g); /* applied has moved */
void sched_requests_read_round(struct shoal_sched *s, struct sched_group *g);
void sched_requests_copy(struct shoal_sched *s); /* the copy is newer */
/* An archived job's deletion: what `from` said of it; it is looked at again. */
void sched_requests_deleted(struct shoal_sched *s, struct shoal_node_id from, struct shoal_job_id job, bool deleted);
void sched_request_retry(struct shoal_sched *s, struct sched_request *r, uint64_t after_ns);
void sched_request_forward(struct shoal_sched *s, struct sched_request *r, struct shoal_node_id to);
/* To a better node: forwarded, or, of a foreign request, its origin is told to ask there. */
void sched_request_pass(struct shoal_sched *s, struct sched_request *r, struct shoal_node_id to);
void sched_requests_restart(struct shoal_sched *s, struct sched_group *g); /* its log begins anew: tried once more */

/* sched_recover.c */
void sched_recover(struct shoal_sched *s, struct sched_request *r, struct sched_group *g);
void sched_recover_due(struct shoal_sched *s, struct sched_request *r);
void sched_on_replica_ask(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_on_replica(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);

/* sched_keep.c */
void sched_keep(struct shoal_sched *s, struct sched_group *g);
void sched_keep_all(struct shoal_sched *s); /* nodes came or went */

/* sched_archive.c */
void sched_archive_lead(struct shoal_sched *s, struct sched_group *g); /* an ended job that is led here */
void sched_archive_count(struct shoal_sched *s, struct sched_group *g, bool ended);
bool sched_archive_holds(const struct shoal_sched *s, struct shoal_job_id id); /* its final record, durable */
void sched_archive_due(struct shoal_sched *s);
void sched_archive_nodes(struct shoal_sched *s); /* came or went */
enum shoal_err sched_on_archive(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_archive_made(struct shoal_sched *s, const struct shoal_sched_event *event);
void sched_archive_fetched(struct shoal_sched *s, const struct shoal_sched_event *event);
bool sched_archive_is_kept(struct shoal_job_id stored, struct shoal_job_id *id); /* a record's place in the store */
void sched_archive_stored(struct shoal_sched *s, struct shoal_job_id id, struct shoal_sched_mark mark);
void sched_archive_restore(struct shoal_sched *s, const struct shoal_sched_event *event, struct shoal_job_id id);
/* The record that answers for the job here; NULL: none, or its group is to be asked. */
struct sched_archived *sched_archive_find(const struct shoal_sched *s, struct shoal_job_id id);
void sched_archive_serve(struct shoal_sched *s, struct sched_request *r, struct sched_archived *a);
void sched_archive_delete_due(struct shoal_sched *s, struct sched_request *r);
/* Deleted while it was a group's still, or as gossip says: whoever holds a record is told. */
void sched_archive_deleted(struct shoal_sched *s, struct shoal_job_id id);
/* To one that asks after, or speaks for, a group that has ended. False: it is not known to have ended. */
bool sched_archive_say_ended(struct shoal_sched *s, struct shoal_node_id to, struct shoal_job_id id);
void sched_archive_bury(struct shoal_sched *s, struct shoal_job_id id); /* no group and no summary of it is left here */
bool sched_archive_same(const struct shoal_sched *s, struct shoal_job_id id, struct shoal_hash spec_hash, bool *same);
/* At most SHOAL_ARCHIVE_COPIES nodes, in order. */
size_t sched_archive_hosts(const struct shoal_sched *s, struct shoal_job_id id, struct shoal_node_id *nodes);
void sched_archive_destroy(struct shoal_sched *s);

/* sched_index.c */
void sched_index_dirty(struct shoal_sched *s, struct sched_group *g);  /* its row may have changed */
void sched_index_forget(struct shoal_sched *s, struct sched_group *g); /* it is about to be freed */
void sched_index_id(struct shoal_sched *s, struct shoal_job_id id);    /* group, record or deletion came or went */
/* Keep in a group's mark what lists show of it, when it is parked; and tell the lists of a parked one, at start. */
struct shoal_view sched_index_row(struct shoal_sched *s, const struct sched_group *g,
                                  uint8_t bytes[SHOAL_SCHED_ROW_BYTES_MAX], struct shoal_sched_version *version);
/* Of a record of the archive; empty: it does not decode. */
struct shoal_view sched_index_archived(struct shoal_view facts, bool final, uint8_t bytes[SHOAL_SCHED_ROW_BYTES_MAX],
                                       struct shoal_sched_version *version);
void sched_index_parked(struct shoal_sched *s, struct shoal_job_id id, struct shoal_sched_version version,
                        struct shoal_view row);
void sched_index_restored(struct shoal_sched *s);
void sched_index_flush(struct shoal_sched *s); /* at the end of each step */

/* sched_copy.c */
void sched_copy_make(struct shoal_sched *s);
enum shoal_err sched_copy_take(struct shoal_sched *s, struct shoal_view bytes, bool trusted);
void sched_on_mesh_heard(struct shoal_sched *s, struct shoal_node_id author, struct shoal_view payload);
void sched_on_mesh_get(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_on_mesh_part(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_copy_due(struct shoal_sched *s);

/* sched_lead.c */
void sched_lead_tend(struct shoal_sched *s, struct sched_group *g); /* made, told, stepped as needed */
void sched_lead_end(struct sched_group *g);
void sched_lead_event(struct shoal_sched *s, struct sched_group *g, struct shoal_lead_event *event);
/* True: the lead was last given nothing, for what this mark stands for; it is from now on. 0: it is given something. */
bool sched_lead_waits_as(struct sched_group *g, uint64_t mark);
/* TARGET, unless it says what the lead was told last. */
void sched_lead_target(struct shoal_sched *s, struct sched_group *g, struct shoal_lead_event *event);
void sched_lead_records_mark(struct shoal_sched *s, const struct shoal_host_event *from);
enum shoal_lead_health sched_health_of(const struct shoal_sched *s, const struct sched_node *node);
void sched_job_facts(const struct sched_group *g, struct shoal_job_facts *facts);

/* sched_slots.c */
SHOAL_MUST_CHECK enum shoal_err sched_slots_create(struct shoal_sched *s);
void sched_slots_destroy(struct shoal_sched *s);
SHOAL_MUST_CHECK enum shoal_err sched_slots_restore(struct shoal_sched *s, struct shoal_view bytes);
SHOAL_MUST_CHECK enum shoal_err sched_slots_step(struct shoal_sched *s, const struct shoal_slots_event *event);
struct shoal_host_order *sched_order(struct shoal_sched *s, enum shoal_host_order_kind kind);
void sched_on_host(struct shoal_sched *s, const struct shoal_host_event *event);
void sched_slots_link(struct shoal_sched *s, struct shoal_node_id node);
void sched_slots_due(struct shoal_sched *s);
uint64_t sched_slots_deadline(const struct shoal_sched *s);

/* sched_local.c */
SHOAL_MUST_CHECK enum shoal_err sched_local_create(struct shoal_sched *s);
void sched_host_send(struct shoal_sched *s, struct shoal_node_id to, struct shoal_view bytes);
SHOAL_MUST_CHECK enum shoal_err sched_on_host_frame(struct shoal_sched *s, struct shoal_node_id from,
                                                    struct shoal_view bytes);
void sched_local_run(struct shoal_sched *s);

/* sched_summary.c */
void sched_on_summary(struct shoal_sched *s, const struct shoal_sched_event *event);
/* `news`: from the job's leader itself, ahead of gossip. */
void sched_summary_hear(struct shoal_sched *s, const struct shoal_job_summary *summary,
                        struct shoal_sched_version version, bool news);
void sched_summary_publish(struct shoal_sched *s, struct sched_group *g, struct shoal_view payload, bool tombstone,
                           bool archived);
void sched_summary_gone(struct shoal_sched *s, struct sched_group *g, bool archived); /* its tombstone into gossip */
const struct shoal_job_summary *sched_summary_find(const struct shoal_sched *s, struct shoal_job_id job);

/* sched_news.c */
void sched_news_slots(struct shoal_sched *s, struct shoal_view payload);
void sched_news_summary(struct shoal_sched *s, const struct sched_group *g, struct shoal_view payload);
SHOAL_MUST_CHECK enum shoal_err sched_on_news(struct shoal_sched *s, struct shoal_node_id from,
                                              const struct frame *frame);

/* sched_view.c */
void sched_view_changed(struct shoal_sched *s);
void sched_view_due(struct shoal_sched *s);
void sched_view_free(struct sched_view *view);

/* sched_interest.c */
void sched_interest_later(struct shoal_sched *s); /* slots or leads have changed */
void sched_interest_due(struct shoal_sched *s);

#endif
