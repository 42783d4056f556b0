/* A spawn helper on a host that has no process to give: each fork() of it fails. The agent's other processes are not touched. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* By the second word of its command. */
static int is_helper(void)
{
    char words[4096];
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t len = fd < 0 ? -1 : read(fd, words, sizeof(words) - 1);

    if (fd >= 0)
        (void)close(fd);
    words[len < 0 ? 0 : len] = '\0';
    return len > 0 && (size_t)len > strlen(words) + 1 && strcmp(words + strlen(words) + 1, "spawn-helper") == 0;
}

pid_t fork(void)
{
    pid_t (*real)(void) = NULL;

    *(void **)&real = dlsym(RTLD_NEXT, "fork");
    if (!is_helper())
        return real();
    errno = EAGAIN;
    return -1;
}
