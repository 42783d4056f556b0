/* Snapshots: taken by the owner, kept by the owner, moved in pieces of at most SHOAL_RAFT_CHUNK_BYTES_MAX.
 *
 *     leader: NEED_SNAPSHOT(peer, offset) --owner--> SNAPSHOT_CHUNK --> INSTALL --> follower: SNAPSHOT_PART ...
 *             <-------------------- INSTALL_REPLY(offset) ---------------------    last piece: PERSIST(snapshot)
 *
 * P1. A snapshot is never installed over a log that is as new: at or below the commit index it is not needed, and where
 *     the log holds its (index, term) it only moves the commit index.
 * P2. A piece is asked for again after a while; a newer snapshot starts again from offset 0.
 * P3. Pieces come in order without a gap, and the last one completes the total that the first one named. */
#include "shoal/raft.h"
#include "raft_state.h"

#include "shoal/banned.h"

enum shoal_err raft_on_snapshot_ready(struct shoal_raft *raft, uint64_t index)
{
    struct shoal_raft_config config;
    uint64_t upto = index;
    uint64_t at;

    if (index > raft->commit || index <= raft->snapshot_index)
        return SHOAL_ERR_INVALID;
    raft->snapshot_index = index;
    /* A follower that is nearly there is spared the snapshot. */
    for (uint32_t i = 0; raft->role == SHOAL_RAFT_LEADER && i < raft->config.count; i++) {
        const struct raft_peer *peer = &raft->peers[i];

        if (shoal_raft_id_equal(peer->member.id, raft->self) || peer->match + RAFT_TRAIL_ENTRIES < index ||
            raft->now_ns >= raft_supported_until(raft, peer->member.id.node))
            continue;
        if (peer->match < upto)
            upto = peer->match;
    }
    if (upto <= raft->log.base.index)
        return SHOAL_OK;
    SHOAL_ASSERT(upto <= raft->snapshot_index); /* D3 */
    raft_config_as_of(raft, upto, &config, &at);
    raft_log_forget(&raft->log, upto, &config);
    return SHOAL_OK;
}

void raft_need_snapshot(struct shoal_raft *raft, struct raft_peer *peer)
{
    struct shoal_raft_action *action;

    if (!raft_may_send(raft))
        return;
    SHOAL_ASSERT(peer->flow == RAFT_TRANSFER);                             /* R7 */
    SHOAL_ASSERT(peer->snapshot_index != 0 || peer->snapshot_offset == 0); /* P2 */
    action = raft_act(raft, SHOAL_RAFT_ACTION_NEED_SNAPSHOT);
    action->u.need_snapshot.peer = peer->member.id;
    action->u.need_snapshot.index = peer->snapshot_index;
    action->u.need_snapshot.offset = peer->snapshot_offset;
    peer->waiting = true;
    peer->retransmit_at_ns = raft_later(raft, raft->retransmit_ns * 2 * peer->backoff);
}

enum shoal_err raft_on_chunk(struct shoal_raft *raft, const struct shoal_raft_event *event)
{
    struct raft_peer *peer = raft_peer_find(raft, event->u.chunk.peer);
    const struct shoal_raft_snapshot *snapshot = &event->u.chunk.snapshot;
    struct shoal_raft_message *message;

    if (raft->role != SHOAL_RAFT_LEADER || peer == NULL || peer->flow != RAFT_TRANSFER)
        return SHOAL_OK; /* overtaken: not needed any more */
    if (event->u.chunk.bytes.len > SHOAL_RAFT_CHUNK_BYTES_MAX || snapshot->index < raft->log.base.index ||
        snapshot->index > raft->commit || event->u.chunk.total > SHOAL_SNAPSHOT_BYTES_MAX)
        return SHOAL_ERR_INVALID;
    if (peer->snapshot_index != snapshot->index) {
        if (event->u.chunk.offset != 0)
            return SHOAL_ERR_INVALID;
        peer->snapshot_index = snapshot->index;
        peer->snapshot_offset = 0;
    }
    if (event->u.chunk.offset != peer->snapshot_offset)
        return SHOAL_OK;                           /* an answer to an older question */
    SHOAL_ASSERT(snapshot->index <= raft->commit); /* D3 */
    message = raft_send(raft, peer->member.id, SHOAL_RAFT_INSTALL);
    message->u.install.snapshot = *snapshot;
    message->u.install.offset = event->u.chunk.offset;
    message->u.install.total = event->u.chunk.total;
    message->u.install.bytes = event->u.chunk.bytes;
    return SHOAL_OK;
}

void raft_on_install_reply(struct shoal_raft *raft, const struct shoal_raft_message *message)
{
    struct raft_peer *peer = raft_peer_find(raft, message->from);

    if (raft->role != SHOAL_RAFT_LEADER || peer == NULL || peer->flow != RAFT_TRANSFER ||
        message->u.install_reply.index != peer->snapshot_index ||
        message->u.install_reply.match > raft_log_last(&raft->log))
        return;
    peer->backoff = 1;
    if (message->u.install_reply.match >= peer->snapshot_index) {
        SHOAL_ASSERT(peer->snapshot_index <= raft->commit); /* D3 */
        peer->commit_known = peer->snapshot_index;
        raft_peer_accepted(raft, peer, message->u.install_reply.match);
        return;
    }
    /* One piece is on its way at a time: a repeated or late reply asks for nothing twice. */
    if (message->u.install_reply.offset == peer->snapshot_offset && peer->waiting)
        return;
    peer->snapshot_offset = message->u.install_reply.offset;
    raft_need_snapshot(raft, peer);
}

static void answer_install(struct shoal_raft *raft, struct shoal_raft_id to, uint64_t index, uint64_t offset,
                           uint64_t match)
{
    struct shoal_raft_message *reply = raft_send(raft, to, SHOAL_RAFT_INSTALL_REPLY);

    SHOAL_ASSERT(match == 0 || (match <= raft->durable && raft_hard_durable(raft))); /* R1 */
    reply->u.install_reply.index = index;
    reply->u.install_reply.offset = offset;
    reply->u.install_reply.match = match;
}

/* Called at the end of every step: says "installed", or "not needed", once all of it is durable. */
void raft_answer_install(struct shoal_raft *raft)
{
    if (raft->install_owed == 0 || raft->role != SHOAL_RAFT_FOLLOWER || shoal_raft_id_is_zero(raft->leader) ||
        !raft_hard_durable(raft) || raft->durable < raft->install_owed)
        return;
    SHOAL_ASSERT(raft->install_owed <= raft->commit); /* D3 */
    answer_install(raft, raft->leader, raft->install_owed, raft->install_total, raft->install_owed);
    raft->install_owed = 0;
}

static void install(struct shoal_raft *raft, const struct shoal_raft_snapshot *snapshot)
{
    SHOAL_ASSERT(snapshot->index > raft->commit);    /* P1 */
    SHOAL_ASSERT(raft->role == SHOAL_RAFT_FOLLOWER); /* V7 */
    raft_log_reset(&raft->log, snapshot);
    raft->commit = snapshot->index;
    raft->snapshot_index = snapshot->index;
    raft->matched = snapshot->index;
    raft->handed = snapshot->index;
    raft->durable = 0;
    raft->truncate_from = 0;
    raft->snapshot_dirty = true;
    raft->ack_owed = false;
    raft_config_set(raft, &snapshot->config, snapshot->index);
}

static bool piece_valid(const struct shoal_raft_message *message)
{
    uint64_t offset = message->u.install.offset;
    uint64_t total = message->u.install.total;
    size_t len = message->u.install.bytes.len;
    const struct shoal_raft_snapshot *snapshot = &message->u.install.snapshot;

    if (total > SHOAL_SNAPSHOT_BYTES_MAX || offset > total || len > total - offset || len > SHOAL_RAFT_CHUNK_BYTES_MAX)
        return false;
    if (len == 0 && total != 0)
        return false;
    return snapshot->index > 0 && snapshot->term > 0 && snapshot->term <= message->term &&
           shoal_raft_config_valid(&snapshot->config);
}

/* P1: true when the log needs no snapshot. */
static bool not_needed(struct shoal_raft *raft, const struct shoal_raft_message *message)
{
    const struct shoal_raft_snapshot *snapshot = &message->u.install.snapshot;

    if (snapshot->index > raft->commit && raft_log_term(&raft->log, snapshot->index) != snapshot->term)
        return false;
    if (raft->matched < snapshot->index)
        raft->matched = snapshot->index;
    raft_commit_to(raft, snapshot->index);
    SHOAL_ASSERT(raft->commit >= snapshot->index); /* P1 */
    raft->incoming.index = 0;
    raft->install_owed = snapshot->index;
    raft->install_total = message->u.install.total;
    return true;
}

enum shoal_err raft_on_install(struct shoal_raft *raft, const struct shoal_raft_message *message)
{
    const struct shoal_raft_snapshot *snapshot = &message->u.install.snapshot;
    struct shoal_raft_action *action;

    if (!piece_valid(message))
        return SHOAL_ERR_MALFORMED;
    raft_contact(raft);
    if (not_needed(raft, message))
        return SHOAL_OK;
    if (message->u.install.offset == 0) {
        raft->incoming.index = snapshot->index;
        raft->incoming.term = snapshot->term;
        raft->incoming.total = message->u.install.total;
        raft->incoming.offset = 0;
    }
    if (raft->incoming.index != snapshot->index || raft->incoming.term != snapshot->term ||
        raft->incoming.total != message->u.install.total || raft->incoming.offset != message->u.install.offset) {
        answer_install(raft, message->from, snapshot->index,
                       raft->incoming.index == snapshot->index ? raft->incoming.offset : 0, 0);
        return SHOAL_OK;
    }
    action = raft_act(raft, SHOAL_RAFT_ACTION_SNAPSHOT_PART);
    action->u.part.snapshot = *snapshot;
    action->u.part.offset = message->u.install.offset;
    action->u.part.total = message->u.install.total;
    action->u.part.bytes = message->u.install.bytes;
    raft->incoming.offset += message->u.install.bytes.len;
    SHOAL_ASSERT(raft->incoming.offset <= raft->incoming.total); /* P3: piece_valid came before */
    if (raft->incoming.offset < raft->incoming.total) {
        answer_install(raft, message->from, snapshot->index, raft->incoming.offset, 0);
        return SHOAL_OK;
    }
    SHOAL_ASSERT(raft->incoming.offset == raft->incoming.total); /* P3 */
    raft->incoming.index = 0;
    raft->install_owed = snapshot->index;
    raft->install_total = message->u.install.total;
    install(raft, snapshot);
    return SHOAL_OK;
}
