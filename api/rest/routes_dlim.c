/* WMLA's inference API, /dlim/v1: tokens, models, their profiles and instances. Where a package is deployed: submit_uv.c; where
 * a model is asked: routes_services.c. What is said of a model rides in the document of its service (shoal/service_doc.h).
 *
 * D1. Every answer but an inference's is JSON, an error's {"error": text}; nothing done is {}.
 * D2. No answer is a redirect: clients drop their credentials then. */
#include "routes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shoal/crypto.h"
#include "shoal/service_doc.h"
#include "shoal/token.h"

#include "api/http/json_input.h"

#include "shoal/banned.h"

#define SERVICE_TOKEN_LIFE_S (30u * 24u * 3600u)
#define DLIM "/dlim/v1"

static void respond_done(struct http_request *request)
{
    http_respond(request, 200, "application/json", shoal_view_text("{}"));
}

/* ---- tokens ---- */

static bool put_token(struct http_request *request, struct json_writer *w, const char *const keys[], bool service)
{
    struct shoal_http *http = request->http;
    struct shoal_token_keys keys_of_mesh = { .count = 0 };
    struct token_claims claims = token_claims_of(&request->user, (uint64_t)time(NULL));
    char token[TOKEN_TEXT_BYTES + 1];
    struct shoal_msg msg = { "this node has not yet got the mesh's users; try again in some seconds" };
    enum shoal_err err = SHOAL_ERR_UNREACHABLE;

    http->backend.token_keys(http->backend.ctx, &keys_of_mesh);
    claims.service = service;
    claims.exp_s = claims.issued_s + (service ? SERVICE_TOKEN_LIFE_S : http->options.token_life_s);
    if (keys_of_mesh.count > 0)
        err = token_make(&claims, keys_of_mesh.keys[0], token, &msg);
    shoal_wipe(&keys_of_mesh, sizeof(keys_of_mesh));
    if (err != SHOAL_OK) {
        shoal_buf_deinit(w->buf);
        http_respond_failure(request, err, &msg, 400);
        return false;
    }
    for (unsigned i = 0; keys[i] != NULL; i++)
        json_text(w, keys[i], token);
    return true;
}

static void answer_tokens(struct http_request *request)
{
    static const char *const user[] = { "user_token", "access_token", NULL };
    static const char *const service[] = { "service_token", NULL };
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    json_object_begin(&w, NULL);
    if (!put_token(request, &w, user, false) || !put_token(request, &w, service, true))
        return;
    json_end(&w);
    http_respond_json(request, 200, &w);
}

/* Basic, or {"method": "password", "userpasswd": base64}. */
static void handle_token(struct http_request *request)
{
    struct json_input *input = NULL;
    struct shoal_view authorization;
    struct shoal_msg msg;
    const char *pair = NULL;

    if (http1_header_find(&request->head, "authorization", &authorization) && authorization.len > 0) {
        auth_basic(request, answer_tokens);
        return;
    }
    if (request->body.len > 0 && json_input_parse(shoal_buf_view(&request->body), &input, &msg) == SHOAL_OK)
        pair = json_input_text(json_input_root(input), "userpasswd");
    pair = pair == NULL ? NULL : arena_text(&request->arena, pair);
    json_input_free(input);
    if (pair == NULL)
        http_respond_error(request, 401,
                           "log on with Basic credentials, or with {\"method\":\"password\",\"userpasswd\":base64 of "
                           "user:password}");
    else
        auth_pair(request, shoal_view_text(pair), answer_tokens);
}

static void handle_token_inference(struct http_request *request) { answer_tokens(request); }

/* ---- one model ---- */

/* Goes on with the verb once the service has been read. */
struct wanted {
    struct http_request *request;
    routes_model_fn *then;
};

static void on_looked(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_service_info *info)
{
    struct wanted *wanted = arg;
    struct http_request *request = wanted->request;

    if (err == SHOAL_OK)
        wanted->then(request, info);
    else
        http_respond_failure(request, err, msg, 404);
    http_request_release(request);
}

void routes_model_look(struct http_request *request, const char *name, routes_model_fn *then)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct wanted *wanted = arena_alloc(&request->arena, sizeof(*wanted));

    if (wanted == NULL) {
        http_respond_error(request, 503, "out of memory; try again later");
        return;
    }
    *wanted = (struct wanted){ request, then };
    http_request_hold(request);
    backend->service_look(backend->ctx, &request->user, name, on_looked, wanted);
}

/* By what its group has committed: each node says the same of it at one time. What gossip says of kernels comes later. */
bool routes_model_enabled(const struct shoal_service_info *info)
{
    struct service_knobs knobs;

    service_doc_knobs(info->document, info->replicas, &knobs);
    return knobs.started || info->placed > 0 || service_doc_stops(&knobs, (uint64_t)time(NULL));
}

bool routes_model_is_own(const struct http_request *request, const struct shoal_service_info *info)
{
    return request->user.admin || strcmp(request->user.name, info->creator) == 0;
}

struct service_doc_facts routes_model_facts(struct http_request *request, const struct shoal_service_info *info,
                                            char uri[512])
{
    struct shoal_view host = { 0 };

    uri[0] = '\0';
    if (routes_model_enabled(info) && http1_header_find(&request->head, "host", &host))
        (void)snprintf(uri, 512, "%s://%.*s" DLIM "/inference/%s", request->http->tls == NULL ? "http" : "https",
                       (int)(host.len > 300 ? 300 : host.len), (const char *)host.bytes, info->name);
    return (struct service_doc_facts){ .name = info->name,
                                       .creator = info->creator,
                                       .service_uri = uri,
                                       .created_s = info->created_s,
                                       .updated_s = info->updated_s,
                                       .values = routes_model_is_own(request, info) };
}

void routes_model_respond(struct http_request *request, int status, enum shoal_err err, struct shoal_buf *json)
{
    struct shoal_msg msg = { "what is kept of this model does not decode; deploy it again" };

    if (err == SHOAL_OK)
        http_respond(request, status, "application/json", shoal_buf_view(json));
    else
        http_respond_failure(request, err == SHOAL_ERR_MALFORMED ? SHOAL_ERR_STORAGE : err, &msg, 404);
    shoal_buf_deinit(json);
}

static enum shoal_err put_model(struct http_request *request, const struct shoal_service_info *info,
                                struct shoal_buf *out)
{
    char uri[512];
    struct service_doc_facts facts = routes_model_facts(request, info, uri);

    return service_doc_model(info->document, &facts, out);
}

static void show_model(struct http_request *request, const struct shoal_service_info *info)
{
    struct shoal_buf json = { 0 };

    routes_model_respond(request, 200, put_model(request, info, &json), &json);
}

void routes_dlim_model(struct http_request *request, const char *name) { routes_model_look(request, name, show_model); }

static void handle_model(struct http_request *request) { routes_model_look(request, request->params[0], show_model); }

static void show_profile(struct http_request *request, const struct shoal_service_info *info)
{
    char uri[512];
    struct service_doc_facts facts = routes_model_facts(request, info, uri);
    struct shoal_buf json = { 0 };

    routes_model_respond(request, 200, service_doc_profile(info->document, &facts, &json), &json);
}

static void handle_profile(struct http_request *request) { routes_model_look(request, request->params[0], show_profile); }

static void show_readme(struct http_request *request, const struct shoal_service_info *info)
{
    struct shoal_buf json = { 0 };

    routes_model_respond(request, 200, service_doc_readme(info->document, &json), &json);
}

void routes_model_readme(struct http_request *request) { routes_model_look(request, request->params[0], show_readme); }

/* gRPC is answered where this was asked; of a model that is not started the address is empty. */
static void show_streaming(struct http_request *request, const struct shoal_service_info *info)
{
    struct shoal_view host = { 0 };
    struct shoal_buf json = { 0 };
    struct json_writer w = json_writer_init(&json);

    if (routes_model_enabled(info))
        (void)http1_header_find(&request->head, "host", &host);
    json_object_begin(&w, NULL);
    json_text_view(&w, "streaming_service_uri", host);
    json_end(&w);
    http_respond_json(request, 200, &w);
}

static void handle_streaming(struct http_request *request) { routes_model_look(request, request->params[0], show_streaming); }

/* ---- instances ---- */

struct instance {
    struct http_request *request;
    struct json_writer w;
    struct shoal_buf buf;
    uint32_t open;
};

/* Of a kernel that has one: ours, beside what WMLA says. */
static void put_card(struct json_writer *w, const struct json_value *kernel)
{
    int64_t mib = 0, total = 0;

    if (json_input_text(kernel, "gpu") == NULL || json_input_text(kernel, "gpu_name") == NULL)
        return;
    (void)json_input_int(kernel, "gpu_mem", &mib);
    (void)json_input_int(kernel, "gpu_mem_total", &total);
    json_text(w, "gpu", json_input_text(kernel, "gpu"));
    json_text(w, "gpu_name", json_input_text(kernel, "gpu_name"));
    json_int(w, "gpu_mem", mib);
    json_int(w, "gpu_mem_total", total);
}

static void put_kernel(struct json_writer *w, const struct json_value *kernel, const char *finished, int64_t *running)
{
    const struct {
        const char *from, *to;
    } counts[] = { { "running", "running_task" }, { "finished", finished }, { "failed", "failed_task" } };
    int64_t values[3] = { 0 };

    for (unsigned i = 0; i < 3; i++)
        (void)json_input_int(kernel, counts[i].from, &values[i]);
    *running += values[0];
    json_object_begin(w, NULL);
    json_text(w, "container_uid", json_input_text(kernel, "id"));
    json_text(w, "container_host", json_input_text(kernel, "node"));
    json_text(w, "container_status", json_input_text(kernel, "state"));
    json_int(w, "total_task", values[0] + values[1] + values[2]);
    for (unsigned i = 0; i < 3; i++)
        json_int(w, counts[i].to, values[i]);
    put_card(w, kernel);
    json_end(w);
}

int64_t routes_model_kernels(struct json_writer *w, struct shoal_view json, const char *finished)
{
    struct json_input *input = NULL;
    struct shoal_msg why;
    const struct json_value *kernels = NULL;
    int64_t running = 0;

    if (json.len > 0 && json_input_parse_own(json, &input, &why) == SHOAL_OK)
        kernels = json_input_get(json_input_root(input), "kernels");
    json_array_begin(w, "isd_container");
    for (size_t i = 0; kernels != NULL && i < json_input_count(kernels); i++)
        if (json_input_text(json_input_at(kernels, i), "id") != NULL &&
            json_input_text(json_input_at(kernels, i), "node") != NULL &&
            json_input_text(json_input_at(kernels, i), "state") != NULL)
            put_kernel(w, json_input_at(kernels, i), finished, &running);
    json_end(w);
    json_input_free(input);
    return running;
}

void routes_model_rates(struct shoal_view json, int64_t *milli_requests_per_s, int64_t *bytes_per_s)
{
    struct json_input *input = NULL;
    struct shoal_msg why;
    const struct json_value *kernels = NULL;
    int64_t value;

    *milli_requests_per_s = *bytes_per_s = 0;
    if (json.len > 0 && json_input_parse_own(json, &input, &why) == SHOAL_OK)
        kernels = json_input_get(json_input_root(input), "kernels");
    for (size_t i = 0; kernels != NULL && i < json_input_count(kernels); i++) {
        if (json_input_int(json_input_at(kernels, i), "milli_requests_per_s", &value)) /* an older host says none */
            *milli_requests_per_s += value;
        if (json_input_int(json_input_at(kernels, i), "bytes_per_s", &value))
            *bytes_per_s += value;
    }
    json_input_free(input);
}

static void put_rates(struct json_writer *w, struct shoal_view json)
{
    int64_t milli, bytes;
    char text[40];

    routes_model_rates(json, &milli, &bytes);
    (void)snprintf(text, sizeof(text), "%.2f", (double)milli / 1000);
    json_raw(w, "request_per_sec", shoal_view_text(text));
    (void)snprintf(text, sizeof(text), "%.1f", (double)bytes);
    json_raw(w, "data_size_per_sec", shoal_view_text(text));
}

static void on_kernels(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view json)
{
    struct instance *instance = arg;
    struct http_request *request = instance->request;
    struct json_writer *w = &instance->w;
    struct shoal_view said = err == SHOAL_OK ? json : (struct shoal_view){ 0 };
    int64_t running;

    put_rates(w, said);
    running = routes_model_kernels(w, said, "finished_task");
    json_int(w, "pending_tasks", (int64_t)instance->open > running ? (int64_t)instance->open - running : 0);
    json_end(w);
    json_end(w);
    json_text(w, "name", request->params[0]);
    json_text(w, "state", "enabled");
    json_end(w);
    if (err != SHOAL_OK) {
        shoal_buf_deinit(&instance->buf);
        http_respond_failure(request, err, msg, 404);
    } else {
        http_respond_json(request, 200, w);
    }
    http_request_release(request);
}

void routes_model_uid(const struct shoal_service_info *info, char text[40])
{
    uint8_t digits[20] = { 0 };
    char hex[41];

    memcpy(digits, info->job.bytes, sizeof(info->job.bytes));
    shoal_hex_text(digits, sizeof(digits), hex);
    (void)snprintf(text, 40, "%.8s-%.4s-4%.3s-8%.3s-%.12s", hex, hex + 8, hex + 12, hex + 15, hex + 18);
}

static void put_service(struct json_writer *w, const struct shoal_service_info *info)
{
    char id[SHOAL_JOB_ID_TEXT_BYTES], text[240], gpu[16];

    shoal_job_id_text(info->job, id);
    service_doc_gpu(info->document, gpu, sizeof(gpu));
    routes_model_uid(info, text);
    json_object_begin(w, NULL);
    json_text(w, "isd_uid", text);
    json_text(w, "pj_jobid", id);
    json_text(w, "gpu_mode", gpu);
    service_doc_pack(info->document, info->name, text, sizeof(text));
    json_text(w, "gpu_packid", text);
    json_uint(w, "client_number", info->open);
}

static void show_instance(struct http_request *request, const struct shoal_service_info *info)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct instance *instance = arena_alloc(&request->arena, sizeof(*instance));

    if (instance == NULL) {
        http_respond_error(request, 503, "out of memory; try again later");
        return;
    }
    *instance = (struct instance){ .request = request, .open = info->open };
    instance->w = json_writer_init(&instance->buf);
    json_object_begin(&instance->w, NULL);
    if (!routes_model_enabled(info)) {
        json_text(&instance->w, "name", request->params[0]);
        json_text(&instance->w, "state", "disabled");
        json_end(&instance->w);
        http_respond_json(request, 200, &instance->w);
        return;
    }
    json_array_begin(&instance->w, "instances");
    put_service(&instance->w, info);
    http_request_hold(request);
    backend->service_kernels(backend->ctx, &request->user, request->params[0], on_kernels, instance);
}

static void handle_instance(struct http_request *request) { routes_model_look(request, request->params[0], show_instance); }

/* ---- all models ---- */

struct listing {
    struct http_request *request;
    struct json_input *names;
    const struct json_value *services;
    size_t at;
    const struct routes_models *shown;
    bool first;
    struct shoal_buf json;
};

static void list_next(struct listing *l);

static enum shoal_err append_text(struct shoal_buf *buf, const char *text)
{
    return shoal_buf_append(buf, text, strlen(text));
}

static void list_end(struct listing *l, enum shoal_err err, const struct shoal_msg *msg)
{
    struct http_request *request = l->request;

    if (err == SHOAL_OK)
        err = append_text(&l->json, l->shown->end);
    if (err == SHOAL_OK)
        http_respond(request, 200, "application/json", shoal_buf_view(&l->json));
    else
        http_respond_failure(request, err, msg, 404);
    json_input_free(l->names);
    shoal_buf_deinit(&l->json);
    free(l);
    http_request_release(request);
}

static void on_one(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_service_info *info)
{
    struct listing *l = arg;
    struct shoal_buf one = { 0 };

    if (err == SHOAL_OK) {
        if (l->shown->put(l->request, info, &one) == SHOAL_OK) {
            if (!l->first)
                err = shoal_buf_append(&l->json, ",", 1);
            if (err == SHOAL_OK)
                err = shoal_buf_append(&l->json, one.bytes, one.len);
            l->first = false;
        }
        shoal_buf_deinit(&one);
    } else if (err == SHOAL_ERR_NOT_FOUND) {
        err = SHOAL_OK; /* it was deleted meanwhile */
    }
    if (err == SHOAL_OK)
        list_next(l);
    else
        list_end(l, err, msg);
}

static void list_next(struct listing *l)
{
    const struct shoal_backend *backend = &l->request->http->backend;
    const struct shoal_msg msg = { "" };
    const char *name;

    if (l->services == NULL || l->at >= json_input_count(l->services)) {
        list_end(l, SHOAL_OK, &msg);
        return;
    }
    name = json_input_text(json_input_at(l->services, l->at++), "name");
    backend->service_look(backend->ctx, &l->request->user, name == NULL ? "" : name, on_one, l);
}

static void on_names(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view json)
{
    struct listing *l = arg;
    struct shoal_msg why;

    if (err == SHOAL_OK)
        err = json_input_parse_own(json, &l->names, &why);
    if (err == SHOAL_OK)
        err = append_text(&l->json, l->shown->begin);
    if (err != SHOAL_OK) {
        list_end(l, err, msg);
        return;
    }
    l->services = json_input_get(json_input_root(l->names), "services");
    list_next(l);
}

void routes_model_list(struct http_request *request, const struct routes_models *shown)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct listing *l = calloc(1, sizeof(*l));

    if (l == NULL) {
        http_respond_error(request, 503, "out of memory; try again later");
        return;
    }
    *l = (struct listing){ .request = request, .shown = shown, .first = true };
    http_request_hold(request);
    backend->services(backend->ctx, &request->user, NULL, on_names, l);
}

static void handle_models(struct http_request *request)
{
    static const struct routes_models models = { "[", "]", put_model };

    routes_model_list(request, &models);
}

static void handle_extension(struct http_request *request)
{
    static const struct routes_models models = { "{\"model_list\":[", "],\"extension_list\":[]}", put_model };

    routes_model_list(request, &models);
}

/* ---- changes ---- */

static void on_changed(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    struct http_request *request = arg;

    if (err == SHOAL_OK)
        respond_done(request);
    else
        http_respond_failure(request, err, msg, 404);
    http_request_release(request);
}

static void change(struct http_request *request, enum shoal_service_verb verb)
{
    const struct shoal_backend *backend = &request->http->backend;

    http_request_hold(request);
    backend->service_change(backend->ctx, &request->user, request->params[0], verb, 0, on_changed, request);
}

static void start(struct http_request *request) { change(request, SHOAL_SERVICE_START); }

static void start_looked(struct http_request *request, const struct shoal_service_info *info)
{
    routes_runtime_needed(request, info, start);
}

void routes_model_start(struct http_request *request) { routes_model_look(request, request->params[0], start_looked); }

void routes_model_stop(struct http_request *request) { change(request, SHOAL_SERVICE_STOP); }

static void delete_stopped(struct http_request *request, const struct shoal_service_info *info)
{
    if (routes_model_enabled(info))
        http_respond_error(request, 409, "The model cannot be removed if it's started.");
    else
        change(request, SHOAL_SERVICE_DELETE);
}

void routes_model_delete(struct http_request *request) { routes_model_look(request, request->params[0], delete_stopped); }

void routes_model_edit(struct http_request *request, enum service_doc_edit_kind kind)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct service_doc_edit edit = { .kind = kind, .body = shoal_buf_view(&request->body) };

    http_request_hold(request);
    backend->service_edit(backend->ctx, &request->user, request->params[0], &edit, on_changed, request);
}

static void handle_put_model(struct http_request *request) { routes_model_edit(request, SERVICE_DOC_MODEL); }

static void handle_put_readme(struct http_request *request) { routes_model_edit(request, SERVICE_DOC_README); }

#define BUFFER .mode = HTTP_BODY_BUFFER
#define PACKAGE .mode = HTTP_BODY_STREAM, .begin = submit_begin, .data = submit_data

static const struct http_route routes[] = {
    { .method = HTTP1_POST, .pattern = DLIM "/auth/token", .handle = handle_token, BUFFER, .open = true },
    { .method = HTTP1_POST, .pattern = DLIM "/auth/token/inference", .handle = handle_token_inference },
    { .method = HTTP1_POST, .pattern = DLIM "/deployment/model", .handle = submit_handle, PACKAGE },
    { .method = HTTP1_POST, .pattern = DLIM "/deployment/model/{}", .handle = submit_handle, PACKAGE },
    { .method = HTTP1_GET, .pattern = DLIM "/model", .handle = handle_models },
    { .method = HTTP1_GET, .pattern = DLIM "/modelextension", .handle = handle_extension },
    { .method = HTTP1_GET, .pattern = DLIM "/model/{}", .handle = handle_model },
    { .method = HTTP1_PUT, .pattern = DLIM "/model/{}", .handle = handle_put_model, BUFFER },
    { .method = HTTP1_DELETE, .pattern = DLIM "/model/{}", .handle = routes_model_delete },
    { .method = HTTP1_PUT, .pattern = DLIM "/model/{}/operation/start", .handle = routes_model_start, BUFFER },
    { .method = HTTP1_PUT, .pattern = DLIM "/model/{}/operation/stop", .handle = routes_model_stop, BUFFER },
    { .method = HTTP1_GET, .pattern = DLIM "/model/{}/instance", .handle = handle_instance },
    { .method = HTTP1_GET, .pattern = DLIM "/model/{}/readme", .handle = routes_model_readme },
    { .method = HTTP1_PUT, .pattern = DLIM "/model/{}/readme", .handle = handle_put_readme, BUFFER },
    { .method = HTTP1_GET, .pattern = DLIM "/model/{}/streaming", .handle = handle_streaming },
    { .method = HTTP1_GET, .pattern = DLIM "/model/{}/appprofile", .handle = handle_profile },
    { .method = HTTP1_PUT, .pattern = DLIM "/model/{}/appprofile", .handle = routes_profile_put_dlim, BUFFER },
};

const struct http_route *http_routes_dlim(size_t *count)
{
    *count = sizeof(routes) / sizeof(routes[0]);
    return routes;
}
