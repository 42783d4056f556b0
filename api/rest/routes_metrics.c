/* GET /metrics: what this node counts, for whoever scrapes it.
 *
 * With a user's credentials, or with the operator's scrape token, which opens nothing else: a scraper has no password and
 * runs for years. OpenMetrics, unless the client takes the older text format alone (Accept: text/plain): there a counter's
 * family is named as its samples are, and there is no end mark. */
#include <stdio.h>
#include <string.h>

#include "shoal/crypto.h"
#include "shoal/metric_text.h"

#include "routes.h"

#include "shoal/banned.h"

static enum shoal_err server_metrics(const struct shoal_http *http, struct shoal_buf *text)
{
    const struct {
        const char *name, *help;
        uint64_t value;
    } rows[] = {
        { "shoal_http_connections_open", "connections to the API", http->stats.connections_open },
        { "shoal_http_connections_accepted_total", "connections since the start", http->stats.connections_accepted },
        { "shoal_http_connections_refused_total", "connections that found no room", http->stats.connections_refused },
        { "shoal_http_requests_total", "requests to the API", http->stats.requests },
        { "shoal_http_requests_open", "requests in hand, those of clients that have gone included", http->requests_open },
        { "shoal_http_refused_malformed_total", "requests that were no HTTP, or too large",
          http->stats.refused_malformed },
        { "shoal_http_refused_auth_total", "requests without a good token or password", http->stats.refused_auth },
        { "shoal_http_refused_busy_total", "requests that were told to come again", http->stats.refused_busy },
        { "shoal_http_gave_way_total", "requests whose bodies were still to come, and gave way to another user's",
          http->stats.gave_way },
        { "shoal_http_closed_slow_total", "connections closed because a request did not come to its end in time",
          http->stats.closed_slow },
        { "shoal_http_closed_idle_total", "connections closed because nothing was asked", http->stats.closed_idle },
        { "shoal_http_closed_full_total", "connections closed because they held most of what clients did not take, and that was too much",
          http->stats.closed_full },
        { "shoal_http_tls_failed_total", "handshakes that failed", http->stats.tls_failed },
        { "shoal_http2_connections_accepted_total", "connections that speak HTTP/2", http->stats.h2_accepted },
        { "shoal_http2_calmed_total", "connections of HTTP/2 closed because they asked for too much work or memory",
          http->stats.h2_calmed },
        { "shoal_http_uploads_open", "uploads under way", http->rooms[HTTP_ROOM_UPLOADS].taken },
    };
    enum shoal_err err = SHOAL_OK;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && err == SHOAL_OK; i++)
        err = shoal_metric_value(text, rows[i].name, rows[i].help, rows[i].value);
    if (err == SHOAL_OK)
        err = shoal_metric_histogram(text, "shoal_http_request_seconds",
                                     "requests to the API, from their head to the end of their answer", &http->times);
    return err;
}

/* A line of the older format: "# TYPE x counter" and "# HELP x ..." name x_total. `counter`: of the family under way. */
static enum shoal_err put_older(struct shoal_buf *out, const uint8_t *line, size_t len, bool *counter)
{
    const uint8_t *end = len > 7 ? memchr(line + 7, ' ', len - 7) : NULL;
    enum shoal_err err;

    if (end == NULL || line[0] != '#')
        return shoal_buf_append(out, line, len);
    if (memcmp(line, "# TYPE ", 7) == 0)
        *counter = memmem(end, (size_t)(line + len - end), " counter", 8) != NULL;
    err = shoal_buf_append(out, line, (size_t)(end - line));
    if (err == SHOAL_OK && *counter)
        err = shoal_buf_append(out, "_total", 6);
    return err == SHOAL_OK ? shoal_buf_append(out, end, (size_t)(line + len - end)) : err;
}

static enum shoal_err to_older(const struct shoal_buf *text, struct shoal_buf *out)
{
    enum shoal_err err = SHOAL_OK;
    bool counter = false;

    for (size_t at = 0; at < text->len && err == SHOAL_OK;) {
        const uint8_t *end = memchr(text->bytes + at, '\n', text->len - at);
        size_t len = end == NULL ? text->len - at : (size_t)(end - (text->bytes + at)) + 1;

        err = put_older(out, text->bytes + at, len, &counter);
        at += len;
    }
    return err;
}

static bool wants_older(struct http_request *request)
{
    struct shoal_view accept;

    return http1_header_find(&request->head, "accept", &accept) &&
           memmem(accept.bytes, accept.len, "text/plain", 10) != NULL &&
           memmem(accept.bytes, accept.len, "openmetrics", 11) == NULL;
}

static void answer(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct shoal_buf text = { 0 }, older = { 0 };
    enum shoal_err err = backend->metrics(backend->ctx, &text);

    if (err == SHOAL_OK)
        err = server_metrics(request->http, &text);
    if (err == SHOAL_OK && wants_older(request))
        err = to_older(&text, &older);
    else if (err == SHOAL_OK)
        err = shoal_buf_append(&text, "# EOF\n", 6);
    if (err != SHOAL_OK)
        http_respond_error(request, 503, "the metrics cannot be collected now; try again later");
    else if (older.len > 0)
        http_respond(request, 200, "text/plain; version=0.0.4; charset=utf-8", shoal_buf_view(&older));
    else
        http_respond(request, 200, "application/openmetrics-text; version=1.0.0; charset=utf-8", shoal_buf_view(&text));
    shoal_buf_deinit(&text);
    shoal_buf_deinit(&older);
}

/* "Authorization: Bearer <the scrape token>" */
static bool is_scraper(struct http_request *request)
{
    const char *token = request->http->options.scrape_token;
    struct shoal_view given;
    size_t len = token == NULL ? 0 : strlen(token);

    return len > 0 && http1_header_find(&request->head, "authorization", &given) && given.len == len + 7 &&
           memcmp(given.bytes, "Bearer ", 7) == 0 && shoal_secret_equal(given.bytes + 7, token, len);
}

void routes_metrics(struct http_request *request)
{
    if (is_scraper(request))
        answer(request);
    else
        auth_request(request, answer);
}
