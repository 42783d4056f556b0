#include "store_index.h"

#include "shoal/hash.h"

#include "node/format.h"

#include "shoal/banned.h"

#define HARD_VERSION 1

/* ---- groups ---- */

static size_t bucket_of(const struct store_index *index, struct shoal_job_id id)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (unsigned i = 0; i < sizeof(id.bytes); i++)
        h = (h ^ id.bytes[i]) * 0x100000001b3u;
    return (size_t)(h ^ h >> 32) & (index->bucket_count - 1);
}

struct group *store_index_find(const struct store_index *index, struct shoal_job_id id)
{
    struct group *group = index->buckets == NULL ? NULL : index->buckets[bucket_of(index, id)];

    while (group != NULL && !shoal_job_id_equal(group->id, id))
        group = group->next;
    return group;
}

static enum shoal_err grow(struct store_index *index)
{
    struct store_index bigger = *index;

    bigger.bucket_count = index->bucket_count == 0 ? INDEX_BUCKETS_MIN : 2 * index->bucket_count;
    bigger.buckets = calloc(bigger.bucket_count, sizeof(*bigger.buckets));
    if (bigger.buckets == NULL)
        return index->buckets == NULL ? SHOAL_ERR_FULL : SHOAL_OK; /* longer chains, and the next one tries again */
    for (size_t i = 0; i < index->bucket_count; i++) {
        while (index->buckets[i] != NULL) {
            struct group *group = index->buckets[i];
            size_t at = bucket_of(&bigger, group->id);

            index->buckets[i] = group->next;
            group->next = bigger.buckets[at];
            bigger.buckets[at] = group;
        }
    }
    free(index->buckets);
    *index = bigger;
    return SHOAL_OK;
}

enum shoal_err store_index_make(struct store_index *index, struct shoal_job_id id, struct group **group)
{
    struct group *made = store_index_find(index, id);
    size_t at;

    if (made == NULL) {
        if (index->groups >= index->bucket_count && grow(index) != SHOAL_OK)
            return SHOAL_ERR_FULL;
        made = calloc(1, sizeof(*made));
        if (made == NULL)
            return SHOAL_ERR_FULL;
        made->id = id;
        made->oldest_seq = UINT64_MAX;
        made->oldest_known = true;
        at = bucket_of(index, id);
        made->next = index->buckets[at];
        index->buckets[at] = made;
        index->groups++;
    }
    *group = made;
    return SHOAL_OK;
}

/* In the list of those with spans, or not, as it has some. */
static void list_again(struct store_index *index, struct group *group)
{
    bool is_long = group_spans(group) > 0;

    if (is_long == group->is_long)
        return;
    group->is_long = is_long;
    if (is_long) {
        group->long_before = NULL;
        group->long_next = index->first_long;
        if (index->first_long != NULL)
            index->first_long->long_before = group;
        index->first_long = group;
        return;
    }
    if (group->long_before != NULL)
        group->long_before->long_next = group->long_next;
    else
        index->first_long = group->long_next;
    if (group->long_next != NULL)
        group->long_next->long_before = group->long_before;
}

void store_group_trim(struct group *group)
{
    if (group_spans(group) > 0 || group->spans == NULL)
        return;
    free(group->spans);
    group->spans = NULL;
    group->head = group->len = group->cap = 0;
}

void store_index_remove(struct store_index *index, struct shoal_job_id id)
{
    struct group **at = index->buckets == NULL ? NULL : &index->buckets[bucket_of(index, id)];
    struct group *group;

    while (at != NULL && *at != NULL && !shoal_job_id_equal((*at)->id, id))
        at = &(*at)->next;
    group = at == NULL ? NULL : *at;
    if (group == NULL)
        return;
    store_group_truncate(index, group, 1);
    *at = group->next;
    index->groups--;
    free(group->config);
    free(group->spans);
    free(group);
}

void store_index_deinit(struct store_index *index)
{
    for (size_t i = 0; i < index->bucket_count; i++)
        while (index->buckets[i] != NULL)
            store_index_remove(index, index->buckets[i]->id);
    free(index->buckets);
    index->buckets = NULL;
    index->bucket_count = 0;
}

enum shoal_err store_group_set_config(struct group *group, struct shoal_view config)
{
    uint8_t *bytes = NULL;

    if (config.len > 0) {
        bytes = malloc(config.len);
        if (bytes == NULL)
            return SHOAL_ERR_FULL;
        memcpy(bytes, config.bytes, config.len);
    }
    free(group->config);
    group->config = bytes;
    group->config_len = (uint16_t)config.len;
    return SHOAL_OK;
}

/* ---- spans ---- */

static uint64_t span_end(const struct span *span) { return span->first + span->count; }

uint64_t store_group_last(const struct group *group)
{
    return group_spans(group) == 0 ? group->snapshot.index : span_end(&group->spans[group->len - 1]) - 1;
}

uint64_t store_group_first(const struct group *group)
{
    return group_spans(group) == 0 ? group->snapshot.index + 1 : group->spans[group->head].first;
}

/* The first span that ends behind the entry, as a place in `spans`; `len`: none. */
static size_t span_place(const struct group *group, uint64_t index)
{
    size_t low = group->head, high = group->len;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (span_end(&group->spans[middle]) > index)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

const struct span *store_group_span_of(const struct group *group, uint64_t index)
{
    size_t i = span_place(group, index);

    return i < group->len && group->spans[i].first <= index ? &group->spans[i] : NULL;
}

uint64_t store_group_oldest_seq(struct group *group)
{
    if (group->oldest_known)
        return group->oldest_seq;
    group->oldest_seq = UINT64_MAX;
    for (size_t i = group->head; i < group->len; i++)
        if (group->spans[i].seq < group->oldest_seq)
            group->oldest_seq = group->spans[i].seq;
    group->oldest_known = true;
    return group->oldest_seq;
}

enum shoal_err store_group_reserve(struct group *group, size_t extra)
{
    size_t cap = group->cap < 2 ? 2 : group->cap;
    struct span *grown;

    if (group->len + extra <= group->cap)
        return SHOAL_OK;
    if (group->head > 0) {
        memmove(group->spans, group->spans + group->head, group_spans(group) * sizeof(*group->spans));
        group->len -= group->head;
        group->head = 0;
    }
    while (cap < group->len + extra)
        cap *= 2;
    if (cap == group->cap)
        return SHOAL_OK;
    grown = realloc(group->spans, cap * sizeof(*grown));
    if (grown == NULL)
        return SHOAL_ERR_FULL;
    group->spans = grown;
    group->cap = cap;
    return SHOAL_OK;
}

void store_group_append(struct store_index *index, struct group *group, struct span span)
{
    SHOAL_ASSERT(group->len < group->cap);
    group->spans[group->len++] = span;
    index->entries += span.count;
    index->frames += span.frames;
    if (group->oldest_known && span.seq < group->oldest_seq)
        group->oldest_seq = span.seq;
    list_again(index, group);
}

void store_group_truncate(struct store_index *index, struct group *group, uint64_t from)
{
    while (group_spans(group) > 0) {
        struct span *last = &group->spans[group->len - 1];

        if (span_end(last) <= from)
            return;
        group->oldest_known = false;
        if (last->first < from) {
            index->entries -= span_end(last) - from;
            last->count = (uint32_t)(from - last->first);
            return;
        }
        index->entries -= last->count;
        index->frames -= last->frames;
        group->len--;
    }
    list_again(index, group);
}

void store_group_release(struct store_index *index, struct group *group, uint64_t upto)
{
    while (group_spans(group) > 0) {
        struct span *first = &group->spans[group->head];

        if (first->first > upto)
            return;
        group->oldest_known = false;
        if (span_end(first) > upto + 1) {
            uint32_t gone = (uint32_t)(upto + 1 - first->first);

            index->entries -= gone;
            first->first += gone;
            first->count -= gone;
            return;
        }
        index->entries -= first->count;
        index->frames -= first->frames;
        group->head++;
    }
    list_again(index, group);
}

void store_group_move(struct group *group, size_t i, uint64_t seq)
{
    group->spans[group->head + i].seq = seq;
    group->oldest_known = false;
}

/* ---- the scan ---- */

/* The cleaner's copy takes the place of the span it was made from, or the gap that its trimming left. */
static enum shoal_err replay_copy(struct store_index *index, struct group *group, struct span span)
{
    size_t i = span_place(group, span.first);
    struct span *at = &group->spans[i];

    if (i < group->len && at->first == span.first && at->count == span.count) {
        index->frames += span.frames;
        index->frames -= at->frames;
        *at = span;
        group->oldest_known = false;
        return SHOAL_OK;
    }
    if (i < group->len && at->first < span.first && span_end(at) == span_end(&span)) {
        /* The front was covered by a snapshot before the copy was made: group_settle releases it. */
        at->count -= span.count;
        index->entries -= span.count;
        i++;
        at++;
    } else if (i < group->len && at->first < span_end(&span)) {
        return SHOAL_ERR_MALFORMED;
    }
    memmove(at + 1, at, (group->len - i) * sizeof(*at));
    *at = span;
    group->len++;
    index->entries += span.count;
    index->frames += span.frames;
    group->oldest_known = false;
    list_again(index, group);
    return SHOAL_OK;
}

static enum shoal_err replay_span(struct store_index *index, struct group *group, bool copy, struct span span)
{
    enum shoal_err err = store_group_reserve(group, 1);

    if (err != SHOAL_OK)
        return err;
    if (copy)
        return replay_copy(index, group, span);
    if (group_spans(group) > 0 && span.first <= store_group_last(group))
        return SHOAL_ERR_MALFORMED;
    /* A gap is filled by a copy that comes later in the log, or covered by the snapshot: group_settle checks. */
    store_group_append(index, group, span);
    return SHOAL_OK;
}

/* A piece behind the first of a long entry. */
static enum shoal_err replay_more(struct store_index *index, struct group *group, uint64_t seq,
                                  const struct frame *frame)
{
    size_t i = span_place(group, frame->first);
    struct span *span = &group->spans[i];

    if (i == group->len || span->first != frame->first || span->seq + span->frames != seq ||
        frame->offset != span->frames * FRAME_PART_MAX)
        return SHOAL_ERR_MALFORMED;
    span->frames++;
    index->frames++;
    return SHOAL_OK;
}

enum shoal_err store_index_replay(struct store_index *index, uint64_t seq, const struct frame *frame)
{
    struct span span = { .first = frame->first, .seq = seq, .count = frame->count, .frames = 1 };
    struct group *group = store_index_find(index, frame->group);
    enum shoal_err err = SHOAL_OK;

    switch (frame->what) {
    case FRAME_ENTRIES:
        err = store_index_make(index, frame->group, &group);
        return err == SHOAL_OK ? replay_span(index, group, frame->copy, span) : err;
    case FRAME_PART:
        /* The first pieces of an entry that was released may be trimmed away: then the rest means nothing. */
        if (frame->offset > 0)
            return group == NULL || store_group_span_of(group, frame->first) == NULL
                       ? SHOAL_OK
                       : replay_more(index, group, seq, frame);
        err = store_index_make(index, frame->group, &group);
        return err == SHOAL_OK ? replay_span(index, group, frame->copy, span) : err;
    case FRAME_TRUNCATE:
        if (group != NULL)
            store_group_truncate(index, group, frame->first);
        return SHOAL_OK;
    case FRAME_REMOVE: store_index_remove(index, frame->group); return SHOAL_OK;
    case FRAME_WHATS: break;
    }
    return SHOAL_ERR_MALFORMED;
}

bool store_group_settle(struct store_index *index, struct group *group)
{
    uint64_t next = group->snapshot.index + 1;

    store_group_release(index, group, group->snapshot.index);
    for (size_t i = group->head; i < group->len; i++) {
        if (group->spans[i].first != next)
            return false;
        next = span_end(&group->spans[i]);
    }
    return true;
}

/* ---- the hard row ---- */

size_t store_hard_encode(const struct group *group, uint8_t bytes[HARD_ROW_MAX])
{
    struct shoal_writer w = shoal_writer_init(bytes, HARD_ROW_MAX);

    format_put_header(&w, FORMAT_HARD, HARD_VERSION, 1);
    shoal_put_job_id(&w, group->id);
    shoal_put_u64(&w, group->term);
    shoal_put_node_id(&w, group->vote_node);
    shoal_put_store_id(&w, group->vote_store);
    shoal_put_u64(&w, group->snapshot.index);
    shoal_put_u64(&w, group->snapshot.term);
    shoal_put_u64(&w, group->snapshot.generation);
    shoal_put_u32(&w, group->snapshot.bytes);
    shoal_put_u32(&w, group->snapshot.crc);
    shoal_put_bytes(&w, shoal_view_of(group->config, group->config_len));
    shoal_put_u32(&w, shoal_crc32c(0, shoal_writer_view(&w)));
    SHOAL_ASSERT(!w.failed);
    return w.len;
}

enum shoal_err store_hard_decode(struct shoal_view view, struct group *group)
{
    struct shoal_reader r, tail;
    struct shoal_view config;

    if (view.len < 4)
        return SHOAL_ERR_MALFORMED;
    view.len -= 4;
    tail = shoal_reader_init(shoal_view_of(view.bytes + view.len, 4));
    if (shoal_get_u32(&tail) != shoal_crc32c(0, view))
        return SHOAL_ERR_MALFORMED;
    r = shoal_reader_init(view);
    (void)format_get_header(&r, FORMAT_HARD, HARD_VERSION);
    group->id = shoal_get_job_id(&r);
    group->term = shoal_get_u64(&r);
    group->vote_node = shoal_get_node_id(&r);
    group->vote_store = shoal_get_store_id(&r);
    group->snapshot.index = shoal_get_u64(&r);
    group->snapshot.term = shoal_get_u64(&r);
    group->snapshot.generation = shoal_get_u64(&r);
    group->snapshot.bytes = shoal_get_u32(&r);
    group->snapshot.crc = shoal_get_u32(&r);
    config = shoal_get_bytes(&r, SHOAL_STORE_CONFIG_MAX);
    if (!shoal_reader_done(&r) || group->snapshot.bytes > SHOAL_SNAPSHOT_BYTES_MAX)
        return SHOAL_ERR_MALFORMED;
    group->config = (uint8_t *)(uintptr_t)config.bytes; /* borrowed: such a row is read, and never freed */
    group->config_len = (uint16_t)config.len;
    group->has_row = true;
    return SHOAL_OK;
}
