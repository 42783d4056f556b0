/* Services by name: found and looked at. They are deployed in backend_service_deploy.c, changed in backend_service_change.c.
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

const struct shoal_mesh_service *backend_service_of(struct agent *agent, struct shoal_job_id job)
{
    const struct shoal_mesh *mesh = shoal_sched_mesh(agent->sched);
    size_t count = mesh == NULL ? 0 : shoal_mesh_service_count(mesh);

    for (size_t i = 0; i < count; i++) {
        const struct shoal_mesh_service *service = shoal_mesh_service_at(mesh, i);

        if (shoal_job_id_equal(service->job, job) || shoal_job_id_equal(service->before, job))
            return service;
    }
    return NULL;
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

void backend_change_mesh(struct agent *agent, const struct shoal_user *caller, enum shoal_mesh_command_kind kind,
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

bool backend_host_serves(struct agent *agent, const struct shoal_record *record, struct shoal_serving_record *serving)
{
    struct shoal_member member;

    return !record->tombstone && shoal_serving_record_decode(record->payload, serving) == SHOAL_OK &&
           shoal_swim_member_find(membership_swim(agent->membership), record->author, &member) &&
           (member.state == SHOAL_MEMBER_ALIVE || member.state == SHOAL_MEMBER_SUSPECT);
}

void backend_service_count(struct agent *agent, struct shoal_job_id job, uint32_t *ready, uint32_t *open)
{
    struct backend_tally tally;

    backend_version_tally(agent, job, &tally);
    *ready = tally.ready;
    *open = tally.open;
}

/* {"node","ready","room","open"} of each host with ready replicas, by its own word. Returns how many are ready. */
static uint32_t put_hosts(struct agent *agent, const struct backend_serving *all, struct shoal_job_id job,
                          struct shoal_buf *json, bool *fine)
{
    size_t count;
    const struct backend_serving_row *rows = backend_serving_of(all, job, &count);
    const char *comma = "";
    uint32_t ready = 0;
    char name[64];

    *fine = *fine && put(json, ",\"hosts\":[");
    for (size_t i = 0; i < count; i++) {
        const struct shoal_serving *s = &rows[i].serving;

        if (s->ready == 0)
            continue;
        ready += s->ready;
        (void)backend_node_name(agent, rows[i].node, name, sizeof(name));
        *fine = *fine && put(json, "%s{\"node\":", comma) &&
                shoal_json_quote(shoal_view_text(name), json) == SHOAL_OK &&
                put(json, ",\"ready\":%u,\"room\":%u,\"open\":%u}", s->ready, s->room, s->open);
        comma = ",";
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
    if (shoal_job_state_ended((enum shoal_job_state)facts->state))
        return facts->reason;
    if (facts->pending[0] == '\0' && facts->task_counts[SHOAL_TASK_RUNNING] > ready)
        return "its kernels are placed and start: the service's logs say how far they are";
    return facts->pending;
}

/* `facts`: as the job's leader says; NULL: as gossip has it. */
static bool put_service(struct agent *agent, const struct backend_serving *all,
                        const struct shoal_mesh_service *service, const struct shoal_job_facts *facts,
                        struct shoal_buf *json)
{
    struct shoal_job_summary *summary = calloc(1, sizeof(*summary));
    char job[SHOAL_JOB_ID_TEXT_BYTES];
    bool known = facts != NULL, ended = false, fine = true;
    uint32_t replicas = 0, ready, version = backend_version_number(agent, service, true);

    SHOAL_ASSERT(summary != NULL);
    if (facts != NULL && facts->version > 0)
        version = facts->version;
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
               service->name, version == 0 ? service->version : version, job, service->replicas, replicas) &&
           put_text(json, "creator", service->creator) &&
           put(json, ",\"createdAt\":%llu,\"updatedAt\":%llu", (unsigned long long)service->created_s,
               (unsigned long long)service->updated_s);
    ready = put_hosts(agent, all, service->job, json, &fine);
    fine = fine && backend_versions_put(agent, all, service, json);
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
    struct backend_serving all;
    bool fine = backend_serving_read(l->agent, &all) &&
                put_service(l->agent, &all, &l->service, told ? facts : NULL, &json);

    backend_serving_free(&all);
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
    struct backend_serving all;
    bool fine = backend_serving_read(l->agent, &all) && put(&json, "{\"services\":[");

    for (size_t i = 0; i < count && fine && err == SHOAL_OK; i++)
        fine =
            put(&json, "%s", i == 0 ? "" : ",") &&
            put_service(l->agent, &all, shoal_mesh_service_at(mesh, i), NULL, &json);
    fine = fine && put(&json, "]}");
    backend_serving_free(&all);
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

/* ---- one of them, as its group says ---- */

struct reading {
    struct agent *agent;
    struct shoal_mesh_service service;
    shoal_backend_service_fn *done;
    void *arg;
};

static void read_end(struct reading *r, enum shoal_err err, const char *text, const struct shoal_service_info *info)
{
    struct shoal_msg msg;

    (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
    r->done(r->arg, err, &msg, info);
    free(r);
}

static void on_read_facts(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct reading *r = arg;
    struct shoal_job_facts *facts = calloc(1, sizeof(*facts));
    struct shoal_service_info info = { .name = r->service.name,
                                       .creator = r->service.creator,
                                       .version = r->service.version,
                                       .created_s = r->service.created_s,
                                       .updated_s = r->service.updated_s,
                                       .job = r->service.job,
                                       .before = r->service.before };

    SHOAL_ASSERT(facts != NULL);
    if (err != SHOAL_OK) {
        read_end(r, err, reply->u.reply.text, NULL);
    } else if (shoal_job_facts_decode(reply->u.reply.bytes, facts) != SHOAL_OK) {
        read_end(r, SHOAL_ERR_MALFORMED, "the answer of the service's leader does not decode", NULL);
    } else {
        if (facts->version > 0)
            info.version = facts->version;
        info.other = backend_version_number(r->agent, &r->service, false);
        info.replicas = facts->replicas;
        info.placed = facts->task_counts[SHOAL_TASK_RUNNING];
        info.document = facts->document;
        backend_service_count(r->agent, r->service.before, &info.other_ready, &info.open);
        backend_service_count(r->agent, r->service.job, &info.ready, &info.open);
        info.why = why_of(facts, facts->replicas, info.ready);
        read_end(r, SHOAL_OK, "", &info);
    }
    free(facts);
}

static void on_read_found(void *arg, enum shoal_err err, const char *text, const struct shoal_mesh_service *service)
{
    struct reading *r = arg;
    struct shoal_sched_request get = { .kind = SHOAL_SCHED_GET, .linearizable = true, .deadline_ms = REQUEST_MS };

    if (err != SHOAL_OK) {
        read_end(r, err, text, NULL);
        return;
    }
    r->service = *service;
    get.job = service->job;
    agent_request(r->agent, &get, on_read_facts, r);
}

void backend_service_look(void *ctx, const struct shoal_user *caller, const char *name, shoal_backend_service_fn *done,
                          void *arg)
{
    struct reading *r = calloc(1, sizeof(*r));

    (void)caller; /* as backend_services() */
    SHOAL_ASSERT(r != NULL);
    r->agent = ctx;
    r->done = done;
    r->arg = arg;
    backend_service_find(ctx, name, true, on_read_found, r);
}
