/* Recovery generations (PROTOCOLS 3, sched/node/sched_recover.c): a job goes on from a single replica, and what is left
 * of the generation before changes nothing any more. */
#include "shoal/sched_look.h"
#include "shoal/sched_ticket.h"
#include "shoal/job_facts.h"
#include "sched_net.h"

#include "shoal/banned.h"

static const struct shoal_view no_ticket;

static struct shoal_job_id submit(struct net *net, unsigned at, unsigned number)
{
    struct net_reply *reply = net_wait(net, net_submit(net, at, number, no_ticket), 2 * NET_S);

    assert_int_equal(reply->err, SHOAL_OK);
    return reply->job;
}

static struct net_reply *recover(struct net *net, unsigned at, struct shoal_job_id job, bool confirmed)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_RECOVER, .job = job, .confirmed = confirmed };

    return net_wait(net, net_request(net, at, &request), 12 * NET_S);
}

static void facts_at(struct net *net, unsigned at, struct shoal_job_id job, struct shoal_job_facts *facts)
{
    struct net_reply *reply = net_wait(net, net_ask(net, at, SHOAL_SCHED_GET, job, true), 4 * NET_S);

    if (reply->err != SHOAL_OK)
        fail_msg("get at node %u: %s: %s", at, shoal_err_name(reply->err), reply->text);
    assert_int_equal(shoal_job_facts_decode(shoal_buf_view(&reply->bytes), facts), SHOAL_OK);
}

static bool guards(struct net *net, unsigned at, struct shoal_job_id job)
{
    struct shoal_sched_group_status status;

    return net->nodes[at].up && shoal_sched_group_find(net->nodes[at].sched, job, &status);
}

static unsigned guardian_count(struct net *net, struct shoal_job_id job)
{
    unsigned count = 0;

    for (unsigned i = 0; i < net->count; i++)
        count += guards(net, i, job) ? 1 : 0;
    return count;
}

static unsigned voters(struct net *net, struct shoal_job_id job)
{
    struct shoal_sched_group_status status;
    unsigned leader = net_leader(net, job);

    assert_true(leader < NET_NODES_MAX);
    assert_true(shoal_sched_group_find(net->nodes[leader].sched, job, &status));
    return status.voters;
}

/* All guardians but one are gone for good; returns the one. `disks`: what they held too. */
static unsigned lose_majority(struct net *net, struct shoal_job_id job, bool disks)
{
    unsigned survivor = NET_NODES_MAX;

    for (unsigned i = net->count; i > 0; i--) {
        if (!guards(net, i - 1, job))
            continue;
        if (survivor == NET_NODES_MAX) {
            survivor = i - 1;
            continue;
        }
        net_crash(net, i - 1);
        for (size_t d = 0; disks && d < net->nodes[i - 1].disk_count; d++)
            disk_clear(&net->nodes[i - 1].disk[d]);
    }
    net_run(net, 4 * NET_S); /* gossip says so */
    assert_int_equal(net_leader(net, job), NET_NODES_MAX);
    return survivor;
}

static unsigned outsider(struct net *net, struct shoal_job_id job)
{
    for (unsigned i = 0; i < net->count; i++) {
        if (net->nodes[i].up && !guards(net, i, job))
            return i;
    }
    fail_msg("all nodes guard the job");
    return 0;
}

static void test_any_node_recovers_from_the_replica_that_is_left(void **state)
{
    struct net *net = net_create(31, 6, true);
    struct shoal_job_id job = submit(net, 0, 1);
    struct shoal_sched_recovery told;
    struct shoal_job_facts facts;
    struct net_reply *reply;
    unsigned survivor, asked;

    (void)state;
    net_run(net, NET_S);
    asked = outsider(net, job);
    survivor = lose_majority(net, job, true);
    reply = recover(net, asked, job, false);
    if (reply->err != SHOAL_OK)
        fail_msg("%s: %s", shoal_err_name(reply->err), reply->text);
    assert_int_equal(shoal_sched_recovery_decode(shoal_buf_view(&reply->bytes), &told), SHOAL_OK);
    assert_false(told.done);
    assert_int_equal(told.generation, 1);
    assert_int_equal(told.guardian_count, 3);
    assert_int_equal(told.lost_count, 2);
    assert_true(told.index >= 2 && told.term == 1);
    assert_true(shoal_node_id_equal(told.node, net->nodes[survivor].id));
    net_run(net, NET_S);
    assert_int_equal(net_leader(net, job), NET_NODES_MAX); /* told only: nothing was done */

    reply = recover(net, asked, job, true);
    if (reply->err != SHOAL_OK)
        fail_msg("%s: %s", shoal_err_name(reply->err), reply->text);
    assert_int_equal(shoal_sched_recovery_decode(shoal_buf_view(&reply->bytes), &told), SHOAL_OK);
    assert_true(told.done);
    assert_int_equal(told.generation, 2);
    assert_int_equal(net_leader(net, job), survivor);
    net_run(net, 5 * NET_S); /* fresh guardians, without the 10 s that growth waits for otherwise */
    assert_int_equal(voters(net, job), 3);
    facts_at(net, asked, job, &facts);
    assert_int_equal(facts.generation, 2);
    assert_false(shoal_job_state_ended((enum shoal_job_state)facts.state));
    reply = recover(net, asked, job, true); /* once more: there is nothing to recover */
    assert_int_equal(reply->err, SHOAL_ERR_EXISTS);
    net_crash(net, survivor); /* the fresh ones are guardians in full */
    net_run(net, 3 * NET_S);
    facts_at(net, asked, job, &facts);
    assert_int_equal(facts.generation, 2);
    net_destroy(net);
}

/* C1: the tombstone of a recovered job is of its lineage, so it is newer than every summary of it. */
static void test_a_recovered_job_is_deleted_in_gossip(void **state)
{
    struct net *net = net_create(39, 6, true);
    struct shoal_job_id job = submit(net, 0, 1);
    struct net_reply *reply;
    unsigned asked;

    (void)state;
    net_run(net, NET_S);
    asked = outsider(net, job);
    (void)lose_majority(net, job, true);
    assert_int_equal(recover(net, asked, job, true)->err, SHOAL_OK);
    net_run(net, 10 * NET_S);
    reply = net_wait(net, net_ask(net, asked, SHOAL_SCHED_DELETE, job, true), 5 * NET_S);
    assert_int_equal(reply->err, SHOAL_OK);
    net_run(net, 10 * NET_S);
    for (size_t i = 0; i < net->summary_count; i++)
        if (shoal_job_id_equal(net->summaries[i].job, job) && !net->summaries[i].tombstone)
            fail_msg("gossip still tells of the job");
    net_destroy(net);
}

static void test_a_group_that_is_well_is_not_recovered(void **state)
{
    struct net *net = net_create(32, 5, true);
    struct shoal_job_id job = submit(net, 0, 1);
    struct shoal_job_id unknown = job;
    struct shoal_job_facts facts;
    struct net_reply *reply;

    (void)state;
    net_run(net, NET_S);
    for (unsigned i = 0; i < 5; i++) {
        reply = recover(net, i, job, true);
        assert_int_equal(reply->err, SHOAL_ERR_EXISTS);
        assert_non_null(strstr(reply->text, "3 of its 3 guardians"));
    }
    net_crash(net, 0); /* two of three are a majority */
    net_run(net, 4 * NET_S);
    reply = recover(net, outsider(net, job), job, true);
    assert_int_equal(reply->err, SHOAL_ERR_EXISTS);
    facts_at(net, 1, job, &facts);
    assert_int_equal(facts.generation, 1);
    unknown.bytes[9] ^= 1;
    assert_int_equal(recover(net, 1, unknown, true)->err, SHOAL_ERR_NOT_FOUND);
    net_destroy(net);
}

static void test_who_only_does_not_answer_is_not_lost(void **state)
{
    struct net *net = net_create(33, 3, true);
    struct shoal_job_id job = submit(net, 0, 1);
    struct net_reply *reply;
    char name[9];

    (void)state;
    net_run(net, NET_S);
    for (unsigned i = 1; i < 3; i++)
        net->cut[0][i] = net->cut[i][0] = true; /* alive, says gossip */
    net_run(net, NET_S);
    reply = recover(net, 0, job, true);
    assert_int_equal(reply->err, SHOAL_ERR_UNREACHABLE);
    shoal_hex_text(net->nodes[1].id.bytes, 4, name);
    assert_non_null(strstr(reply->text, name));
    net_destroy(net);
}

static void test_nobody_holds_it(void **state)
{
    struct net *net = net_create(34, 6, true);
    struct shoal_job_id job = submit(net, 0, 1);
    unsigned asked = outsider(net, job);
    struct net_reply *reply;

    (void)state;
    net_run(net, NET_S);
    for (unsigned i = 0; i < 6; i++) {
        if (guards(net, i, job))
            net_crash(net, i);
    }
    net_run(net, 4 * NET_S);
    reply = recover(net, asked, job, true);
    assert_int_equal(reply->err, SHOAL_ERR_NOT_FOUND);
    net_destroy(net);
}

/* Five guardians, three lost: the two that are left do not hold the same; whoever is asked, the fuller one founds. */
static void test_the_fullest_replica_founds(void **state)
{
    struct net *net = net_create(35, 7, true);
    static uint8_t spec[SHOAL_JOB_SPEC_BYTES_MAX];
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_SUBMIT,
                                           .spec_hash = net_spec_hash(3),
                                           .hosts_wanted = 64 };
    struct shoal_sched_recovery told;
    struct shoal_job_facts facts;
    struct shoal_job_id job;
    struct net_reply *reply;
    unsigned left[2], count = 0;

    (void)state;
    request.spec = shoal_view_of(spec, net_spec(3, spec, sizeof(spec)));
    reply = net_wait(net, net_request(net, 0, &request), 2 * NET_S);
    assert_int_equal(reply->err, SHOAL_OK);
    job = reply->job;
    net_run(net, NET_S);
    assert_int_equal(guardian_count(net, job), 5);
    for (unsigned i = 6; i > 0 && count < 2; i--) {
        if (guards(net, i, job))
            left[count++] = i;
    }
    for (unsigned i = 0; i < 7; i++) /* left[0] misses the stop */
        net->cut[i][left[0]] = net->cut[left[0]][i] = true;
    assert_int_equal(net_wait(net, net_ask(net, 0, SHOAL_SCHED_STOP, job, true), 4 * NET_S)->err, SHOAL_OK);
    net_run(net, NET_S);
    for (unsigned i = 0; i < 7; i++) {
        net->cut[i][left[0]] = net->cut[left[0]][i] = false;
        if (guards(net, i, job) && i != left[0] && i != left[1])
            net_crash(net, i);
    }
    net_run(net, 4 * NET_S);
    reply = recover(net, left[0], job, true);
    if (reply->err != SHOAL_OK)
        fail_msg("%s: %s", shoal_err_name(reply->err), reply->text);
    assert_int_equal(shoal_sched_recovery_decode(shoal_buf_view(&reply->bytes), &told), SHOAL_OK);
    assert_true(shoal_node_id_equal(told.node, net->nodes[left[1]].id));
    net_run(net, 5 * NET_S);
    facts_at(net, left[0], job, &facts);
    assert_int_equal(facts.generation, 2);
    assert_int_equal(facts.state, SHOAL_JOB_KILLED); /* the acknowledged stop was not lost */
    net_destroy(net);
}

/* Two of three guardians go on without the third for a while: each change of leader is an entry that it misses. */
static void leave_behind(struct net *net, struct shoal_job_id job, unsigned survivor)
{
    for (unsigned i = 0; i < net->count; i++)
        net->cut[i][survivor] = net->cut[survivor][i] = true;
    net_run(net, 2 * NET_S);
    for (unsigned n = 0; n < 6; n++) {
        unsigned leader = net_leader(net, job);

        assert_true(leader < net->count);
        net_crash(net, leader);
        net_run(net, 100 * NET_MS);
        net_start(net, leader);
        net_run(net, 3 * NET_S);
    }
    for (unsigned i = 0; i < net->count; i++)
        net->cut[i][survivor] = net->cut[survivor][i] = false;
}

/* The two that were given up come back, a majority of what was: they may lead each other for a moment, then go. */
static void test_the_generation_before_goes_when_it_comes_back(void **state)
{
    (void)state;
    for (uint64_t seed = 40; seed < 56; seed++) {
        unsigned nodes = seed % 4 < 2 ? 3 : 5; /* of three, they are the only ones to become guardians anew */
        struct net *net = net_create(seed, nodes, true);
        struct shoal_job_id job = submit(net, 0, 1);
        struct shoal_job_facts facts;
        unsigned survivor, led = 0;

        net_run(net, NET_S);
        if (seed % 2 == 0) {
            survivor = nodes;
            while (!guards(net, survivor - 1, job))
                survivor--;
            leave_behind(net, job, survivor - 1); /* what they committed has indexes that the new line uses too */
        }
        survivor = lose_majority(net, job, false);
        assert_int_equal(recover(net, survivor, job, true)->err, SHOAL_OK);
        if (seed % 3 == 0)
            net_run(net, 5 * NET_S);
        for (unsigned i = 0; i < nodes; i++) {
            if (!net->nodes[i].up)
                net_start(net, i);
        }
        net_run(net, 30 * NET_S);
        for (unsigned i = 0; i < nodes; i++) {
            struct shoal_sched_group_status status;

            if (!shoal_sched_group_find(net->nodes[i].sched, job, &status))
                continue;
            led += status.leads ? 1 : 0;
            assert_int_equal(status.term >> 48, 1);
            assert_false(status.stopped);
        }
        assert_int_equal(led, 1);
        assert_int_equal(voters(net, job), 3);
        for (unsigned i = 0; i < nodes; i++) {
            facts_at(net, i, job, &facts);
            assert_int_equal(facts.generation, 2);
        }
        net_destroy(net);
    }
}

static void test_a_crash_during_recovery_leaves_one_generation(void **state)
{
    unsigned before = 0, after = 0;

    (void)state;
    for (uint64_t ms = 0; ms < 40; ms++) {
        struct net *net = net_create(50, 4, true);
        struct shoal_job_id job = submit(net, 0, 1);
        struct shoal_sched_request request = { .kind = SHOAL_SCHED_RECOVER, .job = job, .confirmed = true };
        struct shoal_job_facts facts;
        unsigned survivor;

        net_run(net, NET_S);
        survivor = lose_majority(net, job, true);
        net->nodes[survivor].flush_ns = 20 * NET_MS;
        (void)net_request(net, survivor, &request);
        net_run(net, 2 * NET_S + ms * NET_MS); /* it asks the dead for 2 s */
        net_crash(net, survivor);
        net_start(net, survivor);
        net_run(net, 3 * NET_S);
        if (net_leader(net, job) == NET_NODES_MAX) {
            before++;
            assert_int_equal(recover(net, survivor, job, true)->err, SHOAL_OK);
            net_run(net, NET_S);
        } else {
            after++;
        }
        facts_at(net, survivor, job, &facts);
        assert_int_equal(facts.generation, 2);
        net_destroy(net);
    }
    assert_true(before > 0 && after > 0);
}

/* A gang ran when the majority went: it ends, and starts again only when every lease of before has ended. */
static void test_a_gang_starts_its_next_attempt(void **state)
{
    struct net *net = net_create_with(36, 5, true, 1);
    struct shoal_job_id job;
    struct shoal_job_facts facts;
    unsigned survivor, runs, first = 0;
    uint64_t recovered_ns;

    (void)state;
    net->work_ns = 120 * NET_S; /* until it is killed */
    net_run(net, NET_S);
    job = submit(net, 0, 1000);
    while (first < 2) {
        net_run(net, 10 * NET_MS);
        first = 0;
        for (unsigned i = 0; i < 5; i++)
            first += net->nodes[i].runs;
    }
    net_run(net, NET_S);
    survivor = lose_majority(net, job, true);
    assert_int_equal(recover(net, survivor, job, true)->err, SHOAL_OK);
    recovered_ns = net->now;
    net->work_ns = 400 * NET_MS;
    do {
        net_run(net, 100 * NET_MS);
        runs = 0;
        for (unsigned i = 0; i < 5; i++)
            runs += net->nodes[i].runs;
    } while (runs < first + 2 && net->now < recovered_ns + 60 * NET_S);
    if (net->now < recovered_ns + 16 * NET_S)
        fail_msg("the next attempt started %llu ms after the recovery, while older leases stood",
                 (unsigned long long)((net->now - recovered_ns) / NET_MS));
    net_run(net, 5 * NET_S);
    facts_at(net, survivor, job, &facts);
    if (facts.state != SHOAL_JOB_FINISHED)
        fail_msg("%s: %s %s", shoal_job_state_name((enum shoal_job_state)facts.state), facts.reason, facts.pending);
    assert_int_equal(facts.attempt, 2);
    net_destroy(net);
}

/* The one that is left was cut off while the others gave the gang another attempt, on a host that lives on: its log
 * names the one of before. What it places does not meet what they had placed. */
static void test_what_only_the_lost_ones_placed_is_waited_for(void **state)
{
    struct net *net = net_create(37, 5, true);
    struct shoal_job_id job = submit(net, 0, 1000);
    struct shoal_job_facts facts;
    unsigned survivor = 0, runner = NET_NODES_MAX, before;

    (void)state;
    net->work_ns = 300 * NET_S;
    net->generations_apart = true;
    for (unsigned i = 0; i < 5; i++) { /* only nodes that do not guard it run workers */
        if (guards(net, i, job)) {
            survivor = i;
            continue;
        }
        net_crash(net, i);
        net->nodes[i].slots = 2;
        net->nodes[i].slots_free = 3;
        net_start(net, i);
    }
    while (net->worker_count < 2)
        net_run(net, 10 * NET_MS);
    runner = net->workers[0].node;
    net_run(net, NET_S);
    for (unsigned i = 0; i < 5; i++)
        net->cut[i][survivor] = net->cut[survivor][i] = true;
    net_run(net, 2 * NET_S);
    net_crash(net, runner);
    net_run(net, 25 * NET_S); /* its lease ends: the gang starts again on the other host */
    assert_int_equal(net->worker_count, 4);
    assert_int_not_equal(net->workers[2].node, runner);
    for (unsigned i = 0; i < 5; i++) {
        net->cut[i][survivor] = net->cut[survivor][i] = false;
        if (i != survivor && guards(net, i, job))
            net_crash(net, i);
    }
    net_start(net, runner);
    net_run(net, 2500 * NET_MS);
    assert_false(net->workers[2].frozen); /* it runs, and the one that is left does not know of it */
    before = (unsigned)net->worker_count;
    assert_int_equal(recover(net, survivor, job, true)->err, SHOAL_OK);
    while (net->worker_count == before && net->now < 1200 * NET_S)
        net_run(net, 10 * NET_MS);
    assert_int_equal(net->worker_count, before + 2);
    net_run(net, NET_S);
    facts_at(net, survivor, job, &facts);
    assert_int_equal(facts.generation, 2);
    assert_int_equal(facts.state, SHOAL_JOB_RUNNING);
    net_destroy(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_node_recovers_from_the_replica_that_is_left),
        cmocka_unit_test(test_a_recovered_job_is_deleted_in_gossip),
        cmocka_unit_test(test_a_group_that_is_well_is_not_recovered),
        cmocka_unit_test(test_who_only_does_not_answer_is_not_lost),
        cmocka_unit_test(test_nobody_holds_it),
        cmocka_unit_test(test_the_fullest_replica_founds),
        cmocka_unit_test(test_the_generation_before_goes_when_it_comes_back),
        cmocka_unit_test(test_a_crash_during_recovery_leaves_one_generation),
        cmocka_unit_test(test_a_gang_starts_its_next_attempt),
        cmocka_unit_test(test_what_only_the_lost_ones_placed_is_waited_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
