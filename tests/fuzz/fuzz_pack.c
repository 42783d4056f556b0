/* libFuzzer: MessagePack from anywhere. The first byte chooses: a walk by value, or a table that knows some fields. What
 * a table reads, it writes again with what it does not know, and reads once more to the same bytes. */
#include "shoal/pack.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

struct thing {
    bool a;
    uint32_t c;
    char e[8];
    struct shoal_view g;
};

static const struct shoal_pack_field fields[] = {
    { "a", SHOAL_PACK_IS_BOOL, offsetof(struct thing, a), 1, NULL, NULL },
    { "c", SHOAL_PACK_IS_U32, offsetof(struct thing, c), 1000, NULL, NULL },
    { "e", SHOAL_PACK_IS_TEXT, offsetof(struct thing, e), 8, NULL, NULL },
    { "g", SHOAL_PACK_IS_BIN, offsetof(struct thing, g), 64, NULL, NULL },
};
static const struct shoal_pack_table table = { fields, 4 };

/* First part by part, where the head of an array is a part, then by whole values. */
static void walk(struct shoal_view view)
{
    struct shoal_pack_reader r = shoal_pack_reader_init(view), whole = r;

    while (!r.failed && r.at < r.len) {
        struct shoal_pack_value value = shoal_pack_next(&r);

        SHOAL_ASSERT(value.bytes.len <= view.len);
    }
    SHOAL_ASSERT(r.at <= view.len);
    while (!whole.failed && whole.at < whole.len)
        shoal_pack_skip(&whole);
    SHOAL_ASSERT(whole.at <= view.len);
}

static size_t write_again(const struct thing *thing, struct shoal_view kept, uint8_t *bytes, size_t cap)
{
    struct shoal_pack_writer w = shoal_pack_writer_init(bytes, cap);

    shoal_pack_put_fields(&w, &table, thing, kept);
    SHOAL_ASSERT(!w.failed);
    return w.len;
}

static void by_table(struct shoal_view view)
{
    static uint8_t once[16384], twice[16384];
    struct shoal_pack_reader r = shoal_pack_reader_init(view);
    struct thing thing = { 0 }, again = { 0 };
    struct shoal_view kept;
    size_t len;

    shoal_pack_get_fields(&r, &table, &thing, &kept);
    if (r.failed || view.len > sizeof(once) / 2)
        return;
    len = write_again(&thing, kept, once, sizeof(once));
    r = shoal_pack_reader_init(shoal_view_of(once, len));
    shoal_pack_get_fields(&r, &table, &again, &kept);
    SHOAL_ASSERT(shoal_pack_reader_done(&r));
    SHOAL_ASSERT(again.a == thing.a && again.c == thing.c && shoal_view_equal(again.g, thing.g));
    SHOAL_ASSERT(write_again(&again, kept, twice, sizeof(twice)) == len && memcmp(once, twice, len) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct shoal_view view = shoal_view_of(bytes + 1, len == 0 ? 0 : len - 1);

    if (len == 0)
        return 0;
    if (bytes[0] % 2 == 0)
        walk(view);
    else
        by_table(view);
    return 0;
}
