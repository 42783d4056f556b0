/* How many requests a second, and bytes of them, over the last SERVE_RATE_S seconds: one count a second, in a ring.
 *
 * Nothing is forgotten by a timer: a count is of its second alone, and one of another second is zero. */
#ifndef SHOAL_NODE_SERVE_RATE_H
#define SHOAL_NODE_SERVE_RATE_H

#include <stdint.h>

#define SERVE_RATE_S 10

struct serve_rate {
    struct {
        uint64_t second; /* that the counts are of */
        uint64_t requests, bytes;
    } counts[SERVE_RATE_S];
};

/* `now_ns` never goes back. */
void serve_rate_add(struct serve_rate *rate, uint64_t now_ns, uint64_t bytes);
/* Of this second, as far as it has come, and of those before it. */
void serve_rate_read(const struct serve_rate *rate, uint64_t now_ns, uint64_t *milli_requests_per_s,
                     uint64_t *bytes_per_s);

#endif
