/* Deaths at named points, for tests: SHOAL_FAULT_AGENT="point:file" ends the agent there with SIGKILL, if `file` is not there
 * yet: it is made, so the same agent, started again, goes on. Compiled in: a point costs one comparison when unset. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"

#include "shoal/banned.h"

void agent_fault_point(const char *point)
{
    const char *rule = getenv("SHOAL_FAULT_AGENT");
    size_t len = strlen(point);
    int fd;

    if (rule == NULL || strncmp(rule, point, len) != 0 || rule[len] != ':')
        return;
    fd = open(rule + len + 1, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd >= 0)
        (void)raise(SIGKILL);
}
