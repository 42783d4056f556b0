/* What an interpreter reads from its environment while it starts, or what the C library reads before that (warm.h, W1). */
#include "warm.h"

#include <string.h>

#include "shoal/banned.h"

bool warm_keeps(const char *pair)
{
    static const char *const begins[] = { "PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "TZ" };
    static const char *const names[] = { "HOME=", "USER=", "COVERAGE_PROCESS_START=" };

    if (strncmp(pair, "PYTHONPATH=", 11) == 0)
        return false;
    for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++)
        if (strncmp(pair, begins[i], strlen(begins[i])) == 0)
            return true;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strncmp(pair, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}
