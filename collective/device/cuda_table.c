/* Finds libcuda and its calls (cuda_table.h). */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_table.h"

#include "shoal/banned.h"

#define CALL(field, name)                                                                                              \
    {                                                                                                                  \
        name, offsetof(struct cuda_table, field)                                                                       \
    }

static const struct device_call calls[] = {
    CALL(init, "cuInit"),
    CALL(version, "cuDriverGetVersion"),
    CALL(device_count, "cuDeviceGetCount"),
    CALL(device_get, "cuDeviceGet"),
    CALL(device_name, "cuDeviceGetName"),
    CALL(context_retain, "cuDevicePrimaryCtxRetain"),
    CALL(context_release, "cuDevicePrimaryCtxRelease_v2"),
    CALL(context_use, "cuCtxSetCurrent"),
    CALL(stream_create, "cuStreamCreate"),
    CALL(stream_destroy, "cuStreamDestroy_v2"),
    CALL(stream_query, "cuStreamQuery"),
    CALL(stream_wait, "cuStreamSynchronize"),
    CALL(copy_in, "cuMemcpyHtoDAsync_v2"),
    CALL(copy_out, "cuMemcpyDtoHAsync_v2"),
    CALL(allocate, "cuMemAlloc_v2"),
    CALL(release, "cuMemFree_v2"),
    CALL(host_register, "cuMemHostRegister_v2"),
    CALL(host_unregister, "cuMemHostUnregister"),
    CALL(error_name, "cuGetErrorName"),
};

enum shoal_err device_load(const char *variable, const char *soname, const struct device_call *wanted, size_t count,
                           size_t optional, void *table, struct shoal_msg *msg)
{
    const char *chosen = getenv(variable);
    const char *path = chosen != NULL && *chosen != '\0' ? chosen : soname;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    _Static_assert(sizeof(void (*)(void)) == sizeof(void *), "dlsym gives calls as pointers to data");
    if (library == NULL)
        return shoal_fail(msg, SHOAL_ERR_UNSUPPORTED, "%s", dlerror());
    for (size_t i = 0; i < count; i++) {
        void *symbol = dlsym(library, wanted[i].name);

        if (symbol == NULL && i < optional) {
            (void)dlclose(library); /* nothing of it has run */
            return shoal_fail(msg, SHOAL_ERR_UNSUPPORTED, "%s has no %s", path, wanted[i].name);
        }
        memcpy((uint8_t *)table + wanted[i].at, &symbol, sizeof(symbol));
    }
    return SHOAL_OK;
}

enum shoal_err cuda_table_load(struct cuda_table *cuda, struct shoal_msg *msg)
{
    size_t count = sizeof(calls) / sizeof(calls[0]);

    return device_load(CUDA_ENV_LIBRARY, "libcuda.so.1", calls, count, count, cuda, msg);
}
