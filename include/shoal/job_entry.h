/* The entries of a job's log, and their bytes. What each of them changes: shoal/job.h. */
#ifndef SHOAL_JOB_ENTRY_H
#define SHOAL_JOB_ENTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/job.h"

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
    SHOAL_JOB_ENTRY_SCALE,    /* of a service: how many replicas are to run from here on */
    SHOAL_JOB_ENTRY_EDIT,     /* of a service: its document from here on, made from the revision that it names */
    SHOAL_JOB_ENTRY_KIND_COUNT,
};

/* Workers of one PLACE entry, tasks of one TASKS entry, and placements that end in one. */
#define SHOAL_PLACE_MAX SHOAL_JOB_WORKERS_MAX
#define SHOAL_PLACE_TASKS_MAX SHOAL_JOB_WORKERS_PLAIN
#define SHOAL_TASK_ENDS_MAX SHOAL_PLACEMENTS_PLAIN

/* The end of one placement of a task. */
struct shoal_task_end {
    uint64_t worker_id;
    uint8_t outcome;   /* enum shoal_task_outcome */
    int16_t exit_code; /* ENDED: 0 to 255, 128 + a signal; -1: not known */
};

#define SHOAL_REPLICAS_KEEP UINT8_MAX
/* Revision and replicas, before the document. */
#define SHOAL_EDIT_HEAD_BYTES 5u

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
            struct shoal_task_end ends[SHOAL_TASK_ENDS_MAX];
            uint32_t add_count;
            struct shoal_placement add[SHOAL_PLACE_TASKS_MAX]; /* of role TASK; rank: the task's index, which is PENDING */
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
        } stop; /* DELETE too */
        struct {
            uint32_t replicas;
            char by[SHOAL_JOB_TEXT_BYTES];
        } scale;
        struct {
            uint32_t revision;          /* refused where the document has another one by now */
            uint8_t replicas;           /* as SCALE; SHOAL_REPLICAS_KEEP: as they are */
            struct shoal_view document; /* into the decoded bytes */
            char by[SHOAL_JOB_TEXT_BYTES];
        } edit;
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
size_t shoal_job_entry_scale(uint8_t *bytes, size_t cap, uint32_t replicas, const char *by, uint64_t wall_ms);
/* `cap` >= 128 and the document's length. `command`: as an EDIT request has it: revision, replicas, document. */
size_t shoal_job_entry_edit(uint8_t *bytes, size_t cap, struct shoal_view command, const char *by, uint64_t wall_ms);
size_t shoal_job_entry_recover(uint8_t *bytes, size_t cap, uint32_t generation, uint64_t wall_ms);
size_t shoal_job_entry_archived(uint8_t *bytes, size_t cap, struct shoal_hash record, uint64_t wall_ms);

#endif
