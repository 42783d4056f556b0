/* A host's ledger on a disk and in a memory that fail: what was acknowledged stays, and nothing is acknowledged that may be
 * lost. The test stands for pread, fdatasync and malloc. */
#include "node/agent/agent_ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "shoal/permute.h"
#include "shoal/worker_wire.h"

#include "node/agent/agent_audit.h"
#include "node/agent/agent_files.h"

#include "loop_test.h"
#include "no_env.h"

#define RECORDS 40
#define MINIBATCH 4
#define SAMPLES ((uint64_t)RECORDS * MINIBATCH) /* so the records are one data epoch */
#define JOB_SEED 99

/* ---- what fails ---- */

static atomic_uint flushes, flushes_to_fail;
static atomic_bool reads_fail, large_blocks_fail;
static atomic_llong reads_fail_from; /* of the file */
static atomic_uint reads_of_loop, reads_of_start; /* on the loop's thread; of a file's first byte */
static pthread_t loop_thread;

__attribute__((visibility("default"))) ssize_t pread(int fd, void *bytes, size_t len, off_t at)
{
    if (pthread_equal(pthread_self(), loop_thread))
        atomic_fetch_add(&reads_of_loop, 1);
    if (at == 0)
        atomic_fetch_add(&reads_of_start, 1);
    if (atomic_load(&reads_fail)) {
        off_t from = (off_t)atomic_load(&reads_fail_from);

        if (at >= from) {
            errno = EIO;
            return -1;
        }
        if (at + (off_t)len > from) /* as the kernel does: what lies before the bad page is read */
            len = (size_t)(from - at);
    }
    return syscall(SYS_pread64, fd, bytes, len, at);
}

__attribute__((visibility("default"))) int fdatasync(int fd)
{
    atomic_fetch_add(&flushes, 1);
    if (atomic_load(&flushes_to_fail) > 0) { /* and the pages are clean: the next one has nothing to do */
        atomic_fetch_sub(&flushes_to_fail, 1);
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fdatasync, fd);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BLOCKS_FAIL 0
#else
#define BLOCKS_FAIL 1
void *__libc_malloc(size_t size_bytes);

__attribute__((visibility("default"))) void *malloc(size_t size_bytes)
{
    if (size_bytes >= SHOAL_MIB && atomic_load(&large_blocks_fail)) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_malloc(size_bytes);
}
#endif

/* ---- a host with one job ---- */

struct fixture {
    char dir[64];
    char path[AGENT_PATH_BYTES + 16]; /* of the ledger */
    struct agent *agent;
    struct agent_job *job;
    uv_timer_t watchdog;
    bool late;
    unsigned settled;
    bool held;
    unsigned audits, refused;
    enum shoal_err err;
    struct ledger_progress progress;
    char json[1024];
    bool brings; /* while another host's ledger comes */
    unsigned flushes_before, flushes_between;
};

static const struct shoal_job_id job_id = { { 7 } };
static struct agent *agents[32]; /* their threads live as long as the process */
static unsigned agent_count;

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct shoal_sched_options options = { .self = { { 1 } },
                                           .env = { .hash = no_hash, .verify = no_verify },
                                           .groups_max = 4 };
    char folder[AGENT_PATH_BYTES];
    struct shoal_msg msg;

    loop_thread = pthread_self();
    atomic_store(&reads_fail, false);
    atomic_store(&large_blocks_fail, false);
    atomic_store(&flushes_to_fail, 0);
    atomic_store(&flushes, 0);
    if (f == NULL || (f->agent = calloc(1, sizeof(*f->agent))) == NULL || uv_loop_init(&f->agent->loop) != 0)
        return -1;
    agents[agent_count++] = f->agent;
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/shoal-ledger-XXXXXX");
    if (mkdtemp(f->dir) == NULL)
        return -1;
    (void)snprintf(f->agent->settings.data, sizeof(f->agent->settings.data), "%s", f->dir);
    (void)snprintf(folder, sizeof(folder), "%s/jobs", f->dir);
    (void)mkdir(folder, 0700);
    shoal_rand_init(&options.chance, 1);
    if (agent_files_create(f->agent, &msg) != SHOAL_OK || shoal_sched_create(&f->agent->sched, &options) != SHOAL_OK)
        return -1;
    f->job = agent_job_need(f->agent, job_id);
    agent_job_folder(f->agent, job_id, f->path, AGENT_PATH_BYTES);
    memcpy(f->path + strlen(f->path), "/ledger", 8);
    loop_watch(&f->agent->loop, &f->watchdog, &f->late);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    char command[128];

    agent_ledger_close(f->job);
    (void)uv_timer_stop(&f->watchdog);
    (void)snprintf(command, sizeof(command), "rm -rf %.60s", f->dir);
    return system(command); /* the fixture lives on: its loop has a handle in it */
}

/* ---- records ---- */

static struct shoal_view record_of(uint64_t step, double loss, uint8_t *bytes, size_t cap)
{
    struct shoal_step_head head = { .step = step, .kind = SHOAL_STEP_TRAIN, .call = 1, .v_count = 1, .value_count = 1 };
    struct shoal_step_tuple tuple = { .samples = MINIBATCH, .worker_id = 1, .values = { loss } };
    struct shoal_writer w = shoal_writer_init(bytes, cap);
    struct shoal_sample_sum sum = { 0, 0 };

    head.step_in_epoch = (uint32_t)step - 1;
    for (uint64_t i = 0; i < MINIBATCH && step <= RECORDS; i++)
        shoal_sample_sum_add(&sum, JOB_SEED, shoal_permute(JOB_SEED, 0, SAMPLES, (step - 1) * MINIBATCH + i));
    tuple.id_low = sum.low;
    tuple.id_high = sum.high;
    shoal_put_step_head(&w, &head);
    shoal_put_step_tuple(&w, &tuple, head.value_count);
    return shoal_writer_view(&w);
}

static off_t size_of(const struct fixture *f)
{
    struct stat facts;

    return stat(f->path, &facts) == 0 ? facts.st_size : -1;
}

/* Steps 1 to `count` as a run before has left them, then `torn` bytes. Returns the length of the records. */
static off_t file_of(const struct fixture *f, uint64_t count, size_t torn)
{
    FILE *file = fopen(f->path, "we");
    uint8_t bytes[256];
    off_t whole;

    assert_non_null(file);
    for (uint64_t step = 1; step <= count; step++) {
        struct shoal_view record = record_of(step, (double)step, bytes + 4, sizeof(bytes) - 4);
        struct shoal_writer w = shoal_writer_init(bytes, 4);

        shoal_put_u32(&w, (uint32_t)record.len);
        assert_int_equal(fwrite(bytes, 4 + record.len, 1, file), 1);
    }
    whole = ftello(file);
    memset(bytes, 1, sizeof(bytes));
    assert_int_equal(fwrite(bytes, 1, torn, file), torn);
    assert_int_equal(fclose(file), 0);
    return whole;
}

/* A worker brings the record of a step. */
static void bring(struct fixture *f, uint64_t step)
{
    uint8_t bytes[256];
    struct shoal_worker_records records = { .call = 1, .first_step = step, .count = 1 };

    records.records = record_of(step, 1.0, bytes, sizeof(bytes));
    agent_ledger_records(f->agent, f->job, 1, &records);
}

static void on_settled(void *arg, bool held)
{
    struct fixture *f = arg;

    f->settled++;
    f->held = held;
}

static void pool_run(uv_work_t *work) { (void)work; }

static void pool_ran(uv_work_t *work, int status)
{
    (void)status;
    *(bool *)work->data = true;
}

/* What the pool was asked to do before is done, if it has one thread (main). */
static void pool_settles(struct fixture *f)
{
    bool ran = false;
    uv_work_t work = { .data = &ran };

    assert_int_equal(uv_queue_work(&f->agent->loop, &work, pool_run, pool_ran), 0);
    RUN_AGENT_UNTIL(f, ran);
}

static void open_begin(struct fixture *f)
{
    uint8_t bytes[256];
    uint64_t first;
    uint32_t count;

    (void)agent_ledger_read(f->agent, f->job, 1, 0, bytes, sizeof(bytes), &first, &count);
}

/* It is opened, as far as it can be. */
static void open_ledger(struct fixture *f)
{
    open_begin(f);
    pool_settles(f);
}

struct barrier {
    struct agent_file_job file;
    bool passed;
};

static void barrier_run(struct agent_file_job *file) { (void)file; }

static void barrier_done(struct agent_file_job *file) { ((struct barrier *)(void *)file)->passed = true; }

/* What was asked of the disk before is done. */
static void disk_settles(struct fixture *f)
{
    struct barrier barrier = { .file = { .run = barrier_run, .done = barrier_done } };

    assert_int_equal(agent_file_submit(f->agent, &barrier.file), SHOAL_OK);
    RUN_AGENT_UNTIL(f, barrier.passed);
}

static uint64_t steps_of(struct fixture *f)
{
    struct ledger_progress progress = { .step = 0 };

    (void)agent_ledger_progress(f->job, &progress);
    return progress.step;
}

/* ---- opening ---- */

static void a_ledger_that_cannot_be_read_loses_nothing(void **state)
{
    struct fixture *f = *state;
    off_t whole = file_of(f, RECORDS, 3);

    for (unsigned row = 0; row < 3; row++) {
        static const char *const names[] = { "no memory", "the disk reads nothing", "the disk reads half of it" };

        atomic_store(&large_blocks_fail, row == 0);
        atomic_store(&reads_fail_from, row == 1 ? 0 : whole / 2);
        atomic_store(&reads_fail, row > 0);
        if (row == 0 && !BLOCKS_FAIL)
            continue;
        open_ledger(f);
        assert_int_equal(steps_of(f), 0);
        atomic_store(&large_blocks_fail, false);
        atomic_store(&reads_fail, false);
        if (size_of(f) != whole + 3)
            fail_msg("%s: %lld of %lld bytes are left", names[row], (long long)size_of(f), (long long)whole + 3);
        agent_ledger_close(f->job);
    }
    open_ledger(f);
    assert_int_equal(steps_of(f), RECORDS);
    assert_int_equal(size_of(f), whole); /* what was torn is cut off */
}

static void opening_takes_none_of_the_loops_time_and_loses_nothing(void **state)
{
    struct fixture *f = *state;
    struct ledger_progress progress;
    off_t whole = file_of(f, RECORDS, 3);

    atomic_store(&reads_of_loop, 0);
    open_begin(f);
    assert_int_equal(atomic_load(&reads_of_loop), 0);
    assert_false(agent_ledger_progress(f->job, &progress)); /* nothing is said that is not known */
    bring(f, RECORDS + 1);
    bring(f, RECORDS + 2);
    agent_ledger_settle(f->agent, f->job, 0, 0, 0, on_settled, f);
    RUN_AGENT_UNTIL(f, f->settled == 1);
    pool_settles(f);
    assert_int_equal(atomic_load(&reads_of_loop), 0);
    assert_int_equal(steps_of(f), RECORDS + 2);
    assert_true(size_of(f) > whole + 3);
    agent_ledger_close(f->job);
    open_ledger(f);
    assert_int_equal(steps_of(f), RECORDS + 2);
}

static void a_job_may_go_while_its_ledger_is_opened(void **state)
{
    struct fixture *f = *state;

    (void)file_of(f, RECORDS, 0);
    open_begin(f);
    bring(f, RECORDS + 1);
    agent_ledger_close(f->job);
    pool_settles(f);
    disk_settles(f);
    open_ledger(f);
    assert_int_equal(steps_of(f), RECORDS);
}

static void a_ledger_that_cannot_be_read_holds_nothing_for_sure(void **state)
{
    struct fixture *f = *state;

    (void)file_of(f, RECORDS, 0);
    atomic_store(&reads_fail_from, 0);
    atomic_store(&reads_fail, true);
    open_ledger(f);
    agent_ledger_settle(f->agent, f->job, 0, 0, 0, on_settled, f);
    RUN_AGENT_UNTIL(f, f->settled == 1);
    assert_false(f->held);
}

static void a_look_that_failed_is_not_remembered(void **state)
{
    struct fixture *f = *state;
    struct ledger_progress progress = { .step = 0 };

    (void)file_of(f, RECORDS, 0);
    atomic_store(&reads_fail_from, 0);
    atomic_store(&reads_fail, true);
    assert_false(agent_ledger_look(f->agent, job_id, &progress));
    atomic_store(&reads_fail, false);
    assert_true(agent_ledger_look(f->agent, job_id, &progress));
    assert_int_equal(progress.step, RECORDS);
}

static void no_walk_to_a_record_is_long(void **state)
{
    static const uint64_t steps[] = { 1, 3000, 30000, 59999 };
    struct fixture *f = *state;
    uint8_t bytes[256];
    struct shoal_step_head head;
    struct shoal_reader tuples;
    uint64_t first;
    uint32_t count;

    (void)file_of(f, 60000, 0);
    open_ledger(f);
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        atomic_store(&reads_of_loop, 0);
        assert_true(agent_ledger_read(f->agent, f->job, 1, steps[i], bytes, sizeof(bytes), &first, &count) > 0);
        assert_true(shoal_step_record_len(shoal_view_of(bytes, sizeof(bytes)), &head, &tuples) > 0);
        assert_int_equal(head.step, steps[i] + 1);
        if (atomic_load(&reads_of_loop) > 5000)
            fail_msg("to step %llu: %u reads", (unsigned long long)steps[i], atomic_load(&reads_of_loop));
    }
}

static void a_look_at_a_long_ledger_takes_none_of_the_loops_time(void **state)
{
    struct fixture *f = *state;
    struct ledger_progress progress = { .step = 0 };

    (void)file_of(f, 60000, 0);
    atomic_store(&reads_of_loop, 0);
    assert_false(agent_ledger_look(f->agent, job_id, &progress));
    assert_false(agent_ledger_look(f->agent, job_id, &progress));
    pool_settles(f);
    assert_true(agent_ledger_look(f->agent, job_id, &progress));
    assert_int_equal(progress.step, 60000);
    assert_int_equal(atomic_load(&reads_of_loop), 0);
}

/* What the permanent record says is a whole number of millionths. */
static void a_loss_that_is_no_number_is_not_recorded(void **state)
{
    static const struct {
        double loss, metric;
        bool has_metrics;
        int64_t loss_micro, metric_micro;
    } rows[] = {
        { 0.25, 0.5, true, 250000, 500000 },
        { -3, 0, true, -3000000, 0 },
        { 9e12, 0, true, 9000000000000000000, 0 },
        { 1e13, 0, false, 0, 0 },
        { -1e300, 0, false, 0, 0 },
        { NAN, 0.5, false, 0, 0 },
        { INFINITY, 0.5, false, 0, 0 },
        { 0.5, -INFINITY, false, 0, 0 },
        { 0.5, NAN, false, 0, 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ledger_progress progress = { .has_metrics = true, .loss = rows[i].loss, .metric = rows[i].metric };
        int64_t loss = 0, metric = 0;

        if (ledger_progress_micro(&progress, &loss, &metric) != rows[i].has_metrics || loss != rows[i].loss_micro ||
            metric != rows[i].metric_micro)
            fail_msg("row %zu: %lld, %lld", i, (long long)loss, (long long)metric);
        progress.has_metrics = false;
        assert_false(ledger_progress_micro(&progress, &loss, &metric));
    }
}

/* ---- flushing ---- */

static void a_flush_that_failed_is_never_tried_again(void **state)
{
    struct fixture *f = *state;
    off_t whole = file_of(f, RECORDS, 0);

    open_ledger(f);
    disk_settles(f);
    bring(f, RECORDS + 1);
    disk_settles(f);
    assert_true(atomic_load(&flushes) > 0);
    assert_true(size_of(f) > whole);
    whole = size_of(f);
    atomic_store(&flushes, 0);
    atomic_store(&flushes_to_fail, 1);
    bring(f, RECORDS + 2);
    disk_settles(f);
    assert_int_equal(atomic_load(&flushes), 1);
    bring(f, RECORDS + 2); /* the worker asks again */
    bring(f, RECORDS + 3);
    disk_settles(f);
    assert_int_equal(atomic_load(&flushes), 1);
    assert_int_equal(size_of(f), whole); /* no later agent believes what may be lost */
    agent_ledger_close(f->job);
    open_ledger(f);
    assert_int_equal(steps_of(f), RECORDS + 1);
}

/* What an agent before has left is not this agent's to take back. */
static void the_first_flush_that_fails_takes_back_no_record_of_before(void **state)
{
    struct fixture *f = *state;
    off_t whole = file_of(f, RECORDS, 0);

    atomic_store(&flushes_to_fail, 1);
    open_begin(f);
    bring(f, RECORDS + 1); /* it waits, and is flushed with what is there */
    pool_settles(f);
    disk_settles(f);
    bring(f, RECORDS + 2);
    disk_settles(f);
    assert_int_equal(atomic_load(&flushes), 1);
    assert_int_equal(size_of(f), whole);
}

/* ---- the audit ---- */

static const struct shoal_call whole_call = {
    .call = 1,
    .state = SHOAL_CALL_DONE,
    .job_seed = JOB_SEED,
    .final_step = RECORDS,
    .sizes = { .virtual_workers = 1, .samples = SAMPLES, .minibatch = MINIBATCH, .data_epochs = 1 },
};

static void on_audited(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct agent_audited *audited)
{
    struct fixture *f = arg;

    (void)msg;
    f->audits++;
    f->refused += err == SHOAL_ERR_FULL;
    f->err = err;
    f->progress = audited->progress;
    (void)snprintf(f->json, sizeof(f->json), "%.*s", (int)audited->json.len, (const char *)audited->json.bytes);
}

static void audit(struct fixture *f, uint8_t job)
{
    agent_audit_calls(f->agent, (struct shoal_job_id){ { job } }, &whole_call, 1, on_audited, f);
}

static void an_audit_takes_none_of_the_loops_time(void **state)
{
    struct fixture *f = *state;

    (void)file_of(f, RECORDS, 0);
    atomic_store(&reads_of_loop, 0);
    audit(f, job_id.bytes[0]);
    RUN_AGENT_UNTIL(f, f->audits == 1);
    assert_int_equal(f->err, SHOAL_OK);
    assert_int_equal(atomic_load(&reads_of_loop), 0);
    assert_non_null(strstr(f->json, "\"exact\":true"));
    assert_non_null(strstr(f->json, "\"records\":40,\"records_wanted\":40"));
    assert_int_equal(f->progress.train_steps, RECORDS);
}

static void one_audit_runs_and_those_that_wait_are_shared_and_bounded(void **state)
{
    struct fixture *f = *state;

    (void)file_of(f, RECORDS, 0);
    atomic_store(&reads_of_start, 0);
    for (unsigned i = 0; i < 5; i++)
        audit(f, job_id.bytes[0]); /* the first one runs, the others share one that waits */
    for (unsigned i = 0; i < AGENT_AUDITS_MAX - 2 - 1; i++)
        agent_audit_calls(f->agent, (struct shoal_job_id){ { 8, (uint8_t)i, (uint8_t)(i >> 8) } }, NULL, 0, on_audited,
                          f);
    assert_int_equal(f->audits, 0);
    audit(f, 9);
    assert_int_equal(f->audits, 0);
    audit(f, 10);
    assert_int_equal(f->refused, 1);
    for (unsigned i = 4; i < AGENT_AUDIT_ASKERS_MAX; i++)
        audit(f, job_id.bytes[0]);
    assert_int_equal(f->refused, 1);
    audit(f, job_id.bytes[0]);
    assert_int_equal(f->refused, 2);
    RUN_AGENT_UNTIL(f, f->audits == 1 + AGENT_AUDIT_ASKERS_MAX + AGENT_AUDITS_MAX - 2 + 2);
    assert_int_equal(atomic_load(&reads_of_start), 2);
    audit(f, job_id.bytes[0]);
    RUN_AGENT_UNTIL(f, atomic_load(&reads_of_start) == 3);
}

static void a_job_may_go_while_it_is_audited(void **state)
{
    struct fixture *f = *state;

    (void)file_of(f, RECORDS, 0);
    open_ledger(f);
    audit(f, job_id.bytes[0]);
    agent_ledger_close(f->job);
    RUN_AGENT_UNTIL(f, f->audits == 1);
    assert_int_equal(f->err, SHOAL_OK);
    assert_int_equal(unlink(f->path), 0);
    audit(f, job_id.bytes[0]); /* no step has come here */
    RUN_AGENT_UNTIL(f, f->audits == 2);
    assert_int_equal(f->err, SHOAL_OK);
    assert_non_null(strstr(f->json, "call 1: 0 records of 40 are here"));
}

static void an_audit_of_what_cannot_be_read_says_so(void **state)
{
    struct fixture *f = *state;

    (void)file_of(f, RECORDS, 0);
    atomic_store(&reads_fail_from, 0);
    atomic_store(&reads_fail, true);
    audit(f, job_id.bytes[0]);
    RUN_AGENT_UNTIL(f, f->audits == 1);
    assert_int_equal(f->err, SHOAL_ERR_STORAGE);
}

/* ---- another guardian ---- */

struct guardian {
    struct shoal_identity identity;
    struct shoal_link *link;
    struct peer_calls *calls;
    unsigned ups, asked, brought;
};

static struct guardian ends[2]; /* this host, and the other one; they live as long as the process */

static void on_up(void *arg, const struct shoal_link_peer *peer)
{
    (void)peer;
    ((struct guardian *)arg)->ups++;
}

static void on_down(void *arg, struct shoal_node_id node) { (void)arg, (void)node; }

static void on_frame(void *arg, struct shoal_node_id node, enum shoal_lane lane, uint8_t channel, struct shoal_view frame)
{
    (void)lane;
    (void)channel;
    peer_calls_frame(((struct guardian *)arg)->calls, node, frame);
}

/* It has no record, whatever it is brought. */
static void on_records(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    static const uint8_t nothing[12]; /* u32 call, u64 step */
    struct guardian *end = arg;

    (void)from;
    end->asked++;
    end->brought += args.len > sizeof(job_id.bytes);
    peer_answer(question, SHOAL_OK, "", shoal_view_of(nothing, sizeof(nothing)));
}

static void end_start(struct fixture *f, struct guardian *end)
{
    struct shoal_link_options options = { .loop = &f->agent->loop,
                                          .identity = &end->identity,
                                          .listen = loopback(0),
                                          .handlers = { .arg = end, .on_up = on_up, .on_down = on_down, .on_frame = on_frame } };
    const uint8_t seed[32] = { (uint8_t)(1 + (end - ends)) };
    struct shoal_msg msg;

    shoal_key_of_seed(seed, &end->identity.public_key, &end->identity.secret_key);
    end->identity.node = shoal_node_id_of(&end->identity.public_key);
    end->identity.incarnation = (struct shoal_incarnation){ 1, 1, 0 };
    assert_int_equal(shoal_link_create(&end->link, &options, &msg), SHOAL_OK);
    end->calls = peer_calls_create(&f->agent->loop, end->link);
    peer_serve(end->calls, PEER_RECORDS, on_records, end);
}

static void pair_up(struct fixture *f)
{
    assert_int_equal(shoal_crypto_init(NULL), SHOAL_OK);
    for (unsigned i = 0; i < 2; i++) {
        ends[i] = (struct guardian){ .ups = 0 };
        end_start(f, &ends[i]);
    }
    f->agent->identity = ends[0].identity;
    f->agent->link = ends[0].link;
    f->agent->calls = ends[0].calls;
    agent_job_guarded(f->job, &ends[1].identity.node, 1);
    assert_int_equal(shoal_link_want(ends[0].link, ends[1].identity.node, loopback(shoal_link_port(ends[1].link))), SHOAL_OK);
    RUN_AGENT_UNTIL(f, ends[0].ups == 1 && ends[1].ups == 1);
}

static void is_over(uv_timer_t *timer) { *(bool *)timer->data = true; }

static void wait_ms(struct fixture *f, uint64_t ms)
{
    uv_timer_t *timer = malloc(sizeof(*timer)); /* it lives as long as the loop */
    bool over = false;

    assert_non_null(timer);
    (void)uv_timer_init(&f->agent->loop, timer);
    timer->data = &over;
    (void)uv_timer_start(timer, is_over, ms, 0);
    RUN_AGENT_UNTIL(f, over);
}

/* Such a disk, or a job that has cut its ledger short, must not keep two agents busy with each other. */
static void what_cannot_be_read_is_not_pushed_without_a_pause(void **state)
{
    struct fixture *f = *state;

    pair_up(f);
    atomic_store(&reads_fail_from, 0);
    atomic_store(&reads_fail, true);
    bring(f, 1);
    RUN_AGENT_UNTIL(f, ends[1].asked > 0);
    wait_ms(f, 500);
    assert_in_range(ends[1].asked, 1, 5);
    assert_int_equal(ends[1].brought, 0);
    atomic_store(&reads_fail, false);
    RUN_AGENT_UNTIL(f, ends[1].brought > 0);
}

/* ---- an ended job's archive ---- */

#define THEIRS 10
#define OURS 20

static uint8_t theirs[THEIRS * 256];
static off_t theirs_bytes;

/* It has more of the ledger, and a log. While it answers, its records come here on the usual way, and some more. */
static void on_files(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct fixture *f = arg;
    struct shoal_reader r = shoal_reader_init(args);
    uint8_t list[200];
    struct shoal_writer w = shoal_writer_init(list, sizeof(list));
    char user[SHOAL_SCHED_BY_BYTES], path[300];

    (void)from;
    (void)shoal_get_job_id(&r);
    shoal_get_text(&r, user, sizeof(user));
    shoal_get_text(&r, path, sizeof(path));
    if (path[0] == '\0') {
        shoal_put_u32(&w, 2);
        shoal_put_text(&w, "ledger");
        shoal_put_u64(&w, (uint64_t)theirs_bytes);
        shoal_put_text(&w, "log/app.1/stdout");
        shoal_put_u64(&w, 4);
        peer_answer(question, SHOAL_OK, "", shoal_writer_view(&w));
    } else if (strcmp(path, "ledger") == 0) {
        for (uint64_t step = 1; f->brings && step <= OURS; step++)
            bring(f, step);
        f->flushes_before = atomic_load(&flushes);
        peer_answer(question, SHOAL_OK, "", shoal_view_of(theirs, (size_t)theirs_bytes));
    } else { /* the ledger has been dealt with */
        f->flushes_between = atomic_load(&flushes) - f->flushes_before;
        f->agent->stopping = true;
        peer_answer(question, SHOAL_OK, "", shoal_view_of("text", 4));
    }
}

static void archive(struct fixture *f)
{
    struct shoal_sched_action action = { .kind = SHOAL_SCHED_ARCHIVE_MAKE };
    int fd;

    (void)file_of(f, THEIRS, 0);
    fd = open(f->path, O_RDONLY | O_CLOEXEC);
    theirs_bytes = pread(fd, theirs, sizeof(theirs), 0);
    assert_int_equal(theirs_bytes, size_of(f));
    (void)close(fd);
    assert_int_equal(unlink(f->path), 0);
    pair_up(f);
    peer_serve(ends[1].calls, PEER_ARCHIVE_FILES, on_files, f);
    action.u.archive.job = job_id;
    agent_archive_make(f->agent, &action);
    RUN_AGENT_UNTIL(f, f->agent->stopping);
    wait_ms(f, 100); /* for its last answer, with which all ends */
    pool_settles(f);
}

static void what_another_has_more_of_is_flushed_before_it_replaces_ours(void **state)
{
    struct fixture *f = *state;

    f->brings = false;
    archive(f);
    assert_int_equal(size_of(f), theirs_bytes);
    assert_in_range(f->flushes_between, 1, 2);
}

/* What was acknowledged here while the other one answered is not replaced by less. */
static void what_has_grown_meanwhile_is_not_replaced_by_less(void **state)
{
    struct fixture *f = *state;

    f->brings = true;
    archive(f);
    disk_settles(f);
    assert_true(size_of(f) > theirs_bytes);
    assert_int_equal(steps_of(f), OURS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_ledger_that_cannot_be_read_loses_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(opening_takes_none_of_the_loops_time_and_loses_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_job_may_go_while_its_ledger_is_opened, setup, teardown),
        cmocka_unit_test_setup_teardown(a_ledger_that_cannot_be_read_holds_nothing_for_sure, setup, teardown),
        cmocka_unit_test_setup_teardown(a_look_that_failed_is_not_remembered, setup, teardown),
        cmocka_unit_test_setup_teardown(no_walk_to_a_record_is_long, setup, teardown),
        cmocka_unit_test_setup_teardown(a_look_at_a_long_ledger_takes_none_of_the_loops_time, setup, teardown),
        cmocka_unit_test(a_loss_that_is_no_number_is_not_recorded),
        cmocka_unit_test_setup_teardown(a_flush_that_failed_is_never_tried_again, setup, teardown),
        cmocka_unit_test_setup_teardown(the_first_flush_that_fails_takes_back_no_record_of_before, setup, teardown),
        cmocka_unit_test_setup_teardown(an_audit_takes_none_of_the_loops_time, setup, teardown),
        cmocka_unit_test_setup_teardown(one_audit_runs_and_those_that_wait_are_shared_and_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(a_job_may_go_while_it_is_audited, setup, teardown),
        cmocka_unit_test_setup_teardown(an_audit_of_what_cannot_be_read_says_so, setup, teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_read_is_not_pushed_without_a_pause, setup, teardown),
        cmocka_unit_test_setup_teardown(what_another_has_more_of_is_flushed_before_it_replaces_ours, setup, teardown),
        cmocka_unit_test_setup_teardown(what_has_grown_meanwhile_is_not_replaced_by_less, setup, teardown),
    };

    if (setenv("UV_THREADPOOL_SIZE", "1", 1) != 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
