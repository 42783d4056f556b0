/* One guardian of one Raft group: a pure core (Ongaro and Ousterhout, USENIX ATC 2014; Ongaro's thesis, 2014).
 *
 *     event + time --> shoal_raft_step() --> actions, to be carried out in array order
 *
 * This differs from the paper: there are no heartbeats. Host pairs support each other (shoal/support.h), and that
 * stands for all groups of the pair: a node neither campaigns nor votes in a group whose leader's host it supports, and
 * a leader without the support of a quorum steps down. A group whose voters all know the commit index sleeps: its
 * deadline is UINT64_MAX and it costs nothing. Fresh groups start in term 1, which belongs to the issuer of the
 * founding ticket.
 *
 * The owner:
 *   - makes entries (shoal_entry_create) and decodes messages outside a step; the core only counts references;
 *   - calls shoal_raft_reserve() after any step that says `wants_reserve` (that is where the core allocates);
 *   - carries out a PERSIST asynchronously, all PERSISTs of a group in order, and answers with STORED and its `mark`;
 *     what depends on the write (votes, acknowledgements, leading) comes out of that later step;
 *   - steps its support core first when that one's deadline has passed, and hands all its edges on (PEER_SUPPORT,
 *     SUPPORTING, CLAIM, UNCLAIMED), so that no step of a leader runs on support that has expired; a group that is made
 *     later is told what stands at that moment (supported and supporting hosts among its members, claims of it);
 *   - while it leads, claims the group in its support core towards every member, and takes the claim back when it steps
 *     down: a follower stays silent only while it supports a host that claims this group in this term;
 *   - puts the group's id in front of the encoded message: the core does not know its name. */
#ifndef SHOAL_RAFT_H
#define SHOAL_RAFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/error.h"
#include "shoal/ids.h"
#include "shoal/memory.h"
#include "shoal/raft_message.h"
#include "shoal/rand.h"

/* ---- Events --------------------------------------------------------------------------------------------------- */

/* Durable together with the entries; `commit` is a hint that saves a restarted node the question. */
struct shoal_raft_hard_state {
    uint64_t term;
    uint64_t commit;
    struct shoal_raft_id vote; /* zero: none in this term */
};

/* Names one PERSIST: echo it in STORED. */
struct shoal_raft_mark {
    uint64_t seq;
    uint64_t index; /* newest entry, and its term */
    uint64_t term;
};

enum shoal_raft_event_kind {
    SHOAL_RAFT_EVENT_MESSAGE,
    SHOAL_RAFT_EVENT_TIMER,  /* the deadline has passed (or not: never harmful) */
    SHOAL_RAFT_EVENT_STORED, /* a PERSIST is durable, and every earlier one of this group */
    SHOAL_RAFT_EVENT_PROPOSE,
    SHOAL_RAFT_EVENT_READ,
    SHOAL_RAFT_EVENT_CHANGE_CONFIG,
    SHOAL_RAFT_EVENT_TRANSFER,
    SHOAL_RAFT_EVENT_SNAPSHOT_READY, /* the owner holds a durable snapshot at `index` (<= the last COMMIT): forget
                                        before */
    SHOAL_RAFT_EVENT_SNAPSHOT_CHUNK, /* the answer to NEED_SNAPSHOT */
    SHOAL_RAFT_EVENT_PEER_SUPPORT,   /* `node` supports this host until `until_ns`; 0: no longer */
    SHOAL_RAFT_EVENT_SUPPORTING,     /* this host supports `node`, or not any more */
    SHOAL_RAFT_EVENT_CLAIM,          /* the host `node` says it leads this group in `term` */
    SHOAL_RAFT_EVENT_UNCLAIMED,      /* `node` no longer says so: the group may campaign at once */
    SHOAL_RAFT_EVENT_STOP_LEADING,   /* step down (the owner's disk hangs, the agent stops) */
};

struct shoal_raft_event {
    enum shoal_raft_event_kind kind;
    union {
        const struct shoal_raft_message *message; /* borrowed; the core takes its own references */
        struct shoal_raft_mark stored;
        struct {
            uint64_t ctx;              /* returned in REJECT */
            struct shoal_entry *entry; /* USER, no index yet; its (term, index) are set when accepted */
        } propose;
        struct {
            uint64_t ctx; /* returned in READ_READY or REJECT */
        } read;
        struct {
            uint64_t ctx;                           /* returned in REJECT */
            const struct shoal_raft_config *target; /* VOTERs and LEARNERs, not joint */
        } change;
        struct {
            uint64_t ctx;
            struct shoal_node_id to;
        } transfer;
        struct {
            uint64_t index;
        } snapshot_ready;
        struct {
            struct shoal_raft_id peer;
            struct shoal_raft_snapshot snapshot; /* the owner's newest; config from shoal_raft_config_at() */
            uint64_t offset;
            uint64_t total;
            struct shoal_view bytes; /* at most SHOAL_RAFT_CHUNK_BYTES_MAX; empty only if total is 0 */
        } chunk;
        struct {
            struct shoal_node_id node;
            uint64_t until_ns; /* UINT64_MAX: until told otherwise (the owner delivers the loss before anything else) */
        } peer_support;
        struct {
            struct shoal_node_id node;
            bool on;
        } supporting;
        struct {
            struct shoal_node_id node;
            uint64_t term;
        } claim; /* CLAIM and UNCLAIMED */
    } u;
};

/* ---- Actions -------------------------------------------------------------------------------------------------- */

enum shoal_raft_role {
    SHOAL_RAFT_FOLLOWER, /* learners too */
    SHOAL_RAFT_PRECANDIDATE,
    SHOAL_RAFT_CANDIDATE,
    SHOAL_RAFT_LEADER,
};

enum shoal_raft_action_kind {
    SHOAL_RAFT_ACTION_SEND,          /* the message is borrowed until the next step: encode or copy it */
    SHOAL_RAFT_ACTION_PERSIST,       /* asynchronous; answer with STORED(mark) */
    SHOAL_RAFT_ACTION_COMMIT,        /* apply up to `index`, entries by shoal_raft_entry() */
    SHOAL_RAFT_ACTION_READ_READY,    /* serve `ctx` once applied up to `index` */
    SHOAL_RAFT_ACTION_ROLE,          /* role, term or known leader changed */
    SHOAL_RAFT_ACTION_CONFIG,        /* the configuration in force changed: see shoal_raft_config() */
    SHOAL_RAFT_ACTION_NEED_SNAPSHOT, /* answer with SNAPSHOT_CHUNK for that peer and offset, now or later */
    SHOAL_RAFT_ACTION_SNAPSHOT_PART, /* keep these bytes (offset 0: forget earlier ones); borrowed from the event */
    SHOAL_RAFT_ACTION_REJECT,        /* a request of the owner (PROPOSE, READ, CHANGE_CONFIG, TRANSFER) is refused */
    SHOAL_RAFT_ACTION_REMOVED,       /* a leader says this node is no member any more */
};

struct shoal_raft_action {
    enum shoal_raft_action_kind kind;
    union {
        struct shoal_raft_message send;
        struct {
            struct shoal_raft_mark mark;
            bool has_hard;
            struct shoal_raft_hard_state hard;
            /* A complete snapshot arrived in SNAPSHOT_PARTs: store it, drop the whole log, restore the state machine
             * from it now. Done before the entries of this action. */
            bool has_snapshot;
            struct shoal_raft_snapshot snapshot;
            uint64_t truncate_from; /* 0: none; else drop the log from here on, before adding */
            uint64_t first;         /* entries first..last, by shoal_raft_entry(); none if last < first */
            uint64_t last;
        } persist;
        struct {
            uint64_t index;
        } commit;
        struct {
            uint64_t ctx;
            uint64_t index;
        } read_ready;
        struct {
            enum shoal_raft_role role;
            uint64_t term;
            struct shoal_raft_id leader; /* zero: unknown */
        } role;
        struct {
            struct shoal_raft_id peer;
            uint64_t index; /* of the snapshot under way; 0: a new one is wanted, the newest the owner has */
            uint64_t offset;
        } need_snapshot;
        struct {
            struct shoal_raft_snapshot snapshot;
            uint64_t offset;
            uint64_t total;
            struct shoal_view bytes;
        } part;
        struct {
            uint64_t ctx;
            enum shoal_err
                err; /* NOT_LEADER, FULL, TOO_BIG, INVALID, STALE (leadership lost: outcome of a read unknown) */
        } reject;
    } u;
};

struct shoal_raft_actions {
    uint32_t count;
    bool wants_reserve;  /* call shoal_raft_reserve() before the next step */
    bool wants_snapshot; /* the log is long: take a snapshot soon, then SNAPSHOT_READY */
    struct shoal_raft_action list[SHOAL_RAFT_ACTIONS_MAX];
};

/* ---- The core ------------------------------------------------------------------------------------------------- */

struct shoal_raft; /* state: its fields live in sched/raft/raft_state.h */

/* A floor is what a replica answered for before it was removed and forgot its log. If it becomes a member again it
 * votes no more in a term that it may have voted in, and for no candidate that lacks what it may have acknowledged.
 * Without it a configuration of the past, in which it was a voter, could come back to life. All zero: it never was a
 * member. */
struct shoal_raft_floor {
    uint64_t term;
    uint64_t last_term;
    uint64_t last_index;
};

struct shoal_raft_options {
    struct shoal_raft_id self;
    struct shoal_raft_config config; /* the founding configuration (before any CONFIG entry or snapshot) */
    struct shoal_rand chance;        /* jitter of campaigns */
    uint64_t support_ns;             /* 0: 600 ms */
    uint64_t jitter_ns;              /* 0: 150 ms */
    uint64_t retransmit_ns;          /* 0: 100 ms; doubles up to 16 times that */
    uint64_t quiet_until_ns;         /* this node's start + support_ns: until then it neither campaigns nor votes */
    uint64_t campaign_from_ns;       /* of one that comes back later: its first campaign. 0: after quiet_until_ns */
};

/* A store gives this back after a restart. Entries are contiguous and end the log; those at or below the snapshot are
 * skipped. The raft takes references. */
struct shoal_raft_restored {
    struct shoal_raft_hard_state hard;
    bool has_snapshot;
    struct shoal_raft_snapshot snapshot;
    struct shoal_entry *const *entries;
    size_t count;
};

/* A fresh, empty group in term 1. INVALID: the configuration is not valid. FULL: no memory. */
SHOAL_MUST_CHECK enum shoal_err shoal_raft_create(struct shoal_raft **raft, const struct shoal_raft_options *options);
/* After a restart. INVALID: entries are not contiguous, or a CONFIG entry does not decode. Before the first event the
 * owner applies up to shoal_raft_commit() (the snapshot, then entries). */
SHOAL_MUST_CHECK enum shoal_err shoal_raft_restore(struct shoal_raft **raft, const struct shoal_raft_options *options,
                                                   const struct shoal_raft_restored *restored);
/* Between create or restore and the first event. */
void shoal_raft_set_floor(struct shoal_raft *raft, struct shoal_raft_floor floor);
/* The floor to remember when this replica is forgotten. */
struct shoal_raft_floor shoal_raft_floor(const struct shoal_raft *raft);
void shoal_raft_destroy(struct shoal_raft *raft);

/* Founding (PROTOCOLS 2): `entries` are 1..count of term 1, all known before the group exists, `issuer` a voter of the
 * configuration. The issuer itself, in the incarnation that its ticket names, passes `leads`: it leads term 1 without
 * an election, since who stores the founding votes for it. Acts as a step (PERSIST comes out; the acknowledgement to
 * the issuer follows STORED). INVALID: not a fresh group, or not such entries. */
SHOAL_MUST_CHECK enum shoal_err shoal_raft_found(struct shoal_raft *raft, struct shoal_entry *const *entries,
                                                 size_t count, struct shoal_node_id issuer, bool leads, uint64_t now_ns,
                                                 struct shoal_raft_actions *actions);

/* Advance one guardian by one event. Does no I/O, reads no clock, allocates nothing. Carry the actions out in array
 * order. Requests are refused by a REJECT action; MALFORMED: a message that makes no sense, dropped and counted. */
SHOAL_MUST_CHECK enum shoal_err shoal_raft_step(struct shoal_raft *raft, const struct shoal_raft_event *event,
                                                uint64_t now_ns, struct shoal_raft_actions *actions);

/* The time at which to send TIMER; UINT64_MAX: only an event can wake the group. May be in the past: step again at once. */
uint64_t shoal_raft_deadline_ns(const struct shoal_raft *raft);

/* Outside a step: grow the ring when it is half full, refill the spare entries. FULL: no memory (the group goes on,
 * with proposals refused when the ring is full). */
SHOAL_MUST_CHECK enum shoal_err shoal_raft_reserve(struct shoal_raft *raft);

/* As PEER_SUPPORT, without a step and only ever later: for a leader's owner that tracks times instead of edges. */
void shoal_raft_extend_support(struct shoal_raft *raft, struct shoal_node_id node, uint64_t until_ns);

/* ---- Looking inside ------------------------------------------------------------------------------------------- */

struct shoal_raft_status {
    enum shoal_raft_role role;
    uint64_t term;
    struct shoal_raft_id leader; /* zero: unknown */
    struct shoal_raft_id vote;
    uint64_t commit;
    uint64_t durable; /* own entries known durable */
    uint64_t first;   /* oldest entry still held; last + 1 if none */
    uint64_t last;
    uint64_t snapshot_index;
    size_t log_bytes;
    uint32_t log_cap;
    bool joint;
    bool config_committed; /* no membership change in flight */
    bool transferring;
    bool asleep;                 /* leader: every voter knows the commit index */
    uint64_t supported_until_ns; /* leader: a quorum supports this host until then; UINT64_MAX for a lone voter */
    uint64_t dropped_malformed;  /* counters since create */
    uint64_t dropped_foreign;    /* not for this store, or of a stranger */
    uint64_t proposals_refused;
    uint64_t elections; /* campaigns that passed the pre-vote */
    uint64_t retransmits;
};

struct shoal_raft_progress {
    struct shoal_raft_member member;
    uint64_t match;
    uint64_t commit_known;
    bool needs_snapshot;
    uint64_t supported_until_ns;
};

void shoal_raft_status(const struct shoal_raft *raft, struct shoal_raft_status *status);
/* The configuration in force (the newest in the log). Borrowed until the next step. */
const struct shoal_raft_config *shoal_raft_config(const struct shoal_raft *raft);
/* The configuration as of a committed index still held (>= the snapshot's): for snapshots. INVALID: not held. */
SHOAL_MUST_CHECK enum shoal_err shoal_raft_config_at(const struct shoal_raft *raft, uint64_t index,
                                                     struct shoal_raft_config *config);
/* Members of the configuration with the leader's view of each; returns the count, 0 when not leading. */
size_t shoal_raft_progress(const struct shoal_raft *raft, struct shoal_raft_progress *list, size_t cap);
/* Borrowed until the next step (shoal_entry_ref to keep). NULL: not held. */
struct shoal_entry *shoal_raft_entry(const struct shoal_raft *raft, uint64_t index);
/* 0 when neither held nor the snapshot's. */
uint64_t shoal_raft_term_at(const struct shoal_raft *raft, uint64_t index);
uint64_t shoal_raft_commit(const struct shoal_raft *raft);
uint64_t shoal_raft_term(const struct shoal_raft *raft);
bool shoal_raft_is_leader(const struct shoal_raft *raft);
/* Asserts every invariant, those that look at each entry too; a step asserts only what costs the same in any log. For
 * tests and the simulator. */
void shoal_raft_check(const struct shoal_raft *raft);
/* The memory of SHOAL_GROUPS_MAX groups: their states, rings and entries. The bytes of a log are bounded by its
 * snapshots: it asks for one in time, and what is not committed is refused beyond its bound. */
void shoal_raft_memory(struct shoal_memory *memory);
/* True: `id` is no member here, and there is a leader that this node supports, or leads with support: what `id` says of the
 * group changes nothing now. Outside a step. */
bool shoal_raft_is_stranger(struct shoal_raft *raft, struct shoal_raft_id id, uint64_t now_ns);
/* A leader whose support by a quorum holds at `now_ns` (what a lease renewal needs). */
bool shoal_raft_leads_supported(const struct shoal_raft *raft, uint64_t now_ns);

#endif
