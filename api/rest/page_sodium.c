/* Page tokens: base64url of
 *
 *   byte  0        version, 1
 *         1..4     seconds of the clock when it was made (little endian)
 *         5..14    job id
 *        15..22    the first 8 bytes of the filter's hash
 *        23        length of the key, n
 *        24..      key, n bytes
 *        24+n..    16 bytes: BLAKE2b of all before, keyed by the mesh's token key
 *
 * P1. Nothing of a token is believed before its signature is right.
 * P2. The same key signs logons; a token of one kind is none of the other, since what is hashed begins differently. */
#include "job_list.h"

#include <sodium.h>
#include <string.h>

#include "shoal/banned.h"

#define HEAD_BYTES 24u
#define MARK_BYTES 8u
#define MAC_BYTES 16u
#define RAW_BYTES_MAX (HEAD_BYTES + SHOAL_LIST_KEY_BYTES + MAC_BYTES)

static const char purpose[] = "shoal page";

static void filter_mark(struct shoal_view filter, uint8_t mark[MARK_BYTES])
{
    uint8_t hash[32];

    (void)crypto_generichash(hash, sizeof(hash), filter.bytes, filter.len, NULL, 0);
    memcpy(mark, hash, MARK_BYTES);
}

static void sign(const uint8_t *key, const uint8_t *bytes, size_t len, uint8_t mac[MAC_BYTES])
{
    crypto_generichash_state state;

    (void)crypto_generichash_init(&state, key, SHOAL_TOKEN_KEY_BYTES, MAC_BYTES);
    (void)crypto_generichash_update(&state, (const uint8_t *)purpose, sizeof(purpose));
    (void)crypto_generichash_update(&state, bytes, len);
    (void)crypto_generichash_final(&state, mac, MAC_BYTES);
}

void page_token_make(const struct shoal_token_keys *keys, uint64_t now_s, struct shoal_view filter,
                     const struct shoal_list_place *place, char *text)
{
    uint8_t raw[RAW_BYTES_MAX] = { 1 };
    size_t len = strlen(place->key);

    text[0] = '\0';
    if (keys->count == 0 || !place->is_set)
        return;
    for (unsigned i = 0; i < 4; i++)
        raw[1 + i] = (uint8_t)(now_s >> (8 * i));
    memcpy(raw + 5, place->id.bytes, sizeof(place->id.bytes));
    filter_mark(filter, raw + 15);
    raw[23] = (uint8_t)len;
    memcpy(raw + HEAD_BYTES, place->key, len);
    sign(keys->keys[0], raw, HEAD_BYTES + len, raw + HEAD_BYTES + len);
    (void)sodium_bin2base64(text, JOB_LIST_TOKEN_TEXT_BYTES, raw, HEAD_BYTES + len + MAC_BYTES,
                            sodium_base64_VARIANT_URLSAFE_NO_PADDING);
}

/* P1. */
static bool is_signed(const struct shoal_token_keys *keys, const uint8_t *raw, size_t len)
{
    uint8_t mac[MAC_BYTES];

    if (len < HEAD_BYTES + MAC_BYTES || raw[0] != 1 || raw[23] >= SHOAL_LIST_KEY_BYTES ||
        len != HEAD_BYTES + raw[23] + MAC_BYTES)
        return false;
    for (size_t i = 0; i < keys->count; i++) {
        sign(keys->keys[i], raw, len - MAC_BYTES, mac);
        if (sodium_memcmp(mac, raw + len - MAC_BYTES, MAC_BYTES) == 0)
            return true;
    }
    return false;
}

enum shoal_err page_token_read(const char *text, const struct shoal_token_keys *keys, uint64_t now_s,
                               struct shoal_view filter, struct shoal_list_place *place, struct shoal_msg *msg)
{
    uint8_t raw[RAW_BYTES_MAX];
    uint8_t mark[MARK_BYTES];
    uint32_t made_s = 0;
    size_t len = 0;

    if (sodium_base642bin(raw, sizeof(raw), text, strlen(text), NULL, &len, NULL,
                          sodium_base64_VARIANT_URLSAFE_NO_PADDING) != 0 ||
        !is_signed(keys, raw, len))
        return shoal_fail(msg, SHOAL_ERR_INVALID,
                          "page: this is no token that the mesh gave; begin the list again without `page`");
    for (unsigned i = 0; i < 4; i++)
        made_s |= (uint32_t)raw[1 + i] << (8 * i);
    filter_mark(filter, mark);
    if (memcmp(mark, raw + 15, MARK_BYTES) != 0)
        return shoal_fail(
            msg, SHOAL_ERR_INVALID,
            "page: the token belongs to another list; repeat the filter and the order that it was given for, "
            "or begin again without `page`");
    if ((uint32_t)now_s - made_s > JOB_LIST_TOKEN_S && made_s - (uint32_t)now_s > JOB_LIST_TOKEN_S)
        return shoal_fail(msg, SHOAL_ERR_INVALID,
                          "page: the token is older than %u minutes; begin the list again without `page`",
                          JOB_LIST_TOKEN_S / 60);
    *place = (struct shoal_list_place){ .is_set = true };
    memcpy(place->id.bytes, raw + 5, sizeof(place->id.bytes));
    memcpy(place->key, raw + HEAD_BYTES, raw[23]);
    return SHOAL_OK;
}
