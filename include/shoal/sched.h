/* The control plane of one node: a pure core that holds this node's share of every group (PROTOCOLS 1 to 8).
 *
 *     the shell or the simulator            shoal_sched
 *     ----------------------------          --------------------------------------------------------------
 *     links, gossip, store, workers  -->    groups: one raft and one state machine (job or mesh) each
 *     requests of the HTTP API       -->    support: host pairs instead of heartbeats
 *                                    <--    lead: one controller per group led here; slots: this host's slots
 *
 *     event + time --> shoal_sched_step() --> actions, to be carried out in array order; replies come as later events
 *
 * Rules for the shell:
 *   - `now_ns` is the host's CLOCK_BOOTTIME; it never goes back. `wall_ms` (in the options of a step) is only for job
 *     ids, claims' order and display.
 *   - At start: create, MESH_COPY and SLOTS_COPY if kept, RESTORE for each stored group, RESTORED, RUNNER for each
 *     runner found, NODE for each member that gossip knows; then events as they come. Step TIMER when the deadline has
 *     passed.
 *   - Everything in an event is borrowed for the step; everything in an action is borrowed until the next step.
 *   - What a step says in PERSIST is done before what depends on it: nothing is acknowledged until STORED.
 *   - The core allocates only where a group, an entry or a copy is admitted (founding, restore, frames, requests); when
 *     memory or a table is full it refuses with FULL and counts. */
#ifndef SHOAL_SCHED_H
#define SHOAL_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/host.h"
#include "shoal/ids.h"
#include "shoal/limits.h"
#include "shoal/memory.h"
#include "shoal/rand.h"

struct shoal_sched; /* state: its fields live in sched/node/sched_state.h */
struct shoal_mesh;

#define SHOAL_SCHED_DOMAIN_BYTES 64
#define SHOAL_SCHED_SIGNATURE_BYTES 64
#define SHOAL_SCHED_KEY_BYTES 32
/* Sources of a blob: the guardians. */
#define SHOAL_SCHED_SOURCES_MAX SHOAL_HOST_SOURCES_MAX
#define SHOAL_SCHED_TICKET_BYTES_MAX 640
#define SHOAL_SCHED_BY_BYTES 64 /* a user's name, as SHOAL_JOB_TEXT_BYTES */
/* A job's summary in gossip. */
#define SHOAL_SCHED_SUMMARY_BYTES_MAX SHOAL_RECORD_PAYLOAD_MAX

/* ---- Events --------------------------------------------------------------------------------------------------- */

enum shoal_sched_event_kind {
    SHOAL_SCHED_TIMER,      /* the deadline has passed (or not: never harmful) */
    SHOAL_SCHED_HEALTH,     /* about once per 100 ms */
    SHOAL_SCHED_NODE,       /* a member of the mesh as gossip knows it, this node too; whenever it changes */
    SHOAL_SCHED_SUMMARY,    /* a job summary heard by gossip (payload as some node published it) */
    SHOAL_SCHED_MESH_HEARD, /* a mesh version heard by gossip (payload as PUBLISH_MESH gave it) */
    SHOAL_SCHED_MESH_COPY,  /* at start: the copy that KEEP_MESH gave last */
    SHOAL_SCHED_SLOTS_COPY, /* at start, before the first RUNNER: what KEEP_SLOTS gave last */
    SHOAL_SCHED_LINK,
    SHOAL_SCHED_FRAME,    /* from an authenticated link */
    SHOAL_SCHED_DATAGRAM, /* opened: authenticated */
    SHOAL_SCHED_RESTORE,
    SHOAL_SCHED_RESTORED, /* every stored group has been restored */
    SHOAL_SCHED_STORED,
    SHOAL_SCHED_REQUEST,
    SHOAL_SCHED_HOST,            /* what the shell says of workers, blobs and the ledger: host.h */
    SHOAL_SCHED_ARCHIVE_MADE,    /* the answer to ARCHIVE_MAKE */
    SHOAL_SCHED_ARCHIVE_FETCHED, /* the answer to ARCHIVE_FETCH */
};

/* As enum shoal_member_state (shoal/gossip.h). */
enum shoal_sched_node_state {
    SHOAL_SCHED_NODE_ALIVE,
    SHOAL_SCHED_NODE_SUSPECT,
    SHOAL_SCHED_NODE_DEAD,
    SHOAL_SCHED_NODE_LEFT,
};

enum shoal_sched_device { SHOAL_SCHED_CPU, SHOAL_SCHED_GPU, SHOAL_SCHED_DEVICES };

struct shoal_sched_node {
    struct shoal_node_id id;
    struct shoal_store_id store; /* zero: not known yet; such a node guards nothing */
    enum shoal_sched_node_state state;
    struct shoal_incarnation incarnation;
    uint32_t slots;      /* count, at most SHOAL_SLOTS_MAX; 0: takes no workers */
    uint64_t slots_free; /* bit i: slot i is free, by the node's own word */
    uint8_t device;      /* of its slots: enum shoal_sched_device */
    uint32_t cpus;
    uint64_t slot_stamp;                   /* the host's slot clock in its record */
    uint64_t record_seq;                   /* version of its slots record (shoal_slots_record): a refusal names it */
    char domain[SHOAL_SCHED_DOMAIN_BYTES]; /* failure domain; "": a domain of its own */
    char numeric_class[SHOAL_CLASS_TEXT_BYTES];
};

enum shoal_sched_link_state { SHOAL_SCHED_LINK_UP, SHOAL_SCHED_LINK_DOWN, SHOAL_SCHED_LINK_REFUSED };

/* A log entry in the store; `kind` is opaque to the shell. */
struct shoal_sched_entry {
    uint64_t index;
    uint64_t term;
    uint8_t kind;
    struct shoal_view bytes;
};

/* A group's hard state in the store; `config` are opaque bytes, at most SHOAL_SCHED_CONFIG_BYTES_MAX. */
#define SHOAL_SCHED_CONFIG_BYTES_MAX 1600
struct shoal_sched_hard {
    uint64_t term;
    struct shoal_node_id vote_node; /* zero: no vote */
    struct shoal_store_id vote_store;
    struct shoal_view config;
};

struct shoal_sched_snapshot {
    uint64_t index;
    uint64_t term;
    struct shoal_view bytes; /* opaque; at most SHOAL_SNAPSHOT_BYTES_MAX */
};

/* Names one PERSIST. */
struct shoal_sched_mark {
    uint64_t seq; /* 0: no STORED is wanted */
    uint64_t index;
    uint64_t term;
};

enum shoal_sched_request_kind {
    SHOAL_SCHED_SUBMIT, /* found a job. Reply: `job`; after TIMEOUT or UNREACHABLE `ticket` is set, retry with it */
    SHOAL_SCHED_TICKET, /* reply: `job` and `ticket`, nothing is stored */
    SHOAL_SCHED_GET,    /* reply: encoded shoal_job_facts (job.h) in `bytes` */
    SHOAL_SCHED_STOP,
    SHOAL_SCHED_DELETE,      /* an active job is stopped first */
    SHOAL_SCHED_WHY,         /* reply: `bytes` = text, lines for a person */
    SHOAL_SCHED_RECOVER,     /* administrator: reply `bytes` = encoded shoal_sched_recovery: what the best replica left
                                holds; with `confirmed`, it has founded the next recovery generation */
    SHOAL_SCHED_MESH_INIT,   /* `shoal init`: `command` = INIT (mesh.h); only while this node knows no mesh group */
    SHOAL_SCHED_MESH_CHANGE, /* `command` = an encoded shoal_mesh_command; reply when committed and applied here */
    SHOAL_SCHED_MESH_READ,   /* linearizable: reply `bytes` = encoded mesh copy. Plain reads: shoal_sched_mesh() */
    SHOAL_SCHED_TASKS,       /* of an array: `command` = shoal_tasks_ask, reply `bytes` = shoal_tasks_page (array.h) */
};
#define SHOAL_SCHED_REQUEST_KINDS 11

struct shoal_sched_request {
    uint64_t id; /* chosen by the shell, unique while it is open; exactly one REPLY names it */
    enum shoal_sched_request_kind kind;
    struct shoal_job_id job; /* GET, STOP, DELETE, WHY, RECOVER, TASKS */
    bool linearizable;    /* GET: by read-index at the leader; else the newest replica or summary known here will do */
    bool local_only;      /* GET: never leave this node */
    bool confirmed;       /* RECOVER: do it; else only say what may be missing */
    uint32_t deadline_ms; /* 0: 2.5 s (submits: 30 s) */
    /* SUBMIT and TICKET: the specification that the hash names. SUBMIT: `spec` = encoded shoal_job_spec (job.h), at
     * most SHOAL_SCHED_SPEC_BYTES_MAX, in which bundle hash and size stand; `bundle`: the bundle itself when it is at
     * most SHOAL_BUNDLE_INLINE_MAX, else empty, and this node's blob store holds it already. */
    struct shoal_hash spec_hash;
    struct shoal_view spec;
    struct shoal_view bundle;
    struct shoal_hash bundle_hash; /* zero: the job has no files */
    uint32_t hosts_wanted;         /* 64 or more: 5 guardians */
    struct shoal_view ticket;      /* SUBMIT: empty, or as a TICKET request gave it */
    struct shoal_view command;     /* MESH_INIT, MESH_CHANGE, TASKS */
    char by[SHOAL_SCHED_BY_BYTES]; /* the user who asks: stands in the job's record; "" if nobody */
};

/* Spec, ticket and an inline bundle make one entry of a founding. */
#define SHOAL_SCHED_SPEC_BYTES_MAX (48 * SHOAL_KIB)
_Static_assert(SHOAL_SCHED_SPEC_BYTES_MAX + SHOAL_BUNDLE_INLINE_MAX + 4 * SHOAL_KIB <= SHOAL_ENTRY_BYTES_MAX,
               "a founding record with specification and bundle fits one entry");

/* (configuration index, term, applied index) of a summary: the higher one wins, whoever signed it. */
struct shoal_sched_version {
    uint64_t config;
    uint64_t term;
    uint64_t applied;
};

struct shoal_sched_event {
    enum shoal_sched_event_kind kind;
    uint64_t wall_ms; /* wall clock, for job ids, order of claims and display only */
    union {
        struct {
            uint64_t loop_lag_ns;
            uint64_t flush_age_ns; /* of the oldest unfinished flush, 0: none */
            uint8_t store_percent; /* of the durable store, in use */
        } health;
        struct shoal_sched_node node;
        struct {
            struct shoal_job_id job;
            struct shoal_view payload; /* empty: tombstone */
            struct shoal_sched_version version;
            bool archived; /* a tombstone: the job is in the archive, not deleted */
        } summary;
        struct {
            struct shoal_node_id author;
            struct shoal_view payload;
        } mesh_heard;
        struct {
            struct shoal_view bytes;
        } mesh_copy; /* SLOTS_COPY too */
        struct {
            struct shoal_node_id node;
            enum shoal_sched_link_state state;
        } link;
        struct {
            struct shoal_node_id from;
            struct shoal_view bytes;
        } frame; /* DATAGRAM too */
        struct {
            struct shoal_job_id group;
            bool has_hard;
            struct shoal_sched_hard hard;
            bool has_snapshot;
            struct shoal_sched_snapshot snapshot;
            const struct shoal_sched_entry *entries;
            size_t entry_count;
        } restore;
        struct {
            struct shoal_job_id group;
            struct shoal_sched_mark mark;
        } stored;
        struct shoal_sched_request request;
        struct shoal_host_event host;
        struct {
            struct shoal_job_id job;
            bool ok;
            struct shoal_hash list; /* FETCHED: as it was asked for. Zero: the job has no blobs */
            char text[200];         /* why not */
            /* MADE: what the shell's ledger knows better. */
            bool has_progress, has_metrics;
            uint64_t steps;
            uint32_t data_epoch;
            int64_t loss_micro, metric_micro;
        } archive;
    } u;
};

/* ---- Actions -------------------------------------------------------------------------------------------------- */

enum shoal_sched_action_kind {
    SHOAL_SCHED_SEND, /* a frame; may be lost, the core repeats what matters */
    SHOAL_SCHED_SEND_DATAGRAM,
    SHOAL_SCHED_PERSIST,      /* asynchronous; per group in order; answer with STORED(mark) unless mark.seq is 0 */
    SHOAL_SCHED_REMOVE_GROUP, /* forget the group in the store */
    SHOAL_SCHED_LOAD,         /* a parked group is wanted: RESTORE it from the store, as it stands there now */
    SHOAL_SCHED_REPLY,
    SHOAL_SCHED_PUBLISH_SUMMARY,
    SHOAL_SCHED_PUBLISH_SLOTS, /* this host's free slots changed: into its own record */
    SHOAL_SCHED_PUBLISH_MESH,  /* this node holds this version of the mesh: into its own record */
    SHOAL_SCHED_KEEP_MESH,     /* replace the kept copy (mode 0600: it holds the token key) */
    SHOAL_SCHED_KEEP_SLOTS,    /* replace the kept table of this host's slots (rebuildable: no flush is needed) */
    SHOAL_SCHED_BLOB_PUT,      /* an inline bundle: put it into the blob store, held by the job */
    SHOAL_SCHED_JOB_DELETED,   /* remove its files and blobs for good */
    SHOAL_SCHED_JOB_ARCHIVED,  /* forget it; its blobs too, unless `keep`: this node holds its record */
    SHOAL_SCHED_ARCHIVE_MAKE,  /* list what belongs to an ended job, as blobs held by it -> ARCHIVE_MADE */
    SHOAL_SCHED_ARCHIVE_FETCH, /* fetch and hold all blobs of such a list, flushed -> ARCHIVE_FETCHED */
    SHOAL_SCHED_ROLE,          /* for logs: this node leads the group now, or not any more */
    SHOAL_SCHED_FATAL,         /* log the text and stop the agent */
    SHOAL_SCHED_SAY,           /* log the text: something an operator should know (in `fatal`) */
    SHOAL_SCHED_INDEX,         /* what lists show of a job has changed: into the index, no flush is needed */
    SHOAL_SCHED_ORDER,         /* for this host's workers, blobs and files: host.h */
};

/* What the index is to hold of a job. */
enum shoal_sched_index_what {
    SHOAL_SCHED_INDEX_ROW,
    SHOAL_SCHED_INDEX_DELETED, /* it was deleted: whoever still lists it is wrong */
    SHOAL_SCHED_INDEX_NOTHING, /* this node has no part in it (any more); others may */
};

/* A row of a list: encoded shoal_job_facts (job.h) without `args` and `data_json`. */
#define SHOAL_SCHED_ROW_BYTES_MAX 2048

struct shoal_sched_action {
    enum shoal_sched_action_kind kind;
    union {
        struct {
            struct shoal_node_id to;
            struct shoal_view bytes;
            bool bulk; /* may wait behind others: foundings, snapshots, copies */
        } send;        /* SEND_DATAGRAM too */
        struct {
            struct shoal_job_id group;
            struct shoal_sched_mark mark;
            bool has_snapshot;
            struct shoal_sched_snapshot
                snapshot;           /* drops the entries up to its index; `truncate_from` may drop the rest */
            uint64_t truncate_from; /* 0: none; else drop entries from here on, before adding */
            const struct shoal_sched_entry *entries;
            size_t entry_count;
            bool has_hard;
            struct shoal_sched_hard hard;
        } persist; /* order: snapshot, truncate, entries, hard */
        struct {
            struct shoal_job_id group; /* REMOVE_GROUP, LOAD, JOB_DELETED, JOB_ARCHIVED */
            bool keep;                 /* JOB_ARCHIVED */
        } group;
        struct {
            uint64_t request;
            enum shoal_err err;
            char text[400]; /* err: cause and remedy. SUBMIT, OK: what the job survives */
            struct shoal_job_id job;
            struct shoal_view ticket;
            struct shoal_view bytes;
        } reply;
        struct {
            struct shoal_job_id job;
            struct shoal_sched_version version;
            bool tombstone;
            bool archived;             /* a tombstone: see the event */
            struct shoal_view payload; /* at most SHOAL_SCHED_SUMMARY_BYTES_MAX */
        } summary;
        struct {
            uint64_t version; /* PUBLISH_SLOTS: counted up; PUBLISH_MESH: of the mesh */
            struct shoal_view payload;
        } publish; /* PUBLISH_SLOTS, PUBLISH_MESH, KEEP_MESH, KEEP_SLOTS */
        struct {
            struct shoal_job_id job;
            struct shoal_hash hash;
            struct shoal_view bytes;
        } blob; /* BLOB_PUT */
        struct {
            struct shoal_job_id job;
            char user[SHOAL_SCHED_BY_BYTES]; /* whose folder its results lie in */
            struct shoal_hash result, files; /* MAKE: manifests; zero: none */
            struct shoal_hash list;          /* FETCH */
            struct shoal_node_id sources[SHOAL_SCHED_SOURCES_MAX];
            uint8_t source_count;
        } archive;
        struct {
            struct shoal_job_id group;
            bool leads;
            uint64_t term;
            struct shoal_node_id leader; /* zero: unknown */
        } role;
        struct {
            char text[400];
        } fatal; /* FATAL, SAY */
        struct {
            struct shoal_job_id job;
            enum shoal_sched_index_what what;
            struct shoal_sched_version version; /* of a record of the archive that is final: config UINT64_MAX */
            struct shoal_view row;              /* empty unless ROW */
        } index;
        struct shoal_host_order order;
    } u;
};

/* One step makes at most this many actions; what is left comes in the next one (the deadline is then in the past). */
#define SHOAL_SCHED_ACTIONS_MAX 1024
#define SHOAL_SCHED_ENTRIES_MAX 512
#define SHOAL_SCHED_POOL_BYTES (4 * SHOAL_MIB)

/* Memory of the caller, several MiB: taken once; one serves any number of cores in turn. */
struct shoal_sched_actions {
    uint32_t count;
    uint32_t entry_count;
    size_t pool_used;
    struct shoal_sched_action list[SHOAL_SCHED_ACTIONS_MAX];
    struct shoal_sched_entry entries[SHOAL_SCHED_ENTRIES_MAX];
    _Alignas(16) uint8_t pool[SHOAL_SCHED_POOL_BYTES];
};

/* ---- The core ------------------------------------------------------------------------------------------------- */

/* What the core needs of cryptography; pure functions of their arguments. */
struct shoal_sched_env {
    void *arg;
    struct shoal_hash (*hash)(void *arg, struct shoal_view bytes); /* BLAKE2b-256 */
    void (*sign)(void *arg, struct shoal_view bytes,
                 uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES]); /* with the node's key */
    bool (*verify)(void *arg, const uint8_t key[SHOAL_SCHED_KEY_BYTES], struct shoal_view bytes,
                   const uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES]);
    struct shoal_node_id (*node_of_key)(void *arg, const uint8_t key[SHOAL_SCHED_KEY_BYTES]);
};

struct shoal_sched_options {
    struct shoal_node_id self;
    struct shoal_store_id store;
    struct shoal_incarnation incarnation; /* refutation is ignored */
    uint8_t public_key[SHOAL_SCHED_KEY_BYTES];
    char domain[SHOAL_SCHED_DOMAIN_BYTES];
    struct shoal_sched_env env;
    struct shoal_rand chance; /* the shell seeds it from the system's chance; tickets' nonces and tokens come from it */
    uint64_t start_ns;        /* now */
    uint32_t groups_max;      /* 0: SHOAL_GROUPS_MAX */
    uint32_t archive_warm_max;    /* final records of the archive that stay in memory; 0: SHOAL_ARCHIVE_WARM_MAX */
    uint32_t archive_early_max;   /* ended jobs led here that wait for archive_ns; 0: SHOAL_ARCHIVE_EARLY_MAX */
    uint32_t loaded_max;          /* pending jobs led here that are ready to be placed; 0: SHOAL_SCHED_SHOWN_MAX */
    uint32_t slots;               /* of this host */
    uint8_t device;               /* enum shoal_sched_device */
    uint64_t support_interval_ns; /* 0: defaults of support.h */
    uint64_t support_ns;
    uint64_t lease_ns;   /* 0: 15 s */
    uint64_t freeze_ns;  /* 0: 10 s unrenewed */
    uint64_t grow_ns;    /* 0: 10 s below the target before a group grows */
    uint64_t replace_ns; /* 0: 60 s unreachable before a guardian is replaced */
    uint64_t archive_ns; /* 0: SHOAL_ARCHIVE_S after its end a job goes into the archive */
};

/* FULL: no memory. */
SHOAL_MUST_CHECK enum shoal_err shoal_sched_create(struct shoal_sched **sched,
                                                   const struct shoal_sched_options *options);
void shoal_sched_destroy(struct shoal_sched *sched); /* accepts NULL */

/* Advance by one event. `actions` is emptied first. The result is about the event alone: MALFORMED frames and datagrams
 * are dropped and counted, everything else answers by actions. */
SHOAL_MUST_CHECK enum shoal_err shoal_sched_step(struct shoal_sched *sched, const struct shoal_sched_event *event,
                                                 uint64_t now_ns, struct shoal_sched_actions *actions);
/* When to send TIMER; may be in the past: step again at once. UINT64_MAX: never. */
uint64_t shoal_sched_deadline_ns(const struct shoal_sched *sched);

/* ---- Looking inside (borrowed until the next step) ------------------------------------------------------------- */

struct shoal_slots;
/* This host's slots (slots.h): for a worker's HELLO, `top` and /v1/debug. */
const struct shoal_slots *shoal_sched_slots(const struct shoal_sched *sched);
/* The newest copy of the mesh's state known here: users, keys, frameworks (mesh.h). NULL: none yet. */
const struct shoal_mesh *shoal_sched_mesh(const struct shoal_sched *sched);
uint64_t shoal_sched_mesh_version(const struct shoal_sched *sched);
/* True when the mesh group has a leader that this node knows. */
bool shoal_sched_mesh_writable(const struct shoal_sched *sched);

struct shoal_sched_group_status {
    struct shoal_job_id id;
    bool leads;
    bool founded; /* false: the founding record is not here (yet) */
    bool asleep;
    bool stopped; /* its digest differed from the others', or it was refused */
    uint8_t voters;
    uint8_t learners;
    uint64_t term;
    uint64_t commit;
    uint64_t applied;
    uint64_t last;
    struct shoal_node_id leader; /* zero: unknown */
    struct shoal_node_id guardians[SHOAL_GROUP_NODES_MAX];
};
size_t shoal_sched_group_count(const struct shoal_sched *sched);
bool shoal_sched_group_at(const struct shoal_sched *sched, size_t i, struct shoal_sched_group_status *status);
bool shoal_sched_group_find(const struct shoal_sched *sched, struct shoal_job_id id,
                            struct shoal_sched_group_status *status);
/* Rolling hash of all that the group has applied, and up to where: replicas at the same index must agree. */
/* The job's replica held here; NULL: none, or its founding record is not applied yet. */
struct shoal_job;
const struct shoal_job *shoal_sched_job(const struct shoal_sched *sched, struct shoal_job_id id);
bool shoal_sched_group_digest(const struct shoal_sched *sched, struct shoal_job_id id, uint64_t *applied,
                              uint64_t *digest);

/* What a list shows of a job whose group is here, right now. */
struct shoal_sched_row {
    struct shoal_sched_version version;
    bool leads;              /* this node leads the group: nothing that was acknowledged is newer */
    bool tail;               /* entries that are not applied yet are held here: something newer may be acknowledged */
    bool deleted;            /* its deletion is committed */
    struct shoal_view facts; /* as in INDEX; lies in `bytes` */
};
/* False: no group, or nothing known of it: the index's row stands. */
bool shoal_sched_row_find(const struct shoal_sched *sched, struct shoal_job_id id,
                          uint8_t bytes[SHOAL_SCHED_ROW_BYTES_MAX], struct shoal_sched_row *row);
/* Parked groups: they are in the store, and come back when they are wanted. `config`: of a stored hard state. A shell
 * that restores one that is parked gives the hard state alone. */
bool shoal_sched_is_parked(struct shoal_view config);
size_t shoal_sched_parked_count(const struct shoal_sched *sched);
bool shoal_sched_parked_find(const struct shoal_sched *sched, struct shoal_job_id id);

/* The archive's records on this node, in order of ids. One that is not final belongs to a job whose group has yet to
 * commit it; it answers requests only when gossip knows nothing of the job. */
struct shoal_sched_archived {
    struct shoal_job_id id;
    bool final;
    bool cold;      /* only in the store now: list, user, facts and summary are empty here */
    uint64_t since; /* shoal_sched_archive_version() when it was stored */
    struct shoal_hash list;
    char user[SHOAL_SCHED_BY_BYTES];
    struct shoal_view facts, summary; /* encoded as in job.h */
};
size_t shoal_sched_archive_count(const struct shoal_sched *sched); /* those on their way here included */
/* False: no such record, or not stored yet. */
bool shoal_sched_archive_at(const struct shoal_sched *sched, size_t i, struct shoal_sched_archived *archived);
/* The final records in memory, the newest first; `*cursor` is NULL at first. Until the next step. */
bool shoal_sched_archive_newest(const struct shoal_sched *sched, const void **cursor,
                                struct shoal_sched_archived *archived);
/* Where the store keeps the record of a job (a group without entries), and what its snapshot says: for a cold one. The
 * views point into `kept`. */
struct shoal_job_id shoal_sched_archive_place(struct shoal_job_id id);
bool shoal_sched_archive_read(struct shoal_view kept, struct shoal_sched_archived *archived);
bool shoal_sched_archive_find(const struct shoal_sched *sched, struct shoal_job_id id,
                              struct shoal_sched_archived *archived);
/* Counted up with every record that is stored, and with every deletion that is heard of. */
uint64_t shoal_sched_archive_version(const struct shoal_sched *sched);
/* Deleted ids that are remembered here: the i-th, and the version at which it was heard of (0: in an earlier life). */
bool shoal_sched_deleted_at(const struct shoal_sched *sched, size_t i, struct shoal_job_id *id, uint64_t *since);
/* Who should hold the job's record, in order; this node may be among them. */
size_t shoal_sched_archive_hosts(const struct shoal_sched *sched, struct shoal_job_id id,
                                 struct shoal_node_id nodes[SHOAL_ARCHIVE_COPIES]);

struct shoal_sched_stats {
    uint64_t frames_in, frames_out, frames_malformed, frames_unknown;
    uint64_t sends_dropped; /* the action pool was full; the core repeats */
    uint64_t requests, replies, requests_refused_full, requests_timed_out, forwarded;
    uint64_t groups, groups_led, groups_refused_full;
    uint64_t foundings, foundings_refused, terms_led;
    uint64_t witnesses; /* foundings without a majority that this node took part in settling */
    uint64_t snapshots, snapshots_sent;
    uint64_t digest_mismatches;
    uint64_t pauses; /* a group or the slots were due too often at one instant */
    uint64_t config_changes;
    uint64_t archived; /* groups that ended here */
    uint64_t archive_records, archive_refused_full, archive_loads;
    uint64_t parked, parks, loads, loads_refused; /* now; since the start */
    uint64_t pending_shown, pending_held;         /* now, of the jobs led here */
    uint64_t park_widened;                        /* those at the head of the queue were stuck beside free slots */
};
/* Asserts every invariant of every group's Raft and of support: for tests and the simulator. */
void shoal_sched_check(const struct shoal_sched *s);
/* The tables of the control plane, those of Raft and support among them. */
void shoal_sched_memory(struct shoal_memory *memory);
void shoal_sched_stats(const struct shoal_sched *sched, struct shoal_sched_stats *stats);

/* ---- Recovery (PROTOCOLS 3) -------------------------------------------------------------------------------------- */

/* What is left of a job whose guardians' majority is lost: entries up to `index` of term `term` on `node`. Whatever was
 * acknowledged after them is missing. */
struct shoal_sched_recovery {
    bool done; /* founded, and led by `node` */
    struct shoal_node_id node;
    uint32_t generation; /* now */
    uint64_t term, index;
    uint64_t commit; /* known to be committed up to here; the rest is taken as committed */
    uint8_t guardian_count;
    uint8_t lost_count;
    struct shoal_node_id lost[SHOAL_GROUP_NODES_MAX];
};
#define SHOAL_SCHED_RECOVERY_BYTES_MAX 320
size_t shoal_sched_recovery_encode(const struct shoal_sched_recovery *recovery, uint8_t *bytes);
/* MALFORMED. */
SHOAL_MUST_CHECK enum shoal_err shoal_sched_recovery_decode(struct shoal_view bytes,
                                                            struct shoal_sched_recovery *recovery);

/* ---- Tickets (PROTOCOLS 2) -------------------------------------------------------------------------------------- */

struct shoal_sched_ticket {
    struct shoal_job_id job;
    struct shoal_hash spec_hash;
    uint64_t wall_ms; /* of issue; the order of claims */
    struct shoal_node_id issuer;
    struct shoal_incarnation incarnation; /* the issuer leads term 1 only in this one */
    uint64_t nonce;
    uint8_t target; /* guardians wanted */
    uint8_t guardian_count;
    struct {
        struct shoal_node_id node;
        struct shoal_store_id store;
    } guardians[SHOAL_SCHED_SOURCES_MAX];
    uint8_t key[SHOAL_SCHED_KEY_BYTES]; /* the issuer's */
    uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES];
};
/* Encode with the signature as it is. TOO_BIG: does not fit. */
SHOAL_MUST_CHECK enum shoal_err shoal_sched_ticket_encode(const struct shoal_sched_ticket *ticket, uint8_t *bytes,
                                                          size_t cap, size_t *len);
/* MALFORMED; signature and issuer are not checked here. */
SHOAL_MUST_CHECK enum shoal_err shoal_sched_ticket_decode(struct shoal_view bytes, struct shoal_sched_ticket *ticket);

#endif
