/* The prints of a job's processes go this way into their log files (runner_log.c). */
#ifndef NODE_RUNNER_LOG_H
#define NODE_RUNNER_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/error.h"

/* One a runner. Zeroed: nothing is open yet, and no thread runs. */
struct runner_logs {
    bool running;
    int socket; /* to the thread: readable when an answer is there */
    uint64_t bytes_max;
};

/* The folders of both files are there. The descriptors of a process's output, close-on-exec, which the caller closes
 * once the process has them. The thread is started with the first; `socket` is valid from then on. FULL: no descriptors
 * or threads. STORAGE: a file cannot be opened; the message names it. */
SHOAL_MUST_CHECK enum shoal_err runner_logs_open(struct runner_logs *logs, uint64_t worker_id, const char *stdout_path,
                                                 const char *stderr_path, int fds[2], struct shoal_msg *msg);
/* Ask for what the worker has printed until now to be in its files; the answer comes through runner_logs_answer().
 * False: nothing was ever printed by way of us. */
bool runner_logs_sync(struct runner_logs *logs, uint64_t worker_id);
/* The next worker whose output is in its files; false: no answer is there. */
bool runner_logs_answer(struct runner_logs *logs, uint64_t *worker_id);

#endif
