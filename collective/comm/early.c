/* Sums while backward still runs (reference/data-plane 11.7).
 *
 *   a worker's last mini-batch, gradients from the end:     [ not there yet | apart | final ............ ]
 *                                                                                   ^ one word, by page
 *   who owns a slice:                                  [ ........ my slice: rest | added up in this step ]
 *
 * E1. A page is told as final once its sum over all my mini-batches of the step lies where my nodes say, and the number
 *     of my samples is told before it. It is not written again before the step is applied (I1 of step.c).
 * E2. A slice is added up as far as every member of the host, in this step of this epoch, has it final: so all of them
 *     have applied the step before, and nobody reads its result any more.
 * E3. Who gives a mini-batch anew has told a page too early. It says so before it contributes, and each owner then adds
 *     up its whole slice once all have contributed.
 * E4. What is added up is the same sum, in the same order, divided by the same number, as without all this.
 *
 * The sums are made within the call that brings a part, or while waiting for others: where each core has a worker, a
 * thread for them would take the time of a backward. Only within a host; the epoch's other hosts get what is whole. */
#include "comm.h"

#include "shoal/banned.h"

#define PAGE_BITS 40
#define WORTH_BYTES (256 * SHOAL_KIB) /* less than that is added to what comes next */

static uint64_t early_word(uint64_t step, uint64_t page)
{
    SHOAL_ASSERT(page >> PAGE_BITS == 0);
    return step << PAGE_BITS | page;
}

void early_begin(struct shoal_comm *comm)
{
    uint64_t begin;
    uint64_t bytes = comm->arena.layout.sum_elems * sizeof(float);

    comm->step.early = (struct early){ .final_from = bytes };
    exchange_slice(&comm->epoch, bytes, comm->epoch.rank, &begin, &comm->step.early.done_from);
    atomic_store(&arena_my_words(&comm->arena)->early, 0);
    atomic_store(&arena_my_words(&comm->arena)->early_void, 0);
}

/* Take [begin, end) into what is final, and what lay apart and is next to it now. false: too many pieces. */
static bool grow_final(struct early *early, uint64_t begin, uint64_t end)
{
    if (end != early->final_from) {
        if (early->apart_count == EARLY_GAPS_MAX)
            return false;
        early->apart[early->apart_count].begin = begin;
        early->apart[early->apart_count++].end = end;
        return true;
    }
    early->final_from = begin;
    for (uint32_t i = 0; i < early->apart_count;) {
        if (early->apart[i].end != early->final_from) {
            i++;
            continue;
        }
        early->final_from = early->apart[i].begin;
        early->apart[i] = early->apart[--early->apart_count];
        i = 0; /* at most EARLY_GAPS_MAX times */
    }
    return true;
}

static bool may_be_early(const struct shoal_comm *comm)
{
    return comm->step.early.on && !comm->step.early.off && comm->epoch.hosts == 1 && comm->epoch.local_count > 1;
}

static uint64_t my_samples(struct shoal_comm *comm, uint32_t samples)
{
    struct arena_block *block =
        arena_block_at(arena_mine(&comm->arena), comm->arena.layout.contribution_at);
    uint64_t sum = samples;

    for (uint32_t v = comm->step.begin; v < comm->step.end; v++)
        sum += arena_tuple(&comm->arena.layout, block, v)->samples;
    return sum;
}

/* E1. */
static void tell(struct shoal_comm *comm, uint32_t samples)
{
    struct arena_words *words = arena_my_words(&comm->arena);
    uint64_t page = (comm->step.early.final_from + ARENA_PAGE - 1) / ARENA_PAGE;
    uint64_t word = early_word(comm->step.step.step, page);
    uint64_t before = atomic_load(&words->early);

    if (before == word || page * ARENA_PAGE >= comm->arena.layout.vector_bytes)
        return;
    if (before == 0) {
        words->node_count = comm->step.part_held.count;
        for (uint32_t i = 0; i < words->node_count; i++)
            words->nodes[i] = (struct arena_node){ comm->step.part_held.nodes[i].begin,
                                                   comm->step.part_held.nodes[i].end, comm->step.part_held.buffer[i] };
        words->early_samples = my_samples(comm, samples);
    }
    if (comm_say(comm, &words->early, word, NULL) != SHOAL_OK)
        comm->step.early.off = true; /* revoked: publish says so */
}

void early_part(struct shoal_comm *comm, uint32_t samples, uint64_t offset, uint64_t elems)
{
    struct early *early = &comm->step.early;

    if (!may_be_early(comm))
        return;
    if (!grow_final(early, offset * sizeof(float), (offset + elems) * sizeof(float))) {
        early->off = true;
        return;
    }
    tell(comm, samples);
    fault_point(&comm->fault, FAULT_MID_PARTS, comm->step.step.step);
    early_reduce(comm);
}

void early_forget(struct shoal_comm *comm)
{
    struct arena_words *words = arena_my_words(&comm->arena);

    comm->step.early.off = true;
    if (atomic_load(&words->early) != 0) /* E3 */
        (void)comm_say(comm, &words->early_void, comm->step.step.step, NULL);
}

/* The byte from which on all members of my host are final; false: some are not in this step yet. */
static bool all_final_from(const struct shoal_comm *comm, uint64_t *from, uint64_t *samples)
{
    const struct epoch *epoch = &comm->epoch;
    uint64_t mask = (1ull << PAGE_BITS) - 1;

    *from = *samples = 0;
    for (uint32_t i = 0; i < epoch->local_count; i++) {
        const struct arena_words *words = epoch->peers[epoch->local[i]].words;
        uint64_t word = atomic_load(&words->early);

        if (atomic_load(&words->epoch) != epoch->word || word >> PAGE_BITS == 0 ||
            word >> PAGE_BITS != (comm->step.step.step << PAGE_BITS >> PAGE_BITS))
            return false;
        if ((word & mask) * ARENA_PAGE > *from)
            *from = (word & mask) * ARENA_PAGE;
        *samples += words->early_samples;
    }
    return true;
}

void early_reduce(struct shoal_comm *comm)
{
    struct early *early = &comm->step.early;
    uint64_t begin;
    uint64_t end;
    uint64_t from;
    uint64_t samples;

    if (!may_be_early(comm) || !all_final_from(comm, &from, &samples)) /* E2 */
        return;
    exchange_slice(&comm->epoch, comm->arena.layout.sum_elems * sizeof(float), comm->epoch.rank, &begin, &end);
    from = from > begin ? from : begin;
    if (from >= early->done_from || (from > begin && early->done_from - from < WORTH_BYTES))
        return;
    step_exchange(comm, comm->exchange);
    comm->exchange->may_fault = false;
    comm->exchange->divisor = early->divisor = (float)samples;
    fault_point(&comm->fault, FAULT_MID_EARLY, comm->step.step.step);
    if (exchange_part(comm, comm->exchange, from, early->done_from) != SHOAL_OK) {
        early->off = true; /* revoked: publish says so */
        return;
    }
    early->digest += comm->exchange->digest;
    early->done_from = from;
}

void early_end(struct shoal_comm *comm, struct exchange *exchange)
{
    const struct early *early = &comm->step.early;
    const struct epoch *epoch = &comm->epoch;

    if (early->divisor == 0)
        return; /* nothing is added up */
    for (uint32_t i = 0; i < epoch->local_count; i++)
        if (atomic_load(&epoch->peers[epoch->local[i]].words->early_void) == comm->step.step.step)
            return; /* E3 */
    SHOAL_ASSERT(early->divisor == exchange->divisor); /* E4 */
    exchange->rest = true;
    exchange->rest_end = early->done_from;
    exchange->digest = early->digest;
}
