/* The agent's side of the spawn helper (spawn.h): it starts the helper, notices its end, and hands it orders.
 *
 *   none --first order, or create--> runs --its socket breaks--> none
 *
 * There is no timer and no retry here: the next order starts the helper again, and who lost an order asks again (P3). */
#include "spawn.h"

#include "descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "shoal/banned.h"

#define HELPER_FD 3
#define HEAR_MAX 64 /* of its words in one turn */
/* As many orders as there are runners on a host, each about 2 KiB with what the kernel adds. */
#define SOCKET_BYTES (1024 * 1024)

/* One process; its memory goes when libuv has let go of the handle. */
struct helper {
    uv_poll_t poll;
    struct spawner *spawner;
    int socket;
    pid_t pid;
};

struct spawner {
    uv_loop_t *loop;
    struct helper *helper; /* NULL: none runs */
    unsigned handles_open;
    char why[SPAWN_WHY_BYTES]; /* the last that a helper said */
    bool stopped;
    void (*done)(void *arg);
    void *done_arg;
};

static void spawner_release(struct spawner *spawner)
{
    void (*done)(void *arg) = spawner->done;
    void *arg = spawner->done_arg;

    if (!spawner->stopped || spawner->handles_open > 0)
        return;
    free(spawner);
    done(arg);
}

static void on_poll_closed(uv_handle_t *handle)
{
    struct helper *helper = handle->data;
    struct spawner *spawner = helper->spawner;

    free(helper);
    spawner->handles_open--;
    spawner_release(spawner);
}

static void helper_forget(struct spawner *spawner)
{
    struct helper *helper = spawner->helper;

    spawner->helper = NULL;
    (void)uv_poll_stop(&helper->poll);
    (void)close(helper->socket);
    uv_close((uv_handle_t *)&helper->poll, on_poll_closed);
}

/* It takes no order any more. The process is small: once it is sent SIGKILL, its end takes less than a turn. */
static void helper_end(struct spawner *spawner)
{
    if (spawner->helper == NULL)
        return;
    (void)kill(spawner->helper->pid, SIGKILL);
    (void)waitpid(spawner->helper->pid, NULL, 0);
    helper_forget(spawner);
}

/* What it has said (P3). False: it is gone. */
static bool helper_hear(struct spawner *spawner)
{
    for (unsigned i = 0; i < HEAR_MAX; i++) {
        char text[SPAWN_WHY_BYTES];
        ssize_t len = recv(spawner->helper->socket, text, sizeof(text) - 1, MSG_DONTWAIT);

        if (len < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (len <= 0)
            return false;
        text[len] = '\0';
        memcpy(spawner->why, text, sizeof(text));
    }
    return true;
}

static void on_socket(uv_poll_t *poll, int status, int events)
{
    struct helper *helper = poll->data;

    (void)events;
    if (status < 0 || !helper_hear(helper->spawner))
        helper_end(helper->spawner);
}

const char *spawner_why(struct spawner *spawner, const char *job)
{
    if (spawner->helper != NULL && !helper_hear(spawner))
        helper_end(spawner);
    return strstr(spawner->why, job) != NULL ? spawner->why : "";
}

/* The small program beside ours, as it is built, or where `make install` puts it; else our own, which does the same and
 * forks slower. An agent whose program was replaced uses its own: the one beside it is of another version. */
static void helper_program(char *path, size_t cap)
{
    static const char *const places[] = { "shoal-runner", "../lib/shoal/shoal-runner" };
    char self[SPAWN_DIR_BYTES];
    ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash;

    self[len < 0 ? 0 : len] = '\0';
    slash = strstr(self, " (deleted)") == NULL ? strrchr(self, '/') : NULL;
    for (unsigned i = 0; slash != NULL && i < 2; i++) {
        slash[1] = '\0';
        (void)snprintf(path, cap, "%s%s", self, places[i]);
        if (access(path, X_OK) == 0)
            return;
    }
    (void)snprintf(path, cap, "/proc/self/exe");
}

/* posix_spawn() shares the agent's memory until the program is loaded: no page table is copied. */
static int helper_exec(int fd, pid_t *pid)
{
    static char padding[SPAWN_DIR_BYTES];
    char program[SPAWN_DIR_BYTES + 32];
    char fd_text[16];
    char *argv[] = { "shoal", "spawn-helper", fd_text, padding, NULL };
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t all, none;
    int code;

    memset(padding, '-', sizeof(padding) - 1);
    (void)snprintf(fd_text, sizeof(fd_text), "%d", HELPER_FD);
    (void)sigfillset(&all);
    (void)sigemptyset(&none);
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawnattr_init(&attributes);
    (void)posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    (void)posix_spawn_file_actions_adddup2(&actions, 2, 1);
    (void)posix_spawn_file_actions_adddup2(&actions, fd, HELPER_FD);
    (void)posix_spawnattr_setsigdefault(&attributes, &all);
    (void)posix_spawnattr_setsigmask(&attributes, &none);
    (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
    helper_program(program, sizeof(program));
    code = posix_spawn(pid, program, &actions, &attributes, argv, environ);
    (void)posix_spawnattr_destroy(&attributes);
    (void)posix_spawn_file_actions_destroy(&actions);
    return code;
}

static enum shoal_err helper_start(struct spawner *spawner, struct shoal_msg *msg)
{
    struct helper *helper;
    int bytes = SOCKET_BYTES;
    int pair[2];
    int theirs;
    int code;

    if (spawner->helper != NULL)
        return SHOAL_OK;
    helper = calloc(1, sizeof(*helper));
    if (helper == NULL || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        free(helper);
        return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "no socket for the spawn helper: %s", strerror(errno));
    }
    (void)setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    (void)fcntl(pair[0], F_SETFL, O_NONBLOCK);
    theirs = fcntl(pair[1], F_DUPFD_CLOEXEC, HELPER_FD + 1); /* dup2() to its own number would leave it close-on-exec */
    code = theirs < 0 ? errno : helper_exec(theirs, &helper->pid);
    (void)close(pair[1]);
    if (theirs >= 0)
        (void)close(theirs);
    if (code != 0) {
        (void)close(pair[0]);
        free(helper);
        return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "the spawn helper cannot be started: %s", strerror(code));
    }
    descriptors_give_back(helper->pid); /* before its first order: all runners, and what they start, have it from there */
    helper->spawner = spawner;
    helper->socket = pair[0];
    (void)uv_poll_init(spawner->loop, &helper->poll, helper->socket);
    helper->poll.data = helper;
    (void)uv_poll_start(&helper->poll, UV_READABLE, on_socket);
    spawner->helper = helper;
    spawner->handles_open++;
    return SHOAL_OK;
}

enum shoal_err spawner_create(struct spawner **out, struct uv_loop_s *loop, struct shoal_msg *msg)
{
    struct spawner *spawner = calloc(1, sizeof(*spawner));
    enum shoal_err err;

    if (spawner == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for the spawn helper");
    spawner->loop = loop;
    err = helper_start(spawner, msg);
    if (err != SHOAL_OK)
        free(spawner);
    else
        *out = spawner;
    return err;
}

enum shoal_err spawner_runner(struct spawner *spawner, const struct spawn_order *order,
                              const struct spawn_fds *fds, struct shoal_msg *msg)
{
    int code = 0;

    if (strstr(spawner->why, order->job) != NULL)
        spawner->why[0] = '\0'; /* of another time */
    for (unsigned i = 0; i < 2; i++) { /* twice: the first may tell that the helper has ended */
        enum shoal_err err = helper_start(spawner, msg);

        if (err != SHOAL_OK)
            return err;
        code = spawn_send(spawner->helper->socket, order, fds);
        if (code == 0)
            return SHOAL_OK;
        if (code != EPIPE && code != ECONNRESET)
            break; /* its queue is full: it is behind, or stopped */
        helper_end(spawner);
    }
    return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "the spawn helper takes no order: %s", strerror(code));
}

void spawner_stop(struct spawner *spawner, void (*done)(void *arg), void *arg)
{
    spawner->stopped = true;
    spawner->done = done;
    spawner->done_arg = arg;
    if (spawner->helper != NULL)
        helper_forget(spawner); /* P1 of spawn.h: it stays as long as its runners do */
    spawner_release(spawner);
}
