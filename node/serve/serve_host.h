/* The replicas of services on this host: a link to each kernel, and one queue a service.
 *
 *     serve_host_infer --> queue, by deadline --> the ready kernel with the least in hand --> done
 *                            | full: FULL             | its process ends: RANK_LOST
 *                            | deadline: TIMEOUT      | deadline: TIMEOUT; the kernel goes on, its answer is dropped
 *
 * H1. Each request ends exactly once, by its `done`, or by its asker's serve_host_cancel.
 * H2. A kernel has at most as many requests as it said that it takes; a request that ended without it counts until the
 *     kernel has answered.
 * H3. What a kernel says wrongly (no frame, an id that it does not have, answers to what it does not read, parts beyond what it
 *     was told that it may send) ends its process: it is told to `broken`. One that only closes its link is connected again.
 * H4. A replica that is to be stopped gets no more requests and answers those that it has, as far as there is time.
 * H5. What one turn of the loop hands to a kernel goes to it in one write, when the turn ends, in order.
 * H6. What a version of a service has answered and failed is kept when its last kernel here ends: the next one counts on. It
 *     goes when the version does, or for want of room, which takes from the one that ended longest ago. */
#ifndef SHOAL_NODE_SERVE_HOST_H
#define SHOAL_NODE_SERVE_HOST_H

#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/ids.h"
#include "shoal/metric_text.h"

#include "kernel_wire.h"

struct uv_loop_s;
struct serve_host;

struct serve_host_options {
    struct uv_loop_s *loop;
    void *arg;
    /* A replica has become ready, or is gone: others are to hear of it. */
    void (*changed)(void *arg);
    /* H3; or the kernel says itself that it cannot serve. */
    void (*broken)(void *arg, uint64_t worker_id, const char *text);
    /* H4: nothing is in hand any more, or its time is over. */
    void (*drained)(void *arg, uint64_t worker_id, uint64_t grace_ns);
};

struct serve_answer {
    uint32_t status;
    uint32_t header_len;
    const char *content_type;
    struct shoal_view body;
};
/* NULL unless OK. STALE: no replica here is ready. FULL, TIMEOUT, RANK_LOST as above. */
typedef void serve_done_fn(void *arg, enum shoal_err err, const char *text, const struct serve_answer *answer);

struct serve_ask {
    struct shoal_job_id job;
    struct kernel_ask head; /* `id` is given here */
    struct shoal_view body; /* copied */
    struct shoal_buf *take; /* or this one, which is taken unless `done` says STALE, FULL or TOO_BIG; NULL */
    uint32_t timeout_ms;    /* 0: none */
    const bool *gone;       /* true: it ends with TIMEOUT at the next look; NULL: nobody gives it up */
    void (*handed)(void *arg); /* it waited, and is in a kernel now; NULL: nobody wants to know */
    void (*piece)(void *arg, struct shoal_view piece); /* P1 of shoal/backend.h; NULL: the answer is wanted whole */
    uint64_t *id;                                      /* set before anything else */
    serve_done_fn *done;
    void *arg;
};

/* Tells what a user can do about a TIMEOUT. */
#define SERVE_LIMIT_TEXT "; policy.task_execution_timeout of the model's profile says how long a request may take"

struct serve_host *serve_host_create(const struct serve_host_options *options);

struct serve_start {
    struct shoal_job_id job;
    const char *service; /* its name, and which version of it the job is; 0: an older agent deployed it */
    uint32_t version;
    uint64_t worker_id;
    uint32_t index;
    const char *path;
    uint32_t limit_s; /* as in serve_facts */
};
/* A replica's process is being started; its kernel will listen at `path`. */
void serve_host_start(struct serve_host *host, const struct serve_start *start);
/* H4. False: it has nothing in hand. True: `drained` says when, with the grace given here; again changes nothing. */
bool serve_host_drain(struct serve_host *host, uint64_t worker_id, uint64_t grace_ns);
/* Its process has ended. */
void serve_host_end(struct serve_host *host, uint64_t worker_id);

/* True: it waits in the queue, and `handed` will say when it does not any more, unless `done` comes first. False: it is in
 * a kernel, or `done` has run already. */
bool serve_host_infer(struct serve_host *host, const struct serve_ask *ask);

/* So many bytes of its pieces were passed on. An id that is not known means nothing. */
void serve_host_more(struct serve_host *host, uint64_t id, size_t bytes);
/* Nobody waits for it any more: `done` does not run. */
void serve_host_cancel(struct serve_host *host, uint64_t id);
/* The same, but only while no kernel has it. False: one has, or it is not known. */
bool serve_host_take_back(struct serve_host *host, uint64_t id);

/* One service with a kernel's process on this host. */
struct serve_facts {
    struct shoal_job_id job;
    uint32_t ready;   /* kernels */
    uint32_t room;    /* requests that these take at one time */
    uint32_t open;    /* requests that wait or are in a kernel */
    uint32_t waiting; /* of them */
    uint32_t limit_s; /* the longest time that the ready kernels' profiles give to a request; 0: none says */
};
#define SERVE_FACTS_MAX 64
size_t serve_host_facts(const struct serve_host *host, struct serve_facts *facts, size_t cap);

/* Counters of a service since its first kernel came to this host (H6). A request that ended without a kernel's answer is
 * in `failed` alone. */
#define SERVE_BATCH_BOUNDS 7
static const uint32_t serve_batch_bounds[SERVE_BATCH_BOUNDS] = { 1, 2, 4, 8, 16, 64, 256 };
struct serve_counts {
    struct shoal_histogram queue;  /* from its coming to the host to the kernel */
    struct shoal_histogram kernel; /* from there to the answer */
    struct shoal_histogram total;  /* both */
    uint64_t batches[SERVE_BATCH_BOUNDS + 1]; /* requests, by how many were computed together */
    uint64_t batch_sum;
    uint64_t answered, failed, refused; /* refused: there was no room */
};
#define SERVE_NAME_BYTES 64
struct serve_counted {
    struct shoal_job_id job;
    char service[SERVE_NAME_BYTES];
    uint32_t version;
    bool running; /* it has a kernel's process here */
    const struct serve_counts *counts;
};
/* False: there is no such place. No two have one job, and none that is not running has the name and version of another. */
bool serve_host_counted(const struct serve_host *host, size_t place, struct serve_counted *counted);
/* NULL: nothing was counted of it here. */
const struct serve_counts *serve_host_counts(const struct serve_host *host, struct shoal_job_id job);
/* The version is gone from the mesh; one with a kernel's process here is kept. */
void serve_host_forget(struct serve_host *host, struct shoal_job_id job);

/* One replica on this host. */
struct serve_replica {
    struct shoal_job_id job;
    uint64_t worker_id;
    uint32_t index;
    bool ready;
    uint32_t batch, running;
    uint64_t finished, failed; /* requests */
    uint64_t milli_requests_per_s, bytes_per_s; /* answered of late (serve_rate.h); in and out */
    const char *version, *platform;
    struct shoal_view inputs, outputs; /* MessagePack values; empty: not said */
};
/* False: there is no such place. Texts live until the next call of this file. */
bool serve_host_replica(const struct serve_host *host, size_t place, struct serve_replica *replica);

#endif
