/* Reading of what a job leaves: logs, results, ledger; and what an agent says of itself: metrics, debug.
 *
 * The result folder is on every guardian (agent_tree.c), so a guardian reads its own disk; any other node asks one.
 *
 * A log's cursor is (file number << 40 | offset in it): files of a job are numbered in the order in which they appeared
 * here, drivers first, and a file is left only when the job has ended or a later driver has begun. */
#include "agent_backend.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/lead.h"
#include "shoal/slots.h"

#include "node/agent/agent_ledger.h"

#include "shoal/banned.h"

#define TASKS_MAX 256
#define LOG_WAIT_STEP_MS 100
#define READ_TIMEOUT_NS (5 * SHOAL_S)
#define CURSOR_SHIFT 40

/* ---- logs on this disk ---- */

struct task {
    char name[96];
    bool driver;
    uint64_t born_ns;
};

static int by_birth(const void *a, const void *b)
{
    const struct task *x = a;
    const struct task *y = b;

    if (x->driver != y->driver)
        return x->driver ? -1 : 1;
    if (x->born_ns != y->born_ns)
        return x->born_ns < y->born_ns ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* The order that the archive keeps where a host made the files from it: they were all born at one time. */
static void order_of(const char *result_dir, struct task *tasks, size_t count)
{
    char path[AGENT_PATH_BYTES + 32];
    char line[128];
    size_t placed = 0;
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/log/.order", result_dir);
    file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        for (size_t i = placed; i < count; i++) {
            struct task task = tasks[i];

            if (strcmp(task.name, line) != 0)
                continue;
            memmove(&tasks[placed + 1], &tasks[placed], (i - placed) * sizeof(*tasks));
            tasks[placed++] = task;
            break;
        }
    }
    if (file != NULL)
        (void)fclose(file);
}

static size_t tasks_of(const char *result_dir, struct task *tasks, size_t max)
{
    char path[AGENT_PATH_BYTES + 128];
    const struct dirent *entry;
    size_t count = 0;
    DIR *dir;

    (void)snprintf(path, sizeof(path), "%s/log", result_dir);
    dir = opendir(path);
    while (dir != NULL && (entry = readdir(dir)) != NULL && count < max) {
        struct statx facts;

        if (strncmp(entry->d_name, "app.", 4) != 0 || strlen(entry->d_name) >= sizeof(tasks[0].name) ||
            statx(dirfd(dir), entry->d_name, 0, STATX_BTIME, &facts) != 0)
            continue;
        memcpy(tasks[count].name, entry->d_name, strlen(entry->d_name) + 1);
        tasks[count].driver = strstr(entry->d_name, "-task0-") != NULL;
        tasks[count].born_ns = (uint64_t)facts.stx_btime.tv_sec * SHOAL_S + facts.stx_btime.tv_nsec;
        count++;
    }
    if (dir != NULL)
        (void)closedir(dir);
    qsort(tasks, count, sizeof(*tasks), by_birth);
    order_of(result_dir, tasks, count);
    return count;
}

size_t agent_log_tasks(const char *result_dir, char (*names)[96], size_t max)
{
    static struct task tasks[TASKS_MAX];
    size_t count = tasks_of(result_dir, tasks, max < TASKS_MAX ? max : TASKS_MAX);

    for (size_t i = 0; i < count; i++)
        memcpy(names[i], tasks[i].name, sizeof(names[0]));
    return count;
}

static bool has_bytes(const char *path)
{
    struct stat facts;

    return stat(path, &facts) == 0 && facts.st_size > 0;
}

/* What `kind` means for one task; false: nothing. */
static bool task_file(const struct agent_job *job, const struct task *task, enum shoal_log_kind kind, unsigned part,
                      char *path, size_t cap)
{
    const char *name = kind == SHOAL_LOG_ERR || kind == SHOAL_LOG_TASK_ERR || part == 1 ? "stderr" : "stdout";
    char plain[AGENT_PATH_BYTES + 160];

    if (kind == SHOAL_LOG_LAUNCHER || kind == SHOAL_LOG_TASK_LAUNCHER)
        name = "launcher";
    (void)snprintf(plain, sizeof(plain), "%s/log/%s/%s", job->result_dir, task->name, name);
    (void)snprintf(path, cap, "%s", plain);
    /* An elastic driver's own prints lie apart; they are shown where the helper wrote nothing (training-contract 2.5).
     */
    if (task->driver && strcmp(name, "launcher") != 0 &&
        (kind == SHOAL_LOG_TASK_OUT || kind == SHOAL_LOG_TASK_ERR || !has_bytes(plain)))
        (void)snprintf(path, cap, "%s/log/%s/driver.%s", job->result_dir, task->name, name);
    return true;
}

/* The files of a request, in order. Elastic jobs: the drivers' only, except for one task's own log. */
static size_t log_files(const struct agent_job *job, enum shoal_log_kind kind, unsigned task_number,
                        char (*paths)[AGENT_PATH_BYTES + 160], size_t max)
{
    static struct task tasks[TASKS_MAX];
    size_t count = tasks_of(job->result_dir, tasks, TASKS_MAX);
    size_t used = 0;
    unsigned parts = kind == SHOAL_LOG_OUTERR ? 2 : 1;
    bool any_driver = count > 0 && tasks[0].driver;
    bool one_task = kind >= SHOAL_LOG_TASK_OUT;
    size_t number = 0;

    for (size_t i = 0; i < count && used + parts <= max; i++) {
        if (one_task) {
            if (!tasks[i].driver)
                number++;
            if (task_number == 0 ? !tasks[i].driver : (tasks[i].driver || number != task_number))
                continue;
        } else if (any_driver && !tasks[i].driver && kind != SHOAL_LOG_LAUNCHER) {
            continue;
        }
        for (unsigned part = 0; part < parts; part++)
            if (task_file(job, &tasks[i], kind, part, paths[used], sizeof(paths[0])))
                used++;
    }
    return used;
}

static size_t log_read_here(const struct agent_job *job, enum shoal_log_kind kind, unsigned task, bool ended,
                            uint64_t *cursor, uint8_t *bytes, size_t cap, bool *at_end)
{
    static char paths[TASKS_MAX][AGENT_PATH_BYTES + 160];
    size_t count = log_files(job, kind, task, paths, TASKS_MAX);
    size_t file = (size_t)(*cursor >> CURSOR_SHIFT);
    uint64_t offset = *cursor & ((1ull << CURSOR_SHIFT) - 1);
    size_t used = 0;

    *at_end = false;
    while (file < count && used < cap) {
        int fd = open(paths[file], O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? 0 : pread(fd, bytes + used, cap - used, (off_t)offset);

        if (fd >= 0)
            (void)close(fd);
        if (n > 0) {
            used += (size_t)n;
            offset += (uint64_t)n;
            continue;
        }
        if (file + 1 >= count)
            break;
        file++;
        offset = 0;
    }
    *at_end = ended && used < cap && file + 1 >= count;
    *cursor = (uint64_t)file << CURSOR_SHIFT | offset;
    return used;
}

/* ---- who has the files ---- */

/* The job with its result folder, if this node has it: as a guardian, or from the archive. Until the next call. */
static struct agent_job *files_of(struct agent *agent, struct shoal_job_id id)
{
    static struct agent_job kept;
    struct agent_job *job = agent_job_find(agent, id);
    struct shoal_sched_group_status status;
    struct shoal_sched_archived here;

    if (job != NULL && job->result_dir[0] != '\0' && shoal_sched_group_find(agent->sched, id, &status))
        return job;
    memset(&kept, 0, sizeof(kept));
    kept.id = id;
    shoal_job_id_text(id, kept.text);
    if (shoal_sched_archive_find(agent->sched, id, &here))
        agent_archive_folder(agent, here.user, id, kept.result_dir, sizeof(kept.result_dir));
    else if (shoal_sched_group_find(agent->sched, id, &status))
        agent_find_result_dir(agent, id, kept.result_dir);
    return kept.result_dir[0] == '\0' ? NULL : &kept;
}

/* True: this node. Else `node` is one that has them (zero: nobody known). */
static bool has_files(struct agent *agent, struct shoal_job_id id, struct shoal_node_id *node)
{
    static struct shoal_job_summary summary;

    *node = (struct shoal_node_id){ { 0 } };
    if (files_of(agent, id) != NULL)
        return true;
    if (backend_in_gossip(agent, id) && backend_summary(agent, id, &summary))
        *node = summary.leader;
    if (shoal_node_id_equal(*node, agent->identity.node) || !shoal_link_is_up(agent->link, *node)) {
        struct shoal_node_id nodes[8];
        size_t guardians;
        size_t count = agent_job_nodes(agent, id, nodes, 8, &guardians);

        for (size_t i = 0; i < count && i < 8; i++)
            if (shoal_link_is_up(agent->link, nodes[i])) {
                *node = nodes[i];
                break;
            }
    }
    return false;
}

/* What is asked of this node it may have as a host of the job too, in memory or on disk. Until the next call. */
static struct agent_job *serves_files(struct agent *agent, struct shoal_job_id id)
{
    static struct agent_job kept;
    struct agent_job *job = files_of(agent, id);

    if (job == NULL)
        job = agent_job_find(agent, id);
    if (job != NULL)
        return job;
    kept.id = id;
    shoal_job_id_text(id, kept.text);
    agent_find_result_dir(agent, id, kept.result_dir);
    return kept.result_dir[0] == '\0' ? NULL : &kept;
}

static bool job_ended(struct agent *agent, struct shoal_job_id id)
{
    static struct shoal_job_summary summary;

    return backend_summary(agent, id, &summary) && shoal_job_state_ended((enum shoal_job_state)summary.state);
}

struct log_call {
    struct agent *agent;
    struct shoal_job_id id;
    enum shoal_log_kind kind;
    unsigned task;
    uint64_t cursor;
    size_t max;
    uint64_t until_ns;
    shoal_backend_log_fn *done;
    void *arg;
    uv_timer_t timer;
};

static void on_log_closed(uv_handle_t *handle) { free(handle->data); }

static void log_end(struct log_call *call, enum shoal_err err, const char *text, struct shoal_view bytes,
                    uint64_t cursor, bool ended)
{
    struct shoal_msg msg;
    struct shoal_log_chunk chunk = { .bytes = bytes, .cursor = cursor, .ended = ended };

    (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
    call->done(call->arg, err, &msg, err == SHOAL_OK ? &chunk : NULL);
    uv_close((uv_handle_t *)&call->timer, on_log_closed);
}

static void log_try(struct log_call *call);

static void on_log_timer(uv_timer_t *timer) { log_try(timer->data); }

static void on_log_answer(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct log_call *call = arg;
    struct shoal_reader r = shoal_reader_init(answer);
    uint64_t cursor = shoal_get_u64(&r);
    bool ended = shoal_get_bool(&r);
    struct shoal_view bytes = shoal_get_bytes(&r, SHOAL_FRAME_BYTES_MAX);

    if (err == SHOAL_OK && !shoal_reader_done(&r))
        err = SHOAL_ERR_MALFORMED;
    if (err != SHOAL_OK && agent_now_ns() >= call->until_ns) {
        log_end(call, err, msg->text, bytes, 0, false);
    } else if (err == SHOAL_OK && (bytes.len > 0 || ended || agent_now_ns() >= call->until_ns)) {
        log_end(call, SHOAL_OK, "", bytes, cursor, ended);
    } else {
        if (err == SHOAL_OK)
            call->cursor = cursor;
        (void)uv_timer_start(&call->timer, on_log_timer, LOG_WAIT_STEP_MS, 0);
    }
}

static void log_try(struct log_call *call)
{
    struct shoal_node_id node;

    if (has_files(call->agent, call->id, &node)) {
        static uint8_t bytes[512 * SHOAL_KIB];
        bool ended;
        size_t len =
            log_read_here(files_of(call->agent, call->id), call->kind, call->task, job_ended(call->agent, call->id),
                          &call->cursor, bytes, call->max < sizeof(bytes) ? call->max : sizeof(bytes), &ended);

        if (len > 0 || ended || agent_now_ns() >= call->until_ns)
            log_end(call, SHOAL_OK, "", shoal_view_of(bytes, len), call->cursor, ended);
        else
            (void)uv_timer_start(&call->timer, on_log_timer, LOG_WAIT_STEP_MS, 0);
        return;
    }
    if (shoal_node_id_is_zero(node)) {
        if (agent_now_ns() >= call->until_ns)
            log_end(call, SHOAL_OK, "", (struct shoal_view){ 0 }, call->cursor, false); /* nothing has started yet */
        else
            (void)uv_timer_start(&call->timer, on_log_timer, LOG_WAIT_STEP_MS, 0);
    } else {
        uint8_t args[64];
        struct shoal_writer w = shoal_writer_init(args, sizeof(args));

        shoal_put_job_id(&w, call->id);
        shoal_put_u8(&w, (uint8_t)call->kind);
        shoal_put_u32(&w, call->task);
        shoal_put_u64(&w, call->cursor);
        shoal_put_u32(&w, (uint32_t)call->max);
        peer_ask(call->agent->calls, node, PEER_LOG_READ, shoal_writer_view(&w), READ_TIMEOUT_NS, on_log_answer, call);
    }
}

void backend_log_id(struct agent *agent, struct shoal_job_id id, const struct shoal_log_request *request,
                    shoal_backend_log_fn *done, void *arg)
{
    struct log_call *call = calloc(1, sizeof(*call));

    SHOAL_ASSERT(call != NULL);
    *call = (struct log_call){ .agent = agent,
                               .id = id,
                               .kind = request->kind,
                               .task = request->task,
                               .cursor = request->cursor,
                               .max = request->bytes_max,
                               .done = done,
                               .arg = arg,
                               .until_ns = agent_now_ns() + request->wait_ms * SHOAL_MS };
    (void)uv_timer_init(&agent->loop, &call->timer);
    call->timer.data = call;
    log_try(call);
}

static void serve_log(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct agent *agent = arg;
    struct shoal_reader r = shoal_reader_init(args);
    struct shoal_job_id id = shoal_get_job_id(&r);
    enum shoal_log_kind kind = (enum shoal_log_kind)shoal_get_enum(&r, SHOAL_LOG_TASK_LAUNCHER + 1);
    uint32_t task = shoal_get_u32(&r);
    uint64_t cursor = shoal_get_u64(&r);
    uint32_t max = shoal_get_u32(&r);
    const struct agent_job *job = r.failed ? NULL : serves_files(agent, id);
    static uint8_t bytes[512 * SHOAL_KIB];
    static uint8_t answer[512 * SHOAL_KIB + 32];
    struct shoal_writer w = shoal_writer_init(answer, sizeof(answer));
    size_t len = 0;
    bool ended = job_ended(agent, id);

    (void)from;
    if (job != NULL && job->result_dir[0] != '\0')
        len = log_read_here(job, kind, task, ended, &cursor, bytes, max < sizeof(bytes) ? max : sizeof(bytes), &ended);
    shoal_put_u64(&w, cursor);
    shoal_put_bool(&w, ended);
    shoal_put_bytes(&w, shoal_view_of(bytes, len));
    peer_answer(question, SHOAL_OK, "", shoal_writer_view(&w));
}

/* ---- results ---- */

struct result_file {
    struct shoal_result_file shown;
    char path[256];
    struct shoal_hash hash;
    int fd; /* -1: not materialised yet */
};

struct shoal_result {
    struct agent *agent;
    struct shoal_job_id job;
    struct result_file *files;
    struct shoal_result_file *shown;
    size_t count;
};

struct result_call {
    struct agent *agent;
    struct shoal_job_id id;
    shoal_backend_result_fn *done;
    void *arg;
};

static void result_end(struct result_call *call, enum shoal_err err, const char *text, struct shoal_result *result)
{
    struct shoal_msg msg;

    (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
    call->done(call->arg, err, &msg, result, result == NULL ? NULL : result->shown, result == NULL ? 0 : result->count);
    free(call);
}

static size_t lines_in(struct shoal_view bytes)
{
    size_t lines = 0;

    for (size_t i = 0; i < bytes.len; i++)
        lines += bytes.bytes[i] == '\n' ? 1 : 0;
    return lines;
}

static struct shoal_result *result_of(struct agent *agent, struct shoal_job_id id, struct shoal_view bytes)
{
    struct shoal_result *result = calloc(1, sizeof(*result));
    size_t lines = lines_in(bytes);
    char *copy = malloc(bytes.len + 1);
    char *at = copy;

    SHOAL_ASSERT(result != NULL && copy != NULL);
    if (bytes.len > 0)
        memcpy(copy, bytes.bytes, bytes.len);
    copy[bytes.len] = '\0';
    result->agent = agent;
    result->job = id;
    result->files = calloc(lines + 1, sizeof(*result->files));
    result->shown = calloc(lines + 1, sizeof(*result->shown));
    SHOAL_ASSERT(result->files != NULL && result->shown != NULL);
    for (size_t i = 0; i < lines; i++) {
        struct result_file *file = &result->files[result->count];
        char *end = strchr(at, '\n');
        unsigned long long size;
        unsigned long long mtime;
        char hex[SHOAL_HASH_TEXT_BYTES];
        char mode;

        *end = '\0';
        if (sscanf(at, "%64s %llu %llu %c %255[^\n]", hex, &size, &mtime, &mode, file->path) == 5 &&
            shoal_hex_parse(hex, file->hash.bytes, 32)) {
            file->fd = -1;
            result->shown[result->count] = (struct shoal_result_file){
                .path = file->path, .bytes = size, .mtime_s = (uint32_t)mtime, .executable = mode == 'x'
            };
            result->count++;
        }
        at = end + 1;
    }
    free(copy);
    return result;
}

static void on_result_manifest(void *arg, enum shoal_err err, const char *text, struct shoal_view bytes)
{
    struct result_call *call = arg;

    result_end(call, err, text, err == SHOAL_OK ? result_of(call->agent, call->id, bytes) : NULL);
}

static void on_result_facts(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct result_call *call = arg;
    struct shoal_job_facts *facts = calloc(1, sizeof(*facts));
    struct shoal_msg msg = { "" };
    struct shoal_hash hash = { { 0 } };

    SHOAL_ASSERT(facts != NULL);
    (void)snprintf(msg.text, sizeof(msg.text), "%s", reply->u.reply.text);
    if (err == SHOAL_OK)
        err = shoal_job_facts_decode(reply->u.reply.bytes, facts);
    if (err == SHOAL_OK && !shoal_job_state_ended((enum shoal_job_state)facts->state))
        err = shoal_fail(&msg, SHOAL_ERR_INVALID, "the job has not ended yet (%s); its result comes then",
                         shoal_job_state_name((enum shoal_job_state)facts->state));
    if (err == SHOAL_OK)
        hash = shoal_hash_is_zero(facts->result) ? facts->files : facts->result;
    free(facts);
    if (err != SHOAL_OK)
        result_end(call, err, msg.text, NULL);
    else if (shoal_hash_is_zero(hash))
        result_end(call, SHOAL_OK, "", result_of(call->agent, call->id, (struct shoal_view){ 0 }));
    else
        agent_read_blob(call->agent, call->id, hash, 4 * SHOAL_MIB, on_result_manifest, call);
}

void backend_result_id(struct agent *agent, struct shoal_job_id id, shoal_backend_result_fn *done, void *arg)
{
    struct shoal_sched_request request = {
        .kind = SHOAL_SCHED_GET, .job = id, .linearizable = true, .deadline_ms = 5000
    };
    struct result_call *call = calloc(1, sizeof(*call));

    SHOAL_ASSERT(call != NULL);
    *call = (struct result_call){ .agent = agent, .id = id, .done = done, .arg = arg };
    agent_request(agent, &request, on_result_facts, call);
}

struct read_call {
    struct shoal_result *result;
    size_t file;
    uint64_t offset;
    size_t max;
    shoal_backend_bytes_fn *done;
    void *arg;
};

static void read_now(struct read_call *call)
{
    static uint8_t bytes[SHOAL_MIB];
    struct shoal_msg msg = { "" };
    ssize_t n = pread(call->result->files[call->file].fd, bytes, call->max < sizeof(bytes) ? call->max : sizeof(bytes),
                      (off_t)call->offset);
    enum shoal_err err =
        n < 0 ? shoal_fail(&msg, SHOAL_ERR_STORAGE, "cannot read the result: %s", strerror(errno)) : SHOAL_OK;
    struct read_call ended = *call;

    free(call);
    ended.done(ended.arg, err, &msg, shoal_view_of(bytes, n < 0 ? 0 : (size_t)n));
}

static void on_result_file(void *arg, enum shoal_err err, const char *path)
{
    struct read_call *call = arg;
    struct result_file *file = &call->result->files[call->file];

    if (err == SHOAL_OK && file->fd < 0)
        file->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (err != SHOAL_OK || file->fd < 0) {
        struct shoal_msg msg;
        struct read_call ended = *call;

        (void)snprintf(msg.text, sizeof(msg.text), "%s", err != SHOAL_OK ? path : strerror(errno));
        free(call);
        ended.done(ended.arg, err != SHOAL_OK ? err : SHOAL_ERR_STORAGE, &msg, (struct shoal_view){ 0 });
        return;
    }
    read_now(call);
}

void backend_result_read(void *ctx, struct shoal_result *result, size_t file, uint64_t offset, size_t bytes_max,
                         shoal_backend_bytes_fn *done, void *arg)
{
    struct agent *agent = ctx;
    struct read_call *call = calloc(1, sizeof(*call));

    SHOAL_ASSERT(call != NULL && file < result->count);
    *call = (struct read_call){
        .result = result, .file = file, .offset = offset, .max = bytes_max, .done = done, .arg = arg
    };
    if (result->files[file].fd >= 0)
        read_now(call);
    else
        agent_materialise(agent, result->job, result->files[file].hash, on_result_file, call);
}

void backend_result_close(void *ctx, struct shoal_result *result)
{
    (void)ctx;
    for (size_t i = 0; i < result->count; i++)
        if (result->files[i].fd >= 0)
            (void)close(result->files[i].fd);
    free(result->files);
    free(result->shown);
    free(result);
}

/* ---- ledger ---- */

struct ledger_call {
    struct agent *agent;
    struct shoal_job_id id;
    shoal_backend_text_fn *done;
    void *arg;
};

static void on_ledger_answer(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct ledger_call call = *(struct ledger_call *)arg;

    free(arg);
    call.done(call.arg, err, msg, answer);
}

/* An archived job's is what its last leader found. */
static enum shoal_err audit(struct agent *agent, struct agent_job *job, struct shoal_buf *json)
{
    char path[AGENT_PATH_BYTES + 16];
    struct shoal_msg msg;

    if (job->used)
        return agent_ledger_audit(agent, job, json);
    agent_job_folder(agent, job->id, path, AGENT_PATH_BYTES);
    memcpy(path + strlen(path), "/audit", 7);
    return shoal_file_read(path, 4 * SHOAL_MIB, json, &msg);
}

static void ledger_read(struct ledger_call *call)
{
    struct agent *agent = call->agent;
    struct ledger_call ended = *call;
    struct shoal_msg msg = { "" };
    struct shoal_node_id node;
    struct shoal_buf json = { 0 };
    enum shoal_err err;

    if (has_files(agent, call->id, &node)) {
        free(call);
        err = audit(agent, files_of(agent, ended.id), &json);
        ended.done(ended.arg, err, &msg, shoal_buf_view(&json));
        shoal_buf_deinit(&json);
    } else if (shoal_node_id_is_zero(node)) {
        free(call);
        err = shoal_fail(&msg, SHOAL_ERR_UNREACHABLE, "no host that keeps this job's ledger is reachable from here");
        ended.done(ended.arg, err, &msg, (struct shoal_view){ 0 });
    } else {
        peer_ask(agent->calls, node, PEER_LEDGER, shoal_view_of(call->id.bytes, sizeof(call->id.bytes)),
                 READ_TIMEOUT_NS, on_ledger_answer, call);
    }
}

void backend_ledger_id(struct agent *agent, struct shoal_job_id id, shoal_backend_text_fn *done, void *arg)
{
    struct ledger_call *call = calloc(1, sizeof(*call));

    SHOAL_ASSERT(call != NULL);
    *call = (struct ledger_call){ .agent = agent, .id = id, .done = done, .arg = arg };
    ledger_read(call);
}

static void serve_ledger(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct agent *agent = arg;
    struct shoal_reader r = shoal_reader_init(args);
    struct shoal_job_id id = shoal_get_job_id(&r);
    struct agent_job *job = shoal_reader_done(&r) ? serves_files(agent, id) : NULL;
    struct shoal_buf json = { 0 };
    enum shoal_err err = job == NULL ? SHOAL_ERR_NOT_FOUND : audit(agent, job, &json);

    (void)from;
    peer_answer(question, err, err == SHOAL_OK ? "" : "this host keeps no ledger of the job", shoal_buf_view(&json));
    shoal_buf_deinit(&json);
}

/* ---- texts ---- */

__attribute__((format(printf, 2, 3))) static enum shoal_err put(struct shoal_buf *buf, const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return shoal_buf_append(buf, text, strlen(text));
}

static enum shoal_err put_quoted(struct shoal_buf *buf, const char *text, size_t len)
{
    enum shoal_err err = shoal_buf_append(buf, "\"", 1);

    for (size_t i = 0; i < len && err == SHOAL_OK; i++) {
        unsigned char c = (unsigned char)text[i];

        if (c == '"' || c == '\\')
            err = put(buf, "\\%c", c);
        else if (c < 0x20)
            err = put(buf, "\\u%04x", c);
        else
            err = shoal_buf_append(buf, &c, 1);
    }
    return err == SHOAL_OK ? shoal_buf_append(buf, "\"", 1) : err;
}

/* {"job": id, "why": [line, ...]} */
enum shoal_err backend_why_json(struct shoal_job_id id, struct shoal_view text, struct shoal_buf *json)
{
    char id_text[SHOAL_JOB_ID_TEXT_BYTES];
    const char *at = (const char *)text.bytes;
    size_t left = text.len;
    bool first = true;
    enum shoal_err err;

    shoal_job_id_text(id, id_text);
    err = put(json, "{\"job\":\"%s\",\"why\":[", id_text);
    while (left > 0 && err == SHOAL_OK) {
        const char *end = memchr(at, '\n', left);
        size_t len = end == NULL ? left : (size_t)(end - at);

        if (len > 0) {
            if (!first)
                err = put(json, ",");
            first = false;
            if (err == SHOAL_OK)
                err = put_quoted(json, at, len);
        }
        at += len + (end == NULL ? 0 : 1);
        left -= len + (end == NULL ? 0 : 1);
    }
    return err == SHOAL_OK ? put(json, "]}") : err;
}

enum shoal_err backend_metrics(void *ctx, struct shoal_buf *text)
{
    struct agent *agent = ctx;
    struct shoal_swim_stats swim;
    struct shoal_sched_stats sched;
    const struct shoal_link_stats *link = shoal_link_stats(agent->link);
    const struct shoal_store_stats *store = shoal_store_stats(agent->store);
    const struct shoal_datagram_stats *datagram = shoal_datagram_stats(agent->datagram);
    struct {
        const char *name;
        uint64_t value;
    } rows[32];
    unsigned count = 0;
    enum shoal_err err = SHOAL_OK;

    shoal_swim_stats(membership_swim(agent->membership), &swim);
    shoal_sched_stats(agent->sched, &sched);
#define ROW(n, v) (rows[count].name = (n), rows[count++].value = (v))
    ROW("shoal_members_live", swim.live);
    ROW("shoal_members_suspect", swim.suspects);
    ROW("shoal_gossip_records", swim.records);
    ROW("shoal_gossip_datagrams_sent_total", swim.sent_datagrams);
    ROW("shoal_gossip_deaths_total", swim.deaths);
    ROW("shoal_datagrams_unopened_total", datagram->drop_unopened);
    ROW("shoal_datagrams_replayed_total", datagram->drop_replayed);
    ROW("shoal_links_up", link->peers_up);
    ROW("shoal_link_refused_total", link->drop_refused);
    ROW("shoal_link_malformed_total", link->drop_malformed);
    ROW("shoal_groups", sched.groups);
    ROW("shoal_groups_led", sched.groups_led);
    ROW("shoal_terms_led_total", sched.terms_led);
    ROW("shoal_requests_total", sched.requests);
    ROW("shoal_requests_refused_total", sched.requests_refused_full);
    ROW("shoal_foundings_total", sched.foundings);
    ROW("shoal_groups_archived_total", sched.archived);
    ROW("shoal_archive_records", shoal_sched_archive_count(agent->sched));
    ROW("shoal_digest_mismatches_total", sched.digest_mismatches);
    ROW("shoal_store_commits_total", store->commits);
    ROW("shoal_store_bytes_used", store->used_bytes);
    ROW("shoal_store_flush_last_ns", store->flush_last_ns);
    ROW("shoal_loop_lag_ns", agent->loop_lag_ns);
    ROW("shoal_loop_turn_longest_ns", agent->turn_longest_ns);
    ROW("shoal_loop_turns_late_total", agent->turns_late);
#undef ROW
    for (unsigned i = 0; i < count && err == SHOAL_OK; i++)
        err = put(text, "%s %llu\n", rows[i].name, (unsigned long long)rows[i].value);
    return err; /* the end mark comes behind the server's own lines */
}

static enum shoal_err debug_groups(struct agent *agent, struct shoal_buf *json)
{
    enum shoal_err err = put(json, "[");

    for (size_t i = 0; i < shoal_sched_group_count(agent->sched) && err == SHOAL_OK; i++) {
        struct shoal_sched_group_status s;
        char id[SHOAL_JOB_ID_TEXT_BYTES];
        char leader[64];

        if (!shoal_sched_group_at(agent->sched, i, &s))
            continue;
        shoal_job_id_text(s.id, id);
        err = put(json,
                  "%s{\"group\":\"%s\",\"leads\":%s,\"term\":%llu,\"leader\":\"%s\",\"commit\":%llu,\"applied\":%llu,"
                  "\"last\":%llu,\"voters\":%u,\"learners\":%u,\"asleep\":%s,\"guardians\":[",
                  i == 0 ? "" : ",", shoal_job_id_is_mesh(s.id) ? "mesh" : id, s.leads ? "true" : "false",
                  (unsigned long long)s.term, backend_node_name(agent, s.leader, leader, sizeof(leader)),
                  (unsigned long long)s.commit, (unsigned long long)s.applied, (unsigned long long)s.last, s.voters,
                  s.learners, s.asleep ? "true" : "false");
        for (unsigned j = 0; j < (unsigned)s.voters + s.learners && j < SHOAL_GROUP_NODES_MAX && err == SHOAL_OK; j++)
            err = put(json, "%s\"%s\"", j == 0 ? "" : ",",
                      backend_node_name(agent, s.guardians[j], leader, sizeof(leader)));
        if (err == SHOAL_OK)
            err = put(json, "]}");
    }
    return err == SHOAL_OK ? put(json, "]") : err;
}

/* The archive's records on this node. */
static enum shoal_err debug_archive(struct agent *agent, struct shoal_buf *json)
{
    enum shoal_err err = put(json, "[");
    struct shoal_sched_archived here;
    char id[SHOAL_JOB_ID_TEXT_BYTES];
    unsigned shown = 0;

    for (size_t i = 0; i < shoal_sched_archive_count(agent->sched) && err == SHOAL_OK; i++) {
        if (!shoal_sched_archive_at(agent->sched, i, &here))
            continue;
        shoal_job_id_text(here.id, id);
        err = put(json, "%s{\"job\":\"%s\",\"final\":%s,\"bytes\":%zu}", shown++ == 0 ? "" : ",", id,
                  here.final ? "true" : "false", here.facts.len + here.summary.len);
    }
    return err == SHOAL_OK ? put(json, "]") : err;
}

/* Workers of this host as their control pages show them. */
static enum shoal_err debug_epochs(struct agent *agent, struct shoal_buf *json)
{
    enum shoal_err err = put(json, "[");
    bool first = true;

    for (unsigned i = 0; i < AGENT_JOBS_MAX && err == SHOAL_OK; i++) {
        const struct agent_job *job = agent->jobs[i];
        const struct shoal_control_page *page =
            job == NULL || !job->opened ? NULL : workers_page(agent->workers, job->id);

        if (page == NULL)
            continue;
        err = put(json, "%s{\"job\":\"%s\",\"published\":%llu,\"revoked\":%llu,\"workers\":[", first ? "" : ",",
                  job->text, (unsigned long long)page->published, (unsigned long long)page->revoked);
        first = false;
        for (unsigned slot = 0, shown = 0; slot < agent->settings.slots && err == SHOAL_OK; slot++) {
            const struct shoal_control_slot *s = &page->slots[slot];

            if (s->worker_id == 0)
                continue;
            err = put(
                json,
                "%s{\"slot\":%u,\"worker\":%llu,\"pid\":%d,\"epoch\":%u,\"k\":%u,\"started\":%llu,\"complete\":%llu,"
                "\"applied\":%llu,\"minibatches\":%llu,\"updates\":%llu,\"activity\":%u,\"pause_us\":%llu}",
                shown++ == 0 ? "" : ",", slot, (unsigned long long)s->worker_id, (int)s->pid,
                (unsigned)(s->epoch_word >> 32), (unsigned)s->epoch_word, (unsigned long long)s->started_step,
                (unsigned long long)s->complete_step, (unsigned long long)s->applied_step,
                (unsigned long long)s->minibatches, (unsigned long long)s->updates, (unsigned)s->activity,
                (unsigned long long)s->join_pause_ns / 1000);
        }
        if (err == SHOAL_OK)
            err = put(json, "]}");
    }
    return err == SHOAL_OK ? put(json, "]") : err;
}

static enum shoal_err debug_leases(struct agent *agent, struct shoal_buf *json)
{
    enum shoal_err err = put(json, "[");
    unsigned shown = 0;

    for (unsigned i = 0; i < AGENT_JOBS_MAX && err == SHOAL_OK; i++)
        for (unsigned j = 0; agent->jobs[i] != NULL && j < SHOAL_RUNNER_WORKERS_MAX && err == SHOAL_OK; j++) {
            const struct agent_run *run = &agent->jobs[i]->runs[j];

            if (!run->used)
                continue;
            err = put(json,
                      "%s{\"job\":\"%s\",\"worker\":%llu,\"slot\":%d,\"role\":%u,\"generation\":%llu,\"task\":\"%s\"}",
                      shown++ == 0 ? "" : ",", agent->jobs[i]->text, (unsigned long long)run->worker_id, (int)run->slot,
                      run->role, (unsigned long long)run->lease_generation, run->task);
        }
    return err == SHOAL_OK ? put(json, "]") : err;
}

struct link_rows {
    struct agent *agent;
    struct shoal_buf *json;
    enum shoal_err err;
    unsigned count;
};

static void link_row(void *arg, const struct shoal_link_peer *peer)
{
    struct link_rows *rows = arg;
    char name[64];
    char address[SHOAL_ADDRESS_TEXT_BYTES];

    shoal_address_text(peer->address, address);
    if (rows->err == SHOAL_OK)
        rows->err = put(rows->json, "%s{\"node\":\"%s\",\"address\":\"%s\",\"dialled\":%s}",
                        rows->count++ == 0 ? "" : ",", backend_node_name(rows->agent, peer->node, name, sizeof(name)),
                        address, peer->dialled ? "true" : "false");
}

enum shoal_err backend_debug(void *ctx, const char *name, struct shoal_buf *json)
{
    struct agent *agent = ctx;

    if (strcmp(name, "groups") == 0)
        return debug_groups(agent, json);
    if (strcmp(name, "archive") == 0)
        return debug_archive(agent, json);
    if (strcmp(name, "epochs") == 0)
        return debug_epochs(agent, json);
    if (strcmp(name, "leases") == 0)
        return debug_leases(agent, json);
    if (strcmp(name, "links") == 0) {
        struct link_rows rows = { .agent = agent, .json = json, .err = put(json, "[") };

        shoal_link_each(agent->link, link_row, &rows);
        return rows.err == SHOAL_OK ? put(json, "]") : rows.err;
    }
    return SHOAL_ERR_NOT_FOUND;
}

void agent_read_create(struct agent *agent)
{
    peer_serve(agent->calls, PEER_LOG_READ, serve_log, agent);
    peer_serve(agent->calls, PEER_LEDGER, serve_ledger, agent);
}
