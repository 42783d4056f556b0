#include "http_server.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include "shoal/address.h"
#include "shoal/crypto.h"

#include "shoal/banned.h"

#define TICK_MS 1000u
#define BACKLOG 512

/* libuv's own of the server, beside what its other files know. */
struct server {
    struct shoal_http http; /* the first */
    uv_tcp_t listener;
    uv_timer_t timer;
    uv_timer_t handshakes; /* runs while connections wait to answer a hello */
    uv_timer_t yields;     /* runs while connections wait for the next turn */
    uv_timer_t bodies;     /* runs while whole bodies do */
};

static struct server *server_of(struct shoal_http *http) { return (struct server *)http; }

uint64_t http_now_ms(const struct shoal_http *http) { return uv_now(http->loop); }

struct later {
    uv_timer_t timer;
    struct http_request *request;
    http_request_fn *next;
};

static void on_later_closed(uv_handle_t *handle)
{
    struct later *later = handle->data;
    struct http_request *request = later->request;

    later->next(request);
    free(later);
    http_request_release(request);
}

static void on_later(uv_timer_t *timer) { uv_close((uv_handle_t *)timer, on_later_closed); }

void http_call_later(struct http_request *request, http_request_fn *next)
{
    struct later *later = calloc(1, sizeof(*later));

    SHOAL_ASSERT(later != NULL);
    later->request = request;
    later->next = next;
    http_request_hold(request);
    (void)uv_timer_init(request->http->loop, &later->timer);
    later->timer.data = later;
    (void)uv_timer_start(&later->timer, on_later, 0, 0);
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct shoal_http *http = listener->data;

    if (status == 0 && !http->stopping)
        http_conn_accept(http, listener);
}

static void on_tick(uv_timer_t *timer)
{
    struct shoal_http *http = timer->data;
    struct http_conn *next;

    for (struct http_conn *conn = http->conns; conn != NULL; conn = next) {
        next = http_conn_next(conn);
        http_conn_tick(conn, http_now_ms(http));
    }
}

static void on_handshakes(uv_timer_t *timer);

static void handshakes_wait(struct shoal_http *http)
{
    if (!http->handshakes_wait && !http->stopping)
        (void)uv_timer_start(&server_of(http)->handshakes, on_handshakes, SHOAL_HANDSHAKES_SPAN_MS, 0);
    http->handshakes_wait = true;
}

/* The oldest connections that wait, as many as a span has; the list has the newest first. */
static void on_handshakes(uv_timer_t *timer)
{
    struct shoal_http *http = timer->data;
    struct http_conn *oldest[SHOAL_HANDSHAKES_MAX];
    unsigned count = 0;

    http->handshakes_wait = false;
    for (struct http_conn *conn = http->conns; conn != NULL; conn = http_conn_next(conn))
        if (http_conn_waits(conn))
            oldest[count++ % SHOAL_HANDSHAKES_MAX] = conn;
    for (unsigned i = 0; i < count && i < SHOAL_HANDSHAKES_MAX; i++)
        http_conn_resume(oldest[(count - 1 - i) % SHOAL_HANDSHAKES_MAX]);
    if (count > SHOAL_HANDSHAKES_MAX)
        handshakes_wait(http);
}

bool http_handshake_may(struct shoal_http *http)
{
    uint64_t passed = http_now_ms(http) - http->handshakes_ms;

    if (passed >= SHOAL_HANDSHAKES_SPAN_MS) {
        http->handshakes_ms += passed;
        http->handshakes = 0;
    }
    if (!http->handshakes_wait && http->handshakes < SHOAL_HANDSHAKES_MAX)
        return true;
    handshakes_wait(http);
    return false;
}

static void on_yields(uv_timer_t *timer)
{
    struct shoal_http *http = timer->data;
    struct http_conn *next;

    http->yields_wait = false;
    http->yielding = true;
    for (struct http_conn *conn = http->conns; conn != NULL; conn = next) {
        next = http_conn_next(conn);
        if (http_conn_yields(conn))
            http_conn_go_on(conn);
    }
    http->yielding = false;
}

/* A timer of no time that is started by a timer runs in the same turn again (libuv 1.44). */
void http_yield(struct shoal_http *http)
{
    if (!http->yields_wait && !http->stopping)
        (void)uv_timer_start(&server_of(http)->yields, on_yields, http->yielding ? 1 : 0, 0);
    http->yields_wait = true;
}

/* ---- whole bodies ---- */

static bool body_fits(const struct shoal_http *http, const struct http_request *request)
{
    return http->bodies_bytes == 0 || http->bodies_bytes + request->turn_bytes <= SHOAL_HTTP_TURN_BODIES_BYTES;
}

static void next_body(struct shoal_http *http)
{
    struct http_request *request = http->bodies;

    http->bodies = request->next_body;
    http->bodies_bytes += request->turn_bytes;
    if (request->turn != NULL)
        request->turn(request);
    else if (request->conn != NULL && !request->responded)
        request->route->handle(request);
    http_request_release(request);
}

static void on_bodies(uv_timer_t *timer)
{
    struct shoal_http *http = timer->data;

    http->bodies_ms = http_now_ms(http);
    http->bodies_bytes = 0;
    while (http->bodies != NULL && body_fits(http, http->bodies))
        next_body(http);
    if (http->bodies != NULL)
        (void)uv_timer_start(timer, on_bodies, 1, 0);
}

static void wait_for_turn(struct http_request *request)
{
    struct shoal_http *http = request->http;

    http_request_hold(request);
    request->next_body = NULL;
    if (http->bodies == NULL) {
        http->bodies = request;
        (void)uv_timer_start(&server_of(http)->bodies, on_bodies, 1, 0);
    } else {
        http->bodies_last->next_body = request;
    }
    http->bodies_last = request;
}

bool http_body_may(struct http_request *request)
{
    struct shoal_http *http = request->http;

    request->turn_bytes = request->body_bytes;
    if (http->bodies_ms != http_now_ms(http)) {
        http->bodies_ms = http_now_ms(http);
        http->bodies_bytes = 0;
    }
    if (request->body_bytes == 0 || http->stopping || (http->bodies == NULL && body_fits(http, request))) {
        http->bodies_bytes += request->body_bytes;
        return true;
    }
    wait_for_turn(request);
    return false;
}

/* Not in this turn, even where it has room: by its clock a turn that has waited for events is another one after that. */
void http_answer_later(struct http_request *request, uint64_t bytes, http_request_fn *turn)
{
    request->turn_bytes = bytes;
    request->turn = turn;
    if (request->http->stopping)
        turn(request);
    else
        wait_for_turn(request);
}

/* Before all others that wait, so that few answers are half made at a time. */
void http_answer_on(struct http_request *request, http_request_fn *turn)
{
    struct shoal_http *http = request->http;

    request->turn = turn;
    if (http->stopping) {
        turn(request);
        return;
    }
    http_request_hold(request);
    request->next_body = http->bodies;
    if (http->bodies == NULL) {
        http->bodies_last = request;
        (void)uv_timer_start(&server_of(http)->bodies, on_bodies, 1, 0);
    }
    http->bodies = request;
}

bool http_message_may(struct shoal_http *http, size_t bytes)
{
    if (http->messages_ms != http_now_ms(http)) {
        http->messages_ms = http_now_ms(http);
        http->messages_bytes = 0;
    }
    if (bytes > 0 && http->messages_bytes > 0 && http->messages_bytes + bytes > SHOAL_HTTP_TURN_BODIES_BYTES)
        return false;
    http->messages_bytes += bytes;
    return true;
}

static void http_free(struct shoal_http *http)
{
    tls_context_destroy(http->tls);
    free(http->spool_dir);
    shoal_wipe(http->basic, sizeof(http->basic));
    free(server_of(http));
}

void http_stop_check(struct shoal_http *http)
{
    void (*stopped)(void *arg) = http->stopped;
    void *arg = http->stopped_arg;

    if (!http->stopping || http->handles_open > 0 || http->requests_open > 0)
        return;
    http_free(http);
    if (stopped != NULL)
        stopped(arg);
}

void http_handle_closed(struct shoal_http *http)
{
    SHOAL_ASSERT(http->handles_open > 0);
    http->handles_open--;
    http_stop_check(http);
}

static void on_own_closed(uv_handle_t *handle) { http_handle_closed(handle->data); }

static enum shoal_err bind_listener(struct shoal_http *http, struct shoal_msg *msg)
{
    const char *host = http->options.host;
    struct sockaddr_storage address;
    int address_len = sizeof(address);
    unsigned port = http->options.port;
    int failed;

    failed = uv_ip4_addr(host, (int)port, (struct sockaddr_in *)&address);
    if (failed != 0)
        failed = uv_ip6_addr(host, (int)port, (struct sockaddr_in6 *)&address);
    if (failed != 0)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "API address %s: not an IP address", host);
    failed = uv_tcp_bind(&server_of(http)->listener, (const struct sockaddr *)&address, 0);
    if (failed == 0)
        failed = uv_listen((uv_stream_t *)&server_of(http)->listener, BACKLOG, on_connection);
    if (failed != 0)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "API address %s port %u: %s; %s (--api-host, --api-port)", host, port,
                          uv_strerror(failed), shoal_address_remedy(-failed));
    failed = uv_tcp_getsockname(&server_of(http)->listener, (struct sockaddr *)&address, &address_len);
    if (failed != 0)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "API address %s: %s", host, uv_strerror(failed));
    http->port = address.ss_family == AF_INET ? ntohs(((struct sockaddr_in *)&address)->sin_port)
                                              : ntohs(((struct sockaddr_in6 *)&address)->sin6_port);
    return SHOAL_OK;
}

static enum shoal_err open_handles(struct shoal_http *http, struct shoal_msg *msg)
{
    int failed = uv_tcp_init(http->loop, &server_of(http)->listener);

    if (failed != 0)
        return shoal_fail(msg, SHOAL_ERR_FULL, "API socket: %s", uv_strerror(failed));
    server_of(http)->listener.data = http;
    http->handles_open = 1;
    failed = uv_timer_init(http->loop, &server_of(http)->timer);
    SHOAL_ASSERT(failed == 0);
    server_of(http)->timer.data = http;
    http->handles_open = 2;
    failed = uv_timer_start(&server_of(http)->timer, on_tick, TICK_MS, TICK_MS);
    SHOAL_ASSERT(failed == 0);
    failed = uv_timer_init(http->loop, &server_of(http)->handshakes);
    SHOAL_ASSERT(failed == 0);
    server_of(http)->handshakes.data = http;
    http->handles_open = 3;
    failed = uv_timer_init(http->loop, &server_of(http)->yields);
    SHOAL_ASSERT(failed == 0);
    server_of(http)->yields.data = http;
    http->handles_open = 4;
    failed = uv_timer_init(http->loop, &server_of(http)->bodies);
    SHOAL_ASSERT(failed == 0);
    server_of(http)->bodies.data = http;
    http->handles_open = 5;
    return bind_listener(http, msg);
}

enum shoal_err shoal_http_start(struct uv_loop_s *loop, const struct shoal_http_options *options,
                                const struct shoal_backend *backend, struct shoal_http **http, struct shoal_msg *msg)
{
    struct server *server;
    struct shoal_http *made;
    enum shoal_err err;

    err = shoal_crypto_init(msg);
    if (err != SHOAL_OK)
        return err;
    /* libuv writes with write(2): a client that has gone must be an error, not our death. */
    (void)signal(SIGPIPE, SIG_IGN);
    if (access(options->spool_dir, W_OK | X_OK) != 0)
        return shoal_fail(msg, SHOAL_ERR_STORAGE, "%s: the folder for uploads cannot be written: %s",
                          options->spool_dir, strerror(errno));
    server = calloc(1, sizeof(*server));
    if (server == NULL || (server->http.spool_dir = strdup(options->spool_dir)) == NULL) {
        free(server);
        return shoal_fail(msg, SHOAL_ERR_FULL, "out of memory");
    }
    made = &server->http;
    made->loop = loop;
    made->backend = *backend;
    made->options = *options;
    if (made->options.connections_max == 0)
        made->options.connections_max = SHOAL_HTTP_CONNECTIONS_MAX;
    if (made->options.write_ms == 0)
        made->options.write_ms = 60000;
    if (made->options.token_life_s == 0)
        made->options.token_life_s = 12 * 3600;
    http_rooms_init(made);
    shoal_random(made->basic_key, sizeof(made->basic_key));
    shoal_random(made->tokens.secret, sizeof(made->tokens.secret));
    if (!options->plain) {
        err = tls_context_create(options->tls_dir, &options->tls, &made->tls, msg);
        if (err != SHOAL_OK) {
            http_free(made);
            return err;
        }
    }
    err = open_handles(made, msg);
    if (err != SHOAL_OK) {
        if (made->handles_open == 0)
            http_free(made);
        else
            shoal_http_stop(made, NULL, NULL);
        return err;
    }
    /* These belonged to the caller. */
    made->options.host = NULL;
    made->options.tls_dir = NULL;
    shoal_wipe(&made->options.tls, sizeof(made->options.tls));
    (void)snprintf(made->scrape_token, sizeof(made->scrape_token), "%s",
                   options->scrape_token == NULL ? "" : options->scrape_token);
    made->options.scrape_token = made->scrape_token;
    made->options.spool_dir = made->spool_dir;
    *http = made;
    return SHOAL_OK;
}

void shoal_http_stop(struct shoal_http *http, void (*stopped)(void *arg), void *arg)
{
    struct http_conn *next;

    SHOAL_ASSERT(!http->stopping);
    http->stopping = true;
    http->stopped = stopped;
    http->stopped_arg = arg;
    while (http->bodies != NULL)
        next_body(http);
    for (struct http_conn *conn = http->conns; conn != NULL; conn = next) {
        next = http_conn_next(conn);
        http_conn_part(conn);
    }
    if (http->handles_open > 1) {
        uv_close((uv_handle_t *)&server_of(http)->timer, on_own_closed);
        uv_close((uv_handle_t *)&server_of(http)->handshakes, on_own_closed);
        uv_close((uv_handle_t *)&server_of(http)->yields, on_own_closed);
        uv_close((uv_handle_t *)&server_of(http)->bodies, on_own_closed);
    }
    uv_close((uv_handle_t *)&server_of(http)->listener, on_own_closed);
}

uint16_t shoal_http_port(const struct shoal_http *http) { return http->port; }
void shoal_http_stats(const struct shoal_http *http, struct shoal_http_stats *stats)
{
    *stats = http->stats;
    stats->uploads_open = (uint32_t)http->rooms[HTTP_ROOM_UPLOADS].taken;
}
