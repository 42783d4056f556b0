/* Scripts: a line is a setting, or what happens at a time after the mesh is ready.
 *
 * - settings: hosts 5, slots 2, seed 42, latency 1ms, jitter 500us, flush 3ms, drift 200 (ppm), wall 900s (wall clocks
 *   are apart by so much), archive 5s; loss 20, duplicate 5, slow 2 (percent; 35m: per mille); torn, reorder-disk
 *   (what power cuts leave of unflushed writes); readers 2 500ms (clients that ask any host for any job, thinking so long
 *   between); probe (at the end every host must answer and every slot must be given); version 1 (of these words)
 * - jobs: submit from 2 workers 4..6 steps 300; script from 1 workers 2 steps 100 (10 ms each) [times 20]; at 6s stop 1;
 *   at 6s delete 1; at 9s recover 1 [refused] (asked of the first host)
 * - services: service from 1 kernels 0..4 batch 2 (as many replicas, each for 2 requests at one time); at 5s burst 3 1 40
 *   (40 requests at host 3 for the first service); at 9s expect answered (all requests so far)
 * - arrays: array from 1 tasks 40 steps 20 (10 ms each; one job, whose tasks take what slots there are)
 * - hosts: at 5s kill leader (the agent; its workers live on); at 5s crash 3 (the power); at 5s destroy 4 (the disk too,
 *   for good); at 5s lose 4 (the same, where each group keeps a majority); at 8s start 6; at 8s start all; at 5s pause 2
 *   3s; at 5s stall 1 2s (the disk hangs); at 5s slow 1 20 3s (the disk is 20 times slower for 3 s); at 5s full 1 3s (the
 *   disk takes nothing: the agent stops)
 * - workers: at 5s kill worker 2; at 5s stop worker any (an engine there, by chance; agent and host go on)
 * - paths: at 5s cut 1 2|all [one-way]; at 5s cut links 1 2|all [one-way] (connections alone, datagrams pass); at 5s cut
 *   data 1 2 (between their workers alone); at 5s partition 1 2 | 3 4 5 [one-way]; at 5s clog 1 2 800ms; at 6s loss 0; at
 *   9s heal
 * - the mesh: at 6s remove 4 (from the mesh, for good); at 6s drain 2; at 9s undrain 2; at 9s recover-mesh 3 (its group,
 *   asked of host 3); at 6s user 3; at 6s wall 3 3600s (the host's wall clock jumps ahead; -3600s: back)
 * - expectations: at 60s expect finished; at 9s expect 6 engines; at 9s expect 1 shrinks (at least; made by a host
 *   itself); at 9s expect job 1 killed; at 30s expect archived 1; at 9s expect gap 50ms (no script waited
 *   longer beside a free slot); at 20s show 1 3 (any host, any job)
 *
 * Lines come in the order of their times. A host is a number from 1, or leader, follower, driver: of job 1, or of the mesh while there is no job; or any: one
 * with engines, by chance; or struck: where a worker was killed or stopped last. After the last line every fault is
 * healed, every host that was started runs, and the mesh must converge. */
#include "shoal/sched_look.h"
#include "sim.h"
#include "sim_service.h"

#include <ctype.h>

#include "shoal/banned.h"

#define WORDS_MAX 64

struct reader {
    struct sim_script *script;
    unsigned line;
    char *words[WORDS_MAX];
    size_t count;
    uint64_t at_ns;
    char *error;
    size_t error_cap;
    bool failed;
};

__attribute__((format(printf, 2, 3))) static void wrong(struct reader *r, const char *format, ...)
{
    va_list args;
    int used;

    if (r->failed)
        return;
    r->failed = true;
    used = snprintf(r->error, r->error_cap, "%s:%u: ", r->script->name, r->line);
    va_start(args, format);
    (void)vsnprintf(r->error + used, r->error_cap - (size_t)used, format, args);
    va_end(args);
}

static const char *word(struct reader *r, size_t i)
{
    if (i >= r->count)
        wrong(r, "a word is missing after %s", r->words[r->count - 1]);
    return i < r->count ? r->words[i] : "";
}

static uint64_t number(struct reader *r, size_t i, uint64_t max)
{
    char *end;
    unsigned long long n = strtoull(word(r, i), &end, 0);

    if (end == word(r, i) || *end != '\0' || n > max)
        wrong(r, "%s is not a number up to %llu", word(r, i), (unsigned long long)max);
    return n;
}

static uint64_t duration(struct reader *r, size_t i)
{
    char *end;
    unsigned long long n = strtoull(word(r, i), &end, 10);
    uint64_t unit = strcmp(end, "s") == 0    ? SHOAL_S
                    : strcmp(end, "ms") == 0 ? SHOAL_MS
                    : strcmp(end, "us") == 0 ? (uint64_t)1000
                    : strcmp(end, "ns") == 0 ? (uint64_t)1
                                             : 0;

    if (unit == 0 || end == word(r, i) || n > 86400000000000u || (unit > 1 && n > 86400000000u) ||
        (unit == SHOAL_S && n > 86400))
        wrong(r, "%s is not a time such as 5s, 200ms or 50us", word(r, i));
    return n * unit;
}

/* Percent, or per mille with an m: 20, 35m. */
static uint32_t rate(struct reader *r, size_t i)
{
    char *end;
    unsigned long long n = strtoull(word(r, i), &end, 10);
    bool mille = strcmp(end, "m") == 0;

    if (end == word(r, i) || (!mille && *end != '\0') || n > (mille ? 1000 : 100))
        wrong(r, "%s is not a rate up to 100 percent (or 1000m)", word(r, i));
    return (uint32_t)(mille ? n : 10 * n);
}

static uint32_t host_word(struct reader *r, size_t i)
{
    const char *text = word(r, i);
    uint64_t n;

    if (strcmp(text, "leader") == 0)
        return SIM_LEADER;
    if (strcmp(text, "follower") == 0)
        return SIM_FOLLOWER;
    if (strcmp(text, "driver") == 0)
        return SIM_DRIVER;
    if (strcmp(text, "all") == 0)
        return SIM_ALL;
    if (strcmp(text, "any") == 0)
        return SIM_ANY;
    if (strcmp(text, "struck") == 0)
        return SIM_STRUCK;
    n = number(r, i, SIM_HOSTS_MAX);
    if (n == 0)
        wrong(r, "hosts count from 1");
    return (uint32_t)n - 1;
}

static struct sim_command *command(struct reader *r, enum sim_verb verb)
{
    struct sim_script *script = r->script;
    struct sim_command *c;

    if (script->count == SIM_COMMANDS_MAX) {
        wrong(r, "more than %d lines", SIM_COMMANDS_MAX);
        return &script->commands[0];
    }
    script->commands = sim_grow(script->commands, &script->cap, script->count + 1, sizeof(*script->commands));
    c = &script->commands[script->count++];
    *c = (struct sim_command){ .at_ns = r->at_ns, .verb = verb, .line = r->line };
    return c;
}

/* submit from H workers N[..M] steps S */
static void read_submit(struct reader *r, size_t i)
{
    bool script = word(r, i++)[1] == 'c';
    struct sim_command *c = command(r, SIM_SUBMIT);
    const char *range;

    if (strcmp(word(r, i), "from") != 0 || strcmp(word(r, i + 2), "workers") != 0 ||
        strcmp(word(r, i + 4), "steps") != 0) {
        wrong(r, "the form is: submit from HOST workers N..M steps S");
        return;
    }
    c->a = host_word(r, i + 1);
    c->script = script;
    range = word(r, i + 3);
    if (sscanf(range, "%u..%u", &c->workers_min, &c->workers_max) != 2)
        c->workers_min = c->workers_max = (uint32_t)number(r, i + 3, SHOAL_JOB_WORKERS_MAX);
    if (!script && strchr(range, '.') == NULL)
        c->workers_min = 1;
    c->number = number(r, i + 5, 100000);
    c->times = i + 7 < r->count && strcmp(r->words[i + 6], "times") == 0 ? (uint32_t)number(r, i + 7, SIM_JOBS_MAX) : 1;
    if (c->workers_min == 0 || c->workers_min > c->workers_max ||
        c->workers_max > (script ? SHOAL_JOB_WORKERS_PLAIN : SHOAL_JOB_WORKERS_MAX))
        wrong(r, "workers: 1 to %d", script ? SHOAL_JOB_WORKERS_PLAIN : SHOAL_JOB_WORKERS_MAX);
}

/* array from H tasks N steps S */
static void read_array(struct reader *r, size_t at)
{
    size_t i = at + 1;
    struct sim_command *c = command(r, SIM_SUBMIT);

    if (strcmp(word(r, i), "from") != 0 || strcmp(word(r, i + 2), "tasks") != 0 ||
        strcmp(word(r, i + 4), "steps") != 0) {
        wrong(r, "the form is: array from HOST tasks N steps S");
        return;
    }
    c->a = host_word(r, i + 1);
    c->script = true;
    c->workers_min = c->workers_max = 1;
    c->tasks = (uint32_t)number(r, i + 3, SIM_TASKS_MAX);
    c->number = number(r, i + 5, 100000);
    if (c->tasks == 0)
        wrong(r, "an array has at least 1 task");
}

/* service from H kernels N..M batch B */
static void read_service(struct reader *r, size_t at)
{
    size_t i = at + 1;
    struct sim_command *c = command(r, SIM_SUBMIT);

    if (strcmp(word(r, i), "from") != 0 || strcmp(word(r, i + 2), "kernels") != 0 ||
        strcmp(word(r, i + 4), "batch") != 0 ||
        sscanf(word(r, i + 3), "%u..%u", &c->workers_min, &c->workers_max) != 2) {
        wrong(r, "the form is: service from HOST kernels N..M batch B");
        return;
    }
    c->a = host_word(r, i + 1);
    c->script = c->service = true;
    c->tasks = SHOAL_SERVICE_REPLICAS_MAX;
    c->number = number(r, i + 5, 1000);
    if (c->number == 0 || c->workers_min > c->workers_max || c->workers_max > SHOAL_SERVICE_REPLICAS_MAX)
        wrong(r, "kernels: 0 to %u, and each takes at least 1 request", SHOAL_SERVICE_REPLICAS_MAX);
}

/* burst H S N: at host H, N requests for the S-th service */
static void read_burst(struct reader *r, size_t i)
{
    struct sim_command *c = command(r, SIM_BURST);

    c->a = host_word(r, i + 1);
    c->job = (uint32_t)number(r, i + 2, SIM_JOBS_MAX) - 1;
    c->number = number(r, i + 3, 10000);
}

static uint16_t *part_grow(uint16_t *part, size_t *count, size_t need)
{
    size_t cap = *count;

    if (need <= cap)
        return part;
    part = sim_grow(part, &cap, need, sizeof(*part));
    *count = need > *count ? cap : *count;
    return part;
}

static void read_partition(struct reader *r, size_t at)
{
    size_t i = at + 1;
    struct sim_command *c = command(r, SIM_PARTITION);
    uint32_t part = 1;

    for (; i < r->count; i++) {
        uint32_t host;

        if (strcmp(r->words[i], "|") == 0) {
            part++;
            continue;
        }
        if (strcmp(r->words[i], "one-way") == 0) {
            c->one_way = true;
            continue;
        }
        host = host_word(r, i);
        if (host >= SIM_HOSTS_MAX) {
            wrong(r, "partition takes numbers");
        } else if (!r->failed) {
            c->part = part_grow(c->part, &c->part_count, host + 1);
            c->part[host] = (uint16_t)part;
        }
    }
}

static void read_expect(struct reader *r, size_t at)
{
    size_t i = at + 1;
    struct sim_command *c;

    if (strcmp(word(r, i), "answered") == 0) {
        (void)command(r, SIM_EXPECT_ANSWERED);
        return;
    }
    if (strcmp(word(r, i), "finished") == 0) {
        c = command(r, SIM_EXPECT_FINISHED);
        if (i + 2 < r->count && strcmp(r->words[i + 1], "by") == 0)
            c->at_ns = duration(r, i + 2);
    } else if (strcmp(word(r, i), "archived") == 0) {
        command(r, SIM_EXPECT_ARCHIVED)->job = (uint32_t)number(r, i + 1, SIM_JOBS_MAX) - 1;
    } else if (strcmp(word(r, i), "gap") == 0) {
        command(r, SIM_EXPECT_GAP)->number = duration(r, i + 1);
    } else if (strcmp(word(r, i), "job") == 0) {
        c = command(r, SIM_EXPECT_STATE);
        c->job = (uint32_t)number(r, i + 1, SIM_JOBS_MAX) - 1;
        for (c->state = 0; c->state < SHOAL_JOB_STATE_COUNT; c->state++)
            if (strcasecmp(shoal_job_state_name((enum shoal_job_state)c->state), word(r, i + 2)) == 0)
                return;
        wrong(r, "%s is no state of a job", word(r, i + 2));
    } else {
        c = command(r, strcmp(word(r, i + 1), "shrinks") == 0 ? SIM_EXPECT_SHRINKS : SIM_EXPECT_ENGINES);
        c->number = number(r, i, SHOAL_JOB_WORKERS_MAX);
        if (c->verb == SIM_EXPECT_ENGINES && strcmp(word(r, i + 1), "engines") != 0)
            wrong(r, "expected: N engines, N shrinks, finished, archived N, gap TIME, or job N STATE");
    }
}

/* wall H [-]TIME */
static void read_wall(struct reader *r, size_t i)
{
    struct sim_command *c = command(r, SIM_WALL);

    c->a = host_word(r, i + 1);
    c->one_way = word(r, i + 2)[0] == '-';
    if (c->one_way)
        r->words[i + 2]++;
    c->number = duration(r, i + 2);
}

static bool read_setting(struct reader *r)
{
    struct sim_options *o = &r->script->options;
    const char *text = word(r, 0);

    if (strcmp(text, "hosts") == 0)
        o->hosts = (uint32_t)number(r, 1, SIM_HOSTS_MAX);
    else if (strcmp(text, "slots") == 0)
        o->slots = (uint32_t)number(r, 1, SHOAL_SLOTS_MAX);
    else if (strcmp(text, "seed") == 0)
        o->seed = number(r, 1, UINT64_MAX);
    else if (strcmp(text, "latency") == 0)
        o->latency_ns = duration(r, 1);
    else if (strcmp(text, "jitter") == 0)
        o->jitter_ns = duration(r, 1);
    else if (strcmp(text, "loss") == 0 && r->at_ns == 0)
        o->loss = rate(r, 1);
    else if (strcmp(text, "duplicate") == 0)
        o->duplicate = rate(r, 1);
    else if (strcmp(text, "slow") == 0)
        o->slow = rate(r, 1);
    else if (strcmp(text, "flush") == 0)
        o->flush_ns = duration(r, 1);
    else if (strcmp(text, "drift") == 0)
        o->drift_ppm = (uint32_t)number(r, 1, 10000);
    else if (strcmp(text, "wall") == 0 && r->count == 2)
        o->wall_ns = duration(r, 1);
    else if (strcmp(text, "archive") == 0)
        o->archive_ns = duration(r, 1);
    else if (strcmp(text, "loaded") == 0)
        o->loaded_max = (uint32_t)number(r, 1, 4096);
    else if (strcmp(text, "readers") == 0) {
        o->readers = (uint32_t)number(r, 1, 1000);
        o->think_ns = duration(r, 2);
    } else if (strcmp(text, "probe") == 0) {
        o->probe = true;
    } else if (strcmp(text, "torn") == 0) {
        o->torn = true;
    } else if (strcmp(text, "reorder-disk") == 0) {
        o->reorder_disk = true;
    } else if (strcmp(text, "version") == 0) {
        r->script->version = (uint32_t)number(r, 1, UINT32_MAX);
        if (r->script->version != SIM_VERSION)
            wrong(
                r,
                "this is a file of version %u, and this simulator reads version %u: run it with the one that wrote it",
                r->script->version, SIM_VERSION);
    } else {
        return false;
    }
    return true;
}

static void read_time(struct reader *r)
{
    uint64_t before_ns = r->at_ns;

    r->at_ns = duration(r, 1);
    if (r->at_ns < before_ns)
        wrong(r, "%s is before the time of the line before; lines come in the order of their times", word(r, 1));
}

/* cut [data|links] H H [one-way], clog H H TIME */
static void read_path(struct reader *r, size_t i)
{
    bool data = strcmp(word(r, i + 1), "data") == 0, links = strcmp(word(r, i + 1), "links") == 0;
    bool clog = word(r, i)[1] == 'l';
    struct sim_command *c = command(r, clog ? SIM_CLOG : SIM_CUT);

    if (data)
        c->verb = SIM_CUT_DATA;
    if (links)
        c->verb = SIM_CUT_LINKS;
    i += data || links;
    c->a = host_word(r, i + 1);
    c->b = host_word(r, i + 2);
    c->one_way = !clog && i + 3 < r->count && strcmp(r->words[i + 3], "one-way") == 0;
    c->number = clog ? duration(r, i + 3) : 0;
}

/* slow H TIMES TIME: the disk */
static void read_slow(struct reader *r, size_t i)
{
    struct sim_command *c = command(r, SIM_SLOW_DISK);

    c->a = host_word(r, i + 1);
    c->times = (uint32_t)number(r, i + 2, 1000);
    c->number = duration(r, i + 3);
}

static void read_heal(struct reader *r, size_t i)
{
    (void)i;
    (void)command(r, SIM_HEAL);
}

static void read_loss(struct reader *r, size_t i) { command(r, SIM_LOSS)->number = rate(r, i + 1); }

/* stop N, delete N, show N H, recover N [refused] */
static void read_job(struct reader *r, size_t i)
{
    const char *verb = word(r, i);
    struct sim_command *c = command(r, strcmp(verb, "stop") == 0 ? SIM_STOP : SIM_RECOVER);

    if (strcmp(verb, "delete") == 0)
        c->verb = SIM_DELETE;
    if (strcmp(verb, "show") == 0)
        c->verb = SIM_SHOW;
    c->job = (uint32_t)number(r, i + 1, SIM_JOBS_MAX) - 1;
    if (c->verb == SIM_SHOW)
        c->a = host_word(r, i + 2);
    else if (c->verb == SIM_RECOVER)
        c->number = i + 2 < r->count && strcmp(r->words[i + 2], "refused") == 0;
}

static void read_host_verb(struct reader *r, size_t i)
{
    static const struct {
        const char *word;
        enum sim_verb verb;
    } verbs[] = { { "kill", SIM_KILL },
                  { "crash", SIM_CRASH },
                  { "destroy", SIM_DESTROY },
                  { "start", SIM_START },
                  { "pause", SIM_PAUSE },
                  { "stall", SIM_STALL },
                  { "user", SIM_USER },
                  { "full", SIM_FULL_DISK },
                  { "lose", SIM_LOSE },
                  { "remove", SIM_REMOVE },
                  { "drain", SIM_DRAIN },
                  { "undrain", SIM_UNDRAIN },
                  { "recover-mesh", SIM_RECOVER_MESH } };
    struct sim_command *c;

    for (size_t v = 0; v < sizeof(verbs) / sizeof(verbs[0]); v++) {
        if (strcmp(word(r, i), verbs[v].word) != 0)
            continue;
        c = command(r, verbs[v].verb);
        c->a = host_word(r, i + 1);
        if (c->verb == SIM_PAUSE || c->verb == SIM_STALL || c->verb == SIM_FULL_DISK)
            c->number = duration(r, i + 2);
        return;
    }
    wrong(r, "%s is not understood", word(r, i));
}

static void read_words(struct reader *r)
{
    static const struct {
        const char *word;
        void (*read)(struct reader *r, size_t i);
    } verbs[] = { { "submit", read_submit },
                  { "script", read_submit },
                  { "array", read_array },
                  { "service", read_service },
                  { "burst", read_burst },
                  { "slow", read_slow },
                  { "partition", read_partition },
                  { "expect", read_expect },
                  { "heal", read_heal },
                  { "loss", read_loss },
                  { "cut", read_path },
                  { "clog", read_path },
                  { "wall", read_wall },
                  { "stop", read_job },
                  { "delete", read_job },
                  { "show", read_job },
                  { "recover", read_job } };
    size_t i = 0;

    if (strcmp(word(r, 0), "at") == 0) {
        read_time(r);
        i = 2;
    }
    if (i == 0 && read_setting(r))
        return;
    if (i + 1 < r->count && strcmp(r->words[i + 1], "worker") == 0) {
        if (strcmp(r->words[i], "kill") != 0 && strcmp(r->words[i], "stop") != 0)
            wrong(r, "a worker can be killed or stopped");
        command(r, r->words[i][0] == 'k' ? SIM_KILL_WORKER : SIM_STOP_WORKER)->a = host_word(r, i + 2);
        return;
    }
    for (size_t v = 0; v < sizeof(verbs) / sizeof(verbs[0]); v++) {
        if (strcmp(word(r, i), verbs[v].word) != 0)
            continue;
        verbs[v].read(r, i);
        return;
    }
    read_host_verb(r, i);
}

void sim_script_deinit(struct sim_script *script)
{
    for (size_t i = 0; i < script->count; i++)
        free(script->commands[i].part);
    free(script->commands);
    script->commands = NULL;
    script->count = script->cap = 0;
}

uint32_t sim_script_hosts(const struct sim_script *script)
{
    uint32_t hosts = script->options.hosts;

    for (size_t i = 0; i < script->count; i++)
        if (script->commands[i].verb == SIM_START && script->commands[i].a < SIM_HOSTS_MAX &&
            script->commands[i].a >= hosts)
            hosts = script->commands[i].a + 1;
    return hosts;
}

void sim_script_begin(struct sim_script *script, const char *name)
{
    sim_script_deinit(script);
    *script = (struct sim_script){ .name = name };
    script->options = (struct sim_options){
        .seed = 1, .hosts = 5, .slots = 2, .latency_ns = 500000, .jitter_ns = 500000, .flush_ns = 2 * SHOAL_MS
    };
}

/* A host is one of those that the mesh begins with, or is started by some line. */
static void hosts_exist(struct reader *r)
{
    const struct sim_script *script = r->script;

    for (size_t i = 0; i < script->count && !r->failed; i++) {
        const struct sim_command *c = &script->commands[i];
        uint32_t named = c->a < SIM_LEADER ? c->a : 0;

        if (c->b < SIM_LEADER && c->b > named)
            named = c->b;
        for (uint32_t h = (uint32_t)c->part_count; h > 0 && h > named + 1; h--)
            named = c->part[h - 1] != 0 ? h - 1 : named;
        r->line = c->line;
        for (size_t s = 0; named >= script->options.hosts && s < script->count; s++)
            if (script->commands[s].verb == SIM_START && script->commands[s].a == named)
                named = 0;
        if (named >= script->options.hosts && script->options.hosts > 0)
            wrong(r, "there is no host %u: the mesh begins with %u, and no line starts it", named + 1,
                  script->options.hosts);
    }
}

bool sim_script_read(struct sim_script *script, const char *path, char *error, size_t cap)
{
    struct reader r = { .script = script, .error = error, .error_cap = cap };
    char line[512];
    FILE *file = fopen(path, "re");

    sim_script_begin(script, path);
    if (file == NULL) {
        (void)snprintf(error, cap, "%s cannot be read; give the path of a script, or the word random", path);
        return false;
    }
    while (!r.failed && fgets(line, sizeof(line), file) != NULL) {
        char *rest = line;

        r.line++;
        r.count = 0;
        line[strcspn(line, "#\n")] = '\0';
        for (char *text; r.count < WORDS_MAX && (text = strtok_r(rest, " \t", &rest)) != NULL;)
            r.words[r.count++] = text;
        if (r.count > 0)
            read_words(&r);
    }
    (void)fclose(file);
    hosts_exist(&r);
    if (!r.failed && (script->options.hosts == 0 || script->options.slots == 0))
        wrong(&r, "a mesh has at least one host and one slot");
    return !r.failed;
}

/* ---- faults by chance: a swarm. Each seed enables some kinds of faults, at its own rate ---- */

struct sim_command *sim_script_add(struct sim_script *script, enum sim_verb verb, uint64_t at_ns)
{
    struct sim_command *c;

    script->commands = sim_grow(script->commands, &script->cap, script->count + 1, sizeof(*script->commands));
    c = &script->commands[script->count++];
    *c = (struct sim_command){ .at_ns = at_ns, .verb = verb };
    return c;
}

static uint32_t random_host(const struct sim_script *script, struct shoal_rand *rand)
{
    uint64_t n = shoal_rand_below(rand, script->options.hosts + 3);

    return n < script->options.hosts ? (uint32_t)n : SIM_LEADER + (uint32_t)(n - script->options.hosts);
}

static void random_fault(struct sim_script *script, struct shoal_rand *rand, unsigned enabled, uint64_t at_ns)
{
    static const enum sim_verb verbs[] = { SIM_KILL,      SIM_CRASH, SIM_PAUSE, SIM_STALL, SIM_CUT,
                                           SIM_PARTITION, SIM_CLOG,  SIM_LOSS,  SIM_USER };
    unsigned kind = (unsigned)shoal_rand_below(rand, sizeof(verbs) / sizeof(verbs[0]));
    uint64_t heal_ns = at_ns + shoal_rand_below(rand, 8 * SHOAL_S);
    struct sim_command *c;

    if ((enabled >> kind & 1) == 0)
        return;
    c = sim_script_add(script, verbs[kind], at_ns);
    c->a = random_host(script, rand);
    c->b = random_host(script, rand);
    c->one_way = shoal_rand_below(rand, 3) == 0;
    c->number = shoal_rand_below(rand, 4 * SHOAL_S);
    c->part = part_grow(NULL, &c->part_count, script->options.hosts);
    for (uint32_t i = 0; i < script->options.hosts; i++)
        c->part[i] = (uint16_t)(1 + shoal_rand_below(rand, 2));
    if (c->verb == SIM_LOSS)
        c->number = shoal_rand_below(rand, 300);
    if (c->verb == SIM_KILL || c->verb == SIM_CRASH)
        sim_script_add(script, SIM_START, heal_ns)->a = SIM_ALL;
    else if (c->verb == SIM_CUT || c->verb == SIM_PARTITION)
        (void)sim_script_add(script, SIM_HEAL, heal_ns);
    else if (c->verb == SIM_LOSS)
        (void)sim_script_add(script, SIM_LOSS, heal_ns);
}

static void random_elastic(struct sim_script *script, struct shoal_rand *rand, uint64_t at_ns, uint64_t steps)
{
    struct sim_command *c = sim_script_add(script, SIM_SUBMIT, at_ns);

    c->a = (uint32_t)shoal_rand_below(rand, script->options.hosts);
    c->workers_min = 1;
    c->workers_max = 2 + (uint32_t)shoal_rand_below(rand, SIM_VIRTUAL_WORKERS - 1);
    c->number = steps;
}

/* Workers that are killed or stopped while agents and hosts go on, often two soon after each other, and now and then
 * the agent at the same moment, or while another job takes slots away; one more job is long enough to meet them. From a
 * stream of its own, and in two of three seeds: the others stay what they were. Half of those have slots enough for a
 * job to lie on one host. */
static void random_strikes(struct sim_script *script, uint64_t seed, uint64_t span_ns)
{
    struct shoal_rand rand;
    uint64_t strikes, steps;

    if (seed % 3 == 0)
        return;
    shoal_rand_init(&rand, seed ^ 0x776f726b657273);
    if (shoal_rand_below(&rand, 2) == 0)
        script->options.slots = 4 + (uint32_t)shoal_rand_below(&rand, 3);
    steps = span_ns / SHOAL_MS / 8 + shoal_rand_below(&rand, 2000);
    random_elastic(script, &rand, shoal_rand_below(&rand, SHOAL_S), steps);
    strikes = 1 + shoal_rand_below(&rand, 8);
    for (uint64_t i = shoal_rand_below(&rand, 4); i > 0; i--) { /* and links between workers that break */
        struct sim_command *c = sim_script_add(script, SIM_CUT_DATA, SHOAL_S / 2 + shoal_rand_below(&rand, span_ns));

        c->a = SIM_ANY;
        c->b = (uint32_t)shoal_rand_below(&rand, script->options.hosts);
    }
    for (uint64_t i = 0; i < strikes; i++) {
        bool stop = shoal_rand_below(&rand, 4) == 0;
        uint64_t at_ns = SHOAL_S / 2 + shoal_rand_below(&rand, span_ns);
        uint64_t again = shoal_rand_below(&rand, 6);

        sim_script_add(script, stop ? SIM_STOP_WORKER : SIM_KILL_WORKER, at_ns)->a = SIM_ANY;
        at_ns += shoal_rand_below(&rand, 30 * SHOAL_MS);
        if (again < 2) {
            sim_script_add(script, SIM_KILL_WORKER, at_ns)->a = SIM_STRUCK;
        } else if (again == 2) {
            sim_script_add(script, SIM_KILL, at_ns)->a = SIM_STRUCK;
            sim_script_add(script, SIM_START, at_ns + shoal_rand_below(&rand, 3 * SHOAL_S))->a = SIM_ALL;
        } else if (again == 3) {
            steps = 20 + shoal_rand_below(&rand, 200);
            if (at_ns > 2 * SHOAL_S)
                at_ns -= shoal_rand_below(&rand, 2 * SHOAL_S);
            random_elastic(script, &rand, at_ns, steps);
        }
    }
}

/* A rate below `factors` times `below`, often 0. Two draws in one expression would leave their order, and so the
 * mesh of a seed, to the compiler. */
static uint32_t random_rate(struct shoal_rand *rand, uint64_t factors, uint64_t below)
{
    uint32_t factor = (uint32_t)shoal_rand_below(rand, factors);

    return factor * (uint32_t)shoal_rand_below(rand, below);
}

/* By a chance of its own, so that the other seeds' meshes stay what they were. */
static void random_array(struct sim_script *script, uint64_t seed, uint64_t span_ns)
{
    struct shoal_rand rand;
    struct sim_command *c;

    if (seed % 4 != 3)
        return;
    shoal_rand_init(&rand, seed ^ 0xa55a);
    c = sim_script_add(script, SIM_SUBMIT, shoal_rand_below(&rand, span_ns / 2));
    c->script = true;
    c->a = (uint32_t)shoal_rand_below(&rand, script->options.hosts);
    c->workers_min = c->workers_max = 1;
    c->tasks = 5 + (uint32_t)shoal_rand_below(&rand, 60);
    c->number = 1 + shoal_rand_below(&rand, 100);
}

void sim_script_random(struct sim_script *script, uint64_t seed)
{
    struct shoal_rand rand, archive, parked;
    unsigned jobs, faults, enabled;
    uint64_t span_ns;

    sim_script_begin(script, "random");
    shoal_rand_init(&rand, seed ^ 0x73686f616c);
    script->options.seed = seed;
    script->options.hosts = 3 + (uint32_t)shoal_rand_below(&rand, 5);
    script->options.slots = 1 + (uint32_t)shoal_rand_below(&rand, 3);
    script->options.latency_ns = 100000u << shoal_rand_below(&rand, 7);
    script->options.jitter_ns = 100000u << shoal_rand_below(&rand, 7);
    script->options.flush_ns = 200000u << shoal_rand_below(&rand, 7);
    script->options.loss = random_rate(&rand, 3, 50);
    script->options.duplicate = random_rate(&rand, 2, 50);
    script->options.slow = random_rate(&rand, 2, 20);
    script->options.drift_ppm = (uint32_t)shoal_rand_below(&rand, 2) * 200;
    shoal_rand_init(&archive, seed ^ 0x61726368697665); /* of its own: what a seed did before, it does */
    if (shoal_rand_below(&archive, 2) == 0)
        script->options.archive_ns = (1 + shoal_rand_below(&archive, 10)) * SHOAL_S;
    shoal_rand_init(&parked, seed ^ 0x7061726b);
    if (seed % 5 == 3)
        script->options.wall_ns = (1 + shoal_rand_below(&parked, 900)) * SHOAL_S;
    if (shoal_rand_below(&parked, 2) == 0) /* a job or two are parked while another has a lead */
        script->options.loaded_max = 1;
    jobs = 1 + (unsigned)shoal_rand_below(&rand, 3);
    faults = (unsigned)shoal_rand_below(&rand, 16);
    enabled = (unsigned)shoal_rand_below(&rand, 512);
    enabled |= (unsigned)shoal_rand_below(&rand, 512);
    span_ns = (5 + shoal_rand_below(&rand, 25)) * SHOAL_S;
    for (unsigned i = 0; i < jobs; i++) {
        struct sim_command *c = sim_script_add(script, SIM_SUBMIT, shoal_rand_below(&rand, span_ns / 2));

        c->script = shoal_rand_below(&rand, 3) == 0;
        c->a = (uint32_t)shoal_rand_below(&rand, script->options.hosts);
        c->workers_min = 1;
        c->workers_max = 1 + (uint32_t)shoal_rand_below(&rand, SIM_VIRTUAL_WORKERS);
        if (c->script) /* a gang must fit the mesh */
            c->workers_min = c->workers_max = 1 + (uint32_t)shoal_rand_below(&rand, 2);
        c->number = 50 + shoal_rand_below(&rand, 500);
    }
    for (unsigned i = 0; i < faults; i++)
        random_fault(script, &rand, enabled, shoal_rand_below(&rand, span_ns));
    random_strikes(script, seed, span_ns);
    random_array(script, seed, span_ns);
    (void)sim_script_add(script, SIM_HEAL, span_ns + 8 * SHOAL_S);
}

/* ---- what a command does ---- */

static struct shoal_job_id first_group(struct sim *sim)
{
    return sim->job_count > 0 && sim->jobs[0].known ? sim->jobs[0].id : (struct shoal_job_id){ { 0 } };
}

static uint32_t driver_host(struct sim *sim)
{
    for (uint32_t h = 0; h < sim->host_count; h++)
        for (const struct sim_worker *worker = sim->hosts[h].workers; worker != NULL; worker = worker->next)
            if (worker->role == SHOAL_JOB_DRIVER && worker->job == 0)
                return h;
    return UINT32_MAX;
}

/* The host of an engine or a replica by chance: hosts with more of them are likelier. */
static uint32_t any_host(struct sim *sim)
{
    uint32_t host = UINT32_MAX;
    uint64_t seen = 0;

    for (uint32_t h = 0; h < sim->host_count; h++)
        for (const struct sim_worker *worker = sim->hosts[h].workers; worker != NULL; worker = worker->next)
            if ((worker->role == SHOAL_JOB_ENGINE || sim->jobs[worker->job].service) && shoal_rand_below(&sim->command_chance, ++seen) == 0)
                host = h;
    return host;
}

static uint32_t resolve(struct sim *sim, uint32_t host)
{
    uint32_t leader = host == SIM_LEADER || host == SIM_FOLLOWER ? sim_leader(sim, first_group(sim)) : UINT32_MAX;
    struct shoal_sched_group_status status;

    if (host < SIM_LEADER)
        return host < sim->host_count ? host : UINT32_MAX;
    if (host == SIM_DRIVER)
        return driver_host(sim);
    if (host == SIM_ANY)
        return any_host(sim);
    if (host == SIM_STRUCK)
        return sim->struck;
    if (host == SIM_LEADER || leader == UINT32_MAX)
        return leader;
    if (!shoal_sched_group_find(sim->hosts[leader].sched, first_group(sim), &status))
        return UINT32_MAX;
    for (unsigned i = 0; i < status.voters; i++)
        if (sim_host_find(sim, status.guardians[i]) != leader)
            return sim_host_find(sim, status.guardians[i]);
    return UINT32_MAX;
}

static struct shoal_hash named_hash(uint32_t job, uint8_t what)
{
    struct shoal_hash hash = { { 0 } };

    hash.bytes[0] = (uint8_t)(job + 1);
    hash.bytes[1] = what;
    return hash;
}

/* As the shell of the host at which the client asks makes it. */
static size_t job_spec(const struct sim_job *job, uint32_t index, uint64_t wall_ms, uint8_t *bytes, size_t cap)
{
    struct shoal_job_spec spec = { .elastic = !job->script,
                                   .user_cmd = job->script,
                                   .workers_min = job->workers_min,
                                   .workers_max = job->workers_max,
                                   .devices_per_worker = 1,
                                   .submit_ms = wall_ms };
    char document[200];
    size_t len;
    enum shoal_err err;

    if (job->script)
        spec.argv = (struct shoal_job_texts){ 1, { (const uint8_t *)"true", 5 } };
    if (job->tasks > 0)
        (void)snprintf(spec.array, sizeof(spec.array), "0-%u", job->tasks - 1);
    if (job->service) {
        (void)snprintf(spec.service, sizeof(spec.service), "service-%u", index);
        spec.replicas = job->kernels_min;
        spec.profile = shoal_view_of((const uint8_t *)document, sim_document(job, true, 0, document, sizeof(document)));
    }
    (void)snprintf(spec.framework, sizeof(spec.framework), "edtPyTorch");
    (void)snprintf(spec.creator, sizeof(spec.creator), "ann");
    (void)snprintf(spec.submit_user, sizeof(spec.submit_user), "ann");
    (void)snprintf(spec.app_name, sizeof(spec.app_name), "sim %u", index);
    (void)snprintf(spec.main_file, sizeof(spec.main_file), "main.py");
    (void)snprintf(spec.model_dir, sizeof(spec.model_dir), "model");
    spec.args = shoal_view_text("--model-main main.py");
    spec.bundle_hash = named_hash(index, 2);
    spec.bundle_bytes = 10;
    err = shoal_job_spec_encode(&spec, bytes, cap, &len);
    SHOAL_ASSERT(err == SHOAL_OK);
    return len;
}

/* The host that the client asks next; UINT32_MAX: it waits for an answer, or for its agent. Where wall clocks are apart, it asks
 * with its ticket at one host after the other, and waits for none of them long: two conduct at the same time. Hosts that
 * have joined are asked too: those of the beginning may all be lost. */
static uint32_t ask_where(struct sim *sim, struct sim_job *job)
{
    const struct sim_request *last = &sim->requests[job->request];
    bool waits = job->request != 0 && !last->answered && last->life == sim->hosts[last->host].life;
    uint32_t at = job->from;

    if (job->ticket.len > 0 && sim->options.wall_ns > 0) {
        waits = waits && sim->now_ns < last->asked_ns + 3 * SHOAL_S;
        at = (job->from + job->tries) % sim->host_count;
        job->tries += waits ? 0 : 1;
    }
    return waits || !sim->hosts[at].agent ? UINT32_MAX : at;
}

/* The client asks, and asks again with its ticket until it is told; its agent may be down for a while. */
void sim_submit(struct sim *sim, uint32_t index)
{
    static uint8_t bytes[SHOAL_JOB_SPEC_BYTES_MAX];
    struct sim_job *job = &sim->jobs[index];
    uint32_t at;
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_SUBMIT, .spec_hash = named_hash(index, 1) };
    const struct sim_request *last = &sim->requests[job->request];
    bool ticketed = index % 2 == 1; /* asks for a ticket before it submits */

    if (job->acknowledged || job->refused)
        return;
    if (job->request != 0 && !last->answered && last->life != sim->hosts[job->from].life && job->ticket.len == 0 &&
        !ticketed)
        job->refused = true; /* whether it was founded is not known; another try would be another job */
    if (job->refused)
        return;
    sim_push(sim, SIM_RETRY, job->from, SHOAL_S)->word = index;
    at = ask_where(sim, job);
    if (at == UINT32_MAX)
        return;
    if (ticketed && job->ticket.len == 0)
        request.kind = SHOAL_SCHED_TICKET;
    request.spec = shoal_view_of(bytes, job_spec(job, index, sim_host_wall_ms(&sim->hosts[at]), bytes, sizeof(bytes)));
    request.bundle = shoal_view_text("the bundle");
    request.bundle_hash = named_hash(index, 2);
    request.ticket = shoal_buf_view(&job->ticket);
    (void)snprintf(request.by, sizeof(request.by), "ann");
    /* The number first: the answer may come within the step. */
    job->request = sim->request_count + 1;
    (void)sim_request(&sim->hosts[at], &request, index);
}

static void new_job(struct sim *sim, const struct sim_command *c)
{
    uint32_t index = sim->job_count;
    uint32_t from = resolve(sim, c->a);
    struct sim_job *job;

    if (index == SIM_JOBS_MAX || from == UINT32_MAX)
        return;
    sim->jobs = sim_grow(sim->jobs, &sim->job_cap, index + 1, sizeof(*sim->jobs));
    job = &sim->jobs[index];
    sim->job_count++;
    sim_stream(sim, &job->chance, "job", index, 0);
    job->task_states = c->tasks == 0 ? NULL : sim_alloc(c->tasks);
    job->script = c->script;
    job->from = from;
    job->tasks = c->tasks;
    job->workers_min = c->workers_min;
    job->workers_max = c->workers_max;
    job->steps = c->number;
    if (c->service) {
        job->service = true;
        job->workers_min = job->workers_max = 1;
        job->kernels_min = c->workers_min;
        job->kernels_max = c->workers_max;
        job->batch = (uint32_t)c->number;
        sim_service_made(sim);
    }
    sim_submit(sim, index);
}

static void job_deleted(const struct sim *sim, struct sim_job *job)
{
    job->deleted = true;
    job->deleted_ns = job->deleted_ns == 0 ? sim->now_ns : job->deleted_ns;
}

void sim_on_reply(struct sim *sim, const struct shoal_sched_action *action)
{
    struct sim_request *request = &sim->requests[action->u.reply.request];
    struct sim_job *job = request->job == UINT32_MAX ? NULL : &sim->jobs[request->job];

    if (action->u.reply.request == 0 || action->u.reply.request > sim->request_count || request->answered) {
        sim_fail(sim, "request %llu is answered twice or was never asked", (unsigned long long)action->u.reply.request);
        return;
    }
    request->answered = true;
    request->err = action->u.reply.err;
    sim_trace(sim, "h%u answers request %llu: %s %s", request->host + 1, (unsigned long long)action->u.reply.request,
              shoal_err_name(request->err), action->u.reply.text);
    if (request->kind == SHOAL_SCHED_WHY)
        sim_trace(sim, "job %u: %.*s", request->job + 1, (int)action->u.reply.bytes.len,
                  (const char *)action->u.reply.bytes.bytes);
    if (request->kind == SHOAL_SCHED_MESH_INIT) {
        sim->mesh_made = request->err == SHOAL_OK;
        if (!sim->mesh_made)
            sim_fail(sim, "the mesh is not founded: %s", action->u.reply.text);
    }
    if (request->kind == SHOAL_SCHED_RECOVER && request->err != request->want)
        sim_fail(sim, "the recovery of job %u: %s: %s", request->job + 1, shoal_err_name(request->err),
                 action->u.reply.text);
    if (request->infer != 0)
        sim_infer_facts(sim, request, action);
    else if (request->read)
        sim_client_told(sim, request, action);
    else if (request->kind == SHOAL_SCHED_GET && request->err != request->want)
        sim_fail(sim, "h%u shows job %u: %s: %s", request->host + 1, request->job + 1, shoal_err_name(request->err),
                 action->u.reply.text);
    if (request->kind == SHOAL_SCHED_EDIT && request->err == SHOAL_OK)
        sim_service_edited(sim, request);
    if (request->kind == SHOAL_SCHED_MESH_CHANGE && !request->removal && request->err == SHOAL_OK)
        sim->users_told++;
    if (job != NULL && request->kind == SHOAL_SCHED_DELETE && request->err == SHOAL_OK)
        job_deleted(sim, job);
    if (job != NULL && request->kind == SHOAL_SCHED_STOP && request->err == SHOAL_OK && job->stop_told_ns == 0)
        job->stop_told_ns = sim->now_ns;
    if (job != NULL && request->kind == SHOAL_SCHED_TICKET && request->err == SHOAL_OK) {
        sim_keep(&job->ticket, action->u.reply.ticket);
        sim_push(sim, SIM_RETRY, job->from, SHOAL_MS)->word = request->job;
    }
    if (job == NULL || request->kind != SHOAL_SCHED_SUBMIT)
        return;
    if (request->err == SHOAL_OK) {
        if (job->known && !shoal_job_id_equal(job->id, action->u.reply.job))
            sim_fail(sim, "job %u is acknowledged under a second id", request->job + 1);
        job->acknowledged_ns = job->acknowledged ? job->acknowledged_ns : sim->now_ns;
        job->acknowledged = true;
        sim_check_told(sim, request->host, action->u.reply.job);
        sim_job_known(sim, request->job, action->u.reply.job);
    } else if (action->u.reply.ticket.len > 0) {
        sim_keep(&job->ticket, action->u.reply.ticket);
    } else if (request->err == SHOAL_ERR_TIMEOUT || request->err == SHOAL_ERR_UNREACHABLE) {
        sim_fail(sim, "job %u: the outcome is not known, and there is no ticket to ask again with", request->job + 1);
    } else if (request->err == SHOAL_ERR_INVALID || request->err == SHOAL_ERR_UNSUPPORTED) {
        job->refused = true;
    }
}

/* An agent that knows no users yet takes no request. */
static bool takes_requests(const struct sim_host *host)
{
    return host->agent && shoal_sched_mesh(host->sched) != NULL;
}

void sim_ask_about(struct sim *sim, uint32_t index, enum shoal_sched_request_kind kind)
{
    struct shoal_sched_request request = { .kind = kind };
    struct sim_job *job = &sim->jobs[index];
    uint32_t at = index < sim->job_count ? job->from : 0;

    if (index >= sim->job_count || !job->known)
        return;
    request.job = job->id;
    (void)snprintf(request.by, sizeof(request.by), "ann");
    job->stop_asked = true;
    job->delete_asked = job->delete_asked || kind == SHOAL_SCHED_DELETE;
    if (kind == SHOAL_SCHED_DELETE && job->delete_asked_ns == 0)
        job->delete_asked_ns = sim->now_ns;
    for (uint32_t i = 0; job->service && i < sim->host_count && !takes_requests(&sim->hosts[at]); i++)
        at = (at + 1) % sim->host_count; /* its own host may be lost for good */
    if (!takes_requests(&sim->hosts[at]))
        return;
    job->stop_request = sim->request_count + 1;
    (void)sim_request(&sim->hosts[at], &request, index);
}

/* The answer counts: see sim_on_reply. */
static void recover(struct sim *sim, const struct sim_command *c)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_RECOVER, .confirmed = true };
    uint32_t at = 0;

    while (at < sim->host_count && !sim->hosts[at].agent)
        at++;
    if (at == sim->host_count || c->job >= sim->job_count || !sim->jobs[c->job].known) {
        sim_fail(sim, "line %u: there is no such job to recover", c->line);
        return;
    }
    request.job = sim->jobs[c->job].id;
    sim->jobs[c->job].recovered = true;
    sim->requests[sim->request_count + 1].want = c->number != 0 ? SHOAL_ERR_EXISTS : SHOAL_OK;
    (void)sim_request(&sim->hosts[at], &request, c->job);
}

/* Any host answers for any job that was acknowledged: see sim_on_reply. */
static void show(struct sim *sim, const struct sim_command *c)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_GET, .linearizable = true };
    uint32_t at = resolve(sim, c->a);

    if (at == UINT32_MAX || !sim->hosts[at].agent || c->job >= sim->job_count || !sim->jobs[c->job].known) {
        sim_fail(sim, "line %u: there is no such job to show, or no agent there", c->line);
        return;
    }
    request.job = sim->jobs[c->job].id;
    sim->requests[sim->request_count + 1].want = sim->jobs[c->job].delete_asked ? SHOAL_ERR_NOT_FOUND : SHOAL_OK;
    (void)sim_request(&sim->hosts[at], &request, c->job);
}

/* Hosts that nobody has named are in part 0 and reach everyone. */
static void partition(struct sim *sim, const struct sim_command *c)
{
    for (uint32_t i = 0; i < c->part_count; i++)
        for (uint32_t j = 0; j < c->part_count; j++)
            if (c->part[i] != 0 && c->part[j] != 0 && c->part[i] != c->part[j] &&
                (!c->one_way || c->part[i] < c->part[j]))
                sim_cut(sim, i, j);
}

static void expect(struct sim *sim, const struct sim_command *c)
{
    uint8_t state = 0;
    char why[200];

    if (c->verb == SIM_EXPECT_ENGINES && sim_job_engines(sim, 0) != c->number)
        sim_fail(sim, "line %u: expected %llu engines, there are %u", c->line, (unsigned long long)c->number,
                 sim_job_engines(sim, 0));
    if (c->verb == SIM_EXPECT_SHRINKS && sim->shrinks < c->number)
        sim_fail(sim, "line %u: expected %llu shrinks, there were %llu", c->line, (unsigned long long)c->number,
                 (unsigned long long)sim->shrinks);
    if (c->verb == SIM_EXPECT_ARCHIVED && !sim_job_archived(sim, c->job, why, sizeof(why)))
        sim_fail(sim, "line %u: %s", c->line, why);
    if (c->verb == SIM_EXPECT_GAP && sim->gap_ns > c->number)
        sim_fail(sim, "line %u: job %u waited %llu ms beside a free slot, more than %llu ms", c->line, sim->gap_job + 1,
                 (unsigned long long)(sim->gap_ns / SHOAL_MS), (unsigned long long)(c->number / SHOAL_MS));
    if (c->verb == SIM_EXPECT_STATE && (!sim_job_state(sim, c->job, &state) || state != c->state))
        sim_fail(sim, "line %u: job %u is %s", c->line, c->job + 1, shoal_job_state_name((enum shoal_job_state)state));
    if (c->verb == SIM_EXPECT_ANSWERED && (sim->infers_open > 0 || sim->infers_answered != sim->infer_count))
        sim_fail(sim, "line %u: of %u requests for services %u are answered, and %u are open", c->line, sim->infer_count,
                 sim->infers_answered, sim->infers_open);
    for (uint32_t i = 0; c->verb == SIM_EXPECT_FINISHED && i < sim->job_count; i++)
        if (!sim_job_state(sim, i, &state) || state != SHOAL_JOB_FINISHED)
            sim_fail(sim, "line %u: job %u is %s after %llu of %llu steps", c->line, i + 1,
                     shoal_job_state_name((enum shoal_job_state)state), (unsigned long long)sim->jobs[i].steps_done,
                     (unsigned long long)sim->jobs[i].steps);
}

void sim_heal(struct sim *sim)
{
    sim_trace(sim, "everything is healed");
    sim_net_heal(sim);
    sim->options.loss = sim->options.duplicate = sim->options.slow = 0;
    for (uint32_t i = 0; i < sim->host_count; i++) {
        sim->hosts[i].disk.slow_ns = sim->hosts[i].disk.full_ns =
            0; /* one that hangs does so to its end: its write is out */
        if (sim->hosts[i].exists)
            sim_host_boot(&sim->hosts[i]);
    }
}

/* Between the host and another, or all others. */
static void cut(struct sim *sim, const struct sim_command *c, const struct sim_host *host, uint32_t other)
{
    void (*cut_one)(struct sim *, uint32_t, uint32_t) = c->verb == SIM_CUT ? sim_cut : sim_cut_links;

    for (uint32_t i = 0; i < sim->host_count; i++) {
        if (i == host->index || (c->b != SIM_ALL && i != other))
            continue;
        sim_trace(sim, "%s and h%u are cut%s%s", host->name, i + 1, c->one_way ? ", one way" : "",
                  c->verb == SIM_CUT ? "" : ", but for datagrams");
        cut_one(sim, host->index, i);
        if (!c->one_way)
            cut_one(sim, i, host->index);
    }
}

static void fault(struct sim *sim, const struct sim_command *c, struct sim_host *host, uint32_t other)
{
    switch (c->verb) {
    case SIM_KILL: sim_agent_kill(host); break;
    case SIM_KILL_WORKER:
    case SIM_STOP_WORKER: sim_worker_strike(host, c->verb == SIM_STOP_WORKER); break;
    case SIM_CRASH: sim_host_crash(host); break;
    case SIM_DESTROY: sim_host_destroy(host); break;
    case SIM_START: sim_host_boot(host); break;
    case SIM_PAUSE:
        sim_trace(sim, "%s: the agent stands still for %llu ms", host->name,
                  (unsigned long long)(c->number / SHOAL_MS));
        if (sim->now_ns + c->number > host->paused_ns) /* a shorter one would let what comes now overtake what waits */
            host->paused_ns = sim->now_ns + c->number;
        break;
    case SIM_STALL:
        sim_trace(sim, "%s: the disk hangs for %llu ms", host->name, (unsigned long long)(c->number / SHOAL_MS));
        host->disk.stall_ns = sim->now_ns + c->number;
        break;
    case SIM_SLOW_DISK:
        sim_trace(sim, "%s: the disk is %u times slower for %llu ms", host->name, c->times,
                  (unsigned long long)(c->number / SHOAL_MS));
        host->disk.slow_ns = sim->now_ns + c->number;
        host->disk.slow_times = c->times;
        break;
    case SIM_FULL_DISK:
        sim_trace(sim, "%s: the disk is full for %llu ms", host->name, (unsigned long long)(c->number / SHOAL_MS));
        host->disk.full_ns = sim->now_ns + c->number;
        break;
    case SIM_LOSE:
        if (sim_may_lose(sim, host->index))
            sim_host_destroy(host);
        break;
    case SIM_CUT_LINKS:
    case SIM_CUT: cut(sim, c, host, other); break;
    case SIM_CUT_DATA:
        if (other == UINT32_MAX || other == host->index)
            break;
        sim_trace(sim, "%s and h%u: nothing passes between their workers", host->name, other + 1);
        sim_path(sim, host->index, other)->data_cut = true;
        break;
    case SIM_WALL:
        sim_trace(sim, "%s: the wall clock jumps", host->name);
        host->wall_ms += (c->one_way ? -1 : 1) * (int64_t)(c->number / SHOAL_MS);
        break;
    case SIM_CLOG:
        if (other != UINT32_MAX && other != host->index)
            sim_path(sim, host->index, other)->clog_ns = sim->now_ns + c->number;
        break;
    default: break;
    }
}

void sim_command(struct sim *sim, const struct sim_command *c)
{
    char user[32];
    uint32_t host;

    switch (c->verb) {
    case SIM_SUBMIT:
        for (uint32_t i = 0; i == 0 || i < c->times; i++)
            new_job(sim, c);
        return;
    case SIM_HEAL:
        sim_trace(sim, "paths are healed");
        sim_net_heal(sim);
        return;
    case SIM_PARTITION:
        sim_trace(sim, "the mesh is partitioned");
        partition(sim, c);
        return;
    case SIM_LOSS: sim->options.loss = (uint32_t)c->number; return;
    case SIM_STOP: sim_ask_about(sim, c->job, SHOAL_SCHED_STOP); return;
    case SIM_DELETE: sim_ask_about(sim, c->job, SHOAL_SCHED_DELETE); return;
    case SIM_RECOVER: recover(sim, c); return;
    case SIM_SHOW: show(sim, c); return;
    case SIM_EXPECT_ENGINES:
    case SIM_EXPECT_SHRINKS:
    case SIM_EXPECT_STATE:
    case SIM_EXPECT_ARCHIVED:
    case SIM_EXPECT_GAP:
    case SIM_EXPECT_ANSWERED:
    case SIM_EXPECT_FINISHED: expect(sim, c); return;
    default: break;
    }
    if (c->a == SIM_ALL) {
        for (uint32_t i = 0; i < sim->host_count; i++) {
            if (c->verb == SIM_UNDRAIN && sim->hosts[i].draining)
                sim_drain(&sim->hosts[i], false);
            else if (c->verb != SIM_UNDRAIN && sim->hosts[i].exists)
                fault(sim, c, &sim->hosts[i], UINT32_MAX);
        }
        return;
    }
    host = resolve(sim, c->a);
    if (host == UINT32_MAX)
        return; /* nobody is that now */
    if (c->verb == SIM_USER) {
        (void)snprintf(user, sizeof(user), "u%llu", (unsigned long long)sim->request_count);
        sim_ask_mesh(sim, host, user);
        return;
    }
    if (c->verb == SIM_BURST)
        sim_burst(sim, host, c->job, c->number);
    else if (c->verb == SIM_REMOVE)
        sim_remove(sim, host);
    else if (c->verb == SIM_DRAIN || c->verb == SIM_UNDRAIN)
        sim_drain(&sim->hosts[host], c->verb == SIM_DRAIN);
    else if (c->verb == SIM_RECOVER_MESH)
        sim_recover_mesh(sim, host);
    else
        fault(sim, c, &sim->hosts[host], resolve(sim, c->b));
}
