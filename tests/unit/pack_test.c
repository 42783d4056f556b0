/* MessagePack as shoal/pack.h promises it: one encoding of a value, every prefix malformed, unknown fields kept. */
#include "shoal/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "shoal/banned.h"

#define BYTES_MAX (128u * SHOAL_KIB)
static uint8_t *page_end; /* what is read beyond it stops the test */

static int set_up(void **state)
{
    uint8_t *pages = mmap(NULL, BYTES_MAX + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    (void)state;
    if (pages == MAP_FAILED || mprotect(pages + BYTES_MAX, 4096, PROT_NONE) != 0)
        return -1;
    page_end = pages + BYTES_MAX;
    return 0;
}

/* ---- One value, one encoding ---- */

/* Reads one value by its parts and writes what was read. */
static void copy_value(struct shoal_pack_reader *r, struct shoal_pack_writer *w)
{
    struct shoal_pack_value value = shoal_pack_next(r);

    switch (value.type) {
    case SHOAL_PACK_NIL: shoal_pack_put_nil(w); break;
    case SHOAL_PACK_BOOL: shoal_pack_put_bool(w, value.truth); break;
    case SHOAL_PACK_UINT: shoal_pack_put_u64(w, value.uint); break;
    case SHOAL_PACK_INT: shoal_pack_put_i64(w, (int64_t)value.uint); break;
    case SHOAL_PACK_F64: shoal_pack_put_f64(w, value.number); break;
    case SHOAL_PACK_STR: shoal_pack_put_str(w, value.bytes); break;
    case SHOAL_PACK_BIN: shoal_pack_put_bin(w, value.bytes); break;
    case SHOAL_PACK_EXT: fail_msg("no vector has an extension"); break;
    case SHOAL_PACK_ARRAY:
        shoal_pack_put_array(w, value.count);
        for (uint32_t i = 0; i < value.count && !r->failed; i++)
            copy_value(r, w);
        break;
    case SHOAL_PACK_MAP:
        shoal_pack_begin_map(w);
        for (uint32_t i = 0; i < value.count && !r->failed; i++) {
            char name[16];

            shoal_pack_get_text(r, name, sizeof(name));
            shoal_pack_put_name(w, name);
            copy_value(r, w);
        }
        shoal_pack_end_map(w);
        break;
    }
}

static size_t read_hex(char *text, uint8_t *bytes)
{
    size_t len = 0;
    char *save = NULL;

    for (char *word = strtok_r(text, " ", &save); word != NULL; word = strtok_r(NULL, " ", &save)) {
        unsigned byte, times = 1;

        assert_true(sscanf(word, "%2x*%u", &byte, &times) >= 1);
        assert_true(len + times <= BYTES_MAX);
        memset(bytes + len, (int)byte, times);
        len += times;
    }
    return len;
}

static void each_vector(void (*check)(const char *says, const uint8_t *bytes, size_t len))
{
    static uint8_t bytes[BYTES_MAX];
    FILE *file = fopen("tests/unit/pack_vectors.txt", "re");
    char line[512];
    unsigned count = 0;

    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        char *bar = strstr(line, " | ");

        if (line[0] == '#')
            continue;
        assert_non_null(bar);
        *bar = '\0';
        check(bar + 3, bytes, read_hex(line, bytes));
        count++;
    }
    (void)fclose(file);
    assert_true(count > 40);
}

static void check_copy(const char *says, const uint8_t *bytes, size_t len)
{
    static uint8_t copy[BYTES_MAX];
    struct shoal_pack_reader r = shoal_pack_reader_init(shoal_view_of(bytes, len));
    struct shoal_pack_writer w = shoal_pack_writer_init(copy, sizeof(copy));

    copy_value(&r, &w);
    if (!shoal_pack_reader_done(&r) || w.failed || w.len != len || memcmp(copy, bytes, len) != 0)
        fail_msg("read and written again it differs: %s", says);
    for (size_t cap = 0; cap < len; cap += cap < 600 ? 1 : 1009) {
        uint8_t *at = page_end - cap;

        r = shoal_pack_reader_init(shoal_view_of(bytes, len));
        w = shoal_pack_writer_init(at, cap);
        copy_value(&r, &w);
        if (!w.failed || shoal_pack_writer_view(&w).len != 0)
            fail_msg("%zu of %zu bytes of room were enough: %s", cap, len, says);
    }
}

static void check_prefixes(const char *says, const uint8_t *bytes, size_t len)
{
    for (size_t n = 0; n < len; n += n < 600 ? 1 : 1009) {
        struct shoal_pack_reader r = shoal_pack_reader_init(shoal_view_of(page_end - n, n));

        memcpy(page_end - n, bytes, n);
        if (shoal_pack_get_raw(&r).len != 0 || !r.failed)
            fail_msg("%zu of %zu bytes were a value: %s", n, len, says);
    }
    memcpy(page_end - len - 1, bytes, len);
    page_end[-1] = 0;
    struct shoal_pack_reader r = shoal_pack_reader_init(shoal_view_of(page_end - len - 1, len + 1));
    shoal_pack_skip(&r);
    if (r.failed || shoal_pack_reader_done(&r))
        fail_msg("a byte too many was not seen: %s", says);
}

static void test_vectors(void **state)
{
    (void)state;
    each_vector(check_copy);
}

static void test_prefixes(void **state)
{
    (void)state;
    each_vector(check_prefixes);
}

/* ---- What is refused ---- */

static const struct refused {
    const char *says;
    const char *bytes;
    size_t len;
} refused[] = {
    { "a byte that has no meaning", "\xc1", 1 },
    { "an array of 4 billion in five bytes", "\xdd\xff\xff\xff\xff", 5 },
    { "a map of 4 billion in five bytes", "\xdf\xff\xff\xff\xff", 5 },
    { "a text of 4 billion bytes in six", "\xdb\xff\xff\xff\xff\x61", 6 },
    { "an extension whose length wraps round", "\xc9\xff\xff\xff\xff\x01", 6 },
    { "arrays one deeper than the bound", "\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91", 13 },
    { "a map whose last value is missing", "\x82\x01\x02\x03", 4 },
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        size_t len = refused[i].len;
        struct shoal_pack_reader r = shoal_pack_reader_init(shoal_view_of(page_end - len, len));

        memcpy(page_end - len, refused[i].bytes, len);
        shoal_pack_skip(&r);
        if (!r.failed || shoal_pack_next(&r).type != SHOAL_PACK_NIL || r.at != 0)
            fail_msg("not refused: %s", refused[i].says);
    }
}

static void test_depth_bound_is_reached(void **state)
{
    uint8_t bytes[SHOAL_PACK_DEPTH_MAX + 1] = { 0 };
    struct shoal_pack_reader r = shoal_pack_reader_init(shoal_view_of(bytes, sizeof(bytes)));

    (void)state;
    memset(bytes, 0x91, SHOAL_PACK_DEPTH_MAX);
    assert_int_equal(shoal_pack_get_raw(&r).len, sizeof(bytes));
    assert_true(shoal_pack_reader_done(&r));
}

static void test_types_and_bounds(void **state)
{
    uint8_t bytes[64];
    struct shoal_pack_writer w = shoal_pack_writer_init(bytes, sizeof(bytes));
    char text[4];

    (void)state;
    shoal_pack_put_text(&w, "four");
#define FAILS(call)                                                                                                    \
    do {                                                                                                               \
        struct shoal_pack_reader r = shoal_pack_reader_init(shoal_pack_writer_view(&w));                               \
        (void)(call);                                                                                                  \
        assert_true(r.failed);                                                                                         \
    } while (0)
    FAILS(shoal_pack_get_u64(&r, UINT64_MAX));
    FAILS(shoal_pack_get_bool(&r));
    FAILS(shoal_pack_get_f64(&r));
    FAILS(shoal_pack_get_bin(&r, 100));
    FAILS(shoal_pack_get_str(&r, 3).len);
    FAILS((shoal_pack_get_text(&r, text, sizeof(text)), 0));
    FAILS(shoal_pack_get_array(&r, 100));
    FAILS(shoal_pack_get_map(&r).left);
    w = shoal_pack_writer_init(bytes, sizeof(bytes));
    shoal_pack_put_u64(&w, 1ull << 63);
    FAILS(shoal_pack_get_u64(&r, (1ull << 63) - 1));
    FAILS(shoal_pack_get_i64(&r));
    w = shoal_pack_writer_init(bytes, sizeof(bytes));
    shoal_pack_put_str(&w, shoal_view_of("a\0b", 3));
    FAILS((shoal_pack_get_text(&r, text, sizeof(text)), 0));
    w = shoal_pack_writer_init(bytes, sizeof(bytes));
    shoal_pack_put_array(&w, 7);
    FAILS(shoal_pack_get_array(&r, 6));
    shoal_pack_put_raw(&w, shoal_view_of("\xde\x01\x01", 3)); /* a map of 257 */
    w = (struct shoal_pack_writer){ .bytes = bytes + 1, .cap = 3, .len = 3 };
    FAILS(shoal_pack_get_map(&r).left);
#undef FAILS
}

/* Another program may write an integer longer than need be, or with a sign. */
static void test_long_integers_are_read(void **state)
{
    static const char *const longer[] = { "\xcf\0\0\0\0\0\0\0\x07", "\xd3\0\0\0\0\0\0\0\x07" };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct shoal_pack_reader r = shoal_pack_reader_init(shoal_view_of(longer[i], 9));

        assert_int_equal(shoal_pack_get_u64(&r, 7), 7);
        assert_true(shoal_pack_reader_done(&r));
    }
}

/* ---- The head ---- */

static const struct head {
    const char *says;
    uint8_t bytes[3];
    enum shoal_err want;
} heads[] = {
    { "our own version", { 'j', 2, 1 }, SHOAL_OK },
    { "a newer one that we can read", { 'j', 9, 2 }, SHOAL_OK },
    { "a newer one that asks for a newer reader", { 'j', 9, 3 }, SHOAL_ERR_UNSUPPORTED },
    { "another kind", { 'f', 2, 1 }, SHOAL_ERR_MALFORMED },
    { "a version older than what can read it", { 'j', 1, 2 }, SHOAL_ERR_MALFORMED },
    { "no version", { 'j', 0, 0 }, SHOAL_ERR_MALFORMED },
    { "no integer", { 'j', 2, 0xc0 }, SHOAL_ERR_MALFORMED },
};

static void test_heads(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        struct shoal_pack_reader r = shoal_pack_reader_init(shoal_view_of(heads[i].bytes, 3));
        struct shoal_pack_head head = { 0 };
        enum shoal_err err = shoal_pack_get_head(&r, SHOAL_PACK_KIND_SPEC, 2, &head);

        if (err != heads[i].want || r.failed != (err != SHOAL_OK))
            fail_msg("%s: %s", heads[i].says, shoal_err_name(err));
        if (err == SHOAL_OK && memcmp(&head, heads[i].bytes, 3) != 0)
            fail_msg("%s: read as (%u, %u, %u)", heads[i].says, head.kind, head.version, head.oldest);
    }
}

/* ---- Tables ---- */

struct thing {
    bool alive;
    uint8_t level;
    uint32_t cpus;
    uint64_t bytes;
    int64_t offset;
    char name[8];
    uint8_t hash[4];
    struct shoal_view note, blob;
    uint8_t list_count;
    uint32_t list[4];
};

static bool put_list(struct shoal_pack_writer *w, const void *base)
{
    const struct thing *thing = base;

    if (w != NULL && thing->list_count > 0) {
        shoal_pack_put_array(w, thing->list_count);
        for (unsigned i = 0; i < thing->list_count; i++)
            shoal_pack_put_u64(w, thing->list[i]);
    }
    return thing->list_count > 0;
}

static void get_list(struct shoal_pack_reader *r, void *base)
{
    struct thing *thing = base;

    thing->list_count = (uint8_t)shoal_pack_get_array(r, 4);
    for (unsigned i = 0; i < thing->list_count; i++)
        thing->list[i] = (uint32_t)shoal_pack_get_u64(r, UINT32_MAX);
}

#define AT(field) offsetof(struct thing, field)
static const struct shoal_pack_field newer_fields[] = {
    { "alive", SHOAL_PACK_IS_BOOL, AT(alive), 1, NULL, NULL },
    { "blob", SHOAL_PACK_IS_BIN, AT(blob), 16, NULL, NULL },
    { "bytes", SHOAL_PACK_IS_U64, AT(bytes), UINT64_MAX, NULL, NULL },
    { "cpus", SHOAL_PACK_IS_U32, AT(cpus), 64, NULL, NULL },
    { "hash", SHOAL_PACK_IS_FIXED, AT(hash), 4, NULL, NULL },
    { "level", SHOAL_PACK_IS_U8, AT(level), 7, NULL, NULL },
    { "list", SHOAL_PACK_IS_OWN, 0, 0, put_list, get_list },
    { "name", SHOAL_PACK_IS_TEXT, AT(name), 8, NULL, NULL },
    { "note", SHOAL_PACK_IS_STR, AT(note), 16, NULL, NULL },
    { "offset", SHOAL_PACK_IS_I64, AT(offset), 0, NULL, NULL },
};
#undef AT
static const struct shoal_pack_table newer = { newer_fields, 10 };

static struct thing a_thing(void)
{
    return (struct thing){ .alive = true,
                           .level = 7,
                           .cpus = 64,
                           .bytes = UINT64_MAX,
                           .offset = -5,
                           .name = "sevench",
                           .hash = { 0, 1, 2, 3 },
                           .note = shoal_view_of("a note", 6),
                           .blob = shoal_view_of("\0\xff", 2),
                           .list_count = 3,
                           .list = { 1, 2, 300 } };
}

static size_t encode(const struct shoal_pack_table *table, const struct thing *thing, struct shoal_view kept,
                     uint8_t *bytes, size_t cap)
{
    struct shoal_pack_writer w = shoal_pack_writer_init(bytes, cap);

    shoal_pack_put_fields(&w, table, thing, kept);
    return w.failed ? 0 : w.len;
}

static bool decode(const struct shoal_pack_table *table, struct shoal_view view, struct thing *thing,
                   struct shoal_view *kept)
{
    struct shoal_pack_reader r = shoal_pack_reader_init(view);

    memset(thing, 0, sizeof(*thing));
    shoal_pack_get_fields(&r, table, thing, kept);
    return shoal_pack_reader_done(&r);
}

static void test_table_there_and_back(void **state)
{
    struct thing thing = a_thing(), back;
    uint8_t bytes[256], again[256];
    size_t len = encode(&newer, &thing, (struct shoal_view){ 0 }, bytes, sizeof(bytes));
    struct shoal_view kept;

    (void)state;
    assert_true(len > 0);
    assert_true(decode(&newer, shoal_view_of(bytes, len), &back, &kept));
    assert_true(kept.len == 0);
    assert_true(back.alive && back.level == 7 && back.cpus == 64 && back.bytes == UINT64_MAX && back.offset == -5);
    assert_true(strcmp(back.name, "sevench") == 0 && memcmp(back.hash, thing.hash, 4) == 0);
    assert_true(shoal_view_equal(back.note, thing.note) && shoal_view_equal(back.blob, thing.blob));
    assert_true(back.list_count == 3 && back.list[2] == 300);
    assert_int_equal(encode(&newer, &back, kept, again, sizeof(again)), len);
    assert_memory_equal(bytes, again, len);
    for (size_t n = 0; n < len; n++) {
        memcpy(page_end - n, bytes, n);
        assert_false(decode(&newer, shoal_view_of(page_end - n, n), &back, &kept));
        assert_int_equal(encode(&newer, &thing, kept, page_end - n, n), 0);
    }
}

static void test_zero_is_not_written(void **state)
{
    struct thing zero = { 0 }, back;
    uint8_t bytes[8];

    (void)state;
    assert_int_equal(encode(&newer, &zero, (struct shoal_view){ 0 }, bytes, sizeof(bytes)), 1);
    assert_int_equal(bytes[0], 0x80); /* a map without fields */
    assert_true(decode(&newer, shoal_view_of(bytes, 1), &back, NULL));
    assert_true(!back.alive && back.cpus == 0 && back.list_count == 0);
}

/* An older program knows any three rows of the table; what it read and writes again is what it got, to the byte. */
static void test_unknown_fields_are_kept(void **state)
{
    struct thing thing = a_thing(), back;
    uint8_t bytes[256], again[256];
    size_t len = encode(&newer, &thing, (struct shoal_view){ 0 }, bytes, sizeof(bytes));

    (void)state;
    for (size_t first = 0; first + 3 <= newer.count; first++) {
        struct shoal_pack_table older = { newer_fields + first, 3 };
        struct shoal_view kept;

        assert_true(decode(&older, shoal_view_of(bytes, len), &back, &kept));
        assert_int_equal(kept.len, len);
        memset(again, 0, sizeof(again));
        if (encode(&older, &back, kept, again, sizeof(again)) != len || memcmp(bytes, again, len) != 0)
            fail_msg("it differs for one who knows %s and two more", newer_fields[first].name);
    }
}

/* The fields that it changes are changed, and the rest stays. */
static void test_known_fields_win_over_kept_ones(void **state)
{
    struct thing thing = a_thing(), back;
    struct shoal_pack_table older = { newer_fields + 2, 2 }; /* bytes, cpus */
    struct shoal_view kept, none = { 0 };
    uint8_t bytes[256], again[256], want[256];
    size_t len = encode(&newer, &thing, none, bytes, sizeof(bytes));

    (void)state;
    assert_true(decode(&older, shoal_view_of(bytes, len), &back, &kept));
    back.cpus = 3;
    back.bytes = 0;
    thing.cpus = 3;
    thing.bytes = 0;
    len = encode(&newer, &thing, none, want, sizeof(want));
    assert_int_equal(encode(&older, &back, kept, again, sizeof(again)), len);
    assert_memory_equal(want, again, len);
}

/* The kept bytes were read once; bytes that no longer are a map are an error, not a message cut short. */
static void test_damaged_kept_fields(void **state)
{
    struct thing thing = a_thing();
    uint8_t out[256];

    (void)state;
    assert_int_equal(encode(&newer, &thing, shoal_view_of("\x82\xa1z\x01", 4), out, sizeof(out)), 0);
    assert_int_equal(encode(&newer, &thing, shoal_view_of("\x91\x01", 2), out, sizeof(out)), 0);
}

static const struct refused tables[] = {
    { "fields out of order",
      "\x82\xa4name\xa1x\xa4"
      "cpus\x01",
      14 },
    { "a field twice",
      "\x82\xa4"
      "cpus\x01\xa4"
      "cpus\x01",
      13 },
    { "an unknown field twice", "\x82\xa1z\x01\xa1z\x01", 7 },
    { "the empty name twice", "\x82\xa0\x01\xa0\x01", 5 },
    { "a number above its bound",
      "\x81\xa4"
      "cpus\x41",
      7 },
    { "a text that is too long",
      "\x81\xa4name\xa8"
      "eightchr",
      15 },
    { "a hash that is too short",
      "\x81\xa4hash\xc4\x03"
      "abc",
      11 },
    { "a name that is a number", "\x81\x01\x01", 3 },
    { "a list for a number",
      "\x81\xa4"
      "cpus\x91\x01",
      8 },
    { "an array instead of a map", "\x91\x01", 2 },
};

static void test_tables_refuse(void **state)
{
    struct thing thing;
    struct shoal_view kept;

    (void)state;
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        struct shoal_view view = shoal_view_of(tables[i].bytes, tables[i].len);
        struct shoal_pack_reader r = shoal_pack_reader_init(view);

        shoal_pack_skip(&r);
        if (!shoal_pack_reader_done(&r))
            fail_msg("the row is no value at all: %s", tables[i].says);
        if (decode(&newer, view, &thing, &kept) || kept.len != 0)
            fail_msg("not refused: %s", tables[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_depth_bound_is_reached),
        cmocka_unit_test(test_types_and_bounds),
        cmocka_unit_test(test_long_integers_are_read),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_table_there_and_back),
        cmocka_unit_test(test_zero_is_not_written),
        cmocka_unit_test(test_unknown_fields_are_kept),
        cmocka_unit_test(test_known_fields_win_over_kept_ones),
        cmocka_unit_test(test_damaged_kept_fields),
        cmocka_unit_test(test_tables_refuse),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
