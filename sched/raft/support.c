/* Host-pair support (PROTOCOLS 5; the idea: CockroachDB's store liveness, and Ongaro's thesis, section 6.4).
 *
 *     a                                          b
 *     |  seq 7, at a's 0 ms                      |
 *     |----------------------------------------->|  b supports a until b's 3 + 600 ms
 *     |             seq 4, support_seq 7         |
 *     |<-----------------------------------------|  a is supported until a's 0 + 600 ms
 *
 * H1. The requester counts from when it sent, the supporter from when it received: the supporter always ends later.
 * H2. Support belongs to two incarnations: an echo for another life of this host, or from another life of the peer, is
 *     void.
 * H3. A peer whose flush or loop has hung longer than the bounds gets no further support: it could not act as leader.
 *     Nor does one that answers nothing over its control link: it could not send entries, so its office is for another.
 * H4. Sequences only rise within an incarnation, whether the peer was of interest all the time or not: what is replayed
 *     or reordered is dropped.
 * H5. Claims are a set, compared by a hash that does not depend on order. A new set replaces the old one whole.
 * H6. Peers are sorted by node, once each, and this host is none of them.
 * H7. A claim of a peer is in one bucket and in that peer's chain, or free; what the owner was told is in `told`.
 * H8. What a step has no room for is left to the next one, and `more` says so.
 * H9. An edge is told once: SUPPORTED and LOST in turn, SUPPORTING and SUPPORTING_LOST in turn, SILENT and HEARD in
 *     turn.
 * H10. That this host had a later life, and so was rolled back, is not one peer's to say: a host that lies would stop all
 *     others. (Gossip has proof of it, a card that this host's own key has signed.)
 *
 *     heartbeat: u8 1 | u8 version 1 | u8 oldest 1 | u32 from epoch, agent | u32 to epoch, agent | u64 seq,
 *                u64 support_seq | u32 lag_us, flush_us | u64 claims_hash, have_hash, slot_stamp | u8 flags | u8 n |
 *                n x claim
 *                flags: 1 quorum connected, 2 the claims here are all there are, 4 please answer at once
 *     page:      u8 2 | u8 version 1 | u8 oldest 1 | u32 from epoch, agent | u64 claims_hash | u16 page, pages | u8 n |
 *                n x claim
 *     claim:     job id (10) | u64 term */
#include "support_state.h"
#include "shoal/wire.h"

#include "shoal/banned.h"

#define SUPPORT_VERSION 1
#define SUPPORT_HEARTBEAT 1
#define SUPPORT_PAGE 2
#define SUPPORT_CLAIM_BYTES 18
_Static_assert(SUPPORT_PAGE_CLAIMS *SUPPORT_CLAIM_BYTES + 32 <= SHOAL_DATAGRAM_PAYLOAD_MAX, "a page fits a datagram");
_Static_assert(SHOAL_SUPPORT_INLINE_CLAIMS_MAX *SUPPORT_CLAIM_BYTES + 80 <= 256, "a heartbeat is small");
#define SUPPORT_FLAG_QUORUM 1u
#define SUPPORT_FLAG_WHOLE 2u
#define SUPPORT_FLAG_URGENT 4u
/* A heartbeat brought forward waits at least this long after the last one. */
#define SUPPORT_KICK_NS (10 * SHOAL_MS)
/* In a row: by then every other peer has been heard as well. */
#define SUPPORT_LATER_BEATS 3

/* ---- The table of peers ---- */

static uint64_t or_default(uint64_t value, uint64_t standard)
{
    SHOAL_ASSERT(standard > 0);
    return value == 0 ? standard : value;
}

enum shoal_err shoal_support_create(struct shoal_support **support, const struct shoal_support_options *options)
{
    struct shoal_support *made = calloc(1, sizeof(*made));

    if (made == NULL)
        return SHOAL_ERR_FULL;
    made->claims = calloc(SUPPORT_THEIRS_MAX, sizeof(*made->claims));
    if (made->claims == NULL) {
        free(made);
        return SHOAL_ERR_FULL;
    }
    made->self = options->self;
    made->incarnation = options->incarnation;
    made->incarnation.refutation = 0;
    made->interval_ns = or_default(options->interval_ns, 100 * SHOAL_MS);
    made->support_ns = or_default(options->support_ns, 600 * SHOAL_MS);
    made->flush_age_max_ns = or_default(options->flush_age_max_ns, SHOAL_S);
    made->loop_lag_max_ns = or_default(options->loop_lag_max_ns, SHOAL_S);
    made->silent_ns = or_default(options->silent_ns, 600 * SHOAL_MS);
    made->now_ns = options->start_ns;
    made->deadline_ns = UINT64_MAX;
    for (uint32_t i = 0; i < SUPPORT_BUCKETS; i++)
        made->buckets[i] = SUPPORT_NONE;
    /* The free list runs through the table downwards, so that untouched pages stay untouched. */
    made->claims_free = 0;
    *support = made;
    return SHOAL_OK;
}

static void peer_destroy(struct peer *peer)
{
    SHOAL_ASSERT(peer->theirs == SUPPORT_NONE || peer->known.refs > 0); /* H7: its claims went first */
    free(peer->own);
    free(peer);
}

void shoal_support_destroy(struct shoal_support *support)
{
    if (support == NULL)
        return;
    for (uint32_t i = 0; i < support->peers_count; i++)
        peer_destroy(support->peers[i]);
    free(support->peers);
    free(support->claims);
    free(support);
}

/* The place at which `node` is, or at which it belongs. */
static uint32_t place_of(const struct shoal_support *support, struct shoal_node_id node)
{
    uint32_t low = 0;
    uint32_t high = support->peers_count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (shoal_node_id_cmp(support->peers[middle]->known.node, node) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    SHOAL_ASSERT(low == support->peers_count || shoal_node_id_cmp(support->peers[low]->known.node, node) >= 0); /* H6 */
    return low;
}

static struct peer *peer_find(const struct shoal_support *support, struct shoal_node_id node)
{
    uint32_t at = place_of(support, node);

    SHOAL_ASSERT(support->peers_count <= SHOAL_SUPPORT_PEERS_MAX); /* H6 */
    if (at == support->peers_count || !shoal_node_id_equal(support->peers[at]->known.node, node))
        return NULL;
    return support->peers[at];
}

static void wake_at(struct shoal_support *support, uint64_t at)
{
    if (at < support->deadline_ns)
        support->deadline_ns = at;
}

/* Bring the next heartbeat forward. */
static void kick(struct shoal_support *support, struct peer *peer)
{
    uint64_t at = peer->last_send_ns == 0 ? support->now_ns : peer->last_send_ns + SUPPORT_KICK_NS;

    if (at < support->now_ns)
        at = support->now_ns;
    SHOAL_ASSERT(at >= support->now_ns); /* never in the past: a heartbeat does not spin */
    if (at < peer->next_send_ns)
        peer->next_send_ns = at;
    wake_at(support, peer->next_send_ns);
}

enum shoal_err shoal_support_add(struct shoal_support *support, struct shoal_node_id node)
{
    struct peer *peer = peer_find(support, node);
    uint32_t at = place_of(support, node);

    if (shoal_node_id_equal(node, support->self))
        return SHOAL_ERR_INVALID;
    if (peer != NULL) {
        SHOAL_ASSERT(peer->known.refs > 0 && peer->known.refs < UINT32_MAX); /* each add needs one remove */
        peer->known.refs++;
        return SHOAL_OK;
    }
    if (support->peers_count == SHOAL_SUPPORT_PEERS_MAX)
        return SHOAL_ERR_FULL;
    if (support->peers_count == support->peers_cap) {
        uint32_t cap = support->peers_cap == 0 ? 8 : 2 * support->peers_cap;
        struct peer **grown = realloc(support->peers, cap * sizeof(struct peer *));

        if (grown == NULL)
            return SHOAL_ERR_FULL;
        support->peers = grown;
        support->peers_cap = cap;
    }
    peer = calloc(1, sizeof(*peer));
    if (peer == NULL)
        return SHOAL_ERR_FULL;
    peer->known.node = node;
    peer->known.refs = 1;
    peer->known.heard_ns = support->now_ns;
    peer->theirs = SUPPORT_NONE;
    peer->seq = peer->seq_echoed = support->seq_top; /* H4 */
    peer->next_send_ns = support->now_ns;
    memmove(support->peers + at + 1, support->peers + at, (support->peers_count - at) * sizeof(struct peer *));
    support->peers[at] = peer;
    SHOAL_ASSERT(at == 0 || shoal_node_id_cmp(support->peers[at - 1]->known.node, node) < 0); /* H6 */
    support->peers_count++;
    wake_at(support, support->now_ns);
    return SHOAL_OK;
}

void shoal_support_remove(struct shoal_support *support, struct shoal_node_id node)
{
    struct peer *peer = peer_find(support, node);
    uint32_t at = place_of(support, node);

    SHOAL_ASSERT(peer != NULL);         /* each add needs one remove */
    SHOAL_ASSERT(peer->known.refs > 0); /* the same */
    if (--peer->known.refs > 0)
        return;
    while (peer->theirs != SUPPORT_NONE) {
        uint32_t claim = peer->theirs;

        peer->theirs = support->claims[claim].next_in_peer;
        support_claim_free(support, claim);
    }
    peer_destroy(peer);
    support->peers_count--;
    memmove(support->peers + at, support->peers + at + 1, (support->peers_count - at) * sizeof(struct peer *));
}

/* ---- Own claims ---- */

static struct own_claim *own_find(struct peer *peer, struct shoal_job_id group)
{
    SHOAL_ASSERT(peer->own_count <= peer->own_cap); /* H5 */
    for (uint32_t i = 0; i < peer->own_count; i++) {
        if (shoal_job_id_equal(peer->own[i].group, group))
            return &peer->own[i];
    }
    return NULL;
}

static void own_changed(struct shoal_support *support, struct peer *peer)
{
    SHOAL_ASSERT(peer->own_count > 0 || peer->own_hash == 0); /* H5: the empty set */
    peer->page_next = 0;
    peer->page_end = 0;
    peer->pages_after_ns = 0;
    kick(support, peer);
}

enum shoal_err shoal_support_claim(struct shoal_support *support, struct shoal_node_id node, struct shoal_job_id group,
                                   uint64_t term)
{
    struct peer *peer = peer_find(support, node);
    struct own_claim *claim;

    if (peer == NULL)
        return SHOAL_ERR_NOT_FOUND;
    if (term == 0)
        return SHOAL_ERR_INVALID;
    claim = own_find(peer, group);
    if (claim == NULL && peer->own_count == peer->own_cap) {
        uint32_t cap = peer->own_cap == 0 ? 8 : 2 * peer->own_cap;
        struct own_claim *grown;

        if (peer->own_count == SHOAL_SUPPORT_CLAIMS_MAX)
            return SHOAL_ERR_FULL;
        grown = realloc(peer->own, cap * sizeof(*grown));
        if (grown == NULL)
            return SHOAL_ERR_FULL;
        peer->own = grown;
        peer->own_cap = cap;
    }
    if (claim != NULL && claim->term == term)
        return SHOAL_OK;
    if (claim == NULL) {
        SHOAL_ASSERT(peer->own_count < SHOAL_SUPPORT_CLAIMS_MAX);
        claim = &peer->own[peer->own_count++];
        claim->group = group;
    } else {
        peer->own_hash -= support_claim_hash(group, claim->term);
    }
    claim->term = term;
    peer->own_hash += support_claim_hash(group, term);
    own_changed(support, peer);
    return SHOAL_OK;
}

void shoal_support_unclaim(struct shoal_support *support, struct shoal_node_id node, struct shoal_job_id group)
{
    struct peer *peer = peer_find(support, node);
    struct own_claim *claim = peer == NULL ? NULL : own_find(peer, group);

    if (claim == NULL)
        return;
    SHOAL_ASSERT(claim->term > 0 && peer->own_count > 0); /* H5 */
    peer->own_hash -= support_claim_hash(group, claim->term);
    *claim = peer->own[--peer->own_count];
    own_changed(support, peer);
}

/* ---- Actions ---- */

static bool room(struct shoal_support *support, const struct shoal_support_actions *actions, uint32_t wanted)
{
    SHOAL_ASSERT(actions->count <= SHOAL_SUPPORT_ACTIONS_MAX); /* H8 */
    if (actions->count + wanted <= SHOAL_SUPPORT_ACTIONS_MAX)
        return true;
    support->more = true;
    return false;
}

static struct shoal_support_action *act(struct shoal_support_actions *actions, enum shoal_support_action_kind kind,
                                        struct shoal_node_id node)
{
    struct shoal_support_action *action;

    SHOAL_ASSERT(actions->count < SHOAL_SUPPORT_ACTIONS_MAX); /* H8 */
    SHOAL_ASSERT(!shoal_node_id_is_zero(node));
    action = &actions->list[actions->count++];
    *action = (struct shoal_support_action){ .kind = kind, .node = node };
    return action;
}

/* Tells the owner what changed among a peer's claims, as far as there is room. */
static void tell_claims(struct shoal_support *support, struct peer *peer, struct shoal_support_actions *actions)
{
    uint32_t *link = &peer->theirs;

    if (!peer->theirs_dirty)
        return;
    while (*link != SUPPORT_NONE) {
        uint32_t at = *link;
        struct their_claim *claim = &support->claims[at];
        struct shoal_support_action *action;

        SHOAL_ASSERT(claim->peer == peer); /* H7 */
        if (claim->term != claim->told) {
            if (!room(support, actions, 1))
                return;
            action = act(actions, claim->term == 0 ? SHOAL_SUPPORT_UNCLAIM : SHOAL_SUPPORT_CLAIM, peer->known.node);
            action->group = claim->group;
            action->term = claim->term == 0 ? claim->told : claim->term;
            claim->told = claim->term;
        }
        if (claim->term != 0) {
            link = &claim->next_in_peer;
            continue;
        }
        SHOAL_ASSERT(claim->told == 0); /* H7: nobody counts on it any more */
        *link = claim->next_in_peer;
        support_claim_free(support, at);
    }
    peer->theirs_dirty = false;
}

/* ---- Edges ----
 *
 *     none --a heartbeat of a healthy peer---> supporting --no other for support_ns, a refusal, a new life--> none
 *     none --an echo that is young enough----> supported  --support_ns after its sending, a new life--------> none */

static void begin_supporting(struct shoal_support *support, struct peer *peer, struct shoal_support_actions *actions)
{
    SHOAL_ASSERT(!peer->known.supporting);                           /* H9 */
    SHOAL_ASSERT(peer->known.supporting_until_ns > support->now_ns); /* H1 */
    peer->known.supporting = true;
    (void)act(actions, SHOAL_SUPPORT_SUPPORTING, peer->known.node);
}

static void begin_supported(struct shoal_support *support, struct peer *peer, struct shoal_support_actions *actions)
{
    SHOAL_ASSERT(!peer->known.supported);                                                  /* H9 */
    SHOAL_ASSERT(peer->known.supported_until_ns > support->now_ns);                        /* H1 */
    SHOAL_ASSERT(peer->known.supported_until_ns <= support->now_ns + support->support_ns); /* H1: from its sending */
    peer->known.supported = true;
    act(actions, SHOAL_SUPPORT_SUPPORTED, peer->known.node)->until_ns = peer->known.supported_until_ns;
}

static void end_supporting(struct peer *peer, struct shoal_support_actions *actions)
{
    peer->known.supporting_until_ns = 0;
    if (!peer->known.supporting)
        return;
    peer->known.supporting = false;
    (void)act(actions, SHOAL_SUPPORT_SUPPORTING_LOST, peer->known.node);
    SHOAL_ASSERT(peer->known.supporting_until_ns == 0); /* H9 */
}

static void end_supported(struct peer *peer, struct shoal_support_actions *actions)
{
    peer->known.supported_until_ns = 0;
    if (!peer->known.supported)
        return;
    peer->known.supported = false;
    (void)act(actions, SHOAL_SUPPORT_LOST, peer->known.node);
    SHOAL_ASSERT(peer->known.supported_until_ns == 0); /* H9 */
}

/* ---- Receiving ---- */

struct heartbeat {
    struct shoal_incarnation from;
    struct shoal_incarnation to;
    uint64_t seq;
    uint64_t support_seq;
    uint64_t loop_lag_ns;
    uint64_t flush_age_ns;
    uint64_t claims_hash;
    uint64_t have_hash;
    uint64_t slot_stamp;
    uint8_t flags;
    uint8_t count;
    struct own_claim claims[SHOAL_SUPPORT_INLINE_CLAIMS_MAX];
};

static struct shoal_incarnation get_life(struct shoal_reader *r)
{
    struct shoal_incarnation life = { 0 };

    life.host_epoch = shoal_get_u32(r);
    life.agent = shoal_get_u32(r);
    return life;
}

static void put_life(struct shoal_writer *w, struct shoal_incarnation life)
{
    SHOAL_ASSERT(life.refutation == 0); /* H2: refutations are gossip's */
    shoal_put_u32(w, life.host_epoch);
    shoal_put_u32(w, life.agent);
}

static bool life_is_zero(struct shoal_incarnation life) { return life.host_epoch == 0 && life.agent == 0; }

static enum shoal_err heartbeat_decode(struct shoal_reader *r, struct heartbeat *beat)
{
    beat->from = get_life(r);
    beat->to = get_life(r);
    beat->seq = shoal_get_u64(r);
    beat->support_seq = shoal_get_u64(r);
    beat->loop_lag_ns = 1000ull * shoal_get_u32(r);
    beat->flush_age_ns = 1000ull * shoal_get_u32(r);
    beat->claims_hash = shoal_get_u64(r);
    beat->have_hash = shoal_get_u64(r);
    beat->slot_stamp = shoal_get_u64(r);
    beat->flags = shoal_get_u8(r);
    beat->count = shoal_get_u8(r);
    if (r->failed || beat->count > SHOAL_SUPPORT_INLINE_CLAIMS_MAX || beat->seq == 0 || life_is_zero(beat->from) ||
        (beat->flags & ~(SUPPORT_FLAG_QUORUM | SUPPORT_FLAG_WHOLE | SUPPORT_FLAG_URGENT)) != 0)
        return SHOAL_ERR_MALFORMED;
    for (uint32_t i = 0; i < beat->count; i++) {
        beat->claims[i].group = shoal_get_job_id(r);
        beat->claims[i].term = shoal_get_u64(r);
        if (beat->claims[i].term == 0)
            return SHOAL_ERR_MALFORMED;
    }
    return shoal_reader_done(r) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

/* A new life of the peer: it has forgotten what it promised, and leads nothing that it led. */
static void peer_restarted(struct shoal_support *support, struct peer *peer, struct shoal_incarnation life,
                           struct shoal_support_actions *actions)
{
    bool known = !life_is_zero(peer->known.incarnation);

    SHOAL_ASSERT(shoal_incarnation_cmp(life, peer->known.incarnation) > 0); /* H2: lives only rise */
    peer->known.incarnation = life;
    peer->seq_seen = 0;
    peer->support_seq = 0;
    peer->have_known = false;
    if (!known)
        return;
    /* Sequences sent to its former life are void: none of them may be echoed (H2). */
    peer->seq_echoed = peer->seq;
    end_supporting(peer, actions);
    end_supported(peer, actions);
    support_claims_void(support, peer);
    SHOAL_ASSERT(!peer->known.supporting && !peer->known.supported); /* H2 */
    peer->known.slot_stamp = 0;
    (void)act(actions, SHOAL_SUPPORT_PEER_RESTARTED, peer->known.node);
}

static void take_support(struct shoal_support *support, struct peer *peer, const struct heartbeat *beat,
                         struct shoal_support_actions *actions)
{
    if (beat->flush_age_ns > support->flush_age_max_ns || beat->loop_lag_ns > support->loop_lag_max_ns ||
        peer->unanswered) {
        support->stats.withheld++; /* H3: what it has runs out by itself */
        return;
    }
    SHOAL_ASSERT(beat->seq > peer->support_seq); /* H4: on_heartbeat dropped what is not newer */
    peer->support_seq = beat->seq;
    peer->known.supporting_until_ns = support->now_ns + support->support_ns;
    wake_at(support, peer->known.supporting_until_ns);
    if (peer->known.supporting)
        return;
    begin_supporting(support, peer, actions);
    kick(support, peer); /* it waits for the echo */
}

static void take_echo(struct shoal_support *support, struct peer *peer, const struct heartbeat *beat,
                      struct shoal_support_actions *actions)
{
    uint64_t sent;

    if (shoal_incarnation_cmp(beat->to, support->incarnation) != 0 || beat->support_seq <= peer->seq_echoed ||
        beat->support_seq > peer->seq || peer->seq - beat->support_seq >= SUPPORT_SENT_MAX)
        return;
    sent = peer->sent_at_ns[beat->support_seq % SUPPORT_SENT_MAX];
    SHOAL_ASSERT(sent <= support->now_ns); /* H1 */
    peer->seq_echoed = beat->support_seq;
    peer->known.rtt_ns = support->now_ns - sent;
    peer->known.supported_until_ns = sent + support->support_ns; /* H1 */
    if (peer->known.supported_until_ns <= support->now_ns)
        return;
    wake_at(support, peer->known.supported_until_ns);
    if (!peer->known.supported)
        begin_supported(support, peer, actions);
}

static void take_claims(struct shoal_support *support, struct peer *peer, const struct own_claim *claims,
                        uint32_t count, uint64_t version)
{
    for (uint32_t i = 0; i < count; i++) {
        struct their_claim *claim = support_claim_find(support, peer, claims[i].group);

        if (claim == NULL)
            claim = support_claim_make(support, peer, claims[i].group);
        if (claim == NULL)
            continue;                     /* counted; the hashes go on differing */
        SHOAL_ASSERT(claims[i].term > 0); /* the decoder refuses others */
        claim->version = version;
        support_claim_set(peer, claim, claims[i].term);
    }
}

/* H10. True: more than half of the peers that are heard, this one among them, say the same again and again. */
static bool hear_later_life(struct shoal_support *support, struct peer *peer)
{
    uint32_t heard = 0, say = 0;

    if (peer->later_beats < SUPPORT_LATER_BEATS)
        peer->later_beats++;
    peer->later_ns = support->now_ns;
    for (uint32_t i = 0; i < support->peers_count; i++) {
        const struct peer *one = support->peers[i];
        bool says = one->later_beats > 0 && support->now_ns - one->later_ns < support->support_ns;

        heard += says || !one->known.silent ? 1 : 0;
        say += says && one->later_beats == SUPPORT_LATER_BEATS ? 1 : 0;
    }
    return 2 * say > heard;
}

static void on_heartbeat(struct shoal_support *support, struct peer *peer, const struct heartbeat *beat,
                         struct shoal_support_actions *actions)
{
    int order = shoal_incarnation_cmp(beat->from, peer->known.incarnation);

    if (shoal_incarnation_cmp(beat->to, support->incarnation) > 0) {
        if (hear_later_life(support, peer))
            (void)act(actions, SHOAL_SUPPORT_ROLLED_BACK, peer->known.node);
        else
            support->stats.dropped_stale++;
        return;
    }
    if (order < 0 || (order == 0 && beat->seq <= peer->seq_seen)) {
        support->stats.dropped_stale++; /* H4 */
        return;
    }
    if (order > 0)
        peer_restarted(support, peer, beat->from, actions);
    peer->later_beats = 0;
    SHOAL_ASSERT(beat->seq > peer->seq_seen);                                      /* H4 */
    SHOAL_ASSERT(shoal_incarnation_cmp(beat->from, peer->known.incarnation) == 0); /* H2 */
    peer->seq_seen = beat->seq;
    peer->known.heard_ns = support->now_ns;
    peer->known.quorum_connected = (beat->flags & SUPPORT_FLAG_QUORUM) != 0;
    peer->known.loop_lag_ns = beat->loop_lag_ns;
    peer->known.flush_age_ns = beat->flush_age_ns;
    if (beat->slot_stamp >= peer->known.slot_stamp) {
        peer->known.slot_stamp = beat->slot_stamp;
        peer->known.slot_stamp_heard_ns = support->now_ns;
    }
    if (peer->known.silent) {
        peer->known.silent = false;
        (void)act(actions, SHOAL_SUPPORT_PEER_HEARD, peer->known.node);
    }
    wake_at(support, support->now_ns + support->silent_ns);
    take_support(support, peer, beat, actions);
    take_echo(support, peer, beat, actions);
    peer->have_hash = beat->have_hash;
    peer->have_known = true;
    if ((beat->flags & SUPPORT_FLAG_URGENT) ||
        (beat->have_hash != peer->own_hash && support->now_ns >= peer->pages_after_ns))
        kick(support, peer);
    if ((beat->flags & SUPPORT_FLAG_WHOLE) && beat->claims_hash != peer->theirs_hash) {
        take_claims(support, peer, beat->claims, beat->count, beat->claims_hash);
        support_claims_sweep(support, peer, beat->claims_hash);
        kick(support, peer); /* it sends them until it sees that they arrived */
    }
}

static enum shoal_err on_page(struct shoal_support *support, struct peer *peer, struct shoal_reader *r)
{
    struct shoal_incarnation from = get_life(r);
    uint64_t version = shoal_get_u64(r);
    uint32_t page = shoal_get_u16(r);
    uint32_t pages = shoal_get_u16(r);
    uint32_t count = shoal_get_u8(r);
    struct own_claim claims[SUPPORT_PAGE_CLAIMS];

    if (r->failed || count > SUPPORT_PAGE_CLAIMS || pages > SUPPORT_PAGES_MAX || page >= pages)
        return SHOAL_ERR_MALFORMED;
    for (uint32_t i = 0; i < count; i++) {
        claims[i].group = shoal_get_job_id(r);
        claims[i].term = shoal_get_u64(r);
        if (claims[i].term == 0)
            return SHOAL_ERR_MALFORMED;
    }
    if (!shoal_reader_done(r))
        return SHOAL_ERR_MALFORMED;
    if (shoal_incarnation_cmp(from, peer->known.incarnation) != 0) {
        support->stats.dropped_stale++;
        return SHOAL_OK;
    }
    if (version == peer->theirs_hash)
        return SHOAL_OK;
    if (version != peer->pages_version || pages != peer->pages_count) {
        memset(peer->pages_got, 0, sizeof(peer->pages_got));
        peer->pages_version = version;
        peer->pages_count = pages;
    }
    take_claims(support, peer, claims, count, version);
    SHOAL_ASSERT(page < peer->pages_count && pages <= SUPPORT_PAGES_MAX);
    peer->pages_got[page / 64] |= 1ull << page % 64;
    for (uint32_t i = 0; i < pages; i++) {
        if (!(peer->pages_got[i / 64] >> i % 64 & 1))
            return SHOAL_OK;
    }
    support_claims_sweep(support, peer, version);
    peer->pages_version = 0;
    peer->pages_count = 0;
    kick(support, peer);
    return SHOAL_OK;
}

static enum shoal_err on_datagram(struct shoal_support *support, const struct shoal_support_event *event,
                                  struct shoal_support_actions *actions)
{
    struct shoal_reader r = shoal_reader_init(event->bytes);
    uint8_t kind = shoal_get_u8(&r);
    struct peer *peer = peer_find(support, event->node);
    struct heartbeat beat;
    enum shoal_err err = SHOAL_ERR_MALFORMED;

    (void)shoal_get_u8(&r);
    if (shoal_get_u8(&r) > SUPPORT_VERSION || r.failed) {
        support->stats.dropped_malformed++;
        return SHOAL_ERR_MALFORMED;
    }
    if (peer == NULL) {
        support->stats.dropped_unknown++;
        return SHOAL_OK;
    }
    support->stats.received++;
    if (kind == SUPPORT_HEARTBEAT) {
        err = heartbeat_decode(&r, &beat);
        if (err == SHOAL_OK)
            on_heartbeat(support, peer, &beat, actions);
    } else if (kind == SUPPORT_PAGE) {
        err = on_page(support, peer, &r);
    }
    if (err != SHOAL_OK)
        support->stats.dropped_malformed++;
    tell_claims(support, peer, actions);
    return err;
}

/* ---- Sending ---- */

static struct shoal_writer pool_writer(struct shoal_support_actions *actions)
{
    SHOAL_ASSERT(sizeof(actions->pool) - actions->used >= SHOAL_DATAGRAM_PAYLOAD_MAX); /* H8: pool_room came before */
    return shoal_writer_init(actions->pool + actions->used, SHOAL_DATAGRAM_PAYLOAD_MAX);
}

static bool pool_room(struct shoal_support *support, const struct shoal_support_actions *actions)
{
    SHOAL_ASSERT(actions->used <= sizeof(actions->pool)); /* H8 */
    if (sizeof(actions->pool) - actions->used >= SHOAL_DATAGRAM_PAYLOAD_MAX && room(support, actions, 1))
        return true;
    support->more = true;
    return false;
}

static void pool_send(struct shoal_support *support, struct peer *peer, struct shoal_writer *w,
                      struct shoal_support_actions *actions)
{
    SHOAL_ASSERT(!w->failed); /* a heartbeat, and a page, fit a datagram */
    act(actions, SHOAL_SUPPORT_SEND, peer->known.node)->bytes = shoal_writer_view(w);
    actions->used += (uint32_t)w->len;
    support->stats.sent++;
}

static void put_claims(struct shoal_writer *w, const struct own_claim *claims, uint32_t count)
{
    SHOAL_ASSERT(count <= SUPPORT_PAGE_CLAIMS); /* what a page takes, and its decoder */
    shoal_put_u8(w, (uint8_t)count);
    for (uint32_t i = 0; i < count; i++) {
        SHOAL_ASSERT(claims[i].term > 0); /* 0 would be malformed there */
        shoal_put_job_id(w, claims[i].group);
        shoal_put_u64(w, claims[i].term);
    }
}

static uint32_t micros(uint64_t ns) { return ns / 1000 > UINT32_MAX ? UINT32_MAX : (uint32_t)(ns / 1000); }

static void send_heartbeat(struct shoal_support *support, struct peer *peer, struct shoal_support_actions *actions)
{
    struct shoal_writer w = pool_writer(actions);
    bool differs = !peer->have_known || peer->have_hash != peer->own_hash;
    /* Half used up: datagrams were lost. Ask twice as often, and to be answered at once. */
    bool urgent = peer->known.supported && peer->known.supported_until_ns - support->now_ns < support->support_ns / 2;
    bool whole = differs && peer->own_count <= SHOAL_SUPPORT_INLINE_CLAIMS_MAX;

    SHOAL_ASSERT(!whole || peer->own_count <= SHOAL_SUPPORT_INLINE_CLAIMS_MAX);
    SHOAL_ASSERT(peer->seq_echoed <= peer->seq); /* H4 */
    peer->seq++;
    if (peer->seq > support->seq_top)
        support->seq_top = peer->seq;
    peer->sent_at_ns[peer->seq % SUPPORT_SENT_MAX] = support->now_ns;
    shoal_put_u8(&w, SUPPORT_HEARTBEAT);
    shoal_put_u8(&w, SUPPORT_VERSION);
    shoal_put_u8(&w, SUPPORT_VERSION);
    put_life(&w, support->incarnation);
    put_life(&w, peer->known.incarnation);
    shoal_put_u64(&w, peer->seq);
    shoal_put_u64(&w, peer->support_seq);
    shoal_put_u32(&w, micros(support->health.loop_lag_ns));
    shoal_put_u32(&w, micros(support->health.flush_age_ns));
    shoal_put_u64(&w, peer->own_hash);
    shoal_put_u64(&w, peer->theirs_hash);
    shoal_put_u64(&w, support->health.slot_stamp);
    shoal_put_u8(&w, (uint8_t)((support->health.quorum_connected ? SUPPORT_FLAG_QUORUM : 0) |
                               (whole ? SUPPORT_FLAG_WHOLE : 0) | (urgent ? SUPPORT_FLAG_URGENT : 0)));
    put_claims(&w, peer->own, whole ? peer->own_count : 0);
    pool_send(support, peer, &w, actions);
    peer->last_send_ns = support->now_ns;
    peer->next_send_ns = support->now_ns + (urgent ? support->interval_ns / 2 : support->interval_ns);
    /* Sent at most once an interval, so that two that cannot agree do not talk all the time. */
    if (!differs || support->now_ns < peer->pages_after_ns)
        return;
    peer->pages_after_ns = support->now_ns + support->interval_ns;
    if (whole || !peer->have_known)
        return;
    peer->page_next = 0;
    peer->page_end = (peer->own_count + SUPPORT_PAGE_CLAIMS - 1) / SUPPORT_PAGE_CLAIMS;
}

/* All pages of one set are sent before the set can change: a change starts again (own_changed). */
static void send_pages(struct shoal_support *support, struct peer *peer, struct shoal_support_actions *actions)
{
    SHOAL_ASSERT(peer->page_end <= SUPPORT_PAGES_MAX); /* H5 */
    while (peer->page_next < peer->page_end && pool_room(support, actions)) {
        struct shoal_writer w = pool_writer(actions);
        uint32_t first = peer->page_next * SUPPORT_PAGE_CLAIMS;
        uint32_t count = peer->own_count - first < SUPPORT_PAGE_CLAIMS ? peer->own_count - first : SUPPORT_PAGE_CLAIMS;

        SHOAL_ASSERT(first < peer->own_count); /* H5: a set that changed begins again */
        shoal_put_u8(&w, SUPPORT_PAGE);
        shoal_put_u8(&w, SUPPORT_VERSION);
        shoal_put_u8(&w, SUPPORT_VERSION);
        put_life(&w, support->incarnation);
        shoal_put_u64(&w, peer->own_hash);
        shoal_put_u16(&w, (uint16_t)peer->page_next);
        shoal_put_u16(&w, (uint16_t)peer->page_end);
        put_claims(&w, peer->own + first, count);
        pool_send(support, peer, &w, actions);
        peer->page_next++;
    }
}

/* ---- Time ---- */

static void expire(struct shoal_support *support, struct peer *peer, struct shoal_support_actions *actions)
{
    if (peer->known.supporting && support->now_ns >= peer->known.supporting_until_ns)
        end_supporting(peer, actions);
    if (peer->known.supported && support->now_ns >= peer->known.supported_until_ns)
        end_supported(peer, actions);
    if (!peer->known.silent && support->now_ns >= peer->known.heard_ns + support->silent_ns) {
        peer->known.silent = true;
        (void)act(actions, SHOAL_SUPPORT_PEER_SILENT, peer->known.node);
    }
    SHOAL_ASSERT(!peer->known.supported || support->now_ns < peer->known.supported_until_ns);   /* H1 */
    SHOAL_ASSERT(!peer->known.supporting || support->now_ns < peer->known.supporting_until_ns); /* H1 */
}

static uint64_t peer_deadline(const struct shoal_support *support, const struct peer *peer)
{
    uint64_t deadline_ns = peer->next_send_ns;

    if (peer->known.supporting && peer->known.supporting_until_ns < deadline_ns)
        deadline_ns = peer->known.supporting_until_ns;
    if (peer->known.supported && peer->known.supported_until_ns < deadline_ns)
        deadline_ns = peer->known.supported_until_ns;
    if (!peer->known.silent && peer->known.heard_ns + support->silent_ns < deadline_ns)
        deadline_ns = peer->known.heard_ns + support->silent_ns;
    return deadline_ns;
}

static void on_timer(struct shoal_support *support, struct shoal_support_actions *actions)
{
    /* Losses first, of all peers: no leader may act on support that has run out. */
    for (uint32_t i = 0; i < support->peers_count; i++) {
        if (support->now_ns < peer_deadline(support, support->peers[i]) || !room(support, actions, 4))
            continue;
        expire(support, support->peers[i], actions);
    }
    for (uint32_t n = 0; n < support->peers_count && !support->more; n++) {
        struct peer *peer = support->peers[(support->send_turn + n) % support->peers_count];

        tell_claims(support, peer, actions);
        if (support->now_ns >= peer->next_send_ns && pool_room(support, actions))
            send_heartbeat(support, peer, actions);
        send_pages(support, peer, actions);
        if (support->more)
            support->send_turn = (support->send_turn + n) % support->peers_count;
    }
    support->deadline_ns = UINT64_MAX;
    for (uint32_t i = 0; i < support->peers_count; i++)
        wake_at(support, peer_deadline(support, support->peers[i]));
}

enum shoal_err shoal_support_step(struct shoal_support *support, const struct shoal_support_event *event,
                                  uint64_t now_ns, struct shoal_support_actions *actions)
{
    struct peer *peer;
    enum shoal_err err = SHOAL_OK;

    SHOAL_ASSERT(support->peers_count <= support->peers_cap); /* H6 */
    actions->count = 0;
    actions->used = 0;
    if (now_ns > support->now_ns)
        support->now_ns = now_ns;
    switch (event->kind) {
    case SHOAL_SUPPORT_EVENT_TIMER:
        support->more = false;
        support->health = event->health;
        on_timer(support, actions);
        break;
    case SHOAL_SUPPORT_EVENT_DATAGRAM: err = on_datagram(support, event, actions); break;
    case SHOAL_SUPPORT_EVENT_REFUSED:
        peer = peer_find(support, event->node);
        if (peer != NULL)
            end_supporting(peer, actions);
        break;
    }
    SHOAL_ASSERT(actions->count <= SHOAL_SUPPORT_ACTIONS_MAX); /* H8 */
    return err;
}

uint64_t shoal_support_deadline_ns(const struct shoal_support *support)
{
    return support->more ? support->now_ns : support->deadline_ns;
}

/* ---- Looking inside ---- */

const struct shoal_support_peer *shoal_support_find(const struct shoal_support *support, struct shoal_node_id node)
{
    const struct peer *peer = peer_find(support, node);

    return peer == NULL ? NULL : &peer->known;
}

size_t shoal_support_count(const struct shoal_support *support) { return support->peers_count; }

const struct shoal_support_peer *shoal_support_at(const struct shoal_support *support, size_t i)
{
    SHOAL_ASSERT(i < support->peers_count); /* the caller counts with shoal_support_count */
    return &support->peers[i]->known;
}

bool shoal_support_claims_any(const struct shoal_support *support, size_t i)
{
    SHOAL_ASSERT(i < support->peers_count); /* the caller counts with shoal_support_count */
    return support->peers[i]->theirs != SUPPORT_NONE;
}

void shoal_support_unanswered(struct shoal_support *support, struct shoal_node_id node, bool unanswered)
{
    struct peer *peer = peer_find(support, node);

    SHOAL_ASSERT(peer != NULL); /* the owner asks peers of interest only */
    peer->unanswered = unanswered;
}

uint64_t shoal_support_claimed(const struct shoal_support *support, struct shoal_node_id node,
                               struct shoal_job_id group)
{
    const struct peer *peer = peer_find(support, node);
    const struct their_claim *claim = peer == NULL ? NULL : support_claim_find(support, peer, group);

    return claim == NULL ? 0 : claim->term;
}

bool shoal_support_claimant(const struct shoal_support *support, struct shoal_job_id group, struct shoal_node_id *node,
                            uint64_t *term)
{
    const struct their_claim *best = NULL;

    for (uint32_t at = support->buckets[support_claim_bucket(group)]; at != SUPPORT_NONE;
         at = support->claims[at].next_in_bucket) {
        const struct their_claim *claim = &support->claims[at];

        SHOAL_ASSERT(claim->peer != NULL); /* H7 */
        if (claim->term != 0 && shoal_job_id_equal(claim->group, group) && (best == NULL || claim->term > best->term))
            best = claim;
    }
    if (best == NULL)
        return false;
    *node = best->peer->known.node;
    *term = best->term;
    return true;
}

void shoal_support_memory(struct shoal_memory *memory)
{
    SHOAL_ASSERT(SUPPORT_THEIRS_MAX >= SHOAL_GROUPS_MAX); /* a group has one leader */
    shoal_memory_add(memory, "support: the core", 1, sizeof(struct shoal_support));
    shoal_memory_add(memory, "support: peers of interest", SHOAL_SUPPORT_PEERS_MAX,
                     sizeof(struct peer) + sizeof(void *));
    shoal_memory_add(memory, "support: own claims towards them",
                     (uint64_t)SHOAL_SUPPORT_PEERS_MAX * SHOAL_SUPPORT_CLAIMS_MAX, sizeof(struct own_claim));
    shoal_memory_add(memory, "support: claims of theirs", SUPPORT_THEIRS_MAX, sizeof(struct their_claim));
}

void shoal_support_check(const struct shoal_support *support)
{
    for (uint32_t i = 0; i < support->peers_count; i++) {
        const struct peer *peer = support->peers[i];
        uint64_t own = 0;
        uint64_t theirs = 0;

        SHOAL_ASSERT(peer->known.refs > 0);
        SHOAL_ASSERT(!shoal_node_id_equal(peer->known.node, support->self));                                /* H6 */
        SHOAL_ASSERT(i == 0 || shoal_node_id_cmp(support->peers[i - 1]->known.node, peer->known.node) < 0); /* H6 */
        for (uint32_t n = 0; n < peer->own_count; n++)
            own += support_claim_hash(peer->own[n].group, peer->own[n].term);
        for (uint32_t at = peer->theirs; at != SUPPORT_NONE; at = support->claims[at].next_in_peer) {
            const struct their_claim *claim = &support->claims[at];

            SHOAL_ASSERT(support_claim_find(support, peer, claim->group) == claim); /* H7 */
            theirs += claim->term == 0 ? 0 : support_claim_hash(claim->group, claim->term);
            SHOAL_ASSERT(claim->term == claim->told || peer->theirs_dirty); /* H7 */
        }
        SHOAL_ASSERT(own == peer->own_hash);                                            /* H5 */
        SHOAL_ASSERT(theirs == peer->theirs_hash);                                      /* H5 */
        SHOAL_ASSERT(peer->known.supporting == (peer->known.supporting_until_ns != 0)); /* H9 */
    }
}

void shoal_support_stats(const struct shoal_support *support, struct shoal_support_stats *stats)
{
    *stats = support->stats;
}
