/* Summaries: what a leader says of its job to all, and what it believes of others' (sched_summary.c). */
#include "shoal/job_facts.h"
#include "shoal/sched_look.h"
#include "sched_net.h"

#include "sched/node/sched_group.h"
#include "sched/node/sched_state.h"
#include "sched/node/sched_view.h"

#include "shoal/banned.h"

/* A job that no host has slots for: it waits. */
static struct shoal_job_id waiting_job(struct net *net)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_TICKET, .spec_hash = net_spec_hash(1) };
    struct net_reply *reply = net_wait(net, net_request(net, 0, &request), NET_S);
    struct shoal_buf ticket = { 0 };

    assert_int_equal(shoal_buf_append(&ticket, reply->ticket.bytes, reply->ticket.len), SHOAL_OK);
    reply = net_wait(net, net_submit(net, 0, 1, shoal_buf_view(&ticket)), 2 * NET_S);
    assert_int_equal(reply->err, SHOAL_OK);
    shoal_buf_deinit(&ticket);
    return reply->job;
}

/* A summary of the job comes to node `at` by gossip: one worker is wanted. */
static void hear(struct net *net, unsigned at, struct shoal_job_id job, struct shoal_sched_version version)
{
    struct shoal_job_summary summary = {
        .id = job, .state = SHOAL_JOB_RUNNING, .want_max = 1, .leader = net->nodes[(at + 1) % 3].id, .term = 2
    };
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_SUMMARY };
    uint8_t bytes[SHOAL_SCHED_SUMMARY_BYTES_MAX];
    size_t len;

    assert_int_equal(shoal_job_summary_encode(&summary, bytes, sizeof(bytes), &len), SHOAL_OK);
    event.u.summary.job = job;
    event.u.summary.version = version;
    event.u.summary.payload = shoal_view_of(bytes, len);
    assert_int_equal(shoal_sched_step(net->nodes[at].sched, &event, net->now, net->actions), SHOAL_OK);
}

/* Y1: what a leader has heard of its job from the one before it makes way for its own word: nobody else tells it that. */
static void test_a_leader_hears_its_own_word(void **state)
{
    struct net *net = net_create(511, 3, true);
    struct shoal_job_id job = waiting_job(net);
    unsigned leader = net_leader(net, job);
    const struct shoal_job_summary *known;

    (void)state;
    hear(net, leader, job, (struct shoal_sched_version){ 0, 0, 1 });
    known = sched_summary_find(net->nodes[leader].sched, job);
    assert_non_null(known);
    assert_int_equal(known->want_max, 1);
    assert_int_equal(net_wait(net, net_ask(net, 0, SHOAL_SCHED_STOP, job, true), 4 * NET_S)->err, SHOAL_OK);
    net_run(net, NET_S);
    known = sched_summary_find(net->nodes[leader].sched, job);
    assert_non_null(known);
    assert_int_equal(known->want_max, 0);
    assert_int_equal(known->state, SHOAL_JOB_KILLED);
    net_destroy(net);
}

/* Y6: what a job holds may change without an entry in its log: gossip takes the change for newer all the same, and what
 * buries it later is newer still. */
static void test_each_change_of_a_demand_has_a_version(void **state)
{
    struct net *net = net_create(512, 3, true);
    struct shoal_job_id job = waiting_job(net);
    struct shoal_sched *s = net->nodes[net_leader(net, job)].sched;
    struct sched_group *g = sched_group_find(s, job);
    struct shoal_sched_action *list = net->actions->list;

    (void)state;
    net->actions->count = 0;
    s->actions = net->actions;
    for (unsigned i = 0; i < 3; i++)
        sched_summary_publish(s, g, shoal_view_text("payload"), true);
    sched_summary_gone(s, g, false);
    s->actions = NULL;
    assert_int_equal(net->actions->count, 4);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(list[i].kind, SHOAL_SCHED_PUBLISH_SUMMARY);
        assert_int_equal(list[i].u.summary.tombstone, i == 3);
        assert_true(i == 0 || list[i].u.summary.version.applied > list[i - 1].u.summary.version.applied);
    }
    net_destroy(net);
}

/* Y2: a summary comes back after its job's deletion, as it was before a partition: a guardian that has buried the job
 * says so once more, with a version above it, and believes nothing. */
static void test_a_summary_that_comes_back_is_buried_again(void **state)
{
    struct net *net = net_create(513, 3, true);
    struct shoal_job_id job = waiting_job(net);
    unsigned buried = 0;

    (void)state;
    assert_int_equal(net_wait(net, net_ask(net, 0, SHOAL_SCHED_DELETE, job, true), 4 * NET_S)->err, SHOAL_OK);
    net_run(net, 10 * NET_S);
    hear(net, 0, job, (struct shoal_sched_version){ 1, 2, 99 });
    for (uint32_t i = 0; i < net->actions->count; i++) {
        const struct shoal_sched_action *action = &net->actions->list[i];

        if (action->kind != SHOAL_SCHED_PUBLISH_SUMMARY)
            continue;
        assert_true(action->u.summary.tombstone);
        assert_int_equal(action->u.summary.payload.len, 0);
        assert_int_equal(action->u.summary.version.applied, 100);
        buried++;
    }
    assert_int_equal(buried, 1);
    assert_null(sched_summary_find(net->nodes[0].sched, job));
    net_destroy(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_leader_hears_its_own_word),
        cmocka_unit_test(test_each_change_of_a_demand_has_a_version),
        cmocka_unit_test(test_a_summary_that_comes_back_is_buried_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
