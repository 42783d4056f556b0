/* The rules of shoal/collective_update.h on runs of elements: the same bits on every instruction set (kernels.h). */
#ifndef COLLECTIVE_UPDATE_H
#define COLLECTIVE_UPDATE_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/collective_update.h"

/* Vectors that a part reads and writes, weights first; 0: it is of no rule. */
uint32_t update_vectors(const struct shoal_update_part *part);
/* The first `n` elements of each pointer by the rule and the numbers of `part`. */
void update_elements(const struct shoal_update_part *part, const float *g, const float *const *from, float *const *into,
                     size_t n);
/* The same by a family of functions: 0 the plain one, 1, 2; false: this processor has it not. */
bool update_elements_by(unsigned family, const struct shoal_update_part *part, const float *g, const float *const *from,
                        float *const *into, size_t n);

#endif
