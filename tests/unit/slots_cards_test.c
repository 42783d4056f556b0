/* Cards of a host that kernels share: what is leased of one is never more than it has (S14 of slots.h; shoal/cards.h). */
#include "shoal/slots.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "shoal/rand.h"

#define CARDS 2u
#define SHARES 3u
#define SLOTS (CARDS + CARDS * SHARES)
#define MIB 1000u
#define WHOLE 0u

static struct shoal_slots *slots;
static struct shoal_slots_actions actions;
static struct shoal_host_message out, in;
static uint8_t bytes[SHOAL_HOST_MESSAGE_MAX], table[SHOAL_SLOTS_STATE_BYTES_MAX];
static uint64_t now;
static struct shoal_slots_options options;

static struct shoal_job_id job_of(uint8_t name) { return (struct shoal_job_id){ { name } }; }

static int setup(void **state)
{
    (void)state;
    now = 1000 * SHOAL_S;
    options = (struct shoal_slots_options){ .self = { { 1 } },
                                            .host_epoch = 4,
                                            .slots = SLOTS,
                                            .device = SHOAL_JOB_DEVICE_GPU,
                                            .cards = CARDS,
                                            .shares = SHARES,
                                            .card_mib = { MIB, MIB },
                                            .start_ns = now };
    return shoal_slots_create(&slots, &options) == SHOAL_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    shoal_slots_destroy(slots);
    return 0;
}

static void send_message(void)
{
    struct shoal_slots_event event = { .kind = SHOAL_SLOTS_FRAME, .u.frame.from = { { 2 } } };
    size_t len;

    out.generation = 1;
    out.term = 1;
    assert_int_equal(shoal_host_encode(&out, bytes, sizeof(bytes), &len), SHOAL_OK);
    event.u.frame.bytes = shoal_view_of(bytes, len);
    assert_int_equal(shoal_slots_step(slots, &event, now, &actions), SHOAL_OK);
}

/* The generation granted; 0: refused, `in` says why. */
static uint64_t reserve(uint8_t job, uint32_t slot, uint32_t mib, uint64_t pack)
{
    memset(&out, 0, sizeof(out));
    out.kind = SHOAL_HOST_RESERVE;
    out.job = job_of(job);
    out.u.reserve.slot_count = 1;
    out.u.reserve.slots[0] = (uint8_t)slot;
    out.u.reserve.gpu_mib = mib;
    out.u.reserve.gpu_pack = pack;
    send_message();
    for (uint32_t i = 0; i < actions.count; i++)
        if (actions.list[i].kind == SHOAL_SLOTS_SEND &&
            shoal_host_decode(actions.list[i].u.send.bytes, &in) == SHOAL_OK && in.kind == SHOAL_HOST_OFFER)
            return in.u.offer.slot_count == 1 ? in.u.offer.generations[0] : 0;
    fail_msg("no answer");
    return 0;
}

static void refused(uint8_t job, uint32_t slot, uint32_t mib, uint64_t pack, const char *why)
{
    assert_true(reserve(job, slot, mib, pack) == 0);
    if (strstr(in.u.offer.text, why) == NULL)
        fail_msg("slot %u, %u MiB: want \"%s\", got \"%s\"", slot, mib, why, in.u.offer.text);
}

static bool confirm(uint8_t job, uint64_t worker, uint32_t slot, uint64_t generation)
{
    struct shoal_slot_status status;

    memset(&out, 0, sizeof(out));
    out.kind = SHOAL_HOST_CONFIRM;
    out.job = job_of(job);
    out.u.confirm.placement_count = 1;
    out.u.confirm.placements[0] = (struct shoal_placement){ .worker_id = worker,
                                                            .node = options.self,
                                                            .slot = slot,
                                                            .host_epoch = 4,
                                                            .lease_generation = generation,
                                                            .role = SHOAL_JOB_TASK };
    out.u.confirm.spec = shoal_view_text("spec");
    out.u.confirm.echo = now;
    send_message();
    shoal_slots_slot(slots, slot, &status);
    return status.state == SHOAL_SLOT_LEASED && status.worker_id == worker;
}

static void shell(struct shoal_host_event event)
{
    struct shoal_slots_event step = { .kind = SHOAL_SLOTS_HOST, .u.host = event };

    assert_int_equal(shoal_slots_step(slots, &step, now, &actions), SHOAL_OK);
}

static void ends(uint64_t worker, uint32_t slot)
{
    struct shoal_host_event exited = { .kind = SHOAL_HOST_ON_EXITED }, idle = { .kind = SHOAL_HOST_ON_SLOT_IDLE };

    exited.u.exited.worker_id = worker;
    idle.u.idle.slot = slot;
    shell(exited);
    shell(idle);
}

static void tick(uint64_t ns)
{
    now += ns;
    assert_int_equal(shoal_slots_step(slots, &(struct shoal_slots_event){ .kind = SHOAL_SLOTS_TIMER }, now, &actions),
                     SHOAL_OK);
}

static void test_a_card_is_leased_up_to_its_memory(void **state)
{
    uint64_t first;

    (void)state;
    refused(1, 2, 0, WHOLE, "share of a card");
    refused(1, 0, MIB + 1, 7, "less of this card's memory");
    first = reserve(1, 0, 600, 7);
    assert_true(first != 0);
    refused(2, 0 + CARDS, 401, 7, "less of this card's memory"); /* a promise holds its part */
    assert_true(confirm(1, 11, 0, first));
    refused(2, CARDS, 401, 7, "less of this card's memory");
    refused(2, CARDS, 400, 8, "another pack");
    assert_true(reserve(2, CARDS, 400, 7) != 0);
    assert_true(reserve(2, CARDS + SHARES, 401, 8) != 0); /* the other card */
    refused(3, 1, 0, WHOLE, "kernels share this card");
}

static void test_a_whole_card_is_not_shared(void **state)
{
    uint64_t whole = reserve(1, 0, 0, WHOLE);

    (void)state;
    assert_true(confirm(1, 11, 0, whole));
    refused(2, CARDS, 1, 7, "leased as a whole");
    assert_true(reserve(2, CARDS + SHARES, 1, 7) != 0);
    refused(3, 1, 0, WHOLE, "kernels share this card");
    ends(11, 0);
    assert_true(reserve(2, CARDS, 1, 7) != 0);
    refused(3, 0, 0, WHOLE, "kernels share this card");
}

/* A promise that has run out may still be confirmed while its slot is free: not when the card was given to others. */
static void test_a_late_confirmation_finds_what_is_left(void **state)
{
    uint64_t late = reserve(1, 0, 600, 7), again;

    (void)state;
    tick(3 * SHOAL_S);
    again = reserve(2, CARDS, 600, 7);
    assert_true(again != 0);
    assert_false(confirm(1, 11, 0, late));
    assert_true(confirm(2, 12, CARDS, again));
    late = reserve(3, 1, 0, WHOLE);
    tick(3 * SHOAL_S);
    assert_true(reserve(4, CARDS + SHARES, 1, 7) != 0);
    assert_false(confirm(3, 13, 1, late));
}

static void test_the_record_says_what_can_be_had(void **state)
{
    struct shoal_slots_record record, told;
    size_t len;

    (void)state;
    shoal_slots_record(slots, &record);
    assert_int_equal(record.slots, CARDS); /* what versions before see */
    assert_int_equal(record.free, 3);
    assert_int_equal(record.cards.free, 0);
    assert_int_equal(record.cards.list[0].room, MIB);
    assert_true(confirm(1, 11, CARDS, reserve(1, CARDS, 300, 7)));
    shoal_slots_record(slots, &record);
    assert_int_equal(record.free, 2); /* nobody holds slot 0, but its card is shared */
    assert_int_equal(record.cards.free, 1u << 0 | 1u << (CARDS + 1) | 1u << (CARDS + 2));
    assert_int_equal(record.cards.list[0].room, MIB - 300);
    assert_true(record.cards.list[0].pack == 7);
    assert_int_equal(shoal_slots_record_encode(&record, bytes, SHOAL_RECORD_PAYLOAD_MAX, &len), SHOAL_OK);
    assert_int_equal(shoal_slots_record_decode(shoal_view_of(bytes, len), &told), SHOAL_OK);
    assert_memory_equal(&told, &record, sizeof(told));
    assert_true(confirm(2, 12, 1, reserve(2, 1, 0, WHOLE)));
    shoal_slots_record(slots, &record);
    assert_int_equal(record.free, 0);
    assert_int_equal(record.cards.list[1].room, 0);
}

/* The largest record fits gossip. */
static void test_the_record_of_many_cards_fits(void **state)
{
    struct shoal_slots_record record = { .version = UINT64_MAX,
                                         .host_epoch = UINT32_MAX,
                                         .slots = SHOAL_CARDS_MAX,
                                         .device = SHOAL_JOB_DEVICE_GPU,
                                         .stamp = UINT64_MAX,
                                         .free = UINT64_MAX,
                                         .draining = UINT64_MAX,
                                         .cards = { .count = SHOAL_CARDS_MAX, .shares = 3, .free = UINT64_MAX } };
    size_t len;

    (void)state;
    for (unsigned i = 0; i < SHOAL_CARDS_MAX; i++)
        record.cards.list[i] = (struct shoal_card){ UINT32_MAX, UINT32_MAX, UINT64_MAX };
    assert_int_equal(shoal_slots_record_encode(&record, bytes, SHOAL_RECORD_PAYLOAD_MAX, &len), SHOAL_OK);
    assert_int_equal(shoal_cards_shares(1), SHOAL_CARD_KERNELS_MAX - 1);
    for (uint32_t cards = 0; cards <= SHOAL_SLOTS_MAX; cards++)
        assert_true(shoal_cards_slots(cards, shoal_cards_shares(cards)) <= SHOAL_SLOTS_MAX);
}

static void test_shares_outlive_the_agent(void **state)
{
    size_t len;

    (void)state;
    assert_true(confirm(1, 11, CARDS, reserve(1, CARDS, 700, 7)));
    assert_int_equal(shoal_slots_encode(slots, table, sizeof(table), &len), SHOAL_OK);
    shoal_slots_destroy(slots);
    slots = NULL;
    assert_int_equal(shoal_slots_restore(&slots, &options, shoal_view_of(table, len)), SHOAL_OK);
    refused(2, CARDS + 1, 301, 7, "less of this card's memory");
    assert_true(reserve(2, CARDS + 1, 300, 7) != 0);
}

/* By chance: whatever is asked and confirmed, late or not, no card ever has more than its memory, two packs, or a whole lease
 * beside a part. */
struct mirror {
    uint32_t mib;
    uint64_t pack, generation, worker;
    bool leased;
};

static void check_cards(const struct mirror *mirror)
{
    for (uint32_t c = 0; c < CARDS; c++) {
        uint64_t mib = 0, pack = 0;
        uint32_t held = 0, whole = 0;

        for (uint32_t i = 0; i < SLOTS; i++) {
            struct shoal_slot_status status;

            shoal_slots_slot(slots, i, &status);
            if (shoal_cards_of(CARDS, SHARES, i) != c || status.state == SHOAL_SLOT_FREE)
                continue;
            held++;
            whole += mirror[i].pack == WHOLE;
            mib += mirror[i].mib;
            assert_true(pack == 0 || mirror[i].pack == pack || mirror[i].pack == WHOLE);
            pack = mirror[i].pack;
        }
        assert_true(mib <= MIB);
        assert_true(whole == 0 || held == 1);
    }
}

static void test_by_chance(void **state)
{
    struct mirror mirror[SLOTS] = { 0 };
    struct shoal_rand rand;
    uint64_t worker = 100;
    unsigned shared = 0, wholes = 0;

    (void)state;
    shoal_rand_init(&rand, 0x65);
    for (unsigned round = 0; round < 20000; round++) {
        uint32_t slot = (uint32_t)shoal_rand_below(&rand, SLOTS);
        struct mirror *m = &mirror[slot];
        uint64_t pack = slot < CARDS && shoal_rand_below(&rand, 3) == 0 ? WHOLE : 1 + shoal_rand_below(&rand, 2);
        uint32_t mib = pack == WHOLE ? 0 : 1 + (uint32_t)shoal_rand_below(&rand, MIB);
        struct shoal_slot_status status;
        uint64_t granted;

        shoal_slots_slot(slots, slot, &status);
        switch (shoal_rand_below(&rand, 4)) {
        case 0:
        case 1:
            if (status.state == SHOAL_SLOT_LEASED)
                break;
            granted = reserve((uint8_t)(1 + slot), slot, mib, pack);
            if (granted == 0)
                break;
            *m = (struct mirror){ .mib = mib, .pack = pack, .generation = granted };
            shared += pack != WHOLE;
            wholes += pack == WHOLE;
            break;
        case 2:
            if (m->generation == 0 || m->leased)
                break;
            m->worker = ++worker;
            m->leased = confirm((uint8_t)(1 + slot), worker, slot, m->generation);
            if (!m->leased)
                m->generation = 0;
            break;
        default:
            if (m->leased)
                ends(m->worker, slot);
            if (m->leased)
                *m = (struct mirror){ 0 };
            if (shoal_rand_below(&rand, 8) == 0)
                tick(3 * SHOAL_S);
            now += SHOAL_MS;
            break;
        }
        check_cards(mirror);
        if (round % 64 == 0) { /* leases would run out, and workers whose leader says nothing stay in the table */
            teardown(NULL);
            assert_int_equal(setup(NULL), 0);
            memset(mirror, 0, sizeof(mirror));
        }
    }
    assert_true(shared > 500 && wholes > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_card_is_leased_up_to_its_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_whole_card_is_not_shared, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_late_confirmation_finds_what_is_left, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_record_says_what_can_be_had, setup, teardown),
        cmocka_unit_test(test_the_record_of_many_cards_fits),
        cmocka_unit_test_setup_teardown(test_shares_outlive_the_agent, setup, teardown),
        cmocka_unit_test_setup_teardown(test_by_chance, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
