/* Finds UCX and its calls (ucx_table.h). Its settings are in the environment before it is loaded: it must not take over
 * signal handlers or memory calls of the user's program. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ucx_table.h"

#include "shoal/collective.h"

#include "shoal/banned.h"

/* Measured on loopback with 16 MiB (docs/RESULTS.md): whole chunks sent at once, in large pieces, beat UCX's rendezvous,
 * whose round trips stand between the chunks of a reduction. A send buffer of 1 MiB as in transport_tcp.c. */
static const char *const settings[][2] = {
    { "UCX_DEBUG_SIGNO", "0" },        { "UCX_ERROR_SIGNALS", "" },         { "UCX_VFS_ENABLE", "n" },
    { "UCX_HANDLE_ERRORS", "none" },   { "UCX_WARN_UNUSED_ENV_VARS", "n" }, { "UCX_MEM_EVENTS", "n" },
    { "UCX_LOG_LEVEL", "fatal" },      { "UCX_TCP_KEEPIDLE", "2s" },        { "UCX_TCP_KEEPINTVL", "1s" },
    { "UCX_TCP_KEEPCNT", "3" },        { "UCX_TCP_PUT_ENABLE", "n" },       { "UCX_RNDV_THRESH", "inf" },
    { "UCX_TCP_TX_SEG_SIZE", "256k" }, { "UCX_TCP_RX_SEG_SIZE", "256k" },   { "UCX_TCP_SNDBUF", "1m" },
};

struct wanted {
    const char *name;
    size_t at; /* in the table */
};

#define WANTED(field)                                                                                                  \
    {                                                                                                                  \
        "ucp_" #field, offsetof(struct ucx_table, field)                                                               \
    }

static const struct wanted calls[] = {
    WANTED(get_version),
    WANTED(init_version),
    WANTED(cleanup),
    WANTED(config_read),
    WANTED(config_modify),
    WANTED(config_release),
    WANTED(worker_create),
    WANTED(worker_destroy),
    WANTED(worker_get_address),
    WANTED(worker_release_address),
    WANTED(worker_get_efd),
    WANTED(worker_arm),
    WANTED(worker_progress),
    WANTED(ep_create),
    WANTED(ep_close_nbx),
    WANTED(tag_send_nbx),
    WANTED(tag_recv_nbx),
    WANTED(tag_probe_nb),
    WANTED(tag_msg_recv_nbx),
    WANTED(request_check_status),
    WANTED(request_cancel),
    WANTED(request_free),
    { "ucs_status_string", offsetof(struct ucx_table, status_string) },
};

static enum shoal_err find_calls(void *library, struct ucx_table *ucx, const char *path, struct shoal_msg *msg)
{
    _Static_assert(sizeof(void (*)(void)) == sizeof(void *), "dlsym gives calls as pointers to data");
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        void *symbol = dlsym(library, calls[i].name);

        if (symbol == NULL)
            return shoal_fail(msg, SHOAL_ERR_UNSUPPORTED, "%s has no %s", path, calls[i].name);
        memcpy((uint8_t *)ucx + calls[i].at, &symbol, sizeof(symbol));
    }
    return SHOAL_OK;
}

static enum shoal_err load_one(struct ucx_table *ucx, const char *path, struct shoal_msg *msg)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    enum shoal_err err;

    if (library == NULL)
        return shoal_fail(msg, SHOAL_ERR_UNSUPPORTED, "%s", dlerror());
    err = find_calls(library, ucx, path, msg);
    if (err == SHOAL_OK) {
        ucx->get_version(&ucx->major, &ucx->minor, &ucx->release);
        if (ucx->major != UCX_MAJOR || ucx->minor < UCX_MINOR_OLDEST)
            err = shoal_fail(msg, SHOAL_ERR_UNSUPPORTED, "%s is UCX %u.%u.%u, and %u.%u or later is needed", path,
                             ucx->major, ucx->minor, ucx->release, UCX_MAJOR, UCX_MINOR_OLDEST);
    }
    if (err != SHOAL_OK)
        (void)dlclose(library); /* nothing of it has run */
    return err;
}

enum shoal_err ucx_table_load(struct ucx_table *ucx, struct shoal_msg *msg)
{
    const char *chosen = getenv(UCX_ENV_LIBRARY);

    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        (void)setenv(settings[i][0], settings[i][1], 0); /* what the user has set stays */
    if (chosen != NULL && *chosen != '\0')
        return load_one(ucx, chosen, msg);
    return load_one(ucx, "libucp.so.0", msg);
}

int shoal_ucx_look(char *text, size_t cap)
{
    const char *chosen = getenv(UCX_ENV_LIBRARY);
    struct ucx_table ucx;
    struct shoal_msg msg = { "" };
    enum shoal_err err = ucx_table_load(&ucx, &msg);

    if (err == SHOAL_OK)
        (void)snprintf(text, cap, "UCX %u.%u.%u (%s)", ucx.major, ucx.minor, ucx.release,
                       chosen == NULL || *chosen == '\0' ? "the system's" : chosen);
    else
        (void)snprintf(text, cap, "%s", msg.text);
    return err == SHOAL_OK ? 0 : 1;
}
