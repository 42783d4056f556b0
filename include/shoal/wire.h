/* The byte codec of every datagram, frame, record, log entry and worker message: little-endian, fixed widths, lengths
 * before bytes, no padding. A writer fills caller's memory and remembers an overflow; a reader remembers a short or
 * malformed input, returns zeroes from then on, and never reads beyond its end. Check once, at the end:
 *
 *     struct shoal_writer w = shoal_writer_init(bytes, cap);
 *     shoal_put_u32(&w, 7);  shoal_put_bytes(&w, name);
 *     if (w.failed) return SHOAL_ERR_TOO_BIG;
 *
 *     struct shoal_reader r = shoal_reader_init(view);
 *     seven = shoal_get_u32(&r);  name = shoal_get_bytes(&r, NAME_MAX);
 *     if (!shoal_reader_done(&r)) return SHOAL_ERR_MALFORMED;
 */
#ifndef SHOAL_WIRE_H
#define SHOAL_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "shoal/buf.h"

struct shoal_writer {
    uint8_t *bytes;
    size_t cap;
    size_t len;
    bool failed;
};

struct shoal_reader {
    const uint8_t *bytes;
    size_t len;
    size_t at;
    bool failed;
};

static inline struct shoal_writer shoal_writer_init(void *bytes, size_t cap)
{
    return (struct shoal_writer){ .bytes = bytes, .cap = cap };
}

static inline struct shoal_view shoal_writer_view(const struct shoal_writer *w)
{
    return (struct shoal_view){ .bytes = w->bytes, .len = w->failed ? 0 : w->len };
}

static inline uint8_t *shoal_put_space(struct shoal_writer *w, size_t len)
{
    uint8_t *at;

    if (w->failed || len > w->cap - w->len) {
        w->failed = true;
        return NULL;
    }
    at = w->bytes + w->len;
    w->len += len;
    return at;
}

static inline void shoal_put_uint(struct shoal_writer *w, uint64_t value, unsigned width)
{
    uint8_t *at = shoal_put_space(w, width);

    if (at == NULL)
        return;
    for (unsigned i = 0; i < width; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static inline void shoal_put_u8(struct shoal_writer *w, uint8_t value) { shoal_put_uint(w, value, 1); }
static inline void shoal_put_u16(struct shoal_writer *w, uint16_t value) { shoal_put_uint(w, value, 2); }
static inline void shoal_put_u32(struct shoal_writer *w, uint32_t value) { shoal_put_uint(w, value, 4); }
static inline void shoal_put_u64(struct shoal_writer *w, uint64_t value) { shoal_put_uint(w, value, 8); }
static inline void shoal_put_bool(struct shoal_writer *w, bool value) { shoal_put_uint(w, value ? 1 : 0, 1); }

/* Exactly `len` bytes, no length before them. */
static inline void shoal_put_raw(struct shoal_writer *w, const void *bytes, size_t len)
{
    uint8_t *at = shoal_put_space(w, len);

    if (at != NULL && len > 0)
        memcpy(at, bytes, len);
}

/* A u32 length, then the bytes. */
static inline void shoal_put_bytes(struct shoal_writer *w, struct shoal_view view)
{
    if (view.len > UINT32_MAX) {
        w->failed = true;
        return;
    }
    shoal_put_u32(w, (uint32_t)view.len);
    shoal_put_raw(w, view.bytes, view.len);
}

static inline void shoal_put_text(struct shoal_writer *w, const char *text)
{
    shoal_put_bytes(w, shoal_view_text(text));
}

static inline struct shoal_reader shoal_reader_init(struct shoal_view view)
{
    return (struct shoal_reader){ .bytes = view.bytes, .len = view.len };
}

static inline const uint8_t *shoal_get_space(struct shoal_reader *r, size_t len)
{
    const uint8_t *at;

    if (r->failed || len > r->len - r->at) {
        r->failed = true;
        return NULL;
    }
    at = r->bytes + r->at;
    r->at += len;
    return at;
}

static inline uint64_t shoal_get_uint(struct shoal_reader *r, unsigned width)
{
    const uint8_t *at = shoal_get_space(r, width);
    uint64_t value = 0;

    if (at == NULL)
        return 0;
    for (unsigned i = 0; i < width; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static inline uint8_t shoal_get_u8(struct shoal_reader *r) { return (uint8_t)shoal_get_uint(r, 1); }
static inline uint16_t shoal_get_u16(struct shoal_reader *r) { return (uint16_t)shoal_get_uint(r, 2); }
static inline uint32_t shoal_get_u32(struct shoal_reader *r) { return (uint32_t)shoal_get_uint(r, 4); }
static inline uint64_t shoal_get_u64(struct shoal_reader *r) { return shoal_get_uint(r, 8); }

/* 0 or 1; anything else is malformed. */
static inline bool shoal_get_bool(struct shoal_reader *r)
{
    uint8_t value = shoal_get_u8(r);

    if (value > 1)
        r->failed = true;
    return value == 1;
}

/* A number that is at most `max`; anything else is malformed. */
static inline uint64_t shoal_get_u64_to(struct shoal_reader *r, uint64_t max)
{
    uint64_t value = shoal_get_u64(r);

    if (value > max) {
        r->failed = true;
        return 0;
    }
    return value;
}

/* A byte below `end`, for an enum; anything else is malformed. */
static inline uint8_t shoal_get_enum(struct shoal_reader *r, unsigned end)
{
    uint8_t value = shoal_get_u8(r);

    if (value >= end) {
        r->failed = true;
        return 0;
    }
    return value;
}

static inline void shoal_get_raw(struct shoal_reader *r, void *bytes, size_t len)
{
    const uint8_t *at = shoal_get_space(r, len);

    if (at != NULL && len > 0)
        memcpy(bytes, at, len);
    else if (len > 0)
        memset(bytes, 0, len);
}

/* A u32 length of at most `max`, then the bytes; the view points into the input. */
static inline struct shoal_view shoal_get_bytes(struct shoal_reader *r, size_t max)
{
    size_t len = shoal_get_u32(r);
    const uint8_t *at;

    if (len > max) {
        r->failed = true;
        return (struct shoal_view){ 0 };
    }
    at = shoal_get_space(r, len);
    if (at == NULL)
        return (struct shoal_view){ 0 };
    return (struct shoal_view){ .bytes = at, .len = len };
}

/* Text of at most `cap` - 1 bytes without NUL, copied and terminated. */
static inline void shoal_get_text(struct shoal_reader *r, char *text, size_t cap)
{
    struct shoal_view view = shoal_get_bytes(r, cap - 1);

    if (view.len > 0 && memchr(view.bytes, 0, view.len) != NULL)
        r->failed = true;
    if (r->failed || view.len == 0) {
        text[0] = '\0';
        return;
    }
    memcpy(text, view.bytes, view.len);
    text[view.len] = '\0';
}

static inline size_t shoal_reader_left(const struct shoal_reader *r) { return r->failed ? 0 : r->len - r->at; }

/* Nothing was malformed and nothing is left over. */
static inline bool shoal_reader_done(const struct shoal_reader *r) { return !r->failed && r->at == r->len; }

#endif
