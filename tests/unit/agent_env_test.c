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

/* training-contract 2.2.1 and 2.2.4; what elastic scripts must not find, they take for a static launch. */
static void an_engine_finds_what_the_contract_names(void **state)
{
    static const char *const absent[] = { "RANK",      "WORLD_SIZE",  "MASTER_ADDR",   "MASTER_PORT", "TF_CONFIG",    "LOCAL_RANK",
                                          "NODE_RANK", "TRAINING_ID", "JOB_STATE_DIR", "EXEC_TYPE",   "DLI_IS_DRIVER" };

    (void)state;
    fill("", 0, 0);
    assert_string_equal(value_of("CUDA_VISIBLE_DEVICES"), "GPU-1");
    assert_string_equal(value_of("NVIDIA_VISIBLE_DEVICES"), "GPU-1");
    assert_string_equal(value_of("NCCL_SOCKET_IFNAME"), "eth7");
    assert_string_equal(value_of("GLOO_SOCKET_IFNAME"), "eth7");
    assert_string_equal(value_of("DATA_SOURCE_RESERVE"), "");
    assert_string_equal(value_of("RDMA_ENABLED"), "false");
    assert_string_equal(value_of("RDMA_BUFFER_SIZE"), "1073741824");
    assert_string_equal(value_of("RDMA_DEVICE_NAME"), "");
    assert_string_equal(value_of("RDMA_DEVICE_PORT"), "");
    for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++)
        assert_null(value_of(absent[i]));
    agent->settings.interface[0] = '\0';
    fill("", 0, 0);
    assert_null(value_of("NCCL_SOCKET_IFNAME"));
    assert_null(value_of("GLOO_SOCKET_IFNAME"));
    (void)snprintf(agent->settings.interface, sizeof(agent->settings.interface), "eth7");
}

static void a_command_finds_its_place_among_the_workers(void **state)
{
    struct agent_run run = { .used = true, .worker_id = 5, .slot = 1, .role = SHOAL_JOB_SCRIPT, .index = 2 };

    (void)state;
    job->spec.elastic = false;
    for (int user_cmd = 0; user_cmd < 2; user_cmd++) {
        job->spec.user_cmd = user_cmd == 1;
        memset(start, 0, sizeof(*start));
        agent_env_fill(agent, job, &run, "/r/log", start);
        if (user_cmd == 1)
            assert_string_equal(value_of("NODE_RANK"), "2");
        else
            assert_null(value_of("NODE_RANK"));
        assert_null(value_of("RDMA_ENABLED"));
    }
    job->spec.elastic = true;
    job->spec.user_cmd = false;
}

static void the_launchers_log_names_the_folders(void **state)
{
    static const char env[] = "DATA_DIR=/mine";
    char text[AGENT_ENV_EXPOSED_BYTES];

    (void)state;
    (void)snprintf(job->result_dir, sizeof(job->result_dir), "/r");
    fill(env, sizeof(env), 1);
    agent_env_exposed(start, text, sizeof(text));
    assert_string_equal(text, "Exposed the environment variable DATA_DIR to: /mine\n"
                              "Exposed the environment variable RESULT_DIR to: /r\n"
                              "Exposed the environment variable LOG_DIR to: /r/log\n"
                              "Exposed the environment variable SAVED_MODEL_DIR to: /r/model");
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
    (void)snprintf(agent->settings.interface, sizeof(agent->settings.interface), "eth7");
    agent->settings.device = SHOAL_SCHED_GPU;
    agent->settings.slots = agent->settings.devices.count = 2;
    for (uint32_t i = 0; i < 2; i++)
        (void)snprintf(agent->settings.devices.list[i].uuid, AGENT_DEVICE_BYTES, "GPU-%u", i);
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
        cmocka_unit_test(an_engine_finds_what_the_contract_names),
        cmocka_unit_test(a_command_finds_its_place_among_the_workers),
        cmocka_unit_test(the_launchers_log_names_the_folders),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
