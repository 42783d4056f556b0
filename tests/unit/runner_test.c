/* The runner's messages, and a real runner process with real children before an agent that this test plays. */
#include "shoal/runner.h"

#include "shoal/rand.h"

#include <setjmp.h>
#include <stdarg.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "shoal/host.h"

#include "node/runner/runner_state.h"

#include "shoal/banned.h"

#define JOB "shoal-0123456789abcdef"
#define PATIENCE_MS 20000

/* ---- the bytes ---- */

static struct shoal_runner_message sent, got;

static void message_fill(uint8_t kind)
{
    sent = (struct shoal_runner_message){ .kind = kind,
                                          .worker_id = 77,
                                          .slot = 3,
                                          .pid = 1234,
                                          .status = -1,
                                          .signalled = true,
                                          .start_ticks = 5,
                                          .freeze_at_ns = 6,
                                          .kill_at_ns = 7,
                                          .grace_ns = 8,
                                          .text = "why" };
    if (kind != SHOAL_RUNNER_START)
        return;
    sent.start = (struct shoal_runner_start){ .worker_id = 77,
                                              .slot = 3,
                                              .how = SHOAL_START_FORK,
                                              .nice = 5,
                                              .freeze_at_ns = 9,
                                              .kill_at_ns = 10,
                                              .cwd = "/",
                                              .stdout_path = "/o",
                                              .stderr_path = "/e",
                                              .lock_path = "",
                                              .cgroup = "",
                                              .argc = 2,
                                              .argv = { "a", "" },
                                              .envc = 1,
                                              .env = { "X=1" } };
}

static void each_message_comes_back_and_none_of_its_prefixes(void **state)
{
    static uint8_t bytes[SHOAL_RUNNER_MESSAGE_MAX];

    (void)state;
    for (uint8_t kind = 0; kind < SHOAL_RUNNER_KIND_COUNT; kind++) {
        size_t len;

        message_fill(kind);
        assert_int_equal(shoal_runner_encode(&sent, bytes, sizeof(bytes), &len), SHOAL_OK);
        assert_int_equal(shoal_runner_decode(shoal_view_of(bytes, len), &got), SHOAL_OK);
        assert_int_equal(got.kind, kind);
        assert_int_equal(got.worker_id, 77);
        assert_int_equal(got.status, -1);
        assert_string_equal(got.text, "why");
        if (kind == SHOAL_RUNNER_START) {
            assert_int_equal(got.start.argc, 2);
            assert_string_equal(got.start.argv[0], "a");
            assert_string_equal(got.start.argv[1], "");
            assert_null(got.start.argv[2]);
            assert_string_equal(got.start.env[0], "X=1");
            assert_string_equal(got.start.stderr_path, "/e");
        }
        for (size_t cut = 0; cut < len; cut++) {
            uint8_t *exact = malloc(cut + 1); /* so that a sanitizer sees a read beyond it */

            assert_non_null(exact);
            memcpy(exact, bytes, cut);
            assert_int_not_equal(shoal_runner_decode(shoal_view_of(exact, cut), &got), SHOAL_OK);
            free(exact);
        }
    }
}

static void random_bytes_are_refused_or_decoded_within_bounds(void **state)
{
    static uint8_t bytes[SHOAL_RUNNER_MESSAGE_MAX];
    struct shoal_rand chance;
    size_t len;

    (void)state;
    shoal_rand_init(&chance, 41);
    message_fill(SHOAL_RUNNER_START);
    for (unsigned i = 0; i < 20000; i++) {
        assert_int_equal(shoal_runner_encode(&sent, bytes, sizeof(bytes), &len), SHOAL_OK);
        for (unsigned change = 0; change <= i % 4; change++)
            bytes[shoal_rand_u64(&chance) % len] = (uint8_t)shoal_rand_u64(&chance);
        if (shoal_runner_decode(shoal_view_of(bytes, len), &got) != SHOAL_OK || got.kind != SHOAL_RUNNER_START)
            continue;
        assert_in_range(got.start.argc, 1, SHOAL_RUNNER_STRINGS_MAX);
        assert_null(got.start.argv[got.start.argc]);
        assert_null(got.start.env[got.start.envc]);
    }
}

static void a_message_beyond_the_limit_is_not_sent(void **state)
{
    static uint8_t bytes[SHOAL_RUNNER_MESSAGE_MAX];
    static char large[SHOAL_RUNNER_MESSAGE_MAX];
    size_t len;

    (void)state;
    message_fill(SHOAL_RUNNER_START);
    memset(large, 'x', sizeof(large) - 1);
    sent.start.env[0] = large;
    assert_int_equal(shoal_runner_encode(&sent, bytes, sizeof(bytes), &len), SHOAL_ERR_TOO_BIG);
}

/* ---- the process ---- */

struct fixture {
    char dir[64];
    struct sockaddr_un name;
    pid_t runner;
    int agent;
};

static uint64_t boottime_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * SHOAL_S + (uint64_t)now.tv_nsec;
}

static void connect_agent(struct fixture *f)
{
    f->agent = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(f->agent, (const struct sockaddr *)&f->name, sizeof(f->name)), 0);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    char listener_text[16];
    int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);

    if (f == NULL || listener < 0)
        return -1;
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/shoal-runner-XXXXXX");
    if (mkdtemp(f->dir) == NULL)
        return -1;
    f->name.sun_family = AF_UNIX;
    (void)snprintf(f->name.sun_path, sizeof(f->name.sun_path), "%s/sock", f->dir);
    if (bind(listener, (const struct sockaddr *)&f->name, sizeof(f->name)) != 0 || listen(listener, 4) != 0)
        return -1;
    (void)snprintf(listener_text, sizeof(listener_text), "%d", listener);
    f->runner = fork();
    if (f->runner == 0) {
        char words[5][64] = { "runner", "", JOB, "0", "" };
        char *argv[6] = { words[0], words[1], words[2], words[3], words[4], NULL };

        (void)snprintf(words[1], sizeof(words[1]), "%s", f->dir);
        (void)snprintf(words[4], sizeof(words[4]), "%s", listener_text);
        _exit(shoal_runner_main(5, argv));
    }
    (void)close(listener);
    connect_agent(f);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    char command[128];

    (void)close(f->agent);
    (void)kill(f->runner, SIGKILL);
    (void)waitpid(f->runner, NULL, 0);
    (void)snprintf(command, sizeof(command), "rm -rf %s", f->dir);
    (void)!system(command);
    free(f);
    return 0;
}

static void hear_any(struct fixture *f)
{
    static uint8_t bytes[SHOAL_RUNNER_MESSAGE_MAX];
    struct pollfd waiting = { .fd = f->agent, .events = POLLIN };
    ssize_t len;

    if (poll(&waiting, 1, PATIENCE_MS) != 1)
        fail_msg("nothing came from the runner");
    len = recv(f->agent, bytes, sizeof(bytes), 0);
    assert_true(len > 0);
    assert_int_equal(shoal_runner_decode(shoal_view_of(bytes, (size_t)len), &got), SHOAL_OK);
}

static void hear(struct fixture *f, uint8_t kind)
{
    hear_any(f);
    assert_int_equal(got.kind, kind);
}

static void say(struct fixture *f)
{
    static uint8_t bytes[SHOAL_RUNNER_MESSAGE_MAX];
    size_t len;

    assert_int_equal(shoal_runner_encode(&sent, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(send(f->agent, bytes, len, MSG_NOSIGNAL), (ssize_t)len);
}

static void order(struct fixture *f, uint8_t kind, uint64_t worker, uint64_t freeze, uint64_t kill_at, uint64_t grace)
{
    sent = (struct shoal_runner_message){
        .kind = kind, .worker_id = worker, .freeze_at_ns = freeze, .kill_at_ns = kill_at, .grace_ns = grace
    };
    say(f);
}

static const char *log_mib = "256";
static const char *shell = "/bin/sh";

/* Starts `sh -c script` as worker `id` in slot `id`. */
static void start(struct fixture *f, uint64_t id, const char *script, uint64_t freeze, uint64_t kill_at)
{
    static char out[128], lock[128], mark[64], bound[64];

    (void)snprintf(out, sizeof(out), "%s/out", f->dir);
    (void)snprintf(lock, sizeof(lock), "%s/slot.%llu", f->dir, (unsigned long long)id);
    (void)snprintf(mark, sizeof(mark), "SHOAL_WORKER_ID=%llu", (unsigned long long)id);
    (void)snprintf(bound, sizeof(bound), "SHOAL_LOG_MIB=%s", log_mib);
    sent = (struct shoal_runner_message){ .kind = SHOAL_RUNNER_START, .worker_id = id, .slot = (uint32_t)id };
    sent.start = (struct shoal_runner_start){ .worker_id = id,
                                              .slot = (uint32_t)id,
                                              .how = SHOAL_START_EXEC,
                                              .freeze_at_ns = freeze,
                                              .kill_at_ns = kill_at,
                                              .cwd = f->dir,
                                              .stdout_path = out,
                                              .stderr_path = out,
                                              .lock_path = lock,
                                              .cgroup = "",
                                              .argc = 3,
                                              .argv = { shell, "-c", script },
                                              .envc = 3,
                                              .env = { mark, "PATH=/usr/bin:/bin", bound } };
    say(f);
}

static char state_of(pid_t pid)
{
    char path[64];
    char line[256] = "";
    const char *at;
    FILE *file;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    file = fopen(path, "re");
    if (file == NULL)
        return '-';
    (void)!fgets(line, sizeof(line), file);
    (void)fclose(file);
    at = strrchr(line, ')');
    return at == NULL ? '-' : at[2];
}

static void pause_ms(unsigned ms)
{
    struct timespec time = { .tv_nsec = (long)ms * 1000000 };

    (void)nanosleep(&time, NULL);
}

#define UNTIL(condition)                                                                                               \
    do {                                                                                                               \
        unsigned waited = 0;                                                                                           \
        while (!(condition)) {                                                                                         \
            pause_ms(2);                                                                                               \
            if (waited++ > PATIENCE_MS / 2)                                                                            \
                fail_msg("%s:%d: never came: %s", __FILE__, __LINE__, #condition);                                     \
        }                                                                                                              \
    } while (0)

/* The number that a script wrote to a file of the folder; 0: not yet. */
static pid_t number_in(const struct fixture *f, const char *name)
{
    char path[128];
    int number = 0;
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s", f->dir, name);
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%d\n", &number) != 1)
        number = 0;
    (void)fclose(file);
    return number;
}

/* 1: somebody holds the slot's lock. */
static int locked(const struct fixture *f, uint64_t slot)
{
    char path[128];
    int fd;
    int held;

    (void)snprintf(path, sizeof(path), "%s/slot.%llu", f->dir, (unsigned long long)slot);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return 0;
    held = flock(fd, LOCK_EX | LOCK_NB) != 0;
    (void)close(fd);
    return held;
}

static void an_exit_status_and_a_signal_are_told(void **state)
{
    struct fixture *f = *state;

    hear(f, SHOAL_RUNNER_WELCOME);
    start(f, 1, "exit 7", 0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    assert_int_equal(got.worker_id, 1);
    hear(f, SHOAL_RUNNER_EXITED);
    assert_int_equal(got.status, 7);
    assert_false(got.signalled);
    start(f, 2, "kill -11 $$", 0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    hear(f, SHOAL_RUNNER_EXITED);
    assert_int_equal(got.status, SIGSEGV);
    assert_true(got.signalled);
}

/* The whole text of the log; free() it. */
static char *log_text(const struct fixture *f)
{
    char path[128];
    struct stat facts;
    char *text;
    int fd;

    (void)snprintf(path, sizeof(path), "%s/out", f->dir);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && fstat(fd, &facts) == 0);
    text = malloc((size_t)facts.st_size + 1);
    assert_non_null(text);
    assert_int_equal(read(fd, text, (size_t)facts.st_size), facts.st_size);
    text[facts.st_size] = '\0';
    (void)close(fd);
    return text;
}

/* As a shell says it: in the worker's own log, whose last line is the reason that people are shown. */
static void what_cannot_be_executed_is_told_in_the_log(void **state)
{
    static const struct {
        const char *program, *said;
    } rows[] = { { "./nope", "./nope: No such file or directory\n" },
                 { "./text", "./nope: No such file or directory\n./text: Permission denied\n" } };
    struct fixture *f = *state;
    char path[128];
    char *text;

    (void)snprintf(path, sizeof(path), "%s/text", f->dir);
    (void)close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    hear(f, SHOAL_RUNNER_WELCOME);
    for (unsigned i = 0; i < 2; i++) {
        shell = rows[i].program;
        start(f, i + 1, "", 0, 0);
        shell = "/bin/sh";
        hear(f, SHOAL_RUNNER_STARTED);
        hear(f, SHOAL_RUNNER_EXITED);
        assert_int_equal(got.status, 127);
        text = log_text(f);
        assert_string_equal(text, rows[i].said);
        free(text);
    }
}

/* The log is a pipe here, which nobody empties at first: the output is on its way when its worker has ended. What is
 * ordered then is done before the end is told. */
static void an_end_is_told_when_the_log_is_whole(void **state)
{
    struct fixture *f = *state;
    uint64_t began_ns = boottime_ns();
    char path[128];
    char piece[4096];
    size_t printed = 0;
    pid_t pid;
    int log;

    (void)snprintf(path, sizeof(path), "%s/out", f->dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    log = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    assert_true(log >= 0);
    hear(f, SHOAL_RUNNER_WELCOME);
    start(f, 1, "head -c 100000 /dev/zero", 0, 0); /* each of two pipes holds 65536 */
    hear(f, SHOAL_RUNNER_STARTED);
    pid = got.pid;
    UNTIL(state_of(pid) == '-');
    start(f, 2, "exit 0", 0, 0);
    hear_any(f);
    if (boottime_ns() < began_ns + 2 * SHOAL_S) { /* for so long it waits for the log */
        assert_int_equal(got.kind, SHOAL_RUNNER_STARTED);
        assert_int_equal(got.worker_id, 2);
    }
    while (printed < 100000) {
        struct pollfd waiting = { .fd = log, .events = POLLIN };

        assert_int_equal(poll(&waiting, 1, PATIENCE_MS), 1);
        printed += (size_t)read(log, piece, sizeof(piece));
    }
    assert_int_equal(printed, 100000);
    hear(f, SHOAL_RUNNER_EXITED);
    (void)close(log);
}

/* L3 of runner_log.c */
static void a_log_is_made_with_the_first_byte_that_is_for_it(void **state)
{
    struct fixture *f = *state;
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/out", f->dir);
    hear(f, SHOAL_RUNNER_WELCOME);
    start(f, 1, "exit 0", 0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    hear(f, SHOAL_RUNNER_EXITED);
    assert_int_equal(access(path, F_OK), -1);
    start(f, 2, "printf x", 0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    hear(f, SHOAL_RUNNER_EXITED);
    assert_int_equal(access(path, F_OK), 0);
}

/* Asks for an engine: `server` is what stands in for the engine server, a shell script. */
static void start_engine(struct fixture *f, uint64_t id, const char *server)
{
    static char out[128], lock[128];

    (void)snprintf(out, sizeof(out), "%s/out", f->dir);
    (void)snprintf(lock, sizeof(lock), "%s/slot.%llu", f->dir, (unsigned long long)id);
    sent = (struct shoal_runner_message){ .kind = SHOAL_RUNNER_START, .worker_id = id, .slot = (uint32_t)id };
    sent.start = (struct shoal_runner_start){ .worker_id = id,
                                              .slot = (uint32_t)id,
                                              .how = SHOAL_START_FORK,
                                              .cwd = f->dir,
                                              .stdout_path = out,
                                              .stderr_path = out,
                                              .lock_path = lock,
                                              .cgroup = "",
                                              .argc = 3,
                                              .argv = { "/bin/bash", "-c", server },
                                              .envc = 1,
                                              .env = { "PATH=/usr/bin:/bin" } };
    say(f);
}

/* A script that ends before the engine servers have imported the framework: its engines are killed before they are
 * forked. The server would fork them later, and each would hold its slot. */
static void an_engine_that_is_killed_before_it_is_forked_frees_its_slot(void **state)
{
    struct fixture *f = *state;

    hear(f, SHOAL_RUNNER_WELCOME);
    start_engine(f, 1, "exec sleep 1000");
    start_engine(f, 2, "exec sleep 1000");
    UNTIL(locked(f, 1) && locked(f, 2));
    order(f, SHOAL_RUNNER_KILL, 1, 0, 0, 0);
    order(f, SHOAL_RUNNER_KILL, 2, 0, 0, 30 * SHOAL_S); /* nobody is there who could use the grace */
    for (unsigned i = 0; i < 2; i++) {
        hear(f, SHOAL_RUNNER_EXITED);
        assert_true(got.signalled);
        assert_int_equal(got.status, SIGKILL);
    }
    UNTIL(!locked(f, 1) && !locked(f, 2));
}

static void an_engine_that_is_killed_before_it_is_forked_leaves_its_neighbour(void **state)
{
    struct fixture *f = *state;
    char path[128];
    pid_t second = 0;

    hear(f, SHOAL_RUNNER_WELCOME);
    (void)snprintf(path, sizeof(path), "%s/go", f->dir);
    /* It answers when it may, and each engine is an orphan, which comes to the runner. */
    start_engine(
        f, 1,
        "until [ -e go ]; do sleep 0.01; done; for id in 1 2; do dd bs=99999 count=1 <&$SHOAL_SERVER_FD >/dev/null; "
        "pid=$(setsid sleep 1000 >/dev/null 2>&1 & echo $!); "
        "hex=$(printf %08x $pid | sed 's/../\\\\x&/g'); printf "
        "\"e\\\\1\\\\1\\\\204\\\\xa6forked\\\\x0$id\\\\xa5later\\\\xc0"
        "\\\\xa3pid\\\\xce$hex\\\\xa6worker\\\\x0$id\" >&$SHOAL_SERVER_FD; done; exec sleep 1000");
    start_engine(f, 2, "");
    UNTIL(locked(f, 2));
    order(f, SHOAL_RUNNER_KILL, 1, 0, 0, 0);
    close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    hear(f, SHOAL_RUNNER_STARTED);
    assert_int_equal(got.worker_id, 1);
    for (unsigned i = 0; i < 2; i++) { /* in either order */
        hear_any(f);
        assert_int_equal(got.worker_id, got.kind == SHOAL_RUNNER_STARTED ? 2 : 1);
        if (got.kind == SHOAL_RUNNER_EXITED)
            assert_int_equal(got.status, SIGKILL);
        else
            second = got.pid;
    }
    assert_int_not_equal(state_of(second), 'Z');
    assert_int_equal(kill(second, SIGKILL), 0); /* no runner would: it gets no signal when this one ends */
}

/* R2. The runner may end as soon as its last worker has: the worker's grandchild comes to it only when the child is dead. */
static void a_runner_that_may_end_leaves_nobody_behind(void **state)
{
    struct fixture *f = *state;
    char path[128];
    pid_t deep;

    hear(f, SHOAL_RUNNER_WELCOME);
    start(f, 1,
          "setsid sh -c 'setsid sh -c \"echo \\$\\$ > deep; exec sleep 1000\" & sleep 1000' & "
          "until [ -e go ]; do sleep 0.01; done",
          0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    UNTIL((deep = number_in(f, "deep")) != 0);
    order(f, SHOAL_RUNNER_CLOSE, 0, 0, 0, 0);
    (void)snprintf(path, sizeof(path), "%s/go", f->dir);
    (void)close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    hear(f, SHOAL_RUNNER_EXITED);
    UNTIL(state_of(deep) == '-' || state_of(deep) == 'Z');
    UNTIL(waitpid(f->runner, NULL, WNOHANG) == f->runner);
}

static void a_flooded_log_is_cut_and_says_so_once(void **state)
{
    struct fixture *f = *state;
    const char *line;
    char *text;

    hear(f, SHOAL_RUNNER_WELCOME);
    log_mib = "1";
    start(f, 1, "head -c 1048000 /dev/zero | tr '\\0' a; head -c 9000000 /dev/zero | tr '\\0' b; echo; echo on; exit 3",
          0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    hear(f, SHOAL_RUNNER_EXITED);
    assert_int_equal(got.status, 3); /* it was not held back, and not killed */
    start(f, 2, "echo another of the job", 0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    hear(f, SHOAL_RUNNER_EXITED);
    log_mib = "256";
    text = log_text(f);
    line = strstr(text, "shoal: the log is cut here: the logs of this job have reached 1 MiB on this host.");
    assert_non_null(line);
    assert_int_equal(line - text, SHOAL_MIB + 1); /* and a line's end before it */
    assert_non_null(strstr(line, "raise log-max in agent.conf"));
    assert_null(strstr(line, "another of the job"));
    assert_true(strlen(line) < 600);
    free(text);
}

/* All that was ordered before has been done. */
static void settle(struct fixture *f, uint64_t worker)
{
    start(f, worker, "exit 0", 0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    hear(f, SHOAL_RUNNER_EXITED);
}

static void a_worker_is_frozen_at_its_deadline_and_thawed(void **state)
{
    struct fixture *f = *state;
    uint64_t freeze_ns = boottime_ns() + 50 * SHOAL_MS;
    pid_t pid;

    hear(f, SHOAL_RUNNER_WELCOME);
    start(f, 1, "exec sleep 12345", freeze_ns, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    pid = got.pid;
    UNTIL(state_of(pid) == 'T');
    order(f, SHOAL_RUNNER_THAW, 1, 0, 0, 0); /* late: nobody has renewed it */
    settle(f, 2);
    assert_int_equal(state_of(pid), 'T');
    (void)close(f->agent);
    connect_agent(f);
    hear(f, SHOAL_RUNNER_WELCOME);
    hear(f, SHOAL_RUNNER_STARTED);
    assert_true(got.status == 1 && got.freeze_at_ns == freeze_ns); /* a new agent knows the lease that froze it */
    hear(f, SHOAL_RUNNER_EXITED);                                  /* of worker 2, who settled: told again */
    order(f, SHOAL_RUNNER_RENEW, 1, boottime_ns() + 1000 * SHOAL_S, 0, 0);
    order(f, SHOAL_RUNNER_THAW, 1, 0, 0, 0);
    UNTIL(state_of(pid) == 'S');
    assert_int_equal(kill(pid, SIGSTOP), 0); /* a stranger's stop is not ours to end */
    UNTIL(state_of(pid) == 'T');
    order(f, SHOAL_RUNNER_THAW, 1, 0, 0, 0);
    settle(f, 3);
    assert_int_equal(state_of(pid), 'T');
    order(f, SHOAL_RUNNER_KILL, 1, 0, 0, 0);
    hear(f, SHOAL_RUNNER_EXITED);
    assert_int_equal(got.status, SIGKILL);
}

static void a_worker_is_killed_at_its_deadline_though_frozen(void **state)
{
    struct fixture *f = *state;
    uint64_t now = boottime_ns();

    hear(f, SHOAL_RUNNER_WELCOME);
    start(f, 1, "trap '' TERM; exec sleep 12345", now + 20 * SHOAL_MS, now + 120 * SHOAL_MS);
    hear(f, SHOAL_RUNNER_STARTED);
    hear(f, SHOAL_RUNNER_EXITED);
    assert_true(boottime_ns() >= now + 120 * SHOAL_MS);
    assert_int_equal(got.status, SIGKILL);
}

static void a_kill_with_grace_lets_a_worker_end_itself_even_if_frozen(void **state)
{
    struct fixture *f = *state;

    hear(f, SHOAL_RUNNER_WELCOME);
    start(f, 1, "trap 'exit 5' TERM; echo $$ > ready; while :; do :; done", 0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    UNTIL(number_in(f, "ready") != 0);
    order(f, SHOAL_RUNNER_FREEZE, 1, 0, 0, 0);
    UNTIL(state_of(number_in(f, "ready")) == 'T');
    order(f, SHOAL_RUNNER_KILL, 1, 0, 0, 100 * SHOAL_S);
    hear(f, SHOAL_RUNNER_EXITED);
    assert_int_equal(got.status, 5);
    assert_false(got.signalled);
}

static void who_ignores_the_word_is_killed_when_its_grace_is_over(void **state)
{
    struct fixture *f = *state;

    hear(f, SHOAL_RUNNER_WELCOME);
    start(f, 1, "trap '' TERM; echo $$ > ready; while :; do :; done", 0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    UNTIL(number_in(f, "ready") != 0);
    order(f, SHOAL_RUNNER_KILL, 1, 0, 0, 50 * SHOAL_MS);
    hear(f, SHOAL_RUNNER_EXITED);
    assert_true(got.signalled);
    assert_int_equal(got.status, SIGKILL);
}

/* R5. Whoever knocks while its agent lives is sent away, and the agent hears of the next worker as before. */
static void a_runner_has_one_agent(void **state)
{
    struct fixture *f = *state;
    uint8_t byte;
    int first;

    hear(f, SHOAL_RUNNER_WELCOME);
    first = f->agent;
    connect_agent(f);
    assert_int_equal(recv(f->agent, &byte, 1, 0), 0);
    (void)close(f->agent);
    f->agent = first;
    start(f, 1, "exit 3", 0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    hear(f, SHOAL_RUNNER_EXITED);
    assert_int_equal(got.status, 3);
}

struct left_row {
    const char *name;
    const char *script;
};

/* Each leaves a process whose number lies in the file `left`, in a session of its own. */
static const struct left_row left_rows[] = {
    { "with its mark and its lock",
      "setsid sh -c 'echo $$ > left; exec sleep 12345' & while [ ! -s left ]; do :; done" },
    { "with its lock alone",
      "setsid env -i sh -c 'echo $$ > left; exec /bin/sleep 12345' & while [ ! -s left ]; do :; done" },
    { "with its mark alone", "setsid bash -c 'for n in /proc/$$/fd/*; do n=${n##*/}; [ $n -gt 2 ] && eval \"exec "
                             "$n>&-\"; done; echo $$ > left; "
                             "exec sleep 12345' & while [ ! -s left ]; do :; done" },
    { "a child of one that is killed",
      "setsid env -i sh -c 'setsid sh -c \"echo \\$\\$ > left; exec /bin/sleep 12345\" & /bin/sleep 12345' & "
      "while [ ! -s left ]; do :; done" },
};

static void left_behind_row(struct fixture *f, const char *script)
{
    pid_t left;
    char path[128];

    start(f, 1, script, 0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    hear(f, SHOAL_RUNNER_EXITED);
    left = number_in(f, "left");
    assert_true(left > 0);
    UNTIL(state_of(left) == '-' || state_of(left) == 'Z');
    UNTIL(!locked(f, 1));
    (void)snprintf(path, sizeof(path), "%s/left", f->dir);
    assert_int_equal(unlink(path), 0);
}

static void whom_a_worker_leaves_behind_goes_with_it(void **state)
{
    struct fixture *f = *state;
    pid_t bystander;

    hear(f, SHOAL_RUNNER_WELCOME);
    start(f, 9, "setsid env -i sh -c 'echo $$ > bystander; exec /bin/sleep 12345' & exec sleep 12345", 0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    UNTIL(number_in(f, "bystander") != 0);
    bystander = number_in(f, "bystander");
    for (size_t i = 0; i < sizeof(left_rows) / sizeof(left_rows[0]); i++) {
        print_message("left behind: %s\n", left_rows[i].name);
        left_behind_row(f, left_rows[i].script);
    }
    assert_int_equal(state_of(bystander), 'S');
    order(f, SHOAL_RUNNER_KILL, 9, 0, 0, 0);
    hear(f, SHOAL_RUNNER_EXITED);
    UNTIL(state_of(bystander) == '-');
}

/* No mark, no lock, its parent gone: nobody can say whose it is until nobody else is left. */
static void who_bears_no_mark_goes_with_the_last_worker(void **state)
{
    struct fixture *f = *state;
    pid_t left;

    hear(f, SHOAL_RUNNER_WELCOME);
    start(f, 1,
          "(setsid env -i bash -c 'for n in /proc/$$/fd/*; do n=${n##*/}; [ $n -gt 2 ] && eval \"exec $n>&-\"; done; "
          "echo $$ > left; exec /bin/sleep 12345' &); while [ ! -s left ]; do :; done; exec sleep 12345",
          0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    UNTIL(number_in(f, "left") != 0);
    left = number_in(f, "left");
    start(f, 2, "exit 0", 0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    hear(f, SHOAL_RUNNER_EXITED);
    assert_true(state_of(left) != '-' && state_of(left) != 'Z'); /* it lives, whatever it is at */
    order(f, SHOAL_RUNNER_KILL, 1, 0, 0, 0);
    hear(f, SHOAL_RUNNER_EXITED);
    UNTIL(state_of(left) == '-');
}

static void a_slot_is_locked_while_any_heir_lives(void **state)
{
    struct fixture *f = *state;
    char path[128];
    int fd;

    hear(f, SHOAL_RUNNER_WELCOME);
    start(f, 1, "exec sleep 12345", 0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    assert_int_equal(locked(f, 1), 1);
    order(f, SHOAL_RUNNER_KILL, 1, 0, 0, 0);
    hear(f, SHOAL_RUNNER_EXITED);
    UNTIL(!locked(f, 1));
    (void)snprintf(path, sizeof(path), "%s/slot.1", f->dir);
    fd = open(path, O_RDWR | O_CLOEXEC); /* an heir whom no signal reaches */
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    start(f, 1, "exit 0", 0, 0);
    hear(f, SHOAL_RUNNER_EXITED);
    assert_int_equal(got.status, SHOAL_STATUS_UNSTARTED);
    assert_non_null(strstr(got.text, "earlier lease"));
    (void)close(fd);
    start(f, 1, "exit 0", 0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    hear(f, SHOAL_RUNNER_EXITED);
    assert_int_equal(got.status, 0);
}

/* An agent that dies just after it has heard of an end may not have acted on it. */
static void a_new_agent_hears_again_of_an_end_that_was_told(void **state)
{
    struct fixture *f = *state;

    hear(f, SHOAL_RUNNER_WELCOME);
    start(f, 1, "exit 7", 0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    hear(f, SHOAL_RUNNER_EXITED);
    (void)close(f->agent);
    connect_agent(f);
    hear(f, SHOAL_RUNNER_WELCOME);
    hear(f, SHOAL_RUNNER_EXITED);
    assert_int_equal(got.worker_id, 1);
    assert_int_equal(got.status, 7);
}

/* Ends that were told give their places to whom the agent starts next. */
static void a_runner_runs_any_number_of_workers_one_after_another(void **state)
{
    struct fixture *f = *state;

    hear(f, SHOAL_RUNNER_WELCOME);
    for (uint64_t worker = 1; worker <= SHOAL_RUNNER_WORKERS_MAX + 3; worker++) {
        start(f, worker, "exit 0", 0, 0);
        hear(f, SHOAL_RUNNER_STARTED);
        hear(f, SHOAL_RUNNER_EXITED);
        assert_int_equal(got.worker_id, worker);
    }
}

static void a_new_agent_hears_who_lives_and_whose_end_was_missed(void **state)
{
    struct fixture *f = *state;
    pid_t pid, other;
    bool seen[2] = { false, false };

    hear(f, SHOAL_RUNNER_WELCOME);
    start(f, 1, "exec sleep 12345", 0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    pid = got.pid;
    start(f, 2, "while [ ! -e go ]; do sleep 0.01; done; exit 6", 0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    other = got.pid;
    (void)close(f->agent);
    {
        char path[128];
        int fd;

        (void)snprintf(path, sizeof(path), "%s/go", f->dir);
        fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        (void)close(fd);
    }
    UNTIL(state_of(other) == '-'); /* its slot's lock is free before that */
    connect_agent(f);
    hear(f, SHOAL_RUNNER_WELCOME);
    for (unsigned i = 0; i < 2; i++) {
        hear_any(f);
        if (got.kind == SHOAL_RUNNER_STARTED && got.worker_id == 1 && got.pid == pid && got.start_ticks != 0)
            seen[0] = true;
        if (got.kind == SHOAL_RUNNER_EXITED && got.worker_id == 2 && got.status == 6)
            seen[1] = true;
    }
    assert_true(seen[0] && seen[1]);
    order(f, SHOAL_RUNNER_CLOSE, 0, 0, 0, 0);
    order(f, SHOAL_RUNNER_KILL, 1, 0, 0, 0);
    hear(f, SHOAL_RUNNER_EXITED);
    UNTIL(state_of(f->runner) == 'Z'); /* closed, and the last has ended */
}

/* How many children the process has that are no zombies; -1: fewer than `least` at all. */
static int children_alive(pid_t of, int least)
{
    static char text[16384];
    int count = 0, alive = 0, fd;
    char path[64];
    char *at = text;
    ssize_t len;

    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)of, (int)of);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    for (len = 0; len < (ssize_t)sizeof(text) - 1;) {
        ssize_t got_now = read(fd, text + len, sizeof(text) - 1 - (size_t)len);

        if (got_now <= 0)
            break;
        len += got_now;
    }
    (void)close(fd);
    text[len] = '\0';
    for (pid_t pid; (pid = (pid_t)strtol(at, &at, 10)) > 0; count++)
        alive += state_of(pid) != 'Z';
    return count < least ? -1 : alive;
}

/* Those of a worker that end while the runner does not run are all reaped when it does, or it would wait for them for ever. */
static void a_runner_reaps_whoever_ended_while_it_stood_still(void **state)
{
    struct fixture *f = *state;
    pid_t worker;

    hear(f, SHOAL_RUNNER_WELCOME);
    start(f, 1,
          "mkfifo f; i=0; while [ $i -lt 1100 ]; do read x < f & i=$((i+1)); done; echo $$ > p.part; mv p.part p; wait", 0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    worker = got.pid;
    UNTIL(number_in(f, "p") != 0);
    assert_int_equal(kill(f->runner, SIGSTOP), 0);
    UNTIL(state_of(f->runner) == 'T');
    assert_int_equal(kill(-worker, SIGKILL), 0);
    UNTIL(children_alive(f->runner, 1101) == 0);
    order(f, SHOAL_RUNNER_CLOSE, 0, 0, 0, 0);
    assert_int_equal(kill(f->runner, SIGCONT), 0);
    hear(f, SHOAL_RUNNER_EXITED);
    UNTIL(state_of(f->runner) == 'Z');
}

/* Its agent may give it work at any time. It waits for that without a look at the clock. */
static void a_runner_with_an_agent_and_nothing_to_run_sleeps(void **state)
{
    static struct runner runner;
    struct pollfd timer = { .events = POLLIN };

    (void)state;
    timer.fd = runner.timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    assert_true(runner.timer >= 0);
    runner.idle_since_ns = 1; /* for longer than it would wait without an agent */
    runner.agent = 0;
    runner_timer_turn(&runner);
    assert_int_equal(poll(&timer, 1, 10), 0);
    runner.agent = -1;
    runner_timer_turn(&runner);
    assert_int_equal(poll(&timer, 1, PATIENCE_MS), 1);
    (void)close(runner.timer);
}

static void what_does_not_decode_or_cannot_start_harms_nobody(void **state)
{
    struct fixture *f = *state;

    hear(f, SHOAL_RUNNER_WELCOME);
    assert_int_equal(send(f->agent, "rubbish", 7, MSG_NOSIGNAL), 7);
    order(f, SHOAL_RUNNER_KILL, 4711, 0, 0, 0);
    start(f, 1, "exit 0", 0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    hear(f, SHOAL_RUNNER_EXITED);
    start(f, 2, "exit 0", 0, 0);
    hear(f, SHOAL_RUNNER_STARTED);
    hear(f, SHOAL_RUNNER_EXITED);
    message_fill(SHOAL_RUNNER_START);
    sent.worker_id = 3;
    sent.start.how = SHOAL_START_EXEC;
    sent.start.stdout_path = "/proc/nothing/here";
    say(f);
    hear(f, SHOAL_RUNNER_EXITED);
    assert_int_equal(got.status, SHOAL_STATUS_UNSTARTED);
    assert_non_null(strstr(got.text, "log"));
}

#define PROCESS(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_message_comes_back_and_none_of_its_prefixes),
        cmocka_unit_test(random_bytes_are_refused_or_decoded_within_bounds),
        cmocka_unit_test(a_message_beyond_the_limit_is_not_sent),
        PROCESS(an_end_is_told_when_the_log_is_whole),
        PROCESS(a_log_is_made_with_the_first_byte_that_is_for_it),
        PROCESS(an_engine_that_is_killed_before_it_is_forked_frees_its_slot),
        PROCESS(an_engine_that_is_killed_before_it_is_forked_leaves_its_neighbour),
        PROCESS(a_runner_that_may_end_leaves_nobody_behind),
        PROCESS(a_flooded_log_is_cut_and_says_so_once),
        PROCESS(an_exit_status_and_a_signal_are_told),
        PROCESS(what_cannot_be_executed_is_told_in_the_log),
        PROCESS(a_worker_is_frozen_at_its_deadline_and_thawed),
        PROCESS(a_worker_is_killed_at_its_deadline_though_frozen),
        PROCESS(a_kill_with_grace_lets_a_worker_end_itself_even_if_frozen),
        PROCESS(who_ignores_the_word_is_killed_when_its_grace_is_over),
        PROCESS(a_runner_has_one_agent),
        PROCESS(whom_a_worker_leaves_behind_goes_with_it),
        PROCESS(who_bears_no_mark_goes_with_the_last_worker),
        PROCESS(a_slot_is_locked_while_any_heir_lives),
        PROCESS(a_new_agent_hears_again_of_an_end_that_was_told),
        PROCESS(a_runner_runs_any_number_of_workers_one_after_another),
        PROCESS(a_new_agent_hears_who_lives_and_whose_end_was_missed),
        PROCESS(what_does_not_decode_or_cannot_start_harms_nobody),
        PROCESS(a_runner_reaps_whoever_ended_while_it_stood_still),
        cmocka_unit_test(a_runner_with_an_agent_and_nothing_to_run_sleeps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
