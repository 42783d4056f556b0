/* The local shrink (S7 of shoal/slots.h; PROTOCOLS 7 and 12): of an epoch (e,k) whose members are all on this host,
 * this host makes (e,k+1) without a dead one, and waits for no log.
 *
 *   a member dies --> (e,k) revoked here --> the others' CLOSED --> D, holder, ranges --> EPOCH (e,k+1) to them
 *                                                                                    --> SHRUNK to the leader
 *
 * K1. It begins only with this host's own word for the revoke: if the leader has revoked (e,k), or a CLOSED of it was
 *     reported, the group may be deciding the next epoch, and that one wins.
 * K2. While it lasts, nothing of the epoch's members is reported: a CLOSED would let the group decide. It lasts as long
 *     as libraries take to close, and SHRINK_NS at most; then all is told, and the group decides.
 * K3. SHRUNK goes out before the report of the death, on the same link: the group is not asked to decide what is
 *     decided. */
#include "sched/lead/epoch_next.h"
#include "slots_state.h"
#include "shoal/banned.h"

#define SHRINK_NS (300 * SHOAL_MS)

static bool all_here(const struct shoal_slots *slots, const struct shoal_worker_epoch *epoch)
{
    SHOAL_ASSERT(epoch->member_count <= SHOAL_RANKS_MAX);
    for (uint32_t i = 0; i < epoch->member_count; i++)
        if (!shoal_node_id_equal(epoch->members[i].node, slots->options.self))
            return false;
    return epoch->member_count > 1;
}

/* It takes part in the next epoch, if it has closed this one. */
static bool survives(const struct worker *worker)
{
    SHOAL_ASSERT(worker == NULL || worker->used);
    return worker != NULL && worker_lives(worker) && !worker->report.stuck && !worker->report.failed &&
           !worker->frozen && worker->kill_ns == 0 && !worker->stop && !worker->release;
}

void slots_shrink_begin(struct slots_step *s, struct hjob *job)
{
    const struct shoal_worker_epoch *epoch = slots_epoch(s->slots, job);

    SHOAL_ASSERT(job->revoked == shoal_epoch_word(epoch->epoch)); /* K1: by this host's own word, and just now */
    SHOAL_ASSERT(job->used);
    if (!all_here(s->slots, epoch))
        return;
    for (uint32_t i = 0; i < epoch->member_count; i++) {
        const struct worker *worker = slots_find_worker(s->slots, epoch->members[i].worker_id);

        if (worker != NULL && (worker->report.closed || worker->report.done_call == epoch->call))
            return; /* K1; or it is over */
    }
    job->shrinking = shoal_epoch_word(epoch->epoch);
    job->shrink_ns = s->now_ns + SHRINK_NS;
}

bool slots_shrink_withholds(const struct shoal_slots *slots, const struct hjob *job, const struct worker *worker)
{
    const struct shoal_worker_epoch *epoch = slots_epoch(slots, job);

    SHOAL_ASSERT(job->used);
    if (job->shrinking == 0)
        return false;
    for (uint32_t i = 0; i < epoch->member_count; i++)
        if (epoch->members[i].worker_id == worker->place.worker_id)
            return true;
    return false;
}

/* The survivors and what they carry. False: somebody has not closed yet. */
static bool gather(struct shoal_slots *slots, const struct shoal_worker_epoch *last, struct epoch_carrier *carriers,
                   uint32_t *count)
{
    SHOAL_ASSERT(last->member_count <= SHOAL_RANKS_MAX);
    *count = 0;
    for (uint32_t i = 0; i < last->member_count; i++) {
        const struct worker *worker = slots_find_worker(slots, last->members[i].worker_id);

        if (!survives(worker))
            continue;
        if (!worker->report.closed || shoal_epoch_cmp(worker->report.epoch, last->epoch) != 0)
            return false;
        carriers[(*count)++] = (struct epoch_carrier){ .before = &last->members[i],
                                                       .closed = true,
                                                       .applied_step = worker->report.applied_step,
                                                       .complete_step = worker->report.complete_step };
    }
    return true;
}

/* False: nobody carries the state, or less than what the epoch began with: the group decides. */
static bool make_next(struct slots_step *s, const struct hjob *job, const struct shoal_worker_epoch *last,
                      const struct epoch_carrier *carriers, uint32_t count)
{
    struct shoal_worker_epoch *next = &s->slots->out.u.epoch; /* scratch */
    const struct worker *first = count == 0 ? NULL : slots_find_worker(s->slots, carriers[0].before->worker_id);
    uint64_t decided = 0;
    bool state = false;

    SHOAL_ASSERT(count <= last->member_count); /* S7: nobody joins an epoch that the host makes */
    for (uint32_t i = 0; i < count; i++) {
        uint64_t carried =
            carriers[i].applied_step > carriers[i].complete_step ? carriers[i].applied_step : carriers[i].complete_step;

        decided = carried > decided ? carried : decided;
        state = state || lead_epoch_carries_state(&carriers[i], last);
    }
    if (!state || decided < last->decided_step || first->report.sizes.virtual_workers == 0)
        return false;
    memset(next, 0, offsetof(struct shoal_worker_epoch, members));
    next->epoch = (struct shoal_epoch){ .e = last->epoch.e, .k = last->epoch.k + 1 };
    next->call = last->call;
    next->decided_step = decided;
    next->records_acked = job->call == last->call && job->mark > last->records_acked ? job->mark : last->records_acked;
    next->member_count = count;
    for (uint32_t i = 0; i < count; i++)
        memcpy(&next->members[i], carriers[i].before, sizeof(next->members[i]));
    lead_epoch_next_states(next, carriers, last);
    lead_epoch_next_ranges(next, carriers, last, first->report.sizes.virtual_workers);
    return true;
}

void slots_shrink_turn(struct slots_step *s, struct hjob *job)
{
    struct shoal_worker_epoch *epoch = slots_epoch(s->slots, job);
    struct epoch_carrier carriers[SHOAL_RANKS_MAX];
    uint32_t count;

    SHOAL_ASSERT(job->used);
    SHOAL_ASSERT(job->shrinking == 0 || job->revoked >= job->shrinking); /* K1 */
    if (job->shrinking == 0)
        return;
    if (job->revoked > job->shrinking || s->now_ns >= job->shrink_ns) { /* the leader ends it, or a library is slow */
        job->shrinking = 0;
        return;
    }
    if (!gather(s->slots, epoch, carriers, &count)) {
        if (job->shrink_ns < s->slots->deadline_ns)
            s->slots->deadline_ns = job->shrink_ns;
        return;
    }
    job->shrinking = 0;
    if (!make_next(s, job, epoch, carriers, count))
        return;
    shoal_worker_epoch_copy(epoch, &s->slots->out.u.epoch);
    slots_item_touch(job, &job->shrunk);
    s->slots->stats.shrinks++;
    s->slots->table_version++;
}
