/* MessagePack for what grows fields, or meets programs of another version or language: job specifications, records in
 * gossip, records of the archive, messages to Python, `application/msgpack`. Frames, log entries, store keys and what a
 * signature covers stay with the fixed codec of wire.h (decisions 0001 and 0013).
 *
 *     struct shoal_pack_writer w = shoal_pack_writer_init(bytes, cap);
 *     shoal_pack_begin_map(&w);
 *     shoal_pack_put_name(&w, "cpus");  shoal_pack_put_u64(&w, 8);
 *     shoal_pack_end_map(&w);
 *     if (w.failed) return SHOAL_ERR_TOO_BIG;
 *
 *     struct shoal_pack_reader r = shoal_pack_reader_init(view);
 *     struct shoal_pack_map map = shoal_pack_get_map(&r);
 *     while (shoal_pack_next_field(&r, &map))
 *         if (shoal_pack_named(&map, "cpus"))
 *             cpus = shoal_pack_get_u64(&r, UINT32_MAX);
 *         else
 *             shoal_pack_skip(&r);
 *     if (!shoal_pack_reader_done(&r)) return SHOAL_ERR_MALFORMED;
 *
 * P1. Nothing is allocated. A writer never writes past `cap`, a reader never reads past its view; both remember the
 *     first failure, and are asked once, at the end.
 * P2. A reader takes every prefix, and every garbage, as malformed; no foreign byte reaches an assertion. Depth is at
 *     most SHOAL_PACK_DEPTH_MAX, fields of a map at most SHOAL_PACK_FIELDS_MAX, and time is linear in the bytes.
 * P3. One value has one encoding here: shortest integers and lengths, and the fields that a table writes stand in rising
 *     order of their names' bytes, each at most once. So a hash over a specification is stable. A reader of a table's
 *     fields insists on the order; any other reader takes what any MessagePack program writes.
 * P4. A field at zero is not written, and a field that is absent is zero. So the zero of a new field must mean what was
 *     done before there was this field: then an older program's message and a newer one's say the same.
 * P5. Unknown fields are kept as they were, and are written back in their places.
 *
 * Source: the MessagePack specification (2013 edition, with str, bin and ext apart). */
#ifndef SHOAL_PACK_H
#define SHOAL_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/limits.h"

/* ---- Writing ---------------------------------------------------------------------------------------------------- */

struct shoal_pack_writer {
    uint8_t *bytes;
    size_t cap;
    size_t len;
    bool failed;
    unsigned depth; /* maps begun and not ended */
    struct {
        size_t at; /* of its first byte */
        uint32_t count;
    } open[SHOAL_PACK_DEPTH_MAX];
};

static inline struct shoal_pack_writer shoal_pack_writer_init(void *bytes, size_t cap)
{
    return (struct shoal_pack_writer){ .bytes = bytes, .cap = cap };
}

static inline struct shoal_view shoal_pack_writer_view(const struct shoal_pack_writer *w)
{
    return (struct shoal_view){ .bytes = w->bytes, .len = w->failed ? 0 : w->len };
}

void shoal_pack_put_nil(struct shoal_pack_writer *w);
void shoal_pack_put_bool(struct shoal_pack_writer *w, bool value);
void shoal_pack_put_u64(struct shoal_pack_writer *w, uint64_t value);
void shoal_pack_put_i64(struct shoal_pack_writer *w, int64_t value);
void shoal_pack_put_f64(struct shoal_pack_writer *w, double value);
/* Text, which should be UTF-8; readers of other languages may insist on it. */
void shoal_pack_put_str(struct shoal_pack_writer *w, struct shoal_view text);
void shoal_pack_put_text(struct shoal_pack_writer *w, const char *text);
void shoal_pack_put_bin(struct shoal_pack_writer *w, struct shoal_view bytes);
/* `count` values follow. */
void shoal_pack_put_array(struct shoal_pack_writer *w, uint32_t count);
/* Whole values that are encoded already. */
void shoal_pack_put_raw(struct shoal_pack_writer *w, struct shoal_view values);
/* Between these two, each value is preceded by its name. The count is found by counting the names. */
void shoal_pack_begin_map(struct shoal_pack_writer *w);
void shoal_pack_put_name(struct shoal_pack_writer *w, const char *name);
void shoal_pack_end_map(struct shoal_pack_writer *w);

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

/* A value that a foreign program wrote, where any type may stand. A negative integer is an INT, all others are UINT. */
enum shoal_pack_type {
    SHOAL_PACK_NIL,
    SHOAL_PACK_BOOL,
    SHOAL_PACK_UINT,
    SHOAL_PACK_INT,
    SHOAL_PACK_F64,
    SHOAL_PACK_STR,
    SHOAL_PACK_BIN,
    SHOAL_PACK_EXT, /* `bytes` begins with its type */
    SHOAL_PACK_ARRAY,
    SHOAL_PACK_MAP,
};

struct shoal_pack_value {
    enum shoal_pack_type type;
    bool truth;
    uint64_t uint; /* also the bits of an INT */
    double number;
    struct shoal_view bytes; /* STR, BIN, EXT: inside the input */
    uint32_t count;          /* ARRAY: values that follow; MAP: pairs that follow */
};

struct shoal_pack_reader {
    const uint8_t *bytes;
    size_t len;
    size_t at;
    bool failed;
};

static inline struct shoal_pack_reader shoal_pack_reader_init(struct shoal_view view)
{
    return (struct shoal_pack_reader){ .bytes = view.bytes, .len = view.len };
}

/* The next value, of an array or map its head alone. A failed reader gives NIL. */
struct shoal_pack_value shoal_pack_next(struct shoal_pack_reader *r);
/* The next value, whatever it is, with all that is inside it. Empty: the reader has failed. */
struct shoal_view shoal_pack_get_raw(struct shoal_pack_reader *r);

/* A value of another type, or beyond its bound, is malformed; a failed reader gives zeroes. */
bool shoal_pack_get_bool(struct shoal_pack_reader *r);
uint64_t shoal_pack_get_u64(struct shoal_pack_reader *r, uint64_t max);
int64_t shoal_pack_get_i64(struct shoal_pack_reader *r);
double shoal_pack_get_f64(struct shoal_pack_reader *r); /* an integer is taken too */
struct shoal_view shoal_pack_get_str(struct shoal_pack_reader *r, size_t len_max);
struct shoal_view shoal_pack_get_bin(struct shoal_pack_reader *r, size_t len_max);
/* Text of at most `cap` - 1 bytes without NUL, copied and terminated. */
void shoal_pack_get_text(struct shoal_pack_reader *r, char *text, size_t cap);
/* The number of values that follow. */
uint32_t shoal_pack_get_array(struct shoal_pack_reader *r, uint32_t count_max);

static inline void shoal_pack_skip(struct shoal_pack_reader *r) { (void)shoal_pack_get_raw(r); }

/* A walk over a map's fields. */
struct shoal_pack_map {
    uint32_t left;
    struct shoal_view name; /* of the field that is read next */
};
struct shoal_pack_map shoal_pack_get_map(struct shoal_pack_reader *r);
/* False: there is no further field, or the reader has failed. A name that is no text is malformed. */
bool shoal_pack_next_field(struct shoal_pack_reader *r, struct shoal_pack_map *map);
bool shoal_pack_named(const struct shoal_pack_map *map, const char *name);

/* Nothing was malformed and nothing is left over. */
static inline bool shoal_pack_reader_done(const struct shoal_pack_reader *r) { return !r->failed && r->at == r->len; }

/* ---- A message's head ------------------------------------------------------------------------------------------- */

/* Before a message's map: three bytes, which are three integers to a MessagePack program. */
struct shoal_pack_head {
    uint8_t kind;    /* enum shoal_pack_kind */
    uint8_t version; /* below 128 */
    uint8_t oldest;  /* version that can read it */
};

/* Every kind of message has its letter, so that none is taken for another. */
enum shoal_pack_kind {
    SHOAL_PACK_KIND_ARCHIVE = 'a',
    SHOAL_PACK_KIND_ENGINE = 'e',
    SHOAL_PACK_KIND_FACTS = 'f', /* of a node */
    SHOAL_PACK_KIND_JOB = 'o',   /* what `show` says */
    SHOAL_PACK_KIND_LOAD = 'l',
    SHOAL_PACK_KIND_SLOTS = 's',
    SHOAL_PACK_KIND_SERVING = 'v', /* of a node: which services it has replicas of */
    SHOAL_PACK_KIND_SPEC = 'j',
    SHOAL_PACK_KIND_SUMMARY = 'y',
};

void shoal_pack_put_head(struct shoal_pack_writer *w, struct shoal_pack_head head);
/* MALFORMED: cut off, no head, or another kind. UNSUPPORTED: only a version above `ours` can read it. `head` may be
 * NULL. */
SHOAL_MUST_CHECK enum shoal_err shoal_pack_get_head(struct shoal_pack_reader *r, enum shoal_pack_kind kind,
                                                    uint8_t ours, struct shoal_pack_head *head);

/* ---- A struct's fields, by a table ------------------------------------------------------------------------------ */

/* How a field lies in the struct. `size` is that of its place for TEXT and FIXED, and the greatest value, or length, for
 * the others. */
enum shoal_pack_shape {
    SHOAL_PACK_IS_BOOL,  /* bool */
    SHOAL_PACK_IS_U8,    /* uint8_t up to `size` */
    SHOAL_PACK_IS_U32,   /* uint32_t up to `size` */
    SHOAL_PACK_IS_U64,   /* uint64_t up to `size` */
    SHOAL_PACK_IS_I32,   /* int32_t */
    SHOAL_PACK_IS_I64,   /* int64_t */
    SHOAL_PACK_IS_TEXT,  /* char[size], terminated */
    SHOAL_PACK_IS_FIXED, /* uint8_t[size], or a struct of such an array: a hash, an id */
    SHOAL_PACK_IS_STR,   /* struct shoal_view into the input, at most `size` bytes */
    SHOAL_PACK_IS_BIN,   /* the same, any bytes */
    SHOAL_PACK_IS_OWN,   /* `put` and `get` below */
};

struct shoal_pack_field {
    const char *name;
    enum shoal_pack_shape shape;
    size_t offset;
    uint64_t size;
    /* OWN: `base` is the whole struct. `put` writes one value, or nothing and returns false where it is zero: called
     * before the name is written with `w` NULL to ask just that. `get` reads one value. */
    bool (*put)(struct shoal_pack_writer *w, const void *base);
    void (*get)(struct shoal_pack_reader *r, void *base);
};

/* Rows stand in rising order of their names (asserted). */
struct shoal_pack_table {
    const struct shoal_pack_field *fields;
    size_t count;
};

/* One map: the fields of `base` that are not zero, and of the map `kept` (empty: none) those that the table does not
 * know. */
void shoal_pack_put_fields(struct shoal_pack_writer *w, const struct shoal_pack_table *table, const void *base,
                           struct shoal_view kept);
/* Reads one map into `base`, which is all zero before. `kept`, where not NULL: the whole map's bytes when it has unknown
 * fields, else empty; it points into the input. */
void shoal_pack_get_fields(struct shoal_pack_reader *r, const struct shoal_pack_table *table, void *base,
                           struct shoal_view *kept);

/* One row of a table: SHOAL_PACK_ROW(struct thing, "cpus", U32, cpus, 64), SHOAL_PACK_TEXT(struct thing, "name", name),
 * SHOAL_PACK_OWN("jobs", put_jobs, get_jobs). */
#define SHOAL_PACK_ROW(type, name, shape, member, max)                                                                 \
    {                                                                                                                  \
        name, SHOAL_PACK_IS_##shape, offsetof(type, member), max, NULL, NULL                                           \
    }
#define SHOAL_PACK_TEXT(type, name, member)                                                                            \
    SHOAL_PACK_ROW(type, name, TEXT, member, sizeof(((const type *)NULL)->member))
#define SHOAL_PACK_ID(type, name, member)                                                                              \
    SHOAL_PACK_ROW(type, name, FIXED, member, sizeof(((const type *)NULL)->member))
#define SHOAL_PACK_OWN(name, put, get)                                                                                 \
    {                                                                                                                  \
        name, SHOAL_PACK_IS_OWN, 0, 0, put, get                                                                        \
    }
#define SHOAL_PACK_TABLE(rows)                                                                                         \
    {                                                                                                                  \
        rows, sizeof(rows) / sizeof((rows)[0])                                                                         \
    }

/* A whole message: a head and one map. TOO_BIG: over `cap`. */
SHOAL_MUST_CHECK enum shoal_err shoal_pack_encode(struct shoal_pack_head head, const struct shoal_pack_table *table,
                                                  const void *base, uint8_t *bytes, size_t cap, size_t *len);
/* `base` is all zero before; unknown fields are passed over. MALFORMED, UNSUPPORTED. */
SHOAL_MUST_CHECK enum shoal_err shoal_pack_decode(struct shoal_view bytes, enum shoal_pack_kind kind, uint8_t ours,
                                                  const struct shoal_pack_table *table, void *base);

#endif
