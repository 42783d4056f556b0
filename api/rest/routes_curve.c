/* The loss curve of a job: the backend's JSON as it is, or as CSV, a line for each step and each validation.
 *
 *   step,call,data_epoch,kind,loss,accuracy[,loss_min,loss_max,accuracy_min,accuracy_max]
 *   1,1,0,train,0.69,0.5
 *   100,1,0,validation,0.4,0.8
 *
 * The columns of a metric are named by all calls of train() together; a call that lacks one leaves it empty. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/http/json_input.h"
#include "routes.h"

#include "shoal/banned.h"

#define COLUMNS_MAX 64
#define VALUES_MAX 16

struct csv {
    const struct json_value *root;
    const char *names[COLUMNS_MAX];
    size_t count;
    bool ranges; /* points stand for several steps */
    struct shoal_buf text;
    bool failed;
};

static void put(struct csv *csv, const char *text)
{
    csv->failed = csv->failed || shoal_buf_append(&csv->text, text, strlen(text)) != SHOAL_OK;
}

/* RFC 4180: quotes where a name has a comma, a quote or the like, and quotes in it twice. */
static void put_name(struct csv *csv, const char *name, const char *end)
{
    bool quoted = name[strcspn(name, ",\"\r\n")] != '\0';

    put(csv, ",");
    put(csv, quoted ? "\"" : "");
    for (const char *at = name; *at != '\0'; at++) {
        char one[3] = { *at, *at == '"' ? '"' : '\0', '\0' };

        put(csv, one);
    }
    put(csv, end);
    put(csv, quoted ? "\"" : "");
}

static size_t column_of(struct csv *csv, const char *name)
{
    size_t i = 0;

    while (i < csv->count && strcmp(csv->names[i], name) != 0)
        i++;
    if (i == csv->count && i < COLUMNS_MAX)
        csv->names[csv->count++] = name;
    return i;
}

/* The name of a call's value; "value N" where it is not known any more. */
static const char *name_of(const struct csv *csv, int64_t call, size_t value)
{
    static const char *const unknown[VALUES_MAX] = { "loss",     "value 1",  "value 2",  "value 3",
                                                     "value 4",  "value 5",  "value 6",  "value 7",
                                                     "value 8",  "value 9",  "value 10", "value 11",
                                                     "value 12", "value 13", "value 14", "value 15" };
    const struct json_value *calls = json_input_get(csv->root, "calls");

    for (size_t i = 0; i < json_input_count(calls); i++) {
        const struct json_value *names = json_input_get(json_input_at(calls, i), "names");
        int64_t number = 0;

        (void)json_input_int(json_input_at(calls, i), "call", &number);
        if (number == call && json_input_text_at(names, value) != NULL)
            return json_input_text_at(names, value);
    }
    return value < VALUES_MAX ? unknown[value] : unknown[VALUES_MAX - 1];
}

static void find_columns(struct csv *csv, const char *series)
{
    const struct json_value *points = json_input_get(csv->root, series);

    for (size_t i = 0; i < json_input_count(points); i++) {
        const struct json_value *point = json_input_at(points, i);
        int64_t call = 0;

        (void)json_input_int(point, "call", &call);
        for (size_t v = 0; v < json_input_count(json_input_get(point, "values")); v++)
            (void)column_of(csv, name_of(csv, call, v));
        csv->ranges = csv->ranges || json_input_get(point, "min") != NULL;
    }
}

/* Value `v` of an array of the point; "": there is none, or it is no number. */
static const char *value_text(const struct json_value *point, const char *array, size_t v, char buf[40])
{
    const struct json_value *values = json_input_get(point, array);
    const char *text = v < json_input_count(values) ? json_input_scalar(json_input_at(values, v), buf, 40) : NULL;

    return text == NULL ? "" : text;
}

static void put_point(struct csv *csv, const struct json_value *point, const char *kind)
{
    size_t where[COLUMNS_MAX]; /* column -> value + 1 */
    int64_t step = 0, call = 0, data_epoch = 0;
    char line[120], buf[40];

    (void)json_input_int(point, "step", &step);
    (void)json_input_int(point, "call", &call);
    (void)json_input_int(point, "dataEpoch", &data_epoch);
    memset(where, 0, sizeof(where));
    for (size_t v = 0; v < json_input_count(json_input_get(point, "values")); v++) {
        size_t column = column_of(csv, name_of(csv, call, v));

        if (column < COLUMNS_MAX)
            where[column] = v + 1;
    }
    (void)snprintf(line, sizeof(line), "%lld,%lld,%lld,%s", (long long)step, (long long)call, (long long)data_epoch,
                   kind);
    put(csv, line);
    for (size_t i = 0; i < csv->count; i++) {
        put(csv, ",");
        put(csv, where[i] == 0 ? "" : value_text(point, "values", where[i] - 1, buf));
    }
    for (size_t i = 0; csv->ranges && i < csv->count; i++) {
        put(csv, ",");
        put(csv, where[i] == 0 ? "" : value_text(point, "min", where[i] - 1, buf));
        put(csv, ",");
        put(csv, where[i] == 0 ? "" : value_text(point, "max", where[i] - 1, buf));
    }
    put(csv, "\r\n");
}

static void put_all(struct csv *csv)
{
    const struct json_value *points = json_input_get(csv->root, "points");
    const struct json_value *validations = json_input_get(csv->root, "validations");

    find_columns(csv, "points");
    find_columns(csv, "validations");
    put(csv, "step,call,data_epoch,kind");
    for (size_t i = 0; i < csv->count; i++)
        put_name(csv, csv->names[i], "");
    for (size_t i = 0; csv->ranges && i < csv->count; i++) {
        put_name(csv, csv->names[i], "_min");
        put_name(csv, csv->names[i], "_max");
    }
    put(csv, "\r\n");
    for (size_t i = 0; i < json_input_count(points); i++)
        put_point(csv, json_input_at(points, i), "train");
    for (size_t i = 0; i < json_input_count(validations); i++)
        put_point(csv, json_input_at(validations, i), "validation");
}

static void answer_csv(struct http_request *request, struct shoal_view json)
{
    struct csv csv = { .root = NULL };
    struct json_input *input;
    struct shoal_msg msg;

    if (json_input_parse_own(json, &input, &msg) != SHOAL_OK) {
        http_respond_error(request, 503, "the metrics cannot be read: %s; is a node of another version?", msg.text);
        return;
    }
    csv.root = json_input_root(input);
    put_all(&csv);
    if (csv.failed)
        http_respond_error(request, 503, "out of memory; try again later");
    else
        http_respond(request, 200, "text/csv;charset=UTF-8", shoal_buf_view(&csv.text));
    shoal_buf_deinit(&csv.text);
    json_input_free(input);
}

static bool wants_csv(struct http_request *request)
{
    const char *format = http_query(request, "format");
    struct shoal_view accept;

    if (format != NULL)
        return strcmp(format, "csv") == 0;
    return http1_header_find(&request->head, "accept", &accept) &&
           memmem(accept.bytes, accept.len, "text/csv", 8) != NULL;
}

static void on_curve(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view json)
{
    struct http_request *request = arg;

    if (err != SHOAL_OK)
        http_respond_failure(request, err, msg, 404);
    else if (wants_csv(request))
        answer_csv(request, json);
    else
        http_respond(request, 200, "application/json", json);
    http_request_release(request);
}

void routes_curve(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;
    const char *format = http_query(request, "format");
    struct shoal_curve_ask ask = { .from = 1, .to = UINT64_MAX };
    uint64_t points = SHOAL_METRIC_POINTS_MAX;

    if (format != NULL && strcmp(format, "json") != 0 && strcmp(format, "csv") != 0) {
        http_respond_error(request, 400, "format: \"%.40s\" is not json or csv", format);
        return;
    }
    if (!routes_number(request, "from", 1, UINT64_MAX, &ask.from) || !routes_number(request, "to", 0, UINT64_MAX, &ask.to) ||
        !routes_number(request, "points", 1, SHOAL_METRIC_POINTS_MAX, &points))
        return;
    ask.points_max = (uint32_t)points;
    http_request_hold(request);
    backend->curve(backend->ctx, &request->user, request->params[0], &ask, on_curve, request);
}
