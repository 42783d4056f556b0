/* Requests a second over the last ten seconds. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "node/serve/serve_rate.h"
#include "shoal/limits.h"

#include "shoal/banned.h"

#define START (1000 * SHOAL_S)

static void test_a_rate_is_that_of_the_last_ten_seconds(void **state)
{
    struct serve_rate rate = { .counts = { { 0 } } };
    uint64_t milli, bytes;

    (void)state;
    serve_rate_read(&rate, START, &milli, &bytes);
    assert_true(milli == 0 && bytes == 0);
    for (unsigned i = 0; i < 2000; i++) /* 100 a second for 20 s, of 7 bytes each */
        serve_rate_add(&rate, START + i * 10 * SHOAL_MS, 7);
    serve_rate_read(&rate, START + 20 * SHOAL_S - 1, &milli, &bytes);
    assert_in_range(milli, 99900, 100100);
    assert_in_range(bytes, 699, 701);
    serve_rate_read(&rate, START + 24 * SHOAL_S, &milli, &bytes); /* four quiet ones and the fifth begins: five of nine are left */
    assert_in_range(milli, 55500, 55600);
    serve_rate_read(&rate, START + 29 * SHOAL_S, &milli, &bytes);
    assert_true(milli == 0 && bytes == 0);
    serve_rate_add(&rate, START + 100 * SHOAL_S, 0); /* alone, after a pause of many turns of the ring */
    serve_rate_read(&rate, START + 100 * SHOAL_S, &milli, &bytes);
    assert_in_range(milli, 100, 112);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_a_rate_is_that_of_the_last_ten_seconds) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
