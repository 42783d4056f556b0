/* The control plane's core in small virtual meshes: founding, elections, requests, restarts, growth of the mesh group.
 * SHOAL_SEED replays one random mesh. */
#include "shoal/sched_look.h"
#include "shoal/job_facts.h"
#include "sched_net.h"

#include "sched/node/sched_view.h"

#include "shoal/banned.h"

static const struct shoal_job_id mesh_id = { { 0 } };
static const struct shoal_view no_ticket;

static struct shoal_job_id submit(struct net *net, unsigned at, unsigned number)
{
    struct net_reply *reply = net_wait(net, net_submit(net, at, number, no_ticket), 2 * NET_S);

    if (reply->err != SHOAL_OK)
        fail_msg("submit %u at node %u: %s: %s", number, at, shoal_err_name(reply->err), reply->text);
    return reply->job;
}

static struct net_reply *ask(struct net *net, unsigned at, enum shoal_sched_request_kind kind, struct shoal_job_id job)
{
    return net_wait(net, net_ask(net, at, kind, job, true), 4 * NET_S);
}

static enum shoal_job_state state_of(struct net *net, unsigned at, struct shoal_job_id job)
{
    struct net_reply *reply = ask(net, at, SHOAL_SCHED_GET, job);
    struct shoal_job_facts facts;

    if (reply->err != SHOAL_OK)
        fail_msg("get at node %u: %s: %s", at, shoal_err_name(reply->err), reply->text);
    assert_int_equal(shoal_job_facts_decode(shoal_buf_view(&reply->bytes), &facts), SHOAL_OK);
    assert_true(shoal_job_id_equal(facts.id, job));
    return (enum shoal_job_state)facts.state;
}

static void test_one_node_founds_alone(void **state)
{
    struct net *net = net_create(1, 1, true);
    struct net_reply *reply = net_wait(net, net_submit(net, 0, 1, no_ticket), NET_S);

    (void)state;
    assert_int_equal(reply->err, SHOAL_OK);
    assert_non_null(strstr(reply->text, "one node"));
    assert_int_equal(net_leader(net, reply->job), 0);
    assert_true(state_of(net, 0, reply->job) >= SHOAL_JOB_SUBMITTED);
    assert_int_equal(net->nodes[0].blobs_put, 1);
    net_destroy(net);
}

static void test_any_node_answers_for_any_job(void **state)
{
    struct net *net = net_create(2, 5, true);
    struct shoal_job_id jobs[5];

    (void)state;
    for (unsigned i = 0; i < 5; i++) {
        jobs[i] = submit(net, i, i);
        assert_int_equal(net_leader(net, jobs[i]), i); /* the issuer leads term 1 */
    }
    for (unsigned at = 0; at < 5; at++) {
        for (unsigned i = 0; i < 5; i++)
            assert_false(shoal_job_state_ended(state_of(net, at, jobs[i])));
    }
    net_destroy(net);
}

/* A number for the set of a job's guardians. */
static unsigned guardian_set(struct net *net, struct shoal_job_id job)
{
    unsigned set = 0;

    for (unsigned i = 0; i < net->count; i++) {
        struct shoal_sched_group_status status;

        if (net->nodes[i].up && shoal_sched_group_find(net->nodes[i].sched, job, &status))
            set |= 1u << i;
    }
    return set;
}

static void test_thirty_jobs_and_one_death(void **state)
{
    struct net *net = net_create(3, 5, true);
    struct shoal_job_id jobs[30];
    unsigned sets[30], leaders[30];
    uint64_t terms[30];
    unsigned distinct = 0;
    const unsigned victim = 2;
    uint64_t killed_ns;

    (void)state;
    for (unsigned i = 0; i < 30; i++)
        jobs[i] = submit(net, i % 5, i);
    for (unsigned i = 0; i < 30; i++) {
        bool seen = false;

        sets[i] = guardian_set(net, jobs[i]);
        assert_int_equal(__builtin_popcount(sets[i]), 3);
        for (unsigned j = 0; j < i; j++)
            seen = seen || sets[j] == sets[i];
        distinct += seen ? 0 : 1;
        leaders[i] = net_leader(net, jobs[i]);
    }
    assert_true(distinct >= 6);
    net_run(net, 2 * NET_S);
    for (unsigned i = 0; i < 30; i++) {
        struct shoal_sched_group_status status;

        leaders[i] = net_leader(net, jobs[i]);
        assert_true(leaders[i] < 5);
        assert_true(shoal_sched_group_find(net->nodes[leaders[i]].sched, jobs[i], &status));
        terms[i] = status.term;
    }
    net_crash(net, victim);
    killed_ns = net->now;
    net_run(net, 1500 * NET_MS);
    for (unsigned i = 0; i < 30; i++) {
        struct shoal_sched_group_status status;
        unsigned leader = net_leader(net, jobs[i]);

        if (leader == NET_NODES_MAX)
            fail_msg("job %u: no leader %llu ms after the death of node %u", i,
                     (unsigned long long)((net->now - killed_ns) / NET_MS), victim);
        assert_true(shoal_sched_group_find(net->nodes[leader].sched, jobs[i], &status));
        if (leaders[i] == victim) {
            assert_true(status.term > terms[i]);
        } else {
            assert_int_equal(leader, leaders[i]);
            assert_int_equal(status.term, terms[i]);
        }
    }
    for (unsigned i = 0; i < 30; i++)
        assert_false(shoal_job_state_ended(state_of(net, (i % 5) == victim ? 0 : i % 5, jobs[i])));
    net_destroy(net);
}

static void test_a_ticket_founds_once(void **state)
{
    struct net *net = net_create(4, 5, true);
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_TICKET, .spec_hash = net_spec_hash(9) };
    struct net_reply *ticket = net_wait(net, net_request(net, 0, &request), NET_S);
    struct net_reply *first, *again, *elsewhere, *other;

    (void)state;
    assert_int_equal(ticket->err, SHOAL_OK);
    assert_true(ticket->ticket.len > 0);
    first = net_wait(net, net_submit(net, 0, 9, shoal_buf_view(&ticket->ticket)), 2 * NET_S);
    assert_int_equal(first->err, SHOAL_OK);
    assert_true(shoal_job_id_equal(first->job, ticket->job));
    again = net_wait(net, net_submit(net, 0, 9, shoal_buf_view(&ticket->ticket)), 2 * NET_S);
    assert_int_equal(again->err, SHOAL_OK);
    assert_true(shoal_job_id_equal(again->job, ticket->job));
    elsewhere = net_wait(net, net_submit(net, 3, 9, shoal_buf_view(&ticket->ticket)), 2 * NET_S);
    assert_int_equal(elsewhere->err, SHOAL_OK);
    assert_true(shoal_job_id_equal(elsewhere->job, ticket->job));
    other = net_wait(net, net_submit(net, 1, 10, shoal_buf_view(&ticket->ticket)), 2 * NET_S);
    assert_int_equal(other->err, SHOAL_ERR_EXISTS);
    ticket->ticket.bytes[20] ^= 1; /* a forged ticket */
    other = net_wait(net, net_submit(net, 1, 9, shoal_buf_view(&ticket->ticket)), 2 * NET_S);
    assert_int_equal(other->err, SHOAL_ERR_INVALID);
    net_destroy(net);
}

/* Each look costs 60 us. The issuer's link proves who it is, so what it brings itself is not verified; a ticket that
 * another node conducts is, once by every guardian. */
static void test_a_ticket_is_verified_where_its_issuer_does_not_bring_it(void **state)
{
    struct net *net = net_create(12, 3, true);
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_TICKET, .spec_hash = net_spec_hash(2) };
    struct net_reply *ticket;
    unsigned before[3];

    (void)state;
    for (unsigned i = 0; i < 3; i++)
        before[i] = net->nodes[i].verified;
    assert_int_equal(net_wait(net, net_submit(net, 1, 1, no_ticket), 10 * NET_S)->err, SHOAL_OK);
    net_run(net, NET_S);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(net->nodes[i].verified, before[i]);
    ticket = net_wait(net, net_request(net, 0, &request), NET_S);
    assert_int_equal(net_wait(net, net_submit(net, 1, 2, shoal_buf_view(&ticket->ticket)), 10 * NET_S)->err, SHOAL_OK);
    net_run(net, NET_S);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(net->nodes[i].verified - before[i], 1);
    net_destroy(net);
}

static void test_a_retry_founds_when_the_issuer_died(void **state)
{
    struct net *net = net_create(5, 5, true);
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_TICKET, .spec_hash = net_spec_hash(9) };
    struct net_reply *ticket = net_wait(net, net_request(net, 0, &request), NET_S);
    struct net_reply *reply;

    (void)state;
    net_run(net, NET_S);
    net_crash(net, 0);
    reply = net_wait(net, net_submit(net, 3, 9, shoal_buf_view(&ticket->ticket)), 5 * NET_S);
    assert_int_equal(reply->err, SHOAL_OK);
    assert_true(shoal_job_id_equal(reply->job, ticket->job));
    net_run(net, 3 * NET_S);
    assert_true(net_leader(net, ticket->job) < 5);
    assert_false(shoal_job_state_ended(state_of(net, 1, ticket->job)));
    net_destroy(net);
}

static uint64_t term_of(struct net *net, struct shoal_job_id job)
{
    struct shoal_sched_group_status status;
    unsigned leader = net_leader(net, job);

    return leader < NET_NODES_MAX && shoal_sched_group_find(net->nodes[leader].sched, job, &status) ? status.term : 0;
}

static void test_another_life_of_the_issuer_is_elected(void **state)
{
    struct net *net = net_create(24, 3, true);
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_TICKET, .spec_hash = net_spec_hash(9) };
    struct net_reply *ticket = net_wait(net, net_request(net, 0, &request), NET_S);
    struct net_reply *reply;

    (void)state;
    net_crash(net, 0);
    net_start(net, 0);
    net_run(net, NET_S);
    reply = net_wait(net, net_submit(net, 0, 9, shoal_buf_view(&ticket->ticket)), 2 * NET_S);
    assert_int_equal(reply->err, SHOAL_OK);
    net_run(net, 3 * NET_S);
    assert_true(term_of(net, ticket->job) >= 2); /* term 1 belongs to a life that is over */
    assert_false(shoal_job_state_ended(state_of(net, 1, ticket->job)));
    net_destroy(net);
}

static void test_acknowledged_means_flushed(void **state)
{
    (void)state;
    for (uint64_t seed = 100; seed < 110; seed++) {
        struct net *net = net_create(seed, 3, true);
        struct net_reply *reply;
        uint64_t id;

        for (unsigned i = 0; i < 3; i++)
            net->nodes[i].flush_ns = 40 * NET_MS;
        id = net_submit(net, 0, 1, no_ticket);
        while ((reply = net_reply_find(net, id))->count == 0)
            net_run(net, NET_MS / 10);
        assert_int_equal(reply->err, SHOAL_OK);
        for (unsigned i = 0; i < 3; i++)
            net_crash(net, i);
        for (unsigned i = 0; i < 3; i++)
            net_start(net, i);
        net_run(net, 5 * NET_S);
        assert_false(shoal_job_state_ended(state_of(net, 1, reply->job)));
        net_destroy(net);
    }
}

static void test_a_record_that_is_overtaken_is_not_waited_for(void **state)
{
    static uint8_t spec[SHOAL_JOB_SPEC_BYTES_MAX], bundle[60 * SHOAL_KIB];

    (void)state;
    /* The leader's appends come first, after 100 ms, and the record while they are not committed. */
    for (uint64_t bulk_ns = 99 * NET_MS; bulk_ns < 103 * NET_MS; bulk_ns += NET_MS / 4) {
        struct net *net = net_create(26, 3, true);
        struct shoal_sched_request request = { .kind = SHOAL_SCHED_SUBMIT, .spec_hash = net_spec_hash(3) };
        uint64_t asked_ns = net->now;
        struct net_reply *reply;

        net->bulk_ns = bulk_ns;
        request.spec = shoal_view_of(spec, net_spec(3, spec, sizeof(spec)));
        request.bundle = shoal_view_of(bundle, sizeof(bundle));
        request.bundle_hash = net_spec_hash(44);
        reply = net_wait(net, net_request(net, 0, &request), 2 * NET_S);
        assert_int_equal(reply->err, SHOAL_OK);
        if (reply->at_ns - asked_ns > 200 * NET_MS)
            fail_msg("the submit took %llu ms", (unsigned long long)((reply->at_ns - asked_ns) / NET_MS));
        net_destroy(net);
    }
}

static void test_a_leader_alone_answers_no_linearizable_read(void **state)
{
    struct net *net = net_create(27, 3, true);
    struct shoal_job_id job = submit(net, 0, 1);
    uint64_t fresh, stale;

    (void)state;
    net_run(net, NET_S);
    assert_int_equal(net_leader(net, job), 0);
    for (unsigned i = 1; i < 3; i++)
        net->cut[0][i] = net->cut[i][0] = true;
    fresh = net_ask(net, 0, SHOAL_SCHED_GET, job, true);
    stale = net_ask(net, 0, SHOAL_SCHED_GET, job, false);
    net_run(net, 300 * NET_MS); /* it still believes to lead */
    assert_int_equal(net_reply_find(net, fresh)->count, 0);
    assert_int_equal(net_reply_find(net, stale)->err, SHOAL_OK);
    assert_int_equal(net_wait(net, fresh, 4 * NET_S)->err, SHOAL_ERR_UNREACHABLE);
    net_destroy(net);
}

/* Until then they asked the dead one, each at most once in 600 ms. */
static void test_an_election_ends_the_wait_of_who_asked_the_dead(void **state)
{
    struct net *net = net_create(28, 5, true);
    struct shoal_job_id job = submit(net, 0, 1);
    uint64_t asked[5] = { 0 };

    (void)state;
    net_run(net, NET_S);
    assert_int_equal(net_leader(net, job), 0);
    net_crash(net, 0);
    net_run(net, 300 * NET_MS);
    assert_int_equal(net_leader(net, job), NET_NODES_MAX);
    for (unsigned i = 1; i < 5; i++)
        asked[i] = net_ask(net, i, SHOAL_SCHED_GET, job, true);
    for (unsigned ms = 0; ms < 2000 && net_leader(net, job) == NET_NODES_MAX; ms += 5)
        net_run(net, 5 * NET_MS);
    assert_true(net_leader(net, job) < 5);
    net_run(net, 250 * NET_MS); /* the others hear of the new leader by gossip */
    for (unsigned i = 1; i < 5; i++) {
        assert_int_equal(net_reply_find(net, asked[i])->count, 1);
        assert_int_equal(net_reply_find(net, asked[i])->err, SHOAL_OK);
    }
    net_destroy(net);
}

static void test_no_majority_says_so(void **state)
{
    struct net *net = net_create(6, 3, true);
    struct net_reply *reply, *again;

    (void)state;
    for (unsigned i = 1; i < 3; i++)
        net->cut[0][i] = net->cut[i][0] = true;
    reply = net_wait(net, net_submit(net, 0, 1, no_ticket), 40 * NET_S);
    assert_int_equal(reply->err, SHOAL_ERR_UNREACHABLE);
    assert_true(reply->ticket.len > 0);
    for (unsigned i = 1; i < 3; i++)
        net->cut[0][i] = net->cut[i][0] = false;
    again = net_wait(net, net_submit(net, 1, 1, shoal_buf_view(&reply->ticket)), 10 * NET_S);
    assert_int_equal(again->err, SHOAL_OK);
    assert_true(shoal_job_id_equal(again->job, reply->job));
    net_destroy(net);
}

static void test_stop_and_delete(void **state)
{
    struct net *net = net_create(7, 5, true);
    struct shoal_job_id job = submit(net, 0, 1);
    struct shoal_job_id unknown = job;

    (void)state;
    assert_int_equal(ask(net, 4, SHOAL_SCHED_STOP, job)->err, SHOAL_OK);
    net_run(net, 2 * NET_S);
    assert_int_equal(state_of(net, 3, job), SHOAL_JOB_KILLED);
    assert_int_equal(ask(net, 2, SHOAL_SCHED_STOP, job)->err, SHOAL_OK); /* once more is no error */
    assert_int_equal(ask(net, 2, SHOAL_SCHED_DELETE, job)->err, SHOAL_OK);
    net_run(net, 5 * NET_S);
    assert_int_equal(guardian_set(net, job), 0);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(ask(net, i, SHOAL_SCHED_GET, job)->err, SHOAL_ERR_NOT_FOUND);
    unknown.bytes[9] ^= 1;
    assert_int_equal(ask(net, 1, SHOAL_SCHED_GET, unknown)->err, SHOAL_ERR_NOT_FOUND);
    net_destroy(net);
}

static void test_unknown_needs_everybody(void **state)
{
    struct net *net = net_create(8, 3, true);
    struct shoal_job_id unknown = { { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 } };
    struct net_reply *reply;

    (void)state;
    net->cut[0][2] = net->cut[2][0] = true; /* alive, says gossip, but it does not answer */
    reply = ask(net, 0, SHOAL_SCHED_GET, unknown);
    assert_int_equal(reply->err, SHOAL_ERR_UNREACHABLE);
    net_destroy(net);
}

/* R4: who cannot know does not say "unknown": one that has just started and hears nobody, one of a minority, and one that
 * misses the host which is named in the id. */
static void test_unknown_needs_one_that_can_know(void **state)
{
    struct net *net = net_create(27, 5, true);
    struct shoal_job_id job = submit(net, 0, 1), unknown;
    unsigned set, outside = 0;

    (void)state;
    unknown = job;
    unknown.bytes[0] ^= 1;
    unknown.bytes[6] ^= 0x55; /* of a founder that nobody knows */
    net->gossip_is_silent = true;
    set = guardian_set(net, job);
    while (set & 1u << outside)
        outside++;
    net_run(net, 5 * NET_S);
    assert_int_equal(ask(net, outside, SHOAL_SCHED_GET, unknown)->err, SHOAL_ERR_NOT_FOUND);
    net_crash(net, 0);
    net_run(net, 3 * NET_S);
    assert_int_equal(ask(net, outside, SHOAL_SCHED_GET, unknown)->err, SHOAL_ERR_NOT_FOUND);
    for (unsigned i = 1; i < 5; i++)
        if (set & 1u << i)
            net_crash(net, i);
    net_run(net, 3 * NET_S);
    net->summary_count = 0; /* who starts now hears of none */
    net_crash(net, outside);
    net_start(net, outside);
    assert_int_equal(ask(net, outside, SHOAL_SCHED_GET, job)->err, SHOAL_ERR_UNREACHABLE); /* it has just started */
    net_run(net, 5 * NET_S);
    assert_int_equal(ask(net, outside, SHOAL_SCHED_GET, job)->err, SHOAL_ERR_UNREACHABLE); /* two of five */
    assert_int_equal(ask(net, outside, SHOAL_SCHED_GET, unknown)->err, SHOAL_ERR_UNREACHABLE);
    for (unsigned i = 1; i < 5; i++)
        if (!net->nodes[i].up)
            net_start(net, i);
    net_run(net, 5 * NET_S);
    assert_int_equal(ask(net, outside, SHOAL_SCHED_GET, unknown)->err, SHOAL_ERR_NOT_FOUND);
    assert_int_equal(ask(net, outside, SHOAL_SCHED_GET, job)->err, SHOAL_OK);
    net_destroy(net);
}

/* R4: all hosts were without power, and of those that are there again none has heard of the two that guard the job with
 * one whose disk lost it. A majority of the hosts is not enough to say "unknown": each knows those two from its life before. */
static void test_unknown_needs_the_hosts_of_before(void **state)
{
    struct net *net = net_create(27, 5, true);
    struct shoal_job_id job = submit(net, 0, 1), unknown = job;
    unsigned set, outside = 0, guards = 1;

    (void)state;
    unknown.bytes[0] ^= 1;
    net->gossip_is_silent = net->dead_are_untold = true;
    set = guardian_set(net, job);
    while (set & 1u << outside)
        outside++;
    while (!(set & 1u << guards))
        guards++;
    net_run(net, 5 * NET_S);
    for (unsigned i = 0; i < 5; i++)
        net_crash(net, i);
    net->summary_count = 0;
    net->nodes[0].disk_count = 0;
    for (unsigned i = 0; i < 5; i++)
        if (i == 0 || !(set & 1u << i))
            net_start(net, i);
    net_run(net, 5 * NET_S);
    assert_int_equal(ask(net, outside, SHOAL_SCHED_GET, job)->err, SHOAL_ERR_UNREACHABLE);
    assert_int_equal(ask(net, outside, SHOAL_SCHED_GET, unknown)->err, SHOAL_ERR_UNREACHABLE);
    net_run(net, 600 * NET_S); /* nobody waits for them any longer */
    assert_int_equal(ask(net, outside, SHOAL_SCHED_GET, unknown)->err, SHOAL_ERR_NOT_FOUND);
    net_start(net, guards);
    net_run(net, 5 * NET_S);
    assert_int_equal(ask(net, outside, SHOAL_SCHED_GET, unknown)->err, SHOAL_ERR_NOT_FOUND);
    assert_int_not_equal(ask(net, outside, SHOAL_SCHED_GET, job)->err, SHOAL_ERR_NOT_FOUND);
    net_destroy(net);
}

static void test_a_deleted_job_stays_deleted(void **state)
{
    struct net *net = net_create(9, 3, true);
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_TICKET, .spec_hash = net_spec_hash(9) };
    struct net_reply *ticket = net_wait(net, net_request(net, 0, &request), NET_S);
    struct net_reply *reply;

    (void)state;
    reply = net_wait(net, net_submit(net, 0, 9, shoal_buf_view(&ticket->ticket)), 2 * NET_S);
    assert_int_equal(reply->err, SHOAL_OK);
    assert_int_equal(ask(net, 1, SHOAL_SCHED_DELETE, reply->job)->err, SHOAL_OK);
    net_run(net, 6 * NET_S);
    assert_int_equal(guardian_set(net, ticket->job), 0);
    for (unsigned i = 0; i < 3; i++)
        net_crash(net, i);
    for (unsigned i = 0; i < 3; i++)
        net_start(net, i);
    net_run(net, 2 * NET_S);
    reply = net_wait(net, net_submit(net, 1, 9, shoal_buf_view(&ticket->ticket)), 5 * NET_S);
    assert_int_equal(reply->err, SHOAL_ERR_STALE);
    net_destroy(net);
}

static void test_restart_keeps_what_was_acknowledged(void **state)
{
    struct net *net = net_create(10, 3, true);
    struct shoal_job_id jobs[8];

    (void)state;
    for (unsigned i = 0; i < 8; i++)
        jobs[i] = submit(net, i % 3, i);
    for (unsigned i = 0; i < 3; i++)
        net_crash(net, i);
    net_run(net, NET_S);
    for (unsigned i = 0; i < 3; i++)
        net_start(net, i);
    net_run(net, 3 * NET_S);
    for (unsigned i = 0; i < 8; i++)
        assert_false(shoal_job_state_ended(state_of(net, (i + 1) % 3, jobs[i])));
    net_destroy(net);
}

/* ---- The mesh group ---- */

static struct shoal_mesh_command init_command(void)
{
    struct shoal_mesh_command command = { .kind = SHOAL_MESH_INIT, .now_s = 100 };

    (void)snprintf(command.name, sizeof(command.name), "home");
    (void)snprintf(command.user.name, sizeof(command.user.name), "admin");
    (void)snprintf(command.user.password, sizeof(command.user.password), "$argon2id$x");
    command.user.admin = true;
    memset(command.key, 7, sizeof(command.key));
    return command;
}

static struct shoal_mesh_command user_command(unsigned number)
{
    struct shoal_mesh_command command = { .kind = SHOAL_MESH_ADD_USER, .now_s = 100 };

    (void)snprintf(command.user.name, sizeof(command.user.name), "user%u", number);
    (void)snprintf(command.user.password, sizeof(command.user.password), "$argon2id$%u", number);
    return command;
}

static unsigned mesh_voters(struct net *net)
{
    struct shoal_sched_group_status status;
    unsigned leader = net_leader(net, mesh_id);

    if (leader == NET_NODES_MAX || !shoal_sched_group_find(net->nodes[leader].sched, mesh_id, &status))
        return 0;
    return status.voters;
}

static void init_mesh(struct net *net)
{
    struct shoal_mesh_command command = init_command();
    struct net_reply *reply = net_wait(net, net_mesh(net, 0, SHOAL_SCHED_MESH_INIT, &command), NET_S);

    if (reply->err != SHOAL_OK)
        fail_msg("init: %s: %s", shoal_err_name(reply->err), reply->text);
}

static void test_the_mesh_grows_as_nodes_join(void **state)
{
    struct net *net = net_create(11, 5, false);
    struct shoal_mesh_command command = init_command();
    struct net_reply *reply;

    (void)state;
    net->nodes[0].member = true;
    init_mesh(net);
    reply = net_wait(net, net_mesh(net, 0, SHOAL_SCHED_MESH_INIT, &command), NET_S);
    assert_int_equal(reply->err, SHOAL_ERR_EXISTS);
    assert_int_equal(mesh_voters(net), 1);
    net_join(net, 0);
    net_join(net, 1);
    net_run(net, 20 * NET_S);
    assert_int_equal(mesh_voters(net), 2);
    net_join(net, 2);
    net_run(net, 20 * NET_S);
    assert_int_equal(mesh_voters(net), 3);
    net_join(net, 3);
    net_run(net, 20 * NET_S);
    assert_int_equal(mesh_voters(net), 3);
    net_join(net, 4);
    net_run(net, 40 * NET_S);
    assert_int_equal(mesh_voters(net), 5);
    for (unsigned i = 0; i < 5; i++) {
        const struct shoal_mesh *mesh = shoal_sched_mesh(net->nodes[i].sched);

        assert_non_null(mesh);
        assert_non_null(shoal_mesh_user_find(mesh, "admin"));
        assert_string_equal(shoal_mesh_name(mesh), "home");
        assert_true(shoal_sched_mesh_writable(net->nodes[i].sched));
    }
    net_destroy(net);
}

/* Every node knows when the mesh group has lost its majority, whether it is of the group or not. */
static void test_a_lost_majority_is_known_everywhere(void **state)
{
    struct net *net = net_create(21, 7, true);
    struct shoal_sched_group_status status;
    unsigned lost = 0, outside = 0;

    (void)state;
    init_mesh(net);
    net_run(net, 60 * NET_S);
    assert_int_equal(mesh_voters(net), 5);
    for (unsigned i = 0; i < 7; i++) {
        assert_true(shoal_sched_mesh_writable(net->nodes[i].sched));
        outside += shoal_sched_group_find(net->nodes[i].sched, mesh_id, &status) ? 0 : 1;
    }
    assert_int_equal(outside, 2);
    for (unsigned i = 0; i < 7 && lost < 3; i++) {
        if (!shoal_sched_group_find(net->nodes[i].sched, mesh_id, &status))
            continue;
        net_crash(net, i);
        lost++;
    }
    net_run(net, 10 * NET_S);
    for (unsigned i = 0; i < 7; i++)
        if (net->nodes[i].up && shoal_sched_mesh_writable(net->nodes[i].sched))
            fail_msg("node %u takes the mesh group for writable", i);
    net_destroy(net);
}

static void test_every_node_serves_and_changes_the_mesh(void **state)
{
    struct net *net = net_create(12, 5, true);

    (void)state;
    init_mesh(net);
    net_run(net, 5 * NET_S);
    for (unsigned i = 0; i < 5; i++) {
        struct shoal_mesh_command command = user_command(i);
        struct net_reply *reply = net_wait(net, net_mesh(net, i, SHOAL_SCHED_MESH_CHANGE, &command), 3 * NET_S);
        char name[16];

        if (reply->err != SHOAL_OK)
            fail_msg("node %u: %s: %s", i, shoal_err_name(reply->err), reply->text);
        (void)snprintf(name, sizeof(name), "user%u", i);
        assert_non_null(shoal_mesh_user_find(shoal_sched_mesh(net->nodes[i].sched), name)); /* here, at once */
        reply = net_wait(net, net_mesh(net, i, SHOAL_SCHED_MESH_CHANGE, &command), 3 * NET_S);
        assert_int_equal(reply->err, SHOAL_ERR_EXISTS);
    }
    net_run(net, NET_S);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(shoal_mesh_user_count(shoal_sched_mesh(net->nodes[i].sched)), 6);
    assert_int_equal(net_wait(net, net_mesh(net, 4, SHOAL_SCHED_MESH_READ, NULL), 3 * NET_S)->err, SHOAL_OK);
    net_destroy(net);
}

static void test_changes_find_the_mesh_after_it_has_moved(void **state)
{
    struct net *net = net_create(28, 6, false);
    struct shoal_mesh_command command = user_command(1);
    struct net_reply *reply;

    (void)state;
    for (unsigned i = 0; i < 4; i++)
        net_join(net, i);
    init_mesh(net); /* node 3 learns of the group while node 0 is all of it */
    net_run(net, 40 * NET_S);
    assert_int_equal(mesh_voters(net), 3);
    net_crash(net, 0);
    net_run(net, 5 * NET_S);
    for (unsigned i = 1; i < 4; i++) {
        command = user_command(i);
        reply = net_wait(net, net_mesh(net, i, SHOAL_SCHED_MESH_CHANGE, &command), 4 * NET_S);
        if (reply->err != SHOAL_OK)
            fail_msg("node %u: %s: %s", i, shoal_err_name(reply->err), reply->text);
    }
    net_destroy(net);
}

static void test_a_long_mesh_log_is_cut_and_installed(void **state)
{
    struct net *net = net_create(13, 3, true);
    struct shoal_sched_stats stats;

    (void)state;
    init_mesh(net);
    net_run(net, 30 * NET_S);
    assert_int_equal(mesh_voters(net), 3);
    net_crash(net, 2);
    net_run(net, 3 * NET_S);
    for (unsigned i = 0; i < 1300; i++) {
        struct shoal_mesh_command command = { .kind = SHOAL_MESH_REVOKE, .now_s = 100 };
        uint64_t id;

        command.revocation.exp_s = 200;
        memcpy(command.revocation.token, &i, sizeof(i));
        id = net_mesh(net, i % 2, SHOAL_SCHED_MESH_CHANGE, &command);
        assert_int_equal(net_wait(net, id, 3 * NET_S)->err, SHOAL_OK);
    }
    shoal_sched_stats(net->nodes[net_leader(net, mesh_id)].sched, &stats);
    assert_true(stats.snapshots >= 2);
    net_start(net, 2);
    net_run(net, 5 * NET_S);
    assert_int_equal(shoal_sched_mesh_version(net->nodes[2].sched), shoal_sched_mesh_version(net->nodes[0].sched));
    net_crash(net, 0); /* now nodes 1 and 2 are the majority */
    net_run(net, 3 * NET_S);
    assert_true(net_leader(net, mesh_id) < 3);
    for (unsigned i = 1; i < 3; i++) {
        struct shoal_sched_group_status status;

        assert_true(shoal_sched_group_find(net->nodes[i].sched, mesh_id, &status));
        assert_false(status.stopped);
    }
    net_destroy(net);
}

static void test_a_lost_guardian_is_replaced(void **state)
{
    struct net *net = net_create(14, 5, true);
    struct shoal_job_id job = submit(net, 0, 1);
    unsigned before = guardian_set(net, job);
    unsigned victim = 1;

    (void)state;
    while (!(before & 1u << victim))
        victim++;
    net_run(net, 5 * NET_S);
    net_crash(net, victim);
    net_run(net, 50 * NET_S);
    assert_int_equal(guardian_set(net, job), before & ~(1u << victim));
    net_run(net, 20 * NET_S);
    assert_int_equal(__builtin_popcount(guardian_set(net, job)), 3);
    net_start(net, victim); /* it learns that it is no guardian any more */
    net_run(net, 10 * NET_S);
    assert_int_equal(__builtin_popcount(guardian_set(net, job)), 3);
    assert_false(guardian_set(net, job) & 1u << victim);
    net_destroy(net);
}

static void test_an_old_configuration_does_not_come_back_to_life(void **state)
{
    struct net *net = net_create(25, 5, true);
    struct shoal_job_id job = submit(net, 0, 1);
    unsigned before = guardian_set(net, job);
    unsigned a = 0, b = 0;

    (void)state;
    for (unsigned i = 1; i < 5; i++) {
        if (before & 1u << i) {
            a = b;
            b = i;
        }
    }
    assert_true(a > 0 && b > a);
    net_crash(net, b); /* it never hears of any change: its configuration stays the first one */
    net_run(net, 80 * NET_S);
    net_crash(net, a);
    net_run(net, 80 * NET_S);
    assert_int_equal(__builtin_popcount(guardian_set(net, job)), 3);
    net_start(net, a); /* learns that it is a guardian no more, and forgets its replica */
    net_run(net, 20 * NET_S);
    assert_false(guardian_set(net, job) & 1u << a);
    for (unsigned i = 0; i < 5; i++) {
        if (i != a && i != b)
            net_crash(net, i);
    }
    net_start(net, b);
    net_run(net, 30 * NET_S);
    assert_int_equal(net_leader(net, job), NET_NODES_MAX); /* a and b were a majority once */
    for (unsigned i = 0; i < 5; i++) {
        if (!net->nodes[i].up)
            net_start(net, i);
    }
    net_run(net, 30 * NET_S);
    assert_false(shoal_job_state_ended(state_of(net, b, job)));
    assert_false(guardian_set(net, job) & 1u << b);
    net_destroy(net);
}

/* All fellow guardians that it knows were replaced since, and heard nothing of the end. */
static void test_a_replica_that_missed_the_deletion_learns_of_it(void **state)
{
    struct net *net = net_create(26, 6, true);
    struct shoal_job_id job = submit(net, 0, 1);
    unsigned before = guardian_set(net, job);
    unsigned last = 5;

    (void)state;
    while (!(before & 1u << last))
        last--;
    assert_int_equal(__builtin_popcount(before), 3);
    for (unsigned i = 6; i > 0; i--) { /* one after the other, the last of them first */
        if (before & 1u << (i - 1)) {
            net_crash(net, i - 1);
            net_run(net, 80 * NET_S);
        }
    }
    for (unsigned i = 0; i < last; i++) {
        if (before & 1u << i)
            net_start(net, i);
    }
    net_run(net, 20 * NET_S);
    assert_int_equal(guardian_set(net, job) & before, 0);
    for (unsigned i = 0; i < 6; i++) {
        if (before & 1u << i && i != last)
            net_crash(net, i);
    }
    for (unsigned i = 0; i < 6; i++) {
        if (!(before & 1u << i)) {
            assert_int_equal(ask(net, i, SHOAL_SCHED_DELETE, job)->err, SHOAL_OK);
            break;
        }
    }
    net_run(net, 20 * NET_S);
    for (unsigned i = 0; i < 6; i++) {
        if (!net->nodes[i].up)
            net_start(net, i);
    }
    net_run(net, 30 * NET_S);
    assert_int_equal(guardian_set(net, job), 0);
    assert_int_equal(ask(net, last, SHOAL_SCHED_GET, job)->err, SHOAL_ERR_NOT_FOUND);
    net_destroy(net);
}

static void test_two_nodes(void **state)
{
    struct net *net = net_create(15, 2, true);
    struct net_reply *reply = net_wait(net, net_submit(net, 1, 1, no_ticket), NET_S);
    struct shoal_job_id job = reply->job;

    (void)state;
    assert_int_equal(reply->err, SHOAL_OK);
    assert_non_null(strstr(reply->text, "two nodes"));
    net_run(net, NET_S);
    net_crash(net, 1);
    net_run(net, 3 * NET_S);
    reply = net_wait(net, net_ask(net, 0, SHOAL_SCHED_GET, job, false), 4 * NET_S);
    assert_int_equal(reply->err, SHOAL_OK); /* stale reads survive */
    reply = net_wait(net, net_ask(net, 0, SHOAL_SCHED_GET, job, true), 4 * NET_S);
    assert_int_equal(reply->err, SHOAL_ERR_UNREACHABLE);
    net_destroy(net);
}

static void test_a_job_of_one_node_grows(void **state)
{
    struct net *net = net_create(16, 3, false);
    struct net_reply *reply;

    (void)state;
    net_join(net, 0);
    reply = net_wait(net, net_submit(net, 0, 1, no_ticket), NET_S);
    assert_int_equal(reply->err, SHOAL_OK);
    net_join(net, 1);
    net_join(net, 2);
    net_run(net, 40 * NET_S);
    assert_int_equal(guardian_set(net, reply->job), 7);
    net_crash(net, 0);
    net_run(net, 2 * NET_S);
    assert_false(shoal_job_state_ended(state_of(net, 1, reply->job)));
    net_destroy(net);
}

static void test_a_large_bundle_is_fetched_first(void **state)
{
    static uint8_t spec[SHOAL_JOB_SPEC_BYTES_MAX];
    struct net *net = net_create(17, 3, true);
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_SUBMIT, .spec_hash = net_spec_hash(3) };

    (void)state;
    request.spec = shoal_view_of(spec, net_spec(3, spec, sizeof(spec)));
    request.bundle_hash = net_spec_hash(44);
    assert_int_equal(net_wait(net, net_request(net, 0, &request), 2 * NET_S)->err, SHOAL_OK);
    net->blobs_fail = ~0u;
    request.spec_hash = net_spec_hash(4);
    request.bundle_hash = net_spec_hash(45);
    assert_int_equal(net_wait(net, net_request(net, 0, &request), 40 * NET_S)->err, SHOAL_ERR_UNREACHABLE);
    net_destroy(net);
}

/* From the submit to the end, with real leads, slots and allocation; the workers are of the simplest kind. */
static void test_scripts_run_and_finish(void **state)
{
    struct net *net = net_create_with(19, 3, true, 2);
    struct shoal_job_id jobs[5];
    unsigned runs = 0;

    (void)state;
    for (unsigned i = 0; i < 5; i++)
        jobs[i] = submit(net, i % 3, 1000 + i);
    net_run(net, 30 * NET_S);
    for (unsigned i = 0; i < 5; i++) {
        for (unsigned at = 0; at < 3; at++) {
            enum shoal_job_state now = state_of(net, at, jobs[i]);

            if (now != SHOAL_JOB_FINISHED) {
                struct net_reply *why = ask(net, at, SHOAL_SCHED_WHY, jobs[i]);

                fail_msg("job %u at node %u: %s: %.*s", i, at, shoal_job_state_name(now), (int)why->bytes.len,
                         (const char *)why->bytes.bytes);
            }
        }
    }
    for (unsigned i = 0; i < 3; i++) {
        runs += net->nodes[i].runs;
        assert_int_equal(net->nodes[i].slots_free, 3);
    }
    assert_int_equal(runs, 10); /* two each, and none twice */
    net_destroy(net);
}

static unsigned runs_of(const struct net *net) { return net->nodes[0].runs + net->nodes[1].runs + net->nodes[2].runs; }

/* From the submit to the start, frames and flushes aside, a job waits for no timer but the gathering of the view, and
 * when the view was evaluated just before, since another job has ended, for its short pause. */
static void test_a_script_starts_soon(void **state)
{
    struct net *net = net_create_with(21, 3, true, 2);

    (void)state;
    net_run(net, 5 * NET_S);
    for (unsigned i = 0; i < 6; i++) {
        uint64_t began = net->now;
        unsigned runs = runs_of(net);
        struct shoal_job_id job = submit(net, i % 3, 1000 + i);

        while (runs_of(net) == runs && net->now < began + NET_S)
            net_run(net, NET_MS);
        if (net->now - began > (i == 0 ? 15 : 20) * NET_MS)
            fail_msg("script %u started after %llu ms", i, (unsigned long long)((net->now - began) / NET_MS));
        while (!shoal_job_state_ended(state_of(net, i % 3, job)) && net->now < began + 30 * NET_S)
            net_run(net, NET_MS);
        assert_int_equal(state_of(net, i % 3, job), SHOAL_JOB_FINISHED);
    }
    net_destroy(net);
}

/* Gossip falls silent once the jobs are known: what is free, and what other leaders' jobs want, is told directly. The
 * last jobs of a burst start as soon as those in the middle. */
static void test_news_places_without_gossip(void **state)
{
    struct net *net = net_create_with(23, 3, true, 1);
    uint64_t began;

    (void)state;
    net->work_ns = 400 * NET_MS;
    for (unsigned i = 0; i < 3; i++)
        (void)submit(net, i % 3, 1000 + i);
    net_run(net, 300 * NET_MS);
    assert_int_equal(runs_of(net), 2); /* gangs of two: one of three runs */
    net->gossip_is_silent = true;
    began = net->now;
    while (runs_of(net) < 6 && net->now < began + 5 * NET_S)
        net_run(net, NET_MS);
    if (net->now - began > 1200 * NET_MS)
        fail_msg("the last of three gangs started after %llu ms", (unsigned long long)((net->now - began) / NET_MS));
    net_destroy(net);
}

static void test_a_script_survives_its_leader(void **state)
{
    struct net *net = net_create_with(20, 5, true, 0);
    struct shoal_job_id job;
    unsigned leader;

    (void)state;
    for (unsigned i = 0; i < 5; i++)
        net->nodes[i].slots = i >= 3 ? 1 : 0; /* the workers run elsewhere */
    for (unsigned i = 0; i < 5; i++) {
        net_crash(net, i);
        net->nodes[i].slots_free = i >= 3 ? 1 : 0;
        net_start(net, i);
    }
    net_run(net, NET_S);
    job = submit(net, 0, 1000);
    while (net->nodes[3].runs + net->nodes[4].runs < 2)
        net_run(net, 10 * NET_MS);
    leader = net_leader(net, job);
    assert_true(leader < 5);
    net_crash(net, leader);
    net_run(net, 20 * NET_S);
    for (unsigned at = 0; at < 5; at++) {
        if (net->nodes[at].up)
            assert_int_equal(state_of(net, at, job), SHOAL_JOB_FINISHED);
    }
    net_destroy(net);
}

/* V3 of raft_vote.c: an agent that starts has forgotten whom it supports. For one support duration it elects nobody, and
 * stands for nothing, while the leader may still count on it. */
static void test_who_starts_anew_is_quiet(void **state)
{
    (void)state;
    for (uint64_t seed = 300; seed < 330; seed++) {
        struct net *net = net_create(seed, 3, true);
        struct shoal_job_id job = submit(net, 0, 1);
        unsigned leader = net_leader(net, job), other = (leader + 1) % 3, fresh = (leader + 2) % 3;

        net_run(net, 2 * NET_S);
        net->cut[leader][other] = net->cut[other][leader] = true; /* it campaigns, and the third does not help it */
        net_run(net, 3 * NET_S);
        assert_int_equal(net_leader(net, job), leader);
        net_crash(net, fresh);
        net_start(net, fresh);
        for (unsigned i = 0; i < 58; i++) {
            struct shoal_sched_group_status status;

            net_run(net, 10 * NET_MS);
            if (shoal_sched_group_find(net->nodes[other].sched, job, &status) && status.leads)
                fail_msg("seed %llu: another leads %u ms after the start", (unsigned long long)seed, 10 * (i + 1));
            if (shoal_sched_group_find(net->nodes[fresh].sched, job, &status) && status.leads)
                fail_msg("seed %llu: it leads %u ms after its start", (unsigned long long)seed, 10 * (i + 1));
        }
        net_destroy(net);
    }
}

/* G7: a node that has no part in a job says that it is deleted, and that it has ended; its guardians do not believe it. */
static void test_gone_is_said_by_those_who_know(void **state)
{
    struct net *net = net_create(28, 7, true);
    struct shoal_job_id job = submit(net, 0, 1);
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_FRAME };
    struct frame frame = { .kind = FRAME_GONE };
    unsigned set = guardian_set(net, job), known = set, liar = 1;
    struct shoal_node_id near[SHOAL_ARCHIVE_COPIES];
    size_t near_count;
    uint8_t bytes[256];
    struct shoal_writer w;

    (void)state;
    net_run(net, 2 * NET_S);
    near_count = shoal_sched_archive_hosts(net->nodes[0].sched, job, near);
    for (size_t i = 0; i < near_count; i++)
        known |= 1u << net_find(net, near[i]); /* who will hold its record knows too */
    while (known & 1u << liar)
        liar++;
    assert_true(liar < 7);
    for (unsigned what = 0; what < 2; what++) {
        memset(&frame, 0, sizeof(frame));
        frame.kind = what == 0 ? FRAME_GONE : FRAME_ARCHIVE;
        if (what == 0)
            frame.u.who.job = job;
        else
            frame.u.archive.job = job;
        frame.u.archive.word = what == 0 ? frame.u.archive.word : (uint8_t)ARCHIVE_ENDED;
        w = shoal_writer_init(bytes, sizeof(bytes));
        assert_true(sched_frame_encode(&frame, &w));
        event.u.frame.from = net->nodes[liar].id;
        event.u.frame.bytes = shoal_writer_view(&w);
        for (unsigned i = 0; i < 7; i++)
            if (set & 1u << i)
                net_step(net, i, &event);
        net_run(net, NET_S);
        if (guardian_set(net, job) != set)
            fail_msg("word %u of a stranger: guardians %x, were %x", what, guardian_set(net, job), set);
    }
    net_destroy(net);
}

/* N4 of sched_node.c: datagrams pass between the leader and the others, frames do not. Another one leads within seconds,
 * also while nobody asks for anything; healed, nobody is left out. */
static void test_a_leader_without_links_loses_its_office(void **state)
{
    struct net *net = net_create(26, 3, true);
    struct shoal_job_id job = submit(net, 0, 1);
    unsigned leader = net_leader(net, job);
    uint64_t began;

    (void)state;
    net_run(net, 3 * NET_S); /* all is quiet */
    for (unsigned i = 0; i < 3; i++)
        net->links_cut[leader][i] = net->links_cut[i][leader] = true;
    began = net->now;
    while (net_leader(net, job) == leader && net->now < began + 60 * NET_S)
        net_run(net, 100 * NET_MS);
    if (net->now - began > 5 * NET_S)
        fail_msg("another leader after %llu ms", (unsigned long long)((net->now - began) / NET_MS));
    assert_int_equal(ask(net, (leader + 1) % 3, SHOAL_SCHED_GET, job)->err, SHOAL_OK);
    for (unsigned i = 0; i < 3; i++)
        net->links_cut[leader][i] = net->links_cut[i][leader] = false;
    net_run(net, 5 * NET_S);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(ask(net, i, SHOAL_SCHED_GET, job)->err, SHOAL_OK);
    net_destroy(net);
}

/* Y3: all guardians of a job are lost. Its demand comes first by its ticket's time, and its slots are named in gossip for
 * ever; a job that comes after it runs all the same, once the leases of the lost one have ended. What is lost is not
 * unknown: its deletion is refused, and says who is missing. */
static void test_a_job_without_guardians_holds_no_slots(void **state)
{
    struct net *net = net_create_with(25, 6, true, 1);
    struct shoal_job_id lost, job;
    struct net_reply *reply;
    unsigned set, at = 0;

    (void)state;
    net->work_ns = 1000 * NET_S;
    lost = submit(net, 0, 1000);
    net_run(net, 10 * NET_S);
    set = guardian_set(net, lost);
    for (unsigned i = 0; i < 6; i++)
        if (set & 1u << i)
            net_crash(net, i);
    net->work_ns = NET_S;
    while (set & 1u << at)
        at++;
    net_run(net, 5 * NET_S);
    job = submit(net, at, 1001);
    net_run(net, 60 * NET_S);
    assert_int_equal(state_of(net, at, job), SHOAL_JOB_FINISHED);
    reply = ask(net, at, SHOAL_SCHED_DELETE, lost);
    assert_int_equal(reply->err, SHOAL_ERR_UNREACHABLE);
    assert_non_null(strstr(reply->text, "none of its guardians"));
    net_destroy(net);
}

/* ---- Bounds and bad replicas ---- */

static void test_a_full_node_takes_no_more_jobs(void **state)
{
    struct net *net = net_create(21, 1, true);
    struct net_reply *reply;
    struct shoal_sched_stats stats;

    (void)state;
    net_crash(net, 0);
    net->groups_max = 3;
    net_start(net, 0);
    for (unsigned i = 0; i < 3; i++)
        (void)submit(net, 0, i);
    reply = net_wait(net, net_submit(net, 0, 3, no_ticket), 2 * NET_S);
    assert_int_equal(reply->err, SHOAL_ERR_UNREACHABLE);
    assert_non_null(strstr(reply->text, "as many jobs as it can"));
    shoal_sched_stats(net->nodes[0].sched, &stats);
    assert_int_equal(stats.groups_refused_full, 1);
    net_destroy(net);
}

static void test_the_book_of_requests_is_bounded(void **state)
{
    struct net *net = net_create(22, 3, true);
    struct shoal_job_id job = submit(net, 0, 1);
    unsigned full = 0;

    (void)state;
    for (unsigned i = 1; i < 3; i++)
        net->cut[0][i] = net->cut[i][0] = true;
    net_run(net, NET_S); /* no leader any more: everything waits */
    for (unsigned i = 0; i < SHOAL_SCHED_REQUESTS_MAX + 10; i++) {
        uint64_t id = net_ask(net, 0, SHOAL_SCHED_GET, job, true);

        full += net_reply_find(net, id)->count == 1 && net_reply_find(net, id)->err == SHOAL_ERR_FULL ? 1 : 0;
    }
    assert_int_equal(full, 10);
    net_run(net, 4 * NET_S);
    for (size_t i = 0; i < net->reply_count; i++)
        assert_int_equal(net->replies[i].count, 1);
    assert_int_equal(ask(net, 1, SHOAL_SCHED_GET, job)->err, SHOAL_OK); /* the others have a leader */
    net_destroy(net);
}

static void test_a_token_that_is_too_long_is_told_as_such(void **state)
{
    static const uint8_t token[SHOAL_SCHED_TOKEN_BYTES_MAX + 1];
    struct net *net = net_create(22, 1, true);
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_GET, .token = shoal_view_of(token, sizeof(token)) };
    const struct net_reply *reply;
    struct shoal_sched_stats stats;

    (void)state;
    reply = net_reply_find(net, net_request(net, 0, &request));
    assert_int_equal(reply->count, 1);
    assert_int_equal(reply->err, SHOAL_ERR_INVALID);
    assert_non_null(strstr(reply->text, "token"));
    shoal_sched_stats(net->nodes[0].sched, &stats);
    assert_int_equal(stats.requests_refused_full, 0);
    net_destroy(net);
}

static void test_a_replica_that_differs_stops(void **state)
{
    struct net *net = net_create(23, 3, true);
    struct shoal_sched_group_status status;
    struct shoal_sched_stats stats;
    uint8_t bytes[64];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_FRAME };

    (void)state;
    init_mesh(net);
    net_run(net, 30 * NET_S);
    for (unsigned i = 0; i < 1100; i++) {
        struct shoal_mesh_command command = { .kind = SHOAL_MESH_REVOKE, .now_s = 100 };

        command.revocation.exp_s = 200;
        memcpy(command.revocation.token, &i, sizeof(i));
        assert_int_equal(net_wait(net, net_mesh(net, 0, SHOAL_SCHED_MESH_CHANGE, &command), 3 * NET_S)->err, SHOAL_OK);
    }
    for (unsigned i = 0; i < 3; i++) {
        shoal_sched_stats(net->nodes[i].sched, &stats);
        assert_int_equal(stats.digest_mismatches, 0); /* compared at 1024, and alike */
    }
    assert_int_equal(net_leader(net, mesh_id), 0);
    /* The leader's digest as it would be if replica 1 had gone astray: kind, version, oldest, group, index, digest. */
    shoal_put_u8(&w, 11);
    shoal_put_u8(&w, 1);
    shoal_put_u8(&w, 1);
    shoal_put_job_id(&w, mesh_id);
    shoal_put_u64(&w, 1024);
    shoal_put_u64(&w, 42);
    event.u.frame.from = net->nodes[0].id;
    event.u.frame.bytes = shoal_writer_view(&w);
    net_step(net, 1, &event);
    assert_true(shoal_sched_group_find(net->nodes[1].sched, mesh_id, &status));
    assert_false(status.stopped); /* one says this, one has said that */
    event.u.frame.from = net->nodes[2].id;
    net_step(net, 1, &event);
    assert_true(shoal_sched_group_find(net->nodes[1].sched, mesh_id, &status));
    assert_true(status.stopped);
    assert_int_equal(net->nodes[1].said, 1);
    shoal_sched_stats(net->nodes[1].sched, &stats);
    assert_int_equal(stats.digest_mismatches, 1);
    net_run(net, 30 * NET_S); /* the other two go on, and take it in again */
    assert_int_equal(net_leader(net, mesh_id), 0);
    assert_int_equal(mesh_voters(net), 3);
    assert_true(shoal_sched_group_find(net->nodes[1].sched, mesh_id, &status));
    assert_false(status.stopped);
    net_destroy(net);
}

static void digests_at(struct net *net, struct shoal_job_id job, unsigned count, uint64_t index)
{
    uint64_t want = 0, applied, digest;
    unsigned alike = 0;

    for (unsigned i = 0; i < count; i++) {
        if (!shoal_sched_group_digest(net->nodes[i].sched, job, &applied, &digest))
            continue;
        assert_true(applied >= index);
        want = alike++ == 0 ? digest : want;
        assert_true(digest == want);
    }
    assert_int_equal(alike, 3);
}

/* A bit of a replica's machine is turned, of the leader's too: at the next multiple of 1,024 it stops and says so, and
 * the others give it their state. Nothing of what it held is left. */
static void test_a_replica_that_differs_is_rebuilt(void **state)
{
    (void)state;
    for (unsigned nodes = 3; nodes <= 4; nodes++) { /* with and without another node to take its place */
        for (unsigned leads = 0; leads < 2; leads++) {
            struct net *net = net_create(29, nodes, true);
            struct shoal_job_id job = submit(net, 0, 1);
            struct shoal_sched_group_status status;
            unsigned bad = 1, asked = 0;
            const struct shoal_job *machine;

            assert_int_equal(ask(net, 1, SHOAL_SCHED_STOP, job)->err, SHOAL_OK);
            net_run(net, 5 * NET_S);
            bad = net_leader(net, job);
            for (unsigned i = 0; !leads && i < nodes; i++) {
                if (i != net_leader(net, job) && shoal_sched_group_find(net->nodes[i].sched, job, &status))
                    bad = i;
            }
            for (unsigned i = 0; i < 1100; i++) {
                if (i == 500) {
                    machine = shoal_sched_job(net->nodes[bad].sched, job);
                    ((struct shoal_job *)(uintptr_t)machine)->digest ^= 4;
                }
                asked = (bad + 1) % nodes;
                assert_int_equal(ask(net, asked, SHOAL_SCHED_STOP, job)->err, SHOAL_OK);
            }
            assert_int_equal(net->nodes[bad].said, 1);
            net_run(net, 40 * NET_S);
            for (unsigned i = 0; i < nodes; i++) {
                assert_int_equal(net->nodes[i].said, i == bad ? 1 : 0);
                if (shoal_sched_group_find(net->nodes[i].sched, job, &status))
                    assert_false(status.stopped);
            }
            digests_at(net, job, nodes, 1100);
            assert_int_equal(state_of(net, bad, job), SHOAL_JOB_KILLED);
            net_destroy(net);
        }
    }
}

static void test_quiet_meshes_are_cheap(void **state)
{
    struct net *net = net_create(18, 3, true);
    uint64_t steps, frames;

    (void)state;
    for (unsigned i = 0; i < 20; i++)
        (void)submit(net, i % 3, i);
    net_run(net, 5 * NET_S);
    steps = net->steps;
    frames = net->frames;
    net_run(net, 10 * NET_S);
    /* Heartbeats alone: 6 ordered pairs, 10 a second; each is a timer or two and a delivery. */
    if (net->frames - frames > 6 * 100 + 200 || net->steps - steps > 6 * 100 * 5)
        fail_msg("%llu frames and %llu steps in 10 s of silence", (unsigned long long)(net->frames - frames),
                 (unsigned long long)(net->steps - steps));
    net_destroy(net);
}

/* A summary comes to node 0: by gossip, or as news from node `from`. What it then believes the job wants; 0: nothing. */
static uint32_t heard(struct net *net, unsigned from, bool news, uint64_t applied, uint32_t want)
{
    const struct shoal_job_id id = { { 1, 2, 3 } };
    struct shoal_job_summary summary = {
        .id = id, .state = SHOAL_JOB_RUNNING, .want_max = want, .leader = net->nodes[1].id, .term = 2
    };
    struct shoal_sched_version version = { 1, 2, applied };
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_SUMMARY };
    struct frame frame = { .kind = FRAME_NEWS };
    uint8_t bytes[SHOAL_SCHED_SUMMARY_BYTES_MAX], frame_bytes[SHOAL_SCHED_SUMMARY_BYTES_MAX + 64];
    struct shoal_writer out = shoal_writer_init(frame_bytes, sizeof(frame_bytes));
    const struct shoal_job_summary *known;
    size_t len = 0;

    if (want > 0) {
        assert_int_equal(shoal_job_summary_encode(&summary, bytes, sizeof(bytes), &len), SHOAL_OK);
        event.u.summary.job = id;
        event.u.summary.version = version;
        event.u.summary.payload = shoal_view_of(bytes, len);
        if (news) {
            frame.u.news.is_summary = true;
            frame.u.news.version = version;
            frame.u.news.payload = shoal_view_of(bytes, len);
            assert_true(sched_frame_encode(&frame, &out));
            event.kind = SHOAL_SCHED_FRAME;
            event.u.frame.from = net->nodes[from].id;
            event.u.frame.bytes = shoal_writer_view(&out);
        }
        assert_int_equal(shoal_sched_step(net->nodes[0].sched, &event, net->now, net->actions), SHOAL_OK);
    }
    known = sched_summary_find(net->nodes[0].sched, id);
    return known == NULL ? 0 : known->want_max;
}

/* W2, Y4: news run ahead of gossip, and never against newer word; nobody but gossip makes them last. */
static void test_news_never_go_back(void **state)
{
    struct net *net = net_create(77, 3, true);

    (void)state;
    net_run(net, 2 * NET_S);
    assert_int_equal(heard(net, 2, true, 5, 4), 0); /* not of one that does not lead it */
    assert_int_equal(heard(net, 1, true, 5, 4), 4);
    assert_int_equal(heard(net, 1, true, 4, 3), 4);  /* overtaken on its way */
    assert_int_equal(heard(net, 1, false, 4, 3), 4); /* gossip is behind */
    assert_int_equal(heard(net, 1, false, 6, 7), 7);
    assert_int_equal(heard(net, 1, true, 5, 4), 7);
    net_run(net, 20 * NET_S);
    assert_int_equal(heard(net, 1, true, 0, 0), 7); /* gossip has told of it */
    net_destroy(net);
    net = net_create(78, 3, true);
    net_run(net, 2 * NET_S);
    assert_int_equal(heard(net, 1, true, 5, 4), 4);
    net_run(net, 20 * NET_S);
    assert_int_equal(heard(net, 1, true, 0, 0), 0); /* news alone, which a tombstone may have overtaken */
    net_destroy(net);
}

/* Node 4 asks of one job and is started again; in its next life it asks of another one. What the leader answers to the first
 * question, late, is no answer to the second. */
static void test_an_answer_to_an_earlier_life_is_none(void **state)
{
    struct net *net = net_create(17, 5, true);
    struct shoal_job_id jobs[2];
    struct shoal_job_facts facts;
    struct net_reply *reply;
    unsigned found = 0;
    uint64_t second;

    (void)state;
    for (unsigned i = 0; i < 40 && found < 2; i++) {
        jobs[found] = submit(net, 0, i);
        found += (guardian_set(net, jobs[found]) & 1u << 4) == 0;
    }
    assert_int_equal(found, 2);
    net_run(net, NET_S);
    net->late_ns[0] = net->now + 300 * NET_MS;
    (void)net_ask(net, 4, SHOAL_SCHED_GET, jobs[0], true);
    net_run(net, 20 * NET_MS);
    net_crash(net, 4);
    net_start(net, 4);
    net_run(net, 120 * NET_MS);
    second = net_ask(net, 4, SHOAL_SCHED_GET, jobs[1], true);
    reply = net_wait(net, second, 4 * NET_S);
    assert_int_equal(reply->err, SHOAL_OK);
    assert_int_equal(shoal_job_facts_decode(shoal_buf_view(&reply->bytes), &facts), SHOAL_OK);
    assert_true(shoal_job_id_equal(facts.id, jobs[1]));
    net_destroy(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_node_founds_alone),
        cmocka_unit_test(test_a_script_starts_soon),
        cmocka_unit_test(test_news_places_without_gossip),
        cmocka_unit_test(test_news_never_go_back),
        cmocka_unit_test(test_any_node_answers_for_any_job),
        cmocka_unit_test(test_an_answer_to_an_earlier_life_is_none),
        cmocka_unit_test(test_thirty_jobs_and_one_death),
        cmocka_unit_test(test_a_ticket_founds_once),
        cmocka_unit_test(test_a_ticket_is_verified_where_its_issuer_does_not_bring_it),
        cmocka_unit_test(test_a_retry_founds_when_the_issuer_died),
        cmocka_unit_test(test_another_life_of_the_issuer_is_elected),
        cmocka_unit_test(test_acknowledged_means_flushed),
        cmocka_unit_test(test_a_record_that_is_overtaken_is_not_waited_for),
        cmocka_unit_test(test_a_leader_alone_answers_no_linearizable_read),
        cmocka_unit_test(test_an_election_ends_the_wait_of_who_asked_the_dead),
        cmocka_unit_test(test_no_majority_says_so),
        cmocka_unit_test(test_stop_and_delete),
        cmocka_unit_test(test_unknown_needs_everybody),
        cmocka_unit_test(test_unknown_needs_one_that_can_know),
        cmocka_unit_test(test_unknown_needs_the_hosts_of_before),
        cmocka_unit_test(test_a_deleted_job_stays_deleted),
        cmocka_unit_test(test_restart_keeps_what_was_acknowledged),
        cmocka_unit_test(test_the_mesh_grows_as_nodes_join),
        cmocka_unit_test(test_a_lost_majority_is_known_everywhere),
        cmocka_unit_test(test_every_node_serves_and_changes_the_mesh),
        cmocka_unit_test(test_changes_find_the_mesh_after_it_has_moved),
        cmocka_unit_test(test_a_long_mesh_log_is_cut_and_installed),
        cmocka_unit_test(test_a_lost_guardian_is_replaced),
        cmocka_unit_test(test_an_old_configuration_does_not_come_back_to_life),
        cmocka_unit_test(test_a_replica_that_missed_the_deletion_learns_of_it),
        cmocka_unit_test(test_two_nodes),
        cmocka_unit_test(test_a_job_of_one_node_grows),
        cmocka_unit_test(test_a_large_bundle_is_fetched_first),
        cmocka_unit_test(test_scripts_run_and_finish),
        cmocka_unit_test(test_a_script_survives_its_leader),
        cmocka_unit_test(test_who_starts_anew_is_quiet),
        cmocka_unit_test(test_gone_is_said_by_those_who_know),
        cmocka_unit_test(test_a_leader_without_links_loses_its_office),
        cmocka_unit_test(test_a_job_without_guardians_holds_no_slots),
        cmocka_unit_test(test_a_full_node_takes_no_more_jobs),
        cmocka_unit_test(test_the_book_of_requests_is_bounded),
        cmocka_unit_test(test_a_token_that_is_too_long_is_told_as_such),
        cmocka_unit_test(test_a_replica_that_differs_stops),
        cmocka_unit_test(test_a_replica_that_differs_is_rebuilt),
        cmocka_unit_test(test_quiet_meshes_are_cheap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
