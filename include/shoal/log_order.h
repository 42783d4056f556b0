/* In which order a process printed on its two streams: what the runner writes and who reads a log reads.
 *
 *   stdout        aaaa bb  dd           bytes 0..4 came first, then stderr's 0..3, then stdout's 4..8
 *   stderr             ccc
 *   stdout.order  {4, 0, stderr} {4, 3, stdout}
 *
 * O1. The file stands beside stdout under the name of it with ".order", and is appended only. No file: stdout alone has
 *     spoken (what stderr holds, if anything, comes after it).
 * O2. A record says: up to these lengths of both files everything has been shown, and from here on this stream speaks,
 *     until the next record. Before the first one stdout speaks. So of two records that follow each other the length of
 *     the stream that spoke rises, and the other one's stays.
 * O3. What the stream that does not speak has beyond the last record comes after the end of the one that speaks.
 *
 * 16 bytes a record: u64 little-endian length of stdout, its top bit set where stderr speaks; u64 length of stderr. */
#ifndef SHOAL_LOG_ORDER_H
#define SHOAL_LOG_ORDER_H

#include <stdint.h>

#define SHOAL_LOG_ORDER_BYTES 16
#define SHOAL_LOG_ORDER_END ".order"
#define SHOAL_LOG_ORDER_ERR (1ull << 63)

/* `stream`: 0 stdout, 1 stderr. */
static inline void shoal_log_order_put(uint8_t record[SHOAL_LOG_ORDER_BYTES], const uint64_t bytes[2], unsigned stream)
{
    uint64_t words[2] = { bytes[0] | (stream == 1 ? SHOAL_LOG_ORDER_ERR : 0), bytes[1] };

    for (unsigned i = 0; i < SHOAL_LOG_ORDER_BYTES; i++)
        record[i] = (uint8_t)(words[i / 8] >> (8 * (i % 8)));
}

/* Returns the stream that speaks from here on. */
static inline unsigned shoal_log_order_get(const uint8_t record[SHOAL_LOG_ORDER_BYTES], uint64_t bytes[2])
{
    uint64_t words[2] = { 0, 0 };

    for (unsigned i = 0; i < SHOAL_LOG_ORDER_BYTES; i++)
        words[i / 8] |= (uint64_t)record[i] << (8 * (i % 8));
    bytes[0] = words[0] & ~SHOAL_LOG_ORDER_ERR;
    bytes[1] = words[1];
    return (words[0] & SHOAL_LOG_ORDER_ERR) != 0 ? 1 : 0;
}

#endif
