/* The parts of the table behind the HTTP API; agent_backend.c says which file has what. */
#ifndef SHOAL_NODE_AGENT_BACKEND_H
#define SHOAL_NODE_AGENT_BACKEND_H

#include "shoal/job_facts.h"
#include "shoal/control_record.h"

#include "node/agent/agent.h"

/* A job as the API shows it, with the memory of its texts. */
struct backend_info {
    struct shoal_job_info info;
    char creator[SHOAL_JOB_TEXT_BYTES];
    char framework[SHOAL_JOB_TEXT_BYTES];
    char app_name[SHOAL_JOB_APP_BYTES];
    char args[2048];
    char data[1024];
    char work_dir[AGENT_PATH_BYTES + 32];
    char result_dir[AGENT_PATH_BYTES + 200];
    char leader[64];
    char driver[64];
    char service[SHOAL_JOB_TEXT_BYTES];
    char pending[SHOAL_JOB_REASON_BYTES];
    char detail[SHOAL_JOB_REASON_BYTES];
};

/* The row that lists show of it here: its group's live one, or the index's. False: this node has no part in it. */
bool backend_facts_here(struct agent *agent, struct shoal_job_id id, struct shoal_job_facts *facts);
bool backend_in_gossip(struct agent *agent, struct shoal_job_id id);
/* The summary of a job, from gossip or from the archive. */
bool backend_summary(struct agent *agent, struct shoal_job_id id, struct shoal_job_summary *summary);
const char *backend_node_name(struct agent *agent, struct shoal_node_id id, char *name, size_t cap);
void backend_info_of_facts(struct agent *agent, const struct shoal_job_facts *facts, struct backend_info *out);

/* backend_list.c */
void backend_list(void *ctx, const struct shoal_user *caller, const struct shoal_job_filter *filter,
                  shoal_backend_jobs_fn *done, void *arg);
void backend_delete_all(void *ctx, const struct shoal_user *caller, shoal_backend_done_fn *done, void *arg);
/* The job that a text names: a full id, or the ending of one job that the caller may see. NOT_FOUND; INVALID: of several;
 * UNREACHABLE: some nodes do not answer. */
typedef void backend_id_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_job_id id);
void backend_id_ask(struct agent *agent, const struct shoal_user *caller, const char *text, backend_id_fn *done,
                    void *arg);

/* backend_verbs.c: as in shoal/backend.h */
void backend_get(void *ctx, const struct shoal_user *caller, const char *id, bool linearizable,
                 shoal_backend_job_fn *done, void *arg);
void backend_stop(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_done_fn *done, void *arg);
void backend_del(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_done_fn *done, void *arg);
void backend_recover(void *ctx, const struct shoal_user *caller, const char *id, bool confirmed,
                     shoal_backend_recovery_fn *done, void *arg);
void backend_log_read(void *ctx, const struct shoal_log_request *request, shoal_backend_log_fn *done, void *arg);
void backend_result_open(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_result_fn *done,
                         void *arg);
void backend_ledger(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_text_fn *done, void *arg);
void backend_curve(void *ctx, const struct shoal_user *caller, const char *id, const struct shoal_curve_ask *ask,
                   shoal_backend_text_fn *done, void *arg);
void backend_tasks(void *ctx, const struct shoal_user *caller, const char *id, const struct shoal_tasks_ask *ask,
                   shoal_backend_tasks_fn *done, void *arg);
void backend_why(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_text_fn *done, void *arg);

/* The verbs themselves, of a job whose owner has been asked. */
void backend_get_id(struct agent *agent, struct shoal_job_id id, bool linearizable, shoal_backend_job_fn *done,
                    void *arg);
void backend_change_id(struct agent *agent, const struct shoal_user *caller, struct shoal_job_id id,
                       enum shoal_sched_request_kind kind, shoal_backend_done_fn *done, void *arg);
void backend_recover_id(struct agent *agent, const struct shoal_user *caller, struct shoal_job_id id, bool confirmed,
                        shoal_backend_recovery_fn *done, void *arg);
void backend_recover_mesh(struct agent *agent, const struct shoal_user *caller, bool confirmed,
                          shoal_backend_recovery_fn *done, void *arg);
void backend_tasks_id(struct agent *agent, struct shoal_job_id id, const struct shoal_tasks_ask *ask,
                      shoal_backend_tasks_fn *done, void *arg);
void backend_why_id(struct agent *agent, struct shoal_job_id id, shoal_backend_text_fn *done, void *arg);

void backend_log_id(struct agent *agent, struct shoal_job_id id, const struct shoal_log_request *request,
                    shoal_backend_log_fn *done, void *arg);
void backend_result_id(struct agent *agent, struct shoal_job_id id, shoal_backend_result_fn *done, void *arg);
void backend_bundle_open(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_bundle_fn *done,
                         void *arg);
void backend_bundle_id(struct agent *agent, struct shoal_job_id id, shoal_backend_bundle_fn *done, void *arg);
void backend_result_read(void *ctx, struct shoal_result *result, size_t file, uint64_t offset, size_t bytes_max,
                         shoal_backend_bytes_fn *done, void *arg);
void backend_result_close(void *ctx, struct shoal_result *result);
/* backend_curve.c */
void backend_curve_id(struct agent *agent, struct shoal_job_id id, const struct shoal_curve_ask *ask,
                      shoal_backend_text_fn *done, void *arg);
void backend_serve_curve(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question);
void backend_ledger_id(struct agent *agent, struct shoal_job_id id, shoal_backend_text_fn *done, void *arg);
/* A line of the cores, with the names of hosts where it has their ids. */
void backend_name_hosts(struct agent *agent, const char *line, char *text, size_t cap);
enum shoal_err backend_why_json(struct agent *agent, struct shoal_job_id id, struct shoal_view text,
                                struct shoal_buf *json) SHOAL_MUST_CHECK;
/* Of the services that have a kernel here. */
SHOAL_MUST_CHECK enum shoal_err backend_service_metrics(struct agent *agent, struct shoal_buf *text);
enum shoal_err backend_metrics(void *ctx, struct shoal_buf *text) SHOAL_MUST_CHECK;
enum shoal_err backend_debug(void *ctx, const char *name, struct shoal_buf *json) SHOAL_MUST_CHECK;

/* The host's own word of itself; zero: nothing yet. */
struct shoal_facts_record backend_facts_of(struct agent *agent, struct shoal_node_id node);

/* backend_nodes.c: as in shoal/backend.h */
void backend_serve_node(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question);
void backend_node_change(void *ctx, const struct shoal_user *caller, const char *text, enum shoal_node_verb verb,
                         bool force, shoal_backend_done_fn *done, void *arg);
void backend_mesh_recover(void *ctx, const struct shoal_user *caller, const char *key, bool confirmed,
                          shoal_backend_recovery_fn *done, void *arg);

/* backend_known.c */
bool backend_summary_next(struct agent *agent, uint32_t *cursor, struct shoal_job_summary *summary);

/* backend_jobs.c: calls that wait for the control plane */
/* Any callback: cast back to its own type before it is called. */
typedef void backend_any_fn(void);

struct backend_call {
    struct agent *agent;
    backend_any_fn *done;
    void *arg;
    struct shoal_job_id id;
    struct shoal_sched_request request;
    struct shoal_buf spec;
    struct shoal_buf ticket;
    int fd;
};

struct backend_call *backend_call_create(struct agent *agent, backend_any_fn *done, void *arg);
void backend_call_free(struct backend_call *w);
struct shoal_msg backend_reply_msg(const struct shoal_sched_action *reply);
/* For a shoal_backend_done_fn. */
void backend_on_done(void *arg, enum shoal_err err, const struct shoal_sched_action *reply);

/* backend_submit.c: as in shoal/backend.h */
void backend_submit(void *ctx, const struct shoal_submit *submit, shoal_backend_submit_fn *done, void *arg);
void backend_ticket(void *ctx, const struct shoal_user *caller, const struct shoal_hash *spec_hash,
                    shoal_backend_ticket_fn *done, void *arg);

/* backend_users.c: as in shoal/backend.h */
bool backend_user_find(void *ctx, const char *name, struct shoal_user *user);
void backend_logon(void *ctx, const char *user, const char *password, shoal_backend_user_fn *done, void *arg);
void backend_logoff(void *ctx, const struct shoal_user *caller, const struct token_claims *token,
                    shoal_backend_done_fn *done, void *arg);
void backend_token_keys(void *ctx, struct shoal_token_keys *keys);
bool backend_token_revoked(void *ctx, const uint8_t token_id[SHOAL_TOKEN_ID_BYTES]);
const struct shoal_framework *backend_frameworks(void *ctx, size_t *count);

/* backend_logs.c */
/* True: this node. Else `node` is one that has them (zero: nobody known). */
bool backend_has_files(struct agent *agent, struct shoal_job_id id, struct shoal_node_id *node);
/* As a host of the job too, in memory or on disk. Until the next call. */
struct agent_job *backend_serves_files(struct agent *agent, struct shoal_job_id id);
void backend_serve_log(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question);

/* backend_results.c */
void backend_serve_ledger(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question);

#endif
