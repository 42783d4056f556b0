/* libFuzzer: what comes to the port of a worker's TCP transport: a preamble (the fuzzer's, or after an even first byte
 * the right one), then messages. The bytes go through a real socket on loopback, cut where the second byte says; a
 * receive is posted and one more is not. */
#include "collective/transport/transport.h"

#include "shoal/wire.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

#define EPOCH (7ull << 48)

static const struct transport_ops *const tcp = &transport_tcp;
static const uint8_t token[16] = { 1 };

/* Its first address: u32 or 4 bytes of IPv4 address and a port in network order, as connect() reads them. */
static int dial(struct transport *transport)
{
    uint8_t address[64];
    struct sockaddr_in at = { .sin_family = AF_INET };
    size_t len;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    SHOAL_ASSERT(fd >= 0 && tcp->address(transport, address, sizeof(address), &len) == SHOAL_OK && len >= 6);
    memcpy(&at.sin_addr, address, 4);
    memcpy(&at.sin_port, address + 4, 2);
    if (connect(fd, (const struct sockaddr *)&at, sizeof(at)) != 0)
        abort();
    return fd;
}

static size_t good_preamble(uint8_t *bytes, size_t cap)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap);

    shoal_put_u64(&w, 0x31706374616f6873ull);
    shoal_put_u64(&w, EPOCH);
    shoal_put_u32(&w, 1);
    shoal_put_raw(&w, token, sizeof(token));
    return w.len;
}

static void turns(struct transport *transport)
{
    for (unsigned i = 0; i < 8; i++) {
        struct pollfd p = { .fd = tcp->wait_fd(transport), .events = POLLIN };

        if (poll(&p, 1, 0) == 0 && i > 0)
            break;
        (void)tcp->progress(transport);
    }
}

static void talk(struct transport *transport, int fd, const uint8_t *bytes, size_t len)
{
    uint8_t preamble[64];
    size_t cut = len < 2 ? 0 : bytes[1] % len;

    if (len > 0 && bytes[0] % 2 == 0)
        (void)send(fd, preamble, good_preamble(preamble, sizeof(preamble)), MSG_NOSIGNAL);
    if (len > 2) {
        cut = cut < 2 ? 2 : cut;
        (void)send(fd, bytes + 2, cut - 2, MSG_NOSIGNAL);
        turns(transport);
        (void)send(fd, bytes + cut, len - cut, MSG_NOSIGNAL);
    }
    turns(transport);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static struct transport *transport;
    static uint8_t into[64];
    struct transport_peer peer = {
        .epoch = EPOCH, .rank = 1, .my_rank = 0, .token = token, .my_token = token, .address_len = 6
    };
    struct transport_request *receive;
    uint8_t address[64];
    struct shoal_msg msg;
    int fd;

    if (transport == NULL && tcp->create(&transport, "lo", &msg) != SHOAL_OK)
        abort();
    SHOAL_ASSERT(tcp->address(transport, address, sizeof(address), &peer.address_len) == SHOAL_OK);
    peer.address = address; /* our own port: what is sent comes back as a stranger's preamble */
    SHOAL_ASSERT(tcp->connect(transport, &peer) == SHOAL_OK);
    receive = tcp->recv(transport, EPOCH | 3, into, sizeof(into));
    fd = dial(transport);
    turns(transport);
    talk(transport, fd, bytes, len);
    (void)close(fd);
    turns(transport);
    if (receive != NULL)
        (void)tcp->test(transport, receive);
    tcp->reset(transport, 0, 0);
    return 0;
}
