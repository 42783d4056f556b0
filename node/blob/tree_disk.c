/* Files of a result folder on the disk, each with a note of which content of its path it is (PROTOCOLS 8).
 *
 *   a change made here --flush--> note: the next number --> pushed, with number, hash and length
 *   pushed here, as a part --hash and length hold? flush, rename, flush of the folder--> note: the pusher's --> told
 *
 * A note lies at <data>/jobs/<id>/files/<hash of the path>: header, path, number, author, length, hash, CRC. It is written
 * like every file that counts, so after a power cut a file is either what its note says, or not proven.
 *
 * N1. What does not match hash and length that its pusher named never gets the name.
 * N2. A newer content replaces an older one; the order is (number, author). A change's number is above that of what it
 *     changed, and no less than the call of train() and the time in which it was made: clocks have a part only between
 *     changes of one call that knew nothing of each other (docs/decisions/0076).
 * N3. A content that is not proven (number 0) replaces nothing but a missing or an empty file: what was lost here in a
 *     power cut never replaces what is whole elsewhere.
 * N4. Logs only grow. A piece is written where it belongs, and flushed; of one that is not proven, only what is missing.
 * N5. Holes stay holes: their pusher leaves them out, and a piece of zeros takes no room.
 * N6. That a file was removed is a content like others: none. It takes away the content that it knows of, and no newer one,
 *     none that is not proven, and no change that was made here; its note keeps older contents from coming back.
 * N7. A change made here that is not noted yet has its number all the same: no older content takes its place.
 * N8. A long file is hashed in slices, one a call; what changes between two calls is none of the contents that are known.
 *
 * Runs on the file thread; knows no agent. */
#include "tree_disk.h"

#include "shoal/below.h"
#include "shoal/disk.h"
#include "shoal/hash.h"
#include "shoal/limits.h"
#include "shoal/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "node/format.h"

#include "shoal/banned.h"

#define NOTE_VERSION 2 /* 1: the hash of a long file is that of its bytes; an agent of that version can read a 2 */
#define NOTE_OLDEST 1
#define NOTE_BYTES (TREE_PATH_BYTES + 160)

int tree_version_cmp(const struct tree_version *a, const struct tree_version *b)
{
    int order;

    if (a->number != b->number)
        return a->number < b->number ? -1 : 1;
    order = a->number == 0 ? 0 : memcmp(a->author.bytes, b->author.bytes, sizeof(a->author.bytes));
    return order < 0 ? -1 : order > 0;
}

static bool is_gone(const struct tree_version *version)
{
    static const struct shoal_hash none;

    return version->number > 0 && version->bytes == 0 && shoal_hash_equal(version->hash, none);
}

/* ---- numbers ---- */

/* u12 call, u44 ms since 1970, u8 0: changes that come one upon the other count on from there. */
#define CALL_SHIFT 52
#define TIME_SHIFT 8
#define CALL_MAX 4095u

/* When the file got its content or its name, by this host's clock; what a program may set counts for nothing. */
static uint64_t changed_ms(const struct stat *facts)
{
    uint64_t ms = facts->st_ctim.tv_sec < 0 ? 0 : (uint64_t)facts->st_ctim.tv_sec * 1000;

    ms += (uint64_t)facts->st_ctim.tv_nsec / SHOAL_MS;
    return ms & ((1ull << (CALL_SHIFT - TIME_SHIFT)) - 1);
}

/* N2. Of a change made here by `self`, over what was noted. */
static uint64_t next_number(const struct tree_version *noted, uint64_t above, const struct tree_author *self, uint64_t ms)
{
    uint64_t least = (uint64_t)(self->call < CALL_MAX ? self->call : CALL_MAX) << CALL_SHIFT | ms << TIME_SHIFT;
    uint64_t number = noted->number > above ? noted->number : above;

    return number < least ? least : number + 1;
}

/* ---- notes ---- */

static bool note_path(const struct tree_place *place, char path[TREE_ROOT_BYTES + 80])
{
    struct shoal_hash hash = shoal_hash_of(shoal_view_of((const uint8_t *)place->path, strlen(place->path)));
    char hex[SHOAL_HASH_TEXT_BYTES];

    shoal_hex_text(hash.bytes, 16, hex);
    return (size_t)snprintf(path, TREE_ROOT_BYTES + 80, "%s/%s", place->notes, hex) < TREE_ROOT_BYTES + 80;
}

static bool note_read(const struct tree_place *place, struct tree_version *version)
{
    char path[TREE_ROOT_BYTES + 80], named[TREE_PATH_BYTES];
    uint8_t bytes[NOTE_BYTES];
    struct shoal_reader r;
    ssize_t len;
    uint8_t written_by;
    uint32_t crc;
    int fd;

    *version = (struct tree_version){ .number = 0 };
    fd = note_path(place, path) ? shoal_open_regular(path, O_RDONLY) : -1;
    if (fd < 0)
        return false;
    len = read(fd, bytes, sizeof(bytes));
    (void)close(fd);
    if (len < 4)
        return false;
    r = shoal_reader_init(shoal_view_of(bytes, (size_t)len));
    written_by = format_get_header(&r, FORMAT_NOTE, NOTE_VERSION);
    shoal_get_text(&r, named, sizeof(named));
    version->number = shoal_get_u64(&r);
    shoal_get_raw(&r, version->author.bytes, sizeof(version->author.bytes));
    version->bytes = shoal_get_u64(&r);
    version->hash = shoal_get_hash(&r);
    version->by_bytes = written_by == 1 && version->bytes > TREE_WHOLE_BYTES;
    crc = shoal_get_u32(&r);
    if (shoal_reader_done(&r) && crc == shoal_crc32c(0, shoal_view_of(bytes, (size_t)len - 4)) &&
        strcmp(named, place->path) == 0)
        return true;
    *version = (struct tree_version){ .number = 0 };
    return false;
}

static enum shoal_err note_write(const struct tree_place *place, const struct tree_version *version)
{
    char path[TREE_ROOT_BYTES + 80];
    uint8_t bytes[NOTE_BYTES];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    enum shoal_err err;

    if (!note_path(place, path))
        return SHOAL_ERR_INVALID;
    format_put_header(&w, FORMAT_NOTE, NOTE_VERSION, NOTE_OLDEST);
    shoal_put_text(&w, place->path);
    shoal_put_u64(&w, version->number);
    shoal_put_raw(&w, version->author.bytes, sizeof(version->author.bytes));
    shoal_put_u64(&w, version->bytes);
    shoal_put_hash(&w, version->hash);
    shoal_put_u32(&w, shoal_crc32c(0, shoal_writer_view(&w)));
    SHOAL_ASSERT(!w.failed); /* the path is bounded */
    err = shoal_disk_folders(place->notes, 0700, NULL);
    return err == SHOAL_OK ? shoal_disk_replace(path, shoal_writer_view(&w), 0600, NULL) : err;
}

/* ---- the file ---- */

/* Opens the file's folder below the root without following a link; `made`: makes folders on the way, each flushed into
 * the one above. */
static int open_folder(const char *root, const char *path, bool make, const char **name)
{
    char part[TREE_PATH_BYTES];
    int dir = open(root, O_DIRECTORY | O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

    while (dir >= 0) {
        const char *slash = strchr(path, '/');
        int next;

        if (slash == NULL) {
            *name = path;
            return dir;
        }
        memcpy(part, path, (size_t)(slash - path));
        part[slash - path] = '\0';
        next = openat(dir, part, O_DIRECTORY | O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (next < 0 && make && errno == ENOENT && mkdirat(dir, part, 0700) == 0 && fsync(dir) == 0)
            next = openat(dir, part, O_DIRECTORY | O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        (void)close(dir);
        dir = next;
        path = slash + 1;
    }
    return -1;
}

/* A regular file and nothing that a job has put in its place: no link, and no pipe whose reader or writer is waited for. */
static int open_at(int dir, const char *name, int flags, mode_t mode)
{
    int fd = openat(dir, name, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, mode);
    struct stat facts;

    if (fd < 0 || (fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode)))
        return fd;
    (void)close(fd);
    return -1;
}

static int open_file(const struct tree_place *place, int *dir)
{
    const char *name;
    int fd;

    *dir = open_folder(place->root, place->path, false, &name);
    if (*dir < 0)
        return -1;
    fd = open_at(*dir, name, O_RDONLY, 0);
    if (fd < 0)
        (void)close(*dir);
    return fd;
}

ssize_t tree_read(const struct tree_place *place, uint64_t offset, uint8_t *bytes, size_t cap)
{
    int dir, fd = open_file(place, &dir);
    ssize_t len;

    if (fd < 0)
        return -1;
    len = pread(fd, bytes, cap, (off_t)offset);
    (void)close(fd);
    (void)close(dir);
    return len;
}

uint64_t tree_next(const struct tree_place *place, uint64_t from, uint64_t bytes, uint64_t piece)
{
    uint64_t last = bytes > piece ? bytes - piece : 0;
    int dir, fd = from < last ? open_file(place, &dir) : -1;
    off_t data;

    if (fd < 0)
        return from;
    data = lseek(fd, (off_t)from, SEEK_DATA);
    if (data < 0 && errno != ENXIO) /* a file system that knows of no holes */
        data = (off_t)from;
    (void)close(fd);
    (void)close(dir);
    return data < 0 || (uint64_t)data > last ? last : (uint64_t)data;
}

static bool same_content(const struct tree_version *a, const struct tree_version *b)
{
    return a->bytes == b->bytes && a->by_bytes == b->by_bytes && shoal_hash_equal(a->hash, b->hash);
}

/* What lies here, and what is noted of it. */
struct here {
    bool there, changed; /* it has changed between two calls: then it is none of the contents that anybody knows */
    bool noted, noted_by_bytes;
    struct tree_version is, note;
    uint64_t ms; /* when it was changed */
};

static enum tree_digest_step digest_of(const struct tree_place *place, struct tree_digest *digest, struct here *here)
{
    int dir, fd = open_file(place, &dir);
    enum tree_digest_step step;
    struct stat facts;

    if (fd < 0)
        return TREE_DIGEST_FAILED;
    step = tree_digest_step(digest, fd);
    if ((step == TREE_DIGEST_DONE && digest->flush && (fsync(fd) != 0 || fsync(dir) != 0)) || fstat(fd, &facts) != 0)
        step = TREE_DIGEST_FAILED;
    else
        here->ms = changed_ms(&facts);
    (void)close(fd);
    (void)close(dir);
    return step;
}

/* The note of an agent of the version before says what the bytes of a long file are. False: there is more to do. */
static bool look_at_old_note(const struct tree_place *place, struct tree_work *work, struct here *here)
{
    enum tree_digest_step step;

    work->here_bytes.by_bytes = true;
    step = digest_of(place, &work->here_bytes, here);
    if (step == TREE_DIGEST_MORE)
        return false;
    here->changed = here->changed || step == TREE_DIGEST_CHANGED;
    if (step == TREE_DIGEST_DONE && shoal_hash_equal(work->here_bytes.hash, here->note.hash)) {
        here->note.hash = here->is.hash;
        here->note.by_bytes = false;
    }
    return true;
}

/* False: there is more to do. */
static bool look_here(const struct tree_place *place, struct tree_work *work, struct here *here)
{
    enum tree_digest_step step;

    *here = (struct here){ 0 };
    here->noted = note_read(place, &here->note);
    here->noted_by_bytes = here->note.by_bytes;
    step = digest_of(place, &work->here, here);
    work->more = step == TREE_DIGEST_MORE;
    here->there = step == TREE_DIGEST_DONE || step == TREE_DIGEST_CHANGED;
    here->changed = step == TREE_DIGEST_CHANGED;
    if (step == TREE_DIGEST_DONE) {
        here->is.bytes = (uint64_t)work->here.facts.st_size;
        here->is.hash = work->here.hash;
        if (here->note.by_bytes && here->note.bytes == here->is.bytes)
            work->more = !look_at_old_note(place, work, here);
    }
    if (here->changed)
        here->is = (struct tree_version){ .bytes = UINT64_MAX };
    return !work->more;
}

enum shoal_err tree_prepare(const struct tree_place *place, const struct tree_change *change, struct tree_work *work,
                            struct tree_version *version, bool *fresh)
{
    struct here here;

    *fresh = false;
    *version = (struct tree_version){ .number = 0 };
    work->here.flush = true;
    if (!look_here(place, work, &here))
        return SHOAL_OK;
    if (!here.there)
        return SHOAL_ERR_NOT_FOUND;
    if (here.changed)
        return SHOAL_ERR_STALE;
    if (here.noted && same_content(&here.note, &here.is) && here.note.number > change->above) {
        *version = here.note;
        return here.noted_by_bytes ? note_write(place, version) : SHOAL_OK;
    }
    *version = here.is;
    if (change->doubted) /* N3 */
        return SHOAL_OK;
    version->number = next_number(&here.note, change->above, &change->self, here.ms);
    version->author = change->self.node;
    *fresh = true;
    return note_write(place, version);
}

/* Whether there is nothing under the path's name: not for want of a descriptor, or for another reason not to see it. */
static bool is_absent(const struct tree_place *place)
{
    const char *name;
    int dir = open_folder(place->root, place->path, false, &name);
    struct stat facts;
    bool absent;

    if (dir < 0)
        return errno == ENOENT;
    absent = fstatat(dir, name, &facts, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT;
    (void)close(dir);
    return absent;
}

enum shoal_err tree_forget(const struct tree_place *place, const struct tree_change *change, struct tree_version *version,
                           bool *fresh)
{
    const uint64_t above = change->above;
    struct tree_version noted;

    *fresh = false;
    *version = (struct tree_version){ .number = 0 };
    if (!is_absent(place))
        return SHOAL_ERR_NOT_FOUND;
    if (note_read(place, &noted) && is_gone(&noted) && noted.number > above) {
        *version = noted;
        return SHOAL_OK;
    }
    version->number = (noted.number > above ? noted.number : above) + 1; /* N6: of what it knows, and no more */
    version->author = change->self.node;
    *fresh = true;
    return note_write(place, version);
}

/* ---- what is pushed here ---- */

/* N7. What lies here is not what the note says. */
static bool is_later_change(const struct tree_piece *piece, struct here *here)
{
    if (piece->version.number == 0 || piece->doubted)
        return false;
    here->is.number = next_number(&here->note, 0, &piece->here, here->ms);
    here->is.author = piece->here.node;
    if (tree_version_cmp(&here->is, &piece->version) > 0)
        return true;
    here->is.number = 0;
    return false;
}

/* N2, N3. What is here is not older than the piece's content. */
static bool keeps(const struct tree_piece *piece, struct here *here, struct tree_version *ours)
{
    *ours = here->note;
    if (here->there && (!here->noted || !same_content(&here->is, ours)) && !same_content(&here->is, &piece->version) &&
        is_later_change(piece, here)) {
        *ours = here->is;
        return true;
    }
    if (!here->there && here->noted && piece->versioned && is_gone(ours) && tree_version_cmp(ours, &piece->version) >= 0)
        return true; /* N6 */
    if (!piece->versioned || (here->noted && tree_version_cmp(ours, &piece->version) < 0) || !here->there) {
        ours->number = 0;
        return false;
    }
    if (!here->noted) {
        *ours = here->is;
        return piece->version.number == 0 && here->is.bytes > 0;
    }
    if (!same_content(&here->is, ours) && piece->doubted) { /* it was lost here: any whole content is better */
        *ours = here->is;
        return piece->version.number == 0 && here->is.bytes > 0;
    }
    return true;
}

/* As on the host that wrote it: whoever lists the file sees one time everywhere. */
static bool set_mtime(int fd, uint64_t mtime_ns)
{
    struct timespec times[2] = { { .tv_nsec = UTIME_OMIT },
                                 { .tv_sec = (time_t)(mtime_ns / SHOAL_S), .tv_nsec = (long)(mtime_ns % SHOAL_S) } };

    return futimens(fd, times) == 0;
}

static enum shoal_err take_log(int dir, const char *name, const struct tree_piece *piece, struct stat *facts)
{
    int fd = open_at(dir, name, O_WRONLY | O_CREAT, piece->mode & 0700);
    struct shoal_view bytes = piece->bytes;
    uint64_t at = piece->offset, skip = 0;
    bool ok = fd >= 0 && fstat(fd, facts) == 0;
    bool made = ok && facts->st_size == 0;

    if (ok && piece->versioned && piece->version.number == 0 && (uint64_t)facts->st_size > at) /* N4 */
        skip = (uint64_t)facts->st_size - at < bytes.len ? (uint64_t)facts->st_size - at : bytes.len;
    bytes = shoal_view_of(bytes.bytes + skip, bytes.len - skip);
    at += skip;
    ok = ok && (bytes.len == 0 || pwrite(fd, bytes.bytes, bytes.len, (off_t)at) == (ssize_t)bytes.len) &&
         fdatasync(fd) == 0 && (!made || fsync(dir) == 0) && fstat(fd, facts) == 0;
    if (ok && (uint64_t)facts->st_size == at + bytes.len)
        ok = set_mtime(fd, piece->mtime_ns) && fstat(fd, facts) == 0;
    if (fd >= 0)
        (void)close(fd);
    return ok ? SHOAL_OK : SHOAL_ERR_STORAGE;
}

static bool all_zero(struct shoal_view bytes)
{
    return bytes.len > 0 && bytes.bytes[0] == 0 && memcmp(bytes.bytes, bytes.bytes + 1, bytes.len - 1) == 0;
}

/* N5. Zeros cut off what an earlier try has left behind them, and are a hole then. */
static bool put_piece(int fd, const struct tree_piece *piece)
{
    uint64_t end = piece->offset + piece->bytes.len;

    if (end > INT64_MAX)
        return false;
    if (all_zero(piece->bytes))
        return ftruncate(fd, (off_t)piece->offset) == 0 && ftruncate(fd, (off_t)end) == 0;
    return pwrite(fd, piece->bytes.bytes, piece->bytes.len, (off_t)piece->offset) == (ssize_t)piece->bytes.len;
}

static void part_name(const char *name, const struct tree_piece *piece, char part[TREE_PATH_BYTES + 32])
{
    char hex[SHOAL_NODE_ID_TEXT_BYTES];

    shoal_hex_text(piece->from.bytes, 4, hex); /* two hosts may push at one time */
    (void)snprintf(part, TREE_PATH_BYTES + 32, "%s.%s.part", name, hex);
}

/* A piece on its way into a file. */
struct take {
    const struct tree_place *place;
    const struct tree_piece *piece;
    struct tree_work *work;
    struct tree_taken *taken;
    int dir;
    const char *name;
    char part[TREE_PATH_BYTES + 32];
};

/* N1. The part holds what its pusher named: `*version`, as it is noted here. OK with work->more: there is more to do. */
static enum shoal_err part_holds(const struct take *t, int fd, struct tree_version *version)
{
    struct tree_work *work = t->work;
    struct tree_digest *digest = t->piece->version.by_bytes && work->part.done ? &work->part_bytes : &work->part;
    enum tree_digest_step step;
    struct tree_version got = { .number = 0 }, noted;

    work->part_bytes.by_bytes = true;
    step = tree_digest_step(digest, fd);
    if (step == TREE_DIGEST_DONE && digest == &work->part && t->piece->version.by_bytes)
        step = TREE_DIGEST_MORE; /* once more by its bytes, as an agent of the version before names it */
    work->more = step == TREE_DIGEST_MORE;
    if (step == TREE_DIGEST_FAILED)
        return SHOAL_ERR_STORAGE;
    if (step == TREE_DIGEST_CHANGED)
        return SHOAL_ERR_STALE;
    if (work->more)
        return SHOAL_OK;
    got.bytes = (uint64_t)digest->facts.st_size;
    got.hash = digest->hash;
    got.by_bytes = t->piece->version.by_bytes;
    *version = t->piece->version;
    if (!t->piece->versioned) {
        (void)note_read(t->place, &noted);
        *version = got;
        version->number = noted.number + 1;
        version->author = t->piece->from;
    } else if (!same_content(&got, version)) { /* it changed while it was sent, or pieces are missing */
        return SHOAL_ERR_MALFORMED;
    }
    version->hash = work->part.hash;
    version->by_bytes = false;
    return SHOAL_OK;
}

/* The last piece is written: does it all hold, and is it still newer than what lies here? */
static enum shoal_err finish(const struct take *t, int fd)
{
    struct tree_version version;
    enum shoal_err err = part_holds(t, fd, &version);
    struct here here;

    if (err != SHOAL_OK || t->work->more)
        return err;
    if (t->piece->offset > 0) { /* what lies here may have been changed while the pieces came */
        if (!look_here(t->place, t->work, &here))
            return SHOAL_OK;
        if (keeps(t->piece, &here, &t->taken->ours)) {
            t->taken->outcome = TREE_KEPT;
            (void)unlinkat(t->dir, t->part, 0);
            return SHOAL_OK;
        }
    }
    (void)fchmod(fd, t->piece->mode & 0700); /* which may be another one than the first piece's */
    (void)set_mtime(fd, t->piece->mtime_ns);
    err = shoal_disk_commit(t->dir, fd, t->part, t->name, NULL);
    if (err == SHOAL_OK && version.number > 0)
        err = note_write(t->place, &version);
    return err;
}

static enum shoal_err take_file(struct take *t)
{
    enum shoal_err err = SHOAL_OK;
    int flags = O_RDWR, fd;

    if (!t->work->put)
        flags |= O_CREAT | (t->piece->offset > 0 ? 0 : O_TRUNC);
    part_name(t->name, t->piece, t->part);
    fd = open_at(t->dir, t->part, flags, t->piece->mode & 0700);
    if (fd < 0 || (!t->work->put && !put_piece(fd, t->piece)))
        err = SHOAL_ERR_STORAGE;
    t->work->put = true;
    if (err == SHOAL_OK && t->piece->last)
        err = finish(t, fd);
    if (fd >= 0 && fstat(fd, &t->taken->facts) != 0)
        err = SHOAL_ERR_STORAGE;
    if (err != SHOAL_OK && err != SHOAL_ERR_STALE) /* stale: its pusher has begun again, and the part is that try's */
        (void)unlinkat(t->dir, t->part, 0);
    if (fd >= 0)
        (void)close(fd);
    return err;
}

/* The content is here already; its mode may have changed since. */
static void take_mode(const struct tree_place *place, const struct tree_piece *piece)
{
    const char *name;
    int dir = open_folder(place->root, place->path, false, &name);
    int fd = dir < 0 ? -1 : open_at(dir, name, O_RDONLY, 0);

    if (fd >= 0) {
        (void)fchmod(fd, piece->mode & 0700);
        (void)close(fd);
    }
    if (dir >= 0)
        (void)close(dir);
}

/* N6. */
static enum shoal_err take_gone(const struct tree_place *place, const struct tree_piece *piece, struct tree_work *work,
                                struct tree_taken *taken)
{
    struct here here;
    char part[TREE_PATH_BYTES + 32];
    const char *name;
    bool removed = true;
    int dir;

    if (!look_here(place, work, &here))
        return SHOAL_OK;
    dir = open_folder(place->root, place->path, false, &name);
    if (here.noted && tree_version_cmp(&here.note, &piece->version) >= 0)
        taken->outcome = TREE_KEPT;
    else if (here.there && (!here.noted || !same_content(&here.is, &here.note)))
        taken->outcome = TREE_KEPT;
    taken->ours = here.noted ? here.note : here.is;
    if (dir >= 0) {
        part_name(name, piece, part);
        (void)unlinkat(dir, part, 0); /* what was on its way when it was removed */
        removed = taken->outcome == TREE_KEPT || !here.there || (unlinkat(dir, name, 0) == 0 && fsync(dir) == 0);
        (void)close(dir);
    }
    if (!removed)
        return SHOAL_ERR_STORAGE;
    return taken->outcome == TREE_KEPT || !(here.noted || here.there) ? SHOAL_OK : note_write(place, &piece->version);
}

/* The first piece: what is here may not be older. OK with TREE_TAKEN: it is. */
static void look_first(const struct tree_place *place, const struct tree_piece *piece, struct tree_work *work,
                       struct tree_taken *taken)
{
    struct here here;

    if (!look_here(place, work, &here) || !keeps(piece, &here, &taken->ours))
        return;
    taken->outcome = TREE_KEPT;
    if (piece->versioned && taken->ours.number > 0 && tree_version_cmp(&taken->ours, &piece->version) == 0)
        take_mode(place, piece);
}

enum shoal_err tree_take(const struct tree_place *place, const struct tree_piece *piece, struct tree_work *work,
                         struct tree_taken *taken)
{
    struct take t = { .place = place, .piece = piece, .work = work, .taken = taken };
    enum shoal_err err;

    *taken = (struct tree_taken){ .outcome = TREE_TAKEN };
    work->more = false;
    if (piece->gone)
        return take_gone(place, piece, work, taken);
    if (!piece->log && piece->offset == 0 && !work->put) {
        look_first(place, piece, work, taken);
        if (work->more || taken->outcome == TREE_KEPT)
            return SHOAL_OK;
    }
    err = shoal_disk_folders(place->root, 0700, NULL);
    if (err != SHOAL_OK)
        return err;
    t.dir = open_folder(place->root, place->path, true, &t.name);
    if (t.dir < 0)
        return SHOAL_ERR_STORAGE;
    if (piece->log)
        err = take_log(t.dir, t.name, piece, &taken->facts);
    else
        err = take_file(&t);
    (void)close(t.dir);
    return err;
}
