/* The Open Inference Protocol v2 over REST, all but the requests themselves (routes_services.c): the server, its models, their
 * versions and tensors. Errors are {"error": text}. Every node answers the same: what a kernel said of its tensors is asked
 * of its host. Source: github.com/kserve/open-inference-protocol, specification/protocol/inference_rest.md. */
#include "routes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/http/json_input.h"

#include "shoal/banned.h"

static void respond_error(struct http_request *request, int status, const char *text)
{
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    json_object_begin(&w, NULL);
    json_text(&w, "error", text);
    json_end(&w);
    http_respond_json(request, status, &w);
}

static void respond_failure(struct http_request *request, enum shoal_err err, const struct shoal_msg *msg)
{
    respond_error(request, err == SHOAL_ERR_NOT_FOUND ? 404 : 503, msg->text);
}

/* ---- the server ---- */

void routes_oip_server(struct http_request *request)
{
    struct shoal_mesh_status status;
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    request->http->backend.status(request->http->backend.ctx, &status);
    json_object_begin(&w, NULL);
    json_text(&w, "name", "shoal");
    json_text(&w, "version", status.version);
    json_array_begin(&w, "extensions");
    json_text(&w, NULL, "binary_tensor_data");
    json_text(&w, NULL, "model_repository");
    json_end(&w);
    json_end(&w);
    http_respond_json(request, 200, &w);
}

static void respond_flag(struct http_request *request, const char *name, bool value)
{
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    json_object_begin(&w, NULL);
    json_bool(&w, name, value);
    json_end(&w);
    http_respond_json(request, value ? 200 : 503, &w);
}

void routes_oip_live(struct http_request *request) { respond_flag(request, "live", true); }

void routes_oip_ready(struct http_request *request)
{
    struct shoal_mesh_status status;

    request->http->backend.status(request->http->backend.ctx, &status);
    respond_flag(request, "ready", status.mesh_writable);
}

/* ---- a model ---- */

struct meta {
    struct http_request *request;
    char version[16];
    char other[16]; /* "": there is none */
};

static void put_tensors(struct json_writer *w, const char *key, const struct json_value *kernel)
{
    char *text = json_input_dump(json_input_get(kernel, key));

    json_raw(w, key, shoal_view_text(text == NULL || text[0] != '[' ? "[]" : text));
    free(text);
}

static void on_kernels(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view json)
{
    struct meta *meta = arg;
    struct http_request *request = meta->request;
    struct json_input *input = NULL;
    const struct json_value *kernels = NULL, *kernel = NULL;
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);
    struct shoal_msg why;

    if (err == SHOAL_OK && json_input_parse_own(json, &input, &why) == SHOAL_OK)
        kernels = json_input_get(json_input_root(input), "kernels");
    for (size_t i = 0; kernels != NULL && kernel == NULL && i < json_input_count(kernels); i++) {
        const char *state = json_input_text(json_input_at(kernels, i), "state");

        if (state != NULL && strcmp(state, "STARTING") != 0)
            kernel = json_input_at(kernels, i);
    }
    if (err != SHOAL_OK) {
        respond_failure(request, err, msg);
    } else {
        json_object_begin(&w, NULL);
        json_text(&w, "name", request->params[0]);
        json_array_begin(&w, "versions");
        if (meta->other[0] != '\0')
            json_text(&w, NULL, meta->other);
        json_text(&w, NULL, meta->version);
        json_end(&w);
        json_text(&w, "platform",
                  kernel == NULL || json_input_text(kernel, "platform") == NULL ? ""
                                                                                : json_input_text(kernel, "platform"));
        put_tensors(&w, "inputs", kernel);
        put_tensors(&w, "outputs", kernel);
        json_end(&w);
        http_respond_json(request, 200, &w);
    }
    json_input_free(input);
    http_request_release(request);
}

/* False: neither of the versions that are kept was asked for, which has been answered. */
static bool version_stands(struct http_request *request, const struct shoal_service_info *info, bool *other)
{
    char version[16], before[16], text[300];

    (void)snprintf(version, sizeof(version), "%u", info->version);
    (void)snprintf(before, sizeof(before), "%u", info->other);
    *other = info->other > 0 && request->params[1] != NULL && strcmp(request->params[1], before) == 0;
    if (request->params[1] == NULL || *other || strcmp(request->params[1], version) == 0)
        return true;
    if (info->other > 0)
        (void)snprintf(text, sizeof(text), "Model <%s> has versions %s and %s, not %.60s.", info->name, version, before,
                       request->params[1]);
    else
        (void)snprintf(text, sizeof(text), "Model <%s> has version %s, not %.60s.", info->name, version,
                       request->params[1]);
    respond_error(request, 404, text);
    return false;
}

static void on_meta_look(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                         const struct shoal_service_info *info)
{
    struct meta *meta = arg;
    struct http_request *request = meta->request;
    const struct shoal_backend *backend = &request->http->backend;
    bool other;

    if (err != SHOAL_OK) {
        respond_failure(request, err, msg);
    } else if (version_stands(request, info, &other)) {
        (void)snprintf(meta->version, sizeof(meta->version), "%u", info->version);
        if (info->other > 0)
            (void)snprintf(meta->other, sizeof(meta->other), "%u", info->other);
        backend->service_kernels(backend->ctx, &request->user, request->params[0], on_kernels, meta);
        return;
    }
    http_request_release(request);
}

void routes_oip_model(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct meta *meta = arena_alloc(&request->arena, sizeof(*meta));

    if (meta == NULL) {
        respond_error(request, 503, "out of memory; try again later");
        return;
    }
    *meta = (struct meta){ .request = request };
    http_request_hold(request);
    backend->service_look(backend->ctx, &request->user, request->params[0], on_meta_look, meta);
}

static void on_ready_look(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                          const struct shoal_service_info *info)
{
    struct http_request *request = arg;
    bool other;

    if (err != SHOAL_OK)
        respond_failure(request, err, msg);
    else if (version_stands(request, info, &other))
        respond_flag(request, "ready", (other ? info->other_ready : info->ready) > 0);
    http_request_release(request);
}

void routes_oip_model_ready(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;

    http_request_hold(request);
    backend->service_look(backend->ctx, &request->user, request->params[0], on_ready_look, request);
}

/* ---- the repository ---- */

/* {"ready": true}: of the models that are. */
static bool ready_only(struct http_request *request)
{
    struct json_input *input = NULL;
    struct shoal_msg why;
    bool ready = false;

    if (request->body.len > 0 && json_input_parse(shoal_buf_view(&request->body), &input, &why) == SHOAL_OK)
        (void)json_input_bool(json_input_root(input), "ready", &ready);
    json_input_free(input);
    return ready;
}

static void put_model(struct json_writer *w, const struct json_value *service, bool only_ready)
{
    const char *name = json_input_text(service, "name"), *why = json_input_text(service, "why");
    int64_t version = 0, ready = 0;
    char text[32];

    (void)json_input_int(service, "version", &version);
    (void)json_input_int(service, "ready", &ready);
    if (name == NULL || (only_ready && ready == 0))
        return;
    (void)snprintf(text, sizeof(text), "%lld", (long long)version);
    json_object_begin(w, NULL);
    json_text(w, "name", name);
    json_text(w, "version", text);
    json_text(w, "state", ready > 0 ? "READY" : "UNAVAILABLE");
    json_text(w, "reason", ready > 0 || why == NULL ? "" : why);
    json_end(w);
}

static void on_services(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view json)
{
    struct http_request *request = arg;
    struct json_input *input = NULL;
    const struct json_value *services = NULL;
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);
    struct shoal_msg why;
    bool only_ready = ready_only(request);

    if (err == SHOAL_OK && json_input_parse_own(json, &input, &why) == SHOAL_OK)
        services = json_input_get(json_input_root(input), "services");
    if (err != SHOAL_OK) {
        respond_failure(request, err, msg);
    } else {
        json_array_begin(&w, NULL);
        for (size_t i = 0; services != NULL && i < json_input_count(services); i++)
            put_model(&w, json_input_at(services, i), only_ready);
        json_end(&w);
        http_respond_json(request, 200, &w);
    }
    json_input_free(input);
    http_request_release(request);
}

void routes_oip_index(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;

    http_request_hold(request);
    backend->services(backend->ctx, &request->user, NULL, on_services, request);
}

static const struct http_route routes[] = {
    { .method = HTTP1_GET, .pattern = "/v2", .handle = routes_oip_server },
    { .method = HTTP1_GET, .pattern = "/v2/health/live", .handle = routes_oip_live },
    { .method = HTTP1_GET, .pattern = "/v2/health/ready", .handle = routes_oip_ready },
    { .method = HTTP1_GET, .pattern = "/v2/models/{}", .handle = routes_oip_model },
    { .method = HTTP1_GET, .pattern = "/v2/models/{}/ready", .handle = routes_oip_model_ready },
    { .method = HTTP1_GET, .pattern = "/v2/models/{}/versions/{}", .handle = routes_oip_model },
    { .method = HTTP1_GET, .pattern = "/v2/models/{}/versions/{}/ready", .handle = routes_oip_model_ready },
    { .method = HTTP1_POST, .pattern = "/v2/repository/index", .handle = routes_oip_index, .mode = HTTP_BODY_BUFFER },
};

const struct http_route *http_routes_oip(size_t *count)
{
    *count = sizeof(routes) / sizeof(routes[0]);
    return routes;
}
