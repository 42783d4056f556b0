/* A job's specification: what a user asked for, as bytes that every node reads alike. */
#include "shoal/job.h"

#include "job_wire.h"
#include "shoal/banned.h"

/* Every text of a list ends with its NUL: then walking it stays inside. */
static bool texts_valid(const struct shoal_job_texts *texts)
{
    uint32_t ends = 0;

    if (texts->count > SHOAL_JOB_LIST_MAX)
        return false;
    for (size_t i = 0; i < texts->bytes.len; i++)
        ends += texts->bytes.bytes[i] == 0;
    return ends == texts->count && (texts->bytes.len == 0 || texts->bytes.bytes[texts->bytes.len - 1] == 0);
}

static void put_texts(struct shoal_writer *w, const struct shoal_job_texts *texts)
{
    if (!texts_valid(texts))
        w->failed = true;
    shoal_put_u32(w, texts->count);
    shoal_put_bytes(w, texts->bytes);
}

static void get_texts(struct shoal_reader *r, struct shoal_job_texts *texts)
{
    texts->count = shoal_get_u32(r);
    texts->bytes = shoal_get_bytes(r, SHOAL_JOB_SPEC_BYTES_MAX);
    if (!r->failed && !texts_valid(texts))
        r->failed = true;
}

enum shoal_err shoal_job_spec_encode(const struct shoal_job_spec *spec, uint8_t *bytes, size_t cap, size_t *len)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap < SHOAL_JOB_SPEC_BYTES_MAX ? cap : SHOAL_JOB_SPEC_BYTES_MAX);

    job_put_head(&w, 0, SHOAL_JOB_VERSION);
    shoal_put_text(&w, spec->framework);
    shoal_put_text(&w, spec->creator);
    shoal_put_text(&w, spec->submit_user);
    shoal_put_text(&w, spec->plan);
    shoal_put_text(&w, spec->app_name);
    shoal_put_text(&w, spec->main_file);
    shoal_put_text(&w, spec->model_dir);
    shoal_put_text(&w, spec->data_path);
    shoal_put_text(&w, spec->debug_level);
    shoal_put_bool(&w, spec->elastic);
    shoal_put_bool(&w, spec->user_cmd);
    shoal_put_u32(&w, spec->uid);
    shoal_put_u32(&w, spec->workers_min);
    shoal_put_u32(&w, spec->workers_max);
    shoal_put_u32(&w, spec->devices_per_worker);
    shoal_put_u8(&w, spec->device);
    shoal_put_u32(&w, spec->priority);
    shoal_put_u64(&w, spec->pending_timeout_ms);
    shoal_put_u64(&w, spec->worker_memory_bytes);
    shoal_put_u64(&w, spec->driver_memory_bytes);
    shoal_put_u64(&w, spec->submit_ms);
    shoal_put_hash(&w, spec->bundle_hash);
    shoal_put_u64(&w, spec->bundle_bytes);
    shoal_put_bytes(&w, spec->args);
    shoal_put_bytes(&w, spec->data_json);
    shoal_put_bytes(&w, spec->datastore_meta);
    put_texts(&w, &spec->argv);
    put_texts(&w, &spec->env);
    put_texts(&w, &spec->attrs);
    put_texts(&w, &spec->labels);
    put_texts(&w, &spec->notes);
    if (w.failed)
        return SHOAL_ERR_TOO_BIG;
    *len = w.len;
    return SHOAL_OK;
}

enum shoal_err shoal_job_spec_decode(struct shoal_view bytes, struct shoal_job_spec *spec)
{
    struct shoal_reader r = shoal_reader_init(bytes);

    memset(spec, 0, sizeof(*spec));
    if (bytes.len > SHOAL_JOB_SPEC_BYTES_MAX)
        return SHOAL_ERR_MALFORMED;
    (void)job_get_head(&r, 1, SHOAL_JOB_VERSION);
    shoal_get_text(&r, spec->framework, sizeof(spec->framework));
    shoal_get_text(&r, spec->creator, sizeof(spec->creator));
    shoal_get_text(&r, spec->submit_user, sizeof(spec->submit_user));
    shoal_get_text(&r, spec->plan, sizeof(spec->plan));
    shoal_get_text(&r, spec->app_name, sizeof(spec->app_name));
    shoal_get_text(&r, spec->main_file, sizeof(spec->main_file));
    shoal_get_text(&r, spec->model_dir, sizeof(spec->model_dir));
    shoal_get_text(&r, spec->data_path, sizeof(spec->data_path));
    shoal_get_text(&r, spec->debug_level, sizeof(spec->debug_level));
    spec->elastic = shoal_get_bool(&r);
    spec->user_cmd = shoal_get_bool(&r);
    spec->uid = shoal_get_u32(&r);
    spec->workers_min = shoal_get_u32(&r);
    spec->workers_max = shoal_get_u32(&r);
    spec->devices_per_worker = shoal_get_u32(&r);
    spec->device = shoal_get_enum(&r, SHOAL_JOB_DEVICE_COUNT);
    spec->priority = shoal_get_u32(&r);
    spec->pending_timeout_ms = shoal_get_u64(&r);
    spec->worker_memory_bytes = shoal_get_u64(&r);
    spec->driver_memory_bytes = shoal_get_u64(&r);
    spec->submit_ms = shoal_get_u64(&r);
    spec->bundle_hash = shoal_get_hash(&r);
    spec->bundle_bytes = shoal_get_u64(&r);
    spec->args = shoal_get_bytes(&r, SHOAL_JOB_SPEC_BYTES_MAX);
    spec->data_json = shoal_get_bytes(&r, SHOAL_JOB_SPEC_BYTES_MAX);
    spec->datastore_meta = shoal_get_bytes(&r, SHOAL_JOB_SPEC_BYTES_MAX);
    get_texts(&r, &spec->argv);
    get_texts(&r, &spec->env);
    get_texts(&r, &spec->attrs);
    get_texts(&r, &spec->labels);
    get_texts(&r, &spec->notes);
    return shoal_reader_done(&r) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

enum shoal_err shoal_job_spec_check(const struct shoal_job_spec *spec, struct shoal_msg *msg)
{
    if (spec->workers_min == 0 || spec->workers_min > spec->workers_max)
        return shoal_fail(msg, SHOAL_ERR_INVALID,
                          "%u to %u workers make no sense: at least 1, and not more than the maximum",
                          spec->workers_min, spec->workers_max);
    if (spec->workers_max > SHOAL_RANKS_MAX)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "%u workers: a job has at most %d; ask for fewer", spec->workers_max,
                          SHOAL_RANKS_MAX);
    if (!spec->elastic && spec->workers_min != spec->workers_max)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "only an elastic job may have %u to %u workers; give one number",
                          spec->workers_min, spec->workers_max);
    if (spec->devices_per_worker > 1)
        return shoal_fail(msg, SHOAL_ERR_UNSUPPORTED,
                          "%u devices for each worker is not offered yet; ask for more workers of one device each",
                          spec->devices_per_worker);
    if (!spec->user_cmd && spec->main_file[0] == '\0')
        return shoal_fail(msg, SHOAL_ERR_INVALID, "no main file is named; give --model-main");
    if (spec->user_cmd && spec->argv.count == 0)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "the command is empty");
    return SHOAL_OK;
}

const char *shoal_job_texts_next(const struct shoal_job_texts *texts, const char *text)
{
    const char *first = (const char *)texts->bytes.bytes;

    if (text == NULL)
        return texts->count > 0 ? first : NULL;
    text += strlen(text) + 1;
    return text < first + texts->bytes.len ? text : NULL;
}
