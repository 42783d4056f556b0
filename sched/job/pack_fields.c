/* The fields of a struct, written and read by one table: see shoal/pack.h, P3 to P5.
 *
 *     table:   args   cpus   name            in the order of their names
 *     kept:        bias             zone     what a newer version wrote, and this one does not know
 *     written: args bias cpus name zone      the two, merged
 */
#include "shoal/pack.h"

#include <string.h>

#include "shoal/banned.h"

/* The order of names is that of their bytes; a name stands before a longer one that begins with it. */
static int name_order(struct shoal_view a, struct shoal_view b)
{
    int order = memcmp(a.bytes, b.bytes, a.len < b.len ? a.len : b.len);

    if (order != 0 || a.len == b.len)
        return order;
    return a.len < b.len ? -1 : 1;
}

/* The struct's places hold the types that the table says; memcpy spares the compiler a cast from bytes. */
static uint64_t uint_at(const uint8_t *at, size_t width)
{
    uint32_t u32;
    uint64_t u64;

    SHOAL_ASSERT(width == 1 || width == 4 || width == 8);
    if (width == 1)
        return *at;
    if (width == sizeof(u32)) {
        memcpy(&u32, at, sizeof(u32));
        return u32;
    }
    memcpy(&u64, at, sizeof(u64));
    return u64;
}

static int32_t i32_at(const uint8_t *at)
{
    int32_t value;

    SHOAL_ASSERT(at != NULL);
    memcpy(&value, at, sizeof(value));
    return value;
}

static void uint_store(uint8_t *at, size_t width, uint64_t value)
{
    uint32_t u32 = (uint32_t)value;

    SHOAL_ASSERT(width == 1 || width == 4 || width == 8);
    if (width == 1)
        *at = (uint8_t)value;
    else if (width == sizeof(u32))
        memcpy(at, &u32, sizeof(u32));
    else
        memcpy(at, &value, sizeof(value));
}

static struct shoal_view view_at(const uint8_t *at)
{
    struct shoal_view view;

    SHOAL_ASSERT(at != NULL);
    memcpy(&view, at, sizeof(view));
    return view;
}

static bool all_zero(const uint8_t *at, size_t len)
{
    SHOAL_ASSERT(len > 0);
    for (size_t i = 0; i < len; i++)
        if (at[i] != 0)
            return false;
    return true;
}

static bool is_zero(const struct shoal_pack_field *field, const void *base)
{
    const uint8_t *at = (const uint8_t *)base + field->offset;

    SHOAL_ASSERT(field->shape <= SHOAL_PACK_IS_OWN);
    switch (field->shape) {
    case SHOAL_PACK_IS_BOOL:
    case SHOAL_PACK_IS_U8: return uint_at(at, 1) == 0;
    case SHOAL_PACK_IS_I32:
    case SHOAL_PACK_IS_U32: return uint_at(at, 4) == 0;
    case SHOAL_PACK_IS_U64:
    case SHOAL_PACK_IS_I64: return uint_at(at, 8) == 0;
    case SHOAL_PACK_IS_TEXT: return *at == 0;
    case SHOAL_PACK_IS_FIXED: return all_zero(at, field->size);
    case SHOAL_PACK_IS_STR:
    case SHOAL_PACK_IS_BIN: return view_at(at).len == 0;
    case SHOAL_PACK_IS_OWN: return !field->put(NULL, base);
    }
    return true;
}

static void put_uint(struct shoal_pack_writer *w, const struct shoal_pack_field *field, uint64_t value)
{
    SHOAL_ASSERT(value <= field->size); /* our own value: what is written can be read */
    shoal_pack_put_u64(w, value);
}

static void put_bytes(struct shoal_pack_writer *w, const struct shoal_pack_field *field, struct shoal_view view)
{
    SHOAL_ASSERT(field->shape == SHOAL_PACK_IS_STR || field->shape == SHOAL_PACK_IS_BIN);
    if (view.len > field->size)
        w->failed = true;
    else if (field->shape == SHOAL_PACK_IS_STR)
        shoal_pack_put_str(w, view);
    else
        shoal_pack_put_bin(w, view);
}

static void put_value(struct shoal_pack_writer *w, const struct shoal_pack_field *field, const void *base)
{
    const uint8_t *at = (const uint8_t *)base + field->offset;

    SHOAL_ASSERT(field->shape <= SHOAL_PACK_IS_OWN);
    switch (field->shape) {
    case SHOAL_PACK_IS_BOOL: shoal_pack_put_bool(w, uint_at(at, 1) != 0); break;
    case SHOAL_PACK_IS_U8: put_uint(w, field, uint_at(at, 1)); break;
    case SHOAL_PACK_IS_U32: put_uint(w, field, uint_at(at, 4)); break;
    case SHOAL_PACK_IS_U64: put_uint(w, field, uint_at(at, 8)); break;
    case SHOAL_PACK_IS_I32: shoal_pack_put_i64(w, i32_at(at)); break;
    case SHOAL_PACK_IS_I64: shoal_pack_put_i64(w, (int64_t)uint_at(at, 8)); break;
    case SHOAL_PACK_IS_TEXT: shoal_pack_put_str(w, shoal_view_of(at, strnlen((const char *)at, field->size))); break;
    case SHOAL_PACK_IS_FIXED: shoal_pack_put_bin(w, shoal_view_of(at, field->size)); break;
    case SHOAL_PACK_IS_STR:
    case SHOAL_PACK_IS_BIN: put_bytes(w, field, view_at(at)); break;
    case SHOAL_PACK_IS_OWN: (void)field->put(w, base); break;
    }
}

static void get_i32(struct shoal_pack_reader *r, uint8_t *at)
{
    int64_t value = shoal_pack_get_i64(r);

    SHOAL_ASSERT(r->at <= r->len); /* P1 */
    if (value < INT32_MIN || value > INT32_MAX) {
        r->failed = true;
        value = 0;
    }
    uint_store(at, 4, (uint32_t)value);
}

static void get_view(struct shoal_pack_reader *r, const struct shoal_pack_field *field, uint8_t *at)
{
    struct shoal_view view =
        field->shape == SHOAL_PACK_IS_STR ? shoal_pack_get_str(r, field->size) : shoal_pack_get_bin(r, field->size);

    SHOAL_ASSERT(field->shape == SHOAL_PACK_IS_STR || field->shape == SHOAL_PACK_IS_BIN);
    memcpy(at, &view, sizeof(view));
}

static void get_fixed(struct shoal_pack_reader *r, const struct shoal_pack_field *field, uint8_t *at)
{
    struct shoal_view view = shoal_pack_get_bin(r, field->size);

    SHOAL_ASSERT(field->shape == SHOAL_PACK_IS_FIXED);
    if (view.len == field->size)
        memcpy(at, view.bytes, view.len);
    else
        r->failed = true;
}

static void get_value(struct shoal_pack_reader *r, const struct shoal_pack_field *field, void *base)
{
    uint8_t *at = (uint8_t *)base + field->offset;

    SHOAL_ASSERT(field->shape <= SHOAL_PACK_IS_OWN);
    switch (field->shape) {
    case SHOAL_PACK_IS_BOOL: uint_store(at, 1, shoal_pack_get_bool(r)); break;
    case SHOAL_PACK_IS_U8: uint_store(at, 1, shoal_pack_get_u64(r, field->size)); break;
    case SHOAL_PACK_IS_U32: uint_store(at, 4, shoal_pack_get_u64(r, field->size)); break;
    case SHOAL_PACK_IS_U64: uint_store(at, 8, shoal_pack_get_u64(r, field->size)); break;
    case SHOAL_PACK_IS_I32: get_i32(r, at); break;
    case SHOAL_PACK_IS_I64: uint_store(at, 8, (uint64_t)shoal_pack_get_i64(r)); break;
    case SHOAL_PACK_IS_TEXT: shoal_pack_get_text(r, (char *)at, field->size); break;
    case SHOAL_PACK_IS_FIXED: get_fixed(r, field, at); break;
    case SHOAL_PACK_IS_STR:
    case SHOAL_PACK_IS_BIN: get_view(r, field, at); break;
    case SHOAL_PACK_IS_OWN: field->get(r, base); break;
    }
}

/* ---- What is kept ---- */

/* A walk over the fields of a map that was kept. */
struct kept {
    struct shoal_pack_reader r;
    struct shoal_pack_map map;
    bool more; /* `map.name` is a field whose value is read next */
};

static struct kept kept_init(struct shoal_view bytes)
{
    struct kept kept = { .r = shoal_pack_reader_init(bytes) };

    if (bytes.len > 0) {
        kept.map = shoal_pack_get_map(&kept.r);
        kept.more = shoal_pack_next_field(&kept.r, &kept.map);
    }
    return kept;
}

static void kept_put(struct kept *kept, struct shoal_pack_writer *w)
{
    struct shoal_view name = kept->map.name;

    SHOAL_ASSERT(kept->more);
    SHOAL_ASSERT(w->depth > 0); /* a field stands in a map */
    w->open[w->depth - 1].count++;
    shoal_pack_put_str(w, name);
    shoal_pack_put_raw(w, shoal_pack_get_raw(&kept->r));
    kept->more = shoal_pack_next_field(&kept->r, &kept->map);
}

/* Writes what stands before `name`, and passes over a field of this name: the struct has it. */
static void kept_put_before(struct kept *kept, struct shoal_pack_writer *w, struct shoal_view name)
{
    SHOAL_ASSERT(w->depth > 0); /* a field stands in a map */
    while (kept->more && name_order(kept->map.name, name) < 0)
        kept_put(kept, w);
    if (kept->more && name_order(kept->map.name, name) == 0) {
        shoal_pack_skip(&kept->r);
        kept->more = shoal_pack_next_field(&kept->r, &kept->map);
    }
}

/* ---- Whole structs ---- */

void shoal_pack_put_fields(struct shoal_pack_writer *w, const struct shoal_pack_table *table, const void *base,
                           struct shoal_view kept_bytes)
{
    struct kept kept = kept_init(kept_bytes);

    SHOAL_ASSERT(table->count > 0);
    shoal_pack_begin_map(w);
    for (size_t i = 0; i < table->count; i++) {
        const struct shoal_pack_field *field = &table->fields[i];
        struct shoal_view name = shoal_view_text(field->name);

        SHOAL_ASSERT(i == 0 || name_order(shoal_view_text(field[-1].name), name) < 0); /* P3 */
        kept_put_before(&kept, w, name);
        if (is_zero(field, base))
            continue;
        shoal_pack_put_name(w, field->name);
        put_value(w, field, base);
    }
    while (kept.more)
        kept_put(&kept, w);
    shoal_pack_end_map(w);
    if (kept.r.failed)
        w->failed = true;
}

/* The table's field of this name, looked for from row `at` on: both the table and the map rise. */
static const struct shoal_pack_field *find_field(const struct shoal_pack_table *table, size_t *at,
                                                 struct shoal_view name)
{
    SHOAL_ASSERT(*at <= table->count);
    for (; *at < table->count; (*at)++) {
        int order = name_order(shoal_view_text(table->fields[*at].name), name);

        if (order > 0)
            return NULL;
        if (order == 0)
            return &table->fields[*at];
    }
    return NULL;
}

void shoal_pack_get_fields(struct shoal_pack_reader *r, const struct shoal_pack_table *table, void *base,
                           struct shoal_view *kept)
{
    size_t from = r->at, row = 0;
    struct shoal_pack_map map = shoal_pack_get_map(r);
    struct shoal_view before = { 0 };
    bool unknown = false;

    SHOAL_ASSERT(r->at <= r->len); /* P1 */
    SHOAL_ASSERT(table->count > 0);
    while (shoal_pack_next_field(r, &map)) {
        const struct shoal_pack_field *field = find_field(table, &row, map.name);

        if (before.bytes != NULL && name_order(before, map.name) >= 0) {
            r->failed = true; /* P3 */
            break;
        }
        before = map.name;
        if (field != NULL) {
            get_value(r, field, base);
            continue;
        }
        unknown = true;
        shoal_pack_skip(r);
    }
    if (kept != NULL)
        *kept = unknown && !r->failed ? shoal_view_of(r->bytes + from, r->at - from) : (struct shoal_view){ 0 };
}

enum shoal_err shoal_pack_encode(struct shoal_pack_head head, const struct shoal_pack_table *table, const void *base,
                                 uint8_t *bytes, size_t cap, size_t *len)
{
    struct shoal_pack_writer w = shoal_pack_writer_init(bytes, cap);

    SHOAL_ASSERT(len != NULL);
    shoal_pack_put_head(&w, head);
    shoal_pack_put_fields(&w, table, base, (struct shoal_view){ 0 });
    if (w.failed)
        return SHOAL_ERR_TOO_BIG;
    *len = w.len;
    return SHOAL_OK;
}

enum shoal_err shoal_pack_decode(struct shoal_view bytes, enum shoal_pack_kind kind, uint8_t ours,
                                 const struct shoal_pack_table *table, void *base)
{
    struct shoal_pack_reader r = shoal_pack_reader_init(bytes);
    enum shoal_err err = shoal_pack_get_head(&r, kind, ours, NULL);

    SHOAL_ASSERT(base != NULL);
    if (err != SHOAL_OK)
        return err;
    shoal_pack_get_fields(&r, table, base, NULL);
    return shoal_pack_reader_done(&r) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}
