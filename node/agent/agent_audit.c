/* The audit of a ledger: was every sample of every data epoch used exactly once?
 *
 * Which samples belong to mini-batch v of a step is a pure function of (job seed, data epoch, step, v) (permute.h), so
 * the auditor needs no list: it computes the keyed sum of the ids that should have been handed out and compares it with
 * the sum of those that were. A sample skipped, doubled or exchanged, a step missing or repeated: each makes an error
 * line.
 *
 *   asked (loop) --copy of the calls--> queue --> the ledger, read and counted (thread) --> done (loop)
 *
 * A1. It costs time by all samples that were ever trained, so a thread does it. The thread touches nothing of the loop's, and
 *     opens the file itself: the job may go meanwhile.
 * A2. One runs at a time, so that the other threads of the pool are left to the rest. Whoever asks for one that waits shares it,
 *     and never one that runs: it may have read past what the asker knows of. Both numbers are bounded. */
#include "agent_audit.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "agent_metrics.h"
#include "ledger_file.h"

#include "shoal/below.h"
#include "shoal/disk.h"
#include "shoal/permute.h"
#include "shoal/sched_look.h"

#include "shoal/banned.h"

#define ERRORS_MAX 16
#define SHARES_MAX 256

struct share {
    uint64_t worker_id;
    uint64_t minibatches;
    uint64_t samples;
};

struct audit {
    char text[SHOAL_JOB_ID_TEXT_BYTES];
    uint32_t call_count;
    const struct shoal_call *calls;
    const struct shoal_call *call; /* of the last record */
    uint32_t data_epoch;
    uint64_t next_step; /* of the call */
    uint64_t steps;     /* train steps, all calls */
    uint64_t validations;
    uint64_t next_minibatch; /* of the data epoch under way */
    uint64_t epoch_samples;
    uint64_t data_epochs_done;
    uint64_t samples;
    uint64_t records, records_wanted;
    uint64_t held[SHOAL_CALLS_MAX + 1]; /* records of each call */
    unsigned errors;
    char error_text[ERRORS_MAX][160];
    struct share shares[SHARES_MAX];
    unsigned share_count;
    struct ledger_progress progress;
};

__attribute__((format(printf, 2, 3))) static void wrong(struct audit *a, const char *format, ...)
{
    va_list args;

    if (a->errors < ERRORS_MAX) {
        va_start(args, format);
        (void)vsnprintf(a->error_text[a->errors], sizeof(a->error_text[0]), format, args);
        va_end(args);
    }
    a->errors++;
}

static void share_add(struct audit *a, uint64_t worker_id, uint32_t samples)
{
    unsigned i = 0;

    while (i < a->share_count && a->shares[i].worker_id != worker_id)
        i++;
    if (i == SHARES_MAX)
        return;
    if (i == a->share_count)
        a->shares[a->share_count++].worker_id = worker_id;
    a->shares[i].minibatches++;
    a->shares[i].samples += samples;
}

static void epoch_end(struct audit *a)
{
    const struct shoal_call_sizes *sizes = &a->call->sizes;

    if (a->epoch_samples != sizes->samples)
        wrong(a, "call %u, data epoch %u: %llu samples of %llu", a->call->call, a->data_epoch,
              (unsigned long long)a->epoch_samples, (unsigned long long)sizes->samples);
    else
        a->data_epochs_done++;
    a->epoch_samples = 0;
    a->next_minibatch = 0;
    a->data_epoch++;
}

static void minibatch(struct audit *a, const struct shoal_step_head *head, uint64_t m,
                      const struct shoal_step_tuple *tuple)
{
    const struct shoal_call_sizes *sizes = &a->call->sizes;
    uint64_t len = shoal_minibatch_len(sizes->samples, sizes->minibatch, m);
    struct shoal_sample_sum sum = { 0, 0 };

    for (uint64_t i = 0; i < len; i++)
        shoal_sample_sum_add(
            &sum, a->call->job_seed,
            shoal_permute(a->call->job_seed, head->data_epoch, sizes->samples, m * sizes->minibatch + i));
    if (tuple->samples != len || tuple->id_low != sum.low || tuple->id_high != sum.high)
        wrong(a,
              "call %u, step %llu, mini-batch %llu: the samples handed out are not the ones that belong there (%u of "
              "%llu)",
              head->call, (unsigned long long)head->step, (unsigned long long)m, tuple->samples,
              (unsigned long long)len);
    a->epoch_samples += tuple->samples;
    a->samples += tuple->samples;
    share_add(a, tuple->worker_id, tuple->samples);
}

static void train_step(struct audit *a, const struct shoal_step_head *head, struct shoal_reader *tuples)
{
    const struct shoal_call_sizes *sizes = &a->call->sizes;
    uint64_t count = shoal_minibatch_count(sizes->samples, sizes->minibatch);

    a->steps++;
    if (head->data_epoch != a->data_epoch ||
        (uint64_t)head->step_in_epoch * sizes->virtual_workers != a->next_minibatch) {
        wrong(a, "call %u, step %llu: data epoch %u step %u does not follow", head->call,
              (unsigned long long)head->step, head->data_epoch, head->step_in_epoch);
        a->data_epoch = head->data_epoch;
        a->next_minibatch = (uint64_t)head->step_in_epoch * sizes->virtual_workers;
    }
    for (uint32_t v = 0; v < head->v_count; v++) {
        struct shoal_step_tuple tuple;

        shoal_get_step_tuple(tuples, &tuple, head->value_count);
        if (a->next_minibatch < count)
            minibatch(a, head, a->next_minibatch, &tuple);
        else
            wrong(a, "call %u, step %llu: a mini-batch beyond the data epoch's end", head->call,
                  (unsigned long long)head->step);
        a->next_minibatch++;
    }
    if (a->next_minibatch >= count)
        epoch_end(a);
}

static void each_record(void *arg, const struct shoal_step_head *head, struct shoal_reader tuples)
{
    struct audit *a = arg;

    ledger_progress_note(&a->progress, head, tuples);
    if (a->call == NULL || a->call->call != head->call) {
        a->call = head->call >= 1 && head->call <= a->call_count ? &a->calls[head->call - 1] : NULL;
        a->next_step = 1;
        a->data_epoch = 0;
        a->next_minibatch = 0;
        a->epoch_samples = 0;
        if (a->call == NULL || a->call->sizes.minibatch == 0 || a->call->sizes.samples == 0) {
            wrong(a, "records of call %u, which the job does not know", head->call);
            a->call = NULL;
            return;
        }
    }
    if (head->step != a->next_step)
        wrong(a, "call %u: step %llu where %llu should be", head->call, (unsigned long long)head->step,
              (unsigned long long)a->next_step);
    a->next_step = head->step + 1;
    a->held[head->call]++;
    a->records++;
    if (head->kind == SHOAL_STEP_TRAIN)
        train_step(a, head, &tuples);
    else if (head->kind == SHOAL_STEP_VALIDATE)
        a->validations++;
}

__attribute__((format(printf, 2, 3))) static enum shoal_err put(struct shoal_buf *buf, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return shoal_buf_append(buf, text, strlen(text));
}

/* How many records there must be: all of a call that is done, those that were acknowledged of one under way. */
static void count_wanted(struct audit *a)
{
    for (uint32_t i = 0; i < a->call_count; i++) {
        const struct shoal_call *call = &a->calls[i];
        uint64_t wanted = call->state >= SHOAL_CALL_DONE && call->final_step > call->records_acked
                              ? call->final_step
                              : call->records_acked;

        a->records_wanted += wanted;
        if (call->call <= SHOAL_CALLS_MAX && a->held[call->call] < wanted)
            wrong(a, "call %u: %llu records of %llu are here", call->call, (unsigned long long)a->held[call->call],
                  (unsigned long long)wanted);
    }
}

static enum shoal_err put_audit(const struct audit *a, struct shoal_buf *json)
{
    uint64_t wanted = 0;
    enum shoal_err err;

    SHOAL_ASSERT(a->call_count == 0 || a->calls != NULL);
    for (uint32_t i = 0; i < a->call_count; i++)
        wanted += a->calls[i].sizes.data_epochs;
    err = put(json,
              "{\"job\":\"%s\",\"records\":%llu,\"records_wanted\":%llu,\"steps\":%llu,\"validations\":%llu,"
              "\"samples\":%llu,\"data_epochs\":%llu,"
              "\"data_epochs_wanted\":%llu,\"samples_per_epoch\":%llu,\"exact\":%s,\"errors\":[",
              a->text, (unsigned long long)a->records, (unsigned long long)a->records_wanted,
              (unsigned long long)a->steps, (unsigned long long)a->validations, (unsigned long long)a->samples,
              (unsigned long long)a->data_epochs_done, (unsigned long long)wanted,
              (unsigned long long)(a->call_count > 0 ? a->calls[0].sizes.samples : 0),
              a->errors == 0 ? "true" : "false");
    for (unsigned i = 0; i < a->errors && i < ERRORS_MAX && err == SHOAL_OK; i++)
        err = put(json, "%s\"%s\"", i == 0 ? "" : ",", a->error_text[i]);
    if (err == SHOAL_OK)
        err = put(json, "],\"shares\":[");
    for (unsigned i = 0; i < a->share_count && err == SHOAL_OK; i++)
        err = put(json, "%s{\"worker\":%llu,\"minibatches\":%llu,\"samples\":%llu}", i == 0 ? "" : ",",
                  (unsigned long long)a->shares[i].worker_id, (unsigned long long)a->shares[i].minibatches,
                  (unsigned long long)a->shares[i].samples);
    if (err == SHOAL_OK)
        err = put(json, "]");
    if (err == SHOAL_OK)
        err = agent_metrics_calls(a->calls, a->call_count, json);
    return err == SHOAL_OK ? put(json, "}") : err;
}

enum shoal_err agent_audit_none(struct shoal_job_id id, struct shoal_buf *json)
{
    struct audit *none = calloc(1, sizeof(*none));
    enum shoal_err err;

    if (none == NULL)
        return SHOAL_ERR_FULL;
    shoal_job_id_text(id, none->text);
    err = put_audit(none, json);
    free(none);
    return err;
}

enum shoal_err agent_audit_kept(const struct agent *agent, struct shoal_job_id id, struct shoal_buf *json,
                                struct shoal_msg *msg)
{
    char folder[AGENT_PATH_BYTES];

    agent_job_folder(agent, id, folder, sizeof(folder));
    return shoal_disk_read_below(folder, "audit", AGENT_AUDIT_BYTES_MAX, json, msg);
}

/* ---- on a thread ---- */

struct asker {
    agent_audit_fn *done;
    void *arg;
};

struct auditing {
    uv_work_t work;
    struct agent *agent;
    struct auditing *next;
    struct shoal_job_id job;
    struct asker askers[AGENT_AUDIT_ASKERS_MAX];
    unsigned asker_count;
    char folder[AGENT_PATH_BYTES]; /* of the ledger */
    struct shoal_call *calls;      /* a copy */
    struct audit audit;
    struct shoal_buf json;
    enum shoal_err err;
    struct shoal_msg msg;
};

struct audit_queue {
    struct auditing *first; /* it runs */
    unsigned count;
};

/* A1. A host may guard a job of which no step has come here: then there is no file. */
static void audit_run(uv_work_t *work)
{
    struct auditing *a = work->data;
    int fd = a->audit.calls == NULL ? -1 : shoal_open_below(a->folder, "ledger", O_RDONLY);

    if (fd >= 0) {
        a->err = ledger_file_each(fd, each_record, &a->audit, &a->msg);
        (void)close(fd);
    } else if (a->audit.calls != NULL && errno != ENOENT) {
        a->err = shoal_fail(&a->msg, SHOAL_ERR_STORAGE, "the ledger cannot be opened: %s", strerror(errno));
    }
    if (a->err != SHOAL_OK)
        return;
    count_wanted(&a->audit);
    a->err = put_audit(&a->audit, &a->json);
    if (a->err != SHOAL_OK)
        (void)shoal_fail(&a->msg, a->err, "no memory for the audit; try again later");
}

static void audit_ended(uv_work_t *work, int status);

/* The first of those that wait. A2 */
static void run_next(struct agent *agent)
{
    struct audit_queue *queue = agent->audits;
    struct auditing *a = queue->first;

    if (a == NULL)
        return;
    a->work.data = a;
    if (uv_queue_work(&agent->loop, &a->work, audit_run, audit_ended) == 0)
        return;
    a->err = shoal_fail(&a->msg, SHOAL_ERR_FULL, "no thread is free; try again");
    audit_ended(&a->work, 0);
}

static void audit_ended(uv_work_t *work, int status)
{
    struct auditing *a = work->data;
    struct audit_queue *queue = a->agent->audits;
    struct agent_audited audited = { .progress = a->audit.progress };

    SHOAL_ASSERT(queue->first == a && queue->count > 0); /* A2 */
    if (status != 0)
        a->err = shoal_fail(&a->msg, SHOAL_ERR_UNREACHABLE, "this agent stops");
    queue->first = a->next;
    queue->count--;
    run_next(a->agent);
    audited.json = shoal_buf_view(&a->json);
    for (unsigned i = 0; i < a->asker_count; i++)
        a->askers[i].done(a->askers[i].arg, a->err, &a->msg, &audited);
    shoal_buf_deinit(&a->json);
    free(a->calls);
    free(a);
}

/* One of that job that waits, with room for one more asker; else a new one. NULL: there is no room for it. */
static struct auditing *place_for(struct agent *agent, struct shoal_job_id id)
{
    struct audit_queue *queue = agent->audits;
    struct auditing **end = &queue->first;
    struct auditing *a;

    for (; *end != NULL; end = &(*end)->next)
        if (*end != queue->first && shoal_job_id_equal((*end)->job, id))
            return (*end)->asker_count < AGENT_AUDIT_ASKERS_MAX ? *end : NULL;
    if (queue->count == AGENT_AUDITS_MAX)
        return NULL;
    a = calloc(1, sizeof(*a));
    if (a == NULL)
        return NULL;
    a->agent = agent;
    a->job = id;
    shoal_job_id_text(id, a->audit.text);
    agent_job_folder(agent, id, a->folder, sizeof(a->folder));
    *end = a;
    queue->count++;
    return a;
}

static void refuse(agent_audit_fn *done, void *arg, enum shoal_err err, const char *text)
{
    struct agent_audited nothing = { .json = { 0 } };
    struct shoal_msg msg;

    (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
    done(arg, err, &msg, &nothing);
}

void agent_audit_calls(struct agent *agent, struct shoal_job_id id, const struct shoal_call *calls, uint32_t count,
                       agent_audit_fn *done, void *arg)
{
    struct shoal_call *copy = calls == NULL ? NULL : malloc((count + 1) * sizeof(*copy));
    struct auditing *a;

    if (agent->audits == NULL)
        agent->audits = calloc(1, sizeof(*agent->audits));
    a = agent->audits == NULL || (calls != NULL && copy == NULL) ? NULL : place_for(agent, id);
    if (a == NULL) {
        free(copy);
        refuse(done, arg, SHOAL_ERR_FULL, "too many audits of ledgers wait on this host; try again later");
        return;
    }
    if (copy != NULL && count > 0)
        memcpy(copy, calls, count * sizeof(*copy));
    free(a->calls); /* what the asker before knew is older */
    a->calls = copy;
    a->audit.calls = copy;
    a->audit.call_count = copy == NULL ? 0 : count;
    a->askers[a->asker_count++] = (struct asker){ done, arg };
    if (a == agent->audits->first && a->asker_count == 1)
        run_next(agent);
}

void agent_audit(struct agent *agent, struct shoal_job_id id, agent_audit_fn *done, void *arg)
{
    const struct shoal_job *job = shoal_sched_job(agent->sched, id);

    if (job == NULL)
        refuse(done, arg, SHOAL_ERR_NOT_FOUND, "this host guards no such job");
    else
        agent_audit_calls(agent, id, job->calls, job->call_count, done, arg);
}
