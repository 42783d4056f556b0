/* The swarm: a mesh, its work and its faults, all drawn from one seed.
 *
 *     seed --> which kinds are on (each with chance 1/2) --> how strong each is --> when: a storm, then calm
 *
 * S1. A kind that is taken out (`--off`) is drawn all the same and then left out, so that the rest of a seed stays what
 *     it was: that is how a failure is narrowed down.
 * S2. Strengths and times are spread over orders of magnitude, not evenly: most bugs want a few faults close together or
 *     one that lasts, and few want the mean.
 * S3. What is lost for good leaves every group a majority, so that each run can be won: see sim_host_destroy_fits().
 * S4. Now and then a run spans more than a quarter of an hour, with few faults: what ages shows only then.
 * Source: reference/control-plane 4.4; Groce and others, Swarm Testing, ISSTA 2012. */
#include "sim.h"

#include "shoal/banned.h"

static const char *const kind_names[SIM_SWARM_KINDS] = {
    [SIM_SWARM_KILL] = "kill",
    [SIM_SWARM_CRASH] = "crash",
    [SIM_SWARM_POWER] = "power",
    [SIM_SWARM_PAUSE] = "pause",
    [SIM_SWARM_STALL] = "stall",
    [SIM_SWARM_SLOW_DISK] = "slow-disk",
    [SIM_SWARM_FULL] = "full-disk",
    [SIM_SWARM_CUT] = "cut",
    [SIM_SWARM_PARTITION] = "partition",
    [SIM_SWARM_LINKS] = "links",
    [SIM_SWARM_CLOG] = "clog",
    [SIM_SWARM_LOSS] = "loss",
    [SIM_SWARM_REPEAT] = "repeat",
    [SIM_SWARM_REORDER] = "reorder",
    [SIM_SWARM_WORKERS] = "workers",
    [SIM_SWARM_DATA] = "data",
    [SIM_SWARM_DESTROY] = "destroy",
    [SIM_SWARM_JOIN] = "join",
    [SIM_SWARM_STOP] = "stop",
    [SIM_SWARM_DELETE] = "delete",
    [SIM_SWARM_USER] = "user",
    [SIM_SWARM_READ] = "read",
    [SIM_SWARM_DRIFT] = "drift",
    [SIM_SWARM_ARCHIVE] = "archive",
    [SIM_SWARM_PARK] = "park",
    [SIM_SWARM_ARRAY] = "array",
    [SIM_SWARM_LONG] = "long",
    [SIM_SWARM_PROBE] = "probe",
    [SIM_SWARM_WALL] = "wall",
    [SIM_SWARM_TORN] = "torn",
    [SIM_SWARM_REORDER_DISK] = "reorder-disk",
    [SIM_SWARM_SERVICE] = "service",
    [SIM_SWARM_DRAIN] = "drain",
};

const char *sim_swarm_kind_name(unsigned kind) { return kind < SIM_SWARM_KINDS ? kind_names[kind] : NULL; }

struct swarm {
    struct sim_script *script;
    struct shoal_rand rand;
    uint64_t on;      /* kinds that were drawn */
    uint64_t left_in; /* of them, those that nobody took out */
    uint64_t span_ns;
    uint64_t storm_ns; /* faults begin here, and in the storm_span_ns behind it */
    uint64_t storm_span_ns;
    uint32_t jobs;
    struct sim_command scratch; /* for what is left out */
};

static uint64_t below(struct swarm *s, uint64_t bound) { return shoal_rand_below(&s->rand, bound); }

/* Between `low` and about `high`, each doubling as likely as another. */
static uint64_t spread(struct swarm *s, uint64_t low, uint64_t high)
{
    unsigned doublings = 0;
    uint64_t base;

    while (low << (doublings + 1) <= high)
        doublings++;
    base = low << below(s, doublings + 1);
    return base + below(s, base);
}

static uint32_t any_host(struct swarm *s) { return (uint32_t)below(s, s->script->options.hosts); }

/* A host, or a role: who leads, follows or drives matters more often than chance would have it. */
static uint32_t any_target(struct swarm *s)
{
    uint64_t role = below(s, 6);

    return role < 3 ? SIM_LEADER + (uint32_t)role : any_host(s);
}

static uint64_t when(struct swarm *s) { return s->storm_ns + below(s, s->storm_span_ns + 1); }

/* A command of the kind, or scratch that nobody reads where the kind is off (S1). */
static struct sim_command *add(struct swarm *s, unsigned kind, enum sim_verb verb, uint64_t at_ns)
{
    if ((s->left_in >> kind & 1) != 0)
        return sim_script_add(s->script, verb, at_ns);
    free(s->scratch.part);
    s->scratch = (struct sim_command){ .verb = verb };
    return &s->scratch;
}

static bool is_on(const struct swarm *s, unsigned kind) { return (s->on >> kind & 1) != 0; }

/* How often a kind strikes: often once, seldom many times. */
static uint64_t strikes(struct swarm *s, unsigned kind, uint64_t most)
{
    uint64_t n = spread(s, 1, most);

    return is_on(s, kind) ? n : 0;
}

/* ---- what is asked of the mesh ---- */

static void elastic_or_script(struct swarm *s, uint64_t at_ns)
{
    struct sim_command *c = sim_script_add(s->script, SIM_SUBMIT, at_ns);
    uint32_t slots = s->script->options.hosts * s->script->options.slots;

    s->jobs++;
    c->script = below(s, 3) == 0;
    c->a = any_host(s);
    c->workers_min = 1;
    c->workers_max = 1 + (uint32_t)below(s, SIM_VIRTUAL_WORKERS);
    if (c->script) /* a gang must fit the mesh */
        c->workers_min = c->workers_max = 1 + (uint32_t)below(s, slots < 3 ? slots : 3);
    c->number = spread(s, 20, c->script ? 500 : 4000);
}

static void work(struct swarm *s)
{
    uint64_t jobs = spread(s, 1, 12);

    for (uint64_t i = 0; i < jobs; i++)
        elastic_or_script(s, below(s, s->span_ns * 3 / 4));
    for (uint64_t i = strikes(s, SIM_SWARM_ARRAY, 2); i > 0; i--) {
        struct sim_command *c = add(s, SIM_SWARM_ARRAY, SIM_SUBMIT, below(s, s->span_ns / 2));

        c->script = true;
        c->a = any_host(s);
        c->workers_min = c->workers_max = 1;
        c->tasks = (uint32_t)spread(s, 2, 60);
        c->number = 1 + below(s, 100);
    }
    for (uint64_t i = strikes(s, SIM_SWARM_STOP, 4); i > 0; i--) {
        uint32_t whom = (uint32_t)below(s, s->jobs);

        add(s, SIM_SWARM_STOP, SIM_STOP, below(s, s->span_ns))->job = whom;
    }
    for (uint64_t i = strikes(s, SIM_SWARM_DELETE, 6); i > 0; i--) {
        uint32_t whom = (uint32_t)below(s, s->jobs);

        add(s, SIM_SWARM_DELETE, SIM_DELETE, below(s, s->span_ns))->job = whom;
    }
    for (uint64_t i = strikes(s, SIM_SWARM_USER, 8); i > 0; i--) {
        uint32_t whom = any_host(s);

        add(s, SIM_SWARM_USER, SIM_USER, below(s, s->span_ns))->a = whom;
    }
}

/* Drawn by chance of their own, so that a seed without them stays what it was. */
static void services(struct swarm *s)
{
    struct swarm own = { .script = s->script, .on = s->on, .left_in = s->left_in, .span_ns = s->span_ns };
    uint64_t count;

    shoal_rand_init(&own.rand, s->script->options.seed ^ 0x73657276696365);
    count = strikes(&own, SIM_SWARM_SERVICE, 3);
    for (uint64_t i = 0; i < count; i++) {
        struct sim_command *c = add(&own, SIM_SWARM_SERVICE, SIM_SUBMIT, below(&own, own.span_ns / 4 + 1));

        c->script = c->service = true;
        c->tasks = SHOAL_SERVICE_REPLICAS_MAX;
        c->a = any_host(&own);
        c->workers_min = (uint32_t)below(&own, 3);
        c->workers_max = c->workers_min + 1 + (uint32_t)below(&own, 5);
        c->number = spread(&own, 1, 8);
    }
    for (uint64_t i = count == 0 ? 0 : spread(&own, 2, 24); i > 0; i--) {
        struct sim_command *c = add(&own, SIM_SWARM_SERVICE, SIM_BURST, below(&own, own.span_ns));

        c->a = any_host(&own);
        c->job = (uint32_t)below(&own, count);
        c->number = spread(&own, 1, 100);
    }
    free(own.scratch.part);
}

/* ---- what goes wrong ---- */

/* Agents and hosts that end, and are started again. */
static void ends(struct swarm *s)
{
    for (uint64_t i = strikes(s, SIM_SWARM_KILL, 12); i > 0; i--) {
        uint64_t at_ns = when(s), down_ns = spread(s, SHOAL_MS, 16 * SHOAL_S);

        add(s, SIM_SWARM_KILL, SIM_KILL, at_ns)->a = any_target(s);
        add(s, SIM_SWARM_KILL, SIM_START, at_ns + down_ns)->a = SIM_ALL;
    }
    for (uint64_t i = strikes(s, SIM_SWARM_CRASH, 6); i > 0; i--) {
        uint64_t at_ns = when(s), down_ns = spread(s, SHOAL_MS, 32 * SHOAL_S);

        add(s, SIM_SWARM_CRASH, SIM_CRASH, at_ns)->a = any_target(s);
        add(s, SIM_SWARM_CRASH, SIM_START, at_ns + down_ns)->a = SIM_ALL;
    }
    for (uint64_t i = strikes(s, SIM_SWARM_POWER, 2); i > 0; i--) {
        uint64_t at_ns = when(s), down_ns = spread(s, SHOAL_MS, 8 * SHOAL_S);

        add(s, SIM_SWARM_POWER, SIM_CRASH, at_ns)->a = SIM_ALL;
        for (uint32_t host = 0; host < s->script->options.hosts; host++) /* not all at one moment */
            add(s, SIM_SWARM_POWER, SIM_START, at_ns + down_ns + below(s, 3 * SHOAL_S))->a = host;
    }
    for (uint64_t i = strikes(s, SIM_SWARM_DESTROY, 2); i > 0; i--) {
        uint32_t whom = any_target(s);

        add(s, SIM_SWARM_DESTROY, SIM_LOSE, when(s))->a = whom;
    }
    for (uint64_t i = strikes(s, SIM_SWARM_JOIN, 4), host = s->script->options.hosts; i > 0; i--)
        add(s, SIM_SWARM_JOIN, SIM_START, below(s, s->span_ns))->a = (uint32_t)host++;
}

/* Hosts that an operator empties, and gives back: one for a moment, or most for long. By chance of their own, as services. */
static void drains(struct swarm *s)
{
    struct swarm own = { .script = s->script, .on = s->on, .left_in = s->left_in, .span_ns = s->span_ns };

    shoal_rand_init(&own.rand, s->script->options.seed ^ 0x647261696e);
    for (uint64_t i = strikes(&own, SIM_SWARM_DRAIN, 8); i > 0; i--) {
        uint64_t at_ns = below(&own, own.span_ns), away_ns = spread(&own, 10 * SHOAL_MS, 40 * SHOAL_S);
        uint32_t whom = any_host(&own);

        add(&own, SIM_SWARM_DRAIN, SIM_DRAIN, at_ns)->a = whom;
        if (at_ns + away_ns < own.span_ns)
            add(&own, SIM_SWARM_DRAIN, SIM_UNDRAIN, at_ns + away_ns)->a = whom;
    }
    add(&own, SIM_SWARM_DRAIN, SIM_UNDRAIN, own.span_ns)->a = SIM_ALL;
    free(own.scratch.part);
}

/* Faults by which something stands still or goes slowly. */
static void standstills(struct swarm *s)
{
    struct sim_command *c;

    for (uint64_t i = strikes(s, SIM_SWARM_PAUSE, 8); i > 0; i--) {
        c = add(s, SIM_SWARM_PAUSE, SIM_PAUSE, when(s));
        c->a = any_target(s);
        c->number = spread(s, 10 * SHOAL_MS, 40 * SHOAL_S);
    }
    for (uint64_t i = strikes(s, SIM_SWARM_STALL, 6); i > 0; i--) {
        c = add(s, SIM_SWARM_STALL, SIM_STALL, when(s));
        c->a = any_target(s);
        c->number = spread(s, 10 * SHOAL_MS, 40 * SHOAL_S);
    }
    for (uint64_t i = strikes(s, SIM_SWARM_SLOW_DISK, 4); i > 0; i--) {
        c = add(s, SIM_SWARM_SLOW_DISK, SIM_SLOW_DISK, when(s));
        c->a = any_target(s);
        c->times = (uint32_t)spread(s, 2, 100);
        c->number = spread(s, SHOAL_S, 30 * SHOAL_S);
    }
    for (uint64_t i = strikes(s, SIM_SWARM_WALL, 4); i > 0; i--) {
        c = add(s, SIM_SWARM_WALL, SIM_WALL, when(s));
        c->a = any_host(s);
        c->number = spread(s, SHOAL_MS, 1800 * SHOAL_S);
        c->one_way = below(s, 2) == 0; /* back */
    }
    for (uint64_t i = strikes(s, SIM_SWARM_FULL, 2); i > 0; i--) {
        uint64_t at_ns = when(s), full_ns = spread(s, 100 * SHOAL_MS, 10 * SHOAL_S);

        c = add(s, SIM_SWARM_FULL, SIM_FULL_DISK, at_ns);
        c->a = any_target(s);
        c->number = full_ns;
        add(s, SIM_SWARM_FULL, SIM_START, at_ns + full_ns / 2)->a = SIM_ALL;
        add(s, SIM_SWARM_FULL, SIM_START, at_ns + full_ns + SHOAL_MS)->a = SIM_ALL;
    }
}

static void split(struct swarm *s, struct sim_command *c)
{
    uint64_t shape = below(s, 3);
    uint32_t lone = any_host(s);

    c->one_way = below(s, 4) == 0;
    c->part = sim_alloc(s->script->options.hosts * sizeof(*c->part));
    c->part_count = s->script->options.hosts;
    for (uint32_t i = 0; i < s->script->options.hosts; i++) {
        uint64_t side = below(s, 2);

        c->part[i] = (uint16_t)(shape == 0 ? 1 + side : 1 + (i == lone)); /* halves, or one alone */
        if (shape == 2 && i == (lone + 1) % s->script->options.hosts)
            c->part[i] = 0; /* a bridge: it reaches both sides */
    }
}

/* The places where nothing passes, and how long. */
static void cuts(struct swarm *s)
{
    static const enum sim_verb verbs[] = { SIM_CUT, SIM_CUT_LINKS };
    static const unsigned kinds[] = { SIM_SWARM_CUT, SIM_SWARM_LINKS };
    struct sim_command *c;

    for (unsigned k = 0; k < 2; k++)
        for (uint64_t i = strikes(s, kinds[k], 8); i > 0; i--) {
            uint64_t at_ns = when(s);

            c = add(s, kinds[k], verbs[k], at_ns);
            c->a = any_target(s);
            c->b = below(s, 4) == 0 ? SIM_ALL : any_host(s);
            c->one_way = below(s, 3) == 0;
            at_ns += spread(s, 50 * SHOAL_MS, 60 * SHOAL_S);
            (void)add(s, kinds[k], SIM_HEAL, at_ns);
        }
    for (uint64_t i = strikes(s, SIM_SWARM_PARTITION, 4); i > 0; i--) {
        uint64_t at_ns = when(s);

        c = add(s, SIM_SWARM_PARTITION, SIM_PARTITION, at_ns);
        split(s, c);
        at_ns += spread(s, 100 * SHOAL_MS, is_on(s, SIM_SWARM_LONG) ? 1000 * SHOAL_S : 60 * SHOAL_S);
        (void)add(s, SIM_SWARM_PARTITION, SIM_HEAL, at_ns);
    }
    for (uint64_t i = strikes(s, SIM_SWARM_CLOG, 8); i > 0; i--) {
        c = add(s, SIM_SWARM_CLOG, SIM_CLOG, when(s));
        c->a = any_target(s);
        c->b = any_host(s);
        c->number = spread(s, 10 * SHOAL_MS, 16 * SHOAL_S);
    }
}

static void workers(struct swarm *s)
{
    for (uint64_t i = strikes(s, SIM_SWARM_WORKERS, 8); i > 0; i--) {
        uint64_t at_ns = when(s), again = below(s, 6);

        add(s, SIM_SWARM_WORKERS, below(s, 4) == 0 ? SIM_STOP_WORKER : SIM_KILL_WORKER, at_ns)->a = SIM_ANY;
        at_ns += below(s, 30 * SHOAL_MS);
        if (again < 2) {
            add(s, SIM_SWARM_WORKERS, SIM_KILL_WORKER, at_ns)->a = SIM_STRUCK;
        } else if (again == 2) {
            add(s, SIM_SWARM_WORKERS, SIM_KILL, at_ns)->a = SIM_STRUCK;
            add(s, SIM_SWARM_WORKERS, SIM_START, at_ns + below(s, 3 * SHOAL_S))->a = SIM_ALL;
        }
    }
    for (uint64_t i = strikes(s, SIM_SWARM_DATA, 4); i > 0; i--) {
        struct sim_command *c = add(s, SIM_SWARM_DATA, SIM_CUT_DATA, when(s));

        c->a = SIM_ANY;
        c->b = any_host(s);
    }
}

/* ---- the mesh ---- */

static uint32_t share(struct swarm *s, unsigned kind, uint64_t most)
{
    uint64_t per_mille = spread(s, 4, most);

    return is_on(s, kind) && (s->left_in >> kind & 1) != 0 ? (uint32_t)per_mille : 0;
}

static void mesh(struct swarm *s)
{
    struct sim_options *o = &s->script->options;
    uint64_t archive_ns = spread(s, SHOAL_S, 20 * SHOAL_S);
    uint64_t think_ns = spread(s, 50 * SHOAL_MS, 4 * SHOAL_S);
    uint32_t readers = 1 + (uint32_t)below(s, 4);
    uint64_t drift = spread(s, 10, 4000);
    uint64_t wall_ns = spread(s, 10 * SHOAL_MS, 1000 * SHOAL_S);

    o->hosts = (uint32_t)spread(s, 1, 8);
    if (o->hosts > 9)
        o->hosts = 9;
    o->slots = 1 + (uint32_t)below(s, 4);
    o->latency_ns = spread(s, 50000, 40 * SHOAL_MS);
    o->jitter_ns = spread(s, 50000, 20 * SHOAL_MS);
    o->flush_ns = spread(s, 100000, 30 * SHOAL_MS);
    o->loss = share(s, SIM_SWARM_LOSS, 250);
    o->duplicate = share(s, SIM_SWARM_REPEAT, 200);
    o->slow = share(s, SIM_SWARM_REORDER, 200);
    o->drift_ppm = (s->left_in >> SIM_SWARM_DRIFT & 1) != 0 ? (uint32_t)drift : 0;
    if ((s->left_in >> SIM_SWARM_ARCHIVE & 1) != 0)
        o->archive_ns = archive_ns;
    if ((s->left_in >> SIM_SWARM_PARK & 1) != 0)
        o->loaded_max = 1;
    if ((s->left_in >> SIM_SWARM_READ & 1) != 0) {
        o->readers = readers;
        o->think_ns = think_ns;
    }
    if ((s->left_in >> SIM_SWARM_WALL & 1) != 0)
        o->wall_ns = wall_ns;
    o->probe = (s->left_in >> SIM_SWARM_PROBE & 1) != 0;
    o->torn = (s->left_in >> SIM_SWARM_TORN & 1) != 0;
    o->reorder_disk = (s->left_in >> SIM_SWARM_REORDER_DISK & 1) != 0;
}

/* ---- scenarios: parts of the swarm, by name ---- */

#define BIT(kind) (1ull << (kind))
#define ALL_KINDS (UINT64_MAX >> (64 - SIM_SWARM_KINDS))
#define NET                                                                                                            \
    (BIT(SIM_SWARM_CUT) | BIT(SIM_SWARM_PARTITION) | BIT(SIM_SWARM_LINKS) | BIT(SIM_SWARM_CLOG) |                      \
     BIT(SIM_SWARM_LOSS) | BIT(SIM_SWARM_REPEAT) | BIT(SIM_SWARM_REORDER))
#define ENDS (BIT(SIM_SWARM_KILL) | BIT(SIM_SWARM_CRASH) | BIT(SIM_SWARM_POWER) | BIT(SIM_SWARM_DESTROY))
#define SLOWS (BIT(SIM_SWARM_PAUSE) | BIT(SIM_SWARM_STALL) | BIT(SIM_SWARM_SLOW_DISK) | BIT(SIM_SWARM_FULL))
#define ASKS (BIT(SIM_SWARM_STOP) | BIT(SIM_SWARM_DELETE) | BIT(SIM_SWARM_USER) | BIT(SIM_SWARM_READ))

static const struct sim_scenario scenarios[] = {
    { "swarm", "each seed draws which kinds of faults and work there are, and how strong", 0, 0, 0, 0 },
    { "smoke", "5 hosts, every kind of fault", BIT(SIM_SWARM_LONG), ALL_KINDS & ~BIT(SIM_SWARM_LONG), 5, 40 * SHOAL_S },
    { "idle", "steady gossip: no faults, hardly any work", ALL_KINDS, 0, 0, 60 * SHOAL_S },
    { "raft", "elections: agents and hosts end, the network fails, disks are slow",
      BIT(SIM_SWARM_WORKERS) | BIT(SIM_SWARM_DATA) | BIT(SIM_SWARM_ARRAY), NET, 5, 0 },
    { "leases", "workers and hosts that stand still: who holds a slot", BIT(SIM_SWARM_DESTROY) | BIT(SIM_SWARM_ARCHIVE),
      BIT(SIM_SWARM_PAUSE) | BIT(SIM_SWARM_WORKERS), 0, 0 },
    { "jobs", "much work, many questions, no faults", NET | ENDS | SLOWS | BIT(SIM_SWARM_WORKERS) | BIT(SIM_SWARM_DATA),
      ASKS | BIT(SIM_SWARM_ARRAY), 0, 0 },
    { "churn", "hosts come, go and are lost for good", SLOWS,
      BIT(SIM_SWARM_JOIN) | BIT(SIM_SWARM_DESTROY) | BIT(SIM_SWARM_KILL), 0, 120 * SHOAL_S },
    { "drains", "an operator empties hosts and gives them back, agents and hosts end", BIT(SIM_SWARM_DESTROY) | NET,
      BIT(SIM_SWARM_DRAIN) | BIT(SIM_SWARM_KILL) | BIT(SIM_SWARM_USER), 0, 120 * SHOAL_S },
    { "power", "power cuts, of single hosts and of all at once", BIT(SIM_SWARM_DESTROY),
      BIT(SIM_SWARM_POWER) | BIT(SIM_SWARM_CRASH) | BIT(SIM_SWARM_TORN) | BIT(SIM_SWARM_REORDER_DISK), 0, 0 },
    { "services", "services under bursts: replicas, agents and hosts end, hosts part",
      BIT(SIM_SWARM_LONG) | BIT(SIM_SWARM_ARRAY) | BIT(SIM_SWARM_STOP) | BIT(SIM_SWARM_DELETE),
      BIT(SIM_SWARM_SERVICE) | BIT(SIM_SWARM_WORKERS) | BIT(SIM_SWARM_KILL) | BIT(SIM_SWARM_READ), 0, 0 },
    { "shared-day", "twenty minutes of everybody's work, with few faults", BIT(SIM_SWARM_POWER),
      BIT(SIM_SWARM_LONG) | ASKS | BIT(SIM_SWARM_ARRAY), 8, 1200 * SHOAL_S },
};

const struct sim_scenario *sim_scenario_at(size_t i)
{
    return i < sizeof(scenarios) / sizeof(scenarios[0]) ? &scenarios[i] : NULL;
}

const struct sim_scenario *sim_scenario_find(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
        if (strlen(scenarios[i].name) == len && strncmp(scenarios[i].name, name, len) == 0)
            return &scenarios[i];
    return NULL;
}

/* Kinds that came later have chance of their own, each at its number, so that the rest of a seed stays what it was. */
static uint64_t drawn(struct swarm *s, uint64_t seed)
{
    struct shoal_rand rand;
    uint64_t on = below(s, 1ull << SIM_SWARM_TORN);

    if (below(s, 40) != 0)
        on &= ~BIT(SIM_SWARM_LONG);
    shoal_rand_init(&rand, seed ^ 0x6c61746572);
    for (unsigned kind = SIM_SWARM_TORN; kind < SIM_SWARM_KINDS; kind++)
        on |= shoal_rand_below(&rand, 2) == 0 ? BIT(kind) : 0;
    return on;
}

void sim_script_swarm(struct sim_script *script, uint64_t seed, const struct sim_scenario *scenario,
                      const struct sim_scenario *more)
{
    struct swarm s = { .script = script };
    uint64_t long_ns, short_ns;

    sim_script_begin(script, scenario->name);
    shoal_rand_init(&s.rand, seed ^ 0x737761726d);
    script->options.seed = seed;
    s.on = drawn(&s, seed);
    s.on = (s.on | scenario->always) & ~scenario->never;
    s.left_in = s.on & ~more->never;
    mesh(&s);
    if (more->hosts + scenario->hosts > 0)
        script->options.hosts = more->hosts > 0 ? more->hosts : scenario->hosts;
    long_ns = (900 + below(&s, 600)) * SHOAL_S;
    short_ns = spread(&s, 4 * SHOAL_S, 60 * SHOAL_S);
    s.span_ns = is_on(&s, SIM_SWARM_LONG) ? long_ns : short_ns;
    if (more->span_ns + scenario->span_ns > 0)
        s.span_ns = more->span_ns > 0 ? more->span_ns : scenario->span_ns;
    s.storm_ns = below(&s, s.span_ns / 2);
    s.storm_span_ns = spread(&s, SHOAL_S, s.span_ns > 2 * SHOAL_S ? s.span_ns - s.span_ns / 2 : SHOAL_S);
    work(&s);
    services(&s);
    drains(&s);
    ends(&s);
    standstills(&s);
    cuts(&s);
    workers(&s);
    (void)sim_script_add(script, SIM_HEAL, s.span_ns);
    free(s.scratch.part);
}
