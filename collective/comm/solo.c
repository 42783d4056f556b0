/* A communicator of one, outside of Shoal: what an agent would answer, at once and in this process. */
#include <string.h>

#include "comm.h"

#include "shoal/banned.h"

static void solo_epoch(struct shoal_comm *comm)
{
    struct shoal_worker_epoch *next = comm->next;

    memset(next, 0, sizeof(*next));
    next->epoch = (struct shoal_epoch){ .e = (uint32_t)(comm->seen_epoch >> 32) + 1 };
    next->call = comm->plan.call;
    next->decided_step = atomic_load(&comm->complete);
    next->holder = next->decided_step == 0 ? 0 : comm->hello.worker_id;
    next->records_acked = comm->records.acked;
    next->member_count = 1;
    next->members[0].worker_id = comm->hello.worker_id;
    next->members[0].v_end = comm->plan.virtual_workers;
    next->members[0].has_state = next->decided_step > 0;
    comm->next_valid = true;
}

void solo_turn(struct shoal_comm *comm)
{
    uint32_t unsent = comm->agent.unsent;

    comm->agent.unsent = 0;
    if (comm->planned && comm->records.count > 0)
        records_ack(&comm->records, comm->complete);
    if (unsent & (FACT_READY | FACT_CLOSED) && !comm->finished)
        solo_epoch(comm);
    if (unsent & FACT_DONE)
        comm->write_final = true;
    if (unsent & (FACT_FILES | FACT_FAILED)) {
        comm->released = (unsent & FACT_FILES) != 0;
        comm->stop_message =
            (struct shoal_worker_stop){ .reason = comm->released ? SHOAL_STOP_USER : SHOAL_STOP_ERROR };
        atomic_store(&comm->stop, true);
    }
}

void solo_call(struct shoal_comm *comm)
{
    atomic_store(&comm->stop, false); /* the call before may be over */
    comm->call = (struct shoal_worker_call){ .call = comm->planned ? comm->plan.call + 1 : 1 };
    comm->call_valid = true;
}
