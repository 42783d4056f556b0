/* A file of this host as a blob, here and on one more host: it is promised when both hold it.
 *
 * B1. The file is read on a thread, piece by piece: it may lie on a disk that is slow, and be large. */
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/below.h"

#include "shoal/banned.h"

#define CALL_TIMEOUT_NS (10 * SHOAL_S)

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
    uv_fs_t read;
    size_t have; /* bytes of the piece that the writer has not taken */
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

static void failed(struct storing *s, enum shoal_err err, const char *text)
{
    shoal_blob_writer_abort(s->writer);
    stored(s, err, text);
}

static void on_read(uv_fs_t *fs);

/* B1. */
static void read_piece(struct storing *s)
{
    uv_buf_t buf = uv_buf_init((char *)s->piece, sizeof(s->piece));

    if (uv_fs_read(&s->agent->loop, &s->read, s->fd, &buf, 1, -1, on_read) != 0)
        failed(s, SHOAL_ERR_STORAGE, "no memory to read a file");
}

/* A piece that was read goes to the writer. Also called by it: the disk has caught up. */
static void write_piece(void *arg)
{
    struct storing *s = arg;
    struct shoal_msg msg;
    enum shoal_err err;

    if (s->have == 0)
        return; /* it is being read */
    err = shoal_blob_writer_append(s->writer, shoal_view_of(s->piece, s->have), &msg);
    if (err == SHOAL_ERR_FULL)
        return; /* the disk is behind: it says when to go on */
    s->have = 0;
    if (err == SHOAL_OK)
        read_piece(s);
    else
        failed(s, err, msg.text);
}

static void on_read(uv_fs_t *fs)
{
    struct storing *s = fs->data;
    ssize_t got = fs->result;

    uv_fs_req_cleanup(fs);
    if (got > 0) {
        s->have = (size_t)got;
        write_piece(s);
    } else if (got < 0) {
        failed(s, SHOAL_ERR_STORAGE, strerror((int)-got));
    } else {
        shoal_blob_writer_finish(s->writer, on_written, s);
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
    s->read.data = s;
    if (shoal_blob_writer_create(agent->blobs, job, write_piece, s, &s->writer) != SHOAL_OK)
        stored(s, SHOAL_ERR_FULL, "the blob store is busy");
    else
        read_piece(s);
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
