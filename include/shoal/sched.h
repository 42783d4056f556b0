/* The control plane of one node: a pure core that holds this node's share of every group (PROTOCOLS 1 to 8).
 *
 *     the shell or the simulator            shoal_sched
 *     ----------------------------          --------------------------------------------------------------
 *     links, gossip, store, workers  -->    groups: one raft and one state machine (job or mesh) each
 *     requests of the HTTP API       -->    support: host pairs instead of heartbeats
 *                                    <--    lead: one controller per group led here; slots: this host's slots
 *
 *     event + time --> shoal_sched_step() --> actions, to be carried out in array order; replies come as later events
 *
 * Rules for the shell:
 *   - `now_ns` is the host's CLOCK_BOOTTIME; it never goes back. `wall_ms` (in the options of a step) is only for job
 *     ids, claims' order and display.
 *   - At start: create, MESH_COPY and SLOTS_COPY if kept, RESTORE for each stored group, RESTORED, RUNNER for each
 *     runner found, NODE for each member that gossip knows; then events as they come. Step TIMER when the deadline has
 *     passed.
 *   - Everything in an event is borrowed for the step; everything in an action is borrowed until the next step.
 *   - What a step says in PERSIST is done before what depends on it: nothing is acknowledged until STORED.
 *   - The core allocates only where a group, an entry or a copy is admitted (founding, restore, frames, requests); when
 *     memory or a table is full it refuses with FULL and counts. */
#ifndef SHOAL_SCHED_H
#define SHOAL_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/error.h"
#include "shoal/ids.h"
#include "shoal/rand.h"
#include "shoal/sched_action.h"
#include "shoal/sched_event.h"

struct shoal_sched; /* state: its fields live in sched/node/sched_state.h */
struct shoal_mesh;

/* The core takes its cryptography from here: pure functions of their arguments. */
struct shoal_sched_env {
    void *arg;
    struct shoal_hash (*hash)(void *arg, struct shoal_view bytes); /* BLAKE2b-256 */
    void (*sign)(void *arg, struct shoal_view bytes,
                 uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES]); /* with the node's key */
    bool (*verify)(void *arg, const uint8_t key[SHOAL_SCHED_KEY_BYTES], struct shoal_view bytes,
                   const uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES]);
    struct shoal_node_id (*node_of_key)(void *arg, const uint8_t key[SHOAL_SCHED_KEY_BYTES]);
    /* Tells whose token this is, at that wall time, by the copy of the mesh that the core holds. DENIED: nobody's, with the
     * reason. NULL, in a mesh without users (the simulator's): every request is the leader's own. */
    enum shoal_err (*who)(void *arg, struct shoal_view token, uint64_t wall_ms, struct shoal_sched_caller *caller,
                          struct shoal_msg *msg);
};

#define SHOAL_SCHED_PEERS_MAX 32

struct shoal_sched_options {
    struct shoal_node_id self;
    struct shoal_store_id store;
    struct shoal_incarnation incarnation; /* refutation is ignored */
    uint8_t public_key[SHOAL_SCHED_KEY_BYTES];
    char domain[SHOAL_SCHED_DOMAIN_BYTES];
    struct shoal_sched_env env;
    struct shoal_rand chance; /* the shell seeds it from the system's chance; tickets' nonces and tokens come from it */
    uint64_t start_ns;        /* now */
    uint32_t groups_max;      /* 0: SHOAL_GROUPS_MAX */
    uint32_t gone_max;        /* removed ids in the table; 0, or at most: SHOAL_SCHED_GONE_MAX */
    uint32_t archive_warm_max;    /* final records of the archive that stay in memory; 0: SHOAL_ARCHIVE_WARM_MAX */
    uint32_t archive_early_max;   /* ended jobs led here that wait for archive_ns; 0: SHOAL_ARCHIVE_EARLY_MAX */
    uint32_t loaded_max;          /* pending jobs led here that are ready to be placed; 0: SHOAL_SCHED_SHOWN_MAX */
    uint32_t slots;               /* of this host */
    uint8_t device;               /* enum shoal_sched_device */
    uint32_t cards, shares;       /* of `slots`: cards that services may share (shoal/cards.h); 0: none */
    uint32_t card_mib[SHOAL_CARDS_MAX];
    bool tells_needs;             /* the shell says FLOOR of each service that is led here: no kernel is placed before */
    /* Hosts that this one heard of in an earlier life, and that have not said goodbye: while one of them is not removed,
     * this is no mesh of one host. */
    struct shoal_node_id peers[SHOAL_SCHED_PEERS_MAX];
    uint32_t peer_count;
    bool reattaches;              /* the shell says REATTACHED when it has found the runners: slots.h, S11 */
    uint64_t support_interval_ns; /* 0: defaults of support.h */
    uint64_t support_ns;
    uint64_t lease_ns;   /* 0: 15 s */
    uint64_t freeze_ns;  /* 0: 10 s unrenewed */
    uint64_t grow_ns;    /* 0: 10 s below the target before a group grows */
    uint64_t replace_ns; /* 0: 60 s unreachable before a guardian is replaced */
    uint64_t lost_ns;    /* 0: 10 min unreachable, and dead by gossip, before a group does without it */
    uint64_t archive_ns; /* 0: SHOAL_ARCHIVE_S after its end a job goes into the archive */
};

/* FULL: no memory. */
SHOAL_MUST_CHECK enum shoal_err shoal_sched_create(struct shoal_sched **sched,
                                                   const struct shoal_sched_options *options);
void shoal_sched_destroy(struct shoal_sched *sched); /* accepts NULL */

/* Advance by one event. `actions` is emptied first. The result is about the event alone: MALFORMED frames and datagrams
 * are dropped and counted, everything else answers by actions. */
SHOAL_MUST_CHECK enum shoal_err shoal_sched_step(struct shoal_sched *sched, const struct shoal_sched_event *event,
                                                 uint64_t now_ns, struct shoal_sched_actions *actions);
/* The time at which to send TIMER; may be in the past: step again at once. UINT64_MAX: never. */
uint64_t shoal_sched_deadline_ns(const struct shoal_sched *sched);

#endif
