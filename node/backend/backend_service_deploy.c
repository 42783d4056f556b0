/* Services are deployed: anew, or as the next version of one that is there.
 *
 *     new:   found the job --> SET_SERVICE of the mesh group: the name stands for it (or the job is deleted again)
 *     next:  GET of what is there --> found the job with its profile --> SET_SERVICE: the name stands for the new one,
 *            which takes over when it is ready; the one before is kept, with no replicas (agent_scale.c)
 *     canary: as next, but stopped and without replicas, so that the one before answers --> SET_SERVICE: the name stands
 *            for that one again --> its canary, as of the verb (backend_service_change.c), which starts it
 *
 * A canary's two changes of the name are such as each version of the agent takes (decision 0058): between them, or where
 * this node ends there, the current version answers, since the new one has no kernels and is to have none. Its document says
 * of which change of the name it is to be the canary, by which the next verb, on any node, makes the second change where this
 * one did not come to it (backend_service_settle.c). */
#include "shoal/job_facts.h"
#include "shoal/sched_look.h"

#include "agent_backend.h"
#include "backend_services.h"

#include "shoal/banned.h"

#define REQUEST_MS 5000

/* ---- deploying ---- */

struct deploying {
    struct agent *agent;
    struct shoal_user caller;
    const struct shoal_submit *submit; /* lives until `done` */
    struct shoal_mesh_service service;
    struct shoal_mesh_service known;  /* that it is the next version of; no name: there is none */
    struct shoal_job_options options; /* of the next version */
    struct shoal_submit next;
    struct shoal_buf doc; /* which its profile points into */
    struct shoal_msg survives;
    enum shoal_err err;
    struct shoal_msg msg;
    shoal_backend_submit_fn *done;
    void *arg;
};

static void deploy_end(struct deploying *d, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view ticket)
{
    const struct shoal_job_info info = { .id = d->service.job,
                                         .state = "",
                                         .detail = "",
                                         .creator = d->caller.name,
                                         .framework = "",
                                         .app_name = d->service.name,
                                         .args = "",
                                         .data_json = "",
                                         .work_dir = "",
                                         .result_dir = "",
                                         .leader_name = "",
                                         .driver_node = "",
                                         .pending = "" };

    d->done(d->arg, err, msg, err == SHOAL_OK ? &info : NULL, ticket);
    shoal_buf_deinit(&d->doc);
    free(d);
}

static void on_forgotten(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    (void)arg;
    (void)err; /* what is left over has no name, and is seen in the list of jobs */
    (void)msg;
}

static void on_undone(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    struct deploying *d = arg;

    (void)err; /* what is left over has no name, and is seen in the list of jobs */
    (void)msg;
    deploy_end(d, d->err, &d->msg, (struct shoal_view){ 0 });
}

/* Of three versions the oldest goes: one can be gone back to. */
static void forget_oldest(struct deploying *d)
{
    if (d->known.name[0] != '\0' && !shoal_job_id_is_mesh(d->known.before))
        backend_change_id(d->agent, &d->caller, d->known.before, SHOAL_SCHED_DELETE, on_forgotten, NULL);
}

static void on_canary(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    struct deploying *d = arg;
    struct shoal_msg why;

    if (err == SHOAL_OK)
        deploy_end(d, SHOAL_OK, &d->survives, (struct shoal_view){ 0 });
    else
        deploy_end(d,
                   shoal_fail(&why, err, "version %u of the service %s is kept and gets no requests: %.300s; give it its "
                                         "part with shoal service canary", d->options.service_version, d->service.name,
                              msg->text),
                   &why, (struct shoal_view){ 0 });
}

static void give_part(struct deploying *d)
{
    char version[16];

    agent_fault_point("deploy-put-back");
    forget_oldest(d);
    (void)snprintf(version, sizeof(version), "%u", d->options.service_version);
    backend_service_canary(d->agent, &d->caller, d->service.name, version, d->options.service_canary - 1, on_canary, d);
}

/* Another verb may have made the second change before this one. */
static void on_found_again(void *arg, enum shoal_err err, const char *text, const struct shoal_mesh_service *service)
{
    struct deploying *d = arg;
    struct shoal_msg why;

    if (err == SHOAL_OK && shoal_job_id_equal(service->job, d->known.job) &&
        shoal_job_id_equal(service->before, d->service.job))
        give_part(d);
    else
        deploy_end(d,
                   shoal_fail(&why, err == SHOAL_OK ? SHOAL_ERR_STALE : err,
                              "the service %s was changed by somebody else; look again: %.300s", d->service.name, text),
                   &why, (struct shoal_view){ 0 });
}

static void on_current_again(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct deploying *d = arg;
    struct shoal_msg why;

    if (err == SHOAL_ERR_STALE) {
        backend_service_find(d->agent, d->service.name, true, on_found_again, d);
    } else if (err != SHOAL_OK) {
        deploy_end(d,
                   shoal_fail(&why, err, "the service %s stands for its new version %u, which has no kernels, and the one "
                                         "before answers: %.300s; say it again, or go back with shoal service rollback",
                              d->service.name, d->options.service_version, reply->u.reply.text),
                   &why, (struct shoal_view){ 0 });
    } else {
        give_part(d);
    }
}

/* The name stands for the version that was current again; the new one is the other one that is kept. */
static void put_back(struct deploying *d)
{
    struct shoal_mesh_service service = d->service;

    service.job = d->known.job;
    service.before = d->service.job;
    service.replicas = d->known.replicas;
    backend_change_mesh(d->agent, &d->caller, SHOAL_MESH_SET_SERVICE, &service, on_current_again, d);
}

static void on_named(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct deploying *d = arg;

    agent_fault_point("deploy-named");
    if (err == SHOAL_OK && d->options.service_canary > 0) {
        put_back(d);
        return;
    }
    if (err == SHOAL_OK) {
        forget_oldest(d);
        deploy_end(d, SHOAL_OK, &d->survives, (struct shoal_view){ 0 });
        return;
    }
    d->err = err;
    d->msg = backend_reply_msg(reply);
    backend_change_id(d->agent, &d->caller, d->service.job, SHOAL_SCHED_DELETE, on_undone, d);
}

static void on_founded(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_job_info *job,
                       struct shoal_view ticket)
{
    struct deploying *d = arg;

    if (err != SHOAL_OK) {
        deploy_end(d, err, msg, ticket);
        return;
    }
    agent_fault_point("deploy-founded");
    d->survives = *msg;
    d->service.job = job->id;
    backend_change_mesh(d->agent, &d->caller, SHOAL_MESH_SET_SERVICE, &d->service, on_named, d);
}

static void refuse(struct deploying *d, enum shoal_err err, const char *text)
{
    struct shoal_msg msg;

    (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
    deploy_end(d, err, &msg, (struct shoal_view){ 0 });
}

/* A canary begins stopped: it has no kernels before the name stands for the current version again. */
static enum shoal_err stop_canary(struct deploying *d, bool started, struct shoal_msg *msg)
{
    const struct service_doc_edit stop = { .kind = SERVICE_DOC_CANARY_NEXT,
                                           .name = d->service.name,
                                           .canary = d->submit->options->service_canary,
                                           .canary_at = d->known.version + 2, /* when both changes are made */
                                           .now_s = agent_wall_ms() / 1000 };
    struct shoal_buf doc = { 0 };
    enum shoal_err err;

    if (!started)
        return shoal_fail(msg, SHOAL_ERR_EXISTS, "the service %s is stopped; start it first", d->service.name);
    err = service_doc_edit(shoal_buf_view(&d->doc), &stop, &doc, msg);
    shoal_buf_deinit(&d->doc);
    d->doc = doc;
    return err;
}

/* The next version: its document goes on where the one before has come to, and it begins with as many replicas. */
static void on_old_facts(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct deploying *d = arg;
    struct shoal_job_facts *facts = calloc(1, sizeof(*facts));
    struct service_knobs knobs;
    struct shoal_msg msg = { "the answer of the service's leader does not decode" };

    SHOAL_ASSERT(facts != NULL);
    if (err != SHOAL_OK)
        (void)snprintf(msg.text, sizeof(msg.text), "%s", reply->u.reply.text);
    else
        err = shoal_job_facts_decode(reply->u.reply.bytes, facts);
    if (err == SHOAL_OK)
        err = service_doc_carry(shoal_view_text(d->submit->options->profile), facts->document, &d->doc, &msg);
    if (err == SHOAL_OK) {
        service_doc_knobs(shoal_buf_view(&d->doc), facts->replicas, &knobs);
        if (d->submit->options->service_canary > 0)
            err = stop_canary(d, knobs.started, &msg);
    }
    if (err == SHOAL_OK)
        err = shoal_buf_append(&d->doc, "", 1);
    if (err == SHOAL_OK) {
        d->options = *d->submit->options;
        d->options.profile = (const char *)d->doc.bytes;
        d->options.replicas = !knobs.started || d->options.service_canary > 0 ? 0
                              : facts->replicas < knobs.kernels_min ? knobs.kernels_min
                                                                    : facts->replicas;
        d->next = *d->submit;
        d->next.options = &d->options;
        d->options.service_version = d->known.version + 1;
        d->service.replicas = d->options.replicas;
        backend_submit(d->agent, &d->next, on_founded, d);
    } else {
        refuse(d, err, msg.text);
    }
    free(facts);
}

static void deploy_next(struct deploying *d, const struct shoal_mesh_service *known)
{
    struct shoal_sched_request get = {
        .kind = SHOAL_SCHED_GET, .job = known->job, .linearizable = true, .deadline_ms = REQUEST_MS
    };
    char text[300];

    if (d->submit->options->service_new) {
        if (d->submit->options->service_known)
            (void)snprintf(text, sizeof(text), "Model <%s> already exists.", known->name);
        else
            (void)snprintf(text, sizeof(text),
                           "the service %s exists already, by %s; --update makes this its next version (in REST: update), or take another "
                           "name", known->name,
                           known->creator);
        refuse(d, SHOAL_ERR_EXISTS, text);
    } else if (!d->caller.admin && strcmp(d->caller.name, known->creator) != 0) {
        (void)snprintf(text, sizeof(text), "the service %s belongs to %s", known->name, known->creator);
        refuse(d, SHOAL_ERR_DENIED, text);
    } else {
        d->known = *known;
        d->service.before = known->job;
        memcpy(d->service.creator, known->creator, sizeof(d->service.creator));
        agent_request(d->agent, &get, on_old_facts, d);
    }
}

static void on_looked(void *arg, enum shoal_err err, const char *text, const struct shoal_mesh_service *service, bool settled)
{
    struct deploying *d = arg;
    const struct shoal_job_options *options = d->submit->options;
    char why[300];

    (void)settled;
    if (err == SHOAL_OK) {
        deploy_next(d, service);
    } else if (err == SHOAL_ERR_NOT_FOUND && options->service_canary > 0) {
        (void)snprintf(why, sizeof(why),
                       "there is no service %.63s whose current version could answer the other requests; deploy it "
                       "without a canary first", d->service.name);
        refuse(d, err, why);
    } else if (err != SHOAL_ERR_NOT_FOUND || (options->service_known && !options->service_new)) {
        refuse(d, err, text);
    } else if (!shoal_sched_all_follow_rules(d->agent->sched)) { /* decision 0009 */
        refuse(d, SHOAL_ERR_UNSUPPORTED,
               "a host of the mesh runs an agent of a version that knows no services; exchange it first");
    } else {
        backend_submit(d->agent, d->submit, on_founded, d);
    }
}

void backend_service_submit(void *ctx, const struct shoal_submit *submit, shoal_backend_submit_fn *done, void *arg)
{
    struct deploying *d;

    if (submit->options->service[0] == '\0' || !shoal_service_name_valid(submit->options->service)) {
        backend_submit(ctx, submit, done, arg); /* which refuses the name */
        return;
    }
    d = calloc(1, sizeof(*d));
    SHOAL_ASSERT(d != NULL);
    d->agent = ctx;
    d->caller = *submit->caller;
    d->submit = submit;
    d->done = done;
    d->arg = arg;
    d->service.replicas = submit->options->replicas;
    (void)snprintf(d->service.name, sizeof(d->service.name), "%s", submit->options->service);
    (void)snprintf(d->service.creator, sizeof(d->service.creator), "%s", submit->caller->name);
    backend_service_settle(ctx, submit->caller, d->service.name, on_looked, d);
}
