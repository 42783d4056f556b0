/* shoal job list: page by page, the newest first, as wide as the terminal.
 *
 * On a terminal one page is shown, and what to type for the next. Into a pipe or a file all pages go, one after the
 * other, so that nobody counts or searches in a part without knowing. What the mesh says of the list itself (nodes that
 * do not answer) goes to standard error. */
#include "cli_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "api/http/json_input.h"
#include "shoal/json_text.h"

#include "shoal/banned.h"

/* A page stays below what one JSON text may be. */
#define FETCH_ROWS 400u
#define TERMINAL_LINES_MIN 10u
#define PATH_BYTES 2048u

struct column {
    const char *title, *key;
    unsigned width;
    unsigned from; /* shown on terminals of at least this width */
};

static const struct column columns[] = {
    { "ID", "id", 22, 0 },          { "STATE", "state", 21, 0 },
    { "WORKERS", NULL, 10, 60 },    { "CREATED", "created", 20, 90 },
    { "USER", "creator", 10, 102 }, { "EXIT", "exitCode", 4, 108 },
    { "STEPS", "steps", 8, 130 },   { "FRAMEWORK", "framework", 11, 120 },
    { "NAME", "name", 12, 80 },
};
#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

struct listing {
    struct cli *cli;
    char query[PATH_BYTES]; /* without limit and page */
    char next[300];         /* token; "": the end */
    uint64_t left;          /* rows to show yet */
    uint64_t shown;
    unsigned width;
    bool begun; /* the head is out */
    bool incomplete;
    char silent[512];
    uint64_t unsettled;
};

/* ---- the question ---- */

static bool add(struct listing *l, const char *key, const char *value)
{
    size_t used = strlen(l->query);
    char encoded[600];

    if (value == NULL)
        return true;
    cli_encode(value, encoded, sizeof(encoded));
    if (used + strlen(key) + strlen(encoded) + 3 > sizeof(l->query))
        return false;
    (void)snprintf(l->query + used, sizeof(l->query) - used, "&%s=%s", key, encoded);
    return true;
}

/* "90s", "30m", "2h", "3d", "1w" ago as milliseconds since 1970; any other text is the node's to read. */
static const char *time_text(const char *text, char buf[32])
{
    static const struct {
        char unit;
        uint64_t seconds;
    } units[] = { { 's', 1 }, { 'm', 60 }, { 'h', 3600 }, { 'd', 86400 }, { 'w', 604800 } };
    struct timespec now;
    char *end = NULL;
    uint64_t count = text == NULL ? 0 : strtoull(text, &end, 10);

    if (text == NULL || end == text || end[0] == '\0' || end[1] != '\0')
        return text;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (units[i].unit != end[0])
            continue;
        (void)clock_gettime(CLOCK_REALTIME, &now);
        (void)snprintf(
            buf, 32, "%" PRIu64,
            ((uint64_t)now.tv_sec > count * units[i].seconds ? (uint64_t)now.tv_sec - count * units[i].seconds : 0) *
                1000);
        return buf;
    }
    return text;
}

static bool make_query(struct listing *l)
{
    struct cli *cli = l->cli;
    char since[32], until[32];

    return add(l, "active", cli_flag(cli, "active") ? "true" : NULL) && add(l, "state", cli_value(cli, "state")) &&
           add(l, "user", cli_value(cli, "owner")) && add(l, "name", cli_value(cli, "name")) &&
           add(l, "since", time_text(cli_value(cli, "since"), since)) &&
           add(l, "until", time_text(cli_value(cli, "until"), until)) && add(l, "sort", cli_value(cli, "sort"));
}

/* ---- rows ---- */

static bool is_shown(const struct listing *l, const struct column *column) { return l->width >= column->from; }

/* Behind the name of an array, or of a service. */
static void add_array(const struct json_value *job, char *text, size_t cap)
{
    const struct json_value *array = json_input_get(job, "array");
    size_t used = strlen(text);

    if (array == NULL)
        return;
    if (json_input_text(job, "service") != NULL) { /* its replicas have no end, and it may have up to as many */
        (void)snprintf(text + used, cap - used, "  SERVICE %" PRId64 " running", cli_int_at(array, "running"));
        return;
    }
    (void)snprintf(text + used, cap - used, "  ARRAY %" PRId64 "/%" PRId64 " done", cli_int_at(array, "done"),
                   cli_int_at(array, "tasks"));
    used = strlen(text);
    if (cli_int_at(array, "failed") > 0)
        (void)snprintf(text + used, cap - used, ", %" PRId64 " failed", cli_int_at(array, "failed"));
}

void cli_workers_text(const struct json_value *job, char *text, size_t cap)
{
    const struct json_value *array = json_input_get(job, "array");
    int64_t workers = cli_int_at(job, "workers");

    if (json_input_text(job, "service") != NULL) /* it may be scaled */
        (void)snprintf(text, cap, "%" PRId64, workers);
    else
        (void)snprintf(text, cap, "%" PRId64 "/%" PRId64, workers,
                       array == NULL ? cli_int_at(job, "workersMax") : cli_int_at(array, "tasks"));
}

static void cell_text(const struct column *column, const struct json_value *job, char *text, size_t cap)
{
    char buf[40];
    const struct json_value *value = column->key == NULL ? NULL : json_input_get(job, column->key);
    const char *scalar = value == NULL ? NULL : json_input_scalar(value, buf, sizeof(buf));

    if (column->key == NULL)
        cli_workers_text(job, text, cap);
    else
        (void)snprintf(text, cap, "%s", scalar == NULL ? "" : cli_shown(scalar));
    if (column->key != NULL && strcmp(column->key, "name") == 0)
        add_array(job, text, cap);
}

/* The name comes last and takes what is left of the line. */
static unsigned room_for_name(const struct listing *l)
{
    unsigned used = 0;

    for (size_t i = 0; i + 1 < COLUMNS; i++)
        used += is_shown(l, &columns[i]) ? columns[i].width + 1 : 0;
    return l->width > used + columns[COLUMNS - 1].width ? l->width - used : columns[COLUMNS - 1].width;
}

static void print_row(const struct listing *l, const struct json_value *job)
{
    for (size_t i = 0; i < COLUMNS; i++) {
        const struct column *column = &columns[i];
        bool last = i + 1 == COLUMNS;
        char text[200];

        if (!is_shown(l, column))
            continue;
        if (job == NULL)
            (void)snprintf(text, sizeof(text), "%s", column->title);
        else
            cell_text(column, job, text, sizeof(text));
        if (last)
            (void)printf("%.*s", (int)room_for_name(l), text);
        else
            (void)printf("%-*.*s ", (int)column->width, (int)column->width, text);
    }
    (void)printf("\n");
}

static void print_json_row(const struct listing *l, const struct json_value *job)
{
    char *dump = json_input_dump(job);

    (void)fputs(l->shown == 0 ? "" : ",", stdout);
    cli_put_json(stdout, dump == NULL ? "null" : dump);
    free(dump);
}

static void begin(struct listing *l)
{
    if (l->begun)
        return;
    l->begun = true;
    if (l->cli->json)
        (void)printf("{\"jobs\":[");
    else if (!l->cli->quiet)
        print_row(l, NULL);
}

static void take_page(struct listing *l, const struct json_value *page)
{
    const struct json_value *jobs = json_input_get(page, "jobs");
    const struct json_value *missing = json_input_get(page, "missing");
    bool complete = false;

    begin(l); /* now that the node has taken the question */

    for (size_t i = 0; i < json_input_count(jobs) && l->left > 0; i++) {
        const struct json_value *job = json_input_at(jobs, i);

        if (l->cli->json)
            print_json_row(l, job);
        else
            print_row(l, job);
        l->shown++;
        l->left--;
    }
    (void)fflush(stdout);
    (void)json_input_bool(page, "complete", &complete);
    l->incomplete = l->incomplete || !complete;
    l->unsettled += (uint64_t)cli_int_at(page, "unsettled");
    l->silent[0] = '\0';
    for (size_t i = 0; i < json_input_count(missing); i++) {
        size_t used = strlen(l->silent);
        char buf[80];
        const char *name = json_input_scalar(json_input_at(missing, i), buf, sizeof(buf));

        (void)snprintf(l->silent + used, sizeof(l->silent) - used, "%s%s", used == 0 ? "" : ", ",
                       name == NULL ? "?" : cli_shown(name));
    }
    (void)snprintf(l->next, sizeof(l->next), "%s", cli_text_at(page, "next"));
}

static int fetch(struct listing *l)
{
    char path[PATH_BYTES + 600], page[sizeof(l->next)];
    struct cli_call call = { .method = "GET", .path = path };
    struct cli_answer answer;
    struct json_input *input;
    int code;

    (void)snprintf(path, sizeof(path), "/v1/jobs?limit=%" PRIu64 "%s%s%s", l->left < FETCH_ROWS ? l->left : FETCH_ROWS,
                   l->query, l->next[0] == '\0' ? "" : "&page=", l->next);
    memcpy(page, l->next, sizeof(page));
    code = cli_call(l->cli, &call, &answer, false);
    if (code == SHOAL_EXIT_OK)
        code = cli_parse(&answer, &input);
    if (code == SHOAL_EXIT_OK) {
        take_page(l, json_input_root(input));
        json_input_free(input);
        if (l->next[0] != '\0' && strcmp(l->next, page) == 0)
            code = cli_leads_nowhere(&answer, "with the same page again");
    }
    cli_answer_free(&answer);
    return code;
}

/* ---- the list ---- */

static void json_end_line(const struct listing *l)
{
    struct shoal_buf buf = { 0 };
    const char *at = l->silent;
    bool whole = true;

    while (at[0] != '\0' && whole) {
        size_t len = strcspn(at, ",");

        whole = (buf.len == 0 || shoal_buf_append(&buf, ",", 1) == SHOAL_OK) &&
                shoal_json_quote(shoal_view_of((const uint8_t *)at, len), &buf) == SHOAL_OK;
        at += len + (at[len] == ',' ? 2 : 0);
    }
    (void)printf("],\"complete\":%s,\"missing\":[%.*s],\"unsettled\":%" PRIu64 ",\"next\":\"%s\"}\n",
                 l->incomplete ? "false" : "true", (int)buf.len, buf.bytes == NULL ? "" : (const char *)buf.bytes,
                 l->unsettled, l->next);
    shoal_buf_deinit(&buf);
}

static void say_hints(const struct listing *l, bool paged)
{
    if (l->incomplete && l->silent[0] != '\0')
        (void)fprintf(stderr, "shoal: no answer from %s: jobs may be missing, or shown as they were before\n",
                      l->silent);
    else if (l->unsettled > 0)
        (void)fprintf(stderr, "shoal: %" PRIu64 " jobs have just lost their leader: newer states are possible\n",
                      l->unsettled);
    else if (l->incomplete)
        (void)fprintf(stderr, "shoal: jobs may be missing, or shown as they were before; ask again in a moment\n");
    else if (l->silent[0] != '\0')
        (void)fprintf(stderr, "shoal: no answer from %s; nothing is missing for that\n", l->silent);
    if (paged && l->next[0] != '\0' && !l->cli->json)
        (void)fprintf(stderr, "more: --page %s, or --all\n", l->next);
}

void cli_terminal_size(unsigned *width, unsigned *lines)
{
    struct winsize size = { .ws_col = 0 };
    const char *wide = getenv("COLUMNS");

    if (isatty(STDOUT_FILENO) == 1 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
        *width = size.ws_col;
        *lines = size.ws_row;
    } else if (wide != NULL && strtoul(wide, NULL, 10) > 0) {
        *width = (unsigned)strtoul(wide, NULL, 10);
    }
}

int cli_job_list(struct cli *cli)
{
    struct listing l = { .cli = cli, .width = 1000 };
    bool paged = isatty(STDOUT_FILENO) == 1 && !cli->json && !cli_flag(cli, "all");
    const char *page = cli_value(cli, "page");
    unsigned lines = 24;
    uint64_t limit = UINT64_MAX;
    int code;

    cli_terminal_size(&l.width, &lines);
    if (paged)
        limit = lines > TERMINAL_LINES_MIN + 4 ? lines - 4 : TERMINAL_LINES_MIN;
    if (cli_value(cli, "page") != NULL && !paged && !cli_flag(cli, "all"))
        limit = FETCH_ROWS;
    if (!cli_number(cli, "limit", 1, UINT32_MAX, &limit))
        return SHOAL_EXIT_USAGE;
    if (!make_query(&l) || (page != NULL && strlen(page) >= sizeof(l.next)))
        return cli_fail(SHOAL_EXIT_USAGE, "shoal job list: the filter or the page token is too long");
    (void)snprintf(l.next, sizeof(l.next), "%s", page == NULL ? "" : page);
    l.left = limit;
    do {
        code = fetch(&l);
    } while (code == SHOAL_EXIT_OK && l.left > 0 && l.next[0] != '\0');
    if (cli->json && code == SHOAL_EXIT_OK)
        json_end_line(&l);
    if (code == SHOAL_EXIT_OK)
        say_hints(&l, limit != UINT64_MAX);
    return code;
}
