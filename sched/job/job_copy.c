/* Copies of a job for others: snapshots for guardians, facts for a request, summaries for gossip. */
#include "shoal/job.h"
#include "shoal/job_facts.h"
#include "shoal/fabric_address.h"

#include "job_array.h"
#include "job_wire.h"
#include "shoal/banned.h"

static void put_snapshot(struct shoal_writer *w, const struct shoal_job *job)
{
    SHOAL_ASSERT(job->state < SHOAL_JOB_STATE_COUNT);             /* what is written can be read */
    SHOAL_ASSERT(job->call_count <= SHOAL_CALLS_MAX);             /* what is written can be read */
    SHOAL_ASSERT(job->data_epoch_count <= SHOAL_DATA_EPOCHS_MAX); /* what is written can be read */
    SHOAL_ASSERT((job->epoch != NULL) == (job->calls != NULL));   /* both, or not elastic */
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
    if (job->tasks != NULL)
        job_put_tasks(w, job->tasks);
    if (shoal_job_spec_serves(&job->spec)) {
        shoal_put_u32(w, job->tasks->replicas);
        shoal_put_u32(w, job->revision);
        shoal_put_bytes(w, shoal_view_of(job->document, job->document_len));
    }
    /* As older versions wrote it, until there is something to say. */
    if (job->generation > 1 || !shoal_hash_is_zero(job->archived))
        shoal_put_bool(w, job->unsettled);
    if (!shoal_hash_is_zero(job->archived))
        shoal_put_hash(w, job->archived);
}

enum shoal_err shoal_job_snapshot_encode(const struct shoal_job *job, uint8_t *bytes, size_t cap, size_t *len)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap);

    SHOAL_ASSERT(job->generation > 0); /* J5: counted from 1 */
    put_snapshot(&w, job);
    if (w.failed)
        return SHOAL_ERR_TOO_BIG;
    *len = w.len;
    return SHOAL_OK;
}

static void get_flags(struct shoal_reader *r, struct shoal_job *job)
{
    SHOAL_ASSERT(job->applied == 0); /* read into a fresh job */
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

static void get_document(struct shoal_reader *r, struct shoal_job *job)
{
    struct shoal_view document;

    SHOAL_ASSERT(job->document != NULL); /* of a service */
    job->tasks->replicas = shoal_get_u32(r);
    job->revision = shoal_get_u32(r);
    document = shoal_get_bytes(r, SHOAL_SERVICE_DOCUMENT_BYTES_MAX);
    if (r->failed)
        return;
    if (document.len > 0)
        memcpy(job->document, document.bytes, document.len);
    job->document_len = (uint32_t)document.len;
}

static void get_lists(struct shoal_reader *r, struct shoal_job *job)
{
    bool elastic = job->calls != NULL;

    SHOAL_ASSERT(job->placement_count == 0); /* read into a fresh job */
    job->placement_count = get_count(r, job->placement_cap);
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
    if (job->tasks != NULL && !r->failed)
        job_get_tasks(r, job->tasks);
    if (shoal_job_spec_serves(&job->spec) && job->tasks != NULL && !r->failed)
        get_document(r, job);
    if (job->tasks != NULL && job->tasks->replicas > SHOAL_SERVICE_REPLICAS_MAX)
        r->failed = true;
    if (job->tasks != NULL && !r->failed && !job_tasks_valid(job))
        r->failed = true;
}

enum shoal_err shoal_job_restore(struct shoal_job **out, struct shoal_view bytes)
{
    struct shoal_reader r = shoal_reader_init(bytes);
    struct shoal_job_founding founding = { .generation = 0 };
    struct shoal_job *job;
    enum shoal_err err;

    SHOAL_ASSERT(out != NULL);
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

/* As its members choose it (collective/comm/fabric.c). */
static void name_transport(const struct shoal_worker_epoch *epoch, char *text, size_t cap)
{
    struct shoal_fabric_common common = { 0 };
    bool apart = false;

    SHOAL_ASSERT(epoch->member_count <= SHOAL_RANKS_MAX);
    for (uint32_t i = 0; i < epoch->member_count; i++) {
        shoal_fabric_common_add(&common, epoch->members[i].address, epoch->members[i].address_len);
        apart = apart || memcmp(&epoch->members[i].node, &epoch->members[0].node, sizeof(epoch->members[0].node)) != 0;
    }
    if (apart && common.ucx)
        (void)snprintf(text, cap, "ucx %u.%u", common.major, common.minor);
    else if (apart)
        (void)snprintf(text, cap, "%s", common.sealed ? "tcp sealed" : "tcp");
    else
        (void)snprintf(text, cap, "%s", epoch->member_count == 0 ? "" : "memory");
}

static uint32_t workers_now(const struct shoal_job *job, const struct shoal_call *call)
{
    SHOAL_ASSERT(call == NULL || call->call == job->call_count); /* the last one */
    if (shoal_job_state_ended((enum shoal_job_state)job->state))
        return 0; /* whatever its last call says: nobody ends that one any more */
    if (!job->spec.elastic)
        return shoal_job_held(job);
    return job->epoch != NULL && call != NULL && call->state == SHOAL_CALL_RUNNING ? job->epoch->member_count : 0;
}

void shoal_job_facts_asked(const struct shoal_job_spec *spec, struct shoal_job_facts *facts)
{
    uint64_t mib = spec->worker_memory_bytes / SHOAL_MIB;
    size_t len = strnlen(spec->model_dir, sizeof(spec->model_dir));

    SHOAL_ASSERT(spec->device < SHOAL_JOB_DEVICE_COUNT); /* what is written can be read */
    facts->priority = spec->priority;
    facts->device = spec->device;
    facts->worker_mib = mib < UINT32_MAX ? (uint32_t)mib : UINT32_MAX;
    if (len < sizeof(facts->work))
        memcpy(facts->work, spec->model_dir, len + 1);
}

void shoal_job_facts(const struct shoal_job *job, struct shoal_job_facts *facts)
{
    const struct shoal_placement *driver = shoal_job_driver(job);
    const struct shoal_call *call = shoal_job_call(job, job->call_count);

    SHOAL_ASSERT(job->placement_count <= job->placement_cap);     /* J4 */
    SHOAL_ASSERT(job->data_epoch_count <= SHOAL_DATA_EPOCHS_MAX); /* J4 */
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
    facts->workers_now = workers_now(job, call);
    shoal_job_facts_asked(&job->spec, facts);
    facts->exit_code = job->exit_code;
    facts->ticket_ms = job->ticket_ms;
    facts->create_ms = job->create_ms;
    facts->start_ms = job->start_ms;
    facts->end_ms = job->end_ms;
    if (driver != NULL)
        facts->driver_node = driver->node;
    facts->applied = job->applied;
    if (job->epoch != NULL) {
        facts->epoch = job->epoch->epoch;
        name_transport(job->epoch, facts->transport, sizeof(facts->transport));
    }
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
    if (!shoal_hash_is_zero(facts->result) || !shoal_hash_is_zero(facts->files))
        facts->bundle = job->spec.bundle_hash;
    facts->args = job->spec.args;
    facts->data_json = job->spec.data_json;
    if (job->tasks != NULL)
        memcpy(facts->task_counts, job->tasks->counts, sizeof(facts->task_counts));
    memcpy(facts->service, job->spec.service, sizeof(facts->service));
    if (shoal_job_spec_serves(&job->spec))
        facts->replicas = job->tasks->replicas;
    facts->version = job->spec.version;
    facts->revision = job->revision;
    facts->document = shoal_view_of(job->document, job->document_len);
}

uint32_t shoal_framework_needs(const char *framework, bool service)
{
    static const struct {
        const char *name;
        uint32_t needs;
    } known[] = { { "PyTorch", SHOAL_SERVES_TORCH },           { "distPyTorch", SHOAL_SERVES_TORCH },
                  { "edtPyTorch", SHOAL_SERVES_TORCH },        { "tensorflow", SHOAL_SERVES_TENSORFLOW },
                  { "disttensorflow", SHOAL_SERVES_TENSORFLOW }, { "edtTensorflow", SHOAL_SERVES_TENSORFLOW } };

    SHOAL_ASSERT(framework != NULL);
    for (size_t i = 0; !service && i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(framework, known[i].name) == 0)
            return known[i].needs;
    return 0;
}

uint32_t shoal_class_hash(const char *numeric_class)
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    SHOAL_ASSERT(numeric_class != NULL);
    if (numeric_class[0] == '\0')
        return 0;
    for (const char *c = numeric_class; *c != '\0'; c++)
        hash = (hash ^ (uint8_t)*c) * 16777619u;
    return hash == 0 ? 1 : hash;
}
