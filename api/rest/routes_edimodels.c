/* The older view of models, of WMLA's Deep Learning Impact API: /edimodels. The same services that /dlim/v1 shows, under the
 * keys of that API; nothing is kept here (decision 0035).
 *
 *   list, one, profile, instance --> what routes_dlim.c reads, said in other keys
 *   new, publish                 --> an ended job's model becomes a package (submit_job_uv.c) --> 201, the model
 *   inference                    --> the whole body goes to the kernel; what it answers is grouped by sample
 *
 * M1. Misspelt keys are the API's own (schedule_intervel, reslove); both spellings are read, and the profile says both.
 * M2. A package never comes by these addresses: `modelPath` names a job, or its RESULT_DIR.
 * M3. Errors are those of /platform/rest: "Error <status>: <text>", as text/plain. */
#include "asking.h"
#include "submit_uv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/json_text.h"
#include "shoal/service_doc.h"

#include "shoal/banned.h"

#define EDI ROUTES_BASE "/edimodels"
#define RESULTS "batchworkdir/" /* in a RESULT_DIR, before the job's id */

static void copy_value(struct json_writer *w, const char *key, const struct json_value *value)
{
    char *text = value == NULL ? NULL : json_input_dump(value);

    if (text == NULL)
        w->failed = true;
    else
        json_raw(w, key, shoal_view_text(text));
    free(text);
}

static const char *text_or_empty(const struct json_value *object, const char *key)
{
    const char *text = json_input_text(object, key);

    return text == NULL ? "" : text;
}

static int64_t int_or(const struct json_value *object, const char *key, int64_t otherwise)
{
    int64_t value = otherwise;

    (void)json_input_int(object, key, &value);
    return value;
}

/* ---- the model ---- */

static void put_keys(struct json_writer *w, const struct json_value *model, const struct json_value *profile,
                     const char *state)
{
    static const char *const texts[] = { "schema_version", "name",    "tag",         "weight_path", "model_path",
                                         "creator",        "runtime", "kernel_path", "service_uri" };
    const struct json_value *policy = json_input_get(profile, "policy");
    const struct json_value *kernel = json_input_get(json_input_get(profile, "resource_allocation"), "kernel");

    json_object_begin(w, NULL);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        json_text(w, texts[i], text_or_empty(model, texts[i]));
    json_text(w, "mk_resource_req", text_or_empty(kernel, "resources"));
    json_text(w, "mk_umask", text_or_empty(json_input_get(profile, "kernel"), "umask"));
    copy_value(w, "attributes", json_input_get(model, "attributes"));
    copy_value(w, "mk_environments", json_input_get(model, "mk_environments"));
    json_int(w, "size", int_or(model, "size", 0));
    json_int(w, "mk_instance_min", int_or(policy, "kernel_min", 0));
    json_int(w, "mk_instance_max", int_or(policy, "kernel_max", 0));
    json_text(w, "create_time", text_or_empty(profile, "create_time"));
    json_text(w, "last_update_time", text_or_empty(profile, "last_update_time"));
    json_text(w, "state", state);
    json_end(w);
}

static const char *state_of(const struct shoal_service_info *info)
{
    return routes_model_enabled(info) ? "enabled" : "disabled";
}

static enum shoal_err parse_made(enum shoal_err err, struct shoal_buf *json, struct json_input **input)
{
    struct shoal_msg msg;

    if (err == SHOAL_OK)
        err = json_input_parse_own(shoal_buf_view(json), input, &msg);
    shoal_buf_deinit(json);
    return err;
}

static enum shoal_err put_model(struct http_request *request, const struct shoal_service_info *info,
                                struct shoal_buf *out)
{
    char uri[512];
    struct service_doc_facts facts = routes_model_facts(request, info, uri);
    struct json_input *model = NULL, *profile = NULL;
    struct shoal_buf json = { 0 };
    struct json_writer w = json_writer_init(out);
    enum shoal_err err = parse_made(service_doc_model(info->document, &facts, &json), &json, &model);

    if (err == SHOAL_OK)
        err = parse_made(service_doc_profile(info->document, &facts, &json), &json, &profile);
    if (err == SHOAL_OK)
        put_keys(&w, json_input_root(model), json_input_root(profile), state_of(info));
    json_input_free(model);
    json_input_free(profile);
    return err == SHOAL_OK && w.failed ? SHOAL_ERR_FULL : err;
}

static void handle_models(struct http_request *request)
{
    static const struct routes_models models = { "[", "]", put_model };

    routes_model_list(request, &models);
}

static void show_model(struct http_request *request, const struct shoal_service_info *info)
{
    struct shoal_buf json = { 0 };
    enum shoal_err err = put_model(request, info, &json);

    routes_model_respond(request, request->head.method == HTTP1_POST ? 201 : 200, err, &json);
}

void routes_edi_made(struct http_request *request, const char *name) { routes_model_look(request, name, show_model); }

static void handle_model(struct http_request *request) { routes_model_look(request, request->params[0], show_model); }

/* ---- what bodies must say ---- */

static enum shoal_err not_said(struct shoal_msg *msg, const char *key)
{
    return shoal_fail(msg, SHOAL_ERR_INVALID, "%s: it must be said, as a text", key);
}

/* An object in which `needed` (NULL at its end) are texts, and not empty. */
static enum shoal_err read_body(struct shoal_view body, const char *const needed[], struct json_input **input,
                                struct shoal_msg *msg)
{
    enum shoal_err err = json_input_parse(body, input, msg);

    if (err != SHOAL_OK)
        return SHOAL_ERR_INVALID;
    if (!json_input_is_object(json_input_root(*input)))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "the body must be a JSON object");
    for (size_t i = 0; needed[i] != NULL; i++)
        if (text_or_empty(json_input_root(*input), needed[i])[0] == '\0')
            return not_said(msg, needed[i]);
    return SHOAL_OK;
}

/* False: the body's name is not said, which has been answered. */
static bool check_name(struct http_request *request)
{
    static const char *const needed[] = { "name", NULL };
    struct json_input *input = NULL;
    struct shoal_msg msg = { "" };
    enum shoal_err err = read_body(shoal_buf_view(&request->body), needed, &input, &msg);

    json_input_free(input);
    if (err != SHOAL_OK)
        http_respond_failure(request, err, &msg, 404);
    return err == SHOAL_OK;
}

static void handle_update(struct http_request *request)
{
    if (check_name(request))
        routes_model_edit(request, SERVICE_DOC_MODEL);
}

/* ---- an ended job's model ---- */

/* "a=1,b=2", or a line each: an object of texts. */
static enum shoal_err put_pairs(struct http_request *request, struct json_writer *w, const char *key, const char *text,
                                struct shoal_msg *msg)
{
    char *copy = arena_text(&request->arena, text), *at = NULL;

    if (copy == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "out of memory; try again later");
    json_object_begin(w, key);
    for (char *pair = strtok_r(copy, ",\r\n", &at); pair != NULL; pair = strtok_r(NULL, ",\r\n", &at)) {
        char *equals;

        pair += strspn(pair, " \t");
        if (*pair == '\0')
            continue;
        equals = strchr(pair, '=');
        if (equals == NULL || equals == pair)
            return shoal_fail(msg, SHOAL_ERR_INVALID,
                              "%s: \"%.100s\" is not key=value; commas or line breaks stand between pairs", key, pair);
        *equals = '\0';
        json_text(w, pair, equals + 1);
    }
    json_end(w);
    return SHOAL_OK;
}

/* The part of a path behind a job's RESULT_DIR; any other path is as it is. */
static const char *below_result(const char *path)
{
    const char *found = strstr(path, RESULTS);
    const char *slash = found == NULL ? NULL : strchr(found + strlen(RESULTS), '/');

    return slash == NULL ? path : slash + 1;
}

/* M2. */
static enum shoal_err job_of_path(struct http_request *request, const char *path, const char **job,
                                  struct shoal_msg *msg)
{
    const char *found = strstr(path, RESULTS);
    const char *id = found == NULL ? path : found + strlen(RESULTS);
    size_t len = strcspn(id, "/");

    if (len == 0 || (found == NULL && id[len] != '\0'))
        return shoal_fail(
            msg, SHOAL_ERR_INVALID,
            "modelPath: \"%.200s\" is neither a job nor its RESULT_DIR; hosts share no folder: send a package to "
            "/dlim/v1/deployment/model",
            path);
    *job = arena_copy(&request->arena, shoal_view_of(id, len));
    return *job == NULL ? shoal_fail(msg, SHOAL_ERR_FULL, "out of memory; try again later") : SHOAL_OK;
}

/* The body in the words of submit_job_uv.c. */
static enum shoal_err put_wishes(struct http_request *request, const struct json_value *said, struct shoal_buf *out,
                                 struct shoal_msg *msg)
{
    struct json_writer w = json_writer_init(out);
    const char *weight = below_result(text_or_empty(said, "weightPath"));
    enum shoal_err err;

    json_object_begin(&w, NULL);
    json_text(&w, "name", text_or_empty(said, "name"));
    json_text(&w, "runtime", text_or_empty(said, "runtime"));
    json_text(&w, "kernel", below_result(text_or_empty(said, "edi_py")));
    json_text(&w, "weight", weight);
    json_text(&w, "tag", text_or_empty(said, "type"));
    err = put_pairs(request, &w, "attributes", text_or_empty(said, "attribute"), msg);
    if (err == SHOAL_OK)
        err = put_pairs(request, &w, "environments", text_or_empty(said, "mcenv"), msg);
    json_end(&w);
    if (err == SHOAL_OK && w.failed)
        err = shoal_fail(msg, SHOAL_ERR_FULL, "out of memory; try again later");
    return err;
}

static enum shoal_err check_optional(const struct json_value *said, struct shoal_msg *msg)
{
    static const char *const optional[] = { "attribute", "mcenv", "type" };

    for (size_t i = 0; i < sizeof(optional) / sizeof(optional[0]); i++)
        if (json_input_get(said, optional[i]) != NULL && json_input_text(said, optional[i]) == NULL)
            return shoal_fail(msg, SHOAL_ERR_INVALID, "%s: not a text", optional[i]);
    return SHOAL_OK;
}

static void make(struct http_request *request, const char *job)
{
    static const char *const needed[] = { "name", "edi_py", "modelPath", "weightPath", "runtime", NULL };
    struct submit *s = request->state;
    struct json_input *input = NULL;
    struct shoal_buf wishes = { 0 };
    struct shoal_msg msg = { "" };
    enum shoal_err err = read_body(shoal_buf_view(&s->data), needed, &input, &msg);
    const struct json_value *said = err == SHOAL_OK ? json_input_root(input) : NULL;

    if (err == SHOAL_OK)
        err = check_optional(said, &msg);
    if (err == SHOAL_OK && job == NULL)
        err = job_of_path(request, text_or_empty(said, "modelPath"), &job, &msg);
    if (err == SHOAL_OK)
        err = put_wishes(request, said, &wishes, &msg);
    json_input_free(input);
    if (err != SHOAL_OK) {
        shoal_buf_deinit(&wishes);
        http_respond_failure(request, err, &msg, 404);
        return;
    }
    shoal_buf_deinit(&s->data);
    s->data = wishes;
    s->from_job = job;
    submit_handle(request);
}

static void handle_new(struct http_request *request) { make(request, NULL); }

static void handle_publish(struct http_request *request) { make(request, request->params[0]); }

/* ---- the profile ---- */

static void put_any(void *arg, const char *key, const struct json_value *value) { copy_value(arg, key, value); }

static void put_profile_key(void *arg, const char *key, const struct json_value *value)
{
    struct json_writer *w = arg;

    if (strcmp(key, "policy") != 0) {
        copy_value(w, key, value);
        return;
    }
    json_object_begin(w, key);
    json_input_each(value, put_any, w);
    json_int(w, "schedule_intervel", int_or(value, "schedule_interval", 0));
    json_end(w);
}

/* M1. */
static void show_profile(struct http_request *request, const struct shoal_service_info *info)
{
    char uri[512];
    struct service_doc_facts facts = routes_model_facts(request, info, uri);
    struct json_input *input = NULL;
    struct shoal_buf json = { 0 }, shown = { 0 };
    struct json_writer w = json_writer_init(&shown);
    enum shoal_err err = parse_made(service_doc_profile(info->document, &facts, &json), &json, &input);
    const struct json_value *profile = err == SHOAL_OK ? json_input_root(input) : NULL;

    if (err == SHOAL_OK) {
        json_object_begin(&w, NULL);
        json_input_each(profile, put_profile_key, &w);
        json_text(&w, "update_time", text_or_empty(profile, "last_update_time"));
        copy_value(&w, "envs", json_input_get(json_input_get(profile, "kernel"), "envs"));
        json_end(&w);
    }
    json_input_free(input);
    routes_model_respond(request, 200, err == SHOAL_OK && w.failed ? SHOAL_ERR_FULL : err, &shown);
}

static void handle_profile(struct http_request *request)
{
    routes_model_look(request, request->params[0], show_profile);
}

static void handle_put_profile(struct http_request *request)
{
    if (check_name(request))
        routes_profile_put_dlim(request);
}

/* ---- instances, streaming ---- */

struct instance {
    struct http_request *request;
    struct shoal_buf buf;
    struct json_writer w;
    uint32_t open;
};

static void end_instance(struct instance *instance)
{
    for (unsigned i = 0; i < 3; i++) /* instances, instance, all */
        json_end(&instance->w);
    http_respond_json(instance->request, 200, &instance->w);
}

static void on_kernels(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view json)
{
    struct instance *instance = arg;
    struct http_request *request = instance->request;
    int64_t running, milli, bytes;

    if (err != SHOAL_OK) {
        shoal_buf_deinit(&instance->buf);
        http_respond_failure(request, err, msg, 404);
    } else {
        routes_model_rates(json, &milli, &bytes);
        json_int(&instance->w, "request_per_sec", (milli + 500) / 1000);
        json_int(&instance->w, "data_size_per_sec", bytes);
        running = routes_model_kernels(&instance->w, json, "finish_task");
        json_int(&instance->w, "pending_number", instance->open > running ? instance->open - running : 0);
        json_end(&instance->w);
        end_instance(instance);
    }
    http_request_release(request);
}

static void show_instance(struct http_request *request, const struct shoal_service_info *info)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct instance *instance = arena_alloc(&request->arena, sizeof(*instance));
    struct json_writer *w;
    char uid[40];

    if (instance == NULL) {
        http_respond_error(request, 503, "out of memory; try again later");
        return;
    }
    *instance = (struct instance){ .request = request, .open = info->open };
    w = &instance->w;
    *w = json_writer_init(&instance->buf);
    json_object_begin(w, NULL);
    json_text(w, "name", request->params[0]);
    json_text(w, "state", state_of(info));
    json_object_begin(w, "instance");
    json_text(w, "name", request->params[0]);
    json_text(w, "state", state_of(info));
    json_array_begin(w, "instances");
    if (!routes_model_enabled(info)) {
        end_instance(instance);
        return;
    }
    routes_model_uid(info, uid);
    json_object_begin(w, NULL);
    json_text(w, "isd_uid", uid);
    json_uint(w, "client_number", info->open);
    http_request_hold(request);
    backend->service_kernels(backend->ctx, &request->user, request->params[0], on_kernels, instance);
}

static void handle_instance(struct http_request *request)
{
    routes_model_look(request, request->params[0], show_instance);
}

/* A bare text; of a model that is not started it is empty. */
static void show_streaming(struct http_request *request, const struct shoal_service_info *info)
{
    struct shoal_view host = { 0 };
    struct shoal_buf json = { 0 };

    if (routes_model_enabled(info))
        (void)http1_header_find(&request->head, "host", &host);
    routes_model_respond(request, 200, shoal_json_quote(host, &json), &json);
}

static void handle_streaming(struct http_request *request)
{
    routes_model_look(request, request->params[0], show_streaming);
}

/* ---- inference ---- */

/* An item of the kernel's result; those of one sample are a chain. */
struct item {
    const char *sample;
    size_t next;      /* of the same sample; the count: none */
    bool first;       /* of its sample */
    const char *path; /* then */
};

struct answer {
    struct json_writer w;
    const struct json_value *asked;  /* NULL: too large to be read here */
    const struct json_value *result; /* of the kernel's output */
    struct item *items;
    struct item **sorted; /* by sample, in the order of the result among those of one; then the first of each alone */
    size_t count, samples;
};

/* {"type": "classification", "result": [{"sampleId", "label", "prob"}]}, an id may be a number. More than are grouped here are
 * left as they are. */
static bool read_samples(struct http_request *request, const struct json_value *output, struct answer *a)
{
    char number[32];

    a->result = json_input_get(output, "result");
    if (strcmp(text_or_empty(output, "type"), "classification") != 0 || !json_input_is_array(a->result))
        return false;
    a->count = json_input_count(a->result);
    if (a->count > SHOAL_EDI_RESULTS_MAX)
        return false;
    a->items = arena_alloc(&request->arena, (a->count + 1) * sizeof(*a->items));
    a->sorted = arena_alloc(&request->arena, (a->count + 1) * sizeof(struct item *));
    if (a->items == NULL || a->sorted == NULL)
        return false;
    for (size_t i = 0; i < a->count; i++) {
        const struct json_value *id = json_input_get(json_input_at(a->result, i), "sampleId");
        const char *text = id == NULL ? NULL : json_input_scalar(id, number, sizeof(number));

        a->items[i] = (struct item){ .next = a->count, .path = "" };
        a->items[i].sample = text == NULL ? NULL : arena_text(&request->arena, text);
        a->sorted[i] = &a->items[i];
        if (a->items[i].sample == NULL)
            return false;
    }
    return true;
}

static int compare_items(const void *left, const void *right)
{
    const struct item *l = *(struct item *const *)left, *r = *(struct item *const *)right;
    int order = strcmp(l->sample, r->sample);

    return order != 0 ? order : (l > r) - (l < r);
}

static int compare_sample(const void *sample, const void *right)
{
    return strcmp(sample, (*(struct item *const *)right)->sample);
}

static void group(struct answer *a)
{
    struct item *before = NULL;

    qsort(a->sorted, a->count, sizeof(struct item *), compare_items);
    for (size_t i = 0; i < a->count; i++) {
        struct item *item = a->sorted[i];

        item->first = before == NULL || strcmp(before->sample, item->sample) != 0;
        if (item->first)
            a->sorted[a->samples++] = item;
        else
            before->next = (size_t)(item - a->items);
        before = item;
    }
}

/* The source of the samples: the first value of their key in data_value, where that is an address. */
static void find_paths(struct answer *a)
{
    const struct json_value *values = json_input_get(a->asked, "data_value");
    size_t count = json_input_is_array(values) ? json_input_count(values) : 0;

    if (strstr(text_or_empty(a->asked, "data_type"), "uri") == NULL)
        return;
    while (count-- > 0) {
        const char *key = text_or_empty(json_input_at(values, count), "key");
        struct item **found = bsearch(key, a->sorted, a->samples, sizeof(struct item *), compare_sample);

        if (found != NULL)
            (*found)->path = text_or_empty(json_input_at(values, count), "value");
    }
}

static void put_label(struct json_writer *w, const struct json_value *item)
{
    static const char *const keys[] = { "label", "prob", "bbox" };

    json_object_begin(w, NULL);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (json_input_get(item, keys[i]) != NULL)
            copy_value(w, keys[i], json_input_get(item, keys[i]));
    json_end(w);
}

/* All labels of the sample whose first item this is. */
static void put_sample(struct answer *a, const struct item *item)
{
    const char *type = text_or_empty(a->asked, "data_type");

    json_object_begin(&a->w, NULL);
    json_text(&a->w, "sampleId", item->sample);
    json_text(&a->w, "inputPath", item->path);
    json_bool(&a->w, "isImage", type[0] == '\0' || strncmp(type, "image", 5) == 0);
    json_array_begin(&a->w, "results");
    for (size_t i = (size_t)(item - a->items); i < a->count; i = a->items[i].next)
        put_label(&a->w, json_input_at(a->result, i));
    json_end(&a->w);
    json_end(&a->w);
}

static void on_output(struct http_request *request, struct shoal_view output)
{
    struct json_input *asked = NULL, *said = NULL;
    struct shoal_msg msg;
    struct shoal_buf buf = { 0 };
    struct answer a = { .w = json_writer_init(&buf) };
    bool solved;

    if (json_input_parse(asking_body(request), &asked, &msg) == SHOAL_OK)
        a.asked = json_input_root(asked);
    solved = json_input_parse(output, &said, &msg) == SHOAL_OK && read_samples(request, json_input_root(said), &a);
    json_object_begin(&a.w, NULL);
    json_text(&a.w, "modelName", request->params[0]);
    json_bool(&a.w, "reslove", solved);
    json_array_begin(&a.w, "results");
    if (solved) {
        json_object_begin(&a.w, NULL);
        json_text(&a.w, "type", "classification");
        json_array_begin(&a.w, "classificationResults");
        group(&a);
        find_paths(&a);
        for (size_t i = 0; i < a.count; i++)
            if (a.items[i].first)
                put_sample(&a, &a.items[i]);
        json_end(&a.w);
        json_end(&a.w);
    }
    json_end(&a.w);
    json_text_view(&a.w, "other", solved ? (struct shoal_view){ 0 } : output);
    json_end(&a.w);
    json_input_free(asked);
    json_input_free(said);
    http_respond_json(request, 200, &a.w);
}

/* A list of {"key": text, "value": text}. */
static bool are_pairs(const struct json_value *pairs)
{
    if (!json_input_is_array(pairs))
        return false;
    for (size_t i = 0; i < json_input_count(pairs); i++)
        if (json_input_text(json_input_at(pairs, i), "key") == NULL ||
            json_input_text(json_input_at(pairs, i), "value") == NULL)
            return false;
    return true;
}

static enum shoal_err check_asked(struct shoal_view body, struct shoal_msg *msg)
{
    static const char *const needed[] = { "action_type", "data_type", NULL };
    struct json_input *input = NULL;
    const struct json_value *said, *attributes;
    enum shoal_err err = read_body(body, needed, &input, msg);

    if (err == SHOAL_OK) {
        said = json_input_root(input);
        attributes = json_input_get(said, "attributes");
        if (!are_pairs(json_input_get(said, "data_value")))
            err = shoal_fail(msg, SHOAL_ERR_INVALID, "data_value: it must be a list of {\"key\", \"value\"}, texts");
        else if (attributes != NULL && !are_pairs(attributes))
            err = shoal_fail(msg, SHOAL_ERR_INVALID, "attributes: it must be a list of {\"key\", \"value\"}, texts");
    }
    json_input_free(input);
    return err;
}

/* Images may be larger than any JSON that is read here: such a body goes to the kernel unread. */
static void handle_inference(struct http_request *request)
{
    struct shoal_msg msg = { "" };
    enum shoal_err err = SHOAL_OK;

    if (asking_body(request).len <= SHOAL_JSON_BYTES_MAX)
        err = check_asked(asking_body(request), &msg);
    if (err != SHOAL_OK) {
        http_respond_failure(request, err, &msg, 404);
        return;
    }
    asking_answer_by(request, on_output);
    asking_run(request, ASKER_EDI, request->params[0], "");
}

#define BUFFER .mode = HTTP_BODY_BUFFER
#define ASKED .mode = HTTP_BODY_STREAM, .begin = asking_begin, .data = asking_data
#define JOB .mode = HTTP_BODY_STREAM, .begin = submit_begin, .data = submit_data

static const struct http_route routes[] = {
    { .method = HTTP1_GET, .pattern = EDI, .handle = handle_models },
    { .method = HTTP1_POST, .pattern = EDI "/new", .handle = handle_new, JOB },
    { .method = HTTP1_GET, .pattern = EDI "/{}", .handle = handle_model },
    { .method = HTTP1_POST, .pattern = EDI "/{}", .handle = handle_publish, JOB },
    { .method = HTTP1_PUT, .pattern = EDI "/{}", .handle = handle_update, BUFFER },
    { .method = HTTP1_DELETE, .pattern = EDI "/{}", .handle = routes_model_delete },
    { .method = HTTP1_GET, .pattern = EDI "/{}/appprofile", .handle = handle_profile },
    { .method = HTTP1_PUT, .pattern = EDI "/{}/appprofile", .handle = handle_put_profile, BUFFER },
    { .method = HTTP1_POST, .pattern = EDI "/{}/inference", .handle = handle_inference, ASKED },
    { .method = HTTP1_GET, .pattern = EDI "/{}/instance", .handle = handle_instance },
    { .method = HTTP1_PUT, .pattern = EDI "/{}/operation/start", .handle = routes_model_start, BUFFER },
    { .method = HTTP1_PUT, .pattern = EDI "/{}/operation/stop", .handle = routes_model_stop, BUFFER },
    { .method = HTTP1_GET, .pattern = EDI "/{}/readme", .handle = routes_model_readme },
    { .method = HTTP1_GET, .pattern = EDI "/{}/streaming", .handle = handle_streaming },
};

const struct http_route *http_routes_edimodels(size_t *count)
{
    *count = sizeof(routes) / sizeof(routes[0]);
    return routes;
}
