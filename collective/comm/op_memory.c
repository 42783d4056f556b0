/* Between the memory of a caller and the arena. */
#include <string.h>

#include "op.h"

#include "shoal/banned.h"

enum shoal_err op_copy_in(struct shoal_comm *comm, const struct shoal_op *op, void *stage, const void *from,
                          uint64_t bytes)
{
    (void)comm;
    SHOAL_ASSERT(op->memory == SHOAL_MEMORY_HOST);
    if (bytes > 0)
        memcpy(stage, from, bytes);
    return SHOAL_OK;
}

enum shoal_err op_copy_out(struct shoal_comm *comm, const struct shoal_op *op, void *to, const void *stage,
                           uint64_t bytes)
{
    (void)comm;
    SHOAL_ASSERT(op->memory == SHOAL_MEMORY_HOST);
    if (bytes > 0)
        memcpy(to, stage, bytes);
    return SHOAL_OK;
}

enum shoal_err op_load(struct shoal_comm *comm, const struct shoal_op *op, uint64_t at, uint64_t elems, void *stage)
{
    const struct reduce_kernels *k = reduce_kernels_get();
    const uint8_t *from = (const uint8_t *)op->in + at * op_type_bytes(op->type);

    if (op->type != SHOAL_FLOAT16 && op->type != SHOAL_BFLOAT16)
        return op_copy_in(comm, op, stage, from, elems * op_type_bytes(op->type));
    if (op->type == SHOAL_FLOAT16)
        k->widen_f16(stage, (const uint16_t *)(const void *)from, elems);
    else
        k->widen_bf16(stage, (const uint16_t *)(const void *)from, elems);
    return SHOAL_OK;
}

enum shoal_err op_store(struct shoal_comm *comm, const struct shoal_op *op, uint64_t at, uint64_t elems, void *stage)
{
    const struct reduce_kernels *k = reduce_kernels_get();
    uint8_t *to = (uint8_t *)op->out + at * op_type_bytes(op->type);

    if (op->reduction == SHOAL_MEAN)
        k->divide[reduce_sum_type(op->type)](stage, stage, comm->epoch.size, elems);
    if (op->type != SHOAL_FLOAT16 && op->type != SHOAL_BFLOAT16)
        return op_copy_out(comm, op, to, stage, elems * op_type_bytes(op->type));
    if (op->type == SHOAL_FLOAT16)
        k->narrow_f16((uint16_t *)(void *)to, stage, elems);
    else
        k->narrow_bf16((uint16_t *)(void *)to, stage, elems);
    return SHOAL_OK;
}
