/* Entries and snapshots, read in a transaction that ends with the call (I5 of store_lmdb.c). */
#include "store_lmdb.h"

#include "shoal/hash.h"

#include "shoal/banned.h"

static enum shoal_err get_frame(struct shoal_store *store, MDB_txn *txn, uint64_t seq, struct frame *frame)
{
    uint8_t bytes[8];
    MDB_val key, value;

    store_key_of_seq(seq, bytes);
    key = store_val_of(bytes, sizeof(bytes));
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

/* False in `*more`: enough was passed on. */
enum shoal_err store_read_span(struct store_reading *reading, const struct span *span, bool *more)
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
                                size_t bytes_max, store_entry_fn *on_entry, void *arg, size_t *count)
{
    struct group *group = store_index_find(&store->index, group_id);
    struct store_reading reading = {
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
        err = store_read_span(&reading, span, &more);
        if (err != SHOAL_OK)
            break;
    }
    mdb_txn_abort(reading.txn);
    shoal_buf_deinit(&reading.whole);
    *count = reading.count;
    return err == SHOAL_OK ? SHOAL_OK : SHOAL_ERR_STORAGE;
}

enum shoal_err store_snapshot_read(struct shoal_store *store, MDB_txn *txn, const struct group *group,
                                   struct shoal_buf *buf)
{
    size_t start = buf->len;

    for (uint32_t piece = 0; buf->len - start < group->snapshot.bytes; piece++) {
        uint8_t bytes[SNAP_KEY_BYTES];
        MDB_val key = store_val_of(bytes, sizeof(bytes)), value;

        store_key_of_snap(group->id, group->snapshot.generation, piece, bytes);
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
    MDB_val key = store_val_of(group_id.bytes, sizeof(group_id.bytes)), value;
    enum shoal_err err = SHOAL_ERR_NOT_FOUND;
    size_t start = buf->len;
    int rc;

    if (mdb_txn_begin(store->env, NULL, MDB_RDONLY, &txn) != 0)
        return SHOAL_ERR_STORAGE;
    rc = mdb_get(txn, store->hard, &key, &value);
    if (rc == 0)
        err = store_hard_decode(shoal_view_of(value.mv_data, value.mv_size), &row);
    if (err == SHOAL_OK)
        err = row.snapshot.generation == 0 ? SHOAL_ERR_NOT_FOUND : store_snapshot_read(store, txn, &row, buf);
    mdb_txn_abort(txn);
    if (err != SHOAL_OK) {
        buf->len = start;
        return err == SHOAL_ERR_MALFORMED ? SHOAL_ERR_STORAGE : err;
    }
    *index = row.snapshot.index;
    *term = row.snapshot.term;
    return SHOAL_OK;
}
