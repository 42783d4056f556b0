/* libFuzzer: messages between leader and hosts; what decodes must encode to the same bytes, and a host takes it. */
#include "shoal/slots.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static struct shoal_host_message m;
    static struct shoal_slots_actions actions;
    static struct shoal_slots *slots;
    static uint64_t now_ns = 1000 * SHOAL_S;
    static uint8_t again[SHOAL_HOST_MESSAGE_MAX];
    struct shoal_slots_event event = { .kind = SHOAL_SLOTS_FRAME };
    struct shoal_job_id job;
    size_t written;
    uint8_t kind;

    memset(&m, 0, sizeof(m));
    if (shoal_host_decode(shoal_view_of(bytes, len), &m) == SHOAL_OK) {
        SHOAL_ASSERT(shoal_host_peek(shoal_view_of(bytes, len), &kind, &job) && kind == m.kind);
        SHOAL_ASSERT(shoal_host_encode(&m, again, sizeof(again), &written) == SHOAL_OK && written == len);
        SHOAL_ASSERT(memcmp(again + 3, bytes + 3, len - 3) == 0);
    }
    if (slots == NULL &&
        shoal_slots_create(
            &slots, &(struct shoal_slots_options){ .self = { { 1 } }, .slots = 8, .start_ns = now_ns }) != SHOAL_OK)
        return 0;
    event.u.frame.from = (struct shoal_node_id){ { 2 } };
    event.u.frame.bytes = shoal_view_of(bytes, len);
    (void)!shoal_slots_step(slots, &event, now_ns += SHOAL_MS, &actions);
    return 0;
}
