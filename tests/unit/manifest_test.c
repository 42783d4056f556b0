/* M1 of agent_manifest.c: how many results are made into blobs at a time, and how often each. The blob store and the control plane are
 * this file's. */
#include "node/agent/agent.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "shoal/remove_tree.h"

#define JOBS 20
#define AT_A_TIME 4

static struct {
    struct agent *agent;
    char dir[64];
    unsigned asked, told;
    agent_blob_fn *done[2 * JOBS];
    void *arg[2 * JOBS];
} f;

__typeof__(agent_host_event) __wrap_agent_host_event;
__typeof__(agent_find_result_dir) __wrap_agent_find_result_dir;
__typeof__(agent_store_below) __wrap_agent_store_below;

void __wrap_agent_host_event(struct agent *agent, const struct shoal_host_event *host)
{
    assert_ptr_equal(agent, f.agent);
    assert_int_equal(host->kind, SHOAL_HOST_ON_MANIFEST);
    f.told++;
}

void __wrap_agent_find_result_dir(const struct agent *agent, struct shoal_job_id job, char dir[AGENT_PATH_BYTES])
{
    (void)agent, (void)job;
    (void)snprintf(dir, AGENT_PATH_BYTES, "%s", f.dir);
}

void __wrap_agent_store_below(struct agent *agent, struct shoal_job_id job, const char *folder, const char *relative, agent_blob_fn *done,
                              void *arg)
{
    (void)agent, (void)job, (void)folder;
    assert_string_equal(relative, "model/weights");
    assert_true(f.asked < 2 * JOBS);
    f.done[f.asked] = done;
    f.arg[f.asked++] = arg;
}

static void make(uint8_t job)
{
    agent_manifest(f.agent, (struct shoal_job_id){ { job } }, 1, 0);
    assert_int_equal(uv_run(&f.agent->loop, UV_RUN_DEFAULT), 0); /* until the folder has been looked through */
}

static void fail_one(unsigned at)
{
    f.done[at](f.arg[at], SHOAL_ERR_FULL, "the blob store is busy", (struct shoal_hash){ { 0 } });
    assert_int_equal(uv_run(&f.agent->loop, UV_RUN_DEFAULT), 0);
}

static int begin(void **state)
{
    char path[96];
    FILE *file;

    (void)state;
    memset(&f, 0, sizeof(f));
    f.agent = calloc(1, sizeof(*f.agent));
    assert_non_null(f.agent);
    f.agent->settings.files_max = 100;
    assert_int_equal(uv_loop_init(&f.agent->loop), 0);
    (void)snprintf(f.dir, sizeof(f.dir), "/tmp/shoal-manifest-XXXXXX");
    assert_non_null(mkdtemp(f.dir));
    (void)snprintf(path, sizeof(path), "%s/model", f.dir);
    assert_int_equal(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof(path), "%s/model/weights", f.dir);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    return 0;
}

static int end(void **state)
{
    (void)state;
    assert_null(f.agent->listings);
    assert_int_equal(uv_loop_close(&f.agent->loop), 0);
    assert_true(shoal_remove_tree(f.dir));
    free(f.agent);
    return 0;
}

/* The leader asks every two seconds; a large file takes longer. */
static void a_result_that_is_being_made_is_not_begun_again(void **state)
{
    (void)state;
    make(1);
    make(1);
    make(1);
    assert_int_equal(f.asked, 1);
    fail_one(0);
    assert_int_equal(f.told, 1);
    make(1);
    assert_int_equal(f.asked, 2);
    fail_one(1);
    assert_int_equal(f.told, 2);
}

static void so_many_are_made_at_a_time_and_the_others_after_them(void **state)
{
    (void)state;
    for (uint8_t job = 1; job <= JOBS; job++)
        make(job);
    assert_int_equal(f.asked, AT_A_TIME);
    for (unsigned i = 0; i < JOBS; i++) {
        fail_one(i);
        assert_int_equal(f.told, i + 1);
        assert_int_equal(f.asked, i + 1 + AT_A_TIME < JOBS ? i + 1 + AT_A_TIME : JOBS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_result_that_is_being_made_is_not_begun_again, begin, end),
        cmocka_unit_test_setup_teardown(so_many_are_made_at_a_time_and_the_others_after_them, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
