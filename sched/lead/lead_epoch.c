/* Epochs of the running call's communicator (PROTOCOLS 7 and 12; I1 to I4 of shoal/worker.h).
 *
 *   epoch e runs --(a death, a CLOSED, a lost host, a joiner, a leaver)--> REVOKE to all
 *                --(one member's CLOSED; the others' within slow_ns)-----> D, holder, donor, ranges:
 *                                                                          EPOCH e+1 committed
 *                --(nobody can close: all dead or leases over)-----------> from the highest step that anyone carries,
 *                                                                          else from the newest snapshot,
 *                                                                          else from the bundle
 *
 * E1. (L3) Some member of e that carries a state has reported CLOSED, or no such member lives. Then no step completes
 *     in e any more: a step needs every member, and a member that closed publishes nothing.
 * E2. (L4) D is the highest step that a member of e+1 carries (applied or complete). If anyone who is not gone has
 *     reported a higher one, e+1 waits for it, or for its end.
 * E3. A member of e that has not reported yet may be in e+1 if it had the state: with e closed it cannot have applied
 *     more than the one that closed has completed or, if that is more, the step decided for e; so I3 brings it to D.
 *     Where e began from a snapshot, it may not have loaded that: it is given the state.
 * E4. Who was in an epoch and is not in the newest one stays until that has completed a step: it may be the last to
 *     carry anything. Then it is killed; it never joins again (its state may be of a step that was taken back).
 * E5. A silent host alone ends nothing: its agent may only be away, and its workers train on. It takes a member's word
 *     that it hears a worker there no more (PROTOCOLS 12), or the end of the leases.
 * E6. Of an epoch (e,k) whose members are all on one host, that host may make (e,k+1), without the dead, before this
 *     group knows of the death; it reports it, and it is committed as it is, so long as nothing above it was. A member
 *     of such an epoch may have gone on in one that is not known here: nobody of it is left out for being slow (E3),
 *     and a revoke is of every k.
 * E7. A data link that breaks between supported hosts re-forms the same members; the third time in 10 s the member
 *     goes that fewer can reach (sched/lead/link_breaks.h), as one that E4 leaves behind. It stays if it alone carries
 *     a state. Its host is not asked for slots for 30 s, twice as long with each further time, up to 10 minutes: so it
 *     does not come back at once to break the next epochs. If it alone has completed the last step, which nobody
 *     applied, then it is killed, and the step done again.
 * E8. An epoch that ends though all its members are well is followed by the next after a while, and by none if it was
 *     the last of many without a step (lead_idle.c). */
#include "shoal/job_entry.h"
#include "epoch_next.h"
#include "sched/job/job_wire.h"
#include "lead_state.h"
#include "shoal/banned.h"

#define REPEAT_NS (300 * SHOAL_MS)
#define SETTLE_NS (200 * SHOAL_MS) /* an epoch is left alone so long before a planned change */
#define LEAVE_NS (3 * SHOAL_S)
#define STEP_NS (30 * SHOAL_S) /* a planned change waits so long for the running epoch's first step */

static const struct shoal_worker_epoch *running(const struct shoal_lead *lead, const struct shoal_call *call)
{
    SHOAL_ASSERT(lead->job->epoch != NULL);
    return lead->job->epoch->call == call->call && lead->job->epoch->member_count > 0 ? lead->job->epoch : NULL;
}

static const struct shoal_rank_member *member_of(const struct shoal_worker_epoch *epoch, uint64_t worker_id)
{
    SHOAL_ASSERT(epoch == NULL || epoch->member_count <= SHOAL_RANKS_MAX);
    for (uint32_t i = 0; epoch != NULL && i < epoch->member_count; i++)
        if (epoch->members[i].worker_id == worker_id)
            return &epoch->members[i];
    return NULL;
}

bool lead_is_member(const struct shoal_lead *lead, uint64_t worker_id)
{
    return lead->job->epoch != NULL && member_of(lead->job->epoch, worker_id) != NULL;
}

static uint64_t carried(const struct lworker *w)
{
    SHOAL_ASSERT(w->used);
    return w->report.applied_step > w->report.complete_step ? w->report.applied_step : w->report.complete_step;
}

/* The worker left that epoch, or one that its host has made of it since (E6). */
bool lead_closed_in(const struct lworker *w, struct shoal_epoch epoch)
{
    SHOAL_ASSERT(w->used);
    return w->reported && w->report.closed && w->report.epoch.e == epoch.e && w->report.epoch.k >= epoch.k;
}

/* E5. */
static bool out_of_reach(const struct lead_step *s, const struct shoal_worker_epoch *last, uint32_t rank)
{
    SHOAL_ASSERT(rank < last->member_count);
    if (!host_lost(lead_find_host(s->lead, last->members[rank].node)))
        return false;
    for (uint32_t i = 0; i < last->member_count; i++) {
        const struct lworker *other = lead_worker(s->lead, last->members[i].worker_id);

        if (other != NULL && lworker_lives(other) && other->reported && !other->stale &&
            !host_lost(lead_find_host(s->lead, other->place.node)) &&
            shoal_epoch_cmp(other->report.epoch, last->epoch) == 0 && shoal_ranks_has(&other->report.unheard, rank))
            return true;
    }
    return false;
}

/* The worker may be a member of the next epoch; `leavers`: also one that is about to leave. */
bool lead_eligible(struct lead_step *s, const struct lworker *w, const struct shoal_call *call, bool leavers)
{
    SHOAL_ASSERT(w->used && call->call != 0);
    return lworker_lives(w) && w->place.role == SHOAL_JOB_ENGINE && w->reported && !w->stale &&
           (leavers || !w->leaving) && !w->cut_off && w->ended_ns == 0 && w->report.phase == SHOAL_PHASE_READY &&
           w->report.ready_call == call->call && w->report.address_len <= SHOAL_TRANSPORT_ADDRESS_MAX &&
           !w->report.failed && !w->report.stuck && !w->report.frozen &&
           !host_lost(lead_host(s->lead, w->place.node)) &&
           strcmp(w->report.sizes.numeric_class, call->sizes.numeric_class) == 0;
}

/* ---- Members ---------------------------------------------------------------------------------------------------- */

struct plan {
    uint32_t count;
    struct lworker *workers[SHOAL_RANKS_MAX];
    const struct shoal_rank_member *before[SHOAL_RANKS_MAX]; /* place in the last epoch; NULL: a joiner */
};

static int joiner_cmp(const struct lworker *a, const struct lworker *b)
{
    int order = shoal_node_id_cmp(a->place.node, b->place.node);

    SHOAL_ASSERT(a != b);
    if (order != 0)
        return order;
    return a->place.slot < b->place.slot ? -1 : a->place.slot > b->place.slot;
}

/* It was in an epoch of this call, and is not in the last one (E4). */
static bool outcast(const struct lworker *w, const struct shoal_worker_epoch *last)
{
    SHOAL_ASSERT(w->used);
    return (w->was_member || w->report.epoch.e != 0) && member_of(last, w->place.worker_id) == NULL;
}

/* True when it is known how much of the state a worker carries: it was in no epoch, or has said where it left. */
static bool known(const struct lworker *w)
{
    SHOAL_ASSERT(w->used);
    return (!w->was_member && w->report.epoch.e == 0) || w->report.closed;
}

/* Of an EPOCH that must fit an entry, and a message to a worker: its head, and each member. */
#define EPOCH_HEAD_BYTES 512u
#define EPOCH_MEMBER_BYTES 64u
#define EPOCH_BYTES_MAX SHOAL_JOB_ENTRY_BYTES_MAX
_Static_assert(EPOCH_BYTES_MAX <= SHOAL_WORKER_MESSAGE_MAX && EPOCH_BYTES_MAX + 2 * SHOAL_KIB <= SHOAL_HOST_MESSAGE_MAX,
               "what the log takes hosts and workers take, too");
_Static_assert(EPOCH_HEAD_BYTES + SHOAL_JOB_WORKERS_PLAIN * (EPOCH_MEMBER_BYTES + SHOAL_TRANSPORT_ADDRESS_MAX) <= EPOCH_BYTES_MAX,
               "a plain job's epoch fits, whatever the addresses");

static uint32_t epoch_bytes(const struct shoal_worker_epoch *epoch)
{
    uint32_t bytes = EPOCH_HEAD_BYTES;

    SHOAL_ASSERT(epoch->member_count <= SHOAL_RANKS_MAX);
    for (uint32_t i = 0; i < epoch->member_count; i++)
        bytes += EPOCH_MEMBER_BYTES + epoch->members[i].address_len;
    return bytes;
}

/* One more member, beside `count` that take `bytes`. With long addresses a wide job has fewer members than workers. */
static bool has_room(const struct lead_step *s, const struct lworker *w, uint32_t count, uint32_t bytes)
{
    return count < shoal_job_workers_bound(s->lead->job) &&
           bytes + EPOCH_MEMBER_BYTES + w->report.address_len <= EPOCH_BYTES_MAX;
}

/* Survivors in their old order, then joiners by host and slot. `last` NULL: all who are there, outcasts too. */
static void plan_members(struct lead_step *s, const struct shoal_call *call, const struct shoal_worker_epoch *last,
                         bool leavers, struct plan *plan)
{
    uint32_t survivors, bytes = EPOCH_HEAD_BYTES;

    SHOAL_ASSERT(last == NULL || last->member_count <= SHOAL_RANKS_MAX);
    SHOAL_ASSERT(call->call != 0);
    plan->count = 0;
    for (uint32_t i = 0; last != NULL && i < last->member_count; i++) {
        struct lworker *w = lead_worker(s->lead, last->members[i].worker_id);

        if (w == NULL || !lead_eligible(s, w, call, leavers))
            continue;
        /* E3: who has not closed yet comes along only if it had the state. */
        if (!lead_closed_in(w, last->epoch) && !last->members[i].has_state)
            continue;
        plan->before[plan->count] = &last->members[i];
        plan->workers[plan->count++] = w;
        bytes += EPOCH_MEMBER_BYTES + w->report.address_len;
    }
    survivors = plan->count;
    for (uint32_t i = 0; i < s->lead->worker_cap; i++) {
        struct lworker *w = &s->lead->workers[i];
        uint32_t at;

        if (!w->used || member_of(last, w->place.worker_id) != NULL || (last != NULL && outcast(w, last)) ||
            !known(w) || !lead_eligible(s, w, call, false) || !has_room(s, w, plan->count, bytes))
            continue;
        bytes += EPOCH_MEMBER_BYTES + w->report.address_len;
        for (at = plan->count; at > survivors && joiner_cmp(w, plan->workers[at - 1]) < 0; at--)
            plan->workers[at] = plan->workers[at - 1];
        plan->workers[at] = w;
        plan->before[plan->count++] = NULL;
    }
}

/* ---- Ranges ----------------------------------------------------------------------------------------------------- */

static void ranges_balanced(struct shoal_worker_epoch *next, uint32_t virtual_workers)
{
    SHOAL_ASSERT(next->member_count > 0 && next->member_count <= SHOAL_RANKS_MAX);
    SHOAL_ASSERT(virtual_workers > 0); /* SIZES is committed before the first epoch */
    for (uint32_t i = 0; i < next->member_count; i++)
        shoal_balanced_range(virtual_workers, next->member_count, i, &next->members[i].v_begin,
                             &next->members[i].v_end);
}

/* ---- Proposing --------------------------------------------------------------------------------------------------- */

static struct shoal_worker_epoch *new_epoch(struct lead_step *s, const struct shoal_call *call, const struct plan *plan)
{
    struct shoal_job_entry *entry = lead_entry(s, SHOAL_JOB_ENTRY_EPOCH);
    struct shoal_worker_epoch *next;

    SHOAL_ASSERT(plan->count > 0 && plan->count <= SHOAL_RANKS_MAX);
    SHOAL_ASSERT(s->lead->job->epoch->epoch.e < UINT32_MAX); /* J3: epochs only rise */
    SHOAL_ASSERT(call->sizes.virtual_workers > 0);           /* SIZES is committed before the first epoch */
    if (entry == NULL)
        return NULL;
    next = &entry->u.epoch;
    next->epoch.e = s->lead->job->epoch->epoch.e + 1;
    next->call = call->call;
    next->records_acked = s->lead->step_call == call->call && s->lead->records_acked > call->records_acked
                              ? s->lead->records_acked
                              : call->records_acked;
    next->member_count = plan->count;
    for (uint32_t i = 0; i < plan->count; i++) {
        struct shoal_rank_member *m = &next->members[i];
        const struct lworker *w = plan->workers[i];

        memset(m, 0, sizeof(*m));
        m->worker_id = w->place.worker_id;
        m->node = w->place.node;
        m->slot = w->place.slot;
        memcpy(m->token, w->place.token, sizeof(m->token));
        m->address_len = w->report.address_len;
        memcpy(m->address, w->report.address, w->report.address_len);
    }
    return next;
}

static bool commit_epoch(struct lead_step *s)
{
    SHOAL_ASSERT(s->lead->scratch->entry.kind == SHOAL_JOB_ENTRY_EPOCH);
    SHOAL_ASSERT(shoal_epoch_cmp(s->lead->scratch->entry.u.epoch.epoch, s->lead->job->epoch->epoch) >
                 0); /* J3: epochs only rise */
    if (!lead_propose(s))
        return true;
    s->lead->stats.epochs++;
    s->lead->joiner_ns = 0;
    s->lead->first_ready_ns = 0;
    return true;
}

/* Everyone from the newest snapshot, or from the bundle: nobody who counts has begun a step. */
static bool propose_fresh(struct lead_step *s, const struct shoal_call *call, const struct plan *plan)
{
    struct shoal_worker_epoch *next = new_epoch(s, call, plan);

    SHOAL_ASSERT(plan->count > 0);
    if (next == NULL)
        return true;
    next->decided_step = call->snapshot_step;
    if (call->snapshot_step > 0)
        lead_blob_text(call->snapshot, next->snapshot_path);
    for (uint32_t i = 0; i < plan->count; i++)
        next->members[i].has_state = true;
    ranges_balanced(next, call->sizes.virtual_workers);
    return commit_epoch(s);
}

static void carriers_of(const struct plan *plan, const struct shoal_worker_epoch *last, struct epoch_carrier *carriers)
{
    SHOAL_ASSERT(plan->count <= SHOAL_RANKS_MAX);
    for (uint32_t i = 0; i < plan->count; i++)
        carriers[i] = (struct epoch_carrier){ .before = plan->before[i],
                                              .closed = lead_closed_in(plan->workers[i], last->epoch),
                                              .applied_step = plan->workers[i]->report.applied_step,
                                              .complete_step = plan->workers[i]->report.complete_step };
}

static bool propose_next_epoch(struct lead_step *s, const struct shoal_call *call,
                               const struct shoal_worker_epoch *last, const struct plan *plan, uint64_t decided)
{
    struct shoal_worker_epoch *next = new_epoch(s, call, plan);
    struct epoch_carrier carriers[SHOAL_RANKS_MAX];

    if (next == NULL)
        return true;
    next->decided_step = decided;
    carriers_of(plan, last, carriers);
    lead_epoch_next_states(next, carriers, last);
    lead_epoch_next_ranges(next, carriers, last, call->sizes.virtual_workers);
    return commit_epoch(s);
}

/* ---- The first epoch of a call -------------------------------------------------------------------------------- */

/* Workers that were placed and may still become ready soon. */
static bool others_come(const struct shoal_lead *lead, const struct shoal_call *call)
{
    SHOAL_ASSERT(call->call != 0);
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        const struct lworker *w = &lead->workers[i];

        if (lworker_lives(w) && w->place.role == SHOAL_JOB_ENGINE && !w->leaving &&
            (w->report.phase != SHOAL_PHASE_READY || w->report.ready_call != call->call || !known(w)))
            return true;
    }
    return false;
}

/* All members of the last epoch are gone, but somebody of an earlier one still carries a state: from there. */
static bool propose_carried(struct lead_step *s, const struct shoal_call *call, const struct plan *plan,
                            uint64_t decided)
{
    struct shoal_worker_epoch *next = new_epoch(s, call, plan);

    SHOAL_ASSERT(decided > call->snapshot_step);
    if (next == NULL)
        return true;
    next->decided_step = decided;
    for (uint32_t i = 0; i < plan->count; i++) {
        const struct lworker *w = plan->workers[i];

        next->members[i].has_state = w->report.applied_step > 0 && w->report.applied_step + 1 >= decided;
        if (next->holder == 0 && carried(w) >= decided)
            next->holder = w->place.worker_id;
        if (next->donor == 0 && next->members[i].has_state)
            next->donor = w->place.worker_id;
    }
    ranges_balanced(next, call->sizes.virtual_workers);
    return commit_epoch(s);
}

static bool first_epoch(struct lead_step *s, const struct shoal_call *call, const struct plan *plan)
{
    struct shoal_lead *lead = s->lead;
    uint64_t decided = 0;

    SHOAL_ASSERT(plan->count <= SHOAL_RANKS_MAX);
    SHOAL_ASSERT(call->call != 0);
    if (plan->count == 0)
        return false;
    if (lead->first_ready_ns == 0)
        lead->first_ready_ns = s->now_ns;
    if (others_come(lead, call) && s->now_ns < lead->first_ready_ns + lead->options.first_gather_ns) {
        lead_wake(s, lead->first_ready_ns + lead->options.first_gather_ns);
        return false;
    }
    /* A state, not only a result: step 1 alone can be redone from the bundle. */
    for (uint32_t i = 0; i < plan->count; i++)
        if (plan->workers[i]->report.applied_step > 0 && carried(plan->workers[i]) > decided)
            decided = carried(plan->workers[i]);
    return decided > call->snapshot_step ? propose_carried(s, call, plan, decided) : propose_fresh(s, call, plan);
}

/* ---- The next epoch ------------------------------------------------------------------------------------------- */

enum breach { BREACH_NONE, BREACH_PLANNED, BREACH_LOSS };

/* Every member has the epoch, and it has completed a step: joiners have their state, so that a planned change can
 * neither disturb their entry nor take away the last who carries one. */
static bool settled(struct lead_step *s, const struct shoal_worker_epoch *last)
{
    bool stepped = s->lead->step_call == last->call && s->lead->step > last->decided_step;

    SHOAL_ASSERT(last->member_count > 0);
    SHOAL_ASSERT(last->member_count <= SHOAL_RANKS_MAX);
    if (!stepped && s->now_ns < s->lead->epoch_seen_ns + STEP_NS) {
        lead_wake(s, s->lead->epoch_seen_ns + STEP_NS);
        return false;
    }
    if (s->now_ns < s->lead->epoch_seen_ns + SETTLE_NS) {
        lead_wake(s, s->lead->epoch_seen_ns + SETTLE_NS);
        return false;
    }
    for (uint32_t i = 0; i < last->member_count; i++) {
        const struct lworker *w = lead_worker(s->lead, last->members[i].worker_id);

        if (w == NULL || !w->reported || shoal_epoch_cmp(w->report.epoch, last->epoch) < 0)
            return false;
    }
    return true;
}

static enum breach find_breach(struct lead_step *s, const struct shoal_call *call,
                               const struct shoal_worker_epoch *last)
{
    struct shoal_lead *lead = s->lead;
    enum breach breach = BREACH_NONE;
    uint32_t bytes = epoch_bytes(last);
    bool joiner = false;

    SHOAL_ASSERT(last->call == call->call);
    for (uint32_t i = 0; i < last->member_count; i++) {
        const struct lworker *w = lead_worker(lead, last->members[i].worker_id);

        if (w == NULL || w->dead || lead_closed_in(w, last->epoch) || w->report.stuck || w->report.failed ||
            out_of_reach(s, last, i))
            return BREACH_LOSS;
        if (w->leaving)
            breach = BREACH_PLANNED;
    }
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        const struct lworker *w = &lead->workers[i];

        joiner = joiner || (w->used && member_of(last, w->place.worker_id) == NULL && !outcast(w, last) &&
                            lead_eligible(s, w, call, false) && has_room(s, w, last->member_count, bytes));
    }
    if (joiner) {
        if (lead->joiner_ns == 0)
            lead->joiner_ns = s->now_ns;
        if (s->now_ns >= lead->joiner_ns + lead->options.gather_ns)
            breach = BREACH_PLANNED;
        else
            lead_wake(s, lead->joiner_ns + lead->options.gather_ns);
    } else {
        lead->joiner_ns = 0;
    }
    return breach == BREACH_PLANNED && !settled(s, last) ? BREACH_NONE : breach;
}

static void revoke(struct lead_step *s, const struct shoal_worker_epoch *last)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(last->member_count > 0);
    SHOAL_ASSERT(s->lead->revoking);
    for (uint32_t i = 0; i < lead->host_cap; i++) {
        struct lhost *host = &lead->hosts[i];
        bool owes = false;

        for (uint32_t m = 0; host->used && m < last->member_count; m++) {
            const struct lworker *w = lead_worker(lead, last->members[m].worker_id);

            owes = owes || (w != NULL && lworker_lives(w) && shoal_node_id_equal(w->place.node, host->node) &&
                            !lead_closed_in(w, last->epoch));
        }
        if (!owes)
            continue;
        if (host->revoke_ns != 0 && s->now_ns < host->revoke_ns + REPEAT_NS) {
            lead_wake(s, host->revoke_ns + REPEAT_NS);
            continue;
        }
        lead->scratch->out.kind = SHOAL_HOST_REVOKE;
        lead->scratch->out.u.revoke = (struct shoal_epoch){ .e = last->epoch.e, .k = UINT32_MAX };
        if (!lead_send(s, host->node, 0))
            continue;
        host->revoke_ns = s->now_ns;
        lead->stats.revokes++;
        lead_wake(s, s->now_ns + REPEAT_NS);
    }
}

bool lead_carries_state(const struct lworker *w, const struct shoal_rank_member *m,
                        const struct shoal_worker_epoch *last)
{
    SHOAL_ASSERT(m->worker_id == w->place.worker_id);
    return lead_epoch_carries_state(&(struct epoch_carrier){ .before = m, .applied_step = w->report.applied_step },
                                    last);
}

static bool one_host(const struct shoal_worker_epoch *epoch)
{
    SHOAL_ASSERT(epoch->member_count > 0);
    for (uint32_t i = 1; i < epoch->member_count; i++)
        if (!shoal_node_id_equal(epoch->members[i].node, epoch->members[0].node))
            return false;
    return true;
}

/* E1. True when epoch `last` is closed and nobody is worth waiting for any longer. `none` is set when nobody who lives
 * can carry a state out of it. Slow ones are left to catch up (E3) only once somebody carries what the epoch began
 * with: a step decided for it may have been applied by the slow one alone. */
static bool closed_enough(struct lead_step *s, const struct shoal_worker_epoch *last, bool *none)
{
    struct shoal_lead *lead = s->lead;
    bool owing = false, awake = false, closed = false;
    uint64_t highest = 0;

    SHOAL_ASSERT(s->lead->revoking); /* E1: it was to end */
    SHOAL_ASSERT(last->member_count <= SHOAL_RANKS_MAX);
    *none = true;
    for (uint32_t i = 0; i < last->member_count; i++) {
        const struct lworker *w = lead_worker(lead, last->members[i].worker_id);

        if (w == NULL || w->dead || (lead_closed_in(w, last->epoch) && !lead_carries_state(w, &last->members[i], last)))
            continue;
        *none = false;
        if (lead_closed_in(w, last->epoch)) {
            closed = true;
            highest = carried(w) > highest ? carried(w) : highest;
        } else if (!host_lost(lead_host(lead, w->place.node)) && !w->report.stuck && !w->report.failed) {
            owing = true;
            awake = awake || !w->report.frozen;
        }
    }
    if (!closed)
        return *none;
    if (lead->closed_ns == 0)
        lead->closed_ns = s->now_ns;
    if (owing && (highest < last->decided_step || (awake && one_host(last))))
        return false;
    if (owing && s->now_ns < lead->closed_ns + lead->options.slow_ns) {
        lead_wake(s, lead->closed_ns + lead->options.slow_ns);
        return false;
    }
    return true;
}

/* E2. The highest step that the new members carry; false: somebody else may carry a higher one, and is not gone. */
static bool decide(struct lead_step *s, const struct shoal_worker_epoch *last, const struct plan *plan,
                   uint64_t *decided)
{
    uint64_t highest = 0;

    SHOAL_ASSERT(plan->count > 0);
    SHOAL_ASSERT(last->member_count > 0);
    *decided = 0;
    for (uint32_t i = 0; i < plan->count; i++)
        if (lead_closed_in(plan->workers[i], last->epoch) && carried(plan->workers[i]) > *decided)
            *decided = carried(plan->workers[i]);
    for (uint32_t i = 0; i < last->member_count; i++) {
        const struct lworker *w = lead_worker(s->lead, last->members[i].worker_id);

        if (w != NULL && !w->dead && lead_closed_in(w, last->epoch) && carried(w) > highest)
            highest = carried(w);
    }
    return highest <= *decided;
}

static bool plan_has_closed(const struct plan *plan, const struct shoal_worker_epoch *last)
{
    SHOAL_ASSERT(plan->count <= SHOAL_RANKS_MAX);
    for (uint32_t i = 0; i < plan->count; i++)
        if (plan->before[i] != NULL && lead_closed_in(plan->workers[i], last->epoch) &&
            lead_carries_state(plan->workers[i], plan->before[i], last))
            return true;
    return false;
}

static bool next_epoch(struct lead_step *s, const struct shoal_call *call, const struct shoal_worker_epoch *last)
{
    struct shoal_lead *lead = s->lead;
    struct plan plan;
    uint64_t decided;
    bool none;

    SHOAL_ASSERT(last->call == call->call);
    SHOAL_ASSERT(last->member_count > 0);
    if (!lead->revoking) {
        if (find_breach(s, call, last) == BREACH_NONE)
            return false;
        lead->revoking = true;
        lead->links_judged = false;
        lead->closed_ns = 0;
        lead_idle_begin(lead, last);
        for (uint32_t i = 0; i < lead->host_cap; i++)
            lead->hosts[i].revoke_ns = 0;
    }
    revoke(s, last);
    if (!closed_enough(s, last, &none))
        return false;
    lead_judge_links(s, call, last);
    if (!lead_idle_judge(s, last))
        return false;
    plan_members(s, call, none ? NULL : last, false, &plan);
    if (plan.count == 0 && !none)
        plan_members(s, call, last, true, &plan);
    if (plan.count == 0 && lead_readmit(lead))
        plan_members(s, call, none ? NULL : last, true, &plan);
    if (plan.count == 0) {
        lead_pending(lead, "all engines were lost; waiting for a slot to go on. %s", lead->target_why);
        return false;
    }
    if (none)
        return first_epoch(s, call, &plan);
    if (!plan_has_closed(&plan, last)) /* leavers alone carry the state: they stay until others have it */
        plan_members(s, call, last, true, &plan);
    if (!plan_has_closed(&plan, last) && lead_readmit(lead))
        plan_members(s, call, last, true, &plan);
    if (!plan_has_closed(&plan, last)) {
        lead_pending(lead,
                     "no engine at hand carries the last step; waiting for one that does, or for its lease to end");
        return false;
    }
    if (!decide(s, last, &plan, &decided)) /* a leaver alone carries the last step: it stays until others have it */
        plan_members(s, call, last, true, &plan);
    if (!decide(s, last, &plan, &decided)) {
        lead_kill_cut_off(s);
        lead_pending(lead, "an engine out of reach carries a later step; waiting for it, or for its lease to end");
        return false;
    }
    if (decided < call->snapshot_step && decided < last->decided_step)
        return propose_fresh(s, call, &plan);
    return propose_next_epoch(s, call, last, &plan, decided);
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

static bool propose_sizes(struct lead_step *s, const struct shoal_call *call)
{
    SHOAL_ASSERT(call->sizes.virtual_workers == 0);
    for (uint32_t i = 0; i < s->lead->worker_cap; i++) {
        const struct lworker *w = &s->lead->workers[i];
        struct shoal_job_entry *entry;

        if (!lworker_lives(w) || w->place.role != SHOAL_JOB_ENGINE || !w->reported ||
            w->report.phase != SHOAL_PHASE_READY || w->report.ready_call != call->call)
            continue;
        entry = lead_entry(s, SHOAL_JOB_ENTRY_SIZES);
        if (entry == NULL)
            return true;
        entry->u.call.call = call->call;
        entry->u.call.sizes = w->report.sizes;
        (void)lead_propose(s);
        return true;
    }
    return false;
}

/* Every engine must say the same; what differs in its numeric class cannot take part. */
static void check_sizes(struct lead_step *s, const struct shoal_call *call)
{
    struct shoal_lead *lead = s->lead;
    const struct shoal_call_sizes *want = &call->sizes;

    SHOAL_ASSERT(call->sizes.virtual_workers > 0);
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        struct lworker *w = &lead->workers[i];
        const struct shoal_call_sizes *has = &w->report.sizes;
        char why[SHOAL_HOST_WHY_BYTES];

        if (!lworker_lives(w) || w->place.role != SHOAL_JOB_ENGINE || w->report.phase != SHOAL_PHASE_READY ||
            w->report.ready_call != call->call)
            continue;
        if (strcmp(has->numeric_class, want->numeric_class) != 0) {
            w->leaving = true;
            (void)snprintf(why, sizeof(why), "its engines are of another numeric class (%.68s) than this call's (%.68s)",
                           has->numeric_class, want->numeric_class);
            lead_leave_out(lead, w->place.node, why);
            continue;
        }
        if (has->virtual_workers != want->virtual_workers || has->sum_elems != want->sum_elems ||
            has->copy_bytes != want->copy_bytes || has->samples != want->samples || has->minibatch != want->minibatch ||
            has->data_epochs != want->data_epochs || has->steps_per_epoch != want->steps_per_epoch)
            lead_fail(lead, -1,
                      "engines disagree: one has %llu samples, %llu gradient elements, %u mini-batches a step; another "
                      "%llu, %llu, "
                      "%u. The data set function and the model must give the same on every host",
                      (unsigned long long)want->samples, (unsigned long long)want->sum_elems, want->virtual_workers,
                      (unsigned long long)has->samples, (unsigned long long)has->sum_elems, has->virtual_workers);
    }
}

static void see_epoch(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    uint64_t word = shoal_epoch_word(lead->job->epoch->epoch);

    SHOAL_ASSERT(s->lead->job->epoch != NULL);
    if (word == lead->epoch_seen)
        return;
    lead->epoch_seen = word;
    lead->epoch_seen_ns = s->now_ns;
    lead->revoking = false;
    lead->closed_ns = 0;
    for (uint32_t i = 0; i < lead->host_cap; i++)
        lead->hosts[i].epoch_ns = 0;
    for (uint32_t i = 0; i < lead->worker_cap; i++)
        if (lead->workers[i].used && member_of(lead->job->epoch, lead->workers[i].place.worker_id) != NULL)
            lead->workers[i].was_member = true;
}

/* Leavers go when the epoch without them has completed a step; what they carried is then not needed any more. */
static void send_leavers_off(struct lead_step *s, const struct shoal_worker_epoch *last)
{
    struct shoal_lead *lead = s->lead;
    bool moved = last == NULL || (lead->step_call == last->call && lead->step > last->decided_step) ||
                 s->now_ns >= lead->epoch_seen_ns + LEAVE_NS;

    SHOAL_ASSERT(s->lead->worker_cap <= LEAD_WORKERS_MAX);
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        struct lworker *w = &lead->workers[i];

        if (!lworker_lives(w) || !w->leaving || member_of(last, w->place.worker_id) != NULL)
            continue;
        if (!moved && member_of(last, w->place.worker_id) == NULL && w->report.epoch.e != 0) {
            lead_wake(s, lead->epoch_seen_ns + LEAVE_NS);
            continue;
        }
        if (w->ended_ns == 0)
            w->ended_ns = s->now_ns;
        lead_order(s, w, SHOAL_ORDER_STOP, 0, "its slot goes to another job", SHOAL_STOP_SHRUNK,
                   lead->options.stop_grace_ns);
    }
}

/* An engine that says it cannot go on is replaced. */
static void stop_failed(struct lead_step *s)
{
    SHOAL_ASSERT(s->lead->worker_cap <= LEAD_WORKERS_MAX);
    for (uint32_t i = 0; i < s->lead->worker_cap; i++) {
        struct lworker *w = &s->lead->workers[i];

        if (!lworker_lives(w) || w->place.role != SHOAL_JOB_ENGINE || !w->report.failed)
            continue;
        if (w->ended_ns == 0) {
            w->ended_ns = s->now_ns;
            if (!lead_is_unfit(s->lead, w->place.node)) /* U1 */
                lead_failure(s);
        }
        lead_order(s, w, SHOAL_ORDER_STOP, 0, "it failed", SHOAL_STOP_ERROR, SHOAL_S);
    }
}

/* E4. */
static void kill_outcasts(struct lead_step *s, const struct shoal_worker_epoch *last)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(last == NULL || last->member_count > 0);
    if (last == NULL || lead->step_call != last->call || lead->step <= last->decided_step)
        return;
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        struct lworker *w = &lead->workers[i];

        if (!lworker_lives(w) || w->place.role != SHOAL_JOB_ENGINE || !w->reported || w->leaving || !outcast(w, last) ||
            w->report.ready_call != last->call || w->report.done_call == last->call)
            continue;
        if (w->ended_ns == 0)
            w->ended_ns = s->now_ns;
        lead_order(s, w, SHOAL_ORDER_KILL, 0, w->cut_off ? "its data links broke too often" : "", SHOAL_STOP_SUPERSEDED,
                   0);
    }
}

static bool any_done(const struct shoal_lead *lead, const struct shoal_call *call)
{
    SHOAL_ASSERT(call->call != 0);
    for (uint32_t i = 0; i < lead->worker_cap; i++)
        if (lead->workers[i].used && lead->workers[i].reported && lead->workers[i].report.done_call == call->call)
            return true;
    return false;
}

static bool any_writer(const struct shoal_lead *lead, const struct shoal_call *call)
{
    SHOAL_ASSERT(call->call != 0);
    for (uint32_t i = 0; i < lead->worker_cap; i++)
        if (lworker_lives(&lead->workers[i]) && lead->workers[i].report.done_call == call->call)
            return true;
    return false;
}

/* E6. */
void lead_on_shrunk(struct lead_step *s, const struct lhost *host)
{
    struct shoal_lead *lead = s->lead;
    const struct shoal_worker_epoch *in = &lead->scratch->in.u.epoch;
    const struct shoal_worker_epoch *last = lead->job->epoch;
    bool ours = last != NULL && in->call == last->call && in->epoch.e == last->epoch.e && in->epoch.k > last->epoch.k &&
                in->member_count > 0 && one_host(in) && shoal_node_id_equal(in->members[0].node, host->node);

    SHOAL_ASSERT(s->lead->scratch->in.kind == SHOAL_HOST_SHRUNK);
    SHOAL_ASSERT(s->lead->shrunk != NULL); /* elastic jobs only */
    for (uint32_t i = 0; ours && i < in->member_count; i++)
        ours = member_of(last, in->members[i].worker_id) != NULL;
    if (!ours) {
        lead->stats.stale++;
        return;
    }
    memcpy(lead->shrunk, in, sizeof(*in));
    lead->shrunk_due = true;
}

/* True: the host's epoch is on its way into the log; nothing is to be decided of the one before it. */
static bool propose_shrunk(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    struct shoal_job_entry *entry;

    SHOAL_ASSERT(s->lead->job->epoch != NULL);
    SHOAL_ASSERT(s->lead->shrunk != NULL); /* elastic jobs only */
    lead->shrunk_due = lead->shrunk_due && lead->shrunk->epoch.e == lead->job->epoch->epoch.e &&
                       lead->shrunk->epoch.k > lead->job->epoch->epoch.k;
    /* A member that died in it may have been dropped from the job since. */
    for (uint32_t i = 0; lead->shrunk_due && i < lead->shrunk->member_count; i++)
        lead->shrunk_due = shoal_job_find_worker(lead->job, lead->shrunk->members[i].worker_id) != NULL;
    if (!lead->shrunk_due)
        return false;
    entry = lead_entry(s, SHOAL_JOB_ENTRY_EPOCH);
    if (entry != NULL) {
        memcpy(&entry->u.epoch, lead->shrunk, sizeof(entry->u.epoch));
        (void)commit_epoch(s);
    }
    return true;
}

bool lead_epoch(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    const struct shoal_call *call = shoal_job_running_call(lead->job);
    const struct shoal_worker_epoch *last;
    struct plan plan;

    SHOAL_ASSERT(s->lead->job->spec.elastic ||
                 shoal_job_running_call(s->lead->job) == NULL); /* only elastic jobs have calls */
    if (call == NULL || lead->job->stop || lead->fail_text[0] != '\0')
        return false;
    see_epoch(s);
    if (lead->cut_off[0] != '\0' && s->now_ns >= lead->cut_off_ns)
        lead->cut_off[0] = '\0';
    else if (lead->cut_off[0] != '\0')
        lead_wake(s, lead->cut_off_ns);
    if (call->sizes.virtual_workers == 0)
        return propose_sizes(s, call);
    check_sizes(s, call);
    last = running(lead, call);
    send_leavers_off(s, last);
    kill_outcasts(s, last);
    stop_failed(s);
    if (lead->fail_text[0] != '\0')
        return false;
    if (call->state == SHOAL_CALL_DONE ? any_writer(lead, call) : any_done(lead, call))
        return false; /* it is over: lead_calls */
    if (last == NULL) {
        plan_members(s, call, NULL, false, &plan);
        return first_epoch(s, call, &plan);
    }
    if (propose_shrunk(s))
        return true;
    return next_epoch(s, call, last);
}

void lead_tell_epoch(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    const struct shoal_call *call = shoal_job_running_call(lead->job);
    const struct shoal_worker_epoch *last = call == NULL ? NULL : running(lead, call);

    SHOAL_ASSERT(s->lead->host_cap <= LEAD_HOSTS_MAX);
    if (last == NULL || shoal_job_state_ended((enum shoal_job_state)lead->job->state))
        return;
    for (uint32_t i = 0; i < lead->host_cap; i++) {
        struct lhost *host = &lead->hosts[i];
        bool owes = false;

        for (uint32_t w = 0; host->used && w < lead->worker_cap; w++) {
            const struct lworker *worker = &lead->workers[w];

            owes = owes || (lworker_lives(worker) && worker->place.role == SHOAL_JOB_ENGINE &&
                            shoal_node_id_equal(worker->place.node, host->node) &&
                            (host->epoch_sent != shoal_epoch_word(last->epoch) ||
                             (member_of(last, worker->place.worker_id) != NULL &&
                              shoal_epoch_cmp(worker->report.epoch, last->epoch) < 0)));
        }
        if (!owes)
            continue;
        if (host->epoch_ns != 0 && s->now_ns < host->epoch_ns + 2 * REPEAT_NS) {
            lead_wake(s, host->epoch_ns + 2 * REPEAT_NS);
            continue;
        }
        lead->scratch->out.kind = SHOAL_HOST_EPOCH;
        memcpy(&lead->scratch->out.u.epoch, last, sizeof(*last));
        if (!lead_send(s, host->node, 0))
            continue;
        host->epoch_ns = s->now_ns;
        host->epoch_sent = shoal_epoch_word(last->epoch);
        lead_wake(s, s->now_ns + 2 * REPEAT_NS);
    }
}
