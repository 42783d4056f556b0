#include "json_input.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/limits.h"

#include "shoal/banned.h"

/* A json_input and a json_value are jansson's own objects under our names. */
static const json_t *of(const struct json_value *value) { return (const json_t *)(const void *)value; }
static const struct json_value *as_value(const json_t *json) { return (const struct json_value *)(const void *)json; }

/* The cost of a text before it is read: how deep it is, and how long jansson builds its values, in units of about 10 ns. An
 * empty object costs as much as a hundred bytes of a string. */
struct weight {
    unsigned deepest;
    uint64_t work;
};

static struct weight weigh(struct shoal_view text)
{
    struct weight weight = { 0 };
    unsigned depth = 0;
    bool in_text = false;

    for (size_t i = 0; i < text.len; i++) {
        uint8_t c = text.bytes[i];

        if (in_text && c == '\\') {
            i++;
        } else if (c == '"') {
            in_text = !in_text;
        } else if (!in_text && (c == '{' || c == '[')) {
            weight.deepest = ++depth > weight.deepest ? depth : weight.deepest;
            weight.work += c == '{' ? 30 : 20;
        } else if (!in_text && (c == '}' || c == ']') && depth > 0) {
            depth--;
        } else if (!in_text && (c == ',' || c == ':')) {
            weight.work += c == ',' ? 12 : 35;
        }
    }
    return weight;
}

static enum shoal_err parse(struct shoal_view text, uint64_t work_max, struct json_input **input, struct shoal_msg *msg)
{
    struct weight weight;
    json_error_t error;
    json_t *json;

    if (text.len > SHOAL_JSON_BYTES_MAX)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "JSON of %zu bytes; at most %u are read", text.len,
                          SHOAL_JSON_BYTES_MAX);
    weight = weigh(text);
    if (weight.deepest > 64)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "JSON nested deeper than 64 levels");
    if (weight.work > work_max)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "JSON of too many values in %zu bytes; send fewer of them at once",
                          text.len);
    json = json_loadb((const char *)text.bytes, text.len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (json == NULL)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "not valid JSON: line %d, column %d: %s", error.line, error.column,
                          error.text);
    *input = (struct json_input *)(void *)json;
    return SHOAL_OK;
}

enum shoal_err json_input_parse(struct shoal_view text, struct json_input **input, struct shoal_msg *msg)
{
    return parse(text, SHOAL_JSON_WORK_MAX, input, msg);
}

#define INT_MAX_TEXT "9223372036854775807"
#define INT_MAX_DIGITS (sizeof(INT_MAX_TEXT) - 1)

/* An integer of more than 63 bits becomes the largest one that is read. False: there was none. */
static bool limit_integers(uint8_t *bytes, size_t len)
{
    bool in_text = false, any = false;

    for (size_t i = 0; i < len; i++) {
        size_t digits = 0;

        if (in_text && bytes[i] == '\\') {
            i++;
            continue;
        }
        in_text = (bytes[i] == '"') != in_text;
        while (!in_text && i + digits < len && bytes[i + digits] >= '0' && bytes[i + digits] <= '9')
            digits++;
        if (digits == 0)
            continue;
        if ((i == 0 || strchr(".eE+", bytes[i - 1]) == NULL) && (i + digits == len || strchr(".eE", bytes[i + digits]) == NULL) &&
            (digits > INT_MAX_DIGITS || (digits == INT_MAX_DIGITS && memcmp(bytes + i, INT_MAX_TEXT, digits) > 0))) {
            memset(bytes + i, ' ', digits);
            memcpy(bytes + i, INT_MAX_TEXT, INT_MAX_DIGITS);
            any = true;
        }
        i += digits - 1;
    }
    return any;
}

enum shoal_err json_input_parse_own(struct shoal_view text, struct json_input **input, struct shoal_msg *msg)
{
    enum shoal_err err = parse(text, UINT64_MAX, input, msg);
    uint8_t *copy = err == SHOAL_OK || text.len > SHOAL_JSON_BYTES_MAX ? NULL : malloc(text.len + 1);

    if (copy == NULL)
        return err;
    memcpy(copy, text.bytes, text.len);
    if (limit_integers(copy, text.len))
        err = parse(shoal_view_of(copy, text.len), UINT64_MAX, input, msg);
    free(copy);
    return err;
}

struct lenient {
    const uint8_t *at;
    const uint8_t *end;
    struct shoal_buf out;
    bool failed;
};

static void emit(struct lenient *l, const void *bytes, size_t len)
{
    if (shoal_buf_append(&l->out, bytes, len) != SHOAL_OK)
        l->failed = true;
}

/* A string in either quote becomes one in double quotes. */
static void lenient_string(struct lenient *l)
{
    uint8_t quote = *l->at++;

    emit(l, "\"", 1);
    while (l->at < l->end && *l->at != quote) {
        if (*l->at == '\\' && l->at + 1 < l->end) {
            uint8_t next = l->at[1];

            if (next == '\n') {
                l->at += 2;
            } else if (next == '\r' && l->at + 2 < l->end && l->at[2] == '\n') {
                l->at += 3;
            } else if (next == '\'') {
                emit(l, "'", 1);
                l->at += 2;
            } else {
                emit(l, l->at, 2);
                l->at += 2;
            }
        } else if (*l->at == '"') {
            emit(l, "\\\"", 2);
            l->at++;
        } else {
            emit(l, l->at++, 1);
        }
    }
    if (l->at == l->end) {
        l->failed = true;
        return;
    }
    l->at++;
    emit(l, "\"", 1);
}

static bool is_space(uint8_t c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static bool lenient_word(struct lenient *l)
{
    static const struct {
        const char *from;
        const char *to;
    } words[] = { { "True", "true" }, { "False", "false" }, { "None", "null" } };

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        size_t len = strlen(words[i].from);

        if ((size_t)(l->end - l->at) >= len && memcmp(l->at, words[i].from, len) == 0) {
            emit(l, words[i].to, strlen(words[i].to));
            l->at += len;
            return true;
        }
    }
    return false;
}

static void lenient_rewrite(struct lenient *l)
{
    while (l->at < l->end && !l->failed) {
        if (*l->at == '"' || *l->at == '\'') {
            lenient_string(l);
        } else if (*l->at == ',') {
            const uint8_t *next = l->at + 1;

            while (next < l->end && is_space(*next))
                next++;
            if (next == l->end || (*next != '}' && *next != ']'))
                emit(l, ",", 1);
            l->at++;
        } else if (!lenient_word(l)) {
            emit(l, l->at++, 1);
        }
    }
}

enum shoal_err json_input_parse_lenient(struct shoal_view text, struct json_input **input, struct shoal_msg *msg)
{
    struct lenient l = { .at = text.bytes, .end = text.bytes + text.len };
    struct shoal_msg first;
    enum shoal_err err = json_input_parse(text, input, &first);

    if (err == SHOAL_OK)
        return SHOAL_OK;
    if (err == SHOAL_ERR_TOO_BIG)
        return shoal_fail(msg, err, "%s", first.text);
    lenient_rewrite(&l);
    if (l.failed || json_input_parse(shoal_buf_view(&l.out), input, &(struct shoal_msg){ "" }) != SHOAL_OK)
        err = shoal_fail(msg, SHOAL_ERR_INVALID, "%s", first.text);
    else
        err = SHOAL_OK;
    shoal_buf_deinit(&l.out);
    return err;
}

void json_input_free(struct json_input *input) { json_decref((json_t *)(void *)input); }
const struct json_value *json_input_root(const struct json_input *input)
{
    return (const struct json_value *)(const void *)input;
}

const struct json_value *json_input_get(const struct json_value *object, const char *key)
{
    return as_value(json_object_get(of(object), key));
}

const char *json_input_text(const struct json_value *object, const char *key)
{
    return json_string_value(json_object_get(of(object), key));
}

bool json_input_int(const struct json_value *object, const char *key, int64_t *value)
{
    const json_t *json = json_object_get(of(object), key);

    if (!json_is_integer(json))
        return false;
    *value = json_integer_value(json);
    return true;
}

bool json_input_bool(const struct json_value *object, const char *key, bool *value)
{
    const json_t *json = json_object_get(of(object), key);

    if (!json_is_boolean(json))
        return false;
    *value = json_is_true(json);
    return true;
}

bool json_input_number(const struct json_value *object, const char *key, double *value)
{
    const json_t *json = json_object_get(of(object), key);

    if (!json_is_number(json))
        return false;
    *value = json_number_value(json);
    return true;
}

bool json_input_is_object(const struct json_value *value) { return json_is_object(of(value)); }
bool json_input_is_array(const struct json_value *value) { return json_is_array(of(value)); }
bool json_input_is_null(const struct json_value *value) { return value != NULL && json_is_null(of(value)); }
size_t json_input_count(const struct json_value *array) { return json_array_size(of(array)); }
const struct json_value *json_input_at(const struct json_value *array, size_t index)
{
    return as_value(json_array_get(of(array), index));
}

const char *json_input_text_at(const struct json_value *array, size_t index)
{
    return json_string_value(json_array_get(of(array), index));
}

const char *json_input_scalar(const struct json_value *value, char *buf, size_t cap)
{
    if (json_is_string(of(value)))
        return json_string_value(of(value));
    if (json_is_integer(of(value)))
        (void)snprintf(buf, cap, "%" JSON_INTEGER_FORMAT, json_integer_value(of(value)));
    else if (json_is_real(of(value)))
        (void)snprintf(buf, cap, "%.9g", json_real_value(of(value)));
    else
        return NULL;
    return buf;
}

bool json_input_is_true(const struct json_value *value) { return json_is_true(of(value)); }

bool json_input_real(const struct json_value *value, double *real)
{
    if (!json_is_number(of(value)))
        return false;
    *real = json_number_value(of(value));
    return true;
}

char *json_input_dump(const struct json_value *value)
{
    return json_dumps(of(value), JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
}

void json_input_each(const struct json_value *object,
                     void (*each)(void *arg, const char *key, const struct json_value *value), void *arg)
{
    json_t *json = (json_t *)(uintptr_t)of(object); /* the iterator wants it writable; nothing is written */

    for (void *at = json_object_iter(json); at != NULL; at = json_object_iter_next(json, at))
        each(arg, json_object_iter_key(at), as_value(json_object_iter_value(at)));
}
