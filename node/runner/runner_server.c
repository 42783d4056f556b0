/* The engine server of a job: a Python that has the framework loaded and forks one engine for each START of kind FORK
 * (collective/python/pyedt/engine_server.py). It talks in lines of JSON over a SEQPACKET socket.
 *
 *   runner --{"fork": slot, "worker": id, ...} and the slot's lock--> server --fork, fork--> engine, a child of the runner
 *          <--{"forked": slot, "worker": id, "pid": n}--------------
 *
 * V1. An engine that was killed before it was forked leaves nothing: it is killed as soon as it has a process, and when
 *     the server was asked for no other engine, the server is ended, and the locks that lie in its socket with it.
 */
#include "runner_state.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shoal/wire.h"

#include "shoal/banned.h"

/* The engine server: started with the first engine, serves until the runner ends. */
enum shoal_err runner_server_start(struct runner *runner, const struct shoal_runner_start *start, struct shoal_msg *msg)
{
    static struct shoal_runner_start server; /* 8 KiB of pointers */
    char fd_text[64];
    int pair[2];
    enum shoal_err err;
    pid_t pid = -1;

    if (runner->server >= 0)
        return SHOAL_OK;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return shoal_fail(msg, SHOAL_ERR_FULL, "cannot make the engine server's socket: %s", strerror(errno));
    server = *start;
    server.envc = 0; /* all but what marks one worker: the kernel shows it for every engine forked from here */
    for (uint32_t i = 0; i < start->envc; i++)
        if (strncmp(start->env[i], SHOAL_ENV_WORKER "=", sizeof(SHOAL_ENV_WORKER)) != 0 &&
            strncmp(start->env[i], SHOAL_ENV_SLOT "=", sizeof(SHOAL_ENV_SLOT)) != 0 &&
            strncmp(start->env[i], SHOAL_ENV_TOKEN "=", sizeof(SHOAL_ENV_TOKEN)) != 0)
            server.env[server.envc++] = start->env[i];
    server.nice = 0; /* imports at once; its engines set their own */
    (void)snprintf(fd_text, sizeof(fd_text), "SHOAL_SERVER_FD=%d", pair[1]);
    if (server.envc == SHOAL_RUNNER_STRINGS_MAX) {
        err = shoal_fail(msg, SHOAL_ERR_TOO_BIG, "more than %d environment variables", SHOAL_RUNNER_STRINGS_MAX - 1);
        goto close_pair;
    }
    server.env[server.envc] = fd_text;
    server.env[server.envc + 1] = NULL;
    (void)fcntl(pair[1], F_SETFD, 0);
    err = runner_exec(runner, &server, -1, &pid, msg);
    server.env[server.envc] = NULL; /* fd_text ends with this call */
    if (err != SHOAL_OK)
        goto close_pair;
    (void)close(pair[1]);
    runner->server = pair[0];
    runner->server_pid = pid;
    runner_watch(runner, pair[0]);
    return SHOAL_OK;
close_pair:
    (void)close(pair[0]);
    (void)close(pair[1]);
    return err;
}

static void json_text(struct shoal_writer *w, const char *text)
{
    shoal_put_u8(w, '"');
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++) {
        char escaped[8];

        if (*at == '"' || *at == '\\')
            (void)snprintf(escaped, sizeof(escaped), "\\%c", *at);
        else if (*at < 0x20)
            (void)snprintf(escaped, sizeof(escaped), "\\u%04x", *at);
        else
            (void)snprintf(escaped, sizeof(escaped), "%c", *at);
        shoal_put_raw(w, escaped, strlen(escaped));
    }
    shoal_put_u8(w, '"');
}

static void json_field(struct shoal_writer *w, const char *name, const char *text)
{
    json_text(w, name);
    shoal_put_u8(w, ':');
    json_text(w, text);
    shoal_put_u8(w, ',');
}

/* One JSON line and the slot's lock descriptor: "fork an engine". The answer names its pid. */
enum shoal_err runner_server_fork(struct runner *runner, const struct shoal_runner_start *start, const int logs[2],
                                  int lock, struct shoal_msg *msg)
{
    static uint8_t line[SHOAL_RUNNER_MESSAGE_MAX];
    struct shoal_writer w = shoal_writer_init(line, sizeof(line));
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = { 0 };
    struct iovec part = { .iov_base = line };
    struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1 };
    char number[64];

    (void)snprintf(number, sizeof(number), "{\"fork\":%u,\"worker\":%llu,\"nice\":%u,", start->slot,
                   (unsigned long long)start->worker_id, start->nice);
    shoal_put_raw(&w, number, strlen(number));
    json_field(&w, "cwd", start->cwd);
    for (unsigned i = 0; i < 2; i++) { /* the engine opens our ends of the pipes */
        (void)snprintf(number, sizeof(number), "/proc/%d/fd/%d", (int)getpid(), logs[i]);
        json_field(&w, i == 0 ? "stdout" : "stderr", number);
    }
    json_text(&w, "env");
    shoal_put_raw(&w, ":{", 2);
    for (uint32_t i = 0; i < start->envc; i++) {
        const char *equals = strchr(start->env[i], '=');
        char name[256];

        if (equals == NULL || (size_t)(equals - start->env[i]) >= sizeof(name))
            continue;
        memcpy(name, start->env[i], (size_t)(equals - start->env[i]));
        name[equals - start->env[i]] = '\0';
        json_text(&w, name);
        shoal_put_u8(&w, ':');
        json_text(&w, equals + 1);
        if (i + 1 < start->envc)
            shoal_put_u8(&w, ',');
    }
    shoal_put_raw(&w, "}}\n", 3);
    if (w.failed)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "the environment of an engine exceeds %u bytes",
                          (unsigned)sizeof(line));
    part.iov_len = w.len;
    if (lock >= 0) {
        struct cmsghdr *c;

        header.msg_control = control.space;
        header.msg_controllen = sizeof(control.space);
        c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &lock, sizeof(int));
    }
    if (sendmsg(runner->server, &header, MSG_NOSIGNAL) < 0)
        return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "the engine server is gone: %s; see %s", strerror(errno),
                          start->stderr_path);
    return SHOAL_OK;
}

/* {"forked": SLOT, "worker": ID, "pid": N} or {"error": "...", "worker": ID}: our own server wrote it, so a small
 * scan for the three fields will do; anything else is shown in the log. */
static void on_server_line(struct runner *runner, char *line)
{
    const char *worker = strstr(line, "\"worker\":");
    const char *pid = strstr(line, "\"pid\":");
    const char *error = strstr(line, "\"error\":");
    struct child *child = worker == NULL ? NULL : child_find(runner, strtoull(worker + 9, NULL, 10));

    if (child == NULL || (pid == NULL && error == NULL)) {
        (void)dprintf(2, "runner: engine server says: %s\n", line);
        return;
    }
    if (pid != NULL && strtol(pid + 6, NULL, 10) > 1 && strtol(pid + 6, NULL, 10) <= INT32_MAX) {
        child_running(runner, child, (pid_t)strtol(pid + 6, NULL, 10));
    } else if (pid != NULL) { /* 1 and below would be everybody's, to kill() */
        (void)snprintf(child->text, sizeof(child->text), "the engine server names a process that cannot be: %.100s",
                       pid);
        child_ended(runner, child, -1, false);
    } else {
        (void)snprintf(child->text, sizeof(child->text), "the engine server could not fork: %.400s", error + 8);
        child_ended(runner, child, -1, false);
    }
}

void runner_server_unwanted(struct runner *runner)
{
    bool wanted = runner->server < 0;

    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++) {
        const struct child *child = &runner->children[i];

        wanted = wanted || (child->used && !child->exited && child->pid == 0 && !child->doomed);
    }
    if (!wanted && runner->server_pid > 0 && kill(-runner->server_pid, SIGKILL) != 0) /* server_lost() does the rest */
        (void)kill(runner->server_pid, SIGKILL); /* it has just been forked, and leads no group yet */
}

static void server_lost(struct runner *runner)
{
    (void)close(runner->server);
    runner->server = -1;
    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++) {
        struct child *child = &runner->children[i];

        if (child->used && !child->exited && child->pid == 0 && child->doomed) {
            child_ended(runner, child, SIGKILL, true); /* V1 */
        } else if (child->used && !child->exited && child->pid == 0) {
            (void)snprintf(
                child->text, sizeof(child->text),
                "the engine server ended before it forked this engine; its last words are in the worker's stderr");
            child_ended(runner, child, -1, false);
        }
    }
}

void runner_on_server(struct runner *runner)
{
    ssize_t len = recv(runner->server, runner->server_line, sizeof(runner->server_line) - 1, MSG_DONTWAIT);

    if (len > 0) {
        runner->server_line[len] = '\0';
        on_server_line(runner, runner->server_line);
    } else if (len == 0 || (errno != EAGAIN && errno != EINTR)) {
        server_lost(runner);
    }
}
