/* The arithmetic of sums: the same bits on every instruction set, since each element takes the same IEEE operations in
 * the same order (no fused multiply-add: the build says -ffp-contract=off). Chosen once at start. */
#ifndef COLLECTIVE_KERNELS_H
#define COLLECTIVE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* Pieces in which a program runs over a slice: three of them stay in the first-level cache. */
#define KERNEL_PIECE_BYTES 8192

struct kernels {
    const char *name;
    void (*add_f32)(float *into, const float *a, const float *b, size_t n);
    void (*add_f64)(double *into, const double *a, const double *b, size_t n);
    void (*add_i32)(int32_t *into, const int32_t *a, const int32_t *b, size_t n);              /* wraps */
    void (*add_div_f32)(float *into, const float *a, const float *b, float divisor, size_t n); /* (a + b) / divisor */
    void (*div_f32)(float *into, const float *a, float divisor, size_t n);
    void (*scale_f32)(float *into, const float *g, float weight, size_t n);     /* weight * g, and +0 for -0 */
    void (*scale_add_f32)(float *into, const float *g, float weight, size_t n); /* into + weight * g, both rounded */
    uint64_t (*digest)(const uint8_t *block, uint64_t key);                     /* of KERNEL_DIGEST_BYTES */
};

#define KERNEL_DIGEST_BYTES 4096

const struct kernels *kernels_get(void);

/* Sum over blocks of 4096 bytes (the last one padded with zeroes) of a keyed hash of each, by its number
 * `position` / 4096 + i: independent of who hashes which blocks, so that slices can be added up. */
uint64_t kernels_digest(const void *bytes, size_t len, uint64_t position);

#endif
