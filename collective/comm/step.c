/* A training step is a transaction (PROTOCOLS 11; EasyScale, SC 2023; reference/data-plane 11.3).
 *
 *   assign   which v are mine and not held           publish   work buffer -> partial sums, tuple, touched, buffers
 *   reduce   contributed(s) by all -> my slices -> reduced(s) by all -> commit block
 *   complete say that I have it                      apply_allowed   completed(s) by all -> the record is kept
 *
 * I1. A contribution is write-once: from contributed(s) until s is applied, its sums, tuples and buffers stand; a retry
 *     reads the same inputs.
 * I2. The result is out of place, in slices written by one worker each; who died changes nothing that others read.
 * I3. After a revoke the partial sums stay, and assign names only what is missing from the new range. */
#include <string.h>

#include "comm.h"

#include "shoal/step_record.h"

#include "shoal/banned.h"

static struct arena_block *my_contribution(struct shoal_comm *comm)
{
    return arena_block_at(arena_mine(&comm->arena), comm->arena.layout.contribution_at);
}

static struct arena_block *my_commit(struct shoal_comm *comm)
{
    return arena_block_at(arena_mine(&comm->arena), comm->arena.layout.commit_at);
}

void step_reset(struct shoal_comm *comm) { comm->step = (struct step_state){ 0 }; }

static void begin_step(struct shoal_comm *comm, const struct shoal_step *step)
{
    struct arena_block *block = my_contribution(comm);

    comm->step = (struct step_state){ .step = *step };
    tree_held_reset(&comm->step.held, step->v_count, tree_buffers(comm->plan.virtual_workers));
    memset(arena_touched(block), 0, comm->arena.layout.touched_bytes);
    for (uint32_t v = 0; v < step->v_count; v++)
        arena_tuple(&comm->arena.layout, block, v)->samples = 0;
}

/* Keep what lies in my range, forget the tuples of the rest: its v are computed by their new owner. */
static void keep_range(struct shoal_comm *comm)
{
    struct step_state *state = &comm->step;
    struct arena_block *block = my_contribution(comm);
    uint32_t node = 0;

    tree_held_keep(&state->held, state->begin, state->end);
    for (uint32_t v = 0; v < state->step.v_count; v++) {
        while (node < state->held.count && state->held.nodes[node].end <= v)
            node++;
        if (node == state->held.count || v < state->held.nodes[node].begin)
            arena_tuple(&comm->arena.layout, block, v)->samples = 0;
    }
}

static bool records_ready(struct shoal_comm *comm, uint64_t bytes)
{
    bool room;

    (void)pthread_mutex_lock(&comm->lock);
    room = records_have_room(&comm->records, (uint32_t)bytes);
    (void)pthread_mutex_unlock(&comm->lock);
    return room;
}

static enum shoal_err wait_for_room(struct shoal_comm *comm, uint32_t v_count)
{
    uint32_t bytes = record_bytes(v_count, comm->plan.metric_count);

    if (records_ready(comm, bytes))
        return SHOAL_OK;
    comm->records.waits++;
    return comm_wait(comm, records_ready, bytes);
}

static enum shoal_err check_step(struct shoal_comm *comm, const struct shoal_step *step)
{
    if (comm->epoch.size == 0 || !comm->planned)
        return comm_fail(comm, SHOAL_ERR_INVALID, "assign outside of an epoch");
    if (comm->stateless)
        return comm_fail(comm, SHOAL_ERR_INVALID, "assign before the state was taken");
    if (step->step != atomic_load(&comm->applied) + 1)
        return comm_fail(comm, SHOAL_ERR_INVALID, "step %llu assigned, but step %llu is the last one applied",
                         (unsigned long long)step->step, (unsigned long long)atomic_load(&comm->applied));
    if (step->v_count == 0 || step->v_count > comm->plan.virtual_workers || step->kind >= SHOAL_STEP_KIND_COUNT)
        return comm_fail(comm, SHOAL_ERR_INVALID, "a step of kind %u with %u mini-batches, where V is %u", step->kind,
                         step->v_count, comm->plan.virtual_workers);
    return SHOAL_OK;
}

static void add_vector(struct shoal_comm *comm, const struct tree_add *add, uint32_t samples, bool parted)
{
    const struct arena_layout *layout = &comm->arena.layout;
    uint8_t *region = arena_mine(&comm->arena);
    const float *work = (const float *)(const void *)(region + layout->work_at);
    float *into = arena_partial(layout, region, add->buffer);
    size_t n = (size_t)layout->sum_elems;

    if (add->store && !parted)
        comm->kernels->scale_f32(into, work, (float)samples, n);
    else if (!add->store)
        comm->kernels->scale_add_f32(into, work, (float)samples, n);
    for (uint32_t i = 0; i < add->merge_count; i++) {
        into = arena_partial(layout, region, add->merges[i].into);
        comm->kernels->add_f32(into, into, arena_partial(layout, region, add->merges[i].from), n);
    }
}

/* More is to be computed here than was: the leaf that lies by itself, weighted, makes room. */
static void merge_leaf(struct shoal_comm *comm)
{
    struct tree_add add;

    if (tree_held_merge(&comm->step.held, &add))
        add_vector(comm, &add, 1, false);
}

enum shoal_err shoal_step_assign(struct shoal_comm *comm, const struct shoal_step *step, uint32_t *v, uint32_t cap,
                                 uint32_t *count)
{
    struct step_state *state = &comm->step;
    uint64_t closed_ns;
    uint64_t now_ns;
    enum shoal_err err;

    op_drain(comm);
    err = check_step(comm, step);
    if (err == SHOAL_OK && cap < step->v_count)
        err = comm_fail(comm, SHOAL_ERR_INVALID, "room for %u of %u mini-batches", cap, step->v_count);
    if (err == SHOAL_OK)
        err = wait_for_room(comm, step->v_count);
    if (err != SHOAL_OK)
        return err;
    if (epoch_is_revoked(comm)) {
        epoch_close(comm);
        return comm_fail(comm, SHOAL_ERR_RANK_LOST, "epoch %u.%u is revoked", comm->epoch.id.e, comm->epoch.id.k);
    }
    if (state->kept || memcmp(&state->step, step, sizeof(*step)) != 0)
        begin_step(comm, step); /* kept: what its caller has of it is of the epoch before */
    state->contributed = state->reduced = state->parted = state->placed = false;
    state->fused = (struct tree_node){ 0, 0 };
    state->assigned = true;
    epoch_range(comm, step->step, step->v_count, comm->epoch.rank, &state->begin, &state->end);
    keep_range(comm);
    early_begin(comm);
    update_begin(comm);
    *count = tree_held_missing(&state->held, state->begin, state->end, v, cap);
    if (*count > 0)
        merge_leaf(comm);
    atomic_store(&comm->words->started_step, step->step);
    atomic_store(&comm->words->activity,
                 step->kind == SHOAL_STEP_TRAIN ? SHOAL_ACTIVITY_COMPUTING : SHOAL_ACTIVITY_VALIDATING);
    now_ns = comm_now_ns();
    closed_ns = atomic_exchange(&comm->closed_ns, 0);
    if (closed_ns != 0)
        atomic_store(&comm->words->join_pause_ns, now_ns - closed_ns);
    atomic_store(&comm->words->computing_ns, now_ns);
    return SHOAL_OK;
}

/* The tree node that a gradient of v stands for, mostly v alone. */
static struct tree_node node_of(const struct step_state *state, uint32_t v)
{
    bool fused = state->fused.end > state->fused.begin && v == state->fused.begin;

    return fused ? state->fused : (struct tree_node){ v, v + 1 };
}

static uint32_t weight_of(const struct step_state *state, uint32_t v, uint32_t samples)
{
    return node_of(state, v).end - v > 1 ? state->fused_samples : samples;
}

enum shoal_err shoal_step_keep(struct shoal_comm *comm)
{
    struct step_state *state = &comm->step;

    if (!state->assigned || state->contributed || state->parted || state->held.count > 0 || comm->epoch.size != 1 ||
        state->step.kind != SHOAL_STEP_TRAIN)
        return comm_fail(comm, SHOAL_ERR_INVALID,
                         "the gradient of step %llu cannot be kept: that is for a train step of a lone member, of which no "
                         "sum is held yet",
                         (unsigned long long)state->step.step);
    state->kept = true;
    return SHOAL_OK;
}

enum shoal_err shoal_step_fuse(struct shoal_comm *comm, uint32_t v, uint32_t count, uint32_t samples)
{
    struct step_state *state = &comm->step;
    struct tree_held held = state->held;
    struct tree_node node = { v, v + count };
    struct tree_add add;

    if (!state->assigned || state->contributed || count == 0 || count > state->step.v_count || samples < count ||
        v < state->begin || v + count > state->end || state->step.kind != SHOAL_STEP_TRAIN || state->parted ||
        !tree_held_add_node(&held, node, &add))
        return comm_fail(comm, SHOAL_ERR_INVALID, "mini-batches %u to %u of %u samples cannot be computed as one here",
                         v, v + count, samples);
    state->fused = node;
    state->fused_samples = samples;
    return SHOAL_OK;
}

/* The first part of a mini-batch says where all of them go: as its publish will, which holds the sum. */
static enum shoal_err begin_parts(struct shoal_comm *comm, uint32_t v, uint32_t samples)
{
    struct step_state *state = &comm->step;
    struct tree_node node = node_of(state, v);
    uint32_t missing[SHOAL_VIRTUAL_MAX];

    state->part_held = state->held;
    if (!state->assigned || state->contributed || state->kept || v < state->begin || v >= state->end || samples == 0 ||
        state->step.kind != SHOAL_STEP_TRAIN || samples != weight_of(state, v, samples) ||
        !tree_held_add_node(&state->part_held, node, &state->part))
        return comm_fail(comm, SHOAL_ERR_INVALID, "a part of mini-batch %u of %u samples, which was not assigned here",
                         v, samples);
    state->early.on = tree_held_missing(&state->held, state->begin, state->end, missing, node.end - v + 1) ==
                      node.end - v;
    if (state->early.on && (!state->part.store || state->part.merge_count > 0)) {
        bool put; /* the last one: whoever adds up the step adds it, in no pass of its own */

        state->part_held = state->held;
        put = tree_held_put(&state->part_held, node, &state->part);
        SHOAL_ASSERT(put); /* it could be added just now */
    }
    state->parted = true;
    state->part_v = v;
    state->part_samples = samples;
    return SHOAL_OK;
}

static float *parts_go_to(struct shoal_comm *comm)
{
    const struct arena_layout *layout = &comm->arena.layout;
    uint8_t *region = arena_mine(&comm->arena);

    return comm->step.part.store ? arena_partial(layout, region, comm->step.part.buffer)
                                 : (float *)(void *)(region + layout->work_at);
}

enum shoal_err shoal_step_place(struct shoal_comm *comm, uint32_t v, uint32_t samples, float **into)
{
    struct step_state *state = &comm->step;
    enum shoal_err err;

    op_drain(comm);
    if (state->parted)
        return comm_fail(comm, SHOAL_ERR_INVALID, "a place for mini-batch %u, while parts of %u are on their way", v,
                         state->part_v);
    err = begin_parts(comm, v, samples);
    if (err != SHOAL_OK)
        return err;
    state->placed = true;
    *into = parts_go_to(comm);
    return SHOAL_OK;
}

enum shoal_err shoal_step_part(struct shoal_comm *comm, uint32_t v, uint32_t samples, uint64_t offset, uint64_t elems,
                               const float *grad)
{
    const struct arena_layout *layout = &comm->arena.layout;
    struct step_state *state = &comm->step;
    enum shoal_err err = SHOAL_OK;
    float *into;

    op_drain(comm);
    if (elems == 0) {
        if (state->parted)
            early_forget(comm);
        state->parted = state->placed = false;
        return SHOAL_OK;
    }
    if (!state->parted)
        err = begin_parts(comm, v, samples);
    if (err != SHOAL_OK)
        return err;
    if (v != state->part_v || samples != state->part_samples || offset > layout->sum_elems ||
        elems > layout->sum_elems - offset)
        return comm_fail(comm, SHOAL_ERR_INVALID,
                         "elements %llu to %llu of mini-batch %u do not belong to what is published next",
                         (unsigned long long)offset, (unsigned long long)(offset + elems), v);
    into = parts_go_to(comm);
    if (grad == into + offset && state->placed)
        ; /* it is there */
    else if (grad == NULL)
        memset(into + offset, 0, elems * sizeof(float));
    else if (state->part.store || state->placed)
        comm->kernels->scale_f32(into + offset, grad, (float)samples, (size_t)elems);
    else
        memcpy(into + offset, grad,
               elems * sizeof(float)); /* added at once with the rest: a sum that is held stays whole */
    early_part(comm, samples, offset, elems);
    return SHOAL_OK;
}

static void add_tuple(struct shoal_comm *comm, const struct shoal_minibatch *minibatch)
{
    const struct arena_layout *layout = &comm->arena.layout;
    struct arena_block *block = my_contribution(comm);
    struct arena_tuple *tuple = arena_tuple(layout, block, minibatch->v);
    uint8_t *touched = arena_touched(block);

    tuple->samples = minibatch->samples;
    tuple->id_low = minibatch->id_low;
    tuple->id_high = minibatch->id_high;
    tuple->worker_id = comm->hello.worker_id;
    if (layout->metric_count > 0)
        memcpy(tuple->values, minibatch->values, layout->metric_count * sizeof(double));
    for (uint32_t i = 0; i < (comm->plan.param_count + 7) / 8; i++)
        touched[i] |= minibatch->touched == NULL ? 0xff : minibatch->touched[i];
    if (minibatch->v == 0 && layout->copy_bytes > 0)
        memcpy(arena_copy(layout, block), arena_mine(&comm->arena) + layout->copy_work_at, layout->copy_bytes);
}

enum shoal_err shoal_step_publish(struct shoal_comm *comm, const struct shoal_minibatch *minibatch)
{
    struct step_state *state = &comm->step;
    bool parted = state->parted;
    uint32_t weight = weight_of(state, minibatch->v, minibatch->samples);
    struct tree_add add;

    op_drain(comm);
    if (minibatch->v > state->fused.begin && minibatch->v < state->fused.end && minibatch->samples > 0 &&
        arena_tuple(&comm->arena.layout, my_contribution(comm), minibatch->v)->samples == 0) {
        add_tuple(comm, minibatch); /* its gradient comes with the first one's */
        return SHOAL_OK;
    }
    if (parted && (state->part_v != minibatch->v || state->part_samples != weight))
        return comm_fail(comm, SHOAL_ERR_INVALID,
                         "mini-batch %u of %u samples published after parts of mini-batch %u of %u", minibatch->v,
                         minibatch->samples, state->part_v, state->part_samples);
    if (!state->assigned || state->contributed || minibatch->v < state->begin || minibatch->v >= state->end ||
        minibatch->samples == 0)
        return comm_fail(comm, SHOAL_ERR_INVALID, "mini-batch %u of %u samples was not assigned here", minibatch->v,
                         minibatch->samples);
    atomic_fetch_add(&comm->words->computed_ns, comm_now_ns() - atomic_load(&comm->words->computing_ns));
    fault_point(&comm->fault, FAULT_BEFORE_PUBLISH, state->step.step);
    if (parted) { /* what the first part decided */
        state->held = state->part_held;
        add = state->part;
    } else if (!tree_held_add_node(&state->held, node_of(state, minibatch->v), &add)) {
        return comm_fail(comm, SHOAL_ERR_INVALID, "mini-batch %u is held already, or out of the order of assign",
                         minibatch->v);
    }
    state->parted = false;
    if (state->step.kind == SHOAL_STEP_TRAIN && !state->kept && comm->arena.layout.sum_elems > 0)
        add_vector(comm, &add, state->placed ? 1 : weight, parted);
    state->placed = false;
    add_tuple(comm, minibatch);
    state->fused = (struct tree_node){ 0, 0 };
    atomic_store(&comm->words->computing_ns, comm_now_ns());
    fault_point(&comm->fault, FAULT_AFTER_PUBLISH, state->step.step);
    if (!epoch_is_revoked(comm))
        return SHOAL_OK;
    epoch_close(comm);
    return comm_fail(comm, SHOAL_ERR_RANK_LOST, "epoch %u.%u is revoked", comm->epoch.id.e, comm->epoch.id.k);
}

/* ---- phases ---- */

#define ALL_LOCAL(name, progress)                                                                                      \
    static bool name(struct shoal_comm *comm, uint64_t step)                                                           \
    {                                                                                                                  \
        const struct epoch *epoch = &comm->epoch;                                                                      \
                                                                                                                       \
        for (uint32_t i = 0; i < epoch->local_count; i++) {                                                            \
            const struct arena_words *words = epoch->peers[epoch->local[i]].words;                                     \
                                                                                                                       \
            if (atomic_load(&words->epoch) != epoch->word || atomic_load(&words->progress) < step)                     \
                return false;                                                                                          \
        }                                                                                                              \
        return true;                                                                                                   \
    }

ALL_LOCAL(all_contributed, contributed)
ALL_LOCAL(all_reduced, reduced)
ALL_LOCAL(all_completed, completed)

static void say_nodes(struct shoal_comm *comm)
{
    struct arena_words *words = arena_my_words(&comm->arena);
    const struct tree_held *held = &comm->step.held;

    words->node_count = held->count;
    for (uint32_t i = 0; i < held->count; i++)
        words->nodes[i] = (struct arena_node){ held->nodes[i].begin, held->nodes[i].end, held->buffer[i] };
}

static void fill_head(struct shoal_comm *comm, struct arena_block *block)
{
    const struct shoal_step *step = &comm->step.step;

    block->head = (struct shoal_committed){
        .step = step->step,
        .kind = step->kind,
        .data_epoch = step->data_epoch,
        .step_in_epoch = step->step_in_epoch,
        .v_count = step->v_count,
        .e = comm->epoch.id.e,
        .k = comm->epoch.id.k,
    };
}

/* Takes over the tuples that `from` has, and its touched bits; also its buffers, if it has v = 0. */
void step_merge_block(struct shoal_comm *comm, struct arena_block *into, struct arena_block *from)
{
    const struct arena_layout *layout = &comm->arena.layout;

    for (uint32_t i = 0; i < layout->touched_bytes; i++)
        arena_touched(into)[i] |= arena_touched(from)[i];
    for (uint32_t v = 0; v < comm->step.step.v_count; v++)
        if (arena_tuple(layout, from, v)->samples != 0)
            memcpy(arena_tuple(layout, into, v), arena_tuple(layout, from, v), layout->tuple_bytes);
    if (layout->copy_bytes > 0 && arena_tuple(layout, from, 0)->samples != 0)
        memcpy(arena_copy(layout, into), arena_copy(layout, from), layout->copy_bytes);
}

/* The contributions of my host, in `block`. All have contributed. */
void step_merge_local(struct shoal_comm *comm, struct arena_block *block)
{
    const struct epoch *epoch = &comm->epoch;

    memset(block, 0, comm->arena.layout.block_bytes);
    fill_head(comm, block);
    for (uint32_t i = 0; i < epoch->local_count; i++)
        step_merge_block(comm, block,
                         arena_block_at(epoch->peers[epoch->local[i]].region, comm->arena.layout.contribution_at));
}

/* Sum of n_v; 0 if a v is absent. */
static uint64_t count_samples(const struct shoal_comm *comm, struct arena_block *block, uint32_t v_count)
{
    uint64_t samples = 0;

    for (uint32_t v = 0; v < v_count; v++) {
        uint32_t n = arena_tuple(&comm->arena.layout, block, v)->samples;

        if (n == 0)
            return 0;
        samples += n;
    }
    return samples;
}

static bool world_is_in(struct shoal_comm *comm, struct exchange *exchange)
{
    const struct peer *leader = &comm->epoch.peers[comm->epoch.leaders[comm->epoch.host]];
    struct arena_block *world = arena_block_at(leader->region, comm->arena.layout.world_at);

    if (!fabric_world_turn(comm, exchange->op))
        return false;
    exchange->divisor = (float)count_samples(comm, world, exchange->v_count);
    return true;
}

static void add_inputs(struct shoal_comm *comm, struct exchange *exchange)
{
    const struct epoch *epoch = &comm->epoch;

    for (uint32_t i = 0; i < epoch->local_count; i++) {
        const struct peer *peer = &epoch->peers[epoch->local[i]];

        for (uint32_t n = 0; n < peer->words->node_count && n < TREE_NODES_MAX; n++) {
            const struct arena_node *node = &peer->words->nodes[n];
            struct exchange_input input = { { node->begin, node->end }, NULL };
            uint32_t at = exchange->input_count++;

            input.base = (const uint8_t *)arena_partial(&comm->arena.layout, peer->region, node->buffer);
            for (; at > 0 && exchange->inputs[at - 1].node.begin > node->begin; at--)
                exchange->inputs[at] = exchange->inputs[at - 1];
            exchange->inputs[at] = input;
        }
    }
}

void step_exchange(struct shoal_comm *comm, struct exchange *exchange)
{
    const struct step_state *state = &comm->step;
    bool vector = state->step.kind == SHOAL_STEP_TRAIN && !state->kept;

    exchange_clear(exchange);
    exchange->type = SHOAL_FLOAT32;
    exchange->bytes = vector ? comm->arena.layout.sum_elems * sizeof(float) : 0;
    exchange->v_count = state->step.v_count;
    exchange->into_count = 1;
    exchange->op = state->step.step;
    exchange->partial_kind = FABRIC_PARTIAL;
    exchange->result_kind = FABRIC_RESULT;
    exchange->want_digest = true;
    exchange->update = vector;
    exchange->may_fault = true;
    exchange->into[0] = arena_mine(&comm->arena) + comm->arena.layout.result_at;
    if (vector)
        add_inputs(comm, exchange);
}

static enum shoal_err sum_vector(struct shoal_comm *comm, struct arena_block *local)
{
    const struct step_state *state = &comm->step;
    struct exchange *exchange = comm->exchange;
    uint32_t begins[SHOAL_RANKS_MAX];
    uint32_t ends[SHOAL_RANKS_MAX];
    enum shoal_err err;

    step_exchange(comm, exchange);
    exchange->begins = begins;
    exchange->ends = ends;
    for (uint32_t i = 0; i < comm->epoch.size; i++)
        epoch_range(comm, state->step.step, state->step.v_count, i, &begins[i], &ends[i]);
    if (comm->epoch.hosts > 1)
        exchange->ready = world_is_in;
    else
        exchange->divisor = (float)count_samples(comm, local, state->step.v_count);
    if (comm->epoch.hosts == 1)
        early_end(comm, exchange);
    err = exchange_run(comm, exchange);
    arena_my_words(&comm->arena)->digest = exchange->digest;
    update_end(comm);
    return err;
}

uint32_t step_slices(const struct shoal_comm *comm, struct arena_part parts[SHOAL_RANKS_MAX])
{
    const struct epoch *epoch = &comm->epoch;
    uint64_t bytes = comm->arena.layout.sum_elems * sizeof(float);
    uint32_t count = 0;

    SHOAL_ASSERT(epoch->size <= SHOAL_RANKS_MAX);
    for (uint32_t rank = 0; rank < epoch->size; rank++) {
        uint32_t slot = epoch->peers[exchange_home(epoch, rank, epoch->host)].slot;
        uint64_t begin;
        uint64_t end;

        exchange_slice(epoch, bytes, rank, &begin, &end);
        end = (end + ARENA_PAGE - 1) / ARENA_PAGE * ARENA_PAGE;
        if (begin < end)
            parts[count++] = (struct arena_part){ begin, end, slot, 0 };
    }
    return count;
}

/* The result map shows the slices of this epoch: everybody has applied what it showed before. */
static enum shoal_err compose(struct shoal_comm *comm)
{
    struct arena_part parts[SHOAL_RANKS_MAX];

    if (comm->epoch.composed || comm->step.kept || comm->arena.layout.sum_elems == 0)
        return SHOAL_OK;
    comm->epoch.composed = true;
    return arena_compose(&comm->arena, parts, step_slices(comm, parts), &comm->msg);
}

static enum shoal_err build_commit(struct shoal_comm *comm)
{
    const struct epoch *epoch = &comm->epoch;
    const struct arena_layout *layout = &comm->arena.layout;
    struct arena_block *commit = my_commit(comm);

    if (epoch->hosts > 1)
        memcpy(commit, arena_block_at(epoch->peers[epoch->leaders[epoch->host]].region, layout->world_at),
               layout->block_bytes);
    fill_head(comm, commit);
    for (uint32_t i = 0; i < epoch->local_count; i++)
        commit->head.digest += epoch->peers[epoch->local[i]].words->digest;
    commit->head.digest += kernels_digest(arena_copy(layout, commit), layout->copy_bytes, layout->vector_bytes);
    if (comm->step.step.kind != SHOAL_STEP_TRAIN || comm->step.kept)
        commit->head.digest = 0;
    commit->head.samples = count_samples(comm, commit, commit->head.v_count);
    if (commit->head.samples == 0)
        return comm_fail(comm, SHOAL_ERR_INVALID, "step %llu lacks a mini-batch",
                         (unsigned long long)commit->head.step);
    arena_my_words(&comm->arena)->committed_step = comm->step.kept ? 0 : commit->head.step; /* kept: nobody can fetch it */
    return SHOAL_OK;
}

/* Adds up what has become final, too. */
static bool contributed_meanwhile(struct shoal_comm *comm, uint64_t step)
{
    early_reduce(comm);
    return all_contributed(comm, step);
}

static enum shoal_err contribute(struct shoal_comm *comm)
{
    uint64_t step = comm->step.step.step;
    enum shoal_err err = SHOAL_OK;

    atomic_store(&comm->words->activity, SHOAL_ACTIVITY_REDUCING);
    fault_point(&comm->fault, FAULT_BEFORE_REDUCE, step);
    if (atomic_load(&arena_my_words(&comm->arena)->early) == 0 || comm->step.early.off)
        say_nodes(comm); /* else they are told, and others read them */
    err = comm_say(comm, &arena_my_words(&comm->arena)->contributed, step, all_contributed);
    if (err == SHOAL_OK) {
        comm->step.contributed = true;
        err = comm_wait(comm, contributed_meanwhile, step);
    }
    if (err == SHOAL_OK && comm->epoch.hosts > 1)
        err = fabric_greeted(comm);
    return err;
}

enum shoal_err shoal_step_reduce(struct shoal_comm *comm)
{
    struct step_state *state = &comm->step;
    uint32_t missing;
    enum shoal_err err;

    op_drain(comm);
    if (!state->assigned || tree_held_missing(&state->held, state->begin, state->end, &missing, 1) != 0)
        return comm_fail(comm, SHOAL_ERR_INVALID, "reduce before every assigned mini-batch was published");
    err = contribute(comm);
    if (err != SHOAL_OK)
        return err;
    if (comm->epoch.hosts == 1)
        step_merge_local(comm, my_commit(comm));
    err = sum_vector(comm, my_commit(comm));
    if (err == SHOAL_OK)
        err = comm_say(comm, &arena_my_words(&comm->arena)->reduced, state->step.step, all_reduced);
    if (comm->epoch.hosts == 1)
        fault_point(&comm->fault, FAULT_SLICES_DONE, state->step.step);
    if (err == SHOAL_OK)
        err = comm_wait(comm, all_reduced, state->step.step);
    if (err == SHOAL_OK)
        err = compose(comm);
    if (err == SHOAL_OK)
        err = update_show(comm);
    if (err == SHOAL_OK)
        err = build_commit(comm);
    if (err != SHOAL_OK)
        return err;
    state->reduced = true;
    fault_point(&comm->fault, FAULT_AFTER_REDUCE, state->step.step);
    return SHOAL_OK;
}

enum shoal_err shoal_step_complete(struct shoal_comm *comm)
{
    uint64_t step = comm->step.step.step;
    bool open;

    op_drain(comm);
    if (!comm->step.reduced)
        return comm_fail(comm, SHOAL_ERR_INVALID, "complete before reduce");
    fault_point(&comm->fault, FAULT_BEFORE_COMPLETE, step);
    (void)pthread_mutex_lock(&comm->lock);
    epoch_check_locked(comm);
    open = atomic_load(&comm->open);
    if (open)
        atomic_store(&comm->complete, step); /* what CLOSED reports, from now on */
    (void)pthread_mutex_unlock(&comm->lock);
    if (!open)
        return comm_fail(comm, SHOAL_ERR_RANK_LOST, "epoch %u.%u is revoked", comm->epoch.id.e, comm->epoch.id.k);
    if (atomic_load(&comm->words->first_epoch_word) != comm->epoch.word) {
        atomic_store(&comm->words->first_complete_ns, comm_now_ns());
        atomic_store(&comm->words->first_epoch_word, comm->epoch.word);
    }
    atomic_store(&comm->words->complete_step, step);
    (void)comm_say(comm, &arena_my_words(&comm->arena)->completed, step, all_completed); /* apply_allowed will notice */
    fault_point(&comm->fault, FAULT_AFTER_COMPLETE, step);
    return SHOAL_OK;
}

static bool world_has_completed(struct shoal_comm *comm, uint64_t step)
{
    if (comm->epoch.hosts == 1)
        return all_completed(comm, step);
    return fabric_completed_turn(comm, step, all_completed(comm, step));
}

void step_adopt(struct shoal_comm *comm, uint64_t step)
{
    const struct arena_layout *layout = &comm->arena.layout;
    struct arena_block *commit = my_commit(comm);

    SHOAL_ASSERT(commit->head.step == step);
    if (layout->copy_bytes > 0)
        memcpy(comm->copy_result, arena_copy(layout, commit), layout->copy_bytes);
    memcpy(comm->touched, arena_touched(commit), layout->touched_bytes);
    records_commit(comm);
    (void)pthread_mutex_lock(&comm->lock);
    atomic_store(&comm->applied, step);
    (void)pthread_mutex_unlock(&comm->lock);
    atomic_store(&comm->words->applied_step, step);
    if (commit->head.kind == SHOAL_STEP_TRAIN)
        atomic_fetch_add(&comm->words->updates, comm->plan.param_count);
    atomic_store(&comm->words->activity, SHOAL_ACTIVITY_APPLYING);
    step_reset(comm);
}

enum shoal_err shoal_step_apply_allowed(struct shoal_comm *comm)
{
    uint64_t step = comm->step.step.step;
    enum shoal_err err;

    op_drain(comm);
    if (!comm->step.reduced || atomic_load(&comm->complete) != step)
        return comm_fail(comm, SHOAL_ERR_INVALID, "apply_allowed before complete");
    err = comm_wait(comm, world_has_completed, step);
    if (err != SHOAL_OK)
        return err;
    fault_point(&comm->fault, FAULT_BEFORE_APPLY, step);
    step_adopt(comm, step);
    return SHOAL_OK;
}

/* ---- what was committed ---- */

static enum shoal_err committed_block(struct shoal_comm *comm, struct arena_block **block)
{
    if (!comm->planned) {
        (void)comm_fail(comm, SHOAL_ERR_INVALID, "no step is committed");
        return SHOAL_ERR_INVALID;
    }
    *block = my_commit(comm);
    if ((*block)->head.step == 0 || (*block)->head.step != atomic_load(&comm->applied)) {
        (void)comm_fail(comm, SHOAL_ERR_NOT_FOUND, "no step was committed here since the last start or join");
        return SHOAL_ERR_NOT_FOUND;
    }
    return SHOAL_OK;
}

enum shoal_err shoal_step_committed(struct shoal_comm *comm, struct shoal_committed *committed)
{
    struct arena_block *block = NULL;
    enum shoal_err err = committed_block(comm, &block);

    if (err == SHOAL_OK)
        *committed = block->head;
    return err;
}

static double tree_sum(const struct arena_layout *layout, struct arena_block *block, uint32_t metric, uint32_t begin,
                       uint32_t end)
{
    const struct arena_tuple *tuple = arena_tuple(layout, block, begin);
    uint32_t middle;
    double left;

    if (end - begin == 1)
        return (double)tuple->samples * tuple->values[metric];
    middle = tree_middle(begin, end);
    left = tree_sum(layout, block, metric, begin, middle); /* at most 12 levels deep */
    return left + tree_sum(layout, block, metric, middle, end);
}

enum shoal_err shoal_step_mean(struct shoal_comm *comm, uint32_t metric, double *mean)
{
    struct arena_block *block = NULL;
    enum shoal_err err = committed_block(comm, &block);

    if (err != SHOAL_OK)
        return err;
    if (metric >= comm->plan.metric_count)
        return comm_fail(comm, SHOAL_ERR_INVALID, "value %u: there are %u", metric, comm->plan.metric_count);
    *mean = tree_sum(&comm->arena.layout, block, metric, 0, block->head.v_count) / (double)block->head.samples;
    return SHOAL_OK;
}

enum shoal_err shoal_step_record(struct shoal_comm *comm, const uint8_t **bytes, uint64_t *len)
{
    struct arena_block *block = NULL;
    enum shoal_err err = committed_block(comm, &block);

    if (err != SHOAL_OK)
        return err;
    (void)pthread_mutex_lock(&comm->lock);
    if (comm->records.last_step != block->head.step)
        err = comm_fail(comm, SHOAL_ERR_NOT_FOUND, "the record of step %llu is not here",
                        (unsigned long long)block->head.step);
    *bytes = comm->records.last_bytes;
    *len = comm->records.last_len;
    (void)pthread_mutex_unlock(&comm->lock);
    return err;
}
