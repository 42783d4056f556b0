/* NCCL through a table of our own, as UCX and CUDA: the calls of libnccl.so.2 that this library makes, loaded at run time.
 * Shrink, Revoke and Grow came with 2.27.3, 2.28.7 and 2.29.2; where a library lacks one, its pointer is NULL and
 * communicators are made anew.
 *
 * ncclConfig_t is size-prefixed: the library reads as much as `size` says, and leaves every field that is younger than
 * `version` at its default. So only the first fields are declared. A unique id has 128 bytes.
 * Source: nccl.h of 2.28.9 and 2.32.3. */
#ifndef COLLECTIVE_NCCL_TABLE_H
#define COLLECTIVE_NCCL_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/error.h"

/* The path of a libnccl; empty: what the process has loaded already, or the system's. */
#define NCCL_ENV_LIBRARY "SHOAL_NCCL"

#define NCCL_OK 0
#define NCCL_INVALID_USAGE 5
#define NCCL_IN_PROGRESS 7
#define NCCL_SHRINK_ABORT 1 /* of what the parent has under way */
#define NCCL_UNDEFINED INT32_MIN
#define NCCL_VERSION_OLDEST 21800 /* non-blocking communicators with a configuration of this layout */

typedef int nccl_result;
typedef void *nccl_comm;

struct nccl_id {
    char bytes[128];
};

struct nccl_config {
    size_t size;
    uint32_t magic;
    uint32_t version;
    int blocking;
    int cga_cluster_size;
    int min_ctas;
    int max_ctas;
    const char *net_name;
    int split_share;
};

#define NCCL_CONFIG                                                                                                    \
    ((struct nccl_config){ .size = sizeof(struct nccl_config),                                                         \
                           .magic = 0xcafebeefu,                                                                       \
                           .version = NCCL_VERSION_OLDEST,                                                             \
                           .blocking = 0,                                                                              \
                           .cga_cluster_size = NCCL_UNDEFINED,                                                         \
                           .min_ctas = NCCL_UNDEFINED,                                                                 \
                           .max_ctas = NCCL_UNDEFINED,                                                                 \
                           .net_name = NULL,                                                                           \
                           .split_share = NCCL_UNDEFINED })

struct nccl_table {
    nccl_result (*version)(int *version);
    nccl_result (*unique_id)(struct nccl_id *id);
    nccl_result (*make)(nccl_comm *comm, int ranks, struct nccl_id id, int rank, struct nccl_config *config);
    nccl_result (*abort)(nccl_comm comm);
    nccl_result (*async_error)(nccl_comm comm, nccl_result *state);
    const char *(*error_text)(nccl_result result);
    nccl_result (*all_reduce)(const void *in, void *out, size_t elems, int type, int op, nccl_comm comm, void *stream);
    nccl_result (*reduce_scatter)(const void *in, void *out, size_t elems, int type, int op, nccl_comm comm,
                                  void *stream);
    nccl_result (*all_gather)(const void *in, void *out, size_t elems, int type, nccl_comm comm, void *stream);
    nccl_result (*broadcast)(const void *in, void *out, size_t elems, int type, int root, nccl_comm comm, void *stream);
    /* NULL in older libraries */
    nccl_result (*shrink)(nccl_comm comm, int *excluded, int count, nccl_comm *made, struct nccl_config *config,
                          int flags);
    nccl_result (*revoke)(nccl_comm comm, int flags);
    nccl_result (*grow_id)(nccl_comm comm, struct nccl_id *id);
    nccl_result (*grow)(nccl_comm comm, int ranks, const struct nccl_id *id, int rank, nccl_comm *made,
                        struct nccl_config *config);
};

/* UNSUPPORTED: there is none, or it is too old, or lacks a call; the text says which. It stays loaded. */
SHOAL_MUST_CHECK enum shoal_err nccl_table_load(struct nccl_table *nccl, struct shoal_msg *msg);
/* ncclDataType_t and ncclRedOp_t of enum shoal_type and enum shoal_reduction. */
int nccl_table_type(uint32_t type);
int nccl_table_reduction(uint32_t reduction);

#endif
