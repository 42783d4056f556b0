#include "leftovers.h"

#include "shoal/limits.h"
#include "shoal/worker.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/banned.h"

#define ENVIRON_BYTES (128 * SHOAL_KIB)

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
