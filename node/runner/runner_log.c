/* A job's output is counted, and cut at a bound, without ever holding a script back.
 *
 *   script --pipe--> thread of the runner --> log/app.<task>/stdout      as long as the job has printed
 *                                                                      less than the bound
 *                                         --> nowhere                    beyond it; one line in each file says so
 *
 * L1. The runner's loop never touches a log: a disk that hangs holds neither a lease nor a signal, only this thread.
 * L2. The exit of a worker is reported after its output is in its files (SYNC), so who reads a log after the end of its
 *     job reads all of it. The runner waits for that with a deadline of its own.
 * L3. A file is made with the first byte that is for it: most short jobs print nothing, and to make a file is the most
 *     that such a job would cost.
 * L4. The bound is one for all logs of the job on this host, those from an earlier runner included.
 *
 * The loop and the thread share nothing: they send each other fixed messages over a socket pair. */
#include "runner_log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/limits.h"
#include "shoal/runner.h"
#include "shoal/worker.h"

#include "shoal/banned.h"

/* Two for each worker, and as many again for what ended workers have left behind. */
#define PIPES_MAX (4 * SHOAL_RUNNER_WORKERS_MAX)
#define PIECE_BYTES (64 * SHOAL_KIB)
/* A pipe holds 1 MiB at the most (/proc/sys/fs/pipe-max-size): more than that was printed later. */
#define SYNC_PIECES_MAX 16

struct note {
    bool sync; /* else: a new pipe */
    uint64_t worker_id;
    uint64_t bytes_max;
    int pipe;
    int file; /* -1: it is not there yet (L3) */
    char path[SHOAL_PATH_TEXT_BYTES];
};

struct log_pipe {
    uint64_t worker_id;
    int pipe;
    int file;
    char path[SHOAL_PATH_TEXT_BYTES];
    bool cut;    /* its file says so */
    bool failed; /* a write failed, and was told */
    bool mid_line;
};

struct copier {
    int socket;
    uint64_t used;
    uint64_t bytes_max;
    size_t count;
    struct log_pipe pipes[PIPES_MAX];
    char piece[PIECE_BYTES];
};

/* ---- the thread ---- */

static int log_open(const char *path, int more) { return open(path, O_WRONLY | O_APPEND | O_CLOEXEC | more, 0600); }

static void put(struct log_pipe *log, const char *bytes, size_t len)
{
    if (log->file < 0 && len > 0)
        log->file = log_open(log->path, O_CREAT); /* L3 */
    while (len > 0) {
        ssize_t wrote = write(log->file, bytes, len);

        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            if (!log->failed)
                (void)dprintf(2, "runner: a log cannot be written, what is printed is lost: %s\n", strerror(errno));
            log->failed = true;
            return;
        }
        log->mid_line = bytes[wrote - 1] != '\n';
        bytes += wrote;
        len -= (size_t)wrote;
    }
}

static void take(struct copier *copier, struct log_pipe *log, size_t len)
{
    uint64_t room = copier->bytes_max > copier->used ? copier->bytes_max - copier->used : 0;
    size_t kept = len < room ? len : (size_t)room;
    char line[256];

    put(log, copier->piece, kept);
    copier->used += kept;
    if (kept == len || log->cut)
        return;
    log->cut = true;
    (void)snprintf(
        line, sizeof(line),
        "%sshoal: the log is cut here: the logs of this job have reached %llu MiB on this host. The job goes on, "
        "and what it prints is dropped; raise log-max in agent.conf, or print less\n",
        log->mid_line ? "\n" : "", (unsigned long long)(copier->bytes_max / SHOAL_MIB));
    put(log, line, strlen(line));
}

/* One piece. False: nothing more now, or the end. */
static bool copy(struct copier *copier, struct log_pipe *log)
{
    ssize_t got = log->pipe < 0 ? 0 : read(log->pipe, copier->piece, sizeof(copier->piece));

    if (got > 0) {
        take(copier, log, (size_t)got);
        return true;
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (log->pipe >= 0)
        (void)close(log->pipe);
    log->pipe = -1;
    return false;
}

static void on_open(struct copier *copier, const struct note *note)
{
    struct stat file, other;
    struct log_pipe *log;
    bool known = note->file < 0 || fstat(note->file, &file) != 0;

    for (size_t i = 0; i < copier->count && !known; i++)
        known = copier->pipes[i].file >= 0 && fstat(copier->pipes[i].file, &other) == 0 &&
                other.st_ino == file.st_ino && other.st_dev == file.st_dev;
    if (!known)
        copier->used += (uint64_t)file.st_size;
    copier->bytes_max = note->bytes_max;
    if (copier->count == PIPES_MAX) { /* cannot be: twice what workers there can be */
        (void)close(note->pipe);
        if (note->file >= 0)
            (void)close(note->file);
        return;
    }
    log = &copier->pipes[copier->count++];
    *log = (struct log_pipe){ .worker_id = note->worker_id, .pipe = note->pipe, .file = note->file };
    memcpy(log->path, note->path, sizeof(log->path));
}

static void on_sync(struct copier *copier, const struct note *note)
{
    for (size_t i = 0; i < copier->count; i++)
        for (unsigned n = 0; copier->pipes[i].worker_id == note->worker_id && n < SYNC_PIECES_MAX; n++)
            if (!copy(copier, &copier->pipes[i]))
                break;
    (void)send(copier->socket, note, sizeof(*note), MSG_NOSIGNAL);
}

static void forget_ended(struct copier *copier)
{
    for (size_t i = 0; i < copier->count;) {
        if (copier->pipes[i].pipe >= 0) {
            i++;
            continue;
        }
        if (copier->pipes[i].file >= 0)
            (void)close(copier->pipes[i].file);
        copier->pipes[i] = copier->pipes[--copier->count];
    }
}

static void *copier_run(void *arg)
{
    static struct copier copier; /* one process, one runner */
    static struct pollfd waits[PIPES_MAX + 1];
    struct note note;

    copier.socket = *(int *)arg;
    for (;;) {
        waits[0] = (struct pollfd){ .fd = copier.socket, .events = POLLIN };
        for (size_t i = 0; i < copier.count; i++)
            waits[i + 1] = (struct pollfd){ .fd = copier.pipes[i].pipe, .events = POLLIN };
        if (poll(waits, copier.count + 1, -1) < 0)
            continue;
        for (size_t i = 0; i < copier.count; i++)
            if (waits[i + 1].revents != 0)
                (void)copy(&copier, &copier.pipes[i]);
        if (waits[0].revents != 0) {
            if (recv(copier.socket, &note, sizeof(note), 0) != (ssize_t)sizeof(note))
                return NULL;
            if (note.sync)
                on_sync(&copier, &note);
            else
                on_open(&copier, &note);
        }
        forget_ended(&copier);
    }
}

/* ---- the runner's side ---- */

static enum shoal_err copier_start(struct runner_logs *logs, struct shoal_msg *msg)
{
    static int theirs;
    pthread_t thread;
    int pair[2];

    if (logs->running)
        return SHOAL_OK;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return shoal_fail(msg, SHOAL_ERR_FULL, "cannot make a socket for the logs: %s", strerror(errno));
    theirs = pair[1];
    if (pthread_create(&thread, NULL, copier_run, &theirs) != 0) {
        (void)close(pair[0]);
        (void)close(pair[1]);
        return shoal_fail(msg, SHOAL_ERR_FULL, "cannot make a thread for the logs; raise the process limit");
    }
    (void)pthread_detach(thread);
    logs->socket = pair[0];
    logs->running = true;
    return SHOAL_OK;
}

/* With errno where it may not: a start whose output would be lost is refused. */
static bool may_be_made(const char *path)
{
    char folder[SHOAL_PATH_TEXT_BYTES];
    const char *slash = strrchr(path, '/');

    if (slash == NULL || (size_t)(slash - path) >= sizeof(folder))
        return true; /* beside us; or the attempt will tell */
    memcpy(folder, path, (size_t)(slash - path));
    folder[slash - path] = '\0';
    return access(folder, W_OK | X_OK) == 0;
}

/* A pipe to the file; its writing end, or -1 with errno. */
static int pipe_to(struct runner_logs *logs, uint64_t worker_id, const char *path)
{
    struct note note = { .worker_id = worker_id, .bytes_max = logs->bytes_max };
    int ends[2];

    (void)snprintf(note.path, sizeof(note.path), "%s", path);
    note.file = log_open(path, 0);
    if (note.file < 0 && (errno != ENOENT || !may_be_made(path)))
        return -1;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        if (note.file >= 0)
            (void)close(note.file);
        return -1;
    }
    note.pipe = ends[0];
    if (fcntl(note.pipe, F_SETFL, O_NONBLOCK) == 0 &&
        send(logs->socket, &note, sizeof(note), MSG_NOSIGNAL) == (ssize_t)sizeof(note))
        return ends[1];
    if (note.file >= 0)
        (void)close(note.file);
    (void)close(ends[0]);
    (void)close(ends[1]);
    return -1;
}

enum shoal_err runner_logs_open(struct runner_logs *logs, uint64_t worker_id, const char *stdout_path,
                                const char *stderr_path, int fds[2], struct shoal_msg *msg)
{
    enum shoal_err err = copier_start(logs, msg);

    fds[0] = fds[1] = -1;
    if (err != SHOAL_OK)
        return err;
    fds[0] = pipe_to(logs, worker_id, stdout_path);
    if (fds[0] >= 0) /* one file keeps the order of both streams */
        fds[1] = strcmp(stdout_path, stderr_path) == 0 ? fcntl(fds[0], F_DUPFD_CLOEXEC, 3)
                                                       : pipe_to(logs, worker_id, stderr_path);
    if (fds[0] >= 0 && fds[1] >= 0)
        return SHOAL_OK;
    err = shoal_fail(msg, SHOAL_ERR_STORAGE, "%s: cannot open the log: %s", fds[0] < 0 ? stdout_path : stderr_path,
                     strerror(errno));
    for (unsigned i = 0; i < 2; i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
    return err;
}

bool runner_logs_sync(struct runner_logs *logs, uint64_t worker_id)
{
    struct note note = { .sync = true, .worker_id = worker_id };

    return logs->running &&
           send(logs->socket, &note, sizeof(note), MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(note);
}

bool runner_logs_answer(struct runner_logs *logs, uint64_t *worker_id)
{
    struct note note;

    if (!logs->running || recv(logs->socket, &note, sizeof(note), MSG_DONTWAIT) != (ssize_t)sizeof(note))
        return false;
    *worker_id = note.worker_id;
    return true;
}
