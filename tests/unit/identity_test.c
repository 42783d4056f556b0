#include "shoal/address.h"
#include "shoal/disk.h"
#include "shoal/hash.h"
#include "shoal/identity.h"
#include "shoal/rand.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "shoal/banned.h"

struct fixture {
    char dir[64];
    struct shoal_msg msg;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    if (f == NULL || shoal_crypto_init(NULL) != SHOAL_OK)
        return -1;
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/shoal-identity-XXXXXX");
    *state = f;
    return mkdtemp(f->dir) == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    static const char *names[] = { "identity", "mesh", "boot", "lock", "whole" };
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[128];

        (void)snprintf(path, sizeof(path), "%s/%s", f->dir, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(f->dir);
    free(f);
    return 0;
}

static struct shoal_identity make(struct fixture *f)
{
    struct shoal_identity identity;
    struct shoal_identity_options options = { .data_dir = f->dir, .mesh_name = "reef-1" };

    assert_int_equal(shoal_identity_create(&options, &identity, &f->msg), SHOAL_OK);
    return identity;
}

static void a_folder_keeps_its_node_and_each_start_raises_the_incarnation(void **state)
{
    static const struct {
        const char *name, *boot_id;
        struct shoal_incarnation want;
    } starts[] = {
        { "the first start", "boot-a", { 1, 1, 0 } },
        { "a second start on the same boot", "boot-a", { 1, 2, 0 } },
        { "the host rebooted", "boot-b", { 2, 3, 0 } },
        { "again on that boot", "boot-b", { 2, 4, 0 } },
    };
    struct fixture *f = *state;
    struct shoal_identity made = make(f), loaded;

    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
        assert_int_equal(shoal_identity_load(f->dir, starts[i].boot_id, true, &loaded, &f->msg), SHOAL_OK);
        if (shoal_incarnation_cmp(loaded.incarnation, starts[i].want) != 0)
            fail_msg("%s: %u %u", starts[i].name, loaded.incarnation.host_epoch, loaded.incarnation.agent);
        assert_true(shoal_node_id_equal(loaded.node, made.node) && shoal_store_id_equal(loaded.store, made.store));
        assert_string_equal(loaded.mesh_name, "reef-1");
        assert_memory_equal(&loaded.mesh_secret, &made.mesh_secret, sizeof(made.mesh_secret));
        assert_memory_equal(&loaded.secret_key, &made.secret_key, sizeof(made.secret_key));
    }
    assert_int_equal(shoal_identity_load(f->dir, "boot-c", false, &loaded, &f->msg), SHOAL_OK);
    assert_int_equal(loaded.incarnation.agent, 4);
    assert_int_equal(shoal_identity_load(f->dir, NULL, true, &loaded, &f->msg), SHOAL_OK);
    assert_int_equal(loaded.incarnation.host_epoch, 3);
}

static void what_is_secret_is_readable_by_the_owner_alone(void **state)
{
    static const char *names[] = { "identity", "mesh" };
    struct fixture *f = *state;
    struct stat st;
    char path[128];

    (void)make(f);
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", f->dir, names[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
    }
}

static void refusals_say_why(void **state)
{
    struct fixture *f = *state;
    struct shoal_identity identity;
    struct shoal_identity_options options = { .data_dir = f->dir, .mesh_name = "Reef" };

    assert_int_equal(shoal_identity_load(f->dir, NULL, true, &identity, &f->msg), SHOAL_ERR_NOT_FOUND);
    assert_non_null(strstr(f->msg.text, "shoal init"));
    assert_int_equal(shoal_identity_create(&options, &identity, &f->msg), SHOAL_ERR_INVALID);
    (void)make(f);
    options.mesh_name = "reef";
    assert_int_equal(shoal_identity_create(&options, &identity, &f->msg), SHOAL_ERR_EXISTS);
    options.data_dir = "/proc/no/such/place";
    assert_int_equal(shoal_identity_create(&options, &identity, &f->msg), SHOAL_ERR_STORAGE);
    assert_non_null(strstr(f->msg.text, "/proc/no/such/place"));
}

static void every_damage_of_every_file_is_seen(void **state)
{
    static const char *names[] = { "identity", "mesh", "boot" };
    struct fixture *f = *state;
    struct shoal_identity identity;
    char path[128];

    (void)make(f);
    for (size_t n = 0; n < 3; n++) {
        struct shoal_buf whole = { 0 };

        (void)snprintf(path, sizeof(path), "%s/%s", f->dir, names[n]);
        assert_int_equal(shoal_disk_read(path, 4096, &whole, NULL), SHOAL_OK);
        for (size_t i = 0; i < 2 * whole.len; i++) {
            size_t len = i < whole.len ? i : whole.len;
            int fd = open(path, O_WRONLY | O_TRUNC);

            if (i >= whole.len)
                whole.bytes[i - whole.len] ^= 4;
            assert_int_equal(write(fd, whole.bytes, len), len);
            (void)close(fd);
            if (i >= whole.len)
                whole.bytes[i - whole.len] ^= 4;
            if (shoal_identity_load(f->dir, NULL, true, &identity, &f->msg) != SHOAL_ERR_MALFORMED)
                fail_msg("%s, case %zu of %zu was read", names[n], i, 2 * whole.len);
        }
        assert_int_equal(shoal_disk_replace(path, shoal_buf_view(&whole), 0600, NULL), SHOAL_OK);
        assert_int_equal(shoal_identity_load(f->dir, NULL, false, &identity, &f->msg), SHOAL_OK);
        shoal_buf_deinit(&whole);
    }
}

static void one_agent_holds_the_folder(void **state)
{
    struct fixture *f = *state;
    int first = -1, second = -1;

    assert_int_equal(shoal_folder_lock(f->dir, &first, &f->msg), SHOAL_OK);
    assert_int_equal(shoal_folder_lock(f->dir, &second, &f->msg), SHOAL_ERR_EXISTS);
    shoal_folder_unlock(&first);
    assert_int_equal(shoal_folder_lock(f->dir, &second, &f->msg), SHOAL_OK);
    shoal_folder_unlock(&second);
}

static void a_mesh_key_travels_as_text(void **state)
{
    static const char *bad[] = { "",
                                 "reef",
                                 "reef:",
                                 "reef:12",
                                 ":00",
                                 "Reef:00",
                                 "reef:g000000000000000000000000000000000000000000000000000000000000000",
                                 "reef:00000000000000000000000000000000000000000000000000000000000000001" };
    struct fixture *f = *state;
    struct shoal_identity made = make(f);
    char text[SHOAL_MESH_KEY_TEXT_BYTES], name[SHOAL_MESH_NAME_MAX + 1];
    struct shoal_secret secret;

    shoal_mesh_key_text(&made, text);
    assert_int_equal(shoal_mesh_key_parse(text, name, &secret, &f->msg), SHOAL_OK);
    assert_string_equal(name, made.mesh_name);
    assert_memory_equal(&secret, &made.mesh_secret, sizeof(secret));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (shoal_mesh_key_parse(bad[i], name, &secret, &f->msg) != SHOAL_ERR_INVALID)
            fail_msg("\"%s\" was taken", bad[i]);
}

static void signatures_tags_and_passwords_hold_and_break(void **state)
{
    struct fixture *f = *state;
    struct shoal_identity made = make(f);
    struct shoal_view text = shoal_view_text("a record");
    struct shoal_signature signature = shoal_sign(&made.secret_key, text);
    struct shoal_secret key = shoal_secret_random(), other;
    struct shoal_mac mac = shoal_mac_of(&key, text);
    char hash[SHOAL_PASSWORD_HASH_BYTES];

    assert_true(shoal_verify(&made.public_key, text, &signature));
    signature.bytes[7] ^= 1;
    assert_false(shoal_verify(&made.public_key, text, &signature));
    assert_true(shoal_mac_verify(&key, text, &mac));
    assert_false(shoal_mac_verify(&key, shoal_view_text("b record"), &mac));
    key = shoal_secret_derive(&made.mesh_secret, "one");
    other = shoal_secret_derive(&made.mesh_secret, "two");
    assert_memory_not_equal(&key, &other, sizeof(key));
    assert_int_equal(shoal_password_hash(shoal_view_text("secret"), hash, &f->msg), SHOAL_OK);
    assert_true(strncmp(hash, "$argon2id$", 10) == 0);
    assert_true(shoal_password_verify(shoal_view_text("secret"), hash));
    assert_false(shoal_password_verify(shoal_view_text("Secret"), hash));
    assert_false(shoal_password_verify(shoal_view_text("secret"), "nonsense"));
    assert_int_equal(shoal_password_hash(shoal_view_text(""), hash, &f->msg), SHOAL_ERR_INVALID);
}

static void hashes_match_published_values(void **state)
{
    /* BLAKE2b-256 of "abc"; CRC-32C of "123456789" and of 32 zeroes (RFC 3720, B.4). */
    static const char want[] = "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319";
    static const uint8_t zeroes[32];
    struct shoal_hash_stream stream;
    struct shoal_hash hash = shoal_hash_of(shoal_view_text("abc"));
    char text[SHOAL_HASH_TEXT_BYTES];

    (void)state;
    shoal_hex_text(hash.bytes, sizeof(hash.bytes), text);
    assert_string_equal(text, want);
    shoal_hash_stream_init(&stream);
    shoal_hash_stream_append(&stream, shoal_view_text("a"));
    shoal_hash_stream_append(&stream, shoal_view_text("bc"));
    assert_true(shoal_hash_equal(shoal_hash_stream_finish(&stream), hash));
    assert_int_equal(shoal_crc32c(0, shoal_view_text("123456789")), 0xe3069283u);
    assert_int_equal(shoal_crc32c(shoal_crc32c(0, shoal_view_text("1234")), shoal_view_text("56789")), 0xe3069283u);
    assert_int_equal(shoal_crc32c(0, shoal_view_of(zeroes, 32)), 0x8a9136aau);
}

static void addresses_are_read_and_written(void **state)
{
    static const struct {
        const char *text, *want; /* NULL: refused */
        uint16_t port_default;
    } cases[] = {
        { "127.0.0.1:80", "127.0.0.1:80", 0 },
        { "10.1.2.3", "10.1.2.3:7", 7 },
        { "[::1]:9", "[::1]:9", 0 },
        { "::1", "[::1]:5", 5 },
        { "[fe80::1]", "[fe80::1]:5", 5 },
        { "10.1.2.3", NULL, 0 },
        { "1.2.3.4:65536", NULL, 0 },
        { "1.2.3.4:", NULL, 0 },
        { "1.2.3.4:8x", NULL, 0 },
        { "host:80", NULL, 0 },
        { "[::1", NULL, 5 },
        { "[::1]x", NULL, 5 },
        { "", NULL, 5 },
        { "1111111111111111111111111111111111111111111111111111111111111111111111:1", NULL, 5 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct shoal_address address;
        char text[SHOAL_ADDRESS_TEXT_BYTES] = "";
        enum shoal_err err = shoal_address_parse(cases[i].text, cases[i].port_default, &address, NULL);

        if ((err == SHOAL_OK) != (cases[i].want != NULL))
            fail_msg("\"%s\": %s", cases[i].text, shoal_err_name(err));
        if (err != SHOAL_OK)
            continue;
        shoal_address_text(address, text);
        assert_string_equal(text, cases[i].want);
    }
}

static void test_job_ids_sort_as_their_bytes(void **state)
{
    struct shoal_rand chance;

    (void)state;
    shoal_rand_init(&chance, 7);
    for (unsigned i = 0; i < 100000; i++) {
        struct shoal_job_id a, b;
        int want, have;

        for (unsigned at = 0; at < sizeof(a.bytes); at++) {
            a.bytes[at] = (uint8_t)shoal_rand_u64(&chance);
            b.bytes[at] = shoal_rand_below(&chance, 3) > 0 ? a.bytes[at] : (uint8_t)shoal_rand_u64(&chance);
        }
        want = memcmp(a.bytes, b.bytes, sizeof(a.bytes));
        have = shoal_job_id_cmp(a, b);
        assert_int_equal((want > 0) - (want < 0), (have > 0) - (have < 0));
        assert_int_equal(shoal_job_id_equal(a, b), want == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_folder_keeps_its_node_and_each_start_raises_the_incarnation, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_secret_is_readable_by_the_owner_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(refusals_say_why, setup, teardown),
        cmocka_unit_test_setup_teardown(every_damage_of_every_file_is_seen, setup, teardown),
        cmocka_unit_test_setup_teardown(one_agent_holds_the_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(a_mesh_key_travels_as_text, setup, teardown),
        cmocka_unit_test_setup_teardown(signatures_tags_and_passwords_hold_and_break, setup, teardown),
        cmocka_unit_test_setup_teardown(hashes_match_published_values, setup, teardown),
        cmocka_unit_test(test_job_ids_sort_as_their_bytes),
        cmocka_unit_test(addresses_are_read_and_written),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
