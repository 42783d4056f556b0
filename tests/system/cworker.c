/* A training job in C: a vector moved by SGD with momentum, whose gradient is a pure function of sample ids, so that
 * the result of any run can be compared bit by bit with that of one worker. Runs alone, under the real agent, and under
 * comm_harness.
 *
 *   cworker [option=value ...]            an engine (alone when no agent's socket is in the environment)
 *   cworker driver FILE [option=value ...]  a driver: hands FILE, which it writes from the options, over as the bundle
 *
 * An engine takes its options from the bundle, if it can be read, else from the command line. Options: elems, v (mini-
 * batches a step), samples, minibatch, epochs, buffers (doubles), ballast (MiB kept resident), device_ballast (of the
 * device), compute_us (a mini-batch), ops (1: try the collectives outside of steps first; 2: one worker calls a barrier
 * where the others train; 3: many small ones, more than the transport has places), parts (a gradient is given in so many,
 * the last one first), anew (1: some are begun wrongly, and given anew), update (1: weights are updated by libshoal, but
 * for a worker alone; 2: at some steps not all workers offer it; 3: at some they offer another one). CWORKER_BUG plants one of four bugs at step 5, v =
 * 1, for tests of the tests. CWORKER_LOG: a file for the records' digests; CWORKER_TIMES: a file of rows of four 64-bit
 * numbers, see note_time. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shoal/collective.h"
#include "shoal/collective_update.h"
#include "shoal/permute.h"
#include "shoal/step_record.h"
#include "shoal/worker.h"

#include "ops_check.h"

#include "shoal/banned.h"

struct options {
    uint64_t elems;
    uint64_t v;
    uint64_t samples;
    uint64_t minibatch;
    uint64_t epochs;
    uint64_t buffers;
    uint64_t ballast;
    uint64_t device_ballast;
    uint64_t compute_us;
    uint64_t seed;
    uint64_t ops; /* 1: try the collectives outside of steps first */
    uint64_t parts;
    uint64_t anew;
    uint64_t update;
};

struct model {
    float *weights; /* in the memory below, or where libshoal shows them */
    float *momentum;
    float *own_weights;
    float *own_momentum;
    float *gradient; /* with `parts` */
    double *buffers; /* committed ones */
    uint64_t updates;
};

struct run {
    struct options o;
    struct model model;
    struct shoal_comm *comm;
    uint64_t steps_per_epoch; /* train steps; then one validation step */
    uint64_t total_steps;
    uint64_t minibatches; /* of a data epoch */
    FILE *log;
    FILE *times;
    uint64_t epoch; /* e and k of the one that was entered last */
    const char *bug;
    bool on_device; /* CWORKER_DEVICE is set; "2": no communicator is to be given up */
    struct shoal_dev_buf buffer;
    struct shoal_result_part pinned[SHOAL_RANKS_MAX]; /* elems 0: none */
    uint64_t pins;
    uint64_t pins_refused;
};

static void die(struct run *run, const char *what)
{
    char text[512];

    (void)snprintf(text, sizeof(text), "%s: %s", what, run->comm == NULL ? "" : shoal_comm_error(run->comm));
    (void)fprintf(stderr, "cworker: %s\n", text);
    if (run->comm != NULL)
        (void)shoal_comm_failed(run->comm, 0, text);
    exit(1);
}

static void set_option(struct options *o, const char *text)
{
    const struct {
        const char *name;
        uint64_t *value;
    } rows[] = {
        { "elems=", &o->elems },     { "v=", &o->v },
        { "samples=", &o->samples }, { "minibatch=", &o->minibatch },
        { "epochs=", &o->epochs },   { "buffers=", &o->buffers },
        { "ballast=", &o->ballast }, { "device_ballast=", &o->device_ballast },
        { "compute_us=", &o->compute_us },
        { "seed=", &o->seed },       { "ops=", &o->ops },
        { "parts=", &o->parts },     { "anew=", &o->anew },
        { "update=", &o->update },
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strncmp(text, rows[i].name, strlen(rows[i].name)) == 0) {
            *rows[i].value = strtoull(text + strlen(rows[i].name), NULL, 10);
            return;
        }
    (void)fprintf(stderr, "cworker: unknown option %s\n", text);
    exit(2);
}

static void read_bundle(struct options *o, const char *path)
{
    FILE *file = fopen(path, "r");
    char word[128];

    if (file == NULL)
        return;
    while (fscanf(file, "%127s", word) == 1)
        set_option(o, word);
    (void)fclose(file);
}

static uint64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* `step` 0: a mini-batch was computed from `begin` to `end`; else: the step was complete at `end`. */
static void note_time(const struct run *run, uint64_t step, uint64_t begin)
{
    uint64_t row[4] = { step, begin, now_ns(), run->epoch };

    if (run->times != NULL) {
        (void)fwrite(row, sizeof(row), 1, run->times);
        (void)fflush(run->times);
    }
}

/* ---- the model ---- */

static void take_own_memory(struct model *model)
{
    model->weights = model->own_weights;
    model->momentum = model->own_momentum;
}

static void model_start(struct run *run)
{
    take_own_memory(&run->model);
    for (uint64_t p = 0; p < run->o.elems; p++) {
        run->model.weights[p] = (float)(shoal_mix64(p + 1) & 0xffff) / 65536.0f;
        run->model.momentum[p] = 0;
    }
    for (uint64_t b = 0; b < run->o.buffers; b++)
        run->model.buffers[b] = 1.0;
    run->model.updates = 0;
}

static void add_gradient(const struct run *run, float *grad, uint64_t id, float weight)
{
    uint32_t a = (uint32_t)shoal_mix64(id * 2 + 1) | 1;
    const float *w = run->model.weights;

    for (uint64_t p = 0; p < run->o.elems; p++) {
        float x = (float)(((uint32_t)p * a >> 8) & 0xffff) / 65536.0f - 0.5f;

        grad[p] = grad[p] + (x + 0.01f * w[p]) * weight;
    }
}

/* As apply_alone does it, in two parts. */
#define UPDATE_PARTS 2
static void say_update(const struct run *run, struct shoal_update_part parts[UPDATE_PARTS])
{
    uint64_t middle = run->o.elems / 3;

    for (int i = 0; i < UPDATE_PARTS; i++) {
        uint64_t begin = i == 0 ? 0 : middle;

        parts[i] = (struct shoal_update_part){ .begin = begin,
                                               .end = i == 0 ? middle : run->o.elems,
                                               .rule = SHOAL_UPDATE_SGD,
                                               .flags = SHOAL_UPDATE_MOMENTUM,
                                               .numbers = { 0.1f, 0.9f, 1.0f, 0 },
                                               .from = { run->model.weights + begin, run->model.momentum + begin },
                                               .into = { run->model.own_weights + begin,
                                                         run->model.own_momentum + begin } };
    }
}

static bool updates_by_libshoal(const struct run *run)
{
    return run->o.update != 0 && !shoal_comm_is_solo(run->comm);
}

static void apply_by_libshoal(struct run *run)
{
    struct shoal_update_part parts[UPDATE_PARTS];
    float *now[SHOAL_UPDATE_VECTORS];

    if (shoal_step_updated(run->comm, now) == SHOAL_OK) {
        run->model.weights = now[0];
        run->model.momentum = now[1];
        return;
    }
    say_update(run, parts);
    if (shoal_update_run(run->comm, parts, UPDATE_PARTS) != SHOAL_OK)
        die(run, "update");
    take_own_memory(&run->model);
}

static void apply_alone(struct run *run, const float *g)
{
    for (uint64_t p = 0; p < run->o.elems; p++) {
        run->model.momentum[p] = run->model.momentum[p] * 0.9f + g[p];
        run->model.weights[p] = run->model.weights[p] - run->model.momentum[p] * 0.1f;
    }
}

/* Pinned anew where the result's slices are others than before. */
static void pin_parts(struct run *run, const struct shoal_result_part *parts, uint32_t count)
{
    bool same = true;

    for (uint32_t i = 0; i < SHOAL_RANKS_MAX && same; i++)
        same = i < count ? parts[i].values == run->pinned[i].values && parts[i].elems == run->pinned[i].elems
                         : run->pinned[i].elems == 0;
    for (uint32_t i = 0; i < SHOAL_RANKS_MAX && !same; i++) {
        if (run->pinned[i].elems > 0 && shoal_device_unpin(run->comm, run->pinned[i].values) == SHOAL_ERR_DEVICE)
            die(run, "unpin");
        run->pinned[i] = (struct shoal_result_part){ 0 };
    }
    for (uint32_t i = 0; i < count && !same; i++) {
        enum shoal_err err = shoal_device_pin(run->comm, parts[i].values, parts[i].elems * sizeof(float));

        run->pinned[i] = parts[i];
        run->pins += err == SHOAL_OK;
        if (err != SHOAL_OK && run->pins_refused++ == 0)
            (void)fprintf(stderr, "cworker: pin: %s\n", shoal_comm_error(run->comm));
    }
}

/* On a device the result goes there in slices; what it is comes from there. */
static void result_through_device(struct run *run)
{
    struct shoal_result_part parts[SHOAL_RANKS_MAX];
    uint32_t count;

    if (shoal_comm_result_parts(run->comm, parts, SHOAL_RANKS_MAX, &count) != SHOAL_OK)
        die(run, "parts of the result");
    pin_parts(run, parts, count);
    for (uint32_t i = 0; i < count; i++)
        if (shoal_device_write(run->comm, run->buffer.address + parts[i].begin * sizeof(float), parts[i].values,
                               parts[i].elems * sizeof(float), NULL) != SHOAL_OK)
            die(run, "a part of the result");
    memset(run->model.gradient, 0, run->o.elems * sizeof(float));
    if (shoal_device_read(run->comm, run->model.gradient, run->buffer.address, run->o.elems * sizeof(float), NULL) != SHOAL_OK)
        die(run, "the result");
}

static void apply(struct run *run)
{
    const float *g = shoal_comm_result(run->comm);
    uint64_t bytes = run->o.elems * sizeof(float);
    struct shoal_committed committed;

    if (shoal_step_committed(run->comm, &committed) != SHOAL_OK)
        die(run, "committed");
    if (committed.kind == SHOAL_STEP_TRAIN) {
        if (updates_by_libshoal(run))
            apply_by_libshoal(run);
        else if (run->on_device && run->o.elems > 0) {
            result_through_device(run);
            apply_alone(run, run->model.gradient);
        } else
            apply_alone(run, g);
        memcpy(run->model.buffers, shoal_comm_copy_result(run->comm), run->o.buffers * sizeof(double));
        if (committed.digest !=
            shoal_digest(g, bytes, 0) +
                shoal_digest(run->model.buffers, run->o.buffers * sizeof(double), (bytes + 4095) / 4096 * 4096))
            die(run, "the result slot is not what the record says");
        run->model.updates++;
    }
    if (run->log != NULL) {
        (void)fprintf(run->log, "%llu %u %016llx\n", (unsigned long long)committed.step, committed.kind,
                      (unsigned long long)committed.digest);
        (void)fflush(run->log);
    }
}

static uint64_t state_digest(const struct run *run)
{
    uint64_t bytes = run->o.elems * sizeof(float);

    return shoal_digest(run->model.weights, bytes, 0) + shoal_digest(run->model.momentum, bytes, 1ull << 40) +
           shoal_digest(run->model.buffers, run->o.buffers * sizeof(double), 1ull << 50) + run->model.updates;
}

/* ---- steps ---- */

static void step_of(const struct run *run, uint64_t step, struct shoal_step *s)
{
    uint64_t per_epoch = run->steps_per_epoch + 1;
    uint64_t in_epoch = (step - 1) % per_epoch;
    uint64_t first = in_epoch * run->o.v;

    memset(s, 0, sizeof(*s));
    s->step = step;
    s->data_epoch = (uint32_t)((step - 1) / per_epoch);
    s->step_in_epoch = (uint32_t)in_epoch;
    if (in_epoch < run->steps_per_epoch) {
        s->kind = SHOAL_STEP_TRAIN;
        s->v_count = (uint32_t)(run->minibatches - first < run->o.v ? run->minibatches - first : run->o.v);
    } else {
        s->kind = SHOAL_STEP_VALIDATE;
        s->step_in_epoch = 0;
        s->v_count = (uint32_t)(run->o.v < 3 ? run->o.v : 3);
    }
}

static bool bug_here(const struct run *run, const struct shoal_step *s, uint32_t v, const char *name)
{
    return run->bug != NULL && s->step == 5 && v == (s->v_count > 1 ? 1 : 0) && strcmp(run->bug, name) == 0;
}

/* As a mini-batch does. */
static void take_time(const struct run *run, uint64_t us)
{
    if (run->o.compute_us > 0)
        (void)usleep((useconds_t)us);
}

/* As a backward does, from the end; of two that follow each other the first one comes first. */
static void give_parts(struct run *run, uint32_t v, uint32_t samples, const float *gradient)
{
    uint64_t parts = run->o.parts < run->o.elems ? run->o.parts : run->o.elems;

    for (uint64_t n = parts; n-- > 0;) {
        uint64_t i = (n ^ 1) < parts ? n ^ 1 : n;
        uint64_t begin = run->o.elems * i / parts;
        uint64_t end = run->o.elems * (i + 1) / parts;

        if (shoal_step_part(run->comm, v, samples, begin, end - begin, gradient + begin) != SHOAL_OK)
            die(run, "part");
        take_time(run, run->o.compute_us / parts);
    }
}

/* The gradient in parts. With `anew` some mini-batches begin with another one, and are given whole in the end. */
static void give_gradient(struct run *run, const struct shoal_step *s, uint32_t v, uint32_t samples)
{
    if (run->o.anew == 0 || (s->step + v) % 3 != 0) {
        give_parts(run, v, samples, run->model.gradient);
        return;
    }
    give_parts(run, v, samples, run->model.weights);
    if (shoal_step_part(run->comm, 0, 0, 0, 0, NULL) != SHOAL_OK)
        die(run, "forgetting parts");
    memcpy(shoal_comm_work(run->comm), run->model.gradient, run->o.elems * sizeof(float));
}

/* The gradient was computed on the device. */
static void through_device(struct run *run, void *bytes, uint64_t len)
{
    if (run->on_device && len > 0 &&
        (shoal_device_write(run->comm, run->buffer.address, bytes, len, NULL) != SHOAL_OK ||
         shoal_device_read(run->comm, bytes, run->buffer.address, len, NULL) != SHOAL_OK))
        die(run, "copies to and from the device");
}

static void compute(struct run *run, const struct shoal_step *s, uint32_t v)
{
    uint64_t m = (uint64_t)s->step_in_epoch * run->o.v + v;
    uint64_t count = shoal_minibatch_len(run->o.samples, run->o.minibatch, m);
    bool in_parts = run->o.parts > 0 && s->kind == SHOAL_STEP_TRAIN;
    float *grad = in_parts ? run->model.gradient : shoal_comm_work(run->comm);
    double *buffers = (double *)(void *)shoal_comm_copy_work(run->comm);
    struct shoal_sample_sum sum = { 0, 0 };
    uint64_t begin = now_ns();
    double loss = 0;
    struct shoal_minibatch minibatch = { .v = v, .samples = (uint32_t)count, .values = &loss };
    enum shoal_err err;

    memset(grad, 0, run->o.elems * sizeof(float));
    for (uint64_t i = 0; i < count; i++) {
        uint64_t id = shoal_permute(run->o.seed, s->data_epoch, run->o.samples, m * run->o.minibatch + i);

        if (i == 1 && bug_here(run, s, v, "skip_sample"))
            continue;
        if (i == 1 && bug_here(run, s, v, "double_sample"))
            id = shoal_permute(run->o.seed, s->data_epoch, run->o.samples, m * run->o.minibatch);
        shoal_sample_sum_add(&sum, run->o.seed, id);
        loss += (double)(id % 1000) / 1000.0;
        if (s->kind == SHOAL_STEP_TRAIN)
            add_gradient(run, grad, id, 1.0f / (float)count);
    }
    if (bug_here(run, s, v, "dropped_gradient"))
        memset(grad, 0, run->o.elems * sizeof(float));
    for (uint64_t p = 0; p < run->o.elems && bug_here(run, s, v, "double_gradient"); p++)
        grad[p] = grad[p] + grad[p];
    loss /= (double)count;
    for (uint64_t b = 0; b < run->o.buffers; b++)
        buffers[b] = run->model.buffers[b] * 0.9 + loss * (double)(b + 1);
    if (in_parts)
        give_gradient(run, s, v, (uint32_t)count);
    else
        take_time(run, run->o.compute_us);
    if (!in_parts && s->kind == SHOAL_STEP_TRAIN)
        through_device(run, grad, run->o.elems * sizeof(float));
    note_time(run, 0, begin);
    minibatch.id_low = sum.low;
    minibatch.id_high = sum.high;
    err = shoal_step_publish(run->comm, &minibatch);
    if (err != SHOAL_OK && err != SHOAL_ERR_RANK_LOST)
        die(run, "publish");
}

/* One attempt at a step. RANK_LOST: enter again. */
static enum shoal_err one_step(struct run *run, uint64_t step)
{
    uint32_t v[SHOAL_VIRTUAL_MAX];
    uint32_t count;
    struct shoal_step s;
    enum shoal_err err;

    step_of(run, step, &s);
    err = shoal_step_assign(run->comm, &s, v, SHOAL_VIRTUAL_MAX, &count);
    if (err == SHOAL_OK && s.kind == SHOAL_STEP_TRAIN && updates_by_libshoal(run) &&
        (run->o.update != 2 || (step + shoal_comm_rank(run->comm)) % 4 != 0)) {
        struct shoal_update_part parts[UPDATE_PARTS];

        say_update(run, parts);
        if (run->o.update == 3 && (step + shoal_comm_rank(run->comm)) % 4 == 0 && shoal_comm_size(run->comm) > 1)
            parts[1].numbers[0] = 0.2f;
        err = shoal_step_update(run->comm, run->model.updates + 1, parts, UPDATE_PARTS);
    }
    for (uint32_t i = 0; err == SHOAL_OK && i < count; i++) {
        compute(run, &s, v[i]);
        if (shoal_comm_revoked(run->comm))
            err = SHOAL_ERR_RANK_LOST;
    }
    if (err == SHOAL_OK)
        err = shoal_step_reduce(run->comm);
    if (err == SHOAL_OK)
        err = shoal_step_complete(run->comm);
    if (err == SHOAL_OK)
        note_time(run, step, 0);
    if (err == SHOAL_OK)
        err = shoal_step_apply_allowed(run->comm);
    if (err == SHOAL_OK)
        apply(run);
    return err;
}

/* ---- collectives outside of steps, against plain loops ---- */

static void check_sum_f32(struct run *run, float *values, uint64_t elems)
{
    uint32_t size = shoal_comm_size(run->comm);
    uint32_t rank = shoal_comm_rank(run->comm);

    for (uint64_t i = 0; i < elems; i++)
        values[i] = (float)(rank + 1) * (float)(i % 4096);
    if (shoal_comm_all_reduce(run->comm, values, elems, SHOAL_FLOAT32) != SHOAL_OK)
        die(run, "all_reduce");
    for (uint64_t i = 0; i < elems; i++)
        if (values[i] != (float)(size * (size + 1) / 2) * (float)(i % 4096)) /* small integers: exact */
            die(run, "all_reduce of float32 is wrong");
}

static void check_sum_others(struct run *run, uint64_t elems)
{
    uint32_t size = shoal_comm_size(run->comm);
    double *doubles = malloc((elems + 1) * sizeof(double));
    int32_t *integers = malloc((elems + 1) * sizeof(int32_t));

    if (doubles == NULL || integers == NULL)
        die(run, "memory");
    for (uint64_t i = 0; i < elems; i++) {
        doubles[i] = (double)i;
        integers[i] = INT32_MAX - (int32_t)i; /* wraps */
    }
    if (shoal_comm_all_reduce(run->comm, doubles, elems, SHOAL_FLOAT64) != SHOAL_OK ||
        shoal_comm_all_reduce(run->comm, integers, elems, SHOAL_INT32) != SHOAL_OK)
        die(run, "all_reduce");
    for (uint64_t i = 0; i < elems; i++)
        if (doubles[i] != (double)i * size || (uint32_t)integers[i] != (INT32_MAX - (uint32_t)i) * size)
            die(run, "all_reduce of float64 or int32 is wrong");
    free(doubles);
    free(integers);
}

static void check_broadcast(struct run *run, uint32_t root, uint64_t len)
{
    uint8_t *bytes = malloc(len + 1);

    if (bytes == NULL)
        die(run, "memory");
    for (uint64_t i = 0; i < len; i++)
        bytes[i] = shoal_comm_rank(run->comm) == root ? (uint8_t)(i * 7 + root) : 0;
    if (shoal_comm_broadcast(run->comm, bytes, len, root) != SHOAL_OK)
        die(run, "broadcast");
    for (uint64_t i = 0; i < len; i++)
        if (bytes[i] != (uint8_t)(i * 7 + root))
            die(run, "broadcast is wrong");
    free(bytes);
}

static void check_ops(struct run *run, bool several_hosts)
{
    static const uint64_t sizes[] = { 0, 1, 1000, 1025, 131072, 300001 };
    float *private = malloc(300001 * sizeof(float));
    uint64_t scratch_bytes;
    float *scratch = shoal_comm_scratch(run->comm, &scratch_bytes);

    if (private == NULL)
        die(run, "memory");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        check_sum_f32(run, private, sizes[i]);
        if (sizes[i] * sizeof(float) <= scratch_bytes)
            check_sum_f32(run, scratch, sizes[i]);
        check_sum_others(run, sizes[i]);
        check_broadcast(run, (uint32_t)i % shoal_comm_size(run->comm), sizes[i] * 9);
        if (shoal_comm_barrier(run->comm) != SHOAL_OK)
            die(run, "barrier");
    }
    free(private);
    if (ops_check(run->comm, several_hosts) != NULL ||
        (run->on_device && ops_check_device(run->comm, several_hosts) != NULL))
        die(run, "a collective is wrong");
}

/* What an operation took between hosts is given back at its end: there is no epoch's end that would do it here. */
static void many_ops(struct run *run)
{
    for (unsigned i = 0; i < 6000; i++) {
        float value = (float)shoal_comm_rank(run->comm);
        uint32_t size = shoal_comm_size(run->comm);
        struct shoal_op op = { .kind = SHOAL_ALL_REDUCE, .in = &value, .out = &value, .elems = 1 };

        if (shoal_op_run(run->comm, &op) != SHOAL_OK)
            die(run, "one of many operations");
        if (value != (float)(size * (size - 1) / 2))
            die(run, "one of many operations is wrong");
    }
}

/* On devices every step begins with a sum of all ranks over NCCL: what an epoch does to its communicator, steps see. */
static enum shoal_err sum_on_device(struct run *run)
{
    float values[64];
    struct shoal_op op = { .kind = SHOAL_ALL_REDUCE,
                           .memory = SHOAL_MEMORY_DEVICE,
                           .any_order = 1,
                           .in = (void *)(uintptr_t)run->buffer.address,
                           .out = (void *)(uintptr_t)run->buffer.address,
                           .elems = 64 };
    uint32_t size = shoal_comm_size(run->comm);
    enum shoal_err err;

    for (uint32_t i = 0; i < 64; i++)
        values[i] = (float)(i + shoal_comm_rank(run->comm));
    err = shoal_device_write(run->comm, run->buffer.address, values, sizeof(values), NULL);
    if (err == SHOAL_OK)
        err = shoal_op_run(run->comm, &op);
    if (err == SHOAL_OK)
        err = shoal_device_read(run->comm, values, run->buffer.address, sizeof(values), NULL);
    for (uint32_t i = 0; i < 64 && err == SHOAL_OK; i++)
        if (values[i] != (float)(i * size + size * (size - 1) / 2))
            die(run, "a sum on devices is wrong");
    return err;
}

static void open_device(struct run *run)
{
    uint64_t bytes = run->o.elems * sizeof(float);

    run->on_device = getenv("CWORKER_DEVICE") != NULL;
    if (run->on_device && (shoal_device_open(run->comm, 0) != SHOAL_OK ||
                           shoal_device_allocate(run->comm, bytes < 4096 ? 4096 : bytes, &run->buffer) != SHOAL_OK))
        die(run, "device");
    for (uint64_t mib = run->o.device_ballast; run->on_device && mib > 0;) { /* goes with the process */
        struct shoal_dev_buf ballast;
        uint64_t piece = mib < 4096 ? mib : 4096;

        if (shoal_device_allocate(run->comm, piece << 20, &ballast) != SHOAL_OK)
            die(run, "device memory");
        mib -= piece;
    }
}

/* Prints what NCCL's communicators went through, for the tests. */
static void say_counts(const struct run *run)
{
    struct shoal_device_counts n;

    if (!run->on_device)
        return;
    (void)fprintf(stderr, "device: pins %llu pins_refused %llu\n", (unsigned long long)run->pins,
                  (unsigned long long)run->pins_refused);
    shoal_device_counts(run->comm, &n);
    (void)fprintf(stderr, "device: operations %llu made %llu kept %llu shrunk %llu grown %llu given_up %llu staged %llu\n",
                  (unsigned long long)n.operations, (unsigned long long)n.made, (unsigned long long)n.kept,
                  (unsigned long long)n.shrunk, (unsigned long long)n.grown, (unsigned long long)n.given_up,
                  (unsigned long long)n.staged);
    if (strcmp(getenv("CWORKER_DEVICE"), "2") == 0 && n.given_up > 0)
        exit(1);
}

/* The last worker waits in a barrier, the others for its part of a step: it is told, and the epoch begins anew. */
static void call_out_of_order(struct run *run)
{
    if (shoal_comm_size(run->comm) == 1 || shoal_comm_rank(run->comm) != shoal_comm_size(run->comm) - 1)
        return;
    if (shoal_comm_barrier(run->comm) != SHOAL_ERR_INVALID || strstr(shoal_comm_error(run->comm), "reduces step 1") == NULL)
        die(run, "a barrier beside a step");
}

/* ---- epochs ---- */

static enum shoal_err transfer(struct run *run, bool give)
{
    uint64_t bytes = run->o.elems * sizeof(float);
    void *parts[4] = { give ? run->model.weights : run->model.own_weights,
                       give ? run->model.momentum : run->model.own_momentum, run->model.buffers, &run->model.updates };
    uint64_t lens[4] = { bytes, bytes, run->o.buffers * sizeof(double), sizeof(run->model.updates) };
    enum shoal_err err = SHOAL_OK;
    uint32_t tensor;
    uint64_t len;

    for (uint32_t i = 0; i < 4 && err == SHOAL_OK && give; i++)
        err = shoal_comm_state_give(run->comm, i, parts[i], lens[i]);
    if (give)
        return err == SHOAL_OK ? shoal_comm_state_end(run->comm) : err;
    take_own_memory(&run->model);
    while ((err = shoal_comm_state_size(run->comm, &tensor, &len)) == SHOAL_OK) {
        if (tensor > 3 || len != lens[tensor])
            die(run, "a tensor of another size");
        err = shoal_comm_state_take(run->comm, tensor, parts[tensor], len);
        if (err != SHOAL_OK)
            return err;
    }
    return err == SHOAL_ERR_NOT_FOUND ? SHOAL_OK : err;
}

/* Until an epoch is entered with the state in place, or the run is over. True: entered. */
static bool enter(struct run *run, struct shoal_comm_entry *entry)
{
    for (;;) {
        enum shoal_err err = shoal_comm_enter(run->comm, -1, entry);

        if (err != SHOAL_OK)
            die(run, "enter");
        if (entry->event != SHOAL_EVENT_ENTERED)
            return false;
        run->epoch = shoal_epoch_word((struct shoal_epoch){ entry->e, entry->k });
        if (entry->apply_result)
            apply(run);
        if (entry->state == SHOAL_STATE_LOAD)
            model_start(run);
        if (entry->state == SHOAL_STATE_TAKE)
            err = transfer(run, false);
        if (err == SHOAL_OK && entry->give)
            err = transfer(run, true);
        if (err == SHOAL_OK)
            return true;
        if (err != SHOAL_ERR_RANK_LOST)
            die(run, "state");
    }
}

static void train(struct run *run)
{
    struct shoal_comm_entry entry;
    bool in = enter(run, &entry);

    if (in && run->o.ops == 1)
        check_ops(run, entry.hosts > 1);
    if (in && run->o.ops == 3)
        many_ops(run);
    if (in && run->o.ops == 2 && !run->on_device)
        call_out_of_order(run);
    while (in) {
        uint64_t step = shoal_comm_applied_step(run->comm) + 1;
        enum shoal_err err;

        if (step > run->total_steps) {
            if (shoal_comm_done(run->comm, run->total_steps, state_digest(run)) != SHOAL_OK)
                die(run, "done");
            in = enter(run, &entry);
            if (!in && entry.event == SHOAL_EVENT_WRITE_FINAL) {
                (void)shoal_comm_files_written(run->comm, run->total_steps);
                in = enter(run, &entry);
            }
            continue;
        }
        err = run->on_device ? sum_on_device(run) : SHOAL_OK;
        if (err == SHOAL_OK)
            err = one_step(run, step);
        if (err == SHOAL_ERR_RANK_LOST)
            in = enter(run, &entry);
        else if (err != SHOAL_OK)
            die(run, "step");
    }
    if (entry.event == SHOAL_EVENT_STOPPED)
        exit(entry.reason == SHOAL_STOP_ERROR ? 1 : 0);
}

static void take_memory(struct run *run)
{
    run->model.own_weights = calloc(run->o.elems + 1, sizeof(float));
    run->model.own_momentum = calloc(run->o.elems + 1, sizeof(float));
    run->model.gradient = calloc(run->o.elems + 1, sizeof(float));
    run->model.buffers = calloc(run->o.buffers + 1, sizeof(double));
    if (run->model.own_weights == NULL || run->model.own_momentum == NULL || run->model.buffers == NULL)
        die(run, "memory");
    if (run->o.ballast > 0) { /* what a death has to tear down */
        void *ballast = malloc(run->o.ballast << 20);

        if (ballast == NULL)
            die(run, "ballast");
        memset(ballast, 1, run->o.ballast << 20);
    }
}

static int engine(struct run *run)
{
    static const char *const names[] = { "loss" };
    struct shoal_comm_plan plan = { 0 };
    struct shoal_comm_call call;

    if (shoal_comm_wait_call(run->comm, -1, &call) != SHOAL_OK || call.event != SHOAL_EVENT_CALL)
        return call.event == SHOAL_EVENT_RELEASED || call.event == SHOAL_EVENT_STOPPED ? 0 : 1;
    read_bundle(&run->o, call.bundle_path);
    if (call.job_seed != 0)
        run->o.seed = call.job_seed;
    run->minibatches = shoal_minibatch_count(run->o.samples, run->o.minibatch);
    run->steps_per_epoch = (run->minibatches + run->o.v - 1) / run->o.v;
    run->total_steps = (run->steps_per_epoch + 1) * run->o.epochs;
    take_memory(run);
    model_start(run);
    plan = (struct shoal_comm_plan){
        .call = call.call,
        .virtual_workers = (uint32_t)run->o.v,
        .sum_elems = run->o.elems,
        .copy_bytes = run->o.buffers * sizeof(double),
        .samples = run->o.samples,
        .minibatch = (uint32_t)run->o.minibatch,
        .data_epochs = (uint32_t)run->o.epochs,
        .steps_per_epoch = run->steps_per_epoch,
        .param_count = 1,
        .metric_count = 1,
        .metric_names = names,
        .update_vectors = run->o.update != 0 ? 2 : 0,
    };
    open_device(run);
    if (shoal_comm_ready(run->comm, &plan) != SHOAL_OK)
        die(run, "ready");
    train(run);
    say_counts(run);
    (void)printf("digest %016llx updates %llu\n", (unsigned long long)state_digest(run),
                 (unsigned long long)run->model.updates);
    return 0;
}

static int driver(struct run *run, const char *path, int argc, char **argv)
{
    FILE *file = fopen(path, "w");
    struct shoal_driver_event event;
    char error[400];
    uint64_t records = 0;

    if (file == NULL || shoal_comm_open(&run->comm, SHOAL_ROLE_DRIVER, "c", error) != SHOAL_OK)
        die(run, error);
    for (int i = 0; i < argc; i++)
        (void)fprintf(file, "%s\n", argv[i]);
    (void)fclose(file);
    if (shoal_driver_train(run->comm, 1, run->o.seed, 0, path, "cworker") != SHOAL_OK)
        die(run, "train");
    for (;;) {
        if (shoal_driver_wait(run->comm, -1, &event) != SHOAL_OK)
            die(run, "wait");
        if (event.event == SHOAL_EVENT_TRAIN_RECORDS) {
            records += event.record_count;
            (void)shoal_driver_ack(run->comm, event.call, event.first_step + event.record_count - 1);
        } else if (event.event == SHOAL_EVENT_TRAIN_STATE && event.state >= SHOAL_TRAIN_FINISHED) {
            break;
        } else if (event.event == SHOAL_EVENT_STOPPED || event.event == SHOAL_EVENT_RELEASED) {
            return event.event == SHOAL_EVENT_RELEASED ? 0 : 1;
        }
    }
    (void)printf("records %llu state %u %s\n", (unsigned long long)records, event.state, event.text);
    shoal_comm_close(run->comm);
    return event.state == SHOAL_TRAIN_FINISHED ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct run run = {
        .o = { .elems = 1000, .v = 8, .samples = 500, .minibatch = 4, .epochs = 2, .buffers = 4, .seed = 42 }
    };
    const char *log = getenv("CWORKER_LOG");
    const char *times = getenv("CWORKER_TIMES");
    char error[400] = "";
    bool is_driver = argc > 2 && strcmp(argv[1], "driver") == 0;
    int rc;

    for (int i = is_driver ? 3 : 1; i < argc; i++)
        set_option(&run.o, argv[i]);
    if (is_driver)
        return driver(&run, argv[2], argc - 3, argv + 3);
    run.bug = getenv("CWORKER_BUG");
    run.log = log == NULL ? NULL : fopen(log, "w");
    run.times = times == NULL ? NULL : fopen(times, "w");
    if (shoal_comm_open(&run.comm, SHOAL_ROLE_ENGINE, "c", error) != SHOAL_OK)
        die(&run, error);
    rc = engine(&run);
    if (run.on_device && shoal_device_free(run.comm, &run.buffer) != SHOAL_OK)
        die(&run, "device memory");
    shoal_comm_close(run.comm);
    free(run.model.own_weights);
    free(run.model.own_momentum);
    free(run.model.gradient);
    free(run.model.buffers);
    if (run.log != NULL)
        (void)fclose(run.log);
    if (run.times != NULL)
        (void)fclose(run.times);
    return rc;
}
