/* Epochs that end for nothing: a member left, though all of them, and their hosts, are well. A worker that is disturbed may do so;
 * a process of the job may make its workers do so for ever, by their control page or in their name.
 *
 *   such an epoch --> the next one is made when the ones before it are paid for --> the 20th without a step ends the call
 *
 * N1. Each costs PACE_NS; BURST of them need not wait. A step does not pay: training that goes on so is slow, and its log as well.
 * N2. Deaths, lost hosts, planned changes are none of them: those have their own bounds, and are not kept waiting. A death that is
 *     known only after the others have left counts once, and never reaches the bound: it ends its own wait.
 * N3. Where a member says that data links broke, it waits like the others, and is not counted: E7 of lead_epoch.c ends that. */
#include "lead_state.h"

#include "shoal/banned.h"

#define PACE_NS (500 * SHOAL_MS)
#define BURST 8
#define TOLD_FROM 3u

static bool any_links_broken(const struct lead_step *s, const struct shoal_worker_epoch *last)
{
    SHOAL_ASSERT(last->member_count <= SHOAL_RANKS_MAX);
    for (uint32_t i = 0; i < last->member_count; i++) {
        const struct lworker *w = lead_find_worker(s->lead, last->members[i].worker_id);

        if (w != NULL && shoal_epoch_cmp(w->broken_epoch, last->epoch) == 0 && shoal_ranks_count(&w->broken) > 0)
            return true;
    }
    return false;
}

void lead_idle_begin(struct shoal_lead *lead, const struct shoal_worker_epoch *last)
{
    SHOAL_ASSERT(last->member_count <= SHOAL_RANKS_MAX);
    lead->idle_worker = 0;
    for (uint32_t i = 0; i < last->member_count && lead->idle_worker == 0; i++) {
        const struct lworker *w = lead_find_worker(lead, last->members[i].worker_id);

        if (w == NULL || !lead_closed_in(w, last->epoch))
            continue;
        lead->idle_worker = w->place.worker_id;
        lead->idle_node = w->place.node;
    }
}

/* N2. */
static bool ended_for_nothing(struct lead_step *s, const struct shoal_worker_epoch *last)
{
    SHOAL_ASSERT(s->lead->revoking);
    for (uint32_t i = 0; i < last->member_count; i++) {
        const struct lworker *w = lead_worker(s->lead, last->members[i].worker_id);

        if (!lead_is_well(s, w) || w->leaving || w->ended_ns != 0)
            return false;
    }
    return s->lead->idle_worker != 0;
}

bool lead_idle_judge(struct lead_step *s, const struct shoal_worker_epoch *last)
{
    struct shoal_lead *lead = s->lead;
    uint64_t word = shoal_epoch_word(last->epoch);

    SHOAL_ASSERT(word > 0);
    if (!ended_for_nothing(s, last))
        return true;
    if (word != lead->idle_word) {
        lead->idle_word = word;
        lead->idle_debt_ns = (lead->idle_debt_ns > s->now_ns ? lead->idle_debt_ns : s->now_ns) + PACE_NS;
        if (!any_links_broken(s, last))
            lead->idle_epochs++;
    }
    if (lead_idle_too_often(lead))
        return false;
    if (s->now_ns + BURST * PACE_NS >= lead->idle_debt_ns)
        return true;
    lead_wake(s, lead->idle_debt_ns - BURST * PACE_NS);
    return false;
}

bool lead_idle_too_often(const struct shoal_lead *lead) { return lead->idle_epochs >= LEAD_IDLE_EPOCHS_MAX; }

void lead_idle_text(const struct shoal_lead *lead, char *text, size_t cap)
{
    char host[SHOAL_NODE_ID_TEXT_BYTES];

    SHOAL_ASSERT(cap > 0);
    text[0] = '\0';
    if (lead->idle_epochs < TOLD_FROM)
        return;
    shoal_hex_text(lead->idle_node.bytes, sizeof(lead->idle_node.bytes), host);
    (void)snprintf(text, cap,
                   "%u epochs in a row ended without a step though nothing failed, and the call ends at the %uth: worker %llu on host "
                   "%s was the first to leave. A process of the job disturbs its workers there, or writes over their control page",
                   lead->idle_epochs, LEAD_IDLE_EPOCHS_MAX, (unsigned long long)lead->idle_worker, host);
}
