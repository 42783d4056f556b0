/* Read-index reads (Ongaro's thesis, section 6.4), in rounds: all reads that wait share the next one.
 *
 * Q1. A read's index is the commit index when its round begins, and an entry of this term was committed before.
 * Q2. A read is served only after a quorum has answered its round in this term: no clock is asked.
 * Q3. Rounds are numbered upwards, one is open at a time, and no peer has answered a round that was never asked. */
#include "shoal/raft.h"
#include "raft_state.h"

#include "shoal/banned.h"

void raft_on_read(struct shoal_raft *raft, uint64_t ctx)
{
    if (raft->role != SHOAL_RAFT_LEADER) {
        raft_reject(raft, ctx, SHOAL_ERR_NOT_LEADER);
        return;
    }
    if (raft->reads_count == SHOAL_RAFT_READS_MAX) {
        raft_reject(raft, ctx, SHOAL_ERR_FULL);
        return;
    }
    SHOAL_ASSERT(raft->reads_count < SHOAL_RAFT_READS_MAX);
    raft->reads[raft->reads_count++] = (struct raft_read){ .ctx = ctx };
}

void raft_reads_fail(struct shoal_raft *raft)
{
    SHOAL_ASSERT(raft->role == SHOAL_RAFT_LEADER); /* V7: called as it ends */
    for (uint32_t i = 0; i < raft->reads_count; i++)
        raft_reject(raft, raft->reads[i].ctx, SHOAL_ERR_STALE);
    raft->reads_count = 0;
    raft->read_round = false;
}

static uint64_t read_seq_of(const struct shoal_raft *raft, uint32_t i)
{
    SHOAL_ASSERT(raft->peers[i].read_seq <= raft->read_seq); /* Q3 */
    return shoal_raft_id_equal(raft->config.members[i].id, raft->self) ? raft->read_seq : raft->peers[i].read_seq;
}

static void ask_round(struct shoal_raft *raft)
{
    SHOAL_ASSERT(raft->read_round); /* Q3 */
    for (uint32_t i = 0; i < raft->config.count; i++) {
        const struct raft_peer *peer = &raft->peers[i];
        struct shoal_raft_message *message;

        if (!(peer->member.bits & (SHOAL_RAFT_VOTER | SHOAL_RAFT_VOTER_OLD)) ||
            shoal_raft_id_equal(peer->member.id, raft->self) || peer->read_seq >= raft->read_seq ||
            !raft_may_send(raft))
            continue;
        message = raft_send(raft, peer->member.id, SHOAL_RAFT_READ);
        message->u.read.seq = raft->read_seq;
    }
    raft->read_retransmit_at_ns = raft_later(raft, raft->retransmit_ns);
}

static void finish_round(struct shoal_raft *raft)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < raft->reads_count; i++) {
        struct raft_read *read = &raft->reads[i];

        if (read->seq == 0) {
            raft->reads[kept++] = *read;
            continue;
        }
        SHOAL_ASSERT(read->seq <= raft->read_seq);                                    /* Q3 */
        SHOAL_ASSERT(read->index >= raft->term_start && read->index <= raft->commit); /* Q1 */
        struct shoal_raft_action *action = raft_act(raft, SHOAL_RAFT_ACTION_READ_READY);
        action->u.read_ready.ctx = read->ctx;
        action->u.read_ready.index = read->index;
    }
    raft->reads_count = kept;
    raft->read_round = false;
}

void raft_reads_advance(struct shoal_raft *raft)
{
    if (raft->role != SHOAL_RAFT_LEADER)
        return;
    if (raft->read_round && raft_quorum_value(raft, read_seq_of) >= raft->read_seq)
        finish_round(raft);
    if (raft->read_round && raft->now_ns >= raft->read_retransmit_at_ns) {
        raft->counters.retransmits++;
        ask_round(raft);
    }
    if (raft->read_round || raft->reads_count == 0 || raft->commit < raft->term_start)
        return;
    SHOAL_ASSERT(raft->commit >= raft->term_start); /* Q1 */
    raft->read_round = true;
    raft->read_seq++;
    for (uint32_t i = 0; i < raft->reads_count; i++) {
        raft->reads[i].seq = raft->read_seq;
        raft->reads[i].index = raft->commit; /* Q1 */
    }
    ask_round(raft);
    if (raft_quorum_value(raft, read_seq_of) >= raft->read_seq)
        finish_round(raft); /* a lone voter asks nobody */
}

void raft_on_read_round(struct shoal_raft *raft, const struct shoal_raft_message *message)
{
    struct shoal_raft_message *reply;

    SHOAL_ASSERT(shoal_raft_id_equal(raft->leader, message->from)); /* V7: meet_term came before */
    raft_contact(raft);
    reply = raft_send(raft, message->from, SHOAL_RAFT_READ_REPLY);
    reply->u.read.seq = message->u.read.seq;
}

void raft_on_read_reply(struct shoal_raft *raft, const struct shoal_raft_message *message)
{
    struct raft_peer *peer = raft_peer_find(raft, message->from);

    /* Q2: the message's term is this one's, checked before it came here. */
    if (raft->role != SHOAL_RAFT_LEADER || peer == NULL || message->u.read.seq > raft->read_seq)
        return;
    SHOAL_ASSERT(message->term <= raft->term); /* Q2 */
    if (message->u.read.seq > peer->read_seq)
        peer->read_seq = message->u.read.seq;
}
