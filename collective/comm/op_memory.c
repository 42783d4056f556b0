/* Between the memory of a caller, on the host or on its device, and the arena. */
#include <string.h>

#include "op.h"

#include "shoal/banned.h"

static uint64_t address_of(const void *memory) { return (uint64_t)(uintptr_t)memory; }

enum shoal_err op_copy_in(struct shoal_comm *comm, const struct shoal_op *op, void *stage, const void *from,
                          uint64_t bytes)
{
    if (op->memory == SHOAL_MEMORY_DEVICE)
        return device_copy_out(comm->device, stage, address_of(from), bytes, &comm->msg);
    if (bytes > 0)
        memcpy(stage, from, bytes);
    return SHOAL_OK;
}

enum shoal_err op_copy_out(struct shoal_comm *comm, const struct shoal_op *op, void *to, const void *stage,
                           uint64_t bytes)
{
    if (op->memory == SHOAL_MEMORY_DEVICE)
        return device_copy_in(comm->device, address_of(to), stage, bytes, &comm->msg);
    if (bytes > 0)
        memcpy(to, stage, bytes);
    return SHOAL_OK;
}

static bool is_half(const struct shoal_op *op) { return op->type == SHOAL_FLOAT16 || op->type == SHOAL_BFLOAT16; }

enum shoal_err op_load(struct shoal_comm *comm, const struct shoal_op *op, uint64_t at, uint64_t elems, void *stage)
{
    const struct reduce_kernels *k = reduce_kernels_get();
    uint64_t bytes = elems * op_type_bytes(op->type);
    const void *from = (const uint8_t *)op->in + at * op_type_bytes(op->type);

    if (!is_half(op))
        return op_copy_in(comm, op, stage, from, bytes);
    if (op->memory == SHOAL_MEMORY_DEVICE) {
        enum shoal_err err;

        SHOAL_ASSERT(bytes <= DEVICE_BOUNCE_BYTES); /* a stage of float32 holds no more */
        err = op_copy_in(comm, op, comm->device->bounce, from, bytes);
        if (err != SHOAL_OK)
            return err;
        from = comm->device->bounce;
    }
    if (op->type == SHOAL_FLOAT16)
        k->widen_f16(stage, from, elems);
    else
        k->widen_bf16(stage, from, elems);
    return SHOAL_OK;
}

enum shoal_err op_store(struct shoal_comm *comm, const struct shoal_op *op, uint64_t at, uint64_t elems, void *stage)
{
    const struct reduce_kernels *k = reduce_kernels_get();
    uint64_t bytes = elems * op_type_bytes(op->type);
    void *to = (uint8_t *)op->out + at * op_type_bytes(op->type);
    void *narrow = op->memory == SHOAL_MEMORY_DEVICE ? (void *)comm->device->bounce : to;

    if (op->reduction == SHOAL_MEAN)
        k->divide[reduce_sum_type(op->type)](stage, stage, comm->epoch.size, elems);
    if (!is_half(op))
        return op_copy_out(comm, op, to, stage, bytes);
    if (op->type == SHOAL_FLOAT16)
        k->narrow_f16(narrow, stage, elems);
    else
        k->narrow_bf16(narrow, stage, elems);
    return narrow == to ? SHOAL_OK : op_copy_out(comm, op, to, narrow, bytes);
}
