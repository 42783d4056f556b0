/* The settings of an agent: options, what `shoal init` and `shoal join` have kept of them, and where this host is. */
#include "agent_settings.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include "shoal/disk.h"

#include "agent_conf.h"
#include "agent_python.h"

#include "shoal/banned.h"

/* A socket's path is at most 107 bytes: <data>/jobs/shoal-<16 digits>/runner.sock must fit. */
#define DATA_PATH_MAX 60

/* Beside the program as it is built, or where `make install` puts it. */
static void find_fabric(struct agent_settings *settings)
{
    ssize_t len;
    char *slash;

    if (settings->fabric_home[0] != '\0') /* --libs */
        return;
    len = readlink("/proc/self/exe", settings->fabric_home, sizeof(settings->fabric_home) - 16);
    settings->fabric_home[len < 0 ? 0 : len] = '\0';
    slash = strrchr(settings->fabric_home, '/');
    if (slash == NULL)
        return;
    memcpy(slash, "/fabric", 8);
    if (access(settings->fabric_home, R_OK) != 0 && slash - settings->fabric_home < AGENT_PATH_BYTES - 32)
        memcpy(slash, "/../lib/shoal/fabric", 21);
}

static enum shoal_err check_length(const char *data, struct shoal_msg *msg)
{
    if (strlen(data) > DATA_PATH_MAX)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG,
                          "%s: longer than %d bytes, and sockets lie below it; choose a shorter path", data,
                          DATA_PATH_MAX);
    return SHOAL_OK;
}

static enum shoal_err data_folder(struct agent_settings *settings, const char *data, struct shoal_msg *msg)
{
    char *resolved;

    if (data[0] == '\0')
        return shoal_fail(msg, SHOAL_ERR_INVALID, "no data folder: give one with --data");
    resolved = realpath(data, NULL);
    if (resolved == NULL)
        return shoal_fail(msg, SHOAL_ERR_NOT_FOUND, "%s: %s; make it with `shoal init` or `shoal join`", data,
                          strerror(errno));
    (void)snprintf(settings->data, sizeof(settings->data), "%s", resolved);
    free(resolved);
    return check_length(settings->data, msg);
}

static void seeds_read(struct agent_settings *settings)
{
    char path[AGENT_PATH_BYTES + 16];
    char line[128];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/seeds", settings->data);
    file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL && settings->seed_count < SHOAL_SWIM_SEEDS_MAX) {
        struct shoal_msg msg;

        line[strcspn(line, "\n")] = '\0';
        if (shoal_address_parse(line, AGENT_PORT, &settings->seeds[settings->seed_count], &msg) == SHOAL_OK)
            settings->seed_count++;
    }
    if (file != NULL)
        (void)fclose(file);
}

static enum shoal_err keep_text(char *to, size_t cap, const char *option, const char *text, struct shoal_msg *msg)
{
    if (strlen(text) >= cap)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "--%s: \"%.20s...\" is longer than %zu bytes", option, text, cap - 1);
    memcpy(to, text, strlen(text) + 1);
    return SHOAL_OK;
}

void agent_host_text(struct shoal_address address, char text[SHOAL_ADDRESS_TEXT_BYTES])
{
    size_t bracket;

    shoal_address_text(address, text);
    *strrchr(text, ':') = '\0';
    bracket = text[0] == '[';
    if (bracket == 1)
        text[strlen(text) - 1] = '\0';
    memmove(text, text + bracket, strlen(text + bracket) + 1);
}

/* The interfaces for training data: those that the operator trusts; else where this host is reached, sealed. Loopback
 * leads to nobody else. */
static void choose_fabric(struct agent_settings *settings)
{
    char ip[SHOAL_ADDRESS_TEXT_BYTES];

    if (settings->fabric_trusted[0] != '\0')
        return;
    agent_host_text(settings->address, ip);
    if (shoal_address_is_loopback(settings->address))
        (void)snprintf(settings->fabric_trusted, sizeof(settings->fabric_trusted), "%s", strchr(ip, ':') == NULL ? "lo" : ip);
    else
        (void)snprintf(settings->fabric_sealed, sizeof(settings->fabric_sealed), "%s", ip);
}

bool agent_fabric_is_loopback(const struct agent_settings *settings)
{
    return strcmp(settings->fabric_trusted, "lo") == 0 || strcmp(settings->fabric_trusted, "::1") == 0;
}

enum shoal_err agent_join_parse(const char *text, struct shoal_address *address, struct shoal_msg *msg)
{
    const char *last = strrchr(text, ':');
    int head;

    if (last == NULL || text[0] == '[' || strchr(text, ':') == last)
        return shoal_address_parse(text, AGENT_PORT, address, msg);
    head = last > text && last[-1] != ':' && strspn(last + 1, "0123456789") == strlen(last + 1) ? (int)(last - text)
                                                                                               : (int)strlen(text);
    return shoal_fail(msg, SHOAL_ERR_INVALID,
                      "\"%.60s\": an IPv6 address stands in brackets, so that its port is told from it: [%.*s]:%s", text,
                      head < 60 ? head : 60, text, head < (int)strlen(text) ? last + 1 : "7410");
}

static enum shoal_err keep_transport(struct agent_settings *settings, const char *name, struct shoal_msg *msg)
{
    name = name[0] == '\0' ? "auto" : name;
    if (strcmp(name, "auto") != 0 && strcmp(name, "ucx") != 0 && strcmp(name, "tcp") != 0)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "--transport: \"%.20s\" is not auto, ucx or tcp", name);
    (void)snprintf(settings->transport, sizeof(settings->transport), "%s", name);
    return SHOAL_OK;
}

/* The first line of the file; its text is a secret, so no message has it. */
static enum shoal_err read_metrics_token(struct agent_settings *settings, const char *path, struct shoal_msg *msg)
{
    struct shoal_buf text = { 0 };
    enum shoal_err err;
    size_t len = 0;

    if (path[0] == '\0')
        return SHOAL_OK;
    err = shoal_disk_read(path, 4096, &text, msg);
    while (err == SHOAL_OK && len < text.len && text.bytes[len] != '\n' && text.bytes[len] != '\r')
        len++;
    if (err == SHOAL_OK && (len < SHOAL_METRICS_TOKEN_BYTES_MIN || len >= sizeof(settings->metrics_token)))
        err = shoal_fail(msg, SHOAL_ERR_INVALID,
                         "metrics-token-file: the first line of %s has %zu bytes, and a token has %u to %u", path, len,
                         SHOAL_METRICS_TOKEN_BYTES_MIN, SHOAL_METRICS_TOKEN_BYTES - 1);
    if (err == SHOAL_OK)
        memcpy(settings->metrics_token, text.bytes, len);
    shoal_buf_deinit(&text);
    return err;
}

static enum shoal_err settings_texts(struct agent_settings *settings, const struct shoal_cli_agent *options,
                                     struct shoal_msg *msg)
{
    const char *host = options->host[0] != '\0' ? options->host : "127.0.0.1";
    enum shoal_err err = keep_text(settings->name, sizeof(settings->name), "name", options->name, msg);

    if (err == SHOAL_OK)
        err = keep_text(settings->api_host, sizeof(settings->api_host), "api-host",
                        options->api_host[0] != '\0' ? options->api_host : host, msg);
    if (err == SHOAL_OK)
        err = keep_text(settings->domain, sizeof(settings->domain), "domain", options->domain, msg);
    if (err == SHOAL_OK)
        err = read_metrics_token(settings, options->metrics_token_file, msg);
    if (err == SHOAL_OK)
        err = keep_text(settings->fabric_trusted, sizeof(settings->fabric_trusted), "fabric-trusted",
                        options->fabric_trusted, msg);
    if (err == SHOAL_OK)
        err = keep_transport(settings, options->transport, msg);
    if (err == SHOAL_OK)
        err = keep_text(settings->fabric_home, sizeof(settings->fabric_home) - 16, "libs", options->libs, msg);
    return err;
}

/* All addresses of a host: good to listen on, not to be told. */
static bool is_any(const uint8_t ip[16])
{
    static const uint8_t v6[16], v4[16] = { [10] = 0xff, [11] = 0xff };

    return memcmp(ip, v6, 16) == 0 || memcmp(ip, v4, 16) == 0;
}

void agent_api_url(const struct agent_settings *settings, uint16_t port, char url[AGENT_URL_BYTES])
{
    char text[SHOAL_ADDRESS_TEXT_BYTES];
    struct shoal_address api;
    struct shoal_msg msg;

    if (shoal_address_parse(settings->api_host, AGENT_API_PORT, &api, &msg) != SHOAL_OK || is_any(api.ip))
        api = settings->address;
    api.port = port;
    shoal_address_text(api, text);
    (void)snprintf(url, AGENT_URL_BYTES, "%s://%s", settings->api_plain ? "http" : "https", text);
}

/* The address that the row has; false: it is neither IPv4 nor IPv6. */
static bool row_ip(const struct sockaddr *row, uint8_t ip[16])
{
    if (row != NULL && row->sa_family == AF_INET6) {
        memcpy(ip, &((const struct sockaddr_in6 *)(const void *)row)->sin6_addr, 16);
        return true;
    }
    memset(ip, 0, 10);
    memset(ip + 10, 0xff, 2);
    if (row == NULL || row->sa_family != AF_INET)
        return false;
    memcpy(ip + 12, &((const struct sockaddr_in *)(const void *)row)->sin_addr, 4);
    return true;
}

/* Looked for once: the scripts of other frameworks are told its name (agent_env.c). The loopback interface has more addresses than
 * it lists; "eth0:1" is a second name of one of eth0's. */
static void find_interface(struct agent_settings *settings)
{
    struct ifaddrs *all = NULL;
    uint8_t ip[16];

    if (getifaddrs(&all) != 0)
        return;
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        bool loops = shoal_address_is_loopback(settings->address) && (i->ifa_flags & IFF_LOOPBACK) != 0;

        if (!row_ip(i->ifa_addr, ip) || (!loops && memcmp(ip, settings->address.ip, 16) != 0))
            continue;
        (void)snprintf(settings->interface, sizeof(settings->interface), "%.*s", (int)strcspn(i->ifa_name, ":"), i->ifa_name);
        break;
    }
    freeifaddrs(all);
}

/* The address at which other hosts reach this one: they are told this very one. */
static enum shoal_err own_address(struct agent_settings *settings, const struct shoal_cli_agent *options,
                                  struct shoal_msg *msg)
{
    static const uint8_t v4_none[16] = { [10] = 0xff, [11] = 0xff };
    const char *host = options->host[0] == '\0' ? "127.0.0.1" : options->host;
    const uint8_t *ip = settings->address.ip;
    enum shoal_err err =
        shoal_address_parse(host, options->port == 0 ? AGENT_PORT : options->port, &settings->address, msg);

    if (err == SHOAL_OK && (is_any(ip) || ip[0] == 0xff ||
                            (memcmp(ip, v4_none, 12) == 0 && ip[12] >= 224)))
        err = shoal_fail(msg, SHOAL_ERR_INVALID,
                         "--host %s: other hosts are told this address, and reach nobody there; give the one of this "
                         "host's network card (`ip -brief address` shows them). The API alone may listen on all: "
                         "--api-host",
                         host);
    return err;
}

/* Reads what options alone say: no look at the folder, and nothing is started. */
static enum shoal_err settings_given(struct agent_settings *settings, const struct shoal_cli_agent *options,
                                     struct shoal_msg *msg)
{
    enum shoal_err err = own_address(settings, options, msg);

    if (err == SHOAL_OK)
        err = settings_texts(settings, options, msg);
    if (err != SHOAL_OK)
        return err;
    settings->api_port = options->api_port == 0 ? AGENT_API_PORT : options->api_port;
    settings->api_plain = options->api_plain;
    if (settings->api_plain && strncmp(settings->api_host, "127.", 4) != 0 && strcmp(settings->api_host, "::1") != 0)
        return shoal_fail(
            msg, SHOAL_ERR_INVALID,
            "--api-plain on %s: HTTP without TLS is served on a loopback address only; leave --api-plain out, "
            "or put a TLS proxy in front of 127.0.0.1",
            settings->api_host);
    return SHOAL_OK;
}

enum shoal_err agent_settings_of(struct agent_settings *settings, const struct shoal_cli_agent *given,
                                 struct shoal_msg *msg)
{
    static struct shoal_buf file; /* the kept texts live in it, as long as the process */
    struct shoal_cli_agent kept = *given;
    const struct shoal_cli_agent *options = &kept;
    enum shoal_err err = data_folder(settings, options->data, msg);

    if (err == SHOAL_OK)
        err = agent_conf_read(&kept, &file, msg);
    if (err == SHOAL_OK)
        err = settings_given(settings, options, msg);
    if (err != SHOAL_OK)
        return err;
    choose_fabric(settings);
    find_interface(settings);
    if (settings->name[0] == '\0' && gethostname(settings->name, sizeof(settings->name) - 1) != 0)
        (void)snprintf(settings->name, sizeof(settings->name), "node");
    settings->prefill_bytes = options->prefill_mib == UINT64_MAX ? 0 : options->prefill_mib * SHOAL_MIB;
    settings->store_map_bytes = options->store_map_mib * SHOAL_MIB;
    if (settings->store_map_bytes != 0 &&
        (settings->prefill_bytes == 0 ? 64 * SHOAL_MIB : settings->prefill_bytes) > settings->store_map_bytes / 2)
        settings->prefill_bytes = settings->store_map_bytes / 2;
    settings->log_max_mib = options->log_max_mib == 0 ? SHOAL_JOB_LOG_MIB : options->log_max_mib;
    settings->files_max = options->files_max == 0 ? SHOAL_JOB_FILES : options->files_max;
    settings->files_gib = options->files_gib == 0 ? SHOAL_JOB_FILES_GIB : options->files_gib;
    settings->warm_memory_bytes =
        (options->warm_memory_mib == UINT64_MAX ? SHOAL_WARM_MEMORY_MIB : options->warm_memory_mib) * SHOAL_MIB;
    settings->archive_s = options->archive_s == 0 ? SHOAL_ARCHIVE_S : options->archive_s;
    settings->verbose = strcmp(options->log_level, "debug") == 0;
    err = agent_inventory(settings, options->inventory, options->slots, msg);
    find_fabric(settings);
    if (err == SHOAL_OK && options->join[0] != '\0') {
        err = agent_join_parse(options->join, &settings->seeds[0], msg);
        settings->seed_count = err == SHOAL_OK ? 1 : 0;
    }
    if (err == SHOAL_OK) {
        seeds_read(settings);
        settings->told_count = settings->seed_count;
        agent_peers_read(settings);
    }
    return err == SHOAL_OK ? agent_python_find(settings, options->python, msg) : err;
}

/* The folder may not be there yet: as far as it is, and the rest as it was written. */
static enum shoal_err check_folder(const char *data, struct shoal_msg *msg)
{
    char text[AGENT_PATH_BYTES];
    char whole[2 * AGENT_PATH_BYTES];
    char *resolved;
    const char *name = "";
    char *slash;

    if (data[0] == '\0')
        return shoal_fail(msg, SHOAL_ERR_INVALID, "no data folder: give one with --data");
    if (strlen(data) >= sizeof(text) - 2)
        return check_length(data, msg);
    (void)snprintf(text, sizeof(text), "%s%s", data[0] == '/' ? "" : "./", data);
    for (size_t len = strlen(text); len > 1 && text[len - 1] == '/'; len--)
        text[len - 1] = '\0';
    resolved = realpath(text, NULL);
    slash = strrchr(text, '/');
    if (resolved == NULL && slash != NULL) {
        *slash = '\0';
        name = slash + 1;
        resolved = realpath(text[0] == '\0' ? "/" : text, NULL);
    }
    if (resolved == NULL) /* whoever makes the folder says what is wrong with it */
        return SHOAL_OK;
    (void)snprintf(whole, sizeof(whole), "%.*s%s%s", DATA_PATH_MAX + 1, resolved, name[0] == '\0' ? "" : "/", name);
    free(resolved);
    return check_length(whole, msg);
}

enum shoal_err agent_settings_check(const struct shoal_cli_agent *options, struct shoal_msg *msg)
{
    static struct agent_settings settings; /* of no agent */
    struct shoal_address api;
    enum shoal_err err = check_folder(options->data, msg);

    if (err == SHOAL_OK)
        err = agent_conf_check(options, msg);
    if (err == SHOAL_OK)
        err = settings_given(&settings, options, msg);
    if (err == SHOAL_OK)
        err = shoal_address_parse(settings.api_host, AGENT_API_PORT, &api, msg);
    if (err == SHOAL_OK)
        err = agent_inventory(&settings, options->inventory[0] == '\0' ? "cpu:1" : options->inventory, 0, msg);
    if (err == SHOAL_OK && options->python[0] != '\0')
        err = agent_python_find(&settings, options->python, msg);
    return err;
}
