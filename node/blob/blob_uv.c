/* Blobs: requests to the blob thread, and what follows from their results (blob.h).
 *
 *   put, get, hold, release (loop) --> queue --> one thread: files (blob_disk.c) --> ended (loop): index, callback
 *
 * I1. The index belongs to the loop's thread, the files to the blob thread; requests are done in the order of
 *     submission. So a removal that was submitted before a write of the same chunk is done before it, and the other way
 *     round.
 * I2. A chunk's removal is submitted only when the index shows neither refs nor pins, and the index forgets it then.
 * I3. A hold is written after its blob's chunks are known to be present, and they have refs from then on. */
#include "blob_shell.h"

#include "blob_disk.h"

#include "shoal/banned.h"

/* ---- the thread ---- */

static enum shoal_err get_blob(struct request *request)
{
    const char *dir = request->blobs->dir;
    struct shoal_buf manifest_bytes = { 0 };
    struct shoal_manifest manifest;
    enum shoal_err err;

    request->bad = request->hash;
    err = blob_disk_read(dir, request->hash, &manifest_bytes, &request->msg);
    if (err == SHOAL_OK && shoal_manifest_decode(shoal_buf_view(&manifest_bytes), &manifest) != SHOAL_OK)
        err = shoal_fail(&request->msg, SHOAL_ERR_INVALID, "that hash names no blob, but a chunk of one");
    else if (err == SHOAL_OK && manifest.bytes > request->max)
        err = shoal_fail(&request->msg, SHOAL_ERR_TOO_BIG, "the blob has %llu bytes, more than the %zu asked for",
                         (unsigned long long)manifest.bytes, request->max);
    for (uint32_t i = 0; err == SHOAL_OK && i < manifest.count; i++) {
        request->bad = shoal_manifest_chunk(&manifest, i);
        err = blob_disk_read(dir, request->bad, &request->bytes, &request->msg);
    }
    if (err == SHOAL_OK && request->bytes.len != manifest.bytes)
        err = shoal_fail(&request->msg, SHOAL_ERR_INVALID, "the blob's chunks do not add up to its size");
    shoal_buf_deinit(&manifest_bytes);
    return err;
}

static enum shoal_err release(struct request *request)
{
    enum shoal_err err = SHOAL_OK;

    if (request->release_all)
        return blob_disk_release_all(request->blobs->dir, request->owner, &request->msg);
    for (size_t i = 0; err == SHOAL_OK && i < request->items_count; i++)
        err = blob_disk_release(request->blobs->dir, request->owner, request->items[i].blob, &request->msg);
    return err;
}

static enum shoal_err run_one(struct request *request)
{
    const struct shoal_blobs *blobs = request->blobs;

    switch (request->kind) {
    case REQUEST_PUT:
        return blob_disk_write(blobs->dir, request->hash, shoal_buf_view(&request->bytes), blobs->reserve_bytes,
                               &request->shared, &request->msg);
    case REQUEST_GET:
    case REQUEST_MANIFEST:
        request->bad = request->hash;
        return blob_disk_read(blobs->dir, request->hash, &request->bytes, &request->msg);
    case REQUEST_GET_BLOB: return get_blob(request);
    case REQUEST_HOLD: return blob_disk_hold(blobs->dir, request->owner, request->hash, &request->msg);
    case REQUEST_RELEASE: return release(request);
    case REQUEST_REMOVE: blob_disk_remove(blobs->dir, request->hash); return SHOAL_OK;
    case REQUEST_NOTHING: return request->err;
    }
    return SHOAL_ERR_INVALID;
}

_Static_assert(offsetof(struct request, job) == 0, "a request is cast from its first member");
static struct request *request_of(struct writer_job *job) { return (struct request *)(void *)job; }

static struct writer_job *run_jobs(void *arg, struct writer_job *first)
{
    struct request *request = request_of(first);
    bool reads = request->kind == REQUEST_GET || request->kind == REQUEST_GET_BLOB || request->kind == REQUEST_MANIFEST;

    (void)arg;
    request->err = run_one(request);
    request->has_bad = reads && (request->err == SHOAL_ERR_MALFORMED || request->err == SHOAL_ERR_NOT_FOUND);
    return first->next;
}

/* ---- requests ---- */

static void maybe_stop(struct shoal_blobs *blobs);

static void request_free(struct request *request)
{
    shoal_buf_deinit(&request->bytes);
    free(request->items);
    free(request);
}

static void on_job_done(struct writer_job *job)
{
    struct request *request = request_of(job);
    struct shoal_blobs *blobs = request->blobs;

    blobs->stats.queued--;
    blobs->queued_bytes -= request->weight;
    request->weight = 0;
    if (request->has_bad) {
        struct chunk *chunk = blob_index_chunk(&blobs->index, request->bad);

        blobs->stats.damaged += request->err == SHOAL_ERR_MALFORMED;
        if (chunk != NULL && chunk->present) {
            chunk->present = false;
            blobs->stats.chunks--;
            blobs->stats.bytes -= chunk->bytes;
        }
    }
    request->kept = false;
    request->ended(request);
    if (!request->kept)
        request_free(request);
    maybe_stop(blobs);
}

static void ended_quietly(struct request *request) { (void)request; }

static void ended_get(struct request *request)
{
    request->on_get(request->arg, request->err, request->err == SHOAL_OK ? NULL : &request->msg,
                    request->err == SHOAL_OK ? shoal_buf_view(&request->bytes) : (struct shoal_view){ 0 });
}

static void ended_done(struct request *request)
{
    if (request->on_done != NULL)
        request->on_done(request->arg, request->err, request->err == SHOAL_OK ? NULL : &request->msg);
}

struct request *request_create(struct shoal_blobs *blobs, enum request_kind kind)
{
    struct request *request = calloc(1, sizeof(*request));

    if (request == NULL)
        return NULL;
    request->blobs = blobs;
    request->kind = kind;
    request->job.done = on_job_done;
    request->ended = ended_quietly;
    return request;
}

void request_submit(struct request *request)
{
    struct shoal_blobs *blobs = request->blobs;

    request->kept = true;
    request->has_bad = false;
    blobs->stats.queued++;
    blobs->queued_bytes += request->weight;
    writer_push(blobs->writer, &request->job);
}

enum shoal_err blobs_admit(struct shoal_blobs *blobs, size_t weight)
{
    if (blobs->stopping)
        return SHOAL_ERR_STALE;
    if (blobs->stats.queued >= SHOAL_BLOB_QUEUE_MAX || blobs->queued_bytes + weight > SHOAL_BLOB_QUEUE_BYTES_MAX) {
        blobs->stats.refused_full++;
        return SHOAL_ERR_FULL;
    }
    return SHOAL_OK;
}

/* ---- chunks ---- */

/* I2. Without memory the file stays until the next start. */
static void orphan(void *arg, struct shoal_hash hash)
{
    struct shoal_blobs *blobs = arg;
    const struct chunk *chunk = blob_index_chunk(&blobs->index, hash);
    struct request *request = request_create(blobs, REQUEST_REMOVE);

    if (chunk->present) {
        blobs->stats.chunks--;
        blobs->stats.bytes -= chunk->bytes;
    }
    blobs->stats.chunks_deleted++;
    blob_index_chunk_remove(&blobs->index, hash);
    if (request == NULL)
        return;
    request->hash = hash;
    request_submit(request);
}

enum shoal_err chunk_pin(struct shoal_blobs *blobs, struct shoal_hash hash)
{
    struct chunk *chunk = blob_index_chunk_make(&blobs->index, hash);

    if (chunk == NULL)
        return SHOAL_ERR_FULL;
    chunk->pins++;
    return SHOAL_OK;
}

void chunk_unpin(struct shoal_blobs *blobs, struct shoal_hash hash, bool remove)
{
    struct chunk *chunk = blob_index_chunk(&blobs->index, hash);

    SHOAL_ASSERT(chunk != NULL && chunk->pins > 0);
    if (--chunk->pins > 0 || chunk->refs > 0)
        return;
    if (!chunk->present)
        blob_index_chunk_remove(&blobs->index, hash);
    else if (remove)
        orphan(blobs, hash);
}

void chunk_written(struct request *request)
{
    struct shoal_blobs *blobs = request->blobs;
    struct chunk *chunk = blob_index_chunk(&blobs->index, request->hash);

    SHOAL_ASSERT(chunk != NULL && chunk->pins > 0);
    if (request->err != SHOAL_OK)
        return;
    blobs->stats.chunks_written += !request->shared;
    blobs->stats.chunks_shared += request->shared;
    if (chunk->present)
        return;
    chunk->present = true;
    chunk->bytes = (uint32_t)request->bytes.len;
    blobs->stats.chunks++;
    blobs->stats.bytes += chunk->bytes;
}

static void ended_put(struct request *request)
{
    chunk_written(request);
    chunk_unpin(request->blobs, request->hash, false);
    request->on_put(request->arg, request->err, request->err == SHOAL_OK ? NULL : &request->msg, request->hash,
                    request->bytes.len);
}

bool shoal_blobs_has_chunk(const struct shoal_blobs *blobs, struct shoal_hash hash)
{
    const struct chunk *chunk = blob_index_chunk(&blobs->index, hash);

    return chunk != NULL && chunk->present;
}

enum shoal_err shoal_blobs_put_chunk(struct shoal_blobs *blobs, struct shoal_hash expected, struct shoal_view bytes,
                                     shoal_blob_put_fn *done, void *arg)
{
    struct shoal_hash hash = shoal_hash_of(bytes);
    struct request *request;
    enum shoal_err err = bytes.len > SHOAL_CHUNK_BYTES_MAX ? SHOAL_ERR_TOO_BIG : blobs_admit(blobs, bytes.len);

    if (err == SHOAL_OK && !shoal_hash_is_zero(expected) && !shoal_hash_equal(expected, hash))
        err = SHOAL_ERR_INVALID;
    if (err != SHOAL_OK)
        return err;
    request = request_create(blobs, REQUEST_PUT);
    if (request == NULL || shoal_buf_append(&request->bytes, bytes.bytes, bytes.len) != SHOAL_OK ||
        chunk_pin(blobs, hash) != SHOAL_OK) {
        if (request != NULL)
            request_free(request);
        return SHOAL_ERR_FULL;
    }
    request->hash = hash;
    request->weight = bytes.len;
    request->ended = ended_put;
    request->on_put = done;
    request->arg = arg;
    request_submit(request);
    return SHOAL_OK;
}

static enum shoal_err get_submit(struct shoal_blobs *blobs, enum request_kind kind, struct shoal_hash hash, size_t max,
                                 shoal_blob_get_fn *done, void *arg)
{
    size_t weight = max < SHOAL_BLOB_QUEUE_BYTES_MAX / 2 ? max : SHOAL_BLOB_QUEUE_BYTES_MAX / 2;
    enum shoal_err err = blobs_admit(blobs, weight);
    struct request *request;

    if (err != SHOAL_OK)
        return err;
    request = request_create(blobs, kind);
    if (request == NULL)
        return SHOAL_ERR_FULL;
    request->hash = hash;
    request->max = max;
    request->weight = weight;
    request->ended = ended_get;
    request->on_get = done;
    request->arg = arg;
    request_submit(request);
    return SHOAL_OK;
}

enum shoal_err shoal_blobs_get_chunk(struct shoal_blobs *blobs, struct shoal_hash hash, shoal_blob_get_fn *done,
                                     void *arg)
{
    return get_submit(blobs, REQUEST_GET, hash, SHOAL_CHUNK_BYTES_MAX, done, arg);
}

enum shoal_err shoal_blobs_get(struct shoal_blobs *blobs, struct shoal_hash blob, size_t max, shoal_blob_get_fn *done,
                               void *arg)
{
    return get_submit(blobs, REQUEST_GET_BLOB, blob, max, done, arg);
}

/* ---- holding and letting go ---- */

static bool is_held(const struct held_blob *blob)
{
    const struct hold *hold = blob->holds;

    while (hold != NULL && !hold->durable)
        hold = hold->next;
    return hold != NULL;
}

static void hold_drop(struct shoal_blobs *blobs, struct held_blob *blob, struct shoal_job_id owner)
{
    bool was_held = is_held(blob);

    blob_index_hold_remove(blob, owner);
    blobs->stats.blobs_held -= was_held && !is_held(blob);
    if (blob->holds == NULL)
        blob_index_blob_remove(&blobs->index, blob, orphan, blobs);
}

static void hold_written(struct request *request)
{
    struct shoal_blobs *blobs = request->blobs;
    struct held_blob *blob = blob_index_blob(&blobs->index, request->hash);
    struct hold *hold = blob == NULL ? NULL : blob_index_hold(blob, request->owner);

    if (hold != NULL && request->err == SHOAL_OK) {
        blobs->stats.blobs_held += !is_held(blob);
        hold->durable = true;
    } else if (hold != NULL && !hold->durable && hold->round == request->round) {
        hold_drop(blobs, blob, request->owner);
    }
    request->after_hold(request);
}

/* I3. The blob's chunks have refs; write that it is held. */
static void hold_write(struct request *request, struct held_blob *blob)
{
    struct hold *hold = blob_index_hold_make(blob, request->owner);

    if (hold == NULL) {
        if (blob->holds == NULL)
            blob_index_blob_remove(&request->blobs->index, blob, orphan, request->blobs);
        request->err = shoal_fail(&request->msg, SHOAL_ERR_FULL, "no memory to hold a blob");
        request->kind = REQUEST_NOTHING;
    } else {
        request->round = ++hold->round;
        request->kind = REQUEST_HOLD;
    }
    request->ended = hold_written;
    request_submit(request);
}

static void manifest_read(struct request *request)
{
    struct blob_index *index = &request->blobs->index;
    struct held_blob *blob = blob_index_blob(index, request->hash);
    struct shoal_manifest manifest;
    enum shoal_err err = request->err;

    if (err == SHOAL_OK && shoal_manifest_decode(shoal_buf_view(&request->bytes), &manifest) != SHOAL_OK)
        err = shoal_fail(&request->msg, SHOAL_ERR_INVALID, "that hash names no blob, but a chunk of one");
    if (err == SHOAL_OK && !blob_index_is_whole(index, request->hash, &manifest))
        err = shoal_fail(&request->msg, SHOAL_ERR_NOT_FOUND, "chunks of the blob are not here yet; fetch them first");
    if (err == SHOAL_OK && blob == NULL && blob_index_blob_make(index, request->hash, &manifest, &blob) != SHOAL_OK)
        err = shoal_fail(&request->msg, SHOAL_ERR_FULL, "no memory to hold a blob");
    request->err = err;
    shoal_buf_deinit(&request->bytes);
    if (err == SHOAL_OK)
        hold_write(request, blob);
    else
        request->after_hold(request);
}

void hold_submit(struct request *request)
{
    struct blob_index *index = &request->blobs->index;
    struct held_blob *blob = blob_index_blob(index, request->hash);
    struct shoal_manifest manifest;

    SHOAL_ASSERT(request->kind == REQUEST_MANIFEST);
    if (blob != NULL) {
        manifest = blob_index_manifest(blob);
        if (blob_index_is_whole(index, request->hash, &manifest)) {
            hold_write(request, blob);
            return;
        }
    }
    request->ended = manifest_read;
    request_submit(request);
}

enum shoal_err shoal_blobs_hold(struct shoal_blobs *blobs, struct shoal_job_id owner, struct shoal_hash blob,
                                shoal_blob_done_fn *done, void *arg)
{
    enum shoal_err err = blobs_admit(blobs, SHOAL_CHUNK_BYTES_MAX);
    struct request *request;

    if (err != SHOAL_OK)
        return err;
    request = request_create(blobs, REQUEST_MANIFEST);
    if (request == NULL)
        return SHOAL_ERR_FULL;
    request->owner = owner;
    request->hash = blob;
    request->after_hold = ended_done;
    request->on_done = done;
    request->arg = arg;
    hold_submit(request);
    return SHOAL_OK;
}

bool shoal_blobs_holds(const struct shoal_blobs *blobs, struct shoal_job_id owner, struct shoal_hash hash)
{
    const struct held_blob *blob = blob_index_blob(&blobs->index, hash);
    const struct hold *hold = blob == NULL ? NULL : blob_index_hold(blob, owner);
    struct shoal_manifest manifest;

    if (hold == NULL || !hold->durable)
        return false;
    manifest = blob_index_manifest(blob);
    return blob_index_is_whole(&blobs->index, hash, &manifest); /* a chunk that was found damaged is fetched again */
}

static void ended_release(struct request *request)
{
    struct shoal_blobs *blobs = request->blobs;

    for (size_t i = 0; request->err == SHOAL_OK && i < request->items_count; i++) {
        struct held_blob *blob = blob_index_blob(&blobs->index, request->items[i].blob);
        const struct hold *hold = blob == NULL ? NULL : blob_index_hold(blob, request->owner);

        /* Held again meanwhile: that file was written after this one was removed. */
        if (hold != NULL && hold->round == request->items[i].round)
            hold_drop(blobs, blob, request->owner);
    }
    ended_done(request);
}

static enum shoal_err collect_all(struct shoal_blobs *blobs, struct request *request)
{
    size_t cap = 0;

    for (unsigned i = 0; i < BLOB_INDEX_BUCKETS; i++) {
        for (struct held_blob *blob = blobs->index.blobs[i]; blob != NULL; blob = blob->next) {
            const struct hold *hold = blob_index_hold(blob, request->owner);

            if (hold == NULL)
                continue;
            if (request->items_count == cap) {
                struct release_item *grown;

                cap = cap == 0 ? 16 : 2 * cap;
                grown = realloc(request->items, cap * sizeof(*grown));
                if (grown == NULL)
                    return SHOAL_ERR_FULL;
                request->items = grown;
            }
            request->items[request->items_count++] = (struct release_item){ .blob = blob->hash, .round = hold->round };
        }
    }
    return SHOAL_OK;
}

static enum shoal_err collect_one(struct shoal_blobs *blobs, struct request *request, struct shoal_hash hash)
{
    const struct held_blob *blob = blob_index_blob(&blobs->index, hash);
    const struct hold *hold = blob == NULL ? NULL : blob_index_hold(blob, request->owner);

    request->items = calloc(1, sizeof(*request->items));
    if (request->items == NULL)
        return SHOAL_ERR_FULL;
    request->items_count = 1;
    request->items[0] = (struct release_item){ .blob = hash, .round = hold == NULL ? 0 : hold->round };
    return SHOAL_OK;
}

enum shoal_err shoal_blobs_release(struct shoal_blobs *blobs, struct shoal_job_id owner, struct shoal_hash blob,
                                   shoal_blob_done_fn *done, void *arg)
{
    enum shoal_err err = blobs_admit(blobs, 0);
    struct request *request;

    if (err != SHOAL_OK)
        return err;
    request = request_create(blobs, REQUEST_RELEASE);
    if (request == NULL)
        return SHOAL_ERR_FULL;
    request->owner = owner;
    request->release_all = shoal_hash_is_zero(blob);
    err = request->release_all ? collect_all(blobs, request) : collect_one(blobs, request, blob);
    if (err != SHOAL_OK) {
        request_free(request);
        return err;
    }
    request->ended = ended_release;
    request->on_done = done;
    request->arg = arg;
    request_submit(request);
    return SHOAL_OK;
}

/* ---- start and stop ---- */

struct loading {
    struct shoal_blobs *blobs;
    struct shoal_msg *msg;
    bool unreadable; /* a held blob's manifest: then nothing is deleted, since it may list anything */
};

static enum shoal_err load_chunk(void *arg, struct shoal_hash hash, uint32_t bytes)
{
    struct loading *loading = arg;
    struct chunk *chunk = blob_index_chunk_make(&loading->blobs->index, hash);

    if (chunk == NULL)
        return shoal_fail(loading->msg, SHOAL_ERR_FULL, "no memory for the index of blobs");
    chunk->present = true;
    chunk->bytes = bytes;
    loading->blobs->stats.chunks++;
    loading->blobs->stats.bytes += bytes;
    return SHOAL_OK;
}

/* A chunk of another length than its blob says is thrown away: it is fetched again when it is wanted. One of the right
 * length is proven by its hash whenever it is read. */
static void check_lengths(struct shoal_blobs *blobs, const struct shoal_manifest *manifest)
{
    for (uint32_t i = 0; i < manifest->count; i++) {
        struct chunk *chunk = blob_index_chunk(&blobs->index, shoal_manifest_chunk(manifest, i));
        uint64_t left = manifest->bytes - (uint64_t)i * SHOAL_CHUNK_BYTES_MAX;

        if (chunk == NULL || !chunk->present ||
            chunk->bytes == (left < SHOAL_CHUNK_BYTES_MAX ? left : SHOAL_CHUNK_BYTES_MAX))
            continue;
        blob_disk_remove(blobs->dir, chunk->hash);
        chunk->present = false;
        blobs->stats.damaged++;
        blobs->stats.chunks--;
        blobs->stats.bytes -= chunk->bytes;
    }
}

static enum shoal_err load_hold(void *arg, struct shoal_job_id owner, struct shoal_hash hash)
{
    struct loading *loading = arg;
    struct shoal_blobs *blobs = loading->blobs;
    struct held_blob *blob = blob_index_blob(&blobs->index, hash);
    struct shoal_buf bytes = { 0 };
    struct shoal_manifest manifest;
    struct hold *hold;
    enum shoal_err err = SHOAL_OK;

    if (blob == NULL) {
        if (blob_disk_read(blobs->dir, hash, &bytes, NULL) != SHOAL_OK ||
            shoal_manifest_decode(shoal_buf_view(&bytes), &manifest) != SHOAL_OK) {
            loading->unreadable = true;
            shoal_buf_deinit(&bytes);
            return SHOAL_OK; /* it is held again when its manifest is back */
        }
        err = blob_index_blob_make(&blobs->index, hash, &manifest, &blob);
        if (err == SHOAL_OK)
            check_lengths(blobs, &manifest);
        shoal_buf_deinit(&bytes);
    }
    hold = err == SHOAL_OK ? blob_index_hold_make(blob, owner) : NULL;
    if (hold == NULL)
        return shoal_fail(loading->msg, SHOAL_ERR_FULL, "no memory for the index of blobs");
    blobs->stats.blobs_held += !is_held(blob);
    hold->durable = true;
    return SHOAL_OK;
}

static void sweep(struct shoal_blobs *blobs)
{
    for (size_t i = 0; i < blobs->index.chunk_buckets; i++) {
        struct chunk *chunk = blobs->index.chunks[i];

        while (chunk != NULL) {
            struct chunk *next = chunk->next;

            if (chunk->refs == 0) {
                blob_disk_remove(blobs->dir, chunk->hash);
                blobs->stats.chunks--;
                blobs->stats.bytes -= chunk->bytes;
                blobs->stats.chunks_deleted++;
                blob_index_chunk_remove(&blobs->index, chunk->hash);
            }
            chunk = next;
        }
    }
}

enum shoal_err shoal_blobs_create(struct shoal_blobs **blobs, const struct shoal_blobs_options *options,
                                  struct shoal_msg *msg)
{
    struct shoal_blobs *made = calloc(1, sizeof(*made));
    struct loading loading = { .blobs = made, .msg = msg };
    enum shoal_err err;

    if (made == NULL || blob_index_init(&made->index) != SHOAL_OK) {
        free(made);
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for blobs");
    }
    made->reserve_bytes = options->reserve_bytes == 0 ? SHOAL_DISK_RESERVE_BYTES : options->reserve_bytes;
    err = blob_disk_init(options->dir, msg);
    if (err == SHOAL_OK) {
        memcpy(made->dir, options->dir, strlen(options->dir));
        err = blob_disk_each_chunk(made->dir, load_chunk, &loading, msg);
    }
    if (err == SHOAL_OK)
        err = blob_disk_each_hold(made->dir, load_hold, &loading, msg);
    if (err == SHOAL_OK && !loading.unreadable)
        sweep(made);
    if (err == SHOAL_OK) {
        err = writer_create(&made->writer, options->loop, run_jobs, made);
        if (err != SHOAL_OK)
            (void)shoal_fail(msg, err, "no thread for blobs");
    }
    if (err != SHOAL_OK) {
        blob_index_deinit(&made->index);
        free(made);
        return err;
    }
    *blobs = made;
    return SHOAL_OK;
}

const struct shoal_blobs_stats *shoal_blobs_stats(const struct shoal_blobs *blobs) { return &blobs->stats; }

static void on_writer_stopped(void *arg)
{
    struct shoal_blobs *blobs = arg;
    void (*stopped)(void *arg) = blobs->stopped;
    void *stopped_arg = blobs->stopped_arg;

    blob_index_deinit(&blobs->index);
    free(blobs);
    if (stopped != NULL)
        stopped(stopped_arg);
}

/* A finished request may lead to another one: a manifest that was read leads to a hold that is written. */
static void maybe_stop(struct shoal_blobs *blobs)
{
    if (!blobs->stopping || blobs->writer_stopping || blobs->stats.queued > 0)
        return;
    SHOAL_ASSERT(blobs->writers == 0);
    blobs->writer_stopping = true;
    writer_stop(blobs->writer, on_writer_stopped, blobs);
}

void shoal_blobs_stop(struct shoal_blobs *blobs, void (*stopped)(void *arg), void *arg)
{
    SHOAL_ASSERT(!blobs->stopping);
    blobs->stopping = true;
    blobs->stopped = stopped;
    blobs->stopped_arg = arg;
    maybe_stop(blobs);
}
