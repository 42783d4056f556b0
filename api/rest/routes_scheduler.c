/* The scheduler's addresses of WMLA's DLI v1, for the log and application commands of its clients (execs-api 6). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/http/json_input.h"
#include "job_list.h"

#include "shoal/banned.h"

#define JSON "application/json"

/* ---- logs of tasks ---- */

static bool read_lines(struct http_request *request, unsigned *lines)
{
    const char *text = http_query(request, "lastlines");
    char *end = NULL;
    unsigned long value;

    *lines = 10;
    if (text == NULL)
        return true;
    value = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || value < 1) {
        http_respond_error(request, 400, "lastlines: \"%.40s\" is not an integer above 0", text);
        return false;
    }
    *lines = value > 100000 ? 100000u : (unsigned)value;
    return true;
}

static void task_log(struct http_request *request, unsigned task, const char *kind)
{
    unsigned lines;

    if (!read_lines(request, &lines))
        return;
    if (strcmp(kind, "stdout") == 0)
        routes_log_stream(request, SHOAL_LOG_TASK_OUT, task, lines, false, 400);
    else if (strcmp(kind, "stderr") == 0)
        routes_log_stream(request, SHOAL_LOG_TASK_ERR, task, lines, false, 400);
    else if (strcmp(kind, "launcherlog") == 0)
        routes_log_stream(request, SHOAL_LOG_TASK_LAUNCHER, task, lines, false, 400);
    else
        http_respond_error(request, 400, "log: \"%.40s\" is not launcherlog, stdout or stderr", kind);
}

static void handle_driver_log(struct http_request *request) { task_log(request, 0, request->params[1]); }

static void handle_executor_log(struct http_request *request)
{
    char *end = NULL;
    unsigned long task = strtoul(request->params[1], &end, 10);

    if (request->params[1][0] < '0' || request->params[1][0] > '9' || *end != '\0' || task < 1 ||
        task > SHOAL_JOB_WORKERS_MAX)
        http_respond_error(request, 400, "executor: \"%.40s\" is not a worker's number from 1 on", request->params[1]);
    else
        task_log(request, (unsigned)task, request->params[2]);
}

static void application_object(struct json_writer *w, const struct shoal_job_info *job, unsigned workers)
{
    char id[SHOAL_JOB_ID_TEXT_BYTES];

    shoal_job_id_text(job->id, id);
    json_object_begin(w, NULL);
    json_text(w, "applicationid", id);
    json_text(w, "applicationname", job->app_name);
    json_text(w, "type", job->elastic ? "ELASTIC" : "PARALLEL");
    json_text(w, "state", job->state);
    json_text(w, "username", job->creator);
    json_uint(w, "submittedtime", job->create_ms);
    json_uint(w, "endtime", job->end_ms);
    json_uint(w, "slots", job->workers_now);
    if (job->elastic) {
        json_object_begin(w, "task0");
        json_text(w, "id", "0");
        json_text(w, "host", job->driver_node);
        json_end(w);
    }
    json_array_begin(w, "task12n");
    for (unsigned i = 1; i <= workers; i++) {
        json_object_begin(w, NULL);
        json_uint(w, "id", i);
        json_end(w);
    }
    json_end(w);
    json_end(w);
}

static unsigned workers_of(const struct shoal_job_info *job) { return job->workers_now > 0 ? job->workers_now : job->workers_min; }

/* What is not asked for may be anything. */
static bool is_asked(const char *asked, const char *value)
{
    return asked == NULL || asked[0] == '\0' || strcmp(asked, value) == 0;
}

/* Jobs have no driver's id here, and the mesh is the only instance (execs-api 6.2). */
static bool application_asked(struct http_request *request, const struct shoal_job_info *job)
{
    const struct shoal_backend *backend = &request->http->backend;
    const char *search = http_query(request, "search");
    struct shoal_mesh_status status = { .version = "" };
    char id[SHOAL_JOB_ID_TEXT_BYTES];

    shoal_job_id_text(job->id, id);
    backend->status(backend->ctx, &status);
    return is_asked(http_query(request, "applicationid"), id) && is_asked(http_query(request, "applicationname"), job->app_name) &&
           is_asked(http_query(request, "driverid"), "") && is_asked(http_query(request, "sigId"), status.mesh_name) &&
           (search == NULL || strstr(id, search) != NULL || strstr(job->app_name, search) != NULL);
}

static void application_json(struct json_writer *w, struct http_request *request, const struct shoal_job_info *job)
{
    (void)request;
    application_object(w, job, workers_of(job));
}

/* One job, for who walks through the logs of its workers: 1 to the length of "task12n" (execs-api 9). */
struct looking {
    struct http_request *request;
    const char *id;
    unsigned logs; /* of workers, also of those that ended; 0: none, or not known */
};

static void on_application(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_job_info *job)
{
    const struct looking *looking = arg;
    struct http_request *request = looking->request;
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    if (err != SHOAL_OK && err != SHOAL_ERR_NOT_FOUND && err != SHOAL_ERR_INVALID) {
        http_respond_failure(request, err, msg, 400);
    } else {
        json_array_begin(&w, NULL);
        if (err == SHOAL_OK && application_asked(request, job))
            application_object(&w, job, looking->logs > 0 ? looking->logs : workers_of(job));
        json_end(&w);
        http_respond_json(request, 200, &w);
    }
    http_request_release(request);
}

/* Folders log/app.X of workers: the list is sorted. */
static unsigned worker_logs(const struct shoal_result_list *list)
{
    const char *last = "";
    size_t last_len = 0;
    unsigned count = 0;

    for (size_t i = 0; i < list->count; i++) {
        const char *path = list->files[i].path;
        const char *end = strncmp(path, "log/app.", 8) == 0 ? strchr(path + 8, '/') : NULL;
        const char *driver = end == NULL ? NULL : strstr(path, "-task0-");

        if (end == NULL || (driver != NULL && driver < end) ||
            (last_len == (size_t)(end - path) && strncmp(path, last, last_len) == 0))
            continue;
        last = path;
        last_len = (size_t)(end - path);
        count++;
    }
    return count < SHOAL_JOB_WORKERS_MAX ? count : SHOAL_JOB_WORKERS_MAX;
}

static void on_application_files(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_result *result,
                                 const struct shoal_result_list *list)
{
    struct looking *looking = arg;
    struct http_request *request = looking->request;
    const struct shoal_backend *backend = &request->http->backend;

    (void)msg; /* what is wrong with the job, its own look says */
    if (err == SHOAL_OK) {
        looking->logs = worker_logs(list);
        backend->result_close(backend->ctx, result);
    }
    backend->get(backend->ctx, &request->user, looking->id, false, on_application, looking);
}

static void look_at_application(struct http_request *request, const char *id)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct looking *looking = calloc(1, sizeof(*looking));

    if (looking == NULL) {
        http_respond_error(request, 503, "out of memory; try again later");
        return;
    }
    *looking = (struct looking){ .request = request, .id = id };
    request->state = looking;
    request->state_free = free;
    http_request_hold(request);
    backend->result_open(backend->ctx, &request->user, id, on_application_files, looking);
}

/* Reads the part of the list that is asked for, and its order: "submit_time", "-submit_time", or another key of its rows; what is no
 * key of them sorts as the time of submission. */
static bool read_part(struct http_request *request, struct shoal_job_filter *filter, struct job_list_part *part)
{
    static const struct {
        const char *name;
        enum shoal_job_sort sort;
    } keys[] = { { "applicationname", SHOAL_SORT_NAME }, { "name", SHOAL_SORT_NAME },        { "state", SHOAL_SORT_STATE },
                 { "username", SHOAL_SORT_USER },        { "submit_user", SHOAL_SORT_USER }, { "task12n_num", SHOAL_SORT_WORKERS } };
    const char *sort = http_query(request, "sort");
    const char *order = http_query(request, "order");
    bool reverse = sort != NULL && sort[0] == '-';

    part->most = UINT64_MAX;
    filter->descending = reverse || (order != NULL && strcasecmp(order, "desc") == 0);
    for (size_t i = 0; sort != NULL && i < sizeof(keys) / sizeof(keys[0]); i++)
        if (strcmp(keys[i].name, sort + (reverse ? 1 : 0)) == 0)
            filter->sort = keys[i].sort;
    return routes_number(request, "start", 0, INT64_MAX, &part->skip) && routes_number(request, "length", 0, INT64_MAX, &part->most);
}

static void handle_applications(struct http_request *request)
{
    const char *id = http_query(request, "applicationid");
    struct job_list_part part = { .keep = application_asked, .row = application_json };
    struct shoal_job_filter filter;

    job_list_own(request, &filter);
    if (!read_part(request, &filter, &part))
        return;
    if (id == NULL || id[0] == '\0') {
        job_list_states(request, &filter, false);
        job_list_whole(request, &filter, &part);
        return;
    }
    look_at_application(request, id);
}

/* ---- engine jobs: dlicmd --app-get, --app-wait (execs-api 6.4) ---- */

/* Seconds; clients add and divide them, and take no other form (execs-api 6.4). Absent: not known yet. */
static void seconds_json(struct json_writer *w, const char *key, uint64_t ms)
{
    if (ms > 0)
        json_uint(w, key, ms / 1000);
}

static void engine_json(struct json_writer *w, struct http_request *request, const struct shoal_job_info *job)
{
    const unsigned workers = job->workers_now > 0 ? job->workers_now : job->workers_max;
    char id[SHOAL_JOB_ID_TEXT_BYTES];
    char tag[128];
    char wants[64]; /* each of its workers; of a slot's memory nothing is set apart, so it is what was asked for */

    (void)request;
    shoal_job_id_text(job->id, id);
    (void)snprintf(tag, sizeof(tag), "/default/%.63s", job->creator);
    (void)snprintf(wants, sizeof(wants), "ngpus=%d,mem=%u,ncpus=1", job->gpu, job->worker_mib);
    json_object_begin(w, NULL);
    json_text(w, "id", id);
    json_text(w, "consumer", "/default");
    json_text(w, "submit_user", job->creator);
    json_text(w, "tag", tag);
    json_text(w, "name", job->app_name);
    json_uint(w, "priority", job->priority);
    json_text(w, "type", job->elastic ? "ELASTIC" : "PARALLEL");
    json_text(w, "state", job->state);
    json_uint(w, "submit_time", job->create_ms / 1000);
    seconds_json(w, "start_time", job->start_ms);
    seconds_json(w, "end_time", job->end_ms);
    if (job->elastic) /* that the key is there says that there is a driver */
        json_text(w, "task0_resreq", "ngpus=0,mem=0,ncpus=0"); /* it takes no slot */
    json_text(w, "task12n_resreq", wants);
    json_uint(w, "task12n_num", workers);
    json_array_begin(w, "task12n");
    for (unsigned i = 1; i <= job->workers_now; i++) {
        json_object_begin(w, NULL);
        json_uint(w, "id", i);
        json_end(w);
    }
    json_end(w);
    json_uint(w, "used_cpu", job->workers_now);
    json_uint(w, "used_gpu", job->gpu ? job->workers_now : 0);
    json_uint(w, "used_mem", (uint64_t)job->workers_now * job->worker_mib);
    json_bool(w, "is_packing", false);
    json_text(w, "pack_id", "");
    json_end(w);
}

static void on_engine(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_job_info *job)
{
    struct http_request *request = arg;
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    if (err != SHOAL_OK && err != SHOAL_ERR_NOT_FOUND && err != SHOAL_ERR_INVALID) {
        http_respond_failure(request, err, msg, 400);
    } else {
        json_array_begin(&w, NULL);
        if (err == SHOAL_OK)
            engine_json(&w, request, job);
        json_end(&w);
        http_respond_json(request, 200, &w);
    }
    http_request_release(request);
}

static void handle_engine(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;

    http_request_hold(request);
    backend->get(backend->ctx, &request->user, request->params[0], true, on_engine, request);
}

static void handle_engines(struct http_request *request)
{
    struct job_list_part part = { .row = engine_json };
    struct shoal_job_filter filter;

    job_list_own(request, &filter);
    job_list_states(request, &filter, false);
    if (read_part(request, &filter, &part))
        job_list_whole(request, &filter, &part);
}

/* The mesh, as the one instance that there is: its name is what execs have as "sigId" (execs-api 6.7). */
static void handle_instances(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct shoal_mesh_status status = { .version = "" };
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    backend->status(backend->ctx, &status);
    json_array_begin(&w, NULL);
    json_object_begin(&w, NULL);
    json_text(&w, "uuid", status.mesh_name);
    json_text(&w, "name", status.mesh_name);
    json_text(&w, "version", status.version);
    json_text(&w, "masterUrl", status.api_url);
    json_text(&w, "executionUser", request->user.name);
    json_text(&w, "state", "STARTED");
    json_text(&w, "historyServerUrl", "");
    json_end(&w);
    json_end(&w);
    http_respond_json(request, 200, &w);
}

/* The pods and jobs of another platform: there are none here, and clients take an empty list; of one by its name, that there is none
 * (execs-api 6.6). */
static void handle_kubernetes(struct http_request *request)
{
    const char *name = http_query(request, "name");

    if (name != NULL && name[0] != '\0') {
        http_respond_error(request, 404, "no object of Kubernetes is named \"%.60s\": jobs are at /execs and /scheduler/applications", name);
        return;
    }
    http_respond(request, 200, JSON, shoal_view_text("{\"items\":[]}"));
}

static const struct http_route routes[] = {
    { .method = HTTP1_GET, .pattern = ROUTES_BASE "/scheduler/applications", .handle = handle_applications },
    { .method = HTTP1_PUT, .pattern = ROUTES_BASE "/scheduler/applications/{}/stop", .handle = routes_exec_stop },
    { .method = HTTP1_GET,
      .pattern = ROUTES_BASE "/scheduler/applications/{}/driver/logs/{}",
      .handle = handle_driver_log },
    { .method = HTTP1_GET,
      .pattern = ROUTES_BASE "/scheduler/applications/{}/executor/{}/logs/{}",
      .handle = handle_executor_log },
    { .method = HTTP1_GET, .pattern = ROUTES_BASE "/scheduler/engine/applications", .handle = handle_engines },
    { .method = HTTP1_GET, .pattern = ROUTES_BASE "/scheduler/engine/applications/{}", .handle = handle_engine },
    { .method = HTTP1_GET, .pattern = ROUTES_BASE "/scheduler/instances", .handle = handle_instances },
    { .method = HTTP1_GET, .pattern = ROUTES_BASE "/scheduler/kubernetesobjects", .handle = handle_kubernetes },
};

const struct http_route *http_routes_scheduler(size_t *count)
{
    *count = sizeof(routes) / sizeof(routes[0]);
    return routes;
}
