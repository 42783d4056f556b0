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
#include "store_lmdb.h"

#include "shoal/hash.h"

#include "node/format.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/banned.h"

#define MAP_DEFAULT (8ull * 1024 * SHOAL_MIB)
#define PREFILL_DEFAULT (64ull * SHOAL_MIB)
#define META_VERSION 2 /* 2: what lies in entries and snapshots is of decision 0013; a store of version 1 is refused */
#define META_OLDEST 2

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
    MDB_val key = store_val_of("store", 5), value;
    struct shoal_reader r;
    struct shoal_store_id found;
    int rc = mdb_get(txn, store->meta, &key, &value);

    *is_new = rc == MDB_NOTFOUND;
    if (*is_new) {
        format_put_header(&w, FORMAT_STORE, META_VERSION, META_OLDEST);
        shoal_put_store_id(&w, id);
        value = store_val_of(bytes, w.len);
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
            seq = store_seq_of_key(&key);
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
    struct store_reading reading = { .store = store,
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
        err = store_snapshot_read(store, txn, group, &snapshot);
        if (err == SHOAL_OK && replay->on_snapshot != NULL)
            replay->on_snapshot(replay->arg, group->id,
                                &(struct shoal_store_snapshot){ .index = group->snapshot.index,
                                                                .term = group->snapshot.term,
                                                                .bytes = shoal_buf_view(&snapshot) });
        shoal_buf_deinit(&snapshot);
    }
    for (size_t i = 0; err == SHOAL_OK && i < group_spans(group); i++)
        err = store_read_span(&reading, group_span(group, i), &more);
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
    store->stats.used_bytes = store_used_pages(store, txn) * store->page_bytes;
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
        err = writer_create(&made->writer, options->loop, store_run_jobs, made);
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
