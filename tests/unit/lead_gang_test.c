/* A gang is placed whole or not at all, and holds nothing while it waits (reference/control-plane 5.3, D3). */
#include "job_world.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "shoal/banned.h"

static struct world w;

static unsigned tentative(void)
{
    struct shoal_slot_status status;
    unsigned count = 0;

    for (uint32_t h = 0; h < W_HOSTS; h++)
        for (uint32_t slot = 0; slot < W_SLOTS; slot++) {
            shoal_slots_slot(w.hosts[h].slots, slot, &status);
            count += status.state == SHOAL_SLOT_TENTATIVE;
        }
    return count;
}

/* One of its hosts gives no answer: what the others have granted goes back as soon as that is given up, and does not wait for
 * the end of the promises. */
static void test_what_does_not_come_together_goes_back(void **state)
{
    uint64_t longest_ns = 0, since_ns = 0;
    unsigned most = 0;

    (void)state;
    w_init(&w, 801, false, 12, 12);
    w.hosts[2].agent_up = false;
    w_new_lead(&w, 0);
    for (unsigned i = 0; i < 1000; i++) {
        w_run_for(&w, 10 * SHOAL_MS);
        most = tentative() > most ? tentative() : most;
        since_ns = tentative() == 0 ? 0 : since_ns + 10 * SHOAL_MS;
        longest_ns = since_ns > longest_ns ? since_ns : longest_ns;
    }
    assert_int_equal(most, 8);
    assert_true(longest_ns <= 1 * SHOAL_S); /* a promise lives 2 s by itself */
    assert_int_equal(w.runs, 0);
    w.hosts[2].agent_up = true;
    w_run_to_end(&w, 120 * SHOAL_S);
    assert_int_equal(w.job->state, SHOAL_JOB_FINISHED);
    w_deinit(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_what_does_not_come_together_goes_back) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
