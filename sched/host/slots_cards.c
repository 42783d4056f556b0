/* Cards that kernels share: what is leased of each, and so what can be promised. Rule S14: shoal/slots.h; C1 to C3:
 * shoal/cards.h.
 *
 *     card: memory 80 GiB      slot 0  (the card)   24 GiB, pack p
 *                              slot 1  (a share)    24 GiB, pack p      room: 32 GiB, for pack p only
 *                              slot 2  (a share)    free
 *
 * A slot that is promised holds its part as one that is leased does, and so does one whose last worker is being cleared away. */
#include "slots_state.h"

#include "shoal/banned.h"

struct card_use {
    bool whole;    /* by a lease that declares nothing */
    uint32_t held; /* slots */
    uint64_t mib;
    uint64_t pack;
};

static uint32_t card_of(const struct shoal_slots *slots, uint32_t slot)
{
    SHOAL_ASSERT(slot < SHOAL_SLOTS_MAX);
    return shoal_cards_of(slots->options.cards, slots->options.shares, slot);
}

/* Memory that is held of a card, slot `except` left out, and all that `free` has a bit for. */
static struct card_use look(const struct shoal_slots *slots, uint32_t card, uint32_t except, uint64_t free)
{
    struct card_use use = { .whole = false };

    SHOAL_ASSERT(card < slots->options.cards);
    for (uint32_t i = 0; i < slots->options.slots; i++) {
        const struct slot *slot = &slots->slots[i];

        if (i == except || slot->state == SHOAL_SLOT_FREE || (free >> i & 1) != 0 || card_of(slots, i) != card)
            continue;
        use.held++;
        use.whole = use.whole || slot->gpu_pack == 0;
        use.mib += slot->gpu_mib;
        if (slot->gpu_pack != 0)
            use.pack = slot->gpu_pack;
    }
    return use;
}

const char *slots_card_refuses(const struct shoal_slots *slots, uint32_t index, uint32_t mib, uint64_t pack)
{
    uint32_t card = card_of(slots, index);
    struct card_use use;

    SHOAL_ASSERT(index < slots->options.slots);
    SHOAL_ASSERT((mib == 0) == (pack == 0)); /* a part has both; the decoder has looked */
    if (slots->options.cards == 0)
        return pack == 0 ? NULL : "its cards are not shared here";
    use = look(slots, card, index, 0);
    if (pack == 0 && index >= slots->options.cards)
        return "it is a share of a card, for kernels that say how much memory of it they need";
    if (pack == 0)
        return use.held == 0 ? NULL : "kernels share this card"; /* C1 */
    if (use.whole)
        return "this card is leased as a whole"; /* C1 */
    if (use.held > 0 && use.pack != pack)
        return "kernels of another pack share this card"; /* C2 */
    return use.mib + mib > slots->options.card_mib[card] ? "less of this card's memory is left" : NULL; /* C1 */
}

void slots_cards_record(const struct shoal_slots *slots, uint64_t free, struct shoal_slots_record *record)
{
    SHOAL_ASSERT(slots->options.cards <= SHOAL_CARDS_MAX);
    if (slots->options.cards == 0)
        return;
    record->free = 0;
    record->cards.count = slots->options.cards;
    record->cards.shares = slots->options.shares;
    for (uint32_t i = 0; i < slots->options.cards; i++) {
        struct card_use use = look(slots, i, UINT32_MAX, free);
        struct shoal_card *card = &record->cards.list[i];

        card->mib = slots->options.card_mib[i];
        card->pack = use.whole ? 0 : use.pack;
        card->room = use.whole || use.mib > card->mib ? 0 : card->mib - (uint32_t)use.mib;
    }
    for (uint32_t i = 0; i < slots->options.slots; i++) {
        uint32_t card = card_of(slots, i);

        if ((free >> i & 1) == 0)
            continue;
        if (i < slots->options.cards && look(slots, card, i, free).held == 0)
            record->free |= 1ull << i;
        else if (record->cards.list[card].pack != 0)
            record->cards.free |= 1ull << i;
    }
}

uint32_t shoal_cards_shares(uint32_t cards)
{
    uint32_t fit = cards == 0 || cards > SHOAL_CARDS_MAX ? 0 : SHOAL_SLOTS_MAX / cards - 1;

    return fit < SHOAL_CARD_KERNELS_MAX - 1 ? fit : SHOAL_CARD_KERNELS_MAX - 1;
}
