/* Collectives outside of steps in a communicator of one: what is refused, in which words, and the life of handles. Several
 * members: tests/system/ops_check.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shoal/collective_op.h"
#include "shoal/limits.h"

#include "shoal/banned.h"

static struct shoal_comm *open_one(void)
{
    static const char *const names[] = { "loss" };
    struct shoal_comm_plan plan = { .call = 1,
                                    .virtual_workers = 1,
                                    .sum_elems = 8,
                                    .samples = 10,
                                    .minibatch = 1,
                                    .data_epochs = 1,
                                    .steps_per_epoch = 10,
                                    .metric_count = 1,
                                    .metric_names = names };
    struct shoal_comm_entry entry;
    struct shoal_comm *comm;

    assert_int_equal(shoal_comm_open_solo(&comm, NULL), SHOAL_OK);
    assert_int_equal(shoal_comm_barrier(comm), SHOAL_ERR_INVALID);
    assert_non_null(strstr(shoal_comm_error(comm), "outside of an epoch"));
    assert_int_equal(shoal_comm_ready(comm, &plan), SHOAL_OK);
    assert_int_equal(shoal_comm_enter(comm, 0, &entry), SHOAL_OK);
    return comm;
}

static void bad_calls_are_refused(void **state)
{
    static float values[64] = { 7 };
    static const struct {
        struct shoal_op op;
        enum shoal_err want;
        const char *words;
    } rows[] = {
        { { .kind = 0 }, SHOAL_ERR_INVALID, "kind 0" },
        { { .kind = 77 }, SHOAL_ERR_INVALID, "kind 77" },
        { { .kind = SHOAL_ALL_REDUCE, .type = 6, .in = values, .out = values, .elems = 4 },
          SHOAL_ERR_INVALID,
          "type 6" },
        { { .kind = SHOAL_ALL_REDUCE, .reduction = 4, .in = values, .out = values, .elems = 4 },
          SHOAL_ERR_INVALID,
          "reduction 4" },
        { { .kind = SHOAL_ALL_REDUCE, .in = NULL, .out = values, .elems = 4 }, SHOAL_ERR_INVALID, "without memory" },
        { { .kind = SHOAL_ALL_GATHER, .in = values, .out = NULL, .elems = 4 }, SHOAL_ERR_INVALID, "without memory" },
        { { .kind = SHOAL_ALL_REDUCE, .type = SHOAL_INT64, .in = values, .out = (uint8_t *)values + 4, .elems = 4 },
          SHOAL_ERR_INVALID,
          "no multiple of its 8 bytes" },
        { { .kind = SHOAL_ALL_REDUCE, .in = values, .out = values + 2, .elems = 4 }, SHOAL_ERR_INVALID, "overlap" },
        { { .kind = SHOAL_BROADCAST, .root = 1, .in = values, .out = values, .elems = 4 },
          SHOAL_ERR_INVALID,
          "rank 1 of 1" },
        { { .kind = SHOAL_ALL_REDUCE, .in = values, .out = values, .elems = 4, .dim_count = 9 },
          SHOAL_ERR_INVALID,
          "9 dimensions" },
        { { .kind = SHOAL_ALL_REDUCE, .in = values, .out = values, .elems = 4, .dim_count = 2, .dims = { 2, 3 } },
          SHOAL_ERR_INVALID,
          "6 values, the call 4" },
        { { .kind = SHOAL_ALL_REDUCE, .in = values, .out = values, .elems = UINT64_MAX / 2 },
          SHOAL_ERR_TOO_BIG,
          "all_reduce of" },
        { { .kind = SHOAL_ALL_REDUCE, .memory = SHOAL_MEMORY_DEVICE, .in = values, .out = values, .elems = 4 },
          SHOAL_ERR_UNSUPPORTED,
          "no device was opened" },
    };
    struct shoal_comm *comm = open_one();

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(shoal_op_run(comm, &rows[i].op), rows[i].want);
        assert_non_null(strstr(shoal_comm_error(comm), rows[i].words));
        assert_true(values[0] == 7.0f);
    }
    assert_int_equal(shoal_comm_barrier(comm), SHOAL_OK);
    shoal_comm_close(comm);
}

static void handles_are_given_back_once(void **state)
{
    struct shoal_comm *comm = open_one();
    static float values[SHOAL_OPS_MAX + 1];
    struct shoal_op op = { .kind = SHOAL_ALL_REDUCE, .reduction = SHOAL_MEAN, .elems = 1 };
    uint64_t handles[SHOAL_OPS_MAX];
    uint64_t none;
    uint32_t over = 0;

    (void)state;
    assert_int_equal(shoal_op_wait(comm, 1), SHOAL_ERR_INVALID);
    for (unsigned round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < SHOAL_OPS_MAX; i++) {
            values[i] = (float)i;
            op.in = op.out = &values[i];
            assert_int_equal(shoal_op_start(comm, &op, &handles[i]), SHOAL_OK);
        }
        assert_int_equal(shoal_op_start(comm, &op, &none), SHOAL_ERR_FULL);
        for (over = 0; over == 0;)
            assert_int_equal(shoal_op_test(comm, handles[0], &over), SHOAL_OK);
        assert_int_equal(shoal_op_test(comm, handles[0], &over), SHOAL_ERR_INVALID); /* void now */
        for (uint32_t i = 1; i < SHOAL_OPS_MAX; i++) {
            assert_int_equal(shoal_op_wait(comm, handles[i]), SHOAL_OK);
            assert_true(values[i] == (float)i);
        }
        assert_int_equal(shoal_op_wait(comm, handles[5]), SHOAL_ERR_INVALID);
    }
    assert_int_equal(shoal_op_start(comm, &op, &none), SHOAL_OK); /* in the place of an older one */
    assert_int_equal(shoal_op_wait(comm, handles[0]), SHOAL_ERR_INVALID);
    assert_int_equal(shoal_op_test(comm, handles[0], &over), SHOAL_ERR_INVALID);
    assert_int_equal(shoal_op_wait(comm, none), SHOAL_OK);
    op.type = 9;
    assert_int_equal(shoal_op_start(comm, &op, &none), SHOAL_OK);
    assert_int_equal(shoal_op_wait(comm, none), SHOAL_ERR_INVALID); /* the error of the collective */
    assert_non_null(strstr(shoal_comm_error(comm), "type 9"));
    assert_int_equal(shoal_op_start(comm, &(struct shoal_op){ .kind = SHOAL_BARRIER }, &none), SHOAL_OK);
    shoal_comm_close(comm); /* with one under way */
}

/* Each takes what the one before it gives: what is run at once comes behind what was started. */
static void they_come_one_after_the_other(void **state)
{
    enum { ELEMS = 4 << 20 };
    float *values[3];
    struct shoal_comm *comm = open_one();
    struct shoal_op op = { .kind = SHOAL_ALL_REDUCE, .elems = ELEMS };
    uint64_t handle;

    (void)state;
    for (int i = 0; i < 3; i++) {
        values[i] = malloc(ELEMS * sizeof(float));
        assert_non_null(values[i]);
        for (size_t e = 0; e < ELEMS; e++)
            values[i][e] = (float)i;
    }
    op.in = values[0];
    op.out = values[1];
    assert_int_equal(shoal_op_start(comm, &op, &handle), SHOAL_OK);
    op.in = values[1];
    op.out = values[2];
    assert_int_equal(shoal_op_run(comm, &op), SHOAL_OK);
    for (size_t e = 0; e < ELEMS; e++)
        assert_true(values[2][e] == 0.0f);
    assert_int_equal(shoal_op_wait(comm, handle), SHOAL_OK);
    shoal_comm_close(comm);
    for (int i = 0; i < 3; i++)
        free(values[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_calls_are_refused),
        cmocka_unit_test(handles_are_given_back_once),
        cmocka_unit_test(they_come_one_after_the_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
