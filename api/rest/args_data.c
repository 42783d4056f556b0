/* The parts of a submit's `data` that say what options could say, too: hardwareSpec and dataSource. They are checked as those options
 * are (args.c). */
#include "args_state.h"

#include <inttypes.h>
#include <string.h>

#include "api/http/json_writer.h"

#include "shoal/banned.h"

static enum shoal_err spec_int(struct parse *p, const struct json_value *object, const char *key, int64_t min,
                               int64_t *value)
{
    const struct json_value *found = json_input_get(object, key);
    char buf[32];
    const char *text;

    if (found == NULL)
        return SHOAL_OK;
    text = json_input_scalar(found, buf, sizeof(buf));
    if (text == NULL || !args_parse_int(text, value) || *value < min)
        return shoal_fail(p->msg, SHOAL_ERR_INVALID, "hardwareSpec: %s must be an integer of %" PRId64 " or more", key,
                          min);
    return SHOAL_OK;
}

static enum shoal_err spec_memory(struct parse *p, const struct json_value *object, uint64_t *bytes)
{
    const struct json_value *size = json_input_get(json_input_get(object, "mem"), "size");
    char buf[32];
    const char *text;

    if (size == NULL)
        return SHOAL_OK;
    text = json_input_scalar(size, buf, sizeof(buf));
    if (text == NULL || !args_parse_size(text, bytes))
        return shoal_fail(p->msg, SHOAL_ERR_INVALID, "hardwareSpec: mem.size must be a size such as 4Gi");
    return SHOAL_OK;
}

static enum shoal_err spec_cpu(struct parse *p, const struct json_value *nodes)
{
    const struct json_value *units = json_input_get(json_input_get(nodes, "cpu"), "units");
    char buf[32];
    const char *text;
    double cpus;

    if (units == NULL)
        return SHOAL_OK;
    text = json_input_scalar(units, buf, sizeof(buf));
    if (text == NULL || !args_is_quantity(text))
        return shoal_fail(p->msg, SHOAL_ERR_INVALID, "hardwareSpec: cpu.units must be a number such as 2 or 0.5");
    cpus = strtod(text, NULL);
    if (text[strlen(text) - 1] != 'm')
        cpus *= 1000;
    p->out->options.worker_cpu_milli = cpus > 1e6 ? 1000000u : (uint32_t)cpus;
    return SHOAL_OK;
}

static enum shoal_err spec_gpu(struct parse *p, const struct json_value *nodes)
{
    const struct json_value *gpu = json_input_get(nodes, "gpu");
    const char *profile = json_input_text(gpu, "gpu_profile");
    int64_t num = 0;
    enum shoal_err err = spec_int(p, gpu, "num_gpu", 0, &num);

    if (err != SHOAL_OK)
        return err;
    if (profile != NULL && profile[0] != '\0' && strcmp(profile, "full") != 0 && strcmp(profile, "generic") != 0) {
        if (strcmp(profile, "slice") == 0)
            return shoal_fail(p->msg, SHOAL_ERR_UNSUPPORTED,
                              "not supported yet: hardwareSpec gpu_profile slice; use full");
        return shoal_fail(p->msg, SHOAL_ERR_INVALID, "hardwareSpec: gpu_profile must be slice, generic or full");
    }
    p->out->options.device = num > 0 ? SHOAL_DEVICE_GPU : SHOAL_DEVICE_CPU;
    p->device_num = num > 0 ? num : 1;
    return SHOAL_OK;
}

/* hardwareSpec stands above args (execs-api 4.6). */
enum shoal_err args_apply_hardware(struct parse *p, const struct json_value *spec)
{
    const struct json_value *nodes = json_input_get(spec, "nodes");
    int64_t drivers = -1;
    enum shoal_err err;

    if (spec == NULL || json_input_is_null(spec))
        return SHOAL_OK;
    if (!json_input_is_object(spec))
        return shoal_fail(p->msg, SHOAL_ERR_INVALID, "hardwareSpec must be a JSON object");
    if (nodes == NULL && (json_input_get(spec, "name") != NULL || json_input_get(spec, "id") != NULL))
        return shoal_fail(p->msg, SHOAL_ERR_INVALID,
                          "hardwareSpec: no specification of that name is known; give \"nodes\"");
    if (nodes == NULL)
        return SHOAL_OK;
    if (!json_input_is_object(nodes))
        return shoal_fail(p->msg, SHOAL_ERR_INVALID, "hardwareSpec: nodes must be a JSON object");
    err = spec_int(p, nodes, "num_nodes", 1, &p->workers);
    if (err == SHOAL_OK)
        err = spec_cpu(p, nodes);
    if (err == SHOAL_OK)
        err = spec_memory(p, nodes, &p->out->options.worker_memory_bytes);
    if (err == SHOAL_OK)
        err = spec_gpu(p, nodes);
    if (err == SHOAL_OK)
        err = spec_int(p, nodes, "num_drivers", 0, &drivers);
    if (err == SHOAL_OK && drivers >= 0) /* 1 where the framework has none means nothing: clients send it for all */
        p->num_driver = drivers == 1 ? -1 : drivers;
    if (err == SHOAL_OK)
        err = spec_memory(p, json_input_get(nodes, "drivers"), &p->out->options.driver_memory_bytes);
    return err;
}

/* Leaves in `path` the folder that has it and the other one. */
static void keep_common(char *path, const char *other)
{
    size_t at = 0, end = 0;

    while (path[at] != '\0' && path[at] == other[at]) {
        if (path[at] == '/')
            end = at;
        at++;
    }
    if ((path[at] == '\0' || path[at] == '/') && (other[at] == '\0' || other[at] == '/'))
        end = at;
    path[end] = '\0';
}

/* Of several paths, between commas, the folder that has them all is the job's DATA_DIR. */
static enum shoal_err paths_folder(struct parse *p, const char *paths, char **folder)
{
    *folder = NULL;
    for (const char *at = paths; at != NULL; at = strchr(at, ',') == NULL ? NULL : strchr(at, ',') + 1) {
        const char *from = at + strspn(at, " \t");
        size_t len = strcspn(from, ",");
        char *path;

        while (len > 0 && (from[len - 1] == ' ' || from[len - 1] == '\t'))
            len--;
        path = arena_copy(p->arena, shoal_view_of(from, len));
        if (path == NULL || (path = args_clean_path(p->arena, path)) == NULL)
            return shoal_fail(p->msg, SHOAL_ERR_FULL, "out of memory; try again later");
        if (args_has_dotdot(path))
            return shoal_fail(p->msg, SHOAL_ERR_INVALID, "dataSource: \"..\" in location.paths");
        if (*folder == NULL)
            *folder = path;
        else if (len > 0)
            keep_common(*folder, path);
    }
    SHOAL_ASSERT(*folder != NULL); /* a text has a first path, maybe an empty one */
    return SHOAL_OK;
}

static enum shoal_err apply_source(struct parse *p, const struct json_value *item, bool first)
{
    const char *type = json_input_text(item, "type");
    const struct json_value *location = json_input_get(item, "location");
    const char *paths = json_input_text(location, "paths");
    enum shoal_err err;
    char *folder;

    if (type != NULL && strcmp(type, "connection") == 0)
        return shoal_fail(p->msg, SHOAL_ERR_UNSUPPORTED,
                          "not supported yet: dataSource of type connection; use type fs");
    if (type == NULL || strcmp(type, "fs") != 0)
        return shoal_fail(p->msg, SHOAL_ERR_INVALID, "dataSource: type must be fs or connection");
    if (!json_input_is_object(location))
        return shoal_fail(p->msg, SHOAL_ERR_INVALID, "dataSource: location must be a JSON object");
    if (json_input_get(location, "volume") != NULL)
        return shoal_fail(p->msg, SHOAL_ERR_UNSUPPORTED,
                          "not supported yet: dataSource with a volume; use location.paths");
    if (paths == NULL)
        return shoal_fail(p->msg, SHOAL_ERR_INVALID, "dataSource: location.paths must be a text");
    err = paths_folder(p, paths, &folder);
    if (err == SHOAL_OK && first)
        p->out->options.data_path = folder;
    return err;
}

/* The first one decides where DATA_DIR is; all lie in the same folder of each host. */
enum shoal_err args_apply_sources(struct parse *p, const struct json_value *sources)
{
    enum shoal_err err = SHOAL_OK;

    if (sources == NULL || json_input_is_null(sources))
        return SHOAL_OK;
    if (!json_input_is_array(sources))
        return shoal_fail(p->msg, SHOAL_ERR_INVALID, "dataSource must be a JSON array");
    for (size_t i = 0; i < json_input_count(sources) && err == SHOAL_OK; i++)
        err = apply_source(p, json_input_at(sources, i), i == 0);
    return err;
}

/* {"hardwareSpec":...,"dataSource":...}: `args` inside data may hold secrets and is left out. */
enum shoal_err args_keep_data(struct parse *p)
{
    static const char *const keys[] = { "dataSource", "hardwareSpec" };
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);
    unsigned found = 0;

    p->out->data_json = "";
    json_object_begin(&w, NULL);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const struct json_value *value = p->input->data == NULL ? NULL : json_input_get(p->input->data, keys[i]);
        char *text;

        if (value == NULL)
            continue;
        text = json_input_dump(value);
        if (text == NULL) {
            w.failed = true;
            break;
        }
        json_raw(&w, keys[i], shoal_view_text(text));
        free(text);
        found++;
    }
    json_end(&w);
    if (!w.failed && found > 0)
        p->out->data_json = arena_copy(p->arena, shoal_buf_view(&buf));
    shoal_buf_deinit(&buf);
    if (w.failed || p->out->data_json == NULL)
        return shoal_fail(p->msg, SHOAL_ERR_FULL, "out of memory; try again later");
    return SHOAL_OK;
}
