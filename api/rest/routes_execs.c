/* The REST API of WMLA's DLI v1 that its clients use: logon, /conf, /status and execs (execs-api 2 to 5). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "shoal/crypto.h"

#include "api/http/json_input.h"
#include "job_list.h"

#include "shoal/banned.h"

#define JSON "application/json"

void routes_time_text(uint64_t ms, char text[32])
{
    time_t seconds = (time_t)(ms / 1000);
    struct tm tm;

    if (gmtime_r(&seconds, &tm) == NULL || strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        (void)snprintf(text, 32, "1970-01-01T00:00:00Z");
}

/* Notebooks loop while the state is one of three (execs-api 5.2): show them no other active one. */
const char *routes_exec_state(const struct shoal_http *http, const char *state)
{
    if (http->options.exact_states)
        return state;
    if (strcmp(state, "NEW") == 0 || strcmp(state, "PENDING_JOB_SCHEDULER") == 0 || strcmp(state, "LAUNCHING") == 0)
        return "PENDING_CRD_SCHEDULER";
    if (strcmp(state, "RECOVERING") == 0 || strcmp(state, "UNKNOWN") == 0)
        return "RUNNING";
    return state;
}

/* Flat, no null (execs-api 4.9). */
void routes_exec_json(struct json_writer *w, struct http_request *request, const struct shoal_job_info *job)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct shoal_mesh_status status = { .version = "" };
    char id[SHOAL_JOB_ID_TEXT_BYTES];
    char created[32];

    backend->status(backend->ctx, &status);
    shoal_job_id_text(job->id, id);
    routes_time_text(job->create_ms, created);
    json_object_begin(w, NULL);
    json_text(w, "id", id);
    json_text(w, "args", job->args);
    json_text(w, "submissionId", id);
    json_text(w, "creator", job->creator);
    json_text(w, "state", routes_exec_state(request->http, job->state));
    json_text(w, "stateExact", job->state);
    json_text(w, "stateDetail", job->detail);
    json_text(w, "appId", id);
    json_text(w, "schedulerUrl", status.api_url);
    json_text(w, "modelFileOwnerName", job->creator);
    json_text(w, "workDir", job->work_dir);
    json_text(w, "appName", job->app_name);
    json_text(w, "createTime", created);
    json_bool(w, "elastic", job->elastic);
    json_text(w, "nameSpace", status.mesh_name);
    json_uint(w, "numWorker", job->workers_max);
    json_text(w, "framework", job->framework);
    json_text(w, "sigName", "");
    json_text(w, "sigId", status.mesh_name);
    if (job->data_json != NULL && strncmp(job->data_json, "{\"dataSource\":[", 15) == 0) {
        struct json_input *input;
        struct shoal_msg msg;

        if (json_input_parse(shoal_view_text(job->data_json), &input, &msg) == SHOAL_OK) {
            char *text = json_input_dump(json_input_get(json_input_root(input), "dataSource"));

            if (text != NULL)
                json_raw(w, "dataSource", shoal_view_text(text));
            free(text);
            json_input_free(input);
        }
    }
    json_end(w);
}

/* ---- logon ---- */

static void answer_logon(struct http_request *request)
{
    struct shoal_http *http = request->http;
    struct shoal_token_keys keys = { .count = 0 };
    struct token_claims claims = token_claims_of(&request->user, (uint64_t)time(NULL));
    char token[TOKEN_TEXT_BYTES + 1];
    char uid[16];
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);
    struct shoal_msg msg;
    enum shoal_err err;

    http->backend.token_keys(http->backend.ctx, &keys);
    if (keys.count == 0) {
        http_respond_error(request, 503, "this node has not yet got the mesh's users; try again in some seconds");
        return;
    }
    claims.exp_s = claims.issued_s + http->options.token_life_s;
    err = token_make(&claims, keys.keys[0], token, &msg);
    shoal_wipe(&keys, sizeof(keys));
    if (err != SHOAL_OK) {
        http_respond_failure(request, err, &msg, 400);
        return;
    }
    (void)snprintf(uid, sizeof(uid), "%" PRIu32, claims.uid);
    json_object_begin(&w, NULL);
    json_text(&w, "username", claims.user);
    json_text(&w, "role", claims.admin ? "Admin" : "User");
    json_array_begin(&w, "permissions");
    json_text(&w, NULL, "deep-learning");
    json_end(&w);
    json_text(&w, "sub", claims.user);
    json_text(&w, "iss", "SHOAL");
    json_text(&w, "aud", "WMLA");
    json_text(&w, "uid", uid);
    json_text(&w, "authenticator", "default");
    json_text(&w, "accessToken", token);
    json_uint(&w, "expires", claims.exp_s);
    json_text(&w, "_messageCode_", "success");
    json_text(&w, "message", "success");
    json_end(&w);
    http_respond_json(request, 200, &w);
}

static void on_body_logon(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_user *user)
{
    struct http_request *request = arg;

    auth_logon_end(request);
    if (err == SHOAL_OK) {
        request->user = *user;
        answer_logon(request);
    } else if (err == SHOAL_ERR_DENIED || err == SHOAL_ERR_NOT_FOUND) {
        request->http->stats.refused_auth++;
        http_respond_error(request, 401, "%s", msg->text[0] == '\0' ? "wrong user or password" : msg->text);
    } else {
        http_respond_failure(request, err, msg, 401);
    }
    http_request_release(request);
}

/* {"username","password"} in the body, when there is no Basic header. */
static bool logon_by_body(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct json_input *input;
    struct shoal_msg msg;
    const char *user;
    const char *password;

    if (request->body.len == 0 || json_input_parse(shoal_buf_view(&request->body), &input, &msg) != SHOAL_OK)
        return false;
    user = json_input_text(json_input_root(input), "username");
    password = json_input_text(json_input_root(input), "password");
    user = user == NULL ? NULL : arena_text(&request->arena, user);
    password = password == NULL ? NULL : arena_text(&request->arena, password);
    json_input_free(input);
    if (user == NULL || password == NULL)
        return false;
    if (!auth_logon_begin(request))
        return true;
    http_request_hold(request);
    backend->logon(backend->ctx, user, password, on_body_logon, request);
    return true;
}

static void handle_logon(struct http_request *request)
{
    struct shoal_view value;

    if (http1_header_find(&request->head, "authorization", &value) || !logon_by_body(request))
        auth_basic(request, answer_logon);
}

static void on_logoff(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    struct http_request *request = arg;

    if (err == SHOAL_OK)
        http_respond(request, 200, JSON, shoal_view_text("{\"message\":\"logged off\"}"));
    else
        http_respond_failure(request, err, msg, 400);
    http_request_release(request);
}

static void handle_logoff(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;

    if (!request->has_token) {
        http_respond_error(request, 401, "logoff wants the token that is to end, as \"Authorization: Bearer\"");
        return;
    }
    http_request_hold(request);
    backend->logoff(backend->ctx, &request->user, &request->token, on_logoff, request);
}

/* ---- conf, status, frameworks ---- */

static void handle_conf(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct shoal_mesh_status status = { .version = "" };
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    backend->status(backend->ctx, &status);
    json_object_begin(&w, NULL);
    json_text(&w, "MSD_ENABLED", "true");
    json_text(&w, "CwS_REST_URL", status.api_url);
    json_text(&w, "SHOAL_VERSION", status.version);
    json_end(&w);
    http_respond_json(request, 200, &w);
}

/* NULL: this node and its mesh are well. Else `detail` says what is not. */
static const char *ill(const struct shoal_mesh_status *status, char *detail, size_t cap)
{
    bool alone = status->members_alive <= 1 && status->members_silent > 0;

    if (alone)
        (void)snprintf(detail, cap,
                       "this node hears none of %u other host%s%s: is its network up, do their agents run? "
                       "`shoal node list` names them; who is gone for good: shoal node remove NODE",
                       status->members_silent, status->members_silent == 1 ? "" : "s",
                       status->mesh_writable ? "" : ", and the mesh group has no majority without them");
    else
        (void)snprintf(detail, cap,
                       "this node, which sees %u of %u hosts, knows no leader of the mesh group: users, services and hosts "
                       "cannot be changed until a majority of its guardians is back; if they are gone for good: shoal "
                       "mesh recover",
                       status->members_alive, status->members_alive + status->members_silent);
    if (alone)
        return "cut off";
    return status->mesh_writable ? NULL : "no majority";
}

static void handle_status(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct shoal_mesh_status status = { .version = "" };
    char node[SHOAL_NODE_ID_TEXT_BYTES], detail[400];
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);
    const char *what;

    backend->status(backend->ctx, &status);
    what = ill(&status, detail, sizeof(detail));
    shoal_hex_text(status.node_id.bytes, sizeof(status.node_id.bytes), node);
    json_object_begin(&w, NULL);
    json_text(&w, "status", what == NULL ? "ok" : what);
    if (what != NULL)
        json_text(&w, "detail", detail);
    json_text(&w, "version", status.version);
    json_text(&w, "node", status.node_name);
    json_text(&w, "nodeId", node);
    json_text(&w, "mesh", status.mesh_name);
    json_uint(&w, "members", status.members_alive);
    json_uint(&w, "membersKnown", status.members_known);
    json_bool(&w, "leader", status.mesh_writable);
    json_end(&w);
    http_respond_json(request, 200, &w);
}

static void handle_frameworks(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;
    size_t count = 0;
    const struct shoal_framework *frameworks = backend->frameworks(backend->ctx, &count);
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    json_array_begin(&w, NULL);
    for (size_t i = 0; i < count; i++) {
        const struct shoal_framework *f = &frameworks[i];

        json_object_begin(&w, NULL);
        json_text(&w, "name", f->name);
        json_text(&w, "description", "");
        json_text(&w, "frameworkVersion", f->version);
        json_array_begin(&w, "desc");
        for (size_t line = 0; f->desc[line] != NULL; line++)
            json_text(&w, NULL, f->desc[line]);
        json_end(&w);
        json_text(&w, "deployMode", "cluster");
        json_text(&w, "execMode", f->exec_mode);
        json_bool(&w, "hasTask0", f->elastic);
        json_bool(&w, "supported", f->supported);
        json_text(&w, "appName", f->app_name);
        json_uint(&w, "numWorkers", f->workers_default);
        json_uint(&w, "maxWorkers", f->workers_max);
        json_uint(&w, "maxGPUPerWorker", f->gpus_per_worker_max);
        json_uint(&w, "numPs", 0);
        json_text(&w, "workerMemory", f->worker_memory);
        json_text(&w, "backend", f->backend);
        json_end(&w);
    }
    json_end(&w);
    http_respond_json(request, 200, &w);
}

/* ---- lists ---- */

static bool read_sort(struct shoal_job_filter *filter, const char *text)
{
    static const struct {
        const char *name;
        enum shoal_job_sort sort;
    } fields[] = { { "id", SHOAL_SORT_CREATED }, /* its number is its time */
                   { "state", SHOAL_SORT_STATE },  { "createTime", SHOAL_SORT_CREATED },
                   { "appName", SHOAL_SORT_NAME }, { "framework", SHOAL_SORT_FRAMEWORK },
                   { "creator", SHOAL_SORT_USER }, { "numWorker", SHOAL_SORT_WORKERS } };
    size_t len = strcspn(text, ":");

    if (text[len] == ':' && strcasecmp(text + len + 1, "desc") == 0)
        filter->descending = true;
    else if (text[len] == ':' && strcasecmp(text + len + 1, "asc") != 0)
        return false;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (strlen(fields[i].name) == len && memcmp(fields[i].name, text, len) == 0) {
            filter->sort = fields[i].sort;
            return true;
        }
    }
    return false;
}

static void handle_list(struct http_request *request)
{
    const char *text = http_query(request, "limit");
    const char *sort = http_query(request, "sort_by");
    struct shoal_job_filter filter;
    uint64_t limit = UINT64_MAX;
    char *end = NULL;

    job_list_own(request, &filter);
    job_list_states(request, &filter, true);
    if (text != NULL) {
        limit = strtoull(text, &end, 10);
        if (text[0] < '0' || text[0] > '9' || *end != '\0' || limit == 0) {
            http_respond_error(request, 400, "limit: \"%.40s\" is not an integer above 0", text);
            return;
        }
    }
    if (sort != NULL && !read_sort(&filter, sort)) {
        http_respond_error(
            request, 400,
            "sort_by: \"%.60s\" is not <field>:<asc|desc> with a field of id, state, createTime, appName, "
            "framework, creator, numWorker",
            sort);
        return;
    }
    job_list_whole(request, &filter, &(struct job_list_part){ .most = limit, .row = routes_exec_json });
}

/* ---- one exec ---- */

static void on_get(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_job_info *job)
{
    struct http_request *request = arg;
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    if (err != SHOAL_OK) {
        http_respond_failure(request, err, msg, 400);
    } else {
        routes_exec_json(&w, request, job);
        http_respond_json(request, 200, &w);
    }
    http_request_release(request);
}

static void handle_get(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;

    http_request_hold(request);
    backend->get(backend->ctx, &request->user, request->params[0], true, on_get, request);
}

static void on_done(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    struct http_request *request = arg;

    if (err == SHOAL_OK)
        http_respond_empty(request, 204);
    else
        http_respond_failure(request, err, msg, 400);
    http_request_release(request);
}

void routes_exec_stop(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;

    http_request_hold(request);
    backend->stop(backend->ctx, &request->user, request->params[0], on_done, request);
}

static void handle_delete(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;

    http_request_hold(request);
    backend->del(backend->ctx, &request->user, request->params[0], on_done, request);
}

static void handle_delete_all(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;

    http_request_hold(request);
    backend->delete_all(backend->ctx, &request->user, on_done, request);
}

/* ---- logs ---- */

static bool wants_text(struct http_request *request)
{
    struct shoal_view accept;

    return http1_header_find(&request->head, "accept", &accept) &&
           memmem(accept.bytes, accept.len, "text/plain", 10) != NULL;
}

static void handle_log(struct http_request *request)
{
    const char *type = http_query(request, "logType");
    enum shoal_log_kind kind = SHOAL_LOG_OUT;

    if (type != NULL && strcmp(type, "errlog") == 0)
        kind = SHOAL_LOG_ERR;
    else if (type != NULL && strcmp(type, "outerrlog") == 0)
        kind = SHOAL_LOG_OUTERR;
    else if (type != NULL && strcmp(type, "outlog") != 0) {
        http_respond_error(request, 400, "logType: \"%.40s\" is not outlog, errlog or outerrlog", type);
        return;
    }
    routes_log_stream(request, kind, 0, 0, !wants_text(request), 400);
}

/* Hyper-parameter search is a later stage; its clients are told so, and not that the address is wrong. */
static void handle_search(struct http_request *request)
{
    http_respond_error(request, 501, "not supported yet: hyper-parameter search (/hypersearch); submit an array of tasks, one for each set of "
                                     "parameters: --msd-array 0-99, or shoal job run --array 0-99");
}

static void search_data(struct http_request *request, struct shoal_view content)
{
    (void)content;
    SHOAL_ASSERT(request->responded); /* when it began */
}

#define SEARCH(verb, below) { .method = verb, .pattern = ROUTES_BASE "/hypersearch" below, .handle = handle_search }
#define SEARCH_POST(below)                                                                                             \
    {                                                                                                                  \
        .method = HTTP1_POST, .pattern = ROUTES_BASE "/hypersearch" below, .handle = handle_search,                    \
        .mode = HTTP_BODY_STREAM, .begin = handle_search, .data = search_data                                          \
    }
#define POST_FILE .mode = HTTP_BODY_STREAM, .begin = submit_begin, .data = submit_data

static const struct http_route routes[] = {
    { .method = HTTP1_GET,
      .pattern = "/auth/v1/logon",
      .handle = handle_logon,
      .open = true,
      .mode = HTTP_BODY_BUFFER },
    { .method = HTTP1_POST,
      .pattern = "/auth/v1/logon",
      .handle = handle_logon,
      .open = true,
      .mode = HTTP_BODY_BUFFER },
    { .method = HTTP1_GET,
      .pattern = "/platform/rest/conductor/v1/auth/logon",
      .handle = handle_logon,
      .open = true,
      .mode = HTTP_BODY_BUFFER },
    { .method = HTTP1_POST, .pattern = "/auth/v1/logoff", .handle = handle_logoff },
    { .method = HTTP1_GET, .pattern = ROUTES_BASE "/conf", .handle = handle_conf },
    { .method = HTTP1_GET, .pattern = ROUTES_BASE "/status", .handle = handle_status },
    { .method = HTTP1_GET, .pattern = ROUTES_BASE "/execs", .handle = handle_list },
    { .method = HTTP1_POST, .pattern = ROUTES_BASE "/execs", .handle = submit_handle, POST_FILE },
    { .method = HTTP1_DELETE, .pattern = ROUTES_BASE "/execs", .handle = handle_delete_all },
    { .method = HTTP1_GET, .pattern = ROUTES_BASE "/execs/frameworks", .handle = handle_frameworks },
    { .method = HTTP1_GET, .pattern = ROUTES_BASE "/execs/{}", .handle = handle_get },
    { .method = HTTP1_DELETE, .pattern = ROUTES_BASE "/execs/{}", .handle = handle_delete },
    { .method = HTTP1_POST, .pattern = ROUTES_BASE "/execs/{}/stop", .handle = routes_exec_stop },
    { .method = HTTP1_GET, .pattern = ROUTES_BASE "/execs/{}/log", .handle = handle_log },
    { .method = HTTP1_GET, .pattern = ROUTES_BASE "/execs/{}/result", .handle = result_handle_execs },
    { .method = HTTP1_POST, .pattern = ROUTES_BASE "/execs/{}/deploy", .handle = submit_handle, .mode = HTTP_BODY_STREAM, .begin = submit_begin, .data = submit_data },
    SEARCH(HTTP1_GET, ""),
    SEARCH(HTTP1_DELETE, ""),
    SEARCH_POST(""),
    SEARCH(HTTP1_GET, "/{}"),
    SEARCH(HTTP1_PUT, "/{}"),
    SEARCH(HTTP1_DELETE, "/{}"),
    SEARCH_POST("/{}"),
    SEARCH(HTTP1_GET, "/{}/{}"),
    SEARCH(HTTP1_PUT, "/{}/{}"),
    SEARCH(HTTP1_DELETE, "/{}/{}"),
    SEARCH_POST("/{}/{}"),
};

const struct http_route *http_routes_execs(size_t *count)
{
    *count = sizeof(routes) / sizeof(routes[0]);
    return routes;
}
