/* A step of one host's slots: the event, then what is due by the clock, what the shell is to do, what leaders and gossip hear.
 * Picture and rules: shoal/slots.h. */
#include "shoal/slots.h"

#include "sched/job/job_wire.h"
#include "slots_state.h"
#include "shoal/banned.h"

#define EMPTY_NS (10 * SHOAL_S) /* a job without workers here is forgotten */
#define REMIND_NS (2 * SHOAL_S) /* S12 */
#define PROGRESS_NS (500 * SHOAL_MS)

/* ---- Time and wants ---------------------------------------------------------------------------------------------- */

static void wake(struct shoal_slots *slots, uint64_t at_ns)
{
    SHOAL_ASSERT(at_ns > 0);
    if (at_ns < slots->deadline_ns)
        slots->deadline_ns = at_ns;
}

static void time_slot(struct slots_step *s, struct slot *slot)
{
    SHOAL_ASSERT(slot->state < SHOAL_SLOT_STATE_COUNT);
    if (slot->state != SHOAL_SLOT_TENTATIVE)
        return;
    if (s->now_ns < slot->until_ns) {
        wake(s->slots, slot->until_ns);
        return;
    }
    /* The generation stays unspent: a CONFIRM that comes late is honoured while nobody else has got the slot. */
    slots_slot_move(slot, SHOAL_SLOT_FREE);
    slots_changed(s->slots);
}

/* S5. The freeze is due `freeze_ns` after the newest stamp echoed; the deadline is `lease_ns` after it. */
void slots_worker_freeze_due(struct slots_step *s, struct worker *worker)
{
    const struct shoal_slots_options *o = &s->slots->options;

    SHOAL_ASSERT(worker_lives(worker));
    if (worker->frozen || s->now_ns < worker->deadline_ns - (o->lease_ns - o->freeze_ns))
        return;
    worker->frozen = true;
    worker->report.frozen = true;
    worker->want = (uint8_t)((worker->want & ~WANT_THAW) | WANT_FREEZE);
    s->slots->stats.freezes++;
    slots_worker_changed(s->slots, worker);
}

static void time_worker(struct slots_step *s, struct worker *worker)
{
    const struct shoal_slots_options *o = &s->slots->options;
    uint64_t freeze_ns = worker->deadline_ns - (o->lease_ns - o->freeze_ns);

    SHOAL_ASSERT(s->slots->options.freeze_ns < s->slots->options.lease_ns); /* S5: it is frozen before its lease ends */
    if (!worker_lives(worker))
        return;
    if (worker->unproven && s->now_ns >= worker->proof_ns) {
        slots_worker_exited(s, worker, -1, false, "ended while the agent was away");
        return; /* the dead are not frozen */
    }
    if (worker->unproven)
        wake(s->slots, worker->proof_ns);
    slots_worker_freeze_due(s, worker);
    if (worker->expired != (s->now_ns >= worker->deadline_ns)) { /* its slot may be claimed: that kills it */
        worker->expired = !worker->expired;
        slots_changed(s->slots);
    }
    if (worker->frozen && s->now_ns >= worker->deadline_ns + o->kill_ns) {
        s->slots->stats.expired++;
        slots_worker_kill(worker, 0, s->now_ns);
    }
    if (worker->kill_ns != 0 && !worker->killed && !(worker->want & WANT_KILL) && s->now_ns >= worker->kill_ns) {
        worker->want |= WANT_KILL; /* the grace is over */
        worker->grace_ns = 0;
    }
    if (worker->kill_ns != 0 && !worker->killed)
        wake(s->slots, worker->kill_ns);
    wake(s->slots, !worker->frozen    ? freeze_ns
                   : !worker->expired ? worker->deadline_ns
                                      : worker->deadline_ns + o->kill_ns);
}

static void emit_wants(struct slots_step *s, struct worker *worker)
{
    static const struct {
        uint8_t want;
        enum shoal_host_order_kind kind;
    } table[] = { { WANT_RUN, SHOAL_HOST_DO_RUN },
                  { WANT_RENEW, SHOAL_HOST_DO_RENEW },
                  { WANT_FREEZE, SHOAL_HOST_DO_FREEZE },
                  { WANT_THAW, SHOAL_HOST_DO_THAW },
                  { WANT_KILL, SHOAL_HOST_DO_KILL } };
    const struct hjob *job = &s->slots->jobs[worker->job];

    SHOAL_ASSERT(worker->used);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct shoal_host_order *order;

        if (!(worker->want & table[i].want) || (order = slots_order(s, table[i].kind)) == NULL)
            continue;
        worker->want = (uint8_t)(worker->want & ~table[i].want);
        if (table[i].want == WANT_RUN) {
            order->u.run.job = job->id;
            order->u.run.generation = job->generation;
            order->u.run.placement = worker->place;
            order->u.run.deadline_ns = worker->deadline_ns;
            worker->run = true;
            continue;
        }
        order->u.worker.worker_id = worker->place.worker_id;
        order->u.worker.deadline_ns = worker->deadline_ns;
        if (table[i].want == WANT_KILL) {
            order->u.worker.grace_ns = worker->grace_ns;
            worker->killed = worker->grace_ns == 0;
            s->slots->stats.kills++;
        }
    }
}

/* ---- Reports ----------------------------------------------------------------------------------------------------- */

static bool item_due(struct slots_step *s, const struct hjob *job, const struct item *item)
{
    SHOAL_ASSERT(item->seq <= job->seq);
    if (!item_open(item))
        return false;
    if (item->sent != item->seq || job->report_all || s->now_ns >= item->sent_ns + s->slots->options.repeat_ns)
        return true;
    wake(s->slots, item->sent_ns + s->slots->options.repeat_ns);
    return false;
}

static void item_sent(struct slots_step *s, struct item *item)
{
    SHOAL_ASSERT(item_open(item)); /* nothing is told that is known */
    if (item->sent == item->seq)
        s->slots->stats.repeats++;
    s->slots->stats.reports++;
    item->sent = item->seq;
    item->sent_ns = s->now_ns;
    wake(s->slots, s->now_ns + s->slots->options.repeat_ns);
}

/* S12 */
static bool reminder_due(struct slots_step *s, const struct worker *worker)
{
    SHOAL_ASSERT(worker->used);
    if (worker->report.phase != SHOAL_PHASE_EXITED || worker->item.seq == 0 || item_open(&worker->item))
        return false;
    if (s->now_ns >= worker->item.sent_ns + REMIND_NS)
        return true;
    wake(s->slots, worker->item.sent_ns + REMIND_NS);
    return false;
}

static void report_worker(struct slots_step *s, struct hjob *job, struct worker *worker)
{
    SHOAL_ASSERT(!shoal_node_id_is_zero(job->leader)); /* S6: there is somebody to tell */
    SHOAL_ASSERT(worker->used);
    if (s->now_ns < worker->quiet_ns && item_open(&worker->item)) {
        wake(s->slots, worker->quiet_ns);
        return;
    }
    if (slots_shrink_withholds(s->slots, job, worker) || (!item_due(s, job, &worker->item) && !reminder_due(s, worker)))
        return;
    /* A leader that does not know one of these two kinds refuses that message alone. */
    if (worker->unfit) {
        s->slots->out.kind = SHOAL_HOST_UNFIT;
        s->slots->out.u.unfit.worker_id = worker->place.worker_id;
        job_cut_text(s->slots->out.u.unfit.text, sizeof(s->slots->out.u.unfit.text), worker->report.text);
        (void)slots_send(s, job, job->leader, 0);
    }
    if (worker->report.closed && shoal_ranks_any(&worker->broken)) {
        s->slots->out.kind = SHOAL_HOST_BROKEN;
        s->slots->out.u.broken.worker_id = worker->place.worker_id;
        s->slots->out.u.broken.epoch = worker->report.epoch;
        s->slots->out.u.broken.ranks = worker->broken;
        (void)slots_send(s, job, job->leader, 0);
    }
    s->slots->out.kind = SHOAL_HOST_WORKER;
    s->slots->out.u.worker = worker->report;
    if (!slots_send(s, job, job->leader, worker->item.seq))
        return;
    if (item_open(&worker->item)) {
        item_sent(s, &worker->item);
    } else {
        worker->item.sent_ns = s->now_ns;
        wake(s->slots, s->now_ns + REMIND_NS);
    }
}

static void report_progress(struct slots_step *s, struct hjob *job)
{
    struct shoal_host_message *m = &s->slots->out;

    SHOAL_ASSERT(!shoal_node_id_is_zero(job->leader)); /* S6: there is somebody to tell */
    if (!job->progress_new)
        return;
    if (s->now_ns < job->progress_ns + PROGRESS_NS) {
        wake(s->slots, job->progress_ns + PROGRESS_NS);
        return;
    }
    if (job->rate_ns != 0 && job->step > job->rate_step && s->now_ns > job->rate_ns)
        job->rate_milli = (uint32_t)((job->step - job->rate_step) * 1000 * SHOAL_S / (s->now_ns - job->rate_ns));
    job->rate_ns = s->now_ns;
    job->rate_step = job->step;
    m->kind = SHOAL_HOST_PROGRESS;
    memset(&m->u.progress, 0, sizeof(m->u.progress));
    m->u.progress.call = job->progress_call != 0 ? job->progress_call : job->call;
    m->u.progress.step = job->metrics_new ? job->record_step : job->step;
    m->u.progress.records_acked = job->mark;
    m->u.progress.logged_step = job->logged_step;
    m->u.progress.data_epoch = job->data_epoch;
    m->u.progress.engines = job->engines;
    m->u.progress.rate_milli = job->rate_milli;
    m->u.progress.has_metrics = job->metrics_new;
    m->u.progress.loss_micro = job->loss_micro;
    m->u.progress.metric_micro = job->metric_micro;
    if (slots_send(s, job, job->leader, 0)) {
        job->progress_new = job->metrics_new && job->step > job->record_step;
        job->metrics_new = false;
        job->progress_ns = s->now_ns;
    }
}

static void report_job(struct slots_step *s, struct hjob *job)
{
    struct shoal_host_message *m = &s->slots->out;

    SHOAL_ASSERT(!shoal_node_id_is_zero(job->leader)); /* S6: there is somebody to tell */
    if (item_due(s, job, &job->train)) {
        m->kind = SHOAL_HOST_TRAIN;
        m->u.train.worker_id = job->train_worker;
        m->u.train.call = job->train_call;
        if (slots_send(s, job, job->leader, job->train.seq))
            item_sent(s, &job->train);
    }
    if (item_due(s, job, &job->manifest)) {
        m->kind = SHOAL_HOST_MANIFEST;
        m->u.manifest.call = job->manifest_call;
        m->u.manifest.ok = job->manifest_ok;
        m->u.manifest.hash = job->manifest_hash;
        memcpy(m->u.manifest.text, job->manifest_text, sizeof(m->u.manifest.text));
        if (slots_send(s, job, job->leader, job->manifest.seq))
            item_sent(s, &job->manifest);
    }
    if (item_due(s, job, &job->snap)) {
        m->kind = SHOAL_HOST_SNAPSHOT;
        m->u.snapshot.call = job->snap_call;
        m->u.snapshot.step = job->snap_step;
        m->u.snapshot.hash = job->snap_hash;
        if (slots_send(s, job, job->leader, job->snap.seq))
            item_sent(s, &job->snap);
    }
    report_progress(s, job);
}

static void flood(struct slots_step *s, struct hjob *job)
{
    const struct shoal_worker_epoch *epoch = slots_epoch(s->slots, job);

    SHOAL_ASSERT(job->flood_word != 0);
    SHOAL_ASSERT(job->flood_word <= job->revoked); /* S6: it is revoked here first */
    for (uint32_t i = 0; i < epoch->member_count; i++) {
        struct shoal_node_id node = epoch->members[i].node;
        bool seen = shoal_node_id_equal(node, s->slots->options.self);

        for (uint32_t j = 0; j < i; j++)
            seen = seen || shoal_node_id_equal(node, epoch->members[j].node);
        if (seen)
            continue;
        s->slots->out.kind = SHOAL_HOST_REVOKE;
        s->slots->out.u.revoke = shoal_epoch_of_word(job->flood_word);
        (void)slots_send(s, job, node, 0); /* a hint: the leader revokes too, and repeats */
    }
    job->flood_word = 0;
}

static void fetch(struct slots_step *s, struct hjob *job, struct shoal_hash hash, enum blob_state *state,
                  uint64_t *again_ns)
{
    struct shoal_host_order *order;

    SHOAL_ASSERT(*state <= BLOB_HERE);
    if (*state != BLOB_NONE || shoal_hash_is_zero(hash))
        return;
    if (s->now_ns < *again_ns) {
        wake(s->slots, *again_ns);
        return;
    }
    order = slots_order(s, SHOAL_HOST_DO_FETCH);
    if (order == NULL)
        return;
    order->u.fetch.job = job->id;
    order->u.fetch.hash = hash;
    order->u.fetch.source_count = job->source_count;
    memcpy(order->u.fetch.sources, job->sources, sizeof(job->sources));
    *state = BLOB_FETCHING;
    *again_ns = s->now_ns + SHOAL_S; /* a failed fetch is asked for again */
}

static void drive_job(struct slots_step *s, struct hjob *job)
{
    struct shoal_host_order *order;

    SHOAL_ASSERT(job->revoked_sent <= job->revoked);
    SHOAL_ASSERT(job->spec_len <= SHOAL_JOB_SPEC_BYTES_MAX);
    if (!job->opened && job->spec_len > 0 && s->slots->until_reattached_ns == 0 && /* S11: a runner may have it open */
        (order = slots_order(s, SHOAL_HOST_DO_JOB_OPEN)) != NULL) {
        order->u.job.job = job->id;
        order->u.job.generation = job->generation;
        order->u.job.spec = shoal_view_of(
            s->slots->specs + (size_t)slots_job_index(s->slots, job) * SHOAL_JOB_SPEC_BYTES_MAX, job->spec_len);
        job->opened = true;
    }
    if (job->opened && job->sources_new && (order = slots_order(s, SHOAL_HOST_DO_GUARDIANS)) != NULL) {
        order->u.fetch.job = job->id;
        order->u.fetch.source_count = job->source_count;
        memcpy(order->u.fetch.sources, job->sources, sizeof(job->sources));
        job->sources_new = false;
    }
    if (job->revoked > job->revoked_sent && (order = slots_order(s, SHOAL_HOST_DO_REVOKE)) != NULL) {
        order->u.revoke.job = job->id;
        order->u.revoke.epoch_word = job->revoked;
        job->revoked_sent = job->revoked;
    }
    if (job->flood_word != 0)
        flood(s, job);
    slots_shrink_turn(s, job);
    if (!shoal_node_id_is_zero(job->leader) && item_due(s, job, &job->shrunk)) { /* before the report of the death */
        s->slots->out.kind = SHOAL_HOST_SHRUNK;
        memcpy(&s->slots->out.u.epoch, slots_epoch(s->slots, job), sizeof(s->slots->out.u.epoch));
        if (slots_send(s, job, job->leader, job->shrunk.seq))
            item_sent(s, &job->shrunk);
    }
    fetch(s, job, job->bundle, &job->bundle_state, &job->fetch_ns);
    fetch(s, job, job->snapshot, &job->snapshot_state, &job->snapshot_ns);
    if (job->manifest_wanted && (order = slots_order(s, SHOAL_HOST_DO_MANIFEST)) != NULL) {
        order->u.manifest.job = job->id;
        order->u.manifest.generation = job->generation;
        order->u.manifest.call = job->manifest_call;
        job->manifest_wanted = false;
    }
}

static void close_job(struct slots_step *s, struct hjob *job)
{
    struct shoal_host_order *order;
    bool lives = false, any = false;
    bool asked_for = !shoal_node_id_is_zero(job->leader);
    uint64_t kept_ns;

    SHOAL_ASSERT(job->used);
    for (uint32_t i = 0; i < SHOAL_HOST_WORKERS_MAX; i++) {
        const struct worker *worker = &s->slots->workers[i];

        if (worker->used && &s->slots->jobs[worker->job] == job) {
            any = true;
            lives = lives || worker_lives(worker);
        }
    }
    if (job->closing || !asked_for ? lives : any) {
        job->empty_ns = 0;
        return;
    }
    if (job->empty_ns == 0)
        job->empty_ns = s->now_ns;
    kept_ns = any ? s->slots->options.kill_ns : EMPTY_NS; /* an end that no leader has asked about yet */
    if (!job->closing && s->now_ns < job->empty_ns + kept_ns) {
        wake(s->slots, job->empty_ns + kept_ns);
        return;
    }
    if (job->opened) {
        order = slots_order(s, SHOAL_HOST_DO_JOB_CLOSED);
        if (order == NULL)
            return;
        order->u.job.job = job->id;
        order->u.job.generation = job->generation;
    }
    slots_job_forget(s->slots, job);
}

static void publish(struct slots_step *s)
{
    struct shoal_slots_record record;
    struct shoal_slots_action *action;
    uint8_t *bytes = s->actions->pool + s->actions->pool_used;
    size_t len = 0;

    SHOAL_ASSERT(s->slots->published <= s->slots->version); /* versions only rise */
    if (s->slots->published == s->slots->version)
        return;
    shoal_slots_record(s->slots, &record);
    record.stamp = s->now_ns;
    if (shoal_slots_record_encode(&record, bytes, SHOAL_SLOTS_POOL_BYTES - s->actions->pool_used, &len) != SHOAL_OK ||
        (action = slots_emit(s, SHOAL_SLOTS_PUBLISH)) == NULL) {
        s->slots->blocked = true;
        return;
    }
    action->u.publish.version = record.version;
    action->u.publish.payload = shoal_view_of(bytes, len);
    slots_pool_take(s->actions, len);
    s->slots->published = s->slots->version;
}

/* Tell others what they do not know of the state yet. Order matters: a revoke goes out before what follows from it. */
static void drive(struct slots_step *s)
{
    struct shoal_slots *slots = s->slots;

    SHOAL_ASSERT(s->slots->deadline_ns == UINT64_MAX); /* each time of this step is worked out anew */
    if (slots->until_reattached_ns != 0 && s->now_ns >= slots->until_reattached_ns)
        slots_reattached(s);
    if (slots->until_reattached_ns != 0)
        wake(slots, slots->until_reattached_ns);
    for (uint32_t i = 0; i < slots->options.slots; i++)
        time_slot(s, &slots->slots[i]);
    for (uint32_t i = 0; i < SHOAL_HOST_WORKERS_MAX; i++)
        if (slots->workers[i].used)
            time_worker(s, &slots->workers[i]);
    for (uint32_t i = 0; i < slots->jobs_max; i++)
        if (slots->jobs[i].used)
            drive_job(s, &slots->jobs[i]);
    for (uint32_t i = 0; i < SHOAL_HOST_WORKERS_MAX; i++) {
        struct worker *worker = &slots->workers[i];
        struct hjob *job;

        if (!worker->used)
            continue;
        job = &slots->jobs[worker->job];
        emit_wants(s, worker);
        if (worker_lives(worker))
            slots_drive_worker(s, worker);
        if (!shoal_node_id_is_zero(job->leader))
            report_worker(s, job, worker);
    }
    for (uint32_t i = 0; i < slots->jobs_max; i++) {
        struct hjob *job = &slots->jobs[i];

        if (!job->used)
            continue;
        if (!shoal_node_id_is_zero(job->leader))
            report_job(s, job);
        job->report_all = false;
        close_job(s, job);
    }
    publish(s);
}

enum shoal_err shoal_slots_step(struct shoal_slots *slots, const struct shoal_slots_event *event, uint64_t now_ns,
                                struct shoal_slots_actions *actions)
{
    struct slots_step s = { .slots = slots, .now_ns = now_ns, .actions = actions };
    enum shoal_err err;

    SHOAL_ASSERT(actions != NULL && event != NULL);
    actions->count = 0;
    actions->pool_used = 0;
    slots->blocked = false;
    slots->deadline_ns = UINT64_MAX;
    err = slots_on_event(&s, event);
    drive(&s);
    if (slots->blocked)
        slots->deadline_ns = now_ns;
    return err;
}

uint64_t shoal_slots_deadline_ns(const struct shoal_slots *slots) { return slots->deadline_ns; }
