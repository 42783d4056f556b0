/* libshoal: collectives outside of steps, on host and device memory. They need an epoch (shoal_comm_enter); every member
 * makes the same calls in the same order.
 *
 *   struct shoal_op op = { .kind = SHOAL_ALL_REDUCE, .type = SHOAL_FLOAT32, .reduction = SHOAL_MEAN,
 *                          .in = grad, .out = grad, .elems = n };
 *   shoal_op_run(comm, &op);                                  or: shoal_op_start, compute, shoal_op_wait
 *
 * O1. The result has the same bits on every member, and for every placement of the same members on hosts: values are
 *     added up in one tree over the ranks.
 * O2. Before any value moves the members compare what they were asked for. If one differs, all of them refuse: INVALID, the
 *     text names both values and the rank, and nothing was written.
 * O3. RANK_LOST: `out` may be written in part, and so `in` where it is the same memory. Whoever wants to repeat in the
 *     next epoch keeps a copy, or works out of place.
 * O4. Operations run in the order in which they were started. Every other call of the communicator waits for those that
 *     were started first; only `test` does not wait.
 *
 * Numbers: float16 and bfloat16 are added up in float32 and rounded once, to the nearest even. Sums of integers wrap. A
 * mean is the sum divided by the number of members; of integers towards zero, after the sum has wrapped. min and max give a
 * NaN if any value is one, and of -0 and +0 the one of the lower rank. An infinity is a number as any other; +inf and -inf
 * add up to a NaN. Which NaN a sum gives is not said. */
#ifndef SHOAL_COLLECTIVE_OP_H
#define SHOAL_COLLECTIVE_OP_H

#include "shoal/collective.h"

enum shoal_reduction { SHOAL_SUM, SHOAL_MIN, SHOAL_MAX, SHOAL_MEAN, SHOAL_REDUCTION_COUNT };

enum shoal_op_kind {
    SHOAL_NO_OP,
    SHOAL_ALL_REDUCE,     /* in: elems, out: elems */
    SHOAL_REDUCE_SCATTER, /* in: size * elems, out: elems, those of my rank */
    SHOAL_ALL_GATHER,     /* in: elems, out: size * elems, by rank */
    SHOAL_BROADCAST,      /* in: elems at the root (not read elsewhere), out: elems; at the root in == out or out NULL */
    SHOAL_BARRIER,
    SHOAL_OP_KIND_COUNT
};

enum shoal_memory { SHOAL_MEMORY_HOST, SHOAL_MEMORY_DEVICE, SHOAL_MEMORY_COUNT };

#define SHOAL_DIMS_MAX 8

struct shoal_op {
    uint32_t kind;
    uint32_t type;
    uint32_t reduction; /* of ALL_REDUCE and REDUCE_SCATTER */
    uint32_t root;      /* of BROADCAST */
    uint32_t memory;    /* enum shoal_memory, of `in` and `out`; DEVICE: after shoal_device_open */
    uint32_t any_order; /* 1: device memory may be added up in NCCL's order, which is faster, instead of the tree (O1) */
    void *stream;       /* CUDA's, whose work wrote `in`; NULL: the default one. Of device memory */
    /* In place: in == out; REDUCE_SCATTER: out == in + rank * elems; ALL_GATHER: in == out + rank * elems. Otherwise they
     * do not overlap. Both lie at a multiple of the type's size. */
    const void *in;
    void *out;
    uint64_t elems;
    /* The shape of a tensor of `elems` values, so that a [2, 3] does not meet a [3, 2]. 0: a vector. */
    uint32_t dim_count;
    uint32_t pad;
    uint64_t dims[SHOAL_DIMS_MAX];
};

/* Memory is borrowed until it returns. INVALID: see O2, or the caller's own mistake, which the others do not hear of. */
SHOAL_API enum shoal_err shoal_op_run(struct shoal_comm *comm, const struct shoal_op *op);

/* The same on a thread of the library. `in` and `out` are borrowed, and `in` is not to be changed, until `test` said that it
 * is over, or `wait` returned. FULL: SHOAL_OPS_MAX are not over yet. */
SHOAL_API enum shoal_err shoal_op_start(struct shoal_comm *comm, const struct shoal_op *op, uint64_t *handle);
/* `over` 1: it has ended as the returned error says, and the handle is void. 0: not yet, and the return is OK. */
SHOAL_API enum shoal_err shoal_op_test(struct shoal_comm *comm, uint64_t handle, uint32_t *over);
/* Wait for its end, which is returned; the handle is void then. INVALID: no such handle, or it was waited for already. */
SHOAL_API enum shoal_err shoal_op_wait(struct shoal_comm *comm, uint64_t handle);

#endif
