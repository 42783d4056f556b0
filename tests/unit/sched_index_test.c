/* The index that lists are made of (sched/node/sched_index.c). A list is played here as a node makes it: every node's
 * row of the job, the newest wins, and one that may be outdated says so. What a client was told is never contradicted. */
#include "shoal/sched_look.h"
#include "shoal/job_facts.h"
#include "sched/node/sched_index.h"
#include "sched_net.h"

#include "shoal/banned.h"

static const struct shoal_view no_ticket;

/* A list's word of a job at this moment. */
struct seen {
    unsigned rows;    /* nodes that list it */
    unsigned deleted; /* nodes that know of its deletion */
    bool sure;        /* a leader's word, or nothing newer can have been acknowledged */
    uint8_t state;    /* by the newest row */
};

static struct seen look(struct net *net, struct shoal_job_id job)
{
    static uint8_t bytes[SHOAL_SCHED_ROW_BYTES_MAX];
    struct shoal_sched_version best = { 0 };
    struct seen seen = { .sure = true };
    bool led = false;

    for (unsigned i = 0; i < net->count; i++) {
        const struct net_row *kept = net->nodes[i].up ? net_row(net, i, job) : NULL;
        struct shoal_sched_version version;
        struct shoal_job_facts facts;
        struct shoal_sched_row row;
        uint8_t state;

        if (kept == NULL || kept->what == SHOAL_SCHED_INDEX_NOTHING)
            continue;
        seen.deleted += kept->what == SHOAL_SCHED_INDEX_DELETED ? 1 : 0;
        if (kept->what == SHOAL_SCHED_INDEX_DELETED)
            continue;
        version = kept->version;
        state = kept->state;
        if (shoal_sched_row_find(net->nodes[i].sched, job, bytes, &row)) {
            assert_int_equal(shoal_job_facts_decode(row.facts, &facts), SHOAL_OK);
            version = row.version;
            state = facts.state;
            seen.deleted += row.deleted ? 1 : 0;
            seen.sure = seen.sure && !row.tail;
            led = led || row.leads;
        }
        if (seen.rows++ == 0 || shoal_sched_version_cmp(version, best) > 0) {
            best = version;
            seen.state = state;
        }
    }
    seen.sure = seen.sure || led;
    return seen;
}

/* To the very moment of the answer. */
static struct net_reply *answered(struct net *net, uint64_t id)
{
    uint64_t end = net->now + 5 * NET_S;
    struct net_reply *reply = net_reply_find(net, id);

    while (reply->count == 0 && net->now < end)
        net_run(net, NET_MS / 50);
    assert_int_equal(reply->count, 1);
    return reply;
}

static void test_a_submit_is_listed_when_it_is_answered(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 60; seed++) {
        struct net *net = net_create(seed, 3 + seed % 3, true);
        struct net_reply *reply = answered(net, net_submit(net, seed % 3, seed, no_ticket));
        struct shoal_job_id job = reply->job;

        assert_int_equal(reply->err, SHOAL_OK);
        assert_true(look(net, job).rows >= 2);
        net_crash(net, (seed + seed / 3) % 3); /* whoever it is: the others of the majority have it */
        assert_true(look(net, job).rows >= 1);
        net_destroy(net);
    }
}

/* Somebody is told that the job has ended. */
static void wait_told(struct net *net, unsigned at, struct shoal_job_id job)
{
    struct shoal_job_facts facts = { .state = 0 };

    for (unsigned i = 0; i < 1000 && !shoal_job_state_ended((enum shoal_job_state)facts.state); i++) {
        struct net_reply *reply = answered(net, net_ask(net, at, SHOAL_SCHED_GET, job, true));

        assert_int_equal(reply->err, SHOAL_OK);
        assert_int_equal(shoal_job_facts_decode(shoal_buf_view(&reply->bytes), &facts), SHOAL_OK);
    }
    assert_int_equal(facts.state, SHOAL_JOB_KILLED);
}

static void test_an_end_is_listed_when_it_is_told_and_when_its_leader_dies_then(void **state)
{
    unsigned unsure = 0;

    (void)state;
    for (unsigned seed = 1; seed <= 60; seed++) {
        struct net *net = net_create(seed, 3, true);
        struct net_reply *reply = net_wait(net, net_submit(net, 0, seed, no_ticket), 2 * NET_S);
        struct shoal_job_id job = reply->job;
        struct seen seen;

        reply = answered(net, net_ask(net, seed % 3, SHOAL_SCHED_STOP, job, true));
        assert_int_equal(reply->err, SHOAL_OK);
        wait_told(net, (seed + 1) % 3, job);
        seen = look(net, job);
        assert_true(seen.sure);
        assert_int_equal(seen.state, SHOAL_JOB_KILLED);
        net_crash(net, net_leader(net, job));
        seen = look(net, job);
        if (seen.sure)
            assert_int_equal(seen.state, SHOAL_JOB_KILLED);
        unsure += seen.sure ? 0 : 1;
        net_run(net, 4 * NET_S); /* another leads */
        seen = look(net, job);
        assert_true(seen.sure);
        assert_int_equal(seen.state, SHOAL_JOB_KILLED);
        net_destroy(net);
    }
    assert_true(unsure > 0); /* else this shows nothing */
}

static void test_a_deletion_is_known_when_it_is_answered_and_after_a_start(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 30; seed++) {
        struct net *net = net_create(seed, 3, true);
        struct net_reply *reply = net_wait(net, net_submit(net, 0, seed, no_ticket), 2 * NET_S);
        struct shoal_job_id job = reply->job;

        net_run(net, NET_S);
        reply = answered(net, net_ask(net, seed % 3, SHOAL_SCHED_DELETE, job, true));
        assert_int_equal(reply->err, SHOAL_OK);
        assert_true(look(net, job).deleted > 0);
        net_run(net, 5 * NET_S);
        assert_int_equal(look(net, job).rows, 0);
        for (unsigned i = 0; i < 3; i++) {
            net_crash(net, i);
            net_start(net, i);
        }
        net_run(net, 100 * NET_MS);
        assert_int_equal(look(net, job).rows, 0);
        assert_int_equal(look(net, job).deleted, 3);
        net_destroy(net);
    }
}

static void test_one_that_was_away_is_outvoted(void **state)
{
    struct net *net = net_create(7, 3, true);
    struct net_reply *reply = net_wait(net, net_submit(net, 0, 1, no_ticket), 2 * NET_S);
    struct shoal_job_id job = reply->job;
    unsigned away;

    (void)state;
    net_run(net, NET_S);
    away = (net_leader(net, job) + 1) % 3;
    net_crash(net, away);
    assert_int_equal(answered(net, net_ask(net, (away + 1) % 3, SHOAL_SCHED_STOP, job, true))->err, SHOAL_OK);
    wait_told(net, (away + 1) % 3, job);
    net_start(net, away);
    assert_non_null(net_row(net, away, job));
    assert_int_not_equal(net_row(net, away, job)->state, SHOAL_JOB_KILLED);
    assert_int_equal(look(net, job).state, SHOAL_JOB_KILLED);
    net_destroy(net);
}

static void archive_one(unsigned seed)
{
    struct net *net = net_create(seed, 5, false);
    struct shoal_job_id job;
    unsigned rows = 0;

    net->archive_ns = 5 * NET_S;
    for (unsigned i = 0; i < 5; i++) {
        net_crash(net, i); /* with those options */
        net_start(net, i);
    }
    for (unsigned i = 0; i < 5; i++)
        net_join(net, i);
    job = net_wait(net, net_submit(net, 0, 1, no_ticket), 2 * NET_S)->job;
    assert_int_equal(net_wait(net, net_ask(net, 0, SHOAL_SCHED_STOP, job, true), 4 * NET_S)->err, SHOAL_OK);
    for (unsigned i = 0; i < 300; i++) {
        assert_true(look(net, job).rows > 0); /* at no moment it is in no list */
        assert_int_equal(look(net, job).state, SHOAL_JOB_KILLED);
        net_run(net, 100 * NET_MS);
    }
    for (unsigned i = 0; i < 5; i++) {
        const struct net_row *row = net_row(net, i, job);

        if (row == NULL || row->what != SHOAL_SCHED_INDEX_ROW)
            continue;
        assert_true(row->version.config == UINT64_MAX);
        rows++;
    }
    assert_int_equal(rows, 3);
    for (unsigned i = 0; i < 5; i++) {
        net_crash(net, i);
        net_start(net, i);
    }
    assert_int_equal(look(net, job).rows, 3);
    net_destroy(net);
}

static void test_an_archived_job_is_listed_by_its_holders(void **state)
{
    (void)state;
    for (unsigned seed = 9; seed < 15; seed++) /* who holds it need not have guarded it */
        archive_one(seed);
}

/* A service's document may be far larger than a row, and lists do not show it. */
static void test_whatever_is_known_of_a_job_it_has_a_row(void **state)
{
    static uint8_t kept[8192], bytes[SHOAL_SCHED_ROW_BYTES_MAX];
    static char document[4096];
    static struct shoal_job_facts facts, back;
    struct shoal_sched_version version;
    struct shoal_view row;
    size_t len;

    (void)state;
    memset(&facts, 0xff, sizeof(facts));
    facts.state = SHOAL_JOB_RUNNING;
    facts.device = SHOAL_JOB_DEVICE_GPU;
    facts.elastic = facts.stop = facts.deleted = facts.has_metrics = true;
    memset(document, 'd', sizeof(document));
    for (size_t large = 0; large < 2; large++) {
        const struct {
            char *text;
            size_t bytes;
        } texts[] = { { facts.framework, sizeof(facts.framework) }, { facts.creator, sizeof(facts.creator) },
                      { facts.app_name, sizeof(facts.app_name) },   { facts.reason, sizeof(facts.reason) },
                      { facts.pending, sizeof(facts.pending) },     { facts.transport, sizeof(facts.transport) },
                      { facts.service, sizeof(facts.service) },     { facts.work, sizeof(facts.work) } };

        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
            memset(texts[i].text, 't', texts[i].bytes);
            texts[i].text[large == 1 ? texts[i].bytes - 1 : 3] = '\0';
        }
        facts.args = shoal_view_text("--exec-start");
        facts.data_json = (struct shoal_view){ 0 };
        facts.document = shoal_view_of(document, sizeof(document));
        assert_int_equal(shoal_job_facts_encode(&facts, kept, sizeof(kept), &len), SHOAL_OK);
        row = sched_index_archived(shoal_view_of(kept, len), true, bytes, &version);
        assert_int_equal(shoal_job_facts_decode(row, &back), SHOAL_OK);
        assert_int_equal(back.document.len, 0);
        assert_int_equal(back.args.len, large == 1 ? 0 : 12);
        assert_string_equal(back.work, large == 1 ? "" : "ttt");
        assert_string_equal(back.creator, facts.creator);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_submit_is_listed_when_it_is_answered),
        cmocka_unit_test(test_an_end_is_listed_when_it_is_told_and_when_its_leader_dies_then),
        cmocka_unit_test(test_a_deletion_is_known_when_it_is_answered_and_after_a_start),
        cmocka_unit_test(test_one_that_was_away_is_outvoted),
        cmocka_unit_test(test_an_archived_job_is_listed_by_its_holders),
        cmocka_unit_test(test_whatever_is_known_of_a_job_it_has_a_row),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
