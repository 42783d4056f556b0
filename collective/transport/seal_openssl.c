/* Noise_NNpsk0_25519_AESGCM_SHA256 on OpenSSL's primitives (seal.h). OpenSSL and not libsodium: its AES-GCM moves 2.4
 * times as many bytes a second on a core (decision 0019).
 *
 *   h   hash of all that was sent so far: each ciphertext authenticates the whole conversation before it
 *   ck  chaining key: the psk and the DH result go in, each cipher key comes out
 *
 * I1. Any failure leaves the seal FAILED for good: nothing is sealed or opened after it.
 * I2. A cipher key and nonce are used once: the counter rises with each message, a new key starts at 0.
 * I3. After a psk, an ephemeral public key goes into ck too (section 9.2).
 *
 * Source: The Noise Protocol Framework, revision 34, sections 4 (primitives), 5 (processing), 9 (psk), 11.3 (rekey). */
#include "seal.h"

#include <string.h>
#include <sys/random.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "shoal/banned.h"

#define HASH_BYTES 32u
#define NONCE_BYTES 12u
#define REKEY_RECORDS (1ull << 24) /* of 64 KiB: far below where AES-GCM under one key can be told from chance */

static const char protocol_name[] = "Noise_NNpsk0_25519_AESGCM_SHA256";
_Static_assert(sizeof(protocol_name) - 1 == HASH_BYTES, "the name is the first hash (section 5.2)");
static const char key_label[] = "shoal data link, version 1";

struct cipher {
    EVP_CIPHER_CTX *ctx; /* NULL: no key */
    uint64_t counter;
    uint8_t key[SEAL_KEY_BYTES];
    bool opens; /* else it seals */
};

struct seal {
    uint8_t ck[HASH_BYTES];
    uint8_t h[HASH_BYTES];
    struct cipher handshake, send, receive;
    EVP_PKEY *ephemeral;
    uint8_t public_key[SEAL_KEY_BYTES];
    uint8_t theirs[SEAL_KEY_BYTES]; /* the other side's public key, once it was read */
    uint8_t psk[SEAL_KEY_BYTES];
    uint64_t rekey_records;
    bool initiator;
    bool failed;
    unsigned step; /* handshake messages done; 2: ready */
    uint8_t *out;  /* the record that is being made, or NULL */
    size_t out_plain;
};

static enum shoal_err fail(struct seal *seal, enum shoal_err err)
{
    seal->failed = true; /* I1 */
    return err;
}

/* ---- hashes (sections 4.3 and 5.2) ---- */

static bool mix_hash(struct seal *seal, const uint8_t *bytes, size_t len)
{
    uint8_t both[HASH_BYTES + SEAL_SHAKE_MAX];

    if (len > SEAL_SHAKE_MAX)
        return false;
    memcpy(both, seal->h, HASH_BYTES);
    if (len > 0)
        memcpy(both + HASH_BYTES, bytes, len);
    return EVP_Digest(both, HASH_BYTES + len, seal->h, NULL, EVP_sha256(), NULL) == 1;
}

static bool hmac(const uint8_t key[HASH_BYTES], const uint8_t *bytes, size_t len, uint8_t out[HASH_BYTES])
{
    unsigned got = 0;

    return HMAC(EVP_sha256(), key, HASH_BYTES, bytes, len, out, &got) != NULL && got == HASH_BYTES;
}

/* `outputs` (2 or 3) keys. */
static bool hkdf(const uint8_t ck[HASH_BYTES], const uint8_t *ikm, size_t ikm_len, unsigned outputs,
                 uint8_t out[][HASH_BYTES])
{
    uint8_t temp[HASH_BYTES];
    uint8_t data[HASH_BYTES + 1];
    bool good = hmac(ck, ikm, ikm_len, temp);

    for (unsigned i = 0; i < outputs && good; i++) {
        size_t before = i == 0 ? 0 : HASH_BYTES;

        if (i > 0)
            memcpy(data, out[i - 1], HASH_BYTES);
        data[before] = (uint8_t)(i + 1);
        good = hmac(temp, data, before + 1, out[i]);
    }
    OPENSSL_cleanse(temp, sizeof(temp));
    OPENSSL_cleanse(data, sizeof(data));
    return good;
}

/* ---- ciphers (section 5.1) ---- */

static bool cipher_key(struct cipher *cipher, const uint8_t key[SEAL_KEY_BYTES], bool opens)
{
    if (cipher->ctx == NULL)
        cipher->ctx = EVP_CIPHER_CTX_new();
    cipher->counter = 0; /* I2 */
    cipher->opens = opens;
    memcpy(cipher->key, key, SEAL_KEY_BYTES);
    return cipher->ctx != NULL &&
           EVP_CipherInit_ex(cipher->ctx, EVP_aes_256_gcm(), NULL, key, NULL, opens ? 0 : 1) == 1;
}

static void cipher_deinit(struct cipher *cipher)
{
    EVP_CIPHER_CTX_free(cipher->ctx);
    OPENSSL_cleanse(cipher, sizeof(*cipher));
    cipher->ctx = NULL;
}

/* 32 bits of zeros, then the counter, the highest byte first (section 12.4). */
static bool cipher_begin(struct cipher *cipher, uint64_t counter, const uint8_t *ad, size_t ad_len)
{
    uint8_t nonce[NONCE_BYTES] = { 0 };
    int got;

    for (unsigned i = 0; i < 8; i++)
        nonce[4 + i] = (uint8_t)(counter >> (56 - 8 * i));
    return EVP_CipherInit_ex(cipher->ctx, NULL, NULL, NULL, nonce, -1) == 1 &&
           (ad_len == 0 || EVP_CipherUpdate(cipher->ctx, NULL, &got, ad, (int)ad_len) == 1);
}

static bool cipher_add(struct cipher *cipher, const uint8_t *in, size_t len, uint8_t *out)
{
    int got = 0;

    return len == 0 || (EVP_CipherUpdate(cipher->ctx, out, &got, in, (int)len) == 1 && (size_t)got == len);
}

static bool cipher_end_seal(struct cipher *cipher, uint8_t tag[SEAL_TAG_BYTES])
{
    uint8_t none[16];
    int got;

    return EVP_CipherFinal_ex(cipher->ctx, none, &got) == 1 &&
           EVP_CIPHER_CTX_ctrl(cipher->ctx, EVP_CTRL_AEAD_GET_TAG, SEAL_TAG_BYTES, tag) == 1;
}

static bool cipher_end_open(struct cipher *cipher, const uint8_t tag[SEAL_TAG_BYTES])
{
    uint8_t copy[SEAL_TAG_BYTES];
    uint8_t none[16];
    int got;

    memcpy(copy, tag, SEAL_TAG_BYTES);
    return EVP_CIPHER_CTX_ctrl(cipher->ctx, EVP_CTRL_AEAD_SET_TAG, SEAL_TAG_BYTES, copy) == 1 &&
           EVP_CipherFinal_ex(cipher->ctx, none, &got) == 1;
}

/* The counter moves on; in time the key is replaced by zeros sealed under it (section 11.3). */
static bool cipher_next(struct cipher *cipher, uint64_t rekey_records)
{
    static const uint8_t zeros[SEAL_KEY_BYTES];
    struct cipher maker = { 0 };
    uint8_t key[SEAL_KEY_BYTES];
    bool good;

    if (++cipher->counter < rekey_records)
        return true;
    good = cipher_key(&maker, cipher->key, false) && cipher_begin(&maker, UINT64_MAX, NULL, 0) &&
           cipher_add(&maker, zeros, sizeof(zeros), key) && cipher_key(cipher, key, cipher->opens);
    cipher_deinit(&maker);
    OPENSSL_cleanse(key, sizeof(key));
    return good;
}

/* ---- the handshake (sections 5.3, 7.5 and 9) ---- */

static bool mix_key(struct seal *seal, const uint8_t ikm[SEAL_KEY_BYTES], bool opens)
{
    uint8_t out[2][HASH_BYTES];
    bool good = hkdf(seal->ck, ikm, SEAL_KEY_BYTES, 2, out);

    memcpy(seal->ck, out[0], HASH_BYTES);
    good = good && cipher_key(&seal->handshake, out[1], opens);
    OPENSSL_cleanse(out, sizeof(out));
    return good;
}

static bool mix_psk(struct seal *seal, bool opens)
{
    uint8_t out[3][HASH_BYTES];
    bool good = hkdf(seal->ck, seal->psk, SEAL_KEY_BYTES, 3, out);

    memcpy(seal->ck, out[0], HASH_BYTES);
    good = good && mix_hash(seal, out[1], HASH_BYTES) && cipher_key(&seal->handshake, out[2], opens);
    OPENSSL_cleanse(out, sizeof(out));
    return good;
}

static bool mix_dh(struct seal *seal, bool opens)
{
    EVP_PKEY *peer = EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, NULL, seal->theirs, SEAL_KEY_BYTES);
    EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new(seal->ephemeral, NULL);
    uint8_t shared[SEAL_KEY_BYTES] = { 0 };
    size_t len = sizeof(shared);
    bool good = peer != NULL && ctx != NULL && EVP_PKEY_derive_init(ctx) == 1 &&
                EVP_PKEY_derive_set_peer(ctx, peer) == 1 && EVP_PKEY_derive(ctx, shared, &len) == 1 &&
                len == sizeof(shared) && mix_key(seal, shared, opens);

    EVP_PKEY_CTX_free(ctx);
    EVP_PKEY_free(peer);
    OPENSSL_cleanse(shared, sizeof(shared));
    return good;
}

static bool split(struct seal *seal)
{
    uint8_t out[2][HASH_BYTES];
    bool good = hkdf(seal->ck, NULL, 0, 2, out) && cipher_key(&seal->send, out[seal->initiator ? 0 : 1], false) &&
                cipher_key(&seal->receive, out[seal->initiator ? 1 : 0], true);

    OPENSSL_cleanse(out, sizeof(out));
    OPENSSL_cleanse(seal->ck, sizeof(seal->ck));
    OPENSSL_cleanse(seal->psk, sizeof(seal->psk));
    EVP_PKEY_free(seal->ephemeral);
    seal->ephemeral = NULL;
    cipher_deinit(&seal->handshake);
    return good;
}

/* The tokens of the next message, whose sender's key is `public_key`: psk, e in the first, e, ee in the second. */
static bool mix_step(struct seal *seal, const uint8_t public_key[SEAL_KEY_BYTES], bool opens)
{
    if (seal->step == 0 && !mix_psk(seal, opens))
        return false;
    if (!mix_hash(seal, public_key, SEAL_KEY_BYTES) || !mix_key(seal, public_key, opens)) /* I3 */
        return false;
    return seal->step == 0 || mix_dh(seal, opens);
}

enum shoal_err seal_key(const uint8_t *opener_token, const uint8_t *answerer_token, uint8_t key[SEAL_KEY_BYTES])
{
    uint8_t text[sizeof(key_label) + 32];

    memcpy(text, key_label, sizeof(key_label));
    memcpy(text + sizeof(key_label), opener_token, 16);
    memcpy(text + sizeof(key_label) + 16, answerer_token, 16);
    return EVP_Digest(text, sizeof(text), key, NULL, EVP_sha256(), NULL) == 1 ? SHOAL_OK : SHOAL_ERR_FULL;
}

static bool draw_ephemeral(struct seal *seal, const uint8_t *given)
{
    uint8_t secret[SEAL_KEY_BYTES];
    size_t len = SEAL_KEY_BYTES;
    bool good = true;

    if (given != NULL)
        memcpy(secret, given, sizeof(secret));
    else
        good = getrandom(secret, sizeof(secret), 0) == (ssize_t)sizeof(secret);
    if (good)
        seal->ephemeral = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, secret, sizeof(secret));
    OPENSSL_cleanse(secret, sizeof(secret));
    return seal->ephemeral != NULL && EVP_PKEY_get_raw_public_key(seal->ephemeral, seal->public_key, &len) == 1;
}

enum shoal_err seal_create(struct seal **out, const struct seal_options *options)
{
    struct seal *seal = OPENSSL_zalloc(sizeof(*seal));

    if (seal == NULL)
        return SHOAL_ERR_FULL;
    seal->initiator = options->opens;
    seal->rekey_records = options->rekey_records == 0 ? REKEY_RECORDS : options->rekey_records;
    memcpy(seal->psk, options->psk, sizeof(seal->psk));
    memcpy(seal->h, protocol_name, HASH_BYTES);
    memcpy(seal->ck, protocol_name, HASH_BYTES);
    if (!mix_hash(seal, options->prologue.bytes, options->prologue.len) ||
        !draw_ephemeral(seal, options->ephemeral_secret)) {
        seal_destroy(seal);
        return SHOAL_ERR_FULL;
    }
    *out = seal;
    return SHOAL_OK;
}

void seal_destroy(struct seal *seal)
{
    if (seal == NULL)
        return;
    cipher_deinit(&seal->handshake);
    cipher_deinit(&seal->send);
    cipher_deinit(&seal->receive);
    EVP_PKEY_free(seal->ephemeral);
    OPENSSL_cleanse(seal, sizeof(*seal));
    OPENSSL_free(seal);
}

enum shoal_err seal_shake_write(struct seal *seal, struct shoal_view payload, uint8_t *out, size_t cap, size_t *len)
{
    size_t total = SEAL_SHAKE_BYTES + payload.len;
    bool good;

    SHOAL_ASSERT(seal->step == (seal->initiator ? 0u : 1u));
    if (seal->failed || total > SEAL_SHAKE_MAX || cap < total)
        return fail(seal, SHOAL_ERR_TOO_BIG);
    good = mix_step(seal, seal->public_key, false);
    memcpy(out, seal->public_key, SEAL_KEY_BYTES);
    good = good && cipher_begin(&seal->handshake, 0, seal->h, HASH_BYTES) &&
           cipher_add(&seal->handshake, payload.bytes, payload.len, out + SEAL_KEY_BYTES) &&
           cipher_end_seal(&seal->handshake, out + SEAL_KEY_BYTES + payload.len) &&
           mix_hash(seal, out + SEAL_KEY_BYTES, payload.len + SEAL_TAG_BYTES);
    if (good && ++seal->step == 2)
        good = split(seal);
    *len = total;
    return good ? SHOAL_OK : fail(seal, SHOAL_ERR_FULL);
}

enum shoal_err seal_shake_read(struct seal *seal, struct shoal_view message, uint8_t *payload, size_t cap, size_t *len)
{
    const uint8_t *cipher;
    size_t plain;

    SHOAL_ASSERT(seal->step == (seal->initiator ? 1u : 0u));
    if (seal->failed || message.len < SEAL_SHAKE_BYTES || message.len > SEAL_SHAKE_MAX ||
        cap < message.len - SEAL_SHAKE_BYTES)
        return fail(seal, SHOAL_ERR_DENIED);
    cipher = message.bytes + SEAL_KEY_BYTES;
    plain = message.len - SEAL_SHAKE_BYTES;
    memcpy(seal->theirs, message.bytes, SEAL_KEY_BYTES);
    if (!mix_step(seal, message.bytes, true) || !cipher_begin(&seal->handshake, 0, seal->h, HASH_BYTES) ||
        !cipher_add(&seal->handshake, cipher, plain, payload) || !cipher_end_open(&seal->handshake, cipher + plain) ||
        !mix_hash(seal, cipher, plain + SEAL_TAG_BYTES))
        return fail(seal, SHOAL_ERR_DENIED);
    if (++seal->step == 2 && !split(seal))
        return fail(seal, SHOAL_ERR_FULL);
    *len = plain;
    return SHOAL_OK;
}

/* ---- records ---- */

enum shoal_err seal_begin(struct seal *seal, uint8_t *out)
{
    SHOAL_ASSERT(seal->out == NULL);
    if (seal->failed || seal->step != 2 || !cipher_begin(&seal->send, seal->send.counter, NULL, 0))
        return fail(seal, SHOAL_ERR_FULL);
    seal->out = out;
    seal->out_plain = 0;
    return SHOAL_OK;
}

size_t seal_room(const struct seal *seal) { return SEAL_PLAIN_MAX - seal->out_plain; }

enum shoal_err seal_add(struct seal *seal, const void *bytes, size_t len)
{
    SHOAL_ASSERT(seal->out != NULL && len <= seal_room(seal));
    if (!cipher_add(&seal->send, bytes, len, seal->out + SEAL_LENGTH_BYTES + seal->out_plain))
        return fail(seal, SHOAL_ERR_FULL);
    seal->out_plain += len;
    return SHOAL_OK;
}

enum shoal_err seal_end(struct seal *seal, size_t *len)
{
    size_t cipher_len = seal->out_plain + SEAL_TAG_BYTES;

    SHOAL_ASSERT(seal->out != NULL && seal->out_plain > 0);
    seal->out[0] = (uint8_t)cipher_len;
    seal->out[1] = (uint8_t)(cipher_len >> 8);
    if (!cipher_end_seal(&seal->send, seal->out + SEAL_LENGTH_BYTES + seal->out_plain) ||
        !cipher_next(&seal->send, seal->rekey_records))
        return fail(seal, SHOAL_ERR_FULL);
    seal->out = NULL;
    *len = SEAL_LENGTH_BYTES + cipher_len;
    return SHOAL_OK;
}

enum shoal_err seal_open(struct seal *seal, const uint8_t *cipher, size_t cipher_len, uint8_t *plain)
{
    size_t len;

    if (seal->failed || seal->step != 2 || cipher_len <= SEAL_TAG_BYTES || cipher_len > SEAL_CIPHER_MAX)
        return fail(seal, SHOAL_ERR_DENIED);
    len = cipher_len - SEAL_TAG_BYTES;
    if (!cipher_begin(&seal->receive, seal->receive.counter, NULL, 0) ||
        !cipher_add(&seal->receive, cipher, len, plain) || !cipher_end_open(&seal->receive, cipher + len) ||
        !cipher_next(&seal->receive, seal->rekey_records))
        return fail(seal, SHOAL_ERR_DENIED);
    return SHOAL_OK;
}
