#include "arena.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tree.h"

#include "shoal/collective_update.h"

#include "shoal/banned.h"

/* The vector may be a quarter of the address space of a worker's region; beyond that sizes are surely wrong. */
#define ELEMS_MAX (1ull << 36)

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    SHOAL_ASSERT(unit > 0);
    return (value + unit - 1) / unit * unit;
}

static uint64_t lay(uint64_t *at, uint64_t bytes)
{
    uint64_t begin = *at;

    SHOAL_ASSERT(*at % ARENA_PAGE == 0);
    *at = round_up(begin + bytes, ARENA_PAGE);
    return begin;
}

enum shoal_err arena_layout_init(struct arena_layout *layout, const struct shoal_comm_plan *plan, struct shoal_msg *msg)
{
    struct arena_layout l = { 0 };
    uint64_t at = 0;

    if (plan->virtual_workers == 0 || plan->virtual_workers > SHOAL_VIRTUAL_MAX)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "%u mini-batches a step: the sync interval must be 1 to %u",
                          plan->virtual_workers, SHOAL_VIRTUAL_MAX);
    if (plan->sum_elems > ELEMS_MAX || plan->copy_bytes > ELEMS_MAX || plan->scratch_bytes > ELEMS_MAX)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "a model of %llu elements is beyond the limit of %llu",
                          (unsigned long long)plan->sum_elems, (unsigned long long)ELEMS_MAX);
    if (plan->update_vectors > SHOAL_UPDATE_VECTORS)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "an update of %u vectors: at most %u", plan->update_vectors,
                          SHOAL_UPDATE_VECTORS);
    l.sum_elems = plan->sum_elems;
    l.copy_bytes = plan->copy_bytes;
    l.virtual_workers = plan->virtual_workers;
    l.metric_count = plan->metric_count;
    l.vector_bytes = round_up(plan->sum_elems * sizeof(float), ARENA_PAGE);
    l.partial_count = tree_buffers(plan->virtual_workers);
    l.touched_bytes = (uint32_t)round_up(((uint64_t)plan->param_count + 7) / 8, 8);
    l.tuple_bytes = sizeof(struct arena_tuple) + sizeof(double) * plan->metric_count;
    l.tuples_at = sizeof(struct arena_block) + l.touched_bytes;
    l.copy_at = round_up(l.tuples_at + l.tuple_bytes * plan->virtual_workers, 64);
    l.block_bytes = l.copy_at + plan->copy_bytes;
    l.contribution_at = lay(&at, l.block_bytes);
    l.world_at = lay(&at, l.block_bytes);
    l.commit_at = lay(&at, l.block_bytes);
    l.copy_work_at = lay(&at, plan->copy_bytes);
    l.partials_at = lay(&at, l.vector_bytes * l.partial_count);
    l.work_at = lay(&at, l.vector_bytes);
    l.result_at = lay(&at, l.vector_bytes);
    l.stage_at = lay(&at, 2 * (uint64_t)ARENA_STAGE_BYTES);
    l.scratch_bytes = round_up(plan->scratch_bytes == 0 ? SHOAL_MIB : plan->scratch_bytes, ARENA_PAGE);
    l.scratch_at = lay(&at, l.scratch_bytes);
    l.update_vectors = plan->update_vectors;
    l.update_at = lay(&at, 2 * l.vector_bytes * l.update_vectors);
    l.stride = at;
    *layout = l;
    return SHOAL_OK;
}

static void *map_as(const struct arena *arena, int kind, void *want, uint64_t at, uint64_t bytes)
{
    int flags = want == NULL ? kind : kind | MAP_FIXED;
    void *map = mmap(want, bytes, PROT_READ | PROT_WRITE, flags, arena->fd, (off_t)at);

    SHOAL_ASSERT(at % ARENA_PAGE == 0);
    if (map == MAP_FAILED)
        return NULL;
    /* Data loaders are forked from us; core dumps would hold every worker's gradients. */
    (void)madvise(map, bytes, MADV_DONTFORK);
    (void)madvise(map, bytes, MADV_DONTDUMP);
    return map;
}

static void *map_at(const struct arena *arena, void *want, uint64_t at, uint64_t bytes)
{
    return map_as(arena, MAP_SHARED, want, at, bytes);
}

/* Writing at the end grows the file and, unlike ftruncate, can never shrink what another worker has grown. */
static enum shoal_err grow(const struct arena *arena, uint64_t bytes, struct shoal_msg *msg)
{
    struct stat st;
    const char zero = 0;

    SHOAL_ASSERT(bytes > 0);
    if (fstat(arena->fd, &st) != 0)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "arena descriptor %d: %s", arena->fd, strerror(errno));
    if ((uint64_t)st.st_size >= bytes)
        return SHOAL_OK;
    if (pwrite(arena->fd, &zero, 1, (off_t)(bytes - 1)) != 1)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "cannot grow the arena to %llu MiB: %s; raise the job's memory limit",
                          (unsigned long long)(bytes >> 20), strerror(errno));
    return SHOAL_OK;
}

enum shoal_err arena_open(struct arena *arena, int fd, uint32_t slot, struct shoal_msg *msg)
{
    enum shoal_err err;
    uint64_t none = 0;
    uint8_t *map;

    SHOAL_ASSERT(fd >= 0);
    *arena = (struct arena){ .fd = fd, .slot = slot };
    if (slot >= SHOAL_SLOTS_MAX)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "slot %u: a host has at most %u", slot, SHOAL_SLOTS_MAX);
    err = grow(arena, ARENA_REGIONS_AT, msg);
    if (err != SHOAL_OK)
        return err;
    map = map_at(arena, NULL, 0, ARENA_REGIONS_AT);
    if (map == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "cannot map the arena: %s", strerror(errno));
    arena->head = (struct arena_head *)(void *)map;
    for (uint32_t i = 0; i < SHOAL_SLOTS_MAX; i++)
        arena->words[i] = (struct arena_words *)(void *)(map + (i + 1) * (size_t)ARENA_PAGE);
    if (atomic_compare_exchange_strong(&arena->head->magic, &none, ARENA_MAGIC)) {
        arena->head->version = ARENA_VERSION;
        arena->head->oldest = ARENA_VERSION;
    } else if (none != ARENA_MAGIC || arena->head->oldest > ARENA_VERSION) {
        arena_close(arena);
        return shoal_fail(msg, SHOAL_ERR_UNSUPPORTED, "the arena is of another or a newer version of libshoal");
    }
    return SHOAL_OK;
}

static void unmap_regions(struct arena *arena)
{
    SHOAL_ASSERT(arena->layout.stride % ARENA_PAGE == 0);
    for (uint32_t i = 0; i < SHOAL_SLOTS_MAX; i++) {
        if (arena->regions[i] != NULL)
            (void)munmap(arena->regions[i], arena->layout.stride);
        arena->regions[i] = NULL;
    }
    if (arena->map != NULL)
        (void)munmap(arena->map, arena->layout.vector_bytes);
    arena->map = NULL;
    arena->map_count = 0;
    for (int i = 0; i < 2; i++) {
        if (arena->views[i].at != NULL)
            (void)munmap(arena->views[i].at, arena->layout.update_vectors * arena->layout.vector_bytes);
        arena->views[i] = (struct arena_view){ 0 };
    }
}

void arena_close(struct arena *arena)
{
    unmap_regions(arena);
    if (arena->head != NULL)
        (void)munmap(arena->head, ARENA_REGIONS_AT);
    *arena = (struct arena){ .fd = -1 };
}

static uint8_t *reserve(uint64_t bytes)
{
    void *reserved = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    SHOAL_ASSERT(bytes > 0);
    return reserved == MAP_FAILED ? NULL : reserved;
}

enum shoal_err arena_use(struct arena *arena, const struct arena_layout *layout, struct shoal_msg *msg)
{
    enum shoal_err err = grow(arena, ARENA_REGIONS_AT + layout->stride * (arena->slot + 1), msg);
    struct arena_part whole = { 0, layout->vector_bytes, arena->slot, 0 };
    uint64_t update_bytes = layout->update_vectors * layout->vector_bytes;

    SHOAL_ASSERT(layout->stride > 0 && layout->stride % ARENA_PAGE == 0);
    if (err != SHOAL_OK)
        return err;
    unmap_regions(arena);
    arena->layout = *layout;
    if (arena_region(arena, arena->slot) == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "cannot map %llu MiB of the arena",
                          (unsigned long long)(layout->stride >> 20));
    arena_my_words(arena)->stride = layout->stride;
    if (layout->vector_bytes == 0)
        return SHOAL_OK;
    arena->map = reserve(layout->vector_bytes);
    for (int i = 0; i < 2 && update_bytes > 0; i++)
        arena->views[i].at = reserve(update_bytes);
    if (arena->map == NULL || (update_bytes > 0 && (arena->views[0].at == NULL || arena->views[1].at == NULL)))
        return shoal_fail(msg, SHOAL_ERR_FULL, "no address space for a result of %llu MiB",
                          (unsigned long long)(layout->vector_bytes >> 20));
    return arena_compose(arena, &whole, 1, msg);
}

uint8_t *arena_region(struct arena *arena, uint32_t slot)
{
    SHOAL_ASSERT(slot < SHOAL_SLOTS_MAX);
    if (arena->regions[slot] == NULL) {
        uint64_t at = ARENA_REGIONS_AT + slot * arena->layout.stride;

        if (grow(arena, at + arena->layout.stride, NULL) != SHOAL_OK)
            return NULL;
        arena->regions[slot] = map_at(arena, NULL, at, arena->layout.stride);
    }
    return arena->regions[slot];
}

static bool same_parts(const struct arena *arena, const struct arena_part *parts, uint32_t count)
{
    SHOAL_ASSERT(arena->map_count <= SHOAL_RANKS_MAX);
    if (count != arena->map_count)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (parts[i].begin != arena->map_parts[i].begin || parts[i].end != arena->map_parts[i].end ||
            parts[i].slot != arena->map_parts[i].slot)
            return false;
    return true;
}

uint32_t arena_said_map(const struct arena *arena, uint32_t slot, struct arena_part parts[SHOAL_RANKS_MAX])
{
    uint32_t count = arena->words[slot]->map_count;

    count = count < SHOAL_RANKS_MAX ? count : SHOAL_RANKS_MAX;
    for (uint32_t i = 0; i < count; i++)
        parts[i] = *arena_map_part(arena, slot, i);
    return count;
}

enum shoal_err arena_compose(struct arena *arena, const struct arena_part *parts, uint32_t count, struct shoal_msg *msg)
{
    struct arena_words *words = arena_my_words(arena);

    SHOAL_ASSERT(count <= SHOAL_RANKS_MAX);
    SHOAL_ASSERT(arena->map != NULL || count == 0);
    if (same_parts(arena, parts, count))
        return SHOAL_OK;
    words->map_count = 0;
    arena->map_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t at =
            ARENA_REGIONS_AT + parts[i].slot * arena->layout.stride + arena->layout.result_at + parts[i].begin;
        uint64_t bytes = parts[i].end - parts[i].begin;

        SHOAL_ASSERT(parts[i].begin % ARENA_PAGE == 0 && parts[i].end % ARENA_PAGE == 0 && bytes > 0);
        if (map_at(arena, arena->map + parts[i].begin, at, bytes) == NULL)
            return shoal_fail(msg, SHOAL_ERR_FULL, "cannot map a slice of the result: %s", strerror(errno));
        arena->map_parts[i] = parts[i];
        *arena_map_part(arena, arena->slot, i) = parts[i];
    }
    arena->map_count = count;
    words->map_count = count;
    return SHOAL_OK;
}

/* ---- the views of an update ---- */

#define PAGEMAP_SWAPPED (1ull << 62)
#define PAGEMAP_PRESENT (1ull << 63)
#define PAGEMAP_OF_FILE (1ull << 61)
#define PAGES_A_READ 512u

/* Pages that this process wrote to are its own from then on, and show nothing of the file any more: give them back. Where nobody
 * may look which these are (a container without pagemap), all are given back, and come from the file at their next use. */
static enum shoal_err drop_written(const uint8_t *at, uint64_t bytes, struct shoal_msg *msg)
{
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    uint64_t entries[PAGES_A_READ];
    uint64_t pages = bytes / ARENA_PAGE;
    uint64_t first = (uint64_t)(uintptr_t)at / ARENA_PAGE;
    bool read = true;

    if (fd < 0)
        read = madvise((void *)(uintptr_t)(first * ARENA_PAGE), pages * ARENA_PAGE, MADV_DONTNEED) == 0;
    for (uint64_t done = 0; fd >= 0 && done < pages && read; done += PAGES_A_READ) {
        uint64_t count = pages - done < PAGES_A_READ ? pages - done : PAGES_A_READ;

        read = pread(fd, entries, count * 8, (off_t)((first + done) * 8)) == (ssize_t)(count * 8);
        for (uint64_t i = 0; i < count && read; i++)
            if ((entries[i] & (PAGEMAP_PRESENT | PAGEMAP_SWAPPED)) != 0 && (entries[i] & PAGEMAP_OF_FILE) == 0)
                read = madvise((void *)(uintptr_t)((first + done + i) * ARENA_PAGE), ARENA_PAGE, MADV_DONTNEED) == 0;
    }
    if (fd >= 0)
        (void)close(fd);
    return read ? SHOAL_OK : shoal_fail(msg, SHOAL_ERR_INVALID, "cannot give back pages that were written: %s", strerror(errno));
}

static bool same_view(const struct arena_view *view, const struct arena_part *parts, uint32_t count)
{
    bool same = view->count == count;

    SHOAL_ASSERT(count <= SHOAL_RANKS_MAX);
    for (uint32_t i = 0; i < count && same; i++)
        same = view->parts[i].begin == parts[i].begin && view->parts[i].end == parts[i].end &&
               view->parts[i].slot == parts[i].slot;
    return same;
}

enum shoal_err arena_show_update(struct arena *arena, uint64_t turn, const struct arena_part *parts, uint32_t count,
                                 struct shoal_msg *msg)
{
    const struct arena_layout *layout = &arena->layout;
    struct arena_view *view = &arena->views[turn & 1];

    SHOAL_ASSERT(view->at != NULL);
    view->turn = turn;
    if (same_view(view, parts, count))
        return drop_written(view->at, layout->update_vectors * layout->vector_bytes, msg);
    view->count = 0;
    for (uint32_t i = 0; i < count * layout->update_vectors; i++) {
        const struct arena_part *part = &parts[i / layout->update_vectors];
        uint32_t vector = i % layout->update_vectors;
        uint64_t at = ARENA_REGIONS_AT + part->slot * layout->stride + arena_update_at(layout, turn, vector) + part->begin;

        if (map_as(arena, MAP_PRIVATE, view->at + vector * layout->vector_bytes + part->begin, at,
                   part->end - part->begin) == NULL)
            return shoal_fail(msg, SHOAL_ERR_FULL, "cannot map a slice of the update: %s", strerror(errno));
    }
    memcpy(view->parts, parts, count * sizeof(*parts));
    view->count = count;
    return SHOAL_OK;
}

enum shoal_err arena_keep_update(struct arena *arena, struct arena_view *view, struct shoal_msg *msg)
{
    uint64_t bytes = arena->layout.update_vectors * arena->layout.vector_bytes;
    uint8_t *next = view->at == NULL || view->count == 0 ? NULL : reserve(bytes);
    void *copy = next == NULL ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (copy == MAP_FAILED)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for %llu MiB of weights and state",
                          (unsigned long long)(bytes >> 20));
    memcpy(copy, view->at, bytes);
    if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, view->at) == MAP_FAILED)
        return shoal_fail(msg, SHOAL_ERR_FULL, "cannot keep weights in place: %s", strerror(errno));
    *view = (struct arena_view){ .at = next };
    return SHOAL_OK;
}
