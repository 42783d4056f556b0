#include "shoal/token.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "shoal/crypto.h"
#include "shoal/mesh.h"
#include "shoal/wire.h"

#include "json_input.h"

#include "shoal/banned.h"

/* {"alg":"HS256","typ":"JWT"} */
static const char header[] = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9";

#define SIGNATURE_CHARS 43u
_Static_assert(TOKEN_TEXT_BYTES + 1 == SHOAL_TOKEN_TEXT_BYTES, "a user holds any token");

/* JSON string content, with T2's escapes. */
static bool escape_name(const char *name, char *out, size_t cap)
{
    size_t at = 0;

    for (; *name != '\0'; name++) {
        unsigned char c = (unsigned char)*name;

        if (c < 0x21 || c > 0x7e || c == '"' || c == '\\')
            return false;
        if (at + 7 > cap)
            return false;
        if (c == '>' || c == '?' || c == '~')
            at += (size_t)snprintf(out + at, cap - at, "\\u00%02x", c);
        else
            out[at++] = (char)c;
    }
    out[at] = '\0';
    return at > 0;
}

static const char *role_of(const struct token_claims *claims)
{
    if (claims->service)
        return "Service";
    return claims->admin ? "Admin" : "User";
}

struct token_claims token_claims_of(const struct shoal_user *user, uint64_t now_s)
{
    struct token_claims claims = { .uid = user->uid, .admin = user->admin };
    struct shoal_writer id = shoal_writer_init(claims.id, SHOAL_TOKEN_ID_UID_BYTES);

    (void)snprintf(claims.user, sizeof(claims.user), "%s", user->name);
    claims.issued_s = now_s > user->tokens_from_s ? now_s : user->tokens_from_s;
    shoal_put_u32(&id, user->uid);
    shoal_random(claims.id + SHOAL_TOKEN_ID_UID_BYTES, sizeof(claims.id) - SHOAL_TOKEN_ID_UID_BYTES);
    return claims;
}

static enum shoal_err fill_payload(const struct token_claims *claims, char *payload, struct shoal_msg *msg)
{
    char name[2 * SHOAL_USER_BYTES_MAX];
    char id[2 * SHOAL_TOKEN_ID_BYTES + 1];
    int len;

    if (!escape_name(claims->user, name, sizeof(name)))
        return shoal_fail(msg, SHOAL_ERR_INVALID,
                          "the user name cannot be put into a token: use letters, digits and . _ - @, at most 63");
    shoal_hex_text(claims->id, sizeof(claims->id), id);
    len = snprintf(payload, TOKEN_PAYLOAD_BYTES + 1,
                   "{\"username\":\"%s\",\"sub\":\"%s\",\"exp\":%" PRIu64 ",\"iat\":%" PRIu64 ",\"uid\":\"%" PRIu32
                   "\",\"role\":\"%s\",\"jti\":\"%s\",\"pad\":\"",
                   name, name, claims->exp_s, claims->issued_s, claims->uid, role_of(claims), id);
    if (len < 0 || (size_t)len + 2 > TOKEN_PAYLOAD_BYTES)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "the user name is too long for a token");
    memset(payload + len, '0', TOKEN_PAYLOAD_BYTES - (size_t)len - 2);
    memcpy(payload + TOKEN_PAYLOAD_BYTES - 2, "\"}", 3);
    return SHOAL_OK;
}

enum shoal_err token_make(const struct token_claims *claims, const uint8_t key[SHOAL_TOKEN_KEY_BYTES], char *text,
                          struct shoal_msg *msg)
{
    char payload[TOKEN_PAYLOAD_BYTES + 1];
    uint8_t mac[crypto_auth_hmacsha256_BYTES];
    enum shoal_err err = fill_payload(claims, payload, msg);
    size_t len;

    if (err != SHOAL_OK)
        return err;
    (void)snprintf(text, TOKEN_TEXT_BYTES + 1, "%s.", header);
    len = strlen(text);
    (void)sodium_bin2base64(text + len, TOKEN_TEXT_BYTES + 1 - len, (const uint8_t *)payload, TOKEN_PAYLOAD_BYTES,
                            sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    len = strlen(text);
    (void)crypto_auth_hmacsha256(mac, (const uint8_t *)text, len, key);
    text[len++] = '.';
    (void)sodium_bin2base64(text + len, TOKEN_TEXT_BYTES + 1 - len, mac, sizeof(mac),
                            sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    SHOAL_ASSERT(strlen(text) == TOKEN_TEXT_BYTES);
    return SHOAL_OK;
}

static bool signed_by_us(struct shoal_view text, const struct shoal_token_keys *keys)
{
    size_t signed_len = TOKEN_TEXT_BYTES - SIGNATURE_CHARS - 1;
    uint8_t mac[crypto_auth_hmacsha256_BYTES];
    size_t mac_len = 0;

    if (sodium_base642bin(mac, sizeof(mac), (const char *)text.bytes + signed_len + 1, SIGNATURE_CHARS, NULL, &mac_len,
                          NULL, sodium_base64_VARIANT_URLSAFE_NO_PADDING) != 0 ||
        mac_len != sizeof(mac))
        return false;
    for (size_t i = 0; i < keys->count; i++)
        if (crypto_auth_hmacsha256_verify(mac, text.bytes, signed_len, keys->keys[i]) == 0)
            return true;
    return false;
}

/* Only after the signature has been checked: these are our own bytes. */
static bool read_payload(const uint8_t *bytes, size_t len, struct token_claims *claims)
{
    struct shoal_msg msg;
    struct json_input *json;
    int64_t exp = 0;
    int64_t iat = 0;
    const char *user;
    const char *id;
    const char *role;
    bool ok = false;

    if (json_input_parse(shoal_view_of(bytes, len), &json, &msg) != SHOAL_OK)
        return false;
    user = json_input_text(json_input_root(json), "username");
    id = json_input_text(json_input_root(json), "jti");
    role = json_input_text(json_input_root(json), "role");
    if (user != NULL && id != NULL && role != NULL && strlen(user) < sizeof(claims->user) &&
        json_input_int(json_input_root(json), "exp", &exp) && json_input_int(json_input_root(json), "iat", &iat) &&
        exp > 0 && iat >= 0 && shoal_hex_parse(id, claims->id, sizeof(claims->id))) {
        (void)snprintf(claims->user, sizeof(claims->user), "%s", user);
        claims->admin = strcmp(role, "Admin") == 0;
        claims->service = strcmp(role, "Service") == 0;
        claims->exp_s = (uint64_t)exp;
        claims->issued_s = (uint64_t)iat;
        ok = true;
    }
    json_input_free(json);
    return ok;
}

enum shoal_err token_check(struct shoal_view text, const struct shoal_token_keys *keys, uint64_t now_s,
                           struct token_claims *claims, struct shoal_msg *msg)
{
    uint8_t payload[TOKEN_PAYLOAD_BYTES];
    size_t payload_len = 0;
    size_t head_len = sizeof(header) - 1;

    *claims = (struct token_claims){ .uid = 0 };
    if (keys->count == 0)
        return shoal_fail(msg, SHOAL_ERR_DENIED, "this node has no token key yet; try again in some seconds");
    if (text.len < TOKEN_TEXT_BYTES || memcmp(text.bytes, header, head_len) != 0 || text.bytes[head_len] != '.' ||
        text.bytes[TOKEN_TEXT_BYTES - SIGNATURE_CHARS - 1] != '.' || !signed_by_us(text, keys))
        return shoal_fail(msg, SHOAL_ERR_DENIED, "the token is not one of this mesh; log on again");
    if (sodium_base642bin(payload, sizeof(payload), (const char *)text.bytes + head_len + 1,
                          TOKEN_TEXT_BYTES - SIGNATURE_CHARS - 2 - head_len, NULL, &payload_len, NULL,
                          sodium_base64_VARIANT_URLSAFE_NO_PADDING) != 0 ||
        !read_payload(payload, payload_len, claims))
        return shoal_fail(msg, SHOAL_ERR_DENIED, "the token has no user in it; log on again");
    if (claims->exp_s <= now_s)
        return shoal_fail(msg, SHOAL_ERR_DENIED, "the token has expired; log on again");
    return SHOAL_OK;
}

static void digest_of(const struct token_known *known, struct shoal_view text, const struct shoal_token_keys *keys,
                      uint8_t digest[32])
{
    crypto_generichash_state state;

    (void)crypto_generichash_init(&state, known->secret, sizeof(known->secret), 32);
    (void)crypto_generichash_update(&state, keys->keys[0], keys->count * sizeof(keys->keys[0]));
    (void)crypto_generichash_update(&state, text.bytes, TOKEN_TEXT_BYTES);
    (void)crypto_generichash_final(&state, digest, 32);
    sodium_memzero(&state, sizeof(state));
}

enum shoal_err token_check_known(struct token_known *known, struct shoal_view text, const struct shoal_token_keys *keys,
                                 uint64_t now_s, struct token_claims *claims, struct shoal_msg *msg)
{
    uint8_t digest[32];
    unsigned place;
    enum shoal_err err;

    if (keys->count == 0 || text.len < TOKEN_TEXT_BYTES)
        return token_check(text, keys, now_s, claims, msg);
    digest_of(known, text, keys, digest);
    place = digest[0] % TOKEN_KNOWN_MAX;
    if (known->places[place].claims.exp_s > now_s &&
        sodium_memcmp(known->places[place].digest, digest, sizeof(digest)) == 0) {
        *claims = known->places[place].claims;
        return SHOAL_OK;
    }
    err = token_check(text, keys, now_s, claims, msg);
    if (err == SHOAL_OK) {
        memcpy(known->places[place].digest, digest, sizeof(digest));
        known->places[place].claims = *claims;
    }
    return err;
}
