/* Frames between an agent and a kernel, the process of a replica, over the Unix stream socket that the kernel makes.
 *
 *     u32 length of the rest, little end first | one MessagePack array
 *
 *     agent -> kernel   ["infer", id, {path, method, ...}, body]   ["more", id, bytes]   ["cancel", id]
 *     kernel -> agent   ["ready", {name, version, ...}]   ["done", id, status, {content_type, ...}, body]
 *                       ["part", id, body]   ["failed", text]
 *
 * A request with a `window` may be answered in parts: after so many bytes, and the part that goes beyond, the kernel waits until
 * `more` says that some were passed on.
 *
 * Pure. A kernel is a user's program: what does not decode is malformed, and nothing of it is believed. */
#ifndef SHOAL_NODE_KERNEL_WIRE_H
#define SHOAL_NODE_KERNEL_WIRE_H

#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/limits.h"

/* A body, and what stands around it. */
#define KERNEL_FRAME_BYTES_MAX (SHOAL_INFER_BODY_BYTES_MAX + 64 * SHOAL_KIB)
_Static_assert(SHOAL_INFER_PIECE_BYTES_MAX + 4 * SHOAL_KIB <= SHOAL_FRAME_BYTES_MAX,
               "a piece of an answer fits a frame between hosts");
#define KERNEL_TEXT_BYTES 400
#define KERNEL_TYPE_BYTES 128
#define KERNEL_NAME_BYTES 64
/* A kernel's word of its model's inputs and outputs: kept as it was said. */
#define KERNEL_TENSORS_BYTES_MAX (16 * SHOAL_KIB)

enum kernel_kind { KERNEL_READY, KERNEL_DONE, KERNEL_PART, KERNEL_FAILED };

/* The head that goes with a request's body; the texts are borrowed. */
struct kernel_ask {
    uint64_t id;
    const char *path, *method, *content_type, *model, *version, *user;
    uint32_t header_len; /* of a body that begins with JSON and goes on with tensors; 0: it is one piece */
    uint32_t deadline_ms; /* from now */
    uint32_t window;      /* bytes of an answer in parts; 0: it is wanted whole */
};

struct kernel_message {
    enum kernel_kind kind;
    uint64_t id;
    uint32_t status;                      /* DONE: as in HTTP */
    uint32_t header_len;                  /* DONE: as in the request */
    uint32_t batch;                       /* READY: requests that it takes at one time; at least 1. DONE: how many were
                                           * computed together; 0: one */
    char content_type[KERNEL_TYPE_BYTES]; /* DONE; "": not said */
    char name[KERNEL_NAME_BYTES];         /* READY */
    char version[KERNEL_NAME_BYTES];
    char platform[KERNEL_NAME_BYTES];
    struct shoal_view inputs, outputs; /* READY: MessagePack values, empty when not said */
    struct shoal_view body;            /* DONE, PART: inside the frame */
    char text[KERNEL_TEXT_BYTES];      /* FAILED: cut */
};

#define KERNEL_HEAD_BYTES_MAX (4 * SHOAL_KIB)
/* Writes what goes before the body of a request: length, array, and the head of the body. TOO_BIG: a text is too long. */
SHOAL_MUST_CHECK enum shoal_err kernel_infer_head(const struct kernel_ask *ask, size_t body_bytes,
                                                  uint8_t head[KERNEL_HEAD_BYTES_MAX], size_t *len);

/* Whole frames: so many bytes of parts were passed on; nobody waits for the answer any more. */
#define KERNEL_WORD_BYTES 32
size_t kernel_more(uint64_t id, uint32_t more, uint8_t bytes[KERNEL_WORD_BYTES]);
size_t kernel_cancel(uint64_t id, uint8_t bytes[KERNEL_WORD_BYTES]);

/* How many bytes the first frame of `bytes` has, with its length; 0: it is not whole yet. TOO_BIG: it never can be. */
SHOAL_MUST_CHECK enum shoal_err kernel_frame(struct shoal_view bytes, size_t *len);
/* Of a whole frame, without its length. MALFORMED. */
SHOAL_MUST_CHECK enum shoal_err kernel_decode(struct shoal_view frame, struct kernel_message *message);

#endif
