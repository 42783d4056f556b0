/* Records of committed steps, kept until the agent has acknowledged them: a ring of bytes and a ring of entries. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"

#include "shoal/step_record.h"

#include "shoal/banned.h"

enum shoal_err records_init(struct records *records)
{
    *records = (struct records){ 0 };
    records->bytes = malloc(SHOAL_RECORD_QUEUE_BYTES); /* touched only as it fills */
    records->entries = malloc(SHOAL_RECORD_QUEUE_MAX * sizeof(*records->entries));
    records->last_bytes = malloc(SHOAL_WORKER_MESSAGE_MAX);
    if (records->bytes != NULL && records->entries != NULL && records->last_bytes != NULL)
        return SHOAL_OK;
    records_deinit(records);
    return SHOAL_ERR_FULL;
}

void records_deinit(struct records *records)
{
    free(records->bytes);
    free(records->entries);
    free(records->last_bytes);
    *records = (struct records){ 0 };
}

void records_clear(struct records *records, uint64_t acked)
{
    records->first = 0;
    records->count = 0;
    records->acked = acked;
    records->sent = acked;
}

static const struct record_entry *entry_at(const struct records *records, uint32_t i)
{
    return &records->entries[(records->first + i) % SHOAL_RECORD_QUEUE_MAX];
}

/* Finds the place of `len` contiguous free bytes; false: there is none. */
static bool find_room(const struct records *records, uint32_t len, uint32_t *at)
{
    const struct record_entry *oldest = entry_at(records, 0);
    const struct record_entry *newest;
    uint32_t end;

    *at = 0;
    if (records->count == 0)
        return len <= SHOAL_RECORD_QUEUE_BYTES;
    if (records->count == SHOAL_RECORD_QUEUE_MAX)
        return false;
    newest = entry_at(records, records->count - 1);
    end = newest->at + newest->len;
    if (newest->at >= oldest->at) { /* not wrapped: behind the newest, or before the oldest */
        if (len <= SHOAL_RECORD_QUEUE_BYTES - end)
            *at = end;
        else if (len >= oldest->at)
            return false;
        return true;
    }
    *at = end;
    return end + len < oldest->at;
}

bool records_have_room(const struct records *records, uint32_t len)
{
    uint32_t at;

    return find_room(records, len, &at);
}

bool records_push(struct records *records, uint64_t step, const uint8_t *bytes, uint32_t len)
{
    uint32_t at;

    if (step <= records->acked || (records->count > 0 && entry_at(records, records->count - 1)->step >= step))
        return true; /* had it already */
    if (records->count > 0 && entry_at(records, records->count - 1)->step + 1 != step)
        records->count = 0; /* I was out for some steps: the donor's records replace mine */
    if (!find_room(records, len, &at))
        return false;
    memcpy(records->bytes + at, bytes, len);
    records->entries[(records->first + records->count) % SHOAL_RECORD_QUEUE_MAX] =
        (struct record_entry){ .step = step, .at = at, .len = len };
    records->count++;
    return true;
}

void records_ack(struct records *records, uint64_t step)
{
    if (step > records->acked)
        records->acked = step;
    while (records->count > 0 && entry_at(records, 0)->step <= records->acked) {
        records->first = (records->first + 1) % SHOAL_RECORD_QUEUE_MAX;
        records->count--;
    }
}

const struct record_entry *records_find(const struct records *records, uint64_t step)
{
    uint64_t first = records->count > 0 ? entry_at(records, 0)->step : 0;

    /* steps are consecutive, except that a joiner begins later */
    if (records->count == 0 || step < first || step - first >= records->count)
        return NULL;
    return entry_at(records, (uint32_t)(step - first));
}

uint32_t record_bytes(uint32_t v_count, uint32_t metric_count)
{
    return (uint32_t)(SHOAL_STEP_RECORD_HEAD_BYTES + v_count * SHOAL_STEP_TUPLE_BYTES(metric_count));
}

void records_commit(struct shoal_comm *comm)
{
    const struct arena_layout *layout = &comm->arena.layout;
    struct arena_block *block = arena_block_at(arena_mine(&comm->arena), layout->commit_at);
    struct shoal_writer w = shoal_writer_init(comm->agent.bytes, SHOAL_WORKER_MESSAGE_MAX);
    struct shoal_step_head head = {
        .step = block->head.step,
        .kind = (uint8_t)block->head.kind,
        .call = comm->plan.call,
        .data_epoch = block->head.data_epoch,
        .step_in_epoch = block->head.step_in_epoch,
        .e = block->head.e,
        .k = block->head.k,
        .digest = block->head.digest,
        .v_count = block->head.v_count,
        .value_count = (uint8_t)layout->metric_count,
    };
    uint64_t mine = 0;
    bool pushed;

    (void)pthread_mutex_lock(&comm->lock);
    shoal_put_step_head(&w, &head);
    for (uint32_t v = 0; v < head.v_count; v++) {
        const struct arena_tuple *from = arena_tuple(layout, block, v);
        struct shoal_step_tuple tuple = {
            .samples = from->samples, .id_low = from->id_low, .id_high = from->id_high, .worker_id = from->worker_id
        };

        memcpy(tuple.values, from->values, layout->metric_count * sizeof(double));
        shoal_put_step_tuple(&w, &tuple, head.value_count);
        mine += from->worker_id == comm->hello.worker_id ? 1 : 0;
    }
    SHOAL_ASSERT(!w.failed); /* ready() refused a plan whose records are larger */
    memcpy(comm->records.last_bytes, w.bytes, w.len);
    comm->records.last_len = (uint32_t)w.len;
    comm->records.last_step = head.step;
    pushed = records_push(&comm->records, head.step, w.bytes, (uint32_t)w.len);
    SHOAL_ASSERT(pushed); /* assign() waited for room */
    agent_turn(comm, 0);  /* rank 0 ships it */
    (void)pthread_mutex_unlock(&comm->lock);
    atomic_fetch_add(&comm->words->minibatches, mine);
}
