/* The files of a result folder that are results: agent_results.c, and what its list may hold. */
#include "node/agent/agent_results.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "shoal/bundle.h"

#include "node/agent/agent_archive.h"

static void names_that_are_shown(void **state)
{
    static const struct {
        const char *path;
        bool shown;
    } rows[] = {
        { "a", true },
        { "a/b.c", true },
        { "with blank", true },
        { "na\xc3\xafve/\xe2\x98\x82", true },
        { "\xf0\x9f\x90\x9f", true }, /* a fish */
        { "", false },
        { "/a", false },
        { "a//b", false },
        { "a/", false },
        { ".a", false },
        { "a/.b", false },
        { "..", false },
        { "a/../b", false },
        { "a\nb", false },
        { "a\x1b[31m", false },
        { "a\x7f", false },
        { "a\xff", false },
        { "\xc0\x80", false },
        { "\xe0\x80\x80", false },
        { "\xed\xa0\x80", false },
        { "\xf4\x90\x80\x80", false },
        { "\xc2\x9b"
          "31m",
          false },
        { "a\xe2\x98", false },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (agent_result_is_shown(rows[i].path) != rows[i].shown)
            fail_msg("row %zu, \"%s\"", i, rows[i].path);
    {
        char longest[AGENT_RESULT_PATH_BYTES + 1];

        memset(longest, 'a', sizeof(longest));
        longest[AGENT_RESULT_PATH_BYTES - 1] = '\0';
        assert_true(agent_result_is_shown(longest));
        longest[AGENT_RESULT_PATH_BYTES - 1] = 'a';
        longest[AGENT_RESULT_PATH_BYTES] = '\0';
        assert_false(agent_result_is_shown(longest));
    }
    assert_true(agent_result_is_temporary("model/x.tmp") && agent_result_is_temporary("x.part"));
    assert_false(agent_result_is_temporary(".tmp") || agent_result_is_temporary("tmp") ||
                 agent_result_is_temporary("a.tmp.gz"));
}

static void put(const char *root, const char *path, const char *text, long mtime_s)
{
    struct timespec times[2] = { { .tv_sec = mtime_s }, { .tv_sec = mtime_s } };
    char whole[600];
    int fd;

    (void)snprintf(whole, sizeof(whole), "%s/%s", root, path);
    for (char *at = whole + strlen(root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        (void)mkdir(whole, 0700);
        *at = '/';
    }
    fd = open(whole, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(futimens(fd, times), 0);
    assert_int_equal(close(fd), 0);
}

static void what_a_walk_finds(void **state)
{
    static const char *const found[] = { "_submitted_code/model/changed.py", "_submitted_code/model/made.csv",
                                         "log/app/stdout", "model/final" };
    char root[] = "/tmp/shoal-results-XXXXXX";
    char path[600];
    struct agent_results results;

    (void)state;
    assert_non_null(mkdtemp(root));
    put(root, "model/final", "weights", 1700000000);
    put(root, "log/app/stdout", "", 1700000001);
    put(root, "model/final.tmp", "no", 1700000000);
    put(root, "model/.hidden", "no", 1700000000);
    put(root, "model/__pycache__/a.pyc", "no", 1700000000);
    put(root, "_submitted_code/model/sent.py", "no", SHOAL_BUNDLE_MTIME_S);
    put(root, "_submitted_code/model/changed.py", "yes", 1700000000);
    put(root, "_submitted_code/model/made.csv", "yes", 1700000000);
    put(root, "two\nlines", "counted", 1700000000);
    (void)snprintf(path, sizeof(path), "%s/outside", root);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    (void)snprintf(path, sizeof(path), "%s/out", root);
    assert_int_equal(symlink("/etc", path), 0);
    (void)snprintf(path, sizeof(path), "%s/pipe", root);
    assert_int_equal(mkfifo(path, 0600), 0);

    agent_results_walk(root, &results);
    assert_int_equal(results.count, 4);
    for (size_t i = 0; i < results.count; i++)
        assert_string_equal(results.list[i].path, found[i]);
    assert_int_equal(results.list[3].bytes, 7);
    assert_int_equal(results.list[3].mtime_s, 1700000000);
    assert_int_equal(results.left_out, 1);
    free(results.list);
    (void)snprintf(path, sizeof(path), "rm -rf %s", root);
    assert_int_equal(system(path), 0);
    agent_results_walk(root, &results);
    assert_int_equal(results.count, 0);
}

static void a_folder_that_may_not_be_read_is_counted(void **state)
{
    char root[] = "/tmp/shoal-results-XXXXXX";
    char path[600];
    struct agent_results results;
    bool all = geteuid() == 0;

    (void)state;
    assert_non_null(mkdtemp(root));
    assert_int_equal(chmod(root, 0755), 0);
    put(root, "open", "yes", 1700000000);
    put(root, "shut/one", "no", 1700000000);
    (void)snprintf(path, sizeof(path), "%s/shut", root);
    assert_int_equal(chmod(path, 0), 0);
    assert_int_equal(all ? seteuid(65534) : 0, 0);
    agent_results_walk(root, &results);
    assert_int_equal(all ? seteuid(0) : 0, 0);
    assert_int_equal(results.count, 1);
    assert_int_equal(results.left_out, 1);
    free(results.list);
    assert_int_equal(chmod(path, 0700), 0);
    (void)snprintf(path, sizeof(path), "rm -rf %s", root);
    assert_int_equal(system(path), 0);
}

/* What cannot be listed is counted: else the list would seem whole. */
static void what_lies_too_deep_is_counted(void **state)
{
    char root[] = "/tmp/shoal-results-XXXXXX";
    char path[600] = "", deep[2 * AGENT_RESULT_DEPTH_MAX + 1] = "";
    struct agent_results results;

    (void)state;
    assert_non_null(mkdtemp(root));
    for (unsigned i = 0; i < AGENT_RESULT_DEPTH_MAX; i++)
        (void)strcat(deep, "d/");
    (void)snprintf(path, sizeof(path), "%slisted", deep);
    put(root, path, "yes", 1700000000);
    (void)snprintf(path, sizeof(path), "%sd/counted", deep);
    put(root, path, "yes", 1700000000);
    (void)snprintf(path, sizeof(path), "%sd/d/d/counted", deep);
    put(root, path, "yes", 1700000000);
    (void)snprintf(path, sizeof(path), "%sd/d/d/.hidden", deep);
    put(root, path, "no", 1700000000);
    (void)snprintf(path, sizeof(path), "%sd/empty/.hidden", deep);
    put(root, path, "no", 1700000000);
    memset(path, 'a', 200);
    (void)snprintf(path + 200, sizeof(path) - 200, "/%.100s/counted", path);
    put(root, path, "yes", 1700000000);

    agent_results_walk(root, &results);
    assert_int_equal(results.count, 1);
    assert_int_equal(results.left_out, 3);
    free(results.list);
    (void)snprintf(path, sizeof(path), "rm -rf %s", root);
    assert_int_equal(system(path), 0);
}

/* What does not fit an answer is told in the next one. */
static void a_list_of_logs_says_that_there_are_more(void **state)
{
    char root[] = "/tmp/shoal-results-XXXXXX";
    struct archive_lines lines = { 0 };
    uint8_t bytes[4 + 2 * (4 + ARCHIVE_PATH_BYTES + 8) + 1];
    char path[600];
    uint64_t skip = 0;
    unsigned answers = 0, found = 0;
    bool more = true;

    (void)state;
    assert_non_null(mkdtemp(root));
    put(root, "ledger", "records", 1700000000);
    for (unsigned i = 0; i < 40; i++) {
        (void)snprintf(path, sizeof(path), "log/app.%u/stdout", i / 2);
        (void)snprintf(path + strlen(path), 8, ".%u", i % 2);
        put(root, path, "text", 1700000000);
    }
    for (; more && answers < 100; answers++) {
        struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));

        archive_put_files(&w, root, root, skip);
        assert_false(w.failed);
        skip += archive_get_files(shoal_writer_view(&w), &lines, &more);
    }
    assert_false(more);
    assert_true(answers > 1);
    assert_int_equal(skip, 41);
    assert_int_equal(lines.count, 41);
    for (size_t i = 0; i < lines.count; i++)
        for (size_t j = 0; j < i; j++)
            found += strcmp(lines.list[i].path, lines.list[j].path) == 0;
    assert_int_equal(found, 0);
    free(lines.list);
    (void)snprintf(path, sizeof(path), "rm -rf %s", root);
    assert_int_equal(system(path), 0);
}

/* An answer of the version before ends behind its last file. */
static void a_list_of_the_version_before_has_no_more(void **state)
{
    static const uint8_t count[4] = { 2, 0, 0, 0 }; /* little-endian, as all that goes to others */
    uint8_t bytes[100];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    struct archive_lines lines = { 0 };
    bool more = true;

    (void)state;
    shoal_put_raw(&w, count, sizeof(count));
    shoal_put_text(&w, "ledger");
    shoal_put_u64(&w, 7);
    shoal_put_text(&w, "../secret");
    shoal_put_u64(&w, 8);
    assert_int_equal(archive_get_files(shoal_writer_view(&w), &lines, &more), 2);
    assert_false(more);
    assert_int_equal(lines.count, 1);
    assert_int_equal(lines.list[0].bytes, 7);
    free(lines.list);
}

static struct shoal_hash hash_of_number(uint32_t number) { return shoal_hash_of(shoal_view_of(&number, sizeof(number))); }

static uint64_t thread_ns(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * SHOAL_S + (uint64_t)time.tv_nsec;
}

/* Two manifests of as many files as there may be: each is looked through in one turn of the loop. */
static void a_list_of_many_blobs_takes_little_time(void **state)
{
    static struct shoal_hash hashes[8190];
    static struct archive_seats seats;
    struct archive_lines lines = { 0 };
    uint64_t began_ns;

    (void)state;
    for (uint32_t i = 0; i < 8190; i++)
        hashes[i] = hash_of_number(i % 6000); /* the last ones are in both */
    began_ns = thread_ns();
    for (uint32_t i = 0; i < 8190; i++) {
        struct archive_line *line;

        if (archive_lines_have(&lines, &seats, hashes[i])) {
            assert_true(i >= 6000);
            continue;
        }
        assert_true(i < 6000);
        line = archive_lines_add(&lines);
        assert_non_null(line);
        line->hash = hashes[i];
    }
    assert_in_range(thread_ns() - began_ns, 0, 20 * SHOAL_MS);
    assert_int_equal(lines.count, 6000);
    lines.list[0].what = 'l'; /* nothing of a log is looked for */
    memset(&seats, 0, sizeof(seats));
    assert_false(archive_lines_have(&lines, &seats, hashes[0]));
    assert_true(archive_lines_have(&lines, &seats, hashes[1]));
    free(lines.list);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(names_that_are_shown), cmocka_unit_test(what_a_walk_finds),
                                        cmocka_unit_test(a_folder_that_may_not_be_read_is_counted),
                                        cmocka_unit_test(what_lies_too_deep_is_counted),
                                        cmocka_unit_test(a_list_of_logs_says_that_there_are_more),
                                        cmocka_unit_test(a_list_of_the_version_before_has_no_more),
                                        cmocka_unit_test(a_list_of_many_blobs_takes_little_time) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
