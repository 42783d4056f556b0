/* dlim: models by WMLA's words. What it does is one table of commands; each is one request or two of /dlim/v1.
 *
 *   dlim config -c URL | -t -u USER -x PASSWORD | -s        ~/.dlim/config: server and tokens
 *   dlim model VERB ...    dlim runtime VERB ...            --rest-server, --jwt-token: instead of what is stored
 *
 * V1. On success nothing is printed but the texts of the contract: scripts compare the first or the last line.
 * V2. A failure is the server's message alone on a line of stderr, and exit code 1.
 * V3. Certificates are not checked, as the original does not: where that matters, use `shoal service`. */
#include "dlim.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/limits.h"

#include "api/http/json_writer.h"

#include "shoal/banned.h"

#define CONFIG_FILE ".dlim/config"
#define FILES_MAX 20000u
#define TREE_DEPTH_MAX 32u

static const char usage[] =
    "Usage: dlim [--help] [--version] COMMAND\n\n"
    "  dlim config -c URL                              store the address of the server\n"
    "  dlim config -t -u USER (-x PASSWORD|-k APIKEY)  get tokens, store them, print the user token\n"
    "  dlim config -s [-u USER (-x PASSWORD|-k APIKEY)] print the service token\n"
    "  dlim model list\n"
    "  dlim model view NAME [-s [-a]]                  -s: its services; -a: their kernels, too\n"
    "  dlim model deploy -p DIR [-f]                   -f: update it without a question\n"
    "  dlim model start NAME\n"
    "  dlim model stop NAME [-f]\n"
    "  dlim model undeploy NAME [-f]\n"
    "  dlim model viewprofile NAME [-j]                -j: as JSON\n"
    "  dlim model updateprofile NAME -f FILE\n"
    "  dlim runtime list\n"
    "  dlim runtime view NAME\n"
    "  dlim runtime create -f FILE\n"
    "  dlim runtime update NAME -f FILE\n"
    "  dlim runtime delete NAME [-f]\n\n"
    "Of each: --rest-server URL and --jwt-token TOKEN instead of what is stored.\n";

__attribute__((format(printf, 1, 2))) static int complain(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fputc('\n', stderr);
    return SHOAL_EXIT_FAILED;
}

/* ---- words ---- */

static bool is_word(const struct dlim *dlim, unsigned at, const char *text)
{
    return at < dlim->word_count && strcmp(dlim->words[at], text) == 0;
}

/* Whether -f wants a file: of these commands only. */
static bool wants_file(const struct dlim *dlim)
{
    return (is_word(dlim, 0, "model") && is_word(dlim, 1, "updateprofile")) ||
           (is_word(dlim, 0, "runtime") && (is_word(dlim, 1, "create") || is_word(dlim, 1, "update")));
}

struct place {
    const char *name;
    const char **value; /* NULL: a flag */
    bool *flag;
};

static bool find_place(struct dlim *dlim, const char *text, size_t len, struct place *found)
{
    const struct place places[] = {
        { "--rest-server", &dlim->server, NULL }, { "--jwt-token", &dlim->token, NULL },
        { "-c", &dlim->new_server, NULL },        { "-u", &dlim->user, NULL },
        { "-x", &dlim->password, NULL },          { "-k", &dlim->api_key, NULL },
        { "-p", &dlim->dir, NULL },               { "-a", NULL, &dlim->all },
        { "-j", NULL, &dlim->as_json },           { "-t", NULL, &dlim->user_token },
        { "--help", NULL, &dlim->help },          { "-h", NULL, &dlim->help },
        { "--version", NULL, &dlim->version },
    };

    if (len == 2 && memcmp(text, "-f", 2) == 0) {
        *found = wants_file(dlim) ? (struct place){ "-f", &dlim->file, NULL }
                                  : (struct place){ "-f", NULL, &dlim->force };
        return true;
    }
    if (len == 2 && memcmp(text, "-s", 2) == 0) {
        *found = (struct place){ "-s", NULL, is_word(dlim, 0, "config") ? &dlim->service_token : &dlim->status };
        return true;
    }
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        if (strlen(places[i].name) != len || memcmp(places[i].name, text, len) != 0)
            continue;
        *found = places[i];
        return true;
    }
    return false;
}

static int parse_words(struct dlim *dlim, int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        size_t len = strncmp(argv[i], "--", 2) == 0 ? strcspn(argv[i], "=") : strlen(argv[i]);
        struct place place;

        if (argv[i][0] != '-') {
            if (dlim->word_count == DLIM_WORDS_MAX)
                return complain("%s: one word too many; see dlim --help", argv[i]);
            dlim->words[dlim->word_count++] = argv[i];
            continue;
        }
        if (!find_place(dlim, argv[i], len, &place))
            return complain("%s: unknown option; see dlim --help", argv[i]);
        if (place.value == NULL) {
            *place.flag = true;
        } else if (argv[i][len] == '=') {
            *place.value = argv[i] + len + 1;
        } else {
            if (i + 1 == argc)
                return complain("%s wants a value; see dlim --help", place.name);
            *place.value = argv[++i];
        }
    }
    return SHOAL_EXIT_OK;
}

/* ---- what is stored ---- */

struct stored {
    char server[DLIM_URL_BYTES_MAX];
    char user_token[DLIM_TOKEN_BYTES_MAX];
    char service_token[DLIM_TOKEN_BYTES_MAX];
};

static bool config_path(char *path, size_t cap)
{
    const char *home = getenv("HOME");
    int len = home == NULL ? -1 : snprintf(path, cap, "%s/%s", home, CONFIG_FILE);

    return len > 0 && (size_t)len < cap;
}

static void copy_text(const struct json_value *root, const char *key, char *out, size_t cap)
{
    (void)snprintf(out, cap, "%s", cli_text_at(root, key));
}

/* Reads a whole file of at most SHOAL_JSON_BYTES_MAX, with a NUL behind it. False: errno says why. */
static bool read_file(const char *path, struct shoal_buf *out)
{
    FILE *file = fopen(path, "re");
    char block[8192];
    size_t got;
    bool ok = file != NULL;

    while (ok && (got = fread(block, 1, sizeof(block), file)) > 0)
        if (out->len + got > SHOAL_JSON_BYTES_MAX || shoal_buf_append(out, block, got) != SHOAL_OK) {
            errno = EFBIG;
            ok = false;
        }
    ok = ok && ferror(file) == 0 && shoal_buf_append(out, "", 1) == SHOAL_OK;
    if (ok)
        out->len--;
    if (file != NULL)
        (void)fclose(file);
    return ok;
}

static void load_stored(struct stored *stored)
{
    struct shoal_buf text = { 0 };
    struct json_input *input = NULL;
    struct shoal_msg why;
    char path[1024];

    *stored = (struct stored){ .server = "" };
    if (config_path(path, sizeof(path)) && read_file(path, &text) &&
        json_input_parse_own(shoal_buf_view(&text), &input, &why) == SHOAL_OK) {
        copy_text(json_input_root(input), "server", stored->server, sizeof(stored->server));
        copy_text(json_input_root(input), "user_token", stored->user_token, sizeof(stored->user_token));
        copy_text(json_input_root(input), "service_token", stored->service_token, sizeof(stored->service_token));
    }
    json_input_free(input);
    shoal_buf_deinit(&text);
}

static int keep_stored(const struct stored *stored)
{
    struct shoal_buf text = { 0 };
    struct json_writer w = json_writer_init(&text);
    char path[1024];
    int code = SHOAL_EXIT_FAILED;

    json_object_begin(&w, NULL);
    json_text(&w, "server", stored->server);
    json_text(&w, "user_token", stored->user_token);
    json_text(&w, "service_token", stored->service_token);
    json_end(&w);
    if (w.failed || shoal_buf_append(&text, "", 1) != SHOAL_OK)
        code = complain("out of memory");
    else if (!config_path(path, sizeof(path)))
        code = complain("There is no place for the configuration: set HOME.");
    else
        code = cli_keep_file(path, (const char *)text.bytes);
    shoal_buf_deinit(&text);
    return code;
}

/* ---- requests ---- */

/* https://host, https://host/, https://host/dlim/v1, https://host/dlim/v1/ and host are one server. */
static bool take_base(const char *url, char *out, size_t cap)
{
    static const char suffix[] = "/dlim/v1";
    size_t len;

    len = (size_t)snprintf(out, cap, "%s%s", strstr(url, "://") == NULL ? "https://" : "", url);
    if (len >= cap || url[0] == '\0')
        return false;
    while (len > 0 && out[len - 1] == '/')
        out[--len] = '\0';
    if (len > sizeof(suffix) && strcmp(out + len - (sizeof(suffix) - 1), suffix) == 0)
        out[len - (sizeof(suffix) - 1)] = '\0';
    return true;
}

/* The server and the token of this call. */
static int settle(struct dlim *dlim)
{
    struct stored stored;

    load_stored(&stored);
    if (!take_base(dlim->server != NULL ? dlim->server : stored.server, dlim->base, sizeof(dlim->base)))
        return complain("No server is configured: run \"dlim config -c URL\", or give --rest-server.");
    if (dlim->token == NULL && stored.user_token[0] == '\0')
        return complain("No token is stored: run \"dlim config -t -u USER -x PASSWORD\", or give --jwt-token.");
    if ((size_t)snprintf(dlim->bearer, sizeof(dlim->bearer), "%s",
                         dlim->token != NULL ? dlim->token : stored.user_token) >= sizeof(dlim->bearer))
        return complain("The token is longer than %u bytes.", DLIM_TOKEN_BYTES_MAX - 1);
    return SHOAL_EXIT_OK;
}

/* The answer as JSON; NULL: it is none. free it. */
static struct json_input *json_of(const struct cli_answer *answer)
{
    struct json_input *input = NULL;
    struct shoal_msg why;

    return json_input_parse_own(shoal_buf_view(&answer->body), &input, &why) == SHOAL_OK ? input : NULL;
}

/* V2: the message where the published clients look for it, else the text as it is. */
static void say_refusal(const struct cli_answer *answer)
{
    static const char *const keys[] = { "error", "message", "errorMessage" };
    struct json_input *input = json_of(answer);
    const struct json_value *root = input == NULL ? NULL : json_input_root(input);
    const char *text = "";
    char line[1024];

    if (root != NULL) {
        text = cli_text_at(json_input_at(json_input_get(root, "errors"), 0), "message");
        for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]) && text[0] == '\0'; i++)
            text = cli_text_at(root, keys[i]);
    }
    if (text[0] == '\0')
        text = answer->status == 0 ? answer->fault : cli_answer_text(answer);
    if (text[0] == '\0')
        (void)complain("The server answered %ld.", answer->status);
    else {
        (void)snprintf(line, sizeof(line), "%.*s", (int)strcspn(text, "\r\n"), text);
        (void)complain("%s", cli_shown(line));
    }
    json_input_free(input);
}

/* One request below /dlim/v1, "" or NAME percent-encoded between the two halves of its path. A refusal has been said,
 * unless `hush`. The answer is the caller's to free, always. */
static int ask(struct dlim *dlim, struct cli_call call, const char *head, const char *name, const char *tail,
               struct cli_answer *answer, bool hush)
{
    char encoded[1024];
    char path[1400];
    int code;

    cli_encode(name, encoded, sizeof(encoded));
    (void)snprintf(path, sizeof(path), "/dlim/v1%s%s%s", head, encoded, tail);
    call.path = path;
    call.node = dlim->base;
    call.anonymous = true;
    call.timeout_s = call.timeout_s > 0 ? call.timeout_s : 60;
    if (call.basic[0] == NULL)
        call.bearer = dlim->bearer;
    code = cli_call(&dlim->cli, &call, answer, true);
    if (code != SHOAL_EXIT_OK && !hush)
        say_refusal(answer);
    return code == SHOAL_EXIT_OK ? SHOAL_EXIT_OK : SHOAL_EXIT_FAILED;
}

/* GET of JSON; `*input` is the caller's to free, NULL where it failed. */
static int get(struct dlim *dlim, const char *head, const char *name, const char *tail, struct cli_answer *answer,
               struct json_input **input)
{
    int code = ask(dlim, (struct cli_call){ .method = "GET" }, head, name, tail, answer, false);

    *input = code == SHOAL_EXIT_OK ? json_of(answer) : NULL;
    if (code == SHOAL_EXIT_OK && *input == NULL)
        code = complain("The server's answer is no JSON: is it an inference server?");
    return code;
}

/* A request whose success is told by a line of its own. */
static int act(struct dlim *dlim, const char *method, const char *head, const char *name, const char *tail)
{
    struct cli_answer answer;
    int code = ask(dlim, (struct cli_call){ .method = method }, head, name, tail, &answer, false);

    cli_answer_free(&answer);
    return code;
}

/* PUT or POST of a file of JSON. `key`, unless NULL, is the file's key whose text goes to `said`. */
static int send_file(struct dlim *dlim, const char *method, const char *head, const char *name, const char *tail,
                     const char *key, char *said, size_t cap)
{
    struct shoal_buf text = { 0 };
    struct json_input *input = NULL;
    struct cli_answer answer = { .status = 0 };
    struct shoal_msg why;
    int code;

    if (dlim->file == NULL)
        return complain("-f FILE is missing; see dlim --help");
    if (!read_file(dlim->file, &text))
        code = complain("%s: %s", dlim->file, strerror(errno));
    else if (json_input_parse_own(shoal_buf_view(&text), &input, &why) != SHOAL_OK)
        code = complain("%s: %s", dlim->file, why.text);
    else
        code = ask(dlim, (struct cli_call){ .method = method, .body = (const char *)text.bytes }, head, name, tail,
                   &answer, false);
    if (key != NULL)
        copy_text(input == NULL ? NULL : json_input_root(input), key, said, cap);
    json_input_free(input);
    cli_answer_free(&answer);
    shoal_buf_deinit(&text);
    return code;
}

/* The first letter of the answer is y. At the end of input it is no, and that is said where `tell_end` asks for it. */
static bool confirmed(const char *question, bool tell_end)
{
    char line[64];

    (void)printf("%s", question);
    (void)fflush(stdout);
    if (fgets(line, sizeof(line), stdin) == NULL) {
        if (tell_end)
            (void)printf("EOF\n");
        return false;
    }
    return line[0] == 'y' || line[0] == 'Y';
}

/* ---- config ---- */

/* A platform API key becomes the platform's token. */
static int exchange_key(struct dlim *dlim)
{
    struct shoal_buf body = { 0 };
    struct json_writer w = json_writer_init(&body);
    struct cli_answer answer = { .status = 0 };
    struct json_input *input = NULL;
    int code = SHOAL_EXIT_FAILED;

    json_object_begin(&w, NULL);
    json_text(&w, "username", dlim->user);
    json_text(&w, "api_key", dlim->api_key);
    json_end(&w);
    if (w.failed || shoal_buf_append(&body, "", 1) != SHOAL_OK)
        return complain("out of memory");
    code = cli_call(&dlim->cli,
                    &(struct cli_call){ .method = "POST",
                                        .path = "/icp4d-api/v1/authorize",
                                        .node = dlim->base,
                                        .anonymous = true,
                                        .body = (const char *)body.bytes },
                    &answer, true);
    if (code != SHOAL_EXIT_OK)
        say_refusal(&answer);
    else if ((input = json_of(&answer)) != NULL)
        copy_text(json_input_root(input), "token", dlim->bearer, sizeof(dlim->bearer));
    json_input_free(input);
    cli_answer_free(&answer);
    shoal_buf_deinit(&body);
    return code;
}

static int fetch_tokens(struct dlim *dlim, struct stored *stored)
{
    struct cli_call call = { .method = "POST" };
    struct cli_answer answer = { .status = 0 };
    struct json_input *input = NULL;
    int code = SHOAL_EXIT_OK;

    if (dlim->user == NULL || (dlim->password == NULL && dlim->api_key == NULL))
        return complain("-u USER and -x PASSWORD (or -k APIKEY) are missing; see dlim --help");
    if (!take_base(dlim->server != NULL ? dlim->server : stored->server, dlim->base, sizeof(dlim->base)))
        return complain("No server is configured: run \"dlim config -c URL\".");
    if (dlim->password != NULL) {
        call.basic[0] = dlim->user;
        call.basic[1] = dlim->password;
    } else {
        code = exchange_key(dlim);
        (void)snprintf(stored->user_token, sizeof(stored->user_token), "%s", dlim->bearer);
    }
    if (code == SHOAL_EXIT_OK)
        code =
            ask(dlim, call, dlim->password != NULL ? "/auth/token" : "/auth/token/inference", "", "", &answer, false);
    input = code == SHOAL_EXIT_OK ? json_of(&answer) : NULL;
    if (code == SHOAL_EXIT_OK && input == NULL)
        code = complain("The server's answer is no JSON: is it an inference server?");
    if (code == SHOAL_EXIT_OK) {
        copy_text(json_input_root(input), "service_token", stored->service_token, sizeof(stored->service_token));
        if (dlim->password != NULL)
            copy_text(json_input_root(input), "user_token", stored->user_token, sizeof(stored->user_token));
        code = keep_stored(stored);
    }
    json_input_free(input);
    cli_answer_free(&answer);
    return code;
}

static int run_config(struct dlim *dlim)
{
    struct stored stored;
    int code = SHOAL_EXIT_OK;

    load_stored(&stored);
    if (dlim->new_server != NULL) {
        char base[DLIM_URL_BYTES_MAX];

        if (!take_base(dlim->new_server, base, sizeof(base)))
            return complain("%.100s: no URL of a server", dlim->new_server);
        (void)snprintf(stored.server, sizeof(stored.server), "%s", dlim->new_server);
        code = keep_stored(&stored);
    }
    if (code == SHOAL_EXIT_OK && (dlim->user_token || (dlim->service_token && dlim->user != NULL)))
        code = fetch_tokens(dlim, &stored);
    if (code != SHOAL_EXIT_OK || (!dlim->user_token && !dlim->service_token))
        return code == SHOAL_EXIT_OK && dlim->new_server == NULL ? complain("%s", usage) : code;
    if (dlim->service_token && stored.service_token[0] == '\0')
        return complain("No token is stored: run \"dlim config -t -u USER -x PASSWORD\".");
    (void)printf("%s\n", dlim->service_token ? stored.service_token : stored.user_token);
    return SHOAL_EXIT_OK;
}

/* ---- models ---- */

static int list_models(struct dlim *dlim)
{
    struct cli_answer answer;
    struct json_input *input;
    int code = get(dlim, "/model", "", "", &answer, &input);

    if (code == SHOAL_EXIT_OK)
        dlim_show_list(json_input_root(input), "name", "service_uri", "NAME", "REST URI");
    json_input_free(input);
    cli_answer_free(&answer);
    return code;
}

static int view_model(struct dlim *dlim)
{
    struct cli_answer answer, second = { .status = 0 };
    struct json_input *model, *instance = NULL;
    int code = get(dlim, "/model/", dlim->words[2], "", &answer, &model);

    if (code == SHOAL_EXIT_OK && dlim->status)
        code = get(dlim, "/model/", dlim->words[2], "/instance", &second, &instance);
    if (code == SHOAL_EXIT_OK && dlim->status)
        dlim_show_instance(json_input_root(model), json_input_root(instance), dlim->all);
    else if (code == SHOAL_EXIT_OK)
        dlim_show_model(json_input_root(model));
    json_input_free(model);
    json_input_free(instance);
    cli_answer_free(&answer);
    cli_answer_free(&second);
    return code;
}

static int start_model(struct dlim *dlim)
{
    int code = act(dlim, "PUT", "/model/", dlim->words[2], "/operation/start");

    if (code == SHOAL_EXIT_OK)
        (void)printf("Starting model \"%s\", run \"dlim model view %s -s\" to ensure startup.\n", dlim->words[2],
                     dlim->words[2]);
    return code;
}

static bool sure(const struct dlim *dlim, const char *verb, const char *what)
{
    char question[512];

    (void)snprintf(question, sizeof(question), "Are you sure to %s %s \"%.200s\"? (y|n):", verb, what, dlim->words[2]);
    return dlim->force || confirmed(question, false);
}

static int stop_model(struct dlim *dlim)
{
    int code = sure(dlim, "stop", "model") ? act(dlim, "PUT", "/model/", dlim->words[2], "/operation/stop")
                                           : SHOAL_EXIT_FAILED;

    if (code == SHOAL_EXIT_OK)
        (void)printf("Stopping model \"%s\", run \"dlim model view %s -s\" to ensure stop.\n", dlim->words[2],
                     dlim->words[2]);
    return code;
}

static int undeploy_model(struct dlim *dlim)
{
    int code = sure(dlim, "undeploy", "model") ? act(dlim, "DELETE", "/model/", dlim->words[2], "") : SHOAL_EXIT_FAILED;

    if (code == SHOAL_EXIT_OK)
        (void)printf("Undeployed model \"%s\", run \"dlim model list\" to ensure deletion.\n", dlim->words[2]);
    return code;
}

/* Prints a JSON answer: one document and the end of a line, nothing else. */
static int print_json(struct dlim *dlim, const char *head, const char *tail)
{
    struct cli_answer answer;
    struct json_input *input;
    int code = get(dlim, head, dlim->words[2], tail, &answer, &input);

    if (code == SHOAL_EXIT_OK)
        cli_print_json(cli_answer_text(&answer));
    json_input_free(input);
    cli_answer_free(&answer);
    return code;
}

static int view_profile(struct dlim *dlim)
{
    struct cli_answer answer;
    struct json_input *input;
    int code;

    if (dlim->as_json)
        return print_json(dlim, "/model/", "/appprofile");
    code = get(dlim, "/model/", dlim->words[2], "/appprofile", &answer, &input);
    if (code == SHOAL_EXIT_OK)
        dlim_show_profile(json_input_root(input));
    json_input_free(input);
    cli_answer_free(&answer);
    return code;
}

static int update_profile(struct dlim *dlim)
{
    int code = send_file(dlim, "PUT", "/model/", dlim->words[2], "/appprofile", NULL, NULL, 0);

    if (code == SHOAL_EXIT_OK)
        (void)printf("Model is updated successfully\n");
    return code;
}

/* ---- deploy ---- */

struct paths {
    char **list;
    size_t count;
};

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static bool add_path(struct paths *paths, const char *path)
{
    char **grown = NULL;

    if (paths->count < FILES_MAX)
        grown = realloc(paths->list, (paths->count + 1) * sizeof(*grown));
    if (grown == NULL)
        return false;
    paths->list = grown;
    paths->list[paths->count] = strdup(path);
    return paths->list[paths->count++] != NULL;
}

/* Every file below a folder, hidden ones too. False: it cannot be read, or holds too much. */
static bool find_files(const char *dir, struct paths *paths, unsigned depth)
{
    DIR *stream = depth > TREE_DEPTH_MAX ? NULL : opendir(dir);
    const struct dirent *child;
    bool ok = stream != NULL;

    while (ok && (child = readdir(stream)) != NULL) {
        char path[4096];
        struct stat status;
        size_t len = strlen(dir);

        if (strcmp(child->d_name, ".") == 0 || strcmp(child->d_name, "..") == 0)
            continue;
        ok = snprintf(path, sizeof(path), "%s%s%s", dir, len > 0 && dir[len - 1] == '/' ? "" : "/", child->d_name) <
                 (int)sizeof(path) &&
             stat(path, &status) == 0;
        if (ok)
            ok = S_ISDIR(status.st_mode) ? find_files(path, paths, depth + 1) : add_path(paths, path);
    }
    if (stream != NULL)
        (void)closedir(stream);
    return ok;
}

static int read_name(const struct dlim *dlim, char *name, size_t cap)
{
    struct shoal_buf text = { 0 };
    struct json_input *input = NULL;
    struct shoal_msg why;
    char path[4096];
    int code = SHOAL_EXIT_OK;

    (void)snprintf(path, sizeof(path), "%s/model.json", dlim->dir);
    name[0] = '\0';
    if (!read_file(path, &text))
        code = complain("%s: %s", path, strerror(errno));
    else if (json_input_parse_own(shoal_buf_view(&text), &input, &why) != SHOAL_OK)
        code = complain("%s: %s", path, why.text);
    else
        copy_text(json_input_root(input), "name", name, cap);
    if (code == SHOAL_EXIT_OK && name[0] == '\0')
        code = complain("%s has no name", path);
    json_input_free(input);
    shoal_buf_deinit(&text);
    return code;
}

/* The base name of DIR, as the folder on top of its archive. */
static void top_of(const char *dir, char *top, size_t cap)
{
    char *real = realpath(dir, NULL);
    const char *slash = real == NULL ? NULL : strrchr(real, '/');

    (void)snprintf(top, cap, "%s", slash == NULL || slash[1] == '\0' ? "model" : slash + 1);
    free(real);
}

static int upload(struct dlim *dlim, const char *name, bool exists)
{
    struct cli_answer answer = { .status = 0 };
    struct paths paths = { .count = 0 };
    struct shoal_msg why = { .text = "" };
    char top[256], archive[4096] = "";
    int code = SHOAL_EXIT_OK;

    top_of(dlim->dir, top, sizeof(top));
    if (!find_files(dlim->dir, &paths, 0))
        code = complain("%s: cannot be read, or holds more than %u files", dlim->dir, FILES_MAX);
    else if (cli_pack(dlim->dir, top, archive, sizeof(archive), &why) != SHOAL_OK)
        code = complain("%s", why.text);
    if (code == SHOAL_EXIT_OK) {
        (void)printf("Uploading...\n");
        (void)fflush(stdout);
        code = ask(dlim, (struct cli_call){ .method = "POST", .upload = archive },
                   exists ? "/deployment/model/" : "/deployment/model", exists ? name : "", "", &answer, false);
        (void)unlink(archive);
    }
    qsort(paths.list, paths.count, sizeof(*paths.list), by_bytes);
    for (size_t i = 0; i < paths.count; i++) {
        if (code == SHOAL_EXIT_OK)
            (void)printf("<%s> uploaded to server.\n", paths.list[i]);
        free(paths.list[i]);
    }
    free(paths.list);
    cli_answer_free(&answer);
    return code;
}

static int deploy_model(struct dlim *dlim)
{
    struct cli_answer answer;
    char name[256], question[512];
    bool exists;
    int code;

    if (dlim->dir == NULL)
        return complain("-p DIR is missing; see dlim --help");
    code = read_name(dlim, name, sizeof(name));
    if (code != SHOAL_EXIT_OK)
        return code;
    code = ask(dlim, (struct cli_call){ .method = "GET" }, "/model/", name, "", &answer, true);
    exists = code == SHOAL_EXIT_OK;
    if (!exists && answer.status != 404)
        say_refusal(&answer);
    else
        code = SHOAL_EXIT_OK;
    cli_answer_free(&answer);
    if (code != SHOAL_EXIT_OK)
        return code;
    (void)snprintf(question, sizeof(question),
                   "Model <%s> already exists on inference service, do you want to update it? (y|n):", name);
    if (exists && !dlim->force && !confirmed(question, true))
        return SHOAL_EXIT_FAILED;
    code = upload(dlim, name, exists);
    if (code == SHOAL_EXIT_OK)
        (void)printf("Registering...\nModel <%s> is deployed successfully\n", name);
    return code;
}

/* ---- runtimes ---- */

static int list_runtimes(struct dlim *dlim)
{
    struct cli_answer answer;
    struct json_input *input;
    int code = get(dlim, "/deployment/runtime", "", "", &answer, &input);

    if (code == SHOAL_EXIT_OK)
        dlim_show_list(json_input_get(json_input_root(input), "runtimes"), "type", "description", "NAME",
                       "DESCRIPTION");
    json_input_free(input);
    cli_answer_free(&answer);
    return code;
}

static int view_runtime(struct dlim *dlim) { return print_json(dlim, "/deployment/runtime/", ""); }

static int create_runtime(struct dlim *dlim)
{
    char name[256] = "";
    int code = send_file(dlim, "POST", "/deployment/runtime", "", "", "type", name, sizeof(name));

    if (code == SHOAL_EXIT_OK)
        (void)printf("Runtime <%s> is created successfully\n", name);
    return code;
}

static int update_runtime(struct dlim *dlim)
{
    int code = send_file(dlim, "PUT", "/deployment/runtime/", dlim->words[2], "", NULL, NULL, 0);

    if (code == SHOAL_EXIT_OK)
        (void)printf("Runtime is updated successfully\n");
    return code;
}

static int delete_runtime(struct dlim *dlim)
{
    int code = sure(dlim, "delete", "runtime") ? act(dlim, "DELETE", "/deployment/runtime/", dlim->words[2], "")
                                               : SHOAL_EXIT_FAILED;

    if (code == SHOAL_EXIT_OK)
        (void)printf("Runtime <%s> is deleted successfully\n", dlim->words[2]);
    return code;
}

/* ---- all of it ---- */

static const struct {
    const char *object, *verb;
    bool names;
    int (*run)(struct dlim *dlim);
} commands[] = {
    { "model", "list", false, list_models },
    { "model", "view", true, view_model },
    { "model", "deploy", false, deploy_model },
    { "model", "start", true, start_model },
    { "model", "stop", true, stop_model },
    { "model", "undeploy", true, undeploy_model },
    { "model", "viewprofile", true, view_profile },
    { "model", "updateprofile", true, update_profile },
    { "runtime", "list", false, list_runtimes },
    { "runtime", "view", true, view_runtime },
    { "runtime", "create", false, create_runtime },
    { "runtime", "update", true, update_runtime },
    { "runtime", "delete", true, delete_runtime },
};

static int run_command(struct dlim *dlim)
{
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        int code;

        if (!is_word(dlim, 0, commands[i].object) || !is_word(dlim, 1, commands[i].verb))
            continue;
        if (dlim->word_count != (commands[i].names ? 3u : 2u))
            return complain("dlim %s %s wants %s; see dlim --help", commands[i].object, commands[i].verb,
                            commands[i].names ? "one NAME" : "no name");
        code = settle(dlim);
        return code == SHOAL_EXIT_OK ? commands[i].run(dlim) : code;
    }
    (void)fputs(usage, stderr);
    return SHOAL_EXIT_FAILED;
}

int dlim_main(int argc, char **argv, const char *version)
{
    static struct dlim dlim; /* large, and there is one */
    int code;

    dlim = (struct dlim){ .cli = { .insecure = true, .quiet = true } }; /* V3 */
    code = parse_words(&dlim, argc, argv);
    if (code != SHOAL_EXIT_OK)
        return code;
    if (dlim.version)
        (void)printf("dlim (shoal %s)\n", version == NULL ? "unknown" : version);
    else if (dlim.help)
        (void)fputs(usage, stdout);
    else if (is_word(&dlim, 0, "config"))
        code = run_config(&dlim);
    else
        code = run_command(&dlim);
    if ((fflush(stdout) != 0 || ferror(stdout) != 0) && code == SHOAL_EXIT_OK)
        code = complain("The output cannot be written: is the disk full?");
    return code;
}
