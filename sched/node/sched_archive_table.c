/* The archive's table of records: in memory, warm or cold, and in the store (sched_archive.c has the rules). */
#include "sched_archive_table.h"
#include "sched_archive.h"
#include "sched_index.h"
#include "sched_request.h"
#include "sched_state.h"
#include "sched_store.h"

#include "shoal/banned.h"

#define KEPT_BIT 0x80         /* no job's id has it before the year 2248: 44 bits of milliseconds */
#define STAY_NS (5 * SHOAL_S) /* so long a record that was loaded is there for whoever asked */

/* ---- The table --------------------------------------------------------------------------------------------------- */

size_t sched_archive_place_of(const struct shoal_sched *s, struct shoal_job_id id)
{
    size_t low = 0;
    size_t high = s->archive_count;

    SHOAL_ASSERT(s->archive_count <= s->archive_cap || s->archive_count == 0);
    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (shoal_job_id_cmp(s->archive[mid]->id, id) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

struct sched_archived *sched_archived_find(const struct shoal_sched *s, struct shoal_job_id id)
{
    size_t at = sched_archive_place_of(s, id);

    SHOAL_ASSERT(s->archive_count <= SHOAL_ARCHIVE_RECORDS_MAX); /* A7 */
    return at < s->archive_count && shoal_job_id_equal(s->archive[at]->id, id) ? s->archive[at] : NULL;
}

#define BIT(state) (1u << (state))

/* Bit N of a row says that a record in this state may become one in state N. */
static const unsigned archived_moves[ARCHIVED_STATES] = {
    [ARCHIVED_NEW] = BIT(ARCHIVED_FETCHING) | BIT(ARCHIVED_WRITING) | /* offered by another node, or made here */
                     BIT(ARCHIVED_HELD) | BIT(ARCHIVED_FINAL) | BIT(ARCHIVED_COLD), /* found in the store */
    [ARCHIVED_FETCHING] = BIT(ARCHIVED_WRITING),
    [ARCHIVED_WRITING] = BIT(ARCHIVED_HELD) | BIT(ARCHIVED_FINAL),
    [ARCHIVED_HELD] = BIT(ARCHIVED_FINAL),
    [ARCHIVED_FINAL] = BIT(ARCHIVED_COLD),
    [ARCHIVED_COLD] = BIT(ARCHIVED_LOADING),
    [ARCHIVED_LOADING] = BIT(ARCHIVED_FINAL) | BIT(ARCHIVED_COLD), /* loaded, or no memory for it */
};

void sched_archived_move(struct sched_archived *a, enum archived_state to)
{
    SHOAL_ASSERT((archived_moves[a->state] & BIT(to)) != 0);                            /* A3 */
    SHOAL_ASSERT((a->body == NULL) == (to == ARCHIVED_COLD || to == ARCHIVED_LOADING)); /* A8 */
    a->state = to;
}

bool sched_archived_is_stored(const struct sched_archived *a)
{
    SHOAL_ASSERT(a->state < ARCHIVED_STATES);
    return a->state >= ARCHIVED_HELD;
}

bool sched_archived_is_stored_final(const struct sched_archived *a)
{
    SHOAL_ASSERT(a->state < ARCHIVED_FINAL || a->final); /* A3 */
    return a->state >= ARCHIVED_FINAL;
}

struct shoal_job_id sched_archive_kept_id(struct shoal_job_id id)
{
    id.bytes[0] |= KEPT_BIT;
    return id;
}

bool sched_archive_is_kept(struct shoal_job_id stored, struct shoal_job_id *id)
{
    SHOAL_ASSERT(id != NULL);
    *id = stored;
    id->bytes[0] &= (uint8_t)~KEPT_BIT;
    return (stored.bytes[0] & KEPT_BIT) != 0;
}

static void heap_set(struct shoal_sched *s, size_t at, struct sched_archived *a)
{
    SHOAL_ASSERT(at < s->archive_cap);
    s->archive_heap[at] = a;
    a->heap_at = at;
}

static void heap_fix(struct shoal_sched *s, size_t at)
{
    struct sched_archived **heap = s->archive_heap;
    struct sched_archived *a = heap[at];

    SHOAL_ASSERT(at < s->archive_count);
    while (at > 0 && heap[(at - 1) / 2]->look_ns > a->look_ns) {
        heap_set(s, at, heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        size_t child = 2 * at + 1;

        if (child >= s->archive_count)
            break;
        if (child + 1 < s->archive_count && heap[child + 1]->look_ns < heap[child]->look_ns)
            child++;
        if (heap[child]->look_ns >= a->look_ns)
            break;
        heap_set(s, at, heap[child]);
        at = child;
    }
    heap_set(s, at, a);
}

void sched_archived_look_at(struct shoal_sched *s, struct sched_archived *a, uint64_t at_ns)
{
    SHOAL_ASSERT(s->archive_heap[a->heap_at] == a);
    a->look_ns = at_ns;
    heap_fix(s, a->heap_at);
    s->archive_look_ns = s->archive_heap[0]->look_ns;
}

static bool room(struct shoal_sched *s)
{
    size_t cap = s->archive_cap == 0 ? 64 : 2 * s->archive_cap;
    struct sched_archived **grown;

    SHOAL_ASSERT(s->archive_count <= s->archive_cap);
    if (s->archive_count < s->archive_cap)
        return true;
    if (s->archive_count == SHOAL_ARCHIVE_RECORDS_MAX)
        return false;
    grown = realloc(s->archive, cap * sizeof(struct sched_archived *));
    if (grown == NULL)
        return false;
    s->archive = grown;
    grown = realloc(s->archive_heap, cap * sizeof(struct sched_archived *));
    if (grown == NULL)
        return false;
    s->archive_heap = grown;
    s->archive_cap = cap;
    return true;
}

/* A copy of the record, decoded. False: no memory. */
static bool body_take(struct shoal_sched *s, struct sched_archived *a, struct shoal_view bytes)
{
    enum shoal_err err;
    size_t signed_len;

    SHOAL_ASSERT(a->body == NULL);
    SHOAL_ASSERT(bytes.len > 0);
    a->body = calloc(1, sizeof(*a->body));
    if (a->body == NULL || shoal_buf_append(&a->body->bytes, bytes.bytes, bytes.len) != SHOAL_OK) {
        free(a->body);
        a->body = NULL;
        return false;
    }
    err = sched_archive_decode(shoal_buf_view(&a->body->bytes), &a->body->record, &signed_len);
    SHOAL_ASSERT(err == SHOAL_OK); /* the caller has decoded these bytes before */
    a->spec_mark = sched_spec_mark(a->body->record.spec_hash);
    s->archive_bytes += bytes.len;
    return true;
}

static void body_free(struct shoal_sched *s, struct sched_archived *a)
{
    SHOAL_ASSERT(a->body == NULL || s->archive_bytes >= a->body->bytes.len);
    if (a->body == NULL)
        return;
    s->archive_bytes -= a->body->bytes.len;
    shoal_buf_deinit(&a->body->bytes);
    free(a->body);
    a->body = NULL;
}

/* A row; the caller has made room. */
static void row_put(struct shoal_sched *s, struct sched_archived *a)
{
    size_t at = sched_archive_place_of(s, a->id);

    SHOAL_ASSERT(s->archive_count < s->archive_cap);
    SHOAL_ASSERT(sched_archived_find(s, a->id) == NULL); /* A3: a job has one record here */
    a->drop_ns = SCHED_NEVER;
    memmove(&s->archive[at + 1], &s->archive[at], (s->archive_count - at) * sizeof(s->archive[0]));
    s->archive[at] = a;
    heap_set(s, s->archive_count++, a);
    sched_archived_look_at(s, a, s->now + ARCHIVE_LOOK_NS);
}

/* NULL: no room, or no memory. The record's bytes are copied; they decode. */
struct sched_archived *sched_archived_add(struct shoal_sched *s, struct shoal_job_id id, struct shoal_view bytes)
{
    struct sched_archived *a;

    SHOAL_ASSERT(sched_archived_find(s, id) == NULL); /* A3: a job has one record here */
    if (s->archive_bytes + bytes.len > SHOAL_ARCHIVE_BYTES_MAX || !room(s)) {
        s->stats.archive_refused_full++;
        return NULL;
    }
    a = calloc(1, sizeof(*a));
    if (a == NULL || !body_take(s, a, bytes)) {
        free(a);
        return NULL;
    }
    a->id = id;
    a->hash = sched_hash(s, bytes);
    row_put(s, a);
    return a;
}

/* ---- Warm and cold (A8) ------------------------------------------------------------------------------------------ */

static void warm_take_out(struct shoal_sched *s, struct sched_archived *a)
{
    SHOAL_ASSERT(!a->warm || s->warm_count > 0); /* A8 */
    if (!a->warm)
        return;
    if (a->warm_prev != NULL)
        a->warm_prev->warm_next = a->warm_next;
    else
        s->warm_first = a->warm_next;
    if (a->warm_next != NULL)
        a->warm_next->warm_prev = a->warm_prev;
    else
        s->warm_last = a->warm_prev;
    a->warm_next = a->warm_prev = NULL;
    a->warm = false;
    s->warm_count--;
}

void sched_archived_warm_put(struct shoal_sched *s, struct sched_archived *a)
{
    SHOAL_ASSERT(a->state == ARCHIVED_FINAL && a->body != NULL); /* A8 */
    SHOAL_ASSERT(a->final);                                      /* A8 */
    warm_take_out(s, a);
    a->warm_prev = s->warm_last;
    if (s->warm_last != NULL)
        s->warm_last->warm_next = a;
    else
        s->warm_first = a;
    s->warm_last = a;
    a->warm = true;
    s->warm_count++;
}

/* False: no room in this step. */
static bool write_mark(struct shoal_sched *s, const struct sched_archived *a)
{
    uint8_t row[SHOAL_SCHED_ROW_BYTES_MAX];
    uint8_t *bytes = sched_pool(s, SHOAL_SCHED_CONFIG_BYTES_MAX, 0);
    struct shoal_writer w = shoal_writer_init(bytes, SHOAL_SCHED_CONFIG_BYTES_MAX);
    struct cold_mark mark = { .hash = a->hash, .spec_mark = a->spec_mark };
    struct shoal_sched_action *action;

    SHOAL_ASSERT(a->state == ARCHIVED_FINAL); /* A8 */
    SHOAL_ASSERT(a->body != NULL);            /* A8 */
    if (bytes == NULL)
        return false;
    mark.row = sched_index_archived(a->body->record.facts, true, row, &mark.version);
    if (!sched_cold_mark_encode(&mark, &w)) {
        mark.row = (struct shoal_view){ 0 }; /* a row too long for a mark: lists have it from the other holders */
        w = shoal_writer_init(bytes, SHOAL_SCHED_CONFIG_BYTES_MAX);
        if (!sched_cold_mark_encode(&mark, &w))
            return false;
    }
    action = sched_act(s, SHOAL_SCHED_PERSIST);
    action->u.persist.group = sched_archive_kept_id(a->id);
    action->u.persist.has_hard = true;
    action->u.persist.hard.config = shoal_writer_view(&w);
    return true;
}

/* The one that has been in memory longest, of those that nobody has just asked for. */
static struct sched_archived *coolest(const struct shoal_sched *s)
{
    struct sched_archived *a = s->warm_first;

    SHOAL_ASSERT(s->warm_first != NULL || s->warm_count == 0); /* A8 */
    while (a != NULL && s->now < a->stay_ns)
        a = a->warm_next;
    return a;
}

void sched_archive_cool_some(struct shoal_sched *s)
{
    SHOAL_ASSERT(s->options.archive_warm_max > 0);
    while (sched_has_room(s) &&
           (s->warm_count >= s->options.archive_warm_max || s->archive_bytes > SHOAL_ARCHIVE_BYTES_MAX / 2)) {
        struct sched_archived *a = coolest(s);

        if (a == NULL)
            return;
        SHOAL_ASSERT(a->body != NULL && a->state == ARCHIVED_FINAL); /* A8 */
        if (!a->marked && !write_mark(s, a))
            return;
        a->marked = true;
        warm_take_out(s, a);
        body_free(s, a);
        sched_archived_move(a, ARCHIVED_COLD);
    }
}

/* It is wanted: its bytes come back from the store. */
void sched_archived_warm_up(struct shoal_sched *s, struct sched_archived *a)
{
    SHOAL_ASSERT(a->body == NULL);                                           /* A8 */
    SHOAL_ASSERT(a->state == ARCHIVED_COLD || a->state == ARCHIVED_LOADING); /* A8 */
    if (a->state == ARCHIVED_LOADING || s->archive_loading == SHOAL_ARCHIVE_LOADS_MAX ||
        s->actions->count + 64 > SHOAL_SCHED_ACTIONS_MAX)
        return; /* who wants it asks again */
    sched_archived_move(a, ARCHIVED_LOADING);
    s->archive_loading++;
    sched_act(s, SHOAL_SCHED_LOAD)->u.group.group = sched_archive_kept_id(a->id);
    s->stats.archive_loads++;
}

void sched_archive_destroy(struct shoal_sched *s)
{
    SHOAL_ASSERT(s->archive_count == 0 || s->archive != NULL);
    for (size_t i = 0; i < s->archive_count; i++) {
        body_free(s, s->archive[i]);
        free(s->archive[i]);
    }
    free(s->archive);
    free(s->archive_heap);
}

/* The record alone; what the job's blobs become is the caller's. */
void sched_archived_drop(struct shoal_sched *s, struct sched_archived *a)
{
    size_t at = sched_archive_place_of(s, a->id);
    size_t heap_at = a->heap_at;

    SHOAL_ASSERT(s->archive[at] == a);
    SHOAL_ASSERT(s->archive_count > 0);
    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    if (a->written != 0)
        sched_act(s, SHOAL_SCHED_REMOVE_GROUP)->u.group.group = sched_archive_kept_id(a->id);
    warm_take_out(s, a);
    s->archive_loading -= a->state == ARCHIVED_LOADING;
    s->archive_count--;
    memmove(&s->archive[at], &s->archive[at + 1], (s->archive_count - at) * sizeof(s->archive[0]));
    if (heap_at < s->archive_count) {
        heap_set(s, heap_at, s->archive_heap[s->archive_count]);
        heap_fix(s, heap_at);
    }
    s->archive_look_ns = s->archive_count > 0 ? s->archive_heap[0]->look_ns : SCHED_NEVER;
    sched_index_id(s, a->id);
    body_free(s, a);
    free(a);
}

/* ---- In the store ------------------------------------------------------------------------------------------------ */

void sched_archived_keep(struct shoal_sched *s, struct sched_archived *a)
{
    uint8_t *bytes = sched_has_room(s) ? sched_pool(s, a->body->bytes.len + 16, 0) : NULL;
    struct shoal_sched_action *action;
    struct shoal_writer w;
    bool fits;

    SHOAL_ASSERT(a->state == ARCHIVED_WRITING || a->state == ARCHIVED_HELD); /* A3 */
    SHOAL_ASSERT(s->actions != NULL);                                        /* within a step */
    SHOAL_ASSERT(a->body != NULL);                                           /* A8 */
    if (bytes == NULL) {
        sched_archived_look_at(s, a, s->now + 10 * SHOAL_MS); /* looks, and sees that it is to be written */
        return;
    }
    w = shoal_writer_init(bytes, a->body->bytes.len + 16);
    fits = sched_kept_encode(a->final, shoal_buf_view(&a->body->bytes), &w);
    SHOAL_ASSERT(fits);
    action = sched_act(s, SHOAL_SCHED_PERSIST);
    action->u.persist.group = sched_archive_kept_id(a->id);
    action->u.persist.mark.seq = ++s->lives;
    action->u.persist.has_snapshot = true;
    action->u.persist.snapshot.index = action->u.persist.mark.index = ++a->writes;
    action->u.persist.snapshot.term = action->u.persist.mark.term = 1;
    action->u.persist.snapshot.bytes = shoal_writer_view(&w);
    if (a->written == 0)
        a->written = s->lives;
    if (a->final && a->final_write == 0)
        a->final_write = s->lives;
}

bool sched_archived_must_write(const struct sched_archived *a)
{
    SHOAL_ASSERT(a->state < ARCHIVED_STATES);
    return a->state != ARCHIVED_FETCHING && (a->written == 0 || (a->final && a->final_write == 0));
}

void sched_archived_make_final(struct shoal_sched *s, struct sched_archived *a)
{
    SHOAL_ASSERT(a->state < ARCHIVED_COLD || a->final); /* A3 */
    if (a->final)
        return;
    a->final = true;
    if (a->state != ARCHIVED_FETCHING)
        sched_archived_keep(s, a);
}

/* Durable from before. */
static void restored(struct shoal_sched *s, struct sched_archived *a, bool final)
{
    SHOAL_ASSERT(a->state == ARCHIVED_NEW && a->written == 0); /* A3: a job has one record here, restored once */
    a->final = final;
    a->written = ++s->lives;
    a->final_write = final ? a->written : 0;
    if (a->body == NULL)
        sched_archived_move(a, ARCHIVED_COLD);
    else
        sched_archived_move(a, final ? ARCHIVED_FINAL : ARCHIVED_HELD);
    a->since = ++s->archive_version;
    /* Not all at once: the others have just seen this node come. */
    sched_archived_look_at(
        s, a,
        s->now + SHOAL_S +
            shoal_rand_below(&s->chance, ARCHIVE_LOOK_IDLE_NS / 4 + s->archive_count * ARCHIVE_LOOK_NODES_RECORD_NS));
}

static void restore_cold(struct shoal_sched *s, struct shoal_job_id id, const struct cold_mark *mark)
{
    struct sched_archived *a = sched_archived_find(s, id) == NULL && room(s) ? calloc(1, sizeof(*a)) : NULL;

    SHOAL_ASSERT(!s->restored); /* A8: marks are read at the start; later a cold record is loaded with its bytes */
    if (a == NULL) {
        s->stats.archive_refused_full++;
        return;
    }
    a->id = id;
    a->hash = mark->hash;
    a->spec_mark = mark->spec_mark;
    a->marked = true;
    row_put(s, a);
    restored(s, a, true);
    sched_index_parked(s, id, mark->version, mark->row);
}

/* The bytes have come. Requests, and hosts that lack the record, ask for them again. */
static void warmed(struct shoal_sched *s, struct sched_archived *a, struct shoal_view bytes)
{
    SHOAL_ASSERT(a->state == ARCHIVED_LOADING); /* A8 */
    SHOAL_ASSERT(s->archive_loading > 0);
    s->archive_loading--;
    if (!shoal_hash_equal(sched_hash(s, bytes), a->hash) || !body_take(s, a, bytes)) {
        sched_archived_move(a, ARCHIVED_COLD); /* no memory: asked for again */
        return;
    }
    sched_archived_move(a, ARCHIVED_FINAL);
    a->warm = true; /* the first to be cold again */
    a->warm_next = s->warm_first;
    if (s->warm_first != NULL)
        s->warm_first->warm_prev = a;
    else
        s->warm_last = a;
    s->warm_first = a;
    s->warm_count++;
    a->stay_ns = s->now + STAY_NS;
    sched_requests_led(s, a->id, (struct shoal_node_id){ { 0 } });
}

void sched_archive_restore(struct shoal_sched *s, const struct shoal_sched_event *event, struct shoal_job_id id)
{
    struct archive_record record;
    struct sched_archived *a = sched_archived_find(s, id);
    struct cold_mark mark;
    struct shoal_view bytes;
    size_t signed_len;
    bool final;

    SHOAL_ASSERT(event->kind == SHOAL_SCHED_RESTORE);
    if (!s->restored && event->u.restore.has_hard &&
        sched_cold_mark_decode(event->u.restore.hard.config, &mark) == SHOAL_OK) {
        restore_cold(s, id, &mark);
        return;
    }
    if (s->restored && (a == NULL || a->state != ARCHIVED_LOADING))
        return;
    if (!event->u.restore.has_snapshot ||
        sched_kept_decode(event->u.restore.snapshot.bytes, &final, &bytes) != SHOAL_OK ||
        sched_archive_decode(bytes, &record, &signed_len) != SHOAL_OK || !shoal_job_id_equal(record.job, id)) {
        if (a != NULL)
            sched_archived_drop(s, a);
        else
            sched_act(s, SHOAL_SCHED_REMOVE_GROUP)->u.group.group =
                sched_archive_kept_id(id); /* the other holders have it */
        return;
    }
    if (s->restored) {
        warmed(s, a, bytes);
        return;
    }
    a = a == NULL ? sched_archived_add(s, id, bytes) : NULL;
    if (a == NULL)
        return;
    a->writes = event->u.restore.snapshot.index;
    restored(s, a, final);
    if (final)
        sched_archived_warm_put(s, a);
    sched_index_id(s, id);
}
