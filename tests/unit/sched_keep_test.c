/* Guardians for life (PROTOCOLS 3, sched/node/sched_keep.c): groups grow to their target, lost guardians are replaced,
 * awake or asleep, one change at a time. */
#include "shoal/sched_look.h"
#include "sched_net.h"

#include "shoal/banned.h"

static const struct shoal_view no_ticket;

static struct shoal_job_id submit_wide(struct net *net, unsigned at, unsigned number, uint32_t hosts)
{
    static uint8_t spec[SHOAL_JOB_SPEC_BYTES_MAX];
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_SUBMIT,
                                           .spec_hash = net_spec_hash(number),
                                           .hosts_wanted = hosts };
    struct net_reply *reply;

    request.spec = shoal_view_of(spec, net_spec(number, spec, sizeof(spec)));
    reply = net_wait(net, net_request(net, at, &request), 2 * NET_S);
    assert_int_equal(reply->err, SHOAL_OK);
    return reply->job;
}

static bool status_at(struct net *net, unsigned at, struct shoal_job_id job, struct shoal_sched_group_status *status)
{
    return net->nodes[at].up && shoal_sched_group_find(net->nodes[at].sched, job, status);
}

static struct shoal_sched_group_status leads(struct net *net, struct shoal_job_id job)
{
    struct shoal_sched_group_status status = { 0 };
    unsigned leader = net_leader(net, job);

    if (leader < NET_NODES_MAX)
        assert_true(status_at(net, leader, job, &status));
    return status;
}

static bool is_voter(const struct shoal_sched_group_status *status, struct shoal_node_id node)
{
    for (unsigned i = 0; i < status->voters; i++) {
        if (shoal_node_id_equal(status->guardians[i], node))
            return true;
    }
    return false;
}

/* These must hold all the time: one change in flight, so two learners at most, and one member more than the target. */
static void watch(struct net *net, struct shoal_job_id job, unsigned target, uint64_t ns)
{
    uint64_t end = net->now + ns;

    while (net->now < end) {
        net_run(net, 20 * NET_MS);
        for (unsigned i = 0; i < net->count; i++) {
            struct shoal_sched_group_status status;

            if (!status_at(net, i, job, &status))
                continue;
            if (status.learners > 2 || status.voters + status.learners > target + 1)
                fail_msg("node %u sees %u voters and %u learners of %u", i, status.voters, status.learners, target);
        }
    }
}

static void wait_for(struct net *net, struct shoal_job_id job, unsigned voters, uint64_t ns)
{
    uint64_t end = net->now + ns;

    while (net->now < end && (leads(net, job).voters != voters || leads(net, job).learners > 0))
        watch(net, job, voters > 3 ? 5 : 3, 100 * NET_MS);
    if (net->now >= end) {
        net_print_group(net, job);
        fail_msg("not %u voters within %llu s", voters, (unsigned long long)(ns / NET_S));
    }
}

static void test_it_grows_after_10_s_and_not_before(void **state)
{
    struct net *net = net_create(70, 5, false);
    struct net_reply *reply;

    (void)state;
    net_join(net, 0);
    reply = net_wait(net, net_submit(net, 0, 1, no_ticket), NET_S);
    assert_int_equal(reply->err, SHOAL_OK);
    net_run(net, 5 * NET_S);
    for (unsigned i = 1; i < 5; i++)
        net_join(net, i);
    watch(net, reply->job, 3, 9 * NET_S);
    assert_int_equal(leads(net, reply->job).voters, 1);
    assert_int_equal(leads(net, reply->job).learners, 0);
    wait_for(net, reply->job, 3, 30 * NET_S);
    net_destroy(net);
}

/* U4: of two guardians the loss of one for good would be the end of the group. */
static void test_one_becomes_three_in_one_change(void **state)
{
    struct net *net = net_create(69, 3, false);
    struct net_reply *reply;
    struct shoal_sched_group_status status;

    (void)state;
    net_join(net, 0);
    reply = net_wait(net, net_submit(net, 0, 1, no_ticket), NET_S);
    net_join(net, 1);
    net_join(net, 2);
    for (unsigned i = 0; i < 3000 && leads(net, reply->job).voters != 3; i++) {
        net_run(net, 5 * NET_MS);
        for (unsigned at = 0; at < 3; at++)
            assert_false(status_at(net, at, reply->job, &status) && status.voters == 2);
    }
    assert_int_equal(leads(net, reply->job).voters, 3);
    net_destroy(net);
}

/* The newest entry of the group that the disk there has; 0: none. */
static uint64_t on_disk(struct net *net, unsigned at, struct shoal_job_id job)
{
    const struct disk_group *g = disk_find(&net->nodes[at], job, false);

    if (g == NULL)
        return 0;
    return g->entry_count > 0 ? g->entries[g->entry_count - 1].index : g->snapshot.index;
}

/* U1: the vote of one that does not know its configuration counts for nothing, and its group could not elect anybody. */
static void test_who_becomes_a_voter_knows_that_it_was_a_learner(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct net *net = net_create(150 + seed, 3, false);
        uint64_t learners = 0; /* the entry that made them so */
        struct shoal_sched_group_status status;
        struct net_reply *reply;

        net_join(net, 0);
        reply = net_wait(net, net_submit(net, 0, 1, no_ticket), NET_S);
        net_join(net, 1);
        net_join(net, 2);
        net->nodes[1].flush_ns = net->nodes[2].flush_ns = 400 * NET_MS;
        for (unsigned i = 0; i < 20000 && leads(net, reply->job).voters < 2; i++) {
            net_run(net, NET_MS);
            if (learners == 0 && leads(net, reply->job).learners > 0)
                learners = leads(net, reply->job).last;
        }
        assert_true(learners > 0);
        status = leads(net, reply->job);
        for (unsigned at = 1; at < 3; at++)
            if (is_voter(&status, net->nodes[at].id))
                assert_true(on_disk(net, at, reply->job) >= learners);
        net_destroy(net);
    }
}

/* The second is lost before it is promoted: the third alone joins the first, when gossip counts no third any more. */
static void test_a_loss_in_the_growth(void **state)
{
    (void)state;
    for (uint64_t at_ms = 10000; at_ms < 10600; at_ms += 20) {
        struct net *net = net_create(100 + at_ms, 3, false);
        struct net_reply *reply;

        net_join(net, 0);
        reply = net_wait(net, net_submit(net, 0, 1, no_ticket), NET_S);
        net_join(net, 1);
        net_join(net, 2);
        net_run(net, at_ms * NET_MS);
        net_crash(net, 1);
        net_run(net, 10 * NET_S);
        assert_true(net_leader(net, reply->job) < NET_NODES_MAX);
        assert_true(leads(net, reply->job).voters >= 2);
        net_destroy(net);
    }
}

static void say_of(struct net *net, unsigned of, enum shoal_sched_node_state state)
{
    for (unsigned i = 0; i < net->count; i++)
        if (i != of && net->nodes[i].up)
            net_tell_node(net, i, of, state);
}

/* U2, without a spare: who left is done without at once, who is only lost after ten minutes; then the next loss of one
 * of two stops the group, as it must, and three are made of two again when there is a third. */
static void test_without_a_spare_the_group_shrinks(void **state)
{
    static const struct {
        const char *name;
        enum shoal_sched_node_state state;
        uint64_t not_before_s, within_s;
    } rows[] = {
        { "it has left", SHOAL_SCHED_NODE_LEFT, 0, 5 },
        { "gossip has forgotten it", SHOAL_SCHED_NODE_FORGOTTEN, 0, 5 },
        { "it is lost", SHOAL_SCHED_NODE_DEAD, 590, 20 },
    };

    (void)state;
    for (unsigned r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        struct net *net = net_create(91 + r, 3, true);
        struct net_reply *reply = net_wait(net, net_submit(net, 0, 1, no_ticket), 2 * NET_S);

        net_run(net, 2 * NET_S);
        net_crash(net, 2);
        net_run(net, 3 * NET_S);
        say_of(net, 2, rows[r].state);
        net_run(net, rows[r].not_before_s * NET_S);
        if (rows[r].not_before_s > 0 && leads(net, reply->job).voters != 3)
            fail_msg("%s: it shrinks too early", rows[r].name);
        net_run(net, rows[r].within_s * NET_S);
        if (leads(net, reply->job).voters != 2)
            fail_msg("%s: %u voters", rows[r].name, leads(net, reply->job).voters);
        net_start(net, 2);
        wait_for(net, reply->job, 3, 60 * NET_S);
        net_destroy(net);
    }
}

/* U2. One guardian is dead and not given up yet. Gossip has not told the leader of the other one, or that one is on its way
 * out: it is still needed to commit any change, so it stays. */
static void test_the_only_other_one_that_is_heard_stays(void **state)
{
    static const enum shoal_sched_node_state states[] = { SHOAL_SCHED_NODE_FORGOTTEN, SHOAL_SCHED_NODE_LEFT };

    (void)state;
    for (unsigned r = 0; r < 2; r++) {
        struct net *net = net_create(97 + r, 3, true);
        struct net_reply *reply = net_wait(net, net_submit(net, 0, 1, no_ticket), 2 * NET_S);
        unsigned leader = net_leader(net, reply->job), dead;
        struct shoal_job_id job = reply->job;

        net_run(net, 2 * NET_S);
        dead = leader == 2 ? 1 : 2;
        net_crash(net, dead);
        net_run(net, 3 * NET_S);
        net_tell_node(net, leader, 3 - leader - dead, states[r]);
        net_run(net, 5 * NET_S);
        assert_int_equal(leads(net, job).voters, 3);
        assert_int_equal(net_wait(net, net_ask(net, leader, SHOAL_SCHED_STOP, job, true), 4 * NET_S)->err, SHOAL_OK);
        net_destroy(net);
    }
}

/* There is a spare, but the guardian answers: gossip only tells of it late. */
static void test_who_is_heard_is_not_replaced(void **state)
{
    struct net *net = net_create(99, 4, true);
    struct net_reply *reply = net_wait(net, net_submit(net, 0, 1, no_ticket), 2 * NET_S);
    struct shoal_job_id job = reply->job;
    struct shoal_sched_group_status before = leads(net, job), after;
    unsigned leader = net_leader(net, job), other = 0;

    (void)state;
    while (other == leader || !is_voter(&before, net->nodes[other].id))
        other++;
    net_run(net, 2 * NET_S);
    net_tell_node(net, leader, other, SHOAL_SCHED_NODE_FORGOTTEN);
    net_run(net, 10 * NET_S);
    after = leads(net, job);
    assert_true(is_voter(&after, net->nodes[other].id));
    net_destroy(net);
}

/* Of five, two leave at once, and nobody takes their places: three go on. */
static void test_two_leave_at_once(void **state)
{
    struct net *net = net_create(95, 5, true);
    struct shoal_job_id job = submit_wide(net, 0, 1, 64);

    (void)state;
    assert_int_equal(leads(net, job).voters, 5);
    net_run(net, 2 * NET_S);
    net_crash(net, 3);
    net_crash(net, 4);
    net_run(net, 5 * NET_S);
    say_of(net, 3, SHOAL_SCHED_NODE_LEFT);
    say_of(net, 4, SHOAL_SCHED_NODE_LEFT);
    net_run(net, 5 * NET_S);
    assert_int_equal(leads(net, job).voters, 3);
    net_crash(net, net_leader(net, job)); /* two of three are a majority */
    net_run(net, 5 * NET_S);
    assert_true(net_leader(net, job) < NET_NODES_MAX);
    net_destroy(net);
}

static void test_a_wide_job_has_five_and_replaces_two(void **state)
{
    struct net *net = net_create(71, 9, true);
    struct shoal_job_id job = submit_wide(net, 0, 1, 64);
    struct shoal_sched_group_status before = leads(net, job), after;
    unsigned lost = 0;

    (void)state;
    assert_int_equal(before.voters, 5);
    net_run(net, 2 * NET_S);
    for (unsigned i = 8; i > 0 && lost < 2; i--) {
        if (is_voter(&before, net->nodes[i].id)) {
            net_crash(net, i);
            lost++;
        }
    }
    watch(net, job, 5, 55 * NET_S);
    after = leads(net, job);
    for (unsigned i = 0; i < 5; i++)
        assert_true(is_voter(&after, before.guardians[i])); /* not before 60 s */
    watch(net, job, 5, 25 * NET_S);
    wait_for(net, job, 5, 20 * NET_S);
    after = leads(net, job);
    for (unsigned i = 0; i < 9; i++)
        assert_true(net->nodes[i].up || !is_voter(&after, net->nodes[i].id));
    net_destroy(net);
}

/* The job has ended, its group sleeps: no timer of it runs. Each of its guardians in turn is lost and replaced. */
static void test_sleeping_groups_too(void **state)
{
    (void)state;
    for (uint64_t seed = 72; seed < 78; seed++) {
        struct net *net = net_create(seed, 6, true);
        struct net_reply *reply = net_wait(net, net_submit(net, 0, 1, no_ticket), 2 * NET_S);
        struct shoal_job_id job = reply->job;
        struct shoal_sched_group_status status;

        assert_int_equal(net_wait(net, net_ask(net, 1, SHOAL_SCHED_STOP, job, true), 4 * NET_S)->err, SHOAL_OK);
        net_run(net, 20 * NET_S);
        for (unsigned round = 0; round < 3; round++) {
            unsigned victim = round == 0 && seed % 2 == 0 ? net_leader(net, job) : 0;

            status = leads(net, job);
            assert_true(status.asleep);
            while (!net->nodes[victim].up || !is_voter(&status, net->nodes[victim].id))
                victim++;
            net_crash(net, victim);
            watch(net, job, 3, 90 * NET_S);
            wait_for(net, job, 3, 20 * NET_S);
            status = leads(net, job);
            assert_false(is_voter(&status, net->nodes[victim].id));
        }
        for (unsigned i = 0; i < 6; i++) { /* all three that guard it now came later */
            if (net->nodes[i].up)
                assert_true(is_voter(&status, net->nodes[i].id));
        }
        reply = net_wait(net, net_ask(net, 5, SHOAL_SCHED_GET, job, true), 4 * NET_S);
        if (net->nodes[5].up)
            assert_int_equal(reply->err, SHOAL_OK);
        net_destroy(net);
    }
}

/* A member that is back within 60 s stays; one that is back while its place is being taken leaves the group at its target. */
static void test_who_comes_back(void **state)
{
    (void)state;
    for (uint64_t away_s = 50; away_s < 75; away_s += 2) {
        struct net *net = net_create(80 + away_s, 5, true);
        struct net_reply *reply = net_wait(net, net_submit(net, 0, 1, no_ticket), 2 * NET_S);
        struct shoal_sched_group_status before = leads(net, reply->job), after;
        unsigned victim = 4;

        while (!is_voter(&before, net->nodes[victim].id))
            victim--;
        net_run(net, 2 * NET_S);
        net_crash(net, victim);
        watch(net, reply->job, 3, away_s * NET_S);
        net_start(net, victim);
        watch(net, reply->job, 3, 40 * NET_S);
        wait_for(net, reply->job, 3, 20 * NET_S);
        after = leads(net, reply->job);
        if (away_s < 58)
            assert_true(is_voter(&after, net->nodes[victim].id));
        net_destroy(net);
    }
}

/* The node is there again, but its disk was wiped: it is another member, and the old one is replaced. */
static void test_a_wiped_store_is_another_member(void **state)
{
    struct net *net = net_create(90, 3, true);
    struct net_reply *reply = net_wait(net, net_submit(net, 0, 1, no_ticket), 2 * NET_S);
    struct shoal_job_id job = reply->job;
    struct shoal_sched_group_status status;

    (void)state;
    net_run(net, 2 * NET_S);
    net_crash(net, 2);
    for (size_t d = 0; d < net->nodes[2].disk_count; d++)
        disk_clear(&net->nodes[2].disk[d]);
    memset(net->nodes[2].store.bytes, 77, sizeof(net->nodes[2].store.bytes));
    net_start(net, 2);
    watch(net, job, 3, 50 * NET_S);
    assert_false(status_at(net, 2, job, &status));
    watch(net, job, 3, 60 * NET_S);
    wait_for(net, job, 3, 30 * NET_S);
    assert_true(status_at(net, 2, job, &status));
    net_crash(net, 1); /* it counts */
    net_run(net, 3 * NET_S);
    assert_true(net_leader(net, job) < NET_NODES_MAX);
    net_destroy(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_grows_after_10_s_and_not_before),
        cmocka_unit_test(test_one_becomes_three_in_one_change),
        cmocka_unit_test(test_who_becomes_a_voter_knows_that_it_was_a_learner),
        cmocka_unit_test(test_a_loss_in_the_growth),
        cmocka_unit_test(test_without_a_spare_the_group_shrinks),
        cmocka_unit_test(test_the_only_other_one_that_is_heard_stays),
        cmocka_unit_test(test_who_is_heard_is_not_replaced),
        cmocka_unit_test(test_two_leave_at_once),
        cmocka_unit_test(test_a_wide_job_has_five_and_replaces_two),
        cmocka_unit_test(test_sleeping_groups_too),
        cmocka_unit_test(test_who_comes_back),
        cmocka_unit_test(test_a_wiped_store_is_another_member),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
