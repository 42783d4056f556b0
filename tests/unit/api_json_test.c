/* JSON out (whole and in pieces) and in (strict and lenient). */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/http/json_input.h"
#include "api/http/json_writer.h"

#include "shoal/banned.h"

static void test_writer(void **state)
{
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    (void)state;
    json_object_begin(&w, NULL);
    json_text(&w, "a", "x\"\\\n\r\t\x01\x7f/");
    json_array_begin(&w, "b");
    json_int(&w, NULL, INT64_MIN);
    json_uint(&w, NULL, UINT64_MAX);
    json_object_begin(&w, NULL);
    json_end(&w);
    json_array_begin(&w, NULL);
    json_end(&w);
    json_end(&w);
    json_number(&w, "c", 0.1);
    json_number(&w, "d", NAN);
    json_bool(&w, "e", true);
    json_raw(&w, "f", shoal_view_text("[1]"));
    json_end(&w);
    assert_false(w.failed);
    assert_int_equal(shoal_buf_append(&buf, "", 1), SHOAL_OK);
    assert_string_equal(
        buf.bytes,
        "{\"a\":\"x\\\"\\\\\\n\\r\\t\\u0001\\u007f/\",\"b\":[-9223372036854775808,18446744073709551615,{},[]],"
        "\"c\":0.1,\"d\":null,\"e\":true,\"f\":[1]}");
    shoal_buf_deinit(&buf);
}

static const struct {
    const char *name;
    const char *text;
    const char *want;
} escapes[] = {
    { "plain text", "hello", "hello" },
    { "two, three and four bytes", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x90\x9f", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x90\x9f" },
    { "a lone continuation", "a\x80z", "a\xef\xbf\xbdz" },
    { "a cut sequence at the end", "a\xe2\x82", "a\xef\xbf\xbd\xef\xbf\xbd" },
    { "a cut sequence before a letter", "\xe2z", "\xef\xbf\xbdz" },
    { "an over-long form", "\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd" },
    { "a surrogate", "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
    { "beyond Unicode", "\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
    { "0xff", "\xff", "\xef\xbf\xbd" },
    { "mixed", "\xc3\xa9\"\xf0\x9f\n", "\xc3\xa9\\\"\xef\xbf\xbd\xef\xbf\xbd\\n" },
};

/* However the text is cut, the same comes out. */
static void test_escape(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(escapes) / sizeof(escapes[0]); i++) {
        size_t len = strlen(escapes[i].text);

        for (size_t piece = 1; piece <= len; piece++) {
            struct json_escaper escaper = { .held_len = 0 };
            struct shoal_buf out = { 0 };

            for (size_t at = 0; at < len; at += piece)
                assert_int_equal(json_escape(&escaper,
                                             shoal_view_of(escapes[i].text + at, len - at < piece ? len - at : piece),
                                             false, &out),
                                 SHOAL_OK);
            assert_int_equal(json_escape(&escaper, (struct shoal_view){ 0 }, true, &out), SHOAL_OK);
            assert_int_equal(shoal_buf_append(&out, "", 1), SHOAL_OK);
            if (strcmp((char *)out.bytes, escapes[i].want) != 0)
                fail_msg("%s, in pieces of %zu", escapes[i].name, piece);
            shoal_buf_deinit(&out);
        }
    }
}

/* Plain: only what is no UTF-8 changes. */
static void test_replace(void **state)
{
    static const char text[] = "\x1b[2J\"caf\xc3\xa9\"\\\xff\n\xe2\x82";

    (void)state;
    for (size_t piece = 1; piece <= sizeof(text); piece++) {
        struct json_escaper escaper = { .plain = true };
        struct shoal_buf out = { 0 };

        for (size_t at = 0; at < sizeof(text) - 1; at += piece)
            assert_int_equal(json_escape(&escaper, shoal_view_of(text + at, sizeof(text) - 1 - at < piece ? sizeof(text) - 1 - at : piece),
                                         false, &out),
                             SHOAL_OK);
        assert_int_equal(json_escape(&escaper, (struct shoal_view){ 0 }, true, &out), SHOAL_OK);
        assert_int_equal(shoal_buf_append(&out, "", 1), SHOAL_OK);
        assert_string_equal(out.bytes, "\x1b[2J\"caf\xc3\xa9\"\\\xef\xbf\xbd\n\xef\xbf\xbd\xef\xbf\xbd");
        shoal_buf_deinit(&out);
    }
}

static const struct {
    const char *name;
    const char *text;
    const char *want; /* dumped; NULL: refused */
} inputs[] = {
    { "strict JSON", "{\"a\": [1, \"b\"]}", "{\"a\":[1,\"b\"]}" },
    { "single quotes", "{'a': 'b'}", "{\"a\":\"b\"}" },
    { "Python's words", "{'a': True, 'b': False, 'c': None}", "{\"a\":true,\"b\":false,\"c\":null}" },
    { "a word inside a text stays", "{'a': 'True None,}'}", "{\"a\":\"True None,}\"}" },
    { "a trailing comma", "{\"a\": [1, 2,], }", "{\"a\":[1,2]}" },
    { "a backslash and a line break", "{\"a\": \"x\\\ny\"}", "{\"a\":\"xy\"}" },
    { "the other line break", "{\"a\": \"x\\\r\ny\"}", "{\"a\":\"xy\"}" },
    { "double quotes inside single ones", "{'a': 'say \"x\"'}", "{\"a\":\"say \\\"x\\\"\"}" },
    { "an escaped single quote", "{'a': 'it\\'s'}", "{\"a\":\"it's\"}" },
    { "a single quote inside double ones", "{\"a\": \"it's\",}", "{\"a\":\"it's\"}" },
    { "nothing", "", NULL },
    { "an open text", "{'a': 'b", NULL },
    { "a key twice", "{\"a\":1,\"a\":2}", NULL },
    { "a key twice, leniently", "{'a':1,'a':2}", NULL },
    { "two commas", "[1,,]", NULL },
    { "a bare word", "{a: 1}", NULL },
    { "bytes that are not UTF-8", "{\"a\":\"\xff\"}", NULL },
    { "something after the end", "{} x", NULL },
};

static void test_lenient(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++) {
        struct json_input *input = NULL;
        struct shoal_msg msg;
        enum shoal_err err = json_input_parse_lenient(shoal_view_text(inputs[i].text), &input, &msg);
        char *dump;

        if (inputs[i].want == NULL) {
            if (err == SHOAL_OK)
                fail_msg("%s: taken", inputs[i].name);
            continue;
        }
        if (err != SHOAL_OK)
            fail_msg("%s: %s", inputs[i].name, msg.text);
        dump = json_input_dump(json_input_root(input));
        assert_string_equal(dump, inputs[i].want);
        free(dump);
        json_input_free(input);
    }
}

static void test_depth(void **state)
{
    char text[400];
    struct json_input *input;
    struct shoal_msg msg;

    (void)state;
    for (unsigned i = 0; i < 100; i++) {
        text[i] = '[';
        text[100 + i] = ']';
    }
    assert_int_equal(json_input_parse(shoal_view_of(text, 200), &input, &msg), SHOAL_ERR_INVALID);
    assert_int_equal(json_input_parse(shoal_view_of(text + 60, 80), &input, &msg), SHOAL_OK);
    json_input_free(input);
}

/* The cost of building it is counted before it is built; our own is read however much it is. */
static void test_many_values(void **state)
{
    static const struct {
        const char *name, *unit;
        size_t count;
        enum shoal_err want;
    } rows[] = {
        { "empty objects", "{},", 340000, SHOAL_ERR_TOO_BIG },
        { "objects as many as are read", "{},", 30000, SHOAL_OK },
        { "empty lists", "[],", 340000, SHOAL_ERR_TOO_BIG },
        { "numbers", "1,", 500000, SHOAL_ERR_TOO_BIG },
        { "numbers as many as are read", "1,", 120000, SHOAL_OK },
        { "one long text, of commas and brackets", "{[,", 300000, SHOAL_OK },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bool text = strchr(rows[i].unit, '[') != NULL && strchr(rows[i].unit, '{') != NULL;
        struct shoal_buf buf = { 0 };
        struct json_input *input = NULL;
        struct shoal_msg msg = { "" };

        assert_int_equal(shoal_buf_append(&buf, text ? "[\"" : "[", text ? 2 : 1), SHOAL_OK);
        for (size_t k = 0; k < rows[i].count; k++)
            assert_int_equal(shoal_buf_append(&buf, rows[i].unit, strlen(rows[i].unit)), SHOAL_OK);
        assert_int_equal(shoal_buf_append(&buf, text ? "\"]" : "0]", 2), SHOAL_OK);
        if (json_input_parse(shoal_buf_view(&buf), &input, &msg) != rows[i].want)
            fail_msg("%s: %s", rows[i].name, msg.text);
        json_input_free(input);
        input = NULL;
        assert_int_equal(json_input_parse_own(shoal_buf_view(&buf), &input, &msg), SHOAL_OK);
        json_input_free(input);
        shoal_buf_deinit(&buf);
    }
}

/* One number that has no room in 63 bits hides nothing of what stands beside it. */
static void test_integers_beyond_63_bits(void **state)
{
    static const char text[] = "{\"jobs\":[{\"id\":\"a\\\"18446744073709551000\",\"steps\":18446744073709551000,\"loss\":0.18446744073709551000,"
                               "\"big\":18446744073709551000e2},{\"id\":\"b\",\"steps\":9223372036854775807,\"low\":-99999999999999999999}]}";
    const struct json_value *jobs;
    struct json_input *input;
    struct shoal_msg msg;
    int64_t value;
    double number;

    (void)state;
    assert_int_equal(json_input_parse(shoal_view_text(text), &input, &msg), SHOAL_ERR_INVALID); /* a stranger is told */
    assert_int_equal(json_input_parse_own(shoal_view_text(text), &input, &msg), SHOAL_OK);
    jobs = json_input_get(json_input_root(input), "jobs");
    assert_string_equal(json_input_text(json_input_at(jobs, 0), "id"), "a\"18446744073709551000");
    assert_true(json_input_int(json_input_at(jobs, 0), "steps", &value) && value == INT64_MAX);
    assert_true(json_input_number(json_input_at(jobs, 0), "loss", &number) && number < 0.19);
    assert_true(json_input_number(json_input_at(jobs, 0), "big", &number) && number > 1e20);
    assert_string_equal(json_input_text(json_input_at(jobs, 1), "id"), "b");
    assert_true(json_input_int(json_input_at(jobs, 1), "steps", &value) && value == INT64_MAX);
    assert_true(json_input_int(json_input_at(jobs, 1), "low", &value) && value == -INT64_MAX);
    json_input_free(input);
    assert_int_equal(json_input_parse_own(shoal_view_text("18446744073709551000}"), &input, &msg), SHOAL_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_writer), cmocka_unit_test(test_escape), cmocka_unit_test(test_replace), cmocka_unit_test(test_lenient),
        cmocka_unit_test(test_depth),  cmocka_unit_test(test_many_values),
        cmocka_unit_test(test_integers_beyond_63_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
