/* Shoal's own API, /v1: what the CLI and the console use beside the execs API. Unknown jobs are 404 here. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "job_list.h"

#include "shoal/job_facts.h"

#include "shoal/banned.h"

#define NODES_SHOWN_MAX 4096u
#define WAIT_MS_MAX 30000u
#define LOG_BYTES_MAX (256u * SHOAL_KIB)

/* ---- objects ---- */

static void epoch_json(struct json_writer *w, const char *key, struct shoal_epoch epoch)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%" PRIu32 ".%" PRIu32, epoch.e, epoch.k);
    json_text(w, key, text);
}

static void job_times_json(struct json_writer *w, const struct shoal_job_info *job)
{
    char text[32];

    routes_time_text(job->create_ms, text);
    json_text(w, "created", text);
    if (job->start_ms > 0) {
        routes_time_text(job->start_ms, text);
        json_text(w, "started", text);
    }
    if (job->end_ms > 0) {
        routes_time_text(job->end_ms, text);
        json_text(w, "ended", text);
    }
}

/* A job as the native API shows it. `key` as in json_writer. */
static void job_json(struct json_writer *w, const char *key, const struct shoal_job_info *job)
{
    char id[SHOAL_JOB_ID_TEXT_BYTES];

    shoal_job_id_text(job->id, id);
    json_object_begin(w, key);
    json_text(w, "id", id);
    json_text(w, "state", job->state);
    json_text(w, "detail", job->detail);
    json_text(w, "pending", job->pending);
    json_text(w, "creator", job->creator);
    json_text(w, "framework", job->framework);
    json_text(w, "name", job->app_name);
    if (job->service != NULL && job->service[0] != '\0')
        json_text(w, "service", job->service);
    json_text(w, "args", job->args);
    json_bool(w, "elastic", job->elastic);
    json_bool(w, "hasEnded", job->ended);
    json_uint(w, "workersMin", job->workers_min);
    json_uint(w, "workersMax", job->workers_max);
    json_uint(w, "workers", job->workers_now);
    json_uint(w, "priority", job->priority);
    if (job->ended)
        json_int(w, "exitCode", job->exit_code);
    job_times_json(w, job);
    json_uint(w, "createdMs", job->create_ms);
    json_text(w, "workDir", job->work_dir);
    json_text(w, "resultDir", job->result_dir);
    json_text(w, "leader", job->leader_name);
    json_text(w, "driver", job->driver_node);
    json_uint(w, "term", job->term);
    json_uint(w, "generation", job->generation);
    epoch_json(w, "epoch", job->epoch);
    if (job->transport[0] != '\0')
        json_text(w, "transport", job->transport);
    json_uint(w, "steps", job->steps < SHOAL_STEPS_MAX ? job->steps : SHOAL_STEPS_MAX); /* a record of a former version may say more */
    json_uint(w, "dataEpoch", job->data_epoch);
    json_number(w, "stepsPerSecond", job->rate_milli / 1000.0);
    json_uint(w, "joinPauseUs", job->join_pause_us);
    if (job->tasks_all > 0) {
        json_object_begin(w, "array");
        json_uint(w, "tasks", job->tasks_all);
        json_uint(w, "done", job->tasks_done);
        json_uint(w, "failed", job->tasks_failed);
        json_uint(w, "running", job->tasks_running);
        json_end(w);
    }
    if (job->has_metrics) {
        json_number(w, "loss", job->loss);
        json_number(w, "accuracy", job->accuracy);
    }
    json_end(w);
}

static void node_json(struct json_writer *w, const struct shoal_node_info *node)
{
    char id[SHOAL_NODE_ID_TEXT_BYTES];
    char incarnation[48];

    shoal_hex_text(node->id.bytes, sizeof(node->id.bytes), id);
    (void)snprintf(incarnation, sizeof(incarnation), "%" PRIu32 ".%" PRIu32 ".%" PRIu32, node->incarnation.host_epoch,
                   node->incarnation.agent, node->incarnation.refutation);
    json_object_begin(w, NULL);
    json_text(w, "id", id);
    json_text(w, "name", node->name);
    json_text(w, "address", node->address);
    json_text(w, "api", node->api_url);
    json_text(w, "state", node->state);
    json_text(w, "incarnation", incarnation);
    json_uint(w, "slots", node->slots_total);
    json_uint(w, "slotsFree", node->slots_free);
    json_uint(w, "gpus", node->gpus);
    json_array_begin(w, "frameworks");
    if ((node->serves & SHOAL_SERVES_TORCH) != 0)
        json_text(w, NULL, "torch");
    if ((node->serves & SHOAL_SERVES_TENSORFLOW) != 0)
        json_text(w, NULL, "tensorflow");
    json_end(w);
    json_number(w, "load", node->load_milli / 1000.0);
    json_uint(w, "jobsLed", node->jobs_led);
    json_uint(w, "ageMs", node->age_ms);
    json_bool(w, "self", node->self);
    json_end(w);
}

/* Everything is at hand: no waiting. */
static void nodes_json(struct json_writer *w, const char *key, const struct shoal_backend *backend)
{
    size_t count = backend->nodes(backend->ctx, NULL, 0);
    struct shoal_node_info *nodes;

    if (count > NODES_SHOWN_MAX)
        count = NODES_SHOWN_MAX;
    nodes = calloc(count + 1, sizeof(*nodes));
    if (nodes == NULL) {
        w->failed = true;
        return;
    }
    if (count > 0) {
        size_t there = backend->nodes(backend->ctx, nodes, count);

        count = there < count ? there : count;
    }
    json_array_begin(w, key);
    for (size_t i = 0; i < count; i++)
        node_json(w, &nodes[i]);
    json_end(w);
    free(nodes);
}

static void handle_nodes(struct http_request *request)
{
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    nodes_json(&w, NULL, &request->http->backend);
    http_respond_json(request, 200, &w);
}

/* ---- jobs ---- */

static void jobs_json(struct json_writer *w, const struct shoal_job_page *page)
{
    json_array_begin(w, "jobs");
    for (size_t i = 0; i < page->count; i++)
        job_json(w, NULL, &page->jobs[i]);
    json_end(w);
    job_list_missing_json(w, page);
}

static void on_jobs(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_job_page *page)
{
    struct http_request *request = arg;
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);
    char next[JOB_LIST_TOKEN_TEXT_BYTES];

    if (err != SHOAL_OK) {
        http_respond_failure(request, err, msg, 404);
    } else {
        job_list_next(request, page, next);
        json_object_begin(&w, NULL);
        jobs_json(&w, page);
        json_text(&w, "next", next);
        json_end(&w);
        job_list_headers(request, page);
        http_respond_json(request, 200, &w);
    }
    http_request_release(request);
}

static void on_top(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_job_page *page)
{
    struct http_request *request = arg;
    const struct shoal_backend *backend = &request->http->backend;
    struct shoal_mesh_status status = { .version = "" };
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    if (err != SHOAL_OK) {
        http_respond_failure(request, err, msg, 404);
        http_request_release(request);
        return;
    }
    backend->status(backend->ctx, &status);
    json_object_begin(&w, NULL);
    json_text(&w, "mesh", status.mesh_name);
    json_text(&w, "node", status.node_name);
    json_text(&w, "version", status.version);
    json_uint(&w, "membersAlive", status.members_alive);
    json_uint(&w, "membersKnown", status.members_known);
    json_bool(&w, "meshWritable", status.mesh_writable);
    json_uint(&w, "ageMs", 0);
    nodes_json(&w, "nodes", backend);
    jobs_json(&w, page);
    json_bool(&w, "more", page->next.is_set);
    json_end(&w);
    http_respond_json(request, 200, &w);
    http_request_release(request);
}

static void list_jobs(struct http_request *request, shoal_backend_jobs_fn *done)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct shoal_job_filter filter;

    if (!job_list_read(request, &filter))
        return;
    http_request_hold(request);
    backend->list(backend->ctx, &request->user, &filter, done, request);
}

static void handle_jobs(struct http_request *request) { list_jobs(request, on_jobs); }
static void handle_top(struct http_request *request) { list_jobs(request, on_top); }

static void on_job(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_job_info *job)
{
    struct http_request *request = arg;
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    if (err != SHOAL_OK) {
        http_respond_failure(request, err, msg, 404);
    } else {
        job_json(&w, NULL, job);
        http_respond_json(request, 200, &w);
    }
    http_request_release(request);
}

static void handle_job(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;
    const char *stale = http_query(request, "stale");

    http_request_hold(request);
    backend->get(backend->ctx, &request->user, request->params[0], stale == NULL || strcmp(stale, "true") != 0, on_job,
                 request);
}

static void on_done(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    struct http_request *request = arg;

    if (err == SHOAL_OK)
        http_respond_empty(request, 204);
    else
        http_respond_failure(request, err, msg, 404);
    http_request_release(request);
}

static void handle_job_stop(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;

    http_request_hold(request);
    backend->stop(backend->ctx, &request->user, request->params[0], on_done, request);
}

static void handle_job_delete(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;

    http_request_hold(request);
    backend->del(backend->ctx, &request->user, request->params[0], on_done, request);
}

/* ---- recovery ---- */

static void recovery_text(const struct shoal_recovery_info *recovery, const char *id, char *text, size_t cap)
{
    size_t used;

    routes_recovery_begin(recovery, "", text, cap);
    used = strlen(text);
    (void)snprintf(text + used, cap - used,
                   ". %s holds the job's log up to entry %" PRIu64 " of term %" PRIu64 " (up to %" PRIu64
                   " it is known to be committed). Whatever was acknowledged after that is missing: workers placed, "
                   "checkpoints, step records, a stop, a result. ",
                   recovery->node, recovery->index, recovery->term, recovery->commit);
    used = strlen(text);
    if (recovery->done)
        (void)snprintf(text + used, cap - used,
                       "The job goes on from there as recovery generation %" PRIu32
                       "; the lost guardians' replicas are "
                       "void, also if they come back",
                       recovery->generation);
    else
        (void)snprintf(text + used, cap - used,
                       "Nothing was changed. If they are gone for good: shoal job recover %s --yes", id);
}

static void on_recovery(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                        const struct shoal_recovery_info *recovery)
{
    struct http_request *request = arg;
    char id[SHOAL_JOB_ID_TEXT_BYTES];
    char text[1400];

    if (err != SHOAL_OK) {
        http_respond_failure(request, err, msg, 404);
    } else {
        shoal_job_id_text(recovery->id, id);
        recovery_text(recovery, id, text, sizeof(text));
        routes_recovery_answer(request, recovery, id, text);
    }
    http_request_release(request);
}

static void handle_recover(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;
    const char *confirm = http_query(request, "confirm");

    if (!request->user.admin) {
        http_respond_error(
            request, 403,
            "only an administrator may recover a job: it gives up what lost guardians alone knew; ask one");
        return;
    }
    if (confirm != NULL && strcmp(confirm, "true") != 0 && strcmp(confirm, "false") != 0) {
        http_respond_error(request, 400, "confirm: \"%.40s\" is not true or false", confirm);
        return;
    }
    http_request_hold(request);
    backend->recover(backend->ctx, &request->user, request->params[0], confirm != NULL && strcmp(confirm, "true") == 0,
                     on_recovery, request);
}

static void on_text(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view json)
{
    struct http_request *request = arg;

    if (err == SHOAL_OK)
        http_respond(request, 200, "application/json", json);
    else
        http_respond_failure(request, err, msg, 404);
    http_request_release(request);
}

static void handle_why(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;

    http_request_hold(request);
    backend->why(backend->ctx, &request->user, request->params[0], on_text, request);
}

static void handle_ledger(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;

    http_request_hold(request);
    backend->ledger(backend->ctx, &request->user, request->params[0], on_text, request);
}

/* ---- a log by pieces, for `logs -f` ---- */

struct log_ask {
    struct shoal_log_request log;
    bool gone; /* the client is */
};

static void on_log_gone(struct http_request *request)
{
    struct log_ask *ask = request->state;

    ask->gone = true;
}

static void on_log(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_log_chunk *chunk)
{
    struct http_request *request = arg;

    request->gone = NULL;
    if (err != SHOAL_OK) {
        http_respond_failure(request, err, msg, 404);
    } else {
        http_header_add(request, "Shoal-Log-Next", "%" PRIu64, chunk->cursor);
        http_header_add(request, "Shoal-Log-Ended", "%s", chunk->ended ? "true" : "false");
        http_respond(request, 200, "application/octet-stream", chunk->bytes);
    }
    http_request_release(request);
}

bool routes_number(struct http_request *request, const char *key, uint64_t min, uint64_t max, uint64_t *value)
{
    const char *text = http_query(request, key);
    char *end = NULL;

    if (text == NULL)
        return true;
    errno = 0;
    *value = strtoull(text, &end, 10);
    if (text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && *value >= min && *value <= max)
        return true;
    http_respond_error(request, 400, "%s: \"%.40s\" is not a number from %" PRIu64 " to %" PRIu64, key, text, min, max);
    return false;
}

static bool read_kind(struct http_request *request, struct shoal_log_request *log)
{
    static const struct {
        const char *name;
        enum shoal_log_kind kind;
    } kinds[] = { { "out", SHOAL_LOG_OUT },
                  { "err", SHOAL_LOG_ERR },
                  { "outerr", SHOAL_LOG_OUTERR },
                  { "launcher", SHOAL_LOG_LAUNCHER },
                  { "driver", SHOAL_LOG_TASK_OUT },
                  { "task-out", SHOAL_LOG_TASK_OUT },
                  { "task-err", SHOAL_LOG_TASK_ERR },
                  { "task-outerr", SHOAL_LOG_TASK_OUTERR },
                  { "task-launcher", SHOAL_LOG_TASK_LAUNCHER } };
    const char *which = http_query(request, "which");

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(which == NULL ? "out" : which, kinds[i].name) == 0) {
            log->kind = kinds[i].kind;
            return true;
        }
    }
    http_respond_error(
        request, 400,
        "which: \"%.40s\" is not out, err, outerr, launcher, driver, task-out, task-err, task-outerr or task-launcher",
        which);
    return false;
}

static void handle_log(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct log_ask *ask = arena_alloc(&request->arena, sizeof(*ask));
    struct shoal_log_request *log;
    uint64_t wait = 0;
    uint64_t task = 0;
    uint64_t bytes = LOG_BYTES_MAX;

    if (ask == NULL) {
        http_respond_error(request, 503, "out of memory; try again later");
        return;
    }
    *ask = (struct log_ask){ .gone = false };
    log = &ask->log;
    *log = (struct shoal_log_request){ .id = request->params[0], .caller = &request->user };
    if (!read_kind(request, log) || !routes_number(request, "cursor", 0, UINT64_MAX, &log->cursor) ||
        !routes_number(request, "wait_ms", 0, WAIT_MS_MAX, &wait) ||
        !routes_number(request, "task", 0, SHOAL_ARRAY_INDEX_MAX, &task) ||
        !routes_number(request, "max", 0, LOG_BYTES_MAX, &bytes))
        return;
    log->wait_ms = (uint32_t)wait;
    log->task = (unsigned)task;
    log->task_named = http_query(request, "task") != NULL;
    log->bytes_max = bytes == 0 ? LOG_BYTES_MAX : (size_t)bytes;
    log->gone = &ask->gone;
    request->state = ask;
    if (wait > 0)
        request->gone = on_log_gone;
    http_request_hold(request);
    backend->log_read(backend->ctx, log, on_log, request);
}

/* ---- tasks of an array ---- */

static void task_json(struct json_writer *w, const struct shoal_task_info *task)
{
    char text[32];

    json_object_begin(w, NULL);
    json_uint(w, "index", task->row.index);
    json_text(w, "state", shoal_task_state_name((enum shoal_task_state)task->row.state));
    if (task->row.state == SHOAL_TASK_DONE || task->row.state == SHOAL_TASK_FAILED)
        json_int(w, "exitCode", task->row.exit_code);
    json_uint(w, "attempts", task->row.attempts);
    json_text(w, "node", task->node);
    if (task->row.start_ms > 0) {
        routes_time_text(task->row.start_ms, text);
        json_text(w, "started", text);
    }
    if (task->row.end_ms > 0) {
        routes_time_text(task->row.end_ms, text);
        json_text(w, "ended", text);
    }
    json_end(w);
}

static void on_tasks(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_task_info *tasks,
                     size_t count, uint32_t next)
{
    struct http_request *request = arg;
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    if (err != SHOAL_OK) {
        http_respond_failure(request, err, msg, 404);
    } else {
        json_object_begin(&w, NULL);
        json_array_begin(&w, "tasks");
        for (size_t i = 0; i < count; i++)
            task_json(&w, &tasks[i]);
        json_end(&w);
        if (next != SHOAL_ARRAY_NONE)
            json_uint(&w, "next", next);
        json_end(&w);
        http_respond_json(request, 200, &w);
    }
    http_request_release(request);
}

static bool read_task_states(struct http_request *request, struct shoal_tasks_ask *ask)
{
    const char *text = http_query(request, "state");

    if (text == NULL)
        return true;
    for (unsigned i = 0; i < SHOAL_TASK_STATE_COUNT; i++)
        if (strcasecmp(text, shoal_task_state_name((enum shoal_task_state)i)) == 0)
            ask->states = (uint8_t)(1u << i);
    if (ask->states == 0)
        http_respond_error(request, 400, "state: \"%.40s\" is not pending, running, done, failed or stopped", text);
    return ask->states != 0;
}

static void handle_tasks(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct shoal_tasks_ask ask = { .after_index = SHOAL_ARRAY_NONE };
    uint64_t after = SHOAL_ARRAY_NONE;
    uint64_t limit = 100;

    if (!routes_number(request, "after", 0, SHOAL_ARRAY_INDEX_MAX, &after) ||
        !routes_number(request, "limit", 1, SHOAL_TASKS_PAGE_MAX, &limit) || !read_task_states(request, &ask))
        return;
    ask.after_index = (uint32_t)after;
    ask.limit = (uint16_t)limit;
    http_request_hold(request);
    backend->tasks(backend->ctx, &request->user, request->params[0], &ask, on_tasks, request);
}

/* ---- for operators ---- */

static void handle_debug(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct shoal_buf json = { 0 };
    enum shoal_err err;

    if (!request->user.admin) {
        http_respond_error(request, 403, "only an administrator may look into a node");
        return;
    }
    err = backend->debug(backend->ctx, request->params[0], &json);
    if (err == SHOAL_OK)
        http_respond(request, 200, "application/json", shoal_buf_view(&json));
    else if (err == SHOAL_ERR_NOT_FOUND)
        http_respond_error(request, 404, "debug: \"%.40s\" is not groups, leases, links, epochs or archive",
                           request->params[0]);
    else
        http_respond_error(request, 503, "the node cannot show that now");
    shoal_buf_deinit(&json);
}

/* For load balancers and start-up scripts: says nothing but that it runs. */
static void handle_health(struct http_request *request)
{
    http_respond(request, 200, "text/plain;charset=UTF-8", shoal_view_text("ok\n"));
}

#define POST_FILE .mode = HTTP_BODY_STREAM, .begin = submit_begin, .data = submit_data

static const struct http_route routes[] = {
    { .method = HTTP1_GET, .pattern = "/healthz", .handle = handle_health, .open = true },
    { .method = HTTP1_GET, .pattern = "/v1/nodes", .handle = handle_nodes },
    { .method = HTTP1_POST, .pattern = "/v1/nodes/{}/remove", .handle = routes_node_remove },
    { .method = HTTP1_POST, .pattern = "/v1/nodes/{}/readmit", .handle = routes_node_readmit },
    { .method = HTTP1_POST, .pattern = "/v1/nodes/{}/drain", .handle = routes_node_drain },
    { .method = HTTP1_POST, .pattern = "/v1/nodes/{}/undrain", .handle = routes_node_undrain },
    { .method = HTTP1_POST, .pattern = "/v1/nodes/{}/leave", .handle = routes_node_leave },
    { .method = HTTP1_POST, .pattern = "/v1/mesh/recover", .handle = routes_mesh_recover },
    { .method = HTTP1_GET, .pattern = "/v1/top", .handle = handle_top },
    { .method = HTTP1_GET, .pattern = "/v1/jobs", .handle = handle_jobs },
    { .method = HTTP1_POST, .pattern = "/v1/jobs", .handle = submit_handle, POST_FILE },
    { .method = HTTP1_POST, .pattern = "/v1/tickets", .handle = submit_ticket_handle, POST_FILE },
    { .method = HTTP1_GET, .pattern = "/v1/jobs/{}", .handle = handle_job },
    { .method = HTTP1_DELETE, .pattern = "/v1/jobs/{}", .handle = handle_job_delete },
    { .method = HTTP1_POST, .pattern = "/v1/jobs/{}/stop", .handle = handle_job_stop },
    { .method = HTTP1_POST, .pattern = "/v1/jobs/{}/recover", .handle = handle_recover },
    { .method = HTTP1_GET, .pattern = "/v1/jobs/{}/why", .handle = handle_why },
    { .method = HTTP1_GET, .pattern = "/v1/jobs/{}/ledger", .handle = handle_ledger },
    { .method = HTTP1_GET, .pattern = "/v1/jobs/{}/metrics", .handle = routes_curve },
    { .method = HTTP1_GET, .pattern = "/v1/jobs/{}/tasks", .handle = handle_tasks },
    { .method = HTTP1_GET, .pattern = "/v1/jobs/{}/log", .handle = handle_log },
    { .method = HTTP1_GET, .pattern = "/v1/jobs/{}/result", .handle = result_handle_native },
    { .method = HTTP1_GET, .pattern = "/v1/jobs/{}/files", .handle = routes_files_list },
    { .method = HTTP1_GET, .pattern = "/v1/jobs/{}/files/{*}", .handle = routes_file_get },
    { .method = HTTP1_GET, .pattern = "/v1/metrics", .handle = routes_metrics, .open = true },
    { .method = HTTP1_GET, .pattern = "/metrics", .handle = routes_metrics, .open = true },
    { .method = HTTP1_GET, .pattern = "/v1/debug/{}", .handle = handle_debug },
};

const struct http_route *http_routes_native(size_t *count)
{
    *count = sizeof(routes) / sizeof(routes[0]);
    return routes;
}
