/* The members of a next epoch: who has the state, and which mini-batches each one keeps. */
#include "sched/lead/epoch_next.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "shoal/banned.h"

static const struct row {
    const char *says;
    bool snapshot; /* the last epoch began from one */
    bool had_state;
    bool closed;
    uint64_t applied, decided;
    bool want;
} rows[] = {
    { "it left with the step before the decided one", false, true, true, 9, 10, true },
    { "it left further behind", false, true, true, 8, 10, false },
    { "it was given a state in the epoch", false, false, true, 10, 10, true },
    { "it left without any", false, false, true, 0, 1, false },
    { "it has not said where it is: at most a step behind", false, true, false, 0, 10, true },
    { "it may not have loaded the snapshot that the epoch began from", true, true, false, 0, 650, false },
    { "it has said that it loaded the snapshot", true, true, true, 650, 650, true },
    { "it left before it loaded the snapshot", true, true, true, 0, 650, false },
};

static void test_states(void **state)
{
    static struct shoal_worker_epoch last, next;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct row *row = &rows[i];
        struct epoch_carrier carriers[2] = {
            { .before = &last.members[0], .closed = true, .applied_step = row->decided, .complete_step = row->decided },
            { .before = &last.members[1],
              .closed = row->closed,
              .applied_step = row->applied,
              .complete_step = row->applied }
        };

        memset(&last, 0, sizeof(last));
        memset(&next, 0, sizeof(next));
        last.member_count = next.member_count = 2;
        last.members[0].has_state = true;
        last.members[1].has_state = row->had_state;
        if (row->snapshot)
            memcpy(last.snapshot_path, "blob:ff", 8);
        next.members[0].worker_id = 1;
        next.members[1].worker_id = 2;
        next.decided_step = row->decided;
        lead_epoch_next_states(&next, carriers, &last);
        if (next.members[1].has_state != row->want)
            fail_msg("%s: has_state is %d", row->says, next.members[1].has_state);
        assert_true(next.holder == 1 && next.donor == 1 && next.members[0].has_state);
    }
}

/* A step that a member has completed and not applied counts: it alone can give the decided step to the others. */
static void test_the_holder(void **state)
{
    static struct shoal_worker_epoch last, next;
    const struct epoch_carrier carriers[2] = {
        { .before = &last.members[0], .closed = true, .applied_step = 9, .complete_step = 9 },
        { .before = &last.members[1], .closed = true, .applied_step = 9, .complete_step = 10 },
    };

    (void)state;
    last.member_count = next.member_count = 2;
    for (unsigned i = 0; i < 2; i++) {
        last.members[i].has_state = true;
        next.members[i].worker_id = i + 1;
    }
    next.decided_step = 10;
    lead_epoch_next_states(&next, carriers, &last);
    assert_int_equal(next.holder, 2);
    assert_int_equal(next.donor, 1);
}

/* The last epoch has four members with three mini-batches each. `next`: places in it, in order; -1: a joiner. */
static const struct range_row {
    const char *says;
    uint32_t count;
    int next[5];
    uint32_t ends[5]; /* each begins where the one before it ends */
} range_rows[] = {
    { "all stay as they are", 4, { 0, 1, 2, 3 }, { 3, 6, 9, 12 } },
    { "a gap of three goes two and one", 3, { 0, 2, 3 }, { 5, 9, 12 } },
    { "a gap of six goes half to each", 2, { 0, 3 }, { 6, 12 } },
    { "the first one's goes to its neighbour", 3, { 1, 2, 3 }, { 6, 9, 12 } },
    { "the last one's goes to its neighbour", 3, { 0, 1, 2 }, { 3, 6, 12 } },
    { "a joiner gets nothing in this step", 5, { 0, 1, 2, 3, -1 }, { 3, 6, 9, 12, 12 } },
    { "one is left with all of it", 1, { 2 }, { 12 } },
};

static void test_ranges(void **state)
{
    static struct shoal_worker_epoch last, next;

    (void)state;
    for (size_t i = 0; i < sizeof(range_rows) / sizeof(range_rows[0]); i++) {
        const struct range_row *row = &range_rows[i];
        struct epoch_carrier carriers[5] = { { .before = NULL } };

        memset(&last, 0, sizeof(last));
        memset(&next, 0, sizeof(next));
        last.member_count = 4;
        for (uint32_t m = 0; m < 4; m++) {
            last.members[m].v_begin = 3 * m;
            last.members[m].v_end = 3 * m + 3;
        }
        next.member_count = row->count;
        for (uint32_t m = 0; m < row->count; m++)
            carriers[m].before = row->next[m] < 0 ? NULL : &last.members[row->next[m]];
        lead_epoch_next_ranges(&next, carriers, &last, 12);
        for (uint32_t m = 0; m < row->count; m++)
            if (next.members[m].v_end != row->ends[m] || next.members[m].v_begin != (m == 0 ? 0 : row->ends[m - 1]))
                fail_msg("%s: rank %u has %u to %u", row->says, m, next.members[m].v_begin, next.members[m].v_end);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_states), cmocka_unit_test(test_the_holder),
                                        cmocka_unit_test(test_ranges) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
