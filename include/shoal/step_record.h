/* The record of one committed step: identical in every worker, kept by the job's guardians, read by loggers and by the
 * auditor (PROTOCOLS 11). Little-endian, no padding:
 *
 *   u64 step            from 1 within the call
 *   u8  kind            enum shoal_step_kind
 *   u32 call, u32 data_epoch (from 0), u32 step_in_epoch (from 0)
 *   u32 e, u32 k        epoch of the communicator in which it was committed
 *   u64 digest          of the reduced gradient and buffers (0 for a validation)
 *   u32 v_count, u8 value_count
 *   v_count times: u32 samples, u64 id_low, u64 id_high, u64 worker_id, value_count x f64
 *
 * `id_low`, `id_high`: shoal_sample_sum over the ids that the data set handed out for this mini-batch. values[0] is the
 * mean loss of the mini-batch, then the metrics. */
#ifndef SHOAL_STEP_RECORD_H
#define SHOAL_STEP_RECORD_H

#include "shoal/limits.h"
#include "shoal/wire.h"

enum shoal_step_kind { SHOAL_STEP_TRAIN, SHOAL_STEP_VALIDATE, SHOAL_STEP_FILES, SHOAL_STEP_KIND_COUNT };

#define SHOAL_STEP_RECORD_HEAD_BYTES (8 + 1 + 4 + 4 + 4 + 4 + 4 + 8 + 4 + 1)
#define SHOAL_STEP_TUPLE_BYTES(values) (4 + 8 + 8 + 8 + 8 * (size_t)(values))

struct shoal_step_head {
    uint64_t step;
    uint8_t kind;
    uint32_t call;
    uint32_t data_epoch;
    uint32_t step_in_epoch;
    uint32_t e;
    uint32_t k;
    uint64_t digest;
    uint32_t v_count;
    uint8_t value_count;
};

struct shoal_step_tuple {
    uint32_t samples;
    uint64_t id_low;
    uint64_t id_high;
    uint64_t worker_id;
    double values[16];
};

static inline void shoal_put_step_head(struct shoal_writer *w, const struct shoal_step_head *head)
{
    shoal_put_u64(w, head->step);
    shoal_put_u8(w, head->kind);
    shoal_put_u32(w, head->call);
    shoal_put_u32(w, head->data_epoch);
    shoal_put_u32(w, head->step_in_epoch);
    shoal_put_u32(w, head->e);
    shoal_put_u32(w, head->k);
    shoal_put_u64(w, head->digest);
    shoal_put_u32(w, head->v_count);
    shoal_put_u8(w, head->value_count);
}

static inline void shoal_put_step_tuple(struct shoal_writer *w, const struct shoal_step_tuple *tuple,
                                        uint8_t value_count)
{
    shoal_put_u32(w, tuple->samples);
    shoal_put_u64(w, tuple->id_low);
    shoal_put_u64(w, tuple->id_high);
    shoal_put_u64(w, tuple->worker_id);
    for (unsigned i = 0; i < value_count; i++) {
        uint64_t bits;

        memcpy(&bits, &tuple->values[i], sizeof(bits));
        shoal_put_u64(w, bits);
    }
}

static inline void shoal_get_step_head(struct shoal_reader *r, struct shoal_step_head *head)
{
    head->step = shoal_get_u64_to(r, SHOAL_STEPS_MAX);
    head->kind = shoal_get_enum(r, SHOAL_STEP_KIND_COUNT);
    head->call = shoal_get_u32(r);
    head->data_epoch = shoal_get_u32(r);
    head->step_in_epoch = shoal_get_u32(r);
    head->e = shoal_get_u32(r);
    head->k = shoal_get_u32(r);
    head->digest = shoal_get_u64(r);
    head->v_count = shoal_get_u32(r);
    head->value_count = shoal_get_u8(r);
    if (head->v_count > SHOAL_VIRTUAL_MAX || head->value_count > 16)
        r->failed = true;
}

static inline void shoal_get_step_tuple(struct shoal_reader *r, struct shoal_step_tuple *tuple, uint8_t value_count)
{
    tuple->samples = shoal_get_u32(r);
    tuple->id_low = shoal_get_u64(r);
    tuple->id_high = shoal_get_u64(r);
    tuple->worker_id = shoal_get_u64(r);
    for (unsigned i = 0; i < value_count && i < 16; i++) {
        uint64_t bits = shoal_get_u64(r);

        memcpy(&tuple->values[i], &bits, sizeof(bits));
    }
}

/* One record at the start of `view`: its length, or 0 when it does not decode. `tuples` reads what follows the head. */
static inline size_t shoal_step_record_len(struct shoal_view view, struct shoal_step_head *head,
                                           struct shoal_reader *tuples)
{
    struct shoal_reader r = shoal_reader_init(view);

    shoal_get_step_head(&r, head);
    *tuples = r;
    (void)shoal_get_space(&r, head->v_count * SHOAL_STEP_TUPLE_BYTES(head->value_count));
    return r.failed ? 0 : r.at;
}

#endif
