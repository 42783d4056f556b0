/* The files of a job's RESULT_DIR, in any state of the job: the list of them, and each by its path.
 *
 *   list --http_answer_later--> a part of it a turn, http_answer_on() between them --> sent as a whole
 *
 * F1. An answer has the length that the list said: of a file that grows meanwhile its beginning, and one that shrinks breaks
 *     the connection. After the job's end no file changes any more. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "routes.h"

#include "shoal/banned.h"

#define PIECE_BYTES ((size_t)256 * SHOAL_KIB)

struct fetching {
    struct http_request *request;
    struct shoal_result *result;
    size_t file;
    uint64_t at, end; /* of the bytes that are sent */
    struct shoal_result_list list;
    struct shoal_buf json; /* of the list, as far as it is made */
    struct json_writer writer;
    size_t made;         /* files of the list that are in it */
    const char *missing; /* from the list; "": nothing */
};

static void fetching_free(void *state)
{
    struct fetching *fetching = state;
    const struct shoal_backend *backend = &fetching->request->http->backend;

    if (fetching->result != NULL)
        backend->result_close(backend->ctx, fetching->result);
    shoal_buf_deinit(&fetching->json);
    free(fetching);
}

static void fetching_start(struct http_request *request, shoal_backend_result_fn *on_open)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct fetching *fetching = calloc(1, sizeof(*fetching));

    if (fetching == NULL) {
        http_respond_error(request, 503, "out of memory; try again later");
        return;
    }
    fetching->request = request;
    request->state = fetching;
    request->state_free = fetching_free;
    http_request_hold(request);
    backend->result_open(backend->ctx, &request->user, request->params[0], on_open, fetching);
}

/* ---- the list ---- */

static void file_json(struct json_writer *w, const struct shoal_result_file *file)
{
    char modified[32];

    routes_time_text((uint64_t)file->mtime_s * 1000, modified);
    json_object_begin(w, NULL);
    json_text(w, "path", file->path);
    json_uint(w, "bytes", file->bytes);
    json_text(w, "modified", modified);
    json_bool(w, "executable", file->executable);
    json_end(w);
}

static void send_list(struct fetching *fetching)
{
    struct json_writer *w = &fetching->writer;

    json_end(w);
    json_bool(w, "complete", fetching->missing[0] == '\0');
    if (fetching->missing[0] != '\0')
        json_text(w, "missing", fetching->missing);
    json_end(w);
    http_respond_json(fetching->request, 200, w);
}

/* Files of a list that one turn of the loop makes into JSON: as many bytes as it may handle of requests' bodies. */
#define TURN_FILES (SHOAL_HTTP_TURN_BODIES_BYTES / ROUTES_FILE_BYTES)

static void make_list(struct http_request *request)
{
    struct fetching *fetching = request->state;
    size_t end = fetching->list.count - fetching->made > TURN_FILES ? fetching->made + TURN_FILES : fetching->list.count;

    if (request->conn != NULL) {
        for (; fetching->made < end; fetching->made++)
            file_json(&fetching->writer, &fetching->list.files[fetching->made]);
        if (end < fetching->list.count) {
            http_answer_on(request, make_list);
            return;
        }
        send_list(fetching);
    }
    http_request_release(request);
}

static void begin_list(struct fetching *fetching)
{
    size_t count = fetching->list.count;

    fetching->writer = json_writer_init(&fetching->json);
    json_object_begin(&fetching->writer, NULL);
    json_array_begin(&fetching->writer, "files");
    http_answer_later(fetching->request, (count < TURN_FILES ? count : TURN_FILES) * ROUTES_FILE_BYTES, make_list);
}

/* False: there is none, or this client holds too much already; the request is answered. */
static bool take_list(struct fetching *fetching, enum shoal_err err, const struct shoal_msg *msg, struct shoal_result *result,
                      const struct shoal_result_list *list)
{
    struct http_request *request = fetching->request;

    if (err != SHOAL_OK) {
        http_respond_failure(request, err, msg, 404);
        http_request_release(request);
        return false;
    }
    fetching->result = result;
    if (http_request_keep(request, list->count * ROUTES_FILE_BYTES))
        return true;
    http_request_release(request);
    return false;
}

static void on_list(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_result *result,
                    const struct shoal_result_list *list)
{
    struct fetching *fetching = arg;
    struct http_request *request = fetching->request;

    if (!take_list(fetching, err, msg, result, list))
        return;
    fetching->list = *list;
    fetching->missing = arena_copy(&request->arena, shoal_view_text(msg->text));
    if (fetching->missing == NULL) {
        http_respond_error(request, 503, "out of memory; try again later");
        http_request_release(request);
    } else {
        begin_list(fetching);
    }
}

void routes_files_list(struct http_request *request) { fetching_start(request, on_list); }

/* ---- one file ---- */

static void send_next(struct http_request *request);

static void broken(struct http_request *request)
{
    http_stream_abort(request);
    http_request_release(request);
}

static void on_bytes(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view bytes)
{
    struct fetching *fetching = arg;

    (void)msg;
    if (err != SHOAL_OK || bytes.len == 0 || bytes.len > fetching->end - fetching->at) {
        broken(fetching->request); /* F1 */
        return;
    }
    fetching->at += bytes.len;
    http_stream_write(fetching->request, bytes, send_next);
}

static void send_next(struct http_request *request)
{
    struct fetching *fetching = request->state;
    const struct shoal_backend *backend = &request->http->backend;
    uint64_t left = fetching->end - fetching->at;

    if (request->conn == NULL) {
        broken(request);
    } else if (left == 0) {
        http_stream_end(request);
        http_request_release(request);
    } else {
        backend->result_read(backend->ctx, fetching->result, fetching->file, fetching->at,
                             left < PIECE_BYTES ? (size_t)left : PIECE_BYTES, on_bytes, fetching);
    }
}

enum range { RANGE_NONE, RANGE_PART, RANGE_BEYOND };

/* One range of bytes (RFC 9110, 14.1.2); any other is as if there were none. */
static enum range read_range(struct http_request *request, uint64_t bytes, uint64_t *from, uint64_t *end)
{
    struct shoal_view value;
    char text[64];
    char *dash;

    if (!http1_header_find(&request->head, "range", &value) || value.len >= sizeof(text))
        return RANGE_NONE;
    memcpy(text, value.bytes, value.len);
    text[value.len] = '\0';
    if (strncmp(text, "bytes=", 6) != 0 || strspn(text + 6, "0123456789-") != value.len - 6 ||
        (dash = strchr(text, '-')) == NULL || strchr(dash + 1, '-') != NULL || value.len - 6 < 2)
        return RANGE_NONE;
    *from = strtoull(text + 6, NULL, 10);
    *end = bytes;
    if (dash == text + 6) { /* the last bytes */
        uint64_t last = strtoull(dash + 1, NULL, 10);

        *from = last < bytes ? bytes - last : 0;
        return last == 0 || bytes == 0 ? RANGE_BEYOND : RANGE_PART;
    }
    if (dash[1] != '\0') {
        uint64_t last = strtoull(dash + 1, NULL, 10);

        if (last < *from)
            return RANGE_NONE;
        *end = last < bytes ? last + 1 : bytes;
    }
    return *from < bytes ? RANGE_PART : RANGE_BEYOND;
}

static void start_file(struct fetching *fetching, const struct shoal_result_file *file)
{
    struct http_request *request = fetching->request;
    enum range range = read_range(request, file->bytes, &fetching->at, &fetching->end);

    http_header_add(request, "Accept-Ranges", "bytes");
    if (range == RANGE_BEYOND) {
        http_header_add(request, "Content-Range", "bytes */%" PRIu64, file->bytes);
        http_respond_error(request, 416, "the file has %" PRIu64 " bytes", file->bytes);
        http_request_release(request);
        return;
    }
    if (range == RANGE_NONE) {
        fetching->at = 0;
        fetching->end = file->bytes;
    } else {
        http_header_add(request, "Content-Range", "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, fetching->at,
                        fetching->end - 1, file->bytes);
    }
    http_stream_start(request, range == RANGE_PART ? 206 : 200, "application/octet-stream",
                      fetching->end - fetching->at);
    send_next(request);
}

static void on_open(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_result *result,
                    const struct shoal_result_list *list)
{
    struct fetching *fetching = arg;
    struct http_request *request = fetching->request;
    size_t i = 0;

    if (!take_list(fetching, err, msg, result, list))
        return;
    while (i < list->count && strcmp(list->files[i].path, request->params[1]) != 0)
        i++;
    if (i == list->count) {
        http_respond_error(request, list->coming ? 503 : 404,
                           "no file \"%.200s\" in the result folder of %s; `shoal job files` lists them%s%s",
                           request->params[1], request->params[0], msg->text[0] == '\0' ? "" : "; ", msg->text);
        http_request_release(request);
        return;
    }
    fetching->file = i;
    start_file(fetching, &list->files[i]);
}

void routes_file_get(struct http_request *request) { fetching_start(request, on_open); }
