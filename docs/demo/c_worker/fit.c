/* Elastic training in C: a line is fitted to points, by the steps of docs/how-to/c-workers.md.
 *
 *     cc -std=c11 fit.c -lshoal -o fit
 *     ./fit                                       alone, in one process
 *     shoal job run --framework shoalC --workers 3 --model-main fit --model-dir .
 *
 * In a job every worker, and the driver, is this program: DLI_IS_DRIVER tells which. The weights have the same bits for any number
 * of workers. They are written into RESULT_DIR/model/weights. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shoal/collective.h"
#include "shoal/permute.h"
#include "shoal/step_record.h"
#include "shoal/worker.h"

enum { DIMS = 8, SAMPLES = 4000, BATCH = 16, INTERVAL = 8, EPOCHS = 12, SEED = 7 };
#define MINIBATCHES (SAMPLES / BATCH)
#define STEPS_PER_EPOCH ((MINIBATCHES + INTERVAL - 1) / INTERVAL)
#define STEPS (STEPS_PER_EPOCH * EPOCHS)
#define CLASS "fit 1 " __VERSION__ /* engines of another class do not train together: their sums could differ */

static struct shoal_comm *comm;
static float weights[DIMS];
static uint64_t seed = SEED;
static unsigned pause_us; /* of a mini-batch, to have time to watch */

static int failed(const char *what)
{
    fprintf(stderr, "fit: %s: %s\n", what, comm == NULL ? "no communicator" : shoal_comm_error(comm));
    if (comm != NULL)
        (void)!shoal_comm_failed(comm, 0, what);
    return 1;
}

/* Sample `id`: x is drawn from its number, y lies on the line with slopes 1, 2, 3, ... */
static float sample(uint64_t id, float x[DIMS])
{
    float y = 0;

    for (unsigned i = 0; i < DIMS; i++) {
        x[i] = (float)(shoal_mix64(id * DIMS + i) & 0xffff) / 65536.0f - 0.5f;
        y += x[i] * (float)(i + 1);
    }
    return y;
}

/* Mini-batch v of the step: which samples are in it is a pure function of (seed, data epoch, step, v). */
static enum shoal_err compute(const struct shoal_step *step, uint32_t v)
{
    uint64_t m = (uint64_t)step->step_in_epoch * INTERVAL + v, count = shoal_minibatch_len(SAMPLES, BATCH, m);
    float *grad = shoal_comm_work(comm);
    struct shoal_sample_sum ids = { 0, 0 };
    double loss = 0;
    struct shoal_minibatch done = { .v = v, .samples = (uint32_t)count, .values = &loss };

    memset(grad, 0, DIMS * sizeof(float));
    for (uint64_t i = 0; i < count; i++) {
        uint64_t id = shoal_permute(seed, step->data_epoch, SAMPLES, m * BATCH + i);
        float x[DIMS], error = -sample(id, x);

        shoal_sample_sum_add(&ids, seed, id);
        for (unsigned d = 0; d < DIMS; d++)
            error += weights[d] * x[d];
        for (unsigned d = 0; d < DIMS; d++)
            grad[d] += 2 * error * x[d] / (float)count;
        loss += (double)error * error / (double)count;
    }
    usleep(pause_us);
    done.id_low = ids.low;
    done.id_high = ids.high;
    return shoal_step_publish(comm, &done);
}

/* The reduced gradient is here, and everybody has it. */
static void apply(void)
{
    const float *grad = shoal_comm_result(comm);

    for (unsigned d = 0; d < DIMS; d++)
        weights[d] -= 0.5f * grad[d];
}

static enum shoal_err one_step(uint64_t number)
{
    uint64_t index = (number - 1) % STEPS_PER_EPOCH, left = MINIBATCHES - index * INTERVAL;
    struct shoal_step step = { .step = number,
                               .kind = SHOAL_STEP_TRAIN,
                               .data_epoch = (uint32_t)((number - 1) / STEPS_PER_EPOCH),
                               .step_in_epoch = (uint32_t)index,
                               .v_count = left < INTERVAL ? (uint32_t)left : INTERVAL };
    uint32_t mine[INTERVAL], count = 0;
    enum shoal_err err = shoal_step_assign(comm, &step, mine, INTERVAL, &count);

    for (uint32_t i = 0; err == SHOAL_OK && i < count; i++)
        err = compute(&step, mine[i]);
    if (err == SHOAL_OK)
        err = shoal_step_reduce(comm);
    if (err == SHOAL_OK)
        err = shoal_step_complete(comm);
    if (err == SHOAL_OK)
        err = shoal_step_apply_allowed(comm);
    if (err == SHOAL_OK)
        apply();
    return err;
}

/* Gives a newcomer what it needs: the weights. RANK_LOST: the epoch ended meanwhile. */
static enum shoal_err give(void)
{
    enum shoal_err err = shoal_comm_state_give(comm, 0, weights, sizeof(weights));

    return err == SHOAL_OK ? shoal_comm_state_end(comm) : err;
}

static enum shoal_err take(void)
{
    uint32_t tensor;
    uint64_t len;
    enum shoal_err err;

    while ((err = shoal_comm_state_size(comm, &tensor, &len)) == SHOAL_OK) {
        if (tensor != 0 || len != sizeof(weights))
            return SHOAL_ERR_MALFORMED;
        err = shoal_comm_state_take(comm, tensor, weights, len);
        if (err != SHOAL_OK)
            return err;
    }
    return err == SHOAL_ERR_NOT_FOUND ? SHOAL_OK : err; /* the donor has said the end */
}

/* Into the next epoch, or to what comes after the last step. */
static enum shoal_err enter(struct shoal_comm_entry *entry)
{
    enum shoal_err err;

    do {
        err = shoal_comm_enter(comm, -1, entry);
        if (err != SHOAL_OK || entry->event != SHOAL_EVENT_ENTERED)
            return err;
        if (entry->apply_result)
            apply();
        if (entry->state == SHOAL_STATE_LOAD)
            memset(weights, 0, sizeof(weights));
        if (entry->state == SHOAL_STATE_TAKE)
            err = take();
        if (err == SHOAL_OK && entry->give)
            err = give();
    } while (err == SHOAL_ERR_RANK_LOST);
    return err;
}

/* Beside its name, then renamed: no half of it is ever seen. */
static int write_weights(void)
{
    const char *result = getenv("RESULT_DIR");
    char path[1024], temporary[1040];
    FILE *out;

    snprintf(path, sizeof(path), "%s/model/weights", result == NULL ? "." : result);
    if (result == NULL)
        snprintf(path, sizeof(path), "weights");
    snprintf(temporary, sizeof(temporary), "%s.%d.tmp", path, (int)getpid());
    out = fopen(temporary, "w");
    if (out == NULL)
        return -1;
    for (unsigned d = 0; d < DIMS; d++)
        fprintf(out, "%a\n", (double)weights[d]);
    return fclose(out) == 0 ? rename(temporary, path) : -1;
}

static int engine(void)
{
    static const char *const names[] = { "loss" };
    struct shoal_comm_plan plan = { .virtual_workers = INTERVAL, .sum_elems = DIMS, .samples = SAMPLES, .minibatch = BATCH,
                                    .data_epochs = EPOCHS, .steps_per_epoch = STEPS_PER_EPOCH, .param_count = 1,
                                    .metric_count = 1, .metric_names = names };
    struct shoal_comm_call call;
    struct shoal_comm_entry entry;
    enum shoal_err err = shoal_comm_wait_call(comm, -1, &call);

    if (err != SHOAL_OK || call.event != SHOAL_EVENT_CALL)
        return err == SHOAL_OK ? 0 : failed("waiting for the call");
    plan.call = call.call;
    seed = call.job_seed != 0 ? call.job_seed : SEED; /* alone there is none */
    err = shoal_comm_ready(comm, &plan);
    if (err == SHOAL_OK)
        err = enter(&entry);
    while (err == SHOAL_OK && entry.event != SHOAL_EVENT_RELEASED && entry.event != SHOAL_EVENT_STOPPED) {
        uint64_t next = shoal_comm_applied_step(comm) + 1;

        if (entry.event == SHOAL_EVENT_WRITE_FINAL) {
            if (write_weights() != 0)
                return failed("writing the weights");
            err = shoal_comm_files_written(comm, STEPS);
        } else if (next > STEPS) {
            err = shoal_comm_done(comm, STEPS, shoal_digest(weights, sizeof(weights), 0));
        } else {
            err = one_step(next);
            if (err == SHOAL_OK)
                continue;
            if (err == SHOAL_ERR_RANK_LOST) /* somebody left, or came: the same step again, in the next epoch */
                err = SHOAL_OK;
        }
        if (err == SHOAL_OK)
            err = enter(&entry);
    }
    return err == SHOAL_OK ? 0 : failed("training");
}

/* Hands the call over, and follows it. The bundle is a file for the engines: here they need none. */
static int driver(void)
{
    struct shoal_driver_event event;
    char folder[900], path[920];
    FILE *bundle;

    if (getcwd(folder, sizeof(folder)) == NULL)
        return failed("the working directory");
    snprintf(path, sizeof(path), "%s/fit.bundle", folder);
    bundle = fopen(path, "w");
    if (bundle == NULL || fclose(bundle) != 0 || shoal_driver_train(comm, 1, SEED, 0, path, "fit") != SHOAL_OK)
        return failed("train");
    for (;;) {
        if (shoal_driver_wait(comm, -1, &event) != SHOAL_OK)
            return failed("waiting for the end");
        if (event.event == SHOAL_EVENT_TRAIN_RECORDS)
            (void)!shoal_driver_ack(comm, event.call, event.first_step + event.record_count - 1);
        else if (event.event == SHOAL_EVENT_STOPPED || event.event == SHOAL_EVENT_RELEASED)
            return event.event == SHOAL_EVENT_RELEASED ? 0 : 1;
        else if (event.event == SHOAL_EVENT_TRAIN_STATE && event.state == SHOAL_TRAIN_FINISHED)
            break;
        else if (event.event == SHOAL_EVENT_TRAIN_STATE && event.state == SHOAL_TRAIN_FAILED) {
            fprintf(stderr, "fit: training failed: %s\n", event.text);
            return 1;
        }
    }
    printf("trained: %d steps\n", STEPS);
    return 0;
}

int main(int argc, char **argv)
{
    const char *role = getenv("DLI_IS_DRIVER");
    char error[400] = "";
    int is_driver = role != NULL && strcmp(role, "true") == 0, code;

    pause_us = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
    if (shoal_comm_open(&comm, is_driver ? SHOAL_ROLE_DRIVER : SHOAL_ROLE_ENGINE, CLASS, error) != SHOAL_OK) {
        fprintf(stderr, "fit: %s\n", error);
        return 1;
    }
    code = is_driver ? driver() : engine();
    shoal_comm_close(comm);
    return code;
}
