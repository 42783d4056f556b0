/* Results and ledgers of jobs: from this disk, from the blobs, or from a node that has them. */
#include "shoal/sched_look.h"
#include "shoal/job_facts.h"
#include "agent_backend.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node/agent/agent_ledger.h"

#include "shoal/banned.h"

#define OTHER_TIMEOUT_NS (3 * SHOAL_S) /* of a guardian with a whole ledger, where this one's is short */
#define READ_TIMEOUT_NS (5 * SHOAL_S)

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

/* Of an archived job: what its last leader found. */
static enum shoal_err audit(struct agent *agent, struct shoal_job_id id, struct shoal_buf *json)
{
    char path[AGENT_PATH_BYTES + 16];
    struct shoal_sched_archived here;
    struct shoal_job_facts facts;
    struct shoal_msg msg;

    if (guards(agent, id))
        return agent_ledger_audit(agent, agent_job_need(agent, id), json);
    if (agent_archived(agent, id, &here) && backend_facts_here(agent, id, &facts) && facts.call == 0)
        return agent_ledger_none(id, json);
    agent_job_folder(agent, id, path, AGENT_PATH_BYTES);
    memcpy(path + strlen(path), "/audit", 7);
    return shoal_file_read(path, 4 * SHOAL_MIB, json, &msg);
}

static void ledger_read(struct ledger_call *call)
{
    struct agent *agent = call->agent;
    struct ledger_call ended = *call;
    struct shoal_msg msg = { "" };
    struct shoal_node_id node = { { 0 } };
    size_t guardians = 0;
    enum shoal_err err;

    if (guards(agent, call->id) || backend_has_files(agent, call->id, &node)) {
        err = audit(agent, ended.id, &call->own);
        if (err == SHOAL_OK && guards(agent, ended.id) && !is_exact(shoal_buf_view(&call->own))) {
            call->node_count = agent_job_nodes(agent, ended.id, call->nodes, 8, &guardians);
            call->node_count = guardians < 8 ? guardians : 8;
            ask_others(call);
            return;
        }
        ledger_end(call, err, &msg, shoal_buf_view(&call->own));
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

void backend_serve_ledger(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct agent *agent = arg;
    struct shoal_reader r = shoal_reader_init(args);
    struct shoal_job_id id = shoal_get_job_id(&r);
    bool here = shoal_reader_done(&r) && (guards(agent, id) || backend_serves_files(agent, id) != NULL);
    struct shoal_buf json = { 0 };
    enum shoal_err err = here ? audit(agent, id, &json) : SHOAL_ERR_NOT_FOUND;

    (void)from;
    peer_answer(question, err, err == SHOAL_OK ? "" : "this host keeps no ledger of the job", shoal_buf_view(&json));
    shoal_buf_deinit(&json);
}
