/* In the steady state gossip takes nothing from the heap: eight nodes probe each other and compare their records for an
 * hour (STYLE 7: memory is taken at init and at admission). */
#include "alloc_count.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "shoal/gossip.h"

static enum shoal_err step_counted(struct shoal_swim *swim, const struct shoal_swim_event *event, uint64_t now_ns,
                                   struct shoal_swim_actions *actions);

#define NET_SWIM_STEP step_counted
#include "gossip_net.h"

#include "shoal/banned.h"

static bool steady;

static enum shoal_err step_counted(struct shoal_swim *swim, const struct shoal_swim_event *event, uint64_t now_ns,
                                   struct shoal_swim_actions *actions)
{
    enum shoal_err err;

    alloc_counting = steady;
    err = shoal_swim_step(swim, event, now_ns, actions);
    alloc_counting = false;
    return err;
}

static void test_an_hour_of_gossip_allocates_nothing(void **state)
{
    struct net net;
    uint64_t before;

    (void)state;
    if (!ALLOC_COUNTS)
        skip();
    net_init(&net, 92);
    net_mesh(&net, 8);
    net_run(&net, 60 * SHOAL_S);
    before = net.sent;
    alloc_count = 0;
    steady = true;
    net_run(&net, 3600 * SHOAL_S);
    steady = false;
    assert_true(net.sent - before > 8 * 3600); /* they did speak */
    assert_int_equal(alloc_count, 0);
    net_deinit(&net);
}

/* The counter counts: a member that joins is an admission. */
static void test_an_admission_is_counted(void **state)
{
    struct net net;

    (void)state;
    if (!ALLOC_COUNTS)
        skip();
    net_init(&net, 93);
    alloc_count = 0;
    alloc_counting = true;
    net_mesh(&net, 3);
    alloc_counting = false;
    assert_true(alloc_count > 0);
    net_deinit(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_hour_of_gossip_allocates_nothing),
        cmocka_unit_test(test_an_admission_is_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
