/* Is a call sound, and do all members of the epoch make the same one?
 *
 *   each member      said[n % 2] = what it was asked for, then the phase     (words of the arena)
 *   leader of a host what its members said --> the leaders of the other hosts, and back
 *                    the first rank that differs from rank 0 --> other_rank, then world_op
 *
 * I1. All members find the same rank different, or none.
 * I2. A member that waits for a step while another waits here would wait for ever: who is here sees it, and closes the
 *     epoch, since its words in it have parted from the others'. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op.h"

#include "shoal/banned.h"

#define REFUSED ((uint8_t)SHOAL_OP_KIND_COUNT)

static const char *const kind_names[] = { "nothing",    "all_reduce", "reduce_scatter", "all_gather",
                                          "broadcast", "barrier",    "a refused call" };
static const char *const type_names[] = { "float32", "float64", "int32", "int64", "float16", "bfloat16", "bytes" };
static const char *const reduction_names[] = { "sum", "min", "max", "mean" };

uint32_t op_type_bytes(uint32_t type) { return type == OP_BYTES ? 1 : reduce_type_bytes(type); }

enum shoal_err op_check_epoch(struct shoal_comm *comm)
{
    if (comm->epoch.size == 0 || !comm->planned)
        return comm_fail(comm, SHOAL_ERR_INVALID,
                         "a collective outside of an epoch: shoal_comm_ready and shoal_comm_enter come first");
    return comm->epoch.hosts > 1 ? fabric_greeted(comm) : SHOAL_OK;
}

/* ---- one member alone ---- */

static bool reduces(uint32_t kind) { return kind == SHOAL_ALL_REDUCE || kind == SHOAL_REDUCE_SCATTER; }

static enum shoal_err check_dims(struct shoal_comm *comm, const struct shoal_op *op)
{
    uint64_t elems = 1;

    if (op->dim_count > SHOAL_DIMS_MAX)
        return comm_fail(comm, SHOAL_ERR_INVALID, "a tensor of %u dimensions: at most %u", op->dim_count,
                         SHOAL_DIMS_MAX);
    for (uint32_t i = 0; i < op->dim_count; i++)
        if (__builtin_mul_overflow(elems, op->dims[i], &elems))
            return comm_fail(comm, SHOAL_ERR_TOO_BIG, "the shape has more values than can be counted");
    if (op->dim_count > 0 && elems != op->elems)
        return comm_fail(comm, SHOAL_ERR_INVALID, "the shape has %llu values, the call %llu", (unsigned long long)elems,
                         (unsigned long long)op->elems);
    return SHOAL_OK;
}

static bool overlap(const uint8_t *a, uint64_t a_bytes, const uint8_t *b, uint64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

static enum shoal_err check_memory(struct shoal_comm *comm, const struct shoal_op *op)
{
    uint64_t bytes = op->elems * op_type_bytes(op->type);
    uint64_t in_bytes = op->kind == SHOAL_REDUCE_SCATTER ? bytes * comm->epoch.size : bytes;
    uint64_t out_bytes = op->kind == SHOAL_ALL_GATHER ? bytes * comm->epoch.size : bytes;
    uint64_t in_place = bytes * comm->epoch.rank;
    const uint8_t *in = op->in;
    const uint8_t *out = op->out;
    bool root = op->kind == SHOAL_BROADCAST && op->root == comm->epoch.rank;

    if (op->elems == 0 || op->kind == SHOAL_BARRIER)
        return SHOAL_OK;
    if ((in == NULL && (op->kind != SHOAL_BROADCAST || root)) || (out == NULL && !root))
        return comm_fail(comm, SHOAL_ERR_INVALID, "%s of %llu values without memory", kind_names[op->kind],
                         (unsigned long long)op->elems);
    if ((uintptr_t)in % op_type_bytes(op->type) != 0 || (uintptr_t)out % op_type_bytes(op->type) != 0)
        return comm_fail(comm, SHOAL_ERR_INVALID, "%s at an address that is no multiple of its %u bytes",
                         type_names[op->type], op_type_bytes(op->type));
    if (op->kind == SHOAL_BROADCAST || (op->kind == SHOAL_ALL_REDUCE && in == out) ||
        (op->kind == SHOAL_REDUCE_SCATTER && in + in_place == out) ||
        (op->kind == SHOAL_ALL_GATHER && out + in_place == in))
        return SHOAL_OK;
    if (overlap(in, in_bytes, out, out_bytes))
        return comm_fail(comm, SHOAL_ERR_INVALID, "%s: `in` and `out` overlap, and not as in place",
                         kind_names[op->kind]);
    return SHOAL_OK;
}

enum shoal_err op_check(struct shoal_comm *comm, const struct shoal_op *op)
{
    enum shoal_err err;

    if (op->kind == SHOAL_NO_OP || op->kind >= SHOAL_OP_KIND_COUNT)
        return comm_fail(comm, SHOAL_ERR_INVALID, "a collective of kind %u: there is none", op->kind);
    if (op->kind == SHOAL_BARRIER)
        return SHOAL_OK;
    if (op->type > (op->kind == SHOAL_BROADCAST ? OP_BYTES : OP_BYTES - 1))
        return comm_fail(comm, SHOAL_ERR_INVALID, "%s of type %u: there is none", kind_names[op->kind], op->type);
    if (reduces(op->kind) && op->reduction >= SHOAL_REDUCTION_COUNT)
        return comm_fail(comm, SHOAL_ERR_INVALID, "%s by reduction %u: there is none", kind_names[op->kind],
                         op->reduction);
    if (op->memory >= SHOAL_MEMORY_COUNT)
        return comm_fail(comm, SHOAL_ERR_INVALID, "%s in memory of kind %u: there is none", kind_names[op->kind],
                         op->memory);
    if (op->memory == SHOAL_MEMORY_DEVICE && comm->device == NULL)
        return comm_fail(comm, SHOAL_ERR_UNSUPPORTED, "%s on device memory, and no device was opened",
                         kind_names[op->kind]);
    if (op->kind == SHOAL_BROADCAST && op->root >= comm->epoch.size)
        return comm_fail(comm, SHOAL_ERR_INVALID, "broadcast from rank %u of %u", op->root, comm->epoch.size);
    if (op->elems > UINT64_MAX / 16 / comm->epoch.size)
        return comm_fail(comm, SHOAL_ERR_TOO_BIG, "%s of %llu values", kind_names[op->kind],
                         (unsigned long long)op->elems);
    err = check_dims(comm, op);
    return err == SHOAL_OK ? check_memory(comm, op) : err;
}

/* ---- all of them ---- */

/* NCCL's mean of integers is not said anywhere: ours is the tree's. */
static bool suits_nccl(const struct shoal_comm *comm, const struct shoal_op *op)
{
    return op->any_order != 0 && op->memory == SHOAL_MEMORY_DEVICE && op->elems > 0 && op_nccl_there(comm) &&
           !(op->reduction == SHOAL_MEAN && (op->type == SHOAL_INT32 || op->type == SHOAL_INT64));
}

static void fill_said(const struct shoal_comm *comm, const struct shoal_op *op, bool refused, struct arena_said *said)
{
    *said = (struct arena_said){ .kind = refused ? REFUSED : (uint8_t)op->kind };
    if (refused || op->kind == SHOAL_BARRIER)
        return;
    said->type = (uint8_t)op->type;
    said->reduction = (uint8_t)(reduces(op->kind) ? op->reduction : 0);
    said->memory = (uint8_t)op->memory;
    said->native = suits_nccl(comm, op);
    said->root = op->kind == SHOAL_BROADCAST ? op->root : 0;
    said->elems = op->elems;
    said->dim_count = (uint8_t)op->dim_count;
    _Static_assert(sizeof(said->dims) == sizeof(op->dims), "a shape fits");
    memcpy(said->dims, op->dims, op->dim_count * sizeof(op->dims[0]));
}

/* Ranks may differ in where memory lies, and in whether NCCL may be used. */
static bool same_said(const struct arena_said *a, const struct arena_said *b)
{
    return a->kind == b->kind && a->kind < REFUSED && a->type == b->type && a->reduction == b->reduction &&
           a->root == b->root && a->elems == b->elems && a->dim_count == b->dim_count &&
           memcmp(a->dims, b->dims, sizeof(a->dims)) == 0;
}

/* A name for a number that may come from another host. */
static const char *name_of(const char *const *names, size_t count, uint32_t i) { return i < count ? names[i] : "?"; }
#define NAME_OF(names, i) name_of(names, sizeof(names) / sizeof(names[0]), i)

static void describe(const struct arena_said *said, char *text, size_t cap)
{
    size_t len = (size_t)snprintf(text, cap, "%s", NAME_OF(kind_names, said->kind));

    if (said->kind == SHOAL_NO_OP || said->kind >= SHOAL_BARRIER)
        return;
    if (reduces(said->kind) && len < cap)
        len += (size_t)snprintf(text + len, cap - len, " (%s)", NAME_OF(reduction_names, said->reduction));
    if (said->kind == SHOAL_BROADCAST && len < cap)
        len += (size_t)snprintf(text + len, cap - len, " from rank %u", said->root);
    if (len < cap)
        len += (size_t)snprintf(text + len, cap - len, " of %s [", NAME_OF(type_names, said->type));
    if (said->dim_count == 0 && len < cap)
        len += (size_t)snprintf(text + len, cap - len, "%llu", (unsigned long long)said->elems);
    for (uint32_t i = 0; i < said->dim_count && i < SHOAL_DIMS_MAX && len < cap; i++)
        len += (size_t)snprintf(text + len, cap - len, "%s%llu", i == 0 ? "" : ", ", (unsigned long long)said->dims[i]);
    if (len < cap)
        (void)snprintf(text + len, cap - len, "]");
}

static enum shoal_err refuse(struct shoal_comm *comm, uint32_t rank, const struct arena_said *first,
                             const struct arena_said *other)
{
    char ours[120];
    char theirs[120];

    describe(first, ours, sizeof(ours));
    describe(other, theirs, sizeof(theirs));
    if (first->kind >= REFUSED)
        return comm_fail(comm, SHOAL_ERR_INVALID, "rank 0 was refused its collective; its own message says why");
    if (other->kind >= REFUSED)
        return comm_fail(comm, SHOAL_ERR_INVALID,
                         "rank %u was refused its collective, where rank 0 calls %s; its own message says why", rank,
                         ours);
    return comm_fail(comm, SHOAL_ERR_INVALID,
                     "rank %u calls %s, but rank 0 calls %s: every member makes the same calls in the same order", rank,
                     theirs, ours);
}

/* The first of `size` that differs from the one of rank 0, or 0. A libshoal that says nothing is believed. */
static uint32_t first_other(const struct arena_said *all, uint32_t size)
{
    if (all[0].kind >= REFUSED)
        return size; /* rank 0 itself */
    for (uint32_t rank = 1; rank < size; rank++)
        if (all[0].kind != SHOAL_NO_OP && all[rank].kind != SHOAL_NO_OP && !same_said(&all[rank], &all[0]))
            return rank;
    return 0;
}

static void gather_local(struct shoal_comm *comm, struct arena_said *all)
{
    const struct epoch *epoch = &comm->epoch;

    for (uint32_t i = 0; i < epoch->local_count; i++)
        all[epoch->local[i]] = epoch->peers[epoch->local[i]].words->said[comm->op_number % 2];
}

/* Copies what the members of `host` said to one place after the other, or back from there. */
static uint32_t pack(const struct epoch *epoch, uint32_t host, struct arena_said *all, struct arena_said *packed,
                     bool back)
{
    uint32_t count = 0;

    for (uint32_t rank = 0; rank < epoch->size; rank++) {
        if (epoch->peers[rank].host != host)
            continue;
        if (back)
            all[rank] = packed[count++];
        else
            packed[count++] = all[rank];
    }
    return count;
}

/* The leaders tell each other. `all` has room for twice the members: the second half is on its way. */
static enum shoal_err gather_world(struct shoal_comm *comm, struct arena_said *all)
{
    const struct epoch *epoch = &comm->epoch;
    struct transport_request *requests[2 * SHOAL_RANKS_MAX];
    struct arena_said *at[SHOAL_RANKS_MAX];
    struct arena_said *packed = all + epoch->size;
    uint32_t count = 0;
    enum shoal_err err;

    for (uint32_t host = 0; host < epoch->hosts; host++) {
        at[host] = packed;
        packed += pack(epoch, host, all, packed, false);
    }
    for (uint32_t host = 0; host < epoch->hosts; host++) {
        uint32_t leader = epoch->leaders[host];
        uint64_t last = host + 1 < epoch->hosts ? (uint64_t)(at[host + 1] - at[host]) : (uint64_t)(packed - at[host]);

        if (host == epoch->host)
            continue;
        requests[count++] = fabric_recv(comm, fabric_tag(comm, FABRIC_OP, leader, comm->op, 0), at[host],
                                        (size_t)last * sizeof(struct arena_said));
        requests[count++] = fabric_send(comm, leader, fabric_tag(comm, FABRIC_OP, epoch->rank, comm->op, 0),
                                        at[epoch->host], epoch->local_count * sizeof(struct arena_said));
    }
    err = fabric_finish(comm, requests, count);
    for (uint32_t host = 0; host < epoch->hosts && err == SHOAL_OK; host++)
        if (host != epoch->host)
            (void)pack(epoch, host, all, at[host], true);
    return err;
}

static bool always(struct shoal_comm *comm, uint64_t arg)
{
    (void)comm;
    (void)arg;
    return true;
}

static bool world_said(struct shoal_comm *comm, uint64_t phase)
{
    const struct epoch *epoch = &comm->epoch;
    const struct arena_words *words = epoch->peers[epoch->leaders[epoch->host]].words;

    return atomic_load(&words->epoch) == epoch->word && atomic_load(&words->world_op) >= phase;
}

/* The leader of my host has heard the others, and says whether all agree. */
static enum shoal_err agree_world(struct shoal_comm *comm)
{
    const struct epoch *epoch = &comm->epoch;
    const struct arena_words *leader = epoch->peers[epoch->leaders[epoch->host]].words;
    struct arena_words *words = arena_my_words(&comm->arena);
    struct arena_said *all;
    uint32_t other;
    enum shoal_err err;

    if (epoch->leaders[epoch->host] != epoch->rank) {
        err = comm_wait(comm, world_said, comm->op);
        if (err != SHOAL_OK || leader->other_rank == 0)
            return err;
        return refuse(comm, leader->other_rank, &leader->first_said, &leader->other_said);
    }
    all = (struct arena_said *)(void *)fabric_slab(comm, 2 * epoch->size * sizeof(struct arena_said));
    if (all == NULL)
        return comm_fail(comm, SHOAL_ERR_FULL, "no memory for a collective");
    memset(all, 0, 2 * epoch->size * sizeof(*all));
    gather_local(comm, all);
    err = gather_world(comm, all);
    if (err != SHOAL_OK)
        return err;
    other = first_other(all, epoch->size);
    words->other_rank = other;
    words->first_said = all[0];
    words->other_said = all[other % epoch->size];
    err = comm_say(comm, &words->world_op, comm->op, always);
    return err == SHOAL_OK && other != 0 ? refuse(comm, other, &words->first_said, &words->other_said) : err;
}

/* A member on this host that has contributed to a step to which I have not, and so waits for me there; -1: none. */
static int waits_in_a_step(struct shoal_comm *comm, uint64_t phase)
{
    const struct epoch *epoch = &comm->epoch;
    uint64_t mine = atomic_load(&arena_my_words(&comm->arena)->contributed);

    for (uint32_t i = 0; i < epoch->local_count; i++) {
        const struct arena_words *words = epoch->peers[epoch->local[i]].words;

        if (atomic_load(&words->epoch) == epoch->word && atomic_load(&words->contributed) > mine &&
            atomic_load(&words->op) < phase)
            return (int)epoch->local[i];
    }
    return -1;
}

static bool said_or_stuck(struct shoal_comm *comm, uint64_t phase)
{
    return op_all_said(comm, phase) || waits_in_a_step(comm, phase) >= 0;
}

static enum shoal_err say_mine(struct shoal_comm *comm, const struct shoal_op *op, bool refused)
{
    struct arena_words *words = arena_my_words(&comm->arena);
    uint64_t phase = ++comm->op;
    enum shoal_err err;
    int stuck;

    comm->op_number++;
    fill_said(comm, op, refused, &words->said[comm->op_number % 2]);
    err = comm_say(comm, &words->op, phase, op_all_said);
    if (err == SHOAL_OK)
        err = comm_wait(comm, said_or_stuck, phase);
    if (err != SHOAL_OK || op_all_said(comm, phase))
        return err;
    stuck = waits_in_a_step(comm, phase);
    if (stuck < 0)
        return SHOAL_OK;
    epoch_close(comm); /* I2 */
    return comm_fail(comm, SHOAL_ERR_INVALID,
                     "%s here, but rank %d reduces step %llu: every member makes the same calls in the same order",
                     NAME_OF(kind_names, op->kind), stuck,
                     (unsigned long long)atomic_load(&comm->epoch.peers[stuck].words->contributed));
}

enum shoal_err op_agree(struct shoal_comm *comm, const struct shoal_op *op, bool refused)
{
    const struct epoch *epoch = &comm->epoch;
    enum shoal_err err = say_mine(comm, op, refused);
    uint32_t other;

    comm->op_native = err == SHOAL_OK && epoch->hosts == 1;
    if (err != SHOAL_OK)
        return err;
    if (epoch->hosts > 1)
        return agree_world(comm);
    { /* all of them are here */
        struct arena_said all[SHOAL_RANKS_MAX];

        gather_local(comm, all);
        for (uint32_t rank = 0; rank < epoch->size; rank++)
            comm->op_native = comm->op_native && all[rank].native;
        other = first_other(all, epoch->size);
        return other == 0 ? SHOAL_OK : refuse(comm, other, &all[0], &all[other % epoch->size]);
    }
}
