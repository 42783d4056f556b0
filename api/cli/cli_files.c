/* shoal job files, get, result: what a job has left in its result folder. */
#include "cli_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/http/json_input.h"
#include "api/http/json_writer.h"

#include "shoal/banned.h"

#define PATH_BYTES 2000u

/* The address below that of the job: `end` behind its id, which is percent-encoded. */
static void job_path(const struct cli *cli, const char *end, char *path, size_t cap)
{
    char id[256];

    cli_encode(cli->words[0], id, sizeof(id));
    (void)snprintf(path, cap, "/v1/jobs/%s%s", id, end);
}

/* ---- the list ---- */

static void print_files(const struct cli *cli, const struct json_value *root)
{
    const struct json_value *files = json_input_get(root, "files");

    for (size_t i = 0; i < json_input_count(files); i++) {
        const struct json_value *file = json_input_at(files, i);

        (void)printf("%12" PRId64 "  %s  %s\n", cli_int_at(file, "bytes"), cli_text_at(file, "modified"),
                     cli_text_at(file, "path"));
    }
    if (json_input_count(files) == 0)
        cli_say(cli, "the result folder has no files");
    if (cli_text_at(root, "missing")[0] != '\0')
        cli_say(cli, "not all: %s", cli_text_at(root, "missing"));
}

int cli_job_files(struct cli *cli)
{
    char path[PATH_BYTES];

    job_path(cli, "/files", path, sizeof(path));
    return cli_show(cli, path, print_files);
}

/* ---- fetching ---- */

static void print_file_name(const struct cli *cli, const char *name)
{
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    json_object_begin(&w, NULL);
    json_text(&w, "file", name);
    json_end(&w);
    if (cli->json && !w.failed && shoal_buf_append(&buf, "", 1) == SHOAL_OK)
        cli_print_json((const char *)buf.bytes);
    else
        (void)printf("%s\n", cli_shown(name));
    shoal_buf_deinit(&buf);
}

static void name_from(const struct cli_answer *answer, char *out, size_t cap)
{
    const char *at = strstr(answer->disposition, "filename=");
    size_t len;

    if (at == NULL)
        return;
    at += 9;
    len = strcspn(at, ";\"/\\");
    if (len > 0 && len < cap && at[0] != '.') {
        memcpy(out, at, len);
        out[len] = '\0';
    }
}

/* Into `wanted`, whole or not at all ("-": standard output; NULL: a file of the name that the node gives, else `name`). */
static int fetch(struct cli *cli, const char *path, const char *accept, const char *wanted, const char *name)
{
    bool to_stdout = wanted != NULL && strcmp(wanted, "-") == 0;
    char temporary[PATH_BYTES];
    char own[256];
    struct cli_call call = { .method = "GET", .path = path, .accept = accept };
    struct cli_answer answer;
    int code;

    (void)snprintf(own, sizeof(own), "%s", name);
    (void)snprintf(temporary, sizeof(temporary), "%.1900s.shoal-%ld.part", wanted == NULL ? "result" : wanted,
                   (long)getpid());
    call.sink = to_stdout ? stdout : fopen(temporary, "wxe");
    if (call.sink == NULL)
        return cli_fail(SHOAL_EXIT_FAILED, "%s: %s: name a file in a folder that can be written", temporary,
                        strerror(errno));
    code = cli_call(cli, &call, &answer, false);
    if ((to_stdout ? fflush(stdout) : fclose(call.sink)) != 0 && code == SHOAL_EXIT_OK)
        code = cli_fail(SHOAL_EXIT_FAILED, "what came cannot be written: %s", strerror(errno));
    if (!to_stdout) {
        name_from(&answer, own, sizeof(own));
        if (wanted == NULL)
            wanted = own;
        if (code == SHOAL_EXIT_OK && rename(temporary, wanted) != 0)
            code = cli_fail(SHOAL_EXIT_FAILED, "%s: %s", wanted, strerror(errno));
        if (code != SHOAL_EXIT_OK)
            (void)unlink(temporary);
        else
            print_file_name(cli, wanted);
    }
    if (code == SHOAL_EXIT_OK && answer.incomplete)
        cli_say(cli, "some files are not in it; `shoal job files %.60s` says more", cli->words[0]);
    cli_answer_free(&answer);
    return code;
}

int cli_job_get(struct cli *cli)
{
    const char *slash = strrchr(cli->words[1], '/');
    const char *base = slash == NULL ? cli->words[1] : slash + 1;
    const char *option = cli_value(cli, "to"), *to = base;
    char encoded[1024];
    char end[1100];
    char path[PATH_BYTES];

    if (base[0] == '\0')
        return cli_fail(SHOAL_EXIT_USAGE, "shoal job get: \"%s\" names a folder; `shoal job result` fetches all files",
                        cli->words[1]);
    if (option != NULL && cli->word_count > 2)
        return cli_fail(SHOAL_EXIT_USAGE, "shoal job get takes FILE or --to, not both");
    if (option != NULL)
        to = option;
    else if (cli->word_count > 2)
        to = cli->words[2];
    cli_encode(cli->words[1], encoded, sizeof(encoded));
    (void)snprintf(end, sizeof(end), "/files/%s", encoded);
    job_path(cli, end, path, sizeof(path));
    return fetch(cli, path, "application/octet-stream", to, base);
}

int cli_job_result(struct cli *cli)
{
    char path[PATH_BYTES];

    if (cli_flag(cli, "all") && cli_flag(cli, "model"))
        return cli_fail(SHOAL_EXIT_USAGE, "shoal job result takes --model or --all, not both");
    if (cli->word_count > 1 && strcmp(cli->words[1], "-") == 0 && isatty(STDOUT_FILENO) == 1)
        return cli_fail(SHOAL_EXIT_USAGE, "a zip is nothing for a terminal: name a file, or send the output into a file or a pipe");
    job_path(cli, cli_flag(cli, "model") ? "/result?below=model" : "/result", path, sizeof(path));
    return fetch(cli, path, "application/zip", cli->word_count > 1 ? cli->words[1] : NULL, "result.zip");
}
