/* See shoal/route.h. */
#include "shoal/route.h"

#include "shoal/banned.h"

void shoal_route_offer(struct shoal_route *route, const struct shoal_route_host *host, uint32_t (*chance)(void *arg),
                       void *arg)
{
    uint32_t place;

    if (host->ready == 0 || !host->reached || host->tried) /* R1 */
        return;
    route->seen++;
    if (route->seen <= 2) {
        route->two[route->seen - 1] = *host;
        return;
    }
    place = chance(arg) % route->seen; /* the n-th takes a place with chance 2 in n */
    if (place < 2)
        route->two[place] = *host;
}

static uint64_t cost_of(const struct shoal_route_host *host)
{
    return host->open * 1000 / (host->room == 0 ? 1 : host->room); /* R2 */
}

const struct shoal_route_host *shoal_route_best(const struct shoal_route *route)
{
    if (route->seen == 0)
        return NULL;
    return &route->two[route->seen > 1 && cost_of(&route->two[1]) < cost_of(&route->two[0])];
}

enum shoal_route_next shoal_route_next(const struct shoal_route_facts *facts)
{
    if (facts->gone)
        return SHOAL_ROUTE_GIVEN_UP;
    if (facts->late)
        return SHOAL_ROUTE_LATE;
    if (!facts->found)
        return facts->was_full ? SHOAL_ROUTE_FULL : SHOAL_ROUTE_HOLD; /* R3 */
    return !facts->here && facts->out_full ? SHOAL_ROUTE_OUT_FULL : SHOAL_ROUTE_SEND;
}

bool shoal_route_elsewhere(enum shoal_err err, bool waits)
{
    return err == SHOAL_ERR_STALE || err == SHOAL_ERR_FULL || (err == SHOAL_ERR_UNREACHABLE && waits);
}
