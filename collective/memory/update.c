#include "update.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "cpu.h"

#include "shoal/banned.h"

#define LANES 16u

typedef float vf __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(64), aligned(4), may_alias));

struct run {
    const float *numbers;
    uint32_t flags;
    const float *g;
    const float *const *from;
    float *const *into;
};

#define FROM(k) (*(const vf *)(r->from[k] + i))
#define INTO(k) (*(vf *)(r->into[k] + i))
#define HAS(flag) ((r->flags & SHOAL_UPDATE_##flag) != 0)
#define GRADIENT(decay)                                                                                                \
    vf p = FROM(0);                                                                                                    \
    vf g = *(const vf *)(r->g + i);                                                                                    \
    if (HAS(MAXIMIZE))                                                                                                 \
        g = -g;                                                                                                        \
    if (HAS(WEIGHT_DECAY))                                                                                             \
        g = g + p * (decay)

/* One family of functions per instruction set; a macro, since a target is a property of a function. */
/* NOLINTBEGIN(bugprone-macro-parentheses): an attribute cannot stand in parentheses. */
#define UPDATE_FAMILY(suffix, attribute)                                                                               \
    attribute static void sgd_##suffix(const struct run *r, size_t n)                                                  \
    {                                                                                                                  \
        const float *c = r->numbers;                                                                                   \
                                                                                                                       \
        for (size_t i = 0; i < n; i += LANES) {                                                                        \
            GRADIENT(c[3]);                                                                                            \
            if (HAS(MOMENTUM)) {                                                                                       \
                vf a = FROM(1) * c[1] + g * c[2];                                                                      \
                                                                                                                       \
                INTO(1) = a;                                                                                           \
                if (HAS(NESTEROV))                                                                                     \
                    g = g + a * c[1];                                                                                  \
                else                                                                                                   \
                    g = a;                                                                                             \
            }                                                                                                          \
            INTO(0) = p - g * c[0];                                                                                    \
        }                                                                                                              \
    }                                                                                                                  \
    attribute static void adam_##suffix(const struct run *r, size_t n)                                                 \
    {                                                                                                                  \
        const float *c = r->numbers;                                                                                   \
                                                                                                                       \
        for (size_t i = 0; i < n; i += LANES) {                                                                        \
            GRADIENT(c[6]);                                                                                            \
            vf a = FROM(1) + (g - FROM(1)) * c[1];                                                                     \
            vf b = FROM(2) * c[2] + g * g * c[3];                                                                      \
            vf root = b;                                                                                               \
                                                                                                                       \
            INTO(1) = a;                                                                                               \
            INTO(2) = b;                                                                                               \
            if (HAS(AMSGRAD)) {                                                                                        \
                vf most = FROM(3);                                                                                     \
                vi more = (vi)(b > most) | (vi)(b != b);                                                               \
                                                                                                                       \
                root = (vf)((more & (vi)b) | (~more & (vi)most));                                                      \
                INTO(3) = root;                                                                                        \
            }                                                                                                          \
            if (HAS(DECOUPLED))                                                                                        \
                p = p * c[6];                                                                                          \
            cpu_root_##suffix((float *)&root);                                                                         \
            INTO(0) = p - a / (root / c[4] + c[5]) * c[0];                                                             \
        }                                                                                                              \
    }                                                                                                                  \
    attribute static void rmsprop_##suffix(const struct run *r, size_t n)                                              \
    {                                                                                                                  \
        const float *c = r->numbers;                                                                                   \
        unsigned mean = HAS(MOMENTUM) ? 3 : 2;                                                                         \
                                                                                                                       \
        for (size_t i = 0; i < n; i += LANES) {                                                                        \
            GRADIENT(c[5]);                                                                                            \
            vf a = FROM(1) * c[1] + g * g * c[2];                                                                      \
            vf root = a;                                                                                               \
                                                                                                                       \
            INTO(1) = a;                                                                                               \
            if (HAS(CENTERED)) {                                                                                       \
                vf m = FROM(mean) + (g - FROM(mean)) * c[2];                                                           \
                                                                                                                       \
                INTO(mean) = m;                                                                                        \
                root = a - m * m;                                                                                      \
            }                                                                                                          \
            cpu_root_##suffix((float *)&root);                                                                         \
            g = g / (root + c[3]);                                                                                     \
            if (HAS(MOMENTUM)) {                                                                                       \
                g = FROM(2) * c[4] + g;                                                                                \
                INTO(2) = g;                                                                                           \
            }                                                                                                          \
            INTO(0) = p - g * c[0];                                                                                    \
        }                                                                                                              \
    }                                                                                                                  \
    attribute static void adagrad_##suffix(const struct run *r, size_t n)                                              \
    {                                                                                                                  \
        const float *c = r->numbers;                                                                                   \
                                                                                                                       \
        for (size_t i = 0; i < n; i += LANES) {                                                                        \
            GRADIENT(c[3]);                                                                                            \
            vf a = FROM(1) + g * g;                                                                                    \
            vf root = a;                                                                                               \
                                                                                                                       \
            INTO(1) = a;                                                                                               \
            cpu_root_##suffix((float *)&root);                                                                         \
            INTO(0) = p - g / (root + c[1]) * c[0];                                                                    \
        }                                                                                                              \
    }                                                                                                                  \
    static rule_fn *const family_##suffix[SHOAL_UPDATE_RULES] = { sgd_##suffix, adam_##suffix, rmsprop_##suffix,       \
                                                                  adagrad_##suffix };
/* NOLINTEND(bugprone-macro-parentheses) */

typedef void rule_fn(const struct run *run, size_t n); /* n in whole vectors */

UPDATE_FAMILY(plain, )
UPDATE_FAMILY(avx2, CPU_AVX2)
UPDATE_FAMILY(avx512, CPU_AVX512)

static rule_fn *const *const families[] = { family_plain, family_avx2, family_avx512 };

static bool has_family(unsigned family)
{
    return family == 0 || (family == 1 && cpu_has_avx2()) || (family == 2 && cpu_has_avx512());
}

uint32_t update_vectors(const struct shoal_update_part *part)
{
    uint32_t momentum = (part->flags & SHOAL_UPDATE_MOMENTUM) != 0;
    uint32_t centered = (part->flags & SHOAL_UPDATE_CENTERED) != 0;

    switch ((enum shoal_update_rule)part->rule) {
    case SHOAL_UPDATE_SGD:
        return 1 + momentum;
    case SHOAL_UPDATE_ADAM:
        return 3 + ((part->flags & SHOAL_UPDATE_AMSGRAD) != 0);
    case SHOAL_UPDATE_RMSPROP:
        return 2 + momentum + centered;
    case SHOAL_UPDATE_ADAGRAD:
        return 2;
    case SHOAL_UPDATE_RULES:
        break;
    }
    return 0;
}

/* The rest that does not fill a vector goes through one that is padded: the same operations for each element. */
static void run_rest(rule_fn *rule, const struct run *run, uint32_t vectors, size_t at, size_t rest)
{
    float g[LANES] = { 0 };
    float values[SHOAL_UPDATE_VECTORS][LANES] = { { 0 } };
    const float *from[SHOAL_UPDATE_VECTORS];
    float *into[SHOAL_UPDATE_VECTORS];
    struct run padded = { .numbers = run->numbers, .flags = run->flags, .g = g, .from = from, .into = into };

    memcpy(g, run->g + at, rest * sizeof(float));
    for (uint32_t k = 0; k < vectors; k++) {
        memcpy(values[k], run->from[k] + at, rest * sizeof(float));
        from[k] = into[k] = values[k];
    }
    rule(&padded, LANES);
    for (uint32_t k = 0; k < vectors; k++)
        memcpy(run->into[k] + at, values[k], rest * sizeof(float));
}

bool update_elements_by(unsigned family, const struct shoal_update_part *part, const float *g, const float *const *from,
                        float *const *into, size_t n)
{
    struct run run = { .numbers = part->numbers, .flags = part->flags, .g = g, .from = from, .into = into };
    uint32_t vectors = update_vectors(part);
    size_t whole = n / LANES * LANES;

    SHOAL_ASSERT(vectors > 0 && vectors <= SHOAL_UPDATE_VECTORS);
    if (!has_family(family))
        return false;
    families[family][part->rule](&run, whole);
    if (whole < n)
        run_rest(families[family][part->rule], &run, vectors, whole, n - whole);
    return true;
}

void update_elements(const struct shoal_update_part *part, const float *g, const float *const *from, float *const *into,
                     size_t n)
{
    for (unsigned family = 2; !update_elements_by(family, part, g, from, into, n); family--)
        SHOAL_ASSERT(family > 0);
}
