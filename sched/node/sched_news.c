/* News told directly: what those who wait for slots should know a second before gossip tells everybody.
 *
 *     a slot here is free, or promised             --NEWS--> those who lead waiting jobs: they look again, and ask
 *     a job led here wants or holds something else --NEWS--> the same
 *
 * W1. News only runs ahead of gossip: one that is lost, or told to nobody, costs time and nothing else.
 * W2. A node is believed about its own slots and about jobs that it leads, and never against newer word.
 * W3. A change is told to at most SCHED_NEWS_NODES nodes: those who lead the first waiting jobs of the view, then, in a
 *     small mesh, the others. Nobody answers, and nobody passes it on. */
#include "shoal/job_facts.h"
#include "sched_group.h"
#include "sched_node.h"
#include "sched_state.h"
#include "sched_store.h"
#include "sched_view.h"

#include "shoal/banned.h"

static void tell(struct shoal_sched *s, const struct frame *frame)
{
    const struct sched_view *view = &s->view;
    uint32_t told = view->waiting_count;

    SHOAL_ASSERT(told <= SCHED_NEWS_NODES); /* W3 */
    SHOAL_ASSERT(frame->kind == FRAME_NEWS);
    for (uint32_t i = 0; i < view->waiting_count; i++)
        sched_send(s, view->waiting[i], frame);
    for (size_t i = 0; i < s->node_count && s->node_count <= SCHED_NEWS_NODES && told < SCHED_NEWS_NODES; i++) {
        const struct sched_node *node = &s->nodes[i];
        bool is_told = sched_is_self(s, node->info.id) || node->info.state != SHOAL_SCHED_NODE_ALIVE;

        for (uint32_t w = 0; !is_told && w < view->waiting_count; w++)
            is_told = shoal_node_id_equal(view->waiting[w], node->info.id);
        if (is_told)
            continue;
        sched_send(s, node->info.id, frame);
        told++;
    }
}

void sched_news_slots(struct shoal_sched *s, struct shoal_view payload)
{
    struct frame frame = { .kind = FRAME_NEWS };
    struct shoal_slots_record record;

    SHOAL_ASSERT(payload.len > 0);
    shoal_slots_record(s->slots.core, &record);
    if (record.free == s->slots.news_free)
        return;
    s->slots.news_free = record.free;
    frame.u.news.payload = payload;
    tell(s, &frame);
}

void sched_news_summary(struct shoal_sched *s, const struct sched_group *g, struct shoal_view payload)
{
    struct frame frame = { .kind = FRAME_NEWS };

    SHOAL_ASSERT(g->lead != NULL); /* W2 */
    SHOAL_ASSERT(g->leads);        /* W2 */
    frame.u.news.is_summary = true;
    frame.u.news.version = sched_summary_version(g);
    frame.u.news.payload = payload;
    tell(s, &frame);
}

static enum shoal_err on_slots(struct shoal_sched *s, struct shoal_node_id from, struct shoal_view payload)
{
    struct sched_node *node = sched_node_find(s, from);
    struct shoal_slots_record record;

    SHOAL_ASSERT(!sched_is_self(s, from));
    if (shoal_slots_record_decode(payload, &record) != SHOAL_OK)
        return SHOAL_ERR_MALFORMED;
    if (node == NULL || record.host_epoch != node->info.incarnation.host_epoch || record.stamp <= node->info.slot_stamp)
        return SHOAL_OK; /* W2 */
    node->info.slots_free = record.free;
    sched_node_set_cards(node, &record.cards);
    node->info.slot_stamp = record.stamp;
    node->info.record_seq = record.version;
    sched_view_changed(s);
    return SHOAL_OK;
}

enum shoal_err sched_on_news(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct shoal_job_summary summary;

    SHOAL_ASSERT(frame->kind == FRAME_NEWS);
    SHOAL_ASSERT(!sched_is_self(s, from)); /* on_frame() has looked */
    if (!frame->u.news.is_summary)
        return on_slots(s, from, frame->u.news.payload);
    if (shoal_job_summary_decode(frame->u.news.payload, &summary) != SHOAL_OK)
        return SHOAL_ERR_MALFORMED;
    if (!shoal_node_id_equal(summary.leader, from) || sched_is_gone(s, summary.id))
        return SHOAL_OK; /* W2 */
    sched_summary_hear(s, &summary, frame->u.news.version, true);
    return SHOAL_OK;
}
