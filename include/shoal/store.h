/* The durable store: Raft logs, hard states and snapshots of all groups of this node, in one environment, flushed by
 * one writer thread; and the cache, a second environment for what can be rebuilt.
 *
 * An append is asynchronous. Its completion comes on the loop's thread after the flush, in the order of the appends.
 * A flush that fails is reported once (on_fatal) and never tried again: the agent must stop and restart from disk. */
#ifndef SHOAL_STORE_H
#define SHOAL_STORE_H

#include "shoal/ids.h"
#include "shoal/limits.h"

struct uv_loop_s;
struct shoal_store;

struct shoal_store_entry {
    uint64_t index; /* > 0 */
    uint64_t term;  /* > 0 */
    uint8_t kind;   /* the owner's */
    struct shoal_view bytes;
};

/* A replica must not forget this, besides its log. */
struct shoal_store_hard {
    uint64_t term;
    struct shoal_node_id vote_node; /* zero: no vote */
    struct shoal_store_id vote_store;
    struct shoal_view config; /* the owner's bytes, at most SHOAL_STORE_CONFIG_MAX */
};

struct shoal_store_snapshot {
    uint64_t index;
    uint64_t term;
    struct shoal_view bytes; /* at most SHOAL_SNAPSHOT_BYTES_MAX */
};

struct shoal_store_done {
    struct shoal_job_id group;
    uint64_t term;  /* of the last entry, or of the hard state, or of the snapshot */
    uint64_t index; /* of the last entry, or of the snapshot, or 0 */
    uint64_t token; /* the batch's */
};
typedef void shoal_store_done_fn(void *arg, const struct shoal_store_done *done);

/* One group's update: all of it becomes durable at once, in the order remove, snapshot, truncate, entries, hard. */
struct shoal_store_batch {
    struct shoal_job_id group;
    bool remove;                                 /* forget the group; the rest must be empty */
    const struct shoal_store_snapshot *snapshot; /* NULL: unchanged; entries up to its index are released */
    uint64_t truncate_from;                      /* 0: none; else entries with this index and later are dropped */
    const struct shoal_store_entry *entries;     /* consecutive; the first follows the last entry or the snapshot */
    size_t entries_count;
    const struct shoal_store_hard *hard; /* NULL: unchanged */
    shoal_store_done_fn *done;           /* may be NULL */
    void *arg;
    uint64_t token;
};

/* Called at open, for each group in turn: hard, then the snapshot if there is one, then the entries in order. Views are
 * borrowed for the call. A function may be NULL. */
struct shoal_store_replay {
    void *arg;
    void (*on_group)(void *arg, struct shoal_job_id group, const struct shoal_store_hard *hard);
    void (*on_snapshot)(void *arg, struct shoal_job_id group, const struct shoal_store_snapshot *snapshot);
    void (*on_entry)(void *arg, struct shoal_job_id group, const struct shoal_store_entry *entry);
    /* At open, after on_group: true when its snapshot and entries are not wanted now (shoal_store_load gives them). */
    bool (*skips)(void *arg, struct shoal_job_id group, struct shoal_view config);
};

struct shoal_store_options {
    struct uv_loop_s *loop;
    const char *dir;                /* made if missing; its parent must exist */
    struct shoal_store_id store_id; /* a folder of another store is refused */
    size_t map_bytes;               /* 0: 8 GiB of address space */
    size_t prefill_bytes;           /* zero-filled at creation: later flushes allocate no blocks. 0: 64 MiB */
    struct shoal_store_replay replay;
    void (*on_fatal)(void *arg, const char *text); /* the disk failed: stop the agent */
    void *fatal_arg;
};

struct shoal_store_stats {
    uint64_t batches, commits, frames, bytes; /* since open */
    uint64_t frames_copied;                   /* by the cleaner */
    uint64_t frames_trimmed;
    uint64_t refused_full;
    uint64_t flush_last_ns, flush_max_ns;
    uint64_t pending;    /* batches not yet durable, now */
    uint64_t used_bytes; /* pages in use, now */
    uint64_t map_bytes;
    uint64_t groups, entries; /* live, now */
};

/* STORAGE: cannot read or write. MALFORMED: damaged, newer than this binary, or of another store. Blocks: before the
 * loop runs. */
SHOAL_MUST_CHECK enum shoal_err shoal_store_open(struct shoal_store **store, const struct shoal_store_options *options,
                                                 struct shoal_msg *msg);

/* The batch is copied. An error means that nothing was taken and `done` never runs:
 * FULL: 60 % of the map is in use, or too much waits for the disk; the message says which and what to do.
 * TOO_BIG: an entry, a config or a snapshot above its limit. STALE: the store has failed.
 * Entries that do not follow the log are a bug of the caller's, and asserted. */
SHOAL_MUST_CHECK enum shoal_err shoal_store_append(struct shoal_store *store, const struct shoal_store_batch *batch,
                                                   struct shoal_msg *msg);

/* Age of the oldest append that is not durable yet; 0: none waits. An idle disk is a healthy one. */
uint64_t shoal_store_oldest_pending_ns(const struct shoal_store *store);

/* Durable entries [from, to), each as on_entry, until `bytes_max` are passed (at least one). `*count`: how many.
 * NOT_FOUND: `from` is below the snapshot or above the log. Entries not flushed yet are left out. */
SHOAL_MUST_CHECK enum shoal_err
shoal_store_read(struct shoal_store *store, struct shoal_job_id group, uint64_t from, uint64_t to, size_t bytes_max,
                 void (*on_entry)(void *arg, struct shoal_job_id group, const struct shoal_store_entry *entry),
                 void *arg, size_t *count);
/* One group as at open, none of it skipped. Only when everything that was appended for it is durable. Reads the disk in
 * the caller's thread. NOT_FOUND: no such group. STORAGE: it cannot be read. FULL: no memory. */
SHOAL_MUST_CHECK enum shoal_err shoal_store_load(struct shoal_store *store, struct shoal_job_id group,
                                                 const struct shoal_store_replay *replay);
/* The durable snapshot, appended to `buf`. NOT_FOUND: none. */
SHOAL_MUST_CHECK enum shoal_err shoal_store_read_snapshot(struct shoal_store *store, struct shoal_job_id group,
                                                          uint64_t *index, uint64_t *term, struct shoal_buf *buf);

const struct shoal_store_stats *shoal_store_stats(struct shoal_store *store);

/* Flush what waits, run its completions, close. `stopped` comes last; the store is gone then. */
void shoal_store_stop(struct shoal_store *store, void (*stopped)(void *arg), void *arg);

/* --- The cache: survives the agent's death, not the host's. -------------------------------------- */

struct shoal_cache;

/* Wiped, with a line in `msg`, when damaged or when the host has rebooted since (boot_id differs). */
SHOAL_MUST_CHECK enum shoal_err shoal_cache_open(struct shoal_cache **cache, const char *dir, const char *boot_id,
                                                 size_t map_bytes, struct shoal_msg *msg);
void shoal_cache_close(struct shoal_cache *cache);

/* Tables keep their keys apart. Keys: 1 to 64 bytes. Values: at most SHOAL_CACHE_VALUE_MAX. */
enum shoal_cache_table {
    SHOAL_CACHE_GOSSIP,
    SHOAL_CACHE_SLOTS,
    SHOAL_CACHE_TICKETS,
    SHOAL_CACHE_OTHER,
    SHOAL_CACHE_TABLES,
};

/* FULL: the map is full. */
SHOAL_MUST_CHECK enum shoal_err shoal_cache_put(struct shoal_cache *cache, enum shoal_cache_table table,
                                                struct shoal_view key, struct shoal_view value);
/* Appended to `buf`. NOT_FOUND: no such key. */
SHOAL_MUST_CHECK enum shoal_err shoal_cache_get(struct shoal_cache *cache, enum shoal_cache_table table,
                                                struct shoal_view key, struct shoal_buf *buf);
/* NOT_FOUND: no such key. */
SHOAL_MUST_CHECK enum shoal_err shoal_cache_remove(struct shoal_cache *cache, enum shoal_cache_table table,
                                                   struct shoal_view key);
/* In key order, until `each` returns false. `each` must not write to the cache. */
SHOAL_MUST_CHECK enum shoal_err
shoal_cache_each(struct shoal_cache *cache, enum shoal_cache_table table,
                 bool (*each)(void *arg, struct shoal_view key, struct shoal_view value), void *arg);

#endif
