/* Cards that services share, in the view: each is a host of its own, and what is held of it another one, so that the
 * allocation, which knows slots alone, sees what fits where (shoal/cards.h, decision 0065).
 *
 *     node with 2 cards, of which card 1 is shared:   slots 0, 1       GPU, room of a whole card; slot 1 is shown elsewhere
 *                                                     slot 1 (held)    SHARE, pack, room: what its holder has
 *                                                     slot 9 (held)    SHARE, pack, room: what its holder has
 *                                                     slots 10 .. 15   SHARE, pack, room: what is left
 *
 * V1. A service that shares takes one slot at a time, and none while one of its own is not told as shared yet: so its
 *     kernels fill a card before the next is begun.
 * V2. A slot that is held can go to who needs no more than its holder, and to nobody else: it has that much when the holder
 *     has left, wherever the holder goes. */
#include "shoal/allocate.h"

#include "sched_view.h"

#include "shoal/banned.h"

uint32_t sched_view_cards_hosts(const struct shoal_cards *cards) { return cards->count * (1 + 1 + cards->shares); }

uint32_t sched_view_cards_slots(const struct shoal_cards *cards) { return cards->count * (cards->shares + 1); }

static void show(struct sched_view *view, struct shoal_allocate_host *host, uint32_t slot, bool is_free)
{
    SHOAL_ASSERT(view->slot_count < view->slots_max && slot < SHOAL_SLOTS_MAX);
    view->numbers[view->slot_count] = (uint8_t)slot;
    view->slots[view->slot_count++] = is_free ? SHOAL_ALLOCATE_FREE : SHOAL_ALLOCATE_OTHER;
    host->slot_count++;
}

void sched_view_cards(struct sched_view *view, const struct shoal_cards *cards)
{
    struct shoal_allocate_host *whole = &view->hosts[view->host_count - 1];
    const uint32_t first = whole->first_slot;

    SHOAL_ASSERT(view->host_count > 0 && cards->count <= SHOAL_CARDS_MAX);
    for (uint32_t c = 0; c < cards->count && c < whole->slot_count; c++) {
        const struct shoal_card *card = &cards->list[c];
        struct shoal_allocate_host *host = &view->hosts[view->host_count];

        if (c == 0 || card->mib < whole->room_mib)
            whole->room_mib = card->mib;
        if (card->pack == 0)
            continue;
        view->slots[first + c] = SHOAL_ALLOCATE_OTHER;
        view->numbers[first + c] = SCHED_NO_SLOT;
        *host = *whole;
        host->part = (uint8_t)(1 + c * (2 + cards->shares));
        host->device = SHOAL_ALLOCATE_SHARE;
        host->room_mib = card->room;
        host->pack = card->pack;
        host->first_slot = view->slot_count;
        host->slot_count = 0;
        view->host_count++;
        show(view, host, c, cards->free >> c & 1);
        for (uint32_t i = 0; i < cards->shares; i++) {
            uint32_t slot = cards->count + c * cards->shares + i;

            show(view, host, slot, cards->free >> slot & 1);
        }
    }
}

/* V2. Each slot that is held becomes a host of its own, and what is left of the card stays one. */
static void split(struct sched_view *view, uint32_t index)
{
    struct shoal_allocate_host *host = &view->hosts[index];
    const uint32_t end = host->first_slot + host->slot_count;
    uint32_t held = host->first_slot;

    for (uint32_t at = host->first_slot; at < end; at++) {
        struct shoal_allocate_host *own = &view->hosts[view->host_count];
        int32_t owner = view->slots[at];
        uint8_t number = view->numbers[at];

        if (owner < 0)
            continue;
        SHOAL_ASSERT(view->host_count < view->hosts_max);
        view->slots[at] = view->slots[held];
        view->numbers[at] = view->numbers[held];
        view->slots[held] = owner;
        view->numbers[held] = number;
        *own = *host;
        own->part = (uint8_t)(host->part + 1 + held - host->first_slot);
        own->first_slot = held++;
        own->slot_count = 1;
        own->room_mib = view->jobs[owner].gpu_mib;
        view->host_count++;
    }
    host->first_slot = held;
    host->slot_count = end - held;
}

/* V1. */
static void one_at_a_time(struct sched_view *view, uint32_t index)
{
    struct shoal_allocate_job *job = &view->jobs[index];
    uint32_t held = 0;
    bool told = true;

    SHOAL_ASSERT(job->device == SHOAL_ALLOCATE_SHARE);
    for (uint32_t h = 0; h < view->host_count; h++)
        for (uint32_t at = view->hosts[h].first_slot; at < view->hosts[h].first_slot + view->hosts[h].slot_count; at++) {
            if (view->slots[at] != (int32_t)index)
                continue;
            held++;
            told = told && view->hosts[h].device == SHOAL_ALLOCATE_SHARE;
        }
    if (job->max > held + told)
        job->max = held + told;
    if (job->min > job->max)
        job->min = job->max;
}

void sched_view_cards_held(struct sched_view *view)
{
    const uint32_t count = view->host_count;

    for (uint32_t j = 0; j < view->job_count; j++)
        if (view->jobs[j].device == SHOAL_ALLOCATE_SHARE)
            one_at_a_time(view, j);
    for (uint32_t h = 0; h < count; h++)
        if (view->hosts[h].device == SHOAL_ALLOCATE_SHARE)
            split(view, h);
}
