/* The fields of workers_uv.c, and what its files share. */
#ifndef NODE_WORKERS_STATE_UV_H
#define NODE_WORKERS_STATE_UV_H

#include <uv.h>

#include "deaths_uv.h"
#include "leftovers.h"
#include "spawn.h"
#include "warm.h"
#include "workers.h"

#define JOBS_HERE_MAX 128
/* So long after a worker was to be dead a runner that is stopped is ended. One that runs tells within seconds of a worker's end. */
#define STOPPED_RUNNER_NS (10 * SHOAL_S)
#define TURN_MESSAGES_MAX 64

/* An end that a runner which was found again tells: kept until on_runner() has named its worker. */
struct runner_end {
    uint64_t worker_id;
    uint32_t slot;
    int32_t status;
    bool signalled;
    char text[sizeof(((struct shoal_runner_message *)NULL)->text)];
};

struct runner_link {
    struct workers *workers;
    bool used;
    bool lost; /* its handle is being closed */
    bool welcomed;
    bool reported;
    bool closing;            /* it was told that it may end */
    bool was_stopped;        /* and killed for it */
    int32_t awaited;         /* messages about its workers that belong to WELCOME */
    unsigned spawns;         /* times that it was asked for; 0: it was found again */
    uint64_t warm_server;    /* that was asked for it; 0: the spawn helper was */
    uint64_t asked_ns;       /* when */
    /* What it was told before its WELCOME, and what its socket has had no room for: u32 length and bytes, one after the other. */
    struct shoal_buf orders;
    size_t orders_sent; /* bytes of them that the socket has taken */
    struct shoal_job_id job;
    uint32_t generation;
    int fd;
    int lock; /* of the helper that forked it; -1: none */
    uv_poll_t poll;
    bool poll_open;
    struct shoal_control_page *page;
    uint8_t page_head[offsetof(struct shoal_control_page, published)]; /* as the runner wrote it */
    uint64_t published, revoked;                                       /* as this agent wrote them, or found them */
    struct workers_alive alive[SHOAL_RUNNER_WORKERS_MAX];
    size_t alive_count;
    struct runner_end *ends; /* NULL: none */
    size_t end_count;
    uint64_t stepped_epoch, stepped; /* as told */
    uint64_t beats[SHOAL_SLOTS_MAX];
    uint8_t still[SHOAL_SLOTS_MAX];
    uint64_t stands_at[SHOAL_SLOTS_MAX]; /* a mark of what it does, and for how many looks it has done that */
    uint16_t stands[SHOAL_SLOTS_MAX];
    unsigned ends_ticks;
};

struct worker_link {
    struct workers *workers;
    int fd;
    uv_poll_t poll;
    bool known;
    bool deaf; /* it could not be told something: it is closed once the rest of what it said was heard */
    struct shoal_job_id job;
    uint64_t worker_id;
    struct worker_link *next;
};

struct workers {
    struct workers_options options;
    char jobs_dir[512];
    char slots_dir[512];
    char socket_path[600];
    int listener;
    uv_poll_t listener_poll;
    uv_timer_t listen_timer; /* active: there was no descriptor for who connects */
    uv_timer_t idle_timer;
    uv_timer_t watchdog;
    struct deaths *deaths;
    struct spawner *spawner;
    struct warm *warm;
    uint64_t slots_draining; /* bit i: slot i is watched for its lock */
    struct leftovers leftovers;
    struct runner_link runners[JOBS_HERE_MAX];
    struct worker_link *links;
    struct worker_link *heard; /* whose message is being told; NULL: none is */
    unsigned link_count;
    void (*reattached)(void *arg);
    void *reattached_arg;
    bool stopped;
    unsigned handles_open; /* of its own memory: libuv uses a handle until its close callback has run */
    uint64_t last_watch_ns;
    struct shoal_worker_message message;
    struct shoal_runner_message command;
    uint8_t bytes[SHOAL_RUNNER_MESSAGE_MAX];
};

/* workers_uv.c */
struct runner_link *workers_runner_find(const struct workers *workers,
                                        struct shoal_job_id job);                 /* NULL: none runs here */
struct worker_link *workers_link_of(struct workers *workers, uint64_t worker_id); /* NULL: it is not connected */
void workers_alive_remove(struct workers *workers, struct runner_link *runner, uint64_t worker_id);
/* The runner is gone: its lock is free, or it says nothing any more. */
void workers_runner_lost(struct runner_link *runner);

/* worker_links_uv.c */
void worker_link_close(struct worker_link *link);
/* What the worker said last comes before the word of its end: why it failed is among it. */
void worker_links_hear(struct workers *workers, uint64_t worker_id);
void worker_links_on_connect(uv_poll_t *poll, int status, int events);

/* workers_watch_uv.c */
void workers_watch_start(struct workers *workers);

#endif
