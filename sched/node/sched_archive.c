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
 *     the job. A new leader begins anew, or goes on with the record that it holds; of two the newer version stays.
 * A2. ARCHIVED names one record by its hash, and is proposed only when every holder has flushed record and blobs. From
 *     then on whoever leads does the rest, and only that; a crash in between is the next leader's beginning.
 * A3. A record becomes final by the word of the leader that has applied ARCHIVED, or of a holder to which it is final;
 *     a final one is never replaced.
 * A4. A member forgets the group only when told that it has ended, by its leader, by one that has forgotten it, or by a
 *     holder of the final record: so one that was away learns it from whomever it asks (G4), and does not campaign on.
 * A5. Deleted ids are remembered by every node that is told (sched_store.c, T3), before the record goes. Whoever offers
 *     the record afterwards is answered with the deletion, so one that was away forgets it too.
 * A6. A holder that is away keeps its place for replace_ns, or archive_ns if that is shorter; then the next nearest
 *     host takes it. A host that holds a record it should not hold lets go only when all that should hold it as final.
 * A7. A node takes SHOAL_ARCHIVE_RECORDS_MAX records, SHOAL_ARCHIVE_BYTES_MAX of them in memory, and none of others' jobs
 *     while its store keeps what is left for the jobs that run; a job that lacks a holder stays in its group.
 * A8. The newest final records, fewer than archive_warm_max, keep their bytes in memory. An older one is cold: a row of
 *     250 bytes, and its bytes in the store, with a mark in the hard state, which is all that an agent that starts reads
 *     of it. Who asks for it waits until it is loaded.
 * A9. Under pressure a job goes into the archive as soon as it has ended: while archive_early_max ended ones are led
 *     here. */
#include "sched_archive.h"
#include "sched_group.h"
#include "sched_index.h"
#include "sched_lead.h"
#include "sched_node.h"
#include "sched_park.h"
#include "sched_request.h"
#include "sched_state.h"
#include "sched_store.h"
#include "sched_view.h"

#include "shoal/banned.h"

#define KEPT_BIT 0x80 /* no job's id has it before the year 2248: 44 bits of milliseconds */
#define LEAD_LOOK_NS (500 * SHOAL_MS)
#define MAKE_RETRY_NS (60 * SHOAL_S)
#define LEAVE_NS (2 * SHOAL_S) /* the lists of all nodes hear of the record before gossip forgets the job */
#define LOOK_NS (500 * SHOAL_MS)
#define LOOK_AWAY_NS (2 * SHOAL_S)
#define LOOK_IDLE_NS (60 * SHOAL_S)
#define LOOK_IDLE_RECORD_NS (10 * SHOAL_MS) /* for each record that is here: a bounded share of a core */
#define LOOK_NODES_RECORD_NS SHOAL_MS       /* and when nodes come or go */
#define LOOKS_TURN_MAX 64
#define STAY_NS (5 * SHOAL_S) /* so long a record that was loaded is there for whoever asked */
#define LOOKS_MAX 6
#define FETCH_NS (120 * SHOAL_S)
#define DELETE_RETRY_NS (50 * SHOAL_MS)
#define TOLD_MAX 256 /* nodes that one deletion is told at once; the others hear of it when they offer the record */

static const struct shoal_hash no_hash;

/* ---- The table --------------------------------------------------------------------------------------------------- */

static size_t place_of(const struct shoal_sched *s, struct shoal_job_id id)
{
    size_t low = 0;
    size_t high = s->archive_count;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (shoal_job_id_cmp(s->archive[mid]->id, id) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static struct sched_archived *get(const struct shoal_sched *s, struct shoal_job_id id)
{
    size_t at = place_of(s, id);

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

static void archived_move(struct sched_archived *a, enum archived_state to)
{
    SHOAL_ASSERT((archived_moves[a->state] & BIT(to)) != 0);                            /* A3 */
    SHOAL_ASSERT((a->body == NULL) == (to == ARCHIVED_COLD || to == ARCHIVED_LOADING)); /* A8 */
    a->state = to;
}

static bool is_stored(const struct sched_archived *a) { return a->state >= ARCHIVED_HELD; }

static bool is_stored_final(const struct sched_archived *a)
{
    SHOAL_ASSERT(a->state < ARCHIVED_FINAL || a->final); /* A3 */
    return a->state >= ARCHIVED_FINAL;
}

static struct shoal_job_id kept_id(struct shoal_job_id id)
{
    id.bytes[0] |= KEPT_BIT;
    return id;
}

bool sched_archive_is_kept(struct shoal_job_id stored, struct shoal_job_id *id)
{
    *id = stored;
    id->bytes[0] &= (uint8_t)~KEPT_BIT;
    return (stored.bytes[0] & KEPT_BIT) != 0;
}

static void heap_set(struct shoal_sched *s, size_t at, struct sched_archived *a)
{
    s->archive_heap[at] = a;
    a->heap_at = at;
}

static void heap_fix(struct shoal_sched *s, size_t at)
{
    struct sched_archived **heap = s->archive_heap;
    struct sched_archived *a = heap[at];

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

static void look_at(struct shoal_sched *s, struct sched_archived *a, uint64_t at_ns)
{
    a->look_ns = at_ns;
    heap_fix(s, a->heap_at);
    s->archive_look_ns = s->archive_heap[0]->look_ns;
}

static bool room(struct shoal_sched *s)
{
    size_t cap = s->archive_cap == 0 ? 64 : 2 * s->archive_cap;
    struct sched_archived **grown;

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
    size_t at = place_of(s, a->id);

    SHOAL_ASSERT(s->archive_count < s->archive_cap);
    a->drop_ns = SCHED_NEVER;
    memmove(&s->archive[at + 1], &s->archive[at], (s->archive_count - at) * sizeof(s->archive[0]));
    s->archive[at] = a;
    heap_set(s, s->archive_count++, a);
    look_at(s, a, s->now + LOOK_NS);
}

/* NULL: no room, or no memory. The record's bytes are copied; they decode. */
static struct sched_archived *add(struct shoal_sched *s, struct shoal_job_id id, struct shoal_view bytes)
{
    struct sched_archived *a;

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

static void warm_put(struct shoal_sched *s, struct sched_archived *a)
{
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
    action->u.persist.group = kept_id(a->id);
    action->u.persist.has_hard = true;
    action->u.persist.hard.config = shoal_writer_view(&w);
    return true;
}

/* The one that has been in memory longest, of those that nobody has just asked for. */
static struct sched_archived *coolest(const struct shoal_sched *s)
{
    struct sched_archived *a = s->warm_first;

    while (a != NULL && s->now < a->stay_ns)
        a = a->warm_next;
    return a;
}

static void cool_some(struct shoal_sched *s)
{
    while (sched_has_room(s) &&
           (s->warm_count >= s->options.archive_warm_max || s->archive_bytes > SHOAL_ARCHIVE_BYTES_MAX / 2)) {
        struct sched_archived *a = coolest(s);

        if (a == NULL)
            return;
        SHOAL_ASSERT(a->body != NULL && is_stored_final(a)); /* A8 */
        if (!a->marked && !write_mark(s, a))
            return;
        a->marked = true;
        warm_take_out(s, a);
        body_free(s, a);
        archived_move(a, ARCHIVED_COLD);
    }
}

/* It is wanted: its bytes come back from the store. */
static void warm_up(struct shoal_sched *s, struct sched_archived *a)
{
    SHOAL_ASSERT(a->body == NULL); /* A8 */
    if (a->state == ARCHIVED_LOADING || s->archive_loading == SHOAL_ARCHIVE_LOADS_MAX ||
        s->actions->count + 64 > SHOAL_SCHED_ACTIONS_MAX)
        return; /* who wants it asks again */
    archived_move(a, ARCHIVED_LOADING);
    s->archive_loading++;
    sched_act(s, SHOAL_SCHED_LOAD)->u.group.group = kept_id(a->id);
    s->stats.archive_loads++;
}

void sched_archive_destroy(struct shoal_sched *s)
{
    for (size_t i = 0; i < s->archive_count; i++) {
        body_free(s, s->archive[i]);
        free(s->archive[i]);
    }
    free(s->archive);
    free(s->archive_heap);
}

/* The record alone; what the job's blobs become is the caller's. */
static void drop(struct shoal_sched *s, struct sched_archived *a)
{
    size_t at = place_of(s, a->id);
    size_t heap_at = a->heap_at;

    SHOAL_ASSERT(s->archive[at] == a);
    if (a->written != 0)
        sched_act(s, SHOAL_SCHED_REMOVE_GROUP)->u.group.group = kept_id(a->id);
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

static void keep(struct shoal_sched *s, struct sched_archived *a)
{
    uint8_t *bytes = sched_has_room(s) ? sched_pool(s, a->body->bytes.len + 16, 0) : NULL;
    struct shoal_sched_action *action;
    struct shoal_writer w;
    bool fits;

    if (bytes == NULL) {
        look_at(s, a, s->now + 10 * SHOAL_MS); /* looks, and sees that it is to be written */
        return;
    }
    w = shoal_writer_init(bytes, a->body->bytes.len + 16);
    fits = sched_kept_encode(a->final, shoal_buf_view(&a->body->bytes), &w);
    SHOAL_ASSERT(fits);
    action = sched_act(s, SHOAL_SCHED_PERSIST);
    action->u.persist.group = kept_id(a->id);
    action->u.persist.mark.seq = ++s->lives;
    action->u.persist.has_snapshot = true;
    action->u.persist.snapshot.index = action->u.persist.mark.index = ++a->writes;
    action->u.persist.snapshot.term = action->u.persist.mark.term = 1;
    action->u.persist.snapshot.bytes = shoal_writer_view(&w);
    if (a->written == 0)
        a->written = s->lives;
    if (a->final && a->final_at == 0)
        a->final_at = s->lives;
}

static bool must_write(const struct sched_archived *a)
{
    return a->state != ARCHIVED_FETCHING && (a->written == 0 || (a->final && a->final_at == 0));
}

static void make_final(struct shoal_sched *s, struct sched_archived *a)
{
    if (a->final)
        return;
    a->final = true;
    if (a->state != ARCHIVED_FETCHING)
        keep(s, a);
}

/* Durable from before. */
static void restored(struct shoal_sched *s, struct sched_archived *a, bool final)
{
    a->final = final;
    a->written = ++s->lives;
    a->final_at = final ? a->written : 0;
    archived_move(a, a->body == NULL ? ARCHIVED_COLD : final ? ARCHIVED_FINAL : ARCHIVED_HELD);
    a->since = ++s->archive_version;
    /* Not all at once: the others have just seen this node come. */
    look_at(s, a,
            s->now + SHOAL_S +
                shoal_rand_below(&s->chance, LOOK_IDLE_NS / 4 + s->archive_count * LOOK_NODES_RECORD_NS));
}

static void restore_cold(struct shoal_sched *s, struct shoal_job_id id, const struct cold_mark *mark)
{
    struct sched_archived *a = get(s, id) == NULL && room(s) ? calloc(1, sizeof(*a)) : NULL;

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
    s->archive_loading--;
    if (!shoal_hash_equal(sched_hash(s, bytes), a->hash) || !body_take(s, a, bytes)) {
        archived_move(a, ARCHIVED_COLD); /* no memory: asked for again */
        return;
    }
    archived_move(a, ARCHIVED_FINAL);
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
    struct sched_archived *a = get(s, id);
    struct cold_mark mark;
    struct shoal_view bytes;
    size_t signed_len;
    bool final;

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
            drop(s, a);
        else
            sched_act(s, SHOAL_SCHED_REMOVE_GROUP)->u.group.group = kept_id(id); /* the other holders have it */
        return;
    }
    if (s->restored) {
        warmed(s, a, bytes);
        return;
    }
    a = a == NULL ? add(s, id, bytes) : NULL;
    if (a == NULL)
        return;
    a->writes = event->u.restore.snapshot.index;
    restored(s, a, final);
    if (final)
        warm_put(s, a);
    sched_index_id(s, id);
}

/* ---- Who should hold it ------------------------------------------------------------------------------------------ */

static uint64_t away_max(const struct shoal_sched *s)
{
    return s->options.archive_ns < s->options.replace_ns ? s->options.archive_ns : s->options.replace_ns;
}

/* A6. */
static bool keeps_place(const struct shoal_sched *s, const struct sched_node *node)
{
    struct sched_node there = *node;

    if (node->info.state == SHOAL_SCHED_NODE_LEFT ||
        (node->info.state != SHOAL_SCHED_NODE_ALIVE && s->now >= node->since_ns + away_max(s)))
        return false;
    there.info.state = SHOAL_SCHED_NODE_ALIVE;
    return sched_node_available(s, &there);
}

static bool same_domain(const struct shoal_sched *s, const struct shoal_node_id *nodes, size_t count,
                        const struct sched_node *node)
{
    for (size_t i = 0; i < count && node->info.domain[0] != '\0'; i++) {
        const struct sched_node *other = sched_node_find(s, nodes[i]);

        if (other != NULL && strcmp(other->info.domain, node->info.domain) == 0)
            return true;
    }
    return false;
}

static bool listed(const struct shoal_node_id *nodes, size_t count, struct shoal_node_id node)
{
    for (size_t i = 0; i < count; i++)
        if (shoal_node_id_equal(nodes[i], node))
            return true;
    return false;
}

/* The nearest in domains of their own first, then the nearest that are left. */
size_t sched_archive_hosts(const struct shoal_sched *s, struct shoal_job_id id, struct shoal_node_id *nodes)
{
    size_t count = 0;

    for (unsigned pass = 0; pass < 2; pass++) {
        for (;;) {
            const struct sched_node *nearest = NULL;
            uint64_t best = 0;

            for (size_t i = 0; i < s->node_count && count < SHOAL_ARCHIVE_COPIES; i++) {
                const struct sched_node *node = &s->nodes[i];
                uint64_t score;

                if (!keeps_place(s, node) || listed(nodes, count, node->info.id) ||
                    (pass == 0 && same_domain(s, nodes, count, node)))
                    continue;
                score = sched_score(s, id, node->info.id);
                if (nearest == NULL || score > best) {
                    best = score;
                    nearest = node;
                }
            }
            if (nearest == NULL)
                break;
            nodes[count++] = nearest->info.id;
        }
    }
    return count;
}

/* Of hosts that still belong to it, all that is known stays. */
static uint8_t hosts_update(const struct shoal_sched *s, struct shoal_job_id id, struct sched_copy *hosts,
                            uint8_t host_count)
{
    struct shoal_node_id nodes[SHOAL_ARCHIVE_COPIES];
    struct sched_copy fresh[SHOAL_ARCHIVE_COPIES] = { 0 };
    size_t count = sched_archive_hosts(s, id, nodes);

    for (size_t i = 0; i < count; i++) {
        fresh[i] = (struct sched_copy){ .node = nodes[i] };
        for (unsigned old = 0; old < host_count; old++)
            if (shoal_node_id_equal(hosts[old].node, nodes[i]))
                fresh[i] = hosts[old];
    }
    memcpy(hosts, fresh, count * sizeof(fresh[0]));
    return (uint8_t)count;
}

static struct sched_copy *copy_at(struct sched_copy *hosts, uint8_t count, struct shoal_node_id node)
{
    for (unsigned i = 0; i < count; i++)
        if (shoal_node_id_equal(hosts[i].node, node))
            return &hosts[i];
    return NULL;
}

static bool all_hold(const struct sched_copy *hosts, uint8_t count, bool final)
{
    for (unsigned i = 0; i < count; i++)
        if (!hosts[i].holds || (final && !hosts[i].final))
            return false;
    return count > 0;
}

/* ---- Words ------------------------------------------------------------------------------------------------------- */

static void say(struct shoal_sched *s, struct shoal_node_id to, enum archive_word word, struct shoal_job_id id,
                struct shoal_hash hash, bool final)
{
    struct frame frame = { .kind = FRAME_ARCHIVE };

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

    frame.u.archive.job = a->id;
    frame.u.archive.word = ARCHIVE_TAKE;
    frame.u.archive.hash = a->hash;
    frame.u.archive.final = is_stored_final(a);
    frame.u.archive.record = shoal_buf_view(&a->body->bytes);
    sched_send(s, to, &frame);
}

/* This node holds it, as far as it is durable here. */
static void say_state(struct shoal_sched *s, struct shoal_node_id to, struct shoal_job_id id)
{
    struct frame frame = { .kind = FRAME_ARCHIVE };
    const struct sched_group *g = sched_group_find(s, id);
    const struct sched_archived *a = get(s, id);

    if (sched_is_self(s, to))
        return;
    frame.u.archive.job = id;
    frame.u.archive.word = ARCHIVE_STATE;
    frame.u.archive.deleted = sched_gone_is_durable(s, id) || (g != NULL && g->job != NULL && g->job->deleted);
    if (sched_is_gone(s, id) && !frame.u.archive.deleted)
        return; /* in a moment: it is asked again */
    if (a != NULL && is_stored(a) && !frame.u.archive.deleted) {
        frame.u.archive.hash = a->hash;
        frame.u.archive.final = is_stored_final(a);
    }
    sched_send(s, to, &frame);
}

/* A5. */
static void forget_deleted(struct shoal_sched *s, struct shoal_job_id id)
{
    struct sched_group *g = sched_group_find(s, id);
    struct sched_archived *a = get(s, id);

    if (!sched_is_gone(s, id)) {
        sched_gone_add(s, id, GONE_DELETED, no_hash);
        sched_gone_save(s);
    }
    if (a != NULL)
        drop(s, a);
    else
        sched_index_id(s, id);
    if (g == NULL)
        sched_act(s, SHOAL_SCHED_JOB_DELETED)->u.group.group = id;
    else if (!g->leads)
        sched_group_doom(s, g, 0, true);
}

static void tell_deleted(struct shoal_sched *s, struct shoal_job_id id)
{
    unsigned told = 0;

    for (size_t i = 0; i < s->node_count && told < TOLD_MAX; i++) {
        const struct sched_node *node = &s->nodes[i];

        if (sched_is_self(s, node->info.id) || node->info.state == SHOAL_SCHED_NODE_DEAD ||
            node->info.state == SHOAL_SCHED_NODE_LEFT)
            continue;
        say(s, node->info.id, ARCHIVE_DELETE, id, no_hash, false);
        told++;
    }
}

void sched_archive_deleted(struct shoal_sched *s, struct shoal_job_id id)
{
    struct sched_archived *a = get(s, id);

    if (a == NULL)
        return;
    if (!sched_is_gone(s, id)) {
        sched_gone_add(s, id, GONE_DELETED, no_hash);
        sched_gone_save(s);
    }
    tell_deleted(s, id);
    drop(s, a);
}

bool sched_archive_say_ended(struct shoal_sched *s, struct shoal_node_id to, struct shoal_job_id id)
{
    const struct sched_gone *gone = sched_gone_find(s, id);
    const struct sched_archived *a = get(s, id);

    if ((a == NULL || !a->final) && (gone == NULL || gone->why != GONE_ARCHIVED))
        return false;
    say(s, to, ARCHIVE_ENDED, id, no_hash, true);
    return true;
}

void sched_archive_bury(struct shoal_sched *s, struct shoal_job_id id)
{
    struct shoal_sched_action *action = sched_act(s, SHOAL_SCHED_JOB_ARCHIVED);

    action->u.group.group = id;
    action->u.group.keep = get(s, id) != NULL;
}

/* Not needed here any more: all that should hold it do. */
static void let_go(struct shoal_sched *s, struct sched_archived *a)
{
    struct shoal_job_id id = a->id;
    uint64_t spec_mark = a->spec_mark;

    if (copy_at(a->hosts, a->host_count, s->self) != NULL || !a->final || !all_hold(a->hosts, a->host_count, true))
        return;
    drop(s, a);
    if (sched_gone_find(s, id) == NULL)
        sched_gone_archived(s, id, spec_mark); /* the record said until now that the group has ended */
    if (sched_group_find(s, id) == NULL)
        sched_archive_bury(s, id);
}

static void on_state(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct shoal_job_id id = frame->u.archive.job;
    struct sched_group *g = sched_group_find(s, id);
    struct sched_archived *a = get(s, id);
    struct sched_copy *copy;
    bool same;

    sched_requests_deleted(s, from, id, frame->u.archive.deleted);
    if (frame->u.archive.deleted) {
        if (a != NULL)
            forget_deleted(s, id);
        return;
    }
    if (g != NULL && g->leads && g->job != NULL) {
        copy = copy_at(g->archive_hosts, g->archive_host_count, from);
        if (copy != NULL)
            copy->holds = copy->final =
                frame->u.archive.final && shoal_hash_equal(frame->u.archive.hash, g->job->archived);
        sched_group_dirty(s, g);
    }
    if (a == NULL)
        return;
    same = shoal_hash_equal(frame->u.archive.hash, a->hash);
    copy = copy_at(a->hosts, a->host_count, from);
    if (same) {
        if (frame->u.archive.final) /* A3 */
            make_final(s, a);
        if (copy != NULL) {
            copy->holds = true;
            copy->final = frame->u.archive.final;
        }
    } else if (frame->u.archive.final && !a->final) {
        drop(s, a); /* another one was committed; it comes to whom it should */
        return;
    } else if (copy != NULL && is_stored(a)) {
        copy->holds = copy->final = false;
        if (a->body != NULL) {
            give(s, from, a);
        } else { /* it is given when the next look finds it missing */
            warm_up(s, a);
            a->looks = 1;
            look_at(s, a, s->now + LOOK_NS);
        }
    }
    let_go(s, a);
}

static int version_cmp(struct shoal_sched_version a, struct shoal_sched_version b)
{
    if (a.config != b.config)
        return a.config < b.config ? -1 : 1;
    if (a.term != b.term)
        return a.term < b.term ? -1 : 1;
    return a.applied < b.applied ? -1 : a.applied > b.applied;
}

static void fetch(struct shoal_sched *s, struct sched_archived *a, struct shoal_node_id from)
{
    struct shoal_sched_action *action;

    a->from = from;
    a->drop_ns = s->now + FETCH_NS;
    if (shoal_hash_is_zero(a->body->record.list)) {
        archived_move(a, ARCHIVED_WRITING);
        keep(s, a);
        return;
    }
    archived_move(a, ARCHIVED_FETCHING);
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

    return env->verify(env->arg, record->key, shoal_view_of(bytes.bytes, signed_len), record->signature);
}

static enum shoal_err on_take(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct shoal_view bytes = frame->u.archive.record;
    struct shoal_job_id id = frame->u.archive.job;
    struct sched_archived *a = get(s, id);
    struct archive_record record;
    size_t signed_len;
    enum shoal_err err = sched_archive_decode(bytes, &record, &signed_len);

    if (err != SHOAL_OK || !shoal_job_id_equal(record.job, id) || !is_genuine(s, &record, bytes, signed_len))
        return SHOAL_ERR_MALFORMED;
    if (sched_is_gone(s, id)) {
        say_state(s, from, id);
        return SHOAL_OK;
    }
    if (a != NULL && shoal_hash_equal(a->hash, sched_hash(s, bytes))) {
        if (!is_stored(a))
            a->from = from;
        if (frame->u.archive.final)
            make_final(s, a);
        if (is_stored(a))
            say_state(s, from, id);
        return SHOAL_OK;
    }
    if (a != NULL &&
        (a->final || (!frame->u.archive.final && version_cmp(record.version, a->body->record.version) <= 0))) {
        say_state(s, from, id);
        return SHOAL_OK;
    }
    if (a != NULL)
        drop(s, a);
    if (s->store_percent >= SHOAL_STORE_SUBMIT_PERCENT && sched_group_find(s, id) == NULL) {
        s->stats.archive_refused_full++;
        return SHOAL_OK;
    }
    a = add(s, id, bytes);
    if (a == NULL)
        return SHOAL_OK; /* A7: it is not said to be held */
    a->final = frame->u.archive.final;
    fetch(s, a, from);
    return SHOAL_OK;
}

static void on_ended(struct shoal_sched *s, struct shoal_job_id id)
{
    struct sched_group *g = sched_group_find(s, id);

    if (g == NULL)
        (void)sched_park_wake(s, id); /* awake, it asks whether it is a member still */
    if (g == NULL || g->mesh_is || g->leads)
        return;
    g->gone_archived = true; /* A4 */
    sched_group_doom(s, g, 0, false);
}

enum shoal_err sched_on_archive(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct shoal_job_id id = frame->u.archive.job;
    struct sched_archived *a;

    if (!s->restored || shoal_job_id_is_mesh(id))
        return SHOAL_OK; /* what is stored comes first; the sender repeats */
    switch ((enum archive_word)frame->u.archive.word) {
    case ARCHIVE_HAVE:
        a = get(s, id);
        if (a != NULL && frame->u.archive.final && shoal_hash_equal(a->hash, frame->u.archive.hash))
            make_final(s, a);
        say_state(s, from, id);
        break;
    case ARCHIVE_TAKE: return on_take(s, from, frame);
    case ARCHIVE_STATE: on_state(s, from, frame); break;
    case ARCHIVE_DELETE:
        if (!sched_is_gone(s, id) || get(s, id) != NULL)
            forget_deleted(s, id);
        say_state(s, from, id);
        break;
    case ARCHIVE_ENDED: on_ended(s, id); break;
    case ARCHIVE_WORDS: break;
    }
    return SHOAL_OK;
}

void sched_archive_fetched(struct shoal_sched *s, const struct shoal_sched_event *event)
{
    struct sched_archived *a = get(s, event->u.archive.job);

    if (a == NULL || a->state != ARCHIVED_FETCHING || !shoal_hash_equal(a->body->record.list, event->u.archive.list))
        return;
    if (!event->u.archive.ok) {
        drop(s, a); /* offered again */
        return;
    }
    archived_move(a, ARCHIVED_WRITING);
    a->drop_ns = SCHED_NEVER;
    keep(s, a);
}

void sched_archive_stored(struct shoal_sched *s, struct shoal_job_id id, struct shoal_sched_mark mark)
{
    struct sched_archived *a = get(s, id);
    struct sched_group *g = sched_group_find(s, id);

    if (a == NULL || a->written == 0 || mark.seq < a->written)
        return; /* of one that was dropped since */
    if (!is_stored(a))
        a->since = ++s->archive_version;
    if (a->state < ARCHIVED_FINAL && a->final_at != 0 && mark.seq >= a->final_at) {
        archived_move(a, ARCHIVED_FINAL);
        a->since = ++s->archive_version;
        warm_put(s, a);
    } else if (a->state == ARCHIVED_WRITING) {
        archived_move(a, ARCHIVED_HELD);
    }
    sched_index_id(s, id);
    s->stats.archive_records++;
    if (!shoal_node_id_is_zero(a->from))
        say_state(s, a->from, id);
    look_at(s, a, s->now);
    if (g != NULL && g->leads)
        sched_group_dirty(s, g);
}

/* ---- Looking after ----------------------------------------------------------------------------------------------- */

/* False: it is no more. */
static bool look(struct shoal_sched *s, struct sched_archived *a)
{
    bool missing = false;
    bool away = false;
    uint64_t wait;

    if (must_write(a))
        keep(s, a);
    if (!is_stored(a) && s->now >= a->drop_ns) {
        drop(s, a);
        return false;
    }
    if (!is_stored(a)) {
        look_at(s, a, s->now + LOOK_AWAY_NS);
        return true;
    }
    a->host_count = hosts_update(s, a->id, a->hosts, a->host_count);
    for (unsigned i = 0; i < a->host_count; i++) {
        struct sched_copy *copy = &a->hosts[i];
        const struct sched_node *node = sched_node_find(s, copy->node);

        if (sched_is_self(s, copy->node)) {
            copy->holds = true;
            copy->final = is_stored_final(a);
        } else {
            missing = missing || !copy->holds || (a->final && !copy->final);
            say(s, copy->node, ARCHIVE_HAVE, a->id, a->hash, is_stored_final(a));
        }
        away = away || node == NULL || node->info.state != SHOAL_SCHED_NODE_ALIVE;
    }
    /* Whether its group has ended, and how, its guardians know. */
    for (unsigned i = 0; !a->final && i < a->body->record.guardian_count; i++)
        if (copy_at(a->hosts, a->host_count, a->body->record.guardians[i]) == NULL)
            say(s, a->body->record.guardians[i], ARCHIVE_HAVE, a->id, a->hash, false);
    if (!missing && a->final)
        a->looks = 0;
    else if (a->looks < LOOKS_MAX)
        a->looks++;
    wait = a->looks == 0 ? LOOK_IDLE_NS + s->archive_count * LOOK_IDLE_RECORD_NS : LOOK_NS << a->looks;
    if (away && wait > LOOK_AWAY_NS)
        wait = LOOK_AWAY_NS;
    if (copy_at(a->hosts, a->host_count, s->self) == NULL && wait > LOOK_AWAY_NS)
        wait = LOOK_AWAY_NS; /* to let go of it */
    look_at(s, a, s->now + wait - wait / 4 + shoal_rand_below(&s->chance, wait / 4 + 1));
    return true;
}

void sched_archive_due(struct shoal_sched *s)
{
    for (unsigned i = 0; i < LOOKS_TURN_MAX && s->archive_count > 0 && s->now >= s->archive_heap[0]->look_ns; i++) {
        struct sched_archived *a = s->archive_heap[0];

        if (!sched_has_room(s)) {
            s->more = true;
            return;
        }
        if (look(s, a))
            SHOAL_ASSERT(a->look_ns > s->now); /* the end of upkeep */
    }
    cool_some(s);
}

void sched_archive_nodes(struct shoal_sched *s)
{
    uint64_t spread_ns = SHOAL_S + s->archive_count * LOOK_NODES_RECORD_NS;

    for (size_t i = 0; i < s->archive_count; i++) {
        uint64_t soon = s->now + LOOK_NS + shoal_rand_below(&s->chance, spread_ns);

        s->archive[i]->looks = 1;
        if (s->archive[i]->look_ns > soon)
            look_at(s, s->archive[i], soon);
    }
}

/* ---- The leader of an ended job ---------------------------------------------------------------------------------- */

static void ask_to_make(struct shoal_sched *s, struct sched_group *g)
{
    struct shoal_sched_action *action = sched_act(s, SHOAL_SCHED_ARCHIVE_MAKE);
    struct shoal_job_facts facts;
    const struct shoal_job_spec *spec = &g->job->spec;

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
    if (!event->u.archive.has_progress)
        return;
    facts->step = summary->step = event->u.archive.steps;
    facts->data_epoch = summary->data_epoch = event->u.archive.data_epoch;
    if (!event->u.archive.has_metrics)
        return;
    facts->has_metrics = summary->has_metrics = true;
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

    sched_job_facts(g, &facts);
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

    if (g == NULL || !g->archive_making)
        return;
    g->archive_making = false;
    if (!g->leads || g->lead == NULL || g->job->deleted || !shoal_hash_is_zero(g->job->archived) ||
        !event->u.archive.ok)
        return; /* tried again by the clock */
    bytes = make_record(s, g, event);
    a = get(s, g->id);
    if (bytes.len == 0 || (a != NULL && a->final))
        return;
    if (a != NULL)
        drop(s, a);
    a = add(s, g->id, bytes);
    if (a == NULL)
        return;
    archived_move(a, ARCHIVED_WRITING);
    keep(s, a);
    g->archive_ns = s->now + LEAD_LOOK_NS;
    sched_group_rearm(s, g);
}

/* Not committed yet: a record of this node's own, on all that should hold it; then the entry (A2). */
static void place(struct shoal_sched *s, struct sched_group *g)
{
    const struct sched_archived *a = get(s, g->id);
    uint8_t bytes[64];

    if (!g->archive_due) {
        if (s->ended_led > s->options.archive_early_max)
            g->archive_due = true; /* A9 */
        else if (g->archive_ns == SCHED_NEVER)
            g->archive_ns = s->now + s->options.archive_ns;
        else if (s->now >= g->archive_ns)
            g->archive_due = true;
        if (!g->archive_due)
            return;
    }
    if (a == NULL || a->state == ARCHIVED_FETCHING) {
        if (!g->archive_making || s->now >= g->archive_ns)
            ask_to_make(s, g);
        return;
    }
    if (s->now < g->archive_ns && !all_hold(a->hosts, a->host_count, false))
        return;
    g->archive_ns = s->now + LEAD_LOOK_NS;
    if (is_stored(a) && all_hold(a->hosts, a->host_count, false) && sched_has_room(s)) {
        size_t len = shoal_job_entry_archived(bytes, sizeof(bytes), a->hash, s->wall_ms);

        shoal_entry_unref(sched_propose(s, g, shoal_view_of(bytes, len), SCHED_CTX_KEEP));
    }
}

/* Committed, and every holder knows: the members are told, gossip forgets the job, this one goes last. */
static void end_group(struct shoal_sched *s, struct sched_group *g)
{
    for (unsigned i = 0; i < g->told_count; i++)
        say(s, g->told[i].node, ARCHIVE_ENDED, g->id, no_hash, true);
    sched_summary_gone(s, g, true);
    g->gone_archived = true;
    sched_group_doom(s, g, 200 * SHOAL_MS, false);
}

/* A deletion that is under way would be answered by a group that nobody remembers. */
static bool nothing_open(const struct sched_group *g)
{
    struct shoal_raft_status status;

    shoal_raft_status(g->raft, &status);
    return status.last == g->applied;
}

static void finish(struct shoal_sched *s, struct sched_group *g)
{
    struct sched_archived *a = get(s, g->id);

    if (g->doomed_ns != SCHED_NEVER)
        return;
    if (a != NULL && shoal_hash_equal(a->hash, g->job->archived))
        make_final(s, a);
    if (s->now >= g->archive_ns || g->archive_ns == SCHED_NEVER) {
        g->archive_host_count = hosts_update(s, g->id, g->archive_hosts, g->archive_host_count);
        for (unsigned i = 0; i < g->archive_host_count; i++)
            say(s, g->archive_hosts[i].node, ARCHIVE_HAVE, g->id, g->job->archived, true);
        g->archive_ns = s->now + LEAD_LOOK_NS;
    }
    for (unsigned i = 0; i < g->archive_host_count; i++)
        if (sched_is_self(s, g->archive_hosts[i].node))
            g->archive_hosts[i].holds = g->archive_hosts[i].final = a != NULL && is_stored_final(a);
    if (!all_hold(g->archive_hosts, g->archive_host_count, true))
        g->archive_end_ns = 0;
    else if (g->archive_end_ns == 0)
        g->archive_end_ns = s->now;
    else if (s->now >= g->archive_end_ns + LEAVE_NS && nothing_open(g))
        end_group(s, g);
}

void sched_archive_count(struct shoal_sched *s, struct sched_group *g, bool ended)
{
    s->ended_led += ended && !g->ended_led;
    s->ended_led -= !ended && g->ended_led;
    g->ended_led = ended;
}

bool sched_archive_holds(const struct shoal_sched *s, struct shoal_job_id id)
{
    const struct sched_archived *a = get(s, id);

    return a != NULL && is_stored_final(a);
}

void sched_archive_lead(struct shoal_sched *s, struct sched_group *g)
{
    bool ended = g->leads && !g->stopped && g->lead != NULL && g->job != NULL && !g->job->deleted &&
                 g->job->placement_count == 0 && shoal_job_state_ended((enum shoal_job_state)g->job->state);

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

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

struct sched_archived *sched_archive_find(const struct shoal_sched *s, struct shoal_job_id id)
{
    struct sched_archived *a = get(s, id);

    if (a == NULL || !is_stored(a) || sched_group_find(s, id) != NULL)
        return NULL;
    return a->final || sched_summary_find(s, id) == NULL ? a : NULL; /* A1 */
}

bool sched_archive_same(const struct shoal_sched *s, struct shoal_job_id id, struct shoal_hash spec_hash, bool *same)
{
    const struct sched_archived *a = sched_archive_find(s, id);
    const struct sched_gone *gone = sched_gone_find(s, id);

    if (a != NULL)
        *same = a->spec_mark == sched_spec_mark(spec_hash);
    else if (gone != NULL && gone->why == GONE_ARCHIVED)
        *same = gone->spec_mark == sched_spec_mark(spec_hash);
    else
        return false;
    return true;
}

static void serve_delete(struct shoal_sched *s, struct sched_request *r, struct shoal_job_id id)
{
    struct shoal_node_id nodes[SHOAL_ARCHIVE_COPIES];
    size_t count = sched_archive_hosts(s, id, nodes);

    forget_deleted(s, id);
    tell_deleted(s, id);
    sched_request_move(r, REQUEST_DELETING);
    r->ask_count = 0;
    r->answered = 0;
    for (size_t i = 0; i < count; i++) {
        const struct sched_node *node = sched_node_find(s, nodes[i]);

        if (!sched_is_self(s, nodes[i]) && node != NULL && node->info.state == SHOAL_SCHED_NODE_ALIVE)
            r->ask[r->ask_count++] = nodes[i];
    }
    r->retry_ns = s->now + DELETE_RETRY_NS;
    if (r->retry_ns < s->requests_ns)
        s->requests_ns = r->retry_ns;
}

void sched_archive_serve(struct shoal_sched *s, struct sched_request *r, struct sched_archived *a)
{
    struct shoal_job_facts facts;
    char text[SHOAL_JOB_REASON_BYTES + 64] = "";

    if (a->body == NULL && (r->kind == SHOAL_SCHED_GET || r->kind == SHOAL_SCHED_WHY)) {
        warm_up(s, a);
        sched_request_retry(s, r, 100 * SHOAL_MS);
        return;
    }
    switch (r->kind) {
    case SHOAL_SCHED_GET: sched_request_end(s, r, SHOAL_OK, a->body->record.facts, "%s", ""); return;
    case SHOAL_SCHED_WHY:
        if (shoal_job_facts_decode(a->body->record.facts, &facts) == SHOAL_OK)
            (void)snprintf(text, sizeof(text), "%s. %s\n", shoal_job_state_name((enum shoal_job_state)facts.state),
                           facts.reason); /* as shoal_lead_why */
        sched_request_end(s, r, SHOAL_OK, shoal_view_text(text), "%s", "");
        return;
    case SHOAL_SCHED_TASKS:
        sched_request_end(
            s, r, SHOAL_ERR_NOT_FOUND, (struct shoal_view){ 0 },
            "the job is in the archive, which keeps how many of its tasks were done and failed, not which");
        return;
    case SHOAL_SCHED_DELETE: serve_delete(s, r, a->id); return;
    case SHOAL_SCHED_RECOVER:
        sched_request_end(s, r, SHOAL_ERR_EXISTS, (struct shoal_view){ 0 },
                          "the job has ended and is in the archive: there is nothing to recover");
        return;
    default: sched_request_end(s, r, SHOAL_OK, (struct shoal_view){ 0 }, "%s", ""); return; /* STOP: it has ended */
    }
}

void sched_archive_delete_due(struct shoal_sched *s, struct sched_request *r)
{
    unsigned all = (1u << r->ask_count) - 1;

    if (sched_gone_is_durable(s, r->job) && r->answered == all) {
        sched_request_end(s, r, SHOAL_OK, (struct shoal_view){ 0 }, "%s", "");
        return;
    }
    for (unsigned i = 0; i < r->ask_count; i++)
        if (!(r->answered & 1u << i))
            say(s, r->ask[i], ARCHIVE_DELETE, r->job, no_hash, false);
    r->retry_ns = s->now + DELETE_RETRY_NS;
}

/* ---- Looking inside ---------------------------------------------------------------------------------------------- */

size_t shoal_sched_archive_count(const struct shoal_sched *s) { return s->archive_count; }
uint64_t shoal_sched_archive_version(const struct shoal_sched *s) { return s->archive_version; }

bool shoal_sched_archive_at(const struct shoal_sched *s, size_t i, struct shoal_sched_archived *out)
{
    const struct sched_archived *a = i < s->archive_count ? s->archive[i] : NULL;

    if (a == NULL || !is_stored(a))
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

    if (a == NULL)
        return false;
    *cursor = a;
    return shoal_sched_archive_at(s, place_of(s, a->id), out);
}

struct shoal_job_id shoal_sched_archive_place(struct shoal_job_id id) { return kept_id(id); }

bool shoal_sched_archive_read(struct shoal_view kept, struct shoal_sched_archived *out)
{
    struct archive_record record;
    struct shoal_view bytes;
    size_t signed_len;
    bool final;

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
    size_t at = place_of(s, id);

    return at < s->archive_count && shoal_job_id_equal(s->archive[at]->id, id) && shoal_sched_archive_at(s, at, out);
}

bool shoal_sched_deleted_at(const struct shoal_sched *s, size_t i, struct shoal_job_id *id, uint64_t *since)
{
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
