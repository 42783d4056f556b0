/* One thread that does jobs in order, and hands each back to the loop's thread when it is done. For disks. */
#ifndef NODE_WRITER_UV_H
#define NODE_WRITER_UV_H

#include <stdbool.h>

#include "shoal/error.h"

struct uv_loop_s;
struct writer;

/* Embedded in the owner's job; owned by the writer from push until `done`. */
struct writer_job {
    struct writer_job *next;
    void (*done)(struct writer_job *job); /* on the loop's thread, in the order of the pushes */
};

/* In the thread: do the first of these jobs, and as many behind it as go together; return the first one left. */
typedef struct writer_job *writer_run_fn(void *arg, struct writer_job *first);

/* FULL: no memory, or no thread. */
SHOAL_MUST_CHECK enum shoal_err writer_create(struct writer **writer, struct uv_loop_s *loop, writer_run_fn *run,
                                              void *arg);
void writer_push(struct writer *writer, struct writer_job *job);
/* Do what waits, end the thread, run what is left of `done`s, then `stopped`; the writer is gone then. No push from now
 * on. */
void writer_stop(struct writer *writer, void (*stopped)(void *arg), void *arg);

#endif
