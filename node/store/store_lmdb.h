/* The durable store's state, and what its four files share: store_lmdb.c (its picture and rules stand there) opens and
 * stops it, store_write_lmdb.c appends, store_read_lmdb.c reads, store_clean_lmdb.c trims and cleans. */
#ifndef SHOAL_NODE_STORE_LMDB_H
#define SHOAL_NODE_STORE_LMDB_H

#include "shoal/store.h"

#include "env_lmdb.h"
#include "store_frame.h"
#include "store_index.h"
#include "writer_uv.h"

#include <limits.h>
#include <lmdb.h>

#define SNAP_KEY_BYTES (10 + 8 + 4)

enum op { OP_LOG, OP_HARD, OP_HARD_REMOVE, OP_SNAP, OP_SNAP_REMOVE, OP_TRIM };

/* The cleaner moves this: span `first` of the group, from one place to another. */
struct move {
    struct shoal_job_id group;
    uint64_t first, from_seq, to_seq;
};

struct store_job {
    struct writer_job job;
    struct shoal_store *store;
    struct store_job *pending_next;
    uint64_t submitted_ns;
    struct shoal_buf ops; /* u8 op, key bytes, value bytes; repeated */
    unsigned frames;
    uint64_t next_seq; /* behind this job's frames */
    shoal_store_done_fn *done;
    void *arg;
    struct shoal_store_done result;
    bool frees;       /* it may have freed places in the log */
    bool maintenance; /* trimming or cleaning */
    uint64_t trimmed_to;
    struct move *moves; /* CLEAN_MAX; the cleaner's */
    unsigned moves_count;
    /* Set by the thread. */
    bool failed;
    uint64_t flush_ns; /* of the transaction; in its first job */
    uint64_t used_bytes;
};

struct shoal_store {
    char dir[PATH_MAX];
    MDB_env *env;
    MDB_dbi log, hard, snap, meta;
    struct writer *writer;
    struct store_index index;
    struct store_job *pending, **pending_end;
    uint64_t pending_bytes;
    uint64_t log_first, next_seq, durable_seq;
    uint64_t looked_seq; /* how far the log was when maintaining last looked */
    bool maintaining;
    bool fatal;
    bool stopping;
    size_t map_bytes;
    uint64_t page_bytes;
    struct span *scratch;
    size_t scratch_cap;
    void (*on_fatal)(void *arg, const char *text);
    void *fatal_arg;
    void (*stopped)(void *arg);
    void *stopped_arg;
    struct shoal_store_stats stats;
    /* The thread's. */
    bool write_failed;
    char failure[400];
};

typedef void store_entry_fn(void *arg, struct shoal_job_id group, const struct shoal_store_entry *entry);

/* Entries `from` to `to` of a group, up to so many bytes: `each` is told of one after the other. */
struct store_reading {
    struct shoal_store *store;
    MDB_txn *txn;
    struct shoal_job_id group;
    uint64_t from, to;
    size_t bytes_left;
    store_entry_fn *each;
    void *arg;
    size_t count;
    struct shoal_buf whole;
};

uint64_t store_seq_of_key(const MDB_val *key);
void store_key_of_seq(uint64_t seq, uint8_t key[8]);
void store_key_of_snap(struct shoal_job_id group, uint64_t generation, uint32_t piece, uint8_t key[SNAP_KEY_BYTES]);
MDB_val store_val_of(const void *bytes, size_t len);

/* One job of the writer: its operations, then submitted, in the order of the queue. */
struct store_job *store_job_create(struct shoal_store *store);
void store_job_free(struct store_job *job); /* one that is not submitted */
SHOAL_MUST_CHECK enum shoal_err store_job_put(struct store_job *job, enum op op, const void *key, size_t key_len,
                                              struct shoal_view value);
SHOAL_MUST_CHECK enum shoal_err store_job_put_frame(struct store_job *job, const uint8_t *bytes, size_t len);
void store_job_submit(struct store_job *job);
uint64_t store_used_pages(struct shoal_store *store, MDB_txn *txn);
struct writer_job *store_run_jobs(void *arg, struct writer_job *first); /* on the writer's thread */

SHOAL_MUST_CHECK enum shoal_err store_read_span(struct store_reading *reading, const struct span *span, bool *more);
SHOAL_MUST_CHECK enum shoal_err store_snapshot_read(struct shoal_store *store, MDB_txn *txn, const struct group *group,
                                                    struct shoal_buf *buf);
void store_maintain(struct shoal_store *store); /* trims or cleans, if it is worth it */

#endif
