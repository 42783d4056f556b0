/* The audit of a job's ledger, as JSON (agent_audit.c). */
#ifndef NODE_AGENT_AUDIT_H
#define NODE_AGENT_AUDIT_H

#include "agent_ledger.h"

#define AGENT_AUDITS_MAX 256      /* jobs whose audit runs or waits */
#define AGENT_AUDIT_BYTES_MAX (4 * SHOAL_MIB)
#define AGENT_AUDIT_ASKERS_MAX 32 /* that share one */

struct agent_audited {
    struct shoal_view json;          /* for the call */
    struct ledger_progress progress; /* by the records that were read */
};

/* After OK `audited` says what was found. FULL: too many wait. NOT_FOUND: this host does not guard the job. STORAGE: its ledger
 * cannot be read. */
typedef void agent_audit_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                            const struct agent_audited *audited);
/* Of a job that is guarded here; a thread reads. Ends exactly once by `done`, before this returns where it is refused. */
void agent_audit(struct agent *agent, struct shoal_job_id id, agent_audit_fn *done, void *arg);
/* The same by these calls of the job, which are copied; NULL: it is not elastic, and has no records. */
void agent_audit_calls(struct agent *agent, struct shoal_job_id id, const struct shoal_call *calls, uint32_t count,
                       agent_audit_fn *done, void *arg);
/* The audit that the job's last leader has made, where this host keeps it: of a job that has no guardians any more. NOT_FOUND,
 * STORAGE: there is none. TOO_BIG: the job has written it. */
SHOAL_MUST_CHECK enum shoal_err agent_audit_kept(const struct agent *agent, struct shoal_job_id id, struct shoal_buf *json,
                                                 struct shoal_msg *msg);
/* The audit of any job that has trained nothing. */
SHOAL_MUST_CHECK enum shoal_err agent_audit_none(struct shoal_job_id id, struct shoal_buf *json);

#endif
