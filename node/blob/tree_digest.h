/* The hash of a file of a result folder, taken a slice at a time, so that a long one holds up no other (tree_digest.c). */
#ifndef SHOAL_NODE_TREE_DIGEST_H
#define SHOAL_NODE_TREE_DIGEST_H

#include <sys/stat.h>

#include "shoal/hash.h"
#include "shoal/limits.h"

/* Read and hashed in one call: a few milliseconds. */
#define TREE_SLICE_BYTES (4 * SHOAL_MIB)
/* A longer file is hashed by chunks. */
#define TREE_WHOLE_BYTES (1024 * SHOAL_MIB)
#define TREE_CHUNK_BYTES SHOAL_MIB

enum tree_digest_step {
    TREE_DIGEST_MORE, /* call again */
    TREE_DIGEST_DONE,
    TREE_DIGEST_CHANGED, /* it is not the file any more that it was at the first call */
    TREE_DIGEST_FAILED,  /* it cannot be read */
};

/* All zeros: at its begin. */
struct tree_digest {
    bool by_bytes; /* asked for: of the bytes alone, however long the file is */
    bool flush;    /* asked for: what was read is on its way to the disk when a call returns */
    bool begun, done, zeros_known;
    struct stat facts; /* of the file, before anything of it was read */
    uint64_t at;       /* what comes before it is hashed */
    uint64_t data;     /* nothing but a hole lies between `at` and here */
    struct shoal_hash_stream stream;
    struct shoal_hash zeros; /* of a chunk of zeros */
    struct shoal_hash hash;  /* when it is done */
};

enum tree_digest_step tree_digest_step(struct tree_digest *digest, int fd);

#endif
