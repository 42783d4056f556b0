/* Noise_XXpsk3_25519_ChaChaPoly_BLAKE2b: the handshake and transport of a link between two agents.
 *
 *   initiator                          responder
 *      -> e                                           payload in the clear
 *      <- e, ee, s, es                                payload seen by whoever dialled
 *      -> s, se, psk                                  payload seen by the mesh alone
 *
 * Source: The Noise Protocol Framework, revision 34 (noiseprotocol.org); sections in noise_sodium.c. */
#ifndef SHOAL_NOISE_H
#define SHOAL_NOISE_H

#include "shoal/buf.h"
#include "shoal/crypto.h"

#define SHOAL_NOISE_MESSAGE_MAX 65535
#define SHOAL_NOISE_TAG_BYTES 16
#define SHOAL_NOISE_PLAIN_MAX (SHOAL_NOISE_MESSAGE_MAX - SHOAL_NOISE_TAG_BYTES)

struct shoal_noise;

struct shoal_noise_options {
    bool initiator;
    struct shoal_view prologue;
    uint8_t static_secret[32]; /* X25519 */
    uint8_t psk[32];
    const uint8_t *ephemeral_secret; /* NULL: random; given only by tests */
};

/* FULL: no memory. */
SHOAL_MUST_CHECK enum shoal_err shoal_noise_create(struct shoal_noise **noise,
                                                   const struct shoal_noise_options *options);
void shoal_noise_destroy(struct shoal_noise *noise);

/* One handshake message, written or read in turn. Any failure ends this handshake for good.
 * `*len`: bytes set in `out`. TOO_BIG: `cap` too small. MALFORMED: truncated, altered, or another psk. */
SHOAL_MUST_CHECK enum shoal_err shoal_noise_write(struct shoal_noise *noise, struct shoal_view payload, uint8_t *out,
                                                  size_t cap, size_t *len);
SHOAL_MUST_CHECK enum shoal_err shoal_noise_read(struct shoal_noise *noise, struct shoal_view message, uint8_t *out,
                                                 size_t cap, size_t *len);

bool shoal_noise_is_ready(const struct shoal_noise *noise);
/* The peer's X25519 key; only after its message was read. */
void shoal_noise_remote_static(const struct shoal_noise *noise, uint8_t key[32]);
void shoal_noise_handshake_hash(const struct shoal_noise *noise, uint8_t hash[64]);

/* Transport, once ready. seal: out holds plain.len + SHOAL_NOISE_TAG_BYTES. open: out holds message.len minus that; may
 * be the message itself. MALFORMED: altered, replayed, out of order, truncated; the connection is over.
 * STALE: 2^64 - 1 messages were sent. */
SHOAL_MUST_CHECK enum shoal_err shoal_noise_seal(struct shoal_noise *noise, struct shoal_view plain, uint8_t *out);
SHOAL_MUST_CHECK enum shoal_err shoal_noise_open(struct shoal_noise *noise, struct shoal_view message, uint8_t *out);

/* The X25519 form of this node's Ed25519 key, and of a peer's (DENIED: not a key of the main subgroup). */
void shoal_noise_secret_of(const struct shoal_secret_key *secret_key, uint8_t secret[32]);
SHOAL_MUST_CHECK enum shoal_err shoal_noise_public_of(const struct shoal_public_key *public_key, uint8_t key[32]);

#endif
