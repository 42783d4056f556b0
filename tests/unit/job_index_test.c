/* The index of jobs (shoal/job_index.h): what was put is in every later scan, wherever it is by then: in memory, on its
 * way, or in the table. A plain array says what must come out. */
#include "loop_test.h"

#include "node/store/index_table.h"
#include "shoal/rand.h"

#include <signal.h>
#include <sys/resource.h>

#include "shoal/banned.h"

#define IDS 400

struct scene {
    uv_loop_t loop;
    struct shoal_index *index;
    char dir[64];
    char values[IDS][8]; /* "": none; 'a...': active */
};

static struct shoal_job_id id_of(unsigned i)
{
    struct shoal_job_id id = { { 1, 2, 3, 4, 5, 6, 7, 8, (uint8_t)(i >> 8), (uint8_t)i } };

    return id;
}

static void put(struct scene *scene, unsigned i, const char *value)
{
    (void)snprintf(scene->values[i], sizeof(scene->values[i]), "%s", value);
    shoal_index_put(scene->index, id_of(i), value[0] == 'a', shoal_view_text(value));
}

struct seen {
    struct scene *scene;
    unsigned want[IDS];
    unsigned count, at;
    unsigned max;
    bool wrong, over;
    enum shoal_err err;
};

static bool visit(void *arg, struct shoal_job_id id, struct shoal_view value)
{
    struct seen *seen = arg;
    const char *want = seen->at < seen->count ? seen->scene->values[seen->want[seen->at]] : "";

    if (seen->at == seen->count || !shoal_job_id_equal(id, id_of(seen->want[seen->at])) ||
        !shoal_view_equal(value, shoal_view_text(want)))
        seen->wrong = true;
    return ++seen->at < seen->max;
}

static void on_done(void *arg, enum shoal_err err)
{
    struct seen *seen = arg;

    seen->over = true;
    seen->err = err;
}

static void expect_scan(struct scene *scene, unsigned low, unsigned high, bool descending, bool active, unsigned max)
{
    struct seen seen = { .scene = scene, .max = max };
    const struct shoal_index_scan scan = { .low = id_of(low),
                                           .high = id_of(high),
                                           .descending = descending,
                                           .active_only = active,
                                           .visit = visit,
                                           .done = on_done,
                                           .arg = &seen };

    for (unsigned k = low; k <= high && seen.count < max; k++) {
        unsigned i = descending ? high - (k - low) : k;

        if (scene->values[i][0] != '\0' && (!active || scene->values[i][0] == 'a'))
            seen.want[seen.count++] = i;
    }
    assert_int_equal(shoal_index_scan(scene->index, &scan), SHOAL_OK);
    while (!seen.over)
        (void)uv_run(&scene->loop, UV_RUN_ONCE);
    assert_int_equal(seen.err, SHOAL_OK);
    assert_int_equal(seen.at, seen.count);
    assert_false(seen.wrong);
}

static void expect_gets(struct scene *scene)
{
    for (unsigned i = 0; i < IDS; i++) {
        struct shoal_buf value = { 0 };
        bool there = shoal_index_get(scene->index, id_of(i), &value);

        assert_int_equal(there, scene->values[i][0] != '\0');
        if (there)
            assert_true(shoal_view_equal(shoal_buf_view(&value), shoal_view_text(scene->values[i])));
        shoal_buf_deinit(&value);
    }
}

static void scene_open(struct scene *scene)
{
    struct shoal_msg msg = { "" };

    memset(scene, 0, sizeof(*scene));
    assert_int_equal(uv_loop_init(&scene->loop), 0);
    (void)snprintf(scene->dir, sizeof(scene->dir), "/tmp/shoal-index-XXXXXX");
    assert_non_null(mkdtemp(scene->dir));
    assert_int_equal(shoal_index_open(&scene->index, &scene->loop, scene->dir, &msg), SHOAL_OK);
}

static void scene_close(struct scene *scene)
{
    char path[96];

    shoal_index_stop(scene->index, NULL, NULL);
    assert_int_equal(uv_run(&scene->loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&scene->loop), 0);
    for (unsigned i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", scene->dir, i == 0 ? "data.mdb" : "lock.mdb");
        (void)unlink(path);
    }
    assert_int_equal(rmdir(scene->dir), 0);
}

static void settle(struct scene *scene)
{
    struct shoal_index_stats stats;

    do {
        (void)uv_run(&scene->loop, UV_RUN_ONCE);
        shoal_index_stats(scene->index, &stats);
    } while (stats.newest > 0);
}

static void test_what_was_put_is_in_every_later_scan(void **state)
{
    struct shoal_rand chance;

    (void)state;
    for (unsigned seed = 1; seed <= 6; seed++) {
        struct scene scene;

        scene_open(&scene);
        shoal_rand_init(&chance, seed);
        for (unsigned round = 0; round < 12; round++) {
            unsigned low = (unsigned)shoal_rand_below(&chance, IDS);
            unsigned high = low + (unsigned)shoal_rand_below(&chance, IDS - low);
            unsigned max = shoal_rand_below(&chance, 2) == 0 ? IDS : 5;

            for (unsigned k = 0; k < 60; k++) {
                static const char *const values[] = { "", "a1", "a22", "e3", "e4" };
                unsigned i = (unsigned)shoal_rand_below(&chance, IDS);

                put(&scene, i, values[shoal_rand_below(&chance, 5)]);
            }
            if (round % 3 == 2)
                settle(&scene);
            expect_scan(&scene, low, high, round % 2 == 0, false, max);
            expect_scan(&scene, low, high, round % 2 == 1, true, max);
            expect_scan(&scene, 0, IDS - 1, round % 2 == 0, false, IDS);
            expect_gets(&scene);
        }
        scene_close(&scene);
    }
}

static void test_what_an_earlier_agent_wrote_is_gone(void **state)
{
    struct scene scene;
    struct shoal_msg msg = { "" };

    (void)state;
    scene_open(&scene);
    put(&scene, 7, "a1");
    settle(&scene);
    shoal_index_stop(scene.index, NULL, NULL);
    (void)uv_run(&scene.loop, UV_RUN_DEFAULT);
    assert_int_equal(shoal_index_open(&scene.index, &scene.loop, scene.dir, &msg), SHOAL_OK);
    scene.values[7][0] = '\0';
    expect_scan(&scene, 0, IDS - 1, false, false, IDS);
    scene_close(&scene);
}

static void test_many_are_written_before_the_loop_runs(void **state)
{
    struct shoal_index_stats stats;
    struct scene scene;

    (void)state;
    scene_open(&scene);
    for (unsigned k = 0; k < 10; k++)
        for (unsigned i = 0; i < 1000; i++) {
            struct shoal_job_id id = id_of(i);

            id.bytes[0] = (uint8_t)k;
            shoal_index_put(scene.index, id, false, shoal_view_text("e"));
        }
    shoal_index_stats(scene.index, &stats);
    assert_true(stats.newest < 2048);
    scene_close(&scene);
}

static void on_trouble(void *arg, const char *text)
{
    unsigned *told = arg;

    assert_true(text[0] != '\0');
    (*told)++;
}

/* A file that may not grow stands for a full disk. */
static rlim_t files_may_have(rlim_t bytes)
{
    struct rlimit limit;
    rlim_t before;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    before = limit.rlim_cur;
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    return before;
}

static void test_what_a_full_disk_refused_is_written_when_there_is_room(void **state)
{
    struct shoal_index_stats stats;
    struct scene scene;
    unsigned told = 0;
    rlim_t before;

    (void)state;
    scene_open(&scene);
    shoal_index_tell(scene.index, on_trouble, &told);
    put(&scene, 7, "a1");
    put(&scene, 8, "e1");
    settle(&scene);
    (void)signal(SIGXFSZ, SIG_IGN);
    before = files_may_have(1);
    put(&scene, 7, "");
    for (unsigned i = 9; i < IDS; i++)
        put(&scene, i, "a2");
    for (unsigned round = 0; round < 2; round++) { /* each failure is one more try, and no more news */
        do {
            (void)uv_run(&scene.loop, UV_RUN_ONCE);
            shoal_index_stats(scene.index, &stats);
        } while (stats.writes_failed <= round);
        put(&scene, round, "e5");
        assert_int_equal(told, 1);
        assert_true(shoal_index_is_whole(scene.index));
        expect_scan(&scene, 0, IDS - 1, round == 1, false, IDS);
        expect_gets(&scene);
    }
    (void)files_may_have(before);
    settle(&scene);
    assert_int_equal(told, 2);
    assert_true(shoal_index_is_whole(scene.index));
    expect_scan(&scene, 0, IDS - 1, false, true, IDS);
    expect_gets(&scene);
    scene_close(&scene);
}

/* Memory has its bound: what does not fit is not there, and the lists must say so until the agent starts again. */
static void test_more_than_memory_holds_is_not_whole(void **state)
{
    struct shoal_index_stats stats;
    struct scene scene;
    rlim_t before;

    (void)state;
    scene_open(&scene);
    (void)signal(SIGXFSZ, SIG_IGN);
    before = files_may_have(1);
    for (unsigned i = 0; i <= SHOAL_INDEX_UNWRITTEN_MAX; i++) {
        struct shoal_job_id id = id_of(i);

        id.bytes[0] = (uint8_t)(i >> 16);
        assert_true(shoal_index_is_whole(scene.index));
        shoal_index_put(scene.index, id, false, shoal_view_text("e"));
    }
    (void)files_may_have(before);
    assert_false(shoal_index_is_whole(scene.index));
    shoal_index_stats(scene.index, &stats);
    assert_int_equal(stats.newest, SHOAL_INDEX_UNWRITTEN_MAX);
    scene_close(&scene);
}

static void test_one_scan_too_many_is_refused(void **state)
{
    struct seen seen[SHOAL_INDEX_SCANS_MAX + 1];
    struct shoal_index_stats stats;
    struct scene scene;

    (void)state;
    scene_open(&scene);
    memset(seen, 0, sizeof(seen));
    for (unsigned i = 0; i <= SHOAL_INDEX_SCANS_MAX; i++) {
        const struct shoal_index_scan scan = {
            .low = id_of(0), .high = id_of(9), .visit = visit, .done = on_done, .arg = &seen[i]
        };

        seen[i].scene = &scene;
        assert_int_equal(shoal_index_scan(scene.index, &scan), i == SHOAL_INDEX_SCANS_MAX ? SHOAL_ERR_FULL : SHOAL_OK);
    }
    shoal_index_stats(scene.index, &stats);
    assert_int_equal(stats.scans_refused, 1);
    scene_close(&scene); /* the stop ends them, each once */
    for (unsigned i = 0; i < SHOAL_INDEX_SCANS_MAX; i++)
        assert_true(seen[i].over);
    assert_false(seen[SHOAL_INDEX_SCANS_MAX].over);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_put_is_in_every_later_scan),
        cmocka_unit_test(test_what_an_earlier_agent_wrote_is_gone),
        cmocka_unit_test(test_many_are_written_before_the_loop_runs),
        cmocka_unit_test(test_what_a_full_disk_refused_is_written_when_there_is_room),
        cmocka_unit_test(test_more_than_memory_holds_is_not_whole),
        cmocka_unit_test(test_one_scan_too_many_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
