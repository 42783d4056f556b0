/* Logs of a job, and who has its files.
 *
 * The result folder is on every guardian (agent_tree.c), so a guardian reads its own disk; any other node asks one.
 *
 * A log's cursor is (file number << 40 | offset in it): files of a job are numbered in the order in which they appeared
 * here, drivers first, and a file is left only when the job has ended or a later driver has begun.
 *
 * What a process wrote last is pushed when it ends, beside the word of its end and not before it. So after a job's end its log
 * is whole only where its one process ran: for SETTLE_MS who asks elsewhere waits, and for LATELY_MS a guardian asks the job's
 * hosts first, since one that has a large folder to look through takes longer. */
#include "shoal/sched_look.h"
#include "shoal/job_facts.h"
#include "agent_backend.h"
#include "backend_files.h"
#include "log_merged.h"
#include "shoal/below.h"
#include "shoal/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/banned.h"

#define TASKS_MAX 256
#define LOOKS_MAX (4 * TASKS_MAX)
#define ORDER_BYTES_MAX (TASKS_MAX * (sizeof(((struct task *)0)->name) + 1))
#define LOG_WAIT_STEP_MS 100
#define LOG_WAITS_STEP 32u /* that are looked after in a step: with more of them the step is longer */
#define LOG_TURN_NS (10 * SHOAL_MS) /* of a turn of the loop, for looks at logs; then the next ones wait for the next turn */
#define SETTLE_MS 300u
#define LATELY_MS 60000u
#define HOSTS_WAIT_MS 5000u
#define ASKS_MAX 2 /* of the job's hosts, for one reader */
#define AWAY_TEXT "the end of this log is still on its way from the host that wrote it; ask again in a few seconds"
#define TASK_ATTEMPTS_MAX 8 /* of a task of an array whose logs are looked for */
#define READ_TIMEOUT_NS (8 * SHOAL_S) /* longer than that host waits for others (agent_tree_await) */
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

/* The task of that name goes behind those that are placed already. */
static bool place(struct task *tasks, size_t count, size_t placed, const char *name, size_t name_len)
{
    for (size_t i = placed; i < count; i++) {
        struct task task = tasks[i];

        if (strlen(task.name) != name_len || memcmp(task.name, name, name_len) != 0)
            continue;
        memmove(&tasks[placed + 1], &tasks[placed], (i - placed) * sizeof(*tasks));
        tasks[placed] = task;
        return true;
    }
    return false;
}

/* The order that the archive keeps where a host made the files from it: they were all born at one time. */
static void order_of(const char *result_dir, struct task *tasks, size_t count)
{
    struct shoal_buf order = { 0 };
    struct shoal_msg msg;
    size_t placed = 0, at = 0;

    if (shoal_disk_read_below(result_dir, "log/.order", ORDER_BYTES_MAX, &order, &msg) != SHOAL_OK)
        return; /* there is none, as a rule */
    while (at < order.len) {
        const char *line = (const char *)order.bytes + at;
        const char *end = memchr(line, '\n', order.len - at);
        size_t len = end == NULL ? order.len - at : (size_t)(end - line);

        placed += place(tasks, count, placed, line, len);
        at += len + 1;
    }
    shoal_buf_deinit(&order);
}

static bool task_add(struct task *tasks, size_t *count, int log, const char *name)
{
    struct task *task = &tasks[*count];
    struct statx facts;

    if (strlen(name) >= sizeof(task->name) || statx(log, name, AT_SYMLINK_NOFOLLOW, STATX_BTIME, &facts) != 0)
        return false;
    memcpy(task->name, name, strlen(name) + 1);
    task->driver = strstr(name, "-task0-") != NULL;
    task->born_ns = (uint64_t)facts.stx_btime.tv_sec * SHOAL_S + facts.stx_btime.tv_nsec;
    (*count)++;
    return true;
}

static bool has_task(const struct task *tasks, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(tasks[i].name, name) == 0)
            return true;
    return false;
}

/* Processes that have a number have known names, "app.<job>-0" and on; `last`: of one without that has run here, or "". Of the first
 * LOOKS_MAX names in log/ the rest: each reader looks ten times a second, and the folder is the job's to write into. */
static size_t tasks_of(const char *result_dir, const char *last, struct task *tasks, size_t max)
{
    int fd = shoal_open_below(result_dir, "log", O_RDONLY | O_DIRECTORY);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    const char *job = strrchr(result_dir, '/');
    const struct dirent *entry;
    char name[sizeof(tasks[0].name)];
    size_t count = 0;

    if (dir == NULL && fd >= 0)
        (void)close(fd);
    for (bool more = dir != NULL && job != NULL; more && count < max;) {
        (void)snprintf(name, sizeof(name), "app.%.60s-%zu", job + 1, count);
        more = task_add(tasks, &count, dirfd(dir), name);
    }
    (void)snprintf(name, sizeof(name), "app.%.90s", last);
    if (dir != NULL && last[0] != '\0' && count < max && !has_task(tasks, count, name))
        (void)task_add(tasks, &count, dirfd(dir), name);
    for (unsigned looks = 0; dir != NULL && count < max && looks < LOOKS_MAX && (entry = readdir(dir)) != NULL; looks++)
        if (strncmp(entry->d_name, "app.", 4) == 0 && !has_task(tasks, count, entry->d_name))
            (void)task_add(tasks, &count, dirfd(dir), entry->d_name);
    if (dir != NULL)
        (void)closedir(dir);
    qsort(tasks, count, sizeof(*tasks), by_birth);
    order_of(result_dir, tasks, count);
    return count;
}

size_t agent_log_tasks(const char *result_dir, char (*names)[96], size_t max)
{
    struct task *tasks = calloc(TASKS_MAX, sizeof(*tasks));
    size_t count = 0;

    if (tasks != NULL)
        count = tasks_of(result_dir, "", tasks, max < TASKS_MAX ? max : TASKS_MAX);
    for (size_t i = 0; i < count; i++)
        memcpy(names[i], tasks[i].name, sizeof(names[0]));
    free(tasks);
    return count;
}

/* One log of a job, relative to its result folder. */
struct log_file {
    char path[160];
    char err_path[160]; /* "": it is one file; else both streams in their order */
};

static bool has_bytes(const struct agent_job *job, const char *path)
{
    int fd = shoal_open_below(job->result_dir, path, O_RDONLY);
    struct stat facts;
    bool any = fd >= 0 && fstat(fd, &facts) == 0 && facts.st_size > 0;

    if (fd >= 0)
        (void)close(fd);
    return any;
}

/* The path of a task's stream. An elastic driver's own prints lie apart; they are shown where the helper wrote nothing
 * (training-contract 2.5). */
static void stream_path(const struct agent_job *job, const struct task *task, const char *name, bool own, char *path,
                        size_t cap)
{
    (void)snprintf(path, cap, "log/%.95s/%s", task->name, name);
    if (task->driver && (own || !has_bytes(job, path)))
        (void)snprintf(path, cap, "log/%.95s/driver.%s", task->name, name);
}

/* The files of `kind` of one task; returns how many. */
static size_t task_files(const struct agent_job *job, const struct task *task, enum shoal_log_kind kind,
                         struct log_file *files, size_t max)
{
    bool own = kind == SHOAL_LOG_TASK_OUT || kind == SHOAL_LOG_TASK_ERR || kind == SHOAL_LOG_TASK_OUTERR;
    struct log_file *file = &files[0];

    if (max == 0)
        return 0;
    *file = (struct log_file){ .path = "" };
    switch (kind) {
    case SHOAL_LOG_LAUNCHER:
    case SHOAL_LOG_TASK_LAUNCHER:
        (void)snprintf(file->path, sizeof(file->path), "log/%.95s/launcher", task->name);
        break;
    case SHOAL_LOG_ERR:
    case SHOAL_LOG_TASK_ERR: stream_path(job, task, "stderr", own, file->path, sizeof(file->path)); break;
    case SHOAL_LOG_OUTERR:
    case SHOAL_LOG_TASK_OUTERR:
        stream_path(job, task, "stdout", own, file->path, sizeof(file->path));
        stream_path(job, task, "stderr", own, file->err_path, sizeof(file->err_path));
        break;
    case SHOAL_LOG_OUT:
    case SHOAL_LOG_TASK_OUT: stream_path(job, task, "stdout", own, file->path, sizeof(file->path)); break;
    }
    return 1;
}

static bool has_task_logs(const struct agent_job *job)
{
    int fd = shoal_open_below(job->result_dir, "log/tasks", O_RDONLY | O_DIRECTORY);

    if (fd >= 0)
        (void)close(fd);
    return fd >= 0;
}

/* Of one task of an array; it has no launcher's log, since the table of tasks says what there would be. */
static size_t array_files(enum shoal_log_kind kind, unsigned task_number, struct log_file *files, size_t max)
{
    bool err_only = kind == SHOAL_LOG_ERR || kind == SHOAL_LOG_TASK_ERR;
    bool both = kind == SHOAL_LOG_OUTERR || kind == SHOAL_LOG_TASK_OUTERR;
    size_t used = 0;

    if (kind == SHOAL_LOG_LAUNCHER || kind == SHOAL_LOG_TASK_LAUNCHER)
        return 0;
    for (uint32_t attempt = 1; attempt <= TASK_ATTEMPTS_MAX && used < max; attempt++) {
        struct log_file *file = &files[used++];

        *file = (struct log_file){ .path = "" };
        agent_task_log(task_number, attempt, err_only ? "stderr" : "stdout", file->path, sizeof(file->path));
        if (both)
            agent_task_log(task_number, attempt, "stderr", file->err_path, sizeof(file->err_path));
    }
    return used;
}

/* Why an elastic job failed stands in what an engine wrote on stderr: at the job's end, when no other driver comes, it
 * follows the drivers' own. */
static size_t engine_errors(const struct agent_job *job, const struct task *tasks, size_t count, struct log_file *files,
                            size_t max)
{
    size_t used = 0;

    for (size_t i = 0; i < count && used < max; i++) {
        struct log_file *file = &files[used];

        *file = (struct log_file){ .path = "" };
        stream_path(job, &tasks[i], "stderr", false, file->path, sizeof(file->path));
        if (!tasks[i].driver && has_bytes(job, file->path))
            used++;
    }
    return used;
}

/* The files of a request, in order. Of elastic jobs the drivers' only and what engines wrote on stderr, except for one
 * task's own log. */
static size_t log_files(const struct agent_job *job, enum shoal_log_kind kind, unsigned task_number, bool ended,
                        struct log_file *files, size_t max)
{
    static struct task tasks[TASKS_MAX];
    size_t count = tasks_of(job->result_dir, job->last_task, tasks, TASKS_MAX);
    size_t used = 0;
    bool any_driver = count > 0 && tasks[0].driver;
    bool one_task = kind >= SHOAL_LOG_TASK_OUT;
    size_t number = 0;

    if (task_number != SHOAL_ARRAY_NONE && has_task_logs(job))
        return array_files(kind, task_number, files, max);
    if (task_number == SHOAL_ARRAY_NONE)
        task_number = 0;

    for (size_t i = 0; i < count && used < max; i++) {
        if (one_task) {
            if (!tasks[i].driver)
                number++;
            if (task_number == 0 ? !tasks[i].driver : (tasks[i].driver || number != task_number))
                continue;
        } else if (any_driver && !tasks[i].driver && kind != SHOAL_LOG_LAUNCHER) {
            continue;
        }
        used += task_files(job, &tasks[i], kind, &files[used], max - used);
    }
    if (ended && any_driver && (kind == SHOAL_LOG_ERR || kind == SHOAL_LOG_OUTERR))
        used += engine_errors(job, tasks, count, &files[used], max - used);
    return used;
}

static size_t read_one(const struct agent_job *job, const char *path, uint64_t *offset, uint8_t *bytes, size_t cap)
{
    int fd = shoal_open_below(job->result_dir, path, O_RDONLY);
    ssize_t n = fd < 0 ? 0 : pread(fd, bytes, cap, (off_t)*offset);

    if (fd >= 0)
        (void)close(fd);
    *offset += n > 0 ? (uint64_t)n : 0;
    return n > 0 ? (size_t)n : 0;
}

/* A process of a job that has ended may still be writing: its driver says what an engine raised after the job's end. */
static bool has_runs(const struct agent_job *job)
{
    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++)
        if (job->runs[i].used)
            return true;
    return false;
}

static size_t log_read_here(const struct agent_job *job, enum shoal_log_kind kind, unsigned task, bool ended,
                            uint64_t *cursor, uint8_t *bytes, size_t cap, bool *at_end)
{
    static struct log_file files[TASKS_MAX];
    size_t count = log_files(job, kind, task, ended, files, TASKS_MAX);
    size_t file = (size_t)(*cursor >> CURSOR_SHIFT);
    uint64_t offset = *cursor & ((1ull << CURSOR_SHIFT) - 1);
    size_t used = 0;
    bool more = false;

    while (file < count && used < cap) {
        /* A later driver, or the end of the job, says that this log is whole. */
        bool whole = ended || file + 1 < count;
        size_t n = files[file].err_path[0] == '\0'
                       ? read_one(job, files[file].path, &offset, bytes + used, cap - used)
                       : log_merged_read(job->result_dir, files[file].path, files[file].err_path, whole, &offset,
                                         bytes + used, cap - used, &more);

        used += n;
        if (more)
            break;
        if (n > 0)
            continue;
        if (file + 1 >= count)
            break;
        file++;
        offset = 0;
    }
    *at_end = ended && !more && used < cap && file + 1 >= count;
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
    bool guards = shoal_sched_group_find(agent->sched, id, &status) || shoal_sched_parked_find(agent->sched, id);

    if (job != NULL && job->result_dir[0] != '\0' && guards)
        return job;
    memset(&kept, 0, sizeof(kept));
    kept.id = id;
    shoal_job_id_text(id, kept.text);
    if (agent_archived(agent, id, &here))
        agent_archive_folder(agent, here.user, id, kept.result_dir, sizeof(kept.result_dir));
    else if (guards)
        agent_find_result_dir(agent, id, kept.result_dir);
    return kept.result_dir[0] == '\0' ? NULL : &kept;
}

/* True: this node. Else `node` is one that has them (zero: nobody known). */
bool backend_has_files(struct agent *agent, struct shoal_job_id id, struct shoal_node_id *node)
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

        if (count == 0) /* nobody else has a part in it */
            *node = (struct shoal_node_id){ { 0 } };
        for (size_t i = 0; i < count && i < 8; i++)
            if (shoal_link_is_up(agent->link, nodes[i])) {
                *node = nodes[i];
                break;
            }
    }
    return false;
}

/* The log that this node is asked for it may have as a host of the job too, in memory or on disk. Until the next call. */
struct agent_job *backend_serves_files(struct agent *agent, struct shoal_job_id id)
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
    struct shoal_job_facts facts;

    if (backend_facts_here(agent, id, &facts))
        return shoal_job_state_ended((enum shoal_job_state)facts.state);
    return backend_summary(agent, id, &summary) && shoal_job_state_ended((enum shoal_job_state)summary.state);
}

/* By the clock of the node that led the job: where clocks differ by more, nothing is waited for. */
static bool ended_within(struct agent *agent, struct shoal_job_id id, uint64_t within_ms)
{
    static struct shoal_job_summary summary;
    const struct agent_job *job = agent_job_find(agent, id);
    struct shoal_job_facts facts;
    uint64_t now_ms = agent_wall_ms(), end_ms = 0;

    if (job != NULL && job->opened && agent_job_is_single(job))
        return false;
    if (backend_facts_here(agent, id, &facts))
        end_ms = facts.end_ms;
    else if (backend_summary(agent, id, &summary))
        end_ms = summary.end_ms;
    return end_ms != 0 && now_ms >= end_ms && now_ms < end_ms + within_ms;
}

static bool log_settles(struct agent *agent, struct shoal_job_id id) { return ended_within(agent, id, SETTLE_MS); }

bool backend_files_may_come(struct agent *agent, struct shoal_job_id id)
{
    struct shoal_sched_group_status status;

    return (shoal_sched_group_find(agent->sched, id, &status) || shoal_sched_parked_find(agent->sched, id)) &&
           ended_within(agent, id, LATELY_MS);
}

/* Nothing will be added to what is on this disk. */
static bool log_is_whole(struct agent *agent, const struct agent_job *job, struct shoal_job_id id)
{
    return job_ended(agent, id) && !has_runs(job) && !log_settles(agent, id);
}

struct log_call {
    struct agent *agent;
    struct log_call *next; /* of those that wait (agent->log_waits) */
    char user[SHOAL_USER_BYTES_MAX];
    const bool *gone;
    bool waits;
    struct shoal_job_id id;
    enum shoal_log_kind kind;
    unsigned task;
    uint64_t cursor;
    size_t max;
    uint64_t until_ns;
    unsigned asks; /* of the job's hosts */
    bool here;     /* they have said that all is here */
    shoal_backend_log_fn *done;
    void *arg;
    uv_timer_t timer;
};

/* A look at a log costs a fraction of a millisecond, and many may be due at once. False: it is the next turn's. */
static bool log_turn_may(struct agent *agent)
{
    if (agent->log_turn_ms != uv_now(&agent->loop)) {
        agent->log_turn_ms = uv_now(&agent->loop);
        agent->log_turn_ns = 0;
    }
    return agent->log_turn_ns < LOG_TURN_NS;
}

static void log_turn_end(struct agent *agent, uint64_t began_ns) { agent->log_turn_ns += agent_now_ns() - began_ns; }

/* Others of this user's wait already, as many as may: this one is answered at once. */
static bool log_may_wait(const struct agent *agent, const char *user)
{
    unsigned waits = 0;

    for (const struct log_call *call = agent->log_waits; call != NULL; call = call->next)
        waits += strcmp(call->user, user) == 0;
    return waits < SHOAL_LOG_WAITS_USER_MAX;
}

static void log_wait_begin(struct log_call *call)
{
    call->waits = true;
    call->next = call->agent->log_waits;
    call->agent->log_waits = call;
    call->agent->log_wait_count++;
}

static void log_wait_end(struct log_call *call)
{
    struct log_call **at = &call->agent->log_waits;

    if (!call->waits)
        return;
    while (*at != call) {
        SHOAL_ASSERT(*at != NULL); /* it is among them */
        at = &(*at)->next;
    }
    *at = call->next;
    call->agent->log_wait_count--;
}

static void on_log_closed(uv_handle_t *handle) { free(handle->data); }

static void log_end(struct log_call *call, enum shoal_err err, const char *text, struct shoal_view bytes,
                    uint64_t cursor, bool ended)
{
    struct shoal_msg msg;
    struct shoal_log_chunk chunk = { .bytes = bytes, .cursor = cursor, .ended = ended };

    log_wait_end(call);
    (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
    call->done(call->arg, err, &msg, err == SHOAL_OK ? &chunk : NULL);
    uv_close((uv_handle_t *)&call->timer, on_log_closed);
}

static void log_try(struct log_call *call);

static void on_log_timer(uv_timer_t *timer) { log_try(timer->data); }

static void log_try_later(struct log_call *call)
{
    unsigned steps = 1 + call->agent->log_wait_count / LOG_WAITS_STEP;

    (void)uv_timer_start(&call->timer, on_log_timer, (uint64_t)LOG_WAIT_STEP_MS * steps, 0);
}

/* The caller is answered now, with what there is. */
static bool log_is_due(const struct log_call *call)
{
    return agent_now_ns() >= call->until_ns && !log_settles(call->agent, call->id);
}

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
    } else if (err == SHOAL_OK && (bytes.len > 0 || ended || log_is_due(call))) {
        log_end(call, SHOAL_OK, "", bytes, cursor, ended);
    } else {
        if (err == SHOAL_OK)
            call->cursor = cursor;
        log_try_later(call);
    }
}

static void on_log_here(void *arg, bool all)
{
    struct log_call *call = arg;

    call->here = all;
    log_try(call);
}

static void log_try_here(struct log_call *call)
{
    static uint8_t bytes[512 * SHOAL_KIB];
    const struct agent_job *job = files_of(call->agent, call->id);
    bool away = !call->here && backend_files_may_come(call->agent, call->id);
    bool ended;
    size_t len;

    if (away && call->asks < ASKS_MAX) {
        call->asks++;
        agent_tree_await(call->agent, call->id, true, HOSTS_WAIT_MS, on_log_here, call);
        return;
    }
    len = log_read_here(job, call->kind, call->task, !away && log_is_whole(call->agent, job, call->id), &call->cursor, bytes,
                        call->max < sizeof(bytes) ? call->max : sizeof(bytes), &ended);
    if (len == 0 && away)
        log_end(call, SHOAL_ERR_UNREACHABLE, AWAY_TEXT, (struct shoal_view){ 0 }, call->cursor, false);
    else if (len > 0 || ended || log_is_due(call))
        log_end(call, SHOAL_OK, "", shoal_view_of(bytes, len), call->cursor, ended);
    else
        log_try_later(call);
}

static void log_try(struct log_call *call)
{
    struct shoal_node_id node;

    if (call->gone != NULL && *call->gone) {
        log_end(call, SHOAL_ERR_TIMEOUT, "nobody waits for it", (struct shoal_view){ 0 }, call->cursor, false);
        return;
    }
    if (!log_turn_may(call->agent)) {
        (void)uv_timer_start(&call->timer, on_log_timer, 1, 0);
        return;
    }
    if (backend_has_files(call->agent, call->id, &node)) {
        uint64_t began_ns = agent_now_ns();
        struct agent *agent = call->agent;

        log_try_here(call);
        log_turn_end(agent, began_ns);
        return;
    }
    if (shoal_node_id_is_zero(node)) { /* nothing has started yet, or it has ended and left nothing */
        bool has_ended = job_ended(call->agent, call->id);

        if (has_ended || agent_now_ns() >= call->until_ns)
            log_end(call, SHOAL_OK, "", (struct shoal_view){ 0 }, call->cursor, has_ended);
        else
            log_try_later(call);
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
    static struct shoal_job_summary summary;
    struct log_call *call;
    struct shoal_msg msg;
    bool waits;

    if (!request->task_named && backend_summary(agent, id, &summary) && summary.tasks_all > 0) {
        enum shoal_err err =
            shoal_fail(&msg, SHOAL_ERR_INVALID,
                       "each of the %u tasks of this array has its own log; name one: --task N (in REST: task=N)", summary.tasks_all);

        done(arg, err, &msg, NULL);
        return;
    }
    call = calloc(1, sizeof(*call));
    SHOAL_ASSERT(call != NULL);
    waits = request->wait_ms > 0 && log_may_wait(agent, request->caller->name);
    *call = (struct log_call){ .agent = agent,
                               .gone = request->gone,
                               .id = id,
                               .kind = request->kind,
                               .task = request->task_named ? request->task : SHOAL_ARRAY_NONE,
                               .cursor = request->cursor,
                               .max = request->bytes_max,
                               .done = done,
                               .arg = arg,
                               .until_ns = agent_now_ns() + (waits ? request->wait_ms * SHOAL_MS : 0) };
    (void)snprintf(call->user, sizeof(call->user), "%s", request->caller->name);
    if (waits)
        log_wait_begin(call);
    (void)uv_timer_init(&agent->loop, &call->timer);
    call->timer.data = call;
    log_try(call);
}

struct log_asked {
    struct agent *agent;
    uv_timer_t timer;
    bool away;
    struct peer_question *question;
    struct shoal_job_id id;
    enum shoal_log_kind kind;
    uint32_t task, max;
    uint64_t cursor;
};

static void log_answer(const struct log_asked *asked)
{
    static uint8_t bytes[512 * SHOAL_KIB];
    static uint8_t answer[512 * SHOAL_KIB + 32];
    struct shoal_writer w = shoal_writer_init(answer, sizeof(answer));
    const struct agent_job *job = backend_serves_files(asked->agent, asked->id);
    uint64_t cursor = asked->cursor;
    size_t len = 0;
    bool ended = job_ended(asked->agent, asked->id);

    if (job != NULL && job->result_dir[0] != '\0')
        len = log_read_here(job, asked->kind, asked->task, !asked->away && log_is_whole(asked->agent, job, asked->id), &cursor, bytes,
                            asked->max < sizeof(bytes) ? asked->max : sizeof(bytes), &ended);
    shoal_put_u64(&w, cursor);
    shoal_put_bool(&w, ended);
    shoal_put_bytes(&w, shoal_view_of(bytes, len));
    if (len == 0 && asked->away)
        peer_answer(asked->question, SHOAL_ERR_UNREACHABLE, AWAY_TEXT, (struct shoal_view){ 0 });
    else
        peer_answer(asked->question, SHOAL_OK, "", shoal_writer_view(&w));
}

static void on_asked_timer(uv_timer_t *timer);

/* In this turn, or in one that has room for it. */
static void log_answer_soon(struct log_asked *asked)
{
    struct agent *agent = asked->agent;
    uint64_t began_ns = agent_now_ns();

    if (!agent->stopping && !log_turn_may(agent)) {
        (void)uv_timer_start(&asked->timer, on_asked_timer, 1, 0);
        return;
    }
    if (!agent->stopping)
        log_answer(asked);
    log_turn_end(agent, began_ns);
    uv_close((uv_handle_t *)&asked->timer, on_log_closed);
}

static void on_asked_timer(uv_timer_t *timer) { log_answer_soon(timer->data); }

static void on_asked_here(void *arg, bool all)
{
    struct log_asked *asked = arg;

    asked->away = !all;
    log_answer_soon(asked);
}

void backend_serve_log(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct log_asked *asked = calloc(1, sizeof(*asked));
    struct shoal_reader r = shoal_reader_init(args);

    (void)from;
    SHOAL_ASSERT(asked != NULL);
    asked->agent = arg;
    asked->question = question;
    asked->id = shoal_get_job_id(&r);
    asked->kind = (enum shoal_log_kind)shoal_get_enum(&r, SHOAL_LOG_TASK_OUTERR + 1);
    asked->task = shoal_get_u32(&r);
    asked->cursor = shoal_get_u64(&r);
    asked->max = shoal_get_u32(&r);
    if (r.failed) {
        peer_answer(question, SHOAL_ERR_MALFORMED, "not a question for a log", (struct shoal_view){ 0 });
        free(asked);
        return;
    }
    (void)uv_timer_init(&asked->agent->loop, &asked->timer);
    asked->timer.data = asked;
    if (backend_files_may_come(asked->agent, asked->id))
        agent_tree_await(asked->agent, asked->id, true, HOSTS_WAIT_MS, on_asked_here, asked);
    else
        log_answer_soon(asked);
}
