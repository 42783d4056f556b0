/* Processes of a host, as the runner keeps them and as shoal/worker.h says that they behave.
 *
 * W1. They are the host's, not the agent's: an agent's death leaves them, a new agent finds them again (RUNNER).
 * W2. The runner freezes and kills by the lease without the agent, on the host's clock.
 * W3. A frozen or stopped process does nothing and hears nothing; its messages wait.
 * W4. One that is killed does no more, but holds its slot until its memory is torn down. The agent hears of the death
 *     before (DYING); of one that is stopped its watchdog tells after a second in which the agent itself kept time. */
#include "sim.h"
#include "sim_service.h"

#include "shoal/step_record.h"
#include "shoal/worker_wire.h"

#include "shoal/banned.h"

#define MESSAGE_BYTES_MAX (128 * SHOAL_KIB)
#define FROZEN_AGAIN_NS (20 * SHOAL_MS)
#define WATCH_NS (250 * SHOAL_MS)
#define WATCH_LOOKS 4u
#define TEARDOWN_NS (40 * SHOAL_MS) /* mean; 30 ms a GB */

uint32_t sim_job_find(const struct sim *sim, struct shoal_job_id id)
{
    uint64_t at = sim_map_find(&sim->job_index, sim_key_job(id));

    return at == 0 ? UINT32_MAX : (uint32_t)at - 1;
}

void sim_job_known(struct sim *sim, uint32_t job, struct shoal_job_id id)
{
    sim->jobs[job].known = true;
    sim->jobs[job].id = id;
    sim_map_put(&sim->job_index, sim_key_job(id), job + 1);
}

static struct sim_worker *here(struct sim_host *host, uint64_t id)
{
    struct sim_worker *worker = host->workers;

    while (worker != NULL && worker->id != id)
        worker = worker->next;
    return worker;
}

struct sim_worker *sim_worker_find(struct sim *sim, uint64_t id)
{
    uint64_t host = sim_map_find(&sim->workers, id);

    return host == 0 ? NULL : here(&sim->hosts[host - 1], id);
}

static struct sim_runner *runner_of(struct sim_host *host, uint32_t job, bool make)
{
    size_t free_at = host->runner_count;

    for (size_t i = 0; i < host->runner_count; i++) {
        if (host->runners[i].used && host->runners[i].job == job)
            return &host->runners[i];
        if (!host->runners[i].used && free_at == host->runner_count)
            free_at = i;
    }
    if (!make)
        return NULL;
    if (free_at == host->runner_count)
        host->runners = sim_grow(host->runners, &host->runner_cap, ++host->runner_count, sizeof(*host->runners));
    host->runners[free_at] = (struct sim_runner){ .used = true, .job = job };
    return &host->runners[free_at];
}

void sim_work_later(struct sim_host *host, const struct sim_worker *worker, enum sim_work work, uint64_t delay_ns)
{
    struct sim_event *event = sim_push(host->sim, SIM_WORK, host->index, delay_ns);

    event->word = worker->id;
    event->from = work;
}

static void worker_free(struct sim_worker *worker)
{
    while (worker->inbox != NULL) {
        struct sim_message *message = worker->inbox;

        worker->inbox = message->next;
        free(message);
    }
    free(worker->last_epoch);
    free(worker);
}

static void process_end(struct sim_host *host, struct sim_worker *worker, int32_t status, bool signalled)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_EXITED };
    struct sim_worker **at = &host->workers;

    sim_trace(host->sim, "%s: worker %llx of slot %d ends: %s %d", host->name, (unsigned long long)worker->id,
              (int)worker->slot, signalled ? "signal" : "status", status);
    while (*at != worker)
        at = &(*at)->next;
    *at = worker->next;
    sim_map_remove(&host->sim->workers, worker->id);
    if (host->agent)
        sim_kernel_ended(host, worker);
    if (host->agent) {
        event.u.exited.worker_id = worker->id;
        event.u.exited.status = status;
        event.u.exited.signalled = signalled;
        sim_host_answer(host, &event, SHOAL_MS);
        if (worker->slot != UINT32_MAX)
            sim_push(host->sim, SIM_SLOT_IDLE, host->index, 3 * SHOAL_MS)->word = worker->slot;
    }
    worker_free(worker);
}

void sim_workers_crash(struct sim_host *host)
{
    while (host->workers != NULL) {
        struct sim_worker *worker = host->workers;

        host->workers = worker->next;
        sim_map_remove(&host->sim->workers, worker->id);
        worker_free(worker);
    }
    host->runner_count = 0;
}

/* ---- what a worker says ---- */

static const char *said(uint8_t kind)
{
    static const char *const names[SHOAL_WORKER_KIND_COUNT] = {
        "HELLO", "CALL",        "READY",         "EPOCH",       "CLOSED", "RECORDS", "RECORDS_ACKED",
        "DONE",  "WRITE_FINAL", "FILES",         "RELEASE",     "STOP",   "FAILED",  "SNAPSHOT",
        "TRAIN", "TRAIN_STATE", "TRAIN_RECORDS", "TRAIN_ACKED", "UNHEARD"
    };

    return kind < SHOAL_WORKER_KIND_COUNT ? names[kind] : "?";
}

static void say(struct sim_host *host, const struct sim_worker *worker, const struct shoal_worker_message *message)
{
    static uint8_t bytes[MESSAGE_BYTES_MAX];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    struct sim_event *event;
    enum shoal_err err;

    if (!host->agent || !worker->connected)
        return; /* said again after the next HELLO */
    err = shoal_worker_encode(message, &w);
    SHOAL_ASSERT(err == SHOAL_OK);
    if (message->kind != SHOAL_WORKER_RECORDS)
        sim_trace(host->sim, "%s: worker %llx says %s", host->name, (unsigned long long)worker->id,
                  said(message->kind));
    event = sim_push(host->sim, SIM_TO_AGENT, host->index, 100000);
    event->word = worker->id;
    sim_event_bytes(event, shoal_writer_view(&w));
}

static struct shoal_worker_message *fresh(struct sim *sim, uint8_t kind)
{
    memset(sim->message, 0, sizeof(*sim->message));
    sim->message->kind = kind;
    return sim->message;
}

static void say_hello(struct sim_host *host, struct sim_worker *worker)
{
    struct shoal_worker_message *m = fresh(host->sim, SHOAL_WORKER_HELLO);

    m->hello.job = host->sim->jobs[worker->job].id;
    m->hello.generation = worker->generation;
    m->hello.role = worker->role == SHOAL_JOB_DRIVER ? SHOAL_ROLE_DRIVER : SHOAL_ROLE_ENGINE;
    m->hello.worker_id = worker->id;
    m->hello.slot = worker->slot == UINT32_MAX ? 0 : worker->slot;
    m->hello.pid = worker->pid;
    memcpy(m->hello.token, worker->token, sizeof(m->hello.token));
    (void)snprintf(m->hello.numeric_class, sizeof(m->hello.numeric_class), "simulated");
    m->hello.call = worker->ready ? worker->call : 0;
    m->hello.epoch = shoal_epoch_of_word(worker->epoch);
    m->hello.closed = worker->closed;
    m->hello.applied_step = worker->applied;
    m->hello.complete_step = worker->complete;
    worker->connected = true;
    say(host, worker, m);
    if (worker->role == SHOAL_JOB_DRIVER && !worker->train_done)
        sim_work_later(host, worker, SIM_WORK_TRAIN, 10 * SHOAL_MS);
    if (worker->ready)
        sim_work_later(host, worker, SIM_WORK_READY, SHOAL_MS);
    if (shoal_ranks_any(&worker->unheard))
        sim_work_later(host, worker, SIM_WORK_UNHEARD, SHOAL_MS);
    if (worker->done)
        sim_work_later(host, worker, SIM_WORK_DONE, 2 * SHOAL_MS);
}

static void say_ready(struct sim_host *host, struct sim_worker *worker)
{
    struct shoal_worker_message *m = fresh(host->sim, SHOAL_WORKER_READY);

    worker->ready = true;
    m->ready.call = worker->call;
    m->ready.virtual_workers = sim_virtual_workers(&host->sim->jobs[worker->job]);
    m->ready.sum_elems = 1000;
    m->ready.samples = 6000;
    m->ready.minibatch = 10;
    m->ready.data_epochs = 1;
    m->ready.steps_per_epoch = host->sim->jobs[worker->job].steps;
    m->ready.metric_count = 1;
    memcpy(m->ready.metric_names[0], "loss", 5);
    m->ready.address = shoal_view_of(worker->token, 8);
    say(host, worker, m);
}

/* The record of the step applied last. */
static void say_records(struct sim_host *host, const struct sim_worker *worker)
{
    static uint8_t bytes[256];
    struct shoal_worker_message *m = fresh(host->sim, SHOAL_WORKER_RECORDS);
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    struct shoal_step_head head = {
        .step = worker->applied, .kind = SHOAL_STEP_TRAIN, .call = worker->call, .v_count = 1, .value_count = 1
    };
    struct shoal_step_tuple tuple = { .samples = 10, .worker_id = worker->id, .values = { 0.5 } };

    shoal_put_step_head(&w, &head);
    shoal_put_step_tuple(&w, &tuple, 1);
    m->records = (struct shoal_worker_records){
        .call = worker->call, .first_step = worker->applied, .count = 1, .records = shoal_writer_view(&w)
    };
    say(host, worker, m);
}

static void blob_text(uint64_t number, char *text)
{
    uint8_t hash[32] = { 7 };

    for (unsigned i = 0; i < 8; i++)
        hash[1 + i] = (uint8_t)(number >> (8 * i));
    memcpy(text, "blob:", 6);
    shoal_hex_text(hash, sizeof(hash), text + 5);
}

static void say_train(struct sim_host *host, struct sim_worker *worker)
{
    struct shoal_worker_message *m = fresh(host->sim, SHOAL_WORKER_TRAIN);

    if (worker->train_done)
        return;
    m->train.call = 1;
    m->train.job_seed = 42;
    blob_text(worker->job, m->train.bundle_path);
    (void)snprintf(m->train.signature, sizeof(m->train.signature), "net of job %u", worker->job);
    say(host, worker, m);
}

static void work(struct sim_host *host, struct sim_worker *worker, enum sim_work what)
{
    struct shoal_worker_message *m;

    switch (what) {
    case SIM_WORK_HELLO: say_hello(host, worker); return;
    case SIM_WORK_READY: say_ready(host, worker); return;
    case SIM_WORK_TRAIN: say_train(host, worker); return;
    case SIM_WORK_CLOSED:
        m = fresh(host->sim, SHOAL_WORKER_CLOSED);
        m->closed = (struct shoal_worker_closed){ .epoch = shoal_epoch_of_word(worker->epoch),
                                                  .applied_step = worker->applied,
                                                  .complete_step = worker->complete,
                                                  .broken = worker->broken };
        if (worker->closed)
            say(host, worker, m);
        return;
    case SIM_WORK_UNHEARD:
        m = fresh(host->sim, SHOAL_WORKER_UNHEARD);
        m->unheard =
            (struct shoal_worker_unheard){ .epoch = shoal_epoch_of_word(worker->epoch), .ranks = worker->unheard };
        if (!worker->closed)
            say(host, worker, m);
        return;
    case SIM_WORK_DONE:
        m = fresh(host->sim, SHOAL_WORKER_DONE);
        m->done = (struct shoal_worker_done){ .call = worker->call,
                                              .final_step = host->sim->jobs[worker->job].steps,
                                              .state_digest = 0xd16e57 };
        say(host, worker, m);
        return;
    case SIM_WORK_FILES:
        m = fresh(host->sim, SHOAL_WORKER_FILES);
        m->acked = (struct shoal_worker_acked){ .call = worker->call };
        say(host, worker, m);
        return;
    case SIM_WORK_RECORDS: say_records(host, worker); return;
    case SIM_WORK_SNAPSHOT:
        m = fresh(host->sim, SHOAL_WORKER_SNAPSHOT);
        m->snapshot.call = worker->call;
        m->snapshot.step = worker->snapshot_said;
        blob_text(1000000u + worker->snapshot_said * 1000u + worker->job, m->snapshot.path);
        say(host, worker, m);
        return;
    case SIM_WORK_END: process_end(host, worker, 0, false); return;
    }
}

/* ---- what a worker is told ---- */

static void told(struct sim_host *host, struct sim_worker *worker, const struct shoal_worker_message *m)
{
    if (m->kind != SHOAL_WORKER_RECORDS_ACKED)
        sim_trace(host->sim, "%s: worker %llx hears %s", host->name, (unsigned long long)worker->id, said(m->kind));
    switch ((enum shoal_worker_kind)m->kind) {
    case SHOAL_WORKER_CALL:
        if (strncmp(m->call.bundle_path, "blob:", 5) != 0)
            sim_fail(host->sim, "%s: a call without its bundle", host->name);
        if (m->call.call <= worker->call)
            return;
        worker->call = m->call.call;
        sim_work_later(host, worker, SIM_WORK_READY, sim_about(&host->chance, 40 * SHOAL_MS));
        return;
    case SHOAL_WORKER_EPOCH: sim_enter(host, worker, &m->epoch); return;
    case SHOAL_WORKER_WRITE_FINAL:
        if (!worker->done)
            sim_fail(host->sim, "%s: WRITE_FINAL to a worker that is not done", host->name);
        sim_work_later(host, worker, SIM_WORK_FILES, 5 * SHOAL_MS);
        return;
    case SHOAL_WORKER_RELEASE:
    case SHOAL_WORKER_STOP: sim_work_later(host, worker, SIM_WORK_END, 2 * SHOAL_MS); return;
    case SHOAL_WORKER_TRAIN_STATE:
        if (worker->role != SHOAL_JOB_DRIVER || m->train_state.state != SHOAL_TRAIN_FINISHED || worker->train_done)
            return;
        worker->train_done = true;
        sim_work_later(host, worker, SIM_WORK_END, 20 * SHOAL_MS);
        return;
    case SHOAL_WORKER_RECORDS_ACKED:
    case SHOAL_WORKER_TRAIN_RECORDS: return;
    default: sim_fail(host->sim, "%s: the agent says %u to a worker", host->name, m->kind); return;
    }
}

static void inbox_read(struct sim_host *host, uint64_t id)
{
    struct sim_worker *worker = here(host, id);

    while (worker != NULL && !sim_worker_stands(worker) && worker->inbox != NULL) {
        struct sim_message *message = worker->inbox;

        worker->inbox = message->next;
        if (worker->inbox == NULL)
            worker->inbox_last = NULL;
        if (shoal_worker_decode(shoal_view_of(message->bytes, message->len), host->sim->message) != SHOAL_OK)
            sim_fail(host->sim, "%s: a worker cannot read what its agent says", host->name);
        else
            told(host, worker, host->sim->message);
        free(message);
        worker = here(host, id);
    }
}

void sim_worker_told(struct sim_host *host, const struct shoal_host_order *order)
{
    static uint8_t bytes[MESSAGE_BYTES_MAX];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    struct sim_worker *worker = here(host, order->u.send.worker_id);
    struct sim_message *message;

    if (worker == NULL || !worker->connected)
        return; /* no connection: nothing arrives */
    if (shoal_worker_encode(order->u.send.message, &w) != SHOAL_OK) {
        sim_fail(host->sim, "%s: a message of kind %u to a worker cannot be encoded", host->name,
                 order->u.send.message->kind);
        return;
    }
    message = sim_alloc(sizeof(*message) + w.len);
    message->len = w.len;
    memcpy(message->bytes, bytes, w.len);
    if (worker->inbox_last == NULL)
        worker->inbox = message;
    else
        worker->inbox_last->next = message;
    worker->inbox_last = message;
    sim_push(host->sim, SIM_TO_WORKER, host->index, 100000)->word = worker->id;
}

/* ---- the runner ---- */

static void runner_timer(struct sim_host *host, const struct sim_worker *worker)
{
    uint64_t at_ns = sim_host_true(host, worker->frozen ? worker->kill_at_ns : worker->freeze_at_ns);

    if (worker->frozen ? worker->kill_at_ns == 0 : worker->freeze_at_ns == 0)
        return;
    sim_push(host->sim, SIM_RUNNER_TIMER, host->index, at_ns > host->sim->now_ns ? at_ns - host->sim->now_ns : 0)
        ->word = worker->id;
}

static void set_frozen(struct sim_host *host, struct sim_worker *worker, bool frozen, const char *by)
{
    if (worker->frozen == frozen)
        return;
    worker->frozen = frozen;
    sim_trace(host->sim, "%s: worker %llx is %s by the %s", host->name, (unsigned long long)worker->id,
              frozen ? "frozen" : "thawed", by);
    if (frozen)
        runner_timer(host, worker);
    else
        sim_check_alone(host, worker);
    if (!frozen)
        sim_push(host->sim, SIM_TO_WORKER, host->index, 0)->word = worker->id;
    if (!sim_worker_stands(worker) && worker->epoch != 0) {
        const struct sim_runner *runner = runner_of(host, worker->job, false);

        if (runner != NULL && runner->revoked >= worker->epoch)
            sim_close(host, worker);
    }
}

static void on_runner_timer(struct sim_host *host, struct sim_worker *worker)
{
    uint64_t now_ns = sim_host_now(host);

    if (worker->kill_at_ns != 0 && worker->kill_at_ns <= now_ns) {
        process_end(host, worker, 9, true);
        return;
    }
    if (worker->freeze_at_ns != 0 && worker->freeze_at_ns <= now_ns && !worker->frozen) {
        worker->freeze_at_ns = 0;
        set_frozen(host, worker, true, "runner");
    }
}

static void lease(struct sim_host *host, struct sim_worker *worker, uint64_t deadline_ns)
{
    if (worker->dying)
        return;
    worker->freeze_at_ns = deadline_ns - SHOAL_LEASE_FROZEN_BEFORE_NS;
    worker->kill_at_ns = deadline_ns + SHOAL_LEASE_KILLED_AFTER_NS;
    runner_timer(host, worker);
}

void sim_worker_kill(struct sim_host *host, struct sim_worker *worker, uint64_t grace_ns)
{
    uint64_t in_ns = grace_ns == 0                                           ? 3 * SHOAL_MS
                     : sim_worker_stands(worker) || grace_ns < 30 * SHOAL_MS ? grace_ns
                                                                             : 30 * SHOAL_MS;
    struct sim_event *event;

    if ((worker->dying && grace_ns > 0) || worker->dead)
        return;
    worker->dying = true;
    worker->freeze_at_ns = worker->kill_at_ns = 0;
    event = sim_push(host->sim, SIM_EXIT, host->index, in_ns);
    event->word = worker->id;
    event->from = grace_ns == 0 || sim_worker_stands(worker) ? 9 : 15;
}

static void kill_or_drain(struct sim_host *host, struct sim_worker *worker, uint64_t grace_ns)
{
    if (!sim_kernel_drain(host, worker, grace_ns))
        sim_worker_kill(host, worker, grace_ns);
}

void sim_worker_order(struct sim_host *host, const struct shoal_host_order *order)
{
    struct sim_worker *worker = here(host, order->u.worker.worker_id);

    if (worker == NULL)
        return;
    if (order->kind == SHOAL_HOST_DO_RENEW)
        lease(host, worker, order->u.worker.deadline_ns);
    else if (order->kind == SHOAL_HOST_DO_KILL)
        kill_or_drain(host, worker, order->u.worker.grace_ns);
    else
        set_frozen(host, worker, order->kind == SHOAL_HOST_DO_FREEZE, "agent");
}

/* How long the script's job has waited beside a free slot: since it was acknowledged, and since the slot among the free
 * ones that is free longest is. What placing takes while there is no other wait is in it. */
static void note_gap(struct sim_host *host, const struct sim_worker *worker)
{
    struct sim *sim = host->sim;
    uint64_t free_ns = UINT64_MAX;
    uint64_t since_ns = sim->jobs[worker->job].acknowledged_ns;

    for (uint32_t h = 0; h < sim->host_count; h++)
        for (uint32_t slot = 0; sim->hosts[h].agent && slot < sim->hosts[h].slots; slot++)
            if (sim->hosts[h].idle_ns[slot] != 0 && sim->hosts[h].idle_ns[slot] < free_ns)
                free_ns = sim->hosts[h].idle_ns[slot];
    host->idle_ns[worker->slot] = 0;
    if (free_ns == UINT64_MAX || since_ns == 0)
        return;
    since_ns = free_ns > since_ns ? free_ns : since_ns;
    sim_trace(sim, "job %u waited %llu us beside a free slot", worker->job + 1,
              (unsigned long long)((sim->now_ns - since_ns) / 1000));
    if (sim->now_ns - since_ns <= sim->gap_ns)
        return;
    sim->gap_ns = sim->now_ns - since_ns;
    sim->gap_job = worker->job;
}

void sim_worker_run(struct sim_host *host, const struct shoal_host_order *order)
{
    const struct shoal_placement *place = &order->u.run.placement;
    struct sim *sim = host->sim;
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_STARTED };
    uint32_t job = sim_job_find(sim, order->u.run.job);
    struct sim_runner *runner;
    struct sim_worker *worker;

    if (here(host, place->worker_id) != NULL)
        return; /* asked for again */
    if (job == UINT32_MAX) {
        sim_fail(sim, "%s runs a worker of a job that it has not opened", host->name);
        return;
    }
    if (place->worker_id > INT64_MAX)
        sim_fail(sim, "%s runs worker %llu, which readers of JSON refuse", host->name,
                 (unsigned long long)place->worker_id);
    worker = sim_alloc(sizeof(*worker));
    *worker = (struct sim_worker){ .id = place->worker_id,
                                   .job = job,
                                   .host = host->index,
                                   .slot = place->slot,
                                   .role = place->role,
                                   .generation = order->u.run.generation,
                                   .lease_generation = place->lease_generation,
                                   .attempt = place->attempt,
                                   .task = place->role == SHOAL_JOB_TASK ? place->rank : 0,
                                   .alive = true,
                                   .pid = (int32_t)(1000 + ++sim->runs) };
    memcpy(worker->token, place->token, sizeof(worker->token));
    worker->last_epoch = sim_alloc(sizeof(*worker->last_epoch));
    sim_trace(sim, "%s: runs worker %llx of job %u, role %u, slot %d", host->name, (unsigned long long)worker->id,
              job + 1, worker->role, (int)worker->slot);
    sim_check_run(host, worker);
    if (worker->role == SHOAL_JOB_SCRIPT)
        note_gap(host, worker);
    else if (worker->slot != UINT32_MAX)
        host->idle_ns[worker->slot] = 0;
    worker->next = host->workers;
    host->workers = worker;
    sim_map_put(&sim->workers, worker->id, host->index + 1);
    runner = runner_of(host, job, true);
    SHOAL_ASSERT(runner != NULL);
    runner->generation = worker->generation;
    lease(host, worker, order->u.run.deadline_ns);
    event.u.started.worker_id = worker->id;
    event.u.started.pid = worker->pid;
    sim_host_answer(host, &event, 3 * SHOAL_MS);
    if ((worker->role == SHOAL_JOB_SCRIPT || worker->role == SHOAL_JOB_TASK) && !sim->jobs[job].service)
        sim_work_later(host, worker, SIM_WORK_END, sim_about(&host->chance, sim->jobs[job].steps * 10 * SHOAL_MS));
    else
        sim_work_later(host, worker, SIM_WORK_HELLO, sim_about(&host->chance, 40 * SHOAL_MS));
}

void sim_revoke(struct sim_host *host, struct shoal_job_id id, uint64_t word)
{
    uint32_t job = sim_job_find(host->sim, id);
    struct sim_runner *runner = job == UINT32_MAX ? NULL : runner_of(host, job, false);

    if (runner == NULL)
        return;
    if (word > runner->revoked)
        runner->revoked = word;
    for (struct sim_worker *worker = host->workers; worker != NULL; worker = worker->next)
        if (worker->job == job && !sim_worker_stands(worker) && worker->epoch != 0 && worker->epoch <= runner->revoked)
            sim_close(host, worker);
}

/* The job of a script is known by its name. */
void sim_job_open(struct sim_host *host, struct shoal_job_id id, uint32_t generation, struct shoal_view bytes)
{
    struct shoal_job_spec spec;
    struct sim_runner *runner;
    unsigned number = 0;

    if (shoal_job_spec_decode(bytes, &spec) != SHOAL_OK || sscanf(spec.app_name, "sim %u", &number) != 1 ||
        number >= host->sim->job_count) {
        sim_fail(host->sim, "%s opens a job whose specification is not as submitted", host->name);
        return;
    }
    if (host->sim->jobs[number].known && !shoal_job_id_equal(host->sim->jobs[number].id, id)) {
        sim_fail(host->sim, "%s opens job %u under a second id", host->name, number + 1);
        return;
    }
    sim_job_known(host->sim, number, id);
    runner = runner_of(host, number, true);
    SHOAL_ASSERT(runner != NULL);
    runner->generation = generation;
}

void sim_job_closed(struct sim_host *host, struct shoal_job_id id)
{
    uint32_t job = sim_job_find(host->sim, id);
    struct sim_runner *runner = job == UINT32_MAX ? NULL : runner_of(host, job, false);

    if (runner != NULL)
        runner->used = false;
}

/* An agent that starts finds the runners; their workers connect again a little later. */
void sim_runners_found(struct sim_host *host)
{
    struct shoal_host_live live[SHOAL_SLOTS_MAX + 2];
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_RUNNER };
    uint64_t busy = 0;

    for (size_t i = 0; i < host->runner_count; i++) {
        const struct sim_runner *runner = &host->runners[i];
        size_t count = 0;

        for (struct sim_worker *worker = host->workers; runner->used && worker != NULL; worker = worker->next) {
            if (worker->job != runner->job || count == SHOAL_SLOTS_MAX + 2)
                continue;
            live[count] = (struct shoal_host_live){
                .worker_id = worker->id,
                .slot = worker->slot,
                .pid = worker->pid,
                .role = worker->role,
                .frozen = worker->frozen,
                .lease_generation = worker->lease_generation,
                .deadline_ns = worker->kill_at_ns == 0 ? 0 : worker->kill_at_ns - SHOAL_LEASE_KILLED_AFTER_NS
            };
            memcpy(live[count++].token, worker->token, sizeof(worker->token));
            sim_work_later(host, worker, SIM_WORK_HELLO, 20 * SHOAL_MS + sim_about(&host->chance, 100 * SHOAL_MS));
        }
        if (!runner->used)
            continue;
        event.u.runner.job = host->sim->jobs[runner->job].id;
        event.u.runner.generation = runner->generation;
        event.u.runner.workers = live;
        event.u.runner.worker_count = count;
        sim_trace(host->sim, "%s: the runner of job %u has %u workers", host->name, runner->job + 1, (unsigned)count);
        sim_host_step(host, &event);
    }
    for (const struct sim_worker *worker = host->workers; worker != NULL; worker = worker->next)
        busy |= worker->slot == UINT32_MAX ? 0 : 1ull << worker->slot; /* it holds the lock, whoever knows of it */
    host->runners_found = true;
    sim_host_step(host, &(struct shoal_host_event){ .kind = SHOAL_HOST_ON_REATTACHED });
    for (uint32_t slot = 0; slot < host->slots; slot++) /* whose locks are free */
        if ((busy >> slot & 1) == 0)
            sim_push(host->sim, SIM_SLOT_IDLE, host->index, 5 * SHOAL_MS)->word = slot;
}

/* ---- strikes ---- */

static void say_worker(struct sim_host *host, const struct sim_worker *worker, enum shoal_host_event_kind kind,
                       uint64_t delay_ns)
{
    struct shoal_host_event event = { .kind = kind };

    event.u.worker.worker_id = worker->id;
    if (host->agent)
        sim_host_answer(host, &event, delay_ns);
}

static void watch_later(struct sim_host *host, const struct sim_worker *worker)
{
    sim_push(host->sim, SIM_WATCH, host->index, WATCH_NS)->word = worker->id;
}

/* W4. Time in which the agent is away, or the runner has frozen the process, does not count. */
static void on_watch(struct sim_host *host, struct sim_worker *worker)
{
    if (!worker->stopped || worker->dead)
        return;
    if (!host->agent || worker->frozen || worker->still_life != host->life)
        worker->still = 0;
    worker->still_life = host->life;
    if (host->agent && !worker->frozen && ++worker->still > WATCH_LOOKS) {
        worker->still = 0;
        say_worker(host, worker, SHOAL_HOST_ON_STUCK, SHOAL_MS);
    }
    watch_later(host, worker);
}

static bool may_strike(const struct sim *sim, const struct sim_worker *worker)
{
    return (worker->role == SHOAL_JOB_ENGINE || sim->jobs[worker->job].service) && !worker->dead && !worker->stopped;
}

void sim_worker_strike(struct sim_host *host, bool stop)
{
    struct sim *sim = host->sim;
    struct sim_worker *struck = NULL;
    uint64_t seen = 0;
    struct sim_event *event;

    for (struct sim_worker *worker = host->workers; worker != NULL; worker = worker->next)
        if (may_strike(sim, worker) && shoal_rand_below(&sim->command_chance, ++seen) == 0)
            struck = worker;
    if (struck == NULL)
        return;
    sim->strikes++;
    sim->struck = host->index;
    sim_trace(sim, "%s: worker %llx is %s", host->name, (unsigned long long)struck->id, stop ? "stopped" : "killed");
    if (stop) {
        struck->stopped = true;
        struck->still_life = host->life;
        watch_later(host, struck);
        return;
    }
    struck->dead = true;
    say_worker(host, struck, SHOAL_HOST_ON_DYING, sim_about(&sim->command_chance, SHOAL_MS));
    event = sim_push(sim, SIM_EXIT, host->index, 2 * SHOAL_MS + sim_about(&sim->command_chance, TEARDOWN_NS));
    event->word = struck->id;
    event->from = 9;
}

/* ---- events ---- */

static void to_agent(struct sim_host *host, const struct sim_event *from)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_MESSAGE };

    if (here(host, from->word) == NULL)
        return; /* it has ended */
    if (shoal_worker_decode(from->bytes, host->sim->message) != SHOAL_OK) {
        sim_fail(host->sim, "%s cannot read what a worker says", host->name);
        return;
    }
    event.u.worker.worker_id = from->word;
    event.u.worker.message = host->sim->message;
    sim_host_step(host, &event);
}

static void slot_idle(struct sim_host *host, uint32_t slot)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_SLOT_IDLE };

    for (const struct sim_worker *worker = host->workers; worker != NULL; worker = worker->next)
        if (worker->slot == slot)
            return;
    if (host->idle_ns[slot] == 0)
        host->idle_ns[slot] = host->sim->now_ns;
    event.u.idle.slot = slot;
    sim_trace(host->sim, "%s: slot %u is idle", host->name, slot);
    sim_host_step(host, &event);
}

void sim_worker_event(struct sim_host *host, const struct sim_event *event)
{
    struct sim_worker *worker = event->kind == SIM_SLOT_IDLE ? NULL : here(host, event->word);

    if (event->kind == SIM_SLOT_IDLE) {
        slot_idle(host, (uint32_t)event->word);
        return;
    }
    if (event->kind == SIM_TO_AGENT) {
        to_agent(host, event);
        return;
    }
    if (worker == NULL)
        return;
    if (event->kind == SIM_EXIT) {
        process_end(host, worker, (int32_t)event->from, true);
    } else if (event->kind == SIM_RUNNER_TIMER) {
        on_runner_timer(host, worker);
    } else if (event->kind == SIM_TO_WORKER) {
        inbox_read(host, worker->id);
    } else if (event->kind == SIM_WATCH) {
        on_watch(host, worker);
    } else if (worker->dead) {
        return;
    } else if (sim_worker_stands(worker)) {
        sim_work_later(host, worker, (enum sim_work)event->from, FROZEN_AGAIN_NS);
    } else {
        if (event->from == SIM_WORK_HELLO && (!host->agent || worker->connected))
            return;
        if (event->from == SIM_WORK_HELLO && !host->runners_found) {
            sim_work_later(host, worker, SIM_WORK_HELLO, 50 * SHOAL_MS);
            return;
        }
        if (event->from == SIM_WORK_HELLO && sim_kernel_connected(host, worker))
            return;
        work(host, worker, (enum sim_work)event->from);
    }
}
