/* libshoal on GPUs: device memory in collectives (collective_op.h), and on its way into and out of steps.
 *
 *   shoal_device_open(comm, 0)       the first device that CUDA_VISIBLE_DEVICES shows: the slot's
 *   op.memory = SHOAL_MEMORY_DEVICE, op.any_order = 1, op.stream = the stream that wrote `in`
 *
 * Without `any_order` values go through the host's arena, and the result has the bits that host memory gives. With it, the
 * ranks of one host use NCCL, where every one of them has it; else the host's arena, which the log says once.
 *
 * D1. An operation begins when the stream's work up to the call is done, and has ended on the device when it is over here.
 * D2. A failed call of CUDA or NCCL gives SHOAL_ERR_DEVICE and names the call and the device. A communicator of NCCL that
 *     fails, or is not made in time, is aborted, and host memory takes its place until the next epoch.
 * D3. No CUDA call is made before shoal_device_open, so a process may fork until then. */
#ifndef SHOAL_DEVICE_H
#define SHOAL_DEVICE_H

#include "shoal/collective.h"

/* Device memory is never a bare pointer of the host's. */
struct shoal_dev_buf {
    uint64_t address;
    uint64_t bytes;
};

/* Take a device into use, for the life of the communicator. UNSUPPORTED: no driver, or no such device; the text says what
 * to look at. EXISTS: one is in use already. */
SHOAL_API enum shoal_err shoal_device_open(struct shoal_comm *comm, int ordinal);
/* Memory of the device that was opened: what tests and C workers need; frameworks bring their own. */
SHOAL_API enum shoal_err shoal_device_allocate(struct shoal_comm *comm, uint64_t bytes, struct shoal_dev_buf *buf);
SHOAL_API enum shoal_err shoal_device_free(struct shoal_comm *comm, struct shoal_dev_buf *buf);
/* Between host and device memory; over when it returns. `stream`: whose work comes first, NULL: the default one. */
SHOAL_API enum shoal_err shoal_device_read(struct shoal_comm *comm, void *bytes, uint64_t address, uint64_t len,
                                           void *stream);
SHOAL_API enum shoal_err shoal_device_write(struct shoal_comm *comm, uint64_t address, const void *bytes, uint64_t len,
                                            void *stream);
/* Have the driver pin memory of the buffers of shoal_comm_ready, or of a slice of the result: copies from and to it are then as
 * fast as they can be, and may run beside the caller. It is let go of by shoal_device_unpin, which must come after the last copy,
 * at the latest by the next shoal_comm_ready or close. DEVICE: the driver refused, and copies are only slower; the text says why.
 * FULL: too many pieces. */
SHOAL_API enum shoal_err shoal_device_pin(struct shoal_comm *comm, void *bytes, uint64_t len);
SHOAL_API enum shoal_err shoal_device_unpin(struct shoal_comm *comm, void *bytes);
/* Work of NCCL so far: operations, and communicators that were made, kept, shrunk, grown and given up. */
struct shoal_device_counts {
    uint64_t operations;
    uint64_t made;
    uint64_t kept;
    uint64_t shrunk;
    uint64_t grown;
    uint64_t given_up;
    uint64_t staged; /* operations on device memory that went through the host's arena */
};
SHOAL_API void shoal_device_counts(const struct shoal_comm *comm, struct shoal_device_counts *counts);

#endif
