/* What an agent's log and a launcher's say of a job's processes (agent_jobs.c). */
#include "node/agent/agent.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <string.h>

#include <cmocka.h>

static void a_start_names_the_slot_where_there_is_one(void **state)
{
    const struct agent_run engine = { .worker_id = 5, .slot = 1, .role = SHOAL_JOB_ENGINE };
    const struct agent_run driver = { .worker_id = 6, .slot = SHOAL_SLOT_NONE, .role = SHOAL_JOB_DRIVER };
    char text[256];

    (void)state;
    agent_run_start_text(&engine, "beta", text, sizeof(text));
    assert_string_equal(text, "starts worker 5 on slot 1 of beta");
    agent_run_start_text(&driver, "beta", text, sizeof(text));
    assert_string_equal(text, "starts worker 6, the driver, on beta");
}

static void an_end_that_was_ordered_is_no_failure(void **state)
{
    struct agent_run run = { .worker_id = 5, .slot = 1, .role = SHOAL_JOB_ENGINE };
    char text[400];

    (void)state;
    agent_run_end_text(&run, 2, false, "fail.py: error", text, sizeof(text));
    assert_string_equal(text, "worker 5 of slot 1 ended: status 2: fail.py: error");
    agent_run_end_text(&run, 9, true, "", text, sizeof(text));
    assert_string_equal(text, "worker 5 of slot 1 ended: signal 9");
    run.ordered = true;
    agent_run_end_text(&run, 9, true, "loads", text, sizeof(text));
    assert_string_equal(text, "worker 5 of slot 1 ended, as it was ordered to");
    agent_run_end_text(&run, 11, true, "its words", text, sizeof(text)); /* it crashed, and what was left of it was killed */
    assert_string_equal(text, "worker 5 of slot 1 ended: signal 11: its words");
    agent_run_end_text(&run, 0, false, "", text, sizeof(text));
    assert_string_equal(text, "worker 5 of slot 1 ended: status 0");
    run = (struct agent_run){ .worker_id = 6, .slot = SHOAL_SLOT_NONE, .role = SHOAL_JOB_DRIVER };
    agent_run_end_text(&run, 9, true, "", text, sizeof(text));
    assert_string_equal(text, "worker 6, the driver, ended: signal 9");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_start_names_the_slot_where_there_is_one),
        cmocka_unit_test(an_end_that_was_ordered_is_no_failure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
