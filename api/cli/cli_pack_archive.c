/* Packs a model directory as dlicmd does: a tar in gzip, with the directory's base name on top. Links inside are
 * followed, since the other side refuses them; what is neither file nor directory is named and refused here.
 * Names are bytes: GNU's form of tar holds them as they are, where that of POSIX asks the locale what they mean. */
#include "cli_internal.h"

#include <archive.h>
#include <archive_entry.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/banned.h"

#define DEPTH_MAX 32

struct pack {
    struct archive *archive;
    struct shoal_msg *msg;
    unsigned files;
    struct stat above[DEPTH_MAX + 1]; /* the folders that the one in hand lies in, and itself */
};

static enum shoal_err write_failed(struct pack *pack, const char *name)
{
    int number = archive_errno(pack->archive);

    return shoal_fail(pack->msg, SHOAL_ERR_STORAGE, "packing %s: %s%s", name, archive_error_string(pack->archive),
                      number == ENOSPC || number == EDQUOT ? ": free some space, or set TMPDIR to another folder" : "");
}

static enum shoal_err pack_file(struct pack *pack, int fd, const struct stat *status, const char *name)
{
    struct archive_entry *entry = archive_entry_new();
    char block[65536];
    off_t left = status->st_size;
    enum shoal_err err = SHOAL_OK;

    if (entry == NULL)
        return shoal_fail(pack->msg, SHOAL_ERR_FULL, "out of memory");
    archive_entry_set_pathname(entry, name);
    archive_entry_set_filetype(entry, S_ISDIR(status->st_mode) ? AE_IFDIR : AE_IFREG);
    archive_entry_set_perm(entry, (status->st_mode & 0111) != 0 ? 0755 : 0644);
    archive_entry_set_size(entry, S_ISDIR(status->st_mode) ? 0 : status->st_size);
    archive_entry_set_mtime(entry, status->st_mtime, 0);
    if (archive_write_header(pack->archive, entry) != ARCHIVE_OK)
        err = write_failed(pack, name);
    while (err == SHOAL_OK && S_ISREG(status->st_mode) && left > 0) {
        ssize_t got = read(fd, block, left < (off_t)sizeof(block) ? (size_t)left : sizeof(block));

        if (got <= 0)
            err = shoal_fail(pack->msg, SHOAL_ERR_INVALID, "%s: became shorter while it was packed; try again", name);
        else if (archive_write_data(pack->archive, block, (size_t)got) != got)
            err = write_failed(pack, name);
        left -= got > 0 ? got : 0;
    }
    archive_entry_free(entry);
    pack->files++;
    return err;
}

static enum shoal_err pack_tree(struct pack *pack, int dir, const char *path, unsigned depth);

/* A link may lead to what it lies in: that has no end. */
static bool is_above(const struct pack *pack, const struct stat *status, unsigned depth)
{
    for (unsigned i = 0; i <= depth; i++)
        if (pack->above[i].st_dev == status->st_dev && pack->above[i].st_ino == status->st_ino)
            return true;
    return false;
}

static enum shoal_err pack_child(struct pack *pack, int dir, const char *path, const char *child, unsigned depth)
{
    char name[4096];
    struct stat status;
    enum shoal_err err;
    int fd;
    int len = snprintf(name, sizeof(name), "%s/%s", path, child);

    if (len < 0 || (size_t)len >= 1024)
        return shoal_fail(pack->msg, SHOAL_ERR_TOO_BIG, "%s: its path is too long", child);
    fd = openat(dir, child, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return shoal_fail(pack->msg, SHOAL_ERR_INVALID, "%s: %s; remove it or make it readable", name, strerror(errno));
    if (fstat(fd, &status) != 0 || (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)))
        err = shoal_fail(pack->msg, SHOAL_ERR_INVALID, "%s: neither a file nor a directory; move it away", name);
    else if (S_ISDIR(status.st_mode) && is_above(pack, &status, depth))
        err = shoal_fail(pack->msg, SHOAL_ERR_INVALID, "%s: leads back to a folder that it lies in; remove the link", name);
    else
        err = pack_file(pack, fd, &status, name);
    if (err == SHOAL_OK && S_ISDIR(status.st_mode))
        return pack_tree(pack, fd, name, depth + 1);
    (void)close(fd);
    return err;
}

/* Closes `dir`. */
static enum shoal_err pack_tree(struct pack *pack, int dir, const char *path, unsigned depth)
{
    DIR *stream;
    struct dirent *child;
    enum shoal_err err = SHOAL_OK;

    if (depth > DEPTH_MAX) {
        (void)close(dir);
        return shoal_fail(pack->msg, SHOAL_ERR_INVALID, "%s: nested too deep; %d folders below the first are taken", path,
                          DEPTH_MAX);
    }
    if (fstat(dir, &pack->above[depth]) != 0 || (stream = fdopendir(dir)) == NULL) {
        err = shoal_fail(pack->msg, SHOAL_ERR_INVALID, "%s: cannot be read: %s", path, strerror(errno));
        (void)close(dir);
        return err;
    }
    while (err == SHOAL_OK && (child = readdir(stream)) != NULL)
        if (strcmp(child->d_name, ".") != 0 && strcmp(child->d_name, "..") != 0)
            err = pack_child(pack, dirfd(stream), path, child->d_name, depth);
    (void)closedir(stream);
    return err;
}

enum shoal_err cli_pack(const char *dir, const char *top, char *path, size_t cap, struct shoal_msg *msg)
{
    struct pack pack = { .msg = msg };
    const char *tmp = getenv("TMPDIR");
    int source = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fd;
    enum shoal_err err = SHOAL_OK;

    if (source < 0)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "--model-dir: %s: %s", dir, strerror(errno));
    (void)snprintf(path, cap, "%s/shoal-XXXXXX", tmp == NULL ? "/tmp" : tmp);
    fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0) {
        (void)close(source);
        return shoal_fail(msg, SHOAL_ERR_STORAGE, "%s: %s; set TMPDIR to a folder that can be written", path,
                          strerror(errno));
    }
    pack.archive = archive_write_new();
    if (pack.archive == NULL || archive_write_set_format_gnutar(pack.archive) != ARCHIVE_OK ||
        archive_write_add_filter_gzip(pack.archive) != ARCHIVE_OK ||
        archive_write_set_filter_option(pack.archive, "gzip", "compression-level", "1") != ARCHIVE_OK ||
        archive_write_open_fd(pack.archive, fd) != ARCHIVE_OK) {
        err = shoal_fail(msg, SHOAL_ERR_STORAGE, "packing cannot start");
        (void)close(source);
    }
    if (err == SHOAL_OK)
        err = pack_tree(&pack, source, top, 0);
    if (err == SHOAL_OK && pack.files == 0)
        err = shoal_fail(msg, SHOAL_ERR_INVALID, "--model-dir: %s is empty", dir);
    if (err == SHOAL_OK && archive_write_close(pack.archive) != ARCHIVE_OK)
        err = write_failed(&pack, top);
    (void)archive_write_free(pack.archive);
    (void)close(fd);
    if (err != SHOAL_OK)
        (void)unlink(path);
    return err;
}
