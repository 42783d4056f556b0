/* shoal job metrics: the loss curve as a table, as CSV, or drawn.
 *
 *   loss   last 0.2104, least 0.2098 at step 230; validation 0.2301
 *       0.693 ┤⠈⢆          one dot is 1/8 of a character (Braille, U+2800); a point that stands for several
 *             │ ⠈⠢⣀        steps is a line from their least to their greatest value
 *        0.21 ┤    ⠉⠒⠤⠤⠤⠤o  o: a validation
 *              1         240
 *
 * Where the locale is no UTF-8 the dots are characters, and the frame is ASCII. */
#include "cli_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/http/json_input.h"
#include "shoal/limits.h"

#include "shoal/banned.h"

#define NAMES_MAX 32u
#define LABEL_WIDTH 10u
#define WIDTH_MIN 30u
#define WIDTH_MAX 400u
#define ROWS 12u
#define CELL_X 2u /* dots of a Braille character */
#define CELL_Y 4u

struct chart {
    const struct json_value *root;
    const char *name;
    unsigned width; /* of the canvas, in characters */
    unsigned cell_x, cell_y;
    double least, most;
    uint64_t first, last; /* steps */
    uint8_t dots[ROWS][WIDTH_MAX];
    bool validation[ROWS][WIDTH_MAX];
    bool utf8, colour;
};

/* ---- what is asked ---- */

static const char *name_of(const struct json_value *root, int64_t call, size_t value)
{
    const struct json_value *calls = json_input_get(root, "calls");

    for (size_t i = 0; i < json_input_count(calls); i++)
        if (cli_int_at(json_input_at(calls, i), "call") == call)
            return json_input_text_at(json_input_get(json_input_at(calls, i), "names"), value);
    return value == 0 ? "loss" : NULL;
}

static bool is_in_list(const char *list, const char *name)
{
    size_t len = strlen(name);

    for (const char *at = list; at != NULL; at = strchr(at, ',') == NULL ? NULL : strchr(at, ',') + 1)
        if (strncmp(at, name, len) == 0 && (at[len] == ',' || at[len] == '\0'))
            return true;
    return false;
}

/* The metrics that are there and wanted, in their order. */
static size_t names_of(const struct cli *cli, const struct json_value *root, const char *names[NAMES_MAX])
{
    static const char *const series[] = { "points", "validations" };
    size_t count = 0;

    for (unsigned s = 0; s < 2; s++) {
        const struct json_value *points = json_input_get(root, series[s]);

        for (size_t i = 0; i < json_input_count(points); i++) {
            const struct json_value *point = json_input_at(points, i);

            for (size_t v = 0; v < json_input_count(json_input_get(point, "values")); v++) {
                const char *name = name_of(root, cli_int_at(point, "call"), v);
                size_t known = 0;

                while (name != NULL && known < count && strcmp(names[known], name) != 0)
                    known++;
                if (name != NULL && known == count && count < NAMES_MAX &&
                    (cli_value(cli, "names") == NULL || is_in_list(cli_value(cli, "names"), name)))
                    names[count++] = name;
            }
        }
    }
    return count;
}

/* A value of a point by its name. False: there is none, or it is no number. */
static bool value_at(const struct json_value *root, const struct json_value *point, const char *array, const char *name,
                     double *value)
{
    const struct json_value *values = json_input_get(point, array);

    for (size_t v = 0; v < json_input_count(values); v++) {
        const char *known = name_of(root, cli_int_at(point, "call"), v);
        char buf[40];
        const char *text = json_input_scalar(json_input_at(values, v), buf, sizeof(buf));

        if (known == NULL || strcmp(known, name) != 0)
            continue;
        *value = text == NULL ? NAN : strtod(text, NULL);
        return text != NULL;
    }
    return false;
}

/* ---- the table ---- */

static void print_rows(const struct json_value *root, const char *series, const char *kind, const char **names,
                       size_t count)
{
    const struct json_value *points = json_input_get(root, series);

    for (size_t i = 0; i < json_input_count(points); i++) {
        const struct json_value *point = json_input_at(points, i);
        double value;

        (void)printf("%10" PRId64 " %6" PRId64 " %-10s", cli_int_at(point, "step"), cli_int_at(point, "dataEpoch"),
                     kind);
        for (size_t n = 0; n < count; n++)
            if (value_at(root, point, "values", names[n], &value))
                (void)printf(" %12.6g", value);
            else
                (void)printf(" %12s", "-");
        (void)printf("\n");
    }
}

static void print_table(const struct cli *cli, const struct json_value *root, const char **names, size_t count)
{
    if (!cli->quiet) {
        (void)printf("%10s %6s %-10s", "STEP", "EPOCH", "KIND");
        for (size_t n = 0; n < count; n++)
            (void)printf(" %12.12s", cli_shown(names[n]));
        (void)printf("\n");
    }
    print_rows(root, "points", "train", names, count);
    print_rows(root, "validations", "validation", names, count);
    if (cli_int_at(root, "stride") > 1)
        cli_say(cli, "each line stands for %" PRId64 " steps; --from and --to show them one by one",
                cli_int_at(root, "stride"));
}

/* ---- drawing ---- */

static void range_grow(struct chart *c, double value)
{
    if (!isfinite(value))
        return;
    c->least = value < c->least ? value : c->least;
    c->most = value > c->most ? value : c->most;
}

static void range_of(struct chart *c)
{
    static const char *const series[] = { "points", "validations" };
    static const char *const arrays[] = { "values", "min", "max" };

    c->least = INFINITY;
    c->most = -INFINITY;
    c->first = UINT64_MAX;
    c->last = 0;
    for (unsigned s = 0; s < 2; s++) {
        const struct json_value *points = json_input_get(c->root, series[s]);

        for (size_t i = 0; i < json_input_count(points); i++) {
            const struct json_value *point = json_input_at(points, i);
            uint64_t step = (uint64_t)cli_int_at(point, "step");
            double value;

            for (unsigned a = 0; a < 3; a++)
                if (value_at(c->root, point, arrays[a], c->name, &value))
                    range_grow(c, value);
            c->first = step < c->first ? step : c->first;
            c->last = step > c->last ? step : c->last;
        }
    }
}

static unsigned x_of(const struct chart *c, uint64_t step)
{
    unsigned dots = c->width * c->cell_x;

    if (c->last == c->first)
        return 0;
    return (unsigned)((double)(step - c->first) / (double)(c->last - c->first) * (dots - 1) + 0.5);
}

/* What is infinite, or no number, stands at an edge. Halves: the range itself may be more than a number can be. */
static unsigned y_of(const struct chart *c, double value)
{
    unsigned dots = ROWS * c->cell_y;
    double part = c->most > c->least ? (value / 2 - c->least / 2) / (c->most / 2 - c->least / 2) : 0.5;

    if (!(part <= 1))
        part = 1;
    else if (part < 0)
        part = 0;
    return (unsigned)((1 - part) * (dots - 1) + 0.5);
}

static void dot(struct chart *c, unsigned x, unsigned y)
{
    /* Braille counts down the left column, then the right one; the fourth row came later. */
    static const uint8_t bits[CELL_Y][CELL_X] = { { 0x01, 0x08 }, { 0x02, 0x10 }, { 0x04, 0x20 }, { 0x40, 0x80 } };

    c->dots[y / c->cell_y][x / c->cell_x] |= c->utf8 ? bits[y % CELL_Y][x % CELL_X] : 1;
}

static void column(struct chart *c, unsigned x, unsigned from, unsigned to)
{
    for (unsigned y = from < to ? from : to; y <= (from < to ? to : from); y++)
        dot(c, x, y);
}

/* A line between two points: each column gets its part of the height. */
static void line(struct chart *c, unsigned x0, unsigned y0, unsigned x1, unsigned y1)
{
    unsigned from = y0;

    for (unsigned x = x0; x <= x1; x++) {
        unsigned to = x1 == x0 ? y1 : (unsigned)((double)y0 + ((double)y1 - (double)y0) * (x - x0) / (x1 - x0) + 0.5);

        column(c, x, from, to);
        from = to;
    }
}

static void draw_points(struct chart *c)
{
    const struct json_value *points = json_input_get(c->root, "points");
    bool any = false;
    unsigned x_last = 0, y_last = 0;

    for (size_t i = 0; i < json_input_count(points); i++) {
        const struct json_value *point = json_input_at(points, i);
        unsigned x = x_of(c, (uint64_t)cli_int_at(point, "step"));
        double value, least, most;
        unsigned y;

        if (!value_at(c->root, point, "values", c->name, &value))
            continue;
        y = y_of(c, value);
        if (any && x >= x_last)
            line(c, x_last, y_last, x, y);
        dot(c, x, y);
        if (value_at(c->root, point, "min", c->name, &least) && value_at(c->root, point, "max", c->name, &most))
            column(c, x, y_of(c, least), y_of(c, most));
        any = true;
        x_last = x;
        y_last = y;
    }
    points = json_input_get(c->root, "validations");
    for (size_t i = 0; i < json_input_count(points); i++) {
        double value;

        if (value_at(c->root, json_input_at(points, i), "values", c->name, &value))
            c->validation[y_of(c, value) / c->cell_y]
                         [x_of(c, (uint64_t)cli_int_at(json_input_at(points, i), "step")) / c->cell_x] = true;
    }
}

static void print_row(const struct chart *c, unsigned row)
{
    unsigned end = c->width;

    while (end > 0 && c->dots[row][end - 1] == 0 && !c->validation[row][end - 1])
        end--;
    for (unsigned x = 0; x < end; x++) {
        uint8_t dots = c->dots[row][x];

        if (c->validation[row][x])
            (void)printf(c->colour ? "\033[33mo\033[0m" : "o");
        else if (dots == 0)
            (void)printf(" ");
        else if (c->utf8) /* U+2800 and the dots */
            (void)printf("%s%c%c%c%s", c->colour ? "\033[36m" : "", 0xe2, 0xa0 | dots >> 6, 0x80 | (dots & 0x3f),
                         c->colour ? "\033[0m" : "");
        else
            (void)printf("*");
    }
    (void)printf("\n");
}

static void print_canvas(const struct chart *c)
{
    char last[24];

    for (unsigned row = 0; row < ROWS; row++) {
        bool labelled = row == 0 || row + 1 == ROWS;

        if (labelled)
            (void)printf("%*.4g %s", (int)LABEL_WIDTH - 2, row == 0 ? c->most : c->least, c->utf8 ? "\u2524" : "+");
        else
            (void)printf("%*s %s", (int)LABEL_WIDTH - 2, "", c->utf8 ? "\u2502" : "|");
        print_row(c, row);
    }
    (void)snprintf(last, sizeof(last), "%" PRIu64, c->last);
    (void)printf("%*s%-*" PRIu64 "%s\n", (int)LABEL_WIDTH, "",
                 (int)(c->width > strlen(last) ? c->width - strlen(last) : 1), c->first, last);
}

static void print_title(const struct chart *c)
{
    char title[200], validation[60] = "";
    const struct json_value *points = json_input_get(c->root, "points");
    double last = NAN, least = NAN, value;
    int64_t at = 0;

    for (size_t i = 0; i < json_input_count(points); i++) {
        const struct json_value *point = json_input_at(points, i);

        if (!value_at(c->root, point, "values", c->name, &last))
            continue;
        if (!value_at(c->root, point, "min", c->name, &value))
            value = last;
        if (isnan(least) || value < least) {
            least = value;
            at = cli_int_at(point, "step");
        }
    }
    points = json_input_get(c->root, "validations");
    if (json_input_count(points) > 0 &&
        value_at(c->root, json_input_at(points, json_input_count(points) - 1), "values", c->name, &value))
        (void)snprintf(validation, sizeof(validation), "; validation (o) %.4g", value);
    (void)snprintf(title, sizeof(title), "%.64s: last %.4g, least %.4g at step %" PRId64 "%s", cli_shown(c->name), last, least, at,
                   validation);
    (void)printf("%.*s\n", (int)(c->width + LABEL_WIDTH), title);
}

/* True: the locale says that the terminal shows UTF-8, or no locale is set at all. */
static bool is_utf8(void)
{
    static const char *const names[] = { "LC_ALL", "LC_CTYPE", "LANG" };

    for (unsigned i = 0; i < 3; i++) {
        const char *value = getenv(names[i]);

        if (value != NULL && value[0] != '\0')
            return strcasestr(value, "utf-8") != NULL || strcasestr(value, "utf8") != NULL;
    }
    return true;
}

static void plot(const struct json_value *root, const char **names, size_t count)
{
    static struct chart c; /* large */
    unsigned width = 80, lines = 24;
    const char *no_colour = getenv("NO_COLOR");

    cli_terminal_size(&width, &lines);
    width = width < WIDTH_MIN ? WIDTH_MIN : width;
    for (size_t i = 0; i < count; i++) {
        c = (struct chart){ .root = root, .name = names[i], .utf8 = is_utf8() };
        c.colour = isatty(STDOUT_FILENO) == 1 && (no_colour == NULL || no_colour[0] == '\0');
        c.width = width - LABEL_WIDTH < WIDTH_MAX ? width - LABEL_WIDTH : WIDTH_MAX;
        c.cell_x = c.utf8 ? CELL_X : 1;
        c.cell_y = c.utf8 ? CELL_Y : 1;
        range_of(&c);
        if (c.most < c.least)
            continue; /* no number at all */
        draw_points(&c);
        print_title(&c);
        print_canvas(&c);
    }
}

/* ---- the command ---- */

static int fetch_csv(struct cli *cli, const char *path)
{
    struct cli_call call = { .method = "GET", .path = path, .accept = "text/csv", .sink = stdout };
    struct cli_answer answer;
    int code = cli_call(cli, &call, &answer, false);

    cli_answer_free(&answer);
    return code;
}

static int show(struct cli *cli, const char *path)
{
    const char *names[NAMES_MAX];
    struct cli_answer answer;
    struct json_input *input;
    int code = cli_get(cli, path, &answer, &input);

    if (code == SHOAL_EXIT_OK) {
        const struct json_value *root = json_input_root(input);
        size_t count = names_of(cli, root, names);
        bool whole = true;

        (void)json_input_bool(root, "whole", &whole);
        if (cli_int_at(root, "steps") == 0)
            cli_say(cli, "no step is committed%s; only train() of fabric_model commits steps",
                    cli_value(cli, "from") != NULL || cli_value(cli, "to") != NULL ? " in that range" : " yet");
        else if (count == 0)
            code = cli_fail(SHOAL_EXIT_USAGE, "--names: \"%s\" names none of its metrics", cli_value(cli, "names"));
        else if (cli_flag(cli, "plot"))
            plot(root, names, count);
        else
            print_table(cli, root, names, count);
        if (!whole)
            cli_say(cli, "the newest steps are missing: no host that has them is reachable");
    }
    if (input != NULL)
        json_input_free(input);
    cli_answer_free(&answer);
    return code;
}

int cli_job_metrics(struct cli *cli)
{
    uint64_t from = 1, to = UINT64_MAX;
    bool plots = cli_flag(cli, "plot");
    bool csv = cli_flag(cli, "csv");
    unsigned width = 80, lines = 24;
    char id[256], path[512];

    if (!cli_number(cli, "from", 1, INT64_MAX, &from) || !cli_number(cli, "to", 1, INT64_MAX, &to))
        return SHOAL_EXIT_USAGE;
    if (from > to)
        return cli_fail(SHOAL_EXIT_USAGE, "--from %" PRIu64 " is beyond --to %" PRIu64, from, to);
    if (plots + csv + cli->json > 1)
        return cli_fail(SHOAL_EXIT_USAGE, "shoal job metrics takes one of --plot, --csv and --output json");
    if (csv && cli_value(cli, "names") != NULL)
        return cli_fail(SHOAL_EXIT_USAGE, "--names goes with --plot and with the table; a CSV has all columns");
    cli_terminal_size(&width, &lines);
    cli_encode(cli->words[0], id, sizeof(id));
    (void)snprintf(path, sizeof(path), "/v1/jobs/%s/metrics?from=%" PRIu64 "&to=%" PRIu64 "&points=%u", id, from, to,
                   plots && width < WIDTH_MAX ? CELL_X * width : SHOAL_METRIC_POINTS_MAX);
    if (csv)
        return fetch_csv(cli, path);
    return cli->json ? cli_print(cli, path) : show(cli, path);
}
