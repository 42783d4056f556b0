/* A script as text: what sim_script_read() reads again, to the same run. The first line names the version of these
 * words; a file of another version is refused, since the same words might mean another mesh. */
#include "sim.h"

#include "shoal/banned.h"

static void host_text(uint32_t host, char text[16])
{
    static const char *const roles[] = { "leader", "follower", "driver", "all", "any", "struck" };

    if (host >= SIM_LEADER && host - SIM_LEADER < sizeof(roles) / sizeof(roles[0]))
        (void)snprintf(text, 16, "%s", roles[host - SIM_LEADER]);
    else
        (void)snprintf(text, 16, "%u", host + 1);
}

static void put_submit(FILE *to, const struct sim_command *c, const char *host)
{
    if (c->service) {
        (void)fprintf(to, "service from %s kernels %u..%u batch %llu", host, c->workers_min, c->workers_max,
                      (unsigned long long)c->number);
        return;
    }
    if (c->tasks > 0) {
        (void)fprintf(to, "array from %s tasks %u steps %llu", host, c->tasks, (unsigned long long)c->number);
        return;
    }
    (void)fprintf(to, "%s from %s workers ", c->script ? "script" : "submit", host);
    if (c->script)
        (void)fprintf(to, "%u", c->workers_max);
    else
        (void)fprintf(to, "%u..%u", c->workers_min, c->workers_max);
    (void)fprintf(to, " steps %llu", (unsigned long long)c->number);
    if (c->times > 1)
        (void)fprintf(to, " times %u", c->times);
}

static void put_partition(FILE *to, const struct sim_command *c)
{
    unsigned parts = 0;

    (void)fputs("partition", to);
    for (size_t i = 0; i < c->part_count; i++)
        parts = c->part[i] > parts ? c->part[i] : parts;
    for (unsigned part = 1; part <= parts; part++) {
        (void)fputs(part == 1 ? "" : " |", to);
        for (size_t i = 0; i < c->part_count; i++)
            if (c->part[i] == part)
                (void)fprintf(to, " %zu", i + 1);
    }
    (void)fputs(c->one_way ? " one-way" : "", to);
}

/* The verbs that name a host, and perhaps a time. */
static const struct {
    enum sim_verb verb;
    const char *words;
    bool timed;
} host_verbs[] = {
    { SIM_KILL, "kill", false },
    { SIM_KILL_WORKER, "kill worker", false },
    { SIM_STOP_WORKER, "stop worker", false },
    { SIM_CRASH, "crash", false },
    { SIM_DESTROY, "destroy", false },
    { SIM_LOSE, "lose", false },
    { SIM_START, "start", false },
    { SIM_USER, "user", false },
    { SIM_REMOVE, "remove", false },
    { SIM_DRAIN, "drain", false },
    { SIM_UNDRAIN, "undrain", false },
    { SIM_RECOVER_MESH, "recover-mesh", false },
    { SIM_PAUSE, "pause", true },
    { SIM_STALL, "stall", true },
    { SIM_FULL_DISK, "full", true },
};

static bool put_host_verb(FILE *to, const struct sim_command *c, const char *host)
{
    for (size_t i = 0; i < sizeof(host_verbs) / sizeof(host_verbs[0]); i++) {
        if (host_verbs[i].verb != c->verb)
            continue;
        (void)fprintf(to, "%s %s", host_verbs[i].words, host);
        if (host_verbs[i].timed)
            (void)fprintf(to, " %lluns", (unsigned long long)c->number);
        return true;
    }
    return false;
}

static void put_expectation(FILE *to, const struct sim_command *c)
{
    if (c->verb == SIM_EXPECT_FINISHED)
        (void)fputs("expect finished", to);
    else if (c->verb == SIM_EXPECT_ANSWERED)
        (void)fputs("expect answered", to);
    else if (c->verb == SIM_EXPECT_ARCHIVED)
        (void)fprintf(to, "expect archived %u", c->job + 1);
    else if (c->verb == SIM_EXPECT_GAP)
        (void)fprintf(to, "expect gap %lluns", (unsigned long long)c->number);
    else if (c->verb == SIM_EXPECT_STATE)
        (void)fprintf(to, "expect job %u %s", c->job + 1, shoal_job_state_name((enum shoal_job_state)c->state));
    else if (c->verb == SIM_EXPECT_ENGINES || c->verb == SIM_EXPECT_SHRINKS)
        (void)fprintf(to, "expect %llu %s", (unsigned long long)c->number,
                      c->verb == SIM_EXPECT_ENGINES ? "engines" : "shrinks");
    else if (c->verb == SIM_RECOVER)
        (void)fprintf(to, "recover %u%s", c->job + 1, c->number != 0 ? " refused" : "");
    else
        (void)fprintf(to, "show %u %u", c->job + 1, c->a + 1);
}

static void put_command(FILE *to, const struct sim_command *c)
{
    char a[16], b[16];

    host_text(c->a, a);
    host_text(c->b, b);
    (void)fprintf(to, "at %lluns ", (unsigned long long)c->at_ns);
    if (put_host_verb(to, c, a))
        ;
    else if (c->verb == SIM_SUBMIT)
        put_submit(to, c, a);
    else if (c->verb == SIM_BURST)
        (void)fprintf(to, "burst %s %u %llu", a, c->job + 1, (unsigned long long)c->number);
    else if (c->verb == SIM_PARTITION)
        put_partition(to, c);
    else if (c->verb == SIM_HEAL)
        (void)fputs("heal", to);
    else if (c->verb == SIM_SLOW_DISK)
        (void)fprintf(to, "slow %s %u %lluns", a, c->times, (unsigned long long)c->number);
    else if (c->verb == SIM_CUT || c->verb == SIM_CUT_LINKS)
        (void)fprintf(to, "cut %s%s %s%s", c->verb == SIM_CUT ? "" : "links ", a, b, c->one_way ? " one-way" : "");
    else if (c->verb == SIM_CUT_DATA)
        (void)fprintf(to, "cut data %s %s", a, b);
    else if (c->verb == SIM_CLOG)
        (void)fprintf(to, "clog %s %s %lluns", a, b, (unsigned long long)c->number);
    else if (c->verb == SIM_WALL)
        (void)fprintf(to, "wall %s %s%lluns", a, c->one_way ? "-" : "", (unsigned long long)c->number);
    else if (c->verb == SIM_LOSS)
        (void)fprintf(to, "loss %llum", (unsigned long long)c->number);
    else if (c->verb == SIM_STOP || c->verb == SIM_DELETE)
        (void)fprintf(to, "%s %u", c->verb == SIM_STOP ? "stop" : "delete", c->job + 1);
    else
        put_expectation(to, c);
    (void)fputc('\n', to);
}

void sim_script_write(FILE *to, const struct sim_script *script)
{
    const struct sim_options *o = &script->options;
    uint64_t next_ns = 0;

    (void)fprintf(to, "version %u\nhosts %u\nslots %u\nseed %llu\nlatency %lluns\njitter %lluns\nflush %lluns\n",
                  SIM_VERSION, o->hosts, o->slots, (unsigned long long)o->seed, (unsigned long long)o->latency_ns,
                  (unsigned long long)o->jitter_ns, (unsigned long long)o->flush_ns);
    (void)fprintf(to, "loss %um\nduplicate %um\nslow %um\ndrift %u\n", o->loss, o->duplicate, o->slow, o->drift_ppm);
    if (o->wall_ns > 0)
        (void)fprintf(to, "wall %lluns\n", (unsigned long long)o->wall_ns);
    if (o->archive_ns > 0)
        (void)fprintf(to, "archive %lluns\n", (unsigned long long)o->archive_ns);
    if (o->loaded_max > 0)
        (void)fprintf(to, "loaded %u\n", o->loaded_max);
    if (o->readers > 0)
        (void)fprintf(to, "readers %u %lluns\n", o->readers, (unsigned long long)o->think_ns);
    if (o->probe)
        (void)fputs("probe\n", to);
    if (o->torn)
        (void)fputs("torn\n", to);
    if (o->reorder_disk)
        (void)fputs("reorder-disk\n", to);
    /* In the order of their times; those of one time as they were drawn. */
    for (uint64_t at_ns = 0; next_ns != UINT64_MAX; at_ns = next_ns) {
        next_ns = UINT64_MAX;
        for (size_t i = 0; i < script->count; i++) {
            if (script->commands[i].at_ns == at_ns)
                put_command(to, &script->commands[i]);
            else if (script->commands[i].at_ns > at_ns && script->commands[i].at_ns < next_ns)
                next_ns = script->commands[i].at_ns;
        }
    }
}
