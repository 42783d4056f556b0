/* Stands for libnvidia-ml.so.1 on hosts without a GPU. NVML_FAKE names what is there, a word each: "whole" a card,
 * "mig:2" a card in MIG mode with two instances, whose places are not the first ones, "broken" a card that tells nothing, "whole:24576"
 * a card of so many MiB (0: it does not tell). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct device {
    char uuid[96];
    int instances; /* -1: no MIG */
    int broken;
    long mib;
    struct device *parent;
};

static struct device cards[16], slices[64];
static unsigned count;

int nvmlInit_v2(void)
{
    char words[256];
    unsigned slice = 0;

    (void)snprintf(words, sizeof(words), "%s", getenv("NVML_FAKE") == NULL ? "" : getenv("NVML_FAKE"));
    if (strcmp(words, "no driver") == 0)
        return 9;
    count = 0;
    for (char *word = strtok(words, " "); word != NULL; word = strtok(NULL, " ")) {
        struct device *card = &cards[count];

        card->instances = strncmp(word, "mig:", 4) == 0 ? atoi(word + 4) : -1;
        card->mib = strncmp(word, "whole:", 6) == 0 ? atol(word + 6) : 81559;
        card->broken = strcmp(word, "broken") == 0;
        (void)snprintf(card->uuid, sizeof(card->uuid), "GPU-0000%u", count);
        for (int i = 0; i < card->instances; i++, slice++) {
            slices[slice] = (struct device){ .instances = -1, .parent = card };
            (void)snprintf(slices[slice].uuid, sizeof(slices[slice].uuid), "MIG-%u-%d", count, i);
        }
        count++;
    }
    return 0;
}

int nvmlShutdown(void) { return 0; }

int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = count;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = &cards[index];
    return index < count ? 0 : 2;
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned cap)
{
    struct device *d = device;

    (void)snprintf(text, cap, "%s", d->uuid);
    return d->broken ? 15 : 0;
}

int nvmlDeviceGetName(void *device, char *text, unsigned cap)
{
    (void)device;
    (void)snprintf(text, cap, "NVIDIA Pretence 80GB");
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory)
{
    struct device *d = device;

    memory[0] = memory[1] = (unsigned long long)(d->parent == NULL ? d->mib : 9856) << 20;
    memory[2] = 0;
    return d->mib == 0 && d->parent == NULL ? 3 : 0;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
    struct device *d = device;

    *current = *pending = d->instances >= 0;
    return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *n)
{
    (void)device;
    *n = 7;
    return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **instance)
{
    struct device *d = device;
    unsigned skip = 2; /* places that are empty */

    for (unsigned i = 0; i < 64; i++)
        if (slices[i].parent == d && skip++ == index) {
            *instance = &slices[i];
            return 0;
        }
    return 6;
}
