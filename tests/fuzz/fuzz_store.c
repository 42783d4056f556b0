/* libFuzzer: what the store and the blobs read back from a disk. The first byte chooses the decoder. Frames and rows
 * are given their right sum, so that the fuzzer gets behind it; frames are then replayed as a log, and the index must
 * hold its invariants whatever they say. */
#include "shoal/blob.h"
#include "shoal/hash.h"

#include "node/store/store_frame.h"
#include "node/store/store_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void put_sum(uint64_t seq, bool with_key, uint8_t *bytes, size_t len)
{
    uint8_t key[8];
    struct shoal_writer w = shoal_writer_init(key, sizeof(key));
    uint32_t crc;

    shoal_put_u64(&w, seq);
    crc = shoal_crc32c(with_key ? shoal_crc32c(0, shoal_writer_view(&w)) : 0, shoal_view_of(bytes, len));
    w = shoal_writer_init(bytes + len, 4);
    shoal_put_u32(&w, crc);
}

static void check_group(const struct group *group)
{
    for (size_t i = 0; i < group_spans(group); i++) {
        const struct span *span = group_span(group, i);

        SHOAL_ASSERT(span->count > 0 && span->frames > 0 && span->first > 0);
        SHOAL_ASSERT(i == 0 || group_span(group, i - 1)->first + group_span(group, i - 1)->count <= span->first);
        SHOAL_ASSERT(store_group_span_of(group, span->first) == span);
    }
}

static void replay(const uint8_t *bytes, size_t len)
{
    struct store_index *index = calloc(1, sizeof(*index));
    uint64_t seq = 1, entries = 0, frames = 0;

    SHOAL_ASSERT(index != NULL);
    while (len >= 2) {
        size_t take = (bytes[0] | (size_t)bytes[1] << 8) % (SHOAL_STORE_VALUE_MAX - 4);
        uint8_t *copy;
        struct frame frame;

        bytes += 2;
        len -= 2;
        take = take < len ? take : len;
        copy = malloc(take + 4);
        SHOAL_ASSERT(copy != NULL);
        memcpy(copy, bytes, take);
        put_sum(seq, true, copy, take);
        if (store_frame_decode(seq, shoal_view_of(copy, take + 4), &frame) == SHOAL_OK)
            (void)store_index_replay(index, seq, &frame);
        free(copy);
        bytes += take;
        len -= take;
        seq++;
    }
    for (size_t i = 0; i < index->bucket_count; i++) {
        for (struct group *group = index->buckets[i]; group != NULL; group = group->next) {
            check_group(group);
            for (size_t s = 0; s < group_spans(group); s++) {
                entries += group_span(group, s)->count;
                frames += group_span(group, s)->frames;
            }
        }
    }
    SHOAL_ASSERT(entries == index->entries && frames == index->frames);
    for (size_t i = 0; i < index->bucket_count; i++)
        for (struct group *group = index->buckets[i]; group != NULL; group = group->next)
            (void)store_group_settle(index, group);
    store_index_deinit(index);
    SHOAL_ASSERT(index->entries == 0 && index->frames == 0 && index->groups == 0);
    free(index);
}

static void hard(const uint8_t *bytes, size_t len)
{
    static struct group group;
    uint8_t again[HARD_ROW_MAX];
    uint8_t *copy = malloc(len + 4);

    SHOAL_ASSERT(copy != NULL);
    memcpy(copy, bytes, len);
    put_sum(0, false, copy, len);
    if (store_hard_decode(shoal_view_of(copy, len + 4), &group) == SHOAL_OK) {
        size_t out = store_hard_encode(&group, again);

        SHOAL_ASSERT(out == len + 4 && memcmp(again + 3, copy + 3, out - 7) == 0);
    }
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct shoal_manifest manifest;

    if (len == 0)
        return 0;
    switch (bytes[0] % 3) {
    case 0: replay(bytes + 1, len - 1); break;
    case 1:
        if (len < 4096)
            hard(bytes + 1, len - 1);
        break;
    case 2:
        if (shoal_manifest_decode(shoal_view_of(bytes + 1, len - 1), &manifest) == SHOAL_OK && manifest.count > 0)
            (void)shoal_manifest_chunk(&manifest, manifest.count - 1);
        break;
    default: break;
    }
    return 0;
}
