/* Inside the server: connections and requests, for the routes.
 *
 *   socket -> [TLS] -> in[64 KiB] -> head -> route -> (auth) -> begin -> data* -> handle -> response -> next head
 *
 * H1. One request of an HTTP/1 connection is in hand at a time; what the client sends ahead waits in the socket. Over HTTP/2
 *     it is one a stream (http2.h).
 * H2. A request lives until nobody holds it: the connection holds it until the response is out, and whoever waits for a
 *     thread or the backend holds it with http_request_hold. Then `state_free` runs, once.
 * H3. A request whose connection is gone (conn == NULL) may go on; what it answers is dropped.
 * H4. Each request is answered at most once; every handler path answers.
 * H5. Bodies are handled up to SHOAL_HTTP_TURN_BODIES_BYTES in a turn, or one that is larger, and as many messages of streams:
 *     however many clients send their last bytes at once, no turn is long.
 * H6. An answer, and any part of one, may close its client's connection, which lets go of the request, and those of other clients,
 *     which ends theirs: nothing of a request is touched after it, unless it is held. `gone` runs within it, too: it answers nothing,
 *     and tells nobody who would answer another request at once. */
#ifndef API_HTTP_SERVER_H
#define API_HTTP_SERVER_H

#include "shoal/backend.h"
#include "shoal/http.h"
#include "shoal/metric_text.h"
#include "shoal/limits.h"

#include "arena.h"
#include "http_clients.h"
#include "http1_parser.h"
#include "http2.h"
#include "http_pace.h"
#include "http_room.h"
#include "json_writer.h"
#include "tls_openssl.h"
#include "shoal/token.h"

struct http_conn;
struct http_request;
struct uv_loop_s;
struct uv_stream_s;

typedef void http_request_fn(struct http_request *request);
typedef void http_data_fn(struct http_request *request, struct shoal_view content);

enum http_body_mode {
    HTTP_BODY_IGNORE, /* read and thrown away */
    HTTP_BODY_BUFFER, /* into request->body, at most SHOAL_JSON_BYTES_MAX */
    HTTP_BODY_STREAM, /* to route->data */
};

struct http_route {
    enum http1_method method; /* GET is HEAD, too: its answer goes without the content */
    const char *pattern;     /* "/a/{}/b": {} is any one segment, {*} all that follow, decoded into params */
    http_request_fn *handle; /* the whole body has come */
    enum http_body_mode mode;
    bool open;              /* needs no credentials */
    http_request_fn *begin; /* STREAM: before the first byte; may answer */
    http_data_fn *data;
    bool both_ways; /* `data` and `handle` come also after its answer has begun */
};

#define HTTP_PARAMS_MAX 3

struct http_request {
    struct shoal_http *http;
    struct http_conn *conn;
    struct http2_stream *stream; /* NULL: it came over HTTP/1 */
    /* Runs once, from the loop, when the client is gone before its answer has ended; set by a handler, or NULL. While it is set, a
     * client of HTTP/1.1 that closes its sending side is gone, too. */
    http_request_fn *gone;
    unsigned refs;
    struct arena arena;
    struct http1_head head;
    const struct http_route *route;
    const char *params[HTTP_PARAMS_MAX];
    struct shoal_user user;    /* of routes that are not open */
    struct token_claims token; /* has_token: the caller came with one */
    bool has_token;
    struct shoal_buf body;
    uint64_t body_bytes;
    struct http_pace pace; /* of the body */
    struct http_stay stay;
    size_t held;         /* C7 of http_conn_uv.c: of its own, as long as it has a connection */
    uint64_t turn_bytes; /* H5: what counts of it in its turn */
    uint64_t began_ms; /* as http_now_ms, when its head was here; 0: it never was */
    /* Says the answer in another protocol's words; NULL: it goes out as it is. */
    void (*reply)(struct http_request *request, int status, struct shoal_view body);
    struct http_client *client;     /* the row of its address */
    struct http_client *asker;      /* that of its user; NULL: not known, or nobody in particular */
    struct http_request *next_body; /* H5: of those that wait for the next turn */
    http_request_fn *turn;          /* what comes then, also for a client that has gone; NULL: the route's handle */
    void *state;                    /* the route's own */
    void (*state_free)(void *state);
    struct shoal_buf extra;    /* header lines of the answer */
    struct shoal_buf trailers; /* lines after its content; HTTP/2 alone sends them */
    unsigned paused;
    bool responded;
    bool response_ended;
    bool body_done;
    bool chunked;         /* the answer is */
    uint64_t stream_left; /* of an answer with a length */
};

/* ---- answering ---- */

/* A header for the answer; before it starts. The value is ours: no CR or LF in it. */
__attribute__((format(printf, 3, 4))) void http_header_add(struct http_request *request, const char *name,
                                                           const char *format, ...);
void http_respond(struct http_request *request, int status, const char *type, struct shoal_view body);
/* Takes the buffer, also on failure. */
void http_respond_json(struct http_request *request, int status, struct json_writer *writer);
/* "Error <status>: <text>\n" as text/plain (execs-api 1.5). */
__attribute__((format(printf, 3, 4))) void http_respond_error(struct http_request *request, int status,
                                                              const char *format, ...);
void http_respond_empty(struct http_request *request, int status);
/* An error of the backend; `not_found` is the status for NOT_FOUND. */
void http_respond_failure(struct http_request *request, enum shoal_err err, const struct shoal_msg *msg, int not_found);

/* An answer in pieces. `length` UINT64_MAX: not known (chunked). Each write is followed by `next`, once, from the loop,
 * when the bytes are in the kernel or the connection is gone (see conn): so one piece is in memory at a time. */
#define HTTP_LENGTH_UNKNOWN UINT64_MAX
void http_stream_start(struct http_request *request, int status, const char *type, uint64_t length);
void http_stream_write(struct http_request *request, struct shoal_view bytes, http_request_fn *next);
void http_stream_end(struct http_request *request);
void http_stream_abort(struct http_request *request); /* it cannot be finished: closes the connection */

/* ---- request ---- */

void http_request_hold(struct http_request *request);
void http_request_release(struct http_request *request);
/* It keeps `len` bytes until it ends. False: that was too much, and its client is gone. */
SHOAL_MUST_CHECK bool http_request_keep(struct http_request *request, size_t len);
void http_request_part(struct http_request *request); /* from its connection */
void http_body_pause(struct http_request *request);
void http_body_resume(struct http_request *request);
/* The value of a query key, decoded ('+' is a space); NULL if absent. One that is not well encoded was refused before. */
const char *http_query(struct http_request *request, const char *key);
/* Percent-decodes into the arena; NULL: broken escape, NUL, or no memory. */
char *http_percent_decode(struct arena *arena, struct shoal_view text, bool plus_is_space);

const struct http_route *http_routes_execs(size_t *count);
const struct http_route *http_routes_scheduler(size_t *count);
const struct http_route *http_routes_native(size_t *count);
const struct http_route *http_routes_services(size_t *count);
const struct http_route *http_routes_profile(size_t *count);
const struct http_route *http_routes_oip(size_t *count);
const struct http_route *http_routes_dlim(size_t *count);
const struct http_route *http_routes_edimodels(size_t *count);
const struct http_route *http_routes_runtimes(size_t *count);
const struct http_route *http_routes_download(size_t *count);
const struct http_route *http_routes_grpc(size_t *count);
const struct http_route *http_routes_openai(size_t *count);

/* {"error": {...}} as OpenAI's clients read it. */
void http_openai_error(struct json_writer *w, int status, const char *text);
/* An address of WMLA's inference API: its errors are {"error": text}, and of a model's answer plain text. */
bool http_is_dlim(const struct http_request *request);

/* ---- the server, for its own files ---- */

#define HTTP_BASIC_CACHE 64

struct basic_entry {
    uint8_t digest[32];
    uint64_t until_ms; /* as http_now_ms; 0: empty */
    struct shoal_user user;
};

/* A password check under way. */
struct logon_place {
    const struct http_request *request; /* NULL: free */
    uint8_t address[16];
};

struct shoal_http {
    struct uv_loop_s *loop;
    struct shoal_backend backend;
    struct shoal_http_options options;
    char *spool_dir;
    char scrape_token[SHOAL_METRICS_TOKEN_BYTES];
    struct tls_context *tls;
    struct http_conn *conns;
    struct http_clients clients; /* by address */
    struct http_clients askers;  /* by user */
    uint64_t handshakes_ms;                    /* when the span began (SHOAL_HANDSHAKES_SPAN_MS) */
    unsigned handshakes;                       /* answered in it */
    bool handshakes_wait;                      /* connections do, for the next span */
    bool yields_wait;                          /* connections do, for the next turn */
    bool yielding;                             /* they are gone on with */
    struct http_request *bodies, *bodies_last; /* whole, for the next turn (H5) */
    uint64_t bodies_ms;                        /* the turn's */
    uint64_t bodies_bytes;                     /* handled in it */
    uint64_t messages_ms, messages_bytes;      /* the same of messages of streams */
    struct shoal_http_stats stats;
    struct shoal_histogram times; /* of requests, from head to the end of the answer */
    uint16_t port;
    unsigned handles_open; /* listener, timer, connections */
    unsigned requests_open;
    struct http_room rooms[HTTP_ROOMS];
    uint64_t held; /* for clients: answers that they have not taken, and bodies of HTTP/2 */
    bool stopping;
    void (*stopped)(void *arg);
    void *stopped_arg;
    uint8_t basic_key[32]; /* of the digests below: new in each process */
    struct basic_entry basic[HTTP_BASIC_CACHE];
    unsigned basic_next;
    struct token_known tokens;
    struct logon_place logons[SHOAL_LOGONS_MAX];
    uint8_t scratch[65536]; /* one read of a TLS socket */
};

/* http_conn_uv.c */
void http_conn_accept(struct shoal_http *http, struct uv_stream_s *listener);
void http_conn_close(struct http_conn *conn);
void http_conn_process(struct http_conn *conn);
/* Whether it waits to answer its client's hello; then that is done. */
bool http_conn_waits(const struct http_conn *conn);
void http_conn_resume(struct http_conn *conn);
/* Whether it has had its share of a turn; http_conn_go_on comes in the next one. */
bool http_conn_yields(const struct http_conn *conn);
void http_conn_go_on(struct http_conn *conn);
/* C7. `len` bytes are to be kept for its client, until they are let go. False: its place is needed, and the caller closes it. */
SHOAL_MUST_CHECK bool http_conn_hold(struct http_conn *conn, size_t len);
void http_conn_let_go(struct http_conn *conn, size_t len);
/* The server stops. */
void http_conn_part(struct http_conn *conn);
void http_conn_tick(struct http_conn *conn, uint64_t now_ms);
struct http_conn *http_conn_next(struct http_conn *conn);
const uint8_t *http_conn_address(const struct http_conn *conn); /* 16 bytes: the client's, an IPv4 one in IPv6 form */
const struct http_client *http_conn_client(const struct http_conn *conn);
enum shoal_err http_conn_write(struct http_conn *conn, struct shoal_view head, struct shoal_view body,
                               struct http_request *request, http_request_fn *next);
void http_conn_response_ended(struct http_conn *conn, struct http_request *request);
bool http_conn_keeps(const struct http_conn *conn, const struct http_request *request);

/* http_request.c */
struct http_request *http_request_create(struct http_conn *conn, struct shoal_http *http);
void http_request_begin(struct http_request *request); /* its head is parsed */
void http_request_data(struct http_request *request, struct shoal_view content);
void http_request_complete(struct http_request *request);
/* Its body is still to come: whether that comes too slowly of late. To be asked once a second. */
bool http_body_is_slow(struct http_request *request, uint64_t now_ms);
void http_request_bad(struct http_request *request, int status, const struct shoal_msg *msg);

/* http_server_uv.c */
/* C5. False: no hello is answered in this span any more; http_conn_resume comes in the next one. */
bool http_handshake_may(struct shoal_http *http);
uint64_t http_now_ms(const struct shoal_http *http); /* the loop's, at the beginning of its turn */
/* Calls `next` from the loop, so that a writer may call itself. */
void http_call_later(struct http_request *request, http_request_fn *next);
void http_yield(struct shoal_http *http);
/* H5. False: its route's handle comes in a later turn. */
bool http_body_may(struct http_request *request);
/* The same of an answer of so many bytes that takes work to make: `turn` comes in a turn that has room for it. */
void http_answer_later(struct http_request *request, uint64_t bytes, http_request_fn *turn);
/* From `turn`: as many bytes are made, and more of the same answer is left, for which `turn` comes in a later turn. */
void http_answer_on(struct http_request *request, http_request_fn *turn);
/* The same of a message within a stream. False: try it again in a later turn. */
bool http_message_may(struct shoal_http *http, size_t bytes);
void http_handle_closed(struct shoal_http *http);
void http_stop_check(struct shoal_http *http);

/* What stands for a user's name among those who ask; unknown to whoever chooses names. */
void auth_user_key(const struct shoal_http *http, const char *name, uint8_t key[16]);

/* auth_sodium.c: calls `ok` with request->user set, now or later, or answers 401. */
void auth_request(struct http_request *request, http_request_fn *ok);
/* False: too many password checks are under way, and the request was answered. Else call auth_logon_end once. */
bool auth_logon_begin(struct http_request *request);
void auth_logon_end(struct http_request *request);
/* base64(user:password), padded or not: `pair` then holds the user, and *password points behind it. False: it is not that. */
#define AUTH_PAIR_BYTES 512
bool auth_basic_decode(struct shoal_view text, char pair[AUTH_PAIR_BYTES], char **password);
/* The same of a body. */
void auth_pair(struct http_request *request, struct shoal_view text, http_request_fn *ok);
/* Checks Basic credentials for logon itself. */
void auth_basic(struct http_request *request, http_request_fn *ok);

#endif
