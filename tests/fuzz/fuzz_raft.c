/* libFuzzer: bytes of peers into one guardian and one support core. Each piece begins with what it is: a Raft message
 * (decoded, encoded again, and stepped), a support datagram, a configuration, or a turn of the owner: time, a durable
 * write, a proposal, a snapshot. Whatever a peer sends, no assertion may fail and nothing may leak.
 *
 * A member may lie about logs and terms: Raft promises nothing then, except not to crash. */
#include "shoal/raft.h"
#include "shoal/support.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

struct fuzz {
    struct shoal_raft *raft;
    struct shoal_support *support;
    uint64_t now;
    struct shoal_raft_mark mark;
    bool has_mark;
};

static struct shoal_raft_id fuzz_id(uint8_t name)
{
    struct shoal_raft_id id = { .node = { { 0 } } };

    id.node.bytes[0] = name;
    id.store.bytes[0] = name;
    return id;
}

static void fuzz_create(struct fuzz *fuzz)
{
    struct shoal_raft_options options = { .self = fuzz_id('a') };
    struct shoal_support_options support = { .self = fuzz_id('a').node,
                                             .incarnation = { .host_epoch = 1, .agent = 2 } };

    for (uint8_t i = 0; i < 3; i++)
        options.config.members[options.config.count++] =
            (struct shoal_raft_member){ .id = fuzz_id((uint8_t)('a' + i)), .bits = SHOAL_RAFT_VOTER };
    shoal_rand_init(&options.chance, 1);
    fuzz->now = SHOAL_S;
    if (shoal_raft_create(&fuzz->raft, &options) != SHOAL_OK ||
        shoal_support_create(&fuzz->support, &support) != SHOAL_OK ||
        shoal_support_add(fuzz->support, fuzz_id('b').node) != SHOAL_OK ||
        shoal_support_claim(fuzz->support, fuzz_id('b').node, (struct shoal_job_id){ { 1 } }, 3) != SHOAL_OK)
        abort();
}

static void fuzz_step(struct fuzz *fuzz, const struct shoal_raft_event *event)
{
    static struct shoal_raft_actions actions;
    static uint8_t wire[SHOAL_FRAME_BYTES_MAX];

    (void)shoal_raft_step(fuzz->raft, event, fuzz->now, &actions);
    shoal_raft_check(fuzz->raft);
    for (uint32_t i = 0; i < actions.count; i++) {
        size_t used;

        if (actions.list[i].kind == SHOAL_RAFT_ACTION_PERSIST) {
            fuzz->mark = actions.list[i].u.persist.mark;
            fuzz->has_mark = true;
        }
        if (actions.list[i].kind == SHOAL_RAFT_ACTION_SEND &&
            shoal_raft_message_encode(&actions.list[i].u.send, wire, sizeof(wire), &used) != SHOAL_OK)
            abort();
    }
    if (actions.wants_reserve && shoal_raft_reserve(fuzz->raft) != SHOAL_OK)
        abort();
}

static void fuzz_message(struct fuzz *fuzz, struct shoal_view view)
{
    static uint8_t again[SHOAL_FRAME_BYTES_MAX];
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_MESSAGE };
    struct shoal_raft_message message;
    size_t used;

    if (shoal_raft_message_decode(view, &message) != SHOAL_OK)
        return;
    if (shoal_raft_message_encode(&message, again, sizeof(again), &used) != SHOAL_OK || used != view.len)
        abort();
    /* Mostly from a member, to this node: a fuzzer would need long to guess 64 bytes. */
    message.to = fuzz_id('a');
    message.from = fuzz_id((uint8_t)('b' + message.from.node.bytes[0] % 3));
    event.u.message = &message;
    fuzz_step(fuzz, &event);
    shoal_raft_message_deinit(&message);
}

static void fuzz_datagram(struct fuzz *fuzz, struct shoal_view view)
{
    static struct shoal_support_actions actions;
    struct shoal_support_event event = { .kind = SHOAL_SUPPORT_EVENT_DATAGRAM,
                                         .node = fuzz_id('b').node,
                                         .bytes = view };

    (void)shoal_support_step(fuzz->support, &event, fuzz->now, &actions);
    shoal_support_check(fuzz->support);
    event.kind = SHOAL_SUPPORT_EVENT_TIMER;
    for (int turns = 0; shoal_support_deadline_ns(fuzz->support) <= fuzz->now; turns++) {
        if (turns > 1000)
            abort(); /* it spins */
        (void)shoal_support_step(fuzz->support, &event, fuzz->now, &actions);
    }
}

static void fuzz_owner(struct fuzz *fuzz, uint8_t what)
{
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_TIMER };
    struct shoal_entry *entry = NULL;

    switch (what % 6) {
    case 0: fuzz->now += (uint64_t)what * 10 * SHOAL_MS; break;
    case 1:
        if (!fuzz->has_mark)
            return;
        event.kind = SHOAL_RAFT_EVENT_STORED;
        event.u.stored = fuzz->mark;
        break;
    case 2:
        entry = shoal_entry_create(SHOAL_ENTRY_USER, shoal_view_text("x"));
        event.kind = SHOAL_RAFT_EVENT_PROPOSE;
        event.u.propose.entry = entry;
        break;
    case 3:
        event.kind = SHOAL_RAFT_EVENT_SNAPSHOT_READY;
        event.u.snapshot_ready.index = shoal_raft_commit(fuzz->raft);
        break;
    case 4:
        event.kind = SHOAL_RAFT_EVENT_PEER_SUPPORT;
        event.u.peer_support.node = fuzz_id((uint8_t)('b' + what % 2)).node;
        event.u.peer_support.until_ns = what < 128 ? UINT64_MAX : 0;
        break;
    default: event.kind = SHOAL_RAFT_EVENT_READ; break;
    }
    fuzz_step(fuzz, &event);
    shoal_entry_unref(entry);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct fuzz fuzz = { 0 };

    fuzz_create(&fuzz);
    while (len >= 3) {
        uint8_t kind = bytes[0];
        size_t size = (size_t)(bytes[1] | bytes[2] << 8) % 2048;
        struct shoal_raft_config config;

        bytes += 3;
        len -= 3;
        size = size < len ? size : len;
        switch (kind % 4) {
        case 0: fuzz_message(&fuzz, shoal_view_of(bytes, size)); break;
        case 1: fuzz_datagram(&fuzz, shoal_view_of(bytes, size)); break;
        case 2: (void)shoal_raft_config_decode(shoal_view_of(bytes, size), &config); break;
        default: fuzz_owner(&fuzz, kind / 4); break;
        }
        bytes += size;
        len -= size;
    }
    shoal_raft_destroy(fuzz.raft);
    shoal_support_destroy(fuzz.support);
    return 0;
}
