#include "collective/transport/seal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "shoal/ids.h"
#include "shoal/wire.h"

#include "shoal/banned.h"

/* Noise_NNpsk0_25519_AESGCM_SHA256 of haskell-cryptography/cacophony, vectors/cacophony.txt (also
 * tests/vectors/cacophony.txt of mcginty/snow). */
static const char prologue_hex[] = "4a6f686e2047616c74";
static const char psk_hex[] = "54686973206973206d7920417573747269616e20706572737065637469766521";
static const char opener_hex[] = "893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a";
static const char answerer_hex[] = "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b";

static const struct {
    const char *name;
    const char *payload;
    const char *message;
} vectors[] = {
    { "1: psk, e", "4c756477696720766f6e204d69736573",
      "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c79447c37a89fc17813788d30df2d59501d6066f5f8aecc3406bb"
      "d9829f2d24a531b1" },
    { "2: e, ee", "4d757272617920526f746862617264",
      "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f1448088432f29d79368ef9de4e1ae7a362fb05bf0ad668e026bf57145"
      "54497b3a720461" },
    { "3: the opener's first record", "462e20412e20486179656b",
      "7c01e898a6201f36aecee532e29cd0b7f8ffa29d3366ad0dce39a6" },
    { "4: the answerer's first record", "4361726c204d656e676572",
      "a9ff535aace3db6a1da1a7fb00fe2de2622bb373abad9fb42c00e0" },
    { "5: the opener's second record", "4a65616e2d426170746973746520536179",
      "6cfc49a3e65472edc2d0152abe5ce950170a8a47c959f30bd48b5f0aacf29adbfd" },
    { "6: the answerer's second record", "457567656e2042f6686d20766f6e2042617765726b",
      "9bc86e6d974ed21ba04604a94aa68de21677eb409ead070c0cd569b069ee19ba142aa4c1a9" },
};

static struct shoal_view unhex(const char *text, uint8_t *bytes)
{
    size_t len = strlen(text) / 2;

    assert_true(shoal_hex_parse(text, bytes, len));
    return shoal_view_of(bytes, len);
}

static void the_published_vectors_are_reproduced(void **state)
{
    struct seal *sides[2];

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        uint8_t prologue[64], ephemeral[32];
        struct seal_options options = { .opens = i == 0, .prologue = unhex(prologue_hex, prologue) };

        (void)unhex(psk_hex, options.psk);
        options.ephemeral_secret = unhex(i == 0 ? opener_hex : answerer_hex, ephemeral).bytes;
        assert_int_equal(seal_create(&sides[i], &options), SHOAL_OK);
    }
    for (unsigned i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        struct seal *from = sides[i % 2], *to = sides[1 - i % 2];
        uint8_t payload[64], want[160], made[SEAL_RECORD_MAX], got[160];
        struct shoal_view plain = unhex(vectors[i].payload, payload), message = unhex(vectors[i].message, want);
        size_t len, skip = i < 2 ? 0 : SEAL_LENGTH_BYTES;

        if (i < 2) {
            assert_int_equal(seal_shake_write(from, plain, made, sizeof(made), &len), SHOAL_OK);
            assert_int_equal(seal_shake_read(to, message, got, sizeof(got), &len), SHOAL_OK);
            assert_int_equal(len, plain.len);
        } else {
            assert_int_equal(seal_begin(from, made), SHOAL_OK);
            assert_int_equal(seal_add(from, plain.bytes, 3), SHOAL_OK); /* in two parts */
            assert_int_equal(seal_add(from, plain.bytes + 3, plain.len - 3), SHOAL_OK);
            assert_int_equal(seal_end(from, &len), SHOAL_OK);
            assert_int_equal(len, message.len + SEAL_LENGTH_BYTES);
            assert_int_equal(made[0] + 256 * made[1], message.len);
            assert_int_equal(seal_open(to, message.bytes, message.len, got), SHOAL_OK);
        }
        assert_memory_equal(made + skip, message.bytes, message.len);
        assert_memory_equal(got, plain.bytes, plain.len);
    }
    seal_destroy(sides[0]);
    seal_destroy(sides[1]);
}

/* ---- two sides with fresh keys ---- */

struct pair {
    struct seal *opener;
    struct seal *answerer;
};

static const uint8_t token_a[16] = { 1 }, token_b[16] = { 2 }, token_wrong[16] = { 3 };

static struct seal *side(bool opens, const uint8_t *answerer_token, const char *prologue, uint64_t rekey)
{
    struct seal_options options = { .opens = opens, .prologue = shoal_view_text(prologue), .rekey_records = rekey };
    struct seal *seal;

    assert_int_equal(seal_key(token_a, answerer_token, options.psk), SHOAL_OK);
    assert_int_equal(seal_create(&seal, &options), SHOAL_OK);
    return seal;
}

static void shake(struct pair *pair, uint64_t opener_rekey, uint64_t answerer_rekey)
{
    uint8_t bytes[SEAL_SHAKE_BYTES];
    size_t len;

    pair->opener = side(true, token_b, "a to b", opener_rekey);
    pair->answerer = side(false, token_b, "a to b", answerer_rekey);
    assert_int_equal(seal_shake_write(pair->opener, shoal_view_text(""), bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(len, SEAL_SHAKE_BYTES);
    assert_int_equal(seal_shake_read(pair->answerer, shoal_view_of(bytes, len), bytes, 0, &len), SHOAL_OK);
    assert_int_equal(seal_shake_write(pair->answerer, shoal_view_text(""), bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(seal_shake_read(pair->opener, shoal_view_of(bytes, len), bytes, 0, &len), SHOAL_OK);
}

static void pair_deinit(struct pair *pair)
{
    seal_destroy(pair->opener);
    seal_destroy(pair->answerer);
}

static size_t record(struct seal *from, uint64_t number, uint8_t *bytes)
{
    size_t len;

    assert_int_equal(seal_begin(from, bytes), SHOAL_OK);
    assert_int_equal(seal_add(from, &number, sizeof(number)), SHOAL_OK);
    assert_int_equal(seal_end(from, &len), SHOAL_OK);
    return len;
}

/* Whatever is said to be in the record, there is room for it. */
static enum shoal_err open_record(struct seal *to, const uint8_t *bytes, size_t len, uint64_t *number)
{
    uint8_t plain[SEAL_RECORD_MAX];
    enum shoal_err err = seal_open(to, bytes + SEAL_LENGTH_BYTES, len - SEAL_LENGTH_BYTES, plain);

    *number = 0;
    if (err == SHOAL_OK) {
        assert_int_equal(len, SEAL_LENGTH_BYTES + sizeof(*number) + SEAL_TAG_BYTES);
        memcpy(number, plain, sizeof(*number));
    }
    return err;
}

static void records_arrive_across_new_keys(void **state)
{
    uint8_t bytes[SEAL_RECORD_MAX];
    struct pair pair;

    (void)state;
    shake(&pair, 3, 3);
    for (uint64_t i = 1; i < 20; i++) {
        uint64_t there, back;

        assert_int_equal(open_record(pair.answerer, bytes, record(pair.opener, i, bytes), &there), SHOAL_OK);
        assert_int_equal(open_record(pair.opener, bytes, record(pair.answerer, i, bytes), &back), SHOAL_OK);
        assert_int_equal(there, i);
        assert_int_equal(back, i);
    }
    pair_deinit(&pair);
}

static void a_key_that_is_replaced_seals_no_more(void **state)
{
    uint8_t bytes[SEAL_RECORD_MAX];
    struct pair pair;
    uint64_t number;

    (void)state;
    shake(&pair, 100, 3); /* who opens the connection keeps its key */
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(open_record(pair.answerer, bytes, record(pair.opener, i, bytes), &number), SHOAL_OK);
    assert_int_equal(open_record(pair.answerer, bytes, record(pair.opener, 9, bytes), &number), SHOAL_ERR_DENIED);
    pair_deinit(&pair);
}

static void the_largest_record_fits(void **state)
{
    static uint8_t plain[SEAL_PLAIN_MAX], got[SEAL_PLAIN_MAX], bytes[SEAL_RECORD_MAX];
    struct pair pair;
    size_t len;

    (void)state;
    shake(&pair, 0, 0);
    for (size_t i = 0; i < sizeof(plain); i++)
        plain[i] = (uint8_t)(i * 7);
    assert_int_equal(seal_begin(pair.opener, bytes), SHOAL_OK);
    assert_int_equal(seal_room(pair.opener), SEAL_PLAIN_MAX);
    assert_int_equal(seal_add(pair.opener, plain, 16), SHOAL_OK);
    assert_int_equal(seal_add(pair.opener, plain + 16, sizeof(plain) - 16), SHOAL_OK);
    assert_int_equal(seal_room(pair.opener), 0);
    assert_int_equal(seal_end(pair.opener, &len), SHOAL_OK);
    assert_int_equal(len, SEAL_RECORD_MAX);
    assert_true(memcmp(bytes + SEAL_LENGTH_BYTES, plain, 64) != 0);
    assert_int_equal(seal_open(pair.answerer, bytes + 2, len - 2, bytes + 2), SHOAL_OK); /* in its place */
    memcpy(got, bytes + 2, sizeof(got));
    assert_memory_equal(got, plain, sizeof(plain));
    pair_deinit(&pair);
}

/* Things that a middleman may do to the records 1, 2, 3. */
enum attack { CHANGED, TWICE, MISSING, CUT, LONGER, BACK, OLD, EMPTY, ATTACKS };

static const char *const attack_names[] = { "changed", "twice",   "missing",         "cut",
                                            "longer",  "go back", "of another time", "empty" };

static void attack_once(enum attack attack, size_t at)
{
    uint8_t first[SEAL_RECORD_MAX], second[SEAL_RECORD_MAX] = { 0 };
    struct pair pair, old;
    uint64_t number;
    size_t len, len_second;

    shake(&pair, 0, 0);
    len = record(pair.opener, 1, first);
    len_second = record(pair.opener, 2, second);
    if (attack != MISSING)
        assert_int_equal(open_record(pair.answerer, first, len, &number), SHOAL_OK);
    switch (attack) {
    case CHANGED: second[SEAL_LENGTH_BYTES + at] ^= 1; break;
    case TWICE: memcpy(second, first, len); break;
    case MISSING: break;
    case CUT: len_second -= 1 + at % 20; break;
    case LONGER: len_second += 1 + at; break;
    case BACK: len_second = record(pair.answerer, 2, second); break;
    case OLD:
        shake(&old, 0, 0);
        (void)record(old.opener, 1, second);
        len_second = record(old.opener, 2, second);
        pair_deinit(&old);
        break;
    case EMPTY: len_second = SEAL_LENGTH_BYTES + at % (SEAL_TAG_BYTES + 1); break;
    case ATTACKS: fail();
    }
    if (open_record(pair.answerer, second, len_second, &number) == SHOAL_OK)
        fail_msg("records that are %s (%zu) are opened", attack_names[attack], at);
    len = record(pair.opener, 3, first); /* a good one after it is refused, too */
    assert_int_equal(open_record(pair.answerer, first, len, &number), SHOAL_ERR_DENIED);
    pair_deinit(&pair);
}

static void nobody_between_them_changes_anything(void **state)
{
    (void)state;
    for (unsigned attack = 0; attack < ATTACKS; attack++)
        for (size_t at = 0; at < 24; at++) /* each byte of ciphertext and tag */
            attack_once((enum attack)attack, at);
}

static void another_key_prologue_or_handshake_is_denied(void **state)
{
    (void)state;
    for (unsigned row = 0; row < 3 + 2 * SEAL_SHAKE_BYTES; row++) {
        struct seal *opener = side(true, row == 0 ? token_wrong : token_b, row == 1 ? "b to a" : "a to b", 0);
        struct seal *answerer = side(false, token_b, "a to b", 0);
        uint8_t bytes[SEAL_SHAKE_BYTES];
        enum shoal_err err;
        size_t len;

        assert_int_equal(seal_shake_write(opener, shoal_view_text(""), bytes, sizeof(bytes), &len), SHOAL_OK);
        if (row >= 3 && row < 3 + SEAL_SHAKE_BYTES)
            bytes[row - 3] ^= 1;
        err = seal_shake_read(answerer, shoal_view_of(bytes, len - (row == 2)), bytes, 0, &len);
        if (row >= 3 + SEAL_SHAKE_BYTES) { /* the answer is changed */
            assert_int_equal(err, SHOAL_OK);
            assert_int_equal(seal_shake_write(answerer, shoal_view_text(""), bytes, sizeof(bytes), &len), SHOAL_OK);
            bytes[row - 3 - SEAL_SHAKE_BYTES] ^= 1;
            err = seal_shake_read(opener, shoal_view_of(bytes, len), bytes, 0, &len);
            assert_int_equal(seal_begin(opener, bytes), SHOAL_ERR_FULL); /* and nothing can be sent */
        }
        if (err != SHOAL_ERR_DENIED)
            fail_msg("row %u: %s", row, shoal_err_name(err));
        seal_destroy(opener);
        seal_destroy(answerer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_published_vectors_are_reproduced),
        cmocka_unit_test(records_arrive_across_new_keys),
        cmocka_unit_test(a_key_that_is_replaced_seals_no_more),
        cmocka_unit_test(the_largest_record_fits),
        cmocka_unit_test(nobody_between_them_changes_anything),
        cmocka_unit_test(another_key_prologue_or_handshake_is_denied),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
