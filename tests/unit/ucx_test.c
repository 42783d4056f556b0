/* UCX behind the table of transports: found or not, messages, where it listens, what a child inherits. Left out where
 * set-up could not install it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <glob.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

#include "collective/transport/transport.h"
#include "collective/transport/ucx_table.h"
#include "shoal/collective.h"

#include "shoal/banned.h"

#define FDS 200
#define EPOCH (7ull << 48)
static const uint8_t token[16] = { 1 };
static const struct transport_ops *const ucx = &transport_ucx;

/* The library of the environment that .ci/setup made, unless one is named. */
static bool is_there(void)
{
    glob_t found = { 0 };
    char text[400];

    if (getenv(UCX_ENV_LIBRARY) == NULL &&
        glob(".venv/lib/python3*/site-packages/libucx/lib/libucp.so.0", 0, NULL, &found) == 0)
        (void)setenv(UCX_ENV_LIBRARY, found.gl_pathv[0], 0);
    globfree(&found);
    return shoal_ucx_look(text, sizeof(text)) == 0;
}

static void a_library_that_is_not_there_is_named(void **state)
{
    const char *before = getenv(UCX_ENV_LIBRARY);
    char kept[400], text[400];

    (void)state;
    (void)snprintf(kept, sizeof(kept), "%s", before == NULL ? "" : before);
    (void)setenv(UCX_ENV_LIBRARY, "/no/such/libucp.so.0", 1);
    assert_int_equal(shoal_ucx_look(text, sizeof(text)), 1);
    assert_non_null(strstr(text, "/no/such/libucp.so.0"));
    (void)setenv(UCX_ENV_LIBRARY, "libm.so.6", 1); /* a library, and another one */
    assert_int_equal(shoal_ucx_look(text, sizeof(text)), 1);
    assert_non_null(strstr(text, "libm.so.6 has no ucp_get_version"));
    (void)(kept[0] == '\0' ? unsetenv(UCX_ENV_LIBRARY) : setenv(UCX_ENV_LIBRARY, kept, 1));
}

static void it_seals_nothing_and_knows_its_interfaces(void **state)
{
    struct transport *transport = NULL;
    struct shoal_msg msg;

    (void)state;
    assert_int_equal(ucx->create(&transport, "lo", true, &msg), SHOAL_ERR_UNSUPPORTED);
    assert_int_equal(ucx->create(&transport, "lo,nosuch0", false, &msg), SHOAL_ERR_INVALID);
    assert_non_null(strstr(msg.text, "nosuch0"));
}

struct pair {
    struct transport *transports[2];
    uint8_t addresses[2][256];
    size_t lens[2];
};

static void pair_init(struct pair *pair)
{
    struct shoal_msg msg;

    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(ucx->create(&pair->transports[i], i == 0 ? "lo" : "127.0.0.1", false, &msg), SHOAL_OK);
        assert_int_equal(ucx->address(pair->transports[i], pair->addresses[i], 256, &pair->lens[i]), SHOAL_OK);
    }
    for (uint32_t i = 0; i < 2; i++) {
        struct transport_peer peer = { .epoch = EPOCH,
                                       .rank = 1 - i,
                                       .my_rank = i,
                                       .token = token,
                                       .my_token = token,
                                       .address = pair->addresses[1 - i],
                                       .address_len = pair->lens[1 - i] };

        assert_int_equal(ucx->connect(pair->transports[i], &peer), SHOAL_OK);
    }
}

static void pair_deinit(struct pair *pair)
{
    ucx->destroy(pair->transports[0]);
    ucx->destroy(pair->transports[1]);
}

static enum transport_state ended(struct pair *pair, uint32_t i, struct transport_request *request)
{
    enum transport_state state = TRANSPORT_PENDING;

    for (unsigned turn = 0; turn < 1000000 && state == TRANSPORT_PENDING; turn++) {
        (void)ucx->progress(pair->transports[0]);
        (void)ucx->progress(pair->transports[1]);
        state = ucx->test(pair->transports[i], request);
    }
    return state;
}

static void messages_arrive_whole_and_by_tag(void **state)
{
    static uint8_t out[700000], in[700000];
    struct pair pair;

    if (!is_there())
        skip();
    (void)state;
    pair_init(&pair);
    for (uint32_t from = 0; from < 2; from++)
        for (size_t len = 0; len <= sizeof(out); len = len * 30 + 1) {
            struct transport_request *receive = ucx->recv(pair.transports[1 - from], EPOCH | len, in, len);
            struct transport_request *send;

            memset(out, (int)(len + from + 1), sizeof(out));
            send = ucx->send(pair.transports[from], 1 - from, EPOCH | len, out, len);
            assert_int_equal(ended(&pair, 1 - from, receive), TRANSPORT_DONE);
            assert_int_equal(ended(&pair, from, send), TRANSPORT_DONE);
            assert_memory_equal(in, out, len);
        }
    pair_deinit(&pair);
}

/* Each TCP socket of this process: bound to loopback, closed in children, and not paced. */
static void its_sockets_are_ours(void **state)
{
    uint64_t word = 1, got = 0;
    unsigned seen = 0, listeners = 0;
    struct pair pair;

    if (!is_there())
        skip();
    (void)state;
    pair_init(&pair);
    for (unsigned i = 0; i < 3; i++) { /* both ways, and later than the first look at what came in */
        struct transport_request *receive = ucx->recv(pair.transports[i % 2], EPOCH | i, &got, sizeof(got));
        struct transport_request *send = ucx->send(pair.transports[1 - i % 2], i % 2, EPOCH | i, &word, sizeof(word));

        assert_int_equal(ended(&pair, i % 2, receive), TRANSPORT_DONE);
        assert_int_equal(ended(&pair, 1 - i % 2, send), TRANSPORT_DONE);
        (void)poll(NULL, 0, 110);
    }
    for (int fd = 3; fd < FDS; fd++) {
        struct sockaddr_in at = { 0 };
        socklen_t len = sizeof(at), size = sizeof(int);
        char control[16] = "";
        socklen_t control_len = sizeof(control);
        int listens = 0;

        if (getsockname(fd, (struct sockaddr *)&at, &len) != 0 || at.sin_family != AF_INET)
            continue;
        (void)getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size);
        assert_int_equal(ntohl(at.sin_addr.s_addr), INADDR_LOOPBACK);
        assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
        assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control, &control_len), 0);
        assert_string_equal(control, "reno");
        seen++;
        listeners += listens != 0;
    }
    assert_int_equal(listeners, 2);
    assert_true(seen >= 4);
    pair_deinit(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_library_that_is_not_there_is_named),
        cmocka_unit_test(it_seals_nothing_and_knows_its_interfaces),
        cmocka_unit_test(messages_arrive_whole_and_by_tag),
        cmocka_unit_test(its_sockets_are_ours),
    };

    return cmocka_run_group_tests_name("ucx", tests, NULL, NULL);
}
