/* Tokens: their form (execs-api 2.3), and every way to forge one. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "shoal/token.h"

#include "shoal/banned.h"

static struct shoal_token_keys keys_of(uint8_t newest, uint8_t oldest)
{
    struct shoal_token_keys keys = { .count = 2 };

    memset(keys.keys[0], newest, sizeof(keys.keys[0]));
    memset(keys.keys[1], oldest, sizeof(keys.keys[1]));
    return keys;
}

static struct token_claims claims_of(const char *user)
{
    struct token_claims claims = { .uid = 1007, .issued_s = 1700000000, .exp_s = 1700043200, .id = { 1, 2, 3 } };

    (void)snprintf(claims.user, sizeof(claims.user), "%s", user);
    return claims;
}

/* A token that is known is checked as one that is not. */
static enum shoal_err check(struct shoal_view text, const struct shoal_token_keys *keys, uint64_t now_s,
                            struct token_claims *claims, struct shoal_msg *msg)
{
    static struct token_known known;
    struct token_claims again;
    enum shoal_err err = token_check(text, keys, now_s, claims, msg);

    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(token_check_known(&known, text, keys, now_s, &again, msg), err);
        if (err == SHOAL_OK)
            assert_memory_equal(&again, claims, sizeof(again));
    }
    return err;
}

static void test_names(void **state)
{
    static const char *const users[] = { "a", "ada", "a.very-long_name@with.many-parts.example.com-01234567890123456",
                                         "who?>~", "\x7f" };
    struct shoal_token_keys keys = keys_of(1, 2);

    (void)state;
    for (size_t i = 0; i < sizeof(users) / sizeof(users[0]); i++) {
        struct token_claims claims = claims_of(users[i]);
        struct token_claims got;
        char text[TOKEN_TEXT_BYTES + 1];
        char payload[TOKEN_PAYLOAD_BYTES * 2];
        struct shoal_msg msg;
        enum shoal_err err = token_make(&claims, keys.keys[0], text, &msg);
        const char *part;
        size_t part_len;
        size_t len;

        if (users[i][0] == '\x7f') {
            assert_int_equal(err, SHOAL_ERR_INVALID);
            continue;
        }
        assert_int_equal(err, SHOAL_OK);
        assert_int_equal(strlen(text), TOKEN_TEXT_BYTES); /* T1 */
        assert_int_equal(strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."),
                         TOKEN_TEXT_BYTES);
        part = strchr(text, '.') + 1; /* T2: with the standard alphabet, without padding */
        part_len = strcspn(part, ".");
        assert_int_equal(part_len % 4, 0);
        assert_true(memchr(part, '-', part_len) == NULL && memchr(part, '_', part_len) == NULL);
        assert_int_equal(sodium_base642bin((uint8_t *)payload, sizeof(payload), part, part_len, NULL, &len, NULL,
                                           sodium_base64_VARIANT_ORIGINAL),
                         0);
        assert_int_equal(len, TOKEN_PAYLOAD_BYTES);
        assert_int_equal(check(shoal_view_text(text), &keys, 1700000001, &got, &msg), SHOAL_OK);
        assert_string_equal(got.user, users[i]);
        assert_int_equal(got.exp_s, claims.exp_s);
        assert_memory_equal(got.id, claims.id, sizeof(got.id));
    }
}

static void test_keys_and_time(void **state)
{
    struct shoal_token_keys keys = keys_of(1, 2);
    struct shoal_token_keys turned = keys_of(3, 1);
    struct shoal_token_keys other = keys_of(4, 5);
    struct shoal_token_keys none = { .count = 0 };
    struct token_claims claims = claims_of("ada");
    struct token_claims got;
    char text[TOKEN_TEXT_BYTES + 16];
    struct shoal_msg msg;

    (void)state;
    assert_int_equal(token_make(&claims, keys.keys[0], text, &msg), SHOAL_OK);
    assert_int_equal(check(shoal_view_text(text), &keys, 1700000001, &got, &msg), SHOAL_OK);
    assert_int_equal(check(shoal_view_text(text), &turned, 1700000001, &got, &msg), SHOAL_OK);
    assert_int_equal(check(shoal_view_text(text), &other, 1700000001, &got, &msg), SHOAL_ERR_DENIED);
    assert_int_equal(check(shoal_view_text(text), &none, 1700000001, &got, &msg), SHOAL_ERR_DENIED);
    assert_int_equal(check(shoal_view_text(text), &keys, claims.exp_s - 1, &got, &msg), SHOAL_OK);
    assert_int_equal(check(shoal_view_text(text), &keys, claims.exp_s, &got, &msg), SHOAL_ERR_DENIED);
    (void)snprintf(text + TOKEN_TEXT_BYTES, 16, "tail of another"); /* T3 */
    assert_int_equal(check(shoal_view_text(text), &keys, 1700000001, &got, &msg), SHOAL_OK);
}

/* Every prefix and every changed character is refused. */
static void test_forged(void **state)
{
    struct shoal_token_keys keys = keys_of(1, 2);
    struct token_claims claims = claims_of("ada");
    struct token_claims got;
    char text[TOKEN_TEXT_BYTES + 1];
    struct shoal_msg msg;

    (void)state;
    assert_int_equal(token_make(&claims, keys.keys[0], text, &msg), SHOAL_OK);
    assert_int_equal(check(shoal_view_text(text), &keys, 1700000001, &got, &msg), SHOAL_OK); /* known from now on */
    for (size_t len = 0; len < TOKEN_TEXT_BYTES; len++)
        assert_int_equal(check(shoal_view_of(text, len), &keys, 1700000001, &got, &msg), SHOAL_ERR_DENIED);
    for (size_t i = 0; i < TOKEN_TEXT_BYTES - 1; i++) {
        char was = text[i];

        text[i] = was == 'A' ? 'B' : 'A';
        assert_int_equal(check(shoal_view_text(text), &keys, 1700000001, &got, &msg), SHOAL_ERR_DENIED);
        text[i] = was;
    }
    assert_int_equal(check(shoal_view_text("eyJhbGciOiJub25lIn0.e30."), &keys, 1, &got, &msg), SHOAL_ERR_DENIED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_keys_and_time),
        cmocka_unit_test(test_forged),
    };

    return sodium_init() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
