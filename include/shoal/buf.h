/* Bytes: a view is borrowed, a buf is owned. */
#ifndef SHOAL_BUF_H
#define SHOAL_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/error.h"

/* Borrowed for the call (or as long as its comment says). */
struct shoal_view {
    const uint8_t *bytes;
    size_t len;
};

/* Owned, growing; `{0}` is an empty one. Free with shoal_buf_deinit. */
struct shoal_buf {
    uint8_t *bytes;
    size_t len;
    size_t cap;
};

static inline struct shoal_view shoal_view_of(const void *bytes, size_t len)
{
    return (struct shoal_view){ .bytes = bytes, .len = len };
}

static inline struct shoal_view shoal_view_text(const char *text)
{
    return (struct shoal_view){ .bytes = (const uint8_t *)text, .len = strlen(text) };
}

static inline bool shoal_view_equal(struct shoal_view a, struct shoal_view b)
{
    /* A view of some bytes has them. NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker) */
    return a.len == b.len && (a.len == 0 || memcmp(a.bytes, b.bytes, a.len) == 0);
}

static inline struct shoal_view shoal_buf_view(const struct shoal_buf *buf)
{
    return (struct shoal_view){ .bytes = buf->bytes, .len = buf->len };
}

static inline void shoal_buf_deinit(struct shoal_buf *buf)
{
    free(buf->bytes);
    *buf = (struct shoal_buf){ 0 };
}

/* Room for `extra` more bytes. FULL: no memory, nothing changed. */
static inline SHOAL_MUST_CHECK enum shoal_err shoal_buf_reserve(struct shoal_buf *buf, size_t extra)
{
    size_t cap = buf->cap < 64 ? 64 : buf->cap;
    uint8_t *grown;

    if (extra > SIZE_MAX / 2 - buf->len)
        return SHOAL_ERR_TOO_BIG;
    if (buf->len + extra <= buf->cap)
        return SHOAL_OK;
    while (cap < buf->len + extra)
        cap *= 2;
    grown = realloc(buf->bytes, cap);
    if (grown == NULL)
        return SHOAL_ERR_FULL;
    buf->bytes = grown;
    buf->cap = cap;
    return SHOAL_OK;
}

static inline SHOAL_MUST_CHECK enum shoal_err shoal_buf_append(struct shoal_buf *buf, const void *bytes, size_t len)
{
    enum shoal_err err = shoal_buf_reserve(buf, len);

    SHOAL_ASSERT(len == 0 || bytes != NULL);
    if (err != SHOAL_OK)
        return err;
    if (len > 0)
        memcpy(buf->bytes + buf->len, bytes, len);
    buf->len += len;
    return SHOAL_OK;
}

#endif
