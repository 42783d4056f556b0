/* Folders as jobs leave them are removed (remove_tree.h). */
#include "shoal/remove_tree.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define DEEP 6000 /* with these names a path of 600 kB, and far more levels than descriptors */

static char above[64];

static int setup(void **state)
{
    (void)state;
    (void)snprintf(above, sizeof(above), "/tmp/shoal-remove-XXXXXX");
    return mkdtemp(above) == NULL || chmod(above, 0777) != 0 || chdir(above) != 0 ? -1 : 0;
}

static int teardown(void **state)
{
    char command[200];

    (void)state;
    (void)snprintf(command, sizeof(command), "cd / && chmod -R u+rwx %s && rm -rf %s", above, above);
    return system(command);
}

static void file_at(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    (void)close(fd);
}

static void expect_gone(const char *path)
{
    if (!shoal_remove_tree(path))
        fail_msg("%s is left: %s", path, strerror(errno));
    assert_int_not_equal(access(path, F_OK), 0);
}

static void test_nothing_a_file_and_a_link(void **state)
{
    (void)state;
    expect_gone("nothing");
    file_at("file");
    assert_int_equal(symlink("file", "link"), 0);
    expect_gone("link");
    assert_int_equal(access("file", F_OK), 0);
    expect_gone("file");
}

static void test_what_a_link_leads_to_stays(void **state)
{
    (void)state;
    assert_int_equal(mkdir("other", 0700) | mkdir("tree", 0700) | mkdir("tree/in", 0700), 0);
    file_at("other/kept");
    assert_int_equal(symlink("../../other", "tree/in/folder") | symlink("../other/kept", "tree/file"), 0);
    assert_int_equal(mkfifo("tree/pipe", 0600), 0);
    expect_gone("tree");
    assert_int_equal(access("other/kept", F_OK), 0);
    expect_gone("other");
}

static void test_a_tree_deeper_than_a_path_is_long(void **state)
{
    struct rlimit limit = { 64, 64 }, old;
    char name[101];

    (void)state;
    memset(name, 'n', 100);
    name[100] = '\0';
    assert_int_equal(mkdir("deep", 0700) | chdir("deep"), 0);
    file_at(".moved-0"); /* a name like those that it gives itself */
    assert_int_equal(mkdir(".moved-1", 0700), 0);
    file_at(".moved-1/file");
    for (unsigned i = 0; i < DEEP; i++) {
        file_at("file");
        assert_int_equal(mkdir(name, 0700) | chdir(name), 0);
    }
    assert_int_equal(chdir(above), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    limit.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    expect_gone("deep");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
}

static int removes_closed_folders(void)
{
    if (geteuid() == 0 && setuid(65534) != 0)
        return 2;
    if (mkdir("closed", 0700) != 0 || mkdir("closed/a", 0700) != 0 || mkdir("closed/a/b", 0700) != 0 ||
        symlink("x", "closed/a/b/link") != 0)
        return 3;
    if (chmod("closed/a/b", 0) != 0 || chmod("closed/a", 0500) != 0 || chmod("closed", 0) != 0)
        return 4;
    return shoal_remove_tree("closed") && access("closed", F_OK) != 0 ? 0 : 1;
}

static void test_folders_without_permissions_of_who_is_not_root(void **state)
{
    int status = 0;
    pid_t pid = fork();

    (void)state;
    if (pid == 0)
        _exit(removes_closed_folders());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* Of another user in a folder of another user: it cannot be removed, and what can be is. */
static int leaves_only_what_it_must(void)
{
    if (setuid(65534) != 0)
        return 2;
    return !shoal_remove_tree("mixed") && errno == EACCES && access("mixed/mine", F_OK) != 0 ? 0 : 1;
}

static void test_what_cannot_be_removed_keeps_nothing_else(void **state)
{
    int status = 0;
    pid_t pid;

    (void)state;
    if (geteuid() != 0)
        skip();
    assert_int_equal(mkdir("mixed", 0700) | mkdir("mixed/theirs", 0755) | mkdir("mixed/mine", 0700), 0);
    file_at("mixed/theirs/file");
    file_at("mixed/mine/file");
    assert_int_equal(chown("mixed", 65534, 65534) | chown("mixed/mine", 65534, 65534), 0);
    pid = fork();
    if (pid == 0)
        _exit(leaves_only_what_it_must());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    expect_gone("mixed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_a_file_and_a_link),
        cmocka_unit_test(test_what_a_link_leads_to_stays),
        cmocka_unit_test(test_a_tree_deeper_than_a_path_is_long),
        cmocka_unit_test(test_folders_without_permissions_of_who_is_not_root),
        cmocka_unit_test(test_what_cannot_be_removed_keeps_nothing_else),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
