/* A failing run made small: commands are taken out, half of them, a quarter, ..., one by one, as long as what is left
 * still fails in the same way. Each try is a process of its own, since a broken invariant of a core aborts it. */
#include "sim.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/banned.h"

#define TRIES_MAX 2000u
#define TRY_CPU_S 60u

/* The promise that failed, without the numbers: the same cause has other times and hosts in a smaller run. */
static void cause_of(const char *failure, char *cause, size_t cap)
{
    const char *text = strstr(failure, ": ");
    size_t len = 0;

    for (text = text == NULL ? failure : text + 2; *text != '\0' && len + 1 < cap; text++)
        if (strchr("0123456789abcdef", *text) == NULL)
            cause[len++] = *text;
    cause[len] = '\0';
}

static void try_here(const struct sim_script *script, int to)
{
    struct rlimit limit = { .rlim_cur = TRY_CPU_S, .rlim_max = TRY_CPU_S };
    struct sim *sim;

    (void)setrlimit(RLIMIT_CPU, &limit);
    (void)freopen("/dev/null", "w", stderr);
    sim = sim_create(script, false);
    if (!sim_run(sim))
        (void)!write(to, sim->failure, strlen(sim->failure));
    _exit(0);
}

/* True: it failed; `cause` says how. */
static bool fails(const struct sim_script *script, char *cause, size_t cap)
{
    char failure[1024];
    int pipes[2], status = 0;
    ssize_t len = 0;
    pid_t child;

    (void)fflush(stdout);
    if (pipe(pipes) != 0 || (child = fork()) < 0)
        return false;
    if (child == 0)
        try_here(script, pipes[1]);
    (void)close(pipes[1]);
    len = read(pipes[0], failure, sizeof(failure) - 1);
    (void)close(pipes[0]);
    (void)waitpid(child, &status, 0);
    failure[len < 0 ? 0 : len] = '\0';
    if (WIFSIGNALED(status))
        (void)snprintf(cause, cap, "signal %d", WTERMSIG(status));
    else
        cause_of(failure, cause, cap);
    return WIFSIGNALED(status) || len > 0;
}

/* Commands of a script: those on trial are left out, and come back if the rest does not fail. */
enum { OUT, KEPT, ON_TRIAL };

static bool try_without(const struct sim_script *script, struct sim_script *smaller, const uint8_t *state,
                        const char *cause)
{
    char found[256];

    smaller->count = 0;
    for (size_t i = 0; i < script->count; i++)
        if (state[i] == KEPT)
            smaller->commands[smaller->count++] = script->commands[i];
    return fails(smaller, found, sizeof(found)) && strcmp(found, cause) == 0;
}

/* Try without the commands from `from` on, `step` of them; false: none of them was there. */
static bool narrow(const struct sim_script *script, struct sim_script *smaller, uint8_t *state, size_t from,
                   size_t step, const char *cause)
{
    size_t end = from + step < script->count ? from + step : script->count;
    bool some = false, still;

    for (size_t i = from; i < end; i++) {
        some = some || state[i] == KEPT;
        state[i] = state[i] == KEPT ? ON_TRIAL : OUT;
    }
    still = some && try_without(script, smaller, state, cause);
    for (size_t i = from; i < end; i++)
        if (state[i] == ON_TRIAL)
            state[i] = still ? OUT : KEPT;
    return some;
}

bool sim_shrink(struct sim_script *script, char *cause, size_t cap)
{
    struct sim_script smaller = *script;
    uint8_t *state;
    unsigned tries = 0;

    if (!fails(script, cause, cap))
        return false;
    state = sim_alloc(script->count + 1);
    smaller.commands = sim_alloc((script->count + 1) * sizeof(*smaller.commands));
    memset(state, KEPT, script->count);
    for (size_t step = (script->count + 1) / 2; step > 0 && tries < TRIES_MAX; step /= 2)
        for (size_t from = 0; from < script->count && tries < TRIES_MAX; from += step)
            tries += narrow(script, &smaller, state, from, step, cause);
    for (size_t i = 0, n = 0; i < script->count; i++) {
        if (state[i] == KEPT)
            smaller.commands[n++] = script->commands[i];
        else
            free(script->commands[i].part);
        smaller.count = n;
    }
    free(script->commands);
    free(state);
    script->commands = smaller.commands;
    script->count = smaller.count;
    return true;
}
