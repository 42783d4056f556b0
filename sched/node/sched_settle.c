/* Foundings that find no majority (PROTOCOLS 2.3): settled by an election, for good.
 *
 *   guardian named by the ticket
 *     FOUND --> stored: a holder, whose raft votes and campaigns with the record in its log
 *           --> no (bundle not to be had, full): not counted, and not told otherwise by the issuer's appends; SETTLE_NS
 *               later it takes part with an empty log: a witness
 *   term 2 or later: a holder is elected --------> its record is committed, the founding is complete
 *                    a witness is elected -------> a majority has no record: REFUSED is committed, and the id is gone
 *
 * W1. Who has accepted a record never becomes a witness, and a witness never accepts one but from its leader's log:
 *     what was flushed on a majority is in the log of whoever is elected.
 * W2. A witness stores its configuration before it votes, so that a restart forgets neither its vote nor what it holds.
 * W3. REFUSED is proposed only when all of the leader's log is applied, and no record is in it. */
#include "shoal/sched_ticket.h"
#include "sched_found.h"
#include "sched_group.h"
#include "sched_node.h"
#include "sched_park.h"
#include "sched_state.h"
#include "sched_store.h"

#include "shoal/banned.h"

#define SETTLE_NS (30 * SHOAL_S)

static struct sched_refusal *find(struct shoal_sched *s, struct shoal_job_id id)
{
    for (size_t i = 0; i < SCHED_REFUSALS_MAX; i++) {
        if (s->refusals[i].used && shoal_job_id_equal(s->refusals[i].id, id))
            return &s->refusals[i];
    }
    return NULL;
}

bool sched_settle_waits(struct shoal_sched *s, struct shoal_job_id id) { return find(s, id) != NULL; }

void sched_settle_forget(struct shoal_sched *s, struct shoal_job_id id)
{
    struct sched_refusal *refusal = find(s, id);

    SHOAL_ASSERT(s->settle_ns > 0);
    if (refusal != NULL)
        refusal->used = false;
}

/* The table is full: the oldest is forgotten, and its founding is left to the others. */
static struct sched_refusal *take(struct shoal_sched *s)
{
    struct sched_refusal *oldest = &s->refusals[0];

    for (size_t i = 0; i < SCHED_REFUSALS_MAX; i++) {
        if (!s->refusals[i].used)
            return &s->refusals[i];
        if (s->refusals[i].settle_ns < oldest->settle_ns)
            oldest = &s->refusals[i];
    }
    SHOAL_ASSERT(oldest->used); /* a free place is taken before anything is forgotten */
    return oldest;
}

void sched_settle_later(struct shoal_sched *s, const struct shoal_sched_ticket *t)
{
    struct sched_refusal *refusal = find(s, t->job);

    SHOAL_ASSERT(t->guardian_count > 0 && t->guardian_count <= SHOAL_SCHED_SOURCES_MAX);
    if (refusal != NULL)
        return; /* counted from the first time that it was heard of */
    refusal = take(s);
    *refusal = (struct sched_refusal){ .used = true, .id = t->job, .settle_ns = s->now + SETTLE_NS };
    for (unsigned i = 0; i < t->guardian_count; i++)
        refusal->config.members[refusal->config.count++] = (struct shoal_raft_member){
            .id = { .node = t->guardians[i].node, .store = t->guardians[i].store },
            .bits = SHOAL_RAFT_VOTER,
        };
    if (refusal->settle_ns < s->settle_ns)
        s->settle_ns = refusal->settle_ns;
}

/* W2. No room here: the others settle it without this one. */
static void become_witness(struct shoal_sched *s, const struct sched_refusal *refusal)
{
    struct shoal_raft_options options;
    struct sched_group *g;

    SHOAL_ASSERT(refusal->config.count > 0); /* W2 */
    SHOAL_ASSERT(!refusal->used);
    if (sched_group_find(s, refusal->id) != NULL || sched_is_parked(s, refusal->id) ||
        !sched_may_found(s, refusal->id) || sched_group_admit(s, refusal->id, &g) != SHOAL_OK)
        return;
    sched_raft_options(s, &options);
    options.config = refusal->config;
    if (shoal_raft_create(&g->raft, &options) != SHOAL_OK || !sched_snapshot_witness(s, g)) {
        sched_group_remove(s, g);
        return;
    }
    sched_group_told(s, g);
    sched_group_dirty(s, g);
    sched_group_rearm(s, g);
    s->stats.witnesses++;
}

void sched_settle_due(struct shoal_sched *s)
{
    SHOAL_ASSERT(s->now >= s->settle_ns);
    s->settle_ns = SCHED_NEVER;
    for (size_t i = 0; i < SCHED_REFUSALS_MAX; i++) {
        struct sched_refusal *refusal = &s->refusals[i];

        if (!refusal->used)
            continue;
        if (s->now >= refusal->settle_ns && sched_has_room(s)) {
            refusal->used = false;
            become_witness(s, refusal);
        } else if (refusal->settle_ns < s->settle_ns) {
            s->settle_ns = refusal->settle_ns;
        }
    }
}

/* W3. */
void sched_settle_lead(struct shoal_sched *s, struct sched_group *g)
{
    const uint8_t refused = RECORD_REFUSED;
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_PROPOSE };
    enum shoal_err err;

    SHOAL_ASSERT(g->raft != NULL);
    if (g->mesh_is || !g->leads || g->founded || g->refused || g->stopped || g->applied_term != g->term ||
        g->refuse_term == g->term)
        return;
    event.u.propose.ctx = SCHED_CTX_KEEP;
    event.u.propose.entry = shoal_entry_create(SHOAL_ENTRY_USER, shoal_view_of(&refused, 1));
    if (event.u.propose.entry == NULL)
        return; /* the next event tries again */
    err = sched_group_step(s, g, &event);
    SHOAL_ASSERT(err == SHOAL_OK);
    if (event.u.propose.entry->index != 0)
        g->refuse_term = g->term;
    shoal_entry_unref(event.u.propose.entry);
}
