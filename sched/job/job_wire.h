/* Bytes of a job's parts, shared by its log entries, its snapshot and the messages between leader and hosts. Every
 * function writes and reads the fields in the order of the struct. */
#ifndef SHOAL_JOB_WIRE_H
#define SHOAL_JOB_WIRE_H

#include "shoal/job.h"
#include "shoal/worker_wire.h"

static inline void job_put_head(struct shoal_writer *w, uint8_t kind, uint8_t version)
{
    shoal_put_u8(w, kind);
    shoal_put_u8(w, version);
    shoal_put_u8(w, 1); /* the oldest version that can read it */
}

/* The kind; the input has failed when its writer is too new for us. */
static inline uint8_t job_get_head(struct shoal_reader *r, unsigned kinds, uint8_t version)
{
    uint8_t kind = shoal_get_enum(r, kinds);
    uint8_t oldest;

    (void)shoal_get_u8(r);
    oldest = shoal_get_u8(r);
    if (oldest == 0 || oldest > version)
        r->failed = true;
    return kind;
}

static inline void job_put_placement(struct shoal_writer *w, const struct shoal_placement *p)
{
    shoal_put_u64(w, p->worker_id);
    shoal_put_node_id(w, p->node);
    shoal_put_u32(w, p->slot);
    shoal_put_u32(w, p->host_epoch);
    shoal_put_u64(w, p->lease_generation);
    shoal_put_raw(w, p->token, sizeof(p->token));
    shoal_put_u8(w, p->role);
    shoal_put_u32(w, p->attempt);
    shoal_put_u32(w, p->rank);
}

static inline void job_get_placement(struct shoal_reader *r, struct shoal_placement *p)
{
    p->worker_id = shoal_get_u64(r);
    p->node = shoal_get_node_id(r);
    p->slot = shoal_get_u32(r);
    p->host_epoch = shoal_get_u32(r);
    p->lease_generation = shoal_get_u64(r);
    shoal_get_raw(r, p->token, sizeof(p->token));
    p->role = shoal_get_enum(r, SHOAL_JOB_ROLE_COUNT);
    p->attempt = shoal_get_u32(r);
    p->rank = shoal_get_u32(r);
    if (p->worker_id == 0 || (p->role == SHOAL_JOB_DRIVER) != (p->slot == SHOAL_SLOT_NONE) ||
        (p->slot != SHOAL_SLOT_NONE && p->slot >= SHOAL_SLOTS_MAX))
        r->failed = true;
}

static inline void job_put_sizes(struct shoal_writer *w, const struct shoal_call_sizes *s)
{
    if (s->metric_count > SHOAL_METRICS_MAX) {
        w->failed = true;
        return;
    }
    shoal_put_u32(w, s->virtual_workers);
    shoal_put_u64(w, s->sum_elems);
    shoal_put_u64(w, s->copy_bytes);
    shoal_put_u64(w, s->samples);
    shoal_put_u32(w, s->minibatch);
    shoal_put_u32(w, s->data_epochs);
    shoal_put_u64(w, s->steps_per_epoch);
    shoal_put_u8(w, s->metric_count);
    for (unsigned i = 0; i < s->metric_count; i++)
        shoal_put_text(w, s->metric_names[i]);
    shoal_put_text(w, s->numeric_class);
}

static inline void job_get_sizes(struct shoal_reader *r, struct shoal_call_sizes *s)
{
    memset(s, 0, sizeof(*s));
    s->virtual_workers = shoal_get_u32(r);
    s->sum_elems = shoal_get_u64(r);
    s->copy_bytes = shoal_get_u64(r);
    s->samples = shoal_get_u64(r);
    s->minibatch = shoal_get_u32(r);
    s->data_epochs = shoal_get_u32(r);
    s->steps_per_epoch = shoal_get_u64(r);
    s->metric_count = shoal_get_enum(r, SHOAL_METRICS_MAX + 1);
    for (unsigned i = 0; i < s->metric_count; i++)
        shoal_get_text(r, s->metric_names[i], sizeof(s->metric_names[i]));
    shoal_get_text(r, s->numeric_class, sizeof(s->numeric_class));
    if (s->virtual_workers > SHOAL_VIRTUAL_MAX)
        r->failed = true;
}

static inline void job_put_call(struct shoal_writer *w, const struct shoal_call *c)
{
    shoal_put_u32(w, c->call);
    shoal_put_u8(w, c->state);
    shoal_put_u64(w, c->job_seed);
    shoal_put_u32(w, c->engines_max);
    shoal_put_hash(w, c->bundle);
    shoal_put_text(w, c->signature);
    job_put_sizes(w, &c->sizes);
    shoal_put_u64(w, c->final_step);
    shoal_put_u64(w, c->state_digest);
    shoal_put_u64(w, c->logged_step);
    shoal_put_u64(w, c->records_acked);
    shoal_put_hash(w, c->snapshot);
    shoal_put_u64(w, c->snapshot_step);
    shoal_put_hash(w, c->files);
}

static inline void job_get_call(struct shoal_reader *r, struct shoal_call *c)
{
    memset(c, 0, sizeof(*c));
    c->call = shoal_get_u32(r);
    c->state = shoal_get_enum(r, SHOAL_CALL_STATE_COUNT);
    c->job_seed = shoal_get_u64(r);
    c->engines_max = shoal_get_u32(r);
    c->bundle = shoal_get_hash(r);
    shoal_get_text(r, c->signature, sizeof(c->signature));
    job_get_sizes(r, &c->sizes);
    c->final_step = shoal_get_u64(r);
    c->state_digest = shoal_get_u64(r);
    c->logged_step = shoal_get_u64(r);
    c->records_acked = shoal_get_u64(r);
    c->snapshot = shoal_get_hash(r);
    c->snapshot_step = shoal_get_u64(r);
    c->files = shoal_get_hash(r);
    if (c->call == 0 || c->call > SHOAL_CALLS_MAX)
        r->failed = true;
}

static inline void job_put_data_epoch(struct shoal_writer *w, const struct shoal_data_epoch *d)
{
    shoal_put_u32(w, d->call);
    shoal_put_u32(w, d->data_epoch);
    shoal_put_u64(w, d->step);
    shoal_put_u32(w, d->engines);
    shoal_put_u64(w, (uint64_t)d->loss_micro);
    shoal_put_u64(w, (uint64_t)d->metric_micro);
}

static inline void job_get_data_epoch(struct shoal_reader *r, struct shoal_data_epoch *d)
{
    d->call = shoal_get_u32(r);
    d->data_epoch = shoal_get_u32(r);
    d->step = shoal_get_u64(r);
    d->engines = shoal_get_u32(r);
    d->loss_micro = (int64_t)shoal_get_u64(r);
    d->metric_micro = (int64_t)shoal_get_u64(r);
}

/* A text cut to `cap` - 1 bytes, never inside a UTF-8 sequence. */
static inline void job_cut_text(char *to, size_t cap, const char *from)
{
    size_t len = strlen(from);

    if (len > cap - 1) {
        len = cap - 1;
        while (len > 0 && ((unsigned char)from[len] & 0xc0) == 0x80)
            len--;
    }
    memcpy(to, from, len);
    to[len] = '\0';
}

#endif
