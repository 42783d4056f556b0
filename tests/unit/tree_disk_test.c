/* Replicated files of a result folder on disk (tree_disk.h): which content of a path stays, and when a removal takes it away. */
#include "shoal/limits.h"
#include "node/blob/tree_disk.h"
#include "node/blob/tree_owed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "shoal/disk.h"
#include "shoal/hash.h"
#include "shoal/wire.h"

/* Two hosts, each with a result folder and notes. */
struct fixture {
    char root[64];
    struct tree_place host[2];
};

static const struct shoal_node_id author[2] = { { { 1 } }, { { 2 } } };

/* Which content the host's file is: each test's files but one are of one slice. */
static struct tree_version prepare(const struct tree_place *place, unsigned host, bool doubted, bool *fresh)
{
    const struct tree_change change = { .self.node = author[host], .doubted = doubted };
    struct tree_work work = { 0 };
    struct tree_version version;

    do
        assert_int_equal(tree_prepare(place, &change, &work, &version, fresh), SHOAL_OK);
    while (work.more);
    return version;
}

static enum shoal_err forget(const struct tree_place *place, unsigned host, uint64_t above, struct tree_version *version)
{
    const struct tree_change change = { .self.node = author[host], .above = above };
    bool fresh;

    return tree_forget(place, &change, version, &fresh);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    if (f == NULL)
        return -1;
    (void)snprintf(f->root, sizeof(f->root), "/tmp/shoal-tree-XXXXXX");
    *state = f;
    if (mkdtemp(f->root) == NULL)
        return -1;
    for (unsigned i = 0; i < 2; i++) {
        struct tree_place *place = &f->host[i];

        (void)snprintf(place->root, sizeof(place->root), "%s/result-%u", f->root, i);
        (void)snprintf(place->notes, sizeof(place->notes), "%s/notes-%u", f->root, i);
        (void)snprintf(place->path, sizeof(place->path), "model.pth");
        if (mkdir(place->root, 0700) != 0)
            return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    char command[128];

    (void)snprintf(command, sizeof(command), "rm -rf %s", f->root);
    (void)!system(command);
    free(f);
    return 0;
}

static void file_path(const struct tree_place *place, char path[TREE_ROOT_BYTES + TREE_PATH_BYTES])
{
    (void)snprintf(path, TREE_ROOT_BYTES + TREE_PATH_BYTES, "%.*s/%.*s", TREE_ROOT_BYTES - 2, place->root, TREE_PATH_BYTES - 1,
                   place->path);
}

static void put(const struct tree_place *place, const char *text)
{
    char path[TREE_ROOT_BYTES + TREE_PATH_BYTES];
    FILE *file;

    file_path(place, path);
    file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static bool is_there(const struct tree_place *place)
{
    char path[TREE_ROOT_BYTES + TREE_PATH_BYTES];

    file_path(place, path);
    return access(path, F_OK) == 0;
}

static void take_away(const struct tree_place *place)
{
    char path[TREE_ROOT_BYTES + TREE_PATH_BYTES];

    file_path(place, path);
    assert_int_equal(unlink(path), 0);
}

/* The piece that host `from` would push of its file now. */
static struct tree_piece prepared(struct fixture *f, unsigned from, const char *text)
{
    struct tree_piece piece = { .last = true, .versioned = true, .mode = 0600, .from = author[from] };
    bool fresh;

    put(&f->host[from], text);
    piece.version = prepare(&f->host[from], from, false, &fresh);
    piece.bytes = shoal_view_of((const uint8_t *)text, strlen(text));
    return piece;
}

static struct tree_piece removed(struct fixture *f, unsigned from, uint64_t above)
{
    struct tree_piece piece = { .last = true, .versioned = true, .gone = true, .from = author[from] };

    if (is_there(&f->host[from]))
        take_away(&f->host[from]);
    assert_int_equal(forget(&f->host[from], from, above, &piece.version), SHOAL_OK);
    return piece;
}

static enum tree_outcome take(struct fixture *f, unsigned at, const struct tree_piece *piece, struct tree_version *ours)
{
    struct tree_work work = { 0 };
    struct tree_taken taken;
    struct tree_piece there = *piece;

    there.here.node = author[at];
    do
        assert_int_equal(tree_take(&f->host[at], &there, &work, &taken), SHOAL_OK);
    while (work.more);
    if (ours != NULL)
        *ours = taken.ours;
    return taken.outcome;
}

static void a_removal_takes_away_the_content_that_it_knows(void **state)
{
    struct fixture *f = *state;
    struct tree_piece first = prepared(f, 0, "one"), gone;

    assert_int_equal(take(f, 1, &first, NULL), TREE_TAKEN);
    gone = removed(f, 0, 0);
    assert_int_equal(gone.version.number, first.version.number + 1);
    assert_int_equal(take(f, 1, &gone, NULL), TREE_TAKEN);
    assert_false(is_there(&f->host[1]));
}

static void an_older_content_does_not_come_back(void **state)
{
    struct fixture *f = *state;
    struct tree_piece first = prepared(f, 0, "one"), gone, again;
    struct tree_version ours;

    assert_int_equal(take(f, 1, &first, NULL), TREE_TAKEN);
    gone = removed(f, 0, 0);
    assert_int_equal(take(f, 1, &gone, NULL), TREE_TAKEN);
    assert_int_equal(take(f, 1, &first, &ours), TREE_KEPT);
    assert_int_equal(ours.number, gone.version.number);
    first.version.number = 0; /* found after a power cut, and not proven */
    assert_int_equal(take(f, 1, &first, NULL), TREE_KEPT);
    assert_false(is_there(&f->host[1]));
    again = prepared(f, 0, "one"); /* made anew */
    assert_int_equal(take(f, 1, &again, NULL), TREE_TAKEN);
    assert_true(is_there(&f->host[1]));
}

static void what_is_newer_or_not_known_stays(void **state)
{
    struct fixture *f = *state;
    struct tree_piece first = prepared(f, 0, "one"), second, gone;
    struct tree_version ours;

    assert_int_equal(take(f, 1, &first, NULL), TREE_TAKEN);
    gone = removed(f, 0, 0);
    put(&f->host[1], "changed here"); /* and not noted yet */
    assert_int_equal(take(f, 1, &gone, NULL), TREE_KEPT);
    assert_true(is_there(&f->host[1]));
    second = prepared(f, 1, "changed again");
    second = prepared(f, 1, "and again");
    assert_true(second.version.number > gone.version.number);
    assert_int_equal(take(f, 1, &gone, &ours), TREE_KEPT);
    assert_int_equal(ours.number, second.version.number);
    assert_true(is_there(&f->host[1]));
    assert_int_equal(take(f, 0, &second, NULL), TREE_TAKEN); /* newer than the removal */
    assert_true(is_there(&f->host[0]));
}

static void what_has_no_note_stays(void **state)
{
    struct fixture *f = *state;
    struct tree_piece gone;

    (void)prepared(f, 0, "one");
    gone = removed(f, 0, 0);
    put(&f->host[1], "nobody's");
    assert_int_equal(take(f, 1, &gone, NULL), TREE_KEPT);
    assert_true(is_there(&f->host[1]));
}

static void only_a_file_that_is_not_there_is_removed(void **state)
{
    struct fixture *f = *state;
    struct tree_version version;
    char target[TREE_ROOT_BYTES + 8], link[TREE_ROOT_BYTES + 8];

    (void)prepared(f, 0, "one");
    assert_int_equal(forget(&f->host[0], 0, 0, &version), SHOAL_ERR_NOT_FOUND);
    take_away(&f->host[0]);
    (void)snprintf(target, sizeof(target), "%s/real", f->root);
    (void)snprintf(link, sizeof(link), "%s/sub", f->host[0].root);
    assert_int_equal(mkdir(target, 0700), 0);
    assert_int_equal(symlink(target, link), 0); /* cannot be looked into: no link is followed */
    (void)snprintf(f->host[0].path, sizeof(f->host[0].path), "sub/model.pth");
    assert_int_equal(forget(&f->host[0], 0, 0, &version), SHOAL_ERR_NOT_FOUND);
}

/* N3. What it noted before the power cut is another content: which one is whole is not known. */
static void a_content_that_is_not_proven_has_no_number(void **state)
{
    struct fixture *f = *state;
    struct tree_version version;
    bool fresh;
    const uint64_t number = prepared(f, 0, "one").version.number;

    put(&f->host[0], "o");
    version = prepare(&f->host[0], 0, true, &fresh);
    assert_int_equal(version.number, 0);
    assert_false(fresh);
    put(&f->host[0], "one");
    version = prepare(&f->host[0], 0, true, &fresh);
    assert_int_equal(version.number, number);
}

static void note_path(const struct tree_place *place, char path[TREE_ROOT_BYTES + 80])
{
    struct shoal_hash hash = shoal_hash_of(shoal_view_of((const uint8_t *)place->path, strlen(place->path)));
    char hex[SHOAL_HASH_TEXT_BYTES];

    shoal_hex_text(hash.bytes, 16, hex);
    (void)snprintf(path, TREE_ROOT_BYTES + 80, "%.*s/%s", TREE_ROOT_BYTES - 1, place->notes, hex);
}

static void a_note_of_another_path_says_nothing(void **state)
{
    struct fixture *f = *state;
    struct tree_place *place = &f->host[0];
    char from[TREE_ROOT_BYTES + 80], to[TREE_ROOT_BYTES + 80];
    bool fresh;

    (void)prepared(f, 0, "changed once");
    (void)prepared(f, 0, "one");
    note_path(place, from);
    (void)snprintf(place->path, sizeof(place->path), "other.pth");
    note_path(place, to);
    put(place, "one");
    assert_int_equal(rename(from, to), 0);
    (void)prepare(place, 0, false, &fresh);
    assert_true(fresh);
}

/* N5. The second try finds what the first one left, where there are zeros now. */
static void zeros_take_away_what_an_earlier_try_left(void **state)
{
    static char text[3 * 4096 + 1], zeros[3 * 4096 + 1];
    struct fixture *f = *state;
    struct tree_piece piece;
    char path[TREE_ROOT_BYTES + TREE_PATH_BYTES];
    struct stat facts;

    memset(text, 'x', sizeof(text) - 1);
    piece = prepared(f, 0, text);
    piece.last = false;
    piece.bytes = shoal_view_of((const uint8_t *)text, 4096);
    assert_int_equal(take(f, 1, &piece, NULL), TREE_TAKEN);
    piece.offset = 4096;
    piece.bytes.len = 2 * 4096;
    assert_int_equal(take(f, 1, &piece, NULL), TREE_TAKEN);
    memcpy(zeros, text, 4096);
    piece.version.bytes = sizeof(zeros) - 1;
    piece.version.hash = shoal_hash_of(shoal_view_of((const uint8_t *)zeros, sizeof(zeros) - 1));
    piece.bytes = shoal_view_of((const uint8_t *)zeros + 4096, 2 * 4096);
    piece.last = true;
    assert_int_equal(take(f, 1, &piece, NULL), TREE_TAKEN);
    file_path(&f->host[1], path);
    assert_int_equal(stat(path, &facts), 0);
    assert_int_equal(facts.st_size, sizeof(zeros) - 1);
}

/* What the disk was told to keep, in the order of the calls: these stand before the C library's. */
static ino_t flushed[64];
static unsigned flushed_count;

static int flush(int fd, long call)
{
    struct stat facts;

    if (fstat(fd, &facts) == 0 && flushed_count < sizeof(flushed) / sizeof(flushed[0]))
        flushed[flushed_count++] = facts.st_ino;
    return (int)syscall(call, fd);
}

int fsync(int fd);
int fdatasync(int fd);
int fsync(int fd) { return flush(fd, SYS_fsync); }
int fdatasync(int fd) { return flush(fd, SYS_fdatasync); }

static bool was_flushed(ino_t file)
{
    for (unsigned i = 0; i < flushed_count; i++)
        if (flushed[i] == file)
            return true;
    return false;
}

/* N4. Who is told that a piece was taken sends it to nobody again. */
static void a_piece_of_a_log_is_flushed_before_it_counts(void **state)
{
    struct fixture *f = *state;
    struct tree_piece piece = { .log = true, .mode = 0600, .from = author[0], .bytes = shoal_view_of((const uint8_t *)"line\n", 5) };
    char path[TREE_ROOT_BYTES + TREE_PATH_BYTES];
    struct stat file, folder;

    file_path(&f->host[1], path);
    assert_int_equal(stat(f->host[1].root, &folder), 0);
    for (unsigned i = 0; i < 2; i++) {
        piece.offset = 5 * i;
        flushed_count = 0;
        assert_int_equal(take(f, 1, &piece, NULL), TREE_TAKEN);
        assert_int_equal(stat(path, &file), 0);
        assert_int_equal(file.st_size, 5 * (i + 1));
        assert_true(was_flushed(file.st_ino));
        assert_true(was_flushed(folder.st_ino) == (i == 0)); /* its name, when it is made */
    }
}

/* disk.h: `a` is there, and nobody has flushed it into its folder. */
static void folders_are_flushed_from_the_deepest_that_was_there(void **state)
{
    struct fixture *f = *state;
    char path[96];
    struct stat root, a, b;

    (void)snprintf(path, sizeof(path), "%s/a", f->root);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(stat(f->root, &root), 0);
    assert_int_equal(stat(path, &a), 0);
    memcpy(path + strlen(path), "/b/c", 5);
    flushed_count = 0;
    assert_int_equal(shoal_disk_folders(path, 0700, NULL), SHOAL_OK);
    path[strlen(path) - 2] = '\0';
    assert_int_equal(stat(path, &b), 0);
    assert_int_equal(flushed_count, 3);
    assert_true(was_flushed(root.st_ino) && was_flushed(a.st_ino) && was_flushed(b.st_ino));
}

static void a_file_is_no_folder(void **state)
{
    static const char *const paths[] = { "model.pth", "model.pth/below" };
    struct fixture *f = *state;

    put(&f->host[0], "text");
    for (unsigned i = 0; i < 2; i++) {
        char path[160];
        struct shoal_msg msg = { "" };

        (void)snprintf(path, sizeof(path), "%.100s/%s", f->host[0].root, paths[i]);
        assert_int_equal(shoal_disk_folders(path, 0700, &msg), SHOAL_ERR_STORAGE);
        assert_non_null(strstr(msg.text, "Not a directory"));
    }
}

/* Its time is the one of the host that writes it, except where this one has more of it already. */
static void a_log_has_one_time_on_every_host(void **state)
{
    struct fixture *f = *state;
    struct tree_piece piece = { .log = true, .mode = 0600, .from = author[0], .bytes = shoal_view_of((const uint8_t *)"line\n", 5) };
    char path[TREE_ROOT_BYTES + TREE_PATH_BYTES];
    struct stat file;

    file_path(&f->host[1], path);
    for (unsigned i = 0; i < 3; i++) {
        piece.offset = 5 * (i % 2);
        piece.mtime_ns = (1000 + i) * SHOAL_S + 7;
        assert_int_equal(take(f, 1, &piece, NULL), TREE_TAKEN);
        assert_int_equal(stat(path, &file), 0);
        assert_int_equal(file.st_mtim.tv_sec == 1000 + i, i < 2);
        assert_int_equal(file.st_mtim.tv_nsec == 7, i < 2);
    }
}

static void a_second_removal_has_the_first_ones_number(void **state)
{
    struct fixture *f = *state;
    struct tree_piece first, again, higher;

    (void)prepared(f, 0, "one");
    first = removed(f, 0, 0);
    again = removed(f, 0, 0);
    assert_int_equal(tree_version_cmp(&first.version, &again.version), 0);
    higher = removed(f, 0, first.version.number + 9);
    assert_int_equal(higher.version.number, first.version.number + 10);
}

/* The next change has a later time. */
static void let_time_pass(const struct tree_place *place)
{
    char path[TREE_ROOT_BYTES + TREE_PATH_BYTES + 8];
    struct timespec first = { 0 };
    struct stat facts;

    (void)snprintf(path, sizeof(path), "%.*s.time", (int)sizeof(path) - 8, place->root);
    for (;;) {
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

        assert_true(fd >= 0 && write(fd, "x", 1) == 1 && fstat(fd, &facts) == 0 && close(fd) == 0);
        if (first.tv_sec == 0)
            first = facts.st_ctim;
        if ((facts.st_ctim.tv_sec - first.tv_sec) * 1000 + (facts.st_ctim.tv_nsec - first.tv_nsec) / 1000000 > 2)
            return;
    }
}

/* N2, N7. Two hosts change one file and know nothing of each other: the later change stays on both, noted or not. */
static void a_late_push_takes_away_no_later_change(void **state)
{
    struct fixture *f = *state;
    struct tree_piece first = prepared(f, 0, "first"), last = first;
    struct tree_version ours;
    bool fresh;

    let_time_pass(&f->host[1]);
    put(&f->host[1], "last");
    assert_int_equal(take(f, 1, &first, &ours), TREE_KEPT); /* nobody has noted it */
    assert_true(ours.number > first.version.number);
    assert_memory_equal(&ours.author, &author[1], sizeof(author[1]));
    last.bytes = shoal_view_of((const uint8_t *)"last", 4);
    last.version = prepare(&f->host[1], 1, false, &fresh);
    assert_int_equal(tree_version_cmp(&ours, &last.version), 0); /* what was told is what is noted then */
    assert_int_equal(take(f, 1, &first, NULL), TREE_KEPT);
    assert_int_equal(take(f, 0, &last, NULL), TREE_TAKEN);
    put(&f->host[0], "a change of what was received");
    assert_int_equal(take(f, 0, &last, NULL), TREE_KEPT);
}

/* N7. It is changed here between the pieces of an older content. */
static void a_change_between_two_pieces_stays(void **state)
{
    struct fixture *f = *state;
    struct tree_piece whole = prepared(f, 0, "first"), piece = whole;
    char part[TREE_ROOT_BYTES + TREE_PATH_BYTES + 32];

    piece.last = false;
    piece.bytes = shoal_view_of(whole.bytes.bytes, 3);
    assert_int_equal(take(f, 1, &piece, NULL), TREE_TAKEN);
    file_path(&f->host[1], part);
    (void)snprintf(part + strlen(part), 32, ".01000000.part");
    assert_int_equal(access(part, F_OK), 0);
    let_time_pass(&f->host[1]);
    put(&f->host[1], "last");
    piece.last = true;
    piece.offset = 3;
    piece.bytes = shoal_view_of(whole.bytes.bytes + 3, whole.bytes.len - 3);
    assert_int_equal(take(f, 1, &piece, NULL), TREE_KEPT);
    assert_int_equal(access(part, F_OK), -1);
}

static void an_earlier_change_that_is_not_noted_gives_way(void **state)
{
    struct fixture *f = *state;
    struct tree_piece last;

    put(&f->host[1], "first");
    let_time_pass(&f->host[1]);
    last = prepared(f, 0, "last");
    assert_int_equal(take(f, 1, &last, NULL), TREE_TAKEN);
}

/* N2. The clock of the host that wrote during the call before is far ahead. */
static void a_later_call_counts_more_than_a_clock(void **state)
{
    struct fixture *f = *state;
    struct tree_piece piece = prepared(f, 0, "call 1"), own;

    piece.version.number = (1ull << 52) + (piece.version.number & ((1ull << 52) - 1)) + (1ull << 40);
    piece.here.call = 1;
    put(&f->host[1], "call 2");
    own = piece;
    assert_int_equal(take(f, 1, &own, NULL), TREE_TAKEN); /* of the same call: the clock decides */
    put(&f->host[1], "call 2 again");
    piece.version.number += 1ull << 20; /* it was changed there once more */
    piece.here.call = 2;
    assert_int_equal(take(f, 1, &piece, NULL), TREE_KEPT);
}

/* Of one byte more than is hashed by its bytes, nothing but a hole, with `text` at `at`. */
static void put_long(const struct tree_place *place, uint64_t bytes, uint64_t at, const char *text, size_t len)
{
    char path[TREE_ROOT_BYTES + TREE_PATH_BYTES];
    int fd;

    file_path(place, path);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && pwrite(fd, text, len, (off_t)at) == (ssize_t)len);
    assert_int_equal(close(fd), 0);
}

static uint64_t bytes_read;

ssize_t pread(int fd, void *bytes, size_t len, off_t at);
ssize_t pread(int fd, void *bytes, size_t len, off_t at)
{
    ssize_t got = (ssize_t)syscall(SYS_pread64, fd, bytes, len, at);

    bytes_read += got > 0 ? (uint64_t)got : 0;
    return got;
}

/* H1. A hundred GiB of holes are neither read nor hashed, and zeros that were written are the same content. */
static void a_hole_costs_nothing_and_is_zeros(void **state)
{
    static const char zeros[2 * TREE_CHUNK_BYTES];
    const uint64_t bytes = 100 * (uint64_t)TREE_WHOLE_BYTES + 5;
    struct fixture *f = *state;
    struct tree_version hole, written, other;
    bool fresh;

    bytes_read = 0;
    put_long(&f->host[0], bytes, 7 * TREE_CHUNK_BYTES, "text", 4);
    hole = prepare(&f->host[0], 0, false, &fresh);
    assert_int_equal(hole.bytes, bytes);
    assert_true(bytes_read < TREE_SLICE_BYTES);
    put_long(&f->host[0], bytes, 7 * TREE_CHUNK_BYTES - sizeof(zeros) / 2, zeros, sizeof(zeros));
    other = prepare(&f->host[0], 0, false, &fresh);
    assert_memory_not_equal(&hole.hash, &other.hash, sizeof(hole.hash));
    put_long(&f->host[0], bytes, 7 * TREE_CHUNK_BYTES, "text", 4);
    written = prepare(&f->host[0], 0, false, &fresh);
    assert_memory_equal(&hole.hash, &written.hash, sizeof(hole.hash));
    put_long(&f->host[1], bytes, bytes - 1, zeros, 1);
    assert_memory_equal(&other.hash, prepare(&f->host[1], 1, false, &fresh).hash.bytes, sizeof(other.hash));
}

/* N8. */
static void a_long_file_is_hashed_in_slices(void **state)
{
    struct fixture *f = *state;
    const struct tree_change change = { .self.node = author[0] };
    struct tree_work work = { 0 };
    struct tree_version version;
    unsigned calls = 0;
    bool fresh;

    put_long(&f->host[0], 3 * TREE_SLICE_BYTES, 0, "x", 1);
    do {
        bytes_read = 0;
        assert_int_equal(tree_prepare(&f->host[0], &change, &work, &version, &fresh), SHOAL_OK);
        assert_true(bytes_read <= TREE_SLICE_BYTES + TREE_PATH_BYTES);
        calls++;
    } while (work.more);
    assert_int_equal(calls, 3);
    assert_true(fresh && version.bytes == 3 * TREE_SLICE_BYTES);
    work = (struct tree_work){ 0 };
    assert_int_equal(tree_prepare(&f->host[0], &change, &work, &version, &fresh), SHOAL_OK);
    assert_true(work.more);
    put_long(&f->host[0], 3 * TREE_SLICE_BYTES, 1, "x", 1);
    assert_int_equal(tree_prepare(&f->host[0], &change, &work, &version, &fresh), SHOAL_ERR_STALE);
}

/* The piece of a long file that comes last: what went before it is a hole. */
static struct tree_piece last_piece(const struct tree_version *version)
{
    return (struct tree_piece){ .last = true,
                                .versioned = true,
                                .mode = 0600,
                                .offset = version->bytes - 4,
                                .from = author[0],
                                .version = *version,
                                .bytes = shoal_view_of((const uint8_t *)"text", 4) };
}

/* N1, N7. The part is verified in slices; what is changed here meanwhile stays. */
static void a_change_while_a_part_is_verified_stays(void **state)
{
    struct fixture *f = *state;
    struct tree_version version;
    struct tree_work work = { 0 };
    struct tree_taken taken;
    struct tree_piece piece;
    bool fresh;

    put_long(&f->host[0], 3 * TREE_SLICE_BYTES, 3 * TREE_SLICE_BYTES - 4, "text", 4);
    version = prepare(&f->host[0], 0, false, &fresh);
    piece = last_piece(&version);
    piece.here.node = author[1];
    assert_int_equal(tree_take(&f->host[1], &piece, &work, &taken), SHOAL_OK);
    assert_true(work.more && !is_there(&f->host[1]));
    let_time_pass(&f->host[1]);
    put(&f->host[1], "last");
    while (work.more)
        assert_int_equal(tree_take(&f->host[1], &piece, &work, &taken), SHOAL_OK);
    assert_int_equal(taken.outcome, TREE_KEPT);
    take_away(&f->host[1]);
    assert_int_equal(take(f, 1, &piece, NULL), TREE_TAKEN);
    assert_int_equal(prepare(&f->host[1], 1, false, &fresh).number, version.number);
}

/* An agent of the version before names a long file by all of its bytes, in its notes and to others. */
static void a_long_file_of_the_version_before_is_known(void **state)
{
    struct fixture *f = *state;
    struct tree_version version, again;
    char path[TREE_ROOT_BYTES + 80];
    uint8_t bytes[TREE_PATH_BYTES + 160];
    struct tree_piece piece;
    struct shoal_writer w;
    struct tree_digest digest = { .by_bytes = true };
    char file[TREE_ROOT_BYTES + TREE_PATH_BYTES];
    ssize_t len;
    bool fresh;
    int fd;

    put_long(&f->host[0], TREE_WHOLE_BYTES + 8, TREE_WHOLE_BYTES + 4, "text", 4);
    version = prepare(&f->host[0], 0, false, &fresh);
    file_path(&f->host[0], file);
    fd = open(file, O_RDONLY | O_CLOEXEC);
    while (tree_digest_step(&digest, fd) == TREE_DIGEST_MORE)
        continue;
    assert_true(digest.done);
    (void)close(fd);
    note_path(&f->host[0], path);
    fd = open(path, O_RDWR | O_CLOEXEC);
    len = read(fd, bytes, sizeof(bytes));
    assert_true(len > 36);
    bytes[1] = 1; /* its version */
    w = shoal_writer_init(bytes + len - 36, 36);
    shoal_put_hash(&w, digest.hash);
    shoal_put_u32(&w, shoal_crc32c(0, shoal_view_of(bytes, (size_t)len - 4)));
    assert_int_equal(pwrite(fd, bytes, (size_t)len, 0), len);
    (void)close(fd);
    again = prepare(&f->host[0], 0, false, &fresh);
    assert_true(!fresh && again.number == version.number && !again.by_bytes);
    assert_memory_equal(&again.hash, &version.hash, sizeof(again.hash));

    again.hash = digest.hash;
    again.by_bytes = true;
    piece = last_piece(&again);
    assert_int_equal(take(f, 1, &piece, NULL), TREE_TAKEN);
    assert_memory_equal(&version.hash, prepare(&f->host[1], 1, false, &fresh).hash.bytes, sizeof(version.hash));
    assert_false(fresh);
}

static void what_hosts_owe_is_kept_until_they_have_brought_it(void **state)
{
    struct fixture *f = *state;
    char folder[128], line[TREE_OWED_BYTES];

    (void)snprintf(folder, sizeof(folder), "%s/job/owed", f->root);
    assert_false(tree_owed_get(folder, line));
    assert_int_equal(tree_owed_put(folder, author[0], "one\nline"), SHOAL_OK);
    assert_true(tree_owed_get(folder, line));
    assert_string_equal(line, "one?line");
    assert_int_equal(tree_owed_put(folder, author[0], "two"), SHOAL_OK);
    assert_true(tree_owed_get(folder, line));
    assert_string_equal(line, "two");
    assert_int_equal(tree_owed_put(folder, author[1], ""), SHOAL_OK);
    assert_true(tree_owed_get(folder, line));
    assert_int_equal(tree_owed_put(folder, author[0], ""), SHOAL_OK);
    assert_false(tree_owed_get(folder, line));
    assert_int_equal(access(folder, F_OK), -1);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_removal_takes_away_the_content_that_it_knows), CASE(an_older_content_does_not_come_back),
        CASE(what_is_newer_or_not_known_stays),               CASE(what_has_no_note_stays),
        CASE(only_a_file_that_is_not_there_is_removed),       CASE(a_second_removal_has_the_first_ones_number),
        CASE(a_content_that_is_not_proven_has_no_number),     CASE(a_note_of_another_path_says_nothing),
        CASE(zeros_take_away_what_an_earlier_try_left),       CASE(a_piece_of_a_log_is_flushed_before_it_counts),
        CASE(a_log_has_one_time_on_every_host),               CASE(a_late_push_takes_away_no_later_change),
        CASE(a_change_between_two_pieces_stays),              CASE(an_earlier_change_that_is_not_noted_gives_way),
        CASE(a_later_call_counts_more_than_a_clock),          CASE(a_hole_costs_nothing_and_is_zeros),
        CASE(a_long_file_is_hashed_in_slices),                CASE(a_change_while_a_part_is_verified_stays),
        CASE(a_long_file_of_the_version_before_is_known),     CASE(what_hosts_owe_is_kept_until_they_have_brought_it),
        CASE(a_file_is_no_folder),                            CASE(folders_are_flushed_from_the_deepest_that_was_there),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
