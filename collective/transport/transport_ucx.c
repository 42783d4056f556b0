/* UCX 1.13 over its tcp transport (reference/dependencies 10; reference/data-plane 4).
 *
 * - Loaded at run time, after its settings are in the environment: loading it early would take over signal handlers and
 *   memory calls of the user's program, and a job on one host needs none of it.
 * - Error mode PEER; one set of connections per epoch. A posted receive is never ended by a dead peer, and a stopped
 *   peer is never reported: the agent revokes, and reset() closes by force and cancels.
 * - The tcp transport has no authentication, and a stranger can crash it: it binds trusted interfaces only. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ucp/api/ucp.h>

#include "shoal/limits.h"
#include "transport.h"

#include "shoal/banned.h"

#define REQUESTS_MAX 16384u
#define DRAIN_TURNS 100000u
#define DRAIN_MESSAGES_MAX 65536u

struct transport_request {
    struct transport *transport;
    void *ucx; /* NULL: ended at once */
    struct transport_request *next_free;
    size_t want; /* of a receive */
    size_t got;
    ucs_status_t status;
    bool in_use;
    bool done;
    bool is_recv;
};

struct connection {
    struct transport *transport;
    ucp_ep_h ep;
    uint32_t peer;
    ucs_status_t status;
};

struct ucx_calls {
    __typeof__(&ucp_init_version) init_version;
    __typeof__(&ucp_cleanup) cleanup;
    __typeof__(&ucp_config_read) config_read;
    __typeof__(&ucp_config_modify) config_modify;
    __typeof__(&ucp_config_release) config_release;
    __typeof__(&ucp_worker_create) worker_create;
    __typeof__(&ucp_worker_destroy) worker_destroy;
    __typeof__(&ucp_worker_get_address) worker_get_address;
    __typeof__(&ucp_worker_release_address) worker_release_address;
    __typeof__(&ucp_worker_get_efd) worker_get_efd;
    __typeof__(&ucp_worker_arm) worker_arm;
    __typeof__(&ucp_worker_progress) worker_progress;
    __typeof__(&ucp_ep_create) ep_create;
    __typeof__(&ucp_ep_close_nbx) ep_close_nbx;
    __typeof__(&ucp_tag_send_nbx) tag_send_nbx;
    __typeof__(&ucp_tag_recv_nbx) tag_recv_nbx;
    __typeof__(&ucp_tag_probe_nb) tag_probe_nb;
    __typeof__(&ucp_tag_msg_recv_nbx) tag_msg_recv_nbx;
    __typeof__(&ucp_request_check_status) request_check_status;
    __typeof__(&ucp_request_cancel) request_cancel;
    __typeof__(&ucp_request_free) request_free;
    __typeof__(&ucs_status_string) status_string;
};

struct transport {
    struct ucx_calls ucx;
    void *library;
    ucp_context_h context;
    ucp_worker_h worker;
    struct connection *connections[SHOAL_RANKS_MAX];
    struct transport_request *requests;
    struct transport_request *free_requests;
    bool failed;
    ucs_status_t failure;
    uint32_t failed_peer;
    uint64_t lost;      /* by rank */
    uint64_t undrained; /* requests that did not end in a reset; must stay 0 */
};

static enum shoal_err check_devices(const char *devices, struct shoal_msg *msg)
{
    for (const char *at = devices; *at != '\0';) {
        size_t len = strcspn(at, ",");
        char path[80];

        if (len == 0 || len > 15 || memchr(at, '/', len) != NULL)
            return shoal_fail(msg, SHOAL_ERR_INVALID, "--fabric-trusted %s: not a list of interfaces", devices);
        (void)snprintf(path, sizeof(path), "/sys/class/net/%.*s", (int)len, at);
        if (access(path, F_OK) != 0)
            return shoal_fail(msg, SHOAL_ERR_INVALID, "--fabric-trusted names %.*s, which this host does not have",
                              (int)len, at);
        at += len + (at[len] == ',');
    }
    return SHOAL_OK;
}

static bool find_call(void *library, const char *name, void *call)
{
    void *symbol = dlsym(library, name);

    memcpy(call, &symbol, sizeof(symbol));
    return symbol != NULL;
}

static bool find_calls(void *library, struct ucx_calls *ucx)
{
    return find_call(library, "ucp_init_version", &ucx->init_version) &&
           find_call(library, "ucp_cleanup", &ucx->cleanup) &&
           find_call(library, "ucp_config_read", &ucx->config_read) &&
           find_call(library, "ucp_config_modify", &ucx->config_modify) &&
           find_call(library, "ucp_config_release", &ucx->config_release) &&
           find_call(library, "ucp_worker_create", &ucx->worker_create) &&
           find_call(library, "ucp_worker_destroy", &ucx->worker_destroy) &&
           find_call(library, "ucp_worker_get_address", &ucx->worker_get_address) &&
           find_call(library, "ucp_worker_release_address", &ucx->worker_release_address) &&
           find_call(library, "ucp_worker_get_efd", &ucx->worker_get_efd) &&
           find_call(library, "ucp_worker_arm", &ucx->worker_arm) &&
           find_call(library, "ucp_worker_progress", &ucx->worker_progress) &&
           find_call(library, "ucp_ep_create", &ucx->ep_create) &&
           find_call(library, "ucp_ep_close_nbx", &ucx->ep_close_nbx) &&
           find_call(library, "ucp_tag_send_nbx", &ucx->tag_send_nbx) &&
           find_call(library, "ucp_tag_recv_nbx", &ucx->tag_recv_nbx) &&
           find_call(library, "ucp_tag_probe_nb", &ucx->tag_probe_nb) &&
           find_call(library, "ucp_tag_msg_recv_nbx", &ucx->tag_msg_recv_nbx) &&
           find_call(library, "ucp_request_check_status", &ucx->request_check_status) &&
           find_call(library, "ucp_request_cancel", &ucx->request_cancel) &&
           find_call(library, "ucp_request_free", &ucx->request_free) &&
           find_call(RTLD_DEFAULT, "ucs_status_string", &ucx->status_string);
}

static enum shoal_err load(struct transport *t, struct shoal_msg *msg)
{
    static const char *const settings[][2] = {
        { "UCX_DEBUG_SIGNO", "0" },       { "UCX_ERROR_SIGNALS", "" },         { "UCX_VFS_ENABLE", "n" },
        { "UCX_HANDLE_ERRORS", "none" },  { "UCX_WARN_UNUSED_ENV_VARS", "n" }, { "UCX_MEM_EVENTS", "n" },
        { "UCX_LOG_LEVEL", "fatal" },     { "UCX_TCP_KEEPIDLE", "2s" },        { "UCX_TCP_KEEPINTVL", "1s" },
        { "UCX_TCP_KEEPCNT", "3" },       { "UCX_TCP_PUT_ENABLE", "n" }, /* measured: large messages 2 to 4 times faster
                                                                          */
        { "UCX_TCP_TX_SEG_SIZE", "64k" }, { "UCX_TCP_RX_SEG_SIZE", "64k" },
    };

    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        (void)setenv(settings[i][0], settings[i][1], 0); /* what the user has set stays */
    t->library = dlopen("libucp.so.0", RTLD_NOW | RTLD_GLOBAL);
    if (t->library == NULL)
        return shoal_fail(msg, SHOAL_ERR_UNSUPPORTED, "UCX: %s; install libucx0", dlerror());
    if (!find_calls(t->library, &t->ucx))
        return shoal_fail(msg, SHOAL_ERR_UNSUPPORTED, "UCX: this version lacks a call; 1.13 or newer is needed");
    return SHOAL_OK;
}

static enum shoal_err ucx_fail(const struct transport *t, struct shoal_msg *msg, const char *what, ucs_status_t status)
{
    return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "UCX: %s: %s", what, t->ucx.status_string(status));
}

static enum shoal_err start(struct transport *t, const char *devices, struct shoal_msg *msg)
{
    ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP };
    ucp_worker_params_t worker = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                   .thread_mode = UCS_THREAD_MODE_SERIALIZED };
    ucp_config_t *config;
    ucs_status_t status = t->ucx.config_read(NULL, NULL, &config);

    if (status != UCS_OK)
        return ucx_fail(t, msg, "settings", status);
    (void)t->ucx.config_modify(config, "TLS", "tcp");
    (void)t->ucx.config_modify(config, "NET_DEVICES", devices);
    (void)t->ucx.config_modify(config, "KEEPALIVE_INTERVAL", "1s");
    status = t->ucx.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &t->context);
    t->ucx.config_release(config);
    if (status != UCS_OK)
        return ucx_fail(t, msg, "start", status);
    status = t->ucx.worker_create(t->context, &worker, &t->worker);
    if (status != UCS_OK)
        return ucx_fail(t, msg, "worker", status);
    return SHOAL_OK;
}

static void ucx_destroy(struct transport *t);

static enum shoal_err ucx_create(struct transport **out, const char *devices, bool sealed, struct shoal_msg *msg)
{
    struct transport *t;
    enum shoal_err err;

    if (sealed)
        return shoal_fail(msg, SHOAL_ERR_UNSUPPORTED,
                          "UCX cannot seal what goes over %s: leave SHOAL_TRANSPORT=ucx out, or let the hosts' agents "
                          "trust the network (--fabric-trusted)",
                          devices);
    t = calloc(1, sizeof(*t));
    if (t == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for UCX");
    t->requests = calloc(REQUESTS_MAX, sizeof(*t->requests));
    err = t->requests == NULL ? shoal_fail(msg, SHOAL_ERR_FULL, "no memory for UCX") : check_devices(devices, msg);
    if (err == SHOAL_OK)
        err = load(t, msg);
    if (err == SHOAL_OK)
        err = start(t, devices, msg);
    if (err != SHOAL_OK) {
        ucx_destroy(t);
        return err;
    }
    for (uint32_t i = 0; i < REQUESTS_MAX; i++) {
        t->requests[i].transport = t;
        t->requests[i].next_free = t->free_requests;
        t->free_requests = &t->requests[i];
    }
    *out = t;
    return SHOAL_OK;
}

static enum shoal_err ucx_address(struct transport *t, uint8_t *bytes, size_t cap, size_t *len)
{
    ucp_address_t *address;
    size_t got;

    if (t->ucx.worker_get_address(t->worker, &address, &got) != UCS_OK)
        return SHOAL_ERR_UNREACHABLE;
    if (got <= cap)
        memcpy(bytes, address, got);
    t->ucx.worker_release_address(t->worker, address);
    if (got > cap)
        return SHOAL_ERR_TOO_BIG;
    *len = got;
    return SHOAL_OK;
}

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct connection *connection = arg;

    (void)ep;
    connection->status = status;
    connection->transport->failed = true;
    connection->transport->failure = status;
    connection->transport->failed_peer = connection->peer;
    connection->transport->lost |= 1ull << connection->peer;
}

static enum shoal_err ucx_connect(struct transport *t, const struct transport_peer *peer)
{
    struct connection *connection = calloc(1, sizeof(*connection));
    ucp_ep_params_t params = {
        .field_mask =
            UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = { .cb = on_error, .arg = connection },
    };

    SHOAL_ASSERT(peer->rank < SHOAL_RANKS_MAX && t->connections[peer->rank] == NULL);
    if (connection == NULL || peer->address_len == 0) {
        free(connection);
        return SHOAL_ERR_FULL;
    }
    connection->transport = t;
    connection->peer = peer->rank;
    params.address = (const ucp_address_t *)(const void *)peer->address;
    if (t->ucx.ep_create(t->worker, &params, &connection->ep) != UCS_OK) {
        free(connection);
        return SHOAL_ERR_UNREACHABLE;
    }
    t->connections[peer->rank] = connection;
    return SHOAL_OK;
}

static struct transport_request *take_request(struct transport *t, bool is_recv, size_t want)
{
    struct transport_request *request = t->free_requests;

    if (request == NULL)
        return NULL;
    t->free_requests = request->next_free;
    *request = (struct transport_request){ .transport = t, .in_use = true, .is_recv = is_recv, .want = want };
    return request;
}

static void free_request(struct transport_request *request)
{
    struct transport *t = request->transport;

    if (request->ucx != NULL)
        t->ucx.request_free(request->ucx);
    request->ucx = NULL;
    request->in_use = false;
    request->next_free = t->free_requests;
    t->free_requests = request;
}

static void on_sent(void *ucx, ucs_status_t status, void *arg)
{
    struct transport_request *request = arg;

    (void)ucx;
    request->status = status;
    request->done = true;
}

static void on_received(void *ucx, ucs_status_t status, const ucp_tag_recv_info_t *info, void *arg)
{
    struct transport_request *request = arg;

    (void)ucx;
    request->status = status;
    request->got = status == UCS_OK ? info->length : 0;
    request->done = true;
}

static struct transport_request *begun(struct transport_request *request, ucs_status_ptr_t pointer)
{
    if (UCS_PTR_IS_ERR(pointer)) {
        request->transport->failed = true;
        request->transport->failure = UCS_PTR_STATUS(pointer);
        free_request(request);
        return NULL;
    }
    if (pointer == NULL) { /* ended at once; the callback was not called */
        request->done = true;
        request->status = UCS_OK;
    } else {
        request->ucx = pointer;
    }
    return request;
}

static struct transport_request *ucx_send(struct transport *t, uint32_t peer, uint64_t tag, const void *bytes,
                                          size_t len)
{
    struct transport_request *request = t->connections[peer] == NULL || t->failed ? NULL : take_request(t, false, 0);
    ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                  .cb.send = on_sent };

    if (request == NULL)
        return NULL;
    param.user_data = request;
    return begun(request, t->ucx.tag_send_nbx(t->connections[peer]->ep, bytes, len, tag, &param));
}

static struct transport_request *ucx_recv(struct transport *t, uint64_t tag, void *bytes, size_t len)
{
    struct transport_request *request = t->failed ? NULL : take_request(t, true, len);
    /* With an immediate end UCX 1.13 does not say how much arrived. */
    ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                                  UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
                                  .cb.recv = on_received };

    if (request == NULL)
        return NULL;
    param.user_data = request;
    return begun(request, t->ucx.tag_recv_nbx(t->worker, bytes, len, tag, UINT64_MAX, &param));
}

static enum transport_state ucx_test(struct transport *t, struct transport_request *request)
{
    bool whole;

    if (!request->done)
        return TRANSPORT_PENDING;
    whole = request->status == UCS_OK && (!request->is_recv || request->got == request->want);
    if (!whole) {
        t->failed = true;
        t->failure = request->status == UCS_OK ? UCS_ERR_MESSAGE_TRUNCATED : request->status;
    }
    free_request(request);
    return whole ? TRANSPORT_DONE : TRANSPORT_FAILED;
}

static unsigned ucx_progress(struct transport *t)
{
    unsigned events = 0;

    for (unsigned i = 0; i < 16; i++) {
        unsigned now = t->ucx.worker_progress(t->worker);

        events += now;
        if (now == 0)
            break;
    }
    return events;
}

static int ucx_wait_fd(struct transport *t)
{
    int fd = -1;

    return t->ucx.worker_get_efd(t->worker, &fd) == UCS_OK ? fd : -1;
}

static bool ucx_arm(struct transport *t) { return t->ucx.worker_arm(t->worker) == UCS_OK; }

static bool ucx_failed(const struct transport *t, struct shoal_msg *msg)
{
    if (t->failed)
        (void)shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "UCX: connection to rank %u: %s", t->failed_peer,
                         t->ucx.status_string(t->failure));
    return t->failed;
}

static uint64_t ucx_lost(const struct transport *t) { return t->lost; }

/* It does not say: a connection counts as standing until it fails. */
static bool ucx_connected(const struct transport *t, uint32_t rank)
{
    (void)t;
    (void)rank;
    return true;
}

/* Receive and drop what came unasked in an epoch that is over. */
static void drop_unexpected(struct transport *t, uint64_t tag, uint64_t mask)
{
    for (uint32_t i = 0; i < DRAIN_MESSAGES_MAX; i++) {
        ucp_tag_recv_info_t info;
        ucp_tag_message_h message = t->ucx.tag_probe_nb(t->worker, tag, mask, 1, &info);
        ucp_request_param_t param = { 0 };
        ucs_status_ptr_t pointer;
        void *scratch;

        if (message == NULL)
            return;
        scratch = malloc(info.length + 1);
        if (scratch == NULL)
            return;
        pointer = t->ucx.tag_msg_recv_nbx(t->worker, scratch, info.length, message, &param);
        if (UCS_PTR_IS_PTR(pointer)) { /* a large one, whose sender is gone: it ends with the closed connections */
            for (uint32_t turn = 0; turn < DRAIN_TURNS && t->ucx.request_check_status(pointer) == UCS_INPROGRESS;
                 turn++)
                (void)t->ucx.worker_progress(t->worker);
            if (t->ucx.request_check_status(pointer) == UCS_INPROGRESS) {
                t->undrained++; /* its memory is left to it */
                t->ucx.request_free(pointer);
                continue;
            }
            t->ucx.request_free(pointer);
        }
        free(scratch);
    }
}

static void close_connections(struct transport *t)
{
    for (uint32_t peer = 0; peer < SHOAL_RANKS_MAX; peer++) {
        ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE };
        ucs_status_ptr_t pointer;

        if (t->connections[peer] == NULL)
            continue;
        pointer = t->ucx.ep_close_nbx(t->connections[peer]->ep, &param);
        if (UCS_PTR_IS_PTR(pointer)) {
            for (uint32_t turn = 0; turn < DRAIN_TURNS && t->ucx.request_check_status(pointer) == UCS_INPROGRESS;
                 turn++)
                (void)t->ucx.worker_progress(t->worker);
            t->ucx.request_free(pointer);
        }
        free(t->connections[peer]);
        t->connections[peer] = NULL;
    }
}

static void ucx_reset(struct transport *t, uint64_t stale_tag, uint64_t stale_mask)
{
    bool pending = true;

    for (uint32_t i = 0; i < REQUESTS_MAX; i++)
        if (t->requests[i].in_use && !t->requests[i].done && t->requests[i].is_recv)
            t->ucx.request_cancel(t->worker, t->requests[i].ucx);
    close_connections(t);
    for (uint32_t turn = 0; turn < DRAIN_TURNS && pending; turn++) {
        (void)t->ucx.worker_progress(t->worker);
        pending = false;
        for (uint32_t i = 0; i < REQUESTS_MAX && !pending; i++)
            pending = t->requests[i].in_use && !t->requests[i].done;
    }
    for (uint32_t i = 0; i < REQUESTS_MAX; i++) {
        if (t->requests[i].in_use && t->requests[i].done)
            free_request(&t->requests[i]);
        else if (t->requests[i].in_use)
            t->undrained++;
    }
    drop_unexpected(t, stale_tag, stale_mask);
    t->failed = false;
    t->lost = 0;
}

static void ucx_destroy(struct transport *t)
{
    if (t->worker != NULL) {
        ucx_reset(t, 0, 0);
        t->ucx.worker_destroy(t->worker);
    }
    if (t->context != NULL)
        t->ucx.cleanup(t->context);
    /* The library stays loaded: its threads and hooks do not survive being unloaded. */
    free(t->requests);
    free(t);
}

const struct transport_ops transport_ucx = {
    .name = "ucx",
    .create = ucx_create,
    .destroy = ucx_destroy,
    .address = ucx_address,
    .connect = ucx_connect,
    .send = ucx_send,
    .recv = ucx_recv,
    .test = ucx_test,
    .progress = ucx_progress,
    .wait_fd = ucx_wait_fd,
    .arm = ucx_arm,
    .failed = ucx_failed,
    .lost = ucx_lost,
    .connected = ucx_connected,
    .look = NULL,
    .reset = ucx_reset,
};
