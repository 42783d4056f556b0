/* An append-only JSON writer: no tree, one buffer. Commas are its own affair. A failed append (no memory) is remembered
 * in `failed`; check once, at the end.
 *
 *     struct json_writer w = json_writer_init(&buf);
 *     json_object_begin(&w, NULL);
 *     json_text(&w, "id", id);
 *     json_end(&w);
 *
 * `key` is NULL inside arrays and for the outermost value. Text that is not UTF-8 gets U+FFFD in place of the bad
 * bytes. */
#ifndef API_JSON_WRITER_H
#define API_JSON_WRITER_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/buf.h"

#define JSON_DEPTH_MAX 32

struct json_writer {
    struct shoal_buf *buf;
    bool failed;
    unsigned depth;
    uint32_t objects; /* bit d: depth d is an object */
    uint32_t filled;  /* bit d: depth d has a value already */
};

struct json_writer json_writer_init(struct shoal_buf *buf);
void json_object_begin(struct json_writer *w, const char *key);
void json_array_begin(struct json_writer *w, const char *key);
void json_end(struct json_writer *w); /* of the innermost object or array */
void json_text(struct json_writer *w, const char *key, const char *text);
void json_text_view(struct json_writer *w, const char *key, struct shoal_view text);
void json_int(struct json_writer *w, const char *key, int64_t value);
void json_uint(struct json_writer *w, const char *key, uint64_t value);
void json_bool(struct json_writer *w, const char *key, bool value);
/* Up to 9 significant digits; NaN and infinities become null. */
void json_number(struct json_writer *w, const char *key, double value);
/* A value that is JSON already. */
void json_raw(struct json_writer *w, const char *key, struct shoal_view json);

/* The inside of a JSON string (no quotes) for a stream of text that arrives in pieces: a UTF-8 sequence may be cut
 * anywhere. `{0}` is the start; call with last = true at the end. */
struct json_escaper {
    uint8_t held[4];
    unsigned held_len;
    bool plain; /* the text itself, of which only what is no UTF-8 is replaced */
};
SHOAL_MUST_CHECK enum shoal_err json_escape(struct json_escaper *escaper, struct shoal_view text, bool last,
                                            struct shoal_buf *out);

#endif
