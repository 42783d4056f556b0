/* The spawn helper's own process (spawn.h): one thread, one socket, and a fork for each order. */
#include "spawn.h"

#include "warm.h"

#include <errno.h>
#include <fcntl.h>
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

/* An order has one; a sender that gives more is refused, and the kernel drops what does not fit. */
#define FDS_MAX 4

struct order_fds {
    int fds[FDS_MAX];
    unsigned count;
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

/* P2. In the forked process; never returns. */
static void become_runner(const struct spawn_order *order, int socket, int listener, const struct spawn_title *title)
{
    char words[5][SPAWN_DIR_BYTES] = { "runner" };
    char *argv[6] = { words[0], words[1], words[2], words[3], words[4], NULL };
    const char *const shown[5] = { "shoal", words[0], words[1], words[2], words[3] };

    (void)signal(SIGCHLD, SIG_DFL);
    (void)setsid();
    (void)close(socket);
    (void)snprintf(words[1], sizeof(words[1]), "%s", order->dir);
    (void)snprintf(words[2], sizeof(words[2]), "%s", order->job);
    (void)snprintf(words[3], sizeof(words[3]), "%u", order->generation);
    (void)snprintf(words[4], sizeof(words[4]), "%d", listener);
    spawn_title_put(title, shown, 5);
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

/* False: this process forks nothing any more (W2). The order is lost with it, and given again elsewhere (P3). */
static bool on_order(int socket, struct shoal_view datagram, const struct order_fds *given,
                     const struct spawn_title *title)
{
    struct spawn_order order;
    pid_t pid;

    if (given->count != 1 || spawn_decode(datagram, &order) != SHOAL_OK) { /* P4 */
        (void)dprintf(2, "spawn helper: dropped an order of %zu bytes and %u descriptors\n", datagram.len,
                      given->count);
        return true;
    }
    if (runner_hooks_now() != NULL && !runner_hooks_now()->may_fork())
        return false;
    pid = fork_here();
    if (pid == 0)
        become_runner(&order, socket, given->fds[0], title);
    if (pid < 0) /* else: P1 */
        (void)dprintf(2, "spawn helper: no process for the runner of %s: %s; raise the process limit\n", order.job,
                      strerror(errno));
    return true;
}

/* False: the agent is gone, or this process is to end. */
static bool serve_one(int socket, const struct spawn_title *title)
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
    ssize_t len = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);

    if (len < 0)
        return errno == EINTR || errno == EMFILE || errno == ENOBUFS;
    fds_of(&header, &given);
    if (len == 0 && given.count == 0)
        return false;
    goes_on = on_order(socket, shoal_view_of(bytes, (size_t)len), &given, title);
    for (unsigned i = 0; i < given.count; i++)
        (void)close(given.fds[i]);
    return goes_on;
}

/* The class and priority of the agent are not for runners: what they start is the user's. */
static void be_ordinary(void)
{
    const struct sched_param param = { .sched_priority = 0 };

    (void)sched_setscheduler(0, SCHED_OTHER, &param);
    if (getpriority(PRIO_PROCESS, 0) < 0)
        (void)setpriority(PRIO_PROCESS, 0, 0);
}

/* P1. A child that is waited for leaves its time in this process's account, where an operator finds it. */
static void on_child(int number)
{
    int kept = errno;

    (void)number;
    while (waitpid(-1, NULL, WNOHANG) > 0)
        continue;
    errno = kept;
}

void spawn_serve(int socket, const struct spawn_title *title, const char *name)
{
    (void)close_range((unsigned)socket + 1, ~0u, 0); /* P2 */
    be_ordinary();
    (void)prctl(PR_SET_NAME, name);
    (void)sigaction(SIGCHLD, &(struct sigaction){ .sa_handler = on_child, .sa_flags = SA_NOCLDSTOP }, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    while (serve_one(socket, title))
        continue;
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
