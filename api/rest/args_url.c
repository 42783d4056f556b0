/* `args` of a raw query string (execs-api 4.3, steps 1 to 4): found among the keys, decoded, and UTF-8 or refused. */
#include "args.h"

#include <string.h>

#include "api/http/hex.h"
#include "api/http/json_writer.h"

#include "shoal/banned.h"

static bool starts(struct shoal_view text, const char *prefix)
{
    size_t len = strlen(prefix);

    return text.len >= len && memcmp(text.bytes, prefix, len) == 0;
}

static bool starts_known_key(struct shoal_view text)
{
    return starts(text, "sigName=") || starts(text, "args=") || starts(text, "data=") || starts(text, "logType=");
}

static bool contains(struct shoal_view text, const char *piece)
{
    return memmem(text.bytes, text.len, piece, strlen(piece)) != NULL;
}

/* The value of `args`: up to an '&' that a known key follows; any other '&' was one of the user's. */
static bool find_value(struct shoal_view query, struct shoal_view *value)
{
    while (query.len > 0) {
        bool found = starts(query, "args=");
        size_t end = found ? 5 : 0;

        for (; end < query.len; end++)
            if (query.bytes[end] == '&' &&
                (!found || starts_known_key(shoal_view_of(query.bytes + end + 1, query.len - end - 1))))
                break;
        if (found) {
            *value = shoal_view_of(query.bytes + 5, end - 5);
            return true;
        }
        if (end == query.len)
            return false;
        query.bytes += end + 1;
        query.len -= end + 1;
    }
    return false;
}

static bool is_utf8(const char *text)
{
    struct shoal_buf out = { 0 };
    struct json_escaper escaper = { .held_len = 0 };
    bool ok =
        json_escape(&escaper, shoal_view_text(text), true, &out) == SHOAL_OK &&
        (out.len == 0 || memmem(out.bytes, out.len, "\xef\xbf\xbd", 3) == NULL || strstr(text, "\xef\xbf\xbd") != NULL);

    shoal_buf_deinit(&out);
    return ok;
}

enum shoal_err args_from_query(struct arena *arena, struct shoal_view query, const char **args, struct shoal_msg *msg)
{
    struct shoal_view raw = { 0 };
    bool plus_is_space;
    size_t len = 0;
    char *out;

    *args = NULL;
    if (!find_value(query, &raw))
        return SHOAL_OK;
    plus_is_space = !contains(raw, "%20");
    out = arena_alloc(arena, raw.len + 1);
    if (out == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "out of memory; try again later");
    for (size_t i = 0; i < raw.len; i++) {
        uint8_t c = raw.bytes[i];

        if (c == '%') {
            bool whole = raw.len - i > 2;
            int high = whole ? hex_digit(raw.bytes[i + 1]) : -1;
            int low = whole ? hex_digit(raw.bytes[i + 2]) : -1;

            if (high < 0 || low < 0)
                return shoal_fail(msg, SHOAL_ERR_INVALID,
                                  "args: a broken %%-escape in the URL; write %%25 for a per cent sign");
            c = (uint8_t)(high * 16 + low);
            i += 2;
        } else if (c == '+' && plus_is_space) {
            c = ' ';
        }
        if (c == 0)
            return shoal_fail(msg, SHOAL_ERR_INVALID, "args: a NUL character");
        out[len++] = (char)c;
    }
    out[len] = '\0';
    if (!is_utf8(out))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "args: not UTF-8 after decoding the URL");
    *args = out;
    return SHOAL_OK;
}
