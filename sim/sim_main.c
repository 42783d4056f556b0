/* The command: shoal sim FILE|random [--seed N] [--count N] [--trace] [--twice]. */
#include "sim.h"

#include <signal.h>
#include <unistd.h>

#include "shoal/cli.h"
#include "shoal/sim.h"

#include "shoal/banned.h"

static const char usage[] =
    "usage: shoal sim FILE|random [--seed N] [--count N] [--twice] [--trace]\n"
    "  FILE     a script (tests/sim/*.sim); random: hosts, jobs and faults drawn from the seed\n"
    "  --seed   the first seed; --count: how many, one after the other\n"
    "  --twice  run each seed twice and compare the trace hashes\n"
    "  --trace  tell what happens\n";

struct arguments {
    const char *file;
    bool seeded;
    uint64_t seed;
    uint64_t count;
    bool trace, twice;
};

struct outcome {
    bool ok;
    uint64_t hash;
};

/* For a broken invariant of a core, which aborts the process. */
static char again[512];

static void on_abort(int number)
{
    (void)number;
    (void)!write(STDERR_FILENO, again, strlen(again));
    (void)signal(SIGABRT, SIG_DFL);
}

static bool parse_number(const char *text, uint64_t *number)
{
    char *end;

    if (text == NULL)
        return false;
    *number = strtoull(text, &end, 0);
    return end != text && *end == '\0';
}

static bool parse(struct arguments *a, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;

        if (strcmp(argv[i], "--trace") == 0)
            a->trace = true;
        else if (strcmp(argv[i], "--twice") == 0)
            a->twice = true;
        else if (strcmp(argv[i], "--seed") == 0 && parse_number(next, &a->seed) && ++i > 0)
            a->seeded = true;
        else if (strcmp(argv[i], "--count") == 0 && parse_number(next, &a->count) && a->count > 0)
            i++;
        else if (argv[i][0] != '-' && a->file == NULL)
            a->file = argv[i];
        else
            return false;
    }
    return a->file != NULL;
}

static struct outcome run(const struct sim_script *script, bool trace, bool quiet)
{
    struct sim *sim = sim_create(script, trace);
    struct outcome outcome = { .ok = sim_run(sim) };
    uint64_t ms = (sim->now_ns - 1000 * SHOAL_S) / SHOAL_MS;

    outcome.hash = sim->hash;
    if (!quiet || !outcome.ok)
        (void)printf("seed %llu: %s, %u hosts, %u jobs, %llu.%03llu s, %llu events, %llu of %llu datagrams lost, "
                     "%llu elections, %llu restarts, %llu workers, %llu struck, %llu shrunk, trace %016llx\n",
                     (unsigned long long)sim->options.seed, outcome.ok ? "ok" : "FAILED", sim->options.hosts,
                     sim->job_count, (unsigned long long)(ms / 1000), (unsigned long long)(ms % 1000),
                     (unsigned long long)sim->events, (unsigned long long)sim->lost, (unsigned long long)sim->datagrams,
                     (unsigned long long)sim->elections, (unsigned long long)sim->restarts,
                     (unsigned long long)sim->runs, (unsigned long long)sim->strikes, (unsigned long long)sim->shrinks,
                     (unsigned long long)outcome.hash);
    if (!outcome.ok)
        (void)printf("FAIL %s\n", sim->failure);
    sim_destroy(sim);
    return outcome;
}

static bool run_seed(const struct arguments *a, struct sim_script *script, uint64_t seed)
{
    struct outcome first, second;

    if (strcmp(a->file, "random") == 0)
        sim_script_random(script, seed);
    script->options.seed = seed;
    (void)snprintf(again, sizeof(again), "again: shoal sim %s --seed %llu --trace\n", a->file,
                   (unsigned long long)seed);
    first = run(script, a->trace, false);
    if (first.ok && a->twice) {
        second = run(script, false, true);
        if (second.hash != first.hash) {
            (void)printf("FAIL seed %llu gave trace %016llx, then %016llx\n", (unsigned long long)seed,
                         (unsigned long long)first.hash, (unsigned long long)second.hash);
            first.ok = false;
        }
    }
    if (!first.ok)
        (void)printf("%s", again);
    (void)fflush(stdout);
    return first.ok;
}

int shoal_sim_main(int argc, char **argv)
{
    struct arguments arguments = { .count = 1 };
    struct sim_script *script = sim_alloc(sizeof(*script));
    char error[400];
    bool ok = true;

    if (!parse(&arguments, argc, argv)) {
        (void)fputs(usage, stderr);
        sim_script_deinit(script);
        free(script);
        return SHOAL_EXIT_USAGE;
    }
    if (strcmp(arguments.file, "random") != 0 && !sim_script_read(script, arguments.file, error, sizeof(error))) {
        (void)fprintf(stderr, "shoal sim: %s\n", error);
        sim_script_deinit(script);
        free(script);
        return SHOAL_EXIT_USAGE;
    }
    if (!arguments.seeded)
        arguments.seed = strcmp(arguments.file, "random") == 0 ? 1 : script->options.seed;
    (void)signal(SIGABRT, on_abort);
    for (uint64_t i = 0; i < arguments.count; i++)
        ok = run_seed(&arguments, script, arguments.seed + i) && ok;
    sim_script_deinit(script);
    free(script);
    return ok ? SHOAL_EXIT_OK : SHOAL_EXIT_FAILED;
}
