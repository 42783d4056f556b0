/* The slots of this host: its GPUs where there are any (devices_nvml.c), else CPU slots, else what the operator declares for a
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

/* Services share cards whose memory is known, where each slot is one. */
static uint32_t shares_of(const struct agent_settings *settings)
{
    if (settings->device != SHOAL_SCHED_GPU || settings->slots > settings->devices.count)
        return 0;
    for (uint32_t i = 0; i < settings->slots; i++)
        if (settings->devices.list[i].mib == 0)
            return 0;
    return shoal_cards_shares(settings->slots);
}

uint32_t agent_slots_all(const struct agent_settings *settings)
{
    return settings->shares == 0 ? settings->slots : shoal_cards_slots(settings->slots, settings->shares);
}

const struct agent_device *agent_slot_device(const struct agent_settings *settings, uint32_t slot)
{
    uint32_t card = slot;

    if (slot == SHOAL_SLOT_NONE || settings->device != SHOAL_SCHED_GPU || settings->devices.count == 0)
        return NULL;
    if (settings->shares > 0)
        card = shoal_cards_of(settings->slots, settings->shares, slot);
    return card == UINT32_MAX ? NULL : &settings->devices.list[card % settings->devices.count];
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
    settings->shares = shares_of(settings);
    /* The bits that an engine computes depend on its framework too: it says its numeric class itself, when it is ready,
     * and a leader leaves out hosts whose engines differ. Nothing said here fits all. */
    settings->numeric_class[0] = '\0';
    return SHOAL_OK;
}

void agent_slot_devices(const struct agent_settings *settings, uint32_t slot, char text[AGENT_DEVICE_BYTES])
{
    const struct agent_device *device = agent_slot_device(settings, slot);

    text[0] = '\0';
    if (device != NULL)
        (void)snprintf(text, AGENT_DEVICE_BYTES, "%s", device->uuid);
    else if (slot != SHOAL_SLOT_NONE && settings->device == SHOAL_SCHED_GPU && settings->devices.count == 0)
        (void)snprintf(text, AGENT_DEVICE_BYTES, "%u", slot); /* declared, for a test */
}
