/* A job's result folder as a zip, made while it is sent: stored, not packed, so that its length is known before its first
 * byte.
 *
 *   per file: local header, content, descriptor (CRC and sizes: known only after the content);  then the directory
 *
 * Z1. The sizes are those of result_open; a file that gives fewer bytes breaks the connection, since the length is
 *     promised.
 * Z2. 64-bit forms are used where a size or an offset needs them, and only there.
 * Source: PKWARE APPNOTE 6.3.9, sections 4.3.7 to 4.3.16. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "routes.h"

#include "shoal/banned.h"

#define PIECE_BYTES ((size_t)256 * SHOAL_KIB)
#define BIG 0xffffffffull
#define FLAGS 0x0808u /* a descriptor follows; names are UTF-8 */

struct zip_file {
    size_t index; /* in the backend's list */
    const char *path;
    uint64_t bytes;
    uint64_t offset;
    uint32_t mtime_s;
    uint32_t crc;
    bool executable;
};

struct zip {
    struct http_request *request;
    struct shoal_result *result;
    struct zip_file *files;
    size_t count;
    size_t at;         /* the file being sent */
    uint64_t done;     /* bytes of it */
    bool of_execs;     /* WMLA's: the model of an ended job, empty if there is none */
    const char *below; /* this folder only; "": all */
    int not_found;
    uint64_t offset; /* of what was sent */
    uint64_t directory;
    struct shoal_buf piece;
};

static void zip_free(void *state)
{
    struct zip *zip = state;
    const struct shoal_backend *backend = &zip->request->http->backend;

    if (zip->result != NULL)
        backend->result_close(backend->ctx, zip->result);
    shoal_buf_deinit(&zip->piece);
    free(zip->files);
    free(zip);
}

static uint32_t crc32_update(uint32_t crc, const uint8_t *bytes, size_t len)
{
    static uint32_t table[8][256];

    if (table[0][1] == 0) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;

            for (unsigned k = 0; k < 8; k++)
                c = (c & 1) != 0 ? 0xedb88320u ^ (c >> 1) : c >> 1;
            table[0][i] = c;
        }
        for (uint32_t i = 0; i < 256; i++)
            for (unsigned t = 1; t < 8; t++)
                table[t][i] = table[0][table[t - 1][i] & 255] ^ (table[t - 1][i] >> 8);
    }
    crc = ~crc;
    for (; len >= 8; bytes += 8, len -= 8) {
        uint32_t low =
            crc ^ ((uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24);

        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^ table[4][low >> 24] ^
              table[3][bytes[4]] ^ table[2][bytes[5]] ^ table[1][bytes[6]] ^ table[0][bytes[7]];
    }
    for (; len > 0; bytes++, len--)
        crc = table[0][(crc ^ *bytes) & 255] ^ (crc >> 8);
    return ~crc;
}

static void put(struct zip *zip, uint64_t value, unsigned width)
{
    uint8_t bytes[8];
    enum shoal_err err;

    for (unsigned i = 0; i < width; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    err = shoal_buf_append(&zip->piece, bytes, width);
    SHOAL_ASSERT(err == SHOAL_OK);
}

static void put_text(struct zip *zip, const char *text)
{
    enum shoal_err err = shoal_buf_append(&zip->piece, text, strlen(text));

    SHOAL_ASSERT(err == SHOAL_OK);
}

static uint32_t dos_time(uint32_t mtime_s)
{
    time_t seconds = (time_t)mtime_s;
    struct tm tm;

    if (gmtime_r(&seconds, &tm) == NULL || tm.tm_year < 80)
        return 0x00210000; /* 1 January 1980 */
    return (uint32_t)(tm.tm_year - 80) << 25 | (uint32_t)(tm.tm_mon + 1) << 21 | (uint32_t)tm.tm_mday << 16 |
           (uint32_t)tm.tm_hour << 11 | (uint32_t)tm.tm_min << 5 | (uint32_t)tm.tm_sec / 2;
}

static uint64_t local_len(const struct zip_file *file)
{
    return 30 + strlen(file->path) + (file->bytes >= BIG ? 20 : 0);
}

static uint64_t descriptor_len(const struct zip_file *file) { return file->bytes >= BIG ? 24 : 16; }

static unsigned central_extra(const struct zip_file *file)
{
    unsigned fields = (file->bytes >= BIG ? 2u : 0u) + (file->offset >= BIG ? 1u : 0u);

    return fields == 0 ? 0 : 4 + 8 * fields;
}

static bool needs_zip64(const struct zip *zip, uint64_t directory_len)
{
    return zip->count >= 0xffff || zip->directory >= BIG || directory_len >= BIG;
}

/* Offsets of all, and the length of the whole. */
static uint64_t lay_out(struct zip *zip)
{
    uint64_t at = 0;
    uint64_t directory_len = 0;

    for (size_t i = 0; i < zip->count; i++) {
        zip->files[i].offset = at;
        at += local_len(&zip->files[i]) + zip->files[i].bytes + descriptor_len(&zip->files[i]);
    }
    zip->directory = at;
    for (size_t i = 0; i < zip->count; i++)
        directory_len += 46 + strlen(zip->files[i].path) + central_extra(&zip->files[i]);
    return at + directory_len + (needs_zip64(zip, directory_len) ? 76 : 0) + 22;
}

static void put_local(struct zip *zip, const struct zip_file *file)
{
    bool big = file->bytes >= BIG;

    put(zip, 0x04034b50, 4);
    put(zip, big ? 45 : 20, 2);
    put(zip, FLAGS, 2);
    put(zip, 0, 2); /* stored */
    put(zip, dos_time(file->mtime_s), 4);
    put(zip, 0, 4);
    put(zip, big ? BIG : 0, 4);
    put(zip, big ? BIG : 0, 4);
    put(zip, strlen(file->path), 2);
    put(zip, big ? 20 : 0, 2);
    put_text(zip, file->path);
    if (big) {
        put(zip, 1, 2);
        put(zip, 16, 2);
        put(zip, 0, 8);
        put(zip, 0, 8);
    }
}

static void put_descriptor(struct zip *zip, const struct zip_file *file)
{
    unsigned width = file->bytes >= BIG ? 8 : 4;

    put(zip, 0x08074b50, 4);
    put(zip, file->crc, 4);
    put(zip, file->bytes, width);
    put(zip, file->bytes, width);
}

static void put_central(struct zip *zip, const struct zip_file *file)
{
    unsigned extra = central_extra(file);
    bool big = file->bytes >= BIG;

    put(zip, 0x02014b50, 4);
    put(zip, 3 << 8 | 45, 2); /* made on Unix */
    put(zip, extra > 0 ? 45 : 20, 2);
    put(zip, FLAGS, 2);
    put(zip, 0, 2);
    put(zip, dos_time(file->mtime_s), 4);
    put(zip, file->crc, 4);
    put(zip, big ? BIG : file->bytes, 4);
    put(zip, big ? BIG : file->bytes, 4);
    put(zip, strlen(file->path), 2);
    put(zip, extra, 2);
    put(zip, 0, 2); /* comment */
    put(zip, 0, 2); /* disk */
    put(zip, 0, 2);
    put(zip, (file->executable ? 0100755u : 0100644u) << 16, 4);
    put(zip, file->offset >= BIG ? BIG : file->offset, 4);
    put_text(zip, file->path);
    if (extra > 0) {
        put(zip, 1, 2);
        put(zip, extra - 4, 2);
        if (big) {
            put(zip, file->bytes, 8);
            put(zip, file->bytes, 8);
        }
        if (file->offset >= BIG)
            put(zip, file->offset, 8);
    }
}

static void put_end(struct zip *zip)
{
    uint64_t start = zip->piece.len;
    uint64_t len;
    bool big;

    for (size_t i = 0; i < zip->count; i++)
        put_central(zip, &zip->files[i]);
    len = zip->piece.len - start;
    big = needs_zip64(zip, len);
    if (big) {
        put(zip, 0x06064b50, 4);
        put(zip, 44, 8);
        put(zip, 3 << 8 | 45, 2);
        put(zip, 45, 2);
        put(zip, 0, 4);
        put(zip, 0, 4);
        put(zip, zip->count, 8);
        put(zip, zip->count, 8);
        put(zip, len, 8);
        put(zip, zip->directory, 8);
        put(zip, 0x07064b50, 4);
        put(zip, 0, 4);
        put(zip, zip->directory + len, 8);
        put(zip, 1, 4);
    }
    put(zip, 0x06054b50, 4);
    put(zip, 0, 4);
    put(zip, big ? 0xffff : zip->count, 2);
    put(zip, big ? 0xffff : zip->count, 2);
    put(zip, big ? BIG : len, 4);
    put(zip, big ? BIG : zip->directory, 4);
    put(zip, 0, 2);
}

/* ---- sending ---- */

static void zip_step(struct http_request *request);

static void zip_ended(struct http_request *request)
{
    http_stream_end(request);
    http_request_release(request);
}

static void zip_broken(struct http_request *request)
{
    http_stream_abort(request);
    http_request_release(request);
}

static void on_bytes(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view bytes)
{
    struct zip *zip = arg;
    struct zip_file *file = &zip->files[zip->at];

    (void)msg;
    if (err != SHOAL_OK || bytes.len == 0 || bytes.len > file->bytes - zip->done) {
        zip_broken(zip->request); /* Z1 */
        return;
    }
    file->crc = crc32_update(file->crc, bytes.bytes, bytes.len);
    zip->done += bytes.len;
    http_stream_write(zip->request, bytes, zip_step);
}

static void send_piece(struct zip *zip, http_request_fn *next)
{
    http_stream_write(zip->request, shoal_buf_view(&zip->piece), next);
    zip->piece.len = 0;
}

static void zip_step(struct http_request *request)
{
    struct zip *zip = request->state;
    const struct shoal_backend *backend = &request->http->backend;

    if (request->conn == NULL) {
        zip_broken(request);
        return;
    }
    zip->piece.len = 0;
    while (zip->at < zip->count) {
        struct zip_file *file = &zip->files[zip->at];

        if (zip->done == 0 && zip->offset == file->offset) {
            put_local(zip, file);
            zip->offset++; /* its header is out; only compared for equality */
        }
        if (zip->done < file->bytes) {
            if (zip->piece.len > 0) {
                send_piece(zip, zip_step);
            } else {
                uint64_t left = file->bytes - zip->done;

                backend->result_read(backend->ctx, zip->result, file->index, zip->done,
                                     left < PIECE_BYTES ? (size_t)left : PIECE_BYTES, on_bytes, zip);
            }
            return;
        }
        put_descriptor(zip, file);
        zip->at++;
        zip->done = 0;
        zip->offset = zip->at < zip->count ? zip->files[zip->at].offset : zip->directory;
        if (zip->piece.len > PIECE_BYTES) {
            send_piece(zip, zip_step);
            return;
        }
    }
    put_end(zip);
    send_piece(zip, zip_ended);
}

/* It leads to nothing outside the folder into which the zip is unpacked. */
static bool path_is_safe(const char *path)
{
    if (path[0] == '\0' || path[0] == '/' || strlen(path) >= 4096)
        return false;
    for (const char *part = path; part != NULL; part = strchr(part, '/')) {
        part += part[0] == '/' ? 1 : 0;
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == '\0'))
            return false;
    }
    return true;
}

static bool is_wanted(const struct zip *zip, const char *path)
{
    size_t len = strlen(zip->below);

    return len == 0 || (strncmp(path, zip->below, len) == 0 && path[len] == '/');
}

static void say_empty(struct http_request *request, const struct zip *zip)
{
    if (zip->below[0] != '\0')
        http_respond_error(request, 404, "nothing is below \"%.100s\" in the result folder of %s", zip->below,
                           request->params[0]);
    else
        http_respond_error(request, 404, "nothing is in the result folder of %s", request->params[0]);
    http_request_release(request);
}

static void on_open(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_result *result,
                    const struct shoal_result_list *list)
{
    struct zip *zip = arg;
    struct http_request *request = zip->request;
    const struct shoal_result_file *files;
    uint64_t length;
    bool all = err == SHOAL_OK && msg->text[0] == '\0';

    if (err != SHOAL_OK) {
        http_respond_failure(request, err, msg, zip->not_found);
        http_request_release(request);
        return;
    }
    zip->result = result;
    if (!http_request_keep(request, list->count * ROUTES_FILE_BYTES)) {
        http_request_release(request);
        return;
    }
    files = list->files;
    zip->files = calloc(list->count + 1, sizeof(*zip->files));
    zip->count = 0;
    for (size_t i = 0; zip->files != NULL && i < list->count; i++) {
        if (!is_wanted(zip, files[i].path))
            continue;
        if (!path_is_safe(files[i].path)) {
            all = false;
            continue;
        }
        zip->files[zip->count++] = (struct zip_file){ .index = i,
                                                      .path = files[i].path,
                                                      .bytes = files[i].bytes,
                                                      .mtime_s = files[i].mtime_s,
                                                      .executable = files[i].executable };
    }
    if (zip->files != NULL && zip->count == 0 && !zip->of_execs) {
        say_empty(request, zip);
        return;
    }
    length = zip->files == NULL ? 0 : lay_out(zip);
    /* Heads and directory never need more: putting them cannot fail. */
    if (zip->files == NULL ||
        shoal_buf_reserve(&zip->piece, PIECE_BYTES + 8192 + (size_t)(length - zip->directory)) != SHOAL_OK) {
        http_respond_error(request, 503, "out of memory; try again later");
        http_request_release(request);
        return;
    }
    zip->offset = zip->count > 0 ? zip->files[0].offset : zip->directory;
    /* The form that dlicmd and the notebooks take apart: no blank, no quotes, size last (execs-api 4.12). */
    http_header_add(request, "Content-Disposition", "attachment;filename=dlpd-model-%s-result.zip;size=%" PRIu64,
                    request->params[0], length);
    if (!zip->of_execs)
        http_header_add(request, "Shoal-Complete", "%s", all ? "true" : "false");
    http_stream_start(request, 200, "application/zip", length);
    zip_step(request);
}

static void on_job(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_job_info *job)
{
    struct zip *zip = arg;
    struct http_request *request = zip->request;
    const struct shoal_backend *backend = &request->http->backend;
    char id[SHOAL_JOB_ID_TEXT_BYTES];

    if (err != SHOAL_OK) {
        http_respond_failure(request, err, msg, zip->not_found);
        http_request_release(request);
        return;
    }
    if (zip->of_execs && !job->ended) {
        http_respond_error(request, 400, "exec %s has not ended (%s); its result is there when it has",
                           request->params[0], job->state);
        http_request_release(request);
        return;
    }
    shoal_job_id_text(job->id, id);
    request->params[0] = arena_text(&request->arena, id);
    if (request->params[0] == NULL) {
        http_respond_error(request, 503, "out of memory; try again later");
        http_request_release(request);
        return;
    }
    backend->result_open(backend->ctx, &request->user, request->params[0], on_open, zip);
}

static void zip_start(struct http_request *request, bool of_execs, const char *below)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct zip *zip = calloc(1, sizeof(*zip));

    if (zip == NULL) {
        http_respond_error(request, 503, "out of memory; try again later");
        return;
    }
    *zip = (struct zip){ .request = request, .of_execs = of_execs, .below = below, .not_found = of_execs ? 400 : 404 };
    request->state = zip;
    request->state_free = zip_free;
    http_request_hold(request);
    backend->get(backend->ctx, &request->user, request->params[0], true, on_job, zip);
}

void result_handle_execs(struct http_request *request) { zip_start(request, true, "model"); }

void result_handle_native(struct http_request *request)
{
    const char *below = http_query(request, "below");

    zip_start(request, false, below == NULL ? "" : below);
}
