/* Answers in MessagePack (api/http/json_to_pack.h): the same values as the JSON, shortest form; no prefix and no damage of a
 * text is taken for one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/http/json_to_pack.h"

#include "shoal/banned.h"

struct row {
    const char *json;
    const char *pack; /* NULL: malformed */
    size_t len;
};

#define PACK(text) text, sizeof(text) - 1

static const struct row rows[] = {
    { "{}", PACK("\x80") },
    { "[]", PACK("\x90") },
    { " [ 1 , -2 , 300 ] ", PACK("\x93\x01\xfe\xcd\x01\x2c") },
    { "[true,false,null]", PACK("\x93\xc3\xc2\xc0") },
    { "[1.5]", PACK("\x91\xcb\x3f\xf8\0\0\0\0\0\0") },
    { "[1e9]", PACK("\x91\xcb\x41\xcd\xcd\x65\0\0\0\0") },
    { "18446744073709551615", PACK("\xcf\xff\xff\xff\xff\xff\xff\xff\xff") },
    { "\"a\\n\\\"\\u00e9\\\\\"", PACK("\xa6"
                                      "a\n\"\xc3\xa9\\") },
    { "{\"a\":[[],[{}],\"]\"],\"b\":\"{[\"}", PACK("\x82\xa1"
                                                   "a\x93\x90\x91\x80\xa1]\xa1"
                                                   "b\xa2{[") },
    { "", NULL, 0 },
    { "[1,]", NULL, 0 },
    { "[1 2]", NULL, 0 },
    { "{\"a\"}", NULL, 0 },
    { "{\"a\":1,}", NULL, 0 },
    { "[1]]", NULL, 0 },
    { "\"\\x\"", NULL, 0 },
    { "nul", NULL, 0 },
    { "[[[[[[[[[[[]]]]]]]]]]]", NULL, 0 },
};

static void test_values_are_those_of_the_json(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct shoal_buf pack = { 0 };
        enum shoal_err err = json_to_pack(shoal_view_text(rows[i].json), &pack);

        assert_int_equal(err, rows[i].pack == NULL ? SHOAL_ERR_MALFORMED : SHOAL_OK);
        assert_int_equal(pack.len, rows[i].len);
        if (rows[i].pack != NULL)
            assert_memory_equal(pack.bytes, rows[i].pack, rows[i].len);
        shoal_buf_deinit(&pack);
    }
}

static void test_no_prefix_and_no_damage_is_read_beyond(void **state)
{
    static const char whole[] =
        "{\"jobs\":[{\"id\":\"shoal-1\",\"steps\":12,\"loss\":0.25,\"x\":[]},{}],\"next\":\"\\u0041\"}";

    (void)state;
    for (size_t cut = 0; cut + 1 < sizeof(whole); cut++) {
        char *copy = malloc(cut + 1);
        struct shoal_buf pack = { 0 };

        assert_non_null(copy);
        memcpy(copy, whole, cut);
        assert_int_equal(json_to_pack(shoal_view_of(copy, cut), &pack), SHOAL_ERR_MALFORMED);
        shoal_buf_deinit(&pack);
        free(copy);
    }
    for (size_t at = 0; at + 1 < sizeof(whole); at++) {
        char damaged[sizeof(whole)];
        struct shoal_buf pack = { 0 };

        memcpy(damaged, whole, sizeof(whole));
        damaged[at] = "[]{},:\"\\0-e"[at % 11];
        shoal_ignore(json_to_pack(shoal_view_of(damaged, sizeof(whole) - 1), &pack));
        shoal_buf_deinit(&pack);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_are_those_of_the_json),
        cmocka_unit_test(test_no_prefix_and_no_damage_is_read_beyond),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
