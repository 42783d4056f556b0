/* float16 (IEEE 754 binary16) and bfloat16, to float32 and back. Back is rounded to the nearest even; what is too large
 * becomes an infinity, a NaN stays one and becomes quiet, as processors do it that have instructions for it. */
#ifndef COLLECTIVE_HALF_H
#define COLLECTIVE_HALF_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t half_bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float half_of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline float half_widen_bf16(uint16_t value) { return half_of_bits((uint32_t)value << 16); }

static inline uint16_t half_narrow_bf16(float value)
{
    uint32_t bits = half_bits_of(value);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;

    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded);
}

void half_widen_f16_plain(float *into, const uint16_t *from, size_t n);
void half_narrow_f16_plain(uint16_t *into, const float *from, size_t n);
/* With the instructions of F16C; the plain ones on other processors than x86. */
void half_widen_f16_f16c(float *into, const uint16_t *from, size_t n);
void half_narrow_f16_f16c(uint16_t *into, const float *from, size_t n);

#endif
