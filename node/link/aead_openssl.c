/* See aead.h. */
#include "aead.h"

#include <openssl/evp.h>

#include "shoal/banned.h"

struct aead {
    EVP_CIPHER_CTX *ctx;
};

struct aead *aead_create(const uint8_t key[AEAD_KEY_BYTES], bool opens)
{
    struct aead *aead = calloc(1, sizeof(*aead));

    if (aead == NULL)
        return NULL;
    aead->ctx = EVP_CIPHER_CTX_new();
    if (aead->ctx != NULL &&
        EVP_CipherInit_ex(aead->ctx, EVP_chacha20_poly1305(), NULL, key, NULL, opens ? 0 : 1) == 1)
        return aead;
    aead_destroy(aead);
    return NULL;
}

void aead_destroy(struct aead *aead)
{
    if (aead == NULL)
        return;
    EVP_CIPHER_CTX_free(aead->ctx); /* which wipes the key */
    free(aead);
}

/* All of the message in one update: none of another length comes back. */
static bool run(struct aead *aead, const uint8_t nonce[AEAD_NONCE_BYTES], struct shoal_view in, uint8_t *out)
{
    int got = 0;

    return in.len <= INT32_MAX && EVP_CipherInit_ex(aead->ctx, NULL, NULL, NULL, nonce, -1) == 1 &&
           (in.len == 0 || (EVP_CipherUpdate(aead->ctx, out, &got, in.bytes, (int)in.len) == 1 && (size_t)got == in.len));
}

bool aead_seal(struct aead *aead, const uint8_t nonce[AEAD_NONCE_BYTES], struct shoal_view plain, uint8_t *out)
{
    uint8_t none[AEAD_TAG_BYTES];
    int got = 0;

    return run(aead, nonce, plain, out) && EVP_CipherFinal_ex(aead->ctx, none, &got) == 1 &&
           EVP_CIPHER_CTX_ctrl(aead->ctx, EVP_CTRL_AEAD_GET_TAG, AEAD_TAG_BYTES, out + plain.len) == 1;
}

bool aead_open(struct aead *aead, const uint8_t nonce[AEAD_NONCE_BYTES], struct shoal_view sealed, uint8_t *out)
{
    struct shoal_view body = sealed;
    uint8_t tag[AEAD_TAG_BYTES], none[AEAD_TAG_BYTES];
    int got = 0;

    if (sealed.len < AEAD_TAG_BYTES)
        return false;
    body.len -= AEAD_TAG_BYTES;
    memcpy(tag, body.bytes + body.len, sizeof(tag)); /* `out` may lie over it */
    return run(aead, nonce, body, out) &&
           EVP_CIPHER_CTX_ctrl(aead->ctx, EVP_CTRL_AEAD_SET_TAG, AEAD_TAG_BYTES, tag) == 1 &&
           EVP_CipherFinal_ex(aead->ctx, none, &got) == 1;
}
