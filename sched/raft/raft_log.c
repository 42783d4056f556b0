/* The log of a group in memory: a ring of counted pointers. It grows only when its owner says so, never in a step.
 *
 *     base (index, term, configuration) | base + 1 | base + 2 | ... | last        forgotten before, held after
 *
 * L1. The log is contiguous: the entry at place i has index base + 1 + i, and only the last one is followed by another.
 * L2. Terms begin at 1, and never fall along the log.
 * L3. An entry lives as long as somebody counts a reference to it, and does not change once it has an index.
 * L4. The ring's size is a power of two, and no more entries than that are held; a full ring takes nothing.
 * L5. `bytes` is the sum of what the held entries hold. */
#include "shoal/raft.h"
#include "raft_state.h"

#include "shoal/banned.h"

struct shoal_entry *shoal_entry_create(enum shoal_entry_kind kind, struct shoal_view bytes)
{
    return shoal_entry_create_at(0, 0, kind, bytes);
}

struct shoal_entry *shoal_entry_create_at(uint64_t term, uint64_t index, enum shoal_entry_kind kind,
                                          struct shoal_view bytes)
{
    struct shoal_entry *entry;

    if (bytes.len > SHOAL_ENTRY_BYTES_MAX)
        return NULL;
    entry = malloc(sizeof(*entry) + bytes.len);
    if (entry == NULL)
        return NULL;
    *entry = (struct shoal_entry){ .term = term, .index = index, .refs = 1, .kind = kind };
    entry->len = (uint32_t)bytes.len;
    entry->cap = (uint32_t)bytes.len;
    if (bytes.len > 0)
        memcpy(entry->bytes, bytes.bytes, bytes.len);
    return entry;
}

struct shoal_entry *shoal_entry_ref(struct shoal_entry *entry)
{
    SHOAL_ASSERT(entry->refs > 0);          /* L3 */
    SHOAL_ASSERT(entry->refs < UINT32_MAX); /* L3 */
    entry->refs++;
    return entry;
}

void shoal_entry_unref(struct shoal_entry *entry)
{
    if (entry == NULL)
        return;
    SHOAL_ASSERT(entry->refs > 0);          /* L3 */
    SHOAL_ASSERT(entry->len <= entry->cap); /* L3: never written behind its end */
    if (--entry->refs == 0)
        free(entry);
}

static uint32_t slot_of(const struct raft_log *log, uint64_t index)
{
    SHOAL_ASSERT(index > log->base.index);             /* L1 */
    SHOAL_ASSERT(index - log->base.index <= log->cap); /* L4 */
    return (log->head + (uint32_t)(index - log->base.index - 1)) & (log->cap - 1);
}

uint64_t raft_log_last(const struct raft_log *log)
{
    SHOAL_ASSERT(log->base.index <= UINT64_MAX - log->count); /* L1 */
    return log->base.index + log->count;
}

struct shoal_entry *raft_log_find(const struct raft_log *log, uint64_t index)
{
    struct shoal_entry *entry;

    if (index <= log->base.index || index > raft_log_last(log))
        return NULL;
    entry = log->ring[slot_of(log, index)];
    SHOAL_ASSERT(entry->index == index); /* L1 */
    SHOAL_ASSERT(entry->refs > 0);       /* L3 */
    return entry;
}

uint64_t raft_log_term(const struct raft_log *log, uint64_t index)
{
    const struct shoal_entry *entry = raft_log_find(log, index);

    if (entry != NULL) {
        SHOAL_ASSERT(entry->term >= log->base.term); /* L2 */
        return entry->term;
    }
    return index == log->base.index ? log->base.term : 0;
}

bool raft_log_full(const struct raft_log *log)
{
    SHOAL_ASSERT(log->count <= log->cap); /* L4 */
    return log->count == log->cap;
}

void raft_log_take(struct raft_log *log, struct shoal_entry *entry)
{
    SHOAL_ASSERT(!raft_log_full(log));                                   /* L4 */
    SHOAL_ASSERT(entry->index == raft_log_last(log) + 1);                /* L1 */
    SHOAL_ASSERT(entry->term > 0);                                       /* L2 */
    SHOAL_ASSERT(entry->term >= raft_log_term(log, raft_log_last(log))); /* L2 */
    log->count++;
    log->ring[slot_of(log, entry->index)] = entry;
    log->bytes += entry->len;
}

void raft_log_truncate(struct raft_log *log, uint64_t from)
{
    SHOAL_ASSERT(from > log->base.index); /* L1: what is forgotten cannot be dropped again */
    while (raft_log_last(log) >= from) {
        struct shoal_entry *entry = log->ring[slot_of(log, raft_log_last(log))];

        SHOAL_ASSERT(log->bytes >= entry->len); /* L5 */
        log->bytes -= entry->len;
        log->count--;
        shoal_entry_unref(entry);
    }
    SHOAL_ASSERT(log->count > 0 || log->bytes == 0); /* L5 */
}

void raft_log_forget(struct raft_log *log, uint64_t upto, const struct shoal_raft_config *config)
{
    SHOAL_ASSERT(upto <= raft_log_last(log)); /* L1 */
    while (log->base.index < upto) {
        struct shoal_entry *entry = log->ring[log->head];

        SHOAL_ASSERT(entry->index == log->base.index + 1); /* L1 */
        SHOAL_ASSERT(entry->term >= log->base.term);       /* L2 */
        log->base.index = entry->index;
        log->base.term = entry->term;
        log->bytes -= entry->len;
        log->head = (log->head + 1) & (log->cap - 1);
        log->count--;
        shoal_entry_unref(entry);
    }
    SHOAL_ASSERT(shoal_raft_config_valid(config)); /* checked before it entered the log */
    log->base.config = *config;
}

void raft_log_reset(struct raft_log *log, const struct shoal_raft_snapshot *base)
{
    if (log->count > 0)
        raft_log_truncate(log, log->base.index + 1);
    SHOAL_ASSERT((base->index == 0) == (base->term == 0)); /* L2: 0 before the first entry, as a witness has it */
    SHOAL_ASSERT(log->count == 0);                         /* L1 */
    log->head = 0;
    log->base = *base;
}

enum shoal_err raft_log_grow(struct raft_log *log, uint32_t cap)
{
    struct shoal_entry **ring = calloc(cap, sizeof(*ring));

    if (ring == NULL)
        return SHOAL_ERR_FULL;
    SHOAL_ASSERT(cap > log->count && cap > log->cap); /* L4 */
    SHOAL_ASSERT((cap & (cap - 1)) == 0);             /* L4 */
    for (uint32_t i = 0; i < log->count; i++)
        ring[i] = log->ring[(log->head + i) & (log->cap - 1)];
    free(log->ring);
    log->ring = ring;
    log->cap = cap;
    log->head = 0;
    return SHOAL_OK;
}

void raft_log_deinit(struct raft_log *log)
{
    if (log->count > 0)
        raft_log_truncate(log, log->base.index + 1);
    SHOAL_ASSERT(log->bytes == 0); /* L5 */
    free(log->ring);
    log->ring = NULL;
}

uint64_t raft_log_fit(const struct raft_log *log, uint64_t index, uint64_t term)
{
    uint64_t low = log->base.index;
    uint64_t high = index < raft_log_last(log) ? index : raft_log_last(log);

    /* Terms never fall along a log: the answer is found by halving. */
    while (low < high) {
        uint64_t middle = low + (high - low + 1) / 2;

        if (raft_log_term(log, middle) <= term)
            low = middle;
        else
            high = middle - 1;
    }
    SHOAL_ASSERT(low == log->base.index || raft_log_term(log, low) <= term); /* L2 */
    SHOAL_ASSERT(low <= raft_log_last(log));                                 /* L1 */
    return low;
}

size_t raft_log_span_bytes(const struct raft_log *log, uint64_t first, uint64_t last)
{
    size_t bytes = 0;

    SHOAL_ASSERT(last <= raft_log_last(log)); /* L1 */
    for (uint64_t index = first; index <= last; index++) {
        const struct shoal_entry *entry = raft_log_find(log, index);

        if (entry != NULL)
            bytes += entry->len;
    }
    SHOAL_ASSERT(bytes <= log->bytes); /* L5 */
    return bytes;
}

void raft_log_check(const struct raft_log *log)
{
    uint64_t term = log->base.term;
    size_t bytes = 0;

    for (uint64_t index = log->base.index + 1; index <= raft_log_last(log); index++) {
        const struct shoal_entry *entry = raft_log_find(log, index);

        SHOAL_ASSERT(entry != NULL);       /* L1 */
        SHOAL_ASSERT(entry->term >= term); /* L2 */
        term = entry->term;
        bytes += entry->len;
    }
    SHOAL_ASSERT(bytes == log->bytes); /* L5 */
}
