/* How fast a body comes, of late. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "api/http/http_pace.h"

#include "shoal/banned.h"

struct row {
    const char *name;
    uint64_t first; /* bytes in the first second */
    uint64_t each;  /* in each second after it */
    unsigned low_s; /* when it is found too slow, the latest; 0: never */
};

static const struct row rows[] = {
    { "fast", 100000000, 100000000, 0 },
    { "a slow line", 20000, 20000, 0 },
    { "just fast enough", 513, 513, 0 },
    { "just too slow", 500, 500, 31 },
    { "much at the beginning, then a byte a second", 1u << 20, 1, 61 },
    { "nearly all of the largest, then nothing", 63u << 20, 0, 61 },
};

static void test_a_span_at_a_time(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct http_pace pace;
        unsigned low_s = 0;

        http_pace_begin(&pace, 5000);
        for (unsigned s = 1; s <= 600 && low_s == 0; s++) {
            http_pace_add(&pace, s == 1 ? rows[i].first : rows[i].each);
            if (http_pace_is_low(&pace, 5000 + s * 1000))
                low_s = s;
        }
        if ((low_s == 0) != (rows[i].low_s == 0) || low_s > rows[i].low_s)
            fail_msg("%s: too slow after %u s", rows[i].name, low_s);
    }
}

static void test_what_waits_for_us_is_not_slow(void **state)
{
    struct http_pace pace;

    (void)state;
    http_pace_begin(&pace, 0);
    for (uint64_t s = 1; s < 600; s++) {
        if (s % 20 == 0)
            http_pace_pause(&pace, s * 1000);
        assert_false(http_pace_is_low(&pace, s * 1000));
    }
}

static void test_the_rate_is_of_late(void **state)
{
    struct http_pace pace;

    (void)state;
    http_pace_begin(&pace, 0);
    assert_int_equal(http_pace_rate(&pace, 0), 0);
    http_pace_add(&pace, 1000);
    assert_int_equal(http_pace_rate(&pace, 10), 1000); /* nothing is told of less than a second */
    http_pace_add(&pace, 1u << 20);
    for (uint64_t s = 1; s <= 62; s++)
        (void)http_pace_is_low(&pace, s * 1000);
    http_pace_add(&pace, 64);
    assert_int_equal(http_pace_rate(&pace, 62000), 2); /* the span before had nothing */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_span_at_a_time),
        cmocka_unit_test(test_what_waits_for_us_is_not_slow),
        cmocka_unit_test(test_the_rate_is_of_late),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
