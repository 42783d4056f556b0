/* Copies of a job for others: snapshots for guardians, facts for a request, summaries for gossip. */
#include "shoal/job.h"

#include "job_wire.h"
#include "shoal/banned.h"

static void put_snapshot(struct shoal_writer *w, const struct shoal_job *job)
{
    job_put_head(w, 0, SHOAL_JOB_VERSION);
    shoal_put_job_id(w, job->id);
    shoal_put_u64(w, job->ticket_ms);
    shoal_put_u64(w, job->create_ms);
    shoal_put_node_id(w, job->founder);
    shoal_put_u32(w, job->generation);
    shoal_put_bytes(w, job->spec_bytes);
    shoal_put_u64(w, job->applied);
    shoal_put_u64(w, job->digest);
    shoal_put_u64(w, job->refused);
    shoal_put_u8(w, job->state);
    shoal_put_bool(w, job->stop);
    shoal_put_bool(w, job->deleted);
    shoal_put_bool(w, job->result_wanted);
    shoal_put_u32(w, job->attempt);
    shoal_put_u32(w, (uint32_t)job->exit_code);
    shoal_put_u64(w, job->start_ms);
    shoal_put_u64(w, job->end_ms);
    shoal_put_text(w, job->reason);
    shoal_put_hash(w, job->result);
    shoal_put_u64(w, job->workers_made);
    shoal_put_u32(w, job->placement_count);
    for (uint32_t i = 0; i < job->placement_count; i++)
        job_put_placement(w, &job->placements[i]);
    shoal_put_u32(w, job->call_count);
    for (uint32_t i = 0; i < job->call_count; i++)
        job_put_call(w, &job->calls[i]);
    shoal_put_u32(w, job->data_epoch_count);
    for (uint32_t i = 0; i < job->data_epoch_count; i++)
        job_put_data_epoch(w, &job->data_epochs[i]);
    if (job->epoch != NULL)
        shoal_worker_put_epoch(w, job->epoch);
    /* As older versions wrote it, until there is something to say. */
    if (job->generation > 1 || !shoal_hash_is_zero(job->archived))
        shoal_put_bool(w, job->unsettled);
    if (!shoal_hash_is_zero(job->archived))
        shoal_put_hash(w, job->archived);
}

enum shoal_err shoal_job_snapshot_encode(const struct shoal_job *job, uint8_t *bytes, size_t cap, size_t *len)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap);

    put_snapshot(&w, job);
    if (w.failed)
        return SHOAL_ERR_TOO_BIG;
    *len = w.len;
    return SHOAL_OK;
}

static void get_flags(struct shoal_reader *r, struct shoal_job *job)
{
    job->applied = shoal_get_u64(r);
    job->digest = shoal_get_u64(r);
    job->refused = shoal_get_u64(r);
    job->state = shoal_get_enum(r, SHOAL_JOB_STATE_COUNT);
    job->stop = shoal_get_bool(r);
    job->deleted = shoal_get_bool(r);
    job->result_wanted = shoal_get_bool(r);
    job->attempt = shoal_get_u32(r);
    job->exit_code = (int32_t)shoal_get_u32(r);
    job->start_ms = shoal_get_u64(r);
    job->end_ms = shoal_get_u64(r);
    shoal_get_text(r, job->reason, sizeof(job->reason));
    job->result = shoal_get_hash(r);
    job->workers_made = shoal_get_u64(r);
}

static uint32_t get_count(struct shoal_reader *r, uint32_t max)
{
    uint32_t count = shoal_get_u32(r);

    if (count > max)
        r->failed = true;
    return r->failed ? 0 : count;
}

static void get_lists(struct shoal_reader *r, struct shoal_job *job)
{
    bool elastic = job->calls != NULL;

    job->placement_count = get_count(r, SHOAL_PLACEMENTS_MAX);
    for (uint32_t i = 0; i < job->placement_count; i++)
        job_get_placement(r, &job->placements[i]);
    job->call_count = get_count(r, elastic ? SHOAL_CALLS_MAX : 0);
    for (uint32_t i = 0; i < job->call_count; i++) {
        job_get_call(r, &job->calls[i]);
        if (job->calls[i].call != i + 1)
            r->failed = true;
    }
    job->data_epoch_count = get_count(r, elastic ? SHOAL_DATA_EPOCHS_MAX : 0);
    for (uint32_t i = 0; i < job->data_epoch_count; i++)
        job_get_data_epoch(r, &job->data_epochs[i]);
    if (elastic && !r->failed)
        shoal_worker_get_epoch(r, job->epoch);
}

enum shoal_err shoal_job_restore(struct shoal_job **out, struct shoal_view bytes)
{
    struct shoal_reader r = shoal_reader_init(bytes);
    struct shoal_job_founding founding = { .generation = 0 };
    struct shoal_job *job;
    enum shoal_err err;

    (void)job_get_head(&r, 1, SHOAL_JOB_VERSION);
    founding.id = shoal_get_job_id(&r);
    founding.ticket_ms = shoal_get_u64(&r);
    founding.create_ms = shoal_get_u64(&r);
    founding.founder = shoal_get_node_id(&r);
    founding.generation = shoal_get_u32(&r);
    founding.spec = shoal_get_bytes(&r, SHOAL_JOB_SPEC_BYTES_MAX);
    if (r.failed)
        return SHOAL_ERR_MALFORMED;
    err = shoal_job_create(&job, &founding);
    if (err != SHOAL_OK)
        return err;
    get_flags(&r, job);
    get_lists(&r, job);
    if (job->generation > 1 || shoal_reader_left(&r) > 0)
        job->unsettled = shoal_get_bool(&r);
    if (shoal_reader_left(&r) > 0)
        job->archived = shoal_get_hash(&r);
    if (!shoal_reader_done(&r)) {
        shoal_job_destroy(job);
        return SHOAL_ERR_MALFORMED;
    }
    *out = job;
    return SHOAL_OK;
}

void shoal_job_facts(const struct shoal_job *job, struct shoal_job_facts *facts)
{
    const struct shoal_placement *driver = shoal_job_driver(job);
    const struct shoal_call *call = shoal_job_call(job, job->call_count);

    memset(facts, 0, sizeof(*facts));
    facts->id = job->id;
    facts->state = job->state;
    facts->elastic = job->spec.elastic;
    facts->stop = job->stop;
    facts->deleted = job->deleted;
    memcpy(facts->framework, job->spec.framework, sizeof(facts->framework));
    memcpy(facts->creator, job->spec.creator, sizeof(facts->creator));
    memcpy(facts->app_name, job->spec.app_name, sizeof(facts->app_name));
    memcpy(facts->reason, job->reason, sizeof(facts->reason));
    facts->generation = job->generation;
    facts->attempt = job->attempt;
    facts->workers_min = job->spec.workers_min;
    facts->workers_max = job->spec.workers_max;
    facts->workers_now =
        job->epoch != NULL && call != NULL && call->state == SHOAL_CALL_RUNNING ? job->epoch->member_count : 0;
    if (!job->spec.elastic)
        facts->workers_now = shoal_job_held(job);
    facts->priority = job->spec.priority;
    facts->exit_code = job->exit_code;
    facts->ticket_ms = job->ticket_ms;
    facts->create_ms = job->create_ms;
    facts->start_ms = job->start_ms;
    facts->end_ms = job->end_ms;
    if (driver != NULL)
        facts->driver_node = driver->node;
    facts->applied = job->applied;
    if (job->epoch != NULL)
        facts->epoch = job->epoch->epoch;
    if (call != NULL) {
        SHOAL_ASSERT(job->epoch != NULL); /* made together with the calls */
        facts->call = call->call;
        facts->step = call->state >= SHOAL_CALL_DONE ? call->final_step : job->epoch->decided_step;
        facts->logged_step = call->logged_step;
    }
    if (job->data_epoch_count > 0) {
        const struct shoal_data_epoch *last = &job->data_epochs[job->data_epoch_count - 1];

        facts->has_metrics = true;
        facts->data_epoch = last->data_epoch;
        facts->loss_micro = last->loss_micro;
        facts->metric_micro = last->metric_micro;
    }
    for (uint32_t i = 0; i < job->call_count; i++)
        if (job->calls[i].state == SHOAL_CALL_FINISHED)
            facts->files = job->calls[i].files;
    facts->result = job->result;
    facts->args = job->spec.args;
    facts->data_json = job->spec.data_json;
}

enum shoal_err shoal_job_facts_encode(const struct shoal_job_facts *facts, uint8_t *bytes, size_t cap, size_t *len)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap);

    job_put_head(&w, 0, SHOAL_JOB_VERSION);
    shoal_put_job_id(&w, facts->id);
    shoal_put_u8(&w, facts->state);
    shoal_put_bool(&w, facts->elastic);
    shoal_put_bool(&w, facts->stop);
    shoal_put_bool(&w, facts->deleted);
    shoal_put_bool(&w, facts->has_metrics);
    shoal_put_text(&w, facts->framework);
    shoal_put_text(&w, facts->creator);
    shoal_put_text(&w, facts->app_name);
    shoal_put_text(&w, facts->reason);
    shoal_put_text(&w, facts->pending);
    shoal_put_u32(&w, facts->generation);
    shoal_put_u32(&w, facts->attempt);
    shoal_put_u32(&w, facts->workers_min);
    shoal_put_u32(&w, facts->workers_max);
    shoal_put_u32(&w, facts->workers_now);
    shoal_put_u32(&w, facts->priority);
    shoal_put_u32(&w, (uint32_t)facts->exit_code);
    shoal_put_u64(&w, facts->ticket_ms);
    shoal_put_u64(&w, facts->create_ms);
    shoal_put_u64(&w, facts->start_ms);
    shoal_put_u64(&w, facts->end_ms);
    shoal_put_node_id(&w, facts->leader);
    shoal_put_node_id(&w, facts->driver_node);
    shoal_put_u64(&w, facts->term);
    shoal_put_u64(&w, facts->applied);
    shoal_put_epoch(&w, facts->epoch);
    shoal_put_u32(&w, facts->call);
    shoal_put_u64(&w, facts->step);
    shoal_put_u64(&w, facts->logged_step);
    shoal_put_u32(&w, facts->data_epoch);
    shoal_put_u32(&w, facts->rate_milli);
    shoal_put_u64(&w, (uint64_t)facts->loss_micro);
    shoal_put_u64(&w, (uint64_t)facts->metric_micro);
    shoal_put_u32(&w, facts->join_pause_us);
    shoal_put_hash(&w, facts->result);
    shoal_put_hash(&w, facts->files);
    shoal_put_bytes(&w, facts->args);
    shoal_put_bytes(&w, facts->data_json);
    if (w.failed)
        return SHOAL_ERR_TOO_BIG;
    *len = w.len;
    return SHOAL_OK;
}

enum shoal_err shoal_job_facts_decode(struct shoal_view bytes, struct shoal_job_facts *facts)
{
    struct shoal_reader r = shoal_reader_init(bytes);

    memset(facts, 0, sizeof(*facts));
    (void)job_get_head(&r, 1, SHOAL_JOB_VERSION);
    facts->id = shoal_get_job_id(&r);
    facts->state = shoal_get_enum(&r, SHOAL_JOB_STATE_COUNT);
    facts->elastic = shoal_get_bool(&r);
    facts->stop = shoal_get_bool(&r);
    facts->deleted = shoal_get_bool(&r);
    facts->has_metrics = shoal_get_bool(&r);
    shoal_get_text(&r, facts->framework, sizeof(facts->framework));
    shoal_get_text(&r, facts->creator, sizeof(facts->creator));
    shoal_get_text(&r, facts->app_name, sizeof(facts->app_name));
    shoal_get_text(&r, facts->reason, sizeof(facts->reason));
    shoal_get_text(&r, facts->pending, sizeof(facts->pending));
    facts->generation = shoal_get_u32(&r);
    facts->attempt = shoal_get_u32(&r);
    facts->workers_min = shoal_get_u32(&r);
    facts->workers_max = shoal_get_u32(&r);
    facts->workers_now = shoal_get_u32(&r);
    facts->priority = shoal_get_u32(&r);
    facts->exit_code = (int32_t)shoal_get_u32(&r);
    facts->ticket_ms = shoal_get_u64(&r);
    facts->create_ms = shoal_get_u64(&r);
    facts->start_ms = shoal_get_u64(&r);
    facts->end_ms = shoal_get_u64(&r);
    facts->leader = shoal_get_node_id(&r);
    facts->driver_node = shoal_get_node_id(&r);
    facts->term = shoal_get_u64(&r);
    facts->applied = shoal_get_u64(&r);
    facts->epoch = shoal_get_epoch(&r);
    facts->call = shoal_get_u32(&r);
    facts->step = shoal_get_u64(&r);
    facts->logged_step = shoal_get_u64(&r);
    facts->data_epoch = shoal_get_u32(&r);
    facts->rate_milli = shoal_get_u32(&r);
    facts->loss_micro = (int64_t)shoal_get_u64(&r);
    facts->metric_micro = (int64_t)shoal_get_u64(&r);
    facts->join_pause_us = shoal_get_u32(&r);
    facts->result = shoal_get_hash(&r);
    facts->files = shoal_get_hash(&r);
    facts->args = shoal_get_bytes(&r, SHOAL_JOB_SPEC_BYTES_MAX);
    facts->data_json = shoal_get_bytes(&r, SHOAL_JOB_SPEC_BYTES_MAX);
    return shoal_reader_done(&r) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

enum shoal_err shoal_job_summary_encode(const struct shoal_job_summary *s, uint8_t *bytes, size_t cap, size_t *len)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap < SHOAL_RECORD_PAYLOAD_MAX ? cap : SHOAL_RECORD_PAYLOAD_MAX);

    if (s->host_count > SHOAL_SUMMARY_HOSTS_MAX)
        return SHOAL_ERR_TOO_BIG;
    job_put_head(&w, 0, SHOAL_JOB_VERSION);
    shoal_put_job_id(&w, s->id);
    shoal_put_u8(&w, s->state);
    shoal_put_u8(&w, s->device);
    shoal_put_bool(&w, s->elastic);
    shoal_put_bool(&w, s->has_metrics);
    shoal_put_text(&w, s->creator);
    shoal_put_text(&w, s->framework);
    shoal_put_text(&w, s->app_name);
    shoal_put_text(&w, s->pending);
    shoal_put_u32(&w, s->priority);
    shoal_put_u64(&w, s->ticket_ms);
    shoal_put_u32(&w, s->want_min);
    shoal_put_u32(&w, s->want_max);
    shoal_put_u32(&w, s->workers_min);
    shoal_put_u32(&w, s->workers_max);
    shoal_put_u32(&w, s->held);
    shoal_put_u32(&w, s->class_hash);
    shoal_put_node_id(&w, s->leader);
    shoal_put_u64(&w, s->term);
    shoal_put_epoch(&w, s->epoch);
    shoal_put_u64(&w, s->step);
    shoal_put_u32(&w, s->data_epoch);
    shoal_put_u32(&w, s->rate_milli);
    shoal_put_u64(&w, (uint64_t)s->loss_micro);
    shoal_put_u64(&w, (uint64_t)s->metric_micro);
    shoal_put_u64(&w, s->create_ms);
    shoal_put_u64(&w, s->start_ms);
    shoal_put_u64(&w, s->end_ms);
    shoal_put_u8(&w, s->host_count);
    for (unsigned i = 0; i < s->host_count; i++) {
        shoal_put_node_id(&w, s->hosts[i].node);
        shoal_put_u64(&w, s->hosts[i].slots);
    }
    if (w.failed)
        return SHOAL_ERR_TOO_BIG;
    *len = w.len;
    return SHOAL_OK;
}

enum shoal_err shoal_job_summary_decode(struct shoal_view bytes, struct shoal_job_summary *s)
{
    struct shoal_reader r = shoal_reader_init(bytes);

    memset(s, 0, sizeof(*s));
    (void)job_get_head(&r, 1, SHOAL_JOB_VERSION);
    s->id = shoal_get_job_id(&r);
    s->state = shoal_get_enum(&r, SHOAL_JOB_STATE_COUNT);
    s->device = shoal_get_enum(&r, SHOAL_JOB_DEVICE_COUNT);
    s->elastic = shoal_get_bool(&r);
    s->has_metrics = shoal_get_bool(&r);
    shoal_get_text(&r, s->creator, sizeof(s->creator));
    shoal_get_text(&r, s->framework, sizeof(s->framework));
    shoal_get_text(&r, s->app_name, sizeof(s->app_name));
    shoal_get_text(&r, s->pending, sizeof(s->pending));
    s->priority = shoal_get_u32(&r);
    s->ticket_ms = shoal_get_u64(&r);
    s->want_min = shoal_get_u32(&r);
    s->want_max = shoal_get_u32(&r);
    s->workers_min = shoal_get_u32(&r);
    s->workers_max = shoal_get_u32(&r);
    s->held = shoal_get_u32(&r);
    s->class_hash = shoal_get_u32(&r);
    s->leader = shoal_get_node_id(&r);
    s->term = shoal_get_u64(&r);
    s->epoch = shoal_get_epoch(&r);
    s->step = shoal_get_u64(&r);
    s->data_epoch = shoal_get_u32(&r);
    s->rate_milli = shoal_get_u32(&r);
    s->loss_micro = (int64_t)shoal_get_u64(&r);
    s->metric_micro = (int64_t)shoal_get_u64(&r);
    s->create_ms = shoal_get_u64(&r);
    s->start_ms = shoal_get_u64(&r);
    s->end_ms = shoal_get_u64(&r);
    s->host_count = shoal_get_enum(&r, SHOAL_SUMMARY_HOSTS_MAX + 1);
    for (unsigned i = 0; i < s->host_count; i++) {
        s->hosts[i].node = shoal_get_node_id(&r);
        s->hosts[i].slots = shoal_get_u64(&r);
    }
    return shoal_reader_done(&r) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

uint32_t shoal_class_hash(const char *numeric_class)
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    if (numeric_class[0] == '\0')
        return 0;
    for (const char *c = numeric_class; *c != '\0'; c++)
        hash = (hash ^ (uint8_t)*c) * 16777619u;
    return hash == 0 ? 1 : hash;
}
