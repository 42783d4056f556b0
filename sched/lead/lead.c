/* The controller of one job: create, step, what hosts say. Picture and rules: shoal/lead.h. */
#include "shoal/lead.h"
#include "shoal/job_entry.h"

#include <stdarg.h>
#include <stdlib.h>

#include "sched/job/job_wire.h"
#include "lead_state.h"
#include "shoal/banned.h"

#define DRIVER_HOSTS 2
#define PROPOSAL_NS (3 * SHOAL_S) /* an unanswered proposal is worked out anew */
#define RETRY_NS (100 * SHOAL_MS)
#define ORDER_NS SHOAL_S
#define FAILURE_NS (300 * SHOAL_MS)
#define MARGIN_NS SHOAL_S /* lease + 1 s */

/* ---- Emitting --------------------------------------------------------------------------------------------------- */

static struct shoal_lead_action *emit(struct lead_step *s, enum shoal_lead_action_kind kind)
{
    struct shoal_lead_action *action;

    SHOAL_ASSERT(s->actions->count <= SHOAL_LEAD_ACTIONS_MAX);
    if (s->actions->count == SHOAL_LEAD_ACTIONS_MAX) {
        s->lead->blocked = true;
        s->lead->stats.actions_full++;
        return NULL;
    }
    action = &s->actions->list[s->actions->count++];
    memset(action, 0, sizeof(*action));
    action->kind = kind;
    return action;
}

bool lead_send(struct lead_step *s, struct shoal_node_id to, uint64_t seq)
{
    struct shoal_host_message *m = &s->lead->scratch->out;
    uint8_t *at = s->actions->pool + s->actions->pool_used;
    struct shoal_lead_action *action;
    size_t len;

    SHOAL_ASSERT(s->actions->pool_used % 16 == 0 && s->actions->pool_used <= SHOAL_LEAD_POOL_BYTES);
    SHOAL_ASSERT(shoal_host_kind_to_host(s->lead->scratch->out.kind)); /* a leader tells hosts */
    SHOAL_ASSERT(s->lead->scratch != NULL);                            /* within a step */
    m->job = s->lead->job->id;
    m->generation = s->lead->job->generation;
    m->term = s->lead->options.term;
    m->host_epoch = 0;
    m->stamp = 0;
    m->seq = seq;
    if (shoal_host_encode(m, at, SHOAL_LEAD_POOL_BYTES - s->actions->pool_used, &len) != SHOAL_OK) {
        s->lead->blocked = s->actions->count > 0;
        s->lead->stats.actions_full++;
        return false;
    }
    action = emit(s, SHOAL_LEAD_SEND);
    if (action == NULL)
        return false;
    action->to = to;
    action->bytes = shoal_view_of(at, len);
    s->actions->pool_used += (len + 15) & ~(size_t)15;
    return true;
}

struct shoal_job_entry *lead_entry(struct lead_step *s, uint8_t kind)
{
    struct shoal_job_entry *entry = &s->lead->scratch->entry;

    SHOAL_ASSERT(kind < SHOAL_JOB_ENTRY_KIND_COUNT);
    SHOAL_ASSERT(s->lead->scratch != NULL); /* within a step */
    if (s->lead->proposing)
        return NULL;
    if (s->now_ns < s->lead->retry_ns) {
        lead_wake(s, s->lead->retry_ns);
        return NULL;
    }
    if (kind == SHOAL_JOB_ENTRY_EPOCH)
        entry->u.epoch = (struct shoal_worker_epoch){ .member_count = 0 };
    else if (kind == SHOAL_JOB_ENTRY_PLACE)
        memset(&entry->u.place, 0, sizeof(entry->u.place));
    else if (kind == SHOAL_JOB_ENTRY_TASKS)
        memset(&entry->u.tasks, 0, sizeof(entry->u.tasks));
    else
        memset(&entry->u.call, 0, sizeof(entry->u.call)); /* the largest of the others */
    entry->kind = kind;
    entry->wall_ms = s->lead->wall_ms;
    return entry;
}

bool lead_propose(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    uint8_t *at = s->actions->pool + s->actions->pool_used;
    struct shoal_lead_action *action;
    size_t len;

    SHOAL_ASSERT(!lead->proposing); /* L1 */
    SHOAL_ASSERT(s->actions->pool_used % 16 == 0 && s->actions->pool_used <= SHOAL_LEAD_POOL_BYTES);
    SHOAL_ASSERT(s->now_ns >= s->lead->started_ns); /* time does not go back */
    if (shoal_job_entry_encode(&lead->scratch->entry, at, SHOAL_LEAD_POOL_BYTES - s->actions->pool_used, &len) !=
        SHOAL_OK) {
        lead->blocked = true;
        return false;
    }
    action = emit(s, SHOAL_LEAD_PROPOSE);
    if (action == NULL)
        return false;
    action->bytes = shoal_view_of(at, len);
    s->actions->pool_used += (len + 15) & ~(size_t)15;
    lead->proposing = true;
    lead->proposed_ns = s->now_ns;
    lead->stats.proposals++;
    return true;
}

bool lead_propose_state(struct lead_step *s, uint8_t state, int32_t exit_code, bool result_wanted, const char *reason)
{
    struct shoal_job_entry *entry = lead_entry(s, SHOAL_JOB_ENTRY_STATE);

    SHOAL_ASSERT(state < SHOAL_JOB_STATE_COUNT);
    SHOAL_ASSERT(
        !shoal_job_state_ended((enum shoal_job_state)s->lead->job->state)); /* J2: an ended state never changes */
    if (entry == NULL)
        return false;
    entry->u.state.state = state;
    entry->u.state.exit_code = exit_code;
    entry->u.state.result_wanted = result_wanted;
    job_cut_text(entry->u.state.reason, sizeof(entry->u.state.reason), reason);
    return lead_propose(s);
}

void lead_order(struct lead_step *s, struct lworker *worker, enum shoal_order order, uint32_t call, const char *text,
                uint8_t reason, uint64_t grace_ns)
{
    struct shoal_host_message *m = &s->lead->scratch->out;

    SHOAL_ASSERT(worker->used);
    SHOAL_ASSERT(order != SHOAL_ORDER_NONE && order < SHOAL_ORDER_COUNT);
    if (worker->order == order && s->now_ns < worker->order_ns + ORDER_NS) {
        lead_wake(s, worker->order_ns + ORDER_NS);
        return;
    }
    m->kind = SHOAL_HOST_ORDER;
    memset(&m->u.order, 0, sizeof(m->u.order));
    m->u.order.worker_id = worker->place.worker_id;
    m->u.order.lease_generation = worker->place.lease_generation;
    m->u.order.order = (uint8_t)order;
    m->u.order.reason = reason;
    m->u.order.call = call;
    m->u.order.grace_ns = grace_ns;
    job_cut_text(m->u.order.text, sizeof(m->u.order.text), text);
    if (!lead_send(s, worker->place.node, 0))
        return;
    if (worker->order == order)
        s->lead->stats.repeats++;
    worker->order = (uint8_t)order;
    worker->order_ns = s->now_ns;
    lead_wake(s, s->now_ns + ORDER_NS);
}

void lead_failure(struct lead_step *s)
{
    SHOAL_ASSERT(s->now_ns >= s->lead->failure_ns); /* time does not go back */
    if (s->lead->failures > 0 && s->now_ns < s->lead->failure_ns + FAILURE_NS)
        return; /* one kick at a host ends many workers: that is one */
    s->lead->failures++;
    s->lead->failure_ns = s->now_ns;
}

void lead_fail(struct shoal_lead *lead, int32_t code, const char *format, ...)
{
    va_list args;

    if (lead->fail_text[0] != '\0')
        return; /* the first cause stands */
    va_start(args, format);
    (void)vsnprintf(lead->fail_text, sizeof(lead->fail_text), format, args);
    va_end(args);
    lead->fail_code = code;
}

void lead_pending(struct shoal_lead *lead, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(lead->pending, sizeof(lead->pending), format, args);
    va_end(args);
}

void lead_blob_text(struct shoal_hash hash, char *text)
{
    SHOAL_ASSERT(!shoal_hash_is_zero(hash)); /* a blob has a name */
    memcpy(text, "blob:", 6);
    shoal_hex_text(hash.bytes, sizeof(hash.bytes), text + 5);
}

/* ---- Tables ----------------------------------------------------------------------------------------------------- */

struct lhost *lead_find_host(struct shoal_lead *lead, struct shoal_node_id node)
{
    SHOAL_ASSERT(lead->host_cap <= LEAD_HOSTS_MAX);
    for (uint32_t i = 0; i < lead->host_cap; i++)
        if (lead->hosts[i].used && shoal_node_id_equal(lead->hosts[i].node, node))
            return &lead->hosts[i];
    return NULL;
}

/* Nothing of the job is there, and nothing is under way: it may be forgotten for another. */
static bool host_idle(const struct shoal_lead *lead, const struct lhost *host)
{
    bool idle = !host->involved && host->request == 0;

    SHOAL_ASSERT(host->used);
    SHOAL_ASSERT(lead->grant_count <= lead->job->placement_cap);
    for (uint32_t i = 0; idle && i < lead->grant_count; i++)
        idle = !shoal_node_id_equal(lead->grants[i].node, host->node);
    return idle;
}

struct lhost *lead_host(struct shoal_lead *lead, struct shoal_node_id node)
{
    struct lhost *host = lead_find_host(lead, node);

    SHOAL_ASSERT(lead->host_cap <= LEAD_HOSTS_MAX);
    for (uint32_t i = 0; host == NULL && i < lead->host_cap; i++)
        if (!lead->hosts[i].used)
            host = &lead->hosts[i];
    for (uint32_t i = 0; host == NULL && i < lead->host_cap; i++)
        if (host_idle(lead, &lead->hosts[i]))
            host = &lead->hosts[i];
    if (host == NULL || (host->used && shoal_node_id_equal(host->node, node)))
        return host;
    memset(host, 0, sizeof(*host));
    host->used = true;
    host->node = node;
    return host;
}

const struct lworker *lead_find_worker(const struct shoal_lead *lead, uint64_t worker_id)
{
    SHOAL_ASSERT(lead->worker_cap <= LEAD_WORKERS_MAX);
    for (uint32_t i = 0; i < lead->worker_cap; i++)
        if (lead->workers[i].used && lead->workers[i].place.worker_id == worker_id)
            return &lead->workers[i];
    return NULL;
}

struct lworker *lead_worker(struct shoal_lead *lead, uint64_t worker_id)
{
    const struct lworker *found = lead_find_worker(lead, worker_id);

    SHOAL_ASSERT(lead->worker_cap <= LEAD_WORKERS_MAX);
    return found == NULL ? NULL : &lead->workers[found - lead->workers];
}

/* A worker that the log has dropped is forgotten here and on its host. */
static void sync_out(struct lead_step *s)
{
    SHOAL_ASSERT(s->lead->job->placement_count <= s->lead->job->placement_cap);
    for (uint32_t i = 0; i < s->lead->worker_cap; i++) {
        struct lworker *worker = &s->lead->workers[i];

        if (!worker->used || shoal_job_find_worker(s->lead->job, worker->place.worker_id) != NULL)
            continue;
        lead_order(s, worker, SHOAL_ORDER_FORGET, 0, "", 0, 0);
        worker->used = false;
    }
}

static void add_worker(struct lead_step *s, const struct shoal_placement *place)
{
    struct shoal_lead *lead = s->lead;
    struct lworker *worker = NULL;

    SHOAL_ASSERT(lead_find_worker(s->lead, place->worker_id) == NULL); /* a placement is known once */
    for (uint32_t w = 0; w < lead->worker_cap && worker == NULL; w++)
        if (!lead->workers[w].used)
            worker = &lead->workers[w];
    SHOAL_ASSERT(worker != NULL); /* take_memory(): a place for all that the log can name */
    memset(worker, 0, sizeof(*worker));
    worker->used = true;
    worker->place = *place;
    /* A lease may have been confirmed by an earlier leader up to now (L2). */
    worker->lapse_ns = s->now_ns + lead->options.lease_ns + MARGIN_NS;
    worker->report.worker_id = place->worker_id;
    worker->report.role = place->role;
}

static void sync_in(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(s->lead->job->placement_count <= s->lead->job->placement_cap);
    SHOAL_ASSERT(s->lead->worker_cap <= LEAD_WORKERS_MAX);
    for (uint32_t i = 0; i < lead->job->placement_count; i++) {
        const struct shoal_placement *place = &lead->job->placements[i];
        struct lhost *host = lead_host(lead, place->node);

        if (host != NULL)
            host->involved = true;
        if (lead_worker(lead, place->worker_id) != NULL)
            continue;
        add_worker(s, place);
    }
}

static void new_generation(struct shoal_lead *lead)
{
    SHOAL_ASSERT(lead->job->generation > lead->generation); /* J5: recovery generations only rise */
    lead->generation = lead->job->generation;
    lead->grant_count = 0;
    lead->train_due = false;
    lead->manifest_ok = false;
    lead->revoking = false;
    lead->closed_ns = 0;
}

/* ---- What hosts say ---------------------------------------------------------------------------------------------- */

static void ack(struct lead_step *s, struct shoal_node_id to, uint64_t seq)
{
    SHOAL_ASSERT(seq == 0 || !shoal_node_id_is_zero(to));
    if (seq == 0)
        return;
    s->lead->scratch->out.kind = SHOAL_HOST_ACK;
    (void)lead_send(s, to, seq);
}

/* It ended, and not well, though nobody has ordered it to. */
static void died(struct lead_step *s, const struct lworker *worker)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(worker->dead);
    if (worker->place.role == SHOAL_JOB_DRIVER) { /* none of the workers': judge_scripts() ends the job by it */
        lead->driver_deaths += worker->report.signalled;
    } else if (!lead_is_unfit(lead, worker->place.node)) {
        lead_failure(s);
        lead_exit_text(worker, "last one", lead->last_death, sizeof(lead->last_death));
    }
}

static void on_worker(struct lead_step *s, struct lhost *host)
{
    struct shoal_lead *lead = s->lead;
    const struct shoal_worker_report *report = &lead->scratch->in.u.worker;
    struct lworker *worker = lead_worker(lead, report->worker_id);

    SHOAL_ASSERT(host->used);
    SHOAL_ASSERT(s->lead->scratch->in.kind == SHOAL_HOST_WORKER);
    if (worker == NULL) { /* not in the log: it ends, and its host forgets it */
        struct lworker stray = { .used = true,
                                 .place = { .worker_id = report->worker_id,
                                            .node = host->node,
                                            .lease_generation = report->lease_generation } };

        lead_order(s, &stray, SHOAL_ORDER_FORGET, 0, "", 0, 0);
        return;
    }
    if (!shoal_node_id_equal(worker->place.node, host->node) ||
        (worker->reported && lead->scratch->in.seq < worker->seq)) {
        lead->stats.stale++;
        return;
    }
    if (!worker->reported && report->phase > SHOAL_PHASE_LEASED) /* a new leader renews what it did not confirm */
        lead->renew_ns = s->now_ns;
    if (worker->report.phase < SHOAL_PHASE_STARTED &&
        (report->phase == SHOAL_PHASE_EXITED ? report->ran && report->status >= 0 : report->phase >= SHOAL_PHASE_STARTED))
        lead_started(lead, host->node);
    worker->reported = true;
    worker->stale = host_lost(host);
    worker->seq = lead->scratch->in.seq;
    worker->report = *report;
    if (report->phase == SHOAL_PHASE_EXITED && !worker->dead) {
        worker->dead = true;
        if (!report->ran && report->status == SHOAL_STATUS_UNSTARTED && worker->ended_ns == 0)
            lead_unstarted(s, worker);
        lead_array_ended(s, worker);
        if (report->ran && (report->status != 0 || report->signalled) && worker->ended_ns == 0)
            died(s, worker);
    }
    if (report->phase == SHOAL_PHASE_EXITED && report->status < 0)
        worker->lost = true;
    if (report->next_generation != 0)
        lead_on_kept(s, host, report);
}

/* Its end will not be reported any more: its host has forgotten it, or its lease must have ended. */
static void worker_lost(struct lworker *worker, bool ran, const char *why)
{
    SHOAL_ASSERT(worker->used);  /* L5: only what the log holds can be dropped */
    SHOAL_ASSERT(!worker->dead); /* L5: an end that is known stays as it was told */
    worker->dead = true;
    worker->lost = true;
    worker->report.phase = SHOAL_PHASE_EXITED;
    worker->report.ran = ran;
    worker->report.status = -1;
    (void)snprintf(worker->report.text, sizeof(worker->report.text), "%s", why);
}

static void on_unknown(struct lead_step *s)
{
    struct lworker *worker = lead_worker(s->lead, s->lead->scratch->in.u.drain.worker_id);

    SHOAL_ASSERT(s->lead->scratch->in.kind == SHOAL_HOST_UNKNOWN);
    if (worker == NULL || worker->dead)
        return;
    worker_lost(worker, worker->reported, "its host knows nothing of it");
}

/* From the records of rank 0: loss and metric, and that a data epoch has ended. */
static void on_metrics(struct shoal_lead *lead, const struct shoal_host_message *m)
{
    SHOAL_ASSERT(m->kind == SHOAL_HOST_PROGRESS);
    if (m->u.progress.data_epoch > lead->data_epoch && lead->has_metrics) {
        lead->data_epoch_due = true;
        lead->data_epoch_done = (struct shoal_data_epoch){ .call = lead->step_call,
                                                           .data_epoch = lead->data_epoch,
                                                           .step = lead->record_step,
                                                           .engines = lead->engines,
                                                           .loss_micro = lead->loss_micro,
                                                           .metric_micro = lead->metric_micro };
    }
    lead->record_step = m->u.progress.step;
    lead->data_epoch = m->u.progress.data_epoch;
    lead->has_metrics = true;
    lead->loss_micro = m->u.progress.loss_micro;
    lead->metric_micro = m->u.progress.metric_micro;
}

static void on_progress(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    const struct shoal_host_message *m = &lead->scratch->in;
    const struct shoal_call *call = shoal_job_call(lead->job, m->u.progress.call);

    SHOAL_ASSERT(s->lead->scratch->in.kind == SHOAL_HOST_PROGRESS);
    if (call == NULL || m->u.progress.call < lead->step_call)
        return;
    if (m->u.progress.call > lead->step_call) {
        lead->step_call = m->u.progress.call;
        lead->step = lead->record_step = 0;
        lead->logged_step = call->logged_step;
        lead->records_acked = call->records_acked;
        lead->data_epoch = 0;
    }
    if (m->u.progress.logged_step > lead->logged_step)
        lead->logged_step = m->u.progress.logged_step;
    if (m->u.progress.records_acked > lead->records_acked)
        lead->records_acked = m->u.progress.records_acked;
    if (m->u.progress.has_metrics && m->u.progress.step > lead->record_step)
        on_metrics(lead, m);
    if (m->u.progress.step <= lead->step)
        return;
    lead->step = m->u.progress.step;
    lead->failures = lead->driver_deaths = lead->idle_epochs = 0;
    lead->engines = m->u.progress.engines;
    lead->rate_milli = m->u.progress.rate_milli;
    lead->stepped_ns = s->now_ns;
    if (lead->rate_milli > 0)
        lead->usual_ns = 1000 * SHOAL_S / lead->rate_milli;
}

/* A worker that has done the same for long, as its host says while that is so. */
static void on_stands(struct lead_step *s, const struct lhost *host)
{
    struct lworker *w = lead_worker(s->lead, s->lead->scratch->in.u.stands.worker_id);
    const struct shoal_worker_epoch *epoch = s->lead->job->epoch;

    SHOAL_ASSERT(s->lead->scratch->in.kind == SHOAL_HOST_STANDS);
    if (w == NULL || !shoal_node_id_equal(w->place.node, host->node) || epoch == NULL ||
        shoal_epoch_cmp(s->lead->scratch->in.u.stands.epoch, epoch->epoch) != 0) {
        s->lead->stats.stale++;
        return;
    }
    w->stands = s->lead->scratch->in.u.stands.activity;
    w->stands_ns = s->now_ns;
}

static void on_manifest(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(s->lead->scratch->in.kind == SHOAL_HOST_MANIFEST);
    if (!lead->scratch->in.u.manifest.ok) {
        lead_pending(lead, "the result could not be stored on two hosts: %s; trying again",
                     lead->scratch->in.u.manifest.text);
        return;
    }
    lead->manifest_ok = true;
    lead->manifest_call = lead->scratch->in.u.manifest.call;
    lead->manifest = lead->scratch->in.u.manifest.hash;
}

static void on_snapshot(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    const struct shoal_call *call = shoal_job_call(lead->job, lead->scratch->in.u.snapshot.call);

    SHOAL_ASSERT(s->lead->scratch->in.kind == SHOAL_HOST_SNAPSHOT);
    if (call == NULL || lead->scratch->in.u.snapshot.step <= call->snapshot_step)
        return;
    lead->snapshot_due = true;
    memset(&lead->snapshot, 0, sizeof(lead->snapshot));
    lead->snapshot.call = call->call;
    lead->snapshot.snapshot = lead->scratch->in.u.snapshot.hash;
    lead->snapshot.snapshot_step = lead->scratch->in.u.snapshot.step;
}

static void on_drain(struct lead_step *s)
{
    struct lworker *worker = lead_worker(s->lead, s->lead->scratch->in.u.drain.worker_id);

    SHOAL_ASSERT(s->lead->scratch->in.kind == SHOAL_HOST_DRAIN);
    if (worker != NULL && worker->place.role == SHOAL_JOB_ENGINE)
        worker->leaving = true;
}

static enum shoal_err on_frame(struct lead_step *s, const struct shoal_lead_event *event)
{
    struct shoal_lead *lead = s->lead;
    struct shoal_host_message *m = &lead->scratch->in;
    struct lhost *host;

    SHOAL_ASSERT(event->kind == SHOAL_LEAD_FRAME);
    if (shoal_host_decode(event->u.frame.bytes, m) != SHOAL_OK || shoal_host_kind_to_host(m->kind) ||
        !shoal_job_id_equal(m->job, lead->job->id))
        return SHOAL_ERR_MALFORMED;
    host = lead_host(lead, event->u.frame.from);
    if (host == NULL)
        return SHOAL_OK;
    shoal_lead_stamp(lead, host->node, m->host_epoch, m->stamp);
    host->stamp_ns = m->stamp == host->stamp ? s->now_ns : host->stamp_ns;
    if (m->generation != lead->job->generation && m->kind != SHOAL_HOST_UNKNOWN && m->kind != SHOAL_HOST_WORKER) {
        lead->stats.stale++;
        return SHOAL_OK;
    }
    switch ((enum shoal_host_kind)m->kind) {
    case SHOAL_HOST_OFFER: lead_on_offer(s, host); break;
    case SHOAL_HOST_WORKER: on_worker(s, host); break;
    case SHOAL_HOST_DRAIN: on_drain(s); break;
    case SHOAL_HOST_TRAIN: lead_on_train(s, m->u.train.worker_id, &m->u.train.call); break;
    case SHOAL_HOST_PROGRESS: on_progress(s); break;
    case SHOAL_HOST_MANIFEST: on_manifest(s); break;
    case SHOAL_HOST_SNAPSHOT: on_snapshot(s); break;
    case SHOAL_HOST_UNKNOWN: on_unknown(s); break;
    case SHOAL_HOST_SHRUNK:
        if (lead->job->spec.elastic)
            lead_on_shrunk(s, host);
        break;
    case SHOAL_HOST_BROKEN:
        if (lead->job->spec.elastic)
            lead_on_broken(s, host);
        break;
    case SHOAL_HOST_UNFIT:
        if (lead->job->spec.elastic)
            lead_on_unfit(s, host);
        break;
    case SHOAL_HOST_STANDS: on_stands(s, host); break;
    case SHOAL_HOST_RESERVE:
    case SHOAL_HOST_CANCEL:
    case SHOAL_HOST_CONFIRM:
    case SHOAL_HOST_RENEW:
    case SHOAL_HOST_CALL:
    case SHOAL_HOST_EPOCH:
    case SHOAL_HOST_REVOKE:
    case SHOAL_HOST_ORDER:
    case SHOAL_HOST_TRAIN_STATE:
    case SHOAL_HOST_MAKE_MANIFEST:
    case SHOAL_HOST_ACK:
    case SHOAL_HOST_MARK:
    case SHOAL_HOST_REPORT:
    case SHOAL_HOST_END:
    case SHOAL_HOST_KIND_COUNT: break;
    }
    ack(s, event->u.frame.from, m->seq);
    return SHOAL_OK;
}

/* ---- Other events ------------------------------------------------------------------------------------------------ */

static void on_target(struct shoal_lead *lead, const struct shoal_lead_event *event)
{
    SHOAL_ASSERT(event->kind == SHOAL_LEAD_TARGET);
    SHOAL_ASSERT(event->u.target.slot_count == 0 || event->u.target.slots != NULL);
    lead->has_target = true;
    lead->target = event->u.target.count;
    lead->target_slot_count =
        event->u.target.slot_count < lead->job->placement_cap ? event->u.target.slot_count : lead->job->placement_cap;
    if (lead->target_slot_count > 0)
        memcpy(lead->target_slots, event->u.target.slots, lead->target_slot_count * sizeof(lead->target_slots[0]));
    job_cut_text(lead->target_why, sizeof(lead->target_why), event->u.target.why == NULL ? "" : event->u.target.why);
}

static void host_is_new(struct lead_step *s, const struct lhost *host)
{
    SHOAL_ASSERT(host->used && host->host_epoch != 0);
    for (uint32_t i = 0; i < s->lead->worker_cap; i++) {
        struct lworker *worker = &s->lead->workers[i];

        if (!lworker_lives(worker) || !shoal_node_id_equal(worker->place.node, host->node) ||
            worker->place.host_epoch >= host->host_epoch)
            continue;
        worker_lost(worker, true, "its host was started anew");
    }
}

void shoal_lead_stamp(struct shoal_lead *lead, struct shoal_node_id node, uint32_t host_epoch, uint64_t stamp)
{
    struct lhost *host = lead_host(lead, node);

    SHOAL_ASSERT(lead->host_cap <= LEAD_HOSTS_MAX);
    if (host == NULL || host_epoch < host->host_epoch)
        return;
    if (host_epoch > host->host_epoch) {
        host->host_epoch = host_epoch;
        host->stamp = 0;
    }
    if (stamp > host->stamp) {
        host->stamp = stamp;
        host->stamp_ns = LEAD_NEVER; /* the time is put in by the next step: late is safe */
    }
}

/* True: the driver could go to this host, if the leader's own takes none and no allocation has named others. A few are kept. */
static bool could_drive(struct shoal_lead *lead, const struct shoal_lead_event *event)
{
    const struct lhost *self = lead_find_host(lead, lead->options.self);
    unsigned others = 0;

    SHOAL_ASSERT(event->kind == SHOAL_LEAD_HOST);
    if (!lead->job->spec.elastic || (self != NULL && !self->no_slots) || event->u.host.no_slots ||
        event->u.host.draining || event->u.host.health != SHOAL_LEAD_HOST_WELL)
        return false;
    for (uint32_t i = 0; i < lead->host_cap; i++)
        others += lead->hosts[i].used && !lead->hosts[i].no_slots && lead->hosts[i].health == SHOAL_LEAD_HOST_WELL;
    return others < DRIVER_HOSTS;
}

static void on_host(struct lead_step *s, const struct shoal_lead_event *event)
{
    struct lhost *host = lead_find_host(s->lead, event->u.host.node); /* of the others: nothing is asked of them now */
    bool self = shoal_node_id_equal(event->u.host.node, s->lead->options.self);

    SHOAL_ASSERT(event->kind == SHOAL_LEAD_HOST);
    if (event->u.host.plain_jobs)
        lead_on_plain_jobs(s->lead, event->u.host.node);
    if (host == NULL && (self ? event->u.host.no_slots : could_drive(s->lead, event)))
        host =
            lead_host(s->lead, event->u.host.node); /* the leader's own, so that it is not asked to take the driver */
    if (host == NULL)
        return;
    host->health = (uint8_t)event->u.host.health;
    host->draining = event->u.host.draining;
    host->no_slots = event->u.host.no_slots;
    if (event->u.host.host_epoch > host->host_epoch)
        shoal_lead_stamp(s->lead, host->node, event->u.host.host_epoch, 0);
    if (event->u.host.slots_version > host->slots_version)
        host->slots_version = event->u.host.slots_version;
    if (host->health == SHOAL_LEAD_HOST_WELL) {
        /* Its agent, or only its link, is up again: leases are renewed at once, and it tells what it still has. Its
         * datagrams are heard before frames reach it, so what was sent on hearing them may be lost. */
        if (host->silent_ns != 0 || host->links != event->u.host.links) {
            s->lead->renew_ns = s->now_ns;
            host->returned = true;
            host->end_ns = 0;
            host->guardians_told = 0; /* what was said last may not have come */
        }
        host->silent_ns = 0;
        host->links = event->u.host.links;
    }
    if (host->health != SHOAL_LEAD_HOST_WELL && host->silent_ns == 0)
        host->silent_ns = s->now_ns;
    for (uint32_t i = 0; host->silent_ns != 0 && i < s->lead->worker_cap; i++)
        if (s->lead->workers[i].used && shoal_node_id_equal(s->lead->workers[i].place.node, host->node))
            s->lead->workers[i].stale = true;
}

static enum shoal_err on_event(struct lead_step *s, const struct shoal_lead_event *event)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(s->actions->count == 0); /* what an event changes is told by the step, in its order */
    switch (event->kind) {
    case SHOAL_LEAD_TIMER: return SHOAL_OK;
    case SHOAL_LEAD_APPLIED: lead->proposing = false; return SHOAL_OK;
    case SHOAL_LEAD_REFUSED:
        lead->stats.proposals_refused += lead->proposing;
        lead->proposing = false;
        lead->retry_ns = s->now_ns + RETRY_NS;
        return SHOAL_OK;
    case SHOAL_LEAD_FRAME: return on_frame(s, event);
    case SHOAL_LEAD_TARGET: on_target(lead, event); return SHOAL_OK;
    case SHOAL_LEAD_HOST: on_host(s, event); return SHOAL_OK;
    case SHOAL_LEAD_SUPPORTED:
        if (event->u.supported && !lead->supported)
            lead->renew_ns = s->now_ns;
        lead->supported = event->u.supported;
        return SHOAL_OK;
    case SHOAL_LEAD_GUARDIANS:
        lead->guardian_count = event->u.guardians.count < SHOAL_HOST_SOURCES_MAX ? (uint8_t)event->u.guardians.count
                                                                                 : SHOAL_HOST_SOURCES_MAX;
        if (lead->guardian_count > 0)
            memcpy(lead->guardians, event->u.guardians.nodes, lead->guardian_count * sizeof(lead->guardians[0]));
        lead->guardians_version++;
        return SHOAL_OK;
    case SHOAL_LEAD_FLOOR:
        lead->floor = event->u.floor.count;
        lead->canary = event->u.floor.canary;
        lead->need = event->u.floor.need;
        lead->need_revision = event->u.floor.revision;
        lead->need_told = true;
        return SHOAL_OK;
    case SHOAL_LEAD_RECORDS_MARK:
        if (event->u.records_mark.call == lead->job->call_count && event->u.records_mark.step > lead->records_acked) {
            lead->records_acked = event->u.records_mark.step;
            lead->step_call =
                event->u.records_mark.call > lead->step_call ? event->u.records_mark.call : lead->step_call;
        }
        return SHOAL_OK;
    }
    return SHOAL_ERR_INVALID;
}

/* ---- The step ---------------------------------------------------------------------------------------------------- */

/* L5: who is dead by the clock or by a new life of its host. */
static void bury(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(s->now_ns < LEAD_NEVER);
    for (uint32_t i = 0; i < lead->host_cap; i++) {
        struct lhost *host = &lead->hosts[i];

        if (!host->used)
            continue;
        if (host->stamp_ns == LEAD_NEVER)
            host->stamp_ns = s->now_ns;
        if (host->host_epoch != 0)
            host_is_new(s, host);
    }
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        struct lworker *worker = &lead->workers[i];
        const struct lhost *host;

        if (!lworker_lives(worker))
            continue;
        host = lead_host(lead, worker->place.node);
        if (worker->reported && !host_lost(host))
            continue; /* it is there, perhaps frozen for a while */
        if (s->now_ns < worker->lapse_ns) {
            lead_wake(s, worker->lapse_ns);
            continue;
        }
        worker_lost(worker, true, "its host was lost, and its lease has ended");
    }
}

/* A host that was out of reach may hold workers that this job has dropped meanwhile: its report brings them to light,
 * and they are told to end. */
static void ask_returned(struct lead_step *s)
{
    SHOAL_ASSERT(s->actions->count <= SHOAL_LEAD_ACTIONS_MAX);
    for (uint32_t i = 0; i < s->lead->host_cap; i++) {
        struct lhost *host = &s->lead->hosts[i];

        if (!host->used || !host->returned)
            continue;
        host->call_sent = 0;
        s->lead->scratch->out.kind = SHOAL_HOST_REPORT;
        if (lead_send(s, host->node, 0))
            host->returned = false;
    }
}

/* A new leader asks each host once, and again each second while it owes a report. */
static void ask_reports(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(s->lead->worker_cap <= LEAD_WORKERS_MAX);
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        struct lworker *worker = &lead->workers[i];
        struct lhost *host;

        if (!lworker_lives(worker) || worker->reported || worker->confirm_ns != 0)
            continue;
        host = lead_host(lead, worker->place.node);
        if (host == NULL || host_lost(host))
            continue;
        if (host->report_ns != 0 && s->now_ns < host->report_ns + SHOAL_S) {
            lead_wake(s, host->report_ns + SHOAL_S);
            continue;
        }
        lead->scratch->out.kind = SHOAL_HOST_REPORT;
        if (lead_send(s, host->node, 0))
            host->report_ns = s->now_ns;
        lead_wake(s, s->now_ns + SHOAL_S);
    }
}

/* One after the other; the first that proposes ends the search (L1). */
static void propose_next(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(s->lead->proposed_ns <= s->now_ns); /* time does not go back */
    SHOAL_ASSERT(s->actions->count <= SHOAL_LEAD_ACTIONS_MAX);
    if (lead->proposing) {
        if (s->now_ns < lead->proposed_ns + PROPOSAL_NS) {
            lead_wake(s, lead->proposed_ns + PROPOSAL_NS);
            return;
        }
        lead->proposing = false;
    }
    if (lead_finish(s) || shoal_job_state_ended((enum shoal_job_state)lead->job->state))
        (void)0;
    else if (lead_epoch(s) || lead_calls(s))
        (void)0;
    else if (lead_place(s))
        (void)0;
    if (!lead->proposing && !lead_drop(s))
        (void)lead_progress(s);
}

enum shoal_err shoal_lead_step(struct shoal_lead *lead, const struct shoal_lead_event *event, uint64_t now_ns,
                               struct shoal_lead_actions *actions)
{
    struct lead_step s = { .lead = lead, .now_ns = now_ns, .actions = actions };
    enum shoal_err err;

    SHOAL_ASSERT(now_ns >= lead->started_ns);                /* time does not go back */
    SHOAL_ASSERT(lead->job->generation >= lead->generation); /* J5 */
    actions->count = 0;
    actions->pool_used = 0;
    lead->scratch = &actions->scratch;
    lead->blocked = false;
    lead->deadline_ns = LEAD_NEVER;
    if (event->wall_ms != 0)
        lead->wall_ms = event->wall_ms;
    err = on_event(&s, event);
    if (lead->generation != lead->job->generation)
        new_generation(lead);
    sync_out(&s);
    sync_in(&s);
    bury(&s);
    lead_let_in(&s);
    propose_next(&s);
    ask_reports(&s);
    ask_returned(&s);
    lead_confirm(&s);
    lead_tell_call(&s);
    lead_tell_epoch(&s);
    lead_tell_driver(&s);
    lead_renew(&s);
    lead_pace(&s);
    lead_publish(&s);
    if (lead->blocked)
        lead->deadline_ns = now_ns;
    return err;
}

uint64_t shoal_lead_deadline_ns(const struct shoal_lead *lead) { return lead->deadline_ns; }

static uint64_t or_default(uint64_t value, uint64_t otherwise)
{
    SHOAL_ASSERT(otherwise > 0);
    return value != 0 ? value : otherwise;
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* A gang's next attempt begins when the last one has left the log. An elastic job may have workers on lost hosts beside
 * those in their place, and two drivers. What an earlier leader has placed is there already. */
static enum shoal_err take_memory(struct shoal_lead *lead)
{
    const struct shoal_job *job = lead->job;
    uint32_t most = job->spec.elastic ? 2 * job->spec.workers_max + 4 : job->spec.workers_min + 1;

    SHOAL_ASSERT(lead->workers == NULL && lead->hosts == NULL); /* once */
    SHOAL_ASSERT(lead->job->placement_count <= lead->job->placement_cap);
    if (job->tasks != NULL)
        most = job->tasks->array.task_count < SHOAL_PLACE_TASKS_MAX ? job->tasks->array.task_count : SHOAL_PLACE_TASKS_MAX;
    most += job->placement_count;
    lead->worker_cap = least(most, job->placement_cap);
    lead->host_cap = least(2 * most + 2, 2 * job->placement_cap);
    lead->workers = calloc(lead->worker_cap, sizeof(*lead->workers));
    lead->hosts = calloc(lead->host_cap, sizeof(*lead->hosts));
    lead->target_slots = calloc(job->placement_cap, sizeof(*lead->target_slots));
    lead->grants = calloc(job->placement_cap, sizeof(*lead->grants));
    lead->unfit_cap = job->spec.elastic ? LEAD_HOSTS_MAX : LEAD_OUTS_MAX;
    lead->unfit = calloc(lead->unfit_cap, sizeof(*lead->unfit));
    if (lead->workers == NULL || lead->hosts == NULL || lead->target_slots == NULL || lead->grants == NULL || lead->unfit == NULL)
        return SHOAL_ERR_FULL;
    if (!job->spec.elastic)
        return SHOAL_OK;
    lead->shrunk = calloc(1, sizeof(*lead->shrunk));
    lead->links = calloc(1, sizeof(*lead->links));
    lead->call_text = calloc(1, SHOAL_JOB_REASON_BYTES);
    return lead->shrunk == NULL || lead->links == NULL || lead->call_text == NULL ? SHOAL_ERR_FULL : SHOAL_OK;
}

enum shoal_err shoal_lead_create(struct shoal_lead **out, const struct shoal_lead_options *options)
{
    struct shoal_lead *lead = calloc(1, sizeof(*lead));

    SHOAL_ASSERT(options->job != NULL);
    SHOAL_ASSERT(options->term > 0); /* L2: a leader is elected */
    if (lead == NULL)
        return SHOAL_ERR_FULL;
    lead->options = *options;
    lead->options.lease_ns = or_default(options->lease_ns, SHOAL_LEASE_NS);
    lead->options.renew_ns = or_default(options->renew_ns, 3 * SHOAL_S);
    lead->options.gather_ns = or_default(options->gather_ns, 50 * SHOAL_MS);
    lead->options.first_gather_ns = or_default(options->first_gather_ns, SHOAL_S);
    lead->options.slow_ns = or_default(options->slow_ns, 300 * SHOAL_MS);
    lead->options.stop_grace_ns = or_default(options->stop_grace_ns, 30 * SHOAL_S);
    lead->options.attempts_max = options->attempts_max != 0 ? options->attempts_max : SHOAL_ATTEMPTS_MAX;
    lead->job = options->job;
    lead->floor = UINT32_MAX;
    lead->rand = options->rand;
    lead->supported = true;
    lead->started_ns = options->now_ns;
    lead->renew_ns = options->now_ns;
    lead->generation = options->job->generation;
    lead->next_request = options->term << 20 | 1;
    lead->fail_code = -1;
    lead->summary_state = SHOAL_JOB_STATE_COUNT;
    lead->deadline_ns = options->now_ns;
    if (take_memory(lead) != SHOAL_OK) {
        shoal_lead_destroy(lead);
        return SHOAL_ERR_FULL;
    }
    *out = lead;
    return SHOAL_OK;
}

void shoal_lead_destroy(struct shoal_lead *lead)
{
    if (lead == NULL)
        return;
    free(lead->workers);
    free(lead->hosts);
    free(lead->target_slots);
    free(lead->grants);
    free(lead->shrunk);
    free(lead->call_text);
    free(lead->links);
    free(lead->unfit);
    free(lead);
}

size_t shoal_lead_bytes(const struct shoal_lead *lead)
{
    SHOAL_ASSERT((lead->shrunk == NULL) == (lead->links == NULL)); /* both, or not elastic */
    return sizeof(*lead) + lead->worker_cap * sizeof(*lead->workers) + lead->host_cap * sizeof(*lead->hosts) +
           lead->job->placement_cap * (sizeof(*lead->target_slots) + sizeof(*lead->grants)) +
           lead->unfit_cap * sizeof(*lead->unfit) +
           (lead->shrunk == NULL ? 0 : sizeof(*lead->shrunk) + sizeof(*lead->links) + SHOAL_JOB_REASON_BYTES);
}

/* Memory of the largest job's lead, with 128 workers; one of a single worker takes a thirtieth. */
void shoal_lead_memory(struct shoal_memory *memory)
{
    const size_t largest = sizeof(struct shoal_lead) + LEAD_WORKERS_MAX * sizeof(struct lworker) +
                           LEAD_HOSTS_MAX * sizeof(struct lhost) +
                           SHOAL_PLACEMENTS_MAX * (sizeof(struct shoal_lead_slot) + sizeof(struct lgrant)) + sizeof(struct shoal_worker_epoch) +
                           sizeof(struct link_breaks) + LEAD_HOSTS_MAX * sizeof(struct shoal_node_id) +
                           SHOAL_JOB_REASON_BYTES;

    SHOAL_ASSERT(memory->count < SHOAL_MEMORY_ROWS_MAX);
    shoal_memory_add(memory, "lead: jobs that this host leads", SHOAL_GROUPS_MAX, largest);
}
