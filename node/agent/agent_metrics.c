/* The loss curve of a job, from its ledger:
 *
 *   ledger (records of steps, in order) --thread, twice--> count --> {"job","steps","whole","stride","points":[...],
 *                                                                    "validationStride","validations":[...],"calls":[...]}
 *
 * M1. A train step's number counts the train steps of all calls, from 1 on, as `show` does. A validation has the number of
 *     the train step before it.
 * M2. Where more steps are asked for than points, each point stands for `stride` steps: it has the values of the last one,
 *     exactly, and the least and greatest of all. So no peak is lost, and who asks for fewer steps gets every one.
 * M3. A value is the mean over the step's mini-batches by their samples, as loggers get it; null where it is no number.
 * M4. A ledger may be of any length: of those that wait AGENT_CURVES_AT_ONCE are read, so that threads are left to the rest. */
#include "agent_metrics.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent_audit.h"
#include "agent_ledger.h"
#include "shoal/below.h"
#include "shoal/json_text.h"
#include "shoal/sched_look.h"
#include "shoal/step_record.h"

#include "shoal/banned.h"

/* Length of an answer, at most: it goes in one frame, and clients parse it as one text. */
#define JSON_BYTES_MAX (900 * SHOAL_KIB)
#define POINT_BYTES 100 /* without its values */
#define VALUE_BYTES 18

struct point {
    uint64_t step;
    uint32_t call, data_epoch;
    uint8_t count;
    double values[SHOAL_METRICS_MAX], least[SHOAL_METRICS_MAX], most[SHOAL_METRICS_MAX];
    uint64_t stands_for; /* steps; 0: nothing yet */
};

/* The curve of train steps, or of validations. */
struct series {
    uint64_t count, stride, shown;
    struct point now;
    struct shoal_buf json;
};

struct reading {
    uv_work_t work;
    struct reading *next;
    struct agent *agent;
    struct agent_metrics_ask ask;
    struct shoal_job_id job;
    char text[SHOAL_JOB_ID_TEXT_BYTES];
    char folder[AGENT_PATH_BYTES];
    bool archived;          /* it has no replica here, so its audit says what the calls are */
    struct shoal_buf calls; /* as agent_metrics_calls; empty: not known */
    uint32_t wanted_call;   /* the last record that is acknowledged; 0: none that is known of */
    uint64_t wanted_step;
    bool whole; /* it was found */
    uint8_t *record;
    unsigned values_max;
    uint64_t step; /* train steps so far */
    struct series train, validation;
    struct shoal_buf json;
    enum shoal_err err;
    agent_metrics_fn *done;
    void *arg;
};

/* M4 */
struct curve_queue {
    struct reading *first, **end; /* that wait */
    unsigned count;               /* those that are read, too */
    unsigned read;
};

__attribute__((format(printf, 3, 4))) static void put(struct reading *r, struct shoal_buf *buf, const char *format, ...)
{
    char text[200];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (r->err == SHOAL_OK)
        r->err = shoal_buf_append(buf, text, strlen(text));
}

static void put_values(struct reading *r, struct shoal_buf *buf, const char *name, const double *values, unsigned count)
{
    put(r, buf, ",\"%s\":[", name);
    for (unsigned i = 0; i < count; i++)
        if (isfinite(values[i]))
            put(r, buf, "%s%.9g", i == 0 ? "" : ",", values[i]);
        else
            put(r, buf, "%snull", i == 0 ? "" : ",");
    put(r, buf, "]");
}

/* M2 */
static void point_end(struct reading *r, struct series *series)
{
    const struct point *p = &series->now;

    if (p->stands_for == 0)
        return;
    put(r, &series->json, "%s{\"step\":%llu,\"call\":%u,\"dataEpoch\":%u", series->shown++ == 0 ? "" : ",",
        (unsigned long long)p->step, p->call, p->data_epoch);
    put_values(r, &series->json, "values", p->values, p->count);
    if (series->stride > 1) {
        put_values(r, &series->json, "min", p->least, p->count);
        put_values(r, &series->json, "max", p->most, p->count);
    }
    put(r, &series->json, "}");
    series->now.stands_for = 0;
}

/* M3 */
static bool means_of(const struct shoal_step_head *head, struct shoal_reader tuples, double *values)
{
    uint64_t samples = 0;

    for (unsigned i = 0; i < head->value_count; i++)
        values[i] = 0;
    for (uint32_t v = 0; v < head->v_count; v++) {
        struct shoal_step_tuple tuple;

        shoal_get_step_tuple(&tuples, &tuple, head->value_count);
        for (unsigned i = 0; i < head->value_count; i++)
            values[i] += tuple.values[i] * tuple.samples;
        samples += tuple.samples;
    }
    for (unsigned i = 0; i < head->value_count && samples > 0; i++)
        values[i] /= (double)samples;
    return samples > 0;
}

static void point_add(struct reading *r, struct series *series, const struct shoal_step_head *head,
                      struct shoal_reader tuples)
{
    struct point *p = &series->now;
    double values[SHOAL_METRICS_MAX];

    if (!means_of(head, tuples, values))
        return;
    if (p->stands_for > 0 && (p->call != head->call || p->count != head->value_count))
        point_end(r, series);
    p->step = r->step;
    p->call = head->call;
    p->data_epoch = head->data_epoch;
    p->count = head->value_count;
    for (unsigned i = 0; i < p->count; i++) {
        p->values[i] = values[i];
        p->least[i] = p->stands_for == 0 ? values[i] : fmin(p->least[i], values[i]);
        p->most[i] = p->stands_for == 0 ? values[i] : fmax(p->most[i], values[i]);
    }
    if (++p->stands_for >= series->stride)
        point_end(r, series);
}

static void record_count(struct reading *r, const struct shoal_step_head *head, struct series *series)
{
    series->count++;
    if (head->value_count > r->values_max)
        r->values_max = head->value_count;
}

/* One pass over the file. It ends at a torn record, or at one that is being written; the first one sees whether the file is
 * whole. */
static void pass(struct reading *r, bool count_only)
{
    int fd = shoal_open_below(r->folder, "ledger", O_RDONLY);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    uint8_t length[4];

    if (file == NULL && fd >= 0)
        (void)close(fd);
    r->step = 0;
    while (file != NULL && fread(length, sizeof(length), 1, file) == 1) {
        struct shoal_reader l = shoal_reader_init(shoal_view_of(length, sizeof(length)));
        uint32_t len = shoal_get_u32(&l);
        struct shoal_step_head head;
        struct shoal_reader tuples;
        struct series *series;

        if (len == 0 || len > LEDGER_RECORD_BYTES_MAX || fread(r->record, 1, len, file) != len ||
            shoal_step_record_len(shoal_view_of(r->record, len), &head, &tuples) != len)
            break;
        if (head.call > r->wanted_call || (head.call == r->wanted_call && head.step >= r->wanted_step))
            r->whole = true;
        if (head.kind == SHOAL_STEP_FILES)
            continue;
        r->step += head.kind == SHOAL_STEP_TRAIN ? 1 : 0;
        if (r->step > r->ask.to && (r->whole || !count_only))
            break;
        if (r->step < r->ask.from || r->step > r->ask.to)
            continue;
        series = head.kind == SHOAL_STEP_TRAIN ? &r->train : &r->validation;
        if (count_only)
            record_count(r, &head, series);
        else
            point_add(r, series, &head, tuples);
    }
    if (file != NULL)
        (void)fclose(file);
}

static uint64_t stride_of(uint64_t count, uint64_t points_max)
{
    SHOAL_ASSERT(points_max > 0);
    return count <= points_max ? 1 : (count + points_max - 1) / points_max;
}

static void strides_choose(struct reading *r)
{
    uint64_t exact = JSON_BYTES_MAX / (POINT_BYTES + (uint64_t)VALUE_BYTES * r->values_max);
    uint64_t thinned = JSON_BYTES_MAX / (POINT_BYTES + 3ull * VALUE_BYTES * r->values_max);
    uint64_t all = r->train.count + r->validation.count;
    uint64_t max = all <= exact ? exact : thinned;

    /* Validations take at most a quarter. */
    r->validation.stride = stride_of(r->validation.count, all <= exact ? exact : max / 4);
    max = all <= exact ? max : max - max / 4;
    r->train.stride = stride_of(r->train.count, max < r->ask.points_max ? max : r->ask.points_max);
}

/* The calls of an archived job are the last of its audit's fields. An audit of the version before has none. */
static void calls_of_audit(struct reading *r)
{
    static const char calls[] = ",\"calls\":[";
    struct shoal_buf audit = { 0 };
    const uint8_t *at;
    struct shoal_msg msg;

    if (agent_audit_kept(r->agent, r->job, &audit, &msg) == SHOAL_OK) {
        at = memmem(audit.bytes, audit.len, calls, sizeof(calls) - 1);
        if (at != NULL)
            r->err = shoal_buf_append(&r->calls, at, (size_t)(audit.bytes + audit.len - 1 - at));
    }
    shoal_buf_deinit(&audit);
}

static void read_run(uv_work_t *work)
{
    struct reading *r = work->data;

    r->record = malloc(LEDGER_RECORD_BYTES_MAX);
    if (r->record == NULL) {
        r->err = SHOAL_ERR_FULL;
        return;
    }
    if (r->archived)
        calls_of_audit(r);
    pass(r, true);
    strides_choose(r);
    pass(r, false);
    point_end(r, &r->train);
    point_end(r, &r->validation);
    put(r, &r->json, "{\"job\":\"%s\",\"steps\":%llu,\"whole\":%s,\"stride\":%llu,\"points\":[", r->text,
        (unsigned long long)r->train.count, r->whole ? "true" : "false", (unsigned long long)r->train.stride);
    if (r->err == SHOAL_OK && r->train.json.len > 0)
        r->err = shoal_buf_append(&r->json, r->train.json.bytes, r->train.json.len);
    put(r, &r->json, "],\"validationStride\":%llu,\"validations\":[", (unsigned long long)r->validation.stride);
    if (r->err == SHOAL_OK && r->validation.json.len > 0)
        r->err = shoal_buf_append(&r->json, r->validation.json.bytes, r->validation.json.len);
    put(r, &r->json, "]");
    if (r->calls.len == 0)
        put(r, &r->json, ",\"calls\":[]");
    else if (r->err == SHOAL_OK)
        r->err = shoal_buf_append(&r->json, r->calls.bytes, r->calls.len);
    put(r, &r->json, "}");
}

static void read_next(struct curve_queue *queue);

static void read_ended(uv_work_t *work, int status)
{
    struct reading *r = work->data;
    struct curve_queue *queue = r->agent->curves;

    (void)status;
    SHOAL_ASSERT(queue->read > 0 && queue->count > 0); /* M4 */
    queue->read--;
    queue->count--;
    read_next(queue);
    r->done(r->arg, r->err, r->err == SHOAL_OK ? "" : "out of memory; try again later", shoal_buf_view(&r->json),
            r->whole);
    free(r->record);
    shoal_buf_deinit(&r->calls);
    shoal_buf_deinit(&r->train.json);
    shoal_buf_deinit(&r->validation.json);
    shoal_buf_deinit(&r->json);
    free(r);
}

static void read_next(struct curve_queue *queue)
{
    while (queue->first != NULL && queue->read < AGENT_CURVES_AT_ONCE) {
        struct reading *r = queue->first;

        queue->first = r->next;
        if (queue->first == NULL)
            queue->end = &queue->first;
        queue->read++;
        (void)uv_queue_work(&r->agent->loop, &r->work, read_run, read_ended);
    }
}

/* NULL: there is no room for one more. */
static struct curve_queue *queue_need(struct agent *agent)
{
    if (agent->curves == NULL) {
        agent->curves = calloc(1, sizeof(*agent->curves));
        if (agent->curves != NULL)
            agent->curves->end = &agent->curves->first;
    }
    return agent->curves == NULL || agent->curves->count == AGENT_CURVES_MAX ? NULL : agent->curves;
}

/* ---- what the values are ---- */

enum shoal_err agent_metrics_calls(const struct shoal_call *calls, uint32_t count, struct shoal_buf *json)
{
    enum shoal_err err = shoal_buf_append(json, ",\"calls\":[", 10);

    for (uint32_t i = 0; i < count && err == SHOAL_OK; i++) {
        const struct shoal_call *call = &calls[i];
        char text[64];

        (void)snprintf(text, sizeof(text), "%s{\"call\":%u,\"names\":[", i == 0 ? "" : ",", call->call);
        err = shoal_buf_append(json, text, strlen(text));
        for (unsigned n = 0; n < call->sizes.metric_count && n < SHOAL_METRICS_MAX && err == SHOAL_OK; n++) {
            if (n > 0)
                err = shoal_buf_append(json, ",", 1);
            if (err == SHOAL_OK)
                err = shoal_json_quote(shoal_view_text(call->sizes.metric_names[n]), json);
        }
        if (err == SHOAL_OK)
            err = shoal_buf_append(json, "]}", 2);
    }
    return err == SHOAL_OK ? shoal_buf_append(json, "]", 1) : err;
}

void agent_metrics_read(struct agent *agent, struct shoal_job_id id, const struct agent_metrics_ask *ask,
                        agent_metrics_fn *done, void *arg)
{
    const struct shoal_job *job = shoal_sched_job(agent->sched, id);
    const struct shoal_call *last =
        job == NULL || job->calls == NULL || job->call_count == 0 ? NULL : &job->calls[job->call_count - 1];
    struct curve_queue *queue = queue_need(agent);
    struct reading *r = queue == NULL ? NULL : calloc(1, sizeof(*r));

    SHOAL_ASSERT(ask->points_max > 0);
    if (r == NULL) {
        done(arg, SHOAL_ERR_FULL, "too many curves of ledgers wait on this host; try again later", (struct shoal_view){ 0 }, false);
        return;
    }
    r->work.data = r;
    r->agent = agent;
    r->ask = *ask;
    r->done = done;
    r->arg = arg;
    r->whole = last == NULL || last->records_acked == 0;
    r->job = id;
    r->archived = job == NULL;
    shoal_job_id_text(id, r->text);
    agent_job_folder(agent, id, r->folder, sizeof(r->folder));
    if (job != NULL && job->calls != NULL) {
        r->wanted_call = r->whole ? 0 : last->call;
        r->wanted_step = r->whole ? 0 : last->records_acked;
        r->err = agent_metrics_calls(job->calls, job->call_count, &r->calls);
    }
    *queue->end = r;
    queue->end = &r->next;
    queue->count++;
    read_next(queue);
}
