/* One sealed connection between two members: a Noise handshake with the key that their tokens make, then records.
 *
 *   opens it --e, proof of the key--> answers it
 *   opens it <--e, ee, proof--------- answers it        each has a key for either direction, which nobody else can have
 *   u16 length of what follows, ciphertext, tag         each record; its number is its nonce
 *
 * Keys are fresh for each connection (both sides draw an X25519 key for it), so that nothing that was recorded can be
 * replayed, also not by who learns the tokens later. Records must come whole and in order: one that is missing, twice,
 * changed or from the other direction fails, and with it the connection.
 *
 * Source: The Noise Protocol Framework, revision 34: Noise_NNpsk0_25519_AESGCM_SHA256 (pattern NN of 7.5, psk0 of 9.4). */
#ifndef COLLECTIVE_SEAL_H
#define COLLECTIVE_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/buf.h"
#include "shoal/error.h"

#define SEAL_KEY_BYTES 32u
#define SEAL_TAG_BYTES 16u
#define SEAL_SHAKE_BYTES (SEAL_KEY_BYTES + SEAL_TAG_BYTES) /* of either message of the handshake, without a payload */
#define SEAL_SHAKE_MAX 160u                                /* with a payload; also the longest prologue */
#define SEAL_LENGTH_BYTES 2u
#define SEAL_CIPHER_MAX 65535u /* of a record, with its tag (section 3 of Noise) */
#define SEAL_PLAIN_MAX (SEAL_CIPHER_MAX - SEAL_TAG_BYTES)
#define SEAL_RECORD_MAX (SEAL_LENGTH_BYTES + SEAL_CIPHER_MAX)

struct seal;

struct seal_options {
    bool opens;                      /* it sends the first message */
    struct shoal_view prologue;      /* both sides must see the same; borrowed for the call */
    uint8_t psk[SEAL_KEY_BYTES];     /* seal_key() makes it */
    const uint8_t *ephemeral_secret; /* NULL: drawn; tests give it */
    uint64_t rekey_records;          /* a direction has a new key after so many; 0: 2^24, which is 1 TiB */
};

/* The key that two tokens of 16 bytes make: that of who opens the connection, and of who answers it. */
SHOAL_MUST_CHECK enum shoal_err seal_key(const uint8_t *opener_token, const uint8_t *answerer_token,
                                         uint8_t key[SEAL_KEY_BYTES]);
/* FULL: no memory, or no randomness. */
SHOAL_MUST_CHECK enum shoal_err seal_create(struct seal **seal, const struct seal_options *options);
void seal_destroy(struct seal *seal); /* accepts NULL; wipes the keys */

/* The next message of the handshake. Reading: DENIED for another key or prologue, or a changed message; the handshake
 * is over then. `payload` is at most SEAL_SHAKE_MAX - SEAL_SHAKE_BYTES. */
SHOAL_MUST_CHECK enum shoal_err seal_shake_write(struct seal *seal, struct shoal_view payload, uint8_t *out, size_t cap,
                                                 size_t *len);
SHOAL_MUST_CHECK enum shoal_err seal_shake_read(struct seal *seal, struct shoal_view message, uint8_t *payload,
                                                size_t cap, size_t *len);

/* A record in three parts: begin in `out` (SEAL_RECORD_MAX bytes, borrowed until the end), add plain bytes, at most
 * SEAL_PLAIN_MAX in all, and end, which tells how many bytes of `out` are to be sent. */
SHOAL_MUST_CHECK enum shoal_err seal_begin(struct seal *seal, uint8_t *out);
SHOAL_MUST_CHECK enum shoal_err seal_add(struct seal *seal, const void *bytes, size_t len);
SHOAL_MUST_CHECK enum shoal_err seal_end(struct seal *seal, size_t *len);
size_t seal_room(const struct seal *seal); /* for how many bytes more the record has room */

/* Ciphertext and tag of one record, without its length. `plain` has room for the ciphertext less SEAL_TAG_BYTES and may
 * be the ciphertext itself. DENIED: not the next record of the other side; `plain` holds nothing to be used then, and
 * nothing can be opened any more. */
SHOAL_MUST_CHECK enum shoal_err seal_open(struct seal *seal, const uint8_t *cipher, size_t cipher_len, uint8_t *plain);

#endif
