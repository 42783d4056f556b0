/* The memory that the limits of limits.h imply: each module adds its tables to one list, and `shoal doctor` prints it.
 *
 *     struct shoal_memory memory = { 0 };
 *     shoal_swim_memory(&memory), shoal_sched_memory(&memory), ... --> rows of (what, entries, bytes each), and a sum
 *
 * The sum is a bound, not a forecast: it is what an agent holds when every table is full at once. */
#ifndef SHOAL_MEMORY_H
#define SHOAL_MEMORY_H

#include <stdint.h>

#include "shoal/error.h"

/* Tables that all modules together may name. */
#define SHOAL_MEMORY_ROWS_MAX 48

struct shoal_memory_row {
    const char *what; /* a string that stays */
    uint64_t count_max;
    uint64_t bytes_each;
};

struct shoal_memory {
    uint32_t count;
    struct shoal_memory_row rows[SHOAL_MEMORY_ROWS_MAX];
};

static inline void shoal_memory_add(struct shoal_memory *memory, const char *what, uint64_t count_max,
                                    uint64_t bytes_each)
{
    SHOAL_ASSERT(memory->count < SHOAL_MEMORY_ROWS_MAX); /* raise it with a new table */
    SHOAL_ASSERT(bytes_each > 0 && count_max > 0 && count_max <= UINT64_MAX / bytes_each); /* the product is a size */
    memory->rows[memory->count++] = (struct shoal_memory_row){ what, count_max, bytes_each };
}

static inline uint64_t shoal_memory_bytes(const struct shoal_memory *memory)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < memory->count; i++) {
        uint64_t row = memory->rows[i].count_max * memory->rows[i].bytes_each;

        SHOAL_ASSERT(bytes <= UINT64_MAX - row);
        bytes += row;
    }
    return bytes;
}

#endif
