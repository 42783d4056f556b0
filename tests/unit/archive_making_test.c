/* N6 of agent_archive.c: how many ended jobs are made into blobs at a time, and how often each. The blob store and the control plane are
 * this file's. */
#include "node/agent/agent.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "no_env.h"

#define JOBS 20
#define AT_A_TIME 4

static struct {
    struct agent *agent;
    unsigned asked, made;
    agent_bytes_fn *done[JOBS];
    void *arg[JOBS];
    uint8_t order[JOBS]; /* the jobs, as their blobs were asked for */
    bool at_once;        /* the answer comes before the question has returned */
} f;

__typeof__(agent_event) __wrap_agent_event;
__typeof__(agent_read_blob) __wrap_agent_read_blob;

void __wrap_agent_event(struct agent *agent, struct shoal_sched_event *event)
{
    assert_ptr_equal(agent, f.agent);
    assert_int_equal(event->kind, SHOAL_SCHED_ARCHIVE_MADE);
    assert_false(event->u.archive.ok);
    f.made++;
}

void __wrap_agent_read_blob(struct agent *agent, struct shoal_job_id job, struct shoal_hash hash, size_t max, agent_bytes_fn *done, void *arg)
{
    (void)agent, (void)hash, (void)max;
    assert_true(f.asked < JOBS);
    f.order[f.asked] = job.bytes[0];
    f.done[f.asked] = done;
    f.arg[f.asked++] = arg;
    if (f.at_once)
        done(arg, SHOAL_ERR_UNREACHABLE, "nobody has it", (struct shoal_view){ 0 });
}

static void make(uint8_t job)
{
    struct shoal_sched_action action = { .kind = SHOAL_SCHED_ARCHIVE_MAKE };

    action.u.archive.job.bytes[0] = job;
    action.u.archive.result.bytes[0] = 1;
    (void)snprintf(action.u.archive.user, sizeof(action.u.archive.user), "ann");
    agent_archive_make(f.agent, &action);
}

static void answer(unsigned at)
{
    f.done[at](f.arg[at], SHOAL_ERR_UNREACHABLE, "nobody has it", (struct shoal_view){ 0 });
}

static int begin(void **state)
{
    struct shoal_sched_options options = { .self = { { 1 } }, .env = { .hash = no_hash, .verify = no_verify }, .groups_max = 4 };

    (void)state;
    memset(&f, 0, sizeof(f));
    f.agent = calloc(1, sizeof(*f.agent));
    assert_non_null(f.agent);
    shoal_rand_init(&options.chance, 1);
    assert_int_equal(shoal_sched_create(&f.agent->sched, &options), SHOAL_OK);
    return 0;
}

static int end(void **state)
{
    (void)state;
    assert_null(f.agent->makings);
    shoal_sched_destroy(f.agent->sched);
    free(f.agent);
    return 0;
}

/* The leader asks again when it has heard nothing for a minute: of a job with large files, while the first answer is made. */
static void a_job_that_is_being_made_is_not_begun_again(void **state)
{
    (void)state;
    make(1);
    make(1);
    assert_int_equal(f.asked, 1);
    answer(0);
    assert_int_equal(f.made, 1);
    make(1); /* it could not be made then */
    assert_int_equal(f.asked, 2);
    answer(1);
    assert_int_equal(f.made, 2);
}

static void so_many_are_made_at_a_time_and_the_others_in_their_order(void **state)
{
    (void)state;
    for (uint8_t job = 1; job <= JOBS; job++)
        make(job);
    assert_int_equal(f.asked, AT_A_TIME);
    make(JOBS); /* it waits already */
    for (unsigned i = 0; i < JOBS; i++) {
        answer(i);
        assert_int_equal(f.made, i + 1);
        assert_int_equal(f.asked, i + 1 + AT_A_TIME < JOBS ? i + 1 + AT_A_TIME : JOBS);
    }
    for (unsigned i = 0; i < JOBS; i++)
        assert_int_equal(f.order[i], i + 1);
}

static void those_that_end_at_once_are_begun_one_after_the_other(void **state)
{
    (void)state;
    for (uint8_t job = 1; job <= AT_A_TIME + 5; job++)
        make(job);
    f.at_once = true;
    answer(0);
    assert_int_equal(f.asked, AT_A_TIME + 5);
    assert_int_equal(f.made, 1 + 5);
    for (unsigned i = 1; i < AT_A_TIME; i++)
        answer(i);
}

static void those_that_wait_end_with_their_agent(void **state)
{
    (void)state;
    for (uint8_t job = 1; job <= JOBS; job++)
        make(job);
    f.agent->stopping = true;
    for (unsigned i = 0; i < AT_A_TIME; i++)
        answer(i);
    assert_int_equal(f.asked, AT_A_TIME);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_job_that_is_being_made_is_not_begun_again, begin, end),
        cmocka_unit_test_setup_teardown(so_many_are_made_at_a_time_and_the_others_in_their_order, begin, end),
        cmocka_unit_test_setup_teardown(those_that_end_at_once_are_begun_one_after_the_other, begin, end),
        cmocka_unit_test_setup_teardown(those_that_wait_end_with_their_agent, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
