/* Replicas compare digests of their machines (PROTOCOLS 3): who differs stops, says so, and is rebuilt from the others.
 *
 *   applied 1024, 2048, ... --> DIGEST to all members --> a majority agrees on another value: stop, log, say REBUILD
 *   REBUILD --> leader: as a guardian that has lost its store: it leaves the configuration, forgets its replica,
 *               and becomes a member again, from the leader's snapshot
 *
 * D1. The majority decides who is wrong, the leader included. Of two guardians the one that does not lead gives way.
 * D2. A stopped replica takes part in nothing, so it cannot spread what it holds; its log and its vote stand until a
 *     configuration without it is committed, and it is told so (G5 of sched_group.c). */
#include "sched_group.h"
#include "sched_lead.h"
#include "sched_node.h"
#include "sched_state.h"

#include "shoal/banned.h"

static uint64_t state_digest(struct shoal_sched *s, const struct sched_group *g)
{
    struct shoal_buf bytes = { 0 };
    struct shoal_hash hash;
    uint64_t digest = 0;

    SHOAL_ASSERT(g->job == NULL || g->mesh == NULL); /* a group has one machine */
    if (g->job != NULL)
        return g->job->digest;
    if (g->mesh == NULL || shoal_mesh_encode(g->mesh, &bytes) != SHOAL_OK)
        return 0;
    hash = sched_hash(s, shoal_buf_view(&bytes));
    shoal_buf_deinit(&bytes);
    for (unsigned i = 0; i < 8; i++)
        digest = digest << 8 | hash.bytes[i];
    return digest;
}

void sched_group_stop(struct shoal_sched *s, struct sched_group *g, const char *why)
{
    struct shoal_sched_action *action;
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    SHOAL_ASSERT(why[0] != '\0');
    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    if (g->stopped)
        return;
    g->stopped = true;
    g->changed = 0;
    sched_lead_end(g);
    g->leads = false;
    g->keep_ns = SCHED_NEVER;
    g->rebuild_ns = s->now;
    sched_group_claims(s, g);
    sched_group_dirty(s, g);
    shoal_job_id_text(g->id, text);
    action = sched_act(s, SHOAL_SCHED_SAY);
    (void)snprintf(action->u.fatal.text, sizeof(action->u.fatal.text),
                   "the replica of %s on this node stops at entry %llu: %s. It is rebuilt from the others",
                   g->mesh_is ? "the mesh" : text, (unsigned long long)g->applied, why);
}

/* A guardian's value at our index; false: not said yet. */
static bool said(const struct sched_group *g, struct shoal_node_id node, uint64_t *digest)
{
    SHOAL_ASSERT(g->digest_index != 0);
    for (unsigned i = 0; i < SHOAL_SCHED_SOURCES_MAX; i++) {
        if (g->digests[i].index == g->digest_index && shoal_node_id_equal(g->digests[i].node, node)) {
            *digest = g->digests[i].digest;
            return true;
        }
    }
    return false;
}

/* D1. */
static void compare(struct shoal_sched *s, struct sched_group *g)
{
    struct shoal_node_id nodes[SHOAL_GROUP_NODES_MAX];
    size_t count = sched_group_guardians(g, nodes, SHOAL_GROUP_NODES_MAX);
    uint64_t theirs, other;

    SHOAL_ASSERT(g->raft != NULL);
    if (g->digest_index == 0 || g->stopped)
        return;
    for (size_t i = 0; i < count; i++) {
        size_t agree = 0;

        if (!said(g, nodes[i], &theirs) || theirs == g->digest)
            continue;
        for (size_t j = 0; j < count; j++)
            agree += said(g, nodes[j], &other) && other == theirs ? 1 : 0;
        if (2 * agree <= count && !(count == 2 && !g->leads && shoal_node_id_equal(g->leader, nodes[i])))
            continue;
        s->stats.digest_mismatches++;
        sched_group_stop(s, g,
                         "its state differs from that of the other guardians (a fault of memory, disk or program)");
        return;
    }
}

void sched_on_digest(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct sched_group *g = sched_group_find(s, frame->u.digest.group);
    struct sched_digest *place = NULL;

    SHOAL_ASSERT(frame->kind == FRAME_DIGEST);
    SHOAL_ASSERT(!sched_is_self(s, from)); /* on_frame() has looked */
    if (g == NULL || sched_lineage(frame->u.digest.index) != sched_group_lineage(g) ||
        shoal_raft_config_find(shoal_raft_config(g->raft), from) == NULL)
        return;
    for (unsigned i = 0; i < SHOAL_SCHED_SOURCES_MAX; i++) {
        if (shoal_node_id_equal(g->digests[i].node, from))
            place = &g->digests[i];
    }
    for (unsigned i = 0; place == NULL && i < SHOAL_SCHED_SOURCES_MAX; i++) { /* of who is no member any more */
        if (shoal_raft_config_find(shoal_raft_config(g->raft), g->digests[i].node) == NULL)
            place = &g->digests[i];
    }
    if (place == NULL)
        return;
    *place = (struct sched_digest){ .node = from,
                                    .index = (uint32_t)frame->u.digest.index,
                                    .digest = frame->u.digest.digest };
    compare(s, g);
}

void sched_take_digest(struct shoal_sched *s, struct sched_group *g)
{
    struct frame frame = { .kind = FRAME_DIGEST };

    SHOAL_ASSERT(!g->stopped); /* D2 */
    g->digest_index = g->applied;
    g->digest = state_digest(s, g);
    frame.u.digest.group = g->id;
    frame.u.digest.index = sched_group_lineage(g) << SCHED_LINEAGE_SHIFT | (uint32_t)g->digest_index;
    frame.u.digest.digest = g->digest;
    for (unsigned i = 0; i < g->told_count; i++)
        sched_send(s, g->told[i].node, &frame);
    compare(s, g);
}

/* ---- Rebuilding -------------------------------------------------------------------------------------------------- */

/* D2. Whoever leads hears it, now or later; who has dropped us says so. */
void sched_rebuild_ask(struct shoal_sched *s, struct sched_group *g)
{
    struct frame frame = { .kind = FRAME_REBUILD };

    SHOAL_ASSERT(g->stopped); /* D2 */
    frame.u.who.id = sched_group_config_version(g);
    frame.u.who.job = g->id;
    for (unsigned i = 0; i < g->told_count; i++)
        sched_send(s, g->told[i].node, &frame);
    g->rebuild_ns = s->now + SHOAL_S;
}

void sched_on_rebuild(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct sched_group *g = sched_group_find(s, frame->u.who.job);
    const struct shoal_raft_member *member;

    SHOAL_ASSERT(frame->kind == FRAME_REBUILD);
    SHOAL_ASSERT(!sched_is_self(s, from)); /* on_frame() has looked */
    if (g == NULL || g->stopped || !g->leads)
        return;
    member = shoal_raft_config_find(shoal_raft_config(g->raft), from);
    if (member != NULL && member->bits == SHOAL_RAFT_LEARNER && frame->u.who.id < sched_group_config_version(g)) {
        sched_say_superseded(s, g, from); /* taken in again already: as a learner it has acknowledged nothing */
        return;
    }
    for (unsigned i = 0; i < g->told_count; i++) {
        if (!shoal_node_id_equal(g->told[i].node, from))
            continue;
        if (!g->told[i].broken && frame->u.who.id <= sched_group_config_version(g)) {
            g->told[i].broken = true;
            g->hurry = true;
            g->keep_ns = s->now;
            sched_group_dirty(s, g);
        }
        return;
    }
    sched_say_removed(s, g, from);
}

bool sched_is_broken(const struct sched_group *g, struct shoal_node_id node)
{
    SHOAL_ASSERT(g->told_count <= SCHED_TOLD_MAX);
    for (unsigned i = 0; i < g->told_count; i++) {
        if (shoal_node_id_equal(g->told[i].node, node))
            return g->told[i].broken;
    }
    return false;
}
