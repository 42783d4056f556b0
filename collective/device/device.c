#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/banned.h"

enum shoal_err device_fail(const struct device *device, const char *call, cuda_result result, struct shoal_msg *msg)
{
    const char *name = NULL;

    if (device->cuda.error_name(result, &name) != CUDA_OK || name == NULL)
        name = "an unknown error";
    return shoal_fail(msg, SHOAL_ERR_DEVICE, "%s on device %d (%s): %s (%d)%s", call, device->ordinal, device->name,
                      name, result,
                      result == CUDA_OUT_OF_MEMORY ? "; use a smaller batch, or a slot with more memory" : "");
}

/* Turns what a call of CUDA's driver has given into an error of ours. */
static enum shoal_err outcome(const struct device *device, const char *call, cuda_result result, struct shoal_msg *msg)
{
    return result == CUDA_OK ? SHOAL_OK : device_fail(device, call, result, msg);
}

enum shoal_err device_use(struct device *device, struct shoal_msg *msg)
{
    return outcome(device, "cuCtxSetCurrent", device->cuda.context_use(device->context), msg);
}

static enum shoal_err find_device(struct device *device, struct shoal_msg *msg)
{
    int count = 0;
    cuda_result result = device->cuda.init(0);
    enum shoal_err err;

    if (result != CUDA_OK) {
        const char *name = NULL;

        (void)device->cuda.error_name(result, &name);
        return shoal_fail(msg, SHOAL_ERR_UNSUPPORTED, "cuInit: %s (%d): no GPU can be used here",
                          name == NULL ? "an unknown error" : name, result);
    }
    err = outcome(device, "cuDeviceGetCount", device->cuda.device_count(&count), msg);
    if (err != SHOAL_OK)
        return err;
    if (device->ordinal < 0 || device->ordinal >= count)
        return shoal_fail(msg, SHOAL_ERR_UNSUPPORTED, "device %d: this process sees %d (CUDA_VISIBLE_DEVICES=%s)",
                          device->ordinal, count,
                          getenv("CUDA_VISIBLE_DEVICES") == NULL ? "" : getenv("CUDA_VISIBLE_DEVICES"));
    err = outcome(device, "cuDeviceGet", device->cuda.device_get(&device->handle, device->ordinal), msg);
    if (err != SHOAL_OK)
        return err;
    result = device->cuda.device_name(device->name, sizeof(device->name), device->handle);
    return outcome(device, "cuDeviceGetName", result, msg);
}

static enum shoal_err open_device(struct device *device, struct shoal_msg *msg)
{
    enum shoal_err err = cuda_table_load(&device->cuda, msg);

    if (err == SHOAL_OK)
        err = find_device(device, msg);
    if (err == SHOAL_OK)
        err = outcome(device, "cuDevicePrimaryCtxRetain", device->cuda.context_retain(&device->context, device->handle),
                      msg);
    if (err == SHOAL_OK)
        err = device_use(device, msg);
    if (err == SHOAL_OK)
        err = outcome(device, "cuStreamCreate", device->cuda.stream_create(&device->stream, CUDA_STREAM_NON_BLOCKING),
                      msg);
    if (err != SHOAL_OK)
        return err;
    device->nccl.there = nccl_table_load(&device->nccl.table, &device->no_nccl) == SHOAL_OK;
    return SHOAL_OK;
}

enum shoal_err device_create(struct device **out, int ordinal, struct shoal_msg *msg)
{
    struct device *device = calloc(1, sizeof(*device));
    enum shoal_err err;

    if (device == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for a device");
    device->ordinal = ordinal;
    device->bounce = malloc(DEVICE_BOUNCE_BYTES);
    err = device->bounce == NULL ? shoal_fail(msg, SHOAL_ERR_FULL, "no memory for a device") : open_device(device, msg);
    if (err == SHOAL_OK)
        *out = device;
    else
        device_destroy(device);
    return err;
}

void device_destroy(struct device *device)
{
    struct shoal_msg msg;

    if (device == NULL)
        return;
    if (device->context != NULL && device_use(device, &msg) == SHOAL_OK) {
        (void)nccl_life_abort(device, &msg); /* the process ends, or forgets it */
        device_unpin_all(device);
        if (device->stream != NULL)
            (void)device->cuda.stream_destroy(device->stream);
        (void)device->cuda.context_release(device->handle);
    }
    if (device->nccl.left)
        return;
    free(device->bounce);
    free(device);
}

enum shoal_err device_wait_for(struct device *device, void *stream, struct shoal_msg *msg)
{
    enum shoal_err err = device_use(device, msg);

    return err != SHOAL_OK ? err : outcome(device, "cuStreamSynchronize", device->cuda.stream_wait(stream), msg);
}

enum shoal_err device_copy_in(struct device *device, uint64_t to, const void *from, uint64_t bytes,
                              struct shoal_msg *msg)
{
    enum shoal_err err = device_use(device, msg);

    if (err != SHOAL_OK || bytes == 0)
        return err;
    err = outcome(device, "cuMemcpyHtoDAsync", device->cuda.copy_in(to, from, (size_t)bytes, device->stream), msg);
    if (err != SHOAL_OK)
        return err;
    return outcome(device, "cuStreamSynchronize", device->cuda.stream_wait(device->stream), msg);
}

enum shoal_err device_copy_out(struct device *device, void *to, uint64_t from, uint64_t bytes, struct shoal_msg *msg)
{
    enum shoal_err err = device_use(device, msg);

    if (err != SHOAL_OK || bytes == 0)
        return err;
    err = outcome(device, "cuMemcpyDtoHAsync", device->cuda.copy_out(to, from, (size_t)bytes, device->stream), msg);
    if (err != SHOAL_OK)
        return err;
    return outcome(device, "cuStreamSynchronize", device->cuda.stream_wait(device->stream), msg);
}

/* ---- memory of the host ---- */

static void **find_pin(struct device *device, const void *bytes)
{
    for (uint32_t i = 0; i < DEVICE_PINS_MAX; i++)
        if (device->pins[i] == bytes)
            return &device->pins[i];
    return NULL;
}

enum shoal_err device_pin(struct device *device, void *bytes, uint64_t len, struct shoal_msg *msg)
{
    void **pin = find_pin(device, NULL);
    enum shoal_err err = device_use(device, msg);

    if (err != SHOAL_OK)
        return err;
    if (pin == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "more than %u pieces of memory are pinned for device %d", DEVICE_PINS_MAX,
                          device->ordinal);
    err = outcome(device, "cuMemHostRegister", device->cuda.host_register(bytes, (size_t)len, 0), msg);
    if (err == SHOAL_OK)
        *pin = bytes;
    return err;
}

enum shoal_err device_unpin(struct device *device, void *bytes, struct shoal_msg *msg)
{
    void **pin = bytes == NULL ? NULL : find_pin(device, bytes);
    enum shoal_err err = device_use(device, msg);

    if (err != SHOAL_OK)
        return err;
    if (pin == NULL)
        return shoal_fail(msg, SHOAL_ERR_NOT_FOUND, "that memory is not pinned for device %d", device->ordinal);
    *pin = NULL;
    return outcome(device, "cuMemHostUnregister", device->cuda.host_unregister(bytes), msg);
}

void device_unpin_all(struct device *device)
{
    struct shoal_msg msg;

    for (uint32_t i = 0; i < DEVICE_PINS_MAX; i++)
        if (device->pins[i] != NULL)
            (void)device_unpin(device, device->pins[i], &msg);
}
