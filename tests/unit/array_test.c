/* Array jobs: what a range says, and the tasks' part of a job's replicated state (T1 to T4 of shoal/array.h). */
#include "shoal/array.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shoal/job.h"
#include "shoal/job_entry.h"
#include "shoal/rand.h"

static struct shoal_job_entry entry, scratch;
static uint8_t bytes[SHOAL_JOB_SNAPSHOT_BYTES_MAX], more[SHOAL_JOB_SNAPSHOT_BYTES_MAX];

/* ---- The text ---------------------------------------------------------------------------------------------------- */

static const struct row {
    const char *says, *text;
    uint32_t count, first, last, at_once; /* count 0: refused */
    const char *refusal;                  /* a part of it */
} rows[] = {
    { "one range", "0-9", 10, 0, 9, 0, NULL },
    { "one index", "7", 1, 7, 7, 0, NULL },
    { "a step that does not reach the end", "1-100:7", 15, 1, 99, 0, NULL },
    { "a list, in its order", "3,5,9-12", 6, 3, 12, 0, NULL },
    { "a list that falls", "9-12,3", 5, 9, 3, 0, NULL },
    { "a limit", "0-999%8", 1000, 0, 999, 8, NULL },
    { "odd and even ranges side by side", "0-98:2,1-99:2", 100, 0, 99, 0, NULL },
    { "the largest", "0-99999", 100000, 0, 99999, 0, NULL },
    { "the largest index", "999999999", 1, 999999999, 999999999, 0, NULL },
    { "nothing", "", 0, 0, 0, 0, "no task" },
    { "ten million", "0-9999999", 0, 0, 0, 0, "10000000 tasks are too many: a job has at most 100000" },
    { "too many in two ranges", "0-99998,200000-200001", 0, 0, 0, 0, "100001 tasks are too many" },
    { "reversed", "9-0", 0, 0, 0, 0, "9-0 is reversed; write 0-9" },
    { "named twice", "0-9,9-12", 0, 0, 0, 0, "index 9 is named twice" },
    { "steps that meet", "0-100:6,4-100:10", 0, 0, 0, 0, "index 24 is named twice" },
    { "steps that meet, the wider one first", "4-100:10,0-100:6", 0, 0, 0, 0, "index 24 is named twice" },
    { "a step of nothing", "0-9:0", 0, 0, 0, 0, "a step of 0" },
    { "a limit of nothing", "0-9%0", 0, 0, 0, 0, "%0 lets no task run" },
    { "a missing end", "0-", 0, 0, 0, 0, "a number is missing" },
    { "a missing range", "1,,2", 0, 0, 0, 0, "a number is missing before \",2\"" },
    { "a negative index", "-1", 0, 0, 0, 0, "a number is missing" },
    { "words", "all", 0, 0, 0, 0, "a number is missing before \"all\"" },
    { "something behind it", "0-9x", 0, 0, 0, 0, "\"x\" is not understood" },
    { "a space", "0-9, 12", 0, 0, 0, 0, "a number is missing" },
    { "an index of ten digits", "1000000000", 0, 0, 0, 0, "too large" },
    { "a number that would wrap", "18446744073709551617", 0, 0, 0, 0, "too large" },
};

static void test_texts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct row *row = &rows[i];
        struct shoal_array array;
        struct shoal_msg msg = { "" };
        enum shoal_err err = shoal_array_parse(row->text, &array, &msg);

        if (row->count == 0) {
            if (err != SHOAL_ERR_INVALID || strstr(msg.text, row->refusal) == NULL)
                fail_msg("%s: want a refusal with \"%s\", got \"%s\"", row->says, row->refusal, msg.text);
            continue;
        }
        if (err != SHOAL_OK || array.task_count != row->count || array.at_once_max != row->at_once ||
            shoal_array_index(&array, 0) != row->first || shoal_array_index(&array, row->count - 1) != row->last)
            fail_msg("%s: %s", row->says, msg.text);
        for (uint32_t p = 0; p < array.task_count; p++)
            if (shoal_array_position(&array, shoal_array_index(&array, p)) != p)
                fail_msg("%s: position %u is not where its index is", row->says, p);
    }
}

static void test_too_many_ranges(void **state)
{
    char text[SHOAL_ARRAY_TEXT_BYTES + 8] = "";
    struct shoal_array array;
    struct shoal_msg msg;
    size_t used = 0;

    (void)state;
    for (unsigned i = 0; i <= SHOAL_ARRAY_RANGES_MAX; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%u", i == 0 ? "" : ",", i);
    assert_int_equal(shoal_array_parse(text, &array, &msg), SHOAL_ERR_INVALID);
    assert_non_null(strstr(msg.text, "more than 32 ranges"));
    memset(text, '0', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    assert_int_equal(shoal_array_parse(text, &array, &msg), SHOAL_ERR_INVALID);
    assert_non_null(strstr(msg.text, "longer than"));
}

/* ---- The state --------------------------------------------------------------------------------------------------- */

static struct shoal_job *new_job(const char *text)
{
    struct shoal_job_spec spec = { .workers_min = 1, .workers_max = 1, .user_cmd = true };
    struct shoal_job_founding founding = { .id = { { 1 } }, .create_ms = 1000 };
    struct shoal_job *job;
    size_t len;

    spec.argv = (struct shoal_job_texts){ .count = 1, .bytes = shoal_view_of("true", 5) };
    memcpy(spec.array, text, strlen(text) + 1);
    assert_int_equal(shoal_job_spec_check(&spec, NULL), SHOAL_OK);
    assert_int_equal(shoal_job_spec_encode(&spec, bytes, sizeof(bytes), &len), SHOAL_OK);
    founding.spec = shoal_view_of(bytes, len);
    assert_int_equal(shoal_job_create(&job, &founding), SHOAL_OK);
    return job;
}

static struct shoal_job *new_service(uint32_t replicas)
{
    struct shoal_job_spec spec = { .workers_min = 1, .workers_max = 1, .user_cmd = true, .replicas = replicas };
    struct shoal_job_founding founding = { .id = { { 1 } }, .create_ms = 1000 };
    struct shoal_job *job;
    size_t len;

    memcpy(spec.array, SHOAL_SERVICE_ARRAY, sizeof(SHOAL_SERVICE_ARRAY));
    memcpy(spec.service, "digits", 7);
    assert_int_equal(shoal_job_spec_check(&spec, NULL), SHOAL_OK);
    assert_int_equal(shoal_job_spec_encode(&spec, bytes, sizeof(bytes), &len), SHOAL_OK);
    founding.spec = shoal_view_of(bytes, len);
    assert_int_equal(shoal_job_create(&job, &founding), SHOAL_OK);
    return job;
}

static void start(void)
{
    memset(&entry, 0, sizeof(entry));
    entry.kind = SHOAL_JOB_ENTRY_TASKS;
    entry.wall_ms = 1500;
}

static void add(uint64_t worker, uint32_t index)
{
    entry.u.tasks.add[entry.u.tasks.add_count++] = (struct shoal_placement){
        .worker_id = worker, .role = SHOAL_JOB_TASK, .rank = index, .node = { { (uint8_t)(worker % 7 + 1) } }
    };
}

static void end(uint64_t worker, uint8_t outcome, int16_t code)
{
    entry.u.tasks.ends[entry.u.tasks.end_count++] =
        (struct shoal_task_end){ .worker_id = worker, .outcome = outcome, .exit_code = code };
}

static unsigned apply(struct shoal_job *job)
{
    size_t len;

    assert_int_equal(shoal_job_entry_encode(&entry, bytes, sizeof(bytes), &len), SHOAL_OK);
    return shoal_job_apply(job, job->applied + 1, shoal_view_of(bytes, len), &scratch);
}

static uint8_t state_of(const struct shoal_job *job, uint32_t index)
{
    return job->tasks->tasks[shoal_array_position(&job->tasks->array, index)].state;
}

/* An array of four: the first succeeds, the second fails with 7, the third is run twice and given up. */
static struct shoal_job *lived(void)
{
    struct shoal_job *job = new_job("10-13");

    start();
    add(1, 10);
    add(2, 11);
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_PLACES | SHOAL_JOB_CHANGED_STATE);
    assert_int_equal(job->state, SHOAL_JOB_LAUNCHING);
    start();
    end(1, SHOAL_TASK_ENDED, 0);
    end(2, SHOAL_TASK_ENDED, 7);
    add(3, 12);
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_PLACES | SHOAL_JOB_CHANGED_STATE);
    assert_int_equal(job->state, SHOAL_JOB_RUNNING);
    assert_int_equal(state_of(job, 10), SHOAL_TASK_DONE);
    assert_int_equal(state_of(job, 11), SHOAL_TASK_FAILED);
    start(); /* the same result once more: it is not counted twice (T2) */
    end(1, SHOAL_TASK_ENDED, 0);
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_REFUSED);
    start(); /* neither does a finished task run again */
    add(4, 10);
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_REFUSED);
    start();
    end(3, SHOAL_TASK_AGAIN, 0);
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_PLACES);
    assert_int_equal(state_of(job, 12), SHOAL_TASK_PENDING);
    start();
    add(5, 13);
    add(6, 12);
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_PLACES);
    start();
    end(5, SHOAL_TASK_ENDED, 0);
    end(6, SHOAL_TASK_ABANDONED, -1);
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_PLACES);
    return job;
}

static void test_table_of_an_array(void **state)
{
    struct shoal_job *job = lived();
    static struct shoal_tasks_page page, back;
    struct shoal_tasks_ask ask = { .after_index = SHOAL_ARRAY_NONE, .limit = 4 };
    static uint8_t wire[SHOAL_TASKS_PAGE_BYTES];
    const struct shoal_task_row *row = back.rows;
    struct shoal_msg msg;

    (void)state;
    assert_int_equal(shoal_job_tasks_page(job, &ask, &page, &msg), SHOAL_OK);
    for (size_t cut = 0; cut < 4 * 42 + 8; cut++)
        assert_int_equal(shoal_tasks_page_decode(
                             shoal_view_of(wire, shoal_tasks_page_encode(&page, wire, sizeof(wire)) - cut), &back),
                         cut == 0 ? SHOAL_OK : SHOAL_ERR_MALFORMED);
    assert_int_equal(
        shoal_tasks_page_decode(shoal_view_of(wire, shoal_tasks_page_encode(&page, wire, sizeof(wire))), &back),
        SHOAL_OK);
    assert_int_equal(back.row_count, 4);
    assert_int_equal(back.next, SHOAL_ARRAY_NONE);
    assert_int_equal(row[2].index, 12);
    assert_int_equal(row[2].attempts, 2);
    assert_int_equal(row[2].start_ms, 1500);
    assert_int_equal(row[2].end_ms, 1500);
    assert_int_equal(row[2].node.bytes[0], 7);
    ask = (struct shoal_tasks_ask){ .after_index = SHOAL_ARRAY_NONE, .limit = 1, .states = 1u << SHOAL_TASK_FAILED };
    assert_int_equal(shoal_job_tasks_page(job, &ask, &back, &msg), SHOAL_OK);
    assert_int_equal(row[0].index, 11);
    assert_int_equal(row[0].exit_code, 7);
    assert_int_equal(back.next, 11);
    ask.after_index = 11;
    assert_int_equal(shoal_job_tasks_page(job, &ask, &back, &msg), SHOAL_OK);
    assert_int_equal(back.row_count, 1);
    assert_int_equal(row[0].index, 12);
    assert_int_equal(back.next, SHOAL_ARRAY_NONE);
    ask.after_index = 14;
    assert_int_equal(shoal_job_tasks_page(job, &ask, &back, &msg), SHOAL_ERR_INVALID);
    ask = (struct shoal_tasks_ask){ .after_index = SHOAL_ARRAY_NONE, .limit = SHOAL_TASKS_PAGE_MAX + 1 };
    assert_int_equal(shoal_job_tasks_page(job, &ask, &back, &msg), SHOAL_ERR_INVALID);
    shoal_job_destroy(job);
}

static void test_end_of_an_array(void **state)
{
    struct shoal_job *job = lived();
    uint32_t position;

    (void)state;
    assert_int_equal(shoal_job_tasks_exit(job, &position), 7);
    assert_int_equal(position, 1);
    memset(&entry, 0, sizeof(entry));
    entry.kind = SHOAL_JOB_ENTRY_STATE;
    entry.u.state.state = SHOAL_JOB_RUNNING;
    entry.u.state.exit_code = 7;
    entry.u.state.result_wanted = true;
    (void)apply(job);
    memset(&entry, 0, sizeof(entry));
    entry.kind = SHOAL_JOB_ENTRY_RESULT;
    assert_true((apply(job) & SHOAL_JOB_CHANGED_RESULT) != 0);
    assert_int_equal(job->state, SHOAL_JOB_ERROR); /* since a task failed */
    assert_int_equal(job->exit_code, 7);
    shoal_job_destroy(job);
}

static const struct refusal {
    const char *says;
    uint64_t end_worker;
    uint64_t add_worker[2];
    uint32_t add_index[2];
} refusals[] = {
    { "an end of a worker that is not placed", 9, { 0 }, { 0 } },
    { "an index that the array does not have", 0, { 9 }, { 4 } },
    { "a task that runs already", 0, { 9 }, { 0 } },
    { "a worker that is placed already", 0, { 1 }, { 2 } },
    { "one task twice", 0, { 8, 9 }, { 2, 2 } },
    { "one worker twice", 0, { 9, 9 }, { 1, 2 } },
    { "more than the limit of two", 0, { 8, 9 }, { 1, 2 } },
    { "nothing at all", 0, { 0 }, { 0 } },
};

static void test_refusals(void **state)
{
    struct shoal_job *job = new_job("0-3%2");

    (void)state;
    start();
    add(1, 0);
    (void)apply(job);
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        const struct refusal *r = &refusals[i];

        start();
        if (r->end_worker != 0)
            end(r->end_worker, SHOAL_TASK_ENDED, 0);
        for (unsigned j = 0; j < 2 && r->add_worker[j] != 0; j++)
            add(r->add_worker[j], r->add_index[j]);
        if (apply(job) != SHOAL_JOB_CHANGED_REFUSED || job->placement_count != 1)
            fail_msg("%s: not refused", r->says);
    }
    start(); /* one makes room for two */
    end(1, SHOAL_TASK_ENDED, 0);
    add(8, 1);
    add(9, 2);
    assert_int_equal(apply(job) & SHOAL_JOB_CHANGED_REFUSED, 0);
    memset(&entry, 0, sizeof(entry)); /* T4: PLACE is for jobs without tasks */
    entry.kind = SHOAL_JOB_ENTRY_PLACE;
    entry.u.place.drop_count = 1;
    entry.u.place.drop[0] = 8;
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_REFUSED);
    shoal_job_destroy(job);
}

static void test_stop(void **state)
{
    struct shoal_job *job = new_job("0-9");

    (void)state;
    start();
    add(1, 0);
    add(2, 1);
    add(3, 2);
    (void)apply(job);
    memset(&entry, 0, sizeof(entry));
    entry.kind = SHOAL_JOB_ENTRY_STOP;
    (void)apply(job);
    start();
    add(4, 3);
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_REFUSED);
    start();
    end(1, SHOAL_TASK_ENDED, 0);
    end(2, SHOAL_TASK_AGAIN, -1);
    (void)apply(job);
    assert_int_equal(state_of(job, 0), SHOAL_TASK_DONE);
    assert_int_equal(state_of(job, 1), SHOAL_TASK_STOPPED);
    memset(&entry, 0, sizeof(entry));
    entry.kind = SHOAL_JOB_ENTRY_STATE;
    entry.u.state.state = SHOAL_JOB_KILLED;
    (void)apply(job);
    assert_int_equal(job->tasks->counts[SHOAL_TASK_PENDING], 0);
    assert_int_equal(job->tasks->counts[SHOAL_TASK_STOPPED], 8);
    start(); /* what ended after the job still gives its slot back */
    end(3, SHOAL_TASK_ABANDONED, -1);
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_PLACES);
    assert_int_equal(job->placement_count, 0);
    assert_int_equal(job->tasks->counts[SHOAL_TASK_STOPPED], 9);
    shoal_job_destroy(job);
}

static void test_recover(void **state)
{
    struct shoal_job *job = new_job("0-3");
    uint8_t small[128];

    (void)state;
    start();
    add(1, 0);
    add(2, 1);
    (void)apply(job);
    start();
    end(1, SHOAL_TASK_ENDED, 0);
    (void)apply(job);
    (void)shoal_job_apply(job, job->applied + 1, shoal_view_of(small, shoal_job_entry_recover(small, 128, 2, 1)),
                          &scratch);
    assert_int_equal(job->placement_count, 0);
    assert_int_equal(state_of(job, 0), SHOAL_TASK_DONE);
    assert_int_equal(state_of(job, 1), SHOAL_TASK_PENDING);
    assert_int_equal(job->state, SHOAL_JOB_RECOVERING);
    start();
    end(2, SHOAL_TASK_ENDED, 0); /* of the generation before: void */
    assert_int_equal(apply(job), SHOAL_JOB_CHANGED_REFUSED);
    start();
    add(3, 1);
    (void)apply(job);
    assert_int_equal(job->state, SHOAL_JOB_RUNNING);
    shoal_job_destroy(job);
}

/* ---- Replicas and snapshots -------------------------------------------------------------------------------------- */

static void make_chance_entry(struct shoal_rand *rand, const struct shoal_job *job, uint64_t *worker)
{
    uint32_t ends = (uint32_t)shoal_rand_below(rand, 4);
    uint32_t adds = (uint32_t)shoal_rand_below(rand, 4);

    start();
    entry.wall_ms += job->applied;
    for (uint32_t i = 0; i < ends && i < job->placement_count; i++) {
        uint8_t outcome = (uint8_t)shoal_rand_below(rand, SHOAL_TASK_OUTCOME_COUNT);

        end(job->placements[i].worker_id, outcome, (int16_t)shoal_rand_below(rand, 3));
    }
    for (uint32_t i = 0; i < adds; i++)
        add(++*worker, (uint32_t)shoal_rand_below(rand, 42)); /* some have ended, run, or are no index at all */
}

static void expect_same(const struct shoal_job *a, const struct shoal_job *b)
{
    assert_true(a->digest == b->digest);
    assert_memory_equal(a->tasks->counts, b->tasks->counts, sizeof(a->tasks->counts));
    assert_int_equal(a->tasks->pending_from, b->tasks->pending_from);
    assert_memory_equal(a->tasks->tasks, b->tasks->tasks, a->tasks->array.task_count * sizeof(a->tasks->tasks[0]));
}

/* Two replicas, one of which is restored from a snapshot now and then, say the same of every task. */
static void test_replicas(void **state)
{
    struct shoal_rand rand;
    uint32_t ended = 0;

    (void)state;
    shoal_rand_init(&rand, 7);
    for (unsigned round = 0; round < 40; round++) {
        struct shoal_job *a = new_job("0-39%9"), *b = new_job("0-39%9");
        uint64_t worker = 0;

        for (unsigned i = 0; i < 200; i++) {
            struct shoal_job *copy;
            uint32_t positions[40], count;
            size_t len;

            make_chance_entry(&rand, a, &worker);
            (void)apply(a);
            (void)apply(b);
            assert_true(a->placement_count <= 9); /* T3 */
            count = shoal_job_tasks_pending(a, positions, 40);
            assert_int_equal(count, a->tasks->counts[SHOAL_TASK_PENDING]);
            if (shoal_rand_below(&rand, 5) != 0)
                continue;
            assert_int_equal(shoal_job_snapshot_encode(b, more, sizeof(more), &len), SHOAL_OK);
            assert_int_equal(shoal_job_restore(&copy, shoal_view_of(more, len)), SHOAL_OK);
            shoal_job_destroy(b);
            b = copy;
            expect_same(a, b);
        }
        expect_same(a, b);
        ended += a->tasks->counts[SHOAL_TASK_DONE] + a->tasks->counts[SHOAL_TASK_FAILED];
        shoal_job_destroy(a);
        shoal_job_destroy(b);
    }
    assert_true(ended > 500); /* the rounds got somewhere */
}

static unsigned scale(struct shoal_job *job, uint32_t replicas)
{
    size_t len = shoal_job_entry_scale(bytes, sizeof(bytes), replicas, "ada", 1500);

    return shoal_job_apply(job, job->applied + 1, shoal_view_of(bytes, len), &scratch);
}

/* T5: however a replica ends, it is to run again; as many as are asked for; a copy knows how many. */
static void test_service(void **state)
{
    static const uint8_t outcomes[] = { SHOAL_TASK_ENDED, SHOAL_TASK_AGAIN, SHOAL_TASK_UNSTARTED,
                                        SHOAL_TASK_ABANDONED };
    struct shoal_job *job = new_service(2), *copy;
    struct shoal_job *array = new_job("0-9");
    size_t len;

    (void)state;
    assert_int_equal(scale(array, 1), SHOAL_JOB_CHANGED_REFUSED);
    shoal_job_destroy(array);
    for (uint64_t i = 0; i < 4; i++) {
        start();
        add(2 * i + 1, 0);
        add(2 * i + 2, 1);
        assert_false(apply(job) & SHOAL_JOB_CHANGED_REFUSED);
        start();
        add(100, 2); /* a third one */
        assert_int_equal(apply(job), SHOAL_JOB_CHANGED_REFUSED);
        start();
        end(2 * i + 1, outcomes[i], 0);
        end(2 * i + 2, outcomes[i], 9);
        assert_false(apply(job) & SHOAL_JOB_CHANGED_REFUSED);
        assert_int_equal(job->tasks->counts[SHOAL_TASK_PENDING], 64);
    }
    assert_int_equal(scale(job, 3), SHOAL_JOB_CHANGED_FLAGS);
    assert_int_equal(scale(job, 65), SHOAL_JOB_CHANGED_REFUSED);
    assert_int_equal(shoal_job_tasks_room(job), 3);
    assert_int_equal(shoal_job_snapshot_encode(job, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_job_restore(&copy, shoal_view_of(bytes, len)), SHOAL_OK);
    assert_int_equal(copy->tasks->replicas, 3);
    shoal_job_destroy(copy);
    assert_int_equal(scale(job, 0), SHOAL_JOB_CHANGED_FLAGS);
    assert_int_equal(shoal_job_tasks_room(job), 0);
    shoal_job_destroy(job);
}

static unsigned edit(struct shoal_job *job, uint32_t revision, uint8_t replicas, const char *document)
{
    uint8_t command[64];
    struct shoal_writer w = shoal_writer_init(command, sizeof(command));
    size_t len;

    shoal_put_u32(&w, revision);
    shoal_put_u8(&w, replicas);
    shoal_put_raw(&w, document, strlen(document));
    len = shoal_job_entry_edit(bytes, sizeof(bytes), shoal_writer_view(&w), "somebody", 2000);
    return shoal_job_apply(job, job->applied + 1, shoal_view_of(bytes, len), &scratch);
}

/* T6: an edit of another revision changes nothing; a copy has the document. */
static void test_edit(void **state)
{
    struct shoal_job *job = new_service(2), *copy, *array = new_job("0-9");
    size_t len;

    (void)state;
    assert_int_equal(edit(array, 0, SHOAL_REPLICAS_KEEP, "{}"), SHOAL_JOB_CHANGED_REFUSED);
    shoal_job_destroy(array);
    assert_int_equal(edit(job, 1, SHOAL_REPLICAS_KEEP, "{}"), SHOAL_JOB_CHANGED_REFUSED);
    assert_int_equal(edit(job, 0, 65, "{}"), SHOAL_JOB_CHANGED_REFUSED);
    assert_int_equal(job->document_len, 0);
    assert_int_equal(edit(job, 0, SHOAL_REPLICAS_KEEP, "{\"a\":1}"), SHOAL_JOB_CHANGED_FLAGS);
    assert_int_equal(edit(job, 0, 7, "{\"a\":2}"), SHOAL_JOB_CHANGED_REFUSED);
    assert_int_equal(job->tasks->replicas, 2);
    assert_int_equal(edit(job, 1, 7, "{\"a\":3}"), SHOAL_JOB_CHANGED_FLAGS);
    assert_int_equal(shoal_job_snapshot_encode(job, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_job_restore(&copy, shoal_view_of(bytes, len)), SHOAL_OK);
    assert_int_equal(copy->tasks->replicas, 7);
    assert_int_equal(copy->revision, 2);
    assert_int_equal(copy->document_len, 7);
    assert_memory_equal(copy->document, "{\"a\":3}", 7);
    shoal_job_destroy(copy);
    shoal_job_destroy(job);
}

static void test_snapshot_refused(void **state)
{
    struct shoal_job *job = new_job("0-3"), *copy;
    size_t len;

    (void)state;
    start();
    add(1, 0);
    (void)apply(job);
    job->tasks->tasks[0].state = SHOAL_TASK_DONE; /* a snapshot that breaks T1 */
    assert_int_equal(shoal_job_snapshot_encode(job, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_job_restore(&copy, shoal_view_of(bytes, len)), SHOAL_ERR_MALFORMED);
    job->tasks->tasks[0].state = SHOAL_TASK_RUNNING;
    assert_int_equal(shoal_job_snapshot_encode(job, bytes, sizeof(bytes), &len), SHOAL_OK);
    for (size_t cut = 1; cut < 60; cut++)
        assert_int_equal(shoal_job_restore(&copy, shoal_view_of(bytes, len - cut)), SHOAL_ERR_MALFORMED);
    shoal_job_destroy(job);
}

/* The largest array, every task of it ended, fits a snapshot. */
static void test_largest_snapshot(void **state)
{
    struct shoal_job *job = new_job("0-99999"), *copy;
    uint64_t worker = 0;
    size_t len;

    (void)state;
    for (uint32_t i = 0; i < SHOAL_ARRAY_TASKS_MAX; i += 50) {
        start();
        for (uint32_t j = 0; j < 50; j++)
            add(++worker, i + j);
        for (uint32_t j = 0; i > 0 && j < 50; j++)
            end(worker - 99 + j, SHOAL_TASK_ENDED, 0);
        assert_int_equal(apply(job) & SHOAL_JOB_CHANGED_REFUSED, 0);
    }
    assert_int_equal(job->tasks->counts[SHOAL_TASK_DONE], SHOAL_ARRAY_TASKS_MAX - 50);
    assert_int_equal(shoal_job_snapshot_encode(job, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_job_restore(&copy, shoal_view_of(bytes, len)), SHOAL_OK);
    expect_same(job, copy);
    shoal_job_destroy(copy);
    shoal_job_destroy(job);
}

static void test_spec(void **state)
{
    struct shoal_job_spec spec = { .workers_min = 1, .workers_max = 1, .user_cmd = true, .array = "0-9%2" }, back;
    struct shoal_msg msg;
    size_t len;

    (void)state;
    spec.argv = (struct shoal_job_texts){ .count = 1, .bytes = shoal_view_of("true", 5) };
    assert_int_equal(shoal_job_spec_encode(&spec, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_job_spec_decode(shoal_view_of(bytes, len), &back), SHOAL_OK);
    assert_string_equal(back.array, "0-9%2");
    spec.workers_min = spec.workers_max = 2;
    assert_int_equal(shoal_job_spec_check(&spec, &msg), SHOAL_ERR_UNSUPPORTED);
    assert_non_null(strstr(msg.text, "one worker each"));
    spec.workers_min = spec.workers_max = 1;
    memcpy(spec.array, "9-0", 4);
    assert_int_equal(shoal_job_spec_check(&spec, &msg), SHOAL_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_too_many_ranges),
        cmocka_unit_test(test_table_of_an_array),
        cmocka_unit_test(test_end_of_an_array),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_recover),
        cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_service),
        cmocka_unit_test(test_edit),
        cmocka_unit_test(test_snapshot_refused),
        cmocka_unit_test(test_largest_snapshot),
        cmocka_unit_test(test_spec),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
