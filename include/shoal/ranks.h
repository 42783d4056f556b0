/* A set of ranks of one communicator: bit r of its words is member r. Pure. */
#ifndef SHOAL_RANKS_H
#define SHOAL_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/error.h"
#include "shoal/limits.h"

#define SHOAL_RANKS_WORDS ((SHOAL_RANKS_MAX + 63u) / 64u)

struct shoal_ranks {
    uint64_t words[SHOAL_RANKS_WORDS];
};

static inline void shoal_ranks_add(struct shoal_ranks *set, uint32_t rank)
{
    SHOAL_ASSERT(rank < SHOAL_RANKS_MAX);
    set->words[rank / 64] |= 1ull << rank % 64;
}

static inline bool shoal_ranks_has(const struct shoal_ranks *set, uint32_t rank)
{
    return rank < SHOAL_RANKS_MAX && (set->words[rank / 64] >> rank % 64 & 1) != 0;
}

static inline bool shoal_ranks_any(const struct shoal_ranks *set)
{
    uint64_t any = 0;

    for (uint32_t i = 0; i < SHOAL_RANKS_WORDS; i++)
        any |= set->words[i];
    return any != 0;
}

static inline bool shoal_ranks_equal(const struct shoal_ranks *a, const struct shoal_ranks *b)
{
    uint64_t differs = 0;

    for (uint32_t i = 0; i < SHOAL_RANKS_WORDS; i++)
        differs |= a->words[i] ^ b->words[i];
    return differs == 0;
}

/* Add all of `from`. */
static inline void shoal_ranks_join(struct shoal_ranks *set, const struct shoal_ranks *from)
{
    for (uint32_t i = 0; i < SHOAL_RANKS_WORDS; i++)
        set->words[i] |= from->words[i];
}

static inline void shoal_ranks_drop(struct shoal_ranks *set, uint32_t rank)
{
    SHOAL_ASSERT(rank < SHOAL_RANKS_MAX);
    set->words[rank / 64] &= ~(1ull << rank % 64);
}

/* Keep those alone that `other` has, too. */
static inline void shoal_ranks_keep(struct shoal_ranks *set, const struct shoal_ranks *other)
{
    for (uint32_t i = 0; i < SHOAL_RANKS_WORDS; i++)
        set->words[i] &= other->words[i];
}

static inline uint32_t shoal_ranks_count(const struct shoal_ranks *set)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < SHOAL_RANKS_WORDS; i++)
        count += (uint32_t)__builtin_popcountll(set->words[i]);
    return count;
}

/* Keep the ranks below `count`. */
static inline void shoal_ranks_limit(struct shoal_ranks *set, uint32_t count)
{
    for (uint32_t rank = count; rank < SHOAL_RANKS_MAX; rank++)
        shoal_ranks_drop(set, rank);
}

/* Words up to the last that is not empty; the first one always counts. */
static inline uint32_t shoal_ranks_words(const struct shoal_ranks *set)
{
    uint32_t words = SHOAL_RANKS_WORDS;

    while (words > 1 && set->words[words - 1] == 0)
        words--;
    return words;
}

#endif
