/* The agent's side of warm interpreters (warm.h): which ones there are, which one fits a start, and when one ends.
 *
 *   none --a start that none fits--> serves --unused for WARM_IDLE_NS, or the longest unused of too many--> ends by itself
 *                                      '-----it dies, or holds an order for too long: killed---------------> none
 *
 * A server whose socket is closed carries out what it was told before, and ends after its runners. It is reaped by the
 * timer: the end of a large process takes longer than a turn. */
#include "warm.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "shoal/limits.h"

#include "shoal/banned.h"

#define TICK_MS 500
#define SOCKET_FD 3
#define LOG_FD 4
#define SOCKET_BYTES (256 * 1024)
#define ENDING_MAX 64
#define FAILED_MAX 8
/* A server that was let go has its orders to carry out, and its runners to stay with; one that has never answered and hangs
 * is killed then. */
#define ENDING_NS (5 * SHOAL_S)
#define KEPT_VARIABLES_MAX 128

struct server {
    uv_poll_t poll;
    struct warm *warm;
    uint64_t number;
    uint64_t used_ns;
    int socket;
    pid_t pid;
    bool answered; /* a runner of it has said WELCOME */
    char key[SHOAL_WARM_KEY_BYTES];
};

struct warm {
    uv_loop_t *loop;
    uv_timer_t timer;
    char native[SPAWN_DIR_BYTES];
    struct server *servers[SHOAL_WARM_SERVERS_MAX];
    struct {
        pid_t pid; /* 0: free */
        uint64_t kill_ns;
    } ending[ENDING_MAX];
    struct {
        uint64_t until_ns;
        uint64_t key;
    } failed[FAILED_MAX];
    uint64_t numbers;
    unsigned handles_open;
    bool stopped;
    void (*done)(void *arg);
    void *done_arg;
};

/* ---- the end of a server ---- */

static void warm_release(struct warm *warm)
{
    void (*done)(void *arg) = warm->done;
    void *arg = warm->done_arg;

    if (!warm->stopped || warm->handles_open > 0)
        return;
    free(warm);
    done(arg);
}

static void on_poll_closed(uv_handle_t *handle)
{
    struct server *server = handle->data;
    struct warm *warm = server->warm;

    free(server);
    warm->handles_open--;
    warm_release(warm);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct warm *warm = handle->data;

    warm->handles_open--;
    warm_release(warm);
}

static void reap_later(struct warm *warm, pid_t pid, uint64_t kill_ns)
{
    for (unsigned i = 0; i < ENDING_MAX; i++)
        if (warm->ending[i].pid == 0) {
            warm->ending[i].pid = pid;
            warm->ending[i].kill_ns = kill_ns;
            return;
        }
    (void)kill(pid, SIGKILL); /* so many at once cannot be: rather a slow turn than a process too many */
    (void)waitpid(pid, NULL, 0);
}

static void server_end(struct server *server, bool at_once)
{
    struct warm *warm = server->warm;

    for (unsigned i = 0; i < SHOAL_WARM_SERVERS_MAX; i++)
        if (warm->servers[i] == server)
            warm->servers[i] = NULL;
    (void)uv_poll_stop(&server->poll);
    (void)close(server->socket);
    if (at_once)
        (void)kill(server->pid, SIGKILL);
    reap_later(warm, server->pid, server->answered ? UINT64_MAX : uv_hrtime() + ENDING_NS);
    uv_close((uv_handle_t *)&server->poll, on_poll_closed);
}

static uint64_t hash_of(const char *key)
{
    uint64_t hash = 14695981039346656037ull; /* FNV-1a */

    for (; *key != '\0'; key++)
        hash = (hash ^ (uint8_t)*key) * 1099511628211ull;
    return hash;
}

/* What ends before any runner of it has answered would end again. */
static void note_failure(const struct server *server)
{
    struct warm *warm = server->warm;
    unsigned oldest = 0;

    if (server->answered)
        return;
    for (unsigned i = 1; i < FAILED_MAX; i++)
        if (warm->failed[i].until_ns < warm->failed[oldest].until_ns)
            oldest = i;
    warm->failed[oldest].key = hash_of(server->key);
    warm->failed[oldest].until_ns = uv_hrtime() + SHOAL_WARM_FAILED_NS;
}

/* It never says anything: readable means gone. */
static void on_socket(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    note_failure(poll->data);
    server_end(poll->data, !((struct server *)poll->data)->answered); /* else it stays with its runners (P1 of spawn.h) */
}

static void on_tick(uv_timer_t *timer)
{
    struct warm *warm = timer->data;
    uint64_t now = uv_hrtime();
    bool any = false;

    for (unsigned i = 0; i < ENDING_MAX; i++) {
        if (warm->ending[i].pid == 0)
            continue;
        if (warm->ending[i].kill_ns <= now)
            (void)kill(warm->ending[i].pid, SIGKILL);
        if (waitpid(warm->ending[i].pid, NULL, WNOHANG) != 0)
            warm->ending[i].pid = 0;
        any = any || warm->ending[i].pid != 0;
    }
    for (unsigned i = 0; i < SHOAL_WARM_SERVERS_MAX; i++) {
        if (warm->servers[i] == NULL)
            continue;
        any = true;
        if (now - warm->servers[i]->used_ns > SHOAL_WARM_IDLE_NS)
            server_end(warm->servers[i], false);
    }
    if (!any)
        (void)uv_timer_stop(timer);
}

/* ---- which server ---- */

/* The program as it is now, and all that is read while it starts. False: too long, or there is no such program. */
static bool key_of(const struct shoal_runner_start *start, char key[SHOAL_WARM_KEY_BYTES])
{
    struct stat file;
    int len;
    size_t at;

    if (start->argc < 2 || start->argv[0][0] != '/' || stat(start->argv[0], &file) != 0)
        return false;
    len =
        snprintf(key, SHOAL_WARM_KEY_BYTES, "%s\n%llu %llu %lld.%ld\n", start->argv[0], (unsigned long long)file.st_dev,
                 (unsigned long long)file.st_ino, (long long)file.st_mtim.tv_sec, file.st_mtim.tv_nsec);
    if (len < 0 || len >= SHOAL_WARM_KEY_BYTES)
        return false;
    at = (size_t)len;
    for (uint32_t i = 0; i < start->envc; i++) {
        size_t one = strlen(start->env[i]);

        if (!warm_keeps(start->env[i]))
            continue;
        if (one + 2 > SHOAL_WARM_KEY_BYTES - at)
            return false;
        memcpy(key + at, start->env[i], one);
        key[at + one] = '\n';
        at += one + 1;
    }
    key[at] = '\0';
    return true;
}

static struct server *server_of(const struct warm *warm, uint64_t number)
{
    for (unsigned i = 0; i < SHOAL_WARM_SERVERS_MAX; i++)
        if (warm->servers[i] != NULL && warm->servers[i]->number == number)
            return warm->servers[i];
    return NULL;
}

/* A free place; where there is none, that of the server that was not used for the longest time. */
static unsigned place_for(struct warm *warm)
{
    unsigned oldest = 0;

    for (unsigned i = 0; i < SHOAL_WARM_SERVERS_MAX; i++) {
        if (warm->servers[i] == NULL)
            return i;
        if (warm->servers[i]->used_ns < warm->servers[oldest]->used_ns)
            oldest = i;
    }
    server_end(warm->servers[oldest], false);
    return oldest;
}

/* ---- the start of a server ---- */

struct inherited {
    int socket;
    int pipe;
    int log;
};

static int server_exec(const struct warm *warm, const struct shoal_runner_start *start, const struct inherited *fds,
                       pid_t *pid)
{
    static char padding[SPAWN_DIR_BYTES];
    char script[SPAWN_DIR_BYTES + 16];
    char fd_text[32];
    char python[SPAWN_DIR_BYTES + 32];
    char *argv[] = { (char *)(uintptr_t)start->argv[0], script, padding, NULL };
    char *env[KEPT_VARIABLES_MAX + 3];
    unsigned count = 0;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t all, none;
    int code;

    memset(padding, '-', sizeof(padding) - 1);
    (void)snprintf(script, sizeof(script), "%s/warm.py", warm->native);
    (void)snprintf(fd_text, sizeof(fd_text), "SHOAL_WARM_FD=%d", SOCKET_FD);
    (void)snprintf(python, sizeof(python), "SHOAL_WARM_PYTHON=%s", start->argv[0]);
    for (uint32_t i = 0; i < start->envc && count < KEPT_VARIABLES_MAX; i++)
        if (warm_keeps(start->env[i]))
            env[count++] = (char *)(uintptr_t)start->env[i];
    env[count++] = fd_text;
    env[count++] = python;
    env[count] = NULL;
    (void)sigfillset(&all);
    (void)sigemptyset(&none);
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawnattr_init(&attributes);
    (void)posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    (void)posix_spawn_file_actions_adddup2(&actions, fds->pipe, 1);
    (void)posix_spawn_file_actions_adddup2(&actions, fds->pipe, 2);
    (void)posix_spawn_file_actions_adddup2(&actions, fds->socket, SOCKET_FD);
    (void)posix_spawn_file_actions_adddup2(&actions, fds->log, LOG_FD);
    (void)posix_spawnattr_setsigdefault(&attributes, &all);
    (void)posix_spawnattr_setsigmask(&attributes, &none);
    (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
    code = posix_spawn(pid, start->argv[0], &actions, &attributes, argv, env);
    (void)posix_spawnattr_destroy(&attributes);
    (void)posix_spawn_file_actions_destroy(&actions);
    return code;
}

/* Its output is made on a pipe, as that of a script is; where what it says of itself goes is the agent's own log. */
static int process_start(const struct warm *warm, const struct shoal_runner_start *start, int socket, pid_t *pid)
{
    struct inherited fds = { -1, -1, -1 };
    int ends[2];
    int code = 0;

    if (pipe2(ends, O_CLOEXEC) != 0)
        return errno;
    fds.socket = fcntl(socket, F_DUPFD_CLOEXEC, LOG_FD + 1); /* above the numbers that they are to have */
    fds.pipe = fcntl(ends[1], F_DUPFD_CLOEXEC, LOG_FD + 1);
    fds.log = fcntl(2, F_DUPFD_CLOEXEC, LOG_FD + 1);
    if (fds.socket < 0 || fds.pipe < 0 || fds.log < 0)
        code = errno;
    else
        code = server_exec(warm, start, &fds, pid);
    (void)close(ends[0]);
    (void)close(ends[1]);
    if (fds.socket >= 0)
        (void)close(fds.socket);
    if (fds.pipe >= 0)
        (void)close(fds.pipe);
    if (fds.log >= 0)
        (void)close(fds.log);
    return code;
}

static enum shoal_err server_start(struct warm *warm, const struct shoal_runner_start *start, const char *key,
                                   struct server **started, struct shoal_msg *msg)
{
    struct server *server = calloc(1, sizeof(*server));
    int bytes = SOCKET_BYTES;
    int pair[2];
    int code;

    if (server == NULL || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        free(server);
        return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "no socket for a warm interpreter: %s", strerror(errno));
    }
    (void)setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    (void)fcntl(pair[0], F_SETFL, O_NONBLOCK);
    code = process_start(warm, start, pair[1], &server->pid);
    (void)close(pair[1]);
    if (code != 0) {
        (void)close(pair[0]);
        free(server);
        return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "a warm interpreter cannot be started: %s", strerror(code));
    }
    server->warm = warm;
    server->number = ++warm->numbers;
    server->socket = pair[0];
    memcpy(server->key, key, strlen(key) + 1);
    (void)uv_poll_init(warm->loop, &server->poll, server->socket);
    server->poll.data = server;
    (void)uv_poll_start(&server->poll, UV_READABLE, on_socket);
    warm->servers[place_for(warm)] = server;
    warm->handles_open++;
    if (!uv_is_active((uv_handle_t *)&warm->timer))
        (void)uv_timer_start(&warm->timer, on_tick, TICK_MS, TICK_MS);
    *started = server;
    return SHOAL_OK;
}

/* ---- the contract ---- */

enum shoal_err warm_create(struct warm **out, struct uv_loop_s *loop, const char *native, struct shoal_msg *msg)
{
    struct warm *warm = calloc(1, sizeof(*warm));

    if (warm == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for the table of warm interpreters");
    warm->loop = loop;
    (void)snprintf(warm->native, sizeof(warm->native), "%s", native);
    (void)uv_timer_init(loop, &warm->timer);
    warm->timer.data = warm;
    warm->handles_open = 1;
    *out = warm;
    return SHOAL_OK;
}

enum shoal_err warm_runner(struct warm *warm, const struct shoal_runner_start *start, const struct spawn_order *order,
                           const struct spawn_fds *fds, uint64_t *number, struct shoal_msg *msg)
{
    char key[SHOAL_WARM_KEY_BYTES];
    struct server *server = NULL;
    enum shoal_err err;
    int code;

    if (!key_of(start, key))
        return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "the interpreter or its environment is not fit to wait");
    for (unsigned i = 0; i < FAILED_MAX; i++)
        if (warm->failed[i].key == hash_of(key) && warm->failed[i].until_ns > uv_hrtime())
            return shoal_fail(msg, SHOAL_ERR_UNREACHABLE,
                              "a warm interpreter for it did not come up; the agent's log may say why");
    for (unsigned i = 0; i < SHOAL_WARM_SERVERS_MAX && server == NULL; i++)
        if (warm->servers[i] != NULL && strcmp(warm->servers[i]->key, key) == 0)
            server = warm->servers[i];
    if (server == NULL) {
        err = server_start(warm, start, key, &server, msg);
        if (err != SHOAL_OK)
            return err;
    }
    server->used_ns = uv_hrtime();
    code = spawn_send(server->socket, order, fds);
    if (code != 0)
        return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "the warm interpreter takes no order: %s", strerror(code));
    *number = server->number;
    return SHOAL_OK;
}

void warm_answered(struct warm *warm, uint64_t number)
{
    struct server *server = server_of(warm, number);

    if (server != NULL)
        server->answered = true;
}

void warm_failed(struct warm *warm, uint64_t number)
{
    struct server *server = server_of(warm, number);

    if (server == NULL)
        return;
    note_failure(server);
    server_end(server, true);
}

/* The servers end by themselves once their sockets are closed; nobody is left who would wait for them. */
void warm_stop(struct warm *warm, void (*done)(void *arg), void *arg)
{
    warm->stopped = true;
    warm->done = done;
    warm->done_arg = arg;
    for (unsigned i = 0; i < SHOAL_WARM_SERVERS_MAX; i++)
        if (warm->servers[i] != NULL)
            server_end(warm->servers[i], false);
    (void)uv_timer_stop(&warm->timer);
    uv_close((uv_handle_t *)&warm->timer, on_timer_closed);
}
