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
#include "sched_park.h"
#include "sched_group.h"
#include "sched_index.h"
#include "sched_node.h"
#include "sched_request.h"
#include "sched_state.h"
#include "sched_store.h"

#include "shoal/banned.h"

#define ROWS_MIN 64u
#define HEAP_NONE UINT32_MAX
#define LOOK_NS (20 * SHOAL_MS)       /* between two looks at the queue, while there is something to do */
#define LOOK_IDLE_NS (500 * SHOAL_MS) /* and while there is not: hosts die, heads of the queue stay stuck */
#define ASK_NS (300 * SHOAL_MS)       /* an ask that is not answered is repeated */
#define CAMPAIGN_NS (5 * SHOAL_MS)    /* who wants it campaigns when the others have it too */
#define CAMPAIGN_OTHERS_NS (400 * SHOAL_MS)
#define STAY_NS (2 * SHOAL_S)         /* so long one that came back stays: who asked for it may ask again */
#define CALL_NS (3 * SHOAL_S)         /* so long a call counts as under way */
#define STUCK_NS SHOAL_S              /* slots are free, and nobody shown takes them: show more */
#define CALLS_MAX 64u                 /* by one look */
#define ASKS_MAX 256u                 /* by one look */
#define CARE_ROWS 4096u               /* looked at by one look */
#define CARE_MAX 16u                  /* loaded by it */
#define PARK_MARK ((uint64_t)1 << 30) /* in a mark's low half; an own snapshot has the bit above it */
#define LIFE_SHIFT 32

_Static_assert(sizeof(struct sched_parked) <= 64, "a hundred thousand of them are 8 MiB with their places");

/* A node that is named in rows. */
struct park_host {
    struct shoal_node_id node;
    uint32_t rows;
    bool alive; /* as the queue was made with */
};

/* Jobs that ask for one kind of device: those that wait for another are not in their way. */
struct queue {
    struct sched_parked **heap; /* those whose turn is decided here, the first claim on top */
    size_t count;
    uint32_t shown, held;
    uint32_t widened;  /* shown beyond loaded_max, since those at the head are stuck */
    uint64_t taken_ns; /* when one that is shown left the queue last */
};

struct sched_park {
    struct sched_parked **rows; /* in order of ids */
    size_t count, cap;
    struct queue queues[SHOAL_JOB_DEVICE_COUNT];
    struct park_host *hosts;
    size_t host_count, host_cap;
    size_t care_at;   /* where the next look at guardians begins */
    uint64_t care_ns; /* and when: it walks, and the queue is looked at far more often */
    uint32_t loading;
    uint64_t look_ns, looked_ns;
    struct sched_group **list; /* scratch: held groups, in order of claims */
};

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

static bool is_alive(const struct shoal_sched *s, struct shoal_node_id id)
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
    p->hosts[free_at] = (struct park_host){ .node = node, .rows = 1, .alive = is_alive(s, node) };
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

static bool is_mine(const struct shoal_sched *s, const struct sched_parked *row)
{
    SHOAL_ASSERT(s->park != NULL);
    return sched_is_self(s, owner_of(s->park, row)->node);
}

/* ---- The queue --------------------------------------------------------------------------------------------------- */

struct claim {
    uint32_t priority;
    uint64_t ticket_ms;
    struct shoal_job_id id;
};

static struct claim claim_of_row(const struct sched_parked *row)
{
    return (struct claim){ row->priority, row->ticket_ms, row->id };
}

static struct claim claim_of_job(const struct sched_group *g)
{
    SHOAL_ASSERT(g->job != NULL);
    return (struct claim){ g->job->spec.priority, g->job->ticket_ms, g->id };
}

/* Q5: as the allocation orders them. */
static int claim_cmp(const struct claim *a, const struct claim *b)
{
    SHOAL_ASSERT(a != b);
    if (a->priority != b->priority)
        return a->priority > b->priority ? -1 : 1;
    if (a->ticket_ms != b->ticket_ms)
        return a->ticket_ms < b->ticket_ms ? -1 : 1;
    return shoal_job_id_cmp(a->id, b->id);
}

static bool row_before(const struct sched_parked *a, const struct sched_parked *b)
{
    const struct claim one = claim_of_row(a);
    const struct claim two = claim_of_row(b);

    return claim_cmp(&one, &two) < 0;
}

static void heap_set(struct queue *q, size_t at, struct sched_parked *row)
{
    SHOAL_ASSERT(at < UINT32_MAX);
    q->heap[at] = row;
    row->heap_at = (uint32_t)at;
}

static void heap_fix(struct queue *q, size_t at)
{
    struct sched_parked *row = q->heap[at];

    SHOAL_ASSERT(at < q->count);
    while (at > 0 && row_before(row, q->heap[(at - 1) / 2])) {
        heap_set(q, at, q->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        size_t child = 2 * at + 1;

        if (child >= q->count)
            break;
        if (child + 1 < q->count && row_before(q->heap[child + 1], q->heap[child]))
            child++;
        if (!row_before(q->heap[child], row))
            break;
        heap_set(q, at, q->heap[child]);
        at = child;
    }
    heap_set(q, at, row);
}

static void queue_put(struct shoal_sched *s, struct sched_parked *row)
{
    struct queue *q = &s->park->queues[row->device];

    SHOAL_ASSERT(row->device < SHOAL_JOB_DEVICE_COUNT);
    if (row->heap_at != HEAP_NONE || !is_mine(s, row))
        return;
    heap_set(q, q->count++, row);
    heap_fix(q, row->heap_at);
}

static void queue_take(struct sched_park *p, struct sched_parked *row)
{
    struct queue *q = &p->queues[row->device];
    size_t at = row->heap_at;

    SHOAL_ASSERT(row->heap_at == HEAP_NONE || row->heap_at < p->queues[row->device].count); /* Q5 */
    if (at == HEAP_NONE)
        return;
    SHOAL_ASSERT(q->heap[at] == row); /* Q5 */
    row->heap_at = HEAP_NONE;
    if (at != --q->count) {
        heap_set(q, at, q->heap[q->count]);
        heap_fix(q, at);
    }
}

/* A host has died or come back, so the owners of some rows are others now. */
static void queue_again(struct shoal_sched *s)
{
    struct sched_park *p = s->park;

    SHOAL_ASSERT(s->park->count <= SHOAL_SCHED_PARKED_MAX);
    for (unsigned d = 0; d < SHOAL_JOB_DEVICE_COUNT; d++) {
        for (size_t i = 0; i < p->queues[d].count; i++)
            p->queues[d].heap[i]->heap_at = HEAP_NONE;
        p->queues[d].count = 0;
    }
    for (size_t i = 0; i < p->count; i++)
        if (p->rows[i]->state != PARKED_LOADING)
            queue_put(s, p->rows[i]);
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
    queue_take(p, row);
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

static void look_at(struct shoal_sched *s, uint64_t at_ns)
{
    uint64_t first = s->park->looked_ns + LOOK_NS / 4;

    SHOAL_ASSERT(s->park != NULL);
    if (at_ns < first)
        at_ns = first;
    if (at_ns < s->park->look_ns)
        s->park->look_ns = at_ns;
}

uint64_t sched_park_deadline(const struct shoal_sched *s)
{
    SHOAL_ASSERT(s->park != NULL);
    return s->park->look_ns;
}

/* ---- What is shown, what is held --------------------------------------------------------------------------------- */

/* It has nothing to do but to wait. One that must not wait for ever has its clock in the lead. */
static bool only_waits(const struct sched_group *g)
{
    const struct shoal_job *job = g->job;

    SHOAL_ASSERT(g->job == NULL || g->job->state < SHOAL_JOB_STATE_COUNT);
    return job != NULL && job->state <= SHOAL_JOB_PENDING_CRD_SCHEDULER && !job->stop && !job->deleted &&
           !job->unsettled && !job->result_wanted && job->placement_count == 0 && job->spec.pending_timeout_ms == 0;
}

static uint32_t limit_of(const struct shoal_sched *s, const struct queue *q)
{
    SHOAL_ASSERT(s->options.loaded_max > 0);
    return s->options.loaded_max + q->widened;
}

static struct queue *queue_of(const struct shoal_sched *s, const struct sched_group *g)
{
    SHOAL_ASSERT((unsigned)g->job->spec.device < SHOAL_JOB_DEVICE_COUNT);
    return &s->park->queues[g->job->spec.device];
}

static bool any_waits(const struct queue *q)
{
    SHOAL_ASSERT(q->count <= SHOAL_SCHED_PARKED_MAX);
    return q->held > 0 || q->count > 0;
}

bool sched_park_holds(struct shoal_sched *s, struct sched_group *g)
{
    struct queue *q = queue_of(s, g);

    SHOAL_ASSERT(g->leads && g->lead == NULL); /* Q5: held has no lead yet */
    if (!only_waits(g) || g->called)
        return false;
    if (!g->held && !any_waits(q) && q->shown < limit_of(s, q))
        return false;
    if (!any_waits(q))
        q->taken_ns = s->now; /* the queue begins here: nobody is stuck yet */
    g->held = true;
    g->changed = 0; /* a lead that begins looks at all of the job */
    sched_park_count(s, g);
    look_at(s, s->now + (q->shown < limit_of(s, q) ? 0 : LOOK_NS));
    return true;
}

void sched_park_count(struct shoal_sched *s, struct sched_group *g)
{
    struct queue *q = g->job == NULL ? NULL : queue_of(s, g);
    bool shown = g->lead != NULL && only_waits(g);

    SHOAL_ASSERT(s->park != NULL);
    if (!g->leads || g->lead != NULL)
        g->held = false;
    if (q == NULL)
        return; /* never counted: its founding record is not applied yet */
    if (g->shown && !shown) {
        q->taken_ns = s->now;
        if (any_waits(q))
            look_at(s, s->now);
    }
    q->shown += (uint32_t)shown - (uint32_t)g->shown;
    q->held += (uint32_t)g->held - (uint32_t)g->counted;
    g->shown = shown;
    g->counted = g->held;
}

void sched_park_forget(struct shoal_sched *s, struct sched_group *g)
{
    struct queue *q = g->job == NULL ? NULL : queue_of(s, g);

    SHOAL_ASSERT(s->park != NULL);
    if (q == NULL)
        return;
    q->shown -= g->shown;
    q->held -= g->counted;
    g->shown = g->counted = g->held = false;
    if (any_waits(q))
        look_at(s, s->now);
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
        silent += is_alive(s, guardians[i]) ? 0 : 1;
    }
    if (behind && silent == 0)
        return true;
    if (gone > 0 && available > count - gone)
        return true;
    return count < target && available > count && !(available == 4 && count == 3);
}

static bool row_needs_care(const struct shoal_sched *s, const struct sched_parked *row)
{
    struct shoal_node_id nodes[SHOAL_SCHED_SOURCES_MAX];

    SHOAL_ASSERT(row->guardian_count > 0);
    for (unsigned i = 0; i < row->guardian_count; i++)
        nodes[i] = s->park->hosts[row->guardians[i]].node;
    return needs_care(s, nodes, row->guardian_count, row->target, row->behind);
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
    queue_put(s, row);
    look_at(s, s->now + LOOK_IDLE_NS);
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
        if (is_alive(s, node))
            all = all && done;
        else
            *behind = *behind || !has;
    }
    return all && count <= g->told_count + 1u;
}

/* Followers first: while one is awake and hears no claim, it would campaign. True: it is parked. */
static bool ask_or_park(struct shoal_sched *s, struct sched_group *g)
{
    struct shoal_node_id nodes[SHOAL_SCHED_SOURCES_MAX];
    struct shoal_raft_status status;
    unsigned count;
    bool behind;

    SHOAL_ASSERT(g->lead == NULL || !g->held);
    shoal_raft_status(g->raft, &status);
    if (!g->held || !g->leads || s->now < g->stay_ns || !only_waits(g) || !at_rest(s, g, &status))
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
    return any && g->held && ask_or_park(s, g);
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
    queue_take(p, row);
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
    queue_put(s, row); /* Q4: as it was parked; if its owner is gone, the next look sees that */
    sched_index_parked(s, row->id, mark.version, mark.row);
    look_at(s, s->now + LOOK_IDLE_NS);
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
    queue_put(s, row);
}

/* ---- Looking at the queue ---------------------------------------------------------------------------------------- */

static int by_claim(const void *a, const void *b)
{
    const struct claim one = claim_of_job(*(struct sched_group *const *)a);
    const struct claim two = claim_of_job(*(struct sched_group *const *)b);

    return claim_cmp(&one, &two);
}

struct look {
    size_t held;     /* in the list, in order */
    uint32_t called; /* on their way to be shown */
    uint32_t lowest; /* priority among those shown */
};

static struct look survey(struct shoal_sched *s, const struct queue *q)
{
    struct look look = { .lowest = UINT32_MAX };

    SHOAL_ASSERT(s->group_count <= s->groups_max);
    for (size_t i = 0; i < s->group_count; i++) {
        struct sched_group *g = s->groups[i];

        if (g->job == NULL || queue_of(s, g) != q)
            continue;
        if (g->called && g->lead == NULL && s->now < g->called_ns + CALL_NS)
            look.called++;
        else if (g->called && g->lead == NULL)
            g->called = false; /* another leads it, or nobody does: it waits like others */
        if (g->shown && g->job->spec.priority < look.lowest)
            look.lowest = g->job->spec.priority;
        if (g->held && !g->called)
            s->park->list[look.held++] = g;
    }
    if (look.held > 1)
        qsort(s->park->list, look.held, sizeof(s->park->list[0]), by_claim);
    return look;
}

static bool slots_are_free(const struct shoal_sched *s, unsigned device)
{
    SHOAL_ASSERT(device < SHOAL_JOB_DEVICE_COUNT);
    for (size_t i = 0; i < s->node_count; i++) {
        const struct shoal_sched_node *node = &s->nodes[i].info;
        bool fits =
            device == SHOAL_JOB_DEVICE_AUTO || (device == SHOAL_JOB_DEVICE_GPU) == (node->device == SHOAL_SCHED_GPU);

        if (node->state == SHOAL_SCHED_NODE_ALIVE && node->slots > 0 && node->slots_free != 0 && fits)
            return true;
    }
    return false;
}

/* Those at the head want what there is not (a numeric class, or many slots at once), and slots are free: others may take
 * them. */
static void widen(struct shoal_sched *s, struct queue *q)
{
    uint32_t step = s->options.loaded_max / 4 + 1;

    SHOAL_ASSERT(q >= s->park->queues && q < s->park->queues + SHOAL_JOB_DEVICE_COUNT);
    if (!any_waits(q)) {
        q->widened = 0;
        return;
    }
    if (q->shown < limit_of(s, q) || s->now < q->taken_ns + STUCK_NS ||
        !slots_are_free(s, (unsigned)(q - s->park->queues)))
        return;
    q->taken_ns = s->now;
    if (limit_of(s, q) + step < s->groups_max / 8) {
        q->widened += step;
        s->stats.park_widened++;
    }
}

/* Q5. Returns how many of the list were called. */
static size_t call(struct shoal_sched *s, const struct queue *q, const struct look *look)
{
    struct sched_park *p = s->park;
    uint32_t shown = q->shown + look->called;
    size_t at = 0;

    SHOAL_ASSERT(look->held <= s->group_count);
    for (unsigned calls = 0; calls < CALLS_MAX; calls++) {
        struct sched_group *g = at < look->held ? p->list[at] : NULL;
        struct sched_parked *row = q->count > 0 ? q->heap[0] : NULL;
        struct claim first, parked;

        if (g == NULL && row == NULL)
            break;
        first = g != NULL ? claim_of_job(g) : claim_of_row(row);
        parked = row != NULL ? claim_of_row(row) : first;
        if (row != NULL && claim_cmp(&parked, &first) <= 0) {
            g = NULL;
            first = parked;
        }
        if (shown >= limit_of(s, q) && (shown >= 2 * limit_of(s, q) || first.priority <= look->lowest))
            break;
        shown++;
        if (g != NULL) {
            g->called = true;
            g->called_ns = s->now;
            sched_group_dirty(s, g);
            at++;
            continue;
        }
        row->turn = row->first = true;
        queue_take(p, row);
        (void)sched_park_wake(s, row->id);
        if (row->state == PARKED_QUIET) { /* no room now */
            row->turn = row->first = false;
            queue_put(s, row);
            break;
        }
    }
    return at;
}

/* Q7. */
static void care(struct shoal_sched *s)
{
    struct sched_park *p = s->park;
    unsigned loads = 0;

    SHOAL_ASSERT(s->park->count <= SHOAL_SCHED_PARKED_MAX);
    for (unsigned i = 0; i < CARE_ROWS && i < p->count && loads < CARE_MAX; i++) {
        struct sched_parked *row;

        p->care_at = p->care_at < p->count ? p->care_at : 0;
        row = p->rows[p->care_at++];
        if (row->state == PARKED_QUIET && is_mine(s, row) && row_needs_care(s, row)) {
            row->first = true;
            (void)sched_park_wake(s, row->id);
            loads++;
        }
    }
}

static void look_at_queue(struct shoal_sched *s, struct queue *q)
{
    uint32_t keep = s->options.loaded_max / 2;
    unsigned asks = 0;
    struct look look;
    size_t at;

    SHOAL_ASSERT(q->count <= SHOAL_SCHED_PARKED_MAX);
    widen(s, q);
    if (!any_waits(q))
        return;
    look = survey(s, q);
    at = call(s, q, &look);
    for (size_t i = look.held; i > at + keep && asks < ASKS_MAX && sched_has_room(s); i--, asks++)
        (void)ask_or_park(s, s->park->list[i - 1]);
    if (look.held > at + keep || q->shown < limit_of(s, q))
        look_at(s, s->now + LOOK_NS);
    else
        look_at(s, s->now + LOOK_IDLE_NS);
}

void sched_park_due(struct shoal_sched *s)
{
    struct sched_park *p = s->park;
    bool changed = false;

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    p->look_ns = SCHED_NEVER;
    p->looked_ns = s->now;
    for (size_t i = 0; i < p->host_count; i++) {
        bool alive = is_alive(s, p->hosts[i].node);

        changed = changed || (alive != p->hosts[i].alive && p->hosts[i].rows > 0);
        p->hosts[i].alive = alive;
    }
    if (changed)
        queue_again(s);
    for (unsigned d = 0; d < SHOAL_JOB_DEVICE_COUNT; d++)
        look_at_queue(s, &p->queues[d]);
    if (s->now >= p->care_ns) {
        p->care_ns = s->now + LOOK_IDLE_NS;
        care(s);
    }
    if (p->count > 0)
        look_at(s, s->now + LOOK_IDLE_NS);
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
