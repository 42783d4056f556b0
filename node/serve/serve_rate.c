/* See serve_rate.h. */
#include "serve_rate.h"

#include "shoal/limits.h"

#include "shoal/banned.h"

void serve_rate_add(struct serve_rate *rate, uint64_t now_ns, uint64_t bytes)
{
    uint64_t second = now_ns / SHOAL_S;
    unsigned at = (unsigned)(second % SERVE_RATE_S);

    if (rate->counts[at].second != second) {
        rate->counts[at].second = second;
        rate->counts[at].requests = rate->counts[at].bytes = 0;
    }
    rate->counts[at].requests++;
    rate->counts[at].bytes += bytes;
}

void serve_rate_read(const struct serve_rate *rate, uint64_t now_ns, uint64_t *milli_requests_per_s,
                     uint64_t *bytes_per_s)
{
    uint64_t second = now_ns / SHOAL_S, requests = 0, bytes = 0;
    uint64_t span_ms = ((SERVE_RATE_S - 1) * SHOAL_S + now_ns % SHOAL_S) / SHOAL_MS;

    for (unsigned i = 0; i < SERVE_RATE_S; i++)
        if (rate->counts[i].second + SERVE_RATE_S > second && rate->counts[i].second <= second) {
            requests += rate->counts[i].requests;
            bytes += rate->counts[i].bytes;
        }
    *milli_requests_per_s = requests * 1000000 / span_ms;
    *bytes_per_s = bytes * 1000 / span_ms;
}
