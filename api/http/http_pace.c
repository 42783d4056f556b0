#include "http_pace.h"

#include "shoal/banned.h"

void http_pace_begin(struct http_pace *pace, uint64_t now_ms) { *pace = (struct http_pace){ .since_ms = now_ms }; }

void http_pace_add(struct http_pace *pace, uint64_t bytes) { pace->bytes += bytes; }

void http_pace_pause(struct http_pace *pace, uint64_t now_ms)
{
    pace->since_ms = now_ms;
    pace->bytes = 0;
}

bool http_pace_is_low(struct http_pace *pace, uint64_t now_ms)
{
    uint64_t span = now_ms - pace->since_ms;
    bool low;

    if (span < HTTP_PACE_SPAN_MS)
        return false;
    low = pace->bytes < span * HTTP_PACE_MIN / 1000;
    *pace = (struct http_pace){ .since_ms = now_ms, .last_ms = span, .last_bytes = pace->bytes };
    return low;
}

uint64_t http_pace_rate(const struct http_pace *pace, uint64_t now_ms)
{
    uint64_t span = now_ms - pace->since_ms + pace->last_ms;

    return (pace->bytes + pace->last_bytes) * 1000 / (span < 1000 ? 1000 : span);
}
