/* The update of weights by libshoal: each rule in every family of functions of this processor against the plain one, and in
 * pieces against whole, to the bit; the rules against loops in double precision; what is refused. Against NumPy, to the bit:
 * python/test_update.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/mman.h>

#include "collective/comm/comm.h"
#include "collective/memory/update.h"
#include "shoal/collective.h"
#include "shoal/rand.h"
#include "shoal/step_record.h"

#include "shoal/banned.h"

#define ELEMS 611u

struct vectors {
    float v[SHOAL_UPDATE_VECTORS][ELEMS + 1];
};

static float small(struct shoal_rand *rand) { return (float)shoal_rand_below(rand, 2000) / 1000.0f - 1.0f; }

static void fill(struct shoal_rand *rand, struct vectors *from, float *g)
{
    for (size_t i = 0; i <= ELEMS; i++) {
        g[i] = shoal_rand_below(rand, 40) == 0 ? NAN : small(rand);
        from->v[0][i] = small(rand);
        for (int k = 1; k < SHOAL_UPDATE_VECTORS; k++) /* squares and their like are not below zero */
            from->v[k][i] = fabsf(small(rand));
    }
}

static struct shoal_update_part a_part(struct shoal_rand *rand, uint32_t rule)
{
    struct shoal_update_part part = { .end = ELEMS, .rule = rule, .flags = (uint32_t)shoal_rand_below(rand, 128) };

    for (int i = 0; i < SHOAL_UPDATE_NUMBERS; i++)
        part.numbers[i] = 0.1f + (float)shoal_rand_below(rand, 90) / 100.0f;
    return part;
}

/* Elements [begin, end), from odd addresses too, out of place or in place. */
static void update(unsigned family, const struct shoal_update_part *part, const float *g, const struct vectors *from,
                   struct vectors *into, size_t begin, size_t end)
{
    const float *reads[SHOAL_UPDATE_VECTORS];
    float *writes[SHOAL_UPDATE_VECTORS];

    for (int k = 0; k < SHOAL_UPDATE_VECTORS; k++) {
        reads[k] = from->v[k] + begin;
        writes[k] = into->v[k] + begin;
    }
    if (family == 3)
        update_elements(part, g + begin, reads, writes, end - begin);
    else if (!update_elements_by(family, part, g + begin, reads, writes, end - begin))
        update_elements_by(0, part, g + begin, reads, writes, end - begin);
}

static bool same(const struct vectors *a, const struct vectors *b, const struct shoal_update_part *part)
{
    bool equal = true;

    for (uint32_t k = 0; k < update_vectors(part); k++)
        for (size_t i = 0; i < ELEMS; i++)
            equal = equal && (memcmp(&a->v[k][i], &b->v[k][i], 4) == 0 || (isnan(a->v[k][i]) && isnan(b->v[k][i])));
    return equal;
}

static void families_and_pieces_give_the_same_bits(void **state)
{
    static struct vectors from;
    static struct vectors want;
    static struct vectors got;
    float g[ELEMS + 1];
    struct shoal_rand rand;

    (void)state;
    shoal_rand_init(&rand, 5);
    for (unsigned round = 0; round < 400; round++) {
        struct shoal_update_part part = a_part(&rand, round % SHOAL_UPDATE_RULES);
        size_t at = 0;

        fill(&rand, &from, g);
        update(0, &part, g, &from, &want, 0, ELEMS);
        for (unsigned family = 1; family <= 3; family++) {
            update(family, &part, g, &from, &got, 0, ELEMS);
            assert_true(same(&got, &want, &part));
        }
        memcpy(&got, &from, sizeof(got));
        while (at < ELEMS) {
            size_t more = 1 + shoal_rand_below(&rand, 90);

            more = more < ELEMS - at ? more : ELEMS - at;
            update(3, &part, g, &got, &got, at, at + more); /* in place */
            at += more;
        }
        assert_true(same(&got, &want, &part));
    }
}

static void assert_near(double got, double want)
{
    assert_true(fabs(got - want) <= 1e-5 * (1 + fabs(want)));
}

static void rules_are_what_they_say(void **state)
{
    struct vectors x = { { { 2.0f }, { 0.5f }, { 0.25f }, { 0.75f } } };
    float g = -0.5f;
    struct shoal_update_part part = { .end = 1, .rule = SHOAL_UPDATE_SGD, .numbers = { 0.1f, 0.9f, 0.8f, 0.01f } };
    double a;
    double b;

    (void)state;
    part.flags = SHOAL_UPDATE_MOMENTUM | SHOAL_UPDATE_NESTEROV | SHOAL_UPDATE_WEIGHT_DECAY | SHOAL_UPDATE_MAXIMIZE;
    update(3, &part, &g, &x, &x, 0, 1);
    a = 0.9 * 0.5 + 0.8 * (0.5 + 0.01 * 2);
    assert_near((double)x.v[1][0], a);
    assert_near((double)x.v[0][0], 2 - 0.1 * (0.5 + 0.01 * 2 + 0.9 * a));

    x = (struct vectors){ { { 2.0f }, { 0.5f }, { 0.25f }, { 0.75f } } };
    part = (struct shoal_update_part){ .end = 1,
                                       .rule = SHOAL_UPDATE_ADAM,
                                       .flags = SHOAL_UPDATE_AMSGRAD | SHOAL_UPDATE_DECOUPLED,
                                       .numbers = { 0.1f, 0.1f, 0.99f, 0.01f, 0.5f, 0.001f, 0.999f } };
    update(3, &part, &g, &x, &x, 0, 1);
    a = 0.5 + (-0.5 - 0.5) * 0.1;
    b = 0.25 * 0.99 + 0.25 * 0.01;
    assert_near((double)x.v[1][0], a);
    assert_near((double)x.v[2][0], b);
    assert_near((double)x.v[3][0], 0.75);
    assert_near((double)x.v[0][0], 2 * 0.999 - 0.1 * a / (sqrt(0.75) / 0.5 + 0.001));

    x = (struct vectors){ { { 2.0f }, { 0.5f }, { 0.25f }, { 0.1f } } };
    part = (struct shoal_update_part){ .end = 1,
                                       .rule = SHOAL_UPDATE_RMSPROP,
                                       .flags = SHOAL_UPDATE_MOMENTUM | SHOAL_UPDATE_CENTERED,
                                       .numbers = { 0.1f, 0.9f, 0.1f, 0.001f, 0.7f, 0 } };
    update(3, &part, &g, &x, &x, 0, 1);
    a = 0.5 * 0.9 + 0.25 * 0.1;
    b = 0.1 + (-0.5 - 0.1) * 0.1;
    assert_near((double)x.v[3][0], b);
    b = 0.25 * 0.7 - 0.5 / (sqrt(a - b * b) + 0.001);
    assert_near((double)x.v[2][0], b);
    assert_near((double)x.v[0][0], 2 - 0.1 * b);

    x = (struct vectors){ { { 2.0f }, { 0.5f } } };
    part = (struct shoal_update_part){ .end = 1, .rule = SHOAL_UPDATE_ADAGRAD, .numbers = { 0.1f, 0.001f } };
    update(3, &part, &g, &x, &x, 0, 1);
    assert_near((double)x.v[0][0], 2 + 0.1 * 0.5 / (sqrt(0.75) + 0.001));
}

/* ---- what is refused ---- */

#define V_ELEMS 100u
static float weights[V_ELEMS];
static float momentum[V_ELEMS];

static struct shoal_comm *alone(void)
{
    static const char *const names[] = { "loss" };
    struct shoal_comm_plan plan = { .call = 1,
                                    .virtual_workers = 1,
                                    .sum_elems = V_ELEMS,
                                    .samples = 8,
                                    .minibatch = 1,
                                    .data_epochs = 1,
                                    .steps_per_epoch = 8,
                                    .param_count = 1,
                                    .metric_count = 1,
                                    .metric_names = names,
                                    .update_vectors = 2 };
    struct shoal_step step = { .step = 1, .kind = SHOAL_STEP_TRAIN, .v_count = 1 };
    struct shoal_comm_entry entry;
    struct shoal_comm *comm;
    uint32_t v;
    uint32_t count;

    assert_int_equal(shoal_comm_open_solo(&comm, NULL), SHOAL_OK);
    assert_int_equal(shoal_comm_ready(comm, &plan), SHOAL_OK);
    assert_int_equal(shoal_comm_enter(comm, 1000, &entry), SHOAL_OK);
    assert_int_equal(shoal_step_assign(comm, &step, &v, 1, &count), SHOAL_OK);
    return comm;
}

static void set_parts(struct shoal_update_part parts[2])
{
    for (int i = 0; i < 2; i++)
        parts[i] = (struct shoal_update_part){ .begin = i == 0 ? 0 : 40,
                                               .end = i == 0 ? 40 : V_ELEMS,
                                               .rule = SHOAL_UPDATE_SGD,
                                               .flags = SHOAL_UPDATE_MOMENTUM,
                                               .numbers = { 0.1f, 0.9f, 1, 0 },
                                               .from = { weights + 40 * i, momentum + 40 * i },
                                               .into = { weights + 40 * i, momentum + 40 * i } };
}

static void assert_refused(struct shoal_comm *comm, const struct shoal_update_part *parts, uint32_t count, const char *why)
{
    assert_int_equal(shoal_step_update(comm, 1, parts, count), SHOAL_ERR_INVALID);
    assert_non_null(strstr(shoal_comm_error(comm), why));
}

static void wrong_updates_are_refused_by_name(void **state)
{
    struct shoal_comm *comm = alone();
    struct shoal_update_part parts[2];
    float *now[SHOAL_UPDATE_VECTORS];
    struct shoal_comm *unplanned;

    (void)state;
    set_parts(parts);
    assert_refused(comm, parts, 1, "not the whole vector");
    assert_refused(comm, parts, 0, "not the whole vector");
    parts[1].begin = 41;
    assert_refused(comm, parts, 2, "not next to each other");
    set_parts(parts);
    parts[1].end = 39;
    assert_refused(comm, parts, 2, "not next to each other");
    set_parts(parts);
    parts[1].rule = SHOAL_UPDATE_RULES;
    assert_refused(comm, parts, 2, "rule is none");
    parts[1].rule = SHOAL_UPDATE_ADAM;
    assert_refused(comm, parts, 2, "more vectors than the plan");
    set_parts(parts);
    parts[0].from[1] = NULL;
    assert_refused(comm, parts, 2, "no address");
    set_parts(parts);
    parts[1].into[0] = NULL;
    assert_int_equal(shoal_update_run(comm, parts, 2), SHOAL_ERR_INVALID);
    assert_int_equal(shoal_step_updated(comm, now), SHOAL_ERR_NOT_FOUND);
    assert_int_equal(shoal_update_keep(comm, weights), SHOAL_ERR_INVALID);
    set_parts(parts);
    assert_int_equal(shoal_step_update(comm, 1, parts, 2), SHOAL_OK);
    assert_int_equal(shoal_step_part(comm, 0, 1, 0, 10, weights), SHOAL_OK);
    assert_refused(comm, parts, 2, "before a gradient");
    shoal_comm_close(comm);

    assert_int_equal(shoal_comm_open_solo(&unplanned, NULL), SHOAL_OK);
    assert_refused(unplanned, parts, 2, "no plan");
    assert_int_equal(shoal_update_run(unplanned, parts, 2), SHOAL_ERR_INVALID);
    assert_int_equal(shoal_step_updated(unplanned, now), SHOAL_ERR_NOT_FOUND);
    shoal_comm_close(unplanned);
}

static void an_update_here_takes_the_result(void **state)
{
    struct shoal_comm *comm = alone();
    struct shoal_update_part parts[2];
    double loss = 0;
    struct shoal_minibatch minibatch = { .samples = 1, .values = &loss };

    (void)state;
    for (uint32_t i = 0; i < V_ELEMS; i++) {
        weights[i] = (float)i;
        momentum[i] = 1;
        shoal_comm_work(comm)[i] = 2;
    }
    assert_int_equal(shoal_step_publish(comm, &minibatch), SHOAL_OK);
    assert_int_equal(shoal_step_reduce(comm), SHOAL_OK);
    assert_int_equal(shoal_step_complete(comm), SHOAL_OK);
    assert_int_equal(shoal_step_apply_allowed(comm), SHOAL_OK);
    set_parts(parts);
    assert_int_equal(shoal_update_run(comm, parts, 2), SHOAL_OK);
    for (uint32_t i = 0; i < V_ELEMS; i++) {
        assert_true(momentum[i] == 1 * 0.9f + 2);
        assert_true(weights[i] == (float)i - (0.9f + 2) * 0.1f);
    }
    shoal_comm_close(comm);
}

/* I2 of comm/update.c: another member has begun to overwrite what the view before shows. I was late, and it is void. Weights that
 * were taken out of their view are nobody else's. */
static void weights_that_others_overwrite_are_void(void **state)
{
    struct shoal_comm *comm = alone();
    struct shoal_update_part parts[2];
    struct arena_part shown = { 0, comm->arena.layout.vector_bytes, comm->arena.slot, 0 };
    struct arena_view *view = &comm->arena.views[1];
    float *now[SHOAL_UPDATE_VECTORS];

    (void)state;
    assert_int_equal(arena_show_update(&comm->arena, 7, &shown, 1, NULL), SHOAL_OK);
    comm->update.turn = 7;
    atomic_store(&comm->applied, 1);
    comm->update.shown = 1;
    assert_int_equal(shoal_step_updated(comm, now), SHOAL_OK);
    set_parts(parts);
    for (int i = 0; i < 2; i++) {
        parts[i].from[0] = now[0] + 40 * i;
        parts[i].from[1] = now[1] + 40 * i;
    }
    atomic_store(&arena_my_words(&comm->arena)->update_begun, 8); /* the other view is written to */
    assert_int_equal(shoal_update_run(comm, parts, 2), SHOAL_OK);
    atomic_store(&arena_my_words(&comm->arena)->update_begun, 9);
    assert_int_equal(shoal_update_run(comm, parts, 2), SHOAL_ERR_STALE);
    assert_ptr_equal(now[0], view->at);
    assert_int_equal(shoal_update_keep(comm, now[0]), SHOAL_OK);
    assert_int_equal(shoal_update_run(comm, parts, 2), SHOAL_OK);
    assert_int_equal(shoal_step_updated(comm, now), SHOAL_ERR_NOT_FOUND);
    (void)munmap((void *)(uintptr_t)parts[0].from[0], 2 * comm->arena.layout.vector_bytes);
    shoal_comm_close(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_and_pieces_give_the_same_bits),
        cmocka_unit_test(rules_are_what_they_say),
        cmocka_unit_test(wrong_updates_are_refused_by_name),
        cmocka_unit_test(an_update_here_takes_the_result),
        cmocka_unit_test(weights_that_others_overwrite_are_void),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
