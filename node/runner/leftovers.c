#include "leftovers.h"

#include "shoal/below.h"
#include "shoal/disk.h"
#include "shoal/limits.h"
#include "shoal/worker.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/banned.h"

#define ENVIRON_BYTES (128 * SHOAL_KIB)
#define LOOKS_A_SCAN 16u

static bool has_pair(const char *bytes, size_t len, const char *name, const char *value)
{
    size_t name_len = strlen(name);

    for (const char *at = bytes; at < bytes + len; at += strlen(at) + 1)
        if (strncmp(at, name, name_len) == 0 && at[name_len] == '=' && strcmp(at + name_len + 1, value) == 0)
            return true;
    return false;
}

/* In what it was started with; it cannot be a zombie's, which shows none. */
static bool is_marked(int proc, const char *pid, const char *job, const char *socket_path)
{
    static char bytes[ENVIRON_BYTES + 1];
    char path[300];
    ssize_t len = -1;
    int fd;

    (void)snprintf(path, sizeof(path), "%s/environ", pid);
    fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        len = read(fd, bytes, ENVIRON_BYTES);
        (void)close(fd);
    }
    if (len <= 0)
        return false;
    bytes[len] = '\0';
    return has_pair(bytes, (size_t)len, SHOAL_ENV_JOB, job) &&
           has_pair(bytes, (size_t)len, SHOAL_ENV_SOCKET, socket_path);
}

unsigned leftovers_kill(const char *job, const char *socket_path)
{
    DIR *proc = opendir("/proc");
    const struct dirent *entry;
    unsigned count = 0;

    while (proc != NULL && (entry = readdir(proc)) != NULL) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        struct stat facts;

        if (pid <= 1 || pid == getpid() || fstatat(dirfd(proc), entry->d_name, &facts, 0) != 0 ||
            facts.st_uid != getuid() || !is_marked(dirfd(proc), entry->d_name, job, socket_path))
            continue;
        (void)kill(pid, SIGKILL);
        count++;
    }
    if (proc != NULL)
        (void)closedir(proc);
    return count;
}

/* ---- locks ---- */

#define LOCK_NAME "alive"

int leftovers_find(const char *folder) { return shoal_open_below(folder, LOCK_NAME, O_RDONLY); }

bool leftovers_lock_is_free(int lock)
{
    bool is_free = flock(lock, LOCK_EX | LOCK_NB) == 0;

    if (is_free)
        (void)flock(lock, LOCK_UN);
    return is_free;
}

/* A file that an earlier runner's helper still holds is replaced: it goes on to say what is left of that one. */
static int lock_make(const char *folder)
{
    char path[600];
    int fd = shoal_open_below(folder, LOCK_NAME, O_RDWR | O_CREAT);

    if (fd >= 0 && leftovers_lock_is_free(fd))
        return fd;
    if (fd >= 0)
        (void)close(fd);
    (void)snprintf(path, sizeof(path), "%s/" LOCK_NAME, folder);
    if (unlink(path) != 0)
        return -1;
    return shoal_open_below(folder, LOCK_NAME, O_RDWR | O_CREAT | O_EXCL);
}

enum shoal_err leftovers_lock(const char *folder, int *lock, struct shoal_msg *msg)
{
    *lock = lock_make(folder);
    if (*lock >= 0 && flock(*lock, LOCK_SH | LOCK_NB) == 0)
        return SHOAL_OK;
    (void)shoal_fail(msg, SHOAL_ERR_STORAGE, "%s/" LOCK_NAME ": no lock for the job's runner: %s; %s", folder,
                     strerror(errno), shoal_disk_remedy(errno));
    if (*lock >= 0)
        (void)close(*lock);
    return SHOAL_ERR_STORAGE;
}

/* ---- jobs that lost their runner ---- */

static void remove_at(struct leftovers *leftovers, unsigned at)
{
    if (leftovers->list[at].lock >= 0)
        (void)close(leftovers->list[at].lock);
    leftovers->list[at] = leftovers->list[--leftovers->count];
}

void leftovers_add(struct leftovers *leftovers, struct shoal_job_id job, uint64_t slots, int lock)
{
    if (leftovers->count == LEFTOVERS_MAX)
        remove_at(leftovers, 0);
    leftovers->list[leftovers->count++] = (struct leftover){ .job = job, .slots = slots, .lock = lock };
}

/* A look at every process of the host takes milliseconds. As long as the helper is there, which ends those that are left by itself,
 * each LOOKS_A_SCAN looks make do with its word. */
static bool is_left(struct leftover *left, const char *socket_path, bool runs)
{
    bool held = left->lock >= 0 && !leftovers_lock_is_free(left->lock);
    char job[SHOAL_JOB_ID_TEXT_BYTES];

    if (held && left->looks++ % LOOKS_A_SCAN != 0)
        return true;
    shoal_job_id_text(left->job, job);
    return (!runs && leftovers_kill(job, socket_path) > 0) || held;
}

uint64_t leftovers_hold(struct leftovers *leftovers, const char *socket_path, bool (*runs)(void *arg, struct shoal_job_id job),
                        void *arg)
{
    uint64_t slots = 0;

    for (unsigned i = 0; i < leftovers->count;) {
        struct leftover *left = &leftovers->list[i];

        if (is_left(left, socket_path, runs(arg, left->job))) {
            slots |= left->slots;
            i++;
        } else {
            remove_at(leftovers, i);
        }
    }
    return slots;
}

void leftovers_deinit(struct leftovers *leftovers)
{
    while (leftovers->count > 0)
        remove_at(leftovers, 0);
}
