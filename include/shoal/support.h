/* Host-pair support (PROTOCOLS 5): one datagram per ordered pair of hosts each 100 ms stands for the heartbeats of all
 * groups that the pair shares.
 *
 *     a --heartbeat(seq 7)--> b     b supports a until (b's clock at receipt + 600 ms)
 *     a <--heartbeat(support_seq 7)-- b
 *                                   a is supported until (a's clock when 7 was sent + 600 ms): always earlier
 *
 * A heartbeat carries both incarnations, loop lag, age of the oldest unfinished flush, a hash of the set (group, term)
 * that the sender leads towards the receiver ("claims"), a quorum-connected flag, and the sender's slot clock. Claims
 * ride along while the receiver's copy differs; more than SHOAL_SUPPORT_INLINE_CLAIMS_MAX go in pages.
 *
 * Pure: no I/O, no clock; allocates only in create, add and claim. */
#ifndef SHOAL_SUPPORT_H
#define SHOAL_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/ids.h"
#include "shoal/limits.h"
#include "shoal/memory.h"

struct shoal_support; /* state: its fields live in sched/raft/support.c */

struct shoal_support_options {
    struct shoal_node_id self;
    struct shoal_incarnation incarnation; /* host epoch and agent; the refutation is ignored */
    uint64_t interval_ns;                 /* 0: 100 ms */
    uint64_t support_ns;                  /* 0: 600 ms */
    uint64_t flush_age_max_ns;            /* 0: 1 s; a peer whose disk hangs longer gets no support */
    uint64_t loop_lag_max_ns;             /* 0: 1 s */
    uint64_t silent_ns;                   /* 0: 600 ms */
    uint64_t start_ns;                    /* now */
};

/* A heartbeat says this of its host. */
struct shoal_support_health {
    uint64_t loop_lag_ns;
    uint64_t flush_age_ns; /* of the oldest unfinished flush; 0: none */
    uint64_t slot_stamp;   /* this host's slot clock */
    bool quorum_connected; /* this host hears from a majority of its peers of interest */
};

enum shoal_support_event_kind {
    SHOAL_SUPPORT_EVENT_TIMER,
    SHOAL_SUPPORT_EVENT_DATAGRAM, /* opened: authenticated as coming from `from` */
    SHOAL_SUPPORT_EVENT_REFUSED,  /* a connection to `node` was refused: ends this host's support for it at once */
};

struct shoal_support_event {
    enum shoal_support_event_kind kind;
    struct shoal_support_health health; /* TIMER */
    struct shoal_node_id node;          /* DATAGRAM: the sender; REFUSED */
    struct shoal_view bytes;            /* DATAGRAM, borrowed */
};

enum shoal_support_action_kind {
    SHOAL_SUPPORT_SEND,       /* `bytes` as one datagram to `node`; valid until the next step */
    SHOAL_SUPPORT_SUPPORTED,  /* edge: `node` supports this host now (until: see `until_ns`, then shoal_support_find) */
    SHOAL_SUPPORT_LOST,       /* edge: it does not any more */
    SHOAL_SUPPORT_SUPPORTING, /* edge: this host supports `node` */
    SHOAL_SUPPORT_SUPPORTING_LOST,
    SHOAL_SUPPORT_CLAIM,          /* `node` leads `group` in `term`, it says (new, or a new term) */
    SHOAL_SUPPORT_UNCLAIM,        /* it does not say so any more */
    SHOAL_SUPPORT_PEER_SILENT,    /* edge: nothing heard for silent_ns */
    SHOAL_SUPPORT_PEER_HEARD,     /* edge: heard (again) */
    SHOAL_SUPPORT_PEER_RESTARTED, /* a newer incarnation of `node` (follows the losses above) */
    SHOAL_SUPPORT_ROLLED_BACK,    /* `node` knows a higher incarnation of this very host: this folder was rolled back */
};

struct shoal_support_action {
    enum shoal_support_action_kind kind;
    struct shoal_node_id node;
    struct shoal_view bytes;   /* SEND */
    uint64_t until_ns;         /* SUPPORTED */
    struct shoal_job_id group; /* CLAIM, UNCLAIM */
    uint64_t term;             /* CLAIM; UNCLAIM: the term claimed last */
};

struct shoal_support_actions {
    uint32_t count;
    uint32_t used; /* of `pool` */
    struct shoal_support_action list[SHOAL_SUPPORT_ACTIONS_MAX];
    uint8_t pool[24 * SHOAL_DATAGRAM_PAYLOAD_MAX];
};

/* This is known of a peer. */
struct shoal_support_peer {
    struct shoal_node_id node;
    struct shoal_incarnation incarnation; /* zero: never heard */
    uint32_t refs;
    bool supporting; /* this host supports it */
    bool supported;  /* it supports this host */
    bool silent;
    bool quorum_connected; /* as it says of itself */
    uint64_t supporting_until_ns;
    uint64_t supported_until_ns;
    uint64_t heard_ns;            /* last datagram */
    uint64_t slot_stamp;          /* newest: what a lease renewal echoes */
    uint64_t slot_stamp_heard_ns; /* when it came */
    uint64_t loop_lag_ns;
    uint64_t flush_age_ns;
    uint64_t rtt_ns; /* of the newest echo, at most one interval too long; 0: none yet */
};

struct shoal_support_stats {
    uint64_t sent;
    uint64_t received;
    uint64_t dropped_malformed;
    uint64_t dropped_unknown; /* from a node that is no peer of interest */
    uint64_t dropped_stale;   /* an older incarnation or sequence */
    uint64_t withheld;        /* support not given: its disk or loop hangs */
    uint64_t claims_overflow; /* a peer claims more groups than SHOAL_SUPPORT_CLAIMS_MAX */
};

SHOAL_MUST_CHECK enum shoal_err shoal_support_create(struct shoal_support **support,
                                                     const struct shoal_support_options *options);
void shoal_support_destroy(struct shoal_support *support);

/* Peers of interest, counted: each add needs one remove. FULL: SHOAL_SUPPORT_PEERS_MAX, or no memory. The last remove
 * forgets the peer silently (no edges: the owner is the one who lost interest). Not inside a step. */
SHOAL_MUST_CHECK enum shoal_err shoal_support_add(struct shoal_support *support, struct shoal_node_id node);
void shoal_support_remove(struct shoal_support *support, struct shoal_node_id node);

/* This host leads `group` in `term`, towards `node` (a peer); or no longer. The peer hears within an interval, the next
 * heartbeat is brought forward. FULL: no memory or too many. NOT_FOUND: no such peer. */
SHOAL_MUST_CHECK enum shoal_err shoal_support_claim(struct shoal_support *support, struct shoal_node_id node,
                                                    struct shoal_job_id group, uint64_t term);
void shoal_support_unclaim(struct shoal_support *support, struct shoal_node_id node, struct shoal_job_id group);

/* MALFORMED: dropped and counted. */
SHOAL_MUST_CHECK enum shoal_err shoal_support_step(struct shoal_support *support,
                                                   const struct shoal_support_event *event, uint64_t now_ns,
                                                   struct shoal_support_actions *actions);
/* Next TIMER; may be in the past: more actions wait. */
uint64_t shoal_support_deadline_ns(const struct shoal_support *support);

/* NULL: no peer of interest. Borrowed until the next call that is not a look. */
const struct shoal_support_peer *shoal_support_find(const struct shoal_support *support, struct shoal_node_id node);
size_t shoal_support_count(const struct shoal_support *support);
const struct shoal_support_peer *shoal_support_at(const struct shoal_support *support, size_t i);
/* True: that peer leads a group towards this host, it says. */
bool shoal_support_claims_any(const struct shoal_support *support, size_t i);
/* A peer's control link answers nothing (or answers again): it gets no further support until it does. */
void shoal_support_unanswered(struct shoal_support *support, struct shoal_node_id node, bool unanswered);
/* The term in which `node` claims to lead `group` (as this host knows); 0: it does not. */
uint64_t shoal_support_claimed(const struct shoal_support *support, struct shoal_node_id node,
                               struct shoal_job_id group);
/* True if any peer claims the group: sets the node and term. */
bool shoal_support_claimant(const struct shoal_support *support, struct shoal_job_id group, struct shoal_node_id *node,
                            uint64_t *term);
void shoal_support_stats(const struct shoal_support *support, struct shoal_support_stats *stats);
/* Asserts every invariant of all peers and claims: for tests and the simulator. */
void shoal_support_check(const struct shoal_support *support);
void shoal_support_memory(struct shoal_memory *memory);

#endif
