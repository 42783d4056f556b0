/* A job's specification: what a user asked for, as bytes that every node reads alike.
 *
 *     j 2 2  { app: "digits", argv: ..., bundle: ..., ... }      a head, and the fields that are not zero, by name
 *
 * Versions of the head: 1 was a fixed layout, which nobody reads any more. 2 is this table. 3 has `array`: an agent that does not
 * know it must not run the job as one process. 4 has `service`: an agent that does not know it must not take the end of a replica
 * for the end of a task. 5 has more than 64 workers: an agent that does not know it refuses their entries and epochs.
 *
 * A field that is added needs no new version: older agents keep it and pass it on. Only where a job must not run without the
 * field (its zero would be another job), the version rises, and `oldest` says so for the jobs that use it. */
#include "shoal/job.h"

#include "shoal/pack.h"

#include "shoal/banned.h"

#define OLDEST 2
#define OLDEST_ARRAY 3
#define OLDEST_SERVICE 4
#define OLDEST_WIDE 5

#define TEXT(name, member) SHOAL_PACK_TEXT(struct shoal_job_spec, name, member)
#define ROW(name, shape, member, max) SHOAL_PACK_ROW(struct shoal_job_spec, name, shape, member, max)
/* A list of texts is their bytes, each with its NUL. */
#define BYTES_MAX SHOAL_JOB_SPEC_BYTES_MAX

static const struct shoal_pack_field spec_fields[] = {
    TEXT("app", app_name),
    ROW("args", STR, args, BYTES_MAX),
    ROW("argv", BIN, argv.bytes, BYTES_MAX),
    TEXT("array", array),
    ROW("attrs", BIN, attrs.bytes, BYTES_MAX),
    ROW("bundle", FIXED, bundle_hash, sizeof(struct shoal_hash)),
    ROW("bundle_bytes", U64, bundle_bytes, UINT64_MAX),
    TEXT("creator", creator),
    ROW("data", STR, data_json, BYTES_MAX),
    TEXT("data_path", data_path),
    ROW("datastore", STR, datastore_meta, BYTES_MAX),
    TEXT("debug", debug_level),
    ROW("device", U8, device, SHOAL_JOB_DEVICE_COUNT - 1),
    ROW("devices_per_worker", U32, devices_per_worker, UINT32_MAX),
    ROW("driver_memory_bytes", U64, driver_memory_bytes, UINT64_MAX),
    ROW("elastic", BOOL, elastic, 1),
    ROW("env", BIN, env.bytes, BYTES_MAX),
    TEXT("framework", framework),
    ROW("labels", BIN, labels.bytes, BYTES_MAX),
    TEXT("main", main_file),
    TEXT("model_dir", model_dir),
    ROW("notes", BIN, notes.bytes, BYTES_MAX),
    ROW("pending_timeout_ms", U64, pending_timeout_ms, UINT64_MAX),
    TEXT("plan", plan),
    ROW("priority", U32, priority, UINT32_MAX),
    ROW("profile", STR, profile, BYTES_MAX),
    ROW("replicas", U32, replicas, UINT32_MAX),
    TEXT("service", service),
    ROW("submit_ms", U64, submit_ms, UINT64_MAX),
    TEXT("submit_user", submit_user),
    ROW("uid", U32, uid, UINT32_MAX),
    ROW("user_cmd", BOOL, user_cmd, 1),
    ROW("version", U32, version, UINT32_MAX),
    ROW("warm", BOOL, warm, 1),
    ROW("worker_memory_bytes", U64, worker_memory_bytes, UINT64_MAX),
    ROW("workers_max", U32, workers_max, UINT32_MAX),
    ROW("workers_min", U32, workers_min, UINT32_MAX),
};
static const struct shoal_pack_table spec_table = SHOAL_PACK_TABLE(spec_fields);

/* How many texts there are, or SHOAL_JOB_LIST_MAX + 1 where the last has no end: walking them must stay inside. */
static uint32_t texts_count(struct shoal_view bytes)
{
    uint32_t ends = 0;

    SHOAL_ASSERT(bytes.len == 0 || bytes.bytes != NULL);
    for (size_t i = 0; i < bytes.len && ends <= SHOAL_JOB_LIST_MAX; i++)
        ends += bytes.bytes[i] == 0;
    if (bytes.len > 0 && bytes.bytes[bytes.len - 1] != 0)
        return SHOAL_JOB_LIST_MAX + 1;
    return ends;
}

static bool texts_valid(const struct shoal_job_texts *texts)
{
    return texts->count <= SHOAL_JOB_LIST_MAX && texts_count(texts->bytes) == texts->count;
}

enum shoal_err shoal_job_spec_encode(const struct shoal_job_spec *spec, uint8_t *bytes, size_t cap, size_t *len)
{
    struct shoal_pack_writer w = shoal_pack_writer_init(bytes, cap < BYTES_MAX ? cap : BYTES_MAX);
    uint8_t needs = shoal_job_spec_is_wide(spec)  ? OLDEST_WIDE
                    : shoal_job_spec_serves(spec) ? OLDEST_SERVICE
                    : spec->array[0] != '\0'      ? OLDEST_ARRAY
                                                  : OLDEST; /* so other jobs' bytes stay what they were */
    struct shoal_pack_head head = { SHOAL_PACK_KIND_SPEC, needs, needs };

    SHOAL_ASSERT(spec->oldest <= SHOAL_JOB_SPEC_VERSION);              /* we can run what we write */
    SHOAL_ASSERT(memchr(spec->array, 0, sizeof(spec->array)) != NULL); /* texts end */
    if (spec->oldest > needs)
        head.version = head.oldest = spec->oldest;
    if (!texts_valid(&spec->argv) || !texts_valid(&spec->env) || !texts_valid(&spec->attrs) ||
        !texts_valid(&spec->labels) || !texts_valid(&spec->notes))
        return SHOAL_ERR_TOO_BIG;
    shoal_pack_put_head(&w, head);
    shoal_pack_put_fields(&w, &spec_table, spec, spec->kept);
    if (w.failed)
        return SHOAL_ERR_TOO_BIG;
    *len = w.len;
    return SHOAL_OK;
}

enum shoal_err shoal_job_spec_decode(struct shoal_view bytes, struct shoal_job_spec *spec)
{
    struct shoal_pack_reader r = shoal_pack_reader_init(bytes);
    struct shoal_job_texts *lists[] = { &spec->argv, &spec->env, &spec->attrs, &spec->labels, &spec->notes };
    struct shoal_pack_head head;
    enum shoal_err err;

    SHOAL_ASSERT(spec != NULL);
    memset(spec, 0, sizeof(*spec));
    if (bytes.len > BYTES_MAX)
        return SHOAL_ERR_MALFORMED;
    err = shoal_pack_get_head(&r, SHOAL_PACK_KIND_SPEC, SHOAL_JOB_SPEC_VERSION, &head);
    if (err != SHOAL_OK)
        return err;
    shoal_pack_get_fields(&r, &spec_table, spec, &spec->kept);
    spec->oldest = head.oldest;
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        lists[i]->count = texts_count(lists[i]->bytes);
        r.failed = r.failed || !texts_valid(lists[i]);
    }
    return shoal_pack_reader_done(&r) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

static enum shoal_err check_array(const struct shoal_job_spec *spec, struct shoal_msg *msg)
{
    struct shoal_array array;

    SHOAL_ASSERT(spec->array[0] != '\0');
    if (spec->elastic || spec->workers_max != 1)
        return shoal_fail(
            msg, SHOAL_ERR_UNSUPPORTED,
            "array: its tasks have one worker each; ask for 1 worker, of a framework that is not elastic");
    return shoal_array_parse(spec->array, &array, msg);
}

static enum shoal_err check_service(const struct shoal_job_spec *spec, struct shoal_msg *msg)
{
    SHOAL_ASSERT(shoal_job_spec_serves(spec));
    if (!shoal_service_name_valid(spec->service))
        return shoal_fail(msg, SHOAL_ERR_INVALID,
                          "\"%s\" is no name of a service: use 1 to %d of A-Z a-z 0-9 . _ - and begin with a letter or "
                          "digit",
                          spec->service, SHOAL_JOB_TEXT_BYTES - 1);
    if (spec->replicas > SHOAL_SERVICE_REPLICAS_MAX)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "%u replicas: a service has at most %u; ask for fewer",
                          spec->replicas, SHOAL_SERVICE_REPLICAS_MAX);
    if (strcmp(spec->array, SHOAL_SERVICE_ARRAY) != 0)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "a service is no array of tasks; give one or the other");
    if (spec->profile.len > SHOAL_SERVICE_DOCUMENT_BYTES_MAX)
        return shoal_fail(msg, SHOAL_ERR_INVALID,
                          "what model.json, profile and readme say has %zu bytes, of %u that are kept; shorten them",
                          spec->profile.len, (unsigned)SHOAL_SERVICE_DOCUMENT_BYTES_MAX);
    return SHOAL_OK;
}

bool shoal_service_name_valid(const char *name)
{
    size_t len = strlen(name);

    if (len == 0 || len >= SHOAL_JOB_TEXT_BYTES)
        return false;
    for (size_t i = 0; i < len; i++) {
        char c = name[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');

        if (!plain && (i == 0 || (c != '.' && c != '_' && c != '-')))
            return false;
    }
    return true;
}

enum shoal_err shoal_job_spec_check(const struct shoal_job_spec *spec, struct shoal_msg *msg)
{
    SHOAL_ASSERT(memchr(spec->main_file, 0, sizeof(spec->main_file)) != NULL); /* texts end */
    if (spec->workers_min == 0 || spec->workers_min > spec->workers_max)
        return shoal_fail(msg, SHOAL_ERR_INVALID,
                          "%u to %u workers make no sense: at least 1, and not more than the maximum",
                          spec->workers_min, spec->workers_max);
    if (spec->workers_max > SHOAL_JOB_WORKERS_MAX)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "%u workers: a job has at most %d; ask for fewer", spec->workers_max,
                          SHOAL_JOB_WORKERS_MAX);
    if (!spec->elastic && shoal_job_spec_is_wide(spec)) /* no host is left out of a gang: lead_unfit.c */
        return shoal_fail(msg, SHOAL_ERR_INVALID, "%u workers: a job that is not elastic has at most %d; ask for fewer",
                          spec->workers_max, SHOAL_JOB_WORKERS_PLAIN);
    if (!spec->elastic && spec->workers_min != spec->workers_max)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "only an elastic job may have %u to %u workers; give one number",
                          spec->workers_min, spec->workers_max);
    if (spec->devices_per_worker > 1)
        return shoal_fail(msg, SHOAL_ERR_UNSUPPORTED,
                          "%u devices for each worker is not offered yet; ask for more workers of one device each",
                          spec->devices_per_worker);
    if (!spec->user_cmd && spec->main_file[0] == '\0')
        return shoal_fail(msg, SHOAL_ERR_INVALID, "no main file is named; give --model-main");
    if (spec->user_cmd && spec->argv.count == 0 && !shoal_job_spec_serves(spec))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "the command is empty");
    if (shoal_job_spec_serves(spec)) {
        enum shoal_err err = check_service(spec, msg);

        if (err != SHOAL_OK)
            return err;
    }
    return spec->array[0] == '\0' ? SHOAL_OK : check_array(spec, msg);
}

const char *shoal_job_texts_next(const struct shoal_job_texts *texts, const char *text)
{
    const char *first = (const char *)texts->bytes.bytes;

    SHOAL_ASSERT(texts->count <= SHOAL_JOB_LIST_MAX);
    if (text == NULL)
        return texts->count > 0 ? first : NULL;
    text += strlen(text) + 1;
    return text < first + texts->bytes.len ? text : NULL;
}
