/* CUDA through a table of our own: what this library asks of the driver's libcuda.so.1, declared here and loaded at run
 * time, so that one build runs with and without a GPU. The driver's calls alone: each host with a card has them, in one
 * version, and torch's memory is theirs, too, since the runtime works in a device's primary context.
 *
 * Names with a version are the layouts that have been current since CUDA 4 (the plain ones are older); no struct is passed.
 * Source: cuda.h of CUDA 13.0, and the driver's reference. */
#ifndef COLLECTIVE_CUDA_TABLE_H
#define COLLECTIVE_CUDA_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/error.h"

/* The path of a libcuda; empty: the system's. */
#define CUDA_ENV_LIBRARY "SHOAL_CUDA"

#define CUDA_OK 0
#define CUDA_OUT_OF_MEMORY 2
#define CUDA_NOT_READY 600
#define CUDA_STREAM_NON_BLOCKING 1u

typedef int cuda_result;
typedef uint64_t cuda_address; /* of device memory */

struct cuda_table {
    cuda_result (*init)(unsigned flags);
    cuda_result (*version)(int *version); /* 1000 * major + 10 * minor */
    cuda_result (*device_count)(int *count);
    cuda_result (*device_get)(int *device, int ordinal);
    cuda_result (*device_name)(char *name, int cap, int device);
    cuda_result (*context_retain)(void **context, int device);
    cuda_result (*context_release)(int device);
    cuda_result (*context_use)(void *context);
    cuda_result (*stream_create)(void **stream, unsigned flags);
    cuda_result (*stream_destroy)(void *stream);
    cuda_result (*stream_query)(void *stream);
    cuda_result (*stream_wait)(void *stream);
    cuda_result (*copy_in)(cuda_address to, const void *from, size_t bytes, void *stream);
    cuda_result (*copy_out)(void *to, cuda_address from, size_t bytes, void *stream);
    cuda_result (*allocate)(cuda_address *address, size_t bytes);
    cuda_result (*release)(cuda_address address);
    cuda_result (*host_register)(void *bytes, size_t len, unsigned flags);
    cuda_result (*host_unregister)(void *bytes);
    cuda_result (*error_name)(cuda_result result, const char **name);
};

/* Loads it and finds its calls; it stays loaded. UNSUPPORTED: there is none, or it lacks a call; the text says which. */
SHOAL_MUST_CHECK enum shoal_err cuda_table_load(struct cuda_table *cuda, struct shoal_msg *msg);

struct device_call {
    const char *name;
    size_t at; /* in the table */
};
/* Load the library that the variable names, else `soname`, and find `count` calls. For both tables. `optional`: those from
 * this one on may be absent. */
SHOAL_MUST_CHECK enum shoal_err device_load(const char *variable, const char *soname, const struct device_call *calls,
                                            size_t count, size_t optional, void *table, struct shoal_msg *msg);

#endif
