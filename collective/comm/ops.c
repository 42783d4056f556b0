/* Collectives outside of steps. Each begins with an agreement (op_check.c), and is a few phases then; phase n of an epoch
 * is over when every member has said it. Values go through the stage of each worker's region, in pieces. */
#include <string.h>

#include "op.h"

#include "shoal/banned.h"

bool op_all_said(struct shoal_comm *comm, uint64_t phase)
{
    const struct epoch *epoch = &comm->epoch;

    for (uint32_t i = 0; i < epoch->local_count; i++) {
        const struct arena_words *words = epoch->peers[epoch->local[i]].words;

        if (atomic_load(&words->epoch) != epoch->word || atomic_load(&words->op) < phase)
            return false;
    }
    return true;
}

static bool always(struct shoal_comm *comm, uint64_t arg)
{
    (void)comm;
    (void)arg;
    return true;
}

enum shoal_err op_local_phase(struct shoal_comm *comm)
{
    uint64_t phase = ++comm->op;
    enum shoal_err err = comm_say(comm, &arena_my_words(&comm->arena)->op, phase, op_all_said);

    return err == SHOAL_OK ? comm_wait(comm, op_all_said, phase) : err;
}

/* ---- sums ---- */

/* Sum the memory at offset `at` of every region of this host, in place, with the other hosts. */
static enum shoal_err reduce_in_place(struct shoal_comm *comm, uint64_t at, uint64_t bytes, const struct shoal_op *op)
{
    const struct epoch *epoch = &comm->epoch;
    struct exchange *exchange = comm->exchange;
    uint32_t begins[SHOAL_RANKS_MAX];
    uint32_t ends[SHOAL_RANKS_MAX];
    enum shoal_err err = op_local_phase(comm);

    if (err != SHOAL_OK)
        return err;
    exchange_clear(exchange);
    exchange->type = reduce_sum_type(op->type);
    exchange->reduction = op->reduction == SHOAL_MEAN ? SHOAL_SUM : op->reduction;
    exchange->bytes = bytes;
    exchange->v_count = epoch->size;
    exchange->begins = begins;
    exchange->ends = ends;
    exchange->op = comm->op;
    exchange->partial_kind = FABRIC_OP_PARTIAL;
    exchange->result_kind = FABRIC_OP_RESULT;
    exchange->into[exchange->into_count++] = arena_mine(&comm->arena) + at;
    for (uint32_t rank = 0; rank < epoch->size; rank++) {
        begins[rank] = rank;
        ends[rank] = rank + 1;
        if (epoch->peers[rank].host != epoch->host)
            continue;
        exchange->inputs[exchange->input_count++] =
            (struct exchange_input){ { rank, rank + 1 }, epoch->peers[rank].region + at };
        if (rank != epoch->rank)
            exchange->into[exchange->into_count++] = epoch->peers[rank].region + at;
    }
    err = exchange_run(comm, exchange);
    return err == SHOAL_OK ? op_local_phase(comm) : err;
}

/* The values lie in my scratch, as they are added up, at one place in every region: they are summed there. */
static bool lies_in_scratch(const struct shoal_comm *comm, const struct shoal_op *op, uint64_t *at)
{
    const struct arena_layout *layout = &comm->arena.layout;
    const uint8_t *scratch = arena_mine(&comm->arena) + layout->scratch_at;
    const uint8_t *bytes = op->in;

    *at = layout->scratch_at + (uint64_t)(bytes - scratch);
    return op->memory == SHOAL_MEMORY_HOST && op->in == op->out && reduce_sum_type(op->type) == op->type &&
           bytes >= scratch && bytes + op->elems * op_type_bytes(op->type) <= scratch + layout->scratch_bytes;
}

/* Sum `total` values, and keep those of [begin, end). */
static enum shoal_err reduce(struct shoal_comm *comm, const struct shoal_op *op, uint64_t total, uint64_t begin,
                             uint64_t end)
{
    uint32_t bytes = op_type_bytes(reduce_sum_type(op->type));
    uint64_t most = ARENA_STAGE_BYTES / bytes;
    enum shoal_err err = SHOAL_OK;

    for (uint64_t at = 0, piece = 0; at < total && err == SHOAL_OK; at += most, piece++) {
        uint64_t stage_at = comm->arena.layout.stage_at + piece % 2 * ARENA_STAGE_BYTES;
        uint8_t *stage = arena_mine(&comm->arena) + stage_at;
        uint64_t elems = total - at < most ? total - at : most;
        uint64_t from = begin > at ? begin : at;
        uint64_t to = end < at + elems ? end : at + elems;

        err = op_load(comm, op, at, elems, stage);
        if (err == SHOAL_OK)
            err = reduce_in_place(comm, stage_at, elems * bytes, op);
        if (err == SHOAL_OK && from < to)
            err = op_store(comm, op, from - begin, to - from, stage + (from - at) * bytes);
    }
    return err;
}

static enum shoal_err all_reduce(struct shoal_comm *comm, const struct shoal_op *op)
{
    uint64_t at;
    enum shoal_err err;

    if (!lies_in_scratch(comm, op, &at))
        return reduce(comm, op, op->elems, 0, op->elems);
    err = reduce_in_place(comm, at, op->elems * op_type_bytes(op->type), op);
    if (err == SHOAL_OK && op->reduction == SHOAL_MEAN)
        reduce_kernels_get()->divide[op->type](op->out, op->out, comm->epoch.size, op->elems);
    return err;
}

/* ---- copies ---- */

struct source {
    uint32_t rank;
    uint64_t phase;
};

static bool source_said(struct shoal_comm *comm, uint64_t arg)
{
    const struct source *source = (const struct source *)(uintptr_t)arg;
    const struct arena_words *words = comm->epoch.peers[source->rank].words;

    return atomic_load(&words->epoch) == comm->epoch.word && atomic_load(&words->op) >= source->phase;
}

/* One piece from the root to the leaders of the other hosts; `stage` is mine. */
static enum shoal_err carry_piece(struct shoal_comm *comm, uint32_t root, uint64_t phase, uint8_t *stage, size_t len)
{
    const struct epoch *epoch = &comm->epoch;
    struct transport_request *requests[SHOAL_RANKS_MAX];
    uint64_t tag = fabric_tag(comm, FABRIC_OP, root, phase, 1);
    uint32_t count = 0;

    if (epoch->rank == root) {
        for (uint32_t host = 0; host < epoch->hosts; host++)
            if (host != epoch->host)
                requests[count++] = fabric_send(comm, epoch->leaders[host], tag, stage, len);
    } else if (epoch->peers[root].host != epoch->host && epoch->leaders[epoch->host] == epoch->rank) {
        requests[count++] = fabric_recv(comm, tag, stage, len);
    }
    return count == 0 ? SHOAL_OK : fabric_finish(comm, requests, count);
}

static enum shoal_err broadcast_piece(struct shoal_comm *comm, const struct shoal_op *op, uint64_t at, size_t len)
{
    const struct epoch *epoch = &comm->epoch;
    uint32_t from = epoch->peers[op->root].host == epoch->host ? op->root : epoch->leaders[epoch->host];
    struct source source = { .rank = from, .phase = ++comm->op };
    uint64_t stage_at = comm->arena.layout.stage_at;
    uint8_t *stage = arena_mine(&comm->arena) + stage_at;
    enum shoal_err err = SHOAL_OK;

    if (epoch->rank == op->root)
        err = op_copy_in(comm, op, stage, (const uint8_t *)op->in + at, len);
    if (err == SHOAL_OK && epoch->hosts > 1)
        err = carry_piece(comm, op->root, source.phase, stage, len);
    if (err == SHOAL_OK)
        err = comm_say(comm, &arena_my_words(&comm->arena)->op, source.phase, always);
    if (err == SHOAL_OK)
        err = comm_wait(comm, source_said, (uint64_t)(uintptr_t)&source);
    if (err == SHOAL_OK && op->out != NULL && (epoch->rank != op->root || op->out != op->in))
        err = op_copy_out(comm, op, (uint8_t *)op->out + at, epoch->peers[from].region + stage_at, len);
    return err == SHOAL_OK ? op_local_phase(comm) : err; /* the stage may be used again */
}

static enum shoal_err broadcast(struct shoal_comm *comm, const struct shoal_op *op)
{
    uint64_t bytes = op->elems * op_type_bytes(op->type);
    uint64_t most = 2 * (uint64_t)ARENA_STAGE_BYTES;
    enum shoal_err err = SHOAL_OK;

    for (uint64_t at = 0; at < bytes && err == SHOAL_OK; at += most)
        err = broadcast_piece(comm, op, at, (size_t)(bytes - at < most ? bytes - at : most));
    return err;
}

/* The leaders exchange the staged pieces of their members. What comes goes behind my stage, `len` bytes a rank. */
static enum shoal_err carry_gathered(struct shoal_comm *comm, uint64_t piece_bytes, size_t len)
{
    const struct epoch *epoch = &comm->epoch;
    uint8_t *others = arena_mine(&comm->arena) + comm->arena.layout.stage_at + ARENA_STAGE_BYTES;
    struct transport_request *requests[SHOAL_RANKS_MAX];
    uint32_t count = 0;
    enum shoal_err err = SHOAL_OK;

    for (uint32_t rank = 0; rank < epoch->size; rank++)
        if (epoch->peers[rank].host != epoch->host)
            requests[count++] = fabric_recv(comm, fabric_tag(comm, FABRIC_OP, rank, comm->op, 2),
                                            others + rank * piece_bytes, len);
    err = fabric_finish(comm, requests, count);
    return err == SHOAL_OK ? comm_say(comm, &arena_my_words(&comm->arena)->world_op, comm->op, always) : err;
}

static bool leader_gathered(struct shoal_comm *comm, uint64_t phase)
{
    const struct epoch *epoch = &comm->epoch;
    const struct arena_words *words = epoch->peers[epoch->leaders[epoch->host]].words;

    return atomic_load(&words->epoch) == epoch->word && atomic_load(&words->world_op) >= phase;
}

/* My piece to the leaders of the other hosts, from where it is staged; and theirs, by my leader. */
static enum shoal_err gather_world(struct shoal_comm *comm, uint64_t piece_bytes, size_t len)
{
    const struct epoch *epoch = &comm->epoch;
    const uint8_t *stage = arena_mine(&comm->arena) + comm->arena.layout.stage_at;
    struct transport_request *requests[SHOAL_RANKS_MAX];
    uint32_t count = 0;
    enum shoal_err err = SHOAL_OK;

    for (uint32_t host = 0; host < epoch->hosts; host++)
        if (host != epoch->host)
            requests[count++] = fabric_send(comm, epoch->leaders[host],
                                            fabric_tag(comm, FABRIC_OP, epoch->rank, comm->op, 2), stage, len);
    if (epoch->leaders[epoch->host] == epoch->rank)
        err = carry_gathered(comm, piece_bytes, len);
    if (err == SHOAL_OK)
        err = fabric_finish(comm, requests, count);
    return err == SHOAL_OK ? comm_wait(comm, leader_gathered, comm->op) : err;
}

static enum shoal_err all_gather(struct shoal_comm *comm, const struct shoal_op *op)
{
    const struct epoch *epoch = &comm->epoch;
    uint64_t stage_at = comm->arena.layout.stage_at;
    uint64_t bytes = op->elems * op_type_bytes(op->type);
    uint64_t most = epoch->hosts > 1 ? ARENA_STAGE_BYTES / epoch->size / 64 * 64 : ARENA_STAGE_BYTES;
    const uint8_t *leader = epoch->peers[epoch->leaders[epoch->host]].region + stage_at + ARENA_STAGE_BYTES;
    enum shoal_err err = SHOAL_OK;

    for (uint64_t at = 0; at < bytes && err == SHOAL_OK; at += most) {
        size_t len = (size_t)(bytes - at < most ? bytes - at : most);

        err = op_copy_in(comm, op, arena_mine(&comm->arena) + stage_at, (const uint8_t *)op->in + at, len);
        if (err == SHOAL_OK)
            err = op_local_phase(comm);
        if (err == SHOAL_OK && epoch->hosts > 1)
            err = gather_world(comm, most, len);
        for (uint32_t rank = 0; rank < epoch->size && err == SHOAL_OK; rank++) {
            const uint8_t *from = epoch->peers[rank].host == epoch->host ? epoch->peers[rank].region + stage_at
                                                                         : leader + rank * most;

            err = op_copy_out(comm, op, (uint8_t *)op->out + rank * bytes + at, from, len);
        }
        if (err == SHOAL_OK)
            err = op_local_phase(comm); /* the stage may be used again */
    }
    return err;
}

enum shoal_err op_execute(struct shoal_comm *comm, const struct shoal_op *op)
{
    enum shoal_err err = op_check_epoch(comm);
    uint64_t mine = op->elems * comm->epoch.rank;
    struct shoal_msg refusal;
    bool done = false;

    if (err != SHOAL_OK)
        return err;
    err = op_check(comm, op);
    if (err != SHOAL_OK) { /* the others are not left waiting; my own text is the one that helps */
        refusal = comm->msg;
        if (op_agree(comm, op, true) == SHOAL_ERR_RANK_LOST)
            return SHOAL_ERR_RANK_LOST;
        comm->msg = refusal;
        return err;
    }
    err = op_agree(comm, op, false);
    if (err == SHOAL_OK && comm->op_native)
        err = op_nccl_run(comm, op, &done);
    if (err != SHOAL_OK || done)
        return err;
    if (op->memory == SHOAL_MEMORY_DEVICE)
        comm->device->counts.staged++;
    switch ((enum shoal_op_kind)op->kind) {
    case SHOAL_ALL_REDUCE: return all_reduce(comm, op);
    case SHOAL_REDUCE_SCATTER: return reduce(comm, op, op->elems * comm->epoch.size, mine, mine + op->elems);
    case SHOAL_ALL_GATHER: return all_gather(comm, op);
    case SHOAL_BROADCAST: return broadcast(comm, op);
    case SHOAL_BARRIER:
    case SHOAL_NO_OP:
    case SHOAL_OP_KIND_COUNT: break;
    }
    return SHOAL_OK;
}

/* ---- the plain ones ---- */

enum shoal_err shoal_comm_barrier(struct shoal_comm *comm)
{
    return shoal_op_run(comm, &(struct shoal_op){ .kind = SHOAL_BARRIER });
}

enum shoal_err shoal_comm_all_reduce(struct shoal_comm *comm, void *values, uint64_t elems, uint32_t type)
{
    return shoal_op_run(
        comm, &(struct shoal_op){ .kind = SHOAL_ALL_REDUCE, .type = type, .in = values, .out = values, .elems = elems });
}

enum shoal_err shoal_comm_broadcast(struct shoal_comm *comm, void *bytes, uint64_t len, uint32_t root)
{
    return shoal_op_run(
        comm,
        &(struct shoal_op){
            .kind = SHOAL_BROADCAST, .type = OP_BYTES, .root = root, .in = bytes, .out = bytes, .elems = len });
}
