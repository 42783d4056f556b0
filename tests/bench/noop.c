/* A model that does nothing, for the benches: it answers each request with its body.
 *
 *   noop kernel [batch=N] [delay_ms=N]     behind a service, in the frames of node/serve/kernel_wire.h
 *   noop http PORT                         as an HTTP server on 127.0.0.1, for what is in front of one
 *
 * delay_ms: each answer so much after its request, any number of them at one time. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "shoal/buf.h"
#include "shoal/pack.h"

#include "shoal/banned.h"

#define READ_BYTES 65536
#define CONNECTIONS_MAX 1024

static void die(const char *what)
{
    (void)fprintf(stderr, "noop: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

static void append(struct shoal_buf *buf, const void *bytes, size_t len)
{
    if (len > 0 && shoal_buf_append(buf, bytes, len) != SHOAL_OK)
        die("memory");
}

static void write_out(int fd, struct shoal_buf *out)
{
    size_t at = 0;

    while (at < out->len) {
        ssize_t put = write(fd, out->bytes + at, out->len - at);

        if (put < 0 && errno != EINTR)
            break; /* who is gone is seen when reading */
        at += put > 0 ? (size_t)put : 0;
    }
    out->len = 0;
}

static bool read_in(int fd, struct shoal_buf *in)
{
    ssize_t got;

    if (shoal_buf_reserve(in, READ_BYTES) != SHOAL_OK)
        die("memory");
    got = read(fd, in->bytes + in->len, in->cap - in->len);
    in->len += got > 0 ? (size_t)got : 0;
    return got > 0;
}

static void drop(struct shoal_buf *in, size_t len)
{
    in->len -= len;
    if (in->len > 0 && len > 0)
        memmove(in->bytes, in->bytes + len, in->len);
}

/* ---- a kernel ---- */

struct waiting {
    struct waiting *next;
    uint64_t due_ms;
    struct shoal_buf frame;
};

struct kernel {
    int fd;
    unsigned batch, delay_ms;
    struct shoal_buf in, out;
    struct waiting *first, **last;
};

static void put_length(uint8_t bytes[4], size_t len)
{
    for (unsigned i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(len >> (8 * i));
}

static void put_frame(struct shoal_buf *out, const struct shoal_pack_writer *w, struct shoal_view body)
{
    uint8_t length[4];

    put_length(length, w->len + body.len);
    append(out, length, sizeof(length));
    append(out, w->bytes, w->len);
    append(out, body.bytes, body.len);
}

static void say_ready(struct kernel *k)
{
    uint8_t bytes[256];
    struct shoal_pack_writer w = shoal_pack_writer_init(bytes, sizeof(bytes));

    shoal_pack_put_array(&w, 2);
    shoal_pack_put_text(&w, "ready");
    shoal_pack_begin_map(&w);
    shoal_pack_put_name(&w, "batch");
    shoal_pack_put_u64(&w, k->batch);
    shoal_pack_put_name(&w, "name");
    shoal_pack_put_text(&w, "noop");
    shoal_pack_end_map(&w);
    put_frame(&k->out, &w, (struct shoal_view){ 0 });
}

static void answer(struct kernel *k, uint64_t id, struct shoal_view body)
{
    uint8_t bytes[64], head[5] = { 0xc6, (uint8_t)(body.len >> 24), (uint8_t)(body.len >> 16), (uint8_t)(body.len >> 8),
                                   (uint8_t)body.len };
    struct shoal_pack_writer w = shoal_pack_writer_init(bytes, sizeof(bytes));
    struct waiting *waits;

    shoal_pack_put_array(&w, 5);
    shoal_pack_put_text(&w, "done");
    shoal_pack_put_u64(&w, id);
    shoal_pack_put_u64(&w, 200);
    shoal_pack_begin_map(&w);
    shoal_pack_end_map(&w);
    shoal_pack_put_raw(&w, shoal_view_of(head, sizeof(head)));
    if (k->delay_ms == 0) {
        put_frame(&k->out, &w, body);
        return;
    }
    waits = calloc(1, sizeof(*waits));
    if (waits == NULL)
        die("memory");
    put_frame(&waits->frame, &w, body);
    waits->due_ms = now_ms() + k->delay_ms;
    *k->last = waits;
    k->last = &waits->next;
}

static void hear_frame(struct kernel *k, struct shoal_view frame)
{
    struct shoal_pack_reader r = shoal_pack_reader_init(frame);
    uint32_t count = shoal_pack_get_array(&r, 8);
    struct shoal_view kind = shoal_pack_get_str(&r, 16);
    uint64_t id;

    if (shoal_view_equal(kind, shoal_view_text("stop")))
        exit(0);
    if (!shoal_view_equal(kind, shoal_view_text("infer")) || count != 4)
        return;
    id = shoal_pack_get_u64(&r, UINT64_MAX);
    shoal_pack_skip(&r);
    answer(k, id, shoal_pack_next(&r).bytes);
}

static void hear_frames(struct kernel *k)
{
    size_t at = 0, len = 0;

    while (k->in.len - at >= 4) {
        const uint8_t *head = k->in.bytes + at;

        len = (size_t)head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
        if (k->in.len - at - 4 < len)
            break;
        hear_frame(k, shoal_view_of(head + 4, len));
        at += 4 + len;
    }
    drop(&k->in, at);
}

static void send_due(struct kernel *k)
{
    while (k->first != NULL && k->first->due_ms <= now_ms()) {
        struct waiting *w = k->first;

        k->first = w->next;
        if (k->first == NULL)
            k->last = &k->first;
        append(&k->out, w->frame.bytes, w->frame.len);
        shoal_buf_deinit(&w->frame);
        free(w);
    }
}

static void serve_kernel(struct kernel *k)
{
    bool there = true;

    say_ready(k);
    while (there) {
        struct pollfd poller = { .fd = k->fd, .events = POLLIN };
        int wait_ms = -1;

        send_due(k);
        write_out(k->fd, &k->out);
        if (k->first != NULL)
            wait_ms = k->first->due_ms > now_ms() ? (int)(k->first->due_ms - now_ms()) : 0;
        if (k->delay_ms > 0 && poll(&poller, 1, wait_ms) == 0)
            continue;
        there = read_in(k->fd, &k->in);
        hear_frames(k);
    }
    (void)close(k->fd);
    k->in.len = 0;
}

static void run_kernel(struct kernel *k)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    const char *path = getenv("SHOAL_KERNEL_SOCKET");
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (path == NULL || strlen(path) >= sizeof(name.sun_path))
        die("SHOAL_KERNEL_SOCKET");
    memcpy(name.sun_path, path, strlen(path) + 1);
    (void)unlink(path);
    (void)umask(0177);
    if (listener < 0 || bind(listener, (struct sockaddr *)&name, sizeof(name)) != 0 || listen(listener, 16) != 0)
        die(path);
    k->last = &k->first;
    for (;;) {
        k->fd = accept(listener, NULL, NULL);
        if (k->fd >= 0)
            serve_kernel(k);
    }
}

/* ---- an HTTP server ---- */

/* Requests that are whole: each is answered with its body. */
static void hear_http(struct shoal_buf *in, struct shoal_buf *out)
{
    for (;;) {
        const uint8_t *end = in->len < 4 ? NULL : memmem(in->bytes, in->len, "\r\n\r\n", 4);
        char head[4096], line[128];
        size_t head_len = end == NULL ? 0 : (size_t)(end - in->bytes) + 4, len;
        const char *found;
        int line_len;

        if (end == NULL || head_len >= sizeof(head))
            return;
        memcpy(head, in->bytes, head_len);
        head[head_len] = '\0';
        found = strcasestr(head, "content-length:");
        len = found == NULL ? 0 : strtoull(found + 15, NULL, 10);
        if (in->len < head_len + len)
            return;
        line_len = snprintf(line, sizeof(line), "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                            len);
        append(out, line, (size_t)line_len);
        append(out, in->bytes + head_len, len);
        drop(in, head_len + len);
    }
}

static int listen_at(unsigned port)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    (void)setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof(at)) != 0 || listen(listener, 512) != 0)
        die("listen");
    return listener;
}

static void run_http(unsigned port)
{
    static struct shoal_buf in[CONNECTIONS_MAX];
    struct shoal_buf out = { 0 };
    int listener = listen_at(port), epoll = epoll_create1(EPOLL_CLOEXEC), one = 1;
    struct epoll_event event = { .events = EPOLLIN, .data.fd = listener };

    (void)epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        struct epoll_event events[64];
        int found = epoll_wait(epoll, events, 64, -1);

        for (int i = 0; i < found; i++) {
            int fd = events[i].data.fd;

            if (fd == listener) {
                event.data.fd = accept(listener, NULL, NULL);
                if (event.data.fd < 0 || event.data.fd >= CONNECTIONS_MAX)
                    die("accept");
                (void)setsockopt(event.data.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
                in[event.data.fd].len = 0;
                (void)epoll_ctl(epoll, EPOLL_CTL_ADD, event.data.fd, &event);
            } else if (read_in(fd, &in[fd])) {
                hear_http(&in[fd], &out);
                write_out(fd, &out);
            } else {
                (void)close(fd);
            }
        }
    }
}

int main(int argc, char **argv)
{
    static struct kernel kernel = { .batch = 64 };

    if (argc > 2 && strcmp(argv[1], "http") == 0)
        run_http((unsigned)strtoul(argv[2], NULL, 10));
    for (int i = 2; i < argc; i++) {
        if (strncmp(argv[i], "batch=", 6) == 0)
            kernel.batch = (unsigned)strtoul(argv[i] + 6, NULL, 10);
        if (strncmp(argv[i], "delay_ms=", 9) == 0)
            kernel.delay_ms = (unsigned)strtoul(argv[i] + 9, NULL, 10);
    }
    run_kernel(&kernel);
}
