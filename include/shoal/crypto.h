/* Keys, signatures, passwords and chance for secrets (libsodium). Call shoal_crypto_init once, before anything else. */
#ifndef SHOAL_CRYPTO_H
#define SHOAL_CRYPTO_H

#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/ids.h"

struct shoal_public_key {
    uint8_t bytes[32]; /* Ed25519 */
};

struct shoal_secret_key {
    uint8_t bytes[64]; /* Ed25519: seed, then public key */
};

struct shoal_signature {
    uint8_t bytes[64];
};

/* A symmetric secret: the mesh secret, the token key. */
struct shoal_secret {
    uint8_t bytes[32];
};

/* A tag of HMAC-SHA256. */
struct shoal_mac {
    uint8_t bytes[32];
};

#define SHOAL_SECRET_TEXT_BYTES 65    /* hex digits, NUL */
#define SHOAL_PASSWORD_HASH_BYTES 128 /* text of crypto_pwhash_str, NUL included */
#define SHOAL_PASSWORD_BYTES_MAX 256

/* May be called again. STORAGE: the kernel gives no random bytes. */
SHOAL_MUST_CHECK enum shoal_err shoal_crypto_init(struct shoal_msg *msg);

void shoal_random(void *bytes, size_t len);
struct shoal_secret shoal_secret_random(void);

void shoal_key_create(struct shoal_public_key *public_key, struct shoal_secret_key *secret_key);
/* The same key for the same seed: for tests and the simulator. */
void shoal_key_of_seed(const uint8_t seed[32], struct shoal_public_key *public_key,
                       struct shoal_secret_key *secret_key);
struct shoal_node_id shoal_node_id_of(const struct shoal_public_key *public_key);

/* The signed bytes begin with their own (kind, version), so that no record passes for one of another kind. */
struct shoal_signature shoal_sign(const struct shoal_secret_key *secret_key, struct shoal_view view);
bool shoal_verify(const struct shoal_public_key *public_key, struct shoal_view view,
                  const struct shoal_signature *signature);

struct shoal_mac shoal_mac_of(const struct shoal_secret *key, struct shoal_view view);
/* In constant time. */
bool shoal_mac_verify(const struct shoal_secret *key, struct shoal_view view, const struct shoal_mac *mac);
bool shoal_secret_equal(const void *a, const void *b, size_t len);

/* A key for one purpose, from a secret: BLAKE2b-256 of `purpose`, keyed. */
struct shoal_secret shoal_secret_derive(const struct shoal_secret *secret, const char *purpose);

/* Argon2id, interactive cost: about 0.1 s and 64 MiB. Never on the loop's thread: it runs in a worker.
 * INVALID: longer than SHOAL_PASSWORD_BYTES_MAX, or empty. FULL: no memory. */
SHOAL_MUST_CHECK enum shoal_err shoal_password_hash(struct shoal_view password, char text[SHOAL_PASSWORD_HASH_BYTES],
                                                    struct shoal_msg *msg);
bool shoal_password_verify(struct shoal_view password, const char *text);

/* Overwrite a secret before its memory goes. */
void shoal_wipe(void *bytes, size_t len);

#endif
