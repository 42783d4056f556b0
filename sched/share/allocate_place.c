/* Places: from counts to slots. What is kept, what is given back, and where the rest goes; the rules: shoal/allocate.h. */
#include "shoal/allocate.h"

#include "allocate_state.h"

#include "shoal/banned.h"

static uint64_t rendezvous(struct shoal_job_id job, struct shoal_node_id node)
{
    uint64_t hash = share_job_mark(job); /* FNV-1a goes on, then it is mixed */

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

/* Services, so that a host's death takes few replicas; but those that share cards fill one before the next (decision 0065). */
static bool spreads(const struct shoal_allocate_job *job) { return job->service && job->device != SHOAL_ALLOCATE_SHARE; }

/* One where it has the most, again and again. */
static void give_back_spread(struct shoal_allocate *work, uint32_t j, uint32_t left)
{
    const struct job_work *jw = &work->jobs[j];
    const uint32_t *held = &work->held_slots[jw->first_slot];

    SHOAL_ASSERT(left <= jw->held);
    SHOAL_ASSERT(spreads(&work->view->jobs[j]));
    for (uint32_t most = SHOAL_SLOTS_MAX; left > 0 && most > 0; most--) {
        for (uint32_t i = jw->slots; i > 0 && left > 0; i--) {
            struct host_work *host = &work->hosts[work->slot_host[held[i - 1]]];

            if (!counts(work, jw, held[i - 1]) || host->held != most || work->out->slots[held[i - 1]] != (int32_t)j)
                continue;
            work->out->slots[held[i - 1]] = SHOAL_ALLOCATE_FREE;
            host->held--;
            left--;
        }
    }
}

/* Those on the hosts where it has the fewest. */
static void give_back_packed(struct shoal_allocate *work, uint32_t j, uint32_t left)
{
    const struct job_work *jw = &work->jobs[j];
    const uint32_t *held = &work->held_slots[jw->first_slot];

    SHOAL_ASSERT(left <= jw->held);
    for (uint32_t fewest = 1; left > 0 && fewest <= SHOAL_SLOTS_MAX; fewest++) {
        for (uint32_t i = jw->slots; i > 0 && left > 0; i--) {
            if (!counts(work, jw, held[i - 1]) || work->hosts[work->slot_host[held[i - 1]]].held != fewest)
                continue;
            work->out->slots[held[i - 1]] = SHOAL_ALLOCATE_FREE;
            left--;
        }
    }
}

/* Give back the slots of job j that go beyond its count, later hosts and slots first. out->slots holds what is kept; hosts
 * count what becomes vacant. */
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
    if (spreads(&work->view->jobs[j]))
        give_back_spread(work, j, left);
    else
        give_back_packed(work, j, left);
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
            (void)share_pour(work, jw->family, jw->count - jw->kept); /* fits: the counts are feasible */
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

/* Host x is better for job j than host y: where it is already (or, if it is spread, where the fewest of it are), then where most
 * is free now, then where most becomes free, then by rendezvous. */
static bool is_better(const struct shoal_allocate *work, uint32_t j, uint32_t x, uint32_t y)
{
    const struct shoal_allocate_input *v = work->view;
    const struct host_work *a = &work->hosts[x];
    const struct host_work *b = &work->hosts[y];
    uint64_t ra, rb;

    SHOAL_ASSERT(x != y && x < v->host_count && y < v->host_count);
    if (a->held != b->held)
        return spreads(&v->jobs[j]) ? a->held < b->held : a->held > b->held;
    if (a->free != b->free)
        return a->free > b->free;
    if (a->vacant != b->vacant)
        return a->vacant > b->vacant;
    ra = rendezvous(v->jobs[j].id, v->hosts[x].id);
    rb = rendezvous(v->jobs[j].id, v->hosts[y].id);
    return ra > rb || (ra == rb && shoal_node_id_cmp(v->hosts[x].id, v->hosts[y].id) < 0);
}

/* A host of these pools for job j. UINT32_MAX: none has a slot. */
static uint32_t best_host(const struct shoal_allocate *work, uint32_t j, uint32_t pools)
{
    uint32_t best = UINT32_MAX;

    SHOAL_ASSERT(j < work->view->job_count);
    SHOAL_ASSERT(pools != 0);
    for (uint32_t h = 0; h < work->view->host_count; h++) {
        const struct host_work *host = &work->hosts[h];

        if (host->pool < 0 || (pools >> host->pool & 1) == 0 || host->free + host->vacant == 0)
            continue;
        if (best == UINT32_MAX || is_better(work, j, h, best))
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

/* The pools of its device that a new slot of job j, for which the flow has a unit in pool p, may come from as well. */
static uint32_t like_pool(const struct shoal_allocate *work, uint32_t j, uint32_t p)
{
    const uint32_t g = work->jobs[j].family;
    uint32_t pools = 1u << p;

    SHOAL_ASSERT(work->flow[g][p] > 0);
    SHOAL_ASSERT((work->family_mask[g] >> p & 1) != 0); /* the flow is in pools that the family admits */
    for (uint32_t q = 0; q < work->pool_count; q++)
        if ((work->family_mask[g] >> q & 1) != 0 && work->pools[q].device == work->pools[p].device &&
            (work->flow[g][q] > 0 || work->pools[q].used < work->pools[q].size))
            pools |= 1u << q;
    return pools;
}

/* One slot at a time, each on the host that is best then; where that is of another pool, the unit moves there. */
static void place_spread(struct shoal_allocate *work, uint32_t j, uint32_t need)
{
    uint32_t *flow = work->flow[work->jobs[j].family];

    SHOAL_ASSERT(spreads(&work->view->jobs[j]));
    for (uint32_t p = 0; p < work->pool_count; p++) {
        while (need > 0 && flow[p] > 0) {
            uint32_t h = best_host(work, j, like_pool(work, j, p));
            struct pool *to;

            SHOAL_ASSERT(h != UINT32_MAX); /* the flow is feasible */
            to = &work->pools[work->hosts[h].pool];
            if (flow[work->hosts[h].pool] > 0) {
                flow[work->hosts[h].pool]--;
            } else {
                flow[p]--;
                work->pools[p].used--;
                to->used++;
            }
            take_slot(work, h, j);
            need--;
        }
    }
    SHOAL_ASSERT(need == 0);
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
    if (spreads(&v->jobs[j])) {
        place_spread(work, j, need);
        return;
    }
    for (uint32_t p = 0; p < work->pool_count; p++) {
        uint32_t gang = v->jobs[j].elastic ? 0 : jw->pin[p] - jw->pool_kept[p];
        uint32_t *left = v->jobs[j].elastic ? &work->flow[jw->family][p] : &gang;

        while (need > 0 && *left > 0) {
            uint32_t h = best_host(work, j, 1u << p);

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

void share_place(struct shoal_allocate *work)
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
