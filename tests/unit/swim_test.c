/* Membership: the rules of cards and accusations by tables, suspicion times, probing, and small meshes under faults. */
#include "gossip_net.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/mman.h>

#include <cmocka.h>

static struct net net;

/* a runs; b, c, d and more exist as names and keys only. */
static struct net_node *alone(int others)
{
    static const char *const names[] = { "a", "b", "c", "d" };

    net_init(&net, 7);
    for (int i = 0; i <= others; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "m%d", i);
        (void)net_add(&net, i < 4 ? names[i] : name);
    }
    net_start(&net.nodes[0]);
    return &net.nodes[0];
}

static void introduce(struct net_node *to, const struct net_node *who, uint32_t refutation)
{
    struct craft c;

    craft_begin(&c, CRAFT_GOSSIP);
    craft_card(&c, who, &(struct craft_card){ .incarnation = { 1, 1, refutation } });
    assert_int_equal(craft_deliver(&c, to, who), SHOAL_OK);
}

static void accuse(struct net_node *to, enum craft_verdict verdict, const struct net_node *target, uint32_t refutation,
                   const struct net_node *by)
{
    struct craft c;

    craft_begin(&c, CRAFT_GOSSIP);
    craft_accuse(&c, verdict, target, (struct shoal_incarnation){ 1, 1, refutation }, by, false);
    assert_int_equal(craft_deliver(&c, to, by), SHOAL_OK);
}

static enum shoal_err try_publish(struct net_node *node, enum shoal_record_kind kind, uint8_t key, uint64_t version,
                                  const char *text)
{
    struct shoal_record record = {
        .kind = kind, .key = { { key } }, .version = { { 0, 0, version } }, .payload = shoal_view_text(text)
    };

    return net_step(node, &(struct shoal_swim_event){ .kind = SHOAL_SWIM_PUBLISH, .record = &record });
}

static void publish(struct net_node *node, enum shoal_record_kind kind, uint8_t key, uint64_t version, const char *text)
{
    assert_int_equal(try_publish(node, kind, key, version, text), SHOAL_OK);
}

/* ---- rules about others --------------------------------------------------------------------------------------- */

enum said { SAID_ALIVE, SAID_LEAVING, SAID_SUSPECT, SAID_DEAD, SAID_GONE };

struct rule {
    const char *name;
    enum shoal_member_state ours; /* of b, at refutation 5 of life 1.2 */
    enum said said;
    struct shoal_incarnation theirs;
    char by; /* who accuses: c, d, b itself, a (ourselves), x (a stranger) */
    bool spoil, foreign_id;
    enum shoal_member_state want;
};

#define A SHOAL_MEMBER_ALIVE
#define S SHOAL_MEMBER_SUSPECT
#define D SHOAL_MEMBER_DEAD
#define L SHOAL_MEMBER_LEFT
#define N SHOAL_MEMBER_NONE

static const struct rule rules[] = {
    { "a stranger's card makes a member", N, SAID_ALIVE, { 1, 1, 0 }, 0, false, false, A },
    { "a stranger's goodbye is kept", N, SAID_LEAVING, { 1, 1, 0 }, 0, false, false, L },
    { "a card with a wrong signature is nothing", N, SAID_ALIVE, { 1, 1, 0 }, 0, true, false, N },
    { "a card whose id is another key's is nothing", N, SAID_ALIVE, { 1, 1, 0 }, 0, false, true, N },
    { "dead about nobody known is ignored", N, SAID_DEAD, { 1, 1, 0 }, 'c', false, false, N },
    { "an older suspicion is ignored", A, SAID_SUSPECT, { 1, 2, 4 }, 'c', false, false, A },
    { "an equal suspicion is believed", A, SAID_SUSPECT, { 1, 2, 5 }, 'c', false, false, S },
    { "a suspicion of a card that nobody signed is ignored", A, SAID_SUSPECT, { 1, 2, 6 }, 'c', false, false, A },
    { "so is a verdict, of a suspect too", S, SAID_DEAD, { 1, 2, 6 }, 'd', false, false, S },
    { "and one of a life to come", A, SAID_GONE, { 1, 3, 0 }, 'c', false, false, A },
    { "a suspicion of an older life is ignored", A, SAID_SUSPECT, { 1, 1, 9 }, 'c', false, false, A },
    { "a suspicion with a wrong signature is nothing", A, SAID_SUSPECT, { 1, 2, 5 }, 'c', true, false, A },
    { "a stranger's suspicion is dropped", A, SAID_SUSPECT, { 1, 2, 5 }, 'x', false, false, A },
    { "our own word coming back is ignored", A, SAID_SUSPECT, { 1, 2, 5 }, 'a', false, false, A },
    { "nobody accuses itself", A, SAID_SUSPECT, { 1, 2, 5 }, 'b', false, false, A },
    { "a verdict about one whom nobody suspected only suspects", A, SAID_DEAD, { 1, 2, 5 }, 'c', false, false, S },
    { "a refused port seen by another only suspects", A, SAID_GONE, { 1, 2, 5 }, 'c', false, false, S },
    { "an older verdict is ignored", S, SAID_DEAD, { 1, 2, 4 }, 'd', false, false, S },
    { "a verdict about a suspect is believed", S, SAID_DEAD, { 1, 2, 5 }, 'd', false, false, D },
    { "the first accuser's verdict is believed too", S, SAID_DEAD, { 1, 2, 5 }, 'c', false, false, D },
    { "a refused port seen by another ends a suspect", S, SAID_GONE, { 1, 2, 5 }, 'd', false, false, D },
    { "an equal card does not clear a suspect", S, SAID_ALIVE, { 1, 2, 5 }, 0, false, false, S },
    { "a refutation clears a suspect", S, SAID_ALIVE, { 1, 2, 6 }, 0, false, false, A },
    { "a forged refutation does not", S, SAID_ALIVE, { 1, 2, 6 }, 0, true, false, S },
    { "a suspicion of the dead is ignored", D, SAID_SUSPECT, { 1, 2, 5 }, 'd', false, false, D },
    { "an equal card does not raise the dead", D, SAID_ALIVE, { 1, 2, 5 }, 0, false, false, D },
    { "an old card replayed does not raise the dead", D, SAID_ALIVE, { 1, 2, 4 }, 0, false, false, D },
    { "a refutation raises the dead", D, SAID_ALIVE, { 1, 2, 6 }, 0, false, false, A },
    { "a restart outranks every refutation", D, SAID_ALIVE, { 1, 3, 0 }, 0, false, false, A },
    { "a new boot outranks every restart", D, SAID_ALIVE, { 2, 1, 0 }, 0, false, false, A },
    { "an older life with a higher refutation is ignored", D, SAID_ALIVE, { 1, 1, 99 }, 0, false, false, D },
    { "a goodbye is believed", A, SAID_LEAVING, { 1, 2, 6 }, 0, false, false, L },
    { "a goodbye of a suspect is believed", S, SAID_LEAVING, { 1, 2, 6 }, 0, false, false, L },
    { "a goodbye of the dead is believed", D, SAID_LEAVING, { 1, 2, 6 }, 0, false, false, L },
    { "an old goodbye is ignored", A, SAID_LEAVING, { 1, 2, 5 }, 0, false, false, A },
    { "a suspicion of one who left is ignored", L, SAID_SUSPECT, { 1, 2, 6 }, 'c', false, false, L },
    { "a verdict about one who left is ignored", L, SAID_DEAD, { 1, 2, 6 }, 'c', false, false, L },
    { "an equal card does not bring back who left", L, SAID_ALIVE, { 1, 2, 6 }, 0, false, false, L },
    { "who left comes back with a new life", L, SAID_ALIVE, { 1, 3, 0 }, 0, false, false, A },
};

static struct net_node *by_name(char name)
{
    char text[2] = { name, '\0' };

    return name == 'x' ? net_find(&net, "m4") : net_find(&net, text);
}

static void make_state(struct net_node *a, struct net_node *b, enum shoal_member_state state)
{
    struct craft c;
    struct shoal_incarnation at = { 1, 2, 5 };

    if (state == SHOAL_MEMBER_NONE)
        return;
    craft_begin(&c, CRAFT_GOSSIP);
    craft_card(&c, b, &(struct craft_card){ .incarnation = at });
    if (state == SHOAL_MEMBER_SUSPECT || state == SHOAL_MEMBER_DEAD)
        craft_accuse(&c, CRAFT_SUSPECT, b, at, by_name('c'), false);
    if (state == SHOAL_MEMBER_DEAD)
        craft_accuse(&c, CRAFT_DEAD, b, at, by_name('c'), false);
    if (state == SHOAL_MEMBER_LEFT)
        craft_card(&c, b, &(struct craft_card){ .incarnation = { 1, 2, 6 }, .leaving = true });
    assert_int_equal(craft_deliver(&c, a, by_name('d')), SHOAL_OK);
    assert_int_equal(net_state(a, b), state);
}

static void words_about_others_follow_the_rules(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        const struct rule *rule = &rules[i];
        struct net_node *a = alone(4), *b = by_name('b');
        struct shoal_swim_stats stats;
        struct craft c;

        introduce(a, by_name('c'), 0);
        introduce(a, by_name('d'), 0);
        make_state(a, b, rule->ours);
        craft_begin(&c, CRAFT_GOSSIP);
        if (rule->said == SAID_ALIVE || rule->said == SAID_LEAVING)
            craft_card(&c, b,
                       &(struct craft_card){ .incarnation = rule->theirs,
                                             .leaving = rule->said == SAID_LEAVING,
                                             .spoil = rule->spoil,
                                             .foreign_id = rule->foreign_id });
        else
            craft_accuse(&c, (enum craft_verdict)(rule->said - SAID_SUSPECT), b, rule->theirs, by_name(rule->by),
                         rule->spoil);
        assert_int_equal(craft_deliver(&c, a, by_name('d')), SHOAL_OK);
        if (net_state(a, b) != rule->want)
            fail_msg("%s: want state %d, got %d", rule->name, (int)rule->want, (int)net_state(a, b));
        shoal_swim_stats(a->swim, &stats);
        if (stats.members != (rule->want == SHOAL_MEMBER_NONE ? 3 : 4))
            fail_msg("%s: %u members", rule->name, stats.members);
        net_deinit(&net);
    }
}

static void the_accuser_who_opened_with_a_verdict_does_not_count_twice(void **state)
{
    struct net_node *a = alone(4);

    (void)state;
    introduce(a, by_name('b'), 0);
    introduce(a, by_name('c'), 0);
    introduce(a, by_name('d'), 0);
    accuse(a, CRAFT_DEAD, by_name('b'), 0, by_name('c'));
    accuse(a, CRAFT_DEAD, by_name('b'), 0, by_name('c'));
    accuse(a, CRAFT_GONE, by_name('b'), 0, by_name('c'));
    assert_int_equal(net_state(a, by_name('b')), SHOAL_MEMBER_SUSPECT);
    accuse(a, CRAFT_DEAD, by_name('b'), 0, by_name('d'));
    assert_int_equal(net_state(a, by_name('b')), SHOAL_MEMBER_DEAD);
    net_deinit(&net);
}

static void held_for_dead_in_anti_entropy_suspects_the_known_and_keeps_the_stranger(void **state)
{
    struct net_node *a = alone(4), *b = by_name('b'), *d = by_name('d');
    struct craft c;
    struct shoal_member member;

    (void)state;
    introduce(a, b, 0);
    introduce(a, by_name('c'), 0);
    net.now_ns += 400 * SHOAL_S;
    craft_begin(&c, CRAFT_ITEMS);
    shoal_put_u32(&c.w, 1);
    craft_card(&c, b, &(struct craft_card){ .incarnation = { 1, 1, 0 }, .age_s = 100 });
    craft_accuse(&c, CRAFT_SUSPECT, b, (struct shoal_incarnation){ 1, 1, 0 }, by_name('c'), false);
    craft_card(&c, d, &(struct craft_card){ .incarnation = { 1, 1, 0 }, .age_s = 100 });
    craft_card(&c, by_name('x'), &(struct craft_card){ .incarnation = { 1, 1, 0 }, .age_s = 301 });
    assert_int_equal(craft_deliver(&c, a, by_name('c')), SHOAL_OK);
    assert_int_equal(net_state(a, b), SHOAL_MEMBER_SUSPECT);
    assert_int_equal(net_state(a, d), SHOAL_MEMBER_DEAD);
    assert_true(shoal_swim_member_find(a->swim, d->options.id, &member));
    assert_int_equal(member.since_ns, net.now_ns - 100 * SHOAL_S);
    assert_int_equal(net_state(a, by_name('x')), SHOAL_MEMBER_NONE); /* beyond half the grace: nearly forgotten */
    net_deinit(&net);
}

/* ---- rules about ourselves ------------------------------------------------------------------------------------ */

static unsigned clones_seen;

static void count_clones(struct net *of, struct net_node *node, const struct shoal_swim_action *action)
{
    (void)of;
    (void)node;
    clones_seen += action->kind == SHOAL_SWIM_CLONED;
}

static uint32_t own_refutation(struct net_node *node)
{
    struct shoal_member self;

    shoal_swim_self(node->swim, &self);
    return self.incarnation.refutation;
}

static void an_accusation_of_ourselves_is_refuted_if_it_is_about_now(void **state)
{
    static const struct {
        const char *name;
        enum craft_verdict verdict;
        struct shoal_incarnation at;
        bool leaving;
        uint32_t want;
    } rows[] = {
        { "a suspicion of our present card is refuted", CRAFT_SUSPECT, { 1, 1, 1 }, false, 2 },
        { "a verdict about our present card is refuted", CRAFT_DEAD, { 1, 1, 1 }, false, 2 },
        { "a suspicion that we refuted already is not", CRAFT_SUSPECT, { 1, 1, 0 }, false, 1 },
        { "an accusation of what we never were proves nothing", CRAFT_DEAD, { 1, 1, 77 }, false, 1 },
        { "an accusation of a later life proves nothing", CRAFT_DEAD, { 1, 2, 0 }, false, 1 },
        { "who leaves does not argue", CRAFT_SUSPECT, { 1, 1, 2 }, true, 2 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct net_node *a = alone(2), *b = by_name('b');
        struct craft c;

        introduce(a, b, 0);
        accuse(a, CRAFT_SUSPECT, a, 0, b); /* our card is at refutation 1 from here on */
        assert_int_equal(own_refutation(a), 1);
        if (rows[i].leaving)
            assert_int_equal(net_step(a, &(struct shoal_swim_event){ .kind = SHOAL_SWIM_LEAVE }), SHOAL_OK);
        craft_begin(&c, CRAFT_GOSSIP);
        craft_accuse(&c, rows[i].verdict, a, rows[i].at, b, false);
        assert_int_equal(craft_deliver(&c, a, b), SHOAL_OK);
        if (own_refutation(a) != rows[i].want)
            fail_msg("%s: want refutation %u, got %u", rows[i].name, rows[i].want, own_refutation(a));
        net_deinit(&net);
    }
}

static void a_card_of_ours_from_the_future_is_a_clone(void **state)
{
    static const struct {
        const char *name;
        struct shoal_incarnation at;
        bool spoil, other_key;
        unsigned want;
    } rows[] = {
        { "our past is no clone", { 1, 1, 9 }, false, false, 0 },
        { "our present card is no clone", { 1, 2, 0 }, false, false, 0 },
        { "our life's future was signed elsewhere", { 1, 2, 1 }, false, false, 1 },
        { "a later life of ours runs elsewhere", { 1, 3, 0 }, false, false, 1 },
        { "a later boot of ours runs elsewhere", { 2, 1, 0 }, false, false, 1 },
        { "a forged card of ours is nothing", { 1, 3, 0 }, true, false, 0 },
        { "our store in a later life under another key", { 1, 3, 0 }, false, true, 1 },
        { "our store in an earlier life under another key is older", { 1, 1, 0 }, false, true, 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct net_node *a = alone(2), *b = by_name('b'), *other;
        struct craft c;

        shoal_swim_destroy(a->swim);
        a->options.agent = 2;
        net_start(a);
        net.on_action = count_clones;
        clones_seen = 0;
        introduce(a, b, 0);
        other = rows[i].other_key ? by_name('c') : a;
        other->options.store = a->options.store;
        for (int twice = 0; twice < 2; twice++) {
            craft_begin(&c, CRAFT_GOSSIP);
            craft_card(&c, other, &(struct craft_card){ .incarnation = rows[i].at, .spoil = rows[i].spoil });
            assert_int_equal(craft_deliver(&c, a, b), SHOAL_OK);
        }
        if (clones_seen != rows[i].want)
            fail_msg("%s: want %u, got %u", rows[i].name, rows[i].want, clones_seen);
        net_deinit(&net);
    }
}

static struct shoal_node_id removed;

static bool is_admitted(void *arg, struct shoal_node_id id)
{
    (void)arg;
    return !shoal_node_id_equal(id, removed);
}

/* M7. */
static void no_card_of_a_removed_node_is_taken(void **state)
{
    struct net_node *a = alone(2), *b = by_name('b'), *c = by_name('c');
    struct craft craft;

    (void)state;
    shoal_swim_destroy(a->swim);
    a->options.env.admits = is_admitted;
    net_start(a);
    removed = b->options.id;
    introduce(a, b, 0);
    introduce(a, c, 0);
    assert_int_equal(shoal_swim_live_count(a->swim), 2); /* itself and c */
    removed = c->options.id;
    craft_begin(&craft, CRAFT_GOSSIP);
    craft_card(&craft, c, &(struct craft_card){ .incarnation = { 1, 2, 0 } }); /* it has started anew */
    assert_int_equal(craft_deliver(&craft, a, b), SHOAL_OK);
    introduce(a, b, 0);
    assert_int_equal(shoal_swim_live_count(a->swim), 3); /* c as it was, until the owner says that it has left */
    net_deinit(&net);
}

/* ---- suspicion times ------------------------------------------------------------------------------------------- */

static void a_suspicion_lasts_what_the_formula_says(void **state)
{
    static const struct {
        const char *name;
        int members; /* with ourselves */
        int confirmed;
        uint64_t want_ms;
    } rows[] = {
        { "four members: one of two", 4, 1, 3556 },
        { "ten members: the maximum", 10, 0, 7500 },
        { "ten members: one of three", 10, 1, 4375 },
        { "ten members: two of three", 10, 2, 2550 },
        { "ten members: three of three", 10, 3, 1250 },
        { "a fourth confirmation adds nothing", 10, 4, 1250 },
        { "fifty members: more time, by the logarithm", 50, 3, 2122 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct net_node *a = alone(rows[i].members - 1), *b = by_name('b');
        uint64_t want_ns = rows[i].want_ms * SHOAL_MS;

        for (int j = 1; j < rows[i].members; j++)
            introduce(a, &net.nodes[j], 0);
        net_run_answered(a, 2 * SHOAL_S, NULL);
        accuse(a, CRAFT_SUSPECT, b, 0, by_name('c'));
        for (int j = 0; j < rows[i].confirmed; j++) {
            accuse(a, CRAFT_SUSPECT, b, 0, &net.nodes[3 + j]);
            accuse(a, CRAFT_SUSPECT, b, 0, by_name('c')); /* the first accuser again does not count */
            accuse(a, CRAFT_SUSPECT, b, 0, &net.nodes[3 + j]);
        }
        net_run_answered(a, want_ns - 2 * SHOAL_MS, NULL);
        if (net_state(a, b) != SHOAL_MEMBER_SUSPECT)
            fail_msg("%s: not suspect before %llu ms", rows[i].name, (unsigned long long)rows[i].want_ms);
        net_run_answered(a, 4 * SHOAL_MS, NULL);
        if (net_state(a, b) != SHOAL_MEMBER_DEAD)
            fail_msg("%s: not dead after %llu ms", rows[i].name, (unsigned long long)rows[i].want_ms);
        net_deinit(&net);
    }
}

/* ---- probing --------------------------------------------------------------------------------------------------- */

static unsigned pings_to[NET_NODES_MAX];
static uint8_t last_ping_seq[4];

static void count_pings(const struct net_datagram *datagram)
{
    if (datagram->bytes[3] != CRAFT_PING)
        return;
    memcpy(last_ping_seq, datagram->bytes + CRAFT_BODY, 4);
    for (int i = 0; i < net.count; i++)
        pings_to[i] += shoal_node_id_equal(net.nodes[i].options.id, datagram->to);
}

static void every_member_is_probed_within_two_rounds(void **state)
{
    struct net_node *a = alone(12);

    (void)state;
    for (int i = 1; i <= 12; i++)
        introduce(a, &net.nodes[i], 0);
    for (int round = 0; round < 10; round++) {
        memset(pings_to, 0, sizeof(pings_to));
        net_run_answered(a, 23 * 250 * SHOAL_MS, count_pings);
        for (int i = 1; i <= 12; i++)
            assert_in_range(pings_to[i], 1, 3);
    }
    net_deinit(&net);
}

/* The first ping to b goes out; its sequence is in last_ping_seq. */
static void until_ping(struct net_node *a)
{
    unsigned turns = 0;

    net.flight_count = 0;
    while (net.flight_count == 0 || net.flight[0].bytes[3] != CRAFT_PING) {
        net.flight_count = 0;
        assert_true(++turns < 1000);
        if (shoal_swim_deadline_ns(a->swim) > net.now_ns)
            net.now_ns = shoal_swim_deadline_ns(a->swim);
        (void)net_step(a, &(struct shoal_swim_event){ .kind = SHOAL_SWIM_TIMER });
    }
    memcpy(last_ping_seq, net.flight[0].bytes + CRAFT_BODY, 4);
    net.flight_count = 0;
}

static void run_silent(struct net_node *a, uint64_t ns)
{
    uint64_t until_ns = net.now_ns + ns;

    while (shoal_swim_deadline_ns(a->swim) <= until_ns) {
        if (shoal_swim_deadline_ns(a->swim) > net.now_ns)
            net.now_ns = shoal_swim_deadline_ns(a->swim);
        (void)net_step(a, &(struct shoal_swim_event){ .kind = SHOAL_SWIM_TIMER });
        net.flight_count = 0;
    }
    net.now_ns = until_ns;
}

static void an_answer_counts_only_from_whom_it_was_asked(void **state)
{
    static const struct {
        const char *name;
        char from;
        bool wrong_seq, relayed, late;
        char about;
        enum shoal_member_state want; /* of b after the period */
    } rows[] = {
        { "b's ack in time", 'b', false, false, false, 0, SHOAL_MEMBER_ALIVE },
        { "b's ack after helpers were asked, before the period ends", 'b', false, false, true, 0, SHOAL_MEMBER_ALIVE },
        { "an ack by somebody else", 'x', false, false, false, 0, SHOAL_MEMBER_SUSPECT },
        { "an ack with another sequence", 'b', true, false, false, 0, SHOAL_MEMBER_SUSPECT },
        { "an ack through a helper", 'x', false, true, true, 'b', SHOAL_MEMBER_ALIVE },
        { "an ack through a helper, about another", 'x', false, true, true, 'c', SHOAL_MEMBER_SUSPECT },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct net_node *a = alone(4);
        struct craft c;

        introduce(a, by_name('b'), 0);
        until_ping(a);
        run_silent(a, rows[i].late ? 300 * SHOAL_MS : 20 * SHOAL_MS);
        craft_begin(&c, CRAFT_ACK);
        c.bytes[4] = rows[i].relayed ? 2 : 0;
        last_ping_seq[0] ^= rows[i].wrong_seq ? 1 : 0;
        shoal_put_raw(&c.w, last_ping_seq, 4);
        if (rows[i].relayed)
            shoal_put_node_id(&c.w, by_name(rows[i].about)->options.id);
        assert_int_equal(craft_deliver(&c, a, by_name(rows[i].from)), SHOAL_OK);
        run_silent(a, 500 * SHOAL_MS);
        if (net_state(a, by_name('b')) != rows[i].want)
            fail_msg("%s: want state %d, got %d", rows[i].name, (int)rows[i].want, (int)net_state(a, by_name('b')));
        net_deinit(&net);
    }
}

static void silent_helpers_cost_health_and_fine_ones_do_not(void **state)
{
    (void)state;
    for (int nacks = 0; nacks <= 3; nacks++) {
        struct net_node *a = alone(4);

        for (int i = 1; i <= 4; i++)
            introduce(a, &net.nodes[i], 0);
        until_ping(a);
        run_silent(a, 150 * SHOAL_MS);
        for (int i = 0; i < nacks; i++) {
            struct craft c;

            craft_begin(&c, CRAFT_NACK);
            shoal_put_raw(&c.w, last_ping_seq, 4);
            assert_int_equal(craft_deliver(&c, a, &net.nodes[1 + i]), SHOAL_OK);
        }
        run_silent(a, 360 * SHOAL_MS);
        assert_int_equal(shoal_swim_health(a->swim), 3 - nacks);
        net_deinit(&net);
    }
}

static void an_unwell_node_probes_slowly_and_accuses_only_the_often_silent(void **state)
{
    struct net_node *a = alone(30);
    struct shoal_swim_stats stats;

    (void)state;
    for (int i = 1; i <= 30; i++)
        introduce(a, &net.nodes[i], 0);
    run_silent(a, 60 * SHOAL_S); /* nothing reaches a at all */
    assert_int_equal(shoal_swim_health(a->swim), 7);
    shoal_swim_stats(a->swim, &stats);
    assert_in_range(stats.suspicions, 1, 2);
    assert_in_range(stats.probes, 12, 20); /* 60 s at 500 ms to 4 s */
    net_deinit(&net);
}

static void a_measured_lag_is_health_and_fades(void **state)
{
    static const struct {
        uint64_t lag_ms;
        uint32_t want;
    } rows[] = { { 0, 0 }, { 99, 0 }, { 100, 1 }, { 260, 3 }, { 999, 5 }, { 5000, 7 } };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct net_node *a = alone(2);
        struct shoal_swim_event event = { .kind = SHOAL_SWIM_HEALTH, .health = { rows[i].lag_ms * SHOAL_MS } };

        introduce(a, by_name('b'), 0);
        net_run_answered(a, SHOAL_S, NULL);
        assert_int_equal(net_step(a, &event), SHOAL_OK);
        assert_int_equal(shoal_swim_health(a->swim), rows[i].want);
        net_run_answered(a, 30 * SHOAL_S, NULL);
        assert_int_equal(shoal_swim_health(a->swim), 0);
        net_deinit(&net);
    }
}

static void a_late_node_gives_suspects_their_time_back(void **state)
{
    struct net_node *a = alone(9), *b = by_name('b');

    (void)state;
    for (int i = 1; i <= 9; i++)
        introduce(a, &net.nodes[i], 0);
    net_run_answered(a, SHOAL_S, NULL);
    for (int i = 2; i <= 5; i++)
        accuse(a, CRAFT_SUSPECT, b, 0, &net.nodes[i]);
    net.now_ns += 5 * SHOAL_S; /* asleep: 1.25 s would have been enough */
    (void)net_step(a, &(struct shoal_swim_event){ .kind = SHOAL_SWIM_TIMER });
    assert_int_equal(net_state(a, b), SHOAL_MEMBER_SUSPECT);
    net_run_answered(a, 1300 * SHOAL_MS, NULL);
    assert_int_equal(net_state(a, b), SHOAL_MEMBER_DEAD);
    net_deinit(&net);
}

/* ---- bounds ---------------------------------------------------------------------------------------------------- */

static void full_tables_refuse_and_count(void **state)
{
    struct net_node *a = alone(40);
    struct shoal_swim_stats stats;

    (void)state;
    shoal_swim_destroy(a->swim);
    a->options.members_max = 20;
    a->options.suspicions_max = 4;
    a->options.queue_max = 8;
    net_start(a);
    for (int i = 1; i <= 40; i++)
        introduce(a, &net.nodes[i], 0);
    shoal_swim_stats(a->swim, &stats);
    assert_int_equal(stats.members, 20);
    assert_int_equal(stats.drop_members_full, 21);
    assert_int_equal(stats.queue_members, 8);
    assert_true(stats.drop_queue_full > 0);
    for (int i = 2; i <= 10; i++)
        accuse(a, CRAFT_SUSPECT, &net.nodes[i], 0, by_name('b'));
    shoal_swim_stats(a->swim, &stats);
    assert_int_equal(stats.suspects, 4);
    assert_int_equal(stats.drop_suspicions_full, 5);
    net_deinit(&net);
}

static void asks_beyond_what_is_relayed_are_dropped_and_counted(void **state)
{
    struct net_node *a = alone(4);
    struct shoal_swim_stats stats;

    (void)state;
    introduce(a, by_name('b'), 0);
    for (uint32_t i = 0; i < 70; i++) {
        struct craft c;

        craft_begin(&c, CRAFT_ASK);
        shoal_put_u32(&c.w, i);
        shoal_put_node_id(&c.w, by_name('c')->options.id);
        shoal_put_address(&c.w, by_name('c')->options.address);
        shoal_put_u16(&c.w, 250);
        assert_int_equal(craft_deliver(&c, a, by_name('b')), SHOAL_OK);
    }
    shoal_swim_stats(a->swim, &stats);
    assert_int_equal(stats.drop_relays_full, 70 - 64);
    net_deinit(&net);
}

/* The rows say how much is taken, but for what the allocator adds: its heads, and the last page of large tables. */
static void a_core_takes_the_memory_that_it_says(void **state)
{
    struct mallinfo2 before, after;
    struct shoal_memory memory = { 0 };
    struct shoal_gossip_pool *pool = shoal_gossip_pool_create(0);
    struct shoal_swim_options options;
    struct shoal_swim *swim;
    size_t taken;

    (void)state;
    if (mallinfo2().uordblks == 0) { /* a sanitizer's allocator does not count */
        shoal_gossip_pool_destroy(pool);
        skip();
    }
    net_init(&net, 1);
    options = net_add(&net, "a")->options;
    options.pool = pool;
    options.members_max = 0;
    options.records_max = 0;
    before = mallinfo2();
    assert_int_equal(shoal_swim_create(&swim, &options, NULL), SHOAL_OK);
    after = mallinfo2();
    shoal_swim_memory(&memory);
    memory.count--; /* the pool, which was made before */
    taken = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
    assert_in_range(taken, shoal_memory_bytes(&memory), shoal_memory_bytes(&memory) + 10 * SHOAL_KIB);
    shoal_swim_destroy(swim);
    shoal_gossip_pool_destroy(pool);
    net_deinit(&net);
}

/* Both halves have forgotten each other: a seed is tried now and then for as long as a node lives. */
static void halves_that_have_forgotten_each_other_meet_at_a_seed(void **state)
{
    struct net_node *a, *b;

    (void)state;
    net_init(&net, 5);
    for (int i = 0; i < 2; i++)
        net_add(&net, i == 0 ? "a" : "b")->options.grace_ns = 10 * SHOAL_S;
    a = &net.nodes[0];
    b = &net.nodes[1];
    net_start(a);
    net_start(b);
    net_join(b, a);
    net_run(&net, 10 * SHOAL_S);
    assert_int_equal(net_state(b, a), SHOAL_MEMBER_ALIVE);
    net.cut[0][1] = net.cut[1][0] = true;
    net_run(&net, 60 * SHOAL_S);
    assert_int_equal(net_state(a, b), SHOAL_MEMBER_NONE);
    assert_int_equal(net_state(b, a), SHOAL_MEMBER_NONE);
    net.cut[0][1] = net.cut[1][0] = false;
    net_run(&net, 90 * SHOAL_S);
    assert_int_equal(net_state(a, b), SHOAL_MEMBER_ALIVE);
    assert_int_equal(net_state(b, a), SHOAL_MEMBER_ALIVE);
    net_deinit(&net);
}

static void a_full_pool_drops_and_counts_and_recovers(void **state)
{
    struct shoal_gossip_pool *small = shoal_gossip_pool_create(5 * 16384);
    char large[SHOAL_RECORD_PAYLOAD_MAX] = "";
    struct shoal_swim_stats stats;
    struct net_node *a;

    (void)state;
    net_init(&net, 7);
    shoal_gossip_pool_destroy(net.pool);
    net.pool = small;
    for (int i = 0; i < NET_NODES_MAX; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "m%d", i);
        (void)net_add(&net, name);
    }
    a = &net.nodes[0];
    net_start(a);
    for (int i = 1; i < NET_NODES_MAX; i++)
        for (uint32_t r = 0; r < 8; r++)
            introduce(a, &net.nodes[i], r);
    shoal_swim_stats(a->swim, &stats);
    assert_int_equal(stats.members, NET_NODES_MAX);
    net_run_answered(a, 5 * SHOAL_S, NULL);
    memset(large, 'x', sizeof(large) - 1);
    for (uint8_t i = 0; i < 3 * 17; i++) /* three pages of five; the cards of one moment fill the fourth */
        (void)try_publish(a, SHOAL_RECORD_NODE_LOAD, i, 1, large);
    for (int i = 1; i < NET_NODES_MAX; i++)
        for (int j = 1; j < 8; j++)
            accuse(a, CRAFT_SUSPECT, &net.nodes[i], 7, &net.nodes[j]);
    shoal_swim_stats(a->swim, &stats);
    assert_true(stats.drop_pool_full > 0);
    assert_int_equal(try_publish(a, SHOAL_RECORD_NODE_LOAD, 60, 1, large), SHOAL_ERR_FULL);
    net_run_answered(a, 60 * SHOAL_S, NULL); /* suspicions end, news has been told */
    for (int i = 1; i < NET_NODES_MAX; i++)
        introduce(a, &net.nodes[i], 9);
    for (int i = 1; i < NET_NODES_MAX; i++)
        assert_int_equal(net_state(a, &net.nodes[i]), SHOAL_MEMBER_ALIVE);
    net_deinit(&net);
}

static void the_dead_are_forgotten_after_the_grace_and_stay_so(void **state)
{
    struct shoal_swim_stats stats;

    (void)state;
    net_init(&net, 9);
    net_mesh(&net, 5);
    net.nodes[3].up = false;
    (void)net_step(&net.nodes[4], &(struct shoal_swim_event){ .kind = SHOAL_SWIM_LEAVE });
    net_run(&net, 2 * SHOAL_S);
    net.nodes[4].up = false;
    net_run(&net, 590 * SHOAL_S);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(net_state(&net.nodes[i], &net.nodes[3]), SHOAL_MEMBER_DEAD);
        assert_int_equal(net_state(&net.nodes[i], &net.nodes[4]), SHOAL_MEMBER_LEFT);
    }
    net_run(&net, 30 * SHOAL_S);
    for (int i = 0; i < 3; i++) {
        shoal_swim_stats(net.nodes[i].swim, &stats);
        assert_int_equal(stats.members, 3);
        assert_int_equal(stats.dead, 0);
    }
    net_start(net_add(&net, "late")); /* a newcomer brings none of them back */
    net_join(net_find(&net, "late"), &net.nodes[0]);
    net_run(&net, 60 * SHOAL_S);
    shoal_swim_stats(net.nodes[0].swim, &stats);
    assert_int_equal(stats.members, 4);
    net_deinit(&net);
}

static unsigned buckets_seen;

static bool count_buckets(struct net *of, struct net_datagram *datagram)
{
    (void)of;
    buckets_seen += datagram->bytes[3] == 9;
    return true;
}

/* Faded: who has forgotten the dead, or never knew them, is equal to who still remembers them. */
static void from_half_the_grace_on_the_dead_cost_nothing(void **state)
{
    static const struct {
        const char *name;
        uint64_t age_s;
        enum shoal_member_state want;
    } rows[] = {
        { "a newcomer hears of the recently dead", 200, SHOAL_MEMBER_DEAD },
        { "and not of those who will soon be forgotten", 330, SHOAL_MEMBER_NONE },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct net_node *late;
        struct shoal_record record = { .kind = SHOAL_RECORD_NODE_LOAD };

        net_init(&net, 9);
        net_mesh(&net, 4);
        (void)net_step(&net.nodes[3], &(struct shoal_swim_event){ .kind = SHOAL_SWIM_PUBLISH, .record = &record });
        record.kind = SHOAL_RECORD_JOB_SUMMARY;
        record.tombstone = true;
        (void)net_step(&net.nodes[3], &(struct shoal_swim_event){ .kind = SHOAL_SWIM_PUBLISH, .record = &record });
        net_run(&net, SHOAL_S);
        net.nodes[3].up = false;
        net_run(&net, rows[i].age_s * SHOAL_S);
        late = net_add(&net, "late");
        net_start(late);
        net_join(late, &net.nodes[0]);
        net_run(&net, 10 * SHOAL_S);
        if (net_state(late, &net.nodes[3]) != rows[i].want)
            fail_msg("%s: state %d", rows[i].name, (int)net_state(late, &net.nodes[3]));
        net.on_datagram = count_buckets;
        buckets_seen = 0;
        net_run(&net, 60 * SHOAL_S);
        if (buckets_seen != 0)
            fail_msg("%s: %u differences in a minute", rows[i].name, buckets_seen);
        net_deinit(&net);
    }
}

static void who_returns_after_half_the_grace_is_whole_again(void **state)
{
    struct shoal_record record = { .kind = SHOAL_RECORD_NODE_FACTS, .version = { { 1, 1, 1 } } };
    struct net_node *back, *late;

    (void)state;
    net_init(&net, 9);
    net_mesh(&net, 4);
    back = &net.nodes[3];
    (void)net_step(back, &(struct shoal_swim_event){ .kind = SHOAL_SWIM_PUBLISH, .record = &record });
    net_run(&net, SHOAL_S);
    back->up = false;
    net_run(&net, 400 * SHOAL_S);
    shoal_swim_destroy(back->swim);
    back->options.agent++;
    net_start(back);
    net_join(back, &net.nodes[1]);
    assert_false(shoal_swim_is_joined(back->swim));
    net_run(&net, 5 * SHOAL_S);
    assert_true(shoal_swim_is_joined(back->swim));
    late = net_add(&net, "late"); /* what faded with its author is offered again */
    net_start(late);
    net_join(late, &net.nodes[0]);
    net_run(&net, 5 * SHOAL_S);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(net_state(&net.nodes[i], back), SHOAL_MEMBER_ALIVE);
        assert_true(shoal_records_find(net.nodes[i].swim, SHOAL_RECORD_NODE_FACTS, back->options.id,
                                       (struct shoal_record_key){ { 0 } }, &record));
    }
    net.on_datagram = count_buckets;
    buckets_seen = 0;
    net_run(&net, 60 * SHOAL_S);
    assert_int_equal(buckets_seen, 0);
    net_deinit(&net);
}

static void next_gives_every_member_once_ourselves_first(void **state)
{
    struct shoal_member member;
    uint32_t cursor = 0;
    unsigned seen = 0, count = 0;

    (void)state;
    net_init(&net, 9);
    net_mesh(&net, 6);
    while (shoal_swim_member_next(net.nodes[2].swim, &cursor, &member)) {
        if (count++ == 0)
            assert_string_equal(member.name, "n2");
        for (int i = 0; i < 6; i++) {
            const struct shoal_swim_options *options = &net.nodes[i].options;

            if (!shoal_node_id_equal(options->id, member.id))
                continue;
            seen |= 1u << i;
            assert_string_equal(member.name, options->name);
            assert_true(shoal_store_id_equal(member.store, options->store));
            assert_true(shoal_address_equal(member.address, options->address));
            assert_memory_equal(&member.public_key, &options->public_key, sizeof(member.public_key));
            assert_int_equal(member.link_port, 7001);
            assert_int_equal(member.http_port, 7002);
        }
    }
    assert_int_equal(count, 6);
    assert_int_equal(seen, 0x3f);
    net_deinit(&net);
}

/* Two cards of one incarnation: nobody here can decide, so the difference stays until that node speaks. */
static void a_difference_that_stays_costs_little(void **state)
{
    struct net_node *other;
    struct craft c;

    (void)state;
    net_init(&net, 9);
    net_mesh(&net, 2);
    other = net_add(&net, "two-faced");
    for (int i = 0; i < 2; i++) {
        other->options.http_port++;
        craft_begin(&c, CRAFT_GOSSIP);
        craft_card(&c, other, &(struct craft_card){ .incarnation = { 1, 1, 0 }, .leaving = true });
        assert_int_equal(craft_deliver(&c, &net.nodes[i], &net.nodes[1 - i]), SHOAL_OK);
    }
    net_run(&net, 5 * SHOAL_S);
    net.on_datagram = count_buckets;
    buckets_seen = 0;
    net_run(&net, 60 * SHOAL_S);
    assert_in_range(buckets_seen, 10, 45); /* two nodes, six times, three rounds */
    net_deinit(&net);
}

static void options_out_of_range_are_refused_with_their_name(void **state)
{
    static const struct {
        const char *want;
        size_t offset;
        uint64_t value;
        bool wide;
    } rows[] = {
#define ROW32(field, value) { #field, offsetof(struct shoal_swim_options, field), value, false }
#define ROW64(field, value)                                                                                            \
    {                                                                                                                  \
#field, offsetof(struct shoal_swim_options, field), value, true                                                \
    }
        ROW32(members_max, 1),
        ROW32(helpers, 6),
        ROW32(confirmations, 4),
        ROW32(fanout, 6),
        ROW32(queue_max, 7),
        ROW32(suspicion_tenths, 9),
        ROW32(suspicions_max, 70000),
        ROW32(retransmit, 101),
        ROW32(suspicion_max_factor, 101),
        ROW64(probe_interval_ns, 1),
        ROW64(ack_wait_min_ns, 400 * SHOAL_MS),
        ROW64(ack_wait_max_ns, 400 * SHOAL_MS),
        ROW64(gossip_eager_ns, 300 * SHOAL_MS),
        ROW64(gossip_interval_ns, 61 * SHOAL_S),
        ROW64(sync_interval_ns, 1),
        ROW64(grace_ns, SHOAL_S),
        ROW64(reconnect_interval_ns, 1),
    };
    struct shoal_swim *swim = NULL;
    struct shoal_msg msg;

    (void)state;
    net_init(&net, 1);
    (void)net_add(&net, "a");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct shoal_swim_options options = net.nodes[0].options;
        uint32_t narrow = (uint32_t)rows[i].value;

        memcpy((uint8_t *)&options + rows[i].offset,
               rows[i].wide ? (const void *)&rows[i].value : (const void *)&narrow, rows[i].wide ? 8 : 4);
        assert_int_equal(shoal_swim_create(&swim, &options, &msg), SHOAL_ERR_INVALID);
        assert_non_null(strstr(msg.text, rows[i].want));
    }
    {
        struct shoal_swim_options options = net.nodes[0].options;

        options.id.bytes[0] ^= 1;
        assert_int_equal(shoal_swim_create(&swim, &options, &msg), SHOAL_ERR_INVALID);
        options = net.nodes[0].options;
        options.pool = NULL;
        assert_int_equal(shoal_swim_create(&swim, &options, &msg), SHOAL_ERR_INVALID);
    }
    assert_null(swim);
    net_deinit(&net);
}

/* ---- decoding --------------------------------------------------------------------------------------------------- */

#define KEPT_MAX 400
static struct net_datagram kept[KEPT_MAX];
static size_t kept_count;

static bool keep(struct net *of, struct net_datagram *datagram)
{
    static unsigned seen[16];
    unsigned message = datagram->bytes[3];

    (void)of;
    if (kept_count < KEPT_MAX && message < 16 && seen[message]++ < 30)
        kept[kept_count++] = *datagram;
    return true;
}

/* Real datagrams of every message, then every prefix of each at the end of a page, and with bytes changed. */
static void no_prefix_and_no_damage_hurts(void **state)
{
    size_t page = 4096;
    uint8_t *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned messages = 0;
    struct net_node *victim, *usurper;

    (void)state;
    assert_true(pages != MAP_FAILED);
    assert_int_equal(mprotect(pages + page, page, PROT_NONE), 0);
    net_init(&net, 3);
    net.on_datagram = keep;
    net_mesh(&net, 6);
    net.cut[1][2] = net.cut[2][1] = true; /* asks, nacks */
    for (int i = 0; i < 6; i++)
        net.cut[i][4] = net.cut[4][i] = true;
    publish(&net.nodes[4], SHOAL_RECORD_NODE_LOAD, 1, 1, "mine");
    publish(&net.nodes[0], SHOAL_RECORD_JOB_SUMMARY, 2, 1, "yours");
    net_run(&net, 20 * SHOAL_S);
    memset(net.cut, 0, sizeof(net.cut)); /* digests, items, wants */
    net_run(&net, 20 * SHOAL_S);
    net.nodes[5].up = false;
    usurper = net_add(&net, "u"); /* not me */
    usurper->options.address = net.nodes[5].options.address;
    net_start(usurper);
    (void)net_step(&net.nodes[3], &(struct shoal_swim_event){ .kind = SHOAL_SWIM_LEAVE });
    net_run(&net, 10 * SHOAL_S);
    net.on_datagram = NULL;
    net.flight_count = 0;
    for (size_t i = 0; i < kept_count; i++)
        messages |= 1u << kept[i].bytes[3];
    assert_int_equal(messages, 0x1ffe); /* every message there is */
    victim = &net.nodes[0];
    for (size_t i = 0; i < kept_count; i++) {
        struct shoal_swim_event event = { .kind = SHOAL_SWIM_DATAGRAM };

        event.datagram.from = net.nodes[1 + i % 5].options.id;
        event.datagram.address = net.nodes[1].options.address;
        for (size_t n = 0; n <= kept[i].len; n++) {
            uint8_t *at = pages + page - n;

            memcpy(at, kept[i].bytes, n);
            event.datagram.bytes = shoal_view_of(at, n);
            (void)net_step(victim, &event);
            net.flight_count = 0;
            if (n < CRAFT_BODY)
                assert_int_equal(net_step(victim, &event), SHOAL_ERR_MALFORMED);
        }
        for (int tries = 0; tries < 100; tries++) {
            uint8_t *at = pages + page - kept[i].len;

            memcpy(at, kept[i].bytes, kept[i].len);
            for (uint64_t changes = 1 + shoal_rand_below(&net.chance, 4); changes > 0; changes--)
                at[3 + shoal_rand_below(&net.chance, kept[i].len - 3)] = (uint8_t)shoal_rand_u64(&net.chance);
            event.datagram.bytes = shoal_view_of(at, kept[i].len);
            (void)net_step(victim, &event);
            net.flight_count = 0;
        }
    }
    assert_int_equal(munmap(pages, 2 * page), 0);
    net_deinit(&net);
}

static void a_newer_protocol_is_read_if_it_allows_that(void **state)
{
    static const struct {
        const char *name;
        uint8_t version, oldest, message;
        enum shoal_err want;
    } rows[] = {
        { "ours", 1, 1, CRAFT_GOSSIP, SHOAL_OK },
        { "newer, readable by us", 2, 1, CRAFT_GOSSIP, SHOAL_OK },
        { "newer, not for us", 2, 2, CRAFT_GOSSIP, SHOAL_ERR_UNSUPPORTED },
        { "newer, a message we do not know", 2, 1, 77, SHOAL_ERR_UNSUPPORTED },
        { "ours, a message that does not exist", 1, 1, 77, SHOAL_ERR_MALFORMED },
        { "version 0 does not exist", 0, 0, CRAFT_GOSSIP, SHOAL_ERR_MALFORMED },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct net_node *a = alone(2);
        struct craft c;

        craft_begin(&c, (enum craft_message)rows[i].message);
        c.bytes[1] = rows[i].version;
        c.bytes[2] = rows[i].oldest;
        if (craft_deliver(&c, a, by_name('b')) != rows[i].want)
            fail_msg("%s", rows[i].name);
        net_deinit(&net);
    }
}

/* ---- meshes ----------------------------------------------------------------------------------------------------- */

static unsigned false_deaths;

static void count_false_deaths(struct net *of, struct net_node *node, const struct shoal_swim_action *action)
{
    if (action->kind != SHOAL_SWIM_MEMBER || action->member.member.state != SHOAL_MEMBER_DEAD)
        return;
    (void)node;
    for (int i = 0; i < of->count; i++)
        false_deaths += of->nodes[i].up && shoal_node_id_equal(of->nodes[i].options.id, action->member.member.id);
}

static void a_crash_is_known_to_all_within_three_seconds(void **state)
{
    (void)state;
    for (int n = 2; n <= 10; n++)
        for (uint64_t seed = 1; seed <= 8; seed++) {
            uint64_t from_ns;
            int knowing = 0;

            net_init(&net, seed * 100 + (uint64_t)n);
            net_mesh(&net, n);
            net.on_action = count_false_deaths;
            false_deaths = 0;
            net.nodes[n - 1].up = false;
            from_ns = net.now_ns;
            while (knowing < n - 1) {
                knowing = 0;
                net_run(&net, 10 * SHOAL_MS);
                for (int i = 0; i < n - 1; i++)
                    knowing += net_state(&net.nodes[i], &net.nodes[n - 1]) == SHOAL_MEMBER_DEAD;
                if (net.now_ns - from_ns > 3000 * SHOAL_MS)
                    fail_msg("%d nodes, seed %llu: %d of %d know after 3 s", n, (unsigned long long)seed, knowing,
                             n - 1);
            }
            assert_int_equal(false_deaths, 0);
            net_deinit(&net);
        }
}

static void loss_kills_nobody(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        net_init(&net, seed);
        net_mesh(&net, 10);
        net.on_action = count_false_deaths;
        false_deaths = 0;
        net.loss_percent = 20;
        net_run(&net, 300 * SHOAL_S);
        if (false_deaths != 0)
            fail_msg("seed %llu: %u wrong deaths", (unsigned long long)seed, false_deaths);
        net_deinit(&net);
    }
}

static void a_join_storm_is_complete_within_three_seconds(void **state)
{
    struct shoal_swim_stats stats;

    (void)state;
    net_init(&net, 5);
    for (int i = 0; i < NET_NODES_MAX; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "n%d", i);
        net_start(net_add(&net, name));
    }
    for (int i = 1; i < NET_NODES_MAX; i++)
        net_join(&net.nodes[i], &net.nodes[0]);
    net_run(&net, 3 * SHOAL_S);
    for (int i = 0; i < NET_NODES_MAX; i++) {
        shoal_swim_stats(net.nodes[i].swim, &stats);
        assert_int_equal(stats.live, NET_NODES_MAX);
    }
    net_deinit(&net);
}

static void an_idle_mesh_is_quiet(void **state)
{
    uint64_t bytes, sent;

    (void)state;
    net_init(&net, 5);
    net_mesh(&net, 20);
    net_run(&net, 30 * SHOAL_S);
    bytes = net.sent_bytes;
    sent = net.sent;
    net_run(&net, 60 * SHOAL_S);
    assert_in_range((net.sent_bytes - bytes) / 60 / 20, 1, 100); /* bytes a second and node, without the seal */
    assert_in_range((net.sent - sent) * 10 / 60 / 20, 1, 45);    /* tenths of a datagram */
    net_deinit(&net);
}

static void one_deaf_node_kills_nobody_elsewhere(void **state)
{
    int wrong = 0;

    (void)state;
    net_init(&net, 11);
    net_mesh(&net, 24);
    for (int i = 0; i < 24; i++)
        net.cut[i][7] = i != 7; /* nothing reaches n7, all of n7's words are heard */
    for (int s = 0; s < 300; s++) {
        net_run(&net, SHOAL_S);
        for (int i = 0; i < 24; i++)
            for (int j = 0; j < 24; j++)
                wrong += i != 7 && j != 7 && net_state(&net.nodes[i], &net.nodes[j]) == SHOAL_MEMBER_DEAD;
    }
    assert_int_equal(wrong, 0);
    net_deinit(&net);
}

static void the_same_seed_gives_the_same_run(void **state)
{
    uint64_t sent[2], bytes[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        net_init(&net, 77);
        net_mesh(&net, 12);
        net.loss_percent = 10;
        net.nodes[4].up = false;
        net_run(&net, 20 * SHOAL_S);
        sent[i] = net.sent;
        bytes[i] = net.sent_bytes;
        net_deinit(&net);
    }
    assert_int_equal(sent[0], sent[1]);
    assert_int_equal(bytes[0], bytes[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_about_others_follow_the_rules),
        cmocka_unit_test(the_accuser_who_opened_with_a_verdict_does_not_count_twice),
        cmocka_unit_test(held_for_dead_in_anti_entropy_suspects_the_known_and_keeps_the_stranger),
        cmocka_unit_test(an_accusation_of_ourselves_is_refuted_if_it_is_about_now),
        cmocka_unit_test(a_card_of_ours_from_the_future_is_a_clone),
        cmocka_unit_test(no_card_of_a_removed_node_is_taken),
        cmocka_unit_test(a_suspicion_lasts_what_the_formula_says),
        cmocka_unit_test(every_member_is_probed_within_two_rounds),
        cmocka_unit_test(an_answer_counts_only_from_whom_it_was_asked),
        cmocka_unit_test(silent_helpers_cost_health_and_fine_ones_do_not),
        cmocka_unit_test(an_unwell_node_probes_slowly_and_accuses_only_the_often_silent),
        cmocka_unit_test(a_measured_lag_is_health_and_fades),
        cmocka_unit_test(a_late_node_gives_suspects_their_time_back),
        cmocka_unit_test(full_tables_refuse_and_count),
        cmocka_unit_test(asks_beyond_what_is_relayed_are_dropped_and_counted),
        cmocka_unit_test(a_core_takes_the_memory_that_it_says),
        cmocka_unit_test(halves_that_have_forgotten_each_other_meet_at_a_seed),
        cmocka_unit_test(a_full_pool_drops_and_counts_and_recovers),
        cmocka_unit_test(the_dead_are_forgotten_after_the_grace_and_stay_so),
        cmocka_unit_test(from_half_the_grace_on_the_dead_cost_nothing),
        cmocka_unit_test(who_returns_after_half_the_grace_is_whole_again),
        cmocka_unit_test(next_gives_every_member_once_ourselves_first),
        cmocka_unit_test(a_difference_that_stays_costs_little),
        cmocka_unit_test(options_out_of_range_are_refused_with_their_name),
        cmocka_unit_test(no_prefix_and_no_damage_hurts),
        cmocka_unit_test(a_newer_protocol_is_read_if_it_allows_that),
        cmocka_unit_test(a_crash_is_known_to_all_within_three_seconds),
        cmocka_unit_test(loss_kills_nobody),
        cmocka_unit_test(a_join_storm_is_complete_within_three_seconds),
        cmocka_unit_test(an_idle_mesh_is_quiet),
        cmocka_unit_test(one_deaf_node_kills_nobody_elsewhere),
        cmocka_unit_test(the_same_seed_gives_the_same_run),
    };

    return cmocka_run_group_tests_name("swim", tests, NULL, NULL);
}
