/* The state of one guardian, shared by the raft_*.c files and by nobody else. */
#ifndef SCHED_RAFT_STATE_H
#define SCHED_RAFT_STATE_H

#include "shoal/raft.h"

#define BIT(n) (1u << (n))

/* Spare entries for what the core writes itself: a NOOP or CONFIG each. Two cover any one step. */
#define RAFT_SPARES 2
/* Hosts whose support is remembered: the members and some that are about to be, or were. */
#define RAFT_SUPPORTS_MAX (SHOAL_GROUP_NODES_MAX + 4)
/* Sends stop here in a step, so that all else fits: reads and rejections, and a dozen of single actions. */
#define RAFT_SENDS_UNTIL (SHOAL_RAFT_ACTIONS_MAX - SHOAL_RAFT_READS_MAX - 16)
_Static_assert(RAFT_SENDS_UNTIL >= 3 * SHOAL_GROUP_NODES_MAX, "a round to every member fits");
/* A new commit index waits this long for an append to ride on. */
#define RAFT_COMMIT_PUSH_NS (2 * SHOAL_MS)
#define RAFT_BACKOFF_MAX 16
/* Time to take a snapshot. */
#define RAFT_SNAPSHOT_ENTRIES 1024
#define RAFT_SNAPSHOT_BYTES (4 * SHOAL_MIB)
/* Entries kept behind a snapshot for followers that are nearly there. */
#define RAFT_TRAIL_ENTRIES 256
/* A voter-to-be must be this close behind. */
#define RAFT_CATCHUP_ENTRIES 64
/* The commit hint is written with other state once it is this stale. */
#define RAFT_HINT_ENTRIES 256

/* The high half of a term is its group's lineage (32,768 recoveries), the low half counts elections from 1. No group comes
 * to the end of either by itself: what says so lies, and one election more would begin a lineage that nobody founded. */
#define RAFT_TERM_MAX (UINT64_MAX / 2)
static inline bool raft_term_valid(uint64_t term)
{
    return term <= RAFT_TERM_MAX && (uint32_t)term > 0 && (uint32_t)term < UINT32_MAX;
}

#define RAFT_NEVER UINT64_MAX

/* Entries base.index + 1 .. base.index + count; `base` is what came before, its configuration included. */
struct raft_log {
    struct shoal_entry **ring;
    uint32_t cap; /* a power of two */
    uint32_t head;
    uint32_t count;
    size_t bytes;
    struct shoal_raft_snapshot base;
};

enum raft_flow {
    RAFT_PROBE,    /* one append at a time, until the follower's log is known */
    RAFT_STREAM,   /* pipelined */
    RAFT_TRANSFER, /* of a snapshot */
};

struct raft_peer {
    struct shoal_raft_member member;
    enum raft_flow flow;
    bool waiting; /* probe: one is under way; snapshot: a piece is under way */
    bool answered;
    bool granted;
    uint64_t match;
    uint64_t next;
    uint64_t commit_known;
    uint64_t commit_sent;
    uint64_t read_seq;
    uint64_t seq_floor; /* replies to older appends are void: the peer may have restarted since */
    uint64_t retransmit_at_ns;
    uint64_t backoff;
    uint64_t inflight[SHOAL_RAFT_INFLIGHT_MAX]; /* last index of each append under way, and its size */
    uint32_t inflight_sizes[SHOAL_RAFT_INFLIGHT_MAX];
    uint32_t inflight_bytes;
    uint32_t inflight_head;
    uint32_t inflight_count;
    uint64_t snapshot_index; /* under way; 0: the owner has not answered yet */
    uint64_t snapshot_offset;
};
_Static_assert(sizeof(struct raft_peer) <= 384, "twelve of them, in each of thousands of groups");

struct raft_support {
    struct shoal_node_id node;
    bool used;
    bool supporting;             /* we support it */
    uint64_t supported_until_ns; /* it supports us */
    uint64_t claimed;            /* the term in which it says to lead this group; 0: it does not */
};

struct raft_read {
    uint64_t ctx;
    uint64_t index;
    uint64_t seq; /* of the round that confirms it; 0: waits for a round */
};

struct shoal_raft {
    struct shoal_raft_id self;
    struct shoal_rand chance;
    uint64_t support_ns;
    uint64_t jitter_ns;
    uint64_t retransmit_ns;
    uint64_t quiet_until_ns;
    struct shoal_raft_floor floor;

    enum shoal_raft_role role;
    uint64_t term;
    struct shoal_raft_id vote;
    struct shoal_raft_id leader;
    uint64_t commit;
    uint64_t snapshot_index; /* the owner's newest */
    struct raft_log log;
    struct shoal_raft_config config;               /* newest in the log */
    uint64_t config_index;                         /* its entry; <= base.index when it came from there */
    struct raft_peer peers[SHOAL_GROUP_NODES_MAX]; /* as config.members, same order */
    struct raft_support supports[RAFT_SUPPORTS_MAX];
    struct shoal_entry *spares[RAFT_SPARES];
    uint32_t spares_count;

    /* Storage: what was handed out, and what is known durable. */
    uint64_t persist_seq;
    uint64_t durable_seq;
    uint64_t hard_seq;     /* the PERSIST that carries the current (term, vote) */
    uint64_t truncate_seq; /* the newest PERSIST that dropped entries: older marks say nothing about the log */
    uint64_t handed;       /* entries up to here were handed out */
    uint64_t durable;
    uint64_t hinted_commit;
    uint64_t truncate_from; /* to go with the next PERSIST; 0: none */
    bool hard_dirty;
    bool snapshot_dirty;

    /* Elections. */
    uint64_t campaign_at_ns;
    uint64_t contact_until_ns; /* the leader was heard: as support, until that is told by the owner */
    uint64_t backoff;
    bool campaign_transfer;
    bool votes_asked;
    bool vote_owed;

    /* Following. */
    uint64_t matched; /* equal to the leader's log of this term up to here */
    bool ack_owed;
    uint64_t ack_index; /* acknowledge once durable up to here */
    uint64_t acked;
    uint64_t append_seq_seen;
    struct {
        uint64_t index; /* 0: none */
        uint64_t term;
        uint64_t offset;
        uint64_t total;
    } incoming;
    uint64_t install_owed; /* acknowledge this snapshot once durable */
    uint64_t install_total;

    /* Leading. */
    uint64_t term_start; /* first index of this term */
    uint64_t grace_until_ns;
    uint64_t commit_push_at_ns;
    uint64_t append_seq;
    size_t uncommitted_bytes;
    struct shoal_node_id transfer_to;
    uint64_t transfer_until_ns; /* 0: none */
    bool transfer_sent;
    struct raft_read reads[SHOAL_RAFT_READS_MAX];
    uint32_t reads_count;
    uint64_t read_seq;
    bool read_round;
    uint64_t read_retransmit_at_ns;

    /* The step under way. */
    struct shoal_raft_actions *actions;
    uint64_t now_ns;
    bool more; /* sends were left for the next step */
    bool removed_told;

    struct shoal_raft_status counters; /* only the counters of it */
};
/* A node holds up to SHOAL_GROUPS_MAX of these, so each KiB here costs it 4 MiB. */
_Static_assert(sizeof(struct shoal_raft) <= 10 * SHOAL_KIB, "the groups of one node fit 40 MiB without their logs");

/* raft_log.c */
uint64_t raft_log_last(const struct raft_log *log);
uint64_t raft_log_term(const struct raft_log *log, uint64_t index); /* 0: not held */
struct shoal_entry *raft_log_find(const struct raft_log *log, uint64_t index);
bool raft_log_full(const struct raft_log *log);
void raft_log_take(struct raft_log *log, struct shoal_entry *entry); /* takes the reference; not full */
void raft_log_truncate(struct raft_log *log, uint64_t from);
void raft_log_forget(struct raft_log *log, uint64_t upto, const struct shoal_raft_config *config);
void raft_log_reset(struct raft_log *log, const struct shoal_raft_snapshot *base);
SHOAL_MUST_CHECK enum shoal_err raft_log_grow(struct raft_log *log, uint32_t cap);
void raft_log_deinit(struct raft_log *log);
void raft_log_check(const struct raft_log *log); /* every entry of it (L1, L2, L5) */
/* The newest index <= `index` whose term is <= `term`; base.index when none is held. */
uint64_t raft_log_fit(const struct raft_log *log, uint64_t index, uint64_t term);
size_t raft_log_span_bytes(const struct raft_log *log, uint64_t first, uint64_t last);

/* raft_config.c */
bool raft_is_voter(const struct shoal_raft *raft); /* this node, in the configuration in force */
bool raft_may_campaign(const struct shoal_raft *raft);
/* `config` is in force from `index` on: line the peers up with it. */
void raft_config_set(struct shoal_raft *raft, const struct shoal_raft_config *config, uint64_t index);
void raft_config_roll_back(struct shoal_raft *raft); /* after a truncation */
void raft_config_as_of(const struct shoal_raft *raft, uint64_t index, struct shoal_raft_config *config, uint64_t *at);
struct raft_peer *raft_peer_find(struct shoal_raft *raft, struct shoal_raft_id id);
bool raft_quorum(const struct shoal_raft *raft, bool (*has)(const struct shoal_raft *, uint32_t i));
uint64_t raft_quorum_value(const struct shoal_raft *raft, uint64_t (*value)(const struct shoal_raft *, uint32_t i));
void raft_on_change(struct shoal_raft *raft, uint64_t ctx, const struct shoal_raft_config *target);
void raft_config_advance(struct shoal_raft *raft); /* leader: what follows once a configuration is committed */

/* raft_vote.c */
void raft_vote_cast(struct shoal_raft *raft, struct shoal_raft_id candidate); /* V1 */
void raft_become_follower(struct shoal_raft *raft, uint64_t term, struct shoal_raft_id leader);
void raft_lead(struct shoal_raft *raft);
bool raft_below_floor(const struct shoal_raft *raft); /* V6 */
bool raft_blocked(const struct shoal_raft *raft);
bool raft_lone_voter(const struct shoal_raft *raft);
/* V9: what it says is not heard now. */
bool raft_is_stranger(const struct shoal_raft *raft, struct shoal_raft_id id);
void raft_contact(struct shoal_raft *raft);
void raft_rearm(struct shoal_raft *raft);
void raft_campaign(struct shoal_raft *raft, bool transfer);
void raft_ask_votes(struct shoal_raft *raft);
void raft_answer_vote(struct shoal_raft *raft);
void raft_on_prevote(struct shoal_raft *raft, const struct shoal_raft_message *message);
void raft_on_prevote_reply(struct shoal_raft *raft, const struct shoal_raft_message *message);
void raft_on_vote(struct shoal_raft *raft, const struct shoal_raft_message *message);
void raft_on_vote_reply(struct shoal_raft *raft, const struct shoal_raft_message *message);
void raft_on_timeout_now(struct shoal_raft *raft, const struct shoal_raft_message *message);
void raft_on_transfer(struct shoal_raft *raft, uint64_t ctx, struct shoal_node_id to);
void raft_transfer_advance(struct shoal_raft *raft);

/* raft_support.c */
void raft_on_peer_support(struct shoal_raft *raft, struct shoal_node_id node, uint64_t until);
void raft_on_supporting(struct shoal_raft *raft, struct shoal_node_id node, bool on);
void raft_on_claim(struct shoal_raft *raft, struct shoal_node_id node, uint64_t term);
void raft_on_unclaimed(struct shoal_raft *raft, struct shoal_node_id node, uint64_t term);
bool raft_supporting_leader(const struct shoal_raft *raft);
uint64_t raft_supported_until(const struct shoal_raft *raft, struct shoal_node_id node);
uint64_t raft_quorum_supported_until(const struct shoal_raft *raft);
void raft_check_support(struct shoal_raft *raft);
void raft_support_forget_strangers(struct shoal_raft *raft);

/* raft_replicate.c */
void raft_append_own(struct shoal_raft *raft, struct shoal_entry *entry); /* leader; takes the reference */
SHOAL_MUST_CHECK enum shoal_err raft_on_append(struct shoal_raft *raft, const struct shoal_raft_message *message);
void raft_on_append_reply(struct shoal_raft *raft, const struct shoal_raft_message *message);
void raft_on_propose(struct shoal_raft *raft, uint64_t ctx, struct shoal_entry *entry);
void raft_acknowledge(struct shoal_raft *raft);
void raft_commit_to(struct shoal_raft *raft, uint64_t index);
void raft_commit_advance(struct shoal_raft *raft);
void raft_peer_reset(struct shoal_raft *raft, struct raft_peer *peer);
void raft_peer_probe(struct raft_peer *peer, uint64_t next);
void raft_peer_check(const struct shoal_raft *raft,
                     const struct raft_peer *peer); /* a leader's view of it (R5 to R7) */
void raft_peer_accepted(struct shoal_raft *raft, struct raft_peer *peer, uint64_t match);
void raft_flush(struct shoal_raft *raft); /* leader: send what may be sent */
bool raft_asleep(const struct shoal_raft *raft);

/* raft_snapshot.c */
SHOAL_MUST_CHECK enum shoal_err raft_on_install(struct shoal_raft *raft, const struct shoal_raft_message *message);
void raft_on_install_reply(struct shoal_raft *raft, const struct shoal_raft_message *message);
SHOAL_MUST_CHECK enum shoal_err raft_on_snapshot_ready(struct shoal_raft *raft, uint64_t index);
SHOAL_MUST_CHECK enum shoal_err raft_on_chunk(struct shoal_raft *raft, const struct shoal_raft_event *event);
void raft_need_snapshot(struct shoal_raft *raft, struct raft_peer *peer);
void raft_answer_install(struct shoal_raft *raft);

/* raft_read.c */
void raft_on_read(struct shoal_raft *raft, uint64_t ctx);
void raft_on_read_round(struct shoal_raft *raft, const struct shoal_raft_message *message);
void raft_on_read_reply(struct shoal_raft *raft, const struct shoal_raft_message *message);
void raft_reads_advance(struct shoal_raft *raft);
void raft_reads_fail(struct shoal_raft *raft);

/* raft.c */
struct shoal_raft_action *raft_act(struct shoal_raft *raft, enum shoal_raft_action_kind kind);
struct shoal_raft_message *raft_send(struct shoal_raft *raft, struct shoal_raft_id to,
                                     enum shoal_raft_message_kind kind);
bool raft_may_send(struct shoal_raft *raft); /* false: the rest goes out in the next step */
void raft_reject(struct shoal_raft *raft, uint64_t ctx, enum shoal_err err);
void raft_role_changed(struct shoal_raft *raft);
void raft_check_order(const struct shoal_raft *raft); /* D3 and D4 */
bool raft_hard_durable(const struct shoal_raft *raft);
uint64_t raft_later(const struct shoal_raft *raft, uint64_t ns);                     /* now + ns */
struct shoal_entry *raft_spare(struct shoal_raft *raft, enum shoal_entry_kind kind); /* NULL: none left */

#endif
