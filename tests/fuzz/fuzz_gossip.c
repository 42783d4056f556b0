/* libFuzzer: datagrams of a sealed peer into one gossip core. The first byte of each piece says who sends and how much
 * time passes; two bytes of length follow, then the datagram. Statements need valid signatures to get anywhere, so the
 * toy verify accepts a signature whose first byte is even: the fuzzer finds those at once. */
#include "shoal/gossip.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static struct shoal_signature fuzz_sign(void *arg, struct shoal_view view)
{
    struct shoal_signature signature;

    (void)arg;
    memset(&signature, (int)(view.len * 2) & 0xff, sizeof(signature));
    return signature;
}

static bool fuzz_verify(void *arg, const struct shoal_public_key *key, struct shoal_view view,
                        const struct shoal_signature *signature)
{
    (void)arg;
    (void)key;
    (void)view;
    return signature->bytes[0] % 2 == 0;
}

/* The first half of the key, so that the fuzzer can make identities. */
static struct shoal_node_id fuzz_node_id(void *arg, const struct shoal_public_key *key)
{
    struct shoal_node_id id;

    (void)arg;
    memcpy(id.bytes, key->bytes, sizeof(id.bytes));
    return id;
}

static struct shoal_swim *make_core(struct shoal_gossip_pool *pool)
{
    struct shoal_swim_options options = { .id = { { 1 } },
                                          .public_key = { { 1 } },
                                          .store = { { 9 } },
                                          .host_epoch = 1,
                                          .agent = 1,
                                          .address = { { 1 }, 1 },
                                          .name = "fuzz",
                                          .env = { NULL, fuzz_sign, fuzz_verify, fuzz_node_id, NULL },
                                          .pool = pool,
                                          .seed = 1,
                                          .members_max = 8,
                                          .records_max = 16,
                                          .suspicions_max = 2,
                                          .queue_max = 8,
                                          .grace_ns = 20 * SHOAL_S };
    struct shoal_swim *swim = NULL;

    if (shoal_swim_create(&swim, &options, NULL) != SHOAL_OK)
        abort();
    return swim;
}

/* Each frame that was sent must be a datagram's worth, and what was told must be readable. */
static void check_actions(const struct shoal_swim_actions *actions)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < actions->count; i++) {
        const struct shoal_swim_action *action = &actions->items[i];

        if (action->kind == SHOAL_SWIM_SEND && action->send.bytes.len > SHOAL_DATAGRAM_PAYLOAD_MAX)
            abort();
        if (action->kind == SHOAL_SWIM_RECORD)
            for (size_t b = 0; b < action->record.payload.len; b++)
                sum += action->record.payload.bytes[b];
    }
    (void)sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static struct shoal_swim_actions actions;
    static const uint64_t steps_ns[4] = { 0, 50 * SHOAL_MS, SHOAL_S, 12 * SHOAL_S };
    struct shoal_gossip_pool *pool = shoal_gossip_pool_create(8 * 16384);
    struct shoal_swim *swim = make_core(pool);
    uint64_t now_ns = SHOAL_S;

    while (len >= 3) {
        size_t size = (size_t)(bytes[1] | bytes[2] << 8) % SHOAL_DATAGRAM_PAYLOAD_MAX;
        struct shoal_swim_event event = { .kind = SHOAL_SWIM_DATAGRAM };
        uint64_t until_ns = now_ns + steps_ns[bytes[0] >> 6];

        event.datagram.from.bytes[0] = bytes[0] & 7;
        bytes += 3;
        len -= 3;
        size = size < len ? size : len;
        event.datagram.bytes = shoal_view_of(bytes, size);
        (void)shoal_swim_step(swim, &event, now_ns, &actions);
        shoal_swim_check(swim);
        check_actions(&actions);
        bytes += size;
        len -= size;
        for (int turns = 0; shoal_swim_deadline_ns(swim) <= until_ns; turns++) {
            if (turns > 10000)
                abort(); /* it spins */
            if (shoal_swim_deadline_ns(swim) > now_ns)
                now_ns = shoal_swim_deadline_ns(swim);
            (void)shoal_swim_step(swim, &(struct shoal_swim_event){ .kind = SHOAL_SWIM_TIMER }, now_ns, &actions);
            check_actions(&actions);
        }
        now_ns = until_ns;
    }
    shoal_swim_destroy(swim);
    shoal_gossip_pool_destroy(pool);
    return 0;
}
