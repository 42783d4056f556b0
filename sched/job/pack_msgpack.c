/* Values of MessagePack, written and read by msgpack-c: see shoal/pack.h.
 *
 *     put_x --msgpack_pack_x--> append() ----> the caller's buffer
 *     next  <----- take() <-----execute------- the caller's view
 *
 * msgpack-c's unpacker is a template that calls back for each value. Here it runs over one value at a time, and stops at
 * the head of an array or map, so that the caller walks over the input by itself and no tree is built. To pass over a
 * whole value it runs on through what is inside, with a stack of fixed depth. Its functions that allocate are not used. */
#include "shoal/pack.h"

#define MSGPACK_EMBED_STACK_SIZE SHOAL_PACK_DEPTH_MAX
#include <msgpack/pack.h>
#include <msgpack/unpack.h>
#include <msgpack/unpack_define.h>

#include "shoal/banned.h"

/* ---- Writing ---- */

static int append(void *arg, const char *bytes, size_t len)
{
    struct shoal_pack_writer *w = arg;

    SHOAL_ASSERT(w->len <= w->cap); /* P2: never beyond the end */
    if (w->failed || len > w->cap - w->len) {
        w->failed = true;
        return -1;
    }
    if (len > 0)
        memcpy(w->bytes + w->len, bytes, len);
    w->len += len;
    return 0;
}

static msgpack_packer packer_of(struct shoal_pack_writer *w)
{
    SHOAL_ASSERT(w->len <= w->cap);
    return (msgpack_packer){ .data = w, .callback = append };
}

void shoal_pack_put_nil(struct shoal_pack_writer *w)
{
    SHOAL_ASSERT(w->len <= w->cap);
    msgpack_packer pk = packer_of(w);

    (void)msgpack_pack_nil(&pk);
}

void shoal_pack_put_bool(struct shoal_pack_writer *w, bool value)
{
    SHOAL_ASSERT(w->len <= w->cap);
    msgpack_packer pk = packer_of(w);

    (void)(value ? msgpack_pack_true(&pk) : msgpack_pack_false(&pk));
}

void shoal_pack_put_u64(struct shoal_pack_writer *w, uint64_t value)
{
    SHOAL_ASSERT(w->len <= w->cap);
    msgpack_packer pk = packer_of(w);

    (void)msgpack_pack_uint64(&pk, value);
}

void shoal_pack_put_i64(struct shoal_pack_writer *w, int64_t value)
{
    SHOAL_ASSERT(w->len <= w->cap);
    msgpack_packer pk = packer_of(w);

    (void)msgpack_pack_int64(&pk, value);
}

void shoal_pack_put_f64(struct shoal_pack_writer *w, double value)
{
    SHOAL_ASSERT(w->len <= w->cap);
    msgpack_packer pk = packer_of(w);

    (void)msgpack_pack_double(&pk, value);
}

/* A length over 32 bits has no encoding. */
static bool has_length(struct shoal_pack_writer *w, size_t len)
{
    SHOAL_ASSERT(w->len <= w->cap);
    if (len > UINT32_MAX)
        w->failed = true;
    return !w->failed;
}

void shoal_pack_put_str(struct shoal_pack_writer *w, struct shoal_view text)
{
    SHOAL_ASSERT(w->len <= w->cap);
    msgpack_packer pk = packer_of(w);

    if (has_length(w, text.len))
        (void)msgpack_pack_str_with_body(&pk, text.bytes, text.len);
}

void shoal_pack_put_text(struct shoal_pack_writer *w, const char *text)
{
    shoal_pack_put_str(w, shoal_view_text(text));
}

void shoal_pack_put_bin(struct shoal_pack_writer *w, struct shoal_view bytes)
{
    SHOAL_ASSERT(w->len <= w->cap);
    msgpack_packer pk = packer_of(w);

    if (has_length(w, bytes.len))
        (void)msgpack_pack_bin_with_body(&pk, bytes.bytes, bytes.len);
}

void shoal_pack_put_array(struct shoal_pack_writer *w, uint32_t count)
{
    SHOAL_ASSERT(w->len <= w->cap);
    msgpack_packer pk = packer_of(w);

    (void)msgpack_pack_array(&pk, count);
}

void shoal_pack_put_raw(struct shoal_pack_writer *w, struct shoal_view values)
{
    SHOAL_ASSERT(w->len <= w->cap);
    (void)append(w, (const char *)values.bytes, values.len);
}

void shoal_pack_begin_map(struct shoal_pack_writer *w)
{
    msgpack_packer pk = packer_of(w);

    SHOAL_ASSERT(w->depth < SHOAL_PACK_DEPTH_MAX); /* P2 */
    w->open[w->depth].at = w->len;
    w->open[w->depth].count = 0;
    w->depth++;
    (void)msgpack_pack_map(&pk, 0);
}

void shoal_pack_put_name(struct shoal_pack_writer *w, const char *name)
{
    SHOAL_ASSERT(w->depth > 0); /* a name stands in a map */
    SHOAL_ASSERT(name != NULL && name[0] != '\0');
    w->open[w->depth - 1].count++;
    shoal_pack_put_text(w, name);
}

/* The head was written for no field; the true one may be longer, and then what follows moves. */
void shoal_pack_end_map(struct shoal_pack_writer *w)
{
    uint8_t bytes[8];
    struct shoal_pack_writer head = shoal_pack_writer_init(bytes, sizeof(bytes));
    msgpack_packer pk = packer_of(&head);
    size_t body;

    SHOAL_ASSERT(w->depth > 0); /* each end has its begin */
    SHOAL_ASSERT(w->open[w->depth - 1].at <= w->len);
    w->depth--;
    body = w->open[w->depth].at + 1;
    (void)msgpack_pack_map(&pk, w->open[w->depth].count);
    if (w->failed || head.len - 1 > w->cap - w->len) {
        w->failed = true;
        return;
    }
    memmove(w->bytes + body + head.len - 1, w->bytes + body, w->len - body);
    memcpy(w->bytes + body - 1, bytes, head.len);
    w->len += head.len - 1;
}

void shoal_pack_put_head(struct shoal_pack_writer *w, struct shoal_pack_head head)
{
    SHOAL_ASSERT(head.kind < 128 && head.version < 128 && head.oldest <= head.version); /* P3: a byte each */
    shoal_pack_put_u64(w, head.kind);
    shoal_pack_put_u64(w, head.version);
    shoal_pack_put_u64(w, head.oldest);
}

/* ---- Reading: the callbacks of msgpack-c's template ---- */

/* The answers of a callback that stop the template; its own answers are 1, 0 and MSGPACK_UNPACK_ errors down to -2. */
enum { REFUSED = -1, AT_HEAD = -100 };

struct walk {
    bool stop_at_head; /* of an array or a map */
};

/* A template's types must be single words. */
typedef struct walk take_user;
typedef struct shoal_pack_value take_object;

#define msgpack_unpack_struct(name) struct take##name
#define msgpack_unpack_func(ret, name) static ret take##name
#define msgpack_unpack_callback(name) on##name
#define msgpack_unpack_object take_object
#define msgpack_unpack_user take_user

static inline struct shoal_pack_value on_root(struct walk *walk)
{
    (void)walk;
    return (struct shoal_pack_value){ .type = SHOAL_PACK_NIL };
}

static inline int is_uint(struct shoal_pack_value *value, uint64_t uint)
{
    *value = (struct shoal_pack_value){ .type = SHOAL_PACK_UINT, .uint = uint };
    return 0;
}

static inline int is_int(struct shoal_pack_value *value, int64_t number)
{
    *value =
        (struct shoal_pack_value){ .type = number < 0 ? SHOAL_PACK_INT : SHOAL_PACK_UINT, .uint = (uint64_t)number };
    return 0;
}

/* The template gives no place where nothing is; a view of nothing points at the input's start, so that it is one. */
static inline int is_bytes(struct shoal_pack_value *value, enum shoal_pack_type type, const char *all, const char *at,
                           unsigned len)
{
    SHOAL_ASSERT(type == SHOAL_PACK_STR || type == SHOAL_PACK_BIN || type == SHOAL_PACK_EXT);
    *value = (struct shoal_pack_value){ .type = type, .bytes = shoal_view_of(len == 0 ? all : at, len) };
    return 0;
}

static inline int on_uint8(struct walk *walk, uint8_t d, take_object *o) { return (void)walk, is_uint(o, d); }
static inline int on_uint16(struct walk *walk, uint16_t d, take_object *o) { return (void)walk, is_uint(o, d); }
static inline int on_uint32(struct walk *walk, uint32_t d, take_object *o) { return (void)walk, is_uint(o, d); }
static inline int on_uint64(struct walk *walk, uint64_t d, take_object *o) { return (void)walk, is_uint(o, d); }
static inline int on_int8(struct walk *walk, int8_t d, take_object *o) { return (void)walk, is_int(o, d); }
static inline int on_int16(struct walk *walk, int16_t d, take_object *o) { return (void)walk, is_int(o, d); }
static inline int on_int32(struct walk *walk, int32_t d, take_object *o) { return (void)walk, is_int(o, d); }
static inline int on_int64(struct walk *walk, int64_t d, take_object *o) { return (void)walk, is_int(o, d); }

static inline int on_double(struct walk *walk, double d, take_object *o)
{
    (void)walk;
    *o = (struct shoal_pack_value){ .type = SHOAL_PACK_F64, .number = d };
    return 0;
}

static inline int on_float(struct walk *walk, float d, take_object *o) { return on_double(walk, (double)d, o); }

static inline int on_nil(struct walk *walk, take_object *o)
{
    *o = on_root(walk);
    return 0;
}

static inline int is_truth(take_object *o, bool truth)
{
    *o = (struct shoal_pack_value){ .type = SHOAL_PACK_BOOL, .truth = truth };
    return 0;
}

static inline int on_true(struct walk *walk, take_object *o) { return (void)walk, is_truth(o, true); }
static inline int on_false(struct walk *walk, take_object *o) { return (void)walk, is_truth(o, false); }

static inline int on_str(struct walk *walk, const char *all, const char *at, unsigned len, take_object *o)
{
    return (void)walk, is_bytes(o, SHOAL_PACK_STR, all, at, len);
}

static inline int on_bin(struct walk *walk, const char *all, const char *at, unsigned len, take_object *o)
{
    return (void)walk, is_bytes(o, SHOAL_PACK_BIN, all, at, len);
}

/* The length counts the type's byte: 0 is a length of 32 bits that wrapped round. */
static inline int on_ext(struct walk *walk, const char *all, const char *at, unsigned len, take_object *o)
{
    return (void)walk, len == 0 ? REFUSED : is_bytes(o, SHOAL_PACK_EXT, all, at, len);
}

static inline int is_head(const struct walk *walk, take_object *o, enum shoal_pack_type type, unsigned count)
{
    SHOAL_ASSERT(type == SHOAL_PACK_ARRAY || type == SHOAL_PACK_MAP);
    *o = (struct shoal_pack_value){ .type = type, .count = count };
    return walk->stop_at_head ? AT_HEAD : 0;
}

static inline int on_array(struct walk *w, unsigned n, take_object *o) { return is_head(w, o, SHOAL_PACK_ARRAY, n); }
static inline int on_map(struct walk *w, unsigned n, take_object *o) { return is_head(w, o, SHOAL_PACK_MAP, n); }

static inline int on_array_item(struct walk *walk, take_object *array, take_object item)
{
    return (void)walk, (void)array, (void)item, 0;
}

static inline int on_map_item(struct walk *walk, take_object *map, take_object key, take_object value)
{
    return (void)walk, (void)map, (void)key, (void)value, 0;
}

#include <msgpack/unpack_template.h>

/* ---- Reading ---- */

/* One value from where the reader stands. When it stops at a head, the template has not yet stepped past its last
 * byte. */
static struct shoal_pack_value take_value(struct shoal_pack_reader *r, bool stop_at_head)
{
    struct take_context ctx;
    size_t at = r->at;
    int ret;

    SHOAL_ASSERT(r->at <= r->len); /* P1 */
    if (r->failed || at >= r->len) {
        r->failed = true;
        return (struct shoal_pack_value){ .type = SHOAL_PACK_NIL };
    }
    ctx.user = (struct walk){ .stop_at_head = stop_at_head };
    take_init(&ctx);
    ret = take_execute(&ctx, (const char *)r->bytes, r->len, &at);
    if (ret == AT_HEAD)
        at++;
    if (ret != 1 && ret != AT_HEAD) {
        r->failed = true;
        return (struct shoal_pack_value){ .type = SHOAL_PACK_NIL };
    }
    SHOAL_ASSERT(at > r->at && at <= r->len); /* P1 */
    r->at = at;
    return take_data(&ctx);
}

struct shoal_pack_value shoal_pack_next(struct shoal_pack_reader *r) { return take_value(r, true); }

struct shoal_view shoal_pack_get_raw(struct shoal_pack_reader *r)
{
    size_t from = r->at;

    SHOAL_ASSERT(r->at <= r->len); /* P1 */
    (void)take_value(r, false);
    return r->failed ? (struct shoal_view){ 0 } : shoal_view_of(r->bytes + from, r->at - from);
}

/* The next value when it is of this type; else the reader has failed. */
static struct shoal_pack_value get_typed(struct shoal_pack_reader *r, enum shoal_pack_type type)
{
    struct shoal_pack_value value = shoal_pack_next(r);

    SHOAL_ASSERT(r->at <= r->len); /* P1 */
    if (!r->failed && value.type == type)
        return value;
    r->failed = true;
    return (struct shoal_pack_value){ .type = type };
}

bool shoal_pack_get_bool(struct shoal_pack_reader *r) { return get_typed(r, SHOAL_PACK_BOOL).truth; }

uint64_t shoal_pack_get_u64(struct shoal_pack_reader *r, uint64_t max)
{
    uint64_t value = get_typed(r, SHOAL_PACK_UINT).uint;

    SHOAL_ASSERT(r->at <= r->len); /* P1 */
    if (value > max)
        r->failed = true;
    return r->failed ? 0 : value;
}

int64_t shoal_pack_get_i64(struct shoal_pack_reader *r)
{
    struct shoal_pack_value value = shoal_pack_next(r);

    SHOAL_ASSERT(r->at <= r->len); /* P1 */
    if (value.type != SHOAL_PACK_INT && (value.type != SHOAL_PACK_UINT || value.uint > INT64_MAX))
        r->failed = true;
    return r->failed ? 0 : (int64_t)value.uint;
}

double shoal_pack_get_f64(struct shoal_pack_reader *r)
{
    struct shoal_pack_value value = shoal_pack_next(r);

    SHOAL_ASSERT(r->at <= r->len); /* P1 */
    if (r->failed)
        return 0;
    if (value.type == SHOAL_PACK_F64)
        return value.number;
    if (value.type == SHOAL_PACK_UINT)
        return (double)value.uint;
    if (value.type == SHOAL_PACK_INT)
        return (double)(int64_t)value.uint;
    r->failed = true;
    return 0;
}

static struct shoal_view get_bytes(struct shoal_pack_reader *r, enum shoal_pack_type type, size_t len_max)
{
    struct shoal_view bytes = get_typed(r, type).bytes;

    SHOAL_ASSERT(type == SHOAL_PACK_STR || type == SHOAL_PACK_BIN);
    if (bytes.len > len_max)
        r->failed = true;
    return r->failed ? (struct shoal_view){ 0 } : bytes;
}

struct shoal_view shoal_pack_get_str(struct shoal_pack_reader *r, size_t len_max)
{
    SHOAL_ASSERT(r->at <= r->len); /* P1 */
    return get_bytes(r, SHOAL_PACK_STR, len_max);
}

struct shoal_view shoal_pack_get_bin(struct shoal_pack_reader *r, size_t len_max)
{
    SHOAL_ASSERT(r->at <= r->len); /* P1 */
    return get_bytes(r, SHOAL_PACK_BIN, len_max);
}

void shoal_pack_get_text(struct shoal_pack_reader *r, char *text, size_t cap)
{
    struct shoal_view view = shoal_pack_get_str(r, cap - 1);

    SHOAL_ASSERT(cap > 0);
    if (view.len > 0 && memchr(view.bytes, 0, view.len) != NULL) {
        r->failed = true;
        view.len = 0;
    }
    if (view.len > 0)
        memcpy(text, view.bytes, view.len);
    text[view.len] = '\0';
}

uint32_t shoal_pack_get_array(struct shoal_pack_reader *r, uint32_t count_max)
{
    uint32_t count = get_typed(r, SHOAL_PACK_ARRAY).count;

    SHOAL_ASSERT(r->at <= r->len); /* P1 */
    if (count > count_max)
        r->failed = true;
    return r->failed ? 0 : count;
}

struct shoal_pack_map shoal_pack_get_map(struct shoal_pack_reader *r)
{
    uint32_t count = get_typed(r, SHOAL_PACK_MAP).count;

    SHOAL_ASSERT(r->at <= r->len); /* P1 */
    if (count > SHOAL_PACK_FIELDS_MAX)
        r->failed = true;
    return (struct shoal_pack_map){ .left = r->failed ? 0 : count };
}

bool shoal_pack_next_field(struct shoal_pack_reader *r, struct shoal_pack_map *map)
{
    SHOAL_ASSERT(map->left <= SHOAL_PACK_FIELDS_MAX); /* P1: the head was bounded */
    if (r->failed || map->left == 0)
        return false;
    map->left--;
    map->name = shoal_pack_get_str(r, SIZE_MAX);
    return !r->failed;
}

bool shoal_pack_named(const struct shoal_pack_map *map, const char *name)
{
    SHOAL_ASSERT(name != NULL);
    return shoal_view_equal(map->name, shoal_view_text(name));
}

enum shoal_err shoal_pack_get_head(struct shoal_pack_reader *r, enum shoal_pack_kind kind, uint8_t ours,
                                   struct shoal_pack_head *head)
{
    struct shoal_pack_head read = { .kind = (uint8_t)shoal_pack_get_u64(r, 127) };

    SHOAL_ASSERT(ours < 128); /* P3: a byte each */
    read.version = (uint8_t)shoal_pack_get_u64(r, 127);
    read.oldest = (uint8_t)shoal_pack_get_u64(r, 127);
    if (r->failed || read.kind != kind || read.oldest == 0 || read.oldest > read.version) {
        r->failed = true;
        return SHOAL_ERR_MALFORMED;
    }
    if (read.oldest > ours) {
        r->failed = true;
        return SHOAL_ERR_UNSUPPORTED;
    }
    if (head != NULL)
        *head = read;
    return SHOAL_OK;
}
