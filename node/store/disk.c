#include "shoal/disk.h"

#include "shoal/below.h"
#include "shoal/hash.h"
#include "shoal/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/banned.h"

enum shoal_err shoal_disk_fail(struct shoal_msg *msg, const char *what, const char *path)
{
    int error = errno;

    if (error == ENOSPC || error == EDQUOT)
        return shoal_fail(msg, SHOAL_ERR_FULL,
                          "cannot %s %.250s: no space left; free space on that disk, or remove finished jobs", what,
                          path);
    return shoal_fail(msg, SHOAL_ERR_STORAGE, "cannot %s %.250s: %s; %s", what, path, strerror(error),
                      shoal_disk_remedy(error));
}

bool shoal_disk_write(int fd, struct shoal_view view)
{
    while (view.len > 0) {
        ssize_t wrote = write(fd, view.bytes, view.len);

        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return false;
        view.bytes += wrote;
        view.len -= (size_t)wrote;
    }
    return true;
}

static bool flush_folder_at(int dir, const char *path)
{
    int fd = openat(dir, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = fd >= 0 && fsync(fd) == 0;

    if (fd >= 0)
        (void)close(fd);
    return ok;
}

bool shoal_disk_flush_folder(const char *path) { return flush_folder_at(AT_FDCWD, path); }

/* The folder that holds `path`; "." for a bare name. */
static void folder_of(const char *path, char folder[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    size_t len = slash == NULL || slash == path ? 1 : (size_t)(slash - path);

    memcpy(folder, slash == NULL ? "." : path, len);
    folder[len] = '\0';
}

/* Or a link to one: what lies above the agent's own folders is not ours. Else errno says why not. */
static bool is_folder(const char *path)
{
    struct stat facts;
    bool there = stat(path, &facts) == 0;

    if (there && !S_ISDIR(facts.st_mode))
        errno = ENOTDIR;
    return there && S_ISDIR(facts.st_mode);
}

enum shoal_err shoal_disk_folders(const char *path, unsigned mode, struct shoal_msg *msg)
{
    char part[PATH_MAX], above[PATH_MAX], deepest[PATH_MAX] = "";
    size_t len = strlen(path);

    if (len == 0 || len >= sizeof(part))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "the path %.100s... is too long; use a shorter data folder", path);
    if (is_folder(path))
        return SHOAL_OK;
    for (size_t i = 1; i <= len; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, (mode_t)mode) != 0) {
            if (errno != EEXIST || !is_folder(part))
                return shoal_disk_fail(msg, "make the folder", part);
            folder_of(part, deepest);
            continue;
        }
        /* Whoever made the one that is there may have died before its flush, or is about to flush it. One that we may
         * not read is not ours. */
        if (deepest[0] != '\0' && !shoal_disk_flush_folder(deepest) && errno != EACCES)
            return shoal_disk_fail(msg, "flush", deepest);
        deepest[0] = '\0';
        folder_of(part, above);
        if (!shoal_disk_flush_folder(above))
            return shoal_disk_fail(msg, "flush", above);
    }
    return SHOAL_OK;
}

struct commit {
    int dir, fd;
    const char *part, *name;
    char folder[PATH_MAX];
};

static bool commit_step(void *arg, enum shoal_disk_step step)
{
    struct commit *commit = arg;

    switch (step) {
    case SHOAL_DISK_FLUSH: return fsync(commit->fd) == 0;
    case SHOAL_DISK_RENAME: return renameat(commit->dir, commit->part, commit->dir, commit->name) == 0;
    case SHOAL_DISK_FLUSH_FOLDER:
        folder_of(commit->name, commit->folder);
        return flush_folder_at(commit->dir, commit->folder);
    case SHOAL_DISK_DONE: break;
    }
    return true;
}

enum shoal_err shoal_disk_commit(int dir, int fd, const char *part, const char *name, struct shoal_msg *msg)
{
    struct commit commit = { .dir = dir, .fd = fd, .part = part, .name = name };

    SHOAL_ASSERT(strlen(name) < PATH_MAX); /* the file was opened by a longer one */
    switch (shoal_disk_order(commit_step, &commit)) {
    case SHOAL_DISK_DONE: break;
    case SHOAL_DISK_FLUSH: return shoal_disk_fail(msg, "flush", part);
    case SHOAL_DISK_RENAME: return shoal_disk_fail(msg, "rename to", name);
    case SHOAL_DISK_FLUSH_FOLDER: return shoal_disk_fail(msg, "flush", commit.folder);
    }
    return SHOAL_OK;
}

enum shoal_err shoal_disk_replace(const char *path, struct shoal_view view, unsigned mode, struct shoal_msg *msg)
{
    char part[PATH_MAX];
    enum shoal_err err;
    int fd;

    if ((size_t)snprintf(part, sizeof(part), "%s.part", path) >= sizeof(part))
        return shoal_fail(msg, SHOAL_ERR_STORAGE, "the path %.100s... is too long; use a shorter data folder", path);
    (void)unlink(part); /* left by a crash: its mode could be another */
    fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0)
        return shoal_disk_fail(msg, "create", part);
    if (fchmod(fd, mode) == 0 && shoal_disk_write(fd, view))
        err = shoal_disk_commit(AT_FDCWD, fd, part, path, msg);
    else
        err = shoal_disk_fail(msg, "write", part);
    (void)close(fd);
    if (err != SHOAL_OK)
        (void)unlink(part); /* D3 */
    return err;
}

/* The file's bytes to its end; `fd` is the caller's. */
static enum shoal_err read_all(int fd, const char *path, size_t max_bytes, struct shoal_buf *buf, struct shoal_msg *msg)
{
    struct shoal_buf whole = { 0 };
    enum shoal_err err = SHOAL_OK;

    while (err == SHOAL_OK) {
        ssize_t got;

        err = shoal_buf_reserve(&whole, 4096);
        if (err != SHOAL_OK) {
            err = shoal_fail(msg, err, "no memory to read %s", path);
            break;
        }
        got = read(fd, whole.bytes + whole.len, whole.cap - whole.len);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            err = shoal_disk_fail(msg, "read", path);
        if (got <= 0)
            break;
        whole.len += (size_t)got;
        if (whole.len > max_bytes)
            err = shoal_fail(msg, SHOAL_ERR_TOO_BIG, "%s is larger than %zu bytes", path, max_bytes);
    }
    if (err != SHOAL_OK) {
        shoal_buf_deinit(&whole);
        return err;
    }
    *buf = whole;
    return SHOAL_OK;
}

/* The descriptor is taken; below 0: errno says why there is none. */
static enum shoal_err read_opened(int fd, const char *path, size_t max_bytes, struct shoal_buf *buf, struct shoal_msg *msg)
{
    enum shoal_err err;

    if (fd < 0 && errno == ENOENT)
        return shoal_fail(msg, SHOAL_ERR_NOT_FOUND, "there is no %s", path);
    if (fd < 0)
        return shoal_disk_fail(msg, "open", path);
    err = read_all(fd, path, max_bytes, buf, msg);
    (void)close(fd);
    return err;
}

enum shoal_err shoal_disk_read(const char *path, size_t max_bytes, struct shoal_buf *buf, struct shoal_msg *msg)
{
    return read_opened(open(path, O_RDONLY | O_CLOEXEC), path, max_bytes, buf, msg);
}

enum shoal_err shoal_disk_read_below(const char *folder, const char *name, size_t max_bytes, struct shoal_buf *buf,
                                     struct shoal_msg *msg)
{
    int fd = shoal_open_below(folder, name, O_RDONLY);
    struct stat facts;

    if (fd >= 0 && fstat(fd, &facts) == 0 && (uint64_t)facts.st_size > max_bytes) {
        (void)close(fd);
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "%s is larger than %zu bytes", name, max_bytes);
    }
    return read_opened(fd, name, max_bytes, buf, msg);
}

bool shoal_disk_digest(int fd, struct shoal_hash *hash, uint64_t *bytes)
{
    struct shoal_hash_stream stream;
    uint8_t block[64 * SHOAL_KIB];
    ssize_t got;

    shoal_hash_stream_init(&stream);
    *bytes = 0;
    while ((got = pread(fd, block, sizeof(block), (off_t)*bytes)) > 0) {
        shoal_hash_stream_append(&stream, shoal_view_of(block, (size_t)got));
        *bytes += (uint64_t)got;
        (void)sched_yield(); /* the loop has this thread's class, and is not to wait for a time slice */
    }
    *hash = shoal_hash_stream_finish(&stream);
    return got == 0;
}
