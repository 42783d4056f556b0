/* The command line: one table of commands, from which parsing and help both come. */
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
    { "node", "URL", "node to ask; a comma list is tried in order [SHOAL_NODE, else https://127.0.0.1:9243]", 'n' },
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

#define AGENT_OPTIONS                                                                                                  \
    { "data", "DIR", "data folder of this node", 'd' }, { "name", "NAME", "name of this node [host name]", 0 },        \
        { "host", "ADDRESS", "address for gossip and links", 0 },                                                      \
        { "port", "PORT", "port for gossip and links", 'p' }, { "api-host", "ADDRESS", "address of the HTTP API", 0 }, \
        { "api-port", "PORT", "port of the HTTP API", 0 },                                                             \
        { "api-plain", NULL, "HTTP without TLS: for tests and trusted proxies only", 0 },                              \
        { "slots", "N", "slots of this host [a GPU each, else a processor each]", 0 },                                            \
        { "inventory", "TEXT", "a declared inventory instead of the real one, such as cpu:2", 0 },                     \
        { "fabric-trusted", "NAMES", "interfaces where training data goes unsealed [none but lo]", 0 },                \
        { "transport", "NAME", "where it is unsealed: auto (UCX if every host has it), ucx or tcp [auto]", 0 },         \
        { "metrics-token-file", "FILE", "its first line opens /metrics, and nothing else, as a bearer token", 0 },     \
        { "domain", "NAME", "failure domain of this host", 0 },                                                        \
        { "prefill", "MIB", "size to which the store is filled beforehand", 0 },                                       \
        { "store-map", "MIB", "the most that the store may take [8192]", 0 },                                          \
        { "log-max", "MIB", "what the logs of one job may take on this host [256]", 0 },                               \
        { "files-max", "COUNT", "files that one job's result folder may hold here [50000]", 0 },                       \
        { "files-gib", "GIB", "what one job's result folder may hold on this host [1024]", 0 },                        \
        { "archive-after", "SECONDS", "from a job's end to its archive [600]", 0 },                                    \
        { "warm-memory", "MIB", "what interpreters kept ready with a framework may hold; 0: none is kept [1024]", 0 }, \
        { "python", "FILE", "interpreter of the workers", 0 },                                                         \
        { "libs", "DIR", "folder of libshoal and its modules", 0 },                                                    \
    {                                                                                                                  \
        "log-level", "LEVEL", "debug or info [info]", 0                                                                \
    }

static const struct cli_option init_options[] = {
    AGENT_OPTIONS,
    { "setup-python", NULL, "where --python lacks torch, make one in the data folder, by pip", 0 },
    { "mesh-name", "NAME", "name of the new mesh [shoal]", 0 },
    { "admin-user", "NAME", "first user [admin]", 0 },
    { "admin-password-file", "FILE", "its password is the first line of FILE [one is made and printed]", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option join_options[] = {
    AGENT_OPTIONS,
    { "setup-python", NULL, "where --python lacks torch, make one in the data folder, by pip", 0 },
    { "join", "ADDRESS", "host:port of any member, instead of the word", 0 },
    { "secret-file", "FILE", "the mesh secret; - for standard input", 0 },
    { "run", NULL, "also run the agent", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option agent_options[] = {
    AGENT_OPTIONS,
    { "join", "ADDRESS", "host:port of any member", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option run_options[] = {
    { "framework", "NAME", "PyTorch or edtPyTorch (see `shoal frameworks`)", 0 },
    { "model-main", "FILE", "script to start, relative to the model directory", 0 },
    { "model-dir", "DIR", "directory to send; may be deleted after the answer", 0 },
    { "workers", "N", "workers; for elastic frameworks the most", 'w' },
    { "device", "KIND", "cpu or gpu", 0 },
    { "memory", "SIZE", "memory of a worker, such as 4G", 0 },
    { "priority", "N", "greater is served first", 0 },
    { "pending-timeout", "SECONDS", "fail if it still waits after this time", 0 },
    { "name", "NAME", "name to show", 0 },
    { "env", "NAME=VALUE", "environment variable of all tasks; may be repeated", 'e' },
    { "data-path", "DIR", "DATA_DIR, relative to the data file system", 0 },
    { "command", NULL, "run the words after -- as a command, not Python", 0 },
    { "option", "TEXT", "any option of execs-api 4.5 as it is (\"--msd-label a=b\"); may be repeated", 0 },
    { "array", "RANGES", "a task for each index, such as 0-9, 1-100:7, 3,5,9-12 or 0-999%8 (8 at once)", 0 },
    { "warm", NULL, "fork the script from a Python that has come up already: saves most of its start", 0 },
    { "ticket", NULL, "take a ticket first, so that every retry is safe", 0 },
    { "wait", NULL, "wait for its end; the exit code is the job's", 0 },
    { "follow", NULL, "print its log while waiting", 'f' },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option list_options[] = {
    { "active", NULL, "only jobs that have not ended", 'a' },
    { "state", "LIST", "only in these states, such as RUNNING,FINISHED", 's' },
    { "owner", "NAME", "only this user's (administrators see everybody's)", 0 },
    { "name", "TEXT", "only with this in their name", 0 },
    { "since", "TIME", "created since: 2h, 3d, or 2031-05-01, or 2031-05-01T09:30:00Z", 0 },
    { "until", "TIME", "created before", 0 },
    { "sort", "FIELD", "created, state, name, user, framework, workers; -FIELD: reversed [-created]", 0 },
    { "limit", "N", "at most so many [on a terminal what fits, else all]", 0 },
    { "page", "TOKEN", "what follows: as the list before said", 0 },
    { "all", NULL, "all pages", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option logs_options[] = {
    { "follow", NULL, "go on until the job ends", 'f' },
    { "which", "NAME", "out, err, outerr, driver, launcher, task-out, task-err, task-outerr, task-launcher [outerr]",
      0 },
    { "rank", "N", "what this worker printed, from 0 on; all: every worker and the driver, each line with its name",
      'r' },
    { "tail", "N", "only the last N lines, and with --follow what comes after them", 't' },
    { "task", "N", "of an array: the task's index; else, for the task logs: 0 the driver, 1 and up the workers", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option tasks_options[] = {
    { "failed", NULL, "only those that failed", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option result_options[] = {
    { "model", NULL, "only what is below model/ in the result folder", 0 },
    { "all", NULL, "everything in the result folder, which is the default", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option metrics_options[] = {
    { "plot", NULL, "draw them", 0 },
    { "csv", NULL, "as CSV, for other programs", 0 },
    { "names", "LIST", "only these metrics, such as loss,accuracy", 0 },
    { "from", "STEP", "from this step on [1]", 0 },
    { "to", "STEP", "up to this step [the last]", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option get_options[] = {
    { "to", "FILE", "write it there [its own name]; - for standard output", 'O' },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option delete_options[] = {
    { "all", NULL, "all jobs of yours", 0 },
    { "yes", NULL, "with --all: do not ask", 'y' },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option recover_options[] = {
    { "yes", NULL, "do it; else only say what may be missing", 'y' },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option deploy_options[] = {
    { "package", "PATH", "directory or archive to serve: model.json and its kernel, or a model's file", 0 },
    { "replicas", "N", "kernels that are to run, on as many hosts as there are; 0: none yet [1]", 0 },
    { "update", NULL, "the next version of a service of this name; the one before answers until it is ready", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option replica_options[] = {
    { "replica", "N", "which replica's [0]", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option remove_options[] = {
    { "force", NULL, "also if it is alive: its workers are lost then", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option leave_options[] = {
    { "force", NULL, "also if it is not drained: its workers are lost then", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option mesh_recover_options[] = {
    { "yes", NULL, "do it; else only say what may be missing", 'y' },
    { "key", "FILE", "the mesh's key: what `shoal init` wrote into mesh.key", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option logon_options[] = {
    { "fingerprint", "TEXT", "believe the mesh with this fingerprint (`shoal init` and `shoal doctor` print it)", 0 },
    { "yes", NULL, "believe whoever answers, this first time, and hold on to it", 'y' },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option top_options[] = {
    { "interval", "SECONDS", "time between looks [1]", 'i' },
    { "count", "N", "looks; 0: no end [on a terminal 0, else 1]", 'c' },
    { NULL, NULL, NULL, 0 },
};

static int run_init(struct cli *cli);
static int run_join(struct cli *cli);
static int run_agent(struct cli *cli);
static int run_doctor(struct cli *cli);
static int run_help(struct cli *cli);
static int run_sim(struct cli *cli);
static int run_version(struct cli *cli);
static int run_dlim(struct cli *cli);

static const struct cli_command commands[] = {
    { .words = "init",
      .args = "",
      .help = "found a mesh on this host",
      .options = init_options,
      .run = run_init,
      .more = "  shoal init --data /var/lib/shoal --mesh-name lab\n" },
    { .words = "join",
      .args = "[ADDRESS]",
      .help = "make this host ready to join a mesh",
      .options = join_options,
      .run = run_join,
      .more = "  shoal join 10.0.0.1:7410 --data /var/lib/shoal --secret-file mesh.key --run\n" },
    { .words = "agent",
      .args = "",
      .help = "run this node",
      .options = agent_options,
      .run = run_agent,
      .more = "  shoal agent --data /var/lib/shoal\n" },
    { .words = "node list", .args = "", .help = "the nodes of the mesh", .run = cli_node_list },
    { .words = "node remove",
      .args = "NODE",
      .help = "a host is gone for good: others take its places, and it is refused from now on (administrators)",
      .options = remove_options,
      .run = cli_node_remove,
      .more = "  shoal node remove gpu7\n" },
    { .words = "node readmit",
      .args = "NODE",
      .help = "its removal was a mistake: take it back (administrators)",
      .run = cli_node_readmit },
    { .words = "node drain",
      .args = "NODE",
      .help = "nothing new goes there, and what it has moves to other hosts (administrators)",
      .run = cli_node_drain,
      .more = "  shoal node drain gpu7; shoal node list; shoal node leave gpu7\n" },
    { .words = "node undrain",
      .args = "NODE",
      .help = "it takes work again (administrators)",
      .run = cli_node_undrain },
    { .words = "node leave",
      .args = "NODE",
      .help = "a host that is drained says goodbye, and its agent stops (administrators)",
      .options = leave_options,
      .run = cli_node_leave },
    { .words = "mesh recover",
      .args = "",
      .help = "most of the mesh group's guardians are gone for good: go on without them (administrators)",
      .options = mesh_recover_options,
      .run = cli_mesh_recover,
      .more = "  shoal mesh recover                        what is left, and what may be missing\n"
              "  shoal mesh recover --yes --key mesh.key   found the next generation from it\n" },
    { .words = "job run",
      .args = "",
      .help = "submit a job",
      .options = run_options,
      .run = cli_job_run,
      .rest = true,
      .more = "  shoal job run --framework edtPyTorch --model-main main.py --model-dir my_model --workers 6\n"
              "  shoal job run --framework PyTorch --model-main t.py --model-dir my_model --wait -- --epochs 3\n"
              "  shoal job run --framework PyTorch --model-main t.py --model-dir my_model --array 0-999%8\n" },
    { .words = "job list", .args = "", .help = "jobs, the newest first", .options = list_options, .run = cli_job_list },
    { .words = "job show", .args = "ID", .help = "all about one job", .run = cli_job_show },
    { .words = "job tasks",
      .args = "ID",
      .help = "the tasks of an array: state, exit code, host",
      .options = tasks_options,
      .run = cli_job_tasks,
      .more = "  shoal job tasks 41z --failed\n" },
    { .words = "job logs",
      .args = "ID",
      .help = "its log",
      .options = logs_options,
      .run = cli_job_logs,
      .more = "  shoal job logs -f 41z\n" },
    { .words = "job metrics",
      .args = "ID",
      .help = "loss and metrics of its committed steps",
      .options = metrics_options,
      .run = cli_job_metrics,
      .more = "  shoal job metrics 41z --plot\n"
              "  shoal job metrics 41z --csv > curve.csv\n" },
    { .words = "job wait", .args = "ID", .help = "wait for its end; the exit code is the job's", .run = cli_job_wait },
    { .words = "job stop", .args = "ID", .help = "stop it", .run = cli_job_stop },
    { .words = "job files", .args = "ID", .help = "the files in its result folder", .run = cli_job_files },
    { .words = "job get",
      .args = "ID PATH",
      .help = "fetch one of them",
      .options = get_options,
      .run = cli_job_get,
      .more = "  shoal job get 41z model/train/model_epoch_final.pth -O model.pth\n" },
    { .words = "job result",
      .args = "ID [FILE]",
      .help = "fetch all of them as a zip (- for standard output)",
      .options = result_options,
      .run = cli_job_result },
    { .words = "job delete",
      .args = "[ID]",
      .help = "delete it and its result; stops it first",
      .options = delete_options,
      .run = cli_job_delete },
    { .words = "job recover",
      .args = "ID",
      .help = "most of its guardians are gone for good: go on from the replica that is left (administrators)",
      .options = recover_options,
      .run = cli_job_recover,
      .more = "  shoal job recover 41z          what is left, and what may be missing\n"
              "  shoal job recover 41z --yes    found the next recovery generation from it\n" },
    { .words = "job ledger",
      .args = "ID",
      .help = "which samples were trained, epoch by epoch",
      .run = cli_job_ledger },
    { .words = "service deploy",
      .args = "NAME",
      .help = "serve a model: any node answers for it",
      .options = deploy_options,
      .run = cli_service_deploy,
      .rest = true,
      .more = "  shoal service deploy digits --package my_package --replicas 3\n"
              "  shoal service deploy digits --package my_package --update         its next version\n"
              "  shoal service deploy echo --package my_package -- ./my_kernel     its own program\n" },
    { .words = "service list", .args = "", .help = "the services of the mesh", .run = cli_service_list },
    { .words = "service show", .args = "NAME", .help = "all about one service", .run = cli_service_show },
    { .words = "service start",
      .args = "NAME",
      .help = "as many replicas as its profile says",
      .run = cli_service_start },
    { .words = "service stop", .args = "NAME", .help = "no replica; it stays deployed", .run = cli_service_stop },
    { .words = "service scale", .args = "NAME N", .help = "as many replicas as that", .run = cli_service_scale },
    { .words = "service rollback",
      .args = "NAME",
      .help = "back to the version before",
      .run = cli_service_rollback },
    { .words = "service delete", .args = "NAME", .help = "end it and forget it", .run = cli_service_delete },
    { .words = "service logs",
      .args = "NAME",
      .help = "what a replica prints",
      .options = replica_options,
      .run = cli_service_logs },
    { .words = "top", .args = "", .help = "nodes and jobs, live", .options = top_options, .run = cli_top },
    { .words = "why", .args = "ID", .help = "why a job is where it is", .run = cli_why },
    { .words = "frameworks", .args = "", .help = "what jobs can be", .run = cli_frameworks },
    { .words = "status", .args = "", .help = "whether the node and its mesh are well", .run = cli_status },
    { .words = "logon",
      .args = "[USER]",
      .help = "get a token and keep it, and get to know the mesh",
      .options = logon_options,
      .run = cli_logon,
      .more = "  SHOAL_PASSWORD=... shoal logon ada --node https://host:9243\n" },
    { .words = "logoff", .args = "", .help = "end the kept token everywhere", .run = cli_logoff },
    { .words = "dlim",
      .args = "...",
      .help = "models and their services by the words of WMLA's dlim; so does a link of this name",
      .run = run_dlim,
      .more = "  shoal dlim config -c https://host:9243; shoal dlim config -t -u ada -x PASSWORD\n"
              "  shoal dlim model deploy -p my_model; shoal dlim model view my-model -s\n"
              "  shoal dlim --help\n" },
    { .words = "sim", .args = "...", .help = "run the cores of the agent in a simulated mesh", .run = run_sim },
    { .words = "doctor", .args = "", .help = "check this host", .options = agent_options, .run = run_doctor },
    { .words = "version", .args = "", .help = "print the version", .run = run_version },
    { .words = "help", .args = "[COMMAND...]", .help = "this text, or that of one command", .run = run_help },
};

#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

/* ---- small things ---- */

/* What fails is said in the form that --output asks for, also where the words could not be parsed to their end. */
static bool fails_in_json;

static void fail_in_json(int code, const char *text)
{
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    json_object_begin(&w, NULL);
    json_text(&w, "error", text);
    json_int(&w, "exitCode", code);
    json_end(&w);
    if (!w.failed)
        (void)fprintf(stderr, "%.*s\n", (int)buf.len, (const char *)buf.bytes);
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
        (void)fprintf(stderr, "shoal: %s\n", text);
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

static void print_options(const struct cli_option *options, FILE *out)
{
    for (; options != NULL && options->name != NULL; options++) {
        char left[64];

        (void)snprintf(left, sizeof(left), "%c%c%s--%s%s%s", options->letter != 0 ? '-' : ' ',
                       options->letter != 0 ? options->letter : ' ', options->letter != 0 ? ", " : "  ", options->name,
                       options->value != NULL ? " " : "", options->value != NULL ? options->value : "");
        (void)fprintf(out, "  %-30s %s\n", left, options->help);
    }
}

static void print_command(const struct cli_command *command, FILE *out)
{
    (void)fprintf(out, "shoal %s%s%s%s: %s\n", command->words, command->args[0] != '\0' ? " " : "", command->args,
                  command->rest ? " [-- WORD...]" : "", command->help);
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
             "  shoal job run --framework edtPyTorch --model-main main.py --model-dir DIR --workers 6\n\nCommands:\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        char left[64];

        (void)snprintf(left, sizeof(left), "%s %s", commands[i].words, commands[i].args);
        (void)fprintf(out, "  %-24s %s\n", left, commands[i].help);
    }
    (void)fprintf(
        out, "\n`shoal help COMMAND` shows its options. IDs may be cut to any ending that is clear.\n"
             "Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 denied, 5 unreachable or no majority, 6 timeout, "
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
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        char two[64] = "";
        unsigned words = word_count(commands[i].words);

        if (argc < (int)words)
            continue;
        (void)snprintf(two, sizeof(two), "%.30s%s%.30s", argv[0], words > 1 ? " " : "", words > 1 ? argv[1] : "");
        if (strcmp(two, commands[i].words) == 0) {
            *used = (int)words;
            return &commands[i];
        }
    }
    return NULL;
}

/* What people type who know other programs' words. */
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
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (in_group(commands[i].words, word))
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
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        unsigned edits = distance(said, commands[i].words);

        if ((group != NULL && !in_group(commands[i].words, group)) || edits >= best_distance)
            continue;
        best_distance = edits;
        best = commands[i].words;
    }
    return best;
}

/* "run, list, show": what may follow the group's word. */
static void verbs_of(const char *group, char *out, size_t cap)
{
    size_t used = 0;

    out[0] = '\0';
    for (size_t i = 0; i < COMMAND_COUNT && used < cap; i++)
        if (in_group(commands[i].words, group))
            used += (size_t)snprintf(out + used, cap - used, "%s%s", used > 0 ? ", " : "",
                                     commands[i].words + strlen(group) + 1);
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
        return SHOAL_EXIT_OK;
    if (cli->word_count > max)
        return cli_fail(SHOAL_EXIT_USAGE, "shoal %s: \"%s\" is one word too many; usage: shoal %s %s",
                        cli->command->words, cli->words[max], cli->command->words, cli->command->args);
    return cli_fail(SHOAL_EXIT_USAGE, "shoal %s wants %s; `shoal job list` shows IDs", cli->command->words,
                    cli->command->args);
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
    uint64_t timeout = 0;

    if (output != NULL && strcmp(output, "json") != 0 && strcmp(output, "text") != 0)
        return cli_fail(SHOAL_EXIT_USAGE, "--output: \"%s\" is not text or json", output);
    cli->json = output != NULL && strcmp(output, "json") == 0;
    cli->quiet = cli_flag(cli, "quiet");
    if (!cli_number(cli, "timeout", 1, 366 * 86400, &timeout))
        return SHOAL_EXIT_USAGE;
    cli->timeout_s = (long)timeout;
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

static int run_init(struct cli *cli) { return call_hook(cli, cli->hooks->init, true); }
static int run_agent(struct cli *cli) { return call_hook(cli, cli->hooks->agent, true); }
static int run_doctor(struct cli *cli) { return call_hook(cli, cli->hooks->doctor, false); }

static int run_join(struct cli *cli)
{
    if (cli->word_count == 0 && cli_value(cli, "join") == NULL)
        return cli_fail(SHOAL_EXIT_USAGE,
                        "shoal join wants the address of a member: shoal join HOST:PORT --data DIR --secret-file FILE");
    return call_hook(cli, cli->hooks->join, true);
}

static int run_sim(struct cli *cli)
{
    if (cli->hooks->sim == NULL)
        return cli_fail(SHOAL_EXIT_FAILED, "shoal sim is not built into this program");
    return cli->hooks->sim(cli->argc, cli->argv);
}

static int run_dlim(struct cli *cli) { return dlim_main(cli->argc - 1, cli->argv + 1, cli->hooks->version); }

static int run_version(struct cli *cli)
{
    const char *version = cli->hooks->version == NULL ? "unknown" : cli->hooks->version;

    (void)printf(fails_in_json ? "{\"version\":\"%s\"}\n" : "shoal %s\n", version);
    return SHOAL_EXIT_OK;
}

static int run_help(struct cli *cli)
{
    char *words[2];
    const struct cli_command *command;
    int used;
    bool any = false;

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
    for (size_t i = 0; i < COMMAND_COUNT; i++) { /* "help job": all of them */
        size_t len = strlen(cli->words[0]);

        if (strncmp(commands[i].words, cli->words[0], len) == 0 && commands[i].words[len] == ' ') {
            (void)printf("  shoal %-14s %-12s %s\n", commands[i].words, commands[i].args, commands[i].help);
            any = true;
        }
    }
    return any ? SHOAL_EXIT_OK : unknown_command((int)cli->word_count, words);
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

/* What no command's own words are needed for. False: nothing of it was asked. */
static bool answer_globals(struct cli *cli, int *code)
{
    if (cli_flag(cli, "version")) {
        *code = run_version(cli);
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
    if (cli->command == NULL)
        return unknown_command(argc - at, argv + at);
    cli->argc = argc - at;
    cli->argv = argv + at;
    if (cli->command->run == run_sim || cli->command->run == run_dlim) /* they have options of their own */
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
