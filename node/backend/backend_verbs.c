/* A request about one job: which job is meant, may this user ask, then the verb itself.
 *
 *   text --> full id, or the one job with that ending (a list of the mesh) --> whose it is --> the verb
 *
 * B1. Whose a job is, says the first that knows: its group or its row here, or the job itself (asked by a GET). Gossip is
 *     not asked: any host of the mesh may sign a summary. An administrator may ask for any job that there is. No verb
 *     begins before that; the host that stops or deletes it looks at the user's token again (R5 of sched_request.c).
 * B2. The job of a service is stopped and deleted by its service's name: without it the name would stand for nothing. */
#include "shoal/job_facts.h"

#include "agent_backend.h"
#include "backend_services.h"

#include "shoal/banned.h"

#define OWNER_MS 5000

enum verb {
    VERB_GET,
    VERB_STOP,
    VERB_DELETE,
    VERB_RECOVER,
    VERB_LOG,
    VERB_RESULT,
    VERB_BUNDLE,
    VERB_LEDGER,
    VERB_CURVE,
    VERB_WHY,
    VERB_TASKS
};

struct asked_verb {
    struct agent *agent;
    struct shoal_user caller;
    enum verb verb;
    struct shoal_job_id id;
    bool flag; /* GET: linearizable; RECOVER: confirmed */
    struct shoal_log_request log;
    struct shoal_tasks_ask tasks;
    struct shoal_curve_ask curve;
    /* Of one type for each verb. */
    union {
        shoal_backend_job_fn *job;
        shoal_backend_done_fn *done;
        shoal_backend_recovery_fn *recovery;
        shoal_backend_log_fn *log;
        shoal_backend_result_fn *result;
        shoal_backend_bundle_fn *bundle;
        shoal_backend_text_fn *text;
        shoal_backend_tasks_fn *tasks;
    } then;
    void *arg;
};

static void refuse(const struct asked_verb *v, enum shoal_err err, const struct shoal_msg *msg)
{
    switch (v->verb) {
    case VERB_GET: v->then.job(v->arg, err, msg, NULL); break;
    case VERB_STOP:
    case VERB_DELETE: v->then.done(v->arg, err, msg); break;
    case VERB_RECOVER: v->then.recovery(v->arg, err, msg, &(struct shoal_recovery_info){ .done = false }); break;
    case VERB_LOG: v->then.log(v->arg, err, msg, NULL); break;
    case VERB_RESULT: v->then.result(v->arg, err, msg, NULL, NULL); break;
    case VERB_BUNDLE: v->then.bundle(v->arg, err, msg, -1); break;
    case VERB_LEDGER:
    case VERB_CURVE:
    case VERB_WHY: v->then.text(v->arg, err, msg, (struct shoal_view){ 0 }); break;
    case VERB_TASKS: v->then.tasks(v->arg, err, msg, NULL, 0, SHOAL_ARRAY_NONE); break;
    }
}

static void begin(struct asked_verb *v)
{
    switch (v->verb) {
    case VERB_GET: backend_get_id(v->agent, v->id, v->flag, v->then.job, v->arg); break;
    case VERB_STOP: backend_change_id(v->agent, &v->caller, v->id, SHOAL_SCHED_STOP, v->then.done, v->arg); break;
    case VERB_DELETE: backend_change_id(v->agent, &v->caller, v->id, SHOAL_SCHED_DELETE, v->then.done, v->arg); break;
    case VERB_RECOVER: backend_recover_id(v->agent, &v->caller, v->id, v->flag, v->then.recovery, v->arg); break;
    case VERB_LOG: backend_log_id(v->agent, v->id, &v->log, v->then.log, v->arg); break;
    case VERB_RESULT: backend_result_id(v->agent, v->id, v->then.result, v->arg); break;
    case VERB_BUNDLE: backend_bundle_id(v->agent, v->id, v->then.bundle, v->arg); break;
    case VERB_LEDGER: backend_ledger_id(v->agent, v->id, v->then.text, v->arg); break;
    case VERB_CURVE: backend_curve_id(v->agent, v->id, &v->curve, v->then.text, v->arg); break;
    case VERB_WHY: backend_why_id(v->agent, v->id, v->then.text, v->arg); break;
    case VERB_TASKS: backend_tasks_id(v->agent, v->id, &v->tasks, v->then.tasks, v->arg); break;
    }
}

/* ---- whose job it is ---- */

/* B2. */
static enum shoal_err check_service(const struct asked_verb *v, struct shoal_msg *msg)
{
    const struct shoal_mesh_service *service = backend_service_of(v->agent, v->id);

    if (service == NULL || (v->verb != VERB_STOP && v->verb != VERB_DELETE))
        return SHOAL_OK;
    return shoal_fail(msg, SHOAL_ERR_EXISTS, "this job is the service %s: shoal service %s %s", service->name,
                      v->verb == VERB_STOP ? "stop" : "delete", service->name);
}

static void decide(struct asked_verb *v, enum shoal_err err, const struct shoal_msg *why, const char *creator)
{
    struct shoal_msg msg = *why;

    if (err == SHOAL_OK && !v->caller.admin && strcmp(v->caller.name, creator) != 0)
        err = shoal_fail(&msg, SHOAL_ERR_DENIED, "this job belongs to %s", creator);
    if (err == SHOAL_OK)
        err = check_service(v, &msg);
    if (err == SHOAL_OK)
        begin(v);
    else
        refuse(v, err, &msg);
    free(v);
}

static void on_owner(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct shoal_job_facts facts = { .state = 0 };
    struct shoal_msg msg;

    (void)snprintf(msg.text, sizeof(msg.text), "%s", reply->u.reply.text);
    if (err == SHOAL_OK)
        err = shoal_job_facts_decode(reply->u.reply.bytes, &facts);
    decide(arg, err, &msg, facts.creator);
}

/* B1. */
static void on_id(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_job_id id)
{
    struct asked_verb *v = arg;
    struct shoal_sched_request get = { .kind = SHOAL_SCHED_GET, .job = id, .deadline_ms = OWNER_MS };
    struct shoal_job_facts facts;
    bool must_exist = v->verb == VERB_LOG || v->verb == VERB_LEDGER || v->verb == VERB_CURVE; /* the others ask the job itself */

    v->id = id;
    if (err != SHOAL_OK || (v->caller.admin && !must_exist))
        decide(v, err, msg, v->caller.name);
    else if (backend_facts_here(v->agent, id, &facts))
        decide(v, SHOAL_OK, msg, facts.creator);
    else
        agent_request(v->agent, &get, on_owner, v);
}

static struct asked_verb *verb_create(struct agent *agent, const struct shoal_user *caller, enum verb verb, void *arg)
{
    struct asked_verb *v = calloc(1, sizeof(*v));

    SHOAL_ASSERT(v != NULL);
    v->agent = agent;
    v->caller = *caller;
    v->verb = verb;
    v->arg = arg;
    return v;
}

/* ---- the table's functions ---- */

void backend_get(void *ctx, const struct shoal_user *caller, const char *id, bool linearizable,
                 shoal_backend_job_fn *done, void *arg)
{
    struct asked_verb *v = verb_create(ctx, caller, VERB_GET, arg);

    v->then.job = done;
    v->flag = linearizable;
    backend_id_ask(ctx, caller, id, on_id, v);
}

void backend_stop(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_done_fn *done, void *arg)
{
    struct asked_verb *v = verb_create(ctx, caller, VERB_STOP, arg);

    v->then.done = done;
    backend_id_ask(ctx, caller, id, on_id, v);
}

void backend_del(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_done_fn *done, void *arg)
{
    struct asked_verb *v = verb_create(ctx, caller, VERB_DELETE, arg);

    v->then.done = done;
    backend_id_ask(ctx, caller, id, on_id, v);
}

void backend_recover(void *ctx, const struct shoal_user *caller, const char *id, bool confirmed,
                     shoal_backend_recovery_fn *done, void *arg)
{
    struct asked_verb *v = verb_create(ctx, caller, VERB_RECOVER, arg);

    v->then.recovery = done;
    v->flag = confirmed;
    backend_id_ask(ctx, caller, id, on_id, v);
}

void backend_log_read(void *ctx, const struct shoal_log_request *request, shoal_backend_log_fn *done, void *arg)
{
    struct asked_verb *v = verb_create(ctx, request->caller, VERB_LOG, arg);

    v->then.log = done;
    v->log = *request;
    v->log.id = "";
    v->log.caller = &v->caller; /* theirs lives as long as the call */
    backend_id_ask(ctx, request->caller, request->id, on_id, v);
}

void backend_result_open(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_result_fn *done,
                         void *arg)
{
    struct asked_verb *v = verb_create(ctx, caller, VERB_RESULT, arg);

    v->then.result = done;
    backend_id_ask(ctx, caller, id, on_id, v);
}

void backend_bundle_open(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_bundle_fn *done,
                         void *arg)
{
    struct asked_verb *v = verb_create(ctx, caller, VERB_BUNDLE, arg);

    v->then.bundle = done;
    backend_id_ask(ctx, caller, id, on_id, v);
}

void backend_ledger(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_text_fn *done, void *arg)
{
    struct asked_verb *v = verb_create(ctx, caller, VERB_LEDGER, arg);

    v->then.text = done;
    backend_id_ask(ctx, caller, id, on_id, v);
}

void backend_curve(void *ctx, const struct shoal_user *caller, const char *id, const struct shoal_curve_ask *ask,
                   shoal_backend_text_fn *done, void *arg)
{
    struct asked_verb *v = verb_create(ctx, caller, VERB_CURVE, arg);

    v->then.text = done;
    v->curve = *ask;
    backend_id_ask(ctx, caller, id, on_id, v);
}

void backend_why(void *ctx, const struct shoal_user *caller, const char *id, shoal_backend_text_fn *done, void *arg)
{
    struct asked_verb *v = verb_create(ctx, caller, VERB_WHY, arg);

    v->then.text = done;
    backend_id_ask(ctx, caller, id, on_id, v);
}

void backend_tasks(void *ctx, const struct shoal_user *caller, const char *id, const struct shoal_tasks_ask *ask,
                   shoal_backend_tasks_fn *done, void *arg)
{
    struct asked_verb *v = verb_create(ctx, caller, VERB_TASKS, arg);

    v->then.tasks = done;
    v->tasks = *ask;
    backend_id_ask(ctx, caller, id, on_id, v);
}
