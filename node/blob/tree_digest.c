/* Which content a file of a result folder has.
 *
 *   up to TREE_WHOLE_BYTES    BLAKE2b-256 of its bytes
 *   longer                    BLAKE2b-256 of the hashes of its chunks of TREE_CHUNK_BYTES, the last one may be shorter
 *
 * H1. The hash says what the bytes are, wherever the holes are: a chunk that lies in a hole has the hash of as many zeros, and
 *     is not read.
 * H2. A call reads no more than a slice, and looks at no more than HOLES_MAX chunks of holes.
 * H3. A file that changes between two calls has no hash. */
#include "tree_digest.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include "shoal/banned.h"

#define BLOCK_BYTES (64 * SHOAL_KIB)
#define HOLES_MAX 65536u
_Static_assert(TREE_SLICE_BYTES % TREE_CHUNK_BYTES == 0 && TREE_CHUNK_BYTES % BLOCK_BYTES == 0, "a slice is whole chunks");

static bool is_as_before(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static bool is_by_chunks(const struct tree_digest *digest)
{
    return !digest->by_bytes && (uint64_t)digest->facts.st_size > TREE_WHOLE_BYTES;
}

/* Up to `bytes` of them from `from` on. The count; less: the file ends there; -1: it cannot be read. */
static int64_t append(struct shoal_hash_stream *stream, int fd, uint64_t from, uint64_t bytes)
{
    uint8_t block[BLOCK_BYTES];
    uint64_t done = 0;

    while (done < bytes) {
        size_t want = bytes - done < sizeof(block) ? (size_t)(bytes - done) : sizeof(block);
        ssize_t got = pread(fd, block, want, (off_t)(from + done));

        if (got < 0)
            return -1;
        if (got == 0)
            break;
        shoal_hash_stream_append(stream, shoal_view_of(block, (size_t)got));
        done += (uint64_t)got;
        (void)sched_yield(); /* the loop has this thread's class, and is not to wait for a time slice */
    }
    return (int64_t)done;
}

static struct shoal_hash hash_of_zeros(void)
{
    static const uint8_t zeros[BLOCK_BYTES];
    struct shoal_hash_stream stream;

    shoal_hash_stream_init(&stream);
    for (unsigned i = 0; i < TREE_CHUNK_BYTES / BLOCK_BYTES; i++)
        shoal_hash_stream_append(&stream, shoal_view_of(zeros, sizeof(zeros)));
    return shoal_hash_stream_finish(&stream);
}

static void append_hash(struct tree_digest *digest, const struct shoal_hash *hash)
{
    shoal_hash_stream_append(&digest->stream, shoal_view_of(hash->bytes, sizeof(hash->bytes)));
}

/* H1. Whole chunks of the hole that begins at `at`; the last chunk of the file is read. */
static void skip_holes(struct tree_digest *digest, int fd)
{
    const uint64_t size = (uint64_t)digest->facts.st_size;
    unsigned count = 0;

    if (digest->data <= digest->at) {
        off_t data = lseek(fd, (off_t)digest->at, SEEK_DATA);

        if (data >= 0)
            digest->data = (uint64_t)data;
        else
            digest->data = errno == ENXIO ? size : digest->at; /* else: a file system that knows of no holes */
    }
    if (digest->data < digest->at + TREE_CHUNK_BYTES)
        return;
    if (!digest->zeros_known)
        digest->zeros = hash_of_zeros();
    digest->zeros_known = true;
    for (; digest->at + TREE_CHUNK_BYTES <= digest->data && count < HOLES_MAX; count++) {
        append_hash(digest, &digest->zeros);
        digest->at += TREE_CHUNK_BYTES;
    }
}

/* False: it cannot be read, or ends before its end. */
static bool read_chunks(struct tree_digest *digest, int fd)
{
    const uint64_t size = (uint64_t)digest->facts.st_size;

    skip_holes(digest, fd);
    for (unsigned i = 0; i < TREE_SLICE_BYTES / TREE_CHUNK_BYTES && digest->at < size; i++) {
        const uint64_t len = size - digest->at < TREE_CHUNK_BYTES ? size - digest->at : TREE_CHUNK_BYTES;
        struct shoal_hash_stream chunk;
        struct shoal_hash hash;

        if (digest->data >= digest->at + TREE_CHUNK_BYTES)
            return true; /* H2 */
        shoal_hash_stream_init(&chunk);
        if (append(&chunk, fd, digest->at, len) != (int64_t)len)
            return false;
        hash = shoal_hash_stream_finish(&chunk);
        append_hash(digest, &hash);
        digest->at += len;
        skip_holes(digest, fd);
    }
    return true;
}

/* A slice of the bytes. A file that grows meanwhile is hashed as it was. */
static bool read_bytes(struct tree_digest *digest, int fd)
{
    const uint64_t left = (uint64_t)digest->facts.st_size - digest->at;
    const uint64_t len = left < TREE_SLICE_BYTES ? left : TREE_SLICE_BYTES;

    if (append(&digest->stream, fd, digest->at, len) != (int64_t)len)
        return false;
    digest->at += len;
    return true;
}

enum tree_digest_step tree_digest_step(struct tree_digest *digest, int fd)
{
    uint64_t before = digest->at;
    struct stat facts;

    if (fstat(fd, &facts) != 0)
        return TREE_DIGEST_FAILED;
    if (digest->begun && !is_as_before(&facts, &digest->facts)) /* H3 */
        return TREE_DIGEST_CHANGED;
    if (digest->done)
        return TREE_DIGEST_DONE;
    if (!digest->begun) {
        digest->begun = true;
        digest->facts = facts;
        shoal_hash_stream_init(&digest->stream);
    }
    if (!(is_by_chunks(digest) ? read_chunks(digest, fd) : read_bytes(digest, fd)))
        return fstat(fd, &facts) != 0 || is_as_before(&facts, &digest->facts) ? TREE_DIGEST_FAILED : TREE_DIGEST_CHANGED;
    if (digest->at < (uint64_t)digest->facts.st_size) {
        if (digest->flush) /* so that the flush at the end is short */
            (void)sync_file_range(fd, (off_t)before, (off_t)(digest->at - before),
                                  SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
        return TREE_DIGEST_MORE;
    }
    digest->done = true;
    digest->hash = shoal_hash_stream_finish(&digest->stream);
    return TREE_DIGEST_DONE;
}
