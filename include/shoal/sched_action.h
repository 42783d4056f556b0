/* A node's control plane asks its shell for these, to be carried out in their order (shoal/sched.h). Everything in an
 * action is borrowed until the next step. */
#ifndef SHOAL_SCHED_ACTION_H
#define SHOAL_SCHED_ACTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/sched_event.h"

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

/* The index is to hold this of a job. */
enum shoal_sched_index_what {
    SHOAL_SCHED_INDEX_ROW,
    SHOAL_SCHED_INDEX_DELETED, /* it was deleted: whoever still lists it is wrong */
    SHOAL_SCHED_INDEX_NOTHING, /* this node has no part in it (any more); others may */
};

/* A row of a list: encoded shoal_job_facts (job.h) without `data_json`, and without `args` that are longer. */
#define SHOAL_SCHED_ROW_BYTES_MAX 2048
#define SHOAL_SCHED_ROW_ARGS_MAX 512

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
            uint64_t config;  /* PUBLISH_MESH: of the guardians that it names; orders records of one version */
            bool own;         /* PUBLISH_MESH: into this host's own facts, too */
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

#endif
