/* Services: deployed and changed (/v1/services), and asked (/v2, whose looks are in routes_oip.c; /dlim/v1/inference). */
#include "routes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/banned.h"

#define RETRY_S 1

/* ---- /v1/services ---- */

static void on_text(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view json)
{
    struct http_request *request = arg;

    if (err == SHOAL_OK)
        http_respond(request, 200, "application/json", json);
    else
        http_respond_failure(request, err, msg, 404);
    http_request_release(request);
}

static void handle_list(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;

    http_request_hold(request);
    backend->services(backend->ctx, &request->user, NULL, on_text, request);
}

static void handle_show(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;

    http_request_hold(request);
    backend->services(backend->ctx, &request->user, request->params[0], on_text, request);
}

static void on_changed(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    struct http_request *request = arg;
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    if (err != SHOAL_OK) {
        http_respond_failure(request, err, msg, 404);
    } else {
        json_object_begin(&w, NULL);
        json_text(&w, "text", msg->text);
        json_end(&w);
        http_respond_json(request, 200, &w);
    }
    http_request_release(request);
}

static void change(struct http_request *request, enum shoal_service_verb verb, unsigned replicas)
{
    const struct shoal_backend *backend = &request->http->backend;

    http_request_hold(request);
    backend->service_change(backend->ctx, &request->user, request->params[0], verb, replicas, on_changed, request);
}

static void handle_start(struct http_request *request) { change(request, SHOAL_SERVICE_START, 0); }

static void handle_stop(struct http_request *request) { change(request, SHOAL_SERVICE_STOP, 0); }

static void handle_rollback(struct http_request *request) { change(request, SHOAL_SERVICE_BACK, 0); }

static void handle_delete(struct http_request *request) { change(request, SHOAL_SERVICE_DELETE, 0); }

static void handle_scale(struct http_request *request)
{
    uint64_t replicas = UINT64_MAX;

    if (!routes_number(request, "replicas", SHOAL_SERVICE_REPLICAS_MAX, &replicas))
        return;
    if (replicas == UINT64_MAX)
        http_respond_error(request, 400, "replicas: say how many, 0 to %u", SHOAL_SERVICE_REPLICAS_MAX);
    else
        change(request, SHOAL_SERVICE_SCALE, (unsigned)replicas);
}

void routes_service_answer(struct http_request *request, const struct shoal_job_info *job)
{
    char id[SHOAL_JOB_ID_TEXT_BYTES];
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    shoal_job_id_text(job->id, id);
    json_object_begin(&w, NULL);
    json_text(&w, "name", request->params[0]);
    json_text(&w, "job", id);
    json_end(&w);
    http_respond_json(request, 200, &w);
}

/* ---- asking a model ---- */

/* Which of the protocols asks: its errors look its own way. */
enum asker { ASKER_OIP, ASKER_DLIM };

struct asking {
    struct http_request *request;
    struct shoal_buf body;
    struct shoal_infer infer;
    enum asker asker;
};

static void asking_free(void *state)
{
    struct asking *a = state;

    a->request->http->infer_bytes -= a->body.len;
    shoal_buf_deinit(&a->body);
    free(a);
}

static void refuse(struct http_request *request, enum asker asker, int status, const char *text)
{
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);
    char shown[600];

    if (status == 429 || status == 503)
        http_header_add(request, "Retry-After", "%d", RETRY_S);
    (void)snprintf(shown, sizeof(shown), "%s", text);
    http_text_show(shown);
    if (asker == ASKER_DLIM) {
        http_respond(request, status, "text/plain; charset=utf-8", shoal_view_text(shown));
        return;
    }
    json_object_begin(&w, NULL);
    json_text(&w, "error", shown);
    json_end(&w);
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
        return asker == ASKER_DLIM ? 503 : 429;
    if (err == SHOAL_ERR_UNREACHABLE || err == SHOAL_ERR_NOT_LEADER || err == SHOAL_ERR_STORAGE)
        return 503;
    return err == SHOAL_ERR_INVALID ? 400 : 500;
}

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

static void on_inferred(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                        const struct shoal_inferred *inferred)
{
    struct asking *a = arg;
    struct http_request *request = a->request;

    if (err != SHOAL_OK) {
        refuse(request, a->asker, status_of(err, a->asker), msg->text);
    } else {
        if (inferred->header_len > 0)
            http_header_add(request, "Inference-Header-Content-Length", "%" PRIu32, inferred->header_len);
        http_respond(request, (int)inferred->status, type_of(inferred), inferred->body);
    }
    http_request_release(request);
}

static void ask_begin(struct http_request *request)
{
    struct asking *a;

    if (request->head.content_length > SHOAL_INFER_BODY_BYTES_MAX) {
        refuse(request, ASKER_OIP, 413, "the request body is larger than a model takes");
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

static void ask_data(struct http_request *request, struct shoal_view content)
{
    struct asking *a = request->state;

    if (a->body.len + content.len > SHOAL_INFER_BODY_BYTES_MAX)
        refuse(request, ASKER_OIP, 413, "the request body is larger than a model takes");
    else if (request->http->infer_bytes + content.len > SHOAL_INFER_HELD_BYTES_MAX)
        refuse(request, ASKER_OIP, 503, "this node holds as many request bodies as it may; send it again in a second");
    else if (shoal_buf_append(&a->body, content.bytes, content.len) != SHOAL_OK)
        http_respond_error(request, 503, "out of memory; try again later");
    else
        request->http->infer_bytes += content.len;
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

static void ask(struct http_request *request, enum asker asker, const char *version)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct asking *a = request->state;
    const char *path = arena_copy(&request->arena, request->head.path);
    const char *type = header_of(request, "content-type");
    const char *split = header_of(request, "inference-header-content-length");
    char *end = NULL;
    unsigned long header_len = strtoul(split, &end, 10);

    if (*end != '\0' || header_len > a->body.len) {
        refuse(request, asker, 400, "Inference-Header-Content-Length is no number up to the body's length");
        return;
    }
    if (path == NULL || strlen(path) >= 512 || strlen(type) >= 128 || strlen(version) >= 64) {
        refuse(request, asker, 400, "the address, the version or the content type is too long");
        return;
    }
    a->asker = asker;
    a->infer = (struct shoal_infer){ .caller = &request->user,
                                     .model = request->params[0],
                                     .version = version,
                                     .method = "POST",
                                     .path = path,
                                     .content_type = type,
                                     .header_len = (uint32_t)header_len,
                                     .body = shoal_buf_view(&a->body) };
    http_request_hold(request);
    backend->infer(backend->ctx, &a->infer, on_inferred, a);
}

static void handle_infer(struct http_request *request) { ask(request, ASKER_OIP, ""); }

static void handle_infer_version(struct http_request *request) { ask(request, ASKER_OIP, request->params[1]); }

static void handle_infer_dlim(struct http_request *request) { ask(request, ASKER_DLIM, ""); }

#define BODY .mode = HTTP_BODY_STREAM, .begin = ask_begin, .data = ask_data
#define PACKAGE .mode = HTTP_BODY_STREAM, .begin = submit_begin, .data = submit_data

static const struct http_route routes[] = {
    { .method = HTTP1_GET, .pattern = "/v1/services", .handle = handle_list },
    { .method = HTTP1_GET, .pattern = "/v1/services/{}", .handle = handle_show },
    { .method = HTTP1_POST, .pattern = "/v1/services/{}", .handle = submit_handle, PACKAGE },
    { .method = HTTP1_DELETE, .pattern = "/v1/services/{}", .handle = handle_delete },
    { .method = HTTP1_POST, .pattern = "/v1/services/{}/start", .handle = handle_start },
    { .method = HTTP1_POST, .pattern = "/v1/services/{}/stop", .handle = handle_stop },
    { .method = HTTP1_POST, .pattern = "/v1/services/{}/rollback", .handle = handle_rollback },
    { .method = HTTP1_POST, .pattern = "/v1/services/{}/scale", .handle = handle_scale },
    { .method = HTTP1_POST, .pattern = "/v2/models/{}/infer", .handle = handle_infer, BODY },
    { .method = HTTP1_POST, .pattern = "/v2/models/{}/versions/{}/infer", .handle = handle_infer_version, BODY },
    { .method = HTTP1_POST, .pattern = "/dlim/v1/inference/{}", .handle = handle_infer_dlim, BODY },
};

const struct http_route *http_routes_services(size_t *count)
{
    *count = sizeof(routes) / sizeof(routes[0]);
    return routes;
}
