/* The table of members, the order in which they are probed, and the suspicions.
 *
 *   id --hash--> chain of places --> { state, handle of its card, ... }
 *   order: [ c a e | d b ]     one is probed per interval; at the end of the round the list is shuffled; a newcomer is
 *                  ^ next      put at a random place, so that everybody is reached within two rounds
 *
 * T1. A member is in `order` exactly while it is ALIVE or SUSPECT and not ourselves.
 * T2. A member has a suspicion exactly while it is SUSPECT.
 * T3. Anti-entropy's sums hold each member that is not faded, once.
 * T4. A place is in use exactly while it has a card; then it is in the chain of its id's hash, else on the free list.
 * T5. Place 0 is ourselves: never suspected, never in the order, never removed.
 * T6. What was probed in this round stands before `order_at`, what was not behind it.
 * T7. A suspicion counts each accuser once, and more accusers only bring its end nearer, down to the minimum.
 * T8. A state moves only as `member_moves` says, and in one place.
 * Source: SWIM (DSN 2002) section 4.3 for the order; Lifeguard (arXiv 1707.00788) section 4 for suspicions. */
#include "swim_state.h"

#include <string.h>

#include "shoal/banned.h"

#define BIT(n) (1u << (n))

static const unsigned member_moves[SHOAL_MEMBER_STATES] = {
    /* bit N set: may become state N */
    [SHOAL_MEMBER_NONE] = BIT(SHOAL_MEMBER_ALIVE) | BIT(SHOAL_MEMBER_DEAD) | BIT(SHOAL_MEMBER_LEFT),
    [SHOAL_MEMBER_ALIVE] = BIT(SHOAL_MEMBER_SUSPECT) | BIT(SHOAL_MEMBER_DEAD) | BIT(SHOAL_MEMBER_LEFT),
    [SHOAL_MEMBER_SUSPECT] = BIT(SHOAL_MEMBER_ALIVE) | BIT(SHOAL_MEMBER_DEAD) | BIT(SHOAL_MEMBER_LEFT),
    [SHOAL_MEMBER_DEAD] = BIT(SHOAL_MEMBER_ALIVE) | BIT(SHOAL_MEMBER_LEFT) | BIT(SHOAL_MEMBER_NONE),
    [SHOAL_MEMBER_LEFT] = BIT(SHOAL_MEMBER_ALIVE) | BIT(SHOAL_MEMBER_NONE), /* back, with a higher incarnation */
};

static bool state_is_live(unsigned state) { return state == SHOAL_MEMBER_ALIVE || state == SHOAL_MEMBER_SUSPECT; }

uint64_t swim_id_hash(struct shoal_node_id id) { return gossip_hash(shoal_view_of(id.bytes, sizeof(id.bytes)), 1); }

struct shoal_view swim_card_of(const struct shoal_swim *swim, uint32_t member)
{
    SHOAL_ASSERT(member < swim->members_used);     /* T4 */
    SHOAL_ASSERT(swim->members[member].card != 0); /* T4 */
    return gossip_pool_view(swim->pool, swim->members[member].card);
}

struct shoal_node_id swim_id_of(const struct shoal_swim *swim, uint32_t member)
{
    return swim_card_id(swim_card_of(swim, member));
}

bool swim_member_is_live(const struct shoal_swim *swim, uint32_t member)
{
    SHOAL_ASSERT(member < swim->members_used); /* T4 */
    return state_is_live(swim->members[member].state);
}

static uint32_t *chain_of(const struct swim_chains *chains, uint64_t hash)
{
    SHOAL_ASSERT(chains->bits >= 8 && chains->bits <= 24); /* a range of 8 bits is a range of chains */
    return &chains->heads[hash >> (64 - chains->bits)];
}

void swim_chains_add(struct swim_chains *chains, uint64_t hash, uint64_t sum) { chains->sums[hash >> 56] ^= sum; }

uint64_t swim_chains_root(const struct swim_chains *chains)
{
    return gossip_hash(shoal_view_of(chains->sums, sizeof(chains->sums)), 2);
}

uint32_t swim_table_find(const struct shoal_swim *swim, struct shoal_node_id id)
{
    uint32_t at = *chain_of(&swim->member_chains, swim_id_hash(id));

    while (at != SWIM_NONE && !shoal_node_id_equal(swim_id_of(swim, at), id))
        at = swim->members[at].next;
    SHOAL_ASSERT(at == SWIM_NONE || swim->members[at].card != 0); /* T4 */
    return at;
}

uint64_t swim_member_sum(const struct shoal_swim *swim, uint32_t member)
{
    const struct swim_member *m = &swim->members[member];
    uint64_t z = gossip_pool_hash(swim->pool, m->card) ^ (m->state == SHOAL_MEMBER_DEAD ? 0x6465616400000000u : 0);

    SHOAL_ASSERT((m->flags & MEMBER_FADED) == 0); /* T3: the faded are in no sum */
    return shoal_splitmix64(&z);
}

/* In or out: the sums are exclusive-or. */
static void toggle_sum(struct shoal_swim *swim, uint32_t member)
{
    if ((swim->members[member].flags & MEMBER_FADED) == 0)
        swim_chains_add(&swim->member_chains, swim_id_hash(swim_id_of(swim, member)), swim_member_sum(swim, member));
}

void swim_table_fade(struct shoal_swim *swim, uint32_t member)
{
    SHOAL_ASSERT(!swim_member_is_live(swim, member));                /* T3: only the dead and the left fade */
    SHOAL_ASSERT((swim->members[member].flags & MEMBER_FADED) == 0); /* T3: once */
    toggle_sum(swim, member);
    swim->members[member].flags |= MEMBER_FADED;
    swim_records_fade(swim, member);
}

/* ---- order ---------------------------------------------------------------------------------------------------- */

static void order_swap(struct shoal_swim *swim, uint32_t a, uint32_t b)
{
    uint32_t at_a = swim->order[a], at_b = swim->order[b];

    SHOAL_ASSERT(a < swim->order_count && b < swim->order_count);                   /* T1 */
    SHOAL_ASSERT(swim->members[at_a].order == a && swim->members[at_b].order == b); /* T1 */
    swim->order[a] = at_b;
    swim->order[b] = at_a;
    swim->members[at_a].order = b;
    swim->members[at_b].order = a;
}

static void order_put(struct shoal_swim *swim, uint32_t member)
{
    uint32_t at = swim->order_count++;

    SHOAL_ASSERT(member != SWIM_SELF);                       /* T5 */
    SHOAL_ASSERT(swim->order_count < swim->opt.members_max); /* T1: we are not in it */
    swim->order[at] = member;
    swim->members[member].order = at;
    order_swap(swim, at, (uint32_t)shoal_rand_below(&swim->chance, swim->order_count));
}

static void order_take(struct shoal_swim *swim, uint32_t member)
{
    uint32_t at = swim->members[member].order, last = swim->order_count - 1;

    SHOAL_ASSERT(swim->order_count > 0);     /* T1 */
    SHOAL_ASSERT(swim->order[at] == member); /* T1 */
    /* Keep who was probed this round before `order_at` and who was not behind it. */
    if (at < swim->order_at) {
        swim->order_at--;
        order_swap(swim, at, swim->order_at);
        at = swim->order_at;
    }
    order_swap(swim, at, last);
    swim->members[member].order = SWIM_NONE;
    swim->order_count--;
}

uint32_t swim_order_next(struct shoal_swim *swim)
{
    if (swim->order_count == 0)
        return SWIM_NONE;
    if (swim->order_at >= swim->order_count) {
        for (uint32_t i = swim->order_count - 1; i > 0; i--)
            order_swap(swim, i, (uint32_t)shoal_rand_below(&swim->chance, i + 1u));
        swim->order_at = 0;
    }
    SHOAL_ASSERT(swim->order_at < swim->order_count); /* T6 */
    return swim->order[swim->order_at++];
}

void swim_order_hasten(struct shoal_swim *swim, uint32_t member)
{
    uint32_t at = swim->members[member].order;

    if (at == SWIM_NONE)
        return;
    if (swim->order_at >= swim->order_count)
        swim->order_at = swim->order_count - 1;
    /* One that was probed this round already is probed again: the boundary steps back to hold it. */
    if (at < swim->order_at)
        swim->order_at--;
    order_swap(swim, at, swim->order_at);
    SHOAL_ASSERT(swim->order[swim->order_at] == member); /* T6: it is the next one */
}

uint32_t swim_order_pick(struct shoal_swim *swim, uint32_t want, uint32_t not_this, uint32_t *members)
{
    uint32_t count = 0, n = swim->order_count;

    SHOAL_ASSERT(want > 0);
    if (n <= want + 1) {
        uint32_t from = n == 0 ? 0 : (uint32_t)shoal_rand_below(&swim->chance, n);

        for (uint32_t i = 0; i < n && count < want; i++)
            if (swim->order[(from + i) % n] != not_this)
                members[count++] = swim->order[(from + i) % n];
        return count;
    }
    for (uint32_t tries = 0; tries < 4 * want && count < want; tries++) {
        uint32_t member = swim->order[shoal_rand_below(&swim->chance, n)], i = 0;

        while (i < count && members[i] != member)
            i++;
        if (i == count && member != not_this)
            members[count++] = member;
    }
    SHOAL_ASSERT(count <= want);
    return count;
}

/* ---- members -------------------------------------------------------------------------------------------------- */

uint32_t swim_table_add(struct shoal_swim *swim, uint32_t card, enum shoal_member_state state, uint64_t since_ns)
{
    uint32_t at = swim->members_free;
    struct swim_member *m;
    uint32_t *chain;

    if (at != SWIM_NONE)
        swim->members_free = swim->members[at].next;
    else if (swim->members_used < swim->opt.members_max)
        at = swim->members_used++;
    else
        return SWIM_NONE;
    m = &swim->members[at];
    SHOAL_ASSERT(m->card == 0 && card != 0);                                   /* T4 */
    SHOAL_ASSERT(state != SHOAL_MEMBER_NONE);                                  /* T8 */
    SHOAL_ASSERT(swim->started || at == SWIM_SELF || swim->members_count > 0); /* T5: we come first */
    *m = (struct swim_member){ .card = card, .order = SWIM_NONE };
    chain = chain_of(&swim->member_chains, swim_id_hash(swim_id_of(swim, at)));
    m->next = *chain;
    *chain = at;
    swim->members_count++;
    toggle_sum(swim, at);
    swim_table_move(swim, at, state, since_ns);
    return at;
}

void swim_table_set_card(struct shoal_swim *swim, uint32_t member, uint32_t card)
{
    struct swim_member *m = &swim->members[member];

    SHOAL_ASSERT(m->card != 0 && card != 0); /* T4 */
    SHOAL_ASSERT(
        shoal_node_id_equal(swim_card_id(gossip_pool_view(swim->pool, card)), swim_id_of(swim, member))); /* T4 */
    SHOAL_ASSERT(shoal_incarnation_cmp(swim_card_incarnation(gossip_pool_view(swim->pool, card)),
                                       swim_card_incarnation(swim_card_of(swim, member))) >
                 0); /* M1: only ever newer */
    toggle_sum(swim, member);
    gossip_pool_unref(swim->pool, m->card);
    m->card = card;
    toggle_sum(swim, member);
}

static void suspicion_close(struct shoal_swim *swim, uint32_t member);

void swim_table_move(struct shoal_swim *swim, uint32_t member, enum shoal_member_state state, uint64_t since_ns)
{
    struct swim_member *m = &swim->members[member];
    bool was_live = state_is_live(m->state), is_live = state_is_live(state);

    SHOAL_ASSERT((member_moves[m->state] & BIT(state)) != 0);           /* T8 */
    SHOAL_ASSERT(member != SWIM_SELF || state != SHOAL_MEMBER_SUSPECT); /* T5 */
    SHOAL_ASSERT(since_ns <= swim->now_ns);                             /* nothing happened in the future */
    SHOAL_ASSERT(state != SHOAL_MEMBER_SUSPECT || swim->members[member].suspicion != 0); /* T2 */
    toggle_sum(swim, member);
    if (m->state == SHOAL_MEMBER_SUSPECT)
        suspicion_close(swim, member);
    SHOAL_ASSERT(swim->dead_count < swim->opt.members_max);
    if (m->state == SHOAL_MEMBER_DEAD || m->state == SHOAL_MEMBER_LEFT)
        swim->dead_count--;
    if (state == SHOAL_MEMBER_DEAD || state == SHOAL_MEMBER_LEFT)
        swim->dead_count++;
    m->state = (uint8_t)state;
    m->since_ns = since_ns;
    if (state != SHOAL_MEMBER_NONE && (m->flags & MEMBER_FADED) != 0) { /* news of it: its age begins anew */
        m->flags &= (uint8_t)~MEMBER_FADED;
        swim_records_unfade(swim, member);
    }
    if (is_live)
        m->flags &= (uint8_t)~MEMBER_GONE;
    toggle_sum(swim, member);
    if (member == SWIM_SELF)
        return;
    if (is_live && !was_live)
        order_put(swim, member);
    if (!is_live && m->order != SWIM_NONE)
        order_take(swim, member);
    SHOAL_ASSERT(is_live == (m->order != SWIM_NONE)); /* T1 */
}

void swim_table_remove(struct shoal_swim *swim, uint32_t member)
{
    struct swim_member *m = &swim->members[member];
    uint32_t *link = chain_of(&swim->member_chains, swim_id_hash(swim_id_of(swim, member)));

    SHOAL_ASSERT(member != SWIM_SELF);                /* T5 */
    SHOAL_ASSERT(!swim_member_is_live(swim, member)); /* T8: who is forgotten was dead or had left */
    swim_table_move(swim, member, SHOAL_MEMBER_NONE, swim->now_ns);
    toggle_sum(swim, member);
    swim_records_forget(swim, member);
    swim_news_drop_member(swim, member);
    while (*link != member) {
        SHOAL_ASSERT(*link != SWIM_NONE); /* T4 */
        link = &swim->members[*link].next;
    }
    SHOAL_ASSERT(m->records == 0 && m->suspicion == 0); /* T2, and R5 of records.c */
    *link = m->next;
    gossip_pool_unref(swim->pool, m->card);
    *m = (struct swim_member){ .next = swim->members_free, .order = SWIM_NONE };
    swim->members_free = member;
    swim->members_count--;
}

/* ---- suspicions ----------------------------------------------------------------------------------------------- */

/* 1000 * log10(n), rounded down; exact enough for timers: the error is below 2. */
static uint32_t log10_milli(uint32_t n)
{
    unsigned whole = 31;
    uint64_t x, log2_16;

    if (n <= 1)
        return 0;
    while ((n >> whole) == 0)
        whole--;
    x = ((uint64_t)n << 32) >> whole; /* 1 <= x < 2 with 32 bits behind the point */
    log2_16 = (uint64_t)whole << 16;
    for (unsigned i = 1; i <= 16; i++) {
        x = (uint64_t)(((shoal_u128)x * x) >> 32);
        if (x >> 33 != 0) {
            x >>= 1;
            log2_16 |= 1u << (16 - i);
        }
    }
    return (uint32_t)((log2_16 * 30103 + 50 * 65536) / ((uint64_t)100 * 65536));
}

static uint64_t suspicion_min_ns(const struct shoal_swim *swim, uint32_t members)
{
    uint64_t logs = log10_milli(members);

    if (logs < 1000)
        logs = 1000;
    SHOAL_ASSERT(swim->opt.suspicion_tenths > 0); /* T7 */
    return swim->opt.probe_interval_ns / 10000 * swim->opt.suspicion_tenths * logs;
}

/* The timer's place between max and min after so many of the possible confirmations: Lifeguard's
 * log(c + 1) / log(k + 1), in thousandths. */
static uint64_t shortened_milli(unsigned confirmed, unsigned possible)
{
    static const uint16_t table[SWIM_CONFIRMATIONS_MAX + 1][SWIM_CONFIRMATIONS_MAX + 1] = {
        { 1000, 1000, 1000, 1000 },
        { 0, 1000, 1000, 1000 },
        { 0, 631, 1000, 1000 },
        { 0, 500, 792, 1000 },
    };

    SHOAL_ASSERT(possible <= SWIM_CONFIRMATIONS_MAX && confirmed <= possible); /* T7 */
    return table[possible][confirmed];
}

static void suspicion_time(struct swim_suspicion *s)
{
    uint64_t span = s->max_ns - s->min_ns;

    SHOAL_ASSERT(s->max_ns >= s->min_ns); /* T7 */
    s->deadline_ns = s->start_ns + s->max_ns - span / 1000 * shortened_milli(s->accuser_count - 1u, s->confirmations);
    SHOAL_ASSERT(s->deadline_ns >= s->start_ns + s->min_ns); /* T7 */
}

struct swim_suspicion *swim_suspicion_of(struct shoal_swim *swim, uint32_t member)
{
    uint16_t place = swim->members[member].suspicion;

    SHOAL_ASSERT(place <= swim->suspicion_count);                             /* T2 */
    SHOAL_ASSERT(place == 0 || swim->suspicions[place - 1].member == member); /* T2 */
    return place == 0 ? NULL : &swim->suspicions[place - 1];
}

struct swim_suspicion *swim_suspicion_open(struct shoal_swim *swim, uint32_t member, uint32_t accuser, uint32_t blob)
{
    uint32_t live = swim->order_count + 1, others = live < 2 ? 0 : live - 2;
    struct swim_suspicion *s;

    if (swim->suspicion_count == swim->opt.suspicions_max)
        return NULL;
    SHOAL_ASSERT(member != SWIM_SELF);                  /* T5 */
    SHOAL_ASSERT(swim->members[member].suspicion == 0); /* T2 */
    s = &swim->suspicions[swim->suspicion_count++];
    *s = (struct swim_suspicion){ .start_ns = swim->now_ns, .member = member, .blob = blob, .accuser_count = 1 };
    s->min_ns = suspicion_min_ns(swim, live);
    s->max_ns = s->min_ns * swim->opt.suspicion_max_factor;
    /* Neither the accused nor the first accuser can confirm: a small mesh needs fewer. */
    s->confirmations = (uint8_t)(others < swim->opt.confirmations ? others : swim->opt.confirmations);
    s->accusers[0] = accuser;
    suspicion_time(s);
    gossip_pool_ref(swim->pool, blob);
    swim->members[member].suspicion = (uint16_t)swim->suspicion_count;
    return s;
}

bool swim_suspicion_confirm(struct shoal_swim *swim, struct swim_suspicion *suspicion, uint32_t accuser, uint32_t blob)
{
    for (unsigned i = 0; i < suspicion->accuser_count; i++)
        if (suspicion->accusers[i] == accuser)
            return false;
    if (suspicion->accuser_count > suspicion->confirmations)
        return false;
    SHOAL_ASSERT(suspicion->accuser_count <= SWIM_CONFIRMATIONS_MAX); /* T7 */
    suspicion->accusers[suspicion->accuser_count++] = accuser;
    gossip_pool_ref(swim->pool, blob);
    gossip_pool_unref(swim->pool, suspicion->blob);
    suspicion->blob = blob;
    suspicion_time(suspicion);
    return true;
}

static void suspicion_close(struct shoal_swim *swim, uint32_t member)
{
    struct swim_suspicion *s = swim_suspicion_of(swim, member);
    struct swim_suspicion *last = &swim->suspicions[swim->suspicion_count - 1];

    SHOAL_ASSERT(s != NULL); /* T2 */
    gossip_pool_unref(swim->pool, s->blob);
    swim->members[member].suspicion = 0;
    if (s != last) {
        *s = *last;
        swim->members[s->member].suspicion = (uint16_t)(s - swim->suspicions + 1);
    }
    swim->suspicion_count--;
}
