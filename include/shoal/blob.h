/* Blobs: bytes of any size, named by their content, kept in files.
 *
 *   <data>/blobs/ab/abcd...   a chunk: at most 1 MiB, named by its BLAKE2b-256
 *   <data>/blobs/held/<job>/<hash>   an empty file: the job holds the blob
 *   <data>/blobs/part/        chunks being written
 *
 * A blob is named by its manifest, itself a chunk: the total size and the chunks' hashes. A chunk stays while a held
 * blob lists it; chunks that nobody holds are deleted when the last owner lets go, and at the next start.
 *
 * Disk work is done by one thread of its own, in order; completions come on the loop's thread. Each request ends
 * exactly once, unless the call itself returned an error. */
#ifndef SHOAL_BLOB_H
#define SHOAL_BLOB_H

#include "shoal/hash.h"
#include "shoal/ids.h"
#include "shoal/limits.h"

struct uv_loop_s;
struct shoal_blobs;
struct shoal_blob_writer;

struct shoal_blobs_options {
    struct uv_loop_s *loop;
    const char *dir; /* made if missing; its parent must exist */
    /* Left free on the disk, for the store: a write that would take them is refused. 0: 64 MiB. */
    uint64_t reserve_bytes;
};

struct shoal_blobs_stats {
    uint64_t chunks, bytes; /* on disk, now */
    uint64_t blobs_held;    /* now */
    uint64_t chunks_written, chunks_shared, chunks_deleted;
    uint64_t damaged; /* chunks whose content no longer has their name */
    uint64_t refused_full;
    uint64_t queued; /* requests waiting, now */
};

/* `msg` is NULL on success. */
typedef void shoal_blob_done_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg);
/* `hash` names the blob (or chunk), `bytes` is its size. */
typedef void shoal_blob_put_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_hash hash,
                               uint64_t bytes);
/* `view` is borrowed for the call. */
typedef void shoal_blob_get_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view view);

/* Reads the folders and the held blobs' manifests, and deletes what nobody holds. Blocks: before the loop runs. */
SHOAL_MUST_CHECK enum shoal_err shoal_blobs_create(struct shoal_blobs **blobs,
                                                   const struct shoal_blobs_options *options, struct shoal_msg *msg);
/* Ends what waits (completions run), then `stopped`. Writers must be finished or aborted before. */
void shoal_blobs_stop(struct shoal_blobs *blobs, void (*stopped)(void *arg), void *arg);
const struct shoal_blobs_stats *shoal_blobs_stats(const struct shoal_blobs *blobs);

/* --- chunks: what travels between nodes ---------------------------------------------------------- */

bool shoal_blobs_has_chunk(const struct shoal_blobs *blobs, struct shoal_hash hash);
/* Durable when done. The bytes are copied. `expected` zero: any. INVALID: the bytes have another name.
 * TOO_BIG: above SHOAL_CHUNK_BYTES_MAX. FULL: too much waits. Completions: FULL: no space left, the message names the
 * folder and the remedy; STORAGE: the disk failed. Nothing half-written stays. */
SHOAL_MUST_CHECK enum shoal_err shoal_blobs_put_chunk(struct shoal_blobs *blobs, struct shoal_hash expected,
                                                      struct shoal_view bytes, shoal_blob_put_fn *done, void *arg);
/* NOT_FOUND, or MALFORMED: the content no longer has its name; it is set aside in <data>/blobs/damaged, and has_chunk
 * is false until it is put again: fetch it from another node. */
SHOAL_MUST_CHECK enum shoal_err shoal_blobs_get_chunk(struct shoal_blobs *blobs, struct shoal_hash hash,
                                                      shoal_blob_get_fn *done, void *arg);

/* --- manifests ----------------------------------------------------------------------------------- */

struct shoal_manifest {
    uint64_t bytes;        /* of the blob */
    uint32_t count;        /* chunks; each but the last is SHOAL_CHUNK_BYTES_MAX long */
    const uint8_t *hashes; /* count * 32, borrowed from the input */
};
SHOAL_MUST_CHECK enum shoal_err shoal_manifest_decode(struct shoal_view view, struct shoal_manifest *manifest);
struct shoal_hash shoal_manifest_chunk(const struct shoal_manifest *manifest, uint32_t i);
/* The name that a blob of these bytes (at most SHOAL_CHUNK_BYTES_MAX) has, without storing it. */
struct shoal_hash shoal_blob_name(struct shoal_view bytes);

/* --- blobs --------------------------------------------------------------------------------------- */

/* The whole blob, at most `max` bytes (TOO_BIG). For what is larger: the manifest, then chunk by chunk. */
SHOAL_MUST_CHECK enum shoal_err shoal_blobs_get(struct shoal_blobs *blobs, struct shoal_hash blob, size_t max,
                                                shoal_blob_get_fn *done, void *arg);
/* A blob of bytes at hand, held by `owner`; at most SHOAL_BLOB_PUT_MAX, larger ones by a writer. */
SHOAL_MUST_CHECK enum shoal_err shoal_blobs_put(struct shoal_blobs *blobs, struct shoal_job_id owner,
                                                struct shoal_view bytes, shoal_blob_put_fn *done, void *arg);

/* `owner` holds `blob`, durably when done; its chunks must all be here (else NOT_FOUND). Again is no error. */
SHOAL_MUST_CHECK enum shoal_err shoal_blobs_hold(struct shoal_blobs *blobs, struct shoal_job_id owner,
                                                 struct shoal_hash blob, shoal_blob_done_fn *done, void *arg);
/* Let go of one blob, or of all of the owner's (blob zero); chunks that nobody else holds are deleted. */
SHOAL_MUST_CHECK enum shoal_err shoal_blobs_release(struct shoal_blobs *blobs, struct shoal_job_id owner,
                                                    struct shoal_hash blob, shoal_blob_done_fn *done, void *arg);
bool shoal_blobs_holds(const struct shoal_blobs *blobs, struct shoal_job_id owner, struct shoal_hash blob);

/* A blob that comes in pieces of at most SHOAL_CHUNK_BYTES_MAX. append: FULL: SHOAL_BLOB_WRITER_CHUNKS wait for the
 * disk; nothing was taken, try again after on_writable. Any other error: abort the writer. */
SHOAL_MUST_CHECK enum shoal_err shoal_blob_writer_create(struct shoal_blobs *blobs, struct shoal_job_id owner,
                                                         void (*on_writable)(void *arg), void *arg,
                                                         struct shoal_blob_writer **writer);
SHOAL_MUST_CHECK enum shoal_err shoal_blob_writer_append(struct shoal_blob_writer *writer, struct shoal_view bytes,
                                                         struct shoal_msg *msg);
/* Held by the owner and durable when done. The writer is gone when `done` runs, whatever the result. */
void shoal_blob_writer_finish(struct shoal_blob_writer *writer, shoal_blob_put_fn *done, void *arg);
/* No callback runs any more; what was written is deleted unless something holds it. */
void shoal_blob_writer_abort(struct shoal_blob_writer *writer);

#endif
