/* The address of a worker for other hosts: TCP's and UCX's in one, foreign bytes, and what members have in common. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shoal/fabric_address.h"
#include "shoal/rand.h"

#include "collective/transport/tcp_address.h"

#include "shoal/banned.h"

static const uint8_t tcp[12] = { 10, 1, 2, 3, 0x1f, 0x90, 192, 168, 0, 7, 0x1f, 0x91 };

static void what_is_put_together_comes_apart(void **state)
{
    uint8_t ucx[SHOAL_FABRIC_UCX_MAX] = { 1, 22 };

    (void)state;
    for (size_t i = 2; i < sizeof(ucx); i++)
        ucx[i] = (uint8_t)(i * 7);
    for (size_t len = 2; len < 120; len++) {
        uint8_t address[SHOAL_TRANSPORT_ADDRESS_MAX];
        struct shoal_fabric_address got;
        size_t whole;

        memcpy(address, tcp, sizeof(tcp));
        whole = shoal_fabric_address_add(address, sizeof(address), sizeof(tcp), ucx, len);
        assert_true(whole > sizeof(tcp) && whole % SHOAL_FABRIC_ENTRY_BYTES == 0);
        shoal_fabric_address_get(address, whole, &got);
        assert_false(got.sealed);
        assert_int_equal(got.tcp_len, sizeof(tcp));
        assert_int_equal(got.ucx_len, len);
        assert_memory_equal(got.ucx, ucx, len);
        /* who knows no UCX sees the first address again and again, and no other one */
        for (size_t at = sizeof(tcp); at < whole; at += SHOAL_FABRIC_ENTRY_BYTES)
            assert_memory_equal(address + at, tcp, 4);
    }
}

static void what_has_no_room_is_left_out(void **state)
{
    static const uint8_t sealed[7] = { 1, 10, 1, 2, 3, 0x1f, 0x90 };
    uint8_t address[SHOAL_TRANSPORT_ADDRESS_MAX];
    uint8_t ucx[SHOAL_FABRIC_UCX_MAX + 1] = { 1, 22 };

    (void)state;
    memcpy(address, tcp, sizeof(tcp));
    assert_int_equal(shoal_fabric_address_add(address, sizeof(address), sizeof(tcp), ucx, sizeof(ucx)), sizeof(tcp));
    assert_int_equal(shoal_fabric_address_add(address, 20, sizeof(tcp), ucx, 40), sizeof(tcp));
    memcpy(address, sealed, sizeof(sealed));
    assert_int_equal(shoal_fabric_address_add(address, sizeof(address), sizeof(sealed), ucx, 40), sizeof(sealed));
}

static void foreign_bytes_are_read_within_their_bounds(void **state)
{
    struct shoal_rand rand;

    (void)state;
    shoal_rand_init(&rand, 5);
    for (unsigned i = 0; i < 20000; i++) {
        uint8_t address[SHOAL_TRANSPORT_ADDRESS_MAX];
        struct shoal_fabric_address got;
        size_t len = shoal_rand_below(&rand, sizeof(address) + 1);

        for (size_t b = 0; b < len; b++)
            address[b] = (uint8_t)shoal_rand_below(&rand, i % 2 == 0 ? 256 : 2);
        shoal_fabric_address_get(address, len, &got);
        assert_true(got.tcp_len <= len && got.ucx_len <= SHOAL_FABRIC_UCX_MAX);
        assert_true(got.ucx_len == 0 || got.ucx_len >= 2);
    }
}

static void addresses_of_both_kinds_come_back(void **state)
{
    static const char *const texts[][2] = { { "10.1.2.3", "192.168.0.7" }, { "fd77::1", "10.1.2.3" }, { "::1", "2001:db8::7" } };

    (void)state;
    for (size_t r = 0; r < sizeof(texts) / sizeof(texts[0]); r++) {
        for (unsigned sealed = 0; sealed < 2; sealed++) {
            struct tcp_address list[2] = { { .port = 8080 }, { .port = 65535 } }, got[8];
            uint8_t bytes[64], ucx[40] = { 1, 22 };
            struct shoal_fabric_address fabric;
            bool seals = sealed == 0;
            size_t len;

            for (unsigned i = 0; i < 2; i++) {
                uint8_t four[4];

                if (inet_pton(AF_INET, texts[r][i], four) == 1)
                    list[i].ip = tcp_ip4(four);
                else
                    assert_int_equal(inet_pton(AF_INET6, texts[r][i], &list[i].ip), 1);
            }
            assert_int_equal(tcp_addresses_put(list, 2, sealed == 1, bytes, sizeof(bytes), &len), SHOAL_OK);
            assert_int_equal(tcp_addresses_get(bytes, len, got, 8, &seals), 2);
            assert_int_equal(seals, sealed);
            for (unsigned i = 0; i < 2; i++)
                assert_true(tcp_ip_equal(&got[i].ip, &list[i].ip) && got[i].port == list[i].port);
            shoal_fabric_address_get(bytes, len, &fabric);
            assert_int_equal(fabric.tcp_len, len); /* all of it is TCP's */
            assert_int_equal(fabric.sealed, sealed);
            if (r > 0) /* UCX is of IPv4 only */
                assert_int_equal(shoal_fabric_address_add(bytes, sizeof(bytes), len, ucx, sizeof(ucx)), len);
        }
    }
}

static void foreign_addresses_are_read_within_their_bounds(void **state)
{
    struct shoal_rand rand;

    (void)state;
    shoal_rand_init(&rand, 6);
    for (unsigned i = 0; i < 20000; i++) {
        size_t len = shoal_rand_below(&rand, 64);
        uint8_t *bytes = malloc(len + 1); /* its own, for the sanitizer to see what is read beyond */
        struct tcp_address got[4];
        bool sealed = false;
        uint32_t count;

        assert_non_null(bytes);
        for (size_t b = 0; b < len; b++)
            bytes[b] = (uint8_t)shoal_rand_below(&rand, i % 2 == 0 ? 256 : 5);
        count = tcp_addresses_get(bytes, len, got, 4, &sealed);
        assert_true(count <= 4 && count * TCP_ENTRY_BYTES <= len);
        free(bytes);
    }
}

static void ucx_is_chosen_where_all_have_one_version(void **state)
{
    static const uint8_t versions[][2] = { { 1, 22 }, { 1, 15 } };
    static const struct {
        const char *sentence;
        int members[3]; /* index of the version; -1: TCP alone, -2: sealed, -3: nobody */
        bool ucx, sealed;
    } cases[] = {
        { "one member", { 0, -3, -3 }, true, false },
        { "all of one version", { 0, 0, 0 }, true, false },
        { "the last one has another version", { 0, 0, 1 }, false, false },
        { "the first one has none", { -1, 0, 0 }, false, false },
        { "the last one has none", { 1, 1, -1 }, false, false },
        { "one is reached sealed only", { 0, -2, 0 }, false, true },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct shoal_fabric_common common = { 0 };

        for (size_t m = 0; m < 3 && cases[i].members[m] != -3; m++) {
            uint8_t address[64] = { 1 }, ucx[8] = { 0 };
            size_t len = 7;

            if (cases[i].members[m] != -2) {
                memcpy(address, tcp, len = 6);
                memcpy(ucx, versions[cases[i].members[m] < 0 ? 0 : cases[i].members[m]], 2);
                if (cases[i].members[m] >= 0)
                    len = shoal_fabric_address_add(address, sizeof(address), len, ucx, sizeof(ucx));
            }
            shoal_fabric_common_add(&common, address, len);
        }
        if (common.ucx != cases[i].ucx || common.sealed != cases[i].sealed)
            fail_msg("%s", cases[i].sentence);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_put_together_comes_apart),
        cmocka_unit_test(what_has_no_room_is_left_out),
        cmocka_unit_test(foreign_bytes_are_read_within_their_bounds),
        cmocka_unit_test(addresses_of_both_kinds_come_back),
        cmocka_unit_test(foreign_addresses_are_read_within_their_bounds),
        cmocka_unit_test(ucx_is_chosen_where_all_have_one_version),
    };

    return cmocka_run_group_tests_name("fabric_address", tests, NULL, NULL);
}
