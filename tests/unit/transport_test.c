/* The TCP transport between two members in one process, and what strangers may try. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collective/transport/transport.h"
#include "shoal/wire.h"

#include "shoal/banned.h"

#define EPOCH(n) ((uint64_t)(n) << 48)

static const uint8_t token_a[16] = { 1 };
static const uint8_t token_b[16] = { 2 };
static const uint8_t token_wrong[16] = { 3 };
static const struct transport_ops *const tcp = &transport_tcp;

struct pair {
    struct transport *a; /* rank 0 */
    struct transport *b; /* rank 1 */
    uint8_t address_a[64];
    uint8_t address_b[64];
    size_t len_a;
    size_t len_b;
};

static void pair_init(struct pair *pair)
{
    struct shoal_msg msg;

    assert_int_equal(tcp->create(&pair->a, "lo", &msg), SHOAL_OK);
    assert_int_equal(tcp->create(&pair->b, "lo", &msg), SHOAL_OK);
    assert_int_equal(tcp->address(pair->a, pair->address_a, sizeof(pair->address_a), &pair->len_a), SHOAL_OK);
    assert_int_equal(tcp->address(pair->b, pair->address_b, sizeof(pair->address_b), &pair->len_b), SHOAL_OK);
}

static void pair_deinit(struct pair *pair)
{
    tcp->destroy(pair->a);
    tcp->destroy(pair->b);
}

static void connect_a(struct pair *pair, uint64_t epoch, const uint8_t *shown)
{
    struct transport_peer peer = { .epoch = epoch,
                                   .rank = 1,
                                   .my_rank = 0,
                                   .token = token_b,
                                   .my_token = shown,
                                   .address = pair->address_b,
                                   .address_len = pair->len_b };

    assert_int_equal(tcp->connect(pair->a, &peer), SHOAL_OK);
}

static void connect_b(struct pair *pair, uint64_t epoch)
{
    struct transport_peer peer = { .epoch = epoch,
                                   .rank = 0,
                                   .my_rank = 1,
                                   .token = token_a,
                                   .my_token = token_b,
                                   .address = pair->address_a,
                                   .address_len = pair->len_a };

    assert_int_equal(tcp->connect(pair->b, &peer), SHOAL_OK);
}

/* Turns until something moves no more; each waits for the kernel, so that none is too early. */
static void turns(struct pair *pair)
{
    for (unsigned quiet = 0; quiet < 3;) {
        struct pollfd p[2] = { { .fd = tcp->wait_fd(pair->a), .events = POLLIN },
                               { .fd = tcp->wait_fd(pair->b), .events = POLLIN } };
        bool failed = tcp->failed(pair->a, NULL) || tcp->failed(pair->b, NULL);

        quiet = poll(p, 2, 10) == 0 || failed ? quiet + 1 : 0;
        (void)tcp->progress(pair->a);
        (void)tcp->progress(pair->b);
    }
}

static void messages_arrive_whole_and_by_tag(void **state)
{
    static uint8_t out[3][300000];
    static uint8_t in[3][300000];
    struct transport_request *sends[3];
    struct transport_request *receives[3];
    struct pair pair;

    (void)state;
    pair_init(&pair);
    connect_a(&pair, EPOCH(7), token_a);
    connect_b(&pair, EPOCH(7));
    for (uint32_t i = 0; i < 3; i++)
        memset(out[i], (int)i + 1, sizeof(out[i]));
    receives[2] = tcp->recv(pair.b, EPOCH(7) | 2, in[2], sizeof(in[2])); /* the last one first */
    for (uint32_t i = 0; i < 3; i++)
        sends[i] = tcp->send(pair.a, 1, EPOCH(7) | i, out[i], sizeof(out[i]));
    turns(&pair);
    assert_int_equal(tcp->test(pair.b, receives[2]), TRANSPORT_DONE);
    for (uint32_t i = 0; i < 2; i++) { /* these were put aside */
        receives[i] = tcp->recv(pair.b, EPOCH(7) | i, in[i], sizeof(in[i]));
        assert_int_equal(tcp->test(pair.b, receives[i]), TRANSPORT_DONE);
    }
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(tcp->test(pair.a, sends[i]), TRANSPORT_DONE);
        assert_memory_equal(in[i], out[i], sizeof(in[i]));
    }
    receives[0] = tcp->recv(pair.a, EPOCH(7) | 9, NULL, 0); /* the other way, nothing but a tag */
    sends[0] = tcp->send(pair.b, 0, EPOCH(7) | 9, NULL, 0);
    turns(&pair);
    assert_int_equal(tcp->test(pair.a, receives[0]), TRANSPORT_DONE);
    assert_int_equal(tcp->test(pair.b, sends[0]), TRANSPORT_DONE);
    pair_deinit(&pair);
}

/* Whatever the kernel's default paces. */
static void nothing_is_paced_inside_a_machine(void **state)
{
    unsigned found = 0;
    struct pair pair;

    (void)state;
    pair_init(&pair);
    connect_a(&pair, EPOCH(2), token_a);
    connect_b(&pair, EPOCH(2));
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_in to;
        socklen_t len = sizeof(to);
        char name[16] = "";

        if (getpeername(fd, (struct sockaddr *)&to, &len) != 0 || to.sin_family != AF_INET)
            continue;
        len = sizeof(name) - 1;
        assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len), 0);
        found += strcmp(name, "reno") == 0 ? 1 : 0;
    }
    assert_int_equal(found, 2); /* who connects sends */
    pair_deinit(&pair);
}

static void another_length_fails(void **state)
{
    uint8_t in[16];
    struct transport_request *receive;
    struct shoal_msg msg;
    struct pair pair;

    (void)state;
    pair_init(&pair);
    connect_a(&pair, EPOCH(1), token_a);
    connect_b(&pair, EPOCH(1));
    receive = tcp->recv(pair.b, EPOCH(1), in, 8);
    assert_non_null(tcp->send(pair.a, 1, EPOCH(1), "twelve bytes", 12));
    turns(&pair);
    assert_int_equal(tcp->test(pair.b, receive), TRANSPORT_FAILED);
    assert_true(tcp->failed(pair.b, &msg));
    pair_deinit(&pair);
}

static void a_wrong_token_is_not_heard(void **state)
{
    uint8_t in[4] = { 0 };
    struct transport_request *receive;
    struct pair pair;

    (void)state;
    pair_init(&pair);
    connect_b(&pair, EPOCH(1));
    connect_a(&pair, EPOCH(1), token_wrong);
    receive = tcp->recv(pair.b, EPOCH(1), in, 4);
    (void)tcp->send(pair.a, 1, EPOCH(1), "evil", 4);
    turns(&pair);
    assert_int_equal(tcp->test(pair.b, receive), TRANSPORT_PENDING);
    assert_int_equal(in[0], 0);
    assert_true(tcp->failed(pair.a, NULL)); /* its connection was closed */
    assert_true(tcp->lost(pair.a) == 1u << 1);
    assert_false(tcp->failed(pair.b, NULL));
    assert_true(tcp->lost(pair.b) == 0);
    pair_deinit(&pair);
}

static void who_is_early_waits(void **state)
{
    uint8_t in[4];
    struct transport_request *receive;
    struct pair pair;

    (void)state;
    pair_init(&pair);
    connect_a(&pair, EPOCH(2), token_a); /* b is in epoch 1 still */
    connect_b(&pair, EPOCH(1));
    assert_non_null(tcp->send(pair.a, 1, EPOCH(2) | 5, "next", 4));
    turns(&pair);
    tcp->reset(pair.b, EPOCH(1), TRANSPORT_EPOCH_MASK);
    connect_b(&pair, EPOCH(2));
    receive = tcp->recv(pair.b, EPOCH(2) | 5, in, 4);
    turns(&pair);
    assert_int_equal(tcp->test(pair.b, receive), TRANSPORT_DONE);
    assert_memory_equal(in, "next", 4);
    pair_deinit(&pair);
}

static void a_peer_that_closes_is_noticed(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair);
    connect_a(&pair, EPOCH(1), token_a);
    connect_b(&pair, EPOCH(1));
    turns(&pair);
    assert_false(tcp->failed(pair.b, NULL));
    tcp->reset(pair.a, EPOCH(1), TRANSPORT_EPOCH_MASK);
    turns(&pair);
    assert_true(tcp->failed(pair.b, NULL));
    tcp->reset(pair.b, EPOCH(1), TRANSPORT_EPOCH_MASK);
    assert_false(tcp->failed(pair.b, NULL));
    pair_deinit(&pair);
}

/* Raw bytes to b's port: what a stranger can do without a token. */
static int stranger(const struct pair *pair, const void *bytes, size_t len)
{
    struct sockaddr_in to = { .sin_family = AF_INET };
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    memcpy(&to.sin_addr, pair->address_b, 4);
    memcpy(&to.sin_port, pair->address_b + 4, 2);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof(to)), 0);
    assert_int_equal(send(fd, bytes, len, 0), (ssize_t)len);
    return fd;
}

static void strangers_change_nothing(void **state)
{
    uint8_t bytes[200];
    uint8_t in[4];
    struct transport_request *receive;
    struct pair pair;
    int fds[40];

    (void)state;
    pair_init(&pair);
    connect_b(&pair, EPOCH(1));
    for (int i = 0; i < 40; i++) { /* garbage of every length around that of a preamble, and a true magic */
        struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));

        memset(bytes, 0xff, sizeof(bytes));
        if (i % 2 == 0) {
            shoal_put_u64(&w, 0x31706374616f6873ull);
            shoal_put_u64(&w, EPOCH(1));
            shoal_put_u32(&w, i % 4 == 0 ? 0 : UINT32_MAX);
        }
        fds[i] = stranger(&pair, bytes, (size_t)i + 20);
    }
    turns(&pair);
    connect_a(&pair, EPOCH(1), token_a);
    receive = tcp->recv(pair.b, EPOCH(1) | 3, in, 4);
    assert_non_null(tcp->send(pair.a, 1, EPOCH(1) | 3, "true", 4));
    turns(&pair);
    assert_int_equal(tcp->test(pair.b, receive), TRANSPORT_DONE);
    assert_false(tcp->failed(pair.b, NULL));
    for (int i = 0; i < 40; i++)
        (void)close(fds[i]);
    pair_deinit(&pair);
}

static void only_interfaces_of_this_host_are_bound(void **state)
{
    static const char *const rows[] = { "", "nosuch0", "lo,nosuch0", "lo,lo,lo,lo,lo" };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct transport *transport;
        struct shoal_msg msg;

        assert_int_not_equal(tcp->create(&transport, rows[i], &msg), SHOAL_OK);
        assert_true(strlen(msg.text) > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_arrive_whole_and_by_tag),
        cmocka_unit_test(nothing_is_paced_inside_a_machine),
        cmocka_unit_test(another_length_fails),
        cmocka_unit_test(a_wrong_token_is_not_heard),
        cmocka_unit_test(who_is_early_waits),
        cmocka_unit_test(a_peer_that_closes_is_noticed),
        cmocka_unit_test(strangers_change_nothing),
        cmocka_unit_test(only_interfaces_of_this_host_are_bound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
