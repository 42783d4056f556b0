/* Calls to train(), and the end of a job (PROTOCOLS 8, 14; training-contract 2.7).
 *
 *   TRAIN(k) --> CALL k committed --> engines load --> epochs ... --> DONE by all --> WRITE_FINAL to the lowest rank
 *            --> FILES --> manifest on two hosts --> FINISHED committed --> RELEASE; train() returns in the driver
 *   driver or script exits 0 --> manifest of RESULT_DIR --> RESULT committed: FINISHED */
#include "shoal/job_entry.h"
#include "sched/job/job_wire.h"
#include "lead_state.h"

#include <stdarg.h>

#include "shoal/banned.h"

#define CALL_NS SHOAL_S
#define RAISED "training failed: " /* what train() of pyedt/_driver.py raises begins with this */
#define IN_USERS_CODE "an engine failed in the user's code: %.300s"
#define DEATHS "workers died %u times without one step in between%s%.250s; see their logs"
#define DRIVER_DEATHS "%u times without one step in between: %.270s"
#define MANIFEST_NS (2 * SHOAL_S)
#define TRAIN_STATE_NS SHOAL_S
#define TRAIN_STATES_MAX 3 /* times that one state is said to a driver that does not ask */
#define PROGRESS_NS (10 * SHOAL_S)
#define DRIVER_DEATHS_MAX 5
#define RUNNING_NS (100 * SHOAL_MS)

/* ---- train() ----------------------------------------------------------------------------------------------------- */

void lead_on_train(struct lead_step *s, uint64_t worker_id, const struct shoal_call *train)
{
    struct shoal_lead *lead = s->lead;
    const struct shoal_call *call = shoal_job_call(lead->job, train->call);
    const struct shoal_placement *driver = shoal_job_driver(lead->job);

    SHOAL_ASSERT(s->lead->scratch->in.kind == SHOAL_HOST_TRAIN);
    /* Late ones: of a driver that is gone, or of a call that this one has left behind. */
    if (driver == NULL || driver->worker_id != worker_id ||
        (lead->driver_worker == worker_id && train->call < lead->driver_call)) {
        lead->stats.stale++;
        return;
    }
    lead->driver_worker = worker_id;
    lead->driver_call = train->call;
    lead->train_state_key = 0;
    if (call != NULL) {
        if (strcmp(call->signature, train->signature) != 0)
            lead_fail(
                lead, -1,
                "train() call %u differs from the one before the driver's restart: %.120s; before: %.120s. A script "
                "must give the same model and arguments each time it runs",
                train->call, train->signature, call->signature);
        return;
    }
    if (train->call != lead->job->call_count + 1) {
        lead_fail(lead, -1, "train() call %u came, but call %u is the next one", train->call,
                  lead->job->call_count + 1);
        return;
    }
    lead->train = *train;
    lead->train_due = true;
}

void lead_tell_driver(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    const struct shoal_placement *driver = shoal_job_driver(lead->job);
    const struct shoal_call *call = shoal_job_call(lead->job, lead->driver_call);
    const struct lworker *worker = driver == NULL ? NULL : lead_worker(lead, driver->worker_id);
    struct shoal_worker_train_state *state = &lead->scratch->out.u.train_state.state;
    uint32_t engines = 0;
    uint64_t key;

    SHOAL_ASSERT(s->lead->train_state_count <= TRAIN_STATES_MAX);
    SHOAL_ASSERT(s->lead->worker_cap <= LEAD_WORKERS_MAX);
    if (call == NULL || worker == NULL || !lworker_lives(worker) || worker->report.phase < SHOAL_PHASE_HELLO)
        return;
    if (host_lost(lead_find_host(lead, worker->place.node))) {
        lead->train_state_count = 0; /* what was said meanwhile may be lost: again, when it is back */
        return;
    }
    if (call->state == SHOAL_CALL_RUNNING && lead->job->epoch->call == call->call)
        engines = lead->job->epoch->member_count;
    key = (uint64_t)call->call << 32 | (uint64_t)call->state << 16 | engines | 1ull << 63;
    if (key != lead->train_state_key || worker->place.worker_id != lead->train_state_worker) {
        lead->train_state_key = key;
        lead->train_state_worker = worker->place.worker_id;
        lead->train_state_count = 0;
    } else if (lead->train_state_count == TRAIN_STATES_MAX) {
        return;
    } else if (s->now_ns < lead->train_state_ns + TRAIN_STATE_NS) {
        lead_wake(s, lead->train_state_ns + TRAIN_STATE_NS);
        return;
    }
    lead->scratch->out.kind = SHOAL_HOST_TRAIN_STATE;
    memset(state, 0, sizeof(*state));
    lead->scratch->out.u.train_state.worker_id = worker->place.worker_id;
    state->call = call->call;
    state->state = call->state == SHOAL_CALL_FINISHED  ? SHOAL_TRAIN_FINISHED
                   : call->state == SHOAL_CALL_FAILED  ? SHOAL_TRAIN_FAILED
                   : call->state == SHOAL_CALL_WAITING ? SHOAL_TRAIN_WAITING
                                                       : SHOAL_TRAIN_RUNNING;
    state->engines = engines;
    state->acked_step = call->logged_step;
    state->final_step = call->final_step;
    if (call->state == SHOAL_CALL_FINISHED)
        lead_blob_text(call->files, state->files_path);
    if (call->state == SHOAL_CALL_FAILED)
        (void)snprintf(state->text, sizeof(state->text), "%s",
                       call->call == lead->call_failed ? lead->call_text : "an engine failed; its log says why");
    if (!lead_send(s, worker->place.node, 0))
        return;
    lead->train_state_ns = s->now_ns;
    lead->train_state_count++;
    lead_wake(s, s->now_ns + TRAIN_STATE_NS);
}

/* ---- Hosts load the call ----------------------------------------------------------------------------------------- */

/* Once to every host with engines, too, and again when it was away: it may have lost its table, and with it the names
 * of those who hold the job's blobs. */
static bool owes_call(const struct shoal_lead *lead, const struct lhost *host, uint32_t call)
{
    SHOAL_ASSERT(host->used && call != 0);
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        const struct lworker *w = &lead->workers[i];

        if (lworker_lives(w) && w->reported && w->place.role == SHOAL_JOB_ENGINE &&
            shoal_node_id_equal(w->place.node, host->node) &&
            (w->report.ready_call == 0 || (w->report.ready_call == call && host->call_sent != call)))
            return true;
    }
    return false;
}

static void tell_mark(struct lead_step *s, struct lhost *host)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(host->used);
    if (!host->involved || lead->step_call == 0 || lead->records_acked <= host->mark_sent)
        return;
    lead->scratch->out.kind = SHOAL_HOST_MARK;
    memset(&lead->scratch->out.u.progress, 0, sizeof(lead->scratch->out.u.progress));
    lead->scratch->out.u.progress.call = lead->step_call;
    lead->scratch->out.u.progress.records_acked = lead->records_acked;
    if (lead_send(s, host->node, 0))
        host->mark_sent = lead->records_acked; /* a lost one is made good by the next */
}

void lead_tell_call(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    const struct shoal_call *call = shoal_job_running_call(lead->job);
    struct shoal_host_message *m = &lead->scratch->out;

    SHOAL_ASSERT(s->lead->guardian_count <= SHOAL_HOST_SOURCES_MAX);
    if (call == NULL || shoal_job_state_ended((enum shoal_job_state)lead->job->state))
        return;
    for (uint32_t i = 0; i < lead->host_cap; i++) {
        struct lhost *host = &lead->hosts[i];

        if (!host->used)
            continue;
        tell_mark(s, host);
        if (!owes_call(lead, host, call->call))
            continue;
        if (host->call_sent == call->call && s->now_ns < host->call_ns + CALL_NS) {
            lead_wake(s, host->call_ns + CALL_NS);
            continue;
        }
        m->kind = SHOAL_HOST_CALL;
        memset(&m->u.call, 0, sizeof(m->u.call));
        m->u.call.call = call->call;
        m->u.call.job_seed = call->job_seed;
        m->u.call.bundle = call->bundle;
        m->u.call.source_count = lead->guardian_count;
        memcpy(m->u.call.sources, lead->guardians, sizeof(m->u.call.sources));
        if (!lead_send(s, host->node, 0))
            continue;
        if (host->call_sent != call->call)
            host->mark_sent = 0;
        host->call_sent = call->call;
        host->call_ns = s->now_ns;
        lead_wake(s, s->now_ns + CALL_NS);
    }
}

/* ---- The end of a call ---- */

static void ask_manifest(struct lead_step *s, struct shoal_node_id node, uint32_t call)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(!shoal_node_id_is_zero(node));
    if (lead->manifest_ns != 0 && lead->manifest_asked == call && s->now_ns < lead->manifest_ns + MANIFEST_NS) {
        lead_wake(s, lead->manifest_ns + MANIFEST_NS);
        return;
    }
    lead->scratch->out.kind = SHOAL_HOST_MAKE_MANIFEST;
    memset(&lead->scratch->out.u.manifest, 0, sizeof(lead->scratch->out.u.manifest));
    lead->scratch->out.u.manifest.call = call;
    if (lead_send(s, node, 0)) {
        lead->manifest_ns = s->now_ns;
        lead->manifest_asked = call;
    }
    lead_wake(s, s->now_ns + MANIFEST_NS);
}

/* The newest epoch's members by rank. After a recovery no epoch has any until the next one: then all engines. */
static uint32_t ranks(struct shoal_lead *lead, struct lworker **list)
{
    const struct shoal_worker_epoch *epoch = lead->job->epoch;
    uint32_t count = 0;

    SHOAL_ASSERT(lead->job->epoch != NULL); /* only elastic jobs have ranks */
    SHOAL_ASSERT(lead->job->epoch->member_count <= SHOAL_RANKS_MAX);
    for (uint32_t i = 0; i < epoch->member_count; i++) {
        struct lworker *w = lead_worker(lead, epoch->members[i].worker_id);

        if (w != NULL && w->reported)
            list[count++] = w;
    }
    for (uint32_t i = 0; epoch->member_count == 0 && i < lead->worker_cap; i++)
        if (lead->workers[i].used && lead->workers[i].reported && lead->workers[i].place.role == SHOAL_JOB_ENGINE)
            list[count++] = &lead->workers[i];
    return count;
}

/* All who live are done, or those who are not have left the epoch: the last step is applied, nothing can take it back.
 */
static bool all_done(struct lead_step *s, const struct shoal_call *call, struct lworker **done)
{
    struct shoal_lead *lead = s->lead;
    struct lworker *list[LEAD_WORKERS_MAX];
    uint32_t count = ranks(lead, list);
    bool all = true;

    SHOAL_ASSERT(call->state == SHOAL_CALL_RUNNING);
    *done = NULL;
    for (uint32_t i = 0; i < count; i++) {
        struct lworker *w = list[i];

        if (w->report.done_call == call->call) {
            if (*done != NULL && ((*done)->report.state_digest != w->report.state_digest ||
                                  (*done)->report.final_step != w->report.final_step))
                lead_fail(lead, -1,
                          "two engines ended the training with different states (digests %016llx and %016llx)",
                          (unsigned long long)(*done)->report.state_digest, (unsigned long long)w->report.state_digest);
            if (*done == NULL || (w->dead && !(*done)->dead))
                *done = *done == NULL ? w : *done;
            continue;
        }
        if (lworker_lives(w) && !w->report.closed && !host_lost(lead_host(lead, w->place.node)))
            all = false;
    }
    return all && *done != NULL;
}

static bool propose_call_state(struct lead_step *s, const struct shoal_call *call, uint8_t state,
                               const struct lworker *done)
{
    struct shoal_job_entry *entry = lead_entry(s, SHOAL_JOB_ENTRY_CALL_STATE);

    SHOAL_ASSERT(state > call->state); /* J3: a call only goes on */
    SHOAL_ASSERT(call->call <= s->lead->job->call_count);
    if (entry == NULL)
        return true;
    entry->u.call.call = call->call;
    entry->u.call.state = state;
    if (done != NULL) {
        entry->u.call.final_step = done->report.final_step;
        entry->u.call.state_digest = done->report.state_digest;
    }
    if (state == SHOAL_CALL_FINISHED)
        entry->u.call.files = s->lead->manifest;
    return lead_propose(s);
}

/* The lowest rank that lives and is done writes; the next one if it dies before the manifest is made. */
static bool write_final(struct lead_step *s, const struct shoal_call *call)
{
    struct shoal_lead *lead = s->lead;
    struct lworker *list[LEAD_WORKERS_MAX];
    uint32_t count = ranks(lead, list);

    SHOAL_ASSERT(call->state == SHOAL_CALL_DONE);
    SHOAL_ASSERT(s->lead->job->epoch != NULL);
    if (lead->manifest_ok && lead->manifest_call == call->call)
        return propose_call_state(s, call, SHOAL_CALL_FINISHED, NULL);
    for (uint32_t i = 0; i < count; i++) {
        struct lworker *w = list[i];

        if (w->report.done_call != call->call || host_lost(lead_host(lead, w->place.node)))
            continue;
        if (w->report.files_call == call->call) {
            ask_manifest(s, w->place.node, call->call);
            return false;
        }
        if (!lworker_lives(w))
            continue;
        lead_order(s, w, SHOAL_ORDER_WRITE_FINAL, call->call, "", 0, 0);
        return false;
    }
    return false;
}

/* Engines go when their call is finished; an engine serves one call only. `call` 0: all of them. */
static void release_engines(struct lead_step *s, uint32_t call)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(s->lead->job->call_count <= SHOAL_CALLS_MAX);
    SHOAL_ASSERT(s->lead->job->spec.elastic || call == 0);
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        struct lworker *w = &lead->workers[i];

        if (!lworker_lives(w) || w->place.role != SHOAL_JOB_ENGINE ||
            (call != 0 && (w->report.ready_call == 0 || w->report.ready_call == call)))
            continue;
        if (w->ended_ns == 0)
            w->ended_ns = s->now_ns;
        if (s->now_ns < w->ended_ns + lead->options.stop_grace_ns) {
            lead_order(s, w, SHOAL_ORDER_RELEASE, 0, "", 0, 0);
            lead_wake(s, w->ended_ns + lead->options.stop_grace_ns);
        } else {
            lead_order(s, w, SHOAL_ORDER_KILL, 0, "", 0, 0);
        }
    }
}

static bool propose_call(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    struct shoal_job_entry *entry;

    SHOAL_ASSERT(s->lead->train_due);
    SHOAL_ASSERT(s->lead->train.call > 0);
    if (shoal_job_call(lead->job, lead->train.call) != NULL) { /* it is in the log by now */
        lead->train_due = false;
        return false;
    }
    entry = lead_entry(s, SHOAL_JOB_ENTRY_CALL);
    if (entry == NULL)
        return true;
    lead_unfit_for_call(lead);
    entry->u.call = lead->train;
    lead->manifest_ok = false;
    return lead_propose(s);
}

/* ---- A call that fails ---- */

static bool is_failed(const struct shoal_call *call)
{
    return call != NULL && call->state == SHOAL_CALL_FAILED;
}

/* train() raises, and the script decides: it ends, or goes on with its next call. The first cause stands. */
__attribute__((format(printf, 3, 4))) static void fail_call(struct shoal_lead *lead, uint32_t call, const char *format, ...)
{
    va_list args;

    SHOAL_ASSERT(call > 0 && call == lead->job->call_count);
    if (lead->call_failed == call)
        return;
    va_start(args, format);
    (void)vsnprintf(lead->call_text, SHOAL_JOB_REASON_BYTES, format, args);
    va_end(args);
    lead->call_failed = call;
    lead->failures = lead->idle_epochs = 0;
}

/* A report of a failed call is no news of the next one, so that waits until the engines are gone. */
bool lead_clears_failed(const struct shoal_lead *lead)
{
    SHOAL_ASSERT(lead->job->call_count <= SHOAL_CALLS_MAX);
    if (lead->job->call_count == 0 || !is_failed(shoal_job_call(lead->job, lead->job->call_count)))
        return false;
    for (uint32_t i = 0; i < lead->worker_cap; i++)
        if (lead->workers[i].used && lead->workers[i].place.role == SHOAL_JOB_ENGINE)
            return true;
    return false;
}

bool lead_calls(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    const struct shoal_call *call = shoal_job_running_call(lead->job);
    struct lworker *done;

    SHOAL_ASSERT(s->lead->job->call_count <= SHOAL_CALLS_MAX);
    if (!lead->job->spec.elastic || lead->job->stop || lead->fail_text[0] != '\0')
        return false;
    if (call == NULL) {
        if (lead->job->call_count > 0)
            release_engines(s, 0);
        return lead->train_due && !lead_clears_failed(lead) && propose_call(s);
    }
    lead->train_due = false;
    if (lead->call_failed == call->call)
        return propose_call_state(s, call, SHOAL_CALL_FAILED, NULL);
    release_engines(s, call->call);
    if (lead->snapshot_due) {
        struct shoal_job_entry *entry = lead_entry(s, SHOAL_JOB_ENTRY_SNAPSHOT);

        if (entry == NULL)
            return true;
        entry->u.call = lead->snapshot;
        lead->snapshot_due = false;
        return lead_propose(s);
    }
    if (call->state == SHOAL_CALL_RUNNING && lead->job->epoch->call == call->call && all_done(s, call, &done)) {
        if (lead->has_metrics && lead->step_call == call->call) {
            lead->data_epoch_due = true;
            lead->data_epoch_done = (struct shoal_data_epoch){ .call = call->call,
                                                               .data_epoch = lead->data_epoch,
                                                               .step = lead->step,
                                                               .engines = lead->engines,
                                                               .loss_micro = lead->loss_micro,
                                                               .metric_micro = lead->metric_micro };
        }
        return lead->fail_text[0] == '\0' && propose_call_state(s, call, SHOAL_CALL_DONE, done);
    }
    return call->state == SHOAL_CALL_DONE && write_final(s, call);
}

bool lead_progress(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    const struct shoal_call *call = shoal_job_call(lead->job, lead->step_call);
    struct shoal_job_entry *entry;

    SHOAL_ASSERT(s->lead->job->call_count <= SHOAL_CALLS_MAX);
    if (call == NULL ||
        (!lead->data_epoch_due && lead->logged_step <= call->logged_step && lead->records_acked <= call->records_acked))
        return false;
    if (!lead->data_epoch_due && s->now_ns < lead->progress_ns + PROGRESS_NS) {
        lead_wake(s, lead->progress_ns + PROGRESS_NS);
        return false;
    }
    entry = lead_entry(s, SHOAL_JOB_ENTRY_PROGRESS);
    if (entry == NULL)
        return false;
    entry->u.progress.call = lead->step_call;
    entry->u.progress.logged_step = lead->logged_step;
    entry->u.progress.records_acked = lead->records_acked;
    entry->u.progress.has_data_epoch = lead->data_epoch_due;
    entry->u.progress.data_epoch = lead->data_epoch_done;
    if (!lead_propose(s))
        return false;
    lead->data_epoch_due = false;
    lead->progress_ns = s->now_ns;
    return true;
}

/* ---- The end of the job ---- */

bool lead_rerun(const struct shoal_lead *lead)
{
    for (uint32_t i = 0; i < lead->worker_cap; i++)
        if (lead->workers[i].used && lead->workers[i].place.role == SHOAL_JOB_SCRIPT && lead->workers[i].dead &&
            lead->workers[i].lost)
            return true;
    /* A gang is placed whole: one of it was dropped already, maybe by the leader before. The others' ends are no
     * verdict. */
    return !lead->job->spec.elastic && lead->job->placement_count > 0 &&
           lead->job->placement_count < lead->job->spec.workers_max;
}

static void order_all(struct lead_step *s, enum shoal_order order, uint8_t reason, const char *text)
{
    SHOAL_ASSERT(order == SHOAL_ORDER_RELEASE || order == SHOAL_ORDER_STOP || order == SHOAL_ORDER_KILL);
    for (uint32_t i = 0; i < s->lead->worker_cap; i++) {
        struct lworker *w = &s->lead->workers[i];

        if (!lworker_lives(w))
            continue;
        if (w->ended_ns == 0)
            w->ended_ns = s->now_ns;
        /* A frozen worker hears nothing, and the host's own grace begins only with its connection: this one does not.
         */
        if (s->now_ns >= w->ended_ns + s->lead->options.stop_grace_ns)
            lead_order(s, w, SHOAL_ORDER_KILL, 0, "", 0, 0);
        else if (order == SHOAL_ORDER_RELEASE && w->place.role != SHOAL_JOB_ENGINE)
            lead_order(s, w, SHOAL_ORDER_STOP, 0, text, reason, s->lead->options.stop_grace_ns);
        else
            lead_order(s, w, order, 0, text, reason, s->lead->options.stop_grace_ns);
    }
}

static void finish_ended(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    bool well = lead->job->state == SHOAL_JOB_FINISHED;

    SHOAL_ASSERT(shoal_job_state_ended((enum shoal_job_state)s->lead->job->state));
    order_all(s, well ? SHOAL_ORDER_RELEASE : SHOAL_ORDER_STOP, well ? SHOAL_STOP_USER : SHOAL_STOP_ERROR,
              "the job has ended");
    if (lead->job->placement_count > 0)
        return;
    for (uint32_t i = 0; i < lead->host_cap; i++) {
        struct lhost *host = &lead->hosts[i];

        if (!host->used || !host->involved || host->end_ns != 0 || host_lost(host))
            continue;
        lead->scratch->out.kind = SHOAL_HOST_END;
        if (lead_send(s, host->node, 0))
            host->end_ns = s->now_ns; /* a lost one: the host forgets an empty job by itself */
    }
    if (lead->job->deleted && !lead->deleted_said && s->actions->count < SHOAL_LEAD_ACTIONS_MAX) {
        s->actions->list[s->actions->count++] = (struct shoal_lead_action){ .kind = SHOAL_LEAD_DELETE };
        lead->deleted_said = true;
    }
}

static bool finish_stopped(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(s->lead->job->stop);
    order_all(s, SHOAL_ORDER_STOP, SHOAL_STOP_USER, lead->job->reason);
    if (lead->job->tasks != NULL && lead_array_drop(s)) /* results that are known count, also now */
        return true;
    for (uint32_t i = 0; i < lead->worker_cap; i++)
        if (lworker_lives(&lead->workers[i]))
            return false;
    return lead_propose_state(s, SHOAL_JOB_KILLED, -1, false, lead->job->reason);
}

/* The manifest of RESULT_DIR is made where the driver, or the script of rank 0, has run: it is still in the log. */
static bool finish_result(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    const struct shoal_placement *place = shoal_job_driver(lead->job);
    struct shoal_job_entry *entry;

    SHOAL_ASSERT(s->lead->job->result_wanted || s->lead->ended_well); /* J6 */
    for (uint32_t i = 0; place == NULL && i < lead->job->placement_count; i++)
        if (lead->job->placements[i].role == SHOAL_JOB_SCRIPT && lead->job->placements[i].rank == 0)
            place = &lead->job->placements[i];
    if (!lead->manifest_ok || lead->manifest_call != 0) {
        ask_manifest(s, place == NULL || host_lost(lead_host(lead, place->node)) ? lead->options.self : place->node, 0);
        release_engines(s, 0);
        return false;
    }
    entry = lead_entry(s, SHOAL_JOB_ENTRY_RESULT);
    if (entry == NULL)
        return true;
    entry->u.result = lead->manifest;
    return lead_propose(s);
}

/* Signals have no portable names; these numbers are Linux's. */
static const char *signal_meaning(int32_t number)
{
    static const struct {
        int32_t number;
        const char *meaning;
    } rows[] = { { 4, " (SIGILL: this processor lacks an instruction)" },
                 { 6, " (SIGABRT: it gave up by itself)" },
                 { 7, " (SIGBUS: a file or the shared memory is full or cut short)" },
                 { 8, " (SIGFPE: an integer was divided by 0)" },
                 { 9, " (SIGKILL: the host may be out of memory)" },
                 { 11, " (SIGSEGV: native code used memory that is not its own)" },
                 { 15, " (SIGTERM)" } };

    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].number == number)
            return rows[i].meaning;
    return "";
}

void lead_exit_text(const struct lworker *w, const char *who, char *text, size_t cap)
{
    const char *line = w->report.text;

    SHOAL_ASSERT(w->dead); /* L5 */
    if (w->report.signalled)
        (void)snprintf(text, cap, "the %s was ended by signal %d%s%s%.200s", who, w->report.status,
                       signal_meaning(w->report.status), line[0] != '\0' ? ": " : "", line);
    else
        (void)snprintf(text, cap, "the %s ended with exit status %d%s%.200s", who, w->report.status,
                       line[0] != '\0' ? ": " : "", line);
}

/* Why the last call failed, where a driver ended by what train() raised: its last line says so, perhaps cut short, and is all
 * that a leader knows who was not in office then. NULL: by something else. */
static const char *raised(const struct shoal_lead *lead, const struct lworker *w)
{
    const char *words = strstr(w->report.text, RAISED);

    SHOAL_ASSERT(w->dead);
    if (words == NULL || lead->job->call_count == 0 || !is_failed(shoal_job_call(lead->job, lead->job->call_count)))
        return NULL;
    return lead->call_failed == lead->job->call_count ? lead->call_text : words + sizeof(RAISED) - 1;
}

/* True when the driver or the scripts ended well: then the result is wanted. */
static bool judge_scripts(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    bool elastic = lead->job->spec.elastic;
    uint32_t well = 0, all = 0, lost = 0;
    const char *why;
    char text[300];

    SHOAL_ASSERT(s->lead->job->tasks == NULL); /* an array judges its tasks by itself */
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        struct lworker *w = &lead->workers[i];

        if (!w->used || w->place.role == SHOAL_JOB_ENGINE)
            continue;
        all++;
        if (!w->dead)
            continue;
        if (w->lost) {
            lost += w->report.ran;
            continue;
        }
        well += w->report.status == 0 && !w->report.signalled;
        lead_exit_text(w, elastic ? "driver" : "script", text, sizeof(text));
        if (elastic && w->report.signalled && lead->driver_deaths >= DRIVER_DEATHS_MAX) {
            lead_exit_text(w, "driver, which runs the script,", text, sizeof(text));
            lead_fail(lead, 128 + w->report.status, DRIVER_DEATHS, lead->driver_deaths, text);
        }
        /* A driver that was killed gets a successor, if it is not the last of many: it holds nothing that training needs.
         * Scripts are restarted only when their host was lost. */
        why = elastic && !w->report.signalled && w->report.status != 0 ? raised(lead, w) : NULL;
        if (why != NULL)
            lead_fail(lead, w->report.status, "%s", why);
        if ((w->report.signalled && !elastic && !lead_rerun(lead)) || (!w->report.signalled && w->report.status != 0))
            lead_fail(lead, w->report.signalled ? 128 + w->report.status : w->report.status, "%s", text);
    }
    if (!elastic && lead_rerun(lead)) {
        if (lost > 0 && lead->job->attempt >= lead->options.attempts_max)
            lead_fail(lead, -1, "its host was lost in attempt %u, the last one allowed", lead->job->attempt);
        else
            order_all(s, SHOAL_ORDER_KILL, SHOAL_STOP_SUPERSEDED, "");
        return false;
    }
    return all > 0 && well == all;
}

static void judge_deaths(struct shoal_lead *lead, const struct shoal_call *call, const char *before, const char *last)
{
    SHOAL_ASSERT(lead->failures >= LEAD_FAILURES_MAX);
    if (call != NULL)
        fail_call(lead, call->call, DEATHS, lead->failures, before, last);
    else
        lead_fail(lead, -1, DEATHS, lead->failures, before, last);
}

/* A leader that came into office after that hears it from a host that keeps the engine's last report still. */
static void hear_why_it_failed(struct shoal_lead *lead)
{
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        const struct lworker *w = &lead->workers[i];

        if (w->used && w->reported && w->place.role == SHOAL_JOB_ENGINE && w->report.failed && w->report.user_code)
            fail_call(lead, lead->job->call_count, IN_USERS_CODE, w->report.text);
    }
}

/* A failure that no other engine would do better ends the call; where there is none, the job. */
static void judge_engines(struct shoal_lead *lead)
{
    const struct shoal_call *call = shoal_job_running_call(lead->job);
    char text[SHOAL_JOB_REASON_BYTES];

    SHOAL_ASSERT(lead->job->tasks == NULL);
    if (call == NULL && lead_clears_failed(lead)) {
        hear_why_it_failed(lead);
        return;
    }
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        const struct lworker *w = &lead->workers[i];

        if (!w->used || !w->reported || w->place.role != SHOAL_JOB_ENGINE || !w->report.failed)
            continue;
        if (w->report.user_code && call != NULL)
            fail_call(lead, call->call, IN_USERS_CODE, w->report.text);
        else if (w->report.user_code)
            lead_fail(lead, 1, IN_USERS_CODE, w->report.text);
        else if (lead->failures >= LEAD_FAILURES_MAX)
            judge_deaths(lead, call, "; the last one: ", w->report.text);
    }
    if (lead_idle_too_often(lead) && call != NULL) {
        lead_idle_text(lead, text, sizeof(text));
        fail_call(lead, call->call, "%s", text);
    }
    if (lead->failures >= LEAD_FAILURES_MAX)
        judge_deaths(lead, call, lead->last_death[0] != '\0' ? ": " : "", lead->last_death);
}

/* RUNNING costs an entry: a script that ends sooner than this is FINISHED before anybody has read it. */
static bool ran_for_a_while(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(s->now_ns >= s->lead->ran_ns);
    if (lead->ran_ns == 0)
        lead->ran_ns = s->now_ns;
    if (lead->job->spec.elastic || s->now_ns >= lead->ran_ns + RUNNING_NS)
        return true;
    lead_wake(s, lead->ran_ns + RUNNING_NS);
    return false;
}

static bool any_unstarted(const struct shoal_lead *lead)
{
    for (uint32_t i = 0; i < lead->worker_cap; i++)
        if (lead->workers[i].used && lead->workers[i].dead && lead->workers[i].report.status == SHOAL_STATUS_UNSTARTED)
            return true;
    return false;
}

/* LAUNCHING, RUNNING and RECOVERING follow what lives. */
static bool follow_state(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    const struct shoal_job *job = lead->job;
    const struct shoal_call *call = shoal_job_running_call(job);
    bool main_lives = false, main_ran = false, members_live = false;

    SHOAL_ASSERT(!s->lead->job->stop && !s->lead->job->result_wanted);
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        const struct lworker *w = &lead->workers[i];

        if (!w->used)
            continue;
        if (w->place.role != SHOAL_JOB_ENGINE) {
            main_ran = main_ran || (w->reported &&
                                    (w->report.phase == SHOAL_PHASE_EXITED ? w->report.ran && !w->lost
                                                                           : w->report.phase >= SHOAL_PHASE_STARTED));
            main_lives = main_lives || lworker_lives(w);
        }
        members_live = members_live || (lworker_lives(w) && lead_is_member(lead, w->place.worker_id));
    }
    if (job->state == SHOAL_JOB_LAUNCHING && main_ran && ran_for_a_while(s))
        return lead_propose_state(s, SHOAL_JOB_RUNNING, -1, false, "");
    if (!job->spec.elastic) {
        if (job->state == SHOAL_JOB_RUNNING && lead_rerun(lead))
            return lead_propose_state(s, SHOAL_JOB_RECOVERING, -1, false,
                                      any_unstarted(lead) ? "not all of it could be started; it starts again"
                                                          : "its host was lost; it starts again when its lease has ended");
        if (job->state == SHOAL_JOB_RECOVERING && main_ran && main_lives && !lead_rerun(lead))
            return lead_propose_state(s, SHOAL_JOB_RUNNING, -1, false, "");
        return false;
    }
    if (job->state == SHOAL_JOB_RUNNING && !main_lives && !main_ran)
        return lead_propose_state(s, SHOAL_JOB_RECOVERING, -1, false, "the driver was lost; its successor starts");
    if (job->state == SHOAL_JOB_RUNNING && call != NULL && call->state >= SHOAL_CALL_RUNNING && !members_live)
        return lead_propose_state(s, SHOAL_JOB_RECOVERING, -1, false, "all engines were lost");
    if (job->state == SHOAL_JOB_RECOVERING && main_ran && main_lives &&
        (call == NULL || call->state < SHOAL_CALL_RUNNING || members_live))
        return lead_propose_state(s, SHOAL_JOB_RUNNING, -1, false, "");
    return false;
}

bool lead_finish(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    const struct shoal_job *job = lead->job;
    bool well;

    SHOAL_ASSERT(s->lead->job->state < SHOAL_JOB_STATE_COUNT);
    if (shoal_job_state_ended((enum shoal_job_state)job->state)) {
        finish_ended(s);
        return false;
    }
    if (job->stop)
        return finish_stopped(s);
    if (job->result_wanted)
        return finish_result(s);
    if (job->tasks != NULL)
        return lead_array_finish(s);
    well = judge_scripts(s);
    judge_engines(lead);
    if (lead->fail_text[0] != '\0')
        return lead_propose_state(s, SHOAL_JOB_ERROR, lead->fail_code, false, lead->fail_text);
    /* A driver's end is committed before its result is made: its successor would run the script again. The end of plain
     * scripts is one entry (J6); should this leader die before it, the next one hears of their ends from the hosts. */
    lead->ended_well = well && !job->spec.elastic;
    if (well)
        return job->spec.elastic ? lead_propose_state(s, job->state, 0, true, "") : finish_result(s);
    return follow_state(s);
}
