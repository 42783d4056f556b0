#include "descriptors.h"

#include <stdbool.h>
#include <sys/resource.h>

#include "shoal/banned.h"

static struct rlimit before; /* of this process, as it was started */
static bool raised;

static uint32_t as_u32(rlim_t limit) { return limit > INT32_MAX ? INT32_MAX : (uint32_t)limit; }

uint32_t descriptors_allowed(void)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_NOFILE, &limit) != 0 ? 0 : as_u32(limit.rlim_max);
}

uint32_t descriptors_raise(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 0;
    if (!raised)
        before = limit;
    raised = true;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return as_u32(before.rlim_cur);
    return as_u32(limit.rlim_cur);
}

void descriptors_give_back(pid_t pid)
{
    if (raised) /* what fails leaves it with more than it needs */
        (void)prlimit(pid, RLIMIT_NOFILE, &before, NULL);
}
