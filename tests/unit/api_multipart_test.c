/* Multipart bodies, cut at every point. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/rand.h"

#include "api/http/multipart.h"

#include "shoal/banned.h"

struct trace {
    char text[4096];
    size_t len;
};

static void add(struct trace *trace, const char *bytes, size_t len)
{
    assert_true(trace->len + len < sizeof(trace->text));
    memcpy(trace->text + trace->len, bytes, len);
    trace->len += len;
    trace->text[trace->len] = '\0';
}

static enum shoal_err on_begin(void *arg, const struct multipart_part *part, struct shoal_msg *msg)
{
    struct trace *trace = arg;
    char line[600];
    int len = snprintf(line, sizeof(line), "<%s%s%s|", part->name, part->has_filename ? " " : "", part->filename);

    (void)msg;
    add(trace, line, (size_t)len);
    return SHOAL_OK;
}

static enum shoal_err on_data(void *arg, struct shoal_view bytes, struct shoal_msg *msg)
{
    (void)msg;
    add(arg, (const char *)bytes.bytes, bytes.len);
    return SHOAL_OK;
}

static enum shoal_err on_end(void *arg, struct shoal_msg *msg)
{
    (void)msg;
    add(arg, ">", 1);
    return SHOAL_OK;
}

static const struct multipart_events events = { .begin = on_begin, .data = on_data, .end = on_end };

/* `cut`: where the two pieces meet; 0: byte by byte. */
static enum shoal_err run(const char *type, const char *body, size_t len, size_t cut, struct trace *trace,
                          struct shoal_msg *msg)
{
    struct multipart *m = malloc(sizeof(*m));
    enum shoal_err err;

    *trace = (struct trace){ .len = 0 };
    err = multipart_init(m, shoal_view_text(type), &events, trace, msg);
    for (size_t at = 0; at < len && err == SHOAL_OK;) {
        size_t piece = cut == 0 ? 1 : at == 0 && cut < len ? cut : len - at;
        char *copy = malloc(piece);

        memcpy(copy, body + at, piece);
        err = multipart_feed(m, shoal_view_of(copy, piece), msg);
        free(copy);
        at += piece;
    }
    if (err == SHOAL_OK)
        err = multipart_finish(m, msg);
    free(m);
    return err;
}

#define TYPE "multipart/form-data; boundary=XX"
#define CD "Content-Disposition: form-data; name="

struct row {
    const char *name;
    const char *type;
    const char *body;
    const char *want; /* NULL: refused */
};

static const struct row rows[] = {
    { "one file", TYPE, "--XX\r\n" CD "\"file\"; filename=\"a.tar\"\r\n\r\nhello\r\n--XX--\r\n", "<file a.tar|hello>" },
    { "a file without a name", TYPE, "--XX\r\n" CD "\"file\"\r\n\r\nhello\r\n--XX--", "<file|hello>" },
    { "data, then a file", TYPE,
      "--XX\r\n" CD "\"data\"\r\n\r\n{}\r\n--XX\r\n" CD
      "\"file\"; filename=\"a\"\r\nContent-Type: x/y\r\n\r\nb\r\n--XX--\r\n",
      "<data|{}><file a|b>" },
    { "an empty part", TYPE, "--XX\r\n" CD "a\r\n\r\n\r\n--XX--\r\n", "<a|>" },
    { "a preamble and an epilogue", TYPE, "pre\r\namble\r\n--XX\r\n" CD "a\r\n\r\nb\r\n--XX--\r\nepi\r\n--XX\r\n",
      "<a|b>" },
    { "content like a boundary", TYPE, "--XX\r\n" CD "a\r\n\r\n\r\n--X\r\n-XX\r\r\n--XY--\r\n--XX--\r\n",
      "<a|\r\n--X\r\n-XX\r\r\n--XY-->" },
    { "only line breaks", TYPE, "--XX\r\n" CD "a\r\n\r\n\r\n\r\n\r\r\n--XX--\r\n", "<a|\r\n\r\n\r>" },
    { "blanks after a boundary", TYPE, "--XX \t\r\n" CD "a\r\n\r\nb\r\n--XX--\r\n", "<a|b>" },
    { "a quoted boundary", "multipart/form-data; boundary=\"X X\"", "--X X\r\n" CD "a\r\n\r\nb\r\n--X X--\r\n",
      "<a|b>" },
    { "the boundary is not the first parameter", "Multipart/Form-Data; charset=utf-8; Boundary=XX",
      "--XX\r\n" CD "a\r\n\r\nb\r\n--XX--\r\n", "<a|b>" },
    { "other headers before the name", TYPE,
      "--XX\r\nX-Y: z\r\ncontent-disposition: form-data; name=a\r\n\r\nb\r\n--XX--\r\n", "<a|b>" },
    { "the last component of a path", TYPE, "--XX\r\n" CD "f; filename=\"/tmp/x/y.py\"\r\n\r\nb\r\n--XX--\r\n",
      "<f y.py|b>" },
    { "of the other kind of path", TYPE, "--XX\r\n" CD "f; filename=\"C:\\\\x\\\\y.py\"\r\n\r\nb\r\n--XX--\r\n",
      "<f y.py|b>" },
    { "a quote in a filename", TYPE, "--XX\r\n" CD "f; filename=\"a\\\"b\"\r\n\r\nb\r\n--XX--\r\n", "<f a\"b|b>" },
    { "a semicolon in a filename", TYPE, "--XX\r\n" CD "f; filename=\"a;name=x\"\r\n\r\nb\r\n--XX--\r\n",
      "<f a;name=x|b>" },
    { "the extended form of a filename", TYPE, "--XX\r\n" CD "f; filename*=UTF-8''a%20b\r\n\r\nb\r\n--XX--\r\n",
      "<f a b|b>" },
    { "an empty filename", TYPE, "--XX\r\n" CD "f; filename=\"\"\r\n\r\nb\r\n--XX--\r\n", "<f |b>" },
    { "no parts at all", TYPE, "--XX--\r\n", "" },
    { "another content type", "application/json", "{}", NULL },
    { "no boundary", "multipart/form-data", "", NULL },
    { "an empty boundary", "multipart/form-data; boundary=", "", NULL },
    { "a part without a name", TYPE, "--XX\r\nX: y\r\n\r\nb\r\n--XX--\r\n", NULL },
    { "a part without headers", TYPE, "--XX\r\n\r\nb\r\n--XX--\r\n", NULL },
    { "a boundary and a word", TYPE, "--XX\r\n" CD "a\r\n\r\nb\r\n--XXY\r\n", NULL },
    { "one dash at the end", TYPE, "--XX\r\n" CD "a\r\n\r\nb\r\n--XX-x\r\n", NULL },
    { "a filename of dots", TYPE, "--XX\r\n" CD "f; filename=\"a/..\"\r\n\r\nb\r\n--XX--\r\n", NULL },
    { "an empty body", TYPE, "", NULL },
    { "no closing boundary", TYPE, "--XX\r\n" CD "a\r\n\r\nb\r\n--XX\r\n", NULL },
};

static void test_rows(void **state)
{
    unsigned failed = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        size_t len = strlen(rows[i].body);

        for (size_t cut = 0; cut <= len; cut++) {
            struct trace trace;
            struct shoal_msg msg = { "" };
            enum shoal_err err = run(rows[i].type, rows[i].body, len, cut, &trace, &msg);
            bool ok = rows[i].want == NULL ? err != SHOAL_OK && msg.text[0] != '\0'
                                           : err == SHOAL_OK && strcmp(trace.text, rows[i].want) == 0;

            if (!ok) {
                print_error("FAIL multipart: %s, cut at %zu: want \"%s\" got %s \"%s\"\n", rows[i].name, cut,
                            rows[i].want == NULL ? "(refused)" : rows[i].want, shoal_err_name(err), trace.text);
                failed++;
            }
        }
    }
    assert_int_equal(failed, 0);
}

/* A body that ends too early is never taken for a whole one. */
static void test_prefixes(void **state)
{
    static const char body[] = "--XX\r\n" CD "\"data\"\r\n\r\n{}\r\n--XX\r\n" CD "f; filename=\"a\"\r\n\r\nb\r\n--XX--";

    (void)state;
    for (size_t len = 0; len < sizeof(body) - 1; len++) {
        struct trace trace;
        struct shoal_msg msg;

        assert_int_not_equal(run(TYPE, body, len, len, &trace, &msg), SHOAL_OK);
    }
}

/* Random content between boundaries comes out as it went in, however it is cut. */
static void test_random(void **state)
{
    struct shoal_rand rand;

    (void)state;
    shoal_rand_init(&rand, 11);
    for (unsigned turn = 0; turn < 3000; turn++) {
        static const char bits[] = "\r\n--XX\r-a";
        char body[512];
        char want[512];
        size_t head = (size_t)snprintf(body, sizeof(body), "--XX\r\n" CD "a\r\n\r\n");
        size_t len = shoal_rand_below(&rand, 40);
        struct trace trace;
        struct shoal_msg msg;

        for (size_t i = 0; i < len; i++)
            body[head + i] = bits[shoal_rand_below(&rand, sizeof(bits) - 1)];
        body[head + len] = '\0';
        if (strstr(body + head, "--XX") != NULL)
            continue;
        (void)snprintf(want, sizeof(want), "<a|%s>", body + head);
        (void)snprintf(body + head + len, sizeof(body) - head - len, "\r\n--XX--\r\n");
        assert_int_equal(run(TYPE, body, strlen(body), shoal_rand_below(&rand, (uint32_t)strlen(body)), &trace, &msg),
                         SHOAL_OK);
        assert_string_equal(trace.text, want);
    }
}

static void test_limits(void **state)
{
    size_t cap = SHOAL_MULTIPART_HEAD_MAX + 200;
    char *body = malloc(cap);
    struct trace trace;
    struct shoal_msg msg;
    size_t len = 0;

    (void)state;
    (void)snprintf(body, cap, "--XX\r\nX: ");
    memset(body + 9, 'a', SHOAL_MULTIPART_HEAD_MAX);
    assert_int_equal(run(TYPE, body, 9 + SHOAL_MULTIPART_HEAD_MAX, 100, &trace, &msg), SHOAL_ERR_TOO_BIG);
    for (unsigned i = 0; i < SHOAL_MULTIPART_PARTS_MAX + 1; i++)
        len += (size_t)snprintf(body + len, cap - len, "--XX\r\n" CD "a\r\n\r\nb\r\n");
    (void)snprintf(body + len, cap - len, "--XX--");
    assert_int_equal(run(TYPE, body, strlen(body), 100, &trace, &msg), SHOAL_ERR_TOO_BIG);
    free(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
