/* Hosts that take no part in a job: engines of another numeric class, whose sums differ in the last bits (PROTOCOLS 11), and those
 * that cannot load what the driver has made (decision 0077). */
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

static uint32_t engines_started_on(uint32_t host)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < w.worker_count; i++)
        count += w.workers[i].role == SHOAL_JOB_ENGINE && w.workers[i].host == host;
    return count;
}

static void assert_why_names(uint32_t host)
{
    struct shoal_job_facts facts;
    char text[2048], name[33];

    shoal_hex_text(w_node(host).bytes, sizeof(w_node(host).bytes), name);
    shoal_lead_why(w.lead, text, sizeof(text));
    if (strstr(text, name) == NULL || strstr(text, W_UNFIT) == NULL)
        W_FAIL(&w, "why says nothing of host %u: %s", host, text);
    shoal_lead_facts(w.lead, &facts);
    assert_non_null(strstr(facts.pending, W_UNFIT));
}

/* Also the leader's own, which has the driver. */
static void test_a_job_goes_on_without_a_host_that_cannot_take_part(void **state)
{
    (void)state;
    for (uint32_t host = 0; host < W_HOSTS; host++) {
        w_init(&w, 620 + host, true, 1, W_HOSTS * W_SLOTS);
        w.steps = 2000;
        w.unfit = 1u << host;
        w_new_lead(&w, 0);
        w_run_to_step(&w, 1, 500, 60 * SHOAL_S);
        assert_int_equal(w.job->state, SHOAL_JOB_RUNNING);
        assert_int_equal(w.job->epoch->member_count, W_V);
        assert_why_names(host);
        w_run_to_end(&w, 120 * SHOAL_S);
        assert_int_equal(w.job->state, SHOAL_JOB_FINISHED);
        if (engines_started_on(host) > W_SLOTS)
            W_FAIL(&w, "host %u was tried %u times", host, engines_started_on(host));
        w_deinit(&w);
    }
}

static void test_a_host_that_comes_later_and_cannot_take_part_ends_nothing(void **state)
{
    (void)state;
    w_init(&w, 630, true, 1, W_V);
    w.steps = 3000;
    w.unfit = 4;
    w.slot_banned = 0xff0c0cull;
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 60, 60 * SHOAL_S);
    w.slot_banned = 0x0c0cull;
    w_target(&w);
    w_run_for(&w, 2 * SHOAL_S);
    assert_int_equal(w.job->state, SHOAL_JOB_RUNNING);
    assert_int_equal(w.job->epoch->member_count, 4);
    assert_why_names(2);
    w_run_to_end(&w, 200 * SHOAL_S);
    assert_int_equal(w.job->state, SHOAL_JOB_FINISHED);
    assert_true(engines_started_on(2) > 0 && engines_started_on(2) <= W_SLOTS);
    w_deinit(&w);
}

static void test_where_no_host_can_take_part_the_job_waits_and_says_why(void **state)
{
    (void)state;
    w_init(&w, 640, true, 2, 4);
    w.unfit = (1u << W_HOSTS) - 1;
    w_new_lead(&w, 0);
    w_run_for(&w, 120 * SHOAL_S);
    assert_int_equal(w.job->state, SHOAL_JOB_RUNNING);
    assert_true(w.worker_count <= W_HOSTS * W_SLOTS + 1);
    assert_int_equal(w_alive(&w, SHOAL_JOB_ENGINE), 0);
    for (uint32_t host = 0; host < W_HOSTS; host++)
        if (engines_started_on(host) > 0)
            assert_why_names(host);
    w_deinit(&w);
}

/* The driver's successor is on a host that could not load what the first driver had made; what it makes itself, that host can. */
static void test_a_driver_on_a_host_that_was_left_out_has_engines_there(void **state)
{
    (void)state;
    w_init(&w, 650, true, 1, 4);
    w.calls = 2;
    w.steps = 300;
    w.unfit = 1u << 0;
    w_new_lead(&w, 0);
    for (unsigned i = 0; i < 1000 && (w.job->call_count == 0 || w.job->calls[0].state < SHOAL_CALL_DONE); i++)
        w_run_for(&w, 50 * SHOAL_MS);
    assert_int_equal(engines_started_on(0) > 0, 1);
    w.unfit = (1u << W_HOSTS) - 2;
    w_run_to_end(&w, 200 * SHOAL_S);
    assert_int_equal(w.job->state, SHOAL_JOB_FINISHED);
    w_deinit(&w);
}

/* U5. Engines go elsewhere; a driver, which has one host only, waits until that can start it. */
static void test_an_elastic_job_of_which_a_host_starts_nothing(void **state)
{
    (void)state;
    for (uint32_t host = 0; host < W_HOSTS; host++) {
        w_init(&w, 660 + host, true, 1, W_V);
        w.steps = 300;
        w.starts_none = 1ull << host;
        w_new_lead(&w, 0);
        w_run_for(&w, 20 * SHOAL_S);
        assert_true(host != 0 || w_alive(&w, SHOAL_JOB_DRIVER) == 0);
        if (w.unstarted == 0 || w.unstarted > 4 * (W_SLOTS + 1))
            W_FAIL(&w, "host %u was tried %u times", host, w.unstarted);
        if (host == 0)
            w.starts_none = 1ull << 62; /* of no host */
        w_run_to_end(&w, 120 * SHOAL_S);
        if (w.job->state != SHOAL_JOB_FINISHED)
            W_FAIL(&w, "host %u: %s", host, w.job->reason);
        w_deinit(&w);
    }
}

static void tell_plain_jobs(uint32_t host)
{
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_HOST };

    event.u.host.node = w_node(host);
    event.u.host.health = SHOAL_LEAD_HOST_WELL;
    event.u.host.no_slots = event.u.host.plain_jobs = true;
    w_lead(&w, &event);
}

static uint32_t members_on(uint32_t host)
{
    uint32_t count = 0;

    for (uint32_t i = 0; w.job->epoch != NULL && i < w.job->epoch->member_count; i++)
        count += w_host_of(w.job->epoch->members[i].node) == host;
    return count;
}

/* U4. Of a job that may have more than 64 workers: whether the host was known as such at first, or has gone back since. */
static void test_a_host_of_the_version_before_has_no_workers_of_a_wide_job(void **state)
{
    (void)state;
    for (unsigned later = 0; later < 2; later++) {
        char text[2048], name[33];
        uint32_t started;

        w_init(&w, 660 + later, true, 1, SHOAL_JOB_WORKERS_MAX);
        w.steps = 2000;
        w_new_lead(&w, 0);
        if (later == 0)
            tell_plain_jobs(1);
        w_run_to_step(&w, 1, 300, 60 * SHOAL_S);
        assert_int_equal(members_on(1) > 0, later);
        started = engines_started_on(1);
        assert_int_equal(started > 0, later);
        if (later == 1)
            tell_plain_jobs(1);
        w_run_to_step(&w, 1, 1500, 60 * SHOAL_S);
        assert_int_equal(members_on(1), 0);
        assert_int_equal(w.job->epoch->member_count, W_V);
        assert_int_equal(engines_started_on(1), started);
        shoal_hex_text(w_node(1).bytes, sizeof(w_node(1).bytes), name);
        shoal_lead_why(w.lead, text, sizeof(text));
        if (strstr(text, name) == NULL || strstr(text, "takes at most 64 workers") == NULL || strstr(text, "exchange it") == NULL)
            W_FAIL(&w, "why says nothing of the host: %s", text);
        w_run_to_end(&w, 120 * SHOAL_S);
        assert_int_equal(w.job->state, SHOAL_JOB_FINISHED);
        w_deinit(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_elastic_job_of_which_a_host_starts_nothing),
        cmocka_unit_test(test_two_classes_never_train_together),
        cmocka_unit_test(test_a_job_goes_on_without_a_host_that_cannot_take_part),
        cmocka_unit_test(test_a_host_that_comes_later_and_cannot_take_part_ends_nothing),
        cmocka_unit_test(test_where_no_host_can_take_part_the_job_waits_and_says_why),
        cmocka_unit_test(test_a_driver_on_a_host_that_was_left_out_has_engines_there),
        cmocka_unit_test(test_a_host_of_the_version_before_has_no_workers_of_a_wide_job),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
