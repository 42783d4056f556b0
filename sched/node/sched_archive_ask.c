/* How requests are answered from the archive, and how the node looks into it (sched_archive.c has the rules). */
#include "shoal/sched_look.h"
#include "shoal/job_facts.h"
#include "sched_archive.h"
#include "sched_archive_table.h"
#include "sched_group.h"
#include "sched_node.h"
#include "sched_request.h"
#include "sched_state.h"
#include "sched_store.h"
#include "sched_view.h"

#include "shoal/banned.h"

#define DELETE_RETRY_NS (50 * SHOAL_MS)
static const struct shoal_hash no_hash;

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

struct sched_archived *sched_archive_find(const struct shoal_sched *s, struct shoal_job_id id)
{
    struct sched_archived *a = sched_archived_find(s, id);

    SHOAL_ASSERT(s->archive_count <= SHOAL_ARCHIVE_RECORDS_MAX); /* A7 */
    if (a == NULL || !sched_archived_is_stored(a) || sched_group_find(s, id) != NULL)
        return NULL;
    return a->final || sched_summary_find(s, id) == NULL ? a : NULL; /* A1 */
}

bool sched_archive_same(const struct shoal_sched *s, struct shoal_job_id id, struct shoal_hash spec_hash, bool *same)
{
    const struct sched_archived *a = sched_archive_find(s, id);
    const struct sched_gone *gone = sched_gone_find(s, id);

    SHOAL_ASSERT(same != NULL);
    if (a != NULL)
        *same = a->spec_mark == sched_spec_mark(spec_hash);
    else if (gone != NULL && gone->why == GONE_ARCHIVED)
        *same = gone->spec_mark == sched_spec_mark(spec_hash);
    else
        return false;
    return true;
}

struct shoal_node_id sched_archive_holder(struct shoal_sched *s, struct shoal_job_id id)
{
    struct shoal_node_id nodes[SHOAL_ARCHIVE_COPIES];
    size_t count = sched_archive_hosts(s, id, nodes);
    size_t first = count == 0 ? 0 : shoal_rand_below(&s->chance, count);

    SHOAL_ASSERT(count <= SHOAL_ARCHIVE_COPIES); /* A6 */
    for (size_t i = 0; i < count; i++) {
        struct shoal_node_id id_at = nodes[(first + i) % count];
        const struct sched_node *node = sched_node_find(s, id_at);

        if (!sched_is_self(s, id_at) && node != NULL && node->info.state == SHOAL_SCHED_NODE_ALIVE)
            return id_at;
    }
    return (struct shoal_node_id){ { 0 } };
}

/* A10. The mesh group's hosts are asked, too: what a majority of them has stored, a later majority knows. */
static void ask_mesh_group(const struct shoal_sched *s, struct sched_request *r)
{
    unsigned guardians = s->mesh_hint.count;

    _Static_assert(SHOAL_ARCHIVE_COPIES + SHOAL_SCHED_SOURCES_MAX <= SCHED_ASKED_MAX, "all holders and the mesh group");
    r->quorum = 0;
    r->quorum_need = (uint8_t)(guardians == 0 ? 0 : guardians / 2 + 1);
    for (unsigned i = 0; i < guardians; i++) {
        unsigned at = 0;

        if (sched_is_self(s, s->mesh_hint.guardians[i])) {
            r->quorum_need--;
            continue;
        }
        while (at < r->ask_count && !shoal_node_id_equal(r->ask[at], s->mesh_hint.guardians[i]))
            at++;
        if (at == r->ask_count)
            r->ask[r->ask_count++] = s->mesh_hint.guardians[i];
        r->quorum |= (uint8_t)(1u << at);
    }
}

static void look_again(struct shoal_sched *s, struct sched_request *r, uint64_t after_ns)
{
    r->retry_ns = s->now + after_ns;
    if (r->retry_ns < s->requests_ns)
        s->requests_ns = r->retry_ns;
}

static void serve_delete(struct shoal_sched *s, struct sched_request *r, struct shoal_job_id id)
{
    struct shoal_node_id nodes[SHOAL_ARCHIVE_COPIES];
    size_t count = sched_archive_hosts(s, id, nodes);

    SHOAL_ASSERT(r->kind == SHOAL_SCHED_DELETE); /* A5 */
    SHOAL_ASSERT(sched_archived_find(s, id) != NULL);
    sched_archive_forget_deleted(s, id);
    sched_gone_tell(s, id);
    sched_request_move(r, REQUEST_DELETING);
    r->ask_count = 0;
    r->answered = 0;
    for (size_t i = 0; i < count; i++) {
        const struct sched_node *node = sched_node_find(s, nodes[i]);

        if (!sched_is_self(s, nodes[i]) && node != NULL && node->info.state == SHOAL_SCHED_NODE_ALIVE)
            r->ask[r->ask_count++] = nodes[i];
    }
    r->must = (uint8_t)((1u << r->ask_count) - 1);
    ask_mesh_group(s, r);
    look_again(s, r, DELETE_RETRY_NS);
}

/* ---- Linearizable reads ---- */

void sched_archive_confirm_due(struct shoal_sched *s, struct sched_request *r)
{
    const struct sched_archived *a = sched_archive_find(s, r->job);
    struct frame frame = { .kind = FRAME_WHO };

    SHOAL_ASSERT(r->state == REQUEST_CONFIRMING); /* A10 */
    if (a == NULL || a->body == NULL) {
        sched_request_retry(s, r, 0); /* it was deleted or let go meanwhile */
        return;
    }
    if (sched_request_asked_enough(r)) {
        sched_request_end(s, r, SHOAL_OK, a->body->record.facts, "%s", "");
        return;
    }
    frame.u.who.id = r->serial;
    frame.u.who.job = r->job;
    for (unsigned i = 0; i < r->ask_count; i++)
        if (!(r->answered & 1u << i))
            sched_send(s, r->ask[i], &frame);
    look_again(s, r, SCHED_RETRY_NS);
}

static void serve_read(struct shoal_sched *s, struct sched_request *r, const struct sched_archived *a)
{
    SHOAL_ASSERT(r->kind == SHOAL_SCHED_GET);
    if (!r->linearizable) {
        sched_request_end(s, r, SHOAL_OK, a->body->record.facts, "%s", "");
        return;
    }
    sched_request_move(r, REQUEST_CONFIRMING);
    r->ask_count = r->answered = r->must = 0;
    ask_mesh_group(s, r);
    sched_archive_confirm_due(s, r);
}

void sched_archive_confirm(struct shoal_sched *s, struct sched_request *r, struct shoal_node_id from, bool deleted)
{
    SHOAL_ASSERT(r->state == REQUEST_CONFIRMING); /* A10 */
    if (deleted) {
        sched_request_end(s, r, SHOAL_ERR_NOT_FOUND, (struct shoal_view){ 0 }, "the job was deleted");
        return;
    }
    for (unsigned i = 0; i < r->ask_count; i++)
        if (shoal_node_id_equal(r->ask[i], from))
            r->answered |= (uint8_t)(1u << i);
    if (sched_request_asked_enough(r))
        sched_archive_confirm_due(s, r);
}

void sched_archive_serve(struct shoal_sched *s, struct sched_request *r, struct sched_archived *a)
{
    struct shoal_job_facts facts;
    const char *cut_off = sched_request_cut_off(s);
    char text[SHOAL_JOB_REASON_BYTES + 64] = "";

    SHOAL_ASSERT(sched_archived_is_stored(a)); /* A1 */
    SHOAL_ASSERT(r->state != REQUEST_FREE);    /* R1 */
    if (a->body == NULL && (r->kind == SHOAL_SCHED_GET || r->kind == SHOAL_SCHED_WHY)) {
        sched_archived_warm_up(s, a);
        sched_request_retry(s, r, 100 * SHOAL_MS);
        return;
    }
    if (cut_off != NULL && (r->kind == SHOAL_SCHED_DELETE || (r->kind == SHOAL_SCHED_GET && r->linearizable))) {
        sched_request_end(
            s, r, SHOAL_ERR_UNREACHABLE, (struct shoal_view){ 0 },
            "the job is in the archive, and this host cannot decide about it: %s; ask another host, or try "
            "again when the hosts hear each other",
            cut_off); /* A10 */
        return;
    }
    if (r->kind == SHOAL_SCHED_DELETE && r->proven && !r->caller.admin && a->body == NULL) {
        sched_archived_warm_up(s, a); /* whose it was stands in the record */
        sched_request_retry(s, r, 100 * SHOAL_MS);
        return;
    }
    if (r->kind == SHOAL_SCHED_DELETE && a->body != NULL && !sched_request_may(s, r, a->body->record.user))
        return;
    switch (r->kind) {
    case SHOAL_SCHED_GET: serve_read(s, r, a); return;
    case SHOAL_SCHED_WHY:
        if (shoal_job_facts_decode(a->body->record.facts, &facts) == SHOAL_OK)
            (void)snprintf(text, sizeof(text), "%s.%s%s\n", shoal_job_state_name((enum shoal_job_state)facts.state),
                           facts.reason[0] == '\0' ? "" : " ", facts.reason); /* as shoal_lead_why */
        sched_request_end(s, r, SHOAL_OK, shoal_view_text(text), "%s", "");
        return;
    case SHOAL_SCHED_TASKS:
        sched_request_end(
            s, r, SHOAL_ERR_NOT_FOUND, (struct shoal_view){ 0 },
            "the job is in the archive, which keeps how many of its tasks were done and failed, not which");
        return;
    case SHOAL_SCHED_DELETE: serve_delete(s, r, a->id); return;
    case SHOAL_SCHED_SCALE:
    case SHOAL_SCHED_EDIT: /* as its group would: an OK here would be a change that nobody keeps */
        sched_request_end(s, r, SHOAL_ERR_INVALID, (struct shoal_view){ 0 },
                          "the job has ended and is in the archive: a service is changed while it has a job; deploy it "
                          "again");
        return;
    case SHOAL_SCHED_RECOVER:
        sched_request_end(s, r, SHOAL_ERR_EXISTS, (struct shoal_view){ 0 },
                          "the job has ended and is in the archive: there is nothing to recover");
        return;
    default: sched_request_end(s, r, SHOAL_OK, (struct shoal_view){ 0 }, "%s", ""); return; /* STOP: it has ended */
    }
}

void sched_archive_delete_due(struct shoal_sched *s, struct sched_request *r)
{
    SHOAL_ASSERT(r->state == REQUEST_DELETING); /* A5 */
    SHOAL_ASSERT(r->ask_count <= SCHED_ASKED_MAX);
    if (sched_gone_is_durable(s, r->job) && sched_request_asked_enough(r)) {
        sched_request_end(s, r, SHOAL_OK, (struct shoal_view){ 0 }, "%s", "");
        return;
    }
    for (unsigned i = 0; i < r->ask_count && sched_gone_is_durable(s, r->job); i++) /* T6 */
        if (!(r->answered & 1u << i))
            sched_archive_say(s, r->ask[i], ARCHIVE_DELETE, r->job, no_hash, false);
    r->retry_ns = s->now + DELETE_RETRY_NS;
}

/* ---- Looking inside ---------------------------------------------------------------------------------------------- */

size_t shoal_sched_archive_count(const struct shoal_sched *s)
{
    SHOAL_ASSERT(s->archive_count <= SHOAL_ARCHIVE_RECORDS_MAX); /* A7 */
    return s->archive_count;
}
uint64_t shoal_sched_archive_version(const struct shoal_sched *s)
{
    SHOAL_ASSERT(s->archive_version < UINT64_MAX);
    return s->archive_version;
}

bool shoal_sched_archive_at(const struct shoal_sched *s, size_t i, struct shoal_sched_archived *out)
{
    const struct sched_archived *a = i < s->archive_count ? s->archive[i] : NULL;

    SHOAL_ASSERT(out != NULL);
    if (a == NULL || !sched_archived_is_stored(a))
        return false;
    *out = (struct shoal_sched_archived){ .id = a->id, .final = a->final, .since = a->since, .cold = a->body == NULL };
    if (a->body == NULL)
        return true;
    out->list = a->body->record.list;
    out->facts = a->body->record.facts;
    out->summary = a->body->record.summary;
    memcpy(out->user, a->body->record.user, sizeof(out->user));
    return true;
}

bool shoal_sched_archive_newest(const struct shoal_sched *s, const void **cursor, struct shoal_sched_archived *out)
{
    const struct sched_archived *a =
        *cursor == NULL ? s->warm_last : ((const struct sched_archived *)*cursor)->warm_prev;

    SHOAL_ASSERT(*cursor != NULL || s->warm_last != NULL || s->warm_count == 0);
    if (a == NULL)
        return false;
    *cursor = a;
    return shoal_sched_archive_at(s, sched_archive_place_of(s, a->id), out);
}

struct shoal_job_id shoal_sched_archive_place(struct shoal_job_id id) { return sched_archive_kept_id(id); }

bool shoal_sched_archive_read(struct shoal_view kept, struct shoal_sched_archived *out)
{
    struct archive_record record;
    struct shoal_view bytes;
    size_t signed_len;
    bool final;

    SHOAL_ASSERT(out != NULL);
    if (sched_kept_decode(kept, &final, &bytes) != SHOAL_OK ||
        sched_archive_decode(bytes, &record, &signed_len) != SHOAL_OK)
        return false;
    *out = (struct shoal_sched_archived){
        .id = record.job, .final = final, .list = record.list, .facts = record.facts, .summary = record.summary
    };
    memcpy(out->user, record.user, sizeof(out->user));
    return true;
}

bool shoal_sched_archive_find(const struct shoal_sched *s, struct shoal_job_id id, struct shoal_sched_archived *out)
{
    size_t at = sched_archive_place_of(s, id);

    SHOAL_ASSERT(out != NULL);
    return at < s->archive_count && shoal_job_id_equal(s->archive[at]->id, id) && shoal_sched_archive_at(s, at, out);
}

bool shoal_sched_deleted_at(const struct shoal_sched *s, size_t i, struct shoal_job_id *id, uint64_t *since)
{
    SHOAL_ASSERT(s->gone_count <= SHOAL_SCHED_GONE_MAX); /* T3 */
    if (i >= s->gone_count)
        return false;
    *id = s->gone[i].id;
    *since = s->gone[i].why == GONE_DELETED ? s->gone[i].since : 0;
    return true;
}

size_t shoal_sched_archive_hosts(const struct shoal_sched *s, struct shoal_job_id id,
                                 struct shoal_node_id nodes[SHOAL_ARCHIVE_COPIES])
{
    return sched_archive_hosts(s, id, nodes);
}
