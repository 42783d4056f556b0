/* A START order carried out: the slot's lock is taken, the logs are opened, and the program is started with what it may
 * inherit and nothing else. */
#include "runner_state.h"

#include "spawn.h"
#include "warm.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "shoal/banned.h"

/* The folders of a file. Most of them are there already, so they are made from the end. */
static void make_parents(const char *path)
{
    char part[SHOAL_PATH_TEXT_BYTES];
    const char *slash = strrchr(path, '/');

    if (slash == NULL || slash == path || (size_t)(slash - path) >= sizeof(part))
        return;
    memcpy(part, path, (size_t)(slash - path));
    part[slash - path] = '\0';
    if (mkdir(part, 0700) == 0 || errno != ENOENT)
        return;
    for (char *at = part + 1; *at != '\0'; at++) {
        if (*at != '/')
            continue;
        *at = '\0';
        (void)mkdir(part, 0700);
        *at = '/';
    }
    (void)mkdir(part, 0700);
}

static const struct runner_hooks *the_hooks; /* NULL: this process is no interpreter */

void runner_hooks_use(const struct runner_hooks *hooks) { the_hooks = hooks; }

const struct runner_hooks *runner_hooks_now(void) { return the_hooks; }

/* To the process's own log, as a shell says it. */
static void say_why_not(const char *what)
{
    const char *why = strerrordesc_np(errno);
    struct iovec parts[] = { { .iov_base = (char *)(uintptr_t)what, .iov_len = strlen(what) },
                             { .iov_base = ": ", .iov_len = 2 },
                             { .iov_base = (char *)(uintptr_t)why, .iov_len = why == NULL ? 0 : strlen(why) },
                             { .iov_base = "\n", .iov_len = 1 } };

    (void)!writev(STDERR_FILENO, parts, 4);
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
    (void)close_range(3, ~0u, CLOSE_RANGE_CLOEXEC); /* whatever this process has open, but for what is named next */
    for (unsigned i = 0; i < kept_count; i++)
        if (kept[i] >= 0)
            (void)fcntl(kept[i], F_SETFD, 0);
    (void)setpriority(PRIO_PROCESS, 0, start->nice);
    runner_cgroup_write(start->cgroup, "cgroup.procs", "0");
    if (chdir(start->cwd) != 0) {
        say_why_not(start->cwd);
        _exit(126);
    }
    if (the_hooks != NULL && start->how == SHOAL_START_EXEC)
        the_hooks->become(start, kept, kept_count);
    /* execvpe takes char *const *: it does not write to the strings. */
    (void)execvpe(start->argv[0], (char *const *)(uintptr_t)start->argv, (char *const *)(uintptr_t)start->env);
    say_why_not(start->argv[0]);
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

static enum shoal_err open_logs(struct runner *runner, const struct shoal_runner_start *start, int fds[2],
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
        runner_watch(runner, runner->logs.socket);
    return err;
}

bool runner_name_stdout(const struct shoal_runner_start *start, int fd, char *text, size_t cap)
{
    struct stat facts;
    int len = fstat(fd, &facts) != 0 ? -1 : snprintf(text, cap, "%llu:%s", (unsigned long long)facts.st_ino, start->stdout_path);

    return len >= 0 && (size_t)len < cap;
}

enum shoal_err runner_exec(struct runner *runner, const struct shoal_runner_start *given_start, int given, pid_t *pid,
                           struct shoal_msg *msg)
{
    static struct shoal_runner_start own;
    static char named[sizeof(SHOAL_ENV_STDOUT) + RUNNER_STDOUT_BYTES] = SHOAL_ENV_STDOUT "="; /* both are the child's, too */
    const struct shoal_runner_start *start = &own;
    int fds[3] = { open("/dev/null", O_RDONLY | O_CLOEXEC), -1, -1 };
    int kept[3] = { given, runner->control_fd, runner->arena_fd };
    enum shoal_err err;

    own = *given_start;
    err = open_logs(runner, start, fds + 1, msg);
    if (err == SHOAL_OK && own.envc < SHOAL_RUNNER_STRINGS_MAX &&
        runner_name_stdout(start, fds[1], named + sizeof(SHOAL_ENV_STDOUT), RUNNER_STDOUT_BYTES)) {
        own.env[own.envc++] = named;
        own.env[own.envc] = NULL;
    }
    if (err == SHOAL_OK) {
        *pid = the_hooks == NULL ? fork() : the_hooks->fork();
        if (*pid == 0)
            become(start, fds, kept, 3);
        if (*pid < 0)
            err = shoal_fail(msg, SHOAL_ERR_FULL, "cannot fork: %s; " SPAWN_REMEDY, strerror(errno));
    }
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
    return err;
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

/* A free place, or that of a worker whose end was told: the agent that starts another one has acted on it. */
static struct child *place_for(struct runner *runner)
{
    struct child *told = NULL;

    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++) {
        struct child *child = &runner->children[i];

        if (!child->used)
            return child;
        if (child->exited && child->told && told == NULL)
            told = child;
    }
    return told;
}

void runner_on_start(struct runner *runner, const struct shoal_runner_start *start)
{
    struct shoal_msg msg = { "" };
    struct child *child = child_find(runner, start->worker_id);
    enum shoal_err err;
    pid_t pid = -1;
    int lock = -1;

    if (child != NULL && !child->told) { /* a repeated START: answer again */
        if (child->exited)
            runner_tell_exited(runner, child);
        else if (child->pid > 0)
            runner_tell_started(runner, child);
        return;
    }
    if (child == NULL)
        child = place_for(runner);
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
        err = runner_exec(runner, start, lock, &pid, &msg);
    if (err == SHOAL_OK && start->how == SHOAL_START_FORK)
        err = runner_server_start(runner, start, &msg);
    if (err == SHOAL_OK && start->how == SHOAL_START_FORK)
        err = open_logs(runner, start, child->log_fds, &msg);
    if (err == SHOAL_OK && start->how == SHOAL_START_FORK)
        err = runner_server_fork(runner, start, child->log_fds, lock, &msg);
    if (lock >= 0)
        (void)close(lock); /* R1: from here on the worker's copy is the lock */
    if (err != SHOAL_OK) {
        (void)snprintf(child->text, sizeof(child->text), "%s", msg.text);
        /* An engine server that does not answer may have failed in what it has loaded: the user's code. */
        child_ended(runner, child, start->how == SHOAL_START_EXEC ? SHOAL_STATUS_UNSTARTED : -1, false);
    } else if (pid > 0) {
        child_running(runner, child, pid);
    }
    runner_timer_turn(runner);
}
