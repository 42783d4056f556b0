/* The rebuildable environment (store.h): LMDB without flushes. Whatever happens to the agent, the kernel still holds
 * the pages; when the host has rebooted, they may be in any order, so the folder is wiped. */
#include "shoal/store.h"

#include "node/format.h"
#include "env_lmdb.h"

#include <errno.h>
#include <limits.h>
#include <lmdb.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/banned.h"

#define MAP_DEFAULT (256ull * SHOAL_MIB)
#define BOOT_ID_MAX 64

struct shoal_cache {
    MDB_env *env;
    MDB_dbi tables[SHOAL_CACHE_TABLES];
};

static const char *const table_names[SHOAL_CACHE_TABLES] = {
    [SHOAL_CACHE_GOSSIP] = "gossip",
    [SHOAL_CACHE_SLOTS] = "slots",
    [SHOAL_CACHE_TICKETS] = "tickets",
    [SHOAL_CACHE_OTHER] = "other",
};

static MDB_val val_of(struct shoal_view view)
{
    MDB_val val = { .mv_size = view.len };
    memcpy(&val.mv_data, &view.bytes, sizeof(view.bytes)); /* LMDB's keys are not const, and not written to */
    return val;
}

static enum shoal_err err_of(int rc)
{
    switch (rc) {
    case 0: return SHOAL_OK;
    case MDB_NOTFOUND: return SHOAL_ERR_NOT_FOUND;
    case MDB_MAP_FULL: return SHOAL_ERR_FULL;
    case ENOSPC: return SHOAL_ERR_FULL;
    default: return SHOAL_ERR_STORAGE;
    }
}

/* 1: it is of this boot. 0: it is new or of another. Below 0: LMDB's or the system's error. */
static int check_boot(MDB_txn *txn, MDB_dbi table, const char *boot_id)
{
    struct shoal_view name = shoal_view_text("boot");
    MDB_val key = val_of(name), value;
    uint8_t bytes[FORMAT_HEADER_BYTES + 4 + BOOT_ID_MAX];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    int rc = mdb_get(txn, table, &key, &value);

    format_put_header(&w, FORMAT_CACHE, 1, 1);
    shoal_put_text(&w, boot_id);
    SHOAL_ASSERT(!w.failed);
    if (rc == 0)
        return shoal_view_equal(shoal_writer_view(&w), shoal_view_of(value.mv_data, value.mv_size)) ? 1 : 0;
    if (rc != MDB_NOTFOUND)
        return -1;
    value = val_of(shoal_writer_view(&w));
    return mdb_put(txn, table, &key, &value, 0) == 0 ? 1 : -1;
}

static bool env_open(struct shoal_cache *cache, const char *dir, const char *boot_id, size_t map_bytes)
{
    MDB_txn *txn;
    MDB_dbi meta;
    int rc = mdb_env_create(&cache->env);

    if (rc != 0)
        return false;
    rc = mdb_env_set_mapsize(cache->env, map_bytes == 0 ? MAP_DEFAULT : map_bytes);
    if (rc == 0)
        rc = mdb_env_set_maxdbs(cache->env, SHOAL_CACHE_TABLES + 1);
    if (rc == 0)
        rc = env_open_private(cache->env, dir, MDB_NOSYNC | MDB_NOTLS);
    if (rc == 0)
        rc = mdb_txn_begin(cache->env, NULL, 0, &txn);
    if (rc != 0)
        goto close_env;
    rc = mdb_dbi_open(txn, "meta", MDB_CREATE, &meta);
    for (unsigned i = 0; rc == 0 && i < SHOAL_CACHE_TABLES; i++)
        rc = mdb_dbi_open(txn, table_names[i], MDB_CREATE, &cache->tables[i]);
    if (rc == 0 && check_boot(txn, meta, boot_id) != 1)
        rc = MDB_INVALID;
    if (rc != 0) {
        mdb_txn_abort(txn);
        goto close_env;
    }
    rc = mdb_txn_commit(txn);
    if (rc == 0)
        return true;
close_env:
    mdb_env_close(cache->env);
    cache->env = NULL;
    return false;
}

static void wipe(const char *dir)
{
    static const char *const names[] = { "data.mdb", "lock.mdb" };
    char path[PATH_MAX];

    for (unsigned i = 0; i < 2; i++)
        if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, names[i]) < sizeof(path))
            (void)unlink(path); /* what stays is refused by the next open */
}

enum shoal_err shoal_cache_open(struct shoal_cache **cache, const char *dir, const char *boot_id, size_t map_bytes,
                                struct shoal_msg *msg)
{
    struct shoal_cache *made;
    struct stat st;
    char path[PATH_MAX];
    bool was_there;

    if (strlen(boot_id) > BOOT_ID_MAX || (size_t)snprintf(path, sizeof(path), "%s/data.mdb", dir) >= sizeof(path))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "the cache folder's path, or the boot id, is too long");
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return shoal_fail(msg, SHOAL_ERR_STORAGE, "cannot make the folder %.200s: %s", dir, strerror(errno));
    made = calloc(1, sizeof(*made));
    if (made == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for the cache");
    was_there = stat(path, &st) == 0;
    if (!env_open(made, dir, boot_id, map_bytes)) {
        wipe(dir);
        if (!env_open(made, dir, boot_id, map_bytes)) {
            free(made);
            return shoal_fail(msg, SHOAL_ERR_STORAGE,
                              "%.200s: cannot open the cache; is the disk full, or the folder not "
                              "writable?",
                              dir);
        }
        if (was_there)
            (void)shoal_fail(msg, SHOAL_OK, "%.200s: the cache was of another boot, or damaged, and starts empty", dir);
    }
    *cache = made;
    return SHOAL_OK;
}

void shoal_cache_close(struct shoal_cache *cache)
{
    if (cache == NULL)
        return;
    mdb_env_close(cache->env);
    free(cache);
}

enum shoal_err shoal_cache_put(struct shoal_cache *cache, enum shoal_cache_table table, struct shoal_view key_view,
                               struct shoal_view value_view)
{
    MDB_val key = val_of(key_view), value = val_of(value_view);
    MDB_txn *txn;
    int rc;

    if (key_view.len == 0)
        return SHOAL_ERR_INVALID;
    if (key_view.len > SHOAL_CACHE_KEY_MAX || value_view.len > SHOAL_CACHE_VALUE_MAX)
        return SHOAL_ERR_TOO_BIG;
    rc = mdb_txn_begin(cache->env, NULL, 0, &txn);
    if (rc != 0)
        return err_of(rc);
    rc = mdb_put(txn, cache->tables[table], &key, &value, 0);
    if (rc == 0)
        return err_of(mdb_txn_commit(txn));
    mdb_txn_abort(txn);
    return err_of(rc);
}

enum shoal_err shoal_cache_get(struct shoal_cache *cache, enum shoal_cache_table table, struct shoal_view key_view,
                               struct shoal_buf *buf)
{
    MDB_val key = val_of(key_view), value;
    enum shoal_err err;
    MDB_txn *txn;
    int rc;

    if (key_view.len == 0 || key_view.len > SHOAL_CACHE_KEY_MAX)
        return SHOAL_ERR_NOT_FOUND;
    rc = mdb_txn_begin(cache->env, NULL, MDB_RDONLY, &txn);
    if (rc != 0)
        return err_of(rc);
    rc = mdb_get(txn, cache->tables[table], &key, &value);
    err = rc == 0 ? shoal_buf_append(buf, value.mv_data, value.mv_size) : err_of(rc);
    mdb_txn_abort(txn);
    return err;
}

enum shoal_err shoal_cache_remove(struct shoal_cache *cache, enum shoal_cache_table table, struct shoal_view key_view)
{
    MDB_val key = val_of(key_view);
    MDB_txn *txn;
    int rc;

    if (key_view.len == 0 || key_view.len > SHOAL_CACHE_KEY_MAX)
        return SHOAL_ERR_NOT_FOUND;
    rc = mdb_txn_begin(cache->env, NULL, 0, &txn);
    if (rc != 0)
        return err_of(rc);
    rc = mdb_del(txn, cache->tables[table], &key, NULL);
    if (rc == 0)
        return err_of(mdb_txn_commit(txn));
    mdb_txn_abort(txn);
    return err_of(rc);
}

enum shoal_err shoal_cache_each(struct shoal_cache *cache, enum shoal_cache_table table,
                                bool (*each)(void *arg, struct shoal_view key, struct shoal_view value), void *arg)
{
    MDB_cursor *cursor;
    MDB_val key, value;
    MDB_txn *txn;
    int rc = mdb_txn_begin(cache->env, NULL, MDB_RDONLY, &txn);

    if (rc != 0)
        return err_of(rc);
    rc = mdb_cursor_open(txn, cache->tables[table], &cursor);
    if (rc == 0) {
        rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
        while (rc == 0 &&
               each(arg, shoal_view_of(key.mv_data, key.mv_size), shoal_view_of(value.mv_data, value.mv_size)))
            rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
        mdb_cursor_close(cursor);
    }
    mdb_txn_abort(txn);
    return rc == MDB_NOTFOUND ? SHOAL_OK : err_of(rc);
}
