/* What this host leases: its GPUs where there are any (devices_nvml.c), else CPU slots, else what the operator declares for a
 * test. */
#include "agent.h"

#include <unistd.h>

#include "shoal/banned.h"

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

    settings->device = SHOAL_SCHED_CPU;
    settings->slots = cpus < 1 ? 1 : (unsigned)cpus;
    if (declared[0] != '\0') {
        if (!parse_declared(declared, settings))
            return shoal_fail(msg, SHOAL_ERR_INVALID, "inventory: \"%.60s\" is not cpu:N or gpu:N with N from 1 to %d",
                              declared, SHOAL_SLOTS_MAX);
    } else {
        agent_devices_find(&settings->devices);
    }
    if (settings->devices.count > 0) {
        settings->device = SHOAL_SCHED_GPU;
        settings->slots = settings->devices.count;
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

void agent_slot_devices(const struct agent_settings *settings, uint32_t slot, char text[AGENT_DEVICE_BYTES])
{
    text[0] = '\0';
    if (slot == SHOAL_SLOT_NONE || settings->device != SHOAL_SCHED_GPU)
        return;
    if (settings->devices.count == 0) /* declared, for a test */
        (void)snprintf(text, AGENT_DEVICE_BYTES, "%u", slot);
    else
        (void)snprintf(text, AGENT_DEVICE_BYTES, "%s", settings->devices.list[slot % settings->devices.count].uuid);
}
