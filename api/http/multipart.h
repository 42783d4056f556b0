/* A streaming reader of multipart/form-data (RFC 7578 and 2046): how the bytes are cut has no say, and at most one
 * part's header block is in memory. */
#ifndef API_MULTIPART_H
#define API_MULTIPART_H

#include <stdbool.h>

#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/limits.h"

#define MULTIPART_BOUNDARY_MAX 200

struct multipart_part {
    char name[256];
    char filename[256]; /* last path component; "" if none was sent */
    bool has_filename;
};

struct multipart_events {
    /* Each may refuse (its error comes out of multipart_feed). Data may come in any number of pieces, none too. */
    enum shoal_err (*begin)(void *arg, const struct multipart_part *part, struct shoal_msg *msg);
    enum shoal_err (*data)(void *arg, struct shoal_view bytes, struct shoal_msg *msg);
    enum shoal_err (*end)(void *arg, struct shoal_msg *msg);
};

struct multipart {
    struct multipart_events events;
    void *arg;
    char delimiter[MULTIPART_BOUNDARY_MAX + 8]; /* CR LF - - boundary */
    size_t delimiter_len;
    unsigned state;
    size_t matched; /* bytes of the delimiter that the input ends with */
    char head[SHOAL_MULTIPART_HEAD_MAX];
    size_t head_len;
    unsigned parts;
    bool in_part;
};

/* `type` is the value of Content-Type. INVALID: no multipart/form-data with a boundary. */
SHOAL_MUST_CHECK enum shoal_err multipart_init(struct multipart *multipart, struct shoal_view type,
                                               const struct multipart_events *events, void *arg, struct shoal_msg *msg);
SHOAL_MUST_CHECK enum shoal_err multipart_feed(struct multipart *multipart, struct shoal_view bytes,
                                               struct shoal_msg *msg);
/* MALFORMED: the body ended before its closing boundary. */
SHOAL_MUST_CHECK enum shoal_err multipart_finish(struct multipart *multipart, struct shoal_msg *msg);

#endif
