/* The archive: ended jobs leave their groups and live on as records (PROTOCOLS 3, 8).
 *
 *   the job's group                              the holders: the nearest SHOAL_ARCHIVE_COPIES hosts by its id
 *     | ended for archive_ns: the leader has its shell list what belongs to the job, as blobs, and signs a record
 *     | ------------------ TAKE(record) --------> | fetch every blob, flush, store the record: not final
 *     | <----------------- STATE(hash) ---------- |
 *     | all of them hold it: ARCHIVED(hash) into the log; committed: THE POINT OF NO RETURN
 *     | ------------------ HAVE(hash, final) ---> | final, stored
 *     | <----------------- STATE(hash, final) --- |
 *     | all of them said so: ENDED to the members, a tombstone into gossip; each member forgets the group
 *
 *   holder --HAVE(hash)--> the nearest hosts as it sees them, again and again: who lacks it is given it (TAKE), who has
 *   heard of its deletion says so (STATE deleted), and who is none of them any more lets go once all of them hold it.
 *
 * A1. Before ARCHIVED is committed the group decides: a record is a copy that answers only when gossip knows nothing of
 *     the job. A new leader begins anew, since others may hold a newer record than it does; of two the newer version
 *     stays, and who holds the other one is given it once each time that its holder looks.
 * A2. ARCHIVED names one record by its hash, and is proposed only when every holder has flushed record and blobs. From
 *     then on whoever leads does the rest, and only that; a crash in between is the next leader's beginning.
 * A3. A record becomes final by the word of the leader that has applied ARCHIVED, or of a holder to which it is final;
 *     a final one is never replaced.
 * A4. A member forgets the group only when told that it has ended, by its leader, by one that has forgotten it, or by a
 *     holder of the final record: so one that was away learns it from whomever it asks (G4), and does not campaign on.
 * A5. Deleted ids are remembered by every node that is told (sched_gone.c, T3), before the record goes. Whoever offers
 *     the record afterwards is answered with the deletion, so one that was away forgets it too.
 *     Whoever remembers one tells the host that comes back, too: the others that hold the record may have been away.
 *     Who was away too shortly to be missed is told some times more, for a minute.
 *     A leader that was elected where nobody had heard of the end hears it from a holder, and ends its group.
 * A6. A holder that is away keeps its place for replace_ns, or archive_ns if that is shorter; then the next nearest
 *     host takes it. A host that holds a record it should not hold lets go only when all that should hold it as final.
 * A7. A node takes SHOAL_ARCHIVE_RECORDS_MAX records, SHOAL_ARCHIVE_BYTES_MAX of them in memory, and none of others' jobs
 *     while its store keeps what is left for the jobs that run; a job that lacks a holder stays in its group.
 * A8. The newest final records, fewer than archive_warm_max, keep their bytes in memory. An older one is cold: a row of
 *     250 bytes, and its bytes in the store, with a mark in the hard state, which is all that an agent that starts reads
 *     of it. Who asks for it waits until it is loaded.
 * A9. Under pressure a job goes into the archive as soon as it has ended: while archive_early_max ended ones are led
 *     here.
 * A10. Of two sides of a partition only the one that hears a majority of the mesh group deletes from the archive, and
 *     answers linearizable reads: both may have holders. A deletion is acknowledged when a majority of the mesh group has
 *     stored it, and a linearizable read when another majority, asked for it, knows of none: hearing is known seconds too
 *     late. Others are still shown the record.
 * A11. What a leader does for its ended jobs it does at ticks of a quarter of a second, for all of them at once: their
 *     frames to a host are written together, and what each host stores of them is flushed together. */
#include "sched_archive.h"
#include "sched_archive_table.h"
#include "sched_group.h"
#include "sched_index.h"
#include "sched_node.h"
#include "sched_park.h"
#include "sched_request.h"
#include "sched_state.h"
#include "sched_store.h"

#include "shoal/banned.h"

#define LOOK_AWAY_NS (2 * SHOAL_S)
#define LOOK_IDLE_RECORD_NS (10 * SHOAL_MS) /* for each record that is here: a bounded share of a core */
#define LOOKS_TURN_MAX 64
#define LOOKS_MAX 6
#define FETCH_NS (120 * SHOAL_S)
#define TOLD_MAX 256     /* nodes that one deletion is told at once; the others hear of it when they offer the record */
#define TOLD_BACK_MAX 64 /* deletions that a host which comes back is told by each other one */
static const struct shoal_hash no_hash;

/* ---- Words ------------------------------------------------------------------------------------------------------- */

void sched_archive_say(struct shoal_sched *s, struct shoal_node_id to, enum archive_word word, struct shoal_job_id id,
                       struct shoal_hash hash, bool final)
{
    struct frame frame = { .kind = FRAME_ARCHIVE };

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    SHOAL_ASSERT(word < ARCHIVE_WORDS);
    if (sched_is_self(s, to))
        return;
    frame.u.archive.job = id;
    frame.u.archive.word = (uint8_t)word;
    frame.u.archive.hash = hash;
    frame.u.archive.final = final;
    sched_send(s, to, &frame);
}

static void give(struct shoal_sched *s, struct shoal_node_id to, const struct sched_archived *a)
{
    struct frame frame = { .kind = FRAME_ARCHIVE };

    SHOAL_ASSERT(a->body != NULL);    /* A8 */
    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    SHOAL_ASSERT(!sched_is_self(s, to));
    SHOAL_ASSERT(sched_archived_is_stored(a)); /* A2: what is given is durable here */
    frame.u.archive.job = a->id;
    frame.u.archive.word = ARCHIVE_TAKE;
    frame.u.archive.hash = a->hash;
    frame.u.archive.final = sched_archived_is_stored_final(a);
    frame.u.archive.record = shoal_buf_view(&a->body->bytes);
    sched_send(s, to, &frame);
}

/* This node holds it, as far as it is durable here. */
static void say_state(struct shoal_sched *s, struct shoal_node_id to, struct shoal_job_id id)
{
    struct frame frame = { .kind = FRAME_ARCHIVE };
    const struct sched_group *g = sched_group_find(s, id);
    const struct sched_archived *a = sched_archived_find(s, id);

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    if (sched_is_self(s, to))
        return;
    frame.u.archive.job = id;
    frame.u.archive.word = ARCHIVE_STATE;
    frame.u.archive.deleted = sched_gone_is_durable(s, id) || (g != NULL && g->job != NULL && g->job->deleted);
    if (sched_is_gone(s, id) && !frame.u.archive.deleted)
        return; /* in a moment: it is asked again */
    if (a != NULL && sched_archived_is_stored(a) && !frame.u.archive.deleted) {
        frame.u.archive.hash = a->hash;
        frame.u.archive.final = sched_archived_is_stored_final(a);
    }
    sched_send(s, to, &frame);
}

/* A5. */
void sched_archive_forget_deleted(struct shoal_sched *s, struct shoal_job_id id)
{
    struct sched_group *g = sched_group_find(s, id);
    struct sched_archived *a = sched_archived_find(s, id);

    if (!sched_is_gone(s, id)) {
        sched_gone_add(s, id, GONE_DELETED, no_hash);
        sched_gone_save(s);
    }
    if (a != NULL)
        sched_archived_drop(s, a);
    else
        sched_index_id(s, id);
    if (g == NULL)
        sched_gone_files(s, id); /* not before: T6 */
    else if (!g->leads) {
        g->told_elsewhere = true;
        sched_group_doom(s, g, 0, true);
    }
}

void sched_archive_tell_deleted(struct shoal_sched *s, struct shoal_job_id id)
{
    unsigned told = 0;

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    for (size_t i = 0; i < s->node_count && told < TOLD_MAX; i++) {
        const struct sched_node *node = &s->nodes[i];

        if (sched_is_self(s, node->info.id) || sched_node_is_gone(s, node))
            continue;
        sched_archive_say(s, node->info.id, ARCHIVE_DELETE, id, no_hash, false);
        told++;
    }
}

void sched_archive_tell_holders(struct shoal_sched *s, struct shoal_job_id id)
{
    struct shoal_node_id nodes[SHOAL_ARCHIVE_COPIES];
    size_t count = sched_archive_hosts(s, id, nodes);

    SHOAL_ASSERT(sched_gone_is_durable(s, id)); /* T6 */
    for (size_t i = 0; i < count; i++)
        sched_archive_say(s, nodes[i], ARCHIVE_DELETE, id, no_hash, false);
}

/* A host is there again: of the jobs that were deleted last it is told those whose record it may hold still. */
void sched_archive_tell_back(struct shoal_sched *s, struct shoal_node_id to)
{
    struct shoal_node_id nodes[SHOAL_ARCHIVE_COPIES];
    size_t first = s->gone_count > TOLD_BACK_MAX ? s->gone_count - TOLD_BACK_MAX : 0;

    for (size_t i = first; i < s->gone_count && sched_has_room(s); i++) {
        struct shoal_job_id id = s->gone[i].id;
        size_t count = sched_gone_is_durable(s, id) ? sched_archive_hosts(s, id, nodes) : 0; /* T6 */

        for (size_t n = 0; n < count; n++)
            if (shoal_node_id_equal(nodes[n], to))
                sched_archive_say(s, to, ARCHIVE_DELETE, id, no_hash, false);
    }
}

void sched_archive_deleted(struct shoal_sched *s, struct shoal_job_id id)
{
    struct sched_archived *a = sched_archived_find(s, id);

    if (a == NULL)
        return;
    if (!sched_is_gone(s, id)) {
        sched_gone_add(s, id, GONE_DELETED, no_hash);
        sched_gone_save(s);
    }
    sched_archived_drop(s, a);
    sched_gone_files(s, id);
    sched_gone_tell(s, id);
}

bool sched_archive_has_ended(const struct shoal_sched *s, struct shoal_job_id id)
{
    const struct sched_gone *gone = sched_gone_find(s, id);
    const struct sched_archived *a = sched_archived_find(s, id);

    return (a != NULL && a->final) || (gone != NULL && gone->why == GONE_ARCHIVED);
}

bool sched_archive_say_ended(struct shoal_sched *s, struct shoal_node_id to, struct shoal_job_id id)
{
    SHOAL_ASSERT(!sched_is_self(s, to));
    if (!sched_archive_has_ended(s, id))
        return false;
    sched_archive_say(s, to, ARCHIVE_ENDED, id, no_hash, true);
    return true;
}

void sched_archive_bury(struct shoal_sched *s, struct shoal_job_id id)
{
    struct shoal_sched_action *action = sched_act(s, SHOAL_SCHED_JOB_ARCHIVED);

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    action->u.group.group = id;
    action->u.group.keep = sched_archived_find(s, id) != NULL;
}

/* Not needed here any more: all that should hold it do. */
static void let_go(struct shoal_sched *s, struct sched_archived *a)
{
    struct shoal_job_id id = a->id;
    uint64_t spec_mark = a->spec_mark;

    SHOAL_ASSERT(a->host_count <= SHOAL_ARCHIVE_COPIES); /* A6 */
    SHOAL_ASSERT(sched_archived_find(s, a->id) == a);
    if (sched_archive_copy_at(a->hosts, a->host_count, s->self) != NULL || !a->final ||
        !sched_archive_all_hold(a->hosts, a->host_count, true))
        return;
    sched_archived_drop(s, a);
    if (sched_gone_find(s, id) == NULL && !sched_is_gone(s, id))
        sched_gone_archived(s, id, spec_mark); /* the record said until now that the group has ended */
    if (sched_group_find(s, id) == NULL)
        sched_archive_bury(s, id);
}

/* A5. Its record was committed here, and `from` should hold it: what it says of a deletion ends the group. */
static bool may_end_for(struct sched_group *g, struct shoal_node_id from)
{
    return g != NULL && g->leads && g->job != NULL && !shoal_hash_is_zero(g->job->archived) &&
           sched_archive_copy_at(g->archive_hosts, g->archive_host_count, from) != NULL;
}

static void on_state(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct shoal_job_id id = frame->u.archive.job;
    struct sched_group *g = sched_group_find(s, id);
    struct sched_archived *a = sched_archived_find(s, id);
    struct sched_held_record *copy;
    bool same;

    SHOAL_ASSERT(frame->kind == FRAME_ARCHIVE && frame->u.archive.word == ARCHIVE_STATE);
    sched_requests_deleted(s, from, id, frame->u.archive.deleted);
    if (frame->u.archive.deleted) {
        if (a != NULL || may_end_for(g, from))
            sched_archive_forget_deleted(s, id);
        if (g != NULL && g->leads)
            sched_group_dirty(s, g);
        return;
    }
    if (g != NULL && g->leads && g->job != NULL) {
        copy = sched_archive_copy_at(g->archive_hosts, g->archive_host_count, from);
        if (copy != NULL)
            copy->holds = copy->final =
                frame->u.archive.final && shoal_hash_equal(frame->u.archive.hash, g->job->archived);
        sched_group_dirty(s, g);
    }
    if (a == NULL)
        return;
    same = shoal_hash_equal(frame->u.archive.hash, a->hash);
    copy = sched_archive_copy_at(a->hosts, a->host_count, from);
    if (same) {
        if (frame->u.archive.final) /* A3 */
            sched_archived_make_final(s, a);
        if (copy != NULL) {
            copy->holds = true;
            copy->final = frame->u.archive.final;
        }
    } else if (frame->u.archive.final && !a->final) {
        sched_archived_drop(s, a); /* another one was committed; it comes to whom it should */
        sched_archive_unowned(s, id);
        return;
    } else if (copy != NULL && sched_archived_is_stored(a)) {
        copy->holds = copy->final = false;
        if (a->body != NULL && !copy->given) {
            copy->given = true;
            give(s, from, a);
        } else if (a->body == NULL) { /* it is given when the next look finds it missing */
            sched_archived_warm_up(s, a);
            a->looks = 1;
            sched_archived_look_at(s, a, s->now + ARCHIVE_LOOK_NS);
        }
    }
    let_go(s, a);
}

/* A1. Of two records of one version one stays, too, and the same one everywhere. */
static bool is_newer(const struct archive_record *record, struct shoal_hash hash, const struct sched_archived *than)
{
    int order = shoal_sched_version_cmp(record->version, than->body->record.version);

    SHOAL_ASSERT(!than->final);       /* A3 */
    SHOAL_ASSERT(than->body != NULL); /* A8: cold ones are final */
    return order > 0 || (order == 0 && memcmp(hash.bytes, than->hash.bytes, sizeof(hash.bytes)) > 0);
}

static void fetch(struct shoal_sched *s, struct sched_archived *a, struct shoal_node_id from)
{
    struct shoal_sched_action *action;

    SHOAL_ASSERT(a->state == ARCHIVED_NEW); /* A3 */
    SHOAL_ASSERT(s->actions != NULL);       /* within a step */
    SHOAL_ASSERT(a->body != NULL);          /* A8 */
    a->from = from;
    a->drop_ns = s->now + FETCH_NS;
    if (shoal_hash_is_zero(a->body->record.list)) {
        sched_archived_move(a, ARCHIVED_WRITING);
        sched_archived_keep(s, a);
        return;
    }
    sched_archived_move(a, ARCHIVED_FETCHING);
    action = sched_act(s, SHOAL_SCHED_ARCHIVE_FETCH);
    action->u.archive.job = a->id;
    action->u.archive.list = a->body->record.list;
    memcpy(action->u.archive.user, a->body->record.user, sizeof(action->u.archive.user));
    action->u.archive.sources[action->u.archive.source_count++] = from;
    for (unsigned i = 0; i < a->body->record.guardian_count && action->u.archive.source_count < SHOAL_SCHED_SOURCES_MAX;
         i++)
        if (!sched_is_self(s, a->body->record.guardians[i]) && !shoal_node_id_equal(a->body->record.guardians[i], from))
            action->u.archive.sources[action->u.archive.source_count++] = a->body->record.guardians[i];
}

static bool is_genuine(const struct shoal_sched *s, const struct archive_record *record, struct shoal_view bytes,
                       size_t signed_len)
{
    const struct shoal_sched_env *env = &s->options.env;

    SHOAL_ASSERT(signed_len <= bytes.len);
    return env->verify(env->arg, record->key, shoal_view_of(bytes.bytes, signed_len), record->signature);
}

static enum shoal_err on_take(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct shoal_view bytes = frame->u.archive.record;
    struct shoal_job_id id = frame->u.archive.job;
    struct sched_archived *a = sched_archived_find(s, id);
    struct archive_record record;
    struct shoal_hash hash = sched_hash(s, bytes);
    size_t signed_len;
    enum shoal_err err = sched_archive_decode(bytes, &record, &signed_len);

    SHOAL_ASSERT(frame->kind == FRAME_ARCHIVE && frame->u.archive.word == ARCHIVE_TAKE);
    if (err != SHOAL_OK || !shoal_job_id_equal(record.job, id) || !is_genuine(s, &record, bytes, signed_len))
        return SHOAL_ERR_MALFORMED;
    if (sched_is_gone(s, id)) {
        say_state(s, from, id);
        return SHOAL_OK;
    }
    if (a != NULL && shoal_hash_equal(a->hash, hash)) {
        if (!sched_archived_is_stored(a))
            a->from = from;
        if (frame->u.archive.final)
            sched_archived_make_final(s, a);
        if (sched_archived_is_stored(a))
            say_state(s, from, id);
        return SHOAL_OK;
    }
    if (a != NULL && (a->final || (!frame->u.archive.final && !is_newer(&record, hash, a)))) {
        say_state(s, from, id);
        return SHOAL_OK;
    }
    if (a != NULL)
        sched_archived_drop(s, a);
    if (s->store_percent >= SHOAL_STORE_SUBMIT_PERCENT && sched_group_find(s, id) == NULL) {
        s->stats.archive_refused_full++;
        return SHOAL_OK;
    }
    a = sched_archived_add(s, id, bytes);
    if (a == NULL)
        return SHOAL_OK; /* A7: it is not said to be held */
    a->final = frame->u.archive.final;
    fetch(s, a, from);
    return SHOAL_OK;
}

/* A4. A member, or who should hold the record. */
static bool may_say_ended(struct shoal_sched *s, const struct sched_group *g, struct shoal_node_id from)
{
    struct shoal_node_id holders[SHOAL_ARCHIVE_COPIES];
    size_t count = sched_archive_hosts(s, g->id, holders);

    SHOAL_ASSERT(count <= SHOAL_ARCHIVE_COPIES);
    for (size_t i = 0; i < count; i++)
        if (shoal_node_id_equal(holders[i], from))
            return true;
    if (sched_may_say_gone(s, g, from))
        return true;
    s->stats.gone_refused++;
    return false;
}

static void on_ended(struct shoal_sched *s, struct shoal_node_id from, struct shoal_job_id id)
{
    struct sched_group *g = sched_group_find(s, id);

    SHOAL_ASSERT(s->restored);
    if (g == NULL)
        (void)sched_park_wake(s, id); /* awake, it asks whether it is a member still */
    if (g == NULL || g->mesh_is || sched_group_decides(g) || !may_say_ended(s, g, from))
        return;
    g->gone_archived = true; /* A4 */
    g->told_elsewhere = g->leads || !shoal_node_id_equal(from, g->leader);
    sched_group_doom(s, g, 0, false);
}

enum shoal_err sched_on_archive(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct shoal_job_id id = frame->u.archive.job;
    struct sched_archived *a;

    SHOAL_ASSERT(frame->kind == FRAME_ARCHIVE);
    SHOAL_ASSERT(!sched_is_self(s, from)); /* on_frame() has looked */
    if (!s->restored || shoal_job_id_is_mesh(id))
        return SHOAL_OK; /* what is stored comes first; the sender repeats */
    switch ((enum archive_word)frame->u.archive.word) {
    case ARCHIVE_HAVE:
        a = sched_archived_find(s, id);
        if (a != NULL && frame->u.archive.final && shoal_hash_equal(a->hash, frame->u.archive.hash))
            sched_archived_make_final(s, a);
        say_state(s, from, id);
        break;
    case ARCHIVE_TAKE: return on_take(s, from, frame);
    case ARCHIVE_STATE: on_state(s, from, frame); break;
    case ARCHIVE_DELETE:
        if (!sched_is_gone(s, id) || sched_archived_find(s, id) != NULL)
            sched_archive_forget_deleted(s, id);
        say_state(s, from, id);
        break;
    case ARCHIVE_ENDED: on_ended(s, from, id); break;
    case ARCHIVE_WORDS: break;
    }
    return SHOAL_OK;
}

void sched_archive_unowned(struct shoal_sched *s, struct shoal_job_id id)
{
    if (sched_archived_find(s, id) != NULL || sched_group_find(s, id) != NULL)
        return;
    if (sched_is_gone(s, id))
        sched_gone_files(s, id); /* the deletion was faster than the blobs */
    else
        sched_archive_bury(s, id);
}

void sched_archive_fetched(struct shoal_sched *s, const struct shoal_sched_event *event)
{
    struct shoal_job_id id = event->u.archive.job;
    struct sched_archived *a = sched_archived_find(s, id);

    SHOAL_ASSERT(event->kind == SHOAL_SCHED_ARCHIVE_FETCHED);
    if (event->u.archive.ok)
        sched_archive_unowned(s, id);
    if (a == NULL || a->state != ARCHIVED_FETCHING || !shoal_hash_equal(a->body->record.list, event->u.archive.list))
        return;
    if (!event->u.archive.ok) {
        sched_archived_drop(s, a); /* offered again */
        return;
    }
    sched_archived_move(a, ARCHIVED_WRITING);
    a->drop_ns = SCHED_NEVER;
    sched_archived_keep(s, a);
}

void sched_archive_stored(struct shoal_sched *s, struct shoal_job_id id, struct shoal_sched_mark mark)
{
    struct sched_archived *a = sched_archived_find(s, id);
    struct sched_group *g = sched_group_find(s, id);

    if (a == NULL || a->written == 0 || mark.seq < a->written)
        return; /* of one that was dropped since */
    if (!sched_archived_is_stored(a))
        a->since = ++s->archive_version;
    if (a->state < ARCHIVED_FINAL && a->final_write != 0 && mark.seq >= a->final_write) {
        sched_archived_move(a, ARCHIVED_FINAL);
        a->since = ++s->archive_version;
        sched_archived_warm_put(s, a);
    } else if (a->state == ARCHIVED_WRITING) {
        sched_archived_move(a, ARCHIVED_HELD);
    }
    sched_index_id(s, id);
    s->stats.archive_records++;
    if (!shoal_node_id_is_zero(a->from))
        say_state(s, a->from, id);
    sched_archived_look_at(s, a, s->now);
    if (g != NULL && g->leads)
        sched_group_dirty(s, g);
}

/* ---- Looking after ----------------------------------------------------------------------------------------------- */

/* False: it is no more. */
static bool look(struct shoal_sched *s, struct sched_archived *a)
{
    bool missing = false;
    bool away = false;
    uint64_t wait_ns;

    SHOAL_ASSERT(a->heap_at < s->archive_count);
    SHOAL_ASSERT(a->looks <= LOOKS_MAX);
    if (sched_archived_must_write(a))
        sched_archived_keep(s, a);
    if (!sched_archived_is_stored(a) && s->now >= a->drop_ns) {
        sched_archived_drop(s, a);
        return false;
    }
    if (!sched_archived_is_stored(a)) {
        sched_archived_look_at(s, a, s->now + LOOK_AWAY_NS);
        return true;
    }
    a->host_count = sched_archive_hosts_update(s, a->id, a->hosts, a->host_count);
    for (unsigned i = 0; i < a->host_count; i++) {
        struct sched_held_record *copy = &a->hosts[i];
        const struct sched_node *node = sched_node_find(s, copy->node);

        if (sched_is_self(s, copy->node)) {
            copy->holds = true;
            copy->final = sched_archived_is_stored_final(a);
        } else {
            copy->given = false;
            missing = missing || !copy->holds || (a->final && !copy->final);
            sched_archive_say(s, copy->node, ARCHIVE_HAVE, a->id, a->hash, sched_archived_is_stored_final(a));
        }
        away = away || node == NULL || node->info.state != SHOAL_SCHED_NODE_ALIVE;
    }
    /* Whether its group has ended, and how, its guardians know. */
    for (unsigned i = 0; !a->final && i < a->body->record.guardian_count; i++)
        if (sched_archive_copy_at(a->hosts, a->host_count, a->body->record.guardians[i]) == NULL)
            sched_archive_say(s, a->body->record.guardians[i], ARCHIVE_HAVE, a->id, a->hash, false);
    if (!missing && a->final)
        a->looks = 0;
    else if (a->looks < LOOKS_MAX)
        a->looks++;
    wait_ns =
        a->looks == 0 ? ARCHIVE_LOOK_IDLE_NS + s->archive_count * LOOK_IDLE_RECORD_NS : ARCHIVE_LOOK_NS << a->looks;
    if (away && wait_ns > LOOK_AWAY_NS)
        wait_ns = LOOK_AWAY_NS;
    if (sched_archive_copy_at(a->hosts, a->host_count, s->self) == NULL && wait_ns > LOOK_AWAY_NS)
        wait_ns = LOOK_AWAY_NS; /* to let go of it */
    sched_archived_look_at(s, a, s->now + wait_ns - wait_ns / 4 + shoal_rand_below(&s->chance, wait_ns / 4 + 1));
    return true;
}

void sched_archive_due(struct shoal_sched *s)
{
    SHOAL_ASSERT(s->actions != NULL);                            /* within a step */
    SHOAL_ASSERT(s->archive_count <= SHOAL_ARCHIVE_RECORDS_MAX); /* A7 */
    for (unsigned i = 0; i < LOOKS_TURN_MAX && s->archive_count > 0 && s->now >= s->archive_heap[0]->look_ns; i++) {
        struct sched_archived *a = s->archive_heap[0];

        if (!sched_has_room(s)) {
            s->more = true;
            return;
        }
        if (look(s, a))
            SHOAL_ASSERT(a->look_ns > s->now); /* the end of upkeep */
    }
    sched_archive_cool_some(s);
}

void sched_archive_nodes(struct shoal_sched *s)
{
    uint64_t spread_ns = SHOAL_S + s->archive_count * ARCHIVE_LOOK_NODES_RECORD_NS;

    SHOAL_ASSERT(s->archive_count <= SHOAL_ARCHIVE_RECORDS_MAX); /* A7 */
    for (size_t i = 0; i < s->archive_count; i++) {
        uint64_t soon = s->now + ARCHIVE_LOOK_NS + shoal_rand_below(&s->chance, spread_ns);

        s->archive[i]->looks = 1;
        if (s->archive[i]->look_ns > soon)
            sched_archived_look_at(s, s->archive[i], soon);
    }
}
