/* The runner's loop (runner.h): epoll over the agent's socket, the engine server's socket, a signalfd for SIGCHLD and
 * one timerfd for the nearest deadline. It holds no job state beyond its own children, asks nobody, and needs no agent. */
#include "shoal/runner.h"
#include "shoal/worker.h"

#include "runner_state.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shoal/banned.h"

/* A runner with nothing to run ends by itself when no agent came back for this long. */
#define ORPHAN_NS (60 * SHOAL_S)
#define REAPED_MAX 1024 /* in one turn */

static struct runner the_runner; /* one process, one runner: too large for a stack */

uint64_t runner_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * SHOAL_S + (uint64_t)now.tv_nsec;
}

void runner_note(const char *what, int code) { (void)dprintf(2, "runner: %s: %s\n", what, strerror(code)); }

void runner_watch(struct runner *runner, int fd)
{
    struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

    if (epoll_ctl(runner->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        runner_note("epoll", errno);
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
        runner_note("agent left", errno);
        (void)close(runner->agent);
        runner->agent = -1;
        runner->idle_since_ns = runner_now_ns();
    }
}

void runner_tell_started(struct runner *runner, const struct child *child)
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

void runner_tell_exited(struct runner *runner, struct child *child)
{
    if (runner->agent < 0 || child->tell_at_ns != 0 || child->told)
        return; /* kept in the table until somebody listens, and until its log is whole */
    runner->out = (struct shoal_runner_message){ .kind = SHOAL_RUNNER_EXITED,
                                                 .worker_id = child->worker_id,
                                                 .slot = child->slot,
                                                 .pid = child->pid,
                                                 .status = child->status,
                                                 .signalled = child->signalled };
    memcpy(runner->out.text, child->text, sizeof(child->text));
    tell(runner, &runner->out, -1);
    child->told = runner->agent >= 0;
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
void runner_timer_turn(struct runner *runner)
{
    uint64_t now = runner_now_ns();
    uint64_t next = 0;
    struct itimerspec when = { 0 };

    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++) {
        struct child *child = &runner->children[i];

        if (child->used && child->exited && child->tell_at_ns != 0 && child->tell_at_ns <= now) {
            child->tell_at_ns = 0;
            runner_tell_exited(runner, child);
        }
        if (child->used && child->exited)
            next = earlier(next, child->tell_at_ns);
        if (!child->used || child->exited)
            continue;
        if ((child->kill_at_ns != 0 && child->kill_at_ns <= now) ||
            (child->term_kill_at_ns != 0 && child->term_kill_at_ns <= now)) {
            child_kill(runner, child);
            continue;
        }
        if (!child->frozen && lease_is_over(child, now))
            child_freeze(runner, child);
        next = earlier(
            next, earlier(child->frozen ? 0 : child->freeze_at_ns, earlier(child->kill_at_ns, child->term_kill_at_ns)));
    }
    if (runner->sweep_at_ns != 0 && runner->sweep_at_ns <= now) {
        runner->sweep_at_ns = 0;
        child_kill_left_behind(runner);
    }
    next = earlier(next, runner->sweep_at_ns);
    if (!child_any_alive(runner) && runner->agent < 0)
        next = earlier(next, runner->idle_since_ns + ORPHAN_NS);
    when.it_value.tv_sec = (time_t)(next / SHOAL_S);
    when.it_value.tv_nsec = (long)(next % SHOAL_S);
    (void)timerfd_settime(runner->timer, TFD_TIMER_ABSTIME, &when, NULL);
}

/* All that an ended worker printed is in its files by now: its end is told. */
static void on_logs(struct runner *runner)
{
    uint64_t worker_id;
    struct child *child;

    while (runner_logs_answer(&runner->logs, &worker_id)) {
        child = child_find(runner, worker_id);
        if (child == NULL || !child->exited)
            continue;
        child->tell_at_ns = 0;
        runner_tell_exited(runner, child);
    }
    runner_timer_turn(runner);
}

static void on_children(struct runner *runner)
{
    struct signalfd_siginfo info;
    bool strangers = false;
    unsigned reaped;

    while (read(runner->signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
        continue;
    for (reaped = 0; reaped < REAPED_MAX; reaped++) {
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
    if (reaped == REAPED_MAX)
        (void)kill(getpid(), SIGCHLD); /* the rest in the next turn: no signal may come for those that have ended already */
    if (strangers)
        child_kill_left_behind(runner);
    runner_timer_turn(runner);
}

static void on_command(struct runner *runner, const struct shoal_runner_message *message)
{
    struct child *child = child_find(runner, message->worker_id);

    if (message->kind == SHOAL_RUNNER_START) {
        runner_on_start(runner, &message->start);
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
        if (child->frozen &&
            !lease_is_over(child, runner_now_ns())) /* this order may be late, and others stop it, too */
            child_thaw(runner, child);
    } else if (message->kind == SHOAL_RUNNER_KILL) {
        if (message->grace_ns == 0 || child->pid <= 0) { /* a grace is for a process */
            child_kill(runner, child);
        } else {
            if (child->frozen)
                child_thaw(runner, child); /* a stopped process cannot end itself */
            child_signal(child, SIGTERM);
            child->term_kill_at_ns = runner_now_ns() + message->grace_ns;
        }
    }
    runner_timer_turn(runner);
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
    } else if (len == 0 || !shoal_worker_recv_later(errno)) {
        (void)close(runner->agent);
        runner->agent = -1;
        runner->idle_since_ns = runner_now_ns();
        runner_timer_turn(runner);
    }
}

/* R5: by the death of the one before. Its end and the next one's knock may come in any order. */
static bool agent_is_there(const struct runner *runner)
{
    struct pollfd agent = { .fd = runner->agent, .events = 0 };

    return runner->agent >= 0 && poll(&agent, 1, 0) >= 0 && (agent.revents & (POLLHUP | POLLERR)) == 0;
}

static bool refuse(struct runner *runner, int fd)
{
    bool of_the_job = runner_peer_is_below(fd);
    bool is_refused = of_the_job || agent_is_there(runner);

    if (is_refused && !runner->refused)
        (void)dprintf(2, "runner: %s wants to be its agent: refused; whoever else does is not told of\n",
                      of_the_job ? "a process of the job" : "somebody");
    runner->refused = runner->refused || is_refused;
    return is_refused;
}

/* A new agent: it follows the one before, and hears all there is to know. */
static void on_listener(struct runner *runner)
{
    int fd = accept4(runner->listener, NULL, NULL, SOCK_CLOEXEC);

    if (fd < 0)
        return;
    if (refuse(runner, fd)) {
        (void)close(fd);
        return;
    }
    if (runner->agent >= 0)
        (void)close(runner->agent);
    runner->agent = fd;
    runner_watch(runner, fd);
    runner->out = (struct shoal_runner_message){ .kind = SHOAL_RUNNER_WELCOME, .pid = getpid() };
    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++)
        runner->out.status += runner->children[i].used ? 1 : 0;
    tell(runner, &runner->out, runner->control_fd);
    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++) {
        struct child *child = &runner->children[i];

        child->told = false;
        if (child->used && child->exited)
            runner_tell_exited(runner, child);
        else if (child->used)
            runner_tell_started(runner, child);
    }
    runner_timer_turn(runner); /* that one may have gone again */
}

/* R2: whoever a worker left behind, and whoever that one forks at this moment, is killed before the runner ends: after it
 * they would be nobody's. Each death brings another look. */
static bool left_alone(struct runner *runner)
{
    siginfo_t info;

    if (runner->server_pid > 0 && kill(-runner->server_pid, SIGKILL) != 0)
        (void)kill(runner->server_pid, SIGKILL);
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD)
        return true;
    child_kill_left_behind(runner);
    if (runner->sweep_at_ns == 0) {
        runner->sweep_at_ns = runner_now_ns() + RUNNER_SWEEP_NS;
        runner_timer_turn(runner);
    }
    return false;
}

static bool finished(struct runner *runner)
{
    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++)
        if (runner->children[i].used && (!runner->children[i].exited || runner->children[i].tell_at_ns != 0))
            return false;
    if (!runner->closing && (runner->agent >= 0 || runner_now_ns() < runner->idle_since_ns + ORPHAN_NS))
        return false;
    return left_alone(runner);
}

/* A file of memory, under the number that workers are told. It is sealed before anybody else has it: whoever cuts a mapped
 * file short ends each process that touches its page, the agent among them. */
static int page_file(const char *name, int number)
{
    int made = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int fd = made < 0 ? -1 : dup3(made, number, O_CLOEXEC);

    if (made >= 0)
        (void)close(made);
    return fd;
}

static enum shoal_err pages_make(struct runner *runner, const char *job_text, uint32_t generation,
                                 struct shoal_msg *msg)
{
    struct shoal_job_id job;

    runner->control_fd = page_file("shoal-control", SHOAL_RUNNER_CONTROL_FD);
    runner->arena_fd = page_file("shoal-arena", SHOAL_RUNNER_ARENA_FD);
    if (runner->control_fd < 0 || runner->arena_fd < 0 ||
        ftruncate(runner->control_fd, sizeof(struct shoal_control_page)) != 0 ||
        fcntl(runner->control_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
        fcntl(runner->arena_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0) /* workers grow it, each its own part */
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
    runner->idle_since_ns = runner_now_ns();
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
    runner_watch(runner, runner->listener);
    runner_watch(runner, runner->signals);
    runner_watch(runner, runner->timer);
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
    runner_timer_turn(runner);
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
            runner_timer_turn(runner);
        } else if (event.data.fd == runner->agent) {
            on_agent(runner);
        } else if (event.data.fd == runner->server) {
            runner_on_server(runner);
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
