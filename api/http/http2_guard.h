/* A look at the frames of an HTTP/2 connection before its library sees them: what costs us work and asks for nothing is bounded,
 * whatever the library does about it.
 *
 *     bytes --> preface, heads of frames --> OK | too much: the connection ends with ENHANCE_YOUR_CALM
 *
 * F1. A head (HEADERS and its CONTINUATIONs) has at most SHOAL_HTTP_HEAD_BYTES_MAX bytes in SHOAL_H2_CONTINUATIONS_MAX
 *     pieces.
 * F2. Frames that carry no request (PING, SETTINGS, PRIORITY, WINDOW_UPDATE, empty DATA, unknown ones) are paid from a purse,
 *     which time and what was really said fill again. So are resets, from another one.
 *
 * Pure. Attacks: CVE-2019-9511 to 9518 (floods), CVE-2023-44487 (rapid reset), VU#421644 (CONTINUATION). */
#ifndef API_HTTP2_GUARD_H
#define API_HTTP2_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/limits.h"

#define HTTP2_PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#define HTTP2_PREFACE_BYTES 24u

struct http2_guard {
    uint8_t head[9];
    unsigned have;          /* bytes of it */
    unsigned preface;       /* bytes of it that have passed */
    uint32_t left;          /* of the frame's payload */
    bool in_head;           /* between HEADERS and its END_HEADERS */
    uint32_t head_bytes;    /* of the head under way */
    unsigned continuations; /* of it */
    uint64_t filled_ms;
    uint32_t frames_purse;
    uint32_t resets_purse;
};

void http2_guard_init(struct http2_guard *guard, uint64_t now_ms);
/* NULL: fine. Else what there is too much of; no byte more is to be taken. */
const char *http2_guard_step(struct http2_guard *guard, const uint8_t *bytes, size_t len, uint64_t now_ms);
/* We sent a frame of content: its reader answers with up to two (WINDOW_UPDATE, PING). */
void http2_guard_sent(struct http2_guard *guard);

#endif
