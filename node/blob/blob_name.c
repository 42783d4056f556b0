/* The name of a blob that is not stored yet: what shoal_blobs_put will call it. */
#include "shoal/blob.h"

#include "node/format.h"

#include "shoal/banned.h"

struct shoal_hash shoal_blob_name(struct shoal_view bytes)
{
    uint8_t manifest[64 + 32];
    struct shoal_writer w = shoal_writer_init(manifest, sizeof(manifest));

    SHOAL_ASSERT(bytes.len <= SHOAL_CHUNK_BYTES_MAX);
    format_put_header(&w, FORMAT_MANIFEST, 1, 1);
    shoal_put_u64(&w, bytes.len);
    shoal_put_u32(&w, bytes.len == 0 ? 0 : 1);
    if (bytes.len > 0)
        shoal_put_hash(&w, shoal_hash_of(bytes));
    SHOAL_ASSERT(!w.failed);
    return shoal_hash_of(shoal_writer_view(&w));
}
