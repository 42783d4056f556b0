/* Array jobs end to end: one lead, three slots cores, tasks that exit; hosts die, the leader changes, messages are
 * lost. Every task's result is committed once. */
#include "shoal/job_entry.h"
#include "job_world.h"

static struct world w;

static void begin(uint64_t seed, const char *text, uint32_t slots)
{
    w_init_array(&w, seed, false, 1, 1, text);
    w.trace = getenv("TRACE") != NULL;
    w.script_ns = 20 * SHOAL_MS;
    w.target = slots;
    w.task_that_fails = SHOAL_ARRAY_NONE;
}

static void expect_counts(uint32_t done, uint32_t failed, uint32_t stopped)
{
    const uint32_t *counts = w.job->tasks->counts;

    if (counts[SHOAL_TASK_DONE] != done || counts[SHOAL_TASK_FAILED] != failed ||
        counts[SHOAL_TASK_STOPPED] != stopped || counts[SHOAL_TASK_PENDING] + counts[SHOAL_TASK_RUNNING] > 0)
        W_FAIL(&w, "want %u done, %u failed, %u stopped; got %u, %u, %u, and %u pending, %u running", done, failed,
               stopped, counts[SHOAL_TASK_DONE], counts[SHOAL_TASK_FAILED], counts[SHOAL_TASK_STOPPED],
               counts[SHOAL_TASK_PENDING], counts[SHOAL_TASK_RUNNING]);
}

/* Nothing is left of it anywhere, and its leader sleeps. */
static void expect_clean(void)
{
    w_run_for(&w, 30 * SHOAL_S);
    assert_int_equal(w.job->placement_count, 0);
    for (uint32_t h = 0; h < W_HOSTS; h++) {
        struct shoal_slot_status status;

        for (uint32_t s = 0; w.hosts[h].up && s < W_SLOTS; s++) {
            shoal_slots_slot(w.hosts[h].slots, s, &status);
            if (status.state != SHOAL_SLOT_FREE && !(status.frozen && w.now_ns > status.deadline_ns))
                W_FAIL(&w, "host %u slot %u is in state %d", h, s, (int)status.state);
        }
    }
    if (w.lead != NULL)
        assert_true(shoal_lead_deadline_ns(w.lead) == UINT64_MAX);
    w_deinit(&w);
}

static void finish(uint8_t state)
{
    w_run_to_end(&w, 120 * SHOAL_S);
    if (w.job->state != state)
        W_FAIL(&w, "want %s, got %s: %s", shoal_job_state_name((enum shoal_job_state)state),
               shoal_job_state_name((enum shoal_job_state)w.job->state), w.job->reason);
}

static void test_all_well(void **state)
{
    struct shoal_lead_stats stats;

    (void)state;
    begin(1, "0-59", 12);
    w_new_lead(&w, 0);
    finish(SHOAL_JOB_FINISHED);
    expect_counts(60, 0, 0);
    assert_int_equal(w.runs, 60);
    assert_int_equal(w.job->exit_code, 0);
    assert_int_equal(w.job->refused, 0);
    shoal_lead_stats(w.lead, &stats);
    assert_true(stats.reserves <= 6); /* a slot that a task leaves needs no new one */
    expect_clean();
}

/* A thousand tasks have a bounded cost, in entries and messages: counts, not times. */
static void test_cost(void **state)
{
    struct shoal_lead_stats stats;

    (void)state;
    begin(2, "0-999", 12);
    w.script_ns = SHOAL_MS;
    w_new_lead(&w, 0);
    finish(SHOAL_JOB_FINISHED);
    expect_counts(1000, 0, 0);
    shoal_lead_stats(w.lead, &stats);
    print_message("1000 tasks: %llu entries, %u messages, %llu reserves, %llu ms\n", (unsigned long long)(w.index - 2),
                  w.frames, (unsigned long long)stats.reserves, (unsigned long long)(w.now_ns / SHOAL_MS - 1000000));
    assert_true(w.index < 700);
    assert_true(w.frames < 4500);
    assert_true(stats.reserves < 20);
    expect_clean();
}

/* Slots that are promised beyond need are given back, but never together with what is placed and not confirmed yet. */
static void test_no_placement_is_cancelled(void **state)
{
    struct shoal_slots_stats stats;

    (void)state;
    for (uint64_t seed = 1; seed <= 120; seed++) {
        char text[16];

        (void)snprintf(text, sizeof(text), "1-%u", 1 + (unsigned)(seed * 7 % 30));
        begin(seed, text, 12);
        w.commit_ns = (1 + seed % 40) * SHOAL_MS;
        w.script_ns = (1 + seed * 13 % 60) * SHOAL_MS;
        w.delay_ns = seed % 3 * SHOAL_MS;
        w_new_lead(&w, 0);
        finish(SHOAL_JOB_FINISHED);
        for (uint32_t h = 0; h < W_HOSTS; h++) {
            shoal_slots_stats(w.hosts[h].slots, &stats);
            if (stats.confirms_refused > 0)
                W_FAIL(&w, "host %u refused %u of its own promises", h, (unsigned)stats.confirms_refused);
        }
        expect_clean();
    }
}

/* U5 of lead_unfit.c. One host of three has no process to give. */
static void test_a_host_that_starts_nothing_costs_no_attempt(void **state)
{
    (void)state;
    for (uint32_t host = 0; host < W_HOSTS; host++) {
        begin(700 + host, "0-39", 12);
        w.script_ns = SHOAL_S;
        w.starts_none = 1ull << host;
        w_new_lead(&w, 0);
        finish(SHOAL_JOB_FINISHED);
        expect_counts(40, 0, 0);
        for (uint32_t i = 0; i < 40; i++)
            assert_int_equal(w.job->tasks->tasks[i].attempts, 1);
        if (w.unstarted == 0 || w.unstarted > 2 * W_SLOTS)
            W_FAIL(&w, "host %u was tried %u times", host, w.unstarted);
        expect_clean();
    }
}

/* Eight slots that the allocation yields elsewhere are all taken, whatever runs on a host that is drained. */
static void test_tasks_that_stay_on_a_drained_host_keep_nobody_elsewhere_waiting(void **state)
{
    (void)state;
    begin(740, "0-19", 12);
    w.scripts_hang = true;
    w_new_lead(&w, 0);
    w_run_for(&w, 2 * SHOAL_S);
    assert_int_equal(w_alive(&w, SHOAL_JOB_TASK), 12);
    w.hosts[1].draining = true;
    w_health(&w, 1, 0);
    w.target = 8; /* all that the other hosts have */
    w.target_set = true;
    w_target(&w);
    for (uint32_t i = 0, ended = 0; i < w.worker_count && ended < 3; i++) {
        if (!w.workers[i].alive || w.workers[i].host != 2)
            continue;
        w_exit(&w, &w.workers[i], 0, false);
        ended++;
    }
    w_run_for(&w, 2 * SHOAL_S);
    assert_int_equal(w_alive(&w, SHOAL_JOB_TASK), 12);
    w_deinit(&w);
}

static void test_limit(void **state)
{
    (void)state;
    begin(3, "1-30%3", 12);
    w_new_lead(&w, 0);
    while (!shoal_job_state_ended((enum shoal_job_state)w.job->state)) {
        w_turn(&w);
        if (w_alive(&w, SHOAL_JOB_TASK) > 3)
            W_FAIL(&w, "%u tasks run, the limit is 3", w_alive(&w, SHOAL_JOB_TASK));
    }
    expect_counts(30, 0, 0);
    expect_clean();
}

static void test_one_fails(void **state)
{
    (void)state;
    begin(4, "10-29", 12);
    w.task_that_fails = 17;
    w.script_status = 3;
    w_new_lead(&w, 0);
    finish(SHOAL_JOB_ERROR);
    expect_counts(19, 1, 0);
    assert_int_equal(w.job->exit_code, 3);
    assert_int_equal(w.runs, 20); /* a failed task is not tried again */
    assert_non_null(strstr(w.job->reason, "1 of 20 tasks failed; the first of them is task 17, with exit status 3"));
    assert_false(shoal_hash_is_zero(w.job->result)); /* of the others */
    expect_clean();
}

static void test_host_dies(void **state)
{
    uint32_t again = 0;

    (void)state;
    begin(5, "0-59", 12);
    w.script_ns = 300 * SHOAL_MS;
    w_new_lead(&w, 0);
    w_run_for(&w, SHOAL_S);
    w_host_down(&w, 2);
    finish(SHOAL_JOB_FINISHED);
    expect_counts(60, 0, 0);
    for (uint32_t i = 0; i < 60; i++)
        again += w.task_runs[i] - 1;
    assert_in_range(again, 1, W_SLOTS); /* those of the lost host */
    expect_clean();
}

/* A task whose host is lost each time is given up, and the others' results stand. */
static void test_lost_too_often(void **state)
{
    (void)state;
    begin(6, "0-1", 2);
    w.slot_banned = ~0x1ull << 16 | 0xfefe; /* slot 0 of each host */
    w.scripts_hang = true;
    w_new_lead(&w, 0);
    for (unsigned i = 0; i < 3; i++) {
        w_run_for(&w, 2 * SHOAL_S);
        for (uint32_t h = 1; h < W_HOSTS; h++) {
            w_host_down(&w, h);
            w_host_up(&w, h);
            w_health(&w, h, i + 1);
        }
        w_target(&w);
        w_run_for(&w, 20 * SHOAL_S);
    }
    w.scripts_hang = false;
    for (uint32_t i = 0; i < w.worker_count; i++)
        if (w.workers[i].alive)
            w_exit(&w, &w.workers[i], 0, false);
    w_run_to_end(&w, 60 * SHOAL_S);
    assert_int_equal(w.job->tasks->counts[SHOAL_TASK_DONE] + w.job->tasks->counts[SHOAL_TASK_FAILED], 2);
    for (uint32_t i = 0; i < 2; i++)
        assert_true(w.task_runs[i] <= 3);
    expect_clean();
}

static void test_leader_changes(void **state)
{
    (void)state;
    begin(7, "0-99", 12);
    w_new_lead(&w, 0);
    for (uint32_t i = 0; i < 8; i++) {
        w_run_for(&w, 25 * SHOAL_MS);
        w_new_lead(&w, i % W_HOSTS); /* the host lives on: nothing runs twice */
    }
    finish(SHOAL_JOB_FINISHED);
    expect_counts(100, 0, 0);
    assert_int_equal(w.runs, 100);
    expect_clean();
}

static void test_leader_host_dies(void **state)
{
    (void)state;
    begin(8, "0-59", 12);
    w.script_ns = 200 * SHOAL_MS;
    w_new_lead(&w, 0);
    w_run_for(&w, 500 * SHOAL_MS);
    w_host_down(&w, 0);
    shoal_lead_destroy(w.lead);
    w.lead = NULL;
    w_run_for(&w, 800 * SHOAL_MS);
    w_new_lead(&w, 1);
    finish(SHOAL_JOB_FINISHED);
    expect_counts(60, 0, 0);
    expect_clean();
}

static void commit(size_t len, const uint8_t *bytes) { w_commit(&w, shoal_view_of(bytes, len)); }

static void test_stop(void **state)
{
    uint8_t bytes[128];
    uint32_t done;

    (void)state;
    begin(9, "0-99", 12);
    w.script_ns = 100 * SHOAL_MS;
    w_new_lead(&w, 0);
    w_run_for(&w, 250 * SHOAL_MS);
    done = w.job->tasks->counts[SHOAL_TASK_DONE];
    assert_in_range(done, 1, 60);
    commit(shoal_job_entry_stop(bytes, sizeof(bytes), "ada", 1), bytes);
    finish(SHOAL_JOB_KILLED);
    expect_clean();
    /* (the counts are looked at before the world is gone: see below) */
}

static void test_stop_counts(void **state)
{
    uint8_t bytes[128];
    const uint32_t *counts;

    (void)state;
    begin(10, "0-99", 12);
    w.scripts_hang = true;
    w_new_lead(&w, 0);
    w_run_for(&w, 250 * SHOAL_MS);
    commit(shoal_job_entry_stop(bytes, sizeof(bytes), "ada", 1), bytes);
    finish(SHOAL_JOB_KILLED);
    w_run_for(&w, 5 * SHOAL_S);
    counts = w.job->tasks->counts;
    assert_int_equal(counts[SHOAL_TASK_STOPPED], 100);
    assert_int_equal(w.runs, 12);
    expect_clean();
}

/* The allocation yields less: what runs ends by itself, and its slot is left to others. */
static void test_others_get_their_share(void **state)
{
    (void)state;
    begin(11, "0-199", 12);
    w_new_lead(&w, 0);
    w_run_for(&w, 100 * SHOAL_MS);
    assert_int_equal(w_alive(&w, SHOAL_JOB_TASK), 12);
    w.target = 4;
    w_target(&w);
    w_run_for(&w, 100 * SHOAL_MS);
    assert_true(w_alive(&w, SHOAL_JOB_TASK) <= 4);
    finish(SHOAL_JOB_FINISHED);
    expect_counts(200, 0, 0);
    expect_clean();
}

static void begin_service(uint64_t seed, uint32_t replicas, uint32_t slots)
{
    w_init_array(&w, seed, false, 1, replicas, SHOAL_SERVICE_ARRAY);
    w.trace = getenv("TRACE") != NULL;
    w.script_ns = 3600 * SHOAL_S; /* a replica does not end by itself */
    w.target = slots;
    w.task_that_fails = SHOAL_ARRAY_NONE;
}

static void yields(uint32_t slots)
{
    w.target = slots;
    w_target(&w);
}

/* A service's replicas give their slots to whoever the allocation names, when that has lasted, and come back. */
static void test_a_service_yields(void **state)
{
    uint32_t min, max;

    (void)state;
    begin_service(12, 6, 12);
    w_new_lead(&w, 0);
    w_run_for(&w, SHOAL_S);
    assert_int_equal(w_alive(&w, SHOAL_JOB_TASK), 6);
    yields(4);
    w_run_for(&w, SHOAL_S);
    yields(6); /* it was for a moment only */
    w_run_for(&w, SHOAL_S + 500 * SHOAL_MS);
    yields(4);
    w_run_for(&w, SHOAL_S + 500 * SHOAL_MS);
    assert_int_equal(w_alive(&w, SHOAL_JOB_TASK), 6);
    w_run_for(&w, SHOAL_S);
    assert_int_equal(w_alive(&w, SHOAL_JOB_TASK), 4);
    w_run_for(&w, 10 * SHOAL_S);
    assert_int_equal(w_alive(&w, SHOAL_JOB_TASK), 4);
    assert_int_equal(w.job->tasks->replicas, 6);
    yields(6);
    w_run_for(&w, SHOAL_S);
    assert_int_equal(w_alive(&w, SHOAL_JOB_TASK), 6);
    shoal_lead_demand(w.lead, &min, &max);
    assert_int_equal(min * 100 + max, 606); /* nobody has said how many it has at least: it gives none away */
    w_lead(&w, &(struct shoal_lead_event){ .kind = SHOAL_LEAD_FLOOR, .u.floor = { .count = 2 } });
    shoal_lead_demand(w.lead, &min, &max);
    assert_int_equal(min * 100 + max, 206);
    w_lead(&w, &(struct shoal_lead_event){ .kind = SHOAL_LEAD_FLOOR, .u.floor = { .count = 0 } });
    shoal_lead_demand(w.lead, &min, &max);
    assert_int_equal(min * 100 + max, 106); /* its first replica answers what is held */
    w_deinit(&w);
}

/* Replicas on a host that is not heard are in no allocation, so it takes none of the others for them. */
static void test_a_silent_host_takes_no_replica_from_others(void **state)
{
    static struct shoal_job_facts facts;

    (void)state;
    begin_service(13, 6, 12);
    w_new_lead(&w, 0);
    w_run_for(&w, SHOAL_S);
    assert_int_equal(w_alive(&w, SHOAL_JOB_TASK), 6);
    w.hosts[1].cut = true;
    w_health(&w, 1, 9);
    yields(4); /* two of the replicas are there */
    w_run_for(&w, 6 * SHOAL_S);
    shoal_lead_facts(w.lead, &facts);
    assert_non_null(strstr(facts.pending, "2 of its replicas are on hosts that are not heard"));
    w.hosts[1].cut = false;
    w_health(&w, 1, 10);
    yields(6);
    w_run_for(&w, 6 * SHOAL_S);
    assert_int_equal(w_alive(&w, SHOAL_JOB_TASK), 6);
    assert_int_equal(w.runs, 6); /* the very same ones */
    shoal_lead_facts(w.lead, &facts);
    assert_string_equal(facts.pending, "");
    w_deinit(&w);
}

static uint32_t alive_on(uint32_t host)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < w.worker_count; i++)
        count += w.workers[i].alive && w.workers[i].host == host;
    return count;
}

/* One after the other, as far as there are slots for them elsewhere. */
static void test_replicas_leave_a_drained_host(void **state)
{
    (void)state;
    begin_service(15, 6, 12);
    w_new_lead(&w, 0);
    w_run_for(&w, 30 * SHOAL_S);
    assert_int_equal(alive_on(1), 2);
    w.hosts[1].draining = true;
    yields(4); /* as many as the others have: there is no room */
    w_health(&w, 1, 9);
    w_run_for(&w, 60 * SHOAL_S);
    assert_int_equal(alive_on(1), 2);
    assert_int_equal(w.runs, 6);
    yields(6);
    for (unsigned i = 0; i < 1200; i++) {
        w_run_for(&w, 50 * SHOAL_MS);
        assert_true(w_alive(&w, SHOAL_JOB_TASK) >= 5);
    }
    assert_int_equal(alive_on(1), 0);
    assert_int_equal(w_alive(&w, SHOAL_JOB_TASK), 6);
    assert_int_equal(w.runs, 8);
    w_deinit(&w);
}

static void scale(uint32_t replicas)
{
    uint8_t bytes[256];

    w_commit(&w, shoal_view_of(bytes, shoal_job_entry_scale(bytes, sizeof(bytes), replicas, "ann", 1)));
    w_run_for(&w, SHOAL_S);
}

/* A service of an ended replica waits for the next one; from the fifth end in a row on, hosts refuse what they hold (the words that
 * backend_infer.c looks for). */
static void test_replicas_that_end_one_after_the_other(void **state)
{
    static struct shoal_job_facts facts;

    (void)state;
    begin_service(14, 1, 12);
    w_new_lead(&w, 0);
    for (uint32_t ends = 1; ends <= 6; ends++) {
        struct w_worker *last = NULL;

        w_run_for(&w, 10 * SHOAL_S); /* the pause before the next one has passed */
        for (uint32_t i = 0; i < w.worker_count; i++)
            if (w.workers[i].alive)
                last = &w.workers[i];
        assert_non_null(last);
        w_exit(&w, last, 3, false);
        w_run_for(&w, 100 * SHOAL_MS);
        shoal_lead_facts(w.lead, &facts);
        assert_int_equal(strncmp(facts.pending, "a replica has ended with ", 25) == 0, ends < 5);
        assert_int_equal(strncmp(facts.pending, "a replica ended with ", 21) == 0, ends >= 5);
    }
    scale(0); /* nobody used it for a while, or somebody stopped it: the next request is refused for no end of before */
    shoal_lead_facts(w.lead, &facts);
    assert_string_equal(facts.pending, "");
    scale(1);
    assert_int_equal(w_alive(&w, SHOAL_JOB_TASK), 1);
    w_deinit(&w);
}

static void strike(uint32_t step)
{
    uint32_t host = (uint32_t)shoal_rand_below(&w.rand, W_HOSTS);

    switch (shoal_rand_below(&w.rand, 4)) {
    case 0:
        if (host != w.lead_host && w.hosts[host].up) {
            w_host_down(&w, host);
            w_host_up(&w, host);
            w_health(&w, host, step + 10);
        }
        break;
    case 1: w_new_lead(&w, host); break;
    case 2: w_agent_anew(&w, host); break;
    default: break;
    }
    w_target(&w);
}

/* Random strikes, lost and repeated messages: every task is DONE, committed once, and ran at least once. */
static void test_chance(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        begin(seed, seed % 2 == 0 ? "0-79" : "0-79%5", 12);
        w.script_ns = 50 * SHOAL_MS;
        w.lose_pct = (uint32_t)(seed % 4 * 10);
        w.repeat_pct = (uint32_t)(seed % 3 * 10);
        w_new_lead(&w, 0);
        for (uint32_t i = 0; i < 6 && !shoal_job_state_ended((enum shoal_job_state)w.job->state); i++) {
            w_run_for(&w, shoal_rand_below(&w.rand, 300) * SHOAL_MS);
            strike(i);
        }
        w_run_to_end(&w, 300 * SHOAL_S);
        if (w.job->tasks->counts[SHOAL_TASK_DONE] + w.job->tasks->counts[SHOAL_TASK_FAILED] != 80)
            W_FAIL(&w, "%u of 80 tasks are done, %u failed", w.job->tasks->counts[SHOAL_TASK_DONE],
                   w.job->tasks->counts[SHOAL_TASK_FAILED]);
        for (uint32_t i = 0; i < 80; i++)
            if (w.job->tasks->tasks[i].state == SHOAL_TASK_DONE && w.task_runs[i] == 0)
                W_FAIL(&w, "task %u is done and has never run", i);
        w_run_for(&w, 60 * SHOAL_S);
        assert_int_equal(w.job->placement_count, 0);
        w_deinit(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_well),
        cmocka_unit_test(test_cost),
        cmocka_unit_test(test_no_placement_is_cancelled),
        cmocka_unit_test(test_a_host_that_starts_nothing_costs_no_attempt),
        cmocka_unit_test(test_tasks_that_stay_on_a_drained_host_keep_nobody_elsewhere_waiting),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_one_fails),
        cmocka_unit_test(test_host_dies),
        cmocka_unit_test(test_lost_too_often),
        cmocka_unit_test(test_leader_changes),
        cmocka_unit_test(test_leader_host_dies),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_stop_counts),
        cmocka_unit_test(test_others_get_their_share),
        cmocka_unit_test(test_a_service_yields),
        cmocka_unit_test(test_a_silent_host_takes_no_replica_from_others),
        cmocka_unit_test(test_replicas_leave_a_drained_host),
        cmocka_unit_test(test_replicas_that_end_one_after_the_other),
        cmocka_unit_test(test_chance),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
