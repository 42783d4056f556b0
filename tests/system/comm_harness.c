/* A small agent for libshoal's system tests: it makes control pages and arenas for simulated hosts, starts C workers,
 * drives epochs by shoal/worker.h, kills, stops and adds workers at named points and at seeded moments, and then
 * asserts:
 *
 *   - every surviving worker ends with the digest of one worker alone, and the same count of updates
 *   - every step is recorded exactly once, with the digest that one worker alone computed for it
 *   - the sample ids of every mini-batch are the ones that the permutation names (recomputed here)
 *
 *   comm_harness CWORKER [scenario=NAME] [options="OF THE WORKERS"] [seed=N] [rounds=N] [verbose=1]
 *   comm_harness list
 *
 * Planted bugs in the worker must turn it red; that is a scenario too. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shoal/collective.h"
#include "shoal/permute.h"
#include "shoal/rand.h"
#include "shoal/step_record.h"
#include "shoal/worker_wire.h"

#include "shoal/banned.h"

#define HOSTS_MAX 4
#define WORKERS_MAX 160 /* so many are started, one after the other */
#define STEPS_MAX 4096
#define EVENTS_MAX 32

enum event_kind {
    EVENT_KILL,
    EVENT_LOSE, /* with its host: only workers of other hosts can tell, by their links to it */
    EVENT_STOP,
    EVENT_JOIN,
    EVENT_SHRINK,
    EVENT_REFORM,
    EVENT_RESTART_AGENT,
    EVENT_KILL_ALL,
};

struct event {
    enum event_kind kind;
    uint64_t step;     /* when some worker has applied it */
    uint64_t delay_us; /* after that */
    uint64_t due_ns;   /* 0: not armed */
    bool over;
};

struct scenario {
    const char *name;
    const char *options; /* of the workers */
    uint32_t hosts;
    uint32_t workers;
    const char *fault; /* of worker 2 (index 1), or of `faulty` */
    uint32_t faulty;
    const char *bug;
    uint32_t random_events;
    uint32_t seconds; /* until it is given up, and its many threads may stand still for 10; 0: 30, and for 0.7 */
    struct event events[EVENTS_MAX];
    bool want_red;
    const char *why; /* want_red: what is noticed */
    enum { SPOIL_NOTHING, SPOIL_GAP, SPOIL_OVERLAP } spoil; /* the mini-batches of the first epoch */
    bool time_kill;
    bool time_join;
};

struct host {
    int page_fd;
    int arena_fd;
    int listener;
    char path[108];
    struct shoal_control_page *page;
    struct shoal_node_id node;
    bool slot_used[SHOAL_SLOTS_MAX];
};

struct worker {
    bool used;
    bool dead; /* known dead or killed by us */
    bool reaped;
    bool ready;
    bool member;
    bool closed;
    bool stateful;
    bool joined; /* took part in an epoch */
    bool done;
    bool dropped;
    bool released;
    bool doomed; /* killed or stopped, but not noticed yet */
    bool lost;   /* killed with its host */
    pid_t pid;
    uint32_t host;
    uint32_t slot;
    uint64_t id;
    int conn;
    int out;
    uint8_t token[16];
    uint8_t address[SHOAL_TRANSPORT_ADDRESS_MAX];
    uint16_t address_len;
    uint64_t applied;
    uint64_t complete;
    uint64_t digest;
    uint32_t v_begin;
    uint32_t v_end;
    uint64_t beat;
    uint64_t beat_ns;
    int status;
    char times_path[128];
    uint64_t started_ns;
};

struct agent {
    struct agent *before;
    const struct scenario *scenario;
    const char *program;
    const char *options;
    uint64_t seed;
    struct shoal_rand rand;
    bool verbose;
    bool failed;
    char why[400];

    struct host hosts[HOSTS_MAX];
    struct worker workers[WORKERS_MAX];
    uint32_t worker_count;
    struct event events[EVENTS_MAX];
    uint32_t event_count;

    struct shoal_epoch epoch;
    bool closing;
    bool any_epoch;
    uint64_t closing_since;
    uint64_t decided;
    uint64_t acked;
    uint64_t deaf_until;    /* the agent reads nothing more, and then goes */
    uint64_t restart_until; /* the agent is away */

    /* the call */
    uint64_t elems, v, samples, minibatch, epochs, job_seed;
    uint64_t steps_per_epoch, total_steps, minibatches;

    /* the reference */
    uint64_t want_digest[STEPS_MAX];
    uint64_t want_state;
    uint64_t want_updates;

    uint64_t files_asked; /* worker id + 1 */
    bool files_written;
    uint64_t kill_ns;
    uint64_t kill_epoch;
    uint32_t epochs_made;
    uint32_t ucx_aborts;
    int watch_pipe[2];
    _Atomic bool over;

    struct shoal_worker_message *in;
    struct shoal_worker_message *out;
    uint8_t *bytes;
    uint8_t *epoch_bytes; /* the EPOCH in force, for who reconnects */
    size_t epoch_len;
    char dir[64];
};

static uint64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SHOAL_S + (uint64_t)t.tv_nsec;
}

__attribute__((format(printf, 2, 3))) static void fail(struct agent *agent, const char *format, ...)
{
    va_list args;

    if (agent->failed)
        return;
    agent->failed = true;
    va_start(args, format);
    (void)vsnprintf(agent->why, sizeof(agent->why), format, args);
    va_end(args);
}

#define say(agent, ...)                                                                                                \
    do {                                                                                                               \
        if ((agent)->verbose)                                                                                          \
            (void)fprintf(stderr, __VA_ARGS__);                                                                        \
    } while (0)

/* ---- hosts and workers ---- */

static void host_listen(struct host *host)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };

    (void)unlink(host->path);
    host->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    memcpy(at.sun_path, host->path, sizeof(at.sun_path));
    if (bind(host->listener, (const struct sockaddr *)&at, sizeof(at)) != 0 || listen(host->listener, 64) != 0) {
        perror("listen");
        exit(2);
    }
}

static void host_init(struct agent *agent, uint32_t i)
{
    struct host *host = &agent->hosts[i];

    memset(host->node.bytes, (int)(i + 1), 16);
    host->page_fd = memfd_create("page", 0);
    host->arena_fd = memfd_create("arena", 0);
    if (ftruncate(host->page_fd, sizeof(struct shoal_control_page)) != 0)
        exit(2);
    host->page = mmap(NULL, sizeof(*host->page), PROT_READ | PROT_WRITE, MAP_SHARED, host->page_fd, 0);
    host->page->magic = SHOAL_CONTROL_MAGIC;
    host->page->version = host->page->oldest = SHOAL_WORKER_VERSION;
    host->page->slots_max = SHOAL_SLOTS_MAX;
    (void)snprintf(host->path, sizeof(host->path), "%s/agent%u", agent->dir, i);
    host_listen(host);
}

struct watch {
    struct agent *agent; /* never freed, since watches end late */
    _Atomic uint32_t *word;
    int pipe;
    uint64_t id;
};

/* The robust futex of one worker: marked by the kernel before the memory of the dead is torn down. */
static void *watch_robust(void *arg)
{
    struct watch watch = *(struct watch *)arg;

    free(arg);
    while (!atomic_load(&watch.agent->over)) {
        uint32_t word = atomic_load(watch.word);

        if (word & FUTEX_OWNER_DIED) {
            (void)!write(watch.pipe, &watch.id, sizeof(watch.id));
            break;
        }
        if (word == 0) { /* not held yet, or given up in peace */
            (void)usleep(2000);
            continue;
        }
        if (!(word & FUTEX_WAITERS) && !atomic_compare_exchange_strong(watch.word, &word, word | FUTEX_WAITERS))
            continue;
        (void)syscall(SYS_futex, watch.word, FUTEX_WAIT, word | FUTEX_WAITERS,
                      &(struct timespec){ .tv_nsec = 100000000 }, NULL, 0);
    }
    return NULL;
}

static void start_watch(struct agent *agent, struct worker *w)
{
    struct watch *watch = malloc(sizeof(*watch));
    pthread_t thread;

    *watch = (struct watch){ agent, &agent->hosts[w->host].page->slots[w->slot].robust, agent->watch_pipe[1], w->id };
    if (pthread_create(&thread, NULL, watch_robust, watch) == 0)
        (void)pthread_detach(thread);
}

static void set_env(const char *name, uint64_t value)
{
    char text[64];

    (void)snprintf(text, sizeof(text), "%" PRIu64, value);
    (void)setenv(name, text, 1);
}

static void worker_exec(struct agent *agent, struct worker *w, const char *fault)
{
    struct host *host = &agent->hosts[w->host];
    char hex[33];
    char words[512];
    char *argv[20] = { NULL };
    int argc = 0;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)dup2(w->out, 1);
    (void)setenv(SHOAL_ENV_SOCKET, host->path, 1);
    set_env(SHOAL_ENV_CONTROL_FD, (uint64_t)host->page_fd);
    set_env(SHOAL_ENV_ARENA_FD, (uint64_t)host->arena_fd);
    set_env(SHOAL_ENV_SLOT, w->slot);
    set_env(SHOAL_ENV_WORKER, w->id);
    (void)setenv(SHOAL_ENV_JOB, "shoal-0000000000000001", 1);
    set_env(SHOAL_ENV_GENERATION, 1);
    shoal_hex_text(host->node.bytes, 16, hex);
    (void)setenv(SHOAL_ENV_NODE, hex, 1);
    shoal_hex_text(w->token, 16, hex);
    (void)setenv(SHOAL_ENV_TOKEN, hex, 1);
    (void)setenv(SHOAL_ENV_FABRIC, "lo", 1);
    if (fault != NULL)
        (void)setenv("SHOAL_FAULT", fault, 1);
    if (agent->scenario->bug != NULL)
        (void)setenv("CWORKER_BUG", agent->scenario->bug, 1);
    if (agent->scenario->time_kill || agent->scenario->time_join)
        (void)setenv("CWORKER_TIMES", w->times_path, 1);
    (void)snprintf(words, sizeof(words), "%s", agent->options);
    argv[argc++] = (char *)(uintptr_t)agent->program;
    for (char *at = words; *at != '\0' && argc < 19;) {
        size_t len = strcspn(at, " ");
        bool last = at[len] == '\0';

        argv[argc++] = at;
        at[len] = '\0';
        at += len + (last ? 0 : 1);
    }
    (void)execv(agent->program, argv);
    _exit(127);
}

static void worker_start(struct agent *agent, uint32_t host, const char *fault)
{
    struct worker *w = &agent->workers[agent->worker_count];
    uint32_t slot = 0;

    if (agent->worker_count == WORKERS_MAX)
        return;
    while (slot < SHOAL_SLOTS_MAX && agent->hosts[host].slot_used[slot])
        slot++;
    if (slot == SHOAL_SLOTS_MAX) { /* the next one has room: no scenario has more workers than slots */
        worker_start(agent, (host + 1) % agent->scenario->hosts, fault);
        return;
    }
    *w = (struct worker){ .used = true, .host = host, .slot = slot, .id = 100 + agent->worker_count, .conn = -1 };
    agent->worker_count++;
    agent->hosts[host].slot_used[slot] = true;
    memset(&agent->hosts[host].page->slots[slot], 0, sizeof(struct shoal_control_slot));
    atomic_store(&agent->hosts[host].page->slots[slot].worker_id, w->id);
    for (unsigned i = 0; i < 16; i++)
        w->token[i] = (uint8_t)shoal_rand_u64(&agent->rand);
    (void)snprintf(w->times_path, sizeof(w->times_path), "%s/times%" PRIu64, agent->dir, w->id);
    w->out = memfd_create("out", MFD_CLOEXEC);
    w->started_ns = now_ns();
    w->pid = fork();
    if (w->pid == 0)
        worker_exec(agent, w, fault);
    start_watch(agent, w);
    say(agent, "[start] worker %" PRIu64 " on host %u slot %u\n", w->id, host, slot);
}

/* ---- talking ---- */

static void tell(struct agent *agent, struct worker *w)
{
    struct shoal_writer writer = shoal_writer_init(agent->bytes, SHOAL_WORKER_MESSAGE_MAX);

    if (w->conn < 0 || shoal_worker_encode(agent->out, &writer) != SHOAL_OK)
        return;
    (void)send(w->conn, writer.bytes, writer.len, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void tell_call(struct agent *agent, struct worker *w)
{
    memset(agent->out, 0, sizeof(*agent->out));
    agent->out->kind = SHOAL_WORKER_CALL;
    agent->out->call.call = 1;
    agent->out->call.job_seed = agent->job_seed;
    tell(agent, w);
}

static void tell_acked(struct agent *agent)
{
    for (uint32_t i = 0; i < agent->worker_count; i++) {
        memset(&agent->out->acked, 0, sizeof(agent->out->acked));
        agent->out->kind = SHOAL_WORKER_RECORDS_ACKED;
        agent->out->acked = (struct shoal_worker_acked){ 1, agent->acked };
        tell(agent, &agent->workers[i]);
    }
}

static void tell_stop(struct agent *agent, struct worker *w, enum shoal_worker_kind kind, enum shoal_stop_reason reason)
{
    memset(&agent->out->stop, 0, sizeof(agent->out->stop));
    agent->out->kind = (uint8_t)kind;
    agent->out->stop.reason = (uint8_t)reason;
    tell(agent, w);
}

/* ---- the ledger ---- */

static void check_tuple(struct agent *agent, const struct shoal_step_head *head, uint32_t v,
                        const struct shoal_step_tuple *tuple)
{
    uint64_t in_epoch = head->kind == SHOAL_STEP_TRAIN ? head->step_in_epoch : 0;
    uint64_t m = in_epoch * agent->v + v;
    uint64_t count = shoal_minibatch_len(agent->samples, agent->minibatch, m);
    struct shoal_sample_sum sum = { 0, 0 };

    for (uint64_t i = 0; i < count; i++)
        shoal_sample_sum_add(
            &sum, agent->job_seed,
            shoal_permute(agent->job_seed, head->data_epoch, agent->samples, m * agent->minibatch + i));
    if (tuple->samples != count || tuple->id_low != sum.low || tuple->id_high != sum.high)
        fail(agent, "step %" PRIu64 " mini-batch %u: other samples than the permutation names", head->step, v);
}

static void check_record(struct agent *agent, struct shoal_reader *r, uint64_t step)
{
    uint64_t in_epoch = (step - 1) % (agent->steps_per_epoch + 1);
    uint64_t first = in_epoch * agent->v;
    uint64_t want_v = agent->minibatches - first < agent->v ? agent->minibatches - first : agent->v;
    struct shoal_step_head head;

    shoal_get_step_head(r, &head);
    if (in_epoch == agent->steps_per_epoch)
        want_v = agent->v < 3 ? agent->v : 3;
    if (r->failed || head.step != step || head.v_count != want_v || head.value_count != 1) {
        fail(agent, "record of step %" PRIu64 " is malformed (says step %" PRIu64 ", %u mini-batches)", step, head.step,
             head.v_count);
        return;
    }
    for (uint32_t v = 0; v < head.v_count; v++) {
        struct shoal_step_tuple tuple;

        shoal_get_step_tuple(r, &tuple, head.value_count);
        check_tuple(agent, &head, v, &tuple);
    }
    if (step < STEPS_MAX && head.digest != agent->want_digest[step])
        fail(agent, "step %" PRIu64 ": digest %016" PRIx64 ", one worker alone has %016" PRIx64, step, head.digest,
             agent->want_digest[step]);
}

static void on_records(struct agent *agent, const struct shoal_worker_records *records)
{
    struct shoal_reader r = shoal_reader_init(records->records);

    for (uint32_t i = 0; i < records->count; i++) {
        uint64_t step = records->first_step + i;

        if (step > agent->acked + 1) {
            fail(agent, "record of step %" PRIu64 " after step %" PRIu64, step, agent->acked);
            return;
        }
        check_record(agent, &r, step); /* a step sent again must be the same again */
        if (step == agent->acked + 1)
            agent->acked = step;
    }
    if (!shoal_reader_done(&r))
        fail(agent, "records with bytes left over");
    if (shoal_rand_below(&agent->rand, 3) == 0 || agent->acked == agent->total_steps)
        tell_acked(agent); /* acknowledge late, and in heaps */
}

/* ---- epochs ---- */

static void wake(struct host *host)
{
    atomic_fetch_add(&host->page->revoke_futex, 1);
    (void)syscall(SYS_futex, &host->page->revoke_futex, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void revoke_epoch(struct agent *agent, const char *why)
{
    if (agent->closing || !agent->any_epoch)
        return;
    say(agent, "[revoke] %u.%u: %s\n", agent->epoch.e, agent->epoch.k, why);
    agent->closing = true;
    agent->closing_since = now_ns();
    for (uint32_t i = 0; i < agent->scenario->hosts; i++) {
        atomic_store(&agent->hosts[i].page->revoked, shoal_epoch_word(agent->epoch));
        wake(&agent->hosts[i]);
    }
}

static bool alive(const struct worker *w) { return w->used && !w->dead; }

static bool epoch_may_form(struct agent *agent)
{
    bool any = false;

    for (uint32_t i = 0; i < agent->worker_count; i++) {
        const struct worker *w = &agent->workers[i];

        if (!alive(w) || w->dropped)
            continue;
        if (w->member && !w->closed)
            return false;
        any = any || w->ready;
    }
    if (!agent->any_epoch) /* the first one waits for everybody */
        for (uint32_t i = 0; i < agent->worker_count; i++)
            if (alive(&agent->workers[i]) && !agent->workers[i].ready)
                return false;
    return any;
}

/* A partition of V over the members: balanced, or random pieces in rank order, or the old ranges grown. */
static void partition(struct agent *agent, struct worker **members, uint32_t count)
{
    uint32_t v = (uint32_t)agent->v;
    uint64_t how = shoal_rand_below(&agent->rand, 3);

    for (uint32_t i = 0; i < count; i++)
        shoal_balanced_range(v, count, i, &members[i]->v_begin, &members[i]->v_end);
    if (how == 1) {
        uint32_t cut[WORKERS_MAX + 1];

        cut[0] = 0;
        cut[count] = v;
        for (uint32_t i = 1; i < count; i++)
            cut[i] = (uint32_t)shoal_rand_below(&agent->rand, v + 1);
        for (uint32_t i = 1; i < count; i++)
            for (uint32_t j = i; j > 1 && cut[j] < cut[j - 1]; j--) {
                uint32_t t = cut[j];

                cut[j] = cut[j - 1];
                cut[j - 1] = t;
            }
        for (uint32_t i = 0; i < count; i++) {
            members[i]->v_begin = cut[i];
            members[i]->v_end = cut[i + 1];
        }
    }
}

static int by_place(const void *a, const void *b)
{
    const struct worker *x = *(struct worker *const *)a;
    const struct worker *y = *(struct worker *const *)b;

    if (x->host != y->host)
        return x->host < y->host ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static void fill_member(const struct agent *agent, const struct worker *w, struct shoal_rank_member *m)
{
    memset(m, 0, sizeof(*m));
    m->worker_id = w->id;
    m->node = agent->hosts[w->host].node;
    m->slot = w->slot;
    m->v_begin = w->v_begin;
    m->v_end = w->v_end;
    m->has_state = w->stateful;
    memcpy(m->token, w->token, 16);
    m->address_len = w->address_len;
    memcpy(m->address, w->address, w->address_len);
}

/* As an agent would say it that has lost count. */
static void spoil(const struct scenario *scenario, struct shoal_worker_epoch *epoch)
{
    if (scenario->spoil == SPOIL_NOTHING)
        return;
    epoch->members[0].v_end += scenario->spoil == SPOIL_OVERLAP ? 1 : UINT32_MAX;
    epoch->members[epoch->member_count - 1].v_end -= scenario->spoil == SPOIL_OVERLAP ? 1 : 0;
}

static void form_epoch(struct agent *agent)
{
    struct shoal_worker_epoch *out = &agent->out->epoch;
    struct worker *members[WORKERS_MAX];
    uint32_t count = 0;
    bool shrunk_here = agent->any_epoch && agent->scenario->hosts == 1;
    uint64_t decided = 0;
    const struct worker *holder = NULL;

    for (uint32_t i = 0; i < agent->worker_count; i++) {
        struct worker *w = &agent->workers[i];

        if (!alive(w) || w->dropped || !w->ready)
            continue;
        shrunk_here = shrunk_here && w->joined;
        members[count++] = w;
        if (w->stateful && (holder == NULL || w->complete > decided)) {
            decided = w->complete;
            holder = w;
        }
    }
    qsort(members, count, sizeof(members[0]), by_place);
    partition(agent, members, count);
    agent->epoch = shrunk_here ? (struct shoal_epoch){ agent->epoch.e, agent->epoch.k + 1 }
                               : (struct shoal_epoch){ agent->epoch.e + 1, 0 };
    agent->decided = decided;
    memset(out, 0, offsetof(struct shoal_worker_epoch, members));
    agent->out->kind = SHOAL_WORKER_EPOCH;
    out->epoch = agent->epoch;
    out->call = 1;
    out->decided_step = decided;
    out->holder = holder == NULL || decided == 0 ? 0 : holder->id;
    out->donor = holder == NULL || decided == 0 ? 0 : holder->id;
    out->records_acked = agent->acked;
    out->member_count = count;
    say(agent, "[epoch] %u.%u D %" PRIu64 " holder %" PRIu64 ":", agent->epoch.e, agent->epoch.k, decided, out->holder);
    for (uint32_t i = 0; i < count; i++) {
        fill_member(agent, members[i], &out->members[i]);
        say(agent, " %" PRIu64 "[%u,%u)%s", members[i]->id, members[i]->v_begin, members[i]->v_end,
            members[i]->stateful ? "" : "*");
    }
    say(agent, "\n");
    spoil(agent->scenario, out);
    for (uint32_t i = 0; i < agent->scenario->hosts; i++)
        atomic_store(&agent->hosts[i].page->published, shoal_epoch_word(agent->epoch));
    {
        struct shoal_writer writer = shoal_writer_init(agent->epoch_bytes, SHOAL_WORKER_MESSAGE_MAX);

        if (shoal_worker_encode(agent->out, &writer) != SHOAL_OK)
            fail(agent, "the EPOCH does not fit a message");
        agent->epoch_len = writer.len;
    }
    for (uint32_t i = 0; i < agent->worker_count; i++) {
        struct worker *w = &agent->workers[i];

        w->member = false;
        if (alive(w) && w->ready)
            tell(agent, w);
    }
    for (uint32_t i = 0; i < count; i++) {
        members[i]->member = members[i]->joined = true;
        members[i]->closed = members[i]->done = false;
        if (decided == 0)
            members[i]->stateful = true; /* it loads the bundle */
    }
    agent->any_epoch = true;
    agent->closing = false;
    agent->epochs_made++;
    agent->files_asked = 0;
}

static void on_closed(struct agent *agent, struct worker *w, struct shoal_epoch epoch, uint64_t applied,
                      uint64_t complete)
{
    if (shoal_epoch_cmp(epoch, agent->epoch) != 0 || !w->member)
        return;
    say(agent, "[closed] %" PRIu64 " applied %" PRIu64 " complete %" PRIu64 "\n", w->id, applied, complete);
    if (w->stateful && complete + 1 < agent->decided + 1 && complete + 1 < agent->decided)
        fail(agent, "worker %" PRIu64 " went back to step %" PRIu64 " from %" PRIu64, w->id, complete, agent->decided);
    w->closed = true;
    w->applied = applied;
    w->complete = complete;
    w->stateful = w->stateful || applied >= agent->decided;
    revoke_epoch(agent, "a member closed");
}

/* ---- events ---- */

static uint64_t progress(const struct agent *agent)
{
    uint64_t best = 0;

    for (uint32_t i = 0; i < agent->worker_count; i++) {
        const struct worker *w = &agent->workers[i];
        uint64_t applied;

        if (!alive(w))
            continue;
        applied = atomic_load(&agent->hosts[w->host].page->slots[w->slot].applied_step);
        best = applied > best ? applied : best;
    }
    return best;
}

static struct worker *pick(struct agent *agent, uint32_t spare)
{
    struct worker *living[WORKERS_MAX];
    uint32_t count = 0;

    for (uint32_t i = 0; i < agent->worker_count; i++)
        if (alive(&agent->workers[i]) && agent->workers[i].member && !agent->workers[i].dropped &&
            !agent->workers[i].doomed)
            living[count++] = &agent->workers[i];
    return count <= spare ? NULL : living[shoal_rand_below(&agent->rand, count)];
}

/* A worker that is done cares no longer: a connection that ends may be a member's that was released. */
static bool linked_elsewhere(const struct agent *agent, const struct worker *w)
{
    for (uint32_t i = 0; i < agent->worker_count; i++) {
        const struct worker *other = &agent->workers[i];

        if (w->member && alive(other) && other->member && !other->doomed && !other->done && other->host != w->host)
            return true;
    }
    return false;
}

/* UCX 1.22 aborts a process now and then while connections of an epoch that ends and of the next one meet (decision
 * 0004): a worker that dies, and counted here. */
static bool aborted_by_ucx(const struct worker *w)
{
    const char *transport = getenv("SHOAL_TRANSPORT");

    return transport != NULL && strcmp(transport, "ucx") == 0 && WIFSIGNALED(w->status) &&
           WTERMSIG(w->status) == SIGABRT;
}

/* What has come. */
static void hear(struct agent *agent, struct worker *w);

static void on_death(struct agent *agent, struct worker *w, const char *how)
{
    if (w->dead || !w->used)
        return;
    hear(agent, w); /* why it ended is among what it said last */
    hear(agent, w); /* behind a reset */
    w->dead = true;
    (void)kill(w->pid, SIGKILL);
    if (!w->doomed && !w->dropped && !(agent->scenario->fault != NULL && w->id == 101)) {
        if (!w->reaped && waitpid(w->pid, &w->status, 0) == w->pid) {
            w->reaped = true;
            agent->hosts[w->host].slot_used[w->slot] = false;
        }
        if (aborted_by_ucx(w))
            agent->ucx_aborts++;
        else
            fail(agent, "worker %" PRIu64 " died by itself: %s, status %x", w->id, how, (unsigned)w->status);
    }
    say(agent, "[death] worker %" PRIu64 ": %s\n", w->id, how);
    if (w->lost && linked_elsewhere(agent, w))
        return;
    if (w->member && !w->closed)
        revoke_epoch(agent, "a death");
    else if (w->member)
        agent->closing = true;
}

static void act(struct agent *agent, struct event *event)
{
    struct worker *w = NULL;

    event->over = true;
    switch (event->kind) {
    case EVENT_KILL:
    case EVENT_LOSE:
        w = pick(agent, 1);
        if (w != NULL) {
            say(agent, event->kind == EVENT_LOSE ? "[lose] %" PRIu64 "\n" : "[kill] %" PRIu64 "\n", w->id);
            w->lost = event->kind == EVENT_LOSE;
            agent->kill_epoch = shoal_epoch_word(agent->epoch);
            agent->kill_ns = now_ns();
            w->doomed = true;
            (void)kill(w->pid, SIGKILL); /* the watch reports it */
        }
        return;
    case EVENT_STOP:
        w = pick(agent, 1);
        if (w != NULL) {
            say(agent, "[stop] %" PRIu64 "\n", w->id);
            w->doomed = true;
            (void)kill(w->pid, SIGSTOP);
        }
        return;
    case EVENT_JOIN:
        worker_start(agent, (uint32_t)shoal_rand_below(&agent->rand, agent->scenario->hosts), NULL);
        return;
    case EVENT_SHRINK:
        w = pick(agent, 1);
        if (w != NULL) {
            w->dropped = true;
            revoke_epoch(agent, "planned shrink");
        }
        return;
    case EVENT_REFORM: revoke_epoch(agent, "planned, same members"); return;
    case EVENT_RESTART_AGENT:
        agent->deaf_until = now_ns() + 30 * SHOAL_MS; /* what is said until then is lost */
        return;
    case EVENT_KILL_ALL:
        for (uint32_t i = 0; i < agent->worker_count; i++)
            if (alive(&agent->workers[i])) {
                agent->workers[i].doomed = true;
                (void)kill(agent->workers[i].pid, SIGKILL);
            }
        for (uint32_t i = 0; i < agent->scenario->workers; i++)
            worker_start(agent, i % agent->scenario->hosts, NULL);
        return;
    }
}

static void run_events(struct agent *agent)
{
    uint64_t at = progress(agent);
    uint64_t now = now_ns();

    for (uint32_t i = 0; i < agent->event_count; i++) {
        struct event *event = &agent->events[i];

        if (event->over || at < event->step)
            continue;
        if (event->due_ns == 0)
            event->due_ns = now + event->delay_us * 1000;
        if (now >= event->due_ns)
            act(agent, event);
    }
}

static void watch_beats(struct agent *agent)
{
    uint64_t now = now_ns();

    for (uint32_t i = 0; i < agent->worker_count; i++) {
        struct worker *w = &agent->workers[i];
        uint64_t beat;

        if (!alive(w) || !w->ready || w->reaped)
            continue;
        beat = atomic_load(&agent->hosts[w->host].page->slots[w->slot].heartbeat);
        if (beat != w->beat || w->beat_ns == 0) {
            w->beat = beat;
            w->beat_ns = now;
        } else if (now - w->beat_ns > (agent->scenario->seconds == 0 ? 700 * SHOAL_MS : 10 * SHOAL_S)) {
            w->doomed = w->doomed || w->released; /* it leaves, and beats no more; or it was stopped, too */
            on_death(agent, w, "its library thread stood still");
        }
    }
}

/* ---- the loop ---- */

static struct worker *find_worker(struct agent *agent, uint64_t id)
{
    for (uint32_t i = 0; i < agent->worker_count; i++)
        if (agent->workers[i].id == id)
            return &agent->workers[i];
    return NULL;
}

static void on_hello(struct agent *agent, int conn, const struct shoal_worker_hello *hello)
{
    struct worker *w = find_worker(agent, hello->worker_id);

    if (w == NULL || memcmp(hello->token, w->token, 16) != 0) {
        (void)close(conn);
        fail(agent, "a stranger said HELLO");
        return;
    }
    if (w->conn >= 0)
        (void)close(w->conn);
    w->conn = conn;
    if (hello->call == 0)
        tell_call(agent, w);
    if (hello->closed)
        on_closed(agent, w, hello->epoch, hello->applied_step, hello->complete_step);
    /* The messages that were said while it was away. */
    if (w->member && shoal_epoch_cmp(hello->epoch, agent->epoch) < 0)
        (void)send(conn, agent->epoch_bytes, agent->epoch_len, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (agent->files_asked == w->id)
        agent->files_asked = 0;
    w->released = false;
    tell_acked(agent);
}

static void on_done(struct agent *agent, struct worker *w, const struct shoal_worker_done *done)
{
    w->done = true;
    w->digest = done->state_digest;
    if (done->state_digest != agent->want_state)
        fail(agent, "worker %" PRIu64 " ends with state %016" PRIx64 ", one worker alone with %016" PRIx64, w->id,
             done->state_digest, agent->want_state);
}

/* A lost host alone ends nothing (PROTOCOLS 12), but with a member of it that is not heard it does: whoever was done when
 * its links broke says that and nothing else. */
static void on_unheard(struct agent *agent, const struct worker *w, const struct shoal_ranks *ranks)
{
    say(agent, "[unheard] worker %" PRIu64 " does not hear ranks", w->id);
    for (uint32_t rank = 0; rank < SHOAL_RANKS_MAX; rank++)
        if (shoal_ranks_has(ranks, rank))
            say(agent, " %u", rank);
    say(agent, "\n");
    for (uint32_t i = 0; i < agent->worker_count && shoal_ranks_any(ranks); i++) {
        const struct worker *other = &agent->workers[i];

        if (other->used && other->dead && other->lost && other->member)
            revoke_epoch(agent, "a lost host's member is not heard");
    }
}

static void on_message(struct agent *agent, struct worker *w, const struct shoal_worker_message *m)
{
    if (m->kind == SHOAL_WORKER_READY) {
        w->ready = true;
        w->address_len = (uint16_t)m->ready.address.len;
        memcpy(w->address, m->ready.address.bytes, m->ready.address.len);
        if (agent->any_epoch && !w->joined)
            revoke_epoch(agent, "a joiner is ready");
    } else if (m->kind == SHOAL_WORKER_CLOSED) {
        on_closed(agent, w, m->closed.epoch, m->closed.applied_step, m->closed.complete_step);
    } else if (m->kind == SHOAL_WORKER_RECORDS) {
        on_records(agent, &m->records);
    } else if (m->kind == SHOAL_WORKER_DONE) {
        on_done(agent, w, &m->done);
    } else if (m->kind == SHOAL_WORKER_FILES) {
        agent->files_written = true;
    } else if (m->kind == SHOAL_WORKER_UNHEARD) {
        on_unheard(agent, w, &m->unheard.ranks);
    } else if (m->kind == SHOAL_WORKER_FAILED) {
        fail(agent, "worker %" PRIu64 " failed: %s", w->id, m->failed.text);
    } else {
        fail(agent, "worker %" PRIu64 " sent a message of kind %u", w->id, m->kind);
    }
}

static bool receive(struct agent *agent, int fd, struct worker *w)
{
    ssize_t len = recv(fd, agent->bytes, SHOAL_WORKER_MESSAGE_MAX, MSG_DONTWAIT);

    if (len < 0 && shoal_worker_recv_later(errno))
        return false;
    if (len <= 0) {
        (void)close(fd);
        if (w != NULL)
            w->conn = -1;
        return false;
    }
    if (shoal_worker_decode(shoal_view_of(agent->bytes, (size_t)len), agent->in) != SHOAL_OK) {
        fail(agent, "a message does not decode");
        return false;
    }
    if (w == NULL) {
        if (agent->in->kind == SHOAL_WORKER_HELLO)
            on_hello(agent, fd, &agent->in->hello);
        return false;
    }
    on_message(agent, w, agent->in);
    return true;
}

static void hear(struct agent *agent, struct worker *w)
{
    for (unsigned turn = 0; turn < 64 && w->conn >= 0 && receive(agent, w->conn, w); turn++)
        continue;
}

static void accept_all(struct agent *agent, struct host *host)
{
    for (;;) {
        int conn = accept4(host->listener, NULL, NULL, SOCK_CLOEXEC);
        struct pollfd p = { .fd = conn, .events = POLLIN };

        if (conn < 0)
            return;
        (void)poll(&p, 1, 1000); /* HELLO follows at once */
        (void)receive(agent, conn, NULL);
    }
}

static void go_away(struct agent *agent)
{
    agent->deaf_until = 0;
    agent->restart_until = now_ns() + 200 * SHOAL_MS;
    for (uint32_t i = 0; i < agent->scenario->hosts; i++) {
        (void)close(agent->hosts[i].listener);
        agent->hosts[i].listener = -1;
    }
    for (uint32_t i = 0; i < agent->worker_count; i++) {
        if (agent->workers[i].conn >= 0)
            (void)close(agent->workers[i].conn);
        agent->workers[i].conn = -1;
    }
}

static void poll_all(struct agent *agent)
{
    struct pollfd p[HOSTS_MAX + WORKERS_MAX + 1];
    uint32_t n = 0;
    uint64_t id;

    if (agent->deaf_until != 0) {
        (void)usleep(1000);
        return;
    }
    p[n++] = (struct pollfd){ .fd = agent->watch_pipe[0], .events = POLLIN };
    for (uint32_t i = 0; i < agent->scenario->hosts; i++)
        p[n++] = (struct pollfd){ .fd = agent->hosts[i].listener, .events = POLLIN };
    for (uint32_t i = 0; i < agent->worker_count; i++)
        p[n++] = (struct pollfd){ .fd = agent->workers[i].conn, .events = POLLIN };
    (void)poll(p, n, 1);
    while (read(agent->watch_pipe[0], &id, sizeof(id)) == sizeof(id)) {
        struct worker *w = find_worker(agent, id);

        if (w != NULL)
            on_death(agent, w, "its futex was released");
    }
    for (uint32_t i = 0; i < agent->scenario->hosts; i++)
        if (agent->hosts[i].listener >= 0)
            accept_all(agent, &agent->hosts[i]);
    for (uint32_t i = 0; i < agent->worker_count; i++)
        hear(agent, &agent->workers[i]);
}

static void reap(struct agent *agent)
{
    for (uint32_t i = 0; i < agent->worker_count; i++) {
        struct worker *w = &agent->workers[i];

        if (w->reaped || waitpid(w->pid, &w->status, WNOHANG) != w->pid)
            continue;
        w->reaped = true;
        agent->hosts[w->host].slot_used[w->slot] = false;
        if (!w->dead && !agent->files_written && !w->dropped)
            on_death(agent, w, "it ended");
    }
}

static void finish_run(struct agent *agent)
{
    bool all = true;
    struct worker *first = NULL;

    if (agent->closing || !agent->any_epoch)
        return;
    for (uint32_t i = 0; i < agent->worker_count; i++) {
        struct worker *w = &agent->workers[i];

        if (w->used && w->dead && w->lost && w->member && agent->acked < agent->total_steps)
            all = false; /* rank 0 takes its records with it: the next one ships them */
        if (!alive(w) || !w->member)
            continue;
        all = all && w->done;
        if (first == NULL)
            first = w;
    }
    if (!all || first == NULL || agent->files_written || agent->files_asked != 0)
        return;
    agent->files_asked = first->id;
    memset(&agent->out->acked, 0, sizeof(agent->out->acked));
    agent->out->kind = SHOAL_WORKER_WRITE_FINAL;
    agent->out->acked.call = 1;
    tell(agent, first);
}

static bool all_gone(struct agent *agent)
{
    for (uint32_t i = 0; i < agent->worker_count; i++)
        if (!agent->workers[i].reaped)
            return false;
    return true;
}

static void loop(struct agent *agent)
{
    uint32_t seconds = agent->scenario->seconds == 0 ? 30 : agent->scenario->seconds;
    uint64_t end = now_ns() + seconds * SHOAL_S;

    while (!agent->failed && !all_gone(agent)) {
        if (now_ns() > end) {
            fail(agent, "no end after %u s: epoch %u.%u%s, acked %" PRIu64 " of %" PRIu64, seconds, agent->epoch.e,
                 agent->epoch.k, agent->closing ? " closing" : "", agent->acked, agent->total_steps);
            break;
        }
        if (agent->deaf_until != 0 && now_ns() > agent->deaf_until)
            go_away(agent);
        if (agent->restart_until != 0 && now_ns() > agent->restart_until) {
            agent->restart_until = 0;
            for (uint32_t i = 0; i < agent->scenario->hosts; i++)
                host_listen(&agent->hosts[i]);
        }
        poll_all(agent);
        reap(agent);
        run_events(agent);
        watch_beats(agent);
        if ((!agent->any_epoch || agent->closing) && !agent->files_written && epoch_may_form(agent))
            form_epoch(agent);
        finish_run(agent);
        for (uint32_t i = 0; i < agent->worker_count; i++)
            if (alive(&agent->workers[i]) && agent->workers[i].dropped && !agent->workers[i].member)
                tell_stop(agent, &agent->workers[i], SHOAL_WORKER_STOP, SHOAL_STOP_SHRUNK);
        for (uint32_t i = 0; i < agent->worker_count && agent->files_written && agent->acked == agent->total_steps;
             i++) {
            struct worker *w = &agent->workers[i];

            if (alive(w) && w->conn >= 0 && !w->released)
                tell_stop(agent, w, SHOAL_WORKER_RELEASE, SHOAL_STOP_USER);
            w->released = w->released || w->conn >= 0;
        }
    }
}

/* ---- one scenario ---- */

static uint64_t option(const char *options, const char *name, uint64_t otherwise)
{
    const char *at = strstr(options, name);

    return at == NULL ? otherwise : strtoull(at + strlen(name), NULL, 10);
}

static bool reference(struct agent *agent)
{
    char command[1024];
    char line[256];
    char log[128];
    FILE *file;
    unsigned long long a;
    unsigned long long b;
    unsigned kind;

    (void)snprintf(log, sizeof(log), "%s/log", agent->dir);
    (void)snprintf(command, sizeof(command),
                   "env -u SHOAL_FAULT -u CWORKER_BUG -u CWORKER_DEVICE CWORKER_LOG=%s %s %s seed=%" PRIu64 " compute_us=0 ballast=0",
                   log, agent->program, agent->options, agent->job_seed);
    file = popen(command, "r");
    if (file == NULL || fgets(line, sizeof(line), file) == NULL ||
        sscanf(line, "digest %llx updates %llu", &a, &b) != 2) {
        fail(agent, "the reference run failed: %s", command);
        return false;
    }
    (void)pclose(file);
    agent->want_state = a;
    agent->want_updates = b;
    file = fopen(log, "r");
    if (file == NULL)
        return false;
    while (fscanf(file, "%llu %u %llx", &a, &kind, &b) == 3)
        if (a < STEPS_MAX)
            agent->want_digest[a] = b;
    (void)fclose(file);
    return true;
}

/* The times on the control page must fit in the worker's life. */
static void check_times(struct agent *agent, const struct worker *w)
{
    const struct shoal_control_slot *slot = &agent->hosts[w->host].page->slots[w->slot];
    uint64_t life_ns = now_ns() - w->started_ns;
    uint64_t word = atomic_load(&slot->first_epoch_word);
    uint64_t first_ns = atomic_load(&slot->first_complete_ns);
    uint64_t computed_ns = atomic_load(&slot->computed_ns);

    if (atomic_load(&slot->worker_id) != w->id || atomic_load(&slot->applied_step) == 0)
        return;
    if (word == 0 && agent->epochs_made > 1)
        return; /* it came for the last step's result */
    if (word == 0 || word > atomic_load(&slot->epoch_word) || first_ns <= w->started_ns ||
        first_ns - w->started_ns > life_ns)
        fail(agent, "worker %" PRIu64 ": first step complete in epoch %" PRIx64 " at %" PRIu64, w->id, word, first_ns);
    if (computed_ns > life_ns || (computed_ns == 0 && atomic_load(&slot->minibatches) > 0))
        fail(agent, "worker %" PRIu64 " computed for %" PRIu64 " of its %" PRIu64 " ns", w->id, computed_ns, life_ns);
}

static void check_worker(struct agent *agent, const struct worker *w)
{
    char text[256] = "";
    unsigned long long digest;
    unsigned long long updates;

    if (w->dead || w->doomed || w->dropped || !w->joined)
        return;
    if (w->reaped && aborted_by_ucx(w)) { /* when all was done */
        agent->ucx_aborts++;
        return;
    }
    if (!w->stateful && !w->done) /* it came when the last files were being written */
        return;
    if (!WIFEXITED(w->status) || WEXITSTATUS(w->status) != 0) {
        fail(agent, "worker %" PRIu64 " ended with status %x", w->id, (unsigned)w->status);
        return;
    }
    (void)!pread(w->out, text, sizeof(text) - 1, 0);
    if (sscanf(text, "digest %llx updates %llu", &digest, &updates) != 2 || digest != agent->want_state ||
        updates != agent->want_updates)
        fail(agent, "worker %" PRIu64 " printed \"%s\", one worker alone has digest %016" PRIx64 " updates %" PRIu64,
             w->id, text, agent->want_state, agent->want_updates);
    check_times(agent, w);
}

static void random_events(struct agent *agent)
{
    static const enum event_kind kinds[] = { EVENT_KILL,   EVENT_LOSE,   EVENT_JOIN, EVENT_JOIN,
                                             EVENT_SHRINK, EVENT_REFORM, EVENT_STOP, EVENT_RESTART_AGENT };

    for (uint32_t i = 0; i < agent->scenario->random_events && agent->event_count < EVENTS_MAX; i++) {
        struct event *event = &agent->events[agent->event_count++];

        *event = (struct event){ .kind = kinds[shoal_rand_below(&agent->rand, sizeof(kinds) / sizeof(kinds[0]))],
                                 .step = shoal_rand_below(&agent->rand, agent->total_steps),
                                 .delay_us = shoal_rand_below(&agent->rand, 3000) };
    }
}

#define ROWS_MAX 65536

struct time_row {
    uint64_t step; /* 0: a mini-batch was computed from begin to end */
    uint64_t begin;
    uint64_t end;
    uint64_t epoch;
};

static size_t read_times(const struct worker *w, struct time_row *rows)
{
    FILE *file = fopen(w->times_path, "r");
    size_t count = file == NULL ? 0 : fread(rows, sizeof(*rows), ROWS_MAX, file);

    if (file != NULL)
        (void)fclose(file);
    return count;
}

static int by_begin(const void *a, const void *b)
{
    const struct time_row *x = a;
    const struct time_row *y = b;

    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* How much of [from, to] some survivor spent on mini-batches: while one computes, no other can be complete. */
static uint64_t computing(struct time_row *rows, size_t count, uint64_t from, uint64_t to)
{
    uint64_t sum = 0;

    qsort(rows, count, sizeof(*rows), by_begin);
    for (size_t i = 0; i < count; i++) {
        uint64_t begin = rows[i].begin > from ? rows[i].begin : from;
        uint64_t end = rows[i].end < to ? rows[i].end : to;

        if (end <= begin)
            continue;
        sum += end - begin;
        from = end;
    }
    return sum;
}

/* From the kill to the moment when the last survivor has completed its first step of a new epoch. */
static void report_kill(struct agent *agent)
{
    static struct time_row rows[ROWS_MAX];
    static struct time_row all[ROWS_MAX];
    uint64_t worst = 0;
    size_t spans = 0;

    for (uint32_t i = 0; i < agent->worker_count; i++) {
        size_t count = agent->workers[i].dead ? 0 : read_times(&agent->workers[i], rows);
        uint64_t first = 0;

        for (size_t r = 0; r < count; r++) {
            if (rows[r].step == 0 && spans < ROWS_MAX)
                all[spans++] = rows[r];
            if (rows[r].step != 0 && rows[r].end > agent->kill_ns && rows[r].epoch > agent->kill_epoch && first == 0)
                first = rows[r].end;
        }
        worst = first > worst ? first : worst;
    }
    if (worst == 0)
        return;
    (void)printf("  SIGKILL to the last survivor's next complete step: %.2f ms, of these computing %.2f ms (%s)\n",
                 (double)(worst - agent->kill_ns) / 1e6, (double)computing(all, spans, agent->kill_ns, worst) / 1e6,
                 agent->options);
}

/* From fork() of the worker that joined to its first complete step. */
static void report_join(struct agent *agent)
{
    static struct time_row rows[ROWS_MAX];
    const struct worker *w = &agent->workers[agent->scenario->workers];
    size_t count = agent->worker_count > agent->scenario->workers ? read_times(w, rows) : 0;

    for (size_t r = 0; r < count; r++)
        if (rows[r].step != 0) {
            (void)printf("  fork of a joiner to its first complete step: %.2f ms (%s)\n",
                         (double)(rows[r].end - w->started_ns) / 1e6, agent->options);
            return;
        }
}

static void clean_up(struct agent *agent)
{
    char command[128];

    atomic_store(&agent->over, true);
    for (uint32_t i = 0; i < agent->worker_count; i++) {
        struct worker *w = &agent->workers[i];

        if (!w->reaped) {
            (void)kill(w->pid, SIGKILL);
            (void)waitpid(w->pid, &w->status, 0);
        }
        if (w->conn >= 0)
            (void)close(w->conn);
        (void)close(w->out);
    }
    for (uint32_t i = 0; i < agent->scenario->hosts; i++) {
        if (agent->hosts[i].listener >= 0)
            (void)close(agent->hosts[i].listener);
        (void)close(agent->hosts[i].page_fd); /* the page stays mapped: watches may look at it still */
        (void)close(agent->hosts[i].arena_fd);
    }
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", agent->dir);
    if (system(command) != 0)
        (void)fprintf(stderr, "cannot remove %s\n", agent->dir);
}

/* Returns whether nothing went wrong, or not what had to. */
static bool say_verdict(const struct agent *agent, const char *program, uint64_t seed)
{
    const struct scenario *scenario = agent->scenario;
    bool green = !agent->failed;

    if (scenario->want_red && !green && scenario->why != NULL && strstr(agent->why, scenario->why) == NULL) {
        (void)printf("FAIL %s: noticed as \"%s\", not as \"%s\"\n", scenario->name, agent->why, scenario->why);
        return true;
    }
    if (scenario->want_red && green)
        (void)printf("FAIL %s: a planted bug was not noticed\n", scenario->name);
    else if (!scenario->want_red && !green)
        (void)printf("FAIL %s: %s; again: comm_harness %s scenario=%s seed=%" PRIu64 " verbose=1\n", scenario->name,
                     agent->why, program, scenario->name, seed);
    else
        (void)printf("ok   %s (seed %" PRIu64 ", %u epochs, %u aborts of UCX%s%s)\n", scenario->name, seed,
                     agent->epochs_made, agent->ucx_aborts, scenario->want_red ? "; noticed: " : "",
                     scenario->want_red ? agent->why : "");
    return green;
}

static bool run_scenario(const struct scenario *scenario, const char *program, const char *options, uint64_t seed,
                         bool verbose)
{
    static struct agent *all; /* they stay: a watch may write into its pipe still */
    struct agent *agent = calloc(1, sizeof(*agent));
    bool green;

    agent->before = all;
    all = agent;
    agent->scenario = scenario;
    agent->program = program;
    agent->options = options == NULL ? scenario->options : options;
    agent->seed = seed;
    agent->verbose = verbose;
    agent->job_seed = seed | 1;
    shoal_rand_init(&agent->rand, seed);
    agent->in = malloc(sizeof(*agent->in));
    agent->out = calloc(1, sizeof(*agent->out));
    agent->bytes = malloc(SHOAL_WORKER_MESSAGE_MAX);
    agent->epoch_bytes = malloc(SHOAL_WORKER_MESSAGE_MAX);
    (void)snprintf(agent->dir, sizeof(agent->dir), "/tmp/shoal-harness-XXXXXX");
    if (mkdtemp(agent->dir) == NULL || pipe2(agent->watch_pipe, O_CLOEXEC | O_NONBLOCK) != 0)
        exit(2);
    agent->elems = option(agent->options, "elems=", 1000);
    agent->v = option(agent->options, " v=", 8);
    agent->samples = option(agent->options, "samples=", 500);
    agent->minibatch = option(agent->options, "minibatch=", 4);
    agent->epochs = option(agent->options, "epochs=", 2);
    agent->minibatches = shoal_minibatch_count(agent->samples, agent->minibatch);
    agent->steps_per_epoch = (agent->minibatches + agent->v - 1) / agent->v;
    agent->total_steps = (agent->steps_per_epoch + 1) * agent->epochs;
    for (uint32_t i = 0; i < EVENTS_MAX && (scenario->events[i].step != 0 || scenario->events[i].delay_us != 0); i++)
        agent->events[agent->event_count++] = scenario->events[i];
    random_events(agent);
    for (uint32_t i = 0; i < scenario->hosts; i++)
        host_init(agent, i);
    if (reference(agent)) {
        for (uint32_t i = 0; i < scenario->workers; i++)
            worker_start(agent, i * scenario->hosts / scenario->workers,
                         i + 1 == (scenario->faulty == 0 ? 2 : scenario->faulty) ? scenario->fault : NULL);
        loop(agent);
        for (uint32_t i = 0; i < agent->worker_count && !agent->failed; i++)
            check_worker(agent, &agent->workers[i]);
        if (!agent->failed && agent->acked != agent->total_steps)
            fail(agent, "%" PRIu64 " of %" PRIu64 " steps are recorded", agent->acked, agent->total_steps);
    }
    green = say_verdict(agent, program, seed);
    if (scenario->time_kill && green)
        report_kill(agent);
    if (scenario->time_join && green)
        report_join(agent);
    (void)fflush(stdout);
    clean_up(agent);
    free(agent->in);
    free(agent->out);
    free(agent->bytes);
    free(agent->epoch_bytes);
    return green != scenario->want_red;
}

#define SMALL "elems=3000 v=8 samples=301 minibatch=4 epochs=2"
#define SLOWER "elems=3000 v=8 samples=301 minibatch=4 epochs=2 compute_us=300"

/* Gradients come in parts, and slices are added up before all are there. */
#define PARTS "elems=200003 v=8 samples=301 minibatch=4 epochs=2 parts=9"
#define PARTS_WIDE "elems=600001 v=2 samples=101 minibatch=4 epochs=2 parts=13"

/* Weights and momentum are updated slice by slice, out of place. */
#define UPDATE "elems=40003 v=8 samples=301 minibatch=4 epochs=2 update=1"
#define UPDATE_PARTS PARTS " update=1"

static const struct scenario scenarios[] = {
    { .name = "one_worker", .options = SMALL, .hosts = 1, .workers = 1 },
    { .name = "two_workers", .options = SMALL, .hosts = 1, .workers = 2 },
    { .name = "three_workers", .options = SMALL, .hosts = 1, .workers = 3 },
    { .name = "more_workers_than_mini_batches", .options = "elems=3000 v=3 samples=100", .hosts = 1, .workers = 5 },
    { .name = "six_workers_of_two_mega",
      .options = "elems=500001 v=6 samples=120 minibatch=4 epochs=1",
      .hosts = 1,
      .workers = 6 },
    { .name = "a_hundred_and_twenty_eight",
      .options = "elems=150001 v=128 samples=1300 minibatch=1 epochs=1",
      .hosts = 3,
      .workers = 128,
      .events = { { .kind = EVENT_KILL, .step = 2 }, { .kind = EVENT_JOIN, .step = 5 }, { .kind = EVENT_KILL, .step = 8 } },
      .seconds = 120 },
    { .name = "odd_interval",
      .options = "elems=10007 v=13 samples=501 minibatch=2 epochs=1",
      .hosts = 1,
      .workers = 4 },
    { .name = "tiny_vector", .options = "elems=1 v=5 samples=100", .hosts = 1, .workers = 3 },
    { .name = "kill_before_ready", .options = SMALL, .hosts = 1, .workers = 3, .fault = "before_ready:1:kill" },
    { .name = "kill_entering", .options = SMALL, .hosts = 1, .workers = 3, .fault = "entering:0:kill" },
    { .name = "kill_before_publish", .options = SMALL, .hosts = 1, .workers = 3, .fault = "before_publish:4:kill" },
    { .name = "kill_after_publish", .options = SMALL, .hosts = 1, .workers = 3, .fault = "after_publish:4:kill" },
    { .name = "kill_before_reduce", .options = SMALL, .hosts = 1, .workers = 3, .fault = "before_reduce:4:kill" },
    { .name = "kill_mid_reduce", .options = SMALL, .hosts = 1, .workers = 3, .fault = "mid_reduce:4:kill" },
    { .name = "kill_after_reduce", .options = SMALL, .hosts = 1, .workers = 3, .fault = "after_reduce:4:kill" },
    { .name = "kill_before_complete", .options = SMALL, .hosts = 1, .workers = 3, .fault = "before_complete:4:kill" },
    { .name = "kill_after_complete", .options = SMALL, .hosts = 1, .workers = 3, .fault = "after_complete:4:kill" },
    { .name = "kill_before_apply", .options = SMALL, .hosts = 1, .workers = 3, .fault = "before_apply:4:kill" },
    { .name = "kill_validating", .options = SMALL, .hosts = 1, .workers = 3, .fault = "mid_reduce:11:kill" },
    { .name = "kill_when_done", .options = SMALL, .hosts = 1, .workers = 3, .fault = "done:22:kill" },
    { .name = "exit_mid_reduce", .options = SMALL, .hosts = 1, .workers = 3, .fault = "mid_reduce:4:exit" },
    { .name = "stop_mid_reduce", .options = SMALL, .hosts = 1, .workers = 3, .fault = "mid_reduce:4:stop" },
    { .name = "parts", .options = PARTS, .hosts = 1, .workers = 3 },
    { .name = "parts_of_one_mini_batch_each", .options = PARTS_WIDE, .hosts = 1, .workers = 2 },
    { .name = "parts_begun_anew", .options = PARTS " anew=1", .hosts = 1, .workers = 3 },
    { .name = "parts_of_two_hosts", .options = PARTS, .hosts = 2, .workers = 4 },
    { .name = "parts_kill_between", .options = PARTS, .hosts = 1, .workers = 3, .fault = "mid_parts:4:kill" },
    { .name = "parts_kill_while_adding", .options = PARTS, .hosts = 1, .workers = 3, .fault = "mid_early:4:kill" },
    { .name = "parts_kill_while_all_add",
      .options = PARTS_WIDE,
      .hosts = 1,
      .workers = 2,
      .fault = "mid_early:4:kill" },
    { .name = "parts_kill_after_publish", .options = PARTS, .hosts = 1, .workers = 3, .fault = "after_publish:4:kill" },
    { .name = "parts_stop_between", .options = PARTS, .hosts = 1, .workers = 3, .fault = "mid_parts:5:stop" },
    { .name = "parts_stop_while_adding", .options = PARTS, .hosts = 1, .workers = 3, .fault = "mid_early:5:stop" },
    { .name = "parts_and_joins",
      .options = PARTS " compute_us=300",
      .hosts = 1,
      .workers = 2,
      .events = { { .kind = EVENT_JOIN, .step = 3 },
                  { .kind = EVENT_KILL, .step = 8 },
                  { .kind = EVENT_REFORM, .step = 5, .delay_us = 700 } } },
    { .name = "update", .options = UPDATE, .hosts = 1, .workers = 3 },
    { .name = "update_in_parts", .options = UPDATE_PARTS " anew=1", .hosts = 1, .workers = 3 },
    { .name = "update_not_offered_by_all", .options = UPDATE " update=2", .hosts = 1, .workers = 2 },
    { .name = "update_not_the_same_of_all", .options = UPDATE " update=3", .hosts = 1, .workers = 2 },
    { .name = "update_of_two_hosts", .options = UPDATE, .hosts = 2, .workers = 5 },
    { .name = "update_kill_between", .options = UPDATE, .hosts = 1, .workers = 3, .fault = "mid_update:4:kill" },
    { .name = "update_kill_the_second_one", .options = UPDATE, .hosts = 1, .workers = 2, .fault = "mid_update:5:kill" },
    { .name = "update_stop_between", .options = UPDATE, .hosts = 1, .workers = 3, .fault = "mid_update:4:stop" },
    { .name = "update_kill_while_adding",
      .options = UPDATE_PARTS,
      .hosts = 1,
      .workers = 3,
      .fault = "mid_early:6:kill" },
    { .name = "update_kill_early", .options = UPDATE_PARTS, .hosts = 1, .workers = 3, .fault = "mid_update:6:kill" },
    { .name = "update_kill_slices_done", .options = UPDATE, .hosts = 1, .workers = 3, .fault = "slices_done:4:kill" },
    { .name = "update_kill_after_reduce", .options = UPDATE, .hosts = 1, .workers = 3, .fault = "after_reduce:4:kill" },
    { .name = "update_kill_after_complete",
      .options = UPDATE,
      .hosts = 1,
      .workers = 3,
      .fault = "after_complete:4:kill" },
    { .name = "update_kill_before_apply", .options = UPDATE, .hosts = 1, .workers = 3, .fault = "before_apply:4:kill" },
    { .name = "update_kill_validating", .options = UPDATE, .hosts = 1, .workers = 3, .fault = "mid_reduce:11:kill" },
    { .name = "update_and_joins",
      .options = UPDATE " compute_us=300",
      .hosts = 1,
      .workers = 2,
      .events = { { .kind = EVENT_JOIN, .step = 3 },
                  { .kind = EVENT_KILL, .step = 8 },
                  { .kind = EVENT_REFORM, .step = 5, .delay_us = 700 } } },
    { .name = "update_shrink",
      .options = UPDATE " compute_us=300",
      .hosts = 1,
      .workers = 2,
      .events = { { .kind = EVENT_SHRINK, .step = 5 }, { .kind = EVENT_JOIN, .step = 9 } } },
    { .name = "update_all_die",
      .options = UPDATE " compute_us=300",
      .hosts = 1,
      .workers = 2,
      .events = { { .kind = EVENT_KILL_ALL, .step = 9 } } },
    { .name = "update_fetch",
      .options = UPDATE,
      .hosts = 1,
      .workers = 3,
      .fault = "slices_done:4:pause",
      .events = { { .kind = EVENT_REFORM, .step = 3, .delay_us = 40000 } } },
    { .name = "update_hosts_fetch",
      .options = UPDATE,
      .hosts = 2,
      .workers = 4,
      .fault = "slices_done:4:pause",
      .events = { { .kind = EVENT_REFORM, .step = 3, .delay_us = 40000 } } },
    { .name = "update_hosts_kill", .options = UPDATE, .hosts = 2, .workers = 5, .fault = "mid_update:4:kill" },
    { .name = "stop_before_publish", .options = SMALL, .hosts = 1, .workers = 3, .fault = "before_publish:6:stop" },
    { .name = "join", .options = SLOWER, .hosts = 1, .workers = 2, .events = { { .kind = EVENT_JOIN, .step = 3 } } },
    { .name = "two_joins_and_a_kill",
      .options = SLOWER,
      .hosts = 1,
      .workers = 2,
      .events = { { .kind = EVENT_JOIN, .step = 3 },
                  { .kind = EVENT_JOIN, .step = 3 },
                  { .kind = EVENT_KILL, .step = 8 } } },
    { .name = "donor_dies_while_giving",
      .options = SLOWER,
      .hosts = 1,
      .workers = 3,
      .fault = "give_copy:*:kill",
      .events = { { .kind = EVENT_JOIN, .step = 3 }, { .kind = EVENT_JOIN, .step = 9 } } },
    { .name = "shrink",
      .options = SLOWER,
      .hosts = 1,
      .workers = 3,
      .events = { { .kind = EVENT_SHRINK, .step = 5 } } },
    { .name = "reform",
      .options = SLOWER,
      .hosts = 1,
      .workers = 3,
      .events = { { .kind = EVENT_REFORM, .step = 2 }, { .kind = EVENT_REFORM, .step = 5, .delay_us = 700 } } },
    { .name = "agent_restarts",
      .options = SLOWER,
      .hosts = 1,
      .workers = 3,
      .events = { { .kind = EVENT_RESTART_AGENT, .step = 3 } } },
    { .name = "all_die",
      .options = SLOWER,
      .hosts = 1,
      .workers = 2,
      .events = { { .kind = EVENT_KILL_ALL, .step = 9 } } },
    { .name = "hosts_two", .options = SMALL, .hosts = 2, .workers = 2 },
    { .name = "hosts_two_of_two", .options = SMALL, .hosts = 2, .workers = 4 },
    { .name = "hosts_three", .options = "elems=3000 v=7 samples=150 epochs=1", .hosts = 3, .workers = 3 },
    { .name = "hosts_uneven", .options = "elems=200003 v=6 samples=60 minibatch=2 epochs=1", .hosts = 2, .workers = 3 },
    { .name = "hosts_large", .options = "elems=3000001 v=2 samples=40 minibatch=4 epochs=1", .hosts = 2, .workers = 2 },
    { .name = "hosts_three_large", .options = "elems=6000001 v=8 samples=32 minibatch=2 epochs=1", .hosts = 3, .workers = 5 },
    { .name = "hosts_kill_before_publish",
      .options = SMALL,
      .hosts = 2,
      .workers = 3,
      .fault = "before_publish:4:kill" },
    { .name = "hosts_kill_mid_reduce", .options = SMALL, .hosts = 2, .workers = 3, .fault = "mid_reduce:4:kill" },
    { .name = "hosts_kill_after_complete",
      .options = SMALL,
      .hosts = 2,
      .workers = 3,
      .fault = "after_complete:4:kill" },
    { .name = "hosts_kill_before_apply", .options = SMALL, .hosts = 2, .workers = 4, .fault = "before_apply:4:kill" },
    { .name = "hosts_stop", .options = SMALL, .hosts = 2, .workers = 3, .fault = "mid_reduce:4:stop" },
    { .name = "hosts_join",
      .options = SLOWER,
      .hosts = 2,
      .workers = 2,
      .events = { { .kind = EVENT_JOIN, .step = 3 }, { .kind = EVENT_JOIN, .step = 6 } } },
    { .name = "hosts_kill",
      .options = SLOWER,
      .hosts = 2,
      .workers = 4,
      .events = { { .kind = EVENT_KILL, .step = 3 }, { .kind = EVENT_KILL, .step = 7, .delay_us = 400 } } },
    { .name = "hosts_lost",
      .options = SLOWER,
      .hosts = 4,
      .workers = 4,
      .events = { { .kind = EVENT_LOSE, .step = 3 },
                  { .kind = EVENT_LOSE, .step = 7, .delay_us = 400 },
                  { .kind = EVENT_LOSE, .step = 11, .delay_us = 900 } } },
    { .name = "hosts_reform_often",
      .options = SLOWER,
      .hosts = 2,
      .workers = 4,
      .events = { { .kind = EVENT_REFORM, .step = 1, .delay_us = 0 },
                  { .kind = EVENT_REFORM, .step = 1, .delay_us = 377 },
                  { .kind = EVENT_REFORM, .step = 2, .delay_us = 754 },
                  { .kind = EVENT_REFORM, .step = 2, .delay_us = 1131 },
                  { .kind = EVENT_REFORM, .step = 3, .delay_us = 8 },
                  { .kind = EVENT_REFORM, .step = 3, .delay_us = 385 },
                  { .kind = EVENT_REFORM, .step = 4, .delay_us = 762 },
                  { .kind = EVENT_REFORM, .step = 4, .delay_us = 1139 },
                  { .kind = EVENT_REFORM, .step = 5, .delay_us = 16 },
                  { .kind = EVENT_REFORM, .step = 5, .delay_us = 393 },
                  { .kind = EVENT_REFORM, .step = 6, .delay_us = 770 },
                  { .kind = EVENT_REFORM, .step = 6, .delay_us = 1147 },
                  { .kind = EVENT_REFORM, .step = 7, .delay_us = 24 },
                  { .kind = EVENT_REFORM, .step = 7, .delay_us = 401 },
                  { .kind = EVENT_REFORM, .step = 8, .delay_us = 778 },
                  { .kind = EVENT_REFORM, .step = 8, .delay_us = 1155 },
                  { .kind = EVENT_REFORM, .step = 9, .delay_us = 32 },
                  { .kind = EVENT_REFORM, .step = 9, .delay_us = 409 },
                  { .kind = EVENT_REFORM, .step = 10, .delay_us = 786 },
                  { .kind = EVENT_REFORM, .step = 10, .delay_us = 1163 },
                  { .kind = EVENT_REFORM, .step = 11, .delay_us = 40 },
                  { .kind = EVENT_REFORM, .step = 11, .delay_us = 417 },
                  { .kind = EVENT_REFORM, .step = 12, .delay_us = 794 },
                  { .kind = EVENT_REFORM, .step = 12, .delay_us = 1171 } } },
    { .name = "ops_one_host", .options = SMALL " ops=1", .hosts = 1, .workers = 3 },
    { .name = "ops_two_hosts", .options = SMALL " ops=1", .hosts = 2, .workers = 2 },
    { .name = "ops_out_of_order", .options = SMALL " ops=2", .hosts = 1, .workers = 3 },
    { .name = "ops_many_hosts", .options = "elems=1 v=4 samples=16 minibatch=4 epochs=1 ops=3", .hosts = 4, .workers = 4 },
    { .name = "ops_three_hosts", .options = SMALL " ops=1", .hosts = 3, .workers = 5 },
    { .name = "fetch_on_a_host",
      .options = SMALL,
      .hosts = 1,
      .workers = 3,
      .fault = "slices_done:4:pause",
      .events = { { .kind = EVENT_REFORM, .step = 3, .delay_us = 40000 } } },
    { .name = "fetch_between_hosts",
      .options = SMALL,
      .hosts = 2,
      .workers = 2,
      .fault = "slices_done:4:pause",
      .events = { { .kind = EVENT_REFORM, .step = 3, .delay_us = 40000 } } },
    { .name = "links_break_between_steps",
      .options = SMALL,
      .hosts = 2,
      .workers = 3,
      .fault = "after_complete:4:break,after_complete:9:break" },
    { .name = "links_break_before_apply", .options = SMALL, .hosts = 3, .workers = 3, .fault = "before_apply:4:break" },
    { .name = "links_break_when_done", .options = SMALL, .hosts = 2, .workers = 2, .fault = "done:22:break" },
    { .name = "joiner_is_interrupted",
      .options = SLOWER,
      .hosts = 1,
      .workers = 2,
      .fault = "give_copy:*:pause",
      .faulty = 1,
      .events = { { .kind = EVENT_JOIN, .step = 3 }, { .kind = EVENT_REFORM, .step = 3, .delay_us = 250000 } } },
    { .name = "joiner_between_hosts_is_interrupted",
      .options = SLOWER,
      .hosts = 2,
      .workers = 2,
      .fault = "give_copy:*:pause",
      .faulty = 1,
      .events = { { .kind = EVENT_JOIN, .step = 3 }, { .kind = EVENT_REFORM, .step = 3, .delay_us = 250000 } } },
    { .name = "bug_skip_sample", .options = SMALL, .hosts = 1, .workers = 2, .bug = "skip_sample", .want_red = true },
    { .name = "bug_double_sample",
      .options = SMALL,
      .hosts = 1,
      .workers = 2,
      .bug = "double_sample",
      .want_red = true },
    { .name = "bug_dropped_gradient",
      .options = SMALL,
      .hosts = 1,
      .workers = 2,
      .bug = "dropped_gradient",
      .want_red = true },
    { .name = "bug_double_gradient",
      .options = SMALL,
      .hosts = 1,
      .workers = 2,
      .bug = "double_gradient",
      .want_red = true },
    { .name = "bug_gap_in_an_epoch",
      .options = SMALL,
      .hosts = 1,
      .workers = 2,
      .spoil = SPOIL_GAP,
      .want_red = true,
      .why = "does not give each of 8 mini-batches to one member" },
    { .name = "bug_overlap_in_an_epoch",
      .options = SMALL,
      .hosts = 1,
      .workers = 2,
      .spoil = SPOIL_OVERLAP,
      .want_red = true,
      .why = "does not give each of 8 mini-batches to one member" },
    { .name = "time_kill_small",
      .options = "elems=262144 v=6 samples=600 minibatch=2 epochs=1",
      .hosts = 1,
      .workers = 3,
      .events = { { .kind = EVENT_KILL, .step = 20, .delay_us = 500 } },
      .time_kill = true },
    { .name = "time_kill_ballast",
      .options = "elems=262144 v=6 samples=600 minibatch=2 epochs=1 ballast=1024",
      .hosts = 1,
      .workers = 3,
      .events = { { .kind = EVENT_KILL, .step = 20, .delay_us = 500 } },
      .time_kill = true },
    { .name = "time_join",
      .options = "elems=262144 v=6 samples=600 minibatch=2 epochs=1",
      .hosts = 1,
      .workers = 2,
      .events = { { .kind = EVENT_JOIN, .step = 10, .delay_us = 500 } },
      .time_join = true },
};

/* Once for each round, each with a seed of its own. */
static const struct scenario random_scenarios[] = {
    { .name = "random", .options = SLOWER, .hosts = 1, .workers = 3, .random_events = 6 },
    { .name = "random_hosts", .options = SLOWER, .hosts = 2, .workers = 4, .random_events = 5 },
    { .name = "update_random", .options = UPDATE_PARTS " compute_us=300 anew=1", .hosts = 1, .workers = 3, .random_events = 6 },
    { .name = "update_random_hosts", .options = UPDATE " compute_us=300", .hosts = 2, .workers = 5, .random_events = 5 },
    { .name = "parts_random", .options = PARTS " compute_us=300 anew=1", .hosts = 1, .workers = 3, .random_events = 6 },
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void list(void)
{
    for (size_t i = 0; i < COUNT(scenarios); i++)
        if (!scenarios[i].time_kill && !scenarios[i].time_join)
            (void)puts(scenarios[i].name);
    for (size_t i = 0; i < COUNT(random_scenarios); i++)
        (void)puts(random_scenarios[i].name);
}

int main(int argc, char **argv)
{
    const char *only = NULL;
    const char *options = NULL;
    uint64_t seed = 1;
    uint64_t rounds = 2;
    bool verbose = false;
    bool green = true;

    if (argc < 2) {
        (void)fprintf(
            stderr,
            "comm_harness CWORKER [scenario=NAME] [options=\"OF THE WORKERS\"] [seed=N] [rounds=N] [verbose=1] | "
            "comm_harness list\n");
        return 2;
    }
    if (strcmp(argv[1], "list") == 0) {
        list();
        return 0;
    }
    for (int i = 2; i < argc; i++) {
        if (strncmp(argv[i], "scenario=", 9) == 0)
            only = argv[i] + 9;
        else if (strncmp(argv[i], "options=", 8) == 0)
            options = argv[i] + 8;
        else if (strncmp(argv[i], "seed=", 5) == 0)
            seed = strtoull(argv[i] + 5, NULL, 0);
        else if (strncmp(argv[i], "rounds=", 7) == 0)
            rounds = strtoull(argv[i] + 7, NULL, 0);
        else if (strncmp(argv[i], "verbose=", 8) == 0)
            verbose = argv[i][8] == '1';
    }
    (void)signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < COUNT(scenarios); i++)
        if (only == NULL || strcmp(only, scenarios[i].name) == 0)
            green = run_scenario(&scenarios[i], argv[1], options, seed, verbose) && green;
    for (uint64_t r = 0; r < rounds; r++)
        for (size_t i = 0; i < COUNT(random_scenarios); i++)
            if (only == NULL || strcmp(only, random_scenarios[i].name) == 0)
                green = run_scenario(&random_scenarios[i], argv[1], options, seed + r, verbose) && green;
    return green ? 0 : 1;
}
