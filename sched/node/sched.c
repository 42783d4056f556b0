/* The control plane of one node (see shoal/sched.h for the picture, sched_state.h for the parts).
 *
 *     event --> what it means (one function per kind) --> settling: whatever became due, in this order:
 *               support, local messages, dirty groups, due groups, requests, foundings, the mesh's copy, slots, view
 *
 * C1. Support is stepped before anything else once its time has come, and a group hears of its news before any other
 *     event: no leader acts on support that has ended (PROTOCOLS 5).
 * C2. A step ends early, with its deadline in the past, rather than overflow its actions: only sends are ever dropped.
 * C3. Groups are freed only while settling, never under a caller that holds one.
 * C4. Nothing is told to a client that is not durable on a majority, or read after one answered.
 * C5. Nothing settles before all that was stored is read: a group that needs nobody else would elect itself before the
 *     term is known with which this node left it (T5). */
#include "shoal/sched_look.h"
#include "shoal/job_facts.h"
#include "sched_archive.h"
#include "sched_copy.h"
#include "sched_found.h"
#include "sched_group.h"
#include "sched_index.h"
#include "sched_lead.h"
#include "sched_node.h"
#include "sched_park.h"
#include "sched_request.h"
#include "sched_slots.h"
#include "sched_state.h"
#include "sched_store.h"
#include "sched_view.h"

#include "shoal/banned.h"

/* A wall clock that is set back by less stands still until it has caught up; one that was far ahead is followed back: ids
 * of one millisecond, for as long as it was ahead, would be alike by chance after a thousand. */
#define WALL_BACK_MS 10000u

#define FOUND_IN_ORDER_MAX (16 * SHOAL_KIB)

/* ---- Actions ---------------------------------------------------------------------------------------------------- */

struct shoal_sched_action *sched_act(struct shoal_sched *s, enum shoal_sched_action_kind kind)
{
    struct shoal_sched_action *action;

    SHOAL_ASSERT(s->actions->count < SHOAL_SCHED_ACTIONS_MAX);
    action = &s->actions->list[s->actions->count++];
    memset(action, 0, sizeof(*action));
    action->kind = kind;
    return action;
}

bool sched_has_room(const struct shoal_sched *s)
{
    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    return s->actions->count + SCHED_ROOM_ACTIONS <= SHOAL_SCHED_ACTIONS_MAX &&
           s->actions->entry_count + SCHED_ROOM_ENTRIES <= SHOAL_SCHED_ENTRIES_MAX &&
           s->actions->pool_used + 2 * SCHED_POOL_KEPT <= SHOAL_SCHED_POOL_BYTES;
}

uint8_t *sched_pool(struct shoal_sched *s, size_t len, size_t keep)
{
    size_t at = (s->actions->pool_used + 15) & ~(size_t)15;

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    SHOAL_ASSERT(s->actions->pool_used <= SHOAL_SCHED_POOL_BYTES);
    SHOAL_ASSERT(keep < SHOAL_SCHED_POOL_BYTES);
    if (at > SHOAL_SCHED_POOL_BYTES - keep || len > SHOAL_SCHED_POOL_BYTES - keep - at)
        return NULL;
    s->actions->pool_used = at + len;
    return s->actions->pool + at;
}

struct shoal_view sched_pool_copy(struct shoal_sched *s, struct shoal_view view)
{
    uint8_t *bytes = view.len == 0 ? NULL : sched_pool(s, view.len, 0);

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    if (bytes == NULL)
        return (struct shoal_view){ 0 };
    memcpy(bytes, view.bytes, view.len);
    return shoal_view_of(bytes, view.len);
}

void sched_send_view(struct shoal_sched *s, struct shoal_node_id to, struct shoal_view bytes, bool bulk)
{
    struct shoal_sched_action *action;

    SHOAL_ASSERT(s->actions != NULL);    /* within a step */
    SHOAL_ASSERT(!sched_is_self(s, to)); /* what is for this node waits in its queue (J2) */
    if (s->actions->count + 48 > SHOAL_SCHED_ACTIONS_MAX) {
        s->stats.sends_dropped++;
        return;
    }
    action = sched_act(s, SHOAL_SCHED_SEND);
    action->u.send.to = to;
    action->u.send.bytes = bytes;
    action->u.send.bulk = bulk;
    s->stats.frames_out++;
}

void sched_send(struct shoal_sched *s, struct shoal_node_id to, const struct frame *frame)
{
    size_t used = s->actions->pool_used;
    size_t at = (used + 15) & ~(size_t)15;
    struct shoal_writer w;

    SHOAL_ASSERT(!sched_is_self(s, to));
    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    if (at + SCHED_POOL_KEPT >= SHOAL_SCHED_POOL_BYTES) {
        s->stats.sends_dropped++;
        return;
    }
    w = shoal_writer_init(s->actions->pool + at, SHOAL_SCHED_POOL_BYTES - SCHED_POOL_KEPT - at);
    if (!sched_frame_encode(frame, &w) || w.len > SHOAL_FRAME_BYTES_MAX) {
        s->stats.sends_dropped++;
        return;
    }
    s->actions->pool_used = at + w.len;
    /* A small founding record travels in order with the appends to its group: overtaken by those, it would be passed
     * over (the group is there, its record is not) and wait for the conductor's next try. */
    sched_send_view(s, to, shoal_writer_view(&w),
                    frame->kind == FRAME_MESH_PART || (frame->kind == FRAME_FOUND && w.len > FOUND_IN_ORDER_MAX));
}

struct shoal_hash sched_hash(const struct shoal_sched *s, struct shoal_view bytes)
{
    SHOAL_ASSERT(s->options.env.hash != NULL);
    return s->options.env.hash(s->options.env.arg, bytes);
}

bool sched_is_self(const struct shoal_sched *s, struct shoal_node_id node)
{
    SHOAL_ASSERT(!shoal_node_id_is_zero(s->self));
    return shoal_node_id_equal(node, s->self);
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

static enum shoal_err take_tables(struct shoal_sched *s)
{
    SHOAL_ASSERT(s->groups == NULL && s->groups_max > 0); /* once */
    s->groups = calloc(s->groups_max, sizeof(*s->groups));
    s->heap = calloc(s->groups_max, sizeof(*s->heap));
    s->requests = calloc(SHOAL_SCHED_REQUESTS_MAX, sizeof(*s->requests));
    s->foundings = calloc(SHOAL_SCHED_FOUNDINGS_MAX, sizeof(*s->foundings));
    s->fetching = calloc(SCHED_FETCHING_MAX, sizeof(*s->fetching));
    s->gone = calloc(s->options.gone_max, sizeof(*s->gone));
    s->shelf.ids = calloc(SCHED_SHELF_IDS_ALL, sizeof(*s->shelf.ids)); /* pages are taken as they fill */
    s->lead_actions = calloc(1, sizeof(*s->lead_actions));
    s->job_scratch = malloc(sizeof(*s->job_scratch));
    s->index_spec = malloc(sizeof(*s->index_spec));
    if (s->groups == NULL || s->heap == NULL || s->requests == NULL || s->foundings == NULL || s->fetching == NULL ||
        s->gone == NULL || s->shelf.ids == NULL || s->lead_actions == NULL || s->job_scratch == NULL ||
        s->index_spec == NULL)
        return SHOAL_ERR_FULL;
    return shoal_buf_reserve(&s->scratch, SHOAL_JOB_SNAPSHOT_BYTES_MAX + SHOAL_JOB_FACTS_BYTES_MAX);
}

static uint64_t deadline_of(const struct shoal_sched *s)
{
    uint64_t deadline_ns = shoal_support_deadline_ns(s->support);

    if (s->more || s->dirty_first != NULL || s->local.at < s->local.count || s->copy_dirty || s->gone_dirty)
        return s->now;
    if (s->heap_count > 0)
        deadline_ns = sched_sooner(deadline_ns, s->heap[0]->deadline_ns);
    deadline_ns = sched_sooner(deadline_ns, s->requests_ns);
    deadline_ns = sched_sooner(deadline_ns, s->gone_tell_ns);
    deadline_ns = sched_sooner(deadline_ns, s->foundings_ns);
    deadline_ns = sched_sooner(deadline_ns, s->settle_ns);
    deadline_ns = sched_sooner(deadline_ns, s->getting.retry_ns);
    deadline_ns = sched_sooner(deadline_ns, s->sealing.retry_ns);
    deadline_ns = sched_sooner(deadline_ns, s->archive_look_ns);
    deadline_ns = sched_sooner(deadline_ns, s->view.due_ns);
    deadline_ns = sched_sooner(deadline_ns, s->interest.due_ns);
    deadline_ns = sched_sooner(deadline_ns, sched_park_deadline(s));
    return sched_sooner(deadline_ns, sched_slots_deadline(s));
}

static enum shoal_err make_support(struct shoal_sched *s)
{
    const struct shoal_support_options options = {
        .self = s->self,
        .incarnation = s->incarnation,
        .interval_ns = s->options.support_interval_ns,
        .support_ns = s->options.support_ns,
        .start_ns = s->options.start_ns,
    };

    SHOAL_ASSERT(s->support == NULL); /* once */
    return shoal_support_create(&s->support, &options);
}

enum shoal_err shoal_sched_create(struct shoal_sched **sched, const struct shoal_sched_options *options)
{
    struct shoal_sched *s = calloc(1, sizeof(*s));
    enum shoal_err err;

    SHOAL_ASSERT(options->env.hash != NULL && options->env.verify != NULL);
    SHOAL_ASSERT(!shoal_node_id_is_zero(options->self));
    SHOAL_ASSERT(options->peer_count <= SHOAL_SCHED_PEERS_MAX);
    if (s == NULL)
        return SHOAL_ERR_FULL;
    s->self = options->self;
    s->store = options->store;
    s->incarnation = options->incarnation;
    s->incarnation.refutation = 0;
    s->options = *options;
    s->options.support_ns = options->support_ns == 0 ? 600 * SHOAL_MS : options->support_ns;
    s->options.grow_ns = options->grow_ns == 0 ? 10 * SHOAL_S : options->grow_ns;
    s->options.replace_ns = options->replace_ns == 0 ? 60 * SHOAL_S : options->replace_ns;
    s->options.lost_ns = options->lost_ns == 0 ? 600 * SHOAL_S : options->lost_ns;
    s->options.gone_max = options->gone_max == 0 ? SHOAL_SCHED_GONE_MAX : options->gone_max;
    SHOAL_ASSERT(s->options.gone_max <= SHOAL_SCHED_GONE_MAX);
    s->options.archive_warm_max = options->archive_warm_max == 0 ? SHOAL_ARCHIVE_WARM_MAX : options->archive_warm_max;
    s->options.archive_early_max =
        options->archive_early_max == 0 ? SHOAL_ARCHIVE_EARLY_MAX : options->archive_early_max;
    s->options.loaded_max = options->loaded_max == 0 ? SHOAL_SCHED_SHOWN_MAX : options->loaded_max;
    s->options.archive_ns = options->archive_ns == 0 ? SHOAL_ARCHIVE_S * SHOAL_S : options->archive_ns;
    s->archive_look_ns = SCHED_NEVER;
    s->chance = options->chance;
    s->groups_max = options->groups_max == 0 ? SHOAL_GROUPS_MAX : options->groups_max;
    s->now = options->start_ns;
    s->request_serial = sched_request_first(s->incarnation);
    s->requests_ns = SCHED_NEVER;
    s->gone_tell_ns = SCHED_NEVER;
    s->foundings_ns = SCHED_NEVER;
    s->settle_ns = SCHED_NEVER;
    s->getting.retry_ns = SCHED_NEVER;
    s->sealing.retry_ns = SCHED_NEVER;
    s->view.due_ns = SCHED_NEVER;
    s->interest.due_ns = SCHED_NEVER;
    err = take_tables(s);
    if (err == SHOAL_OK)
        err = make_support(s);
    if (err == SHOAL_OK)
        err = sched_local_create(s);
    if (err == SHOAL_OK)
        err = sched_slots_create(s);
    if (err == SHOAL_OK)
        err = sched_park_create(s);
    if (err != SHOAL_OK) {
        shoal_sched_destroy(s);
        return err;
    }
    s->deadline_ns = deadline_of(s);
    *sched = s;
    return SHOAL_OK;
}

static void free_requests(struct shoal_sched *s)
{
    SHOAL_ASSERT(s->request_count <= SHOAL_SCHED_REQUESTS_MAX);
    for (size_t i = 0; s->requests != NULL && i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        shoal_buf_deinit(&s->requests[i].command);
        shoal_buf_deinit(&s->requests[i].token);
    }
    for (size_t i = 0; s->foundings != NULL && i < SHOAL_SCHED_FOUNDINGS_MAX; i++)
        shoal_buf_deinit(&s->foundings[i].record);
    for (size_t i = 0; s->fetching != NULL && i < SCHED_FETCHING_MAX; i++)
        shoal_buf_deinit(&s->fetching[i].record);
    free(s->requests);
    free(s->foundings);
    free(s->fetching);
}

void shoal_sched_destroy(struct shoal_sched *s)
{
    if (s == NULL)
        return;
    for (uint32_t i = 0; i < s->held_count; i++)
        shoal_entry_unref(s->held[i]);
    for (size_t i = 0; i < s->group_count; i++)
        sched_group_free(s->groups[i]);
    free(s->groups);
    free(s->heap);
    free_requests(s);
    sched_archive_destroy(s);
    sched_park_destroy(s);
    sched_slots_destroy(s);
    sched_view_free(&s->view);
    free(s->lead_actions);
    free(s->job_scratch);
    shoal_support_destroy(s->support);
    shoal_mesh_destroy(s->mesh);
    sched_copy_begin(s);
    shoal_buf_deinit(&s->copy);
    shoal_buf_deinit(&s->getting.bytes);
    shoal_buf_deinit(&s->sealing.state);
    shoal_buf_deinit(&s->copy_plain);
    shoal_buf_deinit(&s->gone_bytes);
    shoal_buf_deinit(&s->scratch);
    shoal_buf_deinit(&s->local.pool);
    free(s->gone);
    free(s->shelf.ids);
    free(s->index_spec);
    sched_nodes_free(s);
    free(s->summaries.list);
    free(s);
}

/* ---- The step ---- */

static enum shoal_err on_frame(struct shoal_sched *s, struct shoal_node_id from, struct shoal_view bytes)
{
    struct frame frame;
    enum shoal_err err;

    s->stats.frames_in++;
    if (sched_is_removed(s, from)) { /* N3 of sched_node.c */
        s->stats.removed_refused++;
        return SHOAL_OK;
    }
    sched_link_heard(s, from);
    err = sched_frame_decode(bytes, &frame);
    if (err == SHOAL_OK && !sched_is_self(s, from)) {
        switch (frame.kind) {
        case FRAME_RAFT: err = sched_on_raft(s, from, &frame); break;
        case FRAME_FOUND: err = sched_on_found(s, from, &frame); break;
        case FRAME_FOUND_REPLY: sched_on_found_reply(s, from, &frame); break;
        case FRAME_HOST: err = sched_on_host_frame(s, from, frame.u.host.bytes); break;
        case FRAME_REQUEST: sched_on_foreign(s, from, &frame); break;
        case FRAME_RESPONSE: sched_on_response(s, from, &frame); break;
        case FRAME_WHO: sched_on_who(s, from, &frame); break;
        case FRAME_GONE: sched_on_gone(s, from, &frame); break;
        case FRAME_WHO_REPLY: sched_on_who_reply(s, from, &frame); break;
        case FRAME_MESH_GET: sched_on_mesh_get(s, from, &frame); break;
        case FRAME_MESH_PART: sched_on_mesh_part(s, from, &frame); break;
        case FRAME_DIGEST: sched_on_digest(s, from, &frame); break;
        case FRAME_REPLICA_ASK: sched_on_replica_ask(s, from, &frame); break;
        case FRAME_REPLICA: sched_on_replica(s, from, &frame); break;
        case FRAME_REBUILD: sched_on_rebuild(s, from, &frame); break;
        case FRAME_ARCHIVE: err = sched_on_archive(s, from, &frame); break;
        case FRAME_PARK: sched_on_park(s, from, &frame); break;
        case FRAME_NEWS: err = sched_on_news(s, from, &frame); break;
        case FRAME_SEAL: sched_on_seal(s, from, &frame); break;
        case FRAME_KINDS: break; /* none that was read */
        }
    }
    if (err == SHOAL_ERR_MALFORMED)
        s->stats.frames_malformed++;
    return err;
}

static enum shoal_err dispatch(struct shoal_sched *s, const struct shoal_sched_event *event)
{
    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    switch (event->kind) {
    case SHOAL_SCHED_TIMER: return SHOAL_OK;
    case SHOAL_SCHED_HEALTH:
        s->health.loop_lag_ns = event->u.health.loop_lag_ns;
        s->health.flush_age_ns = event->u.health.flush_age_ns;
        s->store_percent = event->u.health.store_percent;
        return SHOAL_OK;
    case SHOAL_SCHED_NODE: sched_on_node(s, &event->u.node); return SHOAL_OK;
    case SHOAL_SCHED_SUMMARY: sched_on_summary(s, event); return SHOAL_OK;
    case SHOAL_SCHED_MESH_HEARD:
        sched_on_mesh_heard(s, event->u.mesh_heard.author, event->u.mesh_heard.payload);
        return SHOAL_OK;
    case SHOAL_SCHED_MESH_COPY: return sched_copy_take(s, event->u.mesh_copy.bytes, true);
    case SHOAL_SCHED_SLOTS_COPY: return sched_slots_restore(s, event->u.mesh_copy.bytes);
    case SHOAL_SCHED_LINK: sched_on_link(s, event->u.link.node, event->u.link.state); return SHOAL_OK;
    case SHOAL_SCHED_FRAME: return on_frame(s, event->u.frame.from, event->u.frame.bytes);
    case SHOAL_SCHED_DATAGRAM: return sched_on_datagram(s, event->u.frame.from, event->u.frame.bytes);
    case SHOAL_SCHED_RESTORE: return sched_on_restore(s, event);
    case SHOAL_SCHED_RESTORED: sched_on_restored(s); return SHOAL_OK;
    case SHOAL_SCHED_STORED: sched_on_stored(s, event->u.stored.group, event->u.stored.mark); return SHOAL_OK;
    case SHOAL_SCHED_REQUEST: sched_on_request(s, &event->u.request); return SHOAL_OK;
    case SHOAL_SCHED_HOST: sched_on_host(s, &event->u.host); return SHOAL_OK;
    case SHOAL_SCHED_ARCHIVE_MADE: sched_archive_made(s, event); return SHOAL_OK;
    case SHOAL_SCHED_ARCHIVE_FETCHED: sched_archive_fetched(s, event); return SHOAL_OK;
    case SHOAL_SCHED_FLOOR: sched_lead_floor(s, event); return SHOAL_OK;
    }
    return SHOAL_ERR_INVALID;
}

/* One piece of due work. False: nothing is due, or there is no room (`more` is set then). */
static bool settle_one(struct shoal_sched *s)
{
    struct sched_group *g;

    if (!sched_has_room(s)) {
        s->more = true;
        return false;
    }
    if (s->now >= shoal_support_deadline_ns(s->support)) {
        sched_support_timer(s);
        return true;
    }
    if (s->local.at < s->local.count) {
        sched_local_run(s);
        return true;
    }
    if (s->dirty_first != NULL) {
        g = s->dirty_first;
        sched_group_clean(s, g);
        sched_group_due(s, g);
        return true;
    }
    if (s->heap_count > 0 && s->now >= s->heap[0]->deadline_ns) {
        sched_group_due(s, s->heap[0]);
        return true;
    }
    if (s->now >= s->requests_ns) {
        sched_requests_due(s);
        return true;
    }
    if (s->now >= s->foundings_ns) {
        sched_foundings_due(s);
        return true;
    }
    if (s->now >= s->settle_ns) {
        sched_settle_due(s);
        return true;
    }
    if ((s->copy_dirty || s->now >= s->sealing.retry_ns) && s->copy_old_count < SCHED_COPIES_MAX) {
        sched_copy_make(s);
        return true;
    }
    if (s->now >= s->getting.retry_ns) {
        sched_copy_due(s);
        return true;
    }
    if (s->now >= s->archive_look_ns) {
        sched_archive_due(s);
        return true;
    }
    if (s->now >= sched_park_deadline(s)) {
        sched_park_due(s);
        return true;
    }
    if (s->now >= s->view.due_ns) {
        sched_view_due(s);
        return true;
    }
    if (s->now >= s->interest.due_ns) {
        sched_interest_due(s);
        return true;
    }
    if (s->now >= sched_slots_deadline(s)) {
        sched_slots_due(s);
        return true;
    }
    sched_gone_settle(s);
    return false;
}

enum shoal_err shoal_sched_step(struct shoal_sched *s, const struct shoal_sched_event *event, uint64_t now_ns,
                                struct shoal_sched_actions *actions)
{
    enum shoal_err err;
    unsigned turns = 0;

    SHOAL_ASSERT(s->actions == NULL); /* steps do not nest */
    SHOAL_ASSERT(s->held_count <= SHOAL_SCHED_ENTRIES_MAX);
    actions->count = 0;
    actions->entry_count = 0;
    actions->pool_used = 0;
    for (uint32_t i = 0; i < s->held_count; i++)
        shoal_entry_unref(s->held[i]);
    s->held_count = 0;
    sched_copy_begin(s);
    s->actions = actions;
    s->more = false;
    if (now_ns > s->now)
        s->now = now_ns;
    if (event->wall_ms > s->wall_ms || event->wall_ms + WALL_BACK_MS < s->wall_ms)
        s->wall_ms = event->wall_ms;
    /* Ten times a second, and mostly between two deadlines: it settles nothing then. */
    if (event->kind == SHOAL_SCHED_HEALTH && s->now < s->deadline_ns) {
        err = dispatch(s, event);
        s->actions = NULL;
        return err;
    }
    /* C1, a bounded number of times: more than that waits for the settling. */
    for (unsigned i = 0; i < 4 && s->now >= shoal_support_deadline_ns(s->support); i++)
        sched_support_timer(s);
    err = dispatch(s, event);
    while (s->restored && turns < SCHED_TURNS_MAX && settle_one(s)) /* C5 */
        turns++;
    s->more = s->more || turns == SCHED_TURNS_MAX;
    sched_index_flush(s);
    s->deadline_ns = deadline_of(s);
    s->actions = NULL;
    return err;
}

uint64_t shoal_sched_deadline_ns(const struct shoal_sched *s)
{
    SHOAL_ASSERT(s->actions == NULL); /* between steps */
    return s->deadline_ns;
}

/* ---- Looking inside ---- */

const struct shoal_slots *shoal_sched_slots(const struct shoal_sched *s)
{
    SHOAL_ASSERT(s->slots.core != NULL);
    return s->slots.core;
}
const struct shoal_mesh *shoal_sched_mesh(const struct shoal_sched *s)
{
    SHOAL_ASSERT(s->mesh != NULL || s->copy_version == 0);
    return s->mesh;
}
uint64_t shoal_sched_mesh_version(const struct shoal_sched *s)
{
    SHOAL_ASSERT(s->mesh != NULL || s->copy_version == 0);
    return s->copy_version;
}
size_t shoal_sched_group_count(const struct shoal_sched *s)
{
    SHOAL_ASSERT(s->group_count <= s->groups_max);
    return s->group_count;
}

bool shoal_sched_is_bound(const struct shoal_sched *s)
{
    SHOAL_ASSERT(!s->copy_bound || s->copy.len > 0);
    return s->copy_bound;
}

bool shoal_sched_follows_rules(const struct shoal_sched *s, struct shoal_node_id id)
{
    const struct sched_node *node = sched_node_find(s, id);

    SHOAL_ASSERT(s->node_count <= SHOAL_MEMBERS_MAX);
    return sched_is_self(s, id) || (node != NULL && node->info.rules > 0);
}

bool shoal_sched_all_follow_rules(const struct shoal_sched *s)
{
    SHOAL_ASSERT(s->node_count <= SHOAL_MEMBERS_MAX);
    for (uint32_t i = 0; i < s->node_count; i++) {
        const struct sched_node_info *info = &s->nodes[i].info;

        if (!sched_is_self(s, info->id) && info->state == SHOAL_SCHED_NODE_ALIVE && info->rules == 0 &&
            info->cpus > 0) /* it has told of itself: what says its store comes earlier than its facts */
            return false;
    }
    return true;
}

bool shoal_sched_refuses_workers(const struct shoal_sched *s, uint32_t workers, struct shoal_node_id *node)
{
    SHOAL_ASSERT(s->node_count <= SHOAL_MEMBERS_MAX);
    for (uint32_t i = 0; i < s->node_count; i++) {
        if (sched_node_is_gone(s, &s->nodes[i]) || sched_node_takes(s, &s->nodes[i], workers))
            continue;
        *node = s->nodes[i].info.id;
        return true;
    }
    return false;
}

bool shoal_sched_mesh_writable(const struct shoal_sched *s)
{
    const struct sched_group *g = sched_group_find(s, (struct shoal_job_id){ { 0 } });

    if (g != NULL)
        return g->leads || !shoal_node_id_is_zero(g->leader);
    /* From outside the group: a majority of its guardians is heard. */
    return s->mesh_hint.count > 0 && sched_request_cut_off(s) == NULL;
}

static unsigned voters_of(const struct shoal_raft_config *config, struct shoal_node_id *nodes)
{
    unsigned count = 0;

    SHOAL_ASSERT(config->count <= SHOAL_GROUP_NODES_MAX);
    for (unsigned i = 0; i < config->count; i++)
        if (config->members[i].bits & SHOAL_RAFT_VOTER)
            nodes[count++] = config->members[i].id.node;
    return count;
}

static void status_of(const struct sched_group *g, struct shoal_sched_group_status *status)
{
    const struct shoal_raft_config *config = shoal_raft_config(g->raft);
    struct shoal_raft_config before;
    struct shoal_raft_status raft;

    shoal_raft_status(g->raft, &raft);
    *status = (struct shoal_sched_group_status){
        .id = g->id,
        .leads = g->leads,
        .founded = g->founded,
        .asleep = raft.asleep,
        .stopped = g->stopped || g->refused,
        .changing = raft.joint || !raft.config_committed,
        .term = raft.term,
        .commit = raft.commit,
        .applied = g->applied,
        .last = raft.last,
        .leader = raft.leader.node,
    };
    status->voters = (uint8_t)voters_of(config, status->guardians);
    for (unsigned i = 0; i < config->count; i++)
        status->learners += config->members[i].bits & SHOAL_RAFT_LEARNER ? 1 : 0;
    if (!status->changing || shoal_raft_config_at(g->raft, raft.commit, &before) != SHOAL_OK)
        before = *config;
    status->commit_voters = (uint8_t)voters_of(&before, status->commit_guardians);
}

bool shoal_sched_group_at(const struct shoal_sched *s, size_t i, struct shoal_sched_group_status *status)
{
    if (i >= s->group_count)
        return false;
    status_of(s->groups[i], status);
    return true;
}

bool shoal_sched_group_find(const struct shoal_sched *s, struct shoal_job_id id,
                            struct shoal_sched_group_status *status)
{
    const struct sched_group *g = sched_group_find(s, id);

    if (g == NULL)
        return false;
    status_of(g, status);
    return true;
}

const struct shoal_job *shoal_sched_job(const struct shoal_sched *s, struct shoal_job_id id)
{
    const struct sched_group *g = sched_group_find(s, id);

    return g == NULL ? NULL : g->job;
}

bool shoal_sched_group_digest(const struct shoal_sched *s, struct shoal_job_id id, uint64_t *applied, uint64_t *digest)
{
    const struct sched_group *g = sched_group_find(s, id);

    if (g == NULL || g->job == NULL)
        return false;
    *applied = g->applied;
    *digest = g->job->digest;
    return true;
}

void shoal_sched_check(const struct shoal_sched *s)
{
    for (size_t i = 0; i < s->group_count; i++)
        if (s->groups[i]->raft != NULL)
            shoal_raft_check(s->groups[i]->raft);
    shoal_support_check(s->support);
}

void shoal_sched_memory(struct shoal_memory *memory)
{
    shoal_raft_memory(memory);
    shoal_support_memory(memory);
    shoal_lead_memory(memory);
    shoal_slots_memory(memory);
    shoal_memory_add(memory, "sched: the core", 1, sizeof(struct shoal_sched));
    shoal_memory_add(memory, "sched: groups, each with its job's specification", SHOAL_GROUPS_MAX,
                     sizeof(struct sched_group) + sizeof(struct shoal_job) +
                         SHOAL_PLACEMENTS_MAX * sizeof(struct shoal_placement) + SHOAL_JOB_SPEC_BYTES_MAX);
    shoal_memory_add(memory, "sched: what an elastic job adds", SHOAL_GROUPS_MAX,
                     SHOAL_CALLS_MAX * sizeof(struct shoal_call) + sizeof(struct shoal_worker_epoch) +
                         SHOAL_DATA_EPOCHS_MAX * sizeof(struct shoal_data_epoch));
    shoal_memory_add(memory, "sched: requests", SHOAL_SCHED_REQUESTS_MAX, sizeof(struct sched_request));
    shoal_memory_add(memory, "sched: foundings, with a record each", SHOAL_SCHED_FOUNDINGS_MAX,
                     sizeof(struct sched_founding) + SHOAL_ENTRY_BYTES_MAX);
    shoal_memory_add(memory, "sched: ids that are gone", SHOAL_SCHED_GONE_MAX, sizeof(struct sched_gone));
    shoal_memory_add(memory, "sched: ids of deleted jobs", SHOAL_SCHED_SHELVES_MAX,
                     SHOAL_SCHED_SHELF_IDS * sizeof(struct shoal_job_id));
    shoal_memory_add(memory, "sched: archived jobs", SHOAL_ARCHIVE_RECORDS_MAX, sizeof(struct sched_archived));
    shoal_memory_add(memory, "sched: bytes of archived jobs", SHOAL_ARCHIVE_BYTES_MAX, 1);
}

void shoal_sched_stats(const struct shoal_sched *s, struct shoal_sched_stats *stats)
{
    SHOAL_ASSERT(stats != NULL);
    *stats = s->stats;
    stats->groups = s->group_count;
    sched_park_stats(s, stats);
    stats->groups_led = 0;
    for (size_t i = 0; i < s->group_count; i++)
        stats->groups_led += s->groups[i]->leads ? 1 : 0;
}

/* U5. */
static bool is_spared(const struct shoal_sched *s, const struct sched_group *g)
{
    struct shoal_sched_group_status status;

    SHOAL_ASSERT(g->raft != NULL);
    status_of(g, &status);
    return !status.leads && status.founded && !status.stopped && !status.changing && !sched_archive_awaits(g) &&
           sched_keep_spares(s, status.guardians, status.voters);
}

bool shoal_sched_is_empty(const struct shoal_sched *s, char *text, size_t cap)
{
    size_t groups = sched_park_count_unspared(s);
    struct shoal_slot_status slot;
    unsigned used = 0;

    for (size_t i = 0; i < s->group_count; i++)
        groups += is_spared(s, s->groups[i]) ? 0 : 1;
    for (uint32_t i = 0; i < shoal_slots_count(s->slots.core); i++) {
        shoal_slots_slot(s->slots.core, i, &slot);
        used += slot.state != SHOAL_SLOT_FREE ? 1 : 0;
    }
    (void)snprintf(text, cap, "it guards %zu groups, holds %zu archived jobs that others are to have, and %u of its slots are in use", groups,
                   s->archive_count, used);
    return groups == 0 && s->archive_count == 0 && used == 0;
}
