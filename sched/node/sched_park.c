/* Parked groups: jobs that wait far from the head of the queue leave memory, and come back when they are wanted.
 *
 *     group (tens of KiB)  --leader asks, every guardian it hears has parked, then the leader-->  row (56 bytes)
 *          ^                                                                                        |
 *          |       RESTORE <-- the shell reads hard state and snapshot <-- LOAD <-------------------+
 *                  wanted by: a request, a frame of its group, its turn in the queue, upkeep of its guardians
 *
 *     a pending job led here:   shown (it has a lead: allocation and gossip know of it)    at most about loaded_max
 *                               held  (no lead yet; its group is in memory)                half as many, the next ones
 *                               parked                                                     the others
 *
 * Q1. Only a group at rest is parked: all of its log is committed, applied, and on every guardian that is heard; no
 *     request, founding, snapshot or change of its members is under way. Its snapshot and its mark are one write.
 * Q2. A group is loaded only when its mark is durable, so that the shell reads all that was written for it.
 * Q3. It comes back as a follower with the term and the vote that it left with. Nobody claims it, so that it may
 *     campaign at once; a guardian that is parked still comes back when a frame of the group reaches it. That frame is
 *     dropped: who sent it repeats.
 * Q4. Its owner brings it back when its turn comes: the leader that parked it while that node lives, else the first of
 *     its guardians that does. Two that disagree for a moment both load it, and an election decides.
 * Q5. The order is that of claims (priority, ticket time, id), among what is held here and what is parked here.
 * Q6. Hosts of parked groups stay of interest to each other: support goes on as if the groups were awake.
 * Q7. A guardian that had missed some of it (behind), is gone for good, or is wanted in addition: the owner loads the
 *     group, the leader sees to it, and it is parked again. */
#include "shoal/sched_look.h"
#include "sched_park_state.h"
#include "sched_group.h"
#include "sched_index.h"
#include "sched_node.h"
#include "sched_request.h"
#include "sched_state.h"
#include "sched_store.h"

#include "shoal/banned.h"

#define ROWS_MIN 64u
#define ASK_NS (300 * SHOAL_MS)    /* an ask that is not answered is repeated */
#define CAMPAIGN_NS (5 * SHOAL_MS) /* who wants it campaigns when the others have it too */
#define CAMPAIGN_OTHERS_NS (400 * SHOAL_MS)
#define STAY_NS (2 * SHOAL_S)         /* so long one that came back stays: who asked for it may ask again */
#define PARK_MARK ((uint64_t)1 << 30) /* in a mark's low half; an own snapshot has the bit above it */
#define LIFE_SHIFT 32

_Static_assert(sizeof(struct sched_parked) <= 64, "a hundred thousand of them are 8 MiB with their places");

/* ---- States ------------------------------------------------------------------------------------------------------ */

static void move(struct sched_parked *row, enum parked_state to)
{
    static const uint8_t may[PARKED_STATES] = {
        [PARKED_WRITING] = 1u << PARKED_QUIET,
        [PARKED_QUIET] = 1u << PARKED_LOADING,
        [PARKED_LOADING] = 1u << PARKED_QUIET, /* no room for its group */
    };

    SHOAL_ASSERT(may[row->state] >> to & 1); /* Q2 */
    SHOAL_ASSERT(to < PARKED_STATES);
    row->state = (uint8_t)to;
}

/* ---- Hosts ------------------------------------------------------------------------------------------------------- */

bool sched_park_is_alive(const struct shoal_sched *s, struct shoal_node_id id)
{
    const struct sched_node *node = sched_node_find(s, id);

    if (sched_is_self(s, id))
        return true;
    if (node == NULL) /* just started: gossip has not spoken of all yet */
        return s->now < s->options.start_ns + 10 * SHOAL_S;
    return node->info.state == SHOAL_SCHED_NODE_ALIVE || node->info.state == SHOAL_SCHED_NODE_SUSPECT;
}

/* SHOAL_ERR_FULL: no memory, or as many hosts as a row can name. */
static enum shoal_err host_take(struct shoal_sched *s, struct shoal_node_id node, uint16_t *at)
{
    struct sched_park *p = s->park;
    size_t free_at = p->host_count;

    SHOAL_ASSERT(at != NULL);
    for (size_t i = 0; i < p->host_count; i++) {
        if (p->hosts[i].rows == 0)
            free_at = i;
        else if (shoal_node_id_equal(p->hosts[i].node, node)) {
            p->hosts[i].rows++;
            *at = (uint16_t)i;
            return SHOAL_OK;
        }
    }
    if (free_at == p->host_cap) {
        size_t cap = p->host_cap == 0 ? 8 : 2 * p->host_cap;
        struct park_host *grown = cap > UINT16_MAX ? NULL : realloc(p->hosts, cap * sizeof(*grown));

        if (grown == NULL)
            return SHOAL_ERR_FULL;
        p->hosts = grown;
        p->host_cap = cap;
    }
    if (!sched_is_self(s, node) && shoal_support_add(s->support, node) != SHOAL_OK) /* Q6 */
        return SHOAL_ERR_FULL;
    p->hosts[free_at] = (struct park_host){ .node = node, .rows = 1, .alive = sched_park_is_alive(s, node) };
    if (free_at == p->host_count)
        p->host_count++;
    *at = (uint16_t)free_at;
    return SHOAL_OK;
}

static void host_drop(struct shoal_sched *s, uint16_t at)
{
    struct park_host *host = &s->park->hosts[at];

    SHOAL_ASSERT(host->rows > 0);
    SHOAL_ASSERT(at < s->park->host_count);
    if (--host->rows == 0 && !sched_is_self(s, host->node))
        sched_support_remove(s, host->node);
}

/* Q4. */
static const struct park_host *owner_of(const struct sched_park *p, const struct sched_parked *row)
{
    SHOAL_ASSERT(row->owner < p->host_count);
    SHOAL_ASSERT(row->guardian_count <= SHOAL_SCHED_SOURCES_MAX);
    if (p->hosts[row->owner].alive)
        return &p->hosts[row->owner];
    for (unsigned i = 0; i < row->guardian_count; i++)
        if (p->hosts[row->guardians[i]].alive)
            return &p->hosts[row->guardians[i]];
    return &p->hosts[row->owner];
}

bool sched_park_is_mine(const struct shoal_sched *s, const struct sched_parked *row)
{
    SHOAL_ASSERT(s->park != NULL);
    return sched_is_self(s, owner_of(s->park, row)->node);
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

static size_t place_of(const struct sched_park *p, struct shoal_job_id id)
{
    size_t low = 0;
    size_t high = p->count;

    SHOAL_ASSERT(p->count <= p->cap);
    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (shoal_job_id_cmp(p->rows[mid]->id, id) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static struct sched_parked *get(const struct shoal_sched *s, struct shoal_job_id id)
{
    size_t at = place_of(s->park, id);

    SHOAL_ASSERT(s->park != NULL);
    return at < s->park->count && shoal_job_id_equal(s->park->rows[at]->id, id) ? s->park->rows[at] : NULL;
}

static bool room(struct sched_park *p)
{
    size_t cap = p->cap == 0 ? ROWS_MIN : 2 * p->cap;
    struct sched_parked **grown;

    SHOAL_ASSERT(p->count <= p->cap);
    if (p->count < p->cap)
        return true;
    if (p->count == SHOAL_SCHED_PARKED_MAX)
        return false;
    grown = realloc(p->rows, cap * sizeof(struct sched_parked *));
    if (grown == NULL)
        return false;
    p->rows = grown;
    for (unsigned d = 0; d < SHOAL_JOB_DEVICE_COUNT; d++) {
        grown = realloc(p->queues[d].heap, cap * sizeof(struct sched_parked *));
        if (grown == NULL)
            return false;
        p->queues[d].heap = grown;
    }
    p->cap = cap;
    return true;
}

static enum shoal_err name_hosts(struct shoal_sched *s, struct sched_parked *row, const struct park_mark *mark)
{
    enum shoal_err err = host_take(s, mark->owner, &row->owner);

    SHOAL_ASSERT(mark->guardian_count <= SHOAL_SCHED_SOURCES_MAX);
    SHOAL_ASSERT(row->guardian_count == 0);
    if (err != SHOAL_OK)
        return err;
    for (; row->guardian_count < mark->guardian_count && err == SHOAL_OK; row->guardian_count++) {
        err = host_take(s, mark->guardians[row->guardian_count], &row->guardians[row->guardian_count]);
        if (err != SHOAL_OK)
            break;
    }
    for (unsigned i = 0; err != SHOAL_OK && i < row->guardian_count; i++)
        host_drop(s, row->guardians[i]);
    if (err != SHOAL_OK)
        host_drop(s, row->owner);
    return err;
}

/* NULL: no memory, or as many as may be. */
static struct sched_parked *row_add(struct shoal_sched *s, struct shoal_job_id id, const struct park_mark *mark)
{
    struct sched_park *p = s->park;
    struct sched_parked *row = room(p) ? calloc(1, sizeof(*row)) : NULL;
    size_t at = place_of(p, id);

    SHOAL_ASSERT(mark->device < SHOAL_JOB_DEVICE_COUNT);
    if (row == NULL)
        return NULL;
    SHOAL_ASSERT(at == p->count || !shoal_job_id_equal(p->rows[at]->id, id));
    row->id = id;
    row->heap_at = HEAP_NONE;
    row->behind = mark->behind;
    row->target = mark->target;
    row->device = mark->device;
    row->priority = mark->priority;
    row->ticket_ms = mark->ticket_ms;
    if (name_hosts(s, row, mark) != SHOAL_OK) {
        free(row);
        return NULL;
    }
    memmove(&p->rows[at + 1], &p->rows[at], (p->count - at) * sizeof(p->rows[0]));
    p->rows[at] = row;
    p->count++;
    return row;
}

static void row_remove(struct shoal_sched *s, struct sched_parked *row)
{
    struct sched_park *p = s->park;
    size_t at = place_of(p, row->id);

    SHOAL_ASSERT(p->rows[at] == row);
    SHOAL_ASSERT(row->state != PARKED_LOADING || s->park->loading > 0);
    sched_park_queue_take(p, row);
    if (row->state == PARKED_LOADING)
        p->loading--;
    for (unsigned i = 0; i < row->guardian_count; i++)
        host_drop(s, row->guardians[i]);
    host_drop(s, row->owner);
    p->count--;
    memmove(&p->rows[at], &p->rows[at + 1], (p->count - at) * sizeof(p->rows[0]));
    free(row);
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

enum shoal_err sched_park_create(struct shoal_sched *s)
{
    SHOAL_ASSERT(s->park == NULL); /* once */
    s->park = calloc(1, sizeof(*s->park));
    if (s->park == NULL)
        return SHOAL_ERR_FULL;
    s->park->look_ns = SCHED_NEVER;
    s->park->list = calloc(s->groups_max, sizeof(struct sched_group *));
    return s->park->list == NULL || !room(s->park) ? SHOAL_ERR_FULL : SHOAL_OK;
}

void sched_park_destroy(struct shoal_sched *s)
{
    SHOAL_ASSERT(s->park == NULL || s->park->count <= SHOAL_SCHED_PARKED_MAX);
    if (s->park == NULL)
        return;
    for (size_t i = 0; i < s->park->count; i++)
        free(s->park->rows[i]);
    free(s->park->rows);
    for (unsigned d = 0; d < SHOAL_JOB_DEVICE_COUNT; d++)
        free(s->park->queues[d].heap);
    free(s->park->hosts);
    free(s->park->list);
    free(s->park);
}

/* ---- Guardians that need to be seen to --------------------------------------------------------------------------- */

static bool gone_for_long(const struct shoal_sched *s, struct shoal_node_id id)
{
    const struct sched_node *node = sched_node_find(s, id);

    SHOAL_ASSERT(s->options.replace_ns > 0);
    if (sched_is_self(s, id) || node == NULL)
        return false;
    return sched_gone_for_good(s, id) || node->info.draining ||
           (node->info.state == SHOAL_SCHED_NODE_DEAD && s->now >= node->since_ns + s->options.replace_ns);
}

/* Q7. `spare`: there are nodes that could guard it and do not. */
static bool needs_care(const struct shoal_sched *s, const struct shoal_node_id *guardians, unsigned count,
                       unsigned target, bool behind)
{
    unsigned available = 0, gone = 0, silent = 0;

    SHOAL_ASSERT(count <= SHOAL_SCHED_SOURCES_MAX);
    for (size_t i = 0; i < s->node_count; i++)
        available += sched_node_available(s, &s->nodes[i]) ? 1 : 0;
    for (unsigned i = 0; i < count; i++) {
        gone += gone_for_long(s, guardians[i]) ? 1 : 0;
        silent += sched_park_is_alive(s, guardians[i]) ? 0 : 1;
    }
    if (behind && silent == 0)
        return true;
    if (gone > 0 && available > count - gone)
        return true;
    return count < target && available > count && !(available == 4 && count == 3);
}

bool sched_park_needs_care(const struct shoal_sched *s, const struct sched_parked *row)
{
    struct shoal_node_id nodes[SHOAL_SCHED_SOURCES_MAX];

    SHOAL_ASSERT(row->guardian_count > 0);
    for (unsigned i = 0; i < row->guardian_count; i++)
        nodes[i] = s->park->hosts[row->guardians[i]].node;
    return needs_care(s, nodes, row->guardian_count, row->target, row->behind);
}

size_t sched_park_count_unspared(const struct shoal_sched *s)
{
    struct shoal_node_id nodes[SHOAL_SCHED_SOURCES_MAX];
    size_t count = 0;

    SHOAL_ASSERT(s->park != NULL);
    for (size_t i = 0; i < s->park->count; i++) {
        const struct sched_parked *row = s->park->rows[i];

        for (unsigned n = 0; n < row->guardian_count; n++)
            nodes[n] = s->park->hosts[row->guardians[n]].node;
        count += row->behind || !sched_keep_spares(s, nodes, row->guardian_count) ? 1 : 0;
    }
    return count;
}

/* ---- Parking ----------------------------------------------------------------------------------------------------- */

/* Q1, whoever leads. */
static bool at_rest(const struct shoal_sched *s, const struct sched_group *g, const struct shoal_raft_status *status)
{
    const struct shoal_raft_config *config = shoal_raft_config(g->raft);

    SHOAL_ASSERT(g->raft != NULL); /* Q1 */
    if (g->mesh_is || g->stopped || g->refused || !g->founded || !g->record_known || g->job == NULL ||
        g->doomed_ns != SCHED_NEVER || g->role_changed || g->index_dirty)
        return false;
    if (status->commit != status->last || g->applied != status->last || status->durable != status->last ||
        status->joint || !status->config_committed || status->transferring)
        return false;
    if (g->waiter_count > 0 || g->need_count > 0 || g->snapshot_saving || g->reads_waiting || g->read_serial != 0 ||
        (!g->bundle_here && !shoal_hash_is_zero(g->bundle_hash)) || config->count > SHOAL_SCHED_SOURCES_MAX)
        return false;
    for (unsigned i = 0; i < config->count; i++)
        if (config->members[i].bits != SHOAL_RAFT_VOTER)
            return false;
    return !sched_request_open(s, g->id);
}

static void say(struct shoal_sched *s, struct shoal_node_id to, enum park_word word, struct shoal_job_id id,
                uint64_t term, uint64_t index)
{
    struct frame frame = { .kind = FRAME_PARK };

    SHOAL_ASSERT(word < PARK_WORDS);
    SHOAL_ASSERT(!sched_is_self(s, to));
    frame.u.park.job = id;
    frame.u.park.word = (uint8_t)word;
    frame.u.park.term = term;
    frame.u.park.index = index;
    sched_send(s, to, &frame);
}

/* The group leaves memory; the caller holds it no more. False: not now, nothing has changed. */
static bool park(struct shoal_sched *s, struct sched_group *g, struct shoal_node_id owner, bool behind)
{
    struct park_mark mark = { .commit = g->applied,
                              .behind = behind,
                              .target = g->target,
                              .device = (uint8_t)g->job->spec.device,
                              .priority = g->job->spec.priority,
                              .ticket_ms = g->job->ticket_ms,
                              .owner = owner };
    uint8_t bytes[SHOAL_SCHED_ROW_BYTES_MAX];
    struct sched_parked *row;

    SHOAL_ASSERT(g->lead == NULL);                  /* what is shown stays */
    SHOAL_ASSERT(g->job != NULL && g->applied > 0); /* Q1 */
    SHOAL_ASSERT(get(s, g->id) == NULL);            /* Q1: a group is here or parked */
    mark.row = sched_index_row(s, g, bytes, &mark.version);
    mark.guardian_count = (uint8_t)sched_group_guardians(g, mark.guardians, SHOAL_SCHED_SOURCES_MAX);
    row = sched_has_room(s) ? row_add(s, g->id, &mark) : NULL;
    if (row == NULL)
        return false;
    row->state = PARKED_WRITING;
    row->mark = g->life << LIFE_SHIFT | PARK_MARK;
    if (!sched_store_park(s, g, &mark, row->mark)) {
        row_remove(s, row);
        return false;
    }
    sched_group_remove(s, g);
    sched_park_queue_put(s, row);
    sched_park_look_at(s, s->now + LOOK_IDLE_NS);
    s->stats.parks++;
    return true;
}

/* Everyone that is heard has parked it, or is not to be waited for. `behind`: one of them lacks some of it. */
static bool all_parked(const struct shoal_sched *s, const struct sched_group *g, uint64_t index, bool *behind)
{
    struct shoal_raft_progress list[SHOAL_GROUP_NODES_MAX];
    size_t count = shoal_raft_progress(g->raft, list, SHOAL_GROUP_NODES_MAX);
    bool all = true;

    SHOAL_ASSERT(g->leads); /* Q1: the leader asks */
    *behind = false;
    for (size_t i = 0; i < count; i++) {
        struct shoal_node_id node = list[i].member.id.node;
        bool has = list[i].match == index && list[i].commit_known == index;
        bool done = false;

        if (sched_is_self(s, node))
            continue;
        for (unsigned t = 0; t < g->told_count; t++)
            done = done || (shoal_node_id_equal(g->told[t].node, node) && g->told[t].parked == index);
        if (sched_park_is_alive(s, node))
            all = all && done;
        else
            *behind = *behind || !has;
    }
    return all && count <= g->told_count + 1u;
}

/* Followers first: while one is awake and hears no claim, it would campaign. True: it is parked. */
bool sched_park_ask_or_park(struct shoal_sched *s, struct sched_group *g)
{
    struct shoal_node_id nodes[SHOAL_SCHED_SOURCES_MAX];
    struct shoal_raft_status status;
    unsigned count;
    bool behind;

    SHOAL_ASSERT(g->lead == NULL || !g->held);
    shoal_raft_status(g->raft, &status);
    if (!g->held || !g->leads || s->now < g->stay_ns || !sched_park_only_waits(g) || !at_rest(s, g, &status))
        return false;
    count = (unsigned)sched_group_guardians(g, nodes, SHOAL_SCHED_SOURCES_MAX);
    if (needs_care(s, nodes, count, g->target, false))
        return false; /* the keeper has work here */
    if (all_parked(s, g, status.last, &behind))
        return park(s, g, s->self, behind);
    if (s->now < g->park_ask_ns)
        return false;
    g->park_ask_ns = s->now + ASK_NS;
    for (unsigned i = 0; i < g->told_count; i++)
        if (g->told[i].parked != status.last)
            say(s, g->told[i].node, PARK_ASK, g->id, status.term, status.last);
    return false;
}

static void on_ask(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct sched_group *g = sched_group_find(s, frame->u.park.job);
    struct shoal_raft_status status;

    SHOAL_ASSERT(frame->kind == FRAME_PARK && frame->u.park.word == PARK_ASK);
    if (g != NULL) {
        shoal_raft_status(g->raft, &status);
        if (g->leads || g->lead != NULL || status.term != frame->u.park.term || status.last != frame->u.park.index ||
            !shoal_node_id_equal(status.leader.node, from) || !at_rest(s, g, &status) || !park(s, g, from, false))
            return; /* it is asked again */
    } else if (get(s, frame->u.park.job) == NULL) {
        return;
    }
    say(s, from, PARK_DONE, frame->u.park.job, frame->u.park.term, frame->u.park.index);
}

void sched_on_park(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct sched_group *g;

    SHOAL_ASSERT(frame->kind == FRAME_PARK);
    SHOAL_ASSERT(!sched_is_self(s, from)); /* on_frame() has looked */
    if (!s->restored)
        return; /* what is stored comes first; the sender repeats */
    switch ((enum park_word)frame->u.park.word) {
    case PARK_ASK: on_ask(s, from, frame); break;
    case PARK_DONE:
        g = sched_group_find(s, frame->u.park.job);
        if (g == NULL || !g->leads || g->term != frame->u.park.term)
            break;
        for (unsigned i = 0; i < g->told_count; i++)
            if (shoal_node_id_equal(g->told[i].node, from))
                g->told[i].parked = frame->u.park.index;
        g->park_ask_ns = s->now; /* the others at once, or itself */
        sched_group_dirty(s, g);
        break;
    case PARK_WAKE: (void)sched_park_wake(s, frame->u.park.job); break;
    case PARK_WORDS: break;
    }
}

bool sched_park_tend(struct shoal_sched *s, struct sched_group *g)
{
    bool any = false;

    SHOAL_ASSERT(g->told_count <= SCHED_TOLD_MAX);
    for (unsigned i = 0; i < g->told_count; i++)
        any = any || g->told[i].parked != 0;
    return any && g->held && sched_park_ask_or_park(s, g);
}

bool sched_park_stored(struct shoal_sched *s, struct shoal_job_id id, struct shoal_sched_mark mark)
{
    struct sched_parked *row = get(s, id);

    SHOAL_ASSERT(s->park != NULL);
    if (row == NULL)
        return false;
    if (row->state != PARKED_WRITING || row->mark != mark.seq)
        return true; /* of a write before the mark */
    move(row, PARKED_QUIET);
    if (row->wanted)
        (void)sched_park_wake(s, id);
    return true;
}

/* ---- Coming back ------------------------------------------------------------------------------------------------- */

bool sched_is_parked(const struct shoal_sched *s, struct shoal_job_id id)
{
    SHOAL_ASSERT(s->park != NULL);
    return get(s, id) != NULL;
}

bool sched_park_owner(const struct shoal_sched *s, struct shoal_job_id id, struct shoal_node_id *owner)
{
    const struct sched_parked *row = get(s, id);

    SHOAL_ASSERT(owner != NULL);
    if (row == NULL)
        return false;
    *owner = owner_of(s->park, row)->node;
    return true;
}

bool sched_park_wake(struct shoal_sched *s, struct shoal_job_id id)
{
    struct sched_park *p = s->park;
    struct sched_parked *row = get(s, id);

    SHOAL_ASSERT(s->park->loading <= SHOAL_SCHED_LOADS_MAX);
    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    if (row == NULL)
        return false;
    row->wanted = true;
    if (row->state != PARKED_QUIET || !s->restored)
        return true;
    if (p->loading == SHOAL_SCHED_LOADS_MAX - SHOAL_ARCHIVE_LOADS_MAX || s->group_count + p->loading >= s->groups_max ||
        s->actions->count + 64 > SHOAL_SCHED_ACTIONS_MAX) {
        s->stats.loads_refused++; /* who wants it asks again */
        return true;
    }
    sched_park_queue_take(p, row);
    move(row, PARKED_LOADING);
    p->loading++;
    sched_act(s, SHOAL_SCHED_LOAD)->u.group.group = id;
    s->stats.loads++;
    return true;
}

void sched_park_want(struct shoal_sched *s, struct shoal_job_id id)
{
    struct sched_parked *row = get(s, id);

    SHOAL_ASSERT(row != NULL);
    row->first = true;
    (void)sched_park_wake(s, id);
}

enum parked_how sched_park_restore(struct shoal_sched *s, const struct shoal_sched_event *event)
{
    struct sched_parked *row = get(s, event->u.restore.group);
    struct park_mark mark;

    SHOAL_ASSERT(event->kind == SHOAL_SCHED_RESTORE);
    if (s->restored)
        return row != NULL && row->state == PARKED_LOADING ? PARKED_COMES : PARKED_STAYS;
    if (!event->u.restore.has_hard || sched_park_mark_decode(event->u.restore.hard.config, &mark) != SHOAL_OK)
        return PARKED_NOT;
    row = row == NULL ? row_add(s, event->u.restore.group, &mark) : NULL;
    if (row == NULL)
        return PARKED_NOT; /* no memory for a row: as a group it may find some */
    row->state = PARKED_QUIET;
    sched_park_queue_put(s, row); /* Q4: as it was parked; if its owner is gone, the next look sees that */
    sched_index_parked(s, row->id, mark.version, mark.row);
    sched_park_look_at(s, s->now + LOOK_IDLE_NS);
    return PARKED_STAYS;
}

uint64_t sched_park_campaign(struct shoal_sched *s, struct shoal_job_id id)
{
    const struct sched_parked *row = s->restored ? get(s, id) : NULL;

    SHOAL_ASSERT(s->park != NULL);
    if (row == NULL)
        return 0;
    return s->now + (row->first ? CAMPAIGN_NS : CAMPAIGN_OTHERS_NS + shoal_rand_below(&s->chance, CAMPAIGN_OTHERS_NS));
}

void sched_park_came(struct shoal_sched *s, struct sched_group *g)
{
    struct sched_parked *row = get(s, g->id);
    struct shoal_node_id nodes[SHOAL_GROUP_NODES_MAX];
    size_t count = sched_group_guardians(g, nodes, SHOAL_GROUP_NODES_MAX);
    bool first;

    SHOAL_ASSERT(row != NULL && row->state == PARKED_LOADING);
    SHOAL_ASSERT(s->park->loading > 0); /* Q2 */
    g->called = row->turn;
    g->called_ns = s->now;
    g->stay_ns = s->now + STAY_NS;
    first = row->first;
    row_remove(s, row);
    for (size_t i = 0; i < count && first; i++)
        if (!sched_is_self(s, nodes[i]))
            say(s, nodes[i], PARK_WAKE, g->id, 0, 0);
}

void sched_park_fails(struct shoal_sched *s, struct shoal_job_id id)
{
    struct sched_parked *row = get(s, id);

    SHOAL_ASSERT(row != NULL);
    SHOAL_ASSERT(s->park->loading > 0); /* Q2 */
    move(row, PARKED_QUIET);
    s->park->loading--;
    row->wanted = row->turn = row->first = false;
    s->stats.loads_refused++;
    sched_park_queue_put(s, row);
}

/* ---- Looking inside ---------------------------------------------------------------------------------------------- */

void sched_park_stats(const struct shoal_sched *s, struct shoal_sched_stats *stats)
{
    SHOAL_ASSERT(stats != NULL);
    stats->parked = s->park->count;
    stats->pending_shown = stats->pending_held = 0;
    for (unsigned d = 0; d < SHOAL_JOB_DEVICE_COUNT; d++) {
        stats->pending_shown += s->park->queues[d].shown;
        stats->pending_held += s->park->queues[d].held;
    }
}

size_t shoal_sched_parked_count(const struct shoal_sched *s)
{
    SHOAL_ASSERT(s->park->count <= SHOAL_SCHED_PARKED_MAX);
    return s->park->count;
}

bool shoal_sched_parked_find(const struct shoal_sched *s, struct shoal_job_id id)
{
    SHOAL_ASSERT(s->park != NULL);
    return get(s, id) != NULL;
}
