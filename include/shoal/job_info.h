/* Jobs, lists of them, and nodes as the HTTP API shows them. All texts are borrowed for the call that is given them. */
#ifndef SHOAL_JOB_INFO_H
#define SHOAL_JOB_INFO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/array.h"
#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/ids.h"
#include "shoal/limits.h"

/* ---- what is known of a job ---- */

struct shoal_job_info {
    struct shoal_job_id id;
    const char *state;  /* exact wire state of execs-api 5.1 */
    const char *detail; /* one line for a person: what it waits for, why it ended; "" if nothing */
    const char *creator;
    const char *framework;
    const char *app_name;
    const char *args;      /* may be "" in lists */
    const char *data_json; /* "" if none */
    const char *work_dir;
    const char *result_dir;
    const char *leader_name; /* node that leads the group, "" if unknown */
    const char *driver_node; /* node that runs the driver, "" if none */
    const char *pending;     /* why it waits, "" if it does not */
    const char *service;     /* which one it is, now or the version before; "" if none */
    bool elastic;
    bool ended;
    unsigned workers_min;
    unsigned workers_max;
    unsigned workers_now; /* ranks in the current epoch */
    uint32_t priority;
    bool gpu;             /* each of its workers has one */
    uint32_t worker_mib;  /* memory that was asked for, of each worker; 0: not known */
    int32_t exit_code;  /* valid when ended: of the driver or script; -1 unknown */
    uint64_t create_ms; /* wall clock, 0 = not yet */
    uint64_t start_ms;
    uint64_t end_ms;
    struct shoal_epoch epoch;
    char transport[16]; /* between its workers; "": not known */
    uint64_t term; /* within its recovery generation */
    uint32_t generation;
    uint64_t steps; /* committed train steps */
    uint64_t data_epoch;
    uint32_t rate_milli; /* steps per second * 1000 */
    bool has_metrics;    /* loss and accuracy are valid */
    double loss;
    double accuracy;
    uint32_t join_pause_us; /* last pause for a joiner's copy, 0 = none */
    /* Of an array; tasks_all 0: it is none. PENDING and STOPPED ones are the rest. */
    uint32_t tasks_all, tasks_done, tasks_failed, tasks_running;
};

/* One task of an array. */
struct shoal_task_info {
    struct shoal_task_row row;
    char node[64]; /* its name; "" if none, or not known */
};

/* ---- lists ---- */

enum shoal_job_sort {
    SHOAL_SORT_CREATED,
    SHOAL_SORT_STATE,
    SHOAL_SORT_NAME,
    SHOAL_SORT_USER,
    SHOAL_SORT_FRAMEWORK,
    SHOAL_SORT_WORKERS,
    SHOAL_JOB_SORTS,
};

/* A place in a list: what the list is sorted by, and the job's id, which decides among equals. */
#define SHOAL_LIST_KEY_BYTES 64
struct shoal_list_place {
    bool is_set;
    char key[SHOAL_LIST_KEY_BYTES]; /* "" when sorted by CREATED: the id says it */
    struct shoal_job_id id;
};

/* Texts are borrowed for the call; NULL is as good as "". */
#define SHOAL_LIST_STATES_MAX 16
struct shoal_job_filter {
    const char *creator; /* "" = everybody's */
    const char *name;    /* a part of the job's name; "" = any */
    bool active_only;
    const char *states[SHOAL_LIST_STATES_MAX]; /* exact ones; a name that is none matches nothing */
    size_t state_count;                        /* 0: any */
    uint64_t since_ms, until_ms;               /* created from the first to before the second; 0: no bound */
    enum shoal_job_sort sort;
    bool descending;
    unsigned limit;                /* at most SHOAL_LIST_ROWS_MAX */
    struct shoal_list_place after; /* what stands behind this place */
};

struct shoal_job_page {
    const struct shoal_job_info *jobs;
    size_t count;
    struct shoal_list_place next; /* set: more may follow behind it */
    /* False: something may be missing, or older than what somebody was told. `missing`: nodes that did not answer (one of
     * three or more hides nothing); `unsettled`: rows of jobs whose leader has just died. */
    bool complete;
    const char *const *missing;
    size_t missing_count;
    unsigned unsettled;
};

struct shoal_node_info {
    struct shoal_node_id id;
    char name[64];
    char address[64];
    char api_url[96]; /* "https://host:port", "" if unknown */
    char state[16];   /* "alive", "suspect", "dead", "left", "removed", "draining", "drained" */
    struct shoal_incarnation incarnation;
    unsigned slots_total;
    unsigned slots_free;
    unsigned gpus;
    unsigned shares_total; /* kernels that may share its cards at one time */
    uint32_t serves;     /* SHOAL_SERVES_*; 0: not told */
    uint32_t load_milli; /* load average * 1000 */
    uint32_t jobs_led;
    uint64_t age_ms; /* of what we know of it */
    bool self;
};

struct shoal_mesh_status {
    char version[32];
    char node_name[64];
    struct shoal_node_id node_id;
    char mesh_name[64];
    char api_url[96];
    unsigned members_alive;
    unsigned members_known;
    unsigned members_silent; /* of those: neither alive, nor gone by their own or an administrator's word */
    bool mesh_writable; /* as shoal_sched_mesh_writable() says */
};

#endif
