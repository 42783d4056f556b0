/* UCX over its tcp transport (reference/dependencies 10; reference/data-plane 4), by the table of ucx_table.h.
 *
 * - Error mode PEER; one set of connections per epoch. A posted receive is never ended by a dead peer, and a stopped
 *   peer is never reported: the agent revokes, and reset() closes by force and cancels.
 * - The tcp transport has no authentication, and a stranger can crash it: it binds trusted interfaces only.
 * - Its sockets are made ours after it has opened them: no child of the user's program inherits one, since a peer
 *   learns of a death by the end of a connection; and none is paced within this machine (no_pacing of transport_tcp.c). */
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "shoal/limits.h"
#include "transport.h"
#include "ucx_table.h"

#include "shoal/banned.h"

#define REQUESTS_MAX 16384u
#define DRAIN_TURNS 100000u
#define DRAIN_MESSAGES_MAX 65536u
#define DEVICES_BYTES 160u
#define PORTS_MAX 8u
#define LOOK_NS (100 * SHOAL_MS)

struct transport_request {
    struct transport *transport;
    void *ucx; /* NULL: ended at once */
    struct transport_request *next_free;
    size_t want; /* of a receive */
    size_t got;
    ucx_status status;
    bool in_use;
    bool done;
    bool is_recv;
};

struct connection {
    struct transport *transport;
    void *ep;
    uint32_t peer;
    ucx_status status;
};

struct transport {
    struct ucx_table ucx;
    void *context;
    void *worker;
    struct connection *connections[SHOAL_RANKS_MAX];
    struct transport_request *requests;
    struct transport_request *free_requests;
    bool failed;
    ucx_status failure;
    uint32_t failed_peer;
    struct shoal_ranks lost;
    uint64_t undrained;        /* requests that did not end in a reset; must stay 0 */
    uint16_t ports[PORTS_MAX]; /* where it listens, in network order */
    uint32_t port_count;
    uint64_t looked_ns; /* for connections that came in */
};

/* ---- interfaces ---- */

/* One of the names or IPv4 addresses, as a name of UCX's list. */
static enum shoal_err add_device(const struct ifaddrs *all, const char *name, size_t len, char *list, size_t cap,
                                 struct shoal_msg *msg)
{
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        size_t used = strlen(list);
        const char *text;

        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET)
            continue;
        text = inet_ntoa(((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr);
        if ((strlen(i->ifa_name) != len || memcmp(i->ifa_name, name, len) != 0) &&
            (strlen(text) != len || memcmp(text, name, len) != 0))
            continue;
        if (used + strlen(i->ifa_name) + 2 > cap)
            return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "UCX: more interfaces than fit into %zu characters", cap);
        (void)snprintf(list + used, cap - used, "%s%s", used == 0 ? "" : ",", i->ifa_name);
        return SHOAL_OK;
    }
    return shoal_fail(msg, SHOAL_ERR_INVALID,
                      "%.*s is neither an interface with an IPv4 address nor such an address on this host; "
                      "--fabric-trusted of its agent names it",
                      (int)len, name);
}

static enum shoal_err list_devices(const char *devices, char *list, size_t cap, struct shoal_msg *msg)
{
    struct ifaddrs *all = NULL;
    enum shoal_err err = SHOAL_OK;

    list[0] = '\0';
    if (getifaddrs(&all) != 0)
        return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "cannot list the interfaces");
    for (const char *at = devices; *at != '\0' && err == SHOAL_OK;) {
        size_t len = strcspn(at, ",");

        err = add_device(all, at, len, list, cap, msg);
        at += len + (at[len] == ',');
    }
    freeifaddrs(all);
    return err;
}

/* ---- its sockets ---- */

/* The number that the next descriptor gets: what is opened in between has a number from here on. */
static int lowest_fd(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    if (fd >= 0)
        (void)close(fd);
    return fd;
}

static bool is_loopback(const struct sockaddr_in *at) { return ntohl(at->sin_addr.s_addr) >> 24 == 127; }

/* A descriptor that UCX may have opened: if it is a socket of IPv4 that children would inherit, they no longer do. What
 * a listener has set, its connections begin with. */
static void own_socket(int fd)
{
    static const char every_kernel_has[] = "reno";
    struct sockaddr_in at = { 0 };
    socklen_t len = sizeof(at);
    int flags = fcntl(fd, F_GETFD);

    if (flags < 0 || (flags & FD_CLOEXEC) != 0 || getsockname(fd, (struct sockaddr *)&at, &len) != 0 ||
        at.sin_family != AF_INET)
        return;
    (void)fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
    if (is_loopback(&at))
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, every_kernel_has, sizeof(every_kernel_has) - 1);
}

static void own_listeners(struct transport *t, int first)
{
    int end = lowest_fd();

    for (int fd = first; fd >= 0 && fd < end; fd++) {
        struct sockaddr_in at = { 0 };
        socklen_t len = sizeof(at);
        int listens = 0;
        socklen_t size = sizeof(listens);

        own_socket(fd);
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0 &&
            getsockname(fd, (struct sockaddr *)&at, &len) == 0 && at.sin_family == AF_INET && t->port_count < PORTS_MAX)
            t->ports[t->port_count++] = at.sin_port;
    }
}

static uint64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Connections that others opened to it, looked for now and then: UCX does not say when it accepts one. */
static void own_accepted(struct transport *t)
{
    uint64_t now = now_ns();
    const struct dirent *entry;
    DIR *folder;

    if (now < t->looked_ns + LOOK_NS)
        return;
    t->looked_ns = now;
    folder = opendir("/proc/self/fd");
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        struct sockaddr_in at = { 0 };
        socklen_t len = sizeof(at);
        int fd = atoi(entry->d_name);

        if (getsockname(fd, (struct sockaddr *)&at, &len) != 0 || at.sin_family != AF_INET)
            continue;
        for (uint32_t i = 0; i < t->port_count; i++)
            if (at.sin_port == t->ports[i])
                own_socket(fd);
    }
    if (folder != NULL)
        (void)closedir(folder);
}

/* ---- set up ---- */

static enum shoal_err ucx_fail(const struct transport *t, struct shoal_msg *msg, const char *what, ucx_status status)
{
    return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "UCX: %s: %s", what, t->ucx.status_string(status));
}

static enum shoal_err start(struct transport *t, const char *devices, struct shoal_msg *msg)
{
    struct ucx_params params = { .mask = UCX_PARAMS_FEATURES, .features = UCX_FEATURE_TAG | UCX_FEATURE_WAKEUP };
    struct ucx_worker_params worker = { .mask = UCX_WORKER_THREAD_MODE, .thread_mode = UCX_THREAD_SERIALIZED };
    void *config;
    int first;
    ucx_status status = t->ucx.config_read(NULL, NULL, &config);

    if (status != UCX_OK)
        return ucx_fail(t, msg, "settings", status);
    (void)t->ucx.config_modify(config, "TLS", "tcp");
    (void)t->ucx.config_modify(config, "NET_DEVICES", devices);
    (void)t->ucx.config_modify(config, "KEEPALIVE_INTERVAL", "1s");
    status = t->ucx.init_version(UCX_MAJOR, UCX_MINOR_OLDEST, &params, config, &t->context);
    t->ucx.config_release(config);
    if (status != UCX_OK)
        return ucx_fail(t, msg, "start", status);
    first = lowest_fd();
    status = t->ucx.worker_create(t->context, &worker, &t->worker);
    if (status != UCX_OK)
        return ucx_fail(t, msg, "worker", status);
    own_listeners(t, first);
    return SHOAL_OK;
}

static void ucx_destroy(struct transport *t);

static enum shoal_err ucx_create(struct transport **out, const char *devices, bool sealed, struct shoal_msg *msg)
{
    struct transport *t;
    char list[DEVICES_BYTES];
    enum shoal_err err;

    if (sealed)
        return shoal_fail(msg, SHOAL_ERR_UNSUPPORTED,
                          "UCX cannot seal what goes over %s: let the hosts' agents trust the network "
                          "(--fabric-trusted), or leave the choice to them (--transport auto)",
                          devices);
    t = calloc(1, sizeof(*t));
    if (t == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for UCX");
    t->requests = calloc(REQUESTS_MAX, sizeof(*t->requests));
    err = t->requests == NULL ? shoal_fail(msg, SHOAL_ERR_FULL, "no memory for UCX")
                              : list_devices(devices, list, sizeof(list), msg);
    if (err == SHOAL_OK)
        err = ucx_table_load(&t->ucx, msg);
    if (err == SHOAL_OK)
        err = start(t, list, msg);
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

/* Its version first: members whose versions differ do not speak it with each other. */
static enum shoal_err ucx_address(struct transport *t, uint8_t *bytes, size_t cap, size_t *len)
{
    void *address;
    size_t got;

    if (t->ucx.worker_get_address(t->worker, &address, &got) != UCX_OK)
        return SHOAL_ERR_UNREACHABLE;
    if (got + 2 <= cap)
        memcpy(bytes + 2, address, got);
    t->ucx.worker_release_address(t->worker, address);
    if (got + 2 > cap)
        return SHOAL_ERR_TOO_BIG;
    bytes[0] = (uint8_t)t->ucx.major;
    bytes[1] = (uint8_t)t->ucx.minor;
    *len = got + 2;
    return SHOAL_OK;
}

static void on_error(void *arg, void *ep, ucx_status status)
{
    struct connection *connection = arg;

    (void)ep;
    connection->status = status;
    connection->transport->failed = true;
    connection->transport->failure = status;
    connection->transport->failed_peer = connection->peer;
    shoal_ranks_add(&connection->transport->lost, connection->peer);
}

static enum shoal_err ucx_connect(struct transport *t, const struct transport_peer *peer)
{
    struct connection *connection = calloc(1, sizeof(*connection));
    struct ucx_ep_params params = {
        .mask = UCX_EP_ADDRESS | UCX_EP_ERROR_MODE | UCX_EP_ERROR_HANDLER,
        .address = peer->address + 2,
        .error_mode = UCX_ERROR_MODE_PEER,
        .error_handler = { .call = on_error, .arg = connection },
    };
    int first = lowest_fd();

    SHOAL_ASSERT(peer->rank < SHOAL_RANKS_MAX && t->connections[peer->rank] == NULL);
    if (connection == NULL || peer->address_len <= 2) {
        free(connection);
        return SHOAL_ERR_FULL;
    }
    connection->transport = t;
    connection->peer = peer->rank;
    if (t->ucx.ep_create(t->worker, &params, &connection->ep) != UCX_OK) {
        free(connection);
        return SHOAL_ERR_UNREACHABLE;
    }
    t->connections[peer->rank] = connection;
    for (int fd = first; fd >= 0 && fd < lowest_fd(); fd++)
        own_socket(fd);
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

static void on_sent(void *ucx, ucx_status status, void *arg)
{
    struct transport_request *request = arg;

    (void)ucx;
    request->status = status;
    request->done = true;
}

static void on_received(void *ucx, ucx_status status, const struct ucx_received *info, void *arg)
{
    struct transport_request *request = arg;

    (void)ucx;
    request->status = status;
    request->got = status == UCX_OK ? info->len : 0;
    request->done = true;
}

static struct transport_request *begun(struct transport_request *request, ucx_result pointer)
{
    if (ucx_is_error(pointer)) {
        request->transport->failed = true;
        request->transport->failure = ucx_error_of(pointer);
        free_request(request);
        return NULL;
    }
    if (pointer == NULL) { /* ended at once; the callback was not called */
        request->done = true;
        request->status = UCX_OK;
    } else {
        request->ucx = pointer;
    }
    return request;
}

static struct transport_request *ucx_send(struct transport *t, uint32_t peer, uint64_t tag, const void *bytes,
                                          size_t len)
{
    struct transport_request *request = t->connections[peer] == NULL || t->failed ? NULL : take_request(t, false, 0);
    struct ucx_op op = { .mask = UCX_OP_CALLBACK | UCX_OP_USER_DATA, .call.sent = on_sent, .arg = request };

    if (request == NULL)
        return NULL;
    return begun(request, t->ucx.tag_send_nbx(t->connections[peer]->ep, bytes, len, tag, &op));
}

static struct transport_request *ucx_recv(struct transport *t, uint64_t tag, void *bytes, size_t len)
{
    struct transport_request *request = t->failed ? NULL : take_request(t, true, len);
    struct ucx_op op = { .mask = UCX_OP_CALLBACK | UCX_OP_USER_DATA | UCX_OP_NOT_AT_ONCE,
                         .call.received = on_received,
                         .arg = request };

    if (request == NULL)
        return NULL;
    return begun(request, t->ucx.tag_recv_nbx(t->worker, bytes, len, tag, UINT64_MAX, &op));
}

static enum transport_state ucx_test(struct transport *t, struct transport_request *request)
{
    bool whole;

    if (!request->done)
        return TRANSPORT_PENDING;
    whole = request->status == UCX_OK && (!request->is_recv || request->got == request->want);
    if (!whole) {
        t->failed = true;
        t->failure = request->status == UCX_OK ? UCX_TRUNCATED : request->status;
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
    if (events > 0)
        own_accepted(t);
    return events;
}

static int ucx_wait_fd(struct transport *t)
{
    int fd = -1;

    return t->ucx.worker_get_efd(t->worker, &fd) == UCX_OK ? fd : -1;
}

static bool ucx_arm(struct transport *t) { return t->ucx.worker_arm(t->worker) == UCX_OK; }

static bool ucx_failed(const struct transport *t, struct shoal_msg *msg)
{
    if (t->failed)
        (void)shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "UCX: connection to rank %u: %s", t->failed_peer,
                         t->ucx.status_string(t->failure));
    return t->failed;
}

static struct shoal_ranks ucx_lost(const struct transport *t) { return t->lost; }

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
        struct ucx_received info;
        void *message = t->ucx.tag_probe_nb(t->worker, tag, mask, 1, &info);
        struct ucx_op op = { 0 };
        ucx_result pointer;
        void *scratch;

        if (message == NULL)
            return;
        scratch = malloc(info.len + 1);
        if (scratch == NULL)
            return;
        pointer = t->ucx.tag_msg_recv_nbx(t->worker, scratch, info.len, message, &op);
        if (ucx_is_request(pointer)) { /* a large one, whose sender is gone: it ends with the closed connections */
            for (uint32_t turn = 0; turn < DRAIN_TURNS && t->ucx.request_check_status(pointer) == UCX_IN_PROGRESS;
                 turn++)
                (void)t->ucx.worker_progress(t->worker);
            if (t->ucx.request_check_status(pointer) == UCX_IN_PROGRESS) {
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
        struct ucx_op op = { .mask = UCX_OP_FLAGS, .flags = UCX_CLOSE_FORCE };
        ucx_result pointer;

        if (t->connections[peer] == NULL)
            continue;
        pointer = t->ucx.ep_close_nbx(t->connections[peer]->ep, &op);
        if (ucx_is_request(pointer)) {
            for (uint32_t turn = 0; turn < DRAIN_TURNS && t->ucx.request_check_status(pointer) == UCX_IN_PROGRESS;
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
    t->lost = (struct shoal_ranks){ 0 };
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
