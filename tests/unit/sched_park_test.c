/* Pending jobs far from the head of the queue leave memory, and come back when they are wanted (sched/node/sched_park.c).
 * No node has slots unless a test gives it some: what is submitted waits. */
#include "shoal/sched_look.h"
#include "shoal/job_facts.h"
#include "sched_net.h"

#include "shoal/banned.h"

#define JOBS_MAX 1200

static const struct shoal_view no_ticket;

/* Three nodes (or `count`) that show one job each, and park all others at once. */
static struct net *net_of(uint64_t seed, unsigned count, uint32_t slots, uint32_t loaded_max)
{
    struct net *net = net_create_with(seed, count, true, slots);

    net->loaded_max = loaded_max;
    for (unsigned i = 0; i < count; i++) {
        net_crash(net, i);
        net_start(net, i);
    }
    net_run(net, 3 * NET_S);
    return net;
}

static struct shoal_job_id submit(struct net *net, unsigned at, unsigned number)
{
    struct net_reply *reply = net_wait(net, net_submit(net, at, number, no_ticket), 3 * NET_S);

    if (reply->err != SHOAL_OK)
        fail_msg("submit %u at node %u: %s: %s", number, at, shoal_err_name(reply->err), reply->text);
    return reply->job;
}

static enum shoal_job_state state_of(struct net *net, unsigned at, struct shoal_job_id job)
{
    struct net_reply *reply = net_wait(net, net_ask(net, at, SHOAL_SCHED_GET, job, true), 4 * NET_S);
    struct shoal_job_facts facts;

    if (reply->err != SHOAL_OK)
        fail_msg("seed %llu: get at node %u: %s: %s", (unsigned long long)net->seed, at, shoal_err_name(reply->err),
                 reply->text);
    assert_int_equal(shoal_job_facts_decode(shoal_buf_view(&reply->bytes), &facts), SHOAL_OK);
    assert_true(shoal_job_id_equal(facts.id, job));
    return (enum shoal_job_state)facts.state;
}

static unsigned parked_at(struct net *net, struct shoal_job_id job)
{
    unsigned set = 0;

    for (unsigned i = 0; i < net->count; i++)
        if (net->nodes[i].up && shoal_sched_parked_find(net->nodes[i].sched, job))
            set |= 1u << i;
    return set;
}

static struct shoal_sched_stats stats_of(struct net *net, unsigned at)
{
    struct shoal_sched_stats stats;

    shoal_sched_stats(net->nodes[at].sched, &stats);
    return stats;
}

/* Jobs 0..count-1 submitted at node `at`, until all but the first are parked everywhere. */
static void submit_parked(struct net *net, unsigned at, unsigned count, struct shoal_job_id *jobs)
{
    for (unsigned i = 0; i < count; i++)
        jobs[i] = submit(net, at, i);
    net_run(net, 3 * NET_S);
    for (unsigned i = 1; i < count; i++)
        if (parked_at(net, jobs[i]) != 7) {
            net_print_group(net, jobs[i]);
            fail_msg("seed %llu: job %u of %u is parked at nodes %x", (unsigned long long)net->seed, i, count,
                     parked_at(net, jobs[i]));
        }
    assert_int_equal(parked_at(net, jobs[0]), 0);
}

static void test_the_head_of_the_queue_stays_and_the_rest_leaves_memory(void **state)
{
    struct net *net = net_of(1, 3, 0, 1);
    struct shoal_job_id jobs[20];

    (void)state;
    submit_parked(net, 0, 20, jobs);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(stats_of(net, i).parked, 19);
        assert_int_equal(stats_of(net, i).groups, 1);
    }
    assert_int_equal(stats_of(net, 0).pending_shown, 1);
    assert_int_equal(stats_of(net, 0).pending_held, 0);
    net_destroy(net);
}

/* Some hundred jobs pay nothing. */
static void test_a_burst_within_the_bound_is_not_parked(void **state)
{
    struct net *net = net_of(2, 3, 0, 0);

    (void)state;
    for (unsigned i = 0; i < 200; i++)
        (void)submit(net, 0, i);
    net_run(net, 3 * NET_S);
    assert_int_equal(stats_of(net, 0).parks, 0);
    assert_int_equal(stats_of(net, 0).pending_held, 0);
    assert_int_equal(stats_of(net, 0).pending_shown, 200);
    net_destroy(net);
}

static void test_a_parked_group_sleeps(void **state)
{
    struct net *net = net_of(3, 3, 0, 1);
    struct shoal_job_id jobs[30];
    uint64_t loads;

    (void)state;
    submit_parked(net, 1, 30, jobs);
    loads = stats_of(net, 0).loads + stats_of(net, 1).loads + stats_of(net, 2).loads;
    net_run(net, 120 * NET_S);
    assert_int_equal(stats_of(net, 0).loads + stats_of(net, 1).loads + stats_of(net, 2).loads, loads);
    for (unsigned i = 1; i < 30; i++)
        assert_int_equal(parked_at(net, jobs[i]), 7);
    net_destroy(net);
}

static void test_a_request_brings_it_back(void **state)
{
    struct net *net = net_of(4, 3, 0, 1);
    struct shoal_job_id jobs[12];

    (void)state;
    submit_parked(net, 0, 12, jobs);
    for (unsigned at = 0; at < 3; at++) { /* any node */
        uint64_t asked = net->now;

        assert_false(shoal_job_state_ended(state_of(net, at, jobs[5 + at])));
        if (net->now - asked > 1500 * NET_MS)
            fail_msg("asked at node %u, the answer took %llu ms", at,
                     (unsigned long long)((net->now - asked) / NET_MS));
    }
    net_run(net, 5 * NET_S); /* and it leaves again */
    for (unsigned i = 1; i < 12; i++)
        assert_int_equal(parked_at(net, jobs[i]), 7);
    net_destroy(net);
}

static void test_a_parked_job_is_stopped_and_deleted(void **state)
{
    struct net *net = net_of(5, 3, 0, 1);
    struct shoal_job_id jobs[8];
    struct net_reply *reply;

    (void)state;
    submit_parked(net, 2, 8, jobs);
    reply = net_wait(net, net_ask(net, 0, SHOAL_SCHED_STOP, jobs[3], false), 4 * NET_S);
    assert_int_equal(reply->err, SHOAL_OK);
    net_run(net, NET_S);
    assert_int_equal(state_of(net, 1, jobs[3]), SHOAL_JOB_KILLED);
    reply = net_wait(net, net_ask(net, 1, SHOAL_SCHED_DELETE, jobs[4], false), 4 * NET_S);
    assert_int_equal(reply->err, SHOAL_OK);
    net_run(net, 20 * NET_S);
    for (unsigned at = 0; at < 3; at++) {
        struct shoal_sched_group_status status;

        assert_false(shoal_sched_parked_find(net->nodes[at].sched, jobs[4]));
        assert_false(shoal_sched_group_find(net->nodes[at].sched, jobs[4], &status));
        reply = net_wait(net, net_ask(net, at, SHOAL_SCHED_GET, jobs[4], true), 4 * NET_S);
        assert_int_equal(reply->err, SHOAL_ERR_NOT_FOUND);
    }
    net_destroy(net);
}

static void test_its_turn_comes(void **state)
{
    struct net *net = net_of(6, 3, 0, 2);
    struct shoal_job_id jobs[10];

    (void)state;
    for (unsigned i = 0; i < 10; i++)
        jobs[i] = submit(net, 0, i);
    net_run(net, 3 * NET_S);
    /* The head leaves, one after the other: the next in order take its place. */
    for (unsigned i = 0; i < 7; i++) {
        assert_int_equal(parked_at(net, jobs[i]), 0);
        assert_int_equal(parked_at(net, jobs[i + 1]), 0);
        assert_int_equal(parked_at(net, jobs[i + 3]), 7);
        assert_int_equal(net_wait(net, net_ask(net, 0, SHOAL_SCHED_STOP, jobs[i], false), 4 * NET_S)->err, SHOAL_OK);
        net_run(net, 4 * NET_S);
    }
    net_destroy(net);
}

static void test_all_of_a_long_queue_run(void **state)
{
    struct net *net = net_of(7, 3, 2, 2);
    struct shoal_job_id jobs[60];
    unsigned runs = 0;

    (void)state;
    for (unsigned i = 0; i < 60; i++)
        jobs[i] = net_wait(net, net_submit(net, i % 3, 1000 + i, no_ticket), 3 * NET_S)->job;
    for (unsigned i = 0; i < 100 && runs < 120; i++) {
        net_run(net, NET_S);
        runs = net->nodes[0].runs + net->nodes[1].runs + net->nodes[2].runs;
    }
    net_run(net, 2 * NET_S);
    for (unsigned i = 0; i < 60; i++)
        assert_int_equal(state_of(net, i % 3, jobs[i]), SHOAL_JOB_FINISHED);
    assert_true(stats_of(net, 0).parks > 0);
    net_destroy(net);
}

/* Jobs that no host can run, however many, do not keep others from running. */
static void test_those_that_want_another_device_are_not_in_the_way(void **state)
{
    struct net *net = net_of(13, 3, 2, 1);
    struct shoal_job_id jobs[8];

    (void)state;
    for (unsigned i = 0; i < 12; i++)
        assert_int_equal(net_wait(net, net_submit(net, 0, 3000 + i, no_ticket), 3 * NET_S)->err, SHOAL_OK);
    net_run(net, 2 * NET_S);
    assert_int_equal(stats_of(net, 0).parked, 11);
    for (unsigned i = 0; i < 8; i++)
        jobs[i] = net_wait(net, net_submit(net, 0, 1000 + i, no_ticket), 3 * NET_S)->job;
    net_run(net, 20 * NET_S);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(state_of(net, 0, jobs[i]), SHOAL_JOB_FINISHED);
    assert_int_equal(stats_of(net, 0).park_widened, 0);
    net_destroy(net);
}

static void test_a_restart_with_a_thousand_parked_reads_their_marks_alone(void **state)
{
    struct net *net = net_of(8, 3, 0, 8);
    struct shoal_job_id *jobs = calloc(JOBS_MAX, sizeof(*jobs));

    (void)state;
    assert_non_null(jobs);
    for (unsigned i = 0; i < 1000; i++)
        jobs[i] = submit(net, 0, i);
    net_run(net, 5 * NET_S);
    assert_true(stats_of(net, 0).parked >= 980);
    for (unsigned i = 0; i < 3; i++)
        net_crash(net, i);
    for (unsigned i = 0; i < 3; i++)
        net_start(net, i);
    assert_true(stats_of(net, 1).parked >= 980);
    net_run(net, 10 * NET_S);
    assert_true(stats_of(net, 0).groups < 40);
    assert_int_equal(stats_of(net, 0).parked + stats_of(net, 0).groups, 1000);
    for (unsigned i = 0; i < 1000; i += 97)
        assert_false(shoal_job_state_ended(state_of(net, i % 3, jobs[i])));
    free(jobs);
    net_destroy(net);
}

static void test_another_owner_takes_the_queue_of_a_dead_leader(void **state)
{
    struct net *net = net_of(9, 3, 0, 2);
    struct shoal_job_id jobs[20];

    (void)state;
    for (unsigned i = 0; i < 20; i++)
        jobs[i] = submit(net, 0, i);
    net_run(net, 4 * NET_S);
    assert_int_equal(parked_at(net, jobs[4]), 7);
    net_crash(net, 0);
    net_run(net, 8 * NET_S);
    /* The survivors show what is next; whoever is asked answers. */
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(net_wait(net, net_ask(net, 1, SHOAL_SCHED_STOP, jobs[i], false), 4 * NET_S)->err, SHOAL_OK);
    net_run(net, 8 * NET_S);
    assert_true(net_leader(net, jobs[6]) == 1 || net_leader(net, jobs[6]) == 2);
    assert_true(parked_at(net, jobs[19]) == 6);
    for (unsigned i = 6; i < 20; i++)
        assert_false(shoal_job_state_ended(state_of(net, 1 + i % 2, jobs[i])));
    net_start(net, 0);
    net_run(net, 10 * NET_S);
    for (unsigned i = 6; i < 20; i++)
        assert_false(shoal_job_state_ended(state_of(net, 0, jobs[i])));
    net_destroy(net);
}

static void test_a_founding_is_retried_for_a_parked_job(void **state)
{
    struct net *net = net_of(10, 3, 0, 1);
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_TICKET, .spec_hash = net_spec_hash(3) };
    struct net_reply *ticket, *reply;
    struct shoal_job_id jobs[3];

    (void)state;
    ticket = net_wait(net, net_request(net, 0, &request), NET_S);
    for (unsigned i = 0; i < 3; i++)
        jobs[i] = submit(net, 0, 10 + i);
    reply = net_wait(net, net_submit(net, 0, 3, shoal_buf_view(&ticket->ticket)), 3 * NET_S);
    assert_int_equal(reply->err, SHOAL_OK);
    net_run(net, 4 * NET_S);
    if (parked_at(net, reply->job) != 7) /* its ticket is the oldest: it may be the head */
        assert_int_equal(parked_at(net, jobs[0]), 7);
    reply = net_wait(net, net_submit(net, 1, 3, shoal_buf_view(&ticket->ticket)), 5 * NET_S);
    assert_int_equal(reply->err, SHOAL_OK);
    assert_true(shoal_job_id_equal(reply->job, ticket->job));
    reply = net_wait(net, net_submit(net, 2, 4, shoal_buf_view(&ticket->ticket)), 5 * NET_S);
    assert_int_equal(reply->err, SHOAL_ERR_EXISTS);
    net_destroy(net);
}

/* Parked by two while the third was away: it gets all of them when it is back. */
static void test_one_that_was_away_gets_what_was_parked_meanwhile(void **state)
{
    struct net *net = net_of(11, 3, 0, 1);
    struct shoal_job_id jobs[10];

    (void)state;
    net_crash(net, 2);
    net_run(net, 3 * NET_S);
    for (unsigned i = 0; i < 10; i++)
        jobs[i] = submit(net, 0, i);
    net_run(net, 5 * NET_S);
    for (unsigned i = 1; i < 10; i++)
        assert_int_equal(parked_at(net, jobs[i]), 3);
    net_start(net, 2);
    net_run(net, 15 * NET_S);
    for (unsigned i = 1; i < 10; i++)
        assert_int_equal(parked_at(net, jobs[i]), 7);
    net_crash(net, 0);
    net_run(net, 5 * NET_S);
    for (unsigned i = 0; i < 10; i++)
        assert_false(shoal_job_state_ended(state_of(net, 1 + i % 2, jobs[i])));
    net_destroy(net);
}

/* A guardian that is gone for good is replaced, also where the job is parked. */
static void test_a_lost_guardian_of_a_parked_job_is_replaced(void **state)
{
    struct net *net = net_create_with(12, 4, true, 0);
    struct shoal_job_id jobs[12];
    unsigned lost = 0;

    (void)state;
    net->loaded_max = 1;
    net->replace_ns = 5 * NET_S;
    for (unsigned i = 0; i < 4; i++) {
        net_crash(net, i);
        net_start(net, i);
    }
    net_run(net, 3 * NET_S);
    for (unsigned i = 0; i < 12; i++)
        jobs[i] = submit(net, 0, i);
    net_run(net, 4 * NET_S);
    for (unsigned i = 1; i < 12; i++) {
        assert_int_equal(__builtin_popcount(parked_at(net, jobs[i])), 3);
        lost += parked_at(net, jobs[i]) >> 1 & 1;
    }
    assert_true(lost > 0);
    net_crash(net, 1);
    net_run(net, 40 * NET_S);
    for (unsigned i = 1; i < 12; i++) {
        if (parked_at(net, jobs[i]) != 13)
            net_print_group(net, jobs[i]);
        assert_int_equal(parked_at(net, jobs[i]), 13);
    }
    net_destroy(net);
}

/* Whatever happens in whatever order, every job that was acknowledged is there in the end, and is one. */
static void one_random_mesh(uint64_t seed)
{
    struct net *net = net_of(seed, 3 + (unsigned)(seed % 3), (uint32_t)(seed / 3 % 3), 1 + (uint32_t)(seed % 2));
    struct shoal_job_id jobs[40];
    bool stopped[40] = { false };
    unsigned count = 0;
    struct shoal_rand rand;

    shoal_rand_init(&rand, seed);
    net->loss_per_mille = seed % 4 == 0 ? 50 : 0;
    for (unsigned i = 0; i < 60; i++) {
        unsigned at = (unsigned)shoal_rand_below(&rand, net->count);
        unsigned what = (unsigned)shoal_rand_below(&rand, 10);

        if (what < 6 && count < 40 && net->nodes[at].up) {
            unsigned number = (what < 3 ? 1000 : 0) + i;
            struct net_reply *reply = net_wait(net, net_submit(net, at, number, no_ticket), 40 * NET_S);

            if (reply->err == SHOAL_OK)
                jobs[count++] = reply->job;
        } else if (what == 6 && count > 0 && net->nodes[at].up) {
            unsigned job = (unsigned)shoal_rand_below(&rand, count);

            (void)net_wait(net, net_ask(net, at, SHOAL_SCHED_STOP, jobs[job], false), 10 * NET_S);
            stopped[job] = true;
        } else if (what == 7) {
            unsigned down = 0;

            for (unsigned n = 0; n < net->count; n++)
                down += net->nodes[n].up ? 0 : 1;
            if (!net->nodes[at].up)
                net_start(net, at);
            else if (down == 0)
                net_crash(net, at);
        } else if (what == 8 && count > 0 && net->nodes[at].up) {
            (void)net_ask(net, at, SHOAL_SCHED_GET, jobs[shoal_rand_below(&rand, count)], what & 1);
        }
        net_run(net, shoal_rand_below(&rand, 2000) * NET_MS);
    }
    net->loss_per_mille = 0;
    for (unsigned n = 0; n < net->count; n++)
        if (!net->nodes[n].up)
            net_start(net, n);
    net_run(net, 30 * NET_S);
    for (unsigned i = 0; i < count; i++) {
        enum shoal_job_state state = state_of(net, i % net->count, jobs[i]);

        if (!stopped[i] && state == SHOAL_JOB_KILLED)
            fail_msg("seed %llu: job %u was killed by nobody", (unsigned long long)seed, i);
    }
    net_destroy(net);
}

static void test_random_meshes(void **state)
{
    const char *text = getenv("SHOAL_SEED");

    (void)state;
    if (text != NULL) {
        one_random_mesh(strtoull(text, NULL, 0));
        return;
    }
    for (uint64_t seed = 7000; seed < 7060; seed++)
        one_random_mesh(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_head_of_the_queue_stays_and_the_rest_leaves_memory),
        cmocka_unit_test(test_a_burst_within_the_bound_is_not_parked),
        cmocka_unit_test(test_a_parked_group_sleeps),
        cmocka_unit_test(test_a_request_brings_it_back),
        cmocka_unit_test(test_a_parked_job_is_stopped_and_deleted),
        cmocka_unit_test(test_its_turn_comes),
        cmocka_unit_test(test_all_of_a_long_queue_run),
        cmocka_unit_test(test_those_that_want_another_device_are_not_in_the_way),
        cmocka_unit_test(test_a_restart_with_a_thousand_parked_reads_their_marks_alone),
        cmocka_unit_test(test_another_owner_takes_the_queue_of_a_dead_leader),
        cmocka_unit_test(test_a_founding_is_retried_for_a_parked_job),
        cmocka_unit_test(test_one_that_was_away_gets_what_was_parked_meanwhile),
        cmocka_unit_test(test_a_lost_guardian_of_a_parked_job_is_replaced),
        cmocka_unit_test(test_random_meshes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
