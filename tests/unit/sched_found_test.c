/* Foundings that find no majority (PROTOCOLS 2.3, sched/node/sched_settle.c): a holder completes them, or they are
 * refused for good; and ids that are gone stay gone. */
#include "shoal/sched_look.h"
#include "shoal/sched_ticket.h"
#include "sched_net.h"

#include "sched/node/sched_wire.h"

#include "shoal/banned.h"

static uint64_t submit_large(struct net *net, unsigned at, unsigned number, struct shoal_view ticket)
{
    static uint8_t spec[SHOAL_JOB_SPEC_BYTES_MAX];
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_SUBMIT,
                                           .spec_hash = net_spec_hash(number),
                                           .ticket = ticket };

    request.spec = shoal_view_of(spec, net_spec(number, spec, sizeof(spec)));
    request.bundle_hash = net_spec_hash(number);
    request.bundle_hash.bytes[9] = 1;
    return net_request(net, at, &request);
}

static bool founded(struct net *net, unsigned at, struct shoal_job_id job)
{
    struct shoal_sched_group_status status;

    return net->nodes[at].up && shoal_sched_group_find(net->nodes[at].sched, job, &status) && status.founded;
}

static struct net_reply *get(struct net *net, unsigned at, struct shoal_job_id job)
{
    return net_wait(net, net_ask(net, at, SHOAL_SCHED_GET, job, true), 5 * NET_S);
}

static uint64_t term_of(struct net *net, struct shoal_job_id job)
{
    struct shoal_sched_group_status status;
    unsigned leader = net_leader(net, job);

    return leader < NET_NODES_MAX && shoal_sched_group_find(net->nodes[leader].sched, job, &status) ? status.term : 0;
}

/* Two of three cannot have the bundle: their no is not counted, and the issuer cannot talk them into it by its log. */
static void test_a_no_is_not_counted_and_the_answer_is_open(void **state)
{
    struct net *net = net_create(60, 3, true);
    struct net_reply *reply;

    (void)state;
    net->blobs_fail = 6;
    reply = net_wait(net, submit_large(net, 0, 1, (struct shoal_view){ 0 }), 40 * NET_S);
    assert_int_equal(reply->err, SHOAL_ERR_UNREACHABLE);
    assert_non_null(strstr(reply->text, "try again with the ticket"));
    assert_true(reply->ticket.len > 0);
    net_run(net, 25 * NET_S);
    for (unsigned i = 0; i < 3; i++)
        assert_false(founded(net, i, reply->job));
    assert_int_equal(get(net, 0, reply->job)->err, SHOAL_ERR_UNREACHABLE); /* until it is settled */
    net->blobs_fail = 0;
    reply = net_wait(net, submit_large(net, 1, 1, shoal_buf_view(&reply->ticket)), 5 * NET_S);
    assert_int_equal(reply->err, SHOAL_OK);
    net_destroy(net);
}

/* After 30 s the holder, alone with two that have said no, completes it: they take the record from its log. */
static void test_a_holder_completes_it(void **state)
{
    struct net *net = net_create(61, 3, true);
    struct net_reply *reply;

    (void)state;
    net->blobs_fail = 6;
    reply = net_wait(net, submit_large(net, 0, 1, (struct shoal_view){ 0 }), 40 * NET_S);
    assert_int_equal(reply->err, SHOAL_ERR_UNREACHABLE);
    net_run(net, 40 * NET_S);
    for (unsigned i = 0; i < 3; i++) {
        assert_true(founded(net, i, reply->job));
        assert_int_equal(get(net, i, reply->job)->err, SHOAL_OK);
    }
    assert_true(term_of(net, reply->job) >= 2);
    net_destroy(net);
}

/* F4. Its issuer starts anew, and no client asks again: as a holder it offers the record to the others, who can have the bundle
 * now. Nobody waits for the 30 s after which the group settles it. */
static void test_a_holder_goes_on_offering_it(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 10; seed++) {
        struct net *net = net_create(161 + seed, 3, true);
        uint64_t request;
        unsigned count = 0;

        net->blobs_fail = 6;
        request = submit_large(net, 0, 1, (struct shoal_view){ 0 });
        net_run(net, NET_S);
        assert_int_equal(net_reply_find(net, request)->err, SHOAL_ERR_UNREACHABLE); /* the outcome is open */
        net_crash(net, 0);
        net->blobs_fail = 0;
        net_run(net, 3 * NET_S);
        net_start(net, 0);
        net_run(net, 15 * NET_S);
        for (size_t g = 0; g < net->nodes[1].disk_count; g++)
            count += net->nodes[1].disk[g].used && !shoal_job_id_is_mesh(net->nodes[1].disk[g].id) &&
                     founded(net, 1, net->nodes[1].disk[g].id);
        assert_int_equal(count, 1);
        net_destroy(net);
    }
}

/* A node that the ticket does not name. */
static unsigned outsider(struct net *net, struct shoal_view bytes)
{
    struct shoal_sched_ticket ticket;

    assert_int_equal(shoal_sched_ticket_decode(bytes, &ticket), SHOAL_OK);
    for (unsigned i = 0; i < net->count; i++) {
        bool named = false;

        for (unsigned g = 0; g < ticket.guardian_count; g++)
            named = named || shoal_node_id_equal(ticket.guardians[g].node, net->nodes[i].id);
        if (!named)
            return i;
    }
    fail_msg("all nodes are named");
    return 0;
}

/* The only holder is lost: the two others are a majority without a record. It comes back, and finds it refused. */
static void test_without_a_holder_it_is_refused(void **state)
{
    struct net *net = net_create(62, 5, true);
    struct net_reply *reply, *again;
    struct shoal_job_id job;

    (void)state;
    net->blobs_fail = 30;
    reply = net_wait(net, submit_large(net, 0, 1, (struct shoal_view){ 0 }), 40 * NET_S);
    assert_int_equal(reply->err, SHOAL_ERR_UNREACHABLE);
    job = reply->job;
    net_crash(net, 0);
    net_run(net, 20 * NET_S);
    again = net_wait(
        net, submit_large(net, outsider(net, shoal_buf_view(&reply->ticket)), 1, shoal_buf_view(&reply->ticket)),
        40 * NET_S);
    assert_int_equal(again->err, SHOAL_ERR_UNREACHABLE); /* still open: 503 with the ticket */
    assert_true(again->ticket.len > 0);
    net_run(net, 30 * NET_S);
    net->blobs_fail = 0;
    net_start(net, 0);
    net_run(net, 20 * NET_S);
    for (unsigned i = 0; i < 5; i++) {
        struct shoal_sched_group_status status;

        assert_false(shoal_sched_group_find(net->nodes[i].sched, job, &status));
        assert_int_equal(get(net, i, job)->err, SHOAL_ERR_NOT_FOUND);
        again = net_wait(net, submit_large(net, i, 1, shoal_buf_view(&reply->ticket)), 5 * NET_S);
        if (again->err != SHOAL_ERR_STALE)
            fail_msg("node %u: %s: %s", i, shoal_err_name(again->err), again->text);
    }
    net_destroy(net);
}

/* Whatever falls over meanwhile: founded everywhere or nowhere, and an acknowledged one is founded. */
static void test_it_is_settled_one_way(void **state)
{
    unsigned is_founded = 0, is_refused = 0;

    (void)state;
    for (uint64_t seed = 1000; seed < 1120; seed++) {
        struct net *net = net_create(seed, 5, true);
        struct shoal_rand rand;
        struct net_reply *reply, *get_reply;
        uint64_t id;
        unsigned holders = 0;

        shoal_rand_init(&rand, seed);
        net->blobs_fail = (unsigned)shoal_rand_below(&rand, 32) & ~1u;
        net->nodes[0].flush_ns = 5 * NET_MS;
        id = submit_large(net, 0, 1, (struct shoal_view){ 0 });
        net_run(net, shoal_rand_below(&rand, 400) * NET_MS);
        for (unsigned n = 0; n < 12; n++) {
            unsigned at = (unsigned)shoal_rand_below(&rand, 5);

            if (net->nodes[at].up && shoal_rand_below(&rand, 2) == 0)
                net_crash(net, at);
            else if (!net->nodes[at].up)
                net_start(net, at);
            net_run(net, shoal_rand_below(&rand, 8000) * NET_MS);
        }
        for (unsigned i = 0; i < 5; i++) {
            if (!net->nodes[i].up)
                net_start(net, i);
        }
        net_run(net, 90 * NET_S);
        reply = net_reply_find(net, id);
        for (unsigned i = 0; i < 5; i++)
            holders += founded(net, i, reply->job) ? 1 : 0;
        if (reply->count == 1 && reply->err == SHOAL_OK && holders < 3)
            fail_msg("seed %llu: acknowledged, but %u hold it", (unsigned long long)seed, holders);
        if (reply->count == 1 && holders > 0 && holders < 3) {
            net_print_group(net, reply->job);
            fail_msg("seed %llu: %u hold it", (unsigned long long)seed, holders);
        }
        for (unsigned i = 0; i < 5 && reply->count == 1; i++) {
            get_reply = get(net, i, reply->job);
            if (get_reply->err != (holders > 0 ? SHOAL_OK : SHOAL_ERR_NOT_FOUND)) {
                net_print_group(net, reply->job);
                fail_msg("seed %llu, node %u, %u hold it: %s: %s", (unsigned long long)seed, i, holders,
                         shoal_err_name(get_reply->err), get_reply->text);
            }
        }
        is_founded += holders > 0 ? 1 : 0;
        is_refused += holders == 0 ? 1 : 0;
        net_destroy(net);
    }
    assert_true(is_founded > 5 && is_refused > 5);
}

/* Gone ids are remembered, the oldest forgotten first; then an id that is not newer than the newest forgotten is
 * refused, also one that this node has never seen. */
static void test_ids_that_are_gone_stay_gone(void **state)
{
    struct net *net = net_create(63, 1, true);
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_TICKET, .spec_hash = net_spec_hash(9) };
    struct net_reply *unused = net_wait(net, net_request(net, 0, &request), NET_S);
    struct net_reply *first = NULL, *reply;

    (void)state;
    net_run(net, 10 * NET_MS);
    for (unsigned i = 0; i < SHOAL_SCHED_GONE_MAX + 2; i++) {
        struct shoal_view ticket = { 0 };

        request.spec_hash = net_spec_hash(i);
        reply = net_wait(net, net_request(net, 0, &request), NET_S);
        if (i == 0)
            first = reply;
        ticket = shoal_buf_view(&reply->ticket);
        reply = net_wait(net, net_submit(net, 0, i, ticket), 2 * NET_S);
        assert_int_equal(reply->err, SHOAL_OK);
        assert_int_equal(net_wait(net, net_ask(net, 0, SHOAL_SCHED_DELETE, reply->job, true), 2 * NET_S)->err,
                         SHOAL_OK);
        if (i % 64 == 63) {
            net_run(net, NET_S);
            if (i == SHOAL_SCHED_GONE_MAX - 1) {
                reply = net_wait(net, net_submit(net, 0, 0, shoal_buf_view(&first->ticket)), 2 * NET_S);
                assert_int_equal(reply->err, SHOAL_ERR_STALE); /* remembered */
                reply = net_wait(net, net_submit(net, 0, 9, shoal_buf_view(&unused->ticket)), 2 * NET_S);
                assert_int_equal(reply->err, SHOAL_OK); /* nothing is forgotten yet: an old ticket is good */
                unused = NULL;
            }
        }
    }
    net_run(net, 2 * NET_S);
    reply = net_wait(net, net_submit(net, 0, 0, shoal_buf_view(&first->ticket)), 2 * NET_S);
    assert_int_equal(reply->err, SHOAL_ERR_STALE); /* forgotten, and older than the newest forgotten */
    net_crash(net, 0);
    net_start(net, 0);
    net_run(net, NET_S);
    reply = net_wait(net, net_submit(net, 0, 0, shoal_buf_view(&first->ticket)), 2 * NET_S);
    assert_int_equal(reply->err, SHOAL_ERR_STALE);
    net_destroy(net);
}

/* The same, with two jobs of a day when the clock was a year ahead: forgotten, they bar nothing, neither now nor after a
 * restart; remembered, they stay gone. A removal writes what it adds, not all that is remembered. */
static void test_a_clock_that_was_ahead_bars_nothing(void **state)
{
    const struct shoal_job_id kept = { { 255, 255, 255, 255, 255, 255, 255, 255, 255, 255 } };
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_TICKET };
    struct net *net = net_create(70, 1, true);
    struct net_reply *ahead = NULL, *reply;
    const struct disk_group *disk;
    size_t longest = 0;

    (void)state;
    for (unsigned i = 0; i < SHOAL_SCHED_GONE_MAX + 40; i++) {
        net->nodes[0].wall_ms = i < 2 ? 365ll * 24 * 3600 * 1000 : 0;
        request.spec_hash = net_spec_hash(i);
        reply = net_wait(net, net_request(net, 0, &request), NET_S);
        if (i == 0)
            ahead = reply;
        reply = net_wait(net, net_submit(net, 0, i, shoal_buf_view(&reply->ticket)), 2 * NET_S);
        if (reply->err != SHOAL_OK)
            fail_msg("submit %u: %s: %s", i, shoal_err_name(reply->err), reply->text);
        assert_int_equal(net_wait(net, net_ask(net, 0, SHOAL_SCHED_DELETE, reply->job, true), 2 * NET_S)->err,
                         SHOAL_OK);
        if (i % 64 == 63)
            net_run(net, NET_S);
    }
    net_run(net, 2 * NET_S);
    disk = disk_find(&net->nodes[0], kept, false);
    assert_non_null(disk);
    for (size_t i = 0; i < disk->entry_count; i++)
        longest = disk->entries[i].bytes.len > longest ? disk->entries[i].bytes.len : longest;
    assert_true(disk->entry_count > 0 && disk->entry_count <= 256 && longest < 8192);
    for (unsigned life = 0; life < 2; life++) {
        reply = net_wait(net, net_submit(net, 0, 0, shoal_buf_view(&ahead->ticket)), 2 * NET_S);
        assert_int_equal(reply->err, SHOAL_ERR_STALE);
        reply = net_wait(net, net_submit(net, 0, 9000 + life, (struct shoal_view){ 0 }), 2 * NET_S);
        if (reply->err != SHOAL_OK)
            fail_msg("life %u: %s: %s", life, shoal_err_name(reply->err), reply->text);
        net_crash(net, 0);
        net_start(net, 0);
        net_run(net, NET_S);
    }
    net_destroy(net);
}

static unsigned shelves_on_disk(struct net *net, unsigned at)
{
    unsigned count = 0;

    for (size_t i = 0; i < net->nodes[at].disk_count; i++) {
        const struct disk_group *g = &net->nodes[at].disk[i];

        count += g->used && g->has_snapshot && g->id.bytes[0] == 255 && g->id.bytes[7] == 255 && g->id.bytes[8] < 255;
    }
    return count;
}

/* T8: beyond the last shelf the ids that were deleted first are forgotten, and the horizon bars what is as old. */
static void test_the_oldest_shelf_makes_room(void **state)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_TICKET, .spec_hash = net_spec_hash(0) };
    struct net *net = net_create(76, 1, true);
    struct net_reply *first, *unused, *reply;

    (void)state;
    net->gone_max = 16; /* a shelf takes four of them */
    net_crash(net, 0);
    net_start(net, 0);
    net_run(net, NET_S);
    first = net_wait(net, net_request(net, 0, &request), NET_S);
    request.spec_hash = net_spec_hash(9999);
    unused = net_wait(net, net_request(net, 0, &request), NET_S);
    for (unsigned i = 0; i < 4 * SHOAL_SCHED_SHELVES_MAX + 60; i++) {
        struct shoal_view ticket = i == 0 ? shoal_buf_view(&first->ticket) : (struct shoal_view){ 0 };

        reply = net_wait(net, net_submit(net, 0, i, ticket), 2 * NET_S);
        assert_int_equal(reply->err, SHOAL_OK);
        assert_int_equal(net_wait(net, net_ask(net, 0, SHOAL_SCHED_DELETE, reply->job, true), 2 * NET_S)->err,
                         SHOAL_OK);
        net_run(net, 10 * NET_MS); /* what is not durable as gone cannot leave so small a table for a shelf */
        if (i != 2 * SHOAL_SCHED_SHELVES_MAX)
            continue;
        net_crash(net, 0);
        net_start(net, 0);
        net_run(net, NET_S);
        reply = net_wait(net, net_submit(net, 0, 0, shoal_buf_view(&first->ticket)), 2 * NET_S);
        assert_int_equal(reply->err, SHOAL_ERR_STALE); /* remembered */
        reply = net_wait(net, net_submit(net, 0, 9999, shoal_buf_view(&unused->ticket)), 2 * NET_S);
        assert_int_equal(reply->err, SHOAL_OK); /* nothing is forgotten yet */
    }
    for (unsigned life = 0; life < 2; life++) {
        reply = net_wait(net, net_submit(net, 0, 0, shoal_buf_view(&first->ticket)), 2 * NET_S);
        assert_int_equal(reply->err, SHOAL_ERR_STALE); /* forgotten, and older than the newest forgotten */
        assert_int_equal(shelves_on_disk(net, 0), SHOAL_SCHED_SHELVES_MAX);
        net_crash(net, 0);
        net_start(net, 0);
        net_run(net, NET_S);
    }
    net_destroy(net);
}

#define AWAY_JOBS 120u

/* T7: a guardian is away while more jobs are deleted than the table of removed ids holds, and gossip has forgotten them: when it
 * is back, the others still tell it of each, also after a restart of their own. Nothing bars other jobs of that time. */
static void test_who_was_away_hears_of_every_deletion(void **state)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_TICKET, .spec_hash = net_spec_hash(9) };
    struct net *net = net_create(75, 3, true);
    struct shoal_job_id jobs[AWAY_JOBS];
    uint8_t bytes[SHOAL_SCHED_ROW_BYTES_MAX];
    struct shoal_sched_row row;
    struct net_reply *unused, *reply;
    unsigned held = 0;

    (void)state;
    net->gone_max = 16;
    for (unsigned i = 0; i < 3; i++) {
        net_crash(net, i); /* with that option */
        net_start(net, i);
    }
    net_run(net, 5 * NET_S);
    unused = net_wait(net, net_request(net, 0, &request), NET_S);
    assert_int_equal(unused->err, SHOAL_OK);
    for (unsigned i = 0; i < AWAY_JOBS; i++) {
        reply = net_wait(net, net_submit(net, 0, i, (struct shoal_view){ 0 }), 5 * NET_S);
        assert_int_equal(reply->err, SHOAL_OK);
        jobs[i] = reply->job;
    }
    net_run(net, 20 * NET_S); /* whoever did not get them at once has them */
    for (unsigned i = 0; i < AWAY_JOBS; i++)
        held += shoal_sched_row_find(net->nodes[2].sched, jobs[i], bytes, &row);
    assert_int_equal(held, AWAY_JOBS);
    net_crash(net, 2);
    for (unsigned i = 0; i < AWAY_JOBS; i++)
        assert_int_equal(net_wait(net, net_ask(net, 0, SHOAL_SCHED_DELETE, jobs[i], true), 20 * NET_S)->err, SHOAL_OK);
    net_run(net, 90 * NET_S);
    for (unsigned i = 0; i < 2; i++) {
        assert_true(shelves_on_disk(net, i) >= (AWAY_JOBS - 16) / 4);
        net_crash(net, i);
        net_start(net, i);
    }
    net->summary_count = 0;
    net_start(net, 2);
    net_run(net, 120 * NET_S);
    for (unsigned i = 0; i < AWAY_JOBS; i++) {
        if (shoal_sched_row_find(net->nodes[2].sched, jobs[i], bytes, &row) || net_row(net, 2, jobs[i]) == NULL ||
            net_row(net, 2, jobs[i])->what != SHOAL_SCHED_INDEX_DELETED)
            fail_msg("job %u is still there", i);
        reply = net_wait(net, net_ask(net, 2, SHOAL_SCHED_GET, jobs[i], true), 20 * NET_S);
        assert_int_equal(reply->err, SHOAL_ERR_NOT_FOUND);
    }
    reply = net_wait(net, net_submit(net, 2, 9, shoal_buf_view(&unused->ticket)), 5 * NET_S);
    assert_int_equal(reply->err, SHOAL_OK);
    net_destroy(net);
}

/* F4: two of the ticket's guardians are lost and replaced, then the third. A retry, anywhere, finds the job. */
static void test_a_retry_after_the_guardians_were_replaced(void **state)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_TICKET, .spec_hash = net_spec_hash(1) };
    struct net *net = net_create(71, 7, true);
    struct shoal_sched_ticket ticket;
    struct net_reply *reply, *again;

    (void)state;
    reply = net_wait(net, net_request(net, 0, &request), NET_S);
    assert_int_equal(shoal_sched_ticket_decode(shoal_buf_view(&reply->ticket), &ticket), SHOAL_OK);
    assert_int_equal(net_wait(net, net_submit(net, 0, 1, shoal_buf_view(&reply->ticket)), 2 * NET_S)->err, SHOAL_OK);
    for (unsigned g = 3; g-- > 0;) {
        unsigned at = net_find(net, ticket.guardians[g].node);

        net_run(net, 5 * NET_S);
        net_crash(net, at);
        net_run(net, 100 * NET_S);
        if (g == 2)
            continue;
        for (unsigned i = 0; i < 7; i++) {
            if (!net->nodes[i].up)
                continue;
            again = net_wait(net, net_submit(net, i, 1, shoal_buf_view(&reply->ticket)), 40 * NET_S);
            if (again->err != SHOAL_OK)
                fail_msg("%u guardians left, node %u: %s: %s", g, i, shoal_err_name(again->err), again->text);
        }
    }
    net_destroy(net);
}

/* Four of five others share a failure domain: of each job's three guardians one is the fifth. */
static void test_guardians_are_of_different_domains(void **state)
{
    struct net *net = net_create(69, 6, true);

    (void)state;
    for (unsigned i = 1; i < 5; i++) {
        (void)snprintf(net->nodes[i].domain, sizeof(net->nodes[i].domain), "rack");
        net_tell_all(net, i, SHOAL_SCHED_NODE_ALIVE);
    }
    net_run(net, NET_S);
    for (unsigned number = 1; number <= 8; number++) {
        struct net_reply *reply =
            net_wait(net, net_submit(net, 0, number, (struct shoal_view){ 0 }), 5 * NET_S);
        struct shoal_sched_ticket ticket;
        bool fifth = false;

        assert_int_equal(reply->err, SHOAL_OK);
        assert_int_equal(shoal_sched_ticket_decode(shoal_buf_view(&reply->ticket), &ticket), SHOAL_OK);
        assert_int_equal(ticket.guardian_count, 3);
        for (unsigned g = 0; g < ticket.guardian_count; g++)
            fifth = fifth || shoal_node_id_equal(ticket.guardians[g].node, net->nodes[5].id);
        assert_true(fifth);
    }
    net_destroy(net);
}

/* F2: one of two guardians is no majority. */
static void test_one_of_two_guardians_is_no_majority(void **state)
{
    struct net *net = net_create(72, 2, true);
    struct net_reply *reply;

    (void)state;
    net->cut[0][1] = net->cut[1][0] = true;
    reply = net_wait(net, net_submit(net, 0, 1, (struct shoal_view){ 0 }), 40 * NET_S);
    assert_int_equal(reply->err, SHOAL_ERR_UNREACHABLE);
    net_destroy(net);
}

/* As its issuer, node 0. */
static void sign_ticket(struct net *net, struct shoal_sched_ticket *ticket)
{
    uint8_t body[1024];
    struct shoal_writer w = shoal_writer_init(body, sizeof(body));

    assert_true(sched_ticket_encode_body(ticket, &w));
    net_signature(net->nodes[0].key, shoal_writer_view(&w), ticket->signature);
}

/* The answer that node `at` gives at once to node 0, which offers it that record with job `number`'s specification;
 * FOUND_ANSWERS: nothing yet. */
static unsigned offered(struct net *net, unsigned at, const struct shoal_sched_ticket *ticket, unsigned number)
{
    static uint8_t spec[SHOAL_JOB_SPEC_BYTES_MAX], bytes[SHOAL_ENTRY_BYTES_MAX],
        frame_bytes[SHOAL_ENTRY_BYTES_MAX + 64];
    const struct founding_record record = { .ticket = *ticket,
                                            .generation = 1,
                                            .spec = shoal_view_of(spec, net_spec(number, spec, sizeof(spec))) };
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    struct shoal_writer out = shoal_writer_init(frame_bytes, sizeof(frame_bytes));
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_FRAME };
    struct frame frame = { .kind = FRAME_FOUND };

    assert_true(sched_record_encode(&record, &w));
    frame.u.found.record = shoal_writer_view(&w);
    assert_true(sched_frame_encode(&frame, &out));
    event.u.frame.from = net->nodes[0].id;
    event.u.frame.bytes = shoal_writer_view(&out);
    assert_int_equal(shoal_sched_step(net->nodes[at].sched, &event, net->now, net->actions), SHOAL_OK);
    for (uint32_t i = 0; i < net->actions->count; i++) {
        const struct shoal_sched_action *action = &net->actions->list[i];

        if (action->kind == SHOAL_SCHED_SEND && sched_frame_decode(action->u.send.bytes, &frame) == SHOAL_OK &&
            frame.kind == FRAME_FOUND_REPLY)
            return frame.u.found_reply.answer;
    }
    return FOUND_ANSWERS;
}

static struct net_reply *ask_ticket(struct net *net, struct shoal_sched_ticket *ticket)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_TICKET, .spec_hash = net_spec_hash(1) };
    struct net_reply *reply = net_wait(net, net_request(net, 0, &request), NET_S);

    assert_int_equal(shoal_sched_ticket_decode(shoal_buf_view(&reply->ticket), ticket), SHOAL_OK);
    return reply;
}

/* F1: one id, one body. A record with another one is not stored, and not said to be. */
static void test_another_body_for_an_id_is_not_stored(void **state)
{
    struct net *net = net_create(80, 3, true);
    struct shoal_sched_ticket ticket;
    struct net_reply *reply = ask_ticket(net, &ticket);

    (void)state;
    assert_int_equal(net_wait(net, net_submit(net, 0, 1, shoal_buf_view(&reply->ticket)), 2 * NET_S)->err, SHOAL_OK);
    net_run(net, NET_S);
    assert_int_equal(offered(net, 1, &ticket, 1), FOUND_STORED);
    ticket.spec_hash = net_spec_hash(2);
    assert_int_equal(offered(net, 1, &ticket, 2), FOUND_OTHER);
    net_destroy(net);
}

/* PROTOCOLS 1: a guardian is a node with the store that the ticket names. With another one it may have voted, and
 * forgotten it. */
static void test_another_store_is_no_guardian(void **state)
{
    struct net *net = net_create(81, 3, true);
    struct shoal_sched_ticket ticket;

    (void)state;
    (void)ask_ticket(net, &ticket);
    for (unsigned i = 0; i < ticket.guardian_count; i++)
        if (shoal_node_id_equal(ticket.guardians[i].node, net->nodes[1].id))
            ticket.guardians[i].store.bytes[3] ^= 1;
    sign_ticket(net, &ticket);
    assert_int_equal(offered(net, 1, &ticket, 1), FOUND_REFUSED);
    assert_false(founded(net, 1, ticket.job));
    assert_int_equal(offered(net, 2, &ticket, 1), FOUND_ANSWERS); /* its own store is the right one: being flushed */
    net_destroy(net);
}

static void fill_store(struct net *net, unsigned at, uint8_t percent)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_HEALTH };

    event.u.health.store_percent = percent;
    net_step(net, at, &event);
}

/* A group that runs must be able to commit: above its share a node founds nothing more, whoever asks. */
static void test_a_full_store_founds_nothing(void **state)
{
    struct net *net = net_create(64, 3, true);
    struct net_reply *reply;
    struct shoal_job_id job;

    (void)state;
    net->delay_jitter_ns = 0; /* a lane keeps its order: the record comes before the appends */
    fill_store(net, 0, SHOAL_STORE_SUBMIT_PERCENT - 1);
    reply = net_wait(net, net_submit(net, 0, 1, (struct shoal_view){ 0 }), 2 * NET_S);
    assert_int_equal(reply->err, SHOAL_OK);
    job = reply->job;
    fill_store(net, 0, SHOAL_STORE_SUBMIT_PERCENT);
    reply = net_wait(net, net_submit(net, 0, 2, (struct shoal_view){ 0 }), 2 * NET_S);
    assert_int_equal(reply->err, SHOAL_ERR_NO_SPACE);
    assert_non_null(strstr(reply->text, "delete finished jobs"));
    reply = net_wait(net, net_submit(net, 1, 3, (struct shoal_view){ 0 }), 2 * NET_S);
    assert_int_equal(reply->err, SHOAL_OK); /* two others are a majority */
    assert_false(founded(net, 0, reply->job));
    assert_int_equal(net_wait(net, net_ask(net, 2, SHOAL_SCHED_STOP, job, true), 4 * NET_S)->err, SHOAL_OK);
    fill_store(net, 2, 99);
    reply = net_wait(net, net_submit(net, 1, 4, (struct shoal_view){ 0 }), 2 * NET_S);
    assert_int_equal(reply->err, SHOAL_ERR_UNREACHABLE);
    assert_non_null(strstr(reply->text, "delete finished jobs"));
    fill_store(net, 0, 10);
    reply = net_wait(net, net_submit(net, 0, 5, (struct shoal_view){ 0 }), 2 * NET_S);
    assert_int_equal(reply->err, SHOAL_OK);
    net_destroy(net);
}

/* F1: two conductors of one ticket, whose wall clocks are hours apart, each talk to a part of the guardians. All write
 * the same record. */
static void test_two_conductors_write_one_record(void **state)
{
    struct net *net = net_create(65, 5, true);
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_TICKET, .spec_hash = net_spec_hash(1) };
    struct shoal_sched_ticket ticket;
    const struct disk_group *held[3];
    struct net_reply *reply;
    unsigned other;

    (void)state;
    for (unsigned i = 0; i < 5; i++)
        net->nodes[i].wall_ms = (int64_t)i * 3600 * 1000 - 7200 * 1000;
    reply = net_wait(net, net_request(net, 0, &request), NET_S);
    assert_int_equal(shoal_sched_ticket_decode(shoal_buf_view(&reply->ticket), &ticket), SHOAL_OK);
    other = net_find(net, ticket.guardians[2].node);
    for (unsigned i = 0; i < 5; i++)
        net->cut[i][other] = net->cut[other][i] = i != other; /* alone, it stores what it conducts itself */
    (void)net_submit(net, other, 1, shoal_buf_view(&reply->ticket));
    assert_int_equal(net_wait(net, net_submit(net, 0, 1, shoal_buf_view(&reply->ticket)), 5 * NET_S)->err, SHOAL_OK);
    for (unsigned g = 0; g < 3; g++) {
        held[g] = disk_find(&net->nodes[net_find(net, ticket.guardians[g].node)], reply->job, false);
        assert_true(held[g] != NULL && held[g]->entry_count >= 2);
        assert_true(shoal_view_equal(held[g]->entries[1].bytes, held[0]->entries[1].bytes));
    }
    net_destroy(net);
}

/* F4: a guardian is out of reach while its job is founded, and the leader is lost before it comes back. The one that holds
 * the job leads on with its vote; a restart in between takes nothing back. */
static void guardian_missed_it(uint64_t seed, unsigned restarts)
{
    struct net *net = net_create(seed, 3, true);
    struct net_reply *reply;

    for (unsigned i = 0; i < 2; i++)
        net->cut[i][2] = net->cut[2][i] = true;
    reply = net_wait(net, net_submit(net, 0, 1, (struct shoal_view){ 0 }), 5 * NET_S);
    assert_int_equal(reply->err, SHOAL_OK);
    net_run(net, 20 * NET_S);
    net_crash(net, 0);
    net_run(net, 5 * NET_S);
    for (unsigned i = 0; i < 2; i++)
        net->cut[i][2] = net->cut[2][i] = false;
    for (unsigned i = 0; i < restarts; i++) {
        net_run(net, 300 * NET_MS);
        net_crash(net, 2);
        net_start(net, 2);
    }
    net_run(net, 20 * NET_S);
    assert_int_equal(get(net, 1, reply->job)->err, SHOAL_OK);
    assert_int_equal(get(net, 2, reply->job)->err, SHOAL_OK);
    assert_true(founded(net, 1, reply->job) && founded(net, 2, reply->job));
    net_destroy(net);
}

static void test_a_guardian_that_missed_the_founding_votes(void **state)
{
    (void)state;
    guardian_missed_it(66, 0);
    guardian_missed_it(67, 1);
    guardian_missed_it(68, 4);
}

/* W2, of such a guardian: what it has voted is there after a restart. */
static void test_the_vote_of_who_missed_it_is_kept(void **state)
{
    struct net *net = net_create(69, 3, true);
    struct shoal_sched_group_status status = { 0 };
    struct net_reply *reply;
    uint64_t term;

    (void)state;
    for (unsigned i = 0; i < 2; i++)
        net->cut[i][2] = net->cut[2][i] = true;
    reply = net_wait(net, net_submit(net, 0, 1, (struct shoal_view){ 0 }), 5 * NET_S);
    net_run(net, NET_S);
    net_crash(net, 0);
    net->cut[1][2] = net->cut[2][1] = false;
    while (status.term < 2 && net->now < 1100 * NET_S) {
        net_run(net, NET_MS / 4);
        (void)shoal_sched_group_find(net->nodes[2].sched, reply->job, &status);
    }
    term = status.term;
    assert_true(term >= 2 && !status.founded);
    net->cut[1][2] = true; /* nothing of the log comes with it */
    net_run(net, 20 * NET_MS);
    net_crash(net, 2);
    net_start(net, 2);
    assert_true(shoal_sched_group_find(net->nodes[2].sched, reply->job, &status) && status.term >= term);
    net_destroy(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_no_is_not_counted_and_the_answer_is_open),
        cmocka_unit_test(test_a_holder_completes_it),
        cmocka_unit_test(test_a_holder_goes_on_offering_it),
        cmocka_unit_test(test_without_a_holder_it_is_refused),
        cmocka_unit_test(test_it_is_settled_one_way),
        cmocka_unit_test(test_ids_that_are_gone_stay_gone),
        cmocka_unit_test(test_a_clock_that_was_ahead_bars_nothing),
        cmocka_unit_test(test_the_oldest_shelf_makes_room),
        cmocka_unit_test(test_who_was_away_hears_of_every_deletion),
        cmocka_unit_test(test_a_retry_after_the_guardians_were_replaced),
        cmocka_unit_test(test_guardians_are_of_different_domains),
        cmocka_unit_test(test_one_of_two_guardians_is_no_majority),
        cmocka_unit_test(test_another_body_for_an_id_is_not_stored),
        cmocka_unit_test(test_another_store_is_no_guardian),
        cmocka_unit_test(test_a_full_store_founds_nothing),
        cmocka_unit_test(test_two_conductors_write_one_record),
        cmocka_unit_test(test_a_guardian_that_missed_the_founding_votes),
        cmocka_unit_test(test_the_vote_of_who_missed_it_is_kept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
