/* shoal job logs, and job run --follow: one log, or those of all workers side by side.
 *
 * Each source has a cursor of its own. A single one waits at the node for more; several are asked in turn. Which workers
 * there are is not asked: an engine that has started has printed, so the next one is looked for once this one has. */
#include "cli_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/array.h"
#include "shoal/limits.h"

#include "api/http/json_input.h"
#include "api/http/json_writer.h"

#include "shoal/banned.h"

#define SOURCES_MAX (1 + SHOAL_JOB_WORKERS_MAX) /* the driver and its workers */
#define FAILURES_MAX 20u
#define TRIM_BYTES ((size_t)4 << 20)
/* How long a node waits for more; until something has come, less, since whoever looks does not know yet whether the job runs. */
#define WAIT_MS "10000"
#define FIRST_WAIT_MS "2000"

struct source {
    const char *which;
    uint64_t task;
    char label[24];
    uint64_t cursor;
    struct shoal_buf line; /* has not ended yet; of labelled lines only */
    bool spoke;
    bool ended;
};

struct logs {
    struct cli *cli;
    char id[256];
    bool go_on;
    bool by_line;        /* each line says whose it is */
    bool all;            /* workers are added as they appear */
    uint64_t tail_lines; /* UINT64_MAX: everything */
    bool tailing;        /* what is there already is kept back, up to its last lines */
    struct cli_log_text text;
    struct shoal_buf tail;
    struct source sources[SOURCES_MAX];
    unsigned count;
    unsigned failures;
    bool any; /* something came */
    char waits[400]; /* what was said of the job's waiting */
};

static void add_source(struct logs *logs, const char *which, uint64_t task, const char *label)
{
    struct source *source = &logs->sources[logs->count++];

    *source = (struct source){ .which = which, .task = task };
    (void)snprintf(source->label, sizeof(source->label), "%s", label);
}

/* Workers are tasks 1 and up: rank N is task N + 1. */
static void add_rank(struct logs *logs, uint64_t rank)
{
    char label[24];

    (void)snprintf(label, sizeof(label), "rank %" PRIu64, rank);
    add_source(logs, "task-outerr", rank + 1, label);
}

/* ---- what is shown ---- */

/* The offset at which the last `lines` lines begin. */
static size_t last_lines(const struct shoal_buf *buf, uint64_t lines)
{
    size_t at = buf->len;

    if (lines == 0)
        return at;
    if (at > 0 && buf->bytes[at - 1] == '\n')
        at--;
    while (at > 0 && (buf->bytes[at - 1] != '\n' || --lines > 0))
        at--;
    return at;
}

static void put(struct logs *logs, const void *bytes, size_t len)
{
    size_t begin;

    if (!logs->tailing) {
        cli_put_log(&logs->text, bytes, len);
        return;
    }
    if (shoal_buf_append(&logs->tail, bytes, len) != SHOAL_OK || logs->tail.len < TRIM_BYTES)
        return;
    begin = last_lines(&logs->tail, logs->tail_lines);
    memmove(logs->tail.bytes, logs->tail.bytes + begin, logs->tail.len - begin);
    logs->tail.len -= begin;
}

static void put_line(struct logs *logs, struct source *source)
{
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);
    size_t len = source->line.len;

    if (len > 0 && source->line.bytes[len - 1] == '\n')
        len--;
    if (logs->cli->json) {
        json_object_begin(&w, NULL);
        json_text(&w, "log", source->label);
        json_text_view(&w, "line", shoal_view_of(source->line.bytes, len));
        json_end(&w);
    } else if (shoal_buf_append(&buf, source->label, strlen(source->label)) != SHOAL_OK ||
               shoal_buf_append(&buf, " | ", 3) != SHOAL_OK ||
               shoal_buf_append(&buf, source->line.bytes, len) != SHOAL_OK) {
        buf.len = 0;
    }
    if (shoal_buf_append(&buf, "\n", 1) == SHOAL_OK)
        put(logs, buf.bytes, buf.len);
    shoal_buf_deinit(&buf);
    source->line.len = 0;
}

static void show(struct logs *logs, struct source *source, struct shoal_view bytes)
{
    if (!logs->by_line) {
        put(logs, bytes.bytes, bytes.len);
        return;
    }
    while (bytes.len > 0) {
        const uint8_t *end = memchr(bytes.bytes, '\n', bytes.len);
        size_t len = end == NULL ? bytes.len : (size_t)(end - bytes.bytes) + 1;

        if (shoal_buf_append(&source->line, bytes.bytes, len) != SHOAL_OK)
            return;
        if (end != NULL)
            put_line(logs, source);
        bytes = shoal_view_of(bytes.bytes + len, bytes.len - len);
    }
}

/* Everything that was there before has been shown to its end. */
static void show_tail(struct logs *logs)
{
    size_t begin = last_lines(&logs->tail, logs->tail_lines);

    logs->tailing = false;
    if (logs->tail.len > begin)
        put(logs, logs->tail.bytes + begin, logs->tail.len - begin);
    shoal_buf_deinit(&logs->tail);
    logs->tail = (struct shoal_buf){ 0 };
}

/* ---- what is asked ---- */

/* Where to read on in a log that has not ended. What came moves the cursor on: else the same piece would come for ever. */
static int take_cursor(struct source *source, const struct cli_answer *answer)
{
    char *end = NULL;
    uint64_t next = strtoull(answer->log_next, &end, 10);

    if (answer->log_next[0] < '0' || answer->log_next[0] > '9' || *end != '\0')
        return cli_leads_nowhere(answer, "without a cursor");
    if (next < source->cursor || (next == source->cursor && answer->body.len > 0))
        return cli_leads_nowhere(answer, "with a cursor that stands still");
    source->cursor = next;
    return SHOAL_EXIT_OK;
}

/* One piece of one log; `*came`: there was something. */
static int ask(struct logs *logs, struct source *source, bool *came)
{
    bool waits = logs->go_on && logs->count == 1 && !logs->tailing;
    bool known = source->cursor > 0 || logs->failures > 0;
    struct cli_answer answer;
    char path[700], task[32] = "";
    struct cli_call call = { .method = "GET", .path = path, .accept = "*/*", .timeout_s = 60 };
    int code;

    if (source->task != UINT64_MAX)
        (void)snprintf(task, sizeof(task), "&task=%" PRIu64, source->task);
    (void)snprintf(path, sizeof(path), "/v1/jobs/%s/log?which=%s%s&cursor=%" PRIu64 "&wait_ms=%s", logs->id, source->which,
                   task, source->cursor, !waits ? "0" : logs->any ? WAIT_MS : FIRST_WAIT_MS);
    code = cli_call(logs->cli, &call, &answer, logs->failures < FAILURES_MAX && logs->go_on && known);
    if (code == SHOAL_EXIT_OK) {
        *came = *came || answer.body.len > 0;
        logs->any = logs->any || answer.body.len > 0;
        source->spoke = source->spoke || answer.body.len > 0;
        source->ended = answer.log_ended || (answer.body.len == 0 && !logs->go_on);
        show(logs, source, shoal_buf_view(&answer.body));
        if (source->ended && source->line.len > 0)
            put_line(logs, source);
        if (!source->ended)
            code = take_cursor(source, &answer);
    }
    cli_answer_free(&answer);
    return code;
}

/* Each that has not ended, once. */
static int ask_all(struct logs *logs, bool *came, bool *all_ended)
{
    *came = false;
    *all_ended = true;
    for (unsigned i = 0; i < logs->count; i++) {
        struct source *source = &logs->sources[i];
        int code = source->ended ? SHOAL_EXIT_OK : ask(logs, source, came);

        if (code != SHOAL_EXIT_OK)
            return code;
        if (logs->all && i + 1 == logs->count && source->spoke && logs->count < SOURCES_MAX)
            add_rank(logs, logs->count - 1);
        *all_ended = *all_ended && source->ended;
    }
    (void)fflush(stdout);
    return SHOAL_EXIT_OK;
}

static bool try_again(struct logs *logs, int code)
{
    /* Another node may be elected, or this one come back. */
    return (code == SHOAL_EXIT_UNREACHABLE || code == SHOAL_EXIT_TIMEOUT) && logs->go_on &&
           logs->sources[0].cursor > 0 && logs->failures++ < FAILURES_MAX;
}

/* Nothing is printed yet: where the job waits, its reason is said, and again when it is another one. */
static void say_why_it_waits(struct logs *logs)
{
    struct json_input *input = NULL;
    const struct json_value *job;
    struct cli_answer answer;
    char path[400], line[sizeof(logs->waits)];

    (void)snprintf(path, sizeof(path), "/v1/jobs/%s", logs->id);
    if (cli_get(logs->cli, path, &answer, &input) != SHOAL_EXIT_OK)
        return;
    job = json_input_root(input);
    (void)snprintf(line, sizeof(line), "%.30s: %.340s", cli_text_at(job, "state"), cli_text_at(job, "detail"));
    if (strncmp(line, "PENDING", 7) == 0 && cli_text_at(job, "detail")[0] != '\0' && strcmp(line, logs->waits) != 0) {
        cli_say(logs->cli, "%s %s", cli_text_at(job, "id"), line);
        memcpy(logs->waits, line, sizeof(line));
    }
    json_input_free(input);
    cli_answer_free(&answer);
}

static int show_logs(struct logs *logs)
{
    struct timespec start = cli_monotonic();

    while (true) {
        bool came, all_ended;
        int code = ask_all(logs, &came, &all_ended);

        if (try_again(logs, code)) {
            cli_pause_ms(500);
            continue;
        }
        if (code != SHOAL_EXIT_OK)
            return code;
        logs->failures = 0;
        if (logs->tailing && (!came || all_ended))
            show_tail(logs);
        if (!all_ended && !logs->any && logs->go_on)
            say_why_it_waits(logs);
        if (all_ended)
            return SHOAL_EXIT_OK; /* what could not be written is said at the end of the program */
        if (!cli_time_is_left(logs->cli, start))
            return cli_fail(SHOAL_EXIT_TIMEOUT, "the log goes on; --timeout has passed");
        if (!came) /* several are not waited for, and a node that does not wait must not be asked in a tight loop */
            cli_pause_ms(logs->count > 1 ? 300 : 100);
    }
}

static void logs_free(struct logs *logs)
{
    for (unsigned i = 0; i < logs->count; i++)
        shoal_buf_deinit(&logs->sources[i].line);
    shoal_buf_deinit(&logs->tail);
}

int cli_follow(struct cli *cli, const char *id)
{
    static struct logs logs; /* large, and there is one */
    int code;

    logs = (struct logs){ .cli = cli, .go_on = true, .tail_lines = UINT64_MAX, .by_line = cli->json };
    cli_encode(id, logs.id, sizeof(logs.id));
    add_source(&logs, "outerr", UINT64_MAX, "outerr");
    code = show_logs(&logs);
    logs_free(&logs);
    return code;
}

/* The logs that the options name. */
static int find_sources(struct cli *cli, struct logs *logs)
{
    const char *which = cli_value(cli, "which");
    const char *rank = cli_value(cli, "rank");
    uint64_t task = UINT64_MAX, number = 0;

    if (!cli_number(cli, "task", 0, SHOAL_ARRAY_INDEX_MAX, &task))
        return SHOAL_EXIT_USAGE;
    if (rank != NULL && (which != NULL || task != UINT64_MAX))
        return cli_fail(SHOAL_EXIT_USAGE, "--rank shows all that a worker printed; leave out --which and --task");
    if (rank == NULL) {
        add_source(logs, which == NULL ? "outerr" : which, task, which == NULL ? "outerr" : which);
        return SHOAL_EXIT_OK;
    }
    if (strcmp(rank, "all") == 0) {
        logs->all = logs->by_line = true;
        add_source(logs, "task-outerr", 0, "driver");
        add_rank(logs, 0);
        return SHOAL_EXIT_OK;
    }
    if (!cli_number(cli, "rank", 0, SHOAL_JOB_WORKERS_MAX - 1, &number))
        return SHOAL_EXIT_USAGE;
    add_rank(logs, number);
    return SHOAL_EXIT_OK;
}

/* Nothing was printed by the one that was named: is there such a one at all? */
static int check_named(struct cli *cli, const struct logs *logs)
{
    uint64_t task = logs->sources[0].task;
    bool by_rank = cli_value(cli, "rank") != NULL;
    struct json_input *input = NULL;
    struct cli_answer answer;
    char path[400];
    int code;

    (void)snprintf(path, sizeof(path), "/v1/jobs/%s", logs->id);
    code = cli_get(cli, path, &answer, &input);
    if (code == SHOAL_EXIT_OK && json_input_get(json_input_root(input), "array") != NULL) {
        json_input_free(input);
        cli_answer_free(&answer);
        if (task == 0 || by_rank)
            return by_rank ? cli_fail(SHOAL_EXIT_NOT_FOUND, "an array has tasks, not ranks: --task N") : SHOAL_EXIT_OK;
        (void)snprintf(path, sizeof(path), "/v1/jobs/%s/tasks?limit=1&after=%" PRIu64, logs->id, task - 1);
        code = cli_get(cli, path, &answer, &input);
        if (code == SHOAL_EXIT_OK &&
            (uint64_t)cli_int_at(json_input_at(json_input_get(json_input_root(input), "tasks"), 0), "index") != task)
            code = cli_fail(SHOAL_EXIT_NOT_FOUND, "--task: the array has no task %" PRIu64 "; `shoal job tasks %s` lists them",
                            task, cli->words[0]);
    } else if (code == SHOAL_EXIT_OK && task > (uint64_t)cli_int_at(json_input_root(input), "workersMax")) {
        code = cli_fail(SHOAL_EXIT_NOT_FOUND, by_rank ? "--rank: the job has at most %" PRId64 " workers, of ranks from 0 on"
                                                      : "--task: the job has at most %" PRId64 " workers, and task 0, its driver",
                        cli_int_at(json_input_root(input), "workersMax"));
    }
    json_input_free(input);
    cli_answer_free(&answer);
    return code;
}

int cli_job_logs(struct cli *cli)
{
    static struct logs logs; /* large, and there is one */
    int code;

    logs =
        (struct logs){ .cli = cli, .go_on = cli_flag(cli, "follow"), .tail_lines = UINT64_MAX, .by_line = cli->json };
    cli_encode(cli->words[0], logs.id, sizeof(logs.id));
    code = find_sources(cli, &logs);
    if (code == SHOAL_EXIT_OK && !cli_number(cli, "tail", 0, UINT32_MAX, &logs.tail_lines))
        code = SHOAL_EXIT_USAGE;
    logs.tailing = logs.tail_lines != UINT64_MAX;
    if (code == SHOAL_EXIT_OK)
        code = show_logs(&logs);
    if (code == SHOAL_EXIT_OK && !logs.any && !logs.all && logs.sources[0].task != UINT64_MAX)
        code = check_named(cli, &logs);
    logs_free(&logs);
    return code;
}
