/* What differs from one processor to another stands here alone, so that no function is two programs. Elsewhere than on
 * x86 the families are built without a target, nothing chooses them, and a pause is nothing. */
#ifndef COLLECTIVE_CPU_H
#define COLLECTIVE_CPU_H

#include <stdbool.h>

#if defined(__x86_64__)

#define CPU_AVX2 __attribute__((target("avx2")))
#define CPU_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl")))

static inline bool cpu_has_avx2(void) { return __builtin_cpu_supports("avx2") != 0; }

static inline bool cpu_has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

/* In a loop that spins: the other thread of the core may go on. */
static inline void cpu_pause(void) { __builtin_ia32_pause(); }

#else

#define CPU_AVX2
#define CPU_AVX512

static inline bool cpu_has_avx2(void) { return false; }

static inline bool cpu_has_avx512(void) { return false; }

static inline void cpu_pause(void) {}

#endif
#endif
