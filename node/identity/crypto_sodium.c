#include "shoal/crypto.h"
#include "shoal/hash.h"
#include "shoal/limits.h"

#include <sodium.h>

#include "shoal/banned.h"

_Static_assert(sizeof(crypto_generichash_blake2b_state) <= sizeof(((struct shoal_hash_stream *)0)->words),
               "the stream holds libsodium's state");
_Static_assert(crypto_pwhash_STRBYTES <= SHOAL_PASSWORD_HASH_BYTES, "a password hash fits its text");

enum shoal_err shoal_crypto_init(struct shoal_msg *msg)
{
    if (sodium_init() < 0)
        return shoal_fail(msg, SHOAL_ERR_STORAGE,
                          "libsodium found no source of random bytes; is /dev/urandom readable?");
    return SHOAL_OK;
}

void shoal_random(void *bytes, size_t len) { randombytes_buf(bytes, len); }

struct shoal_secret shoal_secret_random(void)
{
    struct shoal_secret secret;

    randombytes_buf(secret.bytes, sizeof(secret.bytes));
    return secret;
}

void shoal_key_create(struct shoal_public_key *public_key, struct shoal_secret_key *secret_key)
{
    int failed = crypto_sign_keypair(public_key->bytes, secret_key->bytes);

    SHOAL_ASSERT(failed == 0);
}

void shoal_key_of_seed(const uint8_t seed[32], struct shoal_public_key *public_key, struct shoal_secret_key *secret_key)
{
    int failed = crypto_sign_seed_keypair(public_key->bytes, secret_key->bytes, seed);

    SHOAL_ASSERT(failed == 0);
}

struct shoal_node_id shoal_node_id_of(const struct shoal_public_key *public_key)
{
    struct shoal_node_id id;
    int failed =
        crypto_generichash_blake2b(id.bytes, sizeof(id.bytes), public_key->bytes, sizeof(public_key->bytes), NULL, 0);

    SHOAL_ASSERT(failed == 0);
    return id;
}

struct shoal_signature shoal_sign(const struct shoal_secret_key *secret_key, struct shoal_view view)
{
    struct shoal_signature signature;
    int failed = crypto_sign_detached(signature.bytes, NULL, view.bytes, view.len, secret_key->bytes);

    SHOAL_ASSERT(failed == 0);
    return signature;
}

bool shoal_verify(const struct shoal_public_key *public_key, struct shoal_view view,
                  const struct shoal_signature *signature)
{
    return crypto_sign_verify_detached(signature->bytes, view.bytes, view.len, public_key->bytes) == 0;
}

struct shoal_mac shoal_mac_of(const struct shoal_secret *key, struct shoal_view view)
{
    struct shoal_mac mac;
    int failed = crypto_auth_hmacsha256(mac.bytes, view.bytes, view.len, key->bytes);

    SHOAL_ASSERT(failed == 0);
    return mac;
}

bool shoal_mac_verify(const struct shoal_secret *key, struct shoal_view view, const struct shoal_mac *mac)
{
    return crypto_auth_hmacsha256_verify(mac->bytes, view.bytes, view.len, key->bytes) == 0;
}

bool shoal_secret_equal(const void *a, const void *b, size_t len) { return sodium_memcmp(a, b, len) == 0; }

struct shoal_secret shoal_secret_derive(const struct shoal_secret *secret, const char *purpose)
{
    struct shoal_secret derived;
    int failed = crypto_generichash_blake2b(derived.bytes, sizeof(derived.bytes), (const uint8_t *)purpose,
                                            strlen(purpose), secret->bytes, sizeof(secret->bytes));

    SHOAL_ASSERT(failed == 0);
    return derived;
}

enum shoal_err shoal_password_hash(struct shoal_view password, char text[SHOAL_PASSWORD_HASH_BYTES],
                                   struct shoal_msg *msg)
{
    char hashed[SHOAL_PASSWORD_HASH_BYTES] = { 0 };

    if (password.len == 0 || password.len > SHOAL_PASSWORD_BYTES_MAX)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "a password has 1 to %d bytes, this one has %zu",
                          SHOAL_PASSWORD_BYTES_MAX, password.len);
    if (crypto_pwhash_str_alg(hashed, (const char *)password.bytes, password.len, crypto_pwhash_OPSLIMIT_INTERACTIVE,
                              crypto_pwhash_MEMLIMIT_INTERACTIVE, crypto_pwhash_ALG_ARGON2ID13) != 0)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory to hash a password (it takes %u MiB); try again",
                          (unsigned)(crypto_pwhash_MEMLIMIT_INTERACTIVE / SHOAL_MIB));
    memcpy(text, hashed, SHOAL_PASSWORD_HASH_BYTES);
    return SHOAL_OK;
}

bool shoal_password_verify(struct shoal_view password, const char *text)
{
    char copy[crypto_pwhash_STRBYTES] = { 0 };

    if (password.len == 0 || password.len > SHOAL_PASSWORD_BYTES_MAX || strlen(text) >= sizeof(copy))
        return false;
    memcpy(copy, text, strlen(text));
    return crypto_pwhash_str_verify(copy, (const char *)password.bytes, password.len) == 0;
}

void shoal_wipe(void *bytes, size_t len) { sodium_memzero(bytes, len); }

struct shoal_hash shoal_hash_of(struct shoal_view view)
{
    struct shoal_hash hash;
    int failed = crypto_generichash_blake2b(hash.bytes, sizeof(hash.bytes), view.bytes, view.len, NULL, 0);

    SHOAL_ASSERT(failed == 0);
    return hash;
}

static crypto_generichash_blake2b_state *stream_state(struct shoal_hash_stream *stream)
{
    return (crypto_generichash_blake2b_state *)(void *)stream->words;
}

void shoal_hash_stream_init(struct shoal_hash_stream *stream)
{
    int failed = crypto_generichash_blake2b_init(stream_state(stream), NULL, 0, sizeof(struct shoal_hash));

    SHOAL_ASSERT(failed == 0);
}

void shoal_hash_stream_append(struct shoal_hash_stream *stream, struct shoal_view view)
{
    int failed = crypto_generichash_blake2b_update(stream_state(stream), view.bytes, view.len);

    SHOAL_ASSERT(failed == 0);
}

struct shoal_hash shoal_hash_stream_finish(struct shoal_hash_stream *stream)
{
    struct shoal_hash hash;
    int failed = crypto_generichash_blake2b_final(stream_state(stream), hash.bytes, sizeof(hash.bytes));

    SHOAL_ASSERT(failed == 0);
    return hash;
}
