/* The queue of pending jobs: which are shown, which are held in memory, whose turn comes next (Q4, Q5 and Q7 of sched_park.c). */
#include "sched_park_state.h"
#include "sched_group.h"
#include "sched_node.h"
#include "sched_state.h"

#include "shoal/banned.h"

#define LOOK_NS (20 * SHOAL_MS) /* between two looks at the queue, while there is something to do */
#define CALL_NS (3 * SHOAL_S)   /* so long a call counts as under way */
#define STUCK_NS SHOAL_S        /* slots are free, and nobody shown takes them: show more */
#define CALLS_MAX 64u           /* by one look */
#define ASKS_MAX 256u           /* by one look */
#define CARE_ROWS 4096u         /* looked at by one look */
#define CARE_MAX 16u            /* loaded by it */

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

void sched_park_queue_put(struct shoal_sched *s, struct sched_parked *row)
{
    struct queue *q = &s->park->queues[row->device];

    SHOAL_ASSERT(row->device < SHOAL_JOB_DEVICE_COUNT);
    if (row->heap_at != HEAP_NONE || !sched_park_is_mine(s, row))
        return;
    heap_set(q, q->count++, row);
    heap_fix(q, row->heap_at);
}

void sched_park_queue_take(struct sched_park *p, struct sched_parked *row)
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
            sched_park_queue_put(s, p->rows[i]);
}

void sched_park_look_at(struct shoal_sched *s, uint64_t at_ns)
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
bool sched_park_only_waits(const struct sched_group *g)
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
    if (!sched_park_only_waits(g) || g->called)
        return false;
    if (!g->held && !any_waits(q) && q->shown < limit_of(s, q))
        return false;
    if (!any_waits(q))
        q->taken_ns = s->now; /* the queue begins here: nobody is stuck yet */
    g->held = true;
    g->changed = 0; /* a lead that begins looks at all of the job */
    sched_park_count(s, g);
    sched_park_look_at(s, s->now + (q->shown < limit_of(s, q) ? 0 : LOOK_NS));
    return true;
}

void sched_park_count(struct shoal_sched *s, struct sched_group *g)
{
    struct queue *q = g->job == NULL ? NULL : queue_of(s, g);
    bool shown = g->lead != NULL && sched_park_only_waits(g);

    SHOAL_ASSERT(s->park != NULL);
    if (!g->leads || g->lead != NULL)
        g->held = false;
    if (q == NULL)
        return; /* never counted: its founding record is not applied yet */
    if (g->shown && !shown) {
        q->taken_ns = s->now;
        if (any_waits(q))
            sched_park_look_at(s, s->now);
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
        sched_park_look_at(s, s->now);
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
        const struct sched_node_info *node = &s->nodes[i].info;
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
        sched_park_queue_take(p, row);
        (void)sched_park_wake(s, row->id);
        if (row->state == PARKED_QUIET) { /* no room now */
            row->turn = row->first = false;
            sched_park_queue_put(s, row);
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
        if (row->state == PARKED_QUIET && sched_park_is_mine(s, row) && sched_park_needs_care(s, row)) {
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
        (void)sched_park_ask_or_park(s, s->park->list[i - 1]);
    if (look.held > at + keep || q->shown < limit_of(s, q))
        sched_park_look_at(s, s->now + LOOK_NS);
    else
        sched_park_look_at(s, s->now + LOOK_IDLE_NS);
}

void sched_park_due(struct shoal_sched *s)
{
    struct sched_park *p = s->park;
    bool changed = false;

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    p->look_ns = SCHED_NEVER;
    p->looked_ns = s->now;
    for (size_t i = 0; i < p->host_count; i++) {
        bool alive = sched_park_is_alive(s, p->hosts[i].node);

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
        sched_park_look_at(s, s->now + LOOK_IDLE_NS);
}
