/* Replication (Ongaro and Ousterhout 2014, sections 5.3 and 5.4), without heartbeats.
 *
 *     PROBE  --accepted--> STREAM (pipelined) --rejected, or no answer in time--> PROBE
 *       +--the follower needs what is forgotten--> TRANSFER (raft_snapshot.c) --installed--> STREAM
 *
 * R1. An acknowledgement covers what is durable on the follower, in a term that is durable there, and equal to the log
 *     of the leader that hears it; so does the leader's own count.
 * R2. Only an entry of the leader's own term is committed by counting (figure 8 of the paper).
 * R3. What is committed is never truncated.
 * R4. The leader is silent towards a follower that has the whole log and knows the commit index; anything else has a
 *     retransmit deadline. When all are silent the group sleeps.
 * R5. Match never falls while a leader leads, and no follower has more than the leader.
 * R6. What is sent next lies behind the match and at most one place behind the leader's last entry.
 * R7. A flow moves only as `flow_moves` says; what is under way is counted, in appends and in bytes, and bounded.
 * R8. `uncommitted_bytes` is what the entries behind the commit index hold. */
#include "shoal/raft.h"
#include "raft_state.h"

#include "shoal/banned.h"

static const unsigned flow_moves[] = {
    /* bit N set: may become flow N */
    [RAFT_PROBE] = BIT(RAFT_PROBE) | BIT(RAFT_STREAM) | BIT(RAFT_TRANSFER),
    [RAFT_STREAM] = BIT(RAFT_PROBE),   /* what is under way is void: it begins again from what is known */
    [RAFT_TRANSFER] = BIT(RAFT_PROBE), /* installed */
};

/* The one place where a flow moves. */
static void flow_move(struct raft_peer *peer, enum raft_flow flow)
{
    SHOAL_ASSERT((flow_moves[peer->flow] & BIT(flow)) != 0);                           /* R7 */
    SHOAL_ASSERT(flow == RAFT_PROBE || (peer->inflight_count == 0 && !peer->waiting)); /* R7 */
    peer->flow = flow;
}

/* The one place where what a follower is known to have moves. */
static void match_raise(struct shoal_raft *raft, struct raft_peer *peer, uint64_t match)
{
    SHOAL_ASSERT(match > peer->match);                /* R5 */
    SHOAL_ASSERT(match <= raft_log_last(&raft->log)); /* R5 */
    peer->match = match;
}

void raft_peer_check(const struct shoal_raft *raft, const struct raft_peer *peer)
{
    uint64_t last = raft_log_last(&raft->log);
    uint32_t bytes = 0;

    SHOAL_ASSERT(peer->match <= last);                             /* R5 */
    SHOAL_ASSERT(peer->commit_known <= raft->commit);              /* R4 */
    SHOAL_ASSERT(peer->next > peer->match);                        /* R6 */
    SHOAL_ASSERT(peer->next <= last + 1);                          /* R6 */
    SHOAL_ASSERT(peer->inflight_count <= SHOAL_RAFT_INFLIGHT_MAX); /* R7 */
    for (uint32_t i = 0; i < peer->inflight_count; i++)
        bytes += peer->inflight_sizes[(peer->inflight_head + i) % SHOAL_RAFT_INFLIGHT_MAX];
    SHOAL_ASSERT(bytes == peer->inflight_bytes); /* R7 */
}

void raft_peer_reset(struct shoal_raft *raft, struct raft_peer *peer)
{
    struct shoal_raft_member member = peer->member;

    *peer = (struct raft_peer){ .member = member, .flow = RAFT_PROBE };
    SHOAL_ASSERT(!shoal_raft_id_is_zero(member.id)); /* C1 */
    peer->next = raft_log_last(&raft->log) + 1;
    peer->retransmit_at_ns = RAFT_NEVER;
    peer->backoff = 1;
}

void raft_append_own(struct shoal_raft *raft, struct shoal_entry *entry)
{
    SHOAL_ASSERT(raft->role == SHOAL_RAFT_LEADER); /* V7: only a leader writes */
    SHOAL_ASSERT(entry->index == 0);               /* L3: not in a log yet */
    entry->term = raft->term;
    entry->index = raft_log_last(&raft->log) + 1;
    raft_log_take(&raft->log, entry);
    raft->uncommitted_bytes += entry->len;
    if (entry->kind == SHOAL_ENTRY_CONFIG) {
        struct shoal_raft_config config;
        enum shoal_err err = shoal_raft_config_decode(shoal_entry_view(entry), &config);

        SHOAL_ASSERT(err == SHOAL_OK);                    /* its own encoding */
        SHOAL_ASSERT(raft->config_index <= raft->commit); /* C2 */
        raft_config_set(raft, &config, entry->index);
    }
}

void raft_on_propose(struct shoal_raft *raft, uint64_t ctx, struct shoal_entry *entry)
{
    enum shoal_err err = SHOAL_OK;

    if (raft->role != SHOAL_RAFT_LEADER)
        err = SHOAL_ERR_NOT_LEADER;
    else if (entry->kind != SHOAL_ENTRY_USER || entry->index != 0)
        err = SHOAL_ERR_INVALID;
    else if (raft->transfer_until_ns != 0 || raft_log_full(&raft->log) ||
             raft->uncommitted_bytes + entry->len > SHOAL_RAFT_UNCOMMITTED_BYTES_MAX)
        err = SHOAL_ERR_FULL;
    if (raft_log_full(&raft->log))
        raft->actions->wants_reserve = true;
    if (err != SHOAL_OK) {
        raft->counters.proposals_refused++;
        raft_reject(raft, ctx, err);
        return;
    }
    SHOAL_ASSERT(raft->uncommitted_bytes + entry->len <= SHOAL_RAFT_UNCOMMITTED_BYTES_MAX); /* R8 */
    raft_append_own(raft, shoal_entry_ref(entry));
}

/* ---- The follower's side ---- */

void raft_commit_to(struct shoal_raft *raft, uint64_t index)
{
    struct shoal_raft_action *action;

    if (index <= raft->commit)
        return;
    SHOAL_ASSERT(index <= raft_log_last(&raft->log));                                                /* D3 */
    SHOAL_ASSERT(raft->role != SHOAL_RAFT_LEADER || raft_log_term(&raft->log, index) == raft->term); /* R2 */
    raft->commit = index;
    if (raft->matched < index)
        raft->matched = index;
    action = raft_act(raft, SHOAL_RAFT_ACTION_COMMIT);
    action->u.commit.index = index;
}

/* At or below the commit index all logs agree: who says otherwise there is no leader of this group. */
static bool agrees(const struct shoal_raft *raft, uint64_t index, uint64_t term)
{
    return index > raft->commit || index < raft->log.base.index || raft_log_term(&raft->log, index) == term;
}

static enum shoal_err check_entries(const struct shoal_raft *raft, const struct shoal_raft_message *message)
{
    uint64_t index = message->u.append.prev_index;
    uint64_t term = message->u.append.prev_term;
    struct shoal_raft_config config;

    if (message->u.append.count > SHOAL_RAFT_BATCH_ENTRIES_MAX || index > UINT64_MAX - SHOAL_RAFT_BATCH_ENTRIES_MAX ||
        !agrees(raft, index, term))
        return SHOAL_ERR_MALFORMED;
    for (uint32_t i = 0; i < message->u.append.count; i++) {
        const struct shoal_entry *entry = message->u.append.entries[i];

        if (entry->index != ++index || entry->term == 0 || entry->term < term || entry->term > message->term ||
            !agrees(raft, index, entry->term))
            return SHOAL_ERR_MALFORMED;
        if (entry->kind == SHOAL_ENTRY_CONFIG && shoal_raft_config_decode(shoal_entry_view(entry), &config) != SHOAL_OK)
            return SHOAL_ERR_MALFORMED;
        term = entry->term;
    }
    return SHOAL_OK;
}

static void refuse_append(struct shoal_raft *raft, const struct shoal_raft_message *message)
{
    uint64_t prev = message->u.append.prev_index;
    uint64_t hint = raft_log_fit(&raft->log, prev - 1, message->u.append.prev_term);
    struct shoal_raft_message *reply = raft_send(raft, message->from, SHOAL_RAFT_APPEND_REPLY);

    SHOAL_ASSERT(prev > raft->commit); /* R3: what is committed agrees, and is never refused */
    SHOAL_ASSERT(hint < prev);         /* each refusal leads the leader further back */
    reply->u.append_reply.rejected = true;
    reply->u.append_reply.index = prev;
    reply->u.append_reply.hint = hint;
    reply->u.append_reply.hint_term = raft_log_term(&raft->log, hint);
    reply->u.append_reply.commit = raft->commit;
    reply->u.append_reply.seq = message->u.append.seq;
}

/* Drops the log from `from` on, which another leader's entries contradict. */
static void truncate(struct shoal_raft *raft, uint64_t from)
{
    SHOAL_ASSERT(from > raft->commit);               /* R3 */
    SHOAL_ASSERT(raft->role == SHOAL_RAFT_FOLLOWER); /* a leader only appends */
    SHOAL_ASSERT(from <= raft_log_last(&raft->log)); /* L1 */
    raft_log_truncate(&raft->log, from);
    if (raft->handed >= from) {
        raft->handed = from - 1;
        if (raft->truncate_from == 0 || from < raft->truncate_from)
            raft->truncate_from = from;
    }
    if (raft->durable >= from)
        raft->durable = from - 1;
    if (raft->matched >= from)
        raft->matched = from - 1;
    raft_config_roll_back(raft);
}

/* Returns the newest index that is now known equal to the leader's log. */
static uint64_t take_entries(struct shoal_raft *raft, const struct shoal_raft_message *message)
{
    uint64_t same = message->u.append.prev_index;

    for (uint32_t i = 0; i < message->u.append.count; i++) {
        struct shoal_entry *entry = message->u.append.entries[i];

        if (entry->index > raft->commit && raft_log_term(&raft->log, entry->index) != entry->term) {
            if (entry->index <= raft_log_last(&raft->log))
                truncate(raft, entry->index);
            if (raft_log_full(&raft->log)) {
                raft->actions->wants_reserve = true; /* the leader sends the rest again */
                return same;
            }
            raft_log_take(&raft->log, shoal_entry_ref(entry));
            if (entry->kind == SHOAL_ENTRY_CONFIG) {
                struct shoal_raft_config config;
                enum shoal_err err = shoal_raft_config_decode(shoal_entry_view(entry), &config);

                SHOAL_ASSERT(err == SHOAL_OK); /* check_entries came before */
                raft_config_set(raft, &config, entry->index);
            }
        }
        SHOAL_ASSERT(entry->index == same + 1); /* L1 */
        same = entry->index;
    }
    return same;
}

enum shoal_err raft_on_append(struct shoal_raft *raft, const struct shoal_raft_message *message)
{
    enum shoal_err err = check_entries(raft, message);
    uint64_t prev = message->u.append.prev_index;
    uint64_t same;

    if (err != SHOAL_OK)
        return err;
    raft_contact(raft);
    raft->removed_told = false;
    if (message->u.append.seq > raft->append_seq_seen)
        raft->append_seq_seen = message->u.append.seq;
    /* At or below the commit index all logs are equal, held or not. */
    if (prev > raft->commit &&
        (prev > raft_log_last(&raft->log) || raft_log_term(&raft->log, prev) != message->u.append.prev_term)) {
        refuse_append(raft, message);
        return SHOAL_OK;
    }
    SHOAL_ASSERT(raft->role == SHOAL_RAFT_FOLLOWER); /* V7: meet_term came before */
    same = take_entries(raft, message);
    if (same > raft->matched)
        raft->matched = same;
    raft_commit_to(raft, message->u.append.commit < raft->matched ? message->u.append.commit : raft->matched);
    raft->ack_owed = true;
    raft->ack_index = same;
    return SHOAL_OK;
}

/* R1. Called at the end of every step: what is durable is acknowledged; what is not waits for its STORED. */
void raft_acknowledge(struct shoal_raft *raft)
{
    uint64_t index = raft->durable < raft->matched ? raft->durable : raft->matched;
    struct shoal_raft_message *reply;

    if (!raft->ack_owed || raft->role != SHOAL_RAFT_FOLLOWER || shoal_raft_id_is_zero(raft->leader) ||
        !raft_hard_durable(raft))
        return;
    if (index < raft->ack_index && index <= raft->acked)
        return;
    SHOAL_ASSERT(index <= raft->durable && index <= raft->matched); /* R1 */
    raft->ack_owed = index < raft->ack_index;
    raft->acked = index;
    reply = raft_send(raft, raft->leader, SHOAL_RAFT_APPEND_REPLY);
    reply->u.append_reply.index = index;
    reply->u.append_reply.commit = raft->commit;
    reply->u.append_reply.seq = raft->append_seq_seen;
}

/* ---- The leader's side ---- */

static uint64_t match_of(const struct shoal_raft *raft, uint32_t i)
{
    SHOAL_ASSERT(i < raft->config.count);        /* C1 */
    SHOAL_ASSERT(raft->durable <= raft->handed); /* R1: the own count is what the own disk has */
    return shoal_raft_id_equal(raft->config.members[i].id, raft->self) ? raft->durable : raft->peers[i].match;
}

void raft_commit_advance(struct shoal_raft *raft)
{
    uint64_t before = raft->commit;
    uint64_t index;

    if (raft->role != SHOAL_RAFT_LEADER)
        return;
    index = raft_quorum_value(raft, match_of);
    if (index <= before || raft_log_term(&raft->log, index) != raft->term) /* R2 */
        return;
    SHOAL_ASSERT(raft->uncommitted_bytes >= raft_log_span_bytes(&raft->log, before + 1, index)); /* R8 */
    raft->uncommitted_bytes -= raft_log_span_bytes(&raft->log, before + 1, index);
    raft_commit_to(raft, index);
}

static bool is_self(const struct shoal_raft *raft, const struct raft_peer *peer)
{
    return shoal_raft_id_equal(peer->member.id, raft->self);
}

static bool up_to_date(const struct shoal_raft *raft, const struct raft_peer *peer)
{
    SHOAL_ASSERT(peer->match <= raft_log_last(&raft->log)); /* R5 */
    return peer->match == raft_log_last(&raft->log) && peer->commit_known >= raft->commit;
}

bool raft_asleep(const struct shoal_raft *raft)
{
    if (raft->role != SHOAL_RAFT_LEADER || raft->commit < raft_log_last(&raft->log) || raft->reads_count > 0 ||
        raft->transfer_until_ns != 0)
        return false;
    SHOAL_ASSERT(raft->uncommitted_bytes == 0); /* R8 */
    for (uint32_t i = 0; i < raft->config.count; i++) {
        if (!is_self(raft, &raft->peers[i]) && !up_to_date(raft, &raft->peers[i]))
            return false;
    }
    return true;
}

static void inflight_pop(struct raft_peer *peer, uint64_t upto)
{
    while (peer->inflight_count > 0 && peer->inflight[peer->inflight_head] <= upto) {
        SHOAL_ASSERT(peer->inflight_bytes >= peer->inflight_sizes[peer->inflight_head]); /* R7 */
        peer->inflight_bytes -= peer->inflight_sizes[peer->inflight_head];
        peer->inflight_head = (peer->inflight_head + 1) % SHOAL_RAFT_INFLIGHT_MAX;
        peer->inflight_count--;
    }
    SHOAL_ASSERT(peer->inflight_count > 0 || peer->inflight_bytes == 0); /* R7 */
}

static void inflight_push(struct raft_peer *peer, uint64_t last, uint32_t bytes)
{
    uint32_t at = (peer->inflight_head + peer->inflight_count) % SHOAL_RAFT_INFLIGHT_MAX;

    SHOAL_ASSERT(peer->flow == RAFT_STREAM);                      /* R7 */
    SHOAL_ASSERT(peer->inflight_count < SHOAL_RAFT_INFLIGHT_MAX); /* R7 */
    SHOAL_ASSERT(last >= peer->next);                             /* R6 */
    peer->inflight[at] = last;
    peer->inflight_sizes[at] = bytes;
    peer->inflight_bytes += bytes;
    peer->inflight_count++;
}

void raft_peer_probe(struct raft_peer *peer, uint64_t next)
{
    flow_move(peer, RAFT_PROBE);
    peer->waiting = false;
    peer->next = next > peer->match ? next : peer->match + 1;
    peer->inflight_count = 0;
    peer->inflight_bytes = 0;
    peer->retransmit_at_ns = RAFT_NEVER;
}

void raft_peer_accepted(struct shoal_raft *raft, struct raft_peer *peer, uint64_t match)
{
    SHOAL_ASSERT(raft->role == SHOAL_RAFT_LEADER); /* V7 */
    if (match > peer->match)
        match_raise(raft, peer, match);
    inflight_pop(peer, peer->match);
    peer->backoff = 1;
    if (peer->flow != RAFT_STREAM) {
        raft_peer_probe(peer, peer->match + 1);
        flow_move(peer, RAFT_STREAM);
        peer->snapshot_index = 0;
        peer->snapshot_offset = 0;
    }
    if (peer->next <= peer->match)
        peer->next = peer->match + 1;
    peer->retransmit_at_ns = peer->inflight_count > 0 || peer->commit_sent > peer->commit_known
                                 ? raft_later(raft, raft->retransmit_ns)
                                 : RAFT_NEVER;
}

static void on_rejected(struct shoal_raft *raft, struct raft_peer *peer, const struct shoal_raft_message *message)
{
    uint64_t index = message->u.append_reply.index;
    uint64_t hint = message->u.append_reply.hint;

    if (index <= peer->match || peer->flow == RAFT_TRANSFER || (peer->flow == RAFT_PROBE && index != peer->next - 1))
        return; /* an answer to what is long settled */
    if (hint >= index)
        hint = index - 1;
    SHOAL_ASSERT(index > 0); /* above the match, which is 0 at least */
    if (hint > raft->log.base.index)
        hint = raft_log_fit(&raft->log, hint, message->u.append_reply.hint_term);
    raft_peer_probe(peer, hint + 1);
}

void raft_on_append_reply(struct shoal_raft *raft, const struct shoal_raft_message *message)
{
    struct raft_peer *peer = raft_peer_find(raft, message->from);

    if (raft->role != SHOAL_RAFT_LEADER || peer == NULL || message->u.append_reply.seq < peer->seq_floor)
        return;
    if (message->u.append_reply.rejected) {
        on_rejected(raft, peer, message);
        return;
    }
    if (message->u.append_reply.index > raft_log_last(&raft->log))
        return; /* of no log of this term */
    peer->commit_known = message->u.append_reply.commit < raft->commit ? message->u.append_reply.commit : raft->commit;
    SHOAL_ASSERT(peer->commit_known <= raft->commit); /* D3: a follower knows of nothing that is not committed */
    if (peer->flow == RAFT_TRANSFER && message->u.append_reply.index < raft->log.base.index)
        return;
    raft_peer_accepted(raft, peer, message->u.append_reply.index);
}

/* One append from peer->next on. */
static void send_append(struct shoal_raft *raft, struct raft_peer *peer)
{
    struct shoal_raft_message *message = raft_send(raft, peer->member.id, SHOAL_RAFT_APPEND);
    uint64_t index = peer->next;
    size_t bytes = 0;
    struct shoal_entry *entry;

    SHOAL_ASSERT(index > raft->log.base.index);           /* R6: what is forgotten goes as a snapshot */
    SHOAL_ASSERT(index <= raft_log_last(&raft->log) + 1); /* R6 */
    SHOAL_ASSERT(peer->match < index);                    /* R6 */
    message->u.append.prev_index = index - 1;
    message->u.append.prev_term = raft_log_term(&raft->log, index - 1);
    message->u.append.commit = raft->commit;
    message->u.append.seq = ++raft->append_seq;
    message->u.append.count = 0;
    while (message->u.append.count < SHOAL_RAFT_BATCH_ENTRIES_MAX) {
        entry = raft_log_find(&raft->log, index);
        if (entry == NULL || (bytes > 0 && bytes + entry->len > SHOAL_RAFT_BATCH_BYTES_MAX))
            break;
        bytes += entry->len;
        message->u.append.entries[message->u.append.count++] = entry;
        index++;
    }
    SHOAL_ASSERT(peer->commit_sent <= raft->commit); /* D6 */
    peer->commit_sent = raft->commit;
    if (peer->retransmit_at_ns == RAFT_NEVER)
        peer->retransmit_at_ns = raft_later(raft, raft->retransmit_ns * peer->backoff);
    if (peer->flow == RAFT_PROBE) {
        peer->waiting = true;
        return;
    }
    if (message->u.append.count > 0)
        inflight_push(peer, index - 1, (uint32_t)bytes);
    peer->next = index;
}

static bool window_open(const struct raft_peer *peer)
{
    SHOAL_ASSERT(peer->inflight_count <= SHOAL_RAFT_INFLIGHT_MAX); /* R7 */
    return peer->inflight_count < SHOAL_RAFT_INFLIGHT_MAX && peer->inflight_bytes < SHOAL_RAFT_INFLIGHT_BYTES_MAX;
}

static void check_retransmit(struct shoal_raft *raft, struct raft_peer *peer)
{
    if (raft->now_ns < peer->retransmit_at_ns)
        return;
    SHOAL_ASSERT(peer->backoff >= 1 && peer->backoff <= RAFT_BACKOFF_MAX); /* R4: asked again, ever more slowly */
    raft->counters.retransmits++;
    if (peer->backoff < RAFT_BACKOFF_MAX)
        peer->backoff *= 2;
    peer->retransmit_at_ns = RAFT_NEVER;
    peer->waiting = false;
    if (peer->flow != RAFT_TRANSFER)
        raft_peer_probe(peer, peer->flow == RAFT_PROBE ? peer->next : peer->match + 1);
}

static void flush_peer(struct shoal_raft *raft, struct raft_peer *peer, bool push)
{
    SHOAL_ASSERT(raft->role == SHOAL_RAFT_LEADER); /* nobody else has followers */
    check_retransmit(raft, peer);
    if (peer->flow != RAFT_TRANSFER && peer->next <= raft->log.base.index) {
        raft_peer_probe(peer, peer->next);
        flow_move(peer, RAFT_TRANSFER);
        peer->snapshot_index = 0;
        peer->snapshot_offset = 0;
    }
    switch (peer->flow) {
    case RAFT_TRANSFER:
        if (!peer->waiting)
            raft_need_snapshot(raft, peer);
        return;
    case RAFT_PROBE:
        if (!peer->waiting && !up_to_date(raft, peer) && raft_may_send(raft))
            send_append(raft, peer);
        return;
    case RAFT_STREAM:
        while (peer->next <= raft_log_last(&raft->log) && window_open(peer) && raft_may_send(raft))
            send_append(raft, peer);
        if (push && peer->commit_sent < raft->commit && peer->next > raft_log_last(&raft->log) && raft_may_send(raft))
            send_append(raft, peer);
        return;
    }
}

void raft_flush(struct shoal_raft *raft)
{
    bool push = raft->now_ns >= raft->commit_push_at_ns;
    bool untold = false;

    if (raft->role != SHOAL_RAFT_LEADER)
        return;
    for (uint32_t i = 0; i < raft->config.count; i++) {
        if (is_self(raft, &raft->peers[i]))
            continue;
        flush_peer(raft, &raft->peers[i], push);
        SHOAL_ASSERT(raft->peers[i].next > raft->peers[i].match);                                         /* R6 */
        SHOAL_ASSERT(raft->peers[i].flow == RAFT_TRANSFER || raft->peers[i].next > raft->log.base.index); /* R6 */
        /* One that is probed, or installs, is asked again anyway. */
        untold = untold || (raft->peers[i].flow == RAFT_STREAM && raft->peers[i].commit_sent < raft->commit);
    }
    if (!untold)
        raft->commit_push_at_ns = RAFT_NEVER;
    else if (push || raft->commit_push_at_ns == RAFT_NEVER)
        raft->commit_push_at_ns = raft_later(raft, RAFT_COMMIT_PUSH_NS);
}
