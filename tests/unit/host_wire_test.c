/* Every message between leader and hosts: there and back, every prefix, flipped bytes. */
#include "shoal/host_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "shoal/rand.h"

static struct shoal_host_message out, in;
static uint8_t bytes[SHOAL_HOST_MESSAGE_MAX], again[SHOAL_HOST_MESSAGE_MAX];

static void fill_confirm(void)
{
    out.u.confirm.placement_count = 2;
    out.u.confirm.placements[0] =
        (struct shoal_placement){ .worker_id = 8, .slot = 3, .lease_generation = 4, .token = { 1 } };
    out.u.confirm.placements[1] =
        (struct shoal_placement){ .worker_id = 9, .slot = SHOAL_SLOT_NONE, .role = SHOAL_JOB_DRIVER };
    out.u.confirm.source_count = 1;
    out.u.confirm.spec = shoal_view_text("a specification");
    out.u.confirm.echo = 99;
}

static void fill_epoch(void)
{
    out.u.epoch.epoch.e = 4;
    out.u.epoch.member_count = 2;
    out.u.epoch.members[1].worker_id = 12;
    out.u.epoch.members[1].v_end = 4;
    out.u.epoch.members[1].address_len = 2;
    memcpy(out.u.epoch.snapshot_path, "blob:ff", 8);
}

static void fill_worker(void)
{
    out.u.worker.worker_id = 3;
    out.u.worker.phase = SHOAL_PHASE_READY;
    out.u.worker.status = -1;
    out.u.worker.address_len = 4;
    out.u.worker.sizes.virtual_workers = 6;
    out.u.worker.sizes.metric_count = 1;
    memcpy(out.u.worker.sizes.metric_names[0], "loss", 5);
    memcpy(out.u.worker.text, "why", 4);
}

static void fill(uint8_t kind)
{
    memset(&out, 0, sizeof(out));
    out.kind = kind;
    out.job = (struct shoal_job_id){ { 1, 2, 3 } };
    out.generation = 2;
    out.term = 77;
    out.host_epoch = 3;
    out.stamp = 1234567;
    out.seq = 9;
    switch ((enum shoal_host_kind)kind) {
    case SHOAL_HOST_RESERVE:
        out.u.reserve.slot_count = 2;
        out.u.reserve.slots[1] = 63;
        out.u.reserve.driver = true;
        out.u.reserve.ticket_ms = 5;
        break;
    case SHOAL_HOST_CONFIRM: fill_confirm(); break;
    case SHOAL_HOST_RENEW:
        out.u.renew.lease_count = 1;
        out.u.renew.leases[0] = (struct shoal_lease_name){ 4, 5 };
        out.u.renew.epoch.e = 7;
        break;
    case SHOAL_HOST_SHRUNK:
    case SHOAL_HOST_EPOCH: fill_epoch(); break;
    case SHOAL_HOST_WORKER: fill_worker(); break;
    case SHOAL_HOST_TRAIN:
        out.u.train.call.call = 2;
        memcpy(out.u.train.call.signature, "net", 4);
        break;
    case SHOAL_HOST_CALL:
        out.u.call.call = 1;
        out.u.call.source_count = SHOAL_HOST_SOURCES_MAX;
        break;
    case SHOAL_HOST_OFFER:
        out.u.offer.slot_count = 2;
        out.u.offer.generations[1] = 6;
        memcpy(out.u.offer.text, "no", 3);
        break;
    case SHOAL_HOST_BROKEN:
        out.u.broken.worker_id = 3;
        out.u.broken.epoch.e = 4;
        out.u.broken.ranks = (struct shoal_ranks){ { 1ull << 63 | 2 } };
        break;
    case SHOAL_HOST_UNFIT:
        out.u.unfit.worker_id = 3;
        memcpy(out.u.unfit.text, "another Python", 15);
        break;
    case SHOAL_HOST_STANDS:
        out.u.stands.worker_id = 3;
        out.u.stands.epoch.e = 4;
        out.u.stands.activity = SHOAL_ACTIVITY_COMPUTING;
        break;
    case SHOAL_HOST_ORDER: out.u.order.order = SHOAL_ORDER_KILL; break;
    case SHOAL_HOST_PROGRESS:
    case SHOAL_HOST_MARK: out.u.progress.loss_micro = -5; break;
    case SHOAL_HOST_CANCEL:
    case SHOAL_HOST_REVOKE:
    case SHOAL_HOST_TRAIN_STATE:
    case SHOAL_HOST_MAKE_MANIFEST:
    case SHOAL_HOST_ACK:
    case SHOAL_HOST_REPORT:
    case SHOAL_HOST_END:
    case SHOAL_HOST_DRAIN:
    case SHOAL_HOST_MANIFEST:
    case SHOAL_HOST_SNAPSHOT:
    case SHOAL_HOST_UNKNOWN:
    case SHOAL_HOST_KIND_COUNT: break;
    }
}

static void test_there_and_back(void **state)
{
    (void)state;
    for (uint8_t kind = 0; kind < SHOAL_HOST_KIND_COUNT; kind++) {
        size_t len, len2;
        uint8_t peeked;
        struct shoal_job_id job;
        uint8_t *edge;

        fill(kind);
        assert_int_equal(shoal_host_encode(&out, bytes, sizeof(bytes), &len), SHOAL_OK);
        memset(&in, 0x55, sizeof(in));
        assert_int_equal(shoal_host_decode(shoal_view_of(bytes, len), &in), SHOAL_OK);
        assert_int_equal(in.kind, kind);
        assert_int_equal(in.term, 77);
        assert_int_equal(shoal_host_encode(&in, again, sizeof(again), &len2), SHOAL_OK);
        assert_int_equal(len2, len);
        assert_memory_equal(again, bytes, len);
        assert_true(shoal_host_peek(shoal_view_of(bytes, len), &peeked, &job));
        assert_int_equal(peeked, kind);
        for (size_t n = 0; n < len;
             n++) { /* each prefix in memory of just its size: a byte beyond is an error of the sanitizer */
            edge = malloc(n + (n == 0));
            memcpy(edge, bytes, n);
            if (shoal_host_decode(shoal_view_of(edge, n), &in) != SHOAL_ERR_MALFORMED)
                fail_msg("kind %u: a prefix of %zu bytes of %zu is taken", kind, n, len);
            free(edge);
        }
        bytes[len] = 0;
        assert_int_equal(shoal_host_decode(shoal_view_of(bytes, len + 1), &in), SHOAL_ERR_MALFORMED);
        if (len > 40)
            assert_int_equal(shoal_host_encode(&out, again, len - 1, &len2), SHOAL_ERR_TOO_BIG);
    }
}

static void test_flipped(void **state)
{
    struct shoal_rand rand;

    (void)state;
    shoal_rand_init(&rand, 7);
    for (uint32_t n = 0; n < 20000; n++) {
        size_t len, len2;

        fill((uint8_t)shoal_rand_below(&rand, SHOAL_HOST_KIND_COUNT));
        assert_int_equal(shoal_host_encode(&out, bytes, sizeof(bytes), &len), SHOAL_OK);
        for (uint32_t i = 0; i < 3; i++)
            bytes[shoal_rand_below(&rand, len)] = (uint8_t)shoal_rand_u64(&rand);
        if (shoal_host_decode(shoal_view_of(bytes, len), &in) == SHOAL_OK)
            assert_int_equal(shoal_host_encode(&in, again, sizeof(again), &len2), SHOAL_OK);
    }
}

static void test_refused(void **state)
{
    size_t len;

    (void)state;
    fill(SHOAL_HOST_RESERVE);
    out.u.reserve.slot_count = SHOAL_SLOTS_MAX + 1;
    assert_int_equal(shoal_host_encode(&out, bytes, sizeof(bytes), &len), SHOAL_ERR_TOO_BIG);
    fill(SHOAL_HOST_CONFIRM);
    out.u.confirm.placements[0].slot = SHOAL_SLOT_NONE; /* an engine without a slot */
    assert_int_equal(shoal_host_encode(&out, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_host_decode(shoal_view_of(bytes, len), &in), SHOAL_ERR_MALFORMED);
    fill(SHOAL_HOST_EPOCH);
    out.u.epoch.member_count = SHOAL_JOB_WORKERS_MAX;
    assert_int_equal(shoal_host_encode(&out, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_host_decode(shoal_view_of(bytes, len), &in), SHOAL_OK);
    assert_int_equal(in.u.epoch.member_count, SHOAL_JOB_WORKERS_MAX);
    out.u.epoch.member_count++;
    assert_int_equal(shoal_host_encode(&out, bytes, sizeof(bytes), &len), SHOAL_ERR_TOO_BIG);
    fill(SHOAL_HOST_ACK);
    assert_int_equal(shoal_host_encode(&out, bytes, sizeof(bytes), &len), SHOAL_OK);
    bytes[2] = SHOAL_HOST_WIRE_VERSION + 1; /* only a newer one can read it */
    assert_int_equal(shoal_host_decode(shoal_view_of(bytes, len), &in), SHOAL_ERR_MALFORMED);
}

/* What a leader commits of them, and every reader of its record must read. */
static void test_steps_that_no_call_has_are_refused(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 14; i++) {
        const uint64_t step = SHOAL_STEPS_MAX + i % 2; /* the most, and one more */
        enum shoal_err want = i % 2 == 0 ? SHOAL_OK : SHOAL_ERR_MALFORMED;
        size_t len;

        fill(i < 6 ? SHOAL_HOST_WORKER : i < 12 ? SHOAL_HOST_PROGRESS : SHOAL_HOST_SNAPSHOT);
        *(i < 2 ? &out.u.worker.applied_step
                : i < 4 ? &out.u.worker.complete_step
                : i < 6 ? &out.u.worker.final_step
                : i < 8 ? &out.u.progress.step
                : i < 10 ? &out.u.progress.records_acked
                : i < 12 ? &out.u.progress.logged_step
                         : &out.u.snapshot.step) = step;
        assert_int_equal(shoal_host_encode(&out, bytes, sizeof(bytes), &len), SHOAL_OK);
        assert_int_equal(shoal_host_decode(shoal_view_of(bytes, len), &in), want);
    }
}

static void must_come_back(void)
{
    size_t len, len2;

    assert_int_equal(shoal_host_encode(&out, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_host_decode(shoal_view_of(bytes, len), &in), SHOAL_OK);
    assert_int_equal(shoal_host_encode(&in, again, sizeof(again), &len2), SHOAL_OK);
    assert_int_equal(len2, len);
    assert_memory_equal(again, bytes, len);
}

/* What older versions read of a job of at most 64 workers is what they always read; a word more stands at the end. */
static void test_ranks_beyond_64_stand_at_the_end(void **state)
{
    static const uint8_t kinds[] = { SHOAL_HOST_BROKEN, SHOAL_HOST_WORKER };

    (void)state;
    for (size_t k = 0; k < sizeof(kinds); k++) {
        static uint8_t plain[SHOAL_HOST_MESSAGE_MAX];
        struct shoal_ranks *set = kinds[k] == SHOAL_HOST_BROKEN ? &out.u.broken.ranks : &out.u.worker.unheard;
        const struct shoal_ranks *got = kinds[k] == SHOAL_HOST_BROKEN ? &in.u.broken.ranks : &in.u.worker.unheard;
        size_t len, plain_len;

        fill(kinds[k]);
        *set = (struct shoal_ranks){ { 1ull << 63 | 5 } };
        must_come_back();
        assert_int_equal(shoal_host_encode(&out, plain, sizeof(plain), &plain_len), SHOAL_OK);
        shoal_ranks_add(set, 64);
        shoal_ranks_add(set, SHOAL_JOB_WORKERS_MAX - 1);
        must_come_back();
        assert_true(shoal_ranks_equal(got, set));
        assert_int_equal(shoal_host_encode(&out, bytes, sizeof(bytes), &len), SHOAL_OK);
        assert_int_equal(len, plain_len + 8);
        assert_memory_equal(bytes, plain, plain_len);
        for (size_t n = plain_len + 1; n < len; n++)
            assert_int_equal(shoal_host_decode(shoal_view_of(bytes, n), &in), SHOAL_ERR_MALFORMED);
        memset(bytes + plain_len, 0, 8); /* a word of none is not written */
        assert_int_equal(shoal_host_decode(shoal_view_of(bytes, len), &in), SHOAL_ERR_MALFORMED);
    }
}

static void test_routing(void **state)
{
    (void)state;
    assert_true(shoal_host_kind_to_host(SHOAL_HOST_RESERVE));
    assert_true(shoal_host_kind_to_host(SHOAL_HOST_MARK));
    assert_true(shoal_host_kind_to_host(SHOAL_HOST_END));
    assert_false(shoal_host_kind_to_host(SHOAL_HOST_OFFER));
    assert_false(shoal_host_kind_to_host(SHOAL_HOST_UNKNOWN));
    assert_false(shoal_host_kind_to_host(SHOAL_HOST_BROKEN));
    assert_false(shoal_host_kind_to_host(SHOAL_HOST_UNFIT));
    assert_false(shoal_host_kind_to_host(SHOAL_HOST_STANDS));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_there_and_back), cmocka_unit_test(test_flipped),
                                        cmocka_unit_test(test_refused), cmocka_unit_test(test_steps_that_no_call_has_are_refused), cmocka_unit_test(test_routing),
                                        cmocka_unit_test(test_ranks_beyond_64_stand_at_the_end) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
