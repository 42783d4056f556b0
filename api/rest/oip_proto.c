#include "oip_proto.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/http/json_input.h"
#include "api/http/json_writer.h"
#include "shoal/limits.h"

#include "proto.h"

#include "shoal/banned.h"

/* As many as a kernel takes (pyedt/_oip.py). */
#define TENSORS_MAX 256u
#define DIMENSIONS_MAX 16u
#define PARAMETERS_MAX 64u
#define DEPTH_MAX 16u

/* Fields of InferTensorContents. */
enum { BOOLS = 1, INTS, INT64S, UINTS, UINT64S, FLOATS, DOUBLES, BYTESS };

struct type {
    const char *name;
    unsigned bytes;    /* of an element; 0: each has its own length before it */
    unsigned contents; /* the field; 0: there is none */
    int64_t least;     /* of the 32-bit fields */
    int64_t most;
};

static const struct type types[] = {
    { "BOOL", 1, BOOLS, 0, 1 },
    { "INT8", 1, INTS, INT8_MIN, INT8_MAX },
    { "INT16", 2, INTS, INT16_MIN, INT16_MAX },
    { "INT32", 4, INTS, INT32_MIN, INT32_MAX },
    { "INT64", 8, INT64S, 0, 0 },
    { "UINT8", 1, UINTS, 0, UINT8_MAX },
    { "UINT16", 2, UINTS, 0, UINT16_MAX },
    { "UINT32", 4, UINTS, 0, UINT32_MAX },
    { "UINT64", 8, UINT64S, 0, 0 },
    { "FP16", 2, 0, 0, 0 },
    { "FP32", 4, FLOATS, 0, 0 },
    { "FP64", 8, DOUBLES, 0, 0 },
    { "BYTES", 0, BYTESS, 0, 0 },
};

static const struct type *type_find(struct shoal_view name)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (shoal_view_equal(name, shoal_view_text(types[i].name)))
            return &types[i];
    return NULL;
}

static void put_le(uint64_t value, unsigned len, uint8_t out[8])
{
    for (unsigned i = 0; i < len; i++)
        out[i] = (uint8_t)(value >> (8 * i));
}

/* ---- the request ---- */

struct tensor {
    struct shoal_view name, datatype, whole; /* the message of it */
    const struct type *type;
    struct shoal_view raw;
    size_t at, len; /* typed: where its bytes lie in `tail` */
};

struct decoding {
    struct tensor inputs[TENSORS_MAX];
    struct shoal_view outputs[TENSORS_MAX];
    struct shoal_view raws[TENSORS_MAX];
    unsigned input_count, output_count, raw_count;
    struct shoal_buf tail; /* the bytes of typed tensors */
    unsigned *budget;      /* SHOAL_GRPC_NUMBERS_MAX, for all readers of the message */
};

static struct proto_reader read_of(unsigned *budget, struct shoal_view message)
{
    struct proto_reader reader = proto_reader_init(message);

    reader.budget = budget;
    return reader;
}

static enum shoal_err bad(struct shoal_msg *msg, const struct tensor *t, const char *what)
{
    return shoal_fail(msg, SHOAL_ERR_INVALID, "input %.*s: %s", (int)(t->name.len < 100 ? t->name.len : 100),
                      t->name.len == 0 ? "" : (const char *)t->name.bytes, what);
}

static enum shoal_err no_memory(struct shoal_msg *msg)
{
    return shoal_fail(msg, SHOAL_ERR_FULL, "out of memory; try again later");
}

static enum shoal_err no_message(struct shoal_msg *msg)
{
    return shoal_fail(msg, SHOAL_ERR_INVALID, "the message is no ModelInferRequest");
}

/* One number of a typed field as bytes of its type. False: it is beyond it. */
static bool take_number(struct decoding *d, const struct type *type, uint64_t value, bool *memory)
{
    int64_t number = type->contents == INTS ? (int64_t)(int32_t)(uint32_t)value : (int64_t)value;
    uint8_t out[8];

    if (type->most > 0 && (number < type->least || number > type->most))
        return false;
    put_le((uint64_t)number, type->bytes, out);
    if (shoal_buf_append(&d->tail, out, type->bytes) != SHOAL_OK)
        *memory = false;
    return true;
}

static enum shoal_err take_packed(struct decoding *d, const struct tensor *t, struct shoal_view packed,
                                  struct shoal_msg *msg)
{
    struct proto_reader reader = read_of(d->budget, packed);
    bool memory = true;
    uint64_t value;

    if (t->type->contents == FLOATS || t->type->contents == DOUBLES) { /* as they are */
        if (packed.len % t->type->bytes != 0)
            return no_message(msg);
        return packed.len == 0 || shoal_buf_append(&d->tail, packed.bytes, packed.len) == SHOAL_OK ? SHOAL_OK
                                                                                                   : no_memory(msg);
    }
    while (memory && proto_next_varint(&reader, &value))
        if (!take_number(d, t->type, value, &memory))
            return bad(msg, t, "contents have a value beyond its datatype");
    if (reader.failed)
        return no_message(msg);
    return memory ? SHOAL_OK : no_memory(msg);
}

static enum shoal_err take_element(struct decoding *d, const struct tensor *t, const struct proto_field *field,
                                   struct shoal_msg *msg)
{
    uint8_t out[8];
    bool memory = true;

    if (t->type->contents == BYTESS && field->wire == PROTO_BYTES) {
        if (field->bytes.len > SHOAL_INFER_BODY_BYTES_MAX)
            return no_message(msg);
        put_le(field->bytes.len, 4, out);
        if (shoal_buf_append(&d->tail, out, 4) != SHOAL_OK ||
            (field->bytes.len > 0 && shoal_buf_append(&d->tail, field->bytes.bytes, field->bytes.len) != SHOAL_OK))
            return no_memory(msg);
        return SHOAL_OK;
    }
    if (field->wire == PROTO_BYTES)
        return take_packed(d, t, field->bytes, msg);
    if (t->type->contents == FLOATS || t->type->contents == DOUBLES) {
        if (field->wire != (t->type->contents == FLOATS ? PROTO_FIXED32 : PROTO_FIXED64))
            return no_message(msg);
        put_le(field->value, t->type->bytes, out);
        return shoal_buf_append(&d->tail, out, t->type->bytes) == SHOAL_OK ? SHOAL_OK : no_memory(msg);
    }
    if (field->wire != PROTO_VARINT)
        return no_message(msg);
    if (!take_number(d, t->type, field->value, &memory))
        return bad(msg, t, "contents have a value beyond its datatype");
    return memory ? SHOAL_OK : no_memory(msg);
}

static enum shoal_err take_contents(struct decoding *d, struct tensor *t, struct shoal_view contents,
                                    struct shoal_msg *msg)
{
    struct proto_reader reader = read_of(d->budget, contents);
    struct proto_field field;
    enum shoal_err err;

    while (proto_next(&reader, &field)) {
        if (t->type == NULL || field.number > BYTESS)
            continue; /* the kernel names the types that it knows */
        if (t->type->contents == 0)
            return bad(msg, t, "FP16 has no typed contents; send raw_input_contents");
        if (field.number != t->type->contents)
            return bad(msg, t, "contents are not of its datatype");
        err = take_element(d, t, &field, msg);
        if (err != SHOAL_OK)
            return err;
    }
    return reader.failed ? no_message(msg) : SHOAL_OK;
}

static enum shoal_err take_input(struct decoding *d, struct shoal_view message, struct shoal_msg *msg)
{
    struct tensor *t = &d->inputs[d->input_count];
    struct proto_reader reader = read_of(d->budget, message);
    struct shoal_view contents = { 0 };
    struct proto_field field;
    enum shoal_err err;

    if (d->input_count == TENSORS_MAX)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "more than %u inputs", TENSORS_MAX);
    *t = (struct tensor){ .whole = message, .at = d->tail.len };
    while (proto_next(&reader, &field)) {
        if (field.wire != PROTO_BYTES)
            continue;
        if (field.number == 1)
            t->name = field.bytes;
        else if (field.number == 2)
            t->datatype = field.bytes;
        else if (field.number == 5)
            contents = field.bytes;
    }
    if (reader.failed)
        return no_message(msg);
    t->type = type_find(t->datatype);
    err = take_contents(d, t, contents, msg);
    t->len = d->tail.len - t->at;
    d->input_count++;
    return err;
}

/* ---- its JSON ---- */

static bool is_ours(struct shoal_view key)
{
    return shoal_view_equal(key, shoal_view_text("binary_data")) ||
           shoal_view_equal(key, shoal_view_text("binary_data_size")) ||
           shoal_view_equal(key, shoal_view_text("binary_data_output"));
}

static bool put_parameter(struct json_writer *w, unsigned *budget, struct shoal_view entry)
{
    struct proto_reader reader = read_of(budget, entry);
    struct shoal_view key = { 0 }, value = { 0 };
    struct proto_field field, said = { .number = 0 };
    char name[100], text[40];
    double number;

    while (proto_next(&reader, &field)) {
        if (field.wire == PROTO_BYTES && field.number == 1)
            key = field.bytes;
        else if (field.wire == PROTO_BYTES && field.number == 2)
            value = field.bytes;
    }
    if (reader.failed || key.len >= sizeof(name) || (key.len > 0 && memchr(key.bytes, 0, key.len) != NULL))
        return false;
    if (is_ours(key))
        return true;
    (void)snprintf(name, sizeof(name), "%.*s", (int)key.len, key.len == 0 ? "" : (const char *)key.bytes);
    reader = read_of(budget, value);
    while (proto_next(&reader, &field))
        said = field;
    if (said.number == 1 && said.wire == PROTO_VARINT) {
        json_bool(w, name, said.value != 0);
    } else if (said.number == 2 && said.wire == PROTO_VARINT) {
        json_int(w, name, (int64_t)said.value);
    } else if (said.number == 3 && said.wire == PROTO_BYTES) {
        json_text_view(w, name, said.bytes);
    } else if (said.number == 4 && said.wire == PROTO_FIXED64) {
        memcpy(&number, &said.value, sizeof(number));
        (void)snprintf(text, sizeof(text), "%.17g", number);
        json_raw(w, name, shoal_view_text(number - number == 0 ? text : "null"));
    } else if (said.number == 5 && said.wire == PROTO_VARINT) {
        json_uint(w, name, said.value);
    }
    return !reader.failed;
}

/* The map `number` of a message, inside an object that is open. */
static bool put_parameters(struct json_writer *w, unsigned *budget, struct shoal_view message, uint32_t number)
{
    struct proto_reader reader = read_of(budget, message);
    struct proto_field field;
    unsigned count = 0;

    while (proto_next(&reader, &field))
        if (field.number == number && field.wire == PROTO_BYTES &&
            (++count > PARAMETERS_MAX || !put_parameter(w, budget, field.bytes)))
            return false;
    return !reader.failed;
}

static bool put_shape(struct json_writer *w, unsigned *budget, struct shoal_view message)
{
    struct proto_reader reader = read_of(budget, message), packed;
    struct proto_field field;
    unsigned count = 0;
    uint64_t value;
    bool fine = true;

    json_array_begin(w, "shape");
    while (proto_next(&reader, &field)) {
        if (field.number != 3)
            continue;
        packed = read_of(budget, field.bytes);
        if (field.wire == PROTO_VARINT && ++count <= DIMENSIONS_MAX)
            json_int(w, NULL, (int64_t)field.value);
        while (field.wire == PROTO_BYTES && count <= DIMENSIONS_MAX && proto_next_varint(&packed, &value) &&
               ++count <= DIMENSIONS_MAX)
            json_int(w, NULL, (int64_t)value);
        fine = fine && !packed.failed;
    }
    json_end(w);
    return fine && !reader.failed && count <= DIMENSIONS_MAX;
}

static bool put_inputs(struct json_writer *w, const struct decoding *d)
{
    bool fine = true;

    json_array_begin(w, "inputs");
    for (unsigned i = 0; i < d->input_count && fine; i++) {
        const struct tensor *t = &d->inputs[i];

        json_object_begin(w, NULL);
        json_text_view(w, "name", t->name);
        json_text_view(w, "datatype", t->datatype);
        fine = put_shape(w, d->budget, t->whole);
        json_object_begin(w, "parameters");
        fine = fine && put_parameters(w, d->budget, t->whole, 4);
        json_uint(w, "binary_data_size", d->raw_count > 0 ? t->raw.len : t->len);
        json_end(w);
        json_end(w);
        fine = fine && w->buf->len <= SHOAL_JSON_BYTES_MAX;
    }
    json_end(w);
    return fine;
}

static bool put_outputs(struct json_writer *w, const struct decoding *d)
{
    bool fine = true;

    json_array_begin(w, "outputs");
    for (unsigned i = 0; i < d->output_count && fine; i++) {
        struct proto_reader reader = read_of(d->budget, d->outputs[i]);
        struct proto_field field;

        json_object_begin(w, NULL);
        while (proto_next(&reader, &field))
            if (field.number == 1 && field.wire == PROTO_BYTES)
                json_text_view(w, "name", field.bytes);
        json_object_begin(w, "parameters");
        fine = !reader.failed && put_parameters(w, d->budget, d->outputs[i], 2) && w->buf->len <= SHOAL_JSON_BYTES_MAX;
        json_end(w);
        json_end(w);
    }
    json_end(w);
    return fine;
}

static bool put_json(struct json_writer *w, const struct decoding *d, struct shoal_view message, const char *id)
{
    bool fine;

    json_object_begin(w, NULL);
    if (id[0] != '\0')
        json_text(w, "id", id);
    json_object_begin(w, "parameters");
    fine = put_parameters(w, d->budget, message, 4);
    json_bool(w, "binary_data_output", true);
    json_end(w);
    fine = fine && put_inputs(w, d) && (d->output_count == 0 || put_outputs(w, d));
    json_end(w);
    return fine;
}

/* ---- the request, whole ---- */

static bool take_text(struct shoal_view bytes, char *text, size_t cap)
{
    if (bytes.len >= cap || (bytes.len > 0 && memchr(bytes.bytes, 0, bytes.len) != NULL))
        return false;
    (void)snprintf(text, cap, "%.*s", (int)bytes.len, bytes.len == 0 ? "" : (const char *)bytes.bytes);
    return true;
}

static enum shoal_err take_field(struct decoding *d, struct oip_request *request, const struct proto_field *field,
                                 struct shoal_msg *msg)
{
    if (field->number == 1 && !take_text(field->bytes, request->model, sizeof(request->model)))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "model_name is too long");
    if (field->number == 2 && !take_text(field->bytes, request->version, sizeof(request->version)))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "model_version is too long");
    if (field->number == 3 && !take_text(field->bytes, request->id, sizeof(request->id)))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "id is longer than %u bytes", OIP_ID_BYTES - 1);
    if (field->number == 5)
        return take_input(d, field->bytes, msg);
    if ((field->number == 6 && d->output_count == TENSORS_MAX) || (field->number == 7 && d->raw_count == TENSORS_MAX))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "more than %u outputs or raw_input_contents", TENSORS_MAX);
    if (field->number == 6)
        d->outputs[d->output_count++] = field->bytes;
    else if (field->number == 7)
        d->raws[d->raw_count++] = field->bytes;
    return SHOAL_OK;
}

static enum shoal_err assign_raws(struct decoding *d, struct shoal_msg *msg)
{
    if (d->raw_count == 0)
        return SHOAL_OK;
    if (d->tail.len > 0)
        return shoal_fail(msg, SHOAL_ERR_INVALID,
                          "raw_input_contents and typed contents in one request; send one of them");
    if (d->raw_count != d->input_count)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "%u raw_input_contents for %u inputs", d->raw_count, d->input_count);
    for (unsigned i = 0; i < d->raw_count; i++)
        d->inputs[i].raw = d->raws[i];
    return SHOAL_OK;
}

static enum shoal_err make_body(const struct decoding *d, struct oip_request *request, struct shoal_view message,
                                struct shoal_msg *msg)
{
    struct json_writer w = json_writer_init(&request->body);
    bool fine = put_json(&w, d, message, request->id), memory;

    if (w.failed)
        return no_memory(msg);
    if (!fine)
        return shoal_fail(
            msg, SHOAL_ERR_INVALID,
            "the message is no ModelInferRequest, or has more than %u dimensions or %u parameters somewhere",
            DIMENSIONS_MAX, PARAMETERS_MAX);
    request->header_len = (uint32_t)request->body.len;
    memory = d->tail.len == 0 || shoal_buf_append(&request->body, d->tail.bytes, d->tail.len) == SHOAL_OK;
    for (unsigned i = 0; i < d->raw_count && memory; i++)
        memory = d->raws[i].len == 0 || shoal_buf_append(&request->body, d->raws[i].bytes, d->raws[i].len) == SHOAL_OK;
    if (!memory)
        return no_memory(msg);
    if (request->body.len > SHOAL_INFER_BODY_BYTES_MAX)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "the request is larger than a model takes");
    return SHOAL_OK;
}

enum shoal_err oip_request_decode(struct shoal_view message, struct oip_request *request, struct shoal_msg *msg)
{
    unsigned budget = SHOAL_GRPC_NUMBERS_MAX;
    struct decoding *d = calloc(1, sizeof(*d));
    struct proto_reader reader = read_of(&budget, message);
    struct proto_field field;
    enum shoal_err err = SHOAL_OK;

    *request = (struct oip_request){ .raw = false };
    if (d == NULL)
        return no_memory(msg);
    d->budget = &budget;
    while (err == SHOAL_OK && proto_next(&reader, &field))
        if (field.number <= 7)
            err = field.wire == PROTO_BYTES ? take_field(d, request, &field, msg) : no_message(msg);
    if (err == SHOAL_OK && reader.failed)
        err = no_message(msg);
    if (err == SHOAL_OK && request->model[0] == '\0')
        err = shoal_fail(msg, SHOAL_ERR_INVALID, "model_name is missing");
    if (err == SHOAL_OK)
        err = assign_raws(d, msg);
    if (err == SHOAL_OK)
        err = make_body(d, request, message, msg);
    request->raw = d->raw_count > 0;
    if (err != SHOAL_OK && budget == 0)
        err = shoal_fail(msg, SHOAL_ERR_TOO_BIG,
                         "the message has more than %u numbers and fields; send its tensors as raw_input_contents",
                         SHOAL_GRPC_NUMBERS_MAX);
    if (err != SHOAL_OK)
        shoal_buf_deinit(&request->body);
    shoal_buf_deinit(&d->tail);
    free(d);
    return err;
}

/* ---- the answer ---- */

struct answering {
    struct proto_writer w;
    struct shoal_view tail; /* of the answer, not taken yet */
    struct shoal_view raws[TENSORS_MAX];
    size_t ats[TENSORS_MAX]; /* where `data` became bytes in `made`; raws has them then only by their length */
    bool of_data[TENSORS_MAX];
    struct shoal_buf made;
    unsigned budget; /* of numbers that are written one by one */
    bool raw;
};

/* A number, or a text of one. */
static bool take_real(const struct json_value *value, double *real)
{
    char buf[64], *end = NULL;
    const char *text;

    if (json_input_real(value, real))
        return true;
    text = json_input_scalar(value, buf, sizeof(buf));
    *real = text == NULL ? 0 : strtod(text, &end);
    return text != NULL && *end == '\0';
}

/* One element of `data`. */
static bool put_scalar(struct answering *a, const struct type *type, const struct json_value *value)
{
    char buf[64];
    const char *text;
    char *end = NULL;
    uint8_t out[8];
    double wide;
    float narrow;
    uint64_t bits = 0;

    if (type->contents == BYTESS) {
        text = json_input_scalar(value, buf, sizeof(buf));
        if (text == NULL)
            return false;
        put_le(strlen(text), 4, out);
        return shoal_buf_append(&a->made, out, 4) == SHOAL_OK &&
               shoal_buf_append(&a->made, text, strlen(text)) == SHOAL_OK;
    }
    if (type->contents == BOOLS) {
        bits = json_input_is_true(value);
    } else if (type->contents == FLOATS || type->contents == DOUBLES) {
        if (!take_real(value, &wide))
            return false;
        narrow = (float)wide;
        memcpy(&bits, type->contents == FLOATS ? (const void *)&narrow : (const void *)&wide, type->bytes);
    } else {
        text = json_input_scalar(value, buf, sizeof(buf));
        if (text == NULL || type->contents == 0)
            return false;
        bits = type->contents == UINT64S ? strtoull(text, &end, 10) : (uint64_t)strtoll(text, &end, 10);
        if (*end != '\0')
            return false;
    }
    put_le(bits, type->bytes, out);
    return shoal_buf_append(&a->made, out, type->bytes) == SHOAL_OK;
}

static bool put_data(struct answering *a, const struct type *type, const struct json_value *value, unsigned depth)
{
    bool fine = true;

    if (!json_input_is_array(value))
        return put_scalar(a, type, value);
    for (size_t i = 0; i < json_input_count(value) && fine; i++)
        fine = depth < DEPTH_MAX && put_data(a, type, json_input_at(value, i), depth + 1);
    return fine;
}

static const struct type *type_of(const struct json_value *output)
{
    const char *name = json_input_text(output, "datatype");

    return name == NULL ? NULL : type_find(shoal_view_text(name));
}

/* The bytes of output `i`. */
static bool find_bytes(struct answering *a, const struct json_value *output, size_t i)
{
    const struct json_value *data = json_input_get(output, "data");
    const struct type *type = type_of(output);
    int64_t size = 0;

    if (type == NULL)
        return false;
    if (json_input_int(json_input_get(output, "parameters"), "binary_data_size", &size)) {
        if (size < 0 || (uint64_t)size > a->tail.len)
            return false;
        a->raws[i] = shoal_view_of(a->tail.bytes, (size_t)size);
        a->tail.bytes += size;
        a->tail.len -= (size_t)size;
        return true;
    }
    a->ats[i] = a->made.len;
    a->of_data[i] = true;
    if (data == NULL || !put_data(a, type, data, 0))
        return false;
    a->raws[i].len = a->made.len - a->ats[i];
    return true;
}

static uint64_t get_le(const uint8_t *bytes, unsigned len)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < len; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

/* Elements of integers, each as a varint. */
static bool put_integers(struct answering *a, const struct type *type, struct shoal_view raw)
{
    size_t packed = proto_begin(&a->w, type->contents), at = 0;

    for (; raw.len - at >= type->bytes && a->budget > 0; at += type->bytes, a->budget--) {
        uint64_t value = get_le(raw.bytes + at, type->bytes);

        if (type->least < 0 && (value >> (8 * type->bytes - 1)) != 0) /* a negative one is 64 bits long */
            value |= ~(uint64_t)0 << (8 * type->bytes - 1);
        proto_put_varint(&a->w, value);
    }
    proto_end(&a->w, packed);
    return at == raw.len;
}

static bool put_texts(struct answering *a, struct shoal_view raw)
{
    size_t at = 0;

    for (; raw.len - at >= 4 && a->budget > 0; a->budget--) {
        size_t len = (size_t)get_le(raw.bytes + at, 4);

        if (len > raw.len - at - 4)
            return false;
        proto_bytes(&a->w, BYTESS, shoal_view_of(raw.bytes + at + 4, len));
        at += 4 + len;
    }
    return at == raw.len;
}

/* Raw bytes as InferTensorContents. */
static bool put_contents(struct answering *a, const struct type *type, struct shoal_view raw)
{
    size_t begun = proto_begin(&a->w, 5);
    bool fine = true;

    if (type->contents == BYTESS)
        fine = put_texts(a, raw);
    else if (type->contents == FLOATS || type->contents == DOUBLES)
        proto_bytes(&a->w, type->contents, raw);
    else
        fine = put_integers(a, type, raw);
    proto_end(&a->w, begun);
    return fine;
}

static void put_answer_parameter(void *arg, const char *key, const struct json_value *value)
{
    struct proto_writer *w = arg;
    char buf[64], *dumped = json_input_dump(value);
    const char *text = json_input_scalar(value, buf, sizeof(buf));
    size_t entry, parameter;

    if (dumped == NULL || is_ours(shoal_view_text(key))) {
        free(dumped);
        return;
    }
    entry = proto_begin(w, 4);
    proto_text(w, 1, key);
    parameter = proto_begin(w, 2);
    if (dumped[0] == 't' || dumped[0] == 'f')
        proto_bool(w, 1, dumped[0] == 't');
    else if (dumped[0] != '"' && text != NULL && strpbrk(dumped, ".eE") == NULL)
        proto_uint(w, 2, (uint64_t)strtoll(dumped, NULL, 10));
    else if (dumped[0] != '"' && text != NULL)
        proto_double(w, 4, strtod(dumped, NULL));
    else
        proto_text(w, 3, text == NULL ? dumped : text);
    proto_end(w, parameter);
    proto_end(w, entry);
    free(dumped);
}

static void put_output(struct answering *a, const struct json_value *output, size_t i, bool *fine)
{
    const struct json_value *shape = json_input_get(output, "shape");
    const char *name = json_input_text(output, "name"), *text;
    size_t begun = proto_begin(&a->w, 5), packed;
    char buf[32];

    proto_text(&a->w, 1, name == NULL ? "" : name);
    proto_text(&a->w, 2, json_input_text(output, "datatype"));
    packed = proto_begin(&a->w, 3);
    for (size_t k = 0; shape != NULL && k < json_input_count(shape); k++) {
        text = json_input_scalar(json_input_at(shape, k), buf, sizeof(buf));
        proto_put_varint(&a->w, text == NULL ? 0 : (uint64_t)strtoll(text, NULL, 10));
    }
    proto_end(&a->w, packed);
    json_input_each(json_input_get(output, "parameters"), put_answer_parameter, &a->w);
    if (!a->raw && !put_contents(a, type_of(output), a->raws[i]))
        *fine = false;
    proto_end(&a->w, begun);
}

static bool put_outputs_of(struct answering *a, const struct json_value *outputs)
{
    size_t count = json_input_count(outputs);
    bool fine = count <= TENSORS_MAX;

    for (size_t i = 0; i < count && fine; i++)
        fine = find_bytes(a, json_input_at(outputs, i), i);
    for (size_t i = 0; i < count && fine; i++) {
        if (a->of_data[i])
            a->raws[i].bytes = a->made.bytes + a->ats[i];
        a->raw = a->raw || type_of(json_input_at(outputs, i))->contents == 0;
    }
    for (size_t i = 0; i < count && fine; i++)
        put_output(a, json_input_at(outputs, i), i, &fine);
    for (size_t i = 0; i < count && fine && a->raw; i++)
        proto_bytes(&a->w, 6, a->raws[i]);
    return fine && a->tail.len == 0;
}

static bool put_answer(struct answering *a, const struct json_value *root)
{
    const struct json_value *outputs = json_input_get(root, "outputs");
    const char *model = json_input_text(root, "model_name"), *version = json_input_text(root, "model_version"),
               *id = json_input_text(root, "id");

    if (!json_input_is_object(root) || outputs == NULL || !json_input_is_array(outputs))
        return false;
    proto_text(&a->w, 1, model == NULL ? "" : model);
    proto_text(&a->w, 2, version == NULL ? "" : version);
    proto_text(&a->w, 3, id == NULL ? "" : id);
    json_input_each(json_input_get(root, "parameters"), put_answer_parameter, &a->w);
    return put_outputs_of(a, outputs);
}

enum shoal_err oip_answer_encode(const struct shoal_inferred *inferred, bool raw, struct shoal_buf *out,
                                 struct shoal_msg *msg)
{
    size_t header = inferred->header_len > 0 ? inferred->header_len : inferred->body.len, had = out->len;
    struct answering *a = calloc(1, sizeof(*a));
    struct json_input *input = NULL;
    struct shoal_msg why;
    enum shoal_err err = SHOAL_OK;

    if (a == NULL)
        return no_memory(msg);
    a->w = proto_writer_init(out);
    a->raw = raw;
    a->budget = SHOAL_GRPC_NUMBERS_MAX;
    if (header > SHOAL_JSON_BYTES_MAX || header > inferred->body.len)
        err = shoal_fail(
            msg, SHOAL_ERR_TOO_BIG,
            "the model's answer is JSON of more than 1 MiB; it has to be asked over REST, or to answer binary tensors");
    if (err == SHOAL_OK) {
        a->tail = shoal_view_of(inferred->body.bytes + header, inferred->body.len - header);
        if (json_input_parse(shoal_view_of(inferred->body.bytes, header), &input, &why) != SHOAL_OK ||
            !put_answer(a, json_input_root(input)))
            err = a->budget == 0
                      ? shoal_fail(msg, SHOAL_ERR_TOO_BIG,
                                   "the model's answer has more than %u elements; ask with raw_input_contents",
                                   SHOAL_GRPC_NUMBERS_MAX)
                      : shoal_fail(msg, SHOAL_ERR_MALFORMED,
                                   "the model's answer is not of the Open Inference Protocol; ask it over REST, or by "
                                   "dlim.v1.StreamInference");
    }
    if (err == SHOAL_OK && a->w.failed)
        err = no_memory(msg);
    if (err != SHOAL_OK)
        out->len = had;
    json_input_free(input);
    shoal_buf_deinit(&a->made);
    free(a);
    return err;
}
