/* The spawn helper as a program of its own, linked with nothing but the C library: each runner and each worker is forked
 * from it, and a fork costs by what is mapped (docs/decisions/0010-spawn-helper.md). `shoal` holds the same code. */
#include "shoal/runner.h"

#include <stdio.h>
#include <string.h>

#include "shoal/banned.h"

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "spawn-helper") == 0)
        return shoal_spawn_helper_main(argc, argv);
    (void)fprintf(stderr, "shoal-runner: an agent starts it; there is nothing to run by hand\n");
    return 2;
}
