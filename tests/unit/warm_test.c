/* How long interpreters wait (node/runner/warm_uv.c): the clock and the processes are this file's. */
#include "node/runner/warm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include <cmocka.h>

#include "shoal/limits.h"

#include "loop_test.h"

#include "shoal/banned.h"

static struct fixture {
    uv_loop_t loop;
    uv_timer_t watchdog;
    bool late;
    struct warm *warm;
    uint64_t now_ns;
    unsigned started;
    bool stopped;
} f;

/* ---- What the file under test asks ---- */

uint64_t uv_hrtime(void) { return f.now_ns; }

bool warm_key_of(const struct shoal_runner_start *start, char key[SHOAL_WARM_KEY_BYTES])
{
    (void)start;
    (void)snprintf(key, SHOAL_WARM_KEY_BYTES, "framework");
    return true;
}

enum shoal_warm warm_key_kind(const char *key)
{
    (void)key;
    return SHOAL_WARM_FRAMEWORK;
}

/* It says that it is ready, and ends when its socket is closed. */
int warm_process_start(const char *native, const char *key, int socket, pid_t *pid)
{
    char byte = 0;

    (void)native, (void)key;
    f.started++;
    *pid = fork();
    if (*pid == 0) {
        for (int fd = 3; fd < 256; fd++)
            if (fd != socket)
                (void)close(fd);
        while (write(socket, "", 1) == 1 && read(socket, &byte, 1) > 0) {
        }
        _exit(0);
    }
    return *pid < 0 ? EAGAIN : 0;
}

uint64_t warm_process_bytes(pid_t pid)
{
    (void)pid;
    return SHOAL_MIB;
}

uint64_t warm_free_bytes(void) { return 1ull << 40; }

/* ---- The tests ---- */

static bool is_quiet(void *arg)
{
    (void)arg;
    return true;
}

static void on_stopped(void *arg) { *(bool *)arg = true; }

static int setup(void **state)
{
    struct warm_options options = { .loop = &f.loop, .native = "", .memory_bytes = (1024 * SHOAL_MIB), .is_quiet = is_quiet };

    (void)state;
    memset(&f, 0, sizeof(f));
    f.now_ns = 1000 * SHOAL_S;
    assert_int_equal(uv_loop_init(&f.loop), 0);
    assert_int_equal(warm_create(&f.warm, &options, NULL), SHOAL_OK);
    loop_watch(&f.loop, &f.watchdog, &f.late);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    warm_stop(f.warm, on_stopped, &f.stopped);
    RUN_UNTIL(&f, f.stopped);
    loop_end(&f.loop);
    return 0;
}

/* Of a job that ran for so long that nothing else waits any more when the one that it wanted is made. */
static void one_that_waits_alone_ends_when_its_time_is_over(void **state)
{
    const struct shoal_runner_start start = { .warm = SHOAL_WARM_FRAMEWORK };
    const struct spawn_order order = { .job = "job" };
    struct shoal_msg msg;
    uint64_t number;

    (void)state;
    assert_int_equal(warm_runner(f.warm, &start, &order, NULL, &number, &msg), SHOAL_ERR_UNREACHABLE);
    assert_int_equal(f.started, 0);
    warm_ended(f.warm, "job");
    f.now_ns += SHOAL_WARM_WANTED_NS;
    RUN_UNTIL(&f, f.started == 1);
    f.now_ns += SHOAL_WARM_FRAMEWORK_IDLE_NS + SHOAL_S;
    RUN_UNTIL(&f, waitpid(-1, NULL, WNOHANG) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_that_waits_alone_ends_when_its_time_is_over, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
