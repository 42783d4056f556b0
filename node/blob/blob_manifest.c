/* A manifest lists what a blob consists of: kind version oldest | bytes 8 | count 4 | count hashes of 32. Each chunk
 * but the last is SHOAL_CHUNK_BYTES_MAX long, so that equal content has one manifest. */
#include "shoal/blob.h"

#include "node/format.h"

#include "shoal/banned.h"

#define MANIFEST_VERSION 1

enum shoal_err shoal_manifest_decode(struct shoal_view view, struct shoal_manifest *manifest)
{
    struct shoal_reader r = shoal_reader_init(view);
    struct shoal_manifest decoded;

    (void)format_get_header(&r, FORMAT_MANIFEST, MANIFEST_VERSION);
    decoded.bytes = shoal_get_u64(&r);
    decoded.count = shoal_get_u32(&r);
    if (r.failed || decoded.count > SHOAL_BLOB_CHUNKS_MAX ||
        decoded.bytes > (uint64_t)SHOAL_BLOB_CHUNKS_MAX * SHOAL_CHUNK_BYTES_MAX)
        return SHOAL_ERR_MALFORMED;
    decoded.hashes = shoal_get_space(&r, 32 * (size_t)decoded.count);
    if (!shoal_reader_done(&r) || decoded.count != (decoded.bytes + SHOAL_CHUNK_BYTES_MAX - 1) / SHOAL_CHUNK_BYTES_MAX)
        return SHOAL_ERR_MALFORMED;
    *manifest = decoded;
    return SHOAL_OK;
}

struct shoal_hash shoal_manifest_chunk(const struct shoal_manifest *manifest, uint32_t i)
{
    struct shoal_hash hash;

    SHOAL_ASSERT(i < manifest->count);
    memcpy(hash.bytes, manifest->hashes + 32 * (size_t)i, sizeof(hash.bytes));
    return hash;
}
