/* BLAKE2b: names of blobs, bundles, specifications and nodes. One-shot and streaming. Source: RFC 7693. */
#ifndef SHOAL_HASH_H
#define SHOAL_HASH_H

#include "shoal/buf.h"
#include "shoal/ids.h"

/* BLAKE2b-256 of the bytes. */
struct shoal_hash shoal_hash_of(struct shoal_view view);

/* The same, of bytes that come in pieces. The words belong to the implementation. */
struct shoal_hash_stream {
    _Alignas(64) uint8_t words[384];
};

void shoal_hash_stream_init(struct shoal_hash_stream *stream);
void shoal_hash_stream_append(struct shoal_hash_stream *stream, struct shoal_view view);
/* Ends the stream; init before the next use. */
struct shoal_hash shoal_hash_stream_finish(struct shoal_hash_stream *stream);

/* CRC-32C (Castagnoli) of bytes at rest; not a defence against anyone. `crc` is 0, or the sum of what came before. */
uint32_t shoal_crc32c(uint32_t crc, struct shoal_view view);

#endif
