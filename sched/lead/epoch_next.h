/* The members of a next epoch, whoever decides it: the job's leader, or the one host that holds all of them
 * (PROTOCOLS 7 and 12). The caller has filled member_count, worker ids and decided_step. Pure. */
#ifndef SCHED_EPOCH_NEXT_H
#define SCHED_EPOCH_NEXT_H

#include "shoal/worker.h"

/* One member of the next epoch. */
struct epoch_carrier {
    const struct shoal_rank_member *before; /* its place in the last epoch; NULL: a joiner */
    bool closed;                            /* it has said where it left: the steps below are known */
    uint64_t applied_step, complete_step;
};

/* has_state of each member, holder and donor (I3 of shoal/worker.h). */
void lead_epoch_next_states(struct shoal_worker_epoch *next, const struct epoch_carrier *carriers,
                       const struct shoal_worker_epoch *last);
/* Survivors (they come first) keep what they computed of the step that is broken off; a gap between two goes half to
 * each, one at an end to the neighbour. Joiners get nothing in this step. */
void lead_epoch_next_ranges(struct shoal_worker_epoch *next, const struct epoch_carrier *carriers,
                       const struct shoal_worker_epoch *last, uint32_t virtual_workers);
/* It left the last epoch with a state: it had one when it entered, or was given one in it. */
bool lead_epoch_carries_state(const struct epoch_carrier *carrier, const struct shoal_worker_epoch *last);

#endif
