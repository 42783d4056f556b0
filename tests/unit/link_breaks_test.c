/* The rule by which data links broke too often, by rows. A round is written as pairs "who could not reach whom". */
#include "sched/lead/link_breaks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "shoal/banned.h"

#define ALL UINT64_MAX
#define START_NS (100 * SHOAL_S)

struct round {
    uint64_t at_ms;
    const char *links; /* "01 12": rank 0 could not reach rank 1, rank 1 not rank 2 */
};

static const struct row {
    const char *says;
    uint32_t members;
    struct round rounds[12];
    uint64_t now_ms;
    uint64_t may;
    uint32_t want;
    uint32_t complaints;
    const char *gone; /* ranks whose workers are others by now */
} rows[] = {
    { "two breaks form the same members again", 3, { { 0, "01" }, { 3000, "01" } }, 3000, ALL, LINK_NOBODY, 0, "" },
    { "the third in 10 s drops the one that the other complained of",
      3,
      { { 0, "01" }, { 3000, "01" }, { 6000, "01" } },
      6000,
      ALL,
      1,
      1,
      "" },
    { "also if that is rank 0", 3, { { 0, "10" }, { 3000, "10" }, { 6000, "10" } }, 6000, ALL, 0, 1, "" },
    { "both complained: the higher rank goes", 3, { { 0, "12" }, { 1, "21" }, { 2, "12" } }, 2, ALL, 2, 1, "" },
    { "rank 0 stays in a tie", 2, { { 0, "01 10" }, { 1, "01 10" }, { 2, "01 10" } }, 2, ALL, 1, 1, "" },
    { "10 s are enough", 2, { { 0, "01" }, { 5000, "01" }, { 10000, "01" } }, 10000, ALL, 1, 1, "" },
    { "what was longer ago does not count",
      2,
      { { 0, "01" }, { 5000, "01" }, { 10001, "01" } },
      10001,
      ALL,
      LINK_NOBODY,
      0,
      "" },
    { "links of one member to three others are its own",
      4,
      { { 0, "13" }, { 1, "23" }, { 2, "03" } },
      2,
      ALL,
      3,
      3,
      "" },
    { "the one that fewer can reach goes, though it complains too",
      4,
      { { 0, "12 13 10" }, { 1, "21 01" }, { 2, "31 12" } },
      2,
      ALL,
      1,
      3,
      "" },
    { "who complains twice counts once", 3, { { 0, "01 21" }, { 1, "10" }, { 2, "10" } }, 2, ALL, 1, 2, "" },
    { "many links in one round are one break", 4, { { 0, "01 02 03 10 20 30" } }, 0, ALL, LINK_NOBODY, 0, "" },
    { "different pairs that share nobody", 6, { { 0, "01" }, { 1, "23" }, { 2, "45" } }, 2, ALL, LINK_NOBODY, 0, "" },
    { "of two links that broke three times, the member with more complaints",
      5,
      { { 0, "01 23 43" }, { 1, "01 23" }, { 2, "01 23" } },
      2,
      ALL,
      3,
      2,
      "" },
    { "who alone carries the state stays, the other goes",
      2,
      { { 0, "01" }, { 1, "01" }, { 2, "01" } },
      2,
      1u << 0,
      0,
      0,
      "" },
    { "nobody may go", 2, { { 0, "01" }, { 1, "01" }, { 2, "01" } }, 2, 0, LINK_NOBODY, 0, "" },
    { "the links of one that is gone are forgotten",
      3,
      { { 0, "12" }, { 1, "12" }, { 2, "12" } },
      2,
      ALL,
      LINK_NOBODY,
      0,
      "2" },
    { "rounds beyond the eight newest are forgotten, the newest count",
      3,
      { { 0, "01" },
        { 1, "01" },
        { 2, "02" },
        { 3, "02" },
        { 4, "20" },
        { 5, "02" },
        { 6, "02" },
        { 7, "20" },
        { 8, "20" },
        { 9, "20" },
        { 10, "21" } },
      10,
      1u << 1,
      LINK_NOBODY,
      0,
      "" },
};

static void read_links(const char *text, struct shoal_ranks *broken)
{
    memset(broken, 0, SHOAL_RANKS_MAX * sizeof(*broken));
    for (; text[0] != '\0'; text += text[2] == ' ' ? 3 : 2)
        shoal_ranks_add(&broken[text[0] - '0'], (uint32_t)(text[1] - '0'));
}

static void test_rows(void **state)
{
    static struct link_breaks breaks;
    static struct shoal_worker_epoch epoch;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct row *row = &rows[i];
        struct shoal_ranks broken[SHOAL_RANKS_MAX], may = { { row->may } }, by = { 0 };
        uint32_t got;

        memset(&breaks, 0, sizeof(breaks));
        memset(&epoch, 0, sizeof(epoch));
        epoch.member_count = row->members;
        for (uint32_t r = 0; r < row->members; r++)
            epoch.members[r].worker_id = 100 + r;
        for (size_t n = 0; n < 12 && row->rounds[n].links != NULL; n++) {
            read_links(row->rounds[n].links, broken);
            assert_true(lead_link_breaks_add(&breaks, &epoch, broken, START_NS + row->rounds[n].at_ms * SHOAL_MS));
        }
        for (const char *gone = row->gone; *gone != '\0'; gone++)
            epoch.members[*gone - '0'].worker_id += 50;
        got = lead_link_breaks_judge(&breaks, &epoch, &may, START_NS + row->now_ms * SHOAL_MS, &by);
        if (got != row->want || shoal_ranks_count(&by) != row->complaints)
            fail_msg("%s: rank %d after %u complaints, not rank %d after %u", row->says, (int)got,
                     shoal_ranks_count(&by), (int)row->want, row->complaints);
    }
}

static void test_an_epoch_without_a_broken_link_is_no_round(void **state)
{
    static struct link_breaks breaks;
    static struct shoal_worker_epoch epoch = { .member_count = 2 };
    static const struct shoal_ranks broken[SHOAL_RANKS_MAX];

    (void)state;
    assert_false(lead_link_breaks_add(&breaks, &epoch, broken, START_NS));
    assert_int_equal(breaks.made, 0);
}

/* Of a job of 128 workers each rank counts like any other, in whatever word of a set it lies. */
static void test_each_rank_of_the_largest_job_may_be_the_one(void **state)
{
    static struct link_breaks breaks;
    static struct shoal_worker_epoch epoch = { .member_count = SHOAL_RANKS_MAX };

    (void)state;
    for (uint32_t r = 0; r < SHOAL_RANKS_MAX; r++)
        epoch.members[r].worker_id = 100 + r;
    for (uint32_t bad = 0; bad < SHOAL_RANKS_MAX; bad++) {
        static struct shoal_ranks broken[SHOAL_RANKS_MAX];
        struct shoal_ranks may, by = { 0 };

        memset(&breaks, 0, sizeof(breaks));
        memset(broken, 0, sizeof(broken));
        memset(&may, 0xff, sizeof(may));
        for (uint32_t r = 0; r < SHOAL_RANKS_MAX; r++)
            shoal_ranks_add(&broken[r], bad); /* its own is no complaint */
        for (uint32_t n = 0; n < LINK_BREAKS; n++)
            assert_true(lead_link_breaks_add(&breaks, &epoch, broken, START_NS + n));
        assert_int_equal(lead_link_breaks_judge(&breaks, &epoch, &may, START_NS + LINK_BREAKS, &by), bad);
        assert_int_equal(shoal_ranks_count(&by), SHOAL_RANKS_MAX - 1);
        assert_false(shoal_ranks_has(&by, bad));
        shoal_ranks_drop(&may, bad);
        assert_true(lead_link_breaks_judge(&breaks, &epoch, &may, START_NS + LINK_BREAKS, &by) != bad);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_rows),
                                        cmocka_unit_test(test_each_rank_of_the_largest_job_may_be_the_one),
                                        cmocka_unit_test(test_an_epoch_without_a_broken_link_is_no_round) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
