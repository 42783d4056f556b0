/* shoal service: edit, test. */
#include "cli_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "api/http/json_writer.h"

#include "shoal/limits.h"

#include "shoal/banned.h"

#define NAME_BYTES 300
#define SETS_MAX 64
#define DEPTH_MAX 8
#define TEST_TIMEOUT_S 120

/* A file, or standard input ("-"), with a NUL behind it. */
static int read_whole(const char *path, size_t bytes_max, struct shoal_buf *out)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    char piece[65536];
    size_t got;
    int code = SHOAL_EXIT_OK;

    if (file == NULL)
        return cli_fail(SHOAL_EXIT_USAGE, "%s: %s", path, strerror(errno));
    while (code == SHOAL_EXIT_OK && (got = fread(piece, 1, sizeof(piece), file)) > 0)
        if (out->len + got > bytes_max || shoal_buf_append(out, piece, got) != SHOAL_OK)
            code = cli_fail(SHOAL_EXIT_USAGE, "%s: larger than %zu bytes", path, bytes_max);
    if (code == SHOAL_EXIT_OK && (ferror(file) != 0 || shoal_buf_append(out, "", 1) != SHOAL_OK))
        code = cli_fail(SHOAL_EXIT_FAILED, "%s: cannot be read", path);
    if (file != stdin)
        (void)fclose(file);
    return code;
}

/* ---- edit ---- */

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* VALUE as JSON where it is that, else as a text. */
static void put_value(struct json_writer *w, const char *key, const char *value)
{
    struct shoal_buf wrapped = { 0 };
    struct json_input *input = NULL;
    struct shoal_msg msg;
    bool is_json = shoal_buf_append(&wrapped, "[", 1) == SHOAL_OK &&
                   shoal_buf_append(&wrapped, value, strlen(value)) == SHOAL_OK &&
                   shoal_buf_append(&wrapped, "]", 1) == SHOAL_OK &&
                   json_input_parse_own(shoal_buf_view(&wrapped), &input, &msg) == SHOAL_OK &&
                   json_input_count(json_input_root(input)) == 1;

    if (is_json)
        json_raw(w, key, shoal_view_text(value));
    else
        json_text(w, key, value);
    json_input_free(input);
    shoal_buf_deinit(&wrapped);
}

/* "a.b=1", "a.c=2" as {"a":{"b":1,"c":2}}: paths that are sorted stand beside those they share a beginning with. */
static int put_sets(struct cli *cli, struct json_writer *w)
{
    const char *sets[SETS_MAX];
    char open[DEPTH_MAX][64];
    unsigned count = 0, depth = 0;

    for (unsigned i = 0; i < cli->given_count; i++) {
        if (strcmp(cli->given[i].option->name, "set") != 0)
            continue;
        if (count == SETS_MAX || strchr(cli->given[i].value, '=') == NULL)
            return cli_fail(SHOAL_EXIT_USAGE, "--set %s: not PATH=VALUE, or too many", cli->given[i].value);
        sets[count++] = cli->given[i].value;
    }
    qsort(sets, count, sizeof(sets[0]), by_text);
    json_object_begin(w, NULL);
    for (unsigned i = 0; i < count; i++) {
        const char *at = sets[i], *end = strchr(at, '='), *dot;
        unsigned same = 0;
        char key[64];

        while ((dot = memchr(at, '.', (size_t)(end - at))) != NULL && same < depth && strlen(open[same]) == (size_t)(dot - at) &&
               memcmp(open[same], at, (size_t)(dot - at)) == 0) {
            same++;
            at = dot + 1;
        }
        for (; depth > same; depth--)
            json_end(w);
        while ((dot = memchr(at, '.', (size_t)(end - at))) != NULL) {
            if (depth == DEPTH_MAX || (size_t)(dot - at) >= sizeof(open[0]))
                return cli_fail(SHOAL_EXIT_USAGE, "--set %s: the path is too long", sets[i]);
            (void)snprintf(open[depth], sizeof(open[0]), "%.*s", (int)(dot - at), at);
            json_object_begin(w, open[depth++]);
            at = dot + 1;
        }
        (void)snprintf(key, sizeof(key), "%.*s", (int)(end - at), at);
        put_value(w, key, end + 1);
    }
    for (; depth > 0; depth--)
        json_end(w);
    json_end(w);
    return SHOAL_EXIT_OK;
}

static void print_changes(const struct json_value *root)
{
    const struct json_value *changes = json_input_get(root, "changes");
    const struct json_value *notes = json_input_get(root, "notes");

    for (size_t i = 0; changes != NULL && i < json_input_count(changes); i++) {
        const struct json_value *change = json_input_at(changes, i);
        char *from = json_input_dump(json_input_get(change, "from"));
        char *to = json_input_dump(json_input_get(change, "to"));

        (void)printf("%s: %s -> %s\n", cli_shown(cli_text_at(change, "path")), cli_shown(from == NULL ? "(none)" : from),
                     cli_shown(to == NULL ? "(none)" : to));
        free(from);
        free(to);
    }
    for (size_t i = 0; notes != NULL && i < json_input_count(notes); i++)
        (void)printf("note: %s\n", cli_text_item(notes, i));
    (void)printf("%s\n", cli_text_at(root, "text"));
}

static int send_edit(struct cli *cli, const char *path, const char *body)
{
    struct cli_call call = { .method = "PUT", .path = path, .body = body };
    struct cli_answer answer;
    struct json_input *input;
    int code = cli_call(cli, &call, &answer, false);

    if (code == SHOAL_EXIT_OK && cli->json)
        cli_print_json(cli_answer_text(&answer));
    if (code == SHOAL_EXIT_OK && !cli->json && (code = cli_parse(&answer, &input)) == SHOAL_EXIT_OK) {
        print_changes(json_input_root(input));
        json_input_free(input);
    }
    cli_answer_free(&answer);
    return code;
}

/* A path that no profile has was mistyped: a dry run says so, and nothing is changed. (A whole file may hold more than Shoal
 * knows, as WMLA's do.) */
static int check_sets(struct cli *cli, const char *name, const char *body)
{
    char path[400];
    struct cli_call call = { .method = "PUT", .path = path, .body = body };
    struct cli_answer answer;
    struct json_input *input = NULL;
    const struct json_value *notes;
    int code;

    (void)snprintf(path, sizeof(path), "/v1/services/%s/profile?dry_run=true", name);
    code = cli_call(cli, &call, &answer, false);
    if (code == SHOAL_EXIT_OK)
        code = cli_parse(&answer, &input);
    notes = code == SHOAL_EXIT_OK ? json_input_get(json_input_root(input), "notes") : NULL;
    if (notes != NULL && json_input_count(notes) > 0)
        code = cli_fail(SHOAL_EXIT_USAGE, "--set %s. Nothing was changed; `shoal service edit %s` prints the fields that there are",
                        cli_text_item(notes, 0), cli->words[0]);
    json_input_free(input);
    cli_answer_free(&answer);
    return code;
}

int cli_service_edit(struct cli *cli)
{
    char path[400], name[NAME_BYTES];
    const char *file = cli_value(cli, "file");
    struct shoal_buf body = { 0 };
    struct json_writer w = json_writer_init(&body);
    int code;

    cli_encode(cli->words[0], name, sizeof(name));
    (void)snprintf(path, sizeof(path), "/v1/services/%s/profile%s", name, cli_flag(cli, "dry-run") ? "?dry_run=true" : "");
    if (file != NULL && cli_value(cli, "set") != NULL)
        return cli_fail(SHOAL_EXIT_USAGE, "--file and --set: one of them");
    if (file == NULL && cli_value(cli, "set") == NULL)
        return cli_flag(cli, "dry-run") ? cli_fail(SHOAL_EXIT_USAGE, "--dry-run wants --set or --file")
                                        : cli_print(cli, path);
    code = file != NULL ? read_whole(file, SHOAL_JSON_BYTES_MAX, &body) : put_sets(cli, &w);
    if (code == SHOAL_EXIT_OK && file == NULL && (w.failed || shoal_buf_append(&body, "", 1) != SHOAL_OK))
        code = cli_fail(SHOAL_EXIT_FAILED, "out of memory");
    if (code == SHOAL_EXIT_OK && file == NULL)
        code = check_sets(cli, name, (const char *)body.bytes);
    if (code == SHOAL_EXIT_OK)
        code = send_edit(cli, path, (const char *)body.bytes);
    shoal_buf_deinit(&body);
    return code;
}

/* ---- test ---- */

static bool is_oip(const struct shoal_buf *body)
{
    struct json_input *input = NULL;
    struct shoal_msg msg;
    bool is = json_input_parse_own(shoal_view_of(body->bytes, body->len - 1), &input, &msg) == SHOAL_OK &&
              json_input_is_array(json_input_get(json_input_root(input), "inputs"));

    json_input_free(input);
    return is;
}

int cli_service_test(struct cli *cli)
{
    const char *file = cli_value(cli, "input"), *by = cli_value(cli, "path");
    char path[400], name[NAME_BYTES];
    struct shoal_buf body = { 0 };
    struct cli_call call = { .method = "POST", .path = path, .timeout_s = TEST_TIMEOUT_S };
    struct cli_log_text shown = { .held_len = 0 };
    struct cli_answer answer;
    int code;

    if (file == NULL)
        return cli_fail(SHOAL_EXIT_USAGE, "--input FILE is what is sent (-: standard input): what the service's kernel reads, or, for a model without a "
                                         "kernel of its own, such as that of a job: echo '{\"inputs\": [{\"name\": \"x\", \"datatype\": \"FP32\", "
                                         "\"shape\": [1, 3], \"data\": [1, 2, 3]}]}' | shoal service test %.64s --input -", cli->words[0]);
    if (by != NULL && strcmp(by, "infer") != 0 && strcmp(by, "dlim") != 0)
        return cli_fail(SHOAL_EXIT_USAGE, "--path: \"%s\" is not infer or dlim", by);
    code = read_whole(file, SHOAL_INFER_BODY_BYTES_MAX, &body);
    if (code == SHOAL_EXIT_OK) {
        bool oip = by == NULL ? is_oip(&body) : strcmp(by, "infer") == 0;
        bool is_text = memchr(body.bytes, '\0', body.len - 1) == NULL;

        cli_encode(cli->words[0], name, sizeof(name));
        (void)snprintf(path, sizeof(path), oip ? "/v2/models/%s/infer" : "/dlim/v1/inference/%s", name);
        call.upload = is_text || strcmp(file, "-") == 0 ? NULL : file;
        call.body = call.upload == NULL ? (const char *)body.bytes : NULL;
        call.body_bytes = is_text ? 0 : body.len - 1;
        code = cli_call(cli, &call, &answer, false);
        if (code == SHOAL_EXIT_USAGE) /* the model may have said so, of what it was sent */
            code = SHOAL_EXIT_FAILED;
        if (code == SHOAL_EXIT_OK) /* what could not be written is said at the end of the program */
            cli_put_log(&shown, cli_answer_text(&answer), answer.body.len);
        if (code == SHOAL_EXIT_OK && (answer.body.len == 0 || answer.body.bytes[answer.body.len - 1] != '\n'))
            (void)putchar('\n');
        cli_answer_free(&answer);
    }
    shoal_buf_deinit(&body);
    return code;
}
