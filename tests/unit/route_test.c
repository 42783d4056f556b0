/* The place that a request for a service goes to (shoal/route.h). */
#include "shoal/route.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static uint32_t drawn(void *arg) { return (*(uint32_t *)arg)++; }

static struct shoal_route_host host(uint8_t number, uint64_t open, uint32_t room)
{
    return (struct shoal_route_host){ .node = { { number } }, .ready = 1, .room = room, .open = open, .reached = true };
}

static void test_a_host_fits_that_is_ready_reached_and_new(void **state)
{
    struct shoal_route_host none = host(1, 0, 1), dead = none, tried = none;
    struct shoal_route route = { 0 };
    uint32_t chance = 0;

    (void)state;
    none.ready = 0;
    dead.reached = false;
    tried.tried = true;
    shoal_route_offer(&route, &none, drawn, &chance);
    shoal_route_offer(&route, &dead, drawn, &chance);
    shoal_route_offer(&route, &tried, drawn, &chance);
    assert_null(shoal_route_best(&route)); /* R1 */
    none = host(7, 900, 1);
    shoal_route_offer(&route, &none, drawn, &chance);
    assert_int_equal(shoal_route_best(&route)->node.bytes[0], 7);
    assert_int_equal(chance, 0);
}

static void test_the_cheaper_of_two_for_what_its_kernels_take(void **state)
{
    struct shoal_route route = { 0 };
    struct shoal_route_host one = host(1, 4, 1), two = host(2, 6, 2);

    (void)state;
    shoal_route_offer(&route, &one, NULL, NULL);
    shoal_route_offer(&route, &two, NULL, NULL);
    assert_int_equal(shoal_route_best(&route)->node.bytes[0], 2); /* R2 */
}

static void test_each_pair_of_many_is_as_likely(void **state)
{
    unsigned taken[5] = { 0 };

    (void)state;
    for (uint32_t seed = 0; seed < 60; seed++) { /* each draw of the third to the fifth host, once: 3 * 4 * 5 */
        struct shoal_route route = { 0 };

        for (uint8_t i = 0; i < 5; i++) {
            struct shoal_route_host one = host(i, 0, 1);
            uint32_t chance = i == 2 ? seed % 3 : i == 3 ? seed / 3 % 4 : seed / 12;

            shoal_route_offer(&route, &one, drawn, &chance);
        }
        taken[route.two[0].node.bytes[0]]++;
        taken[route.two[1].node.bytes[0]]++;
    }
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(taken[i], 24); /* 60 * 2 / 5 */
}

static void test_what_becomes_of_a_request(void **state)
{
    static const struct {
        const char *name;
        struct shoal_route_facts facts;
        enum shoal_route_next want;
    } cases[] = {
        { "a host fits", { .found = true }, SHOAL_ROUTE_SEND },
        { "none fits: held", { .found = false }, SHOAL_ROUTE_HOLD },
        { "none fits any more, and one was full", { .was_full = true }, SHOAL_ROUTE_FULL },
        { "one was full, another fits", { .found = true, .was_full = true }, SHOAL_ROUTE_SEND },
        { "too late, though a host fits", { .found = true, .late = true }, SHOAL_ROUTE_LATE },
        { "its client is gone, and it is late", { .gone = true, .late = true }, SHOAL_ROUTE_GIVEN_UP },
        { "no more may go out", { .found = true, .out_full = true }, SHOAL_ROUTE_OUT_FULL },
        { "no more may go out, but it stays here",
          { .found = true, .here = true, .out_full = true },
          SHOAL_ROUTE_SEND },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (shoal_route_next(&cases[i].facts) != cases[i].want)
            fail_msg("%s: %d", cases[i].name, (int)shoal_route_next(&cases[i].facts));
}

static void test_elsewhere_only_where_no_kernel_can_have_it(void **state)
{
    (void)state;
    assert_true(shoal_route_elsewhere(SHOAL_ERR_STALE, false));
    assert_true(shoal_route_elsewhere(SHOAL_ERR_FULL, false));
    assert_true(shoal_route_elsewhere(SHOAL_ERR_UNREACHABLE, true)); /* R4 */
    assert_false(shoal_route_elsewhere(SHOAL_ERR_UNREACHABLE, false));
    assert_false(shoal_route_elsewhere(SHOAL_ERR_RANK_LOST, true));
    assert_false(shoal_route_elsewhere(SHOAL_ERR_TIMEOUT, true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_host_fits_that_is_ready_reached_and_new),
        cmocka_unit_test(test_the_cheaper_of_two_for_what_its_kernels_take),
        cmocka_unit_test(test_each_pair_of_many_is_as_likely),
        cmocka_unit_test(test_what_becomes_of_a_request),
        cmocka_unit_test(test_elsewhere_only_where_no_kernel_can_have_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
