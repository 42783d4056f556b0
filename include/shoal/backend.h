/* What the HTTP API asks of the mesh. The node implements this table; api/ knows nothing else of it, and a test puts a
 * table of its own behind the same server.
 *
 * Rules for every call:
 * - It runs on the event loop's thread and never blocks.
 * - A call with a `done` callback ends exactly once, by that callback, on the same thread. The callback may run before
 *   the call returns. The caller cannot cancel; it keeps `arg` alive until then.
 * - What is passed in stays alive until the callback has run (the bundle's descriptor too). What the callback is given
 *   is borrowed for the callback.
 * - `msg` is never NULL. When `err` is not SHOAL_OK it says cause and remedy, for a person.
 * - Errors become HTTP statuses: INVALID, UNSUPPORTED 400; DENIED 403; NOT_FOUND 400 (execs) or 404 (/v1); EXISTS and
 *   STALE 409; TOO_BIG 413; FULL, TIMEOUT, UNREACHABLE, NOT_LEADER, STORAGE 503; NO_SPACE 507; anything
 *   else 500. */
#ifndef SHOAL_BACKEND_H
#define SHOAL_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/array.h"
#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/ids.h"
#include "shoal/limits.h"

#define SHOAL_USER_BYTES_MAX 64 /* with the NUL */
#define SHOAL_FRAMEWORK_BYTES_MAX 48
#define SHOAL_TICKET_BYTES_MAX 1024
#define SHOAL_TOKEN_KEY_BYTES 32
#define SHOAL_TOKEN_ID_BYTES 16

/* ---- users and tokens ---- */

struct shoal_user {
    char name[SHOAL_USER_BYTES_MAX];
    uint32_t uid;
    bool admin;
    uint64_t tokens_from_s; /* tokens issued before this time (epoch seconds) are void; 0: all stand */
};

struct shoal_token_keys {
    uint8_t keys[2][SHOAL_TOKEN_KEY_BYTES]; /* the newest first: it signs, both verify */
    size_t count;                           /* 0: this node has not yet got the mesh's copy */
};

/* ---- frameworks ---- */

struct shoal_framework {
    const char *name; /* canonical spelling */
    const char *version;
    const char *app_name;      /* default application name */
    const char *exec_mode;     /* "single" or "distributed" */
    const char *backend;       /* "PyTorch", ... */
    const char *worker_memory; /* "4G" */
    const char *const *desc;   /* usage lines, NULL at the end */
    bool elastic;
    bool supported; /* false: known, refused with "not supported yet" */
    unsigned workers_default;
    unsigned workers_max;
    unsigned gpus_per_worker_max;
};

/* The six names of the specification; a node without others returns exactly these. */
const struct shoal_framework *shoal_frameworks_builtin(size_t *count);

/* ---- submit ---- */

enum shoal_device {
    SHOAL_DEVICE_AUTO, /* not said: gpu if the mesh has one, else cpu */
    SHOAL_DEVICE_CPU,
    SHOAL_DEVICE_GPU,
};

struct shoal_texts {
    const char *const *items; /* NUL-terminated each */
    size_t count;
};

/* The options of execs-api 4.5 as parsed; texts are "" where not given. What the mesh cannot do (yet) of it, `submit`
 * answers with UNSUPPORTED and the option's name. */
struct shoal_job_options {
    const char *framework; /* canonical name */
    const char *app_name;
    const char *main; /* --model-main: in a submit equal to main_path, or an absolute path on the job's file system */
    const char *model_dir; /* --model-dir: in a submit equal to work_dir */
    const char *main_path; /* where it was found in the bundle; "" for an absolute main and for user_cmd */
    const char *work_dir;  /* the work directory inside the bundle (execs-api 4.8); "" = its root */
    const char *submit_user;
    const char *data_path;      /* of --cs-datastore-meta, relative, no ".."; "" = the root */
    const char *datastore_meta; /* its whole text, for DLI_CS_DATASTORE_META */
    const char *debug_level;
    bool elastic;
    bool user_cmd;        /* run script_argv itself in the work directory, not Python with `main` */
    unsigned workers_min; /* 1 for elastic jobs, workers_max for others */
    unsigned workers_max;
    enum shoal_device device;
    unsigned devices_per_worker;
    uint32_t worker_cpu_milli; /* of hardwareSpec: a wish, 0: not said */
    uint64_t worker_memory_bytes;
    uint64_t driver_memory_bytes; /* 0: not said */
    uint32_t priority;            /* 0: the plan's default */
    uint32_t pending_timeout_s;   /* 0: none */
    struct shoal_texts env;       /* NAME=VALUE, in order, later ones win */
    struct shoal_texts attrs;
    struct shoal_texts labels;
    struct shoal_texts script_argv; /* what follows the main file */
    const char *array;              /* ranges of an array of tasks (shoal/array.h); "" = none */
    struct shoal_texts notes;       /* what was accepted but has no effect: lines for the launcher log */
};

struct shoal_submit {
    const struct shoal_user *caller;
    const struct shoal_job_options *options;
    const char *args;      /* as received, secrets removed: kept and shown */
    const char *data_json; /* the field `data`, secrets removed, normalised to strict JSON; "" if none */
    /* The canonical bundle (shoal/bundle.h). The descriptor is readable from offset 0 and always there; `bundle` also
     * holds its bytes when they are at most SHOAL_BUNDLE_INLINE_MAX. A job without files has an empty bundle. */
    int bundle_fd;
    uint64_t bundle_bytes;
    struct shoal_view bundle;
    struct shoal_hash bundle_hash; /* over the sorted (path, mode, content hash) */
    struct shoal_hash spec_hash;   /* over args, data and bundle_hash: the one that a ticket names */
    struct shoal_view ticket;      /* empty: the backend makes one by itself */
};

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
    bool elastic;
    bool ended;
    unsigned workers_min;
    unsigned workers_max;
    unsigned workers_now; /* ranks in the current epoch */
    uint32_t priority;
    int32_t exit_code;  /* valid when ended: of the driver or script; -1 unknown */
    uint64_t create_ms; /* wall clock, 0 = not yet */
    uint64_t start_ms;
    uint64_t end_ms;
    struct shoal_epoch epoch;
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
    char state[16];   /* "alive", "suspect", "dead", "left" */
    struct shoal_incarnation incarnation;
    unsigned slots_total;
    unsigned slots_free;
    unsigned gpus;
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
    bool mesh_writable; /* the mesh group has a leader that we know */
};

/* ---- logs and results ---- */

enum shoal_log_kind {
    SHOAL_LOG_OUT,      /* $LOG_DIR/stdout of driver, then workers (execs-api 4.11) */
    SHOAL_LOG_ERR,      /* $LOG_DIR/stderr of the same */
    SHOAL_LOG_OUTERR,   /* both */
    SHOAL_LOG_LAUNCHER, /* what the nodes did to start and keep it */
    SHOAL_LOG_TASK_OUT, /* one task's own output: task 0 = the driver, 1..n = workers */
    SHOAL_LOG_TASK_ERR,
    SHOAL_LOG_TASK_LAUNCHER,
};

struct shoal_log_request {
    const char *id;
    const struct shoal_user *caller;
    enum shoal_log_kind kind;
    unsigned task;    /* for the TASK kinds; of an array: its index, for every kind */
    bool task_named;  /* an array has no log without one */
    uint64_t cursor;  /* 0 = from the start; else as the last answer gave it. Opaque to the API */
    size_t bytes_max; /* answer at most this many */
    uint32_t wait_ms; /* when nothing is there yet: answer at the latest after this time */
};

struct shoal_log_chunk {
    struct shoal_view bytes; /* empty: nothing more now */
    uint64_t cursor;         /* for the next call */
    bool ended;              /* the job has ended and everything was read */
};

struct shoal_result_file {
    const char *path; /* relative to RESULT_DIR: "model/train/model_epoch_final.pth" */
    uint64_t bytes;
    uint32_t mtime_s;
    bool executable;
};

struct shoal_result; /* an open result: the backend's; no file in it changes any more */

/* ---- recovery ---- */

struct shoal_recovery_info {
    struct shoal_job_id id;
    bool done;
    const char *node; /* that holds, or founded */
    uint32_t generation;
    uint64_t term, index, commit; /* held up to here; known to be committed up to `commit` */
    unsigned guardians;
    unsigned lost_count;
    const char *const *lost; /* names */
};

/* ---- callbacks ---- */

typedef void shoal_backend_done_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg);
/* After OK, `msg` says what the submit survives ("survives the loss of any one node"). After TIMEOUT or UNREACHABLE the
 * ticket is set: the same body with it founds the same job. */
typedef void shoal_backend_submit_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                                     const struct shoal_job_info *job, struct shoal_view ticket);
typedef void shoal_backend_ticket_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_job_id id,
                                     struct shoal_view ticket);
typedef void shoal_backend_job_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                                  const struct shoal_job_info *job);
/* NULL unless OK. */
typedef void shoal_backend_jobs_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                                   const struct shoal_job_page *page);
typedef void shoal_backend_log_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                                  const struct shoal_log_chunk *chunk);
/* `result` is the caller's until result_close; the files live as long. */
typedef void shoal_backend_result_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                                     struct shoal_result *result, const struct shoal_result_file *files, size_t count);
/* Fewer bytes than asked for only at the end of the file. */
typedef void shoal_backend_bytes_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                                    struct shoal_view bytes);
/* A whole JSON text. */
typedef void shoal_backend_text_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view json);
/* `next`: what `after` of the next page is; SHOAL_ARRAY_NONE: there is none. */
typedef void shoal_backend_tasks_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                                    const struct shoal_task_info *tasks, size_t count, uint32_t next);
typedef void shoal_backend_recovery_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                                       const struct shoal_recovery_info *recovery);
typedef void shoal_backend_user_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                                   const struct shoal_user *user);

/* ---- the table ----
 * `id` texts are a full id with or without its prefix, or an unambiguous ending; an ambiguous one is INVALID and names
 * the candidates. The backend checks that `caller` may see or change the job (own jobs; an administrator all). */
struct shoal_backend {
    void *ctx;

    void (*submit)(void *ctx, const struct shoal_submit *submit, shoal_backend_submit_fn *done, void *arg);
    void (*ticket_new)(void *ctx, const struct shoal_user *caller, const struct shoal_hash *spec_hash,
                       shoal_backend_ticket_fn *done, void *arg);
    /* `linearizable`: by read-index at the leader; otherwise the newest summary known here will do. */
    void (*get)(void *ctx, const struct shoal_user *caller, const char *id, bool linearizable,
                shoal_backend_job_fn *done, void *arg);
    /* What any node has answered before this call is in it. FULL: too many lists at once. */
    void (*list)(void *ctx, const struct shoal_user *caller, const struct shoal_job_filter *filter,
                 shoal_backend_jobs_fn *done, void *arg);
    /* Tasks of an array, a page of them, by read-index at the leader. */
    void (*tasks)(void *ctx, const struct shoal_user *caller, const char *id, const struct shoal_tasks_ask *ask,
                  shoal_backend_tasks_fn *done, void *arg);
    void (*stop)(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_done_fn *done, void *arg);
    /* `del`: an active job is stopped first. */
    void (*del)(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_done_fn *done, void *arg);
    /* A majority of the job's guardians is lost for good: `recovery` says what the best replica left holds;
     * `confirmed`: the next recovery generation is founded from it. EXISTS: nothing is lost. The API has checked that
     * an administrator asks.
     */
    void (*recover)(void *ctx, const struct shoal_user *caller, const char *id, bool confirmed,
                    shoal_backend_recovery_fn *done, void *arg);
    void (*delete_all)(void *ctx, const struct shoal_user *caller, shoal_backend_done_fn *done, void *arg);

    void (*log_read)(void *ctx, const struct shoal_log_request *request, shoal_backend_log_fn *done, void *arg);
    void (*result_open)(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_result_fn *done,
                        void *arg);
    void (*result_read)(void *ctx, struct shoal_result *result, size_t file, uint64_t offset, size_t bytes_max,
                        shoal_backend_bytes_fn *done, void *arg);
    void (*result_close)(void *ctx, struct shoal_result *result);

    /* JSON texts made by the backend. `ledger`: {"job","steps",...,"epochs":[...]}; `why`: {"job","state","why":[...]}.
     */
    void (*ledger)(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_text_fn *done, void *arg);
    void (*why)(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_text_fn *done, void *arg);

    /* Checks a password in a thread (Argon2id). DENIED: wrong user or password, with one and the same message. */
    void (*logon)(void *ctx, const char *user, const char *password, shoal_backend_user_fn *done, void *arg);
    /* Revokes one token everywhere until its end. */
    void (*logoff)(void *ctx, const uint8_t token_id[SHOAL_TOKEN_ID_BYTES], uint64_t exp_s, shoal_backend_done_fn *done,
                   void *arg);

    /* At once, from this node's copies. */
    bool (*user_find)(void *ctx, const char *name, struct shoal_user *user);
    void (*token_keys)(void *ctx, struct shoal_token_keys *keys);
    bool (*token_revoked)(void *ctx, const uint8_t token_id[SHOAL_TOKEN_ID_BYTES]);
    const struct shoal_framework *(*frameworks)(void *ctx, size_t *count);
    size_t (*nodes)(void *ctx, struct shoal_node_info *nodes, size_t max); /* returns how many there are, maybe > max */
    void (*status)(void *ctx, struct shoal_mesh_status *status);
    enum shoal_err (*metrics)(void *ctx, struct shoal_buf *text); /* OpenMetrics lines */
    enum shoal_err (*debug)(void *ctx, const char *name,
                            struct shoal_buf *json); /* groups leases links epochs; NOT_FOUND */
};

#endif
