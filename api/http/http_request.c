#include "grpc.h"
#include "hex.h"
#include "http_server.h"
#include "json_to_pack.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/text.h"

#include "shoal/banned.h"

#define PACK_TYPE "application/msgpack"

struct http_request *http_request_create(struct http_conn *conn, struct shoal_http *http)
{
    struct http_request *request = calloc(1, sizeof(*request));

    if (request == NULL)
        return NULL;
    request->client = http_client_ask(&http->clients, http_conn_address(conn));
    if (request->client == NULL) {
        free(request);
        return NULL;
    }
    request->http = http;
    request->conn = conn;
    request->refs = 1;
    http_pace_begin(&request->pace, http_now_ms(http));
    http->requests_open++;
    return request;
}

void http_request_hold(struct http_request *request) { request->refs++; }

void http_request_release(struct http_request *request)
{
    struct shoal_http *http = request->http;

    SHOAL_ASSERT(request->refs > 0);
    if (--request->refs > 0)
        return;
    if (request->began_ms > 0)
        shoal_histogram_add(&http->times, (http_now_ms(http) - request->began_ms) * 1000000);
    if (request->state_free != NULL)
        request->state_free(request->state);
    http_room_leave_all(request);
    shoal_buf_deinit(&request->body);
    shoal_buf_deinit(&request->extra);
    shoal_buf_deinit(&request->trailers);
    arena_deinit(&request->arena);
    http_client_answered(&http->clients, request->client);
    if (request->asker != NULL)
        http_client_answered(&http->askers, request->asker);
    free(request);
    http->requests_open--;
    http_stop_check(http);
}

bool http_request_keep(struct http_request *request, size_t len)
{
    if (request->conn == NULL)
        return true;
    if (!http_conn_hold(request->conn, len)) {
        http_conn_close(request->conn);
        return false;
    }
    request->held += len;
    return true;
}

void http_request_part(struct http_request *request)
{
    if (request->conn != NULL && request->held > 0)
        http_conn_let_go(request->conn, request->held);
    request->held = 0;
    request->conn = NULL;
    request->stream = NULL;
}

void http_body_pause(struct http_request *request) { request->paused++; }

void http_body_resume(struct http_request *request)
{
    SHOAL_ASSERT(request->paused > 0);
    if (--request->paused > 0 || request->conn == NULL)
        return;
    if (request->stream != NULL)
        http2_resume(request);
    else
        http_conn_process(request->conn);
}

/* ---- decoding ---- */

/* The character that an escape at `at` stands for; 0: broken, or a NUL. */
static uint8_t escaped(struct shoal_view text, size_t at)
{
    bool whole = text.len - at > 2;
    int high = whole ? hex_digit(text.bytes[at + 1]) : -1;
    int low = whole ? hex_digit(text.bytes[at + 2]) : -1;

    return high < 0 || low < 0 ? 0 : (uint8_t)(high * 16 + low);
}

char *http_percent_decode(struct arena *arena, struct shoal_view text, bool plus_is_space)
{
    char *out = arena_alloc(arena, text.len + 1);
    size_t len = 0;

    if (out == NULL)
        return NULL;
    for (size_t i = 0; i < text.len; i++) {
        uint8_t c = text.bytes[i];

        if (c == '%') {
            c = escaped(text, i);
            if (c == 0)
                return NULL;
            i += 2;
        } else if (c == '+' && plus_is_space) {
            c = ' ';
        } else if (c == 0) {
            return NULL;
        }
        out[len++] = (char)c;
    }
    out[len] = '\0';
    return out;
}

const char *http_query(struct http_request *request, const char *key)
{
    struct shoal_view query = request->head.query;
    size_t key_len = strlen(key);

    while (query.len > 0) {
        const uint8_t *amp = memchr(query.bytes, '&', query.len);
        size_t len = amp == NULL ? query.len : (size_t)(amp - query.bytes);

        if (len > key_len && memcmp(query.bytes, key, key_len) == 0 && query.bytes[key_len] == '=')
            return http_percent_decode(&request->arena, shoal_view_of(query.bytes + key_len + 1, len - key_len - 1),
                                       true);
        if (len == key_len && memcmp(query.bytes, key, key_len) == 0)
            return "";
        query.bytes += amp == NULL ? len : len + 1;
        query.len -= amp == NULL ? len : len + 1;
    }
    return NULL;
}

/* Whether a part "key=value" of a query cannot be decoded. `args` has a decoder of its own (args_url.c). */
static bool is_broken(struct shoal_view part)
{
    const uint8_t *value = memchr(part.bytes, '=', part.len);

    if (value == NULL || (value - part.bytes == 4 && memcmp(part.bytes, "args", 4) == 0))
        return false;
    for (size_t i = (size_t)(value - part.bytes); i < part.len; i++)
        if (part.bytes[i] == '%' && escaped(part, i) == 0)
            return true;
    return false;
}

/* False: refused, since what cannot be read is not what is absent. */
static bool query_is_good(struct http_request *request)
{
    struct shoal_view query = request->head.query;

    while (query.len > 0) {
        const uint8_t *amp = memchr(query.bytes, '&', query.len);
        size_t len = amp == NULL ? query.len : (size_t)(amp - query.bytes);

        if (is_broken(shoal_view_of(query.bytes, len))) {
            size_t key = (size_t)((const uint8_t *)memchr(query.bytes, '=', len) - query.bytes);

            http_respond_error(request, 400, "%.*s: a broken %%-escape in the URL; write %%25 for a per cent sign",
                               key < 40 ? (int)key : 40, (const char *)query.bytes);
            return false;
        }
        query.bytes += amp == NULL ? len : len + 1;
        query.len -= amp == NULL ? len : len + 1;
    }
    return true;
}

/* ---- routing ---- */

static bool begins(struct shoal_view path, const char *with)
{
    size_t len = strlen(with);

    return path.len >= len && memcmp(path.bytes, with, len) == 0;
}

bool http_is_dlim(const struct http_request *request)
{
    struct shoal_view path = request->head.path;

    while (path.len > 1 && path.bytes[1] == '/') { /* scripts join a base that ends with a slash */
        path.bytes++;
        path.len--;
    }
    return begins(path, "/dlim/v1");
}

/* Addresses of OpenAI's beside the native API's. */
static bool is_openai(const struct http_request *request)
{
    struct shoal_view path = request->head.path;

    return begins(path, "/v1/chat/completions") || begins(path, "/v1/completions") || begins(path, "/v1/embeddings") ||
           begins(path, "/v1/models");
}

/* Pages from a file or another host ask models (the inference contract, 2.1). Their credentials are tokens in headers, so nothing
 * is said of Access-Control-Allow-Credentials: what a browser sends by itself opens no answer to them. */
static bool takes_origins(const struct http_request *request)
{
    return http_is_dlim(request) || is_openai(request) || begins(request->head.path, "/v2");
}

static void add_origin(struct http_request *request)
{
    struct shoal_view origin;

    if (!takes_origins(request) || !http1_header_find(&request->head, "origin", &origin) || origin.len > 1000)
        return;
    http_header_add(request, "Access-Control-Allow-Origin", "%.*s", (int)origin.len, (const char *)origin.bytes);
    http_header_add(request, "Access-Control-Expose-Headers", "Content-Range");
    http_header_add(request, "Vary", "Origin");
}

static void answer_options(struct http_request *request)
{
    http_header_add(request, "Access-Control-Allow-Methods", "GET,PUT,POST,DELETE,OPTIONS");
    http_header_add(request, "Access-Control-Allow-Headers",
                    "Authorization,Accept-Language,Accept,Content-Type,Range,Origin,X-Requested-With,X-File-Name,"
                    "X-Auth-Token,X-User-Token");
    http_respond_empty(request, 204);
}

/* Whether `path` has the segments of `pattern`, one after the other. {} stands for any one and {*} for the rest: parameters. */
static bool match_path(struct http_request *request, const char *pattern, struct shoal_view path)
{
    unsigned params = 0;
    bool twice = http_is_dlim(request); /* doubled slashes mean nothing either */

    while (path.len > 1 && path.bytes[path.len - 1] == '/')
        path.len--; /* a trailing slash means nothing (execs-api 1.3) */
    while (*pattern == '/') {
        const char *end = strchr(pattern + 1, '/');
        size_t want = end == NULL ? strlen(pattern + 1) : (size_t)(end - pattern - 1);
        const uint8_t *slash;
        size_t len;

        while (twice && path.len > 1 && path.bytes[1] == '/') {
            path.bytes++;
            path.len--;
        }
        if (path.len < 2 || path.bytes[0] != '/')
            return false;
        slash = memchr(path.bytes + 1, '/', path.len - 1);
        len = slash == NULL ? path.len - 1 : (size_t)(slash - path.bytes - 1);
        if (want == 3 && memcmp(pattern + 1, "{*}", 3) == 0)
            len = path.len - 1;
        if ((want == 2 && memcmp(pattern + 1, "{}", 2) == 0) || (want == 3 && memcmp(pattern + 1, "{*}", 3) == 0)) {
            SHOAL_ASSERT(params < HTTP_PARAMS_MAX);
            request->params[params] = http_percent_decode(&request->arena, shoal_view_of(path.bytes + 1, len), false);
            if (request->params[params] == NULL || request->params[params][0] == '\0')
                return false;
            params++;
        } else if (len != want || memcmp(path.bytes + 1, pattern + 1, len) != 0) {
            return false;
        }
        pattern += want + 1;
        path.bytes += len + 1;
        path.len -= len + 1;
    }
    return path.len == 0;
}

/* NULL: no such route; *known: a bit for each method with which there is one. */
static const struct http_route *find_route(struct http_request *request, const struct http_route *routes, size_t count,
                                           unsigned *known)
{
    const char *pattern = NULL; /* the first that matches: "/execs/frameworks" comes before "/execs/{}" */
    enum http1_method method = request->head.method == HTTP1_HEAD ? HTTP1_GET : request->head.method;

    for (size_t i = 0; i < count; i++) {
        if (!match_path(request, routes[i].pattern, request->head.path))
            continue;
        if (pattern == NULL)
            pattern = routes[i].pattern;
        if (strcmp(pattern, routes[i].pattern) != 0)
            continue;
        *known |= 1u << routes[i].method;
        if (routes[i].method == method)
            return &routes[i];
    }
    return NULL;
}

static bool send_continue(struct http_request *request)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";

    if (!request->head.expect_continue || (!request->head.chunked && request->head.content_length == 0))
        return true;
    if (request->stream != NULL) {
        http2_continue(request);
        return true;
    }
    return http_conn_write(request->conn, shoal_view_of(go_on, sizeof(go_on) - 1), (struct shoal_view){ 0 }, NULL,
                           NULL) == SHOAL_OK;
}

static void start_body(struct http_request *request)
{
    http_request_hold(request);
    if (request->conn != NULL && request->route->begin != NULL)
        request->route->begin(request);
    if (request->conn != NULL && !request->responded) {
        if (send_continue(request))
            http_body_resume(request);
        else
            http_stream_abort(request);
    }
    http_request_release(request);
}

static void refuse_share(struct http_request *request, const char *whose)
{
    request->http->stats.refused_busy++;
    http_header_add(request, "Retry-After", "1");
    http_respond_error(request, 503, "%u requests of %s are under way on this node; wait for some of them, or ask another node",
                       SHOAL_HTTP_SHARE_REQUESTS_MAX, whose);
}

/* It is known who asks. */
static void enter_user(struct http_request *request)
{
    uint8_t key[16];

    auth_user_key(request->http, request->user.name, key);
    request->asker = http_client_ask(&request->http->askers, key);
    if (request->conn != NULL && request->asker == NULL)
        http_respond_error(request, 503, "out of memory; try again later");
    else if (request->conn != NULL && request->asker->requests > SHOAL_HTTP_SHARE_REQUESTS_MAX)
        refuse_share(request, "this user");
    else
        start_body(request);
}

static uint64_t body_limit(const struct http_request *request)
{
    if (request->route->open)
        return SHOAL_OPEN_BODY_BYTES_MAX;
    switch (request->route->mode) {
    case HTTP_BODY_IGNORE: return SHOAL_JSON_BYTES_MAX;
    case HTTP_BODY_BUFFER: return SHOAL_JSON_BYTES_MAX;
    case HTTP_BODY_STREAM: return SHOAL_UPLOAD_BYTES_MAX;
    }
    return 0;
}

static void refuse_size(struct http_request *request)
{
    http_respond_error(request, 413, "the request body is larger than %" PRIu64 " bytes", body_limit(request));
}

static bool coding_is_identity(struct http_request *request)
{
    struct shoal_view coding;

    return !http1_header_find(&request->head, "content-encoding", &coding) || coding.len == 0 ||
           shoal_view_equal(coding, shoal_view_text("identity"));
}

/* 405 says which methods there are (RFC 9110, 15.5.6). */
static void refuse_method(struct http_request *request, unsigned known)
{
    static const char *const names[] = {
        [HTTP1_GET] = "GET, HEAD", [HTTP1_POST] = "POST", [HTTP1_PUT] = "PUT", [HTTP1_DELETE] = "DELETE"
    };
    char allow[64] = "";

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t len = strlen(allow);

        if ((known & 1u << i) != 0)
            (void)snprintf(allow + len, sizeof(allow) - len, "%s%s", len == 0 ? "" : ", ", names[i]);
    }
    http_header_add(request, "Allow", "%s", allow);
    http_respond_error(request, 405, "this address does not take that method");
}

void http_request_begin(struct http_request *request)
{
    const struct http_route *(*const tables[])(size_t *) = { http_routes_execs,    http_routes_scheduler, http_routes_native,
                                                             http_routes_services, http_routes_oip,
                                                             http_routes_dlim,     http_routes_grpc,
                                                             http_routes_profile,  http_routes_openai,
                                                             http_routes_edimodels, http_routes_runtimes,
                                                             http_routes_download };
    const struct http_route *route = NULL;
    unsigned known = 0;

    request->began_ms = http_now_ms(request->http);
    if (grpc_asks(request))
        request->reply = grpc_refuse;
    add_origin(request);
    if (request->head.method == HTTP1_OPTIONS && takes_origins(request)) {
        answer_options(request);
        return;
    }
    for (size_t i = 0; route == NULL && i < sizeof(tables) / sizeof(tables[0]); i++) {
        size_t count;
        const struct http_route *routes = tables[i](&count);

        route = find_route(request, routes, count, &known);
    }
    if (route == NULL) {
        if (known != 0)
            refuse_method(request, known);
        else
            http_respond_error(request, 404, "there is no such address; docs/API.md lists them");
        return;
    }
    request->route = route;
    if (!coding_is_identity(request)) {
        http_respond_error(request, 415, "a compressed request body is not read; send it without Content-Encoding");
        return;
    }
    if (request->head.content_length > body_limit(request)) {
        refuse_size(request);
        return;
    }
    if (!query_is_good(request))
        return;
    if (request->client->requests > SHOAL_HTTP_SHARE_REQUESTS_MAX) /* over HTTP/1: of clients that have gone */
        refuse_share(request, "your address");
    else if (route->open)
        start_body(request);
    else
        auth_request(request, enter_user);
}

void http_request_data(struct http_request *request, struct shoal_view content)
{
    request->body_bytes += content.len;
    http_pace_add(&request->pace, content.len);
    if (request->responded && !request->route->both_ways)
        return;
    if (request->body_bytes > body_limit(request) && !request->route->both_ways) {
        refuse_size(request);
        return;
    }
    switch (request->route->mode) {
    case HTTP_BODY_IGNORE: return;
    case HTTP_BODY_BUFFER:
        if (shoal_buf_append(&request->body, content.bytes, content.len) != SHOAL_OK)
            http_respond_error(request, 503, "out of memory; try again later");
        return;
    case HTTP_BODY_STREAM:
        http_request_hold(request); /* R5 of http_room.h */
        request->route->data(request, content);
        http_request_release(request);
        return;
    }
}

bool http_body_is_slow(struct http_request *request, uint64_t now_ms)
{
    if (request->paused == 0)
        return http_pace_is_low(&request->pace, now_ms) && !request->route->both_ways;
    http_pace_pause(&request->pace, now_ms);
    return false;
}

void http_request_complete(struct http_request *request)
{
    request->body_done = true;
    if (request->route->both_ways || (!request->responded && http_body_may(request)))
        request->route->handle(request);
}

void http_request_bad(struct http_request *request, int status, const struct shoal_msg *msg)
{
    request->head.keep_alive = false;
    if (request->responded)
        http_stream_abort(request);
    else
        http_respond_error(request, status, "%s", msg->text);
}

/* ---- answering ---- */

static const char *reason(int status)
{
    switch (status) {
    case 200: return "OK";
    case 201: return "Created";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 206: return "Partial Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 416: return "Range Not Satisfiable";
    case 417: return "Expectation Failed";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 507: return "Insufficient Storage";
    case 505: return "HTTP Version Not Supported";
    default: return "Status";
    }
}

void http_header_add(struct http_request *request, const char *name, const char *format, ...)
{
    char value[2048];
    char line[2304];
    va_list args;
    int len;

    SHOAL_ASSERT(!request->responded);
    va_start(args, format);
    (void)vsnprintf(value, sizeof(value), format, args);
    va_end(args);
    SHOAL_ASSERT(strpbrk(value, "\r\n") == NULL);
    len = snprintf(line, sizeof(line), "%s: %s\r\n", name, value);
    /* Without memory the answer goes without the line; what must be there is checked by its reader. */
    if (len > 0 && (size_t)len < sizeof(line) && shoal_buf_append(&request->extra, line, (size_t)len) != SHOAL_OK)
        request->head.keep_alive = false;
}

static int format_head(const struct http_request *request, int status, const char *type, uint64_t length, bool keep,
                       char *out, size_t cap)
{
    char framing[64] = "";

    if (request->chunked)
        (void)snprintf(framing, sizeof(framing), "Transfer-Encoding: chunked\r\n");
    else if (length != HTTP_LENGTH_UNKNOWN && status != 204)
        (void)snprintf(framing, sizeof(framing), "Content-Length: %" PRIu64 "\r\n", length);
    return snprintf(
        out, cap, "HTTP/1.1 %d %s\r\n%s%s%s%s%sCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n%.*s\r\n",
        status, reason(status), type == NULL ? "" : "Content-Type: ", type == NULL ? "" : type,
        type == NULL ? "" : "\r\n", framing, keep ? "" : "Connection: close\r\n", (int)request->extra.len,
        request->extra.len == 0 ? "" : (const char *)request->extra.bytes);
}

static void response_end(struct http_request *request)
{
    SHOAL_ASSERT(!request->response_ended);
    request->response_ended = true;
    if (request->conn != NULL && request->stream != NULL)
        http2_answer_ended(request);
    else if (request->conn != NULL)
        http_conn_response_ended(request->conn, request);
}

/* The client is told that nothing more comes of it: over HTTP/1 its connection is closed. */
static void drop(struct http_request *request)
{
    if (request->conn == NULL)
        return;
    if (request->stream != NULL)
        http2_abort(request);
    else
        http_conn_close(request->conn);
}

static void respond_h2(struct http_request *request, int status, const char *type, struct shoal_view body)
{
    size_t length = body.len;
    enum shoal_err err;

    if (request->head.method == HTTP1_HEAD)
        body.len = 0;
    http_request_hold(request);
    err = http2_answer(request, status, type, length, body.len == 0);
    if (err == SHOAL_OK && body.len > 0)
        err = http2_write(request, body, NULL);
    if (err != SHOAL_OK)
        drop(request);
    else
        response_end(request);
    http_request_release(request);
}

static void respond_as(struct http_request *request, int status, const char *type, struct shoal_view body)
{
    char head[8192];
    int len;

    SHOAL_ASSERT(!request->responded);
    request->responded = true;
    if (request->conn == NULL)
        return;
    if (request->stream == NULL && !http_conn_keeps(request->conn, request))
        request->head.keep_alive = false;
    if (status == 204 || status == 304)
        body.len = 0; /* such an answer has no body: a client would take it for the next answer's head */
    if (request->stream != NULL) {
        respond_h2(request, status, type, body);
        return;
    }
    len = format_head(request, status, type, body.len, request->head.keep_alive, head, sizeof(head));
    if (request->head.method == HTTP1_HEAD)
        body.len = 0;
    if (len < 0 || (size_t)len >= sizeof(head) ||
        http_conn_write(request->conn, shoal_view_of(head, (size_t)len), body, NULL, NULL) != SHOAL_OK) {
        http_conn_close(request->conn);
        return;
    }
    response_end(request);
}

/* Every /v1 address that answers JSON answers MessagePack to who prefers it. */
static bool wants_pack(struct http_request *request, const char *type)
{
    struct shoal_view accept;

    return type != NULL && strcmp(type, "application/json") == 0 && request->route != NULL &&
           strncmp(request->route->pattern, "/v1/", 4) == 0 && http1_header_find(&request->head, "accept", &accept) &&
           memmem(accept.bytes, accept.len, PACK_TYPE, sizeof(PACK_TYPE) - 1) != NULL;
}

void http_respond(struct http_request *request, int status, const char *type, struct shoal_view body)
{
    struct shoal_buf pack = { 0 };

    if (request->reply != NULL)
        request->reply(request, status, body);
    else if (wants_pack(request, type) && json_to_pack(body, &pack) == SHOAL_OK)
        respond_as(request, status, PACK_TYPE, shoal_buf_view(&pack));
    else
        respond_as(request, status, type, body);
    shoal_buf_deinit(&pack);
}

void http_respond_json(struct http_request *request, int status, struct json_writer *writer)
{
    if (writer->failed)
        http_respond_error(request, 503, "out of memory; try again later");
    else
        http_respond(request, status, "application/json", shoal_buf_view(writer->buf));
    shoal_buf_deinit(writer->buf);
}

static void respond_dlim_error(struct http_request *request, int status, const char *text)
{
    static const char asks[] = "/dlim/v1/inference/";
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    if (status == 401)
        http_header_add(request, "WWW-Authenticate", "Bearer"); /* not Basic: browsers would open a box */
    json_object_begin(&w, NULL);
    json_text(&w, "error", text);
    json_end(&w);
    if (w.failed || begins(request->head.path, asks))
        http_respond(request, status, "text/plain; charset=utf-8", shoal_view_text(text));
    else
        http_respond(request, status, "application/json", shoal_buf_view(&buf));
    shoal_buf_deinit(&buf);
}

struct openai_error {
    int status;
    const char *type, *code; /* code NULL: null */
};

static struct openai_error openai_error_of(int status)
{
    static const struct openai_error known[] = { { 401, "authentication_error", "invalid_api_key" },
                                                 { 403, "permission_error", NULL },
                                                 { 404, "not_found_error", "model_not_found" },
                                                 { 429, "rate_limit_error", NULL } };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (known[i].status == status)
            return known[i];
    return (struct openai_error){ status, status < 500 ? "invalid_request_error" : "server_error", NULL };
}

void http_openai_error(struct json_writer *w, int status, const char *text)
{
    const struct openai_error error = openai_error_of(status);

    json_object_begin(w, NULL);
    json_object_begin(w, "error");
    json_text(w, "message", text);
    json_text(w, "type", error.type);
    json_raw(w, "param", shoal_view_text("null"));
    if (error.code == NULL)
        json_raw(w, "code", shoal_view_text("null"));
    else
        json_text(w, "code", error.code);
    json_end(w);
    json_end(w);
}

static void respond_openai_error(struct http_request *request, int status, const char *text)
{
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    if (status == 401)
        http_header_add(request, "WWW-Authenticate", "Bearer");
    http_openai_error(&w, status, text);
    http_respond(request, status, "application/json", shoal_buf_view(&buf));
    shoal_buf_deinit(&buf);
}

void http_respond_error(struct http_request *request, int status, const char *format, ...)
{
    char text[600];
    char line[700];
    va_list args;
    int len;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    shoal_text_plain(text, ' ');
    if (http_is_dlim(request)) {
        respond_dlim_error(request, status, text);
        return;
    }
    if (is_openai(request)) {
        respond_openai_error(request, status, text);
        return;
    }
    len = snprintf(line, sizeof(line), "Error %d: %s\n", status, text);
    if (status == 401)
        http_header_add(request, "WWW-Authenticate", "Basic realm=\"shoal\"");
    http_respond(request, status, "text/plain;charset=UTF-8", shoal_view_of(line, (size_t)len));
}

void http_respond_empty(struct http_request *request, int status)
{
    http_respond(request, status, NULL, (struct shoal_view){ 0 });
}

static int status_of(enum shoal_err err, int not_found)
{
    switch (err) {
    case SHOAL_OK: return 200;
    case SHOAL_ERR_INVALID:
    case SHOAL_ERR_UNSUPPORTED: return 400;
    case SHOAL_ERR_MALFORMED: return 400;
    case SHOAL_ERR_DENIED: return 403;
    case SHOAL_ERR_NOT_FOUND: return not_found;
    case SHOAL_ERR_EXISTS:
    case SHOAL_ERR_STALE: return 409;
    case SHOAL_ERR_TOO_BIG: return 413;
    case SHOAL_ERR_FULL:
    case SHOAL_ERR_TIMEOUT:
    case SHOAL_ERR_UNREACHABLE:
    case SHOAL_ERR_NOT_LEADER:
    case SHOAL_ERR_STORAGE: return 503;
    case SHOAL_ERR_NO_SPACE: return 507;
    case SHOAL_ERR_RANK_LOST:
    case SHOAL_ERR_DEVICE: return 500;
    }
    return 500;
}

void http_respond_failure(struct http_request *request, enum shoal_err err, const struct shoal_msg *msg, int not_found)
{
    http_respond_error(request, status_of(err, not_found), "%s",
                       msg->text[0] == '\0' ? shoal_err_name(err) : msg->text);
}

void http_stream_start(struct http_request *request, int status, const char *type, uint64_t length)
{
    bool is_head = request->head.method == HTTP1_HEAD; /* that is all of its answer: H3 is true of what follows */
    char head[8192];
    int len;

    SHOAL_ASSERT(!request->responded);
    request->responded = true;
    request->stream_left = length;
    if (request->conn == NULL)
        return;
    if (request->stream != NULL) {
        if (http2_answer(request, status, type, length, is_head) != SHOAL_OK)
            drop(request);
        else if (is_head)
            response_end(request);
        return;
    }
    request->chunked = length == HTTP_LENGTH_UNKNOWN && !request->head.http10;
    if (!http_conn_keeps(request->conn, request) || (length == HTTP_LENGTH_UNKNOWN && !request->chunked))
        request->head.keep_alive = false;
    len = format_head(request, status, type, length, request->head.keep_alive, head, sizeof(head));
    if (len < 0 || (size_t)len >= sizeof(head) ||
        http_conn_write(request->conn, shoal_view_of(head, (size_t)len), (struct shoal_view){ 0 }, NULL, NULL) !=
            SHOAL_OK)
        http_conn_close(request->conn);
    else if (is_head)
        response_end(request);
}

void http_stream_write(struct http_request *request, struct shoal_view bytes, http_request_fn *next)
{
    struct shoal_buf piece = { 0 };
    char size[24];
    enum shoal_err err = SHOAL_OK;

    SHOAL_ASSERT(request->responded && (request->conn == NULL || !request->response_ended));
    if (request->stream_left != HTTP_LENGTH_UNKNOWN) {
        SHOAL_ASSERT(bytes.len <= request->stream_left);
        request->stream_left -= bytes.len;
    }
    if (request->conn == NULL || bytes.len == 0) {
        http_call_later(request, next);
        return;
    }
    http_request_hold(request); /* H6 */
    if (request->chunked) {
        (void)snprintf(size, sizeof(size), "%zx\r\n", bytes.len);
        err = shoal_buf_append(&piece, size, strlen(size));
        if (err == SHOAL_OK)
            err = shoal_buf_append(&piece, bytes.bytes, bytes.len);
        if (err == SHOAL_OK)
            err = shoal_buf_append(&piece, "\r\n", 2);
        bytes = shoal_buf_view(&piece);
    }
    if (err == SHOAL_OK && request->stream != NULL)
        err = http2_write(request, bytes, next);
    else if (err == SHOAL_OK)
        err = http_conn_write(request->conn, bytes, (struct shoal_view){ 0 }, request, next);
    shoal_buf_deinit(&piece);
    if (err != SHOAL_OK) {
        drop(request);
        http_call_later(request, next);
    }
    http_request_release(request);
}

void http_stream_end(struct http_request *request)
{
    SHOAL_ASSERT(request->responded);
    if (request->conn == NULL)
        return;
    if (request->stream_left != HTTP_LENGTH_UNKNOWN && request->stream_left > 0) {
        drop(request);
        return;
    }
    if (request->chunked && http_conn_write(request->conn, shoal_view_of("0\r\n\r\n", 5), (struct shoal_view){ 0 },
                                            NULL, NULL) != SHOAL_OK) {
        http_conn_close(request->conn);
        return;
    }
    response_end(request);
}

void http_stream_abort(struct http_request *request) { drop(request); }
