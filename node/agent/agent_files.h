/* Work that waits for the disk, off the loop's thread (agent_files.c). */
#ifndef SHOAL_NODE_AGENT_FILES_H
#define SHOAL_NODE_AGENT_FILES_H

#include "agent.h"

#include "node/store/writer_uv.h"

/* First member of the owner's job; the queue's from submit until `done`. */
struct agent_file_job {
    struct writer_job job;
    struct agent *agent;
    size_t bytes;                             /* that it holds in memory */
    bool bulk;                                /* of a result folder: it waits for what is small */
    void (*run)(struct agent_file_job *job);  /* on the thread; touches nothing of the loop's */
    void (*done)(struct agent_file_job *job); /* on the loop; frees it */
};

SHOAL_MUST_CHECK enum shoal_err agent_files_create(struct agent *agent, struct shoal_msg *msg);
/* FULL: refused, nothing has happened; the job is the caller's. */
SHOAL_MUST_CHECK enum shoal_err agent_file_submit(struct agent *agent, struct agent_file_job *job);
/* The same for files of result folders: what is small first, and of what is `bulk` a slice at a time, in turn. */
SHOAL_MUST_CHECK enum shoal_err agent_tree_submit(struct agent *agent, struct agent_file_job *job);
/* Within its `done`: there is more to do. It goes behind all others that are bulk, and is not refused. */
void agent_tree_again(struct agent_file_job *job);
/* The file of that name in the data folder becomes these bytes, flushed, after what was asked for before. `bytes` is
 * copied. Lost, and said in the log: no memory, a full queue, a disk that fails. */
void agent_file_replace(struct agent *agent, const char *name, struct shoal_view bytes);
uint64_t agent_files_refused(const struct agent *agent);

#endif
