/* The HTTP API asks this of the mesh. The node implements this table; api/ knows nothing else of it, and a test puts a
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
#include "shoal/job_info.h"
#include "shoal/service_doc.h"
#include "shoal/submit.h"

struct token_claims; /* shoal/token.h */

/* ---- logs and results ---- */

enum shoal_log_kind {
    SHOAL_LOG_OUT,      /* $LOG_DIR/stdout of driver, then workers (execs-api 4.11) */
    SHOAL_LOG_ERR,      /* $LOG_DIR/stderr of the same */
    SHOAL_LOG_OUTERR,   /* both */
    SHOAL_LOG_LAUNCHER, /* what the nodes did to start and keep it */
    SHOAL_LOG_TASK_OUT, /* one task's own output: task 0 = the driver, 1..n = workers */
    SHOAL_LOG_TASK_ERR,
    SHOAL_LOG_TASK_LAUNCHER,
    SHOAL_LOG_TASK_OUTERR,
};

struct shoal_log_request {
    const char *id;
    const struct shoal_user *caller;
    enum shoal_log_kind kind;
    unsigned task;    /* for the TASK kinds; of an array: its index, for every kind */
    bool task_named;  /* an array has no log without one */
    uint64_t cursor;  /* 0 = from the start; else as the last answer gave it. Opaque to the API */
    size_t bytes_max; /* answer at most this many */
    uint32_t wait_ms; /* when nothing is there yet: answer at the latest after this time; at once, where the caller has too many that wait */
    const bool *gone; /* true: nobody waits for the answer any more, which then ends soon. NULL, or good until then */
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

struct shoal_result; /* an open result: the backend's; after the job's end no file in it changes any more */

/* Train steps of a loss curve, from 1 on over all calls of train(), as at most `points_max` points. */
struct shoal_curve_ask {
    uint64_t from, to;
    uint32_t points_max; /* 1 to SHOAL_METRIC_POINTS_MAX */
};

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

/* ---- nodes ---- */

/* An operator's words about a host. */
enum shoal_node_verb {
    SHOAL_NODE_REMOVE,  /* it is gone for good: others take its places, and it is refused from now on */
    SHOAL_NODE_READMIT, /* a removal was a mistake */
    SHOAL_NODE_DRAIN,   /* nothing new goes there, and what is there moves, as far as it can be moved */
    SHOAL_NODE_UNDRAIN,
    SHOAL_NODE_LEAVE, /* drained, or by force: it says goodbye, and its agent stops */
    SHOAL_NODE_VERBS,
};

/* ---- services ---- */

/* A piece of an answer, borrowed for the call. */
typedef void shoal_backend_piece_fn(void *arg, struct shoal_view piece);

/* A request for a model. Its answer may come in pieces, which are messages of its kernel (a word, a picture):
 *
 *     infer(piece, done) --> piece, piece, ...  --> done    its body is the last piece, where it is not empty
 *            |                 '-- passed on: infer_more
 *            '-- the client is gone: infer_cancel           neither `piece` nor `done` runs any more
 *
 * P1. SHOAL_INFER_WINDOW_BYTES of pieces come, and the piece that goes beyond, until infer_more says that bytes of them were
 *     passed on. A client that does not read holds up its own kernel, and no memory grows.
 * P2. A kernel that gives no pieces, and one of an older version, answers by `done` alone; so does each where `piece` is NULL. */
struct shoal_infer {
    const struct shoal_user *caller;
    const char *model;
    const char *version; /* "": any */
    const char *method, *path;
    const char *content_type; /* "": not said */
    uint32_t header_len;      /* of a body that begins with JSON and goes on with tensors; 0: it is one piece */
    uint32_t timeout_ms;      /* 0: as long as the model's profile says */
    const bool *gone;         /* true: nobody waits for the answer any more, which then ends soon. NULL, or good until then */
    struct shoal_view body;   /* at most SHOAL_INFER_BODY_BYTES_MAX; borrowed until `done`, or infer_cancel */
    shoal_backend_piece_fn *piece; /* NULL: the answer is wanted whole */
    uint64_t number; /* set before anything else: what infer_more and infer_cancel know it by, until it has ended */
};

struct shoal_inferred {
    unsigned status; /* as its kernel said: 200 and above */
    uint32_t header_len;
    const char *content_type; /* "": not said */
    struct shoal_view body;
};

enum shoal_service_verb {
    SHOAL_SERVICE_START, /* with as many replicas as it was deployed with */
    SHOAL_SERVICE_STOP,  /* none */
    SHOAL_SERVICE_SCALE, /* to a number */
    SHOAL_SERVICE_DELETE,
    SHOAL_SERVICE_BACK, /* to the version before; the one that it takes the place of can be gone back to */
    SHOAL_SERVICE_PROMOTE, /* the canary becomes the current version, as BACK; EXISTS: there is none */
    SHOAL_SERVICE_CANARY_END,
    SHOAL_SERVICE_VERBS,
};

/* One service as its group says, read by read-index; texts and views live for the callback. */
struct shoal_service_info {
    const char *name, *creator;
    uint32_t version; /* from 1 */
    uint32_t other;   /* the other version that is kept; 0: none, or not known */
    uint32_t other_ready; /* its kernels */
    uint64_t created_s, updated_s;
    struct shoal_job_id job;
    struct shoal_job_id before; /* the version before, which it can be rolled back to; zero: none */
    uint32_t replicas;          /* wanted */
    uint32_t placed;            /* kernels that the group has committed to a host, and not yet taken back */
    uint32_t ready, open;       /* by the word of its hosts: kernels that are ready, requests in hand */
    const char *why;            /* it has not as many as wanted; "" */
    struct shoal_view document; /* shoal/service_doc.h */
};

/* ---- callbacks ---- */

/* `info` is NULL unless OK. */
typedef void shoal_backend_service_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                                      const struct shoal_service_info *info);

/* `inferred` is NULL unless OK. NOT_FOUND: no such model. UNREACHABLE: it has no ready replica that this node reaches. FULL:
 * queues are full. TIMEOUT: not answered in time. RANK_LOST: kernel or host were lost while it was computed. */
typedef void shoal_backend_infer_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                                    const struct shoal_inferred *inferred);

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
struct shoal_result_list {
    const struct shoal_result_file *files; /* live as long as the result */
    size_t count;
    bool coming; /* a host that is away has what is missing; else it is in no list that this mesh can make */
};
/* `result` is the caller's until result_close. After OK, `msg` says which files are missing; "": none. `list` is NULL unless OK.
 */
typedef void shoal_backend_result_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                                     struct shoal_result *result, const struct shoal_result_list *list);
/* `fd`: the canonical bundle (shoal/bundle.h), the callback's to close; -1: there were no files, or none are kept. */
typedef void shoal_backend_bundle_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg, int fd);
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
    /* The list holds all that any node has answered before this call. FULL: too many lists at once. */
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
    /* `node`: a name, or the first digits of an id. After OK the message says what was done. NOT_FOUND; INVALID: it names
     * several; EXISTS: not as things are. The API has checked that an administrator asks. */
    void (*node_change)(void *ctx, const struct shoal_user *caller, const char *node, enum shoal_node_verb verb,
                        bool force, shoal_backend_done_fn *done, void *arg);
    /* As `recover`, of the mesh group; confirmed, `key` is the mesh's (NULL: not given), else DENIED. */
    void (*mesh_recover)(void *ctx, const struct shoal_user *caller, const char *key, bool confirmed,
                         shoal_backend_recovery_fn *done, void *arg);
    void (*delete_all)(void *ctx, const struct shoal_user *caller, shoal_backend_done_fn *done, void *arg);

    void (*log_read)(void *ctx, const struct shoal_log_request *request, shoal_backend_log_fn *done, void *arg);
    /* Every file of RESULT_DIR, in any state of the job: see agent_results.c for what counts. */
    void (*result_open)(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_result_fn *done,
                        void *arg);
    void (*result_read)(void *ctx, struct shoal_result *result, size_t file, uint64_t offset, size_t bytes_max,
                        shoal_backend_bytes_fn *done, void *arg);
    void (*result_close)(void *ctx, struct shoal_result *result);
    /* Reads the submitted files of a job that has left a result. */
    void (*bundle_open)(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_bundle_fn *done,
                        void *arg);

    /* JSON texts made by the backend. `ledger`: {"job","steps",...,"epochs":[...]}; `why`: {"job","state","why":[...]}.
     */
    void (*ledger)(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_text_fn *done, void *arg);
    /* {"job","steps","whole","stride","points":[{"step","call","dataEpoch","values":[...]}],"validationStride","validations",
     * "calls":[{"call","names"}]}; with a stride above 1 points have "min" and "max" too (node/agent/agent_metrics.c). */
    void (*curve)(void *ctx, const struct shoal_user *caller, const char *id, const struct shoal_curve_ask *ask,
                  shoal_backend_text_fn *done, void *arg);
    void (*why)(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_text_fn *done, void *arg);

    /* Checks a password in a thread (Argon2id). DENIED: wrong user or password, with one and the same message. */
    void (*logon)(void *ctx, const char *user, const char *password, shoal_backend_user_fn *done, void *arg);
    /* Ends the caller's token everywhere; where the caller has ended many, all that it got before now. */
    void (*logoff)(void *ctx, const struct shoal_user *caller, const struct token_claims *token,
                   shoal_backend_done_fn *done, void *arg);

    /* A name of a service is known on every node that was asked after the deployment was answered. */
    void (*infer)(void *ctx, struct shoal_infer *infer, shoal_backend_infer_fn *done, void *arg);
    /* P1. A number that is not known (any more) means nothing. */
    void (*infer_more)(void *ctx, uint64_t number, size_t bytes);
    /* Of a request that waits, none is left; a kernel that gives pieces is told to stop; one that computes goes on, and its
     * answer is dropped. */
    void (*infer_cancel)(void *ctx, uint64_t number);
    /* One service, or (`name` NULL) all: JSON, see node/backend/backend_services.c. NOT_FOUND. */
    void (*services)(void *ctx, const struct shoal_user *caller, const char *name, shoal_backend_text_fn *done,
                     void *arg);
    /* NOT_FOUND, DENIED: it is another user's. `replicas` of SCALE; of BACK the version, 0: the one before. After OK the message says what was done. */
    void (*service_change)(void *ctx, const struct shoal_user *caller, const char *name, enum shoal_service_verb verb,
                           unsigned replicas, shoal_backend_done_fn *done, void *arg);

    void (*service_look)(void *ctx, const struct shoal_user *caller, const char *name, shoal_backend_service_fn *done,
                         void *arg);
    /* NOT_FOUND, DENIED, INVALID. `edit` is borrowed until `done`. */
    void (*service_edit)(void *ctx, const struct shoal_user *caller, const char *name,
                         const struct service_doc_edit *edit, shoal_backend_done_fn *done, void *arg);
    /* `percent` of the requests that name no version go to `version` (digits), which is kept and not the current one. NOT_FOUND,
     * DENIED, INVALID; EXISTS: the service is stopped. */
    void (*service_canary)(void *ctx, const struct shoal_user *caller, const char *name, const char *version,
                           unsigned percent, shoal_backend_done_fn *done, void *arg);
    /* {"kernels":[{"id","node","state","batch","running","finished","failed","platform","inputs","outputs", and of a card "gpu","gpu_name",
     * "gpu_mem","gpu_mem_total"}]}: asked of
     * the hosts that say that they serve it. NOT_FOUND. */
    void (*service_kernels)(void *ctx, const struct shoal_user *caller, const char *name, shoal_backend_text_fn *done,
                            void *arg);

    /* {"runtimes":[...]}, by name: those that administrators made, as they were given. */
    void (*runtimes)(void *ctx, const struct shoal_user *caller, shoal_backend_text_fn *done, void *arg);
    /* `json` (shorter than SHOAL_RUNTIME_JSON_BYTES) is written of `name`; empty: it is deleted. DENIED, FULL, NOT_FOUND. */
    void (*runtime_set)(void *ctx, const struct shoal_user *caller, const char *name, struct shoal_view json,
                        shoal_backend_done_fn *done, void *arg);

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
