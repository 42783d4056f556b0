/* The table of the index of jobs: an LMDB environment of its own, without flushes.
 *
 *   rows     job id (10 bytes, big endian: sorted by time) -> value
 *   active   job id of a value that was put as active -> nothing
 *
 * A walk merges two sorted lists: what is in memory, and a cursor. Of an id that both have, memory's value counts. */
#include "env_lmdb.h"
#include "index_table.h"

#include <errno.h>
#include <limits.h>
#include <lmdb.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/banned.h"

/* Address space, not disk: 20 million rows of 800 bytes. */
#define MAP_BYTES (16ull * 1024 * SHOAL_MIB)
#define READERS_MAX 64

struct index_table {
    MDB_env *env;
    MDB_dbi rows, active;
};

static MDB_val key_of(const struct shoal_job_id *id)
{
    MDB_val val = { .mv_size = sizeof(id->bytes) };
    const uint8_t *bytes = id->bytes;

    memcpy(&val.mv_data, &bytes, sizeof(bytes)); /* LMDB's keys are not const, and not written to */
    return val;
}

static enum shoal_err err_of(int rc)
{
    if (rc == 0)
        return SHOAL_OK;
    if (rc == MDB_NOTFOUND)
        return SHOAL_ERR_NOT_FOUND;
    return rc == MDB_MAP_FULL || rc == ENOSPC ? SHOAL_ERR_FULL : SHOAL_ERR_STORAGE;
}

static int env_open(struct index_table *table, const char *dir)
{
    MDB_txn *txn = NULL;
    int rc = mdb_env_create(&table->env);

    if (rc != 0)
        return rc;
    rc = mdb_env_set_mapsize(table->env, MAP_BYTES);
    if (rc == 0)
        rc = mdb_env_set_maxdbs(table->env, 2);
    if (rc == 0)
        rc = mdb_env_set_maxreaders(table->env, READERS_MAX);
    if (rc == 0)
        rc = env_open_private(table->env, dir, MDB_NOSYNC | MDB_NOTLS);
    if (rc == 0)
        rc = mdb_txn_begin(table->env, NULL, 0, &txn);
    if (rc == 0)
        rc = mdb_dbi_open(txn, "rows", MDB_CREATE, &table->rows);
    if (rc == 0)
        rc = mdb_dbi_open(txn, "active", MDB_CREATE, &table->active);
    if (rc == 0)
        return mdb_txn_commit(txn);
    if (txn != NULL)
        mdb_txn_abort(txn);
    return rc;
}

enum shoal_err index_table_open(struct index_table **table, const char *dir, struct shoal_msg *msg)
{
    static const char *const names[] = { "data.mdb", "lock.mdb" };
    struct index_table *made;
    char path[PATH_MAX];
    int rc;

    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return shoal_fail(msg, SHOAL_ERR_STORAGE, "cannot make the folder %.200s: %s", dir, strerror(errno));
    for (unsigned i = 0; i < 2; i++)
        if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, names[i]) < sizeof(path))
            (void)unlink(path);
    made = calloc(1, sizeof(*made));
    if (made == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for the index of jobs");
    rc = env_open(made, dir);
    if (rc != 0) {
        index_table_close(made);
        return shoal_fail(msg, SHOAL_ERR_STORAGE, "%.200s: cannot open the index of jobs: %s", dir, mdb_strerror(rc));
    }
    *table = made;
    return SHOAL_OK;
}

void index_table_close(struct index_table *table)
{
    if (table == NULL)
        return;
    if (table->env != NULL)
        mdb_env_close(table->env);
    free(table);
}

static int write_one(struct index_table *table, MDB_txn *txn, const struct index_row *row)
{
    MDB_val key = key_of(&row->id);
    MDB_val value = { .mv_size = row->len };
    const uint8_t *bytes = row->bytes;
    MDB_val nothing = { 0 };
    int rc;

    memcpy(&value.mv_data, &bytes, sizeof(bytes));
    rc = row->len == 0 ? mdb_del(txn, table->rows, &key, NULL) : mdb_put(txn, table->rows, &key, &value, 0);
    if (rc != 0 && rc != MDB_NOTFOUND)
        return rc;
    rc = row->len == 0 || !row->active ? mdb_del(txn, table->active, &key, NULL)
                                       : mdb_put(txn, table->active, &key, &nothing, 0);
    return rc == MDB_NOTFOUND ? 0 : rc;
}

enum shoal_err index_table_write(struct index_table *table, struct index_row *const *rows, size_t count)
{
    MDB_txn *txn;
    int rc = mdb_txn_begin(table->env, NULL, 0, &txn);

    if (rc != 0)
        return err_of(rc);
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = write_one(table, txn, rows[i]);
    if (rc == 0)
        return err_of(mdb_txn_commit(txn));
    mdb_txn_abort(txn);
    return err_of(rc);
}

enum shoal_err index_table_get(struct index_table *table, struct shoal_job_id id, struct shoal_buf *value)
{
    MDB_val key = key_of(&id), found;
    enum shoal_err err;
    MDB_txn *txn;
    int rc = mdb_txn_begin(table->env, NULL, MDB_RDONLY, &txn);

    if (rc != 0)
        return err_of(rc);
    rc = mdb_get(txn, table->rows, &key, &found);
    err = rc == 0 ? shoal_buf_append(value, found.mv_data, found.mv_size) : err_of(rc);
    mdb_txn_abort(txn);
    return err;
}

/* ---- Walking ---- */

struct walk {
    const struct shoal_index_scan *scan;
    MDB_txn *txn;
    MDB_dbi rows;
    MDB_cursor *cursor;
    bool by_active; /* the cursor's values are in `rows` */
    int rc;         /* 0: `key` and `value` are the cursor's */
    MDB_val key, value;
    struct index_row *const *newest;
    size_t at, count; /* of `newest`, in the direction of the walk */
};

static bool in_range(const struct shoal_index_scan *scan, struct shoal_job_id id)
{
    return shoal_job_id_cmp(id, scan->low) >= 0 && shoal_job_id_cmp(id, scan->high) <= 0;
}

static struct shoal_job_id id_of(MDB_val key)
{
    struct shoal_job_id id = { { 0 } };

    memcpy(id.bytes, key.mv_data, key.mv_size < sizeof(id.bytes) ? key.mv_size : sizeof(id.bytes));
    return id;
}

static void cursor_first(struct walk *walk)
{
    const struct shoal_index_scan *scan = walk->scan;

    walk->key = key_of(scan->descending ? &scan->high : &scan->low);
    walk->rc = mdb_cursor_get(walk->cursor, &walk->key, &walk->value, MDB_SET_RANGE);
    if (!scan->descending)
        return;
    if (walk->rc == MDB_NOTFOUND) /* all ids are lower */
        walk->rc = mdb_cursor_get(walk->cursor, &walk->key, &walk->value, MDB_LAST);
    else if (walk->rc == 0 && shoal_job_id_cmp(id_of(walk->key), scan->high) > 0)
        walk->rc = mdb_cursor_get(walk->cursor, &walk->key, &walk->value, MDB_PREV);
}

static void cursor_next(struct walk *walk)
{
    walk->rc = mdb_cursor_get(walk->cursor, &walk->key, &walk->value, walk->scan->descending ? MDB_PREV : MDB_NEXT);
}

static const struct index_row *newest_at(const struct walk *walk)
{
    if (walk->at == walk->count)
        return NULL;
    return walk->newest[walk->scan->descending ? walk->count - 1 - walk->at : walk->at];
}

static bool visit_newest(const struct walk *walk, const struct index_row *row)
{
    if (row->len == 0 || (walk->scan->active_only && !row->active) || !in_range(walk->scan, row->id))
        return true;
    return walk->scan->visit(walk->scan->arg, row->id, shoal_view_of(row->bytes, row->len));
}

static bool visit_stored(struct walk *walk, struct shoal_job_id id)
{
    MDB_val value = walk->value;
    MDB_val key = walk->key;

    if (walk->by_active && mdb_get(walk->txn, walk->rows, &key, &value) != 0)
        return true;
    return walk->scan->visit(walk->scan->arg, id, shoal_view_of(value.mv_data, value.mv_size));
}

/* One id. False: the walk is over. */
static bool walk_one(struct walk *walk)
{
    const struct index_row *row = newest_at(walk);
    struct shoal_job_id id = { { 0 } };
    bool stored = walk->rc == 0;
    int order = -1; /* what stands first: below 0 the table's */

    if (stored) {
        id = id_of(walk->key);
        stored = in_range(walk->scan, id);
    }
    if (row == NULL && !stored)
        return false;
    if (row != NULL && !stored)
        order = 1;
    else if (row != NULL)
        order = walk->scan->descending ? shoal_job_id_cmp(row->id, id) : shoal_job_id_cmp(id, row->id);
    if (order < 0) {
        bool more = visit_stored(walk, id);

        cursor_next(walk);
        return more;
    }
    walk->at++;
    if (order == 0) /* memory's value counts */
        cursor_next(walk);
    return visit_newest(walk, row);
}

enum shoal_err index_table_walk(struct index_table *table, const struct shoal_index_scan *scan,
                                struct index_row *const *newest, size_t count)
{
    struct walk walk = {
        .scan = scan, .rows = table->rows, .by_active = scan->active_only, .newest = newest, .count = count
    };
    int rc = mdb_txn_begin(table->env, NULL, MDB_RDONLY, &walk.txn);

    if (rc != 0)
        return err_of(rc);
    rc = mdb_cursor_open(walk.txn, scan->active_only ? table->active : table->rows, &walk.cursor);
    if (rc == 0) {
        cursor_first(&walk);
        while (walk_one(&walk))
            ;
        if (walk.rc != 0 && walk.rc != MDB_NOTFOUND)
            rc = walk.rc;
        mdb_cursor_close(walk.cursor);
    }
    mdb_txn_abort(walk.txn);
    return err_of(rc);
}
