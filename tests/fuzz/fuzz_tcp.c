/* libFuzzer: what comes to the port of a worker's TCP transport. The first byte chooses: the fuzzer's preamble; the
 * right one; a handshake with the right key, then the fuzzer's bytes as records; the same, sealed. Then messages. The
 * bytes go through a real socket on loopback, cut where the second byte says; a receive is posted and one more is not. */
#include "collective/transport/seal.h"
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

/* A member that has the token, up to the answer; it is answered within these turns, or denied: then NULL. */
static struct seal *shake(struct transport *transport, int fd)
{
    uint8_t bytes[20 + SEAL_SHAKE_BYTES], prologue[24];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes)), p = shoal_writer_init(prologue, sizeof(prologue));
    struct seal_options options = { .opens = true };
    struct seal *seal;
    size_t len;

    shoal_put_u64(&w, 0x3273706374616f68ull);
    shoal_put_u64(&w, EPOCH);
    shoal_put_u32(&w, 1);
    shoal_put_raw(&p, bytes, 20);
    shoal_put_u32(&p, 0);
    options.prologue = shoal_writer_view(&p);
    SHOAL_ASSERT(seal_key(token, token, options.psk) == SHOAL_OK && seal_create(&seal, &options) == SHOAL_OK);
    SHOAL_ASSERT(seal_shake_write(seal, shoal_view_of(NULL, 0), bytes + 20, SEAL_SHAKE_BYTES, &len) == SHOAL_OK);
    (void)send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL);
    for (unsigned i = 0; i < 8; i++)
        (void)tcp->progress(transport);
    if (recv(fd, bytes, SEAL_SHAKE_BYTES, MSG_DONTWAIT) == (ssize_t)SEAL_SHAKE_BYTES &&
        seal_shake_read(seal, shoal_view_of(bytes, SEAL_SHAKE_BYTES), bytes, 0, &len) == SHOAL_OK)
        return seal;
    seal_destroy(seal);
    return NULL;
}

static void send_bytes(int fd, struct seal *seal, const uint8_t *bytes, size_t len)
{
    static uint8_t record[SEAL_RECORD_MAX];

    if (seal != NULL && len > 0 && len <= SEAL_PLAIN_MAX) {
        SHOAL_ASSERT(seal_begin(seal, record) == SHOAL_OK && seal_add(seal, bytes, len) == SHOAL_OK);
        SHOAL_ASSERT(seal_end(seal, &len) == SHOAL_OK);
        bytes = record;
    }
    (void)send(fd, bytes, len, MSG_NOSIGNAL);
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
    struct seal *seal = NULL;
    size_t cut = len < 2 ? 0 : bytes[1] % len;

    if (len > 0 && bytes[0] % 4 == 0)
        (void)send(fd, preamble, good_preamble(preamble, sizeof(preamble)), MSG_NOSIGNAL);
    if (len > 0 && bytes[0] % 4 >= 2)
        seal = shake(transport, fd);
    if (len > 2) {
        cut = cut < 2 ? 2 : cut;
        send_bytes(fd, bytes[0] % 4 == 3 ? seal : NULL, bytes + 2, cut - 2);
        turns(transport);
        send_bytes(fd, bytes[0] % 4 == 3 ? seal : NULL, bytes + cut, len - cut);
    }
    turns(transport);
    seal_destroy(seal);
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

    if (transport == NULL && tcp->create(&transport, "lo", false, &msg) != SHOAL_OK)
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
