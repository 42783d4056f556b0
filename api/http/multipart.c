/* The body is  [preamble] CRLF--boundary CRLF head CRLF CRLF data CRLF--boundary ... CRLF--boundary-- [epilogue],
 * where the first CRLF may be absent.
 *
 * M1. Bytes that may be the start of a delimiter are held back as a count (`matched`), not as a copy: they equal the
 *     delimiter's own first bytes, so they can be given out from there when the match fails.
 * M2. The delimiter starts with CR, and no other CR is in it: a failed match can only start anew at the byte that
 *     failed. */
#include "multipart.h"
#include "hex.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "shoal/banned.h"

enum { DATA, AFTER_DELIMITER, AFTER_DASH, AFTER_CR, HEAD, EPILOGUE };

static bool boundary_is_sane(const char *boundary, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        char c = boundary[i];

        if (c < 0x20 || c > 0x7e)
            return false;
    }
    return len > 0 && len <= MULTIPART_BOUNDARY_MAX && boundary[len - 1] != ' ';
}

/* Finds `key`=value among the ';' parameters of a header value; quotes are taken off, \" and \\ resolved. */
static bool find_param(const char *value, size_t len, const char *key, char *out, size_t cap)
{
    size_t key_len = strlen(key);
    size_t at = 0;
    size_t out_len;

    while (at < len) {
        bool match;

        /* To the next ';' that is not inside quotes. */
        for (bool quoted = false; at < len && (quoted || value[at] != ';'); at++) {
            if (quoted && value[at] == '\\' && at + 1 < len)
                at++;
            else if (value[at] == '"')
                quoted = !quoted;
        }
        at++;
        while (at < len && (value[at] == ' ' || value[at] == '\t'))
            at++;
        match = at + key_len < len && strncasecmp(value + at, key, key_len) == 0 && value[at + key_len] == '=';
        if (!match)
            continue;
        at += key_len + 1;
        out_len = 0;
        if (at < len && value[at] == '"') {
            for (at++; at < len && value[at] != '"'; at++) {
                if (value[at] == '\\' && at + 1 < len && (value[at + 1] == '"' || value[at + 1] == '\\'))
                    at++;
                if (out_len + 1 >= cap)
                    return false;
                out[out_len++] = value[at];
            }
        } else {
            for (; at < len && value[at] != ';' && value[at] != ' ' && value[at] != '\t'; at++) {
                if (out_len + 1 >= cap)
                    return false;
                out[out_len++] = value[at];
            }
        }
        out[out_len] = '\0';
        return true;
    }
    return false;
}

enum shoal_err multipart_init(struct multipart *multipart, struct shoal_view type,
                              const struct multipart_events *events, void *arg, struct shoal_msg *msg)
{
    char boundary[MULTIPART_BOUNDARY_MAX + 1];

    if (type.len < 19 || strncasecmp((const char *)type.bytes, "multipart/form-data", 19) != 0)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "Content-Type: multipart/form-data is wanted");
    if (!find_param((const char *)type.bytes, type.len, "boundary", boundary, sizeof(boundary)) ||
        !boundary_is_sane(boundary, strlen(boundary)))
        return shoal_fail(msg, SHOAL_ERR_INVALID,
                          "Content-Type: multipart/form-data without a boundary of at most %d characters",
                          MULTIPART_BOUNDARY_MAX);
    *multipart = (struct multipart){ .events = *events, .arg = arg, .state = DATA };
    multipart->delimiter_len =
        (size_t)snprintf(multipart->delimiter, sizeof(multipart->delimiter), "\r\n--%s", boundary);
    multipart->matched = 2; /* as if a line break stood before the first delimiter */
    return SHOAL_OK;
}

static enum shoal_err give(struct multipart *m, const void *bytes, size_t len, struct shoal_msg *msg)
{
    if (len == 0 || !m->in_part)
        return SHOAL_OK;
    return m->events.data(m->arg, shoal_view_of(bytes, len), msg);
}

/* Takes data until the input or the part ends; returns how much. */
static enum shoal_err feed_data(struct multipart *m, const uint8_t *bytes, size_t len, size_t *used,
                                struct shoal_msg *msg)
{
    size_t at = 0;
    size_t from = 0;
    enum shoal_err err;

    while (at < len) {
        if (m->matched == 0) {
            const uint8_t *cr = memchr(bytes + at, '\r', len - at);

            at = cr == NULL ? len : (size_t)(cr - bytes);
            if (cr == NULL)
                break;
            err = give(m, bytes + from, at - from, msg);
            if (err != SHOAL_OK)
                return err;
            from = ++at;
            m->matched = 1;
        } else if (bytes[at] == (uint8_t)m->delimiter[m->matched]) {
            from = ++at;
            if (++m->matched == m->delimiter_len) {
                m->state = AFTER_DELIMITER;
                m->matched = 0;
                *used = at;
                return m->in_part ? m->events.end(m->arg, msg) : SHOAL_OK;
            }
        } else {
            /* M2: give out what was held; this byte is looked at anew. Before the first part nothing is given. */
            err = give(m, m->delimiter, m->matched, msg);
            if (err != SHOAL_OK)
                return err;
            m->matched = 0;
            from = at;
        }
    }
    *used = len;
    return give(m, bytes + from, len - from, msg);
}

/* The last path component, of either kind of path. */
static enum shoal_err clean_filename(struct multipart_part *part, struct shoal_msg *msg)
{
    const char *base = part->filename;

    for (const char *at = part->filename; *at != '\0'; at++)
        if (*at == '/' || *at == '\\')
            base = at + 1;
    memmove(part->filename, base, strlen(base) + 1);
    if (strcmp(part->filename, "..") == 0 || strcmp(part->filename, ".") == 0)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "upload: \"%s\" is no file name", part->filename);
    for (const char *at = part->filename; *at != '\0'; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            return shoal_fail(msg, SHOAL_ERR_INVALID, "upload: a control character in a file name");
    return SHOAL_OK;
}

/* RFC 5987: charset'language'percent-encoded. */
static bool decode_extended(const char *text, char *out, size_t cap)
{
    const char *at = strchr(text, '\'');
    size_t len = 0;

    at = at == NULL ? NULL : strchr(at + 1, '\'');
    if (at == NULL)
        return false;
    for (at++; *at != '\0' && len + 1 < cap; at++) {
        if (*at == '%') {
            int high = hex_digit((unsigned char)at[1]);
            int low = high < 0 ? -1 : hex_digit((unsigned char)at[2]);

            if (low < 0 || (high == 0 && low == 0))
                return false;
            out[len++] = (char)(high * 16 + low);
            at += 2;
        } else {
            out[len++] = *at;
        }
    }
    out[len] = '\0';
    return *at == '\0';
}

static enum shoal_err begin_part(struct multipart *m, struct shoal_msg *msg)
{
    struct multipart_part part = { .has_filename = false };
    const char *line = m->head;
    const char *end = m->head + m->head_len;
    bool named = false;
    char text[768];
    enum shoal_err err;

    while (line < end) {
        const char *eol = memchr(line, '\r', (size_t)(end - line));
        size_t len = eol == NULL ? (size_t)(end - line) : (size_t)(eol - line);

        if (memchr(line, 0, len) != NULL)
            return shoal_fail(msg, SHOAL_ERR_MALFORMED, "upload: a NUL byte in a part's header");
        if (len > 20 && strncasecmp(line, "content-disposition:", 20) == 0) {
            named = find_param(line + 20, len - 20, "name", part.name, sizeof(part.name));
            if (find_param(line + 20, len - 20, "filename*", text, sizeof(text)) &&
                decode_extended(text, part.filename, sizeof(part.filename)))
                part.has_filename = true;
            else
                part.has_filename = find_param(line + 20, len - 20, "filename", part.filename, sizeof(part.filename));
        }
        line += len + 2;
    }
    if (!named)
        return shoal_fail(msg, SHOAL_ERR_MALFORMED,
                          "upload: a part without \"Content-Disposition: form-data; name=...\"");
    if (++m->parts > SHOAL_MULTIPART_PARTS_MAX)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "upload: more than %d parts", SHOAL_MULTIPART_PARTS_MAX);
    err = clean_filename(&part, msg);
    if (err != SHOAL_OK)
        return err;
    m->in_part = true;
    m->state = DATA;
    m->head_len = 0;
    m->matched = 0;
    return m->events.begin(m->arg, &part, msg);
}

static enum shoal_err head_byte(struct multipart *m, char c, struct shoal_msg *msg)
{
    if (m->head_len == sizeof(m->head))
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "upload: a part's header is larger than %zu bytes", sizeof(m->head));
    m->head[m->head_len++] = c;
    if (m->head_len == 2 && memcmp(m->head, "\r\n", 2) == 0)
        return begin_part(m, msg); /* no header at all: refused there */
    if (m->head_len >= 4 && memcmp(m->head + m->head_len - 4, "\r\n\r\n", 4) == 0)
        return begin_part(m, msg);
    return SHOAL_OK;
}

static enum shoal_err broken(struct shoal_msg *msg)
{
    return shoal_fail(msg, SHOAL_ERR_MALFORMED, "upload: a boundary is not followed by a line break or --");
}

static enum shoal_err frame_byte(struct multipart *m, char c, struct shoal_msg *msg)
{
    switch (m->state) {
    case AFTER_DELIMITER:
        m->in_part = false;
        if (c == '-')
            m->state = AFTER_DASH;
        else if (c == '\r')
            m->state = AFTER_CR;
        else if (c != ' ' && c != '\t') /* transport padding */
            return broken(msg);
        return SHOAL_OK;
    case AFTER_DASH: m->state = EPILOGUE; return c == '-' ? SHOAL_OK : broken(msg);
    case AFTER_CR:
        m->state = HEAD;
        m->head_len = 0;
        return c == '\n' ? SHOAL_OK : broken(msg);
    default: return head_byte(m, c, msg);
    }
}

enum shoal_err multipart_feed(struct multipart *multipart, struct shoal_view bytes, struct shoal_msg *msg)
{
    size_t at = 0;

    while (at < bytes.len && multipart->state != EPILOGUE) {
        enum shoal_err err;

        if (multipart->state == DATA) {
            size_t used = 0;

            err = feed_data(multipart, bytes.bytes + at, bytes.len - at, &used, msg);
            at += used;
        } else {
            err = frame_byte(multipart, (char)bytes.bytes[at++], msg);
        }
        if (err != SHOAL_OK)
            return err;
    }
    return SHOAL_OK;
}

enum shoal_err multipart_finish(struct multipart *multipart, struct shoal_msg *msg)
{
    if (multipart->state != EPILOGUE)
        return shoal_fail(msg, SHOAL_ERR_MALFORMED,
                          "upload: the body ended before its closing boundary; send it whole");
    return SHOAL_OK;
}
