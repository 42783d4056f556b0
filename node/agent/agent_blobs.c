/* Blobs between hosts: fetched by hash from the job's guardians, kept on two hosts before they are promised, made into
 * files for workers, and listed in manifests.
 *
 * A fetch: the manifest chunk first, then every chunk it lists that is not here, one after the other, from the first
 * source that has it; then the job holds the blob. One fetch per (job, hash) at a time; who asks meanwhile waits with
 * the others. */
#include "agent.h"

#include "agent_files.h"
#include "agent_ledger.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/below.h"
#include "shoal/disk.h"
#include "shoal/hash.h"

#include "shoal/banned.h"

#define FETCHES_MAX 256
#define FETCH_WAITERS_MAX 16
#define CALL_TIMEOUT_NS (10 * SHOAL_S)
#define MANIFEST_FILES_MAX 4096
#define LEDGER_WAIT_NS (20 * SHOAL_S)
#define MANIFEST_BYTES_MAX (4 * SHOAL_MIB)

/* ---- fetch ---- */

typedef void fetched_fn(void *arg, enum shoal_err err, const char *text);

struct fetch {
    struct agent *agent;
    struct shoal_job_id job;
    struct shoal_hash hash;
    struct shoal_node_id sources[8];
    unsigned source_count;
    unsigned source; /* tried now */
    struct shoal_buf manifest;
    struct shoal_manifest parsed;
    uint32_t next;            /* chunk */
    struct shoal_hash wanted; /* the chunk under way */
    struct {
        fetched_fn *done;
        void *arg;
    } waiters[FETCH_WAITERS_MAX];
    unsigned waiter_count;
    struct fetch *next_fetch;
};

static struct fetch *fetches; /* of this process's one agent; owned by its loop */

static void fetch_step(struct fetch *fetch);

static void fetch_end(struct fetch *fetch, enum shoal_err err, const char *text)
{
    struct fetch **at = &fetches;

    while (*at != fetch)
        at = &(*at)->next_fetch;
    *at = fetch->next_fetch;
    for (unsigned i = 0; i < fetch->waiter_count; i++)
        fetch->waiters[i].done(fetch->waiters[i].arg, err, text);
    shoal_buf_deinit(&fetch->manifest);
    free(fetch);
}

static void on_held(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    fetch_end(arg, err, err == SHOAL_OK ? "" : msg->text);
}

static void on_chunk_put(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_hash hash,
                         uint64_t bytes)
{
    struct fetch *fetch = arg;

    (void)hash;
    (void)bytes;
    if (err != SHOAL_OK) {
        fetch_end(fetch, err, msg->text);
        return;
    }
    fetch_step(fetch);
}

static void ask_chunk(struct fetch *fetch);

static void on_chunk_answer(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct fetch *fetch = arg;

    (void)msg;
    if (err == SHOAL_OK)
        err = shoal_blobs_put_chunk(fetch->agent->blobs, fetch->wanted, answer, on_chunk_put, fetch);
    if (err != SHOAL_OK) { /* the next source, each once */
        fetch->source++;
        ask_chunk(fetch);
    }
}

static void ask_chunk(struct fetch *fetch)
{
    while (fetch->source < fetch->source_count &&
           (shoal_node_id_equal(fetch->sources[fetch->source], fetch->agent->identity.node) ||
            !shoal_link_is_up(fetch->agent->link, fetch->sources[fetch->source])))
        fetch->source++;
    if (fetch->source >= fetch->source_count) {
        char text[200];
        char hex[SHOAL_HASH_TEXT_BYTES];

        shoal_hex_text(fetch->hash.bytes, 8, hex);
        (void)snprintf(text, sizeof(text), "none of the %u hosts that could hold blob %s... gave it",
                       fetch->source_count, hex);
        fetch_end(fetch, SHOAL_ERR_UNREACHABLE, text);
        return;
    }
    peer_ask(fetch->agent->calls, fetch->sources[fetch->source], PEER_GET_CHUNK, shoal_view_of(fetch->wanted.bytes, 32),
             CALL_TIMEOUT_NS, on_chunk_answer, fetch);
}

static void want_chunk(struct fetch *fetch, struct shoal_hash hash)
{
    fetch->wanted = hash;
    fetch->source = 0;
    ask_chunk(fetch);
}

static void on_manifest_bytes(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view view)
{
    struct fetch *fetch = arg;

    fetch->manifest.len = 0;
    if (err == SHOAL_OK && shoal_buf_append(&fetch->manifest, view.bytes, view.len) == SHOAL_OK &&
        shoal_manifest_decode(shoal_buf_view(&fetch->manifest), &fetch->parsed) == SHOAL_OK) {
        fetch_step(fetch);
        return;
    }
    fetch_end(fetch, SHOAL_ERR_MALFORMED, err == SHOAL_OK ? "that blob is not a manifest" : msg->text);
}

static void on_late_bundle(void *arg, enum shoal_err err, const char *text)
{
    if (err != SHOAL_OK)
        fetch_end(arg, err, text);
    else
        fetch_step(arg);
}

static void fetch_step(struct fetch *fetch)
{
    struct shoal_blobs *blobs = fetch->agent->blobs;
    enum shoal_err err;

    if (!shoal_blobs_has_chunk(blobs, fetch->hash)) {
        if (agent_bundle_now(fetch->hash, on_late_bundle, fetch))
            return;
        want_chunk(fetch, fetch->hash);
        return;
    }
    if (fetch->manifest.len == 0) {
        err = shoal_blobs_get_chunk(blobs, fetch->hash, on_manifest_bytes, fetch);
        if (err != SHOAL_OK)
            fetch_end(fetch, err, "the blob store is busy");
        return;
    }
    for (; fetch->next < fetch->parsed.count; fetch->next++) {
        struct shoal_hash chunk = shoal_manifest_chunk(&fetch->parsed, fetch->next);

        if (!shoal_blobs_has_chunk(blobs, chunk)) {
            want_chunk(fetch, chunk);
            return;
        }
    }
    err = shoal_blobs_hold(blobs, fetch->job, fetch->hash, on_held, fetch);
    if (err != SHOAL_OK)
        fetch_end(fetch, err, "the blob store is busy");
}

static void fetch_start(struct agent *agent, struct shoal_job_id job, struct shoal_hash hash,
                        const struct shoal_node_id *sources, size_t source_count, fetched_fn *done, void *arg)
{
    struct fetch *fetch = fetches;
    bool fresh = false;

    if (shoal_blobs_holds(agent->blobs, job, hash)) {
        done(arg, SHOAL_OK, "");
        return;
    }
    while (fetch != NULL && !(shoal_job_id_equal(fetch->job, job) && shoal_hash_equal(fetch->hash, hash)))
        fetch = fetch->next_fetch;
    if (fetch == NULL) {
        fetch = calloc(1, sizeof(*fetch));
        SHOAL_ASSERT(fetch != NULL);
        fetch->agent = agent;
        fetch->job = job;
        fetch->hash = hash;
        for (size_t i = 0; i < source_count && i < 8; i++)
            fetch->sources[fetch->source_count++] = sources[i];
        fetch->next_fetch = fetches;
        fetches = fetch;
        fresh = true;
    }
    if (fetch->waiter_count == FETCH_WAITERS_MAX) {
        done(arg, SHOAL_ERR_FULL, "too many wait for this blob");
        return;
    }
    fetch->waiters[fetch->waiter_count].done = done;
    fetch->waiters[fetch->waiter_count++].arg = arg;
    if (fresh)
        fetch_step(fetch);
}

void agent_fetch_blob(struct agent *agent, struct shoal_job_id job, struct shoal_hash hash,
                      const struct shoal_node_id *sources, size_t source_count, agent_fetched_fn *done, void *arg)
{
    fetch_start(agent, job, hash, sources, source_count, done, arg);
}

struct fetch_event {
    struct agent *agent;
    struct shoal_hash hash;
};

static void on_fetched(void *arg, enum shoal_err err, const char *text)
{
    struct fetch_event *e = arg;
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_BLOB };

    event.u.blob.hash = e->hash;
    event.u.blob.ok = err == SHOAL_OK;
    (void)snprintf(event.u.blob.text, sizeof(event.u.blob.text), "%.199s", text);
    agent_host_event(e->agent, &event);
    free(e);
}

void agent_fetch(struct agent *agent, struct shoal_job_id job, struct shoal_hash hash,
                 const struct shoal_node_id *sources, unsigned source_count)
{
    struct fetch_event *e = malloc(sizeof(*e));
    struct agent_job *here = agent_job_need(agent, job);

    SHOAL_ASSERT(e != NULL);
    if (here != NULL)
        agent_job_guarded(here, sources, source_count);
    *e = (struct fetch_event){ .agent = agent, .hash = hash };
    fetch_start(agent, job, hash, sources, source_count, on_fetched, e);
}

/* ---- a blob as a file, a blob in memory ---- */

struct materialising {
    struct agent_file_job file;
    struct agent *agent;
    struct shoal_job_id job;
    struct shoal_hash hash;
    char path[AGENT_PATH_BYTES];
    agent_path_fn *done;
    agent_bytes_fn *bytes_done;
    size_t max;
    void *arg;
    struct shoal_buf manifest;
    struct shoal_manifest parsed;
    uint32_t next;
    uint64_t number; /* of the temporary file: several may make the same blob at one time */
    /* The file thread's, while a job of this is there. */
    int fd;
    struct shoal_buf piece;
    bool whole; /* the file is there, with the content that the manifest names */
    enum shoal_err err;
    struct shoal_msg msg;
};

static void materialised(struct materialising *m, enum shoal_err err, const char *text)
{
    if (m->fd >= 0)
        (void)close(m->fd);
    if (m->done != NULL)
        m->done(m->arg, err, err == SHOAL_OK ? m->path : text);
    else if (err != SHOAL_OK)
        m->bytes_done(m->arg, err, text, (struct shoal_view){ 0 });
    shoal_buf_deinit(&m->manifest);
    shoal_buf_deinit(&m->piece);
    free(m);
}

static void part_path(const struct materialising *m, char part[AGENT_PATH_BYTES + 32])
{
    (void)snprintf(part, AGENT_PATH_BYTES + 32, "%s.%llu.part", m->path, (unsigned long long)m->number);
}

static bool is_materialised(const struct materialising *m)
{
    uint8_t *chunk = malloc(SHOAL_CHUNK_BYTES_MAX);
    int fd = shoal_open_regular(m->path, O_RDONLY);
    struct stat facts;
    bool whole = chunk != NULL && fd >= 0 && fstat(fd, &facts) == 0 && (uint64_t)facts.st_size == m->parsed.bytes;

    for (uint32_t i = 0; whole && i < m->parsed.count; i++) {
        ssize_t len = pread(fd, chunk, SHOAL_CHUNK_BYTES_MAX, (off_t)i * (off_t)SHOAL_CHUNK_BYTES_MAX);

        whole = len > 0 &&
                shoal_hash_equal(shoal_hash_of(shoal_view_of(chunk, (size_t)len)), shoal_manifest_chunk(&m->parsed, i));
    }
    if (fd >= 0)
        (void)close(fd);
    free(chunk);
    return whole;
}

/* In the thread: is the file there already, as a file that an earlier life of this host left? Its content says. */
static void file_begin(struct agent_file_job *file)
{
    struct materialising *m = (struct materialising *)(void *)file;
    char part[AGENT_PATH_BYTES + 32];
    char *slash = strrchr(m->path, '/');

    m->whole = is_materialised(m);
    if (m->whole)
        return;
    *slash = '\0';
    m->err = shoal_disk_folders(m->path, 0700, &m->msg);
    *slash = '/';
    if (m->err != SHOAL_OK)
        return;
    part_path(m, part);
    m->fd = shoal_open_regular(part, O_WRONLY | O_CREAT | O_TRUNC);
    if (m->fd < 0)
        m->err = shoal_disk_fail(&m->msg, "create", part);
    else if (m->parsed.count == 0)
        m->err = shoal_disk_commit(AT_FDCWD, m->fd, part, m->path, &m->msg);
}

/* In the thread: one chunk; with the last one the file gets its name. */
static void file_append(struct agent_file_job *file)
{
    struct materialising *m = (struct materialising *)(void *)file;
    char part[AGENT_PATH_BYTES + 32];

    part_path(m, part);
    if (!shoal_disk_write(m->fd, shoal_buf_view(&m->piece)))
        m->err = shoal_disk_fail(&m->msg, "write", part);
    else if (m->next + 1 == m->parsed.count)
        m->err = shoal_disk_commit(AT_FDCWD, m->fd, part, m->path, &m->msg);
    if (m->err != SHOAL_OK)
        (void)unlink(part);
}

static void write_next(struct materialising *m);

static void file_ended(struct agent_file_job *file)
{
    struct materialising *m = (struct materialising *)(void *)file;

    if (m->err != SHOAL_OK)
        materialised(m, m->err, m->msg.text);
    else if (m->whole || m->next == m->parsed.count)
        materialised(m, SHOAL_OK, "");
    else
        write_next(m);
}

static void chunk_ended(struct agent_file_job *file)
{
    struct materialising *m = (struct materialising *)(void *)file;

    m->next++;
    file_ended(file);
}

static void file_submit(struct materialising *m, void (*run)(struct agent_file_job *job),
                        void (*done)(struct agent_file_job *job))
{
    m->file.bytes = m->piece.len;
    m->file.run = run;
    m->file.done = done;
    if (agent_file_submit(m->agent, &m->file) != SHOAL_OK)
        materialised(m, SHOAL_ERR_FULL, "too many files wait for this host's disk");
}

static void on_chunk_read(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view view)
{
    struct materialising *m = arg;

    m->piece.len = 0;
    if (err != SHOAL_OK)
        materialised(m, err, msg->text);
    else if (shoal_buf_append(&m->piece, view.bytes, view.len) != SHOAL_OK)
        materialised(m, SHOAL_ERR_FULL, "no memory for a chunk of the blob");
    else
        file_submit(m, file_append, chunk_ended);
}

static void write_next(struct materialising *m)
{
    enum shoal_err err =
        shoal_blobs_get_chunk(m->agent->blobs, shoal_manifest_chunk(&m->parsed, m->next), on_chunk_read, m);

    if (err != SHOAL_OK)
        materialised(m, err, "a chunk of the blob is not here");
}

static void on_manifest_read(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view view)
{
    struct materialising *m = arg;

    if (err != SHOAL_OK || shoal_buf_append(&m->manifest, view.bytes, view.len) != SHOAL_OK ||
        shoal_manifest_decode(shoal_buf_view(&m->manifest), &m->parsed) != SHOAL_OK)
        materialised(m, SHOAL_ERR_MALFORMED, err != SHOAL_OK ? msg->text : "that blob is not a manifest");
    else
        file_submit(m, file_begin, file_ended);
}

static void on_whole(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view view)
{
    struct materialising *m = arg;

    if (err == SHOAL_OK)
        m->bytes_done(m->arg, SHOAL_OK, "", view);
    materialised(m, err, err == SHOAL_OK ? "" : msg->text);
}

static void on_fetched_for_file(void *arg, enum shoal_err err, const char *text)
{
    struct materialising *m = arg;

    if (err == SHOAL_OK && m->done == NULL)
        err = shoal_blobs_get(m->agent->blobs, m->hash, m->max, on_whole, m);
    else if (err == SHOAL_OK)
        err = shoal_blobs_get_chunk(m->agent->blobs, m->hash, on_manifest_read, m);
    if (err != SHOAL_OK)
        materialised(m, err, text);
}

static void materialise(struct agent *agent, struct materialising *m, struct shoal_job_id job, struct shoal_hash hash)
{
    struct shoal_node_id nodes[8];
    size_t guardians;
    size_t count = agent_job_nodes(agent, job, nodes, 8, &guardians);
    static uint64_t numbers;

    m->number = ++numbers;
    m->agent = agent;
    m->job = job;
    m->hash = hash;
    m->fd = -1;
    fetch_start(agent, job, hash, nodes, count < 8 ? count : 8, on_fetched_for_file, m);
}

void agent_materialise(struct agent *agent, struct shoal_job_id job, struct shoal_hash hash, agent_path_fn *done,
                       void *arg)
{
    struct materialising *m = calloc(1, sizeof(*m));
    char folder[AGENT_PATH_BYTES - 80];
    char hex[SHOAL_HASH_TEXT_BYTES];

    SHOAL_ASSERT(m != NULL);
    m->done = done;
    m->arg = arg;
    agent_job_folder(agent, job, folder, sizeof(folder));
    shoal_hex_text(hash.bytes, sizeof(hash.bytes), hex);
    (void)snprintf(m->path, sizeof(m->path), "%s/%s", folder, hex);
    materialise(agent, m, job, hash);
}

void agent_read_blob(struct agent *agent, struct shoal_job_id job, struct shoal_hash hash, size_t max,
                     agent_bytes_fn *done, void *arg)
{
    struct materialising *m = calloc(1, sizeof(*m));

    SHOAL_ASSERT(m != NULL);
    m->bytes_done = done;
    m->max = max;
    m->arg = arg;
    materialise(agent, m, job, hash);
}

/* ---- a file as a blob, here and on one more host ---- */

struct storing {
    struct agent *agent;
    struct shoal_job_id job;
    struct shoal_blob_writer *writer;
    int fd;
    agent_blob_fn *done;
    void *arg;
    struct shoal_hash hash;
    struct shoal_buf manifest;
    struct shoal_manifest parsed;
    uint32_t next;
    struct shoal_hash sending;
    struct shoal_node_id nodes[8];
    size_t node_count;
    size_t node;
    uint8_t piece[64 * SHOAL_KIB];
};

static void stored(struct storing *s, enum shoal_err err, const char *text)
{
    if (s->fd >= 0)
        (void)close(s->fd);
    shoal_buf_deinit(&s->manifest);
    s->done(s->arg, err, text, s->hash);
    free(s);
}

static void copy_next(struct storing *s);

/* A host that fails is left, the next one gets the blob from its first chunk on. */
static void copy_failed(struct storing *s)
{
    s->node++;
    s->next = 0;
    copy_next(s);
}

static void on_copy_held(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct storing *s = arg;

    (void)msg;
    (void)answer;
    if (err == SHOAL_OK)
        stored(s, SHOAL_OK, "");
    else
        copy_failed(s);
}

static void on_copied(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct storing *s = arg;

    (void)msg;
    (void)answer;
    if (err != SHOAL_OK) {
        copy_failed(s);
        return;
    }
    s->next++;
    copy_next(s);
}

static void on_copy_bytes(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view view)
{
    struct storing *s = arg;
    struct shoal_buf args = { 0 };

    if (err == SHOAL_OK)
        err = shoal_buf_append(&args, s->sending.bytes, 32);
    if (err == SHOAL_OK)
        err = shoal_buf_append(&args, view.bytes, view.len);
    if (err == SHOAL_OK)
        peer_ask(s->agent->calls, s->nodes[s->node], PEER_PUT_CHUNK, shoal_buf_view(&args), CALL_TIMEOUT_NS, on_copied,
                 s);
    else
        stored(s, err, msg == NULL ? "no memory" : msg->text);
    shoal_buf_deinit(&args);
}

static void copy_next(struct storing *s)
{
    uint8_t bytes[10 + 32];
    enum shoal_err err;

    while (s->node < s->node_count && !shoal_link_is_up(s->agent->link, s->nodes[s->node]))
        s->node++;
    if (s->node_count == 0) {
        stored(s, SHOAL_OK, ""); /* 1 of 1 */
        return;
    }
    if (s->node >= s->node_count) {
        stored(s, SHOAL_ERR_UNREACHABLE, "no second host could keep a copy; it is kept on one only");
        return;
    }
    if (s->next <= s->parsed.count) { /* the chunks, then the manifest itself */
        s->sending = s->next < s->parsed.count ? shoal_manifest_chunk(&s->parsed, s->next) : s->hash;
        err = shoal_blobs_get_chunk(s->agent->blobs, s->sending, on_copy_bytes, s);
        if (err != SHOAL_OK)
            stored(s, err, "the blob store is busy");
        return;
    }
    memcpy(bytes, s->job.bytes, 10);
    memcpy(bytes + 10, s->hash.bytes, 32);
    peer_ask(s->agent->calls, s->nodes[s->node], PEER_HOLD, shoal_view_of(bytes, sizeof(bytes)), CALL_TIMEOUT_NS,
             on_copy_held, s);
}

static void on_own_manifest(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view view)
{
    struct storing *s = arg;

    if (err != SHOAL_OK || shoal_buf_append(&s->manifest, view.bytes, view.len) != SHOAL_OK ||
        shoal_manifest_decode(shoal_buf_view(&s->manifest), &s->parsed) != SHOAL_OK) {
        stored(s, SHOAL_ERR_STORAGE, err == SHOAL_OK ? "the blob's manifest does not decode" : msg->text);
        return;
    }
    copy_next(s);
}

static void on_written(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_hash hash,
                       uint64_t bytes)
{
    struct storing *s = arg;
    size_t guardians;
    size_t count;

    (void)bytes;
    s->hash = hash;
    if (err == SHOAL_OK) {
        count = agent_job_nodes(s->agent, s->job, s->nodes, 8, &guardians);
        s->node_count = count < 8 ? count : 8;
        err = shoal_blobs_get_chunk(s->agent->blobs, hash, on_own_manifest, s);
    }
    if (err != SHOAL_OK)
        stored(s, err, msg == NULL ? "the blob store is busy" : msg->text);
}

static void write_pieces(void *arg)
{
    struct storing *s = arg;
    struct shoal_msg msg;

    for (;;) {
        ssize_t n = read(s->fd, s->piece, sizeof(s->piece));
        enum shoal_err err;

        if (n <= 0) {
            struct shoal_blob_writer *writer = s->writer;

            if (n < 0) {
                shoal_blob_writer_abort(writer);
                stored(s, SHOAL_ERR_STORAGE, strerror(errno));
                return;
            }
            s->writer = NULL;
            shoal_blob_writer_finish(writer, on_written, s);
            return;
        }
        err = shoal_blob_writer_append(s->writer, shoal_view_of(s->piece, (size_t)n), &msg);
        if (err == SHOAL_ERR_FULL) { /* the disk is behind: go on when it says so */
            (void)lseek(s->fd, -n, SEEK_CUR);
            return;
        }
        if (err != SHOAL_OK) {
            shoal_blob_writer_abort(s->writer);
            stored(s, err, msg.text);
            return;
        }
    }
}

static void store_fd(struct agent *agent, struct shoal_job_id job, int fd, agent_blob_fn *done, void *arg)
{
    struct storing *s = calloc(1, sizeof(*s));

    SHOAL_ASSERT(s != NULL);
    s->agent = agent;
    s->job = job;
    s->fd = fd;
    s->done = done;
    s->arg = arg;
    if (shoal_blob_writer_create(agent->blobs, job, write_pieces, s, &s->writer) != SHOAL_OK) {
        stored(s, SHOAL_ERR_FULL, "the blob store is busy");
        return;
    }
    write_pieces(s);
}

/* `fd` is taken; negative: `path` could not be opened. */
static void store_opened(struct agent *agent, struct shoal_job_id job, int fd, const char *path, agent_blob_fn *done,
                         void *arg)
{
    char text[AGENT_PATH_BYTES + 100];

    if (fd >= 0) {
        store_fd(agent, job, fd, done, arg);
        return;
    }
    (void)snprintf(text, sizeof(text), "%.400s: %s", path, errno == ENXIO ? "not a regular file" : strerror(errno));
    done(arg, SHOAL_ERR_STORAGE, text, (struct shoal_hash){ { 0 } });
}

void agent_store_file(struct agent *agent, struct shoal_job_id job, const char *path, agent_blob_fn *done, void *arg)
{
    store_opened(agent, job, shoal_open_regular(path, O_RDONLY), path, done, arg);
}

/* Opened anew: whoever has it open has read it to its end. */
void agent_store_fd(struct agent *agent, struct shoal_job_id job, int fd, agent_blob_fn *done, void *arg)
{
    char path[64];

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    store_opened(agent, job, open(path, O_RDONLY | O_CLOEXEC), path, done, arg);
}

void agent_store_below(struct agent *agent, struct shoal_job_id job, const char *root, const char *path,
                       agent_blob_fn *done, void *arg)
{
    store_opened(agent, job, shoal_open_below(root, path, O_RDONLY), path, done, arg);
}

/* ---- the manifest of RESULT_DIR/model ----
 * A blob of lines: "<64 hex of the file's blob> <size> <mtime> <x or -> <path relative to RESULT_DIR>\n", by path. */

struct listed {
    char path[256];
    uint64_t bytes;
    uint64_t mtime_s;
    bool executable;
    struct shoal_hash hash;
};

struct listing {
    struct agent *agent;
    struct shoal_job_id job;
    uint32_t call;
    char root[AGENT_PATH_BYTES];
    struct listed *files;
    size_t count;
    size_t next;
    uint64_t bytes;
};

static void list_folder(struct listing *l, const char *relative, unsigned depth)
{
    int fd = shoal_open_below(l->root, relative, O_RDONLY | O_DIRECTORY);
    const struct dirent *entry;
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);

    if (dir == NULL && fd >= 0)
        (void)close(fd);
    while (dir != NULL && (entry = readdir(dir)) != NULL && l->count < MANIFEST_FILES_MAX) {
        struct listed *file = &l->files[l->count];
        struct stat facts;

        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            strchr(entry->d_name, '\n') != NULL ||
            (size_t)snprintf(file->path, sizeof(file->path), "%s/%s", relative, entry->d_name) >= sizeof(file->path) ||
            fstatat(dirfd(dir), entry->d_name, &facts, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (S_ISDIR(facts.st_mode) && depth < 16) {
            char below[256];

            memcpy(below, file->path, sizeof(below));
            list_folder(l, below, depth + 1);
        } else if (S_ISREG(facts.st_mode)) {
            file->bytes = (uint64_t)facts.st_size;
            file->mtime_s = (uint64_t)facts.st_mtime;
            file->executable = (facts.st_mode & 0111) != 0;
            l->count++;
        }
    }
    if (dir != NULL)
        (void)closedir(dir);
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct listed *)a)->path, ((const struct listed *)b)->path);
}

static void listing_end(struct listing *l, enum shoal_err err, const char *text, struct shoal_hash hash)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_MANIFEST };

    event.u.manifest.job = l->job;
    event.u.manifest.call = l->call;
    event.u.manifest.ok = err == SHOAL_OK;
    event.u.manifest.hash = hash;
    (void)snprintf(event.u.manifest.text, sizeof(event.u.manifest.text), "%.199s", text);
    agent_host_event(l->agent, &event);
    free(l->files);
    free(l);
}

static void on_list_stored(void *arg, enum shoal_err err, const char *text, struct shoal_hash hash)
{
    listing_end(arg, err == SHOAL_ERR_UNREACHABLE ? SHOAL_OK : err, text, hash);
}

static void store_list(struct listing *l)
{
    char folder[AGENT_PATH_BYTES];
    FILE *file = NULL;
    int fd;

    agent_job_folder(l->agent, l->job, folder, sizeof(folder));
    fd = shoal_open_below(folder, "manifest", O_WRONLY | O_CREAT | O_TRUNC);
    if (fd >= 0)
        file = fdopen(fd, "w");
    if (file == NULL) {
        listing_end(l, SHOAL_ERR_STORAGE, strerror(errno), (struct shoal_hash){ { 0 } });
        return;
    }
    for (size_t i = 0; i < l->count; i++) {
        char hex[SHOAL_HASH_TEXT_BYTES];

        shoal_hex_text(l->files[i].hash.bytes, 32, hex);
        (void)fprintf(file, "%s %llu %llu %c %s\n", hex, (unsigned long long)l->files[i].bytes,
                      (unsigned long long)l->files[i].mtime_s, l->files[i].executable ? 'x' : '-', l->files[i].path);
    }
    if (fclose(file) != 0) {
        listing_end(l, SHOAL_ERR_STORAGE, strerror(errno), (struct shoal_hash){ { 0 } });
        return;
    }
    agent_store_below(l->agent, l->job, folder, "manifest", on_list_stored, l);
}

static void store_next(struct listing *l);

static void on_file_stored(void *arg, enum shoal_err err, const char *text, struct shoal_hash hash)
{
    struct listing *l = arg;

    if (err != SHOAL_OK && err != SHOAL_ERR_UNREACHABLE) {
        listing_end(l, err, text, hash);
        return;
    }
    l->files[l->next++].hash = hash;
    store_next(l);
}

static void store_next(struct listing *l)
{
    if (l->next == l->count)
        store_list(l);
    else
        agent_store_below(l->agent, l->job, l->root, l->files[l->next].path, on_file_stored, l);
}

static void manifest_begin(struct agent *agent, struct shoal_job_id job, uint32_t call)
{
    struct agent_job *here = agent_job_find(agent, job);
    struct listing *l = calloc(1, sizeof(*l));

    SHOAL_ASSERT(l != NULL);
    l->agent = agent;
    l->job = job;
    l->call = call;
    l->files = calloc(MANIFEST_FILES_MAX, sizeof(*l->files));
    SHOAL_ASSERT(l->files != NULL);
    if (here != NULL && here->result_dir[0] != '\0')
        memcpy(l->root, here->result_dir, sizeof(l->root));
    else
        agent_find_result_dir(agent, job, l->root); /* what was pushed here: the host that ran it may be lost */
    if (l->root[0] == '\0' && call != 0) {
        listing_end(l, SHOAL_ERR_NOT_FOUND, "this host has no files of the job", (struct shoal_hash){ { 0 } });
        return;
    }
    if (l->root[0] != '\0')
        list_folder(l, "model", 0);
    if (l->count == 0 && call == 0) { /* no file of a result: nothing is kept, and no hash names it */
        listing_end(l, SHOAL_OK, "", (struct shoal_hash){ { 0 } });
        return;
    }
    qsort(l->files, l->count, sizeof(*l->files), by_path);
    for (size_t i = 0; i < l->count; i++)
        l->bytes += l->files[i].bytes;
    store_next(l);
}

struct manifest_wait {
    struct agent *agent;
    struct shoal_job_id job;
    uint32_t call;
};

static void on_ledger_settled(void *arg, bool held)
{
    struct manifest_wait *w = arg;
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    if (!held) {
        shoal_job_id_text(w->job, text);
        agent_log(w->agent, "%s: no majority of its guardians has the whole ledger; it ends without", text);
    }
    manifest_begin(w->agent, w->job, w->call);
    free(w);
}

/* The job ends after it: so the ledger is whole on a majority first, or the log says that it is not. */
void agent_manifest(struct agent *agent, struct shoal_job_id job, uint32_t generation, uint32_t call)
{
    struct agent_job *here = agent_job_find(agent, job);
    struct manifest_wait *w;

    (void)generation;
    if (here == NULL || here->ledger == NULL) {
        manifest_begin(agent, job, call);
        return;
    }
    w = calloc(1, sizeof(*w));
    SHOAL_ASSERT(w != NULL);
    *w = (struct manifest_wait){ .agent = agent, .job = job, .call = call };
    agent_ledger_settle(agent, here, 0, 0, LEDGER_WAIT_NS, on_ledger_settled, w);
}

/* ---- serving others ---- */

struct serving {
    struct agent *agent;
    struct peer_question *question;
    struct shoal_hash hash; /* asked for */
};

static struct serving *serve(struct agent *agent, struct peer_question *question)
{
    struct serving *s = malloc(sizeof(*s));

    SHOAL_ASSERT(s != NULL);
    *s = (struct serving){ .agent = agent, .question = question };
    return s;
}

static void on_served(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view view)
{
    struct serving *s = arg;

    if (!s->agent->stopping)
        peer_answer(s->question, err, msg == NULL ? "" : msg->text, view);
    free(s);
}

static void on_served_put(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_hash hash,
                          uint64_t bytes)
{
    (void)hash;
    (void)bytes;
    on_served(arg, err, msg, (struct shoal_view){ 0 });
}

static void on_served_hold(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    on_served(arg, err, msg, (struct shoal_view){ 0 });
}

static void serve_chunk(void *arg, enum shoal_err err, const char *text)
{
    struct serving *s = arg;

    (void)text;
    if (err == SHOAL_OK && !s->agent->stopping)
        err = shoal_blobs_get_chunk(s->agent->blobs, s->hash, on_served, s);
    if (err != SHOAL_OK || s->agent->stopping)
        on_served(s, err, NULL, (struct shoal_view){ 0 });
}

static void serve_get(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct agent *agent = arg;
    struct shoal_reader r = shoal_reader_init(args);
    struct shoal_hash hash = shoal_get_hash(&r);
    struct serving *s;

    (void)from;
    if (!shoal_reader_done(&r)) {
        peer_answer(question, SHOAL_ERR_MALFORMED, "", (struct shoal_view){ 0 });
        return;
    }
    s = serve(agent, question);
    s->hash = hash;
    if (!shoal_blobs_has_chunk(agent->blobs, hash) && agent_bundle_now(hash, serve_chunk, s))
        return;
    serve_chunk(s, SHOAL_OK, "");
}

static void serve_put(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct agent *agent = arg;
    struct shoal_reader r = shoal_reader_init(args);
    struct shoal_hash hash = shoal_get_hash(&r);
    struct serving *s = serve(agent, question);
    enum shoal_err err = SHOAL_ERR_MALFORMED;

    (void)from;
    if (!r.failed && shoal_blobs_has_chunk(agent->blobs, hash)) {
        on_served(s, SHOAL_OK, NULL, (struct shoal_view){ 0 });
        return;
    }
    if (!r.failed)
        err = shoal_blobs_put_chunk(agent->blobs, hash, shoal_view_of(r.bytes + r.at, r.len - r.at), on_served_put, s);
    if (err != SHOAL_OK)
        on_served(s, err, NULL, (struct shoal_view){ 0 });
}

static void serve_hold(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct agent *agent = arg;
    struct shoal_reader r = shoal_reader_init(args);
    struct shoal_job_id job = shoal_get_job_id(&r);
    struct shoal_hash hash = shoal_get_hash(&r);
    struct serving *s = serve(agent, question);
    enum shoal_err err = SHOAL_ERR_MALFORMED;

    (void)from;
    if (shoal_reader_done(&r))
        err = shoal_blobs_hold(agent->blobs, job, hash, on_served_hold, s);
    if (err != SHOAL_OK)
        on_served(s, err, NULL, (struct shoal_view){ 0 });
}

void agent_blobs_create(struct agent *agent)
{
    peer_serve(agent->calls, PEER_GET_CHUNK, serve_get, agent);
    peer_serve(agent->calls, PEER_PUT_CHUNK, serve_put, agent);
    peer_serve(agent->calls, PEER_HOLD, serve_hold, agent);
}
