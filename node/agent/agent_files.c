/* What waits for the disk, off the loop's thread: one thread does it in order (shoal/disk.h).
 *
 *   agent_file_submit (loop) --> queue --> run (thread) --> done (loop)
 *
 * F1. A disk that answers nothing for a while delays what was submitted here, never the loop.
 * F2. The queue is bounded by count and bytes; what does not fit is refused and counted, and who asked tries again. */
#include "agent.h"

#include "agent_files.h"

#include "shoal/banned.h"

struct file_queue {
    struct writer *writer;
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

enum shoal_err agent_file_submit(struct agent *agent, struct agent_file_job *job)
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
    writer_push(files->writer, &job->job);
    return SHOAL_OK;
}

uint64_t agent_files_refused(const struct agent *agent) { return agent->files == NULL ? 0 : agent->files->refused; }

enum shoal_err agent_files_create(struct agent *agent, struct shoal_msg *msg)
{
    struct file_queue *files = calloc(1, sizeof(*files));

    if (files == NULL || writer_create(&files->writer, &agent->loop, run_first, NULL) != SHOAL_OK) {
        free(files);
        return shoal_fail(msg, SHOAL_ERR_FULL, "no thread for files");
    }
    agent->files = files;
    return SHOAL_OK;
}
