/* Host-pair support, as one group sees it (PROTOCOLS 5).
 *
 * S1. A leader whose quorum support has run out steps down before it does anything else.
 * S2. A new leader has one support duration to gain it: it was just voted for.
 * S3. Support that comes (back) makes the leader ask that peer where it is: it may have restarted.
 * S4. Support for a host stands against an election only while that host claims to lead this group in this term. Else a
 *     late message of a leader that has stepped down, on a host that is well, would keep the group silent for ever.
 *     What bridges the time until the claim arrives is the leader's own contact, for one support duration.
 * S5. There are more places for hosts than members: a member's support is never forgotten for a stranger's.
 * S6. Who is no member any more is forgotten at once: the owner tells nothing more of it, so its claim would stand for
 *     ever. A leader that takes itself out is followed by its messages until it is done. */
#include "shoal/raft.h"
#include "raft_state.h"

#include "shoal/banned.h"

static const struct shoal_raft_id nobody;

_Static_assert(RAFT_SUPPORTS_MAX > SHOAL_GROUP_NODES_MAX, "S5: more places for hosts than members");

static const struct raft_support *support_find(const struct shoal_raft *raft, struct shoal_node_id node)
{
    SHOAL_ASSERT(raft->config.count < RAFT_SUPPORTS_MAX); /* S5 */
    for (uint32_t i = 0; i < RAFT_SUPPORTS_MAX; i++) {
        if (raft->supports[i].used && shoal_node_id_equal(raft->supports[i].node, node))
            return &raft->supports[i];
    }
    return NULL;
}

/* The place of `node`, made if need be: a host that is no member gives way. */
static struct raft_support *support_at(struct shoal_raft *raft, struct shoal_node_id node)
{
    struct raft_support *free_one = NULL;

    SHOAL_ASSERT(!shoal_node_id_is_zero(node)); /* S5: a host has a name */
    for (uint32_t i = 0; i < RAFT_SUPPORTS_MAX; i++) {
        struct raft_support *support = &raft->supports[i];

        if (support->used && shoal_node_id_equal(support->node, node))
            return support;
        if (!support->used || shoal_raft_config_find(&raft->config, support->node) == NULL)
            free_one = free_one == NULL || !support->used ? support : free_one;
    }
    SHOAL_ASSERT(free_one != NULL); /* S5 */
    *free_one = (struct raft_support){ .node = node, .used = true };
    return free_one;
}

void raft_support_forget_strangers(struct shoal_raft *raft)
{
    SHOAL_ASSERT(raft->config.count > 0); /* C1 */
    for (uint32_t i = 0; i < RAFT_SUPPORTS_MAX; i++)
        if (raft->supports[i].used && shoal_raft_config_find(&raft->config, raft->supports[i].node) == NULL)
            raft->supports[i] = (struct raft_support){ .used = false };
}

/* S4. */
bool raft_supporting_leader(const struct shoal_raft *raft)
{
    const struct raft_support *support = support_find(raft, raft->leader.node);

    SHOAL_ASSERT(raft->role != SHOAL_RAFT_LEADER); /* V7 */
    return support != NULL && support->supporting && support->claimed == raft->term;
}

uint64_t raft_supported_until(const struct shoal_raft *raft, struct shoal_node_id node)
{
    const struct raft_support *support = support_find(raft, node);

    SHOAL_ASSERT(support == NULL || support->used); /* S5 */
    return support == NULL ? 0 : support->supported_until_ns;
}

static uint64_t member_supported_until(const struct shoal_raft *raft, uint32_t i)
{
    SHOAL_ASSERT(i < raft->config.count); /* C1 */
    if (shoal_raft_id_equal(raft->config.members[i].id, raft->self))
        return RAFT_NEVER;
    return raft_supported_until(raft, raft->config.members[i].id.node);
}

uint64_t raft_quorum_supported_until(const struct shoal_raft *raft)
{
    SHOAL_ASSERT(raft->config.count > 0); /* C1 */
    return raft_quorum_value(raft, member_supported_until);
}

void raft_check_support(struct shoal_raft *raft)
{
    if (raft->role != SHOAL_RAFT_LEADER || raft->now_ns < raft->grace_until_ns ||
        raft->now_ns < raft_quorum_supported_until(raft))
        return;
    raft_become_follower(raft, raft->term, nobody);
    SHOAL_ASSERT(raft->role == SHOAL_RAFT_FOLLOWER); /* S1 */
}

void raft_on_peer_support(struct shoal_raft *raft, struct shoal_node_id node, uint64_t until)
{
    struct raft_support *support = support_at(raft, node);
    bool had = raft->now_ns < support->supported_until_ns;
    const struct shoal_raft_member *member = shoal_raft_config_find(&raft->config, node);

    SHOAL_ASSERT(shoal_node_id_equal(support->node, node)); /* S5 */
    support->supported_until_ns = until;
    raft->backoff = 1;
    if (had || raft->now_ns >= until || raft->role != SHOAL_RAFT_LEADER || member == NULL ||
        shoal_raft_id_equal(member->id, raft->self))
        return;
    for (uint32_t i = 0; i < raft->config.count; i++) {
        struct raft_peer *peer = &raft->peers[i];

        if (!shoal_raft_id_equal(peer->member.id, member->id))
            continue;
        if (peer->flow != RAFT_TRANSFER) {
            peer->next = peer->match + 1;
            raft_peer_probe(peer, peer->next); /* S3 */
        }
        SHOAL_ASSERT(peer->inflight_count == 0); /* R7 */
        peer->waiting = false;
        peer->commit_known = 0;
        peer->seq_floor = raft->append_seq + 1;
        peer->commit_sent = 0;
        peer->retransmit_at_ns = RAFT_NEVER;
        peer->backoff = 1;
    }
}

void raft_on_supporting(struct shoal_raft *raft, struct shoal_node_id node, bool on)
{
    struct raft_support *support = support_at(raft, node);

    SHOAL_ASSERT(shoal_node_id_equal(support->node, node)); /* S5 */
    support->supporting = on;
    if (shoal_raft_id_is_zero(raft->leader) || !shoal_node_id_equal(raft->leader.node, node))
        return;
    raft->backoff = 1;
    raft->campaign_at_ns = RAFT_NEVER; /* drawn anew at the end of this step */
    if (!on)
        raft->contact_until_ns = 0;
}

void raft_on_claim(struct shoal_raft *raft, struct shoal_node_id node, uint64_t term)
{
    const struct shoal_raft_member *member = shoal_raft_config_find(&raft->config, node);
    struct shoal_raft_id leader = member == NULL ? nobody : member->id;

    if (shoal_node_id_equal(node, raft->self.node) || !raft_term_valid(term))
        return;
    support_at(raft, node)->claimed = term;
    if (member == NULL && !shoal_node_id_equal(node, raft->leader.node) && raft->config.count > 0 && raft_blocked(raft))
        return; /* V9 */
    if (term < raft->term || (term == raft->term && raft->role == SHOAL_RAFT_LEADER))
        return;
    if (term > raft->term || (shoal_raft_id_is_zero(raft->leader) && member != NULL))
        raft_become_follower(raft, term, leader);
    SHOAL_ASSERT(raft->term >= term);              /* V4: a claim spreads its term */
    SHOAL_ASSERT(raft->role != SHOAL_RAFT_LEADER); /* V7 */
    raft_contact(raft);
    raft->campaign_at_ns = RAFT_NEVER; /* drawn anew at the end of this step */
}

void raft_on_unclaimed(struct shoal_raft *raft, struct shoal_node_id node, uint64_t term)
{
    struct raft_support *support = support_at(raft, node);

    SHOAL_ASSERT(raft->actions != NULL); /* within a step: what follows is told */
    if (support->claimed == term)
        support->claimed = 0;
    if (term < raft->term || raft->role == SHOAL_RAFT_LEADER || !shoal_node_id_equal(raft->leader.node, node))
        return;
    raft_become_follower(raft, raft->term, nobody);
}

void shoal_raft_extend_support(struct shoal_raft *raft, struct shoal_node_id node, uint64_t until_ns)
{
    struct raft_support *support = support_at(raft, node);

    SHOAL_ASSERT(raft->actions == NULL); /* outside a step */
    if (until_ns > support->supported_until_ns)
        support->supported_until_ns = until_ns;
}

bool shoal_raft_leads_supported(const struct shoal_raft *raft, uint64_t now_ns)
{
    return raft->role == SHOAL_RAFT_LEADER && now_ns < raft_quorum_supported_until(raft);
}
