#include "grpc.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http_server.h"
#include "json_input.h"

#include "shoal/banned.h"

#define TYPE "application/grpc"
#define TEXT_BYTES 600

enum grpc_code grpc_code_of(int status)
{
    static const struct {
        int status;
        enum grpc_code code;
    } rows[] = {
        { 400, GRPC_INVALID_ARGUMENT },    { 401, GRPC_UNAUTHENTICATED },    { 403, GRPC_PERMISSION_DENIED },
        { 404, GRPC_NOT_FOUND },           { 405, GRPC_UNIMPLEMENTED },      { 408, GRPC_DEADLINE_EXCEEDED },
        { 409, GRPC_FAILED_PRECONDITION }, { 413, GRPC_RESOURCE_EXHAUSTED }, { 415, GRPC_UNIMPLEMENTED },
        { 422, GRPC_INVALID_ARGUMENT },    { 429, GRPC_RESOURCE_EXHAUSTED }, { 499, GRPC_CANCELLED },
        { 501, GRPC_UNIMPLEMENTED },       { 503, GRPC_UNAVAILABLE },        { 504, GRPC_DEADLINE_EXCEEDED },
        { 507, GRPC_RESOURCE_EXHAUSTED },
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].status == status)
            return rows[i].code;
    return status >= 400 && status < 500 ? GRPC_INVALID_ARGUMENT : GRPC_INTERNAL;
}

/* ---- messages ---- */

bool grpc_frames_is_between(const struct grpc_frames *frames) { return frames->have == 0 && !frames->within; }

static enum shoal_err head_ended(struct grpc_frames *frames, struct shoal_msg *msg)
{
    const uint8_t *h = frames->head;
    uint32_t len = (uint32_t)h[1] << 24 | (uint32_t)h[2] << 16 | (uint32_t)h[3] << 8 | h[4];

    if (h[0] != 0)
        return shoal_fail(msg, SHOAL_ERR_UNSUPPORTED, "a compressed message is not read; send it without compression");
    if (len > frames->most)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "the message has %" PRIu32 " bytes; %zu are taken", len,
                          frames->most);
    frames->have = 0;
    frames->left = len;
    frames->within = true;
    frames->message.len = 0;
    return SHOAL_OK;
}

enum shoal_err grpc_frames_step(struct grpc_frames *frames, const uint8_t *bytes, size_t len, size_t *used, bool *whole,
                                struct shoal_msg *msg)
{
    size_t at = 0, take;
    enum shoal_err err;

    *whole = false;
    if (!frames->within) {
        take = sizeof(frames->head) - frames->have;
        take = take < len ? take : len;
        memcpy(frames->head + frames->have, bytes, take);
        frames->have += (unsigned)take;
        at = take;
        *used = at;
        if (frames->have < sizeof(frames->head))
            return SHOAL_OK;
        err = head_ended(frames, msg);
        if (err != SHOAL_OK)
            return err;
    }
    take = frames->left < len - at ? frames->left : len - at;
    if (shoal_buf_append(&frames->message, take == 0 ? frames->head : bytes + at, take) != SHOAL_OK)
        return shoal_fail(msg, SHOAL_ERR_FULL, "out of memory; try again later");
    frames->left -= take;
    frames->within = frames->left > 0;
    *whole = frames->left == 0;
    *used = at + take;
    return SHOAL_OK;
}

void grpc_frame_head(size_t len, uint8_t head[5])
{
    SHOAL_ASSERT(len <= UINT32_MAX);
    head[0] = 0;
    for (unsigned i = 0; i < 4; i++)
        head[1 + i] = (uint8_t)(len >> (24 - 8 * i));
}

/* ---- a call ---- */

bool grpc_asks(const struct http_request *request)
{
    struct shoal_view type;

    return request->stream != NULL && http1_header_find(&request->head, "content-type", &type) &&
           type.len >= sizeof(TYPE) - 1 && memcmp(type.bytes, TYPE, sizeof(TYPE) - 1) == 0;
}

/* Up to eight digits and a unit. */
bool grpc_timeout(const struct http_request *request, uint32_t *timeout_ms)
{
    static const char units[] = "HMSmun";
    static const uint64_t unit_ns[] = { 3600000000000, 60000000000, 1000000000, 1000000, 1000, 1 };
    struct shoal_view text;
    uint64_t value = 0;
    const char *unit;

    *timeout_ms = 0;
    if (!http1_header_find(&request->head, "grpc-timeout", &text))
        return true;
    if (text.len < 2 || text.len > 9)
        return false;
    for (size_t i = 0; i < text.len - 1; i++) {
        if (text.bytes[i] < '0' || text.bytes[i] > '9')
            return false;
        value = value * 10 + (uint64_t)(text.bytes[i] - '0');
    }
    unit = strchr(units, text.bytes[text.len - 1]);
    if (unit == NULL || *unit == '\0')
        return false;
    value = value > UINT64_MAX / unit_ns[unit - units] ? UINT64_MAX : value * unit_ns[unit - units];
    value /= 1000000;
    if (value > SHOAL_INFER_TIMEOUT_MS_MAX)
        value = SHOAL_INFER_TIMEOUT_MS_MAX;
    *timeout_ms = value == 0 ? 1 : (uint32_t)value;
    return true;
}

/* grpc-message: printable ASCII as it is, the rest as %XX. */
static void put_message(const char *text, char out[3 * TEXT_BYTES])
{
    size_t len = 0;

    for (size_t i = 0; text[i] != '\0' && i < TEXT_BYTES - 1; i++) {
        uint8_t c = (uint8_t)text[i];

        if (c >= 0x20 && c <= 0x7e && c != '%')
            out[len++] = (char)c;
        else
            len += (size_t)snprintf(out + len, 4, "%%%02X", c);
    }
    out[len] = '\0';
}

void grpc_end(struct http_request *request, enum grpc_code code, const char *text)
{
    char message[3 * TEXT_BYTES];
    char lines[3 * TEXT_BYTES + 80];
    int len;

    if (request->response_ended)
        return;
    put_message(text, message);
    len = snprintf(lines, sizeof(lines), "grpc-status: %d\r\n%s%s%s", (int)code,
                   message[0] == '\0' ? "" : "grpc-message: ", message, message[0] == '\0' ? "" : "\r\n");
    SHOAL_ASSERT(len > 0 && (size_t)len < sizeof(lines));
    http_request_hold(request); /* the answer to a HEAD ends with its start, and the request with that */
    if (!request->responded)
        http_stream_start(request, 200, TYPE, HTTP_LENGTH_UNKNOWN);
    if (shoal_buf_append(&request->trailers, lines, (size_t)len) != SHOAL_OK)
        http_stream_abort(request);
    else
        http_stream_end(request);
    http_request_release(request);
}

static void on_written(struct http_request *request) { (void)request; }

void grpc_answer(struct http_request *request, struct shoal_view message)
{
    uint8_t head[5];
    struct shoal_buf whole = { 0 };

    grpc_frame_head(message.len, head);
    if (shoal_buf_append(&whole, head, sizeof(head)) != SHOAL_OK ||
        (message.len > 0 && shoal_buf_append(&whole, message.bytes, message.len) != SHOAL_OK)) {
        grpc_end(request, GRPC_RESOURCE_EXHAUSTED, "out of memory; try again later");
    } else {
        http_request_hold(request);
        http_stream_start(request, 200, TYPE, HTTP_LENGTH_UNKNOWN);
        http_stream_write(request, shoal_buf_view(&whole), on_written);
        grpc_end(request, GRPC_OK, "");
        http_request_release(request);
    }
    shoal_buf_deinit(&whole);
}

/* "Error 401: text\n", {"error": "text"}, or the text itself. */
static void text_of(struct shoal_view body, char text[TEXT_BYTES])
{
    struct json_input *input = NULL;
    struct shoal_msg why;
    const char *said = NULL, *colon;

    if (body.len > 0 && body.bytes[0] == '{' && json_input_parse(body, &input, &why) == SHOAL_OK)
        said = json_input_text(json_input_root(input), "error");
    if (said != NULL)
        (void)snprintf(text, TEXT_BYTES, "%s", said);
    else
        (void)snprintf(text, TEXT_BYTES, "%.*s", (int)(body.len < TEXT_BYTES ? body.len : TEXT_BYTES),
                       body.len == 0 ? "" : (const char *)body.bytes);
    json_input_free(input);
    colon = strncmp(text, "Error ", 6) == 0 ? strstr(text, ": ") : NULL;
    if (colon != NULL)
        memmove(text, colon + 2, strlen(colon + 2) + 1);
    text[strcspn(text, "\r\n")] = '\0';
}

void grpc_refuse(struct http_request *request, int status, struct shoal_view body)
{
    char text[TEXT_BYTES];

    text_of(body, text);
    if (request->route == NULL && status == 404)
        grpc_end(request, GRPC_UNIMPLEMENTED, "there is no such method; docs/reference/grpc.md lists them");
    else
        grpc_end(request, grpc_code_of(status), text);
}
