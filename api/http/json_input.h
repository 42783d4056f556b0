/* JSON from outside, on jansson: at most SHOAL_JSON_BYTES_MAX, no key twice, a depth of at most 64, and as many values as are read
 * in a turn of the loop (SHOAL_JSON_WORK_MAX). */
#ifndef API_JSON_INPUT_H
#define API_JSON_INPUT_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/buf.h"
#include "shoal/error.h"

struct json_input;
struct json_value; /* borrowed from its input */

SHOAL_MUST_CHECK enum shoal_err json_input_parse(struct shoal_view text, struct json_input **input,
                                                 struct shoal_msg *msg);
/* Reads a text that this mesh has made itself, or that the command line reads: however many values. Of an integer
 * that has no room here as much is read as fits. */
SHOAL_MUST_CHECK enum shoal_err json_input_parse_own(struct shoal_view text, struct json_input **input,
                                                     struct shoal_msg *msg);
/* The literal form that WMLA's documentation also allows (execs-api 4.2): single quotes, True, False, None, a comma
 * before a closing bracket, a backslash and a line break inside a string. Strict JSON is read as it is. */
SHOAL_MUST_CHECK enum shoal_err json_input_parse_lenient(struct shoal_view text, struct json_input **input,
                                                         struct shoal_msg *msg);
void json_input_free(struct json_input *input);
const struct json_value *json_input_root(const struct json_input *input);

/* NULL or false: no such key, or another type. `object` may be NULL. */
const struct json_value *json_input_get(const struct json_value *object, const char *key);
const char *json_input_text(const struct json_value *object, const char *key);
bool json_input_int(const struct json_value *object, const char *key, int64_t *value);
bool json_input_bool(const struct json_value *object, const char *key, bool *value);
bool json_input_number(const struct json_value *object, const char *key, double *value);
bool json_input_is_object(const struct json_value *value);
bool json_input_is_array(const struct json_value *value);
bool json_input_is_null(const struct json_value *value);
size_t json_input_count(const struct json_value *array);
const struct json_value *json_input_at(const struct json_value *array, size_t index);
const char *json_input_text_at(const struct json_value *array, size_t index);
/* The value itself as text, a number in `buf`. NULL: it is neither text nor number. */
const char *json_input_scalar(const struct json_value *value, char *buf, size_t cap);
/* The same, where it need not become text. */
bool json_input_is_true(const struct json_value *value);
bool json_input_real(const struct json_value *value, double *real);
/* Compact, keys sorted: free() it. NULL: no memory. */
char *json_input_dump(const struct json_value *value);
/* Calls `each` for every key of an object, in the order of the text. */
void json_input_each(const struct json_value *object,
                     void (*each)(void *arg, const char *key, const struct json_value *value), void *arg);

#endif
