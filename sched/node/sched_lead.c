/* Leads of jobs on this node: made, told, stepped, ended.
 *
 *     committed entries, hosts' health, targets --> lead --> proposals, host messages, summaries
 *
 * J1. A lead lives while its node leads, and begins when an entry of its term is applied: it sees all that was
 *     committed.
 * J2. What a lead was told of hosts is a list in step with the node table: who left the table leaves the list, and it is never
 *     longer.
 * J3. A lead is told whether a quorum supports it before it may renew a lease. */
#include "shoal/job_facts.h"
#include "sched_lead.h"
#include "sched_group.h"
#include "sched_index.h"
#include "sched_node.h"
#include "sched_park.h"
#include "sched_slots.h"
#include "sched_state.h"
#include "sched_view.h"

#include "shoal/banned.h"

struct told_host {
    struct shoal_node_id node;
    enum shoal_lead_health health;
    bool draining;
    bool no_slots;
    bool plain_jobs;
    uint32_t host_epoch;
    uint32_t links;
    uint64_t slots_version;
};

/* The state that a lead was told last. */
struct sched_lead_state {
    bool supported;
    uint64_t config_index;
    struct shoal_hash target; /* of the newest TARGET */
    uint64_t waiting_mark;    /* of the newest that gave it nothing; 0: another came after it */
    size_t host_count, host_cap;
    struct told_host *hosts;
    uint64_t nodes_dropped; /* as the node's, when the list was in step with its table */
};

void sched_lead_delete(struct shoal_sched *s, struct sched_group *g)
{
    struct frame frame = { .kind = FRAME_GONE };

    SHOAL_ASSERT(g->leads && !g->mesh_is);
    if (g->doomed_ns != SCHED_NEVER)
        return;
    frame.u.who.job = g->id;
    for (unsigned i = 0; i < g->told_count; i++)
        sched_send(s, g->told[i].node, &frame);
    sched_summary_gone(s, g, false);
    sched_group_doom(s, g, 200 * SHOAL_MS, true);
}

static void lead_actions(struct shoal_sched *s, struct sched_group *g)
{
    const struct shoal_lead_actions *actions = s->lead_actions;
    struct shoal_entry *entry;

    SHOAL_ASSERT(s->lead_actions->count <= SHOAL_LEAD_ACTIONS_MAX);
    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    for (uint32_t i = 0; i < actions->count && g->lead != NULL; i++) {
        const struct shoal_lead_action *action = &actions->list[i];

        switch (action->kind) {
        case SHOAL_LEAD_SEND: sched_host_send(s, action->to, action->bytes); break;
        case SHOAL_LEAD_PROPOSE:
            entry = sched_has_room(s) ? sched_propose(s, g, action->bytes, SCHED_CTX_LEAD) : NULL;
            if (entry == NULL) {
                g->lead_refused = true;
                sched_group_dirty(s, g);
            }
            shoal_entry_unref(entry);
            break;
        case SHOAL_LEAD_SUMMARY:
            sched_summary_publish(s, g, action->bytes, action->demand_new);
            sched_index_dirty(s, g);
            sched_view_changed(s);
            break;
        case SHOAL_LEAD_DEMAND:
            sched_news_summary(s, g, action->bytes);
            sched_view_changed(s);
            break;
        case SHOAL_LEAD_DELETE: sched_lead_delete(s, g); break;
        }
    }
}

void sched_lead_event(struct shoal_sched *s, struct sched_group *g, struct shoal_lead_event *event)
{
    SHOAL_ASSERT(g->lead == NULL || g->lead_state != NULL); /* J1 */
    if (g->lead == NULL)
        return;
    event->wall_ms = s->wall_ms;
    if (shoal_lead_step(g->lead, event, s->now, s->lead_actions) != SHOAL_OK)
        s->stats.frames_malformed++;
    lead_actions(s, g);
}

enum shoal_lead_health sched_health_of(const struct shoal_sched *s, const struct sched_node *node)
{
    SHOAL_ASSERT(node->info.state <= SHOAL_SCHED_NODE_FORGOTTEN);
    if (sched_is_self(s, node->info.id))
        return SHOAL_LEAD_HOST_WELL;
    if (sched_node_is_gone(s, node))
        return SHOAL_LEAD_HOST_GONE;
    return sched_silent_since(s, node->info.id) == 0 ? SHOAL_LEAD_HOST_WELL : SHOAL_LEAD_HOST_SILENT;
}

static bool is_news(const struct told_host *told, const struct told_host *now)
{
    SHOAL_ASSERT(told->health <= SHOAL_LEAD_HOST_GONE);
    return told->health != now->health || told->draining != now->draining || told->no_slots != now->no_slots ||
           told->plain_jobs != now->plain_jobs || told->host_epoch != now->host_epoch || told->links != now->links ||
           told->slots_version != now->slots_version;
}

static void tell_host(struct shoal_sched *s, struct sched_group *g, size_t at, const struct told_host *now)
{
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_HOST };

    SHOAL_ASSERT(at < g->lead_state->host_count);
    if (!is_news(&g->lead_state->hosts[at], now))
        return;
    g->lead_state->hosts[at] = *now;
    event.u.host.node = now->node;
    event.u.host.health = now->health;
    event.u.host.draining = now->draining;
    event.u.host.no_slots = now->no_slots;
    event.u.host.plain_jobs = now->plain_jobs;
    event.u.host.host_epoch = now->host_epoch;
    event.u.host.links = now->links;
    event.u.host.slots_version = now->slots_version;
    sched_lead_event(s, g, &event);
}

/* Nodes left the table since this list was made. */
static void drop_hosts(const struct shoal_sched *s, struct sched_lead_state *state)
{
    size_t kept = 0;

    for (size_t i = 0; i < state->host_count; i++)
        if (sched_node_find(s, state->hosts[i].node) != NULL)
            state->hosts[kept++] = state->hosts[i];
    state->host_count = kept;
    state->nodes_dropped = s->nodes_dropped;
    SHOAL_ASSERT(state->host_count <= s->node_count); /* J2: a list in step with the nodes */
}

/* Its Python does not have what the job's framework imports, or its agent takes no such job: no worker goes there, and no
 * driver. */
static bool lacks(const struct shoal_sched *s, const struct sched_group *g, const struct sched_node *node)
{
    SHOAL_ASSERT(g->job != NULL); /* J1 */
    return !sched_node_takes(s, node, g->job->spec.workers_max) ||
           !shoal_host_serves(node->info.serves,
                              shoal_framework_needs(g->job->spec.framework, shoal_job_spec_serves(&g->job->spec)));
}

/* The nodes keep their order of ids, so the lead state's list is walked in step with them. */
static void tell_hosts(struct shoal_sched *s, struct sched_group *g)
{
    struct sched_lead_state *state = g->lead_state;
    size_t at = 0;

    SHOAL_ASSERT(g->lead_state != NULL); /* J1 */
    if (state->nodes_dropped != s->nodes_dropped)
        drop_hosts(s, state);
    if (state->host_cap < s->node_count) {
        struct told_host *grown = realloc(state->hosts, s->node_cap * sizeof(*grown));

        if (grown == NULL)
            return;
        state->hosts = grown;
        state->host_cap = s->node_cap;
    }
    for (size_t i = 0; i < s->node_count && g->lead != NULL; i++, at++) {
        const struct sched_node *node = &s->nodes[i];
        struct shoal_slots_record record;
        struct told_host now = { .node = node->info.id,
                                 .health = sched_health_of(s, node),
                                 .draining = node->info.draining,
                                 .no_slots = node->info.slots == 0 || lacks(s, g, node),
                                 .plain_jobs = !sched_node_takes(s, node, g->job->spec.workers_max),
                                 .host_epoch = node->info.incarnation.host_epoch,
                                 .links = node->links,
                                 .slots_version = node->info.record_seq };

        if (sched_is_self(s, now.node)) {
            shoal_slots_record(s->slots.core, &record);
            now.no_slots = record.slots == 0 || lacks(s, g, node);
            now.slots_version = record.version;
            now.host_epoch = record.host_epoch;
        }
        if (at >= state->host_count || !shoal_node_id_equal(state->hosts[at].node, now.node)) {
            memmove(&state->hosts[at + 1], &state->hosts[at], (state->host_count - at) * sizeof(now));
            state->hosts[at] = (struct told_host){ .node = now.node, .slots_version = UINT64_MAX }; /* nothing yet */
            state->host_count++;
        }
        tell_host(s, g, at, &now);
    }
}

static void tell_guardians(struct shoal_sched *s, struct sched_group *g)
{
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_GUARDIANS };
    struct shoal_node_id nodes[SHOAL_GROUP_NODES_MAX];

    SHOAL_ASSERT(g->lead_state != NULL); /* J1 */
    if (g->lead_state->config_index == g->config_index)
        return;
    g->lead_state->config_index = g->config_index;
    event.u.guardians.nodes = nodes;
    event.u.guardians.count = (uint32_t)sched_group_guardians(g, nodes, SHOAL_HOST_SOURCES_MAX);
    sched_lead_event(s, g, &event);
}

static void tell_supported(struct shoal_sched *s, struct sched_group *g)
{
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_SUPPORTED };
    bool supported = shoal_raft_leads_supported(g->raft, s->now);

    SHOAL_ASSERT(g->lead_state != NULL); /* J3 */
    if (g->lead_state->supported == supported)
        return;
    g->lead_state->supported = supported;
    event.u.supported = supported;
    sched_lead_event(s, g, &event);
}

static void tell_stamps(struct shoal_sched *s, struct sched_group *g)
{
    struct shoal_node_id nodes[SHOAL_PLACEMENTS_MAX];
    size_t count = shoal_lead_hosts(g->lead, nodes, SHOAL_PLACEMENTS_MAX);

    SHOAL_ASSERT(g->lead != NULL); /* J1 */
    for (size_t i = 0; i < count && i < SHOAL_PLACEMENTS_MAX; i++) {
        const struct shoal_support_peer *peer;

        if (sched_is_self(s, nodes[i])) {
            shoal_lead_stamp(g->lead, nodes[i], s->incarnation.host_epoch, s->now);
            continue;
        }
        peer = shoal_support_find(s->support, nodes[i]);
        if (peer != NULL && peer->slot_stamp != 0)
            shoal_lead_stamp(g->lead, nodes[i], peer->incarnation.host_epoch, peer->slot_stamp);
    }
}

static bool lead_begin(struct shoal_sched *s, struct sched_group *g)
{
    struct shoal_lead_options options = {
        .job = g->job,
        .self = s->self,
        .term = g->term,
        .now_ns = s->now,
        .lease_ns = s->options.lease_ns,
    };

    SHOAL_ASSERT(g->lead == NULL && g->lead_state == NULL); /* J1 */
    SHOAL_ASSERT(g->applied_term == g->term);               /* J1 */
    shoal_rand_init(&options.rand, shoal_rand_u64(&s->chance));
    /* Tokens are secrets: all of the state comes from the system's chance, not only 64 bits of it. */
    for (unsigned i = 0; i < 4; i++)
        options.rand.state[i] ^= shoal_rand_u64(&s->chance);
    g->lead_state = calloc(1, sizeof(*g->lead_state));
    if (g->lead_state == NULL || shoal_lead_create(&g->lead, &options) != SHOAL_OK) {
        free(g->lead_state);
        g->lead_state = NULL;
        g->lead_ns = s->now + SHOAL_S; /* no memory: tried again */
        return false;
    }
    g->lead_state->supported = true; /* as the lead starts out */
    g->changed |= SHOAL_JOB_CHANGED_STATE;
    sched_view_changed(s);
    return true;
}

void sched_lead_end(struct sched_group *g)
{
    SHOAL_ASSERT((g->lead == NULL) == (g->lead_state == NULL)); /* J1 */
    shoal_lead_destroy(g->lead);
    g->lead = NULL;
    if (g->lead_state != NULL)
        free(g->lead_state->hosts);
    free(g->lead_state);
    g->lead_state = NULL;
    g->lead_ns = SCHED_NEVER;
    g->lead_refused = false;
}

void sched_lead_tend(struct shoal_sched *s, struct sched_group *g)
{
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_TIMER };

    SHOAL_ASSERT(g->raft != NULL);
    if (!g->leads || g->job == NULL || g->stopped) {
        g->changed = 0;
        if (g->lead != NULL)
            sched_lead_end(g);
        return;
    }
    if (g->lead == NULL && (g->applied_term != g->term || sched_park_holds(s, g) || !lead_begin(s, g))) /* J1 */
        return;
    tell_supported(s, g);
    tell_guardians(s, g);
    tell_hosts(s, g);
    tell_stamps(s, g);
    if (g->lead_refused && g->lead != NULL) {
        g->lead_refused = false;
        event.kind = SHOAL_LEAD_REFUSED;
        sched_lead_event(s, g, &event);
    }
    if (g->changed != 0 && g->lead != NULL) {
        event.kind = SHOAL_LEAD_APPLIED;
        event.u.changed = g->changed;
        g->changed = 0;
        sched_lead_event(s, g, &event);
        sched_view_changed(s);
    }
    if (g->lead != NULL && s->now >= shoal_lead_deadline_ns(g->lead)) {
        event.kind = SHOAL_LEAD_TIMER;
        sched_lead_event(s, g, &event);
    }
    if (g->lead != NULL)
        g->lead_ns = shoal_lead_deadline_ns(g->lead);
    sched_interest_later(s);
}

/* A lead keeps its target: only another one is told. */
static struct shoal_hash target_hash(const struct shoal_sched *s, const struct shoal_lead_event *event)
{
    uint8_t bytes[SHOAL_JOB_REASON_BYTES + 8 + SHOAL_JOB_WORKERS_MAX * 20];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));

    SHOAL_ASSERT(event->kind == SHOAL_LEAD_TARGET);
    shoal_put_u32(&w, event->u.target.count);
    shoal_put_raw(&w, event->u.target.why, strlen(event->u.target.why));
    for (uint32_t i = 0; i < event->u.target.slot_count && i < SHOAL_JOB_WORKERS_MAX; i++) {
        shoal_put_node_id(&w, event->u.target.slots[i].node);
        shoal_put_u32(&w, event->u.target.slots[i].slot);
    }
    return sched_hash(s, shoal_writer_view(&w));
}

bool sched_lead_waits_as(struct sched_group *g, uint64_t mark)
{
    bool same;

    SHOAL_ASSERT(g->lead != NULL);       /* J1 */
    SHOAL_ASSERT(g->lead_state != NULL); /* J1 */
    same = mark != 0 && g->lead_state->waiting_mark == mark;
    g->lead_state->waiting_mark = mark;
    return same;
}

void sched_lead_target(struct shoal_sched *s, struct sched_group *g, struct shoal_lead_event *event)
{
    struct shoal_hash hash = target_hash(s, event);

    SHOAL_ASSERT(event->kind == SHOAL_LEAD_TARGET);
    SHOAL_ASSERT(g->lead_state != NULL); /* J1 */
    if (event->u.target.slot_count > 0)
        tell_hosts(s, g); /* a newer record of a host that has refused: it may be asked again */
    if (g->lead == NULL || shoal_hash_equal(hash, g->lead_state->target))
        return;
    g->lead_state->target = hash;
    sched_lead_event(s, g, event);
    if (g->lead != NULL)
        g->lead_ns = shoal_lead_deadline_ns(g->lead);
    sched_group_rearm(s, g);
}

/* The device of a job's slots: of the first that is known. */
static uint8_t device_of_slots(const struct shoal_sched *s, const struct shoal_job *job)
{
    SHOAL_ASSERT(job->placement_count <= job->placement_cap); /* J4 */
    for (uint32_t i = 0; i < job->placement_count; i++) {
        const struct shoal_placement *place = &job->placements[i];
        const struct sched_node *node = sched_node_find(s, place->node);
        bool self = sched_is_self(s, place->node);

        if (place->slot != SHOAL_SLOT_NONE && (self || node != NULL))
            return (self ? s->options.device : node->info.device) == SHOAL_SCHED_GPU ? SHOAL_JOB_DEVICE_GPU : SHOAL_JOB_DEVICE_CPU;
    }
    return SHOAL_JOB_DEVICE_AUTO;
}

void sched_job_facts(const struct shoal_sched *s, const struct sched_group *g, struct shoal_job_facts *facts)
{
    SHOAL_ASSERT(g->job != NULL);
    if (g->lead != NULL)
        shoal_lead_facts(g->lead, facts);
    else
        shoal_job_facts(g->job, facts);
    facts->leader = g->leader;
    facts->term = g->term;
    facts->applied = g->applied;
    if (facts->device == SHOAL_JOB_DEVICE_AUTO)
        facts->device = device_of_slots(s, g->job);
}

void sched_lead_floor(struct shoal_sched *s, const struct shoal_sched_event *from)
{
    struct sched_group *g = sched_group_find(s, from->u.floor.job);
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_FLOOR,
                                      .u.floor = { from->u.floor.count, from->u.floor.canary, from->u.floor.revision,
                                                   from->u.floor.need } };

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    SHOAL_ASSERT(from->kind == SHOAL_SCHED_FLOOR && from->u.floor.canary <= SHOAL_SERVICE_CANARY_MAX);
    if (g == NULL || g->lead == NULL)
        return; /* the leader is another node now: there it is said anew */
    sched_lead_event(s, g, &event);
    sched_group_dirty(s, g);
    sched_view_changed(s);
}

/* The lead of a job hears of its ledger too, when it is here. */
void sched_lead_records_mark(struct shoal_sched *s, const struct shoal_host_event *from)
{
    struct sched_group *g = sched_group_find(s, from->u.records_mark.job);
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_RECORDS_MARK };

    SHOAL_ASSERT(from->kind == SHOAL_HOST_ON_RECORDS_MARK);
    if (g == NULL || g->lead == NULL)
        return;
    event.u.records_mark.call = from->u.records_mark.call;
    event.u.records_mark.step = from->u.records_mark.step;
    sched_lead_event(s, g, &event);
    sched_group_dirty(s, g);
}
