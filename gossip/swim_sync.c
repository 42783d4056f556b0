/* Anti-entropy: two nodes find what differs and send only that.
 *
 *   a --ROOT (a hash of all members, one of all records)--> b
 *   a <--SAME---------------------------------------------- b      equal: done
 *   a <--BUCKETS (256 hashes)------------------------------ b      for each domain that differs
 *   a --DIGEST (names and tags of the buckets that differ)-> b
 *   a <--ITEMS (what a lacks or has otherwise)------------- b
 *   a <--WANT (what b lacks or has otherwise)-------------- b
 *   a --ITEMS---------------------------------------------> b
 *   a --ROOT ...                                                   again, until equal or until a round moved nothing
 *
 * S1. The answering side keeps nothing between datagrams; every loss is repaired by the next round.
 * S2. A step sends a bounded number of datagrams; what did not fit comes in the next round.
 * S3. A session ends: equal, no progress, no answer three times, or too many rounds.
 * S4. Nothing here decides: items are news like any other (swim_members.c, records.c) and their rules hold.
 *
 * A range is all names whose hash begins with the same `bits` bits; a bucket is a range of 8 bits.
 * Source: reference/control-plane 1.7; memberlist's full push/pull, and why not (memberlist #253, moby #41416). */
#include "swim_state.h"

#include <string.h>

#include "shoal/banned.h"

#define QUIET_NS (40 * SHOAL_MS)   /* a round is over when nothing came for so long */
#define SILENT_NS (300 * SHOAL_MS) /* no answer at all */
#define SILENT_MAX 3
#define STUCK_MAX 2 /* rounds in a row without any progress: a loss, or a difference that only time ends */
#define ROUNDS_MAX 400
#define DIGESTS_MAX 4      /* datagrams per domain and round */
#define RANGE_ITEMS_MAX 64 /* a longer range is split */
#define DIGEST_RANGES_MAX 64
#define ITEMS_MAX 8 /* datagrams in answer to one */
#define RANGE_HEAD_BYTES 4
#define RANGE_ITEM_BYTES 12
#define WANT_MAX 128

_Static_assert(SWIM_HEAD_BYTES + 5 + RANGE_HEAD_BYTES + RANGE_ITEMS_MAX * RANGE_ITEM_BYTES <=
                   SHOAL_DATAGRAM_PAYLOAD_MAX,
               "one range fits one datagram");
_Static_assert(SWIM_HEAD_BYTES + 5 + WANT_MAX * 8 <= SHOAL_DATAGRAM_PAYLOAD_MAX, "the wants fit one datagram");
_Static_assert(2 * DIGESTS_MAX < SHOAL_SWIM_SENDS_MAX && ITEMS_MAX + 1 < SHOAL_SWIM_SENDS_MAX, "S2");

/* ---- both domains alike --------------------------------------------------------------------------------------- */

static struct swim_chains *chains_of(struct shoal_swim *swim, enum swim_domain domain)
{
    return domain == SWIM_DOMAIN_MEMBERS ? &swim->member_chains : &swim->record_chains;
}

static uint64_t item_hash(const struct shoal_swim *swim, enum swim_domain domain, uint32_t at)
{
    return domain == SWIM_DOMAIN_MEMBERS ? swim_id_hash(swim_id_of(swim, at)) : swim_record_hash(swim, at);
}

static uint32_t item_tag(const struct shoal_swim *swim, enum swim_domain domain, uint32_t at)
{
    return (uint32_t)(domain == SWIM_DOMAIN_MEMBERS ? swim_member_sum(swim, at) : swim_record_sum(swim, at));
}

static bool item_faded(const struct shoal_swim *swim, enum swim_domain domain, uint32_t at)
{
    return domain == SWIM_DOMAIN_MEMBERS ? (swim->members[at].flags & MEMBER_FADED) != 0 : swim->records[at].faded;
}

/* Walks the items whose hash begins with `prefix` of `bits` bits, faded ones left out. */
struct walk {
    enum swim_domain domain;
    uint64_t first, last; /* hashes */
    uint64_t chain, chain_last;
    uint32_t at;
};

static struct walk walk_init(struct shoal_swim *swim, enum swim_domain domain, unsigned bits, uint64_t prefix)
{
    const struct swim_chains *chains = chains_of(swim, domain);
    struct walk walk = { .domain = domain, .first = prefix << (64 - bits) };

    SHOAL_ASSERT(bits >= 8 && bits <= 24); /* a range is whole chains, or part of one */
    SHOAL_ASSERT(prefix >> bits == 0);
    walk.last = walk.first | (UINT64_MAX >> bits);
    walk.chain = walk.first >> (64 - chains->bits);
    walk.chain_last = walk.last >> (64 - chains->bits);
    walk.at = chains->heads[walk.chain];
    return walk;
}

static uint32_t walk_next(struct shoal_swim *swim, struct walk *walk, uint64_t *hash)
{
    SHOAL_ASSERT(walk->chain <= walk->chain_last);
    for (;;) {
        uint32_t at = walk->at;

        if (at == SWIM_NONE) {
            if (walk->chain == walk->chain_last)
                return SWIM_NONE;
            walk->at = chains_of(swim, walk->domain)->heads[++walk->chain];
            continue;
        }
        walk->at = walk->domain == SWIM_DOMAIN_MEMBERS ? swim->members[at].next : swim->records[at].next;
        *hash = item_hash(swim, walk->domain, at);
        if (*hash >= walk->first && *hash <= walk->last && !item_faded(swim, walk->domain, at))
            return at;
    }
}

static uint32_t walk_count(struct shoal_swim *swim, enum swim_domain domain, unsigned bits, uint64_t prefix)
{
    struct walk walk = walk_init(swim, domain, bits, prefix);
    uint32_t count = 0;
    uint64_t hash;

    while (walk_next(swim, &walk, &hash) != SWIM_NONE)
        count++;
    return count;
}

/* ---- the asking side ------------------------------------------------------------------------------------------ */

static void send_root(struct shoal_swim *swim, struct shoal_swim_actions *actions)
{
    struct swim_session *s = &swim->session;
    struct swim_out out;

    for (unsigned d = 0; d < SWIM_DOMAINS; d++)
        s->ours[d] = swim_chains_root(chains_of(swim, (enum swim_domain)d));
    s->deadline_ns = swim->now_ns + SILENT_NS;
    s->moved = false;
    s->waiting = true;
    SHOAL_ASSERT(s->open && s->rounds <= ROUNDS_MAX); /* S3 */
    swim->stats.sync_rounds++;
    if (!swim_out_to(swim, actions, &out, SWIM_ROOT, s->peer))
        return;
    shoal_put_u32(&out.w, s->id);
    shoal_put_u64(&out.w, s->ours[SWIM_DOMAIN_MEMBERS]);
    shoal_put_u64(&out.w, s->ours[SWIM_DOMAIN_RECORDS]);
    swim_out_end(swim, &out);
}

void swim_sync_start(struct shoal_swim *swim, struct shoal_swim_actions *actions, uint32_t member)
{
    uint32_t id = swim->session.id + 1;

    if (swim->session.open || swim->leaving || !swim_member_is_live(swim, member))
        return;
    SHOAL_ASSERT(member != SWIM_SELF); /* with somebody else */
    swim->session = (struct swim_session){ .open = true, .id = id, .peer = member };
    send_root(swim, actions);
}

/* A round went quiet: again while something moves here or there. */
static void round_over(struct shoal_swim *swim, struct shoal_swim_actions *actions)
{
    struct swim_session *s = &swim->session;

    SHOAL_ASSERT(s->open && !s->waiting); /* S3: something came */
    for (unsigned d = 0; d < SWIM_DOMAINS; d++)
        if (s->ours[d] != swim_chains_root(chains_of(swim, (enum swim_domain)d)))
            s->moved = true;
    s->stuck = s->moved ? 0 : s->stuck + 1;
    if (s->stuck > STUCK_MAX || ++s->rounds == ROUNDS_MAX)
        s->open = false;
    else
        send_root(swim, actions);
}

static void session_timer(struct shoal_swim *swim, struct shoal_swim_actions *actions)
{
    struct swim_session *s = &swim->session;

    SHOAL_ASSERT(s->open && s->silent < SILENT_MAX); /* S3 */
    if (!swim_member_is_live(swim, s->peer) || swim->leaving) {
        s->open = false;
    } else if (!s->waiting) {
        round_over(swim, actions);
    } else if (++s->silent < SILENT_MAX) {
        send_root(swim, actions);
    } else {
        s->open = false;
        if (swim->sync_ns > swim->now_ns + SHOAL_S)
            swim->sync_ns = swim->now_ns + SHOAL_S; /* with somebody else */
    }
}

void swim_sync_timer(struct shoal_swim *swim, struct shoal_swim_actions *actions)
{
    uint32_t peer;

    if (swim->session.open && swim->now_ns >= swim->session.deadline_ns)
        session_timer(swim, actions);
    if (swim->now_ns < swim->sync_ns)
        return;
    /* A newcomer asks sooner and then less and less: what was told while it was being introduced, it missed. A tenth of
     * chance keeps a mesh that started together from speaking together. */
    swim->sync_ns =
        swim->now_ns + swim->sync_wait_ns * 19 / 20 + shoal_rand_below(&swim->chance, swim->sync_wait_ns / 10 + 1);
    swim->sync_wait_ns *= 2;
    if (swim->sync_wait_ns > swim->opt.sync_interval_ns)
        swim->sync_wait_ns = swim->opt.sync_interval_ns;
    SHOAL_ASSERT(swim->sync_wait_ns > 0 && swim->sync_wait_ns <= swim->opt.sync_interval_ns);
    if (swim_order_pick(swim, 1, SWIM_NONE, &peer) == 1)
        swim_sync_start(swim, actions, peer);
}

/* Ranges small enough for one datagram each, out of one bucket that differs. */
static void digest_range(struct shoal_swim *swim, struct swim_out *out, enum swim_domain domain, unsigned bits,
                         uint64_t prefix, uint32_t count)
{
    struct walk walk = walk_init(swim, domain, bits, prefix);
    uint32_t at;
    uint64_t hash;

    SHOAL_ASSERT(bits >= 8 && bits <= 16 && count <= RANGE_ITEMS_MAX); /* what hear_digest takes */
    shoal_put_u8(&out->w, (uint8_t)bits);
    shoal_put_u16(&out->w, (uint16_t)prefix);
    shoal_put_u8(&out->w, (uint8_t)count);
    while ((at = walk_next(swim, &walk, &hash)) != SWIM_NONE) {
        shoal_put_u64(&out->w, hash);
        shoal_put_u32(&out->w, item_tag(swim, domain, at));
        count--;
    }
    SHOAL_ASSERT(count == 0);     /* as many as were announced */
    SHOAL_ASSERT(!out->w.failed); /* S2 */
}

struct digest {
    struct shoal_swim_actions *actions;
    struct swim_out out;
    enum swim_domain domain;
    unsigned sent, ranges;
    bool open;
};

static bool digest_open(struct shoal_swim *swim, struct digest *digest)
{
    SHOAL_ASSERT(!digest->open && digest->sent <= DIGESTS_MAX); /* S2 */
    if (digest->sent == DIGESTS_MAX)
        return false;
    if (!swim_out_to(swim, digest->actions, &digest->out, SWIM_DIGEST, swim->session.peer))
        return false;
    shoal_put_u32(&digest->out.w, swim->session.id);
    shoal_put_u8(&digest->out.w, (uint8_t)digest->domain);
    digest->open = true;
    digest->ranges = 0;
    digest->sent++;
    return true;
}

static void digest_close(struct shoal_swim *swim, struct digest *digest)
{
    SHOAL_ASSERT(!digest->open || digest->sent > 0);
    if (digest->open)
        swim_out_end(swim, &digest->out);
    digest->open = false;
}

/* False: no more datagrams in this round. */
static bool digest_bucket(struct shoal_swim *swim, struct digest *digest, unsigned bucket)
{
    unsigned bits = 8;

    SHOAL_ASSERT(bucket < SWIM_BUCKETS_COUNT);
    for (uint64_t part = 0; part < 1ull << (bits - 8); part++) {
        uint64_t prefix = (uint64_t)bucket << (bits - 8) | part;
        uint32_t count = walk_count(swim, digest->domain, bits, prefix);

        /* Only the first part can ask for a split, so what was sent stays valid. */
        while (count > RANGE_ITEMS_MAX && bits < 16) {
            bits++;
            part *= 2;
            prefix = (uint64_t)bucket << (bits - 8) | part;
            count = walk_count(swim, digest->domain, bits, prefix);
        }
        if (count > RANGE_ITEMS_MAX)
            continue; /* more than 64 names in a 65,536th part: not within our limits */
        if (digest->open &&
            (digest->ranges == DIGEST_RANGES_MAX ||
             digest->out.w.cap - digest->out.w.len < RANGE_HEAD_BYTES + (size_t)count * RANGE_ITEM_BYTES))
            digest_close(swim, digest);
        if (!digest->open && !digest_open(swim, digest))
            return false;
        digest_range(swim, &digest->out, digest->domain, bits, prefix, count);
        digest->ranges++;
    }
    return true;
}

static bool hear_buckets(struct shoal_swim *swim, struct shoal_swim_actions *actions, struct shoal_reader *r)
{
    enum swim_domain domain = (enum swim_domain)shoal_get_enum(r, SWIM_DOMAINS);
    uint64_t root = shoal_get_u64(r);
    struct digest digest = { .actions = actions, .domain = domain };
    struct swim_session *s = &swim->session;
    const uint8_t *theirs = shoal_get_space(r, (size_t)4 * SWIM_BUCKETS_COUNT);
    unsigned from = (unsigned)shoal_rand_below(&swim->chance, SWIM_BUCKETS_COUNT);

    if (!shoal_reader_done(r))
        return false;
    if (s->theirs[domain] != 0 && s->theirs[domain] != root)
        s->moved = true;
    SHOAL_ASSERT(s->open); /* is_current came before */
    s->theirs[domain] = root;
    s->differed = true;
    /* From a random bucket on, so that a long difference is not always cut at the same place. */
    for (unsigned i = 0; i < SWIM_BUCKETS_COUNT; i++) {
        unsigned bucket = (from + i) % SWIM_BUCKETS_COUNT;
        struct shoal_reader one = shoal_reader_init(shoal_view_of(theirs + (size_t)4 * bucket, 4));

        if (shoal_get_u32(&one) == (uint32_t)chains_of(swim, domain)->sums[bucket])
            continue;
        if (!digest_bucket(swim, &digest, bucket))
            break;
    }
    digest_close(swim, &digest);
    return true;
}

/* ---- the answering side --------------------------------------------------------------------------------------- */

struct reply {
    struct shoal_swim_actions *actions;
    struct swim_out out;
    struct shoal_node_id to;
    struct shoal_address address;
    uint32_t session, member;
    unsigned sent;
    bool open;
};

static bool reply_open(struct shoal_swim *swim, struct reply *reply)
{
    SHOAL_ASSERT(!reply->open && reply->sent <= ITEMS_MAX); /* S2 */
    if (reply->sent == ITEMS_MAX)
        return false;
    if (!swim_out_begin(swim, reply->actions, &reply->out, SWIM_ITEMS, reply->member, reply->to, reply->address, 0))
        return false;
    shoal_put_u32(&reply->out.w, reply->session);
    reply->open = true;
    reply->sent++;
    return true;
}

static void reply_close(struct shoal_swim *swim, struct reply *reply)
{
    if (reply->open)
        swim_out_end(swim, &reply->out);
    reply->open = false;
}

/* The item's statement, and for the dead our signed suspicion, together in one datagram. False: no more room. */
static bool reply_item(struct shoal_swim *swim, struct reply *reply, enum swim_domain domain, uint32_t at)
{
    bool member = domain == SWIM_DOMAIN_MEMBERS;
    struct shoal_view statement =
        gossip_pool_view(swim->pool, member ? swim->members[at].card : swim->records[at].blob);
    uint8_t state = member ? swim->members[at].state : (uint8_t)SHOAL_MEMBER_NONE;
    bool dead = state == SHOAL_MEMBER_DEAD;
    bool aged = member ? dead || state == SHOAL_MEMBER_LEFT : swim->records[at].tombstone;
    uint64_t since_ns = member ? swim->members[at].since_ns : swim->records[at].since_ns;
    size_t need = SWIM_NEWS_HEAD_BYTES + statement.len + (dead ? SWIM_NEWS_HEAD_BYTES + SWIM_ACCUSE_BYTES : 0u);
    uint32_t accuse;

    if (reply->open && reply->out.w.cap - reply->out.w.len < need)
        reply_close(swim, reply);
    if (!reply->open && !reply_open(swim, reply))
        return false;
    SHOAL_ASSERT(reply->open && reply->out.w.cap - reply->out.w.len >= need); /* the largest record fits any datagram */
    swim->stats.sync_items_sent++;
    swim_out_statement(&reply->out, statement, aged ? swim_age_s(swim, since_ns) : SWIM_AGE_NONE);
    if (!dead)
        return true;
    accuse = swim_accuse_make(swim, at, SWIM_SUSPECT);
    if (accuse != 0)
        swim_out_statement(&reply->out, gossip_pool_view(swim->pool, accuse), SWIM_AGE_NONE);
    gossip_pool_unref(swim->pool, accuse);
    return true;
}

static void hear_root(struct shoal_swim *swim, struct reply *reply, const uint64_t *theirs)
{
    bool same = true;

    for (unsigned d = 0; d < SWIM_DOMAINS; d++) {
        const struct swim_chains *chains = chains_of(swim, (enum swim_domain)d);
        uint64_t root = swim_chains_root(chains);

        if (root == theirs[d])
            continue;
        same = false;
        if (!swim_out_begin(swim, reply->actions, &reply->out, SWIM_BUCKETS, reply->member, reply->to, reply->address,
                            0))
            return;
        shoal_put_u32(&reply->out.w, reply->session);
        shoal_put_u8(&reply->out.w, (uint8_t)d);
        shoal_put_u64(&reply->out.w, root);
        for (unsigned b = 0; b < SWIM_BUCKETS_COUNT; b++)
            shoal_put_u32(&reply->out.w, (uint32_t)chains->sums[b]);
        swim_out_end(swim, &reply->out);
    }
    if (!same)
        return;
    if (!swim_out_begin(swim, reply->actions, &reply->out, SWIM_SAME, reply->member, reply->to, reply->address, 0))
        return;
    shoal_put_u32(&reply->out.w, reply->session);
    swim_out_end(swim, &reply->out);
}

struct wants {
    uint64_t keys[WANT_MAX];
    unsigned count;
};

static void want(struct wants *wants, uint64_t key)
{
    SHOAL_ASSERT(wants->count <= WANT_MAX); /* S2 */
    if (wants->count < WANT_MAX)
        wants->keys[wants->count++] = key;
}

/* One range of theirs against ours: what they lack goes out, what we lack is wanted, what differs both. */
static void compare_range(struct shoal_swim *swim, struct reply *reply, struct wants *wants, enum swim_domain domain,
                          unsigned bits, uint64_t prefix, struct shoal_view theirs)
{
    struct walk walk = walk_init(swim, domain, bits, prefix);
    size_t count = theirs.len / RANGE_ITEM_BYTES;
    uint64_t seen[(UINT8_MAX + 63) / 64] = { 0 };
    uint64_t hash;
    uint32_t at;

    SHOAL_ASSERT(count <= UINT8_MAX && theirs.len % RANGE_ITEM_BYTES == 0); /* hear_digest read a count of 8 bits */
    while ((at = walk_next(swim, &walk, &hash)) != SWIM_NONE) {
        bool equal = false;

        for (size_t i = 0; i < count; i++) {
            struct shoal_reader one = shoal_reader_init(shoal_view_of(theirs.bytes + i * RANGE_ITEM_BYTES, 12));

            if (shoal_get_u64(&one) != hash)
                continue;
            equal = shoal_get_u32(&one) == item_tag(swim, domain, at);
            if (equal)
                seen[i / 64] |= 1ull << (i % 64);
            break;
        }
        if (!equal)
            (void)reply_item(swim, reply, domain, at);
    }
    for (size_t i = 0; i < count; i++) {
        struct shoal_reader one = shoal_reader_init(shoal_view_of(theirs.bytes + i * RANGE_ITEM_BYTES, 12));

        if ((seen[i / 64] >> (i % 64) & 1) == 0)
            want(wants, shoal_get_u64(&one));
    }
}

static bool hear_digest(struct shoal_swim *swim, struct reply *reply, struct shoal_reader *r)
{
    enum swim_domain domain = (enum swim_domain)shoal_get_enum(r, SWIM_DOMAINS);
    struct wants wants = { .count = 0 };

    while (!r->failed && shoal_reader_left(r) > 0) {
        unsigned bits = shoal_get_u8(r);
        uint64_t prefix = shoal_get_u16(r);
        size_t len = (size_t)shoal_get_u8(r) * RANGE_ITEM_BYTES;
        const uint8_t *theirs = shoal_get_space(r, len);

        if (theirs == NULL || bits < 8 || bits > 16 || prefix >> bits != 0)
            return false;
        compare_range(swim, reply, &wants, domain, bits, prefix, shoal_view_of(theirs, len));
    }
    if (!shoal_reader_done(r))
        return false;
    SHOAL_ASSERT(wants.count <= WANT_MAX); /* S2 */
    reply_close(swim, reply);
    if (wants.count == 0)
        return true;
    if (!swim_out_begin(swim, reply->actions, &reply->out, SWIM_WANT, reply->member, reply->to, reply->address, 0))
        return true;
    shoal_put_u32(&reply->out.w, reply->session);
    shoal_put_u8(&reply->out.w, (uint8_t)domain);
    for (unsigned i = 0; i < wants.count; i++)
        shoal_put_u64(&reply->out.w, wants.keys[i]);
    swim_out_end(swim, &reply->out);
    return true;
}

static bool hear_want(struct shoal_swim *swim, struct reply *reply, struct shoal_reader *r)
{
    enum swim_domain domain = (enum swim_domain)shoal_get_enum(r, SWIM_DOMAINS);
    unsigned bits = chains_of(swim, domain)->bits;

    SHOAL_ASSERT(bits > 0 && bits < 64); /* T4, R6: a hash's first bits name its chain */
    while (!r->failed && shoal_reader_left(r) > 0) {
        uint64_t wanted = shoal_get_u64(r), hash;
        struct walk walk = walk_init(swim, domain, bits, wanted >> (64 - bits));
        uint32_t at;

        while (!r->failed && (at = walk_next(swim, &walk, &hash)) != SWIM_NONE)
            if (hash == wanted && !reply_item(swim, reply, domain, at))
                break;
    }
    reply_close(swim, reply);
    return shoal_reader_done(r);
}

/* ---- entry ---------------------------------------------------------------------------------------------------- */

/* Ours, still open, and from whom we asked. */
static bool is_current(struct shoal_swim *swim, enum swim_message message, uint32_t member, uint32_t session)
{
    if (swim->session.open && swim->session.peer == member && swim->session.id == session) {
        SHOAL_ASSERT(swim->session.silent < SILENT_MAX); /* S3 */
        swim->session.silent = 0;
        swim->session.waiting = false;
        swim->session.deadline_ns = swim->now_ns + QUIET_NS;
        return true;
    }
    if (message != SWIM_ITEMS) /* which also come when we were asked, and wanted them */
        shoal_count(&swim->stats.drop_wrong_answer);
    return false;
}

bool swim_sync_hear(struct shoal_swim *swim, struct shoal_swim_actions *actions, enum swim_message message,
                    uint32_t member, const struct shoal_swim_event *event, struct shoal_reader *r)
{
    uint32_t session = shoal_get_u32(r);
    struct reply reply = { .actions = actions,
                           .to = event->datagram.from,
                           .address = event->datagram.address,
                           .session = session,
                           .member = member };
    uint64_t theirs[SWIM_DOMAINS];

    switch (message) {
    case SWIM_ROOT:
        theirs[SWIM_DOMAIN_MEMBERS] = shoal_get_u64(r);
        theirs[SWIM_DOMAIN_RECORDS] = shoal_get_u64(r);
        if (!shoal_reader_done(r))
            return false;
        hear_root(swim, &reply, theirs);
        return true;
    case SWIM_SAME:
        if (!shoal_reader_done(r))
            return false;
        if (!is_current(swim, message, member, session))
            return true;
        swim->session.open = false;
        if (swim->session.differed)
            swim_note(swim, actions, SHOAL_SWIM_NOTE_SYNCED, event->datagram.from, swim->opt.id);
        return true;
    case SWIM_BUCKETS: return !is_current(swim, message, member, session) || hear_buckets(swim, actions, r);
    case SWIM_DIGEST: return hear_digest(swim, &reply, r);
    case SWIM_WANT: return !is_current(swim, message, member, session) || hear_want(swim, &reply, r);
    case SWIM_ITEMS: (void)is_current(swim, message, member, session); return !r->failed;
    case SWIM_PING:
    case SWIM_ACK:
    case SWIM_NACK:
    case SWIM_ASK:
    case SWIM_NOT_ME:
    case SWIM_GOSSIP:
    case SWIM_MESSAGES: break; /* not anti-entropy's */
    }
    return true;
}
