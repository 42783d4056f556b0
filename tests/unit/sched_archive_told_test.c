/* The words of hosts of an archived job, and their time: nothing before it is durable, and never less than they know. */
#include "shoal/sched_look.h"
#include "sched_net.h"

#include "sched/node/sched_wire.h"

#include "shoal/banned.h"

static struct net *new_net(uint64_t seed)
{
    struct net *net = net_create(seed, 3, false);

    net->archive_ns = 5 * NET_S;
    for (unsigned i = 0; i < 3; i++) {
        net_crash(net, i); /* with that option */
        net_start(net, i);
    }
    for (unsigned i = 0; i < 3; i++)
        net_join(net, i);
    return net;
}

/* A job that has just been stopped. */
static struct shoal_job_id ended_job(struct net *net)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_TICKET, .spec_hash = net_spec_hash(1) };
    struct net_reply *reply = net_wait(net, net_request(net, 0, &request), NET_S);
    struct shoal_buf ticket = { 0 };

    assert_int_equal(shoal_buf_append(&ticket, reply->ticket.bytes, reply->ticket.len), SHOAL_OK);
    reply = net_wait(net, net_submit(net, 0, 1, shoal_buf_view(&ticket)), 2 * NET_S);
    assert_int_equal(reply->err, SHOAL_OK);
    shoal_buf_deinit(&ticket);
    assert_int_equal(net_wait(net, net_ask(net, 0, SHOAL_SCHED_STOP, reply->job, true), 4 * NET_S)->err, SHOAL_OK);
    return reply->job;
}

/* How far it is here: 0 nowhere, 1 a record, 2 a final one. */
static unsigned record_at(const struct net *net, unsigned at, struct shoal_job_id job)
{
    struct shoal_sched_archived archived;

    if (!shoal_sched_archive_find(net->nodes[at].sched, job, &archived))
        return 0;
    return archived.final ? 2 : 1;
}

/* The record of it that has been flushed there, and its bytes. */
static bool record_flushed(const struct net *net, unsigned at, struct shoal_job_id job, struct archive_record *record,
                           struct shoal_view *bytes)
{
    for (size_t i = 0; i < net->nodes[at].disk_count; i++) {
        const struct disk_group *g = &net->nodes[at].disk[i];
        size_t signed_len;
        bool final;

        if (g->used && g->has_snapshot && sched_kept_decode(g->snapshot.bytes, &final, bytes) == SHOAL_OK &&
            sched_archive_decode(*bytes, record, &signed_len) == SHOAL_OK && shoal_job_id_equal(record->job, job))
            return true;
    }
    return false;
}

static bool record_on_disk(const struct net *net, unsigned at, struct shoal_job_id job)
{
    struct archive_record record;
    struct shoal_view bytes;

    return record_flushed(net, at, job, &record, &bytes);
}

static void wait_final(struct net *net, struct shoal_job_id job)
{
    uint64_t end = net->now + 60 * NET_S;

    while (net->now < end && (record_at(net, 0, job) < 2 || record_at(net, 1, job) < 2 || record_at(net, 2, job) < 2))
        net_run(net, 100 * NET_MS);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(record_at(net, i, job), 2);
}

/* A2: the disk of one holder is slow: until its record is flushed, no host is told that the record is the final one. */
static void test_archived_waits_for_the_slowest_holder(void **state)
{
    struct net *net = new_net(501);
    struct shoal_job_id job = ended_job(net);
    unsigned slow = (net_leader(net, job) + 1) % 3;
    uint64_t end = net->now + 60 * NET_S;

    (void)state;
    net->nodes[slow].flush_ns = 300 * NET_MS;
    while (!record_on_disk(net, slow, job) && net->now < end) {
        for (unsigned i = 0; i < 3; i++)
            assert_true(record_at(net, i, job) < 2);
        net_run(net, NET_MS);
    }
    assert_true(record_on_disk(net, slow, job));
    wait_final(net, job);
    net_destroy(net);
}

/* The answer of node `at` when node `from` says that it has the job, or with `record` gives it; false: nothing. */
static bool asked(struct net *net, unsigned at, unsigned from, struct shoal_job_id job, struct shoal_view record,
                  struct frame *frame)
{
    uint8_t bytes[4096];
    struct shoal_writer out = shoal_writer_init(bytes, sizeof(bytes));
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_FRAME };

    *frame = (struct frame){ .kind = FRAME_ARCHIVE };
    frame->u.archive.job = job;
    frame->u.archive.word = record.len > 0 ? ARCHIVE_TAKE : ARCHIVE_HAVE;
    frame->u.archive.final = record.len > 0;
    frame->u.archive.record = record;
    assert_true(sched_frame_encode(frame, &out));
    event.u.frame.from = net->nodes[from].id;
    event.u.frame.bytes = shoal_writer_view(&out);
    assert_int_equal(shoal_sched_step(net->nodes[at].sched, &event, net->now, net->actions), SHOAL_OK);
    for (uint32_t i = 0; i < net->actions->count; i++) {
        const struct shoal_sched_action *action = &net->actions->list[i];

        if (action->kind == SHOAL_SCHED_SEND && sched_frame_decode(action->u.send.bytes, frame) == SHOAL_OK &&
            frame->kind == FRAME_ARCHIVE && frame->u.archive.word == ARCHIVE_STATE)
            return true;
    }
    return false;
}

/* T6: a host that has heard of a deletion, and not flushed it, would forget it in a crash: until then it does not say
 * that the job is deleted, else whoever asks forgets the record for good. */
static void test_a_deletion_is_told_when_it_is_durable(void **state)
{
    struct net *net = new_net(502);
    struct shoal_job_id job = ended_job(net);
    struct frame said;
    uint64_t end;

    (void)state;
    wait_final(net, job);
    net_run(net, NET_S);
    net->nodes[2].flush_ns = 400 * NET_MS;
    (void)net_ask(net, 0, SHOAL_SCHED_DELETE, job, true);
    end = net->now + 5 * NET_S;
    while (record_at(net, 2, job) != 0 && net->now < end)
        net_run(net, NET_MS);
    assert_int_equal(record_at(net, 2, job), 0); /* it has heard of it */
    assert_false(asked(net, 2, 1, job, (struct shoal_view){ 0 }, &said) && said.u.archive.deleted);
    net_run(net, 3 * NET_S);
    assert_true(asked(net, 2, 1, job, (struct shoal_view){ 0 }, &said));
    assert_true(said.u.archive.deleted);
    net_destroy(net);
}

/* A5: who was away while the job was deleted gives its record to a host that remembers the deletion: it is not taken, and
 * the answer is the deletion. */
static void test_the_record_of_a_deleted_job_is_not_taken(void **state)
{
    struct net *net = new_net(505);
    struct shoal_job_id job = ended_job(net);
    struct archive_record record;
    struct shoal_view bytes;
    struct shoal_buf kept = { 0 };
    struct frame said;

    (void)state;
    wait_final(net, job);
    net_run(net, NET_S);
    assert_true(record_flushed(net, 2, job, &record, &bytes));
    assert_int_equal(shoal_buf_append(&kept, bytes.bytes, bytes.len), SHOAL_OK);
    assert_int_equal(net_wait(net, net_ask(net, 0, SHOAL_SCHED_DELETE, job, true), 4 * NET_S)->err, SHOAL_OK);
    net_run(net, 3 * NET_S);
    assert_int_equal(record_at(net, 2, job), 0);
    assert_true(asked(net, 2, 1, job, shoal_buf_view(&kept), &said));
    assert_true(said.u.archive.deleted);
    assert_int_equal(record_at(net, 2, job), 0);
    shoal_buf_deinit(&kept);
    net_destroy(net);
}

/* A1: who holds another record of the job is given the own one once for each look, and not at each word that it says: two
 * such hosts would talk for ever. */
static void test_a_record_is_given_once_a_look(void **state)
{
    struct net *net = new_net(506);
    struct shoal_job_id job = ended_job(net);
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_FRAME };
    struct frame frame = { .kind = FRAME_ARCHIVE };
    uint8_t bytes[512];
    struct shoal_writer out = shoal_writer_init(bytes, sizeof(bytes));
    unsigned given = 0;

    (void)state;
    wait_final(net, job);
    net_run(net, NET_S);
    frame.u.archive.job = job;
    frame.u.archive.word = ARCHIVE_STATE;
    memset(frame.u.archive.hash.bytes, 7, sizeof(frame.u.archive.hash.bytes));
    assert_true(sched_frame_encode(&frame, &out));
    event.u.frame.from = net->nodes[1].id;
    event.u.frame.bytes = shoal_writer_view(&out);
    for (unsigned turn = 0; turn < 20; turn++) {
        assert_int_equal(shoal_sched_step(net->nodes[2].sched, &event, net->now, net->actions), SHOAL_OK);
        for (uint32_t i = 0; i < net->actions->count; i++) {
            const struct shoal_sched_action *action = &net->actions->list[i];

            given += action->kind == SHOAL_SCHED_SEND && sched_frame_decode(action->u.send.bytes, &frame) == SHOAL_OK &&
                     frame.kind == FRAME_ARCHIVE && frame.u.archive.word == ARCHIVE_TAKE;
        }
    }
    assert_int_equal(given, 1);
    net_destroy(net);
}

/* The term of the record that lies on that node's disk; 0: there is none. */
static uint64_t term_on_disk(const struct net *net, unsigned at, struct shoal_job_id job)
{
    struct archive_record record;
    struct shoal_view bytes;

    return record_flushed(net, at, job, &record, &bytes) ? record.version.term : 0;
}

/* A1: the leader is lost with its record on its way to the holders. Another one may hold a newer record than the next
 * leader does, so that one makes its own. */
static void test_a_new_leader_makes_its_own_record(void **state)
{
    struct net *net = new_net(504);
    struct shoal_job_id job = ended_job(net);
    unsigned leader = net_leader(net, job), slow = (leader + 1) % 3, next = (leader + 2) % 3;
    uint64_t flush_ns = net->nodes[slow].flush_ns, end = net->now + 60 * NET_S;

    (void)state;
    net->nodes[slow].flush_ns = 2 * NET_S;
    while (term_on_disk(net, next, job) == 0 && net->now < end)
        net_run(net, NET_MS);
    assert_int_equal(record_at(net, next, job), 1);
    net_crash(net, leader);
    net->nodes[slow].flush_ns = flush_ns;
    net_run(net, 10 * NET_S);
    net_start(net, leader);
    wait_final(net, job);
    for (unsigned i = 0; i < 3; i++)
        assert_true(term_on_disk(net, i, job) > 1);
    net_destroy(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_archived_waits_for_the_slowest_holder),
        cmocka_unit_test(test_a_deletion_is_told_when_it_is_durable),
        cmocka_unit_test(test_the_record_of_a_deleted_job_is_not_taken),
        cmocka_unit_test(test_a_record_is_given_once_a_look),
        cmocka_unit_test(test_a_new_leader_makes_its_own_record),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
