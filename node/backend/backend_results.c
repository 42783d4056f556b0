/* Results and ledgers of jobs: from this disk, from the blobs, or from a node that has them. */
#include "shoal/below.h"
#include "shoal/disk.h"
#include "shoal/job_facts.h"
#include "shoal/sched_look.h"

#include "agent_backend.h"
#include "backend_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node/agent/agent_audit.h"
#include "node/agent/agent_results.h"

#include "shoal/banned.h"

/* Of the host that has the ledger: it goes through all samples that were trained. A command waits 30 s for its answer. */
#define AUDIT_TIMEOUT_NS (25 * SHOAL_S)
#define OTHER_TIMEOUT_NS (8 * SHOAL_S) /* of a guardian with a whole ledger, where this one's is short */

/* ---- results ----
 *
 *   what was committed as the result (a manifest of blobs, after the end)   +   what lies in RESULT_DIR now, by path
 *
 * A path that is in both is the blob: it does not change any more, and any host can fetch it. */

struct result_file {
    char path[AGENT_RESULT_PATH_BYTES];
    uint64_t bytes;
    uint64_t mtime_s;
    bool executable;
    struct shoal_hash hash; /* zero: it is read where it lies */
    int fd;                 /* -1: not open */
};

struct shoal_result {
    struct agent *agent;
    struct shoal_job_id job;
    struct shoal_node_id node; /* has what is no blob; zero: this one, below `root` */
    char root[AGENT_PATH_BYTES];
    struct result_file *files;
    struct shoal_result_file *shown;
    size_t count, cap;
    uv_work_t closing;
};

struct result_call {
    uv_work_t work;
    struct shoal_buf manifest, lines; /* what was committed, and what lies there now */
    bool coming;
    char said[AGENT_OWED_BYTES];
    struct agent *agent;
    struct shoal_job_id id;
    struct shoal_result *result;
    shoal_backend_result_fn *done;
    void *arg;
};

static void close_run(uv_work_t *work)
{
    struct shoal_result *result = work->data;

    for (size_t i = 0; i < result->count; i++)
        if (result->files[i].fd >= 0)
            (void)close(result->files[i].fd);
}

static void close_ended(uv_work_t *work, int status)
{
    struct shoal_result *result = work->data;

    if (status != 0)
        close_run(work); /* cancelled: the agent stops */
    free(result->files);
    free(result->shown);
    free(result);
}

static void result_free(struct shoal_result *result)
{
    bool open = false;

    for (size_t i = 0; i < result->count; i++)
        open = open || result->files[i].fd >= 0;
    result->closing.data = result;
    if (!open || uv_queue_work(&result->agent->loop, &result->closing, close_run, close_ended) != 0)
        close_ended(&result->closing, open ? UV_ECANCELED : 0);
}

static void result_end(struct result_call *call, enum shoal_err err, const char *text, bool coming)
{
    struct shoal_result *result = call->result;
    struct shoal_msg msg;

    (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
    if (err != SHOAL_OK) {
        result_free(result);
        call->done(call->arg, err, &msg, NULL, NULL);
    } else {
        call->done(call->arg, SHOAL_OK, &msg, result,
                   &(struct shoal_result_list){ .files = result->shown, .count = result->count, .coming = coming });
    }
    shoal_buf_deinit(&call->manifest);
    shoal_buf_deinit(&call->lines);
    free(call);
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct result_file *)a)->path, ((const struct result_file *)b)->path);
}

/* Reads a line "<64 hex> <size> <mtime> <x or -> <path>". */
static bool file_parse(const char *line, struct result_file *file)
{
    char hex[SHOAL_HASH_TEXT_BYTES];
    unsigned long long bytes, mtime;
    char mode;
    int at = 0;

    if (sscanf(line, "%64s %llu %llu %c%n", hex, &bytes, &mtime, &mode, &at) != 4 || line[at] != ' ' ||
        !shoal_hex_parse(hex, file->hash.bytes, 32) || !agent_result_is_shown(line + at + 1) ||
        agent_result_is_temporary(line + at + 1))
        return false;
    file->bytes = bytes;
    file->mtime_s = mtime;
    file->executable = mode == 'x';
    file->fd = -1;
    memcpy(file->path, line + at + 1, strlen(line + at + 1) + 1);
    return true;
}

/* Adds the files of a list that are not there yet. */
static void add_lines(struct shoal_result *result, struct shoal_view lines)
{
    size_t before = result->count;

    for (size_t at = 0; at < lines.len;) {
        const uint8_t *end = memchr(lines.bytes + at, '\n', lines.len - at);
        size_t len = end == NULL ? lines.len - at : (size_t)(end - (lines.bytes + at));
        struct result_file file = { .fd = -1 };
        char line[AGENT_RESULT_PATH_BYTES + 160];

        if (len < sizeof(line)) {
            memcpy(line, lines.bytes + at, len);
            line[len] = '\0';
            if (file_parse(line, &file) &&
                (before == 0 || bsearch(&file, result->files, before, sizeof(file), by_path) == NULL)) {
                if (result->count == result->cap) {
                    result->cap = result->cap == 0 ? 16 : 2 * result->cap;
                    result->files = realloc(result->files, result->cap * sizeof(*result->files));
                    SHOAL_ASSERT(result->files != NULL);
                }
                result->files[result->count++] = file;
            }
        }
        at += len + 1;
    }
    if (result->count > 1)
        qsort(result->files, result->count, sizeof(*result->files), by_path);
}

/* On a thread: the longest list takes some milliseconds, and many may be asked for at once. */
static void list_run(uv_work_t *work)
{
    struct result_call *call = work->data;
    struct shoal_result *result = call->result;

    add_lines(result, shoal_buf_view(&call->manifest));
    add_lines(result, shoal_buf_view(&call->lines));
    result->shown = calloc(result->count + 1, sizeof(*result->shown));
    SHOAL_ASSERT(result->shown != NULL);
    for (size_t i = 0; i < result->count; i++) {
        const struct result_file *file = &result->files[i];

        result->shown[i] = (struct shoal_result_file){
            .path = file->path, .bytes = file->bytes, .mtime_s = (uint32_t)file->mtime_s, .executable = file->executable
        };
    }
}

static void list_ended(uv_work_t *work, int status)
{
    struct result_call *call = work->data;

    if (status != 0)
        result_end(call, SHOAL_ERR_UNREACHABLE, "the agent stops", false);
    else
        result_end(call, SHOAL_OK, call->said, call->coming);
}

/* After OK the text says what is missing. */
static void on_result_files(void *arg, enum shoal_err err, const char *text, const struct backend_files *files)
{
    struct result_call *call = arg;

    if (err != SHOAL_OK && call->manifest.len == 0) {
        result_end(call, err, text, false);
        return;
    }
    if (err == SHOAL_OK) {
        call->result->node = files->node;
        memcpy(call->result->root, files->root, sizeof(files->root));
        if (files->lines.len > 0 && shoal_buf_append(&call->lines, files->lines.bytes, files->lines.len) != SHOAL_OK) {
            result_end(call, SHOAL_ERR_FULL, "no memory for the list; try again later", false);
            return;
        }
    }
    if (err == SHOAL_OK && files->left_out > 0)
        (void)snprintf(call->said, sizeof(call->said),
                       "%llu files are not in this list: there are too many, their names cannot be shown, they lie "
                       "below more than %u folders, or in folders that nobody may read",
                       (unsigned long long)files->left_out, AGENT_RESULT_DEPTH_MAX);
    else
        (void)snprintf(call->said, sizeof(call->said), "%s", err == SHOAL_OK ? files->owed : text);
    call->coming = err != SHOAL_OK || files->owed[0] != '\0';
    call->work.data = call;
    (void)uv_queue_work(&call->agent->loop, &call->work, list_run, list_ended);
}

static void on_result_manifest(void *arg, enum shoal_err err, const char *text, struct shoal_view bytes)
{
    struct result_call *call = arg;

    if (err != SHOAL_OK) {
        result_end(call, err, text, false);
        return;
    }
    if (shoal_buf_append(&call->manifest, bytes.bytes, bytes.len) != SHOAL_OK)
        result_end(call, SHOAL_ERR_FULL, "no memory for the list; try again later", false);
    else
        backend_files_list(call->agent, call->id, on_result_files, call);
}

static void on_result_facts(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct result_call *call = arg;
    struct shoal_job_facts *facts = calloc(1, sizeof(*facts));
    struct shoal_hash hash = { { 0 } };

    SHOAL_ASSERT(facts != NULL);
    if (err == SHOAL_OK)
        err = shoal_job_facts_decode(reply->u.reply.bytes, facts);
    if (err == SHOAL_OK && shoal_job_state_ended((enum shoal_job_state)facts->state))
        hash = shoal_hash_is_zero(facts->result) ? facts->files : facts->result;
    free(facts);
    if (err != SHOAL_OK)
        result_end(call, err, reply->u.reply.text, false);
    else if (shoal_hash_is_zero(hash))
        backend_files_list(call->agent, call->id, on_result_files, call);
    else
        agent_read_blob(call->agent, call->id, hash, 4 * SHOAL_MIB, on_result_manifest, call);
}

void backend_result_id(struct agent *agent, struct shoal_job_id id, shoal_backend_result_fn *done, void *arg)
{
    struct shoal_sched_request request = {
        .kind = SHOAL_SCHED_GET, .job = id, .linearizable = true, .deadline_ms = 5000
    };
    struct result_call *call = calloc(1, sizeof(*call));
    struct shoal_result *result = calloc(1, sizeof(*result));

    SHOAL_ASSERT(call != NULL && result != NULL);
    *result = (struct shoal_result){ .agent = agent, .job = id };
    *call = (struct result_call){ .agent = agent, .id = id, .result = result, .done = done, .arg = arg };
    agent_request(agent, &request, on_result_facts, call);
}

/* A piece of a file on this host. A thread opens and reads it: a disk that stands still does not hold up the loop. */
struct read_call {
    uv_work_t work;
    struct shoal_result *result;
    size_t file;
    uint64_t offset;
    size_t max;
    char path[AGENT_PATH_BYTES + SHOAL_HASH_TEXT_BYTES]; /* of a blob's file; "": the result's file, below its root */
    uint8_t *bytes;
    int fd;
    ssize_t got; /* below 0: -errno */
    shoal_backend_bytes_fn *done;
    void *arg;
};

static void read_end(struct read_call *call, enum shoal_err err, const char *text, struct shoal_view bytes)
{
    struct shoal_msg msg;

    (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
    call->done(call->arg, err, &msg, bytes);
    free(call->bytes);
    free(call);
}

static void read_run(uv_work_t *work)
{
    struct read_call *call = work->data;
    const struct result_file *file = &call->result->files[call->file];

    if (call->fd < 0)
        call->fd = call->path[0] != '\0' ? shoal_open_regular(call->path, O_RDONLY)
                                         : shoal_open_below(call->result->root, file->path, O_RDONLY);
    call->got = call->fd < 0 ? -1 : pread(call->fd, call->bytes, call->max, (off_t)call->offset);
    if (call->got < 0)
        call->got = -errno;
}

static void read_ended(uv_work_t *work, int status)
{
    struct read_call *call = work->data;
    char text[200];

    call->result->files[call->file].fd = call->fd;
    if (status != 0)
        call->got = -ECANCELED;
    if (call->got >= 0) {
        read_end(call, SHOAL_OK, "", shoal_view_of(call->bytes, (size_t)call->got));
        return;
    }
    (void)snprintf(text, sizeof(text), "cannot read the result: %s", strerror((int)-call->got));
    read_end(call, SHOAL_ERR_STORAGE, text, (struct shoal_view){ 0 });
}

static void read_here(struct read_call *call)
{
    call->fd = call->result->files[call->file].fd;
    call->work.data = call;
    call->max = call->max < SHOAL_MIB ? call->max : SHOAL_MIB;
    call->bytes = malloc(call->max);
    SHOAL_ASSERT(call->bytes != NULL);
    if (uv_queue_work(&call->result->agent->loop, &call->work, read_run, read_ended) != 0)
        read_end(call, SHOAL_ERR_FULL, "no thread is free; try again", (struct shoal_view){ 0 });
}

static void on_result_file(void *arg, enum shoal_err err, const char *path)
{
    struct read_call *call = arg;

    if (err != SHOAL_OK || strlen(path) >= sizeof(call->path)) {
        read_end(call, err != SHOAL_OK ? err : SHOAL_ERR_STORAGE, path, (struct shoal_view){ 0 });
        return;
    }
    memcpy(call->path, path, strlen(path) + 1);
    read_here(call);
}

static void on_piece(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    read_end(arg, err, msg->text, answer);
}

void backend_result_read(void *ctx, struct shoal_result *result, size_t file, uint64_t offset, size_t bytes_max,
                         shoal_backend_bytes_fn *done, void *arg)
{
    struct agent *agent = ctx;
    struct result_file *read = &result->files[file];
    struct read_call *call = calloc(1, sizeof(*call));

    SHOAL_ASSERT(call != NULL && file < result->count);
    *call = (struct read_call){
        .result = result, .file = file, .offset = offset, .max = bytes_max, .done = done, .arg = arg
    };
    if (read->fd < 0 && !shoal_hash_is_zero(read->hash))
        agent_materialise(agent, result->job, read->hash, on_result_file, call);
    else if (read->fd >= 0 || result->root[0] != '\0')
        read_here(call);
    else
        backend_file_read(agent, result->job, result->node, read->path, offset, bytes_max, on_piece, call);
}

void backend_result_close(void *ctx, struct shoal_result *result)
{
    (void)ctx;
    result_free(result);
}

/* ---- what was submitted ---- */

struct bundle_call {
    uv_work_t work;
    struct agent *agent;
    struct shoal_job_id id;
    char path[AGENT_PATH_BYTES + SHOAL_HASH_TEXT_BYTES];
    int fd;
    int error;
    shoal_backend_bundle_fn *done;
    void *arg;
};

static void bundle_end(struct bundle_call *call, enum shoal_err err, const char *text)
{
    struct shoal_msg msg;

    (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
    call->done(call->arg, err, &msg, call->fd);
    free(call);
}

static void bundle_run(uv_work_t *work)
{
    struct bundle_call *call = work->data;

    call->fd = shoal_open_regular(call->path, O_RDONLY);
    call->error = errno;
}

static void bundle_opened(uv_work_t *work, int status)
{
    struct bundle_call *call = work->data;

    if (status == 0 && call->fd >= 0)
        bundle_end(call, SHOAL_OK, "");
    else
        bundle_end(call, SHOAL_ERR_STORAGE, status != 0 ? "this agent stops" : strerror(call->error));
}

static void on_bundle_file(void *arg, enum shoal_err err, const char *path)
{
    struct bundle_call *call = arg;

    if (err != SHOAL_OK) {
        bundle_end(call, err, path);
        return;
    }
    (void)snprintf(call->path, sizeof(call->path), "%s", path);
    call->work.data = call;
    if (uv_queue_work(&call->agent->loop, &call->work, bundle_run, bundle_opened) != 0)
        bundle_end(call, SHOAL_ERR_FULL, "no thread is free; try again");
}

static void on_bundle_facts(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct bundle_call *call = arg;
    struct shoal_job_facts *facts = calloc(1, sizeof(*facts));

    SHOAL_ASSERT(facts != NULL);
    if (err == SHOAL_OK)
        err = shoal_job_facts_decode(reply->u.reply.bytes, facts);
    if (err != SHOAL_OK || shoal_hash_is_zero(facts->bundle))
        bundle_end(call, err, reply->u.reply.text);
    else
        agent_materialise(call->agent, call->id, facts->bundle, on_bundle_file, call);
    free(facts);
}

void backend_bundle_id(struct agent *agent, struct shoal_job_id id, shoal_backend_bundle_fn *done, void *arg)
{
    struct shoal_sched_request get = {
        .kind = SHOAL_SCHED_GET, .job = id, .linearizable = true, .deadline_ms = 5000
    };
    struct bundle_call *call = calloc(1, sizeof(*call));

    SHOAL_ASSERT(call != NULL);
    *call = (struct bundle_call){ .agent = agent, .id = id, .fd = -1, .done = done, .arg = arg };
    agent_request(agent, &get, on_bundle_facts, call);
}

/* ---- ledger ---- */

struct ledger_call {
    struct agent *agent;
    struct shoal_job_id id;
    shoal_backend_text_fn *done;
    void *arg;
    /* This host's ledger is short: its answer, and who may have a whole one. */
    struct shoal_buf own;
    struct shoal_node_id nodes[8];
    size_t node_count, node;
};

/* A guardian that was away lacks records for a moment: then another one answers, if it has them all. */
static bool is_exact(struct shoal_view json)
{
    static const char exact[] = "\"exact\":true";

    return memmem(json.bytes, json.len, exact, sizeof(exact) - 1) != NULL;
}

static void ledger_end(struct ledger_call *call, enum shoal_err err, const struct shoal_msg *msg,
                       struct shoal_view json)
{
    call->done(call->arg, err, msg, json);
    shoal_buf_deinit(&call->own);
    free(call);
}

static void on_other_ledger(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer);

static void ask_others(struct ledger_call *call)
{
    struct shoal_msg msg = { "" };

    while (call->node < call->node_count && !shoal_link_is_up(call->agent->link, call->nodes[call->node]))
        call->node++;
    if (call->node == call->node_count)
        ledger_end(call, SHOAL_OK, &msg, shoal_buf_view(&call->own));
    else
        peer_ask(call->agent->calls, call->nodes[call->node], PEER_LEDGER,
                 shoal_view_of(call->id.bytes, sizeof(call->id.bytes)), OTHER_TIMEOUT_NS, on_other_ledger, call);
}

static void on_other_ledger(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct ledger_call *call = arg;

    if (err == SHOAL_OK && is_exact(answer)) {
        ledger_end(call, err, msg, answer);
        return;
    }
    call->node++;
    ask_others(call);
}

static void on_ledger_answer(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct ledger_call call = *(struct ledger_call *)arg;

    free(arg);
    call.done(call.arg, err, msg, answer);
}

/* A guardian knows what the ledger must hold, whether files of the job lie here or not: one without steps has an empty
 * ledger everywhere. */
static bool guards(const struct agent *agent, struct shoal_job_id id)
{
    return shoal_sched_job(agent->sched, id) != NULL;
}

/* What is kept of a job without guardians: the audit that its last leader made. */
static enum shoal_err audit_kept(struct agent *agent, struct shoal_job_id id, struct shoal_buf *json,
                                 struct shoal_msg *msg)
{
    struct shoal_sched_archived here;
    struct shoal_job_facts facts;

    msg->text[0] = '\0';
    if (agent_archived(agent, id, &here) && backend_facts_here(agent, id, &facts) && facts.call == 0)
        return agent_audit_none(id, json);
    return agent_audit_kept(agent, id, json, msg);
}

static void on_audited(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct agent_audited *audited)
{
    struct ledger_call *call = arg;
    struct agent *agent = call->agent;
    struct shoal_msg why = *msg;
    size_t guardians = 0;

    if (err == SHOAL_OK)
        err = shoal_buf_append(&call->own, audited->json.bytes, audited->json.len);
    if (err == SHOAL_OK && guards(agent, call->id) && !is_exact(audited->json)) {
        (void)agent_job_nodes(agent, call->id, call->nodes, 8, &guardians);
        call->node_count = guardians < 8 ? guardians : 8;
        ask_others(call);
        return;
    }
    ledger_end(call, err, &why, shoal_buf_view(&call->own));
}

static void ledger_read(struct ledger_call *call)
{
    struct agent *agent = call->agent;
    struct ledger_call ended = *call;
    struct shoal_msg msg = { "" };
    struct shoal_node_id node = { { 0 } };
    enum shoal_err err;

    if (guards(agent, call->id)) {
        agent_audit(agent, call->id, on_audited, call);
    } else if (backend_has_files(agent, call->id, &node)) {
        err = audit_kept(agent, call->id, &call->own, &msg);
        ledger_end(call, err, &msg, shoal_buf_view(&call->own));
    } else if (shoal_node_id_is_zero(node)) {
        free(call);
        err = shoal_fail(&msg, SHOAL_ERR_UNREACHABLE, "no host that keeps this job's ledger is reachable from here");
        ended.done(ended.arg, err, &msg, (struct shoal_view){ 0 });
    } else {
        peer_ask(agent->calls, node, PEER_LEDGER, shoal_view_of(call->id.bytes, sizeof(call->id.bytes)),
                 AUDIT_TIMEOUT_NS, on_ledger_answer, call);
    }
}

void backend_ledger_id(struct agent *agent, struct shoal_job_id id, shoal_backend_text_fn *done, void *arg)
{
    struct ledger_call *call = calloc(1, sizeof(*call));

    SHOAL_ASSERT(call != NULL);
    *call = (struct ledger_call){ .agent = agent, .id = id, .done = done, .arg = arg };
    ledger_read(call);
}

struct audit_question {
    struct agent *agent;
    struct peer_question *question;
};

static void on_audited_for(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                           const struct agent_audited *audited)
{
    struct audit_question *asked = arg;

    if (!asked->agent->stopping)
        peer_answer(asked->question, err, err == SHOAL_OK ? "" : msg->text, audited->json);
    free(asked);
}

void backend_serve_ledger(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct agent *agent = arg;
    struct shoal_reader r = shoal_reader_init(args);
    struct shoal_job_id id = shoal_get_job_id(&r);
    struct shoal_buf json = { 0 };
    struct audit_question *asked;
    enum shoal_err err;
    struct shoal_msg msg;

    (void)from;
    if (shoal_reader_done(&r) && guards(agent, id)) {
        asked = malloc(sizeof(*asked));
        SHOAL_ASSERT(asked != NULL);
        *asked = (struct audit_question){ .agent = agent, .question = question };
        agent_audit(agent, id, on_audited_for, asked);
        return;
    }
    err = shoal_reader_done(&r) && backend_serves_files(agent, id) != NULL ? audit_kept(agent, id, &json, &msg)
                                                                           : SHOAL_ERR_NOT_FOUND;
    peer_answer(question, err, err == SHOAL_OK ? "" : "this host keeps no ledger of the job", shoal_buf_view(&json));
    shoal_buf_deinit(&json);
}
