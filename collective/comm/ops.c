/* Collectives outside of steps. Each is a few phases; phase n of an epoch is over when every member has said it. */
#include <string.h>

#include "comm.h"

#include "shoal/banned.h"

static bool all_said(struct shoal_comm *comm, uint64_t phase)
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

/* A barrier among the workers of this host. */
static enum shoal_err local_phase(struct shoal_comm *comm)
{
    uint64_t phase = ++comm->op;
    enum shoal_err err = comm_say(comm, &arena_my_words(&comm->arena)->op, phase, all_said);

    return err == SHOAL_OK ? comm_wait(comm, all_said, phase) : err;
}

static enum shoal_err check_epoch(struct shoal_comm *comm)
{
    if (comm->epoch.size == 0 || !comm->planned)
        return comm_fail(comm, SHOAL_ERR_INVALID, "a collective outside of an epoch");
    return comm->epoch.hosts > 1 ? fabric_greeted(comm) : SHOAL_OK;
}

static bool world_said(struct shoal_comm *comm, uint64_t phase)
{
    const struct epoch *epoch = &comm->epoch;
    const struct arena_words *words = epoch->peers[epoch->leaders[epoch->host]].words;

    return atomic_load(&words->epoch) == epoch->word && atomic_load(&words->world_op) >= phase;
}

/* The leaders tell each other that their hosts have come to this phase. */
static enum shoal_err world_phase(struct shoal_comm *comm)
{
    const struct epoch *epoch = &comm->epoch;
    struct transport_request *requests[2 * SHOAL_RANKS_MAX];
    uint32_t count = 0;
    enum shoal_err err = local_phase(comm);

    if (err != SHOAL_OK || epoch->hosts == 1)
        return err;
    if (epoch->leaders[epoch->host] != epoch->rank)
        return comm_wait(comm, world_said, comm->op);
    for (uint32_t host = 0; host < epoch->hosts; host++) {
        uint32_t leader = epoch->leaders[host];

        if (host == epoch->host)
            continue;
        requests[count++] = fabric_recv(comm, fabric_tag(comm, FABRIC_OP, leader, comm->op, 0), NULL, 0);
        requests[count++] = fabric_send(comm, leader, fabric_tag(comm, FABRIC_OP, epoch->rank, comm->op, 0), NULL, 0);
    }
    err = fabric_finish(comm, requests, count);
    return err == SHOAL_OK ? comm_say(comm, &arena_my_words(&comm->arena)->world_op, comm->op, always) : err;
}

enum shoal_err shoal_comm_barrier(struct shoal_comm *comm)
{
    enum shoal_err err = check_epoch(comm);

    return err == SHOAL_OK ? world_phase(comm) : err;
}

static size_t type_bytes(uint32_t type) { return type == SHOAL_FLOAT64 ? 8 : 4; }

/* Sum the memory at offset `at` of every region of this host, in place, with the other hosts. */
static enum shoal_err reduce_in_place(struct shoal_comm *comm, uint64_t at, uint64_t bytes, uint32_t type)
{
    const struct epoch *epoch = &comm->epoch;
    struct exchange *exchange = comm->exchange;
    uint32_t begins[SHOAL_RANKS_MAX];
    uint32_t ends[SHOAL_RANKS_MAX];
    enum shoal_err err = local_phase(comm);

    if (err != SHOAL_OK)
        return err;
    *exchange = (struct exchange){ .type = type,
                                   .bytes = bytes,
                                   .v_count = epoch->size,
                                   .begins = begins,
                                   .ends = ends,
                                   .op = comm->op,
                                   .partial_kind = FABRIC_OP_PARTIAL,
                                   .result_kind = FABRIC_OP_RESULT };
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
    return err == SHOAL_OK ? local_phase(comm) : err;
}

enum shoal_err shoal_comm_all_reduce(struct shoal_comm *comm, void *values, uint64_t elems, uint32_t type)
{
    const struct arena_layout *layout = &comm->arena.layout;
    enum shoal_err err = check_epoch(comm);
    uint8_t *bytes = values;
    uint8_t *scratch;
    uint64_t total;

    if (err != SHOAL_OK)
        return err;
    if (type >= SHOAL_TYPE_COUNT || elems > UINT64_MAX / 8)
        return comm_fail(comm, SHOAL_ERR_INVALID, "all_reduce of type %u", type);
    total = elems * type_bytes(type);
    scratch = arena_mine(&comm->arena) + layout->scratch_at;
    if (bytes >= scratch && bytes + total <= scratch + layout->scratch_bytes)
        return reduce_in_place(comm, layout->scratch_at + (uint64_t)(bytes - scratch), total, type);
    for (uint64_t at = 0, piece = 0; at < total; at += ARENA_STAGE_BYTES, piece++) {
        uint64_t stage = layout->stage_at + piece % 2 * ARENA_STAGE_BYTES;
        uint64_t len = total - at < ARENA_STAGE_BYTES ? total - at : ARENA_STAGE_BYTES;

        memcpy(arena_mine(&comm->arena) + stage, bytes + at, len);
        err = reduce_in_place(comm, stage, len, type);
        if (err != SHOAL_OK)
            return err;
        memcpy(bytes + at, arena_mine(&comm->arena) + stage, len);
    }
    return SHOAL_OK;
}

static bool source_said(struct shoal_comm *comm, uint64_t arg)
{
    const struct arena_words *words = comm->epoch.peers[arg & 0xff].words;

    return atomic_load(&words->epoch) == comm->epoch.word && atomic_load(&words->op) >= arg >> 8;
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

static enum shoal_err broadcast_piece(struct shoal_comm *comm, uint8_t *bytes, size_t len, uint32_t root)
{
    const struct epoch *epoch = &comm->epoch;
    uint32_t source = epoch->peers[root].host == epoch->host ? root : epoch->leaders[epoch->host];
    uint64_t stage_at = comm->arena.layout.stage_at;
    uint8_t *stage = arena_mine(&comm->arena) + stage_at;
    uint64_t phase = ++comm->op;
    enum shoal_err err = SHOAL_OK;

    if (epoch->rank == root)
        memcpy(stage, bytes, len);
    if (epoch->hosts > 1)
        err = carry_piece(comm, root, phase, stage, len);
    if (err == SHOAL_OK)
        err = comm_say(comm, &arena_my_words(&comm->arena)->op, phase, always);
    if (err == SHOAL_OK)
        err = comm_wait(comm, source_said, phase << 8 | source);
    if (err == SHOAL_OK && epoch->rank != root)
        memcpy(bytes, epoch->peers[source].region + stage_at, len);
    return err == SHOAL_OK ? local_phase(comm) : err; /* the stage may be used again */
}

enum shoal_err shoal_comm_broadcast(struct shoal_comm *comm, void *bytes, uint64_t len, uint32_t root)
{
    enum shoal_err err = check_epoch(comm);

    if (err == SHOAL_OK && root >= comm->epoch.size)
        err = comm_fail(comm, SHOAL_ERR_INVALID, "broadcast from rank %u of %u", root, comm->epoch.size);
    for (uint64_t at = 0; err == SHOAL_OK && at < len; at += 2 * (uint64_t)ARENA_STAGE_BYTES)
        err = broadcast_piece(comm, (uint8_t *)bytes + at,
                              (size_t)(len - at < 2 * ARENA_STAGE_BYTES ? len - at : 2 * ARENA_STAGE_BYTES), root);
    return err;
}
