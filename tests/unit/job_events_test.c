/* A job may go while the control plane hears of it: what has told it touches nothing of the job after that (agent_jobs.c,
 * agent_tree.c, agent_workers.c). It may go while its files are unpacked, too. The control plane and the processes are this file's. */
#include "node/agent/agent.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "node/agent/agent_workers.h"
#include "shoal/remove_tree.h"

#include "no_env.h"

#define FREED 0xa5 /* freed memory is filled with it */

static const struct shoal_job_id id = { { 7 } };

static struct {
    struct agent *agent;
    struct workers_options options;
    char dir[64];
    unsigned events, kills;
    bool anew; /* the job is made again at once, with one worker */
    char bundle[80];
    uv_sem_t go_on; /* the one thread for work */
    unsigned removed;
} f;

/* ---- What the files under test ask ---- */

/* The linker puts __wrap_X() in the place of each X() that is named in the Makefile. */
__typeof__(agent_host_event) __wrap_agent_host_event;
__typeof__(agent_serve_ended) __wrap_agent_serve_ended;
__typeof__(agent_serve_forget) __wrap_agent_serve_forget;
__typeof__(agent_bundle_let_go) __wrap_agent_bundle_let_go;
__typeof__(agent_folders_remove) __wrap_agent_folders_remove;
__typeof__(agent_materialise) __wrap_agent_materialise;
__typeof__(agent_tree_deleted) __wrap_agent_tree_deleted;
__typeof__(shoal_cache_put) __wrap_shoal_cache_put;
__typeof__(workers_close) __wrap_workers_close;
__typeof__(workers_create) __wrap_workers_create;
__typeof__(workers_kill) __wrap_workers_kill;
__typeof__(workers_slot_left) __wrap_workers_slot_left;

/* The first event ends the job, as a leader's word that came before it does. */
void __wrap_agent_host_event(struct agent *agent, const struct shoal_host_event *host)
{
    struct agent_job *job;

    (void)host;
    if (f.events++ > 0)
        return;
    agent_job_archived(agent, id, true);
    if (!f.anew)
        return;
    job = agent_job_need(agent, id);
    assert_non_null(job);
    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++)
        job->runs[i] = (struct agent_run){ .used = true, .worker_id = 100 + i };
}

enum shoal_err __wrap_workers_create(struct workers **workers, const struct workers_options *options, struct shoal_msg *msg)
{
    (void)workers, (void)msg;
    f.options = *options;
    return SHOAL_OK;
}

void __wrap_workers_close(struct workers *workers, struct shoal_job_id job) { (void)workers, (void)job; }
void __wrap_workers_slot_left(struct workers *workers, uint32_t slot) { (void)workers, (void)slot; }

void __wrap_workers_kill(struct workers *workers, uint64_t worker_id, uint64_t grace_ns)
{
    (void)workers, (void)worker_id, (void)grace_ns;
    f.kills++;
}

void __wrap_agent_serve_forget(struct agent *agent, struct shoal_job_id job) { (void)agent, (void)job; }
void __wrap_agent_bundle_let_go(struct agent *agent, struct shoal_job_id job) { (void)agent, (void)job; }
void __wrap_agent_tree_deleted(struct agent *agent, struct shoal_job_id job) { (void)agent, (void)job; }

enum shoal_err __wrap_shoal_cache_put(struct shoal_cache *cache, enum shoal_cache_table table, struct shoal_view key,
                                      struct shoal_view value)
{
    (void)cache, (void)table, (void)key, (void)value;
    return SHOAL_OK;
}

void __wrap_agent_materialise(struct agent *agent, struct shoal_job_id job, struct shoal_hash hash, agent_path_fn *done,
                              void *arg)
{
    (void)agent, (void)job, (void)hash;
    done(arg, SHOAL_OK, f.bundle);
}

void __wrap_agent_folders_remove(struct agent *agent, const char *folder, const char *other)
{
    (void)agent;
    f.removed++;
    assert_true(shoal_remove_tree(folder) && shoal_remove_tree(other));
}

void __wrap_agent_serve_ended(struct agent *agent, uint64_t worker_id) { (void)agent, (void)worker_id; }

/* ---- The tests ---- */

static int begin(void **state)
{
    struct shoal_sched_options options = { .self = { { 1 } },
                                           .env = { .hash = no_hash, .verify = no_verify },
                                           .groups_max = 4 };
    struct shoal_msg msg;

    (void)state;
    memset(&f, 0, sizeof(f));
    f.agent = calloc(1, sizeof(*f.agent));
    assert_non_null(f.agent);
    assert_int_equal(uv_loop_init(&f.agent->loop), 0);
    (void)snprintf(f.dir, sizeof(f.dir), "/tmp/shoal-job-events-XXXXXX");
    assert_non_null(mkdtemp(f.dir));
    (void)snprintf(f.agent->settings.data, sizeof(f.agent->settings.data), "%s", f.dir);
    shoal_rand_init(&options.chance, 1);
    assert_int_equal(shoal_sched_create(&f.agent->sched, &options), SHOAL_OK);
    assert_int_equal(agent_workers_create(f.agent, &msg), SHOAL_OK);
    return 0;
}

static int end(void **state)
{
    char command[128];

    (void)state;
    for (unsigned i = 0; i < AGENT_JOBS_MAX; i++)
        free(f.agent->jobs[i]);
    shoal_sched_destroy(f.agent->sched);
    assert_int_equal(uv_loop_close(&f.agent->loop), 0);
    free(f.agent);
    (void)snprintf(command, sizeof(command), "rm -rf %.60s", f.dir);
    return system(command);
}

static struct agent_job *job_of_two(bool started)
{
    struct agent_job *job = agent_job_need(f.agent, id);

    assert_non_null(job);
    for (unsigned i = 0; i < 2; i++)
        job->runs[i] = (struct agent_run){
            .used = true, .started = started, .worker_id = 1 + i, .slot = SHOAL_SLOT_NONE, .role = SHOAL_JOB_ENGINE
        };
    return job;
}

/* A result folder of more files than may be, which ends the job when it is looked at. */
static struct agent_job *job_that_wrote_too_much(void)
{
    struct agent_job *job = job_of_two(true);
    char path[AGENT_PATH_BYTES + 8];

    (void)snprintf(job->result_dir, sizeof(job->result_dir), "%s/result", f.dir);
    assert_int_equal(mkdir(job->result_dir, 0700), 0);
    for (unsigned i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof(path), "%s/%u", job->result_dir, i);
        assert_int_equal(mkdir(path, 0700) == 0 && rmdir(path) == 0 && symlink("x", path) == 0, 1);
    }
    job->files = AGENT_FILES_READY;
    f.agent->settings.files_max = 1;
    f.agent->settings.files_gib = 1;
    return job;
}

static void workers_that_wait_are_not_looked_at_when_their_job_is_gone(void **state)
{
    struct agent_job *job = job_of_two(false);

    (void)state;
    job->files = AGENT_FILES_FAILED;
    agent_job_asked(f.agent, job);
    assert_int_equal(f.events, 1);
    assert_null(agent_job_find(f.agent, id));
}

static void a_job_that_is_over_may_go_when_its_first_worker_is_told(void **state)
{
    (void)state;
    agent_job_over(f.agent, job_of_two(true), "too much");
    assert_int_equal(f.events, 1);
    assert_int_equal(f.kills, 1);
    assert_null(agent_job_find(f.agent, id));
}

static void a_folder_whose_job_is_gone_is_not_looked_at_any_more(void **state)
{
    (void)state;
    agent_tree_scan(f.agent, job_that_wrote_too_much());
    assert_int_equal(f.events, 1);
    assert_null(agent_job_find(f.agent, id));
}

/* What has the place of the job in memory is another one. */
static void an_end_of_a_worker_is_none_of_the_job_that_is_made_anew(void **state)
{
    const struct agent_job *job = job_that_wrote_too_much();

    (void)state;
    f.anew = true;
    f.options.on_exited(f.options.arg, job->runs[0].worker_id, 0, false, "");
    assert_int_equal(f.events, 2);
    job = agent_job_find(f.agent, id);
    assert_non_null(job);
    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++)
        assert_true(job->runs[i].used);
}

static void wait_to_go_on(uv_work_t *work)
{
    (void)work;
    uv_sem_wait(&f.go_on);
}

static void went_on(uv_work_t *work, int status) { (void)work, (void)status; }

/* Else what the thread unpacks after that would lie there for ever. */
static void the_folder_of_a_deleted_job_goes_when_its_files_are_unpacked(void **state)
{
    struct shoal_host_order order = { .kind = SHOAL_HOST_DO_RUN };
    struct agent_job *job = agent_job_need(f.agent, id);
    uv_work_t before;
    char command[200], results[AGENT_PATH_BYTES];

    (void)state;
    assert_non_null(job);
    (void)snprintf(f.bundle, sizeof(f.bundle), "%s/bundle", f.dir);
    (void)snprintf(command, sizeof(command), "cd %s && mkdir m && echo 1 > m/main.py && tar czf bundle m", f.dir);
    assert_int_equal(system(command), 0);
    (void)snprintf(results, sizeof(results), "%s/results", f.dir);
    memcpy(job->result_dir, results, sizeof(results));
    assert_int_equal(shoal_buf_append(&job->spec_bytes, "x", 1), SHOAL_OK);
    job->spec.bundle_hash.bytes[0] = 1;
    job->spec.bundle_bytes = 1;
    order.u.run.job = id;
    order.u.run.placement = (struct shoal_placement){ .worker_id = 1, .slot = SHOAL_SLOT_NONE, .role = SHOAL_JOB_SCRIPT };
    assert_int_equal(uv_sem_init(&f.go_on, 0), 0);
    assert_int_equal(uv_queue_work(&f.agent->loop, &before, wait_to_go_on, went_on), 0);
    agent_job_run(f.agent, &order); /* its files wait for the thread */
    agent_job_deleted(f.agent, id);
    assert_null(agent_job_find(f.agent, id));
    uv_sem_post(&f.go_on);
    (void)uv_run(&f.agent->loop, UV_RUN_DEFAULT);
    uv_sem_destroy(&f.go_on);
    assert_int_equal(f.removed, 1);
    assert_int_equal(access(results, F_OK), -1);
    assert_int_equal(f.events, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(workers_that_wait_are_not_looked_at_when_their_job_is_gone, begin, end),
        cmocka_unit_test_setup_teardown(a_job_that_is_over_may_go_when_its_first_worker_is_told, begin, end),
        cmocka_unit_test_setup_teardown(a_folder_whose_job_is_gone_is_not_looked_at_any_more, begin, end),
        cmocka_unit_test_setup_teardown(the_folder_of_a_deleted_job_goes_when_its_files_are_unpacked, begin, end),
        cmocka_unit_test_setup_teardown(an_end_of_a_worker_is_none_of_the_job_that_is_made_anew, begin, end),
    };

    (void)mallopt(M_PERTURB, FREED);
    (void)setenv("UV_THREADPOOL_SIZE", "1", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
