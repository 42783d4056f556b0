/* This file says what lists show of the jobs that this node has a part in. The shell keeps it in an index; this file
 * keeps the index true (SHOAL_SCHED_INDEX).
 *
 *   founding record durable ---+
 *   entries applied -----------+--> the group is marked --> end of the step: one row a group, if it has changed
 *   leader's own view, role ---+
 *   record of the archive stored or dropped, group forgotten, job deleted --> at once: what is left of the job here
 *
 * X1. The row is emitted in the step that makes the change, so whoever is told of the change by an answer of that step
 *     finds it in the next list. (A step without room leaves the rest to the next one, which comes at once: C2.)
 * X2. A founding is in the index as soon as it is durable here, before it is committed: of the guardians that make the
 *     majority of an acknowledged submit, each has its row.
 * X3. Of one job one thing is true here, in this order: it was deleted; its group is here; its record is here; nothing.
 * X4. A group that is here answers for itself (shoal_sched_row_find): its row in the index only says where to look.
 *     What a follower holds and has not applied may be committed: it says so (`tail`), and who lists looks further. */
#include "shoal/sched_look.h"
#include "shoal/job_facts.h"
#include "sched_index.h"
#include "sched_group.h"
#include "sched_lead.h"
#include "sched_park.h"
#include "sched_state.h"
#include "sched_store.h"

#include "shoal/banned.h"

#define ROW_ACTIONS_KEPT 4

/* ---- Rows ---- */

/* A founding record that is not applied yet: all that is known is what was asked for. */
static bool facts_of_record(const struct shoal_sched *s, const struct sched_group *g, struct shoal_job_facts *facts)
{
    struct shoal_job_spec *spec = s->index_spec;
    struct founding_record record;
    struct shoal_view bytes = sched_group_record(g);

    SHOAL_ASSERT(!g->mesh_is && g->job == NULL);
    if (!g->found_durable || g->refused || bytes.len == 0 || sched_record_decode(bytes, &record) != SHOAL_OK ||
        shoal_job_spec_decode(record.spec, spec) != SHOAL_OK)
        return false;
    memset(facts, 0, sizeof(*facts));
    facts->id = g->id;
    facts->state = SHOAL_JOB_SUBMITTED;
    facts->elastic = spec->elastic;
    memcpy(facts->framework, spec->framework, sizeof(facts->framework));
    memcpy(facts->creator, spec->creator, sizeof(facts->creator));
    memcpy(facts->app_name, spec->app_name, sizeof(facts->app_name));
    facts->generation = record.generation;
    facts->workers_min = spec->workers_min;
    facts->workers_max = spec->workers_max;
    shoal_job_facts_asked(spec, facts);
    facts->args = spec->args;
    facts->exit_code = -1;
    facts->ticket_ms = record.ticket.wall_ms;
    facts->create_ms = record.ticket.wall_ms;
    facts->leader = g->leader;
    facts->term = g->term;
    return true;
}

/* Arguments that a row has no room for only the job itself shows: they would be most of what there is to tell. So is a service's
 * document, which no list shows. */
static size_t row_encode(struct shoal_job_facts *facts, uint8_t *bytes)
{
    size_t len;

    SHOAL_ASSERT(facts->state < SHOAL_JOB_STATE_COUNT);
    facts->data_json = facts->document = (struct shoal_view){ 0 };
    if (facts->args.len > SHOAL_SCHED_ROW_ARGS_MAX)
        facts->args = (struct shoal_view){ 0 };
    if (shoal_job_facts_encode(facts, bytes, SHOAL_SCHED_ROW_BYTES_MAX, &len) != SHOAL_OK) {
        facts->args = (struct shoal_view){ 0 };
        facts->work[0] = '\0';
        if (shoal_job_facts_encode(facts, bytes, SHOAL_SCHED_ROW_BYTES_MAX, &len) != SHOAL_OK)
            return 0;
    }
    SHOAL_ASSERT(len > 0 && len <= SHOAL_SCHED_ROW_BYTES_MAX);
    return len;
}

static bool group_facts(const struct shoal_sched *s, const struct sched_group *g, struct shoal_job_facts *facts)
{
    SHOAL_ASSERT(g->raft != NULL);
    if (g->mesh_is)
        return false;
    if (g->job == NULL)
        return facts_of_record(s, g, facts);
    sched_job_facts(s, g, facts);
    return true;
}

static struct shoal_sched_version group_version(const struct sched_group *g)
{
    SHOAL_ASSERT(g->raft != NULL);
    return (struct shoal_sched_version){ sched_group_config_version(g), shoal_raft_term(g->raft), g->applied };
}

bool shoal_sched_row_find(const struct shoal_sched *s, struct shoal_job_id id, uint8_t bytes[SHOAL_SCHED_ROW_BYTES_MAX],
                          struct shoal_sched_row *row)
{
    const struct sched_group *g = sched_group_find(s, id);
    struct shoal_raft_status status;
    struct shoal_job_facts facts;

    SHOAL_ASSERT(row != NULL);
    if (g == NULL || !group_facts(s, g, &facts))
        return false;
    shoal_raft_status(g->raft, &status);
    *row = (struct shoal_sched_row){
        .version = group_version(g),
        .leads = g->leads && g->job != NULL,
        .tail = g->job == NULL || g->stopped || status.last > g->applied,
        .deleted = facts.deleted,
    };
    row->facts = shoal_view_of(bytes, row_encode(&facts, bytes));
    return row->facts.len > 0;
}

/* ---- Emitting ---- */

static bool has_room(const struct shoal_sched *s)
{
    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    return s->actions->count + ROW_ACTIONS_KEPT <= SHOAL_SCHED_ACTIONS_MAX &&
           s->actions->pool_used + 2 * SHOAL_SCHED_ROW_BYTES_MAX <= SHOAL_SCHED_POOL_BYTES;
}

static void emit(struct shoal_sched *s, struct shoal_job_id id, enum shoal_sched_index_what what,
                 struct shoal_sched_version version, struct shoal_view row)
{
    struct shoal_sched_action *action = sched_act(s, SHOAL_SCHED_INDEX);

    SHOAL_ASSERT((what == SHOAL_SCHED_INDEX_ROW) == (row.len > 0)); /* X3: a row, or none */
    SHOAL_ASSERT(s->actions != NULL);                               /* within a step */
    action->u.index.job = id;
    action->u.index.what = what;
    action->u.index.version = version;
    action->u.index.row = sched_pool_copy(s, row);
}

static uint64_t mark_of(const uint8_t *bytes, size_t len)
{
    uint64_t hash = 14695981039346656037ull; /* FNV-1a */

    SHOAL_ASSERT(len <= SHOAL_SCHED_ROW_BYTES_MAX);
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ bytes[i]) * 1099511628211ull;
    return hash == 0 ? 1 : hash;
}

static void emit_group(struct shoal_sched *s, struct sched_group *g)
{
    uint8_t bytes[SHOAL_SCHED_ROW_BYTES_MAX];
    struct shoal_job_facts facts;
    uint64_t mark;
    size_t len;

    SHOAL_ASSERT(!g->mesh_is);
    if (!group_facts(s, g, &facts))
        return;
    facts.applied = 0; /* what counts entries only is no change that a list shows */
    len = row_encode(&facts, bytes);
    mark = mark_of(bytes, len);
    if (len == 0 || mark == g->index_mark)
        return;
    g->index_mark = mark;
    emit(s, g->id, SHOAL_SCHED_INDEX_ROW, group_version(g), shoal_view_of(bytes, len));
}

struct shoal_view sched_index_row(struct shoal_sched *s, const struct sched_group *g,
                                  uint8_t bytes[SHOAL_SCHED_ROW_BYTES_MAX], struct shoal_sched_version *version)
{
    struct shoal_job_facts facts;

    SHOAL_ASSERT(!g->mesh_is);
    *version = group_version(g);
    if (!group_facts(s, g, &facts))
        return (struct shoal_view){ 0 };
    facts.applied = 0; /* as in emit_group() */
    return shoal_view_of(bytes, row_encode(&facts, bytes));
}

struct shoal_view sched_index_archived(struct shoal_view facts_bytes, bool final,
                                       uint8_t bytes[SHOAL_SCHED_ROW_BYTES_MAX], struct shoal_sched_version *version)
{
    struct shoal_job_facts facts;

    SHOAL_ASSERT(version != NULL);
    *version = (struct shoal_sched_version){ 0 };
    if (shoal_job_facts_decode(facts_bytes, &facts) != SHOAL_OK)
        return (struct shoal_view){ 0 };
    version->config = final ? UINT64_MAX : 0; /* nothing is newer than a final record */
    version->term = facts.term;
    version->applied = facts.applied;
    return shoal_view_of(bytes, row_encode(&facts, bytes));
}

void sched_index_parked(struct shoal_sched *s, struct shoal_job_id id, struct shoal_sched_version version,
                        struct shoal_view row)
{
    if (row.len > 0 && has_room(s))
        emit(s, id, SHOAL_SCHED_INDEX_ROW, version, row);
}

/* X3. */
void sched_index_id(struct shoal_sched *s, struct shoal_job_id id)
{
    struct sched_group *g = sched_group_find(s, id);
    struct shoal_sched_version version = { 0 };
    uint8_t bytes[SHOAL_SCHED_ROW_BYTES_MAX];
    struct shoal_sched_archived archived;
    struct shoal_view row = { 0 };

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    if (sched_is_gone(s, id)) {
        emit(s, id, SHOAL_SCHED_INDEX_DELETED, version, (struct shoal_view){ 0 });
        return;
    }
    if (g != NULL) {
        g->index_mark = 0;
        sched_index_dirty(s, g);
        return;
    }
    if (sched_is_parked(s, id))
        return; /* its row stands */
    if (shoal_sched_archive_find(s, id, &archived)) {
        if (archived.cold)
            return; /* as it was when it was warm, or at the start */
        row = sched_index_archived(archived.facts, archived.final, bytes, &version);
    }
    emit(s, id, row.len > 0 ? SHOAL_SCHED_INDEX_ROW : SHOAL_SCHED_INDEX_NOTHING, version, row);
}

/* ---- The groups whose row may have changed ---- */

void sched_index_dirty(struct shoal_sched *s, struct sched_group *g)
{
    SHOAL_ASSERT(g->index_dirty || (g->index_next == NULL && g->index_prev == NULL)); /* X1: in the list once */
    if (g->index_dirty || g->mesh_is)
        return;
    g->index_dirty = true;
    g->index_next = NULL;
    g->index_prev = s->index_last;
    if (s->index_last == NULL)
        s->index_first = g;
    else
        s->index_last->index_next = g;
    s->index_last = g;
}

static void take_out(struct shoal_sched *s, struct sched_group *g)
{
    SHOAL_ASSERT(g->index_dirty);
    SHOAL_ASSERT(s->index_first != NULL);
    if (g->index_prev == NULL)
        s->index_first = g->index_next;
    else
        g->index_prev->index_next = g->index_next;
    if (g->index_next == NULL)
        s->index_last = g->index_prev;
    else
        g->index_next->index_prev = g->index_prev;
    g->index_dirty = false;
    g->index_next = g->index_prev = NULL;
}

void sched_index_forget(struct shoal_sched *s, struct sched_group *g)
{
    SHOAL_ASSERT(!g->mesh_is || !g->index_dirty);
    if (g->index_dirty)
        take_out(s, g);
}

void sched_index_restored(struct shoal_sched *s)
{
    SHOAL_ASSERT(s->gone_count <= SHOAL_SCHED_GONE_MAX); /* T3 */
    s->index_gone = s->gone_count;
}

void sched_index_flush(struct shoal_sched *s)
{
    SHOAL_ASSERT(s->actions != NULL);                    /* within a step */
    SHOAL_ASSERT(s->index_gone <= SHOAL_SCHED_GONE_MAX); /* T3 */
    while (s->index_first != NULL && has_room(s)) {      /* X1 */
        struct sched_group *g = s->index_first;

        take_out(s, g);
        emit_group(s, g);
    }
    while (s->index_gone > 0 && has_room(s)) {
        s->index_gone--;
        if (s->index_gone < s->gone_count && s->gone[s->index_gone].why == GONE_DELETED)
            sched_index_id(s, s->gone[s->index_gone].id);
    }
    s->more = s->more || s->index_first != NULL || s->index_gone > 0;
}
