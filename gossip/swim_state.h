/* The state of one core and what its files offer each other. Only gossip/ includes this. */
#ifndef SWIM_STATE_H
#define SWIM_STATE_H

#include "gossip_pool.h"
#include "shoal/gossip.h"
#include "shoal/rand.h"
#include "swim_wire.h"

#define SWIM_NONE UINT32_MAX
#define SWIM_SELF 0u /* our own place in the table of members, always */
/* Members that one turn tells, and that one probe asks for help, at most: options are checked against these. */
#define SWIM_FANOUT_MAX 5
#define SWIM_HELPERS_MAX 5

/* Ten thousand cores of ten thousand members are simulated in one process: what differs between two views of a member
 * is kept here, what is the same (its card) is a handle into the pool. */
struct swim_member {
    uint64_t since_ns;  /* of the last change of state */
    uint32_t card;      /* 0: this place is free */
    uint32_t next;      /* in its chain, or the next free place */
    uint32_t order;     /* place in the probe order; SWIM_NONE: not probed */
    uint32_t rtt_us;    /* slowly sinking maximum */
    uint16_t suspicion; /* place + 1 */
    uint16_t records;   /* that it authored */
    uint8_t state;
    uint8_t flags;
    uint8_t misses; /* silent probes in a row */
    uint8_t health;
};
_Static_assert(sizeof(struct swim_member) <= 32, "ten thousand views of ten thousand members fit one machine");

#define MEMBER_FADED 1u      /* no part of anti-entropy any more */
#define MEMBER_GONE 2u       /* dead because its port refused */
#define MEMBER_DOUBT 4u      /* it refuted a refused port: in this life such evidence counts as silence */
#define MEMBER_STALE_CARD 8u /* it has a newer card than we hold: ask for it */
#define MEMBER_NEWS 16u      /* there may be news about it in the queue */

struct swim_held_record {
    uint64_t since_ns; /* accepted, or for a tombstone: deleted */
    uint32_t blob;     /* 0: this place is free */
    uint32_t next;
    uint32_t author; /* member; SWIM_NONE for shared kinds */
    uint8_t kind;
    bool tombstone;
    bool faded;
    bool queued; /* it is among the news */
};
_Static_assert(sizeof(struct swim_held_record) <= 32, "as above");

/* Chains by 64-bit hash. The top bits choose the chain, so an anti-entropy range of hashes is a range of chains. */
struct swim_chains {
    uint32_t *heads;
    unsigned bits; /* at least 8 */
    uint64_t sums[SWIM_BUCKETS_COUNT];
};

#define SWIM_CONFIRMATIONS_MAX 3

struct swim_suspicion {
    uint64_t start_ns, min_ns, max_ns, deadline_ns;
    uint32_t member; /* SWIM_NONE: free */
    uint32_t blob;   /* the newest accusation, to show to the accused */
    uint32_t accusers[SWIM_CONFIRMATIONS_MAX + 1];
    uint8_t accuser_count;
    uint8_t confirmations; /* that shorten it to the minimum */
    bool opened_dead;      /* by another's word that it is dead, which we did not expect */
};

enum swim_news_kind {
    NEWS_CARD,
    NEWS_ACCUSE,
    NEWS_RECORD,
};

struct swim_news {
    uint32_t subject; /* member or record */
    uint32_t blob;
    uint32_t mark; /* the datagram it was last put into */
    uint16_t sends;
    uint16_t len; /* of the statement: a queue is searched for each datagram without a look at the pool */
    uint8_t kind;
    uint32_t place; /* in the queue's heap */
};

struct swim_turn {
    uint32_t news;
    uint16_t shortest; /* statement from here on downwards */
};

/* Last writer wins per subject. Fewest sends first; full: the one sent most often gives way. */
struct swim_queue {
    struct swim_news *items;
    struct swim_turn *order;    /* heap */
    uint32_t count, max, fresh; /* fresh: never sent */
};

/* More than any queue may hold. */
#define SWIM_QUEUE_BOUND 65536u

struct swim_probe {
    bool open, acked;
    uint32_t member, seq;
    uint64_t sent_ns, ask_ns, end_ns; /* ask_ns 0: helpers were asked */
    uint32_t asked, nacks;
};

#define SWIM_RELAYS_MAX 64

struct swim_relay {
    struct shoal_node_id requester, target;
    struct shoal_address address;
    uint32_t seq, their_seq;
    uint64_t nack_ns; /* 0: sent */
    uint64_t end_ns;  /* 0: free */
};

struct swim_seed {
    struct shoal_address address;
    uint32_t seq;
    bool answered;
};

struct swim_session {
    bool open;
    bool differed; /* ever */
    bool moved;    /* in this round */
    bool waiting;  /* for the first answer of this round */
    uint32_t id, peer;
    uint64_t deadline_ns;
    unsigned silent, rounds, stuck;
    uint64_t ours[SWIM_DOMAINS], theirs[SWIM_DOMAINS];
};

/* More records than one datagram can hold. */
#define SWIM_RETIRED_MAX 16
_Static_assert(SHOAL_DATAGRAM_PAYLOAD_MAX / (63 + SWIM_SIGNATURE_BYTES) < SWIM_RETIRED_MAX,
               "one step replaces no more");

struct shoal_swim {
    struct shoal_swim_options opt;
    struct shoal_gossip_pool *pool;
    struct shoal_rand chance;
    struct shoal_swim_stats stats;
    struct shoal_incarnation incarnation;
    bool started, leaving, leave_told, cloned;

    struct swim_member *members;
    uint32_t members_used, members_free, members_count, dead_count;
    struct swim_chains member_chains;
    uint32_t *order;
    uint32_t order_count, order_at;

    struct swim_held_record *records;
    uint32_t records_used, records_free, records_count, tombstones;
    struct swim_chains record_chains;
    /* Replaced in this step: an action may still show their payload. Released at the next step. */
    uint32_t retired[SWIM_RETIRED_MAX];
    uint32_t retired_count;

    struct swim_suspicion *suspicions;
    uint32_t suspicion_count;

    struct swim_queue queue_members, queue_records;
    uint32_t datagram_mark;
    bool records_first;

    struct swim_probe probe;
    struct swim_relay relays[SWIM_RELAYS_MAX];
    struct swim_seed seeds[SHOAL_SWIM_SEEDS_MAX];
    uint32_t seed_count;
    bool joined;
    struct swim_session session;
    uint32_t seq;

    unsigned counted_health, measured_health;
    uint64_t now_ns, deadline_ns;
    /* The time at which the next is due; gossiped_ns: that of the last. */
    uint64_t probe_ns, gossiped_ns, sync_ns, sync_wait_ns, seed_ns, seed_wait_ns, reconnect_ns;
    uint32_t relay_count, reconnects;
};

static inline void shoal_count(uint64_t *counter) { ++*counter; }

/* ---- swim_table.c: members, their chains and probe order, suspicions ------------------------------------------ */

uint64_t swim_id_hash(struct shoal_node_id id);
struct shoal_view swim_card_of(const struct shoal_swim *swim, uint32_t member);
struct shoal_node_id swim_id_of(const struct shoal_swim *swim, uint32_t member);
uint32_t swim_table_find(const struct shoal_swim *swim, struct shoal_node_id id);
bool swim_member_is_live(const struct shoal_swim *swim, uint32_t member);
/* Take over one reference to `card`. SWIM_NONE: full. */
uint32_t swim_table_add(struct shoal_swim *swim, uint32_t card, enum shoal_member_state state, uint64_t since_ns);
void swim_table_set_card(struct shoal_swim *swim, uint32_t member, uint32_t card); /* takes over one reference */
void swim_table_remove(struct shoal_swim *swim, uint32_t member);
/* The one place where a state moves. */
void swim_table_move(struct shoal_swim *swim, uint32_t member, enum shoal_member_state state, uint64_t since_ns);
void swim_table_fade(struct shoal_swim *swim, uint32_t member);
/* The next to probe, round robin over a shuffled list; SWIM_NONE: nobody. */
uint32_t swim_order_next(struct shoal_swim *swim);
/* Make `member` the next to be probed. */
void swim_order_hasten(struct shoal_swim *swim, uint32_t member);
/* Up to `want` different live members except `not_this`; how many. */
uint32_t swim_order_pick(struct shoal_swim *swim, uint32_t want, uint32_t not_this, uint32_t *members);
/* A member is in anti-entropy's sums exactly while it is neither free nor faded; what it adds. */
uint64_t swim_member_sum(const struct shoal_swim *swim, uint32_t member);
void swim_chains_add(struct swim_chains *chains, uint64_t hash, uint64_t sum);
uint64_t swim_chains_root(const struct swim_chains *chains);

struct swim_suspicion *swim_suspicion_of(struct shoal_swim *swim, uint32_t member);
/* NULL: full. */
struct swim_suspicion *swim_suspicion_open(struct shoal_swim *swim, uint32_t member, uint32_t accuser, uint32_t blob);
/* One more accuser; false: counted before, or one too many. */
bool swim_suspicion_confirm(struct shoal_swim *swim, struct swim_suspicion *suspicion, uint32_t accuser, uint32_t blob);

/* ---- swim_queue.c: one queue of news -------------------------------------------------------------------------- */

/* False: no memory; what there is goes with deinit. */
bool swim_queue_create(struct swim_queue *queue, uint32_t max);
void swim_queue_deinit(struct swim_queue *queue); /* accepts zeroes */
/* News that was never sent, into a queue with room. */
void swim_queue_add(struct swim_queue *queue, const struct swim_news *news);
void swim_queue_remove(struct swim_queue *queue, uint32_t at);
/* It went into the datagram `mark`. */
void swim_queue_sent(struct swim_queue *queue, uint32_t at, uint32_t mark);
/* Fewest sends first, then the longer, then the lower place, among those that fit `budget` and are not in the datagram
 * `mark`; SWIM_NONE: there is none. */
uint32_t swim_queue_pick(const struct swim_queue *queue, size_t budget, uint32_t mark);
/* The one that was sent most often, of a queue that is not empty. */
uint32_t swim_queue_stalest(const struct swim_queue *queue);
void swim_queue_check(const struct swim_queue *queue);

/* ---- swim_news.c: queues of news, and datagrams --------------------------------------------------------------- */

void swim_news_member(struct shoal_swim *swim, enum swim_news_kind kind, uint32_t member, uint32_t blob);
void swim_news_record(struct shoal_swim *swim, uint32_t record);
/* Forget every news about it. */
void swim_news_drop_member(struct shoal_swim *swim, uint32_t member);
void swim_news_drop_record(struct shoal_swim *swim, uint32_t record);
bool swim_news_waits(const struct shoal_swim *swim);
bool swim_news_has_card(const struct shoal_swim *swim, uint32_t member);

struct swim_out {
    struct shoal_swim_actions *actions;
    struct shoal_writer w;
    struct shoal_node_id to;
    struct shoal_address address;
};

/* False: this step has sent enough; counted. `member` is who it goes to, SWIM_NONE: not known. */
bool swim_out_begin(struct shoal_swim *swim, struct shoal_swim_actions *actions, struct swim_out *out,
                    enum swim_message message, uint32_t member, struct shoal_node_id to, struct shoal_address address,
                    uint8_t flags);
/* To a known member, at its card's address. */
bool swim_out_to(struct shoal_swim *swim, struct shoal_swim_actions *actions, struct swim_out *out,
                 enum swim_message message, uint32_t member);
/* False: no room, nothing written. */
bool swim_out_statement(struct swim_out *out, struct shoal_view statement, uint64_t age_s);
/* First what the receiver must hear (our card when it asked; what it is accused of), then the news that waits. */
void swim_out_news(struct shoal_swim *swim, struct swim_out *out, uint32_t member, bool own_card);
void swim_out_end(struct shoal_swim *swim, struct swim_out *out);

/* Sign what `w` holds and append the signature. */
void swim_sign(struct shoal_swim *swim, struct shoal_writer *w);
/* The signature at its end is `key`'s. */
bool swim_verify(struct shoal_swim *swim, const struct shoal_public_key *key, struct shoal_view statement);
/* A signed accusation by us; 0: the pool is full. The caller owns the reference. */
uint32_t swim_accuse_make(struct shoal_swim *swim, uint32_t member, enum swim_verdict verdict);

struct shoal_swim_action *swim_act(struct shoal_swim *swim, struct shoal_swim_actions *actions,
                                   enum shoal_swim_action_kind kind);
void swim_note(struct shoal_swim *swim, struct shoal_swim_actions *actions, enum shoal_swim_why what,
               struct shoal_node_id id, struct shoal_node_id by);

/* ---- swim_members.c: what statements about members do ---------------------------------------------------------- */

/* The way a statement came here. */
struct swim_origin {
    struct shoal_swim_actions *actions;
    bool sync; /* from anti-entropy: "held for dead" is a reason to suspect, not a verdict */
};

uint64_t swim_age_s(const struct shoal_swim *swim, uint64_t since_ns);
/* Our own card anew, at `refutation`; false: the pool is full, the old one stays. */
bool swim_self_card(struct shoal_swim *swim, uint32_t refutation, bool leaving);
void swim_hear_card(struct shoal_swim *swim, const struct swim_origin *origin, struct shoal_view statement,
                    uint64_t age_s);
void swim_hear_accuse(struct shoal_swim *swim, const struct swim_origin *origin, struct shoal_view statement);
/* We suspect it ourselves: our probe was silent. */
void swim_suspect(struct shoal_swim *swim, struct shoal_swim_actions *actions, uint32_t member);
/* Our verdict, spread in our name. */
void swim_declare(struct shoal_swim *swim, struct shoal_swim_actions *actions, uint32_t member,
                  enum swim_verdict verdict);
void swim_forget(struct shoal_swim *swim, struct shoal_swim_actions *actions, uint32_t member);
/* It was removed from the mesh. NOT_FOUND: no such member. */
enum shoal_err swim_expel(struct shoal_swim *swim, struct shoal_swim_actions *actions, struct shoal_node_id id);
void swim_member_out(const struct shoal_swim *swim, uint32_t member, struct shoal_member *out);
void swim_health_add(struct shoal_swim *swim, int points);

/* ---- records.c ------------------------------------------------------------------------------------------------- */

enum shoal_err swim_publish(struct shoal_swim *swim, const struct shoal_record *record);
void swim_hear_record(struct shoal_swim *swim, const struct swim_origin *origin, struct shoal_view statement,
                      uint64_t age_s);
uint64_t swim_record_hash(const struct shoal_swim *swim, uint32_t record);
uint64_t swim_record_sum(const struct shoal_swim *swim, uint32_t record);
/* All that `member` authored: forget it, or take it out of anti-entropy. */
void swim_records_forget(struct shoal_swim *swim, uint32_t member);
void swim_records_fade(struct shoal_swim *swim, uint32_t member);
void swim_records_unfade(struct shoal_swim *swim, uint32_t member);
/* Tombstones: fade at half the grace, forget at the whole. */
void swim_records_sweep(struct shoal_swim *swim);

/* ---- swim_sync.c ----------------------------------------------------------------------------------------------- */

void swim_sync_start(struct shoal_swim *swim, struct shoal_swim_actions *actions, uint32_t member);
void swim_sync_timer(struct shoal_swim *swim, struct shoal_swim_actions *actions);
/* The messages of anti-entropy; ITEMS' own news is left to the caller. False: malformed. */
bool swim_sync_hear(struct shoal_swim *swim, struct shoal_swim_actions *actions, enum swim_message message,
                    uint32_t member, const struct shoal_swim_event *event, struct shoal_reader *r);

/* ---- swim.c ---------------------------------------------------------------------------------------------------- */

/* News to the end of the datagram; false: malformed. */
bool swim_hear_news(struct shoal_swim *swim, const struct swim_origin *origin, struct shoal_reader *r);

/* swim_create.c */
void swim_release_retired(
    struct shoal_swim *swim); /* R7 of records.c: what an action of the last step may have shown */

#endif
