/* The counters of the services with a kernel on this host, as OpenMetrics. A label is a service's name and its version
 * (0: an older agent deployed it), or these and how its requests ended. */
#include "agent_backend.h"

#include "shoal/metric_text.h"

#include "shoal/banned.h"

#define LABEL_BYTES 110 /* a service's name has at most 63 characters, none of which a label would escape */

/* The service in this place; false: there is none. `twice`: an earlier place has its label, so it is not shown. */
static bool counted(const struct agent *agent, size_t place, struct serve_counted *c, bool *twice)
{
    struct serve_counted other;

    if (!serve_host_counted(agent->serve, place, c))
        return false;
    *twice = strpbrk(c->service, "\"\\\n") != NULL;
    for (size_t i = 0; i < place && !*twice && serve_host_counted(agent->serve, i, &other); i++)
        *twice = strcmp(other.service, c->service) == 0 && other.version == c->version;
    return true;
}

static enum shoal_err put_batches(const struct serve_counts *counts, const char *name, const char *label,
                                  struct shoal_buf *text)
{
    enum shoal_err err = SHOAL_OK;
    uint64_t count = 0;

    for (unsigned i = 0; i < SERVE_BATCH_BOUNDS && err == SHOAL_OK; i++) {
        count += counts->batches[i];
        err = shoal_metric_put(text, "%s_bucket{%s,le=\"%u\"} %" PRIu64 "\n", name, label, serve_batch_bounds[i], count);
    }
    count += counts->batches[SERVE_BATCH_BOUNDS];
    if (err == SHOAL_OK)
        err = shoal_metric_put(text, "%s_bucket{%s,le=\"+Inf\"} %" PRIu64 "\n%s_sum{%s} %" PRIu64 "\n", name, label, count,
                               name, label, counts->batch_sum);
    return err == SHOAL_OK ? shoal_metric_put(text, "%s_count{%s} %" PRIu64 "\n", name, label, count) : err;
}

static enum shoal_err put_ends(const struct serve_counts *counts, const char *name, const char *label,
                               struct shoal_buf *text)
{
    enum shoal_err err =
        shoal_metric_put(text, "%s{%s,end=\"answered\"} %" PRIu64 "\n", name, label, counts->answered);

    if (err == SHOAL_OK)
        err = shoal_metric_put(text, "%s{%s,end=\"failed\"} %" PRIu64 "\n", name, label, counts->failed);
    return err == SHOAL_OK ? shoal_metric_put(text, "%s{%s,end=\"refused\"} %" PRIu64 "\n", name, label, counts->refused)
                           : err;
}

enum family { QUEUE, KERNEL, TOTAL, BATCH, ENDS, FAMILIES };

static enum shoal_err put_family(enum family family, const struct serve_counts *counts, const char *name,
                                 const char *label, struct shoal_buf *text)
{
    switch (family) {
    case QUEUE: return shoal_metric_buckets(text, name, label, &counts->queue);
    case KERNEL: return shoal_metric_buckets(text, name, label, &counts->kernel);
    case TOTAL: return shoal_metric_buckets(text, name, label, &counts->total);
    case BATCH: return put_batches(counts, name, label, text);
    case ENDS: return put_ends(counts, name, label, text);
    case FAMILIES: break;
    }
    return SHOAL_OK;
}

enum shoal_err backend_service_metrics(struct agent *agent, struct shoal_buf *text)
{
    static const struct {
        const char *name, *help;
    } families[FAMILIES] = {
        [QUEUE] = { "shoal_service_queue_seconds", "how long answered requests waited on this host for a kernel" },
        [KERNEL] = { "shoal_service_kernel_seconds", "how long a kernel of this host had them, its own batching with it" },
        [TOTAL] = { "shoal_service_seconds", "both: from their coming to this host to the answer" },
        [BATCH] = { "shoal_service_batch_requests", "requests, by how many their kernel computed together" },
        [ENDS] = { "shoal_service_requests_total",
                   "requests to kernels of this host: answered; failed, by an answer of 500 and more, or without one; refused, "
                   "for want of room" },
    };
    enum shoal_err err = SHOAL_OK;
    struct serve_counted c;
    bool twice;

    for (unsigned f = 0; f < FAMILIES && err == SHOAL_OK; f++) {
        err = shoal_metric_family(text, families[f].name, "histogram", families[f].help);
        for (size_t i = 0; err == SHOAL_OK && counted(agent, i, &c, &twice); i++) {
            char label[LABEL_BYTES];

            if (twice)
                continue;
            (void)snprintf(label, sizeof(label), "service=\"%.63s\",version=\"%u\"", c.service, c.version);
            err = put_family((enum family)f, c.counts, families[f].name, label, text);
        }
    }
    return err;
}
