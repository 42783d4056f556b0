/* Finds libnccl and its calls (nccl_table.h). What it reads from the environment is set before: no listening port of its
 * diagnostics, and several ranks on a card where the operator shares cards. */
#include <stdlib.h>

#include "nccl_table.h"

#include "cuda_table.h"

#include "shoal/collective_op.h"

#include "shoal/banned.h"

#define CALL(field, name)                                                                                              \
    {                                                                                                                  \
        name, offsetof(struct nccl_table, field)                                                                       \
    }

static const struct device_call calls[] = {
    CALL(version, "ncclGetVersion"),
    CALL(unique_id, "ncclGetUniqueId"),
    CALL(make, "ncclCommInitRankConfig"),
    CALL(abort, "ncclCommAbort"),
    CALL(async_error, "ncclCommGetAsyncError"),
    CALL(error_text, "ncclGetErrorString"),
    CALL(all_reduce, "ncclAllReduce"),
    CALL(reduce_scatter, "ncclReduceScatter"),
    CALL(all_gather, "ncclAllGather"),
    CALL(broadcast, "ncclBroadcast"),
    CALL(shrink, "ncclCommShrink"),
    CALL(revoke, "ncclCommRevoke"),
    CALL(grow_id, "ncclCommGetUniqueId"),
    CALL(grow, "ncclCommGrow"),
};
#define OPTIONAL 10 /* from shrink on */

enum shoal_err nccl_table_load(struct nccl_table *nccl, struct shoal_msg *msg)
{
    int version = 0;
    enum shoal_err err;

    (void)setenv("NCCL_RAS_ENABLE", "0", 0); /* what the user has set stays */
    err = device_load(NCCL_ENV_LIBRARY, "libnccl.so.2", calls, sizeof(calls) / sizeof(calls[0]), OPTIONAL, nccl, msg);
    if (err != SHOAL_OK)
        return err;
    if (nccl->version(&version) != NCCL_OK || version < NCCL_VERSION_OLDEST)
        return shoal_fail(msg, SHOAL_ERR_UNSUPPORTED, "NCCL %d.%d.%d is too old: 2.18 or later is needed",
                          version / 10000, version / 100 % 100, version % 100);
    return SHOAL_OK;
}

int nccl_table_type(uint32_t type)
{
    switch ((enum shoal_type)type) {
    case SHOAL_INT32: return 2;
    case SHOAL_INT64: return 4;
    case SHOAL_FLOAT16: return 6;
    case SHOAL_FLOAT32: return 7;
    case SHOAL_FLOAT64: return 8;
    case SHOAL_BFLOAT16: return 9;
    case SHOAL_TYPE_COUNT: break;
    }
    return 0; /* bytes */
}

int nccl_table_reduction(uint32_t reduction)
{
    switch ((enum shoal_reduction)reduction) {
    case SHOAL_SUM: return 0;
    case SHOAL_MAX: return 2;
    case SHOAL_MIN: return 3;
    case SHOAL_MEAN: return 4;
    case SHOAL_REDUCTION_COUNT: break;
    }
    return 0;
}
