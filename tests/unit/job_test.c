/* A job's replicated state: moves, refusals, digests, snapshots, copies. */
#include "shoal/job.h"
#include "shoal/job_entry.h"
#include "shoal/job_facts.h"
#include "shoal/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "shoal/rand.h"

static struct shoal_job_entry entry, scratch;
static uint8_t bytes[SHOAL_JOB_SNAPSHOT_BYTES_MAX], more[SHOAL_JOB_SNAPSHOT_BYTES_MAX];

static struct shoal_job_spec sample_spec(bool elastic)
{
    struct shoal_job_spec spec = {
        .elastic = elastic, .workers_min = 1, .workers_max = 4, .devices_per_worker = 1, .priority = 5
    };

    memcpy(spec.framework, "edtPyTorch", 11);
    memcpy(spec.creator, "ada", 4);
    memcpy(spec.main_file, "t.py", 5);
    spec.args = shoal_view_text("--exec-start edtPyTorch");
    spec.argv = (struct shoal_job_texts){ .count = 2,
                                          .bytes = shoal_view_of("--lr\0"
                                                                 "0.1",
                                                                 9) };
    return spec;
}

static struct shoal_job *new_job_of(struct shoal_job_spec spec)
{
    struct shoal_job_founding founding = { .id = { { 1 } }, .ticket_ms = 3, .create_ms = 4, .founder = { { 9 } } };
    struct shoal_job *job;
    size_t len;

    assert_int_equal(shoal_job_spec_encode(&spec, bytes, sizeof(bytes), &len), SHOAL_OK);
    founding.spec = shoal_view_of(bytes, len);
    assert_int_equal(shoal_job_create(&job, &founding), SHOAL_OK);
    return job;
}

static struct shoal_job *new_job(bool elastic) { return new_job_of(sample_spec(elastic)); }

static unsigned apply(struct shoal_job *job)
{
    size_t len;

    assert_int_equal(shoal_job_entry_encode(&entry, bytes, sizeof(bytes), &len), SHOAL_OK);
    return shoal_job_apply(job, job->applied + 1, shoal_view_of(bytes, len), &scratch);
}

static struct shoal_job_entry *start(uint8_t kind)
{
    memset(&entry, 0, sizeof(entry));
    entry.kind = kind;
    entry.wall_ms = 100;
    return &entry;
}

static unsigned to_state(struct shoal_job *job, uint8_t state)
{
    start(SHOAL_JOB_ENTRY_STATE)->u.state.state = state;
    entry.u.state.exit_code = -1;
    return apply(job);
}

static unsigned place(struct shoal_job *job, uint64_t worker, uint8_t role)
{
    start(SHOAL_JOB_ENTRY_PLACE)->u.place.add_count = 1;
    entry.u.place.attempt = job->attempt;
    entry.u.place.add[0] = (struct shoal_placement){
        .worker_id = worker, .role = role, .slot = role == SHOAL_JOB_DRIVER ? SHOAL_SLOT_NONE : (uint32_t)worker % 8
    };
    return apply(job);
}

static void call_with_sizes(struct shoal_job *job, uint32_t call)
{
    start(SHOAL_JOB_ENTRY_CALL)->u.call.call = call;
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_CALLS);
    start(SHOAL_JOB_ENTRY_SIZES)->u.call.call = call;
    entry.u.call.sizes.virtual_workers = 6;
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_CALLS);
}

static unsigned epoch(struct shoal_job *job, uint32_t e, uint64_t worker)
{
    start(SHOAL_JOB_ENTRY_EPOCH)->u.epoch.epoch.e = e;
    entry.u.epoch.call = 1;
    entry.u.epoch.member_count = 1;
    entry.u.epoch.members[0].worker_id = worker;
    return apply(job);
}

static unsigned recover(struct shoal_job *job, uint32_t generation)
{
    uint8_t small[128];

    return shoal_job_apply(job, job->applied + 1,
                           shoal_view_of(small, shoal_job_entry_recover(small, 128, generation, 1)), &scratch);
}

/* Every pair of states: allowed exactly where execs-api 5.3 has an arrow. */
static void test_moves(void **state)
{
    static const char *const allowed[SHOAL_JOB_STATE_COUNT] = {
        [SHOAL_JOB_NEW] = "SUBMITTED PENDING_CRD_SCHEDULER KILLED ERROR",
        [SHOAL_JOB_SUBMITTED] = "PENDING_JOB_SCHEDULER PENDING_CRD_SCHEDULER LAUNCHING KILLED ERROR",
        [SHOAL_JOB_PENDING_JOB_SCHEDULER] = "PENDING_CRD_SCHEDULER LAUNCHING KILLED ERROR",
        [SHOAL_JOB_PENDING_CRD_SCHEDULER] = "PENDING_JOB_SCHEDULER LAUNCHING KILLED ERROR",
        [SHOAL_JOB_LAUNCHING] = "PENDING_CRD_SCHEDULER RUNNING RECOVERING KILLED ERROR",
        [SHOAL_JOB_RUNNING] = "RECOVERING KILLED ERROR",
        [SHOAL_JOB_RECOVERING] = "RUNNING KILLED ERROR",
        [SHOAL_JOB_FINISHED] = "",
        [SHOAL_JOB_KILLED] = "",
        [SHOAL_JOB_ERROR] = "",
    };

    (void)state;
    for (uint8_t from = 0; from < SHOAL_JOB_STATE_COUNT; from++) {
        for (uint8_t to = 0; to < SHOAL_JOB_STATE_COUNT; to++) {
            struct shoal_job *job = new_job(false);
            const char *name = shoal_job_state_name((enum shoal_job_state)to);
            bool want = from == to ? !shoal_job_state_ended((enum shoal_job_state)from) && from != SHOAL_JOB_FINISHED
                                   : strstr(allowed[from], name) != NULL;

            job->state = from;
            if (((to_state(job, to) & SHOAL_JOB_CHANGED_REFUSED) == 0) != want)
                fail_msg("%s -> %s: want %s", shoal_job_state_name((enum shoal_job_state)from), name,
                         want ? "taken" : "refused");
            if (job->state != (want ? to : from))
                fail_msg("%s -> %s ended in %s", shoal_job_state_name((enum shoal_job_state)from), name,
                         shoal_job_state_name((enum shoal_job_state)job->state));
            shoal_job_destroy(job);
        }
    }
}

static void test_placements(void **state)
{
    struct shoal_job *job = new_job(true);

    (void)state;
    assert_int_equal(place(job, 1, SHOAL_JOB_ENGINE), SHOAL_JOB_CHANGED_STATE | SHOAL_JOB_CHANGED_PLACES);
    assert_int_equal(job->state, SHOAL_JOB_LAUNCHING);
    assert_int_equal(place(job, 1, SHOAL_JOB_ENGINE), SHOAL_JOB_CHANGED_REFUSED); /* a worker twice */
    assert_int_equal(place(job, 2, SHOAL_JOB_DRIVER), SHOAL_JOB_CHANGED_PLACES);
    assert_int_equal(shoal_job_held(job), 1);
    assert_int_equal(shoal_job_driver(job)->worker_id, 2);
    start(SHOAL_JOB_ENTRY_PLACE)->u.place.drop_count = 2;
    entry.u.place.drop[0] = 1;
    entry.u.place.drop[1] = 77; /* not there: no matter */
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_PLACES);
    assert_int_equal(job->placement_count, 1);
    for (uint64_t w = 10; w < 10 + SHOAL_PLACEMENTS_PLAIN - 1; w++)
        assert_int_equal(place(job, w, SHOAL_JOB_ENGINE), SHOAL_JOB_CHANGED_PLACES);
    assert_int_equal(place(job, 500, SHOAL_JOB_ENGINE), SHOAL_JOB_CHANGED_REFUSED); /* the table is full */
    assert_int_equal(job->placement_count, SHOAL_PLACEMENTS_PLAIN);
    start(SHOAL_JOB_ENTRY_STOP);
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_FLAGS);
    start(SHOAL_JOB_ENTRY_PLACE)->u.place.drop_count = 1;
    entry.u.place.drop[0] = 10;
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_PLACES);
    assert_int_equal(place(job, 501, SHOAL_JOB_ENGINE), SHOAL_JOB_CHANGED_REFUSED); /* it is being stopped */
    shoal_job_destroy(job);
}

static unsigned place_many(struct shoal_job *job, uint64_t first, uint32_t count)
{
    start(SHOAL_JOB_ENTRY_PLACE)->u.place.add_count = count;
    entry.u.place.attempt = 1;
    for (uint32_t i = 0; i < count; i++)
        entry.u.place.add[i] = (struct shoal_placement){ .worker_id = first + i, .slot = i % SHOAL_SLOTS_MAX, .attempt = 1 };
    return apply(job);
}

static unsigned epoch_of(struct shoal_job *job, uint32_t e, uint64_t first, uint32_t count)
{
    start(SHOAL_JOB_ENTRY_EPOCH)->u.epoch.epoch.e = e;
    entry.u.epoch.call = 1;
    entry.u.epoch.member_count = count;
    for (uint32_t i = 0; i < count; i++)
        entry.u.epoch.members[i].worker_id = first + i;
    return apply(job);
}

/* Versions before this one do not read such an entry: of a plain job it changes nothing anywhere. */
static void test_a_plain_job_has_the_bounds_of_versions_before(void **state)
{
    struct shoal_job *job = new_job(true);

    (void)state;
    assert_int_equal(place_many(job, 1, SHOAL_JOB_WORKERS_PLAIN + 1), SHOAL_JOB_CHANGED_REFUSED);
    assert_int_equal(job->placement_count, 0);
    assert_int_equal(place_many(job, 1, SHOAL_JOB_WORKERS_PLAIN), SHOAL_JOB_CHANGED_STATE | SHOAL_JOB_CHANGED_PLACES);
    assert_int_equal(place(job, 200, SHOAL_JOB_ENGINE), SHOAL_JOB_CHANGED_PLACES);
    assert_int_equal(place(job, 65, SHOAL_JOB_ENGINE), SHOAL_JOB_CHANGED_PLACES);
    call_with_sizes(job, 1);
    assert_int_equal(epoch_of(job, 1, 1, SHOAL_JOB_WORKERS_PLAIN + 1), SHOAL_JOB_CHANGED_REFUSED);
    assert_int_equal(epoch_of(job, 1, 1, SHOAL_JOB_WORKERS_PLAIN), SHOAL_JOB_CHANGED_EPOCH | SHOAL_JOB_CHANGED_CALLS);
    start(SHOAL_JOB_ENTRY_PLACE)->u.place.drop_count = SHOAL_PLACEMENTS_PLAIN + 1;
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_REFUSED);
    shoal_job_destroy(job);
}

static void test_a_wide_job(void **state)
{
    struct shoal_job_spec spec = sample_spec(true);
    struct shoal_job *job, *copy;
    size_t len;

    (void)state;
    spec.workers_max = SHOAL_JOB_WORKERS_MAX;
    job = new_job_of(spec);
    assert_int_equal(place_many(job, 1, SHOAL_JOB_WORKERS_MAX), SHOAL_JOB_CHANGED_STATE | SHOAL_JOB_CHANGED_PLACES);
    for (uint64_t w = 500; job->placement_count < SHOAL_PLACEMENTS_MAX; w++)
        assert_int_equal(place(job, w, SHOAL_JOB_ENGINE), SHOAL_JOB_CHANGED_PLACES);
    assert_int_equal(place(job, 900, SHOAL_JOB_ENGINE), SHOAL_JOB_CHANGED_REFUSED);
    call_with_sizes(job, 1);
    assert_int_equal(epoch_of(job, 1, 1, SHOAL_JOB_WORKERS_MAX), SHOAL_JOB_CHANGED_EPOCH | SHOAL_JOB_CHANGED_CALLS);
    assert_int_equal(shoal_job_snapshot_encode(job, more, sizeof(more), &len), SHOAL_OK);
    assert_int_equal(shoal_job_restore(&copy, shoal_view_of(more, len)), SHOAL_OK);
    assert_int_equal(copy->placement_count, SHOAL_PLACEMENTS_MAX);
    assert_int_equal(copy->epoch->members[SHOAL_JOB_WORKERS_MAX - 1].worker_id, SHOAL_JOB_WORKERS_MAX);
    assert_int_equal(place_many(job, 1, SHOAL_JOB_WORKERS_MAX), SHOAL_JOB_CHANGED_REFUSED); /* each is there */
    start(SHOAL_JOB_ENTRY_PLACE)->u.place.drop_count = SHOAL_PLACEMENTS_MAX;
    for (uint32_t i = 0; i < SHOAL_PLACEMENTS_MAX; i++)
        entry.u.place.drop[i] = job->placements[i].worker_id;
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_PLACES);
    assert_int_equal(job->placement_count, 0);
    shoal_job_destroy(job);
    shoal_job_destroy(copy);
}

static void test_calls_and_epochs(void **state)
{
    struct shoal_job *job = new_job(true);

    (void)state;
    (void)place(job, 1, SHOAL_JOB_ENGINE);
    (void)place(job, 2, SHOAL_JOB_DRIVER);
    assert_int_equal(epoch(job, 1, 1), SHOAL_JOB_CHANGED_REFUSED); /* no call */
    start(SHOAL_JOB_ENTRY_CALL)->u.call.call = 2;
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_REFUSED); /* call 1 first */
    call_with_sizes(job, 1);
    assert_int_equal(epoch(job, 1, 9), SHOAL_JOB_CHANGED_REFUSED); /* not placed */
    assert_int_equal(epoch(job, 1, 2), SHOAL_JOB_CHANGED_REFUSED); /* a driver is no member */
    assert_int_equal(epoch(job, 1, 1), SHOAL_JOB_CHANGED_EPOCH | SHOAL_JOB_CHANGED_CALLS);
    assert_int_equal(epoch(job, 1, 1), SHOAL_JOB_CHANGED_REFUSED); /* epochs rise */
    assert_int_equal(job->calls[0].state, SHOAL_CALL_RUNNING);
    start(SHOAL_JOB_ENTRY_CALL)->u.call.call = 2;
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_REFUSED); /* one at a time */
    start(SHOAL_JOB_ENTRY_CALL_STATE)->u.call.call = 1;
    entry.u.call.state = SHOAL_CALL_FINISHED;
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_REFUSED); /* not done */
    entry.u.call.state = SHOAL_CALL_DONE;
    entry.u.call.final_step = 40;
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_CALLS);
    entry.u.call.state = SHOAL_CALL_FINISHED;
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_CALLS);
    assert_int_equal(job->calls[0].final_step, 40);
    assert_int_equal(epoch(job, 2, 1), SHOAL_JOB_CHANGED_REFUSED); /* it is over */
    start(SHOAL_JOB_ENTRY_SNAPSHOT)->u.call.call = 1;
    entry.u.call.snapshot_step = 10;
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_CALLS);
    entry.u.call.snapshot_step = 9;
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_REFUSED); /* an older snapshot */
    start(SHOAL_JOB_ENTRY_PROGRESS)->u.progress.call = 1;
    entry.u.progress.has_data_epoch = true;
    for (uint32_t d = 0; d < SHOAL_DATA_EPOCHS_MAX + 3; d++) {
        entry.u.progress.data_epoch = (struct shoal_data_epoch){ .call = 1, .data_epoch = d };
        assert_int_equal(apply(job), SHOAL_JOB_CHANGED_PROGRESS);
    }
    assert_int_equal(job->data_epoch_count, SHOAL_DATA_EPOCHS_MAX);
    assert_int_equal(job->data_epochs[0].data_epoch, 3); /* the oldest are dropped */
    shoal_job_destroy(job);
}

static void test_result_and_end(void **state)
{
    struct shoal_job *job = new_job(true);

    (void)state;
    (void)place(job, 1, SHOAL_JOB_DRIVER);
    (void)to_state(job, SHOAL_JOB_RUNNING);
    start(SHOAL_JOB_ENTRY_RESULT)->u.result = (struct shoal_hash){ { 1 } };
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_REFUSED); /* the driver's end comes first */
    start(SHOAL_JOB_ENTRY_STATE)->u.state.state = SHOAL_JOB_RUNNING;
    entry.u.state.result_wanted = true;
    (void)apply(job);
    start(SHOAL_JOB_ENTRY_RESULT)->u.result = (struct shoal_hash){ { 1 } };
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_STATE | SHOAL_JOB_CHANGED_RESULT);
    assert_int_equal(job->state, SHOAL_JOB_FINISHED);
    assert_int_equal(job->end_ms, 100);
    start(SHOAL_JOB_ENTRY_STOP);
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_REFUSED); /* it has ended */
    start(SHOAL_JOB_ENTRY_DELETE);
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_FLAGS);
    assert_true(job->deleted && !job->stop);
    shoal_job_destroy(job);
}

/* Killed in the middle of a call, which nobody ends any more: nothing of it works. */
static void test_an_ended_job_has_no_workers(void **state)
{
    struct shoal_job *job = new_job(true);
    struct shoal_job_facts facts;

    (void)state;
    (void)place(job, 1, SHOAL_JOB_DRIVER);
    (void)place(job, 2, SHOAL_JOB_ENGINE);
    (void)to_state(job, SHOAL_JOB_RUNNING);
    call_with_sizes(job, 1);
    (void)epoch(job, 1, 2);
    shoal_job_facts(job, &facts);
    assert_int_equal(facts.workers_now, 1);
    (void)to_state(job, SHOAL_JOB_KILLED);
    shoal_job_facts(job, &facts);
    assert_int_equal(facts.workers_now, 0);
    shoal_job_destroy(job);
}

/* J6. */
static void test_plain_scripts_end_in_one_entry(void **state)
{
    struct shoal_job *job = new_job(false);

    (void)state;
    start(SHOAL_JOB_ENTRY_RESULT)->u.result = (struct shoal_hash){ { 1 } };
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_REFUSED); /* nothing of it has run */
    (void)place(job, 1, SHOAL_JOB_SCRIPT);
    assert_int_equal(job->state, SHOAL_JOB_LAUNCHING);
    start(SHOAL_JOB_ENTRY_RESULT)->u.result = (struct shoal_hash){ { 1 } };
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_STATE | SHOAL_JOB_CHANGED_PLACES | SHOAL_JOB_CHANGED_RESULT);
    assert_int_equal(job->state, SHOAL_JOB_FINISHED);
    assert_int_equal(job->placement_count, 0);
    assert_int_equal(job->exit_code, 0);
    assert_int_equal(job->start_ms, job->end_ms); /* it never was RUNNING */
    shoal_job_destroy(job);
}

static void test_recover(void **state)
{
    struct shoal_job *job = new_job(true), *copy;
    size_t len;

    (void)state;
    (void)place(job, 1, SHOAL_JOB_ENGINE);
    (void)place(job, 2, SHOAL_JOB_DRIVER);
    (void)to_state(job, SHOAL_JOB_RUNNING);
    call_with_sizes(job, 1);
    (void)epoch(job, 4, 1);
    assert_int_equal(recover(job, 2) & SHOAL_JOB_CHANGED_REFUSED, 0);
    assert_int_equal(job->generation, 2);
    assert_int_equal(job->placement_count, 1); /* the engine may come along, the driver does not */
    assert_int_equal(job->placements[0].worker_id, 1);
    assert_int_equal(job->state, SHOAL_JOB_RECOVERING);
    assert_true(job->unsettled);
    assert_int_equal(job->epoch->member_count, 0);
    assert_int_equal(recover(job, 2), SHOAL_JOB_CHANGED_REFUSED);
    assert_int_equal(epoch(job, 5, 1), SHOAL_JOB_CHANGED_REFUSED); /* the lost ones may have committed it */
    assert_int_equal(epoch(job, job->epoch->epoch.e + 1, 1), SHOAL_JOB_CHANGED_EPOCH | SHOAL_JOB_CHANGED_CALLS);
    assert_true(job->epoch->epoch.e > 1000);
    assert_int_equal(shoal_job_snapshot_encode(job, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_job_restore(&copy, shoal_view_of(bytes, len)), SHOAL_OK);
    assert_true(copy->unsettled);
    shoal_job_destroy(copy);
    (void)place(job, 3, SHOAL_JOB_DRIVER);
    assert_false(job->unsettled);
    shoal_job_destroy(job);
}

/* A task that has ended stays as it ended; one that only lacks its result gets it. */
static void test_recover_after_the_end(void **state)
{
    struct shoal_job *job = new_job(true);

    (void)state;
    (void)place(job, 2, SHOAL_JOB_DRIVER);
    (void)to_state(job, SHOAL_JOB_RUNNING);
    start(SHOAL_JOB_ENTRY_STATE)->u.state.state = SHOAL_JOB_RUNNING;
    entry.u.state.exit_code = 0;
    entry.u.state.result_wanted = true;
    (void)apply(job);
    (void)recover(job, 2);
    assert_int_equal(job->state, SHOAL_JOB_RUNNING);
    start(SHOAL_JOB_ENTRY_RESULT)->u.result.bytes[0] = 1;
    (void)apply(job);
    assert_int_equal(job->state, SHOAL_JOB_FINISHED);
    assert_int_equal(recover(job, 3), SHOAL_JOB_CHANGED_FLAGS);
    assert_int_equal(job->state, SHOAL_JOB_FINISHED);
    assert_int_equal(job->generation, 3);
    shoal_job_destroy(job);
}

static void random_entry(struct shoal_rand *rand, const struct shoal_job *job)
{
    start((uint8_t)shoal_rand_below(rand, SHOAL_JOB_ENTRY_KIND_COUNT));
    switch ((enum shoal_job_entry_kind)entry.kind) {
    case SHOAL_JOB_ENTRY_STATE:
        entry.u.state.state = (uint8_t)shoal_rand_below(rand, SHOAL_JOB_FINISHED);
        entry.u.state.result_wanted = shoal_rand_below(rand, 9) == 0;
        break;
    case SHOAL_JOB_ENTRY_PLACE:
        entry.u.place.attempt = job->attempt + (uint32_t)shoal_rand_below(rand, 2);
        entry.u.place.add_count = (uint32_t)shoal_rand_below(rand, 3);
        for (uint32_t i = 0; i < entry.u.place.add_count; i++)
            entry.u.place.add[i] = (struct shoal_placement){ .worker_id = shoal_rand_below(rand, 9) + 1, .slot = 1 };
        entry.u.place.drop_count = 1;
        entry.u.place.drop[0] = shoal_rand_below(rand, 9) + 1;
        break;
    case SHOAL_JOB_ENTRY_CALL:
    case SHOAL_JOB_ENTRY_SIZES:
    case SHOAL_JOB_ENTRY_CALL_STATE:
    case SHOAL_JOB_ENTRY_SNAPSHOT:
        entry.u.call.call = (uint32_t)shoal_rand_below(rand, 4) + 1;
        entry.u.call.state = (uint8_t)shoal_rand_below(rand, SHOAL_CALL_STATE_COUNT);
        entry.u.call.sizes.virtual_workers = 6;
        entry.u.call.snapshot_step = shoal_rand_below(rand, 50);
        break;
    case SHOAL_JOB_ENTRY_EPOCH:
        entry.u.epoch.epoch.e = job->epoch->epoch.e + (uint32_t)shoal_rand_below(rand, 2);
        entry.u.epoch.call = job->call_count;
        entry.u.epoch.member_count = 1;
        entry.u.epoch.members[0].worker_id = shoal_rand_below(rand, 9) + 1;
        break;
    case SHOAL_JOB_ENTRY_PROGRESS:
        entry.u.progress.call = 1;
        entry.u.progress.logged_step = shoal_rand_below(rand, 50);
        break;
    case SHOAL_JOB_ENTRY_RESULT:
    case SHOAL_JOB_ENTRY_ARCHIVED: entry.u.result.bytes[0] = 1; break;
    case SHOAL_JOB_ENTRY_RECOVER:
        entry.u.generation = job->generation + (uint32_t)(shoal_rand_below(rand, 20) == 0);
        break;
    case SHOAL_JOB_ENTRY_STOP:
    case SHOAL_JOB_ENTRY_DELETE:
        if (shoal_rand_below(rand, 20) != 0)
            start(SHOAL_JOB_ENTRY_RESULT);
        break;
    case SHOAL_JOB_ENTRY_SCALE: entry.u.scale.replicas = 1; break; /* it is no service: refused */
    case SHOAL_JOB_ENTRY_EDIT: break;
    case SHOAL_JOB_ENTRY_TASKS: /* it is no array: refused; tests/unit/array_test.c has one */
        entry.u.tasks.end_count = 1;
        entry.u.tasks.ends[0].worker_id = shoal_rand_below(rand, 9) + 1;
        break;
    case SHOAL_JOB_ENTRY_KIND_COUNT: break;
    }
}

/* Two replicas, one of them restored from a snapshot after every entry: same bytes, same digest. */
static void test_replicas(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct shoal_job *a = new_job(true), *b = new_job(true);
        struct shoal_rand rand;

        shoal_rand_init(&rand, seed);
        for (uint32_t n = 0; n < 120; n++) {
            struct shoal_job *copy;
            size_t la, lb;

            random_entry(&rand, a);
            assert_int_equal(apply(a), apply(b));
            assert_int_equal(shoal_job_snapshot_encode(b, more, sizeof(more), &lb), SHOAL_OK);
            assert_int_equal(shoal_job_restore(&copy, shoal_view_of(more, lb)), SHOAL_OK);
            shoal_job_destroy(b);
            b = copy;
            assert_int_equal(shoal_job_snapshot_encode(a, bytes, sizeof(bytes), &la), SHOAL_OK);
            assert_int_equal(la, lb);
            assert_memory_equal(bytes, more, la);
            assert_true(a->digest == b->digest && a->digest != 0);
        }
        shoal_job_destroy(a);
        shoal_job_destroy(b);
    }
}

static void test_garbage(void **state)
{
    struct shoal_job *job = new_job(true);
    struct shoal_rand rand;
    uint8_t garbage[600];
    uint64_t digest = job->digest;
    uint64_t refused = 0;

    (void)state;
    shoal_rand_init(&rand, 3);
    for (uint32_t n = 0; n < 3000; n++) {
        size_t len = shoal_rand_below(&rand, sizeof(garbage));

        for (size_t i = 0; i < len; i++)
            garbage[i] = (uint8_t)shoal_rand_u64(&rand);
        if (len > 3) {
            garbage[0] = (uint8_t)(garbage[0] % SHOAL_JOB_ENTRY_KIND_COUNT);
            garbage[2] = 1;
        }
        refused += (shoal_job_apply(job, job->applied + 1, shoal_view_of(garbage, len), &scratch) &
                    SHOAL_JOB_CHANGED_REFUSED) != 0;
    }
    assert_true(job->refused == refused && refused > 2900);
    assert_true(job->digest != digest); /* refused entries count too: replicas must refuse the same */
    shoal_job_destroy(job);
}

static void expect_prefixes_refused(struct shoal_view whole, enum shoal_err (*decode)(struct shoal_view))
{
    for (size_t n = 0; n < whole.len; n++) {
        uint8_t *edge = malloc(n + (n == 0));

        memcpy(edge, whole.bytes, n);
        if (decode(shoal_view_of(edge, n)) == SHOAL_OK)
            fail_msg("a prefix of %zu bytes of %zu is taken", n, whole.len);
        free(edge);
    }
}

static enum shoal_err decode_entry(struct shoal_view view) { return shoal_job_entry_decode(view, &scratch); }
static enum shoal_err decode_spec(struct shoal_view view)
{
    struct shoal_job_spec spec;

    return shoal_job_spec_decode(view, &spec);
}
static enum shoal_err decode_snapshot(struct shoal_view view)
{
    struct shoal_job *job;
    enum shoal_err err = shoal_job_restore(&job, view);

    if (err == SHOAL_OK)
        shoal_job_destroy(job);
    return err;
}
static enum shoal_err decode_summary(struct shoal_view view)
{
    struct shoal_job_summary summary;

    return shoal_job_summary_decode(view, &summary);
}
static enum shoal_err decode_facts(struct shoal_view view)
{
    struct shoal_job_facts facts;

    return shoal_job_facts_decode(view, &facts);
}

static void test_prefixes(void **state)
{
    struct shoal_job *job = new_job(true);
    struct shoal_job_spec spec = sample_spec(true);
    struct shoal_job_facts facts;
    size_t len;

    (void)state;
    for (uint8_t kind = 0; kind < SHOAL_JOB_ENTRY_KIND_COUNT; kind++) {
        start(kind);
        if (kind == SHOAL_JOB_ENTRY_CALL || kind == SHOAL_JOB_ENTRY_SIZES || kind == SHOAL_JOB_ENTRY_CALL_STATE ||
            kind == SHOAL_JOB_ENTRY_SNAPSHOT)
            entry.u.call.call = 1;
        assert_int_equal(shoal_job_entry_encode(&entry, bytes, sizeof(bytes), &len), SHOAL_OK);
        assert_int_equal(decode_entry(shoal_view_of(bytes, len)), SHOAL_OK);
        expect_prefixes_refused(shoal_view_of(bytes, len), decode_entry);
    }
    assert_int_equal(shoal_job_spec_encode(&spec, bytes, sizeof(bytes), &len), SHOAL_OK);
    expect_prefixes_refused(shoal_view_of(bytes, len), decode_spec);
    (void)place(job, 1, SHOAL_JOB_ENGINE);
    call_with_sizes(job, 1);
    assert_int_equal(shoal_job_snapshot_encode(job, bytes, sizeof(bytes), &len), SHOAL_OK);
    expect_prefixes_refused(shoal_view_of(bytes, len), decode_snapshot);
    shoal_job_facts(job, &facts);
    assert_int_equal(facts.workers_max, 4);
    assert_string_equal(facts.creator, "ada");
    assert_int_equal(shoal_job_facts_encode(&facts, bytes, sizeof(bytes), &len), SHOAL_OK);
    expect_prefixes_refused(shoal_view_of(bytes, len), decode_facts);
    shoal_job_destroy(job);
}

/* Lists and clients of WMLA show it on every node: device, memory, work directory. */
static void test_facts_say_what_was_asked_for(void **state)
{
    static struct shoal_job_spec spec;
    static struct shoal_job_facts facts, back;
    size_t len;

    (void)state;
    spec = (struct shoal_job_spec){
        .priority = 7, .device = SHOAL_JOB_DEVICE_GPU, .worker_memory_bytes = 3ull << 30, .model_dir = "md/below"
    };
    shoal_job_facts_asked(&spec, &facts);
    assert_int_equal(shoal_job_facts_encode(&facts, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_job_facts_decode(shoal_view_of(bytes, len), &back), SHOAL_OK);
    assert_int_equal(back.priority, 7);
    assert_int_equal(back.device, SHOAL_JOB_DEVICE_GPU);
    assert_int_equal(back.worker_mib, 3072);
    assert_string_equal(back.work, "md/below");
    memset(spec.model_dir, 'd', sizeof(facts.work)); /* it does not fit; half of it would be another directory */
    memset(&facts, 0, sizeof(facts));
    shoal_job_facts_asked(&spec, &facts);
    assert_string_equal(facts.work, "");
}

/* The largest summary fits one gossip record, with as many of its hosts as there is room for. */
static void test_summary(void **state)
{
    struct shoal_job_summary s = { .host_count = SHOAL_SUMMARY_HOSTS_MAX, .held = 9, .step = 77, .loss_micro = -3 },
                             back;
    size_t len;

    (void)state;
    memset(s.creator, 'c', sizeof(s.creator) - 1);
    memset(s.framework, 'f', sizeof(s.framework) - 1);
    memset(s.app_name, 'a', sizeof(s.app_name) - 1);
    memset(s.pending, 'p', sizeof(s.pending) - 1);
    s.hosts[3].slots = 5;
    s.unfit_count = 2;
    s.unfit[1].bytes[0] = 7;
    s.host_count = 4;
    assert_int_equal(shoal_job_summary_encode(&s, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_true(len <= SHOAL_RECORD_PAYLOAD_MAX);
    assert_int_equal(shoal_job_summary_decode(shoal_view_of(bytes, len), &back), SHOAL_OK);
    assert_memory_equal(&back.hosts[3], &s.hosts[3], sizeof(s.hosts[3]));
    assert_int_equal(back.loss_micro, -3);
    assert_int_equal(back.unfit_count, 2);
    assert_memory_equal(back.unfit, s.unfit, sizeof(s.unfit));
    s.host_count = SHOAL_SUMMARY_HOSTS_MAX;
    expect_prefixes_refused(shoal_view_of(bytes, len), decode_summary);
    s.state = SHOAL_JOB_RUNNING;
    s.elastic = s.has_metrics = true;
    s.priority = s.want_min = s.want_max = s.workers_min = s.workers_max = s.held = s.class_hash = UINT32_MAX;
    s.data_epoch = s.rate_milli = s.epoch.e = s.epoch.k = UINT32_MAX;
    s.ticket_ms = s.term = s.step = s.create_ms = s.start_ms = s.end_ms = UINT64_MAX;
    s.loss_micro = s.metric_micro = INT64_MIN;
    s.id.bytes[0] = s.leader.bytes[0] = 1;
    for (unsigned i = 0; i < SHOAL_SUMMARY_HOSTS_MAX; i++)
        s.hosts[i].slots = UINT64_MAX;
    assert_int_equal(shoal_job_summary_encode(&s, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_true(len <= SHOAL_RECORD_PAYLOAD_MAX);
    assert_int_equal(shoal_job_summary_decode(shoal_view_of(bytes, len), &back), SHOAL_OK);
    if (back.host_count < 7 || back.hosts[back.host_count - 1].slots != UINT64_MAX || back.held != UINT32_MAX)
        fail_msg("of twelve hosts %u are told", back.host_count);
    assert_int_equal(back.unfit_count, 0);
    s.pending[20] = s.creator[10] = s.framework[12] = s.app_name[30] = '\0'; /* an ordinary job tells them all */
    assert_int_equal(shoal_job_summary_encode(&s, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_job_summary_decode(shoal_view_of(bytes, len), &back), SHOAL_OK);
    assert_int_equal(back.host_count, SHOAL_SUMMARY_HOSTS_MAX);
    assert_int_equal(back.unfit_count, 2);
}

static void test_spec_check(void **state)
{
    static const struct {
        const char *name;
        uint32_t min, max, devices;
        bool elastic, no_main;
        enum shoal_err want;
    } rows[] = {
        { "an elastic job", 1, 4, 1, true, false, SHOAL_OK },
        { "no worker at all", 0, 4, 1, true, false, SHOAL_ERR_INVALID },
        { "minimum above the maximum", 5, 4, 1, true, false, SHOAL_ERR_INVALID },
        { "a gang with a range", 1, 4, 1, false, false, SHOAL_ERR_INVALID },
        { "as many workers as a job can have", 1, SHOAL_JOB_WORKERS_MAX, 1, true, false, SHOAL_OK },
        { "more workers than a job can have", 1, SHOAL_JOB_WORKERS_MAX + 1, 1, true, false, SHOAL_ERR_INVALID },
        { "a gang that is wide", 65, 65, 1, false, false, SHOAL_ERR_INVALID },
        { "two devices for each worker", 1, 4, 2, true, false, SHOAL_ERR_UNSUPPORTED },
        { "no main file", 1, 4, 1, true, true, SHOAL_ERR_INVALID },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct shoal_job_spec spec = sample_spec(rows[i].elastic);
        struct shoal_msg msg = { "" };

        spec.workers_min = rows[i].min;
        spec.workers_max = rows[i].max;
        spec.devices_per_worker = rows[i].devices;
        if (rows[i].no_main)
            spec.main_file[0] = '\0';
        if (shoal_job_spec_check(&spec, &msg) != rows[i].want || (rows[i].want != SHOAL_OK) != (msg.text[0] != '\0'))
            fail_msg("%s: %s", rows[i].name, msg.text);
    }
}

static void test_spec_lists(void **state)
{
    struct shoal_job_spec spec = sample_spec(true), back;
    const char *text = NULL;
    size_t len;

    (void)state;
    assert_int_equal(shoal_job_spec_encode(&spec, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_job_spec_decode(shoal_view_of(bytes, len), &back), SHOAL_OK);
    text = shoal_job_texts_next(&back.argv, NULL);
    assert_string_equal(text, "--lr");
    text = shoal_job_texts_next(&back.argv, text);
    assert_string_equal(text, "0.1");
    assert_null(shoal_job_texts_next(&back.argv, text));
    assert_null(shoal_job_texts_next(&back.env, NULL));
    spec.argv.count = 3; /* a count that the bytes do not hold */
    assert_int_equal(shoal_job_spec_encode(&spec, bytes, sizeof(bytes), &len), SHOAL_ERR_TOO_BIG);
    spec.argv = (struct shoal_job_texts){ .count = 1, .bytes = shoal_view_of("ab\0c", 4) }; /* the last has no end */
    assert_int_equal(shoal_job_spec_encode(&spec, bytes, sizeof(bytes), &len), SHOAL_ERR_TOO_BIG);
}

/* A specification as a program of any version might write it: a head, and fields. */
static size_t foreign_spec(uint8_t version, uint8_t oldest, bool with_more)
{
    struct shoal_pack_writer w = shoal_pack_writer_init(bytes, sizeof(bytes));

    shoal_pack_put_head(&w, (struct shoal_pack_head){ SHOAL_PACK_KIND_SPEC, version, oldest });
    shoal_pack_begin_map(&w);
    if (with_more) {
        shoal_pack_put_name(&w, "affinity"); /* before all that we know, between them, and behind */
        shoal_pack_put_array(&w, 2);
        shoal_pack_put_text(&w, "rack-1");
        shoal_pack_put_nil(&w);
    }
    shoal_pack_put_name(&w, "creator");
    shoal_pack_put_text(&w, "ada");
    if (with_more) {
        shoal_pack_put_name(&w, "deadline");
        shoal_pack_put_u64(&w, 70000);
    }
    shoal_pack_put_name(&w, "main");
    shoal_pack_put_text(&w, "t.py");
    shoal_pack_put_name(&w, "workers_max");
    shoal_pack_put_u64(&w, 3);
    shoal_pack_put_name(&w, "workers_min");
    shoal_pack_put_u64(&w, 3);
    if (with_more) {
        shoal_pack_put_name(&w, "zone");
        shoal_pack_begin_map(&w);
        shoal_pack_end_map(&w);
    }
    shoal_pack_end_map(&w);
    assert_false(w.failed);
    return w.len;
}

static void test_spec_of_a_newer_version_runs(void **state)
{
    struct shoal_job_founding founding = { .id = { { 1 } }, .ticket_ms = 3 };
    struct shoal_job_spec spec;
    struct shoal_job *job;
    struct shoal_msg msg;
    uint8_t again[512];
    size_t len = foreign_spec(SHOAL_JOB_SPEC_VERSION + 1, SHOAL_JOB_SPEC_VERSION, true), again_len;

    (void)state;
    assert_int_equal(shoal_job_spec_decode(shoal_view_of(bytes, len), &spec), SHOAL_OK);
    assert_int_equal(shoal_job_spec_check(&spec, &msg), SHOAL_OK);
    assert_true(spec.workers_max == 3 && strcmp(spec.creator, "ada") == 0);
    assert_int_equal(shoal_job_spec_encode(&spec, again, sizeof(again), &again_len), SHOAL_OK);
    bytes[1] = SHOAL_JOB_SPEC_VERSION; /* only the writer's version differs */
    assert_int_equal(again_len, len);
    assert_memory_equal(again, bytes, len);
    expect_prefixes_refused(shoal_view_of(bytes, len), decode_spec);
    founding.spec = shoal_view_of(again, again_len);
    assert_int_equal(shoal_job_create(&job, &founding), SHOAL_OK);
    assert_true(shoal_view_equal(job->spec_bytes, founding.spec));
    shoal_job_destroy(job);
}

static void test_spec_of_an_older_version_gets_defaults(void **state)
{
    struct shoal_job_spec spec;
    struct shoal_msg msg;
    size_t len = foreign_spec(SHOAL_JOB_SPEC_VERSION, SHOAL_JOB_SPEC_VERSION, false);

    (void)state;
    assert_int_equal(shoal_job_spec_decode(shoal_view_of(bytes, len), &spec), SHOAL_OK);
    assert_int_equal(shoal_job_spec_check(&spec, &msg), SHOAL_OK);
    assert_true(!spec.elastic && !spec.user_cmd && spec.device == SHOAL_JOB_DEVICE_AUTO && spec.priority == 0);
    assert_true(spec.argv.count == 0 && spec.env.count == 0 && spec.args.len == 0 && spec.kept.len == 0);
}

static void test_only_a_wide_job_says_that_versions_before_must_not_run_it(void **state)
{
    struct shoal_job_spec spec = sample_spec(true), back;
    size_t len;

    (void)state;
    spec.workers_max = SHOAL_JOB_WORKERS_PLAIN;
    assert_int_equal(shoal_job_spec_encode(&spec, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_job_spec_decode(shoal_view_of(bytes, len), &back), SHOAL_OK);
    assert_int_equal(back.oldest, 2);
    spec.workers_max++;
    assert_int_equal(shoal_job_spec_encode(&spec, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_job_spec_decode(shoal_view_of(bytes, len), &back), SHOAL_OK);
    assert_int_equal(back.oldest, 5);
}

/* A list whose last text has no end: walking it would leave the bytes. */
static void test_spec_with_an_open_list_is_refused(void **state)
{
    struct shoal_pack_writer w = shoal_pack_writer_init(bytes, sizeof(bytes));
    struct shoal_job_spec spec;

    (void)state;
    shoal_pack_put_head(&w, (struct shoal_pack_head){ SHOAL_PACK_KIND_SPEC, 2, 2 });
    shoal_pack_begin_map(&w);
    shoal_pack_put_name(&w, "argv");
    shoal_pack_put_bin(&w, shoal_view_of("a\0b", 3));
    shoal_pack_end_map(&w);
    assert_int_equal(shoal_job_spec_decode(shoal_pack_writer_view(&w), &spec), SHOAL_ERR_MALFORMED);
}

/* Its author says that nobody older may run it: nobody does, and what it holds is not looked at. */
static void test_spec_for_newer_readers_is_refused(void **state)
{
    struct shoal_job_founding founding = { .id = { { 1 } } };
    struct shoal_job_spec spec;
    struct shoal_job *job;
    size_t len = foreign_spec(SHOAL_JOB_SPEC_VERSION + 1, SHOAL_JOB_SPEC_VERSION + 1, true);

    (void)state;
    assert_int_equal(shoal_job_spec_decode(shoal_view_of(bytes, len), &spec), SHOAL_ERR_UNSUPPORTED);
    founding.spec = shoal_view_of(bytes, len);
    assert_int_equal(shoal_job_create(&job, &founding), SHOAL_ERR_UNSUPPORTED);
    bytes[0] = SHOAL_PACK_KIND_FACTS;
    assert_int_equal(shoal_job_spec_decode(shoal_view_of(bytes, len), &spec), SHOAL_ERR_MALFORMED);
}

/* The bytes of a job that uses nothing new stay what they are, whatever is added: hashes are over them. */
static void test_spec_bytes_are_stable(void **state)
{
    static const char want[] = "j\x02\x02\x89"
                               "\xa4"
                               "args\xb7--exec-start edtPyTorch"
                               "\xa4"
                               "argv\xc4\x09--lr\0"
                               "0.1\0"
                               "\xa7"
                               "creator\xa3"
                               "ada"
                               "\xb2"
                               "devices_per_worker\x01"
                               "\xa9"
                               "framework\xaa"
                               "edtPyTorch"
                               "\xa4"
                               "main\xa4t.py"
                               "\xa8"
                               "priority\x05"
                               "\xab"
                               "workers_max\x04"
                               "\xab"
                               "workers_min\x01";
    struct shoal_job_spec spec = sample_spec(false);
    size_t len;

    (void)state;
    assert_int_equal(shoal_job_spec_encode(&spec, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(len, sizeof(want) - 1);
    assert_memory_equal(bytes, want, len);
}

/* The names of a message's fields, one after the other. */
static void names_of(struct shoal_view message, char *names, size_t cap)
{
    struct shoal_pack_reader r = shoal_pack_reader_init(shoal_view_of(message.bytes + 3, message.len - 3));
    struct shoal_pack_map map = shoal_pack_get_map(&r);
    size_t len = 0;

    while (shoal_pack_next_field(&r, &map)) {
        assert_true(len + map.name.len + 2 < cap);
        memcpy(names + len, map.name.bytes, map.name.len);
        len += map.name.len;
        names[len++] = ' ';
        shoal_pack_skip(&r);
    }
    assert_true(shoal_pack_reader_done(&r));
    names[len] = '\0';
}

/* Nodes of other versions look for these: a name is never given up, and never given to something else. */
static void test_names_are_stable(void **state)
{
    static struct shoal_job_facts facts;
    static struct shoal_job_summary summary;
    char names[600];
    size_t len;

    (void)state;
    memset(&facts, 1, sizeof(facts)); /* every field is there */
    facts.args = facts.data_json = facts.document = shoal_view_text("x");
    facts.app_name[4] = facts.creator[4] = facts.framework[4] = facts.pending[4] = facts.reason[4] = '\0';
    facts.service[4] = facts.transport[4] = facts.work[4] = '\0';
    assert_int_equal(shoal_job_facts_encode(&facts, bytes, sizeof(bytes), &len), SHOAL_OK);
    names_of(shoal_view_of(bytes, len), names, sizeof(names));
    assert_string_equal(names, "app applied args attempt bundle call create_ms creator data data_epoch deleted device document driver_node "
                               "elastic end_ms epoch epoch_k exit_code files framework generation has_metrics id "
                               "join_pause_us leader logged_step loss_micro metric_micro pending priority rate_milli "
                               "reason replicas result revision service start_ms state step stop tasks_done tasks_failed tasks_pending "
                               "tasks_running tasks_stopped term ticket_ms transport version work worker_mib workers_max workers_min workers_now ");
    memset(&summary, 1, sizeof(summary));
    summary.app_name[4] = summary.creator[4] = summary.framework[4] = summary.pending[4] = '\0';
    assert_int_equal(shoal_job_summary_encode(&summary, bytes, sizeof(bytes), &len), SHOAL_OK);
    names_of(shoal_view_of(bytes, len), names, sizeof(names));
    assert_string_equal(names,
                        "app by cls cn cr de dev e el fw gm gp held hosts id k ld loss max met min ms pend rate st step sv t0 "
                        "t1 t2 td term tf tk tn unfit vn wmax wmin ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_are_stable),
        cmocka_unit_test(test_spec_of_a_newer_version_runs),
        cmocka_unit_test(test_spec_of_an_older_version_gets_defaults),
        cmocka_unit_test(test_spec_with_an_open_list_is_refused),
        cmocka_unit_test(test_spec_for_newer_readers_is_refused),
        cmocka_unit_test(test_spec_bytes_are_stable),
        cmocka_unit_test(test_moves),
        cmocka_unit_test(test_placements),
        cmocka_unit_test(test_a_plain_job_has_the_bounds_of_versions_before),
        cmocka_unit_test(test_a_wide_job),
        cmocka_unit_test(test_only_a_wide_job_says_that_versions_before_must_not_run_it),
        cmocka_unit_test(test_calls_and_epochs),
        cmocka_unit_test(test_result_and_end),
        cmocka_unit_test(test_an_ended_job_has_no_workers),
        cmocka_unit_test(test_plain_scripts_end_in_one_entry),
        cmocka_unit_test(test_recover),
        cmocka_unit_test(test_recover_after_the_end),
        cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_facts_say_what_was_asked_for),
        cmocka_unit_test(test_summary),
        cmocka_unit_test(test_spec_check),
        cmocka_unit_test(test_spec_lists),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
