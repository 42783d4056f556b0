/* A job's output is counted, and cut at a bound, without ever holding a script back.
 *
 *   script --pipe--> thread of the runner --> log/app.<task>/stdout      as long as the job has printed
 *                                                                      less than the bound
 *                                         --> nowhere                    beyond it; one line in each file says so
 *
 * L1. What is printed is written by this thread alone, and the loop waits for it nowhere: while workers run, a disk that
 *     hangs holds neither a lease nor a signal. At a worker's start the loop itself makes the folder and opens a log that is
 *     there, since a start whose output would be lost is refused: a disk that hangs then does hold it.
 * L2. The exit of a worker is reported after its output is in its files (SYNC), so who reads a log after the end of its
 *     job reads all of it. The runner waits for that with a deadline of its own.
 * L3. A file is made with the first byte that is for it: most short jobs print nothing, and to make a file is the most
 *     that such a job would cost.
 * L4. The bound is one for all logs of the job on this host, those from an earlier runner included.
 * L5. Where a process prints on both streams, stdout.order beside its files says in which order (shoal/log_order.h). A
 *     line is not torn in two by the other stream, as long as it ends soon. What lies in both pipes at one time has no
 *     order any more: stdout comes first.
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
#include "shoal/log_order.h"
#include "shoal/runner.h"
#include "shoal/worker.h"

#include "shoal/banned.h"

/* Two for each worker, and as many again for what ended workers have left behind. */
#define PIPES_MAX (4 * SHOAL_RUNNER_WORKERS_MAX)
#define PIECE_BYTES (64 * SHOAL_KIB)
/* A pipe holds 1 MiB at the most (/proc/sys/fs/pipe-max-size): more than that was printed later. */
#define SYNC_PIECES_MAX 16

#define STREAMS 2
#define NO_STREAM STREAMS

struct note {
    bool sync; /* else: a new pipe */
    uint64_t worker_id;
    uint64_t bytes_max;
    int pipe;
    int file;        /* -1: it is not there yet (L3) */
    unsigned stream; /* 0: stdout, 1: stderr; NO_STREAM: both are one file, which keeps their order */
    char path[SHOAL_PATH_TEXT_BYTES];
};

struct log_pipe {
    uint64_t worker_id;
    unsigned stream;
    int pipe;
    int file;
    char path[SHOAL_PATH_TEXT_BYTES];
    bool cut;    /* its file says so */
    bool failed; /* a write failed, and was told */
    bool mid_line;
    bool bar; /* a carriage return stands in the line that has not ended: a progress bar, which may never end */
};

/* In which order the two files of a worker were printed to. */
struct order {
    uint64_t worker_id;
    int file;                /* -1: there was nothing to say yet */
    unsigned stream;         /* the one that speaks, as the file says it; NO_STREAM: this runner does not know */
    uint64_t bytes[STREAMS]; /* the length of each file */
    uint64_t shown[STREAMS]; /* what of it was said to come before now */
    bool mid_line[STREAMS];
    bool held; /* the other one has printed, too, and waits for a line to end */
    char path[SHOAL_PATH_TEXT_BYTES + sizeof(SHOAL_LOG_ORDER_END)];
};

struct copier {
    int socket;
    uint64_t used;
    uint64_t bytes_max;
    size_t count;
    struct log_pipe pipes[PIPES_MAX];
    size_t order_count;
    struct order orders[PIPES_MAX];
    char piece[PIECE_BYTES];
};

/* ---- the thread ---- */

/* The job's folder: it may have put a link there, or a pipe for whose reader nobody waits. */
static int log_open(const char *path, int more)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | more, 0600);

    if (fd >= 0)
        (void)fcntl(fd, F_SETFL, O_APPEND);
    return fd;
}

/* ---- the order of both streams ---- */

static struct order *order_of(struct copier *copier, uint64_t worker_id)
{
    for (size_t i = 0; i < copier->order_count; i++)
        if (copier->orders[i].worker_id == worker_id)
            return &copier->orders[i];
    return NULL;
}

/* stdout is told of first. */
static void order_open(struct copier *copier, const struct note *note, uint64_t bytes)
{
    struct order *order = order_of(copier, note->worker_id);

    if (note->stream == NO_STREAM || (order == NULL && (note->stream != 0 || copier->order_count == PIPES_MAX)))
        return;
    if (order == NULL) {
        order = &copier->orders[copier->order_count++];
        *order = (struct order){ .worker_id = note->worker_id, .file = -1 };
        (void)snprintf(order->path, sizeof(order->path), "%s" SHOAL_LOG_ORDER_END, note->path);
    }
    order->bytes[note->stream] = order->shown[note->stream] = bytes;
    if (bytes > 0) /* an earlier runner's: which stream spoke last is not known here */
        order->stream = NO_STREAM;
}

/* From here on `stream` speaks. Without the file the order is lost, and nothing that was printed. */
static void order_switch(struct order *order, unsigned stream)
{
    uint8_t record[SHOAL_LOG_ORDER_BYTES];

    if (order->stream != NO_STREAM)
        order->shown[order->stream] = order->bytes[order->stream];
    shoal_log_order_put(record, order->shown, stream);
    if (order->file < 0)
        order->file = log_open(order->path, O_CREAT);
    if (order->file >= 0 && write(order->file, record, sizeof(record)) != (ssize_t)sizeof(record)) {
        (void)close(order->file);
        order->file = -1;
    }
    order->stream = stream;
    order->held = false;
}

/* `len` bytes were just put at the end of the file of `log`. */
static void order_add(struct copier *copier, const struct log_pipe *log, size_t len)
{
    struct order *order = log->stream == NO_STREAM ? NULL : order_of(copier, log->worker_id);

    if (order == NULL || len == 0)
        return;
    order->bytes[log->stream] += len;
    order->mid_line[log->stream] = log->mid_line && !log->bar;
    if (order->stream == NO_STREAM) {
        order_switch(order, log->stream);
    } else if (order->stream == log->stream) {
        if (order->held && !order->mid_line[log->stream])
            order_switch(order, 1 - log->stream);
    } else if (order->mid_line[order->stream] && !order->held) {
        order->held = true;
    } else {
        order_switch(order, log->stream);
    }
}

static void order_close(struct copier *copier, uint64_t worker_id)
{
    struct order *order = order_of(copier, worker_id);

    for (size_t i = 0; i < copier->count; i++)
        if (copier->pipes[i].worker_id == worker_id)
            return;
    if (order == NULL)
        return;
    if (order->file >= 0)
        (void)close(order->file);
    *order = copier->orders[--copier->order_count];
}

/* ---- the thread ---- */

static void note_line(struct log_pipe *log, const char *bytes, size_t len)
{
    const char *end = memrchr(bytes, '\n', len);
    const char *last = end == NULL ? bytes : end + 1;
    size_t left = len - (size_t)(last - bytes);

    log->mid_line = left > 0 || (end == NULL && log->mid_line);
    log->bar = memchr(last, '\r', left) != NULL || (end == NULL && log->bar);
}

static void put(struct copier *copier, struct log_pipe *log, const char *bytes, size_t len)
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
        note_line(log, bytes, (size_t)wrote);
        order_add(copier, log, (size_t)wrote);
        bytes += wrote;
        len -= (size_t)wrote;
    }
}

static void take(struct copier *copier, struct log_pipe *log, size_t len)
{
    uint64_t room = copier->bytes_max > copier->used ? copier->bytes_max - copier->used : 0;
    size_t kept = len < room ? len : (size_t)room;
    char line[256];

    put(copier, log, copier->piece, kept);
    copier->used += kept;
    if (kept == len || log->cut)
        return;
    log->cut = true;
    (void)snprintf(
        line, sizeof(line),
        "%sshoal: the log is cut here: the logs of this job have reached %llu MiB on this host. The job goes on, "
        "and what it prints is dropped; raise log-max in agent.conf, or print less\n",
        log->mid_line ? "\n" : "", (unsigned long long)(copier->bytes_max / SHOAL_MIB));
    put(copier, log, line, strlen(line));
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
    *log = (struct log_pipe){
        .worker_id = note->worker_id, .stream = note->stream, .pipe = note->pipe, .file = note->file
    };
    memcpy(log->path, note->path, sizeof(log->path));
    order_open(copier, note, note->file >= 0 && fstat(note->file, &file) == 0 ? (uint64_t)file.st_size : 0);
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
        uint64_t worker_id = copier->pipes[i].worker_id;

        if (copier->pipes[i].pipe >= 0) {
            i++;
            continue;
        }
        if (copier->pipes[i].file >= 0)
            (void)close(copier->pipes[i].file);
        copier->pipes[i] = copier->pipes[--copier->count];
        order_close(copier, worker_id);
    }
}

/* False: the loop has gone. */
static bool take_notes(struct copier *copier)
{
    struct note note;
    ssize_t got;

    while ((got = recv(copier->socket, &note, sizeof(note), MSG_DONTWAIT)) == (ssize_t)sizeof(note)) {
        if (note.sync)
            on_sync(copier, &note);
        else
            on_open(copier, &note);
    }
    return got < 0 && (errno == EAGAIN || errno == EINTR);
}

static void *copier_run(void *arg)
{
    static struct copier copier; /* one process, one runner */
    static struct pollfd waits[PIPES_MAX + 1];
    size_t polled;

    copier.socket = *(int *)arg;
    for (;;) {
        waits[0] = (struct pollfd){ .fd = copier.socket, .events = POLLIN };
        for (size_t i = 0; i < copier.count; i++)
            waits[i + 1] = (struct pollfd){ .fd = copier.pipes[i].pipe, .events = POLLIN };
        polled = copier.count;
        if (poll(waits, polled + 1, -1) < 0)
            continue;
        if (!take_notes(&copier)) /* first: a worker prints once both of its streams are told of, not only one (L5) */
            return NULL;
        for (size_t i = 0; i < polled; i++)
            if (waits[i + 1].revents != 0)
                (void)copy(&copier, &copier.pipes[i]);
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
static int pipe_to(struct runner_logs *logs, uint64_t worker_id, const char *path, unsigned stream)
{
    struct note note = { .worker_id = worker_id, .bytes_max = logs->bytes_max, .stream = stream };
    int ends[2];
    int err;

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
        send(logs->socket, &note, sizeof(note), MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(note))
        return ends[1];
    err = errno;
    if (note.file >= 0)
        (void)close(note.file);
    (void)close(ends[0]);
    (void)close(ends[1]);
    errno = err;
    return -1;
}

enum shoal_err runner_logs_open(struct runner_logs *logs, uint64_t worker_id, const char *stdout_path,
                                const char *stderr_path, int fds[2], struct shoal_msg *msg)
{
    enum shoal_err err = copier_start(logs, msg);
    bool one_file = strcmp(stdout_path, stderr_path) == 0;

    fds[0] = fds[1] = -1;
    if (err != SHOAL_OK)
        return err;
    fds[0] = pipe_to(logs, worker_id, stdout_path, one_file ? NO_STREAM : 0);
    if (fds[0] >= 0) /* one file keeps the order of both streams */
        fds[1] = one_file ? fcntl(fds[0], F_DUPFD_CLOEXEC, 3) : pipe_to(logs, worker_id, stderr_path, 1);
    if (fds[0] >= 0 && fds[1] >= 0)
        return SHOAL_OK;
    err = shoal_fail(msg, SHOAL_ERR_STORAGE, "%s: cannot open the log: %s", fds[0] < 0 ? stdout_path : stderr_path,
                     errno == EAGAIN ? "what others have printed is not written yet; is the disk slow?" : strerror(errno));
    for (unsigned i = 0; i < 2; i++) {
        if (fds[i] >= 0)
            (void)close(fds[i]);
        fds[i] = -1; /* who cleans up closes what is open: the copier opens files meanwhile, under the lowest number */
    }
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
