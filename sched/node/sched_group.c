/* The table of groups, and one group's raft driven.
 *
 *     event --> support's news told first --> raft --> actions: SEND framed, PERSIST handed on, COMMIT applied,
 *                                                               the rest noted
 *
 * G1. Entries are applied once, in order, and only when committed; what waits for them is answered right then.
 * G2. Carrying out never steps a raft: what asks for it is noted and done after (the scratch of actions is one).
 * G3. A group's life is in every mark, so that a completion of a removed group says nothing to its successor.
 *
 * G4, G5: how a replica that was left behind learns of it. G6: how one that was never there gets its vote.
 * Memory of a group is taken where it is admitted: founding, restore, a first message from its leader. */
#include "shoal/job_facts.h"
#include "sched_group.h"
#include "sched_archive.h"
#include "sched_found.h"
#include "sched_index.h"
#include "sched_lead.h"
#include "sched_node.h"
#include "sched_park.h"
#include "sched_request.h"
#include "sched_state.h"
#include "sched_store.h"
#include "sched_view.h"

#include "shoal/banned.h"

#define LIFE_SHIFT 32 /* marks: life in the high half, the raft's own sequence in the low one */

/* ---- The table --------------------------------------------------------------------------------------------------- */

static size_t group_place(const struct shoal_sched *s, struct shoal_job_id id)
{
    size_t low = 0;
    size_t high = s->group_count;

    SHOAL_ASSERT(s->group_count <= s->groups_max);
    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (shoal_job_id_cmp(s->groups[mid]->id, id) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

struct sched_group *sched_group_find(const struct shoal_sched *s, struct shoal_job_id id)
{
    size_t at = group_place(s, id);

    SHOAL_ASSERT(s->group_count <= s->groups_max);
    return at < s->group_count && shoal_job_id_equal(s->groups[at]->id, id) ? s->groups[at] : NULL;
}

static void heap_set(struct shoal_sched *s, size_t at, struct sched_group *g)
{
    SHOAL_ASSERT(at < s->groups_max);
    s->heap[at] = g;
    g->heap_at = at;
}

static void heap_fix(struct shoal_sched *s, size_t at)
{
    struct sched_group *g = s->heap[at];

    SHOAL_ASSERT(at < s->heap_count);
    while (at > 0 && s->heap[(at - 1) / 2]->deadline_ns > g->deadline_ns) {
        heap_set(s, at, s->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        size_t child = 2 * at + 1;

        if (child >= s->heap_count)
            break;
        if (child + 1 < s->heap_count && s->heap[child + 1]->deadline_ns < s->heap[child]->deadline_ns)
            child++;
        if (s->heap[child]->deadline_ns >= g->deadline_ns)
            break;
        heap_set(s, at, s->heap[child]);
        at = child;
    }
    heap_set(s, at, g);
}

void sched_group_rearm(struct shoal_sched *s, struct sched_group *g)
{
    uint64_t deadline_ns = g->stopped ? SCHED_NEVER : shoal_raft_deadline_ns(g->raft);

    SHOAL_ASSERT(s->heap[g->heap_at] == g);
    deadline_ns = sched_sooner(deadline_ns, g->keep_ns);
    deadline_ns = sched_sooner(deadline_ns, g->doomed_ns);
    deadline_ns = sched_sooner(deadline_ns, g->complete_ns);
    deadline_ns = sched_sooner(deadline_ns, g->orphan_ns);
    deadline_ns = sched_sooner(deadline_ns, g->stopped ? g->rebuild_ns : SCHED_NEVER);
    deadline_ns = sched_sooner(deadline_ns, g->lead_ns);
    deadline_ns = sched_sooner(deadline_ns, g->archive_ns);
    if (g->snap.bytes != NULL)
        deadline_ns = sched_sooner(deadline_ns, g->snap_used_ns + SCHED_SNAPSHOT_IDLE_NS);
    if (deadline_ns < g->floor_ns)
        deadline_ns = g->floor_ns;
    if (deadline_ns == g->deadline_ns)
        return;
    g->deadline_ns = deadline_ns;
    heap_fix(s, g->heap_at);
}

enum shoal_err sched_group_admit(struct shoal_sched *s, struct shoal_job_id id, struct sched_group **made)
{
    size_t at = group_place(s, id);
    struct sched_group *g;

    SHOAL_ASSERT(sched_group_find(s, id) == NULL); /* a group is here once */
    if (s->group_count == s->groups_max) {
        s->stats.groups_refused_full++;
        return SHOAL_ERR_FULL;
    }
    g = calloc(1, sizeof(*g));
    if (g == NULL)
        return SHOAL_ERR_FULL;
    g->id = id;
    g->mesh_is = shoal_job_id_is_mesh(id);
    if (g->mesh_is) {
        g->mesh = shoal_mesh_create();
        if (g->mesh == NULL) {
            free(g);
            return SHOAL_ERR_FULL;
        }
    }
    g->life = ++s->lives;
    g->target = g->mesh_is ? SCHED_MESH_TARGET : 3;
    g->keep_ns = SCHED_NEVER;
    g->doomed_ns = SCHED_NEVER;
    g->complete_ns = SCHED_NEVER;
    g->orphan_ns = SCHED_NEVER;
    g->lead_ns = SCHED_NEVER;
    g->archive_ns = SCHED_NEVER;
    g->deadline_ns = SCHED_NEVER;
    memmove(&s->groups[at + 1], &s->groups[at], (s->group_count - at) * sizeof(s->groups[0]));
    s->groups[at] = g;
    s->group_count++;
    heap_set(s, s->heap_count++, g);
    heap_fix(s, g->heap_at);
    *made = g;
    return SHOAL_OK;
}

void sched_group_free(struct sched_group *g)
{
    if (g == NULL)
        return;
    sched_lead_end(g);
    shoal_raft_destroy(g->raft);
    shoal_mesh_destroy(g->mesh);
    shoal_job_destroy(g->job);
    shoal_buf_deinit(&g->snap);
    shoal_buf_deinit(&g->part);
    free(g);
}

/* Forget the group in memory; what the store does is the caller's. Only while settling (C3), or when nobody holds
 * it. */
void sched_group_remove(struct shoal_sched *s, struct sched_group *g)
{
    size_t at = group_place(s, g->id);
    size_t heap_at = g->heap_at;
    struct sched_group **link = &s->dirty_first;
    struct sched_group *before = NULL;

    SHOAL_ASSERT(s->groups[at] == g);
    SHOAL_ASSERT(s->heap_count == s->group_count);
    sched_index_forget(s, g);
    sched_park_forget(s, g);
    sched_archive_count(s, g, false);
    sched_lead_end(g);
    sched_group_untell(s, g);
    s->group_count--;
    memmove(&s->groups[at], &s->groups[at + 1], (s->group_count - at) * sizeof(s->groups[0]));
    s->heap_count--;
    if (heap_at < s->heap_count) {
        heap_set(s, heap_at, s->heap[s->heap_count]);
        heap_fix(s, heap_at);
    }
    while (*link != NULL && *link != g) {
        before = *link;
        link = &(*link)->next_dirty;
    }
    if (*link == g) {
        *link = g->next_dirty;
        if (s->dirty_last == g)
            s->dirty_last = before;
    }
    sched_group_free(g);
}

void sched_group_dirty(struct shoal_sched *s, struct sched_group *g)
{
    SHOAL_ASSERT(s->group_count > 0);
    if (g->dirty)
        return;
    g->dirty = true;
    g->next_dirty = NULL;
    if (s->dirty_last == NULL)
        s->dirty_first = g;
    else
        s->dirty_last->next_dirty = g;
    s->dirty_last = g;
}

void sched_group_clean(struct shoal_sched *s, struct sched_group *g)
{
    SHOAL_ASSERT(s->dirty_first == g);
    SHOAL_ASSERT(g->dirty);
    s->dirty_first = g->next_dirty;
    if (s->dirty_first == NULL)
        s->dirty_last = NULL;
    g->dirty = false;
    g->next_dirty = NULL;
}

void sched_group_doom(struct shoal_sched *s, struct sched_group *g, uint64_t after_ns, bool for_good)
{
    uint64_t at = s->now + after_ns;

    SHOAL_ASSERT(sched_group_find(s, g->id) == g); /* C3 */
    g->gone_for_good = g->gone_for_good || for_good;
    if (at < g->doomed_ns)
        g->doomed_ns = at;
    sched_group_rearm(s, g);
}

size_t sched_group_guardians(const struct sched_group *g, struct shoal_node_id *nodes, size_t cap)
{
    const struct shoal_raft_config *config = shoal_raft_config(g->raft);
    size_t count = 0;

    SHOAL_ASSERT(g->raft != NULL);
    for (unsigned i = 0; i < config->count && count < cap; i++) {
        if (config->members[i].bits & (SHOAL_RAFT_VOTER | SHOAL_RAFT_VOTER_OLD))
            nodes[count++] = config->members[i].id.node;
    }
    return count;
}

void sched_raft_options(struct shoal_sched *s, struct shoal_raft_options *options)
{
    SHOAL_ASSERT(s->options.support_ns > 0);
    *options = (struct shoal_raft_options){
        .self = { .node = s->self, .store = s->store },
        .support_ns = s->options.support_ns,
        .quiet_until_ns = s->options.start_ns + s->options.support_ns,
    };
    shoal_rand_init(&options->chance, shoal_rand_u64(&s->chance));
}

/* ---- Applying ---- */

static void apply_found(struct shoal_sched *s, struct sched_group *g, struct shoal_view bytes)
{
    struct founding_record record;
    struct shoal_job_founding founding = { .id = g->id };
    enum shoal_err err = sched_record_decode(bytes, &record);

    SHOAL_ASSERT(!g->mesh_is);
    if (g->job != NULL || g->refused || err != SHOAL_OK || !shoal_job_id_equal(record.ticket.job, g->id))
        return; /* a second founding, or none: changes nothing, on every guardian alike */
    founding.ticket_ms = record.ticket.wall_ms;
    founding.create_ms = record.ticket.wall_ms;
    founding.founder = record.ticket.issuer;
    founding.generation = record.generation;
    founding.spec = record.spec;
    err = shoal_job_create(&g->job, &founding);
    if (err != SHOAL_OK) {
        g->refused = err == SHOAL_ERR_MALFORMED;
        if (!g->refused)
            sched_group_stop(s, g, "there is no memory for it");
        return;
    }
    g->founded = true;
    g->record_known = true;
    g->spec_hash = record.ticket.spec_hash;
    g->bundle_hash = record.bundle_hash;
    g->target = record.ticket.target;
    g->complete_ns = SCHED_NEVER;
    g->found_durable = true; /* on a majority: it is committed */
    sched_bundle_want(s, g);
    sched_found_durable(s, g);
}

static void apply_job(struct shoal_sched *s, struct sched_group *g, const struct shoal_entry *entry)
{
    struct shoal_view bytes = shoal_entry_view(entry);
    unsigned kind = bytes.len == 0 ? RECORD_KINDS : bytes.bytes[0];
    bool stale = false;

    SHOAL_ASSERT(!g->mesh_is && entry->kind == SHOAL_ENTRY_USER);
    SHOAL_ASSERT(entry->index > g->applied); /* G1 */
    if (kind == RECORD_FOUND) {
        apply_found(s, g, bytes);
    } else if (kind == RECORD_REFUSED && g->job == NULL) {
        g->refused = true;
        sched_group_doom(s, g, SCHED_DOOM_NS, true);
    } else if (kind == RECORD_COMMAND && g->job != NULL) {
        unsigned changed =
            shoal_job_apply(g->job, entry->index, shoal_view_of(bytes.bytes + 1, bytes.len - 1), s->job_scratch);

        g->changed |= changed;
        stale = s->job_scratch->kind == SHOAL_JOB_ENTRY_EDIT && (changed & SHOAL_JOB_CHANGED_REFUSED) != 0;
    }
    sched_requests_applied(s, g, entry->index, entry->term, stale ? SHOAL_ERR_STALE : SHOAL_OK,
                           stale ? "the service was changed by somebody else; look again" : "");
}

static void apply_mesh(struct shoal_sched *s, struct sched_group *g, const struct shoal_entry *entry)
{
    struct shoal_msg msg = { "" };
    enum shoal_err err = shoal_mesh_apply(g->mesh, entry->index, shoal_entry_view(entry), &msg);

    SHOAL_ASSERT(g->mesh_is && entry->index > g->applied); /* G1 */
    g->founded = true;
    s->copy_dirty = true;
    sched_requests_applied(s, g, entry->index, entry->term, err, msg.text);
}

void sched_group_apply(struct shoal_sched *s, struct sched_group *g, uint64_t upto)
{
    SHOAL_ASSERT(g->raft != NULL);
    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    for (uint64_t i = g->applied + 1; i <= upto && !g->stopped; i++) {
        const struct shoal_entry *entry = shoal_raft_entry(g->raft, i);

        SHOAL_ASSERT(entry != NULL);
        if (entry->kind == SHOAL_ENTRY_CONFIG)
            g->config_index = i;
        else if (entry->kind == SHOAL_ENTRY_USER && g->mesh_is)
            apply_mesh(s, g, entry);
        else if (entry->kind == SHOAL_ENTRY_USER)
            apply_job(s, g, entry);
        g->applied = i;
        g->applied_term = entry->term;
        g->log_bytes += entry->len + 32u;
        if (i % SCHED_DIGEST_ENTRIES == 0)
            sched_take_digest(s, g);
    }
    s->copy_dirty = s->copy_dirty || (g->mesh_is && g->founded); /* its guardians may be others now, too */
    sched_index_dirty(s, g);
    sched_requests_readable(s, g);
    if (g->changed != 0 || g->leads)
        sched_group_dirty(s, g);
}

/* ---- Carrying out ---- */

static void send_raft(struct shoal_sched *s, struct sched_group *g, const struct shoal_raft_message *message)
{
    size_t at = (s->actions->pool_used + 15) & ~(size_t)15;
    const size_t head = 3 + sizeof(g->id.bytes);
    struct frame frame = { .kind = FRAME_RAFT };
    struct shoal_writer w;
    size_t room;
    size_t len;

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    SHOAL_ASSERT(!sched_is_self(s, message->to.node));
    if (at + SCHED_POOL_KEPT + 512 >= SHOAL_SCHED_POOL_BYTES) {
        s->stats.sends_dropped++;
        return;
    }
    room = SHOAL_SCHED_POOL_BYTES - SCHED_POOL_KEPT - at;
    if (room > SHOAL_FRAME_BYTES_MAX)
        room = SHOAL_FRAME_BYTES_MAX;
    w = shoal_writer_init(s->actions->pool + at, room);
    frame.u.raft.group = g->id;
    (void)sched_frame_encode(&frame, &w); /* the head; the message is encoded in its place, behind it */
    SHOAL_ASSERT(!w.failed && w.len == head);
    if (shoal_raft_message_encode(message, w.bytes + w.len, room - w.len, &len) != SHOAL_OK) {
        s->stats.sends_dropped++;
        return;
    }
    s->actions->pool_used = at + w.len + len;
    sched_send_view(s, message->to.node, shoal_view_of(w.bytes, w.len + len), message->kind == SHOAL_RAFT_INSTALL);
}

static void note_need(struct sched_group *g, const struct shoal_raft_action *action)
{
    SHOAL_ASSERT(action->kind == SHOAL_RAFT_ACTION_NEED_SNAPSHOT);
    SHOAL_ASSERT(g->need_count <= SCHED_NEEDS_MAX);
    if (g->need_count < SCHED_NEEDS_MAX)
        g->needs[g->need_count++] = (struct sched_need){
            .peer = action->u.need_snapshot.peer,
            .index = action->u.need_snapshot.index,
            .offset = action->u.need_snapshot.offset,
        };
}

static void rejected(struct shoal_sched *s, struct sched_group *g, uint64_t ctx, enum shoal_err err)
{
    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    SHOAL_ASSERT(err != SHOAL_OK);
    if (ctx == SCHED_CTX_LEAD) {
        g->lead_refused = true;
        sched_group_dirty(s, g);
    } else if (ctx != SCHED_CTX_KEEP) { /* upkeep looks again by itself */
        sched_requests_rejected(s, g, ctx, err);
    }
}

void sched_carry_out(struct shoal_sched *s, struct sched_group *g)
{
    const struct shoal_raft_actions *actions = &s->raft_actions;
    bool snapshot = actions->wants_snapshot;

    SHOAL_ASSERT(s->raft_actions.count <= SHOAL_RAFT_ACTIONS_MAX);
    for (uint32_t i = 0; i < actions->count; i++) {
        const struct shoal_raft_action *action = &actions->list[i];

        switch (action->kind) {
        case SHOAL_RAFT_ACTION_SEND: send_raft(s, g, &action->u.send); break;
        case SHOAL_RAFT_ACTION_PERSIST: sched_persist(s, g, action); break;
        case SHOAL_RAFT_ACTION_COMMIT: sched_group_apply(s, g, action->u.commit.index); break;
        case SHOAL_RAFT_ACTION_READ_READY:
            sched_requests_read(s, g, action->u.read_ready.ctx & ~SCHED_CTX_READ, action->u.read_ready.index);
            break;
        case SHOAL_RAFT_ACTION_ROLE:
        case SHOAL_RAFT_ACTION_CONFIG:
            g->role_changed = true;
            sched_group_dirty(s, g);
            break;
        case SHOAL_RAFT_ACTION_NEED_SNAPSHOT:
            note_need(g, action);
            sched_group_dirty(s, g);
            break;
        case SHOAL_RAFT_ACTION_SNAPSHOT_PART: sched_snapshot_part(s, g, action); break;
        case SHOAL_RAFT_ACTION_REJECT: rejected(s, g, action->u.reject.ctx, action->u.reject.err); break;
        case SHOAL_RAFT_ACTION_REMOVED: sched_group_doom(s, g, 0, false); break;
        }
    }
    if (actions->wants_reserve && shoal_raft_reserve(g->raft) != SHOAL_OK)
        s->stats.groups_refused_full++; /* no memory: the raft refuses proposals, and asks again */
    if (snapshot || g->applied - g->snapshot_index >= SCHED_SNAPSHOT_ENTRIES || g->log_bytes >= SCHED_SNAPSHOT_BYTES)
        sched_snapshot_take(s, g);
    if (g->role_changed) { /* at once: no claim may outlive the leadership */
        bool leads = shoal_raft_is_leader(g->raft) && !g->stopped;

        if (g->leads && !leads) {
            g->leads = false;
            g->keep_ns = SCHED_NEVER;
            sched_group_claims(s, g);
            sched_lead_end(g);
        }
    }
    sched_group_rearm(s, g);
}

enum shoal_err sched_group_step(struct shoal_sched *s, struct sched_group *g, const struct shoal_raft_event *event)
{
    enum shoal_err err;

    SHOAL_ASSERT(g->raft != NULL);
    if (g->stopped)
        return SHOAL_OK;
    sched_group_sync(s, g);
    err = shoal_raft_step(g->raft, event, s->now, &s->raft_actions);
    sched_carry_out(s, g);
    return err;
}

static void take_role(struct shoal_sched *s, struct sched_group *g)
{
    struct shoal_raft_status status;
    bool leads;

    SHOAL_ASSERT(g->role_changed);
    g->role_changed = false;
    shoal_raft_status(g->raft, &status);
    leads = status.role == SHOAL_RAFT_LEADER && !g->stopped;
    if (leads != g->leads || status.term != g->term || !shoal_node_id_equal(status.leader.node, g->leader)) {
        struct shoal_sched_action *action = sched_act(s, SHOAL_SCHED_ROLE);

        action->u.role.group = g->id;
        action->u.role.leads = leads;
        action->u.role.term = status.term;
        action->u.role.leader = status.leader.node;
        if (leads && !g->leads)
            s->stats.terms_led++;
        if (leads && g->lead != NULL && status.term != g->term)
            sched_lead_end(g);
        g->leads = leads;
        g->term = status.term;
        g->leader = status.leader.node;
        g->below_since_ns = 0;
        sched_index_dirty(s, g);
        g->keep_ns = SCHED_NEVER; /* a leader looks at once */
    }
    sched_group_told(s, g);
    sched_requests_led(s, g->id, g->leader);
    if (g->mesh_is) {
        s->mesh_leader = g->leader;
        s->copy_dirty = s->copy_dirty || g->founded; /* its guardians may be others now */
    }
}

/* An id that must not come back is remembered before its group is forgotten: the store keeps their order. */
static void bury(struct shoal_sched *s, struct sched_group *g)
{
    bool deleted = g->gone_for_good && !g->mesh_is;
    bool archived = g->gone_archived && !deleted && !g->mesh_is;
    struct shoal_job_id id = g->id;

    SHOAL_ASSERT(s->now >= g->doomed_ns);
    /* A final record that is here says so itself: most ended jobs leave no more behind. */
    if (!archived || !sched_archive_holds(s, id) || sched_gone_find(s, id) != NULL) {
        enum gone_why how = deleted ? GONE_DELETED : GONE_MOVED;

        sched_gone_add(s, id, archived ? GONE_ARCHIVED : how, g->spec_hash);
        sched_gone_keep_floor(s, g);
        sched_gone_save(s);
    }
    if (deleted || archived)
        sched_summary_bury(s, g, archived);
    sched_act(s, SHOAL_SCHED_REMOVE_GROUP)->u.group.group = id;
    if (deleted)
        sched_gone_files(s, id);
    if (g->raft != NULL)
        sched_requests_restart(s, g); /* nobody else would answer a read that waits for its group */
    sched_group_remove(s, g);
    if (deleted)
        sched_archive_deleted(s, id);
    if (archived) {
        s->stats.archived++;
        sched_archive_bury(s, id);
    }
    sched_index_id(s, id);
}

/* G4. A replica that missed its own removal, or the job's deletion, has a configuration of the past, and may know
 * nobody who is or was a member since: it asks who leads by gossip, who shared the group with it, and who could know
 * the id. */
static void ask_whether_member(struct shoal_sched *s, struct sched_group *g)
{
    const struct shoal_job_summary *summary = sched_summary_find(s, g->id);
    struct shoal_node_id nodes[SCHED_ASKED_MAX];
    unsigned count = g->mesh_is ? 0 : sched_could_know(s, g->id, nodes);
    struct frame frame = { .kind = FRAME_WHO };
    struct shoal_node_id holders[SHOAL_ARCHIVE_COPIES];
    size_t holder_count = g->mesh_is ? 0 : sched_archive_hosts(s, g->id, holders);

    SHOAL_ASSERT(!g->leads); /* G4 */
    frame.u.who.job = g->id;
    for (unsigned i = 0; i < g->told_count; i++)
        sched_send(s, g->told[i].node, &frame);
    for (unsigned i = 0; i < count; i++)
        sched_send(s, nodes[i], &frame);
    if (summary != NULL && !sched_is_self(s, summary->leader))
        sched_send(s, summary->leader, &frame);
    for (size_t i = 0; !g->mesh_is && i < holder_count; i++) /* it may have ended meanwhile */
        if (!sched_is_self(s, holders[i]))
            sched_send(s, holders[i], &frame);
    if (g->mesh_is && !sched_is_self(s, s->mesh_leader) && !shoal_node_id_is_zero(s->mesh_leader))
        sched_send(s, s->mesh_leader, &frame);
    g->orphan_ns = s->now + SCHED_ORPHAN_NS;
}

bool sched_group_decides(const struct sched_group *g)
{
    SHOAL_ASSERT(g->applied_term <= g->term);
    return g->leads && g->applied_term == g->term;
}

/* A leader that does not claim the group, or is not heard, is none: a learner, which never campaigns, would believe in
 * it for ever. */
static void look_for_leader(struct shoal_sched *s, struct sched_group *g)
{
    bool led =
        g->leads || (!shoal_node_id_is_zero(g->leader) && shoal_support_claimed(s->support, g->leader, g->id) != 0 &&
                     sched_silent_since(s, g->leader) == 0);

    SHOAL_ASSERT(g->raft != NULL);
    if (led)
        g->orphan_ns = SCHED_NEVER;
    else if (g->orphan_ns == SCHED_NEVER)
        g->orphan_ns = s->now + SCHED_ORPHAN_NS;
    else if (s->now >= g->orphan_ns)
        ask_whether_member(s, g);
}

/* Whatever this group has to do now. The only place, besides a step's start, where a group may end. */
void sched_group_due(struct shoal_sched *s, struct sched_group *g)
{
    const struct shoal_raft_event timer = { .kind = SHOAL_RAFT_EVENT_TIMER };

    SHOAL_ASSERT(sched_group_find(s, g->id) == g); /* C3 */
    if (s->now >= g->doomed_ns) {
        bury(s, g);
        return;
    }
    sched_group_sync(s, g);
    if (!g->stopped && s->now >= shoal_raft_deadline_ns(g->raft)) {
        enum shoal_err err = sched_group_step(s, g, &timer);

        SHOAL_ASSERT(err == SHOAL_OK);
    }
    if (g->role_changed)
        take_role(s, g);
    if (g->need_count > 0)
        sched_snapshot_give(s, g);
    if (g->reads_waiting)
        sched_requests_read_round(s, g);
    if (s->now >= g->complete_ns)
        sched_found_complete(s, g);
    look_for_leader(s, g);
    if (g->stopped && s->now >= g->rebuild_ns)
        sched_rebuild_ask(s, g);
    sched_settle_lead(s, g);
    if (g->leads && (g->keep_ns == SCHED_NEVER || s->now >= g->keep_ns))
        sched_keep(s, g);
    sched_lead_tend(s, g);
    sched_park_count(s, g);
    if (sched_park_tend(s, g))
        return;
    sched_archive_lead(s, g);
    if (g->snap.bytes != NULL && s->now >= g->snap_used_ns + SCHED_SNAPSHOT_IDLE_NS)
        shoal_buf_deinit(&g->snap);
    if (g->role_changed)
        sched_group_dirty(s, g);
    g->due_count = g->due_ns == s->now ? g->due_count + 1 : 0;
    g->due_ns = s->now;
    if (g->due_count >= SCHED_DUE_MAX) {
        g->floor_ns = s->now + SCHED_DUE_PAUSE_NS;
        s->stats.pauses++;
    }
    sched_group_rearm(s, g);
}

/* ---- From outside ---- */

/* A leader speaks of a group that is not here: this node was made a member. It starts as a learner with nothing, and
 * the leader's log or snapshot tells the rest. Where a candidate asks (G6), its configuration is stored before its vote,
 * so that a restart forgets neither (W2). */
static struct sched_group *admit_joiner(struct shoal_sched *s, struct shoal_job_id id,
                                        const struct shoal_raft_message *message)
{
    bool votes = message->kind == SHOAL_RAFT_PREVOTE || message->kind == SHOAL_RAFT_VOTE;
    struct shoal_raft_options options;
    struct sched_group *g;

    SHOAL_ASSERT(votes || message->kind == SHOAL_RAFT_APPEND ||
                 message->kind ==
                     SHOAL_RAFT_INSTALL); /* G4, G6: only a leader, or who asks for a vote, makes members */
    SHOAL_ASSERT(sched_group_find(s, id) == NULL);
    sched_raft_options(s, &options);
    options.config.count = 2;
    options.config.members[0] = (struct shoal_raft_member){ .id = message->from, .bits = SHOAL_RAFT_VOTER };
    options.config.members[1] = (struct shoal_raft_member){ .id = options.self, .bits = SHOAL_RAFT_LEARNER };
    if (sched_group_admit(s, id, &g) != SHOAL_OK)
        return NULL;
    if (shoal_raft_create(&g->raft, &options) != SHOAL_OK || (votes && !sched_snapshot_witness(s, g))) {
        /* Nothing of it has been told or stored: undo the admission. */
        sched_group_remove(s, g);
        return NULL;
    }
    sched_gone_set_floor(s, g);
    sched_group_told(s, g);
    sched_group_rearm(s, g);
    return g;
}

void sched_say_gone(struct shoal_sched *s, struct shoal_node_id to, struct shoal_job_id id)
{
    struct frame frame = { .kind = FRAME_GONE };

    SHOAL_ASSERT(!sched_is_self(s, to));
    frame.u.who.job = id;
    sched_send(s, to, &frame);
}

/* G5. Only a committed configuration says so, and names the commit index: who holds a newer one was added again since,
 * and what it has acknowledged as a member must not be forgotten. An older one that counts it as a member was undone,
 * or was never committed. */
void sched_say_removed(struct shoal_sched *s, struct sched_group *g, struct shoal_node_id to)
{
    struct frame frame = { .kind = FRAME_GONE };
    struct shoal_raft_status status;

    SHOAL_ASSERT(!sched_is_self(s, to));
    shoal_raft_status(g->raft, &status);
    if (!g->founded || g->stopped || !status.config_committed || g->config_index == 0 ||
        shoal_raft_config_find(shoal_raft_config(g->raft), to) != NULL)
        return;
    frame.u.who.id = sched_group_lineage(g) << SCHED_LINEAGE_SHIFT | (uint32_t)status.commit;
    frame.u.who.job = g->id;
    sched_send(s, to, &frame);
}

uint64_t sched_group_lineage(const struct sched_group *g)
{
    SHOAL_ASSERT(g->raft != NULL);
    return sched_lineage(shoal_raft_term(g->raft));
}

uint64_t sched_group_config_version(const struct sched_group *g)
{
    SHOAL_ASSERT(g->config_index <= UINT32_MAX); /* the low half of a version */
    return sched_group_lineage(g) << SCHED_LINEAGE_SHIFT | (uint32_t)g->config_index;
}

/* The newest configuration that this replica holds, committed or not, and its lineage. */
static uint64_t newest_config(const struct sched_group *g)
{
    struct shoal_raft_status status;

    SHOAL_ASSERT(g->raft != NULL);
    shoal_raft_status(g->raft, &status);
    for (uint64_t i = status.last; i >= status.first && i > 0; i--) {
        const struct shoal_entry *entry = shoal_raft_entry(g->raft, i);

        if (entry != NULL && entry->kind == SHOAL_ENTRY_CONFIG)
            return sched_group_lineage(g) << SCHED_LINEAGE_SHIFT | (uint32_t)i;
    }
    return sched_group_config_version(g);
}

/* Tells that what it holds, or leads, is of an earlier lineage than ours, or of an earlier membership: it goes, and may become a
 * member anew. */
void sched_say_superseded(struct shoal_sched *s, const struct sched_group *g, struct shoal_node_id to)
{
    struct frame frame = { .kind = FRAME_GONE };

    SHOAL_ASSERT(!sched_is_self(s, to));
    frame.u.who.id = sched_group_config_version(g);
    frame.u.who.job = g->id;
    sched_send(s, to, &frame);
}

/* True: the message is not for this replica as it is. */
static bool other_lineage(struct shoal_sched *s, struct sched_group *g, struct shoal_node_id from,
                          const struct shoal_raft_message *message)
{
    uint64_t theirs = sched_lineage(message->term);
    uint64_t ours = sched_group_lineage(g);
    struct shoal_raft_status status;

    SHOAL_ASSERT(shoal_node_id_equal(message->from.node, from));
    if (theirs == ours)
        return false;
    if (theirs < ours) {
        sched_say_superseded(s, g, from);
        return true;
    }
    if (g->mesh_is && s->copy_bound && theirs > sched_lineage(s->copy_version))
        return true; /* G8 */
    if (shoal_raft_is_stranger(g->raft, message->from, s->now))
        return true;
    shoal_raft_status(g->raft, &status);
    if (status.last == 0 && !g->record_known)
        return false; /* a joiner that has got nothing yet joins that lineage */
    if (message->kind == SHOAL_RAFT_APPEND || message->kind == SHOAL_RAFT_INSTALL)
        sched_group_doom(s, g, 0, false); /* its leader repeats, and finds an empty place */
    return true;
}

bool sched_may_say_gone(const struct shoal_sched *s, const struct sched_group *g, struct shoal_node_id from)
{
    const struct shoal_raft_config *config = shoal_raft_config(g->raft);
    const struct shoal_job_summary *summary = sched_summary_find(s, g->id);
    struct shoal_node_id leader = g->mesh_is ? s->mesh_leader : (struct shoal_node_id){ { 0 } };

    SHOAL_ASSERT(!sched_is_self(s, from));
    if (summary != NULL)
        leader = summary->leader;
    if (shoal_raft_config_find(config, from) != NULL || shoal_node_id_equal(leader, from))
        return true;
    for (unsigned i = 0; i < config->count; i++)
        if (!sched_is_self(s, config->members[i].id.node) && !sched_gone_for_good(s, config->members[i].id.node))
            return false;
    return true;
}

/* G8. Who guards the mesh stands in the copy, which its majority has sealed: a word or a message of a fellow guardian
 * alone, of another lineage or of a configuration that the copy does not know, ends no replica and begins none. */
static bool is_guardian_by_copy(const struct shoal_sched *s, const struct sched_group *g)
{
    SHOAL_ASSERT(g->mesh_is);
    if (sched_lineage(s->copy_version) > sched_group_lineage(g))
        return false;
    for (unsigned i = 0; i < s->mesh_hint.count; i++)
        if (sched_is_self(s, s->mesh_hint.guardians[i]))
            return true;
    return s->mesh_hint.config < newest_config(g);
}

void sched_on_gone(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct sched_group *g = sched_group_find(s, frame->u.who.job);
    bool decides;

    SHOAL_ASSERT(frame->kind == FRAME_GONE);
    SHOAL_ASSERT(!sched_is_self(s, from)); /* on_frame() has looked */
    if (g == NULL)
        (void)sched_park_wake(s, frame->u.who.job); /* awake, it asks whether it is a member still */
    decides = g != NULL && (sched_group_decides(g) || (g->leads && frame->u.who.id != 0));
    if (g == NULL || (decides && sched_lineage(frame->u.who.id) <= sched_group_lineage(g)))
        return;
    if (!sched_may_say_gone(s, g, from)) {
        s->stats.gone_refused++;
        return;
    }
    if (g->mesh_is && s->copy_bound && is_guardian_by_copy(s, g))
        return; /* G8 */
    if (frame->u.who.id != 0) {
        if (frame->u.who.id >= newest_config(g))
            sched_group_doom(s, g, 0, false); /* G5 */
        return;
    }
    /* Deleted. After a recovery only fellow guardians know: the others may speak of the generation before. */
    if (!g->mesh_is &&
        (sched_group_lineage(g) == 0 || shoal_raft_config_find(shoal_raft_config(g->raft), from) != NULL)) {
        g->told_elsewhere = !shoal_node_id_equal(from, g->leader);
        sched_group_doom(s, g, 0, true);
    }
}

/* G6. A guardian that missed the founding is no member yet when the leader that would install it is lost: its vote, of an
 * empty log, is what elects the one that is left. Not of an id that this node has forgotten, or has said no to. */
static bool may_join(struct shoal_sched *s, struct shoal_job_id id, enum shoal_raft_message_kind kind)
{
    if (sched_settle_waits(s, id))
        return false;
    if (kind == SHOAL_RAFT_PREVOTE || kind == SHOAL_RAFT_VOTE)
        return sched_may_found(s, id);
    return kind == SHOAL_RAFT_APPEND || kind == SHOAL_RAFT_INSTALL;
}

enum shoal_err sched_on_raft(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct sched_group *g = sched_group_find(s, frame->u.raft.group);
    struct shoal_raft_message message;
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_MESSAGE };
    enum shoal_err err;

    SHOAL_ASSERT(frame->kind == FRAME_RAFT);
    SHOAL_ASSERT(!sched_is_self(s, from)); /* on_frame() has looked */
    if (g == NULL && sched_is_gone(s, frame->u.raft.group)) {
        sched_say_gone(s, from, frame->u.raft.group);
        return SHOAL_OK;
    }
    if (g == NULL && sched_archive_say_ended(s, from, frame->u.raft.group))
        return SHOAL_OK;
    if (!s->restored)
        return SHOAL_OK; /* what is stored comes first; the sender repeats */
    if (g == NULL && sched_park_wake(s, frame->u.raft.group))
        return SHOAL_OK; /* it comes back; the sender repeats */
    err = shoal_raft_message_decode(frame->u.raft.message, &message);
    if (err != SHOAL_OK)
        return err;
    if (!shoal_node_id_equal(message.from.node, from)) {
        shoal_raft_message_deinit(&message);
        return SHOAL_ERR_MALFORMED;
    }
    if (g == NULL && shoal_node_id_equal(message.to.node, s->self) &&
        shoal_store_id_equal(message.to.store, s->store) && may_join(s, frame->u.raft.group, message.kind) &&
        !(shoal_job_id_is_mesh(frame->u.raft.group) && s->copy_bound &&
          sched_lineage(message.term) > sched_lineage(s->copy_version))) /* G8 */
        g = admit_joiner(s, frame->u.raft.group, &message);
    if (g == NULL) {
        s->stats.frames_unknown++;
    } else if (!other_lineage(s, g, from, &message)) {
        event.u.message = &message;
        err = sched_group_step(s, g, &event);
        if (message.kind == SHOAL_RAFT_PREVOTE || message.kind == SHOAL_RAFT_VOTE)
            sched_say_removed(s, g, from);
        if (g->role_changed || g->need_count > 0)
            sched_group_dirty(s, g);
    }
    shoal_raft_message_deinit(&message);
    return err;
}

void sched_on_stored(struct shoal_sched *s, struct shoal_job_id id, struct shoal_sched_mark mark)
{
    struct sched_group *g = sched_group_find(s, id);
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_STORED };
    struct shoal_job_id kept;
    enum shoal_err err;

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    if (sched_archive_is_kept(id, &kept)) {
        if (!sched_gone_stored(s, id, mark))
            sched_archive_stored(s, kept, mark);
        return;
    }
    if (g == NULL && sched_park_stored(s, id, mark))
        return;
    if (g == NULL || mark.seq >> LIFE_SHIFT != g->life || sched_snapshot_stored(s, g, mark))
        return;
    event.u.stored = (struct shoal_raft_mark){
        .seq = mark.seq & (((uint64_t)1 << LIFE_SHIFT) - 1),
        .index = mark.index,
        .term = mark.term,
    };
    err = sched_group_step(s, g, &event);
    SHOAL_ASSERT(err == SHOAL_OK);
    if (g->found_seq != 0 && event.u.stored.seq >= g->found_seq && !g->found_durable) {
        g->found_durable = true;
        sched_found_durable(s, g);
    }
}

struct shoal_entry *sched_propose(struct shoal_sched *s, struct sched_group *g, struct shoal_view bytes, uint64_t ctx)
{
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_PROPOSE };
    struct shoal_entry *entry;
    enum shoal_err err;

    SHOAL_ASSERT(bytes.len > 0);
    if (g->mesh_is) {
        entry = shoal_entry_create(SHOAL_ENTRY_USER, bytes);
    } else {
        uint8_t *copy = s->scratch.bytes;

        if (bytes.len + 1 > SHOAL_ENTRY_BYTES_MAX || bytes.len + 1 > s->scratch.cap)
            return NULL;
        memmove(copy + 1, bytes.bytes, bytes.len);
        copy[0] = RECORD_COMMAND;
        entry = shoal_entry_create(SHOAL_ENTRY_USER, shoal_view_of(copy, bytes.len + 1));
    }
    if (entry == NULL)
        return NULL;
    event.u.propose.ctx = ctx;
    event.u.propose.entry = entry;
    err = sched_group_step(s, g, &event);
    SHOAL_ASSERT(err == SHOAL_OK);
    return entry;
}

struct shoal_view sched_group_record(const struct sched_group *g)
{
    uint64_t last = 8; /* the record is among the first entries of a founding */

    SHOAL_ASSERT(g->raft != NULL);
    for (uint64_t i = 1; i <= last; i++) {
        const struct shoal_entry *entry = shoal_raft_entry(g->raft, i);

        if (entry != NULL && entry->kind == SHOAL_ENTRY_USER && entry->len > 0 && entry->bytes[0] == RECORD_FOUND)
            return shoal_entry_view(entry);
    }
    return (struct shoal_view){ 0 };
}
