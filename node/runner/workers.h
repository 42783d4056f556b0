/* This host's runners and workers, seen from the agent: runners are spawned, found again after a restart, and obeyed;
 * workers connect to one socket and talk in messages (worker.h). */
#ifndef SHOAL_NODE_WORKERS_H
#define SHOAL_NODE_WORKERS_H

#include "shoal/runner.h"
#include "shoal/worker.h"

struct uv_loop_s;
struct workers;

/* In place of its pid: it has ended, and on_exited follows. */
#define WORKERS_ENDED INT32_MIN

/* One live worker as its runner reports it. */
struct workers_alive {
    uint64_t worker_id;
    uint32_t slot;
    int32_t pid;
    bool frozen;
    unsigned ended; /* looks in a row that found it dead and not reaped */
    uint64_t freeze_at_ns;
    uint64_t end_by_ns; /* it was to be killed, and its runner should have told so by then; 0: it was not */
};

struct workers_options {
    struct uv_loop_s *loop;
    const char *jobs_dir;       /* <data>/jobs */
    const char *slots_dir;      /* <data>/slots: the locks */
    const char *socket_path;    /* where workers connect */
    const char *native_dir;     /* FABRIC_HOME's: what a warm interpreter loads */
    uint64_t warm_memory_bytes; /* what interpreters that wait with a framework loaded may hold; 0: none waits */
    uint32_t slots;
    void *arg;
    void (*on_started)(void *arg, uint64_t worker_id, int32_t pid);
    void (*on_exited)(void *arg, uint64_t worker_id, int32_t status, bool signalled, const char *text);
    /* A runner answered: new, or found again after this agent's start. All its live workers, and those that ended while
     * no agent listened. */
    void (*on_runner)(void *arg, struct shoal_job_id job, uint32_t generation, const struct workers_alive *alive,
                      size_t count);
    /* The runner of a job has ended as it was told to, after all that it had started. */
    void (*on_left)(void *arg, struct shoal_job_id job);
    /* Is this the token of that worker? False: it is not, or the worker is not known here (yet: its runner may not have
     * answered this agent). The connection is closed, and the worker connects and says HELLO again. */
    bool (*knows)(void *arg, struct shoal_job_id job, const struct shoal_worker_hello *hello);
    /* After its HELLO was known. False: the connection is closed, as above. */
    bool (*on_message)(void *arg, struct shoal_job_id job, uint64_t worker_id,
                       const struct shoal_worker_message *message);
    /* A worker that was to be warm is started cold, and why. */
    void (*on_cold)(void *arg, struct shoal_job_id job, const char *why);
    void (*on_slot_idle)(void *arg, uint32_t slot);
    void (*on_stuck)(void *arg, uint64_t worker_id); /* its library thread stands still */
    /* The process has been killed or has crashed: it is in nobody's way any more, though its end is told later. */
    void (*on_dying)(void *arg, uint64_t worker_id);
    /* The worker of a job that is furthest has applied `step` in that epoch; at most every 100 ms. */
    void (*on_stepped)(void *arg, uint64_t worker_id, uint64_t epoch_word, uint64_t step);
    /* A worker has done one thing (enum shoal_activity) of one step for a minute, and waits for nobody; again each ten seconds. */
    void (*on_stands)(void *arg, uint64_t worker_id, uint64_t epoch_word, uint8_t activity);
    /* Words of the job's control page that only this agent writes are not as it wrote them; they are again. */
    void (*on_page)(void *arg, struct shoal_job_id job);
};

SHOAL_MUST_CHECK enum shoal_err workers_create(struct workers **workers, const struct workers_options *options,
                                               struct shoal_msg *msg);
/* Connects to every runner left by an earlier agent; `done` runs when each has answered or is gone. */
void workers_reattach(struct workers *workers, void (*done)(void *arg), void *arg);
void workers_stop(struct workers *workers); /* the runners and workers stay */

/* Starts a worker; the job's runner too if there is none. The message is copied. */
SHOAL_MUST_CHECK enum shoal_err workers_start(struct workers *workers, struct shoal_job_id job, uint32_t generation,
                                              const struct shoal_runner_start *start, struct shoal_msg *msg);
/* A worker that was to be started there never is: on_slot_idle follows, as after a worker's end. */
void workers_slot_left(struct workers *workers, uint32_t slot);
/* An order calls nobody back, since whoever gives it is in a step: that a runner takes none any more is told in a later turn. */
void workers_renew(struct workers *workers, uint64_t worker_id, uint64_t freeze_at_ns, uint64_t kill_at_ns);
void workers_freeze(struct workers *workers, uint64_t worker_id);
void workers_thaw(struct workers *workers, uint64_t worker_id);
void workers_kill(struct workers *workers, uint64_t worker_id, uint64_t grace_ns);
/* Lost if the worker is not connected: it will say HELLO and hear all again. */
void workers_send(struct workers *workers, uint64_t worker_id, const struct shoal_worker_message *message);
void workers_revoke(struct workers *workers, struct shoal_job_id job, uint64_t epoch_word);
/* Nothing of the job runs here any more: its runner may end. */
void workers_close(struct workers *workers, struct shoal_job_id job);

/* NULL: no runner here. Valid until the next turn of the loop. */
const struct shoal_control_page *workers_page(const struct workers *workers, struct shoal_job_id job);

#endif
