/* Parts of cards that services share, for the allocation: which sizes are asked for, and what fits where (share_parts.c). */
#ifndef SHOAL_SHARE_PARTS_H
#define SHOAL_SHARE_PARTS_H

#include "shoal/allocate.h"

struct share_parts {
    uint32_t count;
    uint32_t mib[SHOAL_ALLOCATE_PARTS_MAX]; /* that jobs ask for, rising, each once */
};

void share_parts(const struct shoal_allocate_input *view, struct share_parts *parts);
/* The largest part that fits the host's cards; 0: none. */
uint32_t share_room(const struct share_parts *parts, const struct shoal_allocate_host *host);
/* Whether the job takes slots of this kind. */
bool share_fits(const struct shoal_allocate_job *job, uint8_t device, uint32_t room, uint64_t pack);

#endif
