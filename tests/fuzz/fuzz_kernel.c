/* libFuzzer: what a kernel says to its agent, on a socket, cut where the first byte says, with requests in its hands and one that waits.
 * Whatever it says, each request ends once, no piece comes after an end, and what the kernel was never asked ends it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <uv.h>

#include "node/serve/serve_host.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

#define ASKED 6u
#define WORKER 1u

static struct {
    int listener;
    struct sockaddr_un name;
} kernel;

struct asked {
    struct serve_host *host;
    uint64_t id;
    unsigned ends;
    size_t pieces;
};

static void on_changed(void *arg) { (void)arg; }
static void on_broken(void *arg, uint64_t worker_id, const char *text)
{
    bool *broken = arg;

    SHOAL_ASSERT(worker_id == WORKER && text[0] != '\0');
    for (; *text != '\0'; text++)
        SHOAL_ASSERT((unsigned char)*text >= 0x20 && *text != 0x7f);
    *broken = true;
}

static void on_done(void *arg, enum shoal_err err, const char *text, const struct serve_answer *answer)
{
    struct asked *a = arg;

    SHOAL_ASSERT((answer != NULL) == (err == SHOAL_OK) && text != NULL);
    SHOAL_ASSERT(++a->ends == 1);
    if (answer == NULL)
        return;
    SHOAL_ASSERT(answer->status >= 200 && answer->status <= 599 && answer->header_len <= answer->body.len);
    for (const char *at = answer->content_type; *at != '\0'; at++)
        SHOAL_ASSERT((unsigned char)*at >= 0x20 && *at != 0x7f);
}

static void on_piece(void *arg, struct shoal_view piece)
{
    struct asked *a = arg;

    SHOAL_ASSERT(a->ends == 0 && piece.len > 0 && piece.len <= SHOAL_INFER_PIECE_BYTES_MAX);
    a->pieces += piece.len;
    serve_host_more(a->host, a->id, piece.len);
}

/* Its host removes the name with the kernel: each input has one of its own. */
static void kernel_listen(void)
{
    kernel.name.sun_family = AF_UNIX;
    (void)snprintf(kernel.name.sun_path, sizeof(kernel.name.sun_path), "/tmp/shoal-fuzz-kernel-%d", (int)getpid());
    (void)unlink(kernel.name.sun_path);
    kernel.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (kernel.listener < 0 || bind(kernel.listener, (const struct sockaddr *)&kernel.name, sizeof(kernel.name)) != 0 ||
        listen(kernel.listener, 8) != 0)
        abort();
}

static void run(uv_loop_t *loop, unsigned turns)
{
    for (unsigned i = 0; i < turns; i++)
        (void)uv_run(loop, UV_RUN_NOWAIT);
}

/* The host looks for kernels by a timer: it is started as if it were a second ago. */
static int connect_kernel(uv_loop_t *loop, struct serve_host *host, struct shoal_job_id job)
{
    int fd = -1;

    loop->time -= 1000;
    serve_host_start(host, &(struct serve_start){
                               .job = job, .service = "fuzzed", .worker_id = WORKER, .path = kernel.name.sun_path });
    for (unsigned i = 0; i < 10 && fd < 0; i++) {
        run(loop, 1);
        fd = accept4(kernel.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    }
    if (fd < 0)
        abort();
    return fd;
}

static void ask_all(struct serve_host *host, struct shoal_job_id job, struct asked asked[ASKED])
{
    for (unsigned i = 0; i < ASKED; i++) {
        struct serve_ask ask = { .job = job,
                                 .head = { .path = "/x", .method = "POST", .content_type = "", .model = "m" },
                                 .piece = i % 2 == 0 ? on_piece : NULL,
                                 .id = &asked[i].id,
                                 .done = on_done,
                                 .arg = &asked[i] };

        asked[i] = (struct asked){ .host = host };
        (void)serve_host_infer(host, &ask);
    }
}

static void close_all(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static const uint8_t ready[] = "\x0f\0\0\0\x92\xa5ready\x81\xa5"
                                   "batch\x04";
    struct shoal_job_id job = { { 1 } };
    struct asked asked[ASKED];
    struct serve_host *host;
    uv_loop_t loop;
    bool broken = false;
    size_t piece;
    int fd;

    if (len < 1)
        return 0;
    kernel_listen();
    if (uv_loop_init(&loop) != 0)
        abort();
    host = serve_host_create(
        &(struct serve_host_options){ .loop = &loop, .arg = &broken, .changed = on_changed, .broken = on_broken });
    fd = connect_kernel(&loop, host, job);
    SHOAL_ASSERT(send(fd, ready, sizeof(ready) - 1, MSG_NOSIGNAL) == (ssize_t)(sizeof(ready) - 1));
    run(&loop, 2);
    ask_all(host, job, asked);
    run(&loop, 1);
    SHOAL_ASSERT(!broken && asked[0].ends == 0);
    piece = bytes[0] % 64 * 16u + 1;
    for (size_t at = 1; at < len && !broken; at += piece) {
        if (send(fd, bytes + at, len - at < piece ? len - at : piece, MSG_NOSIGNAL) < 0)
            break;
        run(&loop, 1);
    }
    serve_host_cancel(host, asked[1].id); /* which may be over */
    serve_host_end(host, WORKER);
    for (unsigned i = 0; i < ASKED; i++)
        SHOAL_ASSERT(asked[i].ends == 1 || i == 1);
    (void)close(fd);
    (void)close(kernel.listener);
    run(&loop, 2);
    uv_walk(&loop, close_all, NULL);
    run(&loop, 3);
    SHOAL_ASSERT(uv_loop_close(&loop) == 0);
    free(host);
    return 0;
}
