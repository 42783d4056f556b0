/* Jobs' summaries as gossip has told them, in order of ids: what this node knows of jobs that are led elsewhere. */
#include "sched_state.h"

#include "shoal/banned.h"

void sched_summary_publish(struct shoal_sched *s, struct sched_group *g, struct shoal_view payload, bool tombstone,
                           bool archived)
{
    struct shoal_sched_action *action;

    if (s->actions->count + 48 > SHOAL_SCHED_ACTIONS_MAX)
        return; /* the next change says the newest */
    action = sched_act(s, SHOAL_SCHED_PUBLISH_SUMMARY);
    action->u.summary.job = g->id;
    action->u.summary.version = (struct shoal_sched_version){ sched_group_config_version(g), g->term, g->applied };
    action->u.summary.tombstone = tombstone;
    action->u.summary.archived = archived;
    action->u.summary.payload = sched_pool_copy(s, payload);
}

void sched_summary_gone(struct shoal_sched *s, struct sched_group *g, bool archived)
{
    sched_summary_publish(s, g, (struct shoal_view){ 0 }, true, archived);
}

static size_t summary_place(const struct shoal_sched *s, struct shoal_job_id id)
{
    size_t low = 0;
    size_t high = s->summaries.count;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (shoal_job_id_cmp(s->summaries.list[mid].id, id) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

const struct shoal_job_summary *sched_summary_find(const struct shoal_sched *s, struct shoal_job_id id)
{
    size_t at = summary_place(s, id);

    return at < s->summaries.count && shoal_job_id_equal(s->summaries.list[at].id, id) ? &s->summaries.list[at] : NULL;
}

static bool summary_room(struct shoal_sched *s)
{
    size_t cap = s->summaries.cap == 0 ? 64 : s->summaries.cap * 2;
    struct shoal_job_summary *grown;

    if (s->summaries.count < s->summaries.cap)
        return true;
    if (s->summaries.count == SHOAL_SCHED_SUMMARIES_MAX)
        return false;
    grown = realloc(s->summaries.list, cap * sizeof(*grown));
    if (grown == NULL)
        return false;
    s->summaries.list = grown;
    s->summaries.cap = cap;
    return true;
}

/* For the allocation; progress of a job changes nothing in it. */
static bool same_demand(const struct shoal_job_summary *a, const struct shoal_job_summary *b)
{
    if (a->want_min != b->want_min || a->want_max != b->want_max || a->priority != b->priority || a->held != b->held ||
        a->class_hash != b->class_hash || a->host_count != b->host_count)
        return false;
    for (unsigned i = 0; i < a->host_count; i++) {
        if (!shoal_node_id_equal(a->hosts[i].node, b->hosts[i].node) || a->hosts[i].slots != b->hosts[i].slots)
            return false;
    }
    return true;
}

void sched_on_summary(struct shoal_sched *s, struct shoal_job_id job, struct shoal_view payload, bool archived)
{
    size_t at = summary_place(s, job);
    bool known = at < s->summaries.count && shoal_job_id_equal(s->summaries.list[at].id, job);
    struct shoal_job_summary summary;
    bool led;

    if (payload.len == 0) {
        if (known) {
            s->summaries.count--;
            memmove(&s->summaries.list[at], &s->summaries.list[at + 1],
                    (s->summaries.count - at) * sizeof(s->summaries.list[0]));
            if (!archived)
                sched_act(s, SHOAL_SCHED_JOB_DELETED)->u.group.group = job;
            else if (sched_group_find(s, job) == NULL)
                sched_archive_bury(s, job);
            sched_view_changed(s);
        }
        if (!archived)
            sched_archive_deleted(s, job); /* it was on its way there */
        return;
    }
    if (shoal_job_summary_decode(payload, &summary) != SHOAL_OK || !shoal_job_id_equal(summary.id, job) ||
        (!known && !summary_room(s)))
        return;
    if (!known) {
        memmove(&s->summaries.list[at + 1], &s->summaries.list[at],
                (s->summaries.count - at) * sizeof(s->summaries.list[0]));
        s->summaries.count++;
        sched_view_changed(s);
    } else if (!same_demand(&s->summaries.list[at], &summary)) {
        sched_view_changed(s);
    }
    led = !known || !shoal_node_id_equal(s->summaries.list[at].leader, summary.leader);
    s->summaries.list[at] = summary;
    if (led)
        sched_requests_led(s, job, summary.leader);
}
