/* Services by name: deployed, listed, started, stopped, scaled, deleted.
 *
 *     deploy:  found the job --> SET_SERVICE of the mesh group: the name stands for it (or the job is deleted again)
 *     start, stop, scale:  SCALE of the job's group, of any node
 *     delete:  DELETE of the job, then REMOVE_SERVICE; each may be repeated
 *
 * Who may: everybody deploys and asks, the service's creator and administrators change it. */
#include "shoal/json_text.h"
#include "shoal/sched_look.h"

#include "agent_backend.h"
#include "backend_services.h"

#include "shoal/banned.h"

#define REQUEST_MS 5000

/* ---- by name ---- */

struct finding {
    struct agent *agent;
    char name[SHOAL_MESH_SERVICE_BYTES];
    backend_service_fn *done;
    void *arg;
};

static const struct shoal_mesh_service *find_here(struct agent *agent, const char *name)
{
    const struct shoal_mesh *mesh = shoal_sched_mesh(agent->sched);

    return mesh == NULL ? NULL : shoal_mesh_service_find(mesh, name);
}

static void say_found(struct agent *agent, const char *name, backend_service_fn *done, void *arg)
{
    const struct shoal_mesh_service *found = find_here(agent, name);
    struct shoal_mesh_service service;
    char text[200];

    if (found == NULL) {
        (void)snprintf(text, sizeof(text), "Model <%.100s> doesn't exist.", name);
        done(arg, SHOAL_ERR_NOT_FOUND, text, NULL);
        return;
    }
    service = *found; /* the callback may change the copy of the mesh */
    done(arg, SHOAL_OK, "", &service);
}

static void on_read(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct finding *f = arg;

    if (err == SHOAL_OK)
        say_found(f->agent, f->name, f->done, f->arg);
    else
        f->done(f->arg, err, reply->u.reply.text, NULL);
    free(f);
}

void backend_service_find(struct agent *agent, const char *name, bool fresh, backend_service_fn *done, void *arg)
{
    struct shoal_sched_request read = { .kind = SHOAL_SCHED_MESH_READ, .deadline_ms = REQUEST_MS };
    struct finding *f;

    if (!shoal_service_name_valid(name) || (!fresh && find_here(agent, name) != NULL)) {
        say_found(agent, name, done, arg);
        return;
    }
    f = calloc(1, sizeof(*f));
    SHOAL_ASSERT(f != NULL);
    f->agent = agent;
    (void)snprintf(f->name, sizeof(f->name), "%s", name);
    f->done = done;
    f->arg = arg;
    agent_request(agent, &read, on_read, f);
}

/* ---- the mesh group's part ---- */

static void change_mesh(struct agent *agent, const struct shoal_user *caller, enum shoal_mesh_command_kind kind,
                        const struct shoal_mesh_service *service, agent_reply_fn *done, void *arg)
{
    struct shoal_mesh_command *command = calloc(1, sizeof(*command));
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_MESH_CHANGE, .deadline_ms = REQUEST_MS };
    uint8_t bytes[SHOAL_MESH_COMMAND_BYTES_MAX];
    char token[SHOAL_TOKEN_TEXT_BYTES];
    size_t len;

    SHOAL_ASSERT(command != NULL);
    request.token = agent_token_of(agent, caller, token);
    (void)snprintf(request.by, sizeof(request.by), "%s", caller->name);
    command->kind = kind;
    command->now_s = agent_wall_ms() / 1000;
    command->service = *service;
    if (shoal_mesh_command_encode(command, bytes, sizeof(bytes), &len) == SHOAL_OK)
        request.command = shoal_view_of(bytes, len);
    free(command);
    agent_request(agent, &request, done, arg);
}

/* ---- deploying ---- */

struct deploying {
    struct agent *agent;
    struct shoal_user caller;
    const struct shoal_submit *submit; /* lives until `done` */
    struct shoal_mesh_service service;
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
    free(d);
}

static void on_undone(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    struct deploying *d = arg;

    (void)err; /* what is left over has no name, and is seen in the list of jobs */
    (void)msg;
    deploy_end(d, d->err, &d->msg, (struct shoal_view){ 0 });
}

static void on_named(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct deploying *d = arg;

    if (err == SHOAL_OK) {
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
    d->survives = *msg;
    d->service.job = job->id;
    change_mesh(d->agent, &d->caller, SHOAL_MESH_SET_SERVICE, &d->service, on_named, d);
}

static void on_looked(void *arg, enum shoal_err err, const char *text, const struct shoal_mesh_service *service)
{
    struct deploying *d = arg;
    struct shoal_msg msg = { "" };

    if (err == SHOAL_OK) {
        (void)shoal_fail(&msg, SHOAL_ERR_EXISTS,
                         "the service %s exists already, by %s; delete it first, or take another name", service->name,
                         service->creator);
        deploy_end(d, SHOAL_ERR_EXISTS, &msg, (struct shoal_view){ 0 });
    } else if (err != SHOAL_ERR_NOT_FOUND) {
        (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
        deploy_end(d, err, &msg, (struct shoal_view){ 0 });
    } else if (!shoal_sched_all_follow_rules(d->agent->sched)) { /* decision 0009 */
        (void)shoal_fail(&msg, SHOAL_ERR_UNSUPPORTED,
                         "a host of the mesh runs an agent of a version that knows no services; exchange it first");
        deploy_end(d, SHOAL_ERR_UNSUPPORTED, &msg, (struct shoal_view){ 0 });
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
    backend_service_find(ctx, d->service.name, true, on_looked, d);
}

/* ---- changing ---- */

struct changing {
    struct agent *agent;
    struct shoal_user caller;
    enum shoal_service_verb verb;
    unsigned replicas;
    struct shoal_mesh_service service;
    shoal_backend_done_fn *done;
    void *arg;
};

static void change_end(struct changing *c, enum shoal_err err, const char *text)
{
    struct shoal_msg msg;

    (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
    c->done(c->arg, err, &msg);
    free(c);
}

static void on_removed(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct changing *c = arg;
    char text[200];

    (void)snprintf(text, sizeof(text), "the service %s is deleted", c->service.name);
    change_end(c, err, err == SHOAL_OK ? text : reply->u.reply.text);
}

static void on_job_deleted(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    struct changing *c = arg;
    struct shoal_mesh_service service = c->service;

    if (err != SHOAL_OK && err != SHOAL_ERR_NOT_FOUND) { /* it may have been deleted by somebody else */
        change_end(c, err, msg->text);
        return;
    }
    service.before = c->service.job;
    change_mesh(c->agent, &c->caller, SHOAL_MESH_REMOVE_SERVICE, &service, on_removed, c);
}

static void on_scaled(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct changing *c = arg;
    char text[200];

    if (c->replicas == 0)
        (void)snprintf(text, sizeof(text), "the service %s stops", c->service.name);
    else
        (void)snprintf(text, sizeof(text), "the service %s is to have %u replica%s", c->service.name, c->replicas,
                       c->replicas == 1 ? "" : "s");
    change_end(c, err, err == SHOAL_OK ? text : reply->u.reply.text);
}

static void scale(struct changing *c)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_SCALE,
                                           .job = c->service.job,
                                           .deadline_ms = REQUEST_MS };
    const uint8_t replicas = (uint8_t)c->replicas;
    char token[SHOAL_TOKEN_TEXT_BYTES];

    request.token = agent_token_of(c->agent, &c->caller, token);
    request.command = shoal_view_of(&replicas, 1);
    (void)snprintf(request.by, sizeof(request.by), "%s", c->caller.name);
    agent_request(c->agent, &request, on_scaled, c);
}

static void on_change_found(void *arg, enum shoal_err err, const char *text, const struct shoal_mesh_service *service)
{
    struct changing *c = arg;
    char why[200];

    if (err != SHOAL_OK) {
        change_end(c, err, text);
        return;
    }
    c->service = *service;
    if (!c->caller.admin && strcmp(c->caller.name, service->creator) != 0) {
        (void)snprintf(why, sizeof(why), "the service %s belongs to %s", service->name, service->creator);
        change_end(c, SHOAL_ERR_DENIED, why);
        return;
    }
    switch (c->verb) {
    case SHOAL_SERVICE_START: c->replicas = service->replicas > 0 ? service->replicas : 1; break;
    case SHOAL_SERVICE_STOP: c->replicas = 0; break;
    case SHOAL_SERVICE_SCALE: break;
    case SHOAL_SERVICE_DELETE:
        backend_change_id(c->agent, &c->caller, service->job, SHOAL_SCHED_DELETE, on_job_deleted, c);
        return;
    case SHOAL_SERVICE_VERBS: break;
    }
    scale(c);
}

void backend_service_change(void *ctx, const struct shoal_user *caller, const char *name, enum shoal_service_verb verb,
                            unsigned replicas, shoal_backend_done_fn *done, void *arg)
{
    struct changing *c = calloc(1, sizeof(*c));

    SHOAL_ASSERT(c != NULL);
    c->agent = ctx;
    c->caller = *caller;
    c->verb = verb;
    c->replicas = replicas;
    c->done = done;
    c->arg = arg;
    if (verb == SHOAL_SERVICE_SCALE && replicas > SHOAL_SERVICE_REPLICAS_MAX) {
        char text[100];

        (void)snprintf(text, sizeof(text), "a service has at most %u replicas; ask for fewer",
                       SHOAL_SERVICE_REPLICAS_MAX);
        change_end(c, SHOAL_ERR_INVALID, text);
        return;
    }
    backend_service_find(ctx, name, true, on_change_found, c);
}

/* ---- looking ---- */

__attribute__((format(printf, 2, 3))) static bool put(struct shoal_buf *json, const char *format, ...)
{
    char text[600];
    va_list args;
    int len;

    va_start(args, format);
    len = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return len >= 0 && (size_t)len < sizeof(text) && shoal_buf_append(json, text, (size_t)len) == SHOAL_OK;
}

static bool put_text(struct shoal_buf *json, const char *key, const char *text)
{
    return put(json, ",\"%s\":", key) && shoal_json_quote(shoal_view_text(text), json) == SHOAL_OK;
}

/* {"node","ready","room","open"} of each host with ready replicas, by its own word. Returns how many are ready. */
static uint32_t put_hosts(struct agent *agent, struct shoal_job_id job, struct shoal_buf *json, bool *fine)
{
    struct shoal_serving_record serving;
    struct shoal_record record;
    struct shoal_member member;
    uint32_t cursor = 0, ready = 0;
    const char *comma = "";
    char name[64];

    *fine = *fine && put(json, ",\"hosts\":[");
    while (shoal_records_next(membership_swim(agent->membership), SHOAL_RECORD_SERVICE, &cursor, &record)) {
        if (record.tombstone || shoal_serving_record_decode(record.payload, &serving) != SHOAL_OK ||
            !shoal_swim_member_find(membership_swim(agent->membership), record.author, &member) ||
            (member.state != SHOAL_MEMBER_ALIVE && member.state != SHOAL_MEMBER_SUSPECT))
            continue;
        for (unsigned i = 0; i < serving.count; i++) {
            const struct shoal_serving *s = &serving.services[i];

            if (!shoal_job_id_equal(s->job, job))
                continue;
            ready += s->ready;
            (void)backend_node_name(agent, record.author, name, sizeof(name));
            *fine = *fine && put(json, "%s{\"node\":", comma) &&
                    shoal_json_quote(shoal_view_text(name), json) == SHOAL_OK &&
                    put(json, ",\"ready\":%u,\"room\":%u,\"open\":%u}", s->ready, s->room, s->open);
            comma = ",";
        }
    }
    *fine = *fine && put(json, "]");
    return ready;
}

static const char *state_of(bool known, bool ended, uint32_t replicas, uint32_t ready)
{
    if (!known)
        return "unknown";
    if (ended)
        return "ended";
    if (replicas == 0)
        return ready == 0 ? "stopped" : "stopping";
    if (ready == 0)
        return "starting";
    return ready < replicas ? "growing" : "ready";
}

static const char *why_of(const struct shoal_job_facts *facts, uint32_t replicas, uint32_t ready)
{
    if (facts == NULL || ready >= replicas)
        return "";
    return shoal_job_state_ended((enum shoal_job_state)facts->state) ? facts->reason : facts->pending;
}

/* `facts`: as the job's leader says; NULL: as gossip has it. */
static bool put_service(struct agent *agent, const struct shoal_mesh_service *service,
                        const struct shoal_job_facts *facts, struct shoal_buf *json)
{
    struct shoal_job_summary *summary = calloc(1, sizeof(*summary));
    char job[SHOAL_JOB_ID_TEXT_BYTES];
    bool known = facts != NULL, ended = false, fine = true;
    uint32_t replicas = 0, ready;

    SHOAL_ASSERT(summary != NULL);
    if (facts != NULL) {
        replicas = facts->replicas;
        ended = shoal_job_state_ended((enum shoal_job_state)facts->state);
    } else if (backend_summary(agent, service->job, summary)) {
        known = true;
        replicas = summary->want_max;
        ended = shoal_job_state_ended((enum shoal_job_state)summary->state);
    }
    free(summary);
    shoal_job_id_text(service->job, job);
    fine = put(json, "{\"name\":\"%s\",\"version\":%u,\"job\":\"%s\",\"deployedReplicas\":%u,\"replicas\":%u",
               service->name, service->version, job, service->replicas, replicas) &&
           put_text(json, "creator", service->creator) &&
           put(json, ",\"createdAt\":%llu,\"updatedAt\":%llu", (unsigned long long)service->created_s,
               (unsigned long long)service->updated_s);
    ready = put_hosts(agent, service->job, json, &fine);
    fine = fine && put(json, ",\"ready\":%u", ready) &&
           put_text(json, "state", state_of(known, ended, replicas, ready)) &&
           put_text(json, "why", why_of(facts, replicas, ready));
    return fine && put(json, "}");
}

struct looking {
    struct agent *agent;
    struct shoal_mesh_service service;
    shoal_backend_text_fn *done;
    void *arg;
};

static void look_end(struct looking *l, enum shoal_err err, const char *text, struct shoal_buf *json)
{
    struct shoal_msg msg;

    (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
    l->done(l->arg, err, &msg, err == SHOAL_OK ? shoal_buf_view(json) : (struct shoal_view){ 0 });
    shoal_buf_deinit(json);
    free(l);
}

static void on_facts(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct looking *l = arg;
    struct shoal_job_facts *facts = calloc(1, sizeof(*facts));
    struct shoal_buf json = { 0 };
    bool told = facts != NULL && err == SHOAL_OK && shoal_job_facts_decode(reply->u.reply.bytes, facts) == SHOAL_OK;
    bool fine = put_service(l->agent, &l->service, told ? facts : NULL, &json);

    free(facts);
    look_end(l, fine ? SHOAL_OK : SHOAL_ERR_FULL, fine ? "" : "no memory for the answer", &json);
}

static void on_show_found(void *arg, enum shoal_err err, const char *text, const struct shoal_mesh_service *service)
{
    struct looking *l = arg;
    struct shoal_sched_request get = { .kind = SHOAL_SCHED_GET, .linearizable = true, .deadline_ms = REQUEST_MS };
    struct shoal_buf json = { 0 };

    if (err != SHOAL_OK) {
        look_end(l, err, text, &json);
        return;
    }
    l->service = *service;
    get.job = service->job;
    agent_request(l->agent, &get, on_facts, l);
}

static void on_list_read(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct looking *l = arg;
    const struct shoal_mesh *mesh = shoal_sched_mesh(l->agent->sched);
    size_t count = mesh == NULL ? 0 : shoal_mesh_service_count(mesh);
    struct shoal_buf json = { 0 };
    bool fine = put(&json, "{\"services\":[");

    for (size_t i = 0; i < count && fine && err == SHOAL_OK; i++)
        fine = put(&json, "%s", i == 0 ? "" : ",") &&
               put_service(l->agent, shoal_mesh_service_at(mesh, i), NULL, &json);
    fine = fine && put(&json, "]}");
    if (err != SHOAL_OK)
        look_end(l, err, reply->u.reply.text, &json);
    else
        look_end(l, fine ? SHOAL_OK : SHOAL_ERR_FULL, fine ? "" : "no memory for the answer", &json);
}

void backend_services(void *ctx, const struct shoal_user *caller, const char *name, shoal_backend_text_fn *done,
                      void *arg)
{
    struct shoal_sched_request read = { .kind = SHOAL_SCHED_MESH_READ, .deadline_ms = REQUEST_MS };
    struct looking *l = calloc(1, sizeof(*l));

    (void)caller; /* everybody may ask every model, so everybody sees what there is */
    SHOAL_ASSERT(l != NULL);
    l->agent = ctx;
    l->done = done;
    l->arg = arg;
    if (name != NULL)
        backend_service_find(ctx, name, true, on_show_found, l);
    else
        agent_request(ctx, &read, on_list_read, l);
}
