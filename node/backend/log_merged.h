/* Merges what a process printed on both streams, in its order (shoal/log_order.h), into one log. */
#ifndef NODE_LOG_MERGED_H
#define NODE_LOG_MERGED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads at `*offset` of both files together, `cap` bytes at most, and moves it on. Returns the bytes read. The paths are
 * relative to the job's folder `root`; a file that is not there is empty. `ended`: nothing more comes, so what is missing
 * of a stream is passed over, and the stream that does not speak tells the rest. `*more`: read on at once. */
size_t log_merged_read(const char *root, const char *out_path, const char *err_path, bool ended, uint64_t *offset,
                       uint8_t *bytes, size_t cap, bool *more);

#endif
