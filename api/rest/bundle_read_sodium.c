/* A canonical bundle, read back: found in, walked, checked, unpacked into a folder. It may come from a peer, so nothing in it
 * is believed. B2, B4 and the layout: bundle_archive.c, which makes such files. */
#include "bundle_file_sodium.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shoal/banned.h"

struct scan {
    int fd;
    uint64_t at;
    uint64_t end;
    uint32_t left;
    char last[BUNDLE_PATH_BYTES_MAX]; /* the previous path: they rise strictly */
    struct shoal_msg *msg;
};

struct scan_entry {
    char path[BUNDLE_PATH_BYTES_MAX];
    size_t path_len;
    uint32_t mode;
    uint64_t size;
    uint64_t offset;
};

static enum shoal_err bad_bundle(struct scan *scan, const char *why)
{
    return shoal_fail(scan->msg, SHOAL_ERR_MALFORMED, "the bundle is damaged: %s", why);
}

static enum shoal_err scan_start(struct scan *scan, int fd, struct shoal_msg *msg)
{
    uint8_t head[BUNDLE_HEAD_BYTES];
    struct stat status;
    enum shoal_err err;

    *scan = (struct scan){ .fd = fd, .at = BUNDLE_HEAD_BYTES, .msg = msg };
    if (fstat(fd, &status) != 0)
        return bundle_disk_error(msg, "a bundle");
    scan->end = (uint64_t)status.st_size;
    if (scan->end < BUNDLE_HEAD_BYTES)
        return bad_bundle(scan, "too short");
    err = bundle_read_all(fd, head, sizeof(head), 0, msg);
    if (err != SHOAL_OK)
        return err;
    if (memcmp(head, SHOAL_BUNDLE_MAGIC, 8) != 0 || bundle_get_le(head + 8, 4) != 1)
        return bad_bundle(scan, "not a bundle of version 1");
    scan->left = (uint32_t)bundle_get_le(head + 12, 4);
    return SHOAL_OK;
}

static bool path_is_canonical(const char *path, size_t len)
{
    unsigned depth = 0;

    if (len == 0 || strlen(path) != len)
        return false;
    while (true) {
        size_t piece = strcspn(path, "/");

        if (piece == 0 || piece > BUNDLE_COMPONENT_BYTES_MAX || (piece == 1 && path[0] == '.') ||
            (piece == 2 && path[0] == '.' && path[1] == '.') || ++depth > 64)
            return false;
        if (path[piece] == '\0')
            return true;
        path += piece + 1;
    }
}

static enum shoal_err scan_next(struct scan *scan, struct scan_entry *entry)
{
    uint8_t fields[12];
    enum shoal_err err;

    SHOAL_ASSERT(scan->left > 0);
    scan->left--;
    if (scan->end - scan->at < 14)
        return bad_bundle(scan, "cut short");
    err = bundle_read_all(scan->fd, fields, 2, scan->at, scan->msg);
    if (err != SHOAL_OK)
        return err;
    entry->path_len = (size_t)bundle_get_le(fields, 2);
    if (entry->path_len == 0 || entry->path_len >= BUNDLE_PATH_BYTES_MAX || entry->path_len + 14 > scan->end - scan->at)
        return bad_bundle(scan, "a path of a wrong length");
    err = bundle_read_all(scan->fd, (uint8_t *)entry->path, entry->path_len, scan->at + 2, scan->msg);
    if (err == SHOAL_OK)
        err = bundle_read_all(scan->fd, fields, 12, scan->at + 2 + entry->path_len, scan->msg);
    if (err != SHOAL_OK)
        return err;
    entry->path[entry->path_len] = '\0';
    entry->mode = (uint32_t)bundle_get_le(fields, 4);
    entry->size = bundle_get_le(fields + 4, 8);
    entry->offset = scan->at + 14 + entry->path_len;
    if (!path_is_canonical(entry->path, entry->path_len) || strcmp(entry->path, scan->last) <= 0)
        return bad_bundle(scan, "a path that is not allowed or out of order");
    if (entry->mode != 0644 && entry->mode != 0755 && entry->mode != (SHOAL_BUNDLE_DIR | 0755u))
        return bad_bundle(scan, "a mode that is not allowed");
    if (entry->size > scan->end - entry->offset || ((entry->mode & SHOAL_BUNDLE_DIR) != 0 && entry->size > 0))
        return bad_bundle(scan, "a size beyond its end");
    memcpy(scan->last, entry->path, entry->path_len + 1);
    scan->at = entry->offset + entry->size;
    if (scan->left == 0 && scan->at != scan->end)
        return bad_bundle(scan, "bytes after its end");
    return SHOAL_OK;
}

enum shoal_err shoal_bundle_find(int fd, const char *path, bool *found, struct shoal_msg *msg)
{
    struct scan scan;
    struct scan_entry entry;
    enum shoal_err err = scan_start(&scan, fd, msg);

    *found = false;
    while (err == SHOAL_OK && scan.left > 0 && !*found) {
        err = scan_next(&scan, &entry);
        *found = err == SHOAL_OK && (entry.mode & SHOAL_BUNDLE_DIR) == 0 && strcmp(entry.path, path) == 0;
    }
    return err;
}

enum shoal_err shoal_bundle_each(int fd, shoal_bundle_each_fn *each, void *arg, struct shoal_msg *msg)
{
    struct scan scan;
    struct scan_entry entry;
    enum shoal_err err = scan_start(&scan, fd, msg);

    while (err == SHOAL_OK && scan.left > 0) {
        err = scan_next(&scan, &entry);
        if (err == SHOAL_OK)
            err = each(arg, entry.path, (entry.mode & SHOAL_BUNDLE_DIR) != 0,
                       (struct shoal_bundle_place){ .offset = entry.offset, .bytes = entry.size });
    }
    return err;
}

/* Content of one entry: hashed, and written to `out` unless that is -1. */
static enum shoal_err pump(struct scan *scan, const struct scan_entry *entry, int out, struct bundle_entry *hashed,
                           uint8_t *block)
{
    crypto_generichash_state state;
    enum shoal_err err = SHOAL_OK;

    (void)crypto_generichash_init(&state, NULL, 0, sizeof(hashed->hash));
    for (uint64_t done = 0; done < entry->size && err == SHOAL_OK;) {
        size_t piece = entry->size - done < BUNDLE_BLOCK_BYTES ? (size_t)(entry->size - done) : BUNDLE_BLOCK_BYTES;

        err = bundle_read_all(scan->fd, block, piece, entry->offset + done, scan->msg);
        if (err == SHOAL_OK && out >= 0)
            err = bundle_write_all(out, block, piece, scan->msg);
        (void)crypto_generichash_update(&state, block, piece);
        done += piece;
    }
    (void)crypto_generichash_final(&state, hashed->hash, sizeof(hashed->hash));
    if ((entry->mode & SHOAL_BUNDLE_DIR) != 0)
        memset(hashed->hash, 0, sizeof(hashed->hash));
    return err;
}

/* One component below `parent`, never through a link. */
static int open_beneath(int parent, const char *name, uint64_t flags, uint64_t mode)
{
    struct open_how how = { .flags = flags | O_CLOEXEC | O_NOFOLLOW,
                            .mode = mode,
                            .resolve =
                                RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV };
    long fd = syscall(SYS_openat2, parent, name, &how, sizeof(how));

    /* Without the call (old kernels, strict filters): a single component with O_NOFOLLOW is as safe. */
    if (fd < 0 && (errno == ENOSYS || errno == EPERM))
        fd = openat(parent, name, (int)how.flags, (mode_t)mode);
    return (int)fd;
}

static int open_parent(int root, char *path, char **base)
{
    int at = fcntl(root, F_DUPFD_CLOEXEC, 0);
    char *slash;

    while (at >= 0 && (slash = strchr(path, '/')) != NULL) {
        int below;

        *slash = '\0';
        if (mkdirat(at, path, 0755) != 0 && errno != EEXIST)
            below = -1;
        else
            below = open_beneath(at, path, O_RDONLY | O_DIRECTORY, 0);
        (void)close(at);
        at = below;
        path = slash + 1;
    }
    *base = path;
    return at;
}

static enum shoal_err unpack_entry(struct scan *scan, int root, const struct scan_entry *entry,
                                   struct bundle_entry *hashed, uint8_t *block)
{
    static const struct timespec times[2] = { { .tv_sec = SHOAL_BUNDLE_MTIME_S }, { .tv_sec = SHOAL_BUNDLE_MTIME_S } };
    char path[BUNDLE_PATH_BYTES_MAX];
    char *base;
    int parent;
    int fd;
    enum shoal_err err;

    memcpy(path, entry->path, entry->path_len + 1);
    parent = open_parent(root, path, &base);
    if (parent < 0)
        return bundle_disk_error(scan->msg, entry->path);
    if ((entry->mode & SHOAL_BUNDLE_DIR) != 0) {
        bool ok = mkdirat(parent, base, 0755) == 0 || errno == EEXIST;

        err = ok ? SHOAL_OK : bundle_disk_error(scan->msg, entry->path);
        (void)close(parent);
        memset(hashed->hash, 0, sizeof(hashed->hash));
        return err;
    }
    fd = open_beneath(parent, base, O_WRONLY | O_CREAT | O_EXCL, 0600);
    (void)close(parent);
    if (fd < 0)
        return bundle_disk_error(scan->msg, entry->path);
    err = pump(scan, entry, fd, hashed, block);
    if ((fchmod(fd, entry->mode & 0777) != 0 || futimens(fd, times) != 0) && err == SHOAL_OK)
        err = bundle_disk_error(scan->msg, entry->path);
    if (close(fd) != 0 && err == SHOAL_OK)
        err = bundle_disk_error(scan->msg, entry->path);
    return err;
}

/* root -1: check only. */
static enum shoal_err walk_bundle(int fd, int root, struct shoal_bundle_info *info, struct shoal_msg *msg)
{
    struct scan scan;
    struct scan_entry entry = { 0 };
    crypto_generichash_state state;
    uint8_t *block = malloc(BUNDLE_BLOCK_BYTES);
    enum shoal_err err;

    *info = (struct shoal_bundle_info){ .entries = 0 };
    if (block == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "out of memory");
    bundle_hash_start(&state);
    err = scan_start(&scan, fd, msg);
    info->bundle_bytes = scan.end;
    if (err == SHOAL_OK && scan.left == 0 && scan.at != scan.end)
        err = bad_bundle(&scan, "bytes after its end");
    while (err == SHOAL_OK && scan.left > 0) {
        struct bundle_entry hashed;

        err = scan_next(&scan, &entry);
        if (err != SHOAL_OK)
            break;
        hashed = (struct bundle_entry){
            .path = entry.path, .path_len = entry.path_len, .mode = entry.mode, .size = entry.size
        };
        err = root >= 0 ? unpack_entry(&scan, root, &entry, &hashed, block) : pump(&scan, &entry, -1, &hashed, block);
        bundle_hash_entry(&state, &hashed);
        info->content_bytes += entry.size;
        info->entries++;
        (void)sched_yield(); /* the loop may have this thread's class, and a turn to take */
    }
    (void)crypto_generichash_final(&state, info->hash.bytes, sizeof(info->hash.bytes));
    free(block);
    return err;
}

enum shoal_err shoal_bundle_check(int fd, struct shoal_bundle_info *info, struct shoal_msg *msg)
{
    return walk_bundle(fd, -1, info, msg);
}

enum shoal_err shoal_bundle_unpack(int fd, const char *dir, struct shoal_bundle_info *info, struct shoal_msg *msg)
{
    int root = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum shoal_err err;

    if (root < 0)
        return bundle_disk_error(msg, dir);
    err = walk_bundle(fd, root, info, msg);
    (void)close(root);
    return err;
}
