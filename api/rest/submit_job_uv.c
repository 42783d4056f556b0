/* From training to serving: the package of an ended job's model, made instead of a body.
 *
 *   the job --> what was submitted (a bundle), what it has left (its result folder)
 *     result has model/model.json ----------> package: what is below model/
 *     else, thread: submitted files of the main file's folder + model.json + README.md --> tar, a nameless file
 *           then:   the model's file, or with a kernel all of the result ---------------> the same tar
 *   --> submit_go_on(): as if the tar had been sent
 *
 * J1. Only a job that has ended is served: its files do not change any more.
 * J2. Where files of both have one path, the result's is taken: it is newer.
 * J3. A state of an elastic job needs no class: its kernel runs the script up to FabricModel, whose model takes the state
 *     (collective/python/pyedt/_kernel_files.py).
 * J4. A SavedModel of TensorFlow is its folder, with all that lies in it; it is a graph and needs no class at all. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "submit_uv.h"

#include "shoal/banned.h"

#define PIECE_BYTES ((size_t)256 * SHOAL_KIB)
#define BLOCK 512u
#define FINAL "model/train/model_epoch_final.pth"
#define SAVED "saved_model.pb"
#define FINAL_SAVED "model/train/model_epoch_final/" SAVED /* of TF.Keras */
#define PACKAGE_FOLDER "model/"

struct submit_job {
    struct submit *submit;
    const char *id, *args;
    bool elastic;
    struct json_input *body; /* NULL: none was sent */
    const struct json_value *wishes;
    struct args_result said; /* of the job's own args */
    int bundle_fd;
    struct shoal_result *result;
    const struct shoal_result_file *files; /* sorted by path */
    size_t count;
    bool *chosen;
    size_t model;     /* the file that is served, of a SavedModel its graph; `count`: none is named */
    unsigned strip;   /* bytes of the result's paths that the package leaves out */
    const char *root; /* of the submitted files: the main file's folder, with its slash; "": all */
    char kernel[PACKAGE_PATH_BYTES_MAX];
    bool own_model_json;
    /* Of the thread. */
    uv_work_t work;
    enum shoal_err err;
    struct shoal_msg msg;
    /* The result's files on their way. */
    uv_fs_t fs;
    struct shoal_buf out;
    size_t written;
    size_t at;
    uint64_t offset; /* in the file at hand */
    bool last;
};

void submit_job_free(struct submit_job *j)
{
    const struct shoal_backend *backend;

    if (j == NULL)
        return;
    backend = &j->submit->request->http->backend;
    if (j->result != NULL)
        backend->result_close(backend->ctx, j->result);
    submit_close_later(j->submit->request->http->loop, j->bundle_fd);
    json_input_free(j->body);
    shoal_buf_deinit(&j->out);
    free(j->chosen);
    free(j);
}

static void job_failed(struct submit_job *j, enum shoal_err err, const struct shoal_msg *msg)
{
    submit_refuse(j->submit, err, msg);
    http_request_release(j->submit->request);
}

static const char *wish(const struct submit_job *j, const char *key)
{
    const char *text = json_input_text(j->wishes, key);

    return text == NULL ? "" : text;
}

/* ---- tar ---- */

static void octal(char *field, size_t len, uint64_t value)
{
    for (size_t i = len - 1; i > 0; i--, value /= 8)
        field[i - 1] = (char)('0' + value % 8);
    field[len - 1] = '\0';
}

static enum shoal_err put_header(struct shoal_buf *out, const char *name, size_t name_len, uint64_t bytes, char type)
{
    char head[BLOCK] = { 0 };
    unsigned sum = 0;

    memcpy(head, name, name_len < 100 ? name_len : 100);
    octal(head + 100, 8, 0644);
    octal(head + 108, 8, 0);
    octal(head + 116, 8, 0);
    octal(head + 124, 12, bytes);
    octal(head + 136, 12, SHOAL_BUNDLE_MTIME_S);
    memset(head + 148, ' ', 8);
    head[156] = type;
    memcpy(head + 257, "ustar  ", 8); /* GNU's: a longer name comes before, as content */
    for (size_t i = 0; i < BLOCK; i++)
        sum += (uint8_t)head[i];
    octal(head + 148, 7, sum);
    return shoal_buf_append(out, head, sizeof(head));
}

static enum shoal_err put_padding(struct shoal_buf *out, uint64_t bytes)
{
    static const char zeros[BLOCK];

    return shoal_buf_append(out, zeros, (BLOCK - bytes % BLOCK) % BLOCK);
}

static enum shoal_err put_name(struct shoal_buf *out, const char *name, uint64_t bytes)
{
    size_t len = strlen(name);
    enum shoal_err err = SHOAL_OK;

    if (len > 100) {
        err = put_header(out, "././@LongLink", 13, len + 1, 'L');
        if (err == SHOAL_OK)
            err = shoal_buf_append(out, name, len + 1);
        if (err == SHOAL_OK)
            err = put_padding(out, len + 1);
    }
    return err == SHOAL_OK ? put_header(out, name, len, bytes, '0') : err;
}

static enum shoal_err put_text_file(struct shoal_buf *out, const char *name, struct shoal_view text)
{
    enum shoal_err err = put_name(out, name, text.len);

    if (err == SHOAL_OK)
        err = shoal_buf_append(out, text.bytes, text.len);
    return err == SHOAL_OK ? put_padding(out, text.len) : err;
}

/* ---- which files of the result ---- */

static bool ends_with(const char *text, const char *end)
{
    size_t len = strlen(text), tail = strlen(end);

    return len >= tail && strcasecmp(text + len - tail, end) == 0;
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == NULL ? path : slash + 1;
}

static bool is_saved(const char *path) { return strcmp(base_of(path), SAVED) == 0 && base_of(path) != path; }

static bool is_model(const char *path)
{
    static const char *const kinds[] = { ".pt", ".pth", ".ts", ".pt2", ".onnx", ".ubj", ".xgb", ".joblib", ".keras", ".h5", ".npz" };

    if (is_saved(path))
        return true;
    if (ends_with(path, "_optimizer_state.pth") || ends_with(path, "_optimizer_state.npz") ||
        ends_with(path, "_loss.pth"))
        return false;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (ends_with(path, kinds[i]))
            return true;
    return false;
}

static size_t find_path(const struct submit_job *j, const char *path)
{
    size_t low = 0, high = j->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (strcmp(j->files[middle].path, path) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < j->count && strcmp(j->files[low].path, path) == 0 ? low : j->count;
}

/* By its path, else as the end of one. A SavedModel is named by its folder, too. */
static size_t find_named(const struct submit_job *j, const char *name)
{
    size_t found = find_path(j, name);
    size_t folder = strlen(name);

    while (folder > 0 && name[folder - 1] == '/')
        folder--;
    for (size_t i = 0; found == j->count && folder > 0 && i < j->count; i++) {
        const char *path = j->files[i].path;
        size_t len = is_saved(path) ? strlen(path) - sizeof(SAVED) : 0;

        if (len >= folder && strncmp(path + len - folder, name, folder) == 0 &&
            (len == folder || path[len - folder - 1] == '/'))
            found = i;
    }

    for (size_t i = 0; found == j->count && i < j->count; i++) {
        size_t len = strlen(j->files[i].path), tail = strlen(name);

        if (len > tail && j->files[i].path[len - tail - 1] == '/' && strcmp(j->files[i].path + len - tail, name) == 0)
            found = i;
    }
    return found;
}

/* The final weights; else the only file of a model below model/, else the only one of all. */
static enum shoal_err find_model(struct submit_job *j, struct shoal_msg *msg)
{
    size_t below = 0, all = 0, last_below = j->count, last = j->count;
    char names[300] = "";

    j->model = find_path(j, FINAL);
    if (j->model == j->count)
        j->model = find_path(j, FINAL_SAVED);
    for (size_t i = 0; i < j->count && j->model == j->count; i++) {
        if (!is_model(j->files[i].path))
            continue;
        all++;
        last = i;
        if (strlen(names) + strlen(j->files[i].path) + 3 < sizeof(names))
            (void)snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", all > 1 ? ", " : "",
                           j->files[i].path);
        if (strncmp(j->files[i].path, PACKAGE_FOLDER, strlen(PACKAGE_FOLDER)) == 0) {
            below++;
            last_below = i;
        }
    }
    if (j->model == j->count && below == 1)
        j->model = last_below;
    else if (j->model == j->count && all == 1)
        j->model = last;
    if (j->model < j->count)
        return SHOAL_OK;
    if (all == 0)
        return shoal_fail(msg, SHOAL_ERR_INVALID,
                          "the job %s has left no file of a model (.pt .pth .ts .pt2 .onnx .ubj .xgb .joblib .keras .h5, or a SavedModel's folder); `shoal job files` "
                          "lists what it has left, and a kernel of yours serves what else there is (--kernel)",
                          j->id);
    return shoal_fail(msg, SHOAL_ERR_INVALID, "the job %s has left several models: name one as weight (--weight FILE): %s", j->id, names);
}

/* The served file itself, or what lies in a SavedModel's folder. */
static bool is_of_model(const struct submit_job *j, size_t i)
{
    const char *model = j->model < j->count ? j->files[j->model].path : "";

    if (!is_saved(model))
        return i == j->model;
    return strncmp(j->files[i].path, model, (size_t)(base_of(model) - model)) == 0;
}

/* As model.json names it. NULL: no memory is left. */
static const char *weight_path(struct submit_job *j)
{
    const char *path = j->model < j->count ? j->files[j->model].path : wish(j, "weight");

    if (j->model == j->count || !is_saved(path))
        return path;
    return arena_copy(&j->submit->request->arena, shoal_view_of(path, strlen(path) - sizeof(SAVED)));
}

static enum shoal_err choose_files(struct submit_job *j, struct shoal_msg *msg)
{
    bool all = wish(j, "kernel")[0] != '\0';
    size_t package = find_path(j, PACKAGE_FOLDER "model.json");

    j->model = j->count;
    j->chosen = calloc(j->count + 1, sizeof(*j->chosen));
    if (j->chosen == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "out of memory; try again later");
    if (!all && package < j->count && wish(j, "weight")[0] == '\0') {
        j->strip = strlen(PACKAGE_FOLDER);
        for (size_t i = 0; i < j->count; i++)
            j->chosen[i] = strncmp(j->files[i].path, PACKAGE_FOLDER, j->strip) == 0;
        return SHOAL_OK;
    }
    if (wish(j, "weight")[0] != '\0') {
        j->model = find_named(j, wish(j, "weight"));
        if (j->model == j->count && !all)
            return shoal_fail(msg, SHOAL_ERR_INVALID, "weight: the job %s has left no file \"%.200s\"", j->id,
                              wish(j, "weight"));
    } else if (!all) {
        enum shoal_err err = find_model(j, msg);

        if (err != SHOAL_OK)
            return err;
    }
    for (size_t i = 0; i < j->count; i++)
        j->chosen[i] = (all && strncmp(j->files[i].path, "log/", 4) != 0) || is_of_model(j, i);
    return SHOAL_OK;
}

/* ---- the submitted files, in a thread ---- */

struct looking {
    struct submit_job *job;
    const char *name; /* of the main file */
    char found[PACKAGE_PATH_BYTES_MAX];
    unsigned depth;
};

static unsigned depth_of(const char *path)
{
    unsigned depth = 0;

    for (; *path != '\0'; path++)
        depth += *path == '/';
    return depth;
}

static bool is_or_ends(const char *path, const char *name)
{
    size_t len = strlen(path), tail = strlen(name);

    return len >= tail && strcmp(path + len - tail, name) == 0 && (len == tail || path[len - tail - 1] == '/');
}

/* The shallowest one. */
static enum shoal_err look_at(void *arg, const char *path, bool is_dir, struct shoal_bundle_place place)
{
    struct looking *l = arg;

    (void)place;
    if (!is_dir && is_or_ends(path, l->name) && strlen(path) < sizeof(l->found) &&
        (l->found[0] == '\0' || depth_of(path) < l->depth)) {
        l->depth = depth_of(path);
        memcpy(l->found, path, strlen(path) + 1);
    }
    return SHOAL_OK;
}

static enum shoal_err find_submitted(struct submit_job *j, const char *name, char found[PACKAGE_PATH_BYTES_MAX])
{
    struct looking l = { .job = j, .name = name };
    enum shoal_err err = SHOAL_OK;

    while (l.name[0] == '.' && l.name[1] == '/')
        l.name += 2;
    if (j->bundle_fd >= 0 && l.name[0] != '\0')
        err = shoal_bundle_each(j->bundle_fd, look_at, &l, &j->msg);
    memcpy(found, l.found, sizeof(l.found));
    return err;
}

/* The folder in which the submitted files begin: that of the main file. `main`: its path from there; "": it is not there. */
static enum shoal_err find_root(struct submit_job *j, const char **main)
{
    char found[PACKAGE_PATH_BYTES_MAX] = "";
    const char *named = j->said.options.user_cmd ? "" : j->said.options.main;
    enum shoal_err err = find_submitted(j, named, found);

    if (err == SHOAL_OK && found[0] == '\0')
        err = find_submitted(j, base_of(named), found);
    *main = arena_text(&j->submit->request->arena, base_of(found));
    *(found[0] == '\0' ? found : (char *)found + (strlen(found) - strlen(base_of(found)))) = '\0';
    j->root = arena_text(&j->submit->request->arena, found);
    if (err == SHOAL_OK && (*main == NULL || j->root == NULL))
        err = shoal_fail(&j->msg, SHOAL_ERR_FULL, "out of memory; try again later");
    return err;
}

/* Of the submitted files, else of the result's. */
static enum shoal_err find_kernel(struct submit_job *j)
{
    char found[PACKAGE_PATH_BYTES_MAX];
    const char *named = wish(j, "kernel");
    enum shoal_err err = find_submitted(j, named, found);
    size_t root = strlen(j->root);
    size_t of_result = j->count;

    if (err != SHOAL_OK || named[0] == '\0')
        return err;
    if (found[0] != '\0' && strncmp(found, j->root, root) == 0) {
        memcpy(j->kernel, found + root, strlen(found + root) + 1);
        return SHOAL_OK;
    }
    of_result = find_named(j, named);
    if (of_result == j->count || strlen(j->files[of_result].path) >= sizeof(j->kernel))
        return shoal_fail(&j->msg, SHOAL_ERR_INVALID, "Kernel file %.200s does not exist.", named);
    memcpy(j->kernel, j->files[of_result].path, strlen(j->files[of_result].path) + 1);
    return SHOAL_OK;
}

/* The next file of the package: what would be too much is not begun. */
static enum shoal_err begin_file(struct submit_job *j, const char *path, uint64_t bytes, struct shoal_msg *msg)
{
    uint64_t before = j->submit->upload.bytes + j->out.len;

    if (before > SHOAL_PACKAGE_BYTES_MAX || bytes > SHOAL_PACKAGE_BYTES_MAX - before)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG,
                          "the package is larger than the 2 GiB that one may have; leave out what the model does not need");
    if (put_name(&j->out, path, bytes) != SHOAL_OK)
        return shoal_fail(msg, SHOAL_ERR_FULL, "out of memory; try again later");
    return SHOAL_OK;
}

static enum shoal_err flush(struct submit_job *j)
{
    size_t at = 0;

    while (at < j->out.len) {
        ssize_t put = pwrite(j->submit->upload.fd, j->out.bytes + at, j->out.len - at, (off_t)j->submit->upload.bytes);

        if (put <= 0)
            return shoal_fail(&j->msg, SHOAL_ERR_STORAGE,
                              "the package cannot be stored on this node (%s); free some space or use another node",
                              strerror(errno));
        at += (size_t)put;
        j->submit->upload.bytes += (uint64_t)put;
    }
    j->out.len = 0;
    return SHOAL_OK;
}

static enum shoal_err copy_content(struct submit_job *j, struct shoal_bundle_place place)
{
    enum shoal_err err = SHOAL_OK;

    for (uint64_t done = 0; done < place.bytes && err == SHOAL_OK;) {
        size_t want = place.bytes - done < PIECE_BYTES ? (size_t)(place.bytes - done) : PIECE_BYTES;

        if (shoal_buf_reserve(&j->out, want) != SHOAL_OK)
            return shoal_fail(&j->msg, SHOAL_ERR_FULL, "out of memory; try again later");
        if (pread(j->bundle_fd, j->out.bytes + j->out.len, want, (off_t)(place.offset + done)) != (ssize_t)want)
            return shoal_fail(&j->msg, SHOAL_ERR_STORAGE, "what was submitted cannot be read back: %s", strerror(errno));
        j->out.len += want;
        done += want;
        err = flush(j);
    }
    return err;
}

static enum shoal_err copy_entry(void *arg, const char *path, bool is_dir, struct shoal_bundle_place place)
{
    struct submit_job *j = arg;
    size_t root = strlen(j->root);
    size_t same;
    enum shoal_err err;

    if (is_dir || strncmp(path, j->root, root) != 0)
        return SHOAL_OK;
    path += root;
    same = find_path(j, path);
    if ((same < j->count && j->chosen[same]) || (strcmp(path, "model.json") == 0 && !j->own_model_json))
        return SHOAL_OK; /* J2 */
    err = begin_file(j, path, place.bytes, &j->msg);
    if (err == SHOAL_OK)
        err = copy_content(j, place);
    return err == SHOAL_OK ? put_padding(&j->out, place.bytes) : err;
}

/* ---- model.json ---- */

struct pairs {
    struct json_writer *w;
    const char *key;
};

static void put_pair(void *arg, const char *key, const struct json_value *value)
{
    const struct pairs *pairs = arg;
    char number[32];
    const char *text = json_input_scalar(value, number, sizeof(number));

    json_object_begin(pairs->w, NULL);
    json_text(pairs->w, pairs->key, key);
    json_text(pairs->w, "value", text == NULL ? "" : text);
    json_end(pairs->w);
}

static void put_attribute(struct json_writer *w, const char *key, const char *value)
{
    if (value == NULL || value[0] == '\0')
        return;
    json_object_begin(w, NULL);
    json_text(w, "key", key);
    json_text(w, "value", value);
    json_end(w);
}

/* The script's words, as JSON. */
static char *argv_text(const struct submit_job *j)
{
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    json_array_begin(&w, NULL);
    for (size_t i = 0; i < j->said.options.script_argv.count; i++)
        json_text(&w, NULL, j->said.options.script_argv.items[i]);
    json_end(&w);
    if (w.failed || shoal_buf_append(&buf, "", 1) != SHOAL_OK)
        shoal_buf_deinit(&buf);
    return (char *)buf.bytes;
}

static enum shoal_err put_model_json(struct submit_job *j, const char *main)
{
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);
    struct pairs attributes = { &w, "key" }, environments = { &w, "name" };
    const char *made = strchr(wish(j, "class"), ':');
    const char *weight = weight_path(j);
    char *words = argv_text(j);
    enum shoal_err err;

    json_object_begin(&w, NULL);
    json_text(&w, "name", j->submit->name);
    json_text(&w, "tag", wish(j, "tag"));
    json_text(&w, "runtime", wish(j, "runtime")[0] == '\0' ? "dlipy3" : wish(j, "runtime"));
    json_text(&w, "kernel_path", j->kernel);
    json_text(&w, "weight_path", weight == NULL ? "" : weight);
    json_text(&w, "schema_version", "1");
    json_array_begin(&w, "attributes");
    json_input_each(json_input_get(j->wishes, "attributes"), put_pair, &attributes);
    if (made != NULL) {
        put_attribute(&w, "model_file", arena_copy(&j->submit->request->arena,
                                                   shoal_view_of(wish(j, "class"), (size_t)(made - wish(j, "class")))));
        put_attribute(&w, "model_class", made + 1);
    } else if (j->elastic && j->kernel[0] == '\0') { /* J3 */
        put_attribute(&w, "model_script", main);
        put_attribute(&w, "model_argv", words);
    }
    put_attribute(&w, "job", j->id);
    json_end(&w);
    json_array_begin(&w, "mk_environments");
    json_input_each(json_input_get(j->wishes, "environments"), put_pair, &environments);
    json_end(&w);
    json_end(&w);
    err = w.failed || words == NULL || weight == NULL ? SHOAL_ERR_FULL : put_text_file(&j->out, "model.json", shoal_buf_view(&buf));
    free(words);
    shoal_buf_deinit(&buf);
    return err;
}

static enum shoal_err put_readme(struct submit_job *j)
{
    char found[PACKAGE_PATH_BYTES_MAX];
    char path[PACKAGE_PATH_BYTES_MAX];
    char text[200];
    enum shoal_err err;

    (void)snprintf(path, sizeof(path), "%sREADME.md", j->root);
    err = find_submitted(j, path, found);
    if (err != SHOAL_OK || strcmp(found, path) == 0)
        return err;
    (void)snprintf(text, sizeof(text), "The model of job %s.\n", j->id);
    return put_text_file(&j->out, "README.md", shoal_view_text(text));
}

/* The submitted package's own description stands unless the caller says something of it. */
static enum shoal_err find_own_json(struct submit_job *j)
{
    char found[PACKAGE_PATH_BYTES_MAX];
    char path[PACKAGE_PATH_BYTES_MAX];
    enum shoal_err err;

    if (j->wishes != NULL)
        return SHOAL_OK;
    (void)snprintf(path, sizeof(path), "%smodel.json", j->root);
    err = find_submitted(j, path, found);
    j->own_model_json = err == SHOAL_OK && strcmp(found, path) == 0;
    return err;
}

static enum shoal_err begin_tar(struct submit_job *j)
{
    const char *main = "";
    enum shoal_err err;

    j->submit->upload.fd = open(j->submit->request->http->spool_dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (j->submit->upload.fd < 0)
        return shoal_fail(&j->msg, SHOAL_ERR_STORAGE, "the package cannot be stored on this node: %s", strerror(errno));
    if (j->strip > 0)
        return SHOAL_OK; /* the job has made it */
    err = find_root(j, &main);
    if (err == SHOAL_OK)
        err = find_kernel(j);
    if (err == SHOAL_OK)
        err = find_own_json(j);
    if (err == SHOAL_OK && !j->own_model_json)
        err = put_model_json(j, main);
    if (err == SHOAL_OK)
        err = put_readme(j);
    if (err == SHOAL_OK && j->bundle_fd >= 0)
        err = shoal_bundle_each(j->bundle_fd, copy_entry, j, &j->msg);
    return err == SHOAL_OK ? flush(j) : err;
}

static void tar_run(uv_work_t *work)
{
    struct submit_job *j = work->data;

    j->msg.text[0] = '\0';
    j->err = begin_tar(j);
    if (j->err != SHOAL_OK && j->msg.text[0] == '\0')
        (void)shoal_fail(&j->msg, j->err, "out of memory; try again later");
}

/* ---- the result's files ---- */

static void next_piece(struct submit_job *j);

static void write_out(struct submit_job *j);

static void on_out_written(uv_fs_t *fs)
{
    struct submit_job *j = fs->data;
    ssize_t put = fs->result;
    struct shoal_msg msg;

    uv_fs_req_cleanup(fs);
    if (put <= 0) {
        job_failed(j,
                   shoal_fail(&msg, SHOAL_ERR_STORAGE,
                              "the package cannot be stored on this node (%s); free some space or use another node",
                              uv_strerror((int)put)),
                   &msg);
        return;
    }
    j->written += (size_t)put;
    j->submit->upload.bytes += (uint64_t)put;
    if (j->written < j->out.len)
        write_out(j);
    else
        next_piece(j);
}

static void write_out(struct submit_job *j)
{
    uv_buf_t buf = uv_buf_init((char *)j->out.bytes + j->written, (unsigned)(j->out.len - j->written));
    struct shoal_msg msg;

    j->fs.data = j;
    if (uv_fs_write(j->submit->request->http->loop, &j->fs, j->submit->upload.fd, &buf, 1,
                    (int64_t)j->submit->upload.bytes, on_out_written) != 0)
        job_failed(j, shoal_fail(&msg, SHOAL_ERR_STORAGE, "the package cannot be stored on this node"), &msg);
}

static void on_result_piece(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view bytes)
{
    struct submit_job *j = arg;
    uint64_t all = j->files[j->at].bytes;
    struct shoal_msg why = *msg;

    if (err == SHOAL_OK && (bytes.len == 0 || bytes.len > all - j->offset))
        err = shoal_fail(&why, SHOAL_ERR_STORAGE, "%.200s of the job %s has changed meanwhile; try again",
                         j->files[j->at].path, j->id);
    if (err == SHOAL_OK && shoal_buf_append(&j->out, bytes.bytes, bytes.len) != SHOAL_OK)
        err = shoal_fail(&why, SHOAL_ERR_FULL, "out of memory; try again later");
    if (err != SHOAL_OK) {
        job_failed(j, err, &why);
        return;
    }
    j->offset += bytes.len;
    write_out(j);
}

/* Ends the file at hand, begins the next one, and reads of it. */
static void next_piece(struct submit_job *j)
{
    static const char zeros[2 * BLOCK];
    const struct shoal_backend *backend = &j->submit->request->http->backend;
    enum shoal_err err = SHOAL_OK;
    struct shoal_msg msg = { "out of memory; try again later" };

    j->out.len = 0;
    j->written = 0;
    while (err == SHOAL_OK && j->at < j->count && (!j->chosen[j->at] || j->offset == j->files[j->at].bytes)) {
        if (j->chosen[j->at] && j->files[j->at].bytes > 0)
            err = put_padding(&j->out, j->files[j->at].bytes);
        else if (j->chosen[j->at])
            err = begin_file(j, j->files[j->at].path + j->strip, 0, &msg);
        j->offset = 0;
        j->at++;
    }
    if (err == SHOAL_OK && j->at < j->count && j->offset == 0)
        err = begin_file(j, j->files[j->at].path + j->strip, j->files[j->at].bytes, &msg);
    if (err == SHOAL_OK && j->at == j->count && !j->last)
        err = shoal_buf_append(&j->out, zeros, sizeof(zeros));
    if (err != SHOAL_OK) {
        job_failed(j, err, &msg);
    } else if (j->at < j->count) {
        uint64_t left = j->files[j->at].bytes - j->offset;

        backend->result_read(backend->ctx, j->result, j->at, j->offset,
                             left < PIECE_BYTES ? (size_t)left : PIECE_BYTES, on_result_piece, j);
    } else if (!j->last) {
        j->last = true;
        write_out(j);
    } else {
        submit_go_on(j->submit);
        http_request_release(j->submit->request);
    }
}

static void tar_ended(uv_work_t *work, int status)
{
    struct submit_job *j = work->data;

    if (status != 0)
        j->err = shoal_fail(&j->msg, SHOAL_ERR_FULL, "the work was cancelled; try again");
    if (j->err != SHOAL_OK)
        job_failed(j, j->err, &j->msg);
    else
        next_piece(j);
}

/* ---- what there is of the job ---- */

static void on_result(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_result *result,
                      const struct shoal_result_list *list)
{
    struct submit_job *j = arg;
    struct shoal_msg why = *msg;

    if (err == SHOAL_OK) {
        j->result = result;
        j->files = list->files;
        j->count = list->count;
        err = choose_files(j, &why);
    }
    if (err == SHOAL_OK && msg->text[0] != '\0') /* the list is not whole: another model may be the right one */
        err = shoal_fail(&why, SHOAL_ERR_UNREACHABLE, "%s; try again", msg->text);
    j->work.data = j;
    if (err == SHOAL_OK && uv_queue_work(j->submit->request->http->loop, &j->work, tar_run, tar_ended) != 0)
        err = shoal_fail(&why, SHOAL_ERR_FULL, "no thread is free; try again later");
    if (err != SHOAL_OK)
        job_failed(j, err, &why);
}

static void on_bundle_open(void *arg, enum shoal_err err, const struct shoal_msg *msg, int fd)
{
    struct submit_job *j = arg;
    const struct shoal_backend *backend = &j->submit->request->http->backend;

    j->bundle_fd = fd;
    if (err != SHOAL_OK)
        job_failed(j, err, msg);
    else
        backend->result_open(backend->ctx, &j->submit->request->user, j->id, on_result, j);
}

/* Of the job's own words: which file was its main one, and what it was called with. */
static enum shoal_err read_said(struct submit_job *j, struct shoal_msg *msg)
{
    struct http_request *request = j->submit->request;
    struct args_input input = { .args = j->args, .caller = &request->user };

    input.frameworks = request->http->backend.frameworks(request->http->backend.ctx, &input.framework_count);
    return args_parse(&request->arena, &input, &j->said, msg);
}

static void on_job(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_job_info *job)
{
    struct submit_job *j = arg;
    struct http_request *request = j->submit->request;
    const struct shoal_backend *backend = &request->http->backend;
    struct shoal_msg why = *msg;
    char id[SHOAL_JOB_ID_TEXT_BYTES];

    if (err == SHOAL_OK) {
        shoal_job_id_text(job->id, id);
        j->id = arena_text(&request->arena, id);
        j->args = arena_text(&request->arena, job->args);
        j->elastic = job->elastic;
        if (j->id == NULL || j->args == NULL)
            err = shoal_fail(&why, SHOAL_ERR_FULL, "out of memory; try again later");
        else if (!job->ended) /* J1 */
            err = shoal_fail(&why, SHOAL_ERR_EXISTS, "the job %s has not ended: its model is not there yet", id);
        else
            err = read_said(j, &why);
    }
    if (err != SHOAL_OK)
        job_failed(j, err, &why);
    else
        backend->bundle_open(backend->ctx, &request->user, j->id, on_bundle_open, j);
}

static enum shoal_err read_wishes(struct submit_job *j, struct shoal_msg *msg)
{
    static const char *const texts[] = { "name", "kernel", "weight", "runtime", "tag", "class" };
    static const char *const objects[] = { "attributes", "environments" };
    struct submit *s = j->submit;
    enum shoal_err err;

    if (s->data.len == 0)
        return SHOAL_OK;
    err = json_input_parse(shoal_buf_view(&s->data), &j->body, msg);
    if (err != SHOAL_OK)
        return err;
    j->wishes = json_input_root(j->body);
    if (!json_input_is_object(j->wishes))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "the body must be a JSON object");
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (json_input_get(j->wishes, texts[i]) != NULL && json_input_text(j->wishes, texts[i]) == NULL)
            return shoal_fail(msg, SHOAL_ERR_INVALID, "%s: not a text", texts[i]);
    for (size_t i = 0; i < sizeof(objects) / sizeof(objects[0]); i++)
        if (json_input_get(j->wishes, objects[i]) != NULL &&
            !json_input_is_object(json_input_get(j->wishes, objects[i])))
            return shoal_fail(msg, SHOAL_ERR_INVALID, "%s: not an object of texts", objects[i]);
    if (wish(j, "class")[0] != '\0' && strchr(wish(j, "class"), ':') == NULL)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "class: \"%.100s\" is not FILE:CLASS", wish(j, "class"));
    return SHOAL_OK;
}

/* WMLA's address names the model in the body, and wants a kernel. */
static enum shoal_err read_name(struct submit_job *j, struct shoal_msg *msg)
{
    struct submit *s = j->submit;

    s->name = s->request->params[0];
    if (!submit_is_exec(s->request))
        return SHOAL_OK;
    s->name = arena_text(&s->request->arena, wish(j, "name"));
    if (wish(j, "name")[0] == '\0' || wish(j, "runtime")[0] == '\0' || wish(j, "kernel")[0] == '\0')
        return shoal_fail(msg, SHOAL_ERR_INVALID, "deploy: name, runtime and kernel must be said");
    return s->name != NULL ? SHOAL_OK : shoal_fail(msg, SHOAL_ERR_FULL, "out of memory; try again later");
}

void submit_job_begin(struct submit *s, const char *id)
{
    const struct shoal_backend *backend = &s->request->http->backend;
    struct submit_job *j = calloc(1, sizeof(*j));
    struct shoal_msg msg = { "out of memory; try again later" };
    enum shoal_err err = SHOAL_ERR_FULL;

    if (j != NULL) {
        j->submit = s;
        j->bundle_fd = -1;
        s->job = j;
        err = read_wishes(j, &msg);
    }
    if (err == SHOAL_OK)
        err = read_name(j, &msg);
    if (err != SHOAL_OK) {
        submit_refuse(s, err, &msg);
        return;
    }
    s->data.len = 0; /* it is no `data` of a submit */
    s->has_upload = true;
    http_request_hold(s->request);
    backend->get(backend->ctx, &s->request->user, id, true, on_job, j);
}
