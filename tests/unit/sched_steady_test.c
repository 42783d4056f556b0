/* In the steady state the control plane takes nothing from the heap: jobs run, leases are renewed, hosts are supported,
 * gossip speaks, and an hour passes (STYLE 7: memory is taken at init and at admission). */
#include "alloc_count.h"

#include "shoal/sched.h"

static enum shoal_err step_counted(struct shoal_sched *sched, const struct shoal_sched_event *event, uint64_t now_ns,
                                   struct shoal_sched_actions *actions);

#define NET_SCHED_STEP step_counted
#include "sched_net.h"

#include "shoal/banned.h"

static bool steady;
static uint64_t worst; /* of one step */

static enum shoal_err step_counted(struct shoal_sched *sched, const struct shoal_sched_event *event, uint64_t now_ns,
                                   struct shoal_sched_actions *actions)
{
    uint64_t before = alloc_count;
    enum shoal_err err;

    alloc_counting = steady;
    err = shoal_sched_step(sched, event, now_ns, actions);
    alloc_counting = false;
    if (alloc_count - before > worst)
        worst = alloc_count - before;
    return err;
}

static void test_an_hour_of_running_jobs_allocates_nothing(void **state)
{
    struct net *net;
    struct shoal_view no_ticket = { 0 };
    uint64_t before;

    (void)state;
    if (!ALLOC_COUNTS)
        skip();
    net = net_create_with(90, 3, true, 4);
    net->work_ns = 7200 * NET_S;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(net_wait(net, net_submit(net, i, 1000 + i, no_ticket), 2 * NET_S)->err, SHOAL_OK);
    net_run(net, 60 * NET_S);
    before = net->steps;
    alloc_count = 0;
    steady = true;
    net_run(net, 3600 * NET_S);
    steady = false;
    assert_true(net->steps - before > 3 * 3600); /* they did live: leases alone make a step a second and host */
    assert_int_equal(net->nodes[0].runs + net->nodes[1].runs + net->nodes[2].runs, 6);
    for (unsigned i = 0; i < 3; i++)
        assert_true(net->nodes[i].slots_free != UINT64_MAX >> (64 - net->nodes[i].slots)); /* and still run */
    if (alloc_count != 0)
        fail_msg("%llu allocations within %llu steps, up to %llu in one", (unsigned long long)alloc_count,
                 (unsigned long long)(net->steps - before), (unsigned long long)worst);
    net_destroy(net);
}

/* The counter counts: a submit is an admission, and takes memory. */
static void test_an_admission_is_counted(void **state)
{
    struct net *net;
    struct shoal_view no_ticket = { 0 };

    (void)state;
    if (!ALLOC_COUNTS)
        skip();
    net = net_create_with(91, 3, true, 4);
    alloc_count = 0;
    steady = true;
    assert_int_equal(net_wait(net, net_submit(net, 0, 1000, no_ticket), 2 * NET_S)->err, SHOAL_OK);
    steady = false;
    assert_true(alloc_count > 0);
    net_destroy(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_hour_of_running_jobs_allocates_nothing),
        cmocka_unit_test(test_an_admission_is_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
