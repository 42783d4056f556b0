/* Blobs between hosts: fetched by hash from the job's guardians, kept on two hosts before they are promised, made into
 * files for workers. A file becomes a blob in agent_blob_store.c, and manifests list them in agent_manifest.c.
 *
 * A fetch: the manifest chunk first, then every chunk it lists that is not here, one after the other, from the first
 * source that has it; then the job holds the blob. One fetch per (job, hash) at a time; who asks meanwhile waits with
 * the others. */
#include "agent.h"

#include "agent_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/below.h"
#include "shoal/disk.h"
#include "shoal/hash.h"

#include "shoal/banned.h"

#define FETCH_WAITERS_MAX 16
#define CALL_TIMEOUT_NS (10 * SHOAL_S)

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

static void part_path(const struct materialising *m, char part[AGENT_PATH_BYTES + 32])
{
    (void)snprintf(part, AGENT_PATH_BYTES + 32, "%s.%llu.part", m->path, (unsigned long long)m->number);
}

static void materialised(struct materialising *m, enum shoal_err err, const char *text)
{
    char part[AGENT_PATH_BYTES + 32];

    if (m->fd >= 0)
        (void)close(m->fd);
    if (m->fd >= 0 && err != SHOAL_OK) { /* half a file is of no use to anybody */
        part_path(m, part);
        (void)unlink(part);
    }
    if (m->done != NULL)
        m->done(m->arg, err, err == SHOAL_OK ? m->path : text);
    else if (err != SHOAL_OK)
        m->bytes_done(m->arg, err, text, (struct shoal_view){ 0 });
    shoal_buf_deinit(&m->manifest);
    shoal_buf_deinit(&m->piece);
    free(m);
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

    if (err != SHOAL_OK) {
        materialised(m, err, text);
        return;
    }
    if (m->done == NULL)
        err = shoal_blobs_get(m->agent->blobs, m->hash, m->max, on_whole, m);
    else
        err = shoal_blobs_get_chunk(m->agent->blobs, m->hash, on_manifest_read, m);
    if (err != SHOAL_OK)
        materialised(m, err, "the blob store is busy");
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
