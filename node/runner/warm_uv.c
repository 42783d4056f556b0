/* The agent's side of warm interpreters (warm.h): which ones there are, which one fits a start, and when one ends.
 *
 *   SCRIPT     none --a start that none fits------------------------> serves --unused or old, or one too many--> ends by itself
 *   FRAMEWORK  none --a start that none fits--> wanted                  ^ '--it dies, or holds an order: killed--> none
 *                       '--its job ends, the host is quiet--> loads ---' it says that it is ready
 *
 * A server whose socket is closed carries out what it was told before, and ends after its runners. It is reaped by the
 * timer: the end of a large process takes longer than a turn. */
#include "warm.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "shoal/limits.h"

#include "shoal/banned.h"

#define TICK_MS 500
#define SOCKET_BYTES (256 * 1024)
#define ENDING_MAX 64
#define FAILED_MAX 8
/* A server that was let go has its orders to carry out, and its runners to stay with; one that has never answered and hangs
 * is killed then. */
#define ENDING_NS (5 * SHOAL_S)

struct server {
    uv_poll_t poll;
    struct warm *warm;
    uint64_t number;
    uint64_t began_ns;
    uint64_t used_ns;
    uint64_t bytes; /* FRAMEWORK: of its own, once it is ready */
    int socket;
    pid_t pid;
    bool ready;    /* it has said so */
    bool answered; /* it is ready, or a runner of it has said WELCOME: it came up */
    char key[SHOAL_WARM_KEY_BYTES];
};

/* W4 */
struct wanted {
    bool used;
    bool ended; /* the job that wanted it */
    uint64_t ended_ns;
    char job[SHOAL_JOB_ID_TEXT_BYTES];
    char key[SHOAL_WARM_KEY_BYTES];
};

struct warm {
    struct warm_options options;
    uv_timer_t timer;
    char native[SPAWN_DIR_BYTES];
    struct server *servers[SHOAL_WARM_SERVERS_MAX];
    struct wanted wanted[SHOAL_WARM_SERVERS_MAX];
    uint64_t quiet_ns; /* since when no job has run here; 0: one runs */
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

/* A start that ended before any runner of it has answered would end again. */
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

/* ---- which server ---- */

static struct server *server_with(const struct warm *warm, const char *key)
{
    for (unsigned i = 0; i < SHOAL_WARM_SERVERS_MAX; i++)
        if (warm->servers[i] != NULL && strcmp(warm->servers[i]->key, key) == 0)
            return warm->servers[i];
    return NULL;
}

static bool has_failed(const struct warm *warm, const char *key)
{
    for (unsigned i = 0; i < FAILED_MAX; i++)
        if (warm->failed[i].key == hash_of(key) && warm->failed[i].until_ns > uv_hrtime())
            return true;
    return false;
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

static void on_socket(uv_poll_t *poll, int status, int events);
static void on_tick(uv_timer_t *timer);

static void tick_on(struct warm *warm)
{
    if (!uv_is_active((uv_handle_t *)&warm->timer))
        (void)uv_timer_start(&warm->timer, on_tick, TICK_MS, TICK_MS);
}

static enum shoal_err server_start(struct warm *warm, const char *key, struct server **started, struct shoal_msg *msg)
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
    code = warm_process_start(warm->native, key, pair[1], &server->pid);
    (void)close(pair[1]);
    if (code != 0) {
        (void)close(pair[0]);
        free(server);
        return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "a warm interpreter cannot be started: %s", strerror(code));
    }
    server->warm = warm;
    server->number = ++warm->numbers;
    server->socket = pair[0];
    server->began_ns = server->used_ns = uv_hrtime();
    memcpy(server->key, key, strlen(key) + 1);
    (void)uv_poll_init(warm->options.loop, &server->poll, server->socket);
    server->poll.data = server;
    (void)uv_poll_start(&server->poll, UV_READABLE, on_socket);
    warm->servers[place_for(warm)] = server;
    warm->handles_open++;
    tick_on(warm);
    *started = server;
    return SHOAL_OK;
}

/* ---- memory ---- */

static bool has_framework(const struct server *server)
{
    return server != NULL && warm_key_kind(server->key) == SHOAL_WARM_FRAMEWORK;
}

/* The one that was not used for the longest time. NULL: there is none. */
static struct server *oldest_with_framework(const struct warm *warm)
{
    struct server *oldest = NULL;

    for (unsigned i = 0; i < SHOAL_WARM_SERVERS_MAX; i++)
        if (has_framework(warm->servers[i]) && (oldest == NULL || warm->servers[i]->used_ns < oldest->used_ns))
            oldest = warm->servers[i];
    return oldest;
}

/* Until they hold no more than they may. */
static void memory_bound(struct warm *warm)
{
    for (;;) {
        struct server *oldest = oldest_with_framework(warm);
        uint64_t sum = 0;

        for (unsigned i = 0; i < SHOAL_WARM_SERVERS_MAX; i++)
            sum += has_framework(warm->servers[i]) ? warm->servers[i]->bytes : 0;
        if (oldest == NULL || sum <= warm->options.memory_bytes)
            return;
        (void)fprintf(
            stderr,
            "interpreters with a framework loaded hold %llu MiB of %llu that they may (warm-memory): one ends\n",
            (unsigned long long)(sum / SHOAL_MIB), (unsigned long long)(warm->options.memory_bytes / SHOAL_MIB));
        server_end(oldest, false);
    }
}

/* ---- what goes on by itself ---- */

/* All that it ever says is that it is ready; then readable means gone. */
static void on_socket(uv_poll_t *poll, int status, int events)
{
    struct server *server = poll->data;
    char said;

    (void)status;
    (void)events;
    if (!server->ready && recv(server->socket, &said, 1, MSG_DONTWAIT) > 0) {
        server->ready = server->answered = true;
        server->bytes = warm_process_bytes(server->pid);
        if (has_framework(server))
            (void)fprintf(stderr,
                          "an interpreter with the framework loaded waits, process %d, with %llu MiB of its own\n",
                          (int)server->pid, (unsigned long long)(server->bytes / SHOAL_MIB));
        memory_bound(server->warm);
        return;
    }
    note_failure(server);
    server_end(server, !server->answered); /* else it stays with its runners (P1 of spawn.h) */
}

static bool is_old(const struct server *server, uint64_t now)
{
    uint64_t idle_ns = has_framework(server) ? SHOAL_WARM_FRAMEWORK_IDLE_NS : SHOAL_WARM_IDLE_NS;

    return now - server->used_ns > idle_ns || now - server->began_ns > SHOAL_WARM_AGE_NS;
}

/* False: nothing is left to look at. */
static bool reap(struct warm *warm, uint64_t now)
{
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
    return any;
}

/* W4. False: none is awaited, and none was made. */
static bool make_wanted(struct warm *warm, uint64_t now)
{
    bool any = false;

    if (!warm->options.is_quiet(warm->options.arg))
        warm->quiet_ns = 0;
    else if (warm->quiet_ns == 0)
        warm->quiet_ns = now;
    for (unsigned i = 0; i < SHOAL_WARM_SERVERS_MAX; i++) {
        struct wanted *wanted = &warm->wanted[i];
        struct shoal_msg msg = { "" };
        struct server *server;

        if (!wanted->used || !wanted->ended)
            continue;
        if (now - wanted->ended_ns < SHOAL_WARM_WANTED_NS &&
            (warm->quiet_ns == 0 || now - warm->quiet_ns < SHOAL_WARM_QUIET_NS)) {
            any = true;
            continue;
        }
        wanted->used = false;
        if (warm_free_bytes() < SHOAL_WARM_FREE_MIB * SHOAL_MIB || has_failed(warm, wanted->key) ||
            server_with(warm, wanted->key) != NULL)
            continue;
        if (server_start(warm, wanted->key, &server, &msg) == SHOAL_OK)
            any = true;
        else
            (void)fprintf(stderr, "%s\n", msg.text);
    }
    return any;
}

static void on_tick(uv_timer_t *timer)
{
    struct warm *warm = timer->data;
    uint64_t now = uv_hrtime();
    bool any = reap(warm, now);

    for (unsigned i = 0; i < SHOAL_WARM_SERVERS_MAX; i++) {
        if (warm->servers[i] == NULL)
            continue;
        any = true;
        if (is_old(warm->servers[i], now))
            server_end(warm->servers[i], false);
    }
    if (oldest_with_framework(warm) != NULL && warm_free_bytes() < SHOAL_WARM_FREE_MIB / 2 * SHOAL_MIB)
        server_end(oldest_with_framework(warm), false);
    if (!make_wanted(warm, now) && !any)
        (void)uv_timer_stop(timer);
}

/* A place for what is wanted: its own, a free one, or that of any other. */
static void want(struct warm *warm, const char *key, const char *job)
{
    struct wanted *place = &warm->wanted[0];

    for (unsigned i = 0; i < SHOAL_WARM_SERVERS_MAX; i++) {
        struct wanted *wanted = &warm->wanted[i];

        if (wanted->used && strcmp(wanted->key, key) == 0) {
            place = wanted;
            break;
        }
        if (!wanted->used)
            place = wanted;
    }
    if (place->used && strcmp(place->key, key) == 0) { /* a second job: it need not wait for the end of the first */
        place->ended_ns = place->ended ? place->ended_ns : uv_hrtime();
        place->ended = true;
        tick_on(warm);
        return;
    }
    *place = (struct wanted){ .used = true };
    (void)snprintf(place->job, sizeof(place->job), "%s", job);
    memcpy(place->key, key, strlen(key) + 1);
}

/* ---- the contract ---- */

enum shoal_err warm_create(struct warm **out, const struct warm_options *options, struct shoal_msg *msg)
{
    struct warm *warm = calloc(1, sizeof(*warm));

    if (warm == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for the table of warm interpreters");
    warm->options = *options;
    (void)snprintf(warm->native, sizeof(warm->native), "%s", options->native);
    (void)uv_timer_init(options->loop, &warm->timer);
    warm->timer.data = warm;
    warm->handles_open = 1;
    *out = warm;
    return SHOAL_OK;
}

/* The server for `key`, which may be wanted only. NULL: the message says why, or is empty. */
static struct server *server_for(struct warm *warm, const char *key, const char *job, struct shoal_msg *msg)
{
    struct server *server = server_with(warm, key);
    bool framework = warm_key_kind(key) == SHOAL_WARM_FRAMEWORK;

    if (server != NULL && (server->ready || !framework))
        return server;
    if (framework) {
        if (server == NULL && warm->options.memory_bytes > 0)
            want(warm, key, job);
        return NULL;
    }
    if (has_failed(warm, key)) {
        shoal_ignore(shoal_fail(msg, SHOAL_ERR_UNREACHABLE,
                                "a warm interpreter for it did not come up; the agent's log may say why"));
        return NULL;
    }
    return server_start(warm, key, &server, msg) == SHOAL_OK ? server : NULL;
}

enum shoal_err warm_runner(struct warm *warm, const struct shoal_runner_start *start, const struct spawn_order *order,
                           const struct spawn_fds *fds, uint64_t *number, struct shoal_msg *msg)
{
    char key[SHOAL_WARM_KEY_BYTES];
    struct server *server;
    int code;

    msg->text[0] = '\0';
    if (!warm_key_of(start, key))
        return start->warm == SHOAL_WARM_FRAMEWORK
                   ? SHOAL_ERR_UNREACHABLE
                   : shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "the interpreter or its environment is not fit to wait");
    server = server_for(warm, key, order->job, msg);
    if (server == NULL)
        return SHOAL_ERR_UNREACHABLE;
    server->used_ns = uv_hrtime();
    code = spawn_send(server->socket, order, fds);
    if (code != 0)
        return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "the warm interpreter takes no order: %s", strerror(code));
    *number = server->number;
    return SHOAL_OK;
}

void warm_ended(struct warm *warm, const char *job)
{
    for (unsigned i = 0; i < SHOAL_WARM_SERVERS_MAX && !warm->stopped; i++)
        if (warm->wanted[i].used && !warm->wanted[i].ended && strcmp(warm->wanted[i].job, job) == 0) {
            warm->wanted[i].ended = true;
            warm->wanted[i].ended_ns = uv_hrtime();
            tick_on(warm);
        }
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
