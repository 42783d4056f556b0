/* Cards (GPUs) that kernels of services share by the memory which they declare (decision 0065).
 *
 *     slot 0 .. C-1                    a card each: leased as a whole, or by the first kernel that shares it
 *     slot C + c*S .. C + c*S + S-1    the shares of card c: leased while kernels share it
 *
 * C1. What is leased of a card together is at most its memory; a lease that declares nothing has all of it.
 * C2. Kernels that share a card are of one pack.
 * C3. Only a card's host decides both, when it promises a slot; what gossip says of it is a hint. */
#ifndef SHOAL_CARDS_H
#define SHOAL_CARDS_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/error.h"

#define SHOAL_CARDS_MAX 16u      /* of a host that shares them: with more, a share each would be all */
#define SHOAL_CARD_KERNELS_MAX 8u /* that share one */

struct shoal_card {
    uint32_t mib;  /* all its memory */
    uint32_t room; /* of it, what is not leased */
    uint64_t pack; /* of the kernels that share it; 0: it is not shared now */
};

/* A host's cards, by its own word. Zeroes: it shares none, for it has none or does not know their memory. */
struct shoal_cards {
    uint32_t count;  /* its first slots */
    uint32_t shares; /* of each */
    uint64_t free;   /* bit i: slot i, a share, can be reserved */
    struct shoal_card list[SHOAL_CARDS_MAX];
};

/* A kernel's need of a card, as its service's profile says. */
struct shoal_gpu_need {
    uint8_t device; /* enum shoal_job_device: AUTO, or GPU */
    uint32_t mib;   /* GPU: so much of one that is shared; 0: a whole one */
    uint64_t pack;  /* of a shared one; not 0 */
};

static inline uint32_t shoal_cards_slots(uint32_t cards, uint32_t shares) { return cards + cards * shares; }

/* The card of a slot; UINT32_MAX: of none. */
static inline uint32_t shoal_cards_of(uint32_t cards, uint32_t shares, uint32_t slot)
{
    if (slot < cards)
        return slot;
    return cards == 0 || slot >= shoal_cards_slots(cards, shares) ? UINT32_MAX : (slot - cards) / shares;
}

/* How many shares a card gets on a host with so many: as many as there are slots left, up to the bound. */
uint32_t shoal_cards_shares(uint32_t cards);

#endif
