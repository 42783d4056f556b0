/* POST of a job: the body to disk, the archive to a bundle, the args to options, all to the backend.
 *
 *   data* -> parts -> small ones in memory, large ones to a nameless file (the body pauses above 4 MiB of writes)
 *   end   -> args -> thread: canonical bundle, main file looked for -> backend.submit -> answer
 *
 * S1. Nothing is made before everything has been checked: a refused request leaves nothing behind.
 * S2. The state is freed with the request, when no write and no thread uses it: each holds the request.
 * S3. Files are opened, written, read and closed by threads: a disk that stands still does not hold up the loop. */
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>
#include <uv.h>

#include "shoal/bundle.h"

#include "routes.h"
#include "submit_uv.h"

#include "shoal/banned.h"

#define RETRY_S 5u
#define SMALL_UPLOAD_MAX ((size_t)64 * SHOAL_KIB)

static void on_closed(uv_fs_t *fs)
{
    uv_fs_req_cleanup(fs);
    free(fs);
}

/* The last descriptor of a large nameless file frees its blocks: a thread waits for that (S3). */
void submit_close_later(uv_loop_t *loop, int fd)
{
    uv_fs_t *fs = fd < 0 ? NULL : malloc(sizeof(*fs));

    if (fs != NULL && uv_fs_close(loop, fs, fd, on_closed) == 0)
        return;
    free(fs);
    if (fd >= 0)
        (void)close(fd);
}

static void submit_free(void *state)
{
    struct submit *s = state;

    submit_job_free(s->job);
    submit_close_later(s->request->http->loop, s->upload.fd);
    submit_close_later(s->request->http->loop, s->bundle_fd);
    if (s->data_json != NULL)
        json_input_free(s->data_json);
    shoal_buf_deinit(&s->upload.small);
    shoal_buf_deinit(&s->data);
    shoal_buf_deinit(&s->data_next);
    shoal_buf_deinit(&s->bundle);
    shoal_buf_deinit(&s->ticket);
    shoal_buf_deinit(&s->document);
    free(s);
}

static int not_found_of(const struct http_request *request)
{
    return submit_is_service(request) && (!submit_is_exec(request) || submit_is_edi(request)) ? 404 : 400;
}

void submit_refuse(struct submit *s, enum shoal_err err, const struct shoal_msg *msg)
{
    if (!s->request->responded)
        http_respond_failure(s->request, err, msg, not_found_of(s->request));
}

/* ---- the upload to disk ---- */

struct file_write {
    uv_fs_t fs;
    struct submit *submit;
    struct shoal_buf bytes;
    size_t done;
    uint64_t offset;
};

static void finish_if_whole(struct submit *s);
static enum shoal_err write_start(struct file_write *write);

static void on_file_written(uv_fs_t *fs)
{
    struct file_write *write = fs->data;
    struct submit *s = write->submit;
    ssize_t result = fs->result;

    uv_fs_req_cleanup(fs);
    if (result > 0)
        write->done += (size_t)result;
    if (result <= 0)
        s->write_err = shoal_fail(&s->write_msg, SHOAL_ERR_STORAGE,
                                  "the upload cannot be stored on this node (%s); free some space or use another node",
                                  uv_strerror((int)result));
    else if (write->done < write->bytes.len && write_start(write) == SHOAL_OK)
        return; /* a short write: the rest */
    s->pending -= write->bytes.len;
    shoal_buf_deinit(&write->bytes);
    free(write);
    if (s->write_err != SHOAL_OK)
        submit_refuse(s, s->write_err, &s->write_msg);
    if (s->paused && s->pending < SHOAL_UPLOAD_PENDING_MAX / 2) {
        s->paused = false;
        http_body_resume(s->request);
    }
    finish_if_whole(s);
    http_request_release(s->request);
}

static enum shoal_err write_start(struct file_write *write)
{
    uv_buf_t buf = uv_buf_init((char *)write->bytes.bytes + write->done, (unsigned)(write->bytes.len - write->done));
    struct submit *s = write->submit;

    write->fs.data = write;
    if (uv_fs_write(s->request->http->loop, &write->fs, s->upload.fd, &buf, 1, (int64_t)(write->offset + write->done),
                    on_file_written) == 0)
        return SHOAL_OK;
    s->write_err = shoal_fail(&s->write_msg, SHOAL_ERR_STORAGE, "the upload cannot be stored on this node");
    return s->write_err;
}

/* The body waits while there is much of it in hand. */
static void pause_if_much(struct submit *s)
{
    if (s->pending + s->upload.small.len < SHOAL_UPLOAD_PENDING_MAX || s->paused)
        return;
    s->paused = true;
    http_body_pause(s->request);
}

static enum shoal_err flush_upload(struct submit *s, struct shoal_msg *msg);

static void on_spool_open(uv_fs_t *fs)
{
    struct submit *s = fs->data;
    ssize_t fd = fs->result;

    uv_fs_req_cleanup(fs);
    s->opening = false;
    if (fd < 0) {
        s->write_err = shoal_fail(&s->write_msg, SHOAL_ERR_STORAGE, "the upload cannot be stored on this node: %s",
                                  uv_strerror((int)fd));
    } else {
        s->upload.fd = (int)fd;
        s->write_err = flush_upload(s, &s->write_msg);
    }
    if (s->write_err != SHOAL_OK)
        submit_refuse(s, s->write_err, &s->write_msg);
    if (s->write_err != SHOAL_OK && s->paused) {
        s->paused = false;
        http_body_resume(s->request);
    }
    finish_if_whole(s);
    http_request_release(s->request);
}

static enum shoal_err open_spool(struct submit *s, struct shoal_msg *msg)
{
    int err;

    s->spool.data = s;
    err = uv_fs_open(s->request->http->loop, &s->spool, s->request->http->spool_dir, O_TMPFILE | O_RDWR | O_CLOEXEC,
                     0600, on_spool_open);
    if (err != 0)
        return shoal_fail(msg, SHOAL_ERR_STORAGE, "the upload cannot be stored on this node: %s", uv_strerror(err));
    s->opening = true;
    http_request_hold(s->request);
    return SHOAL_OK;
}

/* Hands what is gathered to a thread; until the file is open, it gathers on. */
static enum shoal_err flush_upload(struct submit *s, struct shoal_msg *msg)
{
    struct file_write *write;

    if (s->upload.small.len == 0)
        return SHOAL_OK;
    if (s->upload.fd < 0) {
        enum shoal_err err = s->opening ? SHOAL_OK : open_spool(s, msg);

        pause_if_much(s);
        return err;
    }
    write = calloc(1, sizeof(*write));
    if (write == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "out of memory; try again later");
    *write =
        (struct file_write){ .submit = s, .bytes = s->upload.small, .offset = s->upload.bytes - s->upload.small.len };
    s->upload.small = (struct shoal_buf){ 0 };
    s->pending += write->bytes.len;
    http_request_hold(s->request);
    if (write_start(write) != SHOAL_OK) {
        *msg = s->write_msg;
        s->pending -= write->bytes.len;
        shoal_buf_deinit(&write->bytes);
        free(write);
        http_request_release(s->request);
        return SHOAL_ERR_STORAGE;
    }
    pause_if_much(s);
    return SHOAL_OK;
}

static enum shoal_err take_upload(struct submit *s, struct shoal_view bytes, struct shoal_msg *msg)
{
    enum shoal_err err = shoal_buf_append(&s->upload.small, bytes.bytes, bytes.len);

    if (err != SHOAL_OK)
        return shoal_fail(msg, err, "out of memory; try again later");
    s->upload.bytes += bytes.len;
    return s->upload.small.len > SMALL_UPLOAD_MAX ? flush_upload(s, msg) : SHOAL_OK;
}

/* ---- parts ---- */

static enum shoal_err on_part(void *arg, const struct multipart_part *part, struct shoal_msg *msg)
{
    struct submit *s = arg;

    s->in_data = strcmp(part->name, "data") == 0;
    if (s->in_data) {
        s->data_parts++;
        return SHOAL_OK;
    }
    if (s->has_upload)
        return shoal_fail(msg, SHOAL_ERR_UNSUPPORTED,
                          "not supported yet: more than one file; pack the model directory into one archive");
    s->has_upload = true;
    (void)snprintf(s->upload.name, sizeof(s->upload.name), "%s", part->filename);
    return SHOAL_OK;
}

static enum shoal_err take_data(struct submit *s, struct shoal_view bytes, struct shoal_msg *msg)
{
    struct shoal_buf *buf = s->data_parts > 1 ? &s->data_next : &s->data;

    if (buf->len + bytes.len > SHOAL_JSON_BYTES_MAX)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "the field \"data\" is larger than %u bytes", SHOAL_JSON_BYTES_MAX);
    if (shoal_buf_append(buf, bytes.bytes, bytes.len) != SHOAL_OK)
        return shoal_fail(msg, SHOAL_ERR_FULL, "out of memory; try again later");
    return SHOAL_OK;
}

static enum shoal_err on_part_data(void *arg, struct shoal_view bytes, struct shoal_msg *msg)
{
    struct submit *s = arg;

    return s->in_data ? take_data(s, bytes, msg) : take_upload(s, bytes, msg);
}

/* Of several `data` parts the first that is not empty counts (execs-api 4.2). */
static enum shoal_err on_part_end(void *arg, struct shoal_msg *msg)
{
    struct submit *s = arg;

    (void)msg;
    if (s->in_data && s->data.len == 0 && s->data_next.len > 0) {
        shoal_buf_deinit(&s->data);
        s->data = s->data_next;
        s->data_next = (struct shoal_buf){ 0 };
    }
    s->data_next.len = 0;
    return SHOAL_OK;
}

static enum shoal_err read_type(struct submit *s, struct shoal_msg *msg)
{
    static const struct multipart_events events = { .begin = on_part, .data = on_part_data, .end = on_part_end };
    const struct http1_head *head = &s->request->head;
    struct shoal_view type = { 0 };

    if (submit_job_of(s->request) != NULL)
        return SHOAL_OK; /* the body is JSON, whatever its type says */
    s->is_raw = submit_is_dlim(s->request); /* whatever its type says, unless it is a multipart body */
    if (!http1_header_find(head, "content-type", &type) || type.len == 0)
        return SHOAL_OK;
    if (type.len >= 10 && strncasecmp((const char *)type.bytes, "multipart/", 10) == 0) {
        s->is_multipart = true;
        s->is_raw = false;
        return multipart_init(&s->multipart, type, &events, s, msg);
    }
    if (!s->is_raw && type.len >= 33 &&
        strncasecmp((const char *)type.bytes, "application/x-www-form-urlencoded", 33) == 0) {
        s->is_form = true;
        return SHOAL_OK;
    }
    return SHOAL_OK; /* matters only if a body comes */
}

static uint64_t body_max(struct http_request *request)
{
    if (submit_job_of(request) != NULL)
        return SHOAL_JSON_BYTES_MAX;
    return submit_is_service(request) ? SHOAL_PACKAGE_BYTES_MAX : SHOAL_UPLOAD_BYTES_MAX;
}

/* Of a body that says its length, before any of it is taken. */
static void refuse_large(struct http_request *request)
{
    if (submit_job_of(request) != NULL)
        http_respond_error(request, 413, "the request body is larger than %d bytes", (int)SHOAL_JSON_BYTES_MAX);
    else
        http_respond_error(request, 413,
                           "the package is larger than %d MiB; leave out what the model does not need, or have its kernel "
                           "fetch large weights when it starts",
                           (int)(SHOAL_PACKAGE_BYTES_MAX / SHOAL_MIB));
}

/* Of one that writes, memory is in hand until that is done. */
static uint64_t frees(const struct http_request *request)
{
    const struct submit *s = request->state;

    return request->body_done || request->responded || s->pending > 0 || s->opening ? 0 : 1;
}

static void leave(struct http_request *request)
{
    http_header_add(request, "Retry-After", "%u", RETRY_S);
    http_respond_error(request, 503, "all places for uploads are taken, you have the most of them, and this one came most slowly: "
                                     "it gave way to another user's; send it again, or use another node");
}

void submit_begin(struct http_request *request)
{
    static const struct http_guest guest = { .frees = frees, .leave = leave };
    struct submit *s;
    struct shoal_msg msg;

    if (request->head.content_length > body_max(request)) {
        refuse_large(request);
        return;
    }
    s = calloc(1, sizeof(*s));
    if (s == NULL) {
        http_respond_error(request, 503, "out of memory; try again later");
        return;
    }
    s->request = request;
    s->upload.fd = -1;
    s->bundle_fd = -1;
    request->state = s;
    request->state_free = submit_free;
    if (!http_room_take(request, HTTP_ROOM_UPLOADS, &guest, 1)) {
        http_header_add(request, "Retry-After", "%u", RETRY_S);
        http_respond_error(request, 503, "this node has %u uploads in hand; try again in some seconds, or another node",
                           (unsigned)request->http->rooms[HTTP_ROOM_UPLOADS].taken);
    } else if (read_type(s, &msg) != SHOAL_OK) {
        http_respond_error(request, 415, "%s", msg.text);
    }
}

void submit_data(struct http_request *request, struct shoal_view content)
{
    struct submit *s = request->state;
    struct shoal_msg msg;
    enum shoal_err err;

    if (request->body_bytes > body_max(request)) { /* in chunks: its length was not said */
        refuse_large(request);
        return;
    }
    if (submit_job_of(request) != NULL)
        err = take_data(s, content, &msg);
    else if (s->is_multipart)
        err = multipart_feed(&s->multipart, content, &msg);
    else if (s->is_form)
        err = take_data(s, content, &msg);
    else if (s->is_raw) {
        s->has_upload = true;
        err = take_upload(s, content, &msg);
    } else {
        http_respond_error(request, 415, "the body must be multipart/form-data with a file, or empty");
        return;
    }
    if (err != SHOAL_OK)
        submit_refuse(s, err, &msg);
}

/* ---- everything is here ---- */

/* `data=...` of a form body, in place. */
static enum shoal_err read_form(struct submit *s, struct shoal_msg *msg)
{
    struct shoal_view form = shoal_buf_view(&s->data);
    char *text = NULL;

    while (form.len > 0) {
        const uint8_t *amp = memchr(form.bytes, '&', form.len);
        size_t len = amp == NULL ? form.len : (size_t)(amp - form.bytes);

        if (len >= 5 && memcmp(form.bytes, "data=", 5) == 0) {
            text = http_percent_decode(&s->request->arena, shoal_view_of(form.bytes + 5, len - 5), true);
            if (text == NULL)
                return shoal_fail(msg, SHOAL_ERR_INVALID, "the form field \"data\" is not well encoded");
            break;
        }
        form.bytes += amp == NULL ? len : len + 1;
        form.len -= amp == NULL ? len : len + 1;
    }
    s->data.len = 0;
    return text == NULL ? SHOAL_OK : shoal_buf_append(&s->data, text, strlen(text));
}

/* A package without words of its own is run by our kernel host. */
#define SERVICE_ARGS "--exec-start PyTorch --user-cmd -- kernel"

static enum shoal_err read_args(struct submit *s, struct shoal_msg *msg)
{
    struct http_request *request = s->request;
    const struct shoal_backend *backend = &request->http->backend;
    struct args_input input = { .caller = &request->user };
    const char *in_data = NULL;
    bool no_words = false;
    enum shoal_err err;

    if (s->data.len > 0) {
        err = json_input_parse_lenient(shoal_buf_view(&s->data), &s->data_json, msg);
        if (err != SHOAL_OK)
            return err;
        input.data = json_input_root(s->data_json);
        if (!json_input_is_object(input.data))
            return shoal_fail(msg, SHOAL_ERR_INVALID, "the field \"data\" must be a JSON object");
        in_data = json_input_text(input.data, "args");
    }
    err = args_from_query(&request->arena, request->head.query, &input.args, msg);
    if (err != SHOAL_OK)
        return err;
    if (input.args == NULL || input.args[strspn(input.args, " \t\r\n")] == '\0')
        input.args = in_data;
    if (submit_job_of(request) != NULL || (input.args == NULL && submit_is_service(request))) {
        input.args = SERVICE_ARGS;
        no_words = true;
    }
    if (input.args == NULL)
        return shoal_fail(msg, SHOAL_ERR_INVALID,
                          "no args: put them into the URL (?args=--exec-start ...) or the field \"data\"");
    input.frameworks = backend->frameworks(backend->ctx, &input.framework_count);
    err = args_parse(&request->arena, &input, &s->args, msg);
    return err == SHOAL_OK && submit_is_service(request) ? submit_read_service(s, no_words, msg) : err;
}

static enum shoal_err read_ticket(struct submit *s, struct shoal_msg *msg)
{
    struct shoal_view text;
    uint8_t bytes[SHOAL_TICKET_BYTES_MAX];
    size_t len = 0;

    if (!http1_header_find(&s->request->head, "shoal-ticket", &text))
        return SHOAL_OK;
    if (sodium_base642bin(bytes, sizeof(bytes), (const char *)text.bytes, text.len, NULL, &len, NULL,
                          sodium_base64_VARIANT_URLSAFE_NO_PADDING) != 0 ||
        len == 0)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "the header Shoal-Ticket is not what POST /v1/tickets gave");
    return shoal_buf_append(&s->ticket, bytes, len);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == NULL ? path : slash + 1;
}

static enum shoal_err try_main(struct submit *s, const char *dir, const char *main, bool *found)
{
    char *path =
        dir[0] == '\0' ? arena_text(&s->request->arena, main) : arena_printf(&s->request->arena, "%s/%s", dir, main);
    enum shoal_err err;

    if (*found)
        return SHOAL_OK;
    if (path == NULL)
        return shoal_fail(&s->msg, SHOAL_ERR_FULL, "out of memory; try again later");
    err = shoal_bundle_find(s->bundle_fd, path, found, &s->msg);
    if (err == SHOAL_OK && *found)
        s->args.options.main_path = path;
    return err;
}

/* The main file as it was given, then by its base name; in the model directory, the top directory, the root. */
static enum shoal_err find_main(struct submit *s)
{
    struct shoal_job_options *o = &s->args.options;
    const char *names[2] = { o->main, base_name(o->main) };
    const char *dirs[3] = { o->model_dir, s->info.top, "" };
    bool found = false;

    o->main_path = "";
    o->work_dir = "";
    if (o->user_cmd) {
        o->work_dir = o->model_dir[0] != '\0' ? o->model_dir : arena_text(&s->request->arena, s->info.top);
        return SHOAL_OK;
    }
    while (names[0][0] == '.' && names[0][1] == '/')
        names[0] += 2;
    for (unsigned n = 0; n < 2 && !found; n++) {
        for (unsigned d = 0; d < 3 && !found; d++) {
            enum shoal_err err;

            if ((n == 0 && names[0][0] == '/') || names[n][0] == '\0')
                continue;
            err = try_main(s, dirs[d], names[n], &found);
            if (err != SHOAL_OK)
                return err;
        }
    }
    if (!found && o->main[0] == '/')
        return SHOAL_OK; /* a file on the job's own file system */
    if (!found)
        return shoal_fail(&s->msg, SHOAL_ERR_INVALID, "--model-main: \"%.120s\" is not in the upload%s; check the name",
                          o->main, s->info.entries == 0 ? " (no file was sent)" : "");
    return SHOAL_OK;
}

static enum shoal_err settle_work_dir(struct submit *s)
{
    struct shoal_job_options *o = &s->args.options;
    size_t len = strlen(o->model_dir);
    const char *slash;

    if (o->user_cmd || o->main_path[0] == '\0')
        return SHOAL_OK;
    if (len > 0 && !s->info.prefixed && strncmp(o->main_path, o->model_dir, len) == 0 && o->main_path[len] == '/') {
        o->work_dir = o->model_dir;
        return SHOAL_OK;
    }
    slash = strrchr(o->main_path, '/');
    o->work_dir = slash == NULL
                      ? ""
                      : arena_copy(&s->request->arena, shoal_view_of(o->main_path, (size_t)(slash - o->main_path)));
    return o->work_dir != NULL ? SHOAL_OK : shoal_fail(&s->msg, SHOAL_ERR_FULL, "out of memory; try again later");
}

/* From here on the paths mean the bundle, not the client's machine. */
static void resolve_paths(struct submit *s)
{
    struct shoal_job_options *o = &s->args.options;

    if (o->main_path[0] != '\0')
        o->main = o->main_path;
    o->model_dir = o->work_dir;
}

static enum shoal_err read_small_bundle(struct submit *s)
{
    size_t len = (size_t)s->info.bundle_bytes;

    if (s->info.bundle_bytes > SHOAL_BUNDLE_INLINE_MAX)
        return SHOAL_OK;
    if (shoal_buf_reserve(&s->bundle, len) != SHOAL_OK)
        return shoal_fail(&s->msg, SHOAL_ERR_FULL, "out of memory; try again later");
    if (pread(s->bundle_fd, s->bundle.bytes, len, 0) != (ssize_t)len)
        return shoal_fail(&s->msg, SHOAL_ERR_STORAGE, "the bundle cannot be read back: %s", strerror(errno));
    s->bundle.len = len;
    return SHOAL_OK;
}

static enum shoal_err small_upload_to_fd(struct submit *s)
{
    if (!s->has_upload || s->upload.fd >= 0)
        return SHOAL_OK;
    s->upload.fd = memfd_create("shoal-upload", MFD_CLOEXEC);
    if (s->upload.fd < 0 ||
        write(s->upload.fd, s->upload.small.bytes, s->upload.small.len) != (ssize_t)s->upload.small.len)
        return shoal_fail(&s->msg, SHOAL_ERR_STORAGE, "the upload cannot be kept: %s", strerror(errno));
    return SHOAL_OK;
}

/* In a thread: nothing here touches the loop. The request's arena is ours until the work is done. */
static void bundle_work(uv_work_t *work)
{
    struct submit *s = work->data;
    struct shoal_bundle_upload upload;
    struct shoal_bundle_options options;

    s->err = small_upload_to_fd(s);
    upload = (struct shoal_bundle_upload){ .fd = s->upload.fd, .bytes = s->upload.bytes, .name = s->upload.name };
    options = (struct shoal_bundle_options){
        .uploads = &upload,
        .upload_count = s->has_upload ? 1 : 0,
        .single_name = base_name(s->args.options.main),
        .prefix = s->args.options.model_dir,
        .spool_dir = s->request->http->spool_dir,
        .refuses_links_out = submit_is_service(s->request),
    };
    if (s->err == SHOAL_OK && submit_is_dlim(s->request))
        s->err = submit_check_archive(s);
    if (s->err == SHOAL_OK)
        s->err = shoal_bundle_make(&options, &s->bundle_fd, &s->info, &s->msg);
    if (s->err == SHOAL_OK && submit_is_service(s->request))
        s->err = submit_make_document(s);
    if (s->err == SHOAL_OK)
        s->err = find_main(s);
    if (s->err == SHOAL_OK)
        s->err = settle_work_dir(s);
    if (s->err == SHOAL_OK)
        s->err = read_small_bundle(s);
    if (s->err == SHOAL_OK)
        resolve_paths(s);
}

static void hash_text(crypto_generichash_state *state, const char *text)
{
    uint64_t len = strlen(text);
    uint8_t head[8];

    for (unsigned i = 0; i < 8; i++)
        head[i] = (uint8_t)(len >> (8 * i));
    (void)crypto_generichash_update(state, head, sizeof(head));
    (void)crypto_generichash_update(state, (const uint8_t *)text, len);
}

/* PROTOCOLS 2: over args, data and the files. */
static void hash_spec(const struct submit *s, struct shoal_hash *hash)
{
    crypto_generichash_state state;

    (void)crypto_generichash_init(&state, NULL, 0, sizeof(hash->bytes));
    hash_text(&state, "shoal spec 1");
    hash_text(&state, s->args.args);
    hash_text(&state, s->args.data_json);
    (void)crypto_generichash_update(&state, s->info.hash.bytes, sizeof(s->info.hash.bytes));
    (void)crypto_generichash_final(&state, hash->bytes, sizeof(hash->bytes));
}

static void add_ticket_header(struct http_request *request, struct shoal_view ticket)
{
    char text[SHOAL_TICKET_BYTES_MAX * 4 / 3 + 4];

    if (ticket.len == 0 || ticket.len > SHOAL_TICKET_BYTES_MAX)
        return;
    (void)sodium_bin2base64(text, sizeof(text), ticket.bytes, ticket.len, sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    http_header_add(request, "Shoal-Ticket", "%s", text);
}

static void on_submitted(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_job_info *job,
                         struct shoal_view ticket)
{
    struct submit *s = arg;
    struct http_request *request = s->request;
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    add_ticket_header(request, ticket);
    if (err != SHOAL_OK) {
        http_respond_failure(request, err, msg, not_found_of(request));
    } else {
        if (msg->text[0] != '\0' && strpbrk(msg->text, "\r\n") == NULL)
            http_header_add(request, "Shoal-Survives", "%s", msg->text);
        if (submit_is_edi(request)) {
            routes_edi_made(request, s->args.options.service);
        } else if (submit_is_dlim(request) || submit_is_exec(request)) {
            routes_dlim_model(request, s->args.options.service);
        } else if (submit_is_service(request)) {
            routes_service_answer(request, job);
        } else {
            routes_exec_json(&w, request, job);
            http_respond_json(request, 200, &w);
        }
    }
    http_request_release(request);
}

static void on_ticket(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_job_id id,
                      struct shoal_view ticket)
{
    struct submit *s = arg;
    struct http_request *request = s->request;
    char text[SHOAL_TICKET_BYTES_MAX * 4 / 3 + 4];
    char id_text[SHOAL_JOB_ID_TEXT_BYTES];
    char hash[SHOAL_HASH_TEXT_BYTES];
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    if (err != SHOAL_OK) {
        http_respond_failure(request, err, msg, 400);
        http_request_release(request);
        return;
    }
    SHOAL_ASSERT(ticket.len <= SHOAL_TICKET_BYTES_MAX);
    (void)sodium_bin2base64(text, sizeof(text), ticket.bytes, ticket.len, sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    shoal_job_id_text(id, id_text);
    shoal_hex_text(s->submit.spec_hash.bytes, sizeof(s->submit.spec_hash.bytes), hash);
    json_object_begin(&w, NULL);
    json_text(&w, "id", id_text);
    json_text(&w, "ticket", text);
    json_text(&w, "specHash", hash);
    json_end(&w);
    http_respond_json(request, 200, &w);
    http_request_release(request);
}

static void on_bundle(uv_work_t *work, int status)
{
    struct submit *s = work->data;
    struct http_request *request = s->request;
    const struct shoal_backend *backend = &request->http->backend;

    if (status != 0)
        s->err = shoal_fail(&s->msg, SHOAL_ERR_FULL, "the work was cancelled; try again");
    if (s->err != SHOAL_OK) {
        submit_refuse(s, s->err, &s->msg);
        http_request_release(request);
        return;
    }
    s->submit = (struct shoal_submit){
        .caller = &request->user,
        .options = &s->args.options,
        .args = s->args.args,
        .data_json = s->args.data_json,
        .bundle_fd = s->bundle_fd,
        .bundle_bytes = s->info.bundle_bytes,
        .bundle = shoal_buf_view(&s->bundle),
        .bundle_hash = s->info.hash,
        .ticket = shoal_buf_view(&s->ticket),
    };
    hash_spec(s, &s->submit.spec_hash);
    if (s->ticket_only)
        backend->ticket_new(backend->ctx, &request->user, &s->submit.spec_hash, on_ticket, s);
    else
        backend->submit(backend->ctx, &s->submit, on_submitted, s);
}

void submit_go_on(struct submit *s)
{
    struct shoal_msg msg;
    enum shoal_err err = SHOAL_OK;

    if (s->is_form && s->job == NULL)
        err = read_form(s, &msg);
    if (err == SHOAL_OK)
        err = read_args(s, &msg);
    if (err == SHOAL_OK)
        err = read_ticket(s, &msg);
    if (err != SHOAL_OK) {
        submit_refuse(s, err, &msg);
        return;
    }
    s->work.data = s;
    http_request_hold(s->request);
    if (uv_queue_work(s->request->http->loop, &s->work, bundle_work, on_bundle) != 0) {
        http_respond_error(s->request, 503, "no thread is free; try again later");
        http_request_release(s->request);
    }
}

/* The body has ended and all of it is written. */
static void finish_if_whole(struct submit *s)
{
    if (s->whole && s->pending == 0 && !s->opening && !s->request->responded && s->request->conn != NULL) {
        s->whole = false;
        submit_go_on(s);
    }
}

static void handle(struct http_request *request, bool ticket_only)
{
    struct submit *s = request->state;
    struct shoal_msg msg;
    enum shoal_err err = SHOAL_OK;

    s->ticket_only = ticket_only;
    if (submit_job_of(request) != NULL) {
        submit_job_begin(s, submit_job_of(request));
        return;
    }
    if (s->is_multipart)
        err = multipart_finish(&s->multipart, &msg);
    if (err == SHOAL_OK && s->upload.fd >= 0) /* while it is being opened, on_spool_open() does it */
        err = flush_upload(s, &msg);
    if (err != SHOAL_OK) {
        submit_refuse(s, err, &msg);
        return;
    }
    s->whole = true;
    finish_if_whole(s);
}

void submit_handle(struct http_request *request) { handle(request, false); }
void submit_ticket_handle(struct http_request *request) { handle(request, true); }
