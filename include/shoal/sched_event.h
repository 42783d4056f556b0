/* A node's control plane is told of these: members, links, frames, what the store holds, requests (shoal/sched.h).
 * Everything in an event is borrowed for the step. */
#ifndef SHOAL_SCHED_EVENT_H
#define SHOAL_SCHED_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/buf.h"
#include "shoal/cards.h"
#include "shoal/error.h"
#include "shoal/host.h"
#include "shoal/ids.h"
#include "shoal/limits.h"

#define SHOAL_SCHED_DOMAIN_BYTES 64
#define SHOAL_SCHED_SIGNATURE_BYTES 64
#define SHOAL_SCHED_KEY_BYTES 32
/* Sources of a blob: the guardians. */
#define SHOAL_SCHED_SOURCES_MAX SHOAL_HOST_SOURCES_MAX
#define SHOAL_SCHED_TICKET_BYTES_MAX 640
#define SHOAL_SCHED_BY_BYTES 64 /* a user's name, as SHOAL_JOB_TEXT_BYTES */
/* A job's summary in gossip. */
#define SHOAL_SCHED_SUMMARY_BYTES_MAX SHOAL_RECORD_PAYLOAD_MAX

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
    SHOAL_SCHED_FLOOR,           /* of a service that is led here: how many replicas its profile has at least */
};

/* As enum shoal_member_state (shoal/gossip.h). */
enum shoal_sched_node_state {
    SHOAL_SCHED_NODE_ALIVE,
    SHOAL_SCHED_NODE_SUSPECT,
    SHOAL_SCHED_NODE_DEAD,
    SHOAL_SCHED_NODE_LEFT,
    SHOAL_SCHED_NODE_FORGOTTEN, /* dead or left, and its grace is over: it will not come back as what it was */
};

enum shoal_sched_device { SHOAL_SCHED_CPU, SHOAL_SCHED_GPU, SHOAL_SCHED_DEVICES };

/* A host of this version says by this number that it seals copies of the mesh, and forwards requests with a user's token. A host
 * that says nothing is of a version before. */
#define SHOAL_SCHED_RULES 1

struct shoal_sched_node {
    struct shoal_node_id id;
    struct shoal_store_id store; /* zero: not known yet; such a node guards nothing */
    enum shoal_sched_node_state state;
    struct shoal_incarnation incarnation;
    uint32_t slots;                     /* count, at most SHOAL_SLOTS_MAX; 0: takes no workers */
    uint64_t slots_free;                /* bit i: slot i is free, by the node's own word */
    uint8_t device;                     /* of its slots: enum shoal_sched_device */
    struct shoal_cards cards;           /* that services may share; their shares are none of `slots` */
    uint32_t rules;                     /* SHOAL_SCHED_RULES of the version it runs; 0: of one before there were any */
    uint32_t serves;                    /* SHOAL_SERVES_*: frameworks of its Python; 0: not told */
    uint32_t job_workers;               /* of one job, that its version takes; 0: not told */
    uint64_t mesh_version, mesh_config; /* of the copy of the mesh that it holds, by its own word; 0: not said */
    bool draining; /* an operator takes its work away: it gets nothing new, and what it has moves */
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
    SHOAL_SCHED_SCALE,       /* of a service: `command` = how many replicas are to run, one byte */
    SHOAL_SCHED_EDIT,        /* of a service: `command` = revision (u32), replicas (u8), document. STALE: it has another
                                revision by now */
};
#define SHOAL_SCHED_REQUEST_KINDS 13

/* The user who asks, as the token says. */
struct shoal_sched_caller {
    char name[SHOAL_SCHED_BY_BYTES];
    bool admin;
    uint8_t token_id[16]; /* SHOAL_MESH_TOKEN_ID_BYTES */
};
/* Length of a user's token as text, at most. */
#define SHOAL_SCHED_TOKEN_BYTES_MAX 1024

struct shoal_sched_request {
    uint64_t id; /* chosen by the shell, unique while it is open; exactly one REPLY names it */
    enum shoal_sched_request_kind kind;
    struct shoal_job_id job; /* GET, STOP, DELETE, WHY, RECOVER, TASKS, SCALE, EDIT */
    bool linearizable;    /* GET: by read-index at the leader; else the newest replica or summary known here will do */
    bool local_only;      /* GET: never leave this node */
    bool confirmed;       /* RECOVER: do it; else only say what may be missing */
    bool of_mesh;         /* RECOVER: the mesh group, `job` is zero */
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
    struct shoal_view command;     /* MESH_INIT, MESH_CHANGE, TASKS, SCALE, EDIT */
    char by[SHOAL_SCHED_BY_BYTES]; /* the user who asks: stands in the job's record; "" if nobody */
    struct shoal_view token;       /* of that user: STOP, DELETE, SCALE, EDIT, RECOVER and MESH_CHANGE go elsewhere with it */
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

static inline int shoal_sched_version_cmp(struct shoal_sched_version a, struct shoal_sched_version b)
{
    if (a.config != b.config)
        return a.config < b.config ? -1 : 1;
    if (a.term != b.term)
        return a.term < b.term ? -1 : 1;
    return a.applied < b.applied ? -1 : a.applied > b.applied;
}

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
            uint32_t count;
            uint8_t canary; /* as in its summary */
            uint32_t revision; /* of the document that says so */
            struct shoal_gpu_need need;
        } floor;
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

#endif
