#include "node/link/aead.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <sodium.h>

#include "shoal/banned.h"

#define LEN_MAX 65519 /* a whole record of a link */

static uint8_t plain[LEN_MAX], ours[LEN_MAX + AEAD_TAG_BYTES], theirs[LEN_MAX + AEAD_TAG_BYTES], back[LEN_MAX];
static uint8_t key[AEAD_KEY_BYTES], nonce[AEAD_NONCE_BYTES];

static size_t length_of(size_t number) { return number < 700 ? number : LEN_MAX - 700 + 1 + (number - 700); }

/* An agent of the version before has libsodium on its side of the link. */
static void each_length_gives_libsodiums_bits_and_opens_in_place(void **state)
{
    struct aead *seals = aead_create(key, false), *opens = aead_create(key, true);

    (void)state;
    assert_non_null(seals);
    assert_non_null(opens);
    for (size_t number = 0; number < 1400; number++) {
        size_t len = length_of(number);

        nonce[4] = (uint8_t)number;
        nonce[5] = (uint8_t)(number >> 8);
        crypto_aead_chacha20poly1305_ietf_encrypt(theirs, NULL, plain, len, NULL, 0, NULL, nonce, key);
        memcpy(ours, plain, len);
        assert_true(aead_seal(seals, nonce, shoal_view_of(ours, len), ours));
        assert_memory_equal(ours, theirs, len + AEAD_TAG_BYTES);
        assert_true(aead_open(opens, nonce, shoal_view_of(theirs, len + AEAD_TAG_BYTES), back));
        assert_memory_equal(back, plain, len);
        assert_true(aead_open(opens, nonce, shoal_view_of(ours, len + AEAD_TAG_BYTES), ours));
        assert_memory_equal(ours, plain, len);
    }
    aead_destroy(seals);
    aead_destroy(opens);
}

static void a_flipped_bit_another_nonce_and_a_short_message_are_refused_and_what_follows_opens(void **state)
{
    struct aead *seals = aead_create(key, false), *opens = aead_create(key, true);
    uint8_t other[AEAD_NONCE_BYTES] = { 1, 2, 3 };
    const size_t len = 100;

    (void)state;
    assert_true(aead_seal(seals, nonce, shoal_view_of(plain, len), ours));
    for (size_t bit = 0; bit < (len + AEAD_TAG_BYTES) * 8; bit++) {
        ours[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(aead_open(opens, nonce, shoal_view_of(ours, len + AEAD_TAG_BYTES), back));
        ours[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t cut = 0; cut < len + AEAD_TAG_BYTES; cut++)
        assert_false(aead_open(opens, nonce, shoal_view_of(ours, cut), back));
    assert_false(aead_open(opens, other, shoal_view_of(ours, len + AEAD_TAG_BYTES), back));
    assert_true(aead_open(opens, nonce, shoal_view_of(ours, len + AEAD_TAG_BYTES), back));
    assert_memory_equal(back, plain, len);
    aead_destroy(seals);
    aead_destroy(opens);
}

static int setup(void **state)
{
    (void)state;
    if (sodium_init() < 0)
        return -1;
    randombytes_buf(plain, sizeof(plain));
    randombytes_buf(key, sizeof(key));
    randombytes_buf(nonce, sizeof(nonce));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_length_gives_libsodiums_bits_and_opens_in_place),
        cmocka_unit_test(a_flipped_bit_another_nonce_and_a_short_message_are_refused_and_what_follows_opens),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
