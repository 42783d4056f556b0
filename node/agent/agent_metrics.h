/* The loss curve of a job: what its ledger says of each committed step (agent_metrics.c). */
#ifndef SHOAL_NODE_AGENT_METRICS_H
#define SHOAL_NODE_AGENT_METRICS_H

#include "agent.h"

#define AGENT_CURVES_MAX 256    /* that are read or wait */
#define AGENT_CURVES_AT_ONCE 2u /* of them are read: half of the pool's threads */

/* Train steps from `from` to `to`, counted over all calls from 1 on, as at most `points_max` points. */
struct agent_metrics_ask {
    uint64_t from, to;
    uint32_t points_max; /* 1 to SHOAL_METRIC_POINTS_MAX */
};

/* `whole`: no record is missing that a majority of the guardians has. */
typedef void agent_metrics_fn(void *arg, enum shoal_err err, const char *text, struct shoal_view json, bool whole);
/* Of a job whose ledger may lie here; read on a thread. FULL: too many wait, or no memory; `done` may run before this returns. */
void agent_metrics_read(struct agent *agent, struct shoal_job_id id, const struct agent_metrics_ask *ask,
                        agent_metrics_fn *done, void *arg);

/* Appends ,"calls":[{"call":1,"names":["loss","accuracy"]}, ...]: what the values of a call's records are. The audit keeps
 * it for the archive, where the job's replica is gone. */
SHOAL_MUST_CHECK enum shoal_err agent_metrics_calls(const struct shoal_call *calls, uint32_t count,
                                                    struct shoal_buf *json);

#endif
