/* Knows who knocks at the runner's socket (R5 of runner.h). The agent is an ancestor of its runner, or in the place of one;
 * whatever the job starts is a descendant, since orphans come back to the runner (R2). */
#include "runner_state.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shoal/banned.h"

/* No agent is started so deep; a longer chain is somebody's who wants to hide. */
#define ANCESTORS_MAX 256
/* A parent that ends while we look gives its child to the runner: the next look sees it there. */
#define LOOKS_MAX 4

/* -1: it is gone, or not to be seen. */
static pid_t parent_of(pid_t pid)
{
    char path[64];
    char line[512];
    const char *at;
    ssize_t len = -1;
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        len = read(fd, line, sizeof(line) - 1);
        (void)close(fd);
    }
    if (len <= 0)
        return -1;
    line[len] = '\0';
    at = strrchr(line, ')'); /* the name may hold anything; then: " S 1234 " */
    return at == NULL || strlen(at) < 4 ? -1 : (pid_t)strtol(at + 4, NULL, 10);
}

bool runner_peer_is_below(int fd)
{
    struct ucred peer = { 0 };
    socklen_t len = sizeof(peer);
    pid_t self = getpid();

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0)
        return true;
    for (unsigned look = 0; look < LOOKS_MAX; look++) {
        pid_t pid = peer.pid; /* 0: of another PID namespace, which is above ours */

        for (unsigned i = 0; i < ANCESTORS_MAX && pid > 1 && pid != self; i++)
            pid = parent_of(pid);
        if (pid >= 0)
            return pid > 1;
    }
    return true;
}
