/* The key of a warm interpreter (node/runner/warm_start.c): what keeps starts apart, and what does not. */
#include "node/runner/warm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "shoal/limits.h"

#include "shoal/banned.h"

#define PATH_OF_JOB "PYTHONPATH=/fabric/tools:/fabric/libs/fabric.zip:/jobs/1/work:/fabric/site"
#define ONE_THREAD "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1"

static bool key_of(enum shoal_warm kind, const char *user, const char *cwd, const char *const *env,
                   char key[SHOAL_WARM_KEY_BYTES])
{
    static struct shoal_runner_start start;

    start = (struct shoal_runner_start){
        .warm = (uint8_t)kind, .user = user, .cwd = cwd, .argc = 2, .argv = { "/bin/sh", "/main.py", NULL }
    };
    for (; *env != NULL; env++)
        start.env[start.envc++] = *env;
    return warm_key_of(&start, key);
}

/* Is the second start served by what the first one wanted? */
static bool serves(enum shoal_warm kind, const char *const *env, const char *const *other)
{
    char a[SHOAL_WARM_KEY_BYTES], b[SHOAL_WARM_KEY_BYTES];

    assert_true(key_of(kind, "ann", "/jobs/1/work", env, a));
    return key_of(kind, "ann", "/jobs/1/work", other, b) && strcmp(a, b) == 0;
}

static void test_one_user_one_key(void **state)
{
    static const char *const env[] = { "USER=ann", "HOME=/h", ONE_THREAD, PATH_OF_JOB, NULL };
    static const char *const other_folder[] = {
        "USER=ann", "HOME=/h", ONE_THREAD, "PYTHONPATH=/fabric/tools:/fabric/libs/fabric.zip:/jobs/2/work:/fabric/site",
        NULL
    };
    char ann[SHOAL_WARM_KEY_BYTES], bob[SHOAL_WARM_KEY_BYTES], again[SHOAL_WARM_KEY_BYTES];

    (void)state;
    for (int kind = SHOAL_WARM_SCRIPT; kind <= SHOAL_WARM_FRAMEWORK; kind++) {
        assert_true(key_of((enum shoal_warm)kind, "ann", "/jobs/1/work", env, ann));
        assert_true(key_of((enum shoal_warm)kind, "bob", "/jobs/1/work", env, bob)); /* who says USER=ann */
        assert_string_not_equal(ann, bob);
        assert_true(key_of((enum shoal_warm)kind, "ann", "/jobs/2/work", other_folder, again));
        assert_string_equal(ann, again); /* the job's own folder makes no difference */
        assert_int_equal(warm_key_kind(ann), kind);
        assert_false(key_of((enum shoal_warm)kind, NULL, "/jobs/1/work", env, bob));
    }
}

static void test_what_a_framework_reads_keeps_apart(void **state)
{
    static const char *const env[] = { "USER=ann", ONE_THREAD, PATH_OF_JOB, "EPOCHS=1", "SHOAL_SLOT=1", NULL };
    static const char *const alike[] = { "USER=ann",     ONE_THREAD,      PATH_OF_JOB, "EPOCHS=2",
                                         "SHOAL_SLOT=2", "RESULT_DIR=/r", NULL };
    static const char *const path[] = { "USER=ann", ONE_THREAD, PATH_OF_JOB ":/mine", NULL };
    static const char *const torch[] = { "USER=ann", ONE_THREAD, PATH_OF_JOB, "TORCH_LOGS=all", NULL };
    static const char *const threads[] = { "USER=ann",          "OMP_NUM_THREADS=2",
                                           "MKL_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1",
                                           PATH_OF_JOB,         NULL };
    static const char *const lines[] = { "USER=ann", ONE_THREAD, PATH_OF_JOB, "LANG=C\nPYTHONHOME=/x", NULL };
    char key[SHOAL_WARM_KEY_BYTES];

    (void)state;
    assert_true(serves(SHOAL_WARM_FRAMEWORK, env, alike));
    assert_false(serves(SHOAL_WARM_FRAMEWORK, env, path));
    assert_false(serves(SHOAL_WARM_FRAMEWORK, env, torch));
    assert_false(key_of(SHOAL_WARM_FRAMEWORK, "ann", "/w", threads, key)); /* W5 */
    assert_false(key_of(SHOAL_WARM_FRAMEWORK, "ann", "/w", lines, key));   /* a key is lines */
    assert_true(serves(SHOAL_WARM_SCRIPT, env, torch));
    assert_true(serves(SHOAL_WARM_SCRIPT, env, threads));
    assert_false(key_of(SHOAL_WARM_SCRIPT, "ann", "/w", lines, key));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_user_one_key),
        cmocka_unit_test(test_what_a_framework_reads_keeps_apart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
