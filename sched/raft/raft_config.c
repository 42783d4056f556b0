/* Membership of a group: joint consensus (Ongaro and Ousterhout 2014, section 6), learners first.
 *
 *     {a b c}  --learner d-->  {a b c} + d  --joint-->  {a b c}&{a b d}  --leave-->  {a b d}
 *
 * C1. A configuration is in force as soon as it is in the log, and is rolled back with its entry.
 * C2. One change is in flight: the next starts when the last configuration entry is committed.
 * C3. No change before an entry of the leader's own term is committed (Ongaro, raft-dev, 2015).
 * C4. The joint phase is left only by an entry written after the joint entry was committed.
 * C5. Who votes under the configuration before one that is not committed yet may still campaign: it may be the only one
 *     whose log is new enough. Its own vote counts only where the newest configuration says so (Ongaro's thesis,
 *     4.2.2).
 * C6. A vote never asks whether the voter, or the candidate, is in the voter's own configuration.
 * C7. A configuration has a voter, an old one too while it is joint, names no node twice, and fits its bounds. */
#include "shoal/raft.h"
#include "raft_state.h"
#include "shoal/wire.h"

#include "shoal/banned.h"

size_t shoal_raft_config_encode(const struct shoal_raft_config *config, uint8_t *bytes)
{
    struct shoal_writer w = shoal_writer_init(bytes, SHOAL_RAFT_CONFIG_BYTES_MAX);

    shoal_put_bool(&w, config->joint);
    shoal_put_u8(&w, config->count);
    for (uint32_t i = 0; i < config->count; i++) {
        shoal_put_node_id(&w, config->members[i].id.node);
        shoal_put_store_id(&w, config->members[i].id.store);
        shoal_put_u8(&w, config->members[i].bits);
    }
    SHOAL_ASSERT(!w.failed);                              /* SHOAL_RAFT_CONFIG_BYTES_MAX holds any */
    SHOAL_ASSERT(config->count <= SHOAL_GROUP_NODES_MAX); /* C7 */
    return w.len;
}

enum shoal_err shoal_raft_config_decode(struct shoal_view bytes, struct shoal_raft_config *config)
{
    struct shoal_reader r = shoal_reader_init(bytes);
    struct shoal_raft_config decoded = { 0 };

    decoded.joint = shoal_get_bool(&r);
    decoded.count = shoal_get_u8(&r);
    if (decoded.count > SHOAL_GROUP_NODES_MAX)
        return SHOAL_ERR_MALFORMED;
    for (uint32_t i = 0; i < decoded.count; i++) {
        decoded.members[i].id.node = shoal_get_node_id(&r);
        decoded.members[i].id.store = shoal_get_store_id(&r);
        decoded.members[i].bits = shoal_get_u8(&r);
    }
    if (!shoal_reader_done(&r) || !shoal_raft_config_valid(&decoded))
        return SHOAL_ERR_MALFORMED;
    *config = decoded;
    return SHOAL_OK;
}

const struct shoal_raft_member *shoal_raft_config_find(const struct shoal_raft_config *config,
                                                       struct shoal_node_id node)
{
    SHOAL_ASSERT(config->count <= SHOAL_GROUP_NODES_MAX); /* C7 */
    for (uint32_t i = 0; i < config->count; i++) {
        if (shoal_node_id_equal(config->members[i].id.node, node))
            return &config->members[i];
    }
    return NULL;
}

static bool bits_valid(uint8_t bits, bool joint)
{
    if (bits == 0 || (bits & ~(SHOAL_RAFT_VOTER | SHOAL_RAFT_LEARNER | SHOAL_RAFT_VOTER_OLD)) != 0)
        return false;
    if ((bits & SHOAL_RAFT_VOTER) && (bits & SHOAL_RAFT_LEARNER))
        return false;
    return joint || !(bits & SHOAL_RAFT_VOTER_OLD);
}

bool shoal_raft_config_valid(const struct shoal_raft_config *config)
{
    uint32_t voters = 0;
    uint32_t voters_old = 0;

    if (config->count == 0 || config->count > SHOAL_GROUP_NODES_MAX)
        return false;
    for (uint32_t i = 0; i < config->count; i++) {
        const struct shoal_raft_member *member = &config->members[i];

        if (!bits_valid(member->bits, config->joint) || shoal_node_id_is_zero(member->id.node))
            return false;
        /* Also by node alone: the wiped store of a node leaves before its new one comes. */
        if (shoal_raft_config_find(config, member->id.node) != member)
            return false;
        voters += (member->bits & SHOAL_RAFT_VOTER) != 0;
        voters_old += (member->bits & SHOAL_RAFT_VOTER_OLD) != 0;
    }
    return voters > 0 && (!config->joint || voters_old > 0);
}

static bool config_votes(const struct shoal_raft_config *config, struct shoal_node_id node)
{
    const struct shoal_raft_member *member = shoal_raft_config_find(config, node);

    return member != NULL && (member->bits & (SHOAL_RAFT_VOTER | SHOAL_RAFT_VOTER_OLD)) != 0;
}

static const struct shoal_raft_member *own_member(const struct shoal_raft *raft)
{
    const struct shoal_raft_member *member = shoal_raft_config_find(&raft->config, raft->self.node);

    return member != NULL && shoal_raft_id_equal(member->id, raft->self) ? member : NULL;
}

bool raft_is_voter(const struct shoal_raft *raft)
{
    const struct shoal_raft_member *member = own_member(raft);

    return member != NULL && (member->bits & (SHOAL_RAFT_VOTER | SHOAL_RAFT_VOTER_OLD)) != 0;
}

bool raft_may_campaign(const struct shoal_raft *raft)
{
    struct shoal_raft_config before;
    uint64_t at;

    if (raft->removed_told || raft_below_floor(raft))
        return false; /* until a leader appends to it again, or enough */
    if (raft_is_voter(raft))
        return true;
    if (raft->config_index <= raft->commit)
        return false;
    raft_config_as_of(raft, raft->config_index - 1, &before, &at); /* C5 */
    SHOAL_ASSERT(at < raft->config_index);                         /* C1 */
    return config_votes(&before, raft->self.node);
}

struct raft_peer *raft_peer_find(struct shoal_raft *raft, struct shoal_raft_id id)
{
    SHOAL_ASSERT(raft->config.count <= SHOAL_GROUP_NODES_MAX); /* C7 */
    for (uint32_t i = 0; i < raft->config.count; i++) {
        if (shoal_raft_id_equal(raft->peers[i].member.id, id))
            return &raft->peers[i];
    }
    return NULL;
}

void raft_config_set(struct shoal_raft *raft, const struct shoal_raft_config *config, uint64_t index)
{
    struct raft_peer before[SHOAL_GROUP_NODES_MAX];
    uint32_t before_count = raft->config.count;
    uint32_t known;

    SHOAL_ASSERT(shoal_raft_config_valid(config));    /* C7 */
    SHOAL_ASSERT(index <= raft_log_last(&raft->log)); /* C1 */
    memcpy(before, raft->peers, sizeof(before));
    raft->config = *config;
    raft->config_index = index;
    for (uint32_t i = 0; i < config->count; i++) {
        struct raft_peer *peer = &raft->peers[i];

        for (known = 0; known < before_count; known++) {
            if (shoal_raft_id_equal(before[known].member.id, config->members[i].id))
                break;
        }
        if (known < before_count) {
            *peer = before[known];
            peer->member = config->members[i];
            continue;
        }
        *peer = (struct raft_peer){ .member = config->members[i] };
        raft_peer_reset(raft, peer);
    }
    raft_support_forget_strangers(raft); /* S6 */
    if (raft->actions != NULL)
        (void)raft_act(raft, SHOAL_RAFT_ACTION_CONFIG);
}

void raft_config_as_of(const struct shoal_raft *raft, uint64_t index, struct shoal_raft_config *config, uint64_t *at)
{
    SHOAL_ASSERT(index <= raft_log_last(&raft->log)); /* C1 */
    SHOAL_ASSERT(index >= raft->log.base.index);      /* what is forgotten is in the base */
    for (uint64_t i = index; i > raft->log.base.index; i--) {
        const struct shoal_entry *entry = raft_log_find(&raft->log, i);

        if (entry->kind == SHOAL_ENTRY_CONFIG) {
            enum shoal_err err = shoal_raft_config_decode(shoal_entry_view(entry), config);

            SHOAL_ASSERT(err == SHOAL_OK); /* checked before it entered the log */
            *at = i;
            return;
        }
    }
    *config = raft->log.base.config;
    *at = raft->log.base.index;
}

void raft_config_roll_back(struct shoal_raft *raft)
{
    struct shoal_raft_config config;
    uint64_t at;

    if (raft->config_index <= raft_log_last(&raft->log))
        return;
    SHOAL_ASSERT(raft->role == SHOAL_RAFT_FOLLOWER); /* only a follower's log is truncated */
    raft_config_as_of(raft, raft_log_last(&raft->log), &config, &at);
    raft_config_set(raft, &config, at);
}

static bool quorum_of(const struct shoal_raft *raft, uint8_t bit, bool (*has)(const struct shoal_raft *, uint32_t))
{
    uint32_t voters = 0;
    uint32_t yes = 0;

    for (uint32_t i = 0; i < raft->config.count; i++) {
        if (!(raft->config.members[i].bits & bit))
            continue;
        voters++;
        yes += has(raft, i);
    }
    SHOAL_ASSERT(voters > 0); /* C7: a majority of nobody would be everybody's */
    return yes >= voters / 2 + 1;
}

bool raft_quorum(const struct shoal_raft *raft, bool (*has)(const struct shoal_raft *, uint32_t))
{
    return quorum_of(raft, SHOAL_RAFT_VOTER, has) &&
           (!raft->config.joint || quorum_of(raft, SHOAL_RAFT_VOTER_OLD, has));
}

static uint64_t value_of(const struct shoal_raft *raft, uint8_t bit,
                         uint64_t (*value)(const struct shoal_raft *, uint32_t))
{
    uint64_t values[SHOAL_GROUP_NODES_MAX] = { 0 };
    uint32_t count = 0;

    for (uint32_t i = 0; i < raft->config.count; i++) {
        uint64_t one;
        uint32_t at;

        if (!(raft->config.members[i].bits & bit))
            continue;
        one = value(raft, i);
        for (at = count++; at > 0 && values[at - 1] < one; at--)
            values[at] = values[at - 1];
        values[at] = one;
    }
    SHOAL_ASSERT(count > 0);  /* C7 */
    return values[count / 2]; /* sorted downwards: a majority has at least this */
}

uint64_t raft_quorum_value(const struct shoal_raft *raft, uint64_t (*value)(const struct shoal_raft *, uint32_t))
{
    uint64_t ours = value_of(raft, SHOAL_RAFT_VOTER, value);
    uint64_t old;

    if (!raft->config.joint)
        return ours;
    old = value_of(raft, SHOAL_RAFT_VOTER_OLD, value);
    SHOAL_ASSERT(shoal_raft_config_valid(&raft->config)); /* C7: a joint configuration has both majorities */
    return old < ours ? old : ours;
}

/* A CONFIG entry of the leader's own; false: no spare entry or no room, try again in a later step. */
static bool config_append(struct shoal_raft *raft, const struct shoal_raft_config *config)
{
    struct shoal_entry *entry;

    SHOAL_ASSERT(raft->config_index <= raft->commit); /* C2 */
    SHOAL_ASSERT(raft->commit >= raft->term_start);   /* C3 */
    SHOAL_ASSERT(shoal_raft_config_valid(config));    /* C7 */
    if (raft_log_full(&raft->log))
        return false;
    entry = raft_spare(raft, SHOAL_ENTRY_CONFIG);
    if (entry == NULL)
        return false;
    entry->len = (uint32_t)shoal_raft_config_encode(config, entry->bytes);
    raft_append_own(raft, entry);
    return true;
}

/* A voter-to-be is a learner that has nearly caught up, so that the change cannot stop the group. */
static enum shoal_err check_newcomer(struct shoal_raft *raft, const struct shoal_raft_member *member)
{
    const struct raft_peer *peer = raft_peer_find(raft, member->id);

    if (peer == NULL || shoal_raft_id_equal(member->id, raft->self))
        return SHOAL_ERR_INVALID;
    SHOAL_ASSERT(peer->match <= raft_log_last(&raft->log)); /* R5 */
    if (peer->match + RAFT_CATCHUP_ENTRIES < raft_log_last(&raft->log))
        return SHOAL_ERR_UNREACHABLE;
    return SHOAL_OK;
}

/* The configuration between the one in force and `target`, or `target` itself when no voter changes. */
static enum shoal_err plan_change(struct shoal_raft *raft, const struct shoal_raft_config *target,
                                  struct shoal_raft_config *plan)
{
    bool joint = false;

    *plan = *target;
    for (uint32_t i = 0; i < target->count; i++) {
        const struct shoal_raft_member *member = &target->members[i];
        const struct shoal_raft_member *now = shoal_raft_config_find(&raft->config, member->id.node);
        bool votes = now != NULL && (now->bits & SHOAL_RAFT_VOTER);
        enum shoal_err err = SHOAL_OK;

        if (now != NULL && !shoal_raft_id_equal(now->id, member->id))
            return SHOAL_ERR_INVALID; /* the node's old store leaves first */
        if ((member->bits & SHOAL_RAFT_VOTER) && !votes)
            err = check_newcomer(raft, member);
        if (err != SHOAL_OK)
            return err;
        joint = joint || votes != ((member->bits & SHOAL_RAFT_VOTER) != 0);
        if (votes)
            plan->members[i].bits |= SHOAL_RAFT_VOTER_OLD;
    }
    for (uint32_t i = 0; i < raft->config.count; i++) {
        const struct shoal_raft_member *now = &raft->config.members[i];

        if (!(now->bits & SHOAL_RAFT_VOTER) || shoal_raft_config_find(target, now->id.node) != NULL)
            continue;
        if (plan->count == SHOAL_GROUP_NODES_MAX)
            return SHOAL_ERR_TOO_BIG;
        plan->members[plan->count++] = (struct shoal_raft_member){ .id = now->id, .bits = SHOAL_RAFT_VOTER_OLD };
        joint = true;
    }
    plan->joint = joint;
    if (!joint)
        *plan = *target;
    SHOAL_ASSERT(plan->count <= SHOAL_GROUP_NODES_MAX); /* C7 */
    return SHOAL_OK;
}

void raft_on_change(struct shoal_raft *raft, uint64_t ctx, const struct shoal_raft_config *target)
{
    struct shoal_raft_config plan;
    enum shoal_err err;

    if (raft->role != SHOAL_RAFT_LEADER) {
        raft_reject(raft, ctx, SHOAL_ERR_NOT_LEADER);
        return;
    }
    if (target->joint || !shoal_raft_config_valid(target)) {
        raft_reject(raft, ctx, SHOAL_ERR_INVALID);
        return;
    }
    /* C2, C3, and a leader about to hand over starts nothing new. */
    if (raft->config.joint || raft->config_index > raft->commit || raft->commit < raft->term_start ||
        raft->transfer_until_ns != 0) {
        raft_reject(raft, ctx, SHOAL_ERR_FULL);
        return;
    }
    SHOAL_ASSERT(!raft->config.joint && raft->config_index <= raft->commit); /* C2 */
    err = plan_change(raft, target, &plan);
    if (err == SHOAL_OK && !config_append(raft, &plan))
        err = SHOAL_ERR_FULL;
    if (err != SHOAL_OK)
        raft_reject(raft, ctx, err);
}

/* Most caught up among those that vote on: takes over from a leader that leaves. */
static const struct raft_peer *pick_heir(const struct shoal_raft *raft)
{
    const struct raft_peer *heir = NULL;

    for (uint32_t i = 0; i < raft->config.count; i++) {
        const struct raft_peer *peer = &raft->peers[i];

        if (!(peer->member.bits & SHOAL_RAFT_VOTER) || shoal_raft_id_equal(peer->member.id, raft->self))
            continue;
        if (heir == NULL || peer->match > heir->match)
            heir = peer;
    }
    SHOAL_ASSERT(heir == NULL || !shoal_raft_id_equal(heir->member.id, raft->self)); /* an heir is another */
    return heir;
}

static void leave_joint(struct shoal_raft *raft)
{
    struct shoal_raft_config next = { 0 };

    for (uint32_t i = 0; i < raft->config.count; i++) {
        struct shoal_raft_member member = raft->config.members[i];

        member.bits &= (uint8_t)~SHOAL_RAFT_VOTER_OLD;
        if (member.bits != 0)
            next.members[next.count++] = member;
    }
    SHOAL_ASSERT(next.count > 0);                                           /* C7 */
    SHOAL_ASSERT(raft->config.joint && raft->config_index <= raft->commit); /* C4 */
    if (!config_append(raft, &next))
        raft->actions->wants_reserve = true;
}

void raft_config_advance(struct shoal_raft *raft)
{
    const struct raft_peer *heir;

    if (raft->role != SHOAL_RAFT_LEADER || raft->config_index > raft->commit)
        return;
    if (raft->config.joint) {
        /* C4, and by a leader that knows its term to have begun (C3). */
        if (raft->commit >= raft->term_start)
            leave_joint(raft);
        return;
    }
    if (raft_is_voter(raft))
        return;
    SHOAL_ASSERT(!raft->config.joint); /* C4: it leads on until the new configuration is committed */
    heir = pick_heir(raft);
    if (heir != NULL)
        (void)raft_send(raft, heir->member.id, SHOAL_RAFT_TIMEOUT_NOW);
    raft_become_follower(raft, raft->term, (struct shoal_raft_id){ .node = { { 0 } } });
}

enum shoal_err shoal_raft_config_at(const struct shoal_raft *raft, uint64_t index, struct shoal_raft_config *config)
{
    uint64_t at;

    if (index < raft->log.base.index || index > raft->commit)
        return SHOAL_ERR_INVALID;
    raft_config_as_of(raft, index, config, &at);
    SHOAL_ASSERT(at <= index); /* C1 */
    return SHOAL_OK;
}
