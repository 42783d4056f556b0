/* A connection: bytes in, heads and bodies out; answers in, bytes out.
 *
 *        read            parsed              body ends           answer is out
 *   HEAD -----> (find) ---------> BODY ----------------> WAIT -----------------> HEAD
 *                                   \___ answered before the body's end ___> LINGER (discard, so that the
 *                                                                            client can still read the answer)
 * C1. The socket is read only while somebody can use the bytes: not when paused, waiting, or `in` is full.
 * C2. A connection that makes no progress in the time of its phase is closed (http_conn_tick).
 * C3. Beyond the bound for one address, its connection goes that has waited longest for its client; beyond the bound for
 *     all, one of the address that has the most connections of those that wait. Where none waits, the newcomer is refused.
 *     So silent clients take no place from those that speak, and strangers none from an address that has fewer.
 * C4. A client that has not shown who it is holds at most a head, a record and a small body: `in` grows with need.
 * C5. Hellos are answered at a bounded rate, the oldest connection's first: until its turn comes a connection is not read.
 * C6. A connection that speaks HTTP/2 stays in HEAD; http2.h knows its streams. It begins a bounded number of requests in a turn.
 * C7. What is held for clients that do not take it is bounded for all together: beyond it the connection goes that holds most, of the
 *     address for which most is held. */
#include "http_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <uv.h>

#include "http2_guard.h"

#include "shoal/banned.h"

#define TLS_HANDSHAKE 0x16 /* the first byte of a hello */
#define IN_CAP 65536u
#define IN_STEP 4096u
#define H2_STEP 1024u  /* of what is read: frames between two looks at the turn */
#define H2_READ 16384u /* a record of TLS, a frame */
/* Bytes of answers that a client has not taken, at most, before its next request is looked at. */
#define WRITE_HIGH ((size_t)64 * SHOAL_KIB)
#define HEAD_MS 20000u     /* from the first byte, or the accept, to the whole head */
#define IDLE_MS 75000u     /* between requests */
#define BODY_MS 30000u     /* without a byte of the body */
#define LINGER_MS 60000u
_Static_assert(SHOAL_HTTP_HEAD_BYTES_MAX < IN_CAP, "a head fits the input buffer");

enum conn_phase { CONN_HEAD, CONN_BODY, CONN_WAIT, CONN_LINGER };

struct http_conn {
    uv_tcp_t tcp;
    uv_shutdown_t shutdown;
    struct shoal_http *http;
    struct http_conn *next;
    struct http_conn *prev;
    struct http_client *client; /* its address's row; NULL until it is in the table */
    struct tls_conn *tls;
    struct http2 *h2; /* NULL: it speaks HTTP/1 */
    struct http_request *request;
    struct http1_body body;
    uint8_t *in;
    size_t in_cap;
    size_t in_len;
    size_t head_seen; /* of `in`, searched for the head's end */
    size_t write_pending;
    size_t held; /* C7: `write_pending`, and what its streams of HTTP/2 hold */
    uint64_t given; /* bytes to send, since it began */
    uint64_t taken; /* of them, by the client's side */
    uint64_t phase_ms;    /* when the phase began */
    uint64_t progress_ms; /* when bytes last came, or were last taken */
    uint64_t lingered;
    enum conn_phase phase;
    bool first_byte_seen;
    bool served; /* has had a request: the next head may take its time */
    bool reading;
    bool processing;
    bool waits;     /* C5 */
    bool yields;    /* C6 */
    bool h2_failed; /* nothing of it is read any more */
    bool closing;
    bool finish; /* close when all is written */
    bool shut;
};

struct conn_write {
    uv_write_t req;
    struct http_conn *conn;
    struct http_request *request; /* held; may be NULL */
    http_request_fn *next;
    struct shoal_buf bytes;
};

struct http_conn *http_conn_next(struct http_conn *conn) { return conn->next; }
const struct http_client *http_conn_client(const struct http_conn *conn) { return conn->client; }
const uint8_t *http_conn_address(const struct http_conn *conn) { return conn->client->key; }

static void set_phase(struct http_conn *conn, enum conn_phase phase)
{
    conn->phase = phase;
    conn->phase_ms = uv_now(conn->http->loop);
    conn->progress_ms = conn->phase_ms;
}

static void on_closed(uv_handle_t *handle)
{
    struct http_conn *conn = handle->data;
    struct shoal_http *http = conn->http;

    SHOAL_ASSERT(conn->request == NULL);
    tls_conn_destroy(conn->tls);
    http2_destroy(conn->h2);
    SHOAL_ASSERT(conn->held == 0);
    free(conn->in);
    free(conn);
    http->stats.connections_open--;
    http_handle_closed(http);
}

void http_conn_close(struct http_conn *conn)
{
    struct http_request *request = conn->request;

    if (conn->closing)
        return;
    conn->closing = true;
    if (conn->prev != NULL)
        conn->prev->next = conn->next;
    else
        conn->http->conns = conn->next;
    if (conn->next != NULL)
        conn->next->prev = conn->prev;
    conn->request = NULL;
    conn->http->held -= conn->held; /* it is freed in this turn */
    if (conn->client != NULL) {
        conn->client->held -= conn->held;
        http_client_leave(&conn->http->clients, conn->client);
    }
    conn->client = NULL;
    uv_close((uv_handle_t *)&conn->tcp, on_closed);
    if (conn->h2 != NULL)
        http2_detach(conn->h2);
    if (request != NULL) {
        http_request_part(request);
        if (request->gone != NULL)
            request->gone(request);
        http_request_release(request);
    }
}

/* ---- what is held ---- */

static void count_held(struct http_conn *conn, size_t more, size_t less)
{
    SHOAL_ASSERT(conn->held + more >= less);
    conn->held += more - less;
    if (conn->closing)
        return;
    conn->client->held += more - less;
    conn->http->held += more - less;
}

static bool holds_more(const struct http_conn *conn, const struct http_conn *other)
{
    if (conn->client->held != other->client->held)
        return conn->client->held > other->client->held;
    return conn->held > other->held;
}

/* C7. */
static struct http_conn *heaviest(const struct shoal_http *http)
{
    struct http_conn *most = http->conns;

    for (struct http_conn *conn = http->conns; conn != NULL; conn = conn->next)
        if (holds_more(conn, most))
            most = conn;
    return most;
}

bool http_conn_hold(struct http_conn *conn, size_t len)
{
    struct shoal_http *http = conn->http;

    count_held(conn, len, 0);
    while (!conn->closing && http->held > SHOAL_HTTP_HELD_BYTES_MAX) {
        struct http_conn *most = heaviest(http);

        http->stats.closed_full++;
        http->stats.h2_calmed += most->h2 != NULL;
        if (most == conn) {
            count_held(conn, 0, len);
            return false;
        }
        http_conn_close(most);
    }
    return true;
}

void http_conn_let_go(struct http_conn *conn, size_t len) { count_held(conn, 0, len); }

/* ---- writing ---- */

static void on_shutdown(uv_shutdown_t *req, int status)
{
    (void)req;
    (void)status; /* the peer's end, or the linger limit, closes the connection */
}

/* All is written: say goodbye, and read on for a while, so that the answer is not lost to a reset. */
static void conn_linger(struct http_conn *conn)
{
    if (conn->shut || conn->closing)
        return;
    conn->shut = true;
    set_phase(conn, CONN_LINGER);
    conn->in_len = 0;
    if (uv_shutdown(&conn->shutdown, (uv_stream_t *)&conn->tcp, on_shutdown) != 0)
        http_conn_close(conn);
}

static void on_written(uv_write_t *req, int status)
{
    struct conn_write *write = req->data;
    struct http_conn *conn = write->conn;
    struct http_request *request = write->request;
    http_request_fn *next = write->next;

    conn->write_pending -= write->bytes.len;
    http_conn_let_go(conn, write->bytes.len);
    conn->progress_ms = uv_now(conn->http->loop);
    shoal_buf_deinit(&write->bytes);
    free(write);
    if (status < 0)
        http_conn_close(conn);
    if (!conn->closing && conn->finish && conn->write_pending == 0)
        conn_linger(conn);
    else if (!conn->closing && next == NULL)
        http_conn_process(conn);
    if (next != NULL)
        next(request);
    if (request != NULL)
        http_request_release(request);
}

/* Takes `bytes` on success. */
static enum shoal_err conn_send(struct http_conn *conn, struct shoal_buf *bytes, struct http_request *request,
                                http_request_fn *next)
{
    struct conn_write *write = calloc(1, sizeof(*write));
    uv_buf_t buf;

    if (write == NULL || !http_conn_hold(conn, bytes->len)) {
        free(write);
        return SHOAL_ERR_FULL;
    }
    *write = (struct conn_write){ .conn = conn, .request = request, .next = next, .bytes = *bytes };
    write->req.data = write;
    buf = uv_buf_init((char *)bytes->bytes, (unsigned)bytes->len);
    if (uv_write(&write->req, (uv_stream_t *)&conn->tcp, &buf, 1, on_written) != 0) {
        http_conn_let_go(conn, bytes->len);
        free(write);
        return SHOAL_ERR_UNREACHABLE;
    }
    if (conn->write_pending == 0)
        conn->progress_ms = uv_now(conn->http->loop);
    conn->write_pending += bytes->len;
    conn->given += bytes->len;
    if (request != NULL)
        http_request_hold(request);
    *bytes = (struct shoal_buf){ 0 };
    return SHOAL_OK;
}

static enum shoal_err conn_flush_tls(struct http_conn *conn)
{
    struct shoal_buf out = { 0 };
    enum shoal_err err = tls_conn_take(conn->tls, &out);

    if (err == SHOAL_OK && out.len > 0)
        err = conn_send(conn, &out, NULL, NULL);
    shoal_buf_deinit(&out);
    return err;
}

enum shoal_err http_conn_write(struct http_conn *conn, struct shoal_view head, struct shoal_view body,
                               struct http_request *request, http_request_fn *next)
{
    struct shoal_buf out = { 0 };
    uint8_t joined[16384];
    enum shoal_err err;

    SHOAL_ASSERT(!conn->closing);
    if (conn->tls != NULL && head.len + body.len <= sizeof(joined)) { /* one record */
        memcpy(joined, head.bytes, head.len);
        if (body.len > 0)
            memcpy(joined + head.len, body.bytes, body.len);
        err = tls_conn_write(conn->tls, joined, head.len + body.len, &out);
    } else if (conn->tls != NULL) {
        err = tls_conn_write(conn->tls, head.bytes, head.len, &out);
        if (err == SHOAL_OK)
            err = tls_conn_write(conn->tls, body.bytes, body.len, &out);
    } else {
        err = shoal_buf_append(&out, head.bytes, head.len);
        if (err == SHOAL_OK)
            err = shoal_buf_append(&out, body.bytes, body.len);
    }
    if (err == SHOAL_OK)
        err = conn_send(conn, &out, request, next);
    shoal_buf_deinit(&out);
    return err;
}

/* ---- reading ---- */

/* Room for more bytes in `in`. False: it is full, or there is no memory. */
static bool grow_in(struct http_conn *conn)
{
    size_t cap = conn->in_cap == 0 ? IN_STEP : conn->in_cap * 2;
    uint8_t *grown;

    if (conn->in_len < conn->in_cap)
        return true;
    if (conn->phase == CONN_BODY) /* an upload: in few large pieces */
        cap = IN_CAP;
    else if (conn->h2 != NULL && cap < H2_READ)
        cap = H2_READ;
    if (conn->in_cap == IN_CAP || (grown = realloc(conn->in, cap)) == NULL)
        return false;
    conn->in = grown;
    conn->in_cap = cap;
    return true;
}

static unsigned read_size(const struct http_conn *conn)
{
    if (conn->h2 != NULL)
        return H2_READ;
    return conn->phase == CONN_HEAD ? IN_STEP : sizeof(conn->http->scratch);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct http_conn *conn = handle->data;
    struct shoal_http *http = conn->http;

    (void)suggested;
    if (conn->tls != NULL ||
        conn->phase == CONN_LINGER) /* C4: before a body TLS holds one record, not 64 KiB of them */
        *buf = uv_buf_init((char *)http->scratch, read_size(conn));
    else if (grow_in(conn))
        *buf = uv_buf_init((char *)conn->in + conn->in_len, (unsigned)(conn->in_cap - conn->in_len));
    else
        *buf = uv_buf_init(NULL, 0);
}

/* A client that speaks plain HTTP to the TLS port gets a sentence instead of an alert. */
static bool greet_plain_client(struct http_conn *conn, const uint8_t *bytes)
{
    static const char answer[] = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain;charset=UTF-8\r\n"
                                 "Content-Length: 58\r\nConnection: close\r\n\r\n"
                                 "Error 400: this port speaks TLS; use https:// in the URL.\n";
    struct shoal_buf out = { 0 };

    if ((bytes[0] | 0x20) < 'a' || (bytes[0] | 0x20) > 'z') /* no record of TLS begins with a letter */
        return false;
    if (shoal_buf_append(&out, answer, sizeof(answer) - 1) != SHOAL_OK ||
        conn_send(conn, &out, NULL, NULL) != SHOAL_OK) {
        shoal_buf_deinit(&out);
        http_conn_close(conn);
        return true;
    }
    conn->finish = true;
    return true;
}

static void on_read(uv_stream_t *stream, ssize_t got, const uv_buf_t *buf)
{
    struct http_conn *conn = stream->data;

    if (got == 0)
        return;
    if (conn->phase == CONN_LINGER || conn->finish) {
        if (got > 0)
            conn->lingered += (uint64_t)got;
        if (got < 0 || conn->lingered > SHOAL_UPLOAD_BYTES_MAX)
            http_conn_close(conn);
        else if (conn->phase == CONN_LINGER)
            conn->progress_ms = uv_now(conn->http->loop);
        return;
    }
    if (got < 0) {
        /* A client that has closed its sending side still gets the answers to its whole requests. */
        if (conn->phase == CONN_HEAD && conn->write_pending > 0)
            conn->finish = true;
        else
            http_conn_close(conn);
        return;
    }
    conn->progress_ms = uv_now(conn->http->loop);
    if (conn->tls == NULL) {
        conn->in_len += (size_t)got;
    } else {
        if (!conn->first_byte_seen && greet_plain_client(conn, (const uint8_t *)buf->base))
            return;
        if (tls_conn_feed(conn->tls, buf->base, (size_t)got) != SHOAL_OK) {
            http_conn_close(conn);
            return;
        }
    }
    conn->first_byte_seen = true;
    http_conn_process(conn);
}

/* Whether more input can be used now. */
static bool wants_input(const struct http_conn *conn)
{
    switch (conn->phase) {
    case CONN_HEAD: return conn->in_len < IN_CAP && conn->write_pending < WRITE_HIGH;
    case CONN_BODY: return conn->in_len < IN_CAP && conn->request->paused == 0;
    case CONN_WAIT: return conn->request != NULL && conn->request->gone != NULL && conn->in_len < IN_CAP;
    case CONN_LINGER: return true;
    }
    return false;
}

static void update_reading(struct http_conn *conn)
{
    bool want;

    if (conn->closing)
        return;
    want = conn->finish || (!conn->waits && !conn->yields && wants_input(conn));
    if (want == conn->reading)
        return;
    conn->reading = want;
    if (!want)
        (void)uv_read_stop((uv_stream_t *)&conn->tcp);
    else if (uv_read_start((uv_stream_t *)&conn->tcp, on_alloc, on_read) != 0)
        http_conn_close(conn);
}

/* ---- the state machine ---- */

static void fail_head(struct http_conn *conn, int status, const struct shoal_msg *msg)
{
    struct http_request *request = http_request_create(conn, conn->http);

    conn->http->stats.refused_malformed++;
    if (request == NULL) {
        http_conn_close(conn);
        return;
    }
    conn->request = request;
    conn->in_len = 0;
    set_phase(conn, CONN_WAIT);
    http_request_bad(request, status, msg);
}

static void consume(struct http_conn *conn, size_t len)
{
    conn->in_len -= len;
    if (conn->in_len > 0)
        memmove(conn->in, conn->in + len, conn->in_len);
}

static bool start_request(struct http_conn *conn, size_t head_len)
{
    struct http_request *request = http_request_create(conn, conn->http);
    struct shoal_msg msg;
    uint8_t *bytes;
    int status = 400;

    if (request == NULL) {
        http_conn_close(conn);
        return false;
    }
    bytes = arena_alloc(&request->arena, head_len + 1);
    if (bytes == NULL) {
        http_request_release(request);
        http_conn_close(conn);
        return false;
    }
    memcpy(bytes, conn->in, head_len);
    consume(conn, head_len);
    conn->head_seen = 0;
    conn->request = request;
    conn->served = true;
    conn->http->stats.requests++;
    if (http1_head_parse(bytes, head_len, &request->head, &status, &msg) != SHOAL_OK) {
        conn->http->stats.refused_malformed++;
        set_phase(conn, CONN_WAIT);
        conn->in_len = 0;
        http_request_bad(request, status, &msg);
        return false;
    }
    http1_body_init(&conn->body, &request->head);
    request->paused = 1; /* until it is known who asks */
    set_phase(conn, CONN_BODY);
    http_request_begin(request);
    return true;
}

/* Without TLS the preface of HTTP/2 may come in pieces; its first 18 bytes look like a head. */
static bool is_part_of_preface(const struct http_conn *conn)
{
    return conn->tls == NULL && !conn->served && conn->in_len < HTTP2_PREFACE_BYTES && conn->in_len > 3 &&
           memcmp(conn->in, HTTP2_PREFACE, conn->in_len) == 0;
}

static bool advance_head(struct http_conn *conn)
{
    struct shoal_msg msg;
    size_t skip = 0;
    size_t len;

    if (conn->write_pending >= WRITE_HIGH)
        return false;
    /* Empty lines before a request are old clients' habit (RFC 9112, 2.2). */
    while (conn->in_len - skip >= 2 && conn->in[skip] == '\r' && conn->in[skip + 1] == '\n')
        skip += 2;
    if (skip > 0) {
        consume(conn, skip);
        conn->head_seen = 0;
    }
    if (conn->in_len == 0 || is_part_of_preface(conn))
        return false;
    if (conn->in[0] <= ' ' || conn->in[0] > '~') { /* most likely a TLS hello: it would wait for ours for ever */
        (void)shoal_fail(&msg, SHOAL_ERR_MALFORMED, "not an HTTP request%s",
                         conn->tls == NULL && conn->in[0] == TLS_HANDSHAKE
                             ? "; this port speaks plain HTTP: use http:// in the URL"
                             : ": it begins with a method, GET or POST");
        fail_head(conn, 400, &msg);
        return false;
    }
    if (conn->head_seen == 0)
        conn->phase_ms = uv_now(conn->http->loop);
    len = http1_head_find(conn->in, conn->in_len, conn->head_seen);
    conn->head_seen = conn->in_len;
    if (len > SHOAL_HTTP_HEAD_BYTES_MAX || (len == 0 && conn->in_len > SHOAL_HTTP_HEAD_BYTES_MAX)) {
        (void)shoal_fail(&msg, SHOAL_ERR_TOO_BIG,
                         "the request head is larger than %u bytes; put args into the form field "
                         "\"data\" instead of the URL",
                         SHOAL_HTTP_HEAD_BYTES_MAX);
        fail_head(conn, 431, &msg);
        return false;
    }
    return len > 0 && start_request(conn, len);
}

static bool advance_body(struct http_conn *conn)
{
    struct http_request *request = conn->request;
    struct shoal_view content;
    struct shoal_msg msg;
    size_t used = 0;

    if (request->paused > 0)
        return false;
    if (!conn->body.done) {
        if (conn->in_len == 0)
            return false;
        if (http1_body_step(&conn->body, conn->in, conn->in_len, &used, &content, &msg) != SHOAL_OK) {
            conn->http->stats.refused_malformed++;
            http_request_bad(request, 400, &msg);
            return false;
        }
        if (content.len > 0)
            http_request_data(request, content);
        if (conn->closing)
            return false;
        if (conn->in_len > 0) /* also of a body that was answered before its end: the rest of it is no request */
            consume(conn, used);
        if (conn->request != request || conn->phase != CONN_BODY)
            return conn->phase == CONN_HEAD && !conn->finish;
        if (!conn->body.done || request->paused > 0)
            return true;
    }
    set_phase(conn, CONN_WAIT);
    http_request_complete(request);
    return true;
}

/* ---- HTTP/2 ---- */

/* Frames as they are sent: as they are, or through TLS. Takes them. */
static enum shoal_err seal_frames(struct http_conn *conn, struct shoal_buf *frames, struct shoal_buf *out)
{
    if (conn->tls != NULL)
        return tls_conn_write(conn->tls, frames->bytes, frames->len, out);
    *out = *frames;
    *frames = (struct shoal_buf){ 0 };
    return SHOAL_OK;
}

static enum shoal_err send_frames(struct http_conn *conn, struct shoal_buf *frames)
{
    struct shoal_buf out = { 0 };
    enum shoal_err err = seal_frames(conn, frames, &out);

    if (err == SHOAL_OK && out.len > 0)
        err = conn_send(conn, &out, NULL, NULL);
    shoal_buf_deinit(&out);
    return err;
}

static void flush_h2(struct http_conn *conn)
{
    while (!conn->closing && conn->write_pending < WRITE_HIGH) {
        struct shoal_buf frames = { 0 };
        enum shoal_err err = http2_take(conn->h2, &frames, WRITE_HIGH);
        bool none = frames.len == 0;

        if (err == SHOAL_OK && !none)
            err = send_frames(conn, &frames);
        shoal_buf_deinit(&frames);
        if (err != SHOAL_OK)
            http_conn_close(conn);
        if (none)
            break;
    }
    if (!conn->closing && (conn->h2_failed || http2_is_over(conn->h2)) && !conn->finish) {
        if (conn->tls != NULL) {
            tls_conn_close(conn->tls);
            if (conn_flush_tls(conn) != SHOAL_OK) {
                http_conn_close(conn);
                return;
            }
        }
        conn->in_len = 0;
        conn->finish = true;
    }
}

/* Feeds the parser from `in`, in pieces, so that a turn's share is noticed between them. False: it is the next turn's. */
static bool advance_h2(struct http_conn *conn)
{
    size_t at = 0;

    while (at < conn->in_len && !conn->closing && conn->write_pending < WRITE_HIGH && !http2_turn_is_full(conn->h2)) {
        size_t len = conn->in_len - at < H2_STEP ? conn->in_len - at : H2_STEP;

        if (http2_feed(conn->h2, conn->in + at, len) != SHOAL_OK) {
            if (conn->closing)
                return false;
            conn->h2_failed = true;
            at = conn->in_len;
            break;
        }
        at += len;
    }
    if (conn->closing)
        return false;
    consume(conn, at);
    if (conn->in_len > 0 && http2_turn_is_full(conn->h2)) {
        conn->yields = true;
        http_yield(conn->http);
    }
    return at > 0;
}

/* Whether it speaks HTTP/2 from its first byte on: by ALPN, or, without TLS, by its preface. */
static void look_for_h2(struct http_conn *conn)
{
    bool chosen;

    if (conn->served || conn->h2 != NULL || conn->phase != CONN_HEAD)
        return;
    if (conn->tls != NULL)
        chosen = tls_conn_is_ready(conn->tls) && tls_conn_is_h2(conn->tls);
    else
        chosen = conn->in_len >= HTTP2_PREFACE_BYTES && memcmp(conn->in, HTTP2_PREFACE, HTTP2_PREFACE_BYTES) == 0;
    if (!chosen)
        return;
    conn->h2 = http2_create(conn, conn->http);
    conn->served = true;
    if (conn->h2 == NULL)
        http_conn_close(conn);
}

bool http_conn_yields(const struct http_conn *conn) { return conn->yields; }

void http_conn_go_on(struct http_conn *conn)
{
    conn->yields = false;
    http2_turn_begin(conn->h2);
    http_conn_process(conn);
}

void http_conn_part(struct http_conn *conn)
{
    struct shoal_buf frames = { 0 }, out = { 0 };
    uv_buf_t buf;

    if (conn->h2 != NULL && !conn->closing && conn->write_pending == 0) {
        http2_goaway(conn->h2);
        if (http2_take(conn->h2, &frames, WRITE_HIGH) == SHOAL_OK && frames.len > 0 &&
            seal_frames(conn, &frames, &out) == SHOAL_OK && out.len > 0) {
            buf = uv_buf_init((char *)out.bytes, (unsigned)out.len);
            (void)uv_try_write((uv_stream_t *)&conn->tcp, &buf,
                               1); /* what it does not take is lost with the connection */
        }
    }
    shoal_buf_deinit(&frames);
    shoal_buf_deinit(&out);
    http_conn_close(conn);
}

bool http_conn_waits(const struct http_conn *conn) { return conn->waits; }

void http_conn_resume(struct http_conn *conn)
{
    conn->waits = false;
    http_conn_process(conn);
}

/* Deciphered bytes into `in`. False: nothing new. */
static bool fill_from_tls(struct http_conn *conn)
{
    bool any = false;
    bool ended = false;
    bool was_ready = tls_conn_is_ready(conn->tls);

    conn->waits = !was_ready && !http_handshake_may(conn->http);
    if (conn->waits)
        return false;
    while (!ended && grow_in(conn)) {
        size_t len = 0;
        enum shoal_err err =
            tls_conn_read(conn->tls, conn->in + conn->in_len, conn->in_cap - conn->in_len, &len, &ended);

        if (err != SHOAL_OK) {
            conn->http->handshakes += !was_ready;
            conn->http->stats.tls_failed++;
            (void)conn_flush_tls(conn); /* the alert */
            conn->finish = true;
            return false;
        }
        if (len == 0)
            break;
        conn->in_len += len;
        any = true;
    }
    if (!was_ready && tls_conn_has_output(conn->tls)) /* pieces of a hello cost nothing */
        conn->http->handshakes++;
    if (conn_flush_tls(conn) != SHOAL_OK || conn->in == NULL)
        http_conn_close(conn);
    else if (ended && !any && conn->phase == CONN_HEAD && conn->write_pending > 0)
        conn->finish = true;
    else if (ended && !any && conn->phase == CONN_HEAD)
        http_conn_close(conn);
    return any;
}

void http_conn_process(struct http_conn *conn)
{
    bool moved = true;

    if (conn->processing || conn->closing)
        return;
    conn->processing = true;
    while (moved && !conn->closing && !conn->finish && !conn->yields) {
        moved = false;
        if (conn->tls != NULL && wants_input(conn))
            moved = fill_from_tls(conn);
        if (!conn->closing && !conn->finish)
            look_for_h2(conn);
        if (conn->closing || conn->finish)
            break;
        if (conn->h2 != NULL) {
            moved = advance_h2(conn);
            if (!conn->closing)
                flush_h2(conn);
        } else if (conn->phase == CONN_HEAD) {
            moved = advance_head(conn) || (moved && conn->in_len == IN_CAP);
        } else if (conn->phase == CONN_BODY) {
            moved = advance_body(conn) || (moved && conn->in_len == IN_CAP);
        } else {
            moved = false; /* what comes while a request is in hand waits for its turn */
        }
    }
    conn->processing = false;
    if (conn->closing)
        return;
    if (conn->finish && conn->write_pending == 0)
        conn_linger(conn);
    if (conn->in_len == 0 && conn->phase == CONN_HEAD && !conn->closing) {
        free(conn->in); /* an idle connection holds no buffer */
        conn->in = NULL;
        conn->in_cap = 0;
    }
    update_reading(conn);
}

bool http_conn_keeps(const struct http_conn *conn, const struct http_request *request)
{
    return request->head.keep_alive && !conn->http->stopping && conn->phase != CONN_LINGER && conn->body.done;
}

/* The answer's last byte is on its way. */
void http_conn_response_ended(struct http_conn *conn, struct http_request *request)
{
    bool keep = http_conn_keeps(conn, request);

    SHOAL_ASSERT(conn->request == request);
    conn->request = NULL;
    http_request_part(request);
    if (keep) {
        set_phase(conn, CONN_HEAD);
    } else {
        if (conn->tls != NULL) {
            tls_conn_close(conn->tls);
            if (conn_flush_tls(conn) != SHOAL_OK) {
                http_conn_close(conn);
                http_request_release(request);
                return;
            }
        }
        set_phase(conn, CONN_WAIT);
        conn->finish = true;
        conn->in_len = 0;
    }
    http_request_release(request);
    if (!conn->processing)
        http_conn_process(conn);
}

/* ---- life ---- */

static bool is_too_slow(struct http_conn *conn, uint64_t now_ms)
{
    uint64_t quiet = now_ms - conn->progress_ms;
    uint64_t phase = now_ms - conn->phase_ms;

    if (conn->write_pending > 0)
        return quiet > conn->http->options.write_ms;
    switch (conn->phase) {
    case CONN_HEAD:
        if (conn->h2 != NULL)
            return quiet > IDLE_MS && http2_is_idle(conn->h2);
        return phase > (conn->served && conn->in_len == 0 ? IDLE_MS : HEAD_MS);
    case CONN_BODY:
        return http_body_is_slow(conn->request, now_ms) || (conn->request->paused == 0 && quiet > BODY_MS);
    case CONN_WAIT: return false;
    case CONN_LINGER: return quiet > 2000 || phase > LINGER_MS;
    }
    return false;
}

/* Any byte counts that the client's side has acknowledged: a write may be large, and what the kernel holds is much, too. */
static void see_taken(struct http_conn *conn, uint64_t now_ms)
{
    uint64_t held = uv_stream_get_write_queue_size((uv_stream_t *)&conn->tcp);
    uv_os_fd_t fd;
    int unacked = 0;

    if (conn->write_pending == 0 || uv_fileno((uv_handle_t *)&conn->tcp, &fd) != 0 || ioctl(fd, SIOCOUTQ, &unacked) != 0)
        return;
    held += (uint64_t)unacked;
    if (held + conn->taken >= conn->given)
        return;
    conn->taken = conn->given - held;
    conn->progress_ms = now_ms;
}

void http_conn_tick(struct http_conn *conn, uint64_t now_ms)
{
    struct shoal_msg msg;

    if (!conn->closing)
        see_taken(conn, now_ms);
    if (!conn->closing && conn->h2 != NULL)
        http2_tick(conn->h2, now_ms, conn->write_pending >= WRITE_HIGH);
    if (conn->closing || !is_too_slow(conn, now_ms))
        return;
    conn->http->stats.closed_slow++;
    if (conn->phase == CONN_BODY && !conn->request->responded) {
        (void)shoal_fail(&msg, SHOAL_ERR_TIMEOUT, "the request body came too slowly");
        http_request_bad(conn->request, 408, &msg);
        return;
    }
    http_conn_part(conn);
}

/* Since when a connection waits for its client; UINT64_MAX: it does not. Who has shown who it is may send a body. */
static uint64_t waits_since_ms(const struct http_conn *conn)
{
    if (conn->h2 != NULL && !conn->finish)
        return http2_is_waiting(conn->h2) ? conn->progress_ms : UINT64_MAX;
    switch (conn->phase) {
    case CONN_HEAD:
    case CONN_LINGER: return conn->phase_ms;
    case CONN_BODY:
        if (conn->request->paused > 0)
            return UINT64_MAX;
        return conn->request->route->open ? conn->phase_ms : UINT64_MAX;
    case CONN_WAIT: return conn->finish ? conn->phase_ms : UINT64_MAX;
    }
    return UINT64_MAX;
}

/* C3. Whether `conn` gives way before `other`, which may be NULL; the list has the newest first. */
static bool gives_way_before(const struct http_conn *conn, const struct http_conn *other)
{
    if (other == NULL || conn->client->connections != other->client->connections)
        return other == NULL || conn->client->connections > other->client->connections;
    return waits_since_ms(conn) <= waits_since_ms(other);
}

/* C3. False: there is no place for the newcomer. */
static bool make_room(struct shoal_http *http, const struct http_conn *newcomer)
{
    struct http_conn *first = NULL;
    struct http_conn *first_there = NULL;
    unsigned all = 0;

    if (http->stats.connections_open <= SHOAL_HTTP_ADDRESS_CONNECTIONS_MAX &&
        http->stats.connections_open <= http->options.connections_max)
        return true;
    for (struct http_conn *conn = http->conns; conn != NULL; conn = conn->next) {
        all++;
        if (conn == newcomer || waits_since_ms(conn) == UINT64_MAX)
            continue;
        if (gives_way_before(conn, first))
            first = conn;
        if (conn->client == newcomer->client && gives_way_before(conn, first_there))
            first_there = conn;
    }
    if (newcomer->client->connections > SHOAL_HTTP_ADDRESS_CONNECTIONS_MAX)
        first = first_there;
    else if (all <= http->options.connections_max)
        return true;
    if (first == NULL)
        return false;
    http->stats.closed_idle++;
    http_conn_close(first);
    return true;
}

/* False: it has gone already, or there is no memory. */
static bool enter_table(struct http_conn *conn)
{
    struct sockaddr_storage address = { 0 };
    uint8_t bytes[16] = { 0 };
    int len = sizeof(address);

    if (uv_tcp_getpeername(&conn->tcp, (struct sockaddr *)&address, &len) != 0)
        return false;
    if (address.ss_family == AF_INET6) {
        memcpy(bytes, &((struct sockaddr_in6 *)&address)->sin6_addr, 16);
    } else {
        memset(bytes + 10, 0xff, 2);
        memcpy(bytes + 12, &((struct sockaddr_in *)&address)->sin_addr, 4);
    }
    conn->client = http_client_enter(&conn->http->clients, bytes);
    return conn->client != NULL;
}

static void refuse_socket(struct shoal_http *http, struct http_conn *conn)
{
    http->stats.connections_refused++;
    http_conn_close(conn);
}

void http_conn_accept(struct shoal_http *http, struct uv_stream_s *listener)
{
    struct http_conn *conn = calloc(1, sizeof(*conn));

    if (conn == NULL || uv_tcp_init(http->loop, &conn->tcp) != 0) {
        free(conn);
        return;
    }
    conn->http = http;
    conn->tcp.data = conn;
    conn->next = http->conns;
    if (conn->next != NULL)
        conn->next->prev = conn;
    http->conns = conn;
    http->handles_open++;
    http->stats.connections_open++;
    set_phase(conn, CONN_HEAD);
    if (uv_accept(listener, (uv_stream_t *)&conn->tcp) != 0) {
        refuse_socket(http, conn);
        return;
    }
    if (!enter_table(conn) || !make_room(http, conn)) {
        refuse_socket(http, conn);
        return;
    }
    http->stats.connections_accepted++;
    (void)uv_tcp_nodelay(&conn->tcp, 1);
    if (http->tls != NULL) {
        conn->tls = tls_conn_create(http->tls);
        if (conn->tls == NULL) {
            refuse_socket(http, conn);
            return;
        }
    }
    update_reading(conn);
}
