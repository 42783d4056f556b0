/* See kernel_wire.h. */
#include "kernel_wire.h"

#include <stdio.h>
#include <string.h>

#include "shoal/pack.h"
#include "shoal/text.h"

#include "shoal/banned.h"

#define LENGTH_BYTES 4
#define BIN_HEAD_BYTES 5
#define FIELD_BYTES_MAX 1024 /* the longest is a path */

static void put_length(uint8_t *bytes, size_t len)
{
    for (unsigned i = 0; i < LENGTH_BYTES; i++)
        bytes[i] = (uint8_t)(len >> (8 * i));
}

/* A body's head with its length in four bytes, whatever the body: the body itself is written from where it lies. */
static void put_body_head(struct shoal_pack_writer *w, size_t len)
{
    uint8_t head[BIN_HEAD_BYTES] = { 0xc6, (uint8_t)(len >> 24), (uint8_t)(len >> 16), (uint8_t)(len >> 8),
                                     (uint8_t)len };

    shoal_pack_put_raw(w, shoal_view_of(head, sizeof(head)));
}

/* A string of MessagePack is UTF-8, and a kernel may rely on it: what is none, another host let in. */
static void put_field(struct shoal_pack_writer *w, const char *name, const char *text)
{
    char shown[FIELD_BYTES_MAX];

    if (text == NULL || text[0] == '\0')
        return;
    if (strlen(text) >= sizeof(shown)) {
        w->failed = true;
        return;
    }
    (void)snprintf(shown, sizeof(shown), "%s", text);
    for (uint8_t *at = (uint8_t *)shown; *at != 0;) {
        size_t len = shoal_utf8_len(at, 4);

        if (len == 0)
            *at++ = '?';
        at += len;
    }
    shoal_pack_put_name(w, name);
    shoal_pack_put_text(w, shown);
}

enum shoal_err kernel_infer_head(const struct kernel_ask *ask, size_t body_bytes, uint8_t head[KERNEL_HEAD_BYTES_MAX],
                                 size_t *len)
{
    struct shoal_pack_writer w = shoal_pack_writer_init(head + LENGTH_BYTES, KERNEL_HEAD_BYTES_MAX - LENGTH_BYTES);

    if (body_bytes > SHOAL_INFER_BODY_BYTES_MAX)
        return SHOAL_ERR_TOO_BIG;
    shoal_pack_put_array(&w, 4);
    shoal_pack_put_text(&w, "infer");
    shoal_pack_put_u64(&w, ask->id);
    shoal_pack_begin_map(&w);
    put_field(&w, "content_type", ask->content_type);
    shoal_pack_put_name(&w, "deadline_ms");
    shoal_pack_put_u64(&w, ask->deadline_ms);
    if (ask->header_len > 0) {
        shoal_pack_put_name(&w, "header_len");
        shoal_pack_put_u64(&w, ask->header_len);
    }
    put_field(&w, "method", ask->method);
    put_field(&w, "model", ask->model);
    put_field(&w, "path", ask->path);
    put_field(&w, "user", ask->user);
    put_field(&w, "version", ask->version);
    if (ask->window > 0) {
        shoal_pack_put_name(&w, "window");
        shoal_pack_put_u64(&w, ask->window);
    }
    shoal_pack_end_map(&w);
    put_body_head(&w, body_bytes);
    if (w.failed)
        return SHOAL_ERR_TOO_BIG;
    put_length(head, w.len + body_bytes);
    *len = LENGTH_BYTES + w.len;
    return SHOAL_OK;
}

static size_t word_end(const struct shoal_pack_writer *w, uint8_t bytes[KERNEL_WORD_BYTES])
{
    SHOAL_ASSERT(!w->failed); /* its values are numbers: they fit */
    put_length(bytes, w->len);
    return LENGTH_BYTES + w->len;
}

size_t kernel_more(uint64_t id, uint32_t more, uint8_t bytes[KERNEL_WORD_BYTES])
{
    struct shoal_pack_writer w = shoal_pack_writer_init(bytes + LENGTH_BYTES, KERNEL_WORD_BYTES - LENGTH_BYTES);

    shoal_pack_put_array(&w, 3);
    shoal_pack_put_text(&w, "more");
    shoal_pack_put_u64(&w, id);
    shoal_pack_put_u64(&w, more);
    return word_end(&w, bytes);
}

size_t kernel_cancel(uint64_t id, uint8_t bytes[KERNEL_WORD_BYTES])
{
    struct shoal_pack_writer w = shoal_pack_writer_init(bytes + LENGTH_BYTES, KERNEL_WORD_BYTES - LENGTH_BYTES);

    shoal_pack_put_array(&w, 2);
    shoal_pack_put_text(&w, "cancel");
    shoal_pack_put_u64(&w, id);
    return word_end(&w, bytes);
}

/* ---- from a kernel ---- */

enum shoal_err kernel_frame(struct shoal_view bytes, size_t *len)
{
    size_t rest = 0;

    *len = 0;
    if (bytes.len < LENGTH_BYTES)
        return SHOAL_OK;
    for (unsigned i = 0; i < LENGTH_BYTES; i++)
        rest |= (size_t)bytes.bytes[i] << (8 * i);
    if (rest == 0 || rest > KERNEL_FRAME_BYTES_MAX)
        return SHOAL_ERR_TOO_BIG;
    if (bytes.len - LENGTH_BYTES >= rest)
        *len = LENGTH_BYTES + rest;
    return SHOAL_OK;
}

/* A text of a kernel is for people and headers: control characters become spaces, and what is too long is cut. */
static void get_plain(struct shoal_pack_reader *r, char *text, size_t cap)
{
    struct shoal_view said = shoal_pack_get_str(r, KERNEL_FRAME_BYTES_MAX);
    size_t len = said.len < cap ? said.len : cap - 1;

    for (size_t i = 0; i < len; i++)
        text[i] = (char)(said.bytes[i] == 0 ? ' ' : said.bytes[i]);
    text[len] = '\0';
    shoal_text_plain(text, ' ');
}

/* A body may be text too: kernels return strings. */
static struct shoal_view get_body(struct shoal_pack_reader *r)
{
    struct shoal_pack_value value = shoal_pack_next(r);

    if (value.type == SHOAL_PACK_BIN || value.type == SHOAL_PACK_STR)
        return value.bytes;
    if (value.type != SHOAL_PACK_NIL)
        r->failed = true;
    return (struct shoal_view){ 0 };
}

static void get_ready(struct shoal_pack_reader *r, struct kernel_message *m)
{
    struct shoal_pack_map map = shoal_pack_get_map(r);

    m->batch = 1;
    while (shoal_pack_next_field(r, &map)) {
        if (shoal_pack_named(&map, "name"))
            get_plain(r, m->name, sizeof(m->name));
        else if (shoal_pack_named(&map, "version"))
            get_plain(r, m->version, sizeof(m->version));
        else if (shoal_pack_named(&map, "platform"))
            get_plain(r, m->platform, sizeof(m->platform));
        else if (shoal_pack_named(&map, "inputs"))
            m->inputs = shoal_pack_get_raw(r);
        else if (shoal_pack_named(&map, "outputs"))
            m->outputs = shoal_pack_get_raw(r);
        else if (shoal_pack_named(&map, "batch"))
            m->batch = (uint32_t)shoal_pack_get_u64(r, UINT32_MAX);
        else
            shoal_pack_skip(r);
    }
    if (m->batch == 0)
        m->batch = 1;
    if (m->batch > SHOAL_KERNEL_BATCH_MAX)
        m->batch = SHOAL_KERNEL_BATCH_MAX;
    if (m->inputs.len > KERNEL_TENSORS_BYTES_MAX || m->outputs.len > KERNEL_TENSORS_BYTES_MAX)
        m->inputs = m->outputs = (struct shoal_view){ 0 };
}

static void get_done(struct shoal_pack_reader *r, struct kernel_message *m)
{
    struct shoal_pack_map map;

    m->id = shoal_pack_get_u64(r, UINT64_MAX);
    m->status = (uint32_t)shoal_pack_get_u64(r, 599);
    if (m->status < 200)
        r->failed = true;
    map = shoal_pack_get_map(r);
    while (shoal_pack_next_field(r, &map)) {
        if (shoal_pack_named(&map, "content_type"))
            get_plain(r, m->content_type, sizeof(m->content_type));
        else if (shoal_pack_named(&map, "header_len"))
            m->header_len = (uint32_t)shoal_pack_get_u64(r, SHOAL_INFER_BODY_BYTES_MAX);
        else if (shoal_pack_named(&map, "batch"))
            m->batch = (uint32_t)shoal_pack_get_u64(r, UINT32_MAX);
        else
            shoal_pack_skip(r);
    }
    m->body = get_body(r);
}

enum shoal_err kernel_decode(struct shoal_view frame, struct kernel_message *message)
{
    struct shoal_pack_reader r = shoal_pack_reader_init(frame);
    struct kernel_message m = { .kind = KERNEL_FAILED };
    uint32_t count = shoal_pack_get_array(&r, 8);
    struct shoal_view kind = shoal_pack_get_str(&r, 16);

    if (shoal_view_equal(kind, shoal_view_text("ready")) && count == 2) {
        m.kind = KERNEL_READY;
        get_ready(&r, &m);
    } else if (shoal_view_equal(kind, shoal_view_text("done")) && count == 5) {
        m.kind = KERNEL_DONE;
        get_done(&r, &m);
    } else if (shoal_view_equal(kind, shoal_view_text("part")) && count == 3) {
        m.kind = KERNEL_PART;
        m.id = shoal_pack_get_u64(&r, UINT64_MAX);
        m.body = get_body(&r);
    } else if (shoal_view_equal(kind, shoal_view_text("failed")) && count == 2) {
        get_plain(&r, m.text, sizeof(m.text));
    } else {
        return SHOAL_ERR_MALFORMED;
    }
    if (!shoal_pack_reader_done(&r) || m.body.len > SHOAL_INFER_BODY_BYTES_MAX || m.header_len > m.body.len)
        return SHOAL_ERR_MALFORMED;
    *message = m;
    return SHOAL_OK;
}
