/* Both streams of a process as one log: what the runner's copier wrote, read back in pieces of every size. */
#include "node/backend/log_merged.h"
#include "node/runner/runner_log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "shoal/below.h"
#include "shoal/log_order.h"
#include "shoal/rand.h"

#include "shoal/banned.h"

#define PATIENCE_MS 20000

static struct {
    char root[64];
    char out_path[96], err_path[96], order_path[128];
    int fds[2];
} f;

/* One runner's copier a process: it lives as long as the process does. */
static struct runner_logs logs = { .bytes_max = 1ull << 30 };
static uint64_t worker; /* each has a number of its own, as another runner's has: nothing is known of the one before */

static void synced(void)
{
    uint64_t worker_id = 0;

    assert_true(runner_logs_sync(&logs, worker));
    while (worker_id != worker) {
        struct pollfd wait = { .fd = logs.socket, .events = POLLIN };

        assert_int_equal(poll(&wait, 1, PATIENCE_MS), 1);
        assert_true(runner_logs_answer(&logs, &worker_id));
    }
}

static void say(unsigned stream, const char *text)
{
    assert_int_equal(write(f.fds[stream], text, strlen(text)), (ssize_t)strlen(text));
    synced();
}

static void open_worker(void)
{
    struct shoal_msg msg;

    worker++;
    assert_int_equal(runner_logs_open(&logs, worker, f.out_path, f.err_path, f.fds, &msg), SHOAL_OK);
}

static void close_worker(void)
{
    (void)close(f.fds[0]);
    (void)close(f.fds[1]);
    synced(); /* the copier has seen both ends */
    synced();
}

static int setup(void **state)
{
    (void)state;
    (void)snprintf(f.root, sizeof(f.root), "/tmp/shoal-log-XXXXXX");
    assert_non_null(mkdtemp(f.root));
    (void)snprintf(f.out_path, sizeof(f.out_path), "%s/stdout", f.root);
    (void)snprintf(f.err_path, sizeof(f.err_path), "%s/stderr", f.root);
    (void)snprintf(f.order_path, sizeof(f.order_path), "%s" SHOAL_LOG_ORDER_END, f.out_path);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    (void)unlink(f.out_path);
    (void)unlink(f.err_path);
    (void)unlink(f.order_path);
    return rmdir(f.root);
}

/* The whole, read in pieces of at most `cap` bytes. */
static const char *whole(bool ended, size_t cap)
{
    static char text[1u << 16];
    uint64_t offset = 0;
    size_t used = 0;
    bool more = true;

    while (more && used + cap < sizeof(text)) {
        size_t n = log_merged_read(f.root, "stdout", "stderr", ended, &offset, (uint8_t *)text + used, cap, &more);

        assert_true(n <= cap);
        used += n;
    }
    text[used] = '\0';
    return text;
}

static void expect(bool ended, const char *text)
{
    for (size_t cap = 1; cap < 40; cap++)
        assert_string_equal(whole(ended, cap), text);
}

static void streams_keep_their_order(void **state)
{
    (void)state;
    open_worker();
    say(0, "out 0\n");
    say(0, "out 1\n");
    assert_int_not_equal(access(f.order_path, F_OK), 0); /* one stream alone costs no file */
    say(1, "err 0\n");
    say(0, "out 2\n");
    say(1, "err 1\n");
    say(1, "err 2\n");
    say(0, "out 3\n");
    expect(false, "out 0\nout 1\nerr 0\nout 2\nerr 1\nerr 2\nout 3\n");
    close_worker();
    expect(true, "out 0\nout 1\nerr 0\nout 2\nerr 1\nerr 2\nout 3\n");
}

/* Stands before the C library's: something is printed between two reads of a look. */
static bool speaks_on_read;
static unsigned reads;

ssize_t pread(int fd, void *bytes, size_t len, off_t offset);
ssize_t pread(int fd, void *bytes, size_t len, off_t offset)
{
    bool speaks = speaks_on_read;

    reads++;
    speaks_on_read = false;
    if (speaks) {
        say(0, "out 1\n");
        say(1, "err 1\n");
        say(0, "out 2\n");
    }
    return syscall(SYS_pread64, fd, bytes, len, offset);
}

static void what_is_printed_while_a_log_is_read_waits_for_the_next_look(void **state)
{
    (void)state;
    open_worker();
    say(0, "out 0\n");
    say(1, "err 0\n");
    say(0, "and\n");
    for (size_t cap = 1; cap < 70; cap++) {
        char text[256];
        uint64_t offset = 0;
        size_t used = 0;
        bool more = true;

        speaks_on_read = cap == 64;
        while (more && used + cap < sizeof(text))
            used +=
                log_merged_read(f.root, "stdout", "stderr", false, &offset, (uint8_t *)text + used, cap, &more);
        text[used] = '\0';
        assert_string_equal(text, cap <= 64 ? "out 0\nerr 0\nand\n" : "out 0\nerr 0\nand\nout 1\nerr 1\nout 2\n");
    }
    close_worker();
}

static void a_line_is_not_torn(void **state)
{
    (void)state;
    open_worker();
    say(0, "begun ");
    say(1, "err\n"); /* waits for the end of the line */
    say(0, "and ended\n");
    say(0, "next\n");
    expect(false, "begun and ended\nerr\nnext\n");
    say(0, "a prompt: ");
    say(1, "first\n");
    say(1, "second\n"); /* the line does not end: nothing waits for ever */
    expect(false, "begun and ended\nerr\nnext\na prompt: first\nsecond\n");
    say(0, "\n");
    say(1, "\r10 %");
    say(0, "out\n"); /* nor for a progress bar */
    expect(false, "begun and ended\nerr\nnext\na prompt: first\nsecond\n\n\r10 %out\n");
    close_worker();
}

static void what_was_held_comes_at_the_end(void **state)
{
    (void)state;
    open_worker();
    say(0, "never ended");
    say(1, "err\n");
    expect(false, "never ended");
    close_worker();
    expect(true, "never endederr\n");
}

static void errors_alone(void **state)
{
    (void)state;
    open_worker();
    say(1, "err\n");
    expect(false, "err\n");
    close_worker();
    expect(true, "err\n");
}

/* Another runner goes on with the same files. */
static void a_second_runner_goes_on(void **state)
{
    (void)state;
    open_worker();
    say(1, "err 0\n");
    say(0, "out 0\n");
    close_worker();
    open_worker();
    say(1, "err 1\n");
    say(0, "out 1\n");
    close_worker();
    expect(true, "err 0\nout 0\nerr 1\nout 1\n");
}

/* A follower has what came so far of each file, in any proportion: it shows a beginning, and never passes what is missing
 * while more may come. */
static void a_part_is_a_beginning(void **state)
{
    static const char all[] = "out 0\nerr 0\nout 1\nerr 1\n";

    (void)state;
    open_worker();
    say(0, "out 0\n");
    say(1, "err 0\n");
    say(0, "out 1\n");
    say(1, "err 1\n");
    close_worker();
    for (off_t out = 12; out >= 0; out -= 3) {
        assert_int_equal(truncate(f.out_path, out), 0);
        assert_memory_equal(all, whole(false, 5), strlen(whole(false, 5)));
        assert_int_equal(strlen(whole(true, 5)), 12 + (size_t)out); /* ended: the rest of what is there */
    }
}

static void what_was_held_comes_before_what_another_runner_says(void **state)
{
    (void)state;
    open_worker();
    say(0, "never ended");
    say(1, "err\n");
    close_worker();
    open_worker();
    say(0, "again\n");
    expect(false, "never endederr\nagain\n");
    close_worker();
    expect(true, "never endederr\nagain\n");
}

#define SHORT_PIECES 400000u
#define READS_MAX 100u /* the records of a look are read one after the other, and not searched for each piece */

static void fill(const char *path, const void *bytes, size_t len)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_int_equal(write(fd, bytes, len), (ssize_t)len);
    (void)close(fd);
}

/* One byte of each stream by turns, as an unbuffered job writes them. */
static void short_pieces_cost_no_read_each(void **state)
{
    static uint8_t records[SHORT_PIECES * 2 * SHOAL_LOG_ORDER_BYTES];
    static uint8_t bytes[SHORT_PIECES];
    uint64_t offset = SHORT_PIECES;
    size_t got = 0;
    bool more = true;

    (void)state;
    for (uint64_t i = 0; i < SHORT_PIECES; i++) {
        shoal_log_order_put(&records[2 * i * SHOAL_LOG_ORDER_BYTES], (uint64_t[]){ i + 1, i }, 1);
        shoal_log_order_put(&records[(2 * i + 1) * SHOAL_LOG_ORDER_BYTES], (uint64_t[]){ i + 1, i + 1 }, 0);
    }
    memset(bytes, 'o', sizeof(bytes));
    fill(f.out_path, bytes, sizeof(bytes));
    memset(bytes, 'e', sizeof(bytes));
    fill(f.err_path, bytes, sizeof(bytes));
    fill(f.order_path, records, sizeof(records));
    while (more) {
        uint64_t before = offset;
        size_t n;

        reads = 0;
        n = log_merged_read(f.root, "stdout", "stderr", false, &offset, bytes, sizeof(bytes), &more);
        assert_true(reads <= READS_MAX);
        assert_int_equal(offset - before, n);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(bytes[i], (before + i) % 2 == 0 ? 'o' : 'e');
        got += n;
    }
    assert_int_equal(got, SHORT_PIECES);
}

/* The job can write what it likes there. */
static void a_forged_order_is_bounded(void **state)
{
    struct shoal_rand rand;
    uint8_t bytes[SHOAL_LOG_ORDER_BYTES * 64];

    (void)state;
    shoal_rand_init(&rand, 11);
    open_worker();
    say(0, "out\n");
    close_worker();
    for (unsigned round = 0; round < 300; round++) {
        int fd = open(f.order_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        uint8_t piece[64];
        bool more = true;
        uint64_t offset = 0;

        for (size_t i = 0; i < sizeof(bytes); i++)
            bytes[i] = (uint8_t)(shoal_rand_u64(&rand) & (round % 2 == 0 || i % 8 == 0 ? 0xff : 0));
        assert_int_equal(write(fd, bytes, sizeof(bytes)), (ssize_t)sizeof(bytes));
        (void)close(fd);
        for (unsigned i = 0; i < 300 && more; i++)
            (void)log_merged_read(f.root, "stdout", "stderr", round % 3 == 0, &offset, piece, sizeof(piece), &more);
        assert_false(more);
    }
}

static void a_path_of_the_jobs_is_opened_below_its_folder(void **state)
{
    char path[128];

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/stdout", f.root);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(shoal_open_below(f.root, "stdout", O_RDONLY), -1); /* and does not wait */
    assert_string_equal(whole(true, 9), "");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    assert_int_equal(shoal_open_below(f.root, "stdout", O_RDONLY), -1);
    assert_int_equal(shoal_open_below(f.root, "../../etc/passwd", O_RDONLY), -1);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/etc", path), 0);
    assert_int_equal(shoal_open_below(f.root, "stdout/passwd", O_RDONLY), -1);
    assert_int_equal(shoal_open_below(f.root, ".", O_RDONLY), -1);
}

/* The last case: the copier stands still in it, as on a disk that hangs. L1 of runner_log.c. */
static void a_copier_that_hangs_holds_no_start(void **state)
{
    static const char zeros[4096];
    enum shoal_err err = SHOAL_OK;
    struct shoal_msg msg;
    int reader;
    size_t left;

    (void)state;
    assert_int_equal(mkfifo(f.out_path, 0600), 0);
    reader = open(f.out_path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    open_worker();
    left = (size_t)fcntl(reader, F_GETPIPE_SZ) + (size_t)fcntl(f.fds[0], F_GETPIPE_SZ) + 1;
    while (left > 0) { /* what does not fit into both is in its hands: it waits for a reader */
        ssize_t put = write(f.fds[0], zeros, left < sizeof(zeros) ? left : sizeof(zeros));

        assert_true(put > 0);
        left -= (size_t)put;
    }
    (void)alarm(PATIENCE_MS / 1000);
    for (unsigned i = 0; i < 1000 && err == SHOAL_OK; i++) {
        int fds[2];

        err = runner_logs_open(&logs, worker + 1 + i, f.err_path, f.err_path, fds, &msg);
        for (unsigned k = 0; k < 2 && err == SHOAL_OK; k++)
            (void)close(fds[k]);
    }
    (void)alarm(0);
    assert_int_equal(err, SHOAL_ERR_STORAGE);
    assert_non_null(strstr(msg.text, "is not written yet"));
    (void)close(reader);
}

/* Who cleans up behind it closes nothing a second time: the number may be another file's by then. */
static void a_log_that_cannot_be_opened_leaves_no_descriptor(void **state)
{
    struct shoal_msg msg;

    (void)state;
    worker++;
    assert_int_equal(runner_logs_open(&logs, worker, f.out_path, "/proc/nothing/here", f.fds, &msg), SHOAL_ERR_STORAGE);
    assert_int_equal(f.fds[0], -1);
    assert_int_equal(f.fds[1], -1);
    synced(); /* the copier has closed its end of the one that was opened */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(streams_keep_their_order, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_printed_while_a_log_is_read_waits_for_the_next_look, setup, teardown),
        cmocka_unit_test_setup_teardown(a_line_is_not_torn, setup, teardown),
        cmocka_unit_test_setup_teardown(what_was_held_comes_at_the_end, setup, teardown),
        cmocka_unit_test_setup_teardown(errors_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(a_second_runner_goes_on, setup, teardown),
        cmocka_unit_test_setup_teardown(a_part_is_a_beginning, setup, teardown),
        cmocka_unit_test_setup_teardown(what_was_held_comes_before_what_another_runner_says, setup, teardown),
        cmocka_unit_test_setup_teardown(short_pieces_cost_no_read_each, setup, teardown),
        cmocka_unit_test_setup_teardown(a_forged_order_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(a_path_of_the_jobs_is_opened_below_its_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(a_log_that_cannot_be_opened_leaves_no_descriptor, setup, teardown),
        cmocka_unit_test_setup_teardown(a_copier_that_hangs_holds_no_start, setup, teardown),
    };

    (void)signal(SIGPIPE, SIG_IGN); /* as in a runner: a copier may write to a pipe whose reader goes */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
