/* The HTTP server with a backend that lives in memory: to try routes, clients and the CLI without a mesh.
 *
 *     api_fake PORT FOLDER [plain]     users ada/secret, eve/secret and admin/secret; prints "ready PORT"; ends on SIGTERM
 *
 * A job waits for 1 s, runs for 3 s, logs a line each 200 ms, and gives back its bundle as model/bundle. */
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "shoal/backend.h"
#include "shoal/bundle.h"
#include "shoal/http.h"
#include "shoal/token.h"
#include "shoal/wire.h"

#include "shoal/banned.h"

#define JOBS_MAX 4096
#define REVOKED_MAX 64

#define VAST (3ull << 30) /* more than a package may have */

struct fake_job {
    struct shoal_job_id id;
    char creator[SHOAL_USER_BYTES_MAX];
    char framework[SHOAL_FRAMEWORK_BYTES_MAX];
    char app_name[256];
    char *args;
    char *data_json;
    char work_dir[300];
    unsigned workers;
    bool elastic;
    bool gpu;
    uint32_t worker_mib;
    bool killed;
    uint64_t created_ms;
    uint64_t ended_ms;
    int bundle_fd;
    uint64_t bundle_bytes;
};

struct fake {
    uv_loop_t loop;
    uv_signal_t signal;
    uv_signal_t interrupt;
    uv_prepare_t turn;
    uint64_t turns; /* of the loop */
    struct shoal_http *http;
    int vast_fd;
    uint64_t wait_ms;
    uint64_t run_ms;
    struct fake_job jobs[JOBS_MAX];
    size_t job_count;
    uint8_t key[SHOAL_TOKEN_KEY_BYTES];
    uint8_t revoked[REVOKED_MAX][SHOAL_TOKEN_ID_BYTES];
    size_t revoked_count;
};

static uint64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static const char *state_of(const struct fake *fake, const struct fake_job *job)
{
    uint64_t age = now_ms() - job->created_ms;

    if (job->killed)
        return "KILLED";
    return age < fake->wait_ms ? "PENDING_CRD_SCHEDULER" : age < fake->wait_ms + fake->run_ms ? "RUNNING" : "FINISHED";
}

static struct shoal_job_info info_of(const struct fake *fake, const struct fake_job *job)
{
    const char *state = state_of(fake, job);
    bool ended = strcmp(state, "KILLED") == 0 || strcmp(state, "FINISHED") == 0;
    bool running = strcmp(state, "RUNNING") == 0;

    return (struct shoal_job_info){
        .id = job->id,
        .state = state,
        .detail = ended ? "ended" : "",
        .creator = job->creator,
        .framework = job->framework,
        .app_name = job->app_name,
        .args = job->args,
        .data_json = job->data_json,
        .work_dir = job->work_dir,
        .result_dir = "/results",
        .leader_name = "fake",
        .driver_node = "fake",
        .pending = "",
        .elastic = job->elastic,
        .ended = ended,
        .workers_min = 1,
        .workers_max = job->workers,
        .gpu = job->gpu,
        .worker_mib = job->worker_mib,
        .workers_now = running ? job->workers : 0,
        .create_ms = job->created_ms,
        .start_ms = job->created_ms + fake->wait_ms,
        .end_ms = ended ? job->created_ms + fake->wait_ms + fake->run_ms : 0,
        .epoch = { 1, 0 },
        .transport = "ucx 1.22",
        .term = 1,
        .steps = getenv("API_FAKE_NO_STEP") != NULL ? 0 : (now_ms() - job->created_ms) / 10,
        .rate_milli = 100000,
        .has_metrics = true,
        .loss = 0.25,
        .accuracy = 0.9,
    };
}

static struct fake_job *find(struct fake *fake, const struct shoal_user *caller, const char *id, enum shoal_err *err,
                             struct shoal_msg *msg)
{
    size_t len = strlen(id);
    struct fake_job *found = NULL;

    *err = SHOAL_OK;
    for (size_t i = 0; i < fake->job_count; i++) {
        char text[SHOAL_JOB_ID_TEXT_BYTES];

        shoal_job_id_text(fake->jobs[i].id, text);
        if (fake->jobs[i].args == NULL || len > strlen(text) || strcmp(text + strlen(text) - len, id) != 0 ||
            (!caller->admin && strcmp(caller->name, fake->jobs[i].creator) != 0))
            continue;
        if (found != NULL) {
            *err = shoal_fail(msg, SHOAL_ERR_INVALID, "%s: more than one job ends so", id);
            return NULL;
        }
        found = &fake->jobs[i];
    }
    if (found == NULL)
        *err = shoal_fail(msg, SHOAL_ERR_NOT_FOUND, "exec %.60s does not exist", id);
    return found;
}

static void fake_submit(void *ctx, const struct shoal_submit *submit, shoal_backend_submit_fn *done, void *arg)
{
    struct fake *fake = ctx;
    struct fake_job *job;
    struct shoal_job_info info;
    struct shoal_bundle_info bundle;
    struct shoal_msg msg;
    uint64_t ms = now_ms();

    if (fake->job_count == JOBS_MAX || shoal_bundle_check(submit->bundle_fd, &bundle, &msg) != SHOAL_OK ||
        !shoal_hash_equal(bundle.hash, submit->bundle_hash)) {
        (void)shoal_fail(&msg, SHOAL_ERR_FULL, "no room, or the bundle is not what its hash says");
        done(arg, SHOAL_ERR_FULL, &msg, NULL, (struct shoal_view){ 0 });
        return;
    }
    job = &fake->jobs[fake->job_count++];
    for (unsigned i = 0; i < 5; i++)
        job->id.bytes[i] = (uint8_t)(ms >> (36 - 8 * i));
    randombytes_buf(job->id.bytes + 5, 5);
    (void)snprintf(job->creator, sizeof(job->creator), "%s", submit->caller->name);
    (void)snprintf(job->framework, sizeof(job->framework), "%s", submit->options->framework);
    (void)snprintf(job->app_name, sizeof(job->app_name), "%s", submit->options->app_name);
    (void)snprintf(job->work_dir, sizeof(job->work_dir), "/_submitted_code/%.250s", submit->options->work_dir);
    job->args = strdup(submit->args);
    job->data_json = strdup(submit->data_json);
    job->workers = submit->options->workers_max;
    job->elastic = submit->options->elastic;
    job->gpu = submit->options->device == SHOAL_DEVICE_GPU;
    job->worker_mib = (uint32_t)(submit->options->worker_memory_bytes >> 20);
    job->created_ms = ms;
    job->bundle_fd = dup(submit->bundle_fd);
    job->bundle_bytes = submit->bundle_bytes;
    info = info_of(fake, job);
    (void)shoal_fail(&msg, SHOAL_OK, "survives nothing: this is a fake");
    done(arg, SHOAL_OK, &msg, &info, shoal_view_of("ticket", 6));
}

static void fake_ticket(void *ctx, const struct shoal_user *caller, const struct shoal_hash *spec_hash,
                        shoal_backend_ticket_fn *done, void *arg)
{
    (void)ctx;
    (void)caller;
    done(arg, SHOAL_OK, &(struct shoal_msg){ "" }, (struct shoal_job_id){ { 1 } },
         shoal_view_of(spec_hash->bytes, sizeof(spec_hash->bytes)));
}

static void fake_get(void *ctx, const struct shoal_user *caller, const char *id, bool linearizable,
                     shoal_backend_job_fn *done, void *arg)
{
    struct shoal_msg msg = { "" };
    enum shoal_err err;
    struct fake_job *job = find(ctx, caller, id, &err, &msg);
    struct shoal_job_info info;

    (void)linearizable;
    if (job != NULL)
        info = info_of(ctx, job);
    done(arg, err, &msg, job == NULL ? NULL : &info);
}

/* Jobs lie in the order of their making; the place behind a page is the id of its last job. */
static bool fake_takes(struct fake *fake, const struct fake_job *job, const struct shoal_job_filter *filter)
{
    struct shoal_job_info info;
    bool state = filter->state_count == 0;

    if (job->args == NULL || (filter->creator[0] != '\0' && strcmp(filter->creator, job->creator) != 0))
        return false;
    info = info_of(fake, job);
    for (size_t i = 0; i < filter->state_count; i++)
        state = state || strcmp(filter->states[i], info.state) == 0;
    if (filter->name != NULL && strstr(info.app_name, filter->name) == NULL)
        return false;
    return state && !(filter->active_only && info.ended);
}

static void fake_list(void *ctx, const struct shoal_user *caller, const struct shoal_job_filter *filter,
                      shoal_backend_jobs_fn *done, void *arg)
{
    static const char *const silent[] = { "b" };
    struct fake *fake = ctx;
    struct shoal_job_info *infos = calloc(fake->job_count + 1, sizeof(*infos));
    struct shoal_job_page page = { .jobs = infos, .complete = true, .missing = silent, .missing_count = 1 };
    bool behind = !filter->after.is_set;

    (void)caller;
    for (size_t k = 0; k < fake->job_count; k++) {
        const struct fake_job *job = &fake->jobs[filter->descending ? fake->job_count - 1 - k : k];

        if (behind && fake_takes(fake, job, filter) && page.count == filter->limit) {
            page.next = (struct shoal_list_place){ .is_set = true, .id = infos[page.count - 1].id };
            break;
        }
        if (behind && fake_takes(fake, job, filter))
            infos[page.count++] = info_of(fake, job);
        behind = behind || shoal_job_id_equal(job->id, filter->after.id);
    }
    done(arg, SHOAL_OK, &(struct shoal_msg){ "" }, &page);
    free(infos);
}

static void fake_stop(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_done_fn *done,
                      void *arg)
{
    struct shoal_msg msg = { "" };
    enum shoal_err err;
    struct fake_job *job = find(ctx, caller, id, &err, &msg);

    if (job != NULL && strcmp(state_of(ctx, job), "FINISHED") != 0)
        job->killed = true;
    done(arg, err, &msg);
}

/* Every job of the fake has lost its guardians b and c. */
static void fake_recover(void *ctx, const struct shoal_user *caller, const char *id, bool confirmed,
                         shoal_backend_recovery_fn *done, void *arg)
{
    static const char *const lost[] = { "b", "c" };
    struct shoal_recovery_info info = { .node = "a",
                                        .generation = confirmed ? 2 : 1,
                                        .term = 3,
                                        .index = 57,
                                        .commit = 55,
                                        .guardians = 3,
                                        .lost_count = 2,
                                        .lost = lost,
                                        .done = confirmed };
    struct shoal_msg msg = { "" };
    enum shoal_err err;
    struct fake_job *job = find(ctx, caller, id, &err, &msg);

    if (job != NULL)
        info.id = job->id;
    done(arg, err, &msg, &info);
}

/* Nodes a, b and c; b is dead, c alive. */
static void fake_node_change(void *ctx, const struct shoal_user *caller, const char *node, enum shoal_node_verb verb,
                             bool force, shoal_backend_done_fn *done, void *arg)
{
    struct shoal_msg msg = { "" };
    enum shoal_err err = SHOAL_OK;

    (void)ctx;
    SHOAL_ASSERT(caller->admin); /* the API has checked it */
    if (strlen(node) != 1 || node[0] < 'a' || node[0] > 'c')
        err = shoal_fail(&msg, SHOAL_ERR_NOT_FOUND, "no node \"%s\"", node);
    else if (verb == SHOAL_NODE_REMOVE && node[0] != 'b' && !force)
        err = shoal_fail(&msg, SHOAL_ERR_EXISTS, "%s is alive", node);
    else
        (void)snprintf(msg.text, sizeof(msg.text), "done");
    done(arg, err, &msg);
}

static void fake_mesh_recover(void *ctx, const struct shoal_user *caller, const char *key, bool confirmed,
                              shoal_backend_recovery_fn *done, void *arg)
{
    static const char *const lost[] = { "b" };
    struct shoal_recovery_info info = {
        .node = "a", .generation = 1, .index = 57, .commit = 57, .guardians = 2, .lost_count = 1, .lost = lost
    };
    struct shoal_msg msg = { "" };
    enum shoal_err err = SHOAL_OK;

    (void)ctx, (void)caller;
    if (confirmed && key == NULL)
        err = shoal_fail(&msg, SHOAL_ERR_DENIED, "the mesh's key is wanted too");
    info.done = confirmed;
    done(arg, err, &msg, &info);
}

static void fake_del(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_done_fn *done, void *arg)
{
    struct shoal_msg msg = { "" };
    enum shoal_err err;
    struct fake_job *job = find(ctx, caller, id, &err, &msg);

    if (job != NULL) {
        free(job->args);
        job->args = NULL;
    }
    done(arg, err, &msg);
}

static void fake_delete_all(void *ctx, const struct shoal_user *caller, shoal_backend_done_fn *done, void *arg)
{
    struct fake *fake = ctx;

    for (size_t i = 0; i < fake->job_count; i++) {
        if (strcmp(fake->jobs[i].creator, caller->name) != 0)
            continue;
        free(fake->jobs[i].args);
        fake->jobs[i].args = NULL;
    }
    done(arg, SHOAL_OK, &(struct shoal_msg){ "" });
}

/* A log that grows by a 40-byte line each 200 ms while the job runs. */
struct fake_wait {
    uv_timer_t timer;
    struct fake *fake;
    const struct shoal_log_request *request;
    shoal_backend_log_fn *done;
    void *arg;
};

static bool log_answer(struct fake *fake, const struct shoal_log_request *request, shoal_backend_log_fn *done,
                       void *arg, bool force)
{
    struct shoal_msg msg = { "" };
    enum shoal_err err;
    struct fake_job *job = find(fake, request->caller, request->id, &err, &msg);
    struct shoal_log_chunk chunk = { .cursor = request->cursor };
    struct shoal_job_info info;
    char text[4096];
    size_t len = 0;
    uint64_t age;
    uint64_t lines;

    if (job == NULL) {
        done(arg, err, &msg, NULL);
        return true;
    }
    info = info_of(fake, job);
    age = now_ms() - job->created_ms;
    if (age > fake->wait_ms + fake->run_ms)
        age = fake->wait_ms + fake->run_ms;
    lines = age < fake->wait_ms ? 0 : (age - fake->wait_ms) / 200;
    while (chunk.cursor < lines && len + 40 <= sizeof(text) && len + 40 <= request->bytes_max)
        len += (size_t)snprintf(text + len, sizeof(text) - len, "line %-10" PRIu64 " caf\xc3\xa9 \"quoted\" 123456\xff\n",
                                chunk.cursor++);
    chunk.bytes = shoal_view_of(text, len);
    chunk.ended = info.ended && chunk.cursor == lines;
    if (len == 0 && !chunk.ended && !force && request->wait_ms > 0)
        return false;
    done(arg, SHOAL_OK, &msg, &chunk);
    return true;
}

static void wait_closed(uv_handle_t *handle) { free(handle->data); }

static void wait_over(uv_timer_t *timer)
{
    struct fake_wait *wait = timer->data;

    (void)log_answer(wait->fake, wait->request, wait->done, wait->arg, true);
    uv_close((uv_handle_t *)timer, wait_closed);
}

static void fake_log(void *ctx, const struct shoal_log_request *request, shoal_backend_log_fn *done, void *arg)
{
    struct fake *fake = ctx;
    struct fake_wait *wait;

    if (log_answer(fake, request, done, arg, false))
        return;
    wait = calloc(1, sizeof(*wait));
    *wait = (struct fake_wait){ .fake = fake, .request = request, .done = done, .arg = arg };
    (void)uv_timer_init(&fake->loop, &wait->timer);
    wait->timer.data = wait;
    (void)uv_timer_start(&wait->timer, wait_over, request->wait_ms < 250 ? request->wait_ms : 250, 0);
}

/* As many as a list has at most. */
static struct shoal_result_list many_files(void)
{
    static struct shoal_result_file files[SHOAL_RESULT_FILES_MAX];
    static char paths[SHOAL_RESULT_FILES_MAX][16];

    for (size_t i = 0; i < SHOAL_RESULT_FILES_MAX; i++) {
        (void)snprintf(paths[i], sizeof(paths[i]), "model/%05zu", i);
        files[i] = (struct shoal_result_file){ .path = paths[i], .bytes = i, .mtime_s = 1700000000 };
    }
    return (struct shoal_result_list){ .files = files, .count = SHOAL_RESULT_FILES_MAX };
}

static void fake_result(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_result_fn *done,
                        void *arg)
{
    struct shoal_msg msg = { "" };
    enum shoal_err err;
    struct fake_job *job = find(ctx, caller, id, &err, &msg);
    static struct shoal_result_file files[4] = { { .path = "model/bundle", .mtime_s = 1700000000 },
                                                 { .path = "log/app.task/stdout", .bytes = 5, .mtime_s = 1700000000 },
                                                 { .path = "log/loss..csv", .bytes = 5, .mtime_s = 1700000000 },
                                                 { .path = "log/../../out", .bytes = 5, .mtime_s = 1700000000 } };
    struct shoal_result_list list = { .files = files, .count = 2 };

    if (job != NULL) {
        files[0].bytes = job->bundle_bytes;
        list.coming = strcmp(job->app_name, "away") == 0;
        if (list.coming || strcmp(job->app_name, "unlisted") == 0)
            (void)snprintf(msg.text, sizeof(msg.text), "a file is not in this list");
        list.count = strcmp(job->app_name, "dots") == 0 ? 3 : strcmp(job->app_name, "outside") == 0 ? 4 : 2;
        if (strcmp(job->app_name, "elastic") == 0) {
            static struct shoal_result_file logs[] = { { .path = "log/.order" },
                                                       { .path = "log/app.j-task0-aaaaa/stdout" },
                                                       { .path = "log/app.j-task12n-aaaaa/stderr" },
                                                       { .path = "log/app.j-task12n-aaaaa/stdout" },
                                                       { .path = "log/app.j-task12n-bbbbb/stdout" },
                                                       { .path = "log/app.j-task12n-ccccc/launcher" },
                                                       { .path = "log/apple/stdout" } };

            list = (struct shoal_result_list){ .files = logs, .count = sizeof(logs) / sizeof(logs[0]) };
        }
        if (strncmp(job->app_name, "vast", 4) == 0) {
            static struct shoal_result_file one = { .path = "model/a.pt" };

            one.bytes = strcmp(job->app_name, "vast") == 0 ? VAST : 5;
            list = (struct shoal_result_list){ .files = &one, .count = 1 };
        }
        if (strcmp(job->app_name, "many") == 0)
            list = many_files();
    }
    done(arg, err, &msg, (struct shoal_result *)(void *)job, job == NULL ? NULL : &list);
}

static void fake_read(void *ctx, struct shoal_result *result, size_t file, uint64_t offset, size_t bytes_max,
                      shoal_backend_bytes_fn *done, void *arg)
{
    struct fake_job *job = (struct fake_job *)(void *)result;
    uint8_t *bytes = malloc(bytes_max);
    ssize_t got = file >= 1 ? 5 : pread(job->bundle_fd, bytes, bytes_max, (off_t)offset);

    (void)ctx;
    if (file >= 1)
        memcpy(bytes, "hello", 5);
    if (got < 0)
        done(arg, SHOAL_ERR_STORAGE, &(struct shoal_msg){ "gone" }, (struct shoal_view){ 0 });
    else
        done(arg, SHOAL_OK, &(struct shoal_msg){ "" }, shoal_view_of(bytes, (size_t)got));
    free(bytes);
}

static void fake_close(void *ctx, struct shoal_result *result)
{
    (void)ctx;
    (void)result;
}

static void fake_ledger(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_text_fn *done,
                        void *arg)
{
    struct shoal_msg msg = { "" };
    enum shoal_err err;

    (void)find(ctx, caller, id, &err, &msg);
    done(arg, err, &msg,
         shoal_view_text("{\"job\":\"x\",\"records\":12,\"records_wanted\":12,\"steps\":12,\"validations\":0,"
                         "\"samples\":100,\"data_epochs\":1,\"data_epochs_wanted\":1,"
                         "\"samples_per_epoch\":100,\"exact\":true,\"errors\":[],"
                         "\"shares\":[{\"worker\":1,\"minibatches\":12,\"samples\":100}],\"calls\":[]}"));
}

static void fake_tasks(void *ctx, const struct shoal_user *caller, const char *id, const struct shoal_tasks_ask *ask,
                       shoal_backend_tasks_fn *done, void *arg)
{
    static const struct shoal_task_info tasks[] = {
        { .row = { .index = 3,
                   .state = SHOAL_TASK_DONE,
                   .attempts = 1,
                   .start_ms = 1700000000000,
                   .end_ms = 1700000001000 },
          .node = "fake" },
        { .row = { .index = 5, .state = SHOAL_TASK_PENDING } },
    };
    struct shoal_msg msg = { "" };
    enum shoal_err err;

    (void)find(ctx, caller, id, &err, &msg);
    done(arg, err, &msg, tasks, ask->limit < 2 ? 1 : 2, ask->limit < 2 ? 3 : SHOAL_ARRAY_NONE);
}

static void fake_curve(void *ctx, const struct shoal_user *caller, const char *id, const struct shoal_curve_ask *ask,
                       shoal_backend_text_fn *done, void *arg)
{
    struct shoal_msg msg = { "" };
    enum shoal_err err;

    (void)find(ctx, caller, id, &err, &msg);
    done(arg, err, &msg,
         ask->points_max > 1
             ? shoal_view_text(
                   "{\"job\":\"x\",\"steps\":2,\"whole\":true,\"stride\":1,\"points\":[{\"step\":1,\"call\":1,"
                   "\"dataEpoch\":0,"
                   "\"values\":[0.5,0.25]},{\"step\":2,\"call\":1,\"dataEpoch\":0,\"values\":[null,0.5]}],"
                   "\"validationStride\":1,\"validations\":[{\"step\":2,\"call\":1,\"dataEpoch\":0,\"values\":[0.75]}],"
                   "\"calls\":[{\"call\":1,\"names\":[\"loss\",\"a \\\"b\\\", c\"]}]}")
             : shoal_view_text("{\"job\":\"x\",\"steps\":2,\"whole\":true,\"stride\":2,\"points\":[{\"step\":2,"
                               "\"call\":1,\"dataEpoch\":0,"
                               "\"values\":[0.5],\"min\":[0.25],\"max\":[1]}],\"validationStride\":1,\"validations\":[]"
                               ",\"calls\":[]}"));
}

static uint64_t infer_number, infer_cancelled; /* the last of each */

/* One piece of an answer that is more than clients may leave with the server. */
static void pour(const struct shoal_infer *infer, shoal_backend_infer_fn *done, void *arg)
{
    const struct shoal_inferred whole = { 200, 0, "", { 0 } };
    const size_t len = SHOAL_HTTP_HELD_BYTES_MAX + SHOAL_MIB;
    uint8_t *bytes = calloc(1, len);
    struct shoal_msg msg = { "" };

    SHOAL_ASSERT(bytes != NULL && infer->piece != NULL);
    infer->piece(arg, shoal_view_of(bytes, len));
    free(bytes);
    if (infer_cancelled != infer_number)
        done(arg, SHOAL_OK, &msg, &whole);
}

/* What is asked "wait" is answered after the next one, which is refused if it says "full". */
static bool is_put_off(const struct shoal_infer *infer, shoal_backend_infer_fn *done, void *arg)
{
    static const struct shoal_inferred waited = { .status = 200, .content_type = "" };
    static shoal_backend_infer_fn *put_off;
    static void *put_off_arg;
    shoal_backend_infer_fn *before = put_off;
    struct shoal_msg msg = { "" };

    if (shoal_view_equal(infer->body, shoal_view_text("wait"))) {
        put_off = done;
        put_off_arg = arg;
        return true;
    }
    if (before == NULL)
        return false;
    put_off = NULL;
    if (shoal_view_equal(infer->body, shoal_view_text("full")))
        done(arg, shoal_fail(&msg, SHOAL_ERR_FULL, "full"), &msg, NULL);
    else
        done(arg, SHOAL_OK, &msg, &waited);
    before(put_off_arg, SHOAL_OK, &msg, &waited);
    return true;
}

/* Two services: "echo" answers what it is asked, "pour" in one large piece. */
static void fake_infer(void *ctx, struct shoal_infer *infer, shoal_backend_infer_fn *done, void *arg)
{
    struct shoal_inferred inferred = { 200, infer->header_len, infer->content_type, infer->body };
    struct shoal_msg msg = { "" };

    (void)ctx;
    infer->number = ++infer_number;
    if (strcmp(infer->model, "echo") == 0 && is_put_off(infer, done, arg))
        return;
    if (strcmp(infer->model, "echo") == 0)
        done(arg, SHOAL_OK, &msg, &inferred);
    else if (strcmp(infer->model, "pour") == 0)
        pour(&(struct shoal_infer){ .piece = infer->piece }, done, arg);
    else
        done(arg, shoal_fail(&msg, SHOAL_ERR_NOT_FOUND, "Model <%.100s> doesn't exist.", infer->model), &msg, NULL);
}

static void fake_infer_more(void *ctx, uint64_t number, size_t bytes)
{
    (void)ctx;
    (void)number;
    (void)bytes;
}

static void fake_infer_cancel(void *ctx, uint64_t number)
{
    (void)ctx;
    infer_cancelled = number;
}

static void fake_runtimes(void *ctx, const struct shoal_user *caller, shoal_backend_text_fn *done, void *arg)
{
    struct shoal_msg msg = { "" };

    (void)ctx;
    (void)caller;
    done(arg, SHOAL_OK, &msg, shoal_view_text("{\"runtimes\":[{\"type\":\"mine\",\"launcher\":\"l\"}]}"));
}

static void fake_runtime_set(void *ctx, const struct shoal_user *caller, const char *name, struct shoal_view json,
                             shoal_backend_done_fn *done, void *arg)
{
    struct shoal_msg msg = { "" };

    (void)ctx;
    (void)name;
    (void)json;
    done(arg, caller->admin ? SHOAL_OK : SHOAL_ERR_DENIED, &msg);
}

static void fake_services(void *ctx, const struct shoal_user *caller, const char *name, shoal_backend_text_fn *done,
                          void *arg)
{
    static const char service[] =
        "{\"name\":\"echo\",\"version\":1,\"job\":\"shoal-0000000000000000\",\"deployedReplicas\":1,\"replicas\":1,"
        "\"creator\":\"ada\",\"createdAt\":1,\"updatedAt\":1,\"hosts\":[],"
        "\"versions\":[{\"version\":1,\"role\":\"current\",\"job\":\"shoal-0000000000000000\",\"weight\":100,\"replicas\":1,"
        "\"ready\":0,\"open\":0,\"answered\":0,\"failed\":0}],\"ready\":0,\"state\":\"starting\",\"why\":\"\"}";
    struct shoal_msg msg = { "" };
    char all[sizeof(service) + 20];

    (void)ctx;
    (void)caller;
    (void)snprintf(all, sizeof(all), "{\"services\":[%s]}", service);
    if (name == NULL || strcmp(name, "echo") == 0)
        done(arg, SHOAL_OK, &msg, shoal_view_text(name == NULL ? all : service));
    else
        done(arg, shoal_fail(&msg, SHOAL_ERR_NOT_FOUND, "Model <%.100s> doesn't exist.", name), &msg,
             (struct shoal_view){ 0 });
}

/* The document of "echo", made with the first question for it. */
static struct shoal_buf document;

static struct shoal_view fake_document(void)
{
    const struct service_doc_new made = { .name = "echo", .content_bytes = 7, .now_s = 1, .replicas = 1 };
    struct shoal_msg msg;

    if (document.len == 0 && service_doc_make(&made, &document, &msg) != SHOAL_OK)
        abort();
    return shoal_view_of(document.bytes, document.len);
}

/* No files were submitted. */
/* bundle.h: of two files, of which one is so large; all of it is a hole. */
static int vast_bundle(void)
{
    uint8_t head[128];
    struct shoal_writer w = shoal_writer_init(head, sizeof(head));
    static const char *const names[] = { "md/main.py", "md/vast" };
    int fd = memfd_create("bundle", MFD_CLOEXEC);

    shoal_put_raw(&w, SHOAL_BUNDLE_MAGIC, 8);
    shoal_put_u32(&w, 1);
    shoal_put_u32(&w, 2);
    for (unsigned i = 0; i < 2; i++) {
        shoal_put_u16(&w, (uint16_t)strlen(names[i]));
        shoal_put_raw(&w, names[i], strlen(names[i]));
        shoal_put_u32(&w, 0644);
        shoal_put_u64(&w, i == 0 ? 0 : VAST);
    }
    SHOAL_ASSERT(fd >= 0 && !w.failed && write(fd, head, w.len) == (ssize_t)w.len &&
                 ftruncate(fd, (off_t)(w.len + VAST)) == 0);
    return fd;
}

static void fake_bundle(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_bundle_fn *done,
                        void *arg)
{
    struct shoal_msg msg = { "" };
    enum shoal_err err;
    const struct fake_job *job = find(ctx, caller, id, &err, &msg);

    done(arg, err, &msg, job != NULL && strcmp(job->app_name, "vast-code") == 0 ? dup(((struct fake *)ctx)->vast_fd) : -1);
}

static void fake_service_look(void *ctx, const struct shoal_user *caller, const char *name,
                              shoal_backend_service_fn *done, void *arg)
{
    const struct shoal_service_info info = { .name = "echo", .creator = "ada", .version = 1, .created_s = 1, .updated_s = 1,
                                             .replicas = 1, .why = "", .document = fake_document() };
    struct shoal_msg msg = { "" };

    (void)ctx;
    (void)caller;
    if (strcmp(name, "echo") == 0)
        done(arg, SHOAL_OK, &msg, &info);
    else
        done(arg, shoal_fail(&msg, SHOAL_ERR_NOT_FOUND, "Model <%.100s> doesn't exist.", name), &msg, NULL);
}

static void fake_service_edit(void *ctx, const struct shoal_user *caller, const char *name,
                              const struct service_doc_edit *edit, shoal_backend_done_fn *done, void *arg)
{
    struct shoal_msg msg = { "it is done" };
    struct shoal_buf next = { 0 };
    enum shoal_err err;

    (void)ctx;
    (void)caller;
    if (strcmp(name, "echo") != 0) {
        done(arg, shoal_fail(&msg, SHOAL_ERR_NOT_FOUND, "Model <%.100s> doesn't exist.", name), &msg);
        return;
    }
    err = service_doc_edit(fake_document(), edit, &next, &msg);
    if (err == SHOAL_OK) {
        shoal_buf_deinit(&document);
        document = next;
    }
    done(arg, err, &msg);
}

static void fake_service_kernels(void *ctx, const struct shoal_user *caller, const char *name,
                                 shoal_backend_text_fn *done, void *arg)
{
    struct shoal_msg msg = { "" };

    (void)ctx;
    (void)caller;
    if (strcmp(name, "echo") == 0)
        done(arg, SHOAL_OK, &msg, shoal_view_text("{\"kernels\":[]}"));
    else
        done(arg, shoal_fail(&msg, SHOAL_ERR_NOT_FOUND, "Model <%.100s> doesn't exist.", name), &msg,
             (struct shoal_view){ 0 });
}

static void fake_service_canary(void *ctx, const struct shoal_user *caller, const char *name, const char *version,
                                unsigned percent, shoal_backend_done_fn *done, void *arg)
{
    struct shoal_msg msg;

    (void)ctx;
    (void)percent;
    if (!caller->admin && strcmp(caller->name, "ada") != 0) {
        done(arg, shoal_fail(&msg, SHOAL_ERR_DENIED, "the service echo belongs to ada"), &msg);
        return;
    }
    done(arg, shoal_fail(&msg, SHOAL_ERR_NOT_FOUND, "Model <%.100s> has version 1, not %.60s.", name, version), &msg);
}

static void fake_service_change(void *ctx, const struct shoal_user *caller, const char *name,
                                enum shoal_service_verb verb, unsigned replicas, shoal_backend_done_fn *done, void *arg)
{
    struct shoal_msg msg = { "it is done" };

    (void)ctx;
    (void)caller;
    (void)verb;
    (void)replicas;
    if (strcmp(name, "echo") == 0)
        done(arg, SHOAL_OK, &msg);
    else
        done(arg, shoal_fail(&msg, SHOAL_ERR_NOT_FOUND, "Model <%.100s> doesn't exist.", name), &msg);
}

static void fake_why(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_text_fn *done, void *arg)
{
    struct shoal_msg msg = { "" };
    enum shoal_err err;

    (void)find(ctx, caller, id, &err, &msg);
    done(arg, err, &msg, shoal_view_text("{\"job\":\"x\",\"why\":[\"2 of 4 slots are free\"]}"));
}

static bool fake_user(void *ctx, const char *name, struct shoal_user *user)
{
    (void)ctx;
    if (strcmp(name, "ada") != 0 && strcmp(name, "eve") != 0 && strcmp(name, "admin") != 0)
        return false;
    *user = (struct shoal_user){ .uid = 1000, .admin = name[1] == 'd' && name[2] == 'm' };
    (void)snprintf(user->name, sizeof(user->name), "%s", name);
    return true;
}

static void fake_logon(void *ctx, const char *name, const char *password, shoal_backend_user_fn *done, void *arg)
{
    struct shoal_user user;

    if (fake_user(ctx, name, &user) && strcmp(password, "secret") == 0)
        done(arg, SHOAL_OK, &(struct shoal_msg){ "" }, &user);
    else
        done(arg, SHOAL_ERR_DENIED, &(struct shoal_msg){ "wrong user or password" }, NULL);
}

static void fake_logoff(void *ctx, const struct shoal_user *caller, const struct token_claims *token,
                        shoal_backend_done_fn *done, void *arg)
{
    struct fake *fake = ctx;

    (void)caller;
    memcpy(fake->revoked[fake->revoked_count++ % REVOKED_MAX], token->id, SHOAL_TOKEN_ID_BYTES);
    done(arg, SHOAL_OK, &(struct shoal_msg){ "" });
}

static void fake_keys(void *ctx, struct shoal_token_keys *keys)
{
    struct fake *fake = ctx;

    keys->count = 1;
    memcpy(keys->keys[0], fake->key, sizeof(fake->key));
}

static bool fake_revoked(void *ctx, const uint8_t id[SHOAL_TOKEN_ID_BYTES])
{
    struct fake *fake = ctx;

    for (size_t i = 0; i < fake->revoked_count && i < REVOKED_MAX; i++)
        if (memcmp(fake->revoked[i], id, SHOAL_TOKEN_ID_BYTES) == 0)
            return true;
    return false;
}

static const struct shoal_framework *fake_frameworks(void *ctx, size_t *count)
{
    (void)ctx;
    return shoal_frameworks_builtin(count);
}

static size_t fake_nodes(void *ctx, struct shoal_node_info *nodes, size_t max)
{
    (void)ctx;
    if (max > 0)
        nodes[0] = (struct shoal_node_info){ .id = { { 7 } },
                                             .name = "fake",
                                             .address = "127.0.0.1:1",
                                             .state = "alive",
                                             .slots_total = 2,
                                             .slots_free = 1,
                                             .load_milli = 250,
                                             .self = true };
    return 1;
}

static void fake_status(void *ctx, struct shoal_mesh_status *status)
{
    const struct fake *fake = ctx;
    const char *members = getenv("API_FAKE_MEMBERS"); /* "ALIVE SILENT LEADER" */
    unsigned alive = 1, silent = 0, leader = 1;

    if (members != NULL && sscanf(members, "%u %u %u", &alive, &silent, &leader) != 3)
        members = NULL;
    *status = (struct shoal_mesh_status){ .version = "0-fake",
                                          .node_name = "fake",
                                          .mesh_name = "shoal",
                                          .members_alive = alive,
                                          .members_known = alive + silent + 1, /* one has left */
                                          .members_silent = silent,
                                          .mesh_writable = leader != 0 };
    (void)snprintf(status->api_url, sizeof(status->api_url), "https://127.0.0.1:%u", shoal_http_port(fake->http));
}

static enum shoal_err fake_metrics(void *ctx, struct shoal_buf *text)
{
    const struct fake *fake = ctx;
    char line[64];
    int len = snprintf(line, sizeof(line), "shoal_fake 1\nshoal_fake_turns %" PRIu64 "\n", fake->turns);

    return shoal_buf_append(text, line, (size_t)len);
}

static void on_turn(uv_prepare_t *turn)
{
    struct fake *fake = turn->data;

    fake->turns++;
}

static enum shoal_err fake_debug(void *ctx, const char *name, struct shoal_buf *json)
{
    (void)ctx;
    return strcmp(name, "groups") == 0 ? shoal_buf_append(json, "[]", 2) : SHOAL_ERR_NOT_FOUND;
}

static void on_stopped(void *arg)
{
    struct fake *fake = arg;

    uv_close((uv_handle_t *)&fake->signal, NULL);
    uv_close((uv_handle_t *)&fake->interrupt, NULL);
    uv_close((uv_handle_t *)&fake->turn, NULL);
}

static void on_signal(uv_signal_t *signal, int number)
{
    struct fake *fake = signal->data;

    (void)number;
    shoal_http_stop(fake->http, on_stopped, fake);
}

static struct shoal_backend backend_of(struct fake *fake)
{
    return (struct shoal_backend){
        .ctx = fake,
        .submit = fake_submit,
        .ticket_new = fake_ticket,
        .get = fake_get,
        .list = fake_list,
        .stop = fake_stop,
        .del = fake_del,
        .recover = fake_recover,
        .node_change = fake_node_change,
        .mesh_recover = fake_mesh_recover,
        .delete_all = fake_delete_all,
        .log_read = fake_log,
        .result_open = fake_result,
        .result_read = fake_read,
        .result_close = fake_close,
        .bundle_open = fake_bundle,
        .ledger = fake_ledger,
        .curve = fake_curve,
        .why = fake_why,
        .infer = fake_infer,
        .infer_more = fake_infer_more,
        .infer_cancel = fake_infer_cancel,
        .services = fake_services,
        .runtimes = fake_runtimes,
        .runtime_set = fake_runtime_set,
        .service_look = fake_service_look,
        .service_edit = fake_service_edit,
        .service_kernels = fake_service_kernels,
        .service_change = fake_service_change,
        .service_canary = fake_service_canary,
        .tasks = fake_tasks,
        .logon = fake_logon,
        .logoff = fake_logoff,
        .user_find = fake_user,
        .token_keys = fake_keys,
        .token_revoked = fake_revoked,
        .frameworks = fake_frameworks,
        .nodes = fake_nodes,
        .status = fake_status,
        .metrics = fake_metrics,
        .debug = fake_debug,
    };
}

int main(int argc, char **argv)
{
    static struct fake fake;
    const char *speed = getenv("API_FAKE_MS");
    struct shoal_backend backend = backend_of(&fake);
    struct shoal_http_options options = { .host = "127.0.0.1" };
    struct shoal_msg msg;

    if (argc < 3) {
        (void)fprintf(stderr, "usage: api_fake PORT FOLDER [plain]\n");
        return 2;
    }
    fake.wait_ms = speed == NULL ? 1000 : strtoull(speed, NULL, 10);
    fake.run_ms = 3 * fake.wait_ms;
    fake.vast_fd = vast_bundle(); /* before a limit on the size of files */
    options.port = (uint16_t)atoi(argv[1]);
    options.spool_dir = argv[2];
    options.tls_dir = argv[2];
    options.plain = argc > 3;
    if (getenv("API_FAKE_WRITE_MS") != NULL)
        options.write_ms = (uint32_t)atoi(getenv("API_FAKE_WRITE_MS"));
    (void)uv_loop_init(&fake.loop);
    if (sodium_init() < 0)
        return 1;
    randombytes_buf(fake.key, sizeof(fake.key));
    if (shoal_http_start(&fake.loop, &options, &backend, &fake.http, &msg) != SHOAL_OK) {
        (void)fprintf(stderr, "%s\n", msg.text);
        (void)uv_run(&fake.loop, UV_RUN_DEFAULT);
        return 1;
    }
    (void)uv_signal_init(&fake.loop, &fake.signal);
    (void)uv_signal_init(&fake.loop, &fake.interrupt);
    (void)uv_prepare_init(&fake.loop, &fake.turn);
    fake.turn.data = &fake;
    (void)uv_prepare_start(&fake.turn, on_turn);
    fake.signal.data = &fake;
    fake.interrupt.data = &fake;
    (void)uv_signal_start_oneshot(&fake.signal, on_signal, SIGTERM);
    (void)uv_signal_start_oneshot(&fake.interrupt, on_signal, SIGINT);
    (void)printf("ready %u\n", shoal_http_port(fake.http));
    (void)fflush(stdout);
    (void)uv_run(&fake.loop, UV_RUN_DEFAULT);
    for (size_t i = 0; i < fake.job_count; i++) {
        free(fake.jobs[i].args);
        free(fake.jobs[i].data_json);
        (void)close(fake.jobs[i].bundle_fd);
    }
    return uv_loop_close(&fake.loop) == 0 ? 0 : 1;
}
