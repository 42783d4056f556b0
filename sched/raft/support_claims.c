/* The groups that peers claim to lead: one table for all peers, by group and by peer (H5 and H7 of support.c). */
#include "support_state.h"

#include "shoal/banned.h"

uint64_t support_claim_hash(struct shoal_job_id group, uint64_t term)
{
    uint64_t state = 0;
    uint64_t words[3] = { 0, 0, term };

    for (unsigned i = 0; i < sizeof(group.bytes); i++)
        words[i / 8] |= (uint64_t)group.bytes[i] << (8 * (i % 8));
    /* Three rounds of a mixer (Steele, Lea, Flood, OOPSLA 2014): sums of these are compared, not trusted. */
    for (unsigned i = 0; i < 3; i++) {
        state += words[i] + 0x9e3779b97f4a7c15u;
        state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
        state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
        state ^= state >> 31;
    }
    return state;
}

uint32_t support_claim_bucket(struct shoal_job_id group)
{
    return (uint32_t)(support_claim_hash(group, 0) % SUPPORT_BUCKETS);
}

struct their_claim *support_claim_find(const struct shoal_support *support, const struct peer *peer,
                                       struct shoal_job_id group)
{
    for (uint32_t at = support->buckets[support_claim_bucket(group)]; at != SUPPORT_NONE;
         at = support->claims[at].next_in_bucket) {
        SHOAL_ASSERT(at < SUPPORT_THEIRS_MAX && support->claims[at].peer != NULL); /* H7 */
        if (support->claims[at].peer == peer && shoal_job_id_equal(support->claims[at].group, group))
            return &support->claims[at];
    }
    return NULL;
}

/* Free places are chained by next_in_bucket + 1 of a zeroed table: 0 there means "the one after me". */
struct their_claim *support_claim_make(struct shoal_support *support, struct peer *peer, struct shoal_job_id group)
{
    uint32_t at = support->claims_free;
    uint32_t bucket = support_claim_bucket(group);
    struct their_claim *claim;

    if (at >= SUPPORT_THEIRS_MAX) {
        support->stats.claims_overflow++;
        return NULL;
    }
    claim = &support->claims[at];
    SHOAL_ASSERT(claim->peer == NULL); /* H7: a free place belongs to nobody */
    support->claims_free = claim->next_in_bucket == 0 ? at + 1 : claim->next_in_bucket - 1;
    *claim = (struct their_claim){ .group = group, .peer = peer };
    claim->next_in_bucket = support->buckets[bucket];
    support->buckets[bucket] = at;
    claim->next_in_peer = peer->theirs;
    peer->theirs = at;
    return claim;
}

/* Takes the claim out of its bucket and puts its place on the free list; the peer's chain is the caller's. */
void support_claim_free(struct shoal_support *support, uint32_t at)
{
    struct their_claim *claim = &support->claims[at];
    uint32_t *link = &support->buckets[support_claim_bucket(claim->group)];

    SHOAL_ASSERT(claim->peer != NULL); /* H7: freed once */
    while (*link != at) {
        SHOAL_ASSERT(*link != SUPPORT_NONE); /* H7 */
        link = &support->claims[*link].next_in_bucket;
    }
    *link = claim->next_in_bucket;
    *claim = (struct their_claim){ .next_in_bucket = support->claims_free + 1 };
    support->claims_free = at;
}

void support_claim_set(struct peer *peer, struct their_claim *claim, uint64_t term)
{
    SHOAL_ASSERT(claim->peer == peer); /* H7 */
    if (claim->term != 0)
        peer->theirs_hash -= support_claim_hash(claim->group, claim->term);
    if (term != 0)
        peer->theirs_hash += support_claim_hash(claim->group, term);
    claim->term = term;
    if (claim->term != claim->told)
        peer->theirs_dirty = true;
}

/* Everything not of `version` is claimed no longer. */
void support_claims_sweep(struct shoal_support *support, struct peer *peer, uint64_t version)
{
    for (uint32_t at = peer->theirs; at != SUPPORT_NONE; at = support->claims[at].next_in_peer) {
        SHOAL_ASSERT(at < SUPPORT_THEIRS_MAX); /* H7 */
        if (support->claims[at].version != version)
            support_claim_set(peer, &support->claims[at], 0);
    }
}

void support_claims_void(struct shoal_support *support, struct peer *peer)
{
    for (uint32_t at = peer->theirs; at != SUPPORT_NONE; at = support->claims[at].next_in_peer)
        support_claim_set(peer, &support->claims[at], 0);
    SHOAL_ASSERT(peer->theirs_hash == 0); /* H5: the empty set */
}
