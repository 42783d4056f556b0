/* Bearer tokens: the JWT form that WMLA's clients expect (execs-api 2.3), signed with the mesh's key, so that every
 * node knows a token that any node made.
 *
 * T1. Every token has the same length, for all users and releases: dlicmd overwrites its token file without truncating.
 * T2. The payload's base64 holds neither '-' nor '_' and needs no padding: clients decode it with the standard
 *     alphabet. ASCII bytes make a 62 or 63 only as the last of a group of three, and only '>' '?' '~' and DEL do: they
 *     are escaped.
 * T3. What follows the signature's 43 characters is ignored. */
#ifndef SHOAL_TOKEN_H
#define SHOAL_TOKEN_H

#include "shoal/backend.h"

#define TOKEN_PAYLOAD_BYTES 480u
#define TOKEN_TEXT_BYTES (36u + 1u + TOKEN_PAYLOAD_BYTES / 3u * 4u + 1u + 43u)

struct token_claims {
    char user[SHOAL_USER_BYTES_MAX];
    uint32_t uid;
    bool admin;
    bool service; /* it is for asking models and for reading alone */
    uint64_t issued_s;
    uint64_t exp_s;
    uint8_t id[SHOAL_TOKEN_ID_BYTES];
};

/* Claims of a new token of this user, without an end: `exp_s` is the caller's to set. It is issued now, or as soon as the
 * user's tokens stand again. Its id begins with the uid, so that a user's revoked tokens can be counted (mesh.h); the rest
 * is random. */
struct token_claims token_claims_of(const struct shoal_user *user, uint64_t now_s);
/* `text` holds TOKEN_TEXT_BYTES + 1. INVALID: a user name that does not fit. */
SHOAL_MUST_CHECK enum shoal_err token_make(const struct token_claims *claims, const uint8_t key[SHOAL_TOKEN_KEY_BYTES],
                                           char *text, struct shoal_msg *msg);
/* Checks form and signature against all keys, and the time; not revocation, not the user. DENIED with the reason. */
SHOAL_MUST_CHECK enum shoal_err token_check(struct shoal_view text, const struct shoal_token_keys *keys, uint64_t now_s,
                                            struct token_claims *claims, struct shoal_msg *msg);

/* Tokens that were checked, so that each is once (decision 0048): by a keyed digest of the token and of the keys that it was checked
 * with, so that none is known any more when those change. The tokens themselves are not kept. */
#define TOKEN_KNOWN_MAX 64

struct token_known {
    uint8_t secret[32]; /* of the digests: set at random before anything else */
    struct {
        uint8_t digest[32];
        struct token_claims claims; /* exp_s 0: empty */
    } places[TOKEN_KNOWN_MAX];
};

/* As token_check(). */
SHOAL_MUST_CHECK enum shoal_err token_check_known(struct token_known *known, struct shoal_view text,
                                                  const struct shoal_token_keys *keys, uint64_t now_s,
                                                  struct token_claims *claims, struct shoal_msg *msg);

#endif
