/* libFuzzer: a multipart body with boundary "XX". Cut in two anywhere, it must mean the same as in one piece. */
#include "api/http/multipart.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

struct trace {
    uint64_t hash;
    unsigned begun;
    unsigned ended;
};

static void mix(struct trace *trace, const void *bytes, size_t len)
{
    const uint8_t *at = bytes;

    for (size_t i = 0; i < len; i++)
        trace->hash = (trace->hash ^ at[i]) * 1099511628211u;
}

static enum shoal_err on_begin(void *arg, const struct multipart_part *part, struct shoal_msg *msg)
{
    struct trace *trace = arg;

    (void)msg;
    SHOAL_ASSERT(trace->begun == trace->ended);
    SHOAL_ASSERT(strchr(part->filename, '/') == NULL && strcmp(part->filename, "..") != 0);
    trace->begun++;
    mix(trace, part, sizeof(part->name));
    mix(trace, part->filename, strlen(part->filename) + 1);
    return SHOAL_OK;
}

static enum shoal_err on_data(void *arg, struct shoal_view bytes, struct shoal_msg *msg)
{
    struct trace *trace = arg;

    (void)msg;
    SHOAL_ASSERT(trace->begun == trace->ended + 1);
    mix(trace, bytes.bytes, bytes.len);
    return SHOAL_OK;
}

static enum shoal_err on_end(void *arg, struct shoal_msg *msg)
{
    struct trace *trace = arg;

    (void)msg;
    SHOAL_ASSERT(trace->begun == trace->ended + 1);
    trace->ended++;
    return SHOAL_OK;
}

static enum shoal_err run(const uint8_t *bytes, size_t len, size_t cut, struct trace *trace)
{
    static const struct multipart_events events = { .begin = on_begin, .data = on_data, .end = on_end };
    static struct multipart multipart;
    struct shoal_msg msg;
    enum shoal_err err;

    *trace = (struct trace){ .hash = 1 };
    err = multipart_init(&multipart, shoal_view_text("multipart/form-data; boundary=XX"), &events, trace, &msg);
    SHOAL_ASSERT(err == SHOAL_OK);
    err = multipart_feed(&multipart, shoal_view_of(bytes, cut), &msg);
    if (err == SHOAL_OK)
        err = multipart_feed(&multipart, shoal_view_of(bytes + cut, len - cut), &msg);
    return err == SHOAL_OK ? multipart_finish(&multipart, &msg) : err;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct trace whole;
    struct trace cut;
    size_t at;
    enum shoal_err err;

    if (len < 2)
        return 0;
    at = ((size_t)bytes[0] << 8 | bytes[1]) % (len - 1);
    bytes += 2;
    len -= 2;
    err = run(bytes, len, len, &whole);
    SHOAL_ASSERT(run(bytes, len, at < len ? at : len, &cut) == err);
    if (err == SHOAL_OK)
        SHOAL_ASSERT(whole.hash == cut.hash && whole.begun == cut.begun && whole.ended == whole.begun);
    return 0;
}
