/* Shared by blob_uv.c (requests) and blob_writer.c (blobs that come in pieces). */
#ifndef NODE_BLOB_SHELL_H
#define NODE_BLOB_SHELL_H

#include "shoal/blob.h"

#include "blob_index.h"
#include "node/store/writer_uv.h"

#include <limits.h>

enum request_kind {
    REQUEST_PUT,
    REQUEST_GET,
    REQUEST_GET_BLOB,
    REQUEST_MANIFEST, /* first half of a hold: read what the blob consists of */
    REQUEST_HOLD,     /* second half: write that it is held */
    REQUEST_RELEASE,
    REQUEST_REMOVE,
    REQUEST_NOTHING, /* comes back on a later turn */
};

struct release_item {
    struct shoal_hash blob;
    uint64_t round;
};

struct request {
    struct writer_job job;
    struct shoal_blobs *blobs;
    enum request_kind kind;
    struct shoal_hash hash;
    struct shoal_job_id owner;
    struct shoal_buf bytes; /* to write, or read */
    size_t max;             /* GET_BLOB */
    size_t weight;          /* bytes counted against the queue */
    struct release_item *items;
    size_t items_count;
    bool release_all;
    uint64_t round;
    /* Set by the thread. */
    enum shoal_err err;
    struct shoal_msg msg;
    bool shared;
    struct shoal_hash bad; /* the chunk that was damaged, or is missing */
    bool has_bad;
    /* Ends. */
    void (*ended)(struct request *request); /* on the loop's thread; the request is freed behind it unless kept */
    bool kept;
    void (*after_hold)(struct request *request); /* of a MANIFEST request, in the place of `ended` */
    shoal_blob_put_fn *on_put;
    shoal_blob_get_fn *on_get;
    shoal_blob_done_fn *on_done;
    void *arg;
};

struct shoal_blobs {
    char dir[PATH_MAX];
    uint64_t reserve_bytes;
    struct writer *writer;
    struct blob_index index;
    struct shoal_blobs_stats stats;
    size_t queued_bytes;
    unsigned writers; /* not ended */
    bool stopping, writer_stopping;
    void (*stopped)(void *arg);
    void *stopped_arg;
};

struct request *request_create(struct shoal_blobs *blobs, enum request_kind kind);
void request_submit(struct request *request);
/* FULL or STALE: no new request is taken. */
SHOAL_MUST_CHECK enum shoal_err blobs_admit(struct shoal_blobs *blobs, size_t weight);
/* Make the request's owner hold its blob, then call request->after_hold. The request is of kind MANIFEST. */
void hold_submit(struct request *request);

/* A pin keeps a chunk from being deleted. Dropping the last one of a chunk that nobody holds deletes it, if asked. */
SHOAL_MUST_CHECK enum shoal_err chunk_pin(struct shoal_blobs *blobs, struct shoal_hash hash);
void chunk_unpin(struct shoal_blobs *blobs, struct shoal_hash hash, bool remove);
/* On the loop's thread, once a PUT is back. */
void chunk_written(struct request *request);

#endif
