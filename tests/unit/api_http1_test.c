/* Requests, and what could be two of them: heads, bodies, and every way to cut them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/rand.h"

#include "api/http/http1_parser.h"

#include "shoal/banned.h"

#define H "Host: a\r\n"

struct head_row {
    const char *name;
    const char *head;
    int status; /* 200: taken */
};

static const struct head_row head_rows[] = {
    { "the plainest request", "GET / HTTP/1.1\r\n" H "\r\n", 200 },
    { "HTTP/1.0 without Host", "GET / HTTP/1.0\r\n\r\n", 200 },
    { "a query", "GET /a?b=c%20d HTTP/1.1\r\n" H "\r\n", 200 },
    { "an absolute target", "GET http://a/b HTTP/1.1\r\n" H "\r\n", 200 },
    { "an empty header value", "GET / HTTP/1.1\r\n" H "Accept:\r\n\r\n", 200 },
    { "white space round a value", "GET / HTTP/1.1\r\nHost: \t a \t\r\n\r\n", 200 },
    { "an IPv6 Host", "GET / HTTP/1.1\r\nHost: [::1]:9243\r\n\r\n", 200 },
    { "chunked", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n", 200 },
    { "Chunked in capitals", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: Chunked\r\n\r\n", 200 },
    { "a length", "POST / HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\n", 200 },
    { "length and GET", "GET / HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\n", 200 },
    { "100-continue", "POST / HTTP/1.1\r\n" H "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n", 200 },
    { "an upgrade is not taken up", "GET / HTTP/1.1\r\n" H "Connection: upgrade\r\nUpgrade: h2c\r\n\r\n", 200 },
    { "no Host", "GET / HTTP/1.1\r\n\r\n", 400 },
    { "two Hosts", "GET / HTTP/1.1\r\n" H H "\r\n", 400 },
    { "an empty Host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", 400 },
    { "a Host with a slash", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400 },
    { "a Host with a blank", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400 },
    { "a Host with a user", "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", 400 },
    { "a space before the colon", "GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400 },
    { "a tab before the colon", "GET / HTTP/1.1\r\n" H "X\t: a\r\n\r\n", 400 },
    { "a folded line", "GET / HTTP/1.1\r\n" H "X: a\r\n b\r\n\r\n", 400 },
    { "a folded first header", "GET / HTTP/1.1\r\n " H "\r\n", 400 },
    { "a bare LF after the request line", "GET / HTTP/1.1\n" H "\r\n", 400 },
    { "a bare LF after a header", "GET / HTTP/1.1\r\nHost: a\n\r\n", 400 },
    { "a bare LF as the empty line", "GET / HTTP/1.1\r\n" H "\n", 400 },
    { "a bare CR in a value", "GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n", 400 },
    { "a control character in a value", "GET / HTTP/1.1\r\n" H "X: a\x01\r\n\r\n", 400 },
    { "a header without a colon", "GET / HTTP/1.1\r\n" H "X\r\n\r\n", 400 },
    { "a header without a name", "GET / HTTP/1.1\r\n" H ": x\r\n\r\n", 400 },
    { "a bracket in a name", "GET / HTTP/1.1\r\n" H "X(: x\r\n\r\n", 400 },
    { "two lengths that agree", "POST / HTTP/1.1\r\n" H "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", 400 },
    { "two lengths that differ", "POST / HTTP/1.1\r\n" H "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400 },
    { "a list of lengths", "POST / HTTP/1.1\r\n" H "Content-Length: 5, 5\r\n\r\n", 400 },
    { "a length with a plus", "POST / HTTP/1.1\r\n" H "Content-Length: +5\r\n\r\n", 400 },
    { "a length below 0", "POST / HTTP/1.1\r\n" H "Content-Length: -5\r\n\r\n", 400 },
    { "a hexadecimal length", "POST / HTTP/1.1\r\n" H "Content-Length: 0x5\r\n\r\n", 400 },
    { "a huge length", "POST / HTTP/1.1\r\n" H "Content-Length: 99999999999999999999\r\n\r\n", 400 },
    { "an empty length", "POST / HTTP/1.1\r\n" H "Content-Length:\r\n\r\n", 400 },
    { "length and chunked", "POST / HTTP/1.1\r\n" H "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400 },
    { "chunked and length", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", 400 },
    { "chunked twice", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
      400 },
    { "gzip, chunked", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: gzip, chunked\r\n\r\n", 501 },
    { "chunked, gzip", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked, gzip\r\n\r\n", 501 },
    { "xchunked", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: xchunked\r\n\r\n", 501 },
    { "identity", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: identity\r\n\r\n", 501 },
    { "chunked in HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400 },
    { "another expectation", "POST / HTTP/1.1\r\n" H "Expect: miracles\r\n\r\n", 417 },
    { "HTTP/2.0", "GET / HTTP/2.0\r\n" H "\r\n", 505 },
    { "HTTP/1.2", "GET / HTTP/1.2\r\n" H "\r\n", 505 },
    { "HTTP/0.9", "GET /\r\n\r\n", 505 },
    { "a method that nobody knows", "BREW / HTTP/1.1\r\n" H "\r\n", 200 }, /* read: its address answers 405 */
    { "a method in small letters", "get / HTTP/1.1\r\n" H "\r\n", 200 }, /* methods differ by that (RFC 9110, 9.1) */
    { "a method with a hyphen", "M-SEARCH2 / HTTP/1.1\r\n" H "\r\n", 200 },
    { "a method that is no word", "BR(EW / HTTP/1.1\r\n" H "\r\n", 400 },
    { "a target without a slash", "GET a HTTP/1.1\r\n" H "\r\n", 400 },
    { "a target with a fragment", "GET /#x HTTP/1.1\r\n" H "\r\n", 400 },
    { "a target with a blank", "GET /a b HTTP/1.1\r\n" H "\r\n", 400 },
    { "an absolute target without a path", "GET http://a HTTP/1.1\r\n" H "\r\n", 400 },
    { "a star", "OPTIONS * HTTP/1.1\r\n" H "\r\n", 400 },
    { "a TLS hello", "\x16\x03\x01\x02\x01\n\n", 400 },
    { "two blanks before the target", "GET  / HTTP/1.1\r\n" H "\r\n", 400 },
    { "two blanks behind the target", "GET /  HTTP/1.1\r\n" H "\r\n", 400 },
    { "a blank behind the version", "GET / HTTP/1.1 \r\n" H "\r\n", 400 },
    { "two who ask", "GET / HTTP/1.1\r\n" H "Authorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n", 400 },
    { "two tokens", "GET / HTTP/1.1\r\n" H "X-Auth-Token: a\r\nX-Auth-Token: b\r\n\r\n", 400 },
    { "two types", "GET / HTTP/1.1\r\n" H "Content-Type: a/b\r\nContent-Type: a/c\r\n\r\n", 400 },
    { "two lengths of a model's header",
      "GET / HTTP/1.1\r\n" H "Inference-Header-Content-Length: 1\r\nInference-Header-Content-Length: 2\r\n\r\n", 400 },
    { "two of a header that may be a list", "GET / HTTP/1.1\r\n" H "Accept: a/b\r\nAccept: a/c\r\n\r\n", 200 },
    { "an empty line first", "\r\nGET / HTTP/1.1\r\n" H "\r\n", 400 },
};

static void test_heads(void **state)
{
    unsigned failed = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(head_rows) / sizeof(head_rows[0]); i++) {
        const char *text = head_rows[i].head;
        struct http1_head head;
        struct shoal_msg msg = { "" };
        int status = 0;
        enum shoal_err err = http1_head_parse((const uint8_t *)text, strlen(text), &head, &status, &msg);
        int got = err == SHOAL_OK ? 200 : status;

        if (got != head_rows[i].status || (err != SHOAL_OK && msg.text[0] == '\0')) {
            print_error("FAIL http1: %s: want %d got %d \"%s\"\n", head_rows[i].name, head_rows[i].status, got,
                        msg.text);
            failed++;
        }
    }
    assert_int_equal(failed, 0);
}

static void test_nul(void **state)
{
    static const char text[] = "GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n";
    struct http1_head head;
    struct shoal_msg msg;
    int status;

    (void)state;
    assert_int_equal(http1_head_parse((const uint8_t *)text, sizeof(text) - 1, &head, &status, &msg),
                     SHOAL_ERR_MALFORMED);
}

static void test_many_headers(void **state)
{
    char text[8192] = "GET / HTTP/1.1\r\nHost: a\r\n";
    size_t len = strlen(text);
    struct http1_head head;
    struct shoal_msg msg;
    int status = 0;

    (void)state;
    for (unsigned i = 0; i < SHOAL_HTTP_HEADERS_MAX - 1; i++)
        len += (size_t)snprintf(text + len, sizeof(text) - len, "X%u: y\r\n", i);
    (void)snprintf(text + len, sizeof(text) - len, "\r\n");
    assert_int_equal(http1_head_parse((const uint8_t *)text, strlen(text), &head, &status, &msg), SHOAL_OK);
    assert_int_equal(head.header_count, SHOAL_HTTP_HEADERS_MAX);
    (void)snprintf(text + len, sizeof(text) - len, "Y: y\r\n\r\n");
    assert_int_equal(http1_head_parse((const uint8_t *)text, strlen(text), &head, &status, &msg), SHOAL_ERR_MALFORMED);
    assert_int_equal(status, 431);
}

static void test_fields(void **state)
{
    static const char text[] = "POST /a/b?c=d HTTP/1.1\r\nhOsT: x\r\nContent-Length: 7\r\nX-Auth-Token:  t \r\n\r\n";
    struct http1_head head;
    struct shoal_view value;
    struct shoal_msg msg;
    int status;

    (void)state;
    assert_int_equal(http1_head_parse((const uint8_t *)text, sizeof(text) - 1, &head, &status, &msg), SHOAL_OK);
    assert_int_equal(head.method, HTTP1_POST);
    assert_true(shoal_view_equal(head.path, shoal_view_text("/a/b")));
    assert_true(shoal_view_equal(head.query, shoal_view_text("c=d")));
    assert_int_equal(head.content_length, 7);
    assert_true(head.keep_alive);
    assert_true(http1_header_find(&head, "x-auth-token", &value));
    assert_true(shoal_view_equal(value, shoal_view_text("t")));
    assert_false(http1_header_find(&head, "nope", &value));
}

/* A head is found at its end however it comes, and never before. */
static void test_find(void **state)
{
    static const char text[] = "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n";
    size_t whole = strlen("GET / HTTP/1.1\r\nHost: a\r\n\r\n");

    (void)state;
    for (size_t seen = 0; seen < sizeof(text); seen++)
        for (size_t len = seen; len < sizeof(text); len++)
            if (seen < whole)
                assert_int_equal(http1_head_find((const uint8_t *)text, len, seen), len < whole ? 0 : whole);
}

struct body_row {
    const char *name;
    const char *bytes;
    const char *want; /* NULL: refused */
};

static const struct body_row body_rows[] = {
    { "one chunk", "5\r\nhello\r\n0\r\n\r\n", "hello" },
    { "two chunks", "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", "hello world" },
    { "no chunk", "0\r\n\r\n", "" },
    { "sizes in both cases", "A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n", "01234567890123456789" },
    { "zeroes before a size", "0005\r\nhello\r\n00\r\n\r\n", "hello" },
    { "an extension", "5;a=b\r\nhello\r\n0;c\r\n\r\n", "hello" },
    { "a trailer", "5\r\nhello\r\n0\r\nX: y\r\n\r\n", "hello" },
    { "a bare LF after a size", "5\nhello\r\n0\r\n\r\n", NULL },
    { "a bare LF in an extension", "5;a\nb\r\nhello\r\n0\r\n\r\n", NULL },
    { "no size", "\r\nhello\r\n0\r\n\r\n", NULL },
    { "a size with a plus", "+5\r\nhello\r\n0\r\n\r\n", NULL },
    { "a size with 0x", "0x5\r\nhello\r\n0\r\n\r\n", NULL },
    { "a size with a blank", "5 \r\nhello\r\n0\r\n\r\n", NULL },
    { "a blank before a size", " 5\r\nhello\r\n0\r\n\r\n", NULL },
    { "a size of 16 digits", "1000000000000005\r\nhello\r\n0\r\n\r\n", NULL },
    { "a chunk longer than its size", "4\r\nhello\r\n0\r\n\r\n", NULL },
    { "a chunk that ends with LF alone", "5\r\nhello\n0\r\n\r\n", NULL },
    { "a CR without LF after a size", "5\rhello\r\n0\r\n\r\n", NULL },
    { "two trailers", "0\r\nX: y\r\nZ:\r\n\r\n", "" },
    { "a trailer without a colon", "0\r\nXy\r\n\r\n", NULL },
    { "a trailer without a name", "0\r\n: y\r\n\r\n", NULL },
    { "a blank before a trailer's colon", "0\r\nX : y\r\n\r\n", NULL },
    { "a folded trailer", "0\r\nX: y\r\n z\r\n\r\n", NULL },
    { "a bare LF in a trailer", "0\r\nX: y\n\r\n", NULL },
    { "a wrong end", "0\r\n\rX", NULL },
};

/* Feeds in pieces; returns OK with the content, or the error. */
static enum shoal_err feed(struct http1_body *body, const char *bytes, size_t len, size_t piece, char *out)
{
    size_t at = 0;
    size_t got = 0;

    while (at < len && !body->done) {
        size_t part = len - at < piece ? len - at : piece;
        char *copy = malloc(part); /* its end is the end of the memory: a read beyond it is seen */
        size_t done = 0;

        memcpy(copy, bytes + at, part);
        while (done < part && !body->done) {
            struct shoal_view content;
            struct shoal_msg msg;
            size_t used = 0;
            enum shoal_err err =
                http1_body_step(body, (const uint8_t *)copy + done, part - done, &used, &content, &msg);

            if (err != SHOAL_OK) {
                free(copy);
                return err;
            }
            memcpy(out + got, content.bytes == NULL ? (const uint8_t *)"" : content.bytes, content.len);
            got += content.len;
            done += used;
        }
        free(copy);
        at += done;
    }
    out[got] = '\0';
    return SHOAL_OK;
}

static void test_bodies(void **state)
{
    struct http1_head chunked = { .chunked = true };
    unsigned failed = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(body_rows) / sizeof(body_rows[0]); i++) {
        const struct body_row *row = &body_rows[i];

        for (size_t piece = 1; piece <= strlen(row->bytes); piece++) {
            struct http1_body body;
            char out[256];
            enum shoal_err err;
            bool ok;

            http1_body_init(&body, &chunked);
            err = feed(&body, row->bytes, strlen(row->bytes), piece, out);
            ok = row->want == NULL ? err != SHOAL_OK : err == SHOAL_OK && body.done && strcmp(out, row->want) == 0;
            if (!ok) {
                print_error("FAIL http1 body: %s in pieces of %zu\n", row->name, piece);
                failed++;
            }
        }
    }
    assert_int_equal(failed, 0);
}

static void test_prefixes_are_not_done(void **state)
{
    static const char text[] = "5;x\r\nhello\r\n6\r\n world\r\n0\r\nT: u\r\n\r\n";
    struct http1_head chunked = { .chunked = true };

    (void)state;
    for (size_t len = 0; len < sizeof(text) - 1; len++) {
        struct http1_body body;
        char out[256];

        http1_body_init(&body, &chunked);
        assert_int_equal(feed(&body, text, len, 64, out), SHOAL_OK);
        assert_false(body.done);
    }
}

static void test_length(void **state)
{
    struct http1_head head = { .content_length = 5 };
    struct http1_body body;
    struct shoal_view content;
    struct shoal_msg msg;
    size_t used;

    (void)state;
    http1_body_init(&body, &head);
    assert_int_equal(http1_body_step(&body, (const uint8_t *)"helloGET", 8, &used, &content, &msg), SHOAL_OK);
    assert_int_equal(used, 5);
    assert_true(body.done);
    head.content_length = 0;
    http1_body_init(&body, &head);
    assert_true(body.done);
}

static void test_random(void **state)
{
    struct shoal_rand rand;

    (void)state;
    shoal_rand_init(&rand, 7);
    for (unsigned turn = 0; turn < 20000; turn++) {
        static const char bits[] = "GETPOS /HT1.\r\n\r\n:;=0a5 \t";
        uint8_t bytes[64];
        size_t len = shoal_rand_below(&rand, sizeof(bytes));
        struct http1_head head;
        struct http1_head chunked = { .chunked = true };
        struct http1_body body;
        struct shoal_msg msg;
        char out[256];
        int status;

        for (size_t i = 0; i < len; i++)
            bytes[i] = turn % 2 == 0 ? (uint8_t)shoal_rand_below(&rand, 256)
                                     : (uint8_t)bits[shoal_rand_below(&rand, sizeof(bits) - 1)];
        if (http1_head_parse(bytes, len, &head, &status, &msg) == SHOAL_OK)
            assert_true(head.path.len > 0);
        http1_body_init(&body, &chunked);
        if (feed(&body, (const char *)bytes, len, 3, out) == SHOAL_OK)
            assert_true(strlen(out) <= len);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_nul),
        cmocka_unit_test(test_many_headers),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_prefixes_are_not_done),
        cmocka_unit_test(test_length),
        cmocka_unit_test(test_random),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
