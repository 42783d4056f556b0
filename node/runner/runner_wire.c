/* The bytes of runner.h's messages. */
#include "shoal/runner.h"

#include "shoal/wire.h"

#include "shoal/banned.h"

static void put_strings(struct shoal_writer *w, const char *const *strings, uint32_t count)
{
    shoal_put_u32(w, count);
    for (uint32_t i = 0; i < count; i++)
        shoal_put_text(w, strings[i]);
}

static void put_start(struct shoal_writer *w, const struct shoal_runner_start *start)
{
    shoal_put_u8(w, start->how);
    shoal_put_u8(w, start->nice);
    shoal_put_u64(w, start->freeze_at_ns);
    shoal_put_u64(w, start->kill_at_ns);
    shoal_put_text(w, start->cwd);
    shoal_put_text(w, start->stdout_path);
    shoal_put_text(w, start->stderr_path);
    shoal_put_text(w, start->lock_path);
    shoal_put_text(w, start->cgroup);
    put_strings(w, start->argv, start->argc);
    put_strings(w, start->env, start->envc);
}

enum shoal_err shoal_runner_encode(const struct shoal_runner_message *message, uint8_t *bytes, size_t cap, size_t *len)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap);

    shoal_put_u8(&w, message->kind);
    shoal_put_u8(&w, SHOAL_RUNNER_VERSION);
    shoal_put_u8(&w, SHOAL_RUNNER_VERSION);
    shoal_put_u64(&w, message->worker_id);
    shoal_put_u32(&w, message->slot);
    shoal_put_u32(&w, (uint32_t)message->pid);
    shoal_put_u32(&w, (uint32_t)message->status);
    shoal_put_bool(&w, message->signalled);
    shoal_put_u64(&w, message->start_ticks);
    shoal_put_u64(&w, message->freeze_at_ns);
    shoal_put_u64(&w, message->kill_at_ns);
    shoal_put_u64(&w, message->grace_ns);
    shoal_put_text(&w, message->text);
    if (message->kind == SHOAL_RUNNER_START)
        put_start(&w, &message->start);
    if (w.failed)
        return SHOAL_ERR_TOO_BIG;
    *len = w.len;
    return SHOAL_OK;
}

/* Texts are copied one after the other into message->strings, which is as long as the longest datagram. */
static const char *get_string(struct shoal_reader *r, struct shoal_runner_message *message, size_t *used)
{
    char *text = message->strings + *used;

    shoal_get_text(r, text, sizeof(message->strings) - *used);
    *used += strlen(text) + 1;
    if (*used >= sizeof(message->strings)) {
        r->failed = true;
        *used = sizeof(message->strings) - 1;
    }
    return text;
}

static uint32_t get_strings(struct shoal_reader *r, struct shoal_runner_message *message, const char **strings,
                            size_t *used)
{
    uint32_t count = shoal_get_u32(r);

    if (count > SHOAL_RUNNER_STRINGS_MAX) {
        r->failed = true;
        count = 0;
    }
    for (uint32_t i = 0; i < count && !r->failed; i++)
        strings[i] = get_string(r, message, used);
    strings[count] = NULL;
    return count;
}

static void get_start(struct shoal_reader *r, struct shoal_runner_message *message)
{
    struct shoal_runner_start *start = &message->start;
    size_t used = 0;

    start->worker_id = message->worker_id;
    start->slot = message->slot;
    start->how = shoal_get_enum(r, SHOAL_START_COUNT);
    start->nice = shoal_get_u8(r);
    start->freeze_at_ns = shoal_get_u64(r);
    start->kill_at_ns = shoal_get_u64(r);
    start->cwd = get_string(r, message, &used);
    start->stdout_path = get_string(r, message, &used);
    start->stderr_path = get_string(r, message, &used);
    start->lock_path = get_string(r, message, &used);
    start->cgroup = get_string(r, message, &used);
    start->argc = get_strings(r, message, start->argv, &used);
    start->envc = get_strings(r, message, start->env, &used);
    if (start->argc == 0)
        r->failed = true;
}

enum shoal_err shoal_runner_decode(struct shoal_view datagram, struct shoal_runner_message *message)
{
    struct shoal_reader r = shoal_reader_init(datagram);

    message->kind = shoal_get_enum(&r, SHOAL_RUNNER_KIND_COUNT);
    (void)shoal_get_u8(&r); /* a newer writer says below whether we may read it */
    if (shoal_get_u8(&r) > SHOAL_RUNNER_VERSION)
        return SHOAL_ERR_UNSUPPORTED;
    message->worker_id = shoal_get_u64(&r);
    message->slot = shoal_get_u32(&r);
    message->pid = (int32_t)shoal_get_u32(&r);
    message->status = (int32_t)shoal_get_u32(&r);
    message->signalled = shoal_get_bool(&r);
    message->start_ticks = shoal_get_u64(&r);
    message->freeze_at_ns = shoal_get_u64(&r);
    message->kill_at_ns = shoal_get_u64(&r);
    message->grace_ns = shoal_get_u64(&r);
    shoal_get_text(&r, message->text, sizeof(message->text));
    if (message->kind == SHOAL_RUNNER_START)
        get_start(&r, message);
    return shoal_reader_done(&r) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}
