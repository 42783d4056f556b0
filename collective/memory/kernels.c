#include "kernels.h"

#include <string.h>

#include "shoal/collective.h"
#include "shoal/permute.h"

#include "cpu.h"

#include "shoal/banned.h"

/* Vectors of 64 bytes: the compiler splits them where the instruction set is narrower. */
typedef float vf __attribute__((vector_size(64), aligned(4), may_alias));
typedef double vd __attribute__((vector_size(64), aligned(8), may_alias));
typedef int32_t vi __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t vu __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint64_t vl __attribute__((vector_size(64), aligned(8), may_alias));

/* Keys of the digest (NH: Black et al., UMAC, CRYPTO 1999): products of key-shifted halves, added up. */
static uint64_t digest_keys[KERNEL_DIGEST_BYTES / 8] __attribute__((aligned(64)));

/* One family of functions per instruction set; a macro, since a target is a property of a function. */
#define KERNEL_LOOP(vector, type, lanes, vector_value, scalar_value)                                                   \
    size_t i = 0;                                                                                                      \
    for (; i + (lanes) <= n; i += (lanes))                                                                             \
        *(vector *)(into + i) = vector_value;                                                                          \
    for (; i < n; i++)                                                                                                 \
    into[i] = (type)(scalar_value)
#define AT(vector, pointer) (*(const vector *)((pointer) + i))

/* NOLINTBEGIN(bugprone-macro-parentheses): a type cannot stand in parentheses. */
#define KERNEL_FAMILY(suffix, attribute)                                                                               \
    attribute static void add_f32_##suffix(float *into, const float *a, const float *b, size_t n)                      \
    {                                                                                                                  \
        KERNEL_LOOP(vf, float, 16, AT(vf, a) + AT(vf, b), a[i] + b[i]);                                                \
    }                                                                                                                  \
    attribute static void add_f64_##suffix(double *into, const double *a, const double *b, size_t n)                   \
    {                                                                                                                  \
        KERNEL_LOOP(vd, double, 8, AT(vd, a) + AT(vd, b), a[i] + b[i]);                                                \
    }                                                                                                                  \
    attribute static void add_i32_##suffix(int32_t *into, const int32_t *a, const int32_t *b, size_t n)                \
    {                                                                                                                  \
        KERNEL_LOOP(vi, int32_t, 16, (vi)(AT(vu, a) + AT(vu, b)), (uint32_t)a[i] + (uint32_t)b[i]);                    \
    }                                                                                                                  \
    attribute static void add_div_f32_##suffix(float *into, const float *a, const float *b, float divisor, size_t n)   \
    {                                                                                                                  \
        KERNEL_LOOP(vf, float, 16, (AT(vf, a) + AT(vf, b)) / divisor, (a[i] + b[i]) / divisor);                        \
    }                                                                                                                  \
    attribute static void div_f32_##suffix(float *into, const float *a, float divisor, size_t n)                       \
    {                                                                                                                  \
        KERNEL_LOOP(vf, float, 16, AT(vf, a) / divisor, a[i] / divisor);                                               \
    }                                                                                                                  \
    attribute static void scale_f32_##suffix(float *into, const float *g, float weight, size_t n)                      \
    {                                                                                                                  \
        KERNEL_LOOP(vf, float, 16, AT(vf, g) * weight + 0.0f, g[i] * weight + 0.0f);                                                 \
    }                                                                                                                  \
    attribute static void scale_add_f32_##suffix(float *into, const float *g, float weight, size_t n)                  \
    {                                                                                                                  \
        KERNEL_LOOP(vf, float, 16, *(vf *)(into + i) + AT(vf, g) * weight, into[i] + g[i] * weight);                   \
    }                                                                                                                  \
    attribute static uint64_t digest_##suffix(const uint8_t *block, uint64_t key)                                      \
    {                                                                                                                  \
        vl sum = { 0 };                                                                                                \
        uint64_t total = 0;                                                                                            \
                                                                                                                       \
        for (size_t i = 0; i < KERNEL_DIGEST_BYTES; i += 64) {                                                         \
            vu word = *(const vu *)(block + i) + *(const vu *)((const uint8_t *)digest_keys + i);                      \
            vl pair = (vl)word;                                                                                        \
                                                                                                                       \
            sum += (pair & 0xffffffffu) * (pair >> 32);                                                                \
        }                                                                                                              \
        for (size_t i = 0; i < 8; i++)                                                                                 \
            total = shoal_mix64(total + sum[i] + 0x9e3779b97f4a7c15u);                                                 \
        return shoal_mix64(total ^ key);                                                                               \
    }                                                                                                                  \
    static const struct kernels family_##suffix = {                                                                    \
        #suffix,          add_f32_##suffix,   add_f64_##suffix,       add_i32_##suffix, add_div_f32_##suffix,          \
        div_f32_##suffix, scale_f32_##suffix, scale_add_f32_##suffix, digest_##suffix                                  \
    };

/* NOLINTEND(bugprone-macro-parentheses) */
KERNEL_FAMILY(plain, )
KERNEL_FAMILY(avx2, CPU_AVX2)
KERNEL_FAMILY(avx512, CPU_AVX512)

static const struct kernels *chosen;

__attribute__((constructor)) static void kernels_choose(void)
{
    for (uint64_t i = 0; i < KERNEL_DIGEST_BYTES / 8; i++)
        digest_keys[i] = shoal_mix64((i + 1) * 0x9e3779b97f4a7c15u);
    chosen = &family_plain;
    if (cpu_has_avx512())
        chosen = &family_avx512;
    else if (cpu_has_avx2())
        chosen = &family_avx2;
}

const struct kernels *kernels_get(void) { return chosen; }

uint64_t kernels_digest(const void *bytes, size_t len, uint64_t position)
{
    const uint8_t *at = bytes;
    uint64_t block = position / KERNEL_DIGEST_BYTES;
    uint64_t sum = 0;

    for (; len >= KERNEL_DIGEST_BYTES; len -= KERNEL_DIGEST_BYTES, at += KERNEL_DIGEST_BYTES)
        sum += chosen->digest(at, shoal_mix64(++block));
    if (len > 0) {
        uint8_t last[KERNEL_DIGEST_BYTES] = { 0 };

        memcpy(last, at, len);
        sum += chosen->digest(last, shoal_mix64(++block));
    }
    return sum;
}

uint64_t shoal_digest(const void *bytes, uint64_t len, uint64_t position)
{
    return kernels_digest(bytes, (size_t)len, position);
}

void shoal_sample_sums(uint64_t job_seed, const uint64_t *ids, uint64_t count, uint64_t sum[2])
{
    struct shoal_sample_sum total = { 0, 0 };

    for (uint64_t i = 0; i < count; i++)
        shoal_sample_sum_add(&total, job_seed, ids[i]);
    sum[0] = total.low;
    sum[1] = total.high;
}
