#include "shoal/blob.h"

#include "shoal/crypto.h"

#include "node/agent/agent.h"
#include "node/runner/workers_state_uv.h"

#include "loop_test.h"
#include "no_env.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "shoal/banned.h"

/* The loop's clock stands still between its turns: what a test does in one go, it does in one instant. */
struct fixture {
    char dir[64];
    struct agent *agent;
    uv_timer_t watchdog;
    bool late;
    bool stopped;
    unsigned told;
    enum shoal_err err;
    bool drops; /* the first job's group goes when it is told */
};

static const struct shoal_job_id job_a = { { 1 } }, job_b = { { 2 } };

static void on_stopped(void *arg) { ((struct fixture *)arg)->stopped = true; }

static void on_asked(void *arg, enum shoal_err err, const char *text)
{
    struct fixture *f = arg;

    (void)text;
    f->told++;
    f->err = err;
    if (f->drops)
        agent_bundle_drop(job_a);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct shoal_blobs_options options = { .reserve_bytes = 1 };
    char dir[80];
    struct shoal_msg msg;

    if (f == NULL || shoal_crypto_init(NULL) != SHOAL_OK || (f->agent = calloc(1, sizeof(*f->agent))) == NULL ||
        uv_loop_init(&f->agent->loop) != 0)
        return -1;
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/shoal-bundles-XXXXXX");
    if (mkdtemp(f->dir) == NULL)
        return -1;
    (void)snprintf(dir, sizeof(dir), "%s/blobs", f->dir);
    options.loop = &f->agent->loop;
    options.dir = dir;
    if (shoal_blobs_create(&f->agent->blobs, &options, &msg) != SHOAL_OK)
        return -1;
    loop_watch(&f->agent->loop, &f->watchdog, &f->late);
    *state = f;
    return 0;
}

static void remove_all(const char *path)
{
    DIR *folder = opendir(path);
    const struct dirent *entry;

    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        char below[600];

        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(below, sizeof(below), "%.300s/%s", path, entry->d_name);
        if (entry->d_type == DT_DIR)
            remove_all(below);
        else
            (void)unlink(below);
    }
    if (folder != NULL)
        (void)closedir(folder);
    (void)rmdir(path);
}

static void on_walk(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    RUN_AGENT_UNTIL(f, shoal_blobs_stats(f->agent->blobs)->queued == 0);
    agent_bundle_drop(job_a);
    agent_bundle_drop(job_b);
    shoal_blobs_stop(f->agent->blobs, on_stopped, f);
    RUN_AGENT_UNTIL(f, f->stopped);
    uv_unref((uv_handle_t *)&f->watchdog);
    (void)uv_run(&f->agent->loop, UV_RUN_DEFAULT); /* until the turns end */
    uv_walk(&f->agent->loop, on_walk, NULL);
    (void)uv_run(&f->agent->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->agent->loop), 0);
    remove_all(f->dir);
    free(f->agent);
    free(f);
    return 0;
}

static struct shoal_hash put(struct fixture *f, struct shoal_job_id job, unsigned number)
{
    char text[32];
    struct shoal_view bytes;
    struct shoal_hash hash;

    (void)snprintf(text, sizeof(text), "bundle %u", number);
    bytes = shoal_view_text(text);
    hash = shoal_blob_name(bytes);
    agent_bundle_put(f->agent, job, hash, bytes);
    return hash;
}

static uint64_t queued(const struct fixture *f) { return shoal_blobs_stats(f->agent->blobs)->queued; }
static uint64_t held(const struct fixture *f) { return shoal_blobs_stats(f->agent->blobs)->blobs_held; }

static void test_of_a_burst_all_but_the_first_wait(void **state)
{
    struct fixture *f = *state;
    uint64_t one;

    (void)put(f, job_a, 1);
    one = queued(f);
    assert_true(one > 0);
    for (unsigned i = 2; i < 20; i++)
        (void)put(f, job_a, i);
    assert_int_equal(queued(f), one);
    RUN_AGENT_UNTIL(f, held(f) == 19); /* when no more have come for a second */
}

static void test_who_asks_for_one_that_waits_gets_it(void **state)
{
    struct fixture *f = *state;
    struct shoal_hash second;

    (void)put(f, job_a, 1);
    second = put(f, job_b, 2);
    (void)put(f, job_b, 3);
    assert_true(agent_bundle_now(second, on_asked, f));
    RUN_AGENT_UNTIL(f, f->told == 1);
    assert_int_equal(f->err, SHOAL_OK);
    assert_false(agent_bundle_now(second, on_asked, f)); /* it is in the store */
    assert_int_equal(held(f), 2);
}

static void test_who_asks_may_bring_about_the_end_of_the_group(void **state)
{
    struct fixture *f = *state;
    struct shoal_hash first = put(f, job_a, 1);

    f->drops = true;
    assert_true(agent_bundle_now(first, on_asked, f));
    assert_true(agent_bundle_now(first, on_asked, f));
    RUN_AGENT_UNTIL(f, f->told == 2);
    assert_int_equal(f->err, SHOAL_OK);
}

static void test_a_cut_puts_and_an_end_drops(void **state)
{
    struct fixture *f = *state;
    struct shoal_hash third;

    (void)put(f, job_a, 1);
    (void)put(f, job_b, 2);
    third = put(f, job_a, 3);
    agent_bundle_cut(job_b);
    RUN_AGENT_UNTIL(f, queued(f) == 0);
    assert_int_equal(held(f), 2);
    agent_bundle_drop(job_a);
    assert_false(agent_bundle_now(third, on_asked, f));
}

static void test_what_is_being_put_for_a_job_that_goes_is_held_by_nobody(void **state)
{
    struct fixture *f = *state;
    struct shoal_hash first;

    first = put(f, job_a, 1); /* it comes alone: the store has it */
    (void)put(f, job_b, 2);
    assert_true(agent_bundle_now(first, on_asked, f));
    agent_bundle_let_go(f->agent, job_a);
    RUN_AGENT_UNTIL(f, queued(f) == 0);
    assert_int_equal(f->told, 1);
    assert_int_equal(f->err, SHOAL_OK);
    assert_int_equal(held(f), 0);
    assert_false(agent_bundle_now(first, on_asked, f));
    agent_bundle_cut(job_b);
    RUN_AGENT_UNTIL(f, queued(f) == 0);
    assert_int_equal(held(f), 1);
}

/* It is ended and archived within the time that its files take to come. */
static void test_files_that_come_for_a_job_that_is_gone_are_no_other_jobs(void **state)
{
    struct fixture *f = *state;
    struct shoal_sched_options options = { .self = { { 1 } }, .env = { .hash = no_hash, .verify = no_verify }, .groups_max = 4 };
    struct shoal_job_spec spec = { .framework = "PyTorch", .creator = "ada", .main_file = "main.py", .workers_min = 1, .workers_max = 1 };
    static uint8_t bytes[SHOAL_JOB_SPEC_BYTES_MAX];
    struct agent_job *other;
    size_t len;

    (void)snprintf(f->agent->settings.data, sizeof(f->agent->settings.data), "%s", f->dir);
    shoal_rand_init(&options.chance, 1);
    assert_int_equal(shoal_sched_create(&f->agent->sched, &options), SHOAL_OK);
    f->agent->workers = calloc(1, sizeof(*f->agent->workers)); /* none runs */
    agent_serve_create(f->agent);
    spec.bundle_hash = put(f, job_a, 1);
    spec.bundle_bytes = 8;
    RUN_AGENT_UNTIL(f, held(f) == 1);
    assert_int_equal(shoal_job_spec_encode(&spec, bytes, sizeof(bytes), &len), SHOAL_OK);
    agent_job_open(f->agent, job_a, 1, shoal_view_of(bytes, len));
    assert_true(queued(f) > 0);
    agent_job_archived(f->agent, job_a, true);
    other = agent_job_need(f->agent, job_b); /* perhaps where the first one was */
    RUN_AGENT_UNTIL(f, queued(f) == 0);
    assert_int_equal(other->files, AGENT_FILES_NONE);
    agent_job_archived(f->agent, job_b, true);
    shoal_sched_destroy(f->agent->sched);
    free(f->agent->workers);
    free(f->agent->serve);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_of_a_burst_all_but_the_first_wait, setup, teardown),
        cmocka_unit_test_setup_teardown(test_who_asks_for_one_that_waits_gets_it, setup, teardown),
        cmocka_unit_test_setup_teardown(test_who_asks_may_bring_about_the_end_of_the_group, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_cut_puts_and_an_end_drops, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_being_put_for_a_job_that_goes_is_held_by_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(test_files_that_come_for_a_job_that_is_gone_are_no_other_jobs, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
