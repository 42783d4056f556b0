/* libFuzzer: what a job's processes and its host's agent say to each other. The first byte chooses: a worker message
 * (what decodes must encode to the same bytes, but for the words of sets), step records one behind the other, as a worker, another host or a
 * ledger's file holds them, or a row of messages of one worker, as its host's slots core takes them. */
#include "shoal/host_wire.h"
#include "shoal/slots.h"
#include "shoal/step_record.h"
#include "shoal/worker_wire.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

/* The bytes as a datagram of the kind that its first byte names: version and oldest are right. */
static size_t as_message(uint8_t *space, struct shoal_view view)
{
    if (view.len < 1 || view.len + 2 > SHOAL_WORKER_MESSAGE_MAX)
        return 0;
    space[0] = view.bytes[0] % SHOAL_WORKER_KIND_COUNT;
    space[1] = SHOAL_WORKER_VERSION;
    space[2] = SHOAL_WORKER_OLDEST;
    memcpy(space + 3, view.bytes + 1, view.len - 1);
    return view.len + 2;
}

/* A set of ranks is written with as many words as the writer has; a reader takes any number, and drops or lacks the rest. */
static bool has_ranks(const struct shoal_worker_message *m)
{
    return m->kind == SHOAL_WORKER_CLOSED || m->kind == SHOAL_WORKER_UNHEARD;
}

/* Its views point into a block whose end is the memory's end, and that lives until the next one. */
static const struct shoal_worker_message *message(struct shoal_view view)
{
    static uint8_t again[SHOAL_WORKER_MESSAGE_MAX];
    static struct shoal_worker_message m;
    static uint8_t *exact;
    struct shoal_writer w = shoal_writer_init(again, sizeof(again));
    size_t len;
    bool good;

    free(exact);
    exact = malloc(view.len + 2);
    SHOAL_ASSERT(exact != NULL);
    memset(&m, 0, sizeof(m));
    len = as_message(exact, view);
    good = len > 0 && shoal_worker_decode(shoal_view_of(exact, len), &m) == SHOAL_OK;
    if (good) {
        SHOAL_ASSERT(shoal_worker_encode(&m, &w) == SHOAL_OK);
        SHOAL_ASSERT(has_ranks(&m) ? w.len % 8 == len % 8 : w.len == len && memcmp(again, exact, len) == 0);
    }
    return good ? &m : NULL;
}

static void records(struct shoal_view view)
{
    struct shoal_step_head head;
    struct shoal_reader tuples;
    size_t len;

    while ((len = shoal_step_record_len(view, &head, &tuples)) > 0) {
        SHOAL_ASSERT(len <= view.len);
        for (uint32_t v = 0; v < head.v_count; v++) {
            struct shoal_step_tuple tuple;

            shoal_get_step_tuple(&tuples, &tuple, head.value_count);
        }
        SHOAL_ASSERT(!tuples.failed && tuples.at == len);
        view.bytes += len;
        view.len -= len;
    }
}

/* ---- one host, with a worker of one job, which a leader has leased a slot ---- */

static const struct shoal_node_id leader = { { 2 } };
static const struct shoal_job_id the_job = { { 3 } };
static struct shoal_slots_actions actions;
static uint64_t now_ns = 1000 * SHOAL_S;

static void slots_step(struct shoal_slots *slots, const struct shoal_slots_event *event)
{
    (void)!shoal_slots_step(slots, event, now_ns += SHOAL_MS, &actions);
}

static void from_leader(struct shoal_slots *slots, struct shoal_host_message *m)
{
    static uint8_t bytes[SHOAL_HOST_MESSAGE_MAX];
    struct shoal_slots_event event = { .kind = SHOAL_SLOTS_FRAME };
    size_t len;

    m->job = the_job;
    m->generation = m->term = 1;
    SHOAL_ASSERT(shoal_host_encode(m, bytes, sizeof(bytes), &len) == SHOAL_OK);
    event.u.frame.from = leader;
    event.u.frame.bytes = shoal_view_of(bytes, len);
    slots_step(slots, &event);
}

static uint64_t granted(void)
{
    static struct shoal_host_message in;

    for (uint32_t i = 0; i < actions.count; i++)
        if (actions.list[i].kind == SHOAL_SLOTS_SEND &&
            shoal_host_decode(actions.list[i].u.send.bytes, &in) == SHOAL_OK && in.kind == SHOAL_HOST_OFFER)
            return in.u.offer.generations[0];
    abort();
}

static struct shoal_slots *host_with_worker(uint64_t worker_id)
{
    static struct shoal_host_message m;
    struct shoal_slots_options options = {
        .self = { { 1 } }, .host_epoch = 4, .slots = 4, .device = SHOAL_JOB_DEVICE_CPU, .start_ns = now_ns
    };
    struct shoal_slots *slots;
    uint64_t generation;

    SHOAL_ASSERT(shoal_slots_create(&slots, &options) == SHOAL_OK);
    m = (struct shoal_host_message){ .kind = SHOAL_HOST_RESERVE };
    m.u.reserve.slot_count = 1;
    from_leader(slots, &m);
    generation = granted();
    m = (struct shoal_host_message){ .kind = SHOAL_HOST_CONFIRM };
    m.u.confirm.placement_count = 1;
    m.u.confirm.placements[0] = (struct shoal_placement){ .worker_id = worker_id,
                                                          .node = options.self,
                                                          .host_epoch = 4,
                                                          .lease_generation = generation,
                                                          .token = { 9 },
                                                          .role = SHOAL_JOB_ENGINE };
    m.u.confirm.spec = shoal_view_text("spec");
    m.u.confirm.echo = now_ns;
    from_leader(slots, &m);
    return slots;
}

/* A row of messages, each behind its length, from a worker whose HELLO was good. */
static void conversation(struct shoal_view view)
{
    static const uint64_t worker_id = 5;
    static struct shoal_worker_message hello;
    struct shoal_slots *slots = host_with_worker(worker_id);
    struct shoal_slots_event event = { .kind = SHOAL_SLOTS_HOST, .u.host.kind = SHOAL_HOST_ON_MESSAGE };

    hello.kind = SHOAL_WORKER_HELLO;
    hello.hello = (struct shoal_worker_hello){ .job = the_job, .worker_id = worker_id, .token = { 9 } };
    event.u.host.u.worker.worker_id = worker_id;
    event.u.host.u.worker.message = &hello;
    slots_step(slots, &event);
    while (view.len >= 2) {
        size_t size = (view.bytes[0] | (size_t)view.bytes[1] << 8) % 4096;

        view.bytes += 2;
        view.len -= 2;
        size = size < view.len ? size : view.len;
        event.u.host.u.worker.message = message(shoal_view_of(view.bytes, size));
        if (event.u.host.u.worker.message != NULL)
            slots_step(slots, &event);
        view.bytes += size;
        view.len -= size;
    }
    shoal_slots_destroy(slots);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    if (len == 0)
        return 0;
    switch (bytes[0] % 3) {
    case 0: (void)message(shoal_view_of(bytes + 1, len - 1)); break;
    case 1: records(shoal_view_of(bytes + 1, len - 1)); break;
    default: conversation(shoal_view_of(bytes + 1, len - 1)); break;
    }
    return 0;
}
