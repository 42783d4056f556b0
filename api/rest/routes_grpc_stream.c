/* Calls of many messages: inference.GRPCInferenceService/ModelStreamInfer and dlim.v1.StreamInference/Infer (the inference contract,
 * section 8). Each message is a request for a model; answers go out as they come, named by their ids.
 *
 *     message --> a task (at most SHOAL_GRPC_TASKS_MAX in hand) --> queue, kernel --> answer --> out --> client's window
 *
 * G1. A task is in hand until its answer is on its way: a client that does not read its answers is not read either.
 * G2. Each task is answered once. Of a dlim stream whose model's profile has stream_discard_slow_tasks, a task that a kernel has
 *     answered ends the older ones: they are answered 499, and what their kernels still say is dropped. One that was refused ends none.
 * G3. A stream whose client has gone takes its tasks out of the queues (shoal_infer.gone). */
#include "routes_grpc.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/http/json_input.h"
#include "shoal/crypto.h"
#include "shoal/service_doc.h"

#include "oip_proto.h"
#include "proto.h"

#include "shoal/banned.h"

/* Of an InferRequest: it has two fields, and what is passed over costs, too. */
#define DLIM_NUMBERS_MAX 1000u

enum kind { KIND_OIP, KIND_DLIM };

struct task {
    struct stream *stream;
    struct task *next;
    uint64_t number;
    bool gone;
    bool over; /* answered, or nobody hears the answer */
    struct oip_request oip;
    char path[512];
    struct shoal_infer infer;
    char id[OIP_ID_BYTES];
    struct shoal_buf data;
};

struct stream {
    struct http_request *request;
    enum kind kind;
    struct grpc_frames frames;
    struct shoal_buf rest; /* of what came, beyond the tasks that may be in hand */
    size_t held;           /* of the room of bodies for models, beside what its tasks hold */
    struct task *tasks;    /* the newest first */
    unsigned in_hand;
    uint64_t next_number;
    struct shoal_buf out; /* answers */
    unsigned out_count;
    unsigned writing; /* answers that are on their way */
    bool paused, advancing;
    bool later; /* go_on comes */
    bool ended; /* the client has said all */
    bool over;  /* the call has ended */
    bool discards;
    uint64_t deadline_ms; /* of the loop's clock; 0: none */
    const char *model;    /* dlim */
    char session[24];
};

static void stream_free(void *state)
{
    struct stream *s = state;

    SHOAL_ASSERT(s->tasks == NULL); /* each holds the request */
    shoal_buf_deinit(&s->frames.message);
    shoal_buf_deinit(&s->rest);
    shoal_buf_deinit(&s->out);
    free(s);
}

/* ---- answers ---- */

static void end_call(struct stream *s, enum grpc_code code, const char *text)
{
    if (s->over)
        return;
    s->over = true;
    for (struct task *t = s->tasks; t != NULL; t = t->next)
        t->gone = t->over = true;
    grpc_end(s->request, code, text);
}

/* What is not taken yet; not while it waits for tasks. */
static uint64_t frees(const struct http_request *request)
{
    const struct stream *s = request->state;

    return s->over || s->paused || s->advancing ? 0 : s->held;
}

static void leave(struct http_request *request)
{
    struct stream *s = request->state;

    s->held = 0;
    shoal_buf_deinit(&s->frames.message);
    shoal_buf_deinit(&s->rest);
    end_call(s, GRPC_RESOURCE_EXHAUSTED, ROUTES_GRPC_GAVE_WAY);
}

static const struct http_guest guest = { .frees = frees, .leave = leave };

static void on_gone(struct http_request *request) /* G3 */
{
    struct stream *s = request->state;

    s->over = true;
    for (struct task *t = s->tasks; t != NULL; t = t->next)
        t->gone = t->over = true;
}

static void advance(struct stream *s);
static void flush(struct stream *s);

static void on_written(struct http_request *request)
{
    struct stream *s = request->state;

    SHOAL_ASSERT(s->in_hand >= s->writing);
    s->in_hand -= s->writing;
    s->writing = 0;
    flush(s);
    advance(s);
}

static void flush(struct stream *s)
{
    struct shoal_buf out = s->out;

    if (s->over || s->writing > 0)
        return;
    if (s->out_count > 0) {
        s->out = (struct shoal_buf){ 0 };
        s->writing = s->out_count;
        s->out_count = 0;
        if (!s->request->responded)
            http_stream_start(s->request, 200, "application/grpc", HTTP_LENGTH_UNKNOWN);
        http_stream_write(s->request, shoal_buf_view(&out), on_written);
        shoal_buf_deinit(&out);
    } else if (s->ended && s->in_hand == 0 && s->rest.len == 0) {
        end_call(s, grpc_frames_is_between(&s->frames) ? GRPC_OK : GRPC_INVALID_ARGUMENT,
                 grpc_frames_is_between(&s->frames) ? "" : "the call ends within a message");
    }
}

/* A message behind `out`; its answer counts as in hand until it is written. */
static void put_answer(struct stream *s, struct shoal_view message)
{
    uint8_t head[5];

    grpc_frame_head(message.len, head);
    if (shoal_buf_append(&s->out, head, sizeof(head)) != SHOAL_OK ||
        (message.len > 0 && shoal_buf_append(&s->out, message.bytes, message.len) != SHOAL_OK))
        end_call(s, GRPC_RESOURCE_EXHAUSTED, "out of memory; try again later");
    else
        s->out_count++;
}

/* InferResponse */
static void answer_dlim(struct task *t, unsigned status, const char *text, struct shoal_view data)
{
    struct shoal_buf message = { 0 };
    struct proto_writer w = proto_writer_init(&message);

    t->over = true;
    if (t->id[0] != '\0')
        proto_text(&w, 1, t->id);
    if (data.len > 0)
        proto_bytes(&w, 2, data);
    proto_uint(&w, 3, status);
    if (text[0] != '\0')
        proto_text(&w, 4, text);
    proto_bool(&w, 5, true);
    if (w.failed)
        end_call(t->stream, GRPC_RESOURCE_EXHAUSTED, "out of memory; try again later");
    else
        put_answer(t->stream, shoal_buf_view(&message));
    shoal_buf_deinit(&message);
}

/* ModelStreamInferResponse */
static void answer_oip(struct task *t, const char *error, const struct shoal_inferred *inferred)
{
    struct shoal_buf message = { 0 };
    struct proto_writer w = proto_writer_init(&message);
    struct shoal_msg why;
    size_t begun = 0;

    t->over = true;
    if (error == NULL) {
        begun = proto_begin(&w, 2);
        if (!w.failed && oip_answer_encode(inferred, t->oip.raw, &message, &why) != SHOAL_OK) {
            error = why.text;
            message.len = 0;
        }
    }
    if (error != NULL) {
        proto_text(&w, 1, error[0] == '\0' ? "refused" : error);
        begun = proto_begin(&w, 2);
        if (t->oip.id[0] != '\0')
            proto_text(&w, 3, t->oip.id);
    }
    proto_end(&w, begun);
    if (w.failed)
        end_call(t->stream, GRPC_RESOURCE_EXHAUSTED, "out of memory; try again later");
    else
        put_answer(t->stream, shoal_buf_view(&message));
    shoal_buf_deinit(&message);
}

static unsigned status_of(enum shoal_err err)
{
    switch (routes_grpc_code(err)) {
    case GRPC_OK: return 200;
    case GRPC_CANCELLED: return 499;
    case GRPC_INVALID_ARGUMENT: return 400;
    case GRPC_DEADLINE_EXCEEDED: return 504;
    case GRPC_NOT_FOUND: return 404;
    case GRPC_PERMISSION_DENIED: return 403;
    case GRPC_RESOURCE_EXHAUSTED: return err == SHOAL_ERR_TOO_BIG ? 413 : 503;
    case GRPC_FAILED_PRECONDITION: return 409;
    case GRPC_UNIMPLEMENTED: return 501;
    case GRPC_INTERNAL: return 500;
    case GRPC_UNAVAILABLE: return 503;
    case GRPC_UNAUTHENTICATED: return 401;
    }
    return 500;
}

static void task_free(struct task *t)
{
    struct stream *s = t->stream;
    struct task **at = &s->tasks;

    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    http_room_leave(s->request, t->infer.body.len);
    shoal_buf_deinit(&t->oip.body);
    shoal_buf_deinit(&t->data);
    free(t);
}

/* G2. */
static void discard_older(struct stream *s, const struct task *finished)
{
    for (struct task *t = s->tasks; t != NULL; t = t->next)
        if (t->number < finished->number && !t->over) {
            t->gone = true;
            answer_dlim(t, 499, "a newer task of this stream is finished", (struct shoal_view){ 0 });
        }
}

static void on_inferred(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                        const struct shoal_inferred *inferred)
{
    struct task *t = arg;
    struct stream *s = t->stream;
    struct http_request *request = s->request;
    bool refused = err == SHOAL_OK && inferred->status >= 400;
    char text[500] = "";

    if (refused)
        routes_grpc_refusal(inferred, text, sizeof(text));
    else if (err != SHOAL_OK)
        (void)snprintf(text, sizeof(text), "%s", msg->text);
    if (!t->over && s->kind == KIND_OIP)
        answer_oip(t, refused || err != SHOAL_OK ? text : NULL, inferred);
    else if (!t->over) {
        answer_dlim(t, err == SHOAL_OK ? inferred->status : status_of(err), text,
                    err == SHOAL_OK && !refused ? inferred->body : (struct shoal_view){ 0 });
        if (err == SHOAL_OK && s->discards && !s->over)
            discard_older(s, t);
    }
    task_free(t);
    flush(s);
    http_request_release(request);
}

/* ---- tasks ---- */

/* The rest of the call's time. False: nothing, and it has ended. */
static bool time_left(struct stream *s, uint32_t *timeout_ms)
{
    uint64_t now = http_now_ms(s->request->http);

    *timeout_ms = 0;
    if (s->deadline_ms == 0)
        return true;
    if (now >= s->deadline_ms) {
        end_call(s, GRPC_DEADLINE_EXCEEDED, "the time of the call is over");
        return false;
    }
    *timeout_ms = (uint32_t)(s->deadline_ms - now);
    return true;
}

static void ask(struct task *t, struct shoal_infer infer)
{
    struct http_request *request = t->stream->request;
    const struct shoal_backend *backend = &request->http->backend;

    infer.caller = &request->user;
    infer.method = "POST";
    infer.path = t->path;
    infer.gone = &t->gone;
    t->infer = infer;
    http_room_add(request, HTTP_ROOM_MODELS, &guest, infer.body.len);
    http_request_hold(request);
    backend->infer(backend->ctx, &t->infer, on_inferred, t);
}

static void take_oip(struct task *t, struct shoal_view message, uint32_t timeout_ms)
{
    struct shoal_msg msg;
    enum shoal_err err = oip_request_decode(message, &t->oip, &msg);

    if (err == SHOAL_OK && !routes_grpc_path("/v2/models/", t->oip.model, "/infer", t->path, sizeof(t->path)))
        err = shoal_fail(&msg, SHOAL_ERR_INVALID, "model_name is too long");
    if (err != SHOAL_OK) {
        answer_oip(t, msg.text, NULL);
        task_free(t);
        return;
    }
    ask(t, (struct shoal_infer){ .model = t->oip.model,
                                 .version = t->oip.version,
                                 .content_type = "application/octet-stream",
                                 .header_len = t->oip.header_len,
                                 .timeout_ms = timeout_ms,
                                 .body = shoal_buf_view(&t->oip.body) });
}

static void take_dlim(struct task *t, struct shoal_view message, uint32_t timeout_ms)
{
    struct proto_reader reader = proto_reader_init(message);
    unsigned budget = DLIM_NUMBERS_MAX;
    struct shoal_view data = { 0 };
    struct proto_field field;
    char after[40];
    bool fine = true;

    reader.budget = &budget;

    while (proto_next(&reader, &field)) {
        if (field.number == 1 && field.wire == PROTO_BYTES) {
            fine = field.bytes.len < sizeof(t->id) && memchr(field.bytes.bytes, 0, field.bytes.len) == NULL;
            (void)snprintf(t->id, sizeof(t->id), "%.*s", (int)field.bytes.len, (const char *)field.bytes.bytes);
        } else if (field.number == 2 && field.wire == PROTO_BYTES) {
            data = field.bytes;
        }
    }
    (void)snprintf(after, sizeof(after), "?session=%s", t->stream->session);
    if (reader.failed || !fine ||
        !routes_grpc_path("/dlim/v1/inference/", t->stream->model, after, t->path, sizeof(t->path)) ||
        (data.len > 0 && shoal_buf_append(&t->data, data.bytes, data.len) != SHOAL_OK)) {
        answer_dlim(t, 400, "the message is no InferRequest, or its id is too long", (struct shoal_view){ 0 });
        task_free(t);
        return;
    }
    ask(t, (struct shoal_infer){ .model = t->stream->model,
                                 .version = "",
                                 .content_type = "",
                                 .timeout_ms = timeout_ms,
                                 .body = shoal_buf_view(&t->data) });
}

static void take(struct stream *s, struct shoal_view message)
{
    struct task *t = calloc(1, sizeof(*t));
    uint32_t timeout_ms;

    if (t == NULL) {
        end_call(s, GRPC_RESOURCE_EXHAUSTED, "out of memory; try again later");
        return;
    }
    t->stream = s;
    t->number = s->next_number++;
    t->next = s->tasks;
    s->tasks = t;
    s->in_hand++;
    if (!time_left(s, &timeout_ms))
        task_free(t);
    else if (s->kind == KIND_OIP)
        take_oip(t, message, timeout_ms);
    else
        take_dlim(t, message, timeout_ms);
}

/* ---- messages ---- */

static void advance(struct stream *s);

static void go_on(struct http_request *request)
{
    struct stream *s = request->state;

    s->later = false;
    advance(s);
}

/* Of the message that ends in what came, from `at` on; 0: none does. */
static size_t ends_with(const struct stream *s, size_t at)
{
    const uint8_t *bytes = s->rest.bytes + at;
    size_t left = s->rest.len - at, len = s->frames.left;

    if (!s->frames.within && (s->frames.have > 0 || left < 5))
        return 0;
    if (!s->frames.within) {
        len = (size_t)bytes[1] << 24 | (size_t)bytes[2] << 16 | (size_t)bytes[3] << 8 | bytes[4];
        left -= 5;
    }
    if (len > left)
        return 0;
    return s->frames.within ? len + s->frames.message.len : len;
}

/* False: it is for a later turn. */
static bool may_take(struct stream *s, size_t at)
{
    if (http_message_may(s->request->http, ends_with(s, at)))
        return true;
    if (!s->later)
        http_call_later(s->request, go_on);
    s->later = true;
    return false;
}

static size_t take_rest(struct stream *s)
{
    struct shoal_msg msg;
    size_t at = 0, used = 0;
    bool whole;

    while (!s->over && at < s->rest.len && s->in_hand < SHOAL_GRPC_TASKS_MAX && may_take(s, at)) {
        enum shoal_err err = grpc_frames_step(&s->frames, s->rest.bytes + at, s->rest.len - at, &used, &whole, &msg);

        if (err != SHOAL_OK) {
            end_call(s, routes_grpc_code(err), msg.text);
            break;
        }
        at += used;
        if (whole) {
            struct shoal_buf message = s->frames.message;

            s->frames.message = (struct shoal_buf){ 0 };
            http_room_leave(s->request, s->held); /* the task counts its own */
            s->held = 0;
            take(s, shoal_buf_view(&message));
            shoal_buf_deinit(&message);
        }
    }
    return at;
}

static void advance(struct stream *s)
{
    size_t at;
    bool pause;

    if (s->advancing || s->over)
        return;
    s->advancing = true;
    http_request_hold(s->request);
    at = take_rest(s);
    if (!s->over) {
        if (at > 0 && at < s->rest.len)
            memmove(s->rest.bytes, s->rest.bytes + at, s->rest.len - at);
        s->rest.len -= at;
        flush(s);
    }
    s->advancing = false;
    pause = !s->over && s->rest.len > 0;
    if (pause && !s->paused)
        http_body_pause(s->request);
    if (s->paused && !pause) {
        s->paused = false;
        http_body_resume(s->request);
    }
    s->paused = pause || s->paused;
    http_request_release(s->request);
}

void routes_grpc_stream_data(struct http_request *request, struct shoal_view content)
{
    struct stream *s = request->state;

    if (s->over)
        return;
    if (!http_room_take(request, HTTP_ROOM_MODELS, &guest, content.len)) {
        end_call(s, GRPC_RESOURCE_EXHAUSTED,
                 "this node holds as many request bodies as it may; send it again in a second");
        return;
    }
    s->held += content.len;
    if (shoal_buf_append(&s->rest, content.bytes, content.len) != SHOAL_OK)
        end_call(s, GRPC_RESOURCE_EXHAUSTED, "out of memory; try again later");
    else
        advance(s);
}

void routes_grpc_stream_ended(struct http_request *request)
{
    struct stream *s = request->state;

    s->ended = true;
    http_request_hold(request);
    flush(s);
    http_request_release(request);
}

/* ---- the beginning ---- */

static void on_looked(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_service_info *info)
{
    struct stream *s = arg;
    struct http_request *request = s->request;
    struct service_doc_facts facts = { .name = s->model, .creator = "", .service_uri = "" };
    struct json_input *input = NULL;
    struct shoal_buf profile = { 0 };
    struct shoal_msg why;

    s->discards = true; /* the profile's default */
    if (err != SHOAL_OK) {
        end_call(s, routes_grpc_code(err), msg->text);
    } else if (service_doc_profile(info->document, &facts, &profile) == SHOAL_OK &&
               json_input_parse_own(shoal_buf_view(&profile), &input, &why) == SHOAL_OK) {
        (void)json_input_bool(json_input_get(json_input_root(input), "policy"), "stream_discard_slow_tasks",
                              &s->discards);
    }
    json_input_free(input);
    shoal_buf_deinit(&profile);
    if (!s->over)
        http_body_resume(request);
    http_request_release(request);
}

static void begin_dlim(struct stream *s)
{
    struct http_request *request = s->request;
    const struct shoal_backend *backend = &request->http->backend;
    struct shoal_view name;
    uint64_t chance;

    if (http1_header_find(&request->head, "model-name", &name) && name.len > 0)
        s->model = arena_copy(&request->arena, name);
    if (s->model == NULL) {
        end_call(s, GRPC_INVALID_ARGUMENT, "say which model, in the metadata model-name");
        return;
    }
    shoal_random(&chance, sizeof(chance));
    (void)snprintf(s->session, sizeof(s->session), "%016" PRIx64, chance);
    http_body_pause(request);
    http_request_hold(request);
    backend->service_look(backend->ctx, &request->user, s->model, on_looked, s);
}

void routes_grpc_stream_begin(struct http_request *request)
{
    struct stream *s;
    uint32_t timeout_ms;

    if (!grpc_asks(request)) {
        http_respond_error(request, 415, "this address speaks gRPC: HTTP/2, and Content-Type: application/grpc");
        return;
    }
    s = calloc(1, sizeof(*s));
    if (s == NULL || !grpc_timeout(request, &timeout_ms)) {
        free(s);
        grpc_end(request, s == NULL ? GRPC_RESOURCE_EXHAUSTED : GRPC_INVALID_ARGUMENT,
                 s == NULL ? "out of memory; try again later" : "grpc-timeout is no time");
        return;
    }
    s->request = request;
    s->kind = strcmp(request->route->pattern, "/dlim.v1.StreamInference/Infer") == 0 ? KIND_DLIM : KIND_OIP;
    s->frames.most = SHOAL_INFER_BODY_BYTES_MAX;
    s->deadline_ms = timeout_ms == 0 ? 0 : http_now_ms(request->http) + timeout_ms;
    request->state = s;
    request->state_free = stream_free;
    request->gone = on_gone;
    if (s->kind == KIND_DLIM)
        begin_dlim(s);
}
