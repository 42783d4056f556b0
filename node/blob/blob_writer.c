/* Blobs that come in pieces: bytes -> chunks of 1 MiB -> manifest -> held (blob.h).
 *
 * I1. Every chunk of a writer is pinned from its submission until the writer ends: by then the blob is held, or what it
 *     wrote is deleted.
 * I2. Chunks are written first, the manifest when all of them are durable, the hold when the manifest is. */
#include "blob_shell.h"

#include "node/format.h"

#include "shoal/banned.h"

struct shoal_blob_writer {
    struct shoal_blobs *blobs;
    struct shoal_job_id owner;
    void (*on_writable)(void *arg);
    void *arg;
    struct shoal_buf chunk;  /* not full yet */
    struct shoal_buf hashes; /* of the chunks submitted, all pinned */
    uint64_t bytes;
    unsigned outstanding; /* chunks with the disk */
    bool was_full, finishing, aborted, manifest_pinned;
    enum shoal_err err;
    struct shoal_msg msg;
    struct shoal_hash manifest;
    struct request *last; /* made beforehand, so that finish cannot fail for lack of memory */
    shoal_blob_put_fn *done;
    void *done_arg;
};

static void writer_next(struct shoal_blob_writer *writer);

static void writer_free(struct shoal_blob_writer *writer, bool remove)
{
    struct shoal_hash hash;

    for (size_t at = 0; at < writer->hashes.len; at += sizeof(hash.bytes)) {
        memcpy(hash.bytes, writer->hashes.bytes + at, sizeof(hash.bytes));
        chunk_unpin(writer->blobs, hash, remove);
    }
    if (writer->manifest_pinned)
        chunk_unpin(writer->blobs, writer->manifest, remove);
    writer->blobs->writers--;
    shoal_buf_deinit(&writer->chunk);
    shoal_buf_deinit(&writer->hashes);
    if (writer->last != NULL) {
        shoal_buf_deinit(&writer->last->bytes);
        free(writer->last);
    }
    free(writer);
}

enum shoal_err shoal_blob_writer_create(struct shoal_blobs *blobs, struct shoal_job_id owner,
                                        void (*on_writable)(void *arg), void *arg, struct shoal_blob_writer **writer)
{
    struct shoal_blob_writer *made;

    if (blobs->stopping)
        return SHOAL_ERR_STALE;
    made = calloc(1, sizeof(*made));
    if (made == NULL)
        return SHOAL_ERR_FULL;
    made->last = request_create(blobs, REQUEST_PUT);
    if (made->last == NULL) {
        free(made);
        return SHOAL_ERR_FULL;
    }
    made->blobs = blobs;
    made->owner = owner;
    made->on_writable = on_writable;
    made->arg = arg;
    blobs->writers++;
    *writer = made;
    return SHOAL_OK;
}

static void writer_fails(struct shoal_blob_writer *writer, enum shoal_err err, const struct shoal_msg *msg)
{
    if (writer->err != SHOAL_OK)
        return;
    writer->err = err;
    writer->msg = *msg;
}

static void chunk_ended(struct request *request)
{
    struct shoal_blob_writer *writer = request->arg;

    chunk_written(request);
    writer->outstanding--;
    if (request->err != SHOAL_OK)
        writer_fails(writer, request->err, &request->msg);
    if (writer->finishing || writer->aborted) {
        writer_next(writer);
    } else if (writer->was_full && writer->outstanding < SHOAL_BLOB_WRITER_CHUNKS) {
        writer->was_full = false;
        if (writer->on_writable != NULL)
            writer->on_writable(writer->arg);
    }
}

static enum shoal_err chunk_submit(struct shoal_blob_writer *writer)
{
    struct shoal_hash hash = shoal_hash_of(shoal_buf_view(&writer->chunk));
    struct request *request = request_create(writer->blobs, REQUEST_PUT);
    enum shoal_err err;

    if (request == NULL)
        return SHOAL_ERR_FULL;
    if (shoal_buf_reserve(&writer->hashes, sizeof(hash.bytes)) != SHOAL_OK ||
        chunk_pin(writer->blobs, hash) != SHOAL_OK) {
        free(request);
        return SHOAL_ERR_FULL;
    }
    err = shoal_buf_append(&writer->hashes, hash.bytes, sizeof(hash.bytes));
    SHOAL_ASSERT(err == SHOAL_OK);
    request->hash = hash;
    request->weight = writer->chunk.len;
    request->bytes = writer->chunk;
    writer->chunk = (struct shoal_buf){ 0 };
    request->ended = chunk_ended;
    request->arg = writer;
    writer->outstanding++;
    request_submit(request);
    return SHOAL_OK;
}

static enum shoal_err take_bytes(struct shoal_blob_writer *writer, struct shoal_view bytes)
{
    while (bytes.len > 0) {
        size_t room = SHOAL_CHUNK_BYTES_MAX - writer->chunk.len;
        size_t taken = bytes.len < room ? bytes.len : room;
        enum shoal_err err = shoal_buf_append(&writer->chunk, bytes.bytes, taken);

        if (err == SHOAL_OK && taken == room)
            err = chunk_submit(writer);
        if (err != SHOAL_OK)
            return err;
        writer->bytes += taken;
        bytes.bytes += taken;
        bytes.len -= taken;
    }
    return SHOAL_OK;
}

enum shoal_err shoal_blob_writer_append(struct shoal_blob_writer *writer, struct shoal_view bytes,
                                        struct shoal_msg *msg)
{
    SHOAL_ASSERT(!writer->finishing && !writer->aborted);
    if (writer->err != SHOAL_OK)
        return shoal_fail(msg, writer->err, "%s", writer->msg.text);
    if (bytes.len > SHOAL_CHUNK_BYTES_MAX || writer->bytes + bytes.len > SHOAL_UPLOAD_BYTES_MAX)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "a blob has at most %llu MiB, and comes in pieces of at most %u KiB",
                          SHOAL_UPLOAD_BYTES_MAX / SHOAL_MIB, SHOAL_CHUNK_BYTES_MAX / SHOAL_KIB);
    if (writer->outstanding >= SHOAL_BLOB_WRITER_CHUNKS) {
        writer->was_full = true;
        return shoal_fail(msg, SHOAL_ERR_FULL, "the disk is slower than what comes in; wait");
    }
    if (take_bytes(writer, bytes) != SHOAL_OK) {
        (void)shoal_fail(&writer->msg, SHOAL_ERR_STORAGE, "no memory for a blob's chunk");
        writer->err = SHOAL_ERR_STORAGE; /* part of the piece was taken: this writer is lost */
        return shoal_fail(msg, writer->err, "%s", writer->msg.text);
    }
    return SHOAL_OK;
}

/* ---- the end ---- */

static void writer_end(struct shoal_blob_writer *writer)
{
    shoal_blob_put_fn *done = writer->done;
    void *arg = writer->done_arg;
    enum shoal_err err = writer->err;
    struct shoal_hash hash = writer->manifest;
    uint64_t bytes = writer->bytes;
    struct shoal_msg msg = writer->msg;

    writer_free(writer, true);
    done(arg, err, err == SHOAL_OK ? NULL : &msg, hash, bytes);
}

static void failure_ended(struct request *request) { writer_end(request->arg); }

static void held(struct request *request)
{
    struct shoal_blob_writer *writer = request->arg;

    if (request->err != SHOAL_OK)
        writer_fails(writer, request->err, &request->msg);
    writer_end(writer);
}

static void manifest_ended(struct request *request)
{
    struct shoal_blob_writer *writer = request->arg;

    chunk_written(request);
    if (request->err != SHOAL_OK) {
        writer_fails(writer, request->err, &request->msg);
        writer_end(writer);
        return;
    }
    shoal_buf_deinit(&request->bytes);
    request->kind = REQUEST_MANIFEST;
    request->owner = writer->owner;
    request->after_hold = held;
    hold_submit(request);
}

static enum shoal_err manifest_encode(struct shoal_blob_writer *writer, struct shoal_buf *buf)
{
    uint8_t head[32];
    struct shoal_writer w = shoal_writer_init(head, sizeof(head));
    enum shoal_err err;

    format_put_header(&w, FORMAT_MANIFEST, 1, 1);
    shoal_put_u64(&w, writer->bytes);
    shoal_put_u32(&w, (uint32_t)(writer->hashes.len / 32));
    err = shoal_buf_append(buf, head, w.len);
    if (err == SHOAL_OK)
        err = shoal_buf_append(buf, writer->hashes.bytes, writer->hashes.len);
    return err;
}

/* Nothing of the writer's is with the disk: go on to the manifest, or end. */
static void writer_next(struct shoal_blob_writer *writer)
{
    struct request *last = writer->last;

    if (writer->outstanding > 0)
        return;
    if (writer->aborted) {
        writer_free(writer, true);
        return;
    }
    writer->last = NULL;
    last->arg = writer;
    last->ended = manifest_ended;
    if (writer->err == SHOAL_OK) {
        enum shoal_err err = manifest_encode(writer, &last->bytes);

        last->hash = writer->manifest = shoal_hash_of(shoal_buf_view(&last->bytes));
        if (err == SHOAL_OK)
            err = chunk_pin(writer->blobs, writer->manifest);
        writer->manifest_pinned = err == SHOAL_OK;
        if (err != SHOAL_OK)
            writer->err = shoal_fail(&writer->msg, SHOAL_ERR_STORAGE, "no memory for a blob's manifest");
    }
    if (writer->err != SHOAL_OK) {
        last->kind = REQUEST_NOTHING;
        last->ended = failure_ended;
    }
    request_submit(last);
}

void shoal_blob_writer_finish(struct shoal_blob_writer *writer, shoal_blob_put_fn *done, void *arg)
{
    SHOAL_ASSERT(!writer->finishing && !writer->aborted);
    writer->finishing = true;
    writer->done = done;
    writer->done_arg = arg;
    if (writer->err == SHOAL_OK && writer->chunk.len > 0 && chunk_submit(writer) != SHOAL_OK)
        writer->err = shoal_fail(&writer->msg, SHOAL_ERR_STORAGE, "no memory for a blob's chunk");
    writer_next(writer);
}

void shoal_blob_writer_abort(struct shoal_blob_writer *writer)
{
    SHOAL_ASSERT(!writer->finishing && !writer->aborted);
    writer->aborted = true;
    writer_next(writer);
}

enum shoal_err shoal_blobs_put(struct shoal_blobs *blobs, struct shoal_job_id owner, struct shoal_view bytes,
                               shoal_blob_put_fn *done, void *arg)
{
    struct shoal_blob_writer *writer;
    enum shoal_err err = bytes.len > SHOAL_BLOB_PUT_MAX ? SHOAL_ERR_TOO_BIG : blobs_admit(blobs, bytes.len);

    if (err == SHOAL_OK)
        err = shoal_blob_writer_create(blobs, owner, NULL, NULL, &writer);
    if (err != SHOAL_OK)
        return err;
    if (take_bytes(writer, bytes) != SHOAL_OK) {
        shoal_blob_writer_abort(writer);
        return SHOAL_ERR_FULL;
    }
    shoal_blob_writer_finish(writer, done, arg);
    return SHOAL_OK;
}
