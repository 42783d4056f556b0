/* The spawn helper's own process (spawn.h): one thread, one socket, and a fork for each order.
 *
 *   order --fork--> runner lives --it ends--> whom it left behind is killed --none is left--> its lock is let go
 *
 * Of the children of this process those are runners that it has forked; any other was left behind by one (P5). SIGCHLD is
 * blocked but while this process waits, so that no end is missed. */
#include "spawn.h"

#include "warm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/runner.h"

#include "shoal/banned.h"

/* An order has two; a sender that gives more is refused, and the kernel drops what does not fit. */
#define FDS_MAX 4
/* The next look at those who were killed, or have forked meanwhile, where no SIGCHLD comes first. */
#define SWEEP_MS 50

struct order_fds {
    int fds[FDS_MAX];
    unsigned count;
};

/* A runner that this process has forked. */
struct kept {
    pid_t pid; /* 0: it has ended */
    int lock;  /* let go when nobody whom it left behind is alive */
};

struct helper {
    int socket; /* -1: no more orders come */
    const struct spawn_title *title;
    struct kept kept[SPAWN_RUNNERS_MAX];
    unsigned kept_count;
    bool strays; /* somebody was left behind, and was there at the last look */
};

static struct spawn_title title_of(int argc, char **argv)
{
    struct spawn_title title = { .at = argv[0], .cap = strlen(argv[0]) + 1 };

    for (int i = 1; i < argc && argv[i] == title.at + title.cap; i++)
        title.cap += strlen(argv[i]) + 1;
    return title;
}

void spawn_title_put(const struct spawn_title *title, const char *const *words, unsigned count)
{
    size_t at = 0;

    if (title->cap > 0)
        memset(title->at, 0, title->cap);
    for (unsigned i = 0; i < count; i++) {
        size_t len = strlen(words[i]) + 1;

        if (len > title->cap - at)
            return;
        memcpy(title->at + at, words[i], len);
        at += len;
    }
}

static pid_t fork_here(void)
{
    const struct runner_hooks *hooks = runner_hooks_now();

    return hooks == NULL ? fork() : hooks->fork();
}

/* P2. In the forked process; never returns. The listener takes the number of the helper's socket; whatever is above goes. */
static void become_runner(const struct spawn_order *order, const struct helper *helper, int listener)
{
    char words[5][SPAWN_DIR_BYTES] = { "runner" };
    char *argv[6] = { words[0], words[1], words[2], words[3], words[4], NULL };
    const char *const shown[5] = { "shoal", words[0], words[1], words[2], words[3] };

    (void)signal(SIGCHLD, SIG_DFL);
    (void)setsid();
    if (dup2(listener, helper->socket) < 0)
        _exit(1);
    (void)close_range((unsigned)helper->socket + 1, ~0u, 0);
    (void)snprintf(words[1], sizeof(words[1]), "%s", order->dir);
    (void)snprintf(words[2], sizeof(words[2]), "%s", order->job);
    (void)snprintf(words[3], sizeof(words[3]), "%u", order->generation);
    (void)snprintf(words[4], sizeof(words[4]), "%d", helper->socket);
    spawn_title_put(helper->title, shown, 5);
    _exit(shoal_runner_main(5, argv));
}

static void fds_of(struct msghdr *header, struct order_fds *found)
{
    found->count = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c != NULL; c = CMSG_NXTHDR(header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = CMSG_LEN(0); at + sizeof(int) <= c->cmsg_len && found->count < FDS_MAX; at += sizeof(int))
            memcpy(&found->fds[found->count++], (const uint8_t *)c + at, sizeof(int));
    }
}

/* If somebody cannot be killed, places of ended runners are given up: agents look for who is left by environment, too. */
static bool has_place(struct helper *helper)
{
    for (unsigned i = 0; helper->kept_count == SPAWN_RUNNERS_MAX && i < helper->kept_count; i++)
        if (helper->kept[i].pid == 0) {
            (void)close(helper->kept[i].lock);
            helper->kept[i] = helper->kept[--helper->kept_count];
        }
    return helper->kept_count < SPAWN_RUNNERS_MAX;
}

/* False: this process forks nothing any more (W2). The order is lost with it, and given again elsewhere (P3). */
static bool on_order(struct helper *helper, struct shoal_view datagram, struct order_fds *given)
{
    struct spawn_order order;
    pid_t pid;

    if (given->count != 2 || spawn_decode(datagram, &order) != SHOAL_OK || !has_place(helper)) { /* P4 */
        (void)dprintf(2, "spawn helper: dropped an order of %zu bytes and %u descriptors beside %u runners\n",
                      datagram.len, given->count, helper->kept_count);
        return true;
    }
    if (runner_hooks_now() != NULL && !runner_hooks_now()->may_fork())
        return false;
    pid = fork_here();
    if (pid == 0)
        become_runner(&order, helper, given->fds[0]);
    if (pid < 0) {
        char why[SPAWN_WHY_BYTES];

        (void)snprintf(why, sizeof(why), "no process for the runner of %s: %s; " SPAWN_REMEDY, order.job, strerror(errno));
        (void)dprintf(2, "spawn helper: %s\n", why);
        (void)send(helper->socket, why, strlen(why), MSG_DONTWAIT | MSG_NOSIGNAL); /* before its socket breaks (P3) */
        return true;
    }
    helper->kept[helper->kept_count++] = (struct kept){ .pid = pid, .lock = given->fds[1] }; /* P5 */
    given->count = 1;
    return true;
}

/* False: the agent is gone, or this process is to fork no more. */
static bool serve_one(struct helper *helper)
{
    uint8_t bytes[SPAWN_MESSAGE_MAX];
    struct iovec part = { .iov_base = bytes, .iov_len = sizeof(bytes) };
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control;
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof(control.space)
    };
    struct order_fds given;
    bool goes_on;
    ssize_t len = recvmsg(helper->socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

    if (len < 0)
        return errno == EINTR || errno == EAGAIN || errno == EMFILE || errno == ENOBUFS;
    fds_of(&header, &given);
    if (len == 0 && given.count == 0)
        return false;
    goes_on = on_order(helper, shoal_view_of(bytes, (size_t)len), &given);
    for (unsigned i = 0; i < given.count; i++)
        (void)close(given.fds[i]);
    return goes_on;
}

/* ---- those who are left behind (P5) ---- */

static bool is_runner(const struct helper *helper, pid_t pid)
{
    for (unsigned i = 0; i < helper->kept_count; i++)
        if (helper->kept[i].pid == pid)
            return true;
    return false;
}

/* Ends each child that is no runner. Whoever it leaves becomes a child in turn, and is seen by the next look. */
static void sweep(struct helper *helper)
{
    char path[64], text[4096];
    char *at = text;
    ssize_t len = -1;
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)getpid(), (int)getpid());
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        len = read(fd, text, sizeof(text) - 1);
        (void)close(fd);
    }
    text[len < 0 ? 0 : len] = '\0';
    helper->strays = false;
    for (;;) {
        pid_t pid = (pid_t)strtol(at, &at, 10);

        if (pid <= 0)
            return;
        if (*at == '\0') { /* cut short: the next look sees it whole */
            helper->strays = true;
            return;
        }
        if (is_runner(helper, pid))
            continue;
        (void)kill(pid, SIGKILL);
        helper->strays = true;
    }
}

/* A child that is waited for leaves its time in this process's account, where an operator finds it. */
static void reap(struct helper *helper)
{
    bool any = helper->strays;
    pid_t pid;

    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0) {
        any = true;
        for (unsigned i = 0; i < helper->kept_count; i++)
            if (helper->kept[i].pid == pid)
                helper->kept[i].pid = 0;
    }
    if (any)
        sweep(helper);
    for (unsigned i = 0; any && !helper->strays && i < helper->kept_count;) {
        if (helper->kept[i].pid != 0) {
            i++;
            continue;
        }
        (void)close(helper->kept[i].lock);
        helper->kept[i] = helper->kept[--helper->kept_count];
    }
}

/* The class and priority of the agent are not for runners: what they start is the user's. */
static void be_ordinary(void)
{
    const struct sched_param param = { .sched_priority = 0 };

    (void)sched_setscheduler(0, SCHED_OTHER, &param);
    if (getpriority(PRIO_PROCESS, 0) < 0)
        (void)setpriority(PRIO_PROCESS, 0, 0);
}

static void on_child(int number) { (void)number; } /* it ends the wait */

void spawn_serve(int socket, const struct spawn_title *title, const char *name)
{
    struct helper helper = { .socket = socket, .title = title };
    const struct timespec soon = { .tv_nsec = SWEEP_MS * (long)SHOAL_MS };
    sigset_t blocked, usual;

    (void)close_range((unsigned)socket + 1, ~0u, 0); /* P2 */
    be_ordinary();
    (void)prctl(PR_SET_NAME, name);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1); /* P5 */
    (void)prctl(PR_SET_PDEATHSIG, SIGCONT); /* P1 */
    (void)sigemptyset(&blocked);
    (void)sigaddset(&blocked, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &blocked, &usual);
    (void)sigdelset(&usual, SIGCHLD);
    (void)sigaction(SIGCHLD, &(struct sigaction){ .sa_handler = on_child, .sa_flags = SA_NOCLDSTOP }, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    while (helper.socket >= 0 || helper.kept_count > 0 || helper.strays) { /* P1 */
        struct pollfd order = { .fd = helper.socket, .events = POLLIN };
        int ready = ppoll(&order, 1, helper.strays ? &soon : NULL, &usual);

        if (ready > 0 && !serve_one(&helper)) {
            (void)close(helper.socket);
            helper.socket = -1;
        }
        reap(&helper);
    }
}

int shoal_spawn_helper_main(int argc, char **argv)
{
    struct spawn_title title = title_of(argc, argv);
    int socket = argc < 3 ? -1 : (int)strtol(argv[2], NULL, 10);

    if (socket < 3 || fcntl(socket, F_SETFD, FD_CLOEXEC) != 0) {
        (void)dprintf(2, "usage: shoal spawn-helper FD PADDING (an agent starts it)\n");
        return 2;
    }
    spawn_serve(socket, &title, "shoal-spawn");
    return 0;
}
