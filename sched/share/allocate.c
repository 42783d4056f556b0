/* The allocation: which job deserves which slots. Rules A1 to A3 and the source: shoal/allocate.h.
 *
 * Slots that are alike for every job form a pool (device, numeric class, frameworks; room and pack of cards that are shared: a
 * room counts as the largest part that some job asks for and that fits, so there are few of them). Jobs with the same set of admissible pools
 * form a family. flow[g][p] counts the units of family g in pool p; one more unit of g is feasible if a chain
 *     g -> p1, g1 has a unit in p1 -> p2, g2 has a unit in p2 -> ... -> a pool with room
 * exists (augment). That is a polymatroid: a family that cannot grow now cannot grow later in this run, so a greedy
 * order never has to take a unit back. */
#include "shoal/allocate.h"

#include <stdlib.h>

#include "shoal/job_facts.h"

#include "share_parts.h"

#include "shoal/banned.h"

#define POOLS SHOAL_ALLOCATE_POOLS_MAX
/* Sets of pools that jobs admit: by device (3), frameworks, and class (those of hosts, or none). */
/* Services that share cards have some more; what is beyond waits as if no pool were its own. */
#define FAMILIES (3 * (SHOAL_SERVES_ALL + 1) * (SHOAL_ALLOCATE_POOLS_MAX + 2) + 64)

struct pool {
    uint8_t device;
    uint32_t class_hash;
    uint32_t serves;
    uint32_t room;
    uint64_t pack;
    uint32_t size;
    uint32_t used;
};

struct host_work {
    int32_t pool;    /* -1: not used */
    uint32_t free;   /* slots that nobody holds */
    uint32_t vacant; /* slots that their owners give back */
    uint32_t held;   /* scratch: slots of the job in hand */
};

struct job_work {
    uint32_t family;
    uint32_t count;
    uint32_t held;
    uint32_t min, max;
    bool running;
    bool admitted;
    bool full;                 /* cannot grow */
    uint32_t first_slot;       /* its slots: held_slots[first_slot..], in canonical order */
    uint32_t slots;            /* how many, on any host */
    uint32_t pool_kept[POOLS]; /* held, later kept, in each pool */
    uint32_t pin[POOLS];       /* a gang's units: decided when it is admitted, no chain moves them (else A2 fails) */
    uint32_t kept;
};

struct shoal_allocate {
    uint32_t hosts_max, slots_max, jobs_max;
    uint32_t *host_order;
    uint32_t *job_order;
    uint32_t *slot_host;
    uint32_t *held_slots; /* slots by owner */
    struct host_work *hosts;
    struct job_work *jobs;
    struct share_parts parts;
    uint32_t pool_count;
    struct pool pools[POOLS];
    uint32_t family_count;
    uint32_t family_mask[FAMILIES];
    uint32_t flow[FAMILIES][POOLS];
    uint32_t spare[FAMILIES][POOLS]; /* scratch copy */
    const struct shoal_allocate_input *view;
    struct shoal_allocate_out *out;
};

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

static int pool_cmp(const struct shoal_allocate *work, const struct pool *pool, const struct shoal_allocate_host *host)
{
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
    if (pool->room != room)
        return pool->room < room ? -1 : 1;
    return 0;
}

/* In the order of (device, class, frameworks), so that the numbers do not depend on the hosts' order. */
static int32_t find_pool(struct shoal_allocate *work, const struct shoal_allocate_host *host)
{
    uint32_t at;

    SHOAL_ASSERT(host->usable); /* a host that nobody uses makes no pool */
    SHOAL_ASSERT(work->pool_count <= POOLS);
    for (at = 0; at < work->pool_count; at++) {
        int order = pool_cmp(work, &work->pools[at], host);

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
                                     .pack = host->pack };
    work->pool_count++;
    return (int32_t)at;
}

static void make_pools(struct shoal_allocate *work)
{
    const struct shoal_allocate_input *v = work->view;

    SHOAL_ASSERT(work->view->host_count <= work->hosts_max); /* A3 */
    work->pool_count = 0;
    work->out->slots_unused = 0;
    share_parts(v, &work->parts);
    for (unsigned shares = 0; shares < 2; shares++) /* jobs do not go without a pool for the sake of shares */
        for (uint32_t i = 0; i < v->host_count; i++) {
            const struct shoal_allocate_host *host = &v->hosts[work->host_order[i]];

            if (host->usable && (host->device == SHOAL_ALLOCATE_SHARE) == (shares == 1))
                (void)find_pool(work, host);
        }
    for (uint32_t i = 0; i < v->host_count; i++) {
        const struct shoal_allocate_host *host = &v->hosts[i];
        struct host_work *hw = &work->hosts[i];

        *hw = (struct host_work){ .pool = -1 };
        for (uint32_t p = 0; host->usable && p < work->pool_count; p++)
            if (pool_cmp(work, &work->pools[p], host) == 0)
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

/* Add up to `want` units; returns how many fit. */
static uint32_t pour(struct shoal_allocate *work, uint32_t g, uint32_t want)
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
        work->jobs[i].min = v->jobs[i].min;
        work->jobs[i].max = v->jobs[i].elastic ? v->jobs[i].max : v->jobs[i].min;
    }
    for (uint32_t s = 0; s < v->slot_count; s++) {
        int32_t pool = work->hosts[work->slot_host[s]].pool;
        int32_t owner = v->slots[s];

        /* A slot in a pool that the job does not admit any more does not count: the job is to leave it. */
        if (owner < 0 || pool < 0 || !(work->family_mask[work->jobs[owner].family] >> pool & 1))
            continue;
        work->jobs[owner].held++;
        work->jobs[owner].pool_kept[pool]++;
    }
    for (uint32_t i = 0; i < v->job_count; i++) {
        struct job_work *jw = &work->jobs[i];

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
            (void)pour(work, jw->family, jw->min); /* fits: it is held */
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
        jw->max = work->view->jobs[work->job_order[count++]].min;
    }
    if (count > 0)
        share(work, 0, count);
    for (uint32_t i = 0; i < count; i++)
        work->jobs[work->job_order[i]].max = work->view->jobs[work->job_order[i]].max;
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
        got = room ? pour(work, jw->family, jw->min) : 0;
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

/* ---- Places ---- */

static uint64_t rendezvous(struct shoal_job_id job, struct shoal_node_id node)
{
    uint64_t hash = 1469598103934665603ull; /* FNV-1a, then mixed */

    for (unsigned i = 0; i < sizeof(job.bytes); i++)
        hash = (hash ^ job.bytes[i]) * 1099511628211ull;
    for (unsigned i = 0; i < sizeof(node.bytes); i++)
        hash = (hash ^ node.bytes[i]) * 1099511628211ull;
    hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
    return hash ^ (hash >> 31);
}

/* Slots by owner, each owner's in the order of hosts and slots. */
static void list_held(struct shoal_allocate *work)
{
    const struct shoal_allocate_input *v = work->view;
    uint32_t first = 0;

    SHOAL_ASSERT(work->view->slot_count <= work->slots_max); /* A3 */
    for (uint32_t j = 0; j < v->job_count; j++)
        work->jobs[j].slots = 0;
    for (uint32_t s = 0; s < v->slot_count; s++)
        if (v->slots[s] >= 0)
            work->jobs[v->slots[s]].slots++;
    for (uint32_t j = 0; j < v->job_count; j++) {
        work->jobs[j].first_slot = first;
        first += work->jobs[j].slots;
        work->jobs[j].slots = 0;
    }
    for (uint32_t i = 0; i < v->host_count; i++) {
        const struct shoal_allocate_host *host = &v->hosts[work->host_order[i]];

        for (uint32_t s = host->first_slot; s < host->first_slot + host->slot_count; s++) {
            struct job_work *jw = v->slots[s] >= 0 ? &work->jobs[v->slots[s]] : NULL;

            if (jw != NULL)
                work->held_slots[jw->first_slot + jw->slots++] = s;
        }
    }
}

static bool counts(const struct shoal_allocate *work, const struct job_work *jw, uint32_t slot)
{
    int32_t pool = work->hosts[work->slot_host[slot]].pool;

    SHOAL_ASSERT(slot < work->view->slot_count);
    SHOAL_ASSERT(jw->family < work->family_count);
    return pool >= 0 && (work->family_mask[jw->family] >> pool & 1) != 0;
}

/* Give back the slots of job j that go beyond its count: those on the hosts where it has the fewest, later hosts and
 * slots first. out->slots holds what is kept; hosts count what becomes vacant. */
static void give_back(struct shoal_allocate *work, uint32_t j)
{
    struct job_work *jw = &work->jobs[j];
    const uint32_t *held = &work->held_slots[jw->first_slot];
    uint32_t left = jw->held > jw->count ? jw->held - jw->count : 0;

    SHOAL_ASSERT(j < work->view->job_count);
    SHOAL_ASSERT(work->jobs[j].first_slot + work->jobs[j].slots <= work->view->slot_count);
    for (uint32_t i = 0; i < jw->slots; i++)
        work->hosts[work->slot_host[held[i]]].held = 0;
    for (uint32_t i = 0; i < jw->slots; i++)
        work->hosts[work->slot_host[held[i]]].held += counts(work, jw, held[i]);
    memset(jw->pool_kept, 0, sizeof(jw->pool_kept));
    jw->kept = 0;
    for (uint32_t fewest = 1; left > 0 && fewest <= SHOAL_SLOTS_MAX; fewest++) {
        for (uint32_t i = jw->slots; i > 0 && left > 0; i--) {
            if (!counts(work, jw, held[i - 1]) || work->hosts[work->slot_host[held[i - 1]]].held != fewest)
                continue;
            work->out->slots[held[i - 1]] = SHOAL_ALLOCATE_FREE;
            left--;
        }
    }
    for (uint32_t i = 0; i < jw->slots; i++) {
        struct host_work *host = &work->hosts[work->slot_host[held[i]]];

        if (host->pool < 0)
            continue; /* not usable: left as it is */
        if (!counts(work, jw, held[i]) ||
            (!work->view->jobs[j].elastic && jw->pool_kept[host->pool] >= jw->pin[host->pool]))
            work->out->slots[held[i]] = SHOAL_ALLOCATE_FREE;
        if (work->out->slots[held[i]] != (int32_t)j) {
            host->vacant++;
            continue;
        }
        jw->pool_kept[host->pool]++;
        jw->kept++;
    }
}

/* An elastic job gives back the last of its slots in pool p. False: it keeps none there. */
static bool drop_kept(struct shoal_allocate *work, uint32_t j, uint32_t p)
{
    struct job_work *jw = &work->jobs[j];

    SHOAL_ASSERT(j < work->view->job_count);
    SHOAL_ASSERT(p < work->pool_count);
    if (!work->view->jobs[j].elastic || jw->pool_kept[p] == 0)
        return false;
    for (uint32_t k = jw->slots; k > 0; k--) {
        uint32_t slot = work->held_slots[jw->first_slot + k - 1];
        struct host_work *host = &work->hosts[work->slot_host[slot]];

        if (host->pool != (int32_t)p || work->out->slots[slot] != (int32_t)j)
            continue;
        work->out->slots[slot] = SHOAL_ALLOCATE_FREE;
        host->vacant++;
        jw->pool_kept[p]--;
        jw->kept--;
        return true;
    }
    return false;
}

/* A gang was admitted into a pool: elastic jobs there make room, the last in the order first. */
static void make_room(struct shoal_allocate *work)
{
    SHOAL_ASSERT(work->pool_count <= POOLS);
    for (uint32_t p = 0; p < work->pool_count; p++) {
        uint32_t kept = 0;

        for (uint32_t j = 0; j < work->view->job_count; j++)
            kept += work->jobs[j].pool_kept[p];
        for (uint32_t j = 0; j < work->view->job_count; j++)
            if (!work->view->jobs[j].elastic)
                kept += work->jobs[j].pin[p] - work->jobs[j].pool_kept[p];
        for (uint32_t i = work->view->job_count; i > 0; i--)
            while (kept > work->pools[p].size && drop_kept(work, work->job_order[i - 1], p))
                kept--;
    }
}

/* Pools of the final counts: what is kept stays, except where a chain has to move it. A gang's slots leave the
 * pools. */
static void final_flow(struct shoal_allocate *work)
{
    const struct shoal_allocate_input *v = work->view;

    SHOAL_ASSERT(work->view->slot_count <= work->slots_max); /* A3 */
    memset(work->flow, 0, sizeof(work->flow));
    for (uint32_t p = 0; p < work->pool_count; p++) {
        work->pools[p].size = 0;
        work->pools[p].used = 0;
    }
    for (uint32_t s = 0; s < v->slot_count; s++)
        if (work->hosts[work->slot_host[s]].pool >= 0 && v->slots[s] != SHOAL_ALLOCATE_OTHER)
            work->pools[work->hosts[work->slot_host[s]].pool].size++;
    make_room(work);
    for (uint32_t j = 0; j < v->job_count; j++) {
        const struct job_work *jw = &work->jobs[j];

        for (uint32_t p = 0; p < work->pool_count; p++) {
            if (!v->jobs[j].elastic) {
                work->pools[p].size -= jw->pin[p];
                continue;
            }
            work->flow[jw->family][p] += jw->pool_kept[p];
            work->pools[p].used += jw->pool_kept[p];
        }
    }
    for (uint32_t i = 0; i < v->job_count; i++) {
        const struct job_work *jw = &work->jobs[work->job_order[i]];

        if (jw->count > jw->kept && v->jobs[work->job_order[i]].elastic)
            (void)pour(work, jw->family, jw->count - jw->kept); /* fits: the counts are feasible */
    }
}

/* Chains may have moved units of a family out of a pool: its last jobs give those slots back, last slots first. */
static void follow_chains(struct shoal_allocate *work)
{
    const struct shoal_allocate_input *v = work->view;

    SHOAL_ASSERT(work->family_count <= FAMILIES);
    for (uint32_t p = 0; p < work->pool_count; p++) {
        uint32_t kept[FAMILIES] = { 0 };

        for (uint32_t j = 0; j < v->job_count; j++)
            if (v->jobs[j].elastic)
                kept[work->jobs[j].family] += work->jobs[j].pool_kept[p];
        for (uint32_t i = v->job_count; i > 0; i--) {
            uint32_t j = work->job_order[i - 1];
            uint32_t g = work->jobs[j].family;

            while (kept[g] > work->flow[g][p] && drop_kept(work, j, p))
                kept[g]--;
        }
        for (uint32_t g = 0; g < work->family_count; g++)
            work->flow[g][p] -= kept[g]; /* what is left is new: to be placed */
    }
}

/* A host of pool p for job j: where it is already, then where most is free now, then where most becomes free, then by
 * rendezvous. UINT32_MAX: none has a slot. */
static uint32_t best_host(const struct shoal_allocate *work, uint32_t j, uint32_t p)
{
    const struct shoal_allocate_input *v = work->view;
    uint32_t best = UINT32_MAX;

    SHOAL_ASSERT(j < work->view->job_count);
    SHOAL_ASSERT(p < work->pool_count);
    for (uint32_t h = 0; h < v->host_count; h++) {
        const struct host_work *a = &work->hosts[h];
        const struct host_work *b = best == UINT32_MAX ? NULL : &work->hosts[best];
        uint64_t ra, rb;

        if (a->pool != (int32_t)p || a->free + a->vacant == 0)
            continue;
        if (b != NULL && (a->held != b->held || a->free != b->free || a->vacant != b->vacant)) {
            if (a->held > b->held ||
                (a->held == b->held && (a->free > b->free || (a->free == b->free && a->vacant > b->vacant))))
                best = h;
            continue;
        }
        if (b == NULL) {
            best = h;
            continue;
        }
        ra = rendezvous(v->jobs[j].id, v->hosts[h].id);
        rb = rendezvous(v->jobs[j].id, v->hosts[best].id);
        if (ra > rb || (ra == rb && shoal_node_id_cmp(v->hosts[h].id, v->hosts[best].id) < 0))
            best = h;
    }
    return best;
}

/* Take one slot of a host: one that is free now, else one that becomes free; the lowest. */
static void take_slot(struct shoal_allocate *work, uint32_t h, uint32_t j)
{
    const struct shoal_allocate_host *host = &work->view->hosts[h];
    struct host_work *hw = &work->hosts[h];
    uint32_t taken = UINT32_MAX;

    SHOAL_ASSERT(work->hosts[h].free + work->hosts[h].vacant > 0); /* best_host() has looked */
    for (uint32_t s = host->first_slot + host->slot_count; s > host->first_slot; s--)
        if (work->out->slots[s - 1] == SHOAL_ALLOCATE_FREE &&
            (hw->free == 0 || work->view->slots[s - 1] == SHOAL_ALLOCATE_FREE))
            taken = s - 1;
    SHOAL_ASSERT(taken != UINT32_MAX);
    if (hw->free > 0)
        hw->free--;
    else
        hw->vacant--;
    hw->held++;
    work->out->slots[taken] = (int32_t)j;
}

static void place_job(struct shoal_allocate *work, uint32_t j)
{
    const struct shoal_allocate_input *v = work->view;
    struct job_work *jw = &work->jobs[j];
    uint32_t need = jw->count > jw->kept ? jw->count - jw->kept : 0;

    SHOAL_ASSERT(work->jobs[j].kept <= work->jobs[j].slots);
    if (need == 0)
        return;
    for (uint32_t h = 0; h < v->host_count; h++)
        work->hosts[h].held = 0;
    for (uint32_t i = 0; i < jw->slots; i++)
        work->hosts[work->slot_host[work->held_slots[jw->first_slot + i]]].held +=
            work->out->slots[work->held_slots[jw->first_slot + i]] == (int32_t)j;
    for (uint32_t p = 0; p < work->pool_count; p++) {
        uint32_t gang = v->jobs[j].elastic ? 0 : jw->pin[p] - jw->pool_kept[p];
        uint32_t *left = v->jobs[j].elastic ? &work->flow[jw->family][p] : &gang;

        while (need > 0 && *left > 0) {
            uint32_t h = best_host(work, j, p);

            SHOAL_ASSERT(h != UINT32_MAX); /* the flow is feasible */
            while (need > 0 && *left > 0 && work->hosts[h].free + work->hosts[h].vacant > 0) {
                take_slot(work, h, j);
                --*left;
                need--;
            }
        }
    }
    SHOAL_ASSERT(need == 0);
}

static void place(struct shoal_allocate *work)
{
    const struct shoal_allocate_input *v = work->view;

    SHOAL_ASSERT(work->out->slots != NULL || work->view->slot_count == 0);
    if (v->slot_count > 0)
        memcpy(work->out->slots, v->slots, v->slot_count * sizeof(v->slots[0]));
    list_held(work);
    for (uint32_t h = 0; h < v->host_count; h++) {
        work->hosts[h].free = 0;
        work->hosts[h].vacant = 0;
        for (uint32_t s = v->hosts[h].first_slot;
             work->hosts[h].pool >= 0 && s < v->hosts[h].first_slot + v->hosts[h].slot_count; s++)
            work->hosts[h].free += v->slots[s] == SHOAL_ALLOCATE_FREE;
    }
    for (uint32_t j = 0; j < v->job_count; j++)
        give_back(work, j);
    final_flow(work);
    follow_chains(work);
    for (uint32_t i = 0; i < v->job_count; i++)
        place_job(work, work->job_order[i]);
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
        if (jw->admitted)
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
    place(work);
    finish_grants(work);
    return SHOAL_OK;
}
