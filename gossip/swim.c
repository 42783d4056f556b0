/* Failure detection (SWIM, DSN 2002, sections 3.1 and 4; Lifeguard, arXiv 1707.00788).
 *
 *   a --PING--> b                        no ack within the ack wait (4x the path's round trip, 100 to 250 ms)?
 *   a --ASK---> c --PING--> b            through 3 other members, and once more directly
 *   a <--ACK--- c <--ACK--- b            or a <--NACK-- c: "I am fine, b is silent"
 *   still silent when the period ends:   a suspects b, and says so; b, hearing it, refutes with a higher incarnation
 *
 * I1. Every ping names its target; another node at that address answers NOT_ME, never ACK.
 * I2. Only b raises b's incarnation (swim_members.c, M1).
 * I3. An answer counts only from whom it was asked, by the sender that the seal proved.
 * I4. A node that is unwell (Lifeguard's counter, or its measured loop lag) probes more slowly, and above a threshold
 *     accuses only whom it found silent several times in a row.
 * I5. A node that was itself late to its own timers abandons the probe in flight and gives all suspicions that time
 *     back: it may have slept through the answers.
 * I6. Whoever is accused is told so first in the next datagram to it (buddy system); the dead are tried now and then,
 *     so that two halves of a mesh find each other again.
 * Parameters: reference/control-plane 1.7. */
#include "shoal/gossip.h"

#include "swim_state.h"

#include <stdlib.h>
#include <string.h>

#include "shoal/banned.h"

/* Up to this many a member waits long for its turn by bad luck alone: those who answered make room for the next at half
 * the interval. */
#define SMALL_MESH 16
#define UNWELL 5 /* I4: above this score ... */
#define UNWELL_MISSES 4
#define EXPIRED_PER_STEP 24
#define NACKS_PER_STEP 4
#define SEEDS_PER_STEP 5
#define FORGET_PER_STEP 24
#define SEED_WAIT_MAX_NS (2 * SHOAL_S) /* a mesh whose hosts all boot at once should not wait long for the slowest */
_Static_assert(2 + SWIM_HELPERS_MAX + NACKS_PER_STEP + SWIM_FANOUT_MAX + 1 + SEEDS_PER_STEP + 2 <= SHOAL_SWIM_SENDS_MAX,
               "a timer step's sends fit its actions");
_Static_assert(EXPIRED_PER_STEP + FORGET_PER_STEP + SHOAL_SWIM_SENDS_MAX + 8 <= SHOAL_SWIM_ACTIONS_MAX,
               "and its changes");

/* ---- health --------------------------------------------------------------------------------------------------- */

uint32_t shoal_swim_health(const struct shoal_swim *swim)
{
    SHOAL_ASSERT(swim->counted_health <= SWIM_HEALTH_MAX);  /* I4 */
    SHOAL_ASSERT(swim->measured_health <= SWIM_HEALTH_MAX); /* I4 */
    return swim->counted_health > swim->measured_health ? swim->counted_health : swim->measured_health;
}

/* A score for a loop that was so late; 100 ms is what the ack wait forgives. */
static unsigned lag_score(uint64_t lag_ns)
{
    static const uint16_t bounds_ms[] = { 100, 150, 250, 400, 600, 1000, 2000 };
    unsigned score = 0;

    while (score < sizeof(bounds_ms) / sizeof(bounds_ms[0]) && lag_ns >= bounds_ms[score] * SHOAL_MS)
        score++;
    SHOAL_ASSERT(score <= SWIM_HEALTH_MAX); /* I4 */
    return score;
}

static void measure(struct shoal_swim *swim, uint64_t lag_ns)
{
    unsigned score = lag_score(lag_ns);

    if (score > swim->measured_health)
        swim->measured_health = score;
}

/* I5. */
static void was_late(struct shoal_swim *swim, struct shoal_swim_actions *actions, uint64_t lag_ns)
{
    measure(swim, lag_ns);
    for (uint32_t i = 0; i < swim->suspicion_count; i++) {
        SHOAL_ASSERT(swim->suspicions[i].deadline_ns <= UINT64_MAX - lag_ns); /* I5: times do not wrap */
        swim->suspicions[i].start_ns += lag_ns;
        swim->suspicions[i].deadline_ns += lag_ns;
    }
    for (uint32_t i = 0; i < SWIM_RELAYS_MAX; i++)
        swim->relays[i].end_ns = 0;
    swim->relay_count = 0;
    swim->probe.open = false;
    swim_note(swim, actions, SHOAL_SWIM_NOTE_LATE, swim->opt.id, swim->opt.id);
}

/* ---- probing -------------------------------------------------------------------------------------------------- */

static uint64_t ack_wait_ns(const struct shoal_swim *swim, uint32_t member)
{
    uint64_t wait = 4000ull * swim->members[member].rtt_us;

    SHOAL_ASSERT(swim->opt.ack_wait_min_ns <= swim->opt.ack_wait_max_ns);
    if (wait < swim->opt.ack_wait_min_ns)
        return swim->opt.ack_wait_min_ns;
    return wait > swim->opt.ack_wait_max_ns ? swim->opt.ack_wait_max_ns : wait;
}

static void send_ping(struct shoal_swim *swim, struct shoal_swim_actions *actions, uint32_t member, uint32_t seq)
{
    struct swim_out out;

    SHOAL_ASSERT(seq != 0 || swim->seq == 0); /* I3: an answer names its question */
    if (!swim_out_to(swim, actions, &out, SWIM_PING, member))
        return;
    shoal_put_u32(&out.w, seq);
    shoal_put_node_id(&out.w, out.to);
    swim_out_news(swim, &out, member, swim->members[member].state == SHOAL_MEMBER_DEAD);
    swim_out_end(swim, &out);
}

static void probe_start(struct shoal_swim *swim, struct shoal_swim_actions *actions)
{
    uint32_t member = swim_order_next(swim);
    struct swim_probe *p = &swim->probe;

    swim->probe_ns = swim->now_ns + swim->opt.probe_interval_ns * (1 + shoal_swim_health(swim));
    if (member == SWIM_NONE)
        return;
    SHOAL_ASSERT(swim_member_is_live(swim, member)); /* T1 */
    *p = (struct swim_probe){ .open = true, .member = member, .seq = ++swim->seq, .sent_ns = swim->now_ns };
    p->ask_ns = swim->now_ns + ack_wait_ns(swim, member);
    p->end_ns = swim->probe_ns;
    swim->stats.probes++;
    send_ping(swim, actions, member, p->seq);
}

/* No ack: ask others to try, and try once more ourselves: one lost datagram is the likeliest reason. */
static void probe_ask(struct shoal_swim *swim, struct shoal_swim_actions *actions)
{
    struct swim_probe *p = &swim->probe;
    uint32_t helpers[SWIM_HELPERS_MAX];
    uint32_t count = swim_order_pick(swim, swim->opt.helpers, p->member, helpers);
    struct shoal_view card = swim_card_of(swim, p->member);
    uint64_t wait_ms = p->end_ns <= swim->now_ns ? 0 : (p->end_ns - swim->now_ns) * 3 / 5 / SHOAL_MS;

    SHOAL_ASSERT(p->open && !p->acked); /* I3 */
    SHOAL_ASSERT(p->asked == 0);        /* helpers are asked once a probe */
    p->ask_ns = 0;
    send_ping(swim, actions, p->member, p->seq);
    if (count > 0)
        swim_note(swim, actions, SHOAL_SWIM_NOTE_NO_ACK, swim_card_id(card), swim_id_of(swim, helpers[0]));
    for (uint32_t i = 0; i < count; i++) {
        struct shoal_address address = swim_card_address(card);
        struct swim_out out;

        if (!swim_out_to(swim, actions, &out, SWIM_ASK, helpers[i]))
            return;
        shoal_put_u32(&out.w, p->seq);
        shoal_put_node_id(&out.w, swim_card_id(card));
        shoal_put_address(&out.w, address);
        shoal_put_u16(&out.w, (uint16_t)(wait_ms > 250 ? 250 : wait_ms));
        swim_out_news(swim, &out, helpers[i], false);
        swim_out_end(swim, &out);
        p->asked++;
    }
}

/* The period is over: judge. */
static void probe_end(struct shoal_swim *swim, struct shoal_swim_actions *actions)
{
    struct swim_probe *p = &swim->probe;
    struct swim_member *m = &swim->members[p->member];

    if (!p->open)
        return;
    SHOAL_ASSERT(p->nacks <= p->asked); /* I3 */
    p->open = false;
    if (!swim_member_is_live(swim, p->member))
        return;
    if (p->acked) {
        m->misses = 0;
        swim_health_add(swim, -1);
        return;
    }
    swim->stats.probes_silent++;
    if (m->misses < UINT8_MAX)
        m->misses++;
    /* Helpers that say they are fine leave the silence with the target; helpers silent too may mean that we are deaf.
     */
    swim_health_add(swim, p->asked == 0 ? 1 : (int)(p->asked - p->nacks));
    if (shoal_swim_health(swim) <= UNWELL || m->misses >= UNWELL_MISSES) /* I4 */
        swim_suspect(swim, actions, p->member);
}

static void probe_timer(struct shoal_swim *swim, struct shoal_swim_actions *actions)
{
    if (swim->probe.open && !swim->probe.acked && swim->probe.ask_ns != 0 && swim->now_ns >= swim->probe.ask_ns)
        probe_ask(swim, actions);
    SHOAL_ASSERT(!swim->leaving); /* who leaves accuses nobody */
    if (swim->now_ns < swim->probe_ns)
        return; /* the end of the period, or earlier: see on_ack */
    probe_end(swim, actions);
    if (swim->measured_health > 0)
        swim->measured_health--;
    probe_start(swim, actions);
}

static void relays_timer(struct shoal_swim *swim, struct shoal_swim_actions *actions)
{
    unsigned sent = 0;

    for (uint32_t i = 0; i < SWIM_RELAYS_MAX && swim->relay_count > 0; i++) {
        struct swim_relay *relay = &swim->relays[i];
        struct swim_out out;

        if (relay->end_ns == 0)
            continue;
        if (relay->nack_ns != 0 && swim->now_ns >= relay->nack_ns && sent < NACKS_PER_STEP) {
            uint32_t member = swim_table_find(swim, relay->requester);

            relay->nack_ns = 0;
            sent++;
            if (swim_out_begin(swim, actions, &out, SWIM_NACK, member, relay->requester, relay->address, 0)) {
                shoal_put_u32(&out.w, relay->their_seq);
                swim_out_news(swim, &out, member, false);
                swim_out_end(swim, &out);
            }
        }
        if (relay->nack_ns == 0 && swim->now_ns >= relay->end_ns) {
            SHOAL_ASSERT(swim->relay_count > 0 && swim->relay_count <= SWIM_RELAYS_MAX);
            relay->end_ns = 0;
            swim->relay_count--;
        }
    }
}

static void suspicions_timer(struct shoal_swim *swim, struct shoal_swim_actions *actions)
{
    unsigned done = 0;

    for (uint32_t i = 0; i < swim->suspicion_count && done < EXPIRED_PER_STEP;) {
        if (swim->now_ns < swim->suspicions[i].deadline_ns) {
            i++;
            continue;
        }
        SHOAL_ASSERT(swim->members[swim->suspicions[i].member].state == SHOAL_MEMBER_SUSPECT); /* T2 */
        swim_declare(swim, actions, swim->suspicions[i].member, SWIM_DEAD); /* closes it: another takes its place */
        done++;
    }
}

/* ---- gossip rounds -------------------------------------------------------------------------------------------- */

static bool gossip_is_fresh(const struct shoal_swim *swim)
{
    SHOAL_ASSERT(swim->queue_members.fresh <= swim->queue_members.count); /* N4 */
    return swim->queue_members.fresh + swim->queue_records.fresh > 0 || swim->leaving;
}

static uint64_t gossip_deadline_ns(const struct shoal_swim *swim)
{
    if (swim->order_count == 0 || !swim_news_waits(swim))
        return UINT64_MAX;
    return swim->gossiped_ns + (gossip_is_fresh(swim) ? swim->opt.gossip_eager_ns : swim->opt.gossip_interval_ns);
}

static void gossip_timer(struct shoal_swim *swim, struct shoal_swim_actions *actions)
{
    uint32_t to[SWIM_FANOUT_MAX];
    uint32_t count;

    if (swim->leaving && !swim->leave_told && (swim->order_count == 0 || !swim_news_has_card(swim, SWIM_SELF))) {
        swim->leave_told = true;
        swim_note(swim, actions, SHOAL_SWIM_NOTE_LEAVE_SENT, swim->opt.id, swim->opt.id);
    }
    if (swim->now_ns < gossip_deadline_ns(swim))
        return;
    SHOAL_ASSERT(swim->opt.fanout <= SWIM_FANOUT_MAX); /* check_bounds */
    swim->gossiped_ns = swim->now_ns;
    count = swim_order_pick(swim, swim->opt.fanout, SWIM_NONE, to);
    for (uint32_t i = 0; i < count && swim_news_waits(swim); i++) {
        struct swim_out out;

        if (!swim_out_to(swim, actions, &out, SWIM_GOSSIP, to[i]))
            return;
        swim_out_news(swim, &out, to[i], false);
        swim_out_end(swim, &out);
    }
}

/* ---- joining, reconnecting, forgetting ------------------------------------------------------------------------- */

static void seed_ping(struct shoal_swim *swim, struct shoal_swim_actions *actions, struct swim_seed *seed)
{
    struct swim_out out;

    SHOAL_ASSERT(!shoal_address_equal(seed->address, swim->opt.address)); /* on_join left ourselves out */
    seed->seq = ++swim->seq;
    if (!swim_out_begin(swim, actions, &out, SWIM_PING, SWIM_NONE, (struct shoal_node_id){ { 0 } }, seed->address, 0))
        return;
    shoal_put_u32(&out.w, seed->seq);
    shoal_put_node_id(&out.w, out.to);
    swim_out_news(swim, &out, SWIM_NONE, true);
    swim_out_end(swim, &out);
}

static void seeds_timer(struct shoal_swim *swim, struct shoal_swim_actions *actions)
{
    uint32_t from;

    if (swim->joined || swim->leaving || swim->now_ns < swim->seed_ns)
        return;
    SHOAL_ASSERT(swim->seed_count > 0 && swim->seed_count <= SHOAL_SWIM_SEEDS_MAX); /* else it is joined */
    from = (uint32_t)shoal_rand_below(&swim->chance, swim->seed_count);
    for (uint32_t i = 0; i < swim->seed_count && i < SEEDS_PER_STEP; i++)
        seed_ping(swim, actions, &swim->seeds[(from + i) % swim->seed_count]);
    swim->seed_ns = swim->now_ns + swim->seed_wait_ns + shoal_rand_below(&swim->chance, swim->seed_wait_ns / 4 + 1);
    swim->seed_wait_ns = swim->seed_wait_ns * 2 > SEED_WAIT_MAX_NS ? SEED_WAIT_MAX_NS : swim->seed_wait_ns * 2;
}

/* One of the dead, from a random place on; SWIM_NONE: there is none. */
static uint32_t pick_dead(struct shoal_swim *swim)
{
    uint32_t from;

    if (swim->dead_count == 0)
        return SWIM_NONE;
    SHOAL_ASSERT(swim->dead_count < swim->members_used); /* T5: ourselves are not counted before we leave */
    from = (uint32_t)shoal_rand_below(&swim->chance, swim->members_used);
    for (uint32_t i = 0; i < swim->members_used; i++) {
        uint32_t at = (from + i) % swim->members_used;

        if (swim->members[at].card != 0 && swim->members[at].state == SHOAL_MEMBER_DEAD)
            return at;
    }
    return SWIM_NONE;
}

/* The dead and the left: out of anti-entropy at half the grace, forgotten at the whole. */
static void forget_timer(struct shoal_swim *swim, struct shoal_swim_actions *actions)
{
    unsigned done = 0;

    for (uint32_t i = SWIM_SELF + 1; i < swim->members_used && swim->dead_count > 0 && done < FORGET_PER_STEP; i++) {
        const struct swim_member *m = &swim->members[i];

        if (m->card == 0 || swim_member_is_live(swim, i))
            continue;
        SHOAL_ASSERT(m->since_ns <= swim->now_ns && m->suspicion == 0); /* T2 */
        if (swim->now_ns - m->since_ns >= swim->opt.grace_ns) {
            swim_forget(swim, actions, i);
            done++;
        } else if (swim->now_ns - m->since_ns >= swim->opt.grace_ns / 2 && (m->flags & MEMBER_FADED) == 0) {
            swim_table_fade(swim, i);
        }
    }
    swim_records_sweep(swim);
}

static void reconnect_timer(struct shoal_swim *swim, struct shoal_swim_actions *actions)
{
    uint32_t dead;

    if (swim->now_ns < swim->reconnect_ns)
        return;
    swim->reconnect_ns = swim->now_ns + swim->opt.reconnect_interval_ns * 3 / 4 +
                         shoal_rand_below(&swim->chance, swim->opt.reconnect_interval_ns / 2 + 1);
    forget_timer(swim, actions);
    if (swim->leaving)
        return;
    SHOAL_ASSERT(swim->reconnect_ns > swim->now_ns); /* a timer step ends */
    dead = pick_dead(swim);
    if (dead != SWIM_NONE)
        send_ping(swim, actions, dead, ++swim->seq);
    /* Two halves that have forgotten each other still meet at a seed. */
    if (swim->joined && swim->seed_count > 0 && ++swim->reconnects % 12 == 0)
        seed_ping(swim, actions, &swim->seeds[shoal_rand_below(&swim->chance, swim->seed_count)]);
}

/* ---- datagrams ------------------------------------------------------------------------------------------------ */

bool swim_hear_news(struct shoal_swim *swim, const struct swim_origin *origin, struct shoal_reader *r)
{
    while (!r->failed && shoal_reader_left(r) > 0) {
        size_t len = shoal_get_u16(r);
        uint64_t age_s = shoal_get_u16(r);
        const uint8_t *bytes = shoal_get_space(r, len);
        struct shoal_view statement = shoal_view_of(bytes, len);

        if (bytes == NULL || len <= 3 + SWIM_SIGNATURE_BYTES)
            return false;
        if (bytes[2] > SWIM_VERSION || len > GOSSIP_POOL_STATEMENT_MAX) {
            shoal_count(&swim->stats.drop_unknown_item);
            continue;
        }
        switch (bytes[0]) {
        case SWIM_CARD: swim_hear_card(swim, origin, statement, age_s); break;
        case SWIM_ACCUSE: swim_hear_accuse(swim, origin, statement); break;
        case SWIM_RECORD: swim_hear_record(swim, origin, statement, age_s); break;
        default: shoal_count(&swim->stats.drop_unknown_item); break;
        }
    }
    return !r->failed;
}

static bool is_sync(enum swim_message message) { return message >= SWIM_ROOT; }

/* A datagram, decoded up to its news. */
struct heard {
    struct swim_head head;
    uint32_t seq;
    struct shoal_node_id target;
    struct shoal_address address;
    uint64_t wait_ns;
};

static void get_body(struct shoal_reader *r, struct heard *heard)
{
    enum swim_message message = heard->head.message;

    SHOAL_ASSERT(!is_sync(message)); /* anti-entropy reads its own */
    if (message == SWIM_GOSSIP)
        return;
    heard->seq = shoal_get_u32(r);
    if (message == SWIM_PING || message == SWIM_ASK || message == SWIM_NOT_ME ||
        (message == SWIM_ACK && (heard->head.flags & SWIM_RELAYED) != 0))
        heard->target = shoal_get_node_id(r);
    if (message == SWIM_ASK) {
        heard->address = shoal_get_address(r);
        heard->wait_ns = shoal_get_u16(r) * SHOAL_MS;
    }
}

static void answer(struct shoal_swim *swim, struct shoal_swim_actions *actions, const struct shoal_swim_event *event,
                   const struct heard *heard, uint32_t member, enum swim_message message)
{
    struct swim_out out;
    bool own_card = member == SWIM_NONE || (heard->head.flags & SWIM_WANT_CARD) != 0;

    if (!swim_out_begin(swim, actions, &out, message, member, event->datagram.from, event->datagram.address, 0))
        return;
    SHOAL_ASSERT(message == SWIM_ACK || message == SWIM_NOT_ME); /* I1 */
    shoal_put_u32(&out.w, heard->seq);
    if (message == SWIM_NOT_ME)
        shoal_put_node_id(&out.w, heard->target);
    swim_out_news(swim, &out, member, own_card);
    swim_out_end(swim, &out);
}

static void on_ping(struct shoal_swim *swim, struct shoal_swim_actions *actions, const struct shoal_swim_event *event,
                    const struct heard *heard, uint32_t member)
{
    bool mine = shoal_node_id_is_zero(heard->target) || shoal_node_id_equal(heard->target, swim->opt.id);

    SHOAL_ASSERT(member != SWIM_SELF);                                          /* on_own_datagram answers nothing */
    answer(swim, actions, event, heard, member, mine ? SWIM_ACK : SWIM_NOT_ME); /* I1 */
}

static void on_ask(struct shoal_swim *swim, struct shoal_swim_actions *actions, const struct shoal_swim_event *event,
                   const struct heard *heard, uint32_t member)
{
    struct swim_relay *relay = NULL;
    struct swim_out out;
    uint32_t target = swim_table_find(swim, heard->target);

    if (member == SWIM_NONE || target == SWIM_SELF)
        return;
    for (uint32_t i = 0; i < SWIM_RELAYS_MAX && relay == NULL; i++)
        if (swim->relays[i].end_ns == 0)
            relay = &swim->relays[i];
    if (relay == NULL) {
        shoal_count(&swim->stats.drop_relays_full);
        return;
    }
    *relay = (struct swim_relay){ .requester = event->datagram.from,
                                  .address = event->datagram.address,
                                  .target = heard->target,
                                  .seq = ++swim->seq,
                                  .their_seq = heard->seq };
    relay->nack_ns = swim->now_ns + (heard->wait_ns < 10 * SHOAL_MS ? 10 * SHOAL_MS : heard->wait_ns);
    relay->end_ns = swim->now_ns + 2 * swim->opt.probe_interval_ns;
    if (relay->end_ns < relay->nack_ns)
        relay->end_ns = relay->nack_ns;
    swim->relay_count++;
    SHOAL_ASSERT(swim->relay_count <= SWIM_RELAYS_MAX);
    SHOAL_ASSERT(relay->nack_ns <= relay->end_ns); /* who asked hears of it before it is forgotten */
    if (target != SWIM_NONE) {
        send_ping(swim, actions, target, relay->seq);
        return;
    }
    if (!swim_out_begin(swim, actions, &out, SWIM_PING, SWIM_NONE, heard->target, heard->address, 0))
        return;
    shoal_put_u32(&out.w, relay->seq);
    shoal_put_node_id(&out.w, heard->target);
    swim_out_end(swim, &out);
}

/* The answer to a ping that we sent for somebody else. */
static bool relay_ack(struct shoal_swim *swim, struct shoal_swim_actions *actions, const struct shoal_swim_event *event,
                      uint32_t seq)
{
    for (uint32_t i = 0; i < SWIM_RELAYS_MAX && swim->relay_count > 0; i++) {
        struct swim_relay *relay = &swim->relays[i];
        uint32_t member;
        struct swim_out out;

        if (relay->end_ns == 0 || relay->seq != seq || !shoal_node_id_equal(relay->target, event->datagram.from))
            continue;
        SHOAL_ASSERT(swim->relay_count > 0); /* I3 */
        member = swim_table_find(swim, relay->requester);
        relay->end_ns = 0;
        swim->relay_count--;
        if (swim_out_begin(swim, actions, &out, SWIM_ACK, member, relay->requester, relay->address, SWIM_RELAYED)) {
            shoal_put_u32(&out.w, relay->their_seq);
            shoal_put_node_id(&out.w, relay->target);
            swim_out_news(swim, &out, member, false);
            swim_out_end(swim, &out);
        }
        return true;
    }
    return false;
}

static bool seed_ack(struct shoal_swim *swim, struct shoal_swim_actions *actions, uint32_t seq, uint32_t member)
{
    for (uint32_t i = 0; i < swim->seed_count; i++) {
        if (swim->seeds[i].seq != seq)
            continue;
        SHOAL_ASSERT(member != SWIM_SELF); /* on_own_datagram */
        swim->joined = true;
        swim->seeds[i].answered = true;
        if (member != SWIM_NONE)
            swim_sync_start(swim, actions, member);
        return true;
    }
    return false;
}

static void learn_rtt(struct shoal_swim *swim, uint32_t member, uint64_t rtt_ns)
{
    struct swim_member *m = &swim->members[member];
    uint32_t rtt_us = (uint32_t)(rtt_ns / 1000 > 10000000 ? 10000000 : rtt_ns / 1000);

    SHOAL_ASSERT(member != SWIM_SELF && rtt_us <= 10000000);
    m->rtt_us -= m->rtt_us / 16;
    if (rtt_us > m->rtt_us)
        m->rtt_us = rtt_us;
}

static void on_ack(struct shoal_swim *swim, struct shoal_swim_actions *actions, const struct shoal_swim_event *event,
                   const struct heard *heard, uint32_t member)
{
    struct swim_probe *p = &swim->probe;
    bool relayed = (heard->head.flags & SWIM_RELAYED) != 0;
    bool ours = p->open && p->seq == heard->seq;

    if (ours && relayed && shoal_node_id_equal(heard->target, swim_id_of(swim, p->member))) {
        if (!p->acked) {
            swim->stats.probes_helped++;
            swim_note(swim, actions, SHOAL_SWIM_NOTE_THROUGH, heard->target, event->datagram.from);
        }
        p->acked = true;
        return;
    }
    if (ours && !relayed && member == p->member) { /* I3 */
        SHOAL_ASSERT(p->sent_ns <= swim->now_ns);  /* time never falls */
        learn_rtt(swim, member, swim->now_ns - p->sent_ns);
        if (!p->acked && p->ask_ns != 0 && swim->order_count < SMALL_MESH)
            swim->probe_ns = p->sent_ns + (p->end_ns - p->sent_ns) / 2;
        p->acked = true;
        return;
    }
    if (relayed || (!relay_ack(swim, actions, event, heard->seq) && !seed_ack(swim, actions, heard->seq, member)))
        shoal_count(&swim->stats.drop_wrong_answer);
}

static void on_nack(struct shoal_swim *swim, const struct heard *heard)
{
    struct swim_probe *p = &swim->probe;

    if (p->open && p->seq == heard->seq && p->nacks < p->asked)
        p->nacks++;
    else
        shoal_count(&swim->stats.drop_wrong_answer);
}

static void on_not_me(struct shoal_swim *swim, struct shoal_swim_actions *actions, const struct shoal_swim_event *event,
                      const struct heard *heard)
{
    struct swim_probe *p = &swim->probe;

    if (!p->open || p->acked || p->seq != heard->seq ||
        !shoal_node_id_equal(heard->target, swim_id_of(swim, p->member))) {
        shoal_count(&swim->stats.drop_wrong_answer);
        return;
    }
    swim_note(swim, actions, SHOAL_SWIM_NOTE_WRONG, heard->target, event->datagram.from);
    if (p->ask_ns != 0)
        probe_ask(swim, actions);
}

/* A datagram's head tells the sender's health, and whether we hold its newest card. */
static void hear_sender(struct shoal_swim *swim, const struct swim_head *head, uint32_t member)
{
    struct swim_member *m = &swim->members[member];

    SHOAL_ASSERT(member != SWIM_SELF && m->card != 0); /* T4 */
    SHOAL_ASSERT(head->health <= SWIM_HEALTH_MAX);     /* the decoder refuses others */
    m->health = head->health;
    if ((uint16_t)gossip_pool_hash(swim->pool, m->card) == head->tag)
        m->flags &= (uint8_t)~MEMBER_STALE_CARD;
    else
        m->flags |= MEMBER_STALE_CARD;
}

static void send_card(struct shoal_swim *swim, struct shoal_swim_actions *actions, uint32_t member)
{
    struct swim_out out;

    SHOAL_ASSERT(member != SWIM_SELF);
    if (!swim_out_to(swim, actions, &out, SWIM_GOSSIP, member))
        return;
    swim_out_news(swim, &out, member, true);
    swim_out_end(swim, &out);
}

static void act_on(struct shoal_swim *swim, struct shoal_swim_actions *actions, const struct shoal_swim_event *event,
                   const struct heard *heard, uint32_t member)
{
    switch (heard->head.message) {
    case SWIM_PING: on_ping(swim, actions, event, heard, member); return;
    case SWIM_ACK: on_ack(swim, actions, event, heard, member); break;
    case SWIM_NACK: on_nack(swim, heard); break;
    case SWIM_ASK: on_ask(swim, actions, event, heard, member); break;
    case SWIM_NOT_ME: on_not_me(swim, actions, event, heard); break;
    case SWIM_GOSSIP:
    case SWIM_ROOT:
    case SWIM_SAME:
    case SWIM_BUCKETS:
    case SWIM_DIGEST:
    case SWIM_ITEMS:
    case SWIM_WANT:
    case SWIM_MESSAGES: break;
    }
    if ((heard->head.flags & SWIM_WANT_CARD) != 0 && member != SWIM_NONE)
        send_card(swim, actions, member);
}

/* Ours by its seal: a seed that is ourselves, or a clone, whose card then says so. Never answered. */
static enum shoal_err on_own_datagram(struct shoal_swim *swim, const struct swim_origin *origin, struct heard *heard,
                                      struct shoal_reader *r)
{
    SHOAL_ASSERT(!origin->sync); /* what is ours by its seal is no anti-entropy */
    shoal_count(&swim->stats.drop_wrong_answer);
    if (is_sync(heard->head.message))
        return SHOAL_OK;
    get_body(r, heard);
    if (!r->failed && swim_hear_news(swim, origin, r))
        return SHOAL_OK;
    shoal_count(&swim->stats.drop_malformed);
    return SHOAL_ERR_MALFORMED;
}

static enum shoal_err on_datagram(struct shoal_swim *swim, struct shoal_swim_actions *actions,
                                  const struct shoal_swim_event *event)
{
    struct shoal_reader r = shoal_reader_init(event->datagram.bytes);
    struct heard heard = { .seq = 0 };
    struct swim_origin origin = { .actions = actions };
    enum shoal_err err = swim_get_head(&r, &heard.head);
    uint32_t member = swim_table_find(swim, event->datagram.from);
    bool was_live, good = true;

    swim->stats.received_datagrams++;
    swim->stats.received_bytes += event->datagram.bytes.len;
    if (err != SHOAL_OK) {
        shoal_count(err == SHOAL_ERR_UNSUPPORTED ? &swim->stats.drop_version : &swim->stats.drop_malformed);
        return err;
    }
    if (member == SWIM_SELF)
        return on_own_datagram(swim, &origin, &heard, &r);
    was_live = member != SWIM_NONE && swim_member_is_live(swim, member);
    origin.sync = heard.head.message == SWIM_ITEMS;
    if (is_sync(heard.head.message))
        good = swim_sync_hear(swim, actions, heard.head.message, member, event, &r);
    else
        get_body(&r, &heard);
    if (!good || r.failed || ((!is_sync(heard.head.message) || origin.sync) && !swim_hear_news(swim, &origin, &r))) {
        shoal_count(&swim->stats.drop_malformed);
        return SHOAL_ERR_MALFORMED;
    }
    if (member == SWIM_NONE)
        member = swim_table_find(swim, event->datagram.from);             /* it may have introduced itself */
    SHOAL_ASSERT(member == SWIM_NONE || swim->members[member].card != 0); /* T4: hearing removes nobody */
    if (member != SWIM_NONE)
        hear_sender(swim, &heard.head, member);
    act_on(swim, actions, event, &heard, member);
    /* Back from the dead: each side has changed without the other. */
    if (member != SWIM_NONE && !was_live && swim_member_is_live(swim, member) && swim->members_count > 2)
        swim_sync_start(swim, actions, member);
    return SHOAL_OK;
}

/* ---- other events --------------------------------------------------------------------------------------------- */

/* From now on anti-entropy comes at 0 to 1 s, then after 1, 2, 4 s ... up to its interval. */
static void sync_young(struct shoal_swim *swim)
{
    swim->sync_wait_ns = SHOAL_S < swim->opt.sync_interval_ns ? SHOAL_S : swim->opt.sync_interval_ns;
    SHOAL_ASSERT(swim->sync_wait_ns > 0); /* check_bounds */
    swim->sync_ns = swim->now_ns + shoal_rand_below(&swim->chance, swim->sync_wait_ns);
}

static void on_join(struct shoal_swim *swim, const struct shoal_swim_event *event)
{
    swim->seed_count = 0;
    for (size_t i = 0; i < event->join.count && swim->seed_count < SHOAL_SWIM_SEEDS_MAX; i++)
        if (!shoal_address_equal(event->join.addresses[i], swim->opt.address))
            swim->seeds[swim->seed_count++] = (struct swim_seed){ .address = event->join.addresses[i] };
    SHOAL_ASSERT(swim->seed_count <= SHOAL_SWIM_SEEDS_MAX);
    swim->joined = swim->seed_count == 0;
    swim->seed_ns = swim->now_ns;
    swim->seed_wait_ns = 500 * SHOAL_MS;
    sync_young(swim);
}

static void on_leave(struct shoal_swim *swim, struct shoal_swim_actions *actions)
{
    if (swim->leaving || !swim_self_card(swim, swim->incarnation.refutation + 1, true))
        return;
    swim->leaving = true;
    swim->probe.open = false;
    swim->gossiped_ns = 0;
    swim_table_move(swim, SWIM_SELF, SHOAL_MEMBER_LEFT, swim->now_ns);
    SHOAL_ASSERT(swim->members[SWIM_SELF].state == SHOAL_MEMBER_LEFT); /* T8 */
    gossip_timer(swim, actions);
}

static enum shoal_err on_refused(struct shoal_swim *swim, struct shoal_swim_actions *actions, struct shoal_node_id peer)
{
    uint32_t member = swim_table_find(swim, peer);
    struct swim_probe *p = &swim->probe;

    if (member == SWIM_NONE || member == SWIM_SELF)
        return SHOAL_ERR_NOT_FOUND;
    if (!swim_member_is_live(swim, member) || swim->leaving)
        return SHOAL_OK;
    if ((swim->members[member].flags & MEMBER_DOUBT) != 0) {
        if (p->open && p->member == member && !p->acked && p->ask_ns != 0)
            probe_ask(swim, actions);
        return SHOAL_OK;
    }
    SHOAL_ASSERT(shoal_node_id_equal(swim_id_of(swim, member), peer)); /* M2 */
    swim_declare(swim, actions, member, SWIM_GONE);
    return SHOAL_OK;
}

static void on_timer(struct shoal_swim *swim, struct shoal_swim_actions *actions)
{
    if (!swim->leaving) {
        probe_timer(swim, actions);
        relays_timer(swim, actions);
        suspicions_timer(swim, actions);
        seeds_timer(swim, actions);
        swim_sync_timer(swim, actions);
    }
    reconnect_timer(swim, actions);
    gossip_timer(swim, actions);
}

/* ---- the step ------------------------------------------------------------------------------------------------- */

static void sooner(uint64_t *deadline_ns, uint64_t at_ns)
{
    if (at_ns < *deadline_ns)
        *deadline_ns = at_ns;
}

static uint64_t earliest_ns(const struct shoal_swim *swim)
{
    uint64_t at = gossip_deadline_ns(swim);

    if (swim->dead_count + swim->tombstones > 0 || (swim->seed_count > 0 && swim->joined))
        sooner(&at, swim->reconnect_ns);
    if (swim->leaving) {
        if (!swim->leave_told && (swim->order_count == 0 || !swim_news_has_card(swim, SWIM_SELF)))
            return swim->now_ns;
        return at;
    }
    if (swim->order_count > 0) {
        sooner(&at, swim->probe_ns);
        sooner(&at, swim->sync_ns);
    }
    if (swim->probe.open && !swim->probe.acked && swim->probe.ask_ns != 0)
        sooner(&at, swim->probe.ask_ns);
    if (swim->session.open)
        sooner(&at, swim->session.deadline_ns);
    if (!swim->joined)
        sooner(&at, swim->seed_ns);
    for (uint32_t i = 0; i < swim->suspicion_count; i++)
        sooner(&at, swim->suspicions[i].deadline_ns);
    for (uint32_t i = 0; i < SWIM_RELAYS_MAX && swim->relay_count > 0; i++)
        if (swim->relays[i].end_ns != 0)
            sooner(&at, swim->relays[i].nack_ns != 0 ? swim->relays[i].nack_ns : swim->relays[i].end_ns);
    return at;
}

/* Never in the past: what became due just now is not late. */
static uint64_t next_deadline_ns(const struct shoal_swim *swim)
{
    uint64_t at = earliest_ns(swim);

    SHOAL_ASSERT(swim->started);
    return at < swim->now_ns ? swim->now_ns : at;
}

static void start(struct shoal_swim *swim)
{
    SHOAL_ASSERT(!swim->started && swim->order_count == 0); /* T5: nobody is known before the first step */
    swim->started = true;
    swim->members[SWIM_SELF].since_ns = swim->now_ns;
    /* Nodes that start together do not probe together. */
    swim->probe_ns = swim->now_ns + shoal_rand_below(&swim->chance, swim->opt.probe_interval_ns);
    sync_young(swim);
    swim->reconnect_ns = swim->now_ns + swim->opt.reconnect_interval_ns;
}

/* Every step relies on this, and leaves it true. */
static void check_counts(const struct shoal_swim *swim)
{
    SHOAL_ASSERT(swim->members_count <= swim->members_used && swim->members_used <= swim->opt.members_max); /* T4 */
    SHOAL_ASSERT(swim->order_count < swim->members_count || swim->members_count == 0);                      /* T1 */
    SHOAL_ASSERT(swim->order_at <= swim->order_count);                                                      /* T6 */
    SHOAL_ASSERT(swim->suspicion_count <= swim->order_count);                                               /* T2 */
    SHOAL_ASSERT(swim->order_count + swim->dead_count + (swim->leaving ? 0 : 1) == swim->members_count);    /* T1 */
    SHOAL_ASSERT(swim->records_count <= swim->records_used && swim->records_used <= swim->opt.records_max); /* R6 */
    SHOAL_ASSERT(swim->queue_members.count <= swim->queue_members.max);                                     /* N3 */
    SHOAL_ASSERT(swim->queue_records.count <= swim->queue_records.max);                                     /* N3 */
    SHOAL_ASSERT(swim->relay_count <= SWIM_RELAYS_MAX);
}

enum shoal_err shoal_swim_step(struct shoal_swim *swim, const struct shoal_swim_event *event, uint64_t now_ns,
                               struct shoal_swim_actions *actions)
{
    enum shoal_err err = SHOAL_OK;

    check_counts(swim);
    actions->count = 0;
    actions->sends = 0;
    swim_release_retired(swim);
    if (now_ns > swim->now_ns)
        swim->now_ns = now_ns;
    if (!swim->started)
        start(swim);
    else if (swim->now_ns > swim->deadline_ns && swim->now_ns - swim->deadline_ns > swim->opt.probe_interval_ns / 2)
        was_late(swim, actions, swim->now_ns - swim->deadline_ns);
    switch (event->kind) {
    case SHOAL_SWIM_TIMER: on_timer(swim, actions); break;
    case SHOAL_SWIM_DATAGRAM: err = on_datagram(swim, actions, event); break;
    case SHOAL_SWIM_JOIN: on_join(swim, event); break;
    case SHOAL_SWIM_LEAVE: on_leave(swim, actions); break;
    case SHOAL_SWIM_HEALTH: measure(swim, event->health.loop_lag_ns); break;
    case SHOAL_SWIM_REFUSED: err = on_refused(swim, actions, event->peer); break;
    case SHOAL_SWIM_PUBLISH: err = swim_publish(swim, event->record); break;
    case SHOAL_SWIM_EXPEL: err = swim_expel(swim, actions, event->peer); break;
    }
    swim->deadline_ns = next_deadline_ns(swim);
    check_counts(swim);
    return err;
}

uint64_t shoal_swim_deadline_ns(const struct shoal_swim *swim) { return swim->started ? swim->deadline_ns : 0; }

/* ---- reading -------------------------------------------------------------------------------------------------- */

bool shoal_swim_member_find(const struct shoal_swim *swim, struct shoal_node_id id, struct shoal_member *member)
{
    uint32_t at = swim_table_find(swim, id);

    if (at == SWIM_NONE)
        return false;
    swim_member_out(swim, at, member);
    return true;
}

bool shoal_swim_member_next(const struct shoal_swim *swim, uint32_t *cursor, struct shoal_member *member)
{
    while (*cursor < swim->members_used) {
        uint32_t at = (*cursor)++;

        if (swim->members[at].card == 0)
            continue;
        swim_member_out(swim, at, member);
        return true;
    }
    return false;
}

void shoal_swim_self(const struct shoal_swim *swim, struct shoal_member *member)
{
    swim_member_out(swim, SWIM_SELF, member);
}

uint32_t shoal_swim_live_count(const struct shoal_swim *swim)
{
    SHOAL_ASSERT(swim->order_count < swim->members_count); /* T1: we are not in the order */
    return swim->order_count + (swim->leaving ? 0 : 1);
}

bool shoal_swim_is_joined(const struct shoal_swim *swim) { return swim->joined; }

/* One member against all that is kept about it elsewhere. */
static void check_member(const struct shoal_swim *swim, uint32_t at)
{
    const struct swim_member *m = &swim->members[at];
    bool live = swim_member_is_live(swim, at);

    SHOAL_ASSERT(swim_table_find(swim, swim_id_of(swim, at)) == at);                    /* T4 */
    SHOAL_ASSERT((m->order != SWIM_NONE) == (live && at != SWIM_SELF));                 /* T1 */
    SHOAL_ASSERT(m->order == SWIM_NONE || swim->order[m->order] == at);                 /* T1 */
    SHOAL_ASSERT((m->suspicion != 0) == (m->state == SHOAL_MEMBER_SUSPECT));            /* T2 */
    SHOAL_ASSERT(m->suspicion == 0 || swim->suspicions[m->suspicion - 1].member == at); /* T2 */
    SHOAL_ASSERT((m->flags & MEMBER_FADED) == 0 || !live);                              /* T3 */
}

void shoal_swim_check(const struct shoal_swim *swim)
{
    uint64_t members[SWIM_BUCKETS_COUNT] = { 0 }, records[SWIM_BUCKETS_COUNT] = { 0 };
    uint32_t members_count = 0, records_count = 0, tombstones = 0, authored = 0;

    check_counts(swim);
    for (uint32_t i = 0; i < swim->members_used; i++) {
        if (swim->members[i].card == 0)
            continue;
        members_count++;
        authored += swim->members[i].records;
        check_member(swim, i);
        if ((swim->members[i].flags & MEMBER_FADED) == 0)
            members[swim_id_hash(swim_id_of(swim, i)) >> 56] ^= swim_member_sum(swim, i);
    }
    for (uint32_t i = 0; i < swim->records_used; i++) {
        if (swim->records[i].blob == 0)
            continue;
        records_count++;
        tombstones += swim->records[i].tombstone;
        authored -= swim->records[i].author != SWIM_NONE;
        if (!swim->records[i].faded)
            records[swim_record_hash(swim, i) >> 56] ^= swim_record_sum(swim, i);
    }
    SHOAL_ASSERT(members_count == swim->members_count);                                   /* T4 */
    SHOAL_ASSERT(records_count == swim->records_count && tombstones == swim->tombstones); /* R6 */
    SHOAL_ASSERT(authored == 0);                                                          /* R5 */
    swim_queue_check(&swim->queue_members);
    swim_queue_check(&swim->queue_records);
    SHOAL_ASSERT(memcmp(members, swim->member_chains.sums, sizeof(members)) == 0); /* T3 */
    SHOAL_ASSERT(memcmp(records, swim->record_chains.sums, sizeof(records)) == 0); /* R6 */
}

void shoal_swim_stats(const struct shoal_swim *swim, struct shoal_swim_stats *stats)
{
    *stats = swim->stats;
    stats->members = swim->members_count;
    stats->live = shoal_swim_live_count(swim);
    stats->suspects = swim->suspicion_count;
    stats->dead = swim->dead_count;
    stats->records = swim->records_count;
    stats->queue_members = swim->queue_members.count;
    stats->queue_records = swim->queue_records.count;
}
