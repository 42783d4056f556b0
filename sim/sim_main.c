/* The command: shoal sim list | run SCENARIO|FILE | shrink SCENARIO|FILE, and the short form shoal sim SCENARIO|FILE. */
#include "sim.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "shoal/cli.h"
#include "shoal/sim.h"

#include "shoal/banned.h"

#define LARGE_BYTES (64 * 1024)

static const char usage[] =
    "usage: shoal sim list\n"
    "       shoal sim [run] SCENARIO|FILE [--seed N | --seeds A..B | --count N] [--hosts N] [--for SECONDS]\n"
    "                 [--off KIND,...] [--twice] [--trace [FILE]] [--json]\n"
    "       shoal sim shrink SCENARIO|FILE --seed N [--hosts N] [--for SECONDS] [--off KIND,...]\n"
    "       shoal sim run --replay FILE\n"
    "  SCENARIO  a name that `list` shows, or random (an older swarm); FILE: a script (tests/sim/*.sim)\n"
    "  --seed    one seed; --seeds: from A to B; --count: so many from --seed on\n"
    "  --hosts   that many instead of the scenario's; --for: faults and work within so many seconds\n"
    "  --off     kinds of faults and work to leave out, as `list` names them; the rest of a seed stays what it was\n"
    "  --twice   run each seed twice and compare the trace hashes\n"
    "  --trace   tell what happens, on the screen or into FILE\n"
    "  --json    one object for each run\n"
    "  shrink    print the smallest script that still fails like this; --replay: run such a script\n"
    "Exit: 0 all passed, 1 a promise was broken, 2 bad use.\n";

struct arguments {
    const char *file;
    const struct sim_scenario *scenario; /* NULL: a file, or random */
    struct sim_scenario more;            /* from the command line */
    bool seeded, old_swarm, list, shrink, replay;
    uint64_t seed, last;
    uint64_t count;
    const char *off;
    const char *trace_file;
    bool trace, twice, json, help;
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

/* ---- the arguments ---- */

static bool parse_number(const char *text, uint64_t *number)
{
    char *end;

    if (text == NULL)
        return false;
    errno = 0;
    *number = strtoull(text, &end, 0);
    return end != text && *end == '\0' && errno == 0;
}

/* False, and one line: what it is about, and what is wrong with it. */
static bool wrong(const char *what, const char *text)
{
    (void)fprintf(stderr, "shoal sim: %s%s\n", what == NULL ? "(nothing)" : what, text);
    return false;
}

static bool parse_seeds(struct arguments *a, const char *text)
{
    char *end;

    a->seed = strtoull(text == NULL ? "" : text, &end, 0);
    if (text == NULL || end == text || strncmp(end, "..", 2) != 0 || !parse_number(end + 2, &a->last) ||
        a->last < a->seed)
        return wrong(text, " is no range of seeds such as 1..100");
    a->count = a->last - a->seed + 1;
    return true;
}

/* The names of kinds of the swarm, with commas. */
static bool parse_off(struct arguments *a, const char *text)
{
    a->off = text;
    while (text != NULL && *text != '\0') {
        size_t len = strcspn(text, ",");
        unsigned kind = 0;

        while (sim_swarm_kind_name(kind) != NULL &&
               (strlen(sim_swarm_kind_name(kind)) != len || strncmp(sim_swarm_kind_name(kind), text, len) != 0))
            kind++;
        if (sim_swarm_kind_name(kind) == NULL)
            return wrong(text, ": no kind of that name; `shoal sim list` names them");
        a->more.never |= 1ull << kind;
        text += len + (text[len] == ',');
    }
    return text != NULL || wrong("--off", " wants names of kinds");
}

/* Of those that want a number. */
static bool is_known(const char *option)
{
    static const char *const known[] = { "--seed", "--count", "--hosts", "--for" };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(option, known[i]) == 0)
            return true;
    return false;
}

static bool parse_value(struct arguments *a, const char *option, const char *value)
{
    uint64_t number = 0;

    if (strcmp(option, "--seeds") == 0)
        return a->seeded = parse_seeds(a, value);
    if (strcmp(option, "--off") == 0)
        return parse_off(a, value);
    if (strcmp(option, "--replay") == 0) {
        a->file = value;
        return a->replay = value != NULL || wrong("--replay", " wants a file");
    }
    if (!is_known(option))
        return wrong(option, " is not understood; `shoal sim --help` says what is");
    if (!parse_number(value, &number))
        return value == NULL ? wrong(option, " wants a number") : wrong(value, " is not a number");
    if (strcmp(option, "--seed") == 0) {
        a->seed = number;
        return a->seeded = true;
    }
    if (strcmp(option, "--count") == 0) {
        a->count = number;
        return number > 0 || wrong(value, " is no count: at least 1");
    }
    if (strcmp(option, "--hosts") == 0) {
        a->more.hosts = (uint32_t)number;
        return (number > 0 && number <= SIM_HOSTS_MAX) || wrong(value, " is no number of hosts from 1 to 10000");
    }
    a->more.span_ns = number * SHOAL_S;
    return (number > 0 && number <= 86400) || wrong(value, " is no number of seconds from 1 to 86400");
}

static bool parse_word(struct arguments *a, const char *word)
{
    if (a->file == NULL && !a->list && strcmp(word, "list") == 0)
        a->list = true;
    else if (a->file == NULL && strcmp(word, "shrink") == 0)
        a->shrink = true;
    else if (a->file == NULL && strcmp(word, "run") == 0)
        a->replay = false;
    else if (a->file == NULL && word[0] != '-')
        a->file = word;
    else
        return wrong(word, " is not understood");
    return true;
}

static bool parse(struct arguments *a, int argc, char **argv)
{
    bool ok = true;

    for (int i = 1; i < argc && ok; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;

        if (strcmp(argv[i], "--trace") == 0) {
            a->trace = true;
            if (next != NULL && next[0] != '-' && a->file != NULL)
                a->trace_file = argv[++i];
        } else if (strcmp(argv[i], "--twice") == 0) {
            a->twice = true;
        } else if (strcmp(argv[i], "--json") == 0) {
            a->json = true;
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            a->help = true;
            return true;
        } else if (strncmp(argv[i], "--", 2) == 0) {
            ok = parse_value(a, argv[i++], next);
        } else {
            ok = parse_word(a, argv[i]);
        }
    }
    if (!ok || (a->file == NULL && !a->list))
        return false;
    a->scenario = a->list ? NULL : sim_scenario_find(a->file, strlen(a->file));
    a->old_swarm = !a->list && strcmp(a->file, "random") == 0;
    return a->scenario == NULL || !a->replay;
}

/* ---- one run ---- */

static uint64_t clock_ms(clockid_t id)
{
    struct timespec now;

    (void)clock_gettime(id, &now); /* of the machine, for the report alone: no core and no event sees it */
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

static void print_text(const struct sim *sim, bool ok)
{
    uint64_t ms = (sim->now_ns - 1000 * SHOAL_S) / SHOAL_MS;

    (void)printf("seed %llu: %s, %u hosts, %u jobs, %llu.%03llu s, %llu events, %llu of %llu datagrams lost, "
                 "%llu elections, %llu restarts, %llu workers, %llu struck, %llu shrunk, %llu reads, trace %016llx\n",
                 (unsigned long long)sim->options.seed, ok ? "ok" : "FAILED", sim->options.hosts, sim->job_count,
                 (unsigned long long)(ms / 1000), (unsigned long long)(ms % 1000), (unsigned long long)sim->events,
                 (unsigned long long)sim->lost, (unsigned long long)sim->datagrams, (unsigned long long)sim->elections,
                 (unsigned long long)sim->restarts, (unsigned long long)sim->runs, (unsigned long long)sim->strikes,
                 (unsigned long long)sim->shrinks, (unsigned long long)sim->reads, (unsigned long long)sim->hash);
}

static void print_quoted(const char *text)
{
    (void)putchar('"');
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            (void)putchar('\\');
        (void)putchar((unsigned char)*text < ' ' ? ' ' : *text);
    }
    (void)putchar('"');
}

static void print_json(const struct sim *sim, bool ok, uint64_t wall_ms, uint64_t cpu_ms)
{
    uint64_t ms = (sim->now_ns - 1000 * SHOAL_S) / SHOAL_MS;
    struct rusage used;

    (void)getrusage(RUSAGE_SELF, &used);
    (void)printf("{\"scenario\": ");
    print_quoted(sim->script->name);
    (void)printf(", \"hosts\": %u, \"seed\": %llu, \"verdict\": ", sim->options.hosts,
                 (unsigned long long)sim->options.seed);
    print_quoted(ok ? "pass" : sim->failure);
    (void)printf(", \"events\": %llu, \"virtual_s\": %llu.%03llu, \"wall_s\": %llu.%03llu, \"cpu_s\": %llu.%03llu, "
                 "\"rss_mib\": %ld, \"trace_hash\": \"%016llx\", \"metrics\": {\"jobs\": %u, \"datagrams\": %llu, "
                 "\"lost\": %llu, \"elections\": %llu, \"restarts\": %llu, \"workers\": %llu, \"reads\": %llu, "
                 "\"reads_refused\": %llu}",
                 (unsigned long long)sim->events, (unsigned long long)(ms / 1000), (unsigned long long)(ms % 1000),
                 (unsigned long long)(wall_ms / 1000), (unsigned long long)(wall_ms % 1000),
                 (unsigned long long)(cpu_ms / 1000), (unsigned long long)(cpu_ms % 1000), used.ru_maxrss / 1024,
                 (unsigned long long)sim->hash, sim->job_count, (unsigned long long)sim->datagrams,
                 (unsigned long long)sim->lost, (unsigned long long)sim->elections, (unsigned long long)sim->restarts,
                 (unsigned long long)sim->runs, (unsigned long long)sim->reads, (unsigned long long)sim->reads_refused);
    if (!ok) {
        (void)printf(", \"replay\": ");
        again[strcspn(again, "\n")] = '\0';
        print_quoted(strncmp(again, "again: ", 7) == 0 ? again + 7 : again);
    }
    (void)printf("}\n");
}

static struct outcome run(const struct arguments *a, const struct sim_script *script, bool trace, bool quiet)
{
    struct sim *sim = sim_create(script, trace);
    uint64_t wall_ms = clock_ms(CLOCK_MONOTONIC), cpu_ms = clock_ms(CLOCK_PROCESS_CPUTIME_ID);
    struct outcome outcome = { .ok = sim_run(sim) };

    outcome.hash = sim->hash;
    if (a->json && !quiet)
        print_json(sim, outcome.ok, clock_ms(CLOCK_MONOTONIC) - wall_ms, clock_ms(CLOCK_PROCESS_CPUTIME_ID) - cpu_ms);
    else if (!quiet || !outcome.ok)
        print_text(sim, outcome.ok);
    if (!outcome.ok && !a->json)
        (void)printf("FAIL %s\n", sim->failure);
    sim_destroy(sim);
    return outcome;
}

static void draw(const struct arguments *a, struct sim_script *script, uint64_t seed)
{
    if (a->old_swarm)
        sim_script_random(script, seed);
    if (a->scenario != NULL)
        sim_script_swarm(script, seed, a->scenario, &a->more);
    script->options.seed = seed;
    if (a->scenario == NULL && a->more.hosts != 0)
        script->options.hosts = a->more.hosts;
}

static void say_again(const struct arguments *a, uint64_t seed)
{
    int used = snprintf(again, sizeof(again), "again: shoal sim %s --seed %llu", a->file, (unsigned long long)seed);

    if (a->more.hosts != 0)
        used += snprintf(again + used, sizeof(again) - (size_t)used, " --hosts %u", a->more.hosts);
    if (a->more.span_ns != 0)
        used +=
            snprintf(again + used, sizeof(again) - (size_t)used, " --for %u", (unsigned)(a->more.span_ns / SHOAL_S));
    if (a->off != NULL)
        used += snprintf(again + used, sizeof(again) - (size_t)used, " --off %.200s", a->off);
    (void)snprintf(again + used, sizeof(again) - (size_t)used, " --trace\n");
}

static bool run_seed(const struct arguments *a, struct sim_script *script, uint64_t seed)
{
    struct outcome first, second;

    draw(a, script, seed);
    say_again(a, seed);
    first = run(a, script, a->trace, false);
    if (first.ok && a->twice) {
        second = run(a, script, false, true);
        if (second.hash != first.hash) {
            (void)printf("FAIL seed %llu gave trace %016llx, then %016llx\n", (unsigned long long)seed,
                         (unsigned long long)first.hash, (unsigned long long)second.hash);
            first.ok = false;
        }
    }
    if (!first.ok && !a->json)
        (void)printf("%s", again);
    (void)fflush(stdout);
    return first.ok;
}

/* ---- the verbs ---- */

static void list(void)
{
    (void)printf("Scenarios:\n");
    for (size_t i = 0; sim_scenario_at(i) != NULL; i++)
        (void)printf("  %-12s %s\n", sim_scenario_at(i)->name, sim_scenario_at(i)->what);
    (void)printf("  %-12s %s\n", "random", "an older swarm, with fewer kinds of faults");
    (void)printf("Kinds, for --off:");
    for (unsigned kind = 0; sim_swarm_kind_name(kind) != NULL; kind++)
        (void)printf(" %s", sim_swarm_kind_name(kind));
    (void)printf("\n");
}

static int shrink(const struct arguments *a, struct sim_script *script)
{
    char cause[256];
    size_t before;

    draw(a, script, a->seed);
    before = script->count;
    if (!sim_shrink(script, cause, sizeof(cause))) {
        (void)fprintf(stderr, "seed %llu does not fail\n", (unsigned long long)a->seed);
        return SHOAL_EXIT_OK;
    }
    (void)printf("# %zu of %zu lines of %s --seed %llu still fail:%s\n", script->count, before, a->file,
                 (unsigned long long)a->seed, cause);
    sim_script_write(stdout, script);
    return SHOAL_EXIT_FAILED;
}

/* False: said why. */
static bool read_file(const struct arguments *a, struct sim_script *script)
{
    char error[400];

    if (!sim_script_read(script, a->file, error, sizeof(error)))
        return wrong(error, "");
    if (a->replay && script->version == 0) {
        (void)snprintf(error, sizeof(error), "%.300s:1: no `version` line: this is no file for --replay", a->file);
        return wrong(error, "");
    }
    return true;
}

static int run_all(struct arguments *a, struct sim_script *script)
{
    bool ok = true;

    if (!a->seeded)
        a->seed = script->options.seed == 0 ? 1 : script->options.seed;
    if (a->trace_file != NULL && freopen(a->trace_file, "we", stdout) == NULL) {
        (void)wrong(a->trace_file, " cannot be written");
        return SHOAL_EXIT_USAGE;
    }
    /* Cores take large tables of which most stays zero: always fresh from the kernel, which gives only what is written. */
    (void)mallopt(M_MMAP_THRESHOLD, LARGE_BYTES);
    if (a->shrink)
        return shrink(a, script);
    (void)signal(SIGABRT, on_abort);
    for (uint64_t i = 0; i < a->count; i++)
        ok = run_seed(a, script, a->seed + i) && ok;
    return ok ? SHOAL_EXIT_OK : SHOAL_EXIT_FAILED;
}

int shoal_sim_main(int argc, char **argv)
{
    struct arguments arguments = { .count = 1 };
    struct sim_script *script;
    int exit_code = SHOAL_EXIT_USAGE;

    if (!parse(&arguments, argc, argv)) {
        (void)fputs(usage, stderr);
        return SHOAL_EXIT_USAGE;
    }
    if (arguments.help)
        return fputs(usage, stdout) >= 0 && fflush(stdout) == 0 ? SHOAL_EXIT_OK : SHOAL_EXIT_FAILED;
    if (arguments.list) {
        list();
        return SHOAL_EXIT_OK;
    }
    script = sim_alloc(sizeof(*script));
    if (arguments.old_swarm || arguments.scenario != NULL || read_file(&arguments, script))
        exit_code = run_all(&arguments, script);
    sim_script_deinit(script);
    free(script);
    return exit_code;
}
