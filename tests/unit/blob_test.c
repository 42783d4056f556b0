#include "shoal/blob.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <uv.h>

#include <cmocka.h>

#include "loop_test.h"

#include "shoal/crypto.h"

#include "shoal/banned.h"

struct fixture {
    char dir[64], blobs_dir[80];
    uv_loop_t loop;
    uv_timer_t watchdog;
    struct shoal_blobs *blobs;
    struct shoal_msg msg;
    uint64_t reserve_bytes;
    unsigned ended, stopped, writables;
    enum shoal_err err;
    char text[400];
    struct shoal_hash hash;
    uint64_t bytes;
    struct shoal_buf got;
    bool late;
};

static const struct shoal_job_id job_a = { { 1 } }, job_b = { { 2 } };

static void on_put(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_hash hash, uint64_t bytes)
{
    struct fixture *f = arg;

    f->ended++;
    f->err = err;
    f->hash = hash;
    f->bytes = bytes;
    (void)snprintf(f->text, sizeof(f->text), "%s", msg == NULL ? "" : msg->text);
    assert_int_equal(msg == NULL, err == SHOAL_OK);
}

static void on_get(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view view)
{
    struct fixture *f = arg;

    f->ended++;
    f->err = err;
    (void)snprintf(f->text, sizeof(f->text), "%s", msg == NULL ? "" : msg->text);
    shoal_buf_deinit(&f->got);
    assert_int_equal(shoal_buf_append(&f->got, view.bytes, view.len), SHOAL_OK);
}

static void on_done(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    struct fixture *f = arg;

    f->ended++;
    f->err = err;
    (void)snprintf(f->text, sizeof(f->text), "%s", msg == NULL ? "" : msg->text);
}

static void on_stopped(void *arg) { ((struct fixture *)arg)->stopped++; }
static void on_writable(void *arg) { ((struct fixture *)arg)->writables++; }

static void start(struct fixture *f)
{
    struct shoal_blobs_options options = { .loop = &f->loop, .dir = f->blobs_dir, .reserve_bytes = f->reserve_bytes };

    if (shoal_blobs_create(&f->blobs, &options, &f->msg) != SHOAL_OK)
        fail_msg("%s", f->msg.text);
}

static void stop(struct fixture *f)
{
    f->stopped = 0;
    shoal_blobs_stop(f->blobs, on_stopped, f);
    f->blobs = NULL;
    RUN_UNTIL(f, f->stopped == 1);
}

static void restart(struct fixture *f)
{
    stop(f);
    start(f);
}

static void settle(struct fixture *f) { RUN_UNTIL(f, shoal_blobs_stats(f->blobs)->queued == 0); }

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    if (f == NULL || shoal_crypto_init(NULL) != SHOAL_OK || uv_loop_init(&f->loop) != 0)
        return -1;
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/shoal-blob-XXXXXX");
    if (mkdtemp(f->dir) == NULL)
        return -1;
    (void)snprintf(f->blobs_dir, sizeof(f->blobs_dir), "%s/blobs", f->dir);
    f->reserve_bytes = 1;
    loop_watch(&f->loop, &f->watchdog, &f->late);
    *state = f;
    start(f);
    return 0;
}

/* Files below `path`; removed on the way if asked. */
static unsigned walk(const char *path, bool remove_all)
{
    DIR *folder = opendir(path);
    const struct dirent *entry;
    unsigned count = 0;

    if (folder == NULL)
        return 0;
    while ((entry = readdir(folder)) != NULL) {
        char below[1024];

        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(below, sizeof(below), "%s/%s", path, entry->d_name);
        if (entry->d_type == DT_DIR) {
            count += walk(below, remove_all);
            continue;
        }
        count++;
        if (remove_all)
            (void)unlink(below);
    }
    (void)closedir(folder);
    if (remove_all)
        (void)rmdir(path);
    return count;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    if (f->blobs != NULL)
        stop(f);
    uv_close((uv_handle_t *)&f->watchdog, NULL);
    (void)uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    shoal_buf_deinit(&f->got);
    (void)walk(f->dir, true);
    free(f);
    return 0;
}

static struct shoal_buf content(size_t len, unsigned seed)
{
    struct shoal_buf buf = { 0 };

    assert_int_equal(shoal_buf_reserve(&buf, len + 1), SHOAL_OK);
    for (size_t i = 0; i < len; i++)
        buf.bytes[i] = (uint8_t)(i * 7 + (i >> 8) * 13 + (i >> 16) * 31 + seed);
    buf.len = len;
    return buf;
}

static struct shoal_hash put_blob(struct fixture *f, struct shoal_job_id owner, size_t len, unsigned seed)
{
    struct shoal_buf buf = content(len, seed);
    unsigned ended = f->ended;

    assert_int_equal(shoal_blobs_put(f->blobs, owner, shoal_buf_view(&buf), on_put, f), SHOAL_OK);
    shoal_buf_deinit(&buf);
    RUN_UNTIL(f, f->ended == ended + 1);
    if (f->err != SHOAL_OK)
        fail_msg("%s", f->text);
    assert_int_equal(f->bytes, len);
    return f->hash;
}

static void expect_blob(struct fixture *f, struct shoal_hash hash, size_t len, unsigned seed)
{
    struct shoal_buf want = content(len, seed);
    unsigned ended = f->ended;

    assert_int_equal(shoal_blobs_get(f->blobs, hash, len, on_get, f), SHOAL_OK);
    RUN_UNTIL(f, f->ended == ended + 1);
    if (f->err != SHOAL_OK)
        fail_msg("%s", f->text);
    assert_int_equal(f->got.len, len);
    assert_memory_equal(f->got.bytes, want.bytes, len);
    shoal_buf_deinit(&want);
}

static enum shoal_err get_err(struct fixture *f, struct shoal_hash hash, size_t max)
{
    unsigned ended = f->ended;

    assert_int_equal(shoal_blobs_get(f->blobs, hash, max, on_get, f), SHOAL_OK);
    RUN_UNTIL(f, f->ended == ended + 1);
    return f->err;
}

static enum shoal_err release(struct fixture *f, struct shoal_job_id owner, struct shoal_hash blob)
{
    unsigned ended = f->ended;

    assert_int_equal(shoal_blobs_release(f->blobs, owner, blob, on_done, f), SHOAL_OK);
    RUN_UNTIL(f, f->ended == ended + 1);
    settle(f);
    return f->err;
}

static enum shoal_err hold(struct fixture *f, struct shoal_job_id owner, struct shoal_hash blob)
{
    unsigned ended = f->ended;

    assert_int_equal(shoal_blobs_hold(f->blobs, owner, blob, on_done, f), SHOAL_OK);
    RUN_UNTIL(f, f->ended == ended + 1);
    return f->err;
}

static void path_of(const struct fixture *f, struct shoal_hash hash, char *path, size_t cap)
{
    char name[SHOAL_HASH_TEXT_BYTES];

    shoal_hex_text(hash.bytes, sizeof(hash.bytes), name);
    (void)snprintf(path, cap, "%s/%.2s/%s", f->blobs_dir, name, name);
}

static void blobs_of_every_size_come_back(void **state)
{
    static const size_t lens[] = { 0,
                                   1,
                                   1000,
                                   SHOAL_CHUNK_BYTES_MAX - 1,
                                   SHOAL_CHUNK_BYTES_MAX,
                                   SHOAL_CHUNK_BYTES_MAX + 1,
                                   3 * SHOAL_CHUNK_BYTES_MAX + 17 };
    struct fixture *f = *state;
    struct shoal_hash hashes[sizeof(lens) / sizeof(lens[0])];

    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        hashes[i] = put_blob(f, job_a, lens[i], (unsigned)i);
        expect_blob(f, hashes[i], lens[i], (unsigned)i);
    }
    restart(f);
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        assert_true(shoal_blobs_holds(f->blobs, job_a, hashes[i]));
        expect_blob(f, hashes[i], lens[i], (unsigned)i);
    }
    assert_int_equal(shoal_blobs_stats(f->blobs)->blobs_held, sizeof(lens) / sizeof(lens[0]));
    assert_int_equal(get_err(f, hashes[2], 999), SHOAL_ERR_TOO_BIG);
    assert_int_equal(get_err(f, (struct shoal_hash){ { 1 } }, 10), SHOAL_ERR_NOT_FOUND);
}

/* The folders that were flushed: this stands before the C library's. By the blobs' thread, which this one waits for. */
static ino_t flushed[64];
static unsigned flushed_count;

int fsync(int fd);
int fsync(int fd)
{
    struct stat facts;

    if (fstat(fd, &facts) == 0 && flushed_count < sizeof(flushed) / sizeof(flushed[0]))
        flushed[flushed_count++] = facts.st_ino;
    return (int)syscall(SYS_fsync, fd);
}

static bool was_flushed(const char *path)
{
    struct stat facts;

    assert_int_equal(stat(path, &facts), 0);
    for (unsigned i = 0; i < flushed_count; i++)
        if (flushed[i] == facts.st_ino)
            return true;
    return false;
}

/* A name outlives a power cut when its folder was flushed: the hold's, and the chunk's though somebody else has written it, who
 * may have died before. */
static void each_name_is_flushed_before_a_blob_counts(void **state)
{
    static const struct shoal_job_id owners[] = { { { 1 } }, { { 2 } } };
    struct fixture *f = *state;

    for (unsigned i = 0; i < 2; i++) {
        char path[1024], job[SHOAL_JOB_ID_TEXT_BYTES];
        struct shoal_hash hash;

        flushed_count = 0;
        hash = put_blob(f, owners[i], 1000, 1);
        shoal_job_id_text(owners[i], job);
        (void)snprintf(path, sizeof(path), "%s/held/%s", f->blobs_dir, job);
        assert_true(was_flushed(path));
        path_of(f, hash, path, sizeof(path));
        *strrchr(path, '/') = '\0';
        assert_true(was_flushed(path));
    }
}

static void equal_content_has_one_name_and_one_copy(void **state)
{
    struct fixture *f = *state;
    struct shoal_hash first = put_blob(f, job_a, 2500000, 1), second = put_blob(f, job_b, 2500000, 1);

    assert_true(shoal_hash_equal(first, second));
    assert_int_equal(shoal_blobs_stats(f->blobs)->chunks, 4);
    assert_int_equal(shoal_blobs_stats(f->blobs)->chunks_shared, 4);
    assert_int_equal(shoal_blobs_stats(f->blobs)->blobs_held, 1);
    assert_int_equal(release(f, job_a, first), SHOAL_OK);
    assert_int_equal(shoal_blobs_stats(f->blobs)->chunks, 4);
    expect_blob(f, first, 2500000, 1);
    assert_int_equal(release(f, job_b, first), SHOAL_OK);
    assert_int_equal(shoal_blobs_stats(f->blobs)->chunks, 0);
    assert_int_equal(shoal_blobs_stats(f->blobs)->bytes, 0);
    assert_int_equal(walk(f->blobs_dir, false), 0);
    assert_int_equal(get_err(f, first, 2500000), SHOAL_ERR_NOT_FOUND);
}

static void an_owner_lets_go_of_everything_at_once(void **state)
{
    struct fixture *f = *state;
    struct shoal_hash shared = put_blob(f, job_a, 1000, 1);

    assert_int_equal(hold(f, job_b, shared), SHOAL_OK);
    for (unsigned i = 2; i < 30; i++)
        (void)put_blob(f, job_a, 1000 * i, i);
    assert_int_equal(release(f, job_a, (struct shoal_hash){ { 0 } }), SHOAL_OK);
    assert_int_equal(shoal_blobs_stats(f->blobs)->chunks, 2);
    assert_int_equal(shoal_blobs_stats(f->blobs)->blobs_held, 1);
    assert_false(shoal_blobs_holds(f->blobs, job_a, shared));
    restart(f);
    expect_blob(f, shared, 1000, 1);
    assert_int_equal(walk(f->blobs_dir, false), 3);
}

static void chunks_that_nobody_holds_go_at_the_next_start(void **state)
{
    struct fixture *f = *state;
    struct shoal_buf chunk = content(5000, 3);
    struct shoal_hash kept = put_blob(f, job_a, 5, 1);
    char path[256];
    int fd;

    assert_int_equal(
        shoal_blobs_put_chunk(f->blobs, shoal_hash_of(shoal_buf_view(&chunk)), shoal_buf_view(&chunk), on_put, f),
        SHOAL_OK);
    settle(f);
    assert_true(shoal_blobs_has_chunk(f->blobs, shoal_hash_of(shoal_buf_view(&chunk))));
    (void)snprintf(path, sizeof(path), "%s/part/half", f->blobs_dir);
    fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_int_equal(write(fd, "half", 4), 4);
    (void)close(fd);
    restart(f);
    assert_false(shoal_blobs_has_chunk(f->blobs, shoal_hash_of(shoal_buf_view(&chunk))));
    assert_int_equal(walk(f->blobs_dir, false), 3);
    expect_blob(f, kept, 5, 1);
    shoal_buf_deinit(&chunk);
}

static void a_blob_travels_chunk_by_chunk(void **state)
{
    struct fixture *f = *state;
    struct shoal_hash blob = put_blob(f, job_a, 2100000, 9);
    struct shoal_buf chunks[4] = { { 0 } };
    struct shoal_manifest manifest;

    assert_int_equal(shoal_blobs_get_chunk(f->blobs, blob, on_get, f), SHOAL_OK);
    settle(f);
    chunks[3] = f->got;
    f->got = (struct shoal_buf){ 0 };
    assert_int_equal(shoal_manifest_decode(shoal_buf_view(&chunks[3]), &manifest), SHOAL_OK);
    assert_int_equal(manifest.count, 3);
    assert_int_equal(manifest.bytes, 2100000);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(shoal_blobs_get_chunk(f->blobs, shoal_manifest_chunk(&manifest, i), on_get, f), SHOAL_OK);
        settle(f);
        chunks[i] = f->got;
        f->got = (struct shoal_buf){ 0 };
    }
    assert_int_equal(release(f, job_a, blob), SHOAL_OK);
    /* Another node: everything but one chunk, then that one. */
    for (unsigned i = 1; i < 4; i++)
        assert_int_equal(
            shoal_blobs_put_chunk(f->blobs, (struct shoal_hash){ { 0 } }, shoal_buf_view(&chunks[i]), on_put, f),
            SHOAL_OK);
    settle(f);
    assert_int_equal(hold(f, job_b, blob), SHOAL_ERR_NOT_FOUND);
    assert_false(shoal_blobs_holds(f->blobs, job_b, blob));
    assert_int_equal(
        shoal_blobs_put_chunk(f->blobs, shoal_manifest_chunk(&manifest, 0), shoal_buf_view(&chunks[1]), on_put, f),
        SHOAL_ERR_INVALID);
    assert_int_equal(
        shoal_blobs_put_chunk(f->blobs, shoal_manifest_chunk(&manifest, 0), shoal_buf_view(&chunks[0]), on_put, f),
        SHOAL_OK);
    settle(f);
    assert_int_equal(hold(f, job_b, blob), SHOAL_OK);
    assert_int_equal(hold(f, job_b, blob), SHOAL_OK);
    expect_blob(f, blob, 2100000, 9);
    assert_int_equal(hold(f, job_b, shoal_manifest_chunk(&manifest, 0)), SHOAL_ERR_INVALID); /* a chunk is no blob */
    for (unsigned i = 0; i < 4; i++)
        shoal_buf_deinit(&chunks[i]);
}

static void a_release_does_not_undo_a_later_hold(void **state)
{
    struct fixture *f = *state;
    struct shoal_hash blob = put_blob(f, job_a, 100, 1);
    unsigned ended = f->ended;

    assert_int_equal(shoal_blobs_release(f->blobs, job_a, blob, on_done, f), SHOAL_OK);
    assert_int_equal(shoal_blobs_hold(f->blobs, job_a, blob, on_done, f), SHOAL_OK);
    RUN_UNTIL(f, f->ended == ended + 2);
    assert_int_equal(f->err, SHOAL_OK);
    assert_true(shoal_blobs_holds(f->blobs, job_a, blob));
    restart(f);
    assert_true(shoal_blobs_holds(f->blobs, job_a, blob));
    expect_blob(f, blob, 100, 1);
}

static void damage_is_seen_set_aside_and_repaired(void **state)
{
    struct fixture *f = *state;
    struct shoal_hash blob = put_blob(f, job_a, 3000, 5);
    struct shoal_buf chunk = content(3000, 5);
    struct shoal_hash hash = shoal_hash_of(shoal_buf_view(&chunk));
    char path[256];
    int fd;

    path_of(f, hash, path, sizeof(path));
    fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "x", 1, 1234), 1);
    (void)close(fd);
    assert_int_equal(get_err(f, blob, 3000), SHOAL_ERR_MALFORMED);
    assert_non_null(strstr(f->text, "damaged"));
    assert_int_equal(shoal_blobs_stats(f->blobs)->damaged, 1);
    assert_false(shoal_blobs_has_chunk(f->blobs, hash));
    assert_int_equal(get_err(f, blob, 3000), SHOAL_ERR_NOT_FOUND);
    assert_int_equal(hold(f, job_b, blob), SHOAL_ERR_NOT_FOUND);
    assert_int_equal(shoal_blobs_put_chunk(f->blobs, hash, shoal_buf_view(&chunk), on_put, f), SHOAL_OK);
    settle(f);
    expect_blob(f, blob, 3000, 5);
    assert_int_equal(release(f, job_a, blob), SHOAL_OK);
    assert_int_equal(shoal_blobs_stats(f->blobs)->chunks, 0);
    shoal_buf_deinit(&chunk);
}

static void a_held_blob_without_its_manifest_deletes_nothing_at_start(void **state)
{
    struct fixture *f = *state;
    struct shoal_hash blob = put_blob(f, job_a, 3000, 5), other = put_blob(f, job_a, 3000, 6);
    char path[256];

    path_of(f, blob, path, sizeof(path));
    assert_int_equal(unlink(path), 0);
    restart(f);
    assert_int_equal(shoal_blobs_stats(f->blobs)->chunks, 3);
    assert_false(shoal_blobs_holds(f->blobs, job_a, blob));
    expect_blob(f, other, 3000, 6);
    assert_true(shoal_hash_equal(put_blob(f, job_a, 3000, 5), blob)); /* written again, it is held again */
    expect_blob(f, blob, 3000, 5);
}

static void a_writer_takes_pieces_and_pushes_back(void **state)
{
    struct fixture *f = *state;
    struct shoal_blob_writer *writer;
    struct shoal_buf all = content(20 * SHOAL_CHUNK_BYTES_MAX + 5, 2);
    size_t at = 0;
    bool pushed_back = false;

    assert_int_equal(shoal_blob_writer_create(f->blobs, job_a, on_writable, f, &writer), SHOAL_OK);
    while (at < all.len) {
        size_t piece = all.len - at < 700001 ? all.len - at : 700001;
        unsigned writables = f->writables;
        enum shoal_err err = shoal_blob_writer_append(writer, shoal_view_of(all.bytes + at, piece), &f->msg);

        if (err == SHOAL_ERR_FULL) {
            pushed_back = true;
            RUN_UNTIL(f, f->writables > writables);
            continue;
        }
        assert_int_equal(err, SHOAL_OK);
        at += piece;
    }
    assert_true(pushed_back);
    shoal_blob_writer_finish(writer, on_put, f);
    RUN_UNTIL(f, f->ended == 1);
    assert_int_equal(f->err, SHOAL_OK);
    assert_int_equal(f->bytes, all.len);
    expect_blob(f, f->hash, all.len, 2);
    assert_true(shoal_hash_equal(put_blob(f, job_b, 1, 1), f->hash));
    shoal_buf_deinit(&all);
}

static void an_aborted_writer_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    struct shoal_hash kept = put_blob(f, job_b, SHOAL_CHUNK_BYTES_MAX, 7);
    struct shoal_blob_writer *writer;
    struct shoal_buf all = content(3 * SHOAL_CHUNK_BYTES_MAX, 7);
    uint64_t chunks = shoal_blobs_stats(f->blobs)->chunks;

    assert_int_equal(shoal_blob_writer_create(f->blobs, job_a, on_writable, f, &writer), SHOAL_OK);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(
            shoal_blob_writer_append(
                writer, shoal_view_of(all.bytes + i * SHOAL_CHUNK_BYTES_MAX, SHOAL_CHUNK_BYTES_MAX), &f->msg),
            SHOAL_OK);
    shoal_blob_writer_abort(writer);
    settle(f);
    assert_int_equal(shoal_blobs_stats(f->blobs)->chunks, chunks);
    expect_blob(f, kept, SHOAL_CHUNK_BYTES_MAX, 7); /* it shares the first chunk */
    assert_int_equal(walk(f->blobs_dir, false), 3);
    shoal_buf_deinit(&all);
}

static void a_writer_keeps_what_another_owner_lets_go(void **state)
{
    struct fixture *f = *state;
    struct shoal_hash blob = put_blob(f, job_a, SHOAL_CHUNK_BYTES_MAX, 7);
    struct shoal_buf all = content(SHOAL_CHUNK_BYTES_MAX, 7);
    struct shoal_blob_writer *writer;

    assert_int_equal(shoal_blob_writer_create(f->blobs, job_b, on_writable, f, &writer), SHOAL_OK);
    assert_int_equal(shoal_blob_writer_append(writer, shoal_buf_view(&all), &f->msg), SHOAL_OK);
    settle(f); /* its chunk was there already */
    assert_int_equal(release(f, job_a, blob), SHOAL_OK);
    shoal_blob_writer_finish(writer, on_put, f);
    RUN_UNTIL(f, f->ended == 3);
    assert_int_equal(f->err, SHOAL_OK);
    expect_blob(f, blob, SHOAL_CHUNK_BYTES_MAX, 7);
    assert_true(shoal_blobs_holds(f->blobs, job_b, blob));
    shoal_buf_deinit(&all);
}

static void a_disk_without_room_is_named_and_left_clean(void **state)
{
    struct fixture *f = *state;
    struct shoal_buf buf = content(3000000, 1);

    stop(f);
    f->reserve_bytes = UINT64_MAX / 2;
    start(f);
    assert_int_equal(shoal_blobs_put(f->blobs, job_a, shoal_buf_view(&buf), on_put, f), SHOAL_OK);
    RUN_UNTIL(f, f->ended == 1);
    assert_int_equal(f->err, SHOAL_ERR_FULL);
    assert_non_null(strstr(f->text, f->blobs_dir));
    assert_non_null(strstr(f->text, "free space"));
    settle(f);
    assert_int_equal(walk(f->blobs_dir, false), 0);
    assert_int_equal(shoal_blobs_stats(f->blobs)->chunks, 0);
    shoal_buf_deinit(&buf);
}

/* In a child whose files may not grow beyond 64 KiB: the write itself fails half-way. */
static void a_write_that_fails_leaves_nothing_half_written(void **state)
{
    struct fixture *f = *state;
    struct shoal_buf buf = content(300000, 1);
    pid_t child;
    int status;

    stop(f);
    child = fork();
    if (child == 0) {
        struct rlimit limit = { .rlim_cur = 65536, .rlim_max = 65536 };

        assert_int_equal(uv_loop_fork(&f->loop), 0);
        (void)signal(SIGXFSZ, SIG_IGN);
        (void)setrlimit(RLIMIT_FSIZE, &limit);
        start(f);
        if (shoal_blobs_put(f->blobs, job_a, shoal_buf_view(&buf), on_put, f) != SHOAL_OK)
            _exit(1);
        RUN_UNTIL(f, f->ended == 1);
        settle(f);
        _exit(f->err == SHOAL_ERR_STORAGE && walk(f->blobs_dir, false) == 0 && shoal_blobs_stats(f->blobs)->chunks == 0
                  ? 0
                  : 2);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    start(f);
    shoal_buf_deinit(&buf);
}

static void what_is_held_survives_a_kill(void **state)
{
    struct fixture *f = *state;
    int ends[2], status;
    pid_t child;
    unsigned told, count = 0;

    stop(f);
    assert_int_equal(pipe(ends), 0);
    child = fork();
    if (child == 0) {
        assert_int_equal(uv_loop_fork(&f->loop), 0);
        start(f);
        for (unsigned i = 0; i < 100000; i++) {
            (void)put_blob(f, job_a, 20000, i);
            if (write(ends[1], &i, sizeof(i)) != sizeof(i))
                _exit(1);
        }
        _exit(2);
    }
    (void)close(ends[1]);
    while (count < 20) {
        assert_int_equal(read(ends[0], &told, sizeof(told)), sizeof(told));
        count = told + 1;
    }
    assert_int_equal(kill(child, SIGKILL), 0);
    while (read(ends[0], &told, sizeof(told)) == sizeof(told))
        count = told + 1;
    (void)close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    start(f);
    assert_true(shoal_blobs_stats(f->blobs)->blobs_held >= (count < 256 ? count : 256));
    for (unsigned i = 0; i < count && i < 256; i++) {
        struct shoal_hash blob = put_blob(f, job_a, 20000, i); /* names it, and finds it whole */

        expect_blob(f, blob, 20000, i);
    }
    assert_int_equal(shoal_blobs_stats(f->blobs)->chunks_written, 0);
}

static void bounds_are_kept(void **state)
{
    struct fixture *f = *state;
    struct shoal_buf big = content(SHOAL_BLOB_PUT_MAX + 1, 0);
    enum shoal_err err = SHOAL_OK;
    unsigned taken = 0;

    assert_int_equal(shoal_blobs_put(f->blobs, job_a, shoal_buf_view(&big), on_put, f), SHOAL_ERR_TOO_BIG);
    assert_int_equal(shoal_blobs_put_chunk(f->blobs, (struct shoal_hash){ { 0 } },
                                           shoal_view_of(big.bytes, SHOAL_CHUNK_BYTES_MAX + 1), on_put, f),
                     SHOAL_ERR_TOO_BIG);
    while (err == SHOAL_OK && taken < 2 * SHOAL_BLOB_QUEUE_MAX) {
        err = shoal_blobs_get_chunk(f->blobs, (struct shoal_hash){ { 1 } }, on_get, f);
        taken += err == SHOAL_OK;
    }
    assert_int_equal(err, SHOAL_ERR_FULL);
    assert_int_equal(taken, SHOAL_BLOB_QUEUE_BYTES_MAX / SHOAL_CHUNK_BYTES_MAX);
    assert_int_equal(shoal_blobs_stats(f->blobs)->refused_full, 1);
    RUN_UNTIL(f, f->ended == taken);
    shoal_buf_deinit(&big);
}

static void manifests_are_checked(void **state)
{
    uint8_t bytes[15 + 64] = { 'b', 1, 1 };
    struct shoal_writer w = shoal_writer_init(bytes + 3, sizeof(bytes) - 3);
    struct shoal_manifest manifest;

    (void)state;
    shoal_put_u64(&w, SHOAL_CHUNK_BYTES_MAX + 1);
    shoal_put_u32(&w, 2);
    assert_int_equal(shoal_manifest_decode(shoal_view_of(bytes, sizeof(bytes)), &manifest), SHOAL_OK);
    for (size_t n = 0; n < sizeof(bytes); n++) {
        uint8_t *exact = malloc(n + 1);

        assert_non_null(exact);
        memcpy(exact, bytes, n);
        assert_int_equal(shoal_manifest_decode(shoal_view_of(exact, n), &manifest), SHOAL_ERR_MALFORMED);
        free(exact);
    }
    bytes[11] = 1; /* one chunk */
    assert_int_equal(shoal_manifest_decode(shoal_view_of(bytes, sizeof(bytes) - 32), &manifest), SHOAL_ERR_MALFORMED);
    memset(bytes + 11, 0xff, 4);
    assert_int_equal(shoal_manifest_decode(shoal_view_of(bytes, sizeof(bytes)), &manifest), SHOAL_ERR_MALFORMED);
    memset(bytes + 3, 0xff, 8); /* a size that wraps round to no chunk at all */
    memset(bytes + 11, 0, 4);
    assert_int_equal(shoal_manifest_decode(shoal_view_of(bytes, 15), &manifest), SHOAL_ERR_MALFORMED);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(blobs_of_every_size_come_back),
        CASE(each_name_is_flushed_before_a_blob_counts),
        CASE(equal_content_has_one_name_and_one_copy),
        CASE(an_owner_lets_go_of_everything_at_once),
        CASE(chunks_that_nobody_holds_go_at_the_next_start),
        CASE(a_blob_travels_chunk_by_chunk),
        CASE(a_release_does_not_undo_a_later_hold),
        CASE(damage_is_seen_set_aside_and_repaired),
        CASE(a_held_blob_without_its_manifest_deletes_nothing_at_start),
        CASE(a_writer_takes_pieces_and_pushes_back),
        CASE(an_aborted_writer_leaves_nothing),
        CASE(a_writer_keeps_what_another_owner_lets_go),
        CASE(a_disk_without_room_is_named_and_left_clean),
        CASE(a_write_that_fails_leaves_nothing_half_written),
        CASE(what_is_held_survives_a_kill),
        CASE(bounds_are_kept),
        cmocka_unit_test(manifests_are_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
