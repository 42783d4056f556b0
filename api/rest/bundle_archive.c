/* Archives in, canonical bundles out; the way back to a folder is bundle_read_sodium.c. All that knows libarchive.
 *
 *   upload --libarchive--> (path, mode) + content --> spool, hashed --sort--> canonical file --> unpack with openat2
 *
 * B1. Only regular files and directories pass. Links become copies of what they point to (bundle_links.c). Devices, sockets and pipes
 *     are refused by name.
 * B2. A path that is absolute, has "..", a backslash or a control character, or is too deep or long, is refused.
 * B3. Every byte counts against the limits before it is written; what an entry claims is checked before it is read.
 * B4. Unpacking opens one component at a time, beneath the folder, never through a link, and only makes new files.
 * Source: reference of hostile archives; openat2(2), RESOLVE_BENEATH. */
#include "bundle_file_sodium.h"
#include "bundle_kind.h"
#include "bundle_links.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shoal/banned.h"

#define RATIO_FREE_BYTES (10ull * SHOAL_MIB)
#define SECONDS_MAX 1800
#define IN_MEMORY_MAX SHOAL_BUNDLE_INLINE_MAX

struct bundler {
    const struct shoal_bundle_options *options;
    struct shoal_bundle_limits limits;
    struct bundle_entry *entries;
    size_t count;
    size_t cap;
    struct bundle_link *links;
    size_t link_count;
    size_t link_cap;
    uint64_t spooled;
    uint64_t copied; /* bytes that links stand for */
    uint64_t packed; /* bytes of all uploads */
    int spool;
    time_t started;
    struct shoal_msg *msg;
    uint8_t *block;
};

enum shoal_err bundle_disk_error(struct shoal_msg *msg, const char *what)
{
    if (errno == ENOSPC || errno == EDQUOT)
        return shoal_fail(msg, SHOAL_ERR_STORAGE,
                          "%s: the disk is full; free some space on this node or use another node", what);
    return shoal_fail(msg, SHOAL_ERR_STORAGE, "%s: %s", what, strerror(errno));
}

/* ---- files without a name ---- */

static enum shoal_err open_spool(const struct bundler *b, int *fd)
{
    *fd = -1;
    if (b->packed <= IN_MEMORY_MAX)
        *fd = memfd_create("shoal-bundle", MFD_CLOEXEC);
    else
        *fd = open(b->options->spool_dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    return *fd >= 0 ? SHOAL_OK : bundle_disk_error(b->msg, b->options->spool_dir);
}

enum shoal_err bundle_write_all(int fd, const uint8_t *bytes, size_t len, struct shoal_msg *msg)
{
    while (len > 0) {
        ssize_t put = write(fd, bytes, len);

        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return bundle_disk_error(msg, "writing a bundle");
        bytes += put;
        len -= (size_t)put;
    }
    return SHOAL_OK;
}

enum shoal_err bundle_read_all(int fd, uint8_t *bytes, size_t len, uint64_t offset, struct shoal_msg *msg)
{
    while (len > 0) {
        ssize_t got = pread(fd, bytes, len, (off_t)offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return bundle_disk_error(msg, "reading a bundle");
        if (got == 0)
            return shoal_fail(msg, SHOAL_ERR_MALFORMED, "a bundle ends too early");
        bytes += got;
        offset += (uint64_t)got;
        len -= (size_t)got;
    }
    return SHOAL_OK;
}

/* ---- paths ---- */

/* Also those of C1 (U+0080 to U+009F), which a terminal may obey as well. */
static bool is_control(const char *at)
{
    unsigned char c = (unsigned char)at[0], next = (unsigned char)at[c == 0 ? 0 : 1];

    return c < 0x20 || c == 0x7f || (c == 0xc2 && next >= 0x80 && next < 0xa0);
}

static enum shoal_err refuse(const struct bundler *b, enum shoal_err err, const char *path, const char *why)
{
    char shown[96];
    size_t len = 0;

    for (; *path != '\0' && len + 1 < sizeof(shown); path++)
        shown[len++] = is_control(path) ? '?' : *path;
    shown[len] = '\0';
    return shoal_fail(b->msg, err, "upload: entry \"%s\": %s", shown, why);
}

/* Copies `path` in normal form to `out` ("" for the root). */
static enum shoal_err clean_path(const struct bundler *b, const char *path, char *out, size_t *out_len)
{
    const char *whole = path;
    size_t len = 0;
    unsigned depth = 0;

    if (path[0] == '/')
        return refuse(b, SHOAL_ERR_INVALID, whole, "an absolute path; pack relative names");
    while (*path != '\0') {
        size_t piece = strcspn(path, "/");

        for (size_t i = 0; i < piece; i++)
            if (is_control(path + i) || path[i] == '\\')
                return refuse(b, SHOAL_ERR_INVALID, whole, "a control character or backslash in its name; rename it");
        if (piece == 2 && path[0] == '.' && path[1] == '.')
            return refuse(b, SHOAL_ERR_INVALID, whole, "\"..\" in its path; pack from inside the directory");
        if (piece > BUNDLE_COMPONENT_BYTES_MAX)
            return refuse(b, SHOAL_ERR_TOO_BIG, whole, "a name longer than 255 bytes");
        if (piece > 0 && !(piece == 1 && path[0] == '.')) {
            if (len + piece + 1 >= BUNDLE_PATH_BYTES_MAX)
                return refuse(b, SHOAL_ERR_TOO_BIG, whole, "a path longer than 1023 bytes");
            if (++depth > b->limits.depth_max)
                return refuse(b, SHOAL_ERR_TOO_BIG, whole, "nested too deep; 32 directories are allowed");
            if (len > 0)
                out[len++] = '/';
            memcpy(out + len, path, piece);
            len += piece;
        }
        path += piece;
        while (*path == '/')
            path++;
    }
    out[len] = '\0';
    *out_len = len;
    return SHOAL_OK;
}

static enum shoal_err check_count(const struct bundler *b)
{
    if (b->count + b->link_count < b->limits.entries_max)
        return SHOAL_OK;
    return shoal_fail(b->msg, SHOAL_ERR_TOO_BIG, "upload: more than %u entries; leave out what the script does not need",
                      b->limits.entries_max);
}

static enum shoal_err add_link(struct bundler *b, const char *path, const char *target, bool is_hard)
{
    struct bundle_link *link;
    enum shoal_err err = check_count(b);

    if (err == SHOAL_OK && strlen(target) >= BUNDLE_LINK_TEXT_MAX)
        err = refuse(b, SHOAL_ERR_TOO_BIG, path, "a link to a path longer than 4095 bytes");
    if (err != SHOAL_OK)
        return err;
    if (b->link_count == b->link_cap) {
        size_t cap = b->link_cap == 0 ? 16 : b->link_cap * 2;
        struct bundle_link *grown = realloc(b->links, cap * sizeof(*grown));

        if (grown == NULL)
            return shoal_fail(b->msg, SHOAL_ERR_FULL, "out of memory");
        b->links = grown;
        b->link_cap = cap;
    }
    link = &b->links[b->link_count++];
    *link = (struct bundle_link){ .path = strdup(path), .target = strdup(target), .is_hard = is_hard };
    return link->path != NULL && link->target != NULL ? SHOAL_OK : shoal_fail(b->msg, SHOAL_ERR_FULL, "out of memory");
}

static enum shoal_err add_entry(struct bundler *b, const char *path, size_t len, uint32_t mode,
                                struct bundle_entry **entry)
{
    enum shoal_err err = check_count(b);

    if (err != SHOAL_OK)
        return err;
    if (b->count == b->cap) {
        size_t cap = b->cap == 0 ? 64 : b->cap * 2;
        struct bundle_entry *grown = realloc(b->entries, cap * sizeof(*grown));

        if (grown == NULL)
            return shoal_fail(b->msg, SHOAL_ERR_FULL, "out of memory");
        b->entries = grown;
        b->cap = cap;
    }
    *entry = &b->entries[b->count];
    **entry = (struct bundle_entry){ .path = strndup(path, len), .path_len = len, .mode = mode, .offset = b->spooled };
    if ((*entry)->path == NULL)
        return shoal_fail(b->msg, SHOAL_ERR_FULL, "out of memory");
    b->count++;
    return SHOAL_OK;
}

/* ---- contents ---- */

/* B3: `len` more bytes of `path`, which has `size` of them. */
static enum shoal_err check_room(const struct bundler *b, const char *path, uint64_t size, uint64_t len)
{
    uint64_t taken = b->spooled + b->copied;

    if (len > b->limits.file_bytes_max - size)
        return refuse(b, SHOAL_ERR_TOO_BIG, path, "larger than a file may be");
    if (len > b->limits.bytes_max - taken)
        return refuse(b, SHOAL_ERR_TOO_BIG, path, "the upload unpacks to more than is allowed");
    if (taken + len > RATIO_FREE_BYTES && (taken + len) / b->limits.ratio_max > b->packed)
        return refuse(b, SHOAL_ERR_TOO_BIG, path,
                      "the upload unpacks to far more than its own size; send it less compressed");
    return SHOAL_OK;
}

/* One more block of `entry`. */
static enum shoal_err take_block(struct bundler *b, struct bundle_entry *entry, crypto_generichash_state *hash,
                                 size_t len)
{
    const char *path = entry->path;
    enum shoal_err err = check_room(b, path, entry->size, len);

    if (err != SHOAL_OK)
        return err;
    if (time(NULL) - b->started > SECONDS_MAX)
        return refuse(b, SHOAL_ERR_TIMEOUT, path, "unpacking took too long");
    (void)crypto_generichash_update(hash, b->block, len);
    entry->size += len;
    b->spooled += len;
    return bundle_write_all(b->spool, b->block, len, b->msg);
}

static enum shoal_err archive_error(const struct bundler *b, struct archive *archive, const char *path)
{
    const char *text = archive_error_string(archive);
    char why[200];

    (void)snprintf(why, sizeof(why),
                   "cannot be read (%.120s); the archive is damaged or cut short, pack and send it again",
                   text == NULL ? "unknown" : text);
    if (path == NULL)
        return shoal_fail(b->msg, SHOAL_ERR_MALFORMED, "upload: the archive %s", why);
    return refuse(b, SHOAL_ERR_MALFORMED, path, why);
}

static enum shoal_err take_archived_file(struct bundler *b, struct archive *archive, struct bundle_entry *entry)
{
    crypto_generichash_state hash;

    (void)crypto_generichash_init(&hash, NULL, 0, sizeof(entry->hash));
    while (true) {
        la_ssize_t got = archive_read_data(archive, b->block, BUNDLE_BLOCK_BYTES);
        enum shoal_err err;

        if (got < 0)
            return archive_error(b, archive, entry->path);
        if (got == 0)
            break;
        err = take_block(b, entry, &hash, (size_t)got);
        if (err != SHOAL_OK)
            return err;
    }
    (void)crypto_generichash_final(&hash, entry->hash, sizeof(entry->hash));
    return SHOAL_OK;
}

/* What a link points to; NULL: it is none. */
static const char *link_target(struct archive_entry *header, bool *is_hard)
{
    const char *target = archive_entry_hardlink_utf8(header);

    if (target == NULL)
        target = archive_entry_hardlink(header);
    *is_hard = target != NULL;
    if (target == NULL && archive_entry_filetype(header) == AE_IFLNK) {
        target = archive_entry_symlink_utf8(header);
        if (target == NULL)
            target = archive_entry_symlink(header);
        return target == NULL ? "" : target; /* to nothing */
    }
    return target;
}

static enum shoal_err check_type(const struct bundler *b, struct archive_entry *header, const char *path, bool is_link)
{
    if (is_link && archive_entry_size(header) > 0) /* B3: as of a directory */
        return refuse(b, SHOAL_ERR_INVALID, path, "a link with content; pack it again with tar");
    if (is_link || archive_entry_filetype(header) == AE_IFREG || archive_entry_filetype(header) == AE_IFDIR)
        return SHOAL_OK;
    return refuse(b, SHOAL_ERR_INVALID, path, "a device, pipe or socket; only files, directories and links are taken");
}

static enum shoal_err take_archive_entry(struct bundler *b, struct archive *archive, struct archive_entry *header)
{
    const char *name = archive_entry_pathname_utf8(header);
    char path[BUNDLE_PATH_BYTES_MAX];
    size_t len = 0;
    struct bundle_entry *entry = NULL;
    enum shoal_err err;
    bool is_hard;
    const char *target = link_target(header, &is_hard);
    bool dir = target == NULL && archive_entry_filetype(header) == AE_IFDIR;

    if (name == NULL)
        name = archive_entry_pathname(header);
    if (name == NULL)
        return shoal_fail(b->msg, SHOAL_ERR_MALFORMED, "upload: an entry without a readable name");
    err = check_type(b, header, name, target != NULL);
    if (err == SHOAL_OK)
        err = clean_path(b, name, path, &len);
    if (err != SHOAL_OK)
        return err;
    if (len == 0)
        return dir ? SHOAL_OK : refuse(b, SHOAL_ERR_INVALID, name, "a file without a name");
    if (target != NULL)
        return add_link(b, path, target, is_hard);
    if (dir && archive_entry_size(header) > 0) /* B3: what is passed over has cost its unpacking all the same */
        return refuse(b, SHOAL_ERR_INVALID, name,
                      "a directory with content; pack it again with tar, not incrementally");
    if (!dir && archive_entry_size_is_set(header) && archive_entry_size(header) > 0 &&
        (uint64_t)archive_entry_size(header) > b->limits.file_bytes_max)
        return refuse(b, SHOAL_ERR_TOO_BIG, name, "claims to be larger than a file may be");
    err = add_entry(b, path, len,
                    dir                                        ? SHOAL_BUNDLE_DIR | 0755u
                    : (archive_entry_perm(header) & 0111) != 0 ? 0755u
                                                               : 0644u,
                    &entry);
    if (err != SHOAL_OK)
        return err;
    return dir ? SHOAL_OK : take_archived_file(b, archive, entry);
}

static enum shoal_err walk_archive(struct bundler *b, struct archive *archive)
{
    const char *last = NULL;

    while (true) {
        struct archive_entry *header;
        int got = archive_read_next_header(archive, &header);
        enum shoal_err err;

        if (got == ARCHIVE_EOF)
            return SHOAL_OK;
        if (got != ARCHIVE_OK && got != ARCHIVE_WARN)
            return archive_error(b, archive, last);
        err = take_archive_entry(b, archive, header);
        if (err != SHOAL_OK)
            return err;
        last = b->count == 0 ? NULL : b->entries[b->count - 1].path;
    }
}

/* A tar ends with zero blocks; without them it was cut between two entries, which its reader does not notice. */
static enum shoal_err check_tar_end(struct bundler *b, const struct shoal_bundle_upload *upload)
{
    uint8_t block[512] = { 1 }; /* where not even one is whole */
    enum shoal_err err = SHOAL_OK;

    if (upload->bytes >= sizeof(block))
        err = bundle_read_all(upload->fd, block, sizeof(block), upload->bytes - sizeof(block), b->msg);
    if (err == SHOAL_OK && !sodium_is_zero(block, sizeof(block)))
        err = shoal_fail(b->msg, SHOAL_ERR_MALFORMED,
                         "upload: the archive has no end mark: it was cut short, pack and send it again");
    return err;
}

/* ---- zip ---- */

#define ZIP_END_BYTES 22
#define ZIP_ENTRY_BYTES 46
#define ZIP_COMMENT_MAX 65535u
#define ZIP_UNIX 3

static uint32_t little(const uint8_t *bytes, unsigned len)
{
    uint32_t value = 0;

    for (unsigned i = len; i > 0; i--)
        value = value << 8 | bytes[i - 1];
    return value;
}

/* Where the directory at the archive's end begins, and ends; false: nowhere that this looks for it. */
static bool zip_directory(const struct shoal_bundle_upload *upload, uint64_t *at, uint64_t *end)
{
    const uint64_t tail = upload->bytes < ZIP_COMMENT_MAX + ZIP_END_BYTES ? upload->bytes : ZIP_COMMENT_MAX + ZIP_END_BYTES;
    uint8_t *bytes = malloc((size_t)tail);
    struct shoal_msg msg;
    bool found = false;

    if (bytes == NULL)
        return false;
    if (bundle_read_all(upload->fd, bytes, (size_t)tail, upload->bytes - tail, &msg) == SHOAL_OK)
        for (uint64_t i = tail; i >= ZIP_END_BYTES && !found; i--) {
            const uint8_t *here = bytes + (i - ZIP_END_BYTES);
            uint32_t len = little(here + 12, 4);

            *end = upload->bytes - tail + (i - ZIP_END_BYTES);
            found = memcmp(here, "PK\5\6", 4) == 0 && len <= *end;
            *at = *end - (found ? len : 0);
        }
    free(bytes);
    return found;
}

/* What libarchive hides: it cuts a name at its NUL, and takes a pipe for an empty file. */
static enum shoal_err check_zip_entry(const struct bundler *b, const uint8_t *head, const uint8_t *name, size_t len)
{
    const uint32_t type = head[5] == ZIP_UNIX ? little(head + 38, 4) >> 16 & AE_IFMT : 0;
    char text[BUNDLE_PATH_BYTES_MAX];

    (void)snprintf(text, sizeof(text), "%.*s", (int)(len < sizeof(text) ? len : sizeof(text) - 1), (const char *)name);
    if (memchr(name, '\0', len) != NULL)
        return refuse(b, SHOAL_ERR_INVALID, text, "its name goes on behind a NUL; rename it");
    if (type == AE_IFCHR || type == AE_IFBLK || type == AE_IFSOCK || (type == AE_IFIFO && little(head + 24, 4) == 0))
        return refuse(b, SHOAL_ERR_INVALID, text, "a device, pipe or socket; only files and directories are taken");
    return SHOAL_OK; /* zip says of what it was piped that it is a pipe */
}

/* A directory that does not decode is libarchive's to refuse. */
static enum shoal_err check_zip(struct bundler *b, const struct shoal_bundle_upload *upload)
{
    uint64_t at, end;

    if (!zip_directory(upload, &at, &end))
        return SHOAL_OK;
    for (uint32_t i = 0; i <= b->limits.entries_max && at + ZIP_ENTRY_BYTES <= end; i++) {
        uint8_t head[ZIP_ENTRY_BYTES];
        size_t len;
        enum shoal_err err = bundle_read_all(upload->fd, head, sizeof(head), at, b->msg);

        if (err != SHOAL_OK || memcmp(head, "PK\1\2", 4) != 0)
            return err;
        at += sizeof(head);
        len = little(head + 28, 2);
        if (at + len > end || len > BUNDLE_BLOCK_BYTES)
            return SHOAL_OK;
        err = bundle_read_all(upload->fd, b->block, len, at, b->msg);
        if (err == SHOAL_OK)
            err = check_zip_entry(b, head, b->block, len);
        if (err != SHOAL_OK)
            return err;
        at += len + little(head + 30, 2) + little(head + 32, 2);
    }
    return SHOAL_OK;
}

/* What an archive may unpack to, by B3, with the heads of its entries. */
static uint64_t packed_most(const struct bundler *b)
{
    const uint64_t by_ratio = b->packed < UINT64_MAX / 2 / b->limits.ratio_max ? b->packed * b->limits.ratio_max : UINT64_MAX / 2;
    const uint64_t most = by_ratio < RATIO_FREE_BYTES ? RATIO_FREE_BYTES : by_ratio;

    return (most < b->limits.bytes_max ? most : b->limits.bytes_max) + (uint64_t)b->limits.entries_max * 4 * SHOAL_KIB;
}

static enum shoal_err take_archive(struct bundler *b, const struct shoal_bundle_upload *upload, enum bundle_kind kind)
{
    struct archive *archive = archive_read_new();
    size_t before = b->count;
    enum shoal_err err = SHOAL_OK;

    if (archive == NULL)
        return shoal_fail(b->msg, SHOAL_ERR_FULL, "out of memory");
    /* Only what is wanted: every further format is a parser that strangers can feed. */
    if (kind == BUNDLE_OF_ZIP)
        (void)archive_read_support_format_zip_seekable(archive);
    else
        (void)archive_read_support_format_tar(archive);
    if (kind == BUNDLE_OF_GZIP)
        (void)archive_read_support_filter_gzip(archive);
    if (lseek(upload->fd, 0, SEEK_SET) != 0)
        err = bundle_disk_error(b->msg, "reading an upload");
    else if (kind == BUNDLE_OF_GZIP)
        err = bundle_gzip_check(upload->fd, upload->bytes, packed_most(b), b->msg);
    else if (kind == BUNDLE_OF_TAR)
        err = check_tar_end(b, upload);
    else if (kind == BUNDLE_OF_ZIP)
        err = check_zip(b, upload);
    if (err == SHOAL_OK && archive_read_open_fd(archive, upload->fd, BUNDLE_BLOCK_BYTES) != ARCHIVE_OK)
        err = archive_error(b, archive, NULL);
    if (err == SHOAL_OK)
        err = walk_archive(b, archive);
    if (err == SHOAL_OK && b->count == before)
        err = shoal_fail(b->msg, SHOAL_ERR_INVALID, "upload: the archive is empty; pack the model directory");
    (void)archive_read_free(archive);
    return err;
}

static enum shoal_err take_file(struct bundler *b, const struct shoal_bundle_upload *upload)
{
    const char *name = upload->name[0] != '\0' ? upload->name : b->options->single_name;
    crypto_generichash_state hash;
    char path[BUNDLE_PATH_BYTES_MAX];
    struct bundle_entry *entry = NULL;
    size_t len = 0;
    enum shoal_err err;

    if (name == NULL || name[0] == '\0')
        return shoal_fail(b->msg, SHOAL_ERR_INVALID,
                          "upload: a file without a name; send a filename or give --model-main");
    if (strchr(name, '/') != NULL)
        return refuse(b, SHOAL_ERR_INVALID, name, "a file name with a slash");
    err = clean_path(b, name, path, &len);
    if (err == SHOAL_OK && len == 0)
        err = refuse(b, SHOAL_ERR_INVALID, name, "no file name");
    if (err == SHOAL_OK)
        err = add_entry(b, path, len, 0644, &entry);
    if (err != SHOAL_OK)
        return err;
    (void)crypto_generichash_init(&hash, NULL, 0, sizeof(entry->hash));
    for (uint64_t at = 0; at < upload->bytes && err == SHOAL_OK;) {
        size_t piece = upload->bytes - at < BUNDLE_BLOCK_BYTES ? (size_t)(upload->bytes - at) : BUNDLE_BLOCK_BYTES;

        err = bundle_read_all(upload->fd, b->block, piece, at, b->msg);
        if (err == SHOAL_OK)
            err = take_block(b, entry, &hash, piece);
        at += piece;
    }
    (void)crypto_generichash_final(&hash, entry->hash, sizeof(entry->hash));
    return err;
}

static bool ends_with(const char *text, const char *end)
{
    size_t len = strlen(text);
    size_t end_len = strlen(end);

    return len >= end_len && strcmp(text + len - end_len, end) == 0;
}

/* A single file may be packed: it is the script's own. One that is named as an archive is none that may be. */
static enum shoal_err refuse_archive(struct bundler *b, const struct shoal_bundle_upload *upload, const uint8_t *head, size_t len)
{
    static const char *const archive_names[] = { ".tar", ".tgz", ".gz", ".zip", ".tar.bz2", ".tbz2", ".tbz", ".tar.xz", ".txz",
                                                 ".tar.zst", ".tzst", ".7z", ".rar" };
    const char *packed = bundle_packed_with(head, len);

    if (packed != NULL && upload->name[0] == '\0')
        return shoal_fail(b->msg, SHOAL_ERR_MALFORMED, "upload: it is %s; send a tar, a tar packed with gzip, a zip, or one file", packed);
    for (size_t i = 0; i < sizeof(archive_names) / sizeof(archive_names[0]); i++)
        if (ends_with(upload->name, archive_names[i]))
            return shoal_fail(b->msg, SHOAL_ERR_MALFORMED, "upload: \"%.80s\" is %s; send a tar, a tar packed with gzip, or a zip",
                              upload->name, packed == NULL ? "not an archive" : packed);
    return SHOAL_OK;
}

static enum shoal_err take_upload(struct bundler *b, const struct shoal_bundle_upload *upload)
{
    uint8_t head[512] = { 0 };
    size_t len = upload->bytes < sizeof(head) ? (size_t)upload->bytes : sizeof(head);
    enum bundle_kind kind;
    enum shoal_err err;

    if (upload->bytes == 0)
        return shoal_fail(b->msg, SHOAL_ERR_INVALID, "upload: \"%.80s\" is empty (0 bytes); send the file's content",
                          upload->name);
    err = bundle_read_all(upload->fd, head, len, 0, b->msg);
    if (err != SHOAL_OK)
        return err;
    kind = bundle_kind_of(head, len);
    if (kind != BUNDLE_OF_FILE)
        return take_archive(b, upload, kind);
    err = refuse_archive(b, upload, head, len);
    return err == SHOAL_OK ? take_file(b, upload) : err;
}

/* ---- putting it in order ---- */

static int compare_entries(const void *left, const void *right)
{
    const struct bundle_entry *a = left;
    const struct bundle_entry *b = right;

    return strcmp(a->path, b->path);
}

static struct bundle_entry *find_entry(const struct bundler *b, char *path)
{
    struct bundle_entry key = { .path = path };

    return bsearch(&key, b->entries, b->count, sizeof(key), compare_entries);
}

/* Of a link: the content is the same, and so is its place in the spool. */
static enum shoal_err copy_entry(void *arg, size_t index, const char *whole)
{
    struct bundler *b = arg;
    const struct bundle_entry from = b->entries[index];
    struct bundle_entry *entry = NULL;
    char path[BUNDLE_PATH_BYTES_MAX];
    size_t len = 0;
    enum shoal_err err = clean_path(b, whole, path, &len);

    if (err == SHOAL_OK)
        err = check_room(b, path, 0, from.size);
    if (err == SHOAL_OK)
        err = add_entry(b, path, len, from.mode, &entry);
    if (err != SHOAL_OK)
        return err;
    entry->size = from.size;
    entry->offset = from.offset;
    memcpy(entry->hash, from.hash, sizeof(entry->hash));
    b->copied += from.size;
    return SHOAL_OK;
}

static enum shoal_err refuse_link(void *arg, enum shoal_err err, const char *path, const char *why)
{
    return refuse(arg, err, path, why);
}

static enum shoal_err copy_links(struct bundler *b)
{
    struct bundle_linker linker = { .links = b->links,
                                    .link_count = b->link_count,
                                    .entries = &b->entries,
                                    .entry_count = b->count,
                                    .looks_left = b->limits.entries_max,
                                    .steps_left = 64 * b->limits.entries_max,
                                    .refuses_out = b->options->refuses_links_out,
                                    .copy = copy_entry,
                                    .refuse = refuse_link,
                                    .arg = b };

    if (b->count > 0)
        qsort(b->entries, b->count, sizeof(*b->entries), compare_entries);
    return bundle_links_copy(&linker);
}

/* Nothing below a file; directories that have something below them go (their files bring them back). */
static enum shoal_err check_parents(struct bundler *b, bool *needless)
{
    for (size_t i = 0; i < b->count; i++) {
        char path[BUNDLE_PATH_BYTES_MAX * 2];
        char *slash;

        (void)snprintf(path, sizeof(path), "%s", b->entries[i].path);
        while ((slash = strrchr(path, '/')) != NULL) {
            struct bundle_entry *parent;

            *slash = '\0';
            parent = find_entry(b, path);
            if (parent == NULL)
                continue;
            if ((parent->mode & SHOAL_BUNDLE_DIR) == 0)
                return refuse(b, SHOAL_ERR_INVALID, path, "both a file and a directory");
            needless[parent - b->entries] = true;
        }
    }
    return SHOAL_OK;
}

static enum shoal_err settle_entries(struct bundler *b)
{
    bool *needless = calloc(b->count + 1, sizeof(*needless));
    enum shoal_err err = SHOAL_OK;
    size_t kept = 0;

    if (needless == NULL)
        return shoal_fail(b->msg, SHOAL_ERR_FULL, "out of memory");
    if (b->count > 0)
        qsort(b->entries, b->count, sizeof(*b->entries), compare_entries);
    for (size_t i = 1; i < b->count && err == SHOAL_OK; i++) {
        bool both_dirs = (b->entries[i].mode & b->entries[i - 1].mode & SHOAL_BUNDLE_DIR) != 0;

        if (strcmp(b->entries[i].path, b->entries[i - 1].path) != 0)
            continue;
        if (!both_dirs)
            err = refuse(b, SHOAL_ERR_INVALID, b->entries[i].path, "twice in the upload; pack it once");
        needless[i - 1] = true;
    }
    if (err == SHOAL_OK)
        err = check_parents(b, needless);
    for (size_t i = 0; i < b->count && err == SHOAL_OK; i++) {
        if (needless[i])
            free(b->entries[i].path);
        else
            b->entries[kept++] = b->entries[i];
    }
    if (err == SHOAL_OK)
        b->count = kept;
    free(needless);
    return err;
}

/* The folders that files bring with them count as if the upload named them. In order by path all of a folder stand together, so a
 * folder is new where the entry before is not of it, too. */
static enum shoal_err check_folders(const struct bundler *b)
{
    uint64_t count = b->count;

    for (size_t i = 0; i < b->count; i++) {
        const char *path = b->entries[i].path;
        const char *before = i == 0 ? "" : b->entries[i - 1].path;
        size_t same = 0;

        while (path[same] != '\0' && path[same] == before[same])
            same++;
        for (const char *slash = strchr(path + same, '/'); slash != NULL; slash = strchr(slash + 1, '/'))
            count++;
    }
    if (count <= b->limits.entries_max)
        return SHOAL_OK;
    return shoal_fail(b->msg, SHOAL_ERR_TOO_BIG,
                      "upload: more than %u entries: %zu, and %llu folders that they lie in; leave out what the script does not need",
                      b->limits.entries_max, b->count, (unsigned long long)(count - b->count));
}

/* The one directory that everything lies in, or "". */
static void find_top(const struct bundler *b, char *top, size_t cap)
{
    top[0] = '\0';
    for (size_t i = 0; i < b->count; i++) {
        const char *path = b->entries[i].path;
        size_t len = strcspn(path, "/");

        if (path[0] == '.' && path[1] == '_')
            continue; /* macOS leaves these beside the directory */
        if (path[len] != '/' && (b->entries[i].mode & SHOAL_BUNDLE_DIR) == 0) {
            top[0] = '\0';
            return;
        }
        if (top[0] == '\0') {
            (void)snprintf(top, cap, "%.*s", (int)len, path);
        } else if (strlen(top) != len || memcmp(top, path, len) != 0) {
            top[0] = '\0';
            return;
        }
    }
}

static bool has_below(const struct bundler *b, const char *prefix)
{
    size_t len = strlen(prefix);

    for (size_t i = 0; i < b->count; i++)
        if (strncmp(b->entries[i].path, prefix, len) == 0 &&
            (b->entries[i].path[len] == '/' || b->entries[i].path[len] == '\0'))
            return true;
    return false;
}

static enum shoal_err add_prefix(struct bundler *b, struct shoal_bundle_info *info)
{
    const char *prefix = b->options->prefix;
    char clean[BUNDLE_PATH_BYTES_MAX];
    size_t len = 0;
    enum shoal_err err;

    if (prefix == NULL || prefix[0] == '\0' || b->count == 0)
        return SHOAL_OK;
    err = clean_path(b, prefix, clean, &len);
    if (err != SHOAL_OK || len == 0 || has_below(b, clean))
        return err;
    for (size_t i = 0; i < b->count; i++) {
        struct bundle_entry *entry = &b->entries[i];
        char *path;

        if (len + 1 + entry->path_len >= BUNDLE_PATH_BYTES_MAX)
            return refuse(b, SHOAL_ERR_TOO_BIG, entry->path, "a path longer than 1023 bytes");
        path = malloc(len + entry->path_len + 2);
        if (path == NULL)
            return shoal_fail(b->msg, SHOAL_ERR_FULL, "out of memory");
        memcpy(path, clean, len);
        path[len] = '/';
        memcpy(path + len + 1, entry->path, entry->path_len + 1);
        free(entry->path);
        entry->path = path;
        entry->path_len += len + 1;
    }
    info->prefixed = true; /* the order by path stays */
    return SHOAL_OK;
}

/* ---- the canonical file ---- */

static void put_le(uint8_t *at, uint64_t value, unsigned width)
{
    for (unsigned i = 0; i < width; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

uint64_t bundle_get_le(const uint8_t *at, unsigned width)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < width; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

/* I1 of the header: what names the bundle. */
void bundle_hash_entry(crypto_generichash_state *state, const struct bundle_entry *entry)
{
    uint8_t head[14];

    put_le(head, entry->path_len, 2);
    put_le(head + 2, entry->mode, 4);
    put_le(head + 6, entry->size, 8);
    (void)crypto_generichash_update(state, head, sizeof(head));
    (void)crypto_generichash_update(state, (const uint8_t *)entry->path, entry->path_len);
    (void)crypto_generichash_update(state, entry->hash, sizeof(entry->hash));
}

void bundle_hash_start(crypto_generichash_state *state)
{
    (void)crypto_generichash_init(state, NULL, 0, sizeof(struct shoal_hash));
    (void)crypto_generichash_update(state, (const uint8_t *)SHOAL_BUNDLE_MAGIC, 8);
}

/* Small pieces gathered in the block. */
struct sink {
    struct bundler *b;
    int fd;
    size_t len;
    uint64_t total;
};

static enum shoal_err sink_flush(struct sink *sink)
{
    enum shoal_err err = bundle_write_all(sink->fd, sink->b->block, sink->len, sink->b->msg);

    sink->total += sink->len;
    sink->len = 0;
    return err;
}

static enum shoal_err sink_put(struct sink *sink, const void *bytes, size_t len)
{
    enum shoal_err err = SHOAL_OK;

    SHOAL_ASSERT(len <= BUNDLE_BLOCK_BYTES);
    if (len > BUNDLE_BLOCK_BYTES - sink->len)
        err = sink_flush(sink);
    if (err == SHOAL_OK && len > 0)
        memcpy(sink->b->block + sink->len, bytes, len);
    sink->len += err == SHOAL_OK ? len : 0;
    return err;
}

static enum shoal_err sink_copy(struct sink *sink, const struct bundle_entry *entry)
{
    uint64_t done = 0;
    enum shoal_err err = SHOAL_OK;

    while (done < entry->size && err == SHOAL_OK) {
        size_t piece = BUNDLE_BLOCK_BYTES - sink->len;

        if (piece == 0) {
            err = sink_flush(sink);
            continue;
        }
        if (piece > entry->size - done)
            piece = (size_t)(entry->size - done);
        err = bundle_read_all(sink->b->spool, sink->b->block + sink->len, piece, entry->offset + done, sink->b->msg);
        sink->len += err == SHOAL_OK ? piece : 0;
        done += piece;
    }
    return err;
}

static enum shoal_err write_canonical(struct bundler *b, int fd, struct shoal_bundle_info *info)
{
    struct sink sink = { .b = b, .fd = fd };
    crypto_generichash_state state;
    uint8_t head[BUNDLE_HEAD_BYTES] = SHOAL_BUNDLE_MAGIC;
    enum shoal_err err;

    put_le(head + 8, 1, 4);
    put_le(head + 12, b->count, 4);
    bundle_hash_start(&state);
    err = sink_put(&sink, head, sizeof(head));
    for (size_t i = 0; i < b->count && err == SHOAL_OK; i++) {
        const struct bundle_entry *entry = &b->entries[i];
        uint8_t fields[12];

        put_le(fields, entry->path_len, 2);
        err = sink_put(&sink, fields, 2);
        if (err == SHOAL_OK)
            err = sink_put(&sink, entry->path, entry->path_len);
        put_le(fields, entry->mode, 4);
        put_le(fields + 4, entry->size, 8);
        if (err == SHOAL_OK)
            err = sink_put(&sink, fields, 12);
        if (err == SHOAL_OK)
            err = sink_copy(&sink, entry);
        bundle_hash_entry(&state, entry);
        info->content_bytes += entry->size;
    }
    if (err == SHOAL_OK)
        err = sink_flush(&sink);
    (void)crypto_generichash_final(&state, info->hash.bytes, sizeof(info->hash.bytes));
    info->entries = (uint32_t)b->count;
    info->bundle_bytes = sink.total;
    return err;
}

static void set_limits(struct bundler *b)
{
    b->limits = b->options->limits;
    if (b->limits.entries_max == 0)
        b->limits.entries_max = SHOAL_BUNDLE_ENTRIES_MAX;
    if (b->limits.bytes_max == 0)
        b->limits.bytes_max = SHOAL_UPLOAD_BYTES_MAX;
    if (b->limits.file_bytes_max == 0)
        b->limits.file_bytes_max = b->limits.bytes_max;
    if (b->limits.ratio_max == 0)
        b->limits.ratio_max = 200;
    if (b->limits.depth_max == 0)
        b->limits.depth_max = 32;
}

static enum shoal_err make(struct bundler *b, int *fd, struct shoal_bundle_info *info)
{
    enum shoal_err err = open_spool(b, &b->spool);
    int out = -1;

    for (unsigned i = 0; i < b->options->upload_count && err == SHOAL_OK; i++)
        err = take_upload(b, &b->options->uploads[i]);
    if (err == SHOAL_OK)
        err = copy_links(b);
    if (err == SHOAL_OK)
        err = settle_entries(b);
    if (err == SHOAL_OK)
        err = check_folders(b);
    if (err == SHOAL_OK) {
        find_top(b, info->top, sizeof(info->top));
        err = add_prefix(b, info);
    }
    if (err == SHOAL_OK)
        err = open_spool(b, &out);
    if (err == SHOAL_OK)
        err = write_canonical(b, out, info);
    if (err == SHOAL_OK && lseek(out, 0, SEEK_SET) != 0)
        err = bundle_disk_error(b->msg, "a bundle");
    if (err == SHOAL_OK)
        *fd = out;
    else if (out >= 0)
        (void)close(out);
    return err;
}

enum shoal_err shoal_bundle_make(const struct shoal_bundle_options *options, int *fd, struct shoal_bundle_info *info,
                                 struct shoal_msg *msg)
{
    struct bundler b = { .options = options, .spool = -1, .msg = msg, .started = time(NULL) };
    enum shoal_err err;

    *info = (struct shoal_bundle_info){ .entries = 0 };
    set_limits(&b);
    for (unsigned i = 0; i < options->upload_count; i++)
        b.packed += options->uploads[i].bytes;
    b.block = malloc(BUNDLE_BLOCK_BYTES);
    if (b.block == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "out of memory");
    err = make(&b, fd, info);
    if (b.spool >= 0)
        (void)close(b.spool);
    for (size_t i = 0; i < b.count; i++)
        free(b.entries[i].path);
    for (size_t i = 0; i < b.link_count; i++) {
        free(b.links[i].path);
        free(b.links[i].target);
    }
    free(b.links);
    free(b.entries);
    free(b.block);
    return err;
}
