/* The host arena: one memfd for all workers of a job on a host.
 *
 *   | head | words of slot 0 | ... | words of slot 63 | their maps |  region of slot 0  |  region of slot 1  | ...
 *                                                      contribution, world, commit blocks | partial sums | work |
 *                                                      result | stage | scratch | new weights and state, twice
 *
 * I1. A worker writes its own words page and its own region only, the bell in the head apart.
 * I2. Words of an epoch are written only while it is open (collective.h I2); a reader looks at `epoch` first.
 * I3. The result of a step lies in slices, each in the region of the worker that is its home on this host. What a
 *     worker sees as one vector is a composed mapping of those slices (the result map); it is composed anew at the
 *     first reduction of an epoch, when everybody has applied what the old one showed.
 * I4. So do the vectors of an update (collective_update.h), by turns in two places. What a
 *     worker sees of them is private: what it writes there stays with it.
 *
 * The file is sparse: memory is taken for what is touched. It only ever grows (by a write at its new end). */
#ifndef COLLECTIVE_ARENA_H
#define COLLECTIVE_ARENA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shoal/collective.h"
#include "shoal/limits.h"

#define ARENA_MAGIC 0x616e6572616c6f68ull
#define ARENA_VERSION 1u
#define ARENA_PAGE 4096u
#define ARENA_REGIONS_AT (1024u * 1024u)
#define ARENA_MAP_FIRST 64u          /* parts of a result map that lie in the words; the others have a page of their own: */
#define ARENA_MAP_AT (512u * 1024u)  /* one for each slot */
#define ARENA_STAGE_BYTES (512u * 1024u) /* of one of the two staging buffers */

struct arena_head {
    _Atomic uint64_t magic;
    uint32_t version;
    uint32_t oldest;
    uint8_t pad0[48];
    _Atomic uint32_t bell; /* futex: counted up when a phase is over */
    uint8_t pad1[60];
    _Atomic uint32_t waiters;
};

/* One slice of the result vector, in bytes of the vector. */
struct arena_part {
    uint64_t begin;
    uint64_t end;
    uint32_t slot;
    uint32_t pad;
};

/* A partial sum that a worker contributes, and the buffer of its region that holds it. */
struct arena_node {
    uint32_t begin;
    uint32_t end;
    uint32_t buffer;
};
#define ARENA_NODES_MAX 24

/* A chunk of state on its way to joiners. */
struct arena_chunk {
    uint64_t step;
    uint64_t total;
    uint64_t offset;
    uint32_t tensor;
    uint32_t len;
    uint32_t end; /* 1: there is no more */
    uint32_t pad;
};

/* One worker's request for a collective outside of steps (collective_op.h), for the others to compare. */
struct arena_said {
    uint8_t kind; /* 0: by a libshoal that says nothing; beyond the last one: refused */
    uint8_t type;
    uint8_t reduction;
    uint8_t memory;
    uint8_t native; /* NCCL may be used, and is there */
    uint8_t dim_count;
    uint8_t pad[2];
    uint32_t root;
    uint32_t pad2;
    uint64_t elems;
    uint64_t dims[8];
};

struct arena_words {
    /* what others wait for: a line of their own each */
    _Atomic uint64_t epoch; /* that the words below belong to */
    uint8_t pad0[56];
    _Atomic uint64_t contributed; /* step: my sums and tuples are in */
    _Atomic uint64_t reduced;     /* step: the slices homed here are done */
    _Atomic uint64_t completed;   /* step: I have the whole result */
    uint8_t pad1[40];
    _Atomic uint64_t world_in;        /* leader, step: the world block holds every host's tuples */
    _Atomic uint64_t world_completed; /* leader, step: every member of every host has completed */
    uint8_t pad2[48];
    _Atomic uint64_t op;       /* phase of the collectives outside of steps */
    _Atomic uint64_t world_op; /* leader */
    uint8_t pad3[48];
    _Atomic uint64_t state_given; /* donor: chunks staged */
    _Atomic uint64_t state_taken; /* joiner: chunks copied */
    uint8_t pad4[48];
    /* written before the word that publishes them */
    uint64_t worker_id;
    uint64_t stride;
    uint64_t digest;         /* of the slices homed here */
    uint64_t op_at;          /* offset in my region of the buffer of this operation */
    uint64_t committed_step; /* of the commit block and the result map */
    uint32_t map_count;
    uint32_t pad5;
    struct arena_part map[ARENA_MAP_FIRST]; /* those beyond: arena_map_part() */
    struct arena_chunk chunk[2];
    uint32_t node_count;
    struct arena_node nodes[ARENA_NODES_MAX];
    /* added later: a worker of the version before leaves them zero, and is waited for as it always was */
    uint64_t early_samples; /* of all my mini-batches of the step, written before `early` */
    _Atomic uint64_t early; /* 24 bits of the step, 40 bits: the first page from which on my contribution is final */
    _Atomic uint64_t
        early_void; /* step: what `early` said was no final sum; add up all of it once I have contributed */
    struct arena_said said[2]; /* by turns: a slow worker may still read the one before */
    /* leader, before world_op: the first rank that said something else than rank 0, and both; rank 0: none */
    uint32_t other_rank;
    struct arena_said first_said;
    struct arena_said other_said;
    /* of NCCL (op_nccl.c) */
    uint64_t nccl_name; /* of the communicator that I hold; 0: none */
    uint64_t nccl_new;  /* rank 0 */
    uint32_t nccl_flags;
    uint32_t nccl_mode; /* rank 0 */
    uint32_t nccl_ok;
    uint32_t pad6;
    char nccl_id[128]; /* rank 0 */
    /* of an update (update.c of comm) */
    uint64_t update_digest;        /* of what it does; written before `updated` */
    _Atomic uint64_t updated;      /* step: the slices homed here are */
    _Atomic uint64_t update_begun; /* turn: what was two turns before is being overwritten */
};
_Static_assert(sizeof(struct arena_words) <= ARENA_PAGE, "the words of a worker fit a page");
_Static_assert((SHOAL_SLOTS_MAX + 1) * ARENA_PAGE <= ARENA_MAP_AT, "all words lie before the maps");
_Static_assert(ARENA_MAP_AT + SHOAL_SLOTS_MAX * ARENA_PAGE <= ARENA_REGIONS_AT, "all maps lie before the regions");
_Static_assert((SHOAL_RANKS_MAX - ARENA_MAP_FIRST) * sizeof(struct arena_part) <= ARENA_PAGE, "the rest of a map fits a page");

struct arena_tuple {
    uint64_t id_low;
    uint64_t id_high;
    uint64_t worker_id;
    uint32_t samples; /* 0: absent */
    uint32_t pad;
    double values[]; /* metric_count */
};

/* Everything of a step except its vector: of one worker (contribution), of all (world, commit). */
struct arena_block {
    struct shoal_committed head;
    /* then touched bits (8-byte aligned), V tuples, copy bytes */
};

/* Offsets within a region, from the plan alone, hence equal in all workers. */
struct arena_layout {
    uint64_t vector_bytes; /* sum_elems * 4, in whole pages */
    uint64_t sum_elems;
    uint64_t copy_bytes;
    uint32_t virtual_workers;
    uint32_t metric_count;
    uint32_t touched_bytes;
    uint32_t partial_count;
    uint64_t tuple_bytes;
    uint64_t tuples_at; /* in a block */
    uint64_t copy_at;   /* in a block */
    uint64_t block_bytes;
    uint64_t contribution_at;
    uint64_t world_at;
    uint64_t commit_at;
    uint64_t copy_work_at;
    uint64_t partials_at;
    uint64_t work_at;
    uint64_t result_at;
    uint64_t stage_at;
    uint64_t scratch_at;
    uint64_t scratch_bytes;
    uint64_t update_at;
    uint32_t update_vectors; /* of one of its two places */
    uint64_t stride;
};

struct arena {
    int fd;
    uint32_t slot; /* mine */
    struct arena_head *head;
    struct arena_words *words[SHOAL_SLOTS_MAX]; /* all mapped */
    uint8_t *regions[SHOAL_SLOTS_MAX];          /* mapped when needed */
    struct arena_layout layout;
    uint8_t *map; /* vector_bytes, stable address */
    uint32_t map_count;
    struct arena_part map_parts[SHOAL_RANKS_MAX];
    struct arena_view {
        uint8_t *at; /* update_vectors * vector_bytes; NULL: none */
        uint64_t turn;
        uint32_t count;
        struct arena_part parts[SHOAL_RANKS_MAX];
    } views[2]; /* of the update, by the last bit of the turn */
};

enum shoal_err arena_layout_init(struct arena_layout *layout, const struct shoal_comm_plan *plan,
                                 struct shoal_msg *msg);
/* Map head and words of the memfd `fd` (which stays the caller's). */
enum shoal_err arena_open(struct arena *arena, int fd, uint32_t slot, struct shoal_msg *msg);
void arena_close(struct arena *arena);
/* Take a layout into use: grow the file, map my region, reserve the result map. */
enum shoal_err arena_use(struct arena *arena, const struct arena_layout *layout, struct shoal_msg *msg);
/* The region of a slot, mapped on first use. NULL: no memory. */
uint8_t *arena_region(struct arena *arena, uint32_t slot);
/* Compose the result map from `parts`, and say so in my words. */
enum shoal_err arena_compose(struct arena *arena, const struct arena_part *parts, uint32_t count,
                             struct shoal_msg *msg);

/* Show the slices of the update in the view of its turn, and drop what I wrote there myself. */
enum shoal_err arena_show_update(struct arena *arena, uint64_t turn, const struct arena_part *parts, uint32_t count,
                                 struct shoal_msg *msg);
/* The view becomes memory of the process, as it is, for good; the next one lies elsewhere. */
enum shoal_err arena_keep_update(struct arena *arena, struct arena_view *view, struct shoal_msg *msg);
/* The offset in a region of vector `i` of an update. */
static inline uint64_t arena_update_at(const struct arena_layout *layout, uint64_t turn, uint32_t i)
{
    return layout->update_at + ((turn & 1) * layout->update_vectors + i) * layout->vector_bytes;
}

/* Part `i` of the result map of the worker in `slot`. */
static inline struct arena_part *arena_map_part(const struct arena *arena, uint32_t slot, uint32_t i)
{
    uint8_t *page = (uint8_t *)arena->head + ARENA_MAP_AT + slot * (size_t)ARENA_PAGE;

    return i < ARENA_MAP_FIRST ? &arena->words[slot]->map[i]
                               : (struct arena_part *)(void *)page + (i - ARENA_MAP_FIRST);
}
/* Copy that map; returns its number of parts. */
uint32_t arena_said_map(const struct arena *arena, uint32_t slot, struct arena_part parts[SHOAL_RANKS_MAX]);

static inline uint8_t *arena_mine(const struct arena *arena) { return arena->regions[arena->slot]; }
static inline struct arena_words *arena_my_words(const struct arena *arena) { return arena->words[arena->slot]; }

static inline struct arena_block *arena_block_at(uint8_t *region, uint64_t at)
{
    return (struct arena_block *)(void *)(region + at);
}

static inline uint8_t *arena_touched(struct arena_block *block) { return (uint8_t *)(block + 1); }

static inline struct arena_tuple *arena_tuple(const struct arena_layout *layout, struct arena_block *block, uint32_t v)
{
    return (struct arena_tuple *)(void *)((uint8_t *)block + layout->tuples_at + v * layout->tuple_bytes);
}

static inline uint8_t *arena_copy(const struct arena_layout *layout, struct arena_block *block)
{
    return (uint8_t *)block + layout->copy_at;
}

static inline float *arena_partial(const struct arena_layout *layout, uint8_t *region, uint32_t buffer)
{
    return (float *)(void *)(region + layout->partials_at + buffer * layout->vector_bytes);
}

#endif
