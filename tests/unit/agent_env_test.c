/* The environment of a job's processes (agent_env.c): what the user asks for stands above the agent's, and search paths are added to. */
#include "node/agent/agent_env.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct agent *agent;
static struct agent_job *job;
static struct agent_start_text *start;

static const char *value_of(const char *name)
{
    const char *found = NULL;
    size_t len = strlen(name);

    for (uint32_t i = 0; i < start->start.envc; i++)
        if (strncmp(start->start.env[i], name, len) == 0 && start->start.env[i][len] == '=') {
            assert_null(found); /* each name once */
            found = start->start.env[i] + len + 1;
        }
    return found;
}

/* Of an engine whose user has asked for the `count` NAME=VALUE of `env`, each with its NUL. */
static void fill(const char *env, size_t len, uint32_t count)
{
    struct agent_run run = { .used = true, .worker_id = 5, .slot = 1, .role = SHOAL_JOB_ENGINE };

    memset(start, 0, sizeof(*start));
    job->spec.env.count = count;
    job->spec.env.bytes = (struct shoal_view){ .bytes = (const uint8_t *)env, .len = len };
    agent_env_fill(agent, job, &run, "/r/log", start);
    assert_false(start->full);
}

static void a_search_path_of_the_users_is_added_to_ours(void **state)
{
    static const char env[] = "PYTHONPATH=/u/lib:src\0LD_LIBRARY_PATH=/u/so\0MINE=1\0PATH=/u/bin\0SHOAL_SLOT=9";

    (void)state;
    fill(env, sizeof(env), 5);
    assert_string_equal(value_of("PYTHONPATH"), "/f/tools:/f/libs/fabric.zip:/u/lib:src:/w:/f/site");
    assert_string_equal(value_of("LD_LIBRARY_PATH"), "/f/native:/u/so");
    assert_string_equal(value_of("MINE"), "1");
    assert_string_equal(value_of("PATH"), "/u/bin");
    assert_string_equal(value_of("SHOAL_SLOT"), "1");
}

static void without_one_ours_stand_alone(void **state)
{
    static const char env[] = "PYTHONPATH=\0LD_LIBRARY_PATH=";

    (void)state;
    for (uint32_t count = 0; count < 3; count += 2) {
        fill(env, count == 0 ? 0 : sizeof(env), count);
        assert_string_equal(value_of("PYTHONPATH"), "/f/tools:/f/libs/fabric.zip:/w:/f/site");
        assert_string_equal(value_of("LD_LIBRARY_PATH"), "/f/native");
    }
}

/* Each engine makes its data set by itself: where it goes through a set of texts, all have to go the same way. */
static void the_processes_of_an_elastic_job_have_one_hash_seed(void **state)
{
    static const char env[] = "A=1\0PYTHONHASHSEED=7";

    (void)state;
    fill(env, 4, 1);
    assert_string_equal(value_of("PYTHONHASHSEED"), "0");
    fill(env, sizeof(env), 2);
    assert_string_equal(value_of("PYTHONHASHSEED"), "7");
    job->spec.elastic = false;
    fill(env, 4, 1);
    assert_null(value_of("PYTHONHASHSEED"));
    job->spec.elastic = true;
}

static int set_up(void **state)
{
    (void)state;
    agent = calloc(1, sizeof(*agent));
    job = calloc(1, sizeof(*job));
    start = calloc(1, sizeof(*start));
    assert_true(agent != NULL && job != NULL && start != NULL);
    (void)snprintf(agent->settings.fabric_home, sizeof(agent->settings.fabric_home), "/f");
    (void)snprintf(agent->settings.data, sizeof(agent->settings.data), "/d");
    (void)snprintf(agent->settings.python, sizeof(agent->settings.python), "/v/bin/python3");
    (void)snprintf(job->work_dir, sizeof(job->work_dir), "/w");
    (void)snprintf(job->spec.framework, sizeof(job->spec.framework), "edtPyTorch");
    job->spec.elastic = true;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(start);
    free(job);
    free(agent);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_search_path_of_the_users_is_added_to_ours),
        cmocka_unit_test(without_one_ours_stand_alone),
        cmocka_unit_test(the_processes_of_an_elastic_job_have_one_hash_seed),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
