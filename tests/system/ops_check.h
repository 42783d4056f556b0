/* The collectives outside of steps, against plain loops, as a C worker runs them (option ops of cworker.c). The values of
 * each rank are a function of rank and place, so that every member knows what must come out. */
#ifndef OPS_CHECK_H
#define OPS_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collective/memory/reduce.h"
#include "shoal/collective_op.h"
#include "shoal/device.h"

/* Small integers, exact in every type; the last ones of a round differ. */
static double ops_value(uint32_t rank, uint64_t i) { return (double)((i * 7 + rank * 5) % 61) - 30.0; }

static void ops_put(void *values, uint32_t type, uint64_t i, double value)
{
    float narrow = (float)value;

    switch ((enum shoal_type)type) {
    case SHOAL_FLOAT32: ((float *)values)[i] = narrow; return;
    case SHOAL_FLOAT64: ((double *)values)[i] = value; return;
    case SHOAL_INT32: ((int32_t *)values)[i] = (int32_t)value; return;
    case SHOAL_INT64: ((int64_t *)values)[i] = (int64_t)value; return;
    case SHOAL_FLOAT16: reduce_kernels_at(0)->narrow_f16((uint16_t *)values + i, &narrow, 1); return;
    case SHOAL_BFLOAT16: reduce_kernels_at(0)->narrow_bf16((uint16_t *)values + i, &narrow, 1); return;
    case SHOAL_TYPE_COUNT: return;
    }
}

/* The value that the reduction over all ranks must have. */
static double ops_want(const struct shoal_op *op, uint32_t size, uint64_t i)
{
    double want = ops_value(0, i);

    for (uint32_t rank = 1; rank < size; rank++) {
        double value = ops_value(rank, i);

        if (op->reduction == SHOAL_MIN)
            want = value < want ? value : want;
        else if (op->reduction == SHOAL_MAX)
            want = value > want ? value : want;
        else
            want += value;
    }
    if (op->reduction != SHOAL_MEAN)
        return want;
    if (op->type == SHOAL_INT32 || op->type == SHOAL_INT64)
        return (double)((int64_t)want / (int64_t)size);
    return op->type == SHOAL_FLOAT64 ? want / size : (double)((float)want / (float)size);
}

struct ops_run {
    struct shoal_comm *comm;
    const char *wrong; /* the first thing that was */
    uint64_t elems_max;
    uint8_t *in;
    uint8_t *out;
    uint8_t *want;
    bool device; /* the values lie there, and NCCL may be used */
    bool any_order;
    struct shoal_dev_buf dev_in;
    struct shoal_dev_buf dev_out;
};

static void ops_fail(struct ops_run *run, const struct shoal_op *op, const char *what)
{
    if (run->wrong != NULL)
        return;
    run->wrong = what;
    (void)fprintf(stderr, "ops: kind %u type %u reduction %u elems %llu: %s: %s\n", op->kind, op->type, op->reduction,
                  (unsigned long long)op->elems, what, shoal_comm_error(run->comm));
}

static void ops_prepare(struct ops_run *run, struct shoal_op *op, bool in_place)
{
    uint32_t size = shoal_comm_size(run->comm);
    uint32_t rank = shoal_comm_rank(run->comm);
    uint32_t bytes = reduce_type_bytes(op->type);
    uint64_t whole = op->elems * size;
    uint64_t given = op->kind == SHOAL_REDUCE_SCATTER ? whole : op->elems;
    uint8_t *in = run->in;
    uint8_t *out = in_place ? run->in : run->out;

    memset(run->in, 0x5a, run->elems_max * 8 * size);
    memset(run->out, 0x5a, run->elems_max * 8 * size);
    if (in_place && op->kind == SHOAL_ALL_GATHER)
        in = run->in + rank * op->elems * bytes;
    if (in_place && op->kind == SHOAL_REDUCE_SCATTER)
        out = run->in + rank * op->elems * bytes;
    for (uint64_t i = 0; i < given; i++)
        ops_put(in, op->type, i, ops_value(rank, i));
    op->in = in;
    op->out = out;
    for (uint64_t i = 0; i < whole; i++)
        switch ((enum shoal_op_kind)op->kind) {
        case SHOAL_ALL_REDUCE: ops_put(run->want, op->type, i, i < op->elems ? ops_want(op, size, i) : 0); break;
        case SHOAL_REDUCE_SCATTER:
            ops_put(run->want, op->type, i, i < op->elems ? ops_want(op, size, rank * op->elems + i) : 0);
            break;
        case SHOAL_ALL_GATHER: ops_put(run->want, op->type, i, ops_value((uint32_t)(i / op->elems), i % op->elems)); break;
        case SHOAL_BROADCAST: ops_put(run->want, op->type, i, ops_value(op->root, i)); break;
        case SHOAL_BARRIER:
        case SHOAL_NO_OP:
        case SHOAL_OP_KIND_COUNT: break;
        }
}

static void ops_compare(struct ops_run *run, const struct shoal_op *op)
{
    uint64_t elems = op->kind == SHOAL_ALL_GATHER ? op->elems * shoal_comm_size(run->comm) : op->elems;

    if (memcmp(op->out, run->want, elems * reduce_type_bytes(op->type)) != 0)
        ops_fail(run, op, "wrong values");
}

/* Both buffers to the device, and back after the operation. */
static enum shoal_err ops_on_device(struct ops_run *run, const struct shoal_op *host)
{
    struct shoal_op op = *host;
    uint64_t bytes = run->dev_in.bytes;
    uint64_t out_at = (uint64_t)((uint8_t *)host->out - run->in);
    enum shoal_err err = shoal_device_write(run->comm, run->dev_in.address, run->in, bytes, NULL);

    if (err == SHOAL_OK)
        err = shoal_device_write(run->comm, run->dev_out.address, run->out, bytes, NULL);
    op.memory = SHOAL_MEMORY_DEVICE;
    op.any_order = run->any_order;
    op.in = (void *)(uintptr_t)(run->dev_in.address + (uint64_t)((const uint8_t *)host->in - run->in));
    op.out = (void *)(uintptr_t)(out_at < bytes ? run->dev_in.address + out_at : run->dev_out.address);
    if (err == SHOAL_OK)
        err = shoal_op_run(run->comm, &op);
    if (err == SHOAL_OK)
        err = shoal_device_read(run->comm, run->in, run->dev_in.address, bytes, NULL);
    return err == SHOAL_OK ? shoal_device_read(run->comm, run->out, run->dev_out.address, bytes, NULL) : err;
}

static void ops_one(struct ops_run *run, struct shoal_op op, bool in_place)
{
    ops_prepare(run, &op, in_place);
    if ((run->device ? ops_on_device(run, &op) : shoal_op_run(run->comm, &op)) != SHOAL_OK)
        ops_fail(run, &op, "failed");
    else
        ops_compare(run, &op);
}

/* `few`: one reduction for each kind and type, since between hosts every operation costs round trips. */
static void ops_all(struct ops_run *run, bool few)
{
    const uint64_t sizes[] = { 1, 63, 1025, run->elems_max };

    for (uint32_t kind = SHOAL_ALL_REDUCE; kind <= SHOAL_BROADCAST; kind++)
        for (uint32_t type = 0; type < SHOAL_TYPE_COUNT; type++)
            for (uint32_t i = 0; i < 4; i++)
                for (uint32_t how = 0; how < (kind <= SHOAL_REDUCE_SCATTER ? SHOAL_REDUCTION_COUNT : 1u); how++) {
                    struct shoal_op op = { .kind = kind, .type = type, .reduction = how, .elems = sizes[i] };

                    if ((i == 3 || few) && how != (kind <= SHOAL_REDUCE_SCATTER ? type % SHOAL_REDUCTION_COUNT : 0))
                        continue; /* many pieces: once a type */
                    if (few && i != (kind + type) % 3 && (i != 3 || type != SHOAL_FLOAT16))
                        continue;
                    op.root = kind == SHOAL_BROADCAST ? (i + type) % shoal_comm_size(run->comm) : 0;
                    ops_one(run, op, i % 2 == 0);
                }
}

/* Several at once, more than one buffer; the first ones are asked for until they are over, the others waited for. */
static void ops_asynchronous(struct ops_run *run)
{
    enum { MANY = 12 };
    static double values[MANY][500];
    uint32_t size = shoal_comm_size(run->comm);
    uint64_t handles[MANY];
    struct shoal_op op = { .kind = SHOAL_ALL_REDUCE, .type = SHOAL_FLOAT64, .elems = 500 };
    uint32_t over = 0;

    for (uint32_t n = 0; n < MANY; n++) {
        for (uint64_t i = 0; i < 500; i++)
            values[n][i] = ops_value(shoal_comm_rank(run->comm), i + n);
        op.in = op.out = values[n];
        if (shoal_op_start(run->comm, &op, &handles[n]) != SHOAL_OK)
            ops_fail(run, &op, "start");
    }
    for (uint32_t n = 0; n < MANY; n++) {
        enum shoal_err err = SHOAL_OK;

        for (over = n >= MANY / 2; over == 0 && err == SHOAL_OK;)
            err = shoal_op_test(run->comm, handles[n], &over);
        if (n >= MANY / 2)
            err = shoal_op_wait(run->comm, handles[n]);
        if (err != SHOAL_OK)
            ops_fail(run, &op, "asynchronous");
        for (uint64_t i = 0; i < 500; i++)
            if (values[n][i] != ops_want(&op, size, i + n))
                ops_fail(run, &op, "asynchronous values");
    }
    if (shoal_op_wait(run->comm, handles[0]) != SHOAL_ERR_INVALID)
        ops_fail(run, &op, "a handle that was waited for twice");
}

/* A call of `rank` that differs from the others' is refused by all of them, by its name and with both values. */
static void ops_mismatch(struct ops_run *run, struct shoal_op right, struct shoal_op wrong, uint32_t rank,
                         const char *const *words)
{
    struct shoal_op *op = shoal_comm_rank(run->comm) == rank ? &wrong : &right;

    memset(run->out, 0x33, 64);
    memset(run->in, 0, 64);
    op->in = run->in;
    op->out = run->out;
    if (shoal_op_run(run->comm, op) != SHOAL_ERR_INVALID)
        ops_fail(run, op, "calls that differ were not refused");
    for (; *words != NULL; words++)
        if (strstr(shoal_comm_error(run->comm), *words) == NULL)
            ops_fail(run, op, *words);
    for (uint32_t i = 0; i < 64; i++)
        if (run->out[i] != 0x33)
            ops_fail(run, op, "a refused call wrote something");
}

static void ops_mismatches(struct ops_run *run)
{
    uint32_t last = shoal_comm_size(run->comm) - 1;
    const struct shoal_op sum = { .kind = SHOAL_ALL_REDUCE, .elems = 8 };
    struct shoal_op other = sum;
    struct shoal_op shape = sum;
    char name[24];

    (void)snprintf(name, sizeof(name), "rank %u calls", last);
    other.elems = 9;
    ops_mismatch(run, sum, other, last, (const char *const[]){ name, "float32 [9]", "float32 [8]", NULL });
    other = sum;
    other.type = SHOAL_INT64;
    ops_mismatch(run, sum, other, last, (const char *const[]){ name, "int64 [8]", "float32 [8]", NULL });
    other = sum;
    other.reduction = SHOAL_MAX;
    ops_mismatch(run, sum, other, last, (const char *const[]){ name, "(max)", "(sum)", NULL });
    other = (struct shoal_op){ .kind = SHOAL_BARRIER };
    ops_mismatch(run, sum, other, last, (const char *const[]){ name, "barrier", "all_reduce (sum)", NULL });
    shape.dim_count = 2;
    shape.dims[0] = 2;
    shape.dims[1] = 4;
    other = shape;
    other.dims[0] = 4;
    other.dims[1] = 2;
    ops_mismatch(run, shape, other, last, (const char *const[]){ name, "[4, 2]", "[2, 4]", NULL });
    other = (struct shoal_op){ .kind = SHOAL_BROADCAST, .elems = 8, .root = 1 };
    shape = other;
    shape.root = 0;
    ops_mismatch(run, shape, other, last, (const char *const[]){ name, "from rank 1", "from rank 0", NULL });
    other = sum;
    other.type = 77; /* refused where it was called; the others hear of it */
    ops_mismatch(run, sum, other, last, (const char *const[]){ NULL });
}

/* The same on the device of each worker: by host memory to the same bits, then by NCCL where it is. The sums are exact, so
 * that no order of additions shows. */
static const char *ops_check_device(struct shoal_comm *comm, bool several_hosts)
{
    struct ops_run run = { .comm = comm, .elems_max = 20001, .device = true };
    size_t bytes = run.elems_max * 8 * shoal_comm_size(comm);

    run.in = malloc(bytes);
    run.out = malloc(bytes);
    run.want = malloc(bytes);
    if (run.in == NULL || run.out == NULL || run.want == NULL ||
        shoal_device_allocate(comm, bytes, &run.dev_in) != SHOAL_OK ||
        shoal_device_allocate(comm, bytes, &run.dev_out) != SHOAL_OK)
        return "memory";
    ops_all(&run, true);
    run.any_order = true;
    ops_all(&run, several_hosts);
    if (shoal_device_free(comm, &run.dev_in) != SHOAL_OK || shoal_device_free(comm, &run.dev_out) != SHOAL_OK)
        run.wrong = "free";
    free(run.in);
    free(run.out);
    free(run.want);
    return run.wrong;
}

/* NULL: all is well; else what was not. */
static const char *ops_check(struct shoal_comm *comm, bool several_hosts)
{
    struct ops_run run = { .comm = comm, .elems_max = 70001 };
    size_t bytes = run.elems_max * 8 * shoal_comm_size(comm);

    run.in = malloc(bytes);
    run.out = malloc(bytes);
    run.want = malloc(bytes);
    if (run.in == NULL || run.out == NULL || run.want == NULL)
        return "memory";
    ops_all(&run, several_hosts);
    ops_asynchronous(&run);
    if (shoal_comm_size(comm) > 1)
        ops_mismatches(&run);
    ops_all(&run, true); /* refusals have left nothing behind */
    free(run.in);
    free(run.out);
    free(run.want);
    return run.wrong;
}

#endif
