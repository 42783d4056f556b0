/* The bytes of the worker's messages (shoal/worker.h), shared by the agent and libshoal.
 *
 * Every datagram: u8 kind, u8 version of the writer, u8 oldest version that can read it, then the fields in the order
 * of the struct. A newer writer may append fields: they are skipped; anything else left over is malformed. */
#ifndef SHOAL_WORKER_WIRE_H
#define SHOAL_WORKER_WIRE_H

#include "shoal/worker.h"

static inline void shoal_worker_put_hello(struct shoal_writer *w, const struct shoal_worker_hello *m)
{
    shoal_put_job_id(w, m->job);
    shoal_put_u32(w, m->generation);
    shoal_put_u8(w, m->role);
    shoal_put_u64(w, m->worker_id);
    shoal_put_u32(w, m->slot);
    shoal_put_u32(w, (uint32_t)m->pid);
    shoal_put_raw(w, m->token, sizeof(m->token));
    shoal_put_text(w, m->numeric_class);
    shoal_put_u32(w, m->call);
    shoal_put_epoch(w, m->epoch);
    shoal_put_bool(w, m->closed);
    shoal_put_u64(w, m->applied_step);
    shoal_put_u64(w, m->complete_step);
}

static inline void shoal_worker_get_hello(struct shoal_reader *r, struct shoal_worker_hello *m)
{
    m->job = shoal_get_job_id(r);
    m->generation = shoal_get_u32(r);
    m->role = shoal_get_enum(r, SHOAL_ROLE_COUNT);
    m->worker_id = shoal_get_u64(r);
    m->slot = shoal_get_u32(r);
    m->pid = (int32_t)shoal_get_u32(r);
    shoal_get_raw(r, m->token, sizeof(m->token));
    shoal_get_text(r, m->numeric_class, sizeof(m->numeric_class));
    m->call = shoal_get_u32(r);
    m->epoch = shoal_get_epoch(r);
    m->closed = shoal_get_bool(r);
    m->applied_step = shoal_get_u64(r);
    m->complete_step = shoal_get_u64(r);
    if (m->role == SHOAL_ROLE_ENGINE && m->slot >= SHOAL_SLOTS_MAX)
        r->failed = true;
}

static inline void shoal_worker_put_ready(struct shoal_writer *w, const struct shoal_worker_ready *m)
{
    if (m->metric_count > SHOAL_METRICS_MAX || m->address.len > SHOAL_TRANSPORT_ADDRESS_MAX) {
        w->failed = true;
        return;
    }
    shoal_put_u32(w, m->call);
    shoal_put_u32(w, m->virtual_workers);
    shoal_put_u64(w, m->sum_elems);
    shoal_put_u64(w, m->copy_bytes);
    shoal_put_u64(w, m->samples);
    shoal_put_u32(w, m->minibatch);
    shoal_put_u32(w, m->data_epochs);
    shoal_put_u64(w, m->steps_per_epoch);
    shoal_put_u8(w, m->metric_count);
    for (unsigned i = 0; i < m->metric_count; i++)
        shoal_put_text(w, m->metric_names[i]);
    shoal_put_bytes(w, m->address);
}

static inline void shoal_worker_get_ready(struct shoal_reader *r, struct shoal_worker_ready *m)
{
    m->call = shoal_get_u32(r);
    m->virtual_workers = shoal_get_u32(r);
    m->sum_elems = shoal_get_u64(r);
    m->copy_bytes = shoal_get_u64(r);
    m->samples = shoal_get_u64(r);
    m->minibatch = shoal_get_u32(r);
    m->data_epochs = shoal_get_u32(r);
    m->steps_per_epoch = shoal_get_u64(r);
    m->metric_count = shoal_get_enum(r, SHOAL_METRICS_MAX + 1);
    for (unsigned i = 0; i < m->metric_count; i++)
        shoal_get_text(r, m->metric_names[i], sizeof(m->metric_names[i]));
    m->address = shoal_get_bytes(r, SHOAL_TRANSPORT_ADDRESS_MAX);
    if (m->virtual_workers == 0 || m->virtual_workers > SHOAL_VIRTUAL_MAX)
        r->failed = true;
}

static inline void shoal_worker_put_member(struct shoal_writer *w, const struct shoal_rank_member *m)
{
    if (m->address_len > SHOAL_TRANSPORT_ADDRESS_MAX) {
        w->failed = true;
        return;
    }
    shoal_put_u64(w, m->worker_id);
    shoal_put_node_id(w, m->node);
    shoal_put_u32(w, m->slot);
    shoal_put_u32(w, m->v_begin);
    shoal_put_u32(w, m->v_end);
    shoal_put_bool(w, m->has_state);
    shoal_put_raw(w, m->token, sizeof(m->token));
    shoal_put_u16(w, m->address_len);
    shoal_put_raw(w, m->address, m->address_len);
}

static inline void shoal_worker_get_member(struct shoal_reader *r, struct shoal_rank_member *m)
{
    m->worker_id = shoal_get_u64(r);
    m->node = shoal_get_node_id(r);
    m->slot = shoal_get_u32(r);
    m->v_begin = shoal_get_u32(r);
    m->v_end = shoal_get_u32(r);
    m->has_state = shoal_get_bool(r);
    shoal_get_raw(r, m->token, sizeof(m->token));
    m->address_len = shoal_get_u16(r);
    if (m->slot >= SHOAL_SLOTS_MAX || m->v_begin > m->v_end || m->v_end > SHOAL_VIRTUAL_MAX ||
        m->address_len > SHOAL_TRANSPORT_ADDRESS_MAX) {
        r->failed = true;
        m->address_len = 0;
    }
    shoal_get_raw(r, m->address, m->address_len);
}

static inline void shoal_worker_put_epoch(struct shoal_writer *w, const struct shoal_worker_epoch *m)
{
    if (m->member_count > SHOAL_RANKS_MAX) {
        w->failed = true;
        return;
    }
    shoal_put_epoch(w, m->epoch);
    shoal_put_u32(w, m->call);
    shoal_put_u64(w, m->decided_step);
    shoal_put_u64(w, m->holder);
    shoal_put_u64(w, m->donor);
    shoal_put_u64(w, m->records_acked);
    shoal_put_text(w, m->snapshot_path);
    shoal_put_u32(w, m->member_count);
    for (unsigned i = 0; i < m->member_count; i++)
        shoal_worker_put_member(w, &m->members[i]);
}

static inline void shoal_worker_get_epoch(struct shoal_reader *r, struct shoal_worker_epoch *m)
{
    m->epoch = shoal_get_epoch(r);
    m->call = shoal_get_u32(r);
    m->decided_step = shoal_get_u64(r);
    m->holder = shoal_get_u64(r);
    m->donor = shoal_get_u64(r);
    m->records_acked = shoal_get_u64(r);
    shoal_get_text(r, m->snapshot_path, sizeof(m->snapshot_path));
    m->member_count = shoal_get_u32(r);
    if (m->member_count > SHOAL_RANKS_MAX) {
        r->failed = true;
        m->member_count = 0;
    }
    for (unsigned i = 0; i < m->member_count; i++)
        shoal_worker_get_member(r, &m->members[i]);
}

static inline void shoal_worker_put_train_state(struct shoal_writer *w, const struct shoal_worker_train_state *m)
{
    shoal_put_u32(w, m->call);
    shoal_put_u8(w, m->state);
    shoal_put_u32(w, m->engines);
    shoal_put_u64(w, m->acked_step);
    shoal_put_u64(w, m->final_step);
    shoal_put_text(w, m->files_path);
    shoal_put_text(w, m->text);
}

static inline void shoal_worker_get_train_state(struct shoal_reader *r, struct shoal_worker_train_state *m)
{
    m->call = shoal_get_u32(r);
    m->state = shoal_get_enum(r, SHOAL_TRAIN_COUNT);
    m->engines = shoal_get_u32(r);
    m->acked_step = shoal_get_u64(r);
    m->final_step = shoal_get_u64(r);
    shoal_get_text(r, m->files_path, sizeof(m->files_path));
    shoal_get_text(r, m->text, sizeof(m->text));
}

static inline void shoal_worker_put_train(struct shoal_writer *w, const struct shoal_worker_train *m)
{
    shoal_put_u32(w, m->call);
    shoal_put_u64(w, m->job_seed);
    shoal_put_u32(w, m->engines_max);
    shoal_put_text(w, m->bundle_path);
    shoal_put_text(w, m->signature);
}

static inline void shoal_worker_get_train(struct shoal_reader *r, struct shoal_worker_train *m)
{
    m->call = shoal_get_u32(r);
    m->job_seed = shoal_get_u64(r);
    m->engines_max = shoal_get_u32(r);
    shoal_get_text(r, m->bundle_path, sizeof(m->bundle_path));
    shoal_get_text(r, m->signature, sizeof(m->signature));
}

/* The first 64 as they always were; the words beyond them, as many as there are, follow at the end of the message. */
static inline void shoal_worker_put_ranks(struct shoal_writer *w, const struct shoal_ranks *set)
{
    shoal_put_u64(w, set->words[0]);
    shoal_put_u8(w, SHOAL_RANKS_WORDS - 1);
    for (uint32_t i = 1; i < SHOAL_RANKS_WORDS; i++)
        shoal_put_u64(w, set->words[i]);
}

/* Words beyond ours name ranks that no epoch of ours has. */
static inline void shoal_worker_get_ranks(struct shoal_reader *r, uint8_t version, struct shoal_ranks *set)
{
    uint32_t more;

    *set = (struct shoal_ranks){ .words = { shoal_get_u64(r) } };
    more = version >= 3 ? shoal_get_u8(r) : 0;
    for (uint32_t i = 1; i <= more; i++) {
        uint64_t word = shoal_get_u64(r);

        if (i < SHOAL_RANKS_WORDS)
            set->words[i] = word;
    }
}

static inline void shoal_worker_put_body(struct shoal_writer *w, const struct shoal_worker_message *m)
{
    switch ((enum shoal_worker_kind)m->kind) {
    case SHOAL_WORKER_HELLO: shoal_worker_put_hello(w, &m->hello); return;
    case SHOAL_WORKER_CALL:
        shoal_put_u32(w, m->call.call);
        shoal_put_u64(w, m->call.job_seed);
        shoal_put_text(w, m->call.bundle_path);
        return;
    case SHOAL_WORKER_READY: shoal_worker_put_ready(w, &m->ready); return;
    case SHOAL_WORKER_EPOCH: shoal_worker_put_epoch(w, &m->epoch); return;
    case SHOAL_WORKER_CLOSED:
        shoal_put_epoch(w, m->closed.epoch);
        shoal_put_u64(w, m->closed.applied_step);
        shoal_put_u64(w, m->closed.complete_step);
        shoal_worker_put_ranks(w, &m->closed.broken);
        return;
    case SHOAL_WORKER_RECORDS:
    case SHOAL_WORKER_TRAIN_RECORDS:
        shoal_put_u32(w, m->records.call);
        shoal_put_u64(w, m->records.first_step);
        shoal_put_u32(w, m->records.count);
        shoal_put_bytes(w, m->records.records);
        return;
    case SHOAL_WORKER_RECORDS_ACKED:
    case SHOAL_WORKER_WRITE_FINAL:
    case SHOAL_WORKER_FILES:
    case SHOAL_WORKER_TRAIN_ACKED:
        shoal_put_u32(w, m->acked.call);
        shoal_put_u64(w, m->acked.step);
        return;
    case SHOAL_WORKER_DONE:
        shoal_put_u32(w, m->done.call);
        shoal_put_u64(w, m->done.final_step);
        shoal_put_u64(w, m->done.state_digest);
        return;
    case SHOAL_WORKER_RELEASE:
    case SHOAL_WORKER_STOP:
        shoal_put_u8(w, m->stop.reason);
        shoal_put_text(w, m->stop.text);
        return;
    case SHOAL_WORKER_FAILED:
        shoal_put_u32(w, m->failed.call);
        shoal_put_bool(w, m->failed.user_code);
        shoal_put_text(w, m->failed.text);
        shoal_put_bool(w, m->failed.unfit);
        return;
    case SHOAL_WORKER_SNAPSHOT:
        shoal_put_u32(w, m->snapshot.call);
        shoal_put_u64(w, m->snapshot.step);
        shoal_put_text(w, m->snapshot.path);
        return;
    case SHOAL_WORKER_TRAIN: shoal_worker_put_train(w, &m->train); return;
    case SHOAL_WORKER_TRAIN_STATE: shoal_worker_put_train_state(w, &m->train_state); return;
    case SHOAL_WORKER_UNHEARD:
        shoal_put_epoch(w, m->unheard.epoch);
        shoal_worker_put_ranks(w, &m->unheard.ranks);
        return;
    case SHOAL_WORKER_KIND_COUNT: break;
    }
    w->failed = true;
}

static inline void shoal_worker_get_body(struct shoal_reader *r, uint8_t version, struct shoal_worker_message *m)
{
    switch ((enum shoal_worker_kind)m->kind) {
    case SHOAL_WORKER_HELLO: shoal_worker_get_hello(r, &m->hello); return;
    case SHOAL_WORKER_CALL:
        m->call.call = shoal_get_u32(r);
        m->call.job_seed = shoal_get_u64(r);
        shoal_get_text(r, m->call.bundle_path, sizeof(m->call.bundle_path));
        return;
    case SHOAL_WORKER_READY: shoal_worker_get_ready(r, &m->ready); return;
    case SHOAL_WORKER_EPOCH: shoal_worker_get_epoch(r, &m->epoch); return;
    case SHOAL_WORKER_CLOSED:
        m->closed.epoch = shoal_get_epoch(r);
        m->closed.applied_step = shoal_get_u64(r);
        m->closed.complete_step = shoal_get_u64(r);
        m->closed.broken = (struct shoal_ranks){ 0 };
        if (version >= 2)
            shoal_worker_get_ranks(r, version, &m->closed.broken);
        return;
    case SHOAL_WORKER_RECORDS:
    case SHOAL_WORKER_TRAIN_RECORDS:
        m->records.call = shoal_get_u32(r);
        m->records.first_step = shoal_get_u64(r);
        m->records.count = shoal_get_u32(r);
        m->records.records = shoal_get_bytes(r, SHOAL_WORKER_MESSAGE_MAX);
        return;
    case SHOAL_WORKER_RECORDS_ACKED:
    case SHOAL_WORKER_WRITE_FINAL:
    case SHOAL_WORKER_FILES:
    case SHOAL_WORKER_TRAIN_ACKED:
        m->acked.call = shoal_get_u32(r);
        m->acked.step = shoal_get_u64(r);
        return;
    case SHOAL_WORKER_DONE:
        m->done.call = shoal_get_u32(r);
        m->done.final_step = shoal_get_u64(r);
        m->done.state_digest = shoal_get_u64(r);
        return;
    case SHOAL_WORKER_RELEASE:
    case SHOAL_WORKER_STOP:
        m->stop.reason = shoal_get_enum(r, SHOAL_STOP_COUNT);
        shoal_get_text(r, m->stop.text, sizeof(m->stop.text));
        return;
    case SHOAL_WORKER_FAILED:
        m->failed.call = shoal_get_u32(r);
        m->failed.user_code = shoal_get_bool(r);
        shoal_get_text(r, m->failed.text, sizeof(m->failed.text));
        m->failed.unfit = version >= 4 && shoal_get_bool(r);
        return;
    case SHOAL_WORKER_SNAPSHOT:
        m->snapshot.call = shoal_get_u32(r);
        m->snapshot.step = shoal_get_u64(r);
        shoal_get_text(r, m->snapshot.path, sizeof(m->snapshot.path));
        return;
    case SHOAL_WORKER_TRAIN: shoal_worker_get_train(r, &m->train); return;
    case SHOAL_WORKER_TRAIN_STATE: shoal_worker_get_train_state(r, &m->train_state); return;
    case SHOAL_WORKER_UNHEARD:
        m->unheard.epoch = shoal_get_epoch(r);
        shoal_worker_get_ranks(r, version, &m->unheard.ranks);
        return;
    case SHOAL_WORKER_KIND_COUNT: break;
    }
    r->failed = true;
}

/* Append one message to `w` (room for SHOAL_WORKER_MESSAGE_MAX is always enough, records apart). TOO_BIG: it did not
 * fit, or a field is beyond its bound. */
static inline SHOAL_MUST_CHECK enum shoal_err shoal_worker_encode(const struct shoal_worker_message *m,
                                                                  struct shoal_writer *w)
{
    shoal_put_u8(w, m->kind);
    shoal_put_u8(w, SHOAL_WORKER_VERSION);
    shoal_put_u8(w, SHOAL_WORKER_OLDEST);
    shoal_worker_put_body(w, m);
    return w->failed ? SHOAL_ERR_TOO_BIG : SHOAL_OK;
}

/* One datagram; views in `m` point into it. UNSUPPORTED: the writer is too new for us. On an error `m` is garbage. */
static inline SHOAL_MUST_CHECK enum shoal_err shoal_worker_decode(struct shoal_view bytes,
                                                                  struct shoal_worker_message *m)
{
    struct shoal_reader r = shoal_reader_init(bytes);
    uint8_t version;
    uint8_t oldest;

    m->kind = shoal_get_u8(&r);
    version = shoal_get_u8(&r);
    oldest = shoal_get_u8(&r);
    if (r.failed)
        return SHOAL_ERR_MALFORMED;
    if (oldest > SHOAL_WORKER_VERSION || version < SHOAL_WORKER_OLDEST)
        return SHOAL_ERR_UNSUPPORTED;
    if (m->kind >= SHOAL_WORKER_KIND_COUNT)
        return SHOAL_ERR_MALFORMED;
    shoal_worker_get_body(&r, version, m);
    if (r.failed || (!shoal_reader_done(&r) && version <= SHOAL_WORKER_VERSION))
        return SHOAL_ERR_MALFORMED;
    return SHOAL_OK;
}

#endif
