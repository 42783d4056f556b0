/* Signed statements by content: equal bytes are held once and counted. Handles are 32 bits; 0 is none. What a handle
 * is worth never reaches the protocol: cores compare contents only, so sharing a pool changes no behaviour. */
#ifndef GOSSIP_POOL_H
#define GOSSIP_POOL_H

#include "shoal/gossip.h"

/* A handle with one more reference, or 0: the pool is full. `len` is 1 to GOSSIP_POOL_STATEMENT_MAX. */
uint32_t gossip_pool_intern(struct shoal_gossip_pool *pool, struct shoal_view view);
/* The handle of these bytes without a reference, or 0: not held. */
uint32_t gossip_pool_find(const struct shoal_gossip_pool *pool, struct shoal_view view);
void gossip_pool_ref(struct shoal_gossip_pool *pool, uint32_t handle);
void gossip_pool_unref(struct shoal_gossip_pool *pool, uint32_t handle); /* 0 is fine */
struct shoal_view gossip_pool_view(const struct shoal_gossip_pool *pool, uint32_t handle);
uint64_t gossip_pool_hash(const struct shoal_gossip_pool *pool, uint32_t handle);
/* A pool of the standard size. */
void gossip_pool_memory(struct shoal_memory *memory);

/* A mixing hash of bytes; not for secrets and not against forgery. */
uint64_t gossip_hash(struct shoal_view view, uint64_t seed);

#define GOSSIP_POOL_STATEMENT_MAX 936

#endif
