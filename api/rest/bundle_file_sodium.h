/* The writer and the reader of canonical bundles share this: one file's row, its part of the hash, whole reads and writes. */
#ifndef API_BUNDLE_FILE_SODIUM_H
#define API_BUNDLE_FILE_SODIUM_H

#include <sodium.h>

#include "shoal/bundle.h"
#include "shoal/limits.h"

#define BUNDLE_PATH_BYTES_MAX 1024u
#define BUNDLE_COMPONENT_BYTES_MAX 255u
#define BUNDLE_BLOCK_BYTES ((size_t)64 * SHOAL_KIB)
#define BUNDLE_HEAD_BYTES 16u /* magic, version, count */

/* A file or a folder of a bundle. */
struct bundle_entry {
    char *path;
    size_t path_len;
    uint32_t mode;
    uint64_t size;
    uint64_t offset; /* in the spool */
    uint8_t hash[32];
};

/* STORAGE, with errno's words; a full disk says the remedy. */
enum shoal_err bundle_disk_error(struct shoal_msg *msg, const char *what);
/* All of it, or STORAGE; a file that ends before is MALFORMED. */
SHOAL_MUST_CHECK enum shoal_err bundle_write_all(int fd, const uint8_t *bytes, size_t len, struct shoal_msg *msg);
SHOAL_MUST_CHECK enum shoal_err bundle_read_all(int fd, uint8_t *bytes, size_t len, uint64_t offset,
                                                struct shoal_msg *msg);
/* MALFORMED: what gzip packed does not come out as its own CRCs and lengths say. Up to `bytes_max` of it. */
SHOAL_MUST_CHECK enum shoal_err bundle_gzip_check(int fd, uint64_t bytes, uint64_t bytes_max, struct shoal_msg *msg);
/* A number of the file, the lowest byte first. */
uint64_t bundle_get_le(const uint8_t *at, unsigned width);
/* The bytes whose hash names a bundle: the magic, then each entry in the order of paths. */
void bundle_hash_start(crypto_generichash_state *state);
void bundle_hash_entry(crypto_generichash_state *state, const struct bundle_entry *entry);

#endif
