/* The audit of a ledger: was every sample of every data epoch used exactly once?
 *
 * Which samples belong to mini-batch v of a step is a pure function of (job seed, data epoch, step, v) (permute.h), so
 * the auditor needs no list: it computes the keyed sum of the ids that should have been handed out and compares it with
 * the sum of those that were. A sample skipped, doubled or exchanged, a step missing or repeated: each makes an error
 * line. */
#include "agent_ledger.h"

#include "agent_metrics.h"

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
    const struct shoal_job *job;
    const struct shoal_call *call;
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

    if (a->call == NULL || a->call->call != head->call) {
        a->call = head->call >= 1 && head->call <= a->job->call_count ? &a->job->calls[head->call - 1] : NULL;
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
    for (uint32_t i = 0; i < a->job->call_count; i++) {
        const struct shoal_call *call = &a->job->calls[i];
        uint64_t wanted = call->state >= SHOAL_CALL_DONE && call->final_step > call->records_acked
                              ? call->final_step
                              : call->records_acked;

        a->records_wanted += wanted;
        if (call->call <= SHOAL_CALLS_MAX && a->held[call->call] < wanted)
            wrong(a, "call %u: %llu records of %llu are here", call->call, (unsigned long long)a->held[call->call],
                  (unsigned long long)wanted);
    }
}

static enum shoal_err put_audit(const struct audit *a, const char *id, struct shoal_buf *json)
{
    uint64_t wanted = 0;
    enum shoal_err err;

    SHOAL_ASSERT(a->job->call_count == 0 || a->job->calls != NULL);
    for (uint32_t i = 0; i < a->job->call_count; i++)
        wanted += a->job->calls[i].sizes.data_epochs;
    err = put(json,
              "{\"job\":\"%s\",\"records\":%llu,\"records_wanted\":%llu,\"steps\":%llu,\"validations\":%llu,"
              "\"samples\":%llu,\"data_epochs\":%llu,"
              "\"data_epochs_wanted\":%llu,\"samples_per_epoch\":%llu,\"exact\":%s,\"errors\":[",
              id, (unsigned long long)a->records, (unsigned long long)a->records_wanted, (unsigned long long)a->steps,
              (unsigned long long)a->validations, (unsigned long long)a->samples,
              (unsigned long long)a->data_epochs_done, (unsigned long long)wanted,
              (unsigned long long)(a->job->call_count > 0 ? a->job->calls[0].sizes.samples : 0),
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
        err = agent_metrics_calls(a->job, json);
    return err == SHOAL_OK ? put(json, "}") : err;
}

enum shoal_err agent_ledger_none(struct shoal_job_id id, struct shoal_buf *json)
{
    static const struct shoal_job nothing;
    static const struct audit none = { .job = &nothing };
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    shoal_job_id_text(id, text);
    return put_audit(&none, text, json);
}

enum shoal_err agent_ledger_audit(struct agent *agent, struct shoal_job_id id, struct shoal_buf *json)
{
    struct audit *a = calloc(1, sizeof(*a));
    char text[SHOAL_JOB_ID_TEXT_BYTES];
    enum shoal_err err = SHOAL_OK;

    SHOAL_ASSERT(a != NULL);
    shoal_job_id_text(id, text);
    a->job = shoal_sched_job(agent->sched, id);
    if (a->job == NULL) {
        free(a);
        return SHOAL_ERR_NOT_FOUND;
    }
    if (a->job->calls != NULL)
        err = agent_ledger_each(agent, id, each_record, a);
    count_wanted(a);
    if (err == SHOAL_OK)
        err = put_audit(a, text, json);
    free(a);
    return err;
}
