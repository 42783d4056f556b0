/* The fields of host-pair support, and what its files share. Picture and rules: support.c. */
#ifndef SCHED_RAFT_SUPPORT_STATE_H
#define SCHED_RAFT_SUPPORT_STATE_H

#include "shoal/support.h"

#define SUPPORT_PAGE_CLAIMS 60
#define SUPPORT_PAGES_MAX ((SHOAL_SUPPORT_CLAIMS_MAX + SUPPORT_PAGE_CLAIMS - 1) / SUPPORT_PAGE_CLAIMS)
/* Heartbeats whose time of sending is remembered: more than are sent in one support duration. */
#define SUPPORT_SENT_MAX 64
/* Claims of all peers together. A group has one leader and this host is in SHOAL_GROUPS_MAX groups at most; twice that,
 * since an old leader may still claim what a new one does. */
#define SUPPORT_THEIRS_MAX (2 * SHOAL_GROUPS_MAX)
#define SUPPORT_BUCKETS 4096
#define SUPPORT_NONE UINT32_MAX

struct own_claim {
    struct shoal_job_id group;
    uint64_t term;
};

/* A claim of a peer: `term` as it says, `told` as the owner was told; 0: none. */
struct their_claim {
    struct shoal_job_id group;
    uint64_t term;
    uint64_t told;
    uint64_t version; /* the claims_hash of the set it came in */
    struct peer *peer;
    uint32_t next_in_bucket;
    uint32_t next_in_peer;
};

struct peer {
    struct shoal_support_peer known; /* what the owner sees; first, so that a look is a cast-free pointer */
    uint64_t seq;                    /* of the last heartbeat sent */
    uint64_t sent_at_ns[SUPPORT_SENT_MAX];
    uint64_t seq_seen;
    uint64_t seq_echoed; /* newest own sequence it supported */
    uint64_t support_seq;
    uint64_t next_send_ns;
    uint64_t last_send_ns;
    /* Own claims towards it. */
    struct own_claim *own;
    uint32_t own_count;
    uint32_t own_cap;
    uint64_t own_hash;
    uint64_t have_hash; /* of its copy of them, as it says */
    bool have_known;
    uint32_t page_next; /* pages still to send: page_next..page_end - 1 */
    uint32_t page_end;
    uint64_t pages_after_ns; /* the set is not sent again before this time */
    /* Its claims. */
    uint32_t theirs;
    uint64_t theirs_hash;
    bool theirs_dirty;    /* the owner has not heard all of it */
    bool unanswered;      /* H3: over its control link, as the owner says */
    uint32_t later_beats; /* H10: that were for a later life of this host, in a row */
    uint64_t later_ns;    /* the last of them */
    uint64_t pages_version;
    uint32_t pages_count;
    uint64_t pages_got[(SUPPORT_PAGES_MAX + 63) / 64];
};

struct shoal_support {
    struct shoal_node_id self;
    struct shoal_incarnation incarnation;
    uint64_t interval_ns;
    uint64_t support_ns;
    uint64_t flush_age_max_ns;
    uint64_t loop_lag_max_ns;
    uint64_t silent_ns;
    uint64_t now_ns;
    uint64_t deadline_ns;
    bool more; /* actions were left for the next step */
    struct shoal_support_health health;
    struct peer **peers; /* sorted by node id */
    uint32_t peers_count;
    uint32_t peers_cap;
    uint64_t seq_top;   /* of all heartbeats sent: a peer that is of interest again begins above what it has seen */
    uint32_t send_turn; /* where the next TIMER begins, so that a full list starves nobody */
    struct their_claim *claims;
    uint32_t claims_free;
    uint32_t buckets[SUPPORT_BUCKETS];
    struct shoal_support_stats stats;
};

/* support_claims.c */
uint64_t support_claim_hash(struct shoal_job_id group, uint64_t term);
uint32_t support_claim_bucket(struct shoal_job_id group);
struct their_claim *support_claim_find(const struct shoal_support *support, const struct peer *peer,
                                       struct shoal_job_id group);
struct their_claim *support_claim_make(struct shoal_support *support, struct peer *peer, struct shoal_job_id group);
void support_claim_free(struct shoal_support *support, uint32_t at);
void support_claim_set(struct peer *peer, struct their_claim *claim, uint64_t term);
void support_claims_sweep(struct shoal_support *support, struct peer *peer, uint64_t version);
void support_claims_void(struct shoal_support *support, struct peer *peer);

#endif
