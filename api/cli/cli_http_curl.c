/* Requests of the command line. All that knows libcurl. */
#include "cli_internal.h"

#define CURL_DISABLE_TYPECHECK /* it knows the functions by name only, and we call them through the table below */
#include <curl/curl.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "shoal/banned.h"

#define NODES_BYTES 2048
#define PATH_BYTES_MAX 4096
#define URL_BYTES (NODES_BYTES + PATH_BYTES_MAX + 16)
#define TOO_LONG '\x01' /* in a path, before what did not fit */

#define NODE_DEFAULT "https://127.0.0.1:9243"
#define ANSWER_BYTES_MAX (64u << 20)

/* libcurl, loaded at the first request: an agent is the same binary and makes none, and libcurl with all that it links
 * would cost every agent several MB. */
static struct {
    void *handle;
    void (*easy_cleanup)(CURL *);
    CURLcode (*easy_getinfo)(CURL *, CURLINFO, ...);
    CURL *(*easy_init)(void);
    CURLcode (*easy_perform)(CURL *);
    CURLcode (*easy_setopt)(CURL *, CURLoption, ...);
    const char *(*easy_strerror)(CURLcode);
    CURLcode (*global_init)(long);
    curl_mimepart *(*mime_addpart)(curl_mime *);
    CURLcode (*mime_data)(curl_mimepart *, const char *, size_t);
    CURLcode (*mime_filedata)(curl_mimepart *, const char *);
    CURLcode (*mime_filename)(curl_mimepart *, const char *);
    void (*mime_free)(curl_mime *);
    curl_mime *(*mime_init)(CURL *);
    CURLcode (*mime_name)(curl_mimepart *, const char *);
    struct curl_slist *(*slist_append)(struct curl_slist *, const char *);
    void (*slist_free_all)(struct curl_slist *);
} lib;

static bool load_curl(void)
{
    static const struct {
        const char *name;
        void *slot;
    } symbols[] = {
        { "curl_easy_cleanup", &lib.easy_cleanup },   { "curl_easy_getinfo", &lib.easy_getinfo },
        { "curl_easy_init", &lib.easy_init },         { "curl_easy_perform", &lib.easy_perform },
        { "curl_easy_setopt", &lib.easy_setopt },     { "curl_easy_strerror", &lib.easy_strerror },
        { "curl_global_init", &lib.global_init },     { "curl_mime_addpart", &lib.mime_addpart },
        { "curl_mime_data", &lib.mime_data },         { "curl_mime_filedata", &lib.mime_filedata },
        { "curl_mime_filename", &lib.mime_filename }, { "curl_mime_free", &lib.mime_free },
        { "curl_mime_init", &lib.mime_init },         { "curl_mime_name", &lib.mime_name },
        { "curl_slist_append", &lib.slist_append },   { "curl_slist_free_all", &lib.slist_free_all },
    };

    void *handle;

    if (lib.handle != NULL)
        return true;
    handle = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; handle != NULL && i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *found = dlsym(handle, symbols[i].name);

        if (found == NULL) {
            (void)dlclose(handle);
            return false;
        }
        memcpy(symbols[i].slot, &found, sizeof(found));
    }
    lib.handle = handle; /* all of it is there */
    return handle != NULL;
}

struct transfer {
    const struct cli_call *call;
    struct cli_answer *answer;
    CURL *curl;
    FILE *upload;
    curl_off_t upload_bytes;
    bool too_big;
    bool sink_failed;
    bool sunk; /* something has gone into the sink */
    struct cli_log_text shown;
};

/* False: it is not all there. */
static bool sink(struct transfer *transfer, const char *bytes, size_t len)
{
    FILE *to = transfer->call->sink;

    transfer->sunk = true;
    if (to != stdout)
        return fwrite(bytes, 1, len, to) == len;
    cli_put_log(&transfer->shown, bytes, len);
    return ferror(to) == 0;
}

static size_t on_body(char *bytes, size_t size, size_t count, void *arg)
{
    struct transfer *transfer = arg;
    long status = 0;

    (void)lib.easy_getinfo(transfer->curl, CURLINFO_RESPONSE_CODE, &status);
    if (transfer->call->sink != NULL && status < 400) {
        transfer->sink_failed = !sink(transfer, bytes, size * count);
        return transfer->sink_failed ? 0 : size * count;
    }
    if (transfer->answer->body.len + size * count > ANSWER_BYTES_MAX ||
        shoal_buf_append(&transfer->answer->body, bytes, size * count) != SHOAL_OK) {
        transfer->too_big = true;
        return 0;
    }
    return size * count;
}

static void copy_header(const char *line, size_t len, const char *name, char *out, size_t cap)
{
    size_t name_len = strlen(name);

    if (len <= name_len || strncasecmp(line, name, name_len) != 0 || line[name_len] != ':')
        return;
    line += name_len + 1;
    len -= name_len + 1;
    while (len > 0 && *line == ' ') {
        line++;
        len--;
    }
    while (len > 0 && (line[len - 1] == '\r' || line[len - 1] == '\n'))
        len--;
    if (len < cap) {
        memcpy(out, line, len);
        out[len] = '\0';
    }
}

static size_t on_header(char *line, size_t size, size_t count, void *arg)
{
    struct cli_answer *answer = ((struct transfer *)arg)->answer;
    char ended[8] = "", complete[8] = "";

    copy_header(line, size * count, "content-disposition", answer->disposition, sizeof(answer->disposition));
    copy_header(line, size * count, "shoal-log-next", answer->log_next, sizeof(answer->log_next));
    copy_header(line, size * count, "shoal-ticket", answer->ticket, sizeof(answer->ticket));
    copy_header(line, size * count, "shoal-survives", answer->survives, sizeof(answer->survives));
    copy_header(line, size * count, "shoal-log-ended", ended, sizeof(ended));
    copy_header(line, size * count, "shoal-complete", complete, sizeof(complete));
    answer->incomplete = answer->incomplete || strcmp(complete, "false") == 0;
    if (strcmp(ended, "true") == 0)
        answer->log_ended = true;
    return size * count;
}

bool cli_read_line(const char *path, char *out, size_t cap)
{
    FILE *file = fopen(path, "re");
    bool ok;

    if (file == NULL)
        return false;
    ok = fgets(out, (int)cap, file) != NULL;
    (void)fclose(file);
    if (ok)
        out[strcspn(out, "\r\n")] = '\0';
    return ok && out[0] != '\0';
}

static bool ask_password(const char *user, char *out, size_t cap)
{
    struct termios before;
    struct termios hidden;
    FILE *terminal = fopen("/dev/tty", "r+e");
    bool known, ok;

    if (terminal == NULL)
        return false;
    (void)fprintf(terminal, "Password of %s: ", user);
    (void)fflush(terminal);
    known = tcgetattr(fileno(terminal), &before) == 0;
    if (known) {
        hidden = before;
        hidden.c_lflag &= ~(tcflag_t)ECHO;
        (void)tcsetattr(fileno(terminal), TCSAFLUSH, &hidden);
    }
    ok = fgets(out, (int)cap, terminal) != NULL;
    if (known)
        (void)tcsetattr(fileno(terminal), TCSAFLUSH, &before);
    (void)fprintf(terminal, "\n");
    (void)fclose(terminal);
    if (ok)
        out[strcspn(out, "\r\n")] = '\0';
    return ok;
}

/* Names who asks: --user with a password, else the kept token. */
static int set_credentials(struct cli *cli, CURL *curl, struct curl_slist **headers)
{
    const char *user = cli_value(cli, "user");
    const char *password = cli_value(cli, "password");
    const char *file = cli_value(cli, "password-file");
    const char *token_file = cli_value(cli, "token-file");
    static char asked[512]; /* asked for once */
    char path[1024];
    char token[2048];
    char line[2100];

    if (user == NULL && token_file == NULL && getenv("SHOAL_USER") != NULL)
        user = getenv("SHOAL_USER");
    if (user != NULL) {
        if (password == NULL && file != NULL) {
            if (!cli_read_line(file, asked, sizeof(asked)))
                return cli_fail(SHOAL_EXIT_USAGE, "--password-file: %s cannot be read, or is empty", file);
            password = asked;
        }
        if (password == NULL)
            password = getenv("SHOAL_PASSWORD");
        if (password == NULL && (asked[0] != '\0' || ask_password(user, asked, sizeof(asked))))
            password = asked;
        if (password == NULL)
            return cli_fail(SHOAL_EXIT_USAGE, "no password for %s: set SHOAL_PASSWORD, or give --password-file", user);
        (void)lib.easy_setopt(curl, CURLOPT_HTTPAUTH, (long)CURLAUTH_BASIC);
        (void)lib.easy_setopt(curl, CURLOPT_USERNAME, user);
        (void)lib.easy_setopt(curl, CURLOPT_PASSWORD, password);
        return SHOAL_EXIT_OK;
    }
    if (token_file == NULL)
        token_file = getenv("SHOAL_TOKEN_FILE");
    if (token_file == NULL)
        token_file = cli_home_file("token", path, sizeof(path));
    if (token_file == NULL || !cli_read_line(token_file, token, sizeof(token)))
        return cli_fail(SHOAL_EXIT_DENIED, "no token: log on first (shoal logon USER), or give --user");
    (void)snprintf(line, sizeof(line), "Authorization: Bearer %s", token);
    *headers = lib.slist_append(*headers, line);
    return SHOAL_EXIT_OK;
}

static void node_list(struct cli *cli, char *out, size_t cap)
{
    const char *given = cli_value(cli, "node");
    char path[1024];

    if (given == NULL)
        given = getenv("SHOAL_NODE");
    if (given != NULL && given[0] != '\0')
        (void)snprintf(out, cap, "%s", given);
    else if (cli_home_file("node", path, sizeof(path)) == NULL || !cli_read_line(path, out, cap))
        (void)snprintf(out, cap, "%s", NODE_DEFAULT);
}

static curl_mime *make_form(const struct cli_call *call, CURL *curl)
{
    curl_mime *form;
    curl_mimepart *part;

    if (call->data == NULL && call->file == NULL)
        return NULL;
    form = lib.mime_init(curl);
    if (call->data != NULL) {
        part = lib.mime_addpart(form);
        (void)lib.mime_name(part, "data");
        (void)lib.mime_data(part, call->data, CURL_ZERO_TERMINATED);
    }
    if (call->file != NULL) {
        part = lib.mime_addpart(form);
        (void)lib.mime_name(part, "file");
        (void)lib.mime_filedata(part, call->file);
        (void)lib.mime_filename(part, call->file_name);
    }
    return form;
}

/* T1 of cli_trust.c: a verified node, or none. */
static void set_trust(const struct cli *cli, CURL *curl)
{
    (void)lib.easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, cli->insecure ? 0L : 1L);
    (void)lib.easy_setopt(curl, CURLOPT_SSL_VERIFYHOST,
                          cli->insecure || (cli->ca[0] != '\0' && !cli->ca_names) ? 0L : 2L);
    if (cli->ca[0] == '\0')
        return;
    (void)lib.easy_setopt(curl, CURLOPT_CAINFO, cli->ca);
    (void)lib.easy_setopt(curl, CURLOPT_CAPATH, NULL); /* nor does the system's list vouch for it */
}

static void set_options(struct cli *cli, struct transfer *transfer, const char *url, struct curl_slist *headers,
                        curl_mime *form)
{
    const struct cli_call *call = transfer->call;
    CURL *curl = transfer->curl;
    long timeout_s = call->timeout_s > 0 ? call->timeout_s : 30;
    bool moves_bytes = call->file != NULL || call->sink != NULL || call->upload != NULL;

    if (cli->timeout_s > 0)
        timeout_s = cli->timeout_s;
    (void)lib.easy_setopt(curl, CURLOPT_URL, url);
    (void)lib.easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)lib.easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1); /* one request after the other */
    (void)lib.easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
    (void)lib.easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    (void)lib.easy_setopt(curl, CURLOPT_NOPROXY, "*");
    (void)lib.easy_setopt(curl, CURLOPT_CUSTOMREQUEST, call->method);
    (void)lib.easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    (void)lib.easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    (void)lib.easy_setopt(curl, CURLOPT_WRITEDATA, transfer);
    (void)lib.easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    (void)lib.easy_setopt(curl, CURLOPT_HEADERDATA, transfer);
    (void)lib.easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, timeout_s < 5 ? timeout_s : 5L);
    if (moves_bytes) { /* as long as it moves */
        (void)lib.easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
        (void)lib.easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, timeout_s > 60 ? timeout_s : 60L);
    }
    if (!moves_bytes || cli->timeout_s > 0)
        (void)lib.easy_setopt(curl, CURLOPT_TIMEOUT, timeout_s);
    set_trust(cli, curl);
    if (form != NULL)
        (void)lib.easy_setopt(curl, CURLOPT_MIMEPOST, form);
    else if (call->body != NULL) {
        if (call->body_bytes > 0)
            (void)lib.easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->body_bytes);
        (void)lib.easy_setopt(curl, CURLOPT_POSTFIELDS, call->body);
    } else if (transfer->upload != NULL) {
        (void)lib.easy_setopt(curl, CURLOPT_UPLOAD, 1L);
        (void)lib.easy_setopt(curl, CURLOPT_READDATA, transfer->upload);
        (void)lib.easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, transfer->upload_bytes);
    } else if (strcmp(call->method, "POST") == 0 || strcmp(call->method, "PUT") == 0)
        (void)lib.easy_setopt(curl, CURLOPT_POSTFIELDS, "");
}

/* The text of a node's refusal, without "Error 400: ". */
static const char *refusal_of(const struct cli_answer *answer)
{
    const char *text = cli_answer_text(answer);
    const char *colon = strncmp(text, "Error ", 6) == 0 ? strstr(text, ": ") : NULL;

    return colon == NULL ? text : colon + 2;
}

/* A node knows an option by WMLA's name; people hear the name that they typed. False: it is no such option. */
static bool typed_as(const char *text, const char **ours, const char **rest)
{
    static const char *const names[][2] = {
        { "--numWorker", "--workers" },       { "--msd-priority", "--priority" },
        { "--workerDeviceType", "--device" }, { "--msd-pending-timeout", "--pending-timeout" },
        { "--workerMemory", "--memory" },     { "--appName", "--name" },
        { "--msd-array", "--array" },         { "--msd-env", "--env" },
        { "--exec-start", "--framework" },    { "--cs-datastore-meta", "--data-path" },
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t len = strlen(names[i][0]);

        if (strncmp(text, names[i][0], len) != 0 || (text[len] != ':' && text[len] != ' '))
            continue;
        *ours = names[i][1];
        *rest = text + len;
        return true;
    }
    return false;
}

static int exit_of_status(const struct cli_answer *answer)
{
    switch (answer->status) {
    case 401:
    case 403: return SHOAL_EXIT_DENIED;
    case 404: return SHOAL_EXIT_NOT_FOUND;
    case 408: return SHOAL_EXIT_TIMEOUT;
    case 409: return SHOAL_EXIT_CONFLICT;
    case 413: /* the value of an option, or what is sent */
        return strncmp(refusal_of(answer), "--", 2) == 0 ? SHOAL_EXIT_USAGE : SHOAL_EXIT_FAILED;
    case 503: return SHOAL_EXIT_UNREACHABLE;
    case 400: /* nothing but the words of the command line, and files that they name, is in the question */
        return strstr(cli_answer_text(answer), "does not exist") != NULL ||
                       strstr(cli_answer_text(answer), "no such job") != NULL
                   ? SHOAL_EXIT_NOT_FOUND
                   : SHOAL_EXIT_USAGE;
    default: return SHOAL_EXIT_FAILED;
    }
}

void cli_refused(const struct cli_answer *answer)
{
    const char *text = refusal_of(answer);
    const char *ours, *theirs = text;

    if (strcspn(text, "\r\n") == 0)
        (void)cli_fail(exit_of_status(answer), "the node answered %ld", answer->status);
    else if (strncmp(text, "exec ", 5) == 0) /* WMLA's word for a job */
        (void)cli_fail(exit_of_status(answer), "job %.*s", (int)strcspn(text + 5, "\r\n"), text + 5);
    else if (typed_as(text, &ours, &theirs))
        (void)cli_fail(exit_of_status(answer), "%s%.*s", ours, (int)strcspn(theirs, "\r\n"), theirs);
    else
        (void)cli_fail(exit_of_status(answer), "%.*s", (int)strcspn(text, "\r\n"), text);
}

/* Nothing of the request has left: no connection, or none that is trusted, has come about. */
static bool never_sent(const struct transfer *transfer)
{
    double ready_s = 1;
    long sent = 1;

    (void)lib.easy_getinfo(transfer->curl, CURLINFO_PRETRANSFER_TIME, &ready_s);
    (void)lib.easy_getinfo(transfer->curl, CURLINFO_REQUEST_SIZE, &sent);
    return ready_s <= 0 && sent == 0;
}

/* The fault is this node's, and the request may be made again: it has not left, or it changes nothing. Who shows a wrong
 * certificate is no node that is away, and a person has to hear of it. */
static bool next_may_answer(CURLcode code, const struct transfer *transfer)
{
    bool away = code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_OPERATION_TIMEDOUT ||
                code == CURLE_SSL_CONNECT_ERROR || code == CURLE_SEND_ERROR || code == CURLE_RECV_ERROR ||
                code == CURLE_GOT_NOTHING || code == CURLE_PARTIAL_FILE;

    return away && (never_sent(transfer) || (strcmp(transfer->call->method, "GET") == 0 && !transfer->sunk));
}

static const char *remedy_of_trust(const struct cli *cli)
{
    if (cli->ca[0] == '\0')
        return "its mesh is not known here: log on first (shoal logon USER), or give --ca FILE; nothing was sent";
    return "it is of another mesh than the one known here, or somebody stands before it; nothing was sent. If the mesh "
           "is "
           "new: shoal logon USER --fingerprint TEXT, which `shoal doctor` prints on its hosts";
}

/* Behind the host, which may be an IPv6 address in brackets. */
static bool names_port(const char *url)
{
    const char *host = strstr(url, "://") == NULL ? url : strstr(url, "://") + 3;
    const char *end = host + strcspn(host, "/");
    const char *bracket = memchr(host, ']', (size_t)(end - host));

    return memchr(bracket == NULL ? host : bracket, ':', (size_t)(end - (bracket == NULL ? host : bracket))) != NULL;
}

static int exit_of_curl(const struct cli *cli, CURLcode code, const char *url, const struct transfer *transfer,
                        bool hush)
{
    struct cli_answer *answer = transfer->answer;
    int exit_code = SHOAL_EXIT_UNREACHABLE;
    const char *remedy = "is its agent running? try another node with --node";

    answer->unsent = never_sent(transfer);
    if (transfer->too_big) {
        (void)snprintf(answer->fault, sizeof(answer->fault), "the answer is larger than this program takes");
        return hush ? 1 : cli_fail(SHOAL_EXIT_FAILED, "%s", answer->fault);
    }
    if (transfer->sink_failed)
        return cli_fail(SHOAL_EXIT_FAILED, "the output cannot be written: is the disk full?");
    switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
        if (answer->unsent)
            break; /* there was no connection to wait on */
        exit_code = SHOAL_EXIT_TIMEOUT;
        remedy = "no answer in time; give it longer with --timeout, or try another node with --node";
        break;
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
        exit_code = SHOAL_EXIT_USAGE;
        remedy = "--node wants a URL such as https://host:9243";
        break;
    case CURLE_SSL_CACERT_BADFILE: /* the system has no list */
    case CURLE_PEER_FAILED_VERIFICATION:
        exit_code = SHOAL_EXIT_DENIED;
        remedy = remedy_of_trust(cli);
        break;
    case CURLE_SSL_CONNECT_ERROR:
        remedy = "it closed the connection, which it does with more of them than it may have: try again, or another node; or does it speak "
                 "plain HTTP? then write http:// in --node";
        break;
    case CURLE_READ_ERROR:
        exit_code = SHOAL_EXIT_FAILED;
        remedy = "the file to send cannot be read";
        break;
    default: break;
    }
    if (answer->unsent && !names_port(url))
        remedy = "it names no port; nodes answer at 9243 unless their agents have --api-port: --node https://HOST:9243";
    (void)snprintf(answer->fault, sizeof(answer->fault), "%.*s: %s: %s", (int)strcspn(url, "?"), url,
                   lib.easy_strerror(code), remedy);
    return hush ? exit_code : cli_fail(exit_code, "%s", answer->fault);
}

/* Adds the headers that tell who asks and describe the body, beside those of every call. */
static int add_own(struct transfer *transfer, struct curl_slist **headers)
{
    const struct cli_call *call = transfer->call;
    char line[4200];
    struct stat status;

    if (call->bearer != NULL) {
        (void)snprintf(line, sizeof(line), "Authorization: Bearer %s", call->bearer);
        *headers = lib.slist_append(*headers, line);
    }
    if (call->basic[0] != NULL) {
        (void)lib.easy_setopt(transfer->curl, CURLOPT_HTTPAUTH, (long)CURLAUTH_BASIC);
        (void)lib.easy_setopt(transfer->curl, CURLOPT_USERNAME, call->basic[0]);
        (void)lib.easy_setopt(transfer->curl, CURLOPT_PASSWORD, call->basic[1]);
    }
    if (call->body != NULL)
        *headers = lib.slist_append(*headers, call->body_bytes > 0 ? "Content-Type: application/octet-stream" :
                                                                    "Content-Type: application/json");
    if (call->upload == NULL)
        return SHOAL_EXIT_OK;
    transfer->upload = fopen(call->upload, "re");
    if (transfer->upload == NULL || fstat(fileno(transfer->upload), &status) != 0)
        return cli_fail(SHOAL_EXIT_FAILED, "%s: cannot be read", call->upload);
    transfer->upload_bytes = (curl_off_t)status.st_size;
    *headers = lib.slist_append(*headers, "Content-Type: application/octet-stream");
    *headers = lib.slist_append(*headers, "Expect:");
    return SHOAL_EXIT_OK;
}

static size_t on_ignored(char *bytes, size_t size, size_t count, void *arg)
{
    (void)bytes;
    (void)arg;
    return size * count;
}

static const char *with_scheme(const char *node) { return strstr(node, "://") == NULL ? "https://" : ""; }

bool cli_chain(struct cli *cli, const char *node, struct cli_trust *trust)
{
    struct curl_certinfo *info = NULL;
    struct shoal_buf pem = { 0 };
    char url[2100];
    CURL *curl = lib.easy_init();
    bool ok = false;

    if (curl == NULL)
        return false;
    (void)snprintf(url, sizeof(url), "%s%s", with_scheme(node), node);
    (void)lib.easy_setopt(curl, CURLOPT_URL, url);
    (void)lib.easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "https");
    (void)lib.easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    (void)lib.easy_setopt(curl, CURLOPT_NOPROXY, "*");
    (void)lib.easy_setopt(curl, CURLOPT_NOBODY, 1L);
    (void)lib.easy_setopt(curl, CURLOPT_CERTINFO, 1L);
    (void)lib.easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 0L);
    (void)lib.easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 0L);
    (void)lib.easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_ignored);
    (void)lib.easy_setopt(curl, CURLOPT_TIMEOUT, cli->timeout_s > 0 ? cli->timeout_s : 10L);
    (void)lib.easy_perform(curl);
    (void)lib.easy_getinfo(curl, CURLINFO_CERTINFO, &info);
    for (int i = 0; info != NULL && i < info->num_of_certs && i < CLI_CHAIN_MAX; i++)
        for (const struct curl_slist *line = info->certinfo[i]; line != NULL; line = line->next)
            if (strncmp(line->data, "Cert:", 5) == 0)
                ok = shoal_buf_append(&pem, line->data + 5, strlen(line->data + 5)) == SHOAL_OK &&
                     shoal_buf_append(&pem, "\n", 1) == SHOAL_OK;
    ok = ok && cli_trust_read((const char *)pem.bytes, pem.len, trust);
    shoal_buf_deinit(&pem);
    lib.easy_cleanup(curl);
    return ok;
}

static int call_one(struct cli *cli, const char *node, const struct cli_call *call, struct cli_answer *answer,
                    bool hush, bool *try_next)
{
    struct transfer transfer = { .call = call, .answer = answer };
    struct curl_slist *headers = NULL;
    curl_mime *form = NULL;
    char url[URL_BYTES];
    char line[2048];
    CURLcode code;
    int result;
    size_t node_len = strlen(node);

    *try_next = false;
    while (node_len > 0 && node[node_len - 1] == '/')
        node_len--;
    (void)snprintf(answer->node, sizeof(answer->node), "%s%.*s", with_scheme(node), (int)node_len, node);
    (void)snprintf(url, sizeof(url), "%s%.*s%s", with_scheme(node), (int)node_len, node, call->path);
    result = cli_trust_ready(cli, node);
    if (result != SHOAL_EXIT_OK) {
        answer->unsent = true;
        return result;
    }
    transfer.curl = lib.easy_init();
    if (transfer.curl == NULL)
        return cli_fail(SHOAL_EXIT_FAILED, "out of memory");
    (void)snprintf(line, sizeof(line), "Accept: %s", call->accept == NULL ? "application/json" : call->accept);
    headers = lib.slist_append(headers, line);
    if (call->ticket != NULL) {
        (void)snprintf(line, sizeof(line), "Shoal-Ticket: %s", call->ticket);
        headers = lib.slist_append(headers, line);
    }
    if (call->mesh_key != NULL) {
        (void)snprintf(line, sizeof(line), "Shoal-Mesh-Key: %s", call->mesh_key);
        headers = lib.slist_append(headers, line);
    }
    result = add_own(&transfer, &headers);
    if (!call->anonymous && result == SHOAL_EXIT_OK)
        result = set_credentials(cli, transfer.curl, &headers);
    if (result == SHOAL_EXIT_OK) {
        form = make_form(call, transfer.curl);
        set_options(cli, &transfer, url, headers, form);
        code = lib.easy_perform(transfer.curl);
        (void)lib.easy_getinfo(transfer.curl, CURLINFO_RESPONSE_CODE, &answer->status);
        if (shoal_buf_append(&answer->body, "", 1) == SHOAL_OK) /* a NUL beyond its length */
            answer->body.len--;
        *try_next = next_may_answer(code, &transfer);
        if (code != CURLE_OK)
            result = exit_of_curl(cli, code, url, &transfer, hush);
        else if (answer->status >= 400)
            result = exit_of_status(answer);
        if (code == CURLE_OK && result != SHOAL_EXIT_OK && !hush)
            cli_refused(answer);
    }
    if (transfer.upload != NULL)
        (void)fclose(transfer.upload);
    lib.mime_free(form);
    lib.slist_free_all(headers);
    lib.easy_cleanup(transfer.curl);
    return result;
}

/* What has no text has been said where it happened. */
static void say_hushed(const struct cli_answer *answer, int code)
{
    if (answer->fault[0] != '\0')
        (void)cli_fail(code, "%s", answer->fault);
    else if (answer->status >= 400)
        cli_refused(answer);
}

static int refuse_address(struct cli_answer *answer, const char *part, bool hush)
{
    answer->unsent = true;
    (void)snprintf(answer->fault, sizeof(answer->fault), "\"%.60s...\" is too long for an address; nothing was sent", part);
    return hush ? SHOAL_EXIT_USAGE : cli_fail(SHOAL_EXIT_USAGE, "%s", answer->fault);
}

int cli_call(struct cli *cli, const struct cli_call *call, struct cli_answer *answer, bool hush)
{
    const char *too_long = strchr(call->path, TOO_LONG);
    char nodes[NODES_BYTES];
    char *at = nodes;
    int result = SHOAL_EXIT_FAILED;
    bool try_next = true;

    *answer = (struct cli_answer){ .status = 0 };
    if (too_long != NULL || strlen(call->path) > PATH_BYTES_MAX)
        return refuse_address(answer, too_long != NULL ? too_long + 1 : call->path, hush);
    if (!load_curl() || lib.global_init(CURL_GLOBAL_DEFAULT) != 0)
        return cli_fail(SHOAL_EXIT_FAILED, "libcurl cannot be loaded; install the package libcurl4");
    if (call->node != NULL)
        (void)snprintf(nodes, sizeof(nodes), "%s", call->node);
    else
        node_list(cli, nodes, sizeof(nodes));
    while (try_next && at != NULL) {
        char *comma = strchr(at, ',');

        if (comma != NULL)
            *comma = '\0';
        cli_answer_free(answer);
        result = call_one(cli, at, call, answer, hush || comma != NULL, &try_next);
        if (!try_next && result != SHOAL_EXIT_OK && comma != NULL && !hush)
            say_hushed(answer, result);
        at = comma == NULL ? NULL : comma + 1;
        if (result == SHOAL_EXIT_OK)
            break;
    }
    return result;
}

void cli_answer_free(struct cli_answer *answer)
{
    shoal_buf_deinit(&answer->body);
    *answer = (struct cli_answer){ .status = 0 };
}

const char *cli_answer_text(const struct cli_answer *answer)
{
    return answer->body.len == 0 ? "" : (const char *)answer->body.bytes;
}

int cli_print(struct cli *cli, const char *path)
{
    struct cli_call call = { .method = "GET", .path = path };
    struct cli_answer answer;
    int code = cli_call(cli, &call, &answer, false);

    if (code == SHOAL_EXIT_OK)
        cli_print_json(cli_answer_text(&answer));
    cli_answer_free(&answer);
    return code;
}

void cli_encode(const char *text, char *out, size_t cap)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t len = 0;

    for (const char *at = text; *at != '\0'; at++) {
        unsigned char c = (unsigned char)*at;
        bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || strchr("-._~", c) != NULL;

        if (len + (plain ? 1 : 3) >= cap) {
            (void)snprintf(out, cap, "%c%s", TOO_LONG, text);
            return;
        }
        if (plain) {
            out[len++] = (char)c;
        } else {
            out[len++] = '%';
            out[len++] = digits[c >> 4];
            out[len++] = digits[c & 15];
        }
    }
    out[len] = '\0';
}
