/* The workers of this host: what they say, and what they are told. */
#include "sched/job/job_wire.h"
#include "slots_state.h"
#include "shoal/rand.h"
#include "shoal/step_record.h"
#include "shoal/banned.h"

__extension__ typedef __int128 slots_i128;

/* ---- Step records ------------------------------------------------------------------------------------------------ */

/* An IEEE 754 double in millionths, rounded towards zero, without any float; saturates; not a number: 0. */
static int64_t micro_of_bits(uint64_t bits)
{
    unsigned exponent = (unsigned)(bits >> 52) & 0x7ff;
    uint64_t mantissa = (bits & 0xfffffffffffffull) | (exponent != 0 ? 1ull << 52 : 0);
    int shift = (int)exponent - 1075;
    shoal_u128 scaled = (shoal_u128)mantissa * 1000000u;

    if (exponent == 0x7ff && mantissa != 1ull << 52)
        return 0;
    if (exponent == 0x7ff)
        return (bits >> 63) != 0 ? INT64_MIN : INT64_MAX;
    if (shift < -120)
        return 0;
    if (shift > 0)
        scaled = shift > 50 ? (shoal_u128)INT64_MAX : scaled << shift;
    else
        scaled >>= -shift;
    if (scaled > (shoal_u128)INT64_MAX)
        scaled = (shoal_u128)INT64_MAX;
    return (bits >> 63) != 0 ? -(int64_t)scaled : (int64_t)scaled;
}

static bool is_nan(uint64_t bits) { return (bits << 1) > 0xffe0000000000000ull; }

/* Loss and first metric of one step, weighted by samples. A validation that does not measure that metric says NaN: what `metric`
 * was stays. False: malformed. */
static bool read_record(struct shoal_reader *r, struct shoal_step_head *head, int64_t *loss, int64_t *metric)
{
    SHOAL_ASSERT(!r->failed);
    slots_i128 sum[2] = { 0, 0 };
    uint64_t samples = 0;
    bool is_measured = true;

    shoal_get_step_head(r, head);
    for (uint32_t v = 0; !r->failed && v < head->v_count; v++) {
        uint32_t n = shoal_get_u32(r);

        (void)shoal_get_space(r, 24);
        for (unsigned i = 0; i < head->value_count; i++) {
            uint64_t bits = shoal_get_u64(r);

            if (i < 2)
                sum[i] += (slots_i128)micro_of_bits(bits) * n;
            if (i == 1 && is_nan(bits))
                is_measured = false;
        }
        samples += n;
    }
    if (r->failed)
        return false;
    *loss = samples == 0 ? 0 : (int64_t)(sum[0] / (int64_t)samples);
    if (is_measured)
        *metric = samples == 0 ? 0 : (int64_t)(sum[1] / (int64_t)samples);
    return true;
}

/* Each call counts its steps from 1: what was heard of the one before says nothing of this one. */
static void progress_of_call(struct hjob *job, uint32_t call)
{
    SHOAL_ASSERT(job->used);
    if (call == job->progress_call)
        return;
    job->progress_call = call;
    job->step = job->record_step = job->logged_step = 0;
    job->has_metrics = job->metrics_new = false;
}

void slots_progress_of(struct hjob *job, uint32_t call, struct shoal_epoch epoch)
{
    SHOAL_ASSERT(job->used);
    progress_of_call(job, call);
    if (shoal_epoch_word(epoch) != job->progress_epoch)
        job->progress_ns = 0; /* the first step of an epoch is told at once: planned changes wait for it */
    job->progress_epoch = shoal_epoch_word(epoch);
}

static void on_records(struct slots_step *s, struct hjob *job, const struct shoal_worker_records *records)
{
    struct shoal_reader r = shoal_reader_init(records->records);
    const struct shoal_worker_epoch *epoch = slots_epoch(s->slots, job);
    struct shoal_step_head head;
    int64_t loss = 0, metric = job->metric_micro;

    SHOAL_ASSERT(job->used);
    for (uint32_t i = 0; i < records->count; i++) {
        if (!read_record(&r, &head, &loss, &metric)) {
            s->slots->stats.malformed++;
            return;
        }
        if (head.kind == SHOAL_STEP_FILES || head.call < job->progress_call ||
            (job->progress_call == head.call && head.step < job->record_step))
            continue;
        slots_progress_of(job, head.call, (struct shoal_epoch){ .e = head.e, .k = head.k });
        if (head.e != job->record_e)
            job->progress_ns = 0; /* its metrics too */
        job->record_e = head.e;
        job->record_step = head.step;
        if (head.step > job->step)
            job->step = head.step;
        job->data_epoch = head.data_epoch;
        job->engines = epoch->member_count;
        if (head.value_count > 0) {
            job->has_metrics = job->metrics_new = true;
            job->loss_micro = loss;
            job->metric_micro = metric;
        }
        job->progress_new = true;
    }
}

/* ---- What workers say -------------------------------------------------------------------------------------------- */

/* The members that a worker does not hear are those of one epoch alone. */
static void report_epoch(struct shoal_worker_report *report, struct shoal_epoch epoch)
{
    if (shoal_epoch_cmp(epoch, report->epoch) != 0)
        report->unheard = (struct shoal_ranks){ 0 };
    report->epoch = epoch;
}

static void on_hello(struct slots_step *s, struct worker *worker, const struct shoal_worker_hello *hello)
{
    struct shoal_worker_report *report = &worker->report;

    SHOAL_ASSERT(worker_lives(worker)); /* S9 */
    if (memcmp(hello->token, worker->place.token, sizeof(hello->token)) != 0) {
        s->slots->stats.unknown_workers++;
        return;
    }
    worker->unproven = false;
    worker->run = true;
    if (report->phase < SHOAL_PHASE_HELLO || hello->call != report->ready_call)
        slots_worker_move(worker, SHOAL_PHASE_HELLO);
    report->call = hello->call;
    memcpy(report->numeric_class, hello->numeric_class, sizeof(report->numeric_class));
    if (shoal_epoch_cmp(hello->epoch, report->epoch) >= 0) {
        report_epoch(report, hello->epoch);
        report->closed = hello->closed;
        report->applied_step = hello->applied_step;
        report->complete_step = hello->complete_step;
    }
    /* A new connection: everything that it may have missed is said again. */
    worker->sent_call = hello->call;
    worker->sent_epoch = shoal_epoch_word(hello->epoch);
    worker->sent_final = 0;
    worker->sent_release = false;
    worker->sent_stop = false;
    worker->sent_mark = 0;
    if (worker->place.role == SHOAL_JOB_DRIVER &&
        s->slots->jobs[worker->job].train_state_worker == worker->place.worker_id)
        s->slots->jobs[worker->job].train_state_wanted = true;
    slots_worker_changed(s->slots, worker);
}

static void on_ready(struct slots_step *s, struct worker *worker, const struct shoal_worker_ready *ready)
{
    struct shoal_worker_report *report = &worker->report;
    struct shoal_call_sizes *sizes = &report->sizes;

    SHOAL_ASSERT(worker_lives(worker)); /* S9 */
    slots_worker_move(worker, SHOAL_PHASE_READY);
    report->call = ready->call;
    report->ready_call = ready->call;
    memset(sizes, 0, sizeof(*sizes));
    sizes->virtual_workers = ready->virtual_workers;
    sizes->sum_elems = ready->sum_elems;
    sizes->copy_bytes = ready->copy_bytes;
    sizes->samples = ready->samples;
    sizes->minibatch = ready->minibatch;
    sizes->data_epochs = ready->data_epochs;
    sizes->steps_per_epoch = ready->steps_per_epoch;
    sizes->metric_count = ready->metric_count;
    memcpy(sizes->metric_names, ready->metric_names, ready->metric_count * sizeof(ready->metric_names[0]));
    memcpy(sizes->numeric_class, report->numeric_class, sizeof(sizes->numeric_class));
    report->address_len = (uint16_t)ready->address.len;
    if (ready->address.len > 0)
        memcpy(report->address, ready->address.bytes, ready->address.len);
    slots_worker_changed(s->slots, worker);
}

/* Ranks beyond 64 are told where the epoch has them: to a leader of the version before they would be no report at all. */
static void keep_members(struct slots_step *s, const struct worker *worker, struct shoal_ranks *ranks)
{
    uint32_t count = slots_epoch(s->slots, &s->slots->jobs[worker->job])->member_count;

    SHOAL_ASSERT(count <= SHOAL_RANKS_MAX);
    shoal_ranks_limit(ranks, count > SHOAL_JOB_WORKERS_PLAIN ? count : SHOAL_JOB_WORKERS_PLAIN);
}

static void on_closed(struct slots_step *s, struct worker *worker, const struct shoal_worker_closed *closed)
{
    struct shoal_worker_report *report = &worker->report;

    SHOAL_ASSERT(worker_lives(worker)); /* S9 */
    if (shoal_epoch_cmp(closed->epoch, report->epoch) < 0)
        return;
    report_epoch(report, closed->epoch);
    report->closed = true;
    worker->broken = closed->broken;
    keep_members(s, worker, &worker->broken);
    report->applied_step = closed->applied_step;
    report->complete_step = closed->complete_step;
    /* One that leaves ends the epoch for all (PROTOCOLS 7): the others here need not wait for the leader's word. */
    slots_job_revoke(s, &s->slots->jobs[worker->job], shoal_epoch_word(closed->epoch));
    slots_worker_changed(s->slots, worker);
}

static void on_unheard(struct slots_step *s, struct worker *worker, const struct shoal_worker_unheard *unheard)
{
    struct shoal_worker_report *report = &worker->report;
    struct shoal_ranks ranks = unheard->ranks;

    SHOAL_ASSERT(worker_lives(worker)); /* S9 */
    keep_members(s, worker, &ranks);
    if (shoal_epoch_cmp(unheard->epoch, report->epoch) != 0 || shoal_ranks_equal(&ranks, &report->unheard))
        return;
    report->unheard = ranks;
    slots_worker_changed(s->slots, worker);
}

static void on_train(struct slots_step *s, struct worker *worker, const struct shoal_worker_train *train)
{
    struct hjob *job = &s->slots->jobs[worker->job];
    struct shoal_call *call = &job->train_call;

    SHOAL_ASSERT(worker_lives(worker)); /* S9 */
    if (worker->place.role != SHOAL_JOB_DRIVER || train->call == 0 || train->call > SHOAL_CALLS_MAX ||
        strncmp(train->bundle_path, "blob:", 5) != 0) {
        s->slots->stats.malformed++;
        return;
    }
    memset(call, 0, sizeof(*call));
    if (!shoal_hex_parse(train->bundle_path + 5, call->bundle.bytes, sizeof(call->bundle.bytes))) {
        s->slots->stats.malformed++;
        return;
    }
    call->call = train->call;
    call->job_seed = train->job_seed;
    call->engines_max = train->engines_max;
    memcpy(call->signature, train->signature, sizeof(call->signature));
    job->train_worker = worker->place.worker_id;
    slots_item_touch(job, &job->train);
}

static void on_snapshot(struct slots_step *s, struct hjob *job, const struct shoal_worker_snapshot *snapshot)
{
    struct shoal_hash hash = { { 0 } };

    SHOAL_ASSERT(job->used);
    if (strncmp(snapshot->path, "blob:", 5) != 0 ||
        !shoal_hex_parse(snapshot->path + 5, hash.bytes, sizeof(hash.bytes))) {
        s->slots->stats.malformed++;
        return;
    }
    job->snap_call = snapshot->call;
    job->snap_step = snapshot->step;
    job->snap_hash = hash;
    slots_item_touch(job, &job->snap);
}

static bool ready_in_bounds(const struct shoal_worker_ready *ready)
{
    SHOAL_ASSERT(ready->virtual_workers <= SHOAL_VIRTUAL_MAX); /* as it was decoded */
    return ready->call <= SHOAL_CALLS_MAX && ready->sum_elems <= SHOAL_COUNT_MAX && ready->copy_bytes <= SHOAL_COUNT_MAX &&
           ready->samples <= SHOAL_COUNT_MAX && ready->steps_per_epoch <= SHOAL_STEPS_MAX;
}

/* Its numbers are such as a call can have. */
static bool in_bounds(const struct shoal_worker_message *m)
{
    SHOAL_ASSERT(m->kind < SHOAL_WORKER_KIND_COUNT);
    switch ((enum shoal_worker_kind)m->kind) {
    case SHOAL_WORKER_HELLO:
        return m->hello.call <= SHOAL_CALLS_MAX && m->hello.applied_step <= SHOAL_STEPS_MAX &&
               m->hello.complete_step <= SHOAL_STEPS_MAX;
    case SHOAL_WORKER_READY: return ready_in_bounds(&m->ready);
    case SHOAL_WORKER_CLOSED:
        return m->closed.applied_step <= SHOAL_STEPS_MAX && m->closed.complete_step <= SHOAL_STEPS_MAX;
    case SHOAL_WORKER_RECORDS: return m->records.call <= SHOAL_CALLS_MAX && m->records.first_step <= SHOAL_STEPS_MAX;
    case SHOAL_WORKER_DONE: return m->done.call <= SHOAL_CALLS_MAX && m->done.final_step <= SHOAL_STEPS_MAX;
    case SHOAL_WORKER_FILES:
    case SHOAL_WORKER_TRAIN_ACKED: return m->acked.call <= SHOAL_CALLS_MAX && m->acked.step <= SHOAL_STEPS_MAX;
    case SHOAL_WORKER_SNAPSHOT: return m->snapshot.call <= SHOAL_CALLS_MAX && m->snapshot.step <= SHOAL_STEPS_MAX;
    case SHOAL_WORKER_TRAIN: /* looked at where it is taken */
    case SHOAL_WORKER_FAILED:
    case SHOAL_WORKER_UNHEARD:
    case SHOAL_WORKER_CALL:
    case SHOAL_WORKER_EPOCH:
    case SHOAL_WORKER_RECORDS_ACKED:
    case SHOAL_WORKER_WRITE_FINAL:
    case SHOAL_WORKER_RELEASE:
    case SHOAL_WORKER_STOP:
    case SHOAL_WORKER_TRAIN_STATE:
    case SHOAL_WORKER_TRAIN_RECORDS:
    case SHOAL_WORKER_KIND_COUNT: return true;
    }
    return false;
}

/* What it says is not believed, and it is replaced. */
static void refuse(struct slots_step *s, struct worker *worker)
{
    SHOAL_ASSERT(worker_lives(worker)); /* S9 */
    s->slots->stats.malformed++;
    if (worker->report.failed)
        return;
    worker->report.failed = true;
    job_cut_text(worker->report.text, sizeof(worker->report.text), "a process of the job said steps or sizes in its name that no call has");
    slots_worker_changed(s->slots, worker);
}

void slots_on_worker(struct slots_step *s, struct worker *worker, const struct shoal_worker_message *message)
{
    struct hjob *job = &s->slots->jobs[worker->job];
    struct shoal_worker_report *report = &worker->report;

    SHOAL_ASSERT(worker_lives(worker)); /* S9: the dead say nothing */
    if (!in_bounds(message)) {
        refuse(s, worker);
        return;
    }
    switch ((enum shoal_worker_kind)message->kind) {
    case SHOAL_WORKER_HELLO: on_hello(s, worker, &message->hello); return;
    case SHOAL_WORKER_READY: on_ready(s, worker, &message->ready); return;
    case SHOAL_WORKER_CLOSED: on_closed(s, worker, &message->closed); return;
    case SHOAL_WORKER_UNHEARD: on_unheard(s, worker, &message->unheard); return;
    case SHOAL_WORKER_RECORDS: on_records(s, job, &message->records); return;
    case SHOAL_WORKER_DONE:
        report->done_call = message->done.call;
        report->final_step = message->done.final_step;
        report->state_digest = message->done.state_digest;
        slots_worker_changed(s->slots, worker);
        return;
    case SHOAL_WORKER_FILES:
        report->files_call = message->acked.call;
        slots_worker_changed(s->slots, worker);
        return;
    case SHOAL_WORKER_FAILED:
        report->failed = true;
        report->user_code = message->failed.user_code;
        worker->unfit = message->failed.unfit;
        job_cut_text(report->text, sizeof(report->text), message->failed.text);
        slots_worker_changed(s->slots, worker);
        return;
    case SHOAL_WORKER_SNAPSHOT: on_snapshot(s, job, &message->snapshot); return;
    case SHOAL_WORKER_TRAIN: on_train(s, worker, &message->train); return;
    case SHOAL_WORKER_TRAIN_ACKED:
        if (message->acked.call < job->progress_call)
            return; /* late: the next call is under way */
        progress_of_call(job, message->acked.call);
        if (message->acked.step > job->logged_step)
            job->logged_step = message->acked.step;
        job->progress_new = true;
        return;
    case SHOAL_WORKER_CALL: /* the agent's own kinds */
    case SHOAL_WORKER_EPOCH:
    case SHOAL_WORKER_RECORDS_ACKED:
    case SHOAL_WORKER_WRITE_FINAL:
    case SHOAL_WORKER_RELEASE:
    case SHOAL_WORKER_STOP:
    case SHOAL_WORKER_TRAIN_STATE:
    case SHOAL_WORKER_TRAIN_RECORDS:
    case SHOAL_WORKER_KIND_COUNT: s->slots->stats.malformed++; return;
    }
}

/* ---- What workers are told --------------------------------------------------------------------------------------- */

/* Room for a message in the pool; NULL: full. */
static struct shoal_worker_message *new_message(struct slots_step *s, uint8_t kind, size_t body)
{
    const size_t bytes =
        offsetof(struct shoal_worker_message, hello) + body; /* not the whole union: an epoch is large */
    size_t at = (s->actions->pool_used + 15) & ~(size_t)15;
    void *memory = s->actions->pool + at;
    struct shoal_worker_message *message = memory;

    SHOAL_ASSERT(s->actions->pool_used <= SHOAL_SLOTS_POOL_BYTES);
    SHOAL_ASSERT(kind < SHOAL_WORKER_KIND_COUNT);
    if (at + bytes > SHOAL_SLOTS_POOL_BYTES || s->actions->count == SHOAL_SLOTS_ACTIONS_MAX) {
        s->slots->blocked = true;
        s->slots->stats.actions_full++;
        return NULL;
    }
    s->actions->pool_used = at + bytes;
    memset(memory, 0, bytes);
    message->kind = kind;
    return message;
}

/* `body`: as new_message() was given. */
static void send_message(struct slots_step *s, const struct worker *worker, const struct shoal_worker_message *message,
                         size_t body)
{
    struct shoal_host_order *order = slots_order(s, SHOAL_HOST_DO_SEND);

    SHOAL_ASSERT(order != NULL);        /* new_message() has looked */
    SHOAL_ASSERT(worker_lives(worker)); /* S9: nothing is told to the dead */
    order->u.send.worker_id = worker->place.worker_id;
    order->u.send.message = message;
    order->u.send.message_bytes = offsetof(struct shoal_worker_message, hello) + body;
}

static void blob_text(struct shoal_hash hash, char *text)
{
    SHOAL_ASSERT(!shoal_hash_is_zero(hash)); /* a blob has a name */
    memcpy(text, "blob:", 6);
    shoal_hex_text(hash.bytes, sizeof(hash.bytes), text + 5);
}

static void tell_call(struct slots_step *s, struct worker *worker, const struct hjob *job)
{
    struct shoal_worker_message *message;

    SHOAL_ASSERT(worker->place.role == SHOAL_JOB_ENGINE); /* only engines load a call */
    /* An engine serves one call: one that has loaded another is released by the leader. */
    if (job->call == 0 || job->bundle_state != BLOB_HERE || worker->sent_call != 0)
        return;
    message = new_message(s, SHOAL_WORKER_CALL, sizeof(message->call));
    if (message == NULL)
        return;
    message->call.call = job->call;
    message->call.job_seed = job->job_seed;
    blob_text(job->bundle, message->call.bundle_path);
    send_message(s, worker, message, sizeof(message->call));
    worker->sent_call = job->call;
}

static void tell_epoch(struct slots_step *s, struct worker *worker, const struct hjob *job)
{
    const struct shoal_worker_epoch *epoch = slots_epoch(s->slots, job);
    uint64_t word = shoal_epoch_word(epoch->epoch);
    const struct shoal_worker_message *message = NULL;
    struct shoal_worker_message *fresh;

    SHOAL_ASSERT(worker->place.role == SHOAL_JOB_ENGINE); /* only engines are members */
    if (word == 0 || worker->sent_epoch >= word || worker->report.ready_call != epoch->call ||
        (!shoal_hash_is_zero(job->snapshot) && job->snapshot_state != BLOB_HERE))
        return;
    /* One copy serves all workers of this step. */
    for (uint32_t i = s->actions->count; i > 0 && message == NULL; i--) {
        const struct shoal_host_order *order = &s->actions->list[i - 1].u.order;

        if (s->actions->list[i - 1].kind == SHOAL_SLOTS_ORDER && order->kind == SHOAL_HOST_DO_SEND &&
            order->u.send.message->kind == SHOAL_WORKER_EPOCH &&
            slots_find_worker(s->slots, order->u.send.worker_id)->job == worker->job &&
            s->actions->count < SHOAL_SLOTS_ACTIONS_MAX)
            message = order->u.send.message;
    }
    if (message == NULL) {
        fresh = new_message(s, SHOAL_WORKER_EPOCH, sizeof(fresh->epoch));
        if (fresh == NULL)
            return;
        shoal_worker_epoch_copy(&fresh->epoch, epoch);
        message = fresh;
    }
    send_message(s, worker, message, sizeof(message->epoch));
    worker->sent_epoch = word;
    for (uint32_t i = 0; i < epoch->member_count; i++) {
        if (epoch->members[i].worker_id != worker->place.worker_id ||
            shoal_epoch_cmp(worker->report.epoch, epoch->epoch) >= 0)
            continue;
        report_epoch(&worker->report, epoch->epoch);
        worker->report.closed = false;
        worker->broken = (struct shoal_ranks){ 0 };
        slots_worker_changed(s->slots, worker);
    }
}

static void tell_orders(struct slots_step *s, struct worker *worker, const struct hjob *job)
{
    struct shoal_worker_message *message;

    SHOAL_ASSERT(worker->report.phase >= SHOAL_PHASE_HELLO); /* it is connected */
    if (worker->final_call > worker->sent_final && worker->report.files_call < worker->final_call &&
        (message = new_message(s, SHOAL_WORKER_WRITE_FINAL, sizeof(message->acked))) != NULL) {
        message->acked.call = worker->final_call;
        send_message(s, worker, message, sizeof(message->acked));
        worker->sent_final = worker->final_call;
    }
    if (job->mark > worker->sent_mark && worker->report.ready_call == job->call &&
        (message = new_message(s, SHOAL_WORKER_RECORDS_ACKED, sizeof(message->acked))) != NULL) {
        message->acked.call = job->call;
        message->acked.step = job->mark;
        send_message(s, worker, message, sizeof(message->acked));
        worker->sent_mark = job->mark;
    }
    if (worker->release && !worker->sent_release &&
        (message = new_message(s, SHOAL_WORKER_RELEASE, sizeof(message->stop))) != NULL) {
        send_message(s, worker, message, sizeof(message->stop));
        worker->sent_release = true;
    }
    if (worker->stop && !worker->sent_stop &&
        (message = new_message(s, SHOAL_WORKER_STOP, sizeof(message->stop))) != NULL) {
        message->stop.reason = worker->stop_reason;
        memcpy(message->stop.text, worker->stop_text, sizeof(message->stop.text));
        send_message(s, worker, message, sizeof(message->stop));
        worker->sent_stop = true;
    }
}

static void tell_driver(struct slots_step *s, struct worker *worker, struct hjob *job)
{
    struct shoal_worker_message *message;

    SHOAL_ASSERT(worker->place.role == SHOAL_JOB_DRIVER);
    if (!job->train_state_wanted || job->train_state_worker != worker->place.worker_id)
        return;
    message = new_message(s, SHOAL_WORKER_TRAIN_STATE, sizeof(message->train_state));
    if (message == NULL)
        return;
    memcpy(&message->train_state, &s->slots->train_states[slots_job_index(s->slots, job)],
           sizeof(message->train_state));
    send_message(s, worker, message, sizeof(message->train_state));
    job->train_state_wanted = false;
}

void slots_drive_worker(struct slots_step *s, struct worker *worker)
{
    struct hjob *job = &s->slots->jobs[worker->job];

    SHOAL_ASSERT(worker_lives(worker)); /* S9: nothing is told to the dead */
    /* Said while an engine only starts, a call reaches no one yet, but its bundle is laid out meanwhile; it is said
     * again after the HELLO. */
    if (worker->report.phase < SHOAL_PHASE_HELLO) {
        if (worker->place.role == SHOAL_JOB_ENGINE && worker->run)
            tell_call(s, worker, job);
        return;
    }
    if (worker->place.role == SHOAL_JOB_ENGINE) {
        tell_call(s, worker, job);
        tell_epoch(s, worker, job);
    } else if (worker->place.role == SHOAL_JOB_DRIVER) {
        tell_driver(s, worker, job);
    }
    tell_orders(s, worker, job);
}
