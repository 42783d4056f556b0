/* Virtual time: the heap of events and the loop. What an event means is said in the other files.
 *
 * Run: boot the hosts, found the mesh, then the script's times count; after its last command every fault is healed and
 * the mesh must converge (sim_check.c) within SIM_SETTLE_NS. */
#include "shoal/sched_look.h"
#include "sim.h"
#include "sim_service.h"

#include <stdarg.h>

#include "shoal/banned.h"

/* Four lie in a line of memory and a half: a heap of millions is half as deep. */
#define HEAP_CHILDREN 4u
#define SETTLE_CHECK_NS (250 * SHOAL_MS)
/* More events than this at one instant: something spins. */
#define SAME_INSTANT_MAX 200000u
/* ... or within one second, as two hosts that answer each other for ever do. A mesh that works takes a tenth of it. */
#define SECOND_EVENTS_MAX 20000u
#define SECOND_HOST_EVENTS_MAX 3000u
/* ... and each host of a mesh that starts dials each other one, and both hear of the link: about three for a pair. */
#define SECOND_PAIR_EVENTS_MAX 4u

void *sim_alloc(size_t bytes)
{
    void *memory = calloc(1, bytes);

    SHOAL_ASSERT(memory != NULL);
    return memory;
}

void *sim_grow(void *array, size_t *cap, size_t need, size_t item)
{
    size_t grown = *cap == 0 ? 16 : *cap;

    if (need <= *cap)
        return array;
    while (grown < need)
        grown *= 2;
    array = realloc(array, grown * item);
    SHOAL_ASSERT(array != NULL);
    memset((uint8_t *)array + *cap * item, 0, (grown - *cap) * item);
    *cap = grown;
    return array;
}

struct shoal_view sim_copy(struct shoal_view view)
{
    uint8_t *bytes = sim_alloc(view.len + 1);

    if (view.len > 0)
        memcpy(bytes, view.bytes, view.len);
    return shoal_view_of(bytes, view.len);
}

void sim_mix(struct sim *sim, uint64_t word)
{
    sim->hash = (sim->hash ^ word) * 0x100000001b3u;
    sim->hash ^= sim->hash >> 29;
}

uint64_t sim_hash_bytes(struct shoal_view bytes)
{
    uint64_t h = 0xcbf29ce484222325u ^ bytes.len;
    size_t i = 0;

    for (; i + 8 <= bytes.len; i += 8) {
        uint64_t word = 0;

        for (unsigned b = 0; b < 8; b++)
            word |= (uint64_t)bytes.bytes[i + b] << (8 * b);
        h = (h ^ word) * 0x100000001b3u;
        h ^= h >> 32;
    }
    for (; i < bytes.len; i++)
        h = (h ^ bytes.bytes[i]) * 0x100000001b3u;
    return h ^ h >> 29;
}

uint64_t sim_key_job(struct shoal_job_id id) { return sim_hash_bytes(shoal_view_of(id.bytes, sizeof(id.bytes))); }

void sim_stream(const struct sim *sim, struct shoal_rand *rand, const char *label, uint64_t a, uint64_t b)
{
    uint64_t state = sim->options.seed ^ sim_hash_bytes(shoal_view_text(label));
    uint64_t seed = shoal_splitmix64(&state) ^ a * 0x9e3779b97f4a7c15u;

    seed = shoal_splitmix64(&seed) ^ b;
    shoal_rand_init(rand, shoal_splitmix64(&seed));
}

uint64_t sim_about(struct shoal_rand *rand, uint64_t mean_ns)
{
    return mean_ns / 2 + shoal_rand_below(rand, mean_ns + 1);
}

void sim_trace(const struct sim *sim, const char *format, ...)
{
    uint64_t us = sim->base_ns == UINT64_MAX || sim->now_ns < sim->base_ns ? 0 : (sim->now_ns - sim->base_ns) / 1000;
    va_list args;

    if (!sim->trace)
        return;
    (void)printf("[%4llu.%06llu] ", (unsigned long long)(us / 1000000), (unsigned long long)(us % 1000000));
    va_start(args, format);
    (void)vprintf(format, args);
    va_end(args);
    (void)putchar('\n');
}

void sim_fail(struct sim *sim, const char *format, ...)
{
    uint64_t ms =
        sim->base_ns == UINT64_MAX || sim->now_ns < sim->base_ns ? 0 : (sim->now_ns - sim->base_ns) / SHOAL_MS;
    va_list args;
    int used;

    if (sim->failed)
        return; /* the first one is the cause */
    sim->failed = true;
    used =
        snprintf(sim->failure, sizeof(sim->failure), "at %llu.%03llu s, event %llu: ", (unsigned long long)(ms / 1000),
                 (unsigned long long)(ms % 1000), (unsigned long long)sim->events);
    va_start(args, format);
    (void)vsnprintf(sim->failure + used, sizeof(sim->failure) - (size_t)used, format, args);
    va_end(args);
    sim_trace(sim, "FAIL %s", sim->failure);
}

/* ---- the map: open addresses, one step at a time ---- */

static size_t map_at(const struct sim_map *map, uint64_t key)
{
    uint64_t state = key;
    size_t at = (size_t)shoal_splitmix64(&state) & (map->cap - 1);

    while (map->places[at].value != 0 && map->places[at].key != key)
        at = (at + 1) & (map->cap - 1);
    return at;
}

uint64_t sim_map_find(const struct sim_map *map, uint64_t key)
{
    return map->cap == 0 ? 0 : map->places[map_at(map, key)].value;
}

static void map_grow(struct sim_map *map)
{
    struct sim_map grown = { .cap = map->cap == 0 ? 64 : 2 * map->cap, .count = map->count };

    grown.places = sim_alloc(grown.cap * sizeof(*grown.places));
    for (size_t i = 0; i < map->cap; i++)
        if (map->places[i].value != 0)
            grown.places[map_at(&grown, map->places[i].key)] = map->places[i];
    free(map->places);
    *map = grown;
}

void sim_map_put(struct sim_map *map, uint64_t key, uint64_t value)
{
    size_t at;

    SHOAL_ASSERT(value != 0);
    if (2 * (map->count + 1) > map->cap)
        map_grow(map);
    at = map_at(map, key);
    map->count += map->places[at].value == 0;
    map->places[at].key = key;
    map->places[at].value = value;
}

/* An event behind a place that falls free may have been pushed there by it: it is put anew. */
void sim_map_remove(struct sim_map *map, uint64_t key)
{
    size_t at = map->cap == 0 ? 0 : map_at(map, key);

    if (map->cap == 0 || map->places[at].value == 0)
        return;
    map->places[at].value = 0;
    map->count--;
    for (at = (at + 1) & (map->cap - 1); map->places[at].value != 0; at = (at + 1) & (map->cap - 1)) {
        struct sim_place moved = map->places[at];

        map->places[at].value = 0;
        map->places[map_at(map, moved.key)] = moved;
    }
}

void sim_map_deinit(struct sim_map *map)
{
    free(map->places);
    *map = (struct sim_map){ 0 };
}

/* ---- the heap ---- */

static bool before(const struct sim_due *a, const struct sim_due *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->seq < b->seq;
}

static void insert(struct sim *sim, struct sim_event *event)
{
    struct sim_due due = { .at_ns = event->at_ns, .seq = ++sim->seq, .event = event };
    size_t at = sim->queue_count++;

    sim->queue = sim_grow(sim->queue, &sim->queue_cap, sim->queue_count, sizeof(*sim->queue));
    while (at > 0 && before(&due, &sim->queue[(at - 1) / HEAP_CHILDREN])) {
        sim->queue[at] = sim->queue[(at - 1) / HEAP_CHILDREN];
        at = (at - 1) / HEAP_CHILDREN;
    }
    sim->queue[at] = due;
}

struct sim_event *sim_push(struct sim *sim, enum sim_kind kind, uint32_t to, uint64_t delay_ns)
{
    struct sim_event *event = sim->spare;

    if (event == NULL)
        event = sim_alloc(sizeof(*event));
    else
        sim->spare = event->next;
    *event = (struct sim_event){ .at_ns = sim->now_ns + delay_ns, .kind = kind, .to = to, .life = sim->hosts[to].life };
    insert(sim, event);
    return event;
}

/* The first of the children of `at`. */
static size_t first_child(const struct sim *sim, size_t at)
{
    size_t first = HEAP_CHILDREN * at + 1, best = first;

    for (size_t child = first + 1; child < first + HEAP_CHILDREN && child < sim->queue_count; child++)
        if (before(&sim->queue[child], &sim->queue[best]))
            best = child;
    return best;
}

static struct sim_event *pop(struct sim *sim)
{
    struct sim_event *first = sim->queue[0].event;
    struct sim_due last = sim->queue[--sim->queue_count];
    size_t at = 0;

    while (HEAP_CHILDREN * at + 1 < sim->queue_count) {
        size_t child = first_child(sim, at);

        if (!before(&sim->queue[child], &last))
            break;
        sim->queue[at] = sim->queue[child];
        at = child;
    }
    if (sim->queue_count > 0)
        sim->queue[at] = last;
    return first;
}

void sim_event_bytes(struct sim_event *event, struct shoal_view bytes) { event->bytes = sim_copy(bytes); }

static void event_free(struct sim *sim, struct sim_event *event)
{
    free((void *)(uintptr_t)event->bytes.bytes);
    free(event->answer);
    free(event->record);
    event->next = sim->spare;
    sim->spare = event;
}

/* ---- the loop ---- */

static void handle(struct sim *sim, struct sim_event *event)
{
    sim_mix(sim, event->at_ns);
    sim_mix(sim, (uint64_t)event->kind << 48 | (uint64_t)event->to << 32 | event->from);
    sim_mix(sim, event->word);
    if (event->bytes.len > 0)
        sim_mix(sim, sim_hash_bytes(event->bytes));
    switch (event->kind) {
    case SIM_PUMP: sim_pump(sim, event); break;
    case SIM_LINK_CHECK: sim_link_check(sim, event); break;
    case SIM_DIAL: sim_dial(sim, event); break;
    case SIM_TRAIN: sim_train(sim, (uint32_t)event->word); break;
    case SIM_COMMAND: sim_command(sim, &sim->script->commands[event->word]); break;
    case SIM_RETRY: sim_submit(sim, (uint32_t)event->word); break;
    case SIM_CLIENT: sim_client(sim, (uint32_t)event->word); break;
    default: sim_host_event(&sim->hosts[event->to], event); break;
    }
}

/* The events of a stopped agent wait; processes, disks and the network go on. */
static bool for_agent(enum sim_kind kind)
{
    return kind != SIM_PUMP && kind != SIM_LINK_CHECK && kind != SIM_DIAL && kind != SIM_TRAIN && kind != SIM_COMMAND &&
           kind != SIM_RETRY && kind != SIM_CLIENT && kind != SIM_RUNNER_TIMER && kind != SIM_EXIT &&
           kind != SIM_WORK && kind != SIM_TO_WORKER;
}

static void count_event(struct sim *sim, const struct sim_event *event)
{
    uint32_t most = SECOND_EVENTS_MAX + sim->host_count * SECOND_HOST_EVENTS_MAX +
                    sim->host_count * sim->host_count * SECOND_PAIR_EVENTS_MAX;

    sim->events++;
    if (sim->now_ns / SHOAL_S != sim->second) {
        sim->second = sim->now_ns / SHOAL_S;
        sim->second_events = 0;
    }
    if (++sim->second_events > most)
        sim_fail(sim, "more than %u events within a second; the last is of kind %d at host %u", most, (int)event->kind,
                 event->to + 1);
}

/* Until `until_ns`, a failure, or nothing is left. */
static void run_until(struct sim *sim, uint64_t until_ns)
{
    uint64_t instant_ns = UINT64_MAX;
    unsigned same = 0;

    while (!sim->failed && sim->queue_count > 0 && sim->queue[0].at_ns <= until_ns) {
        struct sim_event *event = pop(sim);

        if (event->at_ns != instant_ns)
            same = 0;
        instant_ns = event->at_ns;
        if (++same > SAME_INSTANT_MAX)
            sim_fail(sim, "more than %u events at one instant; the last is of kind %d at host %u", SAME_INSTANT_MAX,
                     (int)event->kind, event->to + 1);
        sim->now_ns = event->at_ns;
        if (for_agent(event->kind) && sim->hosts[event->to].paused_ns > sim->now_ns) {
            event->at_ns = sim->hosts[event->to].paused_ns;
            insert(sim, event);
            continue;
        }
        count_event(sim, event);
        handle(sim, event);
        event_free(sim, event);
    }
    if (!sim->failed)
        sim->now_ns = until_ns;
}

/* The mesh is founded and everyone sees everyone. */
static bool is_ready(struct sim *sim)
{
    if (!sim->mesh_made)
        return false;
    for (uint32_t i = 0; i < sim->options.hosts; i++)
        if (shoal_swim_live_count(sim->hosts[i].swim) != sim->options.hosts ||
            !shoal_sched_mesh_writable(sim->hosts[i].sched))
            return false;
    return true;
}

static void commands_arm(struct sim *sim)
{
    sim->base_ns = sim->now_ns;
    for (uint32_t i = 0; i < sim->options.readers; i++)
        sim_push(sim, SIM_CLIENT, 0, sim_about(&sim->reader_chance, sim->options.think_ns))->word = i;
    for (size_t i = 0; i < sim->script->count; i++)
        sim_push(sim, SIM_COMMAND, 0, sim->script->commands[i].at_ns)->word = i;
}

static void boot(struct sim *sim)
{
    /* News reach a large mesh in rounds of logarithmic number, but each of its agents says who it is. */
    uint64_t end_ns = sim->now_ns + SIM_READY_NS + sim->options.hosts * 100 * SHOAL_MS;

    for (uint32_t i = 0; i < sim->options.hosts; i++)
        sim_host_boot(&sim->hosts[i]);
    run_until(sim, sim->now_ns + 200 * SHOAL_MS);
    if (!sim->failed)
        sim_ask_mesh(sim, 0, NULL);
    while (!sim->failed && !is_ready(sim)) {
        run_until(sim, sim->now_ns + 50 * SHOAL_MS);
        if (sim->now_ns > end_ns)
            sim_fail(sim, "the mesh of %u was not ready within %u s", sim->options.hosts,
                     (unsigned)((end_ns - 1000 * SHOAL_S) / SHOAL_S));
    }
}

/* Whether an agent still stands still, or a disk hangs, which no healing ends. */
static bool some_wait(const struct sim *sim)
{
    for (uint32_t i = 0; i < sim->host_count; i++)
        if (sim->hosts[i].agent && (sim->hosts[i].paused_ns > sim->now_ns || sim->hosts[i].disk.stall_ns > sim->now_ns))
            return true;
    return false;
}

/* All faults are healed: the mesh must come to rest. */
static void settle(struct sim *sim)
{
    char why[512] = "";
    uint64_t end_ns = sim->now_ns + SIM_SETTLE_NS;
    unsigned calm = 0;

    sim->settling = true;
    while (!sim->failed && calm < 4) {
        run_until(sim, sim->now_ns + SETTLE_CHECK_NS);
        calm = !sim->failed && !some_wait(sim) && sim_converged(sim, why, sizeof(why)) ? calm + 1 : 0;
        if (sim->now_ns > end_ns && calm == 0)
            sim_fail(sim, "no convergence within %u s of the last fault: %s", (unsigned)(SIM_SETTLE_NS / SHOAL_S), why);
    }
}

static void probe(struct sim *sim)
{
    char why[512];

    sim_probe_begin(sim);
    run_until(sim, sim->now_ns + 3 * SHOAL_S); /* each question has its answer by then */
    while (!sim->failed && !sim_probe_done(sim, why, sizeof(why)))
        run_until(sim, sim->now_ns + SETTLE_CHECK_NS);
}

bool sim_run(struct sim *sim)
{
    uint64_t last_ns = 0;

    boot(sim);
    if (sim->failed)
        return false;
    sim_trace(sim, "the mesh of %u hosts is ready", sim->options.hosts);
    sim->options.loss = sim->script->options.loss;
    commands_arm(sim);
    for (size_t i = 0; i < sim->script->count; i++)
        if (sim->script->commands[i].at_ns > last_ns)
            last_ns = sim->script->commands[i].at_ns;
    run_until(sim, sim->base_ns + last_ns);
    if (!sim->failed)
        sim_heal(sim);
    settle(sim);
    if (!sim->failed && sim->options.probe)
        probe(sim);
    return !sim->failed;
}

/* ---- life ---- */

struct sim *sim_create(const struct sim_script *script, bool trace)
{
    struct sim *sim = sim_alloc(sizeof(*sim));

    sim->script = script;
    sim->options = script->options;
    sim->options.loss = 0; /* the script's loss begins when the mesh is ready */
    sim->trace = trace;
    sim->now_ns = 1000 * SHOAL_S;
    sim->base_ns = UINT64_MAX;
    sim->struck = UINT32_MAX;
    sim->hash = 0xcbf29ce484222325u;
    sim->host_count = sim_script_hosts(script);
    sim->hosts = sim_alloc(sim->host_count * sizeof(*sim->hosts));
    sim->pool = shoal_gossip_pool_create(0);
    sim->sched_actions = sim_alloc(sizeof(*sim->sched_actions));
    sim->swim_actions = sim_alloc(sizeof(*sim->swim_actions));
    sim->message = sim_alloc(sizeof(*sim->message));
    SHOAL_ASSERT(sim->pool != NULL);
    sim_stream(sim, &sim->command_chance, "commands", 0, 0);
    sim_stream(sim, &sim->reader_chance, "readers", 0, 0);
    sim_stream(sim, &sim->service_chance, "services", 0, 0);
    for (uint32_t i = 0; i < sim->host_count; i++)
        sim_host_init(sim, i);
    return sim;
}

void sim_destroy(struct sim *sim)
{
    for (size_t i = 0; i < sim->queue_count; i++)
        event_free(sim, sim->queue[i].event);
    while (sim->spare != NULL) {
        struct sim_event *spare = sim->spare;

        sim->spare = spare->next;
        free(spare);
    }
    for (uint32_t i = 0; i < sim->host_count; i++) {
        struct sim_host *host = &sim->hosts[i];

        sim_workers_crash(host);
        shoal_sched_destroy(host->sched);
        shoal_swim_destroy(host->swim);
        sim_disk_deinit(host);
        sim_service_deinit(host);
        for (size_t r = 0; r < host->replica_count; r++)
            free(host->replicas[r].log);
        free(host->replicas);
        free(host->runners);
    }
    for (uint32_t i = 0; i < sim->job_count; i++) {
        shoal_buf_deinit(&sim->jobs[i].ticket);
        free(sim->jobs[i].task_states);
        free(sim->jobs[i].revisions);
    }
    sim_net_deinit(sim);
    sim_check_deinit(sim);
    shoal_gossip_pool_destroy(sim->pool);
    sim_map_deinit(&sim->host_index);
    sim_map_deinit(&sim->job_index);
    sim_map_deinit(&sim->workers);
    free(sim->hosts);
    free(sim->jobs);
    free(sim->requests);
    free(sim->infers);
    free(sim->queue);
    free(sim->sched_actions);
    free(sim->swim_actions);
    free(sim->message);
    free(sim);
}
