/* OpenAI's addresses for models: /v1/chat/completions, /v1/completions, /v1/embeddings and /v1/models, beside the native API's
 * under the same /v1.
 *
 * N1. The body's "model" is the service. The body goes to its kernel as it is, with the address: the kernel answers with the
 *     object that OpenAI describes; with "stream" each of its pieces is one event's data, and [DONE] comes last.
 * N2. Every error is {"error": {"message", "type", "param", "code"}}. Source: OpenAI's published description of its API. */
#include "asking.h"
#include "routes.h"

#include "api/http/json_input.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/banned.h"

#define MODELS "/v1/models"

static void openai_begin(struct http_request *request)
{
    if (request->head.content_length > SHOAL_JSON_BYTES_MAX)
        asking_refuse(request, ASKER_OPENAI, 413, "the request is larger than the 1 MiB that this address reads; shorten it");
    else
        asking_begin(request);
}

static void openai_data(struct http_request *request, struct shoal_view content)
{
    if (asking_body(request).len + content.len > SHOAL_JSON_BYTES_MAX)
        asking_refuse(request, ASKER_OPENAI, 413, "the request is larger than the 1 MiB that this address reads; shorten it");
    else
        asking_data(request, content);
}

static void handle_ask(struct http_request *request)
{
    struct json_input *input = NULL;
    struct shoal_msg msg = { "" };
    const char *named, *model = NULL;
    bool stream = false;
    enum shoal_err err = json_input_parse(asking_body(request), &input, &msg);

    if (err != SHOAL_OK) {
        char text[600];

        (void)snprintf(text, sizeof(text), "%s%.400s", err == SHOAL_ERR_TOO_BIG ? "" : "the request body is no JSON: ",
                       msg.text);
        asking_refuse(request, ASKER_OPENAI, err == SHOAL_ERR_TOO_BIG ? 413 : 400, text);
        return;
    }
    named = json_input_text(json_input_root(input), "model");
    if (named != NULL)
        model = arena_copy(&request->arena, shoal_view_text(named));
    (void)json_input_bool(json_input_root(input), "stream", &stream);
    json_input_free(input);
    if (model == NULL) {
        asking_refuse(request, ASKER_OPENAI, 400, "model: say which service is asked; GET /v1/models lists them");
        return;
    }
    if (stream)
        asking_stream(request);
    asking_run(request, ASKER_OPENAI, model, "");
}

/* ---- models ---- */

static void put_model(struct json_writer *w, const struct json_value *service)
{
    const char *name = json_input_text(service, "name"), *owner = json_input_text(service, "creator");
    int64_t created = 0;

    (void)json_input_int(service, "createdAt", &created);
    json_object_begin(w, NULL);
    json_text(w, "id", name == NULL ? "" : name);
    json_text(w, "object", "model");
    json_int(w, "created", created);
    json_text(w, "owned_by", owner == NULL ? "" : owner);
    json_end(w);
}

static void on_models(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view json)
{
    struct http_request *request = arg;
    bool one = strcmp(request->route->pattern, MODELS) != 0;
    struct json_input *input = NULL;
    struct shoal_msg why = { "" };
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);
    const struct json_value *services = NULL;

    if (err == SHOAL_OK && json_input_parse_own(json, &input, &why) != SHOAL_OK)
        err = SHOAL_ERR_STORAGE;
    if (err != SHOAL_OK) {
        asking_refuse(request, ASKER_OPENAI, err == SHOAL_ERR_NOT_FOUND ? 404 : 503, msg->text);
    } else if (one) {
        put_model(&w, json_input_root(input));
        http_respond_json(request, 200, &w);
    } else {
        services = json_input_get(json_input_root(input), "services");
        json_object_begin(&w, NULL);
        json_text(&w, "object", "list");
        json_array_begin(&w, "data");
        for (size_t i = 0; services != NULL && i < json_input_count(services); i++)
            put_model(&w, json_input_at(services, i));
        json_end(&w);
        json_end(&w);
        http_respond_json(request, 200, &w);
    }
    json_input_free(input);
    http_request_release(request);
}

static void models(struct http_request *request, const char *name)
{
    const struct shoal_backend *backend = &request->http->backend;

    http_request_hold(request);
    backend->services(backend->ctx, &request->user, name, on_models, request);
}

static void handle_models(struct http_request *request) { models(request, NULL); }

static void handle_model(struct http_request *request) { models(request, request->params[0]); }

#define BODY .mode = HTTP_BODY_STREAM, .begin = openai_begin, .data = openai_data

static const struct http_route routes[] = {
    { .method = HTTP1_POST, .pattern = "/v1/chat/completions", .handle = handle_ask, BODY },
    { .method = HTTP1_POST, .pattern = "/v1/completions", .handle = handle_ask, BODY },
    { .method = HTTP1_POST, .pattern = "/v1/embeddings", .handle = handle_ask, BODY },
    { .method = HTTP1_GET, .pattern = MODELS, .handle = handle_models },
    { .method = HTTP1_GET, .pattern = MODELS "/{}", .handle = handle_model },
};

const struct http_route *http_routes_openai(size_t *count)
{
    *count = sizeof(routes) / sizeof(routes[0]);
    return routes;
}
