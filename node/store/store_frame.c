#include "store_frame.h"

#include "shoal/hash.h"

#include "node/format.h"

#include "shoal/banned.h"

#define VERSION 1
#define CRC_BYTES 4

static uint32_t crc_of(uint64_t seq, struct shoal_view view)
{
    uint8_t key[8];
    struct shoal_writer w = shoal_writer_init(key, sizeof(key));

    shoal_put_u64(&w, seq);
    return shoal_crc32c(shoal_crc32c(0, shoal_writer_view(&w)), view);
}

static struct shoal_writer frame_begin(enum frame_what what, bool copy, struct shoal_job_id group, uint8_t *bytes)
{
    struct shoal_writer w = shoal_writer_init(bytes, SHOAL_STORE_VALUE_MAX);

    format_put_header(&w, FORMAT_FRAME, VERSION, 1);
    shoal_put_u8(&w, (uint8_t)what);
    shoal_put_bool(&w, copy);
    shoal_put_job_id(&w, group);
    return w;
}

static size_t frame_end(struct shoal_writer *w, uint64_t seq)
{
    shoal_put_u32(w, crc_of(seq, shoal_writer_view(w)));
    SHOAL_ASSERT(!w->failed);
    return w->len;
}

size_t store_frame_encode_mark(enum frame_what what, struct shoal_job_id group, uint64_t from, uint64_t seq,
                               uint8_t *bytes)
{
    struct shoal_writer w = frame_begin(what, false, group, bytes);

    SHOAL_ASSERT(what == FRAME_TRUNCATE || what == FRAME_REMOVE);
    if (what == FRAME_TRUNCATE)
        shoal_put_u64(&w, from);
    return frame_end(&w, seq);
}

static void put_entry(struct shoal_writer *w, const struct shoal_store_entry *entry)
{
    shoal_put_u64(w, entry->term);
    shoal_put_u8(w, entry->kind);
    shoal_put_bytes(w, entry->bytes);
}

size_t store_frame_encode_entries(struct shoal_job_id group, bool copy, const struct shoal_store_entry *entries,
                                  size_t count, uint64_t seq, uint8_t *bytes, size_t *taken)
{
    struct shoal_writer w = frame_begin(FRAME_ENTRIES, copy, group, bytes);
    size_t fits = 0, room = w.cap - w.len - 10 - CRC_BYTES;

    while (fits < count && fits < UINT16_MAX && entries[fits].bytes.len + 13 <= room) {
        room -= entries[fits].bytes.len + 13;
        fits++;
    }
    SHOAL_ASSERT(fits > 0);
    shoal_put_u64(&w, entries[0].index);
    shoal_put_u16(&w, (uint16_t)fits);
    for (size_t i = 0; i < fits; i++)
        put_entry(&w, &entries[i]);
    *taken = fits;
    return frame_end(&w, seq);
}

size_t store_frame_encode_part(struct shoal_job_id group, bool copy, const struct shoal_store_entry *entry,
                               uint32_t offset, uint64_t seq, uint8_t *bytes)
{
    struct shoal_writer w = frame_begin(FRAME_PART, copy, group, bytes);
    size_t len = entry->bytes.len - offset;

    SHOAL_ASSERT(offset < entry->bytes.len);
    shoal_put_u64(&w, entry->index);
    shoal_put_u64(&w, entry->term);
    shoal_put_u8(&w, entry->kind);
    shoal_put_u32(&w, (uint32_t)entry->bytes.len);
    shoal_put_u32(&w, offset);
    shoal_put_bytes(&w, shoal_view_of(entry->bytes.bytes + offset, len < FRAME_PART_MAX ? len : FRAME_PART_MAX));
    return frame_end(&w, seq);
}

bool store_frame_next(struct shoal_reader *r, uint64_t *index, struct shoal_store_entry *entry)
{
    if (r->failed || shoal_reader_left(r) == 0)
        return false;
    entry->index = (*index)++;
    entry->term = shoal_get_u64(r);
    entry->kind = shoal_get_u8(r);
    entry->bytes = shoal_get_bytes(r, SHOAL_STORE_VALUE_MAX);
    if (entry->term == 0)
        r->failed = true;
    return !r->failed;
}

static void decode_entries(struct shoal_reader *r, struct frame *frame)
{
    struct shoal_reader inner;
    struct shoal_store_entry entry;
    uint64_t index;
    uint32_t count = 0;

    frame->first = shoal_get_u64(r);
    frame->count = shoal_get_u16(r);
    frame->entries = shoal_view_of(r->bytes + r->at, shoal_reader_left(r));
    (void)shoal_get_space(r, frame->entries.len);
    index = frame->first;
    inner = shoal_reader_init(frame->entries);
    while (store_frame_next(&inner, &index, &entry))
        count++;
    if (inner.failed || count != frame->count || count == 0 || frame->first == 0 || frame->first > UINT64_MAX - count)
        r->failed = true;
}

static void decode_part(struct shoal_reader *r, struct frame *frame)
{
    frame->first = shoal_get_u64(r);
    frame->term = shoal_get_u64(r);
    frame->kind = shoal_get_u8(r);
    frame->total = shoal_get_u32(r);
    frame->offset = shoal_get_u32(r);
    frame->part = shoal_get_bytes(r, FRAME_PART_MAX);
    frame->count = 1;
    if (frame->first == 0 || frame->first == UINT64_MAX || frame->term == 0 || frame->total > SHOAL_ENTRY_BYTES_MAX ||
        frame->part.len == 0 || frame->offset % FRAME_PART_MAX != 0 || frame->offset >= frame->total ||
        frame->part.len !=
            (frame->total - frame->offset < FRAME_PART_MAX ? frame->total - frame->offset : FRAME_PART_MAX))
        r->failed = true;
}

enum shoal_err store_frame_decode(uint64_t seq, struct shoal_view view, struct frame *frame)
{
    struct frame decoded = { 0 };
    struct shoal_reader r, tail;

    if (view.len < CRC_BYTES || view.len > SHOAL_STORE_VALUE_MAX)
        return SHOAL_ERR_MALFORMED;
    view.len -= CRC_BYTES;
    tail = shoal_reader_init(shoal_view_of(view.bytes + view.len, CRC_BYTES));
    if (shoal_get_u32(&tail) != crc_of(seq, view))
        return SHOAL_ERR_MALFORMED;
    r = shoal_reader_init(view);
    (void)format_get_header(&r, FORMAT_FRAME, VERSION);
    decoded.what = (enum frame_what)shoal_get_enum(&r, FRAME_WHATS);
    decoded.copy = shoal_get_bool(&r);
    decoded.group = shoal_get_job_id(&r);
    if (r.failed)
        return SHOAL_ERR_MALFORMED;
    switch (decoded.what) {
    case FRAME_ENTRIES: decode_entries(&r, &decoded); break;
    case FRAME_PART: decode_part(&r, &decoded); break;
    case FRAME_TRUNCATE: decoded.first = shoal_get_u64(&r); break;
    case FRAME_REMOVE:
    case FRAME_WHATS: break;
    }
    if (!shoal_reader_done(&r))
        return SHOAL_ERR_MALFORMED;
    *frame = decoded;
    return SHOAL_OK;
}
