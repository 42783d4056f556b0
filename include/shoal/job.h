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
 * J5. A recovery generation begins without scripts, drivers and members of an epoch: those of before are void. Its
 *     epochs are numbered above all of before, known here or not. Engines may come along: what they compute is fenced
 *     by epochs, and has the same bits whoever computes it.
 * J9. Plain scripts end in one entry: RESULT takes the job to FINISHED and its placements with it. It is proposed when
 *     every script has ended with 0. Drivers and arrays commit their end first (`result_wanted`), then the result.
 * J4. Memory: taken at create and restore from the specification's size; apply allocates nothing. */
#ifndef SHOAL_JOB_H
#define SHOAL_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/array.h"
#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/ids.h"
#include "shoal/limits.h"
#include "shoal/worker.h"

#define SHOAL_JOB_VERSION 1

/* ---- The specification ----------------------------------------------------------------------------------------- */

#define SHOAL_JOB_TEXT_BYTES 64 /* names: user, plan, framework */
#define SHOAL_JOB_APP_BYTES 128
#define SHOAL_JOB_FILE_BYTES 512 /* paths inside the bundle */
#define SHOAL_JOB_REASON_BYTES 400
#define SHOAL_JOB_LIST_MAX 1024 /* texts in argv, env */

enum shoal_job_device { SHOAL_JOB_DEVICE_AUTO, SHOAL_JOB_DEVICE_CPU, SHOAL_JOB_DEVICE_GPU, SHOAL_JOB_DEVICE_COUNT };

/* A list of texts: each ends with its NUL, one behind the other. */
struct shoal_job_texts {
    uint32_t count;
    struct shoal_view bytes;
};

/* On the wire and in the log: a head (kind SPEC) and a map, decision 0013. The table in sched/job/job_spec.c names its
 * fields. A new field is zero where a job does not use it, and is not written then. A job that an older version must
 * not run without knowing the field says so in `oldest`. */
#define SHOAL_JOB_SPEC_VERSION 3
struct shoal_job_spec {
    uint8_t oldest; /* version that can run it; 0: any that can read it */
    char framework[SHOAL_JOB_TEXT_BYTES];
    char creator[SHOAL_JOB_TEXT_BYTES];
    char submit_user[SHOAL_JOB_TEXT_BYTES];
    char plan[SHOAL_JOB_TEXT_BYTES];
    char app_name[SHOAL_JOB_APP_BYTES];
    char main_file[SHOAL_JOB_FILE_BYTES];
    char model_dir[SHOAL_JOB_FILE_BYTES];
    char data_path[SHOAL_JOB_FILE_BYTES];
    char debug_level[16];
    bool elastic;
    bool user_cmd; /* run argv itself in the work directory, not Python with main_file */
    uint32_t uid;  /* of the creator on the hosts */
    uint32_t workers_min;
    uint32_t workers_max; /* not elastic: the gang, equal to workers_min */
    uint32_t devices_per_worker;
    uint8_t device;              /* enum shoal_job_device */
    uint32_t priority;           /* higher goes first */
    uint64_t pending_timeout_ms; /* 0: none */
    uint64_t worker_memory_bytes;
    uint64_t driver_memory_bytes;
    uint64_t submit_ms;            /* wall clock, display */
    struct shoal_hash bundle_hash; /* zero: no files */
    uint64_t bundle_bytes;
    struct shoal_view args; /* as received, secrets removed */
    struct shoal_view data_json;
    struct shoal_view datastore_meta;
    struct shoal_job_texts argv;
    struct shoal_job_texts env;
    struct shoal_job_texts attrs;
    struct shoal_job_texts labels;
    struct shoal_job_texts notes;
    char array[SHOAL_ARRAY_TEXT_BYTES]; /* "": not an array; else as shoal_array_parse reads it */
    struct shoal_view kept;             /* by decode: fields of a later version, which encode writes back */
};

#define SHOAL_JOB_SPEC_BYTES_MAX (48 * SHOAL_KIB)

/* TOO_BIG: over `cap` or SHOAL_JOB_SPEC_BYTES_MAX. */
SHOAL_MUST_CHECK enum shoal_err shoal_job_spec_encode(const struct shoal_job_spec *spec, uint8_t *bytes, size_t cap,
                                                      size_t *len);
/* Views point into `bytes`. MALFORMED. UNSUPPORTED: it is of a version that this one cannot run. */
SHOAL_MUST_CHECK enum shoal_err shoal_job_spec_decode(struct shoal_view bytes, struct shoal_job_spec *spec);
/* Refuse a specification that can never run: INVALID or UNSUPPORTED with cause and remedy. Call before founding. */
SHOAL_MUST_CHECK enum shoal_err shoal_job_spec_check(const struct shoal_job_spec *spec, struct shoal_msg *msg);
/* The next text of a list, or NULL: for (t = NULL; (t = shoal_job_texts_next(&list, t)) != NULL;) */
const char *shoal_job_texts_next(const struct shoal_job_texts *texts, const char *text);

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
/* A job's workers, leaving ones and drivers included. */
#define SHOAL_PLACEMENTS_MAX 80

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
    struct shoal_placement placements[SHOAL_PLACEMENTS_MAX];
    uint32_t call_count; /* calls[i] is call i + 1 */
    uint32_t data_epoch_count;

    struct shoal_call *calls;             /* SHOAL_CALLS_MAX; NULL: not elastic */
    struct shoal_worker_epoch *epoch;     /* the newest; e 0: none yet. NULL: not elastic */
    struct shoal_data_epoch *data_epochs; /* SHOAL_DATA_EPOCHS_MAX, in order. NULL: not elastic */
    struct shoal_tasks *tasks;            /* of an array. NULL: not an array */
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

/* ---- Log entries ----------------------------------------------------------------------------------------------- */

enum shoal_job_entry_kind {
    SHOAL_JOB_ENTRY_STATE, /* state, exit code, wall time, reason */
    SHOAL_JOB_ENTRY_PLACE, /* workers that come, workers that went */
    SHOAL_JOB_ENTRY_CALL,  /* train() was called */
    SHOAL_JOB_ENTRY_SIZES, /* the first engine loaded it */
    SHOAL_JOB_ENTRY_EPOCH, /* a communicator's epoch; authorises it */
    SHOAL_JOB_ENTRY_CALL_STATE,
    SHOAL_JOB_ENTRY_PROGRESS, /* loggers, ledger, data epoch */
    SHOAL_JOB_ENTRY_SNAPSHOT,
    SHOAL_JOB_ENTRY_RESULT, /* manifest of RESULT_DIR, then the end */
    SHOAL_JOB_ENTRY_STOP,
    SHOAL_JOB_ENTRY_DELETE,
    SHOAL_JOB_ENTRY_RECOVER,  /* recovery generation + 1 (J5) */
    SHOAL_JOB_ENTRY_ARCHIVED, /* its record, of this hash, is on the holders: the group ends */
    SHOAL_JOB_ENTRY_TASKS,    /* of an array: placements that ended, and those that come in their place */
    SHOAL_JOB_ENTRY_KIND_COUNT,
};

/* Workers of one PLACE entry. */
#define SHOAL_PLACE_MAX SHOAL_RANKS_MAX

/* The end of one placement of a task. */
struct shoal_task_end {
    uint64_t worker_id;
    uint8_t outcome;   /* enum shoal_task_outcome */
    int16_t exit_code; /* ENDED: 0 to 255, 128 + a signal; -1: not known */
};

/* One entry, decoded. Large (the epoch): keep one per owner, not on a stack. */
struct shoal_job_entry {
    uint8_t kind;
    uint64_t wall_ms; /* when it was proposed, display */
    union {
        struct {
            uint8_t state;
            int32_t exit_code;
            bool result_wanted;
            char reason[SHOAL_JOB_REASON_BYTES];
        } state;
        struct {
            uint32_t attempt; /* the job's attempt from here on */
            uint32_t add_count;
            struct shoal_placement add[SHOAL_PLACE_MAX];
            uint32_t drop_count;
            uint64_t drop[SHOAL_PLACEMENTS_MAX];
        } place;
        struct {
            uint32_t end_count;
            struct shoal_task_end ends[SHOAL_PLACEMENTS_MAX];
            uint32_t add_count;
            struct shoal_placement add[SHOAL_PLACE_MAX]; /* of role TASK; rank: the task's index, which is PENDING */
        } tasks;
        struct shoal_call
            call; /* CALL: call, job_seed, engines_max, bundle, signature; CALL_STATE: call, state, final_step,
                   * state_digest, files; SNAPSHOT: call, snapshot, snapshot_step; SIZES: call, sizes */
        struct shoal_worker_epoch epoch;
        struct {
            uint32_t call;
            uint64_t logged_step; /* maxima: lower values change nothing */
            uint64_t records_acked;
            bool has_data_epoch;
            struct shoal_data_epoch data_epoch;
        } progress;
        struct shoal_hash result; /* ARCHIVED: of the record */
        struct {
            char by[SHOAL_JOB_TEXT_BYTES];
        } stop;              /* DELETE too */
        uint32_t generation; /* RECOVER */
    } u;
};

/* An entry fits this. */
#define SHOAL_JOB_ENTRY_BYTES_MAX (56 * SHOAL_KIB)

SHOAL_MUST_CHECK enum shoal_err shoal_job_entry_encode(const struct shoal_job_entry *entry, uint8_t *bytes, size_t cap,
                                                       size_t *len);
SHOAL_MUST_CHECK enum shoal_err shoal_job_entry_decode(struct shoal_view bytes, struct shoal_job_entry *entry);

/* Entries that need no controller: for the owner of requests. Return the length; `cap` >= 128. */
size_t shoal_job_entry_stop(uint8_t *bytes, size_t cap, const char *by, uint64_t wall_ms);
size_t shoal_job_entry_delete(uint8_t *bytes, size_t cap, const char *by, uint64_t wall_ms);
size_t shoal_job_entry_recover(uint8_t *bytes, size_t cap, uint32_t generation, uint64_t wall_ms);
size_t shoal_job_entry_archived(uint8_t *bytes, size_t cap, struct shoal_hash record, uint64_t wall_ms);

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

/* ---- Snapshots, copies for others ------------------------------------------------------------------------------- */

/* At most this many bytes of snapshot. */
#define SHOAL_JOB_SNAPSHOT_BYTES_MAX                                                                                   \
    (SHOAL_JOB_SPEC_BYTES_MAX + SHOAL_JOB_ENTRY_BYTES_MAX + 96 * SHOAL_KIB + 13 * SHOAL_ARRAY_TASKS_MAX)
SHOAL_MUST_CHECK enum shoal_err shoal_job_snapshot_encode(const struct shoal_job *job, uint8_t *bytes, size_t cap,
                                                          size_t *len);
SHOAL_MUST_CHECK enum shoal_err shoal_job_restore(struct shoal_job **job, struct shoal_view bytes);

/* The facts that GET answers: flat. (`struct shoal_job_info` is the HTTP API's own.) */
struct shoal_job_facts {
    struct shoal_job_id id;
    uint8_t state;
    bool elastic;
    bool stop;
    bool deleted;
    bool has_metrics;
    char framework[SHOAL_JOB_TEXT_BYTES];
    char creator[SHOAL_JOB_TEXT_BYTES];
    char app_name[SHOAL_JOB_APP_BYTES];
    char reason[SHOAL_JOB_REASON_BYTES];  /* why it ended */
    char pending[SHOAL_JOB_REASON_BYTES]; /* why it waits; "" if it does not */
    uint32_t generation;
    uint32_t attempt;
    uint32_t workers_min, workers_max, workers_now;
    uint32_t priority;
    int32_t exit_code;
    uint64_t ticket_ms, create_ms, start_ms, end_ms;
    struct shoal_node_id leader;
    struct shoal_node_id driver_node; /* zero: none */
    uint64_t term, applied;
    struct shoal_epoch epoch;
    uint32_t call;
    uint64_t step;
    uint64_t logged_step; /* of the newest call */
    uint32_t data_epoch;
    uint32_t rate_milli; /* steps per second x 1000 */
    int64_t loss_micro, metric_micro;
    uint32_t join_pause_us;
    struct shoal_hash result;
    struct shoal_hash files;           /* of the newest finished call */
    struct shoal_view args, data_json; /* into the job, or into the decoded bytes */
    /* Tasks of an array, by state; all 0: not an array. */
    uint32_t task_counts[SHOAL_TASK_STATE_COUNT];
};
#define SHOAL_JOB_FACTS_BYTES_MAX (48 * SHOAL_KIB)
/* All that the replicated state knows; a lead adds progress and the pending text (shoal_lead_facts). */
void shoal_job_facts(const struct shoal_job *job, struct shoal_job_facts *facts);
SHOAL_MUST_CHECK enum shoal_err shoal_job_facts_encode(const struct shoal_job_facts *facts, uint8_t *bytes, size_t cap,
                                                       size_t *len);
SHOAL_MUST_CHECK enum shoal_err shoal_job_facts_decode(struct shoal_view bytes, struct shoal_job_facts *facts);

/* The part of a job that gossip carries: enough for lists and for every node's allocation. */
#define SHOAL_SUMMARY_HOSTS_MAX 12
struct shoal_job_summary {
    struct shoal_job_id id;
    uint8_t state;
    uint8_t device;
    bool elastic;
    bool has_metrics;
    char creator[SHOAL_JOB_TEXT_BYTES];
    char framework[SHOAL_JOB_TEXT_BYTES];
    char app_name[SHOAL_JOB_TEXT_BYTES]; /* cut */
    char pending[96];                    /* cut; when ended: the reason */
    uint32_t priority;
    uint64_t ticket_ms;
    /* Demand on slots right now: 0 and 0 when it wants none (ended, or between two calls). */
    uint32_t want_min, want_max;
    uint32_t workers_min, workers_max; /* of the specification, for lists */
    uint32_t held;
    uint32_t class_hash; /* 0: any host; else of shoal_class_hash(numeric class) */
    struct shoal_node_id leader;
    uint64_t term;
    struct shoal_epoch epoch;
    uint64_t step;
    uint32_t data_epoch;
    uint32_t rate_milli;
    int64_t loss_micro, metric_micro;
    uint64_t create_ms, start_ms, end_ms;
    /* Tasks of an array: all, DONE and FAILED. 0: not an array. */
    uint32_t tasks_all, tasks_done, tasks_failed;
    /* The hosts where it holds slots; those beyond the bound are left out (`held` counts all). */
    uint8_t host_count;
    struct {
        struct shoal_node_id node;
        uint64_t slots; /* bit i: slot i */
    } hosts[SHOAL_SUMMARY_HOSTS_MAX];
};
/* At most SHOAL_RECORD_PAYLOAD_MAX bytes. */
SHOAL_MUST_CHECK enum shoal_err shoal_job_summary_encode(const struct shoal_job_summary *summary, uint8_t *bytes,
                                                         size_t cap, size_t *len);
SHOAL_MUST_CHECK enum shoal_err shoal_job_summary_decode(struct shoal_view bytes, struct shoal_job_summary *summary);
uint32_t shoal_class_hash(const char *numeric_class); /* never 0 for a text that is not empty */

/* ---- Looking ---------------------------------------------------------------------------------------------------- */

const struct shoal_placement *shoal_job_find_worker(const struct shoal_job *job, uint64_t worker_id);
const struct shoal_placement *shoal_job_driver(const struct shoal_job *job);   /* NULL: none */
struct shoal_call *shoal_job_call(const struct shoal_job *job, uint32_t call); /* NULL: not called */
const struct shoal_call *
shoal_job_running_call(const struct shoal_job *job);  /* WAITING or RUNNING or DONE; NULL: none */
uint32_t shoal_job_held(const struct shoal_job *job); /* placements with a slot */

/* ---- Arrays ------------------------------------------------------------------------------------------------------ */

/* The positions of up to `cap` tasks that are PENDING, the first ones first. Returns how many. */
uint32_t shoal_job_tasks_pending(const struct shoal_job *job, uint32_t *positions, uint32_t cap);
/* How many tasks may be placed now beside those that run, by the array's own limit and by SHOAL_PLACE_MAX (T3). */
uint32_t shoal_job_tasks_room(const struct shoal_job *job);
/* The exit code of the whole: 0 when every task is DONE, else that of the first task in the array's order that is
 * not; -1 when that one has none. `position`: of that task, or SHOAL_ARRAY_NONE. */
int32_t shoal_job_tasks_exit(const struct shoal_job *job, uint32_t *position);
/* A page of the table. NOT_FOUND: the job is no array. INVALID: the array has no such index, or the limit is none. */
SHOAL_MUST_CHECK enum shoal_err shoal_job_tasks_page(const struct shoal_job *job, const struct shoal_tasks_ask *ask,
                                                     struct shoal_tasks_page *page, struct shoal_msg *msg);

#endif
