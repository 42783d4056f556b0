/* Gossip: who is there (SWIM with Lifeguard) and what they have (signed records, newest version wins).
 *
 * A pure core: state, event and time in, actions out. It does no I/O, reads no clock, draws chance only from its seed
 * and allocates at create only. The caller:
 *
 *     shoal_swim_create(&swim, &options, &msg);
 *     loop: wait for a datagram, or until shoal_swim_deadline_ns(swim);
 *           shoal_swim_step(swim, &event, now_ns, actions);  carry the actions out in array order.
 *
 * Gossip gives hints: DEAD here frees no slot and kills no job (DESIGN section 3). The rules and their sources are in
 * gossip/swim.c, gossip/records.c and gossip/swim_sync.c; the byte tables in gossip/swim_wire.h. */
#ifndef SHOAL_GOSSIP_H
#define SHOAL_GOSSIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/address.h"
#include "shoal/crypto.h"
#include "shoal/error.h"
#include "shoal/ids.h"
#include "shoal/limits.h"
#include "shoal/memory.h"

#define SHOAL_GOSSIP_NAME_BYTES 64 /* a node's name with its NUL */

/* ---- members -------------------------------------------------------------------------------------------------- */

enum shoal_member_state {
    SHOAL_MEMBER_NONE, /* not known, or forgotten after the grace */
    SHOAL_MEMBER_ALIVE,
    SHOAL_MEMBER_SUSPECT, /* silent; may still refute. Treat as alive, prefer others */
    SHOAL_MEMBER_DEAD,
    SHOAL_MEMBER_LEFT, /* said so itself, or was removed from the mesh */
    SHOAL_MEMBER_STATES,
};

/* Gossip knows this of a node; a copy. */
struct shoal_member {
    struct shoal_node_id id;
    struct shoal_store_id store;
    struct shoal_incarnation incarnation;
    enum shoal_member_state state;
    bool agent_gone;              /* DEAD because its port refused: the agent is gone, the host is up */
    uint8_t health;               /* its own word: 0 well ... 7 badly late (Lifeguard's score) */
    uint64_t since_ns;            /* of the last change of state, on this core's clock */
    struct shoal_address address; /* datagrams */
    uint16_t link_port;           /* TCP links between agents; 0: none */
    uint16_t http_port;           /* 0: none */
    char name[SHOAL_GOSSIP_NAME_BYTES];
    struct shoal_public_key public_key;
};

/* ---- records -------------------------------------------------------------------------------------------------- */

enum shoal_record_kind {
    SHOAL_RECORD_NODE_FACTS,  /* identity, addresses, numeric class, versions: changes at start */
    SHOAL_RECORD_NODE_SLOTS,  /* inventory and leases */
    SHOAL_RECORD_NODE_LOAD,   /* publish at most each max(1 s, members * 20 ms): every node hears every record */
    SHOAL_RECORD_JOB_SUMMARY, /* many authors: any guardian signs; key = job id and zeroes */
    SHOAL_RECORD_MESH_STATE,  /* many authors: points to the newest snapshot of the mesh group */
    SHOAL_RECORD_SERVICE,     /* of a node that has replicas of services: key = its id (shoal_serving_record) */
    SHOAL_RECORD_KINDS,
};

/* A many-author kind has one record per key, whoever signed it; of the others one per (author, key). */
static inline bool shoal_record_is_shared(enum shoal_record_kind kind) { return kind >= SHOAL_RECORD_JOB_SUMMARY; }

struct shoal_record_key {
    uint8_t bytes[16];
};

/* Compared in order. A node's own records: (host epoch, agent incarnation, sequence), so that a restart outranks its
 * past. A job's summary: (configuration, term, applied index). */
struct shoal_record_version {
    uint64_t word[3];
};

static inline int shoal_record_version_cmp(struct shoal_record_version a, struct shoal_record_version b)
{
    for (unsigned i = 0; i < 3; i++)
        if (a.word[i] != b.word[i])
            return a.word[i] < b.word[i] ? -1 : 1;
    return 0;
}

struct shoal_record {
    enum shoal_record_kind kind;
    bool tombstone;              /* deleted: the payload is empty, forgotten after the grace */
    struct shoal_node_id author; /* who signed it; ignored when publishing */
    struct shoal_record_key key;
    struct shoal_record_version version;
    struct shoal_view payload; /* at most SHOAL_RECORD_PAYLOAD_MAX; read: valid until the next step */
};

/* ---- environment ---------------------------------------------------------------------------------------------- */

/* The core cannot do this alone. It is called inside create and step, must be fast, and must not call back into the
 * core. */
struct shoal_swim_env {
    void *arg;
    /* Sign `len` bytes with this node's key. */
    struct shoal_signature (*sign)(void *arg, struct shoal_view view);
    bool (*verify)(void *arg, const struct shoal_public_key *key, struct shoal_view view,
                   const struct shoal_signature *signature);
    /* The node id that belongs to a public key: its hash. */
    struct shoal_node_id (*node_id)(void *arg, const struct shoal_public_key *key);
    /* May this node be a member? False: what it says of itself is dropped, whoever passes it on. NULL: all may. */
    bool (*admits)(void *arg, struct shoal_node_id id);
};

/* Signed statements by content, each held once. One per agent; a simulator gives the same one to all its cores, so
 * that ten thousand views of ten thousand members fit one machine. Only verified statements enter it. Its cores must
 * run on one thread. */
struct shoal_gossip_pool;

/* NULL: no memory. `bytes_max` is taken at once (untouched pages cost nothing); 0 means 32 MiB. When it is full, new
 * statements are dropped and counted, and anti-entropy brings them later. */
struct shoal_gossip_pool *shoal_gossip_pool_create(size_t bytes_max);
void shoal_gossip_pool_destroy(struct shoal_gossip_pool *pool); /* after every core that uses it; NULL is fine */

struct shoal_swim;

struct shoal_swim_options {
    /* Our own identity. The id must belong to the key (checked through env). */
    struct shoal_node_id id;
    struct shoal_public_key public_key;
    struct shoal_store_id store;
    uint32_t host_epoch;
    uint32_t agent; /* with host_epoch: higher at each start of the agent */
    struct shoal_address address;
    uint16_t link_port;
    uint16_t http_port;
    char name[SHOAL_GOSSIP_NAME_BYTES];
    struct shoal_swim_env env;
    struct shoal_gossip_pool *pool; /* borrowed until destroy */
    uint64_t seed;
    /* Bounds; 0 takes the default of limits.h. */
    uint32_t members_max;
    uint32_t records_max;
    uint32_t suspicions_max;
    uint32_t queue_max;
    /* Times and numbers (reference/control-plane 1.7); 0 takes the default in brackets. */
    uint64_t probe_interval_ns;     /* [500 ms] one member is probed per interval */
    uint64_t ack_wait_min_ns;       /* [100 ms] before helpers are asked; 4x the path's worst recent round trip, */
    uint64_t ack_wait_max_ns;       /* [250 ms] at most this */
    uint64_t gossip_interval_ns;    /* [200 ms] between rounds while there is something to repeat */
    uint64_t gossip_eager_ns;       /* [50 ms] between rounds while there is something new */
    uint64_t sync_interval_ns;      /* [10 s] anti-entropy */
    uint64_t grace_ns;              /* [10 min] the dead, the left and tombstones are kept so long */
    uint64_t reconnect_interval_ns; /* [5 s] one of the dead, or a seed nobody answers at, is tried */
    uint32_t helpers;               /* [3] */
    uint32_t confirmations;         /* [3] other accusers that shorten a suspicion to its minimum; at most 3 */
    uint32_t suspicion_tenths;      /* [25] minimum suspicion, in tenths of max(1, log10 n) probe intervals */
    uint32_t suspicion_max_factor;  /* [6] maximum over minimum */
    uint32_t fanout;                /* [3] members per gossip round */
    uint32_t retransmit;            /* [4] times ceil(log10(n + 1)) sends of each news */
};

/* INVALID: an option out of range, the id does not belong to the key, or no pool; FULL: no memory. */
SHOAL_MUST_CHECK enum shoal_err shoal_swim_create(struct shoal_swim **swim, const struct shoal_swim_options *options,
                                                  struct shoal_msg *msg);
void shoal_swim_destroy(struct shoal_swim *swim);

/* ---- events --------------------------------------------------------------------------------------------------- */

enum shoal_swim_event_kind {
    SHOAL_SWIM_TIMER,    /* the deadline has come (an early one is harmless) */
    SHOAL_SWIM_DATAGRAM, /* unsealed: `from` is proven, `address` is where it came from */
    SHOAL_SWIM_JOIN,     /* try these addresses until somebody answers; replaces an earlier list */
    SHOAL_SWIM_LEAVE,    /* say goodbye; the note LEAVE_SENT follows when it has been said often enough */
    SHOAL_SWIM_HEALTH,   /* measured here: the event loop's lag */
    SHOAL_SWIM_REFUSED,  /* `peer`'s port refused: its kernel is up, its agent is not */
    SHOAL_SWIM_PUBLISH,  /* sign and spread a record of ours */
    SHOAL_SWIM_EXPEL,    /* `peer` was removed from the mesh: it has LEFT; `admits` says no from now on */
};

#define SHOAL_SWIM_SEEDS_MAX 32

struct shoal_swim_event {
    enum shoal_swim_event_kind kind;
    union {
        struct {
            struct shoal_node_id from;
            struct shoal_address address;
            struct shoal_view bytes;
        } datagram;
        struct {
            const struct shoal_address *addresses;
            size_t count; /* at most SHOAL_SWIM_SEEDS_MAX are kept */
        } join;
        struct {
            uint64_t loop_lag_ns;
        } health;
        struct shoal_node_id peer;
        const struct shoal_record *record;
    };
};

/* ---- actions -------------------------------------------------------------------------------------------------- */

enum shoal_swim_action_kind {
    SHOAL_SWIM_SEND,
    SHOAL_SWIM_MEMBER, /* a member is new, changed its state, or has a new incarnation */
    SHOAL_SWIM_RECORD, /* a record was accepted: another node's, or one of ours from before a restart */
    SHOAL_SWIM_CLONED, /* our store lives elsewhere, later: "this data folder was rolled back or cloned"; stop */
    SHOAL_SWIM_NOTE,   /* for the log and for scenarios; nothing to do */
};

/* Why a member changed, and what a note tells. `by`: who, where there is somebody. */
enum shoal_swim_why {
    SHOAL_SWIM_WHY_CARD,        /* its own signed word */
    SHOAL_SWIM_WHY_SILENT,      /* our probe and the helpers' got no answer */
    SHOAL_SWIM_WHY_TOLD,        /* another member's signed word (by) */
    SHOAL_SWIM_WHY_TIMEOUT,     /* suspected long enough */
    SHOAL_SWIM_WHY_REFUSED,     /* its port refused */
    SHOAL_SWIM_WHY_EXPIRED,     /* the grace is over: forgotten */
    SHOAL_SWIM_WHY_EXPELLED,    /* it was removed from the mesh */
    SHOAL_SWIM_NOTE_NO_ACK,     /* ping to the member: no ack, asking helpers */
    SHOAL_SWIM_NOTE_THROUGH,    /* the member is alive, through a helper (by) */
    SHOAL_SWIM_NOTE_REFUTE,     /* we are accused (by) and raise our incarnation */
    SHOAL_SWIM_NOTE_WRONG,      /* another node (by) answers at the member's address */
    SHOAL_SWIM_NOTE_CONFIRMED,  /* another accuser (by) shortens the suspicion */
    SHOAL_SWIM_NOTE_SYNCED,     /* our tables equal the member's after at least one difference */
    SHOAL_SWIM_NOTE_LATE,       /* we were late ourselves: a probe is abandoned, suspicions wait longer */
    SHOAL_SWIM_NOTE_LEAVE_SENT, /* everybody we could tell was told */
};

struct shoal_swim_action {
    enum shoal_swim_action_kind kind;
    union {
        struct {
            struct shoal_node_id to; /* zero: whoever is at `address` */
            struct shoal_address address;
            struct shoal_view bytes; /* in the actions' own memory; at most SHOAL_DATAGRAM_PAYLOAD_MAX */
        } send;
        struct {
            struct shoal_member member; /* as it is now */
            enum shoal_member_state old;
            enum shoal_swim_why why;
            struct shoal_node_id by;
        } member;
        struct shoal_record record; /* its payload is valid until the next step */
        struct {
            struct shoal_node_id id; /* of the other holder; may be our own id */
            struct shoal_incarnation incarnation;
            struct shoal_address address;
        } cloned;
        struct {
            enum shoal_swim_why what;
            struct shoal_node_id id;
            struct shoal_node_id by;
        } note;
    };
};

#define SHOAL_SWIM_ACTIONS_MAX 96
#define SHOAL_SWIM_SENDS_MAX 24

/* Caller's memory (about 64 KiB: keep one per thread, not on the stack), emptied by each step. */
struct shoal_swim_actions {
    size_t count;
    size_t sends;
    struct shoal_swim_action items[SHOAL_SWIM_ACTIONS_MAX];
    uint8_t bytes[SHOAL_SWIM_SENDS_MAX][SHOAL_DATAGRAM_PAYLOAD_MAX];
};

/* ---- the step ------------------------------------------------------------------------------------------------- */

/* Advance by one event. Time never goes back. Results:
 * DATAGRAM: OK, MALFORMED (counted, what came before the bad part was used), UNSUPPORTED (a newer protocol, counted).
 * PUBLISH: INVALID (kind, shape), TOO_BIG, STALE (not above the version we hold), FULL; nothing changed.
 * REFUSED, EXPEL: NOT_FOUND (no such member). Others: OK. */
enum shoal_err shoal_swim_step(struct shoal_swim *swim, const struct shoal_swim_event *event, uint64_t now_ns,
                               struct shoal_swim_actions *actions);

/* The time of the next step with TIMER; 0 before the first step. */
uint64_t shoal_swim_deadline_ns(const struct shoal_swim *swim);

/* ---- reading -------------------------------------------------------------------------------------------------- */

/* Including ourselves. False: not known. */
bool shoal_swim_member_find(const struct shoal_swim *swim, struct shoal_node_id id, struct shoal_member *member);
/* Every member in table order, ourselves first: start with *cursor = 0; false at the end. No step in between. */
bool shoal_swim_member_next(const struct shoal_swim *swim, uint32_t *cursor, struct shoal_member *member);
void shoal_swim_self(const struct shoal_swim *swim, struct shoal_member *member);
/* ALIVE or SUSPECT, ourselves included. */
uint32_t shoal_swim_live_count(const struct shoal_swim *swim);
/* Lifeguard's score: max of the counted and the measured; 0 well ... 7. */
uint32_t shoal_swim_health(const struct shoal_swim *swim);
/* No seed waits for its first answer. */
bool shoal_swim_is_joined(const struct shoal_swim *swim);

/* `author` is ignored for shared kinds. Tombstones are found too. False: none. */
bool shoal_records_find(const struct shoal_swim *swim, enum shoal_record_kind kind, struct shoal_node_id author,
                        struct shoal_record_key key, struct shoal_record *record);
/* Every record of the kind that is not a tombstone: start with *cursor = 0; false at the end. No step in between. */
bool shoal_records_next(const struct shoal_swim *swim, enum shoal_record_kind kind, uint32_t *cursor,
                        struct shoal_record *record);
uint32_t shoal_records_count(const struct shoal_swim *swim);

/* Counters since create, and gauges. */
struct shoal_swim_stats {
    uint64_t sent_datagrams, sent_bytes, received_datagrams, received_bytes;
    uint64_t probes, probes_silent, probes_helped, suspicions, deaths, refutations, verified, signed_count;
    uint64_t sync_rounds, sync_items_sent, records_accepted;
    /* Drops, each with its one cause. */
    uint64_t drop_malformed;       /* bytes that do not decode */
    uint64_t drop_version;         /* a newer protocol that we cannot read */
    uint64_t drop_unknown_item;    /* a kind of news from a newer protocol: skipped */
    uint64_t drop_bad_signature;   /* or an id that does not belong to its key */
    uint64_t drop_unknown_accuser; /* its key is not known here */
    uint64_t drop_unknown_subject; /* an accusation of a node that is not known here */
    uint64_t drop_unknown_author;  /* a record whose author is not known here (yet) */
    uint64_t drop_old;             /* older than, or the same as, what we hold */
    uint64_t drop_conflict;        /* same version, another content: the greater bytes stay */
    uint64_t drop_members_full;    /* members_max */
    uint64_t drop_records_full;    /* records_max, or one author's share */
    uint64_t drop_pool_full;       /* the pool's bytes */
    uint64_t drop_suspicions_full; /* suspicions_max: probed again later */
    uint64_t drop_queue_full;      /* queue_max: the news sent most often gave way; anti-entropy repairs */
    uint64_t drop_relays_full;     /* too many probes on behalf of others */
    uint64_t drop_actions_full;    /* a step's sends did not fit; the protocol repeats them */
    uint64_t drop_wrong_answer;    /* an answer to no question of ours, or by somebody else */
    uint64_t drop_expired;         /* a death, leave or tombstone too old to be taken up again */
    uint64_t drop_expelled;        /* the word of a node that was removed from the mesh */
    /* Gauges. */
    uint32_t members, live, suspects, dead, records, queue_members, queue_records;
};

void shoal_swim_stats(const struct shoal_swim *swim, struct shoal_swim_stats *stats);
/* Asserts every invariant, of each member and record; a step asserts only what costs the same in any mesh. For tests
 * and the simulator. */
void shoal_swim_check(const struct shoal_swim *swim);
/* The tables of one core at their standard sizes, and the pool that it is given. */
void shoal_swim_memory(struct shoal_memory *memory);

#endif
