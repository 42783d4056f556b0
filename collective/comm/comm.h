/* The communicator of one process: the structs and functions that the files of libshoal share.
 *
 *   comm.c          open, ready, buffers                           epoch.c     close, enter, fetch
 *   agent_socket.c  the socket to the agent, the library thread    wait.c      spin, yield, sleep
 *   step.c          the step transaction                           exchange.c  sums, in a host and between hosts
 *   records.c       step records until acknowledged                fabric.c    tags, greetings, serving between hosts
 *   state.c         donor and joiners                              ops.c       collectives outside of steps
 *   op_queue.c      their handles and thread                       op_check.c  what members must agree on in them
 *   op_memory.c     between the caller's memory and the arena      op_nccl.c   NCCL among the ranks of a host
 *   op_device.c     the calls of device.h
 *   driver.c        the driver's calls                             solo.c      an engine without an agent
 *   early.c         sums while backward still runs              update.c    the update of weights, slice by slice
 *
 * Threads: the caller's, and the library thread. `lock` guards the agent socket, the closing of the epoch and the words
 * that need an open one; `fabric_lock` the transport and what hangs on it. Order: fabric_lock before lock. */
#ifndef COLLECTIVE_COMM_H
#define COLLECTIVE_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "shoal/collective.h"
#include "shoal/collective_update.h"
#include "shoal/worker.h"

#include "collective/memory/arena.h"
#include "collective/memory/fault.h"
#include "collective/memory/kernels.h"
#include "collective/memory/reduce.h"
#include "collective/transport/transport.h"
#include "collective/memory/tree.h"

struct peer {
    uint64_t worker_id;
    struct shoal_node_id node;
    uint32_t slot;
    uint32_t v_begin; /* of the first step of the epoch */
    uint32_t v_end;
    bool has_state;
    uint8_t token[16];
    uint16_t address_len;
    uint8_t address[SHOAL_TRANSPORT_ADDRESS_MAX];
    uint32_t host;             /* index of its host, by first appearance in rank order */
    struct arena_words *words; /* same host only */
    uint8_t *region;           /* same host only */
};

struct epoch {
    struct shoal_epoch id;
    uint64_t word;
    uint32_t rank;
    uint32_t size;
    uint32_t hosts;
    uint32_t host; /* mine */
    uint32_t local_count;
    uint32_t local[SHOAL_RANKS_MAX];   /* ranks of my host, ascending; the first one is its leader */
    uint32_t local_index;              /* mine */
    uint32_t leaders[SHOAL_RANKS_MAX]; /* rank, by host */
    uint64_t decided_step;
    int source; /* of the decided step; ranks, or -1 */
    int donor;
    uint32_t joiners;
    bool composed; /* the result map shows this epoch's slices */
    struct peer peers[SHOAL_RANKS_MAX];
};

/* Facts that the agent must know. Each is sent when there is a connection, and again after a reconnect. */
enum fact {
    FACT_READY = 1,
    FACT_CLOSED = 2,
    FACT_DONE = 4,
    FACT_FILES = 8,
    FACT_FAILED = 16,
    FACT_SNAPSHOT = 32,
    FACT_TRAIN = 64,
    FACT_TRAIN_ACKED = 128,
    FACT_UNHEARD = 256,
};

struct agent_socket {
    int fd; /* -1: none */
    bool greeted;
    uint64_t retry_ns;
    uint32_t retries;
    uint32_t unsent; /* facts */
    uint32_t known;  /* facts that hold, to be said again after a reconnect */
    char path[108];
    struct shoal_worker_message *in;
    struct shoal_worker_message *out;
    uint8_t *bytes; /* SHOAL_WORKER_MESSAGE_MAX */
    uint64_t malformed;
};

struct record_entry {
    uint64_t step;
    uint32_t at;
    uint32_t len;
};

struct records {
    uint8_t *bytes;               /* SHOAL_RECORD_QUEUE_BYTES */
    struct record_entry *entries; /* ring of SHOAL_RECORD_QUEUE_MAX */
    uint32_t first;
    uint32_t count;
    uint64_t acked;
    uint64_t sent;       /* by me as rank 0 */
    uint8_t *last_bytes; /* the newest one committed here, SHOAL_WORKER_MESSAGE_MAX: the ring may have it no more, since
                          * others' may be acknowledged before mine is made */
    uint64_t last_step;
    uint32_t last_len;
    uint64_t waits; /* times that training had to wait for room */
};

struct fabric;
struct exchange;
struct between;

/* Of early.c. Offsets in bytes of the vector. */
#define EARLY_GAPS_MAX 16u
struct early {
    bool on;  /* the mini-batch whose parts come is the last one missing here */
    bool off; /* not in this attempt at the step any more */
    uint64_t final_from;
    struct {
        uint64_t begin;
        uint64_t end;
    } apart[EARLY_GAPS_MAX]; /* given, but not next to what is final */
    uint32_t apart_count;
    uint64_t done_from; /* [done_from, end of my slice) is added up */
    uint64_t digest;    /* of that */
    float divisor;      /* by which it was divided */
};

/* Of update.c. */
struct update {
    struct shoal_update_part *parts;
    uint32_t cap;
    uint32_t count;  /* 0: none was given for this step */
    uint64_t digest; /* of what they do */
    uint64_t turn;
    uint64_t shown; /* the step whose new vectors the view of `turn` shows */
    const struct shoal_update_part *last; /* where the last piece lay */
};

struct step_state {
    struct shoal_step step;
    bool assigned;
    bool contributed;
    bool reduced;
    uint64_t digest;
    struct tree_held held;
    bool parted; /* parts of mini-batch `part_v` were given */
    uint32_t part_v;
    uint32_t part_samples;
    struct tree_node fused; /* computed as one; empty: each mini-batch by itself */
    uint32_t fused_samples;
    bool placed; /* the parts are put where their sum lies, weighted, by the caller */
    bool kept; /* the caller has the gradient: no sum of it lies in the arena */
    struct tree_add part;       /* where they go */
    struct tree_held part_held; /* what is held once they are all there */
    struct early early;
    uint32_t begin; /* my range */
    uint32_t end;
};

struct shoal_comm {
    bool solo;
    uint32_t role;
    struct shoal_msg msg;
    struct fault fault;

    /* identity, from the environment */
    struct shoal_worker_hello hello;
    struct shoal_node_id node;
    uint32_t slot;

    struct shoal_control_page *page;
    struct shoal_control_slot *words; /* mine in the page; a private one for a driver */
    struct shoal_control_slot private_words;
    struct arena arena;
    int own_fd; /* of a private arena, or -1 */
    const struct kernels *kernels;

    pthread_mutex_t lock;
    struct agent_socket agent;
    bool thread_runs;
    pthread_t thread;
    _Atomic bool thread_stop;

    /* from the agent */
    struct shoal_worker_epoch *next; /* newest EPOCH not entered yet */
    bool next_valid;
    struct shoal_worker_call call;
    bool call_valid;
    bool write_final;
    _Atomic bool stop; /* STOP or RELEASE came */
    bool released;
    struct shoal_worker_stop stop_message;
    struct shoal_worker_message *driver_event; /* TRAIN_STATE or TRAIN_RECORDS */
    uint8_t *driver_bytes;
    bool driver_event_valid;

    /* to the agent */
    struct shoal_worker_ready ready;
    uint8_t address[SHOAL_TRANSPORT_ADDRESS_MAX];
    size_t address_len;
    struct shoal_worker_closed closed;
    struct shoal_worker_unheard unheard;
    struct {
        _Atomic uint64_t words[SHOAL_RANKS_WORDS];
    } lost_links; /* of the epoch: members to which the connection broke, or that say nothing; as struct shoal_ranks */
    struct shoal_worker_done done;
    struct shoal_worker_failed *failed;
    struct shoal_worker_snapshot *snapshot;
    struct shoal_worker_train *train;
    struct shoal_worker_acked files;
    struct shoal_worker_acked train_acked;
    struct records records;

    /* where training stands */
    struct shoal_comm_plan plan;
    bool planned;
    struct epoch epoch;
    _Atomic bool open;   /* the epoch is open: words may be said. Cleared under `lock` */
    uint64_t seen_epoch; /* word of the newest epoch entered or refused */
    _Atomic uint64_t applied;
    _Atomic uint64_t complete;
    bool stateless;  /* a joiner that began to take the state */
    bool fresh;      /* loaded this call's bundle, never told to load or take a state */
    bool finished;   /* done() was called */
    bool main_waits; /* the caller is receiving: the library thread only sends */
    struct step_state step;
    struct update update;
    _Atomic uint64_t closed_ns; /* when the last epoch was closed; 0: the pause is over */
    uint8_t *copy_result;       /* private, committed buffers */
    uint8_t *touched;           /* private */
    uint64_t op;                /* phases of collectives in this epoch */
    uint64_t op_number;         /* collectives in this epoch */
    struct op_queue *op_queue;  /* NULL: none was started */
    struct device *device;      /* NULL: none was opened */
    bool op_native;             /* all members want this collective on NCCL */
    uint64_t state_sequence;
    struct arena_chunk chunk; /* of the joiner: the one to be taken next */
    bool chunk_valid;
    uint8_t *fabric_message; /* the bytes of a chunk that came from another host */

    uint32_t spin_max;
    uint32_t cores;

    pthread_mutex_t fabric_lock;
    const struct transport_ops *transport_ops;
    struct transport *transport;
    struct fabric *fabric;
    _Atomic bool fabric_moved; /* progress() had something to do */
    _Atomic bool main_turns;   /* the caller waits and progresses by itself */

    /* scratch of exchange.c, taken at ready */
    struct exchange *exchange;
    struct between *between; /* of exchange.c */
    struct tree_op *ops;
    uint32_t ops_cap;
    uint8_t *temporaries;
};

uint64_t comm_now_ns(void);
uint64_t comm_deadline_ns(int timeout_ms); /* < 0: never */
/* Remember the text of a refusal. */
#define comm_fail(comm, err, ...) shoal_fail(&(comm)->msg, err, __VA_ARGS__)

/* ---- agent_socket.c ---- */
/* One turn with the agent: reconnect when due, receive at most `turns` messages, send what is unsent. Under lock. */
void agent_turn(struct shoal_comm *comm, uint32_t turns);
void agent_tell(struct shoal_comm *comm, uint32_t fact); /* under lock: holds from now on, send it */
void agent_close(struct shoal_comm *comm);
/* Wait at most until `deadline_ns` for a message or a change of the control page, then take a turn. Not under lock. */
void agent_wait(struct shoal_comm *comm, uint64_t deadline_ns);
enum shoal_err agent_start_thread(struct shoal_comm *comm);
void agent_stop_thread(struct shoal_comm *comm);
/* solo: what an agent would answer to the facts. Under lock. */
void solo_turn(struct shoal_comm *comm);
void solo_call(struct shoal_comm *comm); /* the next call, under lock */

/* ---- epoch.c ---- */
bool epoch_is_revoked(const struct shoal_comm *comm);
/* Close the epoch I am in and refuse a pending one that is revoked already. Under lock. */
void epoch_close_locked(struct shoal_comm *comm);
void epoch_check_locked(struct shoal_comm *comm);
void epoch_close(struct shoal_comm *comm);
/* The range of `rank` in a step of v_count mini-batches. */
void epoch_range(const struct shoal_comm *comm, uint64_t step, uint32_t v_count, uint32_t rank, uint32_t *begin,
                 uint32_t *end);

/* ---- wait.c ---- */
typedef bool wait_fn(struct shoal_comm *comm, uint64_t arg);
/* Until `ready` is true. RANK_LOST: the epoch was revoked, and is closed now. */
enum shoal_err comm_wait(struct shoal_comm *comm, wait_fn *ready, uint64_t arg);
/* Say `value` in one of my words, if the epoch is open still; `over`, if not NULL, tells whether a phase has ended and
 * the others must be woken. */
enum shoal_err comm_say(struct shoal_comm *comm, _Atomic uint64_t *word, uint64_t value, wait_fn *over);
void wait_set_spin(struct shoal_comm *comm);

/* ---- records.c ---- */
enum shoal_err records_init(struct records *records);
void records_deinit(struct records *records);
void records_clear(struct records *records, uint64_t acked);
bool records_have_room(const struct records *records, uint32_t len);
bool records_push(struct records *records, uint64_t step, const uint8_t *bytes, uint32_t len);
void records_ack(struct records *records, uint64_t step);
const struct record_entry *records_find(const struct records *records, uint64_t step);
uint32_t record_bytes(uint32_t v_count, uint32_t metric_count);
/* Build the record of the committed step from my commit block and queue it. */
void records_commit(struct shoal_comm *comm);

/* ---- op_queue.c ---- */
/* Until every collective that was started has ended. */
void op_drain(struct shoal_comm *comm);
void op_queue_destroy(struct shoal_comm *comm);

/* ---- step.c ---- */
void step_reset(struct shoal_comm *comm);
/* The commit block and the result map show `step`: take over buffers, touched bits and the record, and count it as
 * applied. */
void step_adopt(struct shoal_comm *comm, uint64_t step);

/* My host's part of a sum of the step's vectors, as far as the words of its members say. */
void step_exchange(struct shoal_comm *comm, struct exchange *exchange);

/* ---- early.c ---- */
/* A step is begun, or begun again: nothing is final or added up. */
void early_begin(struct shoal_comm *comm);
/* Elements of the last missing mini-batch lie in their place now. */
void early_part(struct shoal_comm *comm, uint32_t samples, uint64_t offset, uint64_t elems);
/* They were not the gradient: what was told of them is void. */
void early_forget(struct shoal_comm *comm);
/* Add up what is final at all members of my host and mine to add up, if it is worth it. */
void early_reduce(struct shoal_comm *comm);
/* Everyone has contributed: give `exchange` what is done already. */
void early_end(struct shoal_comm *comm, struct exchange *exchange);

/* ---- update.c ---- */
/* A step is begun, or begun again: no update is given. */
void update_begin(struct shoal_comm *comm);
/* Bytes [at, at + len) of the sum lie at `g`, and I am their home: update them. */
void update_slice(struct shoal_comm *comm, const uint8_t *g, uint64_t at, uint64_t len);
/* My slices are updated: to be told with `reduced`. */
void update_end(struct shoal_comm *comm);
/* All have reduced: show the new vectors, if all have made them. */
enum shoal_err update_show(struct shoal_comm *comm);

struct arena_block;
/* The slices of this epoch by the slot of their home here; returns their number. */
uint32_t step_slices(const struct shoal_comm *comm, struct arena_part parts[SHOAL_RANKS_MAX]);
void step_merge_block(struct shoal_comm *comm, struct arena_block *into, struct arena_block *from);
void step_merge_local(struct shoal_comm *comm, struct arena_block *block);

/* ---- fabric.c ---- */
enum fabric_kind {
    FABRIC_HELLO,
    FABRIC_BLOCK,    /* leader to leader: tuples of a host */
    FABRIC_COPY,     /* leader to leader: buffers of v = 0 */
    FABRIC_PARTIAL,  /* delegate to owner of a slice */
    FABRIC_RESULT,   /* owner to delegates */
    FABRIC_COMPLETE, /* leader to leader */
    FABRIC_FETCH,    /* source to one that lacks the result */
    FABRIC_STATE,    /* donor to joiner */
    FABRIC_OP,       /* barrier and broadcast */
    FABRIC_OP_PARTIAL,
    FABRIC_OP_RESULT,
    FABRIC_BEAT, /* I live */
    FABRIC_KIND_COUNT,
};
enum shoal_err fabric_create(struct shoal_comm *comm);
void fabric_destroy(struct shoal_comm *comm);
/* The epoch is entered: connect, greet. Only if it spans hosts. */
enum shoal_err fabric_enter(struct shoal_comm *comm);
void fabric_leave(struct shoal_comm *comm);
/* Progress, greetings, serving. false: broken. With or without the lock held by this thread. */
bool fabric_turn(struct shoal_comm *comm);
/* The result of the last turn, whichever thread took it. */
bool fabric_is_broken(const struct shoal_comm *comm);
/* The members that `lost_links` names. */
struct shoal_ranks fabric_lost(const struct shoal_comm *comm);
/* Like fabric_turn, but gives up when another thread is at it. */
void fabric_try_turn(struct shoal_comm *comm);
/* Sleep until something arrives or `ms` pass. */
void fabric_sleep(struct shoal_comm *comm, int ms);
enum shoal_err fabric_greeted(struct shoal_comm *comm); /* wait until every remote member has shown its token */
enum shoal_err fabric_fetch(struct shoal_comm *comm);   /* the result of the decided step, from the remote source */
uint64_t fabric_tag(const struct shoal_comm *comm, enum fabric_kind kind, uint32_t source, uint64_t op, uint32_t chunk);
struct transport_request *fabric_send(struct shoal_comm *comm, uint32_t rank, uint64_t tag, const void *bytes,
                                      size_t len);
struct transport_request *fabric_recv(struct shoal_comm *comm, uint64_t tag, void *bytes, size_t len);
/* A request field that is cleared when done. FAILED marks the fabric broken. */
enum transport_state fabric_test(struct shoal_comm *comm, struct transport_request **request);
/* Between the leaders of the hosts; true when done. With the fabric broken they stay false and comm_wait notices. */
bool fabric_world_turn(struct shoal_comm *comm, uint64_t step);
bool fabric_completed_turn(struct shoal_comm *comm, uint64_t step, bool local);
/* All requests of an array are done. RANK_LOST as comm_wait. */
enum shoal_err fabric_finish(struct shoal_comm *comm, struct transport_request **requests, uint32_t count);
uint8_t *fabric_slab(struct shoal_comm *comm, size_t bytes); /* library-owned, reused; NULL: no memory */

/* ---- exchange.c ---- */
struct exchange_input {
    struct tree_node node;
    const uint8_t *base;
};
struct exchange {
    uint32_t type;      /* enum shoal_type, one of those that are added up */
    uint32_t reduction; /* enum shoal_reduction, below MEAN */
    uint64_t bytes;
    uint32_t v_count;
    float divisor;          /* 0: none; with several hosts it may be known late, see `ready` */
    const uint32_t *begins; /* by rank: the leaves that it holds */
    const uint32_t *ends;
    uint32_t input_count;
    uint32_t into_count;
    uint64_t op; /* in the tags */
    enum fabric_kind partial_kind;
    enum fabric_kind result_kind;
    bool want_digest;
    bool update; /* update_slice follows each final sum */
    bool may_fault;
    bool rest; /* in a host: my slice is in the result already, and in `digest`, from here on */
    uint64_t rest_end;
    uint64_t digest; /* out; in: of that */
    /* Called until it is true, before the first final sum: with several hosts the divisor comes with the tuples. */
    bool (*ready)(struct shoal_comm *comm, struct exchange *exchange);
    /* not cleared between two exchanges */
    uint8_t *into[SHOAL_RANKS_MAX]; /* the result goes to each */
    struct exchange_input inputs[SHOAL_RANKS_MAX * TREE_NODES_MAX]; /* of my host, ascending */
};
/* All but the arrays, of which only what is counted is read: a collective of few pays for few. */
static inline void exchange_clear(struct exchange *exchange) { memset(exchange, 0, offsetof(struct exchange, into)); }
enum shoal_err exchange_run(struct shoal_comm *comm, struct exchange *exchange);
/* In a host: [begin, end) of my slice alone. */
enum shoal_err exchange_part(struct shoal_comm *comm, struct exchange *exchange, uint64_t begin, uint64_t end);
/* Slice of the vector whose owner is `rank`, in bytes. */
void exchange_slice(const struct epoch *epoch, uint64_t bytes, uint32_t rank, uint64_t *begin, uint64_t *end);
/* The rank whose region on my host has the slice of `rank`. */
uint32_t exchange_home(const struct epoch *epoch, uint32_t rank, uint32_t host);
enum shoal_err exchange_create(struct shoal_comm *comm);
void exchange_destroy(struct shoal_comm *comm);

#endif
