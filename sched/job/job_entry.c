/* Log entries of a job's group: u8 kind, u8 version, u8 oldest readable, u64 wall_ms, then the fields of the kind. */
#include "shoal/job.h"
#include "shoal/job_entry.h"

#include "job_wire.h"
#include "shoal/banned.h"

static void put_place(struct shoal_writer *w, const struct shoal_job_entry *entry)
{
    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_PLACE);
    if (entry->u.place.add_count > SHOAL_PLACE_MAX || entry->u.place.drop_count > SHOAL_PLACEMENTS_MAX) {
        w->failed = true;
        return;
    }
    shoal_put_u32(w, entry->u.place.attempt);
    shoal_put_u32(w, entry->u.place.add_count);
    for (unsigned i = 0; i < entry->u.place.add_count; i++)
        job_put_placement(w, &entry->u.place.add[i]);
    shoal_put_u32(w, entry->u.place.drop_count);
    for (unsigned i = 0; i < entry->u.place.drop_count; i++)
        shoal_put_u64(w, entry->u.place.drop[i]);
}

static void get_place(struct shoal_reader *r, struct shoal_job_entry *entry)
{
    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_PLACE);
    entry->u.place.attempt = shoal_get_u32(r);
    entry->u.place.add_count = shoal_get_u32(r);
    if (entry->u.place.add_count > SHOAL_PLACE_MAX)
        r->failed = true;
    for (unsigned i = 0; !r->failed && i < entry->u.place.add_count; i++)
        job_get_placement(r, &entry->u.place.add[i]);
    entry->u.place.drop_count = shoal_get_u32(r);
    if (entry->u.place.drop_count > SHOAL_PLACEMENTS_MAX)
        r->failed = true;
    for (unsigned i = 0; !r->failed && i < entry->u.place.drop_count; i++)
        entry->u.place.drop[i] = shoal_get_u64(r);
}

static void put_tasks(struct shoal_writer *w, const struct shoal_job_entry *entry)
{
    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_TASKS);
    if (entry->u.tasks.add_count > SHOAL_PLACE_TASKS_MAX || entry->u.tasks.end_count > SHOAL_TASK_ENDS_MAX) {
        w->failed = true;
        return;
    }
    shoal_put_u32(w, entry->u.tasks.end_count);
    for (unsigned i = 0; i < entry->u.tasks.end_count; i++) {
        shoal_put_u64(w, entry->u.tasks.ends[i].worker_id);
        shoal_put_u8(w, entry->u.tasks.ends[i].outcome);
        shoal_put_u16(w, (uint16_t)entry->u.tasks.ends[i].exit_code);
    }
    shoal_put_u32(w, entry->u.tasks.add_count);
    for (unsigned i = 0; i < entry->u.tasks.add_count; i++)
        job_put_placement(w, &entry->u.tasks.add[i]);
}

static void get_tasks(struct shoal_reader *r, struct shoal_job_entry *entry)
{
    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_TASKS);
    entry->u.tasks.end_count = shoal_get_u32(r);
    if (entry->u.tasks.end_count > SHOAL_TASK_ENDS_MAX)
        r->failed = true;
    for (unsigned i = 0; !r->failed && i < entry->u.tasks.end_count; i++) {
        entry->u.tasks.ends[i].worker_id = shoal_get_u64(r);
        entry->u.tasks.ends[i].outcome = shoal_get_enum(r, SHOAL_TASK_OUTCOME_COUNT);
        entry->u.tasks.ends[i].exit_code = (int16_t)shoal_get_u16(r);
        if (entry->u.tasks.ends[i].exit_code < -1 || entry->u.tasks.ends[i].exit_code > 255)
            r->failed = true;
    }
    entry->u.tasks.add_count = shoal_get_u32(r);
    if (entry->u.tasks.add_count > SHOAL_PLACE_TASKS_MAX)
        r->failed = true;
    for (unsigned i = 0; !r->failed && i < entry->u.tasks.add_count; i++)
        job_get_placement(r, &entry->u.tasks.add[i]);
}

static void put_state(struct shoal_writer *w, const struct shoal_job_entry *entry)
{
    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_STATE);
    SHOAL_ASSERT(entry->u.state.state < SHOAL_JOB_STATE_COUNT); /* what is written can be read */
    shoal_put_u8(w, entry->u.state.state);
    shoal_put_u32(w, (uint32_t)entry->u.state.exit_code);
    shoal_put_bool(w, entry->u.state.result_wanted);
    shoal_put_text(w, entry->u.state.reason);
}

static void get_state(struct shoal_reader *r, struct shoal_job_entry *entry)
{
    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_STATE);
    entry->u.state.state = shoal_get_enum(r, SHOAL_JOB_STATE_COUNT);
    entry->u.state.exit_code = (int32_t)shoal_get_u32(r);
    entry->u.state.result_wanted = shoal_get_bool(r);
    shoal_get_text(r, entry->u.state.reason, sizeof(entry->u.state.reason));
}

static void put_progress(struct shoal_writer *w, const struct shoal_job_entry *entry)
{
    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_PROGRESS);
    shoal_put_u32(w, entry->u.progress.call);
    shoal_put_u64(w, entry->u.progress.logged_step);
    shoal_put_u64(w, entry->u.progress.records_acked);
    shoal_put_bool(w, entry->u.progress.has_data_epoch);
    if (entry->u.progress.has_data_epoch)
        job_put_data_epoch(w, &entry->u.progress.data_epoch);
}

static void get_progress(struct shoal_reader *r, struct shoal_job_entry *entry)
{
    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_PROGRESS);
    entry->u.progress.call = shoal_get_u32(r);
    entry->u.progress.logged_step = shoal_get_u64(r);
    entry->u.progress.records_acked = shoal_get_u64(r);
    entry->u.progress.has_data_epoch = shoal_get_bool(r);
    memset(&entry->u.progress.data_epoch, 0, sizeof(entry->u.progress.data_epoch));
    if (entry->u.progress.has_data_epoch)
        job_get_data_epoch(r, &entry->u.progress.data_epoch);
}

static void put_body(struct shoal_writer *w, const struct shoal_job_entry *entry)
{
    SHOAL_ASSERT(entry->kind < SHOAL_JOB_ENTRY_KIND_COUNT);
    switch ((enum shoal_job_entry_kind)entry->kind) {
    case SHOAL_JOB_ENTRY_STATE: put_state(w, entry); return;
    case SHOAL_JOB_ENTRY_PLACE: put_place(w, entry); return;
    case SHOAL_JOB_ENTRY_CALL:
    case SHOAL_JOB_ENTRY_SIZES:
    case SHOAL_JOB_ENTRY_CALL_STATE:
    case SHOAL_JOB_ENTRY_SNAPSHOT: job_put_call(w, &entry->u.call); return;
    case SHOAL_JOB_ENTRY_EPOCH: shoal_worker_put_epoch(w, &entry->u.epoch); return;
    case SHOAL_JOB_ENTRY_PROGRESS: put_progress(w, entry); return;
    case SHOAL_JOB_ENTRY_RESULT:
    case SHOAL_JOB_ENTRY_ARCHIVED: shoal_put_hash(w, entry->u.result); return;
    case SHOAL_JOB_ENTRY_STOP:
    case SHOAL_JOB_ENTRY_DELETE: shoal_put_text(w, entry->u.stop.by); return;
    case SHOAL_JOB_ENTRY_RECOVER: shoal_put_u32(w, entry->u.generation); return;
    case SHOAL_JOB_ENTRY_TASKS: put_tasks(w, entry); return;
    case SHOAL_JOB_ENTRY_SCALE:
        shoal_put_u32(w, entry->u.scale.replicas);
        shoal_put_text(w, entry->u.scale.by);
        return;
    case SHOAL_JOB_ENTRY_EDIT:
        shoal_put_u32(w, entry->u.edit.revision);
        shoal_put_u8(w, entry->u.edit.replicas);
        shoal_put_bytes(w, entry->u.edit.document);
        shoal_put_text(w, entry->u.edit.by);
        return;
    case SHOAL_JOB_ENTRY_KIND_COUNT: break;
    }
    w->failed = true;
}

static void get_body(struct shoal_reader *r, struct shoal_job_entry *entry)
{
    SHOAL_ASSERT(entry->kind < SHOAL_JOB_ENTRY_KIND_COUNT); /* the head was read */
    switch ((enum shoal_job_entry_kind)entry->kind) {
    case SHOAL_JOB_ENTRY_STATE: get_state(r, entry); return;
    case SHOAL_JOB_ENTRY_PLACE: get_place(r, entry); return;
    case SHOAL_JOB_ENTRY_CALL:
    case SHOAL_JOB_ENTRY_SIZES:
    case SHOAL_JOB_ENTRY_CALL_STATE:
    case SHOAL_JOB_ENTRY_SNAPSHOT: job_get_call(r, &entry->u.call); return;
    case SHOAL_JOB_ENTRY_EPOCH:
        shoal_worker_get_epoch(r, &entry->u.epoch);
        r->failed = r->failed || entry->u.epoch.member_count > SHOAL_JOB_WORKERS_MAX;
        return;
    case SHOAL_JOB_ENTRY_PROGRESS: get_progress(r, entry); return;
    case SHOAL_JOB_ENTRY_RESULT:
    case SHOAL_JOB_ENTRY_ARCHIVED: entry->u.result = shoal_get_hash(r); return;
    case SHOAL_JOB_ENTRY_STOP:
    case SHOAL_JOB_ENTRY_DELETE: shoal_get_text(r, entry->u.stop.by, sizeof(entry->u.stop.by)); return;
    case SHOAL_JOB_ENTRY_RECOVER: entry->u.generation = shoal_get_u32(r); return;
    case SHOAL_JOB_ENTRY_TASKS: get_tasks(r, entry); return;
    case SHOAL_JOB_ENTRY_SCALE:
        entry->u.scale.replicas = shoal_get_u32(r);
        shoal_get_text(r, entry->u.scale.by, sizeof(entry->u.scale.by));
        return;
    case SHOAL_JOB_ENTRY_EDIT:
        entry->u.edit.revision = shoal_get_u32(r);
        entry->u.edit.replicas = shoal_get_u8(r);
        entry->u.edit.document = shoal_get_bytes(r, SHOAL_SERVICE_DOCUMENT_BYTES_MAX);
        shoal_get_text(r, entry->u.edit.by, sizeof(entry->u.edit.by));
        return;
    case SHOAL_JOB_ENTRY_KIND_COUNT: break;
    }
    r->failed = true;
}

enum shoal_err shoal_job_entry_encode(const struct shoal_job_entry *entry, uint8_t *bytes, size_t cap, size_t *len)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap < SHOAL_JOB_ENTRY_BYTES_MAX ? cap : SHOAL_JOB_ENTRY_BYTES_MAX);

    SHOAL_ASSERT(entry->kind < SHOAL_JOB_ENTRY_KIND_COUNT); /* what is written can be read */
    job_put_head(&w, entry->kind, SHOAL_JOB_VERSION);
    shoal_put_u64(&w, entry->wall_ms);
    put_body(&w, entry);
    if (w.failed)
        return SHOAL_ERR_TOO_BIG;
    *len = w.len;
    return SHOAL_OK;
}

enum shoal_err shoal_job_entry_decode(struct shoal_view bytes, struct shoal_job_entry *entry)
{
    struct shoal_reader r = shoal_reader_init(bytes);

    SHOAL_ASSERT(entry != NULL);
    entry->kind = job_get_head(&r, SHOAL_JOB_ENTRY_KIND_COUNT, SHOAL_JOB_VERSION);
    entry->wall_ms = shoal_get_u64(&r);
    if (!r.failed)
        get_body(&r, entry);
    return shoal_reader_done(&r) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

static size_t small_entry(uint8_t *bytes, size_t cap, uint8_t kind, uint64_t wall_ms, const char *by,
                          uint32_t generation)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap);

    SHOAL_ASSERT(kind == SHOAL_JOB_ENTRY_RECOVER || by != NULL);
    job_put_head(&w, kind, SHOAL_JOB_VERSION);
    shoal_put_u64(&w, wall_ms);
    if (by != NULL) {
        char text[SHOAL_JOB_TEXT_BYTES];

        job_cut_text(text, sizeof(text), by);
        shoal_put_text(&w, text);
    } else {
        shoal_put_u32(&w, generation);
    }
    SHOAL_ASSERT(!w.failed);
    return w.len;
}

size_t shoal_job_entry_stop(uint8_t *bytes, size_t cap, const char *by, uint64_t wall_ms)
{
    SHOAL_ASSERT(cap >= 128);
    return small_entry(bytes, cap, SHOAL_JOB_ENTRY_STOP, wall_ms, by, 0);
}

size_t shoal_job_entry_delete(uint8_t *bytes, size_t cap, const char *by, uint64_t wall_ms)
{
    SHOAL_ASSERT(cap >= 128);
    return small_entry(bytes, cap, SHOAL_JOB_ENTRY_DELETE, wall_ms, by, 0);
}

size_t shoal_job_entry_scale(uint8_t *bytes, size_t cap, uint32_t replicas, const char *by, uint64_t wall_ms)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap);
    char text[SHOAL_JOB_TEXT_BYTES];

    SHOAL_ASSERT(cap >= 128);
    job_cut_text(text, sizeof(text), by);
    job_put_head(&w, SHOAL_JOB_ENTRY_SCALE, SHOAL_JOB_VERSION);
    shoal_put_u64(&w, wall_ms);
    shoal_put_u32(&w, replicas);
    shoal_put_text(&w, text);
    SHOAL_ASSERT(!w.failed);
    return w.len;
}

size_t shoal_job_entry_edit(uint8_t *bytes, size_t cap, struct shoal_view command, const char *by, uint64_t wall_ms)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap);
    struct shoal_reader r = shoal_reader_init(command);
    char text[SHOAL_JOB_TEXT_BYTES];

    SHOAL_ASSERT(command.len >= SHOAL_EDIT_HEAD_BYTES && cap >= command.len + 128);
    job_cut_text(text, sizeof(text), by);
    job_put_head(&w, SHOAL_JOB_ENTRY_EDIT, SHOAL_JOB_VERSION);
    shoal_put_u64(&w, wall_ms);
    shoal_put_u32(&w, shoal_get_u32(&r));
    shoal_put_u8(&w, shoal_get_u8(&r));
    shoal_put_bytes(&w, shoal_view_of(command.bytes + SHOAL_EDIT_HEAD_BYTES, command.len - SHOAL_EDIT_HEAD_BYTES));
    shoal_put_text(&w, text);
    SHOAL_ASSERT(!w.failed);
    return w.len;
}

size_t shoal_job_entry_recover(uint8_t *bytes, size_t cap, uint32_t generation, uint64_t wall_ms)
{
    SHOAL_ASSERT(generation > 1); /* J5: the first one is founded */
    return small_entry(bytes, cap, SHOAL_JOB_ENTRY_RECOVER, wall_ms, NULL, generation);
}

size_t shoal_job_entry_archived(uint8_t *bytes, size_t cap, struct shoal_hash record, uint64_t wall_ms)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap);

    SHOAL_ASSERT(!shoal_hash_is_zero(record));
    job_put_head(&w, SHOAL_JOB_ENTRY_ARCHIVED, SHOAL_JOB_VERSION);
    shoal_put_u64(&w, wall_ms);
    shoal_put_hash(&w, record);
    SHOAL_ASSERT(!w.failed);
    return w.len;
}
