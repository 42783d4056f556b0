/* Reads what all hosts say of the services that they serve, once and in order of the services' jobs: for answers that tell of
 * many services. */
#include <stdlib.h>

#include "agent_backend.h"
#include "backend_services.h"

#include "shoal/banned.h"

static int by_job(const void *a, const void *b)
{
    const struct backend_serving_row *left = a, *right = b;
    int order = shoal_job_id_cmp(left->serving.job, right->serving.job);

    return order != 0 ? order : shoal_node_id_cmp(left->node, right->node);
}

bool backend_serving_read(struct agent *agent, struct backend_serving *all)
{
    struct shoal_serving_record serving;
    struct shoal_record record;
    uint32_t cursor = 0;
    size_t cap = 0;

    *all = (struct backend_serving){ 0 };
    while (shoal_records_next(membership_swim(agent->membership), SHOAL_RECORD_SERVICE, &cursor, &record)) {
        if (!backend_host_serves(agent, &record, &serving))
            continue;
        if (all->count + serving.count > cap) {
            struct backend_serving_row *rows;

            cap = 2 * (all->count + serving.count);
            rows = realloc(all->rows, cap * sizeof(*rows));
            if (rows == NULL) {
                backend_serving_free(all);
                return false;
            }
            all->rows = rows;
        }
        for (unsigned i = 0; i < serving.count; i++)
            all->rows[all->count++] = (struct backend_serving_row){ record.author, serving.services[i] };
    }
    if (all->count > 0)
        qsort(all->rows, all->count, sizeof(all->rows[0]), by_job);
    return true;
}

void backend_serving_free(struct backend_serving *all)
{
    free(all->rows);
    *all = (struct backend_serving){ 0 };
}

const struct backend_serving_row *backend_serving_of(const struct backend_serving *all, struct shoal_job_id job,
                                                     size_t *count)
{
    size_t low = 0, high = all->count, end;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (shoal_job_id_cmp(all->rows[mid].serving.job, job) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    for (end = low; end < all->count && shoal_job_id_equal(all->rows[end].serving.job, job);)
        end++;
    *count = end - low;
    return all->rows + low;
}
