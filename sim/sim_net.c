/* The network: datagrams are lost, delayed, repeated and overtake each other; links are ordered and break.
 *
 * N1. A lane of a link keeps its order and loses nothing while the link stands; a lost packet is a retransmission, 200
 *     ms.
 * N2. A path that is cut holds a link's frames; when that lasts, the link breaks and what it held is gone.
 * N3. A process that dies closes its links at once; a host that loses its power leaves them to their timeout.
 * N4. A dead agent's port refuses while its host is up; a host that is off, or behind a cut, says nothing. */
#include "sim.h"

#include "shoal/banned.h"

#define LINK_TIMEOUT_NS (3 * SHOAL_S)
#define DIAL_AGAIN_NS (500 * SHOAL_MS)
#define RETRANSMIT_NS (200 * SHOAL_MS)
#define CUT_CHECK_NS (20 * SHOAL_MS)

static struct sim_path *path_at(const struct sim *sim, size_t i)
{
    SHOAL_ASSERT(i < sim->path_count);
    return &sim->path_blocks[i / SIM_PATHS_A_BLOCK][i % SIM_PATHS_A_BLOCK];
}

/* NULL: they never met. */
static struct sim_path *path_find(const struct sim *sim, uint32_t from, uint32_t to)
{
    const uint32_t *row;

    SHOAL_ASSERT(from < sim->host_count && to < sim->host_count);
    row = sim->paths == NULL ? NULL : sim->paths[from];
    return row == NULL || row[to] == 0 ? NULL : path_at(sim, row[to] - 1);
}

struct sim_path *sim_path(struct sim *sim, uint32_t from, uint32_t to)
{
    struct sim_path *path = path_find(sim, from, to);
    size_t block = sim->path_count / SIM_PATHS_A_BLOCK;

    if (path != NULL)
        return path;
    if (sim->paths == NULL)
        sim->paths = sim_alloc(sim->host_count * sizeof(*sim->paths));
    if (sim->paths[from] == NULL)
        sim->paths[from] = sim_alloc(sim->host_count * sizeof(*sim->paths[from]));
    if (sim->path_count % SIM_PATHS_A_BLOCK == 0) {
        sim->path_blocks = sim_grow(sim->path_blocks, &sim->path_cap, block + 1, sizeof(struct sim_path *));
        sim->path_blocks[block] = sim_alloc(SIM_PATHS_A_BLOCK * sizeof(struct sim_path));
    }
    sim->paths[from][to] = (uint32_t)++sim->path_count;
    path = path_at(sim, sim->path_count - 1);
    path->from = from;
    path->to = to;
    sim_stream(sim, &path->chance, "path", from, to);
    return path;
}

const struct sim_path *sim_path_seen(const struct sim *sim, uint32_t from, uint32_t to)
{
    static const struct sim_path sound;
    const struct sim_path *path = path_find(sim, from, to);

    return path == NULL ? &sound : path;
}

static struct sim_path *link_of(struct sim *sim, uint32_t a, uint32_t b)
{
    return a < b ? sim_path(sim, a, b) : sim_path(sim, b, a);
}

bool sim_link_is_up(const struct sim *sim, uint32_t a, uint32_t b, uint64_t *number)
{
    const struct sim_path *link = a < b ? sim_path_seen(sim, a, b) : sim_path_seen(sim, b, a);

    *number = link->link_number;
    return link->link_up;
}

bool sim_can_talk(const struct sim *sim, uint32_t a, uint32_t b)
{
    return sim->hosts[a].powered && sim->hosts[b].powered &&
           (a == b || (!sim_path_seen(sim, a, b)->cut && !sim_path_seen(sim, b, a)->cut));
}

bool sim_can_train(const struct sim *sim, uint32_t a, uint32_t b)
{
    return sim_can_talk(sim, a, b) &&
           (a == b || (!sim_path_seen(sim, a, b)->data_cut && !sim_path_seen(sim, b, a)->data_cut));
}

static bool blocked(const struct sim *sim, uint32_t from, uint32_t to)
{
    const struct sim_path *path = sim_path_seen(sim, from, to);

    return path->cut || path->link_cut || path->clog_ns > sim->now_ns;
}

static bool draw(struct shoal_rand *rand, uint32_t per_mille)
{
    return per_mille > 0 && shoal_rand_below(rand, 1000) < per_mille;
}

static uint64_t delay(struct sim *sim, struct sim_path *path)
{
    uint64_t ns = sim->options.latency_ns + shoal_rand_below(&path->chance, sim->options.jitter_ns + 1);

    if (draw(&path->chance, sim->options.slow))
        ns += shoal_rand_below(&path->chance, 100 * SHOAL_MS); /* the slow tail */
    return ns;
}

/* ---- datagrams ---- */

void sim_datagram(struct sim *sim, enum sim_kind kind, uint32_t from, uint32_t to, struct shoal_view bytes)
{
    struct sim_path *path = sim_path(sim, from, to);
    unsigned copies = 1;

    sim->datagrams++;
    if (from != to && (path->cut || draw(&path->chance, sim->options.loss))) {
        sim->lost++;
        return;
    }
    if (draw(&path->chance, sim->options.duplicate))
        copies = 2;
    for (unsigned i = 0; i < copies; i++) {
        uint64_t ns = delay(sim, path);
        struct sim_event *event;

        if (path->clog_ns > sim->now_ns)
            ns += path->clog_ns - sim->now_ns;
        event = sim_push(sim, kind, to, ns);
        event->life = 0; /* whoever listens there then */
        event->from = from;
        sim_event_bytes(event, bytes);
    }
}

/* ---- links ---- */

static void lane_clear(struct sim_lane *lane)
{
    while (lane->first != NULL) {
        struct sim_frame *frame = lane->first;

        lane->first = frame->next;
        free(frame);
    }
    lane->last = NULL;
    lane->due_ns = 0;
}

static void lanes_clear(struct sim *sim, uint32_t a, uint32_t b)
{
    struct sim_path *both[] = { sim_path(sim, a, b), sim_path(sim, b, a) };

    for (unsigned i = 0; i < 2; i++)
        for (unsigned lane = 0; lane < SIM_LANES && both[i]->lanes != NULL; lane++)
            lane_clear(&both[i]->lanes[lane]);
}

static void tell(struct sim *sim, uint32_t to, uint32_t about, enum shoal_sched_link_state state, uint64_t delay_ns)
{
    struct sim_event *event = sim_push(sim, SIM_LINK, to, delay_ns);

    event->from = about;
    event->word = (uint64_t)state << 48 | link_of(sim, to, about)->link_number;
}

static void dial_later(struct sim *sim, uint32_t from, uint32_t to, uint64_t delay_ns)
{
    struct sim_event *event;

    if (sim_path(sim, from, to)->dialing)
        return;
    sim_path(sim, from, to)->dialing = true;
    event = sim_push(sim, SIM_DIAL, from, delay_ns + shoal_rand_below(&sim_path(sim, from, to)->chance, 20 * SHOAL_MS));
    event->from = to;
}

/* The one end that lives, or both, hear of it `delay_ns` later and dial again. */
static void link_break(struct sim *sim, uint32_t a, uint32_t b, uint64_t delay_ns)
{
    struct sim_path *link = link_of(sim, a, b);

    if (!link->link_up)
        return;
    link->link_up = false;
    lanes_clear(sim, a, b);
    for (unsigned side = 0; side < 2; side++) {
        uint32_t here = side == 0 ? a : b;
        uint32_t there = side == 0 ? b : a;

        if (!sim->hosts[here].agent)
            continue;
        tell(sim, here, there, SHOAL_SCHED_LINK_DOWN, delay_ns);
        if (sim_path(sim, here, there)->wanted)
            dial_later(sim, here, there, delay_ns + 50 * SHOAL_MS);
    }
}

void sim_want(struct sim *sim, uint32_t from, uint32_t to, bool wanted)
{
    sim_path(sim, from, to)->wanted = wanted;
    if (wanted && !link_of(sim, from, to)->link_up)
        dial_later(sim, from, to, SHOAL_MS);
}

void sim_dial(struct sim *sim, const struct sim_event *event)
{
    uint32_t from = event->to;
    uint32_t to = event->from;
    struct sim_path *path = sim_path(sim, from, to);
    struct sim_path *link = link_of(sim, from, to);

    if (event->life != sim->hosts[from].life)
        return; /* its successor dials for itself */
    path->dialing = false;
    if (!sim->hosts[from].agent || !path->wanted || link->link_up)
        return;
    if (!sim_can_talk(sim, from, to) || path->link_cut || sim_path_seen(sim, to, from)->link_cut ||
        sim->hosts[to].paused_ns > sim->now_ns || sim->hosts[from].paused_ns > sim->now_ns) {
        dial_later(sim, from, to, DIAL_AGAIN_NS);
    } else if (!sim->hosts[to].agent) {
        tell(sim, from, to, SHOAL_SCHED_LINK_REFUSED, delay(sim, path));
        dial_later(sim, from, to, DIAL_AGAIN_NS);
    } else {
        link->link_up = true;
        link->link_number = ++sim->link_number;
        lanes_clear(sim, from, to);
        tell(sim, from, to, SHOAL_SCHED_LINK_UP, 3 * delay(sim, path));
        tell(sim, to, from, SHOAL_SCHED_LINK_UP, 2 * delay(sim, path));
    }
}

void sim_frame(struct sim *sim, uint32_t from, uint32_t to, bool bulk, struct shoal_view bytes)
{
    struct sim_path *path = sim_path(sim, from, to);
    struct sim_lane *lane;
    struct sim_frame *frame;
    uint64_t due_ns = sim->now_ns + delay(sim, path);

    if (!link_of(sim, from, to)->link_up)
        return; /* lost: the core repeats */
    if (path->lanes == NULL)
        path->lanes = sim_alloc(SIM_LANES * sizeof(*path->lanes));
    lane = &path->lanes[bulk ? SIM_LANE_BULK : SIM_LANE_CONTROL];
    for (unsigned tries = 0; tries < 5 && draw(&path->chance, sim->options.loss); tries++)
        due_ns += RETRANSMIT_NS;
    if (bulk)
        due_ns += bytes.len * 10; /* 100 MB/s */
    frame = sim_alloc(sizeof(*frame) + bytes.len);
    frame->len = bytes.len;
    memcpy(frame->bytes, bytes.bytes, bytes.len);
    frame->due_ns = due_ns > lane->due_ns ? due_ns : lane->due_ns;
    lane->due_ns = frame->due_ns;
    if (lane->last == NULL)
        lane->first = frame;
    else
        lane->last->next = frame;
    lane->last = frame;
    if (!lane->pumping) {
        struct sim_event *event = sim_push(sim, SIM_PUMP, to, frame->due_ns - sim->now_ns);

        lane->pumping = true;
        event->from = from;
        event->word = bulk;
    }
}

static void deliver(struct sim *sim, uint32_t from, uint32_t to, const struct sim_frame *frame)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_FRAME };

    if (!sim->hosts[to].agent)
        return;
    sim_mix(sim, sim_hash_bytes(shoal_view_of(frame->bytes, frame->len)));
    event.u.frame.from = sim->hosts[from].id;
    event.u.frame.bytes = shoal_view_of(frame->bytes, frame->len);
    sim_sched_step(&sim->hosts[to], &event);
}

void sim_pump(struct sim *sim, const struct sim_event *event)
{
    uint32_t from = event->from;
    uint32_t to = event->to;
    struct sim_lane *lane = &sim_path(sim, from, to)->lanes[event->word];
    struct sim_frame *frame = lane->first;
    struct sim_event *next;
    uint64_t wait_ns = 0;

    lane->pumping = false;
    if (frame == NULL)
        return;
    if (frame->due_ns > sim->now_ns) {
        wait_ns = frame->due_ns - sim->now_ns;
    } else if (blocked(sim, from, to)) {
        wait_ns = CUT_CHECK_NS;
    } else if (sim->hosts[to].paused_ns > sim->now_ns) {
        wait_ns = CUT_CHECK_NS; /* its agent may be killed and started before that time */
    } else {
        lane->first = frame->next;
        if (lane->first == NULL)
            lane->last = NULL;
        deliver(sim, from, to, frame);
        free(frame);
        if (lane->first == NULL || lane->pumping)
            return;
        wait_ns = lane->first->due_ns > sim->now_ns ? lane->first->due_ns - sim->now_ns : 0;
    }
    lane->pumping = true;
    next = sim_push(sim, SIM_PUMP, to, wait_ns);
    next->from = from;
    next->word = event->word;
}

/* The agent at `host` is gone; `powered`: its kernel closes the links. */
void sim_links_lost(struct sim *sim, uint32_t host, bool powered)
{
    for (uint32_t i = 0; i < sim->host_count; i++) {
        if (i == host ||
            (path_find(sim, host, i) == NULL && path_find(sim, i, host) == NULL))
            continue; /* they never met */
        sim_path(sim, host, i)->dialing = false;
        sim_path(sim, host, i)->wanted = false;
        link_break(sim, host, i, powered && sim_can_talk(sim, host, i) ? sim->options.latency_ns : LINK_TIMEOUT_NS);
    }
}

/* N2: a link that is still held when this comes breaks. */
static void check_later(struct sim *sim, uint32_t from, uint32_t to)
{
    struct sim_event *event =
        sim_push(sim, SIM_LINK_CHECK, to, sim_about(&sim_path(sim, from, to)->chance, LINK_TIMEOUT_NS));

    event->from = from;
    event->word = link_of(sim, from, to)->link_number;
}

void sim_cut(struct sim *sim, uint32_t from, uint32_t to)
{
    if (from == to || sim_path(sim, from, to)->cut)
        return;
    sim_path(sim, from, to)->cut = true;
    check_later(sim, from, to);
}

void sim_cut_links(struct sim *sim, uint32_t from, uint32_t to)
{
    if (from == to || sim_path(sim, from, to)->link_cut)
        return;
    sim_path(sim, from, to)->link_cut = true;
    check_later(sim, from, to);
}

void sim_link_check(struct sim *sim, const struct sim_event *event)
{
    if ((sim_path(sim, event->from, event->to)->cut || sim_path(sim, event->from, event->to)->link_cut) &&
        link_of(sim, event->from, event->to)->link_number == event->word)
        link_break(sim, event->from, event->to, SHOAL_MS);
}

void sim_net_heal(struct sim *sim)
{
    for (size_t i = 0; i < sim->path_count; i++) {
        struct sim_path *path = path_at(sim, i);

        path->cut = path->link_cut = path->data_cut = false;
        path->clog_ns = 0;
    }
}

void sim_net_deinit(struct sim *sim)
{
    for (size_t i = 0; i < sim->path_count; i++) {
        struct sim_path *path = path_at(sim, i);

        for (unsigned lane = 0; lane < SIM_LANES && path->lanes != NULL; lane++)
            lane_clear(&path->lanes[lane]);
        free(path->lanes);
    }
    for (size_t i = 0; i < sim->path_count; i += SIM_PATHS_A_BLOCK)
        free(sim->path_blocks[i / SIM_PATHS_A_BLOCK]);
    for (uint32_t i = 0; i < sim->host_count && sim->paths != NULL; i++)
        free(sim->paths[i]);
    free(sim->path_blocks);
    free(sim->paths);
}
