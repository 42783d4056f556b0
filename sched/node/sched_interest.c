/* Support that jobs want, beyond their groups' own: between the leader of a job and the hosts that it works on, and
 * among these. Worked out anew a little after slots or leads have changed, since it looks at all of them. */
#include "shoal/job_facts.h"
#include "sched_group.h"
#include "sched_node.h"
#include "sched_state.h"
#include "sched_view.h"

#include "shoal/banned.h"

#define INTEREST_NS (100 * SHOAL_MS)

void sched_interest_later(struct shoal_sched *s)
{
    SHOAL_ASSERT(s->interest.due_ns == SCHED_NEVER || s->interest.due_ns <= s->now + INTEREST_NS);
    if (s->interest.due_ns == SCHED_NEVER)
        s->interest.due_ns = s->now + INTEREST_NS;
}

static void want(struct shoal_node_id *list, size_t *count, struct shoal_node_id node)
{
    SHOAL_ASSERT(*count <= SCHED_INTEREST_MAX);
    for (size_t i = 0; i < *count; i++) {
        if (shoal_node_id_equal(list[i], node))
            return;
    }
    if (*count < SCHED_INTEREST_MAX)
        list[(*count)++] = node;
}

/* Leaders of jobs that work here, hosts of jobs led here, and hosts that share a job with this one. */
static size_t wanted_support(const struct shoal_sched *s, struct shoal_node_id *list)
{
    struct shoal_node_id nodes[SHOAL_PLACEMENTS_MAX];
    size_t count = 0;
    size_t some = shoal_slots_leaders(s->slots.core, nodes, SHOAL_PLACEMENTS_MAX);
    struct shoal_slot_status slot;

    SHOAL_ASSERT(s->slots.core != NULL);
    for (size_t i = 0; i < some && i < SHOAL_PLACEMENTS_MAX; i++)
        want(list, &count, nodes[i]);
    for (size_t g = 0; g < s->group_count; g++) {
        if (s->groups[g]->lead == NULL)
            continue;
        some = shoal_lead_hosts(s->groups[g]->lead, nodes, SHOAL_PLACEMENTS_MAX);
        for (size_t i = 0; i < some && i < SHOAL_PLACEMENTS_MAX; i++)
            want(list, &count, nodes[i]);
    }
    for (uint32_t i = 0; i < shoal_slots_count(s->slots.core); i++) {
        const struct shoal_job_summary *summary;

        shoal_slots_slot(s->slots.core, i, &slot);
        summary = slot.state == SHOAL_SLOT_FREE ? NULL : sched_summary_find(s, slot.job);
        for (unsigned h = 0; summary != NULL && h < summary->host_count; h++)
            want(list, &count, summary->hosts[h].node);
    }
    return count;
}

static bool listed(const struct shoal_node_id *list, size_t count, struct shoal_node_id node)
{
    SHOAL_ASSERT(count <= SCHED_INTEREST_MAX);
    for (size_t i = 0; i < count; i++) {
        if (shoal_node_id_equal(list[i], node))
            return true;
    }
    return false;
}

void sched_interest_due(struct shoal_sched *s)
{
    struct sched_interest *interest = &s->interest;
    struct shoal_node_id list[SCHED_INTEREST_MAX];
    size_t count = wanted_support(s, list);
    size_t kept = 0;

    SHOAL_ASSERT(s->interest.count <= SCHED_INTEREST_MAX);
    for (size_t i = 0; i < interest->count; i++) {
        if (listed(list, count, interest->nodes[i]))
            interest->nodes[kept++] = interest->nodes[i];
        else
            sched_support_remove(s, interest->nodes[i]);
    }
    for (size_t i = 0; i < count && kept < SCHED_INTEREST_MAX; i++) {
        if (sched_is_self(s, list[i]) || listed(interest->nodes, kept, list[i]))
            continue;
        if (shoal_support_add(s->support, list[i]) == SHOAL_OK)
            interest->nodes[kept++] = list[i];
    }
    interest->count = kept;
    interest->due_ns = SCHED_NEVER;
}
