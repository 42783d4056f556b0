/* See http2.h for the picture and the rules. */
#include "http2.h"

#include <inttypes.h>
#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http2_guard.h"
#include "http_server.h"

#include "shoal/banned.h"

#define BODY_MS 30000u  /* without a byte of the body */
#define TALK_MS 600000u /* the same, of a call whose client speaks when it likes */
/* S5: without a byte, and in all. */
#define LINGER_QUIET_MS 2000u
#define LINGER_MS 60000u
/* Header lines that an answer has beside its body, at most. */
#define LINES_MAX 40

struct http2_stream {
    struct http2 *h2;
    struct http2_stream *next;
    struct http2_stream *prev;
    struct http_request *request; /* NULL: answered, or never taken */
    int32_t id;
    int refused;     /* the status that its head earned; 0: none */
    const char *why; /* then */
    struct shoal_view target, authority;
    struct shoal_buf in; /* of the body, that its route does not take yet */
    struct shoal_buf out;
    size_t out_at;
    struct shoal_buf trailers;   /* lines, after the content */
    struct http_request *waiter; /* held: it writes on when `out` is empty */
    http_request_fn *next_write;
    uint64_t progress_ms;
    uint64_t lingers_ms; /* S5: since then; 0: it does not */
    uint64_t lingered;   /* bytes thrown away */
    bool body_ended;
    bool completed; /* the route heard of it */
    bool pumping;
    bool out_ended;
};

struct http2 {
    nghttp2_session *session;
    struct http_conn *conn;
    struct shoal_http *http;
    struct http2_stream *streams;
    struct http2_guard guard;
    size_t held;
    size_t head_bytes; /* of the head under way, as it is without compression */
    uint64_t turn_ms;
    unsigned turn_requests;
    unsigned busy; /* within calls of routes: what they answer is sent after them */
    bool detached;
    bool calmed; /* too much of something: it ends */
};

/* False: the connection is to be closed. */
static bool held_add(struct http2 *h2, size_t len)
{
    if (!http_conn_hold(h2->conn, len))
        return false;
    h2->held += len;
    return true;
}

static void held_remove(struct http2 *h2, size_t len)
{
    SHOAL_ASSERT(h2->held >= len); /* S3 */
    h2->held -= len;
    http_conn_let_go(h2->conn, len);
}

static void calm(struct http2 *h2)
{
    if (!h2->calmed)
        h2->http->stats.h2_calmed++;
    h2->calmed = true;
    (void)nghttp2_session_terminate_session(h2->session, NGHTTP2_ENHANCE_YOUR_CALM);
}

/* Something is to be sent. */
static void wake(struct http2 *h2)
{
    if (h2->busy == 0 && !h2->detached)
        http_conn_process(h2->conn);
}

/* ---- streams ---- */

/* S1. */
static void stream_let_go(struct http2_stream *stream)
{
    struct http_request *request = stream->request;
    struct http_request *waiter = stream->waiter;

    stream->request = NULL;
    stream->waiter = NULL;
    if (request != NULL) {
        http_request_part(request);
        if (request->gone != NULL)
            request->gone(request);
        http_request_release(request);
    }
    if (waiter != NULL) {
        http_call_later(waiter, stream->next_write);
        http_request_release(waiter);
    }
}

static void stream_free(struct http2_stream *stream)
{
    struct http2 *h2 = stream->h2;

    held_remove(h2, stream->in.len + stream->out.len - stream->out_at);
    shoal_buf_deinit(&stream->in);
    shoal_buf_deinit(&stream->out);
    shoal_buf_deinit(&stream->trailers);
    if (stream->prev != NULL)
        stream->prev->next = stream->next;
    else
        h2->streams = stream->next;
    if (stream->next != NULL)
        stream->next->prev = stream->prev;
    free(stream);
}

/* NULL: it is refused, to be sent again; nothing of it is kept. */
static struct http2_stream *stream_begin(struct http2 *h2, int32_t id)
{
    struct http2_stream *stream;

    if (h2->held >= SHOAL_H2_OUT_BYTES_MAX || h2->http->requests_open >= SHOAL_HTTP_REQUESTS_MAX ||
        http_conn_client(h2->conn)->requests >= SHOAL_HTTP_SHARE_REQUESTS_MAX || h2->http->stopping)
        return NULL;
    stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return NULL;
    stream->request = http_request_create(h2->conn, h2->http);
    if (stream->request == NULL) {
        free(stream);
        return NULL;
    }
    stream->request->stream = stream;
    stream->request->head.keep_alive = true;
    stream->request->paused = 1; /* until it is known who asks */
    stream->h2 = h2;
    stream->id = id;
    stream->progress_ms = http_now_ms(h2->http);
    stream->next = h2->streams;
    if (stream->next != NULL)
        stream->next->prev = stream;
    h2->streams = stream;
    return stream;
}

/* The body's bytes go to the route, unless it has paused; then its end. */
static void stream_pump(struct http2_stream *stream)
{
    struct http2 *h2 = stream->h2;

    if (stream->pumping)
        return;
    stream->pumping = true;
    while (stream->request != NULL && stream->request->paused == 0 && stream->in.len > 0) {
        struct shoal_buf bytes = stream->in;

        stream->in = (struct shoal_buf){ 0 };
        held_remove(h2, bytes.len);
        (void)nghttp2_session_consume(h2->session, stream->id, bytes.len);
        http_request_data(stream->request, shoal_buf_view(&bytes));
        shoal_buf_deinit(&bytes);
    }
    if (stream->request != NULL && stream->request->paused == 0 && stream->body_ended && !stream->completed) {
        stream->completed = true;
        http_request_complete(stream->request);
    }
    stream->pumping = false;
}

/* ---- heads ---- */

static void head_refuse(struct http2_stream *stream, int status, const char *why)
{
    if (stream->refused == 0) {
        stream->refused = status;
        stream->why = why;
    }
}

static enum http1_method method_of(struct shoal_view text)
{
    static const char *const names[] = {
        [HTTP1_GET] = "GET",       [HTTP1_POST] = "POST", [HTTP1_PUT] = "PUT",
        [HTTP1_DELETE] = "DELETE", [HTTP1_HEAD] = "HEAD", [HTTP1_OPTIONS] = "OPTIONS"
    };

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (shoal_view_equal(text, shoal_view_text(names[i])))
            return (enum http1_method)i;
    return HTTP1_OTHER;
}

static void head_add(struct http2_stream *stream, struct shoal_view name, struct shoal_view value)
{
    struct http1_head *head = &stream->request->head;

    if (head->header_count == SHOAL_HTTP_HEADERS_MAX)
        head_refuse(stream, 431, "too many headers; 100 are allowed");
    else
        head->headers[head->header_count++] = (struct http1_header){ .name = name, .value = value };
}

/* A copy in the request's arena. */
static struct shoal_view keep(struct http2_stream *stream, const uint8_t *bytes, size_t len)
{
    char *kept = arena_copy(&stream->request->arena, shoal_view_of(bytes, len));

    if (kept == NULL) {
        head_refuse(stream, 503, "out of memory; try again later");
        return (struct shoal_view){ 0 };
    }
    return shoal_view_of(kept, len);
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_len,
                     const uint8_t *value, size_t value_len, uint8_t flags, void *arg)
{
    struct http2 *h2 = arg;
    struct http2_stream *stream = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    struct shoal_view key, text;

    (void)flags;
    h2->head_bytes += name_len + value_len + 4;
    if (h2->detached || h2->head_bytes > SHOAL_H2_HEAD_READ_MAX)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    if (stream == NULL || stream->request == NULL || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    if (h2->head_bytes > SHOAL_HTTP_HEAD_BYTES_MAX)
        head_refuse(stream, 431, "the request head is too large; 32 KiB are allowed");
    if (stream->refused != 0)
        return 0;
    key = keep(stream, name, name_len);
    text = keep(stream, value, value_len);
    if (stream->refused != 0)
        return 0;
    if (shoal_view_equal(key, shoal_view_text(":method")))
        stream->request->head.method = method_of(text);
    else if (shoal_view_equal(key, shoal_view_text(":path")))
        stream->target = text;
    else if (shoal_view_equal(key, shoal_view_text(":authority")))
        stream->authority = text;
    else if (key.bytes[0] != ':')
        head_add(stream, key, text);
    return 0;
}

static int on_invalid_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_len,
                             const uint8_t *value, size_t value_len, uint8_t flags, void *arg)
{
    struct http2 *h2 = arg;
    struct http2_stream *stream = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);

    (void)name, (void)value, (void)flags;
    h2->head_bytes += name_len + value_len + 4;
    if (h2->detached || h2->head_bytes > SHOAL_H2_HEAD_READ_MAX)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    if (stream != NULL && stream->request != NULL)
        head_refuse(stream, 400, "a header with a character that is not allowed in it");
    return 0;
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct http2 *h2 = arg;
    struct http2_stream *stream;

    if (h2->detached)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    h2->head_bytes = 0;
    if (frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    stream = stream_begin(h2, frame->hd.stream_id);
    if (stream != NULL) {
        (void)nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, stream);
        return 0;
    }
    h2->http->stats.refused_busy++;
    (void)nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_REFUSED_STREAM);
    return 0;
}

/* The head as HTTP/1's checks want it. False: refused, and answered. */
static bool head_is_good(struct http2_stream *stream)
{
    struct http1_head *head = &stream->request->head;
    struct shoal_view host, length;
    struct shoal_msg msg;
    int status = stream->refused;

    if (status == 0 && stream->authority.len > 0) {
        if (!http1_header_find(head, "host", &host))
            head_add(stream, shoal_view_text("host"), stream->authority);
        else if (!shoal_view_equal(host, stream->authority))
            head_refuse(stream, 400, "a Host header that is not its :authority");
        status = stream->refused;
    }
    (void)shoal_fail(&msg, SHOAL_ERR_MALFORMED, "%s", stream->why == NULL ? "" : stream->why);
    if (status == 0 && http1_head_finish(head, stream->target, &status, &msg) == SHOAL_OK) {
        if (http1_header_find(head, "content-length", &length)) /* digits, by the library's word */
            head->content_length = strtoull((const char *)length.bytes, NULL, 10);
        return true;
    }
    stream->h2->http->stats.refused_malformed++;
    http_request_bad(stream->request, status, &msg);
    return false;
}

/* Requests of strangers that wait for their bodies: a connection has few of them. */
static bool is_stranger(const struct http2_stream *stream)
{
    const struct http_request *request = stream->request;

    return request != NULL && request->route != NULL && request->route->open && !stream->body_ended;
}

static void head_ended(struct http2 *h2, struct http2_stream *stream)
{
    unsigned strangers = 0;
    struct shoal_msg msg;

    h2->turn_requests++;
    h2->http->stats.requests++;
    if (!head_is_good(stream))
        return;
    http_request_begin(stream->request);
    for (const struct http2_stream *s = h2->streams; s != NULL; s = s->next)
        strangers += is_stranger(s);
    if (!is_stranger(stream) || strangers <= SHOAL_H2_STRANGERS_MAX || h2->detached)
        return;
    h2->http->stats.refused_busy++;
    (void)shoal_fail(&msg, SHOAL_ERR_FULL, "too many bodies at once; send them one after the other");
    http_request_bad(stream->request, 503, &msg);
}

/* ---- what comes ---- */

static int on_frame_recv(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct http2 *h2 = arg;
    struct http2_stream *stream;
    bool end = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;

    if (h2->detached)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA)
        return 0;
    stream = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (stream == NULL)
        return 0;
    stream->body_ended = stream->body_ended || end;
    if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST && stream->request != NULL)
        head_ended(h2, stream);
    if (end)
        stream_pump(stream);
    return h2->detached ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *bytes, size_t len, void *arg)
{
    struct http2 *h2 = arg;
    struct http2_stream *stream = nghttp2_session_get_stream_user_data(session, id);

    (void)flags;
    if (h2->detached)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    if (stream == NULL) { /* of one that was refused */
        (void)nghttp2_session_consume(session, id, len);
        return 0;
    }
    stream->progress_ms = http_now_ms(h2->http);
    if (stream->request == NULL) { /* S5 */
        (void)nghttp2_session_consume(session, id, len);
        stream->lingered += len;
        if (stream->lingered > SHOAL_UPLOAD_BYTES_MAX)
            (void)nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, id, NGHTTP2_NO_ERROR);
        return 0;
    }
    if (stream->request->paused == 0 && stream->in.len == 0 && !stream->pumping) {
        (void)nghttp2_session_consume(session, id, len);
        stream->pumping = true;
        http_request_data(stream->request, shoal_view_of(bytes, len));
        stream->pumping = false;
    } else if (!held_add(h2, len)) { /* S2 */
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    } else if (shoal_buf_append(&stream->in, bytes, len) != SHOAL_OK) {
        held_remove(h2, len);
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
    return h2->detached ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t code, void *arg)
{
    struct http2_stream *stream = nghttp2_session_get_stream_user_data(session, id);

    (void)code;
    (void)arg;
    if (stream == NULL)
        return 0;
    (void)nghttp2_session_set_stream_user_data(session, id, NULL);
    if (stream->in.len > 0) /* of the connection's window */
        (void)nghttp2_session_consume_connection(session, stream->in.len);
    stream_let_go(stream);
    stream_free(stream);
    return 0;
}

/* ---- what goes ---- */

static nghttp2_nv pair(const char *name, size_t name_len, const char *value, size_t value_len)
{
    union {
        const char *given;
        uint8_t *wanted; /* the library copies */
    } n = { name }, v = { value };

    return (nghttp2_nv){ n.wanted, v.wanted, name_len, value_len, NGHTTP2_NV_FLAG_NONE };
}

/* The lines "Name: value\r\n" as pairs; names become lower case where they stand. */
static size_t pairs_of(struct shoal_buf *lines, nghttp2_nv *nv, size_t count)
{
    char *at = (char *)lines->bytes, *end;

    if (lines->len == 0)
        return count;
    end = at + lines->len;
    while (at < end && count < LINES_MAX) {
        char *colon = memchr(at, ':', (size_t)(end - at));
        char *stop = memchr(at, '\r', (size_t)(end - at));

        SHOAL_ASSERT(colon != NULL && stop != NULL && colon < stop);
        for (char *c = at; c < colon; c++)
            *c = *c >= 'A' && *c <= 'Z' ? (char)(*c + 32) : *c;
        nv[count++] = pair(at, (size_t)(colon - at), colon + 2, (size_t)(stop - colon - 2));
        at = stop + 2;
    }
    return count;
}

static void out_taken(struct http2_stream *stream)
{
    struct http_request *waiter = stream->waiter;

    shoal_buf_deinit(&stream->out);
    stream->out_at = 0;
    stream->waiter = NULL;
    if (waiter != NULL) {
        http_call_later(waiter, stream->next_write);
        http_request_release(waiter);
    }
}

static ssize_t read_out(nghttp2_session *session, int32_t id, uint8_t *bytes, size_t cap, uint32_t *flags,
                        nghttp2_data_source *source, void *arg)
{
    struct http2 *h2 = arg;
    struct http2_stream *stream = source->ptr;
    size_t left = stream->out.len - stream->out_at;
    size_t take = left < cap ? left : cap;
    nghttp2_nv nv[LINES_MAX];
    size_t count;

    if (left == 0 && !stream->out_ended)
        return NGHTTP2_ERR_DEFERRED;
    if (take > 0)
        memcpy(bytes, stream->out.bytes + stream->out_at, take);
    stream->out_at += take;
    stream->progress_ms = http_now_ms(h2->http);
    held_remove(h2, take);
    http2_guard_sent(&h2->guard);
    if (stream->out_at < stream->out.len)
        return (ssize_t)take;
    out_taken(stream);
    if (!stream->out_ended)
        return (ssize_t)take;
    *flags |= NGHTTP2_DATA_FLAG_EOF;
    count = pairs_of(&stream->trailers, nv, 0);
    if (count > 0) {
        *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
        if (nghttp2_submit_trailer(session, id, nv, count) != 0)
            return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    return (ssize_t)take;
}

/* S5. The answer may be out before the request is in. */
static int on_frame_send(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct http2 *h2 = arg;
    struct http2_stream *stream;

    if ((frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA) ||
        (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0)
        return 0;
    stream = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (stream != NULL && !stream->body_ended)
        stream->lingers_ms = stream->progress_ms = http_now_ms(h2->http);
    return 0;
}

enum shoal_err http2_answer(struct http_request *request, int status, const char *type, uint64_t length, bool end)
{
    struct http2_stream *stream = request->stream;
    nghttp2_data_provider from = { .source.ptr = stream, .read_callback = read_out };
    char code[8], size[24];
    nghttp2_nv nv[LINES_MAX];
    size_t count = 0;

    (void)snprintf(code, sizeof(code), "%d", status);
    (void)snprintf(size, sizeof(size), "%" PRIu64, length);
    nv[count++] = pair(":status", 7, code, strlen(code));
    if (type != NULL)
        nv[count++] = pair("content-type", 12, type, strlen(type));
    if (length != HTTP_LENGTH_UNKNOWN && status != 204)
        nv[count++] = pair("content-length", 14, size, strlen(size));
    nv[count++] = pair("cache-control", 13, "no-store", 8);
    nv[count++] = pair("x-content-type-options", 22, "nosniff", 7);
    count = pairs_of(&request->extra, nv, count);
    return nghttp2_submit_response(stream->h2->session, stream->id, nv, count, end ? NULL : &from) == 0
               ? SHOAL_OK
               : SHOAL_ERR_FULL;
}

enum shoal_err http2_write(struct http_request *request, struct shoal_view bytes,
                           void (*next)(struct http_request *request))
{
    struct http2_stream *stream = request->stream;
    struct http2 *h2 = stream->h2;

    if (!held_add(h2, bytes.len)) {
        http_conn_close(h2->conn);
        return SHOAL_ERR_FULL;
    }
    if (shoal_buf_append(&stream->out, bytes.bytes, bytes.len) != SHOAL_OK) {
        held_remove(h2, bytes.len);
        return SHOAL_ERR_FULL;
    }
    if (next != NULL) {
        SHOAL_ASSERT(stream->waiter == NULL);
        http_request_hold(request);
        stream->waiter = request;
        stream->next_write = next;
    }
    (void)nghttp2_session_resume_data(h2->session, stream->id);
    wake(h2);
    return SHOAL_OK;
}

void http2_answer_ended(struct http_request *request)
{
    struct http2_stream *stream = request->stream;
    struct http2 *h2 = stream->h2;

    SHOAL_ASSERT(stream->request == request);
    stream->out_ended = true;
    stream->trailers = request->trailers;
    request->trailers = (struct shoal_buf){ 0 };
    stream->request = NULL;
    http_request_part(request);
    if (stream->in.len > 0) { /* nobody reads it any more */
        (void)nghttp2_session_consume(h2->session, stream->id, stream->in.len);
        held_remove(h2, stream->in.len);
        shoal_buf_deinit(&stream->in);
    }
    (void)nghttp2_session_resume_data(h2->session, stream->id);
    http_request_release(request);
    wake(h2);
}

void http2_abort(struct http_request *request)
{
    struct http2_stream *stream = request->stream;
    struct http2 *h2 = stream->h2;

    (void)nghttp2_submit_rst_stream(h2->session, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_INTERNAL_ERROR);
    wake(h2);
}

void http2_continue(struct http_request *request)
{
    const nghttp2_nv nv = pair(":status", 7, "100", 3);
    struct http2_stream *stream = request->stream;

    (void)nghttp2_submit_headers(stream->h2->session, NGHTTP2_FLAG_NONE, stream->id, NULL, &nv, 1, NULL);
}

void http2_resume(struct http_request *request)
{
    struct http2_stream *stream = request->stream;
    struct http2 *h2 = stream->h2;

    h2->busy++;
    stream_pump(stream);
    h2->busy--;
    wake(h2);
}

/* ---- the connection ---- */

static nghttp2_session *session_create(struct http2 *h2)
{
    nghttp2_session_callbacks *calls = NULL;
    nghttp2_option *option = NULL;
    nghttp2_session *session = NULL;

    if (nghttp2_session_callbacks_new(&calls) == 0 && nghttp2_option_new(&option) == 0) {
        nghttp2_option_set_no_auto_window_update(option, 1);
        nghttp2_option_set_no_closed_streams(option, 1);
        nghttp2_session_callbacks_set_on_begin_headers_callback(calls, on_begin_headers);
        nghttp2_session_callbacks_set_on_header_callback(calls, on_header);
        nghttp2_session_callbacks_set_on_invalid_header_callback(calls, on_invalid_header);
        nghttp2_session_callbacks_set_on_frame_recv_callback(calls, on_frame_recv);
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(calls, on_data);
        nghttp2_session_callbacks_set_on_stream_close_callback(calls, on_stream_close);
        nghttp2_session_callbacks_set_on_frame_send_callback(calls, on_frame_send);
        if (nghttp2_session_server_new2(&session, calls, h2, option) != 0)
            session = NULL;
    }
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(calls);
    return session;
}

struct http2 *http2_create(struct http_conn *conn, struct shoal_http *http)
{
    static const nghttp2_settings_entry settings[] = {
        { NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, SHOAL_H2_STREAMS_MAX },
        { NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, SHOAL_H2_STREAM_WINDOW_BYTES },
        { NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, SHOAL_HTTP_HEAD_BYTES_MAX },
    };
    struct http2 *h2 = calloc(1, sizeof(*h2));

    if (h2 == NULL)
        return NULL;
    h2->conn = conn;
    h2->http = http;
    http2_guard_init(&h2->guard, http_now_ms(http));
    h2->session = session_create(h2);
    if (h2->session == NULL ||
        nghttp2_submit_settings(h2->session, NGHTTP2_FLAG_NONE, settings, sizeof(settings) / sizeof(settings[0])) !=
            0 ||
        nghttp2_session_set_local_window_size(h2->session, NGHTTP2_FLAG_NONE, 0, SHOAL_H2_WINDOW_BYTES) != 0) {
        http2_destroy(h2);
        return NULL;
    }
    http->stats.h2_accepted++;
    return h2;
}

void http2_detach(struct http2 *h2)
{
    h2->detached = true;
    for (struct http2_stream *stream = h2->streams; stream != NULL; stream = stream->next)
        stream_let_go(stream);
}

void http2_destroy(struct http2 *h2)
{
    if (h2 == NULL)
        return;
    nghttp2_session_del(h2->session);
    while (h2->streams != NULL)
        stream_free(h2->streams);
    SHOAL_ASSERT(h2->held == 0);
    free(h2);
}

enum shoal_err http2_feed(struct http2 *h2, const uint8_t *bytes, size_t len)
{
    ssize_t took;

    if (http2_guard_step(&h2->guard, bytes, len, http_now_ms(h2->http)) != NULL) {
        calm(h2);
        return SHOAL_ERR_MALFORMED;
    }
    took = nghttp2_session_mem_recv(h2->session, bytes, len);
    if (h2->detached)
        return SHOAL_ERR_MALFORMED;
    if (h2->head_bytes > SHOAL_H2_HEAD_READ_MAX)
        calm(h2);
    else if (took == NGHTTP2_ERR_BAD_CLIENT_MAGIC)
        h2->http->stats.refused_malformed++;
    return took == (ssize_t)len ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

enum shoal_err http2_take(struct http2 *h2, struct shoal_buf *out, size_t most)
{
    while (out->len < most) {
        const uint8_t *bytes;
        ssize_t len = nghttp2_session_mem_send(h2->session, &bytes);

        if (len < 0)
            return SHOAL_ERR_FULL;
        if (len == 0)
            return SHOAL_OK;
        if (shoal_buf_append(out, bytes, (size_t)len) != SHOAL_OK)
            return SHOAL_ERR_FULL;
    }
    return SHOAL_OK;
}

bool http2_is_over(const struct http2 *h2)
{
    return nghttp2_session_want_read(h2->session) == 0 && nghttp2_session_want_write(h2->session) == 0;
}

void http2_goaway(struct http2 *h2)
{
    (void)nghttp2_submit_goaway(h2->session, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(h2->session),
                                NGHTTP2_NO_ERROR, NULL, 0);
}

bool http2_turn_is_full(struct http2 *h2)
{
    if (h2->turn_ms != http_now_ms(h2->http))
        http2_turn_begin(h2);
    return h2->turn_requests >= SHOAL_H2_TURN_REQUESTS_MAX;
}

void http2_turn_begin(struct http2 *h2)
{
    h2->turn_ms = http_now_ms(h2->http);
    h2->turn_requests = 0;
}

bool http2_is_idle(const struct http2 *h2) { return h2->streams == NULL; }

bool http2_is_waiting(const struct http2 *h2)
{
    for (const struct http2_stream *stream = h2->streams; stream != NULL; stream = stream->next)
        if (stream->request != NULL && !is_stranger(stream))
            return false;
    return true;
}

static bool body_is_slow(const struct http2_stream *stream, uint64_t now_ms)
{
    struct http_request *request = stream->request;

    if (request->route == NULL) /* its head is still to come, in CONTINUATION frames */
        return false;
    return http_body_is_slow(request, now_ms) ||
           (request->paused == 0 && now_ms - stream->progress_ms > (request->route->both_ways ? TALK_MS : BODY_MS));
}

void http2_tick(struct http2 *h2, uint64_t now_ms, bool full)
{
    struct http2_stream *next;
    struct shoal_msg msg;

    h2->busy++;
    for (struct http2_stream *stream = h2->streams; stream != NULL && !h2->detached; stream = next) {
        struct http_request *request = stream->request;
        uint64_t quiet;

        if (full && stream->out.len > 0)
            stream->progress_ms = now_ms;
        quiet = now_ms - stream->progress_ms;
        next = stream->next;
        if (stream->out.len > 0 && quiet > h2->http->options.write_ms) {
            h2->http->stats.closed_slow++;
            (void)nghttp2_submit_rst_stream(h2->session, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_CANCEL);
        } else if (stream->lingers_ms > 0 && (quiet > LINGER_QUIET_MS || now_ms - stream->lingers_ms > LINGER_MS)) {
            (void)nghttp2_submit_rst_stream(h2->session, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_NO_ERROR);
        } else if (request != NULL && !stream->body_ended && !request->responded && body_is_slow(stream, now_ms)) {
            h2->http->stats.closed_slow++;
            (void)shoal_fail(&msg, SHOAL_ERR_TIMEOUT, "the request body came too slowly");
            http_request_bad(request, 408, &msg);
        }
    }
    h2->busy--;
    wake(h2);
}
