#include "proto.h"

#include <string.h>

#include "shoal/banned.h"

#define VARINT_BYTES_MAX 10

struct proto_reader proto_reader_init(struct shoal_view message) { return (struct proto_reader){ .left = message }; }

static void skip(struct shoal_view *view, size_t len)
{
    SHOAL_ASSERT(len <= view->len);
    view->bytes += len;
    view->len -= len;
}

bool proto_next_varint(struct proto_reader *reader, uint64_t *value)
{
    uint64_t got = 0;

    if (reader->failed || reader->left.len == 0)
        return false;
    if (reader->budget != NULL && *reader->budget == 0) {
        reader->failed = true;
        return false;
    }
    if (reader->budget != NULL)
        (*reader->budget)--;
    for (size_t i = 0; i < reader->left.len && i < VARINT_BYTES_MAX; i++) {
        uint8_t byte = reader->left.bytes[i];

        if (i == VARINT_BYTES_MAX - 1 && byte > 1)
            break;
        got |= (uint64_t)(byte & 0x7f) << (7 * i);
        if ((byte & 0x80) == 0) {
            skip(&reader->left, i + 1);
            *value = got;
            return true;
        }
    }
    reader->failed = true;
    return false;
}

static bool next_fixed(struct proto_reader *reader, size_t len, uint64_t *value)
{
    if (reader->left.len < len) {
        reader->failed = true;
        return false;
    }
    *value = 0;
    for (size_t i = 0; i < len; i++)
        *value |= (uint64_t)reader->left.bytes[i] << (8 * i);
    skip(&reader->left, len);
    return true;
}

static bool next_bytes(struct proto_reader *reader, struct shoal_view *bytes)
{
    uint64_t len;

    if (!proto_next_varint(reader, &len) || len > reader->left.len) {
        reader->failed = true;
        return false;
    }
    *bytes = shoal_view_of(reader->left.bytes, (size_t)len);
    skip(&reader->left, (size_t)len);
    return true;
}

bool proto_next(struct proto_reader *reader, struct proto_field *field)
{
    uint64_t tag, wire;

    *field = (struct proto_field){ .number = 0 };
    if (!proto_next_varint(reader, &tag))
        return false;
    wire = tag & 7;
    if (tag >> 3 == 0 || tag >> 3 > 0x1fffffff) {
        reader->failed = true;
        return false;
    }
    field->number = (uint32_t)(tag >> 3);
    field->wire = (enum proto_wire)wire;
    if (wire == PROTO_BYTES)
        return next_bytes(reader, &field->bytes);
    if (wire == PROTO_FIXED32 || wire == PROTO_FIXED64)
        return next_fixed(reader, wire == PROTO_FIXED32 ? 4 : 8, &field->value);
    if (wire == PROTO_VARINT && proto_next_varint(reader, &field->value))
        return true;
    reader->failed = true;
    return false;
}

/* ---- writing ---- */

struct proto_writer proto_writer_init(struct shoal_buf *buf) { return (struct proto_writer){ .buf = buf }; }

static void put_raw(struct proto_writer *w, const void *bytes, size_t len)
{
    if (!w->failed && shoal_buf_append(w->buf, bytes, len) != SHOAL_OK)
        w->failed = true;
}

static size_t varint(uint64_t value, uint8_t out[VARINT_BYTES_MAX])
{
    size_t len = 0;

    for (; value >= 0x80; value >>= 7)
        out[len++] = (uint8_t)(value | 0x80);
    out[len++] = (uint8_t)value;
    return len;
}

void proto_put_varint(struct proto_writer *w, uint64_t value)
{
    uint8_t out[VARINT_BYTES_MAX];

    put_raw(w, out, varint(value, out));
}

static void put_tag(struct proto_writer *w, uint32_t number, enum proto_wire wire)
{
    proto_put_varint(w, (uint64_t)number << 3 | (unsigned)wire);
}

void proto_uint(struct proto_writer *w, uint32_t number, uint64_t value)
{
    put_tag(w, number, PROTO_VARINT);
    proto_put_varint(w, value);
}

void proto_bool(struct proto_writer *w, uint32_t number, bool value) { proto_uint(w, number, value ? 1 : 0); }

void proto_bytes(struct proto_writer *w, uint32_t number, struct shoal_view bytes)
{
    put_tag(w, number, PROTO_BYTES);
    proto_put_varint(w, bytes.len);
    if (bytes.len > 0)
        put_raw(w, bytes.bytes, bytes.len);
}

void proto_text(struct proto_writer *w, uint32_t number, const char *text)
{
    proto_bytes(w, number, shoal_view_text(text));
}

void proto_double(struct proto_writer *w, uint32_t number, double value)
{
    uint64_t bits;
    uint8_t out[8];

    memcpy(&bits, &value, sizeof(bits));
    for (unsigned i = 0; i < 8; i++)
        out[i] = (uint8_t)(bits >> (8 * i));
    put_tag(w, number, PROTO_FIXED64);
    put_raw(w, out, sizeof(out));
}

size_t proto_begin(struct proto_writer *w, uint32_t number)
{
    put_tag(w, number, PROTO_BYTES);
    return w->buf->len;
}

void proto_end(struct proto_writer *w, size_t begun)
{
    uint8_t out[VARINT_BYTES_MAX];
    size_t content, len;

    if (w->failed)
        return;
    SHOAL_ASSERT(begun <= w->buf->len);
    content = w->buf->len - begun;
    len = varint(content, out);
    if (shoal_buf_append(w->buf, out, len) != SHOAL_OK) {
        w->failed = true;
        return;
    }
    memmove(w->buf->bytes + begun + len, w->buf->bytes + begun, content);
    memcpy(w->buf->bytes + begun, out, len);
}
