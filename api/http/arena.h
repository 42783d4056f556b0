/* Memory of one HTTP request: many small pieces, one release. */
#ifndef API_ARENA_H
#define API_ARENA_H

#include <stddef.h>

#include "shoal/buf.h"

struct arena_block;

struct arena {
    struct arena_block *blocks;
    size_t total; /* handed out and wasted, all blocks */
};

/* Zeroed and aligned for any type; NULL when memory is out or the arena would pass its bound. */
void *arena_alloc(struct arena *arena, size_t len);
/* A NUL-terminated copy. */
char *arena_copy(struct arena *arena, struct shoal_view view);
char *arena_text(struct arena *arena, const char *text);
__attribute__((format(printf, 2, 3))) char *arena_printf(struct arena *arena, const char *format, ...);
void arena_deinit(struct arena *arena);

#endif
