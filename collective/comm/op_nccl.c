/* Collectives over NCCL, among the ranks of one host that all hold their values on devices and let them be added up in any
 * order. What a new epoch does with the communicator of the one before:
 *
 *   every rank says what it holds --> rank 0 decides for all --> every rank does it, and says whether it went well
 *
 *   the same members         kept                  some fewer           shrunk, if all can
 *   some more, all of the    grown, if all can     anything else        made anew
 *     old ones first
 *
 * I1. All ranks do the same, or none: if one fails, all let go, and use host memory in this epoch.
 * I2. An operation that the end of the epoch interrupts leaves the communicator revoked, or aborted. */
#include <stdio.h>
#include <string.h>

#include "op.h"

#include "shoal/permute.h"

#include "shoal/banned.h"

enum nccl_mode { MODE_NONE, MODE_KEEP, MODE_SHRINK, MODE_GROW, MODE_MAKE };

static bool stop_revoked(void *arg) { return epoch_is_revoked(arg); }

bool op_nccl_there(const struct shoal_comm *comm) { return comm->device != NULL && comm->device->nccl.there; }

/* One line of each process, once: the others' libraries may be the reason. */
static void say_why(struct device *device, const char *why)
{
    if (device->said_why)
        return;
    device->said_why = true;
    (void)fprintf(stderr, "shoal: collectives of device memory go through host memory: %s\n", why);
}

static void say_held(struct shoal_comm *comm)
{
    const struct nccl_life *life = &comm->device->nccl;
    struct arena_words *words = arena_my_words(&comm->arena);

    words->nccl_name = life->comm == NULL ? 0 : life->name;
    words->nccl_flags = (life->revoked ? 0u : (uint32_t)NCCL_WHOLE) |
                        (life->table.shrink == NULL ? 0u : (uint32_t)NCCL_CAN_SHRINK) |
                        (life->table.grow == NULL || life->table.grow_id == NULL ? 0u : (uint32_t)NCCL_CAN_GROW);
}

/* How many ranks, from the first one on, hold what rank 0 holds; 0 if others hold something else, or hold it behind one that
 * does not. `flags`: what all can, and what all holders are. */
static uint32_t holders(const struct shoal_comm *comm, uint32_t *flags)
{
    const struct epoch *epoch = &comm->epoch;
    uint64_t name = epoch->peers[0].words->nccl_name;
    uint32_t count = 0;

    *flags = NCCL_WHOLE | NCCL_CAN_SHRINK | NCCL_CAN_GROW;
    for (uint32_t rank = 0; rank < epoch->size; rank++) {
        const struct arena_words *words = epoch->peers[rank].words;

        *flags &= words->nccl_flags;
        if (words->nccl_name == 0)
            continue;
        if (words->nccl_name != name || rank != count)
            return 0;
        count++;
    }
    return count;
}

/* The held communicator has these members in the order of the epoch's ranks, and perhaps others between them. */
static bool in_order(const struct shoal_comm *comm, uint32_t count)
{
    const struct nccl_life *life = &comm->device->nccl;
    uint32_t found = 0;

    for (uint32_t i = 0; i < life->size && found < count; i++)
        found += life->members[i] == comm->epoch.peers[found].worker_id;
    return found == count;
}

/* Rank 0 alone. */
static enum nccl_mode decide(struct shoal_comm *comm, struct nccl_id *id)
{
    struct device *device = comm->device;
    uint32_t size = comm->epoch.size;
    uint32_t flags = 0;
    uint32_t count = holders(comm, &flags);

    if (count > 0 && in_order(comm, count)) {
        if (count == size && device->nccl.size == size && (flags & NCCL_WHOLE))
            return MODE_KEEP;
        if (count == size && device->nccl.size > size && (flags & NCCL_CAN_SHRINK))
            return MODE_SHRINK;
        if (count < size && device->nccl.size == count && (flags & NCCL_WHOLE) && (flags & NCCL_CAN_GROW) &&
            !device->nccl.id_given) {
            device->nccl.id_given = true;
            if (device->nccl.table.grow_id(device->nccl.comm, id) == NCCL_OK)
                return MODE_GROW;
        }
    }
    return device->nccl.table.unique_id(id) == NCCL_OK ? MODE_MAKE : MODE_NONE;
}

static enum shoal_err carry_out(struct shoal_comm *comm, const struct arena_words *first, struct shoal_msg *msg)
{
    struct device *device = comm->device;
    const struct epoch *epoch = &comm->epoch;
    struct nccl_stop stop = { stop_revoked, comm };
    int excluded[SHOAL_RANKS_MAX];
    uint32_t count = 0;
    uint32_t next = 0;
    struct nccl_id id;

    memcpy(id.bytes, first->nccl_id, sizeof(id.bytes));
    switch ((enum nccl_mode)first->nccl_mode) {
    case MODE_KEEP: device->counts.kept++; return SHOAL_OK;
    case MODE_MAKE: return nccl_life_make(device, &id, epoch->size, epoch->rank, &stop, msg);
    case MODE_GROW:
        return nccl_life_grow(device, epoch->rank == 0 || device->nccl.comm == NULL ? &id : NULL, epoch->size,
                              epoch->rank, &stop, msg);
    case MODE_SHRINK:
        for (uint32_t i = 0; i < device->nccl.size; i++)
            if (next < epoch->size && device->nccl.members[i] == epoch->peers[next].worker_id)
                next++;
            else
                excluded[count++] = (int)i;
        return nccl_life_shrink(device, excluded, count, &stop, msg);
    case MODE_NONE: break;
    }
    return shoal_fail(msg, SHOAL_ERR_DEVICE, "ncclGetUniqueId failed at rank 0");
}

static bool all_well(const struct shoal_comm *comm)
{
    for (uint32_t rank = 0; rank < comm->epoch.size; rank++)
        if (comm->epoch.peers[rank].words->nccl_ok == 0)
            return false;
    return true;
}

static void remember(struct shoal_comm *comm, uint64_t name)
{
    struct nccl_life *life = &comm->device->nccl;

    life->name = name;
    life->size = comm->epoch.size;
    for (uint32_t rank = 0; rank < comm->epoch.size; rank++)
        life->members[rank] = comm->epoch.peers[rank].worker_id;
}

/* A communicator for this epoch. */
static enum shoal_err prepare(struct shoal_comm *comm)
{
    struct device *device = comm->device;
    struct arena_words *words = arena_my_words(&comm->arena);
    const struct arena_words *first = comm->epoch.peers[0].words;
    struct shoal_msg why = { "another rank of this host could not" };
    enum shoal_err err;
    enum shoal_err made;

    say_held(comm);
    err = op_local_phase(comm);
    if (err == SHOAL_OK && comm->epoch.rank == 0) {
        struct nccl_id id = { { 0 } };

        words->nccl_mode = decide(comm, &id);
        words->nccl_new = words->nccl_mode == MODE_KEEP ? device->nccl.name
                                                       : shoal_mix64(comm->epoch.word ^ comm->hello.worker_id) | 1;
        memcpy(words->nccl_id, id.bytes, sizeof(id.bytes));
    }
    if (err == SHOAL_OK)
        err = op_local_phase(comm);
    if (err != SHOAL_OK)
        return err;
    made = carry_out(comm, first, &why);
    words->nccl_ok = made == SHOAL_OK;
    if (made == SHOAL_OK)
        remember(comm, first->nccl_new);
    err = op_local_phase(comm);
    if (err != SHOAL_OK)
        return err;
    device->group_epoch = comm->epoch.word;
    device->group_stands = all_well(comm);
    if (!device->group_stands) {
        say_why(device, why.text);
        return nccl_life_abort(device, &comm->msg);
    }
    return SHOAL_OK;
}

static enum shoal_err run(struct shoal_comm *comm, const struct shoal_op *op)
{
    struct device *device = comm->device;
    const struct nccl_table *nccl = &device->nccl.table;
    struct nccl_stop stop = { stop_revoked, comm };
    int type = nccl_table_type(op->type);
    int how = nccl_table_reduction(op->reduction);
    const char *call = "ncclAllReduce";
    nccl_result result = NCCL_OK;
    enum shoal_err err = device_use(device, &comm->msg);
    nccl_comm with = device->nccl.comm;

    if (err != SHOAL_OK)
        return err;
    switch ((enum shoal_op_kind)op->kind) {
    case SHOAL_ALL_REDUCE:
        result = nccl->all_reduce(op->in, op->out, op->elems, type, how, with, device->stream);
        break;
    case SHOAL_REDUCE_SCATTER:
        call = "ncclReduceScatter";
        result = nccl->reduce_scatter(op->in, op->out, op->elems, type, how, with, device->stream);
        break;
    case SHOAL_ALL_GATHER:
        call = "ncclAllGather";
        result = nccl->all_gather(op->in, op->out, op->elems, type, with, device->stream);
        break;
    case SHOAL_BROADCAST:
        call = "ncclBroadcast";
        result = nccl->broadcast(op->in == NULL ? op->out : op->in, op->out == NULL ? (void *)(uintptr_t)op->in : op->out,
                                 op->elems, type, (int)op->root, with, device->stream);
        break;
    case SHOAL_BARRIER:
    case SHOAL_NO_OP:
    case SHOAL_OP_KIND_COUNT: return SHOAL_OK;
    }
    return nccl_life_finish(device, call, result, &stop, &comm->msg);
}

enum shoal_err op_nccl_run(struct shoal_comm *comm, const struct shoal_op *op, bool *done)
{
    struct device *device = comm->device;
    enum shoal_err err = device->group_epoch == comm->epoch.word ? SHOAL_OK : prepare(comm);

    *done = false;
    if (err != SHOAL_OK || !device->group_stands)
        return err;
    err = run(comm, op);
    *done = true;
    if (err == SHOAL_OK || (err == SHOAL_ERR_DEVICE && !device->nccl.there))
        return err;
    if (err != SHOAL_ERR_STALE)
        say_why(device, comm->msg.text);
    epoch_close(comm); /* the others wait in the operation: the next epoch ends that */
    return comm_fail(comm, SHOAL_ERR_RANK_LOST, "epoch %u.%u is revoked", comm->epoch.id.e, comm->epoch.id.k);
}
