/* The command line: parsing and help, both from one table of commands (cli_commands.c). */
#include "cli_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shoal/limits.h"

#include "api/http/json_writer.h"

#include "shoal/banned.h"

static const struct cli_option global_options[] = {
    { "node", "URL", "node to ask; a comma list is tried in order [SHOAL_NODE, else as `logon` was told, else https://127.0.0.1:9243]", 'n' },
    { "output", "FORM", "text or json", 'o' },
    { "timeout", "SECONDS", "give up after this time", 0 },
    { "quiet", NULL, "no messages, only data", 'q' },
    { "user", "NAME", "ask as this user, with a password instead of a token [SHOAL_USER]", 'u' },
    { "password", "TEXT", "its password; better in SHOAL_PASSWORD or --password-file", 0 },
    { "password-file", "FILE", "its password is the first line of FILE", 0 },
    { "token-file", "FILE", "token to show [SHOAL_TOKEN_FILE, else the one that `shoal logon` kept]", 0 },
    { "ca", "FILE", "believe the nodes that FILE vouches for [SHOAL_CA, else the mesh that `shoal logon` got to know]",
      0 },
    { "insecure", NULL, "believe every node: an impostor gets the password or token [SHOAL_INSECURE=1]", 0 },
    { "help", NULL, "this text", 'h' },
    { "version", NULL, "the version of this program", 'V' },
    { NULL, NULL, NULL, 0 },
};

/* ---- small things ---- */

/* An error is printed in the form that --output asks for, even if the command line could not be parsed to its end. */
static bool fails_in_json;

static void fail_in_json(int code, const char *text)
{
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    json_object_begin(&w, NULL);
    json_text(&w, "error", text);
    json_int(&w, "exitCode", code);
    json_end(&w);
    if (!w.failed && shoal_buf_append(&buf, "\n", 2) == SHOAL_OK)
        cli_put_json(stderr, (const char *)buf.bytes);
    shoal_buf_deinit(&buf);
}

int cli_fail(int code, const char *format, ...)
{
    char text[2048];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (fails_in_json)
        fail_in_json(code, text);
    else
        (void)fprintf(stderr, "shoal: %s\n", cli_shown(text)); /* a node may have said it */
    return code;
}

void cli_say(const struct cli *cli, const char *format, ...)
{
    va_list args;

    if (cli->quiet)
        return;
    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fputc('\n', stderr);
}

const char *cli_value(const struct cli *cli, const char *name)
{
    for (unsigned i = cli->given_count; i > 0; i--)
        if (strcmp(cli->given[i - 1].option->name, name) == 0)
            return cli->given[i - 1].value;
    return NULL;
}

bool cli_flag(const struct cli *cli, const char *name) { return cli_value(cli, name) != NULL; }

bool cli_number(const struct cli *cli, const char *name, uint64_t min, uint64_t max, uint64_t *value)
{
    const char *text = cli_value(cli, name);
    char *end = NULL;
    unsigned long long number;

    if (text == NULL)
        return true;
    number = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || number < min || number > max) {
        (void)cli_fail(SHOAL_EXIT_USAGE, "--%s: \"%s\" is not a number from %" PRIu64 " to %" PRIu64, name, text, min,
                       max);
        return false;
    }
    *value = number;
    return true;
}

const char *cli_home_file(const char *name, char *path, size_t cap)
{
    const char *config = getenv("XDG_CONFIG_HOME");
    const char *home = getenv("HOME");
    int len;

    if (config != NULL && config[0] == '/')
        len = snprintf(path, cap, "%s/shoal/%s", config, name);
    else if (home != NULL && home[0] == '/')
        len = snprintf(path, cap, "%s/.config/shoal/%s", home, name);
    else
        return NULL;
    return len > 0 && (size_t)len < cap ? path : NULL;
}

struct timespec cli_monotonic(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return now;
}

bool cli_time_is_left(const struct cli *cli, struct timespec start)
{
    return cli->timeout_s == 0 || cli_monotonic().tv_sec - start.tv_sec < cli->timeout_s;
}

void cli_pause_ms(long ms)
{
    (void)nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 }, NULL);
}

/* Edits between two short words, for "did you mean". */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[64];
    size_t len = strlen(b);

    if (strlen(a) > 60 || len > 60)
        return 99;
    for (unsigned i = 0; i <= len; i++)
        row[i] = i;
    for (; *a != '\0'; a++) {
        unsigned corner = row[0]++;

        for (size_t i = 0; i < len; i++) {
            unsigned change = corner + (*a == b[i] ? 0u : 1u);
            unsigned best = row[i] < row[i + 1] ? row[i] + 1 : row[i + 1] + 1;

            corner = row[i + 1];
            row[i + 1] = change < best ? change : best;
        }
    }
    return row[len];
}

/* ---- help ---- */

#define HELP_COLUMNS 80u

/* The words of `text` behind `left`, on as many lines as they need, all from the column `indent` on. */
static void print_row(FILE *out, const char *left, size_t indent, const char *text)
{
    size_t at = strlen(left);

    (void)fprintf(out, "%s%*s", left, at < indent ? (int)(indent - at) : 1, "");
    at = at < indent ? indent : at + 1;
    for (bool first = true; *text != '\0'; first = false) {
        size_t len = strcspn(text, " ");

        if (!first && at + 1 + len > HELP_COLUMNS) {
            (void)fprintf(out, "\n%*s", (int)indent, "");
            at = indent;
        } else if (!first) {
            (void)fputc(' ', out);
            at++;
        }
        (void)fprintf(out, "%.*s", (int)len, text);
        at += len;
        text += len;
        text += strspn(text, " ");
    }
    (void)fputc('\n', out);
}

static void print_options(const struct cli_option *options, FILE *out)
{
    for (; options != NULL && options->name != NULL; options++) {
        char left[64];

        (void)snprintf(left, sizeof(left), "  %c%c%s--%s%s%s", options->letter != 0 ? '-' : ' ',
                       options->letter != 0 ? options->letter : ' ', options->letter != 0 ? ", " : "  ", options->name,
                       options->value != NULL ? " " : "", options->value != NULL ? options->value : "");
        print_row(out, left, 33, options->help);
    }
}

static void print_command(const struct cli_command *command, FILE *out)
{
    char left[96];

    (void)snprintf(left, sizeof(left), "shoal %s%s%s%s:", command->words, command->args[0] != '\0' ? " " : "", command->args,
                   command->rest ? " [-- WORD...]" : "");
    print_row(out, left, 4, command->help);
    if (command->more != NULL)
        (void)fprintf(out, "\nExamples:\n%s", command->more);
    if (command->options != NULL) {
        (void)fprintf(out, "\nOptions:\n");
        print_options(command->options, out);
    }
    (void)fprintf(out, "\nOptions of every command:\n");
    print_options(global_options, out);
}

static void print_overview(FILE *out)
{
    (void)fprintf(out, "shoal: a mesh that trains\n\n");
    (void)fprintf(
        out, "  shoal init --data DIR                      found a mesh\n"
             "  shoal agent --data DIR                     run its first node\n"
             "  shoal job run --framework edtPyTorch --model-main main.py --model-dir DIR \\\n"
             "      --workers 6\n\nCommands:\n");
    for (size_t i = 0; i < cli_command_count; i++) {
        char left[64];

        (void)snprintf(left, sizeof(left), "  %s %s", cli_commands[i].words, cli_commands[i].args);
        print_row(out, left, 27, cli_commands[i].help);
    }
    (void)fprintf(
        out, "\n`shoal help COMMAND` shows its options. IDs may be cut to any ending that is\nclear.\n"
             "Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 denied, 5 unreachable or no\nmajority, 6 timeout, "
             "7 conflict.\n");
}

/* ---- parsing ---- */

static unsigned word_count(const char *words)
{
    unsigned count = 1;

    for (; *words != '\0'; words++)
        count += *words == ' ' ? 1u : 0u;
    return count;
}

/* The command whose words argv starts with. */
static const struct cli_command *find_command(int argc, char **argv, int *used)
{
    for (size_t i = 0; i < cli_command_count; i++) {
        char two[64] = "";
        unsigned words = word_count(cli_commands[i].words);

        if (argc < (int)words)
            continue;
        (void)snprintf(two, sizeof(two), "%.30s%s%.30s", argv[0], words > 1 ? " " : "", words > 1 ? argv[1] : "");
        if (strcmp(two, cli_commands[i].words) == 0) {
            *used = (int)words;
            return &cli_commands[i];
        }
    }
    return NULL;
}

/* Words that people type who know other programs. */
static const struct {
    const char *said;
    const char *meant;
} synonyms[] = {
    { "job cancel", "job stop" },     { "job kill", "job stop" },     { "job abort", "job stop" },
    { "job submit", "job run" },      { "job start", "job run" },     { "job create", "job run" },
    { "job ls", "job list" },         { "job status", "job show" },   { "job get", "job show" },
    { "job info", "job show" },       { "job describe", "job show" }, { "job log", "job logs" },
    { "job rm", "job delete" },       { "job remove", "job delete" }, { "job follow", "job logs -f" },
    { "job download", "job result" }, { "job why", "why" },           { "job top", "top" },
    { "jobs", "job list" },           { "nodes", "node list" },       { "run", "job run" },
    { "submit", "job run" },          { "list", "job list" },         { "ls", "job list" },
    { "logs", "job logs" },           { "login", "logon" },           { "logout", "logoff" },
};

/* Whether the command belongs to the group that was typed: "job" of "job run". */
static bool in_group(const char *words, const char *group)
{
    size_t len = strlen(group);

    return strncmp(words, group, len) == 0 && words[len] == ' ';
}

static bool is_group(const char *word)
{
    for (size_t i = 0; i < cli_command_count; i++)
        if (in_group(cli_commands[i].words, word))
            return true;
    return false;
}

static const char *nearest(const char *said, const char *group)
{
    const char *best = NULL;
    unsigned best_distance = 3;

    for (size_t i = 0; i < sizeof(synonyms) / sizeof(synonyms[0]); i++)
        if (strcmp(said, synonyms[i].said) == 0)
            return synonyms[i].meant;
    for (size_t i = 0; i < cli_command_count; i++) {
        unsigned edits = distance(said, cli_commands[i].words);

        if ((group != NULL && !in_group(cli_commands[i].words, group)) || edits >= best_distance)
            continue;
        best_distance = edits;
        best = cli_commands[i].words;
    }
    return best;
}

/* "run, list, show": what may follow the group's word. */
static void verbs_of(const char *group, char *out, size_t cap)
{
    size_t used = 0;

    out[0] = '\0';
    for (size_t i = 0; i < cli_command_count && used < cap; i++)
        if (in_group(cli_commands[i].words, group))
            used += (size_t)snprintf(out + used, cap - used, "%s%s", used > 0 ? ", " : "",
                                     cli_commands[i].words + strlen(group) + 1);
}

static int unknown_command(int argc, char **argv)
{
    bool group = is_group(argv[0]);
    bool has_verb = argc > 1 && argv[1][0] != '-';
    const char *best;
    char said[64];
    char verbs[256];

    (void)snprintf(said, sizeof(said), "%.30s%s%.30s", argv[0], has_verb ? " " : "", has_verb ? argv[1] : "");
    best = nearest(said, group ? argv[0] : NULL);
    if (best == NULL && !group)
        best = nearest(argv[0], NULL);
    if (best != NULL)
        return cli_fail(SHOAL_EXIT_USAGE, "no command \"%s\"; did you mean \"shoal %s\"? `shoal help` lists them", said,
                        best);
    if (!group)
        return cli_fail(SHOAL_EXIT_USAGE, "no command \"%s\"; `shoal help` lists them", said);
    verbs_of(argv[0], verbs, sizeof(verbs));
    return cli_fail(SHOAL_EXIT_USAGE,
                    has_verb ? "no command \"%s\"; shoal %s takes %s" : "shoal %s wants a verb%.0s: %s", said, argv[0],
                    verbs);
}

static const struct cli_option *find_in(const struct cli_option *options, const char *name, size_t len, char letter)
{
    for (; options != NULL && options->name != NULL; options++) {
        if (letter != 0 && options->letter == letter)
            return options;
        if (letter == 0 && strlen(options->name) == len && memcmp(options->name, name, len) == 0)
            return options;
    }
    return NULL;
}

static const struct cli_option *find_option(const struct cli_command *command, const char *name, size_t len,
                                            char letter)
{
    const struct cli_option *found = command == NULL ? NULL : find_in(command->options, name, len, letter);

    return found != NULL ? found : find_in(global_options, name, len, letter);
}

static int unknown_option(const struct cli_command *command, const char *text)
{
    const struct cli_option *lists[2] = { command == NULL ? NULL : command->options, global_options };
    const char *best = NULL;
    unsigned best_distance = 4;
    char name[64];

    (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(text + 2, "="), text + 2);
    for (unsigned l = 0; l < 2; l++) {
        for (const struct cli_option *at = lists[l]; at != NULL && at->name != NULL; at++) {
            unsigned edits = distance(name, at->name);

            if (edits < best_distance) {
                best_distance = edits;
                best = at->name;
            }
        }
    }
    if (best != NULL && text[1] == '-')
        return cli_fail(SHOAL_EXIT_USAGE, "shoal%s%s has no option %s; did you mean --%s?", command == NULL ? "" : " ",
                        command == NULL ? "" : command->words, text, best);
    if (command == NULL)
        return cli_fail(SHOAL_EXIT_USAGE, "%s is no option of every command: say it after the command's words", text);
    return cli_fail(SHOAL_EXIT_USAGE, "shoal %s has no option %s; `shoal help %s` lists them%s", command->words, text,
                    command->words, command->rest ? "; words for the script go after --" : "");
}

static int take_option(struct cli *cli, const char *text, const char *next, bool *took_next)
{
    bool is_long = text[1] == '-';
    const char *name = text + (is_long ? 2 : 1);
    size_t len = is_long ? strcspn(name, "=") : 1;
    const struct cli_option *option;
    const char *value = "";

    *took_next = false;
    if (!is_long && name[1] != '\0')
        return cli_fail(SHOAL_EXIT_USAGE, "%s: write short options one by one", text);
    option = find_option(cli->command, name, len, (char)(is_long ? 0 : name[0]));
    if (option == NULL)
        return unknown_option(cli->command, text);
    if (option->value == NULL && is_long && name[len] == '=')
        return cli_fail(SHOAL_EXIT_USAGE, "--%s takes no value", option->name);
    if (option->value != NULL) {
        value = is_long && name[len] == '=' ? name + len + 1 : next;
        *took_next = !(is_long && name[len] == '=');
        if (value == NULL)
            return cli_fail(SHOAL_EXIT_USAGE, "--%s wants %s", option->name, option->value);
    }
    if (cli->given_count == CLI_GIVEN_MAX)
        return cli_fail(SHOAL_EXIT_USAGE, "more than %d options", CLI_GIVEN_MAX);
    cli->given[cli->given_count].option = option;
    cli->given[cli->given_count++].value = value;
    return SHOAL_EXIT_OK;
}

/* Tells where a user finds the value of a command's first word. */
static const char *where_shown(const struct cli_command *command)
{
    if (strcmp(command->words, "service deploy") == 0)
        return "you choose it; `shoal help service deploy` has examples";
    if (in_group(command->words, "service"))
        return "`shoal service list` shows them";
    if (in_group(command->words, "node"))
        return "`shoal node list` shows them";
    return "`shoal job list` shows IDs";
}

/* An unset variable of the shell: it names nothing, and must not mean all of them. */
static int check_no_word_is_empty(const struct cli *cli)
{
    const char *at = cli->command->args;

    for (unsigned i = 0; i < cli->word_count; i++) {
        at += strspn(at, " [");
        if (cli->words[i][0] == '\0')
            return cli_fail(SHOAL_EXIT_USAGE, "shoal %s: %.*s is empty; %s", cli->command->words,
                            (int)strcspn(at, " ]"), at, where_shown(cli->command));
        at += strcspn(at, " ");
    }
    return SHOAL_EXIT_OK;
}

static int check_words(const struct cli *cli)
{
    const char *at = cli->command->args;
    unsigned min = 0;
    unsigned max = 0;

    if (strstr(at, "...") != NULL)
        return SHOAL_EXIT_OK;
    for (; *at != '\0'; at += strcspn(at, " ") + (at[strcspn(at, " ")] == ' ' ? 1 : 0)) {
        min += *at != '[' ? 1u : 0u;
        max++;
    }
    if (cli->word_count >= min && cli->word_count <= max)
        return check_no_word_is_empty(cli);
    if (cli->word_count > max)
        return cli_fail(SHOAL_EXIT_USAGE, "shoal %s: \"%s\" is one word too many; usage: shoal %s%s%s%s",
                        cli->command->words, cli->words[max], cli->command->words,
                        cli->command->args[0] != '\0' ? " " : "", cli->command->args,
                        cli->command->rest ? " [--OPTION...] [-- WORD...]" : "");
    return cli_fail(SHOAL_EXIT_USAGE, "shoal %s wants %s; %s", cli->command->words, cli->command->args,
                    where_shown(cli->command));
}

static int parse(struct cli *cli, int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        bool took_next = false;
        int code;

        if (strcmp(argv[i], "--") == 0) {
            if (!cli->command->rest)
                return cli_fail(SHOAL_EXIT_USAGE, "shoal %s takes nothing after --", cli->command->words);
            cli->rest = (const char *const *)(argv + i + 1);
            cli->rest_count = (unsigned)(argc - i - 1);
            break;
        }
        if (argv[i][0] != '-' || argv[i][1] == '\0') {
            if (cli->word_count == CLI_WORDS_MAX)
                return cli_fail(SHOAL_EXIT_USAGE, "too many words");
            cli->words[cli->word_count++] = argv[i];
            continue;
        }
        code = take_option(cli, argv[i], i + 1 < argc ? argv[i + 1] : NULL, &took_next);
        if (code != SHOAL_EXIT_OK)
            return code;
        i += took_next ? 1 : 0;
    }
    return SHOAL_EXIT_OK;
}

static int settle_globals(struct cli *cli)
{
    const char *output = cli_value(cli, "output");
    uint64_t timeout_s = 0;

    if (output != NULL && strcmp(output, "json") != 0 && strcmp(output, "text") != 0)
        return cli_fail(SHOAL_EXIT_USAGE, "--output: \"%s\" is not text or json", output);
    cli->json = output != NULL && strcmp(output, "json") == 0;
    cli->quiet = cli_flag(cli, "quiet");
    if (!cli_number(cli, "timeout", 1, 366 * 86400, &timeout_s))
        return SHOAL_EXIT_USAGE;
    cli->timeout_s = (long)timeout_s;
    return check_words(cli);
}

/* ---- commands of this machine ---- */

static const char *text_of(const struct cli *cli, const char *name)
{
    const char *value = cli_value(cli, name);

    return value == NULL ? "" : value;
}

static int fill_agent(struct cli *cli, struct shoal_cli_agent *agent)
{
    uint64_t port = 0;
    uint64_t api_port = 0;
    uint64_t slots = 0;
    uint64_t prefill = UINT64_MAX;
    uint64_t store_map = 0;
    uint64_t log_max = 0;
    uint64_t files_max = 0;
    uint64_t files_gib = 0;
    uint64_t archive_s = 0;
    uint64_t warm_memory = UINT64_MAX;

    if (!cli_number(cli, "port", 1, 65535, &port) || !cli_number(cli, "api-port", 1, 65535, &api_port) ||
        !cli_number(cli, "slots", 1, SHOAL_SLOTS_MAX, &slots) ||
        !cli_number(cli, "prefill", 0, SHOAL_PREFILL_MIB_MAX, &prefill) ||
        !cli_number(cli, "store-map", SHOAL_STORE_MAP_MIB_MIN, SHOAL_PREFILL_MIB_MAX, &store_map) ||
        !cli_number(cli, "log-max", 1, SHOAL_JOB_LOG_MIB_MAX, &log_max) ||
        !cli_number(cli, "files-max", 1, SHOAL_JOB_FILES_MAX, &files_max) ||
        !cli_number(cli, "files-gib", 1, SHOAL_JOB_FILES_GIB_MAX, &files_gib) ||
        !cli_number(cli, "archive-after", SHOAL_ARCHIVE_S_MIN, SHOAL_ARCHIVE_S_MAX, &archive_s) ||
        !cli_number(cli, "warm-memory", 0, SHOAL_WARM_MEMORY_MIB_MAX, &warm_memory))
        return SHOAL_EXIT_USAGE;
    *agent = (struct shoal_cli_agent){
        .data = text_of(cli, "data"),
        .name = text_of(cli, "name"),
        .host = text_of(cli, "host"),
        .port = (uint16_t)port,
        .api_host = text_of(cli, "api-host"),
        .api_port = (uint16_t)api_port,
        .api_plain = cli_flag(cli, "api-plain"),
        .join = text_of(cli, "join"),
        .secret_file = text_of(cli, "secret-file"),
        .mesh_name = text_of(cli, "mesh-name"),
        .admin_user = text_of(cli, "admin-user"),
        .admin_password_file = text_of(cli, "admin-password-file"),
        .slots = (unsigned)slots,
        .inventory = text_of(cli, "inventory"),
        .fabric_trusted = text_of(cli, "fabric-trusted"),
        .transport = text_of(cli, "transport"),
        .domain = text_of(cli, "domain"),
        .metrics_token_file = text_of(cli, "metrics-token-file"),
        .prefill_mib = prefill,
        .store_map_mib = store_map,
        .log_max_mib = (uint32_t)log_max,
        .files_max = (uint32_t)files_max,
        .files_gib = (uint32_t)files_gib,
        .archive_s = (uint32_t)archive_s,
        .warm_memory_mib = warm_memory,
        .python = text_of(cli, "python"),
        .setup_python = cli_flag(cli, "setup-python"),
        .libs = text_of(cli, "libs"),
        .log_level = text_of(cli, "log-level"),
        .foreground = cli_flag(cli, "run"),
        .json = cli->json,
        .verbose = cli_flag(cli, "verbose"),
    };
    if (agent->log_level[0] != '\0' && strcmp(agent->log_level, "debug") != 0 && strcmp(agent->log_level, "info") != 0)
        return cli_fail(SHOAL_EXIT_USAGE, "--log-level: \"%s\" is not debug or info", agent->log_level);
    return SHOAL_EXIT_OK;
}

static int call_hook(struct cli *cli, int (*hook)(const struct shoal_cli_agent *agent), bool wants_data)
{
    struct shoal_cli_agent agent;
    int code = fill_agent(cli, &agent);

    if (code != SHOAL_EXIT_OK)
        return code;
    if (cli->word_count > 0)
        agent.join = cli->words[0];
    if (wants_data && agent.data[0] == '\0')
        return cli_fail(SHOAL_EXIT_USAGE, "shoal %s wants --data DIR: the folder that holds this node",
                        cli->command->words);
    if (hook == NULL)
        return cli_fail(SHOAL_EXIT_FAILED, "shoal %s is not built into this program", cli->command->words);
    return hook(&agent);
}

int cli_run_init(struct cli *cli) { return call_hook(cli, cli->hooks->init, true); }
int cli_run_agent(struct cli *cli) { return call_hook(cli, cli->hooks->agent, true); }
int cli_run_doctor(struct cli *cli) { return call_hook(cli, cli->hooks->doctor, false); }

int cli_run_join(struct cli *cli)
{
    if (cli->word_count == 0 && cli_value(cli, "join") == NULL)
        return cli_fail(SHOAL_EXIT_USAGE,
                        "shoal join wants the address of a member: shoal join HOST:PORT --data DIR --secret-file FILE");
    return call_hook(cli, cli->hooks->join, true);
}

int cli_run_sim(struct cli *cli)
{
    if (cli->hooks->sim == NULL)
        return cli_fail(SHOAL_EXIT_FAILED, "shoal sim is not built into this program");
    return cli->hooks->sim(cli->argc, cli->argv);
}

int cli_run_dlim(struct cli *cli) { return dlim_main(cli->argc - 1, cli->argv + 1, cli->hooks->version); }

int cli_run_version(struct cli *cli)
{
    const char *version = cli->hooks->version == NULL ? "unknown" : cli->hooks->version;

    (void)printf(fails_in_json ? "{\"version\":\"%s\"}\n" : "shoal %s\n", version);
    return SHOAL_EXIT_OK;
}

/* "help job": all of them. */
static void print_group(const char *group)
{
    for (size_t i = 0; i < cli_command_count; i++)
        if (in_group(cli_commands[i].words, group)) {
            char left[64];

            (void)snprintf(left, sizeof(left), "  shoal %-16s %s", cli_commands[i].words, cli_commands[i].args);
            print_row(stdout, left, 38, cli_commands[i].help);
        }
}

int cli_run_help(struct cli *cli)
{
    char *words[2];
    const struct cli_command *command;
    int used;

    if (cli->word_count == 0) {
        print_overview(stdout);
        return SHOAL_EXIT_OK;
    }
    for (unsigned i = 0; i < 2 && i < cli->word_count; i++)
        words[i] = cli->argv[1 + (int)i];
    command = find_command(cli->word_count > 1 ? 2 : 1, words, &used);
    if (command != NULL) {
        print_command(command, stdout);
        return SHOAL_EXIT_OK;
    }
    if (!is_group(cli->words[0]))
        return unknown_command((int)cli->word_count, words);
    print_group(cli->words[0]);
    return SHOAL_EXIT_OK;
}

/* Options of every command may stand before its words, too. Moves `*at` past them. */
static int parse_leading(struct cli *cli, int argc, char **argv, int *at)
{
    while (*at < argc && argv[*at][0] == '-' && argv[*at][1] != '\0' && strcmp(argv[*at], "--") != 0) {
        bool took_next = false;
        int code = take_option(cli, argv[*at], *at + 1 < argc ? argv[*at + 1] : NULL, &took_next);

        if (code != SHOAL_EXIT_OK)
            return code;
        *at += took_next ? 2 : 1;
    }
    return SHOAL_EXIT_OK;
}

/* Before anything else is looked at, so that what is wrong with the words is said in the form that they ask for. */
static bool wants_json(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        bool named = strcmp(argv[i], "-o") == 0 || strcmp(argv[i], "--output") == 0;

        if (strcmp(argv[i], "--output=json") == 0 || (named && i + 1 < argc && strcmp(argv[i + 1], "json") == 0))
            return true;
    }
    return false;
}

/* A command may have an option of this name, with a value: that is not it. */
static bool asks_version(const struct cli *cli)
{
    bool asked = false;

    for (unsigned i = 0; i < cli->given_count; i++)
        asked = asked || cli->given[i].option == find_in(global_options, "version", sizeof("version") - 1, 0);
    return asked;
}

/* Help and version, which need no command. False: neither was asked for. */
static bool answer_globals(struct cli *cli, int *code)
{
    if (asks_version(cli)) {
        *code = cli_run_version(cli);
        return true;
    }
    if (!cli_flag(cli, "help"))
        return false;
    if (cli->command == NULL)
        print_overview(stdout);
    else
        print_command(cli->command, stdout);
    *code = SHOAL_EXIT_OK;
    return true;
}

static int run_words(struct cli *cli, int argc, char **argv)
{
    int at = 1, used = 0;
    int code = parse_leading(cli, argc, argv, &at);

    if (code == SHOAL_EXIT_OK && answer_globals(cli, &code))
        return code;
    if (code == SHOAL_EXIT_OK && at == argc) {
        print_overview(stderr);
        return SHOAL_EXIT_USAGE;
    }
    if (code != SHOAL_EXIT_OK)
        return code;
    cli->command = find_command(argc - at, argv + at, &used);
    if (cli->command == NULL && at + 1 < argc && is_group(argv[at]) &&
        (strcmp(argv[at + 1], "--help") == 0 || strcmp(argv[at + 1], "-h") == 0)) {
        print_group(argv[at]);
        return SHOAL_EXIT_OK;
    }
    if (cli->command == NULL)
        return unknown_command(argc - at, argv + at);
    cli->argc = argc - at;
    cli->argv = argv + at;
    if (cli->command->run == cli_run_sim || cli->command->run == cli_run_dlim) /* they have options of their own */
        return cli->command->run(cli);
    code = parse(cli, argc - at - used, argv + at + used);
    if (code == SHOAL_EXIT_OK && answer_globals(cli, &code))
        return code;
    if (code == SHOAL_EXIT_OK)
        code = settle_globals(cli);
    return code == SHOAL_EXIT_OK ? cli->command->run(cli) : code;
}

int shoal_cli_main(int argc, char **argv, const struct shoal_cli_hooks *hooks)
{
    static struct cli cli; /* large, and there is one */
    int code = SHOAL_EXIT_OK;

    cli = (struct cli){ .hooks = hooks };
    if (argc > 0 && strcmp(strrchr(argv[0], '/') == NULL ? argv[0] : strrchr(argv[0], '/') + 1, "dlim") == 0)
        return dlim_main(argc - 1, argv + 1, hooks->version);
    if (hooks->internal != NULL && argc > 1 && hooks->internal(argc, argv, &code))
        return code;
    fails_in_json = wants_json(argc, argv);
    code = run_words(&cli, argc, argv);
    if ((fflush(stdout) != 0 || ferror(stdout) != 0) && code == SHOAL_EXIT_OK)
        code = cli_fail(SHOAL_EXIT_FAILED, "the output cannot be written: is the disk full?");
    return code;
}
