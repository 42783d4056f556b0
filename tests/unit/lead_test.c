/* One lead and three slots cores run jobs end to end with workers that behave, under deaths, joins, cuts and lost
 * messages. */
#include "shoal/job_facts.h"
#include "shoal/job_entry.h"
#include "job_world.h"

static struct world w;

static void expect_state(uint8_t state)
{
    if (w.job->state != state)
        W_FAIL(&w, "want %s, got %s (%s)", shoal_job_state_name((enum shoal_job_state)state),
               shoal_job_state_name((enum shoal_job_state)w.job->state), w.job->reason);
}

/* An ended job leaves nothing behind: no worker, no lease, and its leader sleeps. Except where the job gave a lease up
 * while its host was out of reach: there a frozen worker waits for its slot to be claimed, or for its ten minutes. */
static void expect_clean(void)
{
    w_run_for(&w, 60 * SHOAL_S);
    if (w.job->placement_count > 0)
        W_FAIL(&w, "%u placements are left, the first of worker %llx on host %u", w.job->placement_count,
               (unsigned long long)w.job->placements[0].worker_id & 0xff, w_host_of(w.job->placements[0].node));
    for (uint32_t i = 0; i < w.worker_count; i++)
        if (w.workers[i].alive && !w.workers[i].frozen)
            W_FAIL(&w, "worker %llx still lives", (unsigned long long)w.workers[i].id & 0xff);
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
}

static void test_elastic(void **state)
{
    (void)state;
    w_init(&w, 1, true, 1, 4);
    w.trace = getenv("TRACE") != NULL;
    w.calls = 2;
    w_new_lead(&w, 0);
    w_run_to_end(&w, 60 * SHOAL_S);
    expect_state(SHOAL_JOB_FINISHED);
    assert_int_equal(w.job->call_count, 2);
    assert_int_equal(w.job->calls[1].state, SHOAL_CALL_FINISHED);
    assert_int_equal(w.job->calls[1].final_step, w.steps);
    assert_false(shoal_hash_is_zero(w.job->result));
    assert_int_equal(w.job->exit_code, 0);
    assert_true(w.job->data_epoch_count >= 1);
    assert_true(w.job->data_epochs[0].loss_micro == 500000);
    expect_clean();
    w_deinit(&w);
}

static void start(uint64_t seed, bool elastic, uint32_t min, uint32_t max)
{
    w_init(&w, seed, elastic, min, max);
    w.trace = getenv("TRACE") != NULL;
    w.steps = 400;
}

static void finish(void)
{
    w_run_to_end(&w, 120 * SHOAL_S);
    expect_state(SHOAL_JOB_FINISHED);
    expect_clean();
    w_deinit(&w);
}

static void test_script(void **state)
{
    (void)state;
    start(2, false, 1, 1);
    w_new_lead(&w, 1);
    w_run_to_end(&w, 10 * SHOAL_S);
    expect_state(SHOAL_JOB_FINISHED);
    assert_int_equal(w.runs, 1);
    assert_false(shoal_hash_is_zero(w.job->result));
    expect_clean();
    w_deinit(&w);
}

/* A job that finds room at once is placed by the first entry of its log: it waits for no other. */
/* The only slot that a host is given is none that there can be: it is not asked, and the job waits. */
static void test_a_slot_that_cannot_be_is_not_asked_for(void **state)
{
    struct shoal_lead_slot slot = { .node = w_node(2), .slot = SHOAL_SLOTS_MAX };
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_TARGET };

    (void)state;
    start(2, false, 1, 1);
    w.target = 0;
    w_new_lead(&w, 1);
    event.u.target.count = 1;
    event.u.target.slots = &slot;
    event.u.target.slot_count = 1;
    event.u.target.why = "given";
    w_lead(&w, &event);
    assert_int_equal(w.runs, 0);
    w.target = 1;
    w_target(&w);
    finish();
}

static void test_a_script_starts_with_one_entry(void **state)
{
    (void)state;
    start(18, false, 1, 1);
    w_new_lead(&w, 1);
    for (unsigned i = 0; i < 100 && w.runs == 0; i++)
        w_run_for(&w, SHOAL_MS / 4);
    assert_int_equal(w.runs, 1);
    assert_int_equal(w.index, 3); /* two of the founding, and the placement */
    finish();
}

/* J6: what a job that ends at once costs its guardians. */
static void test_a_short_script_costs_two_entries_beyond_its_founding(void **state)
{
    (void)state;
    start(19, false, 1, 1);
    w.script_ns = 20 * SHOAL_MS;
    w_new_lead(&w, 1);
    w_run_to_end(&w, SHOAL_S);
    expect_state(SHOAL_JOB_FINISHED);
    assert_int_equal(w.index, 4); /* two of the founding, the placement, the result */
    expect_clean();
    w_deinit(&w);
}

/* A host's datagrams are heard before its new link is up: what was sent in between is lost, so it is sent again. */
static void test_a_link_that_comes_up_renews_leases_at_once(void **state)
{
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_HOST };
    struct shoal_lead_stats stats;
    uint64_t before;

    (void)state;
    start(19, true, 1, 4);
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 20, 20 * SHOAL_S);
    event.u.host.node = w.job->placements[0].node;
    event.u.host.health = SHOAL_LEAD_HOST_WELL;
    event.u.host.host_epoch = w.job->placements[0].host_epoch;
    for (uint32_t links = 1; links < 3; links++) {
        w_run_for(&w, 100 * SHOAL_MS);
        shoal_lead_stats(w.lead, &stats);
        before = stats.renewals;
        w_lead(&w, &event); /* nothing new */
        shoal_lead_stats(w.lead, &stats);
        assert_int_equal(stats.renewals, before);
        event.u.host.links = links;
        w_lead(&w, &event);
        shoal_lead_stats(w.lead, &stats);
        assert_true(stats.renewals > before);
    }
    finish();
}

/* L6. A host with workers is told each time who guards the job; one that was away is told again. */
static void test_guardians_change(void **state)
{
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_GUARDIANS };
    struct shoal_node_id nodes[W_HOSTS] = { w_node(0), w_node(1) };
    uint32_t at = 0, host;

    (void)state;
    start(4, false, 12, 12); /* a gang has no calls, whose words name guardians, too */
    w_new_lead(&w, 0);
    w_run_for(&w, 300 * SHOAL_MS);
    while (w_host_of(w.job->placements[at].node) == 0)
        at++;
    host = w_host_of(w.job->placements[at].node);
    assert_int_equal(w.hosts[host].guardian_count, W_HOSTS);
    event.u.guardians.nodes = nodes;
    event.u.guardians.count = 2;
    w_lead(&w, &event);
    w_run_for(&w, 100 * SHOAL_MS);
    assert_int_equal(w.hosts[host].guardian_count, 2);
    event.u.guardians.count = 1;
    w.lose_pct = 100; /* it does not hear of this */
    w_lead(&w, &event);
    w_run_for(&w, 20 * SHOAL_MS);
    assert_int_equal(w.hosts[host].guardian_count, 2);
    w.lose_pct = 0;
    event = (struct shoal_lead_event){ .kind = SHOAL_LEAD_HOST };
    event.u.host.node = w_node(host);
    event.u.host.health = SHOAL_LEAD_HOST_WELL;
    event.u.host.host_epoch = w.job->placements[at].host_epoch;
    event.u.host.links = 77;
    w_lead(&w, &event);
    w_run_for(&w, 100 * SHOAL_MS);
    assert_int_equal(w.hosts[host].guardian_count, 1);
    finish();
}

static void test_script_fails(void **state)
{
    (void)state;
    start(3, false, 2, 2);
    w.script_status = 3;
    w_new_lead(&w, 0);
    w_run_to_end(&w, 10 * SHOAL_S);
    expect_state(SHOAL_JOB_ERROR);
    assert_int_equal(w.job->exit_code, 3);
    assert_non_null(strstr(w.job->reason, "exit status 3: last line of stderr"));
    expect_clean();
    w_deinit(&w);
}

static void test_gang(void **state)
{
    (void)state;
    start(4, false, 12, 12);
    w_new_lead(&w, 0);
    w_run_for(&w, 300 * SHOAL_MS);
    assert_int_equal(w_alive(&w, SHOAL_JOB_SCRIPT), 12);
    finish();
}

static void test_gang_waits(void **state)
{
    (void)state;
    start(5, false, 12, 12);
    w.target = 11; /* less than the gang: nothing may be held */
    w_new_lead(&w, 0);
    w_run_for(&w, 5 * SHOAL_S);
    expect_state(SHOAL_JOB_PENDING_CRD_SCHEDULER);
    assert_int_equal(w.runs, 0);
    w.target = 12;
    w_target(&w);
    finish();
}

static void test_pending_timeout(void **state)
{
    (void)state;
    start(6, false, 2, 2);
    w.job->spec.pending_timeout_ms = 3000;
    w.target = 0;
    w_new_lead(&w, 0);
    w_run_to_end(&w, 4 * SHOAL_S);
    expect_state(SHOAL_JOB_ERROR);
    assert_non_null(strstr(w.job->reason, "pending timeout"));
    w_deinit(&w);
}

static void kill_worker(struct w_worker *worker) { w_exit(&w, worker, 9, true); }

static void test_engine_dies(void **state)
{
    (void)state;
    start(7, true, 1, 4);
    w_new_lead(&w, 0);
    for (uint64_t step = 50; step <= 300; step += 50) {
        w_run_to_step(&w, 1, step, 10 * SHOAL_S);
        if (w_any(&w, SHOAL_JOB_ENGINE, 1) != NULL)
            kill_worker(w_any(&w, SHOAL_JOB_ENGINE, (uint32_t)step / 50 % 2));
    }
    assert_true(w.job->epoch->epoch.e >= 6);
    finish();
}

static void test_all_engines_die(void **state)
{
    (void)state;
    start(8, true, 1, 3);
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 60, 10 * SHOAL_S);
    for (uint32_t i = 0; i < 3; i++)
        kill_worker(w_any(&w, SHOAL_JOB_ENGINE, 0));
    w_run_for(&w, 200 * SHOAL_MS); /* from the bundle again: there is no snapshot */
    assert_true(w.steps_done[1] < 60);
    w_run_to_step(&w, 1, 65, 10 * SHOAL_S);
    expect_state(SHOAL_JOB_RUNNING);
    finish();
}

static void test_snapshot(void **state)
{
    static struct shoal_worker_message m;
    struct w_worker *engine;

    (void)state;
    start(9, true, 1, 2);
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 60, 10 * SHOAL_S);
    engine = w_any(&w, SHOAL_JOB_ENGINE, 0);
    m.kind = SHOAL_WORKER_SNAPSHOT;
    m.snapshot.call = 1;
    m.snapshot.step = 55;
    memset(m.snapshot.path, 'a', 69);
    memcpy(m.snapshot.path, "blob:", 5);
    w_say(&w, engine, &m);
    w_run_for(&w, 100 * SHOAL_MS);
    assert_int_equal(w.job->calls[0].snapshot_step, 55);
    for (uint32_t i = 0; i < 2; i++)
        kill_worker(w_any(&w, SHOAL_JOB_ENGINE, 0));
    w_run_for(&w, 150 * SHOAL_MS);
    w_run_to_step(&w, 1, 65, 10 * SHOAL_S);
    assert_true(strncmp(w.job->epoch->snapshot_path, "blob:aaaa", 9) == 0);
    assert_int_equal(w.job->epoch->decided_step, 55);
    finish();
}

static void test_host_dies(void **state)
{
    uint64_t died_ns, step;

    (void)state;
    start(10, true, 1, 6);
    w.steps = 500;
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 50, 10 * SHOAL_S);
    w_host_down(&w, 2);
    died_ns = w.now_ns;
    step = w.steps_done[1];
    w_run_to_step(&w, 1, step + 5, 10 * SHOAL_S);
    if (w.now_ns - died_ns > 2500 * SHOAL_MS)
        W_FAIL(&w, "training went on only %llu ms after the host's death",
               (unsigned long long)((w.now_ns - died_ns) / SHOAL_MS));
    w_host_up(&w, 2); /* a new life: its old leases are void at once */
    w_health(&w, 2, 1);
    w_target(&w);
    finish();
}

/* A lost host's engines hold their slots until their leases have ended, but not the job's place for others. */
static void test_lost_engines_are_replaced_at_once(void **state)
{
    uint64_t step;

    (void)state;
    start(17, true, 1, 6);
    w.steps = 2000;
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 50, 10 * SHOAL_S);
    assert_int_equal(w_alive(&w, SHOAL_JOB_ENGINE), 6);
    w_host_down(&w, 2);
    assert_true(w_alive(&w, SHOAL_JOB_ENGINE) < 6);
    step = w.steps_done[1];
    w_run_to_step(&w, 1, step + 5, 10 * SHOAL_S);
    w_run_for(&w, 2 * SHOAL_S);
    assert_int_equal(w_alive(&w, SHOAL_JOB_ENGINE), 6);
    w_host_up(&w, 2);
    w_health(&w, 2, 1);
    w_target(&w);
    w_run_for(&w, 2 * SHOAL_S);
    assert_int_equal(w_alive(&w, SHOAL_JOB_ENGINE), 6); /* and not more when the host is back */
    finish();
}

static void test_leader_host_dies(void **state)
{
    (void)state;
    start(11, true, 1, 6);
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 50, 10 * SHOAL_S);
    w_host_down(&w, 0); /* with the driver, and some engines */
    shoal_lead_destroy(w.lead);
    w.lead = NULL;
    w_run_for(&w, 800 * SHOAL_MS);
    w_new_lead(&w, 1);
    w_run_for(&w, 200 * SHOAL_MS);
    assert_int_equal(w_alive(&w, SHOAL_JOB_DRIVER), 0); /* the lease of the lost one has not ended */
    w_run_to_step(&w, 1, w.steps_done[1] + 5, 10 * SHOAL_S);
    finish();
    /* (the successor re-attached to the call: a second CALL entry would have been refused) */
}

static void test_leader_changes(void **state)
{
    (void)state;
    start(12, true, 1, 5);
    w_new_lead(&w, 0);
    w.calls = 2;
    for (uint32_t i = 0; i < 6; i++) {
        w_run_for(&w, 120 * SHOAL_MS);
        w_new_lead(&w, i % W_HOSTS); /* the host lives on: no worker may notice */
    }
    w_run_to_step(&w, 2, 1, 30 * SHOAL_S);
    assert_int_equal(w_alive(&w, SHOAL_JOB_DRIVER), 1);
    finish();
}

static void test_driver_dies(void **state)
{
    uint64_t first;

    (void)state;
    start(13, true, 1, 2);
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 50, 10 * SHOAL_S);
    first = w_any(&w, SHOAL_JOB_DRIVER, 0)->id;
    kill_worker(w_any(&w, SHOAL_JOB_DRIVER, 0));
    w_run_to_step(&w, 1, 100, 10 * SHOAL_S);
    assert_int_equal(w.job->epoch->epoch.e, 1); /* the engines did not notice */
    assert_int_equal(w_alive(&w, SHOAL_JOB_DRIVER), 1);
    assert_true(w_any(&w, SHOAL_JOB_DRIVER, 0)->id != first);
    finish();
    assert_int_equal(w.job == NULL, 0);
}

/* The leader's host serves no framework: the driver, too, is where the workers are, also the second one. */
static void test_driver_of_a_host_without_slots(void **state)
{
    (void)state;
    start(17, true, 1, 2);
    w.hosts[0].no_slots = true;
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 50, 10 * SHOAL_S);
    assert_int_not_equal(w_any(&w, SHOAL_JOB_DRIVER, 0)->host, 0);
    kill_worker(w_any(&w, SHOAL_JOB_DRIVER, 0));
    w_run_to_step(&w, 1, 100, 10 * SHOAL_S);
    assert_int_not_equal(w_any(&w, SHOAL_JOB_DRIVER, 0)->host, 0);
    assert_int_equal(w_alive(&w, SHOAL_JOB_DRIVER), 1);
    finish();
}

/* A host whose agent has just started: it refuses until it has found what ran there before. */
static void make_unready(uint32_t host)
{
    struct shoal_slots_options options = {
        .slots = W_SLOTS, .device = SHOAL_JOB_DEVICE_CPU, .jobs_max = 4, .reattaches = true
    };

    options.self = w_node(host);
    options.host_epoch = w.hosts[host].host_epoch;
    options.start_ns = w.now_ns;
    shoal_slots_destroy(w.hosts[host].slots);
    assert_int_equal(shoal_slots_create(&w.hosts[host].slots, &options), SHOAL_OK);
}

static void make_ready(uint32_t host)
{
    struct shoal_slots_event ready = { .kind = SHOAL_SLOTS_HOST, .u.host = { .kind = SHOAL_HOST_ON_REATTACHED } };

    w_slots(&w, host, &ready);
}

/* The last step is done, the engines are gone, and the driver is lost. One leader takes it out of the log and finds no
 * place for its successor; the next one is allocated no slots, so nothing has named a host to it. */
static void lose_the_driver_after_the_call(bool no_slots)
{
    start(19, true, 1, 2);
    w.steps = 20;
    w.slot_banned = 0xffull << 8;
    make_unready(1);
    w.hosts[2].no_slots = no_slots;
    w_new_lead(&w, 0);
    for (unsigned i = 0; i < 4000 && !(w.job->call_count == 1 && w.job->calls[0].state >= SHOAL_CALL_DONE); i++)
        w_run_for(&w, SHOAL_MS);
    expect_state(SHOAL_JOB_RUNNING);
    w.target = 0;
    kill_worker(w_any(&w, SHOAL_JOB_DRIVER, 0));
    w_new_lead(&w, 1);
    for (unsigned i = 0; i < 4000 && w.job->placement_count > 0; i++)
        w_run_for(&w, SHOAL_MS);
    assert_int_equal(w.job->placement_count, 0);
    w_run_for(&w, 2 * SHOAL_S); /* nothing is left to report */
    expect_state(SHOAL_JOB_RECOVERING);
    w.stamps_of_placed = true;
    w_new_lead(&w, 2);
    make_ready(1);
    finish();
}

static void test_a_driver_that_is_lost_after_the_last_step(void **state)
{
    (void)state;
    lose_the_driver_after_the_call(false);
    lose_the_driver_after_the_call(true);
}

/* A host that is not ready yet says so once, not as often as it can be asked. */
static void test_driver_is_not_asked_for_again_and_again(void **state)
{
    struct shoal_lead_stats stats;

    (void)state;
    start(18, true, 1, 2);
    make_unready(0);
    w_new_lead(&w, 0);
    w_run_for(&w, 3 * SHOAL_S);
    assert_int_equal(w_alive(&w, SHOAL_JOB_DRIVER), 0);
    shoal_lead_stats(w.lead, &stats);
    assert_in_range(stats.reserves, 1, 20);
    make_ready(0);
    finish();
}

/* By the host, out of memory, or by its own native code. That is its own end, and none of the workers'. */
static void test_a_driver_that_is_killed_again_and_again_ends_the_job(void **state)
{
    uint64_t last = 0;
    unsigned kills = 0;

    (void)state;
    start(13, true, 1, 2);
    w.step_ns = 1000 * SHOAL_S;
    w_new_lead(&w, 0);
    for (unsigned i = 0; i < 20000 && !shoal_job_state_ended((enum shoal_job_state)w.job->state); i++) {
        struct w_worker *driver = w_any(&w, SHOAL_JOB_DRIVER, 0);

        if (driver != NULL && driver->id != last) {
            last = driver->id;
            kill_worker(driver);
            kills++;
        }
        w_run_for(&w, SHOAL_MS);
    }
    expect_state(SHOAL_JOB_ERROR);
    assert_int_equal(w.job->exit_code, 137);
    assert_string_equal(w.job->reason, "5 times without one step in between: the driver, which runs the script, was ended by signal 9 "
                                       "(SIGKILL: the host may be out of memory): last line of stderr");
    assert_int_equal(kills, 5);
    expect_clean();
    w_deinit(&w);
}

static void test_a_driver_may_be_killed_as_often_as_training_goes_on(void **state)
{
    (void)state;
    start(13, true, 1, 2);
    w.step_ns = 40 * SHOAL_MS;
    w_new_lead(&w, 0);
    for (unsigned i = 1; i <= 12; i++) {
        w_run_to_step(&w, 1, 20 * i, 10 * SHOAL_S);
        if (w_any(&w, SHOAL_JOB_DRIVER, 0) != NULL)
            kill_worker(w_any(&w, SHOAL_JOB_DRIVER, 0));
    }
    finish();
}

static void test_driver_fails(void **state)
{
    (void)state;
    start(14, true, 1, 2);
    w.steps = 20;
    w.driver_status = 7;
    w_new_lead(&w, 0);
    w_run_to_end(&w, 20 * SHOAL_S);
    expect_state(SHOAL_JOB_ERROR);
    assert_int_equal(w.job->exit_code, 7);
    expect_clean();
    w_deinit(&w);
}

/* train() raises in the driver; what it does then decides the job's end. */
static void fails_in_users_code(bool catches)
{
    start(31, true, 1, 3);
    w.steps = 20;
    w.calls = 2;
    w.fails_call = 1;
    w.catches = catches;
    w_new_lead(&w, 0);
    w_run_to_end(&w, 60 * SHOAL_S);
    assert_int_equal(w.job->calls[0].state, SHOAL_CALL_FAILED);
}

static void test_a_failure_in_users_code_ends_the_job_if_the_script_does(void **state)
{
    (void)state;
    fails_in_users_code(false);
    expect_state(SHOAL_JOB_ERROR);
    assert_string_equal(w.job->reason, "an engine failed in the user's code: KeyError: row (main.py, line 7)");
    assert_int_equal(w.job->exit_code, 1);
    assert_int_equal(w.job->call_count, 1);
    expect_clean();
    w_deinit(&w);
}

/* Whenever another leader comes into office. */
static void test_a_leader_that_did_not_see_a_call_fail_says_why_all_the_same(void **state)
{
    static const char *const why = "an engine failed in the user's code: KeyError: row (main.py, line 7)";

    (void)state;
    for (unsigned late = 0; late < 60; late++) {
        start(400 + late, true, 1, 3);
        w.steps = 20;
        w.fails_call = 1;
        w.words_max = 25;
        w_new_lead(&w, 0);
        for (unsigned i = 0; i < 20000 && (w.job->call_count == 0 || w.job->calls[0].state != SHOAL_CALL_FAILED); i++)
            w_run_for(&w, SHOAL_MS / 4);
        w_run_for(&w, late * SHOAL_MS / 2);
        if (!shoal_job_state_ended((enum shoal_job_state)w.job->state))
            w_new_lead(&w, 1 + late % 2);
        w_run_to_end(&w, 60 * SHOAL_S);
        expect_state(SHOAL_JOB_ERROR);
        assert_int_equal(w.job->exit_code, 1);
        assert_memory_equal(w.job->reason, why, strlen(w.job->reason));
        assert_true(strlen(w.job->reason) == 25 || strcmp(w.job->reason, why) == 0);
        w_deinit(&w);
    }
}

static void test_a_failure_in_users_code_that_the_script_catches_ends_one_call(void **state)
{
    (void)state;
    fails_in_users_code(true);
    expect_state(SHOAL_JOB_FINISHED);
    assert_int_equal(w.job->call_count, 2);
    assert_int_equal(w.job->calls[1].state, SHOAL_CALL_FINISHED);
    expect_clean();
    w_deinit(&w);
}

static void test_join_and_shrink(void **state)
{
    (void)state;
    start(15, true, 1, 6);
    w.target = 1;
    w.steps = 490;
    w.step_ns = 4 * SHOAL_MS;
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 30, 10 * SHOAL_S);
    assert_int_equal(w.job->epoch->member_count, 1);
    w.target = 4;
    w_target(&w);
    w_run_for(&w, 400 * SHOAL_MS);
    assert_int_equal(w.job->epoch->member_count, 4);
    assert_int_equal(w.job->epoch->epoch.e, 2); /* three joiners in one epoch */
    assert_true(w.job->epoch->donor != 0);
    w.target = 2;
    w_target(&w);
    w_run_for(&w, 4 * SHOAL_S);
    assert_int_equal(w.job->epoch->member_count, 2);
    assert_int_equal(shoal_job_held(w.job), 2);
    finish();
}

static uint32_t slots_in_state(enum shoal_slot_state state)
{
    uint32_t count = 0;

    for (uint32_t h = 0; h < W_HOSTS; h++) {
        struct shoal_slot_status status;

        for (uint32_t s = 0; s < W_SLOTS; s++) {
            shoal_slots_slot(w.hosts[h].slots, s, &status);
            count += status.state == state ? 1 : 0;
        }
    }
    return count;
}

/* Another job takes its share between the question and the answer: what was promised goes back at once. */
static void test_a_promise_that_is_needed_no_more_is_given_back(void **state)
{
    uint64_t entries;

    (void)state;
    start(15, true, 1, 6);
    w.target = 1;
    w.steps = 490;
    w.step_ns = 4 * SHOAL_MS;
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 30, 10 * SHOAL_S);
    w.target = 4;
    w_target(&w);
    for (unsigned i = 0; i < 1000 && slots_in_state(SHOAL_SLOT_TENTATIVE) < 3; i++)
        w_turn(&w);
    assert_int_equal(slots_in_state(SHOAL_SLOT_TENTATIVE), 3);
    w.target = 1;
    w_target(&w);
    entries = w.index;
    w_run_for(&w, 50 * SHOAL_MS); /* not the two seconds of a promise */
    assert_int_equal(slots_in_state(SHOAL_SLOT_TENTATIVE), 0);
    assert_int_equal(slots_in_state(SHOAL_SLOT_LEASED), 1);
    assert_int_equal(w.index, entries); /* nothing of it is in the log */
    finish();
}

static uint32_t engines_on(uint32_t host)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < w.worker_count; i++)
        count += w.workers[i].alive && w.workers[i].role == SHOAL_JOB_ENGINE && w.workers[i].host == host;
    return count;
}

static void drain(uint32_t host)
{
    const struct shoal_slots_event event = { .kind = SHOAL_SLOTS_DRAIN, .u.drain = true };

    w.hosts[host].draining = true;
    w_slots(&w, host, &event);
    w_health(&w, host, 99);
    w_target(&w);
}

/* Each host in turn, that of the leader too: workers are placed elsewhere, train, and then those there leave; no step is
 * done twice, and nobody dies. With all workers on the host, too: one must carry the state away. */
static void test_a_drained_host(void **state)
{
    (void)state;
    for (uint32_t most = 1; most <= 4; most++) {
        for (uint32_t host = 0; host < W_HOSTS; host++) {
            start(300 + 10 * most + host, true, 1, most);
            w.steps = 3000;
            w_new_lead(&w, 0);
            w_run_to_step(&w, 1, 60, 60 * SHOAL_S);
            drain(host);
            for (uint32_t i = 0; i < 400 && engines_on(host) > 0; i++)
                w_run_for(&w, 50 * SHOAL_MS);
            if (engines_on(host) > 0)
                W_FAIL(&w, "%u engines are on host %u still", engines_on(host), host);
            assert_int_equal(w_alive(&w, SHOAL_JOB_ENGINE), most); /* as many as before, elsewhere */
            assert_int_equal(w.redone, 0);
            finish();
        }
    }
}

/* There is nothing elsewhere: they stay, and train. */
static void test_a_drained_host_without_another(void **state)
{
    (void)state;
    start(350, true, 1, 2);
    w.steps = 3000;
    w.step_ns = 8 * SHOAL_MS;
    for (uint32_t host = 1; host < W_HOSTS; host++)
        drain(host);
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 60, 60 * SHOAL_S);
    drain(0);
    w_run_for(&w, 30 * SHOAL_S);
    assert_int_equal(engines_on(0), 2);
    finish();
}

static void test_stop(void **state)
{
    uint8_t bytes[128];

    (void)state;
    start(16, true, 1, 4);
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 30, 10 * SHOAL_S);
    w_commit(&w, shoal_view_of(bytes, shoal_job_entry_stop(bytes, sizeof(bytes), "ada", 5)));
    w_run_to_end(&w, 5 * SHOAL_S);
    expect_state(SHOAL_JOB_KILLED);
    assert_string_equal(w.job->reason, "stopped by ada");
    w_commit(&w, shoal_view_of(bytes, shoal_job_entry_delete(bytes, sizeof(bytes), "ada", 5)));
    expect_clean();
    assert_int_equal(w.deletes, 1);
    w_deinit(&w);
}

static void test_stop_pending(void **state)
{
    uint8_t bytes[128];

    (void)state;
    start(17, false, 2, 2);
    w.target = 0;
    w_new_lead(&w, 0);
    w_run_for(&w, SHOAL_S);
    w_commit(&w, shoal_view_of(bytes, shoal_job_entry_stop(bytes, sizeof(bytes), "ada", 5)));
    w_run_to_end(&w, SHOAL_S);
    expect_state(SHOAL_JOB_KILLED);
    expect_clean();
    w_deinit(&w);
}

/* The agent beside rank 0 is away for 5 s: no step is reported, its workers train on, nothing is formed anew (E5). */
static void test_agent_away(void **state)
{
    static struct shoal_job_facts facts;
    uint32_t away;
    uint64_t step;

    (void)state;
    start(28, true, 1, 6);
    w.steps = 500;
    w.step_ns = 4 * SHOAL_MS;
    w_new_lead(&w, 2);
    w_run_to_step(&w, 1, 30, 10 * SHOAL_S);
    w_run_for(&w, SHOAL_S);
    away = w_host_of(w.job->epoch->members[0].node);
    assert_int_not_equal(away, w.lead_host);
    step = w.steps_done[1];
    w.hosts[away].agent_up = false;
    (void)w_push(&w, W_HEALTH, away, 600 * SHOAL_MS);
    w_run_for(&w, 5 * SHOAL_S);
    shoal_lead_facts(w.lead, &facts);
    assert_true(facts.step > step + 10); /* the others' hosts say how far it is */
    w.hosts[away].agent_up = true;
    (void)w_push(&w, W_HEALTH, away, SHOAL_MS);
    w_run_for(&w, SHOAL_S);
    assert_int_equal(w.job->epoch->epoch.e, 1);
    assert_int_equal(w_alive(&w, SHOAL_JOB_ENGINE), 6);
    finish();
}

/* A host falls silent and so do its workers: the next epoch begins without it, soon, and not before both are known. */
static void test_host_silent(void **state)
{
    uint64_t cut_ns;
    uint32_t cut;

    (void)state;
    start(29, true, 1, 6);
    w.steps = 500;
    w_new_lead(&w, 2);
    w_run_to_step(&w, 1, 30, 10 * SHOAL_S);
    w_run_for(&w, SHOAL_S);
    cut = w_host_of(w.job->epoch->members[0].node);
    w.hosts[cut].cut = true;
    (void)w_push(&w, W_HEALTH, cut, 600 * SHOAL_MS);
    cut_ns = w.now_ns;
    while (w.job->epoch->epoch.e == 1 && w.now_ns - cut_ns < 5 * SHOAL_S)
        w_turn(&w);
    if (w.now_ns - cut_ns < 600 * SHOAL_MS || w.now_ns - cut_ns > 1100 * SHOAL_MS)
        W_FAIL(&w, "the next epoch came %llu ms after the cut", (unsigned long long)((w.now_ns - cut_ns) / SHOAL_MS));
    w.hosts[cut].cut = false;
    w_health(&w, cut, 0);
    w_target(&w);
    finish();
}

/* Workers are counted without the driver, and a reason is said once. */
static void test_why_says_each_thing_once(void **state)
{
    static char why[2048];
    const char *first;

    (void)state;
    start(29, true, 1, 6);
    w.steps = 500;
    w_new_lead(&w, 2);
    w_run_to_step(&w, 1, 30, 10 * SHOAL_S);
    shoal_lead_why(w.lead, why, sizeof(why));
    if (strstr(why, "; 6 workers live") == NULL)
        fail_msg("%s", why);
    finish();
    start(6, false, 2, 2);
    w.target = 0;
    w_new_lead(&w, 0);
    w_run_for(&w, 2 * SHOAL_S);
    shoal_lead_why(w.lead, why, sizeof(why));
    first = strstr(why, "given");
    if (first == NULL || strstr(first + 1, "given") != NULL)
        fail_msg("%s", why);
    w_deinit(&w);
}

/* Training that waits for a data connection, though all hosts are well: `why` names both ends, and says when it is over. */
static void test_why_names_a_data_connection_that_is_waited_for(void **state)
{
    static char why[2048];
    struct w_worker *waits;

    (void)state;
    start(29, true, 1, 6);
    w.steps = 500;
    w_new_lead(&w, 2);
    w_run_to_step(&w, 1, 30, 10 * SHOAL_S);
    waits = w_worker(&w, w.job->epoch->members[0].worker_id);
    waits->deaf = 0x3e; /* all others */
    w_run_for(&w, SHOAL_S);
    shoal_lead_why(w.lead, why, sizeof(why));
    assert_non_null(strstr(why, "(rank 0) on host "));
    assert_non_null(strstr(why, " waits for its data connection with worker "));
    assert_non_null(strstr(why, "(rank 1) on host "));
    assert_non_null(strstr(why, "1 more data connections are waited for"));
    assert_non_null(strstr(why, "look at the network between these hosts"));
    waits->deaf = 0;
    w_run_for(&w, SHOAL_S);
    shoal_lead_why(w.lead, why, sizeof(why));
    assert_null(strstr(why, "data connection"));
    finish();
}

/* Training that hangs while all processes and hosts are well: the rate falls to nothing, once, and `why` says since when. */
static void test_training_that_stands_is_seen(void **state)
{
    static char why[2048];
    struct shoal_job_summary summary;
    struct shoal_job_facts facts;
    struct shoal_host_event stands = { .kind = SHOAL_HOST_ON_STANDS };
    uint64_t said;

    (void)state;
    start(29, true, 1, 6);
    w.steps = 1000;
    w.step_ns = 4 * SHOAL_MS;
    w_new_lead(&w, 2);
    w_run_to_step(&w, 1, 200, 20 * SHOAL_S);
    shoal_lead_summary(w.lead, &summary);
    assert_true(summary.rate_milli > 0);
    w.steps_stop = true;
    w_run_for(&w, 9 * SHOAL_S);
    shoal_lead_summary(w.lead, &summary);
    assert_true(summary.rate_milli > 0);
    w_run_for(&w, 6 * SHOAL_S);
    shoal_lead_summary(w.lead, &summary);
    shoal_lead_facts(w.lead, &facts);
    assert_int_equal(summary.rate_milli, 0);
    assert_int_equal(facts.rate_milli, 0);
    said = w.summaries;
    w_run_for(&w, 40 * SHOAL_S);
    shoal_lead_why(w.lead, why, sizeof(why));
    assert_null(strstr(why, "no step for"));
    w_run_for(&w, 320 * SHOAL_S);
    shoal_lead_why(w.lead, why, sizeof(why));
    if (strstr(why, "\nno step for 6 min; the last one was 2") == NULL)
        fail_msg("%s", why);
    assert_int_equal(w.summaries, said); /* gossip hears of it once */
    stands.u.stands.worker_id = w.job->epoch->members[1].worker_id;
    stands.u.stands.epoch_word = shoal_epoch_word(w.job->epoch->epoch);
    stands.u.stands.activity = SHOAL_ACTIVITY_COMPUTING;
    w_shell(&w, w_host_of(w.job->epoch->members[1].node), &stands);
    w_run_for(&w, SHOAL_S);
    shoal_lead_why(w.lead, why, sizeof(why));
    assert_non_null(strstr(why, "\nit waits for worker "));
    assert_non_null(strstr(why, ", which computes a mini-batch all that time\n"));
    w.steps_stop = false;
    w_run_for(&w, 2 * SHOAL_S);
    shoal_lead_summary(w.lead, &summary);
    shoal_lead_why(w.lead, why, sizeof(why));
    assert_true(summary.rate_milli > 0);
    assert_null(strstr(why, "no step for"));
    w_run_to_end(&w, 120 * SHOAL_S);
    shoal_lead_summary(w.lead, &summary);
    assert_int_equal(summary.rate_milli, 0); /* with its end, not by news of its own */
    expect_state(SHOAL_JOB_FINISHED);
    expect_clean();
    w_deinit(&w);
}

/* Workers that die and are replaced look well at most moments: `why` says that they die, of what, and how often that may be. */
static void test_why_says_that_workers_die(void **state)
{
    static char why[2048];
    unsigned kills = 0;

    (void)state;
    start(13, true, 1, 1);
    w.steps_stop = true;
    w_new_lead(&w, 0);
    for (uint64_t last = 0; kills < 3; w_run_for(&w, 200 * SHOAL_MS)) {
        struct w_worker *engine = w_any(&w, SHOAL_JOB_ENGINE, 0);

        if (engine == NULL || engine->id == last)
            continue;
        last = engine->id;
        w_run_for(&w, SHOAL_S);
        kill_worker(engine);
        kills++;
    }
    w_run_for(&w, SHOAL_S);
    shoal_lead_why(w.lead, why, sizeof(why));
    if (strstr(why, "\nworkers died 3 times without one step in between, and the job ends at the 10th: the last one was ended by signal 9 ") == NULL)
        fail_msg("%s", why);
    w.steps_stop = false;
    w_run_to_step(&w, 1, 20, 10 * SHOAL_S);
    shoal_lead_why(w.lead, why, sizeof(why));
    assert_null(strstr(why, "workers died"));
    finish();
}

/* Fewer workers than were asked for, and free slots: it is the script that wants no more. */
static void test_why_names_the_bound_that_a_call_has(void **state)
{
    static const struct {
        uint32_t engines_max, workers_max, engines;
        const char *says;
    } rows[] = { { 2, 6, 2, "\ncall 1 of train() takes 2 of 6 workers: its engines_number or effective_batch_size asks for no more\n" },
                 { 0, 8, 6, "\ncall 1 of train() takes 6 of 8 workers: its engines_number or effective_batch_size asks for no more\n" },
                 { 6, 6, 6, NULL },
                 { 0, 4, 4, NULL } };
    static char why[2048];

    (void)state;
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        start(29, true, 1, rows[i].workers_max);
        w.engines_max = rows[i].engines_max;
        w.steps = 2000;
        w_new_lead(&w, 2);
        w_run_to_step(&w, 1, 600, 20 * SHOAL_S);
        assert_int_equal(w_alive(&w, SHOAL_JOB_ENGINE), rows[i].engines);
        shoal_lead_why(w.lead, why, sizeof(why));
        if (rows[i].says == NULL ? strstr(why, "of train() takes") != NULL : strstr(why, rows[i].says) == NULL)
            fail_msg("row %u: %s", i, why);
        finish();
    }
}

/* L1: a worker that the log does not hold is told to end, whoever started it. */
static void test_a_worker_that_is_not_in_the_log_is_ended(void **state)
{
    static struct shoal_lead_actions actions;
    static struct shoal_host_message m;
    static uint8_t bytes[SHOAL_SLOTS_POOL_BYTES];
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_FRAME };
    bool told = false;
    size_t len;

    (void)state;
    start(31, true, 1, 2);
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 5, 10 * SHOAL_S);
    m = (struct shoal_host_message){
        .kind = SHOAL_HOST_WORKER, .job = w.job->id, .generation = 1, .term = 1, .seq = 1
    };
    m.host_epoch = 1;
    m.u.worker.worker_id = 4711;
    m.u.worker.role = SHOAL_JOB_ENGINE;
    m.u.worker.phase = SHOAL_PHASE_STARTED;
    assert_int_equal(shoal_host_encode(&m, bytes, sizeof(bytes), &len), SHOAL_OK);
    event.u.frame.from = w_node(1);
    event.u.frame.bytes = shoal_view_of(bytes, len);
    assert_int_equal(shoal_lead_step(w.lead, &event, w.now_ns, &actions), SHOAL_OK);
    for (uint32_t i = 0; i < actions.count; i++)
        told = told ||
               (actions.list[i].kind == SHOAL_LEAD_SEND && shoal_host_decode(actions.list[i].bytes, &m) == SHOAL_OK &&
                m.kind == SHOAL_HOST_ORDER && m.u.order.worker_id == 4711 && m.u.order.order == SHOAL_ORDER_FORGET);
    assert_true(told);
    w_deinit(&w);
}

/* L5: a host that was started anew has nothing of before, whatever anybody has heard of it. */
static void test_workers_of_a_former_boot_are_dropped(void **state)
{
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_HOST };
    uint64_t before[SHOAL_PLACEMENTS_MAX];
    uint32_t count = 0;

    (void)state;
    start(32, true, 1, 6);
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 5, 10 * SHOAL_S);
    for (uint32_t i = 0; i < w.job->placement_count; i++)
        if (shoal_node_id_equal(w.job->placements[i].node, w_node(1)))
            before[count++] = w.job->placements[i].worker_id;
    assert_true(count > 0);
    event.u.host.node = w_node(1);
    event.u.host.health = SHOAL_LEAD_HOST_WELL;
    event.u.host.host_epoch = w.job->placements[0].host_epoch + 1;
    w_lead(&w, &event);
    w_run_for(&w, 2 * SHOAL_S);
    for (uint32_t i = 0; i < count; i++)
        assert_null(shoal_job_find_worker(w.job, before[i]));
    w_deinit(&w);
}

/* PROTOCOLS 6: without the support of a quorum a leader may not be one any more: it starts nobody. */
static void test_nobody_is_started_without_support(void **state)
{
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_SUPPORTED };

    (void)state;
    start(33, true, 1, 2);
    w_new_lead(&w, 0);
    w_lead(&w, &event);
    w_run_for(&w, 5 * SHOAL_S);
    assert_int_equal(w.worker_count, 0);
    event.u.supported = true;
    w_lead(&w, &event);
    finish();
}

static struct shoal_lead_stats stats_now(void)
{
    struct shoal_lead_stats stats;

    shoal_lead_stats(w.lead, &stats);
    return stats;
}

static void test_nothing_is_renewed_without_support(void **state)
{
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_SUPPORTED };
    uint64_t before;

    (void)state;
    start(34, true, 1, 2);
    w.steps = W_STEPS_MAX;
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 5, 10 * SHOAL_S);
    w_lead(&w, &event);
    before = stats_now().renewals;
    w_run_for(&w, 4 * SHOAL_S); /* one is due each 3 s */
    assert_int_equal(stats_now().renewals, before);
    event.u.supported = true;
    w_lead(&w, &event);
    w_run_for(&w, 100 * SHOAL_MS); /* at once */
    assert_true(stats_now().renewals > before);
    w_deinit(&w);
}

/* S2: else renewals would echo what this boot has never given, and extend nothing. */
static void test_a_stamp_of_a_former_boot_is_not_taken(void **state)
{
    (void)state;
    start(35, true, 1, 6);
    w.steps = 1000;
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 5, 10 * SHOAL_S);
    for (uint32_t h = 0; h < W_HOSTS; h++)
        shoal_lead_stamp(w.lead, w_node(h), w.hosts[h].host_epoch - 1, w.now_ns + 1000 * SHOAL_S);
    w_run_for(&w, 14 * SHOAL_S);
    for (uint32_t i = 0; i < w.worker_count; i++)
        assert_false(w.workers[i].alive && w.workers[i].frozen);
    w_deinit(&w);
}

/* A report that was overtaken on its way says nothing of now. */
static void test_an_older_report_changes_nothing(void **state)
{
    static struct shoal_lead_actions actions;
    static struct shoal_host_message m;
    static uint8_t bytes[SHOAL_SLOTS_POOL_BYTES];
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_FRAME };
    const struct shoal_placement *place = NULL;
    uint64_t stale;
    size_t len;

    (void)state;
    start(36, true, 1, 2);
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 5, 10 * SHOAL_S);
    for (uint32_t i = 0; i < w.job->placement_count; i++)
        if (w.job->placements[i].role == SHOAL_JOB_ENGINE)
            place = &w.job->placements[i];
    assert_non_null(place);
    stale = stats_now().stale;
    for (uint64_t older = 0; older < 2; older++) {
        m = (struct shoal_host_message){ .kind = SHOAL_HOST_WORKER, .job = w.job->id, .generation = 1, .term = 1 };
        m.host_epoch = place->host_epoch;
        m.seq = ((uint64_t)1 << 60) - older;
        m.u.worker.worker_id = place->worker_id;
        m.u.worker.lease_generation = place->lease_generation;
        m.u.worker.role = SHOAL_JOB_ENGINE;
        m.u.worker.phase = SHOAL_PHASE_STARTED;
        assert_int_equal(shoal_host_encode(&m, bytes, sizeof(bytes), &len), SHOAL_OK);
        event.u.frame.from = place->node;
        event.u.frame.bytes = shoal_view_of(bytes, len);
        assert_int_equal(shoal_lead_step(w.lead, &event, w.now_ns, &actions), SHOAL_OK);
        assert_int_equal(stats_now().stale, stale + older);
    }
    w_deinit(&w);
}

/* Engines on host 1 alone. */
#define ONE_HOST (~((uint64_t)((1u << W_SLOTS) - 1) << 8))

/* One of three dies on the host that has them all, while who leads cannot be reached: the others go on at once, in an
 * epoch that their host has made. The group commits it when it hears of it, and restarts nobody. */
static void test_local_shrink(void **state)
{
    struct shoal_epoch local = { 1, 1 };
    struct w_worker *left[2];
    uint64_t step;

    (void)state;
    start(30, true, 1, 3);
    w.slot_banned = ONE_HOST;
    w.steps = 500;
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 30, 10 * SHOAL_S);
    w_run_for(&w, SHOAL_S);
    assert_int_equal(w.job->epoch->member_count, 3);
    w.hosts[0].cut = true;
    step = w.steps_done[1];
    kill_worker(w_any(&w, SHOAL_JOB_ENGINE, 1));
    w_run_for(&w, 100 * SHOAL_MS);
    assert_true(w.steps_done[1] > step + 5);
    for (uint32_t i = 0; i < 2; i++) {
        left[i] = w_any(&w, SHOAL_JOB_ENGINE, i);
        assert_true(left[i]->epoch == shoal_epoch_word(local));
    }
    assert_int_equal(w.job->epoch->epoch.k, 0);
    w.slot_banned = UINT64_MAX; /* no successor */
    w.hosts[0].cut = false;
    w_health(&w, 1, 0);
    w_run_for(&w, SHOAL_S);
    assert_int_equal(w.job->epoch->epoch.e, 1);
    assert_int_equal(w.job->epoch->epoch.k, 1);
    assert_true(left[0]->alive && left[1]->alive && left[0]->epoch == shoal_epoch_word(local));
    w.slot_banned = ONE_HOST;
    w_target(&w);
    finish();
}

/* The leader's host is cut off for 12 s: workers elsewhere freeze at 10 s, are thawed, and nothing is lost. */
static void test_freeze_and_thaw(void **state)
{
    uint32_t frozen = 0;

    (void)state;
    start(18, true, 1, 6);
    w.steps = 500;
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 30, 10 * SHOAL_S);
    w.hosts[0].cut = true;
    w_health(&w, 1, 0);
    w_health(&w, 2, 0);
    w_run_for(&w, 12 * SHOAL_S);
    for (uint32_t i = 0; i < w.worker_count; i++)
        frozen += w.workers[i].alive && w.workers[i].frozen;
    assert_true(frozen > 0);
    assert_int_equal(w_alive(&w, SHOAL_JOB_ENGINE), 6);
    w.hosts[0].cut = false;
    for (uint32_t h = 0; h < W_HOSTS; h++)
        w_health(&w, h, 0);
    w_target(&w);
    w_run_for(&w, 2 * SHOAL_S);
    for (uint32_t i = 0; i < w.worker_count; i++)
        if (w.workers[i].alive && w.workers[i].frozen)
            W_FAIL(&w, "worker %llx is still frozen", (unsigned long long)w.workers[i].id & 0xff);
    finish();
}

/* A script whose host is cut off for good runs again only when its lease has ended there. */
static void test_script_host_lost(void **state)
{
    uint64_t lost_ns;

    (void)state;
    start(19, false, 1, 1);
    w.script_ns = 30 * SHOAL_S;
    w.slot_banned = 0x0f; /* not on the leader's host */
    w_new_lead(&w, 0);
    w_run_for(&w, SHOAL_S);
    assert_int_equal(w.runs, 1);
    w_host_down(&w, w_any(&w, SHOAL_JOB_SCRIPT, 0)->host);
    lost_ns = w.now_ns;
    while (w.runs < 2)
        w_turn(&w);
    if (w.now_ns - lost_ns < 15 * SHOAL_S || w.now_ns - lost_ns > 18 * SHOAL_S)
        W_FAIL(&w, "attempt 2 started %llu ms after the loss", (unsigned long long)((w.now_ns - lost_ns) / SHOAL_MS));
    assert_int_equal(w.job->attempt, 2);
    finish();
}

static void test_attempts_end(void **state)
{
    (void)state;
    start(20, false, 1, 1);
    w.scripts_hang = true;
    w_new_lead(&w, 0);
    for (uint32_t attempt = 1; attempt <= 3; attempt++) {
        w_run_for(&w, 20 * SHOAL_S);
        if (w_any(&w, SHOAL_JOB_SCRIPT, 0) == NULL)
            W_FAIL(&w, "attempt %u does not run: %s", attempt,
                   shoal_job_state_name((enum shoal_job_state)w.job->state));
        assert_int_equal(w.job->attempt, attempt);
        uint32_t host = w_any(&w, SHOAL_JOB_SCRIPT, 0)->host;
        w_host_down(&w, host);
        w_host_up(&w, host);
        w_health(&w, host, 1);
        w_target(&w);
    }
    w_run_to_end(&w, 30 * SHOAL_S);
    expect_state(SHOAL_JOB_ERROR);
    assert_non_null(strstr(w.job->reason, "attempt 3"));
    w_deinit(&w);
}

/* Engines that die over and over without a step end the job; many that die together do not. */
static void test_crash_loop(void **state)
{
    (void)state;
    start(21, true, 1, 12);
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 30, 10 * SHOAL_S);
    for (uint32_t i = 0; i < 11; i++)
        kill_worker(w_any(&w, SHOAL_JOB_ENGINE, 1));
    w_run_to_step(&w, 1, 100, 10 * SHOAL_S);
    w.steps_stop = true;
    for (uint32_t i = 0; i < 14 && !shoal_job_state_ended((enum shoal_job_state)w.job->state); i++) {
        w_run_for(&w, 600 * SHOAL_MS);
        if (w_any(&w, SHOAL_JOB_ENGINE, 0) != NULL)
            kill_worker(w_any(&w, SHOAL_JOB_ENGINE, 0));
    }
    w_run_to_end(&w, 10 * SHOAL_S);
    expect_state(SHOAL_JOB_ERROR);
    assert_non_null(strstr(w.job->reason, "without one step"));
    expect_clean();
    w_deinit(&w);
}

/* A process of the job says on one host that every epoch is revoked, those to come, too: nobody dies, and no step is done. */
static void spin(uint64_t seed, uint64_t banned)
{
    struct shoal_lead_stats stats;
    char why[2048];
    uint64_t since;

    start(seed, true, 1, 4);
    w.slot_banned = banned;
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 30, 10 * SHOAL_S);
    for (uint32_t i = 0; i < w.worker_count; i++)
        if (w.workers[i].alive && w.workers[i].role == SHOAL_JOB_ENGINE && w.workers[i].host == 1) {
            w.hosts[1].revoked = UINT64_MAX;
            w_close(&w, &w.workers[i]);
        }
    assert_true(w.hosts[1].revoked == UINT64_MAX);
    since = w.now_ns;
    w_run_for(&w, 4 * SHOAL_S);
    shoal_lead_why(w.lead, why, sizeof(why));
    if (strstr(why, "epochs in a row ended without a step") == NULL)
        W_FAIL(&w, "epoch %u: %s", w.job->epoch->epoch.e, why);
    w_run_to_end(&w, 30 * SHOAL_S);
    expect_state(SHOAL_JOB_ERROR);
    assert_non_null(strstr(w.job->reason, "epochs in a row ended without a step"));
    assert_non_null(strstr(w.job->reason, "0200000000000000")); /* of host 1 */
    shoal_lead_stats(w.lead, &stats);
    if (stats.epochs > 30 || w.now_ns - since < 5 * SHOAL_S)
        W_FAIL(&w, "%llu epochs within %llu ms", (unsigned long long)stats.epochs,
               (unsigned long long)((w.now_ns - since) / SHOAL_MS));
    expect_clean();
    w_deinit(&w);
}

static void test_epochs_that_end_for_nothing_end_the_job(void **state)
{
    (void)state;
    spin(41, 0);
    spin(42, ~(uint64_t)0xff00); /* all engines on that host */
}

/* The same now and then: training goes on, and epochs are not made at the pace of messages. */
static void test_epochs_that_end_for_nothing_are_paced(void **state)
{
    uint64_t since;
    uint32_t before;

    (void)state;
    start(43, true, 1, 4);
    w.steps = W_STEPS_MAX;
    w_new_lead(&w, 0);
    w_run_to_step(&w, 1, 30, 10 * SHOAL_S);
    before = w.job->epoch->epoch.e;
    since = w.now_ns;
    for (uint32_t i = 0; i < 200 && w.now_ns < since + 20 * SHOAL_S; i++) {
        w_close(&w, w_any(&w, SHOAL_JOB_ENGINE, 1));
        w_run_to_step(&w, 1, w.steps_done[1] + 2, 10 * SHOAL_S);
    }
    expect_state(SHOAL_JOB_RUNNING);
    assert_in_range(w.job->epoch->epoch.e - before, 20, 80);
    finish();
}

/* Everything at once, by seed: deaths, restarts of hosts, leader changes, cuts, growth, shrink, lost and repeated
 * messages. */
static void chaos(uint64_t seed, uint64_t banned)
{
    start(seed, true, 1, 6);
    w.slot_banned = banned;
    w.calls = 1 + (uint32_t)(seed % 2);
    w.steps = 200;
    w.lose_pct = (uint32_t)(seed % 4) * 3;
    w.repeat_pct = (uint32_t)(seed % 3) * 10;
    w.delay_ns = (1 + seed % 5 * 8) * SHOAL_MS;
    w_new_lead(&w, 0);
    for (uint32_t i = 0; i < 25 && !shoal_job_state_ended((enum shoal_job_state)w.job->state); i++) {
        uint32_t host = (uint32_t)shoal_rand_below(&w.rand, W_HOSTS);
        struct w_worker *worker = w_any(&w, SHOAL_JOB_ENGINE, (uint32_t)shoal_rand_below(&w.rand, 6));

        w_run_for(&w, shoal_rand_below(&w.rand, 1500 * SHOAL_MS));
        switch (shoal_rand_below(&w.rand, 9)) {
        case 0:
        case 1:
            if (worker != NULL && worker->alive)
                kill_worker(worker);
            break;
        case 2: w_new_lead(&w, w.hosts[host].up ? host : w.lead_host); break;
        case 3:
            if (host != w.lead_host && w.hosts[host].up)
                w_host_down(&w, host);
            break;
        case 4:
            if (!w.hosts[host].up) {
                w_host_up(&w, host);
                w_health(&w, host, 1);
            }
            break;
        case 5:
            if (w.hosts[host].up) {
                w.hosts[host].cut = !w.hosts[host].cut;
                (void)w_push(&w, W_HEALTH, host, w.hosts[host].cut ? 600 * SHOAL_MS : SHOAL_MS);
            }
            break;
        case 6: w.target = 1 + (uint32_t)shoal_rand_below(&w.rand, 6); break;
        case 7:
            worker = w_any(&w, SHOAL_JOB_DRIVER, 0);
            if (worker != NULL)
                kill_worker(worker);
            break;
        case 8:
            if (w.hosts[host].up)
                w_agent_anew(&w, host);
            break;
        }
        w_target(&w);
    }
    w.lose_pct = 0;
    for (uint32_t h = 0; h < W_HOSTS; h++) {
        w.hosts[h].cut = false;
        if (!w.hosts[h].up)
            w_host_up(&w, h);
        w_health(&w, h, 1);
    }
    w.target = 4;
    w_target(&w);
    w_run_to_end(&w, 120 * SHOAL_S);
    if (w.job->state != SHOAL_JOB_FINISHED && strstr(w.job->reason, "without one step") == NULL)
        expect_state(SHOAL_JOB_FINISHED);
    expect_clean();
    w_deinit(&w);
}

/* The same with all engines on one host, which makes epochs of its own (E6). */
static void test_chaos_on_one_host(void **state)
{
    const char *one = getenv("SEED");

    (void)state;
    if (one != NULL) {
        chaos(strtoull(one, NULL, 0), ONE_HOST);
        return;
    }
    for (uint64_t seed = 1; seed <= (getenv("SEEDS") != NULL ? strtoull(getenv("SEEDS"), NULL, 0) : 30); seed++)
        chaos(seed, ONE_HOST);
}

/* A gang under the same: each attempt whole, never two at once, and an end that is true. */
static void chaos_gang(uint64_t seed)
{
    start(seed, false, 1 + (uint32_t)(seed % 5), 1 + (uint32_t)(seed % 5));
    w.script_ns = 1 + shoal_rand_below(&w.rand, 12 * SHOAL_S);
    w.lose_pct = (uint32_t)(seed % 4) * 3;
    w.repeat_pct = (uint32_t)(seed % 3) * 10;
    w.delay_ns = (1 + seed % 5 * 8) * SHOAL_MS;
    w_new_lead(&w, 0);
    for (uint32_t i = 0; i < 12 && !shoal_job_state_ended((enum shoal_job_state)w.job->state); i++) {
        uint32_t host = (uint32_t)shoal_rand_below(&w.rand, W_HOSTS);

        w_run_for(&w, shoal_rand_below(&w.rand, 4 * SHOAL_S));
        switch (shoal_rand_below(&w.rand, 4)) {
        case 0: w_new_lead(&w, w.hosts[host].up ? host : w.lead_host); break;
        case 1:
            if (host != w.lead_host && w.hosts[host].up)
                w_host_down(&w, host);
            break;
        case 2:
            if (!w.hosts[host].up) {
                w_host_up(&w, host);
                w_health(&w, host, 1);
            }
            break;
        case 3:
            if (w.hosts[host].up) {
                w.hosts[host].cut = !w.hosts[host].cut;
                (void)w_push(&w, W_HEALTH, host, w.hosts[host].cut ? 600 * SHOAL_MS : SHOAL_MS);
            }
            break;
        }
        w_target(&w);
    }
    w.lose_pct = 0;
    for (uint32_t h = 0; h < W_HOSTS; h++) {
        w.hosts[h].cut = false;
        if (!w.hosts[h].up)
            w_host_up(&w, h);
        w_health(&w, h, 1);
    }
    w_target(&w);
    w_run_to_end(&w, 120 * SHOAL_S);
    if (w.job->state != SHOAL_JOB_FINISHED && strstr(w.job->reason, "the last one allowed") == NULL)
        expect_state(SHOAL_JOB_FINISHED);
    expect_clean();
    w_deinit(&w);
}

static void test_chaos_gang(void **state)
{
    const char *one = getenv("SEED");

    (void)state;
    if (one != NULL) {
        chaos_gang(strtoull(one, NULL, 0));
        return;
    }
    for (uint64_t seed = 1; seed <= (getenv("SEEDS") != NULL ? strtoull(getenv("SEEDS"), NULL, 0) : 30); seed++)
        chaos_gang(seed);
}

static void test_chaos(void **state)
{
    const char *one = getenv("SEED");

    (void)state;
    if (one != NULL) {
        chaos(strtoull(one, NULL, 0), 0);
        return;
    }
    for (uint64_t seed = 1; seed <= (getenv("SEEDS") != NULL ? strtoull(getenv("SEEDS"), NULL, 0) : 30); seed++)
        chaos(seed, 0);
}

/* A mesh holds thousands of jobs of one worker: what a lead takes follows the job's size. */
static void test_memory_follows_the_job(void **state)
{
    (void)state;
    w_init(&w, 1, false, 1, 1);
    w_new_lead(&w, 0);
    assert_true(shoal_lead_bytes(w.lead) <= 21 * SHOAL_KIB);
    w_deinit(&w);
    w_init(&w, 1, true, 1, 64);
    w_new_lead(&w, 0);
    assert_in_range(shoal_lead_bytes(w.lead), 300 * SHOAL_KIB, 560 * SHOAL_KIB);
    w_deinit(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elastic),
        cmocka_unit_test(test_script),
        cmocka_unit_test(test_a_link_that_comes_up_renews_leases_at_once),
        cmocka_unit_test(test_guardians_change),
        cmocka_unit_test(test_script_fails),
        cmocka_unit_test(test_gang),
        cmocka_unit_test(test_gang_waits),
        cmocka_unit_test(test_pending_timeout),
        cmocka_unit_test(test_engine_dies),
        cmocka_unit_test(test_all_engines_die),
        cmocka_unit_test(test_snapshot),
        cmocka_unit_test(test_host_dies),
        cmocka_unit_test(test_lost_engines_are_replaced_at_once),
        cmocka_unit_test(test_a_slot_that_cannot_be_is_not_asked_for),
        cmocka_unit_test(test_a_script_starts_with_one_entry),
        cmocka_unit_test(test_a_short_script_costs_two_entries_beyond_its_founding),
        cmocka_unit_test(test_leader_host_dies),
        cmocka_unit_test(test_leader_changes),
        cmocka_unit_test(test_driver_dies),
        cmocka_unit_test(test_driver_of_a_host_without_slots),
        cmocka_unit_test(test_a_driver_that_is_lost_after_the_last_step),
        cmocka_unit_test(test_driver_is_not_asked_for_again_and_again),
        cmocka_unit_test(test_a_driver_that_is_killed_again_and_again_ends_the_job),
        cmocka_unit_test(test_a_driver_may_be_killed_as_often_as_training_goes_on),
        cmocka_unit_test(test_driver_fails),
        cmocka_unit_test(test_a_failure_in_users_code_ends_the_job_if_the_script_does),
        cmocka_unit_test(test_a_leader_that_did_not_see_a_call_fail_says_why_all_the_same),
        cmocka_unit_test(test_a_failure_in_users_code_that_the_script_catches_ends_one_call),
        cmocka_unit_test(test_join_and_shrink),
        cmocka_unit_test(test_a_promise_that_is_needed_no_more_is_given_back),
        cmocka_unit_test(test_a_drained_host),
        cmocka_unit_test(test_a_drained_host_without_another),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_why_says_each_thing_once),
        cmocka_unit_test(test_stop_pending),
        cmocka_unit_test(test_freeze_and_thaw),
        cmocka_unit_test(test_script_host_lost),
        cmocka_unit_test(test_attempts_end),
        cmocka_unit_test(test_agent_away),
        cmocka_unit_test(test_local_shrink),
        cmocka_unit_test(test_training_that_stands_is_seen),
        cmocka_unit_test(test_why_says_that_workers_die),
        cmocka_unit_test(test_why_names_the_bound_that_a_call_has),
        cmocka_unit_test(test_a_worker_that_is_not_in_the_log_is_ended),
        cmocka_unit_test(test_workers_of_a_former_boot_are_dropped),
        cmocka_unit_test(test_nobody_is_started_without_support),
        cmocka_unit_test(test_nothing_is_renewed_without_support),
        cmocka_unit_test(test_a_stamp_of_a_former_boot_is_not_taken),
        cmocka_unit_test(test_an_older_report_changes_nothing),
        cmocka_unit_test(test_chaos_on_one_host),
        cmocka_unit_test(test_host_silent),
        cmocka_unit_test(test_why_names_a_data_connection_that_is_waited_for),
        cmocka_unit_test(test_crash_loop),
        cmocka_unit_test(test_epochs_that_end_for_nothing_end_the_job),
        cmocka_unit_test(test_epochs_that_end_for_nothing_are_paced),
        cmocka_unit_test(test_chaos),
        cmocka_unit_test(test_chaos_gang),
        cmocka_unit_test(test_memory_follows_the_job),
    };

    if (getenv("ONLY") != NULL)
        cmocka_set_test_filter(getenv("ONLY"));

    return cmocka_run_group_tests(tests, NULL, NULL);
}
