/* Reading a job's ledger (agent_ledger.c says what it is). */
#ifndef SHOAL_NODE_AGENT_LEDGER_H
#define SHOAL_NODE_AGENT_LEDGER_H

#include "agent.h"

#include "shoal/step_record.h"

/* The length of a record, at most: a longer one is damage. */
#define LEDGER_RECORD_BYTES_MAX (2 * SHOAL_MIB)

/* How far a job has come, by its ledger. */
struct ledger_progress {
    uint32_t call;
    uint64_t step; /* of the last record, of any kind */
    uint64_t train_steps;
    uint32_t data_epoch;
    uint32_t rate_milli; /* train steps per second x 1000, over about 2 s */
    bool has_metrics;
    double loss, metric;         /* of the last train step */
    double val_loss, val_metric; /* of the last validation */
};

/* Loss and metric in millionths, as the archive keeps them. False, and nothing is set: there is none, or one is no number that
 * can be kept so. */
bool ledger_progress_micro(const struct ledger_progress *progress, int64_t *loss, int64_t *metric);

/* False: its ledger is not open here, or is still read. */
bool agent_ledger_progress(const struct agent_job *job, struct ledger_progress *progress);

/* The same, or by the file of a ledger that is not open; what is only read is not kept open. False: there is none here, or a
 * thread still reads it, for a later look. */
bool agent_ledger_look(struct agent *agent, struct shoal_job_id id, struct ledger_progress *progress);

/* Records of `call` after `step` into `bytes`, whole ones only; their count, and the first one's step. */
size_t agent_ledger_read(struct agent *agent, struct agent_job *job, uint32_t call, uint64_t step, uint8_t *bytes,
                         size_t cap, uint64_t *first, uint32_t *count);

/* Calls back, on a later turn or at once, when a majority of the guardians has the records up to (call, step) on its disks;
 * call 0: all that are here now. False: not within that time. */
typedef void ledger_settled_fn(void *arg, bool held);
void agent_ledger_settle(struct agent *agent, struct agent_job *job, uint32_t call, uint64_t step, uint64_t wait_ns,
                         ledger_settled_fn *done, void *arg);

#endif
