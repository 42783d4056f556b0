/* This host can lease GPUs by NVML when there are any, else CPU slots, else what the operator declares for a
 * test.
 *
 * NVML is loaded at run time and bound by its versioned names only (the others are older layouts); our declarations are
 * these few lines, no header of NVIDIA's is read. */
#include "agent.h"

#include <dlfcn.h>
#include <unistd.h>

#include "shoal/banned.h"

#define NVML_OK 0

static unsigned nvml_count(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*init)(void);
    int (*device_count)(unsigned *count);
    int (*shutdown_)(void);
    unsigned count = 0;

    if (library == NULL)
        return 0;
    *(void **)&init = dlsym(library, "nvmlInit_v2");
    *(void **)&device_count = dlsym(library, "nvmlDeviceGetCount_v2");
    *(void **)&shutdown_ = dlsym(library, "nvmlShutdown");
    if (init != NULL && device_count != NULL && shutdown_ != NULL && init() == NVML_OK) {
        if (device_count(&count) != NVML_OK)
            count = 0;
        (void)shutdown_();
    }
    (void)dlclose(library);
    return count;
}

/* "cpu:2": a device, a colon, a count. */
static bool parse_declared(const char *text, struct agent_settings *settings)
{
    bool gpu = strncmp(text, "gpu:", 4) == 0;
    char *end;
    unsigned long count;

    if (!gpu && strncmp(text, "cpu:", 4) != 0)
        return false;
    count = strtoul(text + 4, &end, 10);
    if (text[4] < '0' || text[4] > '9' || *end != '\0' || count < 1 || count > SHOAL_SLOTS_MAX)
        return false;
    settings->simulated = true;
    settings->device = gpu ? SHOAL_SCHED_GPU : SHOAL_SCHED_CPU;
    settings->slots = (uint32_t)count;
    return true;
}

enum shoal_err agent_inventory(struct agent_settings *settings, const char *declared, unsigned slots,
                               struct shoal_msg *msg)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned gpus;

    settings->device = SHOAL_SCHED_CPU;
    settings->slots = cpus < 1 ? 1 : (unsigned)cpus;
    if (declared[0] != '\0') {
        if (!parse_declared(declared, settings))
            return shoal_fail(msg, SHOAL_ERR_INVALID, "inventory: \"%.60s\" is not cpu:N or gpu:N with N from 1 to %d",
                              declared, SHOAL_SLOTS_MAX);
    } else if ((gpus = nvml_count()) > 0) {
        settings->device = SHOAL_SCHED_GPU;
        settings->slots = gpus;
    }
    if (slots > 0)
        settings->slots = slots;
    if (settings->slots > SHOAL_SLOTS_MAX)
        settings->slots = SHOAL_SLOTS_MAX;
    /* What bits an engine computes depends on its framework too: it says its numeric class itself, when it is ready,
     * and a leader leaves out hosts whose engines differ. Nothing said here fits all. */
    settings->numeric_class[0] = '\0';
    return SHOAL_OK;
}
