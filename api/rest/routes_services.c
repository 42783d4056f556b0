/* Services: deployed and changed (/v1/services), and asked (/v2, whose looks are in routes_oip.c; /dlim/v1/inference). */
#include "asking.h"
#include "routes.h"

#include <stdio.h>

#include "shoal/banned.h"

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

static void handle_rollback(struct http_request *request)
{
    uint64_t to = 0;

    if (routes_number(request, "to", 1, 999999999, &to))
        change(request, SHOAL_SERVICE_BACK, (unsigned)to);
}

static void handle_delete(struct http_request *request) { change(request, SHOAL_SERVICE_DELETE, 0); }

static void handle_promote(struct http_request *request) { change(request, SHOAL_SERVICE_PROMOTE, 0); }

static void handle_canary_end(struct http_request *request) { change(request, SHOAL_SERVICE_CANARY_END, 0); }

static void handle_canary(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;
    const char *version = http_query(request, "version");
    uint64_t percent = UINT64_MAX;

    if (!routes_number(request, "weight", 0, 100, &percent))
        return;
    if (percent == UINT64_MAX || version == NULL || version[0] == '\0') {
        http_respond_error(request, 400,
                           "version and weight: say which version gets how many percent of the requests, 0 to 100");
        return;
    }
    http_request_hold(request);
    backend->service_canary(backend->ctx, &request->user, request->params[0], version, (unsigned)percent, on_changed,
                            request);
}

static void handle_scale(struct http_request *request)
{
    uint64_t replicas = UINT64_MAX;

    if (!routes_number(request, "replicas", 0, SHOAL_SERVICE_REPLICAS_MAX, &replicas))
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

static void handle_infer(struct http_request *request) { asking_run(request, ASKER_OIP, request->params[0], ""); }

static void handle_infer_version(struct http_request *request)
{
    asking_run(request, ASKER_OIP, request->params[0], request->params[1]);
}

static void handle_infer_dlim(struct http_request *request) { asking_run(request, ASKER_DLIM, request->params[0], ""); }

#define BODY .mode = HTTP_BODY_STREAM, .begin = asking_begin, .data = asking_data
#define PACKAGE .mode = HTTP_BODY_STREAM, .begin = submit_begin, .data = submit_data

static const struct http_route routes[] = {
    { .method = HTTP1_GET, .pattern = "/v1/services", .handle = handle_list },
    { .method = HTTP1_GET, .pattern = "/v1/services/{}", .handle = handle_show },
    { .method = HTTP1_POST, .pattern = "/v1/services/{}", .handle = submit_handle, PACKAGE },
    { .method = HTTP1_DELETE, .pattern = "/v1/services/{}", .handle = handle_delete },
    { .method = HTTP1_POST, .pattern = "/v1/services/{}/start", .handle = handle_start },
    { .method = HTTP1_POST, .pattern = "/v1/services/{}/stop", .handle = handle_stop },
    { .method = HTTP1_POST, .pattern = "/v1/services/{}/rollback", .handle = handle_rollback },
    { .method = HTTP1_POST, .pattern = "/v1/services/{}/canary", .handle = handle_canary },
    { .method = HTTP1_DELETE, .pattern = "/v1/services/{}/canary", .handle = handle_canary_end },
    { .method = HTTP1_POST, .pattern = "/v1/services/{}/promote", .handle = handle_promote },
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
