/* Work that waits for the disk, off the loop's thread, in order (shoal/disk.h).
 *
 *   agent_file_submit (loop) --> queue --> run (thread) --> done (loop)         ledger, blobs, what the agent needs to go on
 *   agent_tree_submit (loop) --> small, or bulk --> run (its own thread) --> done    files of result folders, walks over them
 *                                          ^-- again ---'
 *
 * A job may write files of any number and length: who reads, hashes and walks them has a thread of its own, so that no
 * ledger waits behind them.
 *
 * F1. A disk that answers nothing for a while delays what was submitted here, never the loop.
 * F2. The queue is bounded by count and bytes; what does not fit is refused and counted, and who asked tries again.
 * F3. Of result folders, logs and small files go first, SMALL_IN_TURN of them for each one that is bulk. What is bulk runs for a
 *     slice, and then behind all others that are bulk: no file of one job, however long it is, holds up another job's. */
#include "agent.h"

#include "agent_files.h"

#include "shoal/disk.h"

#include "shoal/banned.h"

/* Small ones that may pass one that is bulk. */
#define SMALL_IN_TURN 16u
/* With the thread at a time: one that it runs, and the next one. */
#define IN_HAND_MAX 2u

struct line {
    struct writer_job *first;
    struct writer_job **end;
};

struct file_queue {
    struct writer *writer;
    struct writer *trees;
    struct line small, bulk; /* for `trees` */
    unsigned in_hand, small_in_turn;
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

static void line_append(struct line *line, struct writer_job *job)
{
    job->next = NULL;
    *line->end = job;
    line->end = &job->next;
}

static struct writer_job *line_take(struct line *line)
{
    struct writer_job *job = line->first;

    line->first = job->next;
    if (line->first == NULL)
        line->end = &line->first;
    return job;
}

/* F3 */
static void feed_trees(struct file_queue *files)
{
    while (files->in_hand < IN_HAND_MAX && (files->small.first != NULL || files->bulk.first != NULL)) {
        bool small = files->bulk.first == NULL || (files->small.first != NULL && files->small_in_turn < SMALL_IN_TURN);

        files->small_in_turn = small ? files->small_in_turn + 1 : 0;
        files->in_hand++;
        writer_push(files->trees, line_take(small ? &files->small : &files->bulk));
    }
}

static void end(struct agent_file_job *job)
{
    struct file_queue *files = job->agent->files;

    SHOAL_ASSERT(files->count > 0 && files->bytes >= job->bytes); /* F2 */
    files->count--;
    files->bytes -= job->bytes;
    job->done(job);
}

static void on_done(struct writer_job *done) { end((struct agent_file_job *)(void *)done); }

static void on_tree_done(struct writer_job *done)
{
    struct agent_file_job *job = (struct agent_file_job *)(void *)done;
    struct file_queue *files = job->agent->files;

    SHOAL_ASSERT(files->in_hand > 0); /* F3 */
    files->in_hand--;
    end(job);
    feed_trees(files);
}

static void count_in(struct agent *agent, struct agent_file_job *job)
{
    agent->files->count++;
    agent->files->bytes += job->bytes;
    job->agent = agent;
}

static bool admit(struct agent *agent, struct agent_file_job *job)
{
    struct file_queue *files = agent->files;

    if (files == NULL || files->count >= SHOAL_FILE_QUEUE_MAX ||
        files->bytes + job->bytes > SHOAL_FILE_QUEUE_BYTES_MAX) {
        if (files != NULL)
            files->refused++;
        return false;
    }
    count_in(agent, job);
    return true;
}

enum shoal_err agent_file_submit(struct agent *agent, struct agent_file_job *job)
{
    if (!admit(agent, job))
        return SHOAL_ERR_FULL;
    job->job.done = on_done;
    writer_push(agent->files->writer, &job->job);
    return SHOAL_OK;
}

enum shoal_err agent_tree_submit(struct agent *agent, struct agent_file_job *job)
{
    if (!admit(agent, job))
        return SHOAL_ERR_FULL;
    job->job.done = on_tree_done;
    line_append(job->bulk ? &agent->files->bulk : &agent->files->small, &job->job);
    feed_trees(agent->files);
    return SHOAL_OK;
}

void agent_tree_again(struct agent_file_job *job)
{
    count_in(job->agent, job);
    line_append(&job->agent->files->bulk, &job->job);
    feed_trees(job->agent->files);
}

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
    files->small.end = &files->small.first;
    files->bulk.end = &files->bulk.first;
    agent->files = files;
    return SHOAL_OK;
}
