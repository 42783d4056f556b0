/* See asking.h for the picture and the rules. */
#include "asking.h"

#include "api/http/json_input.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/text.h"

#include "shoal/banned.h"

#define RETRY_S 1
#define EVENTS "text/event-stream"
#define OWN_ERROR_BYTES_MAX (64u * SHOAL_KIB) /* a longer error is passed on as it is */

struct asking {
    struct http_request *request;
    struct shoal_buf body;
    struct shoal_infer infer;
    enum asker asker;
    asking_answer_fn *answer; /* NULL: the output goes out as it is */
    bool events;  /* A1: the client wants them */
    bool started; /* the first one has come: the answer is under way */
    bool writing;
    bool over;             /* the backend has nothing more */
    struct shoal_buf out;  /* events that wait for the socket */
    size_t out_pieces;     /* bytes of pieces in them */
    size_t writing_pieces; /* the same of those that are being written */
};

static void asking_free(void *state)
{
    struct asking *a = state;

    shoal_buf_deinit(&a->body);
    shoal_buf_deinit(&a->out);
    free(a);
}

/* ---- errors ---- */

void asking_refuse(struct http_request *request, enum asker asker, int status, const char *text)
{
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);
    char shown[600];

    if (status == 429 || status == 503)
        http_header_add(request, "Retry-After", "%d", RETRY_S);
    (void)snprintf(shown, sizeof(shown), "%s", text);
    shoal_text_plain(shown, ' ');
    if (asker == ASKER_DLIM) {
        http_respond(request, status, "text/plain; charset=utf-8", shoal_view_text(shown));
        return;
    }
    if (asker == ASKER_EDI) {
        http_respond_error(request, status, "%s", shown);
        return;
    }
    if (asker == ASKER_OPENAI) {
        http_openai_error(&w, status, shown);
    } else {
        json_object_begin(&w, NULL);
        json_text(&w, "error", shown);
        json_end(&w);
    }
    http_respond_json(request, status, &w);
}

static int status_of(enum shoal_err err, enum asker asker)
{
    if (err == SHOAL_ERR_NOT_FOUND)
        return 404;
    if (err == SHOAL_ERR_TOO_BIG)
        return 413;
    if (err == SHOAL_ERR_TIMEOUT)
        return 504;
    if (err == SHOAL_ERR_FULL)
        return asker == ASKER_DLIM || asker == ASKER_EDI ? 503 : 429;
    if (err == SHOAL_ERR_UNREACHABLE || err == SHOAL_ERR_NOT_LEADER || err == SHOAL_ERR_STORAGE)
        return 503;
    return err == SHOAL_ERR_INVALID ? 400 : 500;
}

/* ---- one answer ---- */

/* JSON as Python writes it, NaN and Infinity too; a look at its ends is enough to name it. */
static bool looks_like_json(struct shoal_view body)
{
    size_t at = 0, end = body.len;

    while (at < end && strchr(" \t\r\n", body.bytes[at]) != NULL && body.bytes[at] != 0)
        at++;
    while (end > at && strchr(" \t\r\n", body.bytes[end - 1]) != NULL && body.bytes[end - 1] != 0)
        end--;
    if (at == end)
        return false;
    return (body.bytes[at] == '{' && body.bytes[end - 1] == '}') ||
           (body.bytes[at] == '[' && body.bytes[end - 1] == ']');
}

static const char *type_of(const struct shoal_inferred *inferred)
{
    if (inferred->content_type[0] != '\0')
        return inferred->content_type;
    return looks_like_json(inferred->body) ? "application/json" : "text/plain; charset=utf-8";
}

/* A kernel's reason for its own failure: text, or an object with "error", which is text where a model's file is served. False:
 * it is an object as OpenAI's clients read it, or some other JSON. */
static bool own_error_text(const struct shoal_inferred *inferred, char text[600])
{
    struct json_input *input = NULL;
    struct shoal_msg why = { "" };
    const char *said = NULL;

    if (!looks_like_json(inferred->body)) {
        (void)snprintf(text, 600, "%.*s", inferred->body.len > 500 ? 500 : (int)inferred->body.len,
                       inferred->body.len == 0 ? "" : (const char *)inferred->body.bytes);
        return true;
    }
    if (inferred->body.len <= OWN_ERROR_BYTES_MAX && json_input_parse(inferred->body, &input, &why) == SHOAL_OK)
        said = json_input_text(json_input_root(input), "error");
    if (said != NULL)
        (void)snprintf(text, 600, "%.500s", said);
    json_input_free(input);
    return said != NULL;
}

static bool respond_own_error(struct asking *a, const struct shoal_inferred *inferred)
{
    char text[600];

    if (inferred->status < 400 || (a->asker != ASKER_OPENAI && a->asker != ASKER_EDI))
        return false;
    if (!own_error_text(inferred, text)) {
        if (a->asker == ASKER_OPENAI)
            return false;
        (void)snprintf(text, sizeof(text), "%.*s", inferred->body.len > 500 ? 500 : (int)inferred->body.len,
                       (const char *)inferred->body.bytes);
    }
    asking_refuse(a->request, a->asker, (int)inferred->status, text);
    return true;
}

static void respond_whole(struct asking *a, const struct shoal_inferred *inferred)
{
    if (respond_own_error(a, inferred))
        return;
    if (a->answer != NULL) {
        a->answer(a->request, inferred->body);
        return;
    }
    if (inferred->header_len > 0)
        http_header_add(a->request, "Inference-Header-Content-Length", "%" PRIu32, inferred->header_len);
    http_respond(a->request, (int)inferred->status, type_of(inferred), inferred->body);
}

/* ---- events ---- */

/* "data: " before each line, and an empty line behind the last one. False: no memory. */
static bool put_event(struct asking *a, struct shoal_view piece)
{
    size_t at = 0;
    enum shoal_err err = SHOAL_OK;

    do {
        size_t len = 0;

        while (at + len < piece.len && piece.bytes[at + len] != '\n' && piece.bytes[at + len] != '\r')
            len++;
        err = shoal_buf_append(&a->out, "data: ", 6);
        if (err == SHOAL_OK && len > 0)
            err = shoal_buf_append(&a->out, piece.bytes + at, len);
        if (err == SHOAL_OK)
            err = shoal_buf_append(&a->out, "\n", 1);
        at += len;
        if (at + 1 < piece.len && piece.bytes[at] == '\r' && piece.bytes[at + 1] == '\n')
            at++;
        at++;
    } while (err == SHOAL_OK && at < piece.len);
    if (err == SHOAL_OK)
        err = shoal_buf_append(&a->out, "\n", 1);
    a->out_pieces += piece.len;
    return err == SHOAL_OK;
}

static void write_next(struct http_request *request);

static void write_out(struct asking *a)
{
    struct shoal_buf out = a->out;

    a->writing = true;
    a->writing_pieces = a->out_pieces;
    a->out = (struct shoal_buf){ 0 };
    a->out_pieces = 0;
    http_stream_write(a->request, shoal_buf_view(&out), write_next);
    shoal_buf_deinit(&out);
}

static void events_end(struct asking *a)
{
    struct http_request *request = a->request;

    request->gone = NULL;
    http_stream_end(request);
    http_request_release(request);
}

/* Called when the bytes are in the socket, or the client is gone. */
static void write_next(struct http_request *request)
{
    struct asking *a = request->state;

    a->writing = false;
    if (request->conn == NULL)
        return;
    if (!a->over)
        request->http->backend.infer_more(request->http->backend.ctx, a->infer.number, a->writing_pieces);
    if (a->writing || request->conn == NULL)
        return;
    if (a->out.len > 0)
        write_out(a);
    else if (a->over)
        events_end(a);
}

static void events_start(struct asking *a)
{
    a->started = true;
    http_stream_start(a->request, 200, EVENTS, HTTP_LENGTH_UNKNOWN);
}

/* H6 of http_server.h: a write that gives the connection up calls on_gone(), which lets go of the request. */
static void on_piece(void *arg, struct shoal_view piece)
{
    struct asking *a = arg;
    struct http_request *request = a->request;

    http_request_hold(request);
    if (!a->started)
        events_start(a);
    if (request->conn != NULL && !put_event(a, piece))
        http_stream_abort(request);
    else if (request->conn != NULL && !a->writing)
        write_out(a);
    http_request_release(request);
}

static bool put_error_event(struct asking *a, int status, const char *text)
{
    struct shoal_buf json = { 0 };
    struct json_writer w = json_writer_init(&json);
    bool fine;

    if (a->asker == ASKER_OPENAI) {
        http_openai_error(&w, status, text);
    } else {
        json_object_begin(&w, NULL);
        json_text(&w, "error", text);
        json_end(&w);
    }
    fine = !w.failed && (a->asker == ASKER_OPENAI || shoal_buf_append(&a->out, "event: error\n", 13) == SHOAL_OK) &&
           put_event(a, shoal_buf_view(&json));
    shoal_buf_deinit(&json);
    return fine;
}

/* The last event of a stream says how it ended: OpenAI's [DONE], or why not. */
static void events_over(struct asking *a, enum shoal_err err, const char *text, const struct shoal_inferred *inferred)
{
    bool fine = true;
    char shown[600];

    a->over = true;
    if (a->request->conn == NULL)
        return;
    if (err != SHOAL_OK) {
        fine = put_error_event(a, status_of(err, a->asker), text);
    } else if (inferred->status >= 400) {
        (void)snprintf(shown, sizeof(shown), "%.*s", inferred->body.len > 500 ? 500 : (int)inferred->body.len,
                       inferred->body.len == 0 ? "" : (const char *)inferred->body.bytes);
        shoal_text_plain(shown, ' ');
        fine = put_error_event(a, (int)inferred->status, shown);
    } else {
        if (inferred->body.len > 0)
            fine = put_event(a, inferred->body);
        if (a->asker == ASKER_OPENAI)
            fine = fine && put_event(a, shoal_view_text("[DONE]"));
    }
    if (!fine)
        http_stream_abort(a->request);
    else if (!a->writing && a->out.len > 0)
        write_out(a);
    else if (!a->writing)
        events_end(a);
}

/* ---- what the backend says ---- */

static void on_inferred(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                        const struct shoal_inferred *inferred)
{
    struct asking *a = arg;
    struct http_request *request = a->request;

    a->over = true;
    /* A client that wants OpenAI's events gets them, of a kernel that answers in one piece too. */
    if (a->started || (a->events && a->asker == ASKER_OPENAI && err == SHOAL_OK && inferred->status < 400)) {
        http_request_hold(request); /* as in on_piece() */
        if (!a->started)
            events_start(a);
        events_over(a, err, msg->text, inferred);
        http_request_release(request);
        return;
    }
    request->gone = NULL;
    if (err != SHOAL_OK)
        asking_refuse(request, a->asker, status_of(err, a->asker), msg->text);
    else
        respond_whole(a, inferred);
    http_request_release(request);
}

/* A2. */
static void on_gone(struct http_request *request)
{
    struct asking *a = request->state;

    request->gone = NULL;
    if (!a->over)
        request->http->backend.infer_cancel(request->http->backend.ctx, a->infer.number);
    a->over = true;
    http_request_release(request);
}

/* ---- the request ---- */

/* By its address, before there is more to know it by. */
static enum asker asker_of(const struct http_request *request)
{
    if (strncmp(request->route->pattern, "/dlim/", 6) == 0)
        return ASKER_DLIM;
    if (strncmp(request->route->pattern, "/platform/", 10) == 0)
        return ASKER_EDI;
    return strncmp(request->route->pattern, "/v1/", 4) == 0 ? ASKER_OPENAI : ASKER_OIP;
}

static void refuse_large(struct http_request *request)
{
    char text[120];

    (void)snprintf(text, sizeof(text), "the request body is larger than the %u MiB that a model takes; send less at once",
                   (unsigned)(SHOAL_INFER_BODY_BYTES_MAX / SHOAL_MIB));
    asking_refuse(request, asker_of(request), 413, text);
}

void asking_begin(struct http_request *request)
{
    struct asking *a;

    if (request->head.content_length > SHOAL_INFER_BODY_BYTES_MAX) {
        refuse_large(request);
        return;
    }
    a = calloc(1, sizeof(*a));
    if (a == NULL) {
        http_respond_error(request, 503, "out of memory; try again later");
        return;
    }
    a->request = request;
    request->state = a;
    request->state_free = asking_free;
}

static uint64_t frees(const struct http_request *request)
{
    const struct asking *a = request->state;

    return request->body_done || request->responded ? 0 : a->body.len;
}

static void leave(struct http_request *request)
{
    struct asking *a = request->state;

    shoal_buf_deinit(&a->body);
    asking_refuse(request, asker_of(request), 503,
                  "this node holds as many request bodies as it may, most of them yours, and this one came most slowly: it gave "
                  "way to another user's; send it again in a second");
}

void asking_data(struct http_request *request, struct shoal_view content)
{
    static const struct http_guest guest = { .frees = frees, .leave = leave };
    struct asking *a = request->state;

    if (a->body.len + content.len > SHOAL_INFER_BODY_BYTES_MAX)
        refuse_large(request);
    else if (!http_room_take(request, HTTP_ROOM_MODELS, &guest, content.len))
        asking_refuse(request, asker_of(request), 503,
                      "this node holds as many request bodies as it may; send it again in a second");
    else if (shoal_buf_append(&a->body, content.bytes, content.len) != SHOAL_OK)
        http_respond_error(request, 503, "out of memory; try again later");
}

struct shoal_view asking_body(const struct http_request *request)
{
    const struct asking *a = request->state;

    return shoal_buf_view(&a->body);
}

void asking_stream(struct http_request *request)
{
    struct asking *a = request->state;

    a->events = true;
}

void asking_answer_by(struct http_request *request, asking_answer_fn *answer)
{
    struct asking *a = request->state;

    a->answer = answer;
}

/* A header as text in the arena; "" where there is none. */
static const char *header_of(struct http_request *request, const char *name)
{
    struct shoal_view value;
    const char *text;

    if (!http1_header_find(&request->head, name, &value) || value.len == 0)
        return "";
    text = arena_copy(&request->arena, value);
    return text == NULL ? "" : text;
}

/* Whether `bytes` are one object or array of JSON from end to end, by its brackets; of large ones the ends are enough. */
static bool is_one_value(struct shoal_view bytes)
{
    bool within = false;
    size_t depth = 0;

    if (!looks_like_json(bytes))
        return false;
    if (bytes.len > SHOAL_JSON_BYTES_MAX)
        return true;
    while (strchr(" \t\r\n", bytes.bytes[bytes.len - 1]) != NULL)
        bytes.len--;
    for (size_t i = 0; i < bytes.len; i++) {
        uint8_t c = bytes.bytes[i];

        if (c == '\\' && within)
            i++;
        else if (c == '"')
            within = !within;
        else if (!within && (c == '{' || c == '['))
            depth++;
        else if (!within && (c == '}' || c == ']') && (depth-- == 0 || (depth == 0 && i + 1 < bytes.len)))
            return false;
    }
    return depth == 0 && !within;
}

/* Inference-Header-Content-Length: of the JSON before what is binary; 0 where the client does not say. False: it is none. */
static bool read_header_len(struct http_request *request, struct shoal_view body, uint32_t *header_len)
{
    const char *text = header_of(request, "inference-header-content-length");
    size_t digits = strspn(text, "0123456789");
    unsigned long value = strtoul(text, NULL, 10);

    *header_len = 0;
    if (text[digits] != '\0' || digits > 9 || value > body.len)
        return false;
    *header_len = (uint32_t)value;
    return value == 0 || is_one_value(shoal_view_of(body.bytes, value));
}

/* A kernel reads it as text. */
static bool is_text(const char *bytes)
{
    const uint8_t *at = (const uint8_t *)bytes;

    for (size_t len = 1; *at != 0 && len > 0; at += len)
        len = shoal_utf8_len(at, 4);
    return *at == 0;
}

void asking_run(struct http_request *request, enum asker asker, const char *model, const char *version)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct asking *a = request->state;
    const char *path = arena_copy(&request->arena, request->head.path);
    const char *type = header_of(request, "content-type");
    uint32_t header_len;

    if (!read_header_len(request, shoal_buf_view(&a->body), &header_len)) {
        asking_refuse(request, asker, 400,
                      "Inference-Header-Content-Length is no number up to the body's length, or so many bytes are no JSON");
        return;
    }
    if (path == NULL || strlen(path) >= 512 || strlen(type) >= 128 || strlen(version) >= 64) {
        asking_refuse(request, asker, 400, "the address, the version or the content type is too long");
        return;
    }
    if (!is_text(path) || !is_text(type) || !is_text(version)) {
        asking_refuse(request, asker, 400, "the address, the version or the content type is not UTF-8");
        return;
    }
    a->asker = asker;
    a->events = a->events || (asker != ASKER_OPENAI && asker != ASKER_EDI &&
                              strstr(header_of(request, "accept"), EVENTS) != NULL);
    a->infer = (struct shoal_infer){ .caller = &request->user,
                                     .model = model,
                                     .version = version,
                                     .method = "POST",
                                     .path = path,
                                     .content_type = type,
                                     .header_len = header_len,
                                     .body = shoal_buf_view(&a->body),
                                     .piece = a->events ? on_piece : NULL };
    http_request_hold(request);
    request->gone = on_gone;
    backend->infer(backend->ctx, &a->infer, on_inferred, a);
}
