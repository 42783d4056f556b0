#include "http2_guard.h"

#include <string.h>

#include "shoal/error.h"

#include "shoal/banned.h"

/* RFC 9113, section 6. */
enum frame_type {
    FRAME_DATA = 0,
    FRAME_HEADERS = 1,
    FRAME_RST_STREAM = 3,
    FRAME_SETTINGS = 4,
    FRAME_CONTINUATION = 9,
};
#define FLAG_END_STREAM 0x1
#define FLAG_END_HEADERS 0x4
/* A SETTINGS costs an answer, and may make us build a table anew. */
#define SETTINGS_COST 8u

void http2_guard_init(struct http2_guard *guard, uint64_t now_ms)
{
    *guard = (struct http2_guard){ .filled_ms = now_ms,
                                   .frames_purse = SHOAL_H2_FRAMES_MAX,
                                   .resets_purse = SHOAL_H2_RESETS_MAX };
}

static void add(uint32_t *purse, uint64_t count, uint32_t most)
{
    *purse = count >= most - *purse ? most : *purse + (uint32_t)count;
}

static bool pay(uint32_t *purse, uint32_t count)
{
    if (*purse < count)
        return false;
    *purse -= count;
    return true;
}

static void fill(struct http2_guard *guard, uint64_t now_ms)
{
    uint64_t spans = (now_ms - guard->filled_ms) / 10;

    SHOAL_ASSERT(now_ms >= guard->filled_ms);
    guard->filled_ms += spans * 10;
    add(&guard->frames_purse, spans * (SHOAL_H2_FRAMES_RATE / 100), SHOAL_H2_FRAMES_MAX);
    add(&guard->resets_purse, spans * (SHOAL_H2_RESETS_RATE / 100), SHOAL_H2_RESETS_MAX);
}

void http2_guard_sent(struct http2_guard *guard) { add(&guard->frames_purse, 2, SHOAL_H2_FRAMES_MAX); }

/* F1. */
static const char *in_head(struct http2_guard *guard, uint32_t bytes, bool ends)
{
    guard->in_head = !ends;
    if (bytes > SHOAL_HTTP_HEAD_BYTES_MAX - guard->head_bytes)
        return "a request head of too many bytes";
    guard->head_bytes += bytes;
    return NULL;
}

static const char *on_frame(struct http2_guard *guard)
{
    const uint8_t *h = guard->head;
    uint8_t type = h[3], flags = h[4];
    bool paid = true;

    guard->left = (uint32_t)h[0] << 16 | (uint32_t)h[1] << 8 | h[2];
    if (type == FRAME_HEADERS) {
        guard->head_bytes = 0;
        guard->continuations = 0;
        add(&guard->frames_purse, 2, SHOAL_H2_FRAMES_MAX);
        return in_head(guard, guard->left, (flags & FLAG_END_HEADERS) != 0);
    }
    if (type == FRAME_CONTINUATION && guard->in_head) {
        if (++guard->continuations > SHOAL_H2_CONTINUATIONS_MAX)
            return "a request head in too many pieces";
        return in_head(guard, guard->left, (flags & FLAG_END_HEADERS) != 0);
    }
    if (type == FRAME_RST_STREAM)
        return pay(&guard->resets_purse, 1) ? NULL : "too many requests that were given up";
    if (type == FRAME_DATA && (guard->left > 0 || (flags & FLAG_END_STREAM) != 0))
        add(&guard->frames_purse, 1, SHOAL_H2_FRAMES_MAX);
    else
        paid = pay(&guard->frames_purse, type == FRAME_SETTINGS ? SETTINGS_COST : 1);
    return paid ? NULL : "too many frames that ask for nothing";
}

const char *http2_guard_step(struct http2_guard *guard, const uint8_t *bytes, size_t len, uint64_t now_ms)
{
    size_t at = 0;

    fill(guard, now_ms);
    while (at < len) {
        size_t take = len - at;

        if (guard->preface < HTTP2_PREFACE_BYTES) { /* the library reads what it says */
            take = take > HTTP2_PREFACE_BYTES - guard->preface ? HTTP2_PREFACE_BYTES - guard->preface : take;
            guard->preface += (unsigned)take;
        } else if (guard->left > 0) {
            take = take > guard->left ? guard->left : take;
            guard->left -= (uint32_t)take;
        } else {
            const char *wrong;

            take = take > sizeof(guard->head) - guard->have ? sizeof(guard->head) - guard->have : take;
            memcpy(guard->head + guard->have, bytes + at, take);
            guard->have += (unsigned)take;
            if (guard->have == sizeof(guard->head)) {
                guard->have = 0;
                wrong = on_frame(guard);
                if (wrong != NULL)
                    return wrong;
            }
        }
        at += take;
    }
    return NULL;
}
