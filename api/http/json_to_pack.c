/* Two passes over the text. MessagePack says before an array how long it is, so the first pass counts the elements of each
 * array, in the order in which they begin; the second one writes. */
#include "json_to_pack.h"
#include "hex.h"

#include <stdio.h>
#include <string.h>

#include "shoal/pack.h"

#include "shoal/banned.h"

_Static_assert(JSON_TO_PACK_DEPTH_MAX <= SHOAL_PACK_DEPTH_MAX, "the writer goes as deep");

#define NUMBER_BYTES_MAX 40u

struct turner {
    const char *at, *end;
    struct shoal_pack_writer w;
    struct shoal_buf counts; /* uint32_t each */
    size_t next_count;
    struct shoal_buf text; /* of the string under way */
    unsigned depth;
    bool failed;
};

/* ---- counting ---- */

struct counter {
    struct shoal_buf *counts;
    size_t place[JSON_TO_PACK_DEPTH_MAX]; /* of an array's count; SIZE_MAX: an object */
    bool any[JSON_TO_PACK_DEPTH_MAX];
    unsigned depth;
};

static void count_up(struct counter *c)
{
    size_t place = c->depth == 0 ? SIZE_MAX : c->place[c->depth - 1];
    uint32_t count;

    if (place == SIZE_MAX)
        return;
    memcpy(&count, c->counts->bytes + place, sizeof(count));
    count++;
    memcpy(c->counts->bytes + place, &count, sizeof(count));
}

/* The first thing inside an array is its first element; each comma announces one more. */
static void count_first(struct counter *c)
{
    if (c->depth > 0 && !c->any[c->depth - 1]) {
        c->any[c->depth - 1] = true;
        count_up(c);
    }
}

static bool open_one(struct counter *c, char kind)
{
    const uint32_t none = 0;

    count_first(c);
    if (c->depth == JSON_TO_PACK_DEPTH_MAX)
        return false;
    c->place[c->depth] = kind == '[' ? c->counts->len : SIZE_MAX;
    c->any[c->depth++] = false;
    return kind == '{' || shoal_buf_append(c->counts, &none, sizeof(none)) == SHOAL_OK;
}

static const char *string_end(const char *at, const char *end)
{
    for (at++; at < end && *at != '"'; at++)
        if (*at == '\\' && at + 1 < end)
            at++;
    return at < end ? at : NULL;
}

static bool count_all(const char *at, const char *end, struct shoal_buf *counts)
{
    struct counter c = { .counts = counts };

    for (; at < end; at++) {
        switch (*at) {
        case '[':
        case '{':
            if (!open_one(&c, *at))
                return false;
            break;
        case ']':
        case '}':
            if (c.depth-- == 0)
                return false;
            break;
        case ',': count_up(&c); break;
        case '"':
            count_first(&c);
            at = string_end(at, end);
            if (at == NULL)
                return false;
            break;
        default:
            if (strchr(" \t\r\n:", *at) == NULL)
                count_first(&c);
            break;
        }
    }
    return c.depth == 0;
}

/* ---- writing ---- */

static void skip_space(struct turner *t)
{
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\n' || *t->at == '\r' || *t->at == '\t'))
        t->at++;
}

static bool take(struct turner *t, char c)
{
    skip_space(t);
    if (t->at < t->end && *t->at == c) {
        t->at++;
        return true;
    }
    return false;
}

static void put_char(struct turner *t, char c)
{
    t->failed = t->failed || shoal_buf_append(&t->text, &c, 1) != SHOAL_OK;
}

/* Our own writers escape only what is below 0x80; a client's text that came with \u sequences is kept as far as U+FFFF. */
static void put_code(struct turner *t)
{
    unsigned code = 0;

    for (unsigned i = 0; i < 4; i++) {
        int digit = t->at < t->end ? hex_digit((unsigned char)*t->at++) : -1;

        t->failed = t->failed || digit < 0;
        code = code << 4 | ((unsigned)digit & 15);
    }
    if (code < 0x80) {
        put_char(t, (char)code);
    } else if (code < 0x800) {
        put_char(t, (char)(0xc0 | code >> 6));
        put_char(t, (char)(0x80 | (code & 63)));
    } else {
        put_char(t, (char)(0xe0 | code >> 12));
        put_char(t, (char)(0x80 | (code >> 6 & 63)));
        put_char(t, (char)(0x80 | (code & 63)));
    }
}

/* Into `text`, with a NUL behind it that does not count. */
static void read_string(struct turner *t)
{
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";

    t->text.len = 0;
    if (!take(t, '"')) {
        t->failed = true;
        return;
    }
    while (!t->failed && t->at < t->end && *t->at != '"') {
        char c = *t->at++;
        const char *escaped;

        if (c != '\\') {
            put_char(t, c);
            continue;
        }
        c = t->at < t->end ? *t->at++ : '\0';
        escaped = c == '\0' ? NULL : strchr(from, c);
        if (c == 'u')
            put_code(t);
        else if (escaped != NULL)
            put_char(t, to[escaped - from]);
        else
            t->failed = true;
    }
    t->failed = t->failed || t->at == t->end;
    t->at += t->failed ? 0 : 1;
    put_char(t, '\0');
    t->text.len -= t->failed ? 0 : 1;
}

static void put_number(struct turner *t)
{
    char text[NUMBER_BYTES_MAX + 1];
    size_t len = 0;
    char *rest;

    while (t->at < t->end && len < NUMBER_BYTES_MAX && strchr("0123456789+-.eE", *t->at) != NULL)
        text[len++] = *t->at++;
    text[len] = '\0';
    if (len == 0 || len == NUMBER_BYTES_MAX) {
        t->failed = true;
        return;
    }
    if (strpbrk(text, ".eE") != NULL)
        shoal_pack_put_f64(&t->w, strtod(text, &rest));
    else if (text[0] == '-')
        shoal_pack_put_i64(&t->w, strtoll(text, &rest, 10));
    else
        shoal_pack_put_u64(&t->w, strtoull(text, &rest, 10));
    t->failed = t->failed || *rest != '\0';
}

static void put_value(struct turner *t);

static void put_object(struct turner *t)
{
    bool more = !take(t, '}');

    shoal_pack_begin_map(&t->w);
    while (more && !t->failed) {
        read_string(t);
        if (t->failed || !take(t, ':')) {
            t->failed = true;
            return;
        }
        shoal_pack_put_name(&t->w, (const char *)t->text.bytes);
        put_value(t);
        more = take(t, ',');
        t->failed = t->failed || (!more && !take(t, '}'));
    }
    if (!t->failed)
        shoal_pack_end_map(&t->w);
}

static void put_array(struct turner *t)
{
    uint32_t count = 0;

    if (t->next_count + sizeof(count) > t->counts.len) {
        t->failed = true;
        return;
    }
    memcpy(&count, t->counts.bytes + t->next_count, sizeof(count));
    t->next_count += sizeof(count);
    shoal_pack_put_array(&t->w, count);
    for (uint32_t i = 0; i < count && !t->failed; i++) {
        put_value(t);
        t->failed = t->failed || (i + 1 < count && !take(t, ','));
    }
    t->failed = t->failed || !take(t, ']');
}

static bool take_word(struct turner *t, const char *word)
{
    size_t len = strlen(word);

    if ((size_t)(t->end - t->at) < len || memcmp(t->at, word, len) != 0)
        return false;
    t->at += len;
    return true;
}

static void put_value(struct turner *t)
{
    if (t->depth++ > JSON_TO_PACK_DEPTH_MAX) {
        t->failed = true;
        return;
    }
    skip_space(t);
    if (take(t, '{')) {
        put_object(t);
    } else if (take(t, '[')) {
        put_array(t);
    } else if (t->at < t->end && *t->at == '"') {
        read_string(t);
        shoal_pack_put_str(&t->w, shoal_buf_view(&t->text));
    } else if (take_word(t, "true")) {
        shoal_pack_put_bool(&t->w, true);
    } else if (take_word(t, "false")) {
        shoal_pack_put_bool(&t->w, false);
    } else if (take_word(t, "null")) {
        shoal_pack_put_nil(&t->w);
    } else {
        put_number(t);
    }
    t->depth--;
}

enum shoal_err json_to_pack(struct shoal_view json, struct shoal_buf *pack)
{
    /* A value of one character and its comma may become nine bytes at most: a float such as 1e9, which has more. */
    size_t room = 4 * json.len + 64;
    enum shoal_err err = shoal_buf_reserve(pack, room);
    struct turner t = { .at = (const char *)json.bytes, .end = (const char *)json.bytes + json.len };

    if (err != SHOAL_OK)
        return err;
    t.w = shoal_pack_writer_init(pack->bytes + pack->len, room);
    if (count_all(t.at, t.end, &t.counts)) {
        put_value(&t);
        skip_space(&t);
    } else {
        t.failed = true;
    }
    if (t.failed || t.w.failed || t.at != t.end)
        err = SHOAL_ERR_MALFORMED;
    else
        pack->len += t.w.len;
    shoal_buf_deinit(&t.counts);
    shoal_buf_deinit(&t.text);
    return err;
}
