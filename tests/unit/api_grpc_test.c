/* HTTP/2's guard, gRPC's framing, Protocol Buffers, and requests of the Open Inference Protocol as the bodies of their twins. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/http/grpc.h"
#include "api/http/http2_guard.h"
#include "api/rest/oip_proto.h"
#include "api/rest/proto.h"

#include "shoal/banned.h"

/* ---- the guard ---- */

struct guard_row {
    const char *name;
    uint8_t type, flags;
    uint32_t len;
    unsigned count;    /* frames in one moment */
    uint64_t pause_ms; /* between them */
    bool fine;
};

static const struct guard_row guard_rows[] = {
    { "a few pings", 6, 0, 8, 1000, 0, true },
    { "pings without end", 6, 0, 8, 3000, 0, false },
    { "pings now and then", 6, 0, 8, 10000, 10, true },
    { "settings, which cost more", 4, 0, 0, 400, 0, false },
    { "empty content", 0, 0, 0, 3000, 0, false },
    { "content", 0, 0, 10, 100000, 0, true },
    { "an empty last piece", 0, 1, 0, 100000, 0, true },
    { "requests given up", 3, 0, 4, 500, 0, false },
    { "requests given up, one each 10 ms", 3, 0, 4, 5000, 10, true },
    { "requests", 1, 4, 20, 100000, 0, true },
    { "frames that nobody knows", 200, 0, 0, 3000, 0, false },
    { "a head of 32 KiB", 1, 4, SHOAL_HTTP_HEAD_BYTES_MAX, 1, 0, true },
    { "a head above it", 1, 4, SHOAL_HTTP_HEAD_BYTES_MAX + 1, 1, 0, false },
    { "a head and a piece", 1, 0, 10, 1, 0, true },
};

static const char *feed(struct http2_guard *guard, uint8_t type, uint8_t flags, uint32_t len, uint64_t now_ms,
                        size_t piece)
{
    size_t whole = 9 + (size_t)len;
    uint8_t *frame = calloc(1, whole);
    const char *wrong = NULL;

    assert_non_null(frame);
    frame[0] = (uint8_t)(len >> 16);
    frame[1] = (uint8_t)(len >> 8);
    frame[2] = (uint8_t)len;
    frame[3] = type;
    frame[4] = flags;
    for (size_t at = 0; at < whole && wrong == NULL; at += piece)
        wrong = http2_guard_step(guard, frame + at, whole - at < piece ? whole - at : piece, now_ms);
    free(frame);
    return wrong;
}

static void begin(struct http2_guard *guard)
{
    http2_guard_init(guard, 1000);
    assert_null(http2_guard_step(guard, (const uint8_t *)HTTP2_PREFACE, HTTP2_PREFACE_BYTES, 1000));
}

static void test_guard(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(guard_rows) / sizeof(guard_rows[0]); i++) {
        const struct guard_row *row = &guard_rows[i];

        for (size_t piece = 1; piece < 100000; piece += 99998) {
            struct http2_guard guard;
            const char *wrong = NULL;

            begin(&guard);
            for (unsigned n = 0; n < row->count && wrong == NULL; n++)
                wrong = feed(&guard, row->type, row->flags, row->len, 1000 + n * row->pause_ms, piece);
            if ((wrong == NULL) != row->fine)
                fail_msg("%s: %s", row->name, wrong == NULL ? "taken" : wrong);
        }
    }
}

static void test_guard_heads_in_pieces(void **state)
{
    struct http2_guard guard;

    (void)state;
    begin(&guard);
    assert_null(feed(&guard, 1, 0, 16384, 1000, 4096));
    assert_null(feed(&guard, 9, 0, 16000, 1000, 4096));
    assert_null(feed(&guard, 9, 4, 384, 1000, 4096)); /* 32 KiB and its end */
    assert_null(feed(&guard, 1, 0, 16384, 1000, 4096));
    assert_null(feed(&guard, 9, 0, 16384, 1000, 4096));
    assert_non_null(feed(&guard, 9, 4, 1, 1000, 4096));
    begin(&guard);
    assert_null(feed(&guard, 1, 0, 1, 1000, 4096));
    for (unsigned i = 0; i < SHOAL_H2_CONTINUATIONS_MAX; i++)
        assert_null(feed(&guard, 9, 0, 0, 1000, 4096));
    assert_non_null(feed(&guard, 9, 0, 0, 1000, 4096));
}

static void test_guard_pays_for_what_we_sent(void **state)
{
    struct http2_guard guard;

    (void)state;
    begin(&guard);
    for (unsigned i = 0; i < 20000; i++) { /* a reader gives a window back for each frame */
        http2_guard_sent(&guard);
        assert_null(feed(&guard, 8, 0, 4, 1000, 64));
        assert_null(feed(&guard, 8, 0, 4, 1000, 64));
    }
}

/* ---- framing ---- */

static void test_frames(void **state)
{
    static const uint8_t two[] = { 0, 0, 0, 0, 3, 'a', 'b', 'c', 0, 0, 0, 0, 0 };

    (void)state;
    for (size_t piece = 1; piece <= sizeof(two); piece++) {
        struct grpc_frames frames = { .most = 3 };
        unsigned count = 0;
        size_t used;
        struct shoal_msg msg;
        bool whole;

        for (size_t at = 0; at < sizeof(two); at += used) {
            size_t part = sizeof(two) - at < piece ? sizeof(two) - at : piece;

            assert_int_equal(grpc_frames_step(&frames, two + at, part, &used, &whole, &msg), SHOAL_OK);
            if (whole)
                assert_int_equal(frames.message.len, count++ == 0 ? 3 : 0);
        }
        assert_int_equal(count, 2);
        assert_true(grpc_frames_is_between(&frames));
        shoal_buf_deinit(&frames.message);
    }
}

static void test_frames_refused(void **state)
{
    static const uint8_t packed[] = { 1, 0, 0, 0, 0 }, large[] = { 0, 0, 0, 0, 4 };
    struct grpc_frames frames = { .most = 3 };
    struct shoal_msg msg;
    size_t used;
    bool whole;

    (void)state;
    assert_int_equal(grpc_frames_step(&frames, packed, 5, &used, &whole, &msg), SHOAL_ERR_UNSUPPORTED);
    frames = (struct grpc_frames){ .most = 3 };
    assert_int_equal(grpc_frames_step(&frames, large, 5, &used, &whole, &msg), SHOAL_ERR_TOO_BIG);
}

/* ---- Protocol Buffers ---- */

static void test_proto_round(void **state)
{
    struct shoal_buf buf = { 0 };
    struct proto_writer w = proto_writer_init(&buf);
    struct proto_reader reader;
    struct proto_field field;
    uint8_t long_text[300];
    size_t begun;

    (void)state;
    memset(long_text, 'x', sizeof(long_text));
    proto_uint(&w, 1, UINT64_MAX);
    begun = proto_begin(&w, 2);
    proto_bytes(&w, 3, shoal_view_of(long_text, sizeof(long_text)));
    proto_end(&w, begun);
    proto_double(&w, 0x1fffffff, 0.5);
    assert_false(w.failed);
    reader = proto_reader_init(shoal_buf_view(&buf));
    assert_true(proto_next(&reader, &field) && field.number == 1 && field.value == UINT64_MAX);
    assert_true(proto_next(&reader, &field) && field.number == 2 && field.bytes.len == 303);
    assert_true(proto_next(&reader, &field) && field.number == 0x1fffffff && field.value == 0x3fe0000000000000);
    assert_false(proto_next(&reader, &field));
    assert_false(reader.failed);
    for (size_t len = 1; len < buf.len; len++) { /* each prefix ends at a field, or fails: never beyond its end */
        uint8_t *page = malloc(len);

        assert_non_null(page);
        memcpy(page, buf.bytes, len);
        reader = proto_reader_init(shoal_view_of(page, len));
        while (proto_next(&reader, &field))
            assert_true(field.bytes.len <= len);
        assert_true(reader.failed == (len != 11 && len != 317));
        free(page);
    }
    shoal_buf_deinit(&buf);
}

static void test_proto_refused(void **state)
{
    static const struct {
        const char *name, *bytes;
        size_t len;
    } rows[] = {
        { "field 0", "\x00\x01", 2 },
        { "a group", "\x0b\x0c", 2 },
        { "wire type 7", "\x0f\x01", 2 },
        { "a varint of eleven bytes", "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12 },
        { "a varint above 64 bits", "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 11 },
        { "a length beyond the end",
          "\x0a\x05"
          "ab",
          4 },
        { "a length that wraps", "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11 },
        { "half a fixed32", "\x0d\x01\x02", 3 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct proto_reader reader = proto_reader_init(shoal_view_of(rows[i].bytes, rows[i].len));
        struct proto_field field;

        if (proto_next(&reader, &field) || !reader.failed)
            fail_msg("taken: %s", rows[i].name);
    }
}

/* ---- the Open Inference Protocol ---- */

static void test_request_becomes_its_twin(void **state)
{
    static const char want[] = "{\"id\":\"7\",\"parameters\":{\"binary_data_output\":true},\"inputs\":[{\"name\":\"x\","
                               "\"datatype\":\"INT8\",\"shape\":[2],\"parameters\":{\"binary_data_size\":2}}]}\xff\x05";
    struct shoal_buf buf = { 0 };
    struct proto_writer w = proto_writer_init(&buf);
    struct oip_request request;
    struct shoal_msg msg;
    size_t input, packed, contents;

    (void)state;
    proto_text(&w, 1, "net");
    proto_text(&w, 3, "7");
    input = proto_begin(&w, 5);
    proto_text(&w, 1, "x");
    proto_text(&w, 2, "INT8");
    proto_uint(&w, 3, 2);
    contents = proto_begin(&w, 5);
    packed = proto_begin(&w, 2);
    proto_put_varint(&w, UINT64_MAX); /* -1 */
    proto_put_varint(&w, 5);
    proto_end(&w, packed);
    proto_end(&w, contents);
    proto_end(&w, input);
    assert_int_equal(oip_request_decode(shoal_buf_view(&buf), &request, &msg), SHOAL_OK);
    assert_string_equal(request.model, "net");
    assert_int_equal(request.body.len, sizeof(want) - 1);
    assert_memory_equal(request.body.bytes, want, sizeof(want) - 1);
    assert_int_equal(request.header_len, sizeof(want) - 3);
    shoal_buf_deinit(&request.body);
    for (size_t len = 0; len < buf.len; len++)
        if (oip_request_decode(shoal_view_of(buf.bytes, len), &request, &msg) == SHOAL_OK)
            shoal_buf_deinit(&request.body);
    shoal_buf_deinit(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guard),
        cmocka_unit_test(test_guard_heads_in_pieces),
        cmocka_unit_test(test_guard_pays_for_what_we_sent),
        cmocka_unit_test(test_frames),
        cmocka_unit_test(test_frames_refused),
        cmocka_unit_test(test_proto_round),
        cmocka_unit_test(test_proto_refused),
        cmocka_unit_test(test_request_becomes_its_twin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
