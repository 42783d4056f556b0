/* Lives of an NCCL communicator of one rank on a card, one after the other (dp.B6 of reference/data-plane 10.2):
 *
 *   made without blocking -> a sum -> a shrink that must be refused (it excludes nobody) -> a sum of a new one -> revoked -> ended
 *
 *   gpu_life [cycles]     prints one line: the time of a cycle, and what of the card's memory did not come back */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "collective/device/device.h"
#include "shoal/collective_op.h"

#include "shoal/banned.h"

#define ELEMS (1u << 20)

static struct device *device;
static struct shoal_msg msg;
static int (*memory_info)(size_t *bytes_free, size_t *bytes_total);
static bool stopped;

static bool stop(void *arg)
{
    (void)arg;
    return stopped;
}

static const struct nccl_stop never = { stop, NULL };

static void must(enum shoal_err err, const char *what)
{
    if (err == SHOAL_OK)
        return;
    (void)fprintf(stderr, "gpu_life: %s: %s\n", what, msg.text);
    exit(1);
}

static double now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static double free_mib(void)
{
    size_t bytes_free = 0;
    size_t total = 0;

    if (memory_info == NULL || memory_info(&bytes_free, &total) != 0)
        return 0;
    return (double)bytes_free / (1 << 20);
}

static void make(void)
{
    struct nccl_id id;

    if (device->nccl.table.unique_id(&id) != NCCL_OK) {
        (void)fprintf(stderr, "gpu_life: ncclGetUniqueId failed\n");
        exit(1);
    }
    must(nccl_life_make(device, &id, 1, 0, &never, &msg), "make");
}

static void add(cuda_address values)
{
    static float host[ELEMS];
    nccl_result result;

    for (uint32_t i = 0; i < ELEMS; i++)
        host[i] = (float)i;
    must(device_copy_in(device, values, host, sizeof(host), &msg), "copy");
    result = device->nccl.table.all_reduce((const void *)(uintptr_t)values, (void *)(uintptr_t)values, ELEMS,
                                           nccl_table_type(SHOAL_FLOAT32), nccl_table_reduction(SHOAL_SUM), device->nccl.comm,
                                           device->stream);
    must(nccl_life_finish(device, "ncclAllReduce", result, &never, &msg), "sum");
    must(device_copy_out(device, host, values, sizeof(host), &msg), "copy");
    for (uint32_t i = 0; i < ELEMS; i++)
        if (host[i] != (float)i)
            must(shoal_fail(&msg, SHOAL_ERR_INVALID, "element %u is wrong", i), "sum");
}

/* false: the library cannot shrink at all. */
static bool shrink_is_refused(void)
{
    int me = 0;

    if (device->nccl.table.shrink == NULL)
        return false;
    if (nccl_life_shrink(device, &me, 0, &never, &msg) == SHOAL_OK)
        must(shoal_fail(&msg, SHOAL_ERR_INVALID, "a shrink that excludes nobody was not refused"), "shrink");
    device->nccl.there = true; /* it counts as a failure, of which a process has only so many */
    device->nccl.fails = 0;
    return true;
}

/* Where the library can; it may say that it is still at it. */
static void revoke(void)
{
    nccl_result result = device->nccl.table.revoke == NULL ? NCCL_OK : device->nccl.table.revoke(device->nccl.comm, 0);

    if (result != NCCL_OK && result != NCCL_IN_PROGRESS)
        must(shoal_fail(&msg, SHOAL_ERR_DEVICE, "ncclCommRevoke gave %d", (int)result), "revoke");
}

static void cycle(cuda_address values)
{
    make();
    add(values);
    if (shrink_is_refused())
        make();
    add(values);
    revoke();
    must(nccl_life_abort(device, &msg), "abort");
}

int main(int argc, char **argv)
{
    unsigned cycles = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 100;
    const char *chosen = getenv(CUDA_ENV_LIBRARY);
    void *library = dlopen(chosen == NULL || *chosen == '\0' ? "libcuda.so.1" : chosen, RTLD_NOW);
    cuda_address values = 0;
    double worst = 0;
    double total = 0;
    double before = 0;
    int version = 0;

    must(device_create(&device, 0, &msg), "device");
    if (!device->nccl.there) {
        (void)fprintf(stderr, "gpu_life: %s\n", device->no_nccl.text);
        return 1;
    }
    if (library != NULL) {
        void *symbol = dlsym(library, "cuMemGetInfo_v2");

        memcpy(&memory_info, &symbol, sizeof(symbol));
    }
    must(device_use(device, &msg), "context");
    if (device->cuda.allocate(&values, ELEMS * sizeof(float)) != CUDA_OK)
        must(shoal_fail(&msg, SHOAL_ERR_DEVICE, "no memory"), "device");
    (void)device->nccl.table.version(&version);
    for (unsigned i = 0; i <= cycles; i++) {
        double began = now_ms();
        double took;

        cycle(values);
        took = now_ms() - began;
        if (i == 0) { /* what a process makes once */
            before = free_mib();
            continue;
        }
        total += took;
        worst = took > worst ? took : worst;
    }
    (void)printf("NCCL %d on %s: %u cycles, %.1f ms each, worst %.1f; %.3f MiB of the card a cycle not given back\n", version,
                 device->name, cycles, total / cycles, worst, (before - free_mib()) / cycles);
    device_destroy(device);
    return 0;
}
