/* shoal top: nodes and jobs, live, in a terminal of any size.
 *
 *   GET /v1/top --> lines, each cut to the width --> ncurses (a terminal), or printed once (a pipe, a file)
 *
 * Columns go as the terminal gets narrower: what is least asked for first. q or Ctrl-C ends it. Colour where the terminal has
 * it, and NO_COLOR is not set (no-color.org). */
#include "cli_internal.h"

#include <curses.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/http/json_input.h"

#include "shoal/banned.h"

#define LINES_MAX 700u
#define LINE_BYTES 400u
#define ID_TAIL 9u /* of a job's id: an ending that mostly only one job has */

enum style { STYLE_PLAIN, STYLE_HEAD, STYLE_GOOD, STYLE_BAD, STYLE_WAIT, STYLES };

struct frame {
    unsigned width;
    size_t count;
    struct {
        char text[LINE_BYTES];
        enum style style;
    } lines[LINES_MAX];
};

struct column {
    const char *title;
    int width;     /* negative: left */
    unsigned from; /* shown on terminals of at least this width */
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

/* ---- lines ---- */

static char *line_add(struct frame *f, enum style style)
{
    if (f->count == LINES_MAX)
        f->count--; /* the last one stands for the rest */
    f->lines[f->count].style = style;
    f->lines[f->count].text[0] = '\0';
    return f->lines[f->count++].text;
}

/* Behind what the line has, as wide as the column. */
static void cell_add(const struct frame *f, char *line, const struct column *column, const char *text)
{
    size_t used = strlen(line);
    int width = abs(column->width);

    if (f->width < column->from || used + (size_t)width + 2 > LINE_BYTES)
        return;
    if (column->width < 0)
        (void)snprintf(line + used, LINE_BYTES - used, "%-*.*s ", width, width, text);
    else
        (void)snprintf(line + used, LINE_BYTES - used, "%*.*s ", width, width, text);
}

static void line_end(const struct frame *f, char *line)
{
    size_t len = strlen(line);

    if (len > f->width)
        len = f->width;
    while (len > 0 && (line[len - 1] == ' ' || ((unsigned char)line[len - 1] & 0xc0) == 0x80))
        len--;
    line[len] = '\0';
}

static const char *text_of(const struct json_value *object, const char *key, char buf[40])
{
    const struct json_value *value = json_input_get(object, key);
    const char *text = value == NULL ? NULL : json_input_scalar(value, buf, 40);

    return text == NULL ? "" : cli_shown(text);
}

static void add_nodes(struct frame *f, const struct json_value *nodes)
{
    static const struct column columns[] = { { "NODE", -14, 0 },     { "STATE", -8, 0 }, { "SLOTS", 5, 0 },
                                             { "FREE", 4, 0 },       { "LOAD", 6, 48 },  { "LEADS", 5, 56 },
                                             { "ADDRESS", -21, 80 }, { "ID", -12, 94 } };
    static const char *const keys[] = { "name", "state", "slots", "slotsFree", "load", "jobsLed", "address", "id" };
    char *line = line_add(f, STYLE_HEAD);

    for (size_t c = 0; c < 8; c++)
        cell_add(f, line, &columns[c], columns[c].title);
    line_end(f, line);
    for (size_t i = 0; i < json_input_count(nodes); i++) {
        const struct json_value *node = json_input_at(nodes, i);
        bool alive = strcmp(cli_text_at(node, "state"), "alive") == 0;
        char buf[40];

        line = line_add(f, alive ? STYLE_PLAIN : STYLE_BAD);
        for (size_t c = 0; c < 8; c++)
            cell_add(f, line, &columns[c], text_of(node, keys[c], buf));
        line_end(f, line);
    }
}

/* An elastic job that has workers and no step yet is starting: libraries, bundle, processes. */
static bool is_starting(const struct json_value *job)
{
    bool elastic = false;

    return json_input_bool(job, "elastic", &elastic) && elastic && cli_int_at(job, "steps") == 0 &&
           cli_text_at(job, "pending")[0] == '\0';
}

static enum style style_of(const struct json_value *job)
{
    const char *state = cli_text_at(job, "state");

    if (strcmp(state, "RECOVERING") == 0 || strcmp(state, "UNKNOWN") == 0)
        return STYLE_BAD;
    if (strcmp(state, "RUNNING") == 0)
        return is_starting(job) ? STYLE_WAIT : STYLE_GOOD;
    return STYLE_WAIT;
}

static const struct column job_columns[] = { { "JOB", -22, 0 },      { "STATE", -12, 0 },  { "RANKS", 7, 0 },
                                             { "STEPS", 9, 0 },      { "STEPS/S", 7, 64 }, { "LOSS", 9, 74 },
                                             { "ACC", 7, 90 },       { "EPOCH", 6, 98 },   { "PAUSE MS", 8, 108 },
                                             { "OVER", -10, 120 },   { "LEADER", -12, 134 },
                                             { "", -200, 80 } };
#define JOB_COLUMNS (sizeof(job_columns) / sizeof(job_columns[0]))

static void add_job(struct frame *f, const struct json_value *job)
{
    const bool starts = is_starting(job);
    char cells[JOB_COLUMNS][64];
    const char *id = cli_text_at(job, "id");
    const char *note = cli_text_at(job, cli_text_at(job, "pending")[0] != '\0' ? "pending" : "detail");
    char *line = line_add(f, style_of(job));
    double number = 0, accuracy = 0;

    memset(cells, 0, sizeof(cells));
    (void)snprintf(cells[0], 64, "%.40s", f->width < 60 && strlen(id) > ID_TAIL ? id + strlen(id) - ID_TAIL : id);
    (void)snprintf(cells[1], 64, "%.21s", cli_text_at(job, "state"));
    cli_workers_text(job, cells[2], 64);
    (void)snprintf(cells[3], 64, starts ? "starting" : "%lld", (long long)cli_int_at(job, "steps"));
    if (!starts && json_input_number(job, "stepsPerSecond", &number))
        (void)snprintf(cells[4], 64, "%.1f", number);
    if (json_input_number(job, "loss", &number) && json_input_number(job, "accuracy", &accuracy)) {
        (void)snprintf(cells[5], 64, "%.4g", number);
        (void)snprintf(cells[6], 64, "%.4f", accuracy);
    }
    (void)snprintf(cells[7], 64, "%.12s", cli_text_at(job, "epoch"));
    (void)snprintf(cells[8], 64, "%.1f", (double)cli_int_at(job, "joinPauseUs") / 1000);
    (void)snprintf(cells[9], 64, "%.16s", cli_text_at(job, "transport"));
    (void)snprintf(cells[10], 64, "%.40s", cli_text_at(job, "leader"));
    for (size_t c = 0; c + 1 < JOB_COLUMNS; c++) {
        struct column column = job_columns[c];

        if (c == 0 && f->width < 60)
            column.width = -(int)ID_TAIL;
        cell_add(f, line, &column, cells[c]);
    }
    cell_add(f, line, &job_columns[JOB_COLUMNS - 1], note);
    line_end(f, line);
}

static void add_jobs(struct frame *f, const struct json_value *jobs, bool more)
{
    char *line = line_add(f, STYLE_HEAD);

    for (size_t c = 0; c + 1 < JOB_COLUMNS; c++) {
        struct column column = job_columns[c];

        if (c == 0 && f->width < 60)
            column.width = -(int)ID_TAIL;
        cell_add(f, line, &column, column.title);
    }
    line_end(f, line);
    for (size_t i = 0; i < json_input_count(jobs); i++)
        add_job(f, json_input_at(jobs, i));
    if (json_input_count(jobs) == 0)
        (void)snprintf(line_add(f, STYLE_PLAIN), LINE_BYTES, "no job waits or runs");
    if (more)
        (void)snprintf(line_add(f, STYLE_PLAIN), LINE_BYTES, "... and more: shoal job list --active");
    line_end(f, f->lines[f->count - 1].text);
}

static void frame_make(struct frame *f, const struct json_value *top, unsigned width)
{
    bool writable = false, more = false;
    char *line;

    f->width = width < LINE_BYTES - 1 ? width : LINE_BYTES - 1;
    f->count = 0;
    line = line_add(f, STYLE_PLAIN);
    (void)json_input_bool(top, "meshWritable", &writable);
    (void)json_input_bool(top, "more", &more);
    (void)snprintf(line, LINE_BYTES, "mesh %.60s, seen from %.60s: %d of %d nodes alive", cli_text_at(top, "mesh"),
                   cli_text_at(top, "node"), (int)cli_int_at(top, "membersAlive"),
                   (int)cli_int_at(top, "membersKnown"));
    line_end(f, line);
    if (!writable) {
        line = line_add(f, STYLE_BAD);
        (void)snprintf(line, LINE_BYTES, "mesh group without a leader (shoal mesh recover says what is left)");
        line_end(f, line);
    }
    (void)line_add(f, STYLE_PLAIN);
    add_nodes(f, json_input_get(top, "nodes"));
    (void)line_add(f, STYLE_PLAIN);
    add_jobs(f, json_input_get(top, "jobs"), more);
}

/* ---- showing ---- */

static void show_terminal(const struct frame *f, bool colour)
{
    int rows = getmaxy(stdscr);

    (void)erase();
    for (size_t i = 0; i < f->count && (int)i < rows; i++) {
        attr_t look = f->lines[i].style == STYLE_HEAD ? A_BOLD : A_NORMAL;

        if (colour && f->lines[i].style >= STYLE_GOOD)
            look |= (attr_t)COLOR_PAIR(f->lines[i].style);
        (void)attrset((int)look);
        (void)mvaddstr((int)i, 0, f->lines[i].text);
    }
    (void)attrset(A_NORMAL);
    (void)refresh();
}

static void show_plain(const struct frame *f)
{
    for (size_t i = 0; i < f->count; i++)
        (void)printf("%s\n", f->lines[i].text);
    (void)fflush(stdout);
}

static int look(struct cli *cli, bool terminal, bool colour)
{
    static struct frame frame; /* large */
    struct cli_answer answer;
    struct json_input *input;
    unsigned width = 200, lines = 24;
    int code = cli_get(cli, "/v1/top?active=true&limit=200&sort=-state", &answer, &input);

    cli_terminal_size(&width, &lines);
    if (terminal)
        width = (unsigned)getmaxx(stdscr);
    if (code == SHOAL_EXIT_OK && cli->json)
        cli_print_json(cli_answer_text(&answer));
    else if (code == SHOAL_EXIT_OK) {
        frame_make(&frame, json_input_root(input), width);
        if (terminal)
            show_terminal(&frame, colour);
        else
            show_plain(&frame);
    }
    (void)fflush(stdout);
    if (input != NULL)
        json_input_free(input);
    cli_answer_free(&answer);
    return code;
}

/* False: the terminal is none that ncurses knows, or one whose cursor cannot be moved. */
static bool terminal_begin(bool *colour)
{
    const char *no_colour = getenv("NO_COLOR");
    SCREEN *screen = newterm(NULL, stdout, stdin);
    const char *move = screen == NULL ? NULL : tigetstr("cup");

    if (move == NULL || move == (const char *)-1) {
        if (screen != NULL)
            (void)endwin();
        return false;
    }
    (void)cbreak();
    (void)noecho();
    (void)curs_set(0);
    (void)keypad(stdscr, TRUE);
    *colour = (no_colour == NULL || no_colour[0] == '\0') && has_colors() && start_color() == OK;
    if (*colour) {
        (void)use_default_colors();
        (void)init_pair(STYLE_GOOD, COLOR_GREEN, -1);
        (void)init_pair(STYLE_BAD, COLOR_RED, -1);
        (void)init_pair(STYLE_WAIT, COLOR_YELLOW, -1);
    }
    return true;
}

/* Waits for the next look, or for a key; a terminal that was made larger or smaller is drawn at once. */
static bool wants_out(uint64_t interval_s)
{
    int key;

    timeout((int)interval_s * 1000);
    key = getch();
    return key == 'q' || key == 'Q' || interrupted != 0;
}

int cli_top(struct cli *cli)
{
    bool terminal = isatty(STDOUT_FILENO) == 1 && isatty(STDIN_FILENO) == 1 && !cli->json;
    bool colour = false;
    uint64_t interval_s = 1;
    uint64_t count = terminal ? 0 : 1;
    int code = SHOAL_EXIT_OK;
    struct sigaction action = { .sa_handler = on_interrupt };

    if (!cli_number(cli, "interval", 1, 3600, &interval_s) || !cli_number(cli, "count", 0, UINT32_MAX, &count))
        return SHOAL_EXIT_USAGE;
    (void)setlocale(LC_CTYPE, "");
    (void)sigaction(SIGINT, &action, NULL);
    if (terminal && !terminal_begin(&colour)) {
        if (count == 0)
            return cli_fail(SHOAL_EXIT_USAGE,
                            "shoal top cannot draw on this terminal (TERM is \"%.60s\"): `shoal top --count 1` prints once; "
                            "or set TERM to what the terminal is, such as xterm",
                            getenv("TERM") == NULL ? "" : getenv("TERM"));
        terminal = false;
    }
    for (uint64_t i = 0; (count == 0 || i < count) && interrupted == 0; i++) {
        bool last = count > 0 && i + 1 == count;

        code = look(cli, terminal, colour);
        if (code == SHOAL_EXIT_DENIED || code == SHOAL_EXIT_USAGE || (code != SHOAL_EXIT_OK && !terminal))
            break;
        if (terminal ? wants_out(interval_s) : (!last && (cli_pause_ms((long)interval_s * 1000), false)))
            break;
    }
    if (terminal)
        (void)endwin();
    return code;
}
