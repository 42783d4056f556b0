#include "half.h"

#include "cpu.h"

#include "shoal/banned.h"

#define F16_INFINITY 0x7c00u
#define F32_INFINITY 0x7f800000u

static float widen_f16(uint16_t value)
{
    uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
    uint32_t rest = value & 0x7fffu;

    if (rest > F16_INFINITY)
        return half_of_bits(sign | F32_INFINITY | 0x400000u | (rest & 0x3ffu) << 13);
    if (rest == F16_INFINITY)
        return half_of_bits(sign | F32_INFINITY);
    if (rest >= 0x400u)
        return half_of_bits(sign | ((rest << 13) + (112u << 23)));
    return half_of_bits(sign | half_bits_of((float)rest * 0x1p-24f)); /* subnormal, or zero: exact */
}

static uint16_t narrow_f16(float value)
{
    uint32_t bits = half_bits_of(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t rest = bits & 0x7fffffffu;

    if (rest > F32_INFINITY)
        return (uint16_t)(sign | F16_INFINITY | 0x200u | (rest >> 13 & 0x3ffu));
    if (rest >= 0x477ff000u) /* 65520, half way to what would come after the largest one */
        return (uint16_t)(sign | F16_INFINITY);
    if (rest >= 0x38800000u) { /* normal: round the 13 bits that go */
        rest += 0xfffu + (rest >> 13 & 1);
        return (uint16_t)(sign | ((rest - (112u << 23)) >> 13));
    }
    /* Subnormal: adding 0.5 leaves the bits of the multiple of 2^-24, rounded to the nearest even by the addition. */
    return (uint16_t)(sign | (half_bits_of(half_of_bits(rest) + 0.5f) - half_bits_of(0.5f)));
}

void half_widen_f16_plain(float *into, const uint16_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        into[i] = widen_f16(from[i]);
}

void half_narrow_f16_plain(uint16_t *into, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        into[i] = narrow_f16(from[i]);
}

CPU_F16C void half_widen_f16_f16c(float *into, const uint16_t *from, size_t n)
{
    size_t i = 0;

    for (; i + CPU_F16C_LANES <= n; i += CPU_F16C_LANES)
        cpu_widen_f16(into + i, from + i);
    half_widen_f16_plain(into + i, from + i, n - i);
}

CPU_F16C void half_narrow_f16_f16c(uint16_t *into, const float *from, size_t n)
{
    size_t i = 0;

    for (; i + CPU_F16C_LANES <= n; i += CPU_F16C_LANES)
        cpu_narrow_f16(into + i, from + i);
    half_narrow_f16_plain(into + i, from + i, n - i);
}
