/* The state of a joiner (I3 of shoal/worker.h; reference/data-plane 11.4): the donor stages chunks, joiners copy them.
 *
 *   donor   stage chunk n (two buffers in turn) -> state_given = n + 1 ...... waits for state_taken >= n - 1 of all
 *   joiner  state_given > n -> copy -> state_taken = n + 1
 *
 * Joiners on other hosts get header and bytes of each chunk as two messages. The members that have the state already
 * compute meanwhile. Behind the tensors come the records that the agent has not acknowledged, so that any member may
 * become rank 0. I1. A joiner counts as having the state of D only after the chunk that says the end. */
#include <string.h>

#include "comm.h"

#include "shoal/banned.h"

#define RECORD_TENSOR UINT32_MAX
#define MESSAGE_BYTES (sizeof(struct arena_chunk) + ARENA_STAGE_BYTES)

static bool is_joiner(const struct peer *peer) { return !peer->has_state; }

static bool joiners_took(struct shoal_comm *comm, uint64_t sequence)
{
    const struct epoch *epoch = &comm->epoch;

    for (uint32_t i = 0; i < epoch->local_count; i++) {
        const struct peer *peer = &epoch->peers[epoch->local[i]];

        if (is_joiner(peer) &&
            (atomic_load(&peer->words->epoch) != epoch->word || atomic_load(&peer->words->state_taken) < sequence))
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

static uint64_t state_tag(const struct shoal_comm *comm, uint64_t sequence, uint32_t part)
{
    return fabric_tag(comm, FABRIC_STATE, (uint32_t)comm->epoch.donor, sequence >> 13,
                      (uint32_t)(sequence & 0x1fff) << 1 | part);
}

/* Header and bytes to the joiners of other hosts, one after the other. */
static enum shoal_err send_remote(struct shoal_comm *comm, const struct arena_chunk *chunk, const uint8_t *bytes)
{
    struct transport_request *requests[2 * SHOAL_RANKS_MAX];
    uint32_t count = 0;

    for (uint32_t rank = 0; rank < comm->epoch.size; rank++) {
        if (!is_joiner(&comm->epoch.peers[rank]) || comm->epoch.peers[rank].host == comm->epoch.host)
            continue;
        requests[count++] = fabric_send(comm, rank, state_tag(comm, comm->state_sequence, 0), chunk, sizeof(*chunk));
        if (chunk->len > 0)
            requests[count++] = fabric_send(comm, rank, state_tag(comm, comm->state_sequence, 1), bytes, chunk->len);
    }
    return count == 0 ? SHOAL_OK : fabric_finish(comm, requests, count);
}

static enum shoal_err give_chunk(struct shoal_comm *comm, const struct arena_chunk *chunk, const void *bytes)
{
    struct arena_words *words = arena_my_words(&comm->arena);
    uint64_t sequence = comm->state_sequence;
    uint8_t *stage = arena_mine(&comm->arena) + comm->arena.layout.stage_at + sequence % 2 * ARENA_STAGE_BYTES;
    enum shoal_err err = sequence < 2 ? SHOAL_OK : comm_wait(comm, joiners_took, sequence - 1);

    if (err != SHOAL_OK)
        return err;
    fault_point(&comm->fault, FAULT_GIVE_COPY, chunk->step);
    if (chunk->len > 0)
        memcpy(stage, bytes, chunk->len);
    words->chunk[sequence % 2] = *chunk;
    err = send_remote(comm, &words->chunk[sequence % 2], stage);
    if (err == SHOAL_OK)
        err = comm_say(comm, &words->state_given, sequence + 1, always);
    comm->state_sequence = sequence + 1;
    return err;
}

static enum shoal_err check_donor(struct shoal_comm *comm)
{
    op_drain(comm);
    if (comm->epoch.size == 0 || comm->epoch.donor != (int)comm->epoch.rank || comm->epoch.joiners == 0)
        return comm_fail(comm, SHOAL_ERR_INVALID, "I am not a donor in this epoch");
    return comm->epoch.hosts > 1 ? fabric_greeted(comm) : SHOAL_OK;
}

enum shoal_err shoal_comm_state_give(struct shoal_comm *comm, uint32_t tensor, const void *bytes, uint64_t len)
{
    struct arena_chunk chunk = { .step = comm->epoch.decided_step, .total = len, .tensor = tensor };
    enum shoal_err err = check_donor(comm);

    if (err == SHOAL_OK && tensor == RECORD_TENSOR)
        err = comm_fail(comm, SHOAL_ERR_INVALID, "tensor %u: beyond the last number", tensor);
    do {
        uint64_t left = len - chunk.offset;

        if (err != SHOAL_OK)
            return err;
        chunk.len = (uint32_t)(left < ARENA_STAGE_BYTES ? left : ARENA_STAGE_BYTES);
        err = give_chunk(comm, &chunk, len == 0 ? NULL : (const uint8_t *)bytes + chunk.offset);
        chunk.offset += chunk.len;
    } while (chunk.offset < len);
    return err;
}

static enum shoal_err give_records(struct shoal_comm *comm)
{
    enum shoal_err err = SHOAL_OK;

    for (uint64_t step = comm->records.acked + 1; err == SHOAL_OK && step <= comm->epoch.decided_step; step++) {
        struct arena_chunk chunk = { .step = step, .tensor = RECORD_TENSOR };
        const struct record_entry *entry;

        (void)pthread_mutex_lock(&comm->lock);
        entry = records_find(&comm->records, step);
        if (entry != NULL) { /* the copy outlives an acknowledgement that comes now */
            memcpy(comm->driver_bytes, comm->records.bytes + entry->at, entry->len);
            chunk.len = entry->len;
            chunk.total = entry->len;
        }
        (void)pthread_mutex_unlock(&comm->lock);
        if (chunk.len > 0)
            err = give_chunk(comm, &chunk, comm->driver_bytes);
    }
    return err;
}

enum shoal_err shoal_comm_state_end(struct shoal_comm *comm)
{
    struct arena_chunk chunk = { .step = comm->epoch.decided_step, .end = 1 };
    enum shoal_err err = check_donor(comm);

    if (err == SHOAL_OK)
        err = give_records(comm);
    if (err == SHOAL_OK)
        err = give_chunk(comm, &chunk, NULL);
    return err == SHOAL_OK ? comm_wait(comm, joiners_took, comm->state_sequence) : err;
}

/* ---- joiner ---- */

static bool chunk_is_staged(struct shoal_comm *comm, uint64_t sequence)
{
    const struct peer *donor = &comm->epoch.peers[comm->epoch.donor];

    return atomic_load(&donor->words->epoch) == comm->epoch.word && atomic_load(&donor->words->state_given) > sequence;
}

static const uint8_t *chunk_bytes(struct shoal_comm *comm)
{
    const struct peer *donor = &comm->epoch.peers[comm->epoch.donor];

    if (donor->region == NULL)
        return comm->fabric_message;
    return donor->region + comm->arena.layout.stage_at + comm->state_sequence % 2 * ARENA_STAGE_BYTES;
}

static enum shoal_err receive_chunk(struct shoal_comm *comm)
{
    struct transport_request *request;
    enum shoal_err err = fabric_greeted(comm);

    if (err != SHOAL_OK)
        return err;
    comm->fabric_message = fabric_slab(comm, MESSAGE_BYTES);
    if (comm->fabric_message == NULL)
        return comm_fail(comm, SHOAL_ERR_FULL, "no memory for a chunk of state");
    request = fabric_recv(comm, state_tag(comm, comm->state_sequence, 0), &comm->chunk, sizeof(comm->chunk));
    err = fabric_finish(comm, &request, 1);
    if (err == SHOAL_OK && comm->chunk.len > ARENA_STAGE_BYTES)
        err = comm_fail(comm, SHOAL_ERR_MALFORMED, "a chunk of state of %u bytes", comm->chunk.len);
    if (err != SHOAL_OK || comm->chunk.len == 0)
        return err;
    request = fabric_recv(comm, state_tag(comm, comm->state_sequence, 1), comm->fabric_message, comm->chunk.len);
    return fabric_finish(comm, &request, 1);
}

static enum shoal_err next_chunk(struct shoal_comm *comm)
{
    enum shoal_err err;

    if (comm->chunk_valid)
        return SHOAL_OK;
    if (comm->epoch.peers[comm->epoch.donor].region == NULL) {
        err = receive_chunk(comm);
    } else {
        err = comm_wait(comm, chunk_is_staged, comm->state_sequence);
        if (err == SHOAL_OK)
            comm->chunk = comm->epoch.peers[comm->epoch.donor].words->chunk[comm->state_sequence % 2];
        if (err == SHOAL_OK && comm->chunk.len > ARENA_STAGE_BYTES)
            err = comm_fail(comm, SHOAL_ERR_MALFORMED, "a chunk of state of %u bytes", comm->chunk.len);
    }
    comm->chunk_valid = err == SHOAL_OK;
    return err;
}

static enum shoal_err took_chunk(struct shoal_comm *comm)
{
    comm->chunk_valid = false;
    comm->state_sequence++;
    fault_point(&comm->fault, FAULT_JOIN_COPY, comm->epoch.decided_step);
    return comm_say(comm, &arena_my_words(&comm->arena)->state_taken, comm->state_sequence, always);
}

static void have_state(struct shoal_comm *comm)
{
    uint64_t step = comm->epoch.decided_step;

    (void)pthread_mutex_lock(&comm->lock);
    comm->stateless = false;
    atomic_store(&comm->applied, step);
    atomic_store(&comm->complete, step);
    (void)pthread_mutex_unlock(&comm->lock);
    atomic_store(&comm->words->applied_step, step);
    atomic_store(&comm->words->complete_step, step);
}

enum shoal_err shoal_comm_state_size(struct shoal_comm *comm, uint32_t *tensor, uint64_t *len)
{
    enum shoal_err err = SHOAL_OK;

    op_drain(comm);
    if (!comm->stateless || comm->epoch.size == 0 || comm->epoch.donor < 0)
        return comm_fail(comm, SHOAL_ERR_INVALID, "there is no state to take");
    for (;;) {
        err = next_chunk(comm);
        if (err != SHOAL_OK)
            return err;
        if (comm->chunk.tensor != RECORD_TENSOR)
            break;
        (void)pthread_mutex_lock(&comm->lock);
        (void)records_push(&comm->records, comm->chunk.step, chunk_bytes(comm),
                           comm->chunk.len); /* full: rank 0 has it */
        (void)pthread_mutex_unlock(&comm->lock);
        err = took_chunk(comm);
        if (err != SHOAL_OK)
            return err;
    }
    if (comm->chunk.end) {
        err = took_chunk(comm);
        if (err != SHOAL_OK)
            return err;
        have_state(comm);
        return SHOAL_ERR_NOT_FOUND;
    }
    *tensor = comm->chunk.tensor;
    *len = comm->chunk.total;
    return SHOAL_OK;
}

enum shoal_err shoal_comm_state_take(struct shoal_comm *comm, uint32_t tensor, void *bytes, uint64_t len)
{
    uint64_t at = 0;
    enum shoal_err err;

    op_drain(comm);
    if (!comm->stateless || comm->epoch.size == 0 || comm->epoch.donor < 0)
        return comm_fail(comm, SHOAL_ERR_INVALID, "there is no state to take");
    do {
        err = next_chunk(comm);
        if (err != SHOAL_OK)
            return err;
        if (comm->chunk.end || comm->chunk.tensor != tensor || comm->chunk.total != len || comm->chunk.offset != at ||
            comm->chunk.len > len - at)
            return comm_fail(comm, SHOAL_ERR_INVALID, "tensor %u of %llu bytes expected, the donor gives %u of %llu",
                             tensor, (unsigned long long)len, comm->chunk.tensor,
                             (unsigned long long)comm->chunk.total);
        if (comm->chunk.len > 0)
            memcpy((uint8_t *)bytes + at, chunk_bytes(comm), comm->chunk.len);
        at += comm->chunk.len;
        err = took_chunk(comm);
        if (err != SHOAL_OK)
            return err;
    } while (at < len);
    return SHOAL_OK;
}
