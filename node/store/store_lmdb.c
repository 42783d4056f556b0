/* The durable store (store.h): one LMDB environment, one writer thread, one transaction for all that waits.
 *
 *   append (loop) --ops--> queue --> writer thread: one transaction of many batches, two flushes --> done (loop)
 *
 *   log    8-byte big-endian sequence -> frame (store_frame.h), appended in order: the tree grows only to the right
 *   hard   group -> its row: term, vote, configuration, snapshot (store_index.h)
 *   snap   group, generation, piece -> bytes of its snapshot
 *   meta   "store" -> whose this is
 *
 * I1. The loop's thread gives out sequences, in the order of the queue; so the log is in order, and MDB_APPEND holds.
 * I2. A batch is one transaction or part of one, never of two.
 * I3. After an error of the writer nothing is written any more: a flush that is tried again may report success for
 *     pages that were lost (PostgreSQL's lesson of 2018).
 * I4. A sequence is trimmed only when no live span begins at or before it. The cleaner's copy is durable before what it
 *     was made from may go.
 * I5. A read transaction does not outlive the call that began it.
 *
 * Why this key: entries of many groups by (group, index) cost four times the throughput and twenty times the bytes. */
#include "shoal/store.h"

#include "shoal/hash.h"

#include "node/format.h"
#include "env_lmdb.h"
#include "store_frame.h"
#include "store_index.h"
#include "writer_uv.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <lmdb.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include "shoal/banned.h"

#define MAP_DEFAULT (8ull * 1024 * SHOAL_MIB)
#define PREFILL_DEFAULT (64ull * SHOAL_MIB)
#define META_VERSION 2 /* 2: what lies in entries and snapshots is of decision 0013; a store of version 1 is refused */
#define META_OLDEST 2
/* Sequences deleted by one transaction, the fewest that are worth one, and frames that the cleaner moves by one. */
#define TRIM_MAX 1024
#define TRIM_MIN 64
#define CLEAN_MAX 64
/* The cleaner starts when the log has so many frames, and less than half of them are alive. */
#define CLEAN_LOG_MIN 1024
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

static uint64_t seq_of_key(const MDB_val *key)
{
    const uint8_t *bytes = key->mv_data;
    uint64_t seq = 0;

    for (unsigned i = 0; i < 8; i++)
        seq = seq << 8 | bytes[i];
    return seq;
}

static void key_of_seq(uint64_t seq, uint8_t key[8])
{
    for (unsigned i = 0; i < 8; i++)
        key[i] = (uint8_t)(seq >> (56 - 8 * i));
}

static void key_of_snap(struct shoal_job_id group, uint64_t generation, uint32_t piece, uint8_t key[SNAP_KEY_BYTES])
{
    memcpy(key, group.bytes, 10);
    key_of_seq(generation, key + 10);
    for (unsigned i = 0; i < 4; i++)
        key[18 + i] = (uint8_t)(piece >> (24 - 8 * i));
}

static MDB_val val_of(const void *bytes, size_t len)
{
    MDB_val val = { .mv_size = len };
    memcpy(&val.mv_data, &bytes, sizeof(bytes)); /* LMDB's keys are not const, and not written to */
    return val;
}

/* ---- the thread --------------------------------------------------------------------------------- */

/* Delete keys from `key` on while they begin with its first `prefix` bytes and are below `end` (compared as bytes). */
static int remove_range(MDB_txn *txn, MDB_dbi dbi, struct shoal_view from, size_t prefix, struct shoal_view end)
{
    MDB_cursor *cursor;
    MDB_val key = val_of(from.bytes, from.len), value;
    int rc = mdb_cursor_open(txn, dbi, &cursor);

    if (rc != 0)
        return rc;
    rc = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
    SHOAL_ASSERT(from.bytes != NULL && end.bytes != NULL && (rc != 0 || key.mv_data != NULL));
    while (rc == 0 && key.mv_size == end.len && memcmp(key.mv_data, from.bytes, prefix) == 0 &&
           memcmp(key.mv_data, end.bytes, end.len) < 0) {
        rc = mdb_cursor_del(cursor, 0);
        if (rc == 0)
            rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT); /* the one behind the deleted one */
    }
    mdb_cursor_close(cursor);
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static int apply_op(struct shoal_store *store, MDB_txn *txn, enum op op, struct shoal_view key_view,
                    struct shoal_view value)
{
    MDB_val key = val_of(key_view.bytes, key_view.len), val = val_of(value.bytes, value.len);
    int rc = 0;

    switch (op) {
    case OP_LOG: return mdb_put(txn, store->log, &key, &val, MDB_APPEND);
    case OP_HARD: return mdb_put(txn, store->hard, &key, &val, 0);
    case OP_HARD_REMOVE: rc = mdb_del(txn, store->hard, &key, NULL); break;
    case OP_SNAP: return mdb_put(txn, store->snap, &key, &val, 0);
    case OP_SNAP_REMOVE: return remove_range(txn, store->snap, key_view, 10, value);
    case OP_TRIM: return remove_range(txn, store->log, key_view, 0, value);
    }
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static int apply_job(struct shoal_store *store, MDB_txn *txn, const struct store_job *job)
{
    struct shoal_reader r = shoal_reader_init(shoal_buf_view(&job->ops));

    while (shoal_reader_left(&r) > 0) {
        enum op op = (enum op)shoal_get_u8(&r);
        struct shoal_view key = shoal_get_bytes(&r, SIZE_MAX);
        struct shoal_view value = shoal_get_bytes(&r, SIZE_MAX);
        int rc;

        SHOAL_ASSERT(!r.failed);
        rc = apply_op(store, txn, op, key, value);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static uint64_t used_pages(struct shoal_store *store, MDB_txn *txn)
{
    MDB_dbi dbis[] = { store->log, store->hard, store->snap, store->meta };
    uint64_t pages = 0;
    MDB_stat stat;

    for (size_t i = 0; i < sizeof(dbis) / sizeof(dbis[0]); i++)
        if (mdb_stat(txn, dbis[i], &stat) == 0)
            pages += stat.ms_branch_pages + stat.ms_leaf_pages + stat.ms_overflow_pages;
    return pages;
}

static void write_fails(struct shoal_store *store, int rc)
{
    const char *remedy = rc == MDB_MAP_FULL ? "raise store.map_mib and start again"
                         : rc == ENOSPC     ? "free space on its disk and start again"
                         : rc == EIO        ? "the disk is failing: replace it and join with a new data folder"
                                            : "see the system's log";

    store->write_failed = true;
    (void)snprintf(store->failure, sizeof(store->failure),
                   "%.200s: a flush failed: %s; the agent stops, nothing unflushed was "
                   "acknowledged; %s",
                   store->dir, mdb_strerror(rc), remedy);
}

static struct store_job *job_of(struct writer_job *job) { return (struct store_job *)(void *)job; }
_Static_assert(offsetof(struct store_job, job) == 0, "a job is cast from its first member");

static struct writer_job *run_jobs(void *arg, struct writer_job *first)
{
    struct shoal_store *store = arg;
    struct writer_job *job = first;
    MDB_txn *txn = NULL;
    size_t bytes = 0, frames = 0;
    uint64_t started_ns = uv_hrtime(), pages = 0;
    int rc = store->write_failed ? 0 : mdb_txn_begin(store->env, NULL, 0, &txn);

    while (rc == 0 && txn != NULL && job != NULL) {
        const struct store_job *next = job_of(job);

        if (job != first && (frames + next->frames > SHOAL_STORE_COMMIT_FRAMES_MAX ||
                             bytes + next->ops.len > SHOAL_STORE_COMMIT_BYTES_MAX))
            break;
        rc = apply_job(store, txn, next);
        frames += next->frames;
        bytes += next->ops.len;
        job = job->next;
    }
    if (rc == 0 && txn != NULL) {
        pages = used_pages(store, txn);
        rc = mdb_txn_commit(txn);
        txn = NULL;
    }
    if (txn != NULL)
        mdb_txn_abort(txn);
    if (rc != 0)
        write_fails(store, rc);
    if (store->write_failed)
        job = NULL; /* I3: all that wait have failed */
    for (struct writer_job *done = first; done != job; done = done->next) {
        job_of(done)->failed = store->write_failed;
        job_of(done)->used_bytes = pages * store->page_bytes;
        job_of(done)->flush_ns = done == first ? uv_hrtime() - started_ns : 0;
    }
    return job;
}

/* ---- jobs, on the loop's thread ---- */

static void job_done(struct writer_job *done);
static void maintain(struct shoal_store *store);

static struct store_job *job_create(struct shoal_store *store)
{
    struct store_job *job = calloc(1, sizeof(*job));

    if (job != NULL) {
        job->store = store;
        job->job.done = job_done;
        job->next_seq = store->next_seq;
    }
    return job;
}

static void job_free(struct store_job *job)
{
    shoal_buf_deinit(&job->ops);
    free(job->moves);
    free(job);
}

static enum shoal_err job_put(struct store_job *job, enum op op, const void *key, size_t key_len,
                              struct shoal_view value)
{
    uint8_t head[9];
    struct shoal_writer w = shoal_writer_init(head, 5);
    enum shoal_err err = shoal_buf_reserve(&job->ops, sizeof(head) + key_len + value.len);

    if (err != SHOAL_OK)
        return err;
    shoal_put_u8(&w, (uint8_t)op);
    shoal_put_u32(&w, (uint32_t)key_len);
    err = shoal_buf_append(&job->ops, head, 5);
    if (err == SHOAL_OK)
        err = shoal_buf_append(&job->ops, key, key_len);
    w = shoal_writer_init(head, 4);
    shoal_put_u32(&w, (uint32_t)value.len);
    if (err == SHOAL_OK)
        err = shoal_buf_append(&job->ops, head, 4);
    if (err == SHOAL_OK)
        err = shoal_buf_append(&job->ops, value.bytes, value.len);
    return err;
}

static enum shoal_err job_put_frame(struct store_job *job, const uint8_t *bytes, size_t len)
{
    uint8_t key[8];

    key_of_seq(job->next_seq++, key);
    job->frames++;
    return job_put(job, OP_LOG, key, sizeof(key), shoal_view_of(bytes, len));
}

static void job_submit(struct store_job *job)
{
    struct shoal_store *store = job->store;

    SHOAL_ASSERT(!store->stopping && job->next_seq >= store->next_seq);
    store->next_seq = job->next_seq;
    store->stats.frames += job->frames;
    store->stats.bytes += job->ops.len;
    store->stats.pending++;
    store->pending_bytes += job->ops.len;
    job->submitted_ns = uv_hrtime();
    *store->pending_end = job;
    store->pending_end = &job->pending_next;
    writer_push(store->writer, &job->job);
}

static void moves_done(struct shoal_store *store, const struct store_job *job)
{
    for (unsigned i = 0; i < job->moves_count; i++) {
        const struct move *move = &job->moves[i];
        struct group *group = store_index_find(&store->index, move->group);
        const struct span *span = group == NULL ? NULL : store_group_span_of(group, move->first);

        /* It may have been truncated, released or removed meanwhile. */
        if (span != NULL && span->seq == move->from_seq)
            store_group_move(group, (size_t)(span - group_span(group, 0)), move->to_seq);
    }
}

static void job_done(struct writer_job *done)
{
    struct store_job *job = job_of(done);
    struct shoal_store *store = job->store;
    struct shoal_store_done result = job->result;
    shoal_store_done_fn *callback = job->done;
    void *arg = job->arg;
    bool failed = job->failed, tidy = job->frees || job->maintenance;

    SHOAL_ASSERT(store->pending == job);
    store->pending = job->pending_next;
    if (store->pending == NULL)
        store->pending_end = &store->pending;
    store->stats.pending--;
    store->pending_bytes -= job->ops.len;
    if (!failed) {
        store->durable_seq = job->next_seq;
        store->stats.used_bytes = job->used_bytes;
        store->stats.commits += job->flush_ns > 0;
        if (job->flush_ns > 0)
            store->stats.flush_last_ns = job->flush_ns;
        if (job->flush_ns > store->stats.flush_max_ns)
            store->stats.flush_max_ns = job->flush_ns;
        moves_done(store, job);
        if (job->trimmed_to > 0) {
            store->stats.frames_trimmed += job->trimmed_to - store->log_first;
            store->log_first = job->trimmed_to;
        }
    }
    if (job->maintenance)
        store->maintaining = false;
    job_free(job);
    if (failed) {
        bool first = !store->fatal;

        store->fatal = true;
        if (first && store->on_fatal != NULL)
            store->on_fatal(store->fatal_arg, store->failure);
        return;
    }
    if (tidy)
        maintain(store);
    if (callback != NULL)
        callback(arg, &result);
}

/* ---- reading ------------------------------------------------------------------------------------ */

typedef void entry_fn(void *arg, struct shoal_job_id group, const struct shoal_store_entry *entry);

static enum shoal_err get_frame(struct shoal_store *store, MDB_txn *txn, uint64_t seq, struct frame *frame)
{
    uint8_t bytes[8];
    MDB_val key, value;

    key_of_seq(seq, bytes);
    key = val_of(bytes, sizeof(bytes));
    if (mdb_get(txn, store->log, &key, &value) != 0)
        return SHOAL_ERR_STORAGE;
    return store_frame_decode(seq, shoal_view_of(value.mv_data, value.mv_size), frame);
}

/* A long entry, put together in `whole`. */
static enum shoal_err get_long(struct shoal_store *store, MDB_txn *txn, const struct span *span,
                               struct shoal_buf *whole, struct shoal_store_entry *entry)
{
    whole->len = 0;
    for (uint32_t i = 0; i < span->frames; i++) {
        struct frame frame;
        enum shoal_err err = get_frame(store, txn, span->seq + i, &frame);

        if (err == SHOAL_OK && (frame.what != FRAME_PART || frame.first != span->first || frame.offset != whole->len))
            err = SHOAL_ERR_MALFORMED;
        if (err == SHOAL_OK)
            err = shoal_buf_append(whole, frame.part.bytes, frame.part.len);
        if (err != SHOAL_OK)
            return err;
        *entry = (struct shoal_store_entry){ .index = frame.first, .term = frame.term, .kind = frame.kind };
        if (i + 1 == span->frames && whole->len != frame.total)
            return SHOAL_ERR_MALFORMED;
    }
    entry->bytes = shoal_buf_view(whole);
    return SHOAL_OK;
}

struct reading {
    struct shoal_store *store;
    MDB_txn *txn;
    struct shoal_job_id group;
    uint64_t from, to;
    size_t bytes_left;
    entry_fn *each;
    void *arg;
    size_t count;
    struct shoal_buf whole;
};

/* False in `*more`: enough was passed on. */
static enum shoal_err read_span(struct reading *reading, const struct span *span, bool *more)
{
    struct shoal_store_entry entry;
    struct shoal_reader r;
    struct frame frame;
    uint64_t index;
    bool is_long;
    enum shoal_err err = get_frame(reading->store, reading->txn, span->seq, &frame);

    if (err != SHOAL_OK || (frame.what != FRAME_ENTRIES && frame.what != FRAME_PART))
        return err != SHOAL_OK ? err : SHOAL_ERR_MALFORMED;
    is_long = frame.what == FRAME_PART;
    r = shoal_reader_init(frame.entries);
    index = frame.first;
    *more = true;
    while (*more && (is_long || store_frame_next(&r, &index, &entry))) {
        if (is_long) {
            err = get_long(reading->store, reading->txn, span, &reading->whole, &entry);
            if (err != SHOAL_OK)
                return err;
        }
        if (entry.index >= span->first + span->count || entry.index >= reading->to)
            break;
        if (entry.index >= span->first && entry.index >= reading->from) {
            if (reading->count > 0 && entry.bytes.len > reading->bytes_left) {
                *more = false;
                break;
            }
            reading->bytes_left -= entry.bytes.len < reading->bytes_left ? entry.bytes.len : reading->bytes_left;
            reading->count++;
            reading->each(reading->arg, reading->group, &entry);
        }
        if (is_long)
            break;
    }
    return SHOAL_OK;
}

enum shoal_err shoal_store_read(struct shoal_store *store, struct shoal_job_id group_id, uint64_t from, uint64_t to,
                                size_t bytes_max, entry_fn *on_entry, void *arg, size_t *count)
{
    struct group *group = store_index_find(&store->index, group_id);
    struct reading reading = {
        .store = store, .group = group_id, .from = from, .to = to, .bytes_left = bytes_max, .each = on_entry, .arg = arg
    };
    enum shoal_err err = SHOAL_OK;
    bool more = true;

    if (group == NULL || from < store_group_first(group) || from > store_group_last(group))
        return SHOAL_ERR_NOT_FOUND;
    if (mdb_txn_begin(store->env, NULL, MDB_RDONLY, &reading.txn) != 0)
        return SHOAL_ERR_STORAGE;
    for (size_t i = (size_t)(store_group_span_of(group, from) - group_span(group, 0)); i < group_spans(group) && more;
         i++) {
        const struct span *span = group_span(group, i);

        if (span->first >= to || span->seq + span->frames > store->durable_seq)
            break;
        err = read_span(&reading, span, &more);
        if (err != SHOAL_OK)
            break;
    }
    mdb_txn_abort(reading.txn);
    shoal_buf_deinit(&reading.whole);
    *count = reading.count;
    return err == SHOAL_OK ? SHOAL_OK : SHOAL_ERR_STORAGE;
}

static enum shoal_err snapshot_read(struct shoal_store *store, MDB_txn *txn, const struct group *group,
                                    struct shoal_buf *buf)
{
    size_t start = buf->len;

    for (uint32_t piece = 0; buf->len - start < group->snapshot.bytes; piece++) {
        uint8_t bytes[SNAP_KEY_BYTES];
        MDB_val key = val_of(bytes, sizeof(bytes)), value;

        key_of_snap(group->id, group->snapshot.generation, piece, bytes);
        if (mdb_get(txn, store->snap, &key, &value) != 0 || value.mv_size == 0)
            return SHOAL_ERR_MALFORMED;
        if (shoal_buf_append(buf, value.mv_data, value.mv_size) != SHOAL_OK)
            return SHOAL_ERR_FULL;
    }
    if (buf->len - start != group->snapshot.bytes ||
        shoal_crc32c(0, shoal_view_of(buf->bytes + start, buf->len - start)) != group->snapshot.crc)
        return SHOAL_ERR_MALFORMED;
    return SHOAL_OK;
}

/* The row on disk, not the one in memory: a newer snapshot may still wait for its flush. */
enum shoal_err shoal_store_read_snapshot(struct shoal_store *store, struct shoal_job_id group_id, uint64_t *index,
                                         uint64_t *term, struct shoal_buf *buf)
{
    struct group row = { 0 };
    MDB_txn *txn;
    MDB_val key = val_of(group_id.bytes, sizeof(group_id.bytes)), value;
    enum shoal_err err = SHOAL_ERR_NOT_FOUND;
    size_t start = buf->len;
    int rc;

    if (mdb_txn_begin(store->env, NULL, MDB_RDONLY, &txn) != 0)
        return SHOAL_ERR_STORAGE;
    rc = mdb_get(txn, store->hard, &key, &value);
    if (rc == 0)
        err = store_hard_decode(shoal_view_of(value.mv_data, value.mv_size), &row);
    if (err == SHOAL_OK)
        err = row.snapshot.generation == 0 ? SHOAL_ERR_NOT_FOUND : snapshot_read(store, txn, &row, buf);
    mdb_txn_abort(txn);
    if (err != SHOAL_OK) {
        buf->len = start;
        return err == SHOAL_ERR_MALFORMED ? SHOAL_ERR_STORAGE : err;
    }
    *index = row.snapshot.index;
    *term = row.snapshot.term;
    return SHOAL_OK;
}

/* ---- trimming and cleaning ---------------------------------------------------------------------- */

static uint64_t oldest_live(struct shoal_store *store, struct group **pinning)
{
    uint64_t oldest = store->durable_seq;

    *pinning = NULL;
    for (struct group *group = store->index.first_long; group != NULL; group = group->long_next) {
        if (store_group_oldest_seq(group) < oldest) {
            oldest = store_group_oldest_seq(group);
            *pinning = group;
        }
    }
    return oldest;
}

static void trim(struct shoal_store *store, uint64_t oldest)
{
    uint64_t end = oldest - store->log_first > TRIM_MAX ? store->log_first + TRIM_MAX : oldest;
    struct store_job *job = job_create(store);
    uint8_t from[8], to[8];

    if (job == NULL)
        return; /* the next batch that frees something tries again */
    key_of_seq(store->log_first, from);
    key_of_seq(end, to);
    if (job_put(job, OP_TRIM, from, sizeof(from), shoal_view_of(to, sizeof(to))) != SHOAL_OK) {
        job_free(job);
        return;
    }
    job->maintenance = true;
    job->trimmed_to = end;
    store->maintaining = true;
    job_submit(job);
}

struct copying {
    struct store_job *job;
    struct shoal_store_entry entries[512];
    struct shoal_buf bytes;
    size_t count;
    bool failed;
};

static void copy_entry(void *arg, struct shoal_job_id group, const struct shoal_store_entry *entry)
{
    struct copying *copying = arg;

    (void)group;
    if (copying->failed || copying->count == sizeof(copying->entries) / sizeof(copying->entries[0]) ||
        shoal_buf_append(&copying->bytes, entry->bytes.bytes, entry->bytes.len) != SHOAL_OK) {
        copying->failed = true;
        return;
    }
    copying->entries[copying->count] = *entry;
    copying->entries[copying->count++].bytes.bytes = NULL; /* set when `bytes` no longer moves */
}

static bool copy_span(struct shoal_store *store, MDB_txn *txn, struct group *group, const struct span *span,
                      struct store_job *job)
{
    struct copying *copying = calloc(1, sizeof(*copying));
    struct reading reading = { .store = store,
                               .txn = txn,
                               .group = group->id,
                               .from = span->first,
                               .to = span->first + span->count,
                               .bytes_left = SIZE_MAX,
                               .each = copy_entry,
                               .arg = copying };
    uint8_t bytes[SHOAL_STORE_VALUE_MAX];
    bool more, ok = copying != NULL && read_span(&reading, span, &more) == SHOAL_OK && !copying->failed;
    size_t taken = 0, at = 0;

    for (size_t i = 0; ok && i < copying->count; i++) {
        copying->entries[i].bytes.bytes = copying->bytes.bytes + at;
        at += copying->entries[i].bytes.len;
    }
    if (ok && copying->count == 1 && copying->entries[0].bytes.len > FRAME_ENTRY_MAX) {
        for (uint32_t i = 0; ok && i < span->frames; i++) {
            size_t len =
                store_frame_encode_part(group->id, true, copying->entries, i * FRAME_PART_MAX, job->next_seq, bytes);

            ok = job_put_frame(job, bytes, len) == SHOAL_OK;
        }
    } else if (ok) {
        size_t len =
            store_frame_encode_entries(group->id, true, copying->entries, copying->count, job->next_seq, bytes, &taken);

        ok = taken == copying->count && job_put_frame(job, bytes, len) == SHOAL_OK;
    }
    shoal_buf_deinit(&reading.whole);
    if (copying != NULL)
        shoal_buf_deinit(&copying->bytes);
    free(copying);
    return ok;
}

/* Move the group's oldest spans to the tail, so that the log behind them can go. */
static void clean(struct shoal_store *store, struct group *group, uint64_t below)
{
    struct store_job *job = job_create(store);
    MDB_txn *txn;
    bool ok = true;

    if (job == NULL)
        return;
    job->moves = calloc(CLEAN_MAX, sizeof(*job->moves));
    if (job->moves == NULL || mdb_txn_begin(store->env, NULL, MDB_RDONLY, &txn) != 0) {
        job_free(job);
        return;
    }
    for (size_t i = 0; ok && i < group_spans(group) && job->moves_count < CLEAN_MAX && job->frames < CLEAN_MAX; i++) {
        const struct span *span = group_span(group, i);

        if (span->seq >= below)
            continue;
        job->moves[job->moves_count++] =
            (struct move){ .group = group->id, .first = span->first, .from_seq = span->seq, .to_seq = job->next_seq };
        ok = copy_span(store, txn, group, span, job);
    }
    mdb_txn_abort(txn);
    if (!ok || job->moves_count == 0) {
        job_free(job);
        return;
    }
    job->maintenance = true;
    store->maintaining = true;
    store->stats.frames_copied += job->frames;
    job_submit(job);
}

static void maintain(struct shoal_store *store)
{
    struct group *pinning;
    uint64_t oldest, total = store->durable_seq - store->log_first;

    if (store->maintaining || store->fatal || store->stopping)
        return;
    /* Looking at every group with entries costs; under load only when there may be something to trim. */
    if (store->pending != NULL && store->durable_seq - store->looked_seq < TRIM_MIN)
        return;
    store->looked_seq = store->durable_seq;
    oldest = oldest_live(store, &pinning);
    if (oldest - store->log_first >= TRIM_MIN) {
        trim(store, oldest);
        return;
    }
    /* A tenth of what is written may be copies. */
    if (pinning != NULL && total >= CLEAN_LOG_MIN && store->index.frames < total / 2 &&
        store->stats.frames_copied * 10 <= store->stats.frames + 10 * CLEAN_MAX)
        clean(store, pinning, store->log_first + total / 2);
}

/* ---- appending ---------------------------------------------------------------------------------- */

static enum shoal_err check_batch(struct shoal_store *store, const struct shoal_store_batch *batch,
                                  struct shoal_msg *msg)
{
    size_t bytes = batch->snapshot != NULL ? batch->snapshot->bytes.len : 0;

    if (store->fatal || store->stopping)
        return shoal_fail(msg, SHOAL_ERR_STALE, "%.200s takes nothing any more; the agent stops", store->dir);
    if (bytes > SHOAL_SNAPSHOT_BYTES_MAX)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "a snapshot of %zu bytes is larger than %u", bytes,
                          SHOAL_SNAPSHOT_BYTES_MAX);
    if (batch->hard != NULL && batch->hard->config.len > SHOAL_STORE_CONFIG_MAX)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "a configuration of %zu bytes is larger than %u",
                          batch->hard->config.len, SHOAL_STORE_CONFIG_MAX);
    for (size_t i = 0; i < batch->entries_count; i++) {
        if (batch->entries[i].bytes.len > SHOAL_ENTRY_BYTES_MAX)
            return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "an entry of %zu bytes is larger than %u",
                              batch->entries[i].bytes.len, SHOAL_ENTRY_BYTES_MAX);
        bytes += batch->entries[i].bytes.len;
    }
    /* What frees space is always taken: 40 % of the map is kept for it. */
    if (batch->entries_count > 0 && store->stats.used_bytes / SHOAL_STORE_FULL_PERCENT > store->map_bytes / 100) {
        store->stats.refused_full++;
        return shoal_fail(msg, SHOAL_ERR_FULL,
                          "%.200s: %llu of %llu MiB are in use; delete finished jobs, or start the agent with a larger "
                          "--store-map",
                          store->dir, (unsigned long long)(store->stats.used_bytes / SHOAL_MIB),
                          (unsigned long long)(store->map_bytes / SHOAL_MIB));
    }
    if (store->pending != NULL && store->pending_bytes + bytes > SHOAL_STORE_PENDING_BYTES_MAX) {
        store->stats.refused_full++;
        return shoal_fail(msg, SHOAL_ERR_FULL, "%.200s: %llu MiB wait for the disk; is it overloaded?", store->dir,
                          (unsigned long long)(store->pending_bytes / SHOAL_MIB));
    }
    return SHOAL_OK;
}

static enum shoal_err put_snapshot(struct store_job *job, struct shoal_job_id group,
                                   const struct shoal_store_snapshot *snapshot, struct snapshot_row *row)
{
    uint8_t key[SNAP_KEY_BYTES], end[SNAP_KEY_BYTES];
    enum shoal_err err;

    *row = (struct snapshot_row){ .index = snapshot->index,
                                  .term = snapshot->term,
                                  .generation = row->generation + 1,
                                  .bytes = (uint32_t)snapshot->bytes.len,
                                  .crc = shoal_crc32c(0, snapshot->bytes) };
    key_of_snap(group, 0, 0, key);
    key_of_snap(group, row->generation, 0, end);
    err = job_put(job, OP_SNAP_REMOVE, key, sizeof(key), shoal_view_of(end, sizeof(end)));
    for (size_t at = 0; err == SHOAL_OK && at < snapshot->bytes.len; at += SHOAL_STORE_VALUE_MAX) {
        size_t left = snapshot->bytes.len - at;

        key_of_snap(group, row->generation, (uint32_t)(at / SHOAL_STORE_VALUE_MAX), key);
        err = job_put(
            job, OP_SNAP, key, sizeof(key),
            shoal_view_of(snapshot->bytes.bytes + at, left < SHOAL_STORE_VALUE_MAX ? left : SHOAL_STORE_VALUE_MAX));
        job->frames++;
    }
    return err;
}

/* The entries' frames; their spans in the store's scratch. */
static enum shoal_err put_entries(struct store_job *job, const struct shoal_store_batch *batch, size_t *spans)
{
    struct shoal_store *store = job->store;
    uint8_t bytes[SHOAL_STORE_VALUE_MAX];
    enum shoal_err err = SHOAL_OK;

    *spans = 0;
    for (size_t i = 0; err == SHOAL_OK && i < batch->entries_count;) {
        const struct shoal_store_entry *entry = &batch->entries[i];
        struct span span = { .first = entry->index, .seq = job->next_seq, .count = 1, .frames = 1 };
        size_t taken = 1;

        if (entry->bytes.len <= FRAME_ENTRY_MAX) {
            size_t len = store_frame_encode_entries(batch->group, false, entry, batch->entries_count - i, job->next_seq,
                                                    bytes, &taken);

            err = job_put_frame(job, bytes, len);
            span.count = (uint32_t)taken;
        } else {
            span.frames = frame_parts(entry->bytes.len);
            for (uint32_t part = 0; err == SHOAL_OK && part < span.frames; part++)
                err = job_put_frame(
                    job, bytes,
                    store_frame_encode_part(batch->group, false, entry, part * FRAME_PART_MAX, job->next_seq, bytes));
        }
        store->scratch[(*spans)++] = span;
        i += taken;
    }
    return err;
}

static enum shoal_err scratch_reserve(struct shoal_store *store, size_t count)
{
    struct span *grown;

    if (count <= store->scratch_cap)
        return SHOAL_OK;
    grown = realloc(store->scratch, count * sizeof(*grown));
    if (grown == NULL)
        return SHOAL_ERR_FULL;
    store->scratch = grown;
    store->scratch_cap = count;
    return SHOAL_OK;
}

/* The row borrows the owner's bytes. */
static void hard_take(struct group *row, const struct shoal_store_hard *hard)
{
    row->term = hard->term;
    row->vote_node = hard->vote_node;
    row->vote_store = hard->vote_store;
    row->config_len = (uint16_t)hard->config.len;
    row->config = (uint8_t *)(uintptr_t)hard->config.bytes;
}

/* All of the batch in the job, `row` brought up to date; nothing of the index is changed. */
static enum shoal_err put_batch(struct store_job *job, const struct shoal_store_batch *batch, struct group *row,
                                size_t *spans)
{
    uint8_t bytes[SHOAL_STORE_VALUE_MAX];
    enum shoal_err err = SHOAL_OK;

    if (batch->snapshot != NULL)
        err = put_snapshot(job, batch->group, batch->snapshot, &row->snapshot);
    if (err == SHOAL_OK && batch->truncate_from > 0)
        err = job_put_frame(
            job, bytes,
            store_frame_encode_mark(FRAME_TRUNCATE, batch->group, batch->truncate_from, job->next_seq, bytes));
    if (err == SHOAL_OK)
        err = put_entries(job, batch, spans);
    if (batch->hard != NULL)
        hard_take(row, batch->hard);
    if (err == SHOAL_OK && (batch->hard != NULL || batch->snapshot != NULL)) {
        row->has_row = true;
        err = job_put(job, OP_HARD, batch->group.bytes, sizeof(batch->group.bytes),
                      shoal_view_of(bytes, store_hard_encode(row, bytes)));
    }
    return err;
}

static enum shoal_err put_remove(struct store_job *job, struct shoal_job_id group)
{
    uint8_t bytes[SHOAL_STORE_VALUE_MAX], key[SNAP_KEY_BYTES], end[SNAP_KEY_BYTES];
    enum shoal_err err;

    key_of_snap(group, 0, 0, key);
    key_of_snap(group, UINT64_MAX, UINT32_MAX, end);
    err = job_put_frame(job, bytes, store_frame_encode_mark(FRAME_REMOVE, group, 0, job->next_seq, bytes));
    if (err == SHOAL_OK)
        err = job_put(job, OP_HARD_REMOVE, group.bytes, sizeof(group.bytes), (struct shoal_view){ 0 });
    if (err == SHOAL_OK)
        err = job_put(job, OP_SNAP_REMOVE, key, sizeof(key), shoal_view_of(end, sizeof(end)));
    return err;
}

/* The index follows what the job will write. */
static void index_apply(struct shoal_store *store, struct group *group, const struct shoal_store_batch *batch,
                        const struct group *row, size_t spans)
{
    group->has_row = row->has_row;
    group->term = row->term;
    group->vote_node = row->vote_node;
    group->vote_store = row->vote_store;
    group->snapshot = row->snapshot;
    if (batch->snapshot != NULL)
        store_group_release(&store->index, group, batch->snapshot->index);
    if (batch->truncate_from > 0)
        store_group_truncate(&store->index, group, batch->truncate_from);
    SHOAL_ASSERT(batch->entries_count == 0 || batch->entries[0].index == store_group_last(group) + 1);
    for (size_t i = 0; i < spans; i++)
        store_group_append(&store->index, group, store->scratch[i]);
    store_group_trim(group);
}

static struct shoal_store_done result_of(const struct shoal_store_batch *batch)
{
    struct shoal_store_done result = { .group = batch->group, .token = batch->token };

    if (batch->entries_count > 0) {
        result.term = batch->entries[batch->entries_count - 1].term;
        result.index = batch->entries[batch->entries_count - 1].index;
    } else if (batch->snapshot != NULL) {
        result.term = batch->snapshot->term;
        result.index = batch->snapshot->index;
    } else if (batch->hard != NULL) {
        result.term = batch->hard->term;
    }
    return result;
}

static void assert_batch(const struct shoal_store_batch *batch)
{
    if (batch->remove)
        SHOAL_ASSERT(batch->snapshot == NULL && batch->truncate_from == 0 && batch->entries_count == 0 &&
                     batch->hard == NULL);
    for (size_t i = 0; i < batch->entries_count; i++) {
        SHOAL_ASSERT(batch->entries[i].index > 0 && batch->entries[i].term > 0);
        SHOAL_ASSERT(i == 0 || batch->entries[i].index == batch->entries[i - 1].index + 1);
    }
}

enum shoal_err shoal_store_append(struct shoal_store *store, const struct shoal_store_batch *batch,
                                  struct shoal_msg *msg)
{
    struct store_job *job;
    struct group *group = NULL, *row = NULL;
    size_t spans = 0;
    enum shoal_err err = check_batch(store, batch, msg);

    assert_batch(batch);
    if (err != SHOAL_OK)
        return err;
    job = job_create(store);
    err = job == NULL ? SHOAL_ERR_FULL : scratch_reserve(store, batch->entries_count);
    if (err == SHOAL_OK && batch->remove)
        err = put_remove(job, batch->group);
    if (err == SHOAL_OK && !batch->remove) {
        err = store_index_make(&store->index, batch->group, &group);
        if (err == SHOAL_OK)
            err = store_group_reserve(group, batch->entries_count);
        row = err == SHOAL_OK ? malloc(sizeof(*row)) : NULL;
        if (row != NULL) {
            *row = *group;
            err = put_batch(job, batch, row, &spans);
            if (err == SHOAL_OK && batch->hard != NULL) /* last: an error changes nothing */
                err = store_group_set_config(group, batch->hard->config);
        } else if (err == SHOAL_OK) {
            err = SHOAL_ERR_FULL;
        }
    }
    if (err != SHOAL_OK) {
        if (job != NULL)
            job_free(job);
        free(row);
        return shoal_fail(msg, err, "no memory for a write to the store");
    }
    if (batch->remove)
        store_index_remove(&store->index, batch->group);
    else
        index_apply(store, group, batch, row, spans);
    free(row);
    job->done = batch->done;
    job->arg = batch->arg;
    job->result = result_of(batch);
    job->frees = batch->remove || batch->snapshot != NULL || batch->truncate_from > 0;
    store->stats.batches++;
    job_submit(job);
    return SHOAL_OK;
}

uint64_t shoal_store_oldest_pending_ns(const struct shoal_store *store)
{
    return store->pending == NULL ? 0 : uv_hrtime() - store->pending->submitted_ns;
}

const struct shoal_store_stats *shoal_store_stats(struct shoal_store *store)
{
    store->stats.groups = store->index.groups;
    store->stats.entries = store->index.entries;
    store->stats.map_bytes = store->map_bytes;
    return &store->stats;
}

/* ---- opening ------------------------------------------------------------------------------------ */

static enum shoal_err fail_lmdb(struct shoal_store *store, int rc, const char *what, struct shoal_msg *msg)
{
    if (rc == MDB_CORRUPTED || rc == MDB_INVALID || rc == MDB_PAGE_NOTFOUND || rc == MDB_VERSION_MISMATCH)
        return shoal_fail(msg, SHOAL_ERR_MALFORMED,
                          "%.200s: %s: %s; this store is lost: leave the mesh with it and join with a "
                          "new data folder",
                          store->dir, what, mdb_strerror(rc));
    return shoal_fail(msg, SHOAL_ERR_STORAGE, "%.200s: %s: %s; is the disk full, or the folder not writable?",
                      store->dir, what, mdb_strerror(rc));
}

static enum shoal_err fail_damaged(struct shoal_store *store, const char *what, uint64_t seq, struct shoal_msg *msg)
{
    return shoal_fail(msg, SHOAL_ERR_MALFORMED,
                      "%.200s: %s (frame %llu) is damaged, or was written by a newer shoal; start that "
                      "version, or join with a new data folder",
                      store->dir, what, (unsigned long long)seq);
}

static enum shoal_err prefill(struct shoal_store *store, size_t bytes, struct shoal_msg *msg)
{
    char path[PATH_MAX];
    struct stat st;
    uint8_t *zeroes;
    off_t at;
    int fd;
    bool ok;

    if ((size_t)snprintf(path, sizeof(path), "%s/data.mdb", store->dir) >= sizeof(path))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "the data folder's path is too long");
    fd = open(path, O_WRONLY | O_CLOEXEC);
    zeroes = calloc(1, SHOAL_MIB);
    ok = fd >= 0 && zeroes != NULL && fstat(fd, &st) == 0;
    for (at = ok ? st.st_size : 0; ok && (size_t)at < bytes;) {
        size_t left = bytes - (size_t)at;
        ssize_t wrote = pwrite(fd, zeroes, left < SHOAL_MIB ? left : SHOAL_MIB, at);

        ok = wrote > 0 || (wrote < 0 && errno == EINTR);
        at += wrote > 0 ? wrote : 0;
    }
    ok = ok && fsync(fd) == 0;
    if (!ok)
        (void)shoal_fail(msg, SHOAL_ERR_STORAGE,
                         "%.200s: cannot reserve %zu MiB: %s; free space, or lower store.prefill_mib", store->dir,
                         bytes / SHOAL_MIB, strerror(errno));
    free(zeroes);
    if (fd >= 0)
        (void)close(fd);
    return ok ? SHOAL_OK : SHOAL_ERR_STORAGE;
}

/* Its version is older than what this one reads, or asks for a newer reader. */
static bool meta_is_foreign(MDB_val value, const char *dir, struct shoal_msg *msg)
{
    const uint8_t *head = value.mv_data;

    if (value.mv_size < FORMAT_HEADER_BYTES || head[0] != FORMAT_STORE ||
        (head[1] >= META_OLDEST && head[2] <= META_VERSION))
        return false;
    shoal_msg_set(
        msg,
        "%.200s is a store of version %u, and this version of shoal reads %u to %u; start the version of shoal "
        "in between on it first",
        dir, head[1], META_OLDEST, META_VERSION);
    return true;
}

static enum shoal_err meta_open(struct shoal_store *store, MDB_txn *txn, struct shoal_store_id id, bool *is_new,
                                struct shoal_msg *msg)
{
    uint8_t bytes[FORMAT_HEADER_BYTES + 16];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    MDB_val key = val_of("store", 5), value;
    struct shoal_reader r;
    struct shoal_store_id found;
    int rc = mdb_get(txn, store->meta, &key, &value);

    *is_new = rc == MDB_NOTFOUND;
    if (*is_new) {
        format_put_header(&w, FORMAT_STORE, META_VERSION, META_OLDEST);
        shoal_put_store_id(&w, id);
        value = val_of(bytes, w.len);
        rc = mdb_put(txn, store->meta, &key, &value, 0);
    }
    if (rc != 0)
        return fail_lmdb(store, rc, "cannot read whose store this is", msg);
    if (meta_is_foreign(value, store->dir, msg))
        return SHOAL_ERR_UNSUPPORTED;
    r = shoal_reader_init(shoal_view_of(value.mv_data, value.mv_size));
    (void)format_get_header(&r, FORMAT_STORE, META_VERSION);
    found = shoal_get_store_id(&r);
    if (!shoal_reader_done(&r))
        return fail_damaged(store, "the store's name", 0, msg);
    if (!shoal_store_id_equal(found, id))
        return shoal_fail(msg, SHOAL_ERR_MALFORMED,
                          "%.200s is the store of another data folder; put it back where it came from", store->dir);
    return SHOAL_OK;
}

static enum shoal_err scan_log(struct shoal_store *store, MDB_txn *txn, struct shoal_msg *msg)
{
    MDB_cursor *cursor;
    MDB_val key, value;
    enum shoal_err err = SHOAL_OK;
    uint64_t seq = 0;
    int rc = mdb_cursor_open(txn, store->log, &cursor);

    if (rc != 0)
        return fail_lmdb(store, rc, "cannot read the log", msg);
    store->log_first = 1;
    store->next_seq = 1;
    rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
    while (rc == 0 && err == SHOAL_OK) {
        struct frame frame;

        err = key.mv_size == 8 ? SHOAL_OK : SHOAL_ERR_MALFORMED;
        if (err == SHOAL_OK) {
            seq = seq_of_key(&key);
            err = store_frame_decode(seq, shoal_view_of(value.mv_data, value.mv_size), &frame);
        }
        if (err == SHOAL_OK)
            err = store_index_replay(&store->index, seq, &frame);
        if (store->next_seq == 1)
            store->log_first = seq;
        store->next_seq = seq + 1;
        rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    mdb_cursor_close(cursor);
    store->durable_seq = store->next_seq;
    if (err == SHOAL_ERR_FULL)
        return shoal_fail(msg, err, "no memory for the store's index");
    if (err != SHOAL_OK)
        return fail_damaged(store, "the log", seq, msg);
    return rc == MDB_NOTFOUND ? SHOAL_OK : fail_lmdb(store, rc, "cannot read the log", msg);
}

static enum shoal_err scan_hard(struct shoal_store *store, MDB_txn *txn, struct shoal_msg *msg)
{
    struct group *row = calloc(1, sizeof(*row));
    MDB_cursor *cursor;
    MDB_val key, value;
    enum shoal_err err = SHOAL_OK;
    int rc;

    if (row == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for the store's index");
    rc = mdb_cursor_open(txn, store->hard, &cursor);
    if (rc != 0) {
        free(row);
        return fail_lmdb(store, rc, "cannot read hard states", msg);
    }
    rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
    while (rc == 0 && err == SHOAL_OK) {
        struct group *group;

        err = store_hard_decode(shoal_view_of(value.mv_data, value.mv_size), row);
        if (err == SHOAL_OK && (key.mv_size != 10 || memcmp(key.mv_data, row->id.bytes, 10) != 0))
            err = SHOAL_ERR_MALFORMED;
        if (err == SHOAL_OK)
            err = store_index_make(&store->index, row->id, &group);
        if (err == SHOAL_OK) {
            const struct shoal_store_hard hard = { .term = row->term,
                                                   .vote_node = row->vote_node,
                                                   .vote_store = row->vote_store,
                                                   .config = shoal_view_of(row->config, row->config_len) };

            group->has_row = true;
            group->snapshot = row->snapshot;
            group->term = row->term;
            group->vote_node = row->vote_node;
            group->vote_store = row->vote_store;
            err = store_group_set_config(group, hard.config);
        }
        rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    mdb_cursor_close(cursor);
    free(row);
    if (err == SHOAL_ERR_FULL)
        return shoal_fail(msg, err, "no memory for the store's index");
    if (err != SHOAL_OK)
        return fail_damaged(store, "a hard state", 0, msg);
    return rc == MDB_NOTFOUND ? SHOAL_OK : fail_lmdb(store, rc, "cannot read hard states", msg);
}

static void ignore_entry(void *arg, struct shoal_job_id group, const struct shoal_store_entry *entry)
{
    (void)arg, (void)group, (void)entry;
}

/* `all`: those too that the owner would skip. */
static enum shoal_err replay_group(struct shoal_store *store, MDB_txn *txn, struct group *group,
                                   const struct shoal_store_replay *replay, bool all)
{
    struct reading reading = { .store = store,
                               .txn = txn,
                               .group = group->id,
                               .to = UINT64_MAX,
                               .bytes_left = SIZE_MAX,
                               .each = replay->on_entry != NULL ? replay->on_entry : ignore_entry,
                               .arg = replay->arg };
    struct shoal_store_hard hard = { .term = group->term,
                                     .vote_node = group->vote_node,
                                     .vote_store = group->vote_store,
                                     .config = shoal_view_of(group->config, group->config_len) };
    struct shoal_buf snapshot = { 0 };
    enum shoal_err err = SHOAL_OK;
    bool more = true;

    if (replay->on_group != NULL)
        replay->on_group(replay->arg, group->id, &hard);
    if (!all && replay->skips != NULL && replay->skips(replay->arg, group->id, hard.config))
        return SHOAL_OK;
    if (group->snapshot.generation > 0) {
        err = snapshot_read(store, txn, group, &snapshot);
        if (err == SHOAL_OK && replay->on_snapshot != NULL)
            replay->on_snapshot(replay->arg, group->id,
                                &(struct shoal_store_snapshot){ .index = group->snapshot.index,
                                                                .term = group->snapshot.term,
                                                                .bytes = shoal_buf_view(&snapshot) });
        shoal_buf_deinit(&snapshot);
    }
    for (size_t i = 0; err == SHOAL_OK && i < group_spans(group); i++)
        err = read_span(&reading, group_span(group, i), &more);
    shoal_buf_deinit(&reading.whole);
    return err;
}

enum shoal_err shoal_store_load(struct shoal_store *store, struct shoal_job_id group_id,
                                const struct shoal_store_replay *replay)
{
    struct group *group = store_index_find(&store->index, group_id);
    enum shoal_err err;
    MDB_txn *txn;

    if (group == NULL)
        return SHOAL_ERR_NOT_FOUND;
    if (mdb_txn_begin(store->env, NULL, MDB_RDONLY, &txn) != 0)
        return SHOAL_ERR_STORAGE;
    err = replay_group(store, txn, group, replay, true);
    mdb_txn_abort(txn);
    return err == SHOAL_OK || err == SHOAL_ERR_FULL ? err : SHOAL_ERR_STORAGE;
}

static enum shoal_err replay_all(struct shoal_store *store, MDB_txn *txn, const struct shoal_store_replay *replay,
                                 struct shoal_msg *msg)
{
    char name[SHOAL_JOB_ID_TEXT_BYTES];

    for (size_t i = 0; i < store->index.bucket_count; i++) {
        for (struct group *group = store->index.buckets[i]; group != NULL; group = group->next) {
            bool whole = store_group_settle(&store->index, group);

            store_group_trim(group);
            if (whole && replay_group(store, txn, group, replay, false) == SHOAL_OK)
                continue;
            shoal_job_id_text(group->id, name);
            return shoal_fail(msg, SHOAL_ERR_MALFORMED,
                              "%.200s: entries or the snapshot of %s are missing; join with a new data "
                              "folder",
                              store->dir, name);
        }
    }
    return SHOAL_OK;
}

static enum shoal_err tables_open(struct shoal_store *store, const struct shoal_store_options *options, bool *is_new,
                                  struct shoal_msg *msg)
{
    MDB_txn *txn;
    enum shoal_err err;
    int rc = mdb_txn_begin(store->env, NULL, 0, &txn);

    if (rc != 0)
        return fail_lmdb(store, rc, "cannot write", msg);
    rc = mdb_dbi_open(txn, "log", MDB_CREATE, &store->log);
    if (rc == 0)
        rc = mdb_dbi_open(txn, "hard", MDB_CREATE, &store->hard);
    if (rc == 0)
        rc = mdb_dbi_open(txn, "snap", MDB_CREATE, &store->snap);
    if (rc == 0)
        rc = mdb_dbi_open(txn, "meta", MDB_CREATE, &store->meta);
    err = rc == 0 ? meta_open(store, txn, options->store_id, is_new, msg)
                  : fail_lmdb(store, rc, "cannot open its tables", msg);
    if (err != SHOAL_OK) {
        mdb_txn_abort(txn);
        return err;
    }
    store->stats.used_bytes = used_pages(store, txn) * store->page_bytes;
    rc = mdb_txn_commit(txn);
    return rc == 0 ? SHOAL_OK : fail_lmdb(store, rc, "cannot write", msg);
}

static enum shoal_err env_open(struct shoal_store *store, struct shoal_msg *msg)
{
    MDB_stat stat;
    int rc;

    if (mkdir(store->dir, 0700) != 0 && errno != EEXIST)
        return shoal_fail(msg, SHOAL_ERR_STORAGE, "cannot make the folder %.200s: %s", store->dir, strerror(errno));
    rc = mdb_env_create(&store->env);
    if (rc != 0)
        return fail_lmdb(store, rc, "cannot open", msg);
    rc = mdb_env_set_mapsize(store->env, store->map_bytes);
    if (rc == 0)
        rc = mdb_env_set_maxdbs(store->env, 4);
    if (rc == 0)
        rc = env_open_private(store->env, store->dir, MDB_NOTLS);
    if (rc == 0)
        rc = mdb_env_stat(store->env, &stat);
    if (rc == 0)
        store->page_bytes = stat.ms_psize;
    return rc == 0 ? SHOAL_OK : fail_lmdb(store, rc, "cannot open", msg);
}

static void store_free(struct shoal_store *store)
{
    store_index_deinit(&store->index);
    if (store->env != NULL)
        mdb_env_close(store->env);
    free(store->scratch);
    free(store);
}

static enum shoal_err store_load(struct shoal_store *store, const struct shoal_store_options *options,
                                 struct shoal_msg *msg)
{
    bool is_new = false;
    MDB_txn *txn;
    enum shoal_err err = env_open(store, msg);
    int rc;

    if (err == SHOAL_OK)
        err = tables_open(store, options, &is_new, msg);
    if (err == SHOAL_OK && is_new)
        err = prefill(store, options->prefill_bytes == 0 ? PREFILL_DEFAULT : options->prefill_bytes, msg);
    if (err != SHOAL_OK)
        return err;
    rc = mdb_txn_begin(store->env, NULL, MDB_RDONLY, &txn);
    if (rc != 0)
        return fail_lmdb(store, rc, "cannot read", msg);
    err = scan_log(store, txn, msg);
    if (err == SHOAL_OK)
        err = scan_hard(store, txn, msg);
    if (err == SHOAL_OK)
        err = replay_all(store, txn, &options->replay, msg);
    mdb_txn_abort(txn);
    return err;
}

enum shoal_err shoal_store_open(struct shoal_store **store, const struct shoal_store_options *options,
                                struct shoal_msg *msg)
{
    struct shoal_store *made;
    enum shoal_err err;

    if (strlen(options->dir) >= sizeof(made->dir) - 32)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "the data folder's path is too long");
    made = calloc(1, sizeof(*made));
    if (made == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for the store");
    memcpy(made->dir, options->dir, strlen(options->dir));
    made->map_bytes = options->map_bytes == 0 ? MAP_DEFAULT : options->map_bytes;
    made->pending_end = &made->pending;
    made->on_fatal = options->on_fatal;
    made->fatal_arg = options->fatal_arg;
    err = store_load(made, options, msg);
    if (err == SHOAL_OK) {
        err = writer_create(&made->writer, options->loop, run_jobs, made);
        if (err != SHOAL_OK)
            (void)shoal_fail(msg, err, "no thread for the store");
    }
    if (err != SHOAL_OK) {
        store_free(made);
        return err;
    }
    *store = made;
    return SHOAL_OK;
}

static void on_writer_stopped(void *arg)
{
    struct shoal_store *store = arg;
    void (*stopped)(void *arg) = store->stopped;
    void *stopped_arg = store->stopped_arg;

    SHOAL_ASSERT(store->pending == NULL);
    store_free(store);
    if (stopped != NULL)
        stopped(stopped_arg);
}

void shoal_store_stop(struct shoal_store *store, void (*stopped)(void *arg), void *arg)
{
    SHOAL_ASSERT(!store->stopping);
    store->stopping = true;
    store->stopped = stopped;
    store->stopped_arg = arg;
    writer_stop(store->writer, on_writer_stopped, store);
}
