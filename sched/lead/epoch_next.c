#include "epoch_next.h"

#include "shoal/banned.h"

static uint64_t carried(const struct epoch_carrier *carrier)
{
    SHOAL_ASSERT(carrier->before != NULL || !carrier->closed); /* a joiner has left nothing */
    return carrier->applied_step > carrier->complete_step ? carrier->applied_step : carrier->complete_step;
}

bool lead_epoch_carries_state(const struct epoch_carrier *carrier, const struct shoal_worker_epoch *last)
{
    SHOAL_ASSERT(carrier->before != NULL); /* a joiner has left nothing */
    return carrier->before->has_state || (last->decided_step > 0 && carrier->applied_step >= last->decided_step);
}

void lead_epoch_next_states(struct shoal_worker_epoch *next, const struct epoch_carrier *carriers,
                       const struct shoal_worker_epoch *last)
{
    uint64_t decided = next->decided_step;

    SHOAL_ASSERT(next->member_count > 0 && next->member_count <= SHOAL_RANKS_MAX);
    SHOAL_ASSERT(last->member_count <= SHOAL_RANKS_MAX);
    next->holder = next->donor = 0;
    for (uint32_t i = 0; i < next->member_count; i++) {
        const struct epoch_carrier *c = &carriers[i];
        struct shoal_rank_member *m = &next->members[i];

        if (c->before == NULL)
            m->has_state = decided == 0;
        else if (!c->closed)
            m->has_state = last->snapshot_path[0] == '\0'; /* E3 of lead_epoch.c; it may not have loaded that */
        else
            m->has_state = c->applied_step + 1 >= decided && (c->before->has_state || c->applied_step > 0);
        if (next->holder == 0 && decided > 0 && c->closed && carried(c) >= decided)
            next->holder = m->worker_id;
    }
    for (uint32_t i = 0; i < next->member_count; i++)
        if (next->donor == 0 && decided > 0 && next->members[i].has_state)
            next->donor = next->members[i].worker_id;
}

/* The range that member `i` of the last epoch holds in the step that is broken off: its record's range in the epoch's
 * first step, the balanced one in later steps. */
static void range_before(const struct shoal_worker_epoch *last, uint32_t virtual_workers, uint64_t decided, uint32_t i,
                         uint32_t *begin, uint32_t *end)
{
    SHOAL_ASSERT(i < last->member_count);
    if (decided == last->decided_step) {
        *begin = last->members[i].v_begin;
        *end = last->members[i].v_end;
        return;
    }
    shoal_balanced_range(virtual_workers, last->member_count, i, begin, end);
}

void lead_epoch_next_ranges(struct shoal_worker_epoch *next, const struct epoch_carrier *carriers,
                       const struct shoal_worker_epoch *last, uint32_t virtual_workers)
{
    uint32_t survivors = 0;

    SHOAL_ASSERT(next->member_count > 0 && next->member_count <= SHOAL_RANKS_MAX);
    SHOAL_ASSERT(carriers[0].before != NULL); /* somebody carries the state on */
    while (survivors < next->member_count && carriers[survivors].before != NULL)
        survivors++;
    for (uint32_t i = 0; i < survivors; i++)
        range_before(last, virtual_workers, next->decided_step, (uint32_t)(carriers[i].before - last->members),
                     &next->members[i].v_begin, &next->members[i].v_end);
    next->members[0].v_begin = 0;
    for (uint32_t i = 0; i + 1 < survivors; i++) {
        uint32_t from = next->members[i].v_end, to = next->members[i + 1].v_begin;

        if (from < to)
            from += (to - from + 1) / 2;
        next->members[i].v_end = from;
        next->members[i + 1].v_begin = from;
        if (next->members[i + 1].v_end < from)
            next->members[i + 1].v_end = from;
    }
    next->members[survivors - 1].v_end = virtual_workers;
    for (uint32_t i = survivors; i < next->member_count; i++) {
        next->members[i].v_begin = virtual_workers;
        next->members[i].v_end = virtual_workers;
    }
}
