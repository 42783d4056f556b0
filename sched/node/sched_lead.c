/* Jobs on this node: a lead for each job's group led here, the slots of this host, and the allocation that tells both
 * who deserves what.
 *
 *     committed entries, hosts' health, targets --> lead --> proposals, host messages, summaries
 *     host messages, workers' events            --> slots --> host messages, workers' orders
 *     nodes, summaries, own leads --> view --> allocate --> TARGET to each lead, TARGET to the slots
 *
 * J1. A lead lives while its node leads, and begins when an entry of its term is applied: it sees all that was
 *     committed.
 * J2. What lead and slots of one node tell each other waits in a queue: neither is stepped inside the other's step.
 * J3. A lead is told whether a quorum supports it before it may renew a lease. */
#include "sched_state.h"

#include "shoal/allocate.h"

#include "shoal/banned.h"

#define LOCAL_POOL_BYTES (2 * SHOAL_MIB)
/* Views are evaluated in batches, and not more often than the pause. Both are short, since a submitted job waits for
 * them, often just after the end of another; a view of many jobs and hosts costs more, and the pause grows with them,
 * so that evaluating takes a bounded share of a core. */
#define VIEW_GATHER_NS (2 * SHOAL_MS)
#define VIEW_PAUSE_NS (5 * SHOAL_MS)
#define VIEW_PAUSE_EACH_NS (100 * 1000ull)
#define SLOTS_KEEP_NS (200 * SHOAL_MS)
#define INTEREST_MAX 256
#define INTEREST_NS (100 * SHOAL_MS)

struct told_host {
    struct shoal_node_id node;
    enum shoal_lead_health health;
    uint32_t host_epoch;
    uint32_t links;
    uint64_t slots_version;
};

/* What a lead was told. */
struct sched_side {
    bool supported;
    uint64_t config_index;
    struct shoal_hash target; /* of the newest TARGET */
    size_t host_count, host_cap;
    struct told_host *hosts;
};

/* Working memory of the allocation, grown where nodes and summaries are admitted. */
struct sched_view {
    struct shoal_allocate *work;
    struct shoal_allocate_host *hosts;
    int32_t *slots, *given;
    struct shoal_allocate_job *jobs;
    struct shoal_allocate_grant *grants;
    struct shoal_lead_slot *list;
    uint32_t hosts_max, slots_max, jobs_max;
    uint32_t host_count, slot_count, job_count;
    /* Support that is wanted for jobs, beyond the groups' own. */
    struct shoal_node_id interest[INTEREST_MAX];
    size_t interest_count;
    uint64_t interest_ns;
};

/* ---- Life ---- */

static void slots_options(const struct shoal_sched *s, struct shoal_slots_options *options)
{
    *options = (struct shoal_slots_options){
        .self = s->self,
        .host_epoch = s->incarnation.host_epoch,
        .slots = s->options.slots > SHOAL_SLOTS_MAX ? SHOAL_SLOTS_MAX : s->options.slots,
        .device = s->options.device == SHOAL_SCHED_GPU ? SHOAL_JOB_DEVICE_GPU : SHOAL_JOB_DEVICE_CPU,
        .lease_ns = s->options.lease_ns,
        .freeze_ns = s->options.freeze_ns,
        .start_ns = s->options.start_ns,
    };
}

enum shoal_err sched_jobs_create(struct shoal_sched *s)
{
    struct shoal_slots_options options;
    enum shoal_err err = shoal_buf_reserve(&s->local_pool, LOCAL_POOL_BYTES);

    s->slots_actions = malloc(sizeof(*s->slots_actions));
    s->lead_actions = malloc(sizeof(*s->lead_actions));
    s->job_scratch = malloc(sizeof(*s->job_scratch));
    s->view = calloc(1, sizeof(*s->view));
    if (err != SHOAL_OK || s->slots_actions == NULL || s->lead_actions == NULL || s->job_scratch == NULL ||
        s->view == NULL)
        return SHOAL_ERR_FULL;
    s->view->interest_ns = SCHED_NEVER;
    slots_options(s, &options);
    return shoal_slots_create(&s->slots, &options);
}

static void view_free(struct sched_view *view)
{
    shoal_allocate_destroy(view->work);
    free(view->hosts);
    free(view->slots);
    free(view->given);
    free(view->jobs);
    free(view->grants);
    free(view->list);
}

void sched_jobs_destroy(struct shoal_sched *s)
{
    shoal_slots_destroy(s->slots);
    free(s->slots_actions);
    free(s->lead_actions);
    free(s->job_scratch);
    if (s->view != NULL)
        view_free(s->view);
    free(s->view);
}

/* ---- Messages between leads and slots ---- */

static void local_put(struct shoal_sched *s, struct shoal_view bytes)
{
    if (s->local_at == s->local_count) {
        s->local_at = 0;
        s->local_count = 0;
        s->local_pool.len = 0;
    }
    if (s->local_count == SHOAL_SCHED_LOCAL_MAX || bytes.len > s->local_pool.cap - s->local_pool.len) {
        s->stats.sends_dropped++; /* repeated by who sent it */
        return;
    }
    memcpy(s->local_pool.bytes + s->local_pool.len, bytes.bytes, bytes.len);
    s->local[s->local_count++].bytes = shoal_view_of(s->local_pool.bytes + s->local_pool.len, bytes.len);
    s->local_pool.len += bytes.len;
}

static void host_send(struct shoal_sched *s, struct shoal_node_id to, struct shoal_view bytes)
{
    struct frame frame = { .kind = FRAME_HOST };

    if (sched_is_self(s, to)) {
        local_put(s, bytes);
        return;
    }
    frame.u.host.bytes = bytes;
    sched_send(s, to, &frame);
}

/* ---- Leads ---- */

static void publish_summary(struct shoal_sched *s, struct sched_group *g, struct shoal_view payload, bool tombstone,
                            bool archived)
{
    struct shoal_sched_action *action;

    if (s->actions->count + 48 > SHOAL_SCHED_ACTIONS_MAX)
        return; /* the next change says the newest */
    action = sched_act(s, SHOAL_SCHED_PUBLISH_SUMMARY);
    action->u.summary.job = g->id;
    action->u.summary.version = (struct shoal_sched_version){ sched_group_config_version(g), g->term, g->applied };
    action->u.summary.tombstone = tombstone;
    action->u.summary.archived = archived;
    action->u.summary.payload = sched_pool_copy(s, payload);
}

void sched_summary_gone(struct shoal_sched *s, struct sched_group *g, bool archived)
{
    publish_summary(s, g, (struct shoal_view){ 0 }, true, archived);
}

/* Ended and deleted: the other guardians are told, then this one forgets it; who missed it asks, and is told (GONE). */
static void delete_group(struct shoal_sched *s, struct sched_group *g)
{
    struct frame frame = { .kind = FRAME_GONE };

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

    for (uint32_t i = 0; i < actions->count && g->lead != NULL; i++) {
        const struct shoal_lead_action *action = &actions->list[i];

        switch (action->kind) {
        case SHOAL_LEAD_SEND: host_send(s, action->to, action->bytes); break;
        case SHOAL_LEAD_PROPOSE:
            entry = sched_has_room(s) ? sched_propose(s, g, action->bytes, SCHED_CTX_LEAD) : NULL;
            if (entry == NULL) {
                g->lead_refused = true;
                sched_group_dirty(s, g);
            }
            shoal_entry_unref(entry);
            break;
        case SHOAL_LEAD_SUMMARY:
            publish_summary(s, g, action->bytes, false, false);
            sched_view_changed(s);
            break;
        case SHOAL_LEAD_DELETE: delete_group(s, g); break;
        }
    }
}

static void lead_event(struct shoal_sched *s, struct sched_group *g, struct shoal_lead_event *event)
{
    if (g->lead == NULL)
        return;
    event->wall_ms = s->wall_ms;
    if (shoal_lead_step(g->lead, event, s->now, s->lead_actions) != SHOAL_OK)
        s->stats.frames_malformed++;
    lead_actions(s, g);
}

static enum shoal_lead_health health_of(const struct shoal_sched *s, const struct sched_node *node)
{
    if (sched_is_self(s, node->info.id))
        return SHOAL_LEAD_HOST_WELL;
    if (node->info.state == SHOAL_SCHED_NODE_DEAD || node->info.state == SHOAL_SCHED_NODE_LEFT)
        return SHOAL_LEAD_HOST_GONE;
    return sched_silent_since(s, node->info.id) == 0 ? SHOAL_LEAD_HOST_WELL : SHOAL_LEAD_HOST_SILENT;
}

static bool is_news(const struct told_host *told, const struct told_host *now)
{
    return told->health != now->health || told->host_epoch != now->host_epoch || told->links != now->links ||
           told->slots_version != now->slots_version;
}

static void tell_host(struct shoal_sched *s, struct sched_group *g, size_t at, const struct told_host *now)
{
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_HOST };

    if (!is_news(&g->side->hosts[at], now))
        return;
    g->side->hosts[at] = *now;
    event.u.host.node = now->node;
    event.u.host.health = now->health;
    event.u.host.host_epoch = now->host_epoch;
    event.u.host.links = now->links;
    event.u.host.slots_version = now->slots_version;
    lead_event(s, g, &event);
}

/* The nodes keep their order of ids, so the side's list is walked in step with them. */
static void tell_hosts(struct shoal_sched *s, struct sched_group *g)
{
    struct sched_side *side = g->side;
    size_t at = 0;

    if (side->host_cap < s->node_count) {
        struct told_host *grown = realloc(side->hosts, s->node_cap * sizeof(*grown));

        if (grown == NULL)
            return;
        side->hosts = grown;
        side->host_cap = s->node_cap;
    }
    for (size_t i = 0; i < s->node_count && g->lead != NULL; i++, at++) {
        const struct sched_node *node = &s->nodes[i];
        struct shoal_slots_record record;
        struct told_host now = { .node = node->info.id,
                                 .health = health_of(s, node),
                                 .host_epoch = node->info.incarnation.host_epoch,
                                 .links = node->links,
                                 .slots_version = node->info.record_seq };

        if (sched_is_self(s, now.node)) {
            shoal_slots_record(s->slots, &record);
            now.slots_version = record.version;
            now.host_epoch = record.host_epoch;
        }
        if (at >= side->host_count || !shoal_node_id_equal(side->hosts[at].node, now.node)) {
            memmove(&side->hosts[at + 1], &side->hosts[at], (side->host_count - at) * sizeof(now));
            side->hosts[at] = (struct told_host){ .node = now.node, .slots_version = UINT64_MAX }; /* nothing yet */
            side->host_count++;
        }
        tell_host(s, g, at, &now);
    }
}

static void tell_guardians(struct shoal_sched *s, struct sched_group *g)
{
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_GUARDIANS };
    struct shoal_node_id nodes[SHOAL_GROUP_NODES_MAX];

    if (g->side->config_index == g->config_index)
        return;
    g->side->config_index = g->config_index;
    event.u.guardians.nodes = nodes;
    event.u.guardians.count = (uint32_t)sched_group_guardians(g, nodes, SHOAL_HOST_SOURCES_MAX);
    lead_event(s, g, &event);
}

static void tell_supported(struct shoal_sched *s, struct sched_group *g)
{
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_SUPPORTED };
    bool supported = shoal_raft_leads_supported(g->raft, s->now);

    if (g->side->supported == supported)
        return;
    g->side->supported = supported;
    event.u.supported = supported;
    lead_event(s, g, &event);
}

static void tell_stamps(struct shoal_sched *s, struct sched_group *g)
{
    struct shoal_node_id nodes[SHOAL_PLACEMENTS_MAX];
    size_t count = shoal_lead_hosts(g->lead, nodes, SHOAL_PLACEMENTS_MAX);

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

    shoal_rand_init(&options.rand, shoal_rand_u64(&s->chance));
    /* Tokens are secrets: all of the state comes from the system's chance, not only 64 bits of it. */
    for (unsigned i = 0; i < 4; i++)
        options.rand.state[i] ^= shoal_rand_u64(&s->chance);
    g->side = calloc(1, sizeof(*g->side));
    if (g->side == NULL || shoal_lead_create(&g->lead, &options) != SHOAL_OK) {
        free(g->side);
        g->side = NULL;
        g->lead_ns = s->now + SHOAL_S; /* no memory: tried again */
        return false;
    }
    g->side->supported = true; /* as the lead starts out */
    g->changed |= SHOAL_JOB_CHANGED_STATE;
    sched_view_changed(s);
    return true;
}

void sched_lead_end(struct sched_group *g)
{
    shoal_lead_destroy(g->lead);
    g->lead = NULL;
    if (g->side != NULL)
        free(g->side->hosts);
    free(g->side);
    g->side = NULL;
    g->lead_ns = SCHED_NEVER;
    g->lead_refused = false;
}

void sched_lead_tend(struct shoal_sched *s, struct sched_group *g)
{
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_TIMER };

    if (!g->leads || g->job == NULL || g->stopped) {
        g->changed = 0;
        if (g->lead != NULL)
            sched_lead_end(g);
        return;
    }
    if (g->lead == NULL && (g->applied_term != g->term || !lead_begin(s, g))) /* J1 */
        return;
    tell_supported(s, g);
    tell_guardians(s, g);
    tell_hosts(s, g);
    tell_stamps(s, g);
    if (g->lead_refused && g->lead != NULL) {
        g->lead_refused = false;
        event.kind = SHOAL_LEAD_REFUSED;
        lead_event(s, g, &event);
    }
    if (g->changed != 0 && g->lead != NULL) {
        event.kind = SHOAL_LEAD_APPLIED;
        event.u.changed = g->changed;
        g->changed = 0;
        lead_event(s, g, &event);
        sched_view_changed(s);
    }
    if (g->lead != NULL && s->now >= shoal_lead_deadline_ns(g->lead)) {
        event.kind = SHOAL_LEAD_TIMER;
        lead_event(s, g, &event);
    }
    if (g->lead != NULL)
        g->lead_ns = shoal_lead_deadline_ns(g->lead);
    if (s->view->interest_ns == SCHED_NEVER)
        s->view->interest_ns = s->now + INTEREST_NS;
}

void sched_job_facts(const struct sched_group *g, struct shoal_job_facts *facts)
{
    if (g->lead != NULL)
        shoal_lead_facts(g->lead, facts);
    else
        shoal_job_facts(g->job, facts);
    facts->leader = g->leader;
    facts->term = g->term;
    facts->applied = g->applied;
}

/* ---- Slots ---- */

struct shoal_host_order *sched_order(struct shoal_sched *s, enum shoal_host_order_kind kind)
{
    struct shoal_sched_action *action = sched_act(s, SHOAL_SCHED_ORDER);

    action->u.order.kind = kind;
    return &action->u.order;
}

/* An order goes through as it is. What it borrows lies in the slots' memory, which the next slots step overwrites: it
 * is copied into this step's. */
static void pass_order(struct shoal_sched *s, const struct shoal_host_order *from)
{
    struct shoal_host_order *order = sched_order(s, from->kind);

    *order = *from;
    if (from->kind == SHOAL_HOST_DO_JOB_OPEN) {
        order->u.job.spec = sched_pool_copy(s, from->u.job.spec);
    } else if (from->kind == SHOAL_HOST_DO_SEND) {
        struct shoal_worker_message *copy = (void *)sched_pool(s, sizeof(*copy), 0);

        SHOAL_ASSERT(copy != NULL);
        *copy = *from->u.send.message;
        order->u.send.message = copy;
    }
}

static void act_on_slots(struct shoal_sched *s, const struct shoal_slots_action *from)
{
    struct shoal_sched_action *to;

    switch (from->kind) {
    case SHOAL_SLOTS_SEND: host_send(s, from->u.send.to, from->u.send.bytes); break;
    case SHOAL_SLOTS_PUBLISH:
        to = sched_act(s, SHOAL_SCHED_PUBLISH_SLOTS);
        to->u.publish.version = from->u.publish.version;
        to->u.publish.payload = sched_pool_copy(s, from->u.publish.payload);
        sched_view_changed(s);
        break;
    case SHOAL_SLOTS_ORDER: pass_order(s, &from->u.order); break;
    }
}

static enum shoal_err slots_step(struct shoal_sched *s, const struct shoal_slots_event *event)
{
    enum shoal_err err = shoal_slots_step(s->slots, event, s->now, s->slots_actions);

    for (uint32_t i = 0; i < s->slots_actions->count; i++)
        act_on_slots(s, &s->slots_actions->list[i]);
    if (s->view->interest_ns == SCHED_NEVER)
        s->view->interest_ns = s->now + INTEREST_NS;
    return err;
}

/* The lead of a job hears of its ledger too, when it is here. */
static void on_records_mark(struct shoal_sched *s, const struct shoal_host_event *from)
{
    struct sched_group *g = sched_group_find(s, from->u.records_mark.job);
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_RECORDS_MARK };

    if (g == NULL || g->lead == NULL)
        return;
    event.u.records_mark.call = from->u.records_mark.call;
    event.u.records_mark.step = from->u.records_mark.step;
    lead_event(s, g, &event);
    sched_group_dirty(s, g);
}

/* What others than the slots have to do with it, then the slots. */
void sched_on_host(struct shoal_sched *s, const struct shoal_host_event *host)
{
    struct shoal_slots_event event = { .kind = SHOAL_SLOTS_HOST, .u.host = *host };

    if (host->kind == SHOAL_HOST_ON_BLOB)
        sched_on_bundle(s, host->u.blob.hash, host->u.blob.ok, host->u.blob.text);
    else if (host->kind == SHOAL_HOST_ON_RECORDS_MARK)
        on_records_mark(s, host);
    (void)!slots_step(s, &event); /* our own shell's events: what does not fit is refused by the core */
}

void sched_slots_link(struct shoal_sched *s, struct shoal_node_id node)
{
    const struct shoal_slots_event event = { .kind = SHOAL_SLOTS_LINK, .u.link = node };

    (void)!slots_step(s, &event);
}

enum shoal_err sched_slots_restore(struct shoal_sched *s, struct shoal_view bytes)
{
    struct shoal_slots_options options;
    struct shoal_slots *restored;
    enum shoal_err err;

    slots_options(s, &options);
    err = shoal_slots_restore(&restored, &options, bytes);
    if (err != SHOAL_OK)
        return err; /* of another host epoch, or damaged: as if nothing had been kept */
    shoal_slots_destroy(s->slots);
    s->slots = restored;
    return SHOAL_OK;
}

enum shoal_err sched_on_host_frame(struct shoal_sched *s, struct shoal_node_id from, struct shoal_view bytes)
{
    struct shoal_slots_event to_slots = { .kind = SHOAL_SLOTS_FRAME };
    struct shoal_lead_event to_lead = { .kind = SHOAL_LEAD_FRAME };
    struct shoal_job_id job;
    struct sched_group *g;
    uint8_t kind;

    if (!shoal_host_peek(bytes, &kind, &job))
        return SHOAL_ERR_MALFORMED;
    if (shoal_host_kind_to_host(kind)) {
        to_slots.u.frame.from = from;
        to_slots.u.frame.bytes = bytes;
        return slots_step(s, &to_slots);
    }
    g = sched_group_find(s, job);
    if (g == NULL || g->lead == NULL)
        return SHOAL_OK; /* led elsewhere: the host repeats its reports to the new leader */
    to_lead.u.frame.from = from;
    to_lead.u.frame.bytes = bytes;
    lead_event(s, g, &to_lead);
    if (g->lead != NULL)
        g->lead_ns = shoal_lead_deadline_ns(g->lead);
    sched_group_rearm(s, g);
    return SHOAL_OK;
}

void sched_local_run(struct shoal_sched *s)
{
    struct shoal_view bytes = s->local[s->local_at++].bytes;

    if (sched_on_host_frame(s, s->self, bytes) != SHOAL_OK)
        s->stats.frames_malformed++;
}

/* ---- The table for the cache, and support for jobs' hosts ---- */

static void keep_slots(struct shoal_sched *s)
{
    struct shoal_sched_action *action;
    size_t len;

    s->slots_kept = shoal_slots_version(s->slots);
    s->slots_kept_ns = s->now;
    if (shoal_buf_reserve(&s->slots_bytes, SHOAL_SLOTS_STATE_BYTES_MAX - s->slots_bytes.len) != SHOAL_OK ||
        shoal_slots_encode(s->slots, s->slots_bytes.bytes, s->slots_bytes.cap, &len) != SHOAL_OK)
        return; /* rebuildable: the next change writes it */
    action = sched_act(s, SHOAL_SCHED_KEEP_SLOTS);
    action->u.publish.version = s->slots_kept;
    action->u.publish.payload = shoal_view_of(s->slots_bytes.bytes, len);
}

static void want(struct shoal_node_id *list, size_t *count, struct shoal_node_id node)
{
    for (size_t i = 0; i < *count; i++) {
        if (shoal_node_id_equal(list[i], node))
            return;
    }
    if (*count < INTEREST_MAX)
        list[(*count)++] = node;
}

/* Leaders of jobs that work here, hosts of jobs led here, and hosts that share a job with this one. */
static size_t wanted_support(const struct shoal_sched *s, struct shoal_node_id *list)
{
    struct shoal_node_id nodes[SHOAL_PLACEMENTS_MAX];
    size_t count = 0;
    size_t some = shoal_slots_leaders(s->slots, nodes, SHOAL_PLACEMENTS_MAX);
    struct shoal_slot_status slot;

    for (size_t i = 0; i < some && i < SHOAL_PLACEMENTS_MAX; i++)
        want(list, &count, nodes[i]);
    for (size_t g = 0; g < s->group_count; g++) {
        if (s->groups[g]->lead == NULL)
            continue;
        some = shoal_lead_hosts(s->groups[g]->lead, nodes, SHOAL_PLACEMENTS_MAX);
        for (size_t i = 0; i < some && i < SHOAL_PLACEMENTS_MAX; i++)
            want(list, &count, nodes[i]);
    }
    for (uint32_t i = 0; i < shoal_slots_count(s->slots); i++) {
        const struct shoal_job_summary *summary;

        shoal_slots_slot(s->slots, i, &slot);
        summary = slot.state == SHOAL_SLOT_FREE ? NULL : sched_summary_find(s, slot.job);
        for (unsigned h = 0; summary != NULL && h < summary->host_count; h++)
            want(list, &count, summary->hosts[h].node);
    }
    return count;
}

static bool listed(const struct shoal_node_id *list, size_t count, struct shoal_node_id node)
{
    for (size_t i = 0; i < count; i++) {
        if (shoal_node_id_equal(list[i], node))
            return true;
    }
    return false;
}

static void update_interest(struct shoal_sched *s)
{
    struct sched_view *view = s->view;
    struct shoal_node_id list[INTEREST_MAX];
    size_t count = wanted_support(s, list);
    size_t kept = 0;

    for (size_t i = 0; i < view->interest_count; i++) {
        if (listed(list, count, view->interest[i]))
            view->interest[kept++] = view->interest[i];
        else
            shoal_support_remove(s->support, view->interest[i]);
    }
    for (size_t i = 0; i < count && kept < INTEREST_MAX; i++) {
        if (sched_is_self(s, list[i]) || listed(view->interest, kept, list[i]))
            continue;
        if (shoal_support_add(s->support, list[i]) == SHOAL_OK)
            view->interest[kept++] = list[i];
    }
    view->interest_count = kept;
    view->interest_ns = SCHED_NEVER;
}

static uint64_t sooner(uint64_t a, uint64_t b) { return a < b ? a : b; }

uint64_t sched_jobs_deadline(const struct shoal_sched *s)
{
    uint64_t deadline = shoal_slots_deadline_ns(s->slots);

    if (deadline < s->slots_floor_ns)
        deadline = s->slots_floor_ns;
    deadline = sooner(deadline, s->view->interest_ns);
    if (shoal_slots_version(s->slots) != s->slots_kept)
        deadline = sooner(deadline, s->slots_kept_ns + SLOTS_KEEP_NS);
    return deadline;
}

void sched_slots_due(struct shoal_sched *s)
{
    const struct shoal_slots_event timer = { .kind = SHOAL_SLOTS_TIMER };

    if (s->now >= s->view->interest_ns)
        update_interest(s);
    if (s->now >= shoal_slots_deadline_ns(s->slots)) {
        (void)!slots_step(s, &timer);
        s->slots_due_count = s->slots_due_ns == s->now ? s->slots_due_count + 1 : 0;
        s->slots_due_ns = s->now;
        if (s->slots_due_count >= SCHED_DUE_MAX) {
            s->slots_floor_ns = s->now + SCHED_DUE_PAUSE_NS;
            s->stats.pauses++;
        }
    }
    if (shoal_slots_version(s->slots) != s->slots_kept && s->now >= s->slots_kept_ns + SLOTS_KEEP_NS)
        keep_slots(s);
}

/* ---- Summaries ---- */

static size_t summary_place(const struct shoal_sched *s, struct shoal_job_id id)
{
    size_t low = 0;
    size_t high = s->summary_count;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (shoal_job_id_cmp(s->summaries[mid].id, id) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

const struct shoal_job_summary *sched_summary_find(const struct shoal_sched *s, struct shoal_job_id id)
{
    size_t at = summary_place(s, id);

    return at < s->summary_count && shoal_job_id_equal(s->summaries[at].id, id) ? &s->summaries[at] : NULL;
}

static bool summary_room(struct shoal_sched *s)
{
    size_t cap = s->summary_cap == 0 ? 64 : s->summary_cap * 2;
    struct shoal_job_summary *grown;

    if (s->summary_count < s->summary_cap)
        return true;
    if (s->summary_count == SHOAL_SCHED_SUMMARIES_MAX)
        return false;
    grown = realloc(s->summaries, cap * sizeof(*grown));
    if (grown == NULL)
        return false;
    s->summaries = grown;
    s->summary_cap = cap;
    return true;
}

/* For the allocation; progress of a job changes nothing in it. */
static bool same_demand(const struct shoal_job_summary *a, const struct shoal_job_summary *b)
{
    if (a->want_min != b->want_min || a->want_max != b->want_max || a->priority != b->priority || a->held != b->held ||
        a->class_hash != b->class_hash || a->host_count != b->host_count)
        return false;
    for (unsigned i = 0; i < a->host_count; i++) {
        if (!shoal_node_id_equal(a->hosts[i].node, b->hosts[i].node) || a->hosts[i].slots != b->hosts[i].slots)
            return false;
    }
    return true;
}

void sched_on_summary(struct shoal_sched *s, struct shoal_job_id job, struct shoal_view payload, bool archived)
{
    size_t at = summary_place(s, job);
    bool known = at < s->summary_count && shoal_job_id_equal(s->summaries[at].id, job);
    struct shoal_job_summary summary;
    bool led;

    if (payload.len == 0) {
        if (known) {
            s->summary_count--;
            memmove(&s->summaries[at], &s->summaries[at + 1], (s->summary_count - at) * sizeof(s->summaries[0]));
            if (!archived)
                sched_act(s, SHOAL_SCHED_JOB_DELETED)->u.group.group = job;
            else if (sched_group_find(s, job) == NULL)
                sched_archive_bury(s, job);
            sched_view_changed(s);
        }
        if (!archived)
            sched_archive_deleted(s, job); /* it was on its way there */
        return;
    }
    if (shoal_job_summary_decode(payload, &summary) != SHOAL_OK || !shoal_job_id_equal(summary.id, job) ||
        (!known && !summary_room(s)))
        return;
    if (!known) {
        memmove(&s->summaries[at + 1], &s->summaries[at], (s->summary_count - at) * sizeof(s->summaries[0]));
        s->summary_count++;
        sched_view_changed(s);
    } else if (!same_demand(&s->summaries[at], &summary)) {
        sched_view_changed(s);
    }
    led = !known || !shoal_node_id_equal(s->summaries[at].leader, summary.leader);
    s->summaries[at] = summary;
    if (led)
        sched_requests_led(s, job, summary.leader);
}

/* ---- Allocation ---- */

void sched_view_changed(struct shoal_sched *s)
{
    uint64_t pause = VIEW_PAUSE_NS + (s->view->job_count + s->view->host_count) * VIEW_PAUSE_EACH_NS;
    uint64_t at = s->now + VIEW_GATHER_NS;

    if (at < s->view_done_ns + pause && s->view_done_ns != 0)
        at = s->view_done_ns + pause;
    if (at < s->view_ns)
        s->view_ns = at;
}

static uint32_t grown(uint32_t old, size_t need)
{
    uint32_t cap = old == 0 ? 16 : old;

    while (cap < need)
        cap *= 2;
    return cap;
}

static bool view_room(struct sched_view *view, size_t hosts, size_t slots, size_t jobs)
{
    struct sched_view bigger = { 0 };

    if (view->work != NULL && hosts <= view->hosts_max && slots <= view->slots_max && jobs <= view->jobs_max)
        return true;
    bigger.hosts_max = grown(view->hosts_max, hosts);
    bigger.slots_max = grown(view->slots_max, slots);
    bigger.jobs_max = grown(view->jobs_max, jobs);
    bigger.hosts = calloc(bigger.hosts_max, sizeof(*bigger.hosts));
    bigger.slots = calloc(bigger.slots_max, sizeof(*bigger.slots));
    bigger.given = calloc(bigger.slots_max, sizeof(*bigger.given));
    bigger.list = calloc(bigger.slots_max, sizeof(*bigger.list));
    bigger.jobs = calloc(bigger.jobs_max, sizeof(*bigger.jobs));
    bigger.grants = calloc(bigger.jobs_max, sizeof(*bigger.grants));
    if (bigger.hosts == NULL || bigger.slots == NULL || bigger.given == NULL || bigger.list == NULL ||
        bigger.jobs == NULL || bigger.grants == NULL ||
        shoal_allocate_create(&bigger.work, bigger.hosts_max, bigger.slots_max, bigger.jobs_max) != SHOAL_OK) {
        view_free(&bigger);
        return false;
    }
    view_free(view);
    memcpy(bigger.interest, view->interest, sizeof(bigger.interest));
    bigger.interest_count = view->interest_count;
    bigger.interest_ns = view->interest_ns;
    *view = bigger;
    return true;
}

static bool takes_workers(const struct sched_node *node) { return node->info.slots > 0; }

static void view_hosts(const struct shoal_sched *s, struct sched_view *view)
{
    view->host_count = 0;
    view->slot_count = 0;
    for (size_t i = 0; i < s->node_count; i++) {
        const struct sched_node *node = &s->nodes[i];
        struct shoal_allocate_host *host = &view->hosts[view->host_count];
        uint32_t count = node->info.slots > SHOAL_SLOTS_MAX ? SHOAL_SLOTS_MAX : node->info.slots;
        uint64_t free_slots = node->info.slots_free;
        struct shoal_slots_record record;

        if (!takes_workers(node))
            continue;
        if (sched_is_self(s, node->info.id)) {
            shoal_slots_record(s->slots, &record);
            free_slots = record.free;
        }
        *host = (struct shoal_allocate_host){
            .id = node->info.id,
            .device = node->info.device == SHOAL_SCHED_GPU ? SHOAL_JOB_DEVICE_GPU : SHOAL_JOB_DEVICE_CPU,
            .class_hash = node->info.numeric_class[0] == '\0' ? 0 : shoal_class_hash(node->info.numeric_class),
            .usable = health_of(s, node) == SHOAL_LEAD_HOST_WELL && node->info.state == SHOAL_SCHED_NODE_ALIVE &&
                      (s->mesh == NULL || !shoal_mesh_evicted(s->mesh, node->info.id)),
            .first_slot = view->slot_count,
            .slot_count = count,
        };
        for (uint32_t b = 0; b < count; b++)
            view->slots[view->slot_count++] = free_slots >> b & 1 ? SHOAL_ALLOCATE_FREE : SHOAL_ALLOCATE_OTHER;
        view->host_count++;
    }
}

static void hold(struct sched_view *view, struct shoal_node_id node, uint32_t slot, uint32_t job)
{
    for (uint32_t i = 0; i < view->host_count; i++) {
        if (shoal_node_id_equal(view->hosts[i].id, node)) {
            if (slot < view->hosts[i].slot_count)
                view->slots[view->hosts[i].first_slot + slot] = (int32_t)job;
            return;
        }
    }
}

static void view_led(const struct shoal_sched *s, struct sched_view *view)
{
    for (size_t i = 0; i < s->group_count; i++) {
        const struct sched_group *g = s->groups[i];
        struct shoal_job_summary summary;
        struct shoal_allocate_job *job = &view->jobs[view->job_count];

        if (g->lead == NULL)
            continue;
        shoal_lead_summary(g->lead, &summary);
        /* view_room() has put new memory where it freed the old; the analyzer loses that copy of a large struct. */
        /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
        *job = (struct shoal_allocate_job){
            .id = g->id,
            .priority = summary.priority,
            .ticket_ms = summary.ticket_ms,
            .device = summary.device,
            .class_hash = summary.class_hash,
            .elastic = summary.elastic,
        };
        shoal_lead_demand(g->lead, &job->min, &job->max);
        for (uint32_t p = 0; p < g->job->placement_count; p++) {
            if (g->job->placements[p].slot != SHOAL_SLOT_NONE)
                hold(view, g->job->placements[p].node, g->job->placements[p].slot, view->job_count);
        }
        view->job_count++;
    }
}

static void view_others(const struct shoal_sched *s, struct sched_view *view)
{
    for (size_t i = 0; i < s->summary_count; i++) {
        const struct shoal_job_summary *summary = &s->summaries[i];
        const struct sched_group *g = sched_group_find(s, summary->id);

        if ((g != NULL && g->lead != NULL) || (summary->want_max == 0 && summary->host_count == 0))
            continue;
        /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): see above */
        view->jobs[view->job_count] = (struct shoal_allocate_job){
            .id = summary->id,
            .priority = summary->priority,
            .ticket_ms = summary->ticket_ms,
            .min = summary->want_min,
            .max = summary->want_max,
            .device = summary->device,
            .class_hash = summary->class_hash,
            .elastic = summary->elastic,
        };
        for (unsigned h = 0; h < summary->host_count; h++) {
            for (uint32_t slot = 0; slot < SHOAL_SLOTS_MAX; slot++) {
                if (summary->hosts[h].slots >> slot & 1)
                    hold(view, summary->hosts[h].node, slot, view->job_count);
            }
        }
        view->job_count++;
    }
}

static uint32_t slot_host(const struct sched_view *view, uint32_t slot)
{
    uint32_t host = 0;

    while (slot >= view->hosts[host].first_slot + view->hosts[host].slot_count)
        host++;
    return host;
}

/* Slots given to job `job`: those it holds first, then those to ask for. */
static uint32_t list_slots(struct sched_view *view, int32_t job)
{
    uint32_t count = 0;

    for (unsigned pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < view->slot_count; i++) {
            uint32_t host;

            if (view->given[i] != job || (view->slots[i] == job) != (pass == 0))
                continue;
            host = slot_host(view, i);
            view->list[count++] = (struct shoal_lead_slot){
                .node = view->hosts[host].id,
                .slot = i - view->hosts[host].first_slot,
            };
        }
    }
    return count;
}

/* A lead keeps its target: only another one is told. */
static struct shoal_hash target_hash(const struct shoal_sched *s, const struct shoal_lead_event *event)
{
    uint8_t bytes[SHOAL_JOB_REASON_BYTES + 8 + SHOAL_RANKS_MAX * 20];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));

    shoal_put_u32(&w, event->u.target.count);
    shoal_put_raw(&w, event->u.target.why, strlen(event->u.target.why));
    for (uint32_t i = 0; i < event->u.target.slot_count && i < SHOAL_RANKS_MAX; i++) {
        shoal_put_node_id(&w, event->u.target.slots[i].node);
        shoal_put_u32(&w, event->u.target.slots[i].slot);
    }
    return sched_hash(s, shoal_writer_view(&w));
}

static void tell_target(struct shoal_sched *s, struct sched_group *g, const struct shoal_allocate_view *view,
                        const struct shoal_allocate_out *out, uint32_t job)
{
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_TARGET };
    char why[SHOAL_JOB_REASON_BYTES] = "";
    struct shoal_hash hash;

    shoal_allocate_explain(view, out, job, why, sizeof(why));
    event.u.target.count = out->grants[job].count;
    event.u.target.slot_count = list_slots(s->view, (int32_t)job);
    event.u.target.slots = s->view->list;
    event.u.target.why = why;
    hash = target_hash(s, &event);
    if (shoal_hash_equal(hash, g->side->target))
        return;
    g->side->target = hash;
    lead_event(s, g, &event);
    if (g->lead != NULL)
        g->lead_ns = shoal_lead_deadline_ns(g->lead);
    sched_group_rearm(s, g);
}

static void tell_slots_target(struct shoal_sched *s, const struct shoal_allocate_view *view)
{
    struct shoal_slots_event event = { .kind = SHOAL_SLOTS_TARGET };

    for (uint32_t i = 0; i < view->host_count; i++) {
        if (!sched_is_self(s, view->hosts[i].id))
            continue;
        for (uint32_t b = 0; b < view->hosts[i].slot_count; b++) {
            int32_t job = s->view->given[view->hosts[i].first_slot + b];

            if (job >= 0)
                event.u.target.jobs[b] = view->jobs[job].id;
        }
        (void)!slots_step(s, &event);
    }
}

void sched_view_due(struct shoal_sched *s)
{
    struct sched_view *view = s->view;
    size_t hosts = s->node_count;
    size_t slots = 0;
    struct shoal_allocate_view in;
    struct shoal_allocate_out out;

    s->view_ns = SCHED_NEVER;
    s->view_done_ns = s->now;
    for (size_t i = 0; i < s->node_count; i++)
        slots += s->nodes[i].info.slots > SHOAL_SLOTS_MAX ? SHOAL_SLOTS_MAX : s->nodes[i].info.slots;
    if (!view_room(view, hosts + 1, slots + 1, s->summary_count + s->group_count + 1))
        return; /* no memory: the next change tries again */
    view->job_count = 0;
    view_hosts(s, view);
    view_led(s, view);
    view_others(s, view);
    if (view->job_count == 0)
        return;
    in = (struct shoal_allocate_view){
        .hosts = view->hosts,
        .host_count = view->host_count,
        .slots = view->slots,
        .slot_count = view->slot_count,
        .jobs = view->jobs,
        .job_count = view->job_count,
    };
    out = (struct shoal_allocate_out){ .grants = view->grants, .slots = view->given };
    if (shoal_allocate(view->work, &in, &out) != SHOAL_OK)
        return;
    for (uint32_t i = 0; i < view->job_count; i++) {
        struct sched_group *g = sched_group_find(s, view->jobs[i].id);

        if (g != NULL && g->lead != NULL && sched_has_room(s))
            tell_target(s, g, &in, &out, i);
    }
    tell_slots_target(s, &in);
}
