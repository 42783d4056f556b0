/* The calls of device.h, and what collectives need of a device. */
#include <string.h>

#include "op.h"

#include "shoal/banned.h"

static enum shoal_err check_device(struct shoal_comm *comm, const char *what)
{
    op_drain(comm); /* one thread at a time uses the device's stream */
    if (comm->device == NULL)
        return comm_fail(comm, SHOAL_ERR_INVALID, "%s before shoal_device_open", what);
    return SHOAL_OK;
}

enum shoal_err shoal_device_open(struct shoal_comm *comm, int ordinal)
{
    op_drain(comm);
    if (comm->device != NULL)
        return comm_fail(comm, SHOAL_ERR_EXISTS, "device %d is in use already", comm->device->ordinal);
    return device_create(&comm->device, ordinal, &comm->msg);
}

enum shoal_err shoal_device_allocate(struct shoal_comm *comm, uint64_t bytes, struct shoal_dev_buf *buf)
{
    enum shoal_err err = check_device(comm, "allocate");
    cuda_address address = 0;
    cuda_result result;

    if (err == SHOAL_OK)
        err = device_use(comm->device, &comm->msg);
    if (err != SHOAL_OK)
        return err;
    result = comm->device->cuda.allocate(&address, (size_t)bytes);
    if (result != CUDA_OK)
        return device_fail(comm->device, "cuMemAlloc", result, &comm->msg);
    *buf = (struct shoal_dev_buf){ address, bytes };
    return SHOAL_OK;
}

enum shoal_err shoal_device_free(struct shoal_comm *comm, struct shoal_dev_buf *buf)
{
    enum shoal_err err = check_device(comm, "free");
    cuda_result result;

    if (err == SHOAL_OK)
        err = device_use(comm->device, &comm->msg);
    if (err != SHOAL_OK || buf->address == 0)
        return err;
    result = comm->device->cuda.release(buf->address);
    if (result != CUDA_OK)
        return device_fail(comm->device, "cuMemFree", result, &comm->msg);
    *buf = (struct shoal_dev_buf){ 0, 0 };
    return SHOAL_OK;
}

enum shoal_err shoal_device_read(struct shoal_comm *comm, void *bytes, uint64_t address, uint64_t len, void *stream)
{
    enum shoal_err err = check_device(comm, "read");

    if (err == SHOAL_OK)
        err = device_wait_for(comm->device, stream, &comm->msg);
    return err == SHOAL_OK ? device_copy_out(comm->device, bytes, address, len, &comm->msg) : err;
}

enum shoal_err shoal_device_write(struct shoal_comm *comm, uint64_t address, const void *bytes, uint64_t len,
                                  void *stream)
{
    enum shoal_err err = check_device(comm, "write");

    if (err == SHOAL_OK)
        err = device_wait_for(comm->device, stream, &comm->msg);
    return err == SHOAL_OK ? device_copy_in(comm->device, address, bytes, len, &comm->msg) : err;
}

enum shoal_err shoal_device_pin(struct shoal_comm *comm, void *bytes, uint64_t len)
{
    enum shoal_err err = check_device(comm, "pin");

    if (err == SHOAL_OK && (bytes == NULL || len == 0))
        err = comm_fail(comm, SHOAL_ERR_INVALID, "nothing to pin");
    return err == SHOAL_OK ? device_pin(comm->device, bytes, len, &comm->msg) : err;
}

enum shoal_err shoal_device_unpin(struct shoal_comm *comm, void *bytes)
{
    enum shoal_err err = check_device(comm, "unpin");

    return err == SHOAL_OK ? device_unpin(comm->device, bytes, &comm->msg) : err;
}

void shoal_device_counts(const struct shoal_comm *comm, struct shoal_device_counts *counts)
{
    *counts = comm->device == NULL ? (struct shoal_device_counts){ 0 } : comm->device->counts;
}

enum shoal_err op_await_stream(struct shoal_comm *comm, const struct shoal_op *op, struct shoal_msg *msg)
{
    if (op->memory != SHOAL_MEMORY_DEVICE || comm->device == NULL)
        return SHOAL_OK;
    return device_wait_for(comm->device, op->stream, msg);
}
