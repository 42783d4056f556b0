/* Messages between leads and slots: to another host in a frame, on this node through a queue.
 *
 *     lead here --> slots elsewhere      HOST frame
 *     lead here --> slots here           queue: its bytes wait in a pool until the settling hands them over
 *
 * J2. What lead and slots of one node tell each other waits in the queue: neither is stepped inside the other's step.
 *     When the queue is full the message is dropped and counted; who sent it says it again. */
#include "sched_archive.h"
#include "sched_group.h"
#include "sched_lead.h"
#include "sched_slots.h"
#include "sched_state.h"
#include "sched_store.h"

#include "shoal/banned.h"

#define LOCAL_POOL_BYTES (2 * SHOAL_MIB)

enum shoal_err sched_local_create(struct shoal_sched *s)
{
    SHOAL_ASSERT(s->local.pool.bytes == NULL); /* once */
    return shoal_buf_reserve(&s->local.pool, LOCAL_POOL_BYTES);
}

static void local_put(struct shoal_sched *s, struct shoal_view bytes)
{
    SHOAL_ASSERT(s->local.at <= s->local.count);           /* J2 */
    SHOAL_ASSERT(s->local.count <= SHOAL_SCHED_LOCAL_MAX); /* J2 */
    if (s->local.at == s->local.count) {
        s->local.at = 0;
        s->local.count = 0;
        s->local.pool.len = 0;
    }
    if (s->local.count == SHOAL_SCHED_LOCAL_MAX || bytes.len > s->local.pool.cap - s->local.pool.len) {
        s->stats.sends_dropped++; /* repeated by who sent it */
        return;
    }
    memcpy(s->local.pool.bytes + s->local.pool.len, bytes.bytes, bytes.len);
    s->local.list[s->local.count++] = shoal_view_of(s->local.pool.bytes + s->local.pool.len, bytes.len);
    s->local.pool.len += bytes.len;
}

void sched_host_send(struct shoal_sched *s, struct shoal_node_id to, struct shoal_view bytes)
{
    struct frame frame = { .kind = FRAME_HOST };

    SHOAL_ASSERT(bytes.len > 0);
    if (sched_is_self(s, to)) {
        local_put(s, bytes);
        return;
    }
    frame.u.host.bytes = bytes;
    sched_send(s, to, &frame);
}

/* The host missed the order to forget: nobody else would ever give it. */
static void tell_end(struct shoal_sched *s, struct shoal_node_id to, struct shoal_view report)
{
    uint8_t bytes[96];
    size_t len;

    if (shoal_host_answer_end(report, bytes, sizeof(bytes), &len))
        sched_host_send(s, to, shoal_view_of(bytes, len));
}

enum shoal_err sched_on_host_frame(struct shoal_sched *s, struct shoal_node_id from, struct shoal_view bytes)
{
    struct shoal_slots_event to_slots = { .kind = SHOAL_SLOTS_FRAME };
    struct shoal_lead_event to_lead = { .kind = SHOAL_LEAD_FRAME };
    struct shoal_job_id job;
    struct sched_group *g;
    uint8_t kind;

    if (!shoal_host_peek(bytes, &kind, &job))
        return SHOAL_ERR_MALFORMED;
    if (shoal_host_kind_to_host(kind)) {
        to_slots.u.frame.from = from;
        to_slots.u.frame.bytes = bytes;
        return sched_slots_step(s, &to_slots);
    }
    g = sched_group_find(s, job);
    if (g == NULL && (sched_is_gone(s, job) || sched_archive_has_ended(s, job)))
        tell_end(s, from, bytes);
    if (g == NULL || g->lead == NULL)
        return SHOAL_OK; /* led elsewhere: the host repeats its reports to the new leader */
    to_lead.u.frame.from = from;
    to_lead.u.frame.bytes = bytes;
    sched_lead_event(s, g, &to_lead);
    if (g->lead != NULL)
        g->lead_ns = shoal_lead_deadline_ns(g->lead);
    sched_group_rearm(s, g);
    return SHOAL_OK;
}

void sched_local_run(struct shoal_sched *s)
{
    struct shoal_view bytes = s->local.list[s->local.at++];

    if (sched_on_host_frame(s, s->self, bytes) != SHOAL_OK)
        s->stats.frames_malformed++;
}
