/* libFuzzer: what anyone who can reach a port may send: the stream's header, the hello, handshake messages of both
 * sides at each step, and datagrams. The first byte chooses. */
#include "shoal/datagram.h"
#include "shoal/noise.h"

#include "node/link/link_wire.h"

#include <uv.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static struct shoal_noise *side(bool initiator)
{
    static const uint8_t ephemeral[32] = { 9 };
    struct shoal_noise_options options = {
        .initiator = initiator, .static_secret = { initiator }, .psk = { 3 }, .ephemeral_secret = ephemeral
    };
    struct shoal_noise *noise;

    SHOAL_ASSERT(shoal_noise_create(&noise, &options) == SHOAL_OK);
    return noise;
}

/* Honest messages up to `step`, then the fuzzer's. */
static void handshake(unsigned step, struct shoal_view view)
{
    struct shoal_noise *a = side(true), *b = side(false);
    uint8_t message[256], out[512];
    size_t n, got;

    for (unsigned i = 0; i < step; i++) {
        SHOAL_ASSERT(shoal_noise_write(i % 2 ? b : a, (struct shoal_view){ 0 }, message, sizeof(message), &n) ==
                     SHOAL_OK);
        SHOAL_ASSERT(shoal_noise_read(i % 2 ? a : b, shoal_view_of(message, n), out, sizeof(out), &got) == SHOAL_OK);
    }
    if (step < 3) {
        SHOAL_ASSERT(shoal_noise_read(step % 2 ? a : b, view, out, sizeof(out), &got) != SHOAL_OK || step == 0);
    } else if (view.len >= SHOAL_NOISE_TAG_BYTES && view.len <= sizeof(out)) {
        SHOAL_ASSERT(shoal_noise_open(b, view, out) == SHOAL_ERR_MALFORMED);
    }
    shoal_noise_destroy(a);
    shoal_noise_destroy(b);
}

static void on_datagram(void *arg, struct shoal_node_id from, struct shoal_address address, struct shoal_view payload)
{
    (void)arg, (void)from, (void)address, (void)payload;
    abort(); /* nobody knows the secret */
}

static struct shoal_datagram *datagrams(void)
{
    static struct shoal_datagram *datagram;
    static struct shoal_identity identity;
    static uv_loop_t loop;
    struct shoal_datagram_options options = { .loop = &loop,
                                              .identity = &identity,
                                              .handlers = { .on_datagram = on_datagram } };
    struct shoal_msg msg;

    if (datagram != NULL)
        return datagram;
    SHOAL_ASSERT(shoal_crypto_init(NULL) == SHOAL_OK && uv_loop_init(&loop) == 0);
    shoal_key_create(&identity.public_key, &identity.secret_key);
    identity.node = shoal_node_id_of(&identity.public_key);
    identity.mesh_secret = shoal_secret_random();
    identity.incarnation.agent = 1;
    SHOAL_ASSERT(shoal_address_parse("127.0.0.1:0", 0, &options.listen, NULL) == SHOAL_OK);
    SHOAL_ASSERT(shoal_datagram_create(&datagram, &options, &msg) == SHOAL_OK);
    return datagram;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct shoal_datagram *datagram = datagrams();
    struct shoal_view view;
    struct link_hello hello;
    uint8_t again[LINK_HELLO_BYTES_MAX];

    if (len == 0)
        return 0;
    view = shoal_view_of(bytes + 1, len - 1);
    switch (bytes[0] % 8) {
    case 0:
    case 1:
    case 2:
    case 3: handshake(bytes[0] % 8, view); break;
    case 4: (void)link_stream_decode(view); break;
    case 5:
        if (link_hello_decode(view, &hello) == SHOAL_OK)
            SHOAL_ASSERT(link_hello_encode(&hello, again) == view.len &&
                         memcmp(again + 3, view.bytes + 3, view.len - 3) == 0);
        break;
    default: shoal_datagram_receive(datagram, (struct shoal_address){ { 1 }, 9 }, view); break;
    }
    return 0;
}
