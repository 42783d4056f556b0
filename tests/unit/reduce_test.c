/* The arithmetic of the collectives outside of steps: the plain family against loops that are written out here, and every
 * other family of this processor against the plain one, to the bit: all types and reductions, odd sizes, odd addresses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

#include "collective/memory/half.h"
#include "collective/memory/reduce.h"
#include "shoal/rand.h"

#include "shoal/banned.h"

#define ELEMS 300u
#define ROOM (ELEMS * 8 + 64)

struct buffers {
    uint8_t a[ROOM], b[ROOM], got[ROOM], want[ROOM];
};

/* Numbers of all kinds: any bits (NaNs and subnormals among them), zeroes of both signs, infinities, small integers. */
static void fill(struct shoal_rand *rand, uint8_t *bytes, uint32_t type)
{
    static const double special[] = { 0.0, -0.0, 1.0, -1.0, INFINITY, -INFINITY, NAN, 3.5 };

    for (size_t i = 0; i < ROOM / 8; i++) {
        uint64_t bits = shoal_rand_u64(rand);

        memcpy(bytes + i * 8, &bits, 8);
    }
    for (size_t i = 0; i < ELEMS; i++) {
        double value = special[shoal_rand_below(rand, 8)];
        float narrow = (float)value;

        if (shoal_rand_below(rand, 2) == 0)
            continue;
        if (type == SHOAL_FLOAT32)
            memcpy(bytes + i * 4, &narrow, 4);
        if (type == SHOAL_FLOAT64)
            memcpy(bytes + i * 8, &value, 8);
    }
}

static bool is_nan(uint32_t type, const uint8_t *bytes, size_t i)
{
    float narrow;
    double wide;

    memcpy(&narrow, bytes + i * 4, 4);
    if (type == SHOAL_FLOAT32)
        return isnan(narrow);
    memcpy(&wide, bytes + i * 8, 8);
    return type == SHOAL_FLOAT64 && isnan(wide);
}

/* The same bits; or both a NaN, where it is not said which. */
static void expect_equal(uint32_t type, const uint8_t *got, const uint8_t *want, size_t n, bool any_nan)
{
    uint32_t bytes = reduce_type_bytes(type);

    for (size_t i = 0; i < n; i++)
        if (!any_nan || !is_nan(type, got, i) || !is_nan(type, want, i))
            assert_memory_equal(got + i * bytes, want + i * bytes, bytes);
}

static void families_are_equal(void **state)
{
    static struct buffers x;
    const struct reduce_kernels *plain = reduce_kernels_at(0);
    struct shoal_rand rand;

    (void)state;
    shoal_rand_init(&rand, 3);
    for (unsigned round = 0; round < 400; round++) {
        uint32_t type = round % REDUCE_TYPES;
        uint32_t bytes = reduce_type_bytes(type);
        size_t n = (size_t)shoal_rand_below(&rand, ELEMS - 16);
        size_t skip = (size_t)shoal_rand_below(&rand, 16) * bytes;

        fill(&rand, x.a, type);
        fill(&rand, x.b, type);
        for (unsigned i = 1; reduce_kernels_at(i) != NULL; i++) {
            const struct reduce_kernels *k = reduce_kernels_at(i);

            for (uint32_t how = 0; how < SHOAL_MEAN; how++) {
                memset(x.got, 0, ROOM);
                memset(x.want, 0, ROOM);
                plain->combine[type][how](x.want, x.a + skip, x.b, n);
                k->combine[type][how](x.got, x.a + skip, x.b, n);
                expect_equal(type, x.got, x.want, n, how == SHOAL_SUM);
                assert_memory_equal(x.got + n * bytes, x.want + n * bytes, ROOM - n * bytes); /* nothing beyond */
                memcpy(x.got, x.a, ROOM); /* in place */
                k->combine[type][how](x.got + skip, x.got + skip, x.b, n);
                expect_equal(type, x.got + skip, x.want, n, how == SHOAL_SUM);
            }
            plain->divide[type](x.want, x.a + skip, 1 + round % 7, n);
            k->divide[type](x.got, x.a + skip, 1 + round % 7, n);
            expect_equal(type, x.got, x.want, n, true);
        }
    }
}

/* ---- the plain family, against what collective_op.h says ---- */

static void floats_follow_the_rules(void **state)
{
    static const struct {
        float a, b, sum, min, max;
    } rows[] = {
        { 1, 2, 3, 1, 2 },
        { -1, -2, -3, -2, -1 },
        { 0.0f, -0.0f, 0.0f, 0.0f, 0.0f },   /* of two zeroes the left one */
        { -0.0f, 0.0f, 0.0f, -0.0f, -0.0f }, /* likewise */
        { INFINITY, 1, INFINITY, 1, INFINITY },
        { INFINITY, -INFINITY, NAN, -INFINITY, INFINITY },
        { NAN, 1, NAN, NAN, NAN },
        { 1, NAN, NAN, NAN, NAN },
        { NAN, INFINITY, NAN, NAN, NAN },
    };
    const struct reduce_kernels *k = reduce_kernels_at(0);

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const float want[] = { rows[i].sum, rows[i].min, rows[i].max };

        for (uint32_t how = 0; how < SHOAL_MEAN; how++) {
            double a = (double)rows[i].a;
            double b = (double)rows[i].b;
            float narrow;
            double wide;

            k->combine[SHOAL_FLOAT32][how](&narrow, &rows[i].a, &rows[i].b, 1);
            k->combine[SHOAL_FLOAT64][how](&wide, &a, &b, 1);
            assert_true(isnan(want[how]) ? isnan(narrow) : narrow == want[how] && !signbit(narrow) == !signbit(want[how]));
            assert_true(isnan(want[how]) ? isnan(wide) : wide == (double)want[how] && !signbit(wide) == !signbit(want[how]));
        }
    }
}

static void integers_wrap_and_divide_towards_zero(void **state)
{
    const struct reduce_kernels *k = reduce_kernels_at(0);
    const int32_t a[] = { INT32_MAX, -7, INT32_MIN, 5 };
    const int32_t b[] = { 1, 3, -1, -9 };
    const int64_t c[] = { INT64_MAX, -7 };
    const int64_t d[] = { 2, INT64_MIN };
    int32_t got[4];
    int64_t wide[2];

    (void)state;
    k->combine[SHOAL_INT32][SHOAL_SUM](got, a, b, 4);
    assert_memory_equal(got, ((const int32_t[]){ INT32_MIN, -4, INT32_MAX, -4 }), sizeof(got));
    k->combine[SHOAL_INT32][SHOAL_MIN](got, a, b, 4);
    assert_memory_equal(got, ((const int32_t[]){ 1, -7, INT32_MIN, -9 }), sizeof(got));
    k->combine[SHOAL_INT32][SHOAL_MAX](got, a, b, 4);
    assert_memory_equal(got, ((const int32_t[]){ INT32_MAX, 3, -1, 5 }), sizeof(got));
    k->divide[SHOAL_INT32](got, a, 2, 4);
    assert_memory_equal(got, ((const int32_t[]){ INT32_MAX / 2, -3, INT32_MIN / 2, 2 }), sizeof(got));
    k->combine[SHOAL_INT64][SHOAL_SUM](wide, c, d, 2);
    assert_memory_equal(wide, ((const int64_t[]){ INT64_MIN + 1, INT64_MAX - 6 }), sizeof(wide));
    k->combine[SHOAL_INT64][SHOAL_MIN](wide, c, d, 2);
    assert_memory_equal(wide, ((const int64_t[]){ 2, INT64_MIN }), sizeof(wide));
    k->divide[SHOAL_INT64](wide, c, 3, 2);
    assert_memory_equal(wide, ((const int64_t[]){ INT64_MAX / 3, -2 }), sizeof(wide));
}

/* ---- 16 bits ---- */

/* The value of a float16, from its definition. */
static double f16_value(uint16_t bits)
{
    int exponent = bits >> 10 & 0x1f;
    double mantissa = (double)(bits & 0x3ff);
    double sign = bits & 0x8000 ? -1.0 : 1.0;

    if (exponent == 31)
        return mantissa == 0 ? sign * INFINITY : NAN;
    return sign * (exponent == 0 ? ldexp(mantissa, -24) : ldexp(mantissa + 1024.0, exponent - 25));
}

static void every_half_is_widened_and_comes_back(void **state)
{
    static uint16_t all[65536], back[65536];
    static float wide[65536], plain[65536];

    (void)state;
    for (uint32_t i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    reduce_kernels_at(0)->widen_f16(plain, all, 65536);
    for (uint32_t i = 0; i < 65536; i++)
        assert_true(isnan(f16_value((uint16_t)i)) ? isnan(plain[i]) : (double)plain[i] == f16_value((uint16_t)i));
    for (unsigned f = 0; reduce_kernels_at(f) != NULL; f++) {
        const struct reduce_kernels *k = reduce_kernels_at(f);

        k->widen_f16(wide, all, 65536);
        assert_memory_equal(wide, plain, sizeof(wide));
        k->narrow_f16(back, wide, 65536);
        for (uint32_t i = 0; i < 65536; i++)
            assert_int_equal(back[i], isnan(wide[i]) ? i | 0x200 : i);
        k->widen_bf16(wide, all, 65536);
        k->narrow_bf16(back, wide, 65536);
        for (uint32_t i = 0; i < 65536; i++)
            assert_int_equal(back[i], isnan(wide[i]) ? i | 0x40 : i);
    }
}

/* Rounding: the nearest of both neighbours, the even one half way; beyond the largest, an infinity. */
static void expect_nearest(float value, uint16_t got)
{
    double exact = (double)value;
    double here = f16_value(got);

    if (isnan(value)) {
        assert_true(isnan(here));
        return;
    }
    assert_int_equal(got >> 15, signbit(value) != 0);
    if (fabs(exact) >= 65520.0) { /* half way from the largest one to the next */
        assert_true(isinf(here));
        return;
    }
    for (int step = -1; step <= 1; step += 2) {
        double there = fabs(f16_value((uint16_t)((got & 0x7fff) + (step < 0 && (got & 0x7fff) == 0 ? 0 : step))));
        double error = fabs(fabs(exact) - fabs(here));
        double other = fabs(fabs(exact) - (isinf(there) ? 65536.0 : there));

        assert_true(error <= other);
        assert_true(error != other || (got & 0x7fff) == 0 || got % 2 == 0);
    }
}

static void floats_are_rounded_to_the_nearest_even(void **state)
{
    static float values[4096];
    static uint16_t got[4096], want[4096];
    struct shoal_rand rand;

    (void)state;
    shoal_rand_init(&rand, 5);
    for (unsigned round = 0; round < 60; round++) {
        for (size_t i = 0; i < 4096; i++) {
            uint32_t bits = (uint32_t)shoal_rand_u64(&rand);

            if (i % 2 == 0) /* where float16 has values, and half way between two of them */
                bits = (bits & 0x80000000u) | ((101 + (uint32_t)shoal_rand_below(&rand, 44)) << 23) |
                       (bits & (i % 4 == 0 ? 0x7ff000u : 0x7fffffu));
            values[i] = half_of_bits(bits);
        }
        reduce_kernels_at(0)->narrow_f16(want, values, 4096);
        for (size_t i = 0; i < 4096; i++)
            expect_nearest(values[i], want[i]);
        for (unsigned f = 1; reduce_kernels_at(f) != NULL; f++) {
            size_t skip = round % 9;

            reduce_kernels_at(f)->narrow_f16(got, values + skip, 4096 - skip);
            assert_memory_equal(got, want + skip, (4096 - skip) * 2);
        }
        reduce_kernels_at(0)->narrow_bf16(want, values, 4096);
        for (size_t i = 0; i < 4096; i++) { /* of the neighbours the nearer one */
            double error = fabs((double)half_widen_bf16(want[i]) - (double)values[i]);

            if (!isnan(values[i]) && !isinf(half_widen_bf16((uint16_t)(want[i] + 1))) && !isinf(half_widen_bf16(want[i])))
                assert_true(error <= fabs((double)half_widen_bf16((uint16_t)(want[i] + 1)) - (double)values[i]));
        }
        for (unsigned f = 1; reduce_kernels_at(f) != NULL; f++) {
            reduce_kernels_at(f)->narrow_bf16(got, values, 4096);
            assert_memory_equal(got, want, sizeof(got));
        }
    }
    assert_int_equal(half_narrow_bf16(half_of_bits(0x3f808000u)), 0x3f80); /* half way: the even one */
    assert_int_equal(half_narrow_bf16(half_of_bits(0x3f818000u)), 0x3f82);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_are_equal),
        cmocka_unit_test(floats_follow_the_rules),
        cmocka_unit_test(integers_wrap_and_divide_towards_zero),
        cmocka_unit_test(every_half_is_widened_and_comes_back),
        cmocka_unit_test(floats_are_rounded_to_the_nearest_even),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
