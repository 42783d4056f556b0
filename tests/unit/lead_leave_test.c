/* A worker that leaves an epoch, or was left out of one, stays until the next has completed a step: what they carry may be
 * needed (PROTOCOLS 7, E4 of lead_epoch.c). */
#include "job_world.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "shoal/banned.h"

static struct world w;

static void start(uint64_t seed)
{
    w_init(&w, seed, true, 1, 4);
    w.steps = 3000;
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 60, 60 * SHOAL_S);
    assert_int_equal(w.job->epoch->member_count, 4);
}

static void finish(void)
{
    w.steps_stop = false;
    w_run_to_end(&w, 120 * SHOAL_S);
    assert_int_equal(w.job->state, SHOAL_JOB_FINISHED);
    w_deinit(&w);
}

static void test_a_leaver_stays_until_a_step_is_done_without_it(void **state)
{
    (void)state;
    start(700);
    w.steps_stop = true;
    w.target = 2;
    w.target_set = true;
    w_target(&w);
    for (unsigned i = 0; i < 200 && w.job->epoch->member_count != 2; i++)
        w_run_for(&w, 20 * SHOAL_MS);
    assert_int_equal(w.job->epoch->member_count, 2);
    w_run_for(&w, 2 * SHOAL_S);
    assert_int_equal(w_alive(&w, SHOAL_JOB_ENGINE), 4);
    w.steps_stop = false;
    w_run_for(&w, 2 * SHOAL_S);
    assert_int_equal(w_alive(&w, SHOAL_JOB_ENGINE), 2);
    finish();
}

static bool is_member(uint64_t worker_id)
{
    for (uint32_t i = 0; i < w.job->epoch->member_count; i++)
        if (w.job->epoch->members[i].worker_id == worker_id)
            return true;
    return false;
}

/* A host with a worker, but not all of them and not the leader. */
static struct w_worker *on_another_host(void)
{
    for (uint32_t i = 0; i < w.worker_count; i++)
        if (w.workers[i].alive && w.workers[i].role == SHOAL_JOB_ENGINE && w.workers[i].host != w.lead_host)
            return &w.workers[i];
    fail_msg("all workers are on the leader's host");
    return NULL;
}

static struct w_worker *another_member(const struct w_worker *not_this)
{
    for (uint32_t i = 0; i < w.worker_count; i++)
        if (w.workers[i].alive && &w.workers[i] != not_this && is_member(w.workers[i].id))
            return &w.workers[i];
    fail_msg("there is none");
    return NULL;
}

static void test_an_outcast_stays_out_and_lives_until_a_step_is_done(void **state)
{
    struct w_worker *outcast;
    uint32_t host;

    (void)state;
    start(701);
    outcast = on_another_host();
    host = outcast->host;
    w.hosts[host].cut = true;
    w_health(&w, host, 50);
    for (unsigned i = 0; i < 300 && is_member(outcast->id); i++)
        w_run_for(&w, 20 * SHOAL_MS);
    assert_false(is_member(outcast->id));
    w.steps_stop = true;
    w.hosts[host].cut = false;
    w_health(&w, host, 51);
    for (unsigned i = 0; i < 100; i++) {
        w_run_for(&w, 20 * SHOAL_MS);
        if (i == 30) /* the next epoch is made of the survivors, the outcast is there and ready, and is none of them */
            w_exit(&w, another_member(outcast), 9, true);
        assert_false(is_member(outcast->id));
    }
    assert_true(outcast->alive);
    w.steps_stop = false;
    w_run_for(&w, 3 * SHOAL_S);
    assert_false(outcast->alive);
    finish();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_leaver_stays_until_a_step_is_done_without_it),
        cmocka_unit_test(test_an_outcast_stays_out_and_lives_until_a_step_is_done),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
