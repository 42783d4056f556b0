/* The core of one host's slots: its tables, what the shell tells it, how slots and workers end. What follows from time, and what is
 * told, is in slots_drive.c. Picture and rules: shoal/slots.h. */
#include "shoal/slots.h"

#include <stdlib.h>

#include "sched/job/job_wire.h"
#include "slots_state.h"
#include "shoal/banned.h"

#define REATTACH_NS (5 * SHOAL_S) /* S11: a runner that does not answer holds the others up for no longer */
#define IDLE_NS (20 * SHOAL_MS) /* a slot's lock is free so soon after its last process */

#define BIT(state) (1u << (state))

/* S9. Bit N set: may become state N. S3: nothing under which a process may live becomes TENTATIVE. */
static const unsigned slot_moves[SHOAL_SLOT_STATE_COUNT] = {
    [SHOAL_SLOT_FREE] = BIT(SHOAL_SLOT_TENTATIVE) | BIT(SHOAL_SLOT_LEASED),
    /* To itself: a claim that is earlier in the order takes the promise. */
    [SHOAL_SLOT_TENTATIVE] = BIT(SHOAL_SLOT_FREE) | BIT(SHOAL_SLOT_TENTATIVE) | BIT(SHOAL_SLOT_LEASED),
    /* To itself, and from HELD: a runner that is found again has a worker of which the table knows nothing. */
    [SHOAL_SLOT_LEASED] =
        BIT(SHOAL_SLOT_FREE) | BIT(SHOAL_SLOT_LEASED) | BIT(SHOAL_SLOT_DRAINING) | BIT(SHOAL_SLOT_HELD),
    [SHOAL_SLOT_DRAINING] = BIT(SHOAL_SLOT_FREE) | BIT(SHOAL_SLOT_LEASED) | BIT(SHOAL_SLOT_HELD),
    [SHOAL_SLOT_HELD] = BIT(SHOAL_SLOT_FREE) | BIT(SHOAL_SLOT_LEASED),
};

/* S9. A library may speak before its runner does, and says HELLO and READY again on a new connection. */
static const unsigned phase_moves[SHOAL_PHASE_COUNT] = {
    [SHOAL_PHASE_LEASED] =
        BIT(SHOAL_PHASE_STARTED) | BIT(SHOAL_PHASE_HELLO) | BIT(SHOAL_PHASE_READY) | BIT(SHOAL_PHASE_EXITED),
    [SHOAL_PHASE_STARTED] = BIT(SHOAL_PHASE_HELLO) | BIT(SHOAL_PHASE_READY) | BIT(SHOAL_PHASE_EXITED),
    [SHOAL_PHASE_HELLO] = BIT(SHOAL_PHASE_HELLO) | BIT(SHOAL_PHASE_READY) | BIT(SHOAL_PHASE_EXITED),
    [SHOAL_PHASE_READY] = BIT(SHOAL_PHASE_HELLO) | BIT(SHOAL_PHASE_READY) | BIT(SHOAL_PHASE_EXITED),
    [SHOAL_PHASE_EXITED] = 0,
};

_Static_assert(SHOAL_SLOTS_POOL_BYTES % 16 == 0, "rounded up, what fits the pool still fits it");

/* ---- Emitting --------------------------------------------------------------------------------------------------- */

struct shoal_slots_action *slots_emit(struct slots_step *s, enum shoal_slots_action_kind kind)
{
    struct shoal_slots_action *action;

    SHOAL_ASSERT(s->actions->count <= SHOAL_SLOTS_ACTIONS_MAX);
    if (s->actions->count == SHOAL_SLOTS_ACTIONS_MAX) {
        s->slots->blocked = true;
        s->slots->stats.actions_full++;
        return NULL;
    }
    action = &s->actions->list[s->actions->count++];
    memset(action, 0, sizeof(*action));
    action->kind = kind;
    return action;
}

struct shoal_host_order *slots_order(struct slots_step *s, enum shoal_host_order_kind kind)
{
    struct shoal_slots_action *action = slots_emit(s, SHOAL_SLOTS_ORDER);

    SHOAL_ASSERT(s->actions->count <= SHOAL_SLOTS_ACTIONS_MAX);
    if (action == NULL)
        return NULL;
    action->u.order.kind = kind;
    return &action->u.order;
}

/* The sum is rounded and not the length: a message to a worker leaves the pool at any byte (new_message()). */
void slots_pool_take(struct shoal_slots_actions *actions, size_t len)
{
    SHOAL_ASSERT(len <= SHOAL_SLOTS_POOL_BYTES - actions->pool_used);
    actions->pool_used = (actions->pool_used + len + 15) & ~(size_t)15;
    SHOAL_ASSERT(actions->pool_used <= SHOAL_SLOTS_POOL_BYTES);
}

bool slots_send(struct slots_step *s, const struct hjob *job, struct shoal_node_id to, uint64_t seq)
{
    struct shoal_host_message *m = &s->slots->out;
    uint8_t *at = s->actions->pool + s->actions->pool_used;
    struct shoal_slots_action *action;
    size_t len;

    SHOAL_ASSERT(s->actions->pool_used <= SHOAL_SLOTS_POOL_BYTES);
    SHOAL_ASSERT(!shoal_host_kind_to_host(s->slots->out.kind) ||
                 s->slots->out.kind == SHOAL_HOST_REVOKE); /* S6: a host tells leaders, and floods a revoke */
    m->job = job->id;
    m->generation = job->generation;
    m->term = job->term;
    m->host_epoch = s->slots->options.host_epoch;
    m->stamp = s->now_ns;
    m->seq = seq;
    if (s->actions->count == SHOAL_SLOTS_ACTIONS_MAX ||
        shoal_host_encode(m, at, SHOAL_SLOTS_POOL_BYTES - s->actions->pool_used, &len) != SHOAL_OK) {
        s->slots->blocked = s->actions->count > 0; /* alone in its step it would never fit: then it is dropped */
        s->slots->stats.actions_full++;
        return false;
    }
    action = slots_emit(s, SHOAL_SLOTS_SEND);
    action->u.send.to = to;
    action->u.send.bytes = shoal_view_of(at, len);
    slots_pool_take(s->actions, len);
    return true;
}

/* ---- Tables ----------------------------------------------------------------------------------------------------- */

struct hjob *slots_find_job(struct shoal_slots *slots, struct shoal_job_id id)
{
    SHOAL_ASSERT(slots->jobs_max > 0);
    for (uint32_t i = 0; i < slots->jobs_max; i++)
        if (slots->jobs[i].used && shoal_job_id_equal(slots->jobs[i].id, id))
            return &slots->jobs[i];
    return NULL;
}

struct hjob *slots_add_job(struct shoal_slots *slots, struct shoal_job_id id, uint32_t generation)
{
    SHOAL_ASSERT(slots_find_job(slots, id) == NULL); /* a job has one place */
    for (uint32_t i = 0; i < slots->jobs_max; i++) {
        struct hjob *job = &slots->jobs[i];

        if (job->used)
            continue;
        memset(job, 0, sizeof(*job));
        slots->epochs[i].epoch = (struct shoal_epoch){ 0 };
        slots->epochs[i].member_count = 0;
        job->used = true;
        job->id = id;
        job->generation = generation;
        job->seq = slots->options.start_ns; /* beyond any number of an earlier life: what a leader has heard is older */
        return job;
    }
    slots->stats.jobs_full++;
    return NULL;
}

struct worker *slots_find_worker(struct shoal_slots *slots, uint64_t worker_id)
{
    for (uint32_t i = 0; i < SHOAL_HOST_WORKERS_MAX; i++)
        if (slots->workers[i].used && slots->workers[i].place.worker_id == worker_id)
            return &slots->workers[i];
    return NULL;
}

struct worker *slots_add_worker(struct shoal_slots *slots, struct hjob *job, const struct shoal_placement *place)
{
    SHOAL_ASSERT(job->used);
    SHOAL_ASSERT(slots_find_worker(slots, place->worker_id) == NULL); /* S3: a worker has one lease */
    for (uint32_t i = 0; i < SHOAL_HOST_WORKERS_MAX; i++) {
        struct worker *worker = &slots->workers[i];

        if (worker->used)
            continue;
        memset(worker, 0, sizeof(*worker));
        worker->used = true;
        worker->job = slots_job_index(slots, job);
        worker->place = *place;
        worker->term = job->term;
        worker->report.worker_id = place->worker_id;
        worker->report.attempt = place->attempt;
        worker->report.role = place->role;
        worker->report.slot = place->slot;
        worker->report.lease_generation = place->lease_generation;
        worker->report.status = -1;
        job->empty_ns = 0;
        return worker;
    }
    slots->stats.jobs_full++;
    return NULL;
}

void slots_item_touch(struct hjob *job, struct item *item)
{
    SHOAL_ASSERT(item->acked <= job->seq && item->seq <= job->seq); /* a report's number is of its job's count */
    item->seq = ++job->seq;
}

void slots_worker_changed(struct shoal_slots *slots, struct worker *worker)
{
    SHOAL_ASSERT(worker->used);
    SHOAL_ASSERT(slots->jobs[worker->job].used); /* a worker goes with its job */
    slots_item_touch(&slots->jobs[worker->job], &worker->item);
    slots->table_version++;
}

void slots_changed(struct shoal_slots *slots)
{
    SHOAL_ASSERT(slots->version < UINT64_MAX); /* versions only rise */
    slots->version++;
    slots->table_version++;
}

void slots_job_forget(struct shoal_slots *slots, struct hjob *job)
{
    uint32_t index = slots_job_index(slots, job);

    SHOAL_ASSERT(job->used);
    for (uint32_t i = 0; i < SHOAL_HOST_WORKERS_MAX; i++)
        if (slots->workers[i].used && slots->workers[i].job == index)
            slots->workers[i].used = false;
    job->used = false;
    slots->table_version++;
}

/* ---- Slots and workers end --------------------------------------------------------------------------------------- */

void slots_slot_move(struct slot *slot, enum shoal_slot_state state)
{
    SHOAL_ASSERT((slot_moves[slot->state] & BIT(state)) != 0); /* S9 */
    slot->state = (uint8_t)state;
}

void slots_worker_move(struct worker *worker, enum shoal_phase phase)
{
    SHOAL_ASSERT((phase_moves[worker->report.phase] & BIT(phase)) != 0); /* S9 */
    worker->report.phase = (uint8_t)phase;
}

static void slot_release(struct shoal_slots *slots, struct slot *slot)
{
    SHOAL_ASSERT(slot->state != SHOAL_SLOT_FREE &&
                 slot->state != SHOAL_SLOT_TENTATIVE); /* S3: only what was leased is released */
    slots_slot_move(slot, slot->idle ? SHOAL_SLOT_FREE : SHOAL_SLOT_HELD);
    slot->spent = true;
    if (slot->state == SHOAL_SLOT_FREE) {
        slot->worker_id = 0;
        slot->job = (struct shoal_job_id){ { 0 } };
    }
    slots_changed(slots);
}

void slots_worker_kill(struct worker *worker, uint64_t grace_ns, uint64_t now_ns)
{
    SHOAL_ASSERT(now_ns <= UINT64_MAX - grace_ns);
    if (!worker_lives(worker) || worker->killed)
        return;
    if (grace_ns > 0 && worker->kill_ns != 0)
        return; /* a grace is running: repeated orders do not prolong it */
    worker->want |= WANT_KILL;
    worker->grace_ns = grace_ns;
    worker->kill_ns = now_ns + grace_ns;
}

static bool epoch_has(const struct shoal_worker_epoch *epoch, uint64_t worker_id)
{
    SHOAL_ASSERT(epoch->member_count <= SHOAL_RANKS_MAX);
    for (uint32_t i = 0; i < epoch->member_count; i++)
        if (epoch->members[i].worker_id == worker_id)
            return true;
    return false;
}

void slots_job_revoke(struct slots_step *s, struct hjob *job, uint64_t word)
{
    SHOAL_ASSERT(job->used);
    if (word <= job->revoked)
        return;
    job->revoked = word;
    s->slots->table_version++;
}

/* S6: the running epoch is revoked here at once; the flood follows in the same step. False: nothing to revoke. */
static bool revoke_for(struct slots_step *s, struct worker *worker)
{
    struct hjob *job = &s->slots->jobs[worker->job];
    const struct shoal_worker_epoch *epoch = slots_epoch(s->slots, job);
    uint64_t word = shoal_epoch_word(epoch->epoch);

    SHOAL_ASSERT(worker_lives(worker)); /* S6: the dead have revoked already */
    if (!epoch_has(epoch, worker->place.worker_id) || job->revoked >= word)
        return false;
    /* A worker that leaves after the last step leaves nothing behind: when released or finished it revokes nothing. */
    if (worker->release || (worker->report.done_call != 0 && worker->report.files_call == worker->report.done_call))
        return false;
    slots_job_revoke(s, job, word);
    job->flood_word = word;
    slots_shrink_begin(s, job);
    return true;
}

static void slot_leave(struct slots_step *s, struct slot *slot)
{
    struct worker *worker = slots_find_worker(s->slots, slot->worker_id);

    SHOAL_ASSERT(slot->worker_id != 0); /* S3 */
    slot_release(s->slots, slot);
    if (worker == NULL)
        return;
    worker->quiet_ns = slot->state == SHOAL_SLOT_HELD && slots_keeps(s->slots, worker) ? s->now_ns + IDLE_NS : 0;
    if (slot->state == SHOAL_SLOT_FREE)
        slots_keep(s, slot, worker);
}

void slots_worker_exited(struct slots_step *s, struct worker *worker, int32_t status, bool signalled, const char *text)
{
    struct shoal_slots *slots = s->slots;

    SHOAL_ASSERT(worker->used);
    if (!worker_lives(worker))
        return;
    (void)revoke_for(s, worker);
    slots_worker_move(worker, SHOAL_PHASE_EXITED);
    worker->report.status = status;
    worker->report.ran = worker->report.ran && status != SHOAL_STATUS_UNSTARTED;
    worker->report.signalled = signalled;
    worker->report.frozen = false;
    if (text[0] != '\0' && !worker->report.failed) /* what it said itself says more than its last line */
        job_cut_text(worker->report.text, sizeof(worker->report.text), text);
    worker->want = 0;
    worker->unproven = false;
    worker->quiet_ns = 0;
    slots_worker_changed(slots, worker);
    if (worker->place.slot != SHOAL_SLOT_NONE &&
        slots->slots[worker->place.slot].generation == worker->place.lease_generation &&
        slots->slots[worker->place.slot].worker_id == worker->place.worker_id)
        slot_leave(s, &slots->slots[worker->place.slot]);
}

/* ---- Events of the shell ----------------------------------------------------------------------------------------- */

static void on_target(struct slots_step *s, const struct shoal_slots_event *event)
{
    SHOAL_ASSERT(s->slots->options.slots <= SHOAL_SLOTS_MAX);
    for (uint32_t i = 0; i < s->slots->options.slots; i++) {
        struct slot *slot = &s->slots->slots[i];

        slot->target = event->u.target.jobs[i];
        if (slot->state == SHOAL_SLOT_DRAINING && shoal_job_id_equal(slot->target, slot->job)) {
            slots_slot_move(slot, SHOAL_SLOT_LEASED);
            slots_changed(s->slots);
        }
    }
}

static void on_started(struct slots_step *s, uint64_t worker_id)
{
    struct worker *worker = slots_find_worker(s->slots, worker_id);

    if (worker == NULL || !worker_lives(worker)) {
        s->slots->stats.unknown_workers++;
        return;
    }
    worker->unproven = false;
    if (worker->report.phase < SHOAL_PHASE_STARTED) {
        slots_worker_move(worker, SHOAL_PHASE_STARTED);
        slots_worker_changed(s->slots, worker);
    }
}

static void on_idle(struct slots_step *s, uint32_t index)
{
    struct slot *slot;

    SHOAL_ASSERT(s->slots->options.slots <= SHOAL_SLOTS_MAX);
    if (index >= s->slots->options.slots)
        return;
    slot = &s->slots->slots[index];
    slot->idle = true;
    if (slot->state == SHOAL_SLOT_HELD)
        slot_leave(s, slot);
}

/* A worker that only the runner remembers: the table was lost. Its lease stands as the runner holds it. */
static void adopt(struct slots_step *s, const struct shoal_host_event *event, const struct shoal_host_live *live)
{
    struct shoal_slots *slots = s->slots;
    struct hjob *job = slots_find_job(slots, event->u.runner.job);
    struct shoal_placement place = { .worker_id = live->worker_id,
                                     .node = slots->options.self,
                                     .slot = live->slot,
                                     .host_epoch = slots->options.host_epoch,
                                     .lease_generation = live->lease_generation,
                                     .role = live->role };
    struct worker *worker;

    SHOAL_ASSERT(slots_find_worker(s->slots, live->worker_id) == NULL); /* S3: only whom the table does not know */
    if (job == NULL)
        job = slots_add_job(slots, event->u.runner.job, event->u.runner.generation);
    if (job == NULL || (live->slot != SHOAL_SLOT_NONE && live->slot >= slots->options.slots))
        return;
    memcpy(place.token, live->token, sizeof(place.token));
    worker = slots_add_worker(slots, job, &place);
    if (worker == NULL)
        return;
    worker->run = true;
    worker->report.ran = true;
    worker->frozen = live->frozen;
    worker->deadline_ns = live->deadline_ns;
    slots_worker_move(worker, SHOAL_PHASE_STARTED);
    worker->report.frozen = live->frozen;
    job->opened = true;
    if (live->lease_generation > slots->last_generation)
        slots->last_generation = live->lease_generation;
    if (live->slot != SHOAL_SLOT_NONE && live->lease_generation >= slots->slots[live->slot].generation) {
        struct slot *slot = &slots->slots[live->slot]; /* S1: else it was granted again after that worker's end */

        slots_slot_move(slot, SHOAL_SLOT_LEASED);
        slot->idle = false;
        slot->spent = true;
        slot->job = job->id;
        slot->generation = live->lease_generation;
        slot->worker_id = live->worker_id;
    }
    slots_worker_changed(slots, worker);
    slots_changed(slots);
}

static void on_runner(struct slots_step *s, const struct shoal_host_event *event)
{
    struct hjob *job = slots_find_job(s->slots, event->u.runner.job);

    for (uint32_t i = 0; job != NULL && i < SHOAL_HOST_WORKERS_MAX; i++) {
        struct worker *worker = &s->slots->workers[i];
        bool alive = false;

        if (!worker_lives(worker) || &s->slots->jobs[worker->job] != job)
            continue;
        for (size_t n = 0; n < event->u.runner.worker_count; n++)
            alive = alive || event->u.runner.workers[n].worker_id == worker->place.worker_id;
        if (alive)
            worker->unproven = false;
        else if (worker->run && worker->unproven)
            slots_worker_exited(s, worker, -1, false, "ended while the agent was away");
    }
    for (size_t n = 0; n < event->u.runner.worker_count; n++)
        if (slots_find_worker(s->slots, event->u.runner.workers[n].worker_id) == NULL)
            adopt(s, event, &event->u.runner.workers[n]);
    job = slots_find_job(s->slots, event->u.runner.job);
    if (job == NULL)
        job = slots_add_job(s->slots, event->u.runner.job, event->u.runner.generation);
    if (job != NULL)
        job->opened = true; /* its runner is closed once it has no worker, whether anybody asks for the job or not */
}

/* S11. */
void slots_reattached(struct slots_step *s)
{
    SHOAL_ASSERT(s->slots->options.reattaches || s->slots->until_reattached_ns == 0);
    if (s->slots->until_reattached_ns != 0)
        slots_changed(s->slots);
    s->slots->until_reattached_ns = 0;
}

static void on_blob(struct slots_step *s, const struct shoal_host_event *event)
{
    for (uint32_t i = 0; i < s->slots->jobs_max; i++) {
        struct hjob *job = &s->slots->jobs[i];
        enum blob_state state = event->u.blob.ok ? BLOB_HERE : BLOB_NONE;

        if (job->used && job->bundle_state == BLOB_FETCHING && shoal_hash_equal(job->bundle, event->u.blob.hash))
            job->bundle_state = state;
        if (job->used && job->snapshot_state == BLOB_FETCHING && shoal_hash_equal(job->snapshot, event->u.blob.hash))
            job->snapshot_state = state;
    }
}

static void on_manifest(struct slots_step *s, const struct shoal_host_event *event)
{
    struct hjob *job = slots_find_job(s->slots, event->u.manifest.job);

    SHOAL_ASSERT(event->kind == SHOAL_HOST_ON_MANIFEST);
    if (job == NULL || job->manifest_call != event->u.manifest.call || job->manifest_made)
        return;
    job->manifest_made = true;
    job->manifest_ok = event->u.manifest.ok;
    job->manifest_hash = event->u.manifest.hash;
    job_cut_text(job->manifest_text, sizeof(job->manifest_text), event->u.manifest.text);
    slots_item_touch(job, &job->manifest);
}

static void on_mark(struct slots_step *s, const struct shoal_host_event *event)
{
    struct hjob *job = slots_find_job(s->slots, event->u.records_mark.job);

    SHOAL_ASSERT(event->kind == SHOAL_HOST_ON_RECORDS_MARK);
    if (job == NULL || job->call != event->u.records_mark.call || event->u.records_mark.step <= job->mark)
        return;
    job->mark = event->u.records_mark.step;
    job->progress_new = true;
}

static void on_link(struct slots_step *s, struct shoal_node_id node)
{
    for (uint32_t i = 0; i < s->slots->jobs_max; i++)
        if (s->slots->jobs[i].used && shoal_node_id_equal(s->slots->jobs[i].leader, node))
            s->slots->jobs[i].report_all = true;
}

static void on_stuck(struct slots_step *s, struct worker *worker)
{
    SHOAL_ASSERT(worker == NULL || worker->used);
    if (worker == NULL || !worker_lives(worker) || worker->frozen || worker->report.stuck)
        return;
    worker->report.stuck = true;
    (void)snprintf(worker->report.text, sizeof(worker->report.text),
                   "its library stood still for a second (a blocked or stopped process); it was killed");
    (void)revoke_for(s, worker);
    slots_worker_kill(worker, 0, s->now_ns);
    slots_worker_changed(s->slots, worker);
}

/* A death is known some 30 ms a GB before the process is reaped. The kill makes sure of the rest of it. One that leaves
 * no epoch behind is let end as it does: its own status is told then. */
static void on_dying(struct slots_step *s, struct worker *worker)
{
    SHOAL_ASSERT(worker == NULL || worker->used);
    if (worker == NULL || !worker_lives(worker) || worker->report.stuck || !revoke_for(s, worker))
        return;
    worker->report.stuck = true;
    slots_worker_kill(worker, 0, s->now_ns);
    slots_worker_changed(s->slots, worker);
}

/* Rank 0's host may be away: every host says how far its members are. */
static void on_stepped(struct slots_step *s, const struct shoal_host_event *event)
{
    const struct worker *worker = slots_find_worker(s->slots, event->u.stepped.worker_id);
    struct hjob *job;

    SHOAL_ASSERT(event->kind == SHOAL_HOST_ON_STEPPED);
    if (worker == NULL || !worker_lives(worker) || worker->report.closed ||
        shoal_epoch_word(worker->report.epoch) != event->u.stepped.epoch_word)
        return;
    job = &s->slots->jobs[worker->job];
    slots_progress_of(job, worker->report.ready_call, worker->report.epoch);
    if (event->u.stepped.step <= job->step || event->u.stepped.step > SHOAL_STEPS_MAX) /* the word is its job's to write */
        return;
    job->step = event->u.stepped.step;
    job->engines = slots_epoch(s->slots, job)->member_count;
    job->progress_new = true;
}

/* A hint for who asks why nothing goes on: told as it is heard, and not again if that is lost. */
static void on_stands(struct slots_step *s, const struct shoal_host_event *event)
{
    const struct worker *worker = slots_find_worker(s->slots, event->u.stands.worker_id);
    struct hjob *job;

    SHOAL_ASSERT(event->kind == SHOAL_HOST_ON_STANDS);
    if (worker == NULL || !worker_lives(worker) || worker->report.closed ||
        shoal_epoch_word(worker->report.epoch) != event->u.stands.epoch_word)
        return;
    job = &s->slots->jobs[worker->job];
    if (shoal_node_id_is_zero(job->leader))
        return;
    s->slots->out.kind = SHOAL_HOST_STANDS;
    s->slots->out.u.stands.worker_id = worker->place.worker_id;
    s->slots->out.u.stands.epoch = worker->report.epoch;
    s->slots->out.u.stands.activity = event->u.stands.activity;
    (void)slots_send(s, job, job->leader, 0);
}

/* S15. */
static bool ended_here(const struct worker *worker)
{
    SHOAL_ASSERT(worker->used);
    return worker->killed && !worker->stop && !worker->release && worker->place.role != SHOAL_JOB_ENGINE;
}

static void on_exited(struct slots_step *s, const struct shoal_host_event *event)
{
    struct worker *worker = slots_find_worker(s->slots, event->u.exited.worker_id);

    SHOAL_ASSERT(event->kind == SHOAL_HOST_ON_EXITED);
    if (worker == NULL)
        return;
    if (event->u.exited.signalled && ended_here(worker))
        slots_worker_exited(s, worker, -1, false, "its host has ended it: its lease was over, or its attempt");
    else
        slots_worker_exited(s, worker, event->u.exited.status, event->u.exited.signalled, event->u.exited.text);
}

static void on_worker(struct slots_step *s, const struct shoal_host_event *event)
{
    struct worker *worker = slots_find_worker(s->slots, event->u.worker.worker_id);

    SHOAL_ASSERT(event->kind == SHOAL_HOST_ON_MESSAGE);
    if (worker == NULL || !worker_lives(worker))
        s->slots->stats.unknown_workers++;
    else
        slots_on_worker(s, worker, event->u.worker.message);
}

static void on_host(struct slots_step *s, const struct shoal_host_event *event)
{
    SHOAL_ASSERT(s->actions->count == 0); /* what an event changes is told by drive(), in its order */
    switch (event->kind) {
    case SHOAL_HOST_ON_STARTED: on_started(s, event->u.started.worker_id); return;
    case SHOAL_HOST_ON_EXITED: on_exited(s, event); return;
    case SHOAL_HOST_ON_SLOT_IDLE: on_idle(s, event->u.idle.slot); return;
    case SHOAL_HOST_ON_RUNNER: on_runner(s, event); return;
    case SHOAL_HOST_ON_REATTACHED: slots_reattached(s); return;
    case SHOAL_HOST_ON_MESSAGE: on_worker(s, event); return;
    case SHOAL_HOST_ON_STEPPED: on_stepped(s, event); return;
    case SHOAL_HOST_ON_STANDS: on_stands(s, event); return;
    case SHOAL_HOST_ON_STUCK: on_stuck(s, slots_find_worker(s->slots, event->u.worker.worker_id)); return;
    case SHOAL_HOST_ON_DYING: on_dying(s, slots_find_worker(s->slots, event->u.worker.worker_id)); return;
    case SHOAL_HOST_ON_BLOB: on_blob(s, event); return;
    case SHOAL_HOST_ON_MANIFEST: on_manifest(s, event); return;
    case SHOAL_HOST_ON_RECORDS_MARK: on_mark(s, event); return;
    }
}

enum shoal_err slots_on_event(struct slots_step *s, const struct shoal_slots_event *event)
{
    struct shoal_slots *slots = s->slots;
    struct hjob *ended;

    SHOAL_ASSERT(s->actions->pool_used <= SHOAL_SLOTS_POOL_BYTES);
    switch (event->kind) {
    case SHOAL_SLOTS_TIMER: return SHOAL_OK;
    case SHOAL_SLOTS_FRAME:
        if (shoal_host_decode(event->u.frame.bytes, &slots->in) != SHOAL_OK ||
            !shoal_host_kind_to_host(slots->in.kind)) {
            slots->stats.malformed++;
            return SHOAL_ERR_MALFORMED;
        }
        slots_on_message(s, event->u.frame.from);
        return SHOAL_OK;
    case SHOAL_SLOTS_LINK: on_link(s, event->u.link); return SHOAL_OK;
    case SHOAL_SLOTS_TARGET: on_target(s, event); return SHOAL_OK;
    case SHOAL_SLOTS_DRAIN:
        if (slots->drain != event->u.drain)
            slots_changed(slots);
        slots->drain = event->u.drain;
        return SHOAL_OK;
    case SHOAL_SLOTS_HOST: on_host(s, &event->u.host); return SHOAL_OK;
    case SHOAL_SLOTS_ENDED:
        ended = slots_find_job(slots, event->u.ended);
        if (ended != NULL)
            ended->closing = true;
        return SHOAL_OK;
    }
    return SHOAL_ERR_INVALID;
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

static uint64_t or_default(uint64_t value, uint64_t otherwise)
{
    SHOAL_ASSERT(otherwise > 0);
    return value != 0 ? value : otherwise;
}

enum shoal_err shoal_slots_create(struct shoal_slots **out, const struct shoal_slots_options *options)
{
    struct shoal_slots *slots = calloc(1, sizeof(*slots));

    if (slots == NULL)
        return SHOAL_ERR_FULL;
    SHOAL_ASSERT(options->slots <= SHOAL_SLOTS_MAX);
    slots->options = *options;
    slots->options.lease_ns = or_default(options->lease_ns, SHOAL_LEASE_NS);
    slots->options.freeze_ns = or_default(options->freeze_ns, SHOAL_LEASE_FREEZE_NS);
    slots->options.tentative_ns = or_default(options->tentative_ns, 2 * SHOAL_S);
    slots->options.kill_ns = or_default(options->kill_ns, SHOAL_LEASE_KILL_NS);
    slots->options.repeat_ns = or_default(options->repeat_ns, 500 * SHOAL_MS);
    SHOAL_ASSERT(slots->options.freeze_ns < slots->options.lease_ns);
    slots->jobs_max = options->jobs_max != 0 ? options->jobs_max : SHOAL_HOST_JOBS_MAX;
    slots->jobs = calloc(slots->jobs_max, sizeof(*slots->jobs));
    slots->epochs = calloc(slots->jobs_max, sizeof(*slots->epochs));
    slots->train_states = calloc(slots->jobs_max, sizeof(*slots->train_states));
    slots->specs = calloc(slots->jobs_max, SHOAL_JOB_SPEC_BYTES_MAX);
    if (slots->jobs == NULL || slots->epochs == NULL || slots->train_states == NULL || slots->specs == NULL) {
        shoal_slots_destroy(slots);
        return SHOAL_ERR_FULL;
    }
    for (uint32_t i = 0; i < SHOAL_SLOTS_MAX; i++) {
        slots->slots[i].idle = true;
        slots->slots[i].spent = true;
    }
    slots->until_reattached_ns = options->reattaches ? options->start_ns + REATTACH_NS : 0;
    slots->version = 1; /* one record is published at the first step */
    slots->last_generation = options->start_ns;
    slots->deadline_ns = options->start_ns;
    *out = slots;
    return SHOAL_OK;
}

void shoal_slots_memory(struct shoal_memory *memory)
{
    const struct shoal_slots *slots = NULL; /* for the sizes of what its pointers lead to */

    SHOAL_ASSERT(memory->count < SHOAL_MEMORY_ROWS_MAX);
    shoal_memory_add(memory, "slots: the core", 1, sizeof(*slots));
    shoal_memory_add(memory, "slots: jobs with workers here", SHOAL_HOST_JOBS_MAX,
                     sizeof(*slots->jobs) + sizeof(*slots->epochs) + sizeof(*slots->train_states) +
                         SHOAL_JOB_SPEC_BYTES_MAX);
}

void shoal_slots_destroy(struct shoal_slots *slots)
{
    if (slots == NULL)
        return;
    free(slots->jobs);
    free(slots->epochs);
    free(slots->train_states);
    free(slots->specs);
    free(slots);
}
