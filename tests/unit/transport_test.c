/* The TCP transport between two members in one process, and what strangers may try. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
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

/* The sides that want it sealed. */
static const struct mode {
    bool a, b;
    bool six; /* over IPv6 */
} modes[] = { { false, false, false }, { true, true, false }, { true, false, false }, { false, true, false },
              { false, false, true },  { true, true, true },  { true, false, true },  { false, true, true } };

struct pair {
    struct transport *a; /* rank 0 */
    struct transport *b; /* rank 1 */
    uint8_t address_a[64];
    uint8_t address_b[64];
    size_t len_a;
    size_t len_b;
};

static void pair_init(struct pair *pair, const struct mode *mode)
{
    struct shoal_msg msg;

    assert_int_equal(tcp->create(&pair->a, mode->six ? "::1" : "lo", mode->a, &msg), SHOAL_OK);
    /* the same one by its address */
    assert_int_equal(tcp->create(&pair->b, mode->six ? "::1" : "127.0.0.1", mode->b, &msg), SHOAL_OK);
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

    pair_init(&pair, *state);
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

    pair_init(&pair, *state);
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

    pair_init(&pair, *state);
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
    struct shoal_ranks lost = { 0 }, lost_a;
    uint8_t in[4] = { 0 };
    struct transport_request *receive;
    struct pair pair;

    pair_init(&pair, *state);
    connect_b(&pair, EPOCH(1));
    connect_a(&pair, EPOCH(1), token_wrong);
    receive = tcp->recv(pair.b, EPOCH(1), in, 4);
    (void)tcp->send(pair.a, 1, EPOCH(1), "evil", 4);
    turns(&pair);
    assert_int_equal(tcp->test(pair.b, receive), TRANSPORT_PENDING);
    assert_int_equal(in[0], 0);
    assert_true(tcp->failed(pair.a, NULL)); /* its connection was closed */
    shoal_ranks_add(&lost, 1);
    lost_a = tcp->lost(pair.a);
    assert_true(shoal_ranks_equal(&lost_a, &lost));
    if (!((const struct mode *)*state)->a && !((const struct mode *)*state)->b) { /* else a may deny what b opens */
        assert_false(tcp->failed(pair.b, NULL));
        lost_a = tcp->lost(pair.b);
        assert_false(shoal_ranks_any(&lost_a));
    }
    pair_deinit(&pair);
}

static void who_is_early_waits(void **state)
{
    uint8_t in[4];
    struct transport_request *receive;
    struct pair pair;

    pair_init(&pair, *state);
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

/* A token counts in the epochs that list it: rank 0 is a worker on b's own host now, or none. */
static void the_epoch_before_counts_no_more(void **state)
{
    uint8_t in[4] = { 0 };
    struct transport_request *receive;
    struct transport_peer other = { .epoch = EPOCH(2), .rank = 2, .my_rank = 1, .token = token_wrong, .my_token = token_b };
    struct pair pair;

    pair_init(&pair, *state);
    connect_a(&pair, EPOCH(1), token_a);
    connect_b(&pair, EPOCH(1));
    turns(&pair);
    tcp->reset(pair.a, EPOCH(1), TRANSPORT_EPOCH_MASK);
    tcp->reset(pair.b, EPOCH(1), TRANSPORT_EPOCH_MASK);
    other.address = pair.address_a;
    other.address_len = pair.len_a;
    assert_int_equal(tcp->connect(pair.b, &other), SHOAL_OK);
    connect_a(&pair, EPOCH(2), token_a);
    receive = tcp->recv(pair.b, EPOCH(2) | 5, in, 4);
    (void)tcp->send(pair.a, 1, EPOCH(2) | 5, "left", 4);
    turns(&pair);
    assert_int_equal(tcp->test(pair.b, receive), TRANSPORT_PENDING);
    assert_int_equal(in[0], 0);
    pair_deinit(&pair);
}

static void a_peer_that_closes_is_noticed(void **state)
{
    struct pair pair;

    pair_init(&pair, *state);
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

/* A worker in C has no handler for SIGPIPE, and would die of a peer that did. */
static void a_peer_that_is_gone_is_no_signal(void **state)
{
    struct transport_request *send = NULL;
    struct pair pair;

    pair_init(&pair, *state);
    connect_a(&pair, EPOCH(1), token_a);
    connect_b(&pair, EPOCH(1));
    turns(&pair);
    tcp->reset(pair.a, EPOCH(1), TRANSPORT_EPOCH_MASK);
    for (uint32_t i = 0; i < 5 && !tcp->failed(pair.b, NULL); i++)
        send = tcp->send(pair.b, 0, EPOCH(1) | i, token_b, sizeof(token_b));
    assert_true(tcp->failed(pair.b, NULL));
    assert_non_null(send);
    pair_deinit(&pair);
}

/* Raw bytes to b's port: what a stranger can do without a token. */
static int stranger(const struct pair *pair, const void *bytes, size_t len)
{
    struct sockaddr_in to = { .sin_family = AF_INET };
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    memcpy(&to.sin_addr, pair->address_b + pair->len_b % 6, 4);
    memcpy(&to.sin_port, pair->address_b + pair->len_b % 6 + 4, 2);
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
    int fds[60];

    pair_init(&pair, *state);
    connect_b(&pair, EPOCH(1));
    for (int i = 0; i < 60; i++) { /* garbage of every length around that of a preamble, and a true magic */
        struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));

        memset(bytes, 0xff, sizeof(bytes));
        if (i % 2 == 0) {
            shoal_put_u64(&w, i % 8 == 0 ? 0x3273706374616f68ull : 0x31706374616f6873ull);
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
    for (int i = 0; i < 60; i++)
        (void)close(fds[i]);
    pair_deinit(&pair);
}

/* Is the connection closed by the other side? */
static bool was_closed(int fd)
{
    uint8_t byte;

    return recv(fd, &byte, 1, MSG_DONTWAIT) != -1 || errno == ECONNRESET; /* the latter: with something unread */
}

/* I4: silent ones, more than all places, before a member comes. They go, the oldest first, and it is heard. */
static void the_silent_take_no_place_from_members(void **state)
{
    enum { SILENT = 300 };
    static int fds[SILENT];
    uint8_t in[4];
    struct transport_request *receive;
    struct pair pair;
    unsigned closed = 0;

    pair_init(&pair, *state);
    connect_b(&pair, EPOCH(1));
    for (int i = 0; i < SILENT; i++) {
        fds[i] = stranger(&pair, "", 0);
        if (i % 32 == 31)
            (void)tcp->progress(pair.b);
    }
    turns(&pair);
    for (int i = 0; i < SILENT; i++)
        closed += was_closed(fds[i]);
    assert_true(closed >= SILENT - SHOAL_RANKS_MAX);
    assert_true(was_closed(fds[0]));
    assert_false(was_closed(fds[SILENT - 1]));
    connect_a(&pair, EPOCH(1), token_a);
    receive = tcp->recv(pair.b, EPOCH(1) | 3, in, 4);
    assert_non_null(tcp->send(pair.a, 1, EPOCH(1) | 3, "true", 4));
    turns(&pair);
    assert_int_equal(tcp->test(pair.b, receive), TRANSPORT_DONE);
    for (int i = 0; i < SILENT; i++)
        (void)close(fds[i]);
    pair_deinit(&pair);
}

/* I4: on a busy host all members may have connected before one of them says its preamble. */
static void members_may_connect_all_at_once(void **state)
{
    enum { OTHERS = SHOAL_RANKS_MAX - 2 };
    static int fds[OTHERS];
    uint8_t in[4];
    struct transport_request *receive;
    struct pair pair;

    pair_init(&pair, *state);
    connect_b(&pair, EPOCH(1));
    for (int i = 0; i < OTHERS; i++) {
        fds[i] = stranger(&pair, "", 0);
        if (i % 32 == 31)
            (void)tcp->progress(pair.b);
    }
    connect_a(&pair, EPOCH(1), token_a);
    receive = tcp->recv(pair.b, EPOCH(1) | 3, in, 4);
    assert_non_null(tcp->send(pair.a, 1, EPOCH(1) | 3, "true", 4));
    turns(&pair);
    assert_int_equal(tcp->test(pair.b, receive), TRANSPORT_DONE);
    for (int i = 0; i < OTHERS; i++) {
        assert_false(was_closed(fds[i]));
        (void)close(fds[i]);
    }
    pair_deinit(&pair);
}

/* I4: nobody else comes, and each goes for its silence alone; what sleeps on the descriptor is woken for that. */
static void a_silent_one_has_a_second(void **state)
{
    struct pair pair;
    int fds[2];

    pair_init(&pair, *state);
    connect_b(&pair, EPOCH(1));
    for (int i = 0; i < 2; i++) { /* the second one's second begins later */
        fds[i] = stranger(&pair, "half", 4);
        turns(&pair);
        assert_false(was_closed(fds[i]));
    }
    for (unsigned i = 0; i < 100 && !(was_closed(fds[0]) && was_closed(fds[1])); i++) {
        struct pollfd p = { .fd = tcp->wait_fd(pair.b), .events = POLLIN };

        assert_int_equal(poll(&p, 1, 30000), 1);
        (void)tcp->progress(pair.b);
    }
    assert_true(was_closed(fds[0]) && was_closed(fds[1]));
    assert_false(tcp->failed(pair.b, NULL));
    (void)close(fds[0]);
    (void)close(fds[1]);
    pair_deinit(&pair);
}

static void say_preamble(struct pair *pair, const char *from, int *fd)
{
    uint8_t bytes[36];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    struct sockaddr_in at = { .sin_family = AF_INET };
    struct sockaddr_in to = { .sin_family = AF_INET };

    shoal_put_u64(&w, 0x31706374616f6873ull);
    shoal_put_u64(&w, EPOCH(9));
    shoal_put_u32(&w, 0);
    shoal_put_raw(&w, token_wrong, 16);
    assert_int_equal(inet_pton(AF_INET, from, &at.sin_addr), 1);
    memcpy(&to.sin_addr, pair->address_b, 4);
    memcpy(&to.sin_port, pair->address_b + 4, 2);
    *fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(*fd, (const struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(connect(*fd, (const struct sockaddr *)&to, sizeof(to)), 0);
    assert_int_equal(send(*fd, bytes, w.len, 0), (ssize_t)w.len);
}

/* I4: one address that says it is early, again and again, loses its own places, not those of another. */
static void the_early_of_one_address_push_nobody_out(void **state)
{
    enum { EARLY = 3 * SHOAL_RANKS_MAX };
    static int fds[EARLY];
    struct pair pair;
    unsigned closed = 0;
    int member;

    pair_init(&pair, *state);
    connect_b(&pair, EPOCH(1));
    say_preamble(&pair, "127.0.0.2", &member);
    turns(&pair);
    for (int i = 0; i < EARLY; i++) {
        say_preamble(&pair, "127.0.0.3", &fds[i]);
        if (i % 16 == 15)
            turns(&pair);
    }
    turns(&pair);
    for (int i = 0; i < EARLY; i++)
        closed += was_closed(fds[i]);
    assert_true(closed >= EARLY - 2 * SHOAL_RANKS_MAX);
    assert_false(was_closed(member));
    for (int i = 0; i < EARLY; i++)
        (void)close(fds[i]);
    (void)close(member);
    pair_deinit(&pair);
}

static void only_interfaces_of_this_host_are_bound(void **state)
{
    static const char *const rows[] = { "", "nosuch0", "lo,nosuch0", "lo,lo,lo,lo,lo" };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct transport *transport;
        struct shoal_msg msg;

        assert_int_not_equal(tcp->create(&transport, rows[i], i % 2 == 0, &msg), SHOAL_OK);
        assert_true(strlen(msg.text) > 0);
    }
}

/* ---- a wire that somebody else holds ---- */

/* Between a and b: b's address is the relay's, and what a sends passes through its hands. */
struct relay {
    int listener, from, to;
    uint8_t address[7];
    uint8_t seen[4096]; /* what a sent */
    size_t seen_len;
    size_t change_at; /* which of these bytes is changed; SIZE_MAX: none */
    bool change_answer;
};

static void relay_init(struct relay *relay, const struct pair *pair)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof(at);

    *relay = (struct relay){ .from = -1, .change_at = SIZE_MAX };
    relay->listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(relay->listener, (const struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(relay->listener, 1), 0);
    assert_int_equal(getsockname(relay->listener, (struct sockaddr *)&at, &len), 0);
    relay->address[0] = 1;
    memcpy(relay->address + 1, &at.sin_addr, 4);
    memcpy(relay->address + 5, &at.sin_port, 2);
    relay->to = stranger(pair, NULL, 0);
}

static void relay_deinit(struct relay *relay)
{
    (void)close(relay->listener);
    (void)close(relay->from);
    (void)close(relay->to);
}

static bool relay_pass(struct relay *relay)
{
    uint8_t bytes[2048];
    ssize_t got = recv(relay->from, bytes, 1024, MSG_DONTWAIT);
    bool ended = got == 0;
    ssize_t back = recv(relay->to, bytes + 1024, 1024, MSG_DONTWAIT);

    if (got > 0) {
        assert_true(relay->seen_len + (size_t)got <= sizeof(relay->seen));
        memcpy(relay->seen + relay->seen_len, bytes, (size_t)got);
        if (relay->change_at - relay->seen_len < (size_t)got)
            bytes[relay->change_at - relay->seen_len] ^= 0x10;
        relay->seen_len += (size_t)got;
        (void)send(relay->to, bytes, (size_t)got, MSG_NOSIGNAL);
    }
    if (ended || back == 0 || (back < 0 && errno == ECONNRESET)) { /* who closes is passed on, too */
        (void)shutdown(relay->from, SHUT_RDWR);
        (void)shutdown(relay->to, SHUT_RDWR);
    }
    bytes[1024] ^= relay->change_answer ? 1 : 0;
    if (back > 0)
        (void)send(relay->from, bytes + 1024, (size_t)back, MSG_NOSIGNAL);
    return got > 0 || back > 0;
}

static void relay_turns(struct relay *relay, struct pair *pair)
{
    do
        turns(pair);
    while (relay_pass(relay));
    turns(pair);
}

/* a sends one message through the relay; b's receive. */
static struct transport_request *send_by(struct relay *relay, struct pair *pair, const void *out, void *in, size_t len)
{
    struct transport_request *receive;

    pair->len_b = 6 + pair->len_b % 6; /* the byte that asks for a seal only if b does */
    memcpy(pair->address_b, relay->address + sizeof(relay->address) - pair->len_b, pair->len_b);
    connect_b(pair, EPOCH(1));
    connect_a(pair, EPOCH(1), token_a);
    relay->from = accept(relay->listener, NULL, NULL);
    receive = tcp->recv(pair->b, EPOCH(1) | 3, in, len);
    assert_non_null(tcp->send(pair->a, 1, EPOCH(1) | 3, out, len));
    relay_turns(relay, pair);
    return receive;
}

static void nothing_can_be_read_on_the_wire(void **state)
{
    static const uint8_t secret[64] = "sixty four bytes that nobody on the way may read, whoever it is";
    uint8_t in[64];
    struct transport_request *receive;
    struct relay relay;
    struct pair pair;

    pair_init(&pair, *state);
    relay_init(&relay, &pair);
    receive = send_by(&relay, &pair, secret, in, sizeof(in));
    assert_int_equal(tcp->test(pair.b, receive), TRANSPORT_DONE);
    assert_memory_equal(in, secret, sizeof(in));
    assert_int_equal(relay.seen_len, 20 + 48 + 2 + 16 + sizeof(in) + 16);
    for (size_t at = 0; at + 16 <= relay.seen_len; at++) {
        assert_true(memcmp(relay.seen + at, token_a, 16) != 0);
        assert_true(memcmp(relay.seen + at, secret, 16) != 0);
    }
    relay_deinit(&relay);
    pair_deinit(&pair);
}

/* Of a preamble nothing comes; of a record the connection breaks, and what was in it is never taken for received. */
static void a_changed_byte_is_noticed_wherever_it_is(void **state)
{
    static const uint8_t out[8] = "message";
    size_t whole = 20 + 48 + 2 + 16 + sizeof(out) + 16;

    for (size_t at = 0; at < whole + 9; at += 9) {
        uint8_t in[8];
        struct transport_request *receive;
        struct relay relay;
        struct pair pair;
        struct shoal_msg msg;

        pair_init(&pair, *state);
        relay_init(&relay, &pair);
        relay.change_at = at < whole ? at : SIZE_MAX;
        relay.change_answer = at >= whole;
        receive = send_by(&relay, &pair, out, in, sizeof(in));
        if (tcp->test(pair.b, receive) == TRANSPORT_DONE)
            fail_msg("byte %zu was changed, and the message is there", at);
        assert_false(tcp->failed(pair.b, &msg));                /* it is nobody's connection yet */
        if (!tcp->failed(pair.a, &msg) && (at < 8 || at >= 16)) /* of another epoch it waits for that */
            fail_msg("byte %zu was changed, and a goes on", at);
        relay_deinit(&relay);
        pair_deinit(&pair);
    }
}

static void a_conversation_cannot_be_repeated(void **state)
{
    uint8_t in[4] = { 0 };
    struct transport_request *receive;
    struct relay relay;
    struct pair pair;
    static int again[400]; /* more than there are places */

    pair_init(&pair, *state);
    relay_init(&relay, &pair);
    receive = send_by(&relay, &pair, "once", in, sizeof(in));
    assert_int_equal(tcp->test(pair.b, receive), TRANSPORT_DONE);
    tcp->reset(pair.a, EPOCH(1), TRANSPORT_EPOCH_MASK); /* both begin this epoch anew */
    tcp->reset(pair.b, EPOCH(1), TRANSPORT_EPOCH_MASK);
    connect_b(&pair, EPOCH(1));
    assert_int_equal(tcp->address(pair.b, pair.address_b, sizeof(pair.address_b), &pair.len_b), SHOAL_OK);
    for (unsigned i = 0; i < 400; i++) { /* all of it, or the handshake alone */
        again[i] = stranger(&pair, relay.seen, i % 16 == 0 ? relay.seen_len : 20 + 48);
        if (i % 32 == 31)
            (void)tcp->progress(pair.b);
    }
    receive = tcp->recv(pair.b, EPOCH(1) | 3, in, sizeof(in));
    turns(&pair);
    assert_int_equal(tcp->test(pair.b, receive), TRANSPORT_PENDING);
    assert_false(tcp->failed(pair.b, NULL));
    connect_a(&pair, EPOCH(1), token_a); /* the true one is heard all the same */
    assert_non_null(tcp->send(pair.a, 1, EPOCH(1) | 3, "new!", 4));
    turns(&pair);
    assert_int_equal(tcp->test(pair.b, receive), TRANSPORT_DONE);
    assert_memory_equal(in, "new!", 4);
    for (unsigned i = 0; i < 400; i++)
        (void)close(again[i]);
    relay_deinit(&relay);
    pair_deinit(&pair);
}

static int open_preamble(const struct pair *pair)
{
    uint8_t bytes[64];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));

    shoal_put_u64(&w, 0x31706374616f6873ull);
    shoal_put_u64(&w, EPOCH(1));
    shoal_put_u32(&w, 0);
    shoal_put_raw(&w, token_a, 16);
    shoal_put_u64(&w, EPOCH(1) | 3);
    shoal_put_u64(&w, 4);
    shoal_put_raw(&w, "evil", 4);
    return stranger(pair, bytes, w.len);
}

/* Where it is trusted: a rank that has a connection gets no second one, not even with the right token. */
static void a_rank_has_one_connection(void **state)
{
    uint8_t in[4] = { 0 };
    struct transport_request *receive;
    struct pair pair;
    int fd;

    pair_init(&pair, *state);
    connect_b(&pair, EPOCH(1));
    connect_a(&pair, EPOCH(1), token_a);
    turns(&pair);
    receive = tcp->recv(pair.b, EPOCH(1) | 3, in, sizeof(in));
    fd = open_preamble(&pair);
    turns(&pair);
    assert_true(was_closed(fd));
    assert_int_equal(tcp->test(pair.b, receive), TRANSPORT_PENDING);
    assert_false(tcp->failed(pair.b, NULL));
    (void)close(fd);
    pair_deinit(&pair);
}

/* A side that trusts nothing hears no open preamble, not even with the right token. */
static void an_open_preamble_is_not_heard(void **state)
{
    uint8_t in[4] = { 0 };
    struct transport_request *receive;
    struct pair pair;
    int fd;

    pair_init(&pair, *state);
    connect_b(&pair, EPOCH(1));
    receive = tcp->recv(pair.b, EPOCH(1) | 3, in, sizeof(in));
    fd = open_preamble(&pair);
    turns(&pair);
    assert_int_equal(tcp->test(pair.b, receive), TRANSPORT_PENDING);
    assert_int_equal(in[0], 0);
    (void)close(fd);
    pair_deinit(&pair);
}

/* More than is put aside, in pieces, before anyone asks: it stops, and goes on where it was, without a new byte. */
static void what_waits_in_hand_is_not_forgotten(void **state)
{
    enum { COUNT = 10, EACH = 32 * 1024 * 1024 };
    struct transport_request *sends[COUNT];
    uint8_t *out = malloc(EACH), *in = malloc(EACH);
    struct pair pair;

    assert_true(out != NULL && in != NULL);
    pair_init(&pair, *state);
    connect_a(&pair, EPOCH(1), token_a);
    connect_b(&pair, EPOCH(1));
    for (size_t i = 0; i < EACH; i++)
        out[i] = (uint8_t)(i * 31 >> 3);
    for (uint32_t i = 0; i < COUNT; i++)
        sends[i] = tcp->send(pair.a, 1, EPOCH(1) | i, out, i == COUNT - 1 ? 5 : EACH);
    turns(&pair);
    assert_int_equal(tcp->test(pair.a, sends[COUNT - 2]), TRANSPORT_PENDING); /* nobody has a place for it */
    for (uint32_t i = 0; i < COUNT; i++) {
        size_t len = i == COUNT - 1 ? 5 : EACH;
        struct transport_request *receive = tcp->recv(pair.b, EPOCH(1) | i, in, len);

        turns(&pair);
        if (tcp->test(pair.b, receive) != TRANSPORT_DONE)
            fail_msg("message %u did not come", i);
        assert_memory_equal(in, out, len);
    }
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(tcp->test(pair.a, sends[i]), TRANSPORT_DONE);
    for (uint32_t i = 0; i < 2; i++) /* and there is a place again for what comes too early */
        sends[i] = tcp->send(pair.a, 1, EPOCH(1) | i, out, 5);
    for (uint32_t i = 2; i-- > 0;) {
        struct transport_request *receive = tcp->recv(pair.b, EPOCH(1) | i, in, 5);

        turns(&pair);
        assert_int_equal(tcp->test(pair.b, receive), TRANSPORT_DONE);
    }
    pair_deinit(&pair);
    free(out);
    free(in);
}

/* The header of a message lies in two records, and both were read at once: nothing tells of the second. */
static void a_header_in_two_records_is_read(void **state)
{
    enum { RECORD = 65519, HEADER = 16, SECOND = 5 }; /* SEAL_PLAIN_MAX, HEADER_BYTES */
    static uint8_t out[RECORD], in[RECORD];

    for (size_t first = RECORD - 3 * HEADER; first <= RECORD - HEADER; first += 4) {
        struct transport_request *receives[2];
        struct pair pair;

        pair_init(&pair, *state);
        connect_a(&pair, EPOCH(1), token_a);
        connect_b(&pair, EPOCH(1));
        assert_non_null(tcp->send(pair.a, 1, EPOCH(1), out, first)); /* before there is a connection: together */
        assert_non_null(tcp->send(pair.a, 1, EPOCH(1) | 1, out, SECOND));
        receives[0] = tcp->recv(pair.b, EPOCH(1), in, first);
        receives[1] = tcp->recv(pair.b, EPOCH(1) | 1, in, SECOND);
        turns(&pair);
        assert_int_equal(tcp->test(pair.b, receives[0]), TRANSPORT_DONE);
        if (tcp->test(pair.b, receives[1]) != TRANSPORT_DONE)
            fail_msg("after %zu bytes the second message did not come", first);
        pair_deinit(&pair);
    }
}

#define IN_MODE(test, mode) cmocka_unit_test_prestate(test, (void *)(uintptr_t)&modes[mode])
#define IN_ALL_MODES(test) IN_MODE(test, 0), IN_MODE(test, 1), IN_MODE(test, 2), IN_MODE(test, 3)
#define OVER_IPV6(test) IN_MODE(test, 4), IN_MODE(test, 5), IN_MODE(test, 6), IN_MODE(test, 7)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_ALL_MODES(messages_arrive_whole_and_by_tag),
        OVER_IPV6(messages_arrive_whole_and_by_tag),
        IN_ALL_MODES(nothing_is_paced_inside_a_machine),
        IN_ALL_MODES(another_length_fails),
        IN_ALL_MODES(a_wrong_token_is_not_heard),
        OVER_IPV6(a_wrong_token_is_not_heard),
        IN_ALL_MODES(who_is_early_waits),
        OVER_IPV6(who_is_early_waits),
        IN_ALL_MODES(the_epoch_before_counts_no_more),
        IN_ALL_MODES(a_peer_that_closes_is_noticed),
        OVER_IPV6(a_peer_that_closes_is_noticed),
        IN_ALL_MODES(a_peer_that_is_gone_is_no_signal),
        IN_ALL_MODES(strangers_change_nothing),
        IN_MODE(the_silent_take_no_place_from_members, 0),
        IN_MODE(members_may_connect_all_at_once, 0),
        IN_MODE(the_silent_take_no_place_from_members, 1),
        IN_MODE(a_silent_one_has_a_second, 0),
        IN_MODE(the_early_of_one_address_push_nobody_out, 0),
        cmocka_unit_test(only_interfaces_of_this_host_are_bound),
        IN_MODE(nothing_can_be_read_on_the_wire, 1),
        IN_MODE(nothing_can_be_read_on_the_wire, 2),
        IN_MODE(a_changed_byte_is_noticed_wherever_it_is, 1),
        IN_MODE(a_conversation_cannot_be_repeated, 1),
        IN_MODE(a_rank_has_one_connection, 0),
        IN_MODE(an_open_preamble_is_not_heard, 1),
        IN_MODE(what_waits_in_hand_is_not_forgotten, 0),
        IN_MODE(what_waits_in_hand_is_not_forgotten, 1),
        IN_MODE(a_header_in_two_records_is_read, 0),
        IN_MODE(a_header_in_two_records_is_read, 1),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
