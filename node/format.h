/* Everything that this agent writes to a disk or a wire has this head: (kind, version, oldest version that can
 * read it). PROTOCOLS section 1. */
#ifndef NODE_FORMAT_H
#define NODE_FORMAT_H

#include "shoal/wire.h"

enum format_kind {
    FORMAT_IDENTITY = 'I',
    FORMAT_MESH = 'M',
    FORMAT_BOOT = 'B',
    FORMAT_STREAM = 'L',   /* each direction of a link's connection */
    FORMAT_HELLO = 'H',    /* the first sealed message each way */
    FORMAT_DATAGRAM = 'D', /* a sealed datagram */
    FORMAT_WHO = 'W',      /* "whose address is this?", and its answer */
    FORMAT_IAM = 'w',
    FORMAT_STORE = 'S',
    FORMAT_FRAME = 'F', /* of the log */
    FORMAT_HARD = 'h',
    FORMAT_CACHE = 'C',
    FORMAT_MANIFEST = 'b',
    FORMAT_NOTE = 'n', /* of a replicated file */
};

#define FORMAT_HEADER_BYTES 3

static inline void format_put_header(struct shoal_writer *w, enum format_kind kind, uint8_t version, uint8_t oldest)
{
    shoal_put_u8(w, (uint8_t)kind);
    shoal_put_u8(w, version);
    shoal_put_u8(w, oldest);
}

/* The writer's version, or 0 (and the reader has failed): another kind, or `ours` cannot read it. */
static inline uint8_t format_get_header(struct shoal_reader *r, enum format_kind kind, uint8_t ours)
{
    uint8_t its_kind = shoal_get_u8(r);
    uint8_t version = shoal_get_u8(r);
    uint8_t oldest = shoal_get_u8(r);

    if (r->failed || its_kind != (uint8_t)kind || version == 0 || oldest > ours || oldest > version) {
        r->failed = true;
        return 0;
    }
    return version;
}

#endif
