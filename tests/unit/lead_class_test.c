/* Engines of two numeric classes: their sums differ in the last bits, so that they never train together (PROTOCOLS 11). */
#include "job_world.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "shoal/banned.h"

static struct world w;

static uint32_t host_of(uint64_t worker_id)
{
    for (uint32_t i = 0; i < w.worker_count; i++)
        if (w.workers[i].id == worker_id)
            return w.workers[i].host;
    fail_msg("nobody has this id");
    return 0;
}

/* Whether the newest epoch is of one class; nothing: there is none. */
static bool one_class(void)
{
    uint64_t others = 0;

    if (w.job->epoch == NULL)
        return true;
    for (uint32_t i = 0; i < w.job->epoch->member_count; i++)
        others += w.other_class >> host_of(w.job->epoch->members[i].worker_id) & 1;
    return others == 0 || others == w.job->epoch->member_count;
}

/* Each host in turn is of the other class: the job trains with those of one class, leaves the others, and ends. */
static void test_two_classes_never_train_together(void **state)
{
    (void)state;
    for (uint32_t host = 0; host < W_HOSTS; host++) {
        w_init(&w, 600 + host, true, 1, 4);
        w.steps = 2000;
        w.other_class = 1u << host;
        w_new_lead(&w, 0);
        for (uint32_t i = 0; i < 400; i++) {
            w_run_for(&w, 50 * SHOAL_MS);
            if (!one_class())
                W_FAIL(&w, "an epoch has engines of two classes, host %u is the other one", host);
        }
        assert_non_null(w.job->epoch);
        assert_true(w.job->epoch->member_count > 0);
        w_run_to_end(&w, 120 * SHOAL_S);
        assert_int_equal(w.job->state, SHOAL_JOB_FINISHED);
        w_deinit(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_classes_never_train_together),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
