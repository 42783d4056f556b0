/* Chooses the hosts that should hold an archived job's record, and keeps what is known of those that do (sched_archive.c: A6). */
#include "sched_archive.h"
#include "sched_archive_table.h"
#include "sched_node.h"
#include "sched_state.h"

#include "shoal/banned.h"

/* ---- Who should hold it ------------------------------------------------------------------------------------------ */

static uint64_t away_max(const struct shoal_sched *s)
{
    SHOAL_ASSERT(s->options.archive_ns > 0 && s->options.replace_ns > 0);
    return s->options.archive_ns < s->options.replace_ns ? s->options.archive_ns : s->options.replace_ns;
}

/* A6. */
static bool keeps_place(const struct shoal_sched *s, const struct sched_node *node)
{
    struct sched_node there = *node;

    SHOAL_ASSERT(node->info.state <= SHOAL_SCHED_NODE_FORGOTTEN);
    if (node->info.state == SHOAL_SCHED_NODE_LEFT || node->info.state == SHOAL_SCHED_NODE_FORGOTTEN ||
        (node->info.state != SHOAL_SCHED_NODE_ALIVE && s->now >= node->since_ns + away_max(s)))
        return false;
    there.info.state = SHOAL_SCHED_NODE_ALIVE;
    return sched_node_available(s, &there);
}

static bool same_domain(const struct shoal_sched *s, const struct shoal_node_id *nodes, size_t count,
                        const struct sched_node *node)
{
    SHOAL_ASSERT(count <= SHOAL_ARCHIVE_COPIES); /* A6 */
    for (size_t i = 0; i < count && sched_node_domain(node)[0] != '\0'; i++) {
        const struct sched_node *other = sched_node_find(s, nodes[i]);

        if (other != NULL && strcmp(sched_node_domain(other), sched_node_domain(node)) == 0)
            return true;
    }
    return false;
}

static bool listed(const struct shoal_node_id *nodes, size_t count, struct shoal_node_id node)
{
    SHOAL_ASSERT(count <= SHOAL_ARCHIVE_COPIES); /* A6 */
    for (size_t i = 0; i < count; i++)
        if (shoal_node_id_equal(nodes[i], node))
            return true;
    return false;
}

/* The nearest in domains of their own first, then the nearest that are left. */
size_t sched_archive_hosts(const struct shoal_sched *s, struct shoal_job_id id, struct shoal_node_id *nodes)
{
    size_t count = 0;

    SHOAL_ASSERT(s->node_count <= SHOAL_MEMBERS_MAX);
    for (unsigned pass = 0; pass < 2; pass++) {
        for (;;) {
            const struct sched_node *nearest = NULL;
            uint64_t best = 0;

            for (size_t i = 0; i < s->node_count && count < SHOAL_ARCHIVE_COPIES; i++) {
                const struct sched_node *node = &s->nodes[i];
                uint64_t score;

                if (!keeps_place(s, node) || listed(nodes, count, node->info.id) ||
                    (pass == 0 && same_domain(s, nodes, count, node)))
                    continue;
                score = sched_score(s, id, node->info.id);
                if (nearest == NULL || score > best) {
                    best = score;
                    nearest = node;
                }
            }
            if (nearest == NULL)
                break;
            nodes[count++] = nearest->info.id;
        }
    }
    return count;
}

/* The table is made anew; of a host that still belongs to it, all that is known stays. */
uint8_t sched_archive_hosts_update(const struct shoal_sched *s, struct shoal_job_id id, struct sched_held_record *hosts,
                                   uint8_t host_count)
{
    struct shoal_node_id nodes[SHOAL_ARCHIVE_COPIES];
    struct sched_held_record fresh[SHOAL_ARCHIVE_COPIES] = { 0 };
    size_t count = sched_archive_hosts(s, id, nodes);

    SHOAL_ASSERT(host_count <= SHOAL_ARCHIVE_COPIES); /* A6 */
    for (size_t i = 0; i < count; i++) {
        fresh[i] = (struct sched_held_record){ .node = nodes[i] };
        for (unsigned old = 0; old < host_count; old++)
            if (shoal_node_id_equal(hosts[old].node, nodes[i]))
                fresh[i] = hosts[old];
    }
    memcpy(hosts, fresh, count * sizeof(fresh[0]));
    return (uint8_t)count;
}

struct sched_held_record *sched_archive_copy_at(struct sched_held_record *hosts, uint8_t count,
                                                struct shoal_node_id node)
{
    SHOAL_ASSERT(count <= SHOAL_ARCHIVE_COPIES); /* A6 */
    for (unsigned i = 0; i < count; i++)
        if (shoal_node_id_equal(hosts[i].node, node))
            return &hosts[i];
    return NULL;
}

bool sched_archive_all_hold(const struct sched_held_record *hosts, uint8_t count, bool final)
{
    SHOAL_ASSERT(count <= SHOAL_ARCHIVE_COPIES);
    for (unsigned i = 0; i < count; i++)
        if (!hosts[i].holds || (final && !hosts[i].final))
            return false;
    return count > 0;
}
