/* The GPUs of this host, in the order in which NVML lists them: each is a slot.
 *
 *   whole card  -->  one device, "GPU-<uuid>"
 *   card in MIG mode  -->  one device for each of its instances, "MIG-<uuid>"; none without instances
 *
 * A UUID names the same card to NVML, to the CUDA runtime and after a reboot; an index does not. NVML is loaded at run time
 * and bound by its versioned names where it has several (the others are older layouts). Our declarations are these few lines;
 * no header of NVIDIA's is read. */
#include "agent.h"

#include <dlfcn.h>

#include "shoal/banned.h"

#define NVML_OK 0

typedef void *nvml_device;

struct nvml_memory {
    unsigned long long total, free, used; /* bytes */
};

struct nvml {
    void *library;
    int (*init)(void);
    int (*end)(void);
    int (*count)(unsigned *count);
    int (*at)(unsigned index, nvml_device *device);
    int (*uuid)(nvml_device device, char *text, unsigned cap);
    int (*name)(nvml_device device, char *text, unsigned cap);
    int (*memory)(nvml_device device, struct nvml_memory *memory);
    /* NULL in libraries that know nothing of MIG. */
    int (*mig_mode)(nvml_device device, unsigned *current, unsigned *pending);
    int (*mig_max)(nvml_device device, unsigned *count);
    int (*mig_at)(nvml_device device, unsigned index, nvml_device *instance);
};

static bool nvml_load(struct nvml *n)
{
    *n = (struct nvml){ .library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL) };
    if (n->library == NULL)
        return false;
    *(void **)&n->init = dlsym(n->library, "nvmlInit_v2");
    *(void **)&n->end = dlsym(n->library, "nvmlShutdown");
    *(void **)&n->count = dlsym(n->library, "nvmlDeviceGetCount_v2");
    *(void **)&n->at = dlsym(n->library, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&n->uuid = dlsym(n->library, "nvmlDeviceGetUUID");
    *(void **)&n->name = dlsym(n->library, "nvmlDeviceGetName");
    *(void **)&n->memory = dlsym(n->library, "nvmlDeviceGetMemoryInfo");
    *(void **)&n->mig_mode = dlsym(n->library, "nvmlDeviceGetMigMode");
    *(void **)&n->mig_max = dlsym(n->library, "nvmlDeviceGetMaxMigDeviceCount");
    *(void **)&n->mig_at = dlsym(n->library, "nvmlDeviceGetMigDeviceHandleByIndex");
    if (n->init != NULL && n->end != NULL && n->count != NULL && n->at != NULL && n->uuid != NULL && n->name != NULL &&
        n->init() == NVML_OK)
        return true;
    (void)dlclose(n->library);
    return false;
}

/* A device whose UUID is not told cannot be given to a job. */
static void add(const struct nvml *n, nvml_device device, struct agent_devices *devices)
{
    struct agent_device *row = &devices->list[devices->count];
    struct nvml_memory memory = { 0 };

    if (devices->count == SHOAL_SLOTS_MAX || n->uuid(device, row->uuid, sizeof(row->uuid)) != NVML_OK ||
        row->uuid[0] == '\0')
        return;
    if (n->name(device, row->name, sizeof(row->name)) != NVML_OK)
        (void)snprintf(row->name, sizeof(row->name), "GPU");
    row->mib = 0;
    if (n->memory != NULL && n->memory(device, &memory) == NVML_OK && memory.total / SHOAL_MIB <= UINT32_MAX)
        row->mib = (uint32_t)(memory.total / SHOAL_MIB);
    devices->count++;
}

static bool is_mig(const struct nvml *n, nvml_device device)
{
    unsigned current = 0, pending = 0;

    return n->mig_mode != NULL && n->mig_max != NULL && n->mig_at != NULL &&
           n->mig_mode(device, &current, &pending) == NVML_OK && current == 1;
}

static void add_instances(const struct nvml *n, nvml_device device, struct agent_devices *devices)
{
    unsigned max = 0;

    if (n->mig_max(device, &max) != NVML_OK)
        return;
    for (unsigned i = 0; i < max && i < SHOAL_SLOTS_MAX; i++) {
        nvml_device instance = NULL;

        if (n->mig_at(device, i, &instance) == NVML_OK) /* places may be empty */
            add(n, instance, devices);
    }
}

void agent_devices_find(struct agent_devices *devices)
{
    unsigned count = 0;
    struct nvml n;

    *devices = (struct agent_devices){ .count = 0 };
    if (!nvml_load(&n))
        return;
    if (n.count(&count) != NVML_OK)
        count = 0;
    for (unsigned i = 0; i < count && i < SHOAL_SLOTS_MAX; i++) {
        nvml_device device = NULL;

        if (n.at(i, &device) != NVML_OK)
            continue;
        if (is_mig(&n, device))
            add_instances(&n, device, devices);
        else
            add(&n, device, devices);
    }
    (void)n.end();
    (void)dlclose(n.library);
}
