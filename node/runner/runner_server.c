/* The engine server of a job: a Python that has the framework loaded and forks one engine for each START of kind FORK
 * (collective/python/pyedt/engine_server.py). It talks in MessagePack over a SEQPACKET socket, with a head of kind ENGINE;
 * either side passes over fields that it does not know.
 *
 *   runner --{fork: slot, worker: id, ...} and the slot's lock--> server --fork, fork--> engine, a child of the runner
 *          <--{forked: slot, worker: id, pid: n}----------------
 *          <--{error: text, worker: id}-------------------------  it could not
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

#include "shoal/pack.h"
#include "shoal/worker.h"

#include "shoal/banned.h"

#define ENGINE_VERSION 1

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
    server.how = SHOAL_START_EXEC;
    server.nice = 0; /* imports at once; its engines set their own */
    (void)snprintf(fd_text, sizeof(fd_text), "SHOAL_SERVER_FD=%d", pair[1]);
    if (server.envc == SHOAL_RUNNER_STRINGS_MAX) {
        err = shoal_fail(msg, SHOAL_ERR_TOO_BIG, "more than %d environment variables", SHOAL_RUNNER_STRINGS_MAX - 1);
        goto close_pair;
    }
    server.env[server.envc++] = fd_text;
    server.env[server.envc] = NULL;
    err = runner_exec(runner, &server, pair[1], &pid, msg);
    server.env[--server.envc] = NULL; /* fd_text ends with this call */
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

/* A string that is no `name=value`, or has a name beyond any use, is left out. */
static void put_environment(struct shoal_pack_writer *w, const struct shoal_runner_start *start, int log)
{
    char named[RUNNER_STDOUT_BYTES];

    shoal_pack_begin_map(w);
    if (runner_name_stdout(start, log, named, sizeof(named))) {
        shoal_pack_put_name(w, SHOAL_ENV_STDOUT);
        shoal_pack_put_text(w, named);
    }
    for (uint32_t i = 0; i < start->envc; i++) {
        const char *equals = strchr(start->env[i], '=');
        char name[256];

        if (equals == NULL || (size_t)(equals - start->env[i]) >= sizeof(name))
            continue;
        memcpy(name, start->env[i], (size_t)(equals - start->env[i]));
        name[equals - start->env[i]] = '\0';
        shoal_pack_put_name(w, name);
        shoal_pack_put_text(w, equals + 1);
    }
    shoal_pack_end_map(w);
}

static void put_command(struct shoal_pack_writer *w, const struct shoal_runner_start *start, const int logs[2])
{
    static const char *const streams[] = { "stdout", "stderr" };

    shoal_pack_put_head(w, (struct shoal_pack_head){ SHOAL_PACK_KIND_ENGINE, ENGINE_VERSION, 1 });
    shoal_pack_begin_map(w);
    shoal_pack_put_name(w, "cwd");
    shoal_pack_put_text(w, start->cwd);
    shoal_pack_put_name(w, "env");
    put_environment(w, start, logs[0]);
    shoal_pack_put_name(w, "fork");
    shoal_pack_put_u64(w, start->slot);
    shoal_pack_put_name(w, "nice");
    shoal_pack_put_i64(w, (int64_t)start->nice);
    for (unsigned i = 0; i < 2; i++) { /* the engine opens our ends of the pipes */
        char path[64];

        (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), logs[i]);
        shoal_pack_put_name(w, streams[i]);
        shoal_pack_put_text(w, path);
    }
    shoal_pack_put_name(w, "worker");
    shoal_pack_put_u64(w, start->worker_id);
    shoal_pack_end_map(w);
}

/* One command and the slot's lock descriptor: "fork an engine". The answer names its pid. */
enum shoal_err runner_server_fork(struct runner *runner, const struct shoal_runner_start *start, const int logs[2],
                                  int lock, struct shoal_msg *msg)
{
    static uint8_t bytes[SHOAL_RUNNER_MESSAGE_MAX];
    struct shoal_pack_writer w = shoal_pack_writer_init(bytes, sizeof(bytes));
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = { 0 };
    struct iovec part = { .iov_base = bytes };
    struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1 };

    put_command(&w, start, logs);
    if (w.failed)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "the environment of an engine exceeds %u bytes",
                          (unsigned)sizeof(bytes));
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

bool runner_server_answer_decode(struct shoal_view bytes, struct runner_server_answer *answer)
{
    struct shoal_pack_reader r = shoal_pack_reader_init(bytes);
    struct shoal_pack_map map;

    *answer = (struct runner_server_answer){ 0 };
    if (shoal_pack_get_head(&r, SHOAL_PACK_KIND_ENGINE, ENGINE_VERSION, NULL) != SHOAL_OK)
        return false;
    map = shoal_pack_get_map(&r);
    while (shoal_pack_next_field(&r, &map)) {
        if (shoal_pack_named(&map, "worker"))
            answer->worker_id = shoal_pack_get_u64(&r, UINT64_MAX);
        else if (shoal_pack_named(&map, "pid"))
            answer->pid = shoal_pack_get_i64(&r);
        else if (shoal_pack_named(&map, "error"))
            answer->error = shoal_pack_get_str(&r, bytes.len);
        else
            shoal_pack_skip(&r);
    }
    return shoal_pack_reader_done(&r);
}

/* A job's own process wrote it: a pid of 1 and below would be everybody's, to kill(). */
static void on_answer(struct runner *runner, struct shoal_view bytes)
{
    struct runner_server_answer answer;
    struct child *child;

    if (!runner_server_answer_decode(bytes, &answer) || (child = child_find(runner, answer.worker_id)) == NULL) {
        (void)dprintf(2, "runner: the engine server says what is no answer, %zu bytes\n", bytes.len);
        return;
    }
    if (answer.error.len == 0 && answer.pid > 1 && answer.pid <= INT32_MAX) {
        child_running(runner, child, (pid_t)answer.pid);
        return;
    }
    if (answer.error.len > 0)
        (void)snprintf(child->text, sizeof(child->text), "the engine server could not fork: %.*s",
                       answer.error.len > 400 ? 400 : (int)answer.error.len, (const char *)answer.error.bytes);
    else
        (void)snprintf(child->text, sizeof(child->text), "the engine server names a process that cannot be: %lld",
                       (long long)answer.pid);
    child_ended(runner, child, -1, false);
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
    ssize_t len = recv(runner->server, runner->server_answer, sizeof(runner->server_answer), MSG_DONTWAIT);

    if (len > 0)
        on_answer(runner, shoal_view_of(runner->server_answer, (size_t)len));
    else if (len == 0 || !shoal_worker_recv_later(errno))
        server_lost(runner);
}
