/* This host's slots: their core is stepped with what the shell and the leaders say, and its orders go to the shell.
 *
 *     host messages, workers' events --> slots --> host messages, orders for workers
 *
 * The table is kept in the rebuildable store when it has changed, not more often than each 200 ms. */
#include "sched_slots.h"
#include "sched_found.h"
#include "sched_lead.h"
#include "sched_state.h"
#include "sched_view.h"

#include "shoal/banned.h"

#define SLOTS_KEEP_NS (200 * SHOAL_MS)

static void slots_options(const struct shoal_sched *s, struct shoal_slots_options *options)
{
    *options = (struct shoal_slots_options){
        .self = s->self,
        .host_epoch = s->incarnation.host_epoch,
        .slots = s->options.slots > SHOAL_SLOTS_MAX ? SHOAL_SLOTS_MAX : s->options.slots,
        .device = s->options.device == SHOAL_SCHED_GPU ? SHOAL_JOB_DEVICE_GPU : SHOAL_JOB_DEVICE_CPU,
        .cards = s->options.cards,
        .shares = s->options.shares,
        .lease_ns = s->options.lease_ns,
        .freeze_ns = s->options.freeze_ns,
        .start_ns = s->options.start_ns,
        .reattaches = s->options.reattaches,
    };
    memcpy(options->card_mib, s->options.card_mib, sizeof(options->card_mib));
}

enum shoal_err sched_slots_create(struct shoal_sched *s)
{
    struct shoal_slots_options options;

    SHOAL_ASSERT(s->slots.core == NULL); /* once */
    s->slots.actions = malloc(sizeof(*s->slots.actions));
    if (s->slots.actions == NULL)
        return SHOAL_ERR_FULL;
    slots_options(s, &options);
    return shoal_slots_create(&s->slots.core, &options);
}

void sched_slots_destroy(struct shoal_sched *s)
{
    shoal_slots_destroy(s->slots.core);
    free(s->slots.actions);
    shoal_buf_deinit(&s->slots.bytes);
}

struct shoal_host_order *sched_order(struct shoal_sched *s, enum shoal_host_order_kind kind)
{
    struct shoal_sched_action *action = sched_act(s, SHOAL_SCHED_ORDER);

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    action->u.order.kind = kind;
    return &action->u.order;
}

/* A message to a worker, in this step's memory. Several workers may be told with one message (an epoch is large):
 * `copies` is where the newest of them lies in both. */
struct message_copies {
    const struct shoal_worker_message *slots, *ours;
};

static const struct shoal_worker_message *copy_message(struct shoal_sched *s, const struct shoal_host_order *from,
                                                       struct message_copies *copies)
{
    const struct shoal_worker_message *message = from->u.send.message;
    uint8_t *copy;

    SHOAL_ASSERT(from->u.send.message_bytes <= sizeof(*message));
    SHOAL_ASSERT(from->kind == SHOAL_HOST_DO_SEND);
    if (message == copies->slots)
        return copies->ours;
    copy = sched_pool(s, from->u.send.message_bytes, 0);
    SHOAL_ASSERT(copy != NULL); /* the pool holds what one step of the slots gives */
    memcpy(copy, message, from->u.send.message_bytes);
    if (message->kind == SHOAL_WORKER_EPOCH)
        *copies = (struct message_copies){ .slots = message, .ours = (const void *)copy };
    return (const void *)copy;
}

/* An order goes through as it is. What it borrows lies in the slots' memory, which the next slots step overwrites: it
 * is copied into this step's. */
static void pass_order(struct shoal_sched *s, const struct shoal_host_order *from, struct message_copies *copies)
{
    struct shoal_host_order *order = sched_order(s, from->kind);

    SHOAL_ASSERT((copies->slots == NULL) == (copies->ours == NULL));
    *order = *from;
    if (from->kind == SHOAL_HOST_DO_JOB_OPEN)
        order->u.job.spec = sched_pool_copy(s, from->u.job.spec);
    else if (from->kind == SHOAL_HOST_DO_SEND)
        order->u.send.message = copy_message(s, from, copies);
}

static void act_on_slots(struct shoal_sched *s, const struct shoal_slots_action *from, struct message_copies *copies)
{
    struct shoal_sched_action *to;

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    switch (from->kind) {
    case SHOAL_SLOTS_SEND: sched_host_send(s, from->u.send.to, from->u.send.bytes); break;
    case SHOAL_SLOTS_PUBLISH:
        to = sched_act(s, SHOAL_SCHED_PUBLISH_SLOTS);
        to->u.publish.version = from->u.publish.version;
        to->u.publish.payload = sched_pool_copy(s, from->u.publish.payload);
        sched_news_slots(s, from->u.publish.payload);
        sched_view_changed(s);
        break;
    case SHOAL_SLOTS_ORDER: pass_order(s, &from->u.order, copies); break;
    }
}

enum shoal_err sched_slots_step(struct shoal_sched *s, const struct shoal_slots_event *event)
{
    enum shoal_err err = shoal_slots_step(s->slots.core, event, s->now, s->slots.actions);
    struct message_copies copies = { .slots = NULL };

    SHOAL_ASSERT(s->slots.actions != NULL);
    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    for (uint32_t i = 0; i < s->slots.actions->count; i++)
        act_on_slots(s, &s->slots.actions->list[i], &copies);
    sched_interest_later(s);
    return err;
}

/* First all others who have to do with it, then the slots. */
void sched_on_host(struct shoal_sched *s, const struct shoal_host_event *host)
{
    struct shoal_slots_event event = { .kind = SHOAL_SLOTS_HOST, .u.host = *host };

    SHOAL_ASSERT(s->slots.core != NULL);
    if (host->kind == SHOAL_HOST_ON_BLOB)
        sched_on_bundle(s, host->u.blob.hash, host->u.blob.ok, host->u.blob.text);
    else if (host->kind == SHOAL_HOST_ON_RECORDS_MARK)
        sched_lead_records_mark(s, host);
    shoal_ignore(sched_slots_step(s, &event)); /* our own shell's events: what does not fit is refused by the core */
}

void sched_slots_link(struct shoal_sched *s, struct shoal_node_id node)
{
    const struct shoal_slots_event event = { .kind = SHOAL_SLOTS_LINK, .u.link = node };

    shoal_ignore(sched_slots_step(s, &event));
}

void sched_slots_ended(struct shoal_sched *s, struct shoal_job_id job)
{
    const struct shoal_slots_event event = { .kind = SHOAL_SLOTS_ENDED, .u.ended = job };

    if (shoal_slots_has_job(s->slots.core, job))
        shoal_ignore(sched_slots_step(s, &event));
}

enum shoal_err sched_slots_restore(struct shoal_sched *s, struct shoal_view bytes)
{
    struct shoal_slots_options options;
    struct shoal_slots *restored;
    enum shoal_err err;

    slots_options(s, &options);
    err = shoal_slots_restore(&restored, &options, bytes);
    if (err != SHOAL_OK)
        return err; /* of another host epoch, or damaged: as if nothing had been kept */
    shoal_slots_destroy(s->slots.core);
    s->slots.core = restored;
    return SHOAL_OK;
}

static void keep_slots(struct shoal_sched *s)
{
    struct shoal_sched_action *action;
    size_t len;

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    SHOAL_ASSERT(shoal_slots_version(s->slots.core) != s->slots.kept_version);
    s->slots.kept_version = shoal_slots_version(s->slots.core);
    s->slots.kept_ns = s->now;
    if (shoal_buf_reserve(&s->slots.bytes, SHOAL_SLOTS_STATE_BYTES_MAX - s->slots.bytes.len) != SHOAL_OK ||
        shoal_slots_encode(s->slots.core, s->slots.bytes.bytes, s->slots.bytes.cap, &len) != SHOAL_OK)
        return; /* rebuildable: the next change writes it */
    action = sched_act(s, SHOAL_SCHED_KEEP_SLOTS);
    action->u.publish.version = s->slots.kept_version;
    action->u.publish.payload = shoal_view_of(s->slots.bytes.bytes, len);
}

uint64_t sched_slots_deadline(const struct shoal_sched *s)
{
    uint64_t deadline_ns = shoal_slots_deadline_ns(s->slots.core);

    SHOAL_ASSERT(s->slots.core != NULL);
    if (deadline_ns < s->slots.floor_ns)
        deadline_ns = s->slots.floor_ns;
    if (shoal_slots_version(s->slots.core) != s->slots.kept_version)
        deadline_ns = sched_sooner(deadline_ns, s->slots.kept_ns + SLOTS_KEEP_NS);
    return deadline_ns;
}

void sched_slots_due(struct shoal_sched *s)
{
    const struct shoal_slots_event timer = { .kind = SHOAL_SLOTS_TIMER };

    SHOAL_ASSERT(s->slots.core != NULL);
    if (s->now >= shoal_slots_deadline_ns(s->slots.core)) {
        shoal_ignore(sched_slots_step(s, &timer));
        s->slots.due_count = s->slots.due_ns == s->now ? s->slots.due_count + 1 : 0;
        s->slots.due_ns = s->now;
        if (s->slots.due_count >= SCHED_DUE_MAX) {
            s->slots.floor_ns = s->now + SCHED_DUE_PAUSE_NS;
            s->stats.pauses++;
        }
    }
    if (shoal_slots_version(s->slots.core) != s->slots.kept_version && s->now >= s->slots.kept_ns + SLOTS_KEEP_NS)
        keep_slots(s);
}
