/* The arithmetic of the collectives outside of steps, for every type and reduction of collective_op.h. Each family of
 * functions (an instruction set) gives the bits of the plain one, which is the reference.
 *
 * float16 and bfloat16 are widened to float32 before the first addition and rounded once, to the nearest even, after the
 * last one; so only four types are added up. */
#ifndef COLLECTIVE_REDUCE_H
#define COLLECTIVE_REDUCE_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/collective_op.h"

/* The types that are added up: the first ones of enum shoal_type. */
#define REDUCE_TYPES 4u

struct reduce_kernels {
    const char *name;
    /* into = a (sum, min or max) b; by type and by enum shoal_reduction below MEAN. `into` may be a or b. */
    void (*combine[REDUCE_TYPES][SHOAL_MEAN])(void *into, const void *a, const void *b, size_t n);
    /* into = from / count: integers towards zero. */
    void (*divide[REDUCE_TYPES])(void *into, const void *from, uint32_t count, size_t n);
    void (*widen_f16)(float *into, const uint16_t *from, size_t n);
    void (*widen_bf16)(float *into, const uint16_t *from, size_t n);
    void (*narrow_f16)(uint16_t *into, const float *from, size_t n);
    void (*narrow_bf16)(uint16_t *into, const float *from, size_t n);
};

/* The one for this processor. */
const struct reduce_kernels *reduce_kernels_get(void);
/* Family i of those that this processor runs, the plain one first; NULL after the last. */
const struct reduce_kernels *reduce_kernels_at(unsigned i);

uint32_t reduce_type_bytes(uint32_t type);
/* The type in which `type` is added up. */
uint32_t reduce_sum_type(uint32_t type);

#endif
