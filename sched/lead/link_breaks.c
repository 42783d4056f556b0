#include "link_breaks.h"

#include "shoal/banned.h"

bool lead_link_breaks_add(struct link_breaks *breaks, const struct shoal_worker_epoch *epoch, const struct shoal_ranks *broken,
                          uint64_t now_ns)
{
    struct link_round *round = &breaks->rounds[breaks->made % LINK_ROUNDS];
    struct shoal_ranks any = { 0 };

    SHOAL_ASSERT(epoch->member_count <= SHOAL_RANKS_MAX);
    for (uint32_t r = 0; r < epoch->member_count; r++)
        shoal_ranks_join(&any, &broken[r]);
    if (!shoal_ranks_any(&any))
        return false;
    round->at_ns = now_ns;
    round->count = epoch->member_count;
    for (uint32_t r = 0; r < epoch->member_count; r++) {
        round->workers[r] = epoch->members[r].worker_id;
        round->broken[r] = broken[r];
        shoal_ranks_drop(&round->broken[r], r);
    }
    breaks->made++;
    return true;
}

static uint32_t rank_of(const struct shoal_worker_epoch *epoch, uint64_t worker_id)
{
    SHOAL_ASSERT(epoch->member_count <= SHOAL_RANKS_MAX);
    for (uint32_t r = 0; r < epoch->member_count; r++)
        if (epoch->members[r].worker_id == worker_id)
            return r;
    return LINK_NOBODY;
}

/* Adds a round: `rounds` by rank of `epoch`, and who complained of whom. B1 and B2. */
static void add_round(const struct link_round *round, const struct shoal_worker_epoch *epoch, uint32_t *rounds,
                      struct shoal_ranks *by)
{
    uint32_t now[SHOAL_RANKS_MAX]; /* ranks of then, in `epoch` */
    struct shoal_ranks ends = { 0 };

    SHOAL_ASSERT(round->count <= SHOAL_RANKS_MAX);
    for (uint32_t r = 0; r < round->count; r++)
        now[r] = rank_of(epoch, round->workers[r]);
    for (uint32_t from = 0; from < round->count; from++) {
        for (uint32_t to = 0; to < round->count; to++) {
            if (!shoal_ranks_has(&round->broken[from], to) || now[from] == LINK_NOBODY || now[to] == LINK_NOBODY)
                continue;
            shoal_ranks_add(&ends, now[from]);
            shoal_ranks_add(&ends, now[to]);
            shoal_ranks_add(&by[now[to]], now[from]);
        }
    }
    for (uint32_t r = 0; r < epoch->member_count; r++)
        rounds[r] += shoal_ranks_has(&ends, r);
}

uint32_t lead_link_breaks_judge(const struct link_breaks *breaks, const struct shoal_worker_epoch *epoch,
                                const struct shoal_ranks *may, uint64_t now_ns, struct shoal_ranks *by)
{
    uint32_t rounds[SHOAL_RANKS_MAX] = { 0 };
    struct shoal_ranks complaints[SHOAL_RANKS_MAX] = { 0 };
    uint32_t worst = LINK_NOBODY;

    SHOAL_ASSERT(epoch->member_count <= SHOAL_RANKS_MAX);
    for (uint64_t i = 0; i < LINK_ROUNDS && i < breaks->made; i++)
        if (now_ns <= breaks->rounds[i].at_ns + LINK_WINDOW_NS)
            add_round(&breaks->rounds[i], epoch, rounds, complaints);
    for (uint32_t r = 0; r < epoch->member_count; r++)
        if (rounds[r] >= LINK_BREAKS && shoal_ranks_has(may, r) &&
            (worst == LINK_NOBODY || shoal_ranks_count(&complaints[r]) >= shoal_ranks_count(&complaints[worst])))
            worst = r; /* B3: of equals the last */
    if (worst != LINK_NOBODY)
        *by = complaints[worst];
    return worst;
}
