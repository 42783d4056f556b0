/* The nth allocation fails, for every n: what takes memory either succeeds or says that there is none, changes nothing,
 * and gives back all that it had taken. Decoders that fill a struct take none; these are the ones that do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <uv.h>

#include "alloc_fail.h"

#include "shoal/job.h"
#include "shoal/job_index.h"
#include "shoal/mesh.h"
#include "shoal/sched.h"
#include "shoal/store.h"

#include "no_env.h"

#include "shoal/banned.h"

#define TRIES_MAX 20000 /* allocations of one operation */

/* One operation with all of its own clearing away. */
typedef enum shoal_err operation(void *arg);

/* Lets the first allocation fail, then the second ..., until none does. */
static void fail_each(const char *what, operation *run, void *arg)
{
    enum shoal_err err;
    uint64_t n;

    for (n = 1; n <= TRIES_MAX; n++) {
        alloc_arm(n);
        err = run(arg);
        alloc_disarm();
        if (alloc_count < n)
            break;
        if (err != SHOAL_OK && err != SHOAL_ERR_FULL && err != SHOAL_ERR_STORAGE)
            fail_msg("%s, allocation %llu fails: error %d", what, (unsigned long long)n, err);
        if (alloc_live != 0)
            fail_msg("%s, allocation %llu fails: %lld blocks are left", what, (unsigned long long)n,
                     (long long)alloc_live);
    }
    assert_int_equal(err, SHOAL_OK);
    assert_int_equal(alloc_live, 0);
    assert_in_range(n, 2, TRIES_MAX);
}

/* ---- cores ---- */

static uint8_t spec_bytes[4096];
static size_t spec_len;

static enum shoal_err make_job(void *arg)
{
    struct shoal_job_founding founding = { .id = { { 1 } }, .ticket_ms = 3, .create_ms = 4, .founder = { { 9 } } };
    struct shoal_job *job = NULL;
    enum shoal_err err;

    (void)arg;
    founding.spec = shoal_view_of(spec_bytes, spec_len);
    err = shoal_job_create(&job, &founding);
    shoal_job_destroy(job);
    return err;
}

static void test_a_job_is_made_or_not(void **state)
{
    struct shoal_job_spec spec = { .workers_min = 1, .workers_max = 1, .devices_per_worker = 1, .priority = 5 };

    (void)state;
    if (!ALLOC_FAILS)
        skip();
    memcpy(spec.framework, "PyTorch", 8);
    memcpy(spec.creator, "ada", 4);
    memcpy(spec.main_file, "t.py", 5);
    spec.args = shoal_view_text("--exec-start PyTorch");
    assert_int_equal(shoal_job_spec_encode(&spec, spec_bytes, sizeof(spec_bytes), &spec_len), SHOAL_OK);
    fail_each("a job", make_job, NULL);
}

static enum shoal_err make_mesh(void *arg)
{
    struct shoal_mesh *mesh = shoal_mesh_create();
    enum shoal_err err = mesh == NULL ? SHOAL_ERR_FULL : shoal_mesh_decode(mesh, shoal_buf_view(arg));

    shoal_mesh_destroy(mesh);
    return err;
}

static void test_a_mesh_is_decoded_or_not(void **state)
{
    struct shoal_mesh *mesh;
    struct shoal_buf bytes = { 0 };

    (void)state;
    if (!ALLOC_FAILS)
        skip();
    mesh = shoal_mesh_create();
    assert_non_null(mesh);
    assert_int_equal(shoal_mesh_encode(mesh, &bytes), SHOAL_OK);
    fail_each("a mesh", make_mesh, &bytes);
    shoal_buf_deinit(&bytes);
    shoal_mesh_destroy(mesh);
}

static enum shoal_err make_sched(void *arg)
{
    struct shoal_sched_options options = {
        .self = { { 1 } },
        .store = { { 2 } },
        .env = { .hash = no_hash, .verify = no_verify },
        .slots = 2,
        .start_ns = SHOAL_S,
        .incarnation = { .host_epoch = 1, .agent = 1 },
    };
    struct shoal_sched *sched = NULL;
    enum shoal_err err;

    (void)arg;
    shoal_rand_init(&options.chance, 1);
    err = shoal_sched_create(&sched, &options);
    if (err == SHOAL_OK)
        shoal_sched_destroy(sched);
    return err;
}

static void test_a_control_plane_is_made_or_not(void **state)
{
    (void)state;
    if (!ALLOC_FAILS)
        skip();
    fail_each("a control plane", make_sched, NULL);
}

/* ---- the store ---- */

static void on_fatal(void *arg, const char *text)
{
    (void)arg;
    fail_msg("the store ends the agent: %s", text);
}

static void on_stopped(void *arg) { (void)arg; }

struct opened {
    char parent[64];
    char dir[80];
    bool fresh; /* another folder each time */
    unsigned count;
};

static enum shoal_err open_store(void *arg)
{
    struct opened *o = arg;
    struct shoal_store_options options = {
        .dir = o->dir, .store_id = { { 3 } }, .map_bytes = 16 << 20, .prefill_bytes = 1 << 20, .on_fatal = on_fatal
    };
    struct shoal_store *store = NULL;
    struct shoal_msg msg = { .text = "" };
    enum shoal_err err;
    uv_loop_t loop;

    if (o->fresh)
        (void)snprintf(o->dir, sizeof(o->dir), "%s/%u", o->parent, o->count++);
    alloc_armed = false; /* libuv ends the process when it has no memory for a loop */
    assert_int_equal(uv_loop_init(&loop), 0);
    alloc_armed = true;
    options.loop = &loop;
    err = shoal_store_open(&store, &options, &msg);
    alloc_armed = false; /* from here on nothing fails; what was taken must be given back */
    if (err == SHOAL_OK)
        shoal_store_stop(store, on_stopped, NULL);
    else if (msg.text[0] == '\0')
        fail_msg("allocation %llu fails, and nothing is said", (unsigned long long)alloc_count);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    if (uv_loop_close(&loop) != 0)
        fail_msg("allocation %llu fails: a handle of the store is open", (unsigned long long)alloc_count);
    return err;
}

static void test_a_store_opens_or_not(void **state)
{
    struct opened o = { .parent = "/tmp/shoal-alloc-XXXXXX", .fresh = true };
    char command[128];

    (void)state;
    if (!ALLOC_FAILS)
        skip();
    assert_non_null(mkdtemp(o.parent));
    alloc_arm(0);
    assert_int_equal(open_store(&o), SHOAL_OK); /* what libraries keep for ever is taken now */
    alloc_disarm();
    fail_each("a new store", open_store, &o);
    o.fresh = false;
    fail_each("a store that is there", open_store, &o);
    (void)snprintf(command, sizeof(command), "rm -rf %s", o.parent);
    assert_int_equal(system(command), 0);
}

/* Its time comes again, though nobody puts anything more. */
static void test_the_index_of_jobs_is_written_later(void **state)
{
    char dir[] = "/tmp/shoal-alloc-XXXXXX", path[64];
    struct shoal_index_stats stats;
    struct shoal_index *index;
    struct shoal_msg msg;
    uv_loop_t loop;
    bool failed;

    (void)state;
    if (!ALLOC_FAILS)
        skip();
    assert_non_null(mkdtemp(dir));
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(shoal_index_open(&index, &loop, dir, &msg), SHOAL_OK);
    shoal_index_put(index, (struct shoal_job_id){ { 1 } }, true, shoal_view_text("a"));
    alloc_arm(1); /* the first that the loop takes is the batch */
    (void)uv_run(&loop, UV_RUN_ONCE);
    failed = alloc_count > 0;
    alloc_disarm();
    shoal_index_stats(index, &stats);
    assert_true(failed && stats.newest == 1);
    for (int alive = 1; stats.newest > 0 && alive != 0; shoal_index_stats(index, &stats))
        alive = uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(stats.newest, 0);
    shoal_index_stop(index, NULL, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    for (unsigned i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", dir, i == 0 ? "data.mdb" : "lock.mdb");
        (void)unlink(path);
    }
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_job_is_made_or_not),
        cmocka_unit_test(test_a_mesh_is_decoded_or_not),
        cmocka_unit_test(test_a_control_plane_is_made_or_not),
        cmocka_unit_test(test_a_store_opens_or_not),
        cmocka_unit_test(test_the_index_of_jobs_is_written_later),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
