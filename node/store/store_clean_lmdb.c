/* Places in the log that nobody needs are given back: trimmed at the old end, and what lives there is moved (I4 of
 * store_lmdb.c). */
#include "store_lmdb.h"

#include "shoal/banned.h"

/* Sequences deleted by one transaction, the fewest that are worth one, and frames that the cleaner moves by one. */
#define TRIM_MAX 1024
#define TRIM_MIN 64
#define CLEAN_MAX 64
/* The cleaner starts when the log has so many frames, and less than half of them are alive. */
#define CLEAN_LOG_MIN 1024

static uint64_t oldest_live(struct shoal_store *store, struct group **pinning)
{
    uint64_t oldest = store->durable_seq;

    *pinning = NULL;
    for (struct group *group = store->index.first_long; group != NULL; group = group->long_next) {
        if (store_group_oldest_seq(group) < oldest) {
            oldest = store_group_oldest_seq(group);
            *pinning = group;
        }
    }
    return oldest;
}

static void trim(struct shoal_store *store, uint64_t oldest)
{
    uint64_t end = oldest - store->log_first > TRIM_MAX ? store->log_first + TRIM_MAX : oldest;
    struct store_job *job = store_job_create(store);
    uint8_t from[8], to[8];

    if (job == NULL)
        return; /* the next batch that frees something tries again */
    store_key_of_seq(store->log_first, from);
    store_key_of_seq(end, to);
    if (store_job_put(job, OP_TRIM, from, sizeof(from), shoal_view_of(to, sizeof(to))) != SHOAL_OK) {
        store_job_free(job);
        return;
    }
    job->maintenance = true;
    job->trimmed_to = end;
    store->maintaining = true;
    store_job_submit(job);
}

struct copying {
    struct store_job *job;
    struct shoal_store_entry entries[512];
    struct shoal_buf bytes;
    size_t count;
    bool failed;
};

static void copy_entry(void *arg, struct shoal_job_id group, const struct shoal_store_entry *entry)
{
    struct copying *copying = arg;

    (void)group;
    if (copying->failed || copying->count == sizeof(copying->entries) / sizeof(copying->entries[0]) ||
        shoal_buf_append(&copying->bytes, entry->bytes.bytes, entry->bytes.len) != SHOAL_OK) {
        copying->failed = true;
        return;
    }
    copying->entries[copying->count] = *entry;
    copying->entries[copying->count++].bytes.bytes = NULL; /* set when `bytes` no longer moves */
}

static bool copy_span(struct shoal_store *store, MDB_txn *txn, struct group *group, const struct span *span,
                      struct store_job *job)
{
    struct copying *copying = calloc(1, sizeof(*copying));
    struct store_reading reading = { .store = store,
                                     .txn = txn,
                                     .group = group->id,
                                     .from = span->first,
                                     .to = span->first + span->count,
                                     .bytes_left = SIZE_MAX,
                                     .each = copy_entry,
                                     .arg = copying };
    uint8_t bytes[SHOAL_STORE_VALUE_MAX];
    bool more, ok = copying != NULL && store_read_span(&reading, span, &more) == SHOAL_OK && !copying->failed;
    size_t taken = 0, at = 0;

    for (size_t i = 0; ok && i < copying->count; i++) {
        copying->entries[i].bytes.bytes = copying->bytes.bytes + at;
        at += copying->entries[i].bytes.len;
    }
    if (ok && copying->count == 1 && copying->entries[0].bytes.len > FRAME_ENTRY_MAX) {
        for (uint32_t i = 0; ok && i < span->frames; i++) {
            size_t len =
                store_frame_encode_part(group->id, true, copying->entries, i * FRAME_PART_MAX, job->next_seq, bytes);

            ok = store_job_put_frame(job, bytes, len) == SHOAL_OK;
        }
    } else if (ok) {
        size_t len =
            store_frame_encode_entries(group->id, true, copying->entries, copying->count, job->next_seq, bytes, &taken);

        ok = taken == copying->count && store_job_put_frame(job, bytes, len) == SHOAL_OK;
    }
    shoal_buf_deinit(&reading.whole);
    if (copying != NULL)
        shoal_buf_deinit(&copying->bytes);
    free(copying);
    return ok;
}

/* Move the group's oldest spans to the tail, so that the log behind them can go. */
static void clean(struct shoal_store *store, struct group *group, uint64_t below)
{
    struct store_job *job = store_job_create(store);
    MDB_txn *txn;
    bool ok = true;

    if (job == NULL)
        return;
    job->moves = calloc(CLEAN_MAX, sizeof(*job->moves));
    if (job->moves == NULL || mdb_txn_begin(store->env, NULL, MDB_RDONLY, &txn) != 0) {
        store_job_free(job);
        return;
    }
    for (size_t i = 0; ok && i < group_spans(group) && job->moves_count < CLEAN_MAX && job->frames < CLEAN_MAX; i++) {
        const struct span *span = group_span(group, i);

        if (span->seq >= below)
            continue;
        job->moves[job->moves_count++] =
            (struct move){ .group = group->id, .first = span->first, .from_seq = span->seq, .to_seq = job->next_seq };
        ok = copy_span(store, txn, group, span, job);
    }
    mdb_txn_abort(txn);
    if (!ok || job->moves_count == 0) {
        store_job_free(job);
        return;
    }
    job->maintenance = true;
    store->maintaining = true;
    store->stats.frames_copied += job->frames;
    store_job_submit(job);
}

void store_maintain(struct shoal_store *store)
{
    struct group *pinning;
    uint64_t oldest, total = store->durable_seq - store->log_first;

    if (store->maintaining || store->fatal || store->stopping)
        return;
    /* Looking at every group with entries costs; under load only when there may be something to trim. */
    if (store->pending != NULL && store->durable_seq - store->looked_seq < TRIM_MIN)
        return;
    store->looked_seq = store->durable_seq;
    oldest = oldest_live(store, &pinning);
    if (oldest - store->log_first >= TRIM_MIN) {
        trim(store, oldest);
        return;
    }
    /* A tenth of what is written may be copies. */
    if (pinning != NULL && total >= CLEAN_LOG_MIN && store->index.frames < total / 2 &&
        store->stats.frames_copied * 10 <= store->stats.frames + 10 * CLEAN_MAX)
        clean(store, pinning, store->log_first + total / 2);
}
