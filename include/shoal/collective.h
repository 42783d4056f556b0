/* libshoal: the worker's side of Shoal (PROTOCOLS 7, 11 to 14). Plain C types only, so that Python may load it through
 * ctypes; no call needs or takes the interpreter lock, and every waiting call may be made without it.
 *
 * The life of an engine:
 *
 *   shoal_comm_open
 *   loop: shoal_comm_wait_call            -> a bundle to load, or the end
 *         (load it, fork data loaders)
 *         shoal_comm_ready                <- sizes; from here on the library thread runs
 *         shoal_comm_enter                -> an epoch with me in it: first take the state, or give it (below)
 *         step: shoal_step_assign         -> the mini-batches v that are mine (those of which no sum is held yet)
 *               for each v: gradient into the work buffer, shoal_step_publish
 *               shoal_step_reduce, shoal_step_complete, shoal_step_apply_allowed; then apply the result buffer
 *               any of them RANK_LOST: shoal_comm_enter without a time limit, then assign the step it names
 *         shoal_comm_done, shoal_comm_enter ... -> WRITE_FINAL, RELEASED
 *   shoal_comm_close
 *
 * I1. Inside a host a worker writes only its own region of the arena; what a dead or stopped worker may still write can
 *     spoil nothing of a later epoch.
 * I2. Words (published, reduced, complete) are set only while the epoch is open, under the lock that closing it takes.
 * I3. After apply_allowed said OK, or enter said `apply_result`, the caller applies that step before its next call.
 * I4. The sum of a step has the same bits for every number and placement of workers.
 *
 * All functions return an enum shoal_err (an int for ctypes; SHOAL_OK is 0) unless said; `shoal_comm_error` has the
 * text of the last one. One thread of the caller at a time, except shoal_comm_set_activity, shoal_comm_error and
 * shoal_comm_failed. */
#ifndef SHOAL_COLLECTIVE_H
#define SHOAL_COLLECTIVE_H

#include <stdint.h>

#include "shoal/error.h"

#define SHOAL_API __attribute__((visibility("default")))

struct shoal_comm;

/* The ways in which a wait ends. */
enum shoal_comm_event {
    SHOAL_EVENT_TIMEOUT,       /* nothing yet; call again */
    SHOAL_EVENT_CALL,          /* wait_call: a train() call to load */
    SHOAL_EVENT_ENTERED,       /* enter: I am a member of the epoch described */
    SHOAL_EVENT_WRITE_FINAL,   /* enter after done: write the final files, then shoal_comm_files_written */
    SHOAL_EVENT_RELEASED,      /* exit 0 */
    SHOAL_EVENT_STOPPED,       /* end now; `text` and `reason` say why */
    SHOAL_EVENT_TRAIN_STATE,   /* driver */
    SHOAL_EVENT_TRAIN_RECORDS, /* driver */
};

/* The ways in which a member comes to its state right after it entered. */
enum shoal_comm_state {
    SHOAL_STATE_KEEP, /* I have it (after applying the result, if `apply_result`) */
    SHOAL_STATE_LOAD, /* load it: from `snapshot_path`, or, if that is empty, as the bundle has it (step 0) */
    SHOAL_STATE_TAKE, /* shoal_comm_state_size/_take until the donor says the end */
};

/* ---- lifecycle ---- */

/* Open from the environment of shoal/worker.h: connects to the agent and says HELLO; starts no thread yet, so data
 * loaders may be forked until shoal_comm_ready. Without SHOAL_AGENT_SOCKET: solo, a communicator of one in private
 * memory with the same calls (wait_call answers at once with call 1, 2, ... and an empty path).
 * `role`: enum shoal_role. `numeric_class`: instruction set, framework build, threads, device, in one line.
 * `error`: at least 400 bytes, or NULL; filled on failure. */
SHOAL_API enum shoal_err shoal_comm_open(struct shoal_comm **comm, uint32_t role, const char *numeric_class,
                                         char *error);
/* Solo whatever the environment says. */
SHOAL_API enum shoal_err shoal_comm_open_solo(struct shoal_comm **comm, char *error);
/* Leave: closes the epoch, ends the thread, frees everything. NULL is fine. Pointers into buffers are void
 * afterwards. */
SHOAL_API void shoal_comm_close(struct shoal_comm *comm);
SHOAL_API const char *shoal_comm_error(const struct shoal_comm *comm);
SHOAL_API int shoal_comm_is_solo(const struct shoal_comm *comm);

struct shoal_comm_call {
    uint32_t event; /* TIMEOUT, CALL, RELEASED, STOPPED */
    uint32_t call;
    uint64_t job_seed;
    uint32_t reason; /* STOPPED: enum shoal_stop_reason */
    char bundle_path[1024];
    char text[256];
};
/* Wait for the next train() call. timeout_ms < 0: no limit. */
SHOAL_API enum shoal_err shoal_comm_wait_call(struct shoal_comm *comm, int timeout_ms, struct shoal_comm_call *call);

/* The sizes of a call; equal in every engine. */
struct shoal_comm_plan {
    uint32_t call;
    uint32_t virtual_workers; /* V: mini-batches of a full step */
    uint64_t sum_elems;       /* float32 elements of the gradient, all parameters one after the other */
    uint64_t copy_bytes;      /* buffers (BatchNorm), copied from v = 0 */
    uint64_t samples;
    uint32_t minibatch;
    uint32_t data_epochs;
    uint64_t steps_per_epoch;
    uint32_t param_count;  /* bits of the touched map */
    uint32_t metric_count; /* values per mini-batch, <= 16; [0] is the loss */
    const char *const *metric_names;
    uint64_t scratch_bytes; /* arena memory of shoal_comm_scratch for all_reduce and broadcast; 0: 1 MiB */
    uint32_t update_vectors; /* of shoal_step_update (collective_update.h); 0: the caller updates by itself */
};
/* Lay out the arena, start the library thread and the transports, tell the agent. May be called again for the next
 * call; then earlier slot pointers are void. TOO_BIG: beyond limits.h, or no memory. */
SHOAL_API enum shoal_err shoal_comm_ready(struct shoal_comm *comm, const struct shoal_comm_plan *plan);

/* The buffers, valid from ready to the next ready or close. */
SHOAL_API float *shoal_comm_work(struct shoal_comm *comm);   /* sum_elems: .grad during backward */
SHOAL_API float *shoal_comm_result(struct shoal_comm *comm); /* sum_elems: .grad during optimizer.step; read only */
/* The slices of the result as they lie in memory whose address stays until the next ready, unlike the pages of
 * shoal_comm_result, which change with the epoch. To be asked for again after each reduce or apply_result. */
struct shoal_result_part {
    uint64_t begin; /* in elements */
    uint64_t elems;
    float *values;
};
SHOAL_API enum shoal_err shoal_comm_result_parts(struct shoal_comm *comm, struct shoal_result_part *parts, uint32_t cap,
                                                 uint32_t *count);
SHOAL_API uint8_t *shoal_comm_copy_work(struct shoal_comm *comm); /* copy_bytes: buffers of v = 0, before its publish */
SHOAL_API uint8_t *shoal_comm_copy_result(struct shoal_comm *comm); /* copy_bytes: the committed buffers */
SHOAL_API uint8_t *shoal_comm_touched(struct shoal_comm *comm); /* (param_count + 7) / 8: OR over v, of the result */
SHOAL_API void *shoal_comm_scratch(struct shoal_comm *comm, uint64_t *bytes);

struct shoal_comm_entry {
    uint32_t event; /* TIMEOUT, ENTERED, WRITE_FINAL, RELEASED, STOPPED */
    uint32_t reason;
    uint32_t e;
    uint32_t k;
    uint32_t rank;
    uint32_t size;
    uint64_t decided_step; /* D; the step to assign next is D + 1 */
    uint32_t apply_result; /* 1: the result buffer holds step D and I have not applied it: apply it now */
    uint32_t state;        /* enum shoal_comm_state */
    uint32_t give;         /* 1: I am the donor of joiners: shoal_comm_state_give ..., shoal_comm_state_end */
    uint32_t joiners;      /* members that take the state in this epoch */
    uint64_t donor;
    uint64_t records_acked;
    uint32_t call;
    uint32_t hosts;
    char snapshot_path[1024];
    char text[256];
};
/* Leave the epoch I am in, if any (CLOSED), and wait for an EPOCH with me in it; wires up the transports, and fetches
 * the result of step D from its source where it is missing here. A revoke during all that is waited out inside. */
SHOAL_API enum shoal_err shoal_comm_enter(struct shoal_comm *comm, int timeout_ms, struct shoal_comm_entry *entry);

/* The state of a joiner: tensors 0, 1, ... in order, each given whole; the caller's first one usually describes the
 * others. A member that neither gives nor takes does nothing. RANK_LOST: the epoch is revoked; a taker has no state. */
SHOAL_API enum shoal_err shoal_comm_state_give(struct shoal_comm *comm, uint32_t tensor, const void *bytes,
                                               uint64_t len);
SHOAL_API enum shoal_err shoal_comm_state_end(struct shoal_comm *comm);
/* Size of the next tensor. NOT_FOUND: the donor said the end; I have the state of step D now. */
SHOAL_API enum shoal_err shoal_comm_state_size(struct shoal_comm *comm, uint32_t *tensor, uint64_t *len);
SHOAL_API enum shoal_err shoal_comm_state_take(struct shoal_comm *comm, uint32_t tensor, void *bytes, uint64_t len);

/* The last step is applied. Enter again for what comes (another epoch, WRITE_FINAL, RELEASED). */
SHOAL_API enum shoal_err shoal_comm_done(struct shoal_comm *comm, uint64_t final_step, uint64_t state_digest);
SHOAL_API enum shoal_err shoal_comm_files_written(struct shoal_comm *comm, uint64_t final_step);
/* Why this worker cannot go on; `text` begins with the cause. */
enum shoal_comm_failure {
    SHOAL_COMM_FAILED_WORKER,    /* another one in its place may do better */
    SHOAL_COMM_FAILED_USER_CODE, /* none would: the call fails */
    SHOAL_COMM_FAILED_HOST,      /* none would on this host, as with another version of Python: the job goes on without it */
};
SHOAL_API enum shoal_err shoal_comm_failed(struct shoal_comm *comm, int failure, const char *text);
SHOAL_API enum shoal_err shoal_comm_snapshot(struct shoal_comm *comm, uint64_t step, const char *path);

/* For `top` and the watchdog: enum shoal_activity. */
SHOAL_API void shoal_comm_set_activity(struct shoal_comm *comm, uint32_t activity);
/* 1: the epoch I am in is revoked (cheap; a caller between mini-batches may look). */
SHOAL_API int shoal_comm_revoked(struct shoal_comm *comm);
SHOAL_API uint32_t shoal_comm_rank(const struct shoal_comm *comm);
SHOAL_API uint32_t shoal_comm_size(const struct shoal_comm *comm);
SHOAL_API uint64_t shoal_comm_worker_id(const struct shoal_comm *comm);
SHOAL_API uint64_t shoal_comm_applied_step(const struct shoal_comm *comm);
/* Looks for the UCX that this process would load: 0, and its version and path are in `text`; else 1, and why there is none. */
SHOAL_API int shoal_ucx_look(char *text, size_t cap);
/* Order-independent digest of memory, to be added up over tensors: of the final state, for shoal_comm_done. */
SHOAL_API uint64_t shoal_digest(const void *bytes, uint64_t len, uint64_t position);

/* ---- the step transaction (PROTOCOLS 11): assign, publish, reduce, complete, apply_allowed, retry ---- */

struct shoal_step {
    uint64_t step;          /* from 1 within the call: D + 1 */
    uint32_t kind;          /* enum shoal_step_kind; only TRAIN has a gradient */
    uint32_t data_epoch;    /* from 0 */
    uint32_t step_in_epoch; /* from 0 */
    uint32_t v_count;       /* mini-batches of this step, 1 .. V (the last step of a data epoch may have fewer) */
};
/* The mini-batches to compute here, in the order of `v` (not always ascending), `cap` >= V. May be none. Repeating the
 * step after a retry names only what is missing; a sum that is held is used again. INVALID: not the next step. */
SHOAL_API enum shoal_err shoal_step_assign(struct shoal_comm *comm, const struct shoal_step *step, uint32_t *v,
                                           uint32_t cap, uint32_t *count);

struct shoal_minibatch {
    uint32_t v;
    uint32_t samples; /* n_v, > 0 */
    uint64_t id_low;  /* shoal_sample_sum over the ids that the data set handed out */
    uint64_t id_high;
    const double *values;   /* metric_count of them */
    const uint8_t *touched; /* NULL: every parameter */
};
/* Take the work buffer (gradient g_v, a mean over n_v samples) into the sums; the buffer may be overwritten at once. v
 * = 0: the copy slot too. RANK_LOST: taken and kept, but the epoch is revoked: retry now. */
SHOAL_API enum shoal_err shoal_step_publish(struct shoal_comm *comm, const struct shoal_minibatch *minibatch);
/* Part of the gradient of v, [offset, offset + elems) of the vector, while the rest is still being computed: it goes into
 * the sums from where it lies, and the work buffer's is not read. `grad` NULL: zeroes. The publish of v that follows, with
 * as many samples, finds every element given once. Of the last mini-batch that is missing here, what is given at all
 * members of a host is added up at once, within their calls; nobody writes to the work buffer then before the step is
 * applied. `elems` 0: forget the parts of a mini-batch that was not published, which begins again. INVALID: not assigned
 * here, or beyond the vector. */
SHOAL_API enum shoal_err shoal_step_part(struct shoal_comm *comm, uint32_t v, uint32_t samples, uint64_t offset,
                                         uint64_t elems, const float *grad);
/* The same where the caller puts the parts by itself, as from a device: before the first part, `into` is where the whole vector
 * goes (sum_elems). There lies the gradient times its `samples`, of a fused node the sum of its leaves so weighted, by the tree;
 * never a negative zero. A part whose `grad` is that place is not copied any more. INVALID: as for a part, or parts are given. */
SHOAL_API enum shoal_err shoal_step_place(struct shoal_comm *comm, uint32_t v, uint32_t samples, float **into);
/* Before the first gradient of a train step, in an epoch of one member: the caller adds up the gradients by itself, where they
 * are (on a device), by the tree of the step, and applies that sum once the step is committed. Publish takes only ids and
 * values then; work and result buffer are not touched, and the record's digest is 0. If the step has to be repeated, all of
 * its mini-batches are missing. INVALID: there are others, or sums of the step are held. */
SHOAL_API enum shoal_err shoal_step_keep(struct shoal_comm *comm);
/* The `count` mini-batches from v on, a node of the tree over the step's (tree.h), are computed here as one: the gradient
 * that comes next, whole or in parts, is the mean over all their `samples`. Then all are published, v itself last: it
 * takes the gradient, the others only their ids and values. Bits then depend on who computes what. INVALID: no node, or
 * not all of it missing here. */
SHOAL_API enum shoal_err shoal_step_fuse(struct shoal_comm *comm, uint32_t v, uint32_t count, uint32_t samples);
/* All my mini-batches are in: wait for everyone's and reduce. */
SHOAL_API enum shoal_err shoal_step_reduce(struct shoal_comm *comm);
/* I have the result: say so. */
SHOAL_API enum shoal_err shoal_step_complete(struct shoal_comm *comm);
/* Everyone has it: apply now. The record of the step is kept from here on. */
SHOAL_API enum shoal_err shoal_step_apply_allowed(struct shoal_comm *comm);

/* The committed step's mini-batches, after apply_allowed (or enter with apply_result): v_count tuples. */
struct shoal_committed {
    uint64_t step;
    uint64_t digest;
    uint64_t samples; /* sum of n_v */
    uint32_t kind;
    uint32_t data_epoch;
    uint32_t step_in_epoch;
    uint32_t v_count;
    uint32_t e;
    uint32_t k;
};
SHOAL_API enum shoal_err shoal_step_committed(struct shoal_comm *comm, struct shoal_committed *committed);
/* Mean of `metric` weighted by samples, added in the tree of the step: the same bits everywhere. */
SHOAL_API enum shoal_err shoal_step_mean(struct shoal_comm *comm, uint32_t metric, double *mean);
/* Bytes of the last record (shoal/step_record.h), valid until the next step. */
SHOAL_API enum shoal_err shoal_step_record(struct shoal_comm *comm, const uint8_t **bytes, uint64_t *len);

/* ---- collectives outside of steps, the plain ones on host memory; all of them, and their rules: collective_op.h ---- */

enum shoal_type {
    SHOAL_FLOAT32,
    SHOAL_FLOAT64,
    SHOAL_INT32,
    SHOAL_INT64,
    SHOAL_FLOAT16,
    SHOAL_BFLOAT16,
    SHOAL_TYPE_COUNT
};

/* Sum of `elems` values of `type` (enum shoal_type) over all ranks, in place. Memory inside shoal_comm_scratch (at the same
 * offset everywhere) is used as it lies, other is staged. */
SHOAL_API enum shoal_err shoal_comm_all_reduce(struct shoal_comm *comm, void *values, uint64_t elems, uint32_t type);
SHOAL_API enum shoal_err shoal_comm_broadcast(struct shoal_comm *comm, void *bytes, uint64_t len, uint32_t root);
SHOAL_API enum shoal_err shoal_comm_barrier(struct shoal_comm *comm);

/* ---- the driver ---- */

/* train() was called: the bundle lies at a local path. Sent again by the library after a reconnect. */
SHOAL_API enum shoal_err shoal_driver_train(struct shoal_comm *comm, uint32_t call, uint64_t job_seed,
                                            uint32_t engines_max, const char *bundle_path, const char *signature);
struct shoal_driver_event {
    uint32_t event; /* TIMEOUT, TRAIN_STATE, TRAIN_RECORDS, RELEASED, STOPPED */
    uint32_t call;
    uint32_t state; /* enum shoal_train_state */
    uint32_t engines;
    uint64_t acked_step;
    uint64_t final_step;
    uint64_t first_step;
    uint32_t record_count;
    uint32_t reason;
    uint64_t records_len;
    const uint8_t *records; /* step records, valid until the next wait */
    char files_path[1024];
    char text[4096];
};
SHOAL_API enum shoal_err shoal_driver_wait(struct shoal_comm *comm, int timeout_ms, struct shoal_driver_event *event);
/* The loggers have seen the records up to this step. */
SHOAL_API enum shoal_err shoal_driver_ack(struct shoal_comm *comm, uint32_t call, uint64_t step);

/* ---- samples, for callers without a C compiler ---- */

/* The keyed sums of the ids: two words. */
SHOAL_API void shoal_sample_sums(uint64_t job_seed, const uint64_t *ids, uint64_t count, uint64_t sum[2]);

#endif
