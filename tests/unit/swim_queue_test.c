/* The queue of news against the plain search through all of it that its heap stands for. */
#include "gossip/swim_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "shoal/banned.h"

/* Fewest sends first, then the longer, then the lower place, among those that fit and are not marked. */
static uint32_t pick_plainly(const struct swim_queue *queue, size_t budget, uint32_t mark)
{
    uint32_t best = SWIM_NONE;

    for (uint32_t i = 0; i < queue->count; i++) {
        const struct swim_news *news = &queue->items[i];

        if (news->mark == mark || (size_t)news->len + SWIM_NEWS_HEAD_BYTES > budget)
            continue;
        if (best == SWIM_NONE || news->sends < queue->items[best].sends ||
            (news->sends == queue->items[best].sends && news->len > queue->items[best].len))
            best = i;
    }
    return best;
}

static struct swim_news news_of(uint32_t subject, uint16_t len)
{
    return (struct swim_news){ .kind = NEWS_RECORD, .subject = subject, .blob = 256 + subject, .len = len };
}

static void queue_make(struct swim_queue *queue, uint32_t max)
{
    *queue = (struct swim_queue){ .items = NULL };
    assert_true(swim_queue_create(queue, max));
}

static void test_nothing_is_picked_from_an_empty_queue(void **state)
{
    struct swim_queue queue;

    (void)state;
    queue_make(&queue, 8);
    assert_int_equal(swim_queue_pick(&queue, 1200, 1), SWIM_NONE);
    swim_queue_check(&queue);
    swim_queue_deinit(&queue);
    swim_queue_deinit(&queue); /* zeroes are accepted */
}

static void test_the_order_of_news(void **state)
{
    const struct {
        const char *name;
        size_t budget;
        uint32_t want; /* subject; SWIM_NONE: nothing */
    } rows[] = {
        { "the longest of those that were never sent goes first", 1200, 3 },
        { "what does not fit waits", 300, 1 },
        { "of two alike the lower place goes first", 204, 1 },
        { "one that was sent goes only where no other fits", 104, 0 },
        { "nothing fits", 90, SWIM_NONE },
    };
    static const uint16_t lens[] = { 100, 200, 200, 400 };
    struct swim_queue queue;

    (void)state;
    queue_make(&queue, 8);
    for (uint32_t i = 0; i < 4; i++) {
        struct swim_news news = news_of(i, lens[i]);

        swim_queue_add(&queue, &news);
    }
    swim_queue_sent(&queue, 0, 1);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint32_t at = swim_queue_pick(&queue, rows[i].budget, 2);

        if ((at == SWIM_NONE ? SWIM_NONE : queue.items[at].subject) != rows[i].want)
            fail_msg("%s: %u", rows[i].name, at);
    }
    assert_int_equal(swim_queue_pick(&queue, 104, 1), SWIM_NONE); /* it is in datagram 1 already */
    assert_int_equal(queue.items[swim_queue_stalest(&queue)].subject, 0);
    swim_queue_deinit(&queue);
}

/* Plays what a core does with a queue, by chance: each time the heap picks what the plain search picks. */
static void churn(struct shoal_rand *rand, struct swim_queue *queue, uint32_t lens)
{
    uint32_t mark = 1, subject = 0;

    for (unsigned turn = 0; turn < 3000; turn++) {
        uint64_t what = shoal_rand_below(rand, 8);
        size_t budget = (size_t)shoal_rand_below(rand, 1200);
        uint32_t at;

        if (what < 3 || queue->count == 0) {
            struct swim_news news = news_of(subject++, (uint16_t)(80 + 7 * shoal_rand_below(rand, lens)));

            if (queue->count == queue->max)
                swim_queue_remove(queue, swim_queue_stalest(queue));
            swim_queue_add(queue, &news);
        } else if (what == 3) {
            swim_queue_remove(queue, (uint32_t)shoal_rand_below(rand, queue->count));
        } else if (what == 4) {
            mark++;
        }
        at = swim_queue_pick(queue, budget, mark);
        assert_int_equal(at, pick_plainly(queue, budget, mark));
        if (at != SWIM_NONE)
            swim_queue_sent(queue, at, mark);
        if (at != SWIM_NONE && queue->items[at].sends > 9)
            swim_queue_remove(queue, at);
        swim_queue_check(queue);
    }
}

static void test_it_picks_what_a_plain_search_picks(void **state)
{
    static const uint32_t sizes[] = { 1, 2, 3, 8, 100, 512 };
    static const uint32_t lens[] = { 1, 3, 100 };
    struct shoal_rand rand;

    (void)state;
    shoal_rand_init(&rand, 47);
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        for (size_t l = 0; l < sizeof(lens) / sizeof(lens[0]); l++) {
            struct swim_queue queue;

            queue_make(&queue, sizes[s]);
            churn(&rand, &queue, lens[l]);
            swim_queue_deinit(&queue);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_picked_from_an_empty_queue),
        cmocka_unit_test(test_the_order_of_news),
        cmocka_unit_test(test_it_picks_what_a_plain_search_picks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
