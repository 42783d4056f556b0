/* A set of ranks: each rank is by itself, in whatever word it lies. */
#include "shoal/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "shoal/banned.h"

static void test_each_rank_is_by_itself(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < SHOAL_RANKS_MAX; rank++) {
        struct shoal_ranks set = { 0 };

        assert_false(shoal_ranks_any(&set));
        shoal_ranks_add(&set, rank);
        assert_true(shoal_ranks_any(&set));
        for (uint32_t other = 0; other < SHOAL_RANKS_MAX; other++)
            assert_true(shoal_ranks_has(&set, other) == (other == rank));
    }
}

static void test_the_last_one_is_the_limit(void **state)
{
    struct shoal_ranks set;

    (void)state;
    memset(&set, 0xff, sizeof(set));
    assert_true(shoal_ranks_has(&set, SHOAL_RANKS_MAX - 1));
    assert_false(shoal_ranks_has(&set, SHOAL_RANKS_MAX));
    assert_false(shoal_ranks_has(&set, UINT32_MAX));
}

static void test_joined_and_compared_in_every_word(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < SHOAL_RANKS_MAX; rank++) {
        struct shoal_ranks a = { 0 }, b = { 0 }, none = { 0 };

        shoal_ranks_add(&a, 3);
        shoal_ranks_add(&b, rank);
        shoal_ranks_join(&a, &b);
        assert_true(shoal_ranks_has(&a, 3) && shoal_ranks_has(&a, rank));
        assert_false(shoal_ranks_equal(&b, &none));
        assert_true(shoal_ranks_equal(&a, &b) == (rank == 3));
        shoal_ranks_join(&b, &a);
        assert_true(shoal_ranks_equal(&a, &b));
    }
}

static void test_dropped_kept_limited_and_counted_in_every_word(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < SHOAL_RANKS_MAX; rank++) {
        struct shoal_ranks set = { 0 }, all, below;

        memset(&all, 0xff, sizeof(all));
        below = all;
        shoal_ranks_limit(&below, rank);
        assert_int_equal(shoal_ranks_count(&below), rank);
        assert_false(shoal_ranks_has(&below, rank));
        shoal_ranks_add(&set, rank);
        assert_int_equal(shoal_ranks_words(&set), rank / 64 + 1);
        shoal_ranks_keep(&set, &all);
        assert_int_equal(shoal_ranks_count(&set), 1);
        shoal_ranks_keep(&set, &below);
        assert_false(shoal_ranks_any(&set));
        shoal_ranks_drop(&all, rank);
        assert_int_equal(shoal_ranks_count(&all), SHOAL_RANKS_MAX - 1);
        assert_false(shoal_ranks_has(&all, rank));
    }
    assert_int_equal(shoal_ranks_words(&(struct shoal_ranks){ 0 }), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_rank_is_by_itself),
        cmocka_unit_test(test_the_last_one_is_the_limit),
        cmocka_unit_test(test_joined_and_compared_in_every_word),
        cmocka_unit_test(test_dropped_kept_limited_and_counted_in_every_word),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
