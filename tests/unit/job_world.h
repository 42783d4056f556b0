/* A small world for the tests of the job's controller: one log, one lead, a few hosts with the production slots core,
 * and workers that behave as shoal/worker.h says. Virtual time, seeded chance; messages may be late, repeated or lost.
 *
 * It checks in true time, after every event: no slot has two live workers, a step is completed in one epoch only and by
 * all its members, every member begins step D + 1 from the state after D, the ranges of an epoch cover 0..V-1 once. */
#ifndef SHOAL_JOB_WORLD_H
#define SHOAL_JOB_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "shoal/lead.h"
#include "shoal/rand.h"
#include "shoal/slots.h"
#include "shoal/step_record.h"
#include "shoal/job_entry.h"

#define W_HOSTS 3
#define W_SLOTS 4
#define W_STEPS_MAX 3000
#define W_WORKERS 1024
#define W_QUEUE 8192
#define W_V 6
#define W_TASKS 2000
#define W_UNSTARTED "cannot fork: no process"
#define W_UNFIT "the driver has python 3.11, this host has 3.12"

enum w_kind {
    W_MESSAGE,
    W_APPLY,
    W_STARTED,
    W_HELLO,
    W_READY,
    W_CLOSED,
    W_EXIT,
    W_IDLE,
    W_BLOB,
    W_MANIFEST,
    W_FILES,
    W_TRAIN,
    W_STEP,
    W_HEALTH,
    W_TOLD
};

struct w_event {
    uint64_t at_ns;
    uint64_t order;
    enum w_kind kind;
    uint32_t host; /* receiver, or where it happens */
    uint32_t from;
    uint32_t life; /* of the host */
    uint32_t term; /* W_APPLY */
    uint64_t worker_id;
    uint64_t word;
    uint32_t call;
    int32_t status;
    bool signalled;
    struct shoal_hash hash;
    size_t len;
    uint8_t *bytes;
};

struct w_worker {
    bool raised; /* a driver whose train() raised */
    char told[SHOAL_HOST_TEXT_BYTES]; /* why */
    bool used, alive, frozen, connected;
    uint64_t id;
    uint32_t host, slot;
    uint8_t role;
    uint8_t token[16];
    uint64_t lease_generation;
    uint32_t task;  /* index */
    bool again;     /* it connects anew: what holds is said again after HELLO */
    uint32_t call;  /* loaded */
    uint64_t epoch; /* word of the epoch it is in; 0: none */
    bool closed;
    bool entered;
    uint64_t applied, complete;
    bool has_state; /* it carries the state after `applied` */
    bool done;
    uint32_t wants_call;                 /* driver */
    uint64_t deaf;                       /* members whose data connections with it do not come up: bit by rank */
    uint64_t silent, silent_ns, unheard; /* members that it cannot hear: now, since when, as said */
    struct shoal_worker_epoch *record;
};

struct w_host {
    uint8_t guardian_count; /* as it was told last */
    bool up, agent_up, cut;
    bool draining;
    bool no_slots; /* by its own word: it serves no framework */
    uint32_t life, host_epoch;
    struct shoal_slots *slots;
    uint64_t revoked;
    uint64_t well_ns; /* since when the lead knows that it is well */
};

struct world {
    uint64_t now_ns;
    struct shoal_rand rand;
    uint64_t seed;
    struct shoal_job *job;
    struct shoal_job_entry scratch;
    uint64_t index;
    struct shoal_lead *lead;
    uint32_t lead_host; /* index */
    uint32_t term;
    bool lead_supported;
    struct shoal_lead_actions *lead_actions;
    struct shoal_slots_actions *slots_actions;
    struct w_host hosts[W_HOSTS];
    struct w_worker workers[W_WORKERS];
    uint32_t worker_count;
    struct w_event queue[W_QUEUE];
    uint32_t queued;
    uint64_t order;
    /* The job's script. */
    bool elastic;
    uint32_t calls;        /* train() calls of the driver */
    bool stamps_of_placed; /* as of an agent, which has none of a host that holds no placement */
    uint64_t steps;        /* of each call */
    uint32_t engines_max;  /* that each call is given; 0: none */
    int32_t driver_status, script_status;
    int words_max; /* of what train() raised, bytes that the driver's last line has */
    uint64_t script_ns;
    bool scripts_hang;
    bool steps_stop;     /* workers do everything but compute */
    uint32_t fails_call; /* the call whose engines report a failure of the user's code, 0: none */
    bool catches;        /* the script goes on after it */
    uint64_t step_ns;
    uint32_t target; /* slots that the allocation yields, taken from the hosts in order */
    bool target_set;
    uint64_t slot_banned; /* bit host * 8 + slot: not in the target */
    uint64_t other_class; /* bit host: its engines are of another numeric class */
    uint64_t unfit;       /* bit host: its engines cannot load what the driver has made */
    uint64_t starts_none; /* bit host: it has no process for a worker */
    uint32_t unstarted;   /* starts that failed so */
    /* The things that may go wrong. */
    uint32_t lose_pct, repeat_pct;
    uint64_t delay_ns;  /* up to */
    uint64_t commit_ns; /* of an entry; 0: 2 ms */
    /* True history. */
    uint64_t step_epoch[4][W_STEPS_MAX + 2]; /* by call and step: word of the epoch in which it was completed */
    uint64_t steps_done[4];
    uint64_t redone;
    uint64_t epoch_before; /* word of the epoch before the newest */
    uint32_t summaries, deletes;
    uint32_t runs, frames;
    uint32_t task_runs[W_TASKS];
    uint32_t task_that_fails; /* with script_status */
    bool trace;
};

static inline struct shoal_node_id w_node(uint32_t host) { return (struct shoal_node_id){ { (uint8_t)(host + 1) } }; }

static inline uint32_t w_host_of(struct shoal_node_id node) { return (uint32_t)node.bytes[0] - 1; }

#define W_FAIL(w, ...)                                                                                                 \
    do {                                                                                                               \
        print_error("[%llu ms, seed %llu] ", (unsigned long long)((w)->now_ns / SHOAL_MS),                             \
                    (unsigned long long)(w)->seed);                                                                    \
        print_error(__VA_ARGS__);                                                                                      \
        print_error("\n");                                                                                             \
        fail();                                                                                                        \
    } while (0)

#define W_TRACE(w, ...)                                                                                                \
    do {                                                                                                               \
        if ((w)->trace) {                                                                                              \
            print_message("[%6llu.%03llu] ", (unsigned long long)((w)->now_ns / SHOAL_MS),                             \
                          (unsigned long long)((w)->now_ns / 1000 % 1000));                                            \
            print_message(__VA_ARGS__);                                                                                \
            print_message("\n");                                                                                       \
        }                                                                                                              \
    } while (0)

static inline struct w_event *w_push(struct world *w, enum w_kind kind, uint32_t host, uint64_t in_ns)
{
    struct w_event *e;

    if (w->queued == W_QUEUE)
        W_FAIL(w, "the queue of the world is full");
    e = &w->queue[w->queued++];
    *e = (struct w_event){ .at_ns = w->now_ns + in_ns, .order = w->order++, .kind = kind, .host = host };
    e->life = w->hosts[host].life;
    return e;
}

static inline struct w_worker *w_worker(struct world *w, uint64_t id)
{
    for (uint32_t i = 0; i < w->worker_count; i++)
        if (w->workers[i].id == id)
            return &w->workers[i];
    return NULL;
}

static inline void w_slots(struct world *w, uint32_t host, const struct shoal_slots_event *event);

static inline void w_shell(struct world *w, uint32_t host, const struct shoal_host_event *event)
{
    w_slots(w, host, &(struct shoal_slots_event){ .kind = SHOAL_SLOTS_HOST, .u.host = *event });
}

static inline void w_lead(struct world *w, const struct shoal_lead_event *event);

/* ---- Messages ---- */

static inline void w_send(struct world *w, uint32_t from, struct shoal_node_id to, struct shoal_view bytes)
{
    uint32_t copies = 1, host = w_host_of(to);

    if (host >= W_HOSTS)
        return;
    w->frames++;
    if (from != host) {
        copies = shoal_rand_below(&w->rand, 100) < w->lose_pct     ? 0
                 : shoal_rand_below(&w->rand, 100) < w->repeat_pct ? 2
                                                                   : 1;
        if (w->hosts[from].cut || w->hosts[host].cut)
            copies = 0;
    }
    for (uint32_t i = 0; i < copies; i++) {
        struct w_event *e =
            w_push(w, W_MESSAGE, host, SHOAL_MS / 2 + (w->delay_ns > 0 ? shoal_rand_below(&w->rand, w->delay_ns) : 0));

        e->from = from;
        e->len = bytes.len;
        e->bytes = malloc(bytes.len);
        memcpy(e->bytes, bytes.bytes, bytes.len);
    }
}

/* ---- Workers ---- */

static inline void w_exit(struct world *w, struct w_worker *worker, int32_t status, bool signalled)
{
    struct w_event *e;

    if (!worker->alive)
        return;
    W_TRACE(w, "host %u: worker %llx exits %d%s", worker->host, (unsigned long long)worker->id & 0xff, status,
            signalled ? " (signal)" : "");
    worker->alive = false;
    e = w_push(w, W_EXIT, worker->host, SHOAL_MS);
    e->worker_id = worker->id;
    e->status = status;
    e->signalled = signalled;
    if (worker->slot != SHOAL_SLOT_NONE) {
        e = w_push(w, W_IDLE, worker->host, 2 * SHOAL_MS);
        e->word = worker->slot;
    }
}

/* A task runs alone: another process of it may live on only where it is frozen, out of its leader's reach. */
static inline void w_task(struct world *w, struct w_worker *worker, uint32_t index)
{
    for (uint32_t i = 0; i < w->worker_count; i++)
        if (w->workers[i].alive && &w->workers[i] != worker && w->workers[i].role == SHOAL_JOB_TASK &&
            w->workers[i].task == index && !w->workers[i].frozen)
            W_FAIL(w, "task %u runs twice at one time", index);
    worker->task = index;
    SHOAL_ASSERT(index < W_TASKS);
    w->task_runs[index]++;
}

static inline void w_run(struct world *w, uint32_t host, const struct shoal_host_order *order)
{
    const struct shoal_placement *p = &order->u.run.placement;
    struct w_worker *worker;
    bool silent = p->role == SHOAL_JOB_SCRIPT || p->role == SHOAL_JOB_TASK; /* it says nothing, and ends by itself */
    struct w_event *e;

    for (uint32_t i = 0; i < w->worker_count; i++)
        if (w->workers[i].alive && w->workers[i].host == host && w->workers[i].slot == p->slot &&
            p->slot != SHOAL_SLOT_NONE)
            W_FAIL(w, "host %u slot %u has two live workers", host, p->slot);
    if (w_worker(w, p->worker_id) != NULL)
        W_FAIL(w, "worker %llx runs twice", (unsigned long long)p->worker_id);
    if (p->role == SHOAL_JOB_DRIVER)
        for (uint32_t i = 0; i < w->worker_count; i++)
            if (w->workers[i].alive && w->workers[i].role == SHOAL_JOB_DRIVER && !w->workers[i].frozen)
                W_FAIL(w, "two drivers live");
    if (p->role == SHOAL_JOB_SCRIPT)
        for (uint32_t i = 0; i < w->worker_count; i++)
            if (w->workers[i].alive && w->workers[i].role == SHOAL_JOB_SCRIPT && w->workers[i].call != p->attempt)
                W_FAIL(w, "two attempts live");
    if (w->worker_count == W_WORKERS)
        W_FAIL(w, "too many workers were started");
    worker = &w->workers[w->worker_count++];
    *worker = (struct w_worker){
        .used = true, .alive = true, .id = p->worker_id, .host = host, .slot = p->slot, .role = p->role
    };
    memcpy(worker->token, p->token, 16);
    worker->lease_generation = p->lease_generation;
    worker->record = calloc(1, sizeof(*worker->record));
    worker->call = p->role == SHOAL_JOB_SCRIPT ? p->attempt : 0;
    w->runs++;
    W_TRACE(w, "host %u: runs worker %llx role %u slot %d", host, (unsigned long long)p->worker_id & 0xff, p->role,
            (int)p->slot);
    if (w->starts_none >> host & 1) {
        w->unstarted++;
        w_exit(w, worker, SHOAL_STATUS_UNSTARTED, false);
        return;
    }
    e = w_push(w, W_STARTED, host, 3 * SHOAL_MS);
    e->worker_id = worker->id;
    if (p->role == SHOAL_JOB_TASK)
        w_task(w, worker, p->rank);
    if (!silent) {
        e = w_push(w, W_HELLO, host, 10 * SHOAL_MS + shoal_rand_below(&w->rand, 20 * SHOAL_MS));
        e->worker_id = worker->id;
    } else if (!w->scripts_hang) {
        e = w_push(w, W_EXIT, host, w->script_ns);
        e->worker_id = worker->id;
        e->word = 1; /* by itself */
    }
}

static inline void w_say(struct world *w, const struct w_worker *worker, const struct shoal_worker_message *message)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_MESSAGE };

    if (!w->hosts[worker->host].agent_up || !worker->connected)
        return; /* says it again after it has connected */
    event.u.worker.worker_id = worker->id;
    event.u.worker.message = message;
    w_shell(w, worker->host, &event);
}

static inline void w_hello(struct world *w, struct w_worker *worker)
{
    static struct shoal_worker_message m;

    memset(&m.hello, 0, sizeof(m.hello));
    m.kind = SHOAL_WORKER_HELLO;
    m.hello.job = w->job->id;
    m.hello.generation = w->job->generation;
    m.hello.role = worker->role == SHOAL_JOB_DRIVER ? SHOAL_ROLE_DRIVER : SHOAL_ROLE_ENGINE;
    m.hello.worker_id = worker->id;
    m.hello.slot = worker->slot;
    memcpy(m.hello.token, worker->token, 16);
    (void)snprintf(m.hello.numeric_class, sizeof(m.hello.numeric_class), "%s",
                   w->other_class >> worker->host & 1 ? "arm test" : "x86 test");
    m.hello.call = worker->call;
    m.hello.epoch = shoal_epoch_of_word(worker->epoch);
    m.hello.closed = worker->closed;
    m.hello.applied_step = worker->applied;
    m.hello.complete_step = worker->complete;
    worker->connected = true;
    worker->unheard = 0; /* said again if it still holds */
    w_say(w, worker, &m);
}

static inline void w_ready(struct world *w, struct w_worker *worker)
{
    static struct shoal_worker_message m;

    memset(&m.ready, 0, sizeof(m.ready));
    m.kind = SHOAL_WORKER_READY;
    m.ready.call = worker->call;
    m.ready.virtual_workers = W_V;
    m.ready.sum_elems = 1000;
    m.ready.samples = 6000;
    m.ready.minibatch = 10;
    m.ready.data_epochs = 1;
    m.ready.steps_per_epoch = w->steps;
    m.ready.metric_count = 1;
    memcpy(m.ready.metric_names[0], "loss", 5);
    m.ready.address = shoal_view_of(&worker->id, 8);
    w_say(w, worker, &m);
}

static inline void w_train(struct world *w, struct w_worker *worker)
{
    static struct shoal_worker_message m;
    uint8_t hash[32] = { 7, (uint8_t)worker->wants_call };

    memset(&m.train, 0, sizeof(m.train));
    m.kind = SHOAL_WORKER_TRAIN;
    m.train.call = worker->wants_call;
    m.train.job_seed = 42;
    m.train.engines_max = w->engines_max;
    memcpy(m.train.bundle_path, "blob:", 5);
    shoal_hex_text(hash, 32, m.train.bundle_path + 5);
    (void)snprintf(m.train.signature, sizeof(m.train.signature), "net of call %u", worker->wants_call);
    w_say(w, worker, &m);
}

static inline void w_close(struct world *w, struct w_worker *worker)
{
    struct w_event *e;

    if (worker->closed || worker->epoch == 0)
        return;
    worker->closed = true;
    worker->entered = false;
    e = w_push(w, W_CLOSED, worker->host, SHOAL_MS + shoal_rand_below(&w->rand, 5 * SHOAL_MS));
    e->worker_id = worker->id;
    e->word = worker->epoch;
}

/* I3: what the epoch record promises must be true of this worker. */
static inline void w_enter(struct world *w, struct w_worker *worker, const struct shoal_worker_epoch *epoch)
{
    uint64_t word = shoal_epoch_word(epoch->epoch);
    uint64_t steps = epoch->decided_step;
    uint32_t covered = 0;
    const struct shoal_rank_member *me = NULL;

    if (word <= worker->epoch)
        return;
    for (uint32_t i = 0; i < epoch->member_count; i++) {
        if (epoch->members[i].v_begin != covered || epoch->members[i].v_end < covered)
            W_FAIL(w, "epoch %u: ranges do not join at member %u", epoch->epoch.e, i);
        covered = epoch->members[i].v_end;
        if (epoch->members[i].worker_id == worker->id)
            me = &epoch->members[i];
    }
    if (covered != W_V)
        W_FAIL(w, "epoch %u covers %u of %u", epoch->epoch.e, covered, (unsigned)W_V);
    if (me == NULL) {
        w_close(w, worker);
        return;
    }
    if (worker->epoch != 0 && !worker->closed)
        w_close(w, worker);
    if (me->has_state && epoch->snapshot_path[0] == '\0' && steps > 0 && worker->applied + 1 < steps)
        W_FAIL(w, "epoch %u: worker %llx applied %llu, the record says that it has the state of %llu", epoch->epoch.e,
               (unsigned long long)worker->id & 0xff, (unsigned long long)worker->applied, (unsigned long long)steps);
    if (worker->applied > steps && epoch->snapshot_path[0] == '\0')
        W_FAIL(w, "epoch %u decides step %llu, worker %llx has applied %llu", epoch->epoch.e, (unsigned long long)steps,
               (unsigned long long)worker->id & 0xff, (unsigned long long)worker->applied);
    worker->epoch = word;
    worker->closed = false;
    worker->entered = true;
    worker->silent = worker->unheard = 0;
    memcpy(worker->record, epoch, sizeof(*epoch));
    if (w->hosts[worker->host].revoked >= word)
        w_close(w, worker);
}

static inline void w_told(struct world *w, uint32_t host, uint64_t worker_id, const struct shoal_worker_message *m)
{
    struct w_worker *worker = w_worker(w, worker_id);
    struct w_event *e;

    if (worker == NULL || !worker->alive)
        return;
    if (!worker->connected)
        return;           /* lost: after its HELLO it hears all again */
    if (worker->frozen) { /* it waits in the socket */
        size_t bytes = m->kind == SHOAL_WORKER_EPOCH
                           ? sizeof(*m)
                           : offsetof(struct shoal_worker_message, hello) +
                                 (m->kind == SHOAL_WORKER_TRAIN_STATE ? sizeof(m->train_state)
                                  : m->kind == SHOAL_WORKER_CALL      ? sizeof(m->call)
                                  : m->kind == SHOAL_WORKER_STOP || m->kind == SHOAL_WORKER_RELEASE ? sizeof(m->stop)
                                                                                                    : sizeof(m->acked));

        e = w_push(w, W_TOLD, host, 20 * SHOAL_MS);
        e->worker_id = worker_id;
        e->len = bytes;
        e->bytes = malloc(sizeof(*m));
        memcpy(e->bytes, m, bytes);
        return;
    }
    switch ((enum shoal_worker_kind)m->kind) {
    case SHOAL_WORKER_CALL:
        if (strncmp(m->call.bundle_path, "blob:", 5) != 0)
            W_FAIL(w, "a call without its bundle");
        if (m->call.call <= worker->call)
            return;
        worker->call = m->call.call;
        e = w_push(w, W_READY, host, 20 * SHOAL_MS + shoal_rand_below(&w->rand, 30 * SHOAL_MS));
        e->worker_id = worker_id;
        return;
    case SHOAL_WORKER_EPOCH: w_enter(w, worker, &m->epoch); return;
    case SHOAL_WORKER_WRITE_FINAL:
        if (!worker->done)
            W_FAIL(w, "WRITE_FINAL to a worker that is not done");
        e = w_push(w, W_FILES, host, 5 * SHOAL_MS);
        e->worker_id = worker_id;
        e->call = m->acked.call;
        return;
    case SHOAL_WORKER_RELEASE:
    case SHOAL_WORKER_STOP: w_exit(w, worker, 0, false); return;
    case SHOAL_WORKER_TRAIN_STATE:
        if (m->train_state.state < SHOAL_TRAIN_FINISHED || m->train_state.call != worker->wants_call)
            return;
        if (m->train_state.state == SHOAL_TRAIN_FINISHED && strncmp(m->train_state.files_path, "blob:", 5) != 0)
            W_FAIL(w, "a finished call without files");
        worker->raised = m->train_state.state == SHOAL_TRAIN_FAILED && !w->catches;
        (void)snprintf(worker->told, sizeof(worker->told), "%.400s", m->train_state.text);
        worker->wants_call++;
        e = w_push(w, worker->raised || worker->wants_call > w->calls ? W_EXIT : W_TRAIN, host, 5 * SHOAL_MS);
        e->worker_id = worker_id;
        e->word = 1;
        e->status = w->driver_status;
        return;
    case SHOAL_WORKER_RECORDS_ACKED: return;
    case SHOAL_WORKER_HELLO:
    case SHOAL_WORKER_READY:
    case SHOAL_WORKER_CLOSED:
    case SHOAL_WORKER_RECORDS:
    case SHOAL_WORKER_DONE:
    case SHOAL_WORKER_FILES:
    case SHOAL_WORKER_FAILED:
    case SHOAL_WORKER_SNAPSHOT:
    case SHOAL_WORKER_TRAIN:
    case SHOAL_WORKER_TRAIN_RECORDS:
    case SHOAL_WORKER_TRAIN_ACKED:
    case SHOAL_WORKER_UNHEARD:
    case SHOAL_WORKER_KIND_COUNT: W_FAIL(w, "the agent said %u to a worker", m->kind);
    }
}

/* ---- Steps of training ---- */

static inline void w_records(struct world *w, struct w_worker *worker, uint64_t step)
{
    static struct shoal_worker_message m;
    static uint8_t bytes[256];
    struct shoal_writer out = shoal_writer_init(bytes, sizeof(bytes));
    struct shoal_step_head head = { .step = step,
                                    .kind = SHOAL_STEP_TRAIN,
                                    .call = worker->call,
                                    .v_count = 1,
                                    .e = (uint32_t)(worker->epoch >> 32),
                                    .value_count = 1,
                                    .data_epoch = (uint32_t)(step / 10) };
    struct shoal_step_tuple tuple = { .samples = 10, .worker_id = worker->id, .values = { 0.5 } };

    shoal_put_step_head(&out, &head);
    shoal_put_step_tuple(&out, &tuple, 1);
    m.kind = SHOAL_WORKER_RECORDS;
    m.records = (struct shoal_worker_records){
        .call = worker->call, .first_step = step, .count = 1, .records = shoal_writer_view(&out)
    };
    w_say(w, worker, &m);
}

static inline void w_done(struct world *w, struct w_worker *worker)
{
    static struct shoal_worker_message m;

    worker->done = true;
    m.kind = SHOAL_WORKER_DONE;
    m.done = (struct shoal_worker_done){ .call = worker->call, .final_step = w->steps, .state_digest = 0xd16e57 };
    w_say(w, worker, &m);
}

/* The members of an epoch do one thing at a time: enter with D, complete a step (one after the other), apply it. */
static inline void w_advance(struct world *w, struct w_worker *lead_worker)
{
    const struct shoal_worker_epoch *epoch = lead_worker->record;
    struct w_worker *members[SHOAL_RANKS_MAX];
    uint64_t step = UINT64_MAX;
    bool holder_here = epoch->holder == 0;
    uint32_t laggard;

    for (uint32_t i = 0; i < epoch->member_count; i++) {
        members[i] = w_worker(w, epoch->members[i].worker_id);
        if (members[i] == NULL || !members[i]->alive || members[i]->frozen || !members[i]->entered ||
            members[i]->epoch != lead_worker->epoch || w->hosts[members[i]->host].cut)
            return;
        holder_here = holder_here || (members[i]->id == epoch->holder && (members[i]->complete >= epoch->decided_step ||
                                                                          members[i]->applied >= epoch->decided_step));
    }
    for (uint32_t i = 0; i < epoch->member_count; i++) { /* I3 */
        if (members[i]->applied >= epoch->decided_step)
            continue;
        if (!holder_here)
            W_FAIL(w, "epoch %u: the holder does not have step %llu", epoch->epoch.e,
                   (unsigned long long)epoch->decided_step);
        if (!epoch->members[i].has_state && epoch->donor == 0)
            W_FAIL(w, "epoch %u: a joiner and no donor", epoch->epoch.e);
        members[i]->applied = epoch->decided_step;
        members[i]->complete = epoch->decided_step;
        if (epoch->decided_step > w->steps_done[epoch->call] + 1 && epoch->snapshot_path[0] == '\0')
            W_FAIL(w, "epoch %u decides step %llu, but %llu was the last", epoch->epoch.e,
                   (unsigned long long)epoch->decided_step, (unsigned long long)w->steps_done[epoch->call]);
        if (epoch->decided_step > w->steps_done[epoch->call])
            w->steps_done[epoch->call] = epoch->decided_step;
        return;
    }
    for (uint32_t i = 0; i < epoch->member_count; i++)
        if (members[i]->applied < step)
            step = members[i]->applied;
    step++;
    SHOAL_ASSERT(w->steps <= W_STEPS_MAX);
    if (step > w->steps) {
        for (uint32_t i = 0; i < epoch->member_count; i++)
            if (!members[i]->done)
                w_done(w, members[i]);
        return;
    }
    laggard = (uint32_t)shoal_rand_below(&w->rand, epoch->member_count);
    for (uint32_t n = 0; n < epoch->member_count; n++) {
        uint32_t i = (laggard + n) % epoch->member_count;

        if (members[i]->complete < step) {
            uint64_t *in = &w->step_epoch[epoch->call][step];

            members[i]->complete = step;
            if (*in != 0 && *in != lead_worker->epoch)
                w->redone++; /* completed by some, applied by none: allowed */
            *in = lead_worker->epoch;
            return;
        }
    }
    for (uint32_t i = 0; i < epoch->member_count; i++) {
        if (members[i]->applied >= step)
            continue;
        if (w->steps_done[epoch->call] + 1 < step)
            W_FAIL(w, "step %llu is applied, but %llu was the last", (unsigned long long)step,
                   (unsigned long long)w->steps_done[epoch->call]);
        members[i]->applied = step;
        if (step > w->steps_done[epoch->call])
            w->steps_done[epoch->call] = step;
        w_shell(w, members[i]->host,
                &(struct shoal_host_event){ .kind = SHOAL_HOST_ON_STEPPED,
                                            .u.stepped = { members[i]->id, members[i]->epoch, step } });
        if (i == 0)
            w_records(w, members[0], step);
        return;
    }
}

/* The beats between libraries of different hosts. */
static inline void w_listen(struct world *w, struct w_worker *worker)
{
    static struct shoal_worker_message m;
    uint64_t ranks = worker->deaf;

    for (uint32_t i = 0; i < worker->record->member_count; i++) {
        const struct w_worker *member = w_worker(w, worker->record->members[i].worker_id);

        if (member != NULL && member->host != worker->host &&
            (!member->alive || member->frozen || w->hosts[member->host].cut || w->hosts[worker->host].cut))
            ranks |= 1ull << i;
    }
    if (ranks != worker->silent) {
        worker->silent = ranks;
        worker->silent_ns = w->now_ns;
    }
    if (ranks == worker->unheard || (ranks != 0 && w->now_ns - worker->silent_ns < SHOAL_BEAT_UNHEARD_NS))
        return;
    worker->unheard = ranks;
    m.kind = SHOAL_WORKER_UNHEARD;
    m.unheard = (struct shoal_worker_unheard){ .epoch = shoal_epoch_of_word(worker->epoch), .ranks = { { ranks } } };
    w_say(w, worker, &m);
}

static inline void w_step_all(struct world *w)
{
    for (uint32_t i = 0; i < w->worker_count; i++)
        if (w->workers[i].alive && w->workers[i].role == SHOAL_JOB_ENGINE && w->workers[i].entered &&
            !w->workers[i].frozen)
            w_listen(w, &w->workers[i]);
    for (uint32_t i = 0; i < w->worker_count; i++) {
        struct w_worker *worker = &w->workers[i];

        if (!w->steps_stop && worker->alive && worker->role == SHOAL_JOB_ENGINE && worker->entered &&
            worker->record->members[0].worker_id == worker->id)
            w_advance(w, worker);
    }
    (void)w_push(w, W_STEP, 0, w->step_ns);
}

/* ---- Actions of the cores ---- */

static inline void w_order(struct world *w, uint32_t host, const struct shoal_host_order *order)
{
    struct w_worker *worker;
    struct w_event *e;

    switch (order->kind) {
    case SHOAL_HOST_DO_RUN: w_run(w, host, order); return;
    case SHOAL_HOST_DO_FREEZE:
    case SHOAL_HOST_DO_THAW:
        worker = w_worker(w, order->u.worker.worker_id);
        if (worker != NULL) {
            worker->frozen = order->kind == SHOAL_HOST_DO_FREEZE;
            W_TRACE(w, "host %u: worker %llx %s", host, (unsigned long long)worker->id & 0xff,
                    worker->frozen ? "frozen" : "thawed");
            if (!worker->frozen && worker->epoch != 0 && w->hosts[host].revoked >= worker->epoch)
                w_close(w, worker);
        }
        return;
    case SHOAL_HOST_DO_KILL:
        worker = w_worker(w, order->u.worker.worker_id);
        if (worker != NULL)
            w_exit(w, worker, order->u.worker.grace_ns > 0 ? 15 : 9, true);
        return;
    case SHOAL_HOST_DO_SEND: w_told(w, host, order->u.send.worker_id, order->u.send.message); return;
    case SHOAL_HOST_DO_REVOKE:
        if (order->u.revoke.epoch_word > w->hosts[host].revoked)
            w->hosts[host].revoked = order->u.revoke.epoch_word;
        for (uint32_t i = 0; i < w->worker_count; i++)
            if (w->workers[i].alive && !w->workers[i].frozen && w->workers[i].host == host &&
                w->workers[i].epoch <= w->hosts[host].revoked && w->workers[i].epoch != 0)
                w_close(w, &w->workers[i]);
        return;
    case SHOAL_HOST_DO_FETCH:
        e = w_push(w, W_BLOB, host, 3 * SHOAL_MS);
        e->hash = order->u.fetch.hash;
        return;
    case SHOAL_HOST_DO_GUARDIANS: w->hosts[host].guardian_count = order->u.fetch.source_count; return;
    case SHOAL_HOST_DO_MANIFEST:
        e = w_push(w, W_MANIFEST, host, 5 * SHOAL_MS);
        e->call = order->u.manifest.call;
        return;
    case SHOAL_HOST_DO_JOB_OPEN:
    case SHOAL_HOST_DO_JOB_CLOSED:
    case SHOAL_HOST_DO_RENEW: return;
    }
}

static inline void w_slots_action(struct world *w, uint32_t host, const struct shoal_slots_action *a)
{
    switch (a->kind) {
    case SHOAL_SLOTS_SEND: w_send(w, host, a->u.send.to, a->u.send.bytes); return;
    case SHOAL_SLOTS_PUBLISH:
        if (w->lead != NULL)
            w_push(w, W_HEALTH, host, 20 * SHOAL_MS)->word = a->u.publish.version;
        return;
    case SHOAL_SLOTS_ORDER: w_order(w, host, &a->u.order); return;
    }
}

static inline void w_slots(struct world *w, uint32_t host, const struct shoal_slots_event *event)
{
    struct shoal_slots_actions *actions;

    if (!w->hosts[host].up || !w->hosts[host].agent_up)
        return;
    actions = malloc(sizeof(*actions)); /* a worker answers within the call: steps must not share memory */
    assert_int_equal(shoal_slots_step(w->hosts[host].slots, event, w->now_ns, actions), SHOAL_OK);
    for (uint32_t i = 0; i < actions->count; i++)
        w_slots_action(w, host, &actions->list[i]);
    free(actions);
}

static inline bool w_is_among(struct shoal_node_id node, const struct shoal_node_id *nodes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (shoal_node_id_equal(nodes[i], node))
            return true;
    return false;
}

static inline void w_lead(struct world *w, const struct shoal_lead_event *event)
{
    struct shoal_lead_actions *actions = w->lead_actions;
    struct shoal_node_id works[W_HOSTS];
    size_t count;

    if (w->lead == NULL)
        return;
    count = shoal_lead_hosts(w->lead, works, W_HOSTS);
    for (uint32_t h = 0; h < W_HOSTS; h++)
        if (w->hosts[h].up && w->hosts[h].agent_up && (!w->stamps_of_placed || w_is_among(w_node(h), works, count)) &&
            (h == w->lead_host || (!w->hosts[h].cut && !w->hosts[w->lead_host].cut)))
            shoal_lead_stamp(w->lead, w_node(h), w->hosts[h].host_epoch, w->now_ns - SHOAL_MS);
    assert_int_equal(shoal_lead_step(w->lead, event, w->now_ns, actions), SHOAL_OK);
    for (uint32_t i = 0; i < actions->count; i++) {
        const struct shoal_lead_action *a = &actions->list[i];
        struct w_event *e;

        switch (a->kind) {
        case SHOAL_LEAD_SEND: w_send(w, w->lead_host, a->to, a->bytes); break;
        case SHOAL_LEAD_PROPOSE:
            e = w_push(w, W_APPLY, w->lead_host, w->commit_ns == 0 ? 2 * SHOAL_MS : w->commit_ns);
            e->term = w->term;
            e->len = a->bytes.len;
            e->bytes = malloc(a->bytes.len);
            memcpy(e->bytes, a->bytes.bytes, a->bytes.len);
            break;
        case SHOAL_LEAD_SUMMARY:
            w->summaries++;
            if (w->starts_none != 0) /* the allocation hears of hosts that are left out */
                (void)w_push(w, W_HEALTH, w->lead_host, SHOAL_MS);
            break;
        case SHOAL_LEAD_DEMAND:
            if (w->starts_none != 0)
                (void)w_push(w, W_HEALTH, w->lead_host, SHOAL_MS);
            break;
        case SHOAL_LEAD_DELETE: w->deletes++; break;
        }
    }
}

/* Only in tests of starts that fail: the others look at how a leader bears an allocation that does not know of it yet. */
static inline bool w_left_out(const struct world *w, uint32_t host)
{
    uint32_t count;
    const struct shoal_node_id *unfit = shoal_lead_unfit(w->lead, &count);

    return w->starts_none != 0 && w_is_among(w_node(host), unfit, count);
}

static inline void w_target(struct world *w)
{
    struct shoal_lead_slot slots[W_HOSTS * W_SLOTS];
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_TARGET };
    uint32_t count = 0;

    if (w->lead == NULL)
        return;
    /* The slots that it holds come first, as the allocation keeps places. */
    for (unsigned pass = 0; pass < 2; pass++) {
        for (uint32_t s = 0; s < W_SLOTS; s++) {
            for (uint32_t h = 0; h < W_HOSTS; h++) {
                bool held = false;

                for (uint32_t p = 0; p < w->job->placement_count; p++)
                    held = held || (w->job->placements[p].slot == s && w_host_of(w->job->placements[p].node) == h);
                if (held != (pass == 0) || !w->hosts[h].up || w->hosts[h].cut || w->hosts[h].draining ||
                    w->hosts[h].no_slots || w_left_out(w, h) || (w->slot_banned >> (h * 8 + s) & 1) || count >= w->target)
                    continue;
                slots[count++] = (struct shoal_lead_slot){ .node = w_node(h), .slot = s };
            }
        }
    }
    event.u.target.count = count;
    event.u.target.slots = slots;
    event.u.target.slot_count = count;
    event.u.target.why = count < w->target ? "all slots are taken" : "given";
    w_lead(w, &event);
}

static inline void w_health(struct world *w, uint32_t host, uint64_t version)
{
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_HOST };

    event.u.host.node = w_node(host);
    event.u.host.health = w->hosts[host].up && w->hosts[host].agent_up && (!w->hosts[host].cut || host == w->lead_host)
                              ? SHOAL_LEAD_HOST_WELL
                              : SHOAL_LEAD_HOST_SILENT;
    event.u.host.host_epoch = event.u.host.health == SHOAL_LEAD_HOST_WELL ? w->hosts[host].host_epoch : 0;
    event.u.host.slots_version = version;
    event.u.host.draining = w->hosts[host].draining;
    event.u.host.no_slots = w->hosts[host].no_slots;
    if (event.u.host.health != SHOAL_LEAD_HOST_WELL)
        w->hosts[host].well_ns = UINT64_MAX;
    else if (w->hosts[host].well_ns == UINT64_MAX)
        w->hosts[host].well_ns = w->now_ns;
    w_lead(w, &event);
}

static inline void w_new_lead(struct world *w, uint32_t host)
{
    struct shoal_lead_options options = { .job = w->job, .self = w_node(host), .term = ++w->term, .now_ns = w->now_ns };
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_GUARDIANS };
    struct shoal_node_id nodes[W_HOSTS];

    shoal_lead_destroy(w->lead);
    w->lead = NULL;
    w->lead_host = host;
    shoal_rand_init(&options.rand, w->seed + w->term);
    assert_int_equal(shoal_lead_create(&w->lead, &options), SHOAL_OK);
    W_TRACE(w, "host %u leads in term %u", host, w->term);
    for (uint32_t h = 0; h < W_HOSTS; h++)
        nodes[h] = w_node(h);
    event.u.guardians.nodes = nodes;
    event.u.guardians.count = W_HOSTS;
    w_lead(w, &event);
    for (uint32_t h = 0; h < W_HOSTS; h++)
        w_health(w, h, 0);
    w_target(w);
}

/* A fresh start goes back; it is right only when nobody at hand carries more. (Outcasts of older epochs are to be
 * killed.) */
static inline void w_see_epoch(struct world *w)
{
    const struct shoal_worker_epoch *epoch = w->job->epoch;

    if (epoch->epoch.k > 0 || epoch->holder != 0 || epoch->donor != 0 ||
        epoch->decided_step >= w->steps_done[epoch->call])
        return;
    for (uint32_t i = 0; i < w->worker_count; i++) {
        const struct w_worker *worker = &w->workers[i];

        if (worker->alive && !worker->frozen && !w->hosts[worker->host].cut &&
            w->now_ns >= w->hosts[worker->host].well_ns &&
            w->now_ns - w->hosts[worker->host].well_ns > 200 * SHOAL_MS && worker->epoch == w->epoch_before &&
            worker->role == SHOAL_JOB_ENGINE && worker->applied > epoch->decided_step)
            W_FAIL(w, "epoch %u begins from step %llu, but worker %llx carries %llu", epoch->epoch.e,
                   (unsigned long long)epoch->decided_step, (unsigned long long)worker->id & 0xff,
                   (unsigned long long)worker->applied);
    }
    w->steps_done[epoch->call] = epoch->decided_step;
}

static inline void w_commit(struct world *w, struct shoal_view bytes)
{
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_APPLIED, .wall_ms = 1000 + w->now_ns / SHOAL_MS };
    uint8_t state = w->job->state;

    if (w->job->epoch != NULL)
        w->epoch_before = shoal_epoch_word(w->job->epoch->epoch);
    event.u.changed = shoal_job_apply(w->job, ++w->index, bytes, &w->scratch);
    W_TRACE(w, "log %llu: kind %u changed %x%s%s", (unsigned long long)w->index, bytes.bytes[0], event.u.changed,
            w->job->state != state ? ", state " : "",
            w->job->state != state ? shoal_job_state_name((enum shoal_job_state)w->job->state) : "");
    if (w->trace && w->scratch.kind == SHOAL_JOB_ENTRY_EPOCH)
        W_TRACE(w, "  epoch %u: D %llu, %u members, holder %llx donor %llx %s", w->job->epoch->epoch.e,
                (unsigned long long)w->job->epoch->decided_step, w->job->epoch->member_count,
                (unsigned long long)w->job->epoch->holder & 0xff, (unsigned long long)w->job->epoch->donor & 0xff,
                w->job->epoch->snapshot_path);
    if (event.u.changed & SHOAL_JOB_CHANGED_EPOCH)
        w_see_epoch(w);
    w_lead(w, &event);
    w_target(w);
}

/* ---- Life ---- */

static inline void w_host_up(struct world *w, uint32_t host)
{
    struct shoal_slots_options options = {
        .self = w_node(host), .slots = W_SLOTS, .device = SHOAL_JOB_DEVICE_CPU, .jobs_max = 4
    };

    w->hosts[host].up = true;
    w->hosts[host].agent_up = true;
    w->hosts[host].life++;
    w->hosts[host].revoked = 0;
    options.host_epoch = ++w->hosts[host].host_epoch;
    options.start_ns = w->now_ns;
    assert_int_equal(shoal_slots_create(&w->hosts[host].slots, &options), SHOAL_OK);
    w_slots(w, host, &(struct shoal_slots_event){ .kind = SHOAL_SLOTS_TIMER });
}

/* The agent is killed and starts again at once, without its table: its runners know who lives, and their workers
 * connect again and say what holds. */
static inline void w_agent_anew(struct world *w, uint32_t host)
{
    struct shoal_slots_options options = { .self = w_node(host),
                                           .slots = W_SLOTS,
                                           .device = SHOAL_JOB_DEVICE_CPU,
                                           .jobs_max = 4,
                                           .host_epoch = w->hosts[host].host_epoch,
                                           .start_ns = w->now_ns };
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_RUNNER };
    struct shoal_host_live live[W_WORKERS];
    size_t count = 0;

    W_TRACE(w, "host %u: the agent starts anew", host);
    shoal_slots_destroy(w->hosts[host].slots);
    assert_int_equal(shoal_slots_create(&w->hosts[host].slots, &options), SHOAL_OK);
    for (uint32_t i = 0; i < w->worker_count; i++) {
        struct w_worker *worker = &w->workers[i];

        if (!worker->alive || worker->host != host)
            continue;
        live[count] = (struct shoal_host_live){ .worker_id = worker->id,
                                                .slot = worker->slot,
                                                .role = worker->role,
                                                .frozen = worker->frozen,
                                                .deadline_ns = w->now_ns + 10 * SHOAL_S,
                                                .lease_generation = worker->lease_generation };
        memcpy(live[count++].token, worker->token, 16);
        worker->connected = false;
    }
    event.u.runner.job = w->job->id;
    event.u.runner.generation = w->job->generation;
    event.u.runner.workers = live;
    event.u.runner.worker_count = count;
    w_shell(w, host, &event);
    for (size_t i = 0; i < count; i++) {
        struct w_worker *worker = w_worker(w, live[i].worker_id);

        if (worker->role == SHOAL_JOB_SCRIPT || worker->role == SHOAL_JOB_TASK)
            continue;
        w_push(w, W_HELLO, host, SHOAL_MS + shoal_rand_below(&w->rand, 100 * SHOAL_MS))->worker_id = worker->id;
        worker->again = true;
    }
    (void)w_push(w, W_HEALTH, host, SHOAL_MS);
}

/* The host dies: with it agent, workers and all that is under way there. */
static inline void w_host_down(struct world *w, uint32_t host)
{
    W_TRACE(w, "host %u dies", host);
    w->hosts[host].up = false;
    w->hosts[host].life++;
    shoal_slots_destroy(w->hosts[host].slots);
    w->hosts[host].slots = NULL;
    for (uint32_t i = 0; i < w->worker_count; i++)
        if (w->workers[i].host == host)
            w->workers[i].alive = false;
    (void)w_push(w, W_HEALTH, host, 600 * SHOAL_MS);
}

static inline void w_init_array(struct world *w, uint64_t seed, bool elastic, uint32_t min, uint32_t max,
                                const char *array)
{
    struct shoal_job_spec spec = {
        .elastic = elastic, .workers_min = min, .workers_max = max, .devices_per_worker = 1
    };
    struct shoal_job_founding founding = {
        .id = { { 1, 2, 3, (uint8_t)seed } }, .ticket_ms = 5, .create_ms = 7, .founder = w_node(0)
    };
    static uint8_t bytes[4096];
    size_t len;

    memset(w, 0, sizeof(*w));
    w->seed = seed;
    shoal_rand_init(&w->rand, seed);
    w->now_ns = 1000 * SHOAL_S;
    w->lead_actions = calloc(1, sizeof(*w->lead_actions));
    w->elastic = elastic;
    w->calls = 1;
    w->steps = 40;
    w->script_ns = 500 * SHOAL_MS;
    w->step_ns = SHOAL_MS;
    w->target = max;
    w->delay_ns = SHOAL_MS;
    (void)snprintf(spec.framework, sizeof(spec.framework), "edtPyTorch");
    (void)snprintf(spec.creator, sizeof(spec.creator), "ada");
    (void)snprintf(spec.main_file, sizeof(spec.main_file), "t.py");
    (void)snprintf(spec.array, sizeof(spec.array), "%s", array);
    if (strcmp(array, SHOAL_SERVICE_ARRAY) == 0) {
        (void)snprintf(spec.service, sizeof(spec.service), "digits");
        spec.user_cmd = true;
        spec.replicas = max;
        spec.workers_max = 1;
    }
    assert_int_equal(shoal_job_spec_encode(&spec, bytes, sizeof(bytes), &len), SHOAL_OK);
    founding.spec = shoal_view_of(bytes, len);
    assert_int_equal(shoal_job_create(&w->job, &founding), SHOAL_OK);
    w->index = 2;
    w->job->applied = 2;
    for (uint32_t h = 0; h < W_HOSTS; h++)
        w_host_up(w, h);
    (void)w_push(w, W_STEP, 0, w->step_ns);
}

static inline void w_init(struct world *w, uint64_t seed, bool elastic, uint32_t min, uint32_t max)
{
    w_init_array(w, seed, elastic, min, max, "");
}

static inline void w_deinit(struct world *w)
{
    shoal_lead_destroy(w->lead);
    shoal_job_destroy(w->job);
    for (uint32_t h = 0; h < W_HOSTS; h++)
        shoal_slots_destroy(w->hosts[h].slots);
    for (uint32_t i = 0; i < w->queued; i++)
        free(w->queue[i].bytes);
    for (uint32_t i = 0; i < w->worker_count; i++)
        free(w->workers[i].record);
    free(w->lead_actions);
}

static inline void w_deliver(struct world *w, const struct w_event *e)
{
    uint8_t kind;
    struct shoal_job_id job;
    struct shoal_view bytes = shoal_view_of(e->bytes, e->len);

    if (!w->hosts[e->host].up || !w->hosts[e->host].agent_up || !shoal_host_peek(bytes, &kind, &job))
        return;
    if (shoal_host_kind_to_host(kind)) {
        struct shoal_slots_event event = { .kind = SHOAL_SLOTS_FRAME };

        event.u.frame.from = w_node(e->from);
        event.u.frame.bytes = bytes;
        w_slots(w, e->host, &event);
    } else if (w->lead != NULL && e->host == w->lead_host) {
        struct shoal_lead_event event = { .kind = SHOAL_LEAD_FRAME };

        event.u.frame.from = w_node(e->from);
        event.u.frame.bytes = bytes;
        w_lead(w, &event);
    }
}

static inline void w_worker_event(struct world *w, const struct w_event *e)
{
    struct w_worker *worker = w_worker(w, e->worker_id);
    static struct shoal_worker_message m;
    struct shoal_host_event event = { 0 };

    if (worker == NULL || (!worker->alive && e->kind != W_EXIT))
        return;
    if (worker->frozen && e->kind != W_EXIT) { /* it does so when it is thawed */
        struct w_event later = *e;

        later.at_ns = w->now_ns + 20 * SHOAL_MS;
        later.order = w->order++;
        w->queue[w->queued++] = later;
        return;
    }
    switch (e->kind) {
    case W_STARTED:
        event.kind = SHOAL_HOST_ON_STARTED;
        event.u.started.worker_id = e->worker_id;
        w_shell(w, e->host, &event);
        return;
    case W_HELLO:
        w_hello(w, worker);
        if (worker->again && worker->role == SHOAL_JOB_ENGINE && worker->call != 0)
            w_push(w, W_READY, e->host, SHOAL_MS)->worker_id = worker->id;
        if (worker->again && worker->closed) {
            struct w_event *closed = w_push(w, W_CLOSED, e->host, 2 * SHOAL_MS);

            closed->worker_id = worker->id;
            closed->word = worker->epoch;
        }
        worker->again = false;
        if (worker->role == SHOAL_JOB_DRIVER) {
            worker->wants_call = worker->wants_call == 0 ? 1 : worker->wants_call;
            w_push(w, W_TRAIN, e->host, 10 * SHOAL_MS)->worker_id = worker->id;
        }
        return;
    case W_READY:
        if (worker->call == w->fails_call || (w->unfit >> worker->host & 1) != 0) {
            m.kind = SHOAL_WORKER_FAILED;
            m.failed.unfit = (w->unfit >> worker->host & 1) != 0;
            m.failed.user_code = !m.failed.unfit;
            (void)snprintf(m.failed.text, sizeof(m.failed.text), "%s",
                           m.failed.unfit ? W_UNFIT : "KeyError: row (main.py, line 7)");
            w_say(w, worker, &m);
            w_exit(w, worker, 1, false);
            return;
        }
        w_ready(w, worker);
        if (worker->done) /* what holds is said again to a new agent */
            w_done(w, worker);
        return;
    case W_TRAIN: w_train(w, worker); return;
    case W_CLOSED:
        m.kind = SHOAL_WORKER_CLOSED;
        m.closed = (struct shoal_worker_closed){ .epoch = shoal_epoch_of_word(e->word),
                                                 .applied_step = worker->applied,
                                                 .complete_step = worker->complete };
        w_say(w, worker, &m);
        return;
    case W_FILES:
        m.kind = SHOAL_WORKER_FILES;
        m.acked = (struct shoal_worker_acked){ .call = e->call };
        w_say(w, worker, &m);
        return;
    case W_EXIT:
        if (e->word == 1) { /* a script or driver ends by itself */
            if (worker->alive)
                w_exit(w, worker,
                       worker->role == SHOAL_JOB_DRIVER ? (worker->raised ? 1 : w->driver_status)
                       : worker->role == SHOAL_JOB_TASK && worker->task != w->task_that_fails ? 0
                                                                                              : w->script_status,
                       false);
            return;
        }
        event.kind = SHOAL_HOST_ON_EXITED;
        event.u.exited.worker_id = e->worker_id;
        event.u.exited.status = e->status;
        event.u.exited.signalled = e->signalled;
        if (worker != NULL && worker->raised)
            (void)snprintf(event.u.exited.text, sizeof(event.u.exited.text), "TrainingFailed: training failed: %.*s",
                           w->words_max, worker->told);
        else
            (void)snprintf(event.u.exited.text, sizeof(event.u.exited.text), "%s",
                           e->status == SHOAL_STATUS_UNSTARTED ? W_UNSTARTED
                           : e->status == 0                    ? ""
                                                               : "last line of stderr");
        w_shell(w, e->host, &event);
        return;
    case W_MESSAGE:
    case W_APPLY:
    case W_IDLE:
    case W_BLOB:
    case W_MANIFEST:
    case W_STEP:
    case W_TOLD:
    case W_HEALTH: return;
    }
}

static inline void w_event(struct world *w, const struct w_event *e)
{
    struct shoal_host_event event = { 0 };

    if (e->life != w->hosts[e->host].life && e->kind != W_STEP && e->kind != W_APPLY && e->kind != W_HEALTH)
        return;
    switch (e->kind) {
    case W_MESSAGE: w_deliver(w, e); return;
    case W_APPLY:
        if (e->term == w->term)
            w_commit(w, shoal_view_of(e->bytes, e->len));
        return;
    case W_IDLE:
        for (uint32_t i = 0; i < w->worker_count; i++)
            if (w->workers[i].alive && w->workers[i].host == e->host && w->workers[i].slot == e->word)
                return;
        event.kind = SHOAL_HOST_ON_SLOT_IDLE;
        event.u.idle.slot = (uint32_t)e->word;
        w_shell(w, e->host, &event);
        return;
    case W_BLOB:
        event.kind = SHOAL_HOST_ON_BLOB;
        event.u.blob.hash = e->hash;
        event.u.blob.ok = shoal_rand_below(&w->rand, 10) != 0;
        w_shell(w, e->host, &event);
        return;
    case W_MANIFEST:
        event.kind = SHOAL_HOST_ON_MANIFEST;
        event.u.manifest.job = w->job->id;
        event.u.manifest.call = e->call;
        event.u.manifest.ok = true;
        event.u.manifest.hash = (struct shoal_hash){ { 9, (uint8_t)e->call } };
        w_shell(w, e->host, &event);
        return;
    case W_STEP: w_step_all(w); return;
    case W_TOLD: w_told(w, e->host, e->worker_id, (const struct shoal_worker_message *)(const void *)e->bytes); return;
    case W_HEALTH:
        w_health(w, e->host, e->word);
        w_target(w);
        return;
    case W_STARTED:
    case W_HELLO:
    case W_READY:
    case W_CLOSED:
    case W_EXIT:
    case W_FILES:
    case W_TRAIN: w_worker_event(w, e); return;
    }
}

/* One event, or one timer: whichever is first. */
static inline void w_turn(struct world *w)
{
    uint32_t first = UINT32_MAX, host = UINT32_MAX;
    uint64_t at_ns = UINT64_MAX;
    bool lead = false;
    struct w_event e;

    for (uint32_t i = 0; i < w->queued; i++)
        if (first == UINT32_MAX || w->queue[i].at_ns < w->queue[first].at_ns ||
            (w->queue[i].at_ns == w->queue[first].at_ns && w->queue[i].order < w->queue[first].order))
            first = i;
    if (first != UINT32_MAX)
        at_ns = w->queue[first].at_ns;
    if (w->lead != NULL && shoal_lead_deadline_ns(w->lead) < at_ns) {
        at_ns = shoal_lead_deadline_ns(w->lead);
        lead = true;
    }
    for (uint32_t h = 0; h < W_HOSTS; h++) {
        if (w->hosts[h].up && w->hosts[h].agent_up && shoal_slots_deadline_ns(w->hosts[h].slots) < at_ns) {
            at_ns = shoal_slots_deadline_ns(w->hosts[h].slots);
            host = h;
            lead = false;
        }
    }
    if (at_ns > w->now_ns)
        w->now_ns = at_ns;
    if (host != UINT32_MAX) {
        w_slots(w, host, &(struct shoal_slots_event){ .kind = SHOAL_SLOTS_TIMER });
        return;
    }
    if (lead) {
        w_lead(w, &(struct shoal_lead_event){ .kind = SHOAL_LEAD_TIMER });
        return;
    }
    e = w->queue[first];
    w->queue[first] = w->queue[--w->queued];
    w_event(w, &e);
    free(e.bytes);
}

static inline void w_run_for(struct world *w, uint64_t ns)
{
    uint64_t end_ns = w->now_ns + ns;
    uint32_t turns = 0;
    uint64_t before = w->now_ns;

    while (w->now_ns < end_ns) {
        w_turn(w);
        turns = w->now_ns == before ? turns + 1 : 0;
        before = w->now_ns;
        if (turns > 20000)
            W_FAIL(w, "time stands still: lead %lld, hosts %lld %lld %lld",
                   w->lead == NULL ? -1 : (long long)(shoal_lead_deadline_ns(w->lead) - w->now_ns),
                   w->hosts[0].up ? (long long)(shoal_slots_deadline_ns(w->hosts[0].slots) - w->now_ns) : -1,
                   w->hosts[1].up ? (long long)(shoal_slots_deadline_ns(w->hosts[1].slots) - w->now_ns) : -1,
                   w->hosts[2].up ? (long long)(shoal_slots_deadline_ns(w->hosts[2].slots) - w->now_ns) : -1);
    }
}

/* Until the job has ended, at most `ns`. */
static inline void w_run_to_end(struct world *w, uint64_t ns)
{
    uint64_t end_ns = w->now_ns + ns;

    while (!shoal_job_state_ended((enum shoal_job_state)w->job->state)) {
        w_turn(w);
        if (w->now_ns > end_ns) {
            static char why[2048];

            if (w->lead != NULL)
                shoal_lead_why(w->lead, why, sizeof(why));
            W_FAIL(w, "not ended after %llu s: %s; step %llu; %s", (unsigned long long)(ns / SHOAL_S),
                   shoal_job_state_name((enum shoal_job_state)w->job->state),
                   (unsigned long long)w->steps_done[w->job->call_count], why);
        }
    }
}

static inline void w_run_to_step(struct world *w, uint32_t call, uint64_t step, uint64_t ns)
{
    uint64_t end_ns = w->now_ns + ns;

    while (w->steps_done[call] < step) {
        w_turn(w);
        if (w->now_ns > end_ns) {
            static char why[2048];

            if (w->lead != NULL)
                shoal_lead_why(w->lead, why, sizeof(why));
            W_FAIL(w, "step %llu of call %u not reached (%llu): %s; %s", (unsigned long long)step, call,
                   (unsigned long long)w->steps_done[call], shoal_job_state_name((enum shoal_job_state)w->job->state),
                   why);
        }
    }
}

static inline uint32_t w_alive(const struct world *w, uint8_t role)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < w->worker_count; i++)
        count += w->workers[i].alive && w->workers[i].role == role;
    return count;
}

static inline struct w_worker *w_any(struct world *w, uint8_t role, uint32_t nth)
{
    for (uint32_t i = 0; i < w->worker_count; i++)
        if (w->workers[i].alive && w->workers[i].role == role && nth-- == 0)
            return &w->workers[i];
    return NULL;
}

#endif
