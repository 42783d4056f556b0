/* Ids of deleted jobs that the table of removed ids (sched_gone.c) has no room for: ten bytes each, in order.
 *
 *   the table is full --> its quarter that was deleted first --> one more shelf, a write of its own --> the table without it
 *
 * T7. A replica, or a record of the archive, that was away hears of the deletion from whoever has deleted it, also when many
 *     others were deleted since. A shelf is written before the table that lacks its ids: the store keeps their order.
 * T8. Beyond SHOAL_SCHED_SHELVES_MAX shelves the newest takes the place of the oldest, whose ids are forgotten: the horizon
 *     moves to the newest of them (T3), but for those of a time to come. */
#include "sched_state.h"
#include "sched_store.h"

#include <stdlib.h> /* qsort */

#include "shoal/banned.h"

#define SHELF_FORMAT 1
#define SHELF_HEAD_BYTES 32

/* Beside the table's own group, which is all ones. */
static const struct shoal_job_id first_shelf = { { 255, 255, 255, 255, 255, 255, 255, 255, 0, 0 } };

static struct shoal_job_id group_of(uint64_t number)
{
    struct shoal_job_id group = first_shelf;

    group.bytes[8] = (uint8_t)(number % SHOAL_SCHED_SHELVES_MAX >> 8);
    group.bytes[9] = (uint8_t)(number % SHOAL_SCHED_SHELVES_MAX);
    return group;
}

bool sched_is_shelf(struct shoal_job_id group)
{
    _Static_assert(SHOAL_SCHED_SHELVES_MAX <= 0xffff, "all ones are the table's");
    return memcmp(group.bytes, first_shelf.bytes, 8) == 0 &&
           (unsigned)(group.bytes[8] << 8 | group.bytes[9]) < SHOAL_SCHED_SHELVES_MAX;
}

/* How many ids are not above this one. */
static size_t up_to(const struct sched_shelf *shelf, struct shoal_job_id id)
{
    size_t low = 0, high = shelf->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (shoal_job_id_cmp(shelf->ids[middle], id) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool sched_shelf_has(const struct shoal_sched *s, struct shoal_job_id id)
{
    size_t at = up_to(&s->shelf, id);

    return at > 0 && shoal_job_id_equal(s->shelf.ids[at - 1], id);
}

static void drop_first(struct sched_shelf *shelf, size_t count)
{
    SHOAL_ASSERT(count <= shelf->count);
    if (count == 0)
        return;
    shelf->count -= count;
    memmove(shelf->ids, shelf->ids + count, shelf->count * sizeof(shelf->ids[0]));
}

/* Beyond all shelves: ids of a time to come, which T8 leaves. */
static void make_room(struct sched_shelf *shelf, size_t count)
{
    SHOAL_ASSERT(count <= SHOAL_SCHED_SHELF_IDS && shelf->count <= SCHED_SHELF_IDS_ALL);
    if (shelf->count + count > SCHED_SHELF_IDS_ALL)
        drop_first(shelf, shelf->count + count - SCHED_SHELF_IDS_ALL);
}

/* There is room for them. Both are in order. */
static void merge(struct sched_shelf *shelf, const struct shoal_job_id *ids, size_t count)
{
    size_t old = shelf->count, at = shelf->count + count;

    SHOAL_ASSERT(at <= SCHED_SHELF_IDS_ALL);
    shelf->count = at;
    while (count > 0) {
        bool is_old = old > 0 && shoal_job_id_cmp(shelf->ids[old - 1], ids[count - 1]) > 0;

        shelf->ids[--at] = is_old ? shelf->ids[--old] : ids[--count];
    }
}

static int by_id(const void *a, const void *b)
{
    return shoal_job_id_cmp(*(const struct shoal_job_id *)a, *(const struct shoal_job_id *)b);
}

/* T8. */
static void make_place(struct shoal_sched *s)
{
    struct sched_shelf *shelf = &s->shelf;
    struct shoal_job_id newest = shelf->newest[shelf->next % SHOAL_SCHED_SHELVES_MAX];

    if (shelf->next < SHOAL_SCHED_SHELVES_MAX)
        return;
    if (shoal_job_id_cmp(newest, s->gone_horizon) > 0)
        s->gone_horizon = newest;
    drop_first(shelf, up_to(shelf, newest));
}

static struct shoal_job_id newest_of(const struct shoal_sched *s, const struct shoal_job_id *ids, size_t count)
{
    while (count > 0 && sched_id_is_ahead(s, ids[count - 1]))
        count--;
    return count == 0 ? (struct shoal_job_id){ { 0 } } : ids[count - 1];
}

bool sched_shelf_put(struct shoal_sched *s, struct shoal_job_id *ids, size_t count)
{
    const size_t len = SHELF_HEAD_BYTES + count * sizeof(ids[0]);
    struct sched_shelf *shelf = &s->shelf;
    struct shoal_sched_action *action;
    struct shoal_job_id newest;
    struct shoal_writer w;
    uint8_t *bytes;

    SHOAL_ASSERT(s->restored && s->actions != NULL); /* within a step, after what is stored */
    SHOAL_ASSERT(count > 0);
    bytes = sched_pool(s, len, 0);
    if (bytes == NULL)
        return false;
    qsort(ids, count, sizeof(ids[0]), by_id);
    newest = newest_of(s, ids, count);
    w = shoal_writer_init(bytes, len);
    shoal_put_u8(&w, SHELF_FORMAT);
    shoal_put_u64(&w, shelf->next);
    shoal_put_job_id(&w, newest);
    shoal_put_u32(&w, (uint32_t)count);
    for (size_t i = 0; i < count; i++)
        shoal_put_job_id(&w, ids[i]);
    SHOAL_ASSERT(!w.failed);
    make_place(s);
    make_room(shelf, count);
    merge(shelf, ids, count);
    shelf->newest[shelf->next % SHOAL_SCHED_SHELVES_MAX] = newest;
    action = sched_act(s, SHOAL_SCHED_PERSIST);
    action->u.persist.group = group_of(shelf->next);
    shelf->next++;
    action->u.persist.mark = (struct shoal_sched_mark){ .seq = shelf->next, .index = shelf->next, .term = 1 };
    action->u.persist.has_snapshot = true;
    action->u.persist.snapshot.index = shelf->next;
    action->u.persist.snapshot.term = 1;
    action->u.persist.snapshot.bytes = shoal_writer_view(&w);
    return true;
}

void sched_shelf_restore(struct shoal_sched *s, const struct shoal_sched_event *event)
{
    struct shoal_reader r = shoal_reader_init(event->u.restore.snapshot.bytes);
    struct shoal_job_id ids[SHOAL_SCHED_SHELF_IDS], newest;
    struct sched_shelf *shelf = &s->shelf;
    uint64_t number;
    uint32_t count;

    SHOAL_ASSERT(!s->restored); /* at the start */
    if (!event->u.restore.has_snapshot || shoal_get_u8(&r) != SHELF_FORMAT)
        return;
    number = shoal_get_u64(&r);
    newest = shoal_get_job_id(&r);
    count = shoal_get_u32(&r);
    for (uint32_t i = 0; i < count && i < SHOAL_SCHED_SHELF_IDS; i++)
        ids[i] = shoal_get_job_id(&r);
    if (!shoal_reader_done(&r) || !shoal_job_id_equal(group_of(number), event->u.restore.group))
        return; /* damaged: nothing of it is believed */
    make_room(shelf, count);
    merge(shelf, ids, count);
    shelf->newest[number % SHOAL_SCHED_SHELVES_MAX] = newest;
    if (number >= shelf->next)
        shelf->next = number + 1;
}
