/* How many kernels a service is to have: a function of what was measured, of its profile's bounds, and of what it has found
 * before. Pure: no clock, no I/O.
 *
 *   load:  requests that wait anywhere or are in a kernel      wanted = ceil(load / batch), within the bounds
 *
 * A1. A service without a kernel gets one at once when a request waits. A number outside of the bounds is mended at once, too.
 * A2. Else the number grows only for load that has been there at two looks, an interval apart: a burst that the kernels answer
 *     within an interval starts none. By at most as many as there are.
 * A3. It shrinks when fewer were enough for `release_ns` without a break, and to the most that was wanted in that time.
 * A4. Load of twice as much as the kernels take at one time, for SHOAL_AUTOSCALE_BURST_NS without a break and with all of them
 *     ready, does not wait for the interval: it grows at once, to the double at most, and again after as long.
 * Source: the scaling loop of the inference contract, 7.1. */
#ifndef SHOAL_AUTOSCALE_H
#define SHOAL_AUTOSCALE_H

#include <stdbool.h>
#include <stdint.h>

/* Longer than a host's word of its load is old (A4). */
#define SHOAL_AUTOSCALE_BURST_NS 500000000ull

/* Its memory between two calls; begins as zeroes. */
struct shoal_autoscale {
    uint64_t looked_ns;  /* the last look; 0: none */
    uint64_t burst_ns;   /* since when there is a burst (A4); 0: there is none */
    uint64_t surplus_ns; /* since when fewer were enough; 0: they are not */
    uint32_t load;       /* at that look */
    uint32_t peak;       /* the most that was wanted since `surplus_ns` */
};

struct shoal_autoscale_facts {
    uint64_t now_ns; /* above 0 */
    uint64_t interval_ns, release_ns;
    uint32_t batch; /* requests that a kernel takes at one time, at least 1 */
    uint32_t min, max;
    uint32_t have;  /* that are to run now */
    uint32_t ready; /* of them */
    uint32_t load;
};

/* How many are to run from now on. */
uint32_t shoal_autoscale(struct shoal_autoscale *state, const struct shoal_autoscale_facts *facts);

#endif
