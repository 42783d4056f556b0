#include "link_breaks.h"

#include "shoal/banned.h"

bool lead_link_breaks_add(struct link_breaks *breaks, const struct shoal_worker_epoch *epoch, const uint64_t *broken,
                     uint64_t now_ns)
{
    struct link_round *round = &breaks->rounds[breaks->made % LINK_ROUNDS];
    uint64_t any = 0;

    SHOAL_ASSERT(epoch->member_count <= SHOAL_RANKS_MAX);
    for (uint32_t r = 0; r < epoch->member_count; r++)
        any |= broken[r];
    if (any == 0)
        return false;
    round->at_ns = now_ns;
    round->count = epoch->member_count;
    for (uint32_t r = 0; r < epoch->member_count; r++) {
        round->workers[r] = epoch->members[r].worker_id;
        round->broken[r] = broken[r] & ~(1ull << r);
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
                      uint64_t *by)
{
    uint32_t now[SHOAL_RANKS_MAX]; /* ranks of then, in `epoch` */
    uint64_t ends = 0;

    SHOAL_ASSERT(round->count <= SHOAL_RANKS_MAX);
    for (uint32_t r = 0; r < round->count; r++)
        now[r] = rank_of(epoch, round->workers[r]);
    for (uint32_t from = 0; from < round->count; from++) {
        for (uint32_t to = 0; to < round->count; to++) {
            if ((round->broken[from] >> to & 1) == 0 || now[from] == LINK_NOBODY || now[to] == LINK_NOBODY)
                continue;
            ends |= 1ull << now[from] | 1ull << now[to];
            by[now[to]] |= 1ull << now[from];
        }
    }
    for (uint32_t r = 0; r < epoch->member_count; r++)
        rounds[r] += (uint32_t)(ends >> r & 1);
}

uint32_t lead_link_breaks_judge(const struct link_breaks *breaks, const struct shoal_worker_epoch *epoch, uint64_t may,
                           uint64_t now_ns, uint64_t *by)
{
    uint32_t rounds[SHOAL_RANKS_MAX] = { 0 };
    uint64_t complaints[SHOAL_RANKS_MAX] = { 0 };
    uint32_t worst = LINK_NOBODY;

    SHOAL_ASSERT(epoch->member_count <= SHOAL_RANKS_MAX);
    for (uint64_t i = 0; i < LINK_ROUNDS && i < breaks->made; i++)
        if (now_ns <= breaks->rounds[i].at_ns + LINK_WINDOW_NS)
            add_round(&breaks->rounds[i], epoch, rounds, complaints);
    for (uint32_t r = 0; r < epoch->member_count; r++)
        if (rounds[r] >= LINK_BREAKS && (may >> r & 1) != 0 &&
            (worst == LINK_NOBODY || __builtin_popcountll(complaints[r]) >= __builtin_popcountll(complaints[worst])))
            worst = r; /* B3: of equals the last */
    if (worst != LINK_NOBODY)
        *by = complaints[worst];
    return worst;
}
