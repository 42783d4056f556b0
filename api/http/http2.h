/* HTTP/2 for a connection: its streams become requests like those of HTTP/1. All that knows the library is http2_nghttp2.c.
 *
 *     bytes --> guard --> frames --> a request a stream --> routes (as over HTTP/1) --> answer, in the client's windows --> bytes
 *
 * S1. A stream's request lives as H2 of http_server.h says. A stream that ends before its answer is a client that has gone
 *     (`conn` is NULL, and the route's `gone` hears of it).
 * S2. A body's bytes count against stream's and connection's window until its route has taken them: a route that pauses holds its
 *     client back.
 * S3. What is held for a connection, bodies and answers, is counted, and bounded for all together (C7 of http_conn_uv.c).
 * S4. Nothing here writes or reads a socket, and no callback of the library calls the library's sending or receiving.
 * S5. An answer that is out before the body is in closes no stream: clients that still send would lose it to the reset (curl
 *     does). The rest of the body is thrown away until its end; a client that does not end it is told NO_ERROR after a while
 *     (RFC 9113, 8.1). */
#ifndef API_HTTP2_H
#define API_HTTP2_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/buf.h"
#include "shoal/error.h"

struct http2;
struct http2_stream;
struct http_conn;
struct http_request;
struct shoal_http;

/* NULL: no memory. */
struct http2 *http2_create(struct http_conn *conn, struct shoal_http *http);
void http2_destroy(struct http2 *h2);
/* The connection is closed: its requests have no client any more. */
void http2_detach(struct http2 *h2);

/* Bytes from the client; calls routes. MALFORMED: what is to be sent is the last of it. */
SHOAL_MUST_CHECK enum shoal_err http2_feed(struct http2 *h2, const uint8_t *bytes, size_t len);
/* Bytes for the client, appended to `out` until it has `most`. */
SHOAL_MUST_CHECK enum shoal_err http2_take(struct http2 *h2, struct shoal_buf *out, size_t most);
/* Both sides have said all: to be closed. */
bool http2_is_over(const struct http2 *h2);
/* No new request is taken: what was begun is still answered. */
void http2_goaway(struct http2 *h2);
/* Requests that it has begun in this turn of the loop are too many: go on in the next one. */
bool http2_turn_is_full(struct http2 *h2);
void http2_turn_begin(struct http2 *h2);

bool http2_is_idle(const struct http2 *h2);    /* no stream is open */
bool http2_is_waiting(const struct http2 *h2); /* for its client alone, who has not shown who it is */
/* Ends streams whose client does not go on. `full`: nothing more is sent before the client takes what is on its way, so streams wait
 * for each other and not for their client. */
void http2_tick(struct http2 *h2, uint64_t now_ms, bool full);

/* ---- for requests (request->stream) ---- */

/* The answer's head; with `end` also its end, else content follows. */
SHOAL_MUST_CHECK enum shoal_err http2_answer(struct http_request *request, int status, const char *type,
                                             uint64_t length, bool end);
SHOAL_MUST_CHECK enum shoal_err http2_write(struct http_request *request, struct shoal_view bytes,
                                            void (*next)(struct http_request *request));
void http2_answer_ended(struct http_request *request);
void http2_abort(struct http_request *request);
void http2_continue(struct http_request *request); /* 100 */
void http2_resume(struct http_request *request);   /* it is not paused any more */

#endif
