/* The mesh's state: users, keys, frameworks, revocations, evictions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "shoal/mesh.h"
#include "shoal/rand.h"
#include "shoal/wire.h"

#include "shoal/banned.h"

static struct shoal_mesh_command command_of(enum shoal_mesh_command_kind kind, const char *user)
{
    struct shoal_mesh_command c = { .kind = kind, .now_s = 1000 };

    (void)snprintf(c.name, sizeof(c.name), "home");
    (void)snprintf(c.user.name, sizeof(c.user.name), "%s", user);
    (void)snprintf(c.user.password, sizeof(c.user.password), "$argon2id$%s", user);
    (void)snprintf(c.framework.name, sizeof(c.framework.name), "%s", user);
    c.user.admin = kind == SHOAL_MESH_INIT;
    memset(c.key, 9, sizeof(c.key));
    memset(c.revocation.token, user[0], sizeof(c.revocation.token));
    c.revocation.exp_s = 2000;
    memset(c.node.bytes, user[0], sizeof(c.node.bytes));
    return c;
}

static enum shoal_err apply(struct shoal_mesh *mesh, const struct shoal_mesh_command *c)
{
    uint8_t bytes[SHOAL_MESH_COMMAND_BYTES_MAX];
    struct shoal_msg msg = { "" };
    size_t len;
    enum shoal_err err;

    assert_int_equal(shoal_mesh_command_encode(c, bytes, sizeof(bytes), &len), SHOAL_OK);
    err = shoal_mesh_apply(mesh, shoal_mesh_version(mesh) + 1, shoal_view_of(bytes, len), &msg);
    assert_true(err == SHOAL_OK || msg.text[0] != '\0'); /* every refusal says why */
    return err;
}

static struct shoal_mesh *made(void)
{
    struct shoal_mesh *mesh = shoal_mesh_create();
    struct shoal_mesh_command c = command_of(SHOAL_MESH_INIT, "admin");

    assert_non_null(mesh);
    assert_int_equal(apply(mesh, &c), SHOAL_OK);
    return mesh;
}

struct row {
    const char *name;
    enum shoal_mesh_command_kind kind;
    const char *who;
    enum shoal_err want;
};

static void test_commands(void **state)
{
    static const struct row rows[] = {
        { "a second init is refused", SHOAL_MESH_INIT, "admin", SHOAL_ERR_EXISTS },
        { "a user is added", SHOAL_MESH_ADD_USER, "ann", SHOAL_OK },
        { "a user is not added twice", SHOAL_MESH_ADD_USER, "ann", SHOAL_ERR_EXISTS },
        { "a name with a space is refused", SHOAL_MESH_ADD_USER, "a n", SHOAL_ERR_INVALID },
        { "an empty name is refused", SHOAL_MESH_ADD_USER, "", SHOAL_ERR_INVALID },
        { "a password is changed", SHOAL_MESH_SET_PASSWORD, "ann", SHOAL_OK },
        { "nobody's password is not changed", SHOAL_MESH_SET_PASSWORD, "bob", SHOAL_ERR_NOT_FOUND },
        { "the last administrator is not demoted", SHOAL_MESH_SET_USER, "admin", SHOAL_ERR_INVALID },
        { "the last administrator is not removed", SHOAL_MESH_REMOVE_USER, "admin", SHOAL_ERR_INVALID },
        { "tokens are voided", SHOAL_MESH_VOID_TOKENS, "ann", SHOAL_OK },
        { "a user is removed", SHOAL_MESH_REMOVE_USER, "ann", SHOAL_OK },
        { "a user is not removed twice", SHOAL_MESH_REMOVE_USER, "ann", SHOAL_ERR_NOT_FOUND },
        { "the key is rotated", SHOAL_MESH_ROTATE_KEY, "x", SHOAL_OK },
        { "a framework is added", SHOAL_MESH_SET_FRAMEWORK, "MyTorch", SHOAL_OK },
        { "a framework is found without case", SHOAL_MESH_REMOVE_FRAMEWORK, "mytorch", SHOAL_OK },
        { "an unknown framework is not removed", SHOAL_MESH_REMOVE_FRAMEWORK, "mytorch", SHOAL_ERR_NOT_FOUND },
        { "a token is revoked", SHOAL_MESH_REVOKE, "t", SHOAL_OK },
        { "a node is evicted", SHOAL_MESH_EVICT, "n", SHOAL_OK },
        { "a node is evicted twice without harm", SHOAL_MESH_EVICT, "n", SHOAL_OK },
        { "a node is readmitted", SHOAL_MESH_READMIT, "n", SHOAL_OK },
        { "one that is not evicted is not readmitted", SHOAL_MESH_READMIT, "n", SHOAL_ERR_NOT_FOUND },
    };
    struct shoal_mesh *mesh = made();

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct shoal_mesh_command c = command_of(rows[i].kind, rows[i].who);
        uint64_t version = shoal_mesh_version(mesh);
        enum shoal_err err = apply(mesh, &c);

        if (err != rows[i].want)
            fail_msg("%s: want %s, got %s", rows[i].name, shoal_err_name(rows[i].want), shoal_err_name(err));
        assert_int_equal(shoal_mesh_version(mesh), version + 1);
    }
    shoal_mesh_destroy(mesh);
}

/* A token of the user with this uid (its id begins with it), ended. */
static enum shoal_err revoke_one(struct shoal_mesh *mesh, uint32_t uid, uint32_t number)
{
    struct shoal_mesh_command c = command_of(SHOAL_MESH_REVOKE, "t");
    struct shoal_writer w = shoal_writer_init(c.revocation.token, sizeof(c.revocation.token));

    shoal_put_u32(&w, uid);
    shoal_put_u32(&w, number);
    return apply(mesh, &c);
}

static void test_a_user_with_many_revoked_tokens_gets_no_more_rows(void **state)
{
    struct shoal_mesh *mesh = made();

    (void)state;
    for (uint32_t i = 0; i < SHOAL_MESH_USER_REVOCATIONS_MAX; i++) {
        assert_true(shoal_mesh_revokes_singly(mesh, 1000, 1000));
        assert_int_equal(revoke_one(mesh, 1000, i), SHOAL_OK);
    }
    assert_false(shoal_mesh_revokes_singly(mesh, 1000, 1000));
    assert_true(shoal_mesh_revokes_singly(mesh, 1001, 1000));
    assert_true(shoal_mesh_revokes_singly(mesh, 1000, 2001)); /* once they have expired */
    shoal_mesh_destroy(mesh);
}

static void test_many_users_that_revoke_leave_a_reserve(void **state)
{
    struct shoal_mesh *mesh = made();
    uint32_t count = 0;

    (void)state;
    for (; shoal_mesh_revokes_singly(mesh, 1000 + count / 100, 1000); count++)
        assert_int_equal(revoke_one(mesh, 1000 + count / 100, count), SHOAL_OK);
    assert_int_equal(count, SHOAL_MESH_REVOCATIONS_MAX - SHOAL_MESH_REVOCATIONS_RESERVE);
    shoal_mesh_destroy(mesh);
}

static void test_init_sets_the_defaults(void **state)
{
    struct shoal_mesh *mesh = made();
    uint8_t keys[SHOAL_MESH_KEYS_MAX][SHOAL_MESH_KEY_BYTES];

    (void)state;
    assert_string_equal(shoal_mesh_name(mesh), "home");
    assert_true(shoal_mesh_user_find(mesh, "admin")->admin);
    assert_int_equal(shoal_mesh_user_find(mesh, "admin")->uid, 1000);
    assert_int_equal(shoal_mesh_token_keys(mesh, keys), 1);
    assert_int_equal(keys[0][31], 9);
    assert_non_null(shoal_mesh_framework_find(mesh, "pytorch"));
    assert_non_null(shoal_mesh_framework_find(mesh, "edtPyTorch"));
    assert_null(shoal_mesh_framework_find(mesh, "edtTensorFlow"));
    shoal_mesh_destroy(mesh);
}

static void test_a_uid_is_never_given_twice(void **state)
{
    struct shoal_mesh *mesh = made();
    struct shoal_mesh_command add = command_of(SHOAL_MESH_ADD_USER, "ann");
    struct shoal_mesh_command drop = command_of(SHOAL_MESH_REMOVE_USER, "ann");

    (void)state;
    assert_int_equal(apply(mesh, &add), SHOAL_OK);
    assert_int_equal(shoal_mesh_user_find(mesh, "ann")->uid, 1001);
    assert_int_equal(apply(mesh, &drop), SHOAL_OK);
    assert_int_equal(apply(mesh, &add), SHOAL_OK);
    assert_int_equal(shoal_mesh_user_find(mesh, "ann")->uid, 1002);
    shoal_mesh_destroy(mesh);
}

static void test_a_new_password_voids_older_tokens(void **state)
{
    struct shoal_mesh *mesh = made();
    struct shoal_mesh_command c = command_of(SHOAL_MESH_SET_PASSWORD, "admin");

    (void)state;
    assert_int_equal(shoal_mesh_user_find(mesh, "admin")->tokens_from_s, 0);
    assert_int_equal(apply(mesh, &c), SHOAL_OK);
    assert_int_equal(shoal_mesh_user_find(mesh, "admin")->tokens_from_s, 1000);
    shoal_mesh_destroy(mesh);
}

static void test_rotation_keeps_one_older_key(void **state)
{
    struct shoal_mesh *mesh = made();
    uint8_t keys[SHOAL_MESH_KEYS_MAX][SHOAL_MESH_KEY_BYTES];
    struct shoal_mesh_command c = command_of(SHOAL_MESH_ROTATE_KEY, "x");

    (void)state;
    memset(c.key, 10, sizeof(c.key));
    assert_int_equal(apply(mesh, &c), SHOAL_OK);
    memset(c.key, 11, sizeof(c.key));
    assert_int_equal(apply(mesh, &c), SHOAL_OK);
    assert_int_equal(shoal_mesh_token_keys(mesh, keys), 2);
    assert_int_equal(keys[0][0], 11);
    assert_int_equal(keys[1][0], 10);
    shoal_mesh_destroy(mesh);
}

static void test_revocations_are_found_and_forgotten(void **state)
{
    struct shoal_mesh *mesh = made();
    struct shoal_mesh_command c = command_of(SHOAL_MESH_REVOKE, "a");
    uint8_t token[SHOAL_MESH_TOKEN_ID_BYTES] = { 0 };

    (void)state;
    for (uint32_t i = 0; i < SHOAL_MESH_REVOCATIONS_MAX; i++) {
        uint32_t scattered = i * 2654435761u;

        memcpy(c.revocation.token, &scattered, sizeof(scattered));
        assert_int_equal(apply(mesh, &c), SHOAL_OK);
    }
    memcpy(token, c.revocation.token, sizeof(token));
    assert_true(shoal_mesh_token_revoked(mesh, token));
    memset(c.revocation.token, 0xee, sizeof(c.revocation.token));
    assert_int_equal(apply(mesh, &c), SHOAL_ERR_FULL);
    c.now_s = 2001; /* all others have expired */
    assert_int_equal(apply(mesh, &c), SHOAL_OK);
    assert_false(shoal_mesh_token_revoked(mesh, token));
    assert_true(shoal_mesh_token_revoked(mesh, c.revocation.token));
    shoal_mesh_destroy(mesh);
}

static void test_users_are_bounded(void **state)
{
    struct shoal_mesh *mesh = made();
    char name[16];

    (void)state;
    for (unsigned i = 1; i <= SHOAL_MESH_USERS_MAX; i++) {
        struct shoal_mesh_command c;

        (void)snprintf(name, sizeof(name), "u%u", i * 7919 % 10007);
        c = command_of(SHOAL_MESH_ADD_USER, name);
        assert_int_equal(apply(mesh, &c), i < SHOAL_MESH_USERS_MAX ? SHOAL_OK : SHOAL_ERR_FULL);
    }
    for (size_t i = 1; i < shoal_mesh_user_count(mesh); i++)
        assert_true(strcmp(shoal_mesh_user_at(mesh, i - 1)->name, shoal_mesh_user_at(mesh, i)->name) < 0);
    shoal_mesh_destroy(mesh);
}

/* Of the state that another one replaces nothing is left. */
static void test_a_state_with_less_replaces_one_with_more(void **state)
{
    struct shoal_mesh *less = made(), *more = made();
    struct shoal_mesh_command evict = command_of(SHOAL_MESH_EVICT, "");
    struct shoal_buf state_bytes = { 0 }, bytes = { 0 }, again = { 0 };

    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        char name[16];
        struct shoal_mesh_command c;

        (void)snprintf(name, sizeof(name), "u%u", i);
        c = command_of(SHOAL_MESH_ADD_USER, name);
        evict.node.bytes[0] = (uint8_t)(i + 1);
        assert_int_equal(apply(more, &c), SHOAL_OK);
        assert_int_equal(apply(more, &evict), SHOAL_OK);
    }
    assert_int_equal(shoal_mesh_encode(less, &state_bytes), SHOAL_OK);
    assert_int_equal(shoal_mesh_decode(more, shoal_buf_view(&state_bytes)), SHOAL_OK);
    assert_int_equal(shoal_mesh_user_count(more), 1);
    assert_int_equal(shoal_mesh_eviction_count(more), 0);
    evict = command_of(SHOAL_MESH_ADD_USER, "u7");
    assert_int_equal(apply(more, &evict), SHOAL_OK);
    assert_int_equal(apply(less, &evict), SHOAL_OK);
    assert_int_equal(shoal_mesh_encode(less, &bytes), SHOAL_OK);
    assert_int_equal(shoal_mesh_encode(more, &again), SHOAL_OK);
    assert_true(shoal_view_equal(shoal_buf_view(&bytes), shoal_buf_view(&again)));
    shoal_buf_deinit(&state_bytes);
    shoal_buf_deinit(&bytes);
    shoal_buf_deinit(&again);
    shoal_mesh_destroy(less);
    shoal_mesh_destroy(more);
}

/* Results lie in a folder of the user's name. An entry of a leader of the version before is applied as there. */
static void test_new_names_begin_with_a_letter_or_digit(void **state)
{
    static const char *const names[] = { "..", ".", "...", ".a", "-a", "_a", "@a", "a", "7", "A.b" };
    struct shoal_mesh *mesh = made();

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct shoal_mesh_command c = command_of(SHOAL_MESH_ADD_USER, names[i]);
        uint8_t bytes[SHOAL_MESH_COMMAND_BYTES_MAX];
        struct shoal_msg msg = { "" };
        size_t len;

        assert_int_equal(shoal_mesh_command_encode(&c, bytes, sizeof(bytes), &len), SHOAL_OK);
        assert_int_equal(shoal_mesh_check(mesh, shoal_view_of(bytes, len), &msg), i < 7 ? SHOAL_ERR_INVALID : SHOAL_OK);
        assert_true(i >= 7 || strstr(msg.text, "a letter or digit first") != NULL);
        assert_true(shoal_mesh_user_name_is_valid(names[i]) == (i >= 7));
        assert_int_equal(apply(mesh, &c), SHOAL_OK);
        c.kind = SHOAL_MESH_SET_PASSWORD; /* who is there goes on */
        assert_int_equal(shoal_mesh_command_encode(&c, bytes, sizeof(bytes), &len), SHOAL_OK);
        assert_int_equal(shoal_mesh_check(mesh, shoal_view_of(bytes, len), &msg), SHOAL_OK);
    }
    shoal_mesh_destroy(mesh);
}

static void test_nothing_before_init_and_nothing_twice(void **state)
{
    struct shoal_mesh *mesh = shoal_mesh_create();
    struct shoal_mesh_command c = command_of(SHOAL_MESH_ADD_USER, "ann");
    uint8_t bytes[SHOAL_MESH_COMMAND_BYTES_MAX];
    size_t len;

    (void)state;
    assert_int_equal(apply(mesh, &c), SHOAL_ERR_INVALID);
    assert_int_equal(shoal_mesh_command_encode(&c, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_mesh_apply(mesh, 1, shoal_view_of(bytes, len), NULL), SHOAL_ERR_STALE);
    assert_int_equal(shoal_mesh_apply(mesh, 2, shoal_view_of(bytes, 3), NULL), SHOAL_ERR_MALFORMED);
    assert_int_equal(shoal_mesh_version(mesh), 2);
    shoal_mesh_destroy(mesh);
}

/* Same commands, same bytes; and the copy goes round. */
static void test_replicas_are_alike(void **state)
{
    struct shoal_mesh *a = made();
    struct shoal_mesh *b = made();
    struct shoal_mesh *copy = shoal_mesh_create();
    struct shoal_buf bytes_a = { 0 }, bytes_b = { 0 }, again = { 0 };
    struct shoal_rand chance;

    (void)state;
    shoal_rand_init(&chance, 5);
    for (unsigned i = 0; i < 3000; i++) {
        char name[8];
        struct shoal_mesh_command c;

        (void)snprintf(name, sizeof(name), "%c%c", (int)('a' + shoal_rand_below(&chance, 20)),
                       (int)('a' + shoal_rand_below(&chance, 3)));
        c = command_of((enum shoal_mesh_command_kind)(1 + shoal_rand_below(&chance, SHOAL_MESH_COMMAND_KINDS - 1)),
                       name);
        c.now_s = i;
        c.user.admin = shoal_rand_below(&chance, 2) == 0;
        assert_int_equal(apply(a, &c), apply(b, &c));
    }
    assert_int_equal(shoal_mesh_encode(a, &bytes_a), SHOAL_OK);
    assert_int_equal(shoal_mesh_encode(b, &bytes_b), SHOAL_OK);
    assert_true(shoal_view_equal(shoal_buf_view(&bytes_a), shoal_buf_view(&bytes_b)));
    assert_int_equal(shoal_mesh_decode(copy, shoal_buf_view(&bytes_a)), SHOAL_OK);
    assert_int_equal(shoal_mesh_encode(copy, &again), SHOAL_OK);
    assert_true(shoal_view_equal(shoal_buf_view(&bytes_a), shoal_buf_view(&again)));
    /* Every prefix is refused and changes nothing. */
    for (size_t n = 0; n < bytes_a.len; n++) {
        uint8_t *cut = malloc(n + 1);

        memcpy(cut, bytes_a.bytes, n);
        assert_int_equal(shoal_mesh_decode(copy, shoal_view_of(cut, n)), SHOAL_ERR_MALFORMED);
        free(cut);
        n += n > 2000 ? 97 : 0; /* the head whole, the rest in steps */
    }
    assert_int_equal(shoal_mesh_version(copy), shoal_mesh_version(a));
    shoal_buf_deinit(&bytes_a);
    shoal_buf_deinit(&bytes_b);
    shoal_buf_deinit(&again);
    shoal_mesh_destroy(a);
    shoal_mesh_destroy(b);
    shoal_mesh_destroy(copy);
}

/* A state that no commands can have made is refused, since all that follows would rely on it. */
static void test_an_impossible_state_is_refused(void **state)
{
    struct shoal_mesh *mesh = made();
    struct shoal_mesh *copy = shoal_mesh_create();
    struct shoal_mesh_command evict = command_of(SHOAL_MESH_EVICT, "");
    struct shoal_buf bytes = { 0 };
    size_t uid_at = 10 + 4 + strlen(shoal_mesh_name(mesh)); /* format, version, initialised, the name's length */
    const struct {
        const char *name;
        size_t at;
        uint8_t value;
        enum shoal_err want;
    } rows[] = {
        { "the state as it is", 0, 1, SHOAL_OK },
        { "users of a mesh that was never set up", 9, 0, SHOAL_ERR_MALFORMED },
        { "a uid that is to be given again", uid_at, 0xe8, SHOAL_ERR_MALFORMED }, /* 1000, the first user's */
        { "no key for tokens", uid_at + 4, 0, SHOAL_ERR_MALFORMED },
        { "evictions out of order", 0, 1, SHOAL_ERR_MALFORMED }, /* the last byte of an id, see below */
    };

    (void)state;
    for (uint8_t i = 1; i <= 2; i++) {
        evict.node.bytes[0] = i;
        assert_int_equal(apply(mesh, &evict), SHOAL_OK);
    }
    assert_int_equal(shoal_mesh_encode(mesh, &bytes), SHOAL_OK);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bool order = i + 1 == sizeof(rows) / sizeof(rows[0]);
        size_t at = order ? bytes.len - sizeof(evict.node.bytes) : rows[i].at;
        uint8_t before = bytes.bytes[at];

        bytes.bytes[at] = rows[i].value;
        if (shoal_mesh_decode(copy, shoal_buf_view(&bytes)) != rows[i].want)
            fail_msg("%s: want %s", rows[i].name, shoal_err_name(rows[i].want));
        bytes.bytes[at] = before;
    }
    shoal_buf_deinit(&bytes);
    shoal_mesh_destroy(mesh);
    shoal_mesh_destroy(copy);
}

static void test_command_prefixes_and_noise(void **state)
{
    struct shoal_rand chance;

    (void)state;
    shoal_rand_init(&chance, 6);
    for (unsigned kind = 0; kind < SHOAL_MESH_COMMAND_KINDS; kind++) {
        struct shoal_mesh_command c = command_of((enum shoal_mesh_command_kind)kind, "ann"), out;
        uint8_t bytes[SHOAL_MESH_COMMAND_BYTES_MAX];
        size_t len;

        assert_int_equal(shoal_mesh_command_encode(&c, bytes, sizeof(bytes), &len), SHOAL_OK);
        assert_int_equal(shoal_mesh_command_decode(shoal_view_of(bytes, len), &out), SHOAL_OK);
        assert_int_equal(out.kind, kind);
        for (size_t n = 0; n < len; n++) {
            uint8_t *cut = malloc(n + 1);
            size_t short_len;

            memcpy(cut, bytes, n);
            assert_int_equal(shoal_mesh_command_decode(shoal_view_of(cut, n), &out), SHOAL_ERR_MALFORMED);
            assert_int_equal(shoal_mesh_command_encode(&c, cut, n, &short_len), SHOAL_ERR_TOO_BIG);
            free(cut);
        }
        for (unsigned tries = 0; tries < 2000; tries++) {
            bytes[shoal_rand_below(&chance, len)] = (uint8_t)shoal_rand_u64(&chance);
            (void)!shoal_mesh_command_decode(shoal_view_of(bytes, len), &out);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commands),
        cmocka_unit_test(test_new_names_begin_with_a_letter_or_digit),
        cmocka_unit_test(test_init_sets_the_defaults),
        cmocka_unit_test(test_a_user_with_many_revoked_tokens_gets_no_more_rows),
        cmocka_unit_test(test_many_users_that_revoke_leave_a_reserve),
        cmocka_unit_test(test_a_uid_is_never_given_twice),
        cmocka_unit_test(test_a_new_password_voids_older_tokens),
        cmocka_unit_test(test_rotation_keeps_one_older_key),
        cmocka_unit_test(test_revocations_are_found_and_forgotten),
        cmocka_unit_test(test_users_are_bounded),
        cmocka_unit_test(test_a_state_with_less_replaces_one_with_more),
        cmocka_unit_test(test_nothing_before_init_and_nothing_twice),
        cmocka_unit_test(test_replicas_are_alike),
        cmocka_unit_test(test_an_impossible_state_is_refused),
        cmocka_unit_test(test_command_prefixes_and_noise),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
