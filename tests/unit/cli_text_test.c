/* What others have written, on its way to a person: shown, and never obeyed by a terminal. */
#include "api/cli/cli_internal.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "shoal/text.h"

#include "api/http/json_input.h"

#include "shoal/banned.h"

static const struct row {
    const char *name, *text, *shown, *json, *plain, *log;
} rows[] = {
    { "plain words", "a b\\", "a b\\", "a b\\", "a b\\", "a b\\" },
    { "letters of other scripts", "\xc3\xbc \xe2\x86\x92 \xf0\x9f\x90\x9f", "\xc3\xbc \xe2\x86\x92 \xf0\x9f\x90\x9f",
      "\xc3\xbc \xe2\x86\x92 \xf0\x9f\x90\x9f", "\xc3\xbc \xe2\x86\x92 \xf0\x9f\x90\x9f", "\xc3\xbc \xe2\x86\x92 \xf0\x9f\x90\x9f" },
    { "a title", "a\x1b]0;x\x07", "a\\x1b]0;x\\x07", "a\\u001b]0;x\\u0007", "a ]0;x ", "a^[]0;x^G" },
    { "a line of its own", "a\nstate FINISHED", "a\\x0astate FINISHED", "a\nstate FINISHED", "a state FINISHED", NULL },
    { "the start of the line", "a\rb", "a\\x0db", "a b", "a b", "a\rb" },
    { "DEL", "a\x7f", "a\\x7f", "a\\u007f", "a ", "a^?" },
    { "C1 in two bytes", "a\xc2\x9b" "2J", "a\\x9b2J", "a\\u009b2J", "a  2J", "aM-^[2J" },
    { "C1 in one", "a\x9b" "2J", "a\\x9b2J", "a\xef\xbf\xbd" "2J", "a 2J", "aM-^[2J" },
    { "an override", "a\xe2\x80\xaetxt.exe", "a\\u202etxt.exe", "a\\u202etxt.exe", "a   txt.exe", "a\\u202etxt.exe" },
    { "an embedding", "\xe2\x80\xaa", "\\u202a", "\\u202a", "   ", "\\u202a" },
    { "an isolate", "\xe2\x81\xa6\xe2\x81\xa9", "\\u2066\\u2069", "\\u2066\\u2069", "      ", "\\u2066\\u2069" },
    { "half a letter", "a\xc3", "a\\xc3", "a\xef\xbf\xbd", "a ", "a" },
    { "a letter of an old code", "a\xe9z", "a\\xe9z", "a\xef\xbf\xbdz", "a z", "a\xe9z" },
    { "a slash in two bytes", "\xc0\xaf", "\\xc0\\xaf", "\xef\xbf\xbd\xef\xbf\xbd", "  ", "\xc0\xaf" },
    { "a surrogate", "\xed\xa0\x80", "\\xed\\xa0\\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", "   ", "\xed\xa0M-^@" },
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

static void same(const struct row *row, const char *how, const char *got, const char *want)
{
    if (strcmp(got, want) != 0)
        fail_msg("%s, %s: got \"%s\", want \"%s\"", row->name, how, got, want);
}

static void is_shown_on_one_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++)
        same(&rows[i], "shown", cli_shown(rows[i].text), rows[i].shown);
}

static void is_cut_with_a_mark(void **state)
{
    static char text[9000];
    const char *shown;

    (void)state;
    memset(text, '\n', sizeof(text) - 1);
    shown = cli_shown(text);
    assert_in_range(strlen(shown), 4000, 4095);
    assert_string_equal(shown + strlen(shown) - 7, "\\x0a...");
}

static void of_json_says_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        char *text = NULL;
        size_t len = 0;
        FILE *out = open_memstream(&text, &len);

        assert_non_null(out);
        cli_put_json(out, rows[i].text);
        (void)fclose(out);
        same(&rows[i], "as JSON", text, rows[i].json);
        free(text);
    }
}

static void of_an_error_is_plain(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        char text[64];

        (void)snprintf(text, sizeof(text), "%s", rows[i].text);
        shoal_text_plain(text, ' ');
        same(&rows[i], "plain", text, rows[i].plain);
    }
}

/* Byte by byte, into a terminal. */
static void of_a_log_is_shown_at_a_terminal(void **state)
{
    int terminal = posix_openpt(O_RDWR | O_NOCTTY), usual = dup(STDOUT_FILENO), side;

    (void)state;
    assert_true(terminal >= 0 && usual >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    side = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    assert_true(side >= 0);
    for (size_t i = 0; i < ROWS; i++) {
        struct cli_log_text text = { .held_len = 0 };
        char got[128];
        ssize_t len;

        if (rows[i].log == NULL)
            continue;
        (void)fflush(stdout);
        assert_true(dup2(side, STDOUT_FILENO) >= 0);
        for (const char *at = rows[i].text; *at != '\0'; at++)
            cli_put_log(&text, at, 1);
        (void)fflush(stdout);
        (void)dup2(usual, STDOUT_FILENO);
        len = read(terminal, got, sizeof(got) - 1);
        assert_true(len > 0);
        got[len] = '\0';
        same(&rows[i], "in a log", got, rows[i].log);
    }
    (void)close(side);
    (void)close(usual);
    (void)close(terminal);
}

static void of_workers_counts_the_tasks_of_an_array(void **state)
{
    static const char *const cases[][2] = {
        { "{\"workers\":2,\"workersMax\":6}", "2/6" },
        { "{\"workers\":6,\"workersMax\":1,\"array\":{\"tasks\":14,\"done\":3}}", "6/14" },
        { "{\"workers\":3,\"workersMax\":1,\"service\":\"s\",\"array\":{\"tasks\":512}}", "3" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct json_input *input = NULL;
        struct shoal_msg msg;
        char text[40];

        assert_int_equal(json_input_parse(shoal_view_text(cases[i][0]), &input, &msg), SHOAL_OK);
        cli_workers_text(json_input_root(input), text, sizeof(text));
        assert_string_equal(text, cases[i][1]);
        json_input_free(input);
    }
}

/* What would be cut off would name something else. */
static void of_an_address_is_sent_whole_or_not_at_all(void **state)
{
    static const struct {
        const char *text;
        size_t cap; /* of the address's part */
        const char *encoded; /* NULL: it does not fit */
    } cases[] = {
        { "model/\xc3\xbc", 16, "model%2F%C3%BC" }, { "model/\xc3\xbc", 15, "model%2F%C3%BC" },
        { "model/\xc3\xbc", 14, NULL },            { "abc", 4, "abc" },
        { "abcd", 4, NULL },                       { "", 4, "" },
    };
    static char long_path[5000];
    struct cli_call call = { .method = "GET", .node = "http://127.0.0.1:1" };
    struct cli_answer answer;
    struct cli cli = { .quiet = true };
    char part[32], path[64];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cli_encode(cases[i].text, part, cases[i].cap);
        if (cases[i].encoded != NULL)
            assert_string_equal(part, cases[i].encoded);
        (void)snprintf(path, sizeof(path), "/v1/jobs/%s/why", part);
        call.path = path;
        if (cases[i].encoded == NULL) {
            assert_int_equal(cli_call(&cli, &call, &answer, true), SHOAL_EXIT_USAGE);
            assert_non_null(strstr(answer.fault, "too long"));
            cli_answer_free(&answer);
        }
    }
    memset(long_path, 'a', sizeof(long_path) - 1);
    long_path[0] = '/';
    call.path = long_path;
    assert_int_equal(cli_call(&cli, &call, &answer, true), SHOAL_EXIT_USAGE);
    cli_answer_free(&answer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_shown_on_one_line),
        cmocka_unit_test(is_cut_with_a_mark),
        cmocka_unit_test(of_json_says_the_same),
        cmocka_unit_test(of_an_error_is_plain),
        cmocka_unit_test(of_a_log_is_shown_at_a_terminal),
        cmocka_unit_test(of_workers_counts_the_tasks_of_an_array),
        cmocka_unit_test(of_an_address_is_sent_whole_or_not_at_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
