/* Work that waits for the disk, off the loop's thread, in order (shoal/disk.h).
 *
 *   agent_file_submit (loop) --> queue --> run (thread) --> done (loop)         ledger, blobs, what the agent needs to go on
 *   agent_tree_submit (loop) --> queue --> run (its own thread) --> done        files of result folders, and walks over them
 *
 * A job may write files of any number and length: who reads, hashes and walks them has a thread of its own, so that no
 * ledger waits behind them.
 *
 * F1. A disk that answers nothing for a while delays what was submitted here, never the loop.
 * F2. The queue is bounded by count and bytes; what does not fit is refused and counted, and who asked tries again. */
#include "agent.h"

#include "agent_files.h"

#include "shoal/disk.h"

#include "shoal/banned.h"

struct file_queue {
    struct writer *writer;
    struct writer *trees;
    size_t count;
    uint64_t bytes;
    uint64_t refused;
};

static struct writer_job *run_first(void *arg, struct writer_job *first)
{
    struct agent_file_job *job = (struct agent_file_job *)(void *)first;

    (void)arg;
    job->run(job);
    return first->next;
}

_Static_assert(offsetof(struct agent_file_job, job) == 0, "a job is cast from its first member");

static void on_done(struct writer_job *done)
{
    struct agent_file_job *job = (struct agent_file_job *)(void *)done;
    struct file_queue *files = job->agent->files;

    SHOAL_ASSERT(files->count > 0 && files->bytes >= job->bytes); /* F2 */
    files->count--;
    files->bytes -= job->bytes;
    job->done(job);
}

static enum shoal_err submit(struct agent *agent, struct agent_file_job *job, bool tree)
{
    struct file_queue *files = agent->files;

    if (files == NULL || files->count >= SHOAL_FILE_QUEUE_MAX ||
        files->bytes + job->bytes > SHOAL_FILE_QUEUE_BYTES_MAX) {
        if (files != NULL)
            files->refused++;
        return SHOAL_ERR_FULL;
    }
    files->count++;
    files->bytes += job->bytes;
    job->agent = agent;
    job->job.done = on_done;
    writer_push(tree ? files->trees : files->writer, &job->job);
    return SHOAL_OK;
}

enum shoal_err agent_file_submit(struct agent *agent, struct agent_file_job *job) { return submit(agent, job, false); }

enum shoal_err agent_tree_submit(struct agent *agent, struct agent_file_job *job) { return submit(agent, job, true); }

struct replacing {
    struct agent_file_job file;
    char path[AGENT_PATH_BYTES + 32];
    struct shoal_buf bytes;
    enum shoal_err err;
    struct shoal_msg msg;
};

static void run_replace(struct agent_file_job *job)
{
    struct replacing *r = (struct replacing *)(void *)job;

    r->err = shoal_disk_replace(r->path, shoal_buf_view(&r->bytes), 0600, &r->msg);
}

static void replaced(struct agent_file_job *job)
{
    struct replacing *r = (struct replacing *)(void *)job;

    if (r->err != SHOAL_OK)
        agent_log(job->agent, "%s is not kept: %s", r->path, r->msg.text);
    shoal_buf_deinit(&r->bytes);
    free(r);
}

void agent_file_replace(struct agent *agent, const char *name, struct shoal_view bytes)
{
    struct replacing *r = calloc(1, sizeof(*r));

    if (r == NULL || shoal_buf_append(&r->bytes, bytes.bytes, bytes.len) != SHOAL_OK) {
        agent_log(agent, "%s is not kept: no memory", name);
        free(r);
        return;
    }
    (void)snprintf(r->path, sizeof(r->path), "%s/%s", agent->settings.data, name);
    r->file = (struct agent_file_job){ .bytes = bytes.len, .run = run_replace, .done = replaced };
    if (agent_file_submit(agent, &r->file) == SHOAL_OK)
        return;
    agent_log(agent, "%s is not kept: too much waits for the disk", r->path);
    shoal_buf_deinit(&r->bytes);
    free(r);
}

uint64_t agent_files_refused(const struct agent *agent) { return agent->files == NULL ? 0 : agent->files->refused; }

enum shoal_err agent_files_create(struct agent *agent, struct shoal_msg *msg)
{
    struct file_queue *files = calloc(1, sizeof(*files));

    if (files == NULL || writer_create(&files->writer, &agent->loop, run_first, NULL) != SHOAL_OK ||
        writer_create(&files->trees, &agent->loop, run_first, NULL) != SHOAL_OK) {
        free(files); /* the process ends */
        return shoal_fail(msg, SHOAL_ERR_FULL, "no thread for files");
    }
    agent->files = files;
    return SHOAL_OK;
}
