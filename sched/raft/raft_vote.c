/* Elections (Ongaro and Ousterhout 2014, section 5.2; pre-vote and transfer: Ongaro's thesis, sections 9.6 and 3.10).
 *
 *     follower --support for the leader ended, jitter--> precandidate --majority would vote--> candidate
 *         ^                                                  |                                    |
 *         +---- a leader, or a higher term ------------------+------------------------------------+--majority--> leader
 *
 * V1. At most one vote per term, and it is durable, with the term, before anyone hears of it.
 * V2. A candidate asks for votes, and counts its own, only when its own vote is durable: else a crash could bring it
 *     back with a shorter log than the one that was voted for.
 * V3. While a node supports the leader's host, and for one support duration after its own start, it neither campaigns
 *     nor grants (PROTOCOLS 5). A leader-made election (transfer) stands above the support, not above the start.
 * V4. Pre-votes change nothing, but spread terms: a reply carries the replier's term, and the asker adopts a higher one
 *     (else a long log in a low term and a short log in a high term block each other for ever).
 * V5. A vote goes only to a log that is at least as new: by last term, then by last index.
 * V6. As new, too, as the log that this node forgot when it was removed from the group: as long as its own is not, it
 *     does not campaign either.
 * V7. A role moves only as `role_moves` says; a term has one leader; whoever campaigns or leads voted for itself.
 * V8. Elections end where disks are slow: a candidate that failed waits longer for the next votes, up to 16 jitters, and a
 *     node whose vote is on its way to the disk starts no election against it.
 * V9. While a node may not grant by V3, only members and the leader that it follows move its term, its log or its copy: who is
 *     no member can only have come into office without it once that leader is given up, and is heard then. */
#include "shoal/raft.h"
#include "raft_state.h"

#include "shoal/banned.h"

static const struct shoal_raft_id nobody;

static const unsigned role_moves[] = {
    /* bit N set: may become role N, in this term or a later one */
    [SHOAL_RAFT_FOLLOWER] = BIT(SHOAL_RAFT_FOLLOWER) | BIT(SHOAL_RAFT_PRECANDIDATE) | BIT(SHOAL_RAFT_CANDIDATE) |
                            BIT(SHOAL_RAFT_LEADER), /* by a founding */
    [SHOAL_RAFT_PRECANDIDATE] = BIT(SHOAL_RAFT_FOLLOWER) | BIT(SHOAL_RAFT_PRECANDIDATE) | BIT(SHOAL_RAFT_CANDIDATE),
    [SHOAL_RAFT_CANDIDATE] =
        BIT(SHOAL_RAFT_FOLLOWER) | BIT(SHOAL_RAFT_PRECANDIDATE) | BIT(SHOAL_RAFT_CANDIDATE) | BIT(SHOAL_RAFT_LEADER),
    [SHOAL_RAFT_LEADER] = BIT(SHOAL_RAFT_FOLLOWER),
};

/* The one place where a role moves. */
static void role_move(struct shoal_raft *raft, enum shoal_raft_role role, struct shoal_raft_id leader)
{
    bool self = shoal_raft_id_equal(leader, raft->self);

    SHOAL_ASSERT((role_moves[raft->role] & BIT(role)) != 0); /* V7 */
    SHOAL_ASSERT(self == (role == SHOAL_RAFT_LEADER));       /* V7 */
    SHOAL_ASSERT(role == SHOAL_RAFT_FOLLOWER || role == SHOAL_RAFT_PRECANDIDATE ||
                 shoal_raft_id_equal(raft->vote, raft->self)); /* V1 */
    raft->role = role;
    raft->leader = leader;
}

/* The one place where a term rises: the vote of the term before is void. */
static void term_raise(struct shoal_raft *raft, uint64_t term)
{
    SHOAL_ASSERT(term > raft->term);     /* D6 */
    SHOAL_ASSERT(raft_term_valid(term)); /* D6: what peers say is bounded before it comes here */
    raft->term = term;
    raft->vote = nobody;
    raft->hard_dirty = true;
    raft->vote_owed = false;
}

void raft_vote_cast(struct shoal_raft *raft, struct shoal_raft_id candidate)
{
    SHOAL_ASSERT(shoal_raft_id_is_zero(raft->vote) || shoal_raft_id_equal(raft->vote, candidate)); /* V1 */
    SHOAL_ASSERT(!shoal_raft_id_is_zero(candidate));                                               /* V1 */
    if (shoal_raft_id_is_zero(raft->vote)) {
        raft->vote = candidate;
        raft->hard_dirty = true;
    }
}

static uint64_t jitter(struct shoal_raft *raft, uint64_t range)
{
    return range == 0 ? 0 : shoal_rand_below(&raft->chance, range);
}

bool raft_lone_voter(const struct shoal_raft *raft)
{
    uint32_t voters = 0;

    for (uint32_t i = 0; i < raft->config.count; i++)
        voters += (raft->config.members[i].bits & (SHOAL_RAFT_VOTER | SHOAL_RAFT_VOTER_OLD)) != 0;
    SHOAL_ASSERT(voters > 0); /* C1: a configuration has a voter */
    return voters == 1 && raft_is_voter(raft);
}

static bool not_older(uint64_t term, uint64_t index, uint64_t than_term, uint64_t than_index)
{
    return term > than_term || (term == than_term && index >= than_index);
}

static bool log_is_new_enough(const struct shoal_raft *raft, uint64_t last_index, uint64_t last_term)
{
    uint64_t own_last = raft_log_last(&raft->log);

    SHOAL_ASSERT(own_last >= raft->commit); /* D3: a vote never goes to a log that lacks what is committed here */
    return not_older(last_term, last_index, raft_log_term(&raft->log, own_last), own_last) && /* V5 */
           not_older(last_term, last_index, raft->floor.last_term, raft->floor.last_index);   /* V6 */
}

bool raft_below_floor(const struct shoal_raft *raft)
{
    uint64_t last = raft_log_last(&raft->log);

    return !not_older(raft_log_term(&raft->log, last), last, raft->floor.last_term, raft->floor.last_index);
}

bool raft_blocked(const struct shoal_raft *raft)
{
    if (raft->now_ns < raft->quiet_until_ns && !raft_lone_voter(raft))
        return true;
    if (raft->role == SHOAL_RAFT_LEADER)
        return raft->now_ns < raft_quorum_supported_until(raft) || raft->now_ns < raft->grace_until_ns;
    if (shoal_raft_id_is_zero(raft->leader))
        return false;
    return raft_supporting_leader(raft) || raft->now_ns < raft->contact_until_ns;
}

bool raft_is_stranger(const struct shoal_raft *raft, struct shoal_raft_id id)
{
    const struct shoal_raft_member *member = shoal_raft_config_find(&raft->config, id.node);

    if (raft->config.count == 0 || shoal_raft_id_equal(id, raft->leader))
        return false; /* a joiner knows nobody yet */
    return (member == NULL || !shoal_raft_id_equal(member->id, id)) && raft_blocked(raft);
}

bool shoal_raft_is_stranger(struct shoal_raft *raft, struct shoal_raft_id id, uint64_t now_ns)
{
    SHOAL_ASSERT(raft->actions == NULL); /* outside a step */
    if (now_ns > raft->now_ns)
        raft->now_ns = now_ns;
    return raft_is_stranger(raft, id);
}

void raft_contact(struct shoal_raft *raft)
{
    SHOAL_ASSERT(raft->support_ns > 0); /* S4: the leader's contact bridges one support duration */
    raft->contact_until_ns = raft_later(raft, raft->support_ns);
}

/* At the end of every step: when may this node campaign, given all it knows now? */
void raft_rearm(struct shoal_raft *raft)
{
    uint64_t base = raft->now_ns;

    if (raft->role == SHOAL_RAFT_LEADER || !raft_may_campaign(raft)) {
        raft->campaign_at_ns = RAFT_NEVER;
        return;
    }
    if (!shoal_raft_id_is_zero(raft->leader)) {
        if (raft_supporting_leader(raft)) {
            raft->campaign_at_ns = RAFT_NEVER;
            return;
        }
        if (base < raft->contact_until_ns)
            base = raft->contact_until_ns;
    }
    if (base < raft->quiet_until_ns && !raft_lone_voter(raft))
        base = raft->quiet_until_ns;
    if (raft->campaign_at_ns == RAFT_NEVER || raft->campaign_at_ns < base)
        raft->campaign_at_ns = base + (raft_lone_voter(raft) ? 0 : jitter(raft, raft->jitter_ns));
    SHOAL_ASSERT(raft->campaign_at_ns >= raft->now_ns); /* D6: no deadline lies in the past */
}

/* Not before now + ns (and some jitter); `at` given up for a fresh draw. */
static void campaign_after(struct shoal_raft *raft, uint64_t ns)
{
    SHOAL_ASSERT(raft->role != SHOAL_RAFT_LEADER); /* V7 */
    raft->campaign_at_ns = raft_later(raft, ns) + jitter(raft, raft->jitter_ns);
}

void raft_become_follower(struct shoal_raft *raft, uint64_t term, struct shoal_raft_id leader)
{
    bool led = raft->role == SHOAL_RAFT_LEADER;
    bool changed =
        raft->role != SHOAL_RAFT_FOLLOWER || term != raft->term || !shoal_raft_id_equal(leader, raft->leader);

    SHOAL_ASSERT(term >= raft->term); /* D6 */
    if (term > raft->term)
        term_raise(raft, term);
    if (led) {
        raft_reads_fail(raft);
        raft->transfer_until_ns = 0;
        raft->commit_push_at_ns = RAFT_NEVER;
    }
    if (changed) {
        /* An answer to another leader says nothing to this one. */
        raft->matched = raft->commit;
        raft->ack_owed = false;
        raft->acked = 0;
        raft->append_seq_seen = 0;
    }
    if (!shoal_raft_id_is_zero(leader))
        raft->backoff = 1;
    role_move(raft, SHOAL_RAFT_FOLLOWER, leader);
    raft->campaign_at_ns = changed ? RAFT_NEVER : raft->campaign_at_ns;
    if (changed)
        raft_role_changed(raft);
}

/* Leading begins: every peer is to be probed, and an own entry of this term goes first (only such commits count). */
static void become_leader(struct shoal_raft *raft)
{
    struct shoal_entry *noop = raft_spare(raft, SHOAL_ENTRY_NOOP);

    SHOAL_ASSERT(noop != NULL);                       /* kept back when the campaign began */
    SHOAL_ASSERT(raft->role == SHOAL_RAFT_CANDIDATE); /* V7 */
    SHOAL_ASSERT(raft_hard_durable(raft));            /* V2 */
    raft_lead(raft);
    raft->term_start = raft_log_last(&raft->log) + 1;
    raft_append_own(raft, noop);
    raft_role_changed(raft);
}

void raft_lead(struct shoal_raft *raft)
{
    role_move(raft, SHOAL_RAFT_LEADER, raft->self);
    SHOAL_ASSERT(raft->reads_count == 0); /* Q2: those of a former term were refused when it ended */
    raft->backoff = 1;
    raft->campaign_at_ns = RAFT_NEVER;
    raft->grace_until_ns = raft_later(raft, raft->support_ns);
    raft->commit_push_at_ns = RAFT_NEVER;
    raft->transfer_until_ns = 0;
    raft->read_round = false;
    raft->reads_count = 0;
    raft->uncommitted_bytes = raft_log_span_bytes(&raft->log, raft->commit + 1, raft_log_last(&raft->log));
    raft->incoming.index = 0;
    raft->ack_owed = false;
    for (uint32_t i = 0; i < raft->config.count; i++)
        raft_peer_reset(raft, &raft->peers[i]);
}

static bool has_granted(const struct shoal_raft *raft, uint32_t i) { return raft->peers[i].granted; }

static bool has_refused(const struct shoal_raft *raft, uint32_t i)
{
    return raft->peers[i].answered && !raft->peers[i].granted;
}

static void clear_votes(struct shoal_raft *raft)
{
    for (uint32_t i = 0; i < raft->config.count; i++) {
        raft->peers[i].answered = false;
        raft->peers[i].granted = false;
    }
}

static void count_vote(struct shoal_raft *raft, struct shoal_raft_id from, bool granted)
{
    struct raft_peer *peer = raft_peer_find(raft, from);

    if (peer == NULL)
        return;
    SHOAL_ASSERT(raft->role != SHOAL_RAFT_LEADER); /* V7: votes are for those who campaign */
    peer->answered = true;
    peer->granted = granted;
}

static void ask_everyone(struct shoal_raft *raft, enum shoal_raft_message_kind kind, uint64_t for_term)
{
    uint64_t last = raft_log_last(&raft->log);

    SHOAL_ASSERT(kind != SHOAL_RAFT_VOTE || (for_term == raft->term && raft_hard_durable(raft))); /* V2 */
    SHOAL_ASSERT(kind != SHOAL_RAFT_PREVOTE || for_term == raft->term + 1);                       /* V4 */
    for (uint32_t i = 0; i < raft->config.count; i++) {
        const struct shoal_raft_member *member = &raft->config.members[i];
        struct shoal_raft_message *message;

        if (!(member->bits & (SHOAL_RAFT_VOTER | SHOAL_RAFT_VOTER_OLD)) || shoal_raft_id_equal(member->id, raft->self))
            continue;
        message = raft_send(raft, member->id, kind);
        message->u.vote.for_term = for_term;
        message->u.vote.last_index = last;
        message->u.vote.last_term = raft_log_term(&raft->log, last);
        message->u.vote.transfer = kind == SHOAL_RAFT_VOTE && raft->campaign_transfer;
    }
}

static void become_candidate(struct shoal_raft *raft, bool transfer)
{
    term_raise(raft, raft->term + 1);
    raft_vote_cast(raft, raft->self);
    role_move(raft, SHOAL_RAFT_CANDIDATE, nobody);
    raft->ack_owed = false;
    raft->votes_asked = false;
    raft->campaign_transfer = transfer;
    raft->counters.elections++;
    clear_votes(raft);
    SHOAL_ASSERT(shoal_raft_id_is_zero(raft->leader)); /* V7: a candidate follows nobody */
    campaign_after(raft, 2 * raft->jitter_ns);
    raft_role_changed(raft);
}

/* How long a candidate waits for votes. A voter's disk may be slow: a term that ends before the vote is durable was in
 * vain, and the next one begins with the same write. So it waits longer each time (V8), as a precandidate does. */
static uint64_t patience_ns(const struct shoal_raft *raft)
{
    SHOAL_ASSERT(raft->role == SHOAL_RAFT_CANDIDATE); /* V7 */
    return raft->jitter_ns * (raft->backoff > 2 ? raft->backoff : 2);
}

/* V2: called at the end of every step; asks once the own vote is durable. */
void raft_ask_votes(struct shoal_raft *raft)
{
    if (raft->role != SHOAL_RAFT_CANDIDATE || raft->votes_asked || !raft_hard_durable(raft))
        return;
    SHOAL_ASSERT(shoal_raft_id_equal(raft->vote, raft->self)); /* V1 */
    raft->votes_asked = true;
    campaign_after(raft, patience_ns(raft)); /* the own disk's time is not counted */
    count_vote(raft, raft->self, true);
    if (raft_quorum(raft, has_granted)) {
        become_leader(raft);
        return;
    }
    ask_everyone(raft, SHOAL_RAFT_VOTE, raft->term);
}

void raft_campaign(struct shoal_raft *raft, bool transfer)
{
    /* A retry waits longer each time, up to 16 jitters, so that a group without a majority costs little. */
    uint64_t pause = raft->jitter_ns * raft->backoff;

    SHOAL_ASSERT(raft->role != SHOAL_RAFT_LEADER);                         /* V7 */
    SHOAL_ASSERT(raft->backoff >= 1 && raft->backoff <= RAFT_BACKOFF_MAX); /* a retry's wait is bounded */
    SHOAL_ASSERT(transfer || raft_lone_voter(raft) || raft->now_ns >= raft->quiet_until_ns); /* V3 */
    if (raft->role == SHOAL_RAFT_CANDIDATE && !raft->votes_asked && !transfer) {
        campaign_after(raft, raft->jitter_ns); /* the own disk is slow: a higher term would not help */
        return;
    }
    if (raft->vote_owed && !transfer) {
        campaign_after(raft, raft->jitter_ns); /* likewise (V8): the one that it votes for waits for this disk */
        return;
    }
    if (!raft_term_valid(raft->term + 1)) {
        campaign_after(raft, raft->jitter_ns); /* a member lied: there is no next term */
        return;
    }
    if (raft->spares_count == 0 || raft_log_full(&raft->log)) {
        raft->actions->wants_reserve = true; /* leading begins with an entry */
        campaign_after(raft, raft->jitter_ns);
        return;
    }
    if (transfer) {
        become_candidate(raft, true);
        return;
    }
    if (raft->backoff < RAFT_BACKOFF_MAX)
        raft->backoff *= 2;
    clear_votes(raft);
    count_vote(raft, raft->self, true);
    if (raft_quorum(raft, has_granted)) {
        become_candidate(raft, false);
        return;
    }
    campaign_after(raft, pause);
    if (raft->role != SHOAL_RAFT_PRECANDIDATE) {
        role_move(raft, SHOAL_RAFT_PRECANDIDATE, nobody);
        raft_role_changed(raft);
    }
    ask_everyone(raft, SHOAL_RAFT_PREVOTE, raft->term + 1);
}

static void answer(struct shoal_raft *raft, struct shoal_raft_id to, enum shoal_raft_message_kind kind,
                   uint64_t for_term, bool granted)
{
    struct shoal_raft_message *reply = raft_send(raft, to, kind);
    bool vote = kind == SHOAL_RAFT_VOTE_REPLY && granted;

    SHOAL_ASSERT(!vote || (raft_hard_durable(raft) && shoal_raft_id_equal(raft->vote, to))); /* V1 */
    SHOAL_ASSERT(!vote || for_term == raft->term);                                           /* V1 */
    reply->u.vote_reply.for_term = for_term;
    reply->u.vote_reply.granted = granted;
}

/* One who is no member any more asks for ever: nobody told it. */
static bool tell_gone(struct shoal_raft *raft, struct shoal_raft_id to)
{
    if (raft->role != SHOAL_RAFT_LEADER || raft->config_index > raft->commit || raft_peer_find(raft, to) != NULL)
        return false;
    SHOAL_ASSERT(raft->config_index <= raft->commit); /* C1: only what is committed sends anybody away */
    (void)raft_send(raft, to, SHOAL_RAFT_GONE);
    return true;
}

void raft_on_prevote(struct shoal_raft *raft, const struct shoal_raft_message *message)
{
    uint64_t for_term = message->u.vote.for_term;
    bool granted = for_term > raft->term && !raft_blocked(raft) &&
                   log_is_new_enough(raft, message->u.vote.last_index, message->u.vote.last_term);

    if (tell_gone(raft, message->from))
        return;
    SHOAL_ASSERT(!granted || raft->now_ns >= raft->quiet_until_ns || raft_lone_voter(raft)); /* V3 */
    /* A node that helps another into office lets it finish; not for long, since that one may reach fewer nodes. */
    if (granted && raft->role == SHOAL_RAFT_FOLLOWER && raft->campaign_at_ns < raft_later(raft, raft->jitter_ns / 4))
        raft->campaign_at_ns = raft_later(raft, raft->jitter_ns / 4) + jitter(raft, raft->jitter_ns / 4);
    answer(raft, message->from, SHOAL_RAFT_PREVOTE_REPLY, for_term, granted);
}

void raft_on_prevote_reply(struct shoal_raft *raft, const struct shoal_raft_message *message)
{
    if (message->term > raft->term && !message->u.vote_reply.granted) {
        raft_become_follower(raft, message->term, nobody); /* V4 */
        return;
    }
    if (raft->role != SHOAL_RAFT_PRECANDIDATE || message->u.vote_reply.for_term != raft->term + 1)
        return;
    SHOAL_ASSERT(shoal_raft_id_is_zero(raft->leader)); /* V7 */
    count_vote(raft, message->from, message->u.vote_reply.granted);
    if (raft_quorum(raft, has_granted))
        become_candidate(raft, false);
}

void raft_on_vote(struct shoal_raft *raft, const struct shoal_raft_message *message)
{
    bool fits = message->u.vote.for_term == message->term;
    bool quiet = raft->now_ns < raft->quiet_until_ns;
    bool transfer = message->u.vote.transfer && !raft_is_stranger(raft, message->from); /* V9 */

    if (tell_gone(raft, message->from))
        return;
    if (!fits || message->term < raft->term || quiet || (raft_blocked(raft) && !transfer)) {
        answer(raft, message->from, SHOAL_RAFT_VOTE_REPLY, message->u.vote.for_term, false); /* V3 */
        return;
    }
    if (message->term > raft->term)
        raft_become_follower(raft, message->term, nobody);
    if ((!shoal_raft_id_is_zero(raft->vote) && !shoal_raft_id_equal(raft->vote, message->from)) ||
        !log_is_new_enough(raft, message->u.vote.last_index, message->u.vote.last_term)) {
        answer(raft, message->from, SHOAL_RAFT_VOTE_REPLY, message->term, false);
        return;
    }
    SHOAL_ASSERT(message->term == raft->term); /* V1 */
    raft_vote_cast(raft, message->from);
    raft->vote_owed = true;
    if (raft->role != SHOAL_RAFT_LEADER)
        campaign_after(raft, 2 * raft->jitter_ns);
}

/* V1: called at the end of every step; answers once the vote is durable. */
void raft_answer_vote(struct shoal_raft *raft)
{
    if (!raft->vote_owed || !raft_hard_durable(raft))
        return;
    raft->vote_owed = false;
    SHOAL_ASSERT(!shoal_raft_id_is_zero(raft->vote)); /* V1 */
    answer(raft, raft->vote, SHOAL_RAFT_VOTE_REPLY, raft->term, true);
}

void raft_on_vote_reply(struct shoal_raft *raft, const struct shoal_raft_message *message)
{
    if (raft->role != SHOAL_RAFT_CANDIDATE || !raft->votes_asked || message->u.vote_reply.for_term != raft->term)
        return;
    SHOAL_ASSERT(shoal_raft_id_equal(raft->vote, raft->self)); /* V1 */
    count_vote(raft, message->from, message->u.vote_reply.granted);
    if (raft_quorum(raft, has_granted))
        become_leader(raft);
    else if (raft_quorum(raft, has_refused)) {
        raft_become_follower(raft, raft->term, nobody); /* split: try again soon, but not at the same time */
        campaign_after(raft, raft->jitter_ns / 4);
    }
}

void raft_on_timeout_now(struct shoal_raft *raft, const struct shoal_raft_message *message)
{
    SHOAL_ASSERT(message->term == raft->term); /* meet_term came before */
    if (raft->role == SHOAL_RAFT_LEADER || !raft_is_voter(raft))
        return;
    raft_campaign(raft, true);
}

void raft_on_transfer(struct shoal_raft *raft, uint64_t ctx, struct shoal_node_id to)
{
    const struct shoal_raft_member *member = shoal_raft_config_find(&raft->config, to);

    if (raft->role != SHOAL_RAFT_LEADER) {
        raft_reject(raft, ctx, SHOAL_ERR_NOT_LEADER);
        return;
    }
    if (member == NULL || !(member->bits & SHOAL_RAFT_VOTER) || shoal_raft_id_equal(member->id, raft->self)) {
        raft_reject(raft, ctx, SHOAL_ERR_INVALID);
        return;
    }
    if (raft->transfer_until_ns != 0) {
        raft_reject(raft, ctx, SHOAL_ERR_FULL);
        return;
    }
    SHOAL_ASSERT(!shoal_node_id_equal(to, raft->self.node)); /* an heir is another */
    raft->transfer_to = to;
    raft->transfer_until_ns = raft_later(raft, raft->support_ns);
    raft->transfer_sent = false;
    raft_transfer_advance(raft);
}

/* Sends TIMEOUT_NOW once the heir has the whole log; gives up after one support duration. */
void raft_transfer_advance(struct shoal_raft *raft)
{
    const struct shoal_raft_member *member;
    const struct raft_peer *peer;

    if (raft->role != SHOAL_RAFT_LEADER || raft->transfer_until_ns == 0)
        return;
    member = shoal_raft_config_find(&raft->config, raft->transfer_to);
    if (member == NULL || raft->now_ns >= raft->transfer_until_ns) {
        raft->transfer_until_ns = 0;
        return;
    }
    peer = raft_peer_find(raft, member->id);
    if (raft->transfer_sent || peer->match < raft_log_last(&raft->log))
        return;
    SHOAL_ASSERT(peer->match == raft_log_last(&raft->log)); /* V5: the heir has the whole log */
    raft->transfer_sent = true;
    (void)raft_send(raft, peer->member.id, SHOAL_RAFT_TIMEOUT_NOW);
}
