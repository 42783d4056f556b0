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

/* U5 of lead_unfit.c. The first slots that the allocation names are of a host that has no process to give. */
static void test_scripts_go_to_another_host_when_theirs_cannot_start_them(void **state)
{
    (void)state;
    for (uint32_t workers = 1; workers <= 6; workers += 5) {
        w_init(&w, 810 + workers, false, workers, workers);
        w.starts_none = 1;
        w_new_lead(&w, 0);
        w_run_to_end(&w, 120 * SHOAL_S);
        if (w.job->state != SHOAL_JOB_FINISHED)
            W_FAIL(&w, "%u workers: %s", workers, w.job->reason);
        assert_true(w.unstarted > 0 && w.unstarted <= W_SLOTS);
        assert_int_equal(w.runs, w.unstarted + workers + (workers > 1 ? workers - w.unstarted : 0));
        w_deinit(&w);
    }
}

static void test_a_job_that_no_host_can_start_waits_and_says_why(void **state)
{
    struct shoal_job_facts facts;
    char text[2048];

    (void)state;
    w_init(&w, 820, false, 1, 1);
    w.starts_none = (1ull << W_HOSTS) - 1;
    w_new_lead(&w, 0);
    w_run_for(&w, 20 * SHOAL_S);
    assert_true(!shoal_job_state_ended((enum shoal_job_state)w.job->state));
    assert_int_equal(w.job->attempt, 1);
    shoal_lead_why(w.lead, text, sizeof(text));
    assert_non_null(strstr(text, W_UNSTARTED));
    shoal_lead_facts(w.lead, &facts);
    assert_non_null(strstr(facts.pending, W_UNSTARTED));
    w.starts_none = 1ull << 62; /* of no host: all have processes again */
    w_run_to_end(&w, 30 * SHOAL_S);
    assert_int_equal(w.job->state, SHOAL_JOB_FINISHED);
    w_deinit(&w);
}

/* Its end is in sight: it is not tried for ever. */
static void test_a_job_that_no_host_can_ever_start_ends(void **state)
{
    (void)state;
    w_init(&w, 830, false, 1, 1);
    w.starts_none = (1ull << W_HOSTS) - 1;
    w_new_lead(&w, 0);
    w_run_to_end(&w, 3600 * SHOAL_S);
    assert_int_equal(w.job->state, SHOAL_JOB_ERROR);
    assert_non_null(strstr(w.job->reason, W_UNSTARTED));
    assert_null(strstr(w.job->reason, "signal"));
    assert_true(w.unstarted >= 10 && w.unstarted <= 10 * W_HOSTS);
    w_deinit(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_what_does_not_come_together_goes_back),
                                        cmocka_unit_test(test_scripts_go_to_another_host_when_theirs_cannot_start_them),
                                        cmocka_unit_test(test_a_job_that_no_host_can_start_waits_and_says_why),
                                        cmocka_unit_test(test_a_job_that_no_host_can_ever_start_ends) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
