/* The allocation's word on one job, as a line for a person. */
#include "shoal/allocate.h"

#include "shoal/job_facts.h"

#include "shoal/banned.h"

#define KIND_BYTES 64u

static const char *kind_text(const struct shoal_allocate_job *job, uint32_t count, char text[KIND_BYTES])
{
    static const char *const kinds[][2] = {
        [SHOAL_JOB_DEVICE_AUTO] = { "slot", "slots" },
        [SHOAL_JOB_DEVICE_CPU] = { "CPU slot", "CPU slots" },
        [SHOAL_JOB_DEVICE_GPU] = { "GPU slot", "GPU slots" },
        [SHOAL_ALLOCATE_SHARE] = { "part of a GPU", "parts of GPUs" },
    };

    SHOAL_ASSERT(job->device < sizeof(kinds) / sizeof(kinds[0]));
    (void)snprintf(text, KIND_BYTES, "%s%s", kinds[job->device][count != 1],
                   (job->needs & SHOAL_SERVES_TENSORFLOW) != 0 ? " of hosts with TensorFlow"
                   : (job->needs & SHOAL_SERVES_TORCH) != 0    ? " of hosts with torch"
                                                               : "");
    return text;
}

/* Tells what of a card it needs, and why it gets none. */
static void explain_share(const struct shoal_allocate_input *view, const struct shoal_allocate_grant *grant, uint32_t job,
                          char *text, size_t cap)
{
    const struct shoal_allocate_job *j = &view->jobs[job];
    uint32_t largest = 0;

    SHOAL_ASSERT(j->device == SHOAL_ALLOCATE_SHARE);
    for (uint32_t h = 0; h < view->host_count; h++)
        if (view->hosts[h].usable && view->hosts[h].device == SHOAL_JOB_DEVICE_GPU && view->hosts[h].room_mib > largest)
            largest = view->hosts[h].room_mib;
    if (largest == 0)
        (void)snprintf(text, cap, "needs %u MiB of a GPU, and no host of the mesh has one that can be shared: add one, or "
                                  "edit kernel.gpu of its profile", j->gpu_mib);
    else if (largest < j->gpu_mib)
        (void)snprintf(text, cap, "needs %u MiB of a GPU, and the largest of the mesh has %u MiB: lower gpu_mem of its "
                                  "profile's accelerator_resources", j->gpu_mib, largest);
    else
        (void)snprintf(text, cap, "given %u of %u parts of %u MiB of a GPU: no card has so much left, and none that is whole "
                                  "can be had; it starts when one of those who hold them ends", grant->count, j->max, j->gpu_mib);
}

#define HOLDERS_MAX 2u /* that are named */

/* The jobs that a service has nothing to take from: they keep the slots which it would like to have. */
static void explain_service(const struct shoal_allocate_input *view, const struct shoal_allocate_out *out, uint32_t job,
                            char *text, size_t cap)
{
    uint32_t others = 0, slots = 0;
    size_t used;

    SHOAL_ASSERT(view->jobs[job].service && cap > 1);
    (void)snprintf(text, cap, "given %u of %u slots; held by ", out->grants[job].count, view->jobs[job].max);
    for (uint32_t i = 0; i < view->job_count; i++) {
        char id[SHOAL_JOB_ID_TEXT_BYTES];

        if (i == job || out->grants[i].count == 0)
            continue;
        slots += out->grants[i].count;
        if (others++ >= HOLDERS_MAX)
            continue;
        used = strlen(text);
        shoal_job_id_text(view->jobs[i].id, id);
        (void)snprintf(text + used, cap - used, "%s%s (%u)", others > 1 ? ", " : "", id, out->grants[i].count);
    }
    used = strlen(text);
    if (others > HOLDERS_MAX)
        (void)snprintf(text + used, cap - used, " and %u more, %u slots together", others - HOLDERS_MAX, slots);
    else if (others == 0)
        (void)snprintf(text + used, cap - used, "nobody: the mesh has no more");
    used = strlen(text);
    (void)snprintf(text + used, cap - used,
                   others > 0 ? ", which have no more than they need at least: it grows when one of them ends"
                              : "; add hosts");
}

/* Do some hosts have something else than it needs? Only then its slots are named by it. */
static bool frameworks_matter(const struct shoal_allocate_input *view, const struct shoal_allocate_job *job)
{
    SHOAL_ASSERT(view->host_count == 0 || view->hosts != NULL);
    for (uint32_t h = 0; h < view->host_count; h++)
        if (!shoal_host_serves(view->hosts[h].serves, job->needs))
            return true;
    return false;
}

/* It needs more than the whole mesh has. `job`: as the text names what it needs. */
static void explain_too_large(const struct shoal_allocate_input *view, const struct shoal_allocate_out *out,
                              const struct shoal_allocate_job *job, uint32_t mesh, char *text, size_t cap)
{
    static const char *const remedies[2][2] = {
        { "add hosts that have some", "add hosts" },
        { "install it in the Python of a host and start its agent again", "install it in the Python of more hosts and start their agents again" },
    };
    char kind[KIND_BYTES];

    SHOAL_ASSERT(mesh < job->min);
    if (view->host_count == 0) {
        (void)snprintf(text, cap, "no host of the mesh has a slot: %s",
                       view->slotless == 0 ? "add hosts"
                                           : "no host's Python has torch or TensorFlow, and NumPy; run `shoal doctor` on a host, "
                                             "name one with --python, or make it with --setup-python of `shoal init` and "
                                             "`shoal join`");
        return;
    }
    if (out->pools == 0) {
        (void)snprintf(text, cap, "needs %u %s, and no host of the mesh takes new work now: those with slots drain, or do not "
                                  "answer", job->min, kind_text(job, job->min, kind));
        return;
    }
    (void)snprintf(text, cap, "needs %u %s%s, but %s %u: %s%s", job->min, kind_text(job, job->min, kind),
                   job->class_hash != 0 ? " of its numeric class" : "",
                   job->unfit_count > 0 ? "the hosts that can run it have" : "the whole mesh has", mesh,
                   mesh > 0 ? "ask for fewer workers or " : "", remedies[job->needs != 0][mesh > 0]);
}

void shoal_allocate_explain(const struct shoal_allocate_input *view, const struct shoal_allocate_out *out, uint32_t job,
                            char *text, size_t cap)
{
    const struct shoal_allocate_grant *grant = &out->grants[job];
    struct shoal_allocate_job told = view->jobs[job];
    const struct shoal_allocate_job *j = &told;
    char head[SHOAL_JOB_ID_TEXT_BYTES] = "", kind[KIND_BYTES];

    SHOAL_ASSERT(job < view->job_count);
    if (!frameworks_matter(view, j))
        told.needs = 0;
    if (grant->head >= 0)
        shoal_job_id_text(view->jobs[grant->head].id, head);
    if (j->device == SHOAL_ALLOCATE_SHARE && grant->why != SHOAL_ALLOCATE_GIVEN && grant->why != SHOAL_ALLOCATE_NONE) {
        explain_share(view, grant, job, text, cap);
        return;
    }
    if (j->service && grant->why == SHOAL_ALLOCATE_FULL) {
        explain_service(view, out, job, text, cap);
        return;
    }
    switch (grant->why) {
    case SHOAL_ALLOCATE_GIVEN:
        (void)snprintf(text, cap, "given %u of %u %s%s", grant->count, j->max, kind_text(j, j->max, kind),
                       j->stays && grant->count < j->max ? "; what it has on hosts that are drained counts for the others" : "");
        return;
    case SHOAL_ALLOCATE_SHARED:
        (void)snprintf(text, cap,
                       "given %u %s of at most %u: its fair share among the running jobs of the %u in the mesh",
                       grant->count, kind_text(j, grant->count, kind), j->max, grant->mesh);
        return;
    case SHOAL_ALLOCATE_NONE: (void)snprintf(text, cap, "wants no slots now"); return;
    case SHOAL_ALLOCATE_TOO_LARGE:
        explain_too_large(view, out, j, grant->mesh, text, cap);
        return;
    case SHOAL_ALLOCATE_HEAD:
        (void)snprintf(text, cap,
                       "first in the queue: needs %u %s, %u are held for it so far; it starts when running jobs end",
                       j->min, kind_text(j, j->min, kind), grant->avail);
        return;
    case SHOAL_ALLOCATE_BEHIND:
        (void)snprintf(text, cap,
                       "needs %u %s: what is free is held for %s, which is before it in the queue; raise its priority "
                       "to go first",
                       j->min, kind_text(j, j->min, kind), head);
        return;
    case SHOAL_ALLOCATE_FULL:
        (void)snprintf(text, cap, "needs %u %s: all %u of the mesh are taken by running jobs; it starts when one ends",
                       j->min, kind_text(j, j->min, kind), grant->mesh);
        return;
    }
    (void)snprintf(text, cap, "%s", "");
}
