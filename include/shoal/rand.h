/* Seeded chance (xoshiro256**, seeded by splitmix64; Blackman and Vigna, ACM TOMS 47 (2021)). Not for secrets. */
#ifndef SHOAL_RAND_H
#define SHOAL_RAND_H

#include <stdint.h>

__extension__ typedef unsigned __int128 shoal_u128;

struct shoal_rand {
    uint64_t state[4];
};

static inline uint64_t shoal_splitmix64(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline void shoal_rand_init(struct shoal_rand *rand, uint64_t seed)
{
    for (unsigned i = 0; i < 4; i++)
        rand->state[i] = shoal_splitmix64(&seed);
}

static inline uint64_t shoal_rand_u64(struct shoal_rand *rand)
{
    uint64_t *s = rand->state;
    uint64_t mixed = s[1] * 5;
    uint64_t result = ((mixed << 7) | (mixed >> 57)) * 9;
    uint64_t t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = (s[3] << 45) | (s[3] >> 19);
    return result;
}

/* Uniform in [0, bound); `bound` > 0. Multiply-shift: the bias is below 2^-32 for bounds below 2^32. */
static inline uint64_t shoal_rand_below(struct shoal_rand *rand, uint64_t bound)
{
    return (uint64_t)(((shoal_u128)shoal_rand_u64(rand) * bound) >> 64);
}

#endif
