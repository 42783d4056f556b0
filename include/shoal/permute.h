/* The order of samples: a keyed permutation of 0..n-1 (Feistel network with cycle walking; Black and Rogaway, CT-RSA
 * 2002), so that (job seed, data epoch, position) names a sample without any list, and the keyed sums that prove which
 * samples were used. Used alike by the workers and by the auditor. */
#ifndef SHOAL_PERMUTE_H
#define SHOAL_PERMUTE_H

#include <stdint.h>

static inline uint64_t shoal_mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The sample at `position` (< n) of data epoch `data_epoch` (from 0). n >= 1. Bijective in position. */
static inline uint64_t shoal_permute(uint64_t job_seed, uint32_t data_epoch, uint64_t n, uint64_t position)
{
    unsigned half = 1;
    uint64_t mask;
    uint64_t key = shoal_mix64(job_seed + 0x9e3779b97f4a7c15u * ((uint64_t)data_epoch + 1));
    uint64_t x = position;

    if (n < 2)
        return 0;
    while (half < 32 && (1ull << (2 * half)) < n)
        half++;
    mask = (1ull << half) - 1;
    do { /* the domain is below 4n, so the walk ends after a few turns on average, and always: it is a cycle */
        uint64_t left = x >> half;
        uint64_t right = x & mask;

        for (uint64_t round = 0; round < 6; round++) {
            uint64_t next = left ^ (shoal_mix64(key + (round + 1) * 0xd1b54a32d192ed03u + right) & mask);

            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= n);
    return x;
}

/* Added up (modulo 2^64, each half) over the samples of a mini-batch: independent of their order. */
struct shoal_sample_sum {
    uint64_t low;
    uint64_t high;
};

static inline void shoal_sample_sum_add(struct shoal_sample_sum *sum, uint64_t job_seed, uint64_t sample)
{
    uint64_t key = shoal_mix64(job_seed ^ 0x5851f42d4c957f2du);

    sum->low += shoal_mix64(key + sample * 0x9e3779b97f4a7c15u);
    sum->high += shoal_mix64(~key + sample * 0xc2b2ae3d27d4eb4fu);
}

/* The mini-batches of one data epoch: n samples in mini-batches of b, the tail kept; a tail of one sample joins the
 * mini-batch before it (BatchNorm refuses one). Position of mini-batch m: m * b, its length below. */
static inline uint64_t shoal_minibatch_count(uint64_t n, uint64_t b)
{
    uint64_t count = (n + b - 1) / b;

    return n > b && b > 1 && n % b == 1 ? count - 1 : count;
}

static inline uint64_t shoal_minibatch_len(uint64_t n, uint64_t b, uint64_t m)
{
    uint64_t count = shoal_minibatch_count(n, b);

    return m + 1 < count ? b : n - m * b;
}

#endif
