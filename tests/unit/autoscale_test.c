/* How many kernels a service is to have (shoal/autoscale.h). */
#include "shoal/autoscale.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define S 1000000000ull

struct look {
    double at_s;
    uint32_t load, want; /* what it says then; the kernels that it asks for are ready at the next look */
};

static const struct {
    const char *name;
    uint32_t batch, min, max, have;
    struct look looks[10];
} cases[] = {
    { "none, and nothing asked: none", 1, 0, 10, 0, { { 1, 0, 0 }, { 9, 0, 0 } } },
    { "A1: the first request gets a kernel at once", 1, 0, 10, 0, { { 1, 0, 0 }, { 2, 1, 1 } } },
    { "A1: the first of many gets one, and the others grow from there",
      1,
      0,
      10,
      0,
      { { 1, 9, 1 }, { 4, 9, 1 }, { 7, 9, 2 }, { 10, 9, 4 } } },
    { "A1: fewer than the least are made up for at once", 1, 3, 10, 1, { { 1, 0, 3 } } },
    { "A1: more than the most go at once", 1, 0, 2, 5, { { 1, 9, 2 } } },
    { "A2: a burst that is gone at the next look starts none", 1, 1, 10, 1, { { 1, 8, 1 }, { 4, 0, 1 }, { 7, 8, 1 } } },
    { "A2: load of two looks grows, at most to the double",
      1,
      1,
      10,
      1,
      { { 1, 8, 1 }, { 4, 8, 2 }, { 7, 8, 4 }, { 10, 8, 8 } } },
    { "A2: nothing between two looks", 1, 1, 10, 2, { { 1, 3, 2 }, { 2, 3, 2 }, { 3, 3, 2 }, { 4, 3, 3 } } },
    { "a kernel takes a batch", 4, 1, 10, 1, { { 1, 8, 1 }, { 4, 8, 2 }, { 7, 8, 2 } } },
    { "never above the most", 1, 1, 3, 2, { { 1, 50, 2 }, { 4, 50, 3 }, { 7, 50, 3 } } },
    { "A3: it shrinks when fewer were enough for the whole time",
      1,
      0,
      10,
      4,
      { { 1, 0, 4 }, { 40, 0, 4 }, { 61, 0, 0 } } },
    { "A3: a break begins the time anew",
      1,
      0,
      10,
      4,
      { { 1, 0, 4 }, { 40, 4, 4 }, { 61, 0, 4 }, { 100, 0, 4 }, { 121, 0, 0 } } },
    { "A3: to the most that was wanted in that time", 1, 0, 10, 8, { { 1, 1, 8 }, { 30, 3, 8 }, { 61, 0, 3 } } },
    { "A4: twice what they take, for half a second, waits for no interval; once more in half a second",
      1,
      1,
      10,
      1,
      { { 1, 1, 1 }, { 1.1, 4, 1 }, { 1.5, 4, 1 }, { 1.6, 4, 2 }, { 1.7, 4, 2 }, { 2.1, 4, 4 } } },
    { "A4: a break begins the time anew",
      1,
      1,
      10,
      1,
      { { 1, 4, 1 }, { 1.4, 1, 1 }, { 1.5, 4, 1 }, { 1.9, 4, 1 }, { 2, 4, 2 } } },
    { "A4: less than twice is no burst", 2, 2, 10, 2, { { 1, 7, 2 }, { 1.6, 7, 2 }, { 2.2, 7, 2 } } },
    { "A4: never above the most", 1, 1, 2, 2, { { 1, 9, 2 }, { 1.6, 9, 2 } } },
    { "A3: never below the least", 1, 2, 10, 4, { { 1, 0, 4 }, { 61, 0, 2 } } },
};

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct shoal_autoscale scale = { 0 };
        uint32_t have = cases[i].have, ready = have;

        for (const struct look *look = cases[i].looks; look->at_s > 0; look++) {
            uint32_t want = shoal_autoscale(
                &scale, &(struct shoal_autoscale_facts){ .now_ns = (uint64_t)(look->at_s * 1000) * (S / 1000),
                                                         .interval_ns = 3 * S,
                                                         .release_ns = 60 * S,
                                                         .batch = cases[i].batch,
                                                         .min = cases[i].min,
                                                         .max = cases[i].max,
                                                         .have = have,
                                                         .ready = ready,
                                                         .load = look->load });

            if (want != look->want)
                fail_msg("%s: at %g s it wants %u kernels, not %u", cases[i].name, look->at_s, want, look->want);
            have = ready = want;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_rows) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
