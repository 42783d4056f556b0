/* The messages of leaders: reserve, confirm, renew, and orders for workers. Rules S1 to S5, S8, S9: shoal/slots.h. */
#include "sched/job/job_wire.h"
#include "slots_state.h"
#include "shoal/banned.h"

#define AGENT_IS_NEW "this host's agent has just started"
#define TASK_NS (200 * SHOAL_MS) /* a task that ends within it is reported once, not twice */

/* One answer to `to` about a job that may not be in the table (a RESERVE founds nothing). */
static void answer(struct slots_step *s, struct shoal_node_id to)
{
    const struct shoal_host_message *in = &s->slots->in;
    struct hjob about = { .id = in->job, .generation = in->generation, .term = in->term };

    SHOAL_ASSERT(s->slots->out.kind ==
                 SHOAL_HOST_OFFER); /* a RESERVE founds nothing: only its answer goes to a stranger */
    (void)slots_send(s, &about, to, 0);
}

/* ---- Reserve ----------------------------------------------------------------------------------------------------- */

/* Earlier in the order (priority descending, ticket time, id): may wound a tentative claim of a later one. */
static bool claim_beats(const struct shoal_host_message *m, const struct slot *slot)
{
    SHOAL_ASSERT(slot->state == SHOAL_SLOT_TENTATIVE); /* S3: only a promise is wounded */
    if (m->u.reserve.priority != slot->priority)
        return m->u.reserve.priority > slot->priority;
    if (m->u.reserve.ticket_ms != slot->ticket_ms)
        return m->u.reserve.ticket_ms < slot->ticket_ms;
    return shoal_job_id_cmp(m->job, slot->job) < 0;
}

static uint64_t next_generation(struct slots_step *s)
{
    uint64_t after = s->slots->last_generation + 1;

    SHOAL_ASSERT(s->slots->last_generation < UINT64_MAX); /* S1: generations only rise */
    /* At least the clock: rises even where the table was lost in this host epoch. */
    s->slots->last_generation = after > s->now_ns ? after : s->now_ns;
    s->slots->table_version++;
    return s->slots->last_generation;
}

static void grant(struct slots_step *s, struct slot *slot)
{
    const struct shoal_host_message *m = &s->slots->in;

    SHOAL_ASSERT(slot->state == SHOAL_SLOT_FREE || slot->state == SHOAL_SLOT_TENTATIVE); /* S3 */
    slots_slot_move(slot, SHOAL_SLOT_TENTATIVE);
    slot->spent = false;
    slot->job = m->job;
    slot->generation = next_generation(s);
    slot->worker_id = 0;
    slot->priority = m->u.reserve.priority;
    slot->ticket_ms = m->u.reserve.ticket_ms;
    slot->until_ns = s->now_ns + s->slots->options.tentative_ns;
    slot->gpu_mib = m->u.reserve.gpu_mib;
    slot->gpu_pack = m->u.reserve.gpu_pack;
    s->slots->stats.grants++;
    slots_changed(s->slots);
}

bool slots_keeps(const struct shoal_slots *slots, const struct worker *worker)
{
    const struct hjob *job = &slots->jobs[worker->job];
    const struct slot *slot = &slots->slots[worker->place.slot];
    struct shoal_job_id nobody = { { 0 } };

    SHOAL_ASSERT(worker->used);
    return !slots->drain && worker->place.role == SHOAL_JOB_TASK && job->keep && !job->closing &&
           (shoal_job_id_equal(slot->target, job->id) || shoal_job_id_equal(slot->target, nobody));
}

void slots_keep(struct slots_step *s, struct slot *slot, struct worker *worker)
{
    const struct hjob *job = &s->slots->jobs[worker->job];

    SHOAL_ASSERT(slot->state == SHOAL_SLOT_FREE && !worker_lives(worker)); /* S3 */
    SHOAL_ASSERT(worker->place.slot < s->slots->options.slots);            /* it has left one */
    if (!slots_keeps(s->slots, worker))
        return;
    slots_slot_move(slot, SHOAL_SLOT_TENTATIVE);
    slot->spent = false;
    slot->job = job->id; /* priority and ticket are still those of the lease before */
    slot->generation = next_generation(s);
    slot->worker_id = 0;
    slot->until_ns = s->now_ns + s->slots->options.tentative_ns;
    s->slots->stats.grants++;
    slots_changed(s->slots);
    worker->report.next_generation = slot->generation;
    slots_worker_changed(s->slots, worker);
}

/* The leader of the holder is told; it plans the worker's leave, which ends the lease. */
static void ask_drain(struct slots_step *s, struct slot *slot)
{
    const struct worker *worker = slots_find_worker(s->slots, slot->worker_id);
    struct hjob *job;

    SHOAL_ASSERT(slot->state == SHOAL_SLOT_LEASED || slot->state == SHOAL_SLOT_DRAINING);
    if (worker == NULL)
        return;
    job = &s->slots->jobs[worker->job];
    if (slot->state != SHOAL_SLOT_DRAINING) {
        slots_slot_move(slot, SHOAL_SLOT_DRAINING);
        slots_changed(s->slots);
    }
    s->slots->out.kind = SHOAL_HOST_DRAIN;
    s->slots->out.u.drain.worker_id = slot->worker_id;
    if (!shoal_node_id_is_zero(job->leader))
        (void)slots_send(s, job, job->leader, 0); /* the claimant's next RESERVE repeats it */
}

/* NULL when granted, else why not. */
static const char *reserve_slot(struct slots_step *s, uint32_t index)
{
    const struct shoal_host_message *m = &s->slots->in;
    struct slot *slot = &s->slots->slots[index];
    struct worker *worker;
    const char *no;

    SHOAL_ASSERT(s->slots->in.kind == SHOAL_HOST_RESERVE);
    if (index >= s->slots->options.slots)
        return "this host has no such slot";
    if (s->slots->until_reattached_ns != 0)
        return AGENT_IS_NEW; /* S11 */
    if (s->slots->drain)
        return "this host is being drained"; /* S10 */
    no = slots_card_refuses(s->slots, index, m->u.reserve.gpu_mib, m->u.reserve.gpu_pack);
    if (no != NULL)
        return no; /* S14 */
    switch ((enum shoal_slot_state)slot->state) {
    case SHOAL_SLOT_FREE: grant(s, slot); return NULL;
    case SHOAL_SLOT_TENTATIVE:
        if (shoal_job_id_equal(slot->job, m->job)) {
            slot->until_ns = s->now_ns + s->slots->options.tentative_ns;
            slot->gpu_mib = m->u.reserve.gpu_mib; /* its profile may have been edited since */
            slot->gpu_pack = m->u.reserve.gpu_pack;
            return NULL;
        }
        if (!claim_beats(m, slot))
            return "promised to a job that is earlier in the order";
        grant(s, slot);
        return NULL;
    case SHOAL_SLOT_HELD: return "its last worker is still being cleared away";
    case SHOAL_SLOT_LEASED:
    case SHOAL_SLOT_DRAINING:
        worker = slots_find_worker(s->slots, slot->worker_id);
        if (shoal_job_id_equal(slot->job, m->job))
            return "this job holds it already";
        if (worker != NULL && s->now_ns >= worker->deadline_ns) {
            s->slots->stats.expired++;
            slots_worker_kill(worker, 0, s->now_ns); /* S5: killed before the slot goes to another */
            return "the lease of its last worker has ended; it is being cleared away";
        }
        if (!shoal_job_id_equal(slot->target, m->job))
            return "leased to another job";
        ask_drain(s, slot);
        return "leased to another job, which was asked to give it back";
    case SHOAL_SLOT_STATE_COUNT: break;
    }
    return "in no state to be granted";
}

static uint64_t promise_driver(struct slots_step *s)
{
    const struct shoal_host_message *m = &s->slots->in;
    struct driver_promise *free_one = NULL;

    SHOAL_ASSERT(s->slots->in.kind == SHOAL_HOST_RESERVE);
    for (uint32_t i = 0; i < SHOAL_HOST_JOBS_MAX; i++) {
        struct driver_promise *p = &s->slots->promises[i];

        if (p->generation != 0 && shoal_job_id_equal(p->job, m->job)) {
            p->until_ns = s->now_ns + 30 * s->slots->options.tentative_ns;
            return p->generation;
        }
        if (p->generation == 0 || s->now_ns >= p->until_ns)
            free_one = p;
    }
    if (free_one == NULL)
        return 0;
    free_one->job = m->job;
    free_one->generation = next_generation(s);
    free_one->until_ns = s->now_ns + 30 * s->slots->options.tentative_ns;
    return free_one->generation;
}

static void on_reserve(struct slots_step *s, struct shoal_node_id from)
{
    struct shoal_slots *slots = s->slots;
    const struct shoal_host_message *m = &slots->in;
    struct shoal_host_message *out = &slots->out;
    uint8_t granted[SHOAL_SLOTS_MAX];
    uint32_t granted_count = 0, refused = 0;
    const char *why = "";

    SHOAL_ASSERT(s->slots->in.kind == SHOAL_HOST_RESERVE);
    slots->stats.reserves++;
    for (uint32_t i = 0; i < m->u.reserve.slot_count; i++) {
        const char *no = reserve_slot(s, m->u.reserve.slots[i]);

        if (no == NULL) {
            granted[granted_count++] = m->u.reserve.slots[i];
            continue;
        }
        why = refused++ == 0 ? no : why;
        slots->stats.refusals++;
    }
    out->kind = SHOAL_HOST_OFFER;
    memset(&out->u.offer, 0, sizeof(out->u.offer));
    out->u.offer.request = m->u.reserve.request;
    out->u.offer.record_version = slots->version;
    out->u.offer.slot_count = granted_count;
    for (uint32_t i = 0; i < granted_count; i++) {
        out->u.offer.slots[i] = granted[i];
        out->u.offer.generations[i] = slots->slots[granted[i]].generation;
    }
    if (m->u.reserve.driver && slots->until_reattached_ns == 0)
        out->u.offer.driver_generation = promise_driver(s);
    out->u.offer.driver = out->u.offer.driver_generation != 0;
    if (m->u.reserve.driver && !out->u.offer.driver && refused == 0)
        why = slots->until_reattached_ns != 0 ? AGENT_IS_NEW : "as many drivers as it can hold are promised there";
    out->u.offer.refused = refused;
    (void)snprintf(out->u.offer.text, sizeof(out->u.offer.text), "%s", why);
    answer(s, from);
}

static void on_cancel(struct slots_step *s)
{
    SHOAL_ASSERT(s->slots->in.kind == SHOAL_HOST_CANCEL);
    for (uint32_t i = 0; i < s->slots->options.slots; i++) {
        struct slot *slot = &s->slots->slots[i];

        if (slot->state != SHOAL_SLOT_TENTATIVE || !shoal_job_id_equal(slot->job, s->slots->in.job))
            continue;
        slots_slot_move(slot, SHOAL_SLOT_FREE);
        slot->spent = true;
        slots_changed(s->slots);
    }
}

/* ---- Confirm ----------------------------------------------------------------------------------------------------- */

static struct slot *slot_of_generation(struct shoal_slots *slots, uint64_t generation)
{
    SHOAL_ASSERT(slots->options.slots <= SHOAL_SLOTS_MAX);
    for (uint32_t i = 0; i < slots->options.slots; i++)
        if (slots->slots[i].generation == generation)
            return &slots->slots[i];
    return NULL;
}

static struct driver_promise *promise_of(struct shoal_slots *slots, const struct shoal_placement *place)
{
    SHOAL_ASSERT(place->slot == SHOAL_SLOT_NONE); /* only a driver has a lease without a slot */
    for (uint32_t i = 0; i < SHOAL_HOST_JOBS_MAX; i++)
        if (slots->promises[i].generation != 0 && slots->promises[i].generation == place->lease_generation)
            return &slots->promises[i];
    return NULL;
}

/* S1, S3: true when this very grant still stands and was not used. It is used up by the answer. */
static bool take_grant(struct slots_step *s, struct hjob *job, const struct shoal_placement *place)
{
    struct shoal_slots *slots = s->slots;
    struct driver_promise *promise;
    struct slot *slot;

    SHOAL_ASSERT(slots_find_worker(slots, place->worker_id) != NULL); /* S3: a lease never stands without its worker */
    if (place->host_epoch != slots->options.host_epoch)
        return false;
    if (place->slot == SHOAL_SLOT_NONE) {
        promise = promise_of(slots, place);
        if (promise == NULL || !shoal_job_id_equal(promise->job, job->id))
            return false;
        promise->generation = 0;
        return true;
    }
    if (place->slot >= slots->options.slots)
        return false;
    slot = &slots->slots[place->slot];
    if (slot->generation != place->lease_generation || slot->spent || !shoal_job_id_equal(slot->job, job->id) ||
        (slot->state != SHOAL_SLOT_TENTATIVE && slot->state != SHOAL_SLOT_FREE))
        return false;
    /* S14: a promise that has run out holds nothing of its card, which others may have got meanwhile. */
    if (slot->state == SHOAL_SLOT_FREE &&
        slots_card_refuses(slots, place->slot, slot->gpu_mib, slot->gpu_pack) != NULL)
        return false;
    slots_slot_move(slot, SHOAL_SLOT_LEASED);
    slot->spent = true;
    slot->idle = false;
    slot->worker_id = place->worker_id;
    slots_changed(slots);
    return true;
}

static void confirm_one(struct slots_step *s, struct hjob *job, const struct shoal_placement *place)
{
    struct shoal_slots *slots = s->slots;
    struct worker *worker = slots_find_worker(slots, place->worker_id);

    SHOAL_ASSERT(job->used);
    if (worker != NULL) {
        worker->item.acked = 0; /* the leader wants to hear of it */
        worker->item.sent = 0;
        return;
    }
    if (slots->until_reattached_ns != 0)
        return; /* S11: it may run already; the leader repeats */
    worker = slots_add_worker(slots, job, place);
    if (worker == NULL)
        return; /* the table is full: counted; the leader repeats, or the grant runs out */
    worker->deadline_ns = s->slots->in.u.confirm.echo + slots->options.lease_ns;
    if (s->now_ns < s->slots->in.u.confirm.echo + slots->options.freeze_ns && take_grant(s, job, place)) {
        worker->want = WANT_RUN;
        worker->report.ran = true;
        worker->quiet_ns = place->role == SHOAL_JOB_TASK ? s->now_ns + TASK_NS : 0;
        slots->stats.confirms++;
    } else {
        slots->stats.confirms_refused++;
        slots_worker_move(worker, SHOAL_PHASE_EXITED);
        (void)snprintf(worker->report.text, sizeof(worker->report.text),
                       "never started: the slot was no longer reserved when the confirmation came");
    }
    slots_worker_changed(slots, worker);
}

/* S13 */
static void take_sources(struct slots_step *s, struct hjob *job, const struct shoal_node_id *sources, uint8_t count)
{
    SHOAL_ASSERT(count <= SHOAL_HOST_SOURCES_MAX); /* the decoder has looked */
    if (count == job->source_count && memcmp(job->sources, sources, sizeof(job->sources)) == 0)
        return;
    job->source_count = count;
    memcpy(job->sources, sources, sizeof(job->sources));
    job->sources_new = true;
    s->slots->table_version++;
}

static void on_confirm(struct slots_step *s, struct hjob *job)
{
    const struct shoal_host_message *m = &s->slots->in;

    SHOAL_ASSERT(s->slots->in.kind == SHOAL_HOST_CONFIRM);
    SHOAL_ASSERT(job->spec_len <= SHOAL_JOB_SPEC_BYTES_MAX);
    if (job->spec_len == 0 && m->u.confirm.spec.len > 0) {
        memcpy(s->slots->specs + (size_t)slots_job_index(s->slots, job) * SHOAL_JOB_SPEC_BYTES_MAX,
               m->u.confirm.spec.bytes, m->u.confirm.spec.len);
        job->spec_len = m->u.confirm.spec.len;
    }
    job->keep = m->u.confirm.keep;
    take_sources(s, job, m->u.confirm.sources, m->u.confirm.source_count);
    if (m->u.confirm.echo > s->now_ns) { /* S2: not a stamp of ours, or of another life */
        s->slots->stats.renewals_late++;
        return;
    }
    for (uint32_t i = 0; i < m->u.confirm.placement_count; i++)
        if (shoal_node_id_equal(m->u.confirm.placements[i].node, s->slots->options.self))
            confirm_one(s, job, &m->u.confirm.placements[i]);
}

/* ---- Renew ------------------------------------------------------------------------------------------------------- */

/* A leader knows of the epochs that this host has made of its own a little later, or never (S7). */
static bool same_epoch(struct shoal_epoch named, struct shoal_epoch here)
{
    return named.e == here.e && named.k <= here.k;
}

static bool may_thaw(const struct slots_step *s, const struct hjob *job, const struct worker *worker)
{
    const struct shoal_worker_epoch *epoch = slots_epoch(s->slots, job);

    SHOAL_ASSERT(worker->frozen); /* S5 */
    if (worker->place.role != SHOAL_JOB_ENGINE || shoal_epoch_cmp(worker->report.epoch, (struct shoal_epoch){ 0 }) == 0)
        return true;
    if (same_epoch(s->slots->in.u.renew.epoch, worker->report.epoch))
        return true;
    for (uint32_t i = 0; i < epoch->member_count; i++)
        if (epoch->members[i].worker_id == worker->place.worker_id)
            return same_epoch(s->slots->in.u.renew.epoch, epoch->epoch);
    /* Outside the epoch it may still tell the leader where it stands: it is told that its epoch is over when it runs.
     */
    return worker->report.closed || shoal_epoch_word(worker->report.epoch) <= job->revoked;
}

static void renew_one(struct slots_step *s, const struct hjob *job, struct worker *worker)
{
    uint64_t deadline_ns = s->slots->in.u.renew.echo + s->slots->options.lease_ns;
    uint64_t freeze_ns = deadline_ns - (s->slots->options.lease_ns - s->slots->options.freeze_ns);

    SHOAL_ASSERT(worker_lives(worker));                   /* S9: no lease of the dead is renewed */
    SHOAL_ASSERT(s->slots->in.u.renew.echo <= s->now_ns); /* S2: on_renew() has refused stamps of other lives */
    worker->term = job->term;
    slots_worker_freeze_due(s, worker); /* the runner has frozen it by the clock, also while this agent stood still */
    if (deadline_ns <= worker->deadline_ns && !worker->frozen) {
        s->slots->stats.renewals_late++;
        return;
    }
    if (deadline_ns > worker->deadline_ns) {
        worker->deadline_ns = deadline_ns;
        worker->want |= WANT_RENEW;
        s->slots->table_version++;
    }
    s->slots->stats.renewals++;
    if (!worker->frozen)
        worker->want |= WANT_THAW; /* the runner's clock may come first: its freeze is not told */
    if (worker->frozen && s->now_ns < freeze_ns && may_thaw(s, job, worker)) {
        worker->frozen = false;
        worker->report.frozen = false;
        worker->want = (uint8_t)((worker->want & ~WANT_FREEZE) | WANT_THAW | WANT_RENEW);
        s->slots->stats.thaws++;
        slots_worker_changed(s->slots, worker);
    }
}

/* "I hold no such lease" is a promise: the grant is burnt first, so that a CONFIRM still under way starts nothing. */
static void say_unknown(struct slots_step *s, const struct hjob *job, struct shoal_node_id from, uint64_t worker_id,
                        uint64_t generation)
{
    struct slot *slot = slot_of_generation(s->slots, generation);

    SHOAL_ASSERT(s->slots->in.kind == SHOAL_HOST_RENEW || s->slots->in.kind == SHOAL_HOST_ORDER ||
                 s->slots->in.kind == SHOAL_HOST_REPORT);
    if (s->slots->until_reattached_ns != 0)
        return; /* S11: the leader repeats what it said */
    for (uint32_t i = 0; i < SHOAL_HOST_JOBS_MAX; i++)
        if (s->slots->promises[i].generation == generation)
            s->slots->promises[i].generation = 0;
    if (slot != NULL && !slot->spent) {
        slot->spent = true;
        if (slot->state == SHOAL_SLOT_TENTATIVE)
            slots_slot_move(slot, SHOAL_SLOT_FREE);
        slots_changed(s->slots);
    }
    s->slots->out.kind = SHOAL_HOST_UNKNOWN;
    s->slots->out.u.drain.worker_id = worker_id;
    (void)slots_send(s, job, from, 0);
}

static void on_renew(struct slots_step *s, struct hjob *job, struct shoal_node_id from)
{
    const struct shoal_host_message *m = &s->slots->in;

    SHOAL_ASSERT(s->slots->in.kind == SHOAL_HOST_RENEW);
    SHOAL_ASSERT(job->term == s->slots->in.term); /* S4: admit() has looked */
    if (m->u.renew.echo > s->now_ns) {            /* S2: not a stamp of ours, or of another life */
        s->slots->stats.renewals_late++;
        return;
    }
    for (uint32_t i = 0; i < m->u.renew.lease_count; i++) {
        uint64_t generation = m->u.renew.leases[i].lease_generation;
        struct worker *worker = slots_find_worker(s->slots, m->u.renew.leases[i].worker_id);

        if (worker == NULL)
            say_unknown(s, job, from, m->u.renew.leases[i].worker_id, generation);
        else if (worker_lives(worker) && worker->place.lease_generation == generation)
            renew_one(s, job, worker);
    }
}

/* ---- Calls, epochs, orders ---- */

static void on_call(struct slots_step *s, struct hjob *job)
{
    const struct shoal_host_message *m = &s->slots->in;

    SHOAL_ASSERT(s->slots->in.kind == SHOAL_HOST_CALL);
    take_sources(s, job, m->u.call.sources, m->u.call.source_count);
    if (m->u.call.call <= job->call)
        return;
    job->call = m->u.call.call;
    job->job_seed = m->u.call.job_seed;
    job->bundle = m->u.call.bundle;
    job->bundle_state = BLOB_NONE;
    job->fetch_ns = 0;
    job->mark = 0;
    s->slots->table_version++;
}

static void on_epoch(struct slots_step *s, struct hjob *job)
{
    const struct shoal_worker_epoch *in = &s->slots->in.u.epoch;
    struct shoal_worker_epoch *epoch = slots_epoch(s->slots, job);
    struct shoal_hash snapshot = { { 0 } };

    SHOAL_ASSERT(s->slots->in.kind == SHOAL_HOST_EPOCH);
    if (shoal_epoch_cmp(in->epoch, epoch->epoch) <= 0)
        return;
    shoal_worker_epoch_copy(epoch, in);
    job->shrinking = 0; /* it was decided elsewhere */
    job->shrunk.seq = 0;
    if (strncmp(in->snapshot_path, "blob:", 5) == 0 && !shoal_hex_parse(in->snapshot_path + 5, snapshot.bytes, 32))
        snapshot = (struct shoal_hash){ { 0 } };
    if (!shoal_hash_equal(snapshot, job->snapshot)) {
        job->snapshot = snapshot;
        job->snapshot_state = BLOB_NONE;
        job->snapshot_ns = 0;
    }
    /* Every epoch before it is over, also for workers that the revoke has not reached. */
    slots_job_revoke(s, job, shoal_epoch_word(in->epoch) - 1);
    s->slots->table_version++;
}

static void order_stop(struct slots_step *s, struct worker *worker)
{
    const struct shoal_host_message *m = &s->slots->in;

    SHOAL_ASSERT(worker->used);
    worker->stop = true;
    worker->stop_reason = m->u.order.reason;
    memcpy(worker->stop_text, m->u.order.text, sizeof(worker->stop_text));
    /* Engines that are connected get the message first and the signal at the end of the grace; others the signal now.
     */
    if (worker->place.role == SHOAL_JOB_ENGINE && worker->report.phase >= SHOAL_PHASE_HELLO &&
        m->u.order.grace_ns > 0) {
        if (worker->kill_ns == 0)
            worker->kill_ns = s->now_ns + m->u.order.grace_ns;
        return;
    }
    slots_worker_kill(worker, m->u.order.grace_ns, s->now_ns);
}

/* Before its HELLO an engine has nothing to write down, and would hear of its release only when its libraries are loaded. */
static void order_release(struct slots_step *s, struct worker *worker)
{
    SHOAL_ASSERT(worker->used);
    if (worker->place.role == SHOAL_JOB_ENGINE && worker->report.phase < SHOAL_PHASE_HELLO)
        slots_worker_kill(worker, 0, s->now_ns);
    else
        worker->release = true;
}

static void forget_worker(struct slots_step *s, struct hjob *job, struct worker *worker)
{
    SHOAL_ASSERT(&s->slots->jobs[worker->job] == job);
    if (worker_lives(worker)) {
        slots_worker_kill(worker, 0, s->now_ns);
        return; /* its exit is reported, and the leader says it again */
    }
    worker->used = false;
    if (job->train_worker == worker->place.worker_id)
        job->train.seq = 0;
    s->slots->table_version++;
}

static void on_order(struct slots_step *s, struct hjob *job, struct shoal_node_id from)
{
    const struct shoal_host_message *m = &s->slots->in;
    struct worker *worker = slots_find_worker(s->slots, m->u.order.worker_id);

    SHOAL_ASSERT(s->slots->in.kind == SHOAL_HOST_ORDER);
    if (worker == NULL) {
        if (m->u.order.order != SHOAL_ORDER_FORGET)
            say_unknown(s, job, from, m->u.order.worker_id, m->u.order.lease_generation);
        return;
    }
    if (&s->slots->jobs[worker->job] != job)
        return;
    switch ((enum shoal_order)m->u.order.order) {
    case SHOAL_ORDER_NONE: return;
    case SHOAL_ORDER_WRITE_FINAL: worker->final_call = m->u.order.call; return;
    case SHOAL_ORDER_RELEASE: order_release(s, worker); return;
    case SHOAL_ORDER_STOP: order_stop(s, worker); return;
    case SHOAL_ORDER_KILL: slots_worker_kill(worker, 0, s->now_ns); return;
    case SHOAL_ORDER_FORGET: forget_worker(s, job, worker); return;
    case SHOAL_ORDER_COUNT: return;
    }
}

static void on_ack(struct slots_step *s, struct hjob *job)
{
    uint64_t seq = s->slots->in.seq;
    struct item *const items[] = { &job->train, &job->manifest, &job->snap, &job->shrunk };

    SHOAL_ASSERT(job->used);
    for (size_t i = 0; i < sizeof(items) / sizeof(items[0]); i++)
        if (items[i]->seq == seq)
            items[i]->acked = seq;
    for (uint32_t i = 0; i < SHOAL_HOST_WORKERS_MAX; i++) {
        struct worker *worker = &s->slots->workers[i];

        if (worker->used && &s->slots->jobs[worker->job] == job && worker->item.seq == seq)
            worker->item.acked = seq;
    }
}

/* All is to be said anew: to a new leader, or to one that asks. */
static void report_all(struct shoal_slots *slots, struct hjob *job)
{
    struct item *const items[] = { &job->train, &job->manifest, &job->snap, &job->shrunk };

    SHOAL_ASSERT(job->used);
    for (size_t i = 0; i < sizeof(items) / sizeof(items[0]); i++) {
        items[i]->acked = 0;
        items[i]->sent = 0;
    }
    for (uint32_t i = 0; i < SHOAL_HOST_WORKERS_MAX; i++) {
        if (slots->workers[i].used && &slots->jobs[slots->workers[i].job] == job) {
            slots->workers[i].item.acked = 0;
            slots->workers[i].item.sent = 0;
        }
    }
    if (job->call != 0)
        job->progress_new = true;
    job->metrics_new = job->has_metrics;
    job->progress_ns = 0;
}

static void on_train_state(struct slots_step *s, struct hjob *job)
{
    struct shoal_worker_train_state *state = &s->slots->train_states[slots_job_index(s->slots, job)];

    SHOAL_ASSERT(s->slots->in.kind == SHOAL_HOST_TRAIN_STATE);
    memcpy(state, &s->slots->in.u.train_state.state, sizeof(*state));
    job->train_state_worker = s->slots->in.u.train_state.worker_id;
    job->train_state_wanted = true;
}

static void on_make_manifest(struct slots_step *s, struct hjob *job)
{
    const struct shoal_host_message *m = &s->slots->in;

    SHOAL_ASSERT(s->slots->in.kind == SHOAL_HOST_MAKE_MANIFEST);
    if (job->manifest_call == m->u.manifest.call && (job->manifest.seq != 0 || job->manifest_wanted)) {
        if (!job->manifest_made)
            return;             /* under way */
        if (job->manifest_ok) { /* the answer was lost */
            job->manifest.acked = 0;
            job->manifest.sent = 0;
            return;
        }
    }
    job->manifest_call = m->u.manifest.call;
    job->manifest_wanted = true;
    job->manifest_made = false;
    job->manifest.seq = 0;
}

/* S4: of an older recovery generation, or of an older term of this one. */
static bool is_stale(const struct shoal_host_message *m, const struct hjob *job)
{
    SHOAL_ASSERT(shoal_job_id_equal(m->job, job->id)); /* S4: terms are of one job */
    return m->generation < job->generation || (m->generation == job->generation && m->term < job->term);
}

/* The job was recovered from a single replica: tokens and epochs of before are void. Engines stay, out of every epoch:
 * the new leader gives them one, or has them ended. Scripts and drivers write by themselves, so they end. */
static void begin_generation(struct slots_step *s, struct hjob *job, uint32_t generation)
{
    struct shoal_worker_epoch *epoch = slots_epoch(s->slots, job);

    SHOAL_ASSERT(generation > job->generation); /* S4: recovery generations only rise */
    for (uint32_t i = 0; i < SHOAL_HOST_WORKERS_MAX; i++) {
        struct worker *worker = &s->slots->workers[i];

        if (worker->used && &s->slots->jobs[worker->job] == job && worker->place.role != SHOAL_JOB_ENGINE)
            slots_worker_kill(worker, 0, s->now_ns);
    }
    slots_job_revoke(s, job, shoal_epoch_word(epoch->epoch));
    epoch->epoch = (struct shoal_epoch){ 0 };
    epoch->member_count = 0;
    job->generation = generation;
    job->term = 0;
    s->slots->table_version++;
}

/* S4. NULL: refused. */
static struct hjob *admit(struct slots_step *s, struct shoal_node_id from)
{
    const struct shoal_host_message *m = &s->slots->in;
    struct hjob *job = slots_find_job(s->slots, m->job);

    SHOAL_ASSERT(s->slots->in.kind != SHOAL_HOST_CANCEL &&
                 s->slots->in.kind != SHOAL_HOST_REVOKE); /* neither founds a job here */
    if (job == NULL && (m->kind == SHOAL_HOST_CONFIRM || m->kind == SHOAL_HOST_MAKE_MANIFEST))
        job = slots_add_job(s->slots, m->job, m->generation);
    if (job == NULL)
        return NULL;
    if (is_stale(m, job)) {
        s->slots->stats.stale_terms++;
        return NULL;
    }
    if (m->generation > job->generation)
        begin_generation(s, job, m->generation);
    if (m->term > job->term || !shoal_node_id_equal(job->leader, from)) {
        job->term = m->term;
        job->leader = from;
        report_all(s->slots, job);
        s->slots->table_version++;
    }
    return job;
}

/* A RENEW or ORDER about a job that is not here at all. */
static void answer_stranger(struct slots_step *s, struct shoal_node_id from)
{
    const struct shoal_host_message *m = &s->slots->in;
    const struct hjob about = { .id = m->job, .generation = m->generation, .term = m->term };

    SHOAL_ASSERT(slots_find_job(s->slots, s->slots->in.job) == NULL);
    if (m->kind == SHOAL_HOST_RENEW)
        for (uint32_t i = 0; i < m->u.renew.lease_count; i++)
            say_unknown(s, &about, from, m->u.renew.leases[i].worker_id, m->u.renew.leases[i].lease_generation);
    if (m->kind == SHOAL_HOST_ORDER && m->u.order.order != SHOAL_ORDER_FORGET)
        say_unknown(s, &about, from, m->u.order.worker_id, m->u.order.lease_generation);
    if (m->kind == SHOAL_HOST_REPORT)
        say_unknown(s, &about, from, 0, 0);
}

void slots_on_message(struct slots_step *s, struct shoal_node_id from)
{
    struct shoal_host_message *m = &s->slots->in;
    struct hjob *job = slots_find_job(s->slots, m->job);

    SHOAL_ASSERT(shoal_host_kind_to_host(s->slots->in.kind)); /* on_event() has looked */
    if (m->kind == SHOAL_HOST_RESERVE) {
        if (job != NULL && is_stale(m, job)) {
            s->slots->stats.stale_terms++;
            return;
        }
        if (job != NULL && m->generation > job->generation) /* it hears of workers that its log does not name */
            (void)admit(s, from);
        on_reserve(s, from);
        return;
    }
    if (m->kind == SHOAL_HOST_REVOKE) { /* from a leader or from another member's host: only ever ends an epoch */
        if (job != NULL && m->generation == job->generation)
            slots_job_revoke(s, job, shoal_epoch_word(m->u.revoke));
        return;
    }
    if (m->kind == SHOAL_HOST_CANCEL) {
        if (job != NULL && is_stale(m, job))
            s->slots->stats.stale_terms++;
        else
            on_cancel(s);
        return;
    }
    if (job == NULL && m->kind != SHOAL_HOST_CONFIRM && m->kind != SHOAL_HOST_MAKE_MANIFEST) {
        answer_stranger(s, from);
        return;
    }
    job = admit(s, from);
    if (job == NULL)
        return;
    switch ((enum shoal_host_kind)m->kind) {
    case SHOAL_HOST_CONFIRM: on_confirm(s, job); return;
    case SHOAL_HOST_RENEW: on_renew(s, job, from); return;
    case SHOAL_HOST_CALL: on_call(s, job); return;
    case SHOAL_HOST_EPOCH: on_epoch(s, job); return;
    case SHOAL_HOST_ORDER: on_order(s, job, from); return;
    case SHOAL_HOST_TRAIN_STATE: on_train_state(s, job); return;
    case SHOAL_HOST_MAKE_MANIFEST: on_make_manifest(s, job); return;
    case SHOAL_HOST_ACK: on_ack(s, job); return;
    case SHOAL_HOST_MARK:
        if (m->u.progress.call == job->call && m->u.progress.records_acked > job->mark)
            job->mark = m->u.progress.records_acked;
        return;
    case SHOAL_HOST_REPORT: report_all(s->slots, job); return;
    case SHOAL_HOST_END: job->closing = true; return;
    case SHOAL_HOST_RESERVE:
    case SHOAL_HOST_CANCEL:
    case SHOAL_HOST_REVOKE:
    case SHOAL_HOST_OFFER:
    case SHOAL_HOST_WORKER:
    case SHOAL_HOST_DRAIN:
    case SHOAL_HOST_TRAIN:
    case SHOAL_HOST_PROGRESS:
    case SHOAL_HOST_MANIFEST:
    case SHOAL_HOST_SNAPSHOT:
    case SHOAL_HOST_SHRUNK:
    case SHOAL_HOST_BROKEN:
    case SHOAL_HOST_UNFIT:
    case SHOAL_HOST_STANDS:
    case SHOAL_HOST_UNKNOWN:
    case SHOAL_HOST_KIND_COUNT: return;
    }
}
