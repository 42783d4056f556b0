/* Data links that break between hosts that are well: who is left out of the next epoch (E7 of lead_epoch.c; who is to blame:
 * link_breaks.h). */
#include "lead_state.h"

#include "shoal/banned.h"

#define BAR_NS (30 * SHOAL_S)
#define BAR_MAX_NS (600 * SHOAL_S)

bool lead_is_well(struct lead_step *s, const struct lworker *w)
{
    SHOAL_ASSERT(w == NULL || w->used);
    return w != NULL && lworker_lives(w) && !w->report.stuck && !w->report.failed && !w->report.frozen && !w->stale &&
           !host_lost(lead_find_host(s->lead, w->place.node));
}

/* For each member, the ranks that it could not reach though both are well. One that died or was lost broke its links that way. */
static void gather_broken(struct lead_step *s, const struct shoal_worker_epoch *last, struct shoal_ranks *broken)
{
    struct shoal_ranks well = { 0 };

    SHOAL_ASSERT(last->member_count <= SHOAL_RANKS_MAX);
    for (uint32_t i = 0; i < last->member_count; i++)
        if (lead_is_well(s, lead_worker(s->lead, last->members[i].worker_id)))
            shoal_ranks_add(&well, i);
    for (uint32_t i = 0; i < last->member_count; i++) {
        const struct lworker *w = lead_worker(s->lead, last->members[i].worker_id);

        broken[i] = (struct shoal_ranks){ 0 };
        if (!shoal_ranks_has(&well, i) || !lead_closed_in(w, last->epoch) ||
            shoal_epoch_cmp(w->broken_epoch, last->epoch) != 0)
            continue;
        broken[i] = w->broken;
        shoal_ranks_keep(&broken[i], &well);
    }
}

/* The ranks that may be left out, because others carry the state, too. */
static struct shoal_ranks may_cut_off(struct lead_step *s, const struct shoal_call *call,
                                      const struct shoal_worker_epoch *last)
{
    struct shoal_ranks may = { 0 };
    uint32_t carriers = 0, carrier = 0;

    SHOAL_ASSERT(last->member_count <= SHOAL_RANKS_MAX);
    for (uint32_t i = 0; i < last->member_count; i++) {
        const struct lworker *w = lead_worker(s->lead, last->members[i].worker_id);

        if (w == NULL || !lead_eligible(s, w, call, true))
            continue;
        shoal_ranks_add(&may, i);
        if (lead_closed_in(w, last->epoch) && lead_carries_state(w, &last->members[i], last))
            carrier = carriers++ == 0 ? i : carrier;
    }
    if (carriers == 1)
        shoal_ranks_drop(&may, carrier);
    return carriers == 0 ? (struct shoal_ranks){ 0 } : may;
}

static void cut_off(struct lead_step *s, const struct shoal_worker_epoch *last, uint32_t rank, uint32_t by)
{
    struct shoal_lead *lead = s->lead;
    struct lworker *w = lead_worker(lead, last->members[rank].worker_id);
    struct lhost *host = lead_host(lead, w->place.node);
    uint64_t bar_ns = BAR_NS;
    char name[33];

    SHOAL_ASSERT(rank < last->member_count);
    shoal_hex_text(w->place.node.bytes, sizeof(w->place.node.bytes), name);
    if (host != NULL) {
        for (uint32_t i = 0; i < host->cut_offs && bar_ns < BAR_MAX_NS; i++)
            bar_ns *= 2;
        bar_ns = bar_ns < BAR_MAX_NS ? bar_ns : BAR_MAX_NS;
        host->cut_offs++;
        host->barred_ns = s->now_ns + bar_ns;
    }
    w->cut_off = true;
    (void)snprintf(
        lead->cut_off, sizeof(lead->cut_off),
        "worker %llu (rank %u) on host %s was left out: its data links broke %u times within %u s, and %u of "
        "%u other members could not reach it; its host gets no worker of this job for %u s. Look at the "
        "network there: a firewall must let TCP through between the addresses that the hosts' agents have as --host "
        "(or the interfaces of --fabric-trusted)",
        (unsigned long long)w->place.worker_id, rank, name, LINK_BREAKS, (unsigned)(LINK_WINDOW_NS / SHOAL_S),
        by, last->member_count - 1, (unsigned)(bar_ns / SHOAL_S));
    lead->cut_off_ns = s->now_ns + bar_ns;
    lead->stats.cut_offs++;
}

/* Once for each epoch that has closed. */
void lead_judge_links(struct lead_step *s, const struct shoal_call *call, const struct shoal_worker_epoch *last)
{
    struct shoal_lead *lead = s->lead;
    struct shoal_ranks broken[SHOAL_RANKS_MAX], may, by = { 0 };
    uint32_t rank;

    SHOAL_ASSERT(s->lead->links != NULL); /* only elastic jobs have data links */
    SHOAL_ASSERT(last->member_count <= SHOAL_RANKS_MAX);
    if (lead->links_judged)
        return;
    lead->links_judged = true;
    gather_broken(s, last, broken);
    if (!lead_link_breaks_add(lead->links, last, broken, s->now_ns))
        return;
    may = may_cut_off(s, call, last);
    rank = lead_link_breaks_judge(lead->links, last, &may, s->now_ns, &by);
    if (rank != LINK_NOBODY)
        cut_off(s, last, rank, shoal_ranks_count(&by));
}

void lead_on_broken(struct lead_step *s, const struct lhost *host)
{
    struct lworker *w = lead_worker(s->lead, s->lead->scratch->in.u.broken.worker_id);

    SHOAL_ASSERT(s->lead->scratch->in.kind == SHOAL_HOST_BROKEN);
    if (w == NULL || !shoal_node_id_equal(w->place.node, host->node)) {
        s->lead->stats.stale++;
        return;
    }
    w->broken_epoch = s->lead->scratch->in.u.broken.epoch;
    w->broken = s->lead->scratch->in.u.broken.ranks;
}

/* Used when nobody else carries the state after all, since others died: better over bad links than not at all. */
bool lead_readmit(struct shoal_lead *lead)
{
    bool some = false;

    SHOAL_ASSERT(lead->revoking);
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        struct lworker *w = &lead->workers[i];

        some = some || (w->used && w->cut_off && w->ended_ns == 0);
        w->cut_off = w->cut_off && w->ended_ns != 0;
    }
    return some;
}

/* One that was cut off has alone completed the last step, and cannot give it to anybody. */
void lead_kill_cut_off(struct lead_step *s)
{
    SHOAL_ASSERT(s->lead->revoking);
    for (uint32_t i = 0; i < s->lead->worker_cap; i++) {
        struct lworker *w = &s->lead->workers[i];

        if (!lworker_lives(w) || !w->cut_off)
            continue;
        if (w->ended_ns == 0)
            w->ended_ns = s->now_ns;
        lead_order(s, w, SHOAL_ORDER_KILL, 0, "its data links broke too often", SHOAL_STOP_ERROR, 0);
    }
}
