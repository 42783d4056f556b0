/* The pool: pages of 16 KiB, each cut into cells of one size; a page whose cells are all free serves any size again.
 *
 * Q1. A cell is in its hash chain exactly while its reference count is above 0.
 * Q2. A page is in its class's list exactly while it has a free cell and a used one.
 * Q3. A handle is (page + 1) * 256 + cell of a page that was taken; 0 is no handle.
 * Q4. Of a page, `used` of the first `fresh` cells are in use; the others of them are on its free list. */
#include "gossip_pool.h"

#include <stdlib.h>
#include <string.h>

#include "shoal/banned.h"

#define PAGE_BYTES 16384u
/* Cards and records of a mesh of some thousand nodes. */
#define POOL_BYTES (32 * SHOAL_MIB)
#define HEADS_PER_PAGE 32u
#define CLASSES 5u

static const uint16_t class_bytes[CLASSES] = { 160, 256, 384, 576, 960 };

struct cell {
    uint64_t hash;
    uint32_t next; /* in the hash chain, or in the page's free list */
    uint32_t refs;
    uint16_t len;
    uint8_t bytes[];
};

#define CELL_HEAD_BYTES 18u
_Static_assert(offsetof(struct cell, bytes) == CELL_HEAD_BYTES, "the head is what the classes count on");
_Static_assert(GOSSIP_POOL_STATEMENT_MAX + CELL_HEAD_BYTES <= 960, "the largest statement fits the largest cell");

struct page {
    uint32_t next, prev; /* of the class's list, or next free page; NONE ends */
    uint16_t used, fresh;
    uint16_t free_head; /* cell number + 1; 0: none */
    uint8_t class;
};

#define NONE UINT32_MAX

struct shoal_gossip_pool {
    uint8_t *arena;
    struct page *pages;
    uint32_t *heads;
    uint32_t pages_max, pages_fresh, page_free;
    uint32_t head_mask, count;
    uint32_t partial[CLASSES];
};

/* The hash goes over the wire in anti-entropy, so words are read the same way everywhere. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are hashed little-endian");

uint64_t gossip_hash(struct shoal_view view, uint64_t seed)
{
    uint64_t h = seed ^ (0x9e3779b97f4a7c15u * (view.len + 1));

    for (size_t at = 0; at < view.len; at += 8) {
        uint64_t word = 0;

        memcpy(&word, view.bytes + at, view.len - at < 8 ? view.len - at : 8);
        h = (h ^ word) * 0xbf58476d1ce4e5b9u;
        h ^= h >> 29;
    }
    h *= 0x94d049bb133111ebu;
    return h ^ (h >> 32);
}

struct shoal_gossip_pool *shoal_gossip_pool_create(size_t bytes_max)
{
    struct shoal_gossip_pool *pool = calloc(1, sizeof(*pool));
    size_t pages = (bytes_max == 0 ? POOL_BYTES : bytes_max) / PAGE_BYTES;
    size_t heads = 64;

    if (pool == NULL)
        return NULL;
    if (pages < CLASSES)
        pages = CLASSES;
    if (pages > UINT32_MAX / 256 - 1)
        pages = UINT32_MAX / 256 - 1;
    while (heads < pages * HEADS_PER_PAGE)
        heads *= 2;
    pool->arena = calloc(pages, PAGE_BYTES);
    pool->pages = calloc(pages, sizeof(*pool->pages));
    pool->heads = calloc(heads, sizeof(*pool->heads));
    if (pool->arena == NULL || pool->pages == NULL || pool->heads == NULL) {
        shoal_gossip_pool_destroy(pool);
        return NULL;
    }
    pool->pages_max = (uint32_t)pages;
    pool->page_free = NONE;
    pool->head_mask = (uint32_t)heads - 1;
    for (unsigned i = 0; i < CLASSES; i++)
        pool->partial[i] = NONE;
    return pool;
}

void shoal_gossip_pool_destroy(struct shoal_gossip_pool *pool)
{
    if (pool == NULL)
        return;
    free(pool->arena);
    free(pool->pages);
    free(pool->heads);
    free(pool);
}

/* A handle is (page + 1) * 256 + cell. */
static struct cell *cell_of(const struct shoal_gossip_pool *pool, uint32_t handle)
{
    uint32_t page = (handle >> 8) - 1;

    SHOAL_ASSERT(handle >= 256 && page < pool->pages_fresh); /* Q3 */
    SHOAL_ASSERT((handle & 255) < pool->pages[page].fresh);  /* Q4 */
    return (struct cell *)(void *)(pool->arena + (size_t)page * PAGE_BYTES +
                                   (size_t)(handle & 255) * class_bytes[pool->pages[page].class]);
}

static void list_take(struct shoal_gossip_pool *pool, uint32_t at)
{
    struct page *page = &pool->pages[at];

    SHOAL_ASSERT((page->prev == NONE) == (pool->partial[page->class] == at)); /* Q2 */
    if (page->prev != NONE)
        pool->pages[page->prev].next = page->next;
    else
        pool->partial[page->class] = page->next;
    if (page->next != NONE)
        pool->pages[page->next].prev = page->prev;
}

static void list_put(struct shoal_gossip_pool *pool, uint32_t at)
{
    struct page *page = &pool->pages[at];

    SHOAL_ASSERT(pool->partial[page->class] != at); /* Q2 */
    page->prev = NONE;
    page->next = pool->partial[page->class];
    if (page->next != NONE)
        pool->pages[page->next].prev = at;
    pool->partial[page->class] = at;
}

static bool page_is_full(const struct page *page)
{
    SHOAL_ASSERT(page->used <= page->fresh && page->fresh <= PAGE_BYTES / class_bytes[page->class]); /* Q4 */
    return page->used == PAGE_BYTES / class_bytes[page->class];
}

/* A page with room for a cell of `class`, in its list; NONE: the pool is full. */
static uint32_t page_for(struct shoal_gossip_pool *pool, uint8_t class)
{
    uint32_t at = pool->partial[class];

    SHOAL_ASSERT(at == NONE || !page_is_full(&pool->pages[at])); /* Q2 */
    if (at != NONE)
        return at;
    if (pool->page_free != NONE) {
        at = pool->page_free;
        pool->page_free = pool->pages[at].next;
    } else if (pool->pages_fresh < pool->pages_max) {
        at = pool->pages_fresh++;
    } else {
        return NONE;
    }
    pool->pages[at] = (struct page){ .class = class };
    list_put(pool, at);
    return at;
}

static uint32_t cell_take(struct shoal_gossip_pool *pool, uint8_t class)
{
    uint32_t at = page_for(pool, class), number;
    struct page *page;

    if (at == NONE)
        return 0;
    page = &pool->pages[at];
    SHOAL_ASSERT(page->class == class); /* Q2 */
    if (page->free_head != 0) {
        number = page->free_head - 1u;
        page->free_head = (uint16_t)cell_of(pool, (at + 1) << 8 | number)->next;
    } else {
        number = page->fresh++;
    }
    page->used++;
    if (page_is_full(page))
        list_take(pool, at);
    return (at + 1) << 8 | number;
}

static void cell_give(struct shoal_gossip_pool *pool, uint32_t handle)
{
    uint32_t at = (handle >> 8) - 1;
    struct page *page = &pool->pages[at];

    SHOAL_ASSERT(page->used > 0);                   /* Q4 */
    SHOAL_ASSERT(cell_of(pool, handle)->refs == 0); /* Q1 */
    if (page_is_full(page))
        list_put(pool, at);
    cell_of(pool, handle)->next = page->free_head;
    page->free_head = (uint16_t)((handle & 255) + 1);
    page->used--;
    if (page->used > 0)
        return;
    list_take(pool, at);
    page->next = pool->page_free;
    pool->page_free = at;
    SHOAL_ASSERT(pool->partial[page->class] != at); /* Q2: a page that is all free serves any class */
}

static uint32_t chain_find(const struct shoal_gossip_pool *pool, struct shoal_view view, uint64_t hash)
{
    uint32_t handle = pool->heads[hash & pool->head_mask];

    while (handle != 0) {
        const struct cell *cell = cell_of(pool, handle);

        SHOAL_ASSERT(cell->refs > 0); /* Q1 */
        if (cell->hash == hash && cell->len == view.len && memcmp(cell->bytes, view.bytes, view.len) == 0)
            return handle;
        handle = cell->next;
    }
    return 0;
}

uint32_t gossip_pool_find(const struct shoal_gossip_pool *pool, struct shoal_view view)
{
    return chain_find(pool, view, gossip_hash(view, 0));
}

uint32_t gossip_pool_intern(struct shoal_gossip_pool *pool, struct shoal_view view)
{
    uint64_t hash = gossip_hash(view, 0);
    uint32_t handle = chain_find(pool, view, hash);
    struct cell *cell;
    uint8_t class = 0;

    SHOAL_ASSERT(view.len > 0 && view.len <= GOSSIP_POOL_STATEMENT_MAX); /* hear_news refuses others */
    if (handle != 0) {
        SHOAL_ASSERT(cell_of(pool, handle)->refs < UINT32_MAX); /* Q1 */
        cell_of(pool, handle)->refs++;
        return handle;
    }
    while (class_bytes[class] < view.len + CELL_HEAD_BYTES)
        class ++;
    handle = cell_take(pool, class);
    if (handle == 0)
        return 0;
    cell = cell_of(pool, handle);
    cell->hash = hash;
    cell->refs = 1;
    cell->len = (uint16_t)view.len;
    memcpy(cell->bytes, view.bytes, view.len);
    cell->next = pool->heads[hash & pool->head_mask];
    pool->heads[hash & pool->head_mask] = handle;
    pool->count++;
    return handle;
}

void gossip_pool_ref(struct shoal_gossip_pool *pool, uint32_t handle)
{
    SHOAL_ASSERT(cell_of(pool, handle)->refs > 0); /* Q1 */
    cell_of(pool, handle)->refs++;
}

void gossip_pool_unref(struct shoal_gossip_pool *pool, uint32_t handle)
{
    struct cell *cell;
    uint32_t *link;

    if (handle == 0)
        return;
    cell = cell_of(pool, handle);
    SHOAL_ASSERT(cell->refs > 0);  /* Q1 */
    SHOAL_ASSERT(pool->count > 0); /* Q1 */
    if (--cell->refs > 0)
        return;
    link = &pool->heads[cell->hash & pool->head_mask];
    while (*link != handle) {
        SHOAL_ASSERT(*link != 0); /* Q1 */
        link = &cell_of(pool, *link)->next;
    }
    *link = cell->next;
    pool->count--;
    cell_give(pool, handle);
}

struct shoal_view gossip_pool_view(const struct shoal_gossip_pool *pool, uint32_t handle)
{
    const struct cell *cell = cell_of(pool, handle);

    SHOAL_ASSERT(cell->refs > 0); /* Q1: nobody reads what was released */
    return shoal_view_of(cell->bytes, cell->len);
}

uint64_t gossip_pool_hash(const struct shoal_gossip_pool *pool, uint32_t handle)
{
    const struct cell *cell = cell_of(pool, handle);

    SHOAL_ASSERT(cell->refs > 0); /* Q1 */
    return cell->hash;
}

void gossip_pool_memory(struct shoal_memory *memory)
{
    SHOAL_ASSERT(POOL_BYTES % PAGE_BYTES == 0);
    shoal_memory_add(memory, "gossip: pages of signed statements", POOL_BYTES / PAGE_BYTES,
                     PAGE_BYTES + sizeof(struct page) + HEADS_PER_PAGE * sizeof(uint32_t));
}
