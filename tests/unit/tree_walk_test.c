/* Walks over a job's result folder (tree_walk.h): what is told, what is counted, and where they end. */
#include "node/blob/tree_walk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "shoal/bundle.h"

struct fixture {
    char root[64];
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    if (f == NULL)
        return -1;
    (void)snprintf(f->root, sizeof(f->root), "/tmp/shoal-walk-XXXXXX");
    *state = f;
    return mkdtemp(f->root) == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    char command[128];

    (void)snprintf(command, sizeof(command), "rm -rf %s", f->root);
    (void)!system(command);
    free(f);
    return 0;
}

static void make_file(const struct fixture *f, const char *name, off_t bytes)
{
    char path[300];
    int fd;

    (void)snprintf(path, sizeof(path), "%s/%s", f->root, name);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, bytes), 0);
    (void)close(fd);
}

static void make_folder(const struct fixture *f, const char *name)
{
    char path[300];

    (void)snprintf(path, sizeof(path), "%s/%s", f->root, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

__attribute__((format(printf, 1, 2))) static int run(const char *format, ...)
{
    char command[1200];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(command, sizeof(command), format, args);
    va_end(args);
    return system(command);
}

static bool told(const struct tree_walk *walk, const char *path)
{
    for (size_t i = 0; i < walk->count; i++)
        if (strcmp(tree_walk_path(walk, i), path) == 0)
            return true;
    return false;
}

static struct tree_walk unbounded(void)
{
    return (struct tree_walk){ .looks_max = UINT64_MAX, .files_max = UINT64_MAX, .bytes_max = UINT64_MAX };
}

/* Hidden ones, caches and parts are not told to other hosts, and take as much room as any. */
static void what_is_not_replicated_is_counted(void **state)
{
    struct fixture *f = *state;
    struct tree_walk walk = unbounded();

    make_folder(f, "a");
    make_folder(f, ".cache");
    make_folder(f, "a/__pycache__");
    make_file(f, "a/one", 3);
    make_file(f, ".hidden", 5);
    make_file(f, "x.part", 7);
    make_file(f, "weights.17.tmp", 0);
    make_file(f, ".cache/two", 11);
    make_file(f, "a/__pycache__/three", 13);
    tree_walk(f->root, &walk);
    assert_int_equal(walk.end, TREE_WALK_WHOLE);
    assert_int_equal(walk.count, 1);
    assert_true(told(&walk, "a/one"));
    assert_int_equal(walk.found[0].bytes, 3);
    assert_int_equal(walk.files, 6);
    assert_int_equal(walk.bytes, 3 + 5 + 7 + 11 + 13);
    tree_walk_deinit(&walk);
}

static void no_link_is_followed_and_no_pipe_is_waited_for(void **state)
{
    struct fixture *f = *state;
    struct tree_walk walk = unbounded();
    char path[300];

    make_file(f, "one", 1);
    (void)snprintf(path, sizeof(path), "%s/link", f->root);
    assert_int_equal(symlink("/etc", path), 0);
    (void)snprintf(path, sizeof(path), "%s/loop", f->root);
    assert_int_equal(symlink(".", path), 0);
    (void)snprintf(path, sizeof(path), "%s/pipe", f->root);
    assert_int_equal(mkfifo(path, 0600), 0);
    tree_walk(f->root, &walk);
    assert_int_equal(walk.count, 1);
    assert_true(told(&walk, "one"));
    tree_walk_deinit(&walk);
    (void)snprintf(path, sizeof(path), "%s/link", f->root);
    walk = unbounded();
    tree_walk(path, &walk); /* the folder itself was exchanged for a link */
    assert_int_equal(walk.looks, 0);
    tree_walk_deinit(&walk);
}

static void a_walk_ends_at_its_bounds(void **state)
{
    static const struct {
        const char *name;
        struct tree_walk asked;
        enum tree_walk_end want;
    } rows[] = {
        { "all fits", { .looks_max = 5, .files_max = 4, .bytes_max = 20 }, TREE_WALK_WHOLE },
        { "too many names", { .looks_max = 4, .files_max = 4, .bytes_max = 20 }, TREE_WALK_CUT },
        { "too many files", { .looks_max = 5, .files_max = 3, .bytes_max = 20 }, TREE_WALK_OVER },
        { "too many bytes", { .looks_max = 5, .files_max = 4, .bytes_max = 19 }, TREE_WALK_OVER },
        { "two are the bundle's",
          { .looks_max = 5, .files_max = 2, .bytes_max = 20, .code_files = 2 },
          TREE_WALK_WHOLE },
        { "of five of the bundle two are left",
          { .looks_max = 5, .files_max = 2, .bytes_max = 20, .code_files = 5 },
          TREE_WALK_WHOLE },
        { "one of two is the job's",
          { .looks_max = 5, .files_max = 2, .bytes_max = 20, .code_files = 1 },
          TREE_WALK_OVER },
    };
    struct fixture *f = *state;

    make_folder(f, "_submitted_code");
    make_file(f, "_submitted_code/main.py", 5);
    make_file(f, "_submitted_code/beside.py", 5);
    make_file(f, "one", 5);
    make_file(f, ".two", 5);
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct tree_walk walk = rows[i].asked;

        tree_walk(f->root, &walk);
        if (walk.end != rows[i].want)
            fail_msg("%s: ends with %d", rows[i].name, (int)walk.end);
        tree_walk_deinit(&walk);
    }
}

/* A link is no file, and takes an inode and everybody's time all the same. So does a pipe, and a folder. */
static void whatever_has_a_name_is_counted(void **state)
{
    static const struct {
        const char *name;
        struct tree_walk asked;
        enum tree_walk_end want;
    } rows[] = {
        { "all fits", { .looks_max = 20, .files_max = 7, .bytes_max = 20 }, TREE_WALK_WHOLE },
        { "too many links", { .looks_max = 20, .files_max = 6, .bytes_max = 20 }, TREE_WALK_OVER },
        { "too many folders", { .looks_max = 20, .files_max = 7, .bytes_max = 20 }, TREE_WALK_OVER },
        { "two names are the bundle's", { .looks_max = 20, .files_max = 5, .bytes_max = 20, .code_files = 2 }, TREE_WALK_WHOLE },
    };
    struct fixture *f = *state;

    assert_int_equal(run("cd %s && mkdir -p _submitted_code m/a && touch _submitted_code/f m/f && mkfifo m/p && ln -s f m/a/l && "
                         "ln -s nowhere m/a/n && ln -s . _submitted_code/l && ln m/a/l m/a/h 2> /dev/null || ln -s f m/a/h", f->root), 0);
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct tree_walk walk = rows[i].asked;

        if (rows[i].want == TREE_WALK_OVER && rows[i].asked.files_max == 7)
            assert_int_equal(run("cd %s && mkdir $(seq 6)", f->root), 0);
        tree_walk(f->root, &walk);
        if (walk.end != rows[i].want || walk.count > 2)
            fail_msg("%s: ends with %d, %zu are told", rows[i].name, (int)walk.end, walk.count);
        tree_walk_deinit(&walk);
        assert_int_equal(run("rmdir %s/[0-9] 2> /dev/null || true", f->root), 0);
    }
}

/* W2. Too deep, or with too long a path: no other host has it, but it takes room here. */
static void what_lies_outside_is_counted(void **state)
{
    struct fixture *f = *state;
    struct tree_walk walk = unbounded();
    char path[280], name[201];

    memset(name, 'n', 200);
    name[200] = '\0';
    make_folder(f, name);
    (void)snprintf(path, sizeof(path), "%s/one", name);
    make_file(f, path, 3);
    assert_int_equal(run("cd %s/n* && mkdir -p %s/d && echo > %s/two && echo > %s/d/three", f->root, name, name, name), 0);
    assert_int_equal(run("cd %s && mkdir -p $(printf 'd/%%.0s' $(seq %u)) && echo > $(printf 'd/%%.0s' $(seq %u))four", f->root,
                         TREE_WALK_DEPTH_MAX + 1, TREE_WALK_DEPTH_MAX), 0);
    assert_int_equal(run("cd %s/$(printf 'd/%%.0s' $(seq %u)) && echo > five && echo > .six && touch -d @%u seven", f->root,
                         TREE_WALK_DEPTH_MAX + 1, (unsigned)SHOAL_BUNDLE_MTIME_S), 0);
    tree_walk(f->root, &walk);
    assert_int_equal(walk.end, TREE_WALK_WHOLE);
    assert_int_equal(walk.count, 2);
    assert_int_equal(walk.files, 7);
    assert_int_equal(walk.outside, 4);
    tree_walk_deinit(&walk);
    walk = (struct tree_walk){ .looks_max = UINT64_MAX, .files_max = 6, .bytes_max = UINT64_MAX };
    tree_walk(f->root, &walk);
    assert_int_equal(walk.end, TREE_WALK_OVER);
    tree_walk_deinit(&walk);

    walk = unbounded();
    assert_int_equal(run("cd %s && mkdir -p $(printf 'd/%%.0s' $(seq %u))", f->root, TREE_WALK_COUNTED_MAX + 1), 0);
    tree_walk(f->root, &walk);
    assert_true(walk.end == TREE_WALK_OVER && walk.too_deep);
    tree_walk_deinit(&walk);
}

/* What lies in it is not known, so nothing may be taken for removed. Whoever reads everything becomes somebody else for that. */
static void a_folder_that_cannot_be_read_is_not_empty(void **state)
{
    struct fixture *f = *state;
    struct tree_walk walk = unbounded();
    char path[300];
    bool all = geteuid() == 0;

    make_file(f, "one", 1);
    make_folder(f, "shut");
    make_file(f, "shut/two", 1);
    tree_walk(f->root, &walk);
    assert_false(walk.blind || walk.shut);
    tree_walk_deinit(&walk);
    (void)snprintf(path, sizeof(path), "%s/shut", f->root);
    assert_int_equal(chmod(path, 0), 0);
    assert_int_equal(chmod(f->root, 0755), 0);
    assert_int_equal(all ? seteuid(65534) : 0, 0);
    walk = unbounded();
    tree_walk(f->root, &walk);
    assert_int_equal(all ? seteuid(0) : 0, 0);
    assert_true(walk.blind && walk.shut);
    assert_true(told(&walk, "one"));
    tree_walk_deinit(&walk);
    assert_int_equal(chmod(path, 0700), 0);
}

static void a_folder_that_is_not_there_is_empty(void **state)
{
    struct tree_walk walk = unbounded();

    (void)state;
    tree_walk("/nowhere/at/all", &walk);
    assert_int_equal(walk.end, TREE_WALK_WHOLE);
    assert_int_equal(walk.files, 0);
    tree_walk_deinit(&walk);
}

static size_t place_of(const struct tree_walk *walk, const char *path)
{
    for (size_t i = 0; i < walk->count; i++)
        if (strcmp(tree_walk_path(walk, i), path) == 0)
            return i;
    fail_msg("%s is not told", path);
    return 0;
}

/* In whichever order a folder lists its names: so there are many. Elsewhere such a name says nothing. */
static void the_order_of_logs_is_looked_at_after_them(void **state)
{
    struct fixture *f = *state;
    struct tree_walk walk = unbounded();
    size_t logs_end = 0, orders_begin = SIZE_MAX;
    char name[64];

    make_folder(f, "log");
    make_folder(f, "log/2.order");
    make_folder(f, "login");
    make_file(f, "login/stdout.order", 1);
    for (unsigned i = 0; i < 40; i++) {
        (void)snprintf(name, sizeof(name), "log/%u", i % 2 == 0 ? i + 100 : 300 - i);
        make_file(f, name, 1);
        (void)snprintf(name + strlen(name), 16, ".order");
        make_file(f, name, 1);
    }
    make_file(f, "log/2.order/stdout.order", 1);
    make_file(f, "log/2.order/stdout", 1);
    tree_walk(f->root, &walk);
    for (size_t i = 0; i < walk.count; i++) {
        const char *path = tree_walk_path(&walk, i);

        if (strncmp(path, "log/", 4) != 0 || strncmp(path, "log/2.", 6) == 0)
            continue;
        if (!tree_walk_is_order(path))
            logs_end = i + 1;
        else if (orders_begin == SIZE_MAX)
            orders_begin = i;
    }
    assert_int_equal(walk.end, TREE_WALK_WHOLE);
    assert_int_equal(walk.count, 83);
    assert_int_equal(walk.files, 83);
    assert_true(logs_end > 0 && logs_end <= orders_begin);
    assert_true(place_of(&walk, "log/2.order/stdout") < place_of(&walk, "log/2.order/stdout.order"));
    tree_walk_deinit(&walk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_not_replicated_is_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(no_link_is_followed_and_no_pipe_is_waited_for, setup, teardown),
        cmocka_unit_test_setup_teardown(a_walk_ends_at_its_bounds, setup, teardown),
        cmocka_unit_test_setup_teardown(whatever_has_a_name_is_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(a_folder_that_cannot_be_read_is_not_empty, setup, teardown),
        cmocka_unit_test_setup_teardown(what_lies_outside_is_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(the_order_of_logs_is_looked_at_after_them, setup, teardown),
        cmocka_unit_test(a_folder_that_is_not_there_is_empty),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
