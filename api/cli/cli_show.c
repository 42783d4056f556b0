/* shoal node list, frameworks, logon, logoff. */
#include "cli_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/http/json_input.h"

#include "shoal/banned.h"

static double number_at(const struct json_value *object, const char *key)
{
    double value = 0;

    (void)json_input_number(object, key, &value);
    return value;
}

int cli_parse(const struct cli_answer *answer, struct json_input **input)
{
    struct shoal_msg msg;

    if (json_input_parse_own(shoal_buf_view(&answer->body), input, &msg) == SHOAL_OK)
        return SHOAL_EXIT_OK;
    return cli_fail(SHOAL_EXIT_FAILED, "the node's answer is not JSON: %s", msg.text);
}

int cli_leads_nowhere(const struct cli_answer *answer, const char *what)
{
    return cli_fail(SHOAL_EXIT_FAILED, "%s answers %s, and there is no reading on; try another node with --node", answer->node,
                    what);
}

const char *cli_text_at(const struct json_value *object, const char *key)
{
    const char *text = json_input_text(object, key);

    return text == NULL ? "" : cli_shown(text);
}

const char *cli_text_item(const struct json_value *array, size_t index)
{
    const char *text = json_input_text_at(array, index);

    return text == NULL ? "" : cli_shown(text);
}

int64_t cli_int_at(const struct json_value *object, const char *key)
{
    int64_t value = 0;

    (void)json_input_int(object, key, &value);
    return value;
}

int cli_show(struct cli *cli, const char *path, void (*print)(const struct cli *cli, const struct json_value *root))
{
    struct cli_call call = { .method = "GET", .path = path };
    struct cli_answer answer;
    struct json_input *input;
    int code = cli_call(cli, &call, &answer, false);

    if (code == SHOAL_EXIT_OK && cli->json)
        cli_print_json(cli_answer_text(&answer));
    if (code == SHOAL_EXIT_OK && !cli->json && (code = cli_parse(&answer, &input)) == SHOAL_EXIT_OK) {
        print(cli, json_input_root(input));
        json_input_free(input);
    }
    cli_answer_free(&answer);
    return code;
}

int cli_get(struct cli *cli, const char *path, struct cli_answer *answer, struct json_input **input)
{
    struct cli_call call = { .method = "GET", .path = path };
    int code = cli_call(cli, &call, answer, false);

    *input = NULL;
    return code != SHOAL_EXIT_OK ? code : cli_parse(answer, input);
}

static bool is_gone(const char *state)
{
    return strcmp(state, "dead") == 0 || strcmp(state, "left") == 0 || strcmp(state, "removed") == 0;
}

/* The rest of a line. */
static void print_texts(const struct json_value *texts)
{
    for (size_t i = 0; i < json_input_count(texts); i++)
        (void)printf(" %s", cli_text_item(texts, i));
    (void)putchar('\n');
}

static void print_nodes(const struct json_value *nodes, bool head)
{
    if (head)
        (void)printf("%-16s %-8s %-22s %6s %6s %6s %6s  %-12s  %s\n", "NODE", "STATE", "ADDRESS", "SLOTS", "FREE", "LOAD",
                     "LEADS", "ID", "FRAMEWORKS");
    for (size_t i = 0; i < json_input_count(nodes); i++) {
        const struct json_value *node = json_input_at(nodes, i);

        (void)printf("%-16s %-8s %-22s ", cli_text_at(node, "name"), cli_text_at(node, "state"),
                     cli_text_at(node, "address"));
        if (is_gone(cli_text_at(node, "state"))) /* what it said of itself last is true no more */
            (void)printf("%6s %6s %6s %6s", "-", "-", "-", "-");
        else
            (void)printf("%6" PRId64 " %6" PRId64 " %6.2f %6" PRId64, cli_int_at(node, "slots"),
                         cli_int_at(node, "slotsFree"), number_at(node, "load"), cli_int_at(node, "jobsLed"));
        (void)printf("  %.12s ", cli_text_at(node, "id"));
        print_texts(json_input_get(node, "frameworks"));
    }
}

static void print_node_list(const struct cli *cli, const struct json_value *nodes) { print_nodes(nodes, !cli->quiet); }

int cli_node_list(struct cli *cli) { return cli_show(cli, "/v1/nodes", print_node_list); }

static void print_frameworks(const struct cli *cli, const struct json_value *frameworks)
{
    (void)cli;
    for (size_t i = 0; i < json_input_count(frameworks); i++) {
        const struct json_value *f = json_input_at(frameworks, i);
        const struct json_value *desc = json_input_get(f, "desc");

        (void)printf("%s (%s)\n", cli_text_at(f, "name"), cli_text_at(f, "appName"));
        for (size_t line = 0; line < json_input_count(desc); line++) {
            char buf[8];
            const char *text = json_input_scalar(json_input_at(desc, line), buf, sizeof(buf));

            (void)printf("    %s\n", text == NULL ? "" : cli_shown(text));
        }
    }
}

int cli_frameworks(struct cli *cli)
{
    return cli_show(cli, "/platform/rest/deeplearning/v1/execs/frameworks", print_frameworks);
}

/* ---- logon ---- */

static bool make_parents(const char *path)
{
    char copy[1024];

    (void)snprintf(copy, sizeof(copy), "%s", path);
    for (char *at = copy + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        if (mkdir(copy, 0700) != 0 && errno != EEXIST)
            return false;
        *at = '/';
    }
    return true;
}

int cli_keep_file(const char *path, const char *text)
{
    char temporary[1100];
    int fd;
    bool ok;

    (void)snprintf(temporary, sizeof(temporary), "%s.new", path);
    (void)unlink(temporary);
    if (!make_parents(path) || (fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0)
        return cli_fail(SHOAL_EXIT_FAILED, "%s: %s", path, strerror(errno));
    ok = dprintf(fd, "%s\n", text) > 0;
    ok = close(fd) == 0 && ok;
    if (!ok || rename(temporary, path) != 0)
        return cli_fail(SHOAL_EXIT_FAILED, "%s: %s", path, strerror(errno));
    return SHOAL_EXIT_OK;
}

static int keep_token(struct cli *cli, const char *token)
{
    const char *path = cli_value(cli, "token-file");
    const char *node = cli_value(cli, "node");
    char own[1024];
    char node_file[1024];
    int code;

    if (path == NULL)
        path = getenv("SHOAL_TOKEN_FILE");
    if (path == NULL)
        path = cli_home_file("token", own, sizeof(own));
    if (path == NULL)
        return cli_fail(SHOAL_EXIT_FAILED, "no place for the token: set HOME, or give --token-file");
    code = cli_keep_file(path, token);
    if (code == SHOAL_EXIT_OK && node != NULL && path == own &&
        cli_home_file("node", node_file, sizeof(node_file)) != NULL)
        code = cli_keep_file(node_file, node);
    return code;
}

int cli_logon(struct cli *cli)
{
    static const struct cli_option user_option = { "user", "NAME", "", 'u' };
    struct cli_answer answer;
    struct json_input *input;
    const char *token;
    int code;

    if (cli->word_count > 0 && cli->given_count < CLI_GIVEN_MAX) {
        cli->given[cli->given_count].option = &user_option;
        cli->given[cli->given_count++].value = cli->words[0];
    }
    if (cli_value(cli, "user") == NULL && getenv("SHOAL_USER") == NULL)
        return cli_fail(SHOAL_EXIT_USAGE, "shoal logon wants a user: shoal logon NAME");
    code = cli_get(cli, "/auth/v1/logon", &answer, &input);
    if (code == SHOAL_EXIT_OK) {
        token = json_input_text(json_input_root(input), "accessToken");
        code = token == NULL ? cli_fail(SHOAL_EXIT_FAILED, "the node gave no token") : keep_token(cli, token);
    }
    if (code == SHOAL_EXIT_OK && cli->json)
        cli_print_json(cli_answer_text(&answer));
    else if (code == SHOAL_EXIT_OK)
        cli_say(cli, "logged on as %s", cli_text_at(json_input_root(input), "username"));
    if (input != NULL)
        json_input_free(input);
    cli_answer_free(&answer);
    return code;
}

int cli_logoff(struct cli *cli)
{
    struct cli_call call = { .method = "POST", .path = "/auth/v1/logoff" };
    struct cli_answer answer;
    char path[1024];
    int code = cli_call(cli, &call, &answer, false);

    cli_answer_free(&answer);
    if (code == SHOAL_EXIT_OK && cli_value(cli, "token-file") == NULL && getenv("SHOAL_TOKEN_FILE") == NULL &&
        cli_home_file("token", path, sizeof(path)) != NULL)
        (void)unlink(path);
    if (code == SHOAL_EXIT_OK)
        cli_say(cli, "logged off");
    return code;
}
