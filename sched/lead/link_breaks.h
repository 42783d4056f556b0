/* Data links that break although both hosts are supported (PROTOCOLS 12): who is to be left out. Pure.
 *
 *   epoch closed, a member says that its link to another broke --> a round: who could not reach whom
 *   the third round in 10 s with a broken link of the same member  --> the one that fewer can reach is left out
 *
 * B1. A round is an epoch that broke; a member counts at most once in it, however many of its links broke.
 * B2. Only links between members of the epoch at hand count: with who is left out, its links are forgotten.
 * B3. Of the members with LINK_BREAKS rounds in LINK_WINDOW_NS, the one goes that most others have complained of, each
 *     once. A tie: the one with the higher rank, so that rank 0 stays.
 * B4. At most LINK_ROUNDS rounds are kept, the newest. */
#ifndef SCHED_LINK_BREAKS_H
#define SCHED_LINK_BREAKS_H

#include "shoal/ranks.h"
#include "shoal/worker.h"

#define LINK_BREAKS 3u
#define LINK_WINDOW_NS (10 * SHOAL_S)
#define LINK_ROUNDS 8u
#define LINK_NOBODY UINT32_MAX

struct link_round {
    uint64_t at_ns;
    uint32_t count;
    uint64_t workers[SHOAL_RANKS_MAX];          /* by rank in the epoch that broke */
    struct shoal_ranks broken[SHOAL_RANKS_MAX]; /* by rank: the ranks that it could not reach */
};

struct link_breaks {
    uint64_t made; /* rounds so far */
    struct link_round rounds[LINK_ROUNDS];
};

/* `broken[r]`: whom member r of `epoch` could not reach. False: nobody said anything, no round. */
bool lead_link_breaks_add(struct link_breaks *breaks, const struct shoal_worker_epoch *epoch, const struct shoal_ranks *broken,
                          uint64_t now_ns);
/* The rank in `epoch` that is to be left out, of those in `may`; LINK_NOBODY: none. `by`: who complained of it. */
uint32_t lead_link_breaks_judge(const struct link_breaks *breaks, const struct shoal_worker_epoch *epoch,
                                const struct shoal_ranks *may, uint64_t now_ns, struct shoal_ranks *by);

#endif
