/* shoal job ... */
#include "cli_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shoal/array.h"

#include "api/http/json_input.h"
#include "api/http/json_writer.h"

#include "shoal/banned.h"

/* `job stop` waits so long to say that it has happened. */
#define STOP_S 10
#define EXECS "/platform/rest/deeplearning/v1/execs"

static void job_path(const struct cli *cli, const char *end, char *path, size_t cap)
{
    char id[256];

    cli_encode(cli->words[0], id, sizeof(id));
    (void)snprintf(path, cap, "/v1/jobs/%s%s", id, end);
}

/* ---- run: the args ---- */

void cli_args_add(struct cli_args *args, const char *text)
{
    bool quoted = text[strcspn(text, " \t\r\n")] != '\0' || text[0] == '\0';
    const char *pieces[4] = { args->text.len > 0 ? " " : "", quoted ? "_QUOTE_" : "", text, quoted ? "_QUOTE_" : "" };

    for (unsigned i = 0; i < 4; i++)
        if (shoal_buf_append(&args->text, pieces[i], strlen(pieces[i])) != SHOAL_OK)
            args->failed = true;
}

static void add_option(struct cli_args *args, const struct cli *cli, const char *ours, const char *theirs)
{
    const char *value = cli_value(cli, ours);

    if (value == NULL)
        return;
    cli_args_add(args, theirs);
    cli_args_add(args, value);
}

static void add_repeated(struct cli_args *args, const struct cli *cli)
{
    for (unsigned i = 0; i < cli->given_count; i++) {
        if (strcmp(cli->given[i].option->name, "env") == 0) {
            cli_args_add(args, "--msd-env");
            cli_args_add(args, cli->given[i].value);
        } else if (strcmp(cli->given[i].option->name, "option") == 0) { /* as it is: several tokens */
            if (shoal_buf_append(&args->text, " ", 1) != SHOAL_OK ||
                shoal_buf_append(&args->text, cli->given[i].value, strlen(cli->given[i].value)) != SHOAL_OK)
                args->failed = true;
        }
    }
}

/* Base name of a path that may end in slashes; "." and ".." are resolved by their real name. */
static bool base_of(const char *path, char *out, size_t cap)
{
    char *real = realpath(path, NULL);
    const char *base;
    bool ok;

    if (real == NULL)
        return false;
    base = strrchr(real, '/');
    ok = base != NULL && base[1] != '\0' && strlen(base + 1) < cap;
    if (ok)
        (void)snprintf(out, cap, "%s", base + 1);
    free(real);
    return ok;
}

/* `absolute`: the main file is not sent; it lies on the job's file system. */
static char *make_args(const struct cli *cli, const char *top, bool absolute)
{
    struct cli_args args = { .failed = false };

    cli_args_add(&args, "--exec-start");
    cli_args_add(&args, cli_value(cli, "framework"));
    if (top[0] != '\0') {
        cli_args_add(&args, "--model-dir");
        cli_args_add(&args, top);
    }
    if (cli_value(cli, "model-main") != NULL) {
        const char *slash = top[0] == '\0' && !absolute ? strrchr(cli_value(cli, "model-main"), '/') : NULL;

        cli_args_add(&args, "--model-main");
        cli_args_add(&args, slash != NULL ? slash + 1 : cli_value(cli, "model-main"));
    }
    add_option(&args, cli, "workers", "--numWorker");
    add_option(&args, cli, "device", "--workerDeviceType");
    add_option(&args, cli, "memory", "--workerMemory");
    add_option(&args, cli, "priority", "--msd-priority");
    add_option(&args, cli, "pending-timeout", "--msd-pending-timeout");
    add_option(&args, cli, "name", "--appName");
    add_option(&args, cli, "array", "--msd-array");
    add_repeated(&args, cli);
    if (cli_value(cli, "data-path") != NULL) {
        char meta[1024];

        (void)snprintf(meta, sizeof(meta), "type=fs,data_path=%.900s", cli_value(cli, "data-path"));
        cli_args_add(&args, "--cs-datastore-meta");
        cli_args_add(&args, meta);
    }
    if (cli_flag(cli, "warm"))
        cli_args_add(&args, "--msd-warm");
    if (cli_flag(cli, "command"))
        cli_args_add(&args, "--user-cmd");
    if (cli->rest_count > 0)
        cli_args_add(&args, "--");
    for (unsigned i = 0; i < cli->rest_count; i++)
        cli_args_add(&args, cli->rest[i]);
    if (shoal_buf_append(&args.text, "", 1) != SHOAL_OK || args.failed) {
        shoal_buf_deinit(&args.text);
        return NULL;
    }
    return (char *)args.text.bytes;
}

static char *make_data(const char *args)
{
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    json_object_begin(&w, NULL);
    json_text(&w, "args", args);
    json_end(&w);
    if (w.failed || shoal_buf_append(&buf, "", 1) != SHOAL_OK) {
        shoal_buf_deinit(&buf);
        return NULL;
    }
    return (char *)buf.bytes;
}

/* ---- run: what is sent ---- */

struct upload {
    char top[256];     /* base name of the model directory, "" if there is none */
    char packed[1024]; /* the temporary archive, "" if there is none */
    const char *file;  /* what is sent, NULL for nothing */
    char file_name[300];
};

static int find_upload(const struct cli *cli, struct upload *upload)
{
    const char *dir = cli_value(cli, "model-dir");
    const char *main = cli_value(cli, "model-main");
    struct stat facts;
    struct shoal_msg msg;

    if (dir != NULL) {
        char path[4096];

        if (!base_of(dir, upload->top, sizeof(upload->top)))
            return cli_fail(SHOAL_EXIT_USAGE, "--model-dir: %s: %s", dir, strerror(errno));
        if (stat(dir, &facts) == 0 && !S_ISDIR(facts.st_mode))
            return cli_fail(SHOAL_EXIT_USAGE,
                            "--model-dir: %s is a file, and a directory is wanted; one script alone is sent by --model-main",
                            dir);
        (void)snprintf(path, sizeof(path), "%s/%s", dir, main == NULL ? "" : main);
        if (main != NULL && main[0] != '/' && access(path, R_OK) != 0)
            return cli_fail(SHOAL_EXIT_USAGE, "--model-main: %s is not in %s: give it relative to the model directory",
                            main, dir);
        if (cli_pack(dir, upload->top, upload->packed, sizeof(upload->packed), &msg) != SHOAL_OK)
            return cli_fail(SHOAL_EXIT_FAILED, "%s", msg.text);
        upload->file = upload->packed;
        (void)snprintf(upload->file_name, sizeof(upload->file_name), "%.255s.modelDir.tar", upload->top);
        return SHOAL_EXIT_OK;
    }
    if (main != NULL && main[0] != '\0' && access(main, R_OK) == 0) {
        const char *slash = strrchr(main, '/');

        upload->file = main;
        (void)snprintf(upload->file_name, sizeof(upload->file_name), "%.255s", slash == NULL ? main : slash + 1);
        return SHOAL_EXIT_OK;
    }
    if (main != NULL && main[0] != '/')
        return cli_fail(SHOAL_EXIT_USAGE, "--model-main: %s: %s; give --model-dir for a directory", main,
                        strerror(errno));
    return SHOAL_EXIT_OK;
}

static bool read_ticket(const struct cli_answer *answer, char *ticket, size_t cap)
{
    struct json_input *input;
    struct shoal_msg msg;
    const char *text;
    bool ok = false;

    if (json_input_parse_own(shoal_buf_view(&answer->body), &input, &msg) != SHOAL_OK)
        return false;
    text = json_input_text(json_input_root(input), "ticket");
    if (text != NULL && strlen(text) < cap) {
        (void)snprintf(ticket, cap, "%s", text);
        ok = true;
    }
    json_input_free(input);
    return ok;
}

/* A 503 with a ticket, or a broken answer to a request that had one: the same again, at most 5 times. */
static int submit(struct cli *cli, const struct upload *upload, const char *data, struct cli_answer *answer)
{
    struct cli_call call = { .method = "POST",
                             .path = EXECS,
                             .data = data,
                             .file = upload->file,
                             .file_name = upload->file_name,
                             .timeout_s = 60 };
    char ticket[1600] = "";
    int code;

    if (cli_flag(cli, "ticket")) {
        struct cli_call first = call;

        first.path = "/v1/tickets";
        code = cli_call(cli, &first, answer, false);
        if (code == SHOAL_EXIT_OK && !read_ticket(answer, ticket, sizeof(ticket)))
            code = cli_fail(SHOAL_EXIT_FAILED, "the node's ticket cannot be read");
        cli_answer_free(answer);
        if (code != SHOAL_EXIT_OK)
            return code;
        call.ticket = ticket;
    }
    for (unsigned turn = 0;; turn++) {
        bool hush = turn < 5 && (ticket[0] != '\0' || turn == 0);

        code = cli_call(cli, &call, answer, hush);
        if (code == SHOAL_EXIT_OK || !hush)
            return code;
        if (answer->status == 503 && answer->ticket[0] != '\0')
            (void)snprintf(ticket, sizeof(ticket), "%s", answer->ticket);
        if ((code != SHOAL_EXIT_UNREACHABLE && code != SHOAL_EXIT_TIMEOUT) || ticket[0] == '\0') {
            if (code == SHOAL_EXIT_DENIED && answer->status == 0)
                return code; /* no token: that has been said, and nothing was sent */
            /* Not to be repeated: say what was hushed. */
            if (answer->status >= 400) {
                cli_refused(answer);
                return code;
            }
            if (answer->unsent)
                return cli_fail(code, "%s", answer->fault);
            return cli_fail(code,
                            "%s. The job may exist or not: see `shoal job list`; a submit with --ticket is safe to "
                            "repeat",
                            answer->fault);
        }
        call.ticket = ticket;
        cli_answer_free(answer);
        cli_pause_ms(500L << (turn < 3 ? turn : 3));
    }
}

static int wait_for(struct cli *cli, const char *id, bool show_end);

static char interrupted_text[256];

static void on_interrupt(int number)
{
    ssize_t wrote = write(STDERR_FILENO, interrupted_text, strlen(interrupted_text));

    (void)wrote;
    _exit(128 + number);
}

/* Whoever stops waiting has not stopped the job, and is told so. */
static void runs_on(const char *id)
{
    struct sigaction action = { .sa_handler = on_interrupt };

    (void)snprintf(interrupted_text, sizeof(interrupted_text),
                   "\n%.40s runs on; stop it with `shoal job stop %.40s`, wait for it with `shoal job wait %.40s`\n",
                   id, id, id);
    (void)sigaction(SIGINT, &action, NULL);
}

static int after_submit(struct cli *cli, const struct cli_answer *answer)
{
    struct json_input *input;
    struct shoal_msg msg;
    const char *found;
    char id[64];

    if (json_input_parse_own(shoal_buf_view(&answer->body), &input, &msg) != SHOAL_OK)
        return cli_fail(SHOAL_EXIT_FAILED, "the node's answer is not JSON: %s", msg.text);
    found = json_input_text(json_input_root(input), "id");
    (void)snprintf(id, sizeof(id), "%s", found == NULL ? "" : found);
    json_input_free(input);
    if (cli->json)
        cli_print_json(cli_answer_text(answer));
    else
        (void)printf("%s\n", id);
    (void)fflush(stdout);
    if (answer->survives[0] != '\0')
        cli_say(cli, "submitted; %s", answer->survives);
    if (cli_flag(cli, "follow") || cli_flag(cli, "wait"))
        runs_on(id);
    if (cli_flag(cli, "follow")) {
        int code = cli_follow(cli, id);

        if (code != SHOAL_EXIT_OK)
            return code;
    }
    return cli_flag(cli, "wait") || cli_flag(cli, "follow") ? wait_for(cli, id, false) : SHOAL_EXIT_OK;
}

/* An error names the option that was typed: the node knows WMLA's names only. */
static int check_run(const struct cli *cli)
{
    const char *device = cli_value(cli, "device");
    uint64_t number = 0;

    if (cli_value(cli, "framework") == NULL)
        return cli_fail(SHOAL_EXIT_USAGE, "shoal job run wants --framework NAME; `shoal frameworks` lists them");
    if (cli_value(cli, "model-main") == NULL && !cli_flag(cli, "command"))
        return cli_fail(SHOAL_EXIT_USAGE, "shoal job run wants --model-main FILE, or --command and words after --");
    if (device != NULL && strcmp(device, "cpu") != 0 && strcmp(device, "gpu") != 0)
        return cli_fail(SHOAL_EXIT_USAGE, "--device: \"%s\" is not cpu or gpu", device);
    for (unsigned i = 0; i < cli->given_count; i++)
        if (strcmp(cli->given[i].option->name, "env") == 0 &&
            (strchr(cli->given[i].value, '=') == NULL || cli->given[i].value[0] == '='))
            return cli_fail(SHOAL_EXIT_USAGE, "--env: \"%s\" is not NAME=VALUE", cli->given[i].value);
    return cli_number(cli, "workers", 1, UINT32_MAX, &number) && cli_number(cli, "priority", 1, UINT32_MAX, &number) &&
                   cli_number(cli, "pending-timeout", 1, UINT32_MAX, &number)
               ? SHOAL_EXIT_OK
               : SHOAL_EXIT_USAGE;
}

int cli_job_run(struct cli *cli)
{
    struct upload upload = { .file = NULL };
    struct cli_answer answer = { .status = 0 };
    char *args = NULL;
    char *data = NULL;
    int code = check_run(cli);

    if (code == SHOAL_EXIT_OK)
        code = find_upload(cli, &upload);
    if (code == SHOAL_EXIT_OK) {
        args = make_args(cli, upload.top, upload.file == NULL);
        data = args == NULL ? NULL : make_data(args);
        code = data == NULL ? cli_fail(SHOAL_EXIT_FAILED, "out of memory") : submit(cli, &upload, data, &answer);
    }
    if (upload.packed[0] != '\0')
        (void)unlink(upload.packed);
    if (code == SHOAL_EXIT_OK)
        code = after_submit(cli, &answer);
    cli_answer_free(&answer);
    free(args);
    free(data);
    return code;
}

/* ---- looking ---- */

/* What WMLA's way of quoting says, as a shell says it. */
static char *unquoted(const char *args)
{
    size_t len = 0;
    char *out = malloc(strlen(args) * 4 + 1); /* a quote within quotes takes four bytes */
    bool inside = false;

    while (out != NULL && *args != '\0') {
        if (strncmp(args, "_QUOTE_", 7) == 0) {
            out[len++] = '\'';
            inside = !inside;
            args += 7;
        } else if (inside && *args == '\'') {
            memcpy(out + len, "'\\''", 4);
            len += 4;
            args++;
        } else {
            out[len++] = *args++;
        }
    }
    if (out != NULL)
        out[len] = '\0';
    return out;
}

static void print_field(void *arg, const char *key, const struct json_value *value)
{
    char buf[40];
    const char *text = json_input_scalar(value, buf, sizeof(buf));
    char *dump = text == NULL ? json_input_dump(value) : NULL;

    (void)arg;
    if (text != NULL && text[0] == '\0')
        return;
    if (text == NULL)
        text = dump == NULL ? "" : dump;
    if (strcmp(key, "args") == 0 && dump == NULL && (dump = unquoted(text)) != NULL)
        text = dump;
    (void)printf("%-16s ", cli_shown(key));
    cli_put_lines(text, 17);
    free(dump);
}

static void print_object(const struct cli *cli, const struct json_value *object)
{
    (void)cli;
    json_input_each(object, print_field, NULL);
}

int cli_job_show(struct cli *cli)
{
    char path[512];

    job_path(cli, "", path, sizeof(path));
    return cli_show(cli, path, print_object);
}

int cli_status(struct cli *cli)
{
    struct cli_answer answer;
    struct json_input *input;
    int code = cli_get(cli, "/platform/rest/deeplearning/v1/status", &answer, &input);

    if (code == SHOAL_EXIT_OK) {
        if (cli->json)
            (void)printf("%s\n", cli_answer_text(&answer));
        else
            print_object(cli, json_input_root(input));
        if (strcmp(cli_text_at(json_input_root(input), "status"), "ok") != 0)
            code = SHOAL_EXIT_UNREACHABLE;
    }
    json_input_free(input);
    cli_answer_free(&answer);
    return code;
}

static void print_row(const struct json_value *row)
{
    json_input_each(row, print_field, NULL);
    (void)printf("\n");
}

/* Its own fields, then a line or a block for each thing of a list. */
static void print_ledger_field(void *arg, const char *key, const struct json_value *value)
{
    if (!json_input_is_array(value)) {
        print_field(arg, key, value);
        return;
    }
    (void)printf("%s:\n", cli_shown(key));
    for (size_t i = 0; i < json_input_count(value); i++) {
        const struct json_value *item = json_input_at(value, i);
        char *dump;

        if (json_input_count(value) <= 3 && json_input_is_object(item)) {
            print_row(item);
            continue;
        }
        dump = json_input_dump(item);
        (void)printf("  %s\n", dump == NULL ? "" : cli_shown(dump));
        free(dump);
    }
}

static void print_with_lists(const struct cli *cli, const struct json_value *object)
{
    (void)cli;
    json_input_each(object, print_ledger_field, NULL);
}

static const char *exactness(const struct json_value *ledger)
{
    bool exact = false;

    (void)json_input_bool(ledger, "exact", &exact);
    if (!exact)
        return "NO: samples were used twice or left out";
    return cli_int_at(ledger, "data_epochs") < cli_int_at(ledger, "data_epochs_wanted")
               ? "so far: no sample of a data epoch was used twice"
               : "yes: every sample of every data epoch was used exactly once";
}

static void print_ledger(const struct cli *cli, const struct json_value *ledger)
{
    const struct json_value *errors = json_input_get(ledger, "errors"), *shares = json_input_get(ledger, "shares");

    (void)cli;
    if (cli_int_at(ledger, "data_epochs_wanted") == 0 && cli_int_at(ledger, "records_wanted") == 0) {
        (void)printf("%s has no ledger: train() of fabric_model has trained nothing in it\n",
                     cli_shown(cli_text_at(ledger, "job")));
        return;
    }
    (void)printf("%-16s %s\n%-16s %s\n", "job", cli_text_at(ledger, "job"), "exact", exactness(ledger));
    (void)printf("%-16s %" PRId64 " of %" PRId64 ", of %" PRId64 " samples each\n", "data epochs",
                 cli_int_at(ledger, "data_epochs"), cli_int_at(ledger, "data_epochs_wanted"),
                 cli_int_at(ledger, "samples_per_epoch"));
    (void)printf("%-16s %" PRId64 ", and %" PRId64 " of validation\n", "steps", cli_int_at(ledger, "steps"),
                 cli_int_at(ledger, "validations"));
    (void)printf("%-16s %" PRId64 "\n%-16s %" PRId64 " of %" PRId64 "\n", "samples", cli_int_at(ledger, "samples"),
                 "records", cli_int_at(ledger, "records"), cli_int_at(ledger, "records_wanted"));
    for (size_t i = 0; i < json_input_count(errors); i++)
        (void)printf("%-16s %s\n", "error", cli_text_item(errors, i));
    if (json_input_count(shares) > 0)
        (void)printf("\n%-20s %12s %12s\n", "WORKER", "MINI-BATCHES", "SAMPLES");
    for (size_t i = 0; i < json_input_count(shares); i++) {
        const struct json_value *share = json_input_at(shares, i);
        char *worker = json_input_dump(json_input_get(share, "worker")); /* of 64 bits without a sign */

        (void)printf("%-20s %12" PRId64 " %12" PRId64 "\n", worker == NULL ? "" : worker, cli_int_at(share, "minibatches"),
                     cli_int_at(share, "samples"));
        free(worker);
    }
}

int cli_job_ledger(struct cli *cli)
{
    char path[512];

    job_path(cli, "/ledger", path, sizeof(path));
    return cli_show(cli, path, print_ledger);
}

int cli_why(struct cli *cli)
{
    char path[512];
    bool said;
    int code = cli_find_service(cli, &said);

    if (code == SHOAL_EXIT_OK) /* `why` stands among what is shown of it */
        return cli_service_show(cli);
    if (said)
        return code;
    job_path(cli, "/why", path, sizeof(path));
    return cli_show(cli, path, print_with_lists);
}

/* ---- tasks of an array ---- */

static void print_tasks(const struct json_value *tasks, bool head)
{
    char code[24];

    if (head)
        (void)printf("%9s %-8s %5s %8s %-16s %-24s %s\n", "TASK", "STATE", "EXIT", "ATTEMPTS", "NODE", "STARTED",
                     "ENDED");
    for (size_t i = 0; i < json_input_count(tasks); i++) {
        const struct json_value *task = json_input_at(tasks, i);
        int64_t exit_code;

        code[0] = '\0';
        if (json_input_int(task, "exitCode", &exit_code))
            (void)snprintf(code, sizeof(code), "%" PRId64, exit_code);
        (void)printf("%9" PRId64 " %-8s %5s %8" PRId64 " %-16s %-24s %s\n", cli_int_at(task, "index"),
                     cli_text_at(task, "state"), code, cli_int_at(task, "attempts"), cli_text_at(task, "node"),
                     cli_text_at(task, "started"), cli_text_at(task, "ended"));
    }
}

/* Page by page; each is printed as it comes. */
int cli_job_tasks(struct cli *cli)
{
    int64_t after = -1; /* the index that the page before ended with; it need not rise from page to page */
    size_t shown = 0;
    bool head = !cli->quiet;

    while (true) {
        char path[512], end[128], from[32] = "";
        struct cli_call call = { .method = "GET", .path = path };
        struct cli_answer answer;
        struct json_input *input = NULL;
        int64_t next;
        size_t count;
        bool more;
        int code;

        if (after >= 0)
            (void)snprintf(from, sizeof(from), "&after=%" PRId64, after);
        (void)snprintf(end, sizeof(end), "/tasks?limit=%d%s%s", SHOAL_TASKS_PAGE_MAX, from,
                       cli_flag(cli, "failed") ? "&state=failed" : "");
        job_path(cli, end, path, sizeof(path));
        code = cli_call(cli, &call, &answer, false);
        if (code == SHOAL_EXIT_OK)
            code = cli_parse(&answer, &input);
        if (code == SHOAL_EXIT_OK && cli->json)
            cli_print_json(cli_answer_text(&answer));
        if (code == SHOAL_EXIT_OK && !cli->json)
            print_tasks(json_input_get(json_input_root(input), "tasks"), head);
        head = false;
        count = json_input_count(json_input_get(json_input_root(input), "tasks"));
        shown += count;
        more = code == SHOAL_EXIT_OK && json_input_int(json_input_root(input), "next", &next);
        if (more && (next < 0 || next == after || count == 0 || shown >= SHOAL_ARRAY_TASKS_MAX))
            code = cli_leads_nowhere(&answer, "with a page that it gave before");
        after = more ? next : after;
        json_input_free(input);
        cli_answer_free(&answer);
        if (code != SHOAL_EXIT_OK || !more)
            return code;
    }
}

/* ---- wait ---- */

static int exit_of_job(const struct json_value *job)
{
    const char *state = cli_text_at(job, "state");
    int64_t code = cli_int_at(job, "exitCode");

    if (strcmp(state, "FINISHED") == 0)
        return SHOAL_EXIT_OK;
    return code > 0 && code < 256 ? (int)code : SHOAL_EXIT_FAILED;
}

/* `show_end`: with --output json the ended job is printed. */
static int wait_for(struct cli *cli, const char *id, bool show_end)
{
    struct timespec start = cli_monotonic();
    char last[400] = "";
    char encoded[256];
    unsigned failures = 0;

    cli_encode(id, encoded, sizeof(encoded));
    while (true) {
        char path[512];
        char line[400];
        struct cli_call call = { .method = "GET", .path = path };
        struct cli_answer answer;
        struct json_input *input = NULL;
        const struct json_value *job;
        bool ended = false;
        int code;

        (void)snprintf(path, sizeof(path), "/v1/jobs/%s", encoded);
        code = cli_call(cli, &call, &answer, failures < 60);
        if (code == SHOAL_EXIT_OK)
            code = cli_parse(&answer, &input);
        cli_answer_free(&answer);
        if ((code == SHOAL_EXIT_UNREACHABLE || code == SHOAL_EXIT_TIMEOUT) && failures++ < 60 &&
            cli_time_is_left(cli, start)) {
            cli_pause_ms(500);
            continue;
        }
        if (code != SHOAL_EXIT_OK)
            return code == SHOAL_EXIT_NOT_FOUND ? cli_fail(code, "%s: no such job (any more)", id) : code;
        failures = 0;
        job = json_input_root(input);
        (void)snprintf(line, sizeof(line), "%s%s%.340s", cli_text_at(job, "state"),
                       cli_text_at(job, "detail")[0] == '\0' ? "" : ": ", cli_text_at(job, "detail"));
        if (strcmp(line, last) != 0)
            cli_say(cli, "%s %s", cli_text_at(job, "id"), line);
        (void)snprintf(last, sizeof(last), "%s", line);
        (void)json_input_bool(job, "hasEnded", &ended);
        if (ended)
            code = exit_of_job(job);
        if (ended && show_end && cli->json) {
            char *dump = json_input_dump(job);

            cli_print_json(dump == NULL ? "{}" : dump);
            free(dump);
        }
        json_input_free(input);
        if (ended)
            return code;
        if (!cli_time_is_left(cli, start))
            return cli_fail(SHOAL_EXIT_TIMEOUT, "%s has not ended; --timeout has passed", id);
        cli_pause_ms(300);
    }
}

int cli_job_wait(struct cli *cli) { return wait_for(cli, cli->words[0], true); }

/* ---- changing ---- */

static int change(struct cli *cli, const char *method, const char *path, const char *done)
{
    struct cli_call call = { .method = method, .path = path };
    struct cli_answer answer;
    int code = cli_call(cli, &call, &answer, false);

    cli_answer_free(&answer);
    if (code != SHOAL_EXIT_OK)
        return code;
    if (cli->json)
        (void)printf("{\"%s\":true}\n", done);
    else
        cli_say(cli, "%s", done);
    return SHOAL_EXIT_OK;
}

/* The stop is in the job's record; its processes are given time to end. `false`: it runs still. */
static bool await_stop(struct cli *cli, const char *path)
{
    struct timespec start = cli_monotonic();
    bool ended = false;

    while (!ended && cli_time_is_left(cli, start) && cli_monotonic().tv_sec - start.tv_sec < STOP_S) {
        struct cli_answer answer;
        struct json_input *input = NULL;
        bool told = cli_get(cli, path, &answer, &input) == SHOAL_EXIT_OK &&
                    json_input_bool(json_input_root(input), "hasEnded", &ended);

        if (input != NULL)
            json_input_free(input);
        cli_answer_free(&answer);
        if (!told)
            break;
        if (!ended)
            cli_pause_ms(50);
    }
    return ended;
}

/* A job that has ended is not stopped by anybody: it is said how it ended. */
int cli_job_stop(struct cli *cli)
{
    struct cli_answer answer;
    struct json_input *input = NULL;
    char path[512], stop[512];
    bool ended = false;
    int code;

    job_path(cli, "", path, sizeof(path));
    code = cli_get(cli, path, &answer, &input);
    if (code == SHOAL_EXIT_OK)
        (void)json_input_bool(json_input_root(input), "hasEnded", &ended);
    if (ended && cli->json)
        (void)printf("{\"stopped\":false,\"state\":\"%s\"}\n", cli_text_at(json_input_root(input), "state"));
    else if (ended)
        cli_say(cli, "%s had ended: %s", cli_text_at(json_input_root(input), "id"),
                cli_text_at(json_input_root(input), "state"));
    if (input != NULL)
        json_input_free(input);
    cli_answer_free(&answer);
    if (code != SHOAL_EXIT_OK || ended)
        return code;
    {
        struct cli_call call = { .method = "POST", .path = stop };

        job_path(cli, "/stop", stop, sizeof(stop));
        code = cli_call(cli, &call, &answer, false);
        cli_answer_free(&answer);
    }
    if (code != SHOAL_EXIT_OK)
        return code;
    ended = await_stop(cli, path);
    if (cli->json)
        (void)printf("{\"stopped\":true,\"hasEnded\":%s}\n", ended ? "true" : "false");
    else
        cli_say(cli, "%s",
                ended ? "stopped" : "is being stopped; its processes have half a minute to end by themselves");
    return SHOAL_EXIT_OK;
}

int cli_job_recover(struct cli *cli)
{
    struct cli_call call = { .method = "POST" };
    struct cli_answer answer;
    struct json_input *input;
    struct shoal_msg msg;
    char path[512];
    int code;

    job_path(cli, cli_flag(cli, "yes") ? "/recover?confirm=true" : "/recover", path, sizeof(path));
    call.path = path;
    code = cli_call(cli, &call, &answer, false);
    if (code == SHOAL_EXIT_OK && cli->json) {
        cli_print_json(cli_answer_text(&answer));
    } else if (code == SHOAL_EXIT_OK) {
        if (json_input_parse_own(shoal_buf_view(&answer.body), &input, &msg) != SHOAL_OK) {
            code = cli_fail(SHOAL_EXIT_FAILED, "the node's answer is not JSON: %s", msg.text);
        } else {
            (void)printf("%s\n", cli_text_at(json_input_root(input), "text"));
            json_input_free(input);
        }
    }
    cli_answer_free(&answer);
    return code;
}

/* Asks on a terminal; where nobody can answer, --yes is the answer. */
static bool sure(const struct cli *cli)
{
    char line[16] = "";

    if (cli_flag(cli, "yes"))
        return true;
    if (isatty(STDIN_FILENO) != 1 || cli->json) {
        (void)cli_fail(SHOAL_EXIT_USAGE, "this stops and deletes all your jobs with their results; say so with --yes");
        return false;
    }
    (void)fprintf(stderr, "Stop and delete all your jobs with their results? [y/N] ");
    if (fgets(line, sizeof(line), stdin) != NULL && (line[0] == 'y' || line[0] == 'Y'))
        return true;
    (void)cli_fail(SHOAL_EXIT_USAGE, "nothing is deleted");
    return false;
}

int cli_job_delete(struct cli *cli)
{
    char path[512];

    if (cli_flag(cli, "all") && cli->word_count > 0)
        return cli_fail(SHOAL_EXIT_USAGE, "shoal job delete takes an ID or --all, not both");
    if (cli_flag(cli, "all"))
        return sure(cli) ? change(cli, "DELETE", EXECS, "deleted") : SHOAL_EXIT_USAGE;
    if (cli->word_count == 0)
        return cli_fail(SHOAL_EXIT_USAGE, "shoal job delete wants an ID, or --all");
    job_path(cli, "", path, sizeof(path));
    return change(cli, "DELETE", path, "deleted");
}
