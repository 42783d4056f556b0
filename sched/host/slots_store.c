/* The slots table as bytes for the rebuildable store, and looks at it. */
#include <stdlib.h>

#include "sched/job/job_wire.h"
#include "slots_state.h"

#include "shoal/pack.h"
#include "shoal/banned.h"

/* As slots.c: how long a restored worker may stay unconfirmed by its runner. */
#define PROOF_NS (5 * SHOAL_S)

static void put_slot(struct shoal_writer *w, const struct slot *slot)
{
    SHOAL_ASSERT((slot->gpu_mib == 0) == (slot->gpu_pack == 0));
    SHOAL_ASSERT(slot->state < SHOAL_SLOT_STATE_COUNT); /* what is written can be read */
    shoal_put_u8(w, slot->state);
    shoal_put_bool(w, slot->idle);
    shoal_put_bool(w, slot->spent);
    shoal_put_job_id(w, slot->job);
    shoal_put_u64(w, slot->generation);
    shoal_put_u64(w, slot->worker_id);
    shoal_put_u32(w, slot->priority);
    shoal_put_u64(w, slot->ticket_ms);
    shoal_put_u64(w, slot->until_ns);
}

static void get_slot(struct shoal_reader *r, struct slot *slot)
{
    slot->state = shoal_get_enum(r, SHOAL_SLOT_STATE_COUNT);
    slot->idle = shoal_get_bool(r);
    slot->spent = shoal_get_bool(r);
    slot->job = shoal_get_job_id(r);
    slot->generation = shoal_get_u64(r);
    slot->worker_id = shoal_get_u64(r);
    slot->priority = shoal_get_u32(r);
    slot->ticket_ms = shoal_get_u64(r);
    slot->until_ns = shoal_get_u64(r);
}

static void put_job(struct shoal_writer *w, const struct shoal_slots *slots, const struct hjob *job)
{
    uint32_t index = slots_job_index(slots, job);

    SHOAL_ASSERT(job->used);
    SHOAL_ASSERT(job->source_count <= SHOAL_HOST_SOURCES_MAX); /* what is written can be read */
    shoal_put_u32(w, index);
    shoal_put_job_id(w, job->id);
    shoal_put_u32(w, job->generation);
    shoal_put_u64(w, job->term);
    shoal_put_node_id(w, job->leader);
    shoal_put_u64(w, job->seq);
    shoal_put_bool(w, job->opened);
    shoal_put_u64(w, job->revoked);
    shoal_put_u32(w, job->call);
    shoal_put_u64(w, job->job_seed);
    shoal_put_hash(w, job->bundle);
    shoal_put_u8(w, job->source_count);
    for (unsigned i = 0; i < SHOAL_HOST_SOURCES_MAX; i++)
        shoal_put_node_id(w, job->sources[i]);
    shoal_put_bytes(w, shoal_view_of(slots->specs + (size_t)index * SHOAL_JOB_SPEC_BYTES_MAX, job->spec_len));
    shoal_worker_put_epoch(w, &slots->epochs[index]);
}

static void get_job(struct shoal_reader *r, struct shoal_slots *slots)
{
    uint32_t index = shoal_get_u32(r);
    struct shoal_view spec;
    struct hjob *job;

    SHOAL_ASSERT(slots->jobs_max > 0);
    if (r->failed || index >= slots->jobs_max || slots->jobs[index].used) {
        r->failed = true;
        return;
    }
    job = &slots->jobs[index];
    job->used = true;
    job->id = shoal_get_job_id(r);
    job->generation = shoal_get_u32(r);
    job->term = shoal_get_u64(r);
    job->leader = shoal_get_node_id(r);
    job->seq = shoal_get_u64(r);
    if (job->seq < slots->options.start_ns) /* the last reports of the life before may not have been stored */
        job->seq = slots->options.start_ns;
    job->opened = shoal_get_bool(r);
    job->revoked = shoal_get_u64(r);
    job->call = shoal_get_u32(r);
    job->job_seed = shoal_get_u64(r);
    job->bundle = shoal_get_hash(r);
    job->source_count = shoal_get_enum(r, SHOAL_HOST_SOURCES_MAX + 1);
    for (unsigned i = 0; i < SHOAL_HOST_SOURCES_MAX; i++)
        job->sources[i] = shoal_get_node_id(r);
    job->sources_new = true;
    spec = shoal_get_bytes(r, SHOAL_JOB_SPEC_BYTES_MAX);
    if (spec.len > 0)
        memcpy(slots->specs + (size_t)index * SHOAL_JOB_SPEC_BYTES_MAX, spec.bytes, spec.len);
    job->spec_len = spec.len;
    shoal_worker_get_epoch(r, &slots->epochs[index]);
    if (slots->epochs[index].epoch.k > 0) /* ours: who leads may not have heard of it */
        slots_item_touch(job, &job->shrunk);
}

static void put_worker(struct shoal_writer *w, const struct worker *worker)
{
    SHOAL_ASSERT(worker->used);
    SHOAL_ASSERT(worker->report.phase < SHOAL_PHASE_COUNT); /* what is written can be read */
    shoal_put_u32(w, worker->job);
    job_put_placement(w, &worker->place);
    shoal_put_bool(w, worker->run || (worker->want & WANT_RUN) != 0);
    shoal_put_u64(w, worker->term);
    shoal_put_u64(w, worker->deadline_ns);
    shoal_put_u64(w, worker->kill_ns);
    shoal_put_u8(w, worker->report.phase);
    shoal_put_bool(w, worker->report.frozen);
    shoal_put_u32(w, (uint32_t)worker->report.status);
    shoal_put_bool(w, worker->report.signalled);
    shoal_put_epoch(w, worker->report.epoch);
    shoal_put_bool(w, worker->report.closed);
    shoal_put_u64(w, worker->report.applied_step);
    shoal_put_u64(w, worker->report.complete_step);
    shoal_put_text(w, worker->report.text);
}

/* The leases of cards come after all else: versions before, which know nothing of it, read a table of whole slots. */
static void put_shares(struct shoal_writer *w, const struct shoal_slots *slots)
{
    uint32_t count = 0;

    SHOAL_ASSERT(slots->options.slots <= SHOAL_SLOTS_MAX);
    for (uint32_t i = 0; i < slots->options.slots; i++)
        count += slots->slots[i].gpu_pack != 0;
    if (count == 0)
        return;
    shoal_put_u8(w, (uint8_t)count);
    for (uint32_t i = 0; i < slots->options.slots; i++) {
        if (slots->slots[i].gpu_pack == 0)
            continue;
        shoal_put_u8(w, (uint8_t)i);
        shoal_put_u32(w, slots->slots[i].gpu_mib);
        shoal_put_u64(w, slots->slots[i].gpu_pack);
    }
}

static void get_shares(struct shoal_reader *r, struct shoal_slots *slots)
{
    unsigned count;

    SHOAL_ASSERT(slots->options.slots <= SHOAL_SLOTS_MAX);
    count = r->failed || shoal_reader_left(r) == 0 ? 0 : shoal_get_u8(r);

    for (unsigned i = 0; i < count && !r->failed; i++) {
        unsigned index = shoal_get_enum(r, SHOAL_SLOTS_MAX);

        slots->slots[index].gpu_mib = shoal_get_u32(r);
        slots->slots[index].gpu_pack = shoal_get_u64(r);
        if (slots->slots[index].gpu_mib == 0 || slots->slots[index].gpu_pack == 0)
            r->failed = true;
    }
}

/* A living worker holds the slot that names it: S9 moves on from there. */
static bool agrees_with_slot(const struct shoal_slots *slots, const struct worker *worker)
{
    const struct slot *slot;

    SHOAL_ASSERT(worker->used);
    if (worker->place.slot == SHOAL_SLOT_NONE || !worker_lives(worker))
        return true;
    if (worker->place.slot >= SHOAL_SLOTS_MAX)
        return false;
    slot = &slots->slots[worker->place.slot];
    return slot->generation != worker->place.lease_generation || slot->worker_id != worker->place.worker_id ||
           slot->state == SHOAL_SLOT_LEASED || slot->state == SHOAL_SLOT_DRAINING;
}

static void get_worker(struct shoal_reader *r, struct shoal_slots *slots, uint64_t now_ns)
{
    struct shoal_placement place = { .worker_id = 0 };
    uint32_t job = shoal_get_u32(r);
    struct worker *worker;

    job_get_placement(r, &place);
    if (r->failed || job >= slots->jobs_max || !slots->jobs[job].used ||
        slots_find_worker(slots, place.worker_id) != NULL ||
        (worker = slots_add_worker(slots, &slots->jobs[job], &place)) == NULL) {
        r->failed = true;
        return;
    }
    worker->run = shoal_get_bool(r);
    worker->term = shoal_get_u64(r);
    worker->deadline_ns = shoal_get_u64(r);
    worker->kill_ns = shoal_get_u64(r);
    worker->report.phase = shoal_get_enum(r, SHOAL_PHASE_COUNT);
    worker->report.frozen = shoal_get_bool(r);
    worker->report.status = (int32_t)shoal_get_u32(r);
    worker->report.ran = worker->run && worker->report.status != SHOAL_STATUS_UNSTARTED;
    worker->report.signalled = shoal_get_bool(r);
    worker->report.epoch = shoal_get_epoch(r);
    worker->report.closed = shoal_get_bool(r);
    worker->report.applied_step = shoal_get_u64(r);
    worker->report.complete_step = shoal_get_u64(r);
    shoal_get_text(r, worker->report.text, sizeof(worker->report.text));
    worker->frozen = worker->report.frozen;
    worker->unproven = worker->report.phase != SHOAL_PHASE_EXITED;
    worker->proof_ns = now_ns + PROOF_NS;
    /* Its library connects again and says what it has loaded. */
    if (worker->report.phase > SHOAL_PHASE_STARTED && worker->report.phase != SHOAL_PHASE_EXITED)
        worker->report.phase = SHOAL_PHASE_STARTED;
    slots_item_touch(&slots->jobs[job], &worker->item);
    if (worker->deadline_ns < slots->options.lease_ns || !agrees_with_slot(slots, worker))
        r->failed = true;
}

enum shoal_err shoal_slots_encode(const struct shoal_slots *slots, uint8_t *bytes, size_t cap, size_t *len)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap);
    uint32_t jobs = 0, workers = 0;

    SHOAL_ASSERT(slots->options.slots <= SHOAL_SLOTS_MAX);
    job_put_head(&w, 0, 1);
    shoal_put_u32(&w, slots->options.host_epoch);
    shoal_put_u64(&w, slots->version);
    shoal_put_u64(&w, slots->last_generation);
    shoal_put_u32(&w, slots->options.slots);
    for (uint32_t i = 0; i < slots->options.slots; i++)
        put_slot(&w, &slots->slots[i]);
    for (uint32_t i = 0; i < slots->jobs_max; i++)
        jobs += slots->jobs[i].used;
    shoal_put_u32(&w, jobs);
    for (uint32_t i = 0; i < slots->jobs_max; i++)
        if (slots->jobs[i].used)
            put_job(&w, slots, &slots->jobs[i]);
    for (uint32_t i = 0; i < SHOAL_HOST_WORKERS_MAX; i++)
        workers += slots->workers[i].used;
    shoal_put_u32(&w, workers);
    for (uint32_t i = 0; i < SHOAL_HOST_WORKERS_MAX; i++)
        if (slots->workers[i].used)
            put_worker(&w, &slots->workers[i]);
    put_shares(&w, slots);
    if (w.failed)
        return SHOAL_ERR_TOO_BIG;
    *len = w.len;
    return SHOAL_OK;
}

enum shoal_err shoal_slots_restore(struct shoal_slots **out, const struct shoal_slots_options *options,
                                   struct shoal_view bytes)
{
    struct shoal_reader r = shoal_reader_init(bytes);
    struct shoal_slots *slots;
    enum shoal_err err;
    uint32_t count;

    (void)job_get_head(&r, 1, 1);
    if (shoal_get_u32(&r) != options->host_epoch)
        return r.failed ? SHOAL_ERR_MALFORMED : SHOAL_ERR_STALE;
    err = shoal_slots_create(&slots, options);
    if (err != SHOAL_OK)
        return err;
    slots->version = shoal_get_u64(&r) + 1;
    slots->last_generation = shoal_get_u64(&r);
    if (slots->last_generation < options->start_ns)
        slots->last_generation = options->start_ns;
    count = shoal_get_u32(&r);
    if (count > SHOAL_SLOTS_MAX)
        r.failed = true;
    for (uint32_t i = 0; !r.failed && i < count; i++)
        get_slot(&r, &slots->slots[i]);
    count = shoal_get_u32(&r);
    for (uint32_t i = 0; !r.failed && i < count; i++)
        get_job(&r, slots);
    count = shoal_get_u32(&r);
    for (uint32_t i = 0; !r.failed && i < count; i++)
        get_worker(&r, slots, options->start_ns);
    get_shares(&r, slots);
    if (!shoal_reader_done(&r)) {
        shoal_slots_destroy(slots);
        return SHOAL_ERR_MALFORMED;
    }
    *out = slots;
    return SHOAL_OK;
}

uint64_t shoal_slots_version(const struct shoal_slots *slots)
{
    SHOAL_ASSERT(slots->table_version < UINT64_MAX);
    return slots->table_version;
}

/* A card's memory, what is not leased of it, its pack, of the next card its memory, ... */
static bool put_cards(struct shoal_pack_writer *w, const void *base)
{
    const struct shoal_slots_record *record = base;

    SHOAL_ASSERT(record->cards.count <= SHOAL_CARDS_MAX); /* what is written can be read */
    if (w == NULL || record->cards.count == 0)
        return record->cards.count > 0;
    shoal_pack_put_array(w, 3 * record->cards.count);
    for (unsigned i = 0; i < record->cards.count; i++) {
        shoal_pack_put_u64(w, record->cards.list[i].mib);
        shoal_pack_put_u64(w, record->cards.list[i].room);
        shoal_pack_put_u64(w, record->cards.list[i].pack);
    }
    return true;
}

static void get_cards(struct shoal_pack_reader *r, void *base)
{
    struct shoal_slots_record *record = base;
    uint32_t count = shoal_pack_get_array(r, 3 * SHOAL_CARDS_MAX);

    SHOAL_ASSERT(record->cards.count == 0); /* read into zeroes */
    if (count % 3 != 0)
        r->failed = true;
    for (unsigned i = 0; i < count / 3 && !r->failed; i++) {
        record->cards.list[i].mib = (uint32_t)shoal_pack_get_u64(r, UINT32_MAX);
        record->cards.list[i].room = (uint32_t)shoal_pack_get_u64(r, UINT32_MAX);
        record->cards.list[i].pack = shoal_pack_get_u64(r, UINT64_MAX);
    }
    record->cards.count = r->failed ? 0 : count / 3;
}

#define ROW(name, shape, member, max) SHOAL_PACK_ROW(struct shoal_slots_record, name, shape, member, max)
static const struct shoal_pack_field record_fields[] = {
    SHOAL_PACK_OWN("cards", put_cards, get_cards),
    ROW("device", U8, device, SHOAL_JOB_DEVICE_COUNT - 1),
    ROW("draining", U64, draining, UINT64_MAX),
    ROW("free", U64, free, UINT64_MAX),
    ROW("host_epoch", U32, host_epoch, UINT32_MAX),
    ROW("share_free", U64, cards.free, UINT64_MAX),
    ROW("shares", U32, cards.shares, SHOAL_SLOTS_MAX),
    ROW("slots", U32, slots, SHOAL_SLOTS_MAX),
    ROW("stamp", U64, stamp, UINT64_MAX),
    ROW("version", U64, version, UINT64_MAX),
};
#undef ROW
static const struct shoal_pack_table record_table = SHOAL_PACK_TABLE(record_fields);
#define RECORD_VERSION 2 /* 1 was a fixed layout */

enum shoal_err shoal_slots_record_encode(const struct shoal_slots_record *record, uint8_t *bytes, size_t cap,
                                         size_t *len)
{
    struct shoal_pack_head head = { SHOAL_PACK_KIND_SLOTS, RECORD_VERSION, 2 };

    SHOAL_ASSERT(record->slots <= SHOAL_SLOTS_MAX); /* what is written can be read */
    return shoal_pack_encode(head, &record_table, record, bytes, cap, len);
}

enum shoal_err shoal_slots_record_decode(struct shoal_view bytes, struct shoal_slots_record *record)
{
    enum shoal_err err;

    SHOAL_ASSERT(record != NULL);
    memset(record, 0, sizeof(*record));
    err = shoal_pack_decode(bytes, SHOAL_PACK_KIND_SLOTS, RECORD_VERSION, &record_table, record);
    if (record->cards.count > record->slots || record->cards.shares == 0 ||
        shoal_cards_slots(record->cards.count, record->cards.shares) > SHOAL_SLOTS_MAX)
        record->cards = (struct shoal_cards){ 0 }; /* of no sense: then nothing of them is used */
    return err;
}

void shoal_slots_record(const struct shoal_slots *slots, struct shoal_slots_record *record)
{
    uint64_t unheld = 0;

    SHOAL_ASSERT(slots->options.slots <= SHOAL_SLOTS_MAX);
    *record = (struct shoal_slots_record){ .version = slots->version,
                                           .host_epoch = slots->options.host_epoch,
                                           .slots = slots->options.cards > 0 ? slots->options.cards : slots->options.slots,
                                           .device = slots->options.device };
    for (uint32_t i = 0; i < slots->options.slots; i++) {
        if (slots->slots[i].state == SHOAL_SLOT_FREE)
            unheld |= 1ull << i;
        for (uint32_t w = 0; w < SHOAL_HOST_WORKERS_MAX; w++)
            if (worker_lives(&slots->workers[w]) && slots->workers[w].expired && slots->workers[w].place.slot == i)
                unheld |= 1ull << i;
        if (slots->slots[i].state == SHOAL_SLOT_DRAINING)
            record->draining |= 1ull << i;
    }
    if (slots->drain || slots->until_reattached_ns != 0)
        unheld = 0; /* S10, S11 */
    record->free = unheld;
    slots_cards_record(slots, unheld, record);
}

bool shoal_slots_has_job(const struct shoal_slots *slots, struct shoal_job_id job)
{
    SHOAL_ASSERT(slots->jobs_max > 0);
    for (uint32_t i = 0; i < slots->jobs_max; i++)
        if (slots->jobs[i].used && shoal_job_id_equal(slots->jobs[i].id, job))
            return true;
    return false;
}

uint32_t shoal_slots_count(const struct shoal_slots *slots)
{
    SHOAL_ASSERT(slots->options.slots <= SHOAL_SLOTS_MAX);
    return slots->options.slots;
}

void shoal_slots_slot(const struct shoal_slots *slots, uint32_t index, struct shoal_slot_status *status)
{
    const struct slot *slot = &slots->slots[index];

    SHOAL_ASSERT(index < slots->options.slots);
    *status = (struct shoal_slot_status){ .state = (enum shoal_slot_state)slot->state,
                                          .job = slot->job,
                                          .worker_id = slot->worker_id,
                                          .lease_generation = slot->generation,
                                          .gpu_mib = slot->gpu_mib };
    for (uint32_t i = 0; i < SHOAL_HOST_WORKERS_MAX; i++) {
        const struct worker *worker = &slots->workers[i];

        if (worker->used && worker->place.worker_id == slot->worker_id && slot->worker_id != 0) {
            status->term = worker->term;
            status->deadline_ns = worker->deadline_ns;
            status->frozen = worker->frozen;
        }
    }
}

bool shoal_slots_worker_job(const struct shoal_slots *slots, uint64_t worker_id, const uint8_t token[16],
                            struct shoal_job_id *job)
{
    for (uint32_t i = 0; i < SHOAL_HOST_WORKERS_MAX; i++) {
        const struct worker *worker = &slots->workers[i];
        uint8_t differs = 0;

        if (!worker_lives(worker) || worker->place.worker_id != worker_id)
            continue;
        for (unsigned b = 0; b < sizeof(worker->place.token); b++) /* the time must not tell how many bytes agree */
            differs |= (uint8_t)(worker->place.token[b] ^ token[b]);
        if (differs != 0)
            return false;
        *job = slots->jobs[worker->job].id;
        return true;
    }
    return false;
}

size_t shoal_slots_leaders(const struct shoal_slots *slots, struct shoal_node_id *nodes, size_t cap)
{
    size_t count = 0;

    SHOAL_ASSERT(nodes != NULL || cap == 0);
    for (uint32_t i = 0; i < slots->jobs_max; i++) {
        bool seen = !slots->jobs[i].used || shoal_node_id_is_zero(slots->jobs[i].leader);

        for (uint32_t j = 0; !seen && j < i; j++)
            seen = slots->jobs[j].used && shoal_node_id_equal(slots->jobs[j].leader, slots->jobs[i].leader);
        if (seen)
            continue;
        if (count < cap)
            nodes[count] = slots->jobs[i].leader;
        count++;
    }
    return count;
}

void shoal_slots_stats(const struct shoal_slots *slots, struct shoal_slots_stats *stats)
{
    SHOAL_ASSERT(stats != NULL);
    *stats = slots->stats;
}
