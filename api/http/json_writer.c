#include "json_writer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "shoal/json_text.h"

#include "shoal/banned.h"

struct json_writer json_writer_init(struct shoal_buf *buf) { return (struct json_writer){ .buf = buf }; }

static void put(struct json_writer *w, const void *bytes, size_t len)
{
    if (!w->failed && shoal_buf_append(w->buf, bytes, len) != SHOAL_OK)
        w->failed = true;
}

/* Length of the UTF-8 sequence at `at`; 0: not one; more than `len`: cut short but fine so far. */
static unsigned utf8_len(const uint8_t *at, size_t len)
{
    uint8_t first = at[0];
    uint8_t low = 0x80;
    uint8_t high = 0xbf;
    unsigned want;

    if (first < 0x80)
        return 1;
    if (first >= 0xc2 && first <= 0xdf)
        want = 2;
    else if (first >= 0xe0 && first <= 0xef)
        want = 3;
    else if (first >= 0xf0 && first <= 0xf4)
        want = 4;
    else
        return 0;
    if (first == 0xe0)
        low = 0xa0;
    else if (first == 0xed)
        high = 0x9f;
    else if (first == 0xf0)
        low = 0x90;
    else if (first == 0xf4)
        high = 0x8f;
    for (unsigned i = 1; i < want && i < len; i++) {
        if (at[i] < low || at[i] > high)
            return 0;
        low = 0x80;
        high = 0xbf;
    }
    return want;
}

static enum shoal_err escape_one(const struct json_escaper *escaper, const uint8_t *at, unsigned len, struct shoal_buf *out)
{
    static const char digits[] = "0123456789abcdef";
    char text[6] = { '\\', 'u', '0', '0', 0, 0 };
    char pair[2] = { '\\', 0 };

    if (len == 0)
        return shoal_buf_append(out, "\xef\xbf\xbd", 3);
    if (escaper->plain || len > 1 || (at[0] >= 0x20 && at[0] != '"' && at[0] != '\\' && at[0] != 0x7f))
        return shoal_buf_append(out, at, len);
    switch (at[0]) {
    case '"': pair[1] = '"'; break;
    case '\\': pair[1] = '\\'; break;
    case '\n': pair[1] = 'n'; break;
    case '\r': pair[1] = 'r'; break;
    case '\t': pair[1] = 't'; break;
    default: break;
    }
    if (pair[1] != 0)
        return shoal_buf_append(out, pair, 2);
    text[4] = digits[at[0] >> 4];
    text[5] = digits[at[0] & 15];
    return shoal_buf_append(out, text, 6);
}

/* Carries text over until `at_end`; returns how much was taken, the rest is the start of a sequence. */
static enum shoal_err escape_run(const struct json_escaper *escaper, const uint8_t *bytes, size_t len, bool last,
                                 struct shoal_buf *out, size_t *taken)
{
    size_t at = 0;

    while (at < len) {
        size_t plain = at;
        enum shoal_err err;
        unsigned seq;

        while (plain < len && bytes[plain] >= 0x20 && bytes[plain] < 0x7f && bytes[plain] != '"' &&
               bytes[plain] != '\\')
            plain++;
        err = shoal_buf_append(out, bytes + at, plain - at);
        if (err != SHOAL_OK)
            return err;
        at = plain;
        if (at == len)
            break;
        seq = utf8_len(bytes + at, len - at);
        if (seq > len - at && !last)
            break;
        if (seq > len - at)
            seq = 0;
        err = escape_one(escaper, bytes + at, seq, out);
        if (err != SHOAL_OK)
            return err;
        at += seq == 0 ? 1 : seq;
    }
    *taken = at;
    return SHOAL_OK;
}

enum shoal_err json_escape(struct json_escaper *escaper, struct shoal_view text, bool last, struct shoal_buf *out)
{
    enum shoal_err err;
    size_t taken = 0;

    while (escaper->held_len > 0) {
        unsigned seq = utf8_len(escaper->held, escaper->held_len);

        if (seq > escaper->held_len && text.len > 0) {
            escaper->held[escaper->held_len++] = *text.bytes++;
            text.len--;
            continue;
        }
        if (seq > escaper->held_len && !last)
            return SHOAL_OK;
        if (seq > escaper->held_len)
            seq = 0;
        err = escape_one(escaper, escaper->held, seq, out);
        if (err != SHOAL_OK)
            return err;
        if (seq == 0)
            seq = 1;
        escaper->held_len -= seq;
        memmove(escaper->held, escaper->held + seq, escaper->held_len);
    }
    err = escape_run(escaper, text.bytes, text.len, last, out, &taken);
    if (err != SHOAL_OK)
        return err;
    SHOAL_ASSERT(text.len - taken < sizeof(escaper->held));
    escaper->held_len = (unsigned)(text.len - taken);
    if (escaper->held_len > 0)
        memcpy(escaper->held, text.bytes + taken, escaper->held_len);
    return SHOAL_OK;
}

enum shoal_err shoal_json_quote(struct shoal_view text, struct shoal_buf *out)
{
    struct json_escaper escaper = { .held_len = 0 };
    enum shoal_err err = shoal_buf_append(out, "\"", 1);

    if (err == SHOAL_OK && text.len > 0)
        err = json_escape(&escaper, text, true, out);
    return err == SHOAL_OK ? shoal_buf_append(out, "\"", 1) : err;
}

static void put_string(struct json_writer *w, struct shoal_view text)
{
    if (!w->failed && shoal_json_quote(text, w->buf) != SHOAL_OK)
        w->failed = true;
}

static void begin_value(struct json_writer *w, const char *key)
{
    bool in_object = w->depth > 0 && (w->objects >> w->depth & 1u) != 0;

    SHOAL_ASSERT(in_object == (key != NULL));
    if (w->depth > 0 && (w->filled >> w->depth & 1u) != 0)
        put(w, ",", 1);
    w->filled |= 1u << w->depth;
    if (key != NULL) {
        put_string(w, shoal_view_text(key));
        put(w, ":", 1);
    }
}

static void open_value(struct json_writer *w, const char *key, bool object)
{
    begin_value(w, key);
    SHOAL_ASSERT(w->depth + 1 < JSON_DEPTH_MAX);
    w->depth++;
    w->filled &= ~(1u << w->depth);
    w->objects &= ~(1u << w->depth);
    if (object)
        w->objects |= 1u << w->depth;
    put(w, object ? "{" : "[", 1);
}

void json_object_begin(struct json_writer *w, const char *key) { open_value(w, key, true); }
void json_array_begin(struct json_writer *w, const char *key) { open_value(w, key, false); }

void json_end(struct json_writer *w)
{
    SHOAL_ASSERT(w->depth > 0);
    put(w, (w->objects >> w->depth & 1u) != 0 ? "}" : "]", 1);
    w->depth--;
}

void json_text_view(struct json_writer *w, const char *key, struct shoal_view text)
{
    begin_value(w, key);
    put_string(w, text);
}

void json_text(struct json_writer *w, const char *key, const char *text)
{
    json_text_view(w, key, shoal_view_text(text));
}

__attribute__((format(printf, 3, 4))) static void put_printf(struct json_writer *w, const char *key, const char *format,
                                                             ...)
{
    char text[64];
    va_list args;
    int len;

    va_start(args, format);
    len = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    SHOAL_ASSERT(len > 0 && (size_t)len < sizeof(text));
    begin_value(w, key);
    put(w, text, (size_t)len);
}

void json_int(struct json_writer *w, const char *key, int64_t value) { put_printf(w, key, "%" PRId64, value); }
void json_uint(struct json_writer *w, const char *key, uint64_t value) { put_printf(w, key, "%" PRIu64, value); }
void json_bool(struct json_writer *w, const char *key, bool value)
{
    put_printf(w, key, "%s", value ? "true" : "false");
}

void json_number(struct json_writer *w, const char *key, double value)
{
    if (isfinite(value))
        put_printf(w, key, "%.9g", value);
    else
        put_printf(w, key, "null");
}

void json_raw(struct json_writer *w, const char *key, struct shoal_view json)
{
    begin_value(w, key);
    put(w, json.bytes, json.len);
}
