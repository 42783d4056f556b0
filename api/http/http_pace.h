/* How fast a request's body comes, of late: what came at its beginning does not count for ever. Pure: time is given. */
#ifndef API_HTTP_PACE_H
#define API_HTTP_PACE_H

#include <stdbool.h>
#include <stdint.h>

#define HTTP_PACE_SPAN_MS 30000u
#define HTTP_PACE_MIN 512u /* bytes a second, in each span */

struct http_pace {
    uint64_t since_ms; /* when the span under way began */
    uint64_t bytes;    /* that came in it */
    uint64_t last_ms;  /* the same of the span before, how long it was; 0: there was none */
    uint64_t last_bytes;
};

void http_pace_begin(struct http_pace *pace, uint64_t now_ms);
void http_pace_add(struct http_pace *pace, uint64_t bytes);
/* It was not the client that was waited for: the span begins anew. */
void http_pace_pause(struct http_pace *pace, uint64_t now_ms);
/* Whether less came in the span than is to come in one. To be asked once a second: it also begins the next span. */
bool http_pace_is_low(struct http_pace *pace, uint64_t now_ms);
/* Bytes a second, over the span under way and the one before. */
uint64_t http_pace_rate(const struct http_pace *pace, uint64_t now_ms);

#endif
