/* Documents of services. See service_doc.h; the rows of a profile: the inference contract's table of defaults. */
#include "shoal/service_doc.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shoal/job_spec.h"
#include "shoal/limits.h"

#include "shoal/banned.h"

#define README_BYTES_MAX (8u * SHOAL_KIB)
#define TOP "${REDHARE_TOP}"
#define TIMEOUT_S_MAX (SHOAL_INFER_TIMEOUT_MS_MAX / 1000u)
#define NEVER (-2) /* a row of numbers: its lower bound is 0 or 1, and -1 is taken only where it is said */

enum row_type { ROW_INT, ROW_TEXT, ROW_BOOL, ROW_ENVS };

struct row {
    const char *path; /* keys, with dots between them */
    enum row_type type;
    int64_t min;      /* of a number; NEVER where -1 stands for "none" and 0 is no value */
    const char *text; /* the default; of a number its digits */
};

static const struct row rows[] = {
    { "schema_version", ROW_TEXT, 0, "1.2" },
    { "type", ROW_TEXT, 0, "inference" },
    { "replica", ROW_INT, 1, "1" },
    { "policy.name", ROW_TEXT, 0, "capacity" },
    { "policy.schedule_interval", ROW_INT, 1, "3" },
    { "policy.kernel_min", ROW_INT, 0, "1" },
    { "policy.kernel_max", ROW_INT, -1, "100" },
    { "policy.kernel_delay_release_time", ROW_INT, 1, "60" },
    { "policy.task_execution_timeout", ROW_INT, NEVER, "60" },
    { "policy.task_batch_size", ROW_INT, 1, "1" },
    { "policy.task_pipe_size", ROW_INT, 1, "1" },
    { "policy.task_parallel_size", ROW_INT, 1, "1" },
    { "policy.stream_number_per_group", ROW_INT, 0, "0" },
    { "policy.stream_discard_slow_tasks", ROW_BOOL, 0, "true" },
    { "security.ssl.enable", ROW_BOOL, 0, "true" },
    { "security.ssl.server_crt", ROW_TEXT, 0, TOP "/security/tls.crt" },
    { "security.ssl.server_key", ROW_TEXT, 0, TOP "/security/tls.key" },
    { "resource_allocation.service.type", ROW_TEXT, 0, "k8s" },
    { "resource_allocation.service.namespace", ROW_TEXT, 0, "" },
    { "resource_allocation.service.image_name", ROW_TEXT, 0, "" },
    { "resource_allocation.service.node_selector", ROW_TEXT, 0, "" },
    { "resource_allocation.kernel.type", ROW_TEXT, 0, "msd" },
    { "resource_allocation.kernel.namespace", ROW_TEXT, 0, "" },
    { "resource_allocation.kernel.image_name", ROW_TEXT, 0, "" },
    { "resource_allocation.kernel.resource_plan", ROW_TEXT, 0, "sample-project/inference" },
    { "resource_allocation.kernel.resources", ROW_TEXT, 0, "ncpus=0.5,ncpus_limit=2,mem=1024,mem_limit=4096" },
    { "resource_allocation.kernel.accelerator_resources", ROW_TEXT, 0, "" },
    { "resource_allocation.kernel.gpu_pack_id", ROW_TEXT, 0, "" },
    { "resource_allocation.kernel.node_selector", ROW_TEXT, 0, "" },
    { "resource_allocation.kernel.scheduler", ROW_TEXT, 0, "" },
    { "kernel.working_directory", ROW_TEXT, 0, TOP "/work" },
    { "kernel.connection_timeout", ROW_INT, 1, "90" },
    { "kernel.log_directory", ROW_TEXT, 0, TOP "/logs" },
    { "kernel.run_as", ROW_TEXT, 0, "" },
    { "kernel.umask", ROW_TEXT, 0, "022" },
    { "kernel.gpu", ROW_TEXT, 0, "no" },
    { "kernel.envs", ROW_ENVS, 0, "" },
};
#define ROW_COUNT (sizeof(rows) / sizeof(rows[0]))

bool service_doc_knows(const char *path)
{
    for (size_t i = 0; i < ROW_COUNT; i++)
        if (strcmp(path, rows[i].path) == 0)
            return true;
    return false;
}

/* ---- paths ---- */

/* The object that holds the last key of `path`, which is then put into `key`. `make`: missing ones are made. */
static json_t *holder_of(json_t *root, const char *path, char key[64], bool make)
{
    const char *dot;

    while ((dot = strchr(path, '.')) != NULL) {
        json_t *inner;

        (void)snprintf(key, 64, "%.*s", (int)(dot - path), path);
        inner = json_object_get(root, key);
        if (inner == NULL && make) {
            inner = json_object();
            if (json_object_set_new(root, key, inner) != 0)
                return NULL;
        }
        if (!json_is_object(inner))
            return NULL;
        root = inner;
        path = dot + 1;
    }
    (void)snprintf(key, 64, "%s", path);
    return root;
}

static json_t *at_path(json_t *root, const char *path)
{
    char key[64];
    json_t *holder = holder_of(root, path, key, false);

    return holder == NULL ? NULL : json_object_get(holder, key);
}

static int64_t int_at(json_t *root, const char *path, int64_t otherwise)
{
    const json_t *value = at_path(root, path);

    return json_is_integer(value) ? json_integer_value(value) : otherwise;
}

static const char *text_at(json_t *root, const char *path)
{
    const char *text = json_string_value(at_path(root, path));

    return text == NULL ? "" : text;
}

static bool put_at(json_t *root, const char *path, json_t *value)
{
    char key[64];
    json_t *holder = holder_of(root, path, key, true);

    if (holder != NULL)
        return json_object_set_new(holder, key, value) == 0;
    json_decref(value);
    return false;
}

/* ---- profiles ---- */

static json_t *default_of(const struct row *row)
{
    switch (row->type) {
    case ROW_INT: return json_integer(strtoll(row->text, NULL, 10));
    case ROW_TEXT: return json_string(row->text);
    case ROW_BOOL: return json_boolean(strcmp(row->text, "true") == 0);
    case ROW_ENVS: return json_pack("[{s:s,s:s}]", "name", "DLIM_MK_LOG_LEVEL", "value", "INFO");
    }
    return NULL;
}

/* A field that the profile does not have gets its default. */
static bool fill_profile(json_t *profile)
{
    for (size_t i = 0; i < ROW_COUNT; i++)
        if (at_path(profile, rows[i].path) == NULL && !put_at(profile, rows[i].path, default_of(&rows[i])))
            return false;
    return true;
}

static bool pairs_are_good(const json_t *pairs, const char *key)
{
    const json_t *pair;
    size_t i;

    if (!json_is_array(pairs))
        return false;
    json_array_foreach(pairs, i, pair)
    {
        if (!json_is_string(json_object_get(pair, key)) || !json_is_string(json_object_get(pair, "value")))
            return false;
    }
    return true;
}

static enum shoal_err wrong(struct shoal_msg *msg, const char *path, const char *want)
{
    return shoal_fail(msg, SHOAL_ERR_INVALID, "the profile's %s is not valid: %s", path, want);
}

static enum shoal_err check_row(json_t *profile, const struct row *row, struct shoal_msg *msg)
{
    const json_t *value = at_path(profile, row->path);
    int64_t number = json_integer_value(value);
    char want[80];

    switch (row->type) {
    case ROW_TEXT: return json_is_string(value) ? SHOAL_OK : wrong(msg, row->path, "it must be a text");
    case ROW_BOOL: return json_is_boolean(value) ? SHOAL_OK : wrong(msg, row->path, "it must be true or false");
    case ROW_ENVS:
        return pairs_are_good(value, "name")
                   ? SHOAL_OK
                   : wrong(msg, row->path, "it must be a list of {\"name\", \"value\"}, texts");
    case ROW_INT: break;
    }
    (void)snprintf(want, sizeof(want), "it must be %sa whole number from %d on", row->min == NEVER ? "-1 or " : "",
                   row->min == NEVER ? 1 : (int)row->min);
    if (!json_is_integer(value) || number > INT32_MAX || number < (row->min == NEVER ? -1 : row->min) ||
        (row->min == NEVER && number == 0))
        return wrong(msg, row->path, want);
    return SHOAL_OK;
}

/* "ncpus=0.5,mem=1024": numbers, and no limit below what is reserved. */
static enum shoal_err check_resources(const char *text, struct shoal_msg *msg)
{
    static const char *const keys[] = { "ncpus", "ncpus_limit", "mem", "mem_limit" };
    static const char path[] = "resource_allocation.kernel.resources";
    double values[] = { 0.5, 2, 1024, 4096 };
    char copy[512], *at = NULL, *pair;

    if (strlen(text) >= sizeof(copy))
        return wrong(msg, path, "it is longer than 511 bytes");
    memcpy(copy, text, strlen(text) + 1);
    for (pair = strtok_r(copy, ", ", &at); pair != NULL; pair = strtok_r(NULL, ", ", &at)) {
        size_t len = strcspn(pair, "=");

        if (pair[len] == '\0' || len == 0)
            return wrong(msg, path, "it must be key=value, with commas between them");
        for (size_t i = 0; i < 4; i++) {
            char *end = NULL;
            double value = strtod(pair + len + 1, &end);

            if (strlen(keys[i]) != len || memcmp(pair, keys[i], len) != 0)
                continue;
            if (end == pair + len + 1 || *end != '\0' || !(value >= 0 && value < 1e9))
                return wrong(msg, path, "its values must be numbers");
            values[i] = value;
        }
    }
    if (values[1] < values[0] || values[3] < values[2])
        return wrong(msg, path, "ncpus_limit and mem_limit must not be below ncpus and mem");
    return SHOAL_OK;
}

/* "gpu_mem=8192", MiB, among others that are kept. 0: it is not said; -1: it is no such number. */
static int64_t gpu_mem(const char *text)
{
    static const char key[] = "gpu_mem";

    while (*text != '\0') {
        size_t len = strcspn(text, ", ");
        char *end = NULL;
        long long value;

        if (len >= sizeof(key) - 1 && strncmp(text, key, sizeof(key) - 1) == 0 &&
            (text[sizeof(key) - 1] == '=' || len == sizeof(key) - 1)) {
            value = len > sizeof(key) && text[sizeof(key)] != '-' ? strtoll(text + sizeof(key), &end, 10) : 0;
            return value >= 1 && value <= INT32_MAX && end == text + len ? value : -1;
        }
        text += len;
        text += strspn(text, ", ");
    }
    return 0;
}

static enum shoal_err check_profile(json_t *profile, struct shoal_msg *msg)
{
    const char *gpu = text_at(profile, "kernel.gpu");
    const char *umask = text_at(profile, "kernel.umask");
    int64_t min, max;

    for (size_t i = 0; i < ROW_COUNT; i++) {
        enum shoal_err err = check_row(profile, &rows[i], msg);

        if (err != SHOAL_OK)
            return err;
    }
    min = int_at(profile, "policy.kernel_min", 1);
    max = int_at(profile, "policy.kernel_max", 100);
    if (max != -1 && max < min)
        return wrong(msg, "policy.kernel_max", "it must be -1 or at least policy.kernel_min");
    if (min * int_at(profile, "replica", 1) > SHOAL_SERVICE_REPLICAS_MAX)
        return wrong(msg, "policy.kernel_min",
                     "with replica it asks for more kernels than the 64 that a service may have");
    if (strcmp(gpu, "no") != 0 && strcmp(gpu, "shared") != 0 && strcmp(gpu, "exclusive") != 0)
        return wrong(msg, "kernel.gpu", "it must be no, shared or exclusive");
    if (umask[0] == '\0' || strlen(umask) > 4 || umask[strspn(umask, "01234567")] != '\0')
        return wrong(msg, "kernel.umask", "it must be octal, as 022");
    if (gpu_mem(text_at(profile, "resource_allocation.kernel.accelerator_resources")) < 0)
        return wrong(msg, "resource_allocation.kernel.accelerator_resources",
                     "gpu_mem must be a whole number of MiB of a GPU, as gpu_mem=8192");
    return check_resources(text_at(profile, "resource_allocation.kernel.resources"), msg);
}

/* Key by key; lists are replaced (D2). */
static bool merge(json_t *into, json_t *from, unsigned depth)
{
    const char *key;
    json_t *value;

    json_object_foreach(from, key, value)
    {
        json_t *there = json_object_get(into, key);

        if (json_is_object(there) && json_is_object(value) && depth < 16) {
            if (!merge(there, value, depth + 1))
                return false;
        } else if (json_object_set_new(into, key, json_deep_copy(value)) != 0) {
            return false;
        }
    }
    return true;
}

/* A key of the profile is not said, or said as it is: then another spelling of it counts. */
static bool says_nothing_new(json_t *body, json_t *profile, const char *path)
{
    json_t *said = at_path(body, path);

    return said == NULL || json_equal(said, at_path(profile, path));
}

/* The older spelling of DLI's API, and what is read only. Who reads a profile there has both spellings, and edits one. */
static void take_aliases(json_t *body, json_t *profile)
{
    json_t *envs = json_object_get(body, "envs"), *policy = json_object_get(body, "policy");
    json_t *interval = json_object_get(policy, "schedule_intervel");

    if (interval != NULL && says_nothing_new(body, profile, "policy.schedule_interval"))
        (void)json_object_set(policy, "schedule_interval", interval);
    (void)json_object_del(policy, "schedule_intervel");
    if (envs != NULL && says_nothing_new(body, profile, "kernel.envs") &&
        (json_object_get(body, "kernel") == NULL || json_is_object(json_object_get(body, "kernel"))))
        (void)put_at(body, "kernel.envs", json_incref(envs));
    (void)json_object_del(body, "envs");
    (void)json_object_del(body, "create_time");
    (void)json_object_del(body, "update_time");
    (void)json_object_del(body, "last_update_time");
}

/* ---- documents ---- */

static json_t *load(struct shoal_view text, struct shoal_msg *msg, const char *what)
{
    json_error_t error;
    json_t *root = json_loadb((const char *)text.bytes, text.len, JSON_REJECT_DUPLICATES, &error);

    if (json_is_object(root))
        return root;
    if (msg != NULL)
        (void)shoal_fail(msg, SHOAL_ERR_INVALID, "%s is no JSON object: %s", what,
                         root == NULL ? error.text : "it is another value");
    json_decref(root);
    return NULL;
}

static enum shoal_err dump(json_t *root, size_t bytes_max, struct shoal_buf *out, struct shoal_msg *msg)
{
    char *text = json_dumps(root, JSON_COMPACT);
    enum shoal_err err = SHOAL_ERR_FULL;

    if (text != NULL && strlen(text) > bytes_max)
        err = shoal_fail(msg, SHOAL_ERR_INVALID,
                         "model, profile and readme of the service have %zu bytes, of %zu that are kept; shorten them",
                         strlen(text), bytes_max);
    else if (text != NULL)
        err = shoal_buf_append(out, text, strlen(text));
    free(text);
    return err;
}

static void put_uid(json_t *model, const uint8_t chance[16])
{
    char hex[33], text[37];

    for (unsigned i = 0; i < 16; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", chance[i]);
    (void)snprintf(text, sizeof(text), "%.8s-%.4s-4%.3s-8%.3s-%.12s", hex, hex + 8, hex + 13, hex + 17, hex + 20);
    (void)json_object_set_new(model, "uid", json_string(text));
}

#define STAMP "%Y%m%d-%H%M%S"
#define STAMP_BYTES sizeof("20300501-093000")

static void put_model_path(json_t *model, const char *name, uint64_t now_s)
{
    time_t when = (time_t)now_s;
    struct tm tm;
    char stamp[32] = "", path[300];

    if (gmtime_r(&when, &tm) != NULL)
        (void)strftime(stamp, sizeof(stamp), STAMP, &tm);
    (void)snprintf(path, sizeof(path), TOP "/repo/%s/%s-%s", name, name, stamp);
    (void)json_object_set_new(model, "model_path", json_string(path));
}

/* Adds what every model object has and model.json may leave out. */
static bool fill_model(json_t *model)
{
    static const char *const texts[] = { "tag", "weight_path", "runtime", "kernel_path" };
    static const char *const lists[] = { "attributes", "mk_environments" };

    for (size_t i = 0; i < 4; i++)
        if (!json_is_string(json_object_get(model, texts[i])) &&
            json_object_set_new(model, texts[i], json_string(i == 2 ? "python" : "")) != 0)
            return false;
    for (size_t i = 0; i < 2; i++)
        if (!json_is_array(json_object_get(model, lists[i])) && json_object_set_new(model, lists[i], json_array()) != 0)
            return false;
    return json_is_string(json_object_get(model, "schema_version")) ||
           json_object_set_new(model, "schema_version", json_string("1")) == 0;
}

/* The first README_BYTES_MAX of it, cut between characters. */
static json_t *readme_of(struct shoal_view readme)
{
    size_t len = readme.len < README_BYTES_MAX ? readme.len : README_BYTES_MAX;
    json_t *text;

    while (len > 0 && len < readme.len && (readme.bytes[len] & 0xc0) == 0x80)
        len--;
    text = json_stringn((const char *)readme.bytes, len);
    return text == NULL ? json_string("") : text; /* it is no UTF-8 */
}

static json_t *profile_of(const struct service_doc_new *made)
{
    json_t *profile = json_object();

    if (!fill_profile(profile))
        return profile;
    (void)json_object_set_new(profile, "name", json_string(made->name));
    if (made->replicas >= 0) {
        (void)put_at(profile, "policy.kernel_min", json_integer(made->replicas));
        (void)put_at(profile, "policy.kernel_max", json_integer(made->replicas));
    }
    return profile;
}

enum shoal_err service_doc_make(const struct service_doc_new *made, struct shoal_buf *out, struct shoal_msg *msg)
{
    json_t *model = made->model_json.len == 0 ? json_object() : load(made->model_json, msg, "model.json");
    json_t *doc;
    enum shoal_err err;

    if (model == NULL)
        return SHOAL_ERR_INVALID;
    doc = json_object();
    (void)json_object_set_new(model, "name", json_string(made->name));
    (void)json_object_set_new(model, "size", json_integer((json_int_t)made->content_bytes));
    put_uid(model, made->chance);
    put_model_path(model, made->name, made->now_s);
    (void)fill_model(model);
    (void)json_object_set_new(doc, "profile", profile_of(made));
    (void)json_object_set_new(doc, "model", model);
    (void)json_object_set_new(doc, "readme", readme_of(made->readme));
    (void)json_object_set_new(doc, "updated_at", json_integer((json_int_t)made->now_s));
    (void)json_object_set_new(doc, "started_at", json_integer(made->replicas > 0 ? (json_int_t)made->now_s : 0));
    err = dump(doc, SHOAL_SERVICE_DOCUMENT_BYTES_MAX, out, msg);
    json_decref(doc);
    return err;
}

/* A path has the second of its version: of two versions within one second the later one has the next second. */
static void pass_model_path(json_t *model, const char *name, const char *before)
{
    const char *stamp = strlen(before) < STAMP_BYTES ? "" : before + strlen(before) - (STAMP_BYTES - 1);
    struct tm tm = { 0 };
    const char *end = strptime(stamp, STAMP, &tm);

    if (end != NULL && *end == '\0' && strcmp(text_at(model, "model_path"), before) <= 0)
        put_model_path(model, name, (uint64_t)timegm(&tm) + 1);
}

enum shoal_err service_doc_carry(struct shoal_view text, struct shoal_view before_text, struct shoal_buf *out,
                                 struct shoal_msg *msg)
{
    json_t *doc = load(text, msg, "the service's document");
    json_t *before = before_text.len == 0 ? NULL : load(before_text, NULL, "");
    json_t *profile = json_object_get(before, "profile");
    const char *uid = before == NULL ? "" : text_at(before, "model.uid");
    enum shoal_err err = SHOAL_ERR_INVALID;

    if (doc != NULL && profile != NULL)
        (void)json_object_set(doc, "profile", profile);
    if (doc != NULL && uid[0] != '\0')
        (void)put_at(doc, "model.uid", json_string(uid));
    if (doc != NULL && uid[0] != '\0')
        pass_model_path(json_object_get(doc, "model"), text_at(doc, "model.name"), text_at(before, "model.model_path"));
    if (doc != NULL && before != NULL)
        (void)json_object_set_new(doc, "started_at", json_integer(int_at(before, "started_at", 0)));
    if (doc != NULL)
        err = dump(doc, SHOAL_SERVICE_DOCUMENT_BYTES_MAX, out, msg);
    json_decref(doc);
    json_decref(before);
    return err;
}

/* ---- edits ---- */

/* The part of the profile in which keys have no place. */
static const char *not_object(json_t *profile)
{
    static const char *const parts[] = { "policy", "security", "resource_allocation", "kernel" };

    for (size_t i = 0; i < 3; i++)
        if (!json_is_object(json_object_get(profile, parts[i])))
            return parts[i];
    return parts[3];
}

static enum shoal_err edit_profile(json_t *doc, json_t *body, const struct service_doc_edit *edit,
                                   struct shoal_msg *msg)
{
    json_t *profile = json_object_get(doc, "profile");
    const json_t *name = json_object_get(body, "name");
    char kept[256];

    if (name != NULL && (!json_is_string(name) || strcmp(json_string_value(name), edit->name) != 0))
        return wrong(msg, "name", "it must be the model's");
    take_aliases(body, profile);
    (void)snprintf(kept, sizeof(kept), "%s", text_at(profile, "resource_allocation.kernel.namespace"));
    if (!merge(profile, body, 0))
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for the profile; try again later");
    if (!fill_profile(profile))
        return wrong(msg, not_object(profile), "it must be an object");
    if (json_is_string(at_path(profile, "resource_allocation.kernel.namespace")))
        (void)put_at(profile, "resource_allocation.kernel.namespace", json_string(kept)); /* read only */
    return check_profile(profile, msg);
}

/* Copies into DLI's model object what it mirrors of the profile; an empty text says nothing. */
static enum shoal_err edit_mirrored(json_t *doc, json_t *body, const struct service_doc_edit *edit,
                                    struct shoal_msg *msg)
{
    static const struct {
        const char *key, *path;
    } mirrored[] = { { "mk_instance_min", "policy.kernel_min" },
                     { "mk_instance_max", "policy.kernel_max" },
                     { "mk_umask", "kernel.umask" },
                     { "mk_resource_req", "resource_allocation.kernel.resources" } };
    json_t *profile = json_object();
    enum shoal_err err = SHOAL_OK;

    for (size_t i = 0; i < sizeof(mirrored) / sizeof(mirrored[0]); i++) {
        json_t *value = json_object_get(body, mirrored[i].key);
        const char *text = json_string_value(value);

        if (value != NULL && !json_is_null(value) && (text == NULL || text[0] != '\0'))
            (void)put_at(profile, mirrored[i].path, json_incref(value));
    }
    if (json_object_size(profile) > 0)
        err = edit_profile(doc, profile, edit, msg);
    json_decref(profile);
    return err;
}

static enum shoal_err edit_model(json_t *doc, json_t *body, const struct service_doc_edit *edit, struct shoal_msg *msg)
{
    static const struct {
        const char *key;
        const char *pair; /* of a list: its first key */
    } keys[] = { { "tag", NULL },         { "weight_path", NULL }, { "runtime", NULL },
                 { "kernel_path", NULL }, { "attributes", "key" }, { "mk_environments", "name" } };
    json_t *model = json_object_get(doc, "model");

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        json_t *value = json_object_get(body, keys[i].key);

        if (value == NULL || json_is_null(value))
            continue;
        if (keys[i].pair == NULL ? !json_is_string(value) : !pairs_are_good(value, keys[i].pair))
            return shoal_fail(msg, SHOAL_ERR_INVALID, "the model's %s is not valid: it must be %s", keys[i].key,
                              keys[i].pair == NULL ? "a text" : "a list of pairs of texts");
        (void)json_object_set(model, keys[i].key, value);
    }
    return edit_mirrored(doc, body, edit, msg);
}

static enum shoal_err edit_readme(json_t *doc, const json_t *body, struct shoal_msg *msg)
{
    const json_t *text = json_object_get(body, "readme");

    if (!json_is_string(text))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "the readme must be {\"readme\": text}");
    if (json_string_length(text) > README_BYTES_MAX)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "the readme has %zu bytes, of %u that are kept; shorten it",
                          json_string_length(text), (unsigned)README_BYTES_MAX);
    (void)json_object_set_new(doc, "readme", json_deep_copy(text));
    return SHOAL_OK;
}

static void edit_started(json_t *doc, bool started, uint64_t now_s)
{
    if (started == (int_at(doc, "started_at", 0) > 0))
        return;
    (void)json_object_set_new(doc, "started_at", json_integer(started ? (json_int_t)now_s : 0));
    if (started)
        (void)json_object_del(doc, "stopped_at");
    else
        (void)json_object_set_new(doc, "stopped_at", json_integer((json_int_t)now_s));
}

static void edit_canary(json_t *doc, const struct service_doc_edit *edit)
{
    if (edit->canary == 0)
        (void)json_object_del(doc, "canary");
    else
        (void)json_object_set_new(doc, "canary",
                                  json_pack("{s:i,s:i}", "part", (int)edit->canary, "at", (int)edit->canary_at));
    if (edit->kind == SERVICE_DOC_CANARY_NEXT)
        edit_started(doc, false, edit->now_s);
    else if (edit->canary > 0)
        edit_started(doc, true, edit->now_s);
}

static enum shoal_err edit_doc(json_t *doc, const struct service_doc_edit *edit, struct shoal_msg *msg)
{
    bool has_body =
        edit->kind == SERVICE_DOC_PROFILE || edit->kind == SERVICE_DOC_MODEL || edit->kind == SERVICE_DOC_README;
    json_t *body = has_body ? load(edit->body, msg, "the body") : NULL;
    enum shoal_err err = SHOAL_OK;

    if (has_body && body == NULL)
        return SHOAL_ERR_INVALID;
    switch (edit->kind) {
    case SERVICE_DOC_START: edit_started(doc, true, edit->now_s); break;
    case SERVICE_DOC_STOP: edit_started(doc, false, edit->now_s); break;
    case SERVICE_DOC_SCALE:
        (void)put_at(doc, "profile.replica", json_integer(1));
        (void)put_at(doc, "profile.policy.kernel_min", json_integer(edit->replicas));
        (void)put_at(doc, "profile.policy.kernel_max", json_integer(edit->replicas));
        edit_started(doc, edit->replicas > 0, edit->now_s);
        break;
    case SERVICE_DOC_PROFILE: err = edit_profile(doc, body, edit, msg); break;
    case SERVICE_DOC_MODEL: err = edit_model(doc, body, edit, msg); break;
    case SERVICE_DOC_README: err = edit_readme(doc, body, msg); break;
    case SERVICE_DOC_CANARY_NEXT:
    case SERVICE_DOC_CANARY: edit_canary(doc, edit); break;
    }
    json_decref(body);
    return err;
}

/* A service without a document has one of defaults. */
static json_t *doc_of(struct shoal_view text, const char *name)
{
    struct shoal_buf made = { 0 };
    struct shoal_msg msg;
    json_t *doc;

    if (text.len > 0)
        return load(text, NULL, "");
    if (service_doc_make(&(struct service_doc_new){ .name = name, .replicas = 1 }, &made, &msg) != SHOAL_OK)
        return NULL;
    doc = load(shoal_buf_view(&made), NULL, "");
    shoal_buf_deinit(&made);
    return doc;
}

/* It changes what is written of model, profile or readme. */
static bool is_update(enum service_doc_edit_kind kind)
{
    switch (kind) {
    case SERVICE_DOC_SCALE:
    case SERVICE_DOC_PROFILE:
    case SERVICE_DOC_MODEL:
    case SERVICE_DOC_README: return true;
    case SERVICE_DOC_START:
    case SERVICE_DOC_STOP:
    case SERVICE_DOC_CANARY:
    case SERVICE_DOC_CANARY_NEXT: break;
    }
    return false;
}

enum shoal_err service_doc_edit(struct shoal_view text, const struct service_doc_edit *edit, struct shoal_buf *out,
                                struct shoal_msg *msg)
{
    json_t *doc = doc_of(text, edit->name);
    enum shoal_err err;

    if (doc == NULL || !json_is_object(json_object_get(doc, "profile")) ||
        !json_is_object(json_object_get(doc, "model"))) {
        json_decref(doc);
        return shoal_fail(msg, SHOAL_ERR_MALFORMED, "what is kept of the service %s does not decode; deploy it again",
                          edit->name);
    }
    err = edit_doc(doc, edit, msg);
    if (err == SHOAL_OK && is_update(edit->kind))
        (void)json_object_set_new(doc, "updated_at", json_integer((json_int_t)edit->now_s));
    if (err == SHOAL_OK)
        err = dump(doc, SHOAL_SERVICE_DOCUMENT_BYTES_MAX, out, msg);
    json_decref(doc);
    return err;
}

/* ---- views ---- */

/* D4. Of each pair its name stays, and nothing else that it may hold. */
static void hide_values(json_t *root, const char *path)
{
    char key[64];
    json_t *holder = holder_of(root, path, key, false), *pairs = json_object_get(holder, key), *shown;
    const json_t *pair;
    size_t i;

    if (pairs == NULL)
        return;
    shown = json_array();
    json_array_foreach(pairs, i, pair)
    {
        const char *name = json_string_value(json_object_get(pair, "name"));

        (void)json_array_append_new(
            shown, json_pack("{s:s,s:s}", "name", name == NULL ? "" : name, "value", SERVICE_DOC_HIDDEN));
    }
    if (json_object_set_new(holder, key, shown) != 0)
        (void)json_object_del(holder, key);
}

/* Streams are taken where requests are: the host and port of the model's address. One that is not started has none. */
static void put_stream(json_t *model, const char *service_uri)
{
    const char *host = strstr(service_uri, "://");

    if (host == NULL)
        (void)json_object_del(model, "stream_uri");
    else
        (void)json_object_set_new(model, "stream_uri", json_stringn(host + 3, strcspn(host + 3, "/")));
}

enum shoal_err service_doc_model(struct shoal_view text, const struct service_doc_facts *facts, struct shoal_buf *out)
{
    static const char *const first[] = { "name",
                                         "uid",
                                         "tag",
                                         "size",
                                         "weight_path",
                                         "model_path",
                                         "create_time",
                                         "last_updated_time",
                                         "started_at",
                                         "creator",
                                         "runtime",
                                         "kernel_path",
                                         "service_uri",
                                         "attributes",
                                         "mk_environments",
                                         "schema_version",
                                         "stream_uri" };
    json_t *doc = doc_of(text, facts->name), *shown = json_object(), *model = json_object_get(doc, "model");
    int64_t updated = int_at(doc, "updated_at", 0);
    struct shoal_msg msg;
    enum shoal_err err = SHOAL_ERR_MALFORMED;

    if (model != NULL) {
        (void)json_object_set_new(model, "name", json_string(facts->name));
        (void)json_object_set_new(model, "create_time", json_integer((json_int_t)facts->created_s));
        (void)json_object_set_new(
            model, "last_updated_time",
            json_integer(updated > (int64_t)facts->updated_s ? updated : (json_int_t)facts->updated_s));
        (void)json_object_set_new(model, "started_at", json_integer(int_at(doc, "started_at", 0)));
        (void)json_object_set_new(model, "creator", json_string(facts->creator));
        (void)json_object_set_new(model, "service_uri", json_string(facts->service_uri));
        put_stream(model, facts->service_uri);
        if (!facts->values)
            hide_values(model, "mk_environments");
        for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++)
            (void)json_object_set(shown, first[i], json_object_get(model, first[i]));
        (void)json_object_update_missing(shown, model);
        err = dump(shown, SIZE_MAX, out, &msg);
    }
    json_decref(shown);
    json_decref(doc);
    return err;
}

/* "Thu Jan  3 03:04:05 2030 GMT" */
static json_t *date_of(int64_t s)
{
    time_t when = (time_t)s;
    struct tm tm;
    char text[64] = "";

    if (gmtime_r(&when, &tm) != NULL)
        (void)strftime(text, sizeof(text), "%a %b %e %H:%M:%S %Y GMT", &tm);
    return json_string(text);
}

enum shoal_err service_doc_profile(struct shoal_view text, const struct service_doc_facts *facts, struct shoal_buf *out)
{
    json_t *doc = doc_of(text, facts->name), *profile = json_object_get(doc, "profile");
    struct shoal_msg msg;
    enum shoal_err err = SHOAL_ERR_MALFORMED;

    if (profile != NULL) {
        if (!facts->values)
            hide_values(profile, "kernel.envs");
        (void)json_object_set_new(profile, "create_time", date_of((int64_t)facts->created_s));
        (void)json_object_set_new(profile, "last_update_time", date_of(int_at(doc, "updated_at", 0)));
        err = dump(profile, SIZE_MAX, out, &msg);
    }
    json_decref(doc);
    return err;
}

enum shoal_err service_doc_readme(struct shoal_view text, struct shoal_buf *out)
{
    json_t *doc = doc_of(text, "");
    json_t *shown = json_pack("{s:s}", "readme", doc == NULL ? "" : text_at(doc, "readme"));
    struct shoal_msg msg;
    enum shoal_err err = dump(shown, SIZE_MAX, out, &msg);

    json_decref(shown);
    json_decref(doc);
    return err;
}

/* Of two numbers that anybody may have written. */
static int64_t product(int64_t a, int64_t b)
{
    int64_t all;

    return __builtin_mul_overflow(a, b, &all) ? INT64_MAX : all;
}

static uint32_t within(int64_t value, uint32_t min, uint32_t max)
{
    if (value < min)
        return min;
    return value > max ? max : (uint32_t)value;
}

static uint32_t bounded(int64_t value) { return within(value, 0, SHOAL_SERVICE_REPLICAS_MAX); }

static void pack_of(json_t *doc, const char *name, char *pack, size_t cap)
{
    const char *said = text_at(doc, "profile.resource_allocation.kernel.gpu_pack_id");

    (void)snprintf(pack, cap, "%s", said);
    if (said[0] == '\0')
        (void)snprintf(pack, cap, "edi-%s", name);
}

/* A kernel's need of a card; packs are told apart by their hashes. */
static void need_of(json_t *doc, struct shoal_gpu_need *need)
{
    const char *gpu = text_at(doc, "profile.kernel.gpu");
    int64_t mib = gpu_mem(text_at(doc, "profile.resource_allocation.kernel.accelerator_resources"));
    uint64_t hash = 14695981039346656037ull; /* FNV-1a */
    char pack[320];

    *need = (struct shoal_gpu_need){ .device = SHOAL_JOB_DEVICE_AUTO };
    if (strcmp(gpu, "exclusive") != 0 && strcmp(gpu, "shared") != 0)
        return;
    need->device = SHOAL_JOB_DEVICE_GPU;
    if (strcmp(gpu, "exclusive") == 0)
        return;
    pack_of(doc, text_at(doc, "model.name"), pack, sizeof(pack));
    for (const char *c = pack; *c != '\0'; c++)
        hash = (hash ^ (uint8_t)*c) * 1099511628211ull;
    need->mib = mib > 0 ? (uint32_t)mib : SERVICE_DOC_GPU_MIB;
    need->pack = hash == 0 ? 1 : hash;
}

void service_doc_knobs(struct shoal_view text, uint32_t replicas, struct service_knobs *knobs)
{
    json_t *doc = text.len == 0 ? NULL : load(text, NULL, "");
    json_t *profile = json_object_get(doc, "profile");
    int64_t copies = int_at(profile, "replica", 1), max = int_at(profile, "policy.kernel_max", -1);
    int64_t timeout_s = int_at(profile, "policy.task_execution_timeout", 60), canary = int_at(doc, "canary.part", 0);

    *knobs = (struct service_knobs){ .started = replicas > 0,
                                     .kernels_min = replicas,
                                     .kernels_max = replicas,
                                     .batch = 1,
                                     .interval_s = 3,
                                     .release_s = 60,
                                     .timeout_s = 60 };
    if (profile != NULL) {
        knobs->started = int_at(doc, "started_at", 0) > 0;
        knobs->stopped_s = knobs->started ? 0 : (uint64_t)int_at(doc, "stopped_at", 0);
        knobs->kernels_max = max < 0 ? SHOAL_SERVICE_REPLICAS_MAX : bounded(product(copies, max));
        knobs->kernels_min = within(product(copies, int_at(profile, "policy.kernel_min", 1)), 0, knobs->kernels_max);
        knobs->batch = within(int_at(profile, "policy.task_batch_size", 1), 1, UINT32_MAX);
        knobs->interval_s = within(int_at(profile, "policy.schedule_interval", 3), 1, UINT32_MAX);
        knobs->release_s = within(int_at(profile, "policy.kernel_delay_release_time", 60), 1, UINT32_MAX);
        if (canary > 0 && canary <= SHOAL_SERVICE_CANARY_MAX) {
            knobs->canary = (uint32_t)canary;
            knobs->canary_at = (uint32_t)int_at(doc, "canary.at", 0);
        }
        need_of(doc, &knobs->need);
        knobs->timeout_s = timeout_s < 0 || timeout_s > TIMEOUT_S_MAX ? TIMEOUT_S_MAX : (uint32_t)timeout_s;
    }
    json_decref(doc);
}

bool service_doc_stops(const struct service_knobs *knobs, uint64_t now_s)
{
    return !knobs->started && knobs->stopped_s > 0 && now_s >= knobs->stopped_s &&
           now_s - knobs->stopped_s < SERVICE_DOC_STOP_SECONDS;
}

bool service_doc_runtime_is_ours(const char *name)
{
    static const char *const ours[] = { "", "cpp", "python" };
    bool is_ours = strncmp(name, "dlipy", 5) == 0; /* old packages name what WMLA's releases called theirs */

    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
        is_ours = is_ours || strcmp(ours[i], name) == 0;
    return is_ours;
}

void service_doc_runtime(struct shoal_view text, char *name, size_t cap)
{
    json_t *doc = text.len == 0 ? NULL : load(text, NULL, "");

    (void)snprintf(name, cap, "%s", doc == NULL ? "" : text_at(doc, "model.runtime"));
    json_decref(doc);
}

void service_doc_gpu(struct shoal_view text, char *gpu, size_t cap)
{
    json_t *doc = text.len == 0 ? NULL : load(text, NULL, "");
    const char *said = doc == NULL ? "" : text_at(doc, "profile.kernel.gpu");
    bool known = strcmp(said, "shared") == 0 || strcmp(said, "exclusive") == 0;

    (void)snprintf(gpu, cap, "%s", known ? said : "no");
    json_decref(doc);
}

void service_doc_pack(struct shoal_view text, const char *name, char *pack, size_t cap)
{
    json_t *doc = text.len == 0 ? NULL : load(text, NULL, "");

    pack[0] = '\0';
    if (doc != NULL && strcmp(text_at(doc, "profile.kernel.gpu"), "shared") == 0)
        pack_of(doc, name, pack, cap);
    json_decref(doc);
}
