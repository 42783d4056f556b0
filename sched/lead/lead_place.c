/* Placement: from the slots that the allocation yields to leases in the log, and the leases' upkeep (PROTOCOLS 6).
 *
 *     TARGET --> RESERVE each host --> OFFERs = grants (2 s) --> PLACE committed --> CONFIRM --> RENEW each 3 s
 *
 * Elastic workers on a host that is drained do not count: as many as they are go elsewhere first, and they leave at a
 * step boundary once these train. Scripts and tasks stay until they end.
 *
 * A gang (not elastic) is placed all or nothing; an elastic job starts with its minimum and a driver, and grows. */
#include "shoal/job_entry.h"
#include "sched/job/job_wire.h"
#include "lead_state.h"
#include "shoal/banned.h"

#define SURPLUS_NS (1 * SHOAL_S)
#define MOVE_NS (20 * SHOAL_S)

/* Of the hosts' 2 s, counted from the request: what is left is for the commit. */
#define TENTATIVE_NS (1700 * SHOAL_MS)
#define ANSWER_NS (500 * SHOAL_MS)  /* a RESERVE unanswered so long is asked again */
#define COLLECT_NS (100 * SHOAL_MS) /* grants wait so long for the other hosts' */
#define REFUSED_NS (5 * SHOAL_S)    /* asked again even if its record did not change: it may have been lost */
#define CONFIRM_NS SHOAL_S
#define TARGET_NS (20 * SHOAL_MS) /* a first target that comes so soon spares the log the waiting for it */
#define KEPT_NS (SHOAL_S) /* of the hosts' 2 s for a slot that they keep; the report may be one that was repeated */
#define BACKOFF_MIN_NS (50 * SHOAL_MS)
#define BACKOFF_MAX_NS (2 * SHOAL_S)

/* ---- Demand ----------------------------------------------------------------------------------------------------- */

static uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* An engine of a lost host that the epoch goes on without: since that has completed a step, it never trains again
 * (E4). Its lease still keeps its slot from others, but the job may have another slot in its place. */
static bool left_behind(const struct shoal_lead *lead, const struct lworker *w)
{
    const struct shoal_worker_epoch *epoch = lead->job->epoch;

    SHOAL_ASSERT(w->used);
    if (w->place.role != SHOAL_JOB_ENGINE || epoch == NULL || epoch->member_count == 0 ||
        lead_is_member(lead, w->place.worker_id) || lead->step_call != epoch->call || lead->step <= epoch->decided_step)
        return false;
    for (uint32_t i = 0; i < lead->host_cap; i++)
        if (lead->hosts[i].used && shoal_node_id_equal(lead->hosts[i].node, w->place.node))
            return host_lost(&lead->hosts[i]);
    return false;
}

/* Its host is drained: another is to train in its place. */
static bool must_move(const struct shoal_lead *lead, const struct lworker *w)
{
    if (!lead->job->spec.elastic || w->place.role != SHOAL_JOB_ENGINE)
        return false;
    for (uint32_t i = 0; i < lead->host_cap; i++)
        if (lead->hosts[i].used && shoal_node_id_equal(lead->hosts[i].node, w->place.node))
            return lead->hosts[i].draining;
    return false;
}

static uint32_t held_engines(const struct shoal_lead *lead, bool leaving_too)
{
    uint32_t held = 0;

    SHOAL_ASSERT(lead->worker_cap <= LEAD_WORKERS_MAX);
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        const struct lworker *w = &lead->workers[i];

        held += lworker_lives(w) && w->place.slot != SHOAL_SLOT_NONE && (leaving_too || !w->leaving) &&
                !left_behind(lead, w) && !must_move(lead, w);
    }
    return held;
}

static bool any_writer(const struct shoal_lead *lead, const struct shoal_call *call)
{
    SHOAL_ASSERT(call->call != 0);
    for (uint32_t i = 0; i < lead->worker_cap; i++)
        if (lworker_lives(&lead->workers[i]) && lead->workers[i].report.done_call == call->call)
            return true;
    return false;
}

void lead_want(const struct shoal_lead *lead, uint32_t *min, uint32_t *max)
{
    const struct shoal_job *job = lead->job;
    const struct shoal_call *call = shoal_job_running_call(job);

    *min = 0;
    *max = 0;
    if (shoal_job_state_ended((enum shoal_job_state)job->state) || job->stop || job->result_wanted ||
        lead->ended_well || lead->fail_text[0] != '\0')
        return;
    if (job->tasks != NULL) {
        lead_array_want(lead, min, max);
        return;
    }
    *min = job->spec.workers_min;
    *max = job->spec.workers_max;
    if (!job->spec.elastic)
        return;
    if (call == NULL && job->call_count > 0 && /* between two calls: nothing to compute */
        (!lead->train_due || lead_clears_failed(lead))) {
        *min = 0;
        *max = 0;
        return;
    }
    if (call != NULL && call->engines_max > 0)
        *max = min_u32(*max, call->engines_max);
    if (call != NULL && call->sizes.virtual_workers > 0)
        *max = min_u32(*max, call->sizes.virtual_workers);                        /* more would stand idle */
    if (call != NULL && call->state == SHOAL_CALL_DONE && any_writer(lead, call)) /* only the final files are missing */
        *max = min_u32(*max, held_engines(lead, true));
    *min = min_u32(*min, *max);
    SHOAL_ASSERT(*min <= job->spec.workers_max); /* nobody is asked for more than the user wants */
}

static bool needs_driver(const struct shoal_lead *lead)
{
    SHOAL_ASSERT(lead->job->tasks == NULL);
    return lead->job->spec.elastic && shoal_job_driver(lead->job) == NULL;
}

/* ---- Leaving ---------------------------------------------------------------------------------------------------- */

bool lead_in_target(const struct shoal_lead *lead, const struct shoal_placement *place)
{
    SHOAL_ASSERT(lead->target_slot_count <= lead->job->placement_cap);
    for (uint32_t i = 0; i < lead->target_slot_count; i++)
        if (lead->target_slots[i].slot == place->slot && shoal_node_id_equal(lead->target_slots[i].node, place->node))
            return true;
    return false;
}

/* On a host that is heard: the allocation counts no others, so it says nothing about workers there. */
static bool counts(struct shoal_lead *lead, const struct lworker *w)
{
    const struct lhost *host = lead_host(lead, w->place.node);

    SHOAL_ASSERT(lead->worker_cap <= LEAD_WORKERS_MAX);
    return lworker_lives(w) && w->place.role == SHOAL_JOB_ENGINE && w->ended_ns == 0 && host != NULL &&
           host->health == SHOAL_LEAD_HOST_WELL && !must_move(lead, w);
}

/* Those on draining hosts leave when as many train elsewhere as the job can have there, or, if that does not come
 * about, after a while when one does: it carries the state. */
static void move_workers(struct lead_step *s, uint32_t goal)
{
    struct shoal_lead *lead = s->lead;
    uint32_t elsewhere = 0, moving = 0;

    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        const struct lworker *w = &lead->workers[i];

        if (!lworker_lives(w) || w->place.role != SHOAL_JOB_ENGINE)
            continue;
        if (must_move(lead, w))
            moving += w->leaving ? 0 : 1;
        else if (lead_is_member(lead, w->place.worker_id) && !w->leaving)
            elsewhere++;
    }
    SHOAL_ASSERT(moving + elsewhere <= lead->worker_cap); /* each worker is counted once */
    if (moving == 0 || elsewhere == 0) {
        lead->moving_ns = 0;
        return;
    }
    if (lead->moving_ns == 0)
        lead->moving_ns = s->now_ns;
    if (elsewhere < goal && s->now_ns < lead->moving_ns + MOVE_NS) {
        lead_wake(s, lead->moving_ns + MOVE_NS);
        return;
    }
    for (uint32_t i = 0; i < lead->worker_cap; i++)
        if (lworker_lives(&lead->workers[i]) && must_move(lead, &lead->workers[i]))
            lead->workers[i].leaving = true;
}

/* Elastic workers beyond what the allocation yields leave at a step boundary, those that it does not name first; one
 * that was to leave and has not been told yet may stay when the wind turns. A surplus counts only when it has lasted:
 * hosts that fall silent and come back change the allocation for a moment, and nobody should be sent away for that. */
static void mark_leaving(struct lead_step *s, uint32_t goal)
{
    struct shoal_lead *lead = s->lead;
    uint32_t have = 0;

    SHOAL_ASSERT(s->lead->job->spec.elastic); /* a gang is never moved */
    for (uint32_t i = 0; i < lead->worker_cap; i++)
        have += counts(lead, &lead->workers[i]) && !lead->workers[i].leaving;
    if (have <= goal)
        lead->surplus_ns = 0;
    else if (lead->surplus_ns == 0)
        lead->surplus_ns = s->now_ns;
    if (have > goal && s->now_ns < lead->surplus_ns + SURPLUS_NS) {
        lead_wake(s, lead->surplus_ns + SURPLUS_NS);
        return;
    }
    for (unsigned pass = 0; pass < 2; pass++) {
        for (uint32_t i = lead->worker_cap; i > 0; i--) {
            struct lworker *w = &lead->workers[i - 1];

            if (!counts(lead, w))
                continue;
            if (have > goal && !w->leaving && (pass == 1 || !lead_in_target(lead, &w->place))) {
                w->leaving = true;
                have--;
            } else if (have < goal && w->leaving && lead_in_target(lead, &w->place) && !lead_is_unfit(lead, w->place.node)) {
                w->leaving = false;
                have++;
            }
        }
    }
}

/* ---- Asking ----------------------------------------------------------------------------------------------------- */

static bool slot_taken(const struct shoal_lead *lead, const struct shoal_lead_slot *slot)
{
    SHOAL_ASSERT(lead->grant_count <= lead->job->placement_cap);
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        const struct lworker *w = &lead->workers[i];

        if (w->used && w->place.slot == slot->slot && shoal_node_id_equal(w->place.node, slot->node))
            return true;
    }
    for (uint32_t i = 0; i < lead->grant_count; i++)
        if (lead->grants[i].slot == slot->slot && shoal_node_id_equal(lead->grants[i].node, slot->node))
            return true;
    return false;
}

static bool has_driver_grant(const struct shoal_lead *lead)
{
    SHOAL_ASSERT(lead->grant_count <= lead->job->placement_cap);
    for (uint32_t i = 0; i < lead->grant_count; i++)
        if (lead->grants[i].slot == SHOAL_SLOT_NONE)
            return true;
    return false;
}

static uint32_t slot_grants(const struct shoal_lead *lead)
{
    SHOAL_ASSERT(lead->grant_count > 0 || !has_driver_grant(lead));
    return lead->grant_count - (has_driver_grant(lead) ? 1 : 0);
}

/* It said no, and has said nothing else since. */
static bool refused_lately(struct lead_step *s, struct lhost *host)
{
    SHOAL_ASSERT(host->used);
    if (host->refused_ns == 0 || host->slots_version > host->refused_version)
        return false;
    if (s->now_ns < host->refused_ns + REFUSED_NS) {
        lead_wake(s, host->refused_ns + REFUSED_NS);
        return true;
    }
    host->refused_ns = 0;
    return false;
}

static bool may_ask(struct lead_step *s, struct lhost *host)
{
    SHOAL_ASSERT(host->used);
    if (host->health != SHOAL_LEAD_HOST_WELL || lead_is_unfit(s->lead, host->node)) /* U1 */
        return false;
    if (s->now_ns < host->barred_ns) { /* E7 of lead_epoch.c */
        lead_wake(s, host->barred_ns);
        return false;
    }
    return host->request == 0 && !refused_lately(s, host);
}

static void ask(struct lead_step *s, struct lhost *host, uint64_t slots, bool driver)
{
    struct shoal_host_message *m = &s->lead->scratch->out;

    SHOAL_ASSERT(host->request == 0); /* one question to a host at a time */
    SHOAL_ASSERT(slots != 0 || driver);
    m->kind = SHOAL_HOST_RESERVE;
    memset(&m->u.reserve, 0, sizeof(m->u.reserve));
    m->u.reserve.request = s->lead->next_request;
    m->u.reserve.priority = s->lead->job->spec.priority;
    m->u.reserve.ticket_ms = s->lead->job->ticket_ms;
    m->u.reserve.driver = driver;
    m->u.reserve.gpu_mib = s->lead->need.mib;
    m->u.reserve.gpu_pack = s->lead->need.pack;
    for (uint32_t i = 0; i < SHOAL_SLOTS_MAX; i++)
        if (slots >> i & 1)
            m->u.reserve.slots[m->u.reserve.slot_count++] = (uint8_t)i;
    if (!lead_send(s, host->node, 0))
        return;
    host->request = s->lead->next_request++;
    host->request_ns = s->now_ns;
    host->asked = slots;
    host->asked_driver = driver;
    s->lead->stats.reserves++;
    lead_wake(s, s->now_ns + ANSWER_NS);
}

/* Slots asked for and not answered yet. */
static uint32_t slots_asked(const struct shoal_lead *lead)
{
    uint32_t count = 0;

    SHOAL_ASSERT(lead->host_cap <= LEAD_HOSTS_MAX);
    for (uint32_t i = 0; i < lead->host_cap; i++)
        if (lead->hosts[i].used && lead->hosts[i].request != 0)
            count += (uint32_t)__builtin_popcountll(lead->hosts[i].asked);
    return count;
}

static bool asking(const struct shoal_lead *lead)
{
    SHOAL_ASSERT(lead->host_cap <= LEAD_HOSTS_MAX);
    for (uint32_t i = 0; i < lead->host_cap; i++)
        if (lead->hosts[i].used && lead->hosts[i].request != 0)
            return true;
    return false;
}

/* The driver runs beside its leader; where the leader's host serves no framework, on any host that does. */
static bool takes_driver(struct shoal_lead *lead, const struct lhost *host)
{
    const struct lhost *self = lead_host(lead, lead->options.self);

    SHOAL_ASSERT(host->used);
    if (lead_starts_nothing(lead, host->node)) /* U5 of lead_unfit.c */
        return false;
    if (self == NULL || !self->no_slots)
        return shoal_node_id_equal(host->node, lead->options.self);
    return !host->no_slots && host->health == SHOAL_LEAD_HOST_WELL;
}

/* It is asked of one host at a time, for there is one driver. */
static bool asks_for_driver(const struct shoal_lead *lead)
{
    SHOAL_ASSERT(lead->host_cap <= LEAD_HOSTS_MAX);
    for (uint32_t i = 0; i < lead->host_cap; i++)
        if (lead->hosts[i].used && lead->hosts[i].request != 0 && lead->hosts[i].asked_driver)
            return true;
    return false;
}

/* No slot is asked for at the host that is to have the driver: there is a worker of this job already, or none is due. */
static void ask_driver(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(lead->host_cap <= LEAD_HOSTS_MAX);
    (void)lead_host(lead,
                    lead->options.self); /* an allocation of no slots, as after the last step, has named no host */
    for (uint32_t i = 0; i < lead->host_cap; i++) {
        struct lhost *host = &lead->hosts[i];

        if (!host->used || !takes_driver(lead, host) || host->request != 0 || refused_lately(s, host))
            continue;
        ask(s, host, 0, true);
        return;
    }
}

static void ask_hosts(struct lead_step *s, uint32_t need, bool driver)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(s->lead->target_slot_count <= s->lead->job->placement_cap);
    driver = driver && !asks_for_driver(lead);
    for (uint32_t i = 0; i < lead->target_slot_count && need > 0; i++) {
        struct lhost *host = lead_host(lead, lead->target_slots[i].node);
        bool here;
        uint64_t slots = 0;

        if (host == NULL || slot_taken(lead, &lead->target_slots[i]) || !may_ask(s, host))
            continue;
        for (uint32_t j = i; j < lead->target_slot_count && need > 0; j++) {
            if (!shoal_node_id_equal(lead->target_slots[j].node, host->node) ||
                slot_taken(lead, &lead->target_slots[j]) || lead->target_slots[j].slot >= SHOAL_SLOTS_MAX)
                continue;
            slots |= 1ull << lead->target_slots[j].slot;
            need--;
        }
        here = driver && takes_driver(lead, host);
        if (slots == 0 && !here)
            continue; /* no slot that there can be */
        ask(s, host, slots, here);
        driver = driver && !here;
    }
    if (driver)
        ask_driver(s);
}

static void add_grant(struct lead_step *s, const struct lhost *host, uint32_t slot, uint64_t generation)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(s->lead->scratch->in.kind == SHOAL_HOST_OFFER);
    SHOAL_ASSERT(s->lead->grant_count <= s->lead->job->placement_cap);
    if (lead->grant_count == lead->job->placement_cap)
        return;
    if (lead->grant_count == 0)
        lead->gather_ns = s->now_ns;
    lead->grants[lead->grant_count++] = (struct lgrant){ .node = host->node,
                                                         .slot = slot,
                                                         .generation = generation,
                                                         .host_epoch = lead->scratch->in.host_epoch,
                                                         .until_ns = host->request_ns + TENTATIVE_NS };
}

void lead_on_offer(struct lead_step *s, struct lhost *host)
{
    struct shoal_lead *lead = s->lead;
    const struct shoal_host_message *m = &lead->scratch->in;

    SHOAL_ASSERT(s->lead->scratch->in.kind == SHOAL_HOST_OFFER);
    if (m->u.offer.request != host->request) {
        lead->stats.stale++;
        return;
    }
    host->request = 0;
    lead->stats.offers++;
    for (uint32_t i = 0; i < m->u.offer.slot_count; i++)
        add_grant(s, host, m->u.offer.slots[i], m->u.offer.generations[i]);
    if (m->u.offer.driver)
        add_grant(s, host, SHOAL_SLOT_NONE, m->u.offer.driver_generation);
    if (m->u.offer.refused == 0 && (m->u.offer.driver || !host->asked_driver))
        return;
    lead->stats.offers_refused++;
    host->refused_ns = s->now_ns;
    host->refused_version = m->u.offer.record_version;
    if (m->u.offer.refused > 0)
        lead_pending(lead, "%u slots were refused by a host: %s", m->u.offer.refused, m->u.offer.text);
    else
        lead_pending(lead, "the driver was refused by a host: %s", m->u.offer.text);
}

/* ---- Grants ----------------------------------------------------------------------------------------------------- */

static void drop_grants(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    uint32_t kept = 0;

    SHOAL_ASSERT(s->lead->grant_count <= s->lead->job->placement_cap);
    for (uint32_t i = 0; i < lead->grant_count; i++) {
        if (s->now_ns >= lead->grants[i].until_ns ||
            (lead->grants[i].slot != SHOAL_SLOT_NONE && lead_is_unfit(lead, lead->grants[i].node)))
            continue;
        lead_wake(s, lead->grants[i].until_ns);
        lead->grants[kept++] = lead->grants[i];
    }
    lead->grant_count = kept;
}

/* A worker that is placed there and was not heard of yet is still a promise to the host: a CANCEL would take it, too. */
static bool awaits_report(const struct shoal_lead *lead, struct shoal_node_id node)
{
    for (uint32_t i = 0; i < lead->worker_cap; i++)
        if (lworker_lives(&lead->workers[i]) && !lead->workers[i].reported &&
            shoal_node_id_equal(lead->workers[i].place.node, node))
            return true;
    return false;
}

/* All promises are given back, those of a host that owes a report a little later: or they run out by themselves. */
static void cancel(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    uint32_t kept = 0;

    SHOAL_ASSERT(s->lead->grant_count <= s->lead->job->placement_cap);
    drop_grants(s);
    for (uint32_t i = 0; i < lead->grant_count; i++) {
        bool said = false;

        if (awaits_report(lead, lead->grants[i].node)) {
            lead->grants[kept++] = lead->grants[i];
            continue;
        }
        for (uint32_t j = i + 1; j < lead->grant_count; j++)
            said = said || shoal_node_id_equal(lead->grants[j].node, lead->grants[i].node);
        if (said)
            continue;
        lead->scratch->out.kind = SHOAL_HOST_CANCEL;
        (void)lead_send(s, lead->grants[i].node, 0); /* lost: the promise runs out by itself */
    }
    lead->grant_count = kept;
}

/* The name of the n-th worker of a job: 39 bits of the job and its recovery generation, 24 bits that count. Below 2^63:
 * readers of JSON take no larger integers. */
static uint64_t worker_name(const struct shoal_job *job, uint64_t n)
{
    uint64_t hash = 1469598103934665603ull + job->generation; /* FNV-1a */

    SHOAL_ASSERT(n > 0); /* ids count from 1 */
    for (unsigned i = 0; i < sizeof(job->id.bytes); i++)
        hash = (hash ^ job->id.bytes[i]) * 1099511628211ull;
    return (hash << 24 | (n & 0xffffff)) & INT64_MAX;
}

static bool propose_place(struct lead_step *s, uint32_t slots, bool driver)
{
    struct shoal_lead *lead = s->lead;
    struct shoal_job_entry *entry = lead_entry(s, SHOAL_JOB_ENTRY_PLACE);
    bool rerun = !lead->job->spec.elastic && lead->job->state == SHOAL_JOB_RECOVERING;
    uint32_t rank = 0;

    SHOAL_ASSERT(s->lead->grant_count > 0); /* L1: only what a host has promised is placed */
    SHOAL_ASSERT(s->lead->job->tasks == NULL);
    if (entry == NULL)
        return true; /* nothing else either */
    entry->u.place.attempt = lead->job->attempt + (rerun ? 1 : 0);
    for (uint32_t i = 0; i < lead->grant_count && entry->u.place.add_count < shoal_job_workers_bound(lead->job); i++) {
        const struct lgrant *grant = &lead->grants[i];
        bool is_driver = grant->slot == SHOAL_SLOT_NONE;
        struct shoal_placement *place;
        uint64_t token[2];

        token[0] = shoal_rand_u64(&lead->rand); /* one draw a line: an initializer leaves their order to the compiler */
        token[1] = shoal_rand_u64(&lead->rand);
        if (is_driver ? !driver : rank == slots)
            continue;
        place = &entry->u.place.add[entry->u.place.add_count++];
        place->worker_id = worker_name(lead->job, lead->job->workers_made + entry->u.place.add_count);
        place->node = grant->node;
        place->slot = grant->slot;
        place->host_epoch = grant->host_epoch;
        place->lease_generation = grant->generation;
        memcpy(place->token, token, sizeof(place->token));
        place->role = lead->job->spec.elastic ? SHOAL_JOB_ENGINE : SHOAL_JOB_SCRIPT;
        if (is_driver)
            place->role = SHOAL_JOB_DRIVER;
        place->attempt = entry->u.place.attempt;
        place->rank = is_driver || lead->job->spec.elastic ? 0 : rank;
        rank += !is_driver;
        driver = driver && !is_driver;
    }
    if (!lead_propose(s))
        return true;
    lead->grant_count = 0;
    lead->backoffs = 0;
    return true;
}

/* Tasks that wait, in their order, onto the first grants; with them what has ended, in one entry. */
static bool propose_tasks(struct lead_step *s, uint32_t wanted)
{
    struct shoal_lead *lead = s->lead;
    struct shoal_job_entry *entry = lead_entry(s, SHOAL_JOB_ENTRY_TASKS);
    uint32_t positions[SHOAL_PLACE_TASKS_MAX];
    uint32_t count;

    SHOAL_ASSERT(wanted <= s->lead->grant_count); /* L1: only what a host has promised is placed */
    if (entry == NULL)
        return true; /* nothing else either */
    (void)lead_array_ends(lead, entry);
    count = shoal_job_tasks_pending(lead->job, positions, min_u32(wanted, SHOAL_PLACE_TASKS_MAX));
    for (uint32_t i = 0; i < count; i++) {
        const struct lgrant *grant = &lead->grants[i];
        struct shoal_placement *place = &entry->u.tasks.add[i];

        SHOAL_ASSERT(grant->slot != SHOAL_SLOT_NONE); /* an array has no driver */
        place->worker_id = worker_name(lead->job, lead->job->workers_made + i + 1);
        place->node = grant->node;
        place->slot = grant->slot;
        place->host_epoch = grant->host_epoch;
        place->lease_generation = grant->generation;
        for (size_t at = 0; at < sizeof(place->token); at += sizeof(uint64_t)) {
            uint64_t word = shoal_rand_u64(&lead->rand);

            memcpy(place->token + at, &word, sizeof(word));
        }
        place->role = SHOAL_JOB_TASK;
        place->rank = shoal_array_index(&lead->job->tasks->array, positions[i]);
        place->attempt = lead->job->tasks->tasks[positions[i]].attempts + 1u;
    }
    entry->u.tasks.add_count = count;
    if (!lead_propose(s))
        return true;
    lead->grant_count -= count;
    memmove(&lead->grants[0], &lead->grants[count], lead->grant_count * sizeof(lead->grants[0]));
    return true;
}

static void back_off(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    uint64_t wait_ns = BACKOFF_MIN_NS << (lead->backoffs < 5 ? lead->backoffs : 5);

    SHOAL_ASSERT(!s->lead->job->spec.elastic); /* only a gang is placed all or nothing */
    cancel(s);
    if (wait_ns > BACKOFF_MAX_NS)
        wait_ns = BACKOFF_MAX_NS;
    lead->backoffs++;
    lead->backoff_ns = s->now_ns + wait_ns / 2 + shoal_rand_below(&lead->rand, wait_ns);
}

/* A request or its answer was lost: the slots may be asked for again. */
static void forget_requests(struct lead_step *s)
{
    SHOAL_ASSERT(s->lead->host_cap <= LEAD_HOSTS_MAX);
    for (uint32_t i = 0; i < s->lead->host_cap; i++) {
        struct lhost *host = &s->lead->hosts[i];

        if (!host->used || host->request == 0)
            continue;
        if (s->now_ns >= host->request_ns + ANSWER_NS)
            host->request = 0;
        else
            lead_wake(s, host->request_ns + ANSWER_NS);
    }
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

static bool propose_pending(struct lead_step *s)
{
    uint8_t state = s->lead->job->state;

    SHOAL_ASSERT(!shoal_job_state_ended((enum shoal_job_state)s->lead->job->state)); /* J2 */
    if (state == SHOAL_JOB_SUBMITTED || state == SHOAL_JOB_PENDING_JOB_SCHEDULER)
        return lead_propose_state(s, SHOAL_JOB_PENDING_CRD_SCHEDULER, -1, false, "");
    if (state == SHOAL_JOB_LAUNCHING && s->lead->job->placement_count == 0)
        return lead_propose_state(s, SHOAL_JOB_PENDING_CRD_SCHEDULER, -1, false, "");
    return false;
}

/* Nothing is known yet of what the allocation yields. */
static bool await_target(struct lead_step *s)
{
    SHOAL_ASSERT(!s->lead->has_target);
    if (s->now_ns >= s->lead->started_ns + TARGET_NS)
        return propose_pending(s);
    lead_wake(s, s->lead->started_ns + TARGET_NS);
    return false;
}

static bool place_gang(struct lead_step *s, uint32_t wanted)
{
    struct shoal_lead *lead = s->lead;
    uint32_t grants;

    SHOAL_ASSERT(!s->lead->job->spec.elastic && s->lead->job->tasks == NULL);
    if (lead->job->placement_count > 0)
        return false; /* placed, or the last attempt is not over yet */
    if (lead->has_target && lead->target < wanted) {
        lead_pending(lead, "%s", lead->target_why);
        cancel(s);
        return propose_pending(s);
    }
    if (!lead->has_target)
        return await_target(s);
    if (s->now_ns < lead->backoff_ns) {
        lead_wake(s, lead->backoff_ns);
        return propose_pending(s);
    }
    grants = lead->grant_count;
    if (grants >= wanted)
        return propose_place(s, wanted, false);
    drop_grants(s);
    if (lead->grant_count < grants || (grants > 0 && !asking(lead) && s->now_ns >= lead->gather_ns + COLLECT_NS)) {
        back_off(s); /* it did not come together: all is given back, nobody waits for us */
        return propose_pending(s);
    }
    if (grants > 0 && !asking(lead))
        lead_wake(s, lead->gather_ns + COLLECT_NS); /* else an answer, or the end of the wait for it, comes first */
    ask_hosts(s, wanted - grants > slots_asked(lead) ? wanted - grants - slots_asked(lead) : 0, false);
    return asking(lead) ? false : propose_pending(s);
}

static bool place_elastic(struct lead_step *s, uint32_t min, uint32_t max)
{
    struct shoal_lead *lead = s->lead;
    bool driver = needs_driver(lead);
    bool first = lead->job->placement_count == 0 && lead->job->state < SHOAL_JOB_RUNNING;
    uint32_t have, most, room, goal, pending, wanted;

    SHOAL_ASSERT(s->lead->job->spec.elastic && s->lead->job->tasks == NULL);
    SHOAL_ASSERT(s->lead->worker_cap > 2); /* take_memory(): two drivers, and an engine */
    drop_grants(s);
    if (!lead->has_target)
        return await_target(s);
    goal = min_u32(lead->target, max);
    if (max > 0) {
        mark_leaving(s, goal > min ? goal : min);
        move_workers(s, goal);
    }
    have = held_engines(lead, true);
    most = min_u32(lead->job->placement_cap, lead->worker_cap) - 2; /* two drivers; those left behind are there still */
    room = lead->job->placement_count < most ? most - lead->job->placement_count : 0;
    goal = min_u32(goal, have + room);
    if (max > 0 && have == 0 && goal < min) {
        lead_pending(lead, "%s", lead->target_why);
        if (first) {
            cancel(s);
            return propose_pending(s);
        }
    }
    pending = have + slot_grants(lead) + slots_asked(lead);
    ask_hosts(s, goal > pending ? goal - pending : 0, driver && !has_driver_grant(lead));
    if (lead->grant_count == 0)
        return asking(lead) ? false : propose_pending(s);
    if (first && (!has_driver_grant(lead) || slot_grants(lead) < (min > 0 ? min : 1))) /* none without the other */
        return false;
    if (asking(lead) && s->now_ns < lead->gather_ns + COLLECT_NS) {
        lead_wake(s, lead->gather_ns + COLLECT_NS);
        return false;
    }
    wanted = min_u32(slot_grants(lead), goal > have ? goal - have : 0);
    if (wanted == 0 && !(driver && has_driver_grant(lead))) {
        cancel(s); /* the target fell while a host was asked: others get the slots at once */
        return asking(lead) ? false : propose_pending(s);
    }
    return propose_place(s, wanted, driver);
}

void lead_on_kept(struct lead_step *s, const struct lhost *host, const struct shoal_worker_report *report)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(report->next_generation != 0);
    for (uint32_t i = 0; i < lead->grant_count; i++)
        if (lead->grants[i].generation == report->next_generation &&
            shoal_node_id_equal(lead->grants[i].node, host->node))
            return; /* the report was repeated */
    for (uint32_t i = 0; i < lead->job->placement_count; i++)
        if (lead->job->placements[i].lease_generation == report->next_generation &&
            shoal_node_id_equal(lead->job->placements[i].node, host->node))
            return; /* placed meanwhile */
    if (lead->grant_count == lead->job->placement_cap)
        return; /* the promise runs out by itself */
    lead->grants[lead->grant_count++] = (struct lgrant){ .node = host->node,
                                                         .slot = report->slot,
                                                         .generation = report->next_generation,
                                                         .host_epoch = lead->scratch->in.host_epoch,
                                                         .until_ns = s->now_ns + KEPT_NS };
}

/* Tasks stay on a host that is drained, and replicas until they are moved (shrink() in lead_array.c): the allocation's slots are
 * others. */
static uint32_t on_drained(const struct shoal_lead *lead)
{
    uint32_t count = 0;

    SHOAL_ASSERT(!lead->job->spec.elastic); /* engines move */
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        const struct lworker *w = &lead->workers[i];

        for (uint32_t h = 0; lworker_lives(w) && h < lead->host_cap; h++)
            count += lead->hosts[h].used && lead->hosts[h].draining && shoal_node_id_equal(lead->hosts[h].node, w->place.node);
    }
    return count;
}

/* Tasks go onto slots one by one, as these come; nobody waits for others. */
static bool place_array(struct lead_step *s, uint32_t max)
{
    struct shoal_lead *lead = s->lead;
    uint32_t have = held_engines(lead, true);
    uint32_t elsewhere = have - on_drained(lead);
    uint32_t goal, wanted, pending;

    SHOAL_ASSERT(s->lead->job->tasks != NULL && elsewhere <= have);
    drop_grants(s);
    if (!lead->has_target)
        return await_target(s);
    goal = min_u32(lead->target, max);
    wanted = goal > elsewhere ? goal - elsewhere : 0;
    wanted = min_u32(wanted, max > have ? max - have : 0);
    wanted = min_u32(wanted, lead->job->tasks->counts[SHOAL_TASK_PENDING]);
    if (wanted > 0 && s->now_ns < lead->again_ns) {
        lead_wake(s, lead->again_ns);
        wanted = 0;
    }
    if (wanted == 0 && lead->grant_count > 0)
        cancel(s); /* others get them at once */
    if (goal == 0 && have == 0) {
        lead_pending(lead, "%s", lead->target_why);
        return propose_pending(s);
    }
    pending = lead->grant_count + slots_asked(lead);
    ask_hosts(s, wanted > pending ? wanted - pending : 0, false);
    if (lead->grant_count > 0 && wanted > 0)
        return propose_tasks(s, min_u32(lead->grant_count, wanted));
    return have == 0 && !asking(lead) ? propose_pending(s) : false;
}

/* After a recovery: a lease that this log does not name may have been confirmed by the generation before. Nobody is
 * placed before it has ended, by the clock of a leader that was elected later (PROTOCOLS 7). */
static bool settling(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    uint64_t until_ns = lead->started_ns + lead->options.lease_ns + SHOAL_S;

    SHOAL_ASSERT(s->lead->options.lease_ns > 0);
    if (!lead->job->unsettled || s->now_ns >= until_ns)
        return false;
    lead_pending(lead, "recovered as generation %u; nobody is placed before all older leases have ended",
                 lead->job->generation);
    lead_wake(s, until_ns);
    return true;
}

static bool pending_too_long(const struct lead_step *s)
{
    const struct shoal_lead *lead = s->lead;
    uint64_t timeout_ns = lead->job->spec.pending_timeout_ms * SHOAL_MS;

    return lead->job->state <= SHOAL_JOB_PENDING_CRD_SCHEDULER && timeout_ns != 0 &&
           s->now_ns >= lead->started_ns + timeout_ns;
}

bool lead_place(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    uint32_t min, max;

    SHOAL_ASSERT(!shoal_job_state_ended((enum shoal_job_state)s->lead->job->state)); /* J2 */
    lead_want(lead, &min, &max);
    forget_requests(s);
    if (lead->job->stop || lead->job->result_wanted || lead->ended_well || lead->fail_text[0] != '\0') {
        cancel(s);
        return false;
    }
    if (pending_too_long(s)) {
        lead_fail(lead, -1, "still pending after %llu ms, the job's pending timeout. %s",
                  (unsigned long long)lead->job->spec.pending_timeout_ms, lead->target_why);
        lead_wake(s, s->now_ns);
        return false;
    }
    if (lead->job->state <= SHOAL_JOB_PENDING_CRD_SCHEDULER && lead->job->spec.pending_timeout_ms != 0)
        lead_wake(s, lead->started_ns + lead->job->spec.pending_timeout_ms * SHOAL_MS);
    if (settling(s))
        return false;
    if (lead->job->tasks != NULL)
        return place_array(s, max);
    return lead->job->spec.elastic ? place_elastic(s, min, max) : place_gang(s, min);
}

/* Dead workers leave the log. A driver or script that ended well stays until the result is stored: it names its
 * host. */
bool lead_drop(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    bool ended = shoal_job_state_ended((enum shoal_job_state)lead->job->state);
    struct shoal_job_entry *entry = NULL;

    SHOAL_ASSERT(s->lead->job->placement_count <= s->lead->job->placement_cap);
    if (lead->job->tasks != NULL)
        return lead_array_drop(s);
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        const struct lworker *w = &lead->workers[i];
        bool well = w->place.role != SHOAL_JOB_ENGINE && w->report.status == 0 && !w->report.signalled && !w->lost;

        if (!w->used || !w->dead || (well && !ended && !lead->job->stop && !lead_rerun(lead)))
            continue;
        if (entry == NULL) {
            entry = lead_entry(s, SHOAL_JOB_ENTRY_PLACE);
            if (entry == NULL)
                return true;
            entry->u.place.attempt = lead->job->attempt;
        }
        if (entry->u.place.drop_count < lead->job->placement_cap)
            entry->u.place.drop[entry->u.place.drop_count++] = w->place.worker_id;
    }
    return entry != NULL && lead_propose(s);
}

/* ---- Upkeep ------------------------------------------------------------------------------------------------------ */

static bool unconfirmed(const struct lead_step *s, const struct lworker *w, const struct lhost *host)
{
    SHOAL_ASSERT(host->used);
    return lworker_lives(w) && !w->reported && shoal_node_id_equal(w->place.node, host->node) &&
           (w->confirm_ns == 0 || s->now_ns >= w->confirm_ns + CONFIRM_NS);
}

/* It has workers that were confirmed to it by other guardians than these: it pushes files and records to them (L6). */
static bool owes_guardians(const struct shoal_lead *lead, const struct lhost *host)
{
    if (host->guardians_told == lead->guardians_version)
        return false;
    for (uint32_t i = 0; i < lead->worker_cap; i++)
        if (lworker_lives(&lead->workers[i]) && lead->workers[i].reported &&
            shoal_node_id_equal(lead->workers[i].place.node, host->node))
            return true;
    return false;
}

static void confirm_host(struct lead_step *s, struct lhost *host)
{
    struct shoal_lead *lead = s->lead;
    struct shoal_host_message *m = &lead->scratch->out;

    SHOAL_ASSERT(host->used && host->stamp != 0); /* S2: a lease is counted from the host's own stamp */
    m->kind = SHOAL_HOST_CONFIRM;
    memset(&m->u.confirm, 0, sizeof(m->u.confirm));
    for (uint32_t i = 0; i < lead->worker_cap; i++)
        if (unconfirmed(s, &lead->workers[i], host) && m->u.confirm.placement_count <= SHOAL_SLOTS_MAX)
            m->u.confirm.placements[m->u.confirm.placement_count++] = lead->workers[i].place;
    if (m->u.confirm.placement_count == 0 && !owes_guardians(lead, host))
        return;
    m->u.confirm.source_count = lead->guardian_count;
    memcpy(m->u.confirm.sources, lead->guardians, sizeof(m->u.confirm.sources));
    m->u.confirm.spec = lead->job->spec_bytes;
    m->u.confirm.echo = host->stamp;
    m->u.confirm.keep = lead->job->tasks != NULL && !shoal_job_spec_serves(&lead->job->spec) &&
                        lead->job->tasks->counts[SHOAL_TASK_PENDING] > 0;
    if (!lead_send(s, host->node, 0))
        return;
    host->guardians_told = lead->guardians_version;
    if (m->u.confirm.placement_count == 0)
        return;
    lead->stats.confirms++;
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        struct lworker *w = &lead->workers[i];
        uint64_t lapse_ns = host->stamp_ns + lead->options.lease_ns + SHOAL_S;

        if (!unconfirmed(s, w, host))
            continue;
        w->confirm_ns = s->now_ns;
        if (lapse_ns > w->lapse_ns)
            w->lapse_ns = lapse_ns;
    }
    lead_wake(s, s->now_ns + CONFIRM_NS);
}

/* L1: placements are in the log. Also how a new leader asks after workers that it has heard nothing of. */
void lead_confirm(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(s->lead->job->placement_count <= s->lead->job->placement_cap);
    if (!lead->supported || shoal_job_state_ended((enum shoal_job_state)lead->job->state))
        return;
    for (uint32_t i = 0; i < lead->host_cap; i++)
        if (lead->hosts[i].used && lead->hosts[i].stamp != 0 && !host_lost(&lead->hosts[i]))
            confirm_host(s, &lead->hosts[i]);
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        const struct lworker *w = &lead->workers[i];
        const struct lhost *host = lworker_lives(w) && !w->reported ? lead_host(lead, w->place.node) : NULL;

        if (host != NULL && host->stamp != 0 && !host_lost(host))
            lead_wake(s, w->confirm_ns + CONFIRM_NS);
    }
}

static void renew_host(struct lead_step *s, struct lhost *host)
{
    struct shoal_lead *lead = s->lead;
    struct shoal_host_message *m = &lead->scratch->out;

    SHOAL_ASSERT(host->used && host->stamp != 0); /* S2: a lease is counted from the host's own stamp */
    m->kind = SHOAL_HOST_RENEW;
    memset(&m->u.renew, 0, sizeof(m->u.renew));
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        struct lworker *w = &lead->workers[i];
        uint64_t lapse_ns = host->stamp_ns + lead->options.lease_ns + SHOAL_S;

        if (!lworker_lives(w) || !w->reported || !shoal_node_id_equal(w->place.node, host->node) ||
            m->u.renew.lease_count == SHOAL_SLOTS_MAX + 2)
            continue;
        m->u.renew.leases[m->u.renew.lease_count++] =
            (struct shoal_lease_name){ .worker_id = w->place.worker_id, .lease_generation = w->place.lease_generation };
        if (lapse_ns > w->lapse_ns)
            w->lapse_ns = lapse_ns;
    }
    if (m->u.renew.lease_count == 0)
        return;
    m->u.renew.echo = host->stamp;
    if (lead->job->epoch != NULL)
        m->u.renew.epoch = lead->job->epoch->epoch;
    if (lead_send(s, host->node, 0))
        lead->stats.renewals++;
}

void lead_renew(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(s->lead->options.renew_ns < s->lead->options.lease_ns); /* a lease is renewed before it ends */
    if (!lead->supported || shoal_job_state_ended((enum shoal_job_state)lead->job->state) ||
        lead->job->placement_count == 0)
        return;
    if (s->now_ns < lead->renew_ns) {
        lead_wake(s, lead->renew_ns);
        return;
    }
    lead->renew_ns = s->now_ns + lead->options.renew_ns;
    lead_wake(s, lead->renew_ns);
    for (uint32_t i = 0; i < lead->host_cap; i++)
        if (lead->hosts[i].used && lead->hosts[i].stamp != 0)
            renew_host(s, &lead->hosts[i]);
}
