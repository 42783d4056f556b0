/* Jobs' summaries as gossip has told them, in order of ids: what this node knows of jobs that are led elsewhere.
 *
 * Y1. A node hears what it writes itself: gossip does not bring it back, and a leader that has heard of its predecessor's
 *     summary would count those slots for ever.
 * Y2. A summary belongs to its guardians. One that has buried the job answers a summary which comes back (from behind a
 *     partition that outlived the tombstone) with a tombstone of a higher version.
 * Y3. A job whose leader is gone, and which has found no other one for as long as its leases could last, holds nothing
 *     and wants nothing in this node's view: its hosts say which slots are free.
 * Y4. What only news has told of is forgotten unless gossip confirms it: news that was under way while this host stood
 *     still, or its link did, may come after the job's tombstone.
 * Y5. Who buries a group says so in gossip if it has told of it as the leader, or if another than its leader told it of the
 *     end: the leader may have been deposed, or lost, before it could.
 * Y6. Gossip keeps the first of two summaries of one version. What a job holds changes without an entry, too, as a worker
 *     dies: then the version rises by itself, or others would count that slot as held until the job leaves gossip. */
#include "shoal/job_facts.h"
#include "sched_archive.h"
#include "sched_archive_table.h"
#include "sched_group.h"
#include "sched_request.h"
#include "sched_state.h"
#include "sched_store.h"
#include "sched_view.h"

#include "shoal/banned.h"

#define NEWS_NS (15 * SHOAL_S) /* gossip tells everybody within seconds, or this host hears little of anything */

static size_t summary_place(const struct shoal_sched *s, struct shoal_job_id id)
{
    size_t low = 0;
    size_t high = s->summaries.count;

    SHOAL_ASSERT(s->summaries.count <= s->summaries.cap);
    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (shoal_job_id_cmp(s->summaries.list[mid].summary.id, id) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static bool is_at(const struct shoal_sched *s, size_t at, struct shoal_job_id id)
{
    SHOAL_ASSERT(at <= s->summaries.count);
    return at < s->summaries.count && shoal_job_id_equal(s->summaries.list[at].summary.id, id);
}

const struct shoal_job_summary *sched_summary_find(const struct shoal_sched *s, struct shoal_job_id id)
{
    size_t at = summary_place(s, id);

    SHOAL_ASSERT(s->summaries.count <= SHOAL_SCHED_SUMMARIES_MAX);
    return is_at(s, at, id) ? &s->summaries.list[at].summary : NULL;
}

static bool summary_room(struct shoal_sched *s)
{
    size_t cap = s->summaries.cap == 0 ? 64 : s->summaries.cap * 2;
    struct sched_heard *grown;

    SHOAL_ASSERT(s->summaries.count <= s->summaries.cap);
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
    SHOAL_ASSERT(a->host_count <= SHOAL_SUMMARY_HOSTS_MAX);
    if (a->want_min != b->want_min || a->want_max != b->want_max || a->priority != b->priority || a->held != b->held ||
        a->class_hash != b->class_hash || a->host_count != b->host_count ||
        a->device != b->device || a->gpu_mib != b->gpu_mib || a->gpu_pack != b->gpu_pack)
        return false;
    for (unsigned i = 0; i < a->host_count; i++) {
        if (!shoal_node_id_equal(a->hosts[i].node, b->hosts[i].node) || a->hosts[i].slots != b->hosts[i].slots)
            return false;
    }
    return a->unfit_count == b->unfit_count && memcmp(a->unfit, b->unfit, a->unfit_count * sizeof(a->unfit[0])) == 0;
}

static void take_demand(struct shoal_job_summary *to, const struct shoal_job_summary *from)
{
    SHOAL_ASSERT(from->host_count <= SHOAL_SUMMARY_HOSTS_MAX);
    to->want_min = from->want_min;
    to->want_max = from->want_max;
    to->held = from->held;
    to->device = from->device;
    to->gpu_mib = from->gpu_mib;
    to->gpu_pack = from->gpu_pack;
    to->host_count = from->host_count;
    memcpy(to->hosts, from->hosts, sizeof(to->hosts));
    to->unfit_count = from->unfit_count;
    memcpy(to->unfit, from->unfit, sizeof(to->unfit));
}

/* False: nothing was known of it. */
static bool drop(struct shoal_sched *s, struct shoal_job_id job)
{
    size_t at = summary_place(s, job);

    if (!is_at(s, at, job))
        return false;
    SHOAL_ASSERT(at < s->summaries.count);
    s->summaries.count--;
    memmove(&s->summaries.list[at], &s->summaries.list[at + 1],
            (s->summaries.count - at) * sizeof(s->summaries.list[0]));
    sched_view_changed(s);
    return true;
}

/* False: no room. */
static bool publish(struct shoal_sched *s, struct shoal_job_id job, struct shoal_sched_version version,
                    struct shoal_view payload, bool tombstone, bool archived)
{
    struct shoal_sched_action *action;

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    SHOAL_ASSERT(tombstone == (payload.len == 0));
    if (s->actions->count + 48 > SHOAL_SCHED_ACTIONS_MAX)
        return false;
    action = sched_act(s, SHOAL_SCHED_PUBLISH_SUMMARY);
    action->u.summary.job = job;
    action->u.summary.version = version;
    action->u.summary.tombstone = tombstone;
    action->u.summary.archived = archived;
    action->u.summary.payload = sched_pool_copy(s, payload);
    return true;
}

/* Y6. */
struct shoal_sched_version sched_summary_version(const struct sched_group *g)
{
    struct shoal_sched_version version = { sched_group_config_version(g), g->term, g->applied };

    return shoal_sched_version_cmp(g->said_version, version) > 0 ? g->said_version : version;
}

void sched_summary_publish(struct shoal_sched *s, struct sched_group *g, struct shoal_view payload, bool demand_new)
{
    struct shoal_sched_version version = sched_summary_version(g);
    struct shoal_job_summary summary;

    SHOAL_ASSERT(g->lead != NULL);
    if (demand_new && shoal_sched_version_cmp(g->said_version, version) == 0)
        version.applied++;
    if (!publish(s, g->id, version, payload, false, false)) {
        shoal_lead_summary_lost(g->lead);
        sched_group_dirty(s, g);
        return;
    }
    g->said = true;
    g->said_version = version;
    if (sched_summary_find(s, g->id) != NULL && shoal_job_summary_decode(payload, &summary) == SHOAL_OK)
        sched_summary_hear(s, &summary, version, false); /* Y1 */
}

void sched_summary_gone(struct shoal_sched *s, struct sched_group *g, bool archived)
{
    struct shoal_sched_version version = sched_summary_version(g);

    version.applied++; /* above what was said last, which may be of the same entry */
    (void)publish(s, g->id, version, (struct shoal_view){ 0 }, true, archived);
    g->said = false;
    (void)drop(s, g->id); /* Y1 */
}

void sched_summary_bury(struct shoal_sched *s, struct sched_group *g, bool archived)
{
    size_t at = summary_place(s, g->id);
    struct shoal_sched_version version = sched_summary_version(g);

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    if (!g->told_elsewhere && !g->said)
        return; /* its leader says so */
    if (is_at(s, at, g->id) && shoal_sched_version_cmp(s->summaries.list[at].version, version) > 0)
        version = s->summaries.list[at].version;
    version.applied++;
    (void)publish(s, g->id, version, (struct shoal_view){ 0 }, true, archived);
    (void)drop(s, g->id);
}

/* Y2. True: the job is buried here, and that is said. One of a later lineage speaks of what a recovery has founded,
 * of which this node may know nothing. */
static bool is_buried(struct shoal_sched *s, struct shoal_job_id job, struct shoal_sched_version version)
{
    bool deleted = sched_is_gone(s, job);

    if (sched_group_find(s, job) != NULL || sched_lineage(version.config) != 0)
        return false;
    if (!deleted && !sched_archive_has_ended(s, job))
        return false;
    version.applied++;
    (void)publish(s, job, version, (struct shoal_view){ 0 }, true, !deleted);
    return true;
}

static void forget(struct shoal_sched *s, struct shoal_job_id job, bool archived)
{
    if (drop(s, job)) {
        if (!archived && sched_archived_find(s, job) == NULL)
            sched_act(s, SHOAL_SCHED_JOB_DELETED)->u.group.group = job; /* nothing in the store speaks of it */
        else if (archived && sched_group_find(s, job) == NULL)
            sched_archive_bury(s, job);
    }
    if (!archived)
        sched_archive_deleted(s, job); /* it was on its way there */
}

void sched_summary_hear(struct shoal_sched *s, const struct shoal_job_summary *summary,
                        struct shoal_sched_version version, bool news)
{
    size_t at = summary_place(s, summary->id);
    bool known = is_at(s, at, summary->id);
    struct sched_heard *heard;
    struct sched_heard old;
    int newer;

    SHOAL_ASSERT(summary->host_count <= SHOAL_SUMMARY_HOSTS_MAX);
    if (!known && (!summary_room(s) || (news && shoal_job_state_ended((enum shoal_job_state)summary->state))))
        return; /* news of an ended job may have been overtaken by its deletion */
    heard = &s->summaries.list[at];
    if (!known) {
        memmove(heard + 1, heard, (s->summaries.count++ - at) * sizeof(*heard));
        memset(heard, 0, sizeof(*heard));
    }
    old = *heard;
    newer = known ? shoal_sched_version_cmp(version, old.version) : 1;
    if (newer < 0 && (news || old.news))
        return; /* W2: gossip keeps its own order, and may be behind the news */
    *heard = (struct sched_heard){ .summary = *summary, .version = version, .news = news };
    if (news)
        heard->first_ns = known ? old.first_ns : s->now;
    if (newer == 0 && old.news && !news) {
        take_demand(&heard->summary, &old.summary);
        heard->news = true;
    }
    if (!known || !same_demand(&old.summary, &heard->summary))
        sched_view_changed(s);
    if (!known || !shoal_node_id_equal(old.summary.leader, summary->leader))
        sched_requests_led(s, summary->id, summary->leader);
}

uint64_t sched_summaries_expire(struct shoal_sched *s)
{
    uint64_t due_ns = SCHED_NEVER;

    for (size_t i = s->summaries.count; i > 0; i--) {
        const struct sched_heard *heard = &s->summaries.list[i - 1];

        if (heard->first_ns == 0)
            continue;
        if (s->now >= heard->first_ns + NEWS_NS)
            (void)drop(s, heard->summary.id);
        else if (heard->first_ns + NEWS_NS < due_ns)
            due_ns = heard->first_ns + NEWS_NS;
    }
    return due_ns;
}

void sched_on_summary(struct shoal_sched *s, const struct shoal_sched_event *event)
{
    struct shoal_job_summary summary;

    SHOAL_ASSERT(event->kind == SHOAL_SCHED_SUMMARY);
    if (event->u.summary.payload.len == 0) {
        forget(s, event->u.summary.job, event->u.summary.archived);
        sched_slots_ended(s, event->u.summary.job);
    } else if (!is_buried(s, event->u.summary.job, event->u.summary.version) &&
             shoal_job_summary_decode(event->u.summary.payload, &summary) == SHOAL_OK &&
             shoal_job_id_equal(summary.id, event->u.summary.job)) {
        sched_summary_hear(s, &summary, event->u.summary.version, false);
    }
}
