/* The runner's table of children: how one is stopped, frozen, ended, and how its slot is emptied.
 *
 * How a slot is emptied: SIGKILL goes to the worker's process group and, where it has one, to its cgroup. Whoever the
 * worker left behind has become a child of the runner by then (R2). Such a process is told from those of the living
 * workers by what it inherited: the descriptor of the slot's lock, or the SHOAL_WORKER_ID that it was started with (an
 * engine has none: the engine server was started for all of them). A process that bears neither goes when the last
 * worker has ended. The children of those who are killed so come to the runner in turn, hence each death of a stranger
 * begins another sweep; one that shows no environment at all is looked at again. The slot's lock says when it is really
 * empty. */
#include "runner_state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/banned.h"

struct child *child_find(struct runner *runner, uint64_t worker_id)
{
    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++)
        if (runner->children[i].used && runner->children[i].worker_id == worker_id)
            return &runner->children[i];
    return NULL;
}

struct child *child_of_pid(struct runner *runner, pid_t pid)
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

bool child_any_alive(const struct runner *runner)
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
    if (!child_any_alive(runner))
        return true;
    if (empty && runner->sweep_at_ns == 0 && runner->sweeps_left > 0) {
        runner->sweeps_left--;
        runner->sweep_at_ns = runner_now_ns() + RUNNER_SWEEP_NS;
    }
    return false;
}

/* R2: processes that a worker left behind are our children by now. None of them can be another's pid: only we reap. */
void child_kill_left_behind(struct runner *runner)
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

void runner_cgroup_write(const char *cgroup, const char *file, const char *text)
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
        runner_note(path, errno);
    (void)close(fd);
}

void child_signal(const struct child *child, int signal_number)
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

void child_freeze(struct runner *runner, struct child *child)
{
    slot_mark_frozen(runner, child, true);
    child_signal(child, SIGSTOP);
    child->frozen = true;
}

void child_thaw(struct runner *runner, struct child *child)
{
    child_signal(child, SIGCONT);
    child->frozen = false;
    slot_mark_frozen(runner, child, false);
}

/* V1: a process that is not there yet can be sent no signal. */
static bool is_unborn(const struct child *child) { return child->pid <= 0 && !child->exited; }

void child_kill(struct runner *runner, struct child *child)
{
    runner_cgroup_write(child->cgroup, "cgroup.kill", "1");
    child_signal(child, SIGKILL);
    child->term_kill_at_ns = 0;
    child->kill_at_ns = 0;
    child->freeze_at_ns = 0;
    child->doomed = is_unborn(child);
    if (child->doomed)
        runner_server_unwanted(runner);
}

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

static void child_logs_close(struct child *child)
{
    for (unsigned i = 0; i < 2; i++)
        if (child->log_fds[i] > 0)
            (void)close(child->log_fds[i]);
    child->log_fds[0] = child->log_fds[1] = 0;
}

void child_running(struct runner *runner, struct child *child, pid_t pid)
{
    child->pid = pid;
    child->start_ticks = start_ticks_of(pid);
    if (child->slot < SHOAL_SLOTS_MAX)
        atomic_store(&runner->page->slots[child->slot].pid, pid);
    if (child->frozen)
        child_signal(child, SIGSTOP); /* its time came before it did */
    runner_tell_started(runner, child);
    if (child->doomed)
        child_kill(runner, child); /* V1 */
}

void child_ended(struct runner *runner, struct child *child, int status, bool signalled)
{
    child->exited = true;
    child->status = status;
    child->signalled = signalled;
    if (child->slot < SHOAL_SLOTS_MAX && atomic_load(&runner->page->slots[child->slot].worker_id) == child->worker_id)
        atomic_store(&runner->page->slots[child->slot].worker_id, 0);
    runner_cgroup_write(child->cgroup, "cgroup.kill", "1");
    if (child->pid > 0)
        (void)kill(-child->pid, SIGKILL);
    runner->sweeps_left = RUNNER_SWEEPS_MAX;
    child_kill_left_behind(runner);
    runner->idle_since_ns = runner_now_ns();
    child_logs_close(child);
    if (runner_logs_sync(&runner->logs, child->worker_id))
        child->tell_at_ns = runner_now_ns() + RUNNER_LOG_SYNC_NS;
    runner_tell_exited(runner, child);
    runner_timer_turn(runner);
}
