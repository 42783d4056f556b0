/* HTTP/1 requests: the packaged parser and, on top of it, the checks that it leaves out. All that knows which parser is
 * packaged is http1_parser.c.
 *
 * A head is parsed when it is complete, so that how the bytes were cut has no say. The rules of framing are strict:
 * what two servers could read in two ways (request smuggling) is refused with 400 and the connection is closed. */
#ifndef API_HTTP1_PARSER_H
#define API_HTTP1_PARSER_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/limits.h"

enum http1_method {
    HTTP1_GET,
    HTTP1_POST,
    HTTP1_PUT,
    HTTP1_DELETE,
    HTTP1_HEAD, /* its answer has no body */
    HTTP1_OPTIONS,
    HTTP1_OTHER,
};

struct http1_header {
    struct shoal_view name;
    struct shoal_view value; /* without the white space around it */
};

/* Views point into the bytes that were parsed. */
struct http1_head {
    enum http1_method method;
    struct shoal_view path;  /* raw, starts with '/' */
    struct shoal_view query; /* raw, without '?'; empty if none */
    struct http1_header headers[SHOAL_HTTP_HEADERS_MAX];
    size_t header_count;
    bool http10;
    bool keep_alive;
    bool chunked;
    bool expect_continue;
    uint64_t content_length; /* 0 if chunked or not given */
};

/* Length of the head in `bytes` with its empty line; 0: not complete yet. `from`: how far earlier calls looked. */
size_t http1_head_find(const uint8_t *bytes, size_t len, size_t from);

/* `len` is what http1_head_find said. On an error *status is the answer's HTTP status. */
SHOAL_MUST_CHECK enum shoal_err http1_head_parse(const uint8_t *bytes, size_t len, struct http1_head *head, int *status,
                                                 struct shoal_msg *msg);

/* Checks a head whatever protocol brought it, once its headers are there: Host, Expect, and the target, which
 * becomes path and query. */
SHOAL_MUST_CHECK enum shoal_err http1_head_finish(struct http1_head *head, struct shoal_view target, int *status,
                                                  struct shoal_msg *msg);

/* The value of a header (name in lower case); false if absent. The first one counts. */
bool http1_header_find(const struct http1_head *head, const char *name, struct shoal_view *value);

/* The body's framing. */
struct http1_body {
    unsigned state;
    bool done;
    uint64_t left;       /* of the body, or of the chunk */
    unsigned line_bytes; /* of the chunk line or trailer now read */
    unsigned digits;
    unsigned trailer_bytes;
};

void http1_body_init(struct http1_body *body, const struct http1_head *head);

/* Takes some of `bytes`: *used of them are framing or content, *content is the piece of content among them (may be
 * empty). Call again with the rest until done, or more bytes are needed. MALFORMED: close the connection. */
SHOAL_MUST_CHECK enum shoal_err http1_body_step(struct http1_body *body, const uint8_t *bytes, size_t len, size_t *used,
                                                struct shoal_view *content, struct shoal_msg *msg);

#endif
