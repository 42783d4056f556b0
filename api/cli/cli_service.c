/* shoal service: deploy, list, show, start, stop, scale, canary, promote, rollback, delete, logs. */
#include "cli_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/http/json_writer.h"

#include "shoal/banned.h"

#define NAME_BYTES 300
#define DEPLOY_TIMEOUT_S 60

/* The address of the service that is named, and what follows it there. */
static void service_path(const struct cli *cli, const char *end, char *path, size_t cap)
{
    char name[NAME_BYTES];

    cli_encode(cli->words[0], name, sizeof(name));
    (void)snprintf(path, cap, "/v1/services/%s%s", name, end);
}

/* POST or DELETE, and say what the answer's text says. */
static int change(struct cli *cli, const char *method, const char *verb)
{
    char path[800];
    struct cli_call call = { .method = method, .path = path };
    struct cli_answer answer;
    struct json_input *input;
    int code;

    service_path(cli, verb, path, sizeof(path));
    code = cli_call(cli, &call, &answer, false);
    if (code == SHOAL_EXIT_OK && cli->json)
        cli_print_json(cli_answer_text(&answer));
    if (code == SHOAL_EXIT_OK && !cli->json && (code = cli_parse(&answer, &input)) == SHOAL_EXIT_OK) {
        (void)printf("%s\n", cli_text_at(json_input_root(input), "text"));
        json_input_free(input);
    }
    cli_answer_free(&answer);
    return code;
}

int cli_service_start(struct cli *cli) { return change(cli, "POST", "/start"); }

int cli_service_stop(struct cli *cli) { return change(cli, "POST", "/stop"); }

/* The number of the version that is kept beside the current one; 0: there is none, or the node does not say. */
static int find_other_version(struct cli *cli, uint64_t *number)
{
    char path[400];
    const struct json_value *versions;
    struct json_input *input;
    struct cli_answer answer;
    int code;

    service_path(cli, "", path, sizeof(path));
    code = cli_get(cli, path, &answer, &input);
    if (code == SHOAL_EXIT_OK) {
        versions = json_input_get(json_input_root(input), "versions");
        if (versions != NULL && json_input_count(versions) > 1)
            *number = (uint64_t)cli_int_at(json_input_at(versions, 1), "version");
    }
    json_input_free(input);
    cli_answer_free(&answer);
    return code;
}

/* It names the version, so that it can be said again where its answer is lost: without that a second one would go forth. */
int cli_service_rollback(struct cli *cli)
{
    uint64_t to = 0;
    char verb[64];
    int code = SHOAL_EXIT_OK;

    if (cli_value(cli, "to") != NULL && !cli_number(cli, "to", 1, 999999999, &to))
        return SHOAL_EXIT_USAGE;
    if (to == 0)
        code = find_other_version(cli, &to);
    if (code != SHOAL_EXIT_OK)
        return code;
    (void)snprintf(verb, sizeof(verb), to > 0 ? "/rollback?to=%" PRIu64 : "/rollback", to);
    code = change(cli, "POST", verb);
    if (to > 0 && (code == SHOAL_EXIT_UNREACHABLE || code == SHOAL_EXIT_TIMEOUT))
        (void)cli_fail(code, "if it is not known whether that was done: shoal service rollback %s --to %" PRIu64
                             " may be said again", cli->words[0], to);
    return code;
}

int cli_service_promote(struct cli *cli) { return change(cli, "POST", "/promote"); }

int cli_service_canary(struct cli *cli)
{
    const char *version = cli_value(cli, "version");
    char verb[400], number[300];
    uint64_t weight = UINT64_MAX;

    if (cli_flag(cli, "off") && (version != NULL || cli_value(cli, "weight") != NULL))
        return cli_fail(SHOAL_EXIT_USAGE, "--off ends the canary; it goes without --version and --weight");
    if (cli_flag(cli, "off"))
        return change(cli, "DELETE", "/canary");
    if (version == NULL || cli_value(cli, "weight") == NULL)
        return cli_fail(SHOAL_EXIT_USAGE, "--version and --weight say which version gets how many percent of the "
                                          "requests; --off ends it");
    if (!cli_number(cli, "weight", 0, 100, &weight))
        return SHOAL_EXIT_USAGE;
    cli_encode(version, number, sizeof(number));
    (void)snprintf(verb, sizeof(verb), "/canary?version=%s&weight=%" PRIu64, number, weight);
    return change(cli, "POST", verb);
}

int cli_service_delete(struct cli *cli) { return change(cli, "DELETE", ""); }

int cli_service_scale(struct cli *cli)
{
    char verb[64];
    char *end;
    unsigned long replicas = strtoul(cli->words[1], &end, 10);

    if (*end != '\0' || cli->words[1][0] < '0' || cli->words[1][0] > '9' || replicas > SHOAL_SERVICE_REPLICAS_MAX)
        return cli_fail(SHOAL_EXIT_USAGE, "\"%s\" is not a number of replicas: 0 to %u", cli->words[1],
                        SHOAL_SERVICE_REPLICAS_MAX);
    (void)snprintf(verb, sizeof(verb), "/scale?replicas=%lu", replicas);
    return change(cli, "POST", verb);
}

/* ---- looking ---- */

/* How many there are, and the part that one of them gets as a canary: "2, 25 %". */
static void say_versions(const struct json_value *service, char *text, size_t cap)
{
    const struct json_value *versions = json_input_get(service, "versions");
    size_t count = versions == NULL ? 1 : json_input_count(versions); /* an older agent does not say */

    (void)snprintf(text, cap, "%zu", count);
    for (size_t i = 0; versions != NULL && i < count; i++)
        if (strcmp(cli_text_at(json_input_at(versions, i), "role"), "canary") == 0)
            (void)snprintf(text, cap, "%zu, %" PRId64 " %%", count, cli_int_at(json_input_at(versions, i), "weight"));
}

static void print_row(const struct json_value *service)
{
    char versions[64];

    say_versions(service, versions, sizeof(versions));
    (void)printf("%-24s %-10s %6" PRId64 " %6" PRId64 "  %-9s %-12s %s\n", cli_shown(cli_text_at(service, "name")),
                 cli_text_at(service, "state"), cli_int_at(service, "ready"), cli_int_at(service, "replicas"), versions,
                 cli_shown(cli_text_at(service, "creator")), cli_text_at(service, "job"));
}

static void print_list(const struct cli *cli, const struct json_value *root)
{
    const struct json_value *services = json_input_get(root, "services");

    (void)cli;
    (void)printf("%-24s %-10s %6s %6s  %-9s %-12s %s\n", "NAME", "STATE", "READY", "WANTED", "VERSIONS", "CREATOR", "JOB");
    for (size_t i = 0; services != NULL && i < json_input_count(services); i++)
        print_row(json_input_at(services, i));
}

int cli_service_list(struct cli *cli) { return cli_show(cli, "/v1/services", print_list); }

static void print_version(const struct json_value *version)
{
    (void)printf("v%-8" PRId64 " %s: %" PRId64 " %% of the requests, %" PRId64 " of %" PRId64 " ready, %" PRId64
                 " in hand, %" PRId64 " answered, %" PRId64 " failed\n",
                 cli_int_at(version, "version"), cli_text_at(version, "role"), cli_int_at(version, "weight"),
                 cli_int_at(version, "ready"), cli_int_at(version, "replicas"), cli_int_at(version, "open"),
                 cli_int_at(version, "answered"), cli_int_at(version, "failed"));
}

static void print_service(const struct cli *cli, const struct json_value *root)
{
    const struct json_value *hosts = json_input_get(root, "hosts"), *versions = json_input_get(root, "versions");
    const char *why = cli_text_at(root, "why");

    (void)cli;
    (void)printf("name      %s\nstate     %s\nready     %" PRId64 " of %" PRId64 "\nversion   %" PRId64
                 "\ncreator   %s\njob       %s\n",
                 cli_shown(cli_text_at(root, "name")), cli_text_at(root, "state"), cli_int_at(root, "ready"),
                 cli_int_at(root, "replicas"), cli_int_at(root, "version"), cli_shown(cli_text_at(root, "creator")),
                 cli_text_at(root, "job"));
    if (why[0] != '\0')
        (void)printf("why       %s\n", cli_shown(why));
    for (size_t i = 0; versions != NULL && i < json_input_count(versions); i++)
        print_version(json_input_at(versions, i));
    for (size_t i = 0; hosts != NULL && i < json_input_count(hosts); i++) {
        const struct json_value *host = json_input_at(hosts, i);

        (void)printf("host      %s: %" PRId64 " ready, %" PRId64 " requests in hand\n",
                     cli_shown(cli_text_at(host, "node")), cli_int_at(host, "ready"), cli_int_at(host, "open"));
    }
}

int cli_find_service(struct cli *cli, bool *said)
{
    char path[400];
    struct cli_call call = { .method = "GET", .path = path };
    struct cli_answer answer;
    int code;

    service_path(cli, "", path, sizeof(path));
    code = cli_call(cli, &call, &answer, true);
    *said = answer.status == 0 && answer.fault[0] == '\0' && (code == SHOAL_EXIT_DENIED || code == SHOAL_EXIT_USAGE);
    cli_answer_free(&answer);
    return code;
}

/* The kernels that have a card, as the hosts say; an older one says none. */
static void print_cards(struct cli *cli)
{
    char path[400], name[NAME_BYTES];
    struct cli_call call = { .method = "GET", .path = path };
    struct cli_answer answer;
    struct json_input *input = NULL;
    const struct json_value *kernels = NULL;

    cli_encode(cli->words[0], name, sizeof(name));
    (void)snprintf(path, sizeof(path), "/dlim/v1/model/%s/instance", name);
    if (cli_call(cli, &call, &answer, true) == SHOAL_EXIT_OK && cli_parse(&answer, &input) == SHOAL_EXIT_OK)
        kernels = json_input_get(json_input_at(json_input_get(json_input_root(input), "instances"), 0), "isd_container");
    for (size_t i = 0; kernels != NULL && i < json_input_count(kernels); i++) {
        const struct json_value *kernel = json_input_at(kernels, i);

        if (cli_text_at(kernel, "gpu")[0] != '\0')
            (void)printf("kernel    %s on %s: %s (%s), %" PRId64 " of %" PRId64 " MiB\n",
                         cli_shown(cli_text_at(kernel, "container_uid")), cli_shown(cli_text_at(kernel, "container_host")),
                         cli_shown(cli_text_at(kernel, "gpu")), cli_shown(cli_text_at(kernel, "gpu_name")),
                         cli_int_at(kernel, "gpu_mem"), cli_int_at(kernel, "gpu_mem_total"));
    }
    json_input_free(input);
    cli_answer_free(&answer);
}

int cli_service_show(struct cli *cli)
{
    char path[400];
    int code;

    service_path(cli, "", path, sizeof(path));
    code = cli_show(cli, path, print_service);
    if (code == SHOAL_EXIT_OK && !cli->json)
        print_cards(cli);
    return code;
}

/* The log of one replica: its job's, of the task with its number. */
int cli_service_logs(struct cli *cli)
{
    char path[400];
    struct cli_call call = { .method = "GET" };
    struct cli_log_text shown = { .held_len = 0 };
    struct cli_answer answer;
    struct json_input *input;
    int code;

    service_path(cli, "", path, sizeof(path));
    code = cli_get(cli, path, &answer, &input);
    if (code == SHOAL_EXIT_OK) {
        (void)snprintf(path, sizeof(path), "/v1/jobs/%.80s/log?which=task-outerr&task=%.20s",
                       cli_text_at(json_input_root(input), "job"),
                       cli_value(cli, "replica") == NULL ? "0" : cli_value(cli, "replica"));
        cli_answer_free(&answer);
        call.path = path;
        code = cli_call(cli, &call, &answer, false);
    }
    if (code == SHOAL_EXIT_OK)
        cli_put_log(&shown, cli_answer_text(&answer), answer.body.len);
    json_input_free(input);
    cli_answer_free(&answer);
    return code;
}

/* ---- deploying ---- */

/* The words after -- as the arguments of a submit; NULL: there are none. */
static char *make_data(const struct cli *cli)
{
    static const char *const first[] = { "--exec-start", "PyTorch", "--user-cmd", "--" };
    struct cli_args args = { .failed = false };
    struct shoal_buf data = { 0 };
    struct json_writer w = json_writer_init(&data);
    bool fine;

    for (unsigned i = 0; i < sizeof(first) / sizeof(first[0]); i++)
        cli_args_add(&args, first[i]);
    for (unsigned i = 0; i < cli->rest_count; i++)
        cli_args_add(&args, cli->rest[i]);
    fine = shoal_buf_append(&args.text, "", 1) == SHOAL_OK && !args.failed;
    json_object_begin(&w, NULL);
    json_text(&w, "args", fine ? (const char *)args.text.bytes : "");
    json_end(&w);
    fine = fine && !w.failed && shoal_buf_append(&data, "", 1) == SHOAL_OK;
    shoal_buf_deinit(&args.text);
    if (!fine)
        shoal_buf_deinit(&data);
    return (char *)data.bytes;
}

/* POST of a service, and what the answer says. `body`: of --from-job. */
static int deploy(struct cli *cli, const char *service, const char *query, struct cli_call *call)
{
    char path[1000], name[NAME_BYTES], canary[32] = "";
    uint64_t replicas = 1, percent = 0;
    struct cli_answer answer;
    struct json_input *input;
    int code;

    if (cli_value(cli, "replicas") != NULL && !cli_number(cli, "replicas", 0, SHOAL_SERVICE_REPLICAS_MAX, &replicas))
        return SHOAL_EXIT_USAGE;
    if (cli_value(cli, "canary") != NULL && !cli_number(cli, "canary", 0, 100, &percent))
        return SHOAL_EXIT_USAGE;
    if (cli_value(cli, "canary") != NULL && cli_flag(cli, "update"))
        return cli_fail(SHOAL_EXIT_USAGE, "--update has the new version take over, --canary gives it a part of the "
                                          "requests: one of them");
    if (cli_value(cli, "canary") != NULL)
        (void)snprintf(canary, sizeof(canary), "&canary=%" PRIu64, percent);
    cli_encode(service, name, sizeof(name));
    (void)snprintf(path, sizeof(path), "/v1/services/%s?replicas=%" PRIu64 "%s%s%s", name, replicas,
                   cli_flag(cli, "update") ? "&update=true" : "", canary, query);
    call->method = "POST";
    call->path = path;
    call->timeout_s = DEPLOY_TIMEOUT_S;
    code = cli_call(cli, call, &answer, false);
    if (code == SHOAL_EXIT_OK && cli->json)
        cli_print_json(cli_answer_text(&answer));
    if (code == SHOAL_EXIT_OK && !cli->json && (code = cli_parse(&answer, &input)) == SHOAL_EXIT_OK) {
        (void)printf("deployed %s: job %s; shoal service show %s\n", service,
                     cli_text_at(json_input_root(input), "job"), service);
        json_input_free(input);
    }
    cli_answer_free(&answer);
    return code;
}

static int send_package(struct cli *cli, const char *file, const char *file_name)
{
    char *data = cli->rest_count > 0 ? make_data(cli) : NULL;
    struct cli_call call = { .data = data, .file = file, .file_name = file_name };
    int code = deploy(cli, cli->words[0], "", &call);

    free(data);
    return code;
}

/* The model of a job: the node makes the package. */
static int send_job(struct cli *cli, const char *service, const char *job)
{
    static const char *const wishes[] = { "weight", "kernel", "class" };
    struct shoal_buf body = { 0 };
    struct json_writer w = json_writer_init(&body);
    char id[NAME_BYTES], query[NAME_BYTES + 16];
    struct cli_call call = { .method = NULL };
    bool said = false;
    int code = SHOAL_EXIT_FAILED;

    json_object_begin(&w, NULL);
    for (unsigned i = 0; i < sizeof(wishes) / sizeof(wishes[0]); i++)
        if (cli_value(cli, wishes[i]) != NULL) {
            json_text(&w, wishes[i], cli_value(cli, wishes[i]));
            said = true;
        }
    json_end(&w);
    cli_encode(job, id, sizeof(id));
    (void)snprintf(query, sizeof(query), "&from_job=%s", id);
    if (w.failed || shoal_buf_append(&body, "", 1) != SHOAL_OK) {
        code = cli_fail(code, "out of memory");
    } else {
        call.body = said ? (const char *)body.bytes : NULL;
        code = deploy(cli, service, query, &call);
    }
    shoal_buf_deinit(&body);
    return code;
}

/* A job's name becomes its service's: what a name may not hold is left out. */
static void service_name(const char *app, char *name, size_t cap)
{
    size_t len = 0;

    for (; *app != '\0' && len + 1 < cap && len < 63; app++) {
        bool plain = (*app >= 'a' && *app <= 'z') || (*app >= 'A' && *app <= 'Z') || (*app >= '0' && *app <= '9');

        if (plain || (len > 0 && (*app == '-' || *app == '_' || *app == '.')))
            name[len++] = *app;
    }
    while (len > 0 && (name[len - 1] == '-' || name[len - 1] == '_' || name[len - 1] == '.'))
        len--;
    name[len] = '\0';
}

int cli_job_deploy(struct cli *cli)
{
    char path[400], id[NAME_BYTES], name[64];
    struct cli_answer answer;
    struct json_input *input;
    int code;

    if (cli_value(cli, "name") != NULL)
        return send_job(cli, cli_value(cli, "name"), cli->words[0]);
    cli_encode(cli->words[0], id, sizeof(id));
    (void)snprintf(path, sizeof(path), "/v1/jobs/%s", id);
    code = cli_get(cli, path, &answer, &input);
    if (code == SHOAL_EXIT_OK)
        service_name(cli_text_at(json_input_root(input), "name"), name, sizeof(name));
    json_input_free(input);
    cli_answer_free(&answer);
    if (code == SHOAL_EXIT_OK && name[0] == '\0')
        return cli_fail(SHOAL_EXIT_USAGE, "the job has no name that a service can have; say --name");
    return code == SHOAL_EXIT_OK ? send_job(cli, name, cli->words[0]) : code;
}

int cli_service_deploy(struct cli *cli)
{
    const char *package = cli_value(cli, "package");
    char packed[1024] = "", top[256], file_name[300];
    char *real = NULL;
    const char *base;
    struct shoal_msg msg;
    struct stat facts;
    int code;

    if (cli_value(cli, "from-job") != NULL && (package != NULL || cli->rest_count > 0))
        return cli_fail(SHOAL_EXIT_USAGE, "--from-job and a package, or a command: one of them");
    if (cli_value(cli, "from-job") != NULL)
        return send_job(cli, cli->words[0], cli_value(cli, "from-job"));
    if (cli_value(cli, "weight") != NULL || cli_value(cli, "kernel") != NULL || cli_value(cli, "class") != NULL)
        return cli_fail(SHOAL_EXIT_USAGE,
                        "--weight, --kernel and --class are of --from-job; a package has its model.json");
    if (package == NULL)
        return cli_fail(SHOAL_EXIT_USAGE,
                        "--package says which directory or archive is to be served, or --from-job which "
                        "job's model");
    real = realpath(package, NULL);
    if (real == NULL || stat(real, &facts) != 0) {
        free(real);
        return cli_fail(SHOAL_EXIT_USAGE, "--package: %s: %s", package, strerror(errno));
    }
    base = strrchr(real, '/') + 1;
    (void)snprintf(top, sizeof(top), "%.200s", base);
    (void)snprintf(file_name, sizeof(file_name), "%.200s%s", base, S_ISDIR(facts.st_mode) ? ".modelDir.tar" : "");
    if (S_ISDIR(facts.st_mode) && cli_pack(real, top, packed, sizeof(packed), &msg) != SHOAL_OK)
        code = cli_fail(SHOAL_EXIT_FAILED, "%s", msg.text);
    else
        code = send_package(cli, packed[0] == '\0' ? real : packed, file_name);
    if (packed[0] != '\0')
        (void)unlink(packed);
    free(real);
    return code;
}
