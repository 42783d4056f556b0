/* Runtimes of WMLA's inference API: what kernels are started with. Those that every node has, and those that an administrator
 * makes, which the mesh group keeps (decision 0043).
 *
 *     any question --> what the mesh group keeps --> list, one --> answer
 *                                                    new, update --> written down in the mesh group --> answer
 *                                                    delete --> is there a model that names it? --> no: deleted
 *
 * N1. A runtime that was made, changed or deleted is so on every node that is asked after the answer.
 * N2. Keys that nobody here knows are kept and given back; the two times are the server's own.
 * N3. One that a model names is not deleted; a model whose runtime is not there is not started. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "api/http/json_input.h"
#include "routes.h"

#include "shoal/banned.h"

#define RUNTIMES "/dlim/v1/deployment/runtime"

struct builtin {
    const char *name, *launcher, *conda, *env, *text;
};
static const struct builtin builtins[] = {
    { "cpp", "cpp_launcher.sh", "", "", "kernels in C and C++: libraries with shoal/kernel.h" },
    { "dlipy3", "python_launcher.sh", "/opt/anaconda3", "dlipy3", "Python with deep learning frameworks" },
    { "dlipy3-cpu", "python_launcher.sh", "/opt/anaconda3", "dlipy3-cpu",
      "Python with deep learning frameworks, no GPU" },
    { "python", "python_launcher.sh", "", "", "the Python of the node" },
};
#define BUILTINS (sizeof(builtins) / sizeof(builtins[0]))

static const char *const texts[] = { "launcher", "conda_home",   "conda_env_name", "docker_img",
                                     "pre_exec", "machine_type", "description" };
#define TEXTS (sizeof(texts) / sizeof(texts[0]))

enum asked { LIST, SHOW, CREATE, UPDATE, REMOVE };

struct runtimes {
    struct http_request *request;
    enum asked asked;
    const char *name;               /* of the runtime; "": of LIST */
    struct json_input *body, *kept; /* kept: {"runtimes": [...]} of the mesh group */
    struct shoal_buf json;
    /* Of a deletion: services that may use it. */
    struct json_input *services;
    size_t at;
};

static void runtimes_free(void *state)
{
    struct runtimes *r = state;

    json_input_free(r->body);
    json_input_free(r->kept);
    json_input_free(r->services);
    shoal_buf_deinit(&r->json);
    free(r);
}

static struct runtimes *begin(struct http_request *request, enum asked asked)
{
    struct runtimes *r = calloc(1, sizeof(*r));

    if (r == NULL) {
        http_respond_error(request, 503, "out of memory; try again later");
        return NULL;
    }
    r->request = request;
    r->asked = asked;
    r->name = asked == LIST || asked == CREATE ? "" : request->params[0];
    request->state = r;
    request->state_free = runtimes_free;
    return r;
}

static const struct builtin *builtin_of(const char *name)
{
    for (size_t i = 0; i < BUILTINS; i++)
        if (strcmp(builtins[i].name, name) == 0)
            return &builtins[i];
    return NULL;
}

/* ---- as clients see them ---- */

static void put_builtin(struct json_writer *w, const struct builtin *one)
{
    char launcher[200];

    (void)snprintf(launcher, sizeof(launcher), "${REDHARE_TOP}/${REDHARE_VERSION}/script/%s", one->launcher);
    json_object_begin(w, NULL);
    json_text(w, "schema_version", "1");
    json_text(w, "type", one->name);
    json_text(w, "launcher", launcher);
    json_text(w, "conda_home", one->conda);
    json_text(w, "conda_env_name", one->env);
    json_text(w, "docker_img", "");
    json_text(w, "pre_exec", "");
    json_text(w, "machine_type", "x86_64");
    json_text(w, "description", one->text);
    json_uint(w, "epoch_created", 0);
    json_uint(w, "epoch_updated", 0);
    json_array_begin(w, "envs");
    json_end(w);
    json_array_begin(w, "attributes");
    json_end(w);
    json_end(w);
}

static void put_value(struct json_writer *w, const char *key, const struct json_value *value)
{
    char *text = json_input_dump(value);

    if (text == NULL)
        w->failed = true;
    else
        json_raw(w, key, shoal_view_text(text));
    free(text);
}

static const char *type_of(const struct json_value *runtime)
{
    const char *type = json_input_text(runtime, "type");

    return type == NULL ? "" : type;
}

static const struct json_value *list_of(const struct runtimes *r)
{
    return json_input_get(json_input_root(r->kept), "runtimes");
}

static const struct json_value *kept_of(const struct runtimes *r, const char *name)
{
    const struct json_value *list = list_of(r);

    for (size_t i = 0; list != NULL && i < json_input_count(list); i++)
        if (strcmp(type_of(json_input_at(list, i)), name) == 0)
            return json_input_at(list, i);
    return NULL;
}

/* Both lists are in the order of names; what the mesh keeps has no built-in's name. */
static void answer_all(struct runtimes *r)
{
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);
    const struct json_value *list = list_of(r);
    size_t count = list == NULL ? 0 : json_input_count(list), at = 0;

    json_object_begin(&w, NULL);
    json_array_begin(&w, "runtimes");
    for (size_t i = 0; i <= BUILTINS; i++) {
        for (; at < count && (i == BUILTINS || strcmp(type_of(json_input_at(list, at)), builtins[i].name) < 0); at++)
            put_value(&w, NULL, json_input_at(list, at));
        if (i < BUILTINS)
            put_builtin(&w, &builtins[i]);
    }
    json_end(&w);
    json_text(&w, "schema_version", "1");
    json_end(&w);
    http_respond_json(r->request, 200, &w);
}

static void answer_one(struct runtimes *r)
{
    const struct builtin *builtin = builtin_of(r->name);
    const struct json_value *kept = kept_of(r, r->name);
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    if (kept != NULL)
        put_value(&w, NULL, kept);
    else
        put_builtin(&w, builtin);
    http_respond_json(r->request, 200, &w);
}

/* ---- what is written of one ---- */

static bool pairs_are_good(const struct json_value *root, const char *list, const char *key)
{
    const struct json_value *pairs = json_input_get(root, list);

    if (pairs == NULL)
        return true;
    for (size_t i = 0; json_input_is_array(pairs) && i < json_input_count(pairs); i++)
        if (json_input_text(json_input_at(pairs, i), key) == NULL ||
            json_input_text(json_input_at(pairs, i), "value") == NULL)
            return false;
    return json_input_is_array(pairs);
}

static bool name_is_good(const char *name)
{
    size_t len = strlen(name);

    return len > 0 && len < SHOAL_RUNTIME_NAME_BYTES &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == len;
}

/* NULL: it is fine; else what is wrong. */
static const char *fault_of(const struct json_value *body, bool create)
{
    if (!json_input_is_object(body))
        return "the body must be a JSON object";
    if (create && (json_input_text(body, "type") == NULL || !name_is_good(json_input_text(body, "type"))))
        return "type: a name of A-Z a-z 0-9 . _ -, at most 39 characters";
    if (create && json_input_text(body, "launcher") == NULL)
        return "launcher: it is missing, or no text";
    for (size_t i = 0; i < TEXTS; i++)
        if (json_input_get(body, texts[i]) != NULL && json_input_text(body, texts[i]) == NULL)
            return texts[i];
    if (!pairs_are_good(body, "envs", "name"))
        return "envs: a list of {\"name\", \"value\"}, both texts";
    if (!pairs_are_good(body, "attributes", "key"))
        return "attributes: a list of {\"key\", \"value\"}, both texts";
    return NULL;
}

struct others {
    struct json_writer *w;
    const struct json_value *over; /* what has the key there is not put again */
};

static void put_other(void *arg, const char *key, const struct json_value *value)
{
    static const char *const own[] = {
        "schema_version", "type", "epoch_created", "epoch_updated", "envs", "attributes"
    };
    const struct others *others = arg;

    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (strcmp(own[i], key) == 0)
            return;
    for (size_t i = 0; i < TEXTS; i++)
        if (strcmp(texts[i], key) == 0)
            return;
    if (json_input_get(others->over, key) == NULL)
        put_value(others->w, key, value);
}

/* The body over what is kept, with defaults for what neither says. */
static bool make_json(struct runtimes *r, const char *name, const struct json_value *kept)
{
    const struct json_value *body = json_input_root(r->body);
    struct json_writer w = json_writer_init(&r->json);
    struct others of_body = { &w, NULL }, of_kept = { &w, body };
    int64_t created = (int64_t)time(NULL);

    (void)json_input_int(kept, "epoch_created", &created);
    json_object_begin(&w, NULL);
    json_text(&w, "schema_version", "1");
    json_text(&w, "type", name);
    for (size_t i = 0; i < TEXTS; i++) {
        const char *said = json_input_text(body, texts[i]);
        const char *was = json_input_text(kept, texts[i]);
        const char *otherwise = strcmp(texts[i], "machine_type") == 0 ? "x86_64" : "";

        if (said == NULL)
            said = was == NULL ? otherwise : was;
        json_text(&w, texts[i], said);
    }
    json_int(&w, "epoch_created", created);
    json_int(&w, "epoch_updated", (int64_t)time(NULL));
    for (unsigned i = 0; i < 2; i++) {
        const char *key = i == 0 ? "envs" : "attributes";
        const struct json_value *list = json_input_get(body, key);

        list = list == NULL ? json_input_get(kept, key) : list;
        if (list != NULL) {
            put_value(&w, key, list);
        } else {
            json_array_begin(&w, key);
            json_end(&w);
        }
    }
    json_input_each(body, put_other, &of_body);
    json_input_each(kept, put_other, &of_kept);
    json_end(&w);
    return !w.failed;
}

/* ---- changes ---- */

static void on_changed(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    struct runtimes *r = arg;
    struct http_request *request = r->request;

    if (err == SHOAL_OK)
        http_respond(request, 200, "application/json", shoal_view_text("{\"status\":\"OK\"}"));
    else
        http_respond_failure(request, err, msg, 400);
    http_request_release(request);
}

/* Each of these either answers or asks the backend, which answers later with a hold of its own. */
static void set(struct runtimes *r, struct shoal_view json)
{
    const struct shoal_backend *backend = &r->request->http->backend;

    http_request_hold(r->request);
    backend->runtime_set(backend->ctx, &r->request->user, r->name, json, on_changed, r);
}

/* Names are compared without case where they must differ, as the mesh group compares them. */
static bool is_taken(const struct runtimes *r, const char *name)
{
    const struct json_value *list = list_of(r);
    bool taken = false;

    for (size_t i = 0; i < BUILTINS; i++)
        taken = taken || strcasecmp(builtins[i].name, name) == 0;
    for (size_t i = 0; list != NULL && i < json_input_count(list); i++)
        taken = taken || strcasecmp(type_of(json_input_at(list, i)), name) == 0;
    return taken;
}

static void write_down(struct runtimes *r)
{
    if (!make_json(r, r->name, kept_of(r, r->name)))
        http_respond_error(r->request, 503, "out of memory; try again later");
    else if (r->json.len >= SHOAL_RUNTIME_JSON_BYTES)
        http_respond_error(
            r->request, 400,
            "the runtime is %zu bytes of JSON, more than %u: leave out attributes, or shorten pre_exec by "
            "a script",
            r->json.len, SHOAL_RUNTIME_JSON_BYTES - 1);
    else
        set(r, shoal_buf_view(&r->json));
}

static void create(struct runtimes *r)
{
    r->name = type_of(json_input_root(r->body));
    if (is_taken(r, r->name))
        http_respond_error(r->request, 409, "Runtime <%s> already exists.", r->name);
    else
        write_down(r);
}

/* ---- deletion: no model names it ---- */

static bool names_it(const struct shoal_service_info *info, const char *runtime)
{
    char name[SHOAL_RUNTIME_NAME_BYTES];

    service_doc_runtime(info->document, name, sizeof(name));
    return strcmp(name, runtime) == 0;
}

static void look_next(struct runtimes *r);

static void on_service(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                       const struct shoal_service_info *info)
{
    struct runtimes *r = arg;
    struct http_request *request = r->request;

    if (err != SHOAL_OK && err != SHOAL_ERR_NOT_FOUND) /* it may have gone meanwhile */
        http_respond_failure(request, err, msg, 404);
    else if (err == SHOAL_OK && names_it(info, r->name))
        http_respond_error(request, 409, "Runtime <%s> is used by model <%s>.", r->name, info->name);
    else
        look_next(r);
    http_request_release(request);
}

static void look_next(struct runtimes *r)
{
    const struct shoal_backend *backend = &r->request->http->backend;
    const struct json_value *services = json_input_get(json_input_root(r->services), "services");
    const char *name;

    if (services == NULL || r->at >= json_input_count(services)) {
        set(r, (struct shoal_view){ 0 });
        return;
    }
    name = json_input_text(json_input_at(services, r->at++), "name");
    http_request_hold(r->request);
    backend->service_look(backend->ctx, &r->request->user, name == NULL ? "" : name, on_service, r);
}

static void on_services(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view json)
{
    struct runtimes *r = arg;
    struct http_request *request = r->request;
    struct shoal_msg why = *msg;

    if (err == SHOAL_OK)
        err = json_input_parse(json, &r->services, &why);
    if (err == SHOAL_OK)
        look_next(r);
    else
        http_respond_failure(request, err, &why, 404);
    http_request_release(request);
}

static void delete_unused(struct runtimes *r)
{
    const struct shoal_backend *backend = &r->request->http->backend;

    http_request_hold(r->request);
    backend->services(backend->ctx, &r->request->user, NULL, on_services, r);
}

/* ---- what the mesh group keeps, then what was asked ---- */

static void of_one(struct runtimes *r)
{
    struct http_request *request = r->request;
    bool built_in = builtin_of(r->name) != NULL;

    if (!built_in && kept_of(r, r->name) == NULL)
        http_respond_error(request, 400, "Runtime <%.200s> does not exists.", r->name);
    else if (r->asked == SHOW)
        answer_one(r);
    else if (built_in)
        http_respond_error(request, 403, "Runtime <%s> is built in: it cannot be changed or deleted.", r->name);
    else if (r->asked == UPDATE)
        write_down(r);
    else
        delete_unused(r);
}

static void on_kept(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view json)
{
    struct runtimes *r = arg;
    struct http_request *request = r->request;
    struct shoal_msg why = *msg;

    if (err == SHOAL_OK)
        err = json_input_parse(json, &r->kept, &why);
    if (err != SHOAL_OK)
        http_respond_failure(request, err, &why, 404);
    else if (r->asked == LIST)
        answer_all(r);
    else if (r->asked == CREATE)
        create(r);
    else
        of_one(r);
    http_request_release(request);
}

static void ask(struct http_request *request, enum asked asked)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct runtimes *r = begin(request, asked);
    struct shoal_msg msg = { "" };
    const char *fault = NULL;

    if (r == NULL)
        return;
    if ((asked == CREATE || asked == UPDATE) &&
        json_input_parse(shoal_buf_view(&request->body), &r->body, &msg) != SHOAL_OK)
        fault = msg.text;
    else if (asked == CREATE || asked == UPDATE)
        fault = fault_of(json_input_root(r->body), asked == CREATE);
    if (fault != NULL) {
        http_respond_error(request, 400, "the runtime is invalid: %s", fault);
        return;
    }
    http_request_hold(request);
    backend->runtimes(backend->ctx, &request->user, on_kept, r);
}

static void handle_list(struct http_request *request) { ask(request, LIST); }

static void handle_show(struct http_request *request) { ask(request, SHOW); }

static void handle_create(struct http_request *request) { ask(request, CREATE); }

static void handle_update(struct http_request *request) { ask(request, UPDATE); }

static void handle_delete(struct http_request *request) { ask(request, REMOVE); }

/* ---- a model is started ---- */

struct need {
    struct http_request *request;
    void (*then)(struct http_request *request);
    char name[SHOAL_RUNTIME_NAME_BYTES];
};

static void on_needed(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view json)
{
    struct need *need = arg;
    struct http_request *request = need->request;
    struct runtimes r = { .request = request };
    struct shoal_msg why = *msg;

    if (err == SHOAL_OK)
        err = json_input_parse(json, &r.kept, &why);
    if (err != SHOAL_OK)
        http_respond_failure(request, err, &why, 404);
    else if (kept_of(&r, need->name) == NULL)
        http_respond_error(request, 400, "Runtime <%s> does not exists.", need->name);
    else
        need->then(request);
    json_input_free(r.kept);
    http_request_release(request);
}

void routes_runtime_needed(struct http_request *request, const struct shoal_service_info *info,
                           void (*then)(struct http_request *request))
{
    const struct shoal_backend *backend = &request->http->backend;
    struct need *need = arena_alloc(&request->arena, sizeof(*need));

    if (need == NULL) {
        http_respond_error(request, 503, "out of memory; try again later");
        return;
    }
    service_doc_runtime(info->document, need->name, sizeof(need->name));
    if (service_doc_runtime_is_ours(need->name)) {
        then(request);
        return;
    }
    need->request = request;
    need->then = then;
    http_request_hold(request);
    backend->runtimes(backend->ctx, &request->user, on_needed, need);
}

static const struct http_route routes[] = {
    { .method = HTTP1_GET, .pattern = RUNTIMES, .handle = handle_list },
    { .method = HTTP1_POST, .pattern = RUNTIMES, .handle = handle_create, .mode = HTTP_BODY_BUFFER },
    { .method = HTTP1_GET, .pattern = RUNTIMES "/{}", .handle = handle_show },
    { .method = HTTP1_PUT, .pattern = RUNTIMES "/{}", .handle = handle_update, .mode = HTTP_BODY_BUFFER },
    { .method = HTTP1_DELETE, .pattern = RUNTIMES "/{}", .handle = handle_delete },
};

const struct http_route *http_routes_runtimes(size_t *count)
{
    *count = sizeof(routes) / sizeof(routes[0]);
    return routes;
}
