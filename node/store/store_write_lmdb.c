/* Appends: a job's bytes are made on the loop's thread, written and flushed on the writer's (I1 to I3 of
 * store_lmdb.c). */
#include "store_lmdb.h"

#include "shoal/hash.h"

#include <errno.h>
#include <uv.h>

#include "shoal/banned.h"

uint64_t store_seq_of_key(const MDB_val *key)
{
    const uint8_t *bytes = key->mv_data;
    uint64_t seq = 0;

    for (unsigned i = 0; i < 8; i++)
        seq = seq << 8 | bytes[i];
    return seq;
}

void store_key_of_seq(uint64_t seq, uint8_t key[8])
{
    for (unsigned i = 0; i < 8; i++)
        key[i] = (uint8_t)(seq >> (56 - 8 * i));
}

void store_key_of_snap(struct shoal_job_id group, uint64_t generation, uint32_t piece, uint8_t key[SNAP_KEY_BYTES])
{
    memcpy(key, group.bytes, 10);
    store_key_of_seq(generation, key + 10);
    for (unsigned i = 0; i < 4; i++)
        key[18 + i] = (uint8_t)(piece >> (24 - 8 * i));
}

MDB_val store_val_of(const void *bytes, size_t len)
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
    MDB_val key = store_val_of(from.bytes, from.len), value;
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
    MDB_val key = store_val_of(key_view.bytes, key_view.len), val = store_val_of(value.bytes, value.len);
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

uint64_t store_used_pages(struct shoal_store *store, MDB_txn *txn)
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

struct writer_job *store_run_jobs(void *arg, struct writer_job *first)
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
        pages = store_used_pages(store, txn);
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
struct store_job *store_job_create(struct shoal_store *store)
{
    struct store_job *job = calloc(1, sizeof(*job));

    if (job != NULL) {
        job->store = store;
        job->job.done = job_done;
        job->next_seq = store->next_seq;
    }
    return job;
}

void store_job_free(struct store_job *job)
{
    shoal_buf_deinit(&job->ops);
    free(job->moves);
    free(job);
}

enum shoal_err store_job_put(struct store_job *job, enum op op, const void *key, size_t key_len,
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

enum shoal_err store_job_put_frame(struct store_job *job, const uint8_t *bytes, size_t len)
{
    uint8_t key[8];

    store_key_of_seq(job->next_seq++, key);
    job->frames++;
    return store_job_put(job, OP_LOG, key, sizeof(key), shoal_view_of(bytes, len));
}

void store_job_submit(struct store_job *job)
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
    store_job_free(job);
    if (failed) {
        bool first = !store->fatal;

        store->fatal = true;
        if (first && store->on_fatal != NULL)
            store->on_fatal(store->fatal_arg, store->failure);
        return;
    }
    if (tidy)
        store_maintain(store);
    if (callback != NULL)
        callback(arg, &result);
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
    /* A write that frees space is always taken: 40 % of the map is kept for it. */
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
    store_key_of_snap(group, 0, 0, key);
    store_key_of_snap(group, row->generation, 0, end);
    err = store_job_put(job, OP_SNAP_REMOVE, key, sizeof(key), shoal_view_of(end, sizeof(end)));
    for (size_t at = 0; err == SHOAL_OK && at < snapshot->bytes.len; at += SHOAL_STORE_VALUE_MAX) {
        size_t left = snapshot->bytes.len - at;

        store_key_of_snap(group, row->generation, (uint32_t)(at / SHOAL_STORE_VALUE_MAX), key);
        err = store_job_put(
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

            err = store_job_put_frame(job, bytes, len);
            span.count = (uint32_t)taken;
        } else {
            span.frames = frame_parts(entry->bytes.len);
            for (uint32_t part = 0; err == SHOAL_OK && part < span.frames; part++)
                err = store_job_put_frame(
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
        err = store_job_put_frame(
            job, bytes,
            store_frame_encode_mark(FRAME_TRUNCATE, batch->group, batch->truncate_from, job->next_seq, bytes));
    if (err == SHOAL_OK)
        err = put_entries(job, batch, spans);
    if (batch->hard != NULL)
        hard_take(row, batch->hard);
    if (err == SHOAL_OK && (batch->hard != NULL || batch->snapshot != NULL)) {
        row->has_row = true;
        err = store_job_put(job, OP_HARD, batch->group.bytes, sizeof(batch->group.bytes),
                            shoal_view_of(bytes, store_hard_encode(row, bytes)));
    }
    return err;
}

static enum shoal_err put_remove(struct store_job *job, struct shoal_job_id group)
{
    uint8_t bytes[SHOAL_STORE_VALUE_MAX], key[SNAP_KEY_BYTES], end[SNAP_KEY_BYTES];
    enum shoal_err err;

    store_key_of_snap(group, 0, 0, key);
    store_key_of_snap(group, UINT64_MAX, UINT32_MAX, end);
    err = store_job_put_frame(job, bytes, store_frame_encode_mark(FRAME_REMOVE, group, 0, job->next_seq, bytes));
    if (err == SHOAL_OK)
        err = store_job_put(job, OP_HARD_REMOVE, group.bytes, sizeof(group.bytes), (struct shoal_view){ 0 });
    if (err == SHOAL_OK)
        err = store_job_put(job, OP_SNAP_REMOVE, key, sizeof(key), shoal_view_of(end, sizeof(end)));
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
    job = store_job_create(store);
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
            store_job_free(job);
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
    store_job_submit(job);
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
