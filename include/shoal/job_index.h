/* The index that lists of jobs are read from: one value for each job that this node has a part in, in order of ids, so
 * of time. It can be rebuilt: it begins empty with each start of the agent, and is filled by what the control plane says.
 *
 *   put --> newest (memory) --each half second, by a thread--> table (LMDB, no flushes)
 *   scan: newest first, then what a thread is writing, then the table; in a thread, in order, on one state
 *
 * J1. What was put is in every scan and look-up that begins later.
 * J2. Once the loop runs, its thread never waits: tables are written and scanned by threads.
 * J3. What is put waits for half a second, or for 2,048 values, and then for the batch that is being written; a job that
 *     changes often in that time is written once. Beyond SHOAL_INDEX_SCANS_MAX scans, one more is refused (FULL).
 * J4. What the table does not take stays in memory, so J1 holds on a full disk, and is tried again: after half a second, and
 *     then after twice as long, up to half a minute. Beyond SHOAL_INDEX_UNWRITTEN_MAX values it is lost until the next
 *     start, and the index is not whole: shoal_index_is_whole() says so, and so must its lists. */
#ifndef SHOAL_JOB_INDEX_H
#define SHOAL_JOB_INDEX_H

#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/ids.h"
#include "shoal/limits.h"

/* Of at most about 800 bytes each. */
#define SHOAL_INDEX_UNWRITTEN_MAX 65536u

struct uv_loop_s;
struct shoal_index;

/* STORAGE: the folder cannot be made or opened. What was in it is gone. */
SHOAL_MUST_CHECK enum shoal_err shoal_index_open(struct shoal_index **index, struct uv_loop_s *loop, const char *dir,
                                                 struct shoal_msg *msg);
/* `tell` hears once when the table takes no more, and once when it has taken all again: a line for the log. */
void shoal_index_tell(struct shoal_index *index, void (*tell)(void *arg, const char *text), void *arg);
/* Scans under way end with UNREACHABLE; `stopped` comes last, and the index is gone then. */
void shoal_index_stop(struct shoal_index *index, void (*stopped)(void *arg), void *arg);

/* The value is copied; an empty one removes the job. `active`: it is found by a scan of active jobs too. */
void shoal_index_put(struct shoal_index *index, struct shoal_job_id id, bool active, struct shoal_view value);
/* The value of one job, appended to `value`. False: there is none. */
bool shoal_index_get(struct shoal_index *index, struct shoal_job_id id, struct shoal_buf *value);
bool shoal_index_is_whole(const struct shoal_index *index);

struct shoal_index_scan {
    struct shoal_job_id low, high; /* both included */
    bool descending;
    bool active_only;
    /* In a thread, in order; the value is borrowed for the call. False: enough. */
    bool (*visit)(void *arg, struct shoal_job_id id, struct shoal_view value);
    void (*done)(void *arg, enum shoal_err err); /* on the loop's thread, last */
    void *arg;
};
/* FULL: too many scans at once; `done` never runs. */
SHOAL_MUST_CHECK enum shoal_err shoal_index_scan(struct shoal_index *index, const struct shoal_index_scan *scan);

struct shoal_index_stats {
    uint64_t puts, writes, writes_failed, scans, scans_refused;
    uint64_t newest; /* values in memory, now */
};
void shoal_index_stats(const struct shoal_index *index, struct shoal_index_stats *stats);

#endif
