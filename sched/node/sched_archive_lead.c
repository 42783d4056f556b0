/* How the leader of an ended job moves it into the archive (sched_archive.c: A1, A2, A9). */
#include "shoal/job_facts.h"
#include "shoal/job_entry.h"
#include "sched_archive.h"
#include "sched_archive_table.h"
#include "sched_group.h"
#include "sched_lead.h"
#include "sched_state.h"
#include "sched_store.h"
#include "sched_view.h"

#include "shoal/banned.h"

#define TICK_NS (250 * SHOAL_MS)     /* A11 */
#define MAKE_RETRY_NS (60 * SHOAL_S) /* nothing is heard of what was asked for */
#define MADE_RETRY_NS (5 * SHOAL_S)  /* it could not be made now */
#define LEAVE_NS (2 * SHOAL_S)       /* the lists of all nodes hear of the record before gossip forgets the job */

static const struct shoal_hash no_hash;

/* A11. */
static uint64_t next_tick(const struct shoal_sched *s)
{
    SHOAL_ASSERT(s->now < SCHED_NEVER - TICK_NS);
    return (s->now / TICK_NS + 1) * TICK_NS;
}

/* ---- The leader of an ended job ---------------------------------------------------------------------------------- */

static void ask_to_make(struct shoal_sched *s, struct sched_group *g)
{
    struct shoal_sched_action *action = sched_act(s, SHOAL_SCHED_ARCHIVE_MAKE);
    struct shoal_job_facts facts;
    const struct shoal_job_spec *spec = &g->job->spec;

    SHOAL_ASSERT(g->job != NULL && g->lead != NULL);
    SHOAL_ASSERT(g->leads && shoal_hash_is_zero(g->job->archived)); /* A1 */
    shoal_job_facts(g->job, &facts);
    action->u.archive.job = g->id;
    action->u.archive.result = facts.result;
    action->u.archive.files = facts.files;
    (void)snprintf(action->u.archive.user, sizeof(action->u.archive.user), "%s",
                   spec->submit_user[0] != '\0' ? spec->submit_user : spec->creator);
    g->archive_making = true;
    g->archive_ns = s->now + MAKE_RETRY_NS;
}

static void put_progress(const struct shoal_sched_event *event, struct shoal_job_facts *facts,
                         struct shoal_job_summary *summary)
{
    SHOAL_ASSERT(event->kind == SHOAL_SCHED_ARCHIVE_MADE);
    if (!event->u.archive.has_progress)
        return;
    facts->step = summary->step = event->u.archive.steps;
    facts->data_epoch = summary->data_epoch = event->u.archive.data_epoch;
    facts->has_metrics = summary->has_metrics = event->u.archive.has_metrics; /* none: those that were heard are older */
    facts->loss_micro = summary->loss_micro = event->u.archive.loss_micro;
    facts->metric_micro = summary->metric_micro = event->u.archive.metric_micro;
}

/* The record of the job as it stands, signed; empty: it does not fit. */
static struct shoal_view make_record(struct shoal_sched *s, struct sched_group *g,
                                     const struct shoal_sched_event *event)
{
    uint8_t *facts_bytes = s->scratch.bytes;
    uint8_t *record_bytes = s->scratch.bytes + SHOAL_JOB_FACTS_BYTES_MAX;
    uint8_t summary_bytes[SHOAL_SCHED_SUMMARY_BYTES_MAX];
    const struct shoal_job_spec *spec = &g->job->spec;
    struct archive_record record = { .job = g->id, .spec_hash = g->spec_hash, .list = event->u.archive.list };
    struct shoal_writer w = shoal_writer_init(record_bytes, SHOAL_ARCHIVE_RECORD_BYTES_MAX);
    struct shoal_job_summary summary;
    struct shoal_job_facts facts;
    size_t len;

    SHOAL_ASSERT(g->lead != NULL && g->job != NULL);
    SHOAL_ASSERT(s->scratch.cap >= SHOAL_JOB_FACTS_BYTES_MAX + SHOAL_ARCHIVE_RECORD_BYTES_MAX);
    sched_job_facts(s, g, &facts);
    shoal_lead_summary(g->lead, &summary);
    put_progress(event, &facts, &summary);
    record.version = (struct shoal_sched_version){ sched_group_config_version(g), g->term, g->applied };
    (void)snprintf(record.user, sizeof(record.user), "%s",
                   spec->submit_user[0] != '\0' ? spec->submit_user : spec->creator);
    record.guardian_count = (uint8_t)sched_group_guardians(g, record.guardians, SHOAL_SCHED_SOURCES_MAX);
    if (shoal_job_facts_encode(&facts, facts_bytes, SHOAL_JOB_FACTS_BYTES_MAX, &len) != SHOAL_OK)
        return (struct shoal_view){ 0 };
    record.facts = shoal_view_of(facts_bytes, len);
    if (shoal_job_summary_encode(&summary, summary_bytes, sizeof(summary_bytes), &len) != SHOAL_OK)
        return (struct shoal_view){ 0 };
    record.summary = shoal_view_of(summary_bytes, len);
    if (!sched_archive_encode_body(&record, &w))
        return (struct shoal_view){ 0 };
    s->options.env.sign(s->options.env.arg, shoal_writer_view(&w), record.signature);
    shoal_put_raw(&w, s->options.public_key, sizeof(s->options.public_key));
    shoal_put_raw(&w, record.signature, sizeof(record.signature));
    return shoal_writer_view(&w);
}

void sched_archive_made(struct shoal_sched *s, const struct shoal_sched_event *event)
{
    struct sched_group *g = sched_group_find(s, event->u.archive.job);
    struct shoal_view bytes;
    struct sched_archived *a;

    SHOAL_ASSERT(event->kind == SHOAL_SCHED_ARCHIVE_MADE);
    if (g == NULL && event->u.archive.ok)
        sched_archive_unowned(s, event->u.archive.job);
    if (g == NULL || !g->archive_making)
        return;
    g->archive_making = false;
    g->archive_ns = s->now + MADE_RETRY_NS;
    sched_group_rearm(s, g);
    if (!g->leads || g->lead == NULL || g->job->deleted || !shoal_hash_is_zero(g->job->archived) ||
        !event->u.archive.ok)
        return; /* tried again by the clock */
    bytes = make_record(s, g, event);
    a = sched_archived_find(s, g->id);
    if (bytes.len == 0 || (a != NULL && a->final))
        return;
    if (a != NULL)
        sched_archived_drop(s, a);
    a = sched_archived_add(s, g->id, bytes);
    if (a == NULL)
        return;
    sched_archived_move(a, ARCHIVED_WRITING);
    sched_archived_keep(s, a);
    g->archive_ns = next_tick(s);
    sched_group_rearm(s, g);
}

/* A1. Made by an earlier leader: another one may have taken its place since, with a newer record. */
static bool is_of_before(const struct sched_group *g, const struct sched_archived *a)
{
    SHOAL_ASSERT(g->leads);
    return !a->final && a->body != NULL && a->body->record.version.term < g->term;
}

/* Not committed yet: a record of this node's own, on all that should hold it; then the entry (A2). */
static void place(struct shoal_sched *s, struct sched_group *g)
{
    const struct sched_archived *a = sched_archived_find(s, g->id);
    uint8_t bytes[64];

    SHOAL_ASSERT(shoal_hash_is_zero(g->job->archived)); /* A1 */
    SHOAL_ASSERT(g->leads);                             /* A1: the group decides by its leader */
    if (!g->archive_due) {
        if (g->archive_ns == SCHED_NEVER)
            g->archive_ns = s->now + s->options.archive_ns;
        if (s->ended_led > s->options.archive_early_max) { /* A9 */
            g->archive_due = true;
            g->archive_ns = next_tick(s);
        } else if (s->now >= g->archive_ns) {
            g->archive_due = true;
        }
        if (!g->archive_due)
            return;
    }
    if (s->now < g->archive_ns)
        return; /* A11 */
    if (a == NULL || a->state == ARCHIVED_FETCHING || is_of_before(g, a)) {
        ask_to_make(s, g);
        return;
    }
    g->archive_ns = next_tick(s);
    if (sched_archived_is_stored(a) && sched_archive_all_hold(a->hosts, a->host_count, false) && sched_has_room(s)) {
        size_t len;

        SHOAL_ASSERT(sched_archive_all_hold(a->hosts, a->host_count, false)); /* A2 */
        len = shoal_job_entry_archived(bytes, sizeof(bytes), a->hash, s->wall_ms);
        shoal_entry_unref(sched_propose(s, g, shoal_view_of(bytes, len), SCHED_CTX_KEEP));
    }
}

/* Committed, and every holder knows: the members are told, gossip forgets the job, this one goes last. */
static void end_group(struct shoal_sched *s, struct sched_group *g)
{
    SHOAL_ASSERT(g->leads && g->archive_end_ns != 0);            /* A4 */
    SHOAL_ASSERT(g->archive_host_count <= SHOAL_ARCHIVE_COPIES); /* A6 */
    for (unsigned i = 0; i < g->told_count; i++)
        sched_archive_say(s, g->told[i].node, ARCHIVE_ENDED, g->id, no_hash, true);
    sched_summary_gone(s, g, true);
    g->gone_archived = true;
    sched_group_doom(s, g, 200 * SHOAL_MS, false);
}

/* A deletion that is under way would be answered by a group that nobody remembers. */
static bool nothing_open(const struct sched_group *g)
{
    struct shoal_raft_status status;

    SHOAL_ASSERT(g->raft != NULL);
    shoal_raft_status(g->raft, &status);
    return status.last == g->applied;
}

static void finish(struct shoal_sched *s, struct sched_group *g)
{
    struct sched_archived *a = sched_archived_find(s, g->id);

    SHOAL_ASSERT(!shoal_hash_is_zero(g->job->archived));         /* A2 */
    SHOAL_ASSERT(g->archive_host_count <= SHOAL_ARCHIVE_COPIES); /* A6 */
    SHOAL_ASSERT(g->leads);
    if (g->doomed_ns != SCHED_NEVER)
        return;
    if (sched_is_gone(s, g->id)) { /* A5 */
        sched_lead_delete(s, g);
        return;
    }
    if (a != NULL && shoal_hash_equal(a->hash, g->job->archived))
        sched_archived_make_final(s, a);
    if (s->now >= g->archive_ns || g->archive_ns == SCHED_NEVER) {
        g->archive_host_count = sched_archive_hosts_update(s, g->id, g->archive_hosts, g->archive_host_count);
        for (unsigned i = 0; i < g->archive_host_count; i++)
            sched_archive_say(s, g->archive_hosts[i].node, ARCHIVE_HAVE, g->id, g->job->archived, true);
        g->archive_ns = next_tick(s);
    }
    for (unsigned i = 0; i < g->archive_host_count; i++)
        if (sched_is_self(s, g->archive_hosts[i].node))
            g->archive_hosts[i].holds = g->archive_hosts[i].final = a != NULL && sched_archived_is_stored_final(a);
    if (!sched_archive_all_hold(g->archive_hosts, g->archive_host_count, true))
        g->archive_end_ns = 0;
    else if (g->archive_end_ns == 0)
        g->archive_end_ns = next_tick(s);
    else if (s->now >= g->archive_end_ns + LEAVE_NS && nothing_open(g))
        end_group(s, g);
}

void sched_archive_count(struct shoal_sched *s, struct sched_group *g, bool ended)
{
    SHOAL_ASSERT(s->ended_led > 0 || !g->ended_led); /* A9 */
    s->ended_led += ended && !g->ended_led;
    s->ended_led -= !ended && g->ended_led;
    g->ended_led = ended;
}

bool sched_archive_awaits(const struct sched_group *g)
{
    SHOAL_ASSERT(g->raft != NULL);
    return g->job != NULL && !g->job->deleted && shoal_job_state_ended((enum shoal_job_state)g->job->state);
}

void sched_archive_hurry(struct shoal_sched *s, struct sched_group *g)
{
    SHOAL_ASSERT(g->leads && sched_archive_awaits(g));
    if (g->archive_due || !shoal_hash_is_zero(g->job->archived))
        return;
    g->archive_due = true;
    g->archive_ns = next_tick(s);
    sched_group_rearm(s, g);
}

bool sched_archive_holds(const struct shoal_sched *s, struct shoal_job_id id)
{
    const struct sched_archived *a = sched_archived_find(s, id);

    SHOAL_ASSERT(s->archive_count <= SHOAL_ARCHIVE_RECORDS_MAX); /* A7 */
    return a != NULL && sched_archived_is_stored_final(a);
}

void sched_archive_lead(struct shoal_sched *s, struct sched_group *g)
{
    bool ended = g->leads && !g->stopped && g->lead != NULL && g->job != NULL && !g->job->deleted &&
                 g->job->placement_count == 0 && shoal_job_state_ended((enum shoal_job_state)g->job->state);

    SHOAL_ASSERT(g->raft != NULL);
    sched_archive_count(s, g, ended);
    if (!ended) {
        g->archive_ns = SCHED_NEVER;
        g->archive_due = g->archive_making = false;
        g->archive_end_ns = 0;
        return;
    }
    if (shoal_hash_is_zero(g->job->archived))
        place(s, g);
    else
        finish(s, g);
}
