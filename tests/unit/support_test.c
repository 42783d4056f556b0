/* Host-pair support: two or more hosts on a virtual clock, datagrams carried by hand. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "shoal/rand.h"
#include "shoal/support.h"
#include "shoal/wire.h"

#include "shoal/banned.h"

#define MS SHOAL_MS
#define PAIR_LOG_MAX 20000

struct seen {
    uint64_t at;
    uint32_t host;
    enum shoal_support_action_kind kind;
    uint64_t term;
    struct shoal_job_id group;
};

struct packet {
    uint64_t at;
    uint32_t to;
    size_t len;
    uint8_t bytes[SHOAL_DATAGRAM_PAYLOAD_MAX];
};

/* Two hosts, a (0) and b (1). */
struct pair {
    uint64_t now;
    struct shoal_support *host[2];
    struct shoal_support_health health[2];
    uint32_t agent[2];
    bool paused[2];
    bool cut[2]; /* from a, from b */
    uint64_t delay;
    struct packet packets[256];
    uint32_t packets_count;
    struct seen log[PAIR_LOG_MAX];
    uint32_t log_count;
    uint64_t sends;
    size_t longest;
    uint32_t lose_one_in; /* 0: none */
    struct shoal_rand chance;
};

static struct shoal_node_id node_of(uint32_t host)
{
    struct shoal_node_id id = { { 0 } };

    id.bytes[0] = (uint8_t)('a' + host);
    return id;
}

static struct shoal_job_id group_of(uint32_t n)
{
    struct shoal_job_id id = { { 0 } };

    id.bytes[0] = (uint8_t)n;
    id.bytes[1] = (uint8_t)(n >> 8);
    id.bytes[9] = 1;
    return id;
}

static void take_actions(struct pair *pair, uint32_t host, const struct shoal_support_actions *actions)
{
    for (uint32_t i = 0; i < actions->count; i++) {
        const struct shoal_support_action *action = &actions->list[i];

        if (action->kind != SHOAL_SUPPORT_SEND) {
            assert_true(pair->log_count < PAIR_LOG_MAX);
            pair->log[pair->log_count++] = (struct seen){
                .at = pair->now, .host = host, .kind = action->kind, .term = action->term, .group = action->group
            };
            continue;
        }
        pair->sends++;
        if (action->bytes.len > pair->longest)
            pair->longest = action->bytes.len;
        if (!shoal_node_id_equal(action->node, node_of(1 - host)) || pair->cut[host] ||
            (pair->lose_one_in != 0 && shoal_rand_below(&pair->chance, pair->lose_one_in) == 0))
            continue;
        assert_true(pair->packets_count < 256);
        struct packet *packet = &pair->packets[pair->packets_count++];
        packet->at = pair->now + pair->delay;
        packet->to = 1 - host;
        packet->len = action->bytes.len;
        memcpy(packet->bytes, action->bytes.bytes, action->bytes.len);
    }
}

static enum shoal_err hear(struct pair *pair, uint32_t host, const uint8_t *bytes, size_t len)
{
    static struct shoal_support_actions actions;
    struct shoal_support_event event = { .kind = SHOAL_SUPPORT_EVENT_DATAGRAM, .node = node_of(1 - host) };
    enum shoal_err err;

    event.bytes = shoal_view_of(bytes, len);
    err = shoal_support_step(pair->host[host], &event, pair->now, &actions);
    shoal_support_check(pair->host[host]);
    take_actions(pair, host, &actions);
    return err;
}

static void timer(struct pair *pair, uint32_t host)
{
    static struct shoal_support_actions actions;
    struct shoal_support_event event = { .kind = SHOAL_SUPPORT_EVENT_TIMER, .health = pair->health[host] };

    event.health.slot_stamp = pair->now;
    assert_int_equal(shoal_support_step(pair->host[host], &event, pair->now, &actions), SHOAL_OK);
    shoal_support_check(pair->host[host]);
    take_actions(pair, host, &actions);
}

static void run(struct pair *pair, uint64_t ns)
{
    uint64_t until = pair->now + ns;

    for (;;) {
        uint64_t best = UINT64_MAX;
        uint32_t packet = UINT32_MAX;
        uint32_t host = 0;

        for (uint32_t p = 0; p < pair->packets_count; p++) {
            if (pair->packets[p].at < best) {
                best = pair->packets[p].at;
                packet = p;
            }
        }
        for (uint32_t h = 0; h < 2; h++) {
            if (!pair->paused[h] && shoal_support_deadline_ns(pair->host[h]) < best) {
                best = shoal_support_deadline_ns(pair->host[h]);
                packet = UINT32_MAX;
                host = h;
            }
        }
        if (best > until)
            break;
        if (best > pair->now)
            pair->now = best;
        if (packet == UINT32_MAX) {
            timer(pair, host);
            continue;
        }
        struct packet one = pair->packets[packet];
        memmove(pair->packets + packet, pair->packets + packet + 1,
                (--pair->packets_count - packet) * sizeof(pair->packets[0]));
        if (!pair->paused[one.to])
            assert_int_equal(hear(pair, one.to, one.bytes, one.len), SHOAL_OK);
    }
    pair->now = until;
}

static void start(struct pair *pair, uint32_t host)
{
    struct shoal_support_options options = { .self = node_of(host), .start_ns = pair->now };

    options.incarnation = (struct shoal_incarnation){ .host_epoch = 3, .agent = ++pair->agent[host] };
    assert_int_equal(shoal_support_create(&pair->host[host], &options), SHOAL_OK);
    assert_int_equal(shoal_support_add(pair->host[host], node_of(1 - host)), SHOAL_OK);
}

static struct pair *pair_create(void)
{
    struct pair *pair = calloc(1, sizeof(*pair));

    pair->now = 5 * SHOAL_S;
    pair->delay = 1 * MS;
    shoal_rand_init(&pair->chance, 3);
    start(pair, 0);
    start(pair, 1);
    return pair;
}

static void pair_destroy(struct pair *pair)
{
    shoal_support_destroy(pair->host[0]);
    shoal_support_destroy(pair->host[1]);
    free(pair);
}

static const struct seen *find(const struct pair *pair, uint32_t from, uint32_t host,
                               enum shoal_support_action_kind kind)
{
    for (uint32_t i = from; i < pair->log_count; i++) {
        if (pair->log[i].host == host && pair->log[i].kind == kind)
            return &pair->log[i];
    }
    return NULL;
}

static uint32_t count(const struct pair *pair, uint32_t host, enum shoal_support_action_kind kind)
{
    uint32_t found = 0;

    for (uint32_t i = 0; i < pair->log_count; i++)
        found += pair->log[i].host == host && pair->log[i].kind == kind;
    return found;
}

static const struct shoal_support_peer *peer(const struct pair *pair, uint32_t host)
{
    return shoal_support_find(pair->host[host], node_of(1 - host));
}

static void support_stands_after_two_datagrams(void **state)
{
    struct pair *pair = pair_create();

    (void)state;
    run(pair, 20 * MS);
    for (uint32_t h = 0; h < 2; h++) {
        assert_true(peer(pair, h)->supported);
        assert_true(peer(pair, h)->supporting);
        assert_int_equal(count(pair, h, SHOAL_SUPPORT_SUPPORTED), 1);
        assert_int_equal(count(pair, h, SHOAL_SUPPORT_SUPPORTING), 1);
    }
    /* And goes on without a word to the owner, at one datagram each interval. */
    pair->sends = 0;
    run(pair, 10 * SHOAL_S);
    assert_int_equal(count(pair, 0, SHOAL_SUPPORT_LOST), 0);
    assert_int_equal(count(pair, 0, SHOAL_SUPPORT_SUPPORTED), 1);
    assert_in_range(pair->sends, 198, 202);
    assert_true(pair->longest <= 256);
    pair_destroy(pair);
}

static void the_supporter_always_ends_later(void **state)
{
    (void)state;
    for (uint64_t delay = 1; delay < 90; delay += 8) {
        struct pair *pair = pair_create();
        const struct seen *lost;
        const struct seen *ended;

        pair->delay = delay * MS;
        run(pair, 2 * SHOAL_S + delay * 7 * MS);
        pair->cut[0] = true;
        pair->cut[1] = true;
        run(pair, 2 * SHOAL_S);
        lost = find(pair, 0, 0, SHOAL_SUPPORT_LOST);
        ended = find(pair, 0, 1, SHOAL_SUPPORT_SUPPORTING_LOST);
        assert_non_null(lost);
        assert_non_null(ended);
        assert_true(lost->at + delay * MS <= ended->at);
        /* A failure is seen by the supporter within 600 ms of the last datagram it heard. */
        assert_true(ended->at <= 7 * SHOAL_S + delay * 8 * MS + 600 * MS);
        pair_destroy(pair);
    }
}

static void support_is_directional(void **state)
{
    struct pair *pair = pair_create();

    (void)state;
    run(pair, SHOAL_S);
    pair->cut[0] = true; /* a can hear but not be heard */
    run(pair, 2 * SHOAL_S);
    assert_false(peer(pair, 0)->supported);
    assert_true(peer(pair, 0)->supporting);
    assert_false(peer(pair, 1)->supporting);
    assert_true(peer(pair, 1)->silent);
    assert_false(peer(pair, 0)->silent);
    pair->cut[0] = false;
    run(pair, 200 * MS);
    assert_true(peer(pair, 0)->supported);
    assert_int_equal(count(pair, 1, SHOAL_SUPPORT_PEER_HEARD), 1);
    pair_destroy(pair);
}

static void some_loss_does_no_harm(void **state)
{
    struct pair *pair = pair_create();

    (void)state;
    pair->lose_one_in = 7;
    run(pair, 60 * SHOAL_S);
    assert_int_equal(count(pair, 0, SHOAL_SUPPORT_LOST), 0);
    assert_int_equal(count(pair, 1, SHOAL_SUPPORT_SUPPORTING_LOST), 0);
    pair_destroy(pair);
}

static void a_hanging_disk_or_loop_loses_support(void **state)
{
    (void)state;
    for (uint32_t what = 0; what < 2; what++) {
        struct pair *pair = pair_create();
        struct shoal_support_stats stats;

        run(pair, SHOAL_S);
        pair->health[0].flush_age_ns = what == 0 ? 999 * MS : 0;
        pair->health[0].loop_lag_ns = what == 1 ? 999 * MS : 0;
        run(pair, 2 * SHOAL_S);
        assert_true(peer(pair, 0)->supported); /* in bounds */
        pair->health[0].flush_age_ns = what == 0 ? 1100 * MS : 0;
        pair->health[0].loop_lag_ns = what == 1 ? 1100 * MS : 0;
        run(pair, 2 * SHOAL_S);
        assert_false(peer(pair, 0)->supported);
        assert_false(peer(pair, 1)->supporting);
        assert_false(peer(pair, 1)->silent); /* it is heard all the same */
        assert_true(peer(pair, 1)->supported);
        shoal_support_stats(pair->host[1], &stats);
        assert_true(stats.withheld > 10);
        pair->health[0] = (struct shoal_support_health){ 0 };
        run(pair, 300 * MS);
        assert_true(peer(pair, 0)->supported);
        pair_destroy(pair);
    }
}

static void a_pause_is_noticed_before_anything_else(void **state)
{
    struct pair *pair = pair_create();

    (void)state;
    run(pair, SHOAL_S);
    pair->paused[0] = true; /* SIGSTOP */
    run(pair, 10 * SHOAL_S);
    pair->paused[0] = false;
    assert_true(peer(pair, 0)->supported); /* it does not know yet, but its deadline has passed */
    assert_true(shoal_support_deadline_ns(pair->host[0]) <= pair->now);
    timer(pair, 0);
    assert_false(peer(pair, 0)->supported);
    run(pair, SHOAL_S);
    assert_true(peer(pair, 0)->supported);
    pair_destroy(pair);
}

static void a_restart_ends_support_both_ways_and_all_claims(void **state)
{
    struct pair *pair = pair_create();
    uint32_t from;

    (void)state;
    assert_int_equal(shoal_support_claim(pair->host[1], node_of(0), group_of(1), 7), SHOAL_OK);
    run(pair, SHOAL_S);
    assert_int_equal(shoal_support_claimed(pair->host[0], node_of(1), group_of(1)), 7);
    from = pair->log_count;
    shoal_support_destroy(pair->host[1]);
    start(pair, 1); /* at once: the silence would not have been noticed */
    run(pair, 30 * MS);
    assert_non_null(find(pair, from, 0, SHOAL_SUPPORT_LOST));
    assert_non_null(find(pair, from, 0, SHOAL_SUPPORT_SUPPORTING_LOST));
    assert_non_null(find(pair, from, 0, SHOAL_SUPPORT_PEER_RESTARTED));
    assert_int_equal(find(pair, from, 0, SHOAL_SUPPORT_UNCLAIM)->term, 7);
    assert_int_equal(shoal_support_claimed(pair->host[0], node_of(1), group_of(1)), 0);
    assert_true(peer(pair, 0)->supported); /* of the new life */
    assert_true(peer(pair, 1)->supported);
    pair_destroy(pair);
}

static void an_echo_for_a_former_life_is_void(void **state)
{
    struct pair *pair = pair_create();
    struct packet late = { 0 };

    (void)state;
    run(pair, SHOAL_S);
    /* b's words to a's first life ... */
    while (pair->packets_count == 0 || pair->packets[0].to != 0) {
        timer(pair, 1);
        pair->now += 10 * MS;
    }
    late = pair->packets[0];
    pair->packets_count = 0;
    /* ... reaches its second one, which has sent as many datagrams by then. */
    shoal_support_destroy(pair->host[0]);
    start(pair, 0);
    pair->cut[1] = true;
    run(pair, 1250 * MS);
    assert_int_equal(hear(pair, 0, late.bytes, late.len), SHOAL_OK);
    assert_false(peer(pair, 0)->supported);
    pair_destroy(pair);
}

static void a_rolled_back_host_is_told(void **state)
{
    struct pair *pair = pair_create();

    (void)state;
    run(pair, SHOAL_S);
    shoal_support_destroy(pair->host[0]);
    pair->agent[0] = 0;
    start(pair, 0); /* the same incarnation again */
    run(pair, 300 * MS);
    assert_int_equal(count(pair, 0, SHOAL_SUPPORT_ROLLED_BACK), 0); /* as good as a replay: b drops it */
    shoal_support_destroy(pair->host[0]);
    shoal_support_destroy(pair->host[1]);
    pair->agent[0] = 5;
    start(pair, 0);
    start(pair, 1);
    run(pair, SHOAL_S);
    shoal_support_destroy(pair->host[0]);
    pair->agent[0] = 4;
    start(pair, 0); /* an older folder: agent 5 again would be a tie, so go one further back */
    shoal_support_destroy(pair->host[0]);
    pair->agent[0] = 3;
    start(pair, 0);
    run(pair, SHOAL_S);
    assert_true(count(pair, 0, SHOAL_SUPPORT_ROLLED_BACK) > 0);
    pair_destroy(pair);
}

/* A heartbeat of b to a, as one of `host`, the `seq`th; `later`: it is for a life that a has never had. */
static void hear_as(struct pair *pair, const struct packet *of, uint32_t host, uint8_t seq, bool later)
{
    static struct shoal_support_actions actions;
    struct shoal_support_event event = { .kind = SHOAL_SUPPORT_EVENT_DATAGRAM, .node = node_of(host) };
    uint8_t bytes[SHOAL_DATAGRAM_PAYLOAD_MAX];

    memcpy(bytes, of->bytes, of->len);
    if (later)
        memset(bytes + 15, 0x7f, 4); /* to: agent */
    bytes[20] = seq;                 /* above all that b has said itself */
    event.bytes = shoal_view_of(bytes, of->len);
    assert_int_equal(shoal_support_step(pair->host[0], &event, pair->now, &actions), SHOAL_OK);
    shoal_support_check(pair->host[0]);
    take_actions(pair, 0, &actions);
}

/* One member of three that lies, or whose memory is bad, must not stop the others. */
static void one_peers_word_stops_no_host(void **state)
{
    struct pair *pair = pair_create();
    struct packet of = { .len = 0 };

    (void)state;
    assert_int_equal(shoal_support_add(pair->host[0], node_of(2)), SHOAL_OK);
    run(pair, SHOAL_S);
    pair->delay = 50 * MS;
    for (unsigned turn = 0; turn < 100 && of.len == 0; turn++) {
        run(pair, 10 * MS);
        for (uint32_t i = 0; i < pair->packets_count; i++)
            if (pair->packets[i].to == 0)
                of = pair->packets[i];
    }
    assert_true(of.len > 0);
    pair->cut[1] = true;
    for (uint8_t i = 1; i <= 40; i++) {
        hear_as(pair, &of, 1, i, true);
        hear_as(pair, &of, 2, i, false);
        run(pair, 50 * MS);
    }
    assert_int_equal(count(pair, 0, SHOAL_SUPPORT_ROLLED_BACK), 0);
    hear_as(pair, &of, 2, 41, true); /* once is an accident */
    hear_as(pair, &of, 1, 41, true);
    assert_int_equal(count(pair, 0, SHOAL_SUPPORT_ROLLED_BACK), 0);
    for (uint8_t i = 42; i <= 44; i++) {
        hear_as(pair, &of, 1, i, true);
        hear_as(pair, &of, 2, i, true);
        run(pair, 50 * MS);
    }
    assert_true(count(pair, 0, SHOAL_SUPPORT_ROLLED_BACK) > 0);
    pair_destroy(pair);
}

static void what_is_replayed_is_dropped(void **state)
{
    struct pair *pair = pair_create();
    struct packet old;
    struct shoal_support_stats stats;
    uint64_t until;

    (void)state;
    run(pair, SHOAL_S);
    pair->delay = 50 * MS;
    while (pair->packets_count == 0 || pair->packets[0].to != 1)
        run(pair, 10 * MS);
    old = pair->packets[0];
    run(pair, SHOAL_S);
    until = peer(pair, 1)->supporting_until_ns;
    pair->now += 20 * MS;
    assert_int_equal(hear(pair, 1, old.bytes, old.len), SHOAL_OK);
    assert_int_equal(peer(pair, 1)->supporting_until_ns, until);
    shoal_support_stats(pair->host[1], &stats);
    assert_int_equal(stats.dropped_stale, 1);
    pair_destroy(pair);
}

static void claims_arrive_and_leave_within_an_interval(void **state)
{
    struct pair *pair = pair_create();
    struct shoal_node_id who;
    uint64_t term;

    (void)state;
    run(pair, SHOAL_S);
    for (uint32_t n = 0; n < SHOAL_SUPPORT_INLINE_CLAIMS_MAX; n++)
        assert_int_equal(shoal_support_claim(pair->host[0], node_of(1), group_of(n), 10 + n), SHOAL_OK);
    run(pair, 15 * MS);
    assert_int_equal(count(pair, 1, SHOAL_SUPPORT_CLAIM), SHOAL_SUPPORT_INLINE_CLAIMS_MAX);
    assert_int_equal(shoal_support_claimed(pair->host[1], node_of(0), group_of(3)), 13);
    assert_true(shoal_support_claimant(pair->host[1], group_of(3), &who, &term));
    assert_true(shoal_node_id_equal(who, node_of(0)));
    assert_int_equal(term, 13);
    assert_true(pair->longest <= 256);
    assert_int_equal(shoal_support_claim(pair->host[0], node_of(1), group_of(3), 99), SHOAL_OK); /* a new term */
    shoal_support_unclaim(pair->host[0], node_of(1), group_of(4));
    run(pair, 120 * MS);
    assert_int_equal(shoal_support_claimed(pair->host[1], node_of(0), group_of(3)), 99);
    assert_int_equal(find(pair, 0, 1, SHOAL_SUPPORT_UNCLAIM)->term, 14);
    assert_false(shoal_support_claimant(pair->host[1], group_of(4), &who, &term));
    /* Agreed: from now on a hash is enough. */
    pair->sends = 0;
    pair->longest = 0;
    run(pair, SHOAL_S);
    assert_in_range(pair->sends, 18, 22);
    assert_true(pair->longest < 100);
    pair_destroy(pair);
}

static void many_claims_come_in_pages_through_loss(void **state)
{
    struct pair *pair = pair_create();

    (void)state;
    run(pair, SHOAL_S);
    pair->lose_one_in = 10;
    for (uint32_t n = 0; n < 1000; n++)
        assert_int_equal(shoal_support_claim(pair->host[0], node_of(1), group_of(n), 1 + n), SHOAL_OK);
    run(pair, 3 * SHOAL_S);
    assert_int_equal(count(pair, 1, SHOAL_SUPPORT_CLAIM), 1000);
    for (uint32_t n = 0; n < 1000; n++)
        assert_int_equal(shoal_support_claimed(pair->host[1], node_of(0), group_of(n)), 1 + n);
    for (uint32_t n = 0; n < 1000; n += 2)
        shoal_support_unclaim(pair->host[0], node_of(1), group_of(n));
    run(pair, 3 * SHOAL_S);
    assert_int_equal(count(pair, 1, SHOAL_SUPPORT_UNCLAIM), 500);
    for (uint32_t n = 0; n < 1000; n++)
        assert_int_equal(shoal_support_claimed(pair->host[1], node_of(0), group_of(n)), n % 2 == 0 ? 0 : 1 + n);
    assert_true(pair->longest <= SHOAL_DATAGRAM_PAYLOAD_MAX);
    pair->sends = 0;
    pair->lose_one_in = 0;
    run(pair, SHOAL_S);
    assert_in_range(pair->sends, 18, 24);
    pair_destroy(pair);
}

static void more_claims_than_fit_are_counted_and_do_not_flood(void **state)
{
    struct pair *pair = pair_create();
    struct shoal_support_stats stats;

    (void)state;
    run(pair, SHOAL_S);
    for (uint32_t n = 0; n < SHOAL_SUPPORT_CLAIMS_MAX; n++)
        assert_int_equal(shoal_support_claim(pair->host[0], node_of(1), group_of(n), 1), SHOAL_OK);
    assert_int_equal(shoal_support_claim(pair->host[0], node_of(1), group_of(5000), 1), SHOAL_ERR_FULL);
    assert_int_equal(shoal_support_claim(pair->host[0], node_of(7), group_of(1), 1), SHOAL_ERR_NOT_FOUND);
    assert_int_equal(shoal_support_claim(pair->host[0], node_of(1), group_of(1), 0), SHOAL_ERR_INVALID);
    run(pair, 2 * SHOAL_S);
    assert_int_equal(count(pair, 1, SHOAL_SUPPORT_CLAIM), SHOAL_SUPPORT_CLAIMS_MAX);
    shoal_support_stats(pair->host[1], &stats);
    assert_int_equal(stats.claims_overflow, 0);
    pair_destroy(pair);
}

/* A set whose pages never come whole replaces nothing, so what a peer claims can be more than one set. */
/* The build that is installed asserts: our own bug stops the process at the line that made it, and says what was broken. */
static void a_broken_invariant_stops_the_process(void **state)
{
    struct pair *pair = pair_create();
    char said[256] = "";
    int ends[2];
    int status = 0;
    pid_t child;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    child = fork();
    if (child == 0) {
        (void)dup2(ends[1], STDERR_FILENO);
        (void)signal(SIGABRT, SIG_DFL);
        shoal_support_remove(pair->host[0], node_of(7)); /* which was never added */
        _exit(0);
    }
    (void)close(ends[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(read(ends[0], said, sizeof(said) - 1) > 0);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(said, "sched/raft/support.c:"));
    assert_non_null(strstr(said, "broken invariant: peer != NULL"));
    (void)close(ends[0]);
    pair_destroy(pair);
}

static void a_full_table_of_claims_refuses_and_counts(void **state)
{
    struct pair *pair = pair_create();
    struct shoal_support_stats stats;
    uint8_t bytes[SHOAL_DATAGRAM_PAYLOAD_MAX];
    uint32_t group = 0;

    (void)state;
    run(pair, SHOAL_S);
    for (uint32_t set = 1; group < 2 * SHOAL_GROUPS_MAX + 60; set++) {
        struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));

        shoal_put_raw(&w, "\x02\x01\x01", 3);
        shoal_put_u32(&w, 3); /* a's life, as start() gives it */
        shoal_put_u32(&w, 1);
        shoal_put_u64(&w, set);
        shoal_put_u16(&w, 0); /* the first page of two: the second never comes */
        shoal_put_u16(&w, 2);
        shoal_put_u8(&w, 60);
        for (uint32_t i = 0; i < 60; i++) {
            shoal_put_job_id(&w, group_of(group++));
            shoal_put_u64(&w, 1);
        }
        assert_int_equal(hear(pair, 1, bytes, w.len), SHOAL_OK);
        while (shoal_support_deadline_ns(pair->host[1]) <= pair->now)
            timer(pair, 1);
    }
    shoal_support_stats(pair->host[1], &stats);
    assert_int_equal(stats.claims_overflow, group - 2 * SHOAL_GROUPS_MAX);
    assert_int_equal(count(pair, 1, SHOAL_SUPPORT_CLAIM), 2 * SHOAL_GROUPS_MAX);
    pair->packets_count = 0;
    run(pair, SHOAL_S); /* a's own word, that it leads nothing, makes room */
    assert_int_equal(count(pair, 1, SHOAL_SUPPORT_UNCLAIM), 2 * SHOAL_GROUPS_MAX);
    pair_destroy(pair);
}

/* Its new set may need pages, which take their time: the old one is void at once. */
static void a_new_life_leads_nothing_that_the_last_one_led(void **state)
{
    struct pair *pair = pair_create();
    uint64_t restarted;

    (void)state;
    for (uint32_t n = 0; n < 3; n++)
        assert_int_equal(shoal_support_claim(pair->host[0], node_of(1), group_of(n), 7), SHOAL_OK);
    run(pair, SHOAL_S);
    assert_int_equal(count(pair, 1, SHOAL_SUPPORT_CLAIM), 3);
    shoal_support_destroy(pair->host[0]);
    start(pair, 0);
    for (uint32_t n = 100; n < 200; n++)
        assert_int_equal(shoal_support_claim(pair->host[0], node_of(1), group_of(n), 7), SHOAL_OK);
    restarted = pair->now;
    while (count(pair, 1, SHOAL_SUPPORT_PEER_RESTARTED) == 0 && pair->now < restarted + SHOAL_S)
        run(pair, MS);
    assert_int_equal(count(pair, 1, SHOAL_SUPPORT_UNCLAIM), 3);
    run(pair, SHOAL_S);
    assert_int_equal(count(pair, 1, SHOAL_SUPPORT_CLAIM), 103);
    pair_destroy(pair);
}

static void a_refused_connection_ends_only_the_observers_support(void **state)
{
    static struct shoal_support_actions actions;
    struct pair *pair = pair_create();
    struct shoal_support_event event = { .kind = SHOAL_SUPPORT_EVENT_REFUSED, .node = node_of(1) };

    (void)state;
    run(pair, SHOAL_S);
    assert_int_equal(shoal_support_step(pair->host[0], &event, pair->now, &actions), SHOAL_OK);
    assert_int_equal(actions.count, 1);
    assert_int_equal(actions.list[0].kind, SHOAL_SUPPORT_SUPPORTING_LOST);
    assert_true(peer(pair, 0)->supported);
    run(pair, 120 * MS);
    assert_true(peer(pair, 0)->supporting); /* it was not dead after all */
    pair_destroy(pair);
}

static void interest_is_counted_and_bounded(void **state)
{
    struct pair *pair = pair_create();
    struct shoal_node_id other = node_of(9);

    (void)state;
    assert_int_equal(shoal_support_add(pair->host[0], node_of(0)), SHOAL_ERR_INVALID);
    assert_int_equal(shoal_support_add(pair->host[0], other), SHOAL_OK);
    assert_int_equal(shoal_support_add(pair->host[0], other), SHOAL_OK);
    assert_int_equal(shoal_support_count(pair->host[0]), 2);
    shoal_support_remove(pair->host[0], other);
    assert_non_null(shoal_support_find(pair->host[0], other));
    shoal_support_remove(pair->host[0], other);
    assert_null(shoal_support_find(pair->host[0], other));
    for (uint32_t n = 1; n < SHOAL_SUPPORT_PEERS_MAX; n++) {
        other = node_of(50);
        other.bytes[1] = (uint8_t)n;
        other.bytes[2] = (uint8_t)(n >> 8);
        assert_int_equal(shoal_support_add(pair->host[0], other), SHOAL_OK);
    }
    other.bytes[3] = 1;
    assert_int_equal(shoal_support_add(pair->host[0], other), SHOAL_ERR_FULL);
    /* More peers than one step can serve: the rest comes in the next, at once, and nobody starves. */
    run(pair, 5 * SHOAL_S);
    assert_true(peer(pair, 0)->supported);
    assert_int_equal(count(pair, 0, SHOAL_SUPPORT_LOST), 0);
    assert_int_equal(count(pair, 0, SHOAL_SUPPORT_PEER_SILENT), SHOAL_SUPPORT_PEERS_MAX - 1);
    pair_destroy(pair);
}

/* H4. One side lost interest for a while, the other did not: it has seen high sequences, and hears at once what comes. */
static void interest_that_begins_again_is_heard_at_once(void **state)
{
    struct pair *pair = pair_create();

    (void)state;
    run(pair, 60 * SHOAL_S);
    shoal_support_remove(pair->host[1], node_of(0));
    run(pair, 2 * SHOAL_S);
    assert_true(peer(pair, 0)->silent);
    assert_int_equal(shoal_support_add(pair->host[1], node_of(0)), SHOAL_OK);
    run(pair, 300 * MS);
    for (uint32_t h = 0; h < 2; h++) {
        assert_false(peer(pair, h)->silent);
        assert_true(peer(pair, h)->supported);
        assert_true(peer(pair, h)->supporting);
    }
    pair_destroy(pair);
}

static void a_stranger_and_nonsense_are_counted(void **state)
{
    struct pair *pair = pair_create();
    struct shoal_support_stats stats;
    struct packet one;
    struct shoal_rand chance;

    (void)state;
    assert_int_equal(shoal_support_claim(pair->host[0], node_of(1), group_of(1), 4), SHOAL_OK);
    timer(pair, 0);
    one = pair->packets[0];
    for (size_t n = 0; n < one.len; n++)
        assert_int_equal(hear(pair, 1, one.bytes, n), SHOAL_ERR_MALFORMED);
    shoal_support_stats(pair->host[1], &stats);
    assert_int_equal(stats.dropped_malformed, one.len);
    shoal_support_remove(pair->host[1], node_of(0));
    assert_int_equal(hear(pair, 1, one.bytes, one.len), SHOAL_OK);
    shoal_support_stats(pair->host[1], &stats);
    assert_int_equal(stats.dropped_unknown, 1);
    assert_int_equal(shoal_support_add(pair->host[1], node_of(0)), SHOAL_OK);
    shoal_rand_init(&chance, 11);
    for (uint32_t round = 0; round < 20000; round++) {
        struct packet bad = one;

        for (uint64_t flips = 1 + shoal_rand_below(&chance, 3); flips > 0; flips--)
            bad.bytes[shoal_rand_below(&chance, bad.len)] = (uint8_t)shoal_rand_u64(&chance);
        if (round % 2 == 0)
            bad.bytes[0] = 2; /* as a page */
        (void)hear(pair, 1, bad.bytes, bad.len);
        pair->log_count = 0;
        pair->packets_count = 0;
    }
    pair_destroy(pair);
}

static void the_heartbeat_carries_health_and_the_slot_clock(void **state)
{
    struct pair *pair = pair_create();

    (void)state;
    pair->health[0].quorum_connected = true;
    pair->health[0].loop_lag_ns = 3 * MS;
    pair->health[0].flush_age_ns = 5 * MS;
    run(pair, SHOAL_S);
    assert_true(peer(pair, 1)->quorum_connected);
    assert_false(peer(pair, 0)->quorum_connected);
    assert_int_equal(peer(pair, 1)->loop_lag_ns, 3 * MS);
    assert_int_equal(peer(pair, 1)->flush_age_ns, 5 * MS);
    assert_true(pair->now - peer(pair, 1)->slot_stamp <= 102 * MS);
    assert_true(peer(pair, 1)->rtt_ns >= 2 * MS && peer(pair, 1)->rtt_ns <= 103 * MS);
    pair_destroy(pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(support_stands_after_two_datagrams),
        cmocka_unit_test(the_supporter_always_ends_later),
        cmocka_unit_test(support_is_directional),
        cmocka_unit_test(some_loss_does_no_harm),
        cmocka_unit_test(a_hanging_disk_or_loop_loses_support),
        cmocka_unit_test(a_pause_is_noticed_before_anything_else),
        cmocka_unit_test(a_restart_ends_support_both_ways_and_all_claims),
        cmocka_unit_test(an_echo_for_a_former_life_is_void),
        cmocka_unit_test(a_rolled_back_host_is_told),
        cmocka_unit_test(one_peers_word_stops_no_host),
        cmocka_unit_test(what_is_replayed_is_dropped),
        cmocka_unit_test(claims_arrive_and_leave_within_an_interval),
        cmocka_unit_test(many_claims_come_in_pages_through_loss),
        cmocka_unit_test(more_claims_than_fit_are_counted_and_do_not_flood),
        cmocka_unit_test(a_broken_invariant_stops_the_process),
        cmocka_unit_test(a_full_table_of_claims_refuses_and_counts),
        cmocka_unit_test(a_new_life_leads_nothing_that_the_last_one_led),
        cmocka_unit_test(a_refused_connection_ends_only_the_observers_support),
        cmocka_unit_test(interest_is_counted_and_bounded),
        cmocka_unit_test(interest_that_begins_again_is_heard_at_once),
        cmocka_unit_test(a_stranger_and_nonsense_are_counted),
        cmocka_unit_test(the_heartbeat_carries_health_and_the_slot_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
