/* The sum of vectors whose parts lie with many workers (reference/data-plane 11.5; DESIGN 6).
 *
 *   the vector is cut into one slice per rank, in whole pages; rank r owns slice r
 *
 *   in a host        each worker reads its slice of all local inputs once and writes the sum once
 *   between hosts    for a slice owned elsewhere, one worker of the host (its home here) sends the host's partial sums
 *                    of it to the owner; the owner adds everything up in the order of the tree and sends the result
 *                    back
 *
 *     host A: rank 0, 1            host B: rank 2
 *       slice 0, 1: owned            slice 2: owned, slices 0 and 1: home of both
 *       slice 2: home rank 0
 *
 * I1. The order of additions is the tree over v (tree.h), whatever the hosts.
 * I2. Only the home of a slice writes it on its host.
 * I3. What arrives goes into slabs of the library or into the result buffer, never into the caller's memory. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"

#include "shoal/banned.h"

#define OPS_MAX (SHOAL_RANKS_MAX * TREE_NODES_MAX + 8)
#define CHUNK_BYTES (512 * SHOAL_KIB) /* what was read is added up and sent on while it is in the cache of its core */
#define CHUNKS_MAX 256u               /* of a slice: 8 bits in the tag; larger slices have larger chunks */
#define WINDOW 8u                     /* chunks under way per slice: more than a turn of the transport can bring */
#define REMOTE_NODES_MAX 31u
#define PART_OPS_MAX 256u
#define CHECK_BYTES (64 * SHOAL_KIB)

enum shoal_err exchange_create(struct shoal_comm *comm)
{
    if (comm->exchange == NULL)
        comm->exchange = calloc(1, sizeof(*comm->exchange));
    if (comm->ops == NULL)
        comm->ops = malloc(OPS_MAX * sizeof(*comm->ops));
    if (comm->temporaries == NULL)
        comm->temporaries = aligned_alloc(64, (TREE_DEPTH_MAX + 1) * (size_t)KERNEL_PIECE_BYTES);
    comm->ops_cap = OPS_MAX;
    if (comm->exchange == NULL || comm->ops == NULL || comm->temporaries == NULL)
        return comm_fail(comm, SHOAL_ERR_FULL, "no memory for a reduction");
    return SHOAL_OK;
}

void exchange_destroy(struct shoal_comm *comm)
{
    free(comm->exchange);
    free(comm->between);
    free(comm->ops);
    free(comm->temporaries);
    comm->exchange = NULL;
    comm->between = NULL;
    comm->ops = NULL;
    comm->temporaries = NULL;
}

void exchange_slice(const struct epoch *epoch, uint64_t bytes, uint32_t rank, uint64_t *begin, uint64_t *end)
{
    uint64_t pages = (bytes + ARENA_PAGE - 1) / ARENA_PAGE;

    *begin = pages * rank / epoch->size * ARENA_PAGE;
    *end = pages * (rank + 1) / epoch->size * ARENA_PAGE;
    if (*end > bytes)
        *end = bytes;
    if (*begin > *end)
        *begin = *end;
}

uint32_t exchange_home(const struct epoch *epoch, uint32_t rank, uint32_t host)
{
    uint32_t members = 0;
    uint32_t want;

    if (epoch->peers[rank].host == host)
        return rank;
    for (uint32_t i = 0; i < epoch->size; i++)
        members += epoch->peers[i].host == host ? 1 : 0;
    SHOAL_ASSERT(members > 0); /* hosts are numbered by their members */
    want = rank % members;
    for (uint32_t i = 0; i < epoch->size; i++)
        if (epoch->peers[i].host == host && want-- == 0)
            return i;
    return epoch->leaders[host];
}

/* A compiled sum with its operands, all of which begin at offset `origin` of the vector. */
struct sum {
    const struct tree_program *program;
    const struct exchange_input *inputs;
    uint64_t origin; /* offset in the vector of byte 0 of every input's base */
    uint32_t type;
    uint32_t reduction;
    float divisor;
};

static void add_values(const struct shoal_comm *comm, const struct sum *sum, void *into, const void *a, const void *b,
                       size_t bytes)
{
    if (sum->type == SHOAL_FLOAT32 && sum->reduction == SHOAL_SUM)
        comm->kernels->add_f32(into, a, b, bytes / 4);
    else
        reduce_kernels_get()->combine[sum->type][sum->reduction](into, a, b, bytes / reduce_type_bytes(sum->type));
}

static const uint8_t *operand(const struct sum *sum, uint8_t *temporaries, int16_t which, uint64_t at)
{
    if (which < 0)
        return temporaries + (size_t)(-1 - which) * KERNEL_PIECE_BYTES;
    return sum->inputs[which].base + (at - sum->origin);
}

/* One piece of at most KERNEL_PIECE_BYTES at offset `at` of the vector, into `into`. */
static void sum_piece(const struct shoal_comm *comm, const struct sum *sum, uint64_t at, size_t bytes, uint8_t *into)
{
    const struct tree_program *program = sum->program;
    uint8_t *t = comm->temporaries;

    if (program->count == 0) {
        const uint8_t *only = operand(sum, t, program->only, at);

        if (sum->divisor != 0)
            comm->kernels->div_f32((float *)(void *)into, (const float *)(const void *)only, sum->divisor, bytes / 4);
        else if (into != only)
            memcpy(into, only, bytes);
        return;
    }
    for (uint32_t i = 0; i < program->count; i++) {
        const struct tree_op *op = &program->ops[i];
        const uint8_t *left = operand(sum, t, op->left, at);
        const uint8_t *right = operand(sum, t, op->right, at);

        if (i + 1 < program->count)
            add_values(comm, sum, t + (size_t)(-1 - op->into) * KERNEL_PIECE_BYTES, left, right, bytes);
        else if (sum->divisor != 0)
            comm->kernels->add_div_f32((float *)(void *)into, (const float *)(const void *)left,
                                       (const float *)(const void *)right, sum->divisor, bytes / 4);
        else
            add_values(comm, sum, into, left, right, bytes);
    }
}

/* What the members of this host say they hold does not add up. Of an epoch that was revoked since all had contributed it need
 * not: others have entered the next one, and their words are of that. */
static enum shoal_err not_a_sum(struct shoal_comm *comm, const char *whose, uint32_t v_count)
{
    if (epoch_is_revoked(comm)) {
        epoch_close(comm);
        return comm_fail(comm, SHOAL_ERR_RANK_LOST, "epoch %u.%u is revoked", comm->epoch.id.e, comm->epoch.id.k);
    }
    return comm_fail(comm, SHOAL_ERR_INVALID, "the contributions of %s do not make up a sum of %u", whose, v_count);
}

/* Final sum of [begin, end) of the vector: to every `into`, with the digest. */
static enum shoal_err sum_final(struct shoal_comm *comm, struct exchange *exchange, const struct sum *sum,
                                uint64_t begin, uint64_t end)
{
    for (uint64_t at = begin; at < end; at += KERNEL_PIECE_BYTES) {
        size_t bytes = end - at < KERNEL_PIECE_BYTES ? (size_t)(end - at) : KERNEL_PIECE_BYTES;

        if ((at - begin) % CHECK_BYTES == 0 && epoch_is_revoked(comm)) {
            epoch_close(comm);
            return comm_fail(comm, SHOAL_ERR_RANK_LOST, "epoch %u.%u is revoked", comm->epoch.id.e, comm->epoch.id.k);
        }
        if (exchange->may_fault && at - begin <= (end - begin) / 2 && at - begin + bytes > (end - begin) / 2)
            fault_point(&comm->fault, FAULT_MID_REDUCE, exchange->op);
        sum_piece(comm, sum, at, bytes, exchange->into[0] + at);
        for (uint32_t i = 1; i < exchange->into_count; i++)
            memcpy(exchange->into[i] + at, exchange->into[0] + at, bytes);
        if (exchange->want_digest)
            exchange->digest += kernels_digest(exchange->into[0] + at, bytes, at);
        if (exchange->update)
            update_slice(comm, exchange->into[0] + at, at, bytes);
    }
    return SHOAL_OK;
}

enum shoal_err exchange_part(struct shoal_comm *comm, struct exchange *exchange, uint64_t begin, uint64_t end)
{
    struct tree_program program = { .ops = comm->ops, .cap = comm->ops_cap };
    struct tree_node nodes[SHOAL_RANKS_MAX * TREE_NODES_MAX];
    struct sum sum = { .program = &program,
                       .inputs = exchange->inputs,
                       .type = exchange->type,
                       .reduction = exchange->reduction,
                       .divisor = exchange->divisor };

    for (uint32_t i = 0; i < exchange->input_count; i++)
        nodes[i] = exchange->inputs[i].node;
    if (!tree_compile(&program, nodes, exchange->input_count, (struct tree_node){ 0, exchange->v_count }))
        return not_a_sum(comm, "this host", exchange->v_count);
    return sum_final(comm, exchange, &sum, begin, end);
}

static enum shoal_err run_in_host(struct shoal_comm *comm, struct exchange *exchange)
{
    uint64_t begin;
    uint64_t end;

    exchange_slice(&comm->epoch, exchange->bytes, comm->epoch.rank, &begin, &end);
    if (exchange->rest && exchange->rest_end < end)
        end = exchange->rest_end;
    if (begin >= end) {
        fault_point(&comm->fault, FAULT_MID_REDUCE, exchange->op);
        return SHOAL_OK;
    }
    return exchange_part(comm, exchange, begin, end);
}

/* ---- between hosts ---- */

/* A partial sum of a host that travels: a node of the tree, and where this host has it. */
struct part {
    struct tree_node node;
    int direct; /* index of the input that is exactly this node, or -1 */
    struct tree_program program;
    struct tree_op ops[PART_OPS_MAX];
};

static uint32_t host_nodes(const struct shoal_comm *comm, const struct exchange *exchange, uint32_t host,
                           struct tree_node *nodes)
{
    uint8_t held[SHOAL_VIRTUAL_MAX] = { 0 };

    for (uint32_t rank = 0; rank < comm->epoch.size; rank++)
        for (uint32_t v = exchange->begins[rank]; comm->epoch.peers[rank].host == host && v < exchange->ends[rank]; v++)
            held[v] = 1;
    return tree_cover(held, exchange->v_count, nodes, REMOTE_NODES_MAX);
}

/* One slice owned by another host: I send my host's partial sums and receive the result. */
struct outgoing {
    uint32_t owner;
    uint64_t begin;
    uint64_t end;
    uint64_t chunk;
    uint32_t chunks;
    uint32_t sent;     /* chunks whose sends were posted */
    uint32_t received; /* chunks whose receive is done */
    uint32_t posted;   /* receives posted */
    uint8_t *outbox;   /* WINDOW x nodes chunks, NULL if all parts are direct */
    struct transport_request *sends[WINDOW][REMOTE_NODES_MAX];
    struct transport_request *receives[WINDOW];
};

/* My own slice: partial sums of every other host come in, the result goes out to each host's home of it. */
struct owned {
    uint64_t begin;
    uint64_t end;
    uint64_t chunk;
    uint32_t chunks;
    uint32_t posted;
    uint32_t summed;
    uint32_t remote_count;
    uint32_t remote_source[SHOAL_RANKS_MAX * 4]; /* by remote part: the rank that sends it */
    uint32_t remote_index[SHOAL_RANKS_MAX * 4];  /* its number among the parts of its host */
    uint32_t remote_input[SHOAL_RANKS_MAX * 4];  /* its place among the inputs */
    uint8_t *inbox;                              /* WINDOW x remote_count chunks */
    struct transport_request *receives[WINDOW][SHOAL_RANKS_MAX * 4];
    struct transport_request *sends[WINDOW][SHOAL_RANKS_MAX];
    uint32_t homes[SHOAL_RANKS_MAX]; /* by host: who takes my result there */
    struct tree_program program;
    struct exchange_input inputs[SHOAL_RANKS_MAX * TREE_NODES_MAX + SHOAL_RANKS_MAX * 4];
    uint32_t input_count;
};

struct between {
    struct part parts[REMOTE_NODES_MAX];
    uint32_t part_count;
    struct owned owned;
    bool ready;
    uint32_t outgoing_count;
    struct outgoing outgoing[SHOAL_RANKS_MAX]; /* cleared for as many as there are members */
};

static uint64_t chunk_size(uint64_t begin, uint64_t end)
{
    uint64_t share = (end - begin + CHUNKS_MAX - 1) / CHUNKS_MAX;

    share = (share + ARENA_PAGE - 1) / ARENA_PAGE * ARENA_PAGE;
    return share > CHUNK_BYTES ? share : CHUNK_BYTES;
}

static uint32_t chunk_count(uint64_t begin, uint64_t end, uint64_t chunk)
{
    return (uint32_t)((end - begin + chunk - 1) / chunk);
}

static size_t chunk_len(uint64_t begin, uint64_t end, uint64_t chunk, uint32_t i)
{
    uint64_t at = begin + i * chunk;

    return (size_t)(end - at < chunk ? end - at : chunk);
}

static enum shoal_err plan_parts(struct shoal_comm *comm, const struct exchange *exchange, struct between *between)
{
    struct tree_node inputs[SHOAL_RANKS_MAX * TREE_NODES_MAX];
    struct tree_node nodes[REMOTE_NODES_MAX];

    for (uint32_t i = 0; i < exchange->input_count; i++)
        inputs[i] = exchange->inputs[i].node;
    between->part_count = host_nodes(comm, exchange, comm->epoch.host, nodes);
    if (between->part_count == 0 && exchange->input_count > 0)
        return comm_fail(comm, SHOAL_ERR_TOO_BIG,
                         "the mini-batches of this host lie in more than %u pieces: order the "
                         "ranks by host",
                         REMOTE_NODES_MAX);
    for (uint32_t i = 0; i < between->part_count; i++) {
        struct part *part = &between->parts[i];

        *part = (struct part){ .node = nodes[i], .direct = -1 };
        part->program = (struct tree_program){ .ops = part->ops, .cap = PART_OPS_MAX };
        if (!tree_compile(&part->program, inputs, exchange->input_count, part->node))
            return not_a_sum(comm, "this host", part->node.end - part->node.begin);
        if (part->program.count == 0)
            part->direct = part->program.only;
    }
    return SHOAL_OK;
}

static void add_input(struct owned *owned, struct tree_node node, const uint8_t *base)
{
    uint32_t at = owned->input_count++;

    for (; at > 0 && owned->inputs[at - 1].node.begin > node.begin; at--)
        owned->inputs[at] = owned->inputs[at - 1];
    owned->inputs[at] = (struct exchange_input){ node, base };
}

static enum shoal_err plan_owned(struct shoal_comm *comm, const struct exchange *exchange, struct between *between)
{
    struct owned *owned = &between->owned;
    const struct epoch *epoch = &comm->epoch;
    struct tree_node nodes[SHOAL_RANKS_MAX * TREE_NODES_MAX + SHOAL_RANKS_MAX * 4];
    struct tree_node remote[SHOAL_RANKS_MAX * 4] = { { 0 } };

    exchange_slice(epoch, exchange->bytes, epoch->rank, &owned->begin, &owned->end);
    owned->chunk = chunk_size(owned->begin, owned->end);
    owned->chunks = chunk_count(owned->begin, owned->end, owned->chunk);
    for (uint32_t i = 0; i < exchange->input_count; i++)
        add_input(owned, exchange->inputs[i].node, exchange->inputs[i].base);
    for (uint32_t host = 0; host < epoch->hosts; host++) {
        struct tree_node theirs[REMOTE_NODES_MAX];
        uint32_t count = host == epoch->host ? 0 : host_nodes(comm, exchange, host, theirs);

        owned->homes[host] = exchange_home(epoch, epoch->rank, host);
        for (uint32_t i = 0; i < count; i++) {
            if (owned->remote_count == SHOAL_RANKS_MAX * 4)
                return comm_fail(comm, SHOAL_ERR_TOO_BIG, "more than %u partial sums between hosts",
                                 SHOAL_RANKS_MAX * 4);
            remote[owned->remote_count] = theirs[i];
            owned->remote_source[owned->remote_count] = owned->homes[host];
            owned->remote_index[owned->remote_count++] = i;
            add_input(owned, theirs[i], NULL);
        }
    }
    for (uint32_t i = 0; i < owned->input_count; i++)
        nodes[i] = owned->inputs[i].node;
    for (uint32_t r = 0; r < owned->remote_count; r++)
        for (uint32_t i = 0; i < owned->input_count; i++)
            if (owned->inputs[i].base == NULL && nodes[i].begin == remote[r].begin)
                owned->remote_input[r] = i;
    owned->program = (struct tree_program){ .ops = comm->ops, .cap = comm->ops_cap };
    if (owned->chunks > 0 &&
        !tree_compile(&owned->program, nodes, owned->input_count, (struct tree_node){ 0, exchange->v_count }))
        return not_a_sum(comm, "all hosts", exchange->v_count);
    return SHOAL_OK;
}

static bool parts_are_direct(const struct between *between)
{
    for (uint32_t i = 0; i < between->part_count; i++)
        if (between->parts[i].direct < 0)
            return false;
    return true;
}

static void plan_outgoing(struct shoal_comm *comm, const struct exchange *exchange, struct between *between)
{
    const struct epoch *epoch = &comm->epoch;

    for (uint32_t rank = 0; rank < epoch->size; rank++) {
        struct outgoing *out = &between->outgoing[between->outgoing_count];

        if (epoch->peers[rank].host == epoch->host || exchange_home(epoch, rank, epoch->host) != epoch->rank)
            continue;
        out->owner = rank;
        exchange_slice(epoch, exchange->bytes, rank, &out->begin, &out->end);
        out->chunk = chunk_size(out->begin, out->end);
        out->chunks = chunk_count(out->begin, out->end, out->chunk);
        if (out->chunks > 0)
            between->outgoing_count++;
    }
}

/* Boxes for what cannot be sent or received in place. */
static enum shoal_err take_boxes(struct shoal_comm *comm, struct between *between)
{
    bool direct = parts_are_direct(between);
    struct owned *owned = &between->owned;
    size_t bytes = owned->chunks > 0 ? WINDOW * owned->remote_count * (size_t)owned->chunk : 0;
    uint8_t *slab;

    for (uint32_t i = 0; i < between->outgoing_count && !direct; i++)
        bytes += WINDOW * between->part_count * (size_t)between->outgoing[i].chunk;
    slab = fabric_slab(comm, bytes + 64);
    if (slab == NULL)
        return comm_fail(comm, SHOAL_ERR_FULL, "no memory for %zu bytes between hosts", bytes);
    owned->inbox = slab;
    slab += owned->chunks > 0 ? WINDOW * owned->remote_count * (size_t)owned->chunk : 0;
    for (uint32_t i = 0; i < between->outgoing_count && !direct; i++) {
        between->outgoing[i].outbox = slab;
        slab += WINDOW * between->part_count * (size_t)between->outgoing[i].chunk;
    }
    return SHOAL_OK;
}

static bool requests_done(struct shoal_comm *comm, struct transport_request **requests, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (fabric_test(comm, &requests[i]) == TRANSPORT_PENDING)
            return false;
    return true;
}

static void outgoing_send(struct shoal_comm *comm, const struct exchange *exchange, struct between *between,
                          struct outgoing *out)
{
    uint32_t window = out->sent % WINDOW;
    uint64_t at = out->begin + out->sent * out->chunk;
    size_t len = chunk_len(out->begin, out->end, out->chunk, out->sent);

    for (uint32_t i = 0; i < between->part_count; i++) {
        const struct part *part = &between->parts[i];
        const uint8_t *bytes;

        if (part->direct >= 0) {
            bytes = exchange->inputs[part->direct].base + at;
        } else {
            struct sum sum = { .program = &part->program,
                               .inputs = exchange->inputs,
                               .type = exchange->type,
                               .reduction = exchange->reduction };
            uint8_t *box = out->outbox + (window * between->part_count + i) * (size_t)out->chunk;

            for (size_t done = 0; done < len; done += KERNEL_PIECE_BYTES)
                sum_piece(comm, &sum, at + done, len - done < KERNEL_PIECE_BYTES ? len - done : KERNEL_PIECE_BYTES,
                          box + done);
            bytes = box;
        }
        out->sends[window][i] = fabric_send(
            comm, out->owner,
            fabric_tag(comm, exchange->partial_kind, comm->epoch.rank, exchange->op, out->sent << 5 | i), bytes, len);
    }
    out->sent++;
}

/* Ask for results, in place. */
static void outgoing_post(struct shoal_comm *comm, const struct exchange *exchange, struct outgoing *out)
{
    while (out->posted < out->chunks && out->posted < out->received + WINDOW) {
        uint64_t at = out->begin + out->posted * out->chunk;

        out->receives[out->posted % WINDOW] =
            fabric_recv(comm, fabric_tag(comm, exchange->result_kind, out->owner, exchange->op, out->posted),
                        exchange->into[0] + at, chunk_len(out->begin, out->end, out->chunk, out->posted));
        out->posted++;
    }
}

static bool outgoing_turn(struct shoal_comm *comm, struct exchange *exchange, struct between *between,
                          struct outgoing *out)
{
    if (out->sent < out->chunks && requests_done(comm, out->sends[out->sent % WINDOW], between->part_count))
        outgoing_send(comm, exchange, between, out);
    if (out->received < out->posted && requests_done(comm, &out->receives[out->received % WINDOW], 1)) {
        uint64_t at = out->begin + out->received * out->chunk;
        size_t len = chunk_len(out->begin, out->end, out->chunk, out->received);

        for (uint32_t i = 1; i < exchange->into_count; i++)
            memcpy(exchange->into[i] + at, exchange->into[0] + at, len);
        if (exchange->want_digest)
            exchange->digest += kernels_digest(exchange->into[0] + at, len, at);
        if (exchange->update)
            update_slice(comm, exchange->into[0] + at, at, len);
        out->received++;
    }
    return out->received == out->chunks && out->sent == out->chunks &&
           requests_done(comm, &out->sends[0][0], WINDOW * REMOTE_NODES_MAX);
}

static enum shoal_err owned_sum(struct shoal_comm *comm, struct exchange *exchange, struct owned *owned)
{
    uint32_t window = owned->summed % WINDOW;
    uint64_t at = owned->begin + owned->summed * owned->chunk;
    size_t len = chunk_len(owned->begin, owned->end, owned->chunk, owned->summed);
    struct sum sum = { .program = &owned->program,
                       .inputs = owned->inputs,
                       .type = exchange->type,
                       .reduction = exchange->reduction,
                       .divisor = exchange->divisor };
    enum shoal_err err;

    /* remote parts lie in the inbox: give them a base from which the offset in the vector counts */
    for (uint32_t r = 0; r < owned->remote_count; r++)
        owned->inputs[owned->remote_input[r]].base =
            owned->inbox + (window * owned->remote_count + r) * (size_t)owned->chunk - at;
    err = sum_final(comm, exchange, &sum, at, at + len);
    for (uint32_t host = 0; host < comm->epoch.hosts && err == SHOAL_OK; host++)
        if (host != comm->epoch.host)
            owned->sends[window][host] =
                fabric_send(comm, owned->homes[host],
                            fabric_tag(comm, exchange->result_kind, comm->epoch.rank, exchange->op, owned->summed),
                            exchange->into[0] + at, len);
    owned->summed++;
    if (exchange->may_fault && owned->summed == owned->chunks)
        fault_point(&comm->fault, FAULT_SLICES_DONE, exchange->op);
    return err;
}

/* Ask for partial sums, into boxes that are free again. */
static void owned_post(struct shoal_comm *comm, const struct exchange *exchange, struct owned *owned)
{
    while (owned->posted < owned->chunks && owned->posted < owned->summed + WINDOW) {
        uint32_t window = owned->posted % WINDOW;

        for (uint32_t r = 0; r < owned->remote_count; r++)
            owned->receives[window][r] =
                fabric_recv(comm,
                            fabric_tag(comm, exchange->partial_kind, owned->remote_source[r], exchange->op,
                                       owned->posted << 5 | owned->remote_index[r]),
                            owned->inbox + (window * owned->remote_count + r) * (size_t)owned->chunk,
                            chunk_len(owned->begin, owned->end, owned->chunk, owned->posted));
        owned->posted++;
    }
}

static enum shoal_err owned_turn(struct shoal_comm *comm, struct exchange *exchange, struct between *between,
                                 bool *over)
{
    struct owned *owned = &between->owned;
    enum shoal_err err = SHOAL_OK;

    if (between->ready && owned->summed < owned->posted &&
        requests_done(comm, owned->sends[owned->summed % WINDOW], comm->epoch.hosts) &&
        requests_done(comm, owned->receives[owned->summed % WINDOW], owned->remote_count))
        err = owned_sum(comm, exchange, owned);
    *over = owned->summed == owned->chunks;
    for (uint32_t i = 0; i < WINDOW && *over; i++)
        *over = requests_done(comm, owned->sends[i], comm->epoch.hosts);
    return err;
}

/* Grows with everything that a turn gets done. */
static uint64_t between_progress(const struct between *between)
{
    uint64_t done = between->owned.posted + between->owned.summed;

    for (uint32_t i = 0; i < between->outgoing_count; i++)
        done += between->outgoing[i].sent + between->outgoing[i].posted + between->outgoing[i].received;
    return done;
}

/* Receives are posted before the transport reads: what nobody has asked for costs memory and a copy. */
static void streams_post(struct shoal_comm *comm, const struct exchange *exchange, struct between *between)
{
    for (uint32_t i = 0; i < between->outgoing_count; i++)
        outgoing_post(comm, exchange, &between->outgoing[i]);
    owned_post(comm, exchange, &between->owned);
}

static bool streams_turn(struct shoal_comm *comm, struct exchange *exchange, struct between *between)
{
    bool over = true;

    for (uint32_t i = 0; i < between->outgoing_count; i++)
        over = outgoing_turn(comm, exchange, between, &between->outgoing[i]) && over;
    if (between->owned.chunks > 0) {
        bool owned_over = false;

        if (owned_turn(comm, exchange, between, &owned_over) != SHOAL_OK)
            owned_over = false; /* revoked: the next look at the word ends the wait */
        over = owned_over && over;
    }
    return over;
}

/* A turn of all streams; true when all are over. Used as the condition of comm_wait, which looks at the revoke word,
 * and which may sleep afterwards: so it goes on for as long as something moves. */
static bool between_turn(struct shoal_comm *comm, uint64_t arg)
{
    struct exchange *exchange = comm->exchange;
    struct between *between = comm->between;
    bool over = false;
    uint64_t before;

    (void)arg;
    (void)pthread_mutex_lock(&comm->fabric_lock);
    do {
        before = between_progress(between);
        streams_post(comm, exchange, between);
        if (!fabric_turn(comm))
            break;
        if (!between->ready)
            between->ready = exchange->ready == NULL || exchange->ready(comm, exchange);
        over = streams_turn(comm, exchange, between) && between->ready;
    } while (!over && between_progress(between) != before && !epoch_is_revoked(comm));
    (void)pthread_mutex_unlock(&comm->fabric_lock);
    return over;
}

static enum shoal_err run_between(struct shoal_comm *comm, struct exchange *exchange)
{
    enum shoal_err err = SHOAL_OK;

    if (comm->between == NULL)
        comm->between = malloc(sizeof(*comm->between));
    if (comm->between == NULL)
        return comm_fail(comm, SHOAL_ERR_FULL, "no memory for an exchange between hosts");
    memset(comm->between, 0, offsetof(struct between, outgoing) + comm->epoch.size * sizeof(comm->between->outgoing[0]));
    if (exchange->bytes > 0) {
        err = plan_parts(comm, exchange, comm->between);
        if (err == SHOAL_OK)
            err = plan_owned(comm, exchange, comm->between);
        if (err == SHOAL_OK)
            plan_outgoing(comm, exchange, comm->between);
        if (err == SHOAL_OK)
            err = take_boxes(comm, comm->between);
    }
    return err != SHOAL_OK ? err : comm_wait(comm, between_turn, 0);
}

enum shoal_err exchange_run(struct shoal_comm *comm, struct exchange *exchange)
{
    return comm->epoch.hosts == 1 ? run_in_host(comm, exchange) : run_between(comm, exchange);
}
