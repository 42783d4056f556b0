#include "shoal/noise.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "shoal/banned.h"

/* Noise_XXpsk3_25519_ChaChaPoly_BLAKE2b of haskell-cryptography/cacophony, vectors/cacophony.txt (also
 * tests/vectors/cacophony.txt of mcginty/snow). */
static const char prologue_hex[] = "4a6f686e2047616c74";
static const char psk_hex[] = "54686973206973206d7920417573747269616e20706572737065637469766521";
static const char init_static_hex[] = "e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1";
static const char init_ephemeral_hex[] = "893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a";
static const char resp_static_hex[] = "4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893";
static const char resp_ephemeral_hex[] = "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b";
static const char handshake_hash_hex[] = "46b5997dfa51492ae9be5b611748455e83aebdbc2ea3c47d264ec6dd408cc076"
                                         "e962ff056890c60398fe3e7a430bbe057f34383a84df9ff99391266dcfd638b0";

struct message {
    const char *name;
    const char *payload;
    const char *ciphertext;
};

static const struct message messages[] = {
    { "1: e, from the initiator", "4c756477696720766f6e204d69736573",
      "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c79440aa831d1e3bbd16bd7ffda87e9f7b6eeca2510006499a573"
      "ac"
      "27af3392ed1b69" },
    { "2: e, ee, s, es, from the responder", "4d757272617920526f746862617264",
      "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f14480884381a78489d56c9e2ac962826f25684980b25244dbfd505b7d"
      "90"
      "3a94d4f4fd84004a1c7fbe94d686bc4c1f67259364f6f2a41cb40bf5198b9b3975be2cdd49d3e065a554e12c477d82029fabc6555bc1" },
    { "3: s, se, psk, from the initiator", "462e20412e20486179656b",
      "291dfeff6eff386e29adb0bdbd5a1ae9e09de4449c8695d109adcb63e80e489555792a3e9150eff75d6d45571f824ed231173cb66e31e7da"
      "91"
      "4241f86d0cbb678335ffe768a7445d2f5bc1" },
    { "4: transport, from the responder", "4361726c204d656e676572",
      "6579dd60eb5e6a8b29dd60004289f5d3c2f69fcdbf683a869f59a8" },
    { "5: transport, from the initiator", "4a65616e2d426170746973746520536179",
      "24715fd39c3c7606e81b26e69e47b54d043d9d87c512f9417bae51ab48ebb17722" },
    { "6: transport, from the responder", "457567656e2042f6686d20766f6e2042617765726b",
      "e49194a013d873712318643acbf0e3851086326bb168c500a766439ff543a7a1e2deb3215c" },
};

static size_t unhex(const char *text, uint8_t *bytes)
{
    size_t len = strlen(text) / 2;

    assert_true(shoal_hex_parse(text, bytes, len));
    return len;
}

static struct shoal_noise *side(bool initiator, const char *psk, bool fixed)
{
    struct shoal_noise_options options = { .initiator = initiator };
    uint8_t prologue[64], ephemeral[32];
    struct shoal_noise *noise = NULL;

    options.prologue = shoal_view_of(prologue, unhex(prologue_hex, prologue));
    (void)unhex(initiator ? init_static_hex : resp_static_hex, options.static_secret);
    (void)unhex(psk, options.psk);
    (void)unhex(initiator ? init_ephemeral_hex : resp_ephemeral_hex, ephemeral);
    options.ephemeral_secret = fixed ? ephemeral : NULL;
    assert_int_equal(shoal_noise_create(&noise, &options), SHOAL_OK);
    return noise;
}

/* Three handshake messages without payload. */
static void shake(struct shoal_noise *a, struct shoal_noise *b)
{
    uint8_t bytes[256], out[256];
    size_t len, got;

    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(shoal_noise_write(i % 2 ? b : a, shoal_view_of("", 0), bytes, sizeof(bytes), &len), SHOAL_OK);
        assert_int_equal(shoal_noise_read(i % 2 ? a : b, shoal_view_of(bytes, len), out, sizeof(out), &got), SHOAL_OK);
        assert_int_equal(got, 0);
    }
    assert_true(shoal_noise_is_ready(a) && shoal_noise_is_ready(b));
}

static void published_vectors_come_out_to_the_byte(void **state)
{
    struct shoal_noise *a = side(true, psk_hex, true), *b = side(false, psk_hex, true);
    uint8_t payload[64], want[256], got[256], opened[256], want_hash[64], hash[64];

    (void)state;
    for (size_t i = 0; i < sizeof(messages) / sizeof(messages[0]); i++) {
        struct shoal_noise *from = i % 2 == 0 ? a : b, *to = i % 2 == 0 ? b : a;
        size_t payload_len = unhex(messages[i].payload, payload), want_len = unhex(messages[i].ciphertext, want);
        size_t len = payload_len + SHOAL_NOISE_TAG_BYTES, opened_len = payload_len;

        if (i < 3)
            assert_int_equal(shoal_noise_write(from, shoal_view_of(payload, payload_len), got, sizeof(got), &len),
                             SHOAL_OK);
        else
            assert_int_equal(shoal_noise_seal(from, shoal_view_of(payload, payload_len), got), SHOAL_OK);
        if (len != want_len || memcmp(got, want, len) != 0)
            fail_msg("message %s differs", messages[i].name);
        if (i < 3)
            assert_int_equal(shoal_noise_read(to, shoal_view_of(want, len), opened, sizeof(opened), &opened_len),
                             SHOAL_OK);
        else
            assert_int_equal(shoal_noise_open(to, shoal_view_of(want, len), opened), SHOAL_OK);
        assert_int_equal(opened_len, payload_len);
        assert_memory_equal(opened, payload, payload_len);
    }
    (void)unhex(handshake_hash_hex, want_hash);
    shoal_noise_handshake_hash(a, hash);
    assert_memory_equal(hash, want_hash, sizeof(hash));
    shoal_noise_handshake_hash(b, hash);
    assert_memory_equal(hash, want_hash, sizeof(hash));
    shoal_noise_destroy(a);
    shoal_noise_destroy(b);
}

static void another_psk_fails_at_the_third_message(void **state)
{
    struct shoal_noise *a = side(true, init_static_hex, false), *b = side(false, psk_hex, false);
    uint8_t bytes[256], out[256];
    size_t len, got;

    (void)state;
    assert_int_equal(shoal_noise_write(a, shoal_view_of("", 0), bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_noise_read(b, shoal_view_of(bytes, len), out, sizeof(out), &got), SHOAL_OK);
    assert_int_equal(shoal_noise_write(b, shoal_view_of("", 0), bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_noise_read(a, shoal_view_of(bytes, len), out, sizeof(out), &got), SHOAL_OK);
    assert_int_equal(shoal_noise_write(a, shoal_view_of("", 0), bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_noise_read(b, shoal_view_of(bytes, len), out, sizeof(out), &got), SHOAL_ERR_MALFORMED);
    assert_false(shoal_noise_is_ready(b));
    shoal_noise_destroy(a);
    shoal_noise_destroy(b);
}

/* Bring two sides to the point where message `which` (0 to 2) is about to be read; returns it in `bytes`. */
static size_t until(unsigned which, struct shoal_noise **a, struct shoal_noise **b, uint8_t *bytes, size_t cap)
{
    uint8_t out[256];
    size_t len = 0, got;

    *a = side(true, psk_hex, true);
    *b = side(false, psk_hex, true);
    for (unsigned i = 0; i <= which; i++) {
        assert_int_equal(shoal_noise_write(i % 2 ? *b : *a, shoal_view_of("hello", 5), bytes, cap, &len), SHOAL_OK);
        if (i < which)
            assert_int_equal(shoal_noise_read(i % 2 ? *a : *b, shoal_view_of(bytes, len), out, sizeof(out), &got),
                             SHOAL_OK);
    }
    return len;
}

static void every_prefix_and_every_flipped_bit_is_refused(void **state)
{
    uint8_t bytes[256], out[256];

    (void)state;
    for (unsigned which = 0; which < 3; which++) {
        struct shoal_noise *a, *b;
        size_t whole = until(which, &a, &b, bytes, sizeof(bytes));

        for (size_t n = 0; n < 2 * whole; n++) {
            size_t len = n < whole ? n : whole, got;
            uint8_t *exact;
            enum shoal_err err;

            shoal_noise_destroy(a);
            shoal_noise_destroy(b);
            assert_int_equal(until(which, &a, &b, bytes, sizeof(bytes)), whole);
            if (n >= whole)
                bytes[n - whole] ^= (uint8_t)(1 << n % 7); /* the top bit of an X25519 key means nothing */
            exact = malloc(len + 1);
            assert_non_null(exact);
            memcpy(exact, bytes, len);
            err = shoal_noise_read(which % 2 ? a : b, shoal_view_of(exact, len), out, sizeof(out), &got);
            free(exact);
            if (err != SHOAL_ERR_MALFORMED)
                fail_msg("message %u, case %zu of %zu: %s", which + 1, n, 2 * whole, shoal_err_name(err));
        }
        shoal_noise_destroy(a);
        shoal_noise_destroy(b);
    }
}

static void replayed_reordered_and_truncated_messages_end_the_transport(void **state)
{
    static const char *names[] = { "replayed", "reordered", "truncated", "empty", "altered" };

    (void)state;
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct shoal_noise *a = side(true, psk_hex, false), *b = side(false, psk_hex, false);
        uint8_t one[32], two[32], out[32];
        struct shoal_view bad = { 0 };

        shake(a, b);
        assert_int_equal(shoal_noise_seal(a, shoal_view_of("one", 3), one), SHOAL_OK);
        assert_int_equal(shoal_noise_seal(a, shoal_view_of("two", 3), two), SHOAL_OK);
        if (i != 1)
            assert_int_equal(shoal_noise_open(b, shoal_view_of(one, 19), out), SHOAL_OK);
        if (i == 0)
            bad = shoal_view_of(one, 19);
        else if (i < 3)
            bad = shoal_view_of(two, i == 1 ? 19 : 18);
        else if (i == 4)
            two[5] ^= 1, bad = shoal_view_of(two, 19);
        if (shoal_noise_open(b, bad, out) != SHOAL_ERR_MALFORMED)
            fail_msg("a %s message was opened", names[i]);
        two[5] ^= i == 4;
        assert_int_equal(shoal_noise_open(b, shoal_view_of(i == 1 ? one : two, 19), out), SHOAL_ERR_MALFORMED);
        shoal_noise_destroy(a);
        shoal_noise_destroy(b);
    }
}

static void converted_keys_agree(void **state)
{
    struct shoal_public_key public_key, small = { { 1 } };
    struct shoal_secret_key secret_key;
    struct shoal_noise_options options = { .initiator = true, .prologue = { 0 } };
    struct shoal_noise *a, *b = side(false, psk_hex, false);
    uint8_t want[32], got[32], prologue[64];

    (void)state;
    shoal_key_create(&public_key, &secret_key);
    options.prologue = shoal_view_of(prologue, unhex(prologue_hex, prologue));
    (void)unhex(psk_hex, options.psk);
    shoal_noise_secret_of(&secret_key, options.static_secret);
    assert_int_equal(shoal_noise_create(&a, &options), SHOAL_OK);
    shake(a, b);
    shoal_noise_remote_static(b, got);
    assert_int_equal(shoal_noise_public_of(&public_key, want), SHOAL_OK);
    assert_memory_equal(got, want, sizeof(got));
    assert_int_equal(shoal_noise_public_of(&small, want), SHOAL_ERR_DENIED);
    shoal_noise_destroy(a);
    shoal_noise_destroy(b);
}

static int setup(void **state)
{
    (void)state;
    return shoal_crypto_init(NULL) == SHOAL_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_vectors_come_out_to_the_byte),
        cmocka_unit_test(another_psk_fails_at_the_third_message),
        cmocka_unit_test(every_prefix_and_every_flipped_bit_is_refused),
        cmocka_unit_test(replayed_reordered_and_truncated_messages_end_the_transport),
        cmocka_unit_test(converted_keys_agree),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
