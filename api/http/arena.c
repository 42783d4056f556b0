#include "arena.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/limits.h"

#include "shoal/banned.h"

struct arena_block {
    struct arena_block *next;
    size_t used;
    size_t cap;
    max_align_t bytes[];
};

#define ARENA_BLOCK_BYTES 4096u

void *arena_alloc(struct arena *arena, size_t len)
{
    struct arena_block *block = arena->blocks;
    size_t align = _Alignof(max_align_t);
    void *at;

    if (len > SHOAL_REQUEST_ARENA_MAX)
        return NULL;
    len = (len + align - 1) / align * align;
    if (block == NULL || len > block->cap - block->used) {
        size_t cap = len > ARENA_BLOCK_BYTES ? len : ARENA_BLOCK_BYTES;

        if (cap > SHOAL_REQUEST_ARENA_MAX - arena->total)
            return NULL;
        block = calloc(1, sizeof(*block) + cap);
        if (block == NULL)
            return NULL;
        block->cap = cap;
        block->next = arena->blocks;
        arena->blocks = block;
        arena->total += cap;
    }
    at = (char *)block->bytes + block->used;
    block->used += len;
    return at;
}

char *arena_copy(struct arena *arena, struct shoal_view view)
{
    char *text = view.len == SIZE_MAX ? NULL : arena_alloc(arena, view.len + 1);

    if (text != NULL && view.len > 0)
        memcpy(text, view.bytes, view.len);
    return text;
}

char *arena_text(struct arena *arena, const char *text) { return arena_copy(arena, shoal_view_text(text)); }

char *arena_printf(struct arena *arena, const char *format, ...)
{
    va_list args;
    char *text;
    int len;

    va_start(args, format);
    len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (len < 0)
        return NULL;
    text = arena_alloc(arena, (size_t)len + 1);
    if (text == NULL)
        return NULL;
    va_start(args, format);
    (void)vsnprintf(text, (size_t)len + 1, format, args);
    va_end(args);
    return text;
}

void arena_deinit(struct arena *arena)
{
    struct arena_block *next;

    for (struct arena_block *block = arena->blocks; block != NULL; block = next) {
        next = block->next;
        free(block);
    }
    *arena = (struct arena){ 0 };
}
