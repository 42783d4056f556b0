/* Parts of cards: a card's room counts as the largest part that some job asks for and that fits, so that cards which are alike
 * for every job are one pool, whatever else is left of them. */
#include "share_parts.h"

#include "shoal/banned.h"

/* The smallest, where there are too many: the larger ones wait. */
void share_parts(const struct shoal_allocate_input *view, struct share_parts *parts)
{
    SHOAL_ASSERT(view->job_count == 0 || view->jobs != NULL);
    parts->count = 0;
    for (uint32_t j = 0; j < view->job_count; j++) {
        uint32_t at = 0;

        if (view->jobs[j].device != SHOAL_ALLOCATE_SHARE)
            continue;
        while (at < parts->count && parts->mib[at] < view->jobs[j].gpu_mib)
            at++;
        if (at == SHOAL_ALLOCATE_PARTS_MAX || (at < parts->count && parts->mib[at] == view->jobs[j].gpu_mib))
            continue;
        if (parts->count < SHOAL_ALLOCATE_PARTS_MAX)
            parts->count++;
        memmove(&parts->mib[at + 1], &parts->mib[at], (parts->count - 1 - at) * sizeof(parts->mib[0]));
        parts->mib[at] = view->jobs[j].gpu_mib;
    }
}

uint32_t share_room(const struct share_parts *parts, const struct shoal_allocate_host *host)
{
    uint32_t room = 0;

    SHOAL_ASSERT(parts->count <= SHOAL_ALLOCATE_PARTS_MAX);
    for (uint32_t i = 0; i < parts->count; i++)
        if (parts->mib[i] <= host->room_mib)
            room = parts->mib[i];
    return room;
}

bool share_fits(const struct shoal_allocate_job *job, uint8_t device, uint32_t room, uint64_t pack)
{
    SHOAL_ASSERT(job->device <= SHOAL_ALLOCATE_SHARE);
    if (job->device == SHOAL_JOB_DEVICE_AUTO)
        return device != SHOAL_ALLOCATE_SHARE;
    if (job->device != SHOAL_ALLOCATE_SHARE)
        return job->device == device;
    return (device == SHOAL_JOB_DEVICE_GPU || (device == SHOAL_ALLOCATE_SHARE && pack == job->pack)) && job->gpu_mib > 0 &&
           room >= job->gpu_mib;
}
