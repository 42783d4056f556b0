/* Bytes of the messages between a job's leader and the hosts: u8 kind, u8 version, u8 oldest readable, job, generation,
 * term, host epoch, stamp, seq, then the fields of the kind in the order of the struct. */
#include "shoal/host_wire.h"

#include "job_wire.h"
#include "shoal/banned.h"

static void put_sources(struct shoal_writer *w, const struct shoal_node_id *sources, uint8_t count)
{
    SHOAL_ASSERT(w->len <= w->cap);
    if (count > SHOAL_HOST_SOURCES_MAX) {
        w->failed = true;
        return;
    }
    shoal_put_u8(w, count);
    for (unsigned i = 0; i < count; i++)
        shoal_put_node_id(w, sources[i]);
}

static uint8_t get_sources(struct shoal_reader *r, struct shoal_node_id *sources)
{
    uint8_t count = shoal_get_enum(r, SHOAL_HOST_SOURCES_MAX + 1);

    SHOAL_ASSERT(sources != NULL);
    for (unsigned i = 0; i < count; i++)
        sources[i] = shoal_get_node_id(r);
    return count;
}

static void put_count(struct shoal_writer *w, uint32_t count, uint32_t max)
{
    SHOAL_ASSERT(max > 0);
    if (count > max)
        w->failed = true;
    shoal_put_u32(w, count);
}

/* Zero when the input has failed: loops over it then do nothing. */
static uint32_t get_count(struct shoal_reader *r, uint32_t max)
{
    uint32_t count = shoal_get_u32(r);

    SHOAL_ASSERT(max > 0);
    if (count > max)
        r->failed = true;
    return r->failed ? 0 : count;
}

/* Of a job of more than 64 workers alone: what of the set lies beyond its first word, at the end of the message. */
static void put_ranks_beyond(struct shoal_writer *w, const struct shoal_ranks *set)
{
    SHOAL_ASSERT(w->len > 0); /* behind the rest */
    for (uint32_t i = 1; i < shoal_ranks_words(set); i++)
        shoal_put_u64(w, set->words[i]);
}

static void get_ranks_beyond(struct shoal_reader *r, struct shoal_ranks *set)
{
    uint32_t words = 1;

    SHOAL_ASSERT(shoal_ranks_words(set) == 1); /* the first word was read */
    while (!r->failed && shoal_reader_left(r) > 0 && words < SHOAL_RANKS_WORDS)
        set->words[words++] = shoal_get_u64(r);
    if (shoal_ranks_words(set) != words)
        r->failed = true; /* one value has one encoding */
}

static void put_reserve(struct shoal_writer *w, const struct shoal_host_message *m)
{
    SHOAL_ASSERT(m->kind == SHOAL_HOST_RESERVE);
    shoal_put_u64(w, m->u.reserve.request);
    shoal_put_u32(w, m->u.reserve.priority);
    shoal_put_u64(w, m->u.reserve.ticket_ms);
    put_count(w, m->u.reserve.slot_count, SHOAL_SLOTS_MAX);
    if (!w->failed)
        shoal_put_raw(w, m->u.reserve.slots, m->u.reserve.slot_count);
    shoal_put_bool(w, m->u.reserve.driver);
    if (m->u.reserve.gpu_pack == 0)
        return;
    shoal_put_u32(w, m->u.reserve.gpu_mib);
    shoal_put_u64(w, m->u.reserve.gpu_pack);
}

static void get_slots(struct shoal_reader *r, uint8_t *slots, uint32_t count)
{
    SHOAL_ASSERT(count <= SHOAL_SLOTS_MAX); /* get_count() has looked */
    shoal_get_raw(r, slots, count);
    for (uint32_t i = 0; i < count; i++)
        if (slots[i] >= SHOAL_SLOTS_MAX)
            r->failed = true;
}

static void get_reserve(struct shoal_reader *r, struct shoal_host_message *m)
{
    SHOAL_ASSERT(m->kind == SHOAL_HOST_RESERVE);
    m->u.reserve.request = shoal_get_u64(r);
    m->u.reserve.priority = shoal_get_u32(r);
    m->u.reserve.ticket_ms = shoal_get_u64(r);
    m->u.reserve.slot_count = get_count(r, SHOAL_SLOTS_MAX);
    get_slots(r, m->u.reserve.slots, m->u.reserve.slot_count);
    m->u.reserve.driver = shoal_get_bool(r);
    m->u.reserve.gpu_mib = 0;
    m->u.reserve.gpu_pack = 0;
    if (r->failed || shoal_reader_left(r) == 0)
        return;
    m->u.reserve.gpu_mib = shoal_get_u32(r);
    m->u.reserve.gpu_pack = shoal_get_u64(r);
    if (m->u.reserve.gpu_mib == 0 || m->u.reserve.gpu_pack == 0)
        r->failed = true; /* one value has one encoding */
}

static void put_offer(struct shoal_writer *w, const struct shoal_host_message *m)
{
    SHOAL_ASSERT(m->kind == SHOAL_HOST_OFFER);
    shoal_put_u64(w, m->u.offer.request);
    shoal_put_u64(w, m->u.offer.record_version);
    put_count(w, m->u.offer.slot_count, SHOAL_SLOTS_MAX);
    for (uint32_t i = 0; !w->failed && i < m->u.offer.slot_count; i++) {
        shoal_put_u8(w, m->u.offer.slots[i]);
        shoal_put_u64(w, m->u.offer.generations[i]);
    }
    shoal_put_bool(w, m->u.offer.driver);
    shoal_put_u64(w, m->u.offer.driver_generation);
    shoal_put_u32(w, m->u.offer.refused);
    shoal_put_text(w, m->u.offer.text);
}

static void get_offer(struct shoal_reader *r, struct shoal_host_message *m)
{
    SHOAL_ASSERT(m->kind == SHOAL_HOST_OFFER);
    m->u.offer.request = shoal_get_u64(r);
    m->u.offer.record_version = shoal_get_u64(r);
    m->u.offer.slot_count = get_count(r, SHOAL_SLOTS_MAX);
    for (uint32_t i = 0; i < m->u.offer.slot_count; i++) {
        m->u.offer.slots[i] = shoal_get_enum(r, SHOAL_SLOTS_MAX);
        m->u.offer.generations[i] = shoal_get_u64(r);
    }
    m->u.offer.driver = shoal_get_bool(r);
    m->u.offer.driver_generation = shoal_get_u64(r);
    m->u.offer.refused = shoal_get_u32(r);
    shoal_get_text(r, m->u.offer.text, sizeof(m->u.offer.text));
}

static void put_confirm(struct shoal_writer *w, const struct shoal_host_message *m)
{
    SHOAL_ASSERT(m->kind == SHOAL_HOST_CONFIRM);
    put_count(w, m->u.confirm.placement_count, SHOAL_SLOTS_MAX + 1);
    for (uint32_t i = 0; !w->failed && i < m->u.confirm.placement_count; i++)
        job_put_placement(w, &m->u.confirm.placements[i]);
    put_sources(w, m->u.confirm.sources, m->u.confirm.source_count);
    shoal_put_bytes(w, m->u.confirm.spec);
    shoal_put_u64(w, m->u.confirm.echo);
    shoal_put_bool(w, m->u.confirm.keep);
}

static void get_confirm(struct shoal_reader *r, struct shoal_host_message *m)
{
    SHOAL_ASSERT(m->kind == SHOAL_HOST_CONFIRM);
    m->u.confirm.placement_count = get_count(r, SHOAL_SLOTS_MAX + 1);
    for (uint32_t i = 0; i < m->u.confirm.placement_count; i++)
        job_get_placement(r, &m->u.confirm.placements[i]);
    m->u.confirm.source_count = get_sources(r, m->u.confirm.sources);
    m->u.confirm.spec = shoal_get_bytes(r, SHOAL_JOB_SPEC_BYTES_MAX);
    m->u.confirm.echo = shoal_get_u64(r);
    m->u.confirm.keep = shoal_get_bool(r);
}

static void put_renew(struct shoal_writer *w, const struct shoal_host_message *m)
{
    SHOAL_ASSERT(m->kind == SHOAL_HOST_RENEW);
    shoal_put_u64(w, m->u.renew.echo);
    shoal_put_epoch(w, m->u.renew.epoch);
    put_count(w, m->u.renew.lease_count, SHOAL_SLOTS_MAX + 2);
    for (uint32_t i = 0; !w->failed && i < m->u.renew.lease_count; i++) {
        shoal_put_u64(w, m->u.renew.leases[i].worker_id);
        shoal_put_u64(w, m->u.renew.leases[i].lease_generation);
    }
}

static void get_renew(struct shoal_reader *r, struct shoal_host_message *m)
{
    SHOAL_ASSERT(m->kind == SHOAL_HOST_RENEW);
    m->u.renew.echo = shoal_get_u64(r);
    m->u.renew.epoch = shoal_get_epoch(r);
    m->u.renew.lease_count = get_count(r, SHOAL_SLOTS_MAX + 2);
    for (uint32_t i = 0; i < m->u.renew.lease_count; i++) {
        m->u.renew.leases[i].worker_id = shoal_get_u64(r);
        m->u.renew.leases[i].lease_generation = shoal_get_u64(r);
    }
}

static void put_order(struct shoal_writer *w, const struct shoal_host_message *m)
{
    SHOAL_ASSERT(m->kind == SHOAL_HOST_ORDER);
    SHOAL_ASSERT(m->u.order.order < SHOAL_ORDER_COUNT); /* what is written can be read */
    SHOAL_ASSERT(m->u.order.reason < SHOAL_STOP_COUNT); /* what is written can be read */
    shoal_put_u64(w, m->u.order.worker_id);
    shoal_put_u64(w, m->u.order.lease_generation);
    shoal_put_u8(w, m->u.order.order);
    shoal_put_u8(w, m->u.order.reason);
    shoal_put_u32(w, m->u.order.call);
    shoal_put_u64(w, m->u.order.grace_ns);
    shoal_put_text(w, m->u.order.text);
}

static void get_order(struct shoal_reader *r, struct shoal_host_message *m)
{
    SHOAL_ASSERT(m->kind == SHOAL_HOST_ORDER);
    m->u.order.worker_id = shoal_get_u64(r);
    m->u.order.lease_generation = shoal_get_u64(r);
    m->u.order.order = shoal_get_enum(r, SHOAL_ORDER_COUNT);
    m->u.order.reason = shoal_get_enum(r, SHOAL_STOP_COUNT);
    m->u.order.call = shoal_get_u32(r);
    m->u.order.grace_ns = shoal_get_u64(r);
    shoal_get_text(r, m->u.order.text, sizeof(m->u.order.text));
}

static void put_report(struct shoal_writer *w, const struct shoal_worker_report *p)
{
    SHOAL_ASSERT(p->phase < SHOAL_PHASE_COUNT);                  /* what is written can be read */
    SHOAL_ASSERT(p->role < SHOAL_JOB_ROLE_COUNT);                /* what is written can be read */
    SHOAL_ASSERT(p->address_len <= SHOAL_TRANSPORT_ADDRESS_MAX); /* what is written can be read */
    shoal_put_u64(w, p->worker_id);
    shoal_put_u32(w, p->attempt);
    shoal_put_u8(w, p->role);
    shoal_put_u8(w, p->phase);
    shoal_put_u32(w, p->slot);
    shoal_put_u64(w, p->lease_generation);
    shoal_put_bool(w, p->ran);
    shoal_put_bool(w, p->frozen);
    shoal_put_bool(w, p->stuck);
    shoal_put_u32(w, (uint32_t)p->status);
    shoal_put_bool(w, p->signalled);
    shoal_put_u32(w, p->call);
    shoal_put_u32(w, p->ready_call);
    shoal_put_epoch(w, p->epoch);
    shoal_put_bool(w, p->closed);
    shoal_put_u64(w, p->applied_step);
    shoal_put_u64(w, p->complete_step);
    shoal_put_u32(w, p->done_call);
    shoal_put_u64(w, p->final_step);
    shoal_put_u64(w, p->state_digest);
    shoal_put_u32(w, p->files_call);
    shoal_put_bool(w, p->failed);
    shoal_put_bool(w, p->user_code);
    shoal_put_text(w, p->numeric_class);
    shoal_put_text(w, p->text);
    job_put_sizes(w, &p->sizes);
    shoal_put_bytes(w, shoal_view_of(p->address, p->address_len));
    shoal_put_u64(w, p->unheard.words[0]);
    shoal_put_u64(w, p->next_generation);
    put_ranks_beyond(w, &p->unheard);
}

static void get_report(struct shoal_reader *r, struct shoal_worker_report *p)
{
    struct shoal_view address;

    SHOAL_ASSERT(!r->failed); /* the head was read */
    p->worker_id = shoal_get_u64(r);
    p->attempt = shoal_get_u32(r);
    p->role = shoal_get_enum(r, SHOAL_JOB_ROLE_COUNT);
    p->phase = shoal_get_enum(r, SHOAL_PHASE_COUNT);
    p->slot = shoal_get_u32(r);
    p->lease_generation = shoal_get_u64(r);
    p->ran = shoal_get_bool(r);
    p->frozen = shoal_get_bool(r);
    p->stuck = shoal_get_bool(r);
    p->status = (int32_t)shoal_get_u32(r);
    p->signalled = shoal_get_bool(r);
    p->call = shoal_get_u32(r);
    p->ready_call = shoal_get_u32(r);
    p->epoch = shoal_get_epoch(r);
    p->closed = shoal_get_bool(r);
    p->applied_step = shoal_get_u64_to(r, SHOAL_STEPS_MAX);
    p->complete_step = shoal_get_u64_to(r, SHOAL_STEPS_MAX);
    p->done_call = shoal_get_u32(r);
    p->final_step = shoal_get_u64_to(r, SHOAL_STEPS_MAX);
    p->state_digest = shoal_get_u64(r);
    p->files_call = shoal_get_u32(r);
    p->failed = shoal_get_bool(r);
    p->user_code = shoal_get_bool(r);
    shoal_get_text(r, p->numeric_class, sizeof(p->numeric_class));
    shoal_get_text(r, p->text, sizeof(p->text));
    job_get_sizes(r, &p->sizes);
    address = shoal_get_bytes(r, SHOAL_TRANSPORT_ADDRESS_MAX);
    p->address_len = (uint16_t)address.len;
    if (address.len > 0)
        memcpy(p->address, address.bytes, address.len);
    p->unheard = (struct shoal_ranks){ .words = { shoal_get_u64(r) } };
    p->next_generation = shoal_get_u64(r);
    get_ranks_beyond(r, &p->unheard);
}

static void put_progress(struct shoal_writer *w, const struct shoal_host_message *m)
{
    SHOAL_ASSERT(m->kind == SHOAL_HOST_PROGRESS || m->kind == SHOAL_HOST_MARK);
    shoal_put_u32(w, m->u.progress.call);
    shoal_put_u64(w, m->u.progress.step);
    shoal_put_u64(w, m->u.progress.records_acked);
    shoal_put_u64(w, m->u.progress.logged_step);
    shoal_put_u32(w, m->u.progress.data_epoch);
    shoal_put_u32(w, m->u.progress.engines);
    shoal_put_u32(w, m->u.progress.rate_milli);
    shoal_put_bool(w, m->u.progress.has_metrics);
    shoal_put_u64(w, (uint64_t)m->u.progress.loss_micro);
    shoal_put_u64(w, (uint64_t)m->u.progress.metric_micro);
}

static void get_progress(struct shoal_reader *r, struct shoal_host_message *m)
{
    SHOAL_ASSERT(m->kind == SHOAL_HOST_PROGRESS || m->kind == SHOAL_HOST_MARK);
    m->u.progress.call = shoal_get_u32(r);
    m->u.progress.step = shoal_get_u64_to(r, SHOAL_STEPS_MAX);
    m->u.progress.records_acked = shoal_get_u64_to(r, SHOAL_STEPS_MAX);
    m->u.progress.logged_step = shoal_get_u64_to(r, SHOAL_STEPS_MAX);
    m->u.progress.data_epoch = shoal_get_u32(r);
    m->u.progress.engines = shoal_get_u32(r);
    m->u.progress.rate_milli = shoal_get_u32(r);
    m->u.progress.has_metrics = shoal_get_bool(r);
    m->u.progress.loss_micro = (int64_t)shoal_get_u64(r);
    m->u.progress.metric_micro = (int64_t)shoal_get_u64(r);
}

static void put_manifest(struct shoal_writer *w, const struct shoal_host_message *m)
{
    SHOAL_ASSERT(m->kind == SHOAL_HOST_MANIFEST || m->kind == SHOAL_HOST_MAKE_MANIFEST);
    shoal_put_u32(w, m->u.manifest.call);
    shoal_put_bool(w, m->u.manifest.ok);
    shoal_put_hash(w, m->u.manifest.hash);
    shoal_put_text(w, m->u.manifest.text);
}

static void get_manifest(struct shoal_reader *r, struct shoal_host_message *m)
{
    SHOAL_ASSERT(m->kind == SHOAL_HOST_MANIFEST || m->kind == SHOAL_HOST_MAKE_MANIFEST);
    m->u.manifest.call = shoal_get_u32(r);
    m->u.manifest.ok = shoal_get_bool(r);
    m->u.manifest.hash = shoal_get_hash(r);
    shoal_get_text(r, m->u.manifest.text, sizeof(m->u.manifest.text));
}

static void put_call(struct shoal_writer *w, const struct shoal_host_message *m)
{
    SHOAL_ASSERT(m->kind == SHOAL_HOST_CALL);
    shoal_put_u32(w, m->u.call.call);
    shoal_put_u64(w, m->u.call.job_seed);
    shoal_put_hash(w, m->u.call.bundle);
    put_sources(w, m->u.call.sources, m->u.call.source_count);
}

static void get_call(struct shoal_reader *r, struct shoal_host_message *m)
{
    SHOAL_ASSERT(m->kind == SHOAL_HOST_CALL);
    m->u.call.call = shoal_get_u32(r);
    m->u.call.job_seed = shoal_get_u64(r);
    m->u.call.bundle = shoal_get_hash(r);
    m->u.call.source_count = get_sources(r, m->u.call.sources);
}

static void put_body(struct shoal_writer *w, const struct shoal_host_message *m)
{
    SHOAL_ASSERT(m->kind < SHOAL_HOST_KIND_COUNT);
    switch ((enum shoal_host_kind)m->kind) {
    case SHOAL_HOST_RESERVE: put_reserve(w, m); return;
    case SHOAL_HOST_CONFIRM: put_confirm(w, m); return;
    case SHOAL_HOST_RENEW: put_renew(w, m); return;
    case SHOAL_HOST_CALL: put_call(w, m); return;
    case SHOAL_HOST_SHRUNK:
    case SHOAL_HOST_EPOCH: shoal_worker_put_epoch(w, &m->u.epoch); return;
    case SHOAL_HOST_REVOKE: shoal_put_epoch(w, m->u.revoke); return;
    case SHOAL_HOST_ORDER: put_order(w, m); return;
    case SHOAL_HOST_TRAIN_STATE:
        shoal_put_u64(w, m->u.train_state.worker_id);
        shoal_worker_put_train_state(w, &m->u.train_state.state);
        return;
    case SHOAL_HOST_MAKE_MANIFEST:
    case SHOAL_HOST_MANIFEST: put_manifest(w, m); return;
    case SHOAL_HOST_CANCEL:
    case SHOAL_HOST_ACK:
    case SHOAL_HOST_REPORT:
    case SHOAL_HOST_END: return;
    case SHOAL_HOST_OFFER: put_offer(w, m); return;
    case SHOAL_HOST_WORKER: put_report(w, &m->u.worker); return;
    case SHOAL_HOST_DRAIN:
    case SHOAL_HOST_UNKNOWN: shoal_put_u64(w, m->u.drain.worker_id); return;
    case SHOAL_HOST_TRAIN:
        shoal_put_u64(w, m->u.train.worker_id);
        job_put_call(w, &m->u.train.call);
        return;
    case SHOAL_HOST_MARK:
    case SHOAL_HOST_PROGRESS: put_progress(w, m); return;
    case SHOAL_HOST_SNAPSHOT:
        shoal_put_u32(w, m->u.snapshot.call);
        shoal_put_u64(w, m->u.snapshot.step);
        shoal_put_hash(w, m->u.snapshot.hash);
        return;
    case SHOAL_HOST_BROKEN:
        shoal_put_u64(w, m->u.broken.worker_id);
        shoal_put_epoch(w, m->u.broken.epoch);
        shoal_put_u64(w, m->u.broken.ranks.words[0]);
        put_ranks_beyond(w, &m->u.broken.ranks);
        return;
    case SHOAL_HOST_UNFIT:
        shoal_put_u64(w, m->u.unfit.worker_id);
        shoal_put_text(w, m->u.unfit.text);
        return;
    case SHOAL_HOST_STANDS:
        shoal_put_u64(w, m->u.stands.worker_id);
        shoal_put_epoch(w, m->u.stands.epoch);
        shoal_put_u8(w, m->u.stands.activity);
        return;
    case SHOAL_HOST_KIND_COUNT: break;
    }
    w->failed = true;
}

static void get_body(struct shoal_reader *r, struct shoal_host_message *m)
{
    SHOAL_ASSERT(m->kind < SHOAL_HOST_KIND_COUNT); /* the head was read */
    switch ((enum shoal_host_kind)m->kind) {
    case SHOAL_HOST_RESERVE: get_reserve(r, m); return;
    case SHOAL_HOST_CONFIRM: get_confirm(r, m); return;
    case SHOAL_HOST_RENEW: get_renew(r, m); return;
    case SHOAL_HOST_CALL: get_call(r, m); return;
    case SHOAL_HOST_SHRUNK:
    case SHOAL_HOST_EPOCH:
        shoal_worker_get_epoch(r, &m->u.epoch);
        r->failed = r->failed || m->u.epoch.member_count > SHOAL_JOB_WORKERS_MAX;
        return;
    case SHOAL_HOST_REVOKE: m->u.revoke = shoal_get_epoch(r); return;
    case SHOAL_HOST_ORDER: get_order(r, m); return;
    case SHOAL_HOST_TRAIN_STATE:
        m->u.train_state.worker_id = shoal_get_u64(r);
        shoal_worker_get_train_state(r, &m->u.train_state.state);
        return;
    case SHOAL_HOST_MAKE_MANIFEST:
    case SHOAL_HOST_MANIFEST: get_manifest(r, m); return;
    case SHOAL_HOST_CANCEL:
    case SHOAL_HOST_ACK:
    case SHOAL_HOST_REPORT:
    case SHOAL_HOST_END: return;
    case SHOAL_HOST_OFFER: get_offer(r, m); return;
    case SHOAL_HOST_WORKER: get_report(r, &m->u.worker); return;
    case SHOAL_HOST_DRAIN:
    case SHOAL_HOST_UNKNOWN: m->u.drain.worker_id = shoal_get_u64(r); return;
    case SHOAL_HOST_TRAIN:
        m->u.train.worker_id = shoal_get_u64(r);
        job_get_call(r, &m->u.train.call);
        return;
    case SHOAL_HOST_MARK:
    case SHOAL_HOST_PROGRESS: get_progress(r, m); return;
    case SHOAL_HOST_SNAPSHOT:
        m->u.snapshot.call = shoal_get_u32(r);
        m->u.snapshot.step = shoal_get_u64_to(r, SHOAL_STEPS_MAX);
        m->u.snapshot.hash = shoal_get_hash(r);
        return;
    case SHOAL_HOST_BROKEN:
        m->u.broken.worker_id = shoal_get_u64(r);
        m->u.broken.epoch = shoal_get_epoch(r);
        m->u.broken.ranks = (struct shoal_ranks){ .words = { shoal_get_u64(r) } };
        get_ranks_beyond(r, &m->u.broken.ranks);
        return;
    case SHOAL_HOST_UNFIT:
        m->u.unfit.worker_id = shoal_get_u64(r);
        shoal_get_text(r, m->u.unfit.text, sizeof(m->u.unfit.text));
        return;
    case SHOAL_HOST_STANDS:
        m->u.stands.worker_id = shoal_get_u64(r);
        m->u.stands.epoch = shoal_get_epoch(r);
        m->u.stands.activity = shoal_get_u8(r);
        return;
    case SHOAL_HOST_KIND_COUNT: break;
    }
    r->failed = true;
}

enum shoal_err shoal_host_encode(const struct shoal_host_message *m, uint8_t *bytes, size_t cap, size_t *len)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap < SHOAL_HOST_MESSAGE_MAX ? cap : SHOAL_HOST_MESSAGE_MAX);

    SHOAL_ASSERT(m->kind < SHOAL_HOST_KIND_COUNT); /* what is written can be read */
    job_put_head(&w, m->kind, SHOAL_HOST_WIRE_VERSION);
    shoal_put_job_id(&w, m->job);
    shoal_put_u32(&w, m->generation);
    shoal_put_u64(&w, m->term);
    shoal_put_u32(&w, m->host_epoch);
    shoal_put_u64(&w, m->stamp);
    shoal_put_u64(&w, m->seq);
    put_body(&w, m);
    if (w.failed)
        return SHOAL_ERR_TOO_BIG;
    *len = w.len;
    return SHOAL_OK;
}

enum shoal_err shoal_host_decode(struct shoal_view bytes, struct shoal_host_message *m)
{
    struct shoal_reader r = shoal_reader_init(bytes);

    SHOAL_ASSERT(m != NULL);
    m->kind = job_get_head(&r, SHOAL_HOST_KIND_COUNT, SHOAL_HOST_WIRE_VERSION);
    m->job = shoal_get_job_id(&r);
    m->generation = shoal_get_u32(&r);
    m->term = shoal_get_u64(&r);
    m->host_epoch = shoal_get_u32(&r);
    m->stamp = shoal_get_u64(&r);
    m->seq = shoal_get_u64(&r);
    if (!r.failed)
        get_body(&r, m);
    return shoal_reader_done(&r) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

bool shoal_host_kind_to_host(uint8_t kind)
{
    SHOAL_ASSERT(kind < SHOAL_HOST_KIND_COUNT);
    return kind <= SHOAL_HOST_END;
}

bool shoal_host_answer_end(struct shoal_view bytes, uint8_t *answer, size_t cap, size_t *len)
{
    struct shoal_reader r = shoal_reader_init(bytes);
    struct shoal_writer w = shoal_writer_init(answer, cap);
    struct shoal_job_id job;
    uint32_t generation;
    uint64_t term;

    SHOAL_ASSERT(answer != NULL && len != NULL);
    (void)job_get_head(&r, SHOAL_HOST_KIND_COUNT, SHOAL_HOST_WIRE_VERSION);
    job = shoal_get_job_id(&r);
    generation = shoal_get_u32(&r);
    term = shoal_get_u64(&r);
    job_put_head(&w, SHOAL_HOST_END, SHOAL_HOST_WIRE_VERSION);
    shoal_put_job_id(&w, job);
    shoal_put_u32(&w, generation);
    shoal_put_u64(&w, term);
    shoal_put_u32(&w, 0); /* host epoch, stamp and sequence: an END has none */
    shoal_put_u64(&w, 0);
    shoal_put_u64(&w, 0);
    *len = w.len;
    return !r.failed && !w.failed;
}

bool shoal_host_peek(struct shoal_view bytes, uint8_t *kind, struct shoal_job_id *job)
{
    struct shoal_reader r = shoal_reader_init(bytes);
    uint8_t k = job_get_head(&r, SHOAL_HOST_KIND_COUNT, SHOAL_HOST_WIRE_VERSION);
    struct shoal_job_id id = shoal_get_job_id(&r);

    SHOAL_ASSERT(kind != NULL && job != NULL);
    if (r.failed)
        return false;
    *kind = k;
    *job = id;
    return true;
}
