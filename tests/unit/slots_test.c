/* One host's slots: reservations, leases, freezing, restarts, the workers' messages. */
#include "shoal/slots.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static struct shoal_slots *slots;
static struct shoal_slots_actions actions;
static struct shoal_host_message out, in;
static uint8_t bytes[SHOAL_HOST_MESSAGE_MAX];
static uint64_t now;
static uint64_t term = 1;

static const struct shoal_node_id self = { { 1 } }, leader = { { 2 } }, other = { { 3 } };
static const struct shoal_job_id job_a = { { 0xa } }, job_b = { { 0xb } };

static void setup(void)
{
    now = 1000 * SHOAL_S;
    term = 1;
    assert_int_equal(shoal_slots_create(&slots, &(struct shoal_slots_options){ .self = self,
                                                                               .host_epoch = 4,
                                                                               .slots = 4,
                                                                               .device = SHOAL_JOB_DEVICE_CPU,
                                                                               .start_ns = now }),
                     SHOAL_OK);
}

static void step(const struct shoal_slots_event *event)
{
    assert_int_equal(shoal_slots_step(slots, event, now, &actions), SHOAL_OK);
}

static void shell(const struct shoal_host_event *event)
{
    step(&(struct shoal_slots_event){ .kind = SHOAL_SLOTS_HOST, .u.host = *event });
}

static void tick(uint64_t ns)
{
    now += ns;
    step(&(struct shoal_slots_event){ .kind = SHOAL_SLOTS_TIMER });
}

static void send_from(struct shoal_node_id from)
{
    struct shoal_slots_event event = { .kind = SHOAL_SLOTS_FRAME };
    size_t len;

    out.generation = out.generation == 0 ? 1 : out.generation;
    out.term = term;
    assert_int_equal(shoal_host_encode(&out, bytes, sizeof(bytes), &len), SHOAL_OK);
    event.u.frame.from = from;
    event.u.frame.bytes = shoal_view_of(bytes, len);
    step(&event);
}

static void start(uint8_t kind, struct shoal_job_id job)
{
    memset(&out, 0, sizeof(out));
    out.kind = kind;
    out.job = job;
}

static const struct shoal_slots_action *find(enum shoal_slots_action_kind kind)
{
    for (uint32_t i = 0; i < actions.count; i++)
        if (actions.list[i].kind == kind)
            return &actions.list[i];
    return NULL;
}

static uint32_t count(enum shoal_slots_action_kind kind)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < actions.count; i++)
        n += actions.list[i].kind == kind;
    return n;
}

static const struct shoal_host_order *order_at(uint32_t i, enum shoal_host_order_kind kind)
{
    bool is = actions.list[i].kind == SHOAL_SLOTS_ORDER && actions.list[i].u.order.kind == kind;

    return is ? &actions.list[i].u.order : NULL;
}

static const struct shoal_host_order *order(enum shoal_host_order_kind kind)
{
    for (uint32_t i = 0; i < actions.count; i++)
        if (order_at(i, kind) != NULL)
            return order_at(i, kind);
    return NULL;
}

static uint32_t orders(enum shoal_host_order_kind kind)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < actions.count; i++)
        n += order_at(i, kind) != NULL;
    return n;
}

/* The message of this kind among what was sent: in `in`. */
static bool sent(uint8_t kind)
{
    for (uint32_t i = 0; i < actions.count; i++)
        if (actions.list[i].kind == SHOAL_SLOTS_SEND &&
            shoal_host_decode(actions.list[i].u.send.bytes, &in) == SHOAL_OK && in.kind == kind)
            return true;
    return false;
}

static bool sent_to(uint8_t kind, struct shoal_node_id to)
{
    for (uint32_t i = 0; i < actions.count; i++)
        if (actions.list[i].kind == SHOAL_SLOTS_SEND && shoal_node_id_equal(actions.list[i].u.send.to, to) &&
            shoal_host_decode(actions.list[i].u.send.bytes, &in) == SHOAL_OK && in.kind == kind)
            return true;
    return false;
}

/* The bytes of a message that must be there: its head, and the body of its kind. */
static size_t bytes_of(const struct shoal_worker_message *message)
{
    const size_t head = offsetof(struct shoal_worker_message, hello);

    switch (message->kind) {
    case SHOAL_WORKER_CALL: return head + sizeof(message->call);
    case SHOAL_WORKER_EPOCH: return head + sizeof(message->epoch);
    case SHOAL_WORKER_TRAIN_STATE: return head + sizeof(message->train_state);
    case SHOAL_WORKER_RELEASE:
    case SHOAL_WORKER_STOP: return head + sizeof(message->stop);
    default: return head + sizeof(message->acked);
    }
}

static bool told(uint64_t worker, uint8_t kind)
{
    for (uint32_t i = 0; i < actions.count; i++) {
        const struct shoal_host_order *told = order_at(i, SHOAL_HOST_DO_SEND);

        if (told == NULL || told->u.send.worker_id != worker || told->u.send.message->kind != kind)
            continue;
        assert_int_equal(told->u.send.message_bytes, bytes_of(told->u.send.message));
        return true;
    }
    return false;
}

/* Returns the generation granted; 0: refused. */
static uint64_t reserve(struct shoal_job_id job, uint8_t slot, uint32_t priority, uint64_t ticket)
{
    start(SHOAL_HOST_RESERVE, job);
    out.u.reserve.request = 7;
    out.u.reserve.priority = priority;
    out.u.reserve.ticket_ms = ticket;
    out.u.reserve.slot_count = 1;
    out.u.reserve.slots[0] = slot;
    send_from(leader);
    assert_true(sent(SHOAL_HOST_OFFER));
    assert_int_equal(in.u.offer.request, 7);
    return in.u.offer.slot_count == 1 ? in.u.offer.generations[0] : 0;
}

static void confirm_at(struct shoal_job_id job, uint64_t worker, uint32_t slot, uint64_t generation, uint64_t echo)
{
    start(SHOAL_HOST_CONFIRM, job);
    out.u.confirm.placement_count = 1;
    out.u.confirm.placements[0] =
        (struct shoal_placement){ .worker_id = worker,
                                  .node = self,
                                  .slot = slot,
                                  .host_epoch = 4,
                                  .lease_generation = generation,
                                  .token = { 9 },
                                  .role = slot == SHOAL_SLOT_NONE ? SHOAL_JOB_DRIVER : SHOAL_JOB_ENGINE };
    out.u.confirm.spec = shoal_view_text("spec");
    out.u.confirm.echo = echo;
    send_from(leader);
}

static void confirm_script(struct shoal_job_id job, uint64_t worker, uint32_t slot, uint64_t generation)
{
    start(SHOAL_HOST_CONFIRM, job);
    out.u.confirm.placement_count = 1;
    out.u.confirm.placements[0] = (struct shoal_placement){ .worker_id = worker,
                                                            .node = self,
                                                            .slot = slot,
                                                            .host_epoch = 4,
                                                            .lease_generation = generation,
                                                            .token = { 9 },
                                                            .role = SHOAL_JOB_SCRIPT };
    out.u.confirm.spec = shoal_view_text("spec");
    out.u.confirm.echo = now;
    send_from(leader);
}

static void confirm(struct shoal_job_id job, uint64_t worker, uint32_t slot, uint64_t generation)
{
    confirm_at(job, worker, slot, generation, now);
}

static uint64_t lease(struct shoal_job_id job, uint64_t worker, uint8_t slot)
{
    uint64_t generation = reserve(job, slot, 0, 0);

    assert_true(generation != 0);
    confirm(job, worker, slot, generation);
    assert_non_null(order(SHOAL_HOST_DO_RUN));
    return generation;
}

static void renew(struct shoal_job_id job, uint64_t worker, uint64_t generation, uint64_t echo)
{
    start(SHOAL_HOST_RENEW, job);
    out.u.renew.echo = echo;
    out.u.renew.lease_count = 1;
    out.u.renew.leases[0] = (struct shoal_lease_name){ worker, generation };
    send_from(leader);
}

static enum shoal_slot_state state_of(uint32_t slot)
{
    struct shoal_slot_status status;

    shoal_slots_slot(slots, slot, &status);
    return status.state;
}

static void exited(uint64_t worker)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_EXITED };

    event.u.exited.worker_id = worker;
    shell(&event);
}

static void idle(uint32_t slot)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_SLOT_IDLE };

    event.u.idle.slot = slot;
    shell(&event);
}

static void hello(uint64_t worker)
{
    static struct shoal_worker_message m;
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_MESSAGE };

    m.kind = SHOAL_WORKER_HELLO;
    m.hello = (struct shoal_worker_hello){ .worker_id = worker, .token = { 9 } };
    event.u.worker.worker_id = worker;
    event.u.worker.message = &m;
    shell(&event);
}

static void teardown(void)
{
    shoal_slots_destroy(slots);
    slots = NULL;
}

static void test_life_of_a_lease(void **state)
{
    uint64_t first, second;

    (void)state;
    setup();
    first = lease(job_a, 11, 2);
    assert_int_equal(state_of(2), SHOAL_SLOT_LEASED);
    assert_non_null(order(SHOAL_HOST_DO_JOB_OPEN));
    assert_true(order(SHOAL_HOST_DO_RUN)->u.run.deadline_ns == now + 15 * SHOAL_S);
    assert_int_equal(reserve(job_b, 2, 9, 0), 0); /* leased */
    exited(11);
    assert_int_equal(state_of(2), SHOAL_SLOT_HELD);
    assert_int_equal(reserve(job_b, 2, 9, 0), 0); /* the kernel's lock is held */
    idle(2);
    assert_int_equal(state_of(2), SHOAL_SLOT_FREE);
    second = lease(job_b, 12, 2);
    assert_true(second > first);  /* S1 */
    confirm(job_a, 13, 2, first); /* an old grant */
    assert_null(order(SHOAL_HOST_DO_RUN));
    assert_true(sent(SHOAL_HOST_WORKER) && in.u.worker.phase == SHOAL_PHASE_EXITED && !in.u.worker.ran);
    teardown();
}

/* S10. */
static void test_a_drained_host_promises_nothing(void **state)
{
    struct shoal_slots_event event = { .kind = SHOAL_SLOTS_DRAIN, .u.drain = true };
    struct shoal_slots_record record;

    (void)state;
    setup();
    (void)lease(job_a, 11, 2);
    step(&event);
    assert_non_null(find(SHOAL_SLOTS_PUBLISH)); /* others are told */
    shoal_slots_record(slots, &record);
    assert_int_equal(record.free, 0);
    assert_int_equal(reserve(job_b, 1, 9, 0), 0);
    assert_non_null(strstr(in.u.offer.text, "drained"));
    assert_int_equal(state_of(2), SHOAL_SLOT_LEASED); /* what runs goes on */
    event.u.drain = false;
    step(&event);
    shoal_slots_record(slots, &record);
    assert_true(record.free != 0);
    assert_true(reserve(job_b, 1, 9, 0) != 0);
    teardown();
}

static void test_tentative(void **state)
{
    uint64_t a, b;

    (void)state;
    setup();
    a = reserve(job_a, 0, 5, 10);
    assert_true(reserve(job_a, 0, 5, 10) == a);    /* asked again: the same promise */
    assert_int_equal(reserve(job_b, 0, 5, 11), 0); /* a later ticket waits */
    b = reserve(job_b, 0, 6, 11);                  /* a higher priority wounds */
    assert_true(b > a);
    confirm(job_a, 11, 0, a);
    assert_null(order(SHOAL_HOST_DO_RUN));
    confirm(job_b, 12, 0, b);
    assert_non_null(order(SHOAL_HOST_DO_RUN));
    confirm(job_b, 12, 0, b); /* repeated */
    assert_null(order(SHOAL_HOST_DO_RUN));
    assert_true(sent(SHOAL_HOST_WORKER) && in.u.worker.phase == SHOAL_PHASE_LEASED);

    a = reserve(job_a, 1, 5, 10);
    tick(2 * SHOAL_S);
    assert_int_equal(state_of(1), SHOAL_SLOT_FREE);
    confirm(job_a, 13, 1, a); /* late, but nobody else has got it */
    assert_non_null(order(SHOAL_HOST_DO_RUN));

    a = reserve(job_a, 3, 5, 10);
    start(SHOAL_HOST_CANCEL, job_a);
    send_from(leader);
    assert_int_equal(state_of(3), SHOAL_SLOT_FREE);
    confirm(job_a, 14, 3, a); /* given back: void */
    assert_null(order(SHOAL_HOST_DO_RUN));
    teardown();
}

static void test_confirm_is_late(void **state)
{
    uint64_t a;

    (void)state;
    setup();
    a = reserve(job_a, 0, 0, 0);
    now += 10 * SHOAL_S;
    confirm_at(job_a, 11, 0, a, now - 10 * SHOAL_S); /* its lease would be over before it is frozen */
    assert_null(order(SHOAL_HOST_DO_RUN));
    a = reserve(job_a, 0, 0, 0);
    confirm_at(job_a, 12, 0, a, now + 1); /* a stamp that this host has not made yet */
    assert_null(order(SHOAL_HOST_DO_RUN));
    assert_int_equal(state_of(0), SHOAL_SLOT_TENTATIVE);
    confirm_at(job_a, 12, 0, a, now - 4 * SHOAL_S);
    assert_true(order(SHOAL_HOST_DO_RUN)->u.run.deadline_ns == now + 11 * SHOAL_S);
    teardown();
}

static void test_freeze_thaw_kill(void **state)
{
    uint64_t a, begun;

    (void)state;
    setup();
    a = lease(job_a, 11, 0);
    begun = now;
    tick(8 * SHOAL_S);
    renew(job_a, 11, a, begun); /* delayed: echoes an old stamp, extends nothing */
    assert_null(order(SHOAL_HOST_DO_RENEW));
    assert_null(order(SHOAL_HOST_DO_THAW));
    tick(2 * SHOAL_S);
    assert_non_null(order(SHOAL_HOST_DO_FREEZE));
    tick(SHOAL_S);
    assert_null(order(SHOAL_HOST_DO_FREEZE));    /* once */
    renew(job_a, 11, a, begun + 500 * SHOAL_MS); /* would be frozen anyway: stays */
    assert_null(order(SHOAL_HOST_DO_THAW));
    renew(job_a, 11, a, now - SHOAL_S);
    assert_non_null(order(SHOAL_HOST_DO_THAW));
    assert_true(order(SHOAL_HOST_DO_RENEW)->u.worker.deadline_ns == now + 14 * SHOAL_S);
    renew(job_a, 11, a, now);
    assert_true(order(SHOAL_HOST_DO_RENEW) != NULL &&
                order(SHOAL_HOST_DO_THAW) != NULL); /* the runner may have been first */
    now += 11 * SHOAL_S;                            /* the agent stands still; the runner freezes by its own clock */
    renew(job_a, 11, a, now - SHOAL_S);
    assert_non_null(order(SHOAL_HOST_DO_THAW));
    tick(20 * SHOAL_S);
    assert_non_null(order(SHOAL_HOST_DO_FREEZE));
    assert_null(order(SHOAL_HOST_DO_KILL)); /* memory kept */
    tick(593 * SHOAL_S);
    assert_null(order(SHOAL_HOST_DO_KILL));
    tick(2 * SHOAL_S);
    assert_non_null(order(SHOAL_HOST_DO_KILL)); /* ten minutes after its lease ended */
    assert_int_equal(order(SHOAL_HOST_DO_KILL)->u.worker.grace_ns, 0);
    tick(SHOAL_S);
    assert_null(order(SHOAL_HOST_DO_KILL));
    teardown();
}

static void test_claim_of_an_expired_lease(void **state)
{
    struct shoal_slots_record record;

    (void)state;
    setup();
    (void)lease(job_a, 11, 0);
    tick(14 * SHOAL_S);
    shoal_slots_record(slots, &record);
    assert_int_equal(record.free & 1, 0);
    assert_int_equal(reserve(job_b, 0, 0, 0), 0);
    assert_null(order(SHOAL_HOST_DO_KILL)); /* frozen, but leased */
    tick(SHOAL_S);
    shoal_slots_record(slots, &record);
    assert_int_equal(record.free & 1, 1); /* to be claimed */
    assert_non_null(find(SHOAL_SLOTS_PUBLISH));
    assert_int_equal(reserve(job_b, 0, 0, 0), 0);
    assert_non_null(order(SHOAL_HOST_DO_KILL)); /* first it is cleared */
    assert_int_equal(reserve(job_b, 0, 0, 0), 0);
    exited(11);
    idle(0);
    assert_true(reserve(job_b, 0, 0, 0) != 0);
    teardown();
}

/* S2: a stamp that this boot has not given yet is one of another boot, or of another host. */
static void test_a_stamp_to_come_extends_and_starts_nothing(void **state)
{
    uint64_t a, b;

    (void)state;
    setup();
    a = lease(job_a, 11, 0);
    tick(5 * SHOAL_S);
    renew(job_a, 11, a, now + 1);
    assert_null(order(SHOAL_HOST_DO_RENEW));
    renew(job_a, 11, a, now);
    assert_non_null(order(SHOAL_HOST_DO_RENEW));
    b = reserve(job_b, 1, 0, 0);
    confirm_at(job_b, 12, 1, b, now + 1);
    assert_null(order(SHOAL_HOST_DO_RUN));
    confirm(job_b, 12, 1, b);
    assert_non_null(order(SHOAL_HOST_DO_RUN));
    teardown();
}

static void test_a_token_of_another_boot_starts_nothing(void **state)
{
    (void)state;
    for (uint32_t boot = 3; boot <= 5; boot++) {
        uint64_t generation;

        setup();
        generation = reserve(job_a, 0, 0, 0);
        start(SHOAL_HOST_CONFIRM, job_a);
        out.u.confirm.placement_count = 1;
        out.u.confirm.placements[0] = (struct shoal_placement){ .worker_id = 11,
                                                                .node = self,
                                                                .slot = 0,
                                                                .host_epoch = boot,
                                                                .lease_generation = generation,
                                                                .role = SHOAL_JOB_ENGINE };
        out.u.confirm.spec = shoal_view_text("spec");
        out.u.confirm.echo = now;
        send_from(leader);
        assert_true((order(SHOAL_HOST_DO_RUN) != NULL) == (boot == 4));
        teardown();
    }
}

static void test_terms(void **state)
{
    uint64_t a;

    (void)state;
    setup();
    term = 5;
    a = lease(job_a, 11, 0);
    tick(5 * SHOAL_S);
    term = 4;
    renew(job_a, 11, a, now);
    assert_null(order(SHOAL_HOST_DO_RENEW)); /* S4 */
    term = 6;
    start(SHOAL_HOST_REPORT, job_a);
    send_from(other); /* a new leader: it is told all */
    assert_true(sent(SHOAL_HOST_WORKER));
    term = 5;
    renew(job_a, 11, a, now);
    assert_null(order(SHOAL_HOST_DO_RENEW));
    term = 7;
    renew(job_a, 11, a, now); /* a later term voids nothing */
    assert_non_null(order(SHOAL_HOST_DO_RENEW));
    teardown();
}

static uint64_t stale_count(void)
{
    struct shoal_slots_stats stats;

    shoal_slots_stats(slots, &stats);
    return stats.stale_terms;
}

/* The job was recovered from a single replica: its engine stays, out of its epoch, until the new leader says more; its
 * driver ends; and whatever a leader of before says, in however high a term, changes nothing. */
static void test_generations(void **state)
{
    uint64_t a, driver;

    (void)state;
    setup();
    term = 900;
    a = lease(job_a, 11, 0);
    start(SHOAL_HOST_RESERVE, job_a);
    out.u.reserve.driver = true;
    send_from(leader);
    assert_true(sent(SHOAL_HOST_OFFER));
    driver = in.u.offer.driver_generation;
    confirm(job_a, 12, SHOAL_SLOT_NONE, driver);
    hello(11);
    start(SHOAL_HOST_EPOCH, job_a);
    out.u.epoch.epoch.e = 7;
    out.u.epoch.member_count = 1;
    out.u.epoch.members[0].worker_id = 11;
    send_from(leader);
    term = 3; /* counted anew */
    start(SHOAL_HOST_REPORT, job_a);
    out.generation = 2;
    send_from(other);
    assert_true(sent_to(SHOAL_HOST_WORKER, other));
    assert_int_equal(in.generation, 2);
    assert_non_null(order(SHOAL_HOST_DO_REVOKE));
    assert_true(order(SHOAL_HOST_DO_REVOKE)->u.revoke.epoch_word == 7ull << 32);
    assert_int_equal(orders(SHOAL_HOST_DO_KILL), 1);
    assert_int_equal(order(SHOAL_HOST_DO_KILL)->u.worker.worker_id, 12);
    term = 1000;
    for (uint8_t kind = SHOAL_HOST_RESERVE; kind <= SHOAL_HOST_END; kind++) {
        uint64_t before = stale_count();

        start(kind, job_a); /* of generation 1 */
        if (kind == SHOAL_HOST_RENEW) {
            out.u.renew.echo = now;
            out.u.renew.lease_count = 1;
            out.u.renew.leases[0] = (struct shoal_lease_name){ 11, a };
        }
        if (kind == SHOAL_HOST_ORDER) {
            out.u.order.worker_id = 11;
            out.u.order.lease_generation = a;
            out.u.order.order = SHOAL_ORDER_KILL;
        }
        if (kind == SHOAL_HOST_EPOCH)
            out.u.epoch.epoch.e = 8;
        if (kind == SHOAL_HOST_REVOKE)
            out.u.revoke.e = 9;
        send_from(leader);
        if (kind != SHOAL_HOST_REVOKE && stale_count() != before + 1)
            fail_msg("message kind %u of the generation before was not refused", kind);
        assert_int_equal(count(SHOAL_SLOTS_SEND), 0);
        assert_null(order(SHOAL_HOST_DO_RENEW));
        assert_null(order(SHOAL_HOST_DO_KILL));
        assert_null(order(SHOAL_HOST_DO_REVOKE));
    }
    term = 3;
    start(SHOAL_HOST_RENEW, job_a);
    out.generation = 2;
    tick(SHOAL_S);
    out.u.renew.echo = now;
    out.u.renew.lease_count = 1;
    out.u.renew.leases[0] = (struct shoal_lease_name){ 11, a };
    send_from(other);
    assert_non_null(order(SHOAL_HOST_DO_RENEW)); /* the lease goes on under the new generation */
    teardown();
}

/* A reservation may be the first that a host hears of a new generation: its leader then hears of the workers here. */
static void test_a_reservation_begins_a_generation(void **state)
{
    (void)state;
    setup();
    (void)lease(job_a, 11, 0);
    start(SHOAL_HOST_RESERVE, job_a);
    out.generation = 2;
    out.u.reserve.slot_count = 1;
    out.u.reserve.slots[0] = 1;
    send_from(other);
    assert_true(sent_to(SHOAL_HOST_OFFER, other));
    assert_true(sent_to(SHOAL_HOST_WORKER, other));
    teardown();
}

static void test_unknown_is_a_promise(void **state)
{
    uint64_t a;

    (void)state;
    setup();
    (void)lease(job_a, 10, 3);
    a = reserve(job_a, 0, 0, 0);
    renew(job_a, 11, a, now); /* the CONFIRM is still under way */
    assert_true(sent(SHOAL_HOST_UNKNOWN) && in.u.drain.worker_id == 11);
    confirm(job_a, 11, 0, a);
    assert_null(order(SHOAL_HOST_DO_RUN));
    renew(job_b, 12, 5, now); /* a job that is not here at all */
    assert_true(sent(SHOAL_HOST_UNKNOWN) && in.u.drain.worker_id == 12);
    teardown();
}

static void test_drain(void **state)
{
    struct shoal_slots_event event = { .kind = SHOAL_SLOTS_TARGET };

    (void)state;
    setup();
    (void)lease(job_a, 11, 0);
    assert_int_equal(reserve(job_b, 0, 9, 0), 0);
    assert_false(sent(SHOAL_HOST_DRAIN)); /* this host's own allocation does not say so */
    event.u.target.jobs[0] = job_b;
    step(&event);
    assert_int_equal(reserve(job_b, 0, 9, 0), 0);
    assert_true(sent(SHOAL_HOST_DRAIN) && in.u.drain.worker_id == 11);
    assert_int_equal(state_of(0), SHOAL_SLOT_DRAINING);
    event.u.target.jobs[0] = job_a;
    step(&event);
    assert_int_equal(state_of(0), SHOAL_SLOT_LEASED);
    teardown();
}

static void test_driver(void **state)
{
    uint64_t generation;

    (void)state;
    setup();
    start(SHOAL_HOST_RESERVE, job_a);
    out.u.reserve.driver = true;
    send_from(leader);
    assert_true(sent(SHOAL_HOST_OFFER) && in.u.offer.driver);
    generation = in.u.offer.driver_generation;
    confirm(job_b, 11, SHOAL_SLOT_NONE, generation); /* promised to another job */
    assert_null(order(SHOAL_HOST_DO_RUN));
    confirm(job_a, 12, SHOAL_SLOT_NONE, generation);
    assert_non_null(order(SHOAL_HOST_DO_RUN));
    confirm(job_a, 13, SHOAL_SLOT_NONE, generation); /* used up */
    assert_null(order(SHOAL_HOST_DO_RUN));
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(state_of(i), SHOAL_SLOT_FREE);
    teardown();
}

static void test_reports_repeat(void **state)
{
    uint64_t seq;

    (void)state;
    setup();
    (void)lease(job_a, 11, 0);
    assert_true(sent(SHOAL_HOST_WORKER));
    seq = in.seq;
    tick(100 * SHOAL_MS);
    assert_false(sent(SHOAL_HOST_WORKER));
    tick(400 * SHOAL_MS);
    assert_true(sent(SHOAL_HOST_WORKER) && in.seq == seq);
    start(SHOAL_HOST_ACK, job_a);
    out.seq = seq + 1; /* of something else */
    send_from(leader);
    tick(500 * SHOAL_MS);
    assert_true(sent(SHOAL_HOST_WORKER));
    start(SHOAL_HOST_ACK, job_a);
    out.seq = seq;
    send_from(leader);
    tick(600 * SHOAL_MS);
    assert_false(sent(SHOAL_HOST_WORKER));
    exited(11);
    assert_true(sent(SHOAL_HOST_WORKER) && in.seq > seq && in.u.worker.phase == SHOAL_PHASE_EXITED);
    teardown();
}

/* Workers 11 and 12 are here, 13 is on another host. */
static void send_epoch(struct shoal_epoch epoch)
{
    start(SHOAL_HOST_EPOCH, job_a);
    out.u.epoch.epoch = epoch;
    out.u.epoch.call = 1;
    out.u.epoch.member_count = 3;
    out.u.epoch.members[0].worker_id = 11;
    out.u.epoch.members[1].worker_id = 12;
    out.u.epoch.members[2].worker_id = 13;
    out.u.epoch.members[2].node = other;
    send_from(leader);
}

static void say_as(uint64_t worker_id, const struct shoal_worker_message *m)
{
    shell(&(struct shoal_host_event){ .kind = SHOAL_HOST_ON_MESSAGE,
                                      .u.worker = { .worker_id = worker_id, .message = m } });
}

static void stepped(uint64_t worker_id, struct shoal_epoch epoch, uint64_t at)
{
    shell(&(struct shoal_host_event){ .kind = SHOAL_HOST_ON_STEPPED,
                                      .u.stepped = { worker_id, shoal_epoch_word(epoch), at } });
}

static void enter_epoch_3(void)
{
    static struct shoal_worker_message ready = { .kind = SHOAL_WORKER_READY,
                                                 .ready = { .call = 1, .virtual_workers = 6 } };

    (void)lease(job_a, 11, 0);
    (void)lease(job_a, 12, 1);
    hello(11);
    hello(12);
    start(SHOAL_HOST_CALL, job_a);
    out.u.call.call = 1;
    out.u.call.bundle.bytes[0] = 5;
    send_from(leader);
    assert_non_null(order(SHOAL_HOST_DO_FETCH));
    assert_int_equal(orders(SHOAL_HOST_DO_SEND), 0); /* not before the bundle is here */
    shell(&(struct shoal_host_event){ .kind = SHOAL_HOST_ON_BLOB, .u.blob = { .hash = { { 5 } }, .ok = true } });
    assert_true(told(11, SHOAL_WORKER_CALL) && told(12, SHOAL_WORKER_CALL));
    say_as(11, &ready);
    say_as(12, &ready);
    send_epoch((struct shoal_epoch){ 3, 0 });
    assert_true(told(11, SHOAL_WORKER_EPOCH) && told(12, SHOAL_WORKER_EPOCH));
}

static void test_who_is_not_heard_is_told(void **state)
{
    static struct shoal_worker_message m = { .kind = SHOAL_WORKER_UNHEARD };

    (void)state;
    setup();
    enter_epoch_3();
    m.unheard = (struct shoal_worker_unheard){ { 2, 0 }, { { 4 } } };
    say_as(11, &m);
    assert_false(sent(SHOAL_HOST_WORKER)); /* of another epoch */
    m.unheard = (struct shoal_worker_unheard){ { 3, 0 }, { { 4 } } };
    say_as(11, &m);
    assert_true(sent(SHOAL_HOST_WORKER) && in.u.worker.worker_id == 11 && shoal_ranks_equal(&in.u.worker.unheard, &m.unheard.ranks));
    assert_null(order(SHOAL_HOST_DO_REVOKE)); /* alone it is no evidence */
    teardown();
}

/* A token is a worker's own: who shows another's is nobody. */
static void test_a_hello_with_another_token_is_nothing(void **state)
{
    static struct shoal_worker_message m = { .kind = SHOAL_WORKER_HELLO };
    struct shoal_slots_stats stats;

    (void)state;
    setup();
    (void)lease(job_a, 11, 0);
    m.hello = (struct shoal_worker_hello){ .worker_id = 11, .token = { 8 } };
    say_as(11, &m);
    assert_false(sent(SHOAL_HOST_WORKER));
    shoal_slots_stats(slots, &stats);
    assert_int_equal(stats.unknown_workers, 1);
    m.hello.token[0] = 9;
    say_as(11, &m);
    assert_true(sent(SHOAL_HOST_WORKER) && in.u.worker.phase == SHOAL_PHASE_HELLO);
    teardown();
}

/* S5: the table of this host was lost, so it does not know which epoch is over; the leader does. */
static void test_a_frozen_worker_runs_on_in_its_own_epoch_alone(void **state)
{
    static struct shoal_worker_message m = { .kind = SHOAL_WORKER_HELLO };
    uint64_t a;

    (void)state;
    setup();
    a = lease(job_a, 11, 0);
    m.hello = (struct shoal_worker_hello){ .worker_id = 11, .token = { 9 }, .epoch = { 4, 0 } };
    say_as(11, &m);
    tick(11 * SHOAL_S);
    assert_non_null(order(SHOAL_HOST_DO_FREEZE));
    for (uint32_t e = 6; e >= 4; e -= 2) {
        start(SHOAL_HOST_RENEW, job_a);
        out.u.renew.echo = now;
        out.u.renew.epoch = (struct shoal_epoch){ e, 0 };
        out.u.renew.lease_count = 1;
        out.u.renew.leases[0] = (struct shoal_lease_name){ 11, a };
        send_from(leader);
        assert_true((order(SHOAL_HOST_DO_THAW) != NULL) == (e == 4));
    }
    teardown();
}

/* An epoch that comes late is over: the newest one is what a death here revokes. */
static void test_an_older_epoch_is_not_taken(void **state)
{
    const struct shoal_host_order *revoke;

    (void)state;
    setup();
    enter_epoch_3();
    send_epoch((struct shoal_epoch){ 2, 0 });
    exited(12);
    revoke = order(SHOAL_HOST_DO_REVOKE);
    assert_non_null(revoke);
    assert_true(revoke->u.revoke.epoch_word == shoal_epoch_word((struct shoal_epoch){ 3, 0 }));
    teardown();
}

/* Epoch 4 begins with step 5; its members are 11 and 12, of this host or, the second one, of another. */
static void enter_epoch_4(bool one_host)
{
    enter_epoch_3();
    start(SHOAL_HOST_EPOCH, job_a);
    out.u.epoch.epoch = (struct shoal_epoch){ 4, 0 };
    out.u.epoch.call = 1;
    out.u.epoch.decided_step = 5;
    out.u.epoch.member_count = one_host ? 2 : 3;
    for (uint32_t i = 0; i < out.u.epoch.member_count; i++) {
        out.u.epoch.members[i].worker_id = 11 + i;
        out.u.epoch.members[i].node = i < 2 ? self : other;
        out.u.epoch.members[i].has_state = true;
        out.u.epoch.members[i].v_begin = i == 0 ? 0 : i == 1 ? 3 : 6;
        out.u.epoch.members[i].v_end = i == 0 ? 3 : 6;
    }
    send_from(leader);
    assert_true(told(11, SHOAL_WORKER_EPOCH) && told(12, SHOAL_WORKER_EPOCH));
}

static void close_epoch_4(uint64_t worker, uint64_t step)
{
    static struct shoal_worker_message m = { .kind = SHOAL_WORKER_CLOSED };

    m.closed = (struct shoal_worker_closed){ .epoch = { 4, 0 }, .applied_step = step, .complete_step = step };
    say_as(worker, &m);
}

/* E6: a host that has all members makes the next epoch, and nothing else does. */
static void test_a_host_makes_the_next_epoch_of_its_own_members(void **state)
{
    static const struct {
        const char *what;
        bool one_host, leader_ends_it;
        uint64_t step;
        bool makes;
    } rows[] = {
        { "it has all members", true, false, 7, true },
        { "it goes on from where the epoch began", true, false, 5, true },
        { "a member is on another host", false, false, 7, false },
        { "the leader has ended the epoch, too", true, true, 7, false },
        { "less is carried than what the epoch began with", true, false, 4, false },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        setup();
        enter_epoch_4(rows[i].one_host);
        exited(12);
        assert_non_null(order(SHOAL_HOST_DO_REVOKE));
        if (rows[i].leader_ends_it) {
            start(SHOAL_HOST_REVOKE, job_a);
            out.u.revoke = (struct shoal_epoch){ 4, UINT32_MAX };
            send_from(leader);
        }
        close_epoch_4(11, rows[i].step);
        if (sent(SHOAL_HOST_SHRUNK) != rows[i].makes || told(11, SHOAL_WORKER_EPOCH) != rows[i].makes)
            fail_msg("%s: an epoch is %smade", rows[i].what, rows[i].makes ? "not " : "");
        if (rows[i].makes && sent(SHOAL_HOST_SHRUNK)) {
            assert_true(in.u.epoch.epoch.e == 4 && in.u.epoch.epoch.k == 1 && in.u.epoch.member_count == 1);
            assert_int_equal(in.u.epoch.decided_step, rows[i].step);
            assert_true(in.u.epoch.members[0].v_begin == 0 && in.u.epoch.members[0].v_end == 6);
        }
        teardown();
    }
}

static void test_progress_is_told_at_the_first_step_of_an_epoch(void **state)
{
    (void)state;
    setup();
    enter_epoch_3();
    now += SHOAL_S;
    stepped(11, (struct shoal_epoch){ 2, 0 }, 8);
    assert_false(sent(SHOAL_HOST_PROGRESS) && in.u.progress.step == 8);
    stepped(11, (struct shoal_epoch){ 3, 0 }, 7);
    assert_true(sent(SHOAL_HOST_PROGRESS) && in.u.progress.step == 7 && in.u.progress.call == 1);
    send_epoch((struct shoal_epoch){ 3, 1 });
    stepped(11, (struct shoal_epoch){ 3, 1 }, 8);
    assert_true(sent(SHOAL_HOST_PROGRESS) && in.u.progress.step == 8); /* at once; the second is not */
    stepped(11, (struct shoal_epoch){ 3, 1 }, 9);
    assert_false(sent(SHOAL_HOST_PROGRESS));
    teardown();
}

static void test_a_death_closes_the_epoch(void **state)
{
    (void)state;
    setup();
    enter_epoch_3();
    shell(&(struct shoal_host_event){ .kind = SHOAL_HOST_ON_DYING, .u.worker = { .worker_id = 12 } });
    assert_true(order(SHOAL_HOST_DO_REVOKE)->u.revoke.epoch_word == (uint64_t)3 << 32); /* S6: at once */
    assert_true(sent(SHOAL_HOST_REVOKE) && sent_to(SHOAL_HOST_REVOKE, other));
    assert_true(sent_to(SHOAL_HOST_WORKER, leader) && in.u.worker.stuck);
    assert_int_equal(order(SHOAL_HOST_DO_KILL)->u.worker.worker_id, 12); /* whatever is left of it */
    exited(12);
    assert_true(sent_to(SHOAL_HOST_WORKER, leader) && in.u.worker.phase == SHOAL_PHASE_EXITED);
    send_epoch((struct shoal_epoch){ 2, 0 }); /* an older one comes late */
    assert_false(told(11, SHOAL_WORKER_EPOCH));
    teardown();
}

/* PROTOCOLS 7: a step needs every member, so one that leaves ends the epoch for the others here at once. */
static void test_a_member_that_leaves_closes_the_epoch(void **state)
{
    static struct shoal_worker_message m = { .kind = SHOAL_WORKER_CLOSED };

    (void)state;
    setup();
    enter_epoch_3();
    m.closed = (struct shoal_worker_closed){ .epoch = { 3, 0 }, .applied_step = 7, .complete_step = 7 };
    say_as(11, &m);
    assert_non_null(order(SHOAL_HOST_DO_REVOKE));
    assert_true(order(SHOAL_HOST_DO_REVOKE)->u.revoke.epoch_word == shoal_epoch_word((struct shoal_epoch){ 3, 0 }));
    teardown();
}

/* A process of the job speaks in its worker's name: what no call has goes into no report, and the worker is replaced. */
static void test_steps_that_no_call_has_are_refused(void **state)
{
    const uint64_t most = 18446744073709551000ull;
    static struct shoal_worker_message m[] = { { .kind = SHOAL_WORKER_CLOSED }, { .kind = SHOAL_WORKER_CLOSED }, { .kind = SHOAL_WORKER_HELLO },
                                               { .kind = SHOAL_WORKER_DONE },   { .kind = SHOAL_WORKER_READY }, { .kind = SHOAL_WORKER_TRAIN_ACKED },
                                               { .kind = SHOAL_WORKER_SNAPSHOT }, { .kind = SHOAL_WORKER_RECORDS } };

    (void)state;
    m[0].closed = (struct shoal_worker_closed){ .epoch = { 3, 0 }, .applied_step = most };
    m[1].closed = (struct shoal_worker_closed){ .epoch = { 3, 0 }, .complete_step = SHOAL_STEPS_MAX + 1 };
    m[2].hello = (struct shoal_worker_hello){ .worker_id = 11, .token = { 9 }, .epoch = { 3, 0 }, .applied_step = most };
    m[3].done = (struct shoal_worker_done){ .call = 1, .final_step = most };
    m[4].ready = (struct shoal_worker_ready){ .call = 1, .virtual_workers = 1, .steps_per_epoch = most };
    m[5].acked = (struct shoal_worker_acked){ .call = 1, .step = most };
    m[6].snapshot = (struct shoal_worker_snapshot){ .call = 1, .step = most };
    m[7].records = (struct shoal_worker_records){ .call = 1, .first_step = most };
    for (unsigned i = 0; i < sizeof(m) / sizeof(m[0]); i++) {
        struct shoal_slots_stats stats;

        setup();
        enter_epoch_3();
        say_as(11, &m[i]);
        assert_true(sent_to(SHOAL_HOST_WORKER, leader) && in.u.worker.failed && !in.u.worker.user_code);
        assert_non_null(strstr(in.u.worker.text, "that no call has"));
        assert_true(in.u.worker.applied_step <= SHOAL_STEPS_MAX && in.u.worker.complete_step <= SHOAL_STEPS_MAX &&
                    in.u.worker.final_step == 0);
        shoal_slots_stats(slots, &stats);
        assert_int_equal(stats.malformed, 1);
        teardown();
    }
}

static void test_a_step_in_the_page_that_no_call_has_is_not_told(void **state)
{
    (void)state;
    setup();
    enter_epoch_3();
    now += SHOAL_S;
    stepped(11, (struct shoal_epoch){ 3, 0 }, UINT64_MAX);
    assert_false(sent(SHOAL_HOST_PROGRESS));
    stepped(11, (struct shoal_epoch){ 3, 0 }, 7);
    assert_true(sent(SHOAL_HOST_PROGRESS) && in.u.progress.step == 7);
    teardown();
}

/* Why no engine can run here is told before the engine's report, which is no failure of the user's code. */
static void test_why_no_engine_can_run_here_is_told(void **state)
{
    static struct shoal_worker_message m = { .kind = SHOAL_WORKER_FAILED };
    static const char why[] = "the driver has python 3.11, this host has 3.12";

    (void)state;
    setup();
    enter_epoch_3();
    m.failed = (struct shoal_worker_failed){ .unfit = true };
    memcpy(m.failed.text, why, sizeof(why));
    say_as(11, &m);
    assert_true(sent_to(SHOAL_HOST_UNFIT, leader) && in.u.unfit.worker_id == 11);
    assert_string_equal(in.u.unfit.text, why);
    assert_true(sent_to(SHOAL_HOST_WORKER, leader) && in.u.worker.failed && !in.u.worker.user_code);
    teardown();
}

/* The broken links are told, as long as the CLOSED is. */
static void test_broken_links_are_told(void **state)
{
    static struct shoal_worker_message m = { .kind = SHOAL_WORKER_CLOSED };

    (void)state;
    setup();
    enter_epoch_3();
    m.closed = (struct shoal_worker_closed){ .epoch = { 3, 0 }, .applied_step = 7, .complete_step = 7, .broken = { { 4 } } };
    say_as(11, &m);
    assert_true(sent_to(SHOAL_HOST_BROKEN, leader) && in.u.broken.worker_id == 11 && in.u.broken.epoch.e == 3 &&
                shoal_ranks_equal(&in.u.broken.ranks, &m.closed.broken));
    assert_true(sent_to(SHOAL_HOST_WORKER, leader) && in.u.worker.closed);
    m.closed.broken = (struct shoal_ranks){ 0 };
    say_as(11, &m);
    assert_false(sent(SHOAL_HOST_BROKEN));
    teardown();
}

/* Who keeps the others waiting is told while it does, of the epoch that it is in. */
static void test_a_worker_that_stands_is_told(void **state)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_STANDS };

    (void)state;
    setup();
    enter_epoch_3();
    event.u.stands.worker_id = 11;
    event.u.stands.epoch_word = (uint64_t)2 << 32;
    event.u.stands.activity = SHOAL_ACTIVITY_COMPUTING;
    shell(&event);
    assert_false(sent(SHOAL_HOST_STANDS));
    event.u.stands.epoch_word = (uint64_t)3 << 32;
    shell(&event);
    assert_true(sent_to(SHOAL_HOST_STANDS, leader) && in.u.stands.worker_id == 11 && in.u.stands.epoch.e == 3 &&
                in.u.stands.activity == SHOAL_ACTIVITY_COMPUTING);
    teardown();
}

/* S9 is about moves that this core makes: whatever stands in a damaged table is refused, or lived with. */
static void test_damaged_table(void **state)
{
    static uint8_t table[SHOAL_SLOTS_STATE_BYTES_MAX];
    static const uint8_t values[] = { 0, 1, 2, 3, 4, 255 };
    const struct shoal_slots_options options = { .self = self, .host_epoch = 4, .slots = 4, .jobs_max = 1 };
    uint32_t restored = 0, refused = 0;
    size_t len;

    (void)state;
    setup();
    (void)lease(job_a, 11, 0);
    (void)lease(job_a, 12, 1);
    (void)reserve(job_b, 3, 0, 2);
    assert_int_equal(shoal_slots_encode(slots, table, sizeof(table), &len), SHOAL_OK);
    teardown();
    for (size_t i = 0; i < len * sizeof(values); i++) {
        uint8_t was = table[i / sizeof(values)];

        table[i / sizeof(values)] = values[i % sizeof(values)];
        if (shoal_slots_restore(&slots, &options, shoal_view_of(table, len)) != SHOAL_OK) {
            refused++;
        } else {
            restored++;
            shell(&(struct shoal_host_event){ .kind = SHOAL_HOST_ON_RUNNER, .u.runner.job = job_a });
            shell(&(struct shoal_host_event){ .kind = SHOAL_HOST_ON_SLOT_IDLE, .u.idle.slot = 0 });
            shell(&(struct shoal_host_event){ .kind = SHOAL_HOST_ON_EXITED, .u.exited.worker_id = 11 });
            tick(SHOAL_S);
            tick(3600 * SHOAL_S);
            now -= 3601 * SHOAL_S;
            shoal_slots_destroy(slots);
        }
        table[i / sizeof(values)] = was;
    }
    assert_true(restored > 0 && refused > 0);
}

/* The agent restarts: table from the store, then the runner says who lives. */
static void test_restart(void **state)
{
    static uint8_t table[SHOAL_SLOTS_STATE_BYTES_MAX];
    struct shoal_slots_options options = { .self = self, .host_epoch = 4, .slots = 4, .device = SHOAL_JOB_DEVICE_CPU };
    struct shoal_host_live live = { .worker_id = 11, .slot = 0, .role = SHOAL_JOB_ENGINE, .token = { 9 } };
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_RUNNER };
    struct shoal_job_id job;
    uint8_t token[16] = { 9 };
    uint64_t a, seq;
    size_t len;

    (void)state;
    setup();
    a = lease(job_a, 11, 0);
    (void)lease(job_a, 12, 1);
    (void)lease(job_a, 14, 2);
    assert_int_equal(shoal_slots_encode(slots, table, sizeof(table), &len), SHOAL_OK);
    for (unsigned i = 0; i < 10; i++)
        hello(11); /* reported, not stored */
    assert_true(sent(SHOAL_HOST_WORKER));
    seq = in.seq;
    teardown();
    now += SHOAL_S;
    options.start_ns = now;
    options.host_epoch = 5;
    assert_int_equal(shoal_slots_restore(&slots, &options, shoal_view_of(table, len)),
                     SHOAL_ERR_STALE); /* the host was booted */
    options.host_epoch = 4;
    for (size_t n = 0; n < len; n += 7)
        assert_int_equal(shoal_slots_restore(&slots, &options, shoal_view_of(table, n)), SHOAL_ERR_MALFORMED);
    assert_int_equal(shoal_slots_restore(&slots, &options, shoal_view_of(table, len)), SHOAL_OK);
    event.u.runner.job = job_a;
    event.u.runner.generation = 1;
    event.u.runner.workers = &live;
    event.u.runner.worker_count = 1;
    live.lease_generation = a;
    shell(&event);
    assert_int_equal(state_of(0), SHOAL_SLOT_LEASED);
    assert_int_equal(state_of(1), SHOAL_SLOT_HELD); /* ended meanwhile */
    assert_true(shoal_slots_worker_job(slots, 11, token, &job) && shoal_job_id_equal(job, job_a));
    token[3] = 1;
    assert_false(shoal_slots_worker_job(slots, 11, token, &job));
    renew(job_a, 11, a, now);
    assert_non_null(order(SHOAL_HOST_DO_RENEW)); /* the token was not voided */
    assert_null(order(SHOAL_HOST_DO_RUN));       /* nothing is started twice */
    hello(11);
    assert_true(sent(SHOAL_HOST_WORKER) && in.seq > seq); /* newer than what the leader heard of the life before */
    teardown();

    /* Without the table: the runner's word is enough. */
    assert_int_equal(shoal_slots_create(&slots, &options), SHOAL_OK);
    shell(&event);
    assert_int_equal(state_of(0), SHOAL_SLOT_LEASED);
    assert_true(reserve(job_b, 3, 0, 0) > a);
    live.slot = 77; /* nonsense from a runner */
    live.worker_id = 99;
    shell(&event);
    teardown();
}

/* S11. Killed right after RUN, before the table was kept: nothing starts twice, and the end is told. */
static void test_restart_without_a_table(void **state)
{
    struct shoal_slots_options options = {
        .self = self, .host_epoch = 4, .slots = 4, .device = SHOAL_JOB_DEVICE_CPU, .reattaches = true
    };
    struct shoal_host_live live = { .worker_id = 11, .slot = 0 };
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_RUNNER };
    struct shoal_slots_record record;
    uint64_t a;

    (void)state;
    setup();
    a = lease(job_a, 11, 0);
    shoal_slots_destroy(slots);
    now += 10 * SHOAL_MS;
    options.start_ns = now;
    assert_int_equal(shoal_slots_create(&slots, &options), SHOAL_OK);
    renew(job_a, 11, a, now);
    assert_false(sent(SHOAL_HOST_UNKNOWN));
    confirm(job_a, 11, 0, a);
    assert_false(sent(SHOAL_HOST_WORKER)); /* not "never started" */
    assert_null(order(SHOAL_HOST_DO_JOB_OPEN)); /* a runner that is found again would be taken for a new one */
    assert_int_equal(reserve(job_b, 3, 0, 0), 0);
    shoal_slots_record(slots, &record);
    assert_int_equal(record.free, 0);
    event.u.runner.job = job_a;
    event.u.runner.generation = 1;
    event.u.runner.workers = &live;
    event.u.runner.worker_count = 1;
    live.lease_generation = a;
    live.deadline_ns = now + 15 * SHOAL_S;
    shell(&event);
    shell(&(struct shoal_host_event){ .kind = SHOAL_HOST_ON_EXITED, .u.exited = { .worker_id = 11, .status = 3 } });
    assert_true(sent(SHOAL_HOST_WORKER)); /* the leader was heard meanwhile */
    assert_true(in.u.worker.ran && in.u.worker.status == 3);
    shell(&(struct shoal_host_event){ .kind = SHOAL_HOST_ON_REATTACHED });
    assert_true(reserve(job_b, 3, 1, 0) != 0);
    teardown();
}

/* Of whom the shell says so nothing was lost: its attempt does not count. */
static void test_one_that_could_not_be_started_has_not_run(void **state)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_EXITED };

    (void)state;
    setup();
    (void)lease(job_a, 11, 1);
    event.u.exited.worker_id = 11;
    event.u.exited.status = SHOAL_STATUS_UNSTARTED;
    (void)snprintf(event.u.exited.text, sizeof(event.u.exited.text), "no process");
    shell(&event);
    assert_true(sent(SHOAL_HOST_WORKER));
    assert_int_equal(in.u.worker.phase, SHOAL_PHASE_EXITED);
    assert_int_equal(in.u.worker.status, SHOAL_STATUS_UNSTARTED);
    assert_false(in.u.worker.ran);
    assert_string_equal(in.u.worker.text, "no process");
    teardown();
}

static void killed(uint64_t worker)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_EXITED };

    event.u.exited.worker_id = worker;
    event.u.exited.status = 9;
    event.u.exited.signalled = true;
    shell(&event);
}

/* S15. A leader that comes into office between the order and the end knows of no order: the script would have failed. */
static void test_a_script_that_its_host_ended_has_not_failed(void **state)
{
    (void)state;
    setup();
    confirm_script(job_a, 11, 0, reserve(job_a, 0, 0, 0));
    assert_non_null(order(SHOAL_HOST_DO_RUN));
    start(SHOAL_HOST_ORDER, job_a);
    out.u.order.worker_id = 11;
    out.u.order.order = SHOAL_ORDER_KILL;
    send_from(leader);
    assert_non_null(order(SHOAL_HOST_DO_KILL));
    killed(11);
    assert_true(sent(SHOAL_HOST_WORKER));
    assert_int_equal(in.u.worker.phase, SHOAL_PHASE_EXITED);
    assert_int_equal(in.u.worker.status, -1);
    assert_false(in.u.worker.signalled);
    idle(0);
    confirm_script(job_a, 12, 0, reserve(job_a, 0, 0, 0));
    assert_non_null(order(SHOAL_HOST_DO_RUN));
    killed(12); /* by anybody else */
    assert_true(sent(SHOAL_HOST_WORKER));
    assert_int_equal(in.u.worker.status, 9);
    assert_true(in.u.worker.signalled);
    teardown();
}

/* S11. Of this job nothing lives here: it is opened and run as soon as the runners have said so. */
static void test_a_job_that_comes_before_the_runners_answered(void **state)
{
    struct shoal_slots_options options = {
        .self = self, .host_epoch = 4, .slots = 4, .device = SHOAL_JOB_DEVICE_CPU, .reattaches = true
    };
    uint64_t a;

    (void)state;
    setup();
    shoal_slots_destroy(slots);
    options.start_ns = now;
    assert_int_equal(shoal_slots_create(&slots, &options), SHOAL_OK);
    confirm(job_a, 11, 0, 7);
    assert_null(order(SHOAL_HOST_DO_JOB_OPEN));
    shell(&(struct shoal_host_event){ .kind = SHOAL_HOST_ON_REATTACHED });
    assert_non_null(order(SHOAL_HOST_DO_JOB_OPEN));
    a = lease(job_a, 12, 1);
    assert_true(a != 0);
    assert_null(order(SHOAL_HOST_DO_JOB_OPEN)); /* once */
    teardown();
}

/* A runner that is found again with nobody in it, of a job that the table does not know, is closed. */
static void test_a_runner_nobody_knows(void **state)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_RUNNER };

    (void)state;
    setup();
    event.u.runner.job = job_a;
    event.u.runner.generation = 1;
    shell(&event);
    tick(11 * SHOAL_S);
    assert_non_null(order(SHOAL_HOST_DO_JOB_CLOSED));
    teardown();
}

static void test_orders(void **state)
{
    (void)state;
    setup();
    (void)lease(job_a, 11, 0);
    hello(11);
    start(SHOAL_HOST_ORDER, job_a);
    out.u.order.worker_id = 11;
    out.u.order.order = SHOAL_ORDER_STOP;
    out.u.order.reason = SHOAL_STOP_SHRUNK;
    out.u.order.grace_ns = 30 * SHOAL_S;
    send_from(leader);
    assert_true(told(11, SHOAL_WORKER_STOP));
    assert_null(order(SHOAL_HOST_DO_KILL));
    send_from(leader); /* repeated: said once, the grace is not prolonged */
    assert_false(told(11, SHOAL_WORKER_STOP));
    for (uint32_t i = 0; i < 9; i++) {
        tick(3 * SHOAL_S);
        assert_null(order(SHOAL_HOST_DO_KILL));
        send_from(leader);
    }
    tick(3 * SHOAL_S);
    assert_non_null(order(SHOAL_HOST_DO_KILL));
    exited(11);
    start(SHOAL_HOST_ORDER, job_a);
    out.u.order.worker_id = 11;
    out.u.order.order = SHOAL_ORDER_FORGET;
    send_from(leader);
    tick(11 * SHOAL_S);
    assert_non_null(order(SHOAL_HOST_DO_JOB_CLOSED)); /* nothing of it is left */
    teardown();
}

static void acknowledge(uint64_t seq)
{
    start(SHOAL_HOST_ACK, job_a);
    out.seq = seq;
    send_from(leader);
}

/* S12: FORGET is told once, and was lost. */
static void test_an_end_that_nobody_forgets(void **state)
{
    (void)state;
    setup();
    (void)lease(job_a, 11, 0);
    hello(11);
    exited(11);
    assert_true(sent(SHOAL_HOST_WORKER));
    acknowledge(in.seq);
    tick(SHOAL_S);
    assert_false(sent(SHOAL_HOST_WORKER)); /* it is known */
    tick(2 * SHOAL_S);
    assert_true(sent(SHOAL_HOST_WORKER) && in.u.worker.phase == SHOAL_PHASE_EXITED && in.u.worker.worker_id == 11);
    tick(10 * SHOAL_MS);
    assert_false(sent(SHOAL_HOST_WORKER));
    tick(60 * SHOAL_S);
    assert_null(order(SHOAL_HOST_DO_JOB_CLOSED)); /* its leader may still have to hear of it again */
    teardown();
}

/* ... and nobody will ever say it: the group is gone, as gossip or an END tells. */
static void test_an_end_whose_group_is_gone(void **state)
{
    uint8_t report[SHOAL_HOST_MESSAGE_MAX], answer[96];
    size_t len;

    (void)state;
    setup();
    (void)lease(job_a, 11, 0);
    assert_true(shoal_slots_has_job(slots, job_a));
    exited(11);
    step(&(struct shoal_slots_event){ .kind = SHOAL_SLOTS_ENDED, .u.ended = job_a });
    assert_non_null(order(SHOAL_HOST_DO_JOB_CLOSED));
    assert_false(shoal_slots_has_job(slots, job_a));
    (void)lease(job_a, 12, 1);
    exited(12);
    assert_true(sent(SHOAL_HOST_WORKER));
    assert_int_equal(shoal_host_encode(&in, report, sizeof(report), &len), SHOAL_OK);
    assert_true(shoal_host_answer_end(shoal_view_of(report, len), answer, sizeof(answer), &len));
    step(&(struct shoal_slots_event){ .kind = SHOAL_SLOTS_FRAME,
                                      .u.frame = { .from = leader, .bytes = shoal_view_of(answer, len) } });
    assert_non_null(order(SHOAL_HOST_DO_JOB_CLOSED));
    assert_false(shoal_host_answer_end(shoal_view_of(report, 9), answer, sizeof(answer), &len));
    teardown();
}

static void release(uint64_t worker, uint64_t generation)
{
    start(SHOAL_HOST_ORDER, job_a);
    out.u.order.worker_id = worker;
    out.u.order.lease_generation = generation;
    out.u.order.order = SHOAL_ORDER_RELEASE;
    out.u.order.grace_ns = 30 * SHOAL_S;
    send_from(leader);
}

/* A script that ends at once: its engines still load their libraries, and their slots are wanted. */
static void test_release_before_hello(void **state)
{
    uint64_t early, ready;

    (void)state;
    setup();
    early = lease(job_a, 11, 0);
    ready = lease(job_a, 12, 1);
    hello(12);
    release(11, early);
    assert_true(order(SHOAL_HOST_DO_KILL)->u.worker.worker_id == 11 && order(SHOAL_HOST_DO_KILL)->u.worker.grace_ns == 0);
    release(12, ready);
    assert_null(order(SHOAL_HOST_DO_KILL));
    assert_true(told(12, SHOAL_WORKER_RELEASE));
    teardown();
}

static void guarded_by(struct shoal_job_id job, uint8_t count)
{
    start(SHOAL_HOST_CONFIRM, job);
    out.u.confirm.source_count = count;
    for (uint8_t i = 0; i < count; i++)
        out.u.confirm.sources[i].bytes[0] = (uint8_t)(i + 1);
    out.u.confirm.echo = now;
    send_from(leader);
}

/* S13: who keeps what a job leaves here changes while it runs, and is told again after a restart. */
static void test_guardians(void **state)
{
    static uint8_t table[SHOAL_SLOTS_STATE_BYTES_MAX];
    struct shoal_slots_options options = { .self = self, .host_epoch = 4, .slots = 4, .device = SHOAL_JOB_DEVICE_CPU };
    size_t len;

    (void)state;
    setup();
    (void)lease(job_a, 11, 0);
    guarded_by(job_a, 1);
    assert_int_equal(order(SHOAL_HOST_DO_GUARDIANS)->u.fetch.source_count, 1);
    guarded_by(job_a, 1);
    assert_null(order(SHOAL_HOST_DO_GUARDIANS)); /* nothing new */
    assert_null(order(SHOAL_HOST_DO_RUN));
    guarded_by(job_a, 3);
    assert_int_equal(order(SHOAL_HOST_DO_GUARDIANS)->u.fetch.source_count, 3);
    assert_int_equal(order(SHOAL_HOST_DO_GUARDIANS)->u.fetch.sources[2].bytes[0], 3);
    assert_true(shoal_job_id_equal(order(SHOAL_HOST_DO_GUARDIANS)->u.fetch.job, job_a));
    assert_int_equal(shoal_slots_encode(slots, table, sizeof(table), &len), SHOAL_OK);
    teardown();
    assert_int_equal(shoal_slots_restore(&slots, &options, shoal_view_of(table, len)), SHOAL_OK);
    tick(SHOAL_MS);
    assert_int_equal(order(SHOAL_HOST_DO_GUARDIANS)->u.fetch.source_count, 3);
    teardown();
}

static void test_stuck(void **state)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_STUCK };

    (void)state;
    setup();
    (void)lease(job_a, 11, 0);
    hello(11);
    event.u.worker.worker_id = 11;
    shell(&event);
    assert_non_null(order(SHOAL_HOST_DO_KILL));
    assert_true(sent(SHOAL_HOST_WORKER) && in.u.worker.stuck);
    teardown();
}

/* A call reaches the agent before the engine can hear it, so that its bundle is laid out when the engine comes. */
static void test_call_before_hello(void **state)
{
    (void)state;
    setup();
    (void)lease(job_a, 11, 0);
    start(SHOAL_HOST_CALL, job_a);
    out.u.call.call = 1;
    out.u.call.bundle = (struct shoal_hash){ { 5 } };
    send_from(leader);
    assert_false(told(11, SHOAL_WORKER_CALL)); /* not before the bundle is here */
    shell(&(struct shoal_host_event){ .kind = SHOAL_HOST_ON_BLOB, .u.blob = { .hash = { { 5 } }, .ok = true } });
    assert_true(told(11, SHOAL_WORKER_CALL));
    tick(SHOAL_S);
    assert_false(told(11, SHOAL_WORKER_CALL)); /* once */
    hello(11);
    assert_true(told(11, SHOAL_WORKER_CALL)); /* this one is heard */
    teardown();
}

static void test_malformed(void **state)
{
    struct shoal_slots_event event = { .kind = SHOAL_SLOTS_FRAME };
    struct shoal_slots_stats stats;
    size_t len;

    (void)state;
    setup();
    event.u.frame.bytes = shoal_view_text("garbage");
    assert_int_equal(shoal_slots_step(slots, &event, now, &actions), SHOAL_ERR_MALFORMED);
    start(SHOAL_HOST_OFFER, job_a); /* a message for leaders */
    assert_int_equal(shoal_host_encode(&out, bytes, sizeof(bytes), &len), SHOAL_OK);
    event.u.frame.bytes = shoal_view_of(bytes, len);
    assert_int_equal(shoal_slots_step(slots, &event, now, &actions), SHOAL_ERR_MALFORMED);
    shoal_slots_stats(slots, &stats);
    assert_int_equal(stats.malformed, 2);
    exited(77); /* of a worker that is not here */
    teardown();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life_of_a_lease),
        cmocka_unit_test(test_a_drained_host_promises_nothing),
        cmocka_unit_test(test_tentative),
        cmocka_unit_test(test_confirm_is_late),
        cmocka_unit_test(test_freeze_thaw_kill),
        cmocka_unit_test(test_claim_of_an_expired_lease),
        cmocka_unit_test(test_terms),
        cmocka_unit_test(test_a_token_of_another_boot_starts_nothing),
        cmocka_unit_test(test_a_stamp_to_come_extends_and_starts_nothing),
        cmocka_unit_test(test_generations),
        cmocka_unit_test(test_a_reservation_begins_a_generation),
        cmocka_unit_test(test_unknown_is_a_promise),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_driver),
        cmocka_unit_test(test_reports_repeat),
        cmocka_unit_test(test_who_is_not_heard_is_told),
        cmocka_unit_test(test_a_frozen_worker_runs_on_in_its_own_epoch_alone),
        cmocka_unit_test(test_a_hello_with_another_token_is_nothing),
        cmocka_unit_test(test_an_older_epoch_is_not_taken),
        cmocka_unit_test(test_a_member_that_leaves_closes_the_epoch),
        cmocka_unit_test(test_a_host_makes_the_next_epoch_of_its_own_members),
        cmocka_unit_test(test_progress_is_told_at_the_first_step_of_an_epoch),
        cmocka_unit_test(test_a_death_closes_the_epoch),
        cmocka_unit_test(test_broken_links_are_told),
        cmocka_unit_test(test_a_worker_that_stands_is_told),
        cmocka_unit_test(test_steps_that_no_call_has_are_refused),
        cmocka_unit_test(test_a_step_in_the_page_that_no_call_has_is_not_told),
        cmocka_unit_test(test_why_no_engine_can_run_here_is_told),
        cmocka_unit_test(test_damaged_table),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_restart_without_a_table),
        cmocka_unit_test(test_one_that_could_not_be_started_has_not_run),
        cmocka_unit_test(test_a_script_that_its_host_ended_has_not_failed),
        cmocka_unit_test(test_a_job_that_comes_before_the_runners_answered),
        cmocka_unit_test(test_a_runner_nobody_knows),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_an_end_that_nobody_forgets),
        cmocka_unit_test(test_an_end_whose_group_is_gone),
        cmocka_unit_test(test_release_before_hello),
        cmocka_unit_test(test_guardians),
        cmocka_unit_test(test_stuck),
        cmocka_unit_test(test_call_before_hello),
        cmocka_unit_test(test_malformed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
