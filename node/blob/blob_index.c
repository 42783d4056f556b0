#include "blob_index.h"

#include "shoal/banned.h"

#define CHUNK_BUCKETS_MIN 1024

static size_t word_of(struct shoal_hash hash)
{
    size_t word;

    memcpy(&word, hash.bytes, sizeof(word));
    return word;
}

enum shoal_err blob_index_init(struct blob_index *index)
{
    memset(index, 0, sizeof(*index));
    index->chunk_buckets = CHUNK_BUCKETS_MIN;
    index->chunks = calloc(index->chunk_buckets, sizeof(struct chunk *));
    return index->chunks == NULL ? SHOAL_ERR_FULL : SHOAL_OK;
}

void blob_index_deinit(struct blob_index *index)
{
    for (size_t i = 0; i < BLOB_INDEX_BUCKETS; i++) {
        while (index->blobs[i] != NULL) {
            struct held_blob *blob = index->blobs[i];

            index->blobs[i] = blob->next;
            while (blob->holds != NULL)
                blob_index_hold_remove(blob, blob->holds->owner);
            free(blob);
        }
    }
    for (size_t i = 0; index->chunks != NULL && i < index->chunk_buckets; i++) {
        while (index->chunks[i] != NULL) {
            struct chunk *chunk = index->chunks[i];

            index->chunks[i] = chunk->next;
            free(chunk);
        }
    }
    free(index->chunks);
    index->chunks = NULL;
}

struct chunk *blob_index_chunk(const struct blob_index *index, struct shoal_hash hash)
{
    struct chunk *chunk = index->chunks[word_of(hash) & (index->chunk_buckets - 1)];

    while (chunk != NULL && !shoal_hash_equal(chunk->hash, hash))
        chunk = chunk->next;
    return chunk;
}

/* Without memory the table only gets slower. */
static void grow(struct blob_index *index)
{
    size_t buckets = index->chunk_buckets * 2;
    struct chunk **grown = calloc(buckets, sizeof(*grown));

    if (grown == NULL)
        return;
    for (size_t i = 0; i < index->chunk_buckets; i++) {
        while (index->chunks[i] != NULL) {
            struct chunk *chunk = index->chunks[i];
            struct chunk **bucket = &grown[word_of(chunk->hash) & (buckets - 1)];

            index->chunks[i] = chunk->next;
            chunk->next = *bucket;
            *bucket = chunk;
        }
    }
    free(index->chunks);
    index->chunks = grown;
    index->chunk_buckets = buckets;
}

struct chunk *blob_index_chunk_make(struct blob_index *index, struct shoal_hash hash)
{
    struct chunk *chunk = blob_index_chunk(index, hash);
    struct chunk **bucket;

    if (chunk != NULL)
        return chunk;
    if (index->chunks_count >= index->chunk_buckets)
        grow(index);
    chunk = calloc(1, sizeof(*chunk));
    if (chunk == NULL)
        return NULL;
    bucket = &index->chunks[word_of(hash) & (index->chunk_buckets - 1)];
    chunk->hash = hash;
    chunk->next = *bucket;
    *bucket = chunk;
    index->chunks_count++;
    return chunk;
}

void blob_index_chunk_remove(struct blob_index *index, struct shoal_hash hash)
{
    struct chunk **at = &index->chunks[word_of(hash) & (index->chunk_buckets - 1)];
    struct chunk *chunk;

    while (*at != NULL && !shoal_hash_equal((*at)->hash, hash))
        at = &(*at)->next;
    chunk = *at;
    if (chunk == NULL)
        return;
    *at = chunk->next;
    index->chunks_count--;
    free(chunk);
}

static size_t blob_bucket(struct shoal_hash hash) { return word_of(hash) % BLOB_INDEX_BUCKETS; }

struct held_blob *blob_index_blob(const struct blob_index *index, struct shoal_hash hash)
{
    struct held_blob *blob = index->blobs[blob_bucket(hash)];

    while (blob != NULL && !shoal_hash_equal(blob->hash, hash))
        blob = blob->next;
    return blob;
}

enum shoal_err blob_index_blob_make(struct blob_index *index, struct shoal_hash hash,
                                    const struct shoal_manifest *manifest, struct held_blob **blob)
{
    struct chunk *own = blob_index_chunk_make(index, hash);
    struct held_blob *made;

    if (own == NULL)
        return SHOAL_ERR_FULL;
    for (uint32_t i = 0; i < manifest->count; i++)
        if (blob_index_chunk_make(index, shoal_manifest_chunk(manifest, i)) == NULL)
            return SHOAL_ERR_FULL;
    made = calloc(1, sizeof(*made) + manifest->count * sizeof(made->chunks[0]));
    if (made == NULL)
        return SHOAL_ERR_FULL;
    made->hash = hash;
    made->count = manifest->count;
    for (uint32_t i = 0; i < manifest->count; i++) {
        made->chunks[i] = shoal_manifest_chunk(manifest, i);
        blob_index_chunk(index, made->chunks[i])->refs++;
    }
    own->refs++;
    made->next = index->blobs[blob_bucket(hash)];
    index->blobs[blob_bucket(hash)] = made;
    *blob = made;
    return SHOAL_OK;
}

bool blob_index_is_whole(const struct blob_index *index, struct shoal_hash hash, const struct shoal_manifest *manifest)
{
    const struct chunk *chunk = blob_index_chunk(index, hash);

    for (uint32_t i = 0; i < manifest->count && chunk != NULL && chunk->present; i++)
        chunk = blob_index_chunk(index, shoal_manifest_chunk(manifest, i));
    return chunk != NULL && chunk->present;
}

static void unref(struct blob_index *index, struct shoal_hash hash, void (*orphan)(void *arg, struct shoal_hash hash),
                  void *arg)
{
    struct chunk *chunk = blob_index_chunk(index, hash);

    SHOAL_ASSERT(chunk != NULL && chunk->refs > 0);
    if (--chunk->refs == 0 && chunk->pins == 0)
        orphan(arg, hash);
}

void blob_index_blob_remove(struct blob_index *index, struct held_blob *blob,
                            void (*orphan)(void *arg, struct shoal_hash hash), void *arg)
{
    struct held_blob **at = &index->blobs[blob_bucket(blob->hash)];

    SHOAL_ASSERT(blob->holds == NULL);
    while (*at != blob)
        at = &(*at)->next;
    *at = blob->next;
    for (uint32_t i = 0; i < blob->count; i++)
        unref(index, blob->chunks[i], orphan, arg);
    unref(index, blob->hash, orphan, arg);
    free(blob);
}

struct hold *blob_index_hold(const struct held_blob *blob, struct shoal_job_id owner)
{
    struct hold *hold = blob->holds;

    while (hold != NULL && !shoal_job_id_equal(hold->owner, owner))
        hold = hold->next;
    return hold;
}

struct hold *blob_index_hold_make(struct held_blob *blob, struct shoal_job_id owner)
{
    struct hold *hold = blob_index_hold(blob, owner);

    if (hold != NULL)
        return hold;
    hold = calloc(1, sizeof(*hold));
    if (hold == NULL)
        return NULL;
    hold->owner = owner;
    hold->next = blob->holds;
    blob->holds = hold;
    return hold;
}

void blob_index_hold_remove(struct held_blob *blob, struct shoal_job_id owner)
{
    struct hold **at = &blob->holds;
    struct hold *hold;

    while (*at != NULL && !shoal_job_id_equal((*at)->owner, owner))
        at = &(*at)->next;
    hold = *at;
    if (hold == NULL)
        return;
    *at = hold->next;
    free(hold);
}
