/* Stands between an agent and its disk: what others push into a job's log takes 60 ms to be written; or into whatever has SLOW_PATH
 * in its path, SLOW_MS. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at);

static ssize_t later(int fd, const void *bytes, size_t count, off64_t at)
{
    ssize_t (*next)(int, const void *, size_t, off64_t) = (ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
    const char *slow = getenv("SLOW_PATH") == NULL ? "/log/" : getenv("SLOW_PATH"), *ms = getenv("SLOW_MS");
    struct timespec pause = { .tv_nsec = (ms == NULL ? 60 : atol(ms)) * 1000000 };
    char name[64], path[4096] = "";

    (void)snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    if (readlink(name, path, sizeof(path) - 1) > 0 && strstr(path, slow) != NULL)
        (void)nanosleep(&pause, NULL);
    return next(fd, bytes, count, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) { return later(fd, bytes, count, at); }
ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) { return later(fd, bytes, count, at); }
