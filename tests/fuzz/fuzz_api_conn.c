/* libFuzzer: a connection's whole life, through the server's own loop: what a client sends, cut where the first byte says, to a
 * socket on loopback. The second byte says how it ends: half closed, reset, or left open while the next one comes; and whether the
 * client speaks HTTP/2, whose preface goes before. Whatever it sends, what comes back is HTTP, and nothing of a closed connection
 * stays. */
#include <fcntl.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "api/http/http2_guard.h"
#include "shoal/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

#define TURNS_MAX 5000

static struct {
    uv_loop_t loop;
    struct shoal_http *http; /* one server takes all inputs */
    int left_open;
    bool h2; /* the client speaks it, or may */
} server = { .left_open = -1 };

static bool no_user(void *ctx, const char *name, struct shoal_user *user)
{
    (void)ctx, (void)name, (void)user;
    return false;
}

static void no_logon(void *ctx, const char *name, const char *password, shoal_backend_user_fn *done, void *arg)
{
    (void)ctx, (void)name, (void)password;
    done(arg, SHOAL_ERR_DENIED, &(struct shoal_msg){ "wrong user or password" }, NULL);
}

static void no_keys(void *ctx, struct shoal_token_keys *keys)
{
    (void)ctx;
    keys->count = 1;
    memset(keys->keys[0], 1, sizeof(keys->keys[0]));
}

static bool none_revoked(void *ctx, const uint8_t id[SHOAL_TOKEN_ID_BYTES])
{
    (void)ctx, (void)id;
    return false;
}

static void status_of(void *ctx, struct shoal_mesh_status *status)
{
    (void)ctx;
    *status = (struct shoal_mesh_status){ .version = "0", .node_name = "fuzz", .mesh_name = "fuzz" };
}

static void server_start(void)
{
    static const struct shoal_backend backend = { .user_find = no_user,
                                                  .logon = no_logon,
                                                  .token_keys = no_keys,
                                                  .token_revoked = none_revoked,
                                                  .status = status_of };
    const struct shoal_http_options options = { .host = "127.0.0.1", .plain = true, .spool_dir = "/tmp" };
    struct shoal_msg msg;

    if (sodium_init() < 0 || uv_loop_init(&server.loop) != 0 ||
        shoal_http_start(&server.loop, &options, &backend, &server.http, &msg) != SHOAL_OK)
        abort();
}

static int client_open(void)
{
    struct sockaddr_in name = { .sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                .sin_port = htons(shoal_http_port(server.http)) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || connect(fd, (const struct sockaddr *)&name, sizeof(name)) != 0)
        abort();
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

/* Checks that what has come is HTTP from its first byte. False: the server has ended it. */
static bool client_read(int fd, size_t *got)
{
    static const char old[] = "HTTP/1.1 ", new[] = { 0, 0, 18, 4, 0, 0, 0, 0, 0, 0 }; /* SETTINGS */
    static const char *begin;
    uint8_t bytes[4096];
    ssize_t len;

    while ((len = recv(fd, bytes, sizeof(bytes), 0)) > 0) {
        if (*got == 0)
            begin = server.h2 && bytes[0] == 0 ? new : old;
        for (size_t i = 0; i < (size_t)len && *got + i < sizeof(old) - 1; i++)
            SHOAL_ASSERT(bytes[i] == (uint8_t)begin[*got + i]);
        *got += (size_t)len;
    }
    return len < 0 && (errno == EAGAIN || errno == EINTR);
}

static void client_end(int fd, unsigned how, size_t *got)
{
    const struct linger reset = { .l_onoff = 1 };

    if (how == 0) {
        (void)shutdown(fd, SHUT_WR);
        for (unsigned i = 0; i < TURNS_MAX && client_read(fd, got); i++)
            (void)uv_run(&server.loop, UV_RUN_NOWAIT);
    } else if (how == 1) {
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    } else {
        int older = server.left_open;

        server.left_open = fd;
        fd = older;
    }
    if (fd >= 0)
        (void)close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct shoal_http_stats stats = { .connections_open = UINT32_MAX };
    size_t piece, got = 0;
    unsigned how;
    bool prefaced;
    int fd;

    if (len < 2)
        return 0;
    if (server.http == NULL)
        server_start();
    piece = bytes[0] % 64 * 8u + 1;
    how = bytes[1] % 3;
    prefaced = bytes[1] / 3 % 2 == 1;
    server.h2 = prefaced || memmem(bytes + 2, len - 2, HTTP2_PREFACE, HTTP2_PREFACE_BYTES) != NULL;
    fd = client_open();
    if (prefaced && send(fd, HTTP2_PREFACE "\0\0\0\4\0\0\0\0\0", 33, MSG_NOSIGNAL) != 33)
        abort();
    for (size_t at = 2; at < len; at += piece) {
        size_t part = len - at < piece ? len - at : piece;

        if (send(fd, bytes + at, part, MSG_NOSIGNAL) < 0)
            break; /* it was ended, or takes no more for now */
        (void)uv_run(&server.loop, UV_RUN_NOWAIT);
        if (!client_read(fd, &got))
            break;
    }
    client_end(fd, how, &got);
    for (unsigned i = 0; i < TURNS_MAX && stats.connections_open > (server.left_open >= 0 ? 1 : 0); i++) {
        (void)uv_run(&server.loop, UV_RUN_NOWAIT);
        shoal_http_stats(server.http, &stats);
    }
    SHOAL_ASSERT(stats.connections_open <= 1 && stats.uploads_open <= 1);
    return 0;
}
