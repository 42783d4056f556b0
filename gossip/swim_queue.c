/* One queue of news, and which of them goes next.
 *
 *   items:  0   1   2   3 ...   the last one takes the place of one that is removed
 *   order:  a heap of places: fewest sends first, then the longer, then the lower place; each node also knows the
 *           shortest statement below it, so that a search for what fits leaves out what cannot
 *
 * N6. A news is in the heap exactly once, and knows where; nobody goes before its parent.
 * N7. `shortest` of a node is the least length in its half of the tree.
 * The search is branch and bound: below a news that may go nothing goes before it. */
#include "swim_state.h"

#include <stdlib.h>
#include <string.h>

#include "shoal/banned.h"

/* A tree of so many levels holds more than the largest queue; a search keeps one place of each, and the two of the last. */
#define LEVELS_MAX 18
_Static_assert(1u << (LEVELS_MAX - 1) > SWIM_QUEUE_BOUND, "a heap of the largest queue has no more levels");

bool swim_queue_create(struct swim_queue *queue, uint32_t max)
{
    SHOAL_ASSERT(max > 0 && max <= SWIM_QUEUE_BOUND); /* check_bounds */
    queue->items = calloc(max, sizeof(*queue->items));
    queue->order = calloc(max, sizeof(*queue->order));
    queue->max = max;
    return queue->items != NULL && queue->order != NULL;
}

void swim_queue_deinit(struct swim_queue *queue)
{
    free(queue->items);
    free(queue->order);
    *queue = (struct swim_queue){ .items = NULL };
}

static bool goes_before(const struct swim_queue *queue, uint32_t a, uint32_t b)
{
    const struct swim_news *x = &queue->items[a], *y = &queue->items[b];

    if (x->sends != y->sends)
        return x->sends < y->sends;
    return x->len != y->len ? x->len > y->len : a < b;
}

static void put(struct swim_queue *queue, uint32_t at, uint32_t news)
{
    SHOAL_ASSERT(at < queue->count && news < queue->max); /* N6 */
    queue->order[at].news = news;
    queue->items[news].place = at;
}

/* N7, from `at` up to the root. */
static void shortest_anew(struct swim_queue *queue, uint32_t at)
{
    for (;;) {
        uint16_t shortest = queue->items[queue->order[at].news].len;

        for (uint32_t child = 2 * at + 1; child <= 2 * at + 2 && child < queue->count; child++)
            if (queue->order[child].shortest < shortest)
                shortest = queue->order[child].shortest;
        queue->order[at].shortest = shortest;
        if (at == 0)
            return;
        at = (at - 1) / 2;
    }
}

/* The news at `at` of the heap may go before its parent, or behind its children. */
static void settle(struct swim_queue *queue, uint32_t at)
{
    uint32_t news = queue->order[at].news, lowest = at;

    while (at > 0 && goes_before(queue, news, queue->order[(at - 1) / 2].news)) {
        put(queue, at, queue->order[(at - 1) / 2].news);
        at = (at - 1) / 2;
    }
    while (2 * at + 1 < queue->count) {
        uint32_t child = 2 * at + 1;

        if (child + 1 < queue->count && goes_before(queue, queue->order[child + 1].news, queue->order[child].news))
            child++;
        if (!goes_before(queue, queue->order[child].news, news))
            break;
        put(queue, at, queue->order[child].news);
        at = child;
    }
    put(queue, at, news);
    shortest_anew(queue, at > lowest ? at : lowest); /* all that moved is on the way from there to the root */
}

void swim_queue_add(struct swim_queue *queue, const struct swim_news *news)
{
    uint32_t at = queue->count;

    SHOAL_ASSERT(at < queue->max);  /* N3 */
    SHOAL_ASSERT(news->sends == 0); /* N4 */
    queue->items[at] = *news;
    queue->count++;
    queue->fresh++;
    put(queue, at, at);
    settle(queue, at);
}

void swim_queue_remove(struct swim_queue *queue, uint32_t at)
{
    uint32_t hole = queue->items[at].place, last = queue->count - 1;

    SHOAL_ASSERT(at < queue->count);                              /* N3 */
    SHOAL_ASSERT(queue->order[hole].news == at);                  /* N6 */
    SHOAL_ASSERT(queue->items[at].sends > 0 || queue->fresh > 0); /* N4 */
    if (queue->items[at].sends == 0)
        queue->fresh--;
    if (hole != last)
        put(queue, hole, queue->order[last].news);
    queue->count--;
    if (last > 0)
        shortest_anew(queue, last == 1 ? 0 : (last - 1) / 2);
    if (hole < queue->count)
        settle(queue, hole);
    if (at == last)
        return;
    /* The last news moves into the place that fell free, which may let it go before its equals. */
    queue->items[at] = queue->items[last];
    queue->order[queue->items[at].place].news = at;
    settle(queue, queue->items[at].place);
}

void swim_queue_sent(struct swim_queue *queue, uint32_t at, uint32_t mark)
{
    struct swim_news *news = &queue->items[at];

    SHOAL_ASSERT(at < queue->count && queue->order[news->place].news == at); /* N6 */
    SHOAL_ASSERT(news->mark != mark);                                        /* N5 */
    news->mark = mark;
    if (news->sends++ == 0)
        queue->fresh--;
    settle(queue, news->place);
}

uint32_t swim_queue_pick(const struct swim_queue *queue, size_t budget, uint32_t mark)
{
    uint32_t waiting[LEVELS_MAX + 1] = { 0 };
    uint32_t count = queue->count == 0 ? 0 : 1, best = SWIM_NONE;

    while (count > 0) {
        uint32_t at = waiting[--count], news = queue->order[at].news;

        if ((size_t)queue->order[at].shortest + SWIM_NEWS_HEAD_BYTES > budget ||
            (best != SWIM_NONE && goes_before(queue, best, news)))
            continue;
        if (queue->items[news].mark != mark && (size_t)queue->items[news].len + SWIM_NEWS_HEAD_BYTES <= budget) {
            best = news;
            continue;
        }
        SHOAL_ASSERT(count + 2 <= LEVELS_MAX + 1); /* one place of each level, and the two of this one */
        for (uint32_t child = 2 * at + 2; child > 2 * at; child--)
            if (child < queue->count)
                waiting[count++] = child;
    }
    return best;
}

uint32_t swim_queue_stalest(const struct swim_queue *queue)
{
    uint32_t most = 0;

    SHOAL_ASSERT(queue->count > 0);
    for (uint32_t i = 1; i < queue->count; i++)
        if (queue->items[i].sends > queue->items[most].sends)
            most = i;
    return most;
}

void swim_queue_check(const struct swim_queue *queue)
{
    uint32_t fresh = 0;

    for (uint32_t at = 0; at < queue->count; at++) {
        uint32_t news = queue->order[at].news, parent = at == 0 ? 0 : (at - 1) / 2;

        SHOAL_ASSERT(news < queue->count && queue->items[news].place == at);                 /* N6 */
        SHOAL_ASSERT(at == 0 || !goes_before(queue, news, queue->order[parent].news));       /* N6 */
        SHOAL_ASSERT(queue->order[at].shortest <= queue->items[news].len);                   /* N7 */
        SHOAL_ASSERT(at == 0 || queue->order[parent].shortest <= queue->order[at].shortest); /* N7 */
        fresh += queue->items[news].sends == 0;
    }
    SHOAL_ASSERT(fresh == queue->fresh); /* N4 */
}
