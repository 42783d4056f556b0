/* Frames, tickets, founding records, snapshot heads and mesh copies: there and back, every prefix, random bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sched/node/sched_wire.h"
#include "shoal/rand.h"
#include "shoal/sched_look.h"
#include "shoal/sched_ticket.h"

#include "shoal/banned.h"

static struct shoal_sched_ticket a_ticket(unsigned guardians)
{
    struct shoal_sched_ticket t = { .wall_ms = 5, .nonce = 77, .target = 3, .guardian_count = (uint8_t)guardians };

    memset(t.job.bytes, 8, sizeof(t.job.bytes));
    memset(t.spec_hash.bytes, 9, sizeof(t.spec_hash.bytes));
    t.incarnation.agent = 4;
    for (unsigned i = 0; i < guardians; i++) {
        memset(t.guardians[i].node.bytes, (int)(i + 1), 16);
        memset(t.guardians[i].store.bytes, (int)(i + 11), 16);
    }
    memset(t.key, 3, sizeof(t.key));
    memset(t.signature, 4, sizeof(t.signature));
    return t;
}

static struct frame a_frame(enum frame_kind kind)
{
    struct frame f = { .kind = kind };

    switch (kind) {
    case FRAME_RAFT: f.u.raft.message = shoal_view_text("raft's own"); break;
    case FRAME_FOUND: f.u.found.record = shoal_view_text("a record"); break;
    case FRAME_FOUND_REPLY:
        f.u.found_reply.nonce = 7;
        f.u.found_reply.answer = FOUND_REFUSED;
        (void)snprintf(f.u.found_reply.text, sizeof(f.u.found_reply.text), "full");
        break;
    case FRAME_HOST: f.u.host.bytes = shoal_view_text("host"); break;
    case FRAME_REQUEST:
        f.u.request.id = 12;
        f.u.request.hops = 2;
        f.u.request.kind = SHOAL_SCHED_MESH_CHANGE;
        (void)snprintf(f.u.request.by, sizeof(f.u.request.by), "ann");
        f.u.request.command = shoal_view_text("command");
        break;
    case FRAME_RESPONSE:
        f.u.response.id = 12;
        f.u.response.err = SHOAL_ERR_EXISTS;
        f.u.response.retry = true;
        f.u.response.version = 99;
        (void)snprintf(f.u.response.text, sizeof(f.u.response.text), "exists");
        f.u.response.bytes = shoal_view_text("bytes");
        break;
    case FRAME_WHO:
    case FRAME_REBUILD:
    case FRAME_GONE: f.u.who.id = 5; break;
    case FRAME_WHO_REPLY: f.u.who_reply.holds = true; break;
    case FRAME_MESH_GET: f.u.mesh_get.offset = 6; break;
    case FRAME_MESH_PART:
        f.u.mesh_part.offset = 3;
        f.u.mesh_part.total = 9;
        f.u.mesh_part.bytes = shoal_view_text("part");
        break;
    case FRAME_DIGEST: f.u.digest.digest = 1234567; break;
    case FRAME_REPLICA_ASK: f.u.replica.id = 5; break;
    case FRAME_REPLICA:
        f.u.replica.holds = true;
        f.u.replica.last_index = 77;
        break;
    case FRAME_ARCHIVE:
        f.u.archive.word = ARCHIVE_TAKE;
        f.u.archive.final = true;
        f.u.archive.record = shoal_view_text("a signed record");
        break;
    case FRAME_PARK:
        f.u.park.word = PARK_DONE;
        f.u.park.index = 2;
        break;
    case FRAME_NEWS:
        f.u.news.is_summary = true;
        f.u.news.version.applied = 9;
        f.u.news.payload = shoal_view_text("a summary");
        break;
    case FRAME_SEAL:
        f.u.seal.version = 4;
        f.u.seal.wanted = true;
        f.u.seal.seal.binds = true;
        memset(f.u.seal.seal.signature, 6, sizeof(f.u.seal.seal.signature));
        break;
    case FRAME_KINDS: break;
    }
    return f;
}

static size_t encode(const struct frame *f, uint8_t *bytes, size_t cap)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap);

    assert_true(sched_frame_encode(f, &w));
    return w.len;
}

/* Decode in memory of exactly that size, so that a sanitizer sees one byte too many. */
static enum shoal_err decode_exact(const uint8_t *bytes, size_t len, struct frame *out)
{
    uint8_t *exact = malloc(len == 0 ? 1 : len);
    enum shoal_err err;

    assert_non_null(exact);
    memcpy(exact, bytes, len);
    err = sched_frame_decode(shoal_view_of(exact, len), out);
    free(exact);
    return err;
}

static void test_every_frame_goes_round(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < FRAME_KINDS; kind++) {
        struct frame in = a_frame((enum frame_kind)kind), out;
        uint8_t bytes[2048], again[2048];
        size_t len = encode(&in, bytes, sizeof(bytes));

        assert_int_equal(sched_frame_decode(shoal_view_of(bytes, len), &out), SHOAL_OK);
        assert_int_equal(out.kind, kind);
        assert_int_equal(encode(&out, again, sizeof(again)), len);
        assert_memory_equal(bytes, again, len);
        for (size_t n = 0; n < len; n++) {
            struct shoal_writer w = shoal_writer_init(again, n);
            enum shoal_err err = decode_exact(bytes, n, &out);

            assert_false(sched_frame_encode(&in, &w));
            /* A Raft frame's own end is Raft's to find; all others know where they end. */
            if (err == SHOAL_OK && kind != FRAME_RAFT)
                fail_msg("frame kind %u: a prefix of %zu of %zu bytes was taken", kind, n, len);
        }
        if (kind != FRAME_RAFT) {
            bytes[len] = 0;
            assert_int_equal(decode_exact(bytes, len + 1, &out), SHOAL_ERR_MALFORMED);
        }
    }
}

static void test_a_frame_for_newer_readers_is_refused(void **state)
{
    struct frame in = a_frame(FRAME_WHO), out;
    uint8_t bytes[64];
    size_t len = encode(&in, bytes, sizeof(bytes));

    (void)state;
    bytes[1] = SCHED_WIRE_VERSION + 3; /* newer, still readable by us */
    assert_int_equal(sched_frame_decode(shoal_view_of(bytes, len), &out), SHOAL_OK);
    bytes[2] = SCHED_WIRE_VERSION + 1;
    assert_int_equal(sched_frame_decode(shoal_view_of(bytes, len), &out), SHOAL_ERR_MALFORMED);
}

static void test_tickets(void **state)
{
    struct shoal_sched_ticket out;

    (void)state;
    for (unsigned guardians = 1; guardians <= SHOAL_SCHED_SOURCES_MAX; guardians++) {
        struct shoal_sched_ticket in = a_ticket(guardians);
        uint8_t bytes[SHOAL_SCHED_TICKET_BYTES_MAX];
        size_t len, again;

        assert_int_equal(shoal_sched_ticket_encode(&in, bytes, sizeof(bytes), &len), SHOAL_OK);
        assert_int_equal(shoal_sched_ticket_decode(shoal_view_of(bytes, len), &out), SHOAL_OK);
        assert_int_equal(out.guardian_count, guardians);
        assert_int_equal(out.nonce, 77);
        for (size_t n = 0; n < len; n++) {
            assert_int_equal(shoal_sched_ticket_decode(shoal_view_of(bytes, n), &out), SHOAL_ERR_MALFORMED);
            assert_int_equal(shoal_sched_ticket_encode(&in, bytes, n, &again), SHOAL_ERR_TOO_BIG);
            assert_int_equal(shoal_sched_ticket_encode(&in, bytes, sizeof(bytes), &again), SHOAL_OK);
        }
    }
}

static void test_a_guardian_twice_is_no_ticket(void **state)
{
    struct shoal_sched_ticket in = a_ticket(3), out;
    uint8_t bytes[SHOAL_SCHED_TICKET_BYTES_MAX];
    size_t len;

    (void)state;
    in.guardians[2].node = in.guardians[0].node;
    assert_int_equal(shoal_sched_ticket_encode(&in, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_sched_ticket_decode(shoal_view_of(bytes, len), &out), SHOAL_ERR_MALFORMED);
    in = a_ticket(0);
    assert_int_equal(shoal_sched_ticket_encode(&in, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_sched_ticket_decode(shoal_view_of(bytes, len), &out), SHOAL_ERR_MALFORMED);
}

static void test_records(void **state)
{
    struct founding_record in = {
        .ticket = a_ticket(3), .generation = 1, .spec = shoal_view_text("spec"), .bundle = shoal_view_text("bundle")
    };
    struct founding_record out;
    uint8_t bytes[2048];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));

    (void)state;
    assert_true(sched_record_encode(&in, &w));
    assert_int_equal(sched_record_decode(shoal_writer_view(&w), &out), SHOAL_OK);
    assert_int_equal(out.ticket.guardian_count, 3);
    assert_true(shoal_view_equal(out.spec, in.spec));
    assert_true(shoal_view_equal(out.bundle, in.bundle));
    for (size_t n = 0; n < w.len; n++) {
        uint8_t *exact = malloc(n + 1);

        memcpy(exact, bytes, n);
        assert_int_equal(sched_record_decode(shoal_view_of(exact, n), &out), SHOAL_ERR_MALFORMED);
        free(exact);
    }
}

/* Every error that a node may answer with arrives as it was sent. */
static void test_every_error_goes_round(void **state)
{
    struct frame in = a_frame(FRAME_RESPONSE), out;
    uint8_t bytes[2048];

    (void)state;
    for (unsigned err = 0; err < SHOAL_ERRS; err++) {
        in.u.response.err = (uint16_t)err;
        assert_int_equal(decode_exact(bytes, encode(&in, bytes, sizeof(bytes)), &out), SHOAL_OK);
        assert_int_equal(out.u.response.err, err);
    }
    in.u.response.err = SHOAL_ERRS;
    assert_int_equal(decode_exact(bytes, encode(&in, bytes, sizeof(bytes)), &out), SHOAL_ERR_MALFORMED);
}

static void test_marks_of_parked_groups(void **state)
{
    struct park_mark mark = {
        .commit = 7, .behind = true, .target = 3, .priority = 9, .ticket_ms = 11, .guardian_count = 3
    };
    struct park_mark out;
    uint8_t bytes[256];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));

    (void)state;
    mark.guardians[2].bytes[0] = 4;
    mark.row = shoal_view_text("a row");
    assert_true(sched_park_mark_encode(&mark, &w));
    assert_true(shoal_sched_is_parked(shoal_writer_view(&w)));
    assert_int_equal(sched_hard_commit(shoal_writer_view(&w)), 7);
    assert_int_equal(sched_park_mark_decode(shoal_writer_view(&w), &out), SHOAL_OK);
    assert_int_equal(out.priority, 9);
    assert_int_equal(out.ticket_ms, 11);
    assert_true(out.behind);
    assert_true(shoal_node_id_equal(out.guardians[2], mark.guardians[2]));
    for (size_t n = 0; n < w.len; n++)
        assert_false(shoal_sched_is_parked(shoal_view_of(bytes, n)));
    bytes[0] = SCHED_HARD_FORMAT; /* in use: nine bytes */
    assert_int_equal(sched_hard_commit(shoal_view_of(bytes, 9)), 7);
    assert_false(shoal_sched_is_parked(shoal_view_of(bytes, 9)));
}

static void test_heads_hints_and_copies(void **state)
{
    struct group_head head = {
        .config = shoal_view_text("config"), .config_index = 3, .target = 3, .machine = shoal_view_text("machine")
    };
    struct mesh_hint hint = { .version = 4, .count = 2 };
    struct mesh_copy copy = { .version = 4, .count = 1, .state = shoal_view_text("state") };
    struct group_head head_out;
    struct mesh_hint hint_out;
    struct mesh_copy copy_out;
    uint8_t bytes[1024];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    size_t len;

    (void)state;
    assert_true(sched_head_encode(&head, &w));
    assert_int_equal(sched_head_decode(shoal_writer_view(&w), &head_out), SHOAL_OK);
    assert_true(shoal_view_equal(head.machine, head_out.machine));
    for (size_t n = 0; n < w.len; n++)
        assert_int_equal(sched_head_decode(shoal_view_of(bytes, n), &head_out), SHOAL_ERR_MALFORMED);
    w = shoal_writer_init(bytes, sizeof(bytes));
    assert_true(sched_mesh_hint_encode(&hint, &w));
    assert_int_equal(sched_mesh_hint_decode(shoal_writer_view(&w), &hint_out), SHOAL_OK);
    assert_int_equal(hint_out.version, 4);
    for (size_t n = 0; n < w.len; n++)
        assert_int_equal(sched_mesh_hint_decode(shoal_view_of(bytes, n), &hint_out), SHOAL_ERR_MALFORMED);
    w = shoal_writer_init(bytes, sizeof(bytes));
    assert_true(sched_mesh_copy_encode_body(&copy, &w));
    len = w.len;
    shoal_put_raw(&w, copy.key, sizeof(copy.key));
    shoal_put_raw(&w, copy.signature, sizeof(copy.signature));
    assert_int_equal(sched_mesh_copy_decode(shoal_writer_view(&w), &copy_out, &len), SHOAL_OK);
    assert_int_equal(len, w.len - sizeof(copy.key) - sizeof(copy.signature));
    for (size_t n = 0; n < w.len; n++)
        assert_int_equal(sched_mesh_copy_decode(shoal_view_of(bytes, n), &copy_out, &len), SHOAL_ERR_MALFORMED);
    copy.seal_count = 2;
    copy.seals[1].binds = true;
    w = shoal_writer_init(bytes, sizeof(bytes));
    assert_true(sched_mesh_copy_encode(&copy, &w));
    assert_int_equal(sched_mesh_copy_decode(shoal_writer_view(&w), &copy_out, &len), SHOAL_OK);
    assert_int_equal(len, 0);
    assert_int_equal(copy_out.seal_count, 2);
    assert_true(copy_out.seals[1].binds && !copy_out.seals[0].binds);
    for (size_t n = 0; n < w.len; n++)
        assert_int_equal(sched_mesh_copy_decode(shoal_view_of(bytes, n), &copy_out, &len), SHOAL_ERR_MALFORMED);
    for (unsigned guardians = 0; guardians <= SHOAL_SCHED_SOURCES_MAX; guardians++) { /* the most that is ever signed */
        uint8_t statement[MESH_STATEMENT_BYTES_MAX];

        copy.count = (uint8_t)guardians;
        w = shoal_writer_init(statement, sizeof(statement));
        assert_true(sched_mesh_statement_encode(&copy, (struct shoal_hash){ { 0 } }, true, &w));
    }
}

/* The token is the last field, so that a request without one is as the version before wrote it. */
static void test_a_request_with_a_token(void **state)
{
    struct frame in = a_frame(FRAME_REQUEST), out;
    uint8_t bytes[4096], text[SHOAL_SCHED_TOKEN_BYTES_MAX + 1] = { 0 };
    size_t before = encode(&in, bytes, sizeof(bytes)), len;

    (void)state;
    in.u.request.token = shoal_view_text("a token");
    len = encode(&in, bytes, sizeof(bytes));
    assert_int_equal(decode_exact(bytes, len, &out), SHOAL_OK);
    assert_int_equal(sched_frame_decode(shoal_view_of(bytes, len), &out), SHOAL_OK);
    assert_true(shoal_view_equal(out.u.request.token, in.u.request.token));
    for (size_t n = before + 1; n < len; n++)
        assert_int_equal(decode_exact(bytes, n, &out), SHOAL_ERR_MALFORMED);
    in.u.request.token = shoal_view_of(text, sizeof(text));
    len = encode(&in, bytes, sizeof(bytes));
    assert_int_equal(decode_exact(bytes, len, &out), SHOAL_ERR_MALFORMED);
}

static void test_noise(void **state)
{
    struct shoal_rand chance;

    (void)state;
    shoal_rand_init(&chance, 11);
    for (unsigned tries = 0; tries < 20000; tries++) {
        uint8_t bytes[700];
        size_t len = shoal_rand_below(&chance, sizeof(bytes));
        struct frame in = a_frame((enum frame_kind)shoal_rand_below(&chance, FRAME_KINDS)), out;
        struct shoal_sched_ticket ticket;
        struct founding_record record;

        for (size_t i = 0; i < len; i++)
            bytes[i] = (uint8_t)shoal_rand_u64(&chance);
        (void)!decode_exact(bytes, len, &out);
        (void)!shoal_sched_ticket_decode(shoal_view_of(bytes, len), &ticket);
        (void)!sched_record_decode(shoal_view_of(bytes, len), &record);
        len = encode(&in, bytes, sizeof(bytes)); /* nearly right */
        bytes[shoal_rand_below(&chance, len)] ^= (uint8_t)(1u << shoal_rand_below(&chance, 8));
        (void)!decode_exact(bytes, len, &out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_frame_goes_round),
        cmocka_unit_test(test_a_frame_for_newer_readers_is_refused),
        cmocka_unit_test(test_tickets),
        cmocka_unit_test(test_a_guardian_twice_is_no_ticket),
        cmocka_unit_test(test_records),
        cmocka_unit_test(test_heads_hints_and_copies),
        cmocka_unit_test(test_every_error_goes_round),
        cmocka_unit_test(test_marks_of_parked_groups),
        cmocka_unit_test(test_a_request_with_a_token),
        cmocka_unit_test(test_noise),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
