/* The runner's loop (runner.h): epoll over the agent's socket, the engine server's socket, a signalfd for SIGCHLD and
 * one timerfd for the nearest deadline. It holds no job state beyond its own children, asks nobody, and needs no agent.
 *
 * How a slot is emptied: SIGKILL to the worker's process group and, where it has one, to its cgroup; then whoever it
 * left behind, which by R2 has become a child of the runner, is told from the living workers' own by what it inherited:
 * the descriptor of the slot's lock, or the SHOAL_WORKER_ID that it was started with (an engine has none: the engine
 * server was started for all of them). What bears neither goes when the last worker has ended. The children of those
 * who are killed so come to the runner in turn, hence each death of a stranger begins another sweep; one that shows no
 * environment at all is looked at again. The slot's lock says when it is really empty. */
#include "shoal/runner.h"

#include "shoal/worker.h"

#include "runner_log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shoal/banned.h"

/* Ends by itself when nothing runs and no agent came back for this long. */
#define ORPHAN_NS (60 * SHOAL_S)
/* How long an exit waits to be told until what was printed is in its file: a disk that hangs must not hold it. */
#define LOG_SYNC_NS (2 * SHOAL_S)
/* Who is just executing a program shows no environment: looked at again, a few times after each worker's end. */
#define SWEEP_NS (20 * SHOAL_MS)
#define SWEEPS_MAX 20

/* The file of a slot's lock, as long as the runner lives. */
struct lock_file {
    bool used;
    dev_t device;
    ino_t inode;
};

struct child {
    bool used;
    bool exited; /* reported as soon as an agent listens */
    bool frozen;
    uint64_t worker_id;
    uint32_t slot;
    pid_t pid;
    uint64_t start_ticks;
    uint64_t freeze_at_ns; /* 0: never */
    uint64_t kill_at_ns;
    uint64_t term_kill_at_ns; /* SIGTERM was sent, SIGKILL then; 0: no */
    uint64_t tell_at_ns;      /* exited: its output is on its way to its files until then at most; 0: it is there */
    int log_fds[2];           /* of an engine, which opens them by our number some time after its fork; 0: none */
    int status;
    bool signalled;
    char text[512];
    char cgroup[256];
};

struct runner {
    int epoll;
    int listener;
    int agent; /* -1: none */
    int signals;
    int timer;
    int server; /* socket to the engine server, -1: none */
    pid_t server_pid;
    int control_fd;
    int arena_fd;
    struct shoal_control_page *page;
    struct child children[SHOAL_RUNNER_WORKERS_MAX];
    struct lock_file locks[SHOAL_SLOTS_MAX];
    struct runner_logs logs;
    bool closing;
    uint64_t idle_since_ns;
    uint64_t sweep_at_ns; /* 0: none is due */
    unsigned sweeps_left; /* for the sake of those that could not be told apart */
    char server_line[8192];
    struct shoal_runner_message in;
    struct shoal_runner_message out;
    uint8_t bytes[SHOAL_RUNNER_MESSAGE_MAX];
};

static struct runner the_runner; /* one process, one runner: too large for a stack */

static uint64_t boottime_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * SHOAL_S + (uint64_t)now.tv_nsec;
}

static void note(const char *what, int code) { (void)dprintf(2, "runner: %s: %s\n", what, strerror(code)); }

static uint64_t start_ticks_of(pid_t pid)
{
    char path[64];
    char line[1024];
    char *at;
    ssize_t len;
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    len = read(fd, line, sizeof(line) - 1);
    (void)close(fd);
    if (len <= 0)
        return 0;
    line[len] = '\0';
    at = strrchr(line, ')'); /* the name may hold anything */
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at == NULL ? 0 : strtoull(at + 1, NULL, 10);
}

/* To the agent, if there is one. A full or broken socket ends the connection: the next agent gets the state again. */
static void tell(struct runner *runner, const struct shoal_runner_message *message, int fd_to_pass)
{
    struct iovec part = { .iov_base = runner->bytes };
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = { 0 };
    struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1 };
    size_t len;

    if (runner->agent < 0)
        return;
    if (shoal_runner_encode(message, runner->bytes, sizeof(runner->bytes), &len) != SHOAL_OK)
        return;
    part.iov_len = len;
    if (fd_to_pass >= 0) {
        struct cmsghdr *c;

        header.msg_control = control.space;
        header.msg_controllen = sizeof(control.space);
        c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd_to_pass, sizeof(int));
    }
    if (sendmsg(runner->agent, &header, MSG_NOSIGNAL) < 0) {
        note("agent left", errno);
        (void)close(runner->agent);
        runner->agent = -1;
    }
}

static void tell_started(struct runner *runner, const struct child *child)
{
    runner->out = (struct shoal_runner_message){ .kind = SHOAL_RUNNER_STARTED,
                                                 .worker_id = child->worker_id,
                                                 .slot = child->slot,
                                                 .pid = child->pid,
                                                 .start_ticks = child->start_ticks,
                                                 .status = child->frozen ? 1 : 0,
                                                 .freeze_at_ns = child->freeze_at_ns,
                                                 .kill_at_ns = child->kill_at_ns };
    tell(runner, &runner->out, -1);
}

static void tell_exited(struct runner *runner, struct child *child)
{
    if (runner->agent < 0 || child->tell_at_ns != 0)
        return; /* kept in the table until somebody listens, and until its log is whole */
    runner->out = (struct shoal_runner_message){ .kind = SHOAL_RUNNER_EXITED,
                                                 .worker_id = child->worker_id,
                                                 .slot = child->slot,
                                                 .pid = child->pid,
                                                 .status = child->status,
                                                 .signalled = child->signalled };
    memcpy(runner->out.text, child->text, sizeof(child->text));
    tell(runner, &runner->out, -1);
    if (runner->agent >= 0)
        *child = (struct child){ 0 };
}

static struct child *child_find(struct runner *runner, uint64_t worker_id)
{
    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++)
        if (runner->children[i].used && runner->children[i].worker_id == worker_id)
            return &runner->children[i];
    return NULL;
}

static struct child *child_of_pid(struct runner *runner, pid_t pid)
{
    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++)
        if (runner->children[i].used && !runner->children[i].exited && runner->children[i].pid == pid)
            return &runner->children[i];
    return NULL;
}

static bool worker_lives(const struct runner *runner, uint64_t worker_id)
{
    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++)
        if (runner->children[i].used && !runner->children[i].exited && runner->children[i].worker_id == worker_id)
            return true;
    return false;
}

static bool slot_lives(const struct runner *runner, uint32_t slot)
{
    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++)
        if (runner->children[i].used && !runner->children[i].exited && runner->children[i].slot == slot)
            return true;
    return false;
}

static bool anyone_alive(const struct runner *runner)
{
    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++)
        if (runner->children[i].used && !runner->children[i].exited)
            return true;
    return false;
}

/* The worker in whose environment `pid` was started. False: it says none. `empty`: it says nothing at all, which may be
 * so because it is just executing another program. */
static bool marked_worker(pid_t pid, uint64_t *worker_id, bool *empty)
{
    static char environ_bytes[128 * SHOAL_KIB + 1];
    static const char mark[] = SHOAL_ENV_WORKER "=";
    char path[64];
    const char *at;
    ssize_t len = -1;
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        len = read(fd, environ_bytes, sizeof(environ_bytes) - 1);
        (void)close(fd);
    }
    *empty = len <= 0;
    if (*empty)
        return false;
    environ_bytes[len] = '\0';
    for (at = environ_bytes; at < environ_bytes + len; at += strlen(at) + 1) {
        if (strncmp(at, mark, sizeof(mark) - 1) != 0)
            continue;
        *worker_id = strtoull(at + sizeof(mark) - 1, NULL, 10);
        return true;
    }
    return false;
}

/* The slot whose lock `pid` holds open. SHOAL_SLOT_NONE: none. */
static uint32_t marked_slot(const struct runner *runner, pid_t pid)
{
    char path[64 + NAME_MAX];
    uint32_t slot = SHOAL_SLOT_NONE;
    const struct dirent *entry;
    DIR *dir;

    (void)snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    dir = opendir(path);
    while (dir != NULL && slot == SHOAL_SLOT_NONE && (entry = readdir(dir)) != NULL) {
        struct stat file;

        (void)snprintf(path, sizeof(path), "/proc/%d/fd/%s", (int)pid, entry->d_name);
        if (entry->d_name[0] == '.' || stat(path, &file) != 0)
            continue;
        for (uint32_t i = 0; i < SHOAL_SLOTS_MAX; i++)
            if (runner->locks[i].used && runner->locks[i].inode == file.st_ino &&
                runner->locks[i].device == file.st_dev)
                slot = i;
    }
    if (dir != NULL)
        (void)closedir(dir);
    return slot;
}

/* Has a child of the runner that is no worker of the table nobody alive to belong to? */
static bool left_behind(struct runner *runner, pid_t pid)
{
    uint64_t worker_id;
    uint32_t slot = marked_slot(runner, pid);
    bool empty;

    if (slot != SHOAL_SLOT_NONE)
        return !slot_lives(runner, slot);
    if (marked_worker(pid, &worker_id, &empty))
        return !worker_lives(runner, worker_id);
    if (!anyone_alive(runner))
        return true;
    if (empty && runner->sweep_at_ns == 0 && runner->sweeps_left > 0) {
        runner->sweeps_left--;
        runner->sweep_at_ns = boottime_ns() + SWEEP_NS;
    }
    return false;
}

/* R2: processes that a worker left behind are our children by now. None of them can be another's pid: only we reap. */
static void kill_left_behind(struct runner *runner)
{
    char path[64];
    char text[4096];
    char *at = text;
    ssize_t len;
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)getpid(), (int)getpid());
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    len = read(fd, text, sizeof(text) - 1);
    (void)close(fd);
    if (len <= 0)
        return;
    text[len] = '\0';
    for (;;) {
        pid_t pid = (pid_t)strtol(at, &at, 10);

        if (pid <= 0 || *at == '\0') /* the last number may be cut short: the next sweep sees it whole */
            return;
        if (pid != runner->server_pid && child_of_pid(runner, pid) == NULL && left_behind(runner, pid))
            (void)kill(pid, SIGKILL);
    }
}

static void cgroup_write(const char *cgroup, const char *file, const char *text)
{
    char path[512];
    int fd;

    if (cgroup[0] == '\0')
        return;
    (void)snprintf(path, sizeof(path), "%s/%s", cgroup, file);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (write(fd, text, strlen(text)) < 0)
        note(path, errno);
    (void)close(fd);
}

static void child_signal(const struct child *child, int signal_number)
{
    if (child->pid <= 0 || child->exited)
        return;
    if (kill(-child->pid, signal_number) != 0) /* it leads its own session and group */
        (void)kill(child->pid, signal_number);
}

static void slot_mark_frozen(struct runner *runner, const struct child *child, bool frozen)
{
    if (child->slot < SHOAL_SLOTS_MAX)
        atomic_store(&runner->page->slots[child->slot].frozen, frozen ? 1u : 0u);
}

static void child_freeze(struct runner *runner, struct child *child)
{
    slot_mark_frozen(runner, child, true);
    child_signal(child, SIGSTOP);
    child->frozen = true;
}

static void child_thaw(struct runner *runner, struct child *child)
{
    child_signal(child, SIGCONT);
    child->frozen = false;
    slot_mark_frozen(runner, child, false);
}

static void child_kill(struct child *child)
{
    cgroup_write(child->cgroup, "cgroup.kill", "1");
    child_signal(child, SIGKILL);
    child->term_kill_at_ns = 0;
    child->kill_at_ns = 0;
    child->freeze_at_ns = 0;
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    if (a == 0)
        return b;
    return b == 0 || a < b ? a : b;
}

static bool lease_is_over(const struct child *child, uint64_t now)
{
    return child->freeze_at_ns != 0 && child->freeze_at_ns <= now;
}

/* Carry out what is due and arm the timer for the next deadline. */
static void timer_turn(struct runner *runner)
{
    uint64_t now = boottime_ns();
    uint64_t next = 0;
    struct itimerspec when = { 0 };

    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++) {
        struct child *child = &runner->children[i];

        if (child->used && child->exited && child->tell_at_ns != 0 && child->tell_at_ns <= now) {
            child->tell_at_ns = 0;
            tell_exited(runner, child);
        }
        if (child->used && child->exited)
            next = earlier(next, child->tell_at_ns);
        if (!child->used || child->exited)
            continue;
        if ((child->kill_at_ns != 0 && child->kill_at_ns <= now) ||
            (child->term_kill_at_ns != 0 && child->term_kill_at_ns <= now)) {
            child_kill(child);
            continue;
        }
        if (!child->frozen && lease_is_over(child, now))
            child_freeze(runner, child);
        next = earlier(
            next, earlier(child->frozen ? 0 : child->freeze_at_ns, earlier(child->kill_at_ns, child->term_kill_at_ns)));
    }
    if (runner->sweep_at_ns != 0 && runner->sweep_at_ns <= now) {
        runner->sweep_at_ns = 0;
        kill_left_behind(runner);
    }
    next = earlier(next, runner->sweep_at_ns);
    if (!anyone_alive(runner))
        next = earlier(next, runner->idle_since_ns + ORPHAN_NS);
    when.it_value.tv_sec = (time_t)(next / SHOAL_S);
    when.it_value.tv_nsec = (long)(next % SHOAL_S);
    (void)timerfd_settime(runner->timer, TFD_TIMER_ABSTIME, &when, NULL);
}

static void make_parents(const char *path)
{
    char part[SHOAL_PATH_TEXT_BYTES];

    for (size_t i = 1; i < sizeof(part) - 1 && path[i] != '\0'; i++) {
        if (path[i] != '/')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        (void)mkdir(part, 0700);
    }
}

/* In the new process, between fork and exec. Only async-signal-safe calls; errors go to the exit status pipe. */
static void become(const struct shoal_runner_start *start, const int fds[3], const int *kept, unsigned kept_count)
{
    sigset_t none;

    (void)setsid();
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    for (int i = 0; i < 3; i++)
        (void)dup2(fds[i], i);
    for (unsigned i = 0; i < kept_count; i++)
        if (kept[i] >= 0)
            (void)fcntl(kept[i], F_SETFD, 0);
    (void)setpriority(PRIO_PROCESS, 0, start->nice);
    cgroup_write(start->cgroup, "cgroup.procs", "0");
    if (chdir(start->cwd) != 0)
        _exit(126);
    /* execvpe takes char *const *: it does not write to the strings. */
    (void)execvpe(start->argv[0], (char *const *)(uintptr_t)start->argv, (char *const *)(uintptr_t)start->env);
    _exit(127);
}

/* The slot's lock, held by the descriptor that the worker inherits. FULL: somebody of an earlier lease still lives. */
static enum shoal_err slot_lock(struct runner *runner, const struct shoal_runner_start *start, int *fd,
                                struct shoal_msg *msg)
{
    const char *path = start->lock_path;
    struct stat file;

    *fd = -1;
    if (path[0] == '\0')
        return SHOAL_OK;
    make_parents(path);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (*fd < 0)
        return shoal_fail(msg, SHOAL_ERR_STORAGE, "%s: cannot open the slot's lock: %s", path, strerror(errno));
    if (flock(*fd, LOCK_EX | LOCK_NB) != 0) {
        (void)close(*fd);
        *fd = -1;
        return shoal_fail(msg, SHOAL_ERR_FULL, "%s: a process of an earlier lease still holds this slot", path);
    }
    if (start->slot < SHOAL_SLOTS_MAX && fstat(*fd, &file) == 0)
        runner->locks[start->slot] = (struct lock_file){ .used = true, .device = file.st_dev, .inode = file.st_ino };
    return SHOAL_OK;
}

static void watch(struct runner *runner, int fd)
{
    struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

    if (epoll_ctl(runner->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        note("epoll", errno);
}

static enum shoal_err logs_open(struct runner *runner, const struct shoal_runner_start *start, int fds[2],
                                struct shoal_msg *msg)
{
    bool first = !runner->logs.running;
    enum shoal_err err;

    runner->logs.bytes_max = (uint64_t)SHOAL_JOB_LOG_MIB * SHOAL_MIB;
    for (uint32_t i = 0; i < start->envc; i++) /* the first such: users' variables come later */
        if (strncmp(start->env[i], SHOAL_ENV_LOG_MIB "=", sizeof(SHOAL_ENV_LOG_MIB)) == 0) {
            runner->logs.bytes_max = strtoull(start->env[i] + sizeof(SHOAL_ENV_LOG_MIB), NULL, 10) * SHOAL_MIB;
            break;
        }
    make_parents(start->stdout_path);
    make_parents(start->stderr_path);
    err = runner_logs_open(&runner->logs, start->worker_id, start->stdout_path, start->stderr_path, fds, msg);
    if (first && runner->logs.running)
        watch(runner, runner->logs.socket);
    return err;
}

static enum shoal_err start_exec(struct runner *runner, const struct shoal_runner_start *start, int lock, pid_t *pid,
                                 struct shoal_msg *msg)
{
    int fds[3] = { open("/dev/null", O_RDONLY | O_CLOEXEC), -1, -1 };
    int kept[3] = { lock, runner->control_fd, runner->arena_fd };
    enum shoal_err err = logs_open(runner, start, fds + 1, msg);

    if (err == SHOAL_OK) {
        *pid = fork();
        if (*pid == 0)
            become(start, fds, kept, 3);
        if (*pid < 0)
            err = shoal_fail(msg, SHOAL_ERR_FULL, "cannot fork: %s; raise the process limit", strerror(errno));
    }
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
    return err;
}

/* The engine server: started with the first engine, serves until the runner ends. */
static enum shoal_err server_start(struct runner *runner, const struct shoal_runner_start *start, struct shoal_msg *msg)
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
    err = start_exec(runner, &server, -1, &pid, msg);
    server.env[server.envc] = NULL; /* fd_text ends with this call */
    if (err != SHOAL_OK)
        goto close_pair;
    (void)close(pair[1]);
    runner->server = pair[0];
    runner->server_pid = pid;
    watch(runner, pair[0]);
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
static enum shoal_err server_fork(struct runner *runner, const struct shoal_runner_start *start, const int logs[2],
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

static void slot_claim(struct runner *runner, const struct shoal_runner_start *start)
{
    struct shoal_control_slot *slot;

    if (start->slot >= SHOAL_SLOTS_MAX)
        return;
    slot = &runner->page->slots[start->slot];
    atomic_store(&slot->heartbeat, 0);
    atomic_store(&slot->epoch_word, 0);
    atomic_store(&slot->started_step, 0);
    atomic_store(&slot->complete_step, 0);
    atomic_store(&slot->applied_step, 0);
    atomic_store(&slot->minibatches, 0);
    atomic_store(&slot->updates, 0);
    atomic_store(&slot->computed_ns, 0);
    atomic_store(&slot->computing_ns, 0);
    atomic_store(&slot->first_epoch_word, 0);
    atomic_store(&slot->first_complete_ns, 0);
    atomic_store(&slot->activity, SHOAL_ACTIVITY_LOADING);
    atomic_store(&slot->frozen, 0);
    atomic_store(&slot->robust, 0);
    atomic_store(&slot->pid, 0);
    atomic_store(&slot->worker_id, start->worker_id);
}

static void child_logs_close(struct child *child)
{
    for (unsigned i = 0; i < 2; i++)
        if (child->log_fds[i] > 0)
            (void)close(child->log_fds[i]);
    child->log_fds[0] = child->log_fds[1] = 0;
}

static void child_running(struct runner *runner, struct child *child, pid_t pid)
{
    child->pid = pid;
    child->start_ticks = start_ticks_of(pid);
    if (child->slot < SHOAL_SLOTS_MAX)
        atomic_store(&runner->page->slots[child->slot].pid, pid);
    if (child->frozen)
        child_signal(child, SIGSTOP); /* its time came before it did */
    tell_started(runner, child);
}

static void child_ended(struct runner *runner, struct child *child, int status, bool signalled)
{
    child->exited = true;
    child->status = status;
    child->signalled = signalled;
    if (child->slot < SHOAL_SLOTS_MAX && atomic_load(&runner->page->slots[child->slot].worker_id) == child->worker_id)
        atomic_store(&runner->page->slots[child->slot].worker_id, 0);
    cgroup_write(child->cgroup, "cgroup.kill", "1");
    if (child->pid > 0)
        (void)kill(-child->pid, SIGKILL);
    runner->sweeps_left = SWEEPS_MAX;
    kill_left_behind(runner);
    runner->idle_since_ns = boottime_ns();
    child_logs_close(child);
    if (runner_logs_sync(&runner->logs, child->worker_id))
        child->tell_at_ns = boottime_ns() + LOG_SYNC_NS;
    tell_exited(runner, child);
    timer_turn(runner);
}

/* What an ended worker printed is in its files: its end can be told. */
static void on_logs(struct runner *runner)
{
    uint64_t worker_id;
    struct child *child;

    while (runner_logs_answer(&runner->logs, &worker_id)) {
        child = child_find(runner, worker_id);
        if (child == NULL || !child->exited)
            continue;
        child->tell_at_ns = 0;
        tell_exited(runner, child);
    }
    timer_turn(runner);
}

static void on_start(struct runner *runner, const struct shoal_runner_start *start)
{
    struct shoal_msg msg = { "" };
    struct child *child = child_find(runner, start->worker_id);
    enum shoal_err err;
    pid_t pid = -1;
    int lock = -1;

    if (child != NULL) { /* a repeated START: answer again */
        if (child->exited)
            tell_exited(runner, child);
        else if (child->pid > 0)
            tell_started(runner, child);
        return;
    }
    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX && child == NULL; i++)
        if (!runner->children[i].used)
            child = &runner->children[i];
    if (child == NULL)
        return; /* cannot be: as many as slots, and two drivers; the agent's lease runs out */
    *child = (struct child){ .used = true,
                             .worker_id = start->worker_id,
                             .slot = start->slot,
                             .freeze_at_ns = start->freeze_at_ns,
                             .kill_at_ns = start->kill_at_ns };
    (void)snprintf(child->cgroup, sizeof(child->cgroup), "%s", start->cgroup);
    err = slot_lock(runner, start, &lock, &msg);
    if (err == SHOAL_OK)
        slot_claim(runner, start);
    if (err == SHOAL_OK && start->how == SHOAL_START_EXEC)
        err = start_exec(runner, start, lock, &pid, &msg);
    if (err == SHOAL_OK && start->how == SHOAL_START_FORK)
        err = server_start(runner, start, &msg);
    if (err == SHOAL_OK && start->how == SHOAL_START_FORK)
        err = logs_open(runner, start, child->log_fds, &msg);
    if (err == SHOAL_OK && start->how == SHOAL_START_FORK)
        err = server_fork(runner, start, child->log_fds, lock, &msg);
    if (lock >= 0)
        (void)close(lock); /* R1: from here on the worker's copy is the lock */
    if (err != SHOAL_OK) {
        (void)snprintf(child->text, sizeof(child->text), "%s", msg.text);
        child_ended(runner, child, -1, false);
    } else if (pid > 0) {
        child_running(runner, child, pid);
    }
    timer_turn(runner);
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

static void server_lost(struct runner *runner)
{
    (void)close(runner->server);
    runner->server = -1;
    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++) {
        struct child *child = &runner->children[i];

        if (child->used && !child->exited && child->pid == 0) {
            (void)snprintf(
                child->text, sizeof(child->text),
                "the engine server ended before it forked this engine; its last words are in the worker's stderr");
            child_ended(runner, child, -1, false);
        }
    }
}

static void on_server(struct runner *runner)
{
    ssize_t len = recv(runner->server, runner->server_line, sizeof(runner->server_line) - 1, MSG_DONTWAIT);

    if (len > 0) {
        runner->server_line[len] = '\0';
        on_server_line(runner, runner->server_line);
    } else if (len == 0 || (errno != EAGAIN && errno != EINTR)) {
        server_lost(runner);
    }
}

static void on_children(struct runner *runner)
{
    struct signalfd_siginfo info;
    bool strangers = false;

    while (read(runner->signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
        continue;
    for (unsigned i = 0; i < 1024; i++) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        struct child *child;

        if (pid <= 0)
            break;
        if (pid == runner->server_pid)
            runner->server_pid = 0;
        child = child_of_pid(runner, pid);
        if (child == NULL) {
            strangers = true; /* somebody a worker left behind, whose children are ours now */
            continue;
        }
        if (WIFSIGNALED(status))
            child_ended(runner, child, WTERMSIG(status), true);
        else
            child_ended(runner, child, WEXITSTATUS(status), false);
    }
    if (strangers)
        kill_left_behind(runner);
    timer_turn(runner);
}

static void on_command(struct runner *runner, const struct shoal_runner_message *message)
{
    struct child *child = child_find(runner, message->worker_id);

    if (message->kind == SHOAL_RUNNER_START) {
        on_start(runner, &message->start);
        return;
    }
    if (message->kind == SHOAL_RUNNER_CLOSE) {
        runner->closing = true;
        return;
    }
    if (child == NULL || child->exited)
        return;
    if (message->kind == SHOAL_RUNNER_RENEW) {
        child->freeze_at_ns = message->freeze_at_ns;
        child->kill_at_ns = message->kill_at_ns;
    } else if (message->kind == SHOAL_RUNNER_FREEZE) {
        child_freeze(runner, child);
    } else if (message->kind == SHOAL_RUNNER_THAW) {
        if (child->frozen && !lease_is_over(child, boottime_ns())) /* this order may be late, and others stop it, too */
            child_thaw(runner, child);
    } else if (message->kind == SHOAL_RUNNER_KILL) {
        if (message->grace_ns == 0) {
            child_kill(child);
        } else {
            if (child->frozen)
                child_thaw(runner, child); /* a stopped process cannot end itself */
            child_signal(child, SIGTERM);
            child->term_kill_at_ns = boottime_ns() + message->grace_ns;
        }
    }
    timer_turn(runner);
}

static void on_agent(struct runner *runner)
{
    static uint8_t datagram[SHOAL_RUNNER_MESSAGE_MAX];
    ssize_t len = recv(runner->agent, datagram, sizeof(datagram), MSG_DONTWAIT);

    if (len > 0) {
        if (shoal_runner_decode(shoal_view_of(datagram, (size_t)len), &runner->in) == SHOAL_OK)
            on_command(runner, &runner->in);
        else
            (void)dprintf(2, "runner: dropped a message of %zd bytes that does not decode\n", len);
    } else if (len == 0 || (errno != EAGAIN && errno != EINTR)) {
        (void)close(runner->agent);
        runner->agent = -1;
        runner->idle_since_ns = boottime_ns();
        timer_turn(runner);
    }
}

/* A new agent: it replaces the one before, and hears all there is to know. */
static void on_listener(struct runner *runner)
{
    int fd = accept4(runner->listener, NULL, NULL, SOCK_CLOEXEC);

    if (fd < 0)
        return;
    if (runner->agent >= 0)
        (void)close(runner->agent);
    runner->agent = fd;
    watch(runner, fd);
    runner->out = (struct shoal_runner_message){ .kind = SHOAL_RUNNER_WELCOME, .pid = getpid() };
    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++)
        runner->out.status += runner->children[i].used ? 1 : 0;
    tell(runner, &runner->out, runner->control_fd);
    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++) {
        struct child *child = &runner->children[i];

        if (child->used && child->exited)
            tell_exited(runner, child);
        else if (child->used)
            tell_started(runner, child);
    }
}

static bool finished(const struct runner *runner)
{
    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++)
        if (runner->children[i].used && (!runner->children[i].exited || runner->children[i].tell_at_ns != 0))
            return false;
    if (runner->closing)
        return true;
    return runner->agent < 0 && boottime_ns() >= runner->idle_since_ns + ORPHAN_NS;
}

static enum shoal_err pages_make(struct runner *runner, const char *job_text, uint32_t generation,
                                 struct shoal_msg *msg)
{
    struct shoal_job_id job;

    runner->control_fd = dup3(memfd_create("shoal-control", MFD_CLOEXEC), SHOAL_RUNNER_CONTROL_FD, O_CLOEXEC);
    runner->arena_fd = dup3(memfd_create("shoal-arena", MFD_CLOEXEC), SHOAL_RUNNER_ARENA_FD, O_CLOEXEC);
    if (runner->control_fd < 0 || runner->arena_fd < 0 ||
        ftruncate(runner->control_fd, sizeof(struct shoal_control_page)) != 0)
        return shoal_fail(msg, SHOAL_ERR_FULL, "cannot make the shared pages: %s", strerror(errno));
    runner->page = mmap(NULL, sizeof(*runner->page), PROT_READ | PROT_WRITE, MAP_SHARED, runner->control_fd, 0);
    if (runner->page == MAP_FAILED)
        return shoal_fail(msg, SHOAL_ERR_FULL, "cannot map the control page: %s", strerror(errno));
    if (!shoal_job_id_parse(job_text, &job))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "not a job id: %s", job_text);
    runner->page->magic = SHOAL_CONTROL_MAGIC;
    runner->page->version = SHOAL_WORKER_VERSION;
    runner->page->oldest = SHOAL_WORKER_OLDEST;
    memcpy(runner->page->job, job.bytes, sizeof(job.bytes));
    runner->page->generation = generation;
    runner->page->slots_max = SHOAL_SLOTS_MAX;
    return SHOAL_OK;
}

static enum shoal_err runner_init(struct runner *runner, int argc, char **argv, struct shoal_msg *msg)
{
    sigset_t child_signal_set;

    if (argc != 5)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "usage: shoal runner DIR JOB GENERATION LISTEN_FD");
    if (chdir(argv[1]) != 0)
        return shoal_fail(msg, SHOAL_ERR_STORAGE, "%s: %s", argv[1], strerror(errno));
    runner->listener = (int)strtol(argv[4], NULL, 10);
    (void)fcntl(runner->listener, F_SETFD, FD_CLOEXEC);
    runner->agent = -1;
    runner->server = -1;
    runner->idle_since_ns = boottime_ns();
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    (void)prctl(PR_SET_NAME, "shoal-runner");
    (void)sigemptyset(&child_signal_set);
    (void)sigaddset(&child_signal_set, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &child_signal_set, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    runner->epoll = epoll_create1(EPOLL_CLOEXEC);
    runner->signals = signalfd(-1, &child_signal_set, SFD_CLOEXEC | SFD_NONBLOCK);
    runner->timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (runner->epoll < 0 || runner->signals < 0 || runner->timer < 0)
        return shoal_fail(msg, SHOAL_ERR_FULL, "cannot make the runner's descriptors: %s", strerror(errno));
    watch(runner, runner->listener);
    watch(runner, runner->signals);
    watch(runner, runner->timer);
    return pages_make(runner, argv[2], (uint32_t)strtoul(argv[3], NULL, 10), msg);
}

int shoal_runner_main(int argc, char **argv)
{
    struct runner *runner = &the_runner;
    struct shoal_msg msg = { "" };

    if (runner_init(runner, argc, argv, &msg) != SHOAL_OK) {
        (void)dprintf(2, "shoal runner: %s\n", msg.text);
        return 1;
    }
    timer_turn(runner);
    while (!finished(runner)) {
        struct epoll_event event;
        uint64_t expirations;

        if (epoll_wait(runner->epoll, &event, 1, -1) < 1)
            continue;
        if (event.data.fd == runner->listener) {
            on_listener(runner);
        } else if (event.data.fd == runner->signals) {
            on_children(runner);
        } else if (event.data.fd == runner->timer) {
            (void)!read(runner->timer, &expirations, sizeof(expirations));
            timer_turn(runner);
        } else if (event.data.fd == runner->agent) {
            on_agent(runner);
        } else if (event.data.fd == runner->server) {
            on_server(runner);
        } else if (runner->logs.running && event.data.fd == runner->logs.socket) {
            on_logs(runner);
        } else {
            (void)epoll_ctl(runner->epoll, EPOLL_CTL_DEL, event.data.fd, NULL);
        }
    }
    if (runner->server_pid > 0)
        (void)kill(-runner->server_pid, SIGKILL);
    return 0;
}
