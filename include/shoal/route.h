/* Chooses where a service's request goes: a function of what the asked node knows. Pure: no clock, no I/O; chance is asked
 * for.
 *
 *     offer, host by host --> two of those that fit, by chance --> the cheaper --> what becomes of the request now
 *
 * R1. A host fits that says it has ready replicas, that is reached now and that the request has not been at.
 * R2. The cost of a host: its requests in hand, for each that its kernels take at one time.
 * R3. A request that no host fits is held, not refused, unless a host was full.
 * R4. A request that was at a host goes on to another only when no kernel there can have it: by the host's own word, or because
 *     it waited there by its last word when the host was lost.
 * Source: Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, IEEE TPDS 12 (2001). */
#ifndef SHOAL_ROUTE_H
#define SHOAL_ROUTE_H

#include "shoal/error.h"
#include "shoal/ids.h"

struct shoal_route_host {
    struct shoal_node_id node;
    uint32_t ready; /* kernels */
    uint32_t room;  /* requests that these take at one time */
    uint64_t open;  /* requests that are there or on the way there */
    uint32_t limit_s;
    bool pieces;
    bool reached; /* gossip does not call it dead, and there is a link */
    bool tried;
};

/* Begins as zeroes. */
struct shoal_route {
    unsigned seen;
    struct shoal_route_host two[2];
};

/* Each pair of those that fit is as likely as another. `chance` is called from the third on. */
void shoal_route_offer(struct shoal_route *route, const struct shoal_route_host *host, uint32_t (*chance)(void *arg),
                       void *arg);
/* NULL: no host fits. */
const struct shoal_route_host *shoal_route_best(const struct shoal_route *route);

enum shoal_route_next {
    SHOAL_ROUTE_GIVEN_UP, /* its client is gone */
    SHOAL_ROUTE_LATE,
    SHOAL_ROUTE_FULL,
    SHOAL_ROUTE_HOLD,
    SHOAL_ROUTE_OUT_FULL, /* this node passes on as many as it may */
    SHOAL_ROUTE_SEND,
};
struct shoal_route_facts {
    bool gone, late;
    bool found;    /* a host fits */
    bool was_full; /* a host said so */
    bool here;     /* the host is this node */
    bool out_full;
};
enum shoal_route_next shoal_route_next(const struct shoal_route_facts *facts);

/* R4. `err` is what came of it at its host; UNREACHABLE: the host was lost. */
bool shoal_route_elsewhere(enum shoal_err err, bool waits);

#endif
