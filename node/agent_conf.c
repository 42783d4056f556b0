/* Options that `shoal init` and `shoal join` were given are kept in <data>/agent.conf, one "name value" a line, so that
 * `shoal agent --data DIR` alone starts the same agent. What is given at the start stands above the file. */
#include "agent_conf.h"

#include <errno.h>

#include "shoal/identity.h"

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
    { "domain", offsetof(struct shoal_cli_agent, domain) },
    { "python", offsetof(struct shoal_cli_agent, python) },
    { "libs", offsetof(struct shoal_cli_agent, libs) },
};
#define TEXT_OPTIONS (sizeof(text_options) / sizeof(text_options[0]))

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

enum shoal_err agent_conf_write(const struct shoal_cli_agent *options, struct shoal_msg *msg)
{
    static uint8_t bytes[CONF_BYTES_MAX];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    struct shoal_cli_agent given = *options;
    char path[AGENT_PATH_BYTES];

    for (size_t i = 0; i < TEXT_OPTIONS; i++)
        if ((*text_at(&given, &text_options[i]))[0] != '\0')
            put(&w, text_options[i].name, *text_at(&given, &text_options[i]));
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
    if (w.failed)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "the options exceed %u bytes", CONF_BYTES_MAX);
    if (w.len == 0)
        return SHOAL_OK;
    (void)snprintf(path, sizeof(path), "%.400s/agent.conf", options->data);
    return shoal_file_replace(path, shoal_writer_view(&w), 0600, msg);
}

static void take(struct shoal_cli_agent *options, const char *name, const char *value)
{
    uint64_t number = strtoull(value, NULL, 10);

    for (size_t i = 0; i < TEXT_OPTIONS; i++)
        if (strcmp(name, text_options[i].name) == 0 && (*text_at(options, &text_options[i]))[0] == '\0')
            *text_at(options, &text_options[i]) = value;
    if (strcmp(name, "port") == 0 && options->port == 0)
        options->port = (uint16_t)number;
    else if (strcmp(name, "api-port") == 0 && options->api_port == 0)
        options->api_port = (uint16_t)number;
    else if (strcmp(name, "api-plain") == 0)
        options->api_plain = true;
    else if (strcmp(name, "slots") == 0 && options->slots == 0)
        options->slots = (unsigned)number;
    else if (strcmp(name, "prefill") == 0 && options->prefill_mib == UINT64_MAX)
        options->prefill_mib = number;
}

/* The texts live in the file's bytes, which are kept as long as the process. */
enum shoal_err agent_conf_read(struct shoal_cli_agent *options, struct shoal_msg *msg)
{
    static struct shoal_buf file;
    char path[AGENT_PATH_BYTES];
    enum shoal_err err;
    char *line;

    (void)snprintf(path, sizeof(path), "%.400s/agent.conf", options->data);
    err = shoal_file_read(path, CONF_BYTES_MAX, &file, msg);
    if (err == SHOAL_ERR_NOT_FOUND)
        return SHOAL_OK;
    if (err == SHOAL_OK)
        err = shoal_buf_append(&file, "", 1);
    if (err != SHOAL_OK)
        return err;
    for (line = (char *)file.bytes; *line != '\0';) {
        char *end = line + strcspn(line, "\n");
        char *space = strchr(line, ' ');
        bool last = *end == '\0';

        *end = '\0';
        if (space != NULL && space < end) {
            *space = '\0';
            take(options, line, space + 1);
        }
        line = last ? end : end + 1;
    }
    return SHOAL_OK;
}
