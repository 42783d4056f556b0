/* Ids that are gone for good on this node, and what goes with them.
 *
 * T3. Removed and refused ids are remembered, oldest forgotten first; an id not newer than the newest forgotten counts
 *     as gone (PROTOCOLS 2.3). Of deleted jobs a million are known beyond these (sched_shelf.c). They lie in the store as a group whose id is all ones: a removal writes an entry of what it
 *     adds, GONE_PIECES of them are followed by a snapshot of all. An id from a clock that was ahead, by its time, moves
 *     no horizon, and such a horizon from before bars nothing: else it would bar every id until that time comes.
 * T4. A group that has moved to other guardians is remembered too, before it is forgotten: a vote, or a founding record
 *     taken again, by a node that has forgotten its log would let an old configuration come back to life beside the new
 *     one.
 * T5. With the term and the end of the log that it forgot: as a member once more it votes as if it had them still.
 * T6. Files of a deleted job go, and others are told of the deletion, after its id is durable as gone. A host that loses
 *     its power in between has its record again: it would say that it holds the blobs, and others that there is no such
 *     job. */
#include "sched_store.h"
#include "sched_archive_table.h"
#include "sched_group.h"
#include "sched_request.h"
#include "sched_state.h"

#include "shoal/banned.h"

#define TELL_AGAIN_NS (2 * SHOAL_S)
#define TELLS_AGAIN 5
#define GONE_FORMAT 2 /* 1: without the archive */
#define GONE_PIECE_FORMAT 1
#define GONE_PIECES 256u               /* entries between two snapshots */
#define GONE_AHEAD_MS (3600 * 1000ull) /* PROTOCOLS 2.3 */

static const struct shoal_job_id gone_group = { { 255, 255, 255, 255, 255, 255, 255, 255, 255, 255 } };

/* ---- From the store, at the start ---- */

bool sched_id_is_ahead(const struct shoal_sched *s, struct shoal_job_id id)
{
    return shoal_job_id_ms(id) > s->wall_ms + GONE_AHEAD_MS;
}

bool sched_gone_is_forgotten(const struct shoal_sched *s, struct shoal_job_id id)
{
    return shoal_job_id_cmp(id, s->gone_horizon) <= 0 && !sched_id_is_ahead(s, s->gone_horizon);
}

/* T6: nothing is left to be done of it. It may still be told again, to hosts that ask anyway. */
static bool may_shelve(const struct shoal_sched *s, const struct sched_gone *gone)
{
    return gone->why == GONE_DELETED && !shoal_job_id_is_mesh(gone->id) && !gone->files && !gone->tell &&
           gone->written <= s->gone_durable;
}

/* T7. The quarter of the table that was deleted first leaves it. */
static void shelve(struct shoal_sched *s)
{
    struct shoal_job_id ids[SHOAL_SCHED_SHELF_IDS];
    size_t most = (s->options.gone_max + 3) / 4;
    size_t count = 0, kept = 0, left;

    for (size_t i = 0; i < s->gone_count && count < most; i++)
        if (may_shelve(s, &s->gone[i]))
            ids[count++] = s->gone[i].id;
    if (count == 0 || !sched_shelf_put(s, ids, count))
        return;
    left = count;
    for (size_t i = 0; i < s->gone_count; i++) {
        if (left > 0 && may_shelve(s, &s->gone[i]))
            left--;
        else
            s->gone[kept++] = s->gone[i];
    }
    SHOAL_ASSERT(left == 0);
    s->gone_count = kept;
    s->gone_pieces = GONE_PIECES; /* the table without them is written next */
}

/* The place of the id, or the end of the list; the one that was removed first makes room, by the clock's order: not one
 * of a time to come, while there is another. */
static struct sched_gone *gone_place(struct shoal_sched *s, struct shoal_job_id id)
{
    struct sched_gone *gone = sched_gone_find(s, id);
    size_t first =
        s->gone_count > 0 && shoal_job_id_is_mesh(s->gone[0].id) ? 1 : 0; /* of which there is one, for ever */
    size_t oldest = first;

    SHOAL_ASSERT(s->gone_count <= SHOAL_SCHED_GONE_MAX); /* T3 */
    if (gone != NULL)
        return gone;
    if (s->gone_count == s->options.gone_max && s->restored)
        shelve(s);
    if (s->gone_count < s->options.gone_max)
        return &s->gone[s->gone_count++];
    while (oldest < s->gone_count && sched_id_is_ahead(s, s->gone[oldest].id))
        oldest++;
    if (oldest == s->gone_count)
        oldest = first;
    else if (s->restored && shoal_job_id_cmp(s->gone[oldest].id, s->gone_horizon) > 0)
        s->gone_horizon = s->gone[oldest].id;
    memmove(&s->gone[oldest], &s->gone[oldest + 1], (s->gone_count - 1 - oldest) * sizeof(s->gone[0]));
    return &s->gone[s->gone_count - 1];
}

static void gone_restore(struct shoal_sched *s, struct shoal_view bytes)
{
    struct shoal_reader r = shoal_reader_init(bytes);
    uint8_t format = shoal_get_u8(&r);
    uint32_t count;

    if (format == 0 || format > GONE_FORMAT)
        return;
    s->gone_count = 0;
    s->gone_version = s->gone_durable = shoal_get_u64(&r);
    s->gone_horizon = shoal_get_job_id(&r);
    count = shoal_get_u32(&r);
    for (uint32_t i = 0; i < count && i < s->options.gone_max && !r.failed; i++) {
        struct sched_gone *gone = &s->gone[s->gone_count++];

        *gone = (struct sched_gone){ .id = shoal_get_job_id(&r) };
        gone->why = shoal_get_enum(&r, GONE_WHYS);
        gone->spec_mark = format == 1 ? 0 : shoal_get_u64(&r);
    }
    count = shoal_reader_left(&r) == 0 ? 0 : shoal_get_u32(&r); /* written by versions that kept no floors */
    for (uint32_t i = 0; i < count && !r.failed; i++) {
        uint32_t at = shoal_get_u32(&r);
        struct shoal_raft_floor floor = { .term = shoal_get_u64(&r) };

        floor.last_term = shoal_get_u64(&r);
        floor.last_index = shoal_get_u64(&r);
        if (!r.failed && at < s->gone_count)
            s->gone[at].floor = floor;
    }
    if (r.failed) /* damaged: nothing of it is believed */
        s->gone_count = 0;
}

static void gone_put(struct shoal_writer *w, const struct sched_gone *gone)
{
    SHOAL_ASSERT(gone->why < GONE_WHYS);
    shoal_put_job_id(w, gone->id);
    shoal_put_u8(w, gone->why);
    shoal_put_u64(w, gone->spec_mark);
    shoal_put_u64(w, gone->floor.term);
    shoal_put_u64(w, gone->floor.last_term);
    shoal_put_u64(w, gone->floor.last_index);
}

static struct sched_gone gone_get(struct shoal_reader *r)
{
    struct sched_gone gone = { .id = shoal_get_job_id(r) };

    gone.why = shoal_get_enum(r, GONE_WHYS);
    gone.spec_mark = shoal_get_u64(r);
    gone.floor.term = shoal_get_u64(r);
    gone.floor.last_term = shoal_get_u64(r);
    gone.floor.last_index = shoal_get_u64(r);
    return gone;
}

/* T3. What one removal has added. */
static void gone_replay(struct shoal_sched *s, const struct shoal_sched_entry *entry)
{
    struct shoal_reader r = shoal_reader_init(entry->bytes);
    uint8_t format = shoal_get_u8(&r);
    struct shoal_job_id horizon = shoal_get_job_id(&r);
    uint32_t count = shoal_get_u32(&r);

    SHOAL_ASSERT(!s->restored); /* at the start */
    if (r.failed || format != GONE_PIECE_FORMAT || entry->index <= s->gone_version)
        return;
    s->gone_horizon = horizon;
    for (uint32_t i = 0; i < count && !r.failed; i++) {
        struct sched_gone gone = gone_get(&r);

        if (!r.failed)
            *gone_place(s, gone.id) = gone;
    }
    s->gone_version = s->gone_durable = entry->index;
    s->gone_pieces++;
}

bool sched_gone_restore(struct shoal_sched *s, const struct shoal_sched_event *event)
{
    SHOAL_ASSERT(event->kind == SHOAL_SCHED_RESTORE);
    if (sched_is_shelf(event->u.restore.group)) {
        sched_shelf_restore(s, event);
        return true;
    }
    if (!shoal_job_id_equal(event->u.restore.group, gone_group))
        return false;
    if (event->u.restore.has_snapshot)
        gone_restore(s, event->u.restore.snapshot.bytes);
    for (size_t i = 0; i < event->u.restore.entry_count; i++)
        gone_replay(s, &event->u.restore.entries[i]);
    return true;
}

/* ---- In memory, and into the store ---- */

struct sched_gone *sched_gone_find(const struct shoal_sched *s, struct shoal_job_id id)
{
    SHOAL_ASSERT(s->gone_count <= SHOAL_SCHED_GONE_MAX); /* T3 */
    for (size_t i = s->gone_count; i > 0; i--) {
        if (shoal_job_id_equal(s->gone[i - 1].id, id))
            return &s->gone[i - 1];
    }
    return NULL;
}

bool sched_is_gone(const struct shoal_sched *s, struct shoal_job_id id)
{
    const struct sched_gone *gone = sched_gone_find(s, id);

    SHOAL_ASSERT(s->gone_count <= SHOAL_SCHED_GONE_MAX); /* T3 */
    return (gone != NULL && gone->why == GONE_DELETED) || sched_shelf_has(s, id);
}

bool sched_may_found(const struct shoal_sched *s, struct shoal_job_id id)
{
    SHOAL_ASSERT(s->gone_count <= SHOAL_SCHED_GONE_MAX); /* T3 */
    return !sched_gone_is_forgotten(s, id) && sched_gone_find(s, id) == NULL &&
           !sched_shelf_has(s, id) && !sched_archive_holds(s, id); /* T3, T4 */
}

bool sched_gone_is_durable(const struct shoal_sched *s, struct shoal_job_id id)
{
    const struct sched_gone *gone = sched_gone_find(s, id);

    SHOAL_ASSERT(s->gone_durable <= s->gone_version); /* T3 */
    return sched_shelf_has(s, id) || (gone != NULL && gone->why == GONE_DELETED && gone->written != UINT64_MAX &&
                                      gone->written <= s->gone_durable);
}

uint64_t sched_spec_mark(struct shoal_hash spec_hash)
{
    uint64_t mark = 0;

    for (unsigned i = 0; i < 8; i++)
        mark = mark << 8 | spec_hash.bytes[i];
    return mark;
}

/* Deleted stays so; what has moved may end in the archive, and be deleted there. */
static bool says_more(enum gone_why old, enum gone_why why)
{
    SHOAL_ASSERT(old < GONE_WHYS && why < GONE_WHYS);
    return why != old && (why == GONE_DELETED || old == GONE_MOVED);
}

void sched_gone_add(struct shoal_sched *s, struct shoal_job_id id, enum gone_why why, struct shoal_hash spec_hash)
{
    struct sched_gone *gone = sched_gone_find(s, id);

    SHOAL_ASSERT(why < GONE_WHYS);
    if (why == GONE_DELETED && (gone == NULL || gone->why != GONE_DELETED))
        s->archive_version++;
    if (gone != NULL) {
        if (says_more((enum gone_why)gone->why, why))
            *gone = (struct sched_gone){ .id = id,
                                         .why = (uint8_t)why,
                                         .spec_mark = sched_spec_mark(spec_hash),
                                         .written = UINT64_MAX,
                                         .since = s->archive_version };
        s->gone_dirty = true;
        return;
    }
    *gone_place(s, id) = (struct sched_gone){ .id = id,
                                              .why = (uint8_t)why,
                                              .spec_mark = sched_spec_mark(spec_hash),
                                              .written = UINT64_MAX,
                                              .since = s->archive_version };
    s->gone_dirty = true;
}

void sched_gone_archived(struct shoal_sched *s, struct shoal_job_id id, uint64_t spec_mark)
{
    struct shoal_hash spec_hash = { { 0 } };

    SHOAL_ASSERT(sched_gone_find(s, id) == NULL);
    for (unsigned i = 0; i < 8; i++)
        spec_hash.bytes[i] = (uint8_t)(spec_mark >> (56 - 8 * i));
    sched_gone_add(s, id, GONE_ARCHIVED, spec_hash);
    sched_gone_save(s);
}

void sched_gone_keep_floor(struct shoal_sched *s, const struct sched_group *g)
{
    struct sched_gone *gone = sched_gone_find(s, g->id);

    SHOAL_ASSERT(g->raft != NULL); /* T5 */
    if (gone != NULL)
        gone->floor = gone->why == GONE_MOVED ? shoal_raft_floor(g->raft) : (struct shoal_raft_floor){ 0 };
    SHOAL_ASSERT(gone == NULL || gone->why != GONE_MOVED ||
                 gone->floor.term == shoal_raft_floor(g->raft).term); /* T5 */
}

void sched_gone_set_floor(struct shoal_sched *s, struct sched_group *g)
{
    const struct sched_gone *gone = sched_gone_find(s, g->id);

    SHOAL_ASSERT(g->raft != NULL); /* T5 */
    if (gone != NULL && gone->floor.term > 0)
        shoal_raft_set_floor(g->raft, gone->floor);
}

/* Writes what was added since the last write, as one entry. False: no room for it in this step. */
static bool save_piece(struct shoal_sched *s)
{
    struct shoal_sched_action *action;
    struct shoal_writer w;
    uint32_t count = 0;
    uint8_t *bytes;

    for (size_t i = 0; i < s->gone_count; i++)
        count += s->gone[i].written == UINT64_MAX ? 1 : 0;
    if (count > GONE_PIECES || s->actions->entry_count >= SHOAL_SCHED_ENTRIES_MAX)
        return false;
    bytes = sched_pool(s, 32 + count * sizeof(struct sched_gone), 0);
    if (bytes == NULL)
        return false;
    w = shoal_writer_init(bytes, 32 + count * sizeof(struct sched_gone));
    shoal_put_u8(&w, GONE_PIECE_FORMAT);
    shoal_put_job_id(&w, s->gone_horizon);
    shoal_put_u32(&w, count);
    s->gone_version++;
    for (size_t i = 0; i < s->gone_count; i++) {
        if (s->gone[i].written != UINT64_MAX)
            continue;
        gone_put(&w, &s->gone[i]);
        s->gone[i].written = s->gone_version;
    }
    SHOAL_ASSERT(!w.failed);
    action = sched_act(s, SHOAL_SCHED_PERSIST);
    action->u.persist.group = gone_group;
    action->u.persist.mark = (struct shoal_sched_mark){ .seq = s->gone_version, .index = s->gone_version, .term = 1 };
    action->u.persist.entries = &s->actions->entries[s->actions->entry_count];
    action->u.persist.entry_count = 1;
    s->actions->entries[s->actions->entry_count++] = (struct shoal_sched_entry){
        .index = s->gone_version, .term = 1, .kind = SHOAL_ENTRY_USER, .bytes = shoal_writer_view(&w)
    };
    s->held[s->held_count++] = NULL; /* one for each entry */
    s->gone_pieces++;
    return true;
}

/* One write for all that were removed in this step. */
void sched_gone_save(struct shoal_sched *s)
{
    struct shoal_sched_action *action;
    struct shoal_writer w;
    uint32_t floors = 0;

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    s->gone_dirty = false;
    if (s->gone_pieces < GONE_PIECES && save_piece(s))
        return;
    if (shoal_buf_reserve(&s->gone_bytes, 64 + s->options.gone_max * sizeof(struct sched_gone)) != SHOAL_OK)
        return; /* not remembered beyond this life; the next removal writes all of them */
    s->gone_pieces = 0;
    w = shoal_writer_init(s->gone_bytes.bytes, s->gone_bytes.cap);
    shoal_put_u8(&w, GONE_FORMAT);
    shoal_put_u64(&w, ++s->gone_version);
    shoal_put_job_id(&w, s->gone_horizon);
    shoal_put_u32(&w, (uint32_t)s->gone_count);
    for (size_t i = 0; i < s->gone_count; i++) {
        shoal_put_job_id(&w, s->gone[i].id);
        shoal_put_u8(&w, s->gone[i].why);
        shoal_put_u64(&w, s->gone[i].spec_mark);
        if (s->gone[i].written == UINT64_MAX)
            s->gone[i].written = s->gone_version;
        floors += s->gone[i].floor.term > 0;
    }
    shoal_put_u32(&w, floors);
    for (size_t i = 0; i < s->gone_count; i++) {
        const struct shoal_raft_floor *floor = &s->gone[i].floor;

        if (floor->term == 0)
            continue;
        shoal_put_u32(&w, (uint32_t)i);
        shoal_put_u64(&w, floor->term);
        shoal_put_u64(&w, floor->last_term);
        shoal_put_u64(&w, floor->last_index);
    }
    SHOAL_ASSERT(!w.failed);
    s->gone_bytes.len = w.len;
    action = sched_act(s, SHOAL_SCHED_PERSIST);
    action->u.persist.group = gone_group;
    action->u.persist.mark = (struct shoal_sched_mark){ .seq = s->gone_version, .index = s->gone_version, .term = 1 };
    action->u.persist.has_snapshot = true;
    action->u.persist.snapshot.index = s->gone_version;
    action->u.persist.snapshot.term = 1;
    /* Another removal in this step writes a longer list: each action has its own bytes. */
    action->u.persist.snapshot.bytes = sched_pool_copy(s, shoal_buf_view(&s->gone_bytes));
}

/* Of a deleted job; from the shelf it comes back into the table. */
static struct sched_gone *gone_again(struct shoal_sched *s, struct shoal_job_id id)
{
    const struct shoal_hash no_hash = { { 0 } };

    if (sched_gone_find(s, id) == NULL && sched_shelf_has(s, id))
        sched_gone_add(s, id, GONE_DELETED, no_hash);
    return sched_gone_find(s, id);
}

void sched_gone_files(struct shoal_sched *s, struct shoal_job_id id)
{
    struct sched_gone *gone = gone_again(s, id);

    SHOAL_ASSERT(gone != NULL && gone->why == GONE_DELETED); /* T6 */
    gone->files = true;
    s->gone_due = true;
}

void sched_gone_tell(struct shoal_sched *s, struct shoal_job_id id)
{
    struct sched_gone *gone = gone_again(s, id);

    SHOAL_ASSERT(gone != NULL && gone->why == GONE_DELETED); /* T6 */
    gone->tell = true;
    s->gone_due = true;
}

/* A5: 2, 4, 8, 16 and 32 s after each other. */
static void tell_again(struct shoal_sched *s, struct sched_gone *gone)
{
    SHOAL_ASSERT(gone->why == GONE_DELETED);
    gone->tell_ns = gone->told < TELLS_AGAIN ? s->now + (TELL_AGAIN_NS << gone->told) : 0;
    gone->told++;
    if (gone->tell_ns != 0 && gone->tell_ns < s->gone_tell_ns)
        s->gone_tell_ns = gone->tell_ns;
}

static void carry_out(struct shoal_sched *s)
{
    s->gone_due = false;
    for (size_t i = 0; i < s->gone_count; i++) {
        struct sched_gone *gone = &s->gone[i];

        if ((!gone->files && !gone->tell) || gone->written > s->gone_durable)
            continue;
        if (!sched_has_room(s)) {
            s->gone_due = s->more = true;
            return;
        }
        if (gone->files)
            sched_act(s, SHOAL_SCHED_JOB_DELETED)->u.group.group = gone->id;
        if (gone->tell) {
            sched_archive_tell_deleted(s, gone->id);
            tell_again(s, gone);
        }
        gone->files = gone->tell = false;
    }
}

static void tell_some_again(struct shoal_sched *s)
{
    s->gone_tell_ns = SCHED_NEVER;
    for (size_t i = 0; i < s->gone_count; i++) {
        struct sched_gone *gone = &s->gone[i];

        if (gone->tell_ns == 0)
            continue;
        if (s->now >= gone->tell_ns && sched_has_room(s)) {
            sched_archive_tell_holders(s, gone->id);
            tell_again(s, gone);
        } else if (gone->tell_ns < s->gone_tell_ns) {
            s->more = s->more || s->now >= gone->tell_ns;
            s->gone_tell_ns = gone->tell_ns;
        }
    }
}

void sched_gone_settle(struct shoal_sched *s)
{
    if (s->gone_dirty)
        sched_gone_save(s);
    if (s->gone_due)
        carry_out(s);
    if (s->now >= s->gone_tell_ns)
        tell_some_again(s);
}

bool sched_gone_stored(struct shoal_sched *s, struct shoal_job_id group, struct shoal_sched_mark mark)
{
    SHOAL_ASSERT(s->gone_count <= SHOAL_SCHED_GONE_MAX); /* T3 */
    if (sched_is_shelf(group))
        return true;
    if (!shoal_job_id_equal(group, gone_group))
        return false;
    if (mark.seq > s->gone_durable)
        s->gone_durable = mark.seq;
    s->gone_due = true;
    sched_requests_deleted(s, s->self, (struct shoal_job_id){ { 0 } }, false);
    return true;
}
