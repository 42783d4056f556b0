/* A job's replicated state: create, apply, look. See shoal/job.h for the picture and J1 to J6; the moves are those of
 * execs-api 5.3. */
#include "shoal/job.h"
#include "shoal/job_entry.h"

#include <stdlib.h>

#include "job_array.h"
#include "job_wire.h"
#include "shoal/banned.h"

#define BIT(state) (1u << (state))
#define ENDS (BIT(SHOAL_JOB_FINISHED) | BIT(SHOAL_JOB_KILLED) | BIT(SHOAL_JOB_ERROR))

/* Bit N set: may become state N. */
static const unsigned job_moves[SHOAL_JOB_STATE_COUNT] = {
    [SHOAL_JOB_NEW] = BIT(SHOAL_JOB_SUBMITTED) | BIT(SHOAL_JOB_PENDING_CRD_SCHEDULER) | ENDS,
    [SHOAL_JOB_SUBMITTED] =
        BIT(SHOAL_JOB_PENDING_JOB_SCHEDULER) | BIT(SHOAL_JOB_PENDING_CRD_SCHEDULER) | BIT(SHOAL_JOB_LAUNCHING) | ENDS,
    [SHOAL_JOB_PENDING_JOB_SCHEDULER] = BIT(SHOAL_JOB_PENDING_CRD_SCHEDULER) | BIT(SHOAL_JOB_LAUNCHING) | ENDS,
    [SHOAL_JOB_PENDING_CRD_SCHEDULER] = BIT(SHOAL_JOB_PENDING_JOB_SCHEDULER) | BIT(SHOAL_JOB_LAUNCHING) | ENDS,
    [SHOAL_JOB_LAUNCHING] =
        BIT(SHOAL_JOB_PENDING_CRD_SCHEDULER) | BIT(SHOAL_JOB_RUNNING) | BIT(SHOAL_JOB_RECOVERING) | ENDS,
    [SHOAL_JOB_RUNNING] = BIT(SHOAL_JOB_RECOVERING) | ENDS,
    [SHOAL_JOB_RECOVERING] = BIT(SHOAL_JOB_RUNNING) | ENDS,
    [SHOAL_JOB_FINISHED] = 0,
    [SHOAL_JOB_KILLED] = 0,
    [SHOAL_JOB_ERROR] = 0,
};

static const unsigned call_moves[SHOAL_CALL_STATE_COUNT] = {
    [SHOAL_CALL_WAITING] = BIT(SHOAL_CALL_RUNNING) | BIT(SHOAL_CALL_FAILED),
    [SHOAL_CALL_RUNNING] = BIT(SHOAL_CALL_DONE) | BIT(SHOAL_CALL_FAILED),
    /* Back to RUNNING: every writer of the final files died. */
    [SHOAL_CALL_DONE] = BIT(SHOAL_CALL_FINISHED) | BIT(SHOAL_CALL_RUNNING) | BIT(SHOAL_CALL_FAILED),
    [SHOAL_CALL_FINISHED] = 0,
    [SHOAL_CALL_FAILED] = 0,
};

const char *shoal_job_state_name(enum shoal_job_state state)
{
    SHOAL_ASSERT(state <= SHOAL_JOB_STATE_COUNT);
    switch (state) {
    case SHOAL_JOB_NEW: return "NEW";
    case SHOAL_JOB_SUBMITTED: return "SUBMITTED";
    case SHOAL_JOB_PENDING_JOB_SCHEDULER: return "PENDING_JOB_SCHEDULER";
    case SHOAL_JOB_PENDING_CRD_SCHEDULER: return "PENDING_CRD_SCHEDULER";
    case SHOAL_JOB_LAUNCHING: return "LAUNCHING";
    case SHOAL_JOB_RUNNING: return "RUNNING";
    case SHOAL_JOB_RECOVERING: return "RECOVERING";
    case SHOAL_JOB_FINISHED: return "FINISHED";
    case SHOAL_JOB_KILLED: return "KILLED";
    case SHOAL_JOB_ERROR: return "ERROR";
    case SHOAL_JOB_STATE_COUNT: break;
    }
    return "UNKNOWN";
}

bool shoal_job_state_ended(enum shoal_job_state state)
{
    return state < SHOAL_JOB_STATE_COUNT && (BIT(state) & ENDS) != 0;
}

enum shoal_err shoal_job_create(struct shoal_job **out, const struct shoal_job_founding *founding)
{
    struct shoal_job *job = calloc(1, sizeof(*job));
    uint8_t *spec = malloc(founding->spec.len + 1);
    enum shoal_err err = SHOAL_ERR_FULL;

    SHOAL_ASSERT(out != NULL);
    if (job == NULL || spec == NULL)
        goto undo;
    if (founding->spec.len > 0)
        memcpy(spec, founding->spec.bytes, founding->spec.len);
    job->spec_bytes = shoal_view_of(spec, founding->spec.len);
    err = shoal_job_spec_decode(job->spec_bytes, &job->spec);
    if (err != SHOAL_OK)
        goto undo;
    job->placement_cap = shoal_job_spec_is_wide(&job->spec) ? SHOAL_PLACEMENTS_MAX : SHOAL_PLACEMENTS_PLAIN;
    job->placements = calloc(job->placement_cap, sizeof(*job->placements));
    err = SHOAL_ERR_FULL;
    if (job->placements == NULL)
        goto undo;
    if (job->spec.elastic) {
        job->calls = calloc(SHOAL_CALLS_MAX, sizeof(*job->calls));
        job->epoch = calloc(1, sizeof(*job->epoch));
        job->data_epochs = calloc(SHOAL_DATA_EPOCHS_MAX, sizeof(*job->data_epochs));
        if (job->calls == NULL || job->epoch == NULL || job->data_epochs == NULL)
            goto undo;
    }
    if (job->spec.array[0] != '\0') {
        err = job->spec.elastic ? SHOAL_ERR_MALFORMED : job_tasks_create(&job->tasks, job->spec.array);
        if (err != SHOAL_OK)
            goto undo;
    }
    if (shoal_job_spec_serves(&job->spec)) {
        err = SHOAL_ERR_MALFORMED;
        if (job->tasks == NULL || job->spec.replicas > SHOAL_SERVICE_REPLICAS_MAX)
            goto undo;
        job->tasks->replicas = job->spec.replicas;
        err = job_document_create(job);
        if (err != SHOAL_OK)
            goto undo;
    }
    job->id = founding->id;
    job->ticket_ms = founding->ticket_ms;
    job->create_ms = founding->create_ms;
    job->founder = founding->founder;
    job->generation = founding->generation == 0 ? 1 : founding->generation;
    job->state = SHOAL_JOB_PENDING_CRD_SCHEDULER; /* founded is waiting: an entry that says so would cost a round */
    job->attempt = 1;
    job->exit_code = -1;
    *out = job;
    return SHOAL_OK;
undo:
    if (job != NULL) {
        free(job->placements);
        free(job->calls);
        free(job->epoch);
        free(job->data_epochs);
        free(job->tasks);
        free(job->document);
    }
    free(job);
    free(spec);
    return err;
}

void shoal_job_destroy(struct shoal_job *job)
{
    uint8_t *spec;

    if (job == NULL)
        return;
    memcpy(&spec, &job->spec_bytes.bytes, sizeof(spec)); /* owned here, borrowed by all others */
    free(spec);
    free(job->placements);
    free(job->calls);
    free(job->epoch);
    free(job->data_epochs);
    free(job->tasks);
    free(job->document);
    free(job);
}

/* ---- Looking ---------------------------------------------------------------------------------------------------- */

const struct shoal_placement *shoal_job_find_worker(const struct shoal_job *job, uint64_t worker_id)
{
    SHOAL_ASSERT(job->placement_count <= job->placement_cap); /* J4 */
    for (uint32_t i = 0; i < job->placement_count; i++)
        if (job->placements[i].worker_id == worker_id)
            return &job->placements[i];
    return NULL;
}

const struct shoal_placement *shoal_job_driver(const struct shoal_job *job)
{
    SHOAL_ASSERT(job->placement_count <= job->placement_cap); /* J4 */
    for (uint32_t i = 0; i < job->placement_count; i++)
        if (job->placements[i].role == SHOAL_JOB_DRIVER)
            return &job->placements[i];
    return NULL;
}

struct shoal_call *shoal_job_call(const struct shoal_job *job, uint32_t call)
{
    SHOAL_ASSERT(job->call_count <= SHOAL_CALLS_MAX);         /* J4 */
    SHOAL_ASSERT(job->calls != NULL || job->call_count == 0); /* only elastic jobs have calls */
    return call == 0 || call > job->call_count ? NULL : &job->calls[call - 1];
}

const struct shoal_call *shoal_job_running_call(const struct shoal_job *job)
{
    const struct shoal_call *call = shoal_job_call(job, job->call_count);

    SHOAL_ASSERT(job->call_count <= SHOAL_CALLS_MAX); /* J4 */
    return call != NULL && call->state <= SHOAL_CALL_DONE ? call : NULL;
}

uint32_t shoal_job_held(const struct shoal_job *job)
{
    uint32_t held = 0;

    SHOAL_ASSERT(job->placement_count <= job->placement_cap); /* J4 */
    for (uint32_t i = 0; i < job->placement_count; i++)
        held += job->placements[i].slot != SHOAL_SLOT_NONE;
    return held;
}

/* ---- Apply ------------------------------------------------------------------------------------------------------ */

unsigned job_move_state(struct shoal_job *job, uint8_t state, uint64_t wall_ms)
{
    SHOAL_ASSERT(state < SHOAL_JOB_STATE_COUNT);
    if (state == job->state)
        return 0;
    SHOAL_ASSERT((job_moves[job->state] & BIT(state)) != 0);
    job->state = state;
    if (state == SHOAL_JOB_RUNNING && job->start_ms == 0)
        job->start_ms = wall_ms;
    if (shoal_job_state_ended((enum shoal_job_state)state)) {
        job->end_ms = wall_ms;
        if (job->start_ms == 0 && state == SHOAL_JOB_FINISHED)
            job->start_ms = wall_ms; /* it ended before RUNNING was worth an entry */
    }
    if (shoal_job_state_ended((enum shoal_job_state)state) && job->tasks != NULL)
        job_tasks_stop(job);
    return SHOAL_JOB_CHANGED_STATE;
}

static bool may_move(const struct shoal_job *job, uint8_t state)
{
    SHOAL_ASSERT(state < SHOAL_JOB_STATE_COUNT); /* entries are decoded */
    return state == job->state || (job_moves[job->state] & BIT(state)) != 0;
}

static unsigned apply_state(struct shoal_job *job, const struct shoal_job_entry *entry)
{
    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_STATE); /* J1 */
    if (shoal_job_state_ended((enum shoal_job_state)job->state) || !may_move(job, entry->u.state.state) ||
        entry->u.state.state == SHOAL_JOB_FINISHED) /* only through RESULT */
        return SHOAL_JOB_CHANGED_REFUSED;
    if (entry->u.state.exit_code >= 0)
        job->exit_code = entry->u.state.exit_code;
    if (entry->u.state.reason[0] != '\0')
        memcpy(job->reason, entry->u.state.reason, sizeof(job->reason));
    if (entry->u.state.result_wanted)
        job->result_wanted = true;
    return job_move_state(job, entry->u.state.state, entry->wall_ms) | SHOAL_JOB_CHANGED_FLAGS;
}

void job_drop_worker(struct shoal_job *job, uint64_t worker_id)
{
    SHOAL_ASSERT(job->placement_count <= job->placement_cap); /* J4 */
    for (uint32_t i = 0; i < job->placement_count; i++) {
        if (job->placements[i].worker_id != worker_id)
            continue;
        memmove(&job->placements[i], &job->placements[i + 1],
                (job->placement_count - i - 1) * sizeof(job->placements[0]));
        job->placement_count--;
        return;
    }
}

static uint32_t place_kept(const struct shoal_job *job, const struct shoal_job_entry *entry)
{
    uint32_t kept = 0;

    SHOAL_ASSERT(entry->u.place.drop_count <= SHOAL_PLACEMENTS_MAX);
    for (uint32_t i = 0; i < job->placement_count; i++) {
        bool dropped = false;

        for (uint32_t d = 0; d < entry->u.place.drop_count; d++)
            dropped = dropped || entry->u.place.drop[d] == job->placements[i].worker_id;
        kept += !dropped;
    }
    return kept;
}

static unsigned apply_place(struct shoal_job *job, const struct shoal_job_entry *entry)
{
    uint32_t adds = entry->u.place.add_count;

    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_PLACE);        /* J1 */
    SHOAL_ASSERT(entry->u.place.add_count <= SHOAL_PLACE_MAX); /* J4: decoded within its bound */
    if (job->tasks != NULL)                                    /* T4 */
        return SHOAL_JOB_CHANGED_REFUSED;
    if (adds > 0 && (shoal_job_state_ended((enum shoal_job_state)job->state) || job->stop ||
                     entry->u.place.attempt < job->attempt || place_kept(job, entry) + adds > job->placement_cap))
        return SHOAL_JOB_CHANGED_REFUSED;
    if (adds > shoal_job_workers_bound(job) || entry->u.place.drop_count > job->placement_cap) /* versions before do not read it */
        return SHOAL_JOB_CHANGED_REFUSED;
    for (uint32_t i = 0; i < adds; i++) {
        if (shoal_job_find_worker(job, entry->u.place.add[i].worker_id) != NULL)
            return SHOAL_JOB_CHANGED_REFUSED;
        for (uint32_t j = 0; j < i; j++)
            if (entry->u.place.add[j].worker_id == entry->u.place.add[i].worker_id)
                return SHOAL_JOB_CHANGED_REFUSED;
    }
    for (uint32_t i = 0; i < entry->u.place.drop_count; i++)
        job_drop_worker(job, entry->u.place.drop[i]);
    for (uint32_t i = 0; i < adds; i++)
        job->placements[job->placement_count++] = entry->u.place.add[i];
    job->workers_made += adds;
    if (adds == 0)
        return SHOAL_JOB_CHANGED_PLACES;
    job->unsettled = false;
    job->attempt = entry->u.place.attempt;
    if ((job_moves[job->state] & BIT(SHOAL_JOB_LAUNCHING)) != 0)
        return job_move_state(job, SHOAL_JOB_LAUNCHING, entry->wall_ms) | SHOAL_JOB_CHANGED_PLACES;
    return SHOAL_JOB_CHANGED_PLACES;
}

static unsigned apply_call(struct shoal_job *job, const struct shoal_job_entry *entry)
{
    const struct shoal_call *before = shoal_job_call(job, job->call_count);
    struct shoal_call *call;

    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_CALL); /* J1 */
    if (job->calls == NULL || shoal_job_state_ended((enum shoal_job_state)job->state) ||
        job->call_count == SHOAL_CALLS_MAX || entry->u.call.call != job->call_count + 1 ||
        (before != NULL && before->state < SHOAL_CALL_FINISHED))
        return SHOAL_JOB_CHANGED_REFUSED;
    call = &job->calls[job->call_count++];
    memset(call, 0, sizeof(*call));
    call->call = entry->u.call.call;
    call->state = SHOAL_CALL_WAITING;
    call->job_seed = entry->u.call.job_seed;
    call->engines_max = entry->u.call.engines_max;
    call->bundle = entry->u.call.bundle;
    memcpy(call->signature, entry->u.call.signature, sizeof(call->signature));
    return SHOAL_JOB_CHANGED_CALLS;
}

static unsigned apply_sizes(struct shoal_job *job, const struct shoal_job_entry *entry)
{
    struct shoal_call *call = shoal_job_call(job, entry->u.call.call);

    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_SIZES); /* J1 */
    if (call == NULL || call->sizes.virtual_workers != 0 || entry->u.call.sizes.virtual_workers == 0)
        return SHOAL_JOB_CHANGED_REFUSED;
    call->sizes = entry->u.call.sizes;
    return SHOAL_JOB_CHANGED_CALLS;
}

static bool epoch_valid(const struct shoal_job *job, const struct shoal_worker_epoch *epoch)
{
    const struct shoal_call *call = shoal_job_call(job, epoch->call);

    SHOAL_ASSERT(epoch->member_count <= SHOAL_RANKS_MAX);
    if (job->epoch == NULL || epoch->member_count > shoal_job_workers_bound(job) || call == NULL || call->call != job->call_count || call->state > SHOAL_CALL_DONE ||
        call->sizes.virtual_workers == 0 || epoch->member_count == 0 ||
        shoal_job_state_ended((enum shoal_job_state)job->state) ||
        shoal_epoch_cmp(epoch->epoch, job->epoch->epoch) <= 0)
        return false;
    for (uint32_t i = 0; i < epoch->member_count; i++) {
        const struct shoal_placement *place = shoal_job_find_worker(job, epoch->members[i].worker_id);

        if (place == NULL || place->role != SHOAL_JOB_ENGINE)
            return false;
        for (uint32_t j = 0; j < i; j++)
            if (epoch->members[j].worker_id == epoch->members[i].worker_id)
                return false;
    }
    return true;
}

static unsigned apply_epoch(struct shoal_job *job, const struct shoal_job_entry *entry)
{
    struct shoal_call *call;

    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_EPOCH); /* J1 */
    if (!epoch_valid(job, &entry->u.epoch))
        return SHOAL_JOB_CHANGED_REFUSED;
    memcpy(job->epoch, &entry->u.epoch, sizeof(*job->epoch));
    call = shoal_job_call(job, entry->u.epoch.call);
    call->state = SHOAL_CALL_RUNNING;
    return SHOAL_JOB_CHANGED_EPOCH | SHOAL_JOB_CHANGED_CALLS;
}

static unsigned apply_call_state(struct shoal_job *job, const struct shoal_job_entry *entry)
{
    struct shoal_call *call = shoal_job_call(job, entry->u.call.call);

    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_CALL_STATE); /* J1 */
    SHOAL_ASSERT(entry->u.call.state < SHOAL_CALL_STATE_COUNT);
    if (call == NULL || (call_moves[call->state] & BIT(entry->u.call.state)) == 0)
        return SHOAL_JOB_CHANGED_REFUSED;
    call->state = entry->u.call.state;
    if (call->state == SHOAL_CALL_DONE) {
        call->final_step = entry->u.call.final_step;
        call->state_digest = entry->u.call.state_digest;
    }
    if (call->state == SHOAL_CALL_FINISHED)
        call->files = entry->u.call.files;
    return SHOAL_JOB_CHANGED_CALLS;
}

static void keep_data_epoch(struct shoal_job *job, const struct shoal_data_epoch *data_epoch)
{
    struct shoal_data_epoch *list = job->data_epochs;

    SHOAL_ASSERT(job->data_epochs != NULL);                       /* J4 */
    SHOAL_ASSERT(job->data_epoch_count <= SHOAL_DATA_EPOCHS_MAX); /* J4 */
    for (uint32_t i = 0; i < job->data_epoch_count; i++) {
        if (list[i].call == data_epoch->call && list[i].data_epoch == data_epoch->data_epoch) {
            list[i] = *data_epoch;
            return;
        }
    }
    if (job->data_epoch_count == SHOAL_DATA_EPOCHS_MAX) {
        memmove(&list[0], &list[1], (SHOAL_DATA_EPOCHS_MAX - 1) * sizeof(list[0]));
        job->data_epoch_count--;
    }
    list[job->data_epoch_count++] = *data_epoch;
}

static unsigned apply_progress(struct shoal_job *job, const struct shoal_job_entry *entry)
{
    struct shoal_call *call = shoal_job_call(job, entry->u.progress.call);

    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_PROGRESS); /* J1 */
    if (call == NULL)
        return SHOAL_JOB_CHANGED_REFUSED;
    if (entry->u.progress.logged_step > call->logged_step)
        call->logged_step = entry->u.progress.logged_step;
    if (entry->u.progress.records_acked > call->records_acked)
        call->records_acked = entry->u.progress.records_acked;
    if (entry->u.progress.has_data_epoch)
        keep_data_epoch(job, &entry->u.progress.data_epoch);
    return SHOAL_JOB_CHANGED_PROGRESS;
}

static unsigned apply_snapshot(struct shoal_job *job, const struct shoal_job_entry *entry)
{
    struct shoal_call *call = shoal_job_call(job, entry->u.call.call);

    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_SNAPSHOT); /* J1 */
    if (call == NULL || entry->u.call.snapshot_step <= call->snapshot_step)
        return SHOAL_JOB_CHANGED_REFUSED;
    call->snapshot = entry->u.call.snapshot;
    call->snapshot_step = entry->u.call.snapshot_step;
    return SHOAL_JOB_CHANGED_CALLS;
}

/* J6: what was placed has ended well, so the leases go with the job. */
static unsigned end_scripts(struct shoal_job *job)
{
    SHOAL_ASSERT(job->result_wanted || job->placement_count > 0); /* J6 */
    if (job->result_wanted)
        return 0;
    SHOAL_ASSERT(!job->spec.elastic && job->tasks == NULL); /* J6 */
    job->exit_code = 0;
    job->placement_count = 0;
    return SHOAL_JOB_CHANGED_PLACES;
}

static unsigned apply_result(struct shoal_job *job, const struct shoal_job_entry *entry)
{
    bool at_once = !job->spec.elastic && job->tasks == NULL && job->placement_count > 0; /* J6 */
    unsigned changed;

    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_RESULT); /* J1 */
    SHOAL_ASSERT((job->tasks == NULL) || !job->spec.elastic);
    if (shoal_job_state_ended((enum shoal_job_state)job->state) || (!job->result_wanted && !at_once) ||
        !may_move(job, SHOAL_JOB_FINISHED))
        return SHOAL_JOB_CHANGED_REFUSED;
    changed = end_scripts(job) | SHOAL_JOB_CHANGED_RESULT;
    job->result = entry->u.result;
    if (job->tasks != NULL && job->tasks->counts[SHOAL_TASK_DONE] < job->tasks->array.task_count)
        return job_move_state(job, SHOAL_JOB_ERROR, entry->wall_ms) | changed;
    job->reason[0] = '\0';
    return job_move_state(job, SHOAL_JOB_FINISHED, entry->wall_ms) | changed;
}

static unsigned apply_stop(struct shoal_job *job, const struct shoal_job_entry *entry)
{
    bool ended = shoal_job_state_ended((enum shoal_job_state)job->state);

    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_STOP || entry->kind == SHOAL_JOB_ENTRY_DELETE); /* J1 */
    if (entry->kind == SHOAL_JOB_ENTRY_STOP && (ended || job->stop))
        return SHOAL_JOB_CHANGED_REFUSED;
    if (entry->kind == SHOAL_JOB_ENTRY_DELETE)
        job->deleted = true;
    if (!ended && !job->stop) {
        job->stop = true;
        (void)snprintf(job->reason, sizeof(job->reason), "stopped by %s", entry->u.stop.by);
    }
    return SHOAL_JOB_CHANGED_FLAGS;
}

static unsigned apply_recover(struct shoal_job *job, const struct shoal_job_entry *entry)
{
    uint32_t kept = 0;

    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_RECOVER); /* J1 */
    SHOAL_ASSERT(job->generation > 0);                    /* J5: counted from 1 */
    if (entry->u.generation <= job->generation)
        return SHOAL_JOB_CHANGED_REFUSED;
    job->generation = entry->u.generation;
    if (shoal_job_state_ended((enum shoal_job_state)job->state))
        return SHOAL_JOB_CHANGED_FLAGS;
    job->unsettled = true;
    if (job->epoch != NULL) {
        job->epoch->epoch = (struct shoal_epoch){ .e = job->epoch->epoch.e + SHOAL_JOB_EPOCHS_SKIPPED };
        job->epoch->member_count = 0;
    }
    if (job->result_wanted) /* nothing runs any more: who ended well names the host of the result */
        return SHOAL_JOB_CHANGED_FLAGS | SHOAL_JOB_CHANGED_EPOCH;
    if (job->tasks != NULL)
        job_tasks_recover(job);
    for (uint32_t i = 0; i < job->placement_count; i++)
        if (job->placements[i].role == SHOAL_JOB_ENGINE)
            job->placements[kept++] = job->placements[i];
    job->placement_count = kept;
    if (job->state == SHOAL_JOB_RUNNING || job->state == SHOAL_JOB_LAUNCHING)
        (void)job_move_state(job, SHOAL_JOB_RECOVERING, entry->wall_ms);
    return SHOAL_JOB_CHANGED_FLAGS | SHOAL_JOB_CHANGED_PLACES | SHOAL_JOB_CHANGED_EPOCH | SHOAL_JOB_CHANGED_STATE;
}

/* A deleted job has no record; the first one stands. */
static unsigned apply_archived(struct shoal_job *job, const struct shoal_job_entry *entry)
{
    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_ARCHIVED); /* J1 */
    if (!shoal_job_state_ended((enum shoal_job_state)job->state) || job->deleted || job->placement_count > 0 ||
        !shoal_hash_is_zero(job->archived) || shoal_hash_is_zero(entry->u.result))
        return SHOAL_JOB_CHANGED_REFUSED;
    job->archived = entry->u.result;
    return SHOAL_JOB_CHANGED_FLAGS;
}

static unsigned apply_entry(struct shoal_job *job, const struct shoal_job_entry *entry)
{
    SHOAL_ASSERT(entry->kind < SHOAL_JOB_ENTRY_KIND_COUNT);
    switch ((enum shoal_job_entry_kind)entry->kind) {
    case SHOAL_JOB_ENTRY_STATE: return apply_state(job, entry);
    case SHOAL_JOB_ENTRY_PLACE: return apply_place(job, entry);
    case SHOAL_JOB_ENTRY_CALL: return apply_call(job, entry);
    case SHOAL_JOB_ENTRY_SIZES: return apply_sizes(job, entry);
    case SHOAL_JOB_ENTRY_EPOCH: return apply_epoch(job, entry);
    case SHOAL_JOB_ENTRY_CALL_STATE: return apply_call_state(job, entry);
    case SHOAL_JOB_ENTRY_PROGRESS: return apply_progress(job, entry);
    case SHOAL_JOB_ENTRY_SNAPSHOT: return apply_snapshot(job, entry);
    case SHOAL_JOB_ENTRY_RESULT: return apply_result(job, entry);
    case SHOAL_JOB_ENTRY_STOP:
    case SHOAL_JOB_ENTRY_DELETE: return apply_stop(job, entry);
    case SHOAL_JOB_ENTRY_RECOVER: return apply_recover(job, entry);
    case SHOAL_JOB_ENTRY_ARCHIVED: return apply_archived(job, entry);
    case SHOAL_JOB_ENTRY_TASKS: return job_apply_tasks(job, entry);
    case SHOAL_JOB_ENTRY_SCALE: return job_apply_scale(job, entry);
    case SHOAL_JOB_ENTRY_EDIT: return job_apply_edit(job, entry);
    case SHOAL_JOB_ENTRY_KIND_COUNT: break;
    }
    return SHOAL_JOB_CHANGED_REFUSED;
}

static uint64_t mix(uint64_t digest, uint64_t value)
{
    uint64_t z = (digest ^ value) + 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The entry's bytes, and what came out of it: replicas that read an entry differently differ from here on. */
static void move_digest(struct shoal_job *job, uint64_t index, struct shoal_view bytes, unsigned changed)
{
    uint64_t digest = mix(job->digest, index);

    SHOAL_ASSERT(index > 0);
    for (size_t i = 0; i < bytes.len; i += 8) {
        uint64_t word = 0;

        for (size_t b = 0; b < 8 && i + b < bytes.len; b++)
            word |= (uint64_t)bytes.bytes[i + b] << (8 * b);
        digest = mix(digest, word);
    }
    digest = mix(digest, changed);
    digest = mix(digest, (uint64_t)job->state << 32 | job->placement_count);
    digest = mix(digest, (uint64_t)job->call_count << 32 | job->data_epoch_count);
    if (job->epoch != NULL)
        digest = mix(digest, shoal_epoch_word(job->epoch->epoch));
    if (job->tasks != NULL)
        digest = mix(digest, job_tasks_word(job));
    job->digest = digest;
}

unsigned shoal_job_apply(struct shoal_job *job, uint64_t index, struct shoal_view bytes,
                         struct shoal_job_entry *scratch)
{
    unsigned changed = SHOAL_JOB_CHANGED_REFUSED;

    SHOAL_ASSERT(index > job->applied);
    SHOAL_ASSERT(job->state < SHOAL_JOB_STATE_COUNT);
    SHOAL_ASSERT(job->placement_count <= job->placement_cap); /* J4 */
    if (shoal_job_entry_decode(bytes, scratch) == SHOAL_OK)
        changed = apply_entry(job, scratch);
    if (changed & SHOAL_JOB_CHANGED_REFUSED)
        job->refused++;
    job->applied = index;
    move_digest(job, index, bytes, changed);
    return changed;
}
