/* Protocol Buffers as bytes: fields one after the other, in and out. Pure. What a message means is its reader's affair; fields
 * that it does not know are passed over, groups are malformed.
 * Source: protobuf.dev/programming-guides/encoding. */
#ifndef API_PROTO_H
#define API_PROTO_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/buf.h"
#include "shoal/error.h"

enum proto_wire { PROTO_VARINT = 0, PROTO_FIXED64 = 1, PROTO_BYTES = 2, PROTO_FIXED32 = 5 };

struct proto_field {
    uint32_t number;
    enum proto_wire wire;
    uint64_t value;          /* VARINT, FIXED64, FIXED32 */
    struct shoal_view bytes; /* BYTES: inside the message */
};

struct proto_reader {
    struct shoal_view left;
    unsigned *budget; /* of varints (tags, lengths, values) that are read by all who share it: at 0 it fails; NULL: as many as there are */
    bool failed;
};

struct proto_reader proto_reader_init(struct shoal_view message);
/* False: the end, or `failed`. */
bool proto_next(struct proto_reader *reader, struct proto_field *field);
/* One varint of a packed field. False: the end, or `failed`. */
bool proto_next_varint(struct proto_reader *reader, uint64_t *value);

/* A failed append (no memory) is remembered in `failed`; check once, at the end. Values of zero are written, too. */
struct proto_writer {
    struct shoal_buf *buf;
    bool failed;
};

struct proto_writer proto_writer_init(struct shoal_buf *buf);
void proto_uint(struct proto_writer *w, uint32_t number, uint64_t value);
void proto_bool(struct proto_writer *w, uint32_t number, bool value);
void proto_bytes(struct proto_writer *w, uint32_t number, struct shoal_view bytes);
void proto_text(struct proto_writer *w, uint32_t number, const char *text);
void proto_double(struct proto_writer *w, uint32_t number, double value);
/* A message in a message: what is written between the two is its content. */
size_t proto_begin(struct proto_writer *w, uint32_t number);
void proto_end(struct proto_writer *w, size_t begun);
/* Raw content, inside a message that was begun: an element of a packed field. */
void proto_put_varint(struct proto_writer *w, uint64_t value);

#endif
