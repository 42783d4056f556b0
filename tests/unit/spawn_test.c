/* The spawn helper: its one message, garbage, and runners that outlive it. This program is the helper too: the agent's
 * side starts its own program again, with other words. */
#include "node/runner/spawn.h"

#include <setjmp.h>
#include <stdarg.h>

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include <cmocka.h>

#include "node/runner/descriptors.h"
#include "node/runner/warm.h"
#include "node/runner/workers.h"
#include "shoal/host.h"
#include "shoal/limits.h"

#include "shoal/banned.h"

#define NO_FORK "SPAWN_TEST_NO_FORK"
#define JOB "shoal-0123456789abcdef"
#define OTHER "shoal-0123456789abcdeg"
#define PATIENCE_MS 20000

static void random_bytes_and_prefixes_are_refused(void **state)
{
    const struct spawn_order order = { .dir = "/data/jobs/x", .job = JOB, .generation = 7 };
    struct spawn_order back = { .generation = 1 };
    uint8_t bytes[SPAWN_MESSAGE_MAX];
    size_t len;

    (void)state;
    assert_int_equal(spawn_encode(&order, bytes, sizeof(bytes), &len), SHOAL_OK);
    for (size_t i = 0; i < len; i++) {
        assert_int_equal(spawn_decode(shoal_view_of(bytes, i), &back), SHOAL_ERR_MALFORMED);
        assert_int_equal(back.generation, 1);
    }
    assert_int_equal(spawn_decode(shoal_view_of(bytes, len), &back), SHOAL_OK);
    assert_string_equal(back.dir, order.dir);
    assert_string_equal(back.job, JOB);
    assert_int_equal(back.generation, 7);
    assert_int_equal(spawn_decode(shoal_view_of(bytes, len + 1), &back), SHOAL_ERR_MALFORMED);
    assert_int_equal(spawn_encode(&order, bytes, 20, &len), SHOAL_ERR_TOO_BIG);
    bytes[2] = SPAWN_VERSION + 1; /* only a later version reads it */
    assert_int_equal(spawn_decode(shoal_view_of(bytes, len), &back), SHOAL_ERR_MALFORMED);
}

static void a_folder_without_a_root_or_another_word_for_a_job_is_refused(void **state)
{
    static const struct spawn_order orders[] = { { .dir = "jobs/x", .job = JOB }, { .dir = "/x", .job = "shoal-1" } };
    struct spawn_order back;
    uint8_t bytes[SPAWN_MESSAGE_MAX];
    size_t len;

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(spawn_encode(&orders[i], bytes, sizeof(bytes), &len), SHOAL_OK);
        assert_int_equal(spawn_decode(shoal_view_of(bytes, len), &back), SHOAL_ERR_MALFORMED);
    }
}

/* ---- the helper alone ---- */

static void send_order(int to, const void *bytes, size_t len, const int *fds, unsigned count)
{
    struct iovec part = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = len };
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(8 * sizeof(int))];
    } control = { 0 };
    struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1 };

    if (count > 0) {
        header.msg_control = control.space;
        header.msg_controllen = CMSG_SPACE(count * sizeof(int));
        control.header = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
                                           .cmsg_type = SCM_RIGHTS,
                                           .cmsg_len = CMSG_LEN(count * sizeof(int)) };
        memcpy(CMSG_DATA(&control.header), fds, count * sizeof(int));
    }
    assert_int_equal(sendmsg(to, &header, MSG_NOSIGNAL), (ssize_t)len);
}

/* The pid of the runner that says WELCOME on a new connection; -1: nobody takes it. */
static pid_t welcome_of(const struct sockaddr_un *name)
{
    static uint8_t bytes[SHOAL_RUNNER_MESSAGE_MAX];
    static struct shoal_runner_message message;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct pollfd waiting = { .fd = fd, .events = POLLIN };
    ssize_t len = -1;

    if (connect(fd, (const struct sockaddr *)name, sizeof(*name)) == 0) {
        assert_int_equal(poll(&waiting, 1, PATIENCE_MS), 1);
        len = recv(fd, bytes, sizeof(bytes), 0);
    }
    (void)close(fd);
    if (len <= 0)
        return -1;
    assert_int_equal(shoal_runner_decode(shoal_view_of(bytes, (size_t)len), &message), SHOAL_OK);
    assert_int_equal(message.kind, SHOAL_RUNNER_WELCOME);
    return message.pid;
}

static void helper_with_words(int fd)
{
    static char words[4][SPAWN_DIR_BYTES] = { "shoal", "spawn-helper" };
    char *argv[5] = { words[0], words[1], words[2], words[3], NULL };

    (void)snprintf(words[2], sizeof(words[2]), "%d", fd);
    _exit(shoal_spawn_helper_main(4, argv));
}

static bool has_open(pid_t pid, const char *what)
{
    char path[300], target[300];
    const struct dirent *entry;
    bool found = false;
    DIR *dir;

    (void)snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    dir = opendir(path);
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        ssize_t len;

        (void)snprintf(path, sizeof(path), "/proc/%d/fd/%s", (int)pid, entry->d_name);
        len = readlink(path, target, sizeof(target) - 1);
        target[len < 0 ? 0 : len] = '\0';
        found = found || strcmp(target, what) == 0;
    }
    (void)closedir(dir);
    return found;
}

static void garbage_is_dropped_and_a_runner_outlives_the_helper(void **state)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    struct spawn_order order = { .job = JOB, .generation = 3 };
    uint8_t bytes[SPAWN_MESSAGE_MAX];
    int nulls[8], pair[2];
    char end[64], path[64];
    size_t len, end_len;
    pid_t helper, runner;
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    (void)state;
    memcpy(order.dir, "/tmp/shoal-spawn-XXXXXX", 24);
    assert_non_null(mkdtemp(order.dir));
    (void)snprintf(name.sun_path, sizeof(name.sun_path), "%.90s/runner.sock", order.dir);
    assert_int_equal(bind(listener, (const struct sockaddr *)&name, sizeof(name)), 0);
    assert_int_equal(listen(listener, 4), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    helper = fork();
    if (helper == 0)
        helper_with_words(pair[1]);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", pair[1]);
    end_len = (size_t)readlink(path, end, sizeof(end) - 1);
    end[end_len] = '\0'; /* "socket:[...]": a runner has it not */
    (void)close(pair[1]);
    for (unsigned i = 0; i < 8; i++)
        nulls[i] = listener;
    assert_int_equal(spawn_encode(&order, bytes, sizeof(bytes), &len), SHOAL_OK);
    send_order(pair[0], "garbage", 7, nulls, 1);
    send_order(pair[0], "garbage", 7, NULL, 0);
    send_order(pair[0], bytes, len, NULL, 0);
    send_order(pair[0], bytes, len, nulls, 1);
    send_order(pair[0], bytes, len, nulls, 8);
    send_order(pair[0], bytes, len, nulls, 2);
    (void)close(listener);
    runner = welcome_of(&name);
    assert_true(runner > 0);
    assert_int_not_equal(runner, helper);
    assert_false(has_open(runner, end)); /* P2 */
    assert_int_equal(kill(helper, SIGKILL), 0);
    assert_int_equal(waitpid(helper, NULL, 0), helper);
    assert_int_equal(welcome_of(&name), runner); /* P1 */
    (void)kill(runner, SIGKILL);
    (void)close(pair[0]);
    (void)unlink(name.sun_path);
    (void)rmdir(order.dir);
}

/* ---- with the agent's side ---- */

struct fixture {
    char text[200]; /* with the last exit */
    uv_loop_t loop;
    uv_timer_t patience;
    char dir[32];
    struct workers *workers;
    unsigned started, exited;
    bool may_be_refused; /* a start, at once */
    int32_t status[8];
};

static void on_started(void *arg, uint64_t worker_id, int32_t pid)
{
    (void)worker_id;
    assert_true(pid > 0);
    ((struct fixture *)arg)->started++;
}

static void on_exited(void *arg, uint64_t worker_id, int32_t status, bool signalled, const char *text)
{
    struct fixture *f = arg;

    (void)snprintf(f->text, sizeof(f->text), "%s", text);
    assert_in_range(worker_id, 1, 7);
    assert_false(signalled);
    assert_int_equal(f->status[worker_id], -1); /* once */
    f->status[worker_id] = status;
    f->exited++;
}

static void on_runner(void *arg, struct shoal_job_id job, uint32_t generation, const struct workers_alive *alive,
                      size_t count)
{
    (void)arg;
    (void)job;
    (void)generation;
    (void)alive;
    (void)count;
}

static bool on_message(void *arg, struct shoal_job_id job, uint64_t worker_id,
                       const struct shoal_worker_message *message)
{
    (void)arg;
    (void)job;
    (void)worker_id;
    (void)message;
    return false;
}

static void on_slot_idle(void *arg, uint32_t slot)
{
    (void)arg;
    (void)slot;
}

static void on_left(void *arg, struct shoal_job_id job)
{
    (void)arg;
    (void)job;
}

static void on_worker(void *arg, uint64_t worker_id)
{
    (void)arg;
    (void)worker_id;
}

static void on_page(void *arg, struct shoal_job_id job)
{
    (void)arg;
    (void)job;
}

static void on_stands(void *arg, uint64_t worker_id, uint64_t epoch_word, uint8_t activity)
{
    (void)arg;
    (void)worker_id;
    (void)epoch_word;
    (void)activity;
}

static void on_stepped(void *arg, uint64_t worker_id, uint64_t epoch_word, uint64_t step)
{
    (void)arg;
    (void)worker_id;
    (void)epoch_word;
    (void)step;
}

static void on_patience(uv_timer_t *timer)
{
    (void)timer;
    fail_msg("it did not come within %d ms", PATIENCE_MS);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    char jobs[64], slots[64], path[64];
    struct workers_options options = { .jobs_dir = jobs,
                                       .slots_dir = slots,
                                       .socket_path = path,
                                       .slots = 4,
                                       .arg = f,
                                       .on_started = on_started,
                                       .on_exited = on_exited,
                                       .on_runner = on_runner,
                                       .on_left = on_left,
                                       .on_message = on_message,
                                       .on_slot_idle = on_slot_idle,
                                       .on_stuck = on_worker,
                                       .on_dying = on_worker,
                                       .on_stepped = on_stepped,
                                       .on_stands = on_stands,
                                       .on_page = on_page };
    struct shoal_msg msg;

    *state = f;
    memset(f->status, 0xff, sizeof(f->status));
    assert_int_equal(uv_loop_init(&f->loop), 0);
    options.loop = &f->loop;
    memcpy(f->dir, "/tmp/shoal-spawn-XXXXXX", 24);
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(jobs, sizeof(jobs), "%s/jobs", f->dir);
    (void)snprintf(slots, sizeof(slots), "%s/slots", f->dir);
    (void)snprintf(path, sizeof(path), "%s/w.sock", f->dir);
    assert_int_equal(workers_create(&f->workers, &options, &msg), SHOAL_OK);
    (void)uv_timer_init(&f->loop, &f->patience);
    (void)uv_timer_start(&f->patience, on_patience, PATIENCE_MS, 0);
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    char command[64];

    workers_stop(f->workers);
    uv_close((uv_handle_t *)&f->patience, NULL);
    while (uv_run(&f->loop, UV_RUN_DEFAULT) != 0)
        continue;
    assert_int_equal(uv_loop_close(&f->loop), 0);
    while (waitpid(-1, NULL, 0) > 0) /* the helper (P1): the next test has its own */
        continue;
    (void)snprintf(command, sizeof(command), "rm -rf %s", f->dir);
    (void)!system(command);
    free(f);
    return 0;
}

/* The helper is this process's only child. */
static pid_t helper_of(void)
{
    char path[64];
    int pid = 0;
    FILE *file;

    (void)snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    file = fopen(path, "re");
    assert_non_null(file);
    if (fscanf(file, "%d", &pid) != 1)
        pid = 0;
    (void)fclose(file);
    return pid;
}

static void start(struct fixture *f, const char *job_text, uint64_t worker, const char *script)
{
    static struct shoal_runner_start order;
    struct shoal_job_id job;
    struct shoal_msg msg = { "" };
    char out[64];

    (void)snprintf(out, sizeof(out), "%s/out", f->dir);
    assert_true(shoal_job_id_parse(job_text, &job));
    order = (struct shoal_runner_start){ .worker_id = worker,
                                         .slot = (uint32_t)worker,
                                         .how = SHOAL_START_EXEC,
                                         .cwd = f->dir,
                                         .stdout_path = out,
                                         .stderr_path = out,
                                         .lock_path = "",
                                         .cgroup = "",
                                         .argc = 3,
                                         .argv = { "/bin/sh", "-c", script },
                                         .envc = 1,
                                         .env = { "PATH=/usr/bin:/bin" } };
    if (workers_start(f->workers, job, 1, &order, &msg) == SHOAL_OK)
        return;
    if (!f->may_be_refused)
        fail_msg("%s", msg.text);
    f->exited++; /* the helper was quicker than this */
    f->status[worker] = SHOAL_STATUS_UNSTARTED;
    (void)snprintf(f->text, sizeof(f->text), "%s", msg.text);
}

static void close_job(struct fixture *f, const char *job_text)
{
    struct shoal_job_id job;

    assert_true(shoal_job_id_parse(job_text, &job));
    workers_close(f->workers, job);
}

/* P3. The helper stands still, so the orders lie in its socket; they end with it, and nobody sees a worker end for that. */
static void an_order_that_is_lost_with_the_helper_is_given_again(void **state)
{
    struct fixture *f = *state;
    pid_t helper = helper_of();

    assert_true(helper > 0);
    assert_int_equal(kill(helper, SIGSTOP), 0);
    start(f, JOB, 1, "exit 7");
    start(f, JOB, 2, "exit 8");
    start(f, OTHER, 3, "exit 9");
    assert_int_equal(kill(helper, SIGKILL), 0);
    while (f->exited < 3)
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    assert_int_equal(f->status[1], 7);
    assert_int_equal(f->status[2], 8);
    assert_int_equal(f->status[3], 9);
    assert_int_not_equal(helper_of(), helper);
    close_job(f, JOB);
    close_job(f, OTHER);
}

static void a_worker_outlives_the_helper_that_forked_its_runner(void **state)
{
    struct fixture *f = *state;
    pid_t helper = helper_of();
    char fifo[64];

    (void)snprintf(fifo, sizeof(fifo), "%s/go", f->dir);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    start(f, JOB, 1, "read line < go; exit $line");
    while (f->started < 1)
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    assert_int_equal(kill(helper, SIGKILL), 0);
    start(f, OTHER, 2, "echo 5 > go; exit 6");
    while (f->exited < 2)
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    assert_int_equal(f->status[1], 5);
    assert_int_equal(f->status[2], 6);
    close_job(f, JOB);
    close_job(f, OTHER);
}

/* A user's program may use select(), which takes no descriptor beyond 1,023. */
static void a_worker_has_the_limit_of_files_that_the_agent_was_started_with(void **state)
{
    struct fixture *f = *state;
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 477;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_true(descriptors_raise() == descriptors_allowed() && descriptors_allowed() > 477);
    assert_int_equal(kill(helper_of(), SIGKILL), 0); /* the next is started with the higher one */
    start(f, JOB, 1, "test $(ulimit -Sn) = 477 && test $(ulimit -Hn) -gt 477 && exit 5");
    while (f->exited < 1)
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    assert_int_equal(f->status[1], 5);
    close_job(f, JOB);
}

static pid_t no_fork(void)
{
    errno = EAGAIN;
    return -1;
}

static bool may_fork(void) { return true; }

/* P3. Nothing of the job has begun, and its user is to know why. */
static void a_host_without_a_process_says_so(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(setenv(NO_FORK, "1", 1), 0); /* of the next helper */
    assert_int_equal(kill(helper_of(), SIGKILL), 0);
    f->may_be_refused = true;
    start(f, JOB, 1, "exit 7");
    f->may_be_refused = false;
    while (f->exited < 1)
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    assert_int_equal(unsetenv(NO_FORK), 0);
    assert_int_equal(f->status[1], SHOAL_STATUS_UNSTARTED);
    if (strstr(f->text, "no process for the runner of " JOB ": Resource temporarily unavailable; raise the limit") == NULL)
        fail_msg("%s", f->text);
}

int main(int argc, char **argv)
{
    static const struct runner_hooks poor = { .fork = no_fork, .may_fork = may_fork };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_bytes_and_prefixes_are_refused),
        cmocka_unit_test(a_folder_without_a_root_or_another_word_for_a_job_is_refused),
        cmocka_unit_test(garbage_is_dropped_and_a_runner_outlives_the_helper),
        cmocka_unit_test_setup_teardown(an_order_that_is_lost_with_the_helper_is_given_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_worker_has_the_limit_of_files_that_the_agent_was_started_with, setup, teardown),
        cmocka_unit_test_setup_teardown(a_host_without_a_process_says_so, setup, teardown),
        cmocka_unit_test_setup_teardown(a_worker_outlives_the_helper_that_forked_its_runner, setup, teardown),
    };

    if (getenv(NO_FORK) != NULL)
        runner_hooks_use(&poor);
    if (argc > 1 && strcmp(argv[1], "spawn-helper") == 0)
        return shoal_spawn_helper_main(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
