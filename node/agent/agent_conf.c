/* Options that `shoal init` and `shoal join` were given are kept in <data>/agent.conf, one "name value" a line, so that
 * `shoal agent --data DIR` alone starts the same agent. What is given at the start stands above the file. SIGHUP has the
 * file read again (agent_service.c). */
#include "agent_conf.h"

#include <errno.h>
#include <unistd.h>

#include "shoal/identity.h"
#include "shoal/disk.h"

#include "shoal/banned.h"

#define CONF_BYTES_MAX (16 * SHOAL_KIB)

struct text_option {
    const char *name;
    size_t offset;
};

static const struct text_option text_options[] = {
    { "name", offsetof(struct shoal_cli_agent, name) },
    { "host", offsetof(struct shoal_cli_agent, host) },
    { "api-host", offsetof(struct shoal_cli_agent, api_host) },
    { "inventory", offsetof(struct shoal_cli_agent, inventory) },
    { "fabric-trusted", offsetof(struct shoal_cli_agent, fabric_trusted) },
    { "transport", offsetof(struct shoal_cli_agent, transport) },
    { "domain", offsetof(struct shoal_cli_agent, domain) },
    { "metrics-token-file", offsetof(struct shoal_cli_agent, metrics_token_file) },
    { "python", offsetof(struct shoal_cli_agent, python) },
    { "libs", offsetof(struct shoal_cli_agent, libs) },
    { "log-level", offsetof(struct shoal_cli_agent, log_level) },
};
#define TEXT_OPTIONS (sizeof(text_options) / sizeof(text_options[0]))

enum number_setting {
    SET_PORT,
    SET_API_PORT,
    SET_API_PLAIN,
    SET_SLOTS,
    SET_PREFILL,
    SET_STORE_MAP,
    SET_LOG_MAX,
    SET_FILES_MAX,
    SET_FILES_GIB,
    SET_ARCHIVE_AFTER,
    SET_WARM_MEMORY
};

static const struct number_option {
    const char *name;
    enum number_setting setting;
    uint64_t min;
    uint64_t max;
} number_options[] = {
    { "port", SET_PORT, 1, 65535 },
    { "api-port", SET_API_PORT, 1, 65535 },
    { "api-plain", SET_API_PLAIN, 0, 1 },
    { "slots", SET_SLOTS, 1, SHOAL_SLOTS_MAX },
    { "prefill", SET_PREFILL, 0, SHOAL_PREFILL_MIB_MAX },
    { "store-map", SET_STORE_MAP, SHOAL_STORE_MAP_MIB_MIN, SHOAL_PREFILL_MIB_MAX },
    { "log-max", SET_LOG_MAX, 1, SHOAL_JOB_LOG_MIB_MAX },
    { "files-max", SET_FILES_MAX, 1, SHOAL_JOB_FILES_MAX },
    { "files-gib", SET_FILES_GIB, 1, SHOAL_JOB_FILES_GIB_MAX },
    { "archive-after", SET_ARCHIVE_AFTER, SHOAL_ARCHIVE_S_MIN, SHOAL_ARCHIVE_S_MAX },
    { "warm-memory", SET_WARM_MEMORY, 0, SHOAL_WARM_MEMORY_MIB_MAX },
};
#define NUMBER_OPTIONS (sizeof(number_options) / sizeof(number_options[0]))

static const char **text_at(struct shoal_cli_agent *options, const struct text_option *option)
{
    return (const char **)((char *)options + option->offset);
}

static void put(struct shoal_writer *w, const char *name, const char *value)
{
    char line[AGENT_PATH_BYTES + 64];

    (void)snprintf(line, sizeof(line), "%s %s\n", name, value);
    shoal_put_raw(w, line, strlen(line));
}

static void put_number(struct shoal_writer *w, const char *name, uint64_t value)
{
    char text[24];

    (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    put(w, name, text);
}

/* A path, for an agent that is started in another folder. Links stay: a Python is another one behind them. */
static const char *from_everywhere(const char *name, const char *text, char whole[AGENT_PATH_BYTES])
{
    bool is_python = strcmp(name, "python") == 0;
    size_t len;

    if (!is_python && strcmp(name, "libs") != 0 && strcmp(name, "metrics-token-file") != 0)
        return text;
    if (text[0] == '/' || (is_python && strchr(text, '/') == NULL) || getcwd(whole, AGENT_PATH_BYTES) == NULL)
        return text;
    len = strlen(whole);
    if (len + 1 + strlen(text) >= AGENT_PATH_BYTES)
        return text;
    (void)snprintf(whole + len, AGENT_PATH_BYTES - len, "/%s", text);
    return whole;
}

enum shoal_err agent_conf_check(const struct shoal_cli_agent *options, struct shoal_msg *msg)
{
    struct shoal_cli_agent given = *options;

    for (size_t i = 0; i < TEXT_OPTIONS; i++) {
        const char *text = *text_at(&given, &text_options[i]);

        if (strchr(text, '\n') != NULL || strlen(text) >= AGENT_PATH_BYTES)
            return shoal_fail(msg, SHOAL_ERR_INVALID, "--%s: longer than %d bytes, or of more than one line",
                              text_options[i].name, AGENT_PATH_BYTES - 1);
    }
    return SHOAL_OK;
}

enum shoal_err agent_conf_write(const struct shoal_cli_agent *options, struct shoal_msg *msg)
{
    static uint8_t bytes[CONF_BYTES_MAX];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    struct shoal_cli_agent given = *options;
    char path[AGENT_PATH_BYTES];
    char whole[AGENT_PATH_BYTES];
    enum shoal_err err = agent_conf_check(options, msg);

    if (err != SHOAL_OK)
        return err;
    put(&w, "#", "settings of this host's agent; shoal-agent(8) lists them"); /* it is there, whatever was given */
    for (size_t i = 0; i < TEXT_OPTIONS; i++) {
        const char *text = *text_at(&given, &text_options[i]);

        if (text[0] != '\0')
            put(&w, text_options[i].name, from_everywhere(text_options[i].name, text, whole));
    }
    if (given.port != 0)
        put_number(&w, "port", given.port);
    if (given.api_port != 0)
        put_number(&w, "api-port", given.api_port);
    if (given.api_plain)
        put_number(&w, "api-plain", 1);
    if (given.slots != 0)
        put_number(&w, "slots", given.slots);
    if (given.prefill_mib != UINT64_MAX)
        put_number(&w, "prefill", given.prefill_mib);
    if (given.store_map_mib != 0)
        put_number(&w, "store-map", given.store_map_mib);
    if (given.log_max_mib != 0)
        put_number(&w, "log-max", given.log_max_mib);
    if (given.files_max != 0)
        put_number(&w, "files-max", given.files_max);
    if (given.files_gib != 0)
        put_number(&w, "files-gib", given.files_gib);
    if (given.archive_s != 0)
        put_number(&w, "archive-after", given.archive_s);
    if (given.warm_memory_mib != UINT64_MAX)
        put_number(&w, "warm-memory", given.warm_memory_mib);
    if (w.failed)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "the options exceed %u bytes", CONF_BYTES_MAX);
    (void)snprintf(path, sizeof(path), "%.400s/agent.conf", options->data);
    return shoal_disk_replace(path, shoal_writer_view(&w), 0600, msg);
}

static bool parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *number)
{
    uint64_t value = 0;

    if (text[0] == '\0' || strlen(text) > 19)
        return false;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9')
            return false;
        value = value * 10 + (uint64_t)(*text - '0');
    }
    *number = value;
    return value >= min && value <= max;
}

/* An option that was given at the start stands above the file. */
static void take_number(struct shoal_cli_agent *options, enum number_setting setting, uint64_t number)
{
    switch (setting) {
    case SET_PORT: options->port = options->port == 0 ? (uint16_t)number : options->port; break;
    case SET_API_PORT: options->api_port = options->api_port == 0 ? (uint16_t)number : options->api_port; break;
    case SET_API_PLAIN: options->api_plain = options->api_plain || number != 0; break;
    case SET_SLOTS: options->slots = options->slots == 0 ? (unsigned)number : options->slots; break;
    case SET_PREFILL: options->prefill_mib = options->prefill_mib == UINT64_MAX ? number : options->prefill_mib; break;
    case SET_WARM_MEMORY:
        options->warm_memory_mib = options->warm_memory_mib == UINT64_MAX ? number : options->warm_memory_mib;
        break;
    case SET_STORE_MAP: options->store_map_mib = options->store_map_mib == 0 ? number : options->store_map_mib; break;
    case SET_ARCHIVE_AFTER: options->archive_s = options->archive_s == 0 ? (uint32_t)number : options->archive_s; break;
    case SET_LOG_MAX: options->log_max_mib = options->log_max_mib == 0 ? (uint32_t)number : options->log_max_mib; break;
    case SET_FILES_MAX: options->files_max = options->files_max == 0 ? (uint32_t)number : options->files_max; break;
    case SET_FILES_GIB: options->files_gib = options->files_gib == 0 ? (uint32_t)number : options->files_gib; break;
    }
}

/* A setting that was not given is zero, or UINT64_MAX where zero can be given. */
static uint64_t number_of(const struct shoal_cli_agent *options, enum number_setting setting)
{
    switch (setting) {
    case SET_PORT: return options->port;
    case SET_API_PORT: return options->api_port;
    case SET_API_PLAIN: return options->api_plain;
    case SET_SLOTS: return options->slots;
    case SET_PREFILL: return options->prefill_mib;
    case SET_STORE_MAP: return options->store_map_mib;
    case SET_LOG_MAX: return options->log_max_mib;
    case SET_FILES_MAX: return options->files_max;
    case SET_FILES_GIB: return options->files_gib;
    case SET_ARCHIVE_AFTER: return options->archive_s;
    case SET_WARM_MEMORY: return options->warm_memory_mib;
    }
    return 0;
}

static const char *number_text(const struct number_option *option, const struct shoal_cli_agent *options, char text[24])
{
    uint64_t number = number_of(options, option->setting);
    bool may_be_zero = option->setting == SET_PREFILL || option->setting == SET_WARM_MEMORY;
    bool given = may_be_zero ? number != UINT64_MAX : number != 0;

    if (!given)
        return AGENT_CONF_DEFAULT;
    (void)snprintf(text, 24, "%llu", (unsigned long long)number);
    return text;
}

void agent_conf_changes(const struct shoal_cli_agent *was, const struct shoal_cli_agent *is, agent_conf_change_fn *tell,
                        void *arg)
{
    struct shoal_cli_agent a = *was;
    struct shoal_cli_agent b = *is;

    for (size_t i = 0; i < TEXT_OPTIONS; i++) {
        const char *old = *text_at(&a, &text_options[i]);
        const char *new = *text_at(&b, &text_options[i]);

        if (strcmp(old, new) != 0)
            tell(arg, text_options[i].name, old[0] == '\0' ? AGENT_CONF_DEFAULT : old,
                 new[0] == '\0' ? AGENT_CONF_DEFAULT : new);
    }
    for (size_t i = 0; i < NUMBER_OPTIONS; i++) {
        char old[24];
        char new[24];

        if (number_of(&a, number_options[i].setting) != number_of(&b, number_options[i].setting))
            tell(arg, number_options[i].name, number_text(&number_options[i], &a, old),
                 number_text(&number_options[i], &b, new));
    }
}

static enum shoal_err take(struct shoal_cli_agent *options, const char *path, unsigned line, char *text,
                           struct shoal_msg *msg)
{
    size_t len = strcspn(text, " ");
    const char *value = text + len + (text[len] == ' ' ? 1 : 0);
    uint64_t number;

    text[len] = '\0';
    for (size_t i = 0; i < TEXT_OPTIONS; i++) {
        if (strcmp(text, text_options[i].name) != 0)
            continue;
        if (strcmp(text, "log-level") == 0 && strcmp(value, "debug") != 0 && strcmp(value, "info") != 0)
            return shoal_fail(msg, SHOAL_ERR_INVALID, "%s:%u: log-level: \"%.60s\" is not debug or info", path, line,
                              value);
        if ((*text_at(options, &text_options[i]))[0] == '\0')
            *text_at(options, &text_options[i]) = value;
        return SHOAL_OK;
    }
    for (size_t i = 0; i < NUMBER_OPTIONS; i++) {
        const struct number_option *option = &number_options[i];

        if (strcmp(text, option->name) != 0)
            continue;
        if (!parse_number(value, option->min, option->max, &number))
            return shoal_fail(msg, SHOAL_ERR_INVALID,
                              "%s:%u: %s: \"%.60s\" is not a number from %llu to %llu; mend the line or take it out",
                              path, line, option->name, value, (unsigned long long)option->min,
                              (unsigned long long)option->max);
        take_number(options, option->setting, number);
        return SHOAL_OK;
    }
    return shoal_fail(msg, SHOAL_ERR_INVALID, "%s:%u: there is no setting \"%.60s\"; shoal-agent(8) lists them", path,
                      line, text);
}

enum shoal_err agent_conf_parse(struct shoal_cli_agent *options, char *text, const char *path, struct shoal_msg *msg)
{
    enum shoal_err err = SHOAL_OK;

    for (unsigned line = 1; *text != '\0' && err == SHOAL_OK; line++) {
        char *end = text + strcspn(text, "\n");
        bool last = *end == '\0';

        *end = '\0';
        if (text[0] != '\0' && text[0] != '#')
            err = take(options, path, line, text, msg);
        text = last ? end : end + 1;
    }
    return err;
}

enum shoal_err agent_conf_read(struct shoal_cli_agent *options, struct shoal_buf *file, struct shoal_msg *msg)
{
    char path[AGENT_PATH_BYTES];
    enum shoal_err err;

    (void)snprintf(path, sizeof(path), "%.400s/agent.conf", options->data);
    err = shoal_disk_read(path, CONF_BYTES_MAX, file, msg);
    if (err == SHOAL_ERR_NOT_FOUND)
        return SHOAL_OK;
    if (err == SHOAL_OK && memchr(file->bytes, 0, file->len) != NULL)
        err = shoal_fail(msg, SHOAL_ERR_INVALID, "%s is not text; restore it, or run `shoal init` or `shoal join` anew",
                         path);
    if (err == SHOAL_OK)
        err = shoal_buf_append(file, "", 1);
    return err == SHOAL_OK ? agent_conf_parse(options, (char *)file->bytes, path, msg) : err;
}
