/* gRPC on HTTP/2: messages in a body, and how a call ends.
 *
 *     u8 compressed? | u32 length, big end first | message        ...and after the last one, trailers: grpc-status, grpc-message
 *
 * What a route or the server answers in HTTP's words (a refusal of credentials, say) becomes a status: a gRPC client reads no
 * other. Source: github.com/grpc/grpc, doc/PROTOCOL-HTTP2.md. */
#ifndef API_GRPC_H
#define API_GRPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/buf.h"
#include "shoal/error.h"

struct http_request;

enum grpc_code {
    GRPC_OK = 0,
    GRPC_CANCELLED = 1,
    GRPC_INVALID_ARGUMENT = 3,
    GRPC_DEADLINE_EXCEEDED = 4,
    GRPC_NOT_FOUND = 5,
    GRPC_PERMISSION_DENIED = 7,
    GRPC_RESOURCE_EXHAUSTED = 8,
    GRPC_FAILED_PRECONDITION = 9,
    GRPC_UNIMPLEMENTED = 12,
    GRPC_INTERNAL = 13,
    GRPC_UNAVAILABLE = 14,
    GRPC_UNAUTHENTICATED = 16,
};

/* The code of gRPC for a status of HTTP, 400 and above. */
enum grpc_code grpc_code_of(int status);

/* Messages of a body. `{ .most = n }` is the start. */
struct grpc_frames {
    size_t most; /* bytes of one message */
    uint8_t head[5];
    unsigned have;
    size_t left;
    bool within;
    struct shoal_buf message; /* the one under way, or the whole one: the caller takes or clears it */
};

/* Takes some of `bytes`, *used of them. *whole: `message` is one. UNSUPPORTED: it is compressed; TOO_BIG; FULL: no memory. */
SHOAL_MUST_CHECK enum shoal_err grpc_frames_step(struct grpc_frames *frames, const uint8_t *bytes, size_t len,
                                                 size_t *used, bool *whole, struct shoal_msg *msg);
/* Nothing of a message has come that has not come whole. */
bool grpc_frames_is_between(const struct grpc_frames *frames);
/* The head of a message of `len` bytes. */
void grpc_frame_head(size_t len, uint8_t head[5]);

/* The time that grpc-timeout gives, at least 1 ms; 0: there is no such header. False: what it says is no time. */
bool grpc_timeout(const struct http_request *request, uint32_t *timeout_ms);
/* A call: its content type is application/grpc, and it came over HTTP/2. */
bool grpc_asks(const struct http_request *request);

/* A call of one answer ends well. */
void grpc_answer(struct http_request *request, struct shoal_view message);
/* A call ends, before its first message or after some. */
void grpc_end(struct http_request *request, enum grpc_code code, const char *text);
/* Ends a call as an answer of HTTP says: request->reply of calls, unless a route puts its own there. */
void grpc_refuse(struct http_request *request, int status, struct shoal_view body);

#endif
