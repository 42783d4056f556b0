/* I1. A file under its hash's name is whole: shoal_disk_commit() gave it the name.
 * I2. What fails leaves nothing behind but files in part/, which is emptied at start. */
#include "blob_disk.h"

#include "shoal/disk.h"
#include "shoal/hash.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "shoal/banned.h"

static bool path_of(char path[PATH_MAX], const char *dir, const char *a, const char *b)
{
    return (size_t)snprintf(path, PATH_MAX, b == NULL ? "%s/%s" : "%s/%s/%s", dir, a, b) < PATH_MAX;
}

static bool chunk_path(char path[PATH_MAX], const char *dir, struct shoal_hash hash)
{
    char name[SHOAL_HASH_TEXT_BYTES];
    char folder[3];

    shoal_hex_text(hash.bytes, sizeof(hash.bytes), name);
    memcpy(folder, name, 2);
    folder[2] = '\0';
    return path_of(path, dir, folder, name);
}

/* The folder of the file at `path`, made and flushed if it is missing. */
static enum shoal_err folder_of(const char *dir, const char *path, char folder[PATH_MAX], struct shoal_msg *msg)
{
    size_t len = (size_t)(strrchr(path, '/') - path);

    memcpy(folder, path, len);
    folder[len] = '\0';
    if (mkdir(folder, 0700) == 0)
        return shoal_disk_flush_folder(dir) ? SHOAL_OK : shoal_disk_fail(msg, "flush", dir);
    return errno == EEXIST ? SHOAL_OK : shoal_disk_fail(msg, "make the folder", folder);
}

static enum shoal_err empty_folder(const char *path, struct shoal_msg *msg)
{
    DIR *folder = opendir(path);
    const struct dirent *entry;

    if (folder == NULL)
        return shoal_disk_fail(msg, "read", path);
    while ((entry = readdir(folder)) != NULL)
        if (entry->d_name[0] != '.')
            (void)unlinkat(dirfd(folder), entry->d_name, 0); /* what stays is in nobody's way */
    (void)closedir(folder);
    return SHOAL_OK;
}

enum shoal_err blob_disk_init(const char *dir, struct shoal_msg *msg)
{
    static const char *const names[] = { "held", "part", "damaged" };
    char path[PATH_MAX];

    if (strlen(dir) > PATH_MAX - 200)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "the data folder's path is too long");
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return shoal_disk_fail(msg, "make the folder", dir);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)path_of(path, dir, names[i], NULL);
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            return shoal_disk_fail(msg, "make the folder", path);
    }
    (void)path_of(path, dir, "part", NULL);
    return empty_folder(path, msg);
}

static enum shoal_err check_space(const char *dir, uint64_t bytes, uint64_t reserve, struct shoal_msg *msg)
{
    struct statvfs st;
    uint64_t free_bytes;

    if (statvfs(dir, &st) != 0)
        return shoal_disk_fail(msg, "look at the disk of", dir);
    free_bytes = (uint64_t)st.f_bavail * st.f_frsize;
    if (free_bytes >= bytes && free_bytes - bytes >= reserve)
        return SHOAL_OK;
    return shoal_fail(msg, SHOAL_ERR_FULL,
                      "%.250s: %llu MiB are free and %llu MiB are kept for the store; free space on that disk, "
                      "or remove finished jobs",
                      dir, (unsigned long long)(free_bytes / SHOAL_MIB), (unsigned long long)(reserve / SHOAL_MIB));
}

/* The file is there with these bytes, and will be after a power cut: who gave it its name may have died before that was
 * flushed. */
static bool is_whole(const char *path, struct shoal_view bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char folder[PATH_MAX];
    size_t len = (size_t)(strrchr(path, '/') - path);
    struct shoal_hash hash;
    uint64_t there = 0;
    bool whole;

    if (fd < 0)
        return false;
    memcpy(folder, path, len);
    folder[len] = '\0';
    whole = shoal_disk_digest(fd, &hash, &there) && there == bytes.len &&
            shoal_hash_equal(hash, shoal_hash_of(bytes)) && shoal_disk_flush_folder(folder);
    (void)close(fd);
    return whole;
}

enum shoal_err blob_disk_write(const char *dir, struct shoal_hash hash, struct shoal_view bytes, uint64_t reserve,
                               bool *shared, struct shoal_msg *msg)
{
    char path[PATH_MAX], folder[PATH_MAX], part[PATH_MAX], name[SHOAL_HASH_TEXT_BYTES];
    enum shoal_err err;
    int fd;

    (void)chunk_path(path, dir, hash); /* init has checked the length */
    *shared = is_whole(path, bytes);
    if (*shared)
        return SHOAL_OK;
    shoal_hex_text(hash.bytes, sizeof(hash.bytes), name);
    (void)path_of(part, dir, "part", name);
    err = check_space(dir, bytes.len, reserve, msg);
    if (err == SHOAL_OK)
        err = folder_of(dir, path, folder, msg);
    if (err != SHOAL_OK)
        return err;
    fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return shoal_disk_fail(msg, "create", part);
    if (shoal_disk_write(fd, bytes))
        err = shoal_disk_commit(AT_FDCWD, fd, part, path, msg);
    else
        err = shoal_disk_fail(msg, "write", part);
    (void)close(fd);
    if (err != SHOAL_OK) { /* whether it has its name already is not known */
        (void)unlink(part);
        (void)unlink(path);
    }
    return err;
}

enum shoal_err blob_disk_read(const char *dir, struct shoal_hash hash, struct shoal_buf *buf, struct shoal_msg *msg)
{
    char path[PATH_MAX], aside[PATH_MAX], name[SHOAL_HASH_TEXT_BYTES];
    size_t start = buf->len;
    enum shoal_err err = SHOAL_OK;
    int fd;

    (void)chunk_path(path, dir, hash);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return shoal_fail(msg, SHOAL_ERR_NOT_FOUND, "there is no %.250s", path);
    if (fd < 0)
        return shoal_disk_fail(msg, "open", path);
    while (err == SHOAL_OK && buf->len - start <= SHOAL_CHUNK_BYTES_MAX) {
        ssize_t got;

        err = shoal_buf_reserve(buf, 64 * SHOAL_KIB);
        if (err != SHOAL_OK)
            break;
        got = read(fd, buf->bytes + buf->len, buf->cap - buf->len);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            err = shoal_disk_fail(msg, "read", path);
        if (got <= 0)
            break;
        buf->len += (size_t)got;
    }
    (void)close(fd);
    if (err == SHOAL_OK && shoal_hash_equal(shoal_hash_of(shoal_view_of(buf->bytes + start, buf->len - start)), hash))
        return SHOAL_OK;
    buf->len = start;
    if (err != SHOAL_OK)
        return err;
    shoal_hex_text(hash.bytes, sizeof(hash.bytes), name);
    (void)path_of(aside, dir, "damaged", name);
    if (rename(path, aside) != 0)
        (void)unlink(path);
    return shoal_fail(msg, SHOAL_ERR_MALFORMED,
                      "%.250s no longer has the content of its name and is moved to damaged/; the disk "
                      "may be failing",
                      path);
}

void blob_disk_remove(const char *dir, struct shoal_hash hash)
{
    char path[PATH_MAX];

    (void)chunk_path(path, dir, hash);
    (void)unlink(path); /* what comes back after a crash is deleted at the next start */
}

static void hold_path(char path[PATH_MAX], const char *dir, struct shoal_job_id owner, struct shoal_hash blob)
{
    char folder[64], name[SHOAL_HASH_TEXT_BYTES], job[SHOAL_JOB_ID_TEXT_BYTES];

    shoal_job_id_text(owner, job);
    shoal_hex_text(blob.bytes, sizeof(blob.bytes), name);
    (void)snprintf(folder, sizeof(folder), "held/%s", job);
    (void)path_of(path, dir, folder, name);
}

enum shoal_err blob_disk_hold(const char *dir, struct shoal_job_id owner, struct shoal_hash blob, struct shoal_msg *msg)
{
    char path[PATH_MAX], folder[PATH_MAX], held[PATH_MAX];
    enum shoal_err err;
    int fd;

    hold_path(path, dir, owner, blob);
    (void)path_of(held, dir, "held", NULL);
    err = folder_of(held, path, folder, msg);
    if (err != SHOAL_OK)
        return err;
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return shoal_disk_fail(msg, "create", path);
    (void)close(fd);
    if (shoal_disk_flush_folder(folder))
        return SHOAL_OK;
    err = shoal_disk_fail(msg, "flush", folder);
    (void)unlink(path);
    return err;
}

enum shoal_err blob_disk_release(const char *dir, struct shoal_job_id owner, struct shoal_hash blob,
                                 struct shoal_msg *msg)
{
    char path[PATH_MAX], folder[PATH_MAX];
    size_t len;

    hold_path(path, dir, owner, blob);
    if (unlink(path) != 0 && errno != ENOENT)
        return shoal_disk_fail(msg, "remove", path);
    len = (size_t)(strrchr(path, '/') - path);
    memcpy(folder, path, len);
    folder[len] = '\0';
    if (rmdir(folder) != 0 && errno != ENOENT && !shoal_disk_flush_folder(folder))
        return shoal_disk_fail(msg, "flush", folder);
    return SHOAL_OK;
}

enum shoal_err blob_disk_release_all(const char *dir, struct shoal_job_id owner, struct shoal_msg *msg)
{
    char path[PATH_MAX], folder[64], job[SHOAL_JOB_ID_TEXT_BYTES];
    enum shoal_err err;

    shoal_job_id_text(owner, job);
    (void)snprintf(folder, sizeof(folder), "held/%s", job);
    (void)path_of(path, dir, folder, NULL);
    if (access(path, F_OK) != 0)
        return SHOAL_OK;
    err = empty_folder(path, msg);
    if (err != SHOAL_OK)
        return err;
    if (rmdir(path) != 0)
        return shoal_disk_fail(msg, "remove", path);
    (void)path_of(path, dir, "held", NULL);
    return shoal_disk_flush_folder(path) ? SHOAL_OK : shoal_disk_fail(msg, "flush", path);
}

static enum shoal_err each_chunk_of(const char *path,
                                    enum shoal_err (*each)(void *arg, struct shoal_hash hash, uint32_t bytes),
                                    void *arg, struct shoal_msg *msg)
{
    DIR *folder = opendir(path);
    const struct dirent *entry;
    enum shoal_err err = SHOAL_OK;

    if (folder == NULL)
        return errno == ENOENT ? SHOAL_OK : shoal_disk_fail(msg, "read", path);
    while (err == SHOAL_OK && (entry = readdir(folder)) != NULL) {
        struct shoal_hash hash;
        struct stat st;

        if (strlen(entry->d_name) != 64 || !shoal_hex_parse(entry->d_name, hash.bytes, sizeof(hash.bytes)))
            continue;
        if (fstatat(dirfd(folder), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
            err = each(arg, hash, (uint32_t)st.st_size);
    }
    (void)closedir(folder);
    return err;
}

enum shoal_err blob_disk_each_chunk(const char *dir,
                                    enum shoal_err (*each)(void *arg, struct shoal_hash hash, uint32_t bytes),
                                    void *arg, struct shoal_msg *msg)
{
    enum shoal_err err = SHOAL_OK;
    char path[PATH_MAX], name[3];

    for (unsigned i = 0; i < 256 && err == SHOAL_OK; i++) {
        uint8_t byte = (uint8_t)i;

        shoal_hex_text(&byte, 1, name);
        (void)path_of(path, dir, name, NULL);
        err = each_chunk_of(path, each, arg, msg);
    }
    return err;
}

static enum shoal_err each_hold_of(const char *path, struct shoal_job_id owner,
                                   enum shoal_err (*each)(void *arg, struct shoal_job_id owner, struct shoal_hash blob),
                                   void *arg, struct shoal_msg *msg)
{
    DIR *folder = opendir(path);
    const struct dirent *entry;
    enum shoal_err err = SHOAL_OK;

    if (folder == NULL)
        return shoal_disk_fail(msg, "read", path);
    while (err == SHOAL_OK && (entry = readdir(folder)) != NULL) {
        struct shoal_hash blob;

        if (strlen(entry->d_name) == 64 && shoal_hex_parse(entry->d_name, blob.bytes, sizeof(blob.bytes)))
            err = each(arg, owner, blob);
    }
    (void)closedir(folder);
    return err;
}

enum shoal_err blob_disk_each_hold(const char *dir,
                                   enum shoal_err (*each)(void *arg, struct shoal_job_id owner, struct shoal_hash blob),
                                   void *arg, struct shoal_msg *msg)
{
    char held[PATH_MAX], path[PATH_MAX];
    const struct dirent *entry;
    enum shoal_err err = SHOAL_OK;
    DIR *folder;

    (void)path_of(held, dir, "held", NULL);
    folder = opendir(held);
    if (folder == NULL)
        return shoal_disk_fail(msg, "read", held);
    while (err == SHOAL_OK && (entry = readdir(folder)) != NULL) {
        struct shoal_job_id owner;

        if (shoal_job_id_parse(entry->d_name, &owner) && path_of(path, held, entry->d_name, NULL))
            err = each_hold_of(path, owner, each, arg, msg);
    }
    (void)closedir(folder);
    return err;
}
