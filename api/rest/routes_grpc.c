/* inference.GRPCInferenceService, calls of one answer: the Open Inference Protocol. What REST answers is asked of REST's own routes and
 * said in messages (ask_rest), so that both say the same; a request for a model becomes the body of its twin (oip_proto.h). The
 * calls of many messages are in routes_grpc_stream.c. Health is grpc.health.v1, for load balancers, without credentials. */
#include "routes_grpc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/http/json_input.h"

#include "oip_proto.h"
#include "proto.h"

#include "shoal/banned.h"

struct call {
    struct http_request *request;
    struct grpc_frames frames;
    struct shoal_buf message;
    bool whole;
    bool gone;   /* its client has given it up */
    size_t held; /* of the room of bodies for models */
    /* These ask the model. */
    struct oip_request oip;
    struct shoal_infer infer;
    char path[512];
};

/* ---- a message comes ---- */

static void call_free(void *state)
{
    struct call *call = state;

    shoal_buf_deinit(&call->frames.message);
    shoal_buf_deinit(&call->message);
    shoal_buf_deinit(&call->oip.body);
    free(call);
}

static void on_gone(struct http_request *request)
{
    struct call *call = request->state;

    call->gone = true;
}

static void begin(struct http_request *request, size_t most)
{
    struct call *call;

    if (!grpc_asks(request)) {
        http_respond_error(request, 415, "this address speaks gRPC: HTTP/2, and Content-Type: application/grpc");
        return;
    }
    call = calloc(1, sizeof(*call));
    if (call == NULL) {
        grpc_end(request, GRPC_RESOURCE_EXHAUSTED, "out of memory; try again later");
        return;
    }
    call->request = request;
    call->frames.most = most;
    request->state = call;
    request->state_free = call_free;
    request->gone = on_gone;
}

static void begin_small(struct http_request *request) { begin(request, GRPC_SMALL_BYTES_MAX); }
static void begin_infer(struct http_request *request) { begin(request, SHOAL_INFER_BODY_BYTES_MAX); }

enum grpc_code routes_grpc_code(enum shoal_err err)
{
    switch (err) {
    case SHOAL_OK: return GRPC_OK;
    case SHOAL_ERR_INVALID: return GRPC_INVALID_ARGUMENT;
    case SHOAL_ERR_UNSUPPORTED: return GRPC_UNIMPLEMENTED;
    case SHOAL_ERR_DENIED: return GRPC_PERMISSION_DENIED;
    case SHOAL_ERR_NOT_FOUND: return GRPC_NOT_FOUND;
    case SHOAL_ERR_EXISTS:
    case SHOAL_ERR_STALE: return GRPC_FAILED_PRECONDITION;
    case SHOAL_ERR_TOO_BIG:
    case SHOAL_ERR_FULL:
    case SHOAL_ERR_NO_SPACE: return GRPC_RESOURCE_EXHAUSTED;
    case SHOAL_ERR_TIMEOUT: return GRPC_DEADLINE_EXCEEDED;
    case SHOAL_ERR_UNREACHABLE:
    case SHOAL_ERR_NOT_LEADER:
    case SHOAL_ERR_STORAGE: return GRPC_UNAVAILABLE;
    case SHOAL_ERR_MALFORMED:
    case SHOAL_ERR_DEVICE:
    case SHOAL_ERR_RANK_LOST: return GRPC_INTERNAL;
    }
    return GRPC_INTERNAL;
}

static uint64_t frees(const struct http_request *request)
{
    const struct call *call = request->state;

    return request->body_done || request->responded ? 0 : call->held;
}

static void leave(struct http_request *request)
{
    struct call *call = request->state;

    call->held = 0;
    shoal_buf_deinit(&call->frames.message);
    shoal_buf_deinit(&call->message);
    grpc_end(request, GRPC_RESOURCE_EXHAUSTED, ROUTES_GRPC_GAVE_WAY);
}

static void data(struct http_request *request, struct shoal_view content)
{
    static const struct http_guest guest = { .frees = frees, .leave = leave };
    struct call *call = request->state;
    struct shoal_msg msg;
    enum shoal_err err = SHOAL_OK;
    size_t used;
    bool whole;

    if (!http_room_take(request, HTTP_ROOM_MODELS, &guest, content.len)) {
        grpc_end(request, GRPC_RESOURCE_EXHAUSTED,
                 "this node holds as many request bodies as it may; send it again in a second");
        return;
    }
    call->held += content.len;
    while (err == SHOAL_OK && content.len > 0) {
        if (call->whole) {
            grpc_end(request, GRPC_INVALID_ARGUMENT, "a call of one request has more than one message");
            return;
        }
        err = grpc_frames_step(&call->frames, content.bytes, content.len, &used, &whole, &msg);
        if (err != SHOAL_OK)
            break;
        content.bytes += used;
        content.len -= used;
        if (whole) {
            call->whole = true;
            call->message = call->frames.message;
            call->frames.message = (struct shoal_buf){ 0 };
        }
    }
    if (err != SHOAL_OK)
        grpc_end(request, routes_grpc_code(err), msg.text);
}

/* The message, or an end. */
static bool take(struct http_request *request, struct shoal_view *message)
{
    const struct call *call = request->state;

    if (!call->whole) {
        grpc_end(request, GRPC_INVALID_ARGUMENT, "the call has no whole message");
        return false; /* the request may be freed by now */
    }
    *message = shoal_buf_view(&call->message);
    return true;
}

/* ---- what REST answers ---- */

typedef bool say_fn(struct proto_writer *w, const struct json_value *root);

static void say(struct http_request *request, int status, struct shoal_view body, bool also_503, say_fn *fn)
{
    struct json_input *input = NULL;
    struct shoal_buf message = { 0 };
    struct proto_writer w = proto_writer_init(&message);
    struct shoal_msg why;
    bool fine = (status == 200 || (status == 503 && also_503)) && body.len > 0 &&
                json_input_parse_own(body, &input, &why) == SHOAL_OK && fn(&w, json_input_root(input));

    request->reply = grpc_refuse;
    if (fine && w.failed)
        grpc_end(request, GRPC_RESOURCE_EXHAUSTED, "out of memory; try again later");
    else if (fine)
        grpc_answer(request, shoal_buf_view(&message));
    else if (status >= 400)
        grpc_refuse(request, status, body);
    else
        grpc_end(request, GRPC_INTERNAL, "the answer is larger than what gRPC says here; ask over REST");
    json_input_free(input);
    shoal_buf_deinit(&message);
}

static void put_text(struct proto_writer *w, uint32_t number, const struct json_value *object, const char *key)
{
    const char *text = json_input_text(object, key);

    if (text != NULL && text[0] != '\0')
        proto_text(w, number, text);
}

static void put_texts(struct proto_writer *w, uint32_t number, const struct json_value *array)
{
    for (size_t i = 0; array != NULL && i < json_input_count(array); i++)
        if (json_input_text_at(array, i) != NULL)
            proto_text(w, number, json_input_text_at(array, i));
}

static bool say_flag(struct proto_writer *w, const struct json_value *root, const char *key)
{
    bool value = false;

    if (!json_input_bool(root, key, &value))
        return false;
    proto_bool(w, 1, value);
    return true;
}

static bool say_live(struct proto_writer *w, const struct json_value *root) { return say_flag(w, root, "live"); }
static bool say_ready(struct proto_writer *w, const struct json_value *root) { return say_flag(w, root, "ready"); }

static bool say_server(struct proto_writer *w, const struct json_value *root)
{
    put_text(w, 1, root, "name");
    put_text(w, 2, root, "version");
    put_texts(w, 3, json_input_get(root, "extensions"));
    return true;
}

static void put_tensors(struct proto_writer *w, uint32_t number, const struct json_value *tensors)
{
    for (size_t i = 0; tensors != NULL && i < json_input_count(tensors); i++) {
        const struct json_value *one = json_input_at(tensors, i), *shape = json_input_get(one, "shape");
        size_t begun = proto_begin(w, number), packed;
        char buf[32];

        put_text(w, 1, one, "name");
        put_text(w, 2, one, "datatype");
        packed = proto_begin(w, 3);
        for (size_t k = 0; shape != NULL && k < json_input_count(shape); k++) {
            const char *text = json_input_scalar(json_input_at(shape, k), buf, sizeof(buf));

            proto_put_varint(w, text == NULL ? UINT64_MAX : (uint64_t)strtoll(text, NULL, 10));
        }
        proto_end(w, packed);
        proto_end(w, begun);
    }
}

static bool say_model(struct proto_writer *w, const struct json_value *root)
{
    put_text(w, 1, root, "name");
    put_texts(w, 2, json_input_get(root, "versions"));
    put_text(w, 3, root, "platform");
    put_tensors(w, 4, json_input_get(root, "inputs"));
    put_tensors(w, 5, json_input_get(root, "outputs"));
    return true;
}

static bool say_index(struct proto_writer *w, const struct json_value *root)
{
    for (size_t i = 0; i < json_input_count(root); i++) {
        const struct json_value *one = json_input_at(root, i);
        size_t begun = proto_begin(w, 1);

        put_text(w, 1, one, "name");
        put_text(w, 2, one, "version");
        put_text(w, 3, one, "state");
        put_text(w, 4, one, "reason");
        proto_end(w, begun);
    }
    return true;
}

static void reply_live(struct http_request *r, int status, struct shoal_view b) { say(r, status, b, false, say_live); }
static void reply_ready(struct http_request *r, int status, struct shoal_view b) { say(r, status, b, true, say_ready); }
static void reply_server(struct http_request *r, int status, struct shoal_view b)
{
    say(r, status, b, false, say_server);
}
static void reply_model(struct http_request *r, int status, struct shoal_view b)
{
    say(r, status, b, false, say_model);
}
static void reply_index(struct http_request *r, int status, struct shoal_view b)
{
    say(r, status, b, false, say_index);
}

static void handle_live(struct http_request *request)
{
    struct shoal_view message;

    if (!take(request, &message))
        return;
    request->reply = reply_live;
    routes_oip_live(request);
}

static void handle_ready(struct http_request *request)
{
    struct shoal_view message;

    if (!take(request, &message))
        return;
    request->reply = reply_ready;
    routes_oip_ready(request);
}

static void handle_server(struct http_request *request)
{
    struct shoal_view message;

    if (!take(request, &message))
        return;
    request->reply = reply_server;
    routes_oip_server(request);
}

/* Texts of fields `first` and `second` as the route's parameters. False: the call has ended. */
static bool take_params(struct http_request *request, uint32_t first, uint32_t second)
{
    struct proto_reader reader;
    struct proto_field field;
    struct shoal_view message;

    if (!take(request, &message))
        return false;
    reader = proto_reader_init(message);
    while (proto_next(&reader, &field)) {
        bool text =
            field.wire == PROTO_BYTES && field.bytes.len > 0 && memchr(field.bytes.bytes, 0, field.bytes.len) == NULL;

        if (text && (field.number == first || field.number == second))
            request->params[field.number == second] = arena_copy(&request->arena, field.bytes);
    }
    if (reader.failed || request->params[0] == NULL) {
        grpc_end(request, GRPC_INVALID_ARGUMENT,
                 reader.failed ? "the message does not decode" : "the model's name is missing");
        return false;
    }
    return true;
}

static void handle_model(struct http_request *request)
{
    if (!take_params(request, 1, 2))
        return;
    request->reply = reply_model;
    routes_oip_model(request);
}

static void handle_model_ready(struct http_request *request)
{
    if (!take_params(request, 1, 2))
        return;
    request->reply = reply_ready;
    routes_oip_model_ready(request);
}

static void handle_index(struct http_request *request)
{
    static const char only_ready[] = "{\"ready\":true}";
    struct shoal_view message;
    struct proto_reader reader;
    struct proto_field field;
    bool ready = false;

    if (!take(request, &message))
        return;
    reader = proto_reader_init(message);
    while (proto_next(&reader, &field))
        if (field.number == 2 && field.wire == PROTO_VARINT)
            ready = field.value != 0;
    if (reader.failed || (ready && shoal_buf_append(&request->body, only_ready, sizeof(only_ready) - 1) != SHOAL_OK)) {
        grpc_end(request, GRPC_INVALID_ARGUMENT, "the message does not decode");
        return;
    }
    request->reply = reply_index;
    routes_oip_index(request);
}

/* ---- models, started and stopped ---- */

static void on_changed(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    struct http_request *request = arg;

    if (err == SHOAL_OK)
        grpc_answer(request, (struct shoal_view){ 0 });
    else
        grpc_end(request, routes_grpc_code(err), msg->text);
    http_request_release(request);
}

static void change(struct http_request *request, enum shoal_service_verb verb)
{
    const struct shoal_backend *backend = &request->http->backend;

    if (!take_params(request, 2, UINT32_MAX))
        return;
    http_request_hold(request);
    backend->service_change(backend->ctx, &request->user, request->params[0], verb, 0, on_changed, request);
}

static void handle_load(struct http_request *request) { change(request, SHOAL_SERVICE_START); }
static void handle_unload(struct http_request *request) { change(request, SHOAL_SERVICE_STOP); }

/* ---- asking a model ---- */

bool routes_grpc_path(const char *before, const char *model, const char *after, char *path, size_t cap)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~";
    size_t len = (size_t)snprintf(path, cap, "%s", before);

    for (; *model != '\0' && len + 4 < cap; model++)
        len +=
            (size_t)snprintf(path + len, cap - len, strchr(plain, *model) != NULL ? "%c" : "%%%02X", (uint8_t)*model);
    if (*model != '\0' || len + strlen(after) >= cap)
        return false;
    (void)snprintf(path + len, cap - len, "%s", after);
    return true;
}

void routes_grpc_refusal(const struct shoal_inferred *inferred, char *text, size_t cap)
{
    struct json_input *input = NULL;
    struct shoal_msg why;
    const char *said = NULL;

    if (inferred->body.len > 0 && inferred->body.bytes[0] == '{' && inferred->body.len <= GRPC_SMALL_BYTES_MAX &&
        json_input_parse(inferred->body, &input, &why) == SHOAL_OK)
        said = json_input_text(json_input_root(input), "error");
    if (said != NULL)
        (void)snprintf(text, cap, "%s", said);
    else
        (void)snprintf(text, cap, "%.*s", (int)(inferred->body.len < cap ? inferred->body.len : cap),
                       inferred->body.len == 0 ? "" : (const char *)inferred->body.bytes);
    json_input_free(input);
}

static void on_inferred(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                        const struct shoal_inferred *inferred)
{
    struct call *call = arg;
    struct http_request *request = call->request;
    struct shoal_buf message = { 0 };
    struct shoal_msg why;
    char text[500];

    if (err != SHOAL_OK) {
        grpc_end(request, routes_grpc_code(err), msg->text);
    } else if (inferred->status >= 400) {
        routes_grpc_refusal(inferred, text, sizeof(text));
        grpc_end(request, grpc_code_of((int)inferred->status), text);
    } else if ((err = oip_answer_encode(inferred, call->oip.raw, &message, &why)) != SHOAL_OK) {
        grpc_end(request, routes_grpc_code(err), why.text);
    } else {
        grpc_answer(request, shoal_buf_view(&message));
    }
    shoal_buf_deinit(&message);
    http_request_release(request);
}

static void handle_infer(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct call *call = request->state;
    struct shoal_view message;
    struct shoal_msg msg;
    enum shoal_err err;
    uint32_t timeout_ms;

    if (!take(request, &message))
        return;
    if (!grpc_timeout(request, &timeout_ms)) {
        grpc_end(request, GRPC_INVALID_ARGUMENT, "grpc-timeout is no time");
        return;
    }
    err = oip_request_decode(message, &call->oip, &msg);
    if (err != SHOAL_OK) {
        grpc_end(request, routes_grpc_code(err), msg.text);
        return;
    }
    shoal_buf_deinit(&call->message);
    if (!routes_grpc_path("/v2/models/", call->oip.model, "/infer", call->path, sizeof(call->path))) {
        grpc_end(request, GRPC_INVALID_ARGUMENT, "model_name is too long");
        return;
    }
    call->infer = (struct shoal_infer){ .caller = &request->user,
                                        .model = call->oip.model,
                                        .version = call->oip.version,
                                        .method = "POST",
                                        .path = call->path,
                                        .content_type = "application/octet-stream",
                                        .header_len = call->oip.header_len,
                                        .timeout_ms = timeout_ms,
                                        .gone = &call->gone,
                                        .body = shoal_buf_view(&call->oip.body) };
    http_request_hold(request);
    backend->infer(backend->ctx, &call->infer, on_inferred, call);
}

/* ---- grpc.health.v1 ---- */

static void handle_health(struct http_request *request)
{
    static const char *const names[] = { "", "inference.GRPCInferenceService", "dlim.v1.StreamInference" };
    struct shoal_mesh_status status;
    struct shoal_buf answer = { 0 };
    struct proto_writer w = proto_writer_init(&answer);
    struct shoal_view message, name = { 0 };
    struct proto_reader reader;
    struct proto_field field;
    bool known = false;

    if (!take(request, &message))
        return;
    reader = proto_reader_init(message);
    while (proto_next(&reader, &field))
        if (field.number == 1 && field.wire == PROTO_BYTES)
            name = field.bytes;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        known = known || shoal_view_equal(name, shoal_view_text(names[i]));
    if (reader.failed || !known) {
        grpc_end(request, GRPC_NOT_FOUND, "there is no such service here");
        return;
    }
    request->http->backend.status(request->http->backend.ctx, &status);
    proto_uint(&w, 1, status.mesh_writable ? 1 : 2); /* SERVING, NOT_SERVING */
    if (w.failed)
        grpc_end(request, GRPC_RESOURCE_EXHAUSTED, "out of memory; try again later");
    else
        grpc_answer(request, shoal_buf_view(&answer));
    shoal_buf_deinit(&answer);
}

#define OIP(name) .method = HTTP1_POST, .pattern = "/inference.GRPCInferenceService/" name
#define SMALL .mode = HTTP_BODY_STREAM, .begin = begin_small, .data = data
#define STREAM                                                                                                         \
    .mode = HTTP_BODY_STREAM, .begin = routes_grpc_stream_begin, .data = routes_grpc_stream_data,                      \
    .handle = routes_grpc_stream_ended, .both_ways = true

static const struct http_route routes[] = {
    { OIP("ModelInfer"), .handle = handle_infer, .mode = HTTP_BODY_STREAM, .begin = begin_infer, .data = data },
    { OIP("ModelStreamInfer"), STREAM },
    { OIP("ServerLive"), .handle = handle_live, SMALL },
    { OIP("ServerReady"), .handle = handle_ready, SMALL },
    { OIP("ModelReady"), .handle = handle_model_ready, SMALL },
    { OIP("ServerMetadata"), .handle = handle_server, SMALL },
    { OIP("ModelMetadata"), .handle = handle_model, SMALL },
    { OIP("RepositoryIndex"), .handle = handle_index, SMALL },
    { OIP("RepositoryModelLoad"), .handle = handle_load, SMALL },
    { OIP("RepositoryModelUnload"), .handle = handle_unload, SMALL },
    { .method = HTTP1_POST, .pattern = "/dlim.v1.StreamInference/Infer", STREAM },
    { .method = HTTP1_POST, .pattern = "/grpc.health.v1.Health/Check", .handle = handle_health, .open = true, SMALL },
};

const struct http_route *http_routes_grpc(size_t *count)
{
    *count = sizeof(routes) / sizeof(routes[0]);
    return routes;
}
