#include "reduce.h"

#include <string.h>

#include "shoal/error.h"

#include "cpu.h"
#include "half.h"

#include "shoal/banned.h"

/* Vectors of 64 bytes at any address: the compiler splits them where the instruction set is narrower. */
typedef float vf32 __attribute__((vector_size(64), aligned(1), may_alias));
typedef double vf64 __attribute__((vector_size(64), aligned(1), may_alias));
typedef int32_t vi32 __attribute__((vector_size(64), aligned(1), may_alias));
typedef uint32_t vu32 __attribute__((vector_size(64), aligned(1), may_alias));
typedef int64_t vi64 __attribute__((vector_size(64), aligned(1), may_alias));
typedef uint64_t vu64 __attribute__((vector_size(64), aligned(1), may_alias));

/* Takes b where the mask is set, else a: whole bits, so a NaN keeps its own. */
#define PICK(vector, bits, mask, a, b) ((vector)(((bits)(b) & (bits)(mask)) | ((bits)(a) & ~(bits)(mask))))

/* NOLINTBEGIN(bugprone-macro-parentheses): a type cannot stand in parentheses. */

/* into[i] = an expression of a and b, by vectors, then one by one. The expressions see x and y. */
#define COMBINE(name, attribute, type, vector, of_vectors, of_values)                                                  \
    attribute static void name(void *into, const void *a, const void *b, size_t n)                                     \
    {                                                                                                                  \
        type *to = into;                                                                                               \
        const type *left = a;                                                                                          \
        const type *right = b;                                                                                         \
        const size_t lanes = 64 / sizeof(type);                                                                        \
        size_t i = 0;                                                                                                  \
                                                                                                                       \
        for (; i + lanes <= n; i += lanes) {                                                                           \
            const vector x = *(const vector *)(left + i);                                                              \
            const vector y = *(const vector *)(right + i);                                                             \
                                                                                                                       \
            *(vector *)(to + i) = of_vectors;                                                                          \
        }                                                                                                              \
        for (; i < n; i++) {                                                                                           \
            const type x = left[i];                                                                                    \
            const type y = right[i];                                                                                   \
                                                                                                                       \
            to[i] = of_values;                                                                                         \
        }                                                                                                              \
    }

#define DIVIDE(name, attribute, type, vector, of_vectors, of_values)                                                   \
    attribute static void name(void *into, const void *from, uint32_t count, size_t n)                                 \
    {                                                                                                                  \
        type *to = into;                                                                                               \
        const type *values = from;                                                                                     \
        const type by = (type)count;                                                                                   \
        const size_t lanes = 64 / sizeof(type);                                                                        \
        size_t i = 0;                                                                                                  \
                                                                                                                       \
        for (; i + lanes <= n; i += lanes) {                                                                           \
            const vector x = *(const vector *)(values + i);                                                            \
                                                                                                                       \
            *(vector *)(to + i) = of_vectors;                                                                          \
        }                                                                                                              \
        for (; i < n; i++) {                                                                                           \
            const type x = values[i];                                                                                  \
                                                                                                                       \
            to[i] = of_values;                                                                                         \
        }                                                                                                              \
    }

/* The lesser (greater) of two; a NaN wins, and the left one of two that are equal. */
#define FLOATS(suffix, attribute, type, vector, signs, bits)                                                           \
    COMBINE(type##_sum_##suffix, attribute, type, vector, x + y, x + y)                                                \
    COMBINE(type##_min_##suffix, attribute, type, vector, PICK(vector, bits, ((y < x) | (y != y)) & (x == x), x, y),   \
            (y < x || y != y) && x == x ? y : x)                                                                       \
    COMBINE(type##_max_##suffix, attribute, type, vector, PICK(vector, bits, ((y > x) | (y != y)) & (x == x), x, y),   \
            (y > x || y != y) && x == x ? y : x)                                                                       \
    DIVIDE(type##_divide_##suffix, attribute, type, vector, x / by, x / by)

#define INTEGERS(suffix, attribute, type, unsigned_type, vector, bits)                                                 \
    COMBINE(type##_sum_##suffix, attribute, type, vector, (vector)((bits)x + (bits)y),                                 \
            (type)((unsigned_type)x + (unsigned_type)y))                                                               \
    COMBINE(type##_min_##suffix, attribute, type, vector, PICK(vector, bits, y < x, x, y), y < x ? y : x)              \
    COMBINE(type##_max_##suffix, attribute, type, vector, PICK(vector, bits, y > x, x, y), y > x ? y : x)              \
    DIVIDE(type##_divide_##suffix, attribute, type, vector, x / by, x / by)

#define ROW(type, suffix)                                                                                              \
    {                                                                                                                  \
        type##_sum_##suffix, type##_min_##suffix, type##_max_##suffix                                                  \
    }

#define FAMILY(suffix, attribute, halves)                                                                              \
    FLOATS(suffix, attribute, float, vf32, vi32, vu32)                                                                 \
    FLOATS(suffix, attribute, double, vf64, vi64, vu64)                                                                \
    INTEGERS(suffix, attribute, int32_t, uint32_t, vi32, vu32)                                                         \
    INTEGERS(suffix, attribute, int64_t, uint64_t, vi64, vu64)                                                         \
    attribute static void widen_bf16_##suffix(float *into, const uint16_t *from, size_t n)                             \
    {                                                                                                                  \
        for (size_t i = 0; i < n; i++)                                                                                 \
            into[i] = half_widen_bf16(from[i]);                                                                        \
    }                                                                                                                  \
    attribute static void narrow_bf16_##suffix(uint16_t *into, const float *from, size_t n)                            \
    {                                                                                                                  \
        for (size_t i = 0; i < n; i++)                                                                                 \
            into[i] = half_narrow_bf16(from[i]);                                                                       \
    }                                                                                                                  \
    static const struct reduce_kernels family_##suffix = {                                                             \
        .name = #suffix,                                                                                               \
        .combine = { ROW(float, suffix), ROW(double, suffix), ROW(int32_t, suffix), ROW(int64_t, suffix) },            \
        .divide = { float_divide_##suffix, double_divide_##suffix, int32_t_divide_##suffix, int64_t_divide_##suffix }, \
        .widen_f16 = half_widen_f16_##halves,                                                                          \
        .widen_bf16 = widen_bf16_##suffix,                                                                             \
        .narrow_f16 = half_narrow_f16_##halves,                                                                        \
        .narrow_bf16 = narrow_bf16_##suffix,                                                                           \
    };

/* NOLINTEND(bugprone-macro-parentheses) */
FAMILY(plain, , plain)
FAMILY(avx2, CPU_AVX2, f16c)
FAMILY(avx512, CPU_AVX512, f16c)

static const struct reduce_kernels *const families[] = { &family_plain, &family_avx2, &family_avx512 };
static unsigned family_count = 1;

__attribute__((constructor)) static void families_count(void)
{
    if (cpu_has_avx2() && cpu_has_f16c())
        family_count = cpu_has_avx512() ? 3 : 2;
}

const struct reduce_kernels *reduce_kernels_get(void) { return families[family_count - 1]; }

const struct reduce_kernels *reduce_kernels_at(unsigned i) { return i < family_count ? families[i] : NULL; }

uint32_t reduce_type_bytes(uint32_t type)
{
    switch ((enum shoal_type)type) {
    case SHOAL_FLOAT16:
    case SHOAL_BFLOAT16: return 2;
    case SHOAL_FLOAT32:
    case SHOAL_INT32: return 4;
    case SHOAL_FLOAT64:
    case SHOAL_INT64: return 8;
    case SHOAL_TYPE_COUNT: break;
    }
    SHOAL_ASSERT(type < SHOAL_TYPE_COUNT); /* looked at where the operation came in */
    return 0;
}

uint32_t reduce_sum_type(uint32_t type) { return type < REDUCE_TYPES ? type : SHOAL_FLOAT32; }
