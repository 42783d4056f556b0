/* The places of each group's live entries in the store's log, and its hard row. In memory; rebuilt by one forward scan.
 * Pure.
 *
 * A span is one frame, or the frames of one long entry. Spans of a group are ordered by index and do not overlap;
 * outside a scan they follow each other without a gap, from behind the snapshot to the last entry. */
#ifndef NODE_STORE_INDEX_H
#define NODE_STORE_INDEX_H

#include "shoal/store.h"

#include "store_frame.h"

struct span {
    uint64_t first; /* index; may lie inside the frame, when its beginning is covered by the snapshot */
    uint64_t seq;   /* of its first frame in the log */
    uint32_t count; /* entries; may end before the frame, when its end was truncated */
    uint32_t frames;
};

struct snapshot_row {
    uint64_t index, term;
    uint64_t generation; /* 0: none */
    uint32_t bytes;
    uint32_t crc;
};

struct group {
    struct group *next;
    struct group *long_next, *long_before; /* in the list of those with spans */
    bool is_long;
    struct shoal_job_id id;
    bool has_row;
    uint64_t term;
    struct shoal_node_id vote_node;
    struct shoal_store_id vote_store;
    uint8_t *config; /* owned, of its very length: most groups sleep, and what they say is short */
    uint16_t config_len;
    struct snapshot_row snapshot;
    struct span *spans; /* spans[head] is the first */
    size_t head, len, cap;
    uint64_t oldest_seq; /* of its spans; UINT64_MAX: none */
    bool oldest_known;
};

/* The table of buckets doubles when it holds as many groups as buckets. */
#define INDEX_BUCKETS_MIN 1024u
struct store_index {
    struct group **buckets; /* a power of two; NULL: no group yet */
    size_t bucket_count;
    struct group *first_long;         /* groups with spans: those alone hold places in the log */
    uint64_t groups, entries, frames; /* live */
};

struct group *store_index_find(const struct store_index *index, struct shoal_job_id id);
/* FULL: no memory. */
SHOAL_MUST_CHECK enum shoal_err store_index_make(struct store_index *index, struct shoal_job_id id,
                                                 struct group **group);
void store_index_remove(struct store_index *index, struct shoal_job_id id);
void store_index_deinit(struct store_index *index);

static inline size_t group_spans(const struct group *group) { return group->len - group->head; }
static inline const struct span *group_span(const struct group *group, size_t i)
{
    return &group->spans[group->head + i];
}
/* The index of the last entry, or of the snapshot where there is none. */
uint64_t store_group_last(const struct group *group);
uint64_t store_group_first(const struct group *group);
/* The span that holds the entry; NULL: none does. */
const struct span *store_group_span_of(const struct group *group, uint64_t index);
/* The oldest place in the log that the group needs; UINT64_MAX: none. */
uint64_t store_group_oldest_seq(struct group *group);

/* The owner's bytes are copied. FULL: no memory, nothing changed. */
SHOAL_MUST_CHECK enum shoal_err store_group_set_config(struct group *group, struct shoal_view config);

/* Without spans it keeps no memory for them: it may sleep for long. */
void store_group_trim(struct group *group);

/* Room for `extra` spans, so that the functions below cannot fail. */
SHOAL_MUST_CHECK enum shoal_err store_group_reserve(struct group *group, size_t extra);
void store_group_append(struct store_index *index, struct group *group, struct span span);
void store_group_truncate(struct store_index *index, struct group *group, uint64_t from);
/* Entries up to `upto` are not needed any more. */
void store_group_release(struct store_index *index, struct group *group, uint64_t upto);
/* Span `i` lies elsewhere now. */
void store_group_move(struct group *group, size_t i, uint64_t seq);

/* One frame of the forward scan. MALFORMED: it does not follow from those before. FULL: no memory. */
SHOAL_MUST_CHECK enum shoal_err store_index_replay(struct store_index *index, uint64_t seq, const struct frame *frame);
/* After the scan and the hard rows: release what the snapshot covers; false: entries are missing. */
bool store_group_settle(struct store_index *index, struct group *group);

#define HARD_ROW_MAX 1800 /* the owner's bytes, 110 of ours; below SHOAL_STORE_VALUE_MAX */
_Static_assert(SHOAL_STORE_CONFIG_MAX + 150 <= HARD_ROW_MAX && HARD_ROW_MAX <= SHOAL_STORE_VALUE_MAX,
               "a row is one value");
size_t store_hard_encode(const struct group *group, uint8_t bytes[HARD_ROW_MAX]);
/* `config` of the row points into `view`. */
SHOAL_MUST_CHECK enum shoal_err store_hard_decode(struct shoal_view view, struct group *group);

#endif
