/* All that differs from one processor to another stands here, so that no function is two programs. Elsewhere than on
 * x86 the families are built without a target, nothing chooses them, and a pause is nothing. */
#ifndef COLLECTIVE_CPU_H
#define COLLECTIVE_CPU_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

static inline void cpu_root_plain(float *x)
{
    for (int i = 0; i < 16; i++)
        x[i] = sqrtf(x[i]);
}

/* float16 to float32 and back, so many at once. */
#define CPU_F16C_LANES 8

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#define CPU_F16C __attribute__((target("avx,f16c")))

static inline bool cpu_has_f16c(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;

    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

CPU_F16C static inline void cpu_widen_f16(float *into, const uint16_t *from)
{
    _mm256_storeu_ps(into, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)from)));
}

CPU_F16C static inline void cpu_narrow_f16(uint16_t *into, const float *from)
{
    _mm_storeu_si128((__m128i_u *)into, _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT));
}

#define CPU_AVX2 __attribute__((target("avx2")))
#define CPU_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl")))

static inline bool cpu_has_avx2(void) { return __builtin_cpu_supports("avx2") != 0; }

static inline bool cpu_has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

/* The roots of 16 floats, correctly rounded as IEEE 754 has it. */
CPU_AVX2 static inline void cpu_root_avx2(float *x)
{
    _mm256_storeu_ps(x, _mm256_sqrt_ps(_mm256_loadu_ps(x)));
    _mm256_storeu_ps(x + 8, _mm256_sqrt_ps(_mm256_loadu_ps(x + 8)));
}

CPU_AVX512 static inline void cpu_root_avx512(float *x) { _mm512_storeu_ps(x, _mm512_sqrt_ps(_mm512_loadu_ps(x))); }

/* In a loop that spins: the other thread of the core may go on. */
static inline void cpu_pause(void) { __builtin_ia32_pause(); }

#else

#define CPU_F16C

static inline bool cpu_has_f16c(void) { return false; }

/* Never chosen. */
static inline void cpu_widen_f16(float *into, const uint16_t *from)
{
    for (int i = 0; i < CPU_F16C_LANES; i++)
        into[i] = (float)from[i];
}

static inline void cpu_narrow_f16(uint16_t *into, const float *from)
{
    for (int i = 0; i < CPU_F16C_LANES; i++)
        into[i] = (uint16_t)from[i];
}

#define CPU_AVX2
#define CPU_AVX512

static inline bool cpu_has_avx2(void) { return false; }

static inline bool cpu_has_avx512(void) { return false; }

static inline void cpu_pause(void) {}

static inline void cpu_root_avx2(float *x) { cpu_root_plain(x); }
static inline void cpu_root_avx512(float *x) { cpu_root_plain(x); }

#endif
#endif
