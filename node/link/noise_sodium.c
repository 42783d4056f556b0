/* Noise_XXpsk3_25519_ChaChaPoly_BLAKE2b on libsodium's primitives (noise.h), the records after it on OpenSSL's (aead.h).
 *
 *   h   hash of all that was sent so far: each ciphertext authenticates the whole conversation before it
 *   ck  chaining key: every DH result and the psk go in, each cipher key comes out
 *
 * I1. A message changes the state only when it is whole; any failure leaves the handshake FAILED for good.
 * I2. A cipher key and nonce are used once: the counter rises with each message, a new key starts at 0.
 * I3. After a psk, an ephemeral public key goes into ck too (section 9.2).
 *
 * Source: The Noise Protocol Framework, revision 34, sections 4.3 (HMAC, HKDF), 5 (processing), 7.5 (XX), 9 (psk), 12
 * (names). */
#include "shoal/noise.h"

#include "shoal/wire.h"

#include <sodium.h>

#include "aead.h"

#include "shoal/banned.h"

#define HASH_BYTES 64
#define HMAC_BLOCK_BYTES 128 /* BLAKE2b's */
#define KEY_BYTES 32
#define TAG_BYTES SHOAL_NOISE_TAG_BYTES
#define FAST_BYTES 256 /* from here on OpenSSL is faster than libsodium: 0.1 us to begin, 0.6 us a KiB less */

static const char protocol_name[] = "Noise_XXpsk3_25519_ChaChaPoly_BLAKE2b";
_Static_assert(sizeof(protocol_name) - 1 <= HASH_BYTES, "the name is padded, not hashed (section 5.2)");

enum token { TOKEN_END, TOKEN_E, TOKEN_S, TOKEN_EE, TOKEN_ES, TOKEN_SE, TOKEN_PSK };

static const enum token pattern[3][5] = {
    { TOKEN_E },
    { TOKEN_E, TOKEN_EE, TOKEN_S, TOKEN_ES },
    { TOKEN_S, TOKEN_SE, TOKEN_PSK },
};

struct cipher {
    uint8_t key[KEY_BYTES];
    uint64_t counter;
    bool has_key;
    struct aead *fast; /* of a key for many messages without additional data; NULL: libsodium does it */
};

struct shoal_noise {
    uint8_t ck[HASH_BYTES];
    uint8_t h[HASH_BYTES];
    struct cipher handshake, send, receive;
    uint8_t s_secret[KEY_BYTES], s_public[KEY_BYTES];
    uint8_t e_secret[KEY_BYTES], e_public[KEY_BYTES];
    uint8_t rs[KEY_BYTES], re[KEY_BYTES];
    uint8_t psk[KEY_BYTES];
    bool has_ephemeral; /* given beforehand, by a test */
    bool initiator;
    bool failed;
    unsigned step; /* handshake messages done; 3: ready */
};

/* ---- hashes (section 4.3) ----------------------------------------------------------------------- */

static void hash_two(uint8_t out[HASH_BYTES], struct shoal_view a, struct shoal_view b)
{
    crypto_generichash_blake2b_state state;
    int failed = crypto_generichash_blake2b_init(&state, NULL, 0, HASH_BYTES);

    SHOAL_ASSERT(failed == 0);
    failed = crypto_generichash_blake2b_update(&state, a.bytes, a.len);
    SHOAL_ASSERT(failed == 0);
    failed = crypto_generichash_blake2b_update(&state, b.bytes, b.len);
    SHOAL_ASSERT(failed == 0);
    failed = crypto_generichash_blake2b_final(&state, out, HASH_BYTES);
    SHOAL_ASSERT(failed == 0);
}

/* RFC 2104 with BLAKE2b: Noise does not use BLAKE2b's own keyed mode. The key is always one hash long. */
static void hmac(uint8_t out[HASH_BYTES], const uint8_t key[HASH_BYTES], struct shoal_view data)
{
    uint8_t pad[HMAC_BLOCK_BYTES];
    uint8_t inner[HASH_BYTES];

    for (size_t i = 0; i < sizeof(pad); i++)
        pad[i] = (uint8_t)((i < HASH_BYTES ? key[i] : 0) ^ 0x36);
    hash_two(inner, shoal_view_of(pad, sizeof(pad)), data);
    for (size_t i = 0; i < sizeof(pad); i++)
        pad[i] ^= 0x36 ^ 0x5c;
    hash_two(out, shoal_view_of(pad, sizeof(pad)), shoal_view_of(inner, sizeof(inner)));
    sodium_memzero(pad, sizeof(pad));
    sodium_memzero(inner, sizeof(inner));
}

/* `outputs` (2 or 3) keys of HASH_BYTES each. */
static void hkdf(const uint8_t ck[HASH_BYTES], struct shoal_view ikm, unsigned outputs, uint8_t out[][HASH_BYTES])
{
    uint8_t temp[HASH_BYTES];
    uint8_t data[HASH_BYTES + 1];

    hmac(temp, ck, ikm);
    for (unsigned i = 0; i < outputs; i++) {
        size_t before = i == 0 ? 0 : HASH_BYTES;

        if (i > 0)
            memcpy(data, out[i - 1], HASH_BYTES);
        data[before] = (uint8_t)(i + 1);
        hmac(out[i], temp, shoal_view_of(data, before + 1));
    }
    sodium_memzero(temp, sizeof(temp));
    sodium_memzero(data, sizeof(data));
}

static void cipher_init(struct cipher *cipher, const uint8_t key[KEY_BYTES])
{
    memcpy(cipher->key, key, KEY_BYTES);
    cipher->counter = 0;
    cipher->has_key = true;
}

static void mix_hash(struct shoal_noise *noise, struct shoal_view data)
{
    hash_two(noise->h, shoal_view_of(noise->h, HASH_BYTES), data);
}

static void mix_key(struct shoal_noise *noise, const uint8_t ikm[KEY_BYTES])
{
    uint8_t out[2][HASH_BYTES];

    hkdf(noise->ck, shoal_view_of(ikm, KEY_BYTES), 2, out);
    memcpy(noise->ck, out[0], HASH_BYTES);
    cipher_init(&noise->handshake, out[1]);
    sodium_memzero(out, sizeof(out));
}

static void mix_psk(struct shoal_noise *noise)
{
    uint8_t out[3][HASH_BYTES];

    hkdf(noise->ck, shoal_view_of(noise->psk, KEY_BYTES), 3, out);
    memcpy(noise->ck, out[0], HASH_BYTES);
    mix_hash(noise, shoal_view_of(out[1], HASH_BYTES));
    cipher_init(&noise->handshake, out[2]);
    sodium_memzero(out, sizeof(out));
}

/* ---- ciphers (section 5.1) ---------------------------------------------------------------------- */

static void nonce_of(uint64_t counter, uint8_t nonce[12])
{
    memset(nonce, 0, 4);
    for (unsigned i = 0; i < 8; i++)
        nonce[4 + i] = (uint8_t)(counter >> (8 * i));
}

static void cipher_seal(struct cipher *cipher, struct shoal_view ad, struct shoal_view plain, uint8_t *out)
{
    uint8_t nonce[12];
    int failed;

    SHOAL_ASSERT(cipher->has_key && cipher->counter != UINT64_MAX);
    nonce_of(cipher->counter++, nonce);
    if (cipher->fast != NULL && plain.len >= FAST_BYTES) {
        bool sealed = aead_seal(cipher->fast, nonce, plain, out);

        SHOAL_ASSERT(sealed); /* OpenSSL's cipher has no reason to fail once it has its key */
        return;
    }
    failed = crypto_aead_chacha20poly1305_ietf_encrypt(out, NULL, plain.bytes, plain.len, ad.bytes, ad.len, NULL, nonce,
                                                       cipher->key);
    SHOAL_ASSERT(failed == 0);
}

static bool cipher_open(struct cipher *cipher, struct shoal_view ad, struct shoal_view sealed, uint8_t *out)
{
    uint8_t nonce[12];

    if (!cipher->has_key || cipher->counter == UINT64_MAX || sealed.len < TAG_BYTES)
        return false;
    SHOAL_ASSERT(sealed.bytes != NULL);
    nonce_of(cipher->counter, nonce);
    if (cipher->fast != NULL && sealed.len >= FAST_BYTES + TAG_BYTES) {
        if (!aead_open(cipher->fast, nonce, sealed, out))
            return false;
    } else if (crypto_aead_chacha20poly1305_ietf_decrypt(out, NULL, NULL, sealed.bytes, sealed.len, ad.bytes, ad.len,
                                                         nonce, cipher->key) != 0) {
        return false;
    }
    cipher->counter++;
    return true;
}

/* EncryptAndHash; every message of a psk pattern has a key by the time it is called (I3). */
static void seal_and_hash(struct shoal_noise *noise, struct shoal_view plain, struct shoal_writer *w)
{
    uint8_t *out = shoal_put_space(w, plain.len + TAG_BYTES);

    if (out == NULL)
        return;
    cipher_seal(&noise->handshake, shoal_view_of(noise->h, HASH_BYTES), plain, out);
    mix_hash(noise, shoal_view_of(out, plain.len + TAG_BYTES));
}

static bool open_and_hash(struct shoal_noise *noise, struct shoal_view sealed, uint8_t *out)
{
    if (!cipher_open(&noise->handshake, shoal_view_of(noise->h, HASH_BYTES), sealed, out))
        return false;
    mix_hash(noise, sealed);
    return true;
}

/* ---- the handshake (section 5.3) ---------------------------------------------------------------- */

static bool mix_dh(struct shoal_noise *noise, const uint8_t secret[KEY_BYTES], const uint8_t public_key[KEY_BYTES])
{
    uint8_t shared[KEY_BYTES];
    bool ok = crypto_scalarmult(shared, secret, public_key) == 0; /* fails on a point of small order */

    if (ok)
        mix_key(noise, shared);
    sodium_memzero(shared, sizeof(shared));
    return ok;
}

static bool mix_token(struct shoal_noise *noise, enum token token)
{
    const uint8_t *ours, *theirs;

    switch (token) {
    case TOKEN_EE: return mix_dh(noise, noise->e_secret, noise->re);
    case TOKEN_ES:
        ours = noise->initiator ? noise->e_secret : noise->s_secret;
        theirs = noise->initiator ? noise->rs : noise->re;
        return mix_dh(noise, ours, theirs);
    case TOKEN_SE:
        ours = noise->initiator ? noise->s_secret : noise->e_secret;
        theirs = noise->initiator ? noise->re : noise->rs;
        return mix_dh(noise, ours, theirs);
    case TOKEN_PSK: mix_psk(noise); return true;
    case TOKEN_E:
    case TOKEN_S:
    case TOKEN_END: break;
    }
    return false;
}

static void mix_ephemeral(struct shoal_noise *noise, const uint8_t key[KEY_BYTES])
{
    mix_hash(noise, shoal_view_of(key, KEY_BYTES));
    mix_key(noise, key); /* I3 */
}

static void split(struct shoal_noise *noise)
{
    uint8_t out[2][HASH_BYTES];

    hkdf(noise->ck, shoal_view_of(NULL, 0), 2, out);
    cipher_init(noise->initiator ? &noise->send : &noise->receive, out[0]);
    cipher_init(noise->initiator ? &noise->receive : &noise->send, out[1]);
    noise->send.fast = aead_create(noise->send.key, false);
    noise->receive.fast = aead_create(noise->receive.key, true);
    sodium_memzero(out, sizeof(out));
    sodium_memzero(noise->ck, sizeof(noise->ck));
    sodium_memzero(noise->e_secret, sizeof(noise->e_secret));
    sodium_memzero(noise->psk, sizeof(noise->psk));
    sodium_memzero(&noise->handshake, sizeof(noise->handshake));
}

enum shoal_err shoal_noise_create(struct shoal_noise **noise, const struct shoal_noise_options *options)
{
    struct shoal_noise *made = calloc(1, sizeof(*made));
    int failed;

    if (made == NULL)
        return SHOAL_ERR_FULL;
    made->initiator = options->initiator;
    memcpy(made->s_secret, options->static_secret, KEY_BYTES);
    memcpy(made->psk, options->psk, KEY_BYTES);
    failed = crypto_scalarmult_base(made->s_public, made->s_secret);
    SHOAL_ASSERT(failed == 0);
    if (options->ephemeral_secret != NULL) {
        memcpy(made->e_secret, options->ephemeral_secret, KEY_BYTES);
        made->has_ephemeral = true;
    }
    memcpy(made->h, protocol_name, sizeof(protocol_name) - 1);
    memcpy(made->ck, made->h, HASH_BYTES);
    mix_hash(made, options->prologue);
    *noise = made;
    return SHOAL_OK;
}

void shoal_noise_destroy(struct shoal_noise *noise)
{
    if (noise == NULL)
        return;
    aead_destroy(noise->send.fast);
    aead_destroy(noise->receive.fast);
    sodium_memzero(noise, sizeof(*noise));
    free(noise);
}

static void write_ephemeral(struct shoal_noise *noise, struct shoal_writer *w)
{
    int failed;

    if (!noise->has_ephemeral)
        randombytes_buf(noise->e_secret, KEY_BYTES);
    failed = crypto_scalarmult_base(noise->e_public, noise->e_secret);
    SHOAL_ASSERT(failed == 0);
    shoal_put_raw(w, noise->e_public, KEY_BYTES);
    mix_ephemeral(noise, noise->e_public);
}

enum shoal_err shoal_noise_write(struct shoal_noise *noise, struct shoal_view payload, uint8_t *out, size_t cap,
                                 size_t *len)
{
    struct shoal_writer w = shoal_writer_init(out, cap < SHOAL_NOISE_MESSAGE_MAX ? cap : SHOAL_NOISE_MESSAGE_MAX);
    bool ok = true;

    SHOAL_ASSERT(noise->step < 3 && (noise->step % 2 == 0) == noise->initiator);
    if (noise->failed)
        return SHOAL_ERR_MALFORMED;
    for (const enum token *token = pattern[noise->step]; *token != TOKEN_END && ok; token++) {
        if (*token == TOKEN_E)
            write_ephemeral(noise, &w);
        else if (*token == TOKEN_S)
            seal_and_hash(noise, shoal_view_of(noise->s_public, KEY_BYTES), &w);
        else
            ok = mix_token(noise, *token);
    }
    seal_and_hash(noise, payload, &w);
    if (!ok || w.failed) {
        noise->failed = true;
        return w.failed ? SHOAL_ERR_TOO_BIG : SHOAL_ERR_MALFORMED;
    }
    *len = w.len;
    if (++noise->step == 3)
        split(noise);
    return SHOAL_OK;
}

static bool read_tokens(struct shoal_noise *noise, struct shoal_reader *r)
{
    for (const enum token *token = pattern[noise->step]; *token != TOKEN_END; token++) {
        const uint8_t *at;

        if (*token == TOKEN_E) {
            shoal_get_raw(r, noise->re, KEY_BYTES);
            if (r->failed)
                return false;
            mix_ephemeral(noise, noise->re);
        } else if (*token == TOKEN_S) {
            at = shoal_get_space(r, KEY_BYTES + TAG_BYTES);
            if (at == NULL || !open_and_hash(noise, shoal_view_of(at, KEY_BYTES + TAG_BYTES), noise->rs))
                return false;
        } else if (!mix_token(noise, *token)) {
            return false;
        }
    }
    return true;
}

enum shoal_err shoal_noise_read(struct shoal_noise *noise, struct shoal_view message, uint8_t *out, size_t cap,
                                size_t *len)
{
    struct shoal_reader r = shoal_reader_init(message);
    size_t left;

    SHOAL_ASSERT(noise->step < 3 && (noise->step % 2 == 0) != noise->initiator);
    if (noise->failed)
        return SHOAL_ERR_MALFORMED;
    noise->failed = true; /* until the message is known to be whole */
    if (message.len > SHOAL_NOISE_MESSAGE_MAX || !read_tokens(noise, &r))
        return SHOAL_ERR_MALFORMED;
    left = shoal_reader_left(&r);
    if (left < TAG_BYTES)
        return SHOAL_ERR_MALFORMED;
    if (left - TAG_BYTES > cap)
        return SHOAL_ERR_TOO_BIG;
    if (!open_and_hash(noise, shoal_view_of(message.bytes + r.at, left), out))
        return SHOAL_ERR_MALFORMED;
    noise->failed = false;
    *len = left - TAG_BYTES;
    if (++noise->step == 3)
        split(noise);
    return SHOAL_OK;
}

bool shoal_noise_is_ready(const struct shoal_noise *noise) { return noise->step == 3 && !noise->failed; }

void shoal_noise_remote_static(const struct shoal_noise *noise, uint8_t key[32]) { memcpy(key, noise->rs, KEY_BYTES); }

void shoal_noise_handshake_hash(const struct shoal_noise *noise, uint8_t hash[64])
{
    memcpy(hash, noise->h, HASH_BYTES);
}

/* ---- transport ---- */

enum shoal_err shoal_noise_seal(struct shoal_noise *noise, struct shoal_view plain, uint8_t *out)
{
    SHOAL_ASSERT(shoal_noise_is_ready(noise));
    SHOAL_ASSERT(plain.len <= SHOAL_NOISE_PLAIN_MAX);
    if (noise->send.counter == UINT64_MAX)
        return SHOAL_ERR_STALE;
    cipher_seal(&noise->send, shoal_view_of(NULL, 0), plain, out);
    return SHOAL_OK;
}

enum shoal_err shoal_noise_open(struct shoal_noise *noise, struct shoal_view message, uint8_t *out)
{
    SHOAL_ASSERT(noise->step == 3);
    if (noise->failed || message.len > SHOAL_NOISE_MESSAGE_MAX ||
        !cipher_open(&noise->receive, shoal_view_of(NULL, 0), message, out)) {
        noise->failed = true; /* TCP neither loses nor repeats: somebody else did */
        return SHOAL_ERR_MALFORMED;
    }
    return SHOAL_OK;
}

void shoal_noise_secret_of(const struct shoal_secret_key *secret_key, uint8_t secret[32])
{
    int failed = crypto_sign_ed25519_sk_to_curve25519(secret, secret_key->bytes);

    SHOAL_ASSERT(failed == 0);
}

enum shoal_err shoal_noise_public_of(const struct shoal_public_key *public_key, uint8_t key[32])
{
    return crypto_sign_ed25519_pk_to_curve25519(key, public_key->bytes) == 0 ? SHOAL_OK : SHOAL_ERR_DENIED;
}
