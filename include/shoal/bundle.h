/* The canonical bundle: the submitted files in one form, whatever archive they came in.
 *
 *     "SHOALBN1"  u32 version = 1  u32 entry count
 *     per entry, sorted by path (bytewise): u16 path length, path, u32 mode, u64 size, content
 *
 * Little-endian. Paths are relative, UTF-8 or not, components separated by one '/', none of them "." or ".."; parents
 * come into being with their files; a directory without files is an entry whose mode has SHOAL_BUNDLE_DIR. Mode is 0644
 * or 0755: only execute bits matter.
 *
 * I1. The hash is BLAKE2b-256 over the sorted (path, mode, size, BLAKE2b-256 of content): a repacked archive has it
 *     too.
 * I2. A bundle that does not unpack is never made, and unpacking never leaves its folder. */
#ifndef SHOAL_BUNDLE_H
#define SHOAL_BUNDLE_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/error.h"
#include "shoal/ids.h"

#define SHOAL_BUNDLE_DIR 0x8000u
#define SHOAL_BUNDLE_MAGIC "SHOALBN1"
/* The time of each file that is unpacked, 1980-01-01: whatever has another one was written since. */
#define SHOAL_BUNDLE_MTIME_S 315532800

struct shoal_bundle_limits {
    uint32_t entries_max;    /* 0: 20,000 */
    uint64_t bytes_max;      /* 0: SHOAL_UPLOAD_BYTES_MAX, unpacked, all together */
    uint64_t file_bytes_max; /* 0: the same */
    uint32_t ratio_max;      /* 0: 200, unpacked to packed, after the first 10 MiB */
    uint32_t depth_max;      /* 0: 32 */
};

struct shoal_bundle_info {
    struct shoal_hash hash;
    uint64_t bundle_bytes; /* size of the canonical file */
    uint64_t content_bytes;
    uint32_t entries;
    bool prefixed; /* everything was put below `prefix` */
    /* The only top directory, if everything lies below one ("._*" beside it is ignored); "" otherwise. */
    char top[256];
};

/* One uploaded thing: an archive (told by its content: tar, gzip, zip) or a single file. */
struct shoal_bundle_upload {
    int fd; /* readable from offset 0; borrowed */
    uint64_t bytes;
    const char *name; /* base name of the file, for a single file; "" if unknown */
};

struct shoal_bundle_options {
    const struct shoal_bundle_upload *uploads; /* 0..4 */
    unsigned upload_count;
    const char *single_name; /* name of a single file that came without one (base name of --model-main) */
    const char *prefix;      /* "", or the folder (--model-dir) to put an archive into that has no such folder itself */
    const char *spool_dir;   /* for nameless temporary files */
    bool refuses_links_out;  /* a link out of the archive is an error; else it is left out */
    struct shoal_bundle_limits limits;
};

/* Makes a canonical bundle in a new nameless file. Blocks: run it in a thread. On success *fd is the caller's.
 * INVALID, TOO_BIG, MALFORMED: the upload; the message names the entry and the remedy. STORAGE: the disk. */
SHOAL_MUST_CHECK enum shoal_err shoal_bundle_make(const struct shoal_bundle_options *options, int *fd,
                                                  struct shoal_bundle_info *info, struct shoal_msg *msg);

/* Whether `path` (relative) is a file of the bundle in `fd`. Reads heads only. */
SHOAL_MUST_CHECK enum shoal_err shoal_bundle_find(int fd, const char *path, bool *found, struct shoal_msg *msg);

/* The place of an entry's content in the file of its bundle. */
struct shoal_bundle_place {
    uint64_t offset;
    uint64_t bytes;
};

/* Calls `each` for every entry, sorted by path, until it fails; its error is handed back. Reads heads only. */
typedef enum shoal_err shoal_bundle_each_fn(void *arg, const char *path, bool is_dir, struct shoal_bundle_place place);
SHOAL_MUST_CHECK enum shoal_err shoal_bundle_each(int fd, shoal_bundle_each_fn *each, void *arg, struct shoal_msg *msg);

/* Whether the first bytes of an upload are those of an archive: tar (512 bytes are needed to know), gzip or zip. */
bool shoal_bundle_is_archive(const uint8_t *head, size_t len);

/* Checks form and hash of the bundle in `fd`. Blocks. */
SHOAL_MUST_CHECK enum shoal_err shoal_bundle_check(int fd, struct shoal_bundle_info *info, struct shoal_msg *msg);

/* Unpacks into the existing folder `dir`, which must hold nothing of the same names. Files are made with O_EXCL below
 * it and nowhere else. On an error some files may be there: remove the folder. Blocks. */
SHOAL_MUST_CHECK enum shoal_err shoal_bundle_unpack(int fd, const char *dir, struct shoal_bundle_info *info,
                                                    struct shoal_msg *msg);

#endif
