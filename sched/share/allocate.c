/* The allocation: which job deserves which slots. Rules A1 to A3 and the source: shoal/allocate.h.
 *
 * Slots that are alike for every job form a pool (device, numeric class, frameworks, jobs that cannot run there; room and pack of cards that are shared: a
 * room counts as the largest part that some job asks for and that fits, so there are few of them). Jobs with the same set of admissible pools
 * form a family. flow[g][p] counts the units of family g in pool p; one more unit of g is feasible if a chain
 *     g -> p1, g1 has a unit in p1 -> p2, g2 has a unit in p2 -> ... -> a pool with room
 * exists (augment). That is a polymatroid: a family that cannot grow now cannot grow later in this run, so a greedy
 * order never has to take a unit back. */
#include "shoal/allocate.h"

#include <stdlib.h>

#include "shoal/job_facts.h"

#include "allocate_state.h"

#include "shoal/banned.h"

enum shoal_err shoal_allocate_create(struct shoal_allocate **out, uint32_t hosts_max, uint32_t slots_max,
                                     uint32_t jobs_max)
{
    struct shoal_allocate *work = calloc(1, sizeof(*work));

    SHOAL_ASSERT(slots_max <= INT32_MAX && jobs_max <= INT32_MAX); /* an owner is an int32 */
    if (work == NULL)
        return SHOAL_ERR_FULL;
    work->hosts_max = hosts_max;
    work->slots_max = slots_max;
    work->jobs_max = jobs_max;
    work->host_order = calloc((size_t)hosts_max + 1, sizeof(*work->host_order));
    work->job_order = calloc((size_t)jobs_max + 1, sizeof(*work->job_order));
    work->slot_host = calloc((size_t)slots_max + 1, sizeof(*work->slot_host));
    work->held_slots = calloc((size_t)slots_max + 1, sizeof(*work->held_slots));
    work->hosts = calloc((size_t)hosts_max + 1, sizeof(*work->hosts));
    work->jobs = calloc((size_t)jobs_max + 1, sizeof(*work->jobs));
    if (work->host_order == NULL || work->job_order == NULL || work->slot_host == NULL || work->held_slots == NULL ||
        work->hosts == NULL || work->jobs == NULL) {
        shoal_allocate_destroy(work);
        return SHOAL_ERR_FULL;
    }
    *out = work;
    return SHOAL_OK;
}

void shoal_allocate_destroy(struct shoal_allocate *work)
{
    if (work == NULL)
        return;
    free(work->host_order);
    free(work->job_order);
    free(work->slot_host);
    free(work->held_slots);
    free(work->hosts);
    free(work->jobs);
    free(work);
}

/* ---- Canonical order -------------------------------------------------------------------------------------------- */

static bool job_before(const struct shoal_allocate_job *a, const struct shoal_allocate_job *b)
{
    SHOAL_ASSERT(a != b); /* A1: of two different jobs */
    if (a->service != b->service)
        return a->service;
    if (a->priority != b->priority)
        return a->priority > b->priority;
    if (a->ticket_ms != b->ticket_ms)
        return a->ticket_ms < b->ticket_ms;
    return shoal_job_id_cmp(a->id, b->id) < 0;
}

static bool goes_before(const struct shoal_allocate *work, bool hosts, uint32_t a, uint32_t b)
{
    SHOAL_ASSERT(a < (hosts ? work->view->host_count : work->view->job_count));
    SHOAL_ASSERT(b < (hosts ? work->view->host_count : work->view->job_count));
    if (hosts && shoal_node_id_equal(work->view->hosts[a].id, work->view->hosts[b].id))
        return work->view->hosts[a].part < work->view->hosts[b].part;
    if (hosts)
        return shoal_node_id_cmp(work->view->hosts[a].id, work->view->hosts[b].id) < 0;
    return job_before(&work->view->jobs[a], &work->view->jobs[b]);
}

/* Heap sort: no memory, no recursion, n log n in the worst case. */
static void sift(const struct shoal_allocate *work, bool hosts, uint32_t *order, uint32_t root, uint32_t count)
{
    SHOAL_ASSERT(root < count);
    for (;;) {
        uint32_t child = 2 * root + 1;
        uint32_t kept = order[root];

        if (child >= count)
            return;
        if (child + 1 < count && goes_before(work, hosts, order[child], order[child + 1]))
            child++;
        if (!goes_before(work, hosts, kept, order[child]))
            return;
        order[root] = order[child];
        order[child] = kept;
        root = child;
    }
}

static bool in_order(const struct shoal_allocate *work, bool hosts, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        if (!goes_before(work, hosts, i - 1, i))
            return false;
    return true;
}

static void sort(const struct shoal_allocate *work, bool hosts, uint32_t *order, uint32_t count)
{
    SHOAL_ASSERT(count <= (hosts ? work->hosts_max : work->jobs_max)); /* A3: the memory of create() is enough */
    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    if (in_order(work, hosts, count))
        return; /* views name their hosts in this order */
    for (uint32_t i = count / 2; i > 0; i--)
        sift(work, hosts, order, i - 1, count);
    for (uint32_t i = count; i > 1; i--) {
        uint32_t last = order[i - 1];

        order[i - 1] = order[0];
        order[0] = last;
        sift(work, hosts, order, 0, i - 1);
    }
}

static enum shoal_err check(struct shoal_allocate *work)
{
    const struct shoal_allocate_input *v = work->view;

    SHOAL_ASSERT(work->out != NULL);
    if (v->host_count > work->hosts_max || v->slot_count > work->slots_max || v->job_count > work->jobs_max)
        return SHOAL_ERR_TOO_BIG;
    for (uint32_t i = 0; i < v->slot_count; i++)
        work->slot_host[i] = UINT32_MAX;
    for (uint32_t h = 0; h < v->host_count; h++) {
        const struct shoal_allocate_host *host = &v->hosts[h];

        if (host->slot_count > v->slot_count || host->first_slot > v->slot_count - host->slot_count)
            return SHOAL_ERR_INVALID;
        for (uint32_t i = host->first_slot; i < host->first_slot + host->slot_count; i++) {
            if (work->slot_host[i] != UINT32_MAX)
                return SHOAL_ERR_INVALID;
            work->slot_host[i] = h;
        }
    }
    for (uint32_t i = 0; i < v->slot_count; i++)
        if (v->slots[i] < SHOAL_ALLOCATE_OTHER || v->slots[i] >= (int32_t)v->job_count ||
            work->slot_host[i] == UINT32_MAX)
            return SHOAL_ERR_INVALID;
    sort(work, true, work->host_order, v->host_count);
    sort(work, false, work->job_order, v->job_count);
    for (uint32_t i = 1; i < v->host_count; i++)
        if (!goes_before(work, true, work->host_order[i - 1], work->host_order[i]))
            return SHOAL_ERR_INVALID;
    for (uint32_t i = 0; i < v->job_count; i++)
        if (v->jobs[i].min > v->jobs[i].max)
            return SHOAL_ERR_INVALID;
    for (uint32_t i = 1; i < v->job_count; i++)
        if (!goes_before(work, false, work->job_order[i - 1], work->job_order[i]))
            return SHOAL_ERR_INVALID; /* one job twice */
    return SHOAL_OK;
}

/* ---- Pools and families ----------------------------------------------------------------------------------------- */

/* Shares come first: a service fills a card that is shared before it takes another one. */
static unsigned device_rank(uint8_t device) { return device == SHOAL_ALLOCATE_SHARE ? 0 : 1u + device; }

static int pool_cmp(const struct shoal_allocate *work, const struct pool *pool, uint32_t h)
{
    const struct shoal_allocate_host *host = &work->view->hosts[h];
    uint32_t serves = host->serves & SHOAL_SERVES_ALL, room = share_room(&work->parts, host);

    SHOAL_ASSERT((pool->serves & ~SHOAL_SERVES_ALL) == 0); /* a later version's frameworks make no pools here */
    if (pool->device != host->device)
        return device_rank(pool->device) < device_rank(host->device) ? -1 : 1;
    if (pool->class_hash != host->class_hash)
        return pool->class_hash < host->class_hash ? -1 : 1;
    if (pool->serves != serves)
        return pool->serves < serves ? -1 : 1;
    if (pool->pack != host->pack)
        return pool->pack < host->pack ? -1 : 1;
    if (pool->unfit != work->hosts[h].unfit)
        return pool->unfit < work->hosts[h].unfit ? -1 : 1;
    if (pool->room != room)
        return pool->room < room ? -1 : 1;
    return 0;
}

/* In the order of (device, class, frameworks, ...), so that the numbers do not depend on the hosts' order. */
static int32_t find_pool(struct shoal_allocate *work, uint32_t h)
{
    const struct shoal_allocate_host *host = &work->view->hosts[h];
    uint32_t at;

    SHOAL_ASSERT(host->usable); /* a host that nobody uses makes no pool */
    SHOAL_ASSERT(work->pool_count <= POOLS);
    for (at = 0; at < work->pool_count; at++) {
        int order = pool_cmp(work, &work->pools[at], h);

        if (order == 0)
            return (int32_t)at;
        if (order > 0)
            break;
    }
    if (work->pool_count == POOLS)
        return -1;
    memmove(&work->pools[at + 1], &work->pools[at], (work->pool_count - at) * sizeof(work->pools[0]));
    work->pools[at] = (struct pool){ .device = host->device,
                                     .class_hash = host->class_hash,
                                     .serves = host->serves & SHOAL_SERVES_ALL,
                                     .room = share_room(&work->parts, host),
                                     .pack = host->pack,
                                     .unfit = work->hosts[h].unfit };
    work->pool_count++;
    return (int32_t)at;
}

static void note_unfit(struct shoal_allocate *work)
{
    const struct shoal_allocate_input *v = work->view;

    SHOAL_ASSERT(v->host_count <= work->hosts_max); /* A3 */
    SHOAL_ASSERT(v->job_count <= work->jobs_max);   /* A3 */
    for (uint32_t h = 0; h < v->host_count; h++)
        work->hosts[h] = (struct host_work){ .pool = -1 };
    for (uint32_t j = 0; j < v->job_count; j++)
        for (uint32_t i = 0; i < v->jobs[j].unfit_count; i++)
            for (uint32_t h = 0; h < v->host_count; h++)
                if (shoal_node_id_equal(v->hosts[h].id, v->jobs[j].unfit[i]))
                    work->hosts[h].unfit += share_job_mark(v->jobs[j].id);
}

/* Where there are too many kinds, a host is better taken for one that all jobs can use than not used at all. */
static void pool_of(struct shoal_allocate *work, uint32_t h)
{
    SHOAL_ASSERT(h < work->view->host_count);
    if (find_pool(work, h) >= 0 || work->hosts[h].unfit == 0)
        return;
    work->hosts[h].unfit = 0;
    (void)find_pool(work, h);
}

static void make_pools(struct shoal_allocate *work)
{
    const struct shoal_allocate_input *v = work->view;

    SHOAL_ASSERT(work->view->host_count <= work->hosts_max); /* A3 */
    work->pool_count = 0;
    work->out->slots_unused = 0;
    note_unfit(work);
    share_parts(v, &work->parts);
    for (unsigned shares = 0; shares < 2; shares++) /* jobs do not go without a pool for the sake of shares */
        for (uint32_t i = 0; i < v->host_count; i++) {
            const struct shoal_allocate_host *host = &v->hosts[work->host_order[i]];

            if (host->usable && (host->device == SHOAL_ALLOCATE_SHARE) == (shares == 1))
                pool_of(work, work->host_order[i]);
        }
    for (uint32_t i = 0; i < v->host_count; i++) {
        const struct shoal_allocate_host *host = &v->hosts[i];
        struct host_work *hw = &work->hosts[i];

        for (uint32_t p = 0; host->usable && p < work->pool_count; p++)
            if (pool_cmp(work, &work->pools[p], i) == 0)
                hw->pool = (int32_t)p;
        for (uint32_t s = host->first_slot; s < host->first_slot + host->slot_count; s++) {
            if (host->usable && hw->pool < 0)
                work->out->slots_unused++;
            if (hw->pool >= 0 && v->slots[s] != SHOAL_ALLOCATE_OTHER)
                work->pools[hw->pool].size++;
        }
    }
    work->out->pools = work->pool_count;
}

static uint32_t mask_of(const struct shoal_allocate *work, const struct shoal_allocate_job *job)
{
    uint32_t mask = 0;

    SHOAL_ASSERT(work->pool_count <= 32); /* a mask holds a bit for each */
    for (uint32_t p = 0; p < work->pool_count; p++) {
        const struct pool *pool = &work->pools[p];

        if (share_fits(job, pool->device, pool->room, pool->pack) &&
            (job->class_hash == 0 || pool->class_hash == 0 || job->class_hash == pool->class_hash) &&
            shoal_host_serves(pool->serves, job->needs & SHOAL_SERVES_ALL))
            mask |= 1u << p;
    }
    for (uint32_t i = 0; i < job->unfit_count; i++)
        for (uint32_t h = 0; h < work->view->host_count; h++)
            if (work->hosts[h].pool >= 0 && work->hosts[h].unfit != 0 &&
                shoal_node_id_equal(work->view->hosts[h].id, job->unfit[i]))
                mask &= ~(1u << work->hosts[h].pool);
    return mask;
}

static void make_families(struct shoal_allocate *work)
{
    SHOAL_ASSERT(work->view->job_count <= work->jobs_max); /* A3 */
    work->family_count = 0;
    for (uint32_t i = 0; i < work->view->job_count; i++) {
        struct job_work *jw = &work->jobs[work->job_order[i]];
        uint32_t mask = mask_of(work, &work->view->jobs[work->job_order[i]]);
        uint32_t g = 0;

        while (g < work->family_count && work->family_mask[g] != mask)
            g++;
        if (g == work->family_count && g >= FAMILIES - 1) /* the last is for those that find none of their own */
            for (mask = 0, g = 0; g < work->family_count && work->family_mask[g] != 0;)
                g++;
        if (g == work->family_count) {
            SHOAL_ASSERT(work->family_count < FAMILIES); /* classes without a host share a mask */
            work->family_mask[work->family_count++] = mask;
        }
        jw->family = g;
    }
    memset(work->flow, 0, sizeof(work->flow));
}

/* ---- Flow ---- */

/* Room for one more unit of family g: true and done, or false and nothing changed. Breadth first over pools. */
static bool augment(struct shoal_allocate *work, uint32_t g)
{
    int32_t from_family[POOLS], from_pool[POOLS];
    uint32_t queue[POOLS], head = 0, tail = 0, seen = 0;

    SHOAL_ASSERT(g < work->family_count);
    SHOAL_ASSERT(work->pool_count <= POOLS);
    for (uint32_t p = 0; p < work->pool_count; p++) {
        if (!(work->family_mask[g] >> p & 1))
            continue;
        from_family[p] = (int32_t)g;
        from_pool[p] = -1;
        seen |= 1u << p;
        queue[tail++] = p;
    }
    while (head < tail) {
        uint32_t p = queue[head++];

        if (work->pools[p].used < work->pools[p].size) {
            work->pools[p].used++;
            for (;;) { /* walk back: each family on the chain moves one unit on */
                work->flow[from_family[p]][p]++;
                if (from_pool[p] < 0)
                    return true;
                work->flow[from_family[p]][from_pool[p]]--;
                p = (uint32_t)from_pool[p];
            }
        }
        for (uint32_t h = 0; h < work->family_count; h++) {
            if (work->flow[h][p] == 0)
                continue;
            for (uint32_t q = 0; q < work->pool_count; q++) {
                if (!(work->family_mask[h] >> q & 1) || (seen >> q & 1))
                    continue;
                seen |= 1u << q;
                from_family[q] = (int32_t)h;
                from_pool[q] = (int32_t)p;
                queue[tail++] = q;
            }
        }
    }
    return false;
}

static void save(struct shoal_allocate *work, uint32_t *used)
{
    SHOAL_ASSERT(work->pool_count <= POOLS);
    memcpy(work->spare, work->flow, sizeof(work->flow));
    for (uint32_t p = 0; p < work->pool_count; p++)
        used[p] = work->pools[p].used;
}

static void restore(struct shoal_allocate *work, const uint32_t *used)
{
    SHOAL_ASSERT(work->pool_count <= POOLS);
    memcpy(work->flow, work->spare, sizeof(work->flow));
    for (uint32_t p = 0; p < work->pool_count; p++)
        work->pools[p].used = used[p];
}

uint32_t share_pour(struct shoal_allocate *work, uint32_t g, uint32_t want)
{
    uint32_t got = 0;

    SHOAL_ASSERT(g < work->family_count);
    while (got < want && augment(work, g))
        got++;
    return got;
}

/* ---- Counts ---- */

static void count_held(struct shoal_allocate *work)
{
    const struct shoal_allocate_input *v = work->view;

    SHOAL_ASSERT(work->view->slot_count <= work->slots_max); /* A3 */
    for (uint32_t i = 0; i < v->job_count; i++) {
        uint32_t family = work->jobs[i].family;

        memset(&work->jobs[i], 0, sizeof(work->jobs[i]));
        work->jobs[i].family = family;
    }
    for (uint32_t s = 0; s < v->slot_count; s++) {
        int32_t pool = work->hosts[work->slot_host[s]].pool;
        int32_t owner = v->slots[s];

        if (owner >= 0 && v->hosts[work->slot_host[s]].draining && v->jobs[owner].stays)
            work->jobs[owner].stay++;

        /* A slot in a pool that the job does not admit any more does not count: the job is to leave it. */
        if (owner < 0 || pool < 0 || !(work->family_mask[work->jobs[owner].family] >> pool & 1))
            continue;
        work->jobs[owner].held++;
        work->jobs[owner].pool_kept[pool]++;
    }
    for (uint32_t i = 0; i < v->job_count; i++) {
        struct job_work *jw = &work->jobs[i];

        jw->want_min = v->jobs[i].min > jw->stay ? v->jobs[i].min - jw->stay : 0;
        jw->want_max = v->jobs[i].max > jw->stay ? v->jobs[i].max - jw->stay : 0;
        jw->min = jw->want_min;
        jw->max = v->jobs[i].elastic ? jw->want_max : jw->want_min;
        if (v->jobs[i].service && jw->held < jw->min)
            jw->min = jw->held; /* rule 1; the rest of its minimum is rule 2's */
        jw->running = jw->max > 0 && jw->held >= jw->min;
    }
}

/* Rule 1. A gang stays in the very pools it is in: those units leave the pools for good. */
static void keep_running(struct shoal_allocate *work)
{
    SHOAL_ASSERT(work->view->job_count <= work->jobs_max); /* A3 */
    for (uint32_t i = 0; i < work->view->job_count; i++) {
        struct job_work *jw = &work->jobs[work->job_order[i]];
        uint32_t left = jw->min;

        if (!jw->running)
            continue;
        jw->admitted = true;
        if (!work->view->jobs[work->job_order[i]].elastic) { /* all it holds, if that is more */
            left = jw->held;
            jw->max = jw->held;
        }
        jw->count = left;
        for (uint32_t p = 0; p < work->pool_count && !work->view->jobs[work->job_order[i]].elastic; p++) {
            jw->pin[p] = jw->pool_kept[p];
            work->pools[p].size -= jw->pin[p];
        }
    }
    for (uint32_t i = 0; i < work->view->job_count; i++) {
        const struct job_work *jw = &work->jobs[work->job_order[i]];

        if (jw->running && work->view->jobs[work->job_order[i]].elastic)
            (void)share_pour(work, jw->family, jw->min); /* fits: it is held */
    }
}

static void share(struct shoal_allocate *work, uint32_t from, uint32_t to);

/* Rule 2: services come first in the order. */
static void admit_services(struct shoal_allocate *work)
{
    uint32_t count = 0;

    while (count < work->view->job_count && work->view->jobs[work->job_order[count]].service) {
        struct job_work *jw = &work->jobs[work->job_order[count]];

        SHOAL_ASSERT(jw->running || jw->max == 0); /* rule 1 has no minimum for it that it does not hold */
        jw->max = jw->want_min;
        count++;
    }
    if (count > 0)
        share(work, 0, count);
    for (uint32_t i = 0; i < count; i++)
        work->jobs[work->job_order[i]].max = work->jobs[work->job_order[i]].want_max;
}

/* Units of one family are alike: the gang takes whichever are there, and they leave the pools. */
static void pin_gang(struct shoal_allocate *work, struct job_work *jw)
{
    uint32_t left = jw->min;

    SHOAL_ASSERT(jw->count == jw->min); /* a gang is admitted with what it needs, no more */
    for (uint32_t p = 0; p < work->pool_count; p++) {
        uint32_t take = work->flow[jw->family][p] < left ? work->flow[jw->family][p] : left;

        SHOAL_ASSERT(work->pools[p].used >= take && work->pools[p].size >= take);
        jw->pin[p] = take;
        work->flow[jw->family][p] -= take;
        work->pools[p].used -= take;
        work->pools[p].size -= take;
        left -= take;
    }
    SHOAL_ASSERT(left == 0); /* rule 2: all or nothing */
}

/* False: every pool is full, so that no chain has an end. Of many waiting jobs most meet this, and cost nothing more. */
static bool any_room(const struct shoal_allocate *work)
{
    SHOAL_ASSERT(work->pool_count <= POOLS);
    for (uint32_t p = 0; p < work->pool_count; p++)
        if (work->pools[p].used < work->pools[p].size)
            return true;
    return false;
}

/* Rule 2. */
static void admit_waiting(struct shoal_allocate *work)
{
    int32_t head = -1;
    uint32_t used[POOLS] = { 0 };
    uint32_t held_family = 0, held_units = 0;

    SHOAL_ASSERT(work->view->job_count <= work->jobs_max); /* A3 */
    for (uint32_t i = 0; i < work->view->job_count; i++) {
        uint32_t j = work->job_order[i];
        struct job_work *jw = &work->jobs[j];
        struct shoal_allocate_grant *grant = &work->out->grants[j];
        uint32_t got;
        bool room;

        if (jw->max == 0 || jw->running)
            continue;
        if (grant->mesh < jw->min) {
            grant->why = SHOAL_ALLOCATE_TOO_LARGE;
            continue;
        }
        room = any_room(work);
        if (room)
            save(work, used);
        got = room ? share_pour(work, jw->family, jw->min) : 0;
        if (got == jw->min) {
            jw->admitted = true;
            jw->count = jw->min;
            if (!work->view->jobs[j].elastic)
                pin_gang(work, jw);
            continue;
        }
        grant->avail = got;
        if (head < 0) { /* holds what it found */
            head = (int32_t)j;
            held_family = jw->family;
            held_units = got;
            grant->why = SHOAL_ALLOCATE_HEAD;
            continue;
        }
        if (room)
            restore(work, used);
        grant->why = held_units > 0 ? SHOAL_ALLOCATE_BEHIND : SHOAL_ALLOCATE_FULL;
        grant->head = held_units > 0 ? head : -1;
    }
    /* Rule 3 lends out the slots that were held. */
    for (uint32_t p = 0; p < work->pool_count && held_units > 0; p++) {
        uint32_t take = work->flow[held_family][p] < held_units ? work->flow[held_family][p] : held_units;

        work->flow[held_family][p] -= take;
        work->pools[p].used -= take;
        held_units -= take;
    }
    SHOAL_ASSERT(held_units == 0); /* rule 3: nothing stays held beyond the walk */
}

/* Rule 3 for jobs order[from..to) of one priority: always the one with the fewest, the earlier one of equals. */
static void share(struct shoal_allocate *work, uint32_t from, uint32_t to)
{
    SHOAL_ASSERT(from < to);
    SHOAL_ASSERT(to <= work->view->job_count);
    for (uint32_t level = 1; level != 0;) {
        uint32_t next = 0;

        for (uint32_t i = from; i < to; i++) {
            struct job_work *jw = &work->jobs[work->job_order[i]];

            if (!jw->admitted || jw->full || jw->count >= jw->max)
                continue;
            if (jw->count < level && !augment(work, jw->family)) {
                jw->full = true;
                continue;
            }
            jw->count += jw->count < level;
            if (jw->count < jw->max && (next == 0 || jw->count + 1 < next))
                next = jw->count + 1;
        }
        level = next;
    }
}

static void share_rest(struct shoal_allocate *work)
{
    SHOAL_ASSERT(work->family_count <= FAMILIES);
    for (uint32_t i = 0; i < work->view->job_count;) {
        uint32_t j = i;

        while (j < work->view->job_count &&
               work->view->jobs[work->job_order[j]].service == work->view->jobs[work->job_order[i]].service &&
               work->view->jobs[work->job_order[j]].priority == work->view->jobs[work->job_order[i]].priority)
            j++;
        share(work, i, j);
        i = j;
    }
}

/* ---- The whole ---- */

static void make_grants(struct shoal_allocate *work)
{
    SHOAL_ASSERT(work->out->grants != NULL || work->view->job_count == 0);
    for (uint32_t j = 0; j < work->view->job_count; j++) {
        struct shoal_allocate_grant *grant = &work->out->grants[j];
        uint32_t mask = work->family_mask[work->jobs[j].family];

        *grant = (struct shoal_allocate_grant){ .why = SHOAL_ALLOCATE_NONE, .head = -1 };
        for (uint32_t p = 0; p < work->pool_count; p++)
            grant->mesh += mask >> p & 1 ? work->pools[p].size : 0;
    }
}

static void finish_grants(struct shoal_allocate *work)
{
    SHOAL_ASSERT(work->family_count <= FAMILIES);
    for (uint32_t j = 0; j < work->view->job_count; j++) {
        struct shoal_allocate_grant *grant = &work->out->grants[j];
        const struct job_work *jw = &work->jobs[j];

        grant->count = jw->count;
        grant->held = jw->held;
        if (jw->admitted || (jw->stay > 0 && jw->max == 0))
            grant->why = jw->count >= jw->max ? SHOAL_ALLOCATE_GIVEN : SHOAL_ALLOCATE_SHARED;
        if (work->view->jobs[j].service && jw->admitted && jw->count < jw->max)
            grant->why = grant->mesh == 0 ? SHOAL_ALLOCATE_TOO_LARGE : SHOAL_ALLOCATE_FULL;
    }
}

enum shoal_err shoal_allocate(struct shoal_allocate *work, const struct shoal_allocate_input *view,
                              struct shoal_allocate_out *out)
{
    enum shoal_err err;

    SHOAL_ASSERT(view != NULL && out != NULL);
    work->view = view;
    work->out = out;
    err = check(work);
    if (err != SHOAL_OK)
        return err;
    make_pools(work);
    make_families(work);
    make_grants(work);
    count_held(work);
    keep_running(work);
    admit_services(work);
    admit_waiting(work);
    share_rest(work);
    share_place(work);
    finish_grants(work);
    return SHOAL_OK;
}
