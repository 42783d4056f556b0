/* Processes of a job whose runner is gone, and with it whoever would have found and ended them.
 *
 * The helper that forked a runner holds the lock of the file "alive" in the job's folder until the runner has ended and
 * nobody whom it left behind is there (P5 of spawn.h), and ends those. Where that helper is gone as well, who was started
 * with the job's id in his environment is found by it. */
#ifndef NODE_LEFTOVERS_H
#define NODE_LEFTOVERS_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/error.h"
#include "shoal/ids.h"

#define LEFTOVERS_MAX 128

struct leftover {
    struct shoal_job_id job;
    uint64_t slots; /* bit i: slot i was the job's, or may have been */
    int lock;       /* of the helper's file */
    unsigned looks; /* that found the helper's word that somebody is left */
};

struct leftovers {
    struct leftover list[LEFTOVERS_MAX];
    unsigned count;
};

/* A lock for the helper that forks a runner in `folder`. STORAGE: its file cannot be made. */
SHOAL_MUST_CHECK enum shoal_err leftovers_lock(const char *folder, int *lock, struct shoal_msg *msg);
/* Another descriptor of that file, to look whether the helper still holds it. -1: there is none. */
int leftovers_find(const char *folder);
bool leftovers_lock_is_free(int lock);

/* The job has lost its runner. Takes `lock`. Where the table is full, the first one's slots are no longer watched. */
void leftovers_add(struct leftovers *leftovers, struct shoal_job_id job, uint64_t slots, int lock);
/* The slots of jobs that lost their runner and of which a process is alive, bit by bit. Forgets jobs of which none is. `runs`: has
 * the job another runner, whose processes are not to be harmed? To be called every few milliseconds at most. */
uint64_t leftovers_hold(struct leftovers *leftovers, const char *socket_path, bool (*runs)(void *arg, struct shoal_job_id job),
                        void *arg);
void leftovers_deinit(struct leftovers *leftovers);

/* Sends SIGKILL to every process that was started with this job's id and this agent's socket in its environment. How many
 * there were: they go within moments, and what they have forked meanwhile is found by the next call. */
unsigned leftovers_kill(const char *job, const char *socket_path);

#endif
