/* A log as an answer: one piece from the backend, one piece to the client, until nothing more is there now. The last N
 * lines are found by keeping, while reading, no more than a bounded tail. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "routes.h"

#include "shoal/banned.h"

#define PIECE_BYTES ((size_t)128 * SHOAL_KIB)
#define TAIL_BYTES_MAX ((size_t)SHOAL_MIB)
#define TURNS_MAX 1000000u /* pieces of one answer: a log that grows as fast as it is read ends, too */

struct log_stream {
    struct http_request *request;
    enum shoal_log_kind kind;
    unsigned task;
    unsigned last_lines; /* 0: all */
    bool as_json;
    bool started;
    bool asking;
    bool again;
    int not_found;
    uint64_t cursor;
    unsigned turns;
    struct shoal_log_request question; /* the backend's until it answers */
    struct json_escaper escaper;
    struct shoal_buf piece; /* on its way to the client, or the tail */
};

static void log_free(void *state)
{
    struct log_stream *log = state;

    shoal_buf_deinit(&log->piece);
    free(log);
}

static void ask(struct log_stream *log);

static void next_piece(struct http_request *request)
{
    struct log_stream *log = request->state;

    if (request->conn == NULL || ++log->turns > TURNS_MAX) {
        http_stream_abort(request);
        http_request_release(request);
        return;
    }
    ask(log);
}

static void log_end(struct http_request *request)
{
    http_stream_end(request);
    http_request_release(request);
}

static void start(struct log_stream *log)
{
    log->started = true;
    http_stream_start(log->request, 200, log->as_json ? "application/json" : "text/plain;charset=UTF-8",
                      HTTP_LENGTH_UNKNOWN);
    if (log->as_json && shoal_buf_append(&log->piece, "\"", 1) != SHOAL_OK)
        http_stream_abort(log->request);
}

static void send_piece(struct log_stream *log, struct shoal_view bytes, bool last)
{
    struct http_request *request = log->request;
    enum shoal_err err;

    log->piece.len = 0;
    if (!log->started)
        start(log);
    log->escaper.plain = !log->as_json;
    err = json_escape(&log->escaper, bytes, last, &log->piece);
    if (err == SHOAL_OK && last && log->as_json)
        err = shoal_buf_append(&log->piece, "\"", 1);
    if (err != SHOAL_OK)
        http_stream_abort(request);
    http_stream_write(request, shoal_buf_view(&log->piece), last ? log_end : next_piece);
}

/* Drops from the front what cannot be among the last lines. */
static enum shoal_err keep_tail(struct log_stream *log, struct shoal_view bytes)
{
    enum shoal_err err = shoal_buf_append(&log->piece, bytes.bytes, bytes.len);

    if (err == SHOAL_OK && log->piece.len > 2 * TAIL_BYTES_MAX) {
        size_t drop = log->piece.len - TAIL_BYTES_MAX;

        memmove(log->piece.bytes, log->piece.bytes + drop, TAIL_BYTES_MAX);
        log->piece.len = TAIL_BYTES_MAX;
    }
    return err;
}

static struct shoal_view last_lines(const struct shoal_buf *tail, unsigned lines)
{
    size_t at = tail->len;

    if (at > 0 && tail->bytes[at - 1] == '\n')
        at--;
    while (at > 0) {
        if (tail->bytes[at - 1] == '\n' && --lines == 0)
            break;
        at--;
    }
    return shoal_view_of(tail->bytes + at, tail->len - at);
}

static void on_chunk(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_log_chunk *chunk)
{
    struct log_stream *log = arg;
    struct http_request *request = log->request;

    if (request->conn == NULL && log->last_lines > 0) { /* who asked for the end of it is gone: the rest is not read */
        http_request_release(request);
        return;
    }
    if (err == SHOAL_OK && log->last_lines > 0 && chunk->bytes.len > 0)
        err = keep_tail(log, chunk->bytes);
    if (err != SHOAL_OK) {
        if (log->started)
            http_stream_abort(request);
        else
            http_respond_failure(request, err, msg, log->not_found);
        http_request_release(request);
        return;
    }
    log->cursor = chunk->cursor;
    if (log->last_lines > 0) {
        if (chunk->bytes.len > 0 && ++log->turns < TURNS_MAX) {
            log->again = true;
            if (!log->asking)
                ask(log);
            return;
        }
        http_respond(request, 200, "text/plain;charset=UTF-8", last_lines(&log->piece, log->last_lines));
        http_request_release(request);
        return;
    }
    send_piece(log, chunk->bytes, chunk->bytes.len == 0);
}

/* A backend may answer at once: a loop instead of a recursion. */
static void ask(struct log_stream *log)
{
    const struct shoal_backend *backend = &log->request->http->backend;
    struct http_request *request = log->request;

    http_request_hold(request);
    log->again = true;
    while (log->again) {
        log->again = false;
        log->question = (struct shoal_log_request){ .id = request->params[0],
                                                    .caller = &request->user,
                                                    .kind = log->kind,
                                                    .task = log->task,
                                                    .task_named = log->kind >= SHOAL_LOG_TASK_OUT,
                                                    .cursor = log->cursor,
                                                    .bytes_max = PIECE_BYTES };
        log->asking = true;
        backend->log_read(backend->ctx, &log->question, on_chunk, log);
        log->asking = false;
    }
    http_request_release(request);
}

void routes_log_stream(struct http_request *request, enum shoal_log_kind kind, unsigned task, unsigned last_lines,
                       bool as_json, int not_found)
{
    struct log_stream *log = calloc(1, sizeof(*log));

    if (log == NULL) {
        http_respond_error(request, 503, "out of memory; try again later");
        return;
    }
    *log = (struct log_stream){ .request = request,
                                .kind = kind,
                                .task = task,
                                .last_lines = last_lines,
                                .as_json = as_json,
                                .not_found = not_found };
    request->state = log;
    request->state_free = log_free;
    http_request_hold(request);
    ask(log);
}
