/* The words of an agent to a kernel, and those that it takes from one: any program may stand at the other end. */
#include "node/serve/kernel_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include "shoal/pack.h"
#include "shoal/rand.h"

static uint8_t bytes[8192];

static struct shoal_view said(const char *text, size_t len) { return shoal_view_of(text, len); }
#define SAID(text) said(text, sizeof(text) - 1)

static void test_request(void **state)
{
    struct kernel_ask ask = { .id = 7, .path = "/v2/models/m/infer", .method = "POST", .content_type = "", .model = "m",
                              .version = "", .user = "ada", .deadline_ms = 60000 };
    struct shoal_pack_reader r;
    struct shoal_pack_map map;
    size_t len, whole;

    (void)state;
    assert_int_equal(kernel_infer_head(&ask, 3, bytes, &len), SHOAL_OK);
    memcpy(bytes + len, "abc", 3);
    assert_int_equal(kernel_frame(shoal_view_of(bytes, len + 2), &whole), SHOAL_OK);
    assert_int_equal(whole, 0);
    assert_int_equal(kernel_frame(shoal_view_of(bytes, len + 3), &whole), SHOAL_OK);
    assert_int_equal(whole, len + 3);
    r = shoal_pack_reader_init(shoal_view_of(bytes + 4, whole - 4));
    assert_int_equal(shoal_pack_get_array(&r, 8), 4);
    assert_true(shoal_view_equal(shoal_pack_get_str(&r, 16), shoal_view_text("infer")));
    assert_int_equal(shoal_pack_get_u64(&r, UINT64_MAX), 7);
    map = shoal_pack_get_map(&r);
    while (shoal_pack_next_field(&r, &map)) {
        assert_false(shoal_pack_named(&map, "version")); /* the client named none */
        shoal_pack_skip(&r);
    }
    assert_true(shoal_view_equal(shoal_pack_get_bin(&r, 16), shoal_view_text("abc")));
    assert_true(shoal_pack_reader_done(&r));
    ask.content_type = "a/\xff\xc3";
    assert_int_equal(kernel_infer_head(&ask, 3, bytes, &len), SHOAL_OK);
    assert_null(memchr(bytes + 4, 0xff, len - 4)); /* a string is UTF-8, whoever sent it */
    assert_non_null(memmem(bytes, len, "a/??", 4));
    assert_int_equal(kernel_infer_head(&ask, SHOAL_INFER_BODY_BYTES_MAX + 1, bytes, &len), SHOAL_ERR_TOO_BIG);
    memset(bytes + 4096, 'p', 4095);
    bytes[8191] = '\0';
    ask.path = (const char *)bytes + 4096;
    assert_int_equal(kernel_infer_head(&ask, 3, bytes, &len), SHOAL_ERR_TOO_BIG);
}

/* One value after the other, as text. */
static void assert_word(const uint8_t *frame, size_t len, const char *kind, uint64_t id, uint64_t more)
{
    struct shoal_pack_reader r = shoal_pack_reader_init(shoal_view_of(frame + 4, len - 4));
    size_t whole;

    assert_int_equal(kernel_frame(shoal_view_of(frame, len), &whole), SHOAL_OK);
    assert_int_equal(whole, len);
    assert_int_equal(shoal_pack_get_array(&r, 8), more > 0 ? 3 : 2);
    assert_true(shoal_view_equal(shoal_pack_get_str(&r, 16), shoal_view_text(kind)));
    assert_int_equal(shoal_pack_get_u64(&r, UINT64_MAX), id);
    if (more > 0)
        assert_int_equal(shoal_pack_get_u64(&r, UINT64_MAX), more);
    assert_true(shoal_pack_reader_done(&r));
}

static void test_words(void **state)
{
    uint8_t word[KERNEL_WORD_BYTES];

    (void)state;
    assert_word(word, kernel_more(UINT64_MAX, UINT32_MAX, word), "more", UINT64_MAX, UINT32_MAX);
    assert_word(word, kernel_more(1, 70000, word), "more", 1, 70000);
    assert_word(word, kernel_cancel(UINT64_MAX, word), "cancel", UINT64_MAX, 0);
}

static void test_frames(void **state)
{
    const uint8_t none[4] = { 0 }, large[4] = { 0xff, 0xff, 0xff, 0x7f };
    size_t len;

    (void)state;
    assert_int_equal(kernel_frame(shoal_view_of(none, 3), &len), SHOAL_OK);
    assert_int_equal(len, 0);
    assert_int_equal(kernel_frame(shoal_view_of(none, 4), &len), SHOAL_ERR_TOO_BIG);
    assert_int_equal(kernel_frame(shoal_view_of(large, 4), &len), SHOAL_ERR_TOO_BIG);
}

static void test_answers(void **state)
{
    struct kernel_message m;

    (void)state;
    assert_int_equal(kernel_decode(SAID("\x92\xa5ready\x82\xa5"
                                        "batch\x08\xa4more\xc0"),
                                   &m),
                     SHOAL_OK);
    assert_int_equal(m.kind, KERNEL_READY);
    assert_int_equal(m.batch, 8);
    assert_int_equal(kernel_decode(SAID("\x92\xa5ready\x81\xa5"
                                        "batch\x00"),
                                   &m),
                     SHOAL_OK);
    assert_int_equal(m.batch, 1);
    assert_int_equal(kernel_decode(SAID("\x95\xa4"
                                        "done\x09\xcc\xc8\x81\xac"
                                        "content_type\xa3"
                                        "a\r\x7f\xc4\x02hi"),
                                   &m),
                     SHOAL_OK);
    assert_int_equal(m.id, 9);
    assert_int_equal(m.status, 200);
    assert_string_equal(m.content_type, "a  "); /* no line of its own in an answer's head */
    assert_true(shoal_view_equal(m.body, shoal_view_text("hi")));
    assert_int_equal(kernel_decode(SAID("\x92\xa6"
                                        "failed\xa3why"),
                                   &m),
                     SHOAL_OK);
    assert_int_equal(m.kind, KERNEL_FAILED);
    assert_string_equal(m.text, "why");
}

static void test_nonsense(void **state)
{
    static const struct {
        const char *text;
        size_t len;
    } rows[] = {
        { "", 0 },
        { "\x90", 1 },
        { "\x92\xa5ready\x05", 8 },                     /* no map */
        { "\x95\xa4" "done\x09\x64\x80\xc4\x00", 11 },  /* a status below 200 */
        { "\x95\xa4" "done\x09\xcc\xc8\x80\x05", 11 },  /* a body that is a number */
        { "\x94\xa4" "done\x09\xcc\xc8\x80", 10 },      /* no body */
        { "\x95\xa4" "done\x09\xcc\xc8\x81\xaa" "header_len\x03\xc4\x02hi", 26 }, /* a header beyond its body */
        { "\x92\xa6" "failed\xa1x\xc0", 11 },           /* something behind it */
        { "\x92\xa3huh\xc0", 6 },
    };
    struct shoal_rand rand;
    struct kernel_message m = { .id = 42 };

    (void)state;
    shoal_rand_init(&rand, 11);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(kernel_decode(shoal_view_of(rows[i].text, rows[i].len), &m), SHOAL_ERR_MALFORMED);
    assert_int_equal(m.id, 42); /* set on success alone */
    for (unsigned n = 0; n < 20000; n++) {
        size_t len = shoal_rand_below(&rand, 64);

        for (size_t i = 0; i < len; i++)
            bytes[i] = (uint8_t)shoal_rand_u64(&rand);
        memcpy(bytes, "\x95\xa4" "done", len < 6 ? len : 6);
        if (kernel_decode(shoal_view_of(bytes, len), &m) == SHOAL_OK)
            assert_true(m.status >= 200 && m.status < 600);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_frames),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_nonsense),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
