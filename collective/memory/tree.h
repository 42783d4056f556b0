/* The canonical tree of a sum over mini-batches v = 0 .. V-1, and the partial sums that a worker keeps of it.
 *
 *   V = 6:            [0,6)                 node (level l, index i) covers [i * 2^l, min((i+1) * 2^l, V));
 *               [0,4)       [4,6)           its value is left + right, or just left where right is empty.
 *            [0,2) [2,4)    [4,6)
 *            0  1  2  3     4  5
 *
 * I1. A node's value depends on V and its leaves alone, never on who computed which leaf: the result has the same bits
 *     for every placement (EasyScale, SC 2023, section 4; reference/data-plane 6).
 * I2. The held partial sums are the maximal nodes of a contiguous range; at most max(1, 2 * ceil(log2 V) - 2).
 *     Contiguity is kept by computing upwards above the held range, downwards below it.
 *
 * Pure: no memory is taken here, no values are touched. */
#ifndef COLLECTIVE_TREE_H
#define COLLECTIVE_TREE_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/limits.h"

/* 2 * log2(4096) - 2, and one for the leaf that is being merged. */
#define TREE_NODES_MAX 24
#define TREE_DEPTH_MAX 14

struct tree_node {
    uint32_t begin;
    uint32_t end;
};

/* Middle of a node of more than one leaf: where its right child begins. */
uint32_t tree_middle(uint32_t begin, uint32_t end);
/* Is [begin, end) a node of the tree over v_count leaves? */
bool tree_is_node(struct tree_node node, uint32_t v_count);
/* Partial sums that a worker may have to keep. */
uint32_t tree_buffers(uint32_t v_count);
/* The maximal nodes within the v that `held[v]` marks (v_count bytes), ascending; their number, at most `cap`, else 0.
 */
uint32_t tree_cover(const uint8_t *held, uint32_t v_count, struct tree_node *nodes, uint32_t cap);

/* The partial sums of one worker: a set of nodes, each in a buffer. */
struct tree_held {
    uint32_t v_count;
    uint32_t buffers; /* there are */
    uint32_t count;
    struct tree_node nodes[TREE_NODES_MAX]; /* ascending */
    uint8_t buffer[TREE_NODES_MAX];
};

void tree_held_reset(struct tree_held *held, uint32_t v_count, uint32_t buffers);
/* Drop every node that does not lie within [begin, end). */
void tree_held_keep(struct tree_held *held, uint32_t begin, uint32_t end);
/* The v of [begin, end) that are not held, in the order that keeps I2. */
uint32_t tree_held_missing(const struct tree_held *held, uint32_t begin, uint32_t end, uint32_t *v, uint32_t cap);

/* The changes that the leaf v makes to the buffers, in this order: store or add the leaf, then merge pairs. */
struct tree_merge {
    uint8_t into;
    uint8_t from;
};
struct tree_add {
    uint8_t buffer;
    bool store; /* the leaf is written, not added */
    uint32_t merge_count;
    struct tree_merge merges[TREE_DEPTH_MAX];
};
/* false: v is held already, or no buffer is free (I2 was broken by the order of calls). */
bool tree_held_add(struct tree_held *held, uint32_t v, struct tree_add *add);
/* The same for a node whose leaves were computed as one. false: it is none of the tree, too. */
bool tree_held_add_node(struct tree_held *held, struct tree_node node, struct tree_add *add);
/* Keep the node by itself in the buffer beyond the others: whoever adds up the step adds it, too. Until it is merged
 * (tree_held_merge) nothing else can be added. false: held already. */
bool tree_held_put(struct tree_held *held, struct tree_node node, struct tree_add *add);
/* Is there such a node? Then it is no longer by itself, and `add` says how its buffer gets into the others. */
bool tree_held_merge(struct tree_held *held, struct tree_add *add);

/* A sum as a list of additions on chunks. Operand: >= 0 an input, < 0 the temporary -1 - x. The last one writes the
 * result (`into` is ignored). No addition: the result is `only`. */
struct tree_op {
    int16_t into;
    int16_t left;
    int16_t right;
};
struct tree_program {
    uint32_t count;
    uint32_t temporaries;
    int16_t only;
    struct tree_op *ops; /* caller's memory */
    uint32_t cap;
};
/* Add up `target` from `inputs` (ascending, disjoint nodes that cover it). false: they do not, or `cap` is too small.
 */
bool tree_compile(struct tree_program *program, const struct tree_node *inputs, uint32_t input_count,
                  struct tree_node target);

#endif
