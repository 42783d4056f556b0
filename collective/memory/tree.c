#include "tree.h"

#include <string.h>

#include "shoal/error.h"

#include "shoal/banned.h"

uint32_t tree_middle(uint32_t begin, uint32_t end)
{
    uint32_t half = 1;

    SHOAL_ASSERT(end - begin > 1);
    while (half * 2 < end - begin)
        half *= 2;
    return begin + half;
}

/* Level whose full node would begin here and reach at least to `end`. */
static uint32_t span_of(struct tree_node node)
{
    uint32_t span = 1;

    SHOAL_ASSERT(node.begin < node.end);
    while (span < node.end - node.begin)
        span *= 2;
    return span;
}

bool tree_is_node(struct tree_node node, uint32_t v_count)
{
    uint32_t span;

    SHOAL_ASSERT(v_count > 0);
    if (node.begin >= node.end || node.end > v_count)
        return false;
    span = span_of(node);
    if (node.begin % span != 0)
        return false;
    return node.end == node.begin + span || node.end == v_count;
}

/* The smallest node that holds `node` and more; false at the root. */
static bool tree_parent(struct tree_node node, uint32_t v_count, struct tree_node *parent)
{
    uint32_t span = span_of(node);

    SHOAL_ASSERT(node.begin < node.end && node.end <= v_count);
    if (node.begin == 0 && node.end == v_count)
        return false;
    do { /* nodes that only pass their left child on are skipped */
        span *= 2;
        parent->begin = node.begin / span * span;
        parent->end = parent->begin + span < v_count ? parent->begin + span : v_count;
    } while (parent->begin == node.begin && parent->end == node.end);
    return true;
}

uint32_t tree_buffers(uint32_t v_count)
{
    uint32_t log = 0;

    SHOAL_ASSERT(v_count <= SHOAL_VIRTUAL_MAX);
    while ((1u << log) < v_count)
        log++;
    return log < 2 ? 1 : 2 * log - 2;
}

uint32_t tree_cover(const uint8_t *held, uint32_t v_count, struct tree_node *nodes, uint32_t cap)
{
    uint32_t count = 0;
    uint32_t v = 0;

    SHOAL_ASSERT(v_count <= SHOAL_VIRTUAL_MAX);
    while (v < v_count) {
        struct tree_node node = { v, v + 1 };
        struct tree_node parent;
        uint32_t full = v + 1;

        if (!held[v]) {
            v++;
            continue;
        }
        while (full < v_count && held[full])
            full++;
        while (tree_parent(node, v_count, &parent) && parent.begin == v && parent.end <= full)
            node = parent;
        if (count == cap)
            return 0;
        nodes[count++] = node;
        v = node.end;
    }
    return count;
}

void tree_held_reset(struct tree_held *held, uint32_t v_count, uint32_t buffers)
{
    SHOAL_ASSERT(buffers <= TREE_NODES_MAX);
    SHOAL_ASSERT(v_count <= SHOAL_VIRTUAL_MAX);
    *held = (struct tree_held){ .v_count = v_count, .buffers = buffers };
}

static void held_remove(struct tree_held *held, uint32_t at)
{
    SHOAL_ASSERT(at < held->count);
    for (uint32_t i = at + 1; i < held->count; i++) {
        held->nodes[i - 1] = held->nodes[i];
        held->buffer[i - 1] = held->buffer[i];
    }
    held->count--;
}

void tree_held_keep(struct tree_held *held, uint32_t begin, uint32_t end)
{
    SHOAL_ASSERT(begin <= end);
    for (uint32_t i = held->count; i-- > 0;)
        if (held->nodes[i].begin < begin || held->nodes[i].end > end)
            held_remove(held, i);
}

uint32_t tree_held_missing(const struct tree_held *held, uint32_t begin, uint32_t end, uint32_t *v, uint32_t cap)
{
    uint32_t first = held->count > 0 ? held->nodes[0].begin : begin;
    uint32_t last = held->count > 0 ? held->nodes[held->count - 1].end : begin;
    uint32_t count = 0;

    SHOAL_ASSERT(begin <= end && end <= held->v_count);
    for (uint32_t i = last; i < end && count < cap; i++)
        v[count++] = i;
    for (uint32_t i = first; i > begin && count < cap; i--)
        v[count++] = i - 1;
    return count;
}

static bool buffer_free(const struct tree_held *held, uint8_t *buffer)
{
    uint32_t used = 0;

    SHOAL_ASSERT(held->buffers <= TREE_NODES_MAX);
    for (uint32_t i = 0; i < held->count; i++)
        used |= 1u << held->buffer[i];
    for (uint8_t b = 0; b < held->buffers; b++) {
        if (!(used >> b & 1)) {
            *buffer = b;
            return true;
        }
    }
    return false;
}

/* The neighbour in the list that completes the parent of node `at`; its index, or -1. */
static int sibling_of(const struct tree_held *held, uint32_t at, struct tree_node *parent)
{
    const struct tree_node *node = &held->nodes[at];

    SHOAL_ASSERT(at < held->count);
    if (!tree_parent(*node, held->v_count, parent))
        return -1;
    if (parent->begin == node->begin)
        return at + 1 < held->count && held->nodes[at + 1].begin == node->end && held->nodes[at + 1].end == parent->end
                   ? (int)at + 1
                   : -1;
    return at > 0 && held->nodes[at - 1].begin == parent->begin && held->nodes[at - 1].end == node->begin ? (int)at - 1
                                                                                                          : -1;
}

static uint32_t merge_up(struct tree_held *held, uint32_t at, struct tree_add *add, bool leaf_added)
{
    struct tree_node parent;
    int other = sibling_of(held, at, &parent);

    SHOAL_ASSERT(at < held->count);
    while (other >= 0) {
        uint32_t left = (uint32_t)other < at ? (uint32_t)other : at;

        if (leaf_added)
            add->merges[add->merge_count++] =
                (struct tree_merge){ .into = held->buffer[left], .from = held->buffer[left + 1] };
        else
            held->buffer[left] = held->buffer[(uint32_t)other]; /* the leaf itself is added to its sibling */
        leaf_added = true;
        held->nodes[left] = parent;
        held_remove(held, left + 1);
        at = left;
        other = sibling_of(held, at, &parent);
    }
    return at;
}

/* The place of `node` in the list; false: it is no node, something of it is held, or the list is full. */
static bool insert_node(struct tree_held *held, struct tree_node node, uint32_t *place)
{
    uint32_t at = 0;

    SHOAL_ASSERT(held->count <= TREE_NODES_MAX);
    while (at < held->count && held->nodes[at].end <= node.begin)
        at++;
    if (!tree_is_node(node, held->v_count) || (at < held->count && held->nodes[at].begin < node.end) ||
        held->count == TREE_NODES_MAX)
        return false;
    for (uint32_t i = held->count; i > at; i--) {
        held->nodes[i] = held->nodes[i - 1];
        held->buffer[i] = held->buffer[i - 1];
    }
    held->nodes[at] = node;
    held->buffer[at] = TREE_NODES_MAX; /* taken by nobody, so that it does not look used */
    held->count++;
    *place = at;
    return true;
}

bool tree_held_add_node(struct tree_held *held, struct tree_node node, struct tree_add *add)
{
    struct tree_node parent;
    uint32_t at;
    int other;

    *add = (struct tree_add){ 0 };
    if (!insert_node(held, node, &at))
        return false;
    other = sibling_of(held, at, &parent);
    if (other >= 0) {
        add->buffer = held->buffer[other];
        (void)merge_up(held, at, add, false);
        return true;
    }
    if (!buffer_free(held, &add->buffer)) {
        held_remove(held, at);
        return false;
    }
    held->buffer[at] = add->buffer;
    add->store = true;
    return true;
}

bool tree_held_add(struct tree_held *held, uint32_t v, struct tree_add *add)
{
    return v < held->v_count && tree_held_add_node(held, (struct tree_node){ v, v + 1 }, add);
}

bool tree_held_put(struct tree_held *held, struct tree_node node, struct tree_add *add)
{
    uint32_t at;

    SHOAL_ASSERT(held->buffers < TREE_NODES_MAX);
    if (!insert_node(held, node, &at))
        return false;
    held->buffer[at] = (uint8_t)held->buffers;
    *add = (struct tree_add){ .buffer = (uint8_t)held->buffers, .store = true };
    return true;
}

bool tree_held_merge(struct tree_held *held, struct tree_add *add)
{
    for (uint32_t i = 0; i < held->count; i++) {
        struct tree_node node = held->nodes[i];
        bool added;

        if (held->buffer[i] != held->buffers)
            continue;
        held_remove(held, i);
        added = tree_held_add_node(held, node, add);
        SHOAL_ASSERT(added); /* I2: it was the last of the order */
        return true;
    }
    return false;
}

struct compile {
    struct tree_program *program;
    const struct tree_node *inputs;
    uint32_t input_count;
    bool failed;
};

/* Operand that holds `target`; temporaries from `depth` on are free. */
static int16_t compile_node(struct compile *c, struct tree_node target, uint32_t depth)
{
    struct tree_program *p = c->program;
    struct tree_node left = { target.begin, 0 };
    struct tree_node right = { 0, target.end };
    struct tree_op op;

    SHOAL_ASSERT(target.begin < target.end);
    for (uint32_t low = 0, high = c->input_count; low < high;) {
        uint32_t middle = (low + high) / 2;

        if (c->inputs[middle].begin == target.begin) {
            if (c->inputs[middle].end == target.end)
                return (int16_t)middle;
            break;
        }
        if (c->inputs[middle].begin < target.begin)
            low = middle + 1;
        else
            high = middle;
    }
    if (target.end - target.begin < 2 || depth >= TREE_DEPTH_MAX) {
        c->failed = true;
        return 0;
    }
    left.end = right.begin = tree_middle(target.begin, target.end);
    op.left = compile_node(c, left, depth);
    op.right = compile_node(c, right, op.left < 0 ? depth + 1 : depth);
    op.into = (int16_t)(-1 - (int)depth);
    if (p->count == p->cap)
        c->failed = true;
    if (c->failed)
        return 0;
    p->ops[p->count++] = op;
    if (depth + 1 > p->temporaries)
        p->temporaries = depth + 1;
    return op.into;
}

bool tree_compile(struct tree_program *program, const struct tree_node *inputs, uint32_t input_count,
                  struct tree_node target)
{
    struct compile c = { .program = program, .inputs = inputs, .input_count = input_count };

    SHOAL_ASSERT(program->cap > 0);
    program->count = 0;
    program->temporaries = 0;
    program->only = compile_node(&c, target, 0);
    return !c.failed;
}
