/* The index says which chunks lie on the disk, and which jobs hold them. It is in memory, rebuilt at start. Pure.
 *
 * I1. A chunk's `refs` is the number of held blobs that list it or are named by it.
 * I2. A chunk with neither refs nor pins may be deleted; a pin is a write under way or a writer that is not
 *     finished. */
#ifndef NODE_BLOB_INDEX_H
#define NODE_BLOB_INDEX_H

#include "shoal/blob.h"

struct chunk {
    struct chunk *next;
    struct shoal_hash hash;
    uint32_t bytes;
    uint32_t refs, pins;
    bool present; /* flushed, and not known to be damaged */
};

struct hold {
    struct hold *next;
    struct shoal_job_id owner;
    uint64_t round; /* counts hold requests: a release undoes only what came before it */
    bool durable;
};

struct held_blob {
    struct held_blob *next;
    struct shoal_hash hash;
    struct hold *holds;
    uint32_t count;
    struct shoal_hash chunks[1]; /* `count` of them */
};

#define BLOB_INDEX_BUCKETS 1024
struct blob_index {
    struct chunk **chunks;
    size_t chunk_buckets, chunks_count;
    struct held_blob *blobs[BLOB_INDEX_BUCKETS];
};

SHOAL_MUST_CHECK enum shoal_err blob_index_init(struct blob_index *index);
void blob_index_deinit(struct blob_index *index);

struct chunk *blob_index_chunk(const struct blob_index *index, struct shoal_hash hash);
/* NULL: no memory. */
struct chunk *blob_index_chunk_make(struct blob_index *index, struct shoal_hash hash);
void blob_index_chunk_remove(struct blob_index *index, struct shoal_hash hash);

struct held_blob *blob_index_blob(const struct blob_index *index, struct shoal_hash hash);
/* With one more ref on each of its chunks and on itself, whether they are present or not. FULL: no memory. */
SHOAL_MUST_CHECK enum shoal_err blob_index_blob_make(struct blob_index *index, struct shoal_hash hash,
                                                     const struct shoal_manifest *manifest, struct held_blob **blob);
/* The blob's manifest and every chunk are present. */
bool blob_index_is_whole(const struct blob_index *index, struct shoal_hash hash, const struct shoal_manifest *manifest);
static inline struct shoal_manifest blob_index_manifest(const struct held_blob *blob)
{
    return (struct shoal_manifest){ .count = blob->count, .hashes = blob->chunks[0].bytes };
}
/* Nobody holds it any more: refs fall, and `orphan` is called for each chunk that may be deleted. */
void blob_index_blob_remove(struct blob_index *index, struct held_blob *blob,
                            void (*orphan)(void *arg, struct shoal_hash hash), void *arg);

struct hold *blob_index_hold(const struct held_blob *blob, struct shoal_job_id owner);
struct hold *blob_index_hold_make(struct held_blob *blob, struct shoal_job_id owner);
void blob_index_hold_remove(struct held_blob *blob, struct shoal_job_id owner);

#endif
