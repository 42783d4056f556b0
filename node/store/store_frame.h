/* One value of the store's log: what one commit says about one group. Pure; the decoder is fuzzed.
 *
 *   kind version oldest | what 1 | copy 1 | group 10 | ... | CRC-32C of the key and all before
 *   ENTRIES   first index 8, count 2, then for each: term 8, kind 1, length 4, bytes
 *   PART      index 8, term 8, kind 1, total 4, offset 4, length 4, bytes: one entry that is too long for a frame
 *   TRUNCATE  index 8: this entry and all later ones are gone
 *   REMOVE    the group is gone
 *
 * `copy`: the cleaner moved these entries here from an older place. */
#ifndef NODE_STORE_FRAME_H
#define NODE_STORE_FRAME_H

#include "shoal/store.h"
#include "shoal/wire.h"

enum frame_what {
    FRAME_ENTRIES,
    FRAME_PART,
    FRAME_TRUNCATE,
    FRAME_REMOVE,
    FRAME_WHATS,
};

struct frame {
    enum frame_what what;
    bool copy;
    struct shoal_job_id group;
    uint64_t first;            /* index; TRUNCATE: from where */
    uint32_t count;            /* ENTRIES */
    struct shoal_view entries; /* ENTRIES, encoded: store_frame_next reads them */
    uint64_t term;             /* PART */
    uint8_t kind;              /* PART */
    uint32_t total, offset;    /* PART */
    struct shoal_view part;    /* PART */
};

/* The longest entry that ENTRIES can hold, and the longest piece of a PART. */
#define FRAME_ENTRY_MAX (SHOAL_STORE_VALUE_MAX - 15 - 10 - 13 - 4)
#define FRAME_PART_MAX (SHOAL_STORE_VALUE_MAX - 15 - 29 - 4)

/* Each sets `bytes` (SHOAL_STORE_VALUE_MAX) and returns how many. */
size_t store_frame_encode_mark(enum frame_what what, struct shoal_job_id group, uint64_t from, uint64_t seq,
                               uint8_t *bytes);
/* As many of the entries as fit, at least one: the first is at most FRAME_ENTRY_MAX long, and an entry above that ends
 * the frame. */
size_t store_frame_encode_entries(struct shoal_job_id group, bool copy, const struct shoal_store_entry *entries,
                                  size_t count, uint64_t seq, uint8_t *bytes, size_t *taken);
size_t store_frame_encode_part(struct shoal_job_id group, bool copy, const struct shoal_store_entry *entry,
                               uint32_t offset, uint64_t seq, uint8_t *bytes);
static inline uint32_t frame_parts(size_t len) { return (uint32_t)((len + FRAME_PART_MAX - 1) / FRAME_PART_MAX); }

/* Views point into `view`. MALFORMED: damaged, at another key than it was written to, or newer than this binary. */
SHOAL_MUST_CHECK enum shoal_err store_frame_decode(uint64_t seq, struct shoal_view view, struct frame *frame);
/* The next of a decoded frame's entries; false after the last. Start with `r` of frame->entries and `*index` =
 * first. */
bool store_frame_next(struct shoal_reader *r, uint64_t *index, struct shoal_store_entry *entry);

#endif
