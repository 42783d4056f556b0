/* Bytes of Raft messages and configurations: there and back, cut short at every byte, and nonsense. Inputs end where
 * a mapped page ends, so that one byte too many is a crash. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "shoal/raft.h"
#include "shoal/rand.h"

#include "shoal/banned.h"

#define GUARD_BYTES (512u * 4096u) /* more than a frame */

static uint8_t *page_end;

static int map_guard(void **state)
{
    uint8_t *pages = mmap(NULL, GUARD_BYTES + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    (void)state;
    if (pages == MAP_FAILED || mprotect(pages + GUARD_BYTES, 4096, PROT_NONE) != 0)
        return -1;
    page_end = pages + GUARD_BYTES;
    return 0;
}

static struct shoal_raft_id some_id(uint8_t seed)
{
    struct shoal_raft_id id;

    for (uint8_t i = 0; i < 16; i++) {
        id.node.bytes[i] = (uint8_t)(seed + i);
        id.store.bytes[i] = (uint8_t)(seed * 3 + i);
    }
    return id;
}

static struct shoal_raft_config some_config(void)
{
    struct shoal_raft_config config = { .joint = true, .count = 3 };

    for (uint8_t i = 0; i < 3; i++)
        config.members[i].id = some_id((uint8_t)(40 + i));
    config.members[0].bits = SHOAL_RAFT_VOTER | SHOAL_RAFT_VOTER_OLD;
    config.members[1].bits = SHOAL_RAFT_LEARNER | SHOAL_RAFT_VOTER_OLD;
    config.members[2].bits = SHOAL_RAFT_VOTER;
    return config;
}

/* A message of each kind with every field set. */
static struct shoal_raft_message some_message(enum shoal_raft_message_kind kind)
{
    static const uint8_t piece[5] = { 1, 2, 3, 4, 5 };
    struct shoal_raft_message message;

    memset(&message, 0, sizeof(message));
    message.kind = kind;
    message.from = some_id(1);
    message.to = some_id(2);
    message.term = 0x0102030405060708;
    switch (kind) {
    case SHOAL_RAFT_PREVOTE:
    case SHOAL_RAFT_VOTE:
        message.u.vote.for_term = 11;
        message.u.vote.last_index = 12;
        message.u.vote.last_term = 13;
        message.u.vote.transfer = true;
        break;
    case SHOAL_RAFT_PREVOTE_REPLY:
    case SHOAL_RAFT_VOTE_REPLY:
        message.u.vote_reply.for_term = 14;
        message.u.vote_reply.granted = true;
        break;
    case SHOAL_RAFT_APPEND:
        message.u.append.prev_index = 15;
        message.u.append.prev_term = 16;
        message.u.append.commit = 17;
        message.u.append.seq = 18;
        message.u.append.count = 2;
        message.u.append.entries[0] = shoal_entry_create_at(16, 16, SHOAL_ENTRY_NOOP, shoal_view_of(NULL, 0));
        message.u.append.entries[1] = shoal_entry_create_at(17, 17, SHOAL_ENTRY_USER, shoal_view_text("payload"));
        break;
    case SHOAL_RAFT_APPEND_REPLY:
        message.u.append_reply.rejected = true;
        message.u.append_reply.index = 19;
        message.u.append_reply.hint = 20;
        message.u.append_reply.hint_term = 21;
        message.u.append_reply.commit = 22;
        message.u.append_reply.seq = 23;
        break;
    case SHOAL_RAFT_READ:
    case SHOAL_RAFT_READ_REPLY: message.u.read.seq = 24; break;
    case SHOAL_RAFT_INSTALL:
        message.u.install.snapshot.index = 25;
        message.u.install.snapshot.term = 26;
        message.u.install.snapshot.config = some_config();
        message.u.install.offset = 27;
        message.u.install.total = 28;
        message.u.install.bytes = shoal_view_of(piece, sizeof(piece));
        break;
    case SHOAL_RAFT_INSTALL_REPLY:
        message.u.install_reply.index = 29;
        message.u.install_reply.offset = 30;
        message.u.install_reply.match = 31;
        break;
    case SHOAL_RAFT_TIMEOUT_NOW:
    case SHOAL_RAFT_GONE: break;
    }
    return message;
}

static size_t encode(const struct shoal_raft_message *message, uint8_t *bytes, size_t cap)
{
    size_t len;

    assert_int_equal(shoal_raft_message_encode(message, bytes, cap, &len), SHOAL_OK);
    return len;
}

static void every_kind_goes_there_and_back(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < SHOAL_RAFT_MESSAGE_KINDS; kind++) {
        struct shoal_raft_message message = some_message((enum shoal_raft_message_kind)kind);
        struct shoal_raft_message decoded;
        uint8_t bytes[1024];
        uint8_t again[1024];
        size_t len = encode(&message, bytes, sizeof(bytes));

        memcpy(page_end - len, bytes, len);
        assert_int_equal(shoal_raft_message_decode(shoal_view_of(page_end - len, len), &decoded), SHOAL_OK);
        assert_int_equal(decoded.kind, kind);
        assert_int_equal(decoded.term, message.term);
        assert_true(shoal_raft_id_equal(decoded.from, message.from));
        assert_true(shoal_raft_id_equal(decoded.to, message.to));
        assert_int_equal(encode(&decoded, again, sizeof(again)), len);
        assert_memory_equal(bytes, again, len);
        if (kind == SHOAL_RAFT_APPEND) {
            assert_int_equal(decoded.u.append.entries[1]->index, 17);
            assert_int_equal(decoded.u.append.entries[1]->kind, SHOAL_ENTRY_USER);
            assert_memory_equal(decoded.u.append.entries[1]->bytes, "payload", 7);
        }
        if (kind == SHOAL_RAFT_INSTALL)
            assert_int_equal(decoded.u.install.snapshot.config.members[1].bits,
                             SHOAL_RAFT_LEARNER | SHOAL_RAFT_VOTER_OLD);
        shoal_raft_message_deinit(&decoded);
        shoal_raft_message_deinit(&message);
    }
}

static void no_prefix_decodes(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < SHOAL_RAFT_MESSAGE_KINDS; kind++) {
        struct shoal_raft_message message = some_message((enum shoal_raft_message_kind)kind);
        struct shoal_raft_message decoded;
        uint8_t bytes[1024];
        size_t len = encode(&message, bytes, sizeof(bytes));

        for (size_t n = 0; n < len; n++) {
            memcpy(page_end - n, bytes, n);
            if (shoal_raft_message_decode(shoal_view_of(page_end - n, n), &decoded) != SHOAL_ERR_MALFORMED)
                fail_msg("FAIL unit/raft_wire: %u bytes of %u of kind %u decode", (unsigned)n, (unsigned)len, kind);
        }
        bytes[len] = 0;
        memcpy(page_end - len - 1, bytes, len + 1);
        assert_int_equal(shoal_raft_message_decode(shoal_view_of(page_end - len - 1, len + 1), &decoded),
                         SHOAL_ERR_MALFORMED);
        for (size_t n = 0; n < len; n++) {
            size_t used;

            assert_int_equal(shoal_raft_message_encode(&message, page_end - n, n, &used), SHOAL_ERR_TOO_BIG);
        }
        shoal_raft_message_deinit(&message);
    }
}

static void nonsense_is_refused_or_harmless(void **state)
{
    struct shoal_rand chance;

    (void)state;
    shoal_rand_init(&chance, 7);
    for (unsigned round = 0; round < 20000; round++) {
        struct shoal_raft_message message =
            some_message((enum shoal_raft_message_kind)(round % SHOAL_RAFT_MESSAGE_KINDS));
        struct shoal_raft_message decoded;
        uint8_t bytes[1024];
        size_t len = encode(&message, bytes, sizeof(bytes));

        for (uint64_t flips = 1 + shoal_rand_below(&chance, 4); flips > 0; flips--)
            bytes[shoal_rand_below(&chance, len)] = (uint8_t)shoal_rand_u64(&chance);
        memcpy(page_end - len, bytes, len);
        if (shoal_raft_message_decode(shoal_view_of(page_end - len, len), &decoded) == SHOAL_OK)
            shoal_raft_message_deinit(&decoded);
        shoal_raft_message_deinit(&message);
    }
}

static void fields_out_of_range_are_malformed(void **state)
{
    static const struct {
        const char *name;
        enum shoal_raft_message_kind kind;
        size_t at; /* 75 is the first byte behind kind, versions, ids and term */
        uint8_t value;
    } cases[] = {
        { "an unknown kind", SHOAL_RAFT_READ, 0, SHOAL_RAFT_MESSAGE_KINDS },
        { "a version that cannot be read", SHOAL_RAFT_READ, 2, 2 },
        { "a bool that is neither", SHOAL_RAFT_VOTE, 75 + 24, 2 },
        { "a bool that is neither", SHOAL_RAFT_APPEND_REPLY, 75, 7 },
        { "too many entries", SHOAL_RAFT_APPEND, 75 + 32, SHOAL_RAFT_BATCH_ENTRIES_MAX + 1 },
        { "an unknown kind of entry", SHOAL_RAFT_APPEND, 75 + 33 + 8, SHOAL_ENTRY_KINDS },
        { "a configuration with strange bits", SHOAL_RAFT_INSTALL, 75 + 16 + 4 + 2 + 32, 0x80 },
        { "a joint configuration that is not", SHOAL_RAFT_INSTALL, 75 + 16 + 4, 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct shoal_raft_message message = some_message(cases[i].kind);
        struct shoal_raft_message decoded;
        uint8_t bytes[1024];
        size_t len = encode(&message, bytes, sizeof(bytes));

        bytes[cases[i].at] = cases[i].value;
        if (shoal_raft_message_decode(shoal_view_of(bytes, len), &decoded) != SHOAL_ERR_MALFORMED)
            fail_msg("FAIL unit/raft_wire: %s is taken", cases[i].name);
        shoal_raft_message_deinit(&message);
    }
}

static void the_largest_messages_fit_a_frame(void **state)
{
    static uint8_t payload[SHOAL_ENTRY_BYTES_MAX];
    uint8_t *bytes = page_end - (SHOAL_FRAME_BYTES_MAX - 64);
    struct shoal_raft_message message = some_message(SHOAL_RAFT_TIMEOUT_NOW);

    (void)state;
    message.kind = SHOAL_RAFT_APPEND;
    message.u.append.count = 1;
    message.u.append.entries[0] =
        shoal_entry_create_at(1, 1, SHOAL_ENTRY_USER, shoal_view_of(payload, sizeof(payload)));
    assert_true(encode(&message, bytes, SHOAL_FRAME_BYTES_MAX - 64) > SHOAL_ENTRY_BYTES_MAX);
    shoal_raft_message_deinit(&message);
    message = some_message(SHOAL_RAFT_INSTALL);
    message.u.install.bytes = shoal_view_of(payload, SHOAL_RAFT_CHUNK_BYTES_MAX);
    assert_true(encode(&message, bytes, SHOAL_FRAME_BYTES_MAX - 64) > SHOAL_RAFT_CHUNK_BYTES_MAX);
}

static void configurations_are_checked(void **state)
{
    static const struct {
        const char *name;
        bool joint;
        uint8_t count;
        uint8_t bits[3];
        bool twice;
        bool want;
    } cases[] = {
        { "one voter", false, 1, { SHOAL_RAFT_VOTER }, false, true },
        { "a learner beside", false, 2, { SHOAL_RAFT_VOTER, SHOAL_RAFT_LEARNER }, false, true },
        { "nobody", false, 0, { 0 }, false, false },
        { "no voter", false, 2, { SHOAL_RAFT_LEARNER, SHOAL_RAFT_LEARNER }, false, false },
        { "no bits", false, 2, { SHOAL_RAFT_VOTER, 0 }, false, false },
        { "voter and learner", false, 1, { SHOAL_RAFT_VOTER | SHOAL_RAFT_LEARNER }, false, false },
        { "an old voter, not joint", false, 2, { SHOAL_RAFT_VOTER, SHOAL_RAFT_VOTER_OLD }, false, false },
        { "joint", true, 2, { SHOAL_RAFT_VOTER, SHOAL_RAFT_VOTER_OLD }, false, true },
        { "joint without old voters", true, 1, { SHOAL_RAFT_VOTER }, false, false },
        { "joint without new voters", true, 1, { SHOAL_RAFT_VOTER_OLD }, false, false },
        { "the same node twice", false, 2, { SHOAL_RAFT_VOTER, SHOAL_RAFT_VOTER }, true, false },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct shoal_raft_config config = { .joint = cases[i].joint, .count = cases[i].count };
        struct shoal_raft_config decoded;
        uint8_t bytes[SHOAL_RAFT_CONFIG_BYTES_MAX];
        size_t len;

        for (uint8_t m = 0; m < 3; m++) {
            config.members[m].id = some_id(cases[i].twice ? 5 : m);
            config.members[m].id.store.bytes[0] = m;
            config.members[m].bits = cases[i].bits[m];
        }
        len = shoal_raft_config_encode(&config, bytes);
        memcpy(page_end - len, bytes, len);
        if (shoal_raft_config_valid(&config) != cases[i].want ||
            (shoal_raft_config_decode(shoal_view_of(page_end - len, len), &decoded) == SHOAL_OK) != cases[i].want)
            fail_msg("FAIL unit/raft_wire: configuration: %s", cases[i].name);
        for (size_t n = 0; n < len; n++) {
            memcpy(page_end - n, bytes, n);
            assert_int_equal(shoal_raft_config_decode(shoal_view_of(page_end - n, n), &decoded), SHOAL_ERR_MALFORMED);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_goes_there_and_back),   cmocka_unit_test(no_prefix_decodes),
        cmocka_unit_test(nonsense_is_refused_or_harmless),  cmocka_unit_test(fields_out_of_range_are_malformed),
        cmocka_unit_test(the_largest_messages_fit_a_frame), cmocka_unit_test(configurations_are_checked),
    };
    return cmocka_run_group_tests(tests, map_guard, NULL);
}
