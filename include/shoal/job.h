/* The replicated state of one job: what its guardians agree on (PROTOCOLS 6 to 8, 12 to 14).
 *
 *   NEW -> SUBMITTED -> PENDING_JOB_SCHEDULER -> PENDING_CRD_SCHEDULER -> LAUNCHING -> RUNNING -> FINISHED
 *                                                       ^                    |          | ^
 *                                                       +--------------------+          v |
 *   any active state -> KILLED | ERROR                    (nothing started)         RECOVERING
 *
 * J1. Only shoal_job_apply() changes a job, entry by entry in log order; every guardian gets the same bytes.
 * J2. An ended state never changes. An entry that makes no sense in the state it meets changes nothing (REFUSED).
 * J3. Epochs only rise; a member of an epoch is a placement; the epoch's call is running.
 * J4. Memory: taken at create and restore from the specification's size; apply allocates nothing.
 * J5. A recovery generation begins without scripts, drivers and members of an epoch: those of before are void. Its
 *     epochs are numbered above all of before, known here or not. Engines may come along: what they compute is fenced
 *     by epochs, and has the same bits whoever computes it.
 * J6. Plain scripts end in one entry: RESULT takes the job to FINISHED and its placements with it. It is proposed when
 *     every script has ended with 0. Drivers and arrays commit their end first (`result_wanted`), then the result. */
#ifndef SHOAL_JOB_H
#define SHOAL_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/array.h"
#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/ids.h"
#include "shoal/job_spec.h"
#include "shoal/limits.h"
#include "shoal/worker.h"

#define SHOAL_JOB_VERSION 1

/* ---- The state ------------------------------------------------------------------------------------------------- */

enum shoal_job_state {
    SHOAL_JOB_NEW,
    SHOAL_JOB_SUBMITTED,
    SHOAL_JOB_PENDING_JOB_SCHEDULER,
    SHOAL_JOB_PENDING_CRD_SCHEDULER,
    SHOAL_JOB_LAUNCHING,
    SHOAL_JOB_RUNNING,
    SHOAL_JOB_RECOVERING,
    SHOAL_JOB_FINISHED,
    SHOAL_JOB_KILLED,
    SHOAL_JOB_ERROR,
    SHOAL_JOB_STATE_COUNT,
};
const char *shoal_job_state_name(enum shoal_job_state state); /* the strings of execs-api 5.1 */
bool shoal_job_state_ended(enum shoal_job_state state);

enum shoal_job_role {
    SHOAL_JOB_ENGINE,
    SHOAL_JOB_DRIVER,
    SHOAL_JOB_SCRIPT,
    SHOAL_JOB_TASK, /* of an array */
    SHOAL_JOB_ROLE_COUNT,
};

#ifndef SHOAL_SLOT_NONE
#define SHOAL_SLOT_NONE UINT32_MAX
#endif

#define SHOAL_JOB_TOKEN_BYTES 16

/* A worker and the lease it lives under. */
struct shoal_placement {
    uint64_t worker_id;
    struct shoal_node_id node;
    uint32_t slot; /* SHOAL_SLOT_NONE: a driver */
    uint32_t host_epoch;
    uint64_t lease_generation; /* of the slot */
    uint8_t token[SHOAL_JOB_TOKEN_BYTES];
    uint8_t role; /* enum shoal_job_role */
    uint32_t attempt;
    uint32_t rank; /* scripts: place in the gang; tasks: index; others 0 */
};

enum shoal_call_state {
    SHOAL_CALL_WAITING, /* called, no size known yet */
    SHOAL_CALL_RUNNING,
    SHOAL_CALL_DONE,     /* all members applied the last step */
    SHOAL_CALL_FINISHED, /* final files' manifest is committed */
    SHOAL_CALL_FAILED,
    SHOAL_CALL_STATE_COUNT,
};

/* Every engine of a call must agree on these. */
struct shoal_call_sizes {
    uint32_t virtual_workers; /* V; 0: not known yet */
    uint64_t sum_elems;
    uint64_t copy_bytes;
    uint64_t samples;
    uint32_t minibatch;
    uint32_t data_epochs;
    uint64_t steps_per_epoch;
    uint8_t metric_count;
    char metric_names[SHOAL_METRICS_MAX][SHOAL_NAME_TEXT_BYTES];
    char numeric_class[SHOAL_CLASS_TEXT_BYTES];
};

#define SHOAL_SIGNATURE_TEXT_BYTES 1024
struct shoal_call {
    uint32_t call; /* from 1 */
    uint8_t state; /* enum shoal_call_state */
    uint64_t job_seed;
    uint32_t engines_max;
    struct shoal_hash bundle;
    char signature[SHOAL_SIGNATURE_TEXT_BYTES];
    struct shoal_call_sizes sizes;
    uint64_t final_step;
    uint64_t state_digest;
    uint64_t logged_step;       /* the driver's loggers saw the records up to here */
    uint64_t records_acked;     /* the ledger held the records up to here */
    struct shoal_hash snapshot; /* zero: none */
    uint64_t snapshot_step;
    struct shoal_hash files; /* manifest of the final files; zero: none */
};

/* One data epoch of one call, for curves. Values in millionths. */
struct shoal_data_epoch {
    uint32_t call;
    uint32_t data_epoch;
    uint64_t step;
    uint32_t engines;
    int64_t loss_micro;
    int64_t metric_micro; /* the first metric, if any */
};

/* How far a recovery generation numbers its epochs above the newest that the surviving replica knew: the lost majority
 * may have committed some more. Not a multiple of what a transport's tag holds of an epoch. */
#define SHOAL_JOB_EPOCHS_SKIPPED ((1u << 20) + 512)

/* Calls to train() of one job, and data epochs kept (the oldest is dropped). */
#define SHOAL_CALLS_MAX 16
#define SHOAL_DATA_EPOCHS_MAX 128
/* A job's workers, leaving ones and drivers included: of the largest job, and of a plain one. Replicas of all versions refuse
 * what is beyond the latter at the same entry. */
#define SHOAL_PLACEMENTS_MAX (SHOAL_JOB_WORKERS_MAX + 16)
#define SHOAL_PLACEMENTS_PLAIN (SHOAL_JOB_WORKERS_PLAIN + 16)

struct shoal_job {
    struct shoal_job_id id;
    uint64_t ticket_ms; /* of issue: order of claims */
    struct shoal_node_id founder;
    struct shoal_view spec_bytes; /* owned */
    struct shoal_job_spec spec;   /* its views point into spec_bytes */
    uint64_t applied;             /* index of the last entry applied */
    uint64_t digest;              /* over all entries applied; equal in all replicas at one index */
    uint64_t refused;             /* entries that changed nothing */

    uint32_t generation; /* recovery generation, from 1 */
    bool unsettled;      /* leases of the generation before may stand that this log does not name: see lead_place.c */
    uint8_t state;       /* enum shoal_job_state */
    bool stop;           /* a user asked for the end */
    bool deleted;        /* remove when ended */
    bool result_wanted;  /* the driver or script ended well; the final manifest is being made */
    uint32_t attempt;    /* from 1; scripts: attempts started */
    int32_t exit_code;   /* -1: unknown */
    uint64_t create_ms;  /* wall clock, display */
    uint64_t start_ms;
    uint64_t end_ms;
    char reason[SHOAL_JOB_REASON_BYTES]; /* why it ended, or what the last failure was */
    struct shoal_hash result;            /* manifest of RESULT_DIR; zero: none */
    struct shoal_hash archived;          /* its record in the archive, final from here on; zero: none */

    uint64_t workers_made; /* counts worker ids */
    uint32_t placement_count;
    uint32_t placement_cap; /* SHOAL_PLACEMENTS_PLAIN, or of a wide job SHOAL_PLACEMENTS_MAX */
    struct shoal_placement *placements;
    uint32_t call_count; /* calls[i] is call i + 1 */
    uint32_t data_epoch_count;

    struct shoal_call *calls;             /* SHOAL_CALLS_MAX; NULL: not elastic */
    struct shoal_worker_epoch *epoch;     /* the newest; e 0: none yet. NULL: not elastic */
    struct shoal_data_epoch *data_epochs; /* SHOAL_DATA_EPOCHS_MAX, in order. NULL: not elastic */
    struct shoal_tasks *tasks;            /* of an array. NULL: not an array */

    uint8_t *document;     /* of a service, SHOAL_SERVICE_DOCUMENT_BYTES_MAX: what is written of it now. NULL: no service */
    uint32_t document_len; /* at first the specification's profile */
    uint32_t revision;     /* of the document: how often it was edited */
};

/* The founding record; `spec` is copied. */
struct shoal_job_founding {
    struct shoal_job_id id;
    uint64_t ticket_ms;
    uint64_t create_ms;
    struct shoal_node_id founder;
    uint32_t generation; /* 1, or as RECOVER found it */
    struct shoal_view spec;
};

/* In state PENDING_CRD_SCHEDULER. MALFORMED: the specification does not decode. FULL: no memory. */
SHOAL_MUST_CHECK enum shoal_err shoal_job_create(struct shoal_job **job, const struct shoal_job_founding *founding);
void shoal_job_destroy(struct shoal_job *job); /* accepts NULL */

/* ---- Applying the log ------------------------------------------------------------------------------------------- */

struct shoal_job_entry; /* job_entry.h */

/* The parts that an apply changed. */
#define SHOAL_JOB_CHANGED_STATE 1u
#define SHOAL_JOB_CHANGED_PLACES 2u
#define SHOAL_JOB_CHANGED_EPOCH 4u
#define SHOAL_JOB_CHANGED_CALLS 8u
#define SHOAL_JOB_CHANGED_PROGRESS 16u
#define SHOAL_JOB_CHANGED_RESULT 32u
#define SHOAL_JOB_CHANGED_FLAGS 64u /* stop, deleted, generation */
#define SHOAL_JOB_CHANGED_REFUSED                                                                                      \
    128u /* decoded, but makes no sense in this state (or did not decode): nothing changed */

/* Apply the entry at `index` (above `applied`). Deterministic; allocates nothing. `scratch` is the caller's memory for
 * the decoded entry. Also moves the digest for entries refused. */
unsigned shoal_job_apply(struct shoal_job *job, uint64_t index, struct shoal_view bytes,
                         struct shoal_job_entry *scratch);

/* ---- Snapshots --------------------------------------------------------------------------------------------------- */

/* At most this many bytes of snapshot. */
#define SHOAL_JOB_SNAPSHOT_BYTES_MAX                                                                                   \
    (SHOAL_JOB_SPEC_BYTES_MAX + SHOAL_JOB_ENTRY_BYTES_MAX + SHOAL_SERVICE_DOCUMENT_BYTES_MAX + 96 * SHOAL_KIB + 13 * SHOAL_ARRAY_TASKS_MAX)
SHOAL_MUST_CHECK enum shoal_err shoal_job_snapshot_encode(const struct shoal_job *job, uint8_t *bytes, size_t cap,
                                                          size_t *len);
SHOAL_MUST_CHECK enum shoal_err shoal_job_restore(struct shoal_job **job, struct shoal_view bytes);

/* ---- Looking ---------------------------------------------------------------------------------------------------- */

const struct shoal_placement *shoal_job_find_worker(const struct shoal_job *job, uint64_t worker_id);
const struct shoal_placement *shoal_job_driver(const struct shoal_job *job);   /* NULL: none */
struct shoal_call *shoal_job_call(const struct shoal_job *job, uint32_t call); /* NULL: not called */
const struct shoal_call *
shoal_job_running_call(const struct shoal_job *job);  /* WAITING or RUNNING or DONE; NULL: none */
uint32_t shoal_job_held(const struct shoal_job *job); /* placements with a slot */
/* Workers that one PLACE entry of it may add, and members of its epochs. */
static inline uint32_t shoal_job_workers_bound(const struct shoal_job *job)
{
    return shoal_job_spec_is_wide(&job->spec) ? SHOAL_JOB_WORKERS_MAX : SHOAL_JOB_WORKERS_PLAIN;
}

/* ---- Arrays ------------------------------------------------------------------------------------------------------ */

/* The positions of up to `cap` tasks that are PENDING, the first ones first. Returns how many. */
uint32_t shoal_job_tasks_pending(const struct shoal_job *job, uint32_t *positions, uint32_t cap);
/* How many tasks may be placed now beside those that run, by the array's own limit and by SHOAL_PLACE_TASKS_MAX (T3). */
uint32_t shoal_job_tasks_room(const struct shoal_job *job);
/* The exit code of the whole: 0 when every task is DONE, else that of the first task in the array's order that is
 * not; -1 when that one has none. `position`: of that task, or SHOAL_ARRAY_NONE. */
int32_t shoal_job_tasks_exit(const struct shoal_job *job, uint32_t *position);
/* A page of the table. NOT_FOUND: the job is no array. INVALID: the array has no such index, or the limit is none. */
SHOAL_MUST_CHECK enum shoal_err shoal_job_tasks_page(const struct shoal_job *job, const struct shoal_tasks_ask *ask,
                                                     struct shoal_tasks_page *page, struct shoal_msg *msg);

#endif
