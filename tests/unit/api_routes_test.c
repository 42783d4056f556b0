/* docs/openapi.json names every address that the server has, with its methods, and none that it has not. */
#include "api/http/http_server.h"
#include "api/http/json_input.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "shoal/disk.h"
#include "shoal/identity.h"

#include "shoal/banned.h"

#define LINES_MAX 256

/* "get /v1/jobs/{}", sorted. */
struct lines {
    char text[LINES_MAX][160];
    size_t count;
};

/* The names between braces are left out: the table has none. */
static void add(struct lines *lines, const char *method, const char *path)
{
    char *line = lines->text[lines->count++];
    size_t len = (size_t)snprintf(line, sizeof(lines->text[0]), "%s ", method);

    assert_true(lines->count < LINES_MAX && strlen(path) < 120);
    for (; *path != '\0'; path++) {
        line[len++] = *path;
        if (*path == '{') {
            path += strcspn(path, "}") - 1;
            assert_true(path[0] != '\0');
        }
    }
    line[len] = '\0';
}

static int compare(const void *a, const void *b) { return strcmp(a, b); }

static void on_method(void *arg, const char *key, const struct json_value *value)
{
    struct {
        struct lines *lines;
        const char *path;
    } *at = arg;

    assert_non_null(json_input_get(value, "responses"));
    add(at->lines, key, at->path);
}

static void on_path(void *arg, const char *key, const struct json_value *value)
{
    struct {
        struct lines *lines;
        const char *path;
    } at = { arg, key };

    json_input_each(value, on_method, &at);
}

static void of_file(struct lines *lines)
{
    struct shoal_buf file = { 0 };
    struct json_input *json;
    struct shoal_msg msg = { "" };

    assert_int_equal(shoal_disk_read("docs/openapi.json", SHOAL_JSON_BYTES_MAX, &file, &msg), SHOAL_OK);
    if (json_input_parse(shoal_buf_view(&file), &json, &msg) != SHOAL_OK)
        fail_msg("docs/openapi.json: %s", msg.text);
    json_input_each(json_input_get(json_input_root(json), "paths"), on_path, lines);
    json_input_free(json);
    shoal_buf_deinit(&file);
}

static void of_table(struct lines *lines)
{
    static const char *const names[] = {
        [HTTP1_GET] = "get", [HTTP1_POST] = "post", [HTTP1_PUT] = "put", [HTTP1_DELETE] = "delete"
    };
    const struct http_route *(*const tables[])(size_t * count) = { http_routes_execs, http_routes_scheduler, http_routes_native,
                                                                   http_routes_services, http_routes_oip, http_routes_dlim,
                                                                   http_routes_profile, http_routes_openai, http_routes_edimodels,
                                                                   http_routes_runtimes, http_routes_download };

    for (size_t t = 0; t < sizeof(tables) / sizeof(tables[0]); t++) {
        size_t count;
        const struct http_route *routes = tables[t](&count);

        for (size_t i = 0; i < count; i++)
            add(lines, names[routes[i].method], routes[i].pattern);
    }
}

static void the_file_and_the_table_say_the_same(void **state)
{
    static struct lines file, table;
    size_t f = 0, t = 0;

    (void)state;
    of_file(&file);
    of_table(&table);
    qsort(file.text, file.count, sizeof(file.text[0]), compare);
    qsort(table.text, table.count, sizeof(table.text[0]), compare);
    while (f < file.count || t < table.count) {
        int order = f == file.count ? 1 : t == table.count ? -1 : strcmp(file.text[f], table.text[t]);

        if (order < 0)
            fail_msg("docs/openapi.json has \"%s\", which the server does not know", file.text[f]);
        if (order > 0)
            fail_msg("\"%s\" is not in docs/openapi.json", table.text[t]);
        f++, t++;
    }
    assert_true(table.count > 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(the_file_and_the_table_say_the_same) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
