/* The command line of WMLA's inference, from the mesh itself: scripts fetch it before they have anything else, without a token.
 *
 * It is this program: called `dlim`, it is that. A piece is read in a thread, and the next one when the client has it (one piece a
 * request is in memory). */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include "routes.h"

#include "shoal/banned.h"

#define PIECE_BYTES (64 * 1024)

struct download {
    struct http_request *request;
    uv_fs_t fs;
    int fd;
    int64_t at, size;
    uint8_t piece[PIECE_BYTES];
};

static void download_free(void *state)
{
    struct download *d = state;

    (void)close(d->fd);
    free(d);
}

static void read_next(struct http_request *request);

static void broken(struct http_request *request)
{
    http_stream_abort(request);
    http_request_release(request);
}

static void on_read(uv_fs_t *fs)
{
    struct download *d = fs->data;
    ssize_t got = fs->result;

    uv_fs_req_cleanup(fs);
    if (got <= 0) { /* the program's file is shorter than it was */
        broken(d->request);
        return;
    }
    d->at += got;
    http_stream_write(d->request, shoal_view_of(d->piece, (size_t)got), read_next);
}

static void read_next(struct http_request *request)
{
    struct download *d = request->state;
    uv_buf_t buf = uv_buf_init((char *)d->piece, PIECE_BYTES);

    if (request->conn != NULL && d->at == d->size) {
        http_stream_end(request);
        http_request_release(request);
    } else if (request->conn == NULL || uv_fs_read(request->http->loop, &d->fs, d->fd, &buf, 1, d->at, on_read) != 0) {
        broken(request);
    }
}

static void handle_download(struct http_request *request)
{
    struct download *d;
    struct stat status;

    if (strcmp(request->params[0], "dlim") != 0) {
        http_respond_error(request, 404,
                           "There is dlim for the hosts' own kind of system alone: GET /dlim/v1/download/dlim.");
        return;
    }
    d = calloc(1, sizeof(*d));
    if (d == NULL) {
        http_respond_error(request, 503, "out of memory; try again later");
        return;
    }
    d->fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (d->fd < 0 || fstat(d->fd, &status) != 0) {
        download_free(d);
        http_respond_error(request, 503, "this host cannot read its own program; ask another one");
        return;
    }
    *d = (struct download){ .request = request, .fd = d->fd, .size = status.st_size };
    d->fs.data = d;
    request->state = d;
    request->state_free = download_free;
    http_request_hold(request); /* until its end */
    http_header_add(request, "Content-Disposition", "attachment; filename=dlim");
    http_stream_start(request, 200, "application/octet-stream", (uint64_t)d->size);
    read_next(request);
}

static const struct http_route routes[] = {
    { .method = HTTP1_GET, .pattern = "/dlim/v1/download/{}", .handle = handle_download, .open = true },
};

const struct http_route *http_routes_download(size_t *count)
{
    *count = sizeof(routes) / sizeof(routes[0]);
    return routes;
}
