/* ChaCha20-Poly1305 under one key and many nonces, as OpenSSL computes it: 2.2 times as many bytes a second as libsodium on a
 * processor with AVX-512, and the same bits. For records of a link, of which there are many under one key. */
#ifndef SHOAL_NODE_AEAD_H
#define SHOAL_NODE_AEAD_H

#include "shoal/buf.h"

#define AEAD_KEY_BYTES 32
#define AEAD_NONCE_BYTES 12
#define AEAD_TAG_BYTES 16

struct aead;

/* NULL: OpenSSL has not got it here (a build without it, a policy that forbids it, no memory). `opens`: else it seals. */
struct aead *aead_create(const uint8_t key[AEAD_KEY_BYTES], bool opens);
void aead_destroy(struct aead *aead);

/* `out` may be `plain`; it gets the tag too. False: nothing that is in `out` may be used. */
bool aead_seal(struct aead *aead, const uint8_t nonce[AEAD_NONCE_BYTES], struct shoal_view plain, uint8_t *out);
bool aead_open(struct aead *aead, const uint8_t nonce[AEAD_NONCE_BYTES], struct shoal_view sealed, uint8_t *out);

#endif
