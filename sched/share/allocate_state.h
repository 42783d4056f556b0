/* The working memory of the allocation, and what its files share. Picture and rules: shoal/allocate.h and allocate.c. */
#ifndef SHOAL_ALLOCATE_STATE_H
#define SHOAL_ALLOCATE_STATE_H

#include "shoal/allocate.h"

#include "shoal/job_facts.h"

#include "share_parts.h"

#define POOLS SHOAL_ALLOCATE_POOLS_MAX
/* Sets of pools that jobs admit: by device (3), frameworks, and class (those of hosts, or none). */
/* Services that share cards have some more; what is beyond waits as if no pool were its own. */
#define FAMILIES (3 * (SHOAL_SERVES_ALL + 1) * (SHOAL_ALLOCATE_POOLS_MAX + 2) + 64)

struct pool {
    uint8_t device;
    uint32_t class_hash;
    uint32_t serves;
    uint32_t room;
    uint64_t pack;
    uint64_t unfit; /* of whom: as host_work's */
    uint32_t size;
    uint32_t used;
};

struct host_work {
    int32_t pool;    /* -1: not used */
    uint32_t free;   /* slots that nobody holds */
    uint32_t vacant; /* slots that their owners give back */
    uint32_t held;   /* scratch: slots of the job in hand */
    uint64_t unfit;  /* for which jobs: the sum of their marks; 0: for none */
};

struct job_work {
    uint32_t family;
    uint32_t count;
    uint32_t held;
    uint32_t min, max;
    uint32_t stay;               /* slots that it has on draining hosts, and stays on */
    uint32_t want_min, want_max; /* of the view, less those */
    bool running;
    bool admitted;
    bool full;                 /* cannot grow */
    uint32_t first_slot;       /* its slots: held_slots[first_slot..], in canonical order */
    uint32_t slots;            /* how many, on any host */
    uint32_t pool_kept[POOLS]; /* held, later kept, in each pool */
    uint32_t pin[POOLS];       /* a gang's units: decided when it is admitted, no chain moves them (else A2 fails) */
    uint32_t kept;
};

struct shoal_allocate {
    uint32_t hosts_max, slots_max, jobs_max;
    uint32_t *host_order;
    uint32_t *job_order;
    uint32_t *slot_host;
    uint32_t *held_slots; /* slots by owner */
    struct host_work *hosts;
    struct job_work *jobs;
    struct share_parts parts;
    uint32_t pool_count;
    struct pool pools[POOLS];
    uint32_t family_count;
    uint32_t family_mask[FAMILIES];
    uint32_t flow[FAMILIES][POOLS];
    uint32_t spare[FAMILIES][POOLS]; /* scratch copy */
    const struct shoal_allocate_input *view;
    struct shoal_allocate_out *out;
};

/* Of a job among those for which a host will not do: their marks are added up. */
static inline uint64_t share_job_mark(struct shoal_job_id job)
{
    uint64_t hash = 1469598103934665603ull; /* FNV-1a */

    for (unsigned i = 0; i < sizeof(job.bytes); i++)
        hash = (hash ^ job.bytes[i]) * 1099511628211ull;
    return hash;
}

/* allocate.c: adds up to `want` units of family g to the flow; returns how many fit. */
uint32_t share_pour(struct shoal_allocate *work, uint32_t g, uint32_t want);
/* allocate_place.c: gives each job slots for its count. */
void share_place(struct shoal_allocate *work);

#endif
