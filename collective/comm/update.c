/* The update of the weights, slice by slice (shoal/collective_update.h).
 *
 *   sum of a slice --> in the cache still: gradient, old weights and state --> new ones, in the region of the slice's home
 *   reduced(s) by all, all with the same update --> the view of s shows all slices
 *
 * I1. A slice is written only after all members of the host have told something of the step, hence applied the one before:
 *     so nobody needs the vectors of two turns before, which lie in the same place.
 * I2. Who went out of the epoch may be late, and read them still: `update_begun` is raised before they are overwritten,
 *     and looked at after they were read.
 * I3. With one member on a host nothing is gained by a second copy: the caller updates in place. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"

#include "collective/memory/update.h"

#include "shoal/permute.h"
#include "shoal/step_record.h"

#include "shoal/banned.h"

void update_begin(struct shoal_comm *comm)
{
    comm->update.count = 0;
    comm->update.shown = 0;
    comm->update.last = NULL;
    atomic_store(&arena_my_words(&comm->arena)->updated, 0);
}

static uint64_t digest_part(uint64_t digest, const struct shoal_update_part *part)
{
    uint64_t words[SHOAL_UPDATE_NUMBERS / 2];

    digest = shoal_mix64(digest ^ part->begin);
    digest = shoal_mix64(digest ^ part->end);
    digest = shoal_mix64(digest ^ ((uint64_t)part->rule << 32 | part->flags));
    memcpy(words, part->numbers, sizeof(words));
    for (uint32_t i = 0; i < SHOAL_UPDATE_NUMBERS / 2; i++)
        digest = shoal_mix64(digest ^ words[i]);
    return digest;
}

/* Why the parts are no update of the whole vector; NULL: they are. */
static const char *fault_of(const struct shoal_comm *comm, const struct shoal_update_part *parts, uint32_t count)
{
    uint64_t end = 0;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t vectors = update_vectors(&parts[i]);

        if (vectors == 0 || parts[i].rule >= SHOAL_UPDATE_RULES)
            return "the rule is none";
        if (vectors > comm->plan.update_vectors)
            return "it has more vectors than the plan";
        if (parts[i].begin != end || parts[i].end < end)
            return "its parts are not next to each other";
        end = parts[i].end;
        for (uint32_t k = 0; k < vectors; k++)
            if (parts[i].from[k] == NULL && parts[i].end > parts[i].begin)
                return "a part has no address";
    }
    return end == comm->arena.layout.sum_elems ? NULL : "its parts are not the whole vector";
}

enum shoal_err shoal_step_update(struct shoal_comm *comm, uint64_t turn, const struct shoal_update_part *parts,
                                 uint32_t count)
{
    struct update *update = &comm->update;
    const char *fault = comm->planned ? fault_of(comm, parts, count) : "there is no plan";

    if (fault == NULL && (!comm->step.assigned || comm->step.contributed || comm->step.parted ||
                          comm->step.early.divisor != 0 || comm->step.step.kind != SHOAL_STEP_TRAIN))
        fault = "it comes after assign of a train step, and before a gradient";
    if (fault != NULL)
        return comm_fail(comm, SHOAL_ERR_INVALID, "an update of %u parts: %s", count, fault);
    if (count > update->cap) {
        struct shoal_update_part *more = realloc(update->parts, count * sizeof(*more));

        if (more == NULL)
            return comm_fail(comm, SHOAL_ERR_FULL, "no memory for an update of %u parts", count);
        update->parts = more;
        update->cap = count;
    }
    memcpy(update->parts, parts, count * sizeof(*parts));
    update->turn = turn;
    update->digest = turn;
    for (uint32_t i = 0; i < count; i++)
        update->digest = digest_part(update->digest, &parts[i]);
    update->last = update->parts;
    update->count = count;
    return SHOAL_OK;
}

static bool is_divided(const struct shoal_comm *comm)
{
    return comm->update.count > 0 && comm->epoch.local_count > 1 && comm->arena.layout.sum_elems > 0;
}

/* The part that has element `at`; pieces come one after the other, mostly. */
static const struct shoal_update_part *part_of(struct update *update, uint64_t at)
{
    uint32_t low = 0;
    uint32_t high = update->count;

    if (update->last->begin <= at && at < update->last->end)
        return update->last;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;

        if (update->parts[middle].begin <= at)
            low = middle;
        else
            high = middle;
    }
    update->last = &update->parts[low];
    SHOAL_ASSERT(update->last->begin <= at && at < update->last->end); /* they cover the vector */
    return update->last;
}

void update_slice(struct shoal_comm *comm, const uint8_t *g, uint64_t at, uint64_t len)
{
    const struct arena_layout *layout = &comm->arena.layout;
    uint64_t elem = at / sizeof(float);
    uint64_t end = (at + len) / sizeof(float);
    const float *gradient = (const float *)(const void *)g;

    if (!is_divided(comm))
        return;
    atomic_store(&arena_my_words(&comm->arena)->update_begun, comm->update.turn); /* I2 */
    while (elem < end) {
        const struct shoal_update_part *part = part_of(&comm->update, elem);
        uint64_t n = (part->end < end ? part->end : end) - elem;
        const float *from[SHOAL_UPDATE_VECTORS];
        float *into[SHOAL_UPDATE_VECTORS];

        for (uint32_t k = 0; k < update_vectors(part); k++) {
            from[k] = part->from[k] + (elem - part->begin);
            into[k] = (float *)(void *)(arena_mine(&comm->arena) + arena_update_at(layout, comm->update.turn, k)) + elem;
        }
        update_elements(part, gradient, from, into, (size_t)n);
        gradient += n;
        elem += n;
    }
    fault_point(&comm->fault, FAULT_MID_UPDATE, comm->step.step.step);
}

void update_end(struct shoal_comm *comm)
{
    struct arena_words *words = arena_my_words(&comm->arena);

    words->update_digest = comm->update.digest;
    if (is_divided(comm))
        atomic_store(&words->updated, comm->step.step.step);
}

enum shoal_err update_show(struct shoal_comm *comm)
{
    const struct epoch *epoch = &comm->epoch;
    uint64_t step = comm->step.step.step;
    struct arena_part parts[SHOAL_RANKS_MAX];
    enum shoal_err err;

    if (!is_divided(comm))
        return SHOAL_OK;
    for (uint32_t i = 0; i < epoch->local_count; i++) {
        const struct arena_words *words = epoch->peers[epoch->local[i]].words;

        if (atomic_load(&words->updated) != step || words->update_digest != comm->update.digest)
            return SHOAL_OK; /* U4 */
    }
    err = arena_show_update(&comm->arena, comm->update.turn, parts, step_slices(comm, parts), &comm->msg);
    if (err == SHOAL_OK)
        comm->update.shown = step;
    return err;
}

enum shoal_err shoal_step_updated(struct shoal_comm *comm, float *now[SHOAL_UPDATE_VECTORS])
{
    const struct arena_layout *layout = &comm->arena.layout;
    uint64_t step = comm->planned ? atomic_load(&comm->applied) : 0;

    if (step == 0 || comm->update.shown != step)
        return comm_fail(comm, SHOAL_ERR_NOT_FOUND, "step %llu was not updated here", (unsigned long long)step);
    for (uint32_t k = 0; k < SHOAL_UPDATE_VECTORS; k++)
        now[k] = k < layout->update_vectors
                     ? (float *)(void *)(comm->arena.views[comm->update.turn & 1].at + k * layout->vector_bytes)
                     : NULL;
    return SHOAL_OK;
}

/* I2. `address` lies in no view, or nobody has begun to overwrite what that one shows. */
static bool is_intact(const struct shoal_comm *comm, const float *address)
{
    const struct arena_layout *layout = &comm->arena.layout;
    bool intact = true;

    for (int v = 0; v < 2; v++) {
        const struct arena_view *view = &comm->arena.views[v];
        uintptr_t offset = (uintptr_t)address - (uintptr_t)view->at;

        for (uint32_t i = 0; i < view->count && offset < layout->update_vectors * layout->vector_bytes; i++)
            intact = intact && atomic_load(&comm->arena.words[view->parts[i].slot]->update_begun) <= view->turn + 1;
    }
    return intact;
}

enum shoal_err shoal_update_run(struct shoal_comm *comm, const struct shoal_update_part *parts, uint32_t count)
{
    const char *fault = comm->planned ? fault_of(comm, parts, count) : "there is no plan";
    const float *g = (const float *)(const void *)comm->arena.map;

    for (uint32_t i = 0; i < count && fault == NULL; i++)
        for (uint32_t k = 0; k < update_vectors(&parts[i]); k++)
            if (parts[i].into[k] == NULL && parts[i].end > parts[i].begin)
                fault = "a part has nowhere to go";
    if (fault != NULL)
        return comm_fail(comm, SHOAL_ERR_INVALID, "an update of %u parts: %s", count, fault);
    for (uint32_t i = 0; i < count; i++)
        update_elements(&parts[i], g + parts[i].begin, parts[i].from, parts[i].into,
                        (size_t)(parts[i].end - parts[i].begin));
    atomic_thread_fence(memory_order_seq_cst);
    if (count > 0 && !is_intact(comm, parts[0].from[0]))
        return comm_fail(comm, SHOAL_ERR_STALE, "the weights before step %llu were overwritten: others went on without me",
                         (unsigned long long)atomic_load(&comm->applied));
    return SHOAL_OK;
}

enum shoal_err shoal_update_keep(struct shoal_comm *comm, const float *weights)
{
    struct arena_view *view = comm->arena.views;

    for (int v = 0; v < 2; v++, view++) {
        if (!comm->planned || view->count == 0 || (const void *)view->at != (const void *)weights)
            continue;
        if (view->turn == comm->update.turn)
            comm->update.shown = 0;
        return arena_keep_update(&comm->arena, view, &comm->msg);
    }
    return comm_fail(comm, SHOAL_ERR_INVALID, "no updated weights are shown there");
}
