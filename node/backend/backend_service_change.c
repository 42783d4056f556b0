/* Services are started, stopped, scaled, edited, taken back to the version before, and deleted.
 *
 *     start, stop, scale, edit:  GET of the document --> service_doc_edit() --> EDIT of the job's group; STALE: again
 *     canary:  EDIT of the other version's document, by which it gets kernels, then of the current one's, by which it gets
 *              requests; its end: the other way round. What they say counts until the name changes (decision 0047)
 *     back, promote:  SET_SERVICE: the name stands for the version before, then EDIT: that one starts; where the name stands for
 *              it already, by the version that back was told or by the document of a promoted canary, the EDIT alone: each may
 *              be said again
 *     delete:  DELETE of the job, then REMOVE_SERVICE; each may be repeated */
#include "shoal/job_entry.h"
#include "shoal/job_facts.h"

#include "agent_backend.h"
#include "backend_services.h"

#include "shoal/banned.h"

#define REQUEST_MS 5000

/* ---- changing ---- */

/* Two editors at one time: the one that comes second looks again, at most so often. */
#define EDITS_MAX 5

struct changing {
    struct agent *agent;
    struct shoal_user caller;
    enum shoal_service_verb verb;
    struct service_doc_edit edit; /* of all verbs but DELETE and BACK */
    unsigned tries;
    uint32_t floor; /* BACK: replicas that there were */
    uint32_t to;    /* BACK: the version; 0: the one before */
    char number[12]; /* of it, as a text */
    bool other;     /* the document of the other version is edited */
    unsigned switches; /* from one document to the other one */
    bool canaried;  /* the document that was edited last has a canary that counts */
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

static bool may_change(const struct changing *c, char *why, size_t cap)
{
    (void)snprintf(why, cap, "the service %s belongs to %s", c->service.name, c->service.creator);
    return c->caller.admin || strcmp(c->caller.name, c->service.creator) == 0;
}

static void on_removed(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct changing *c = arg;
    char text[200];

    (void)snprintf(text, sizeof(text), "the service %s is deleted", c->service.name);
    change_end(c, err, err == SHOAL_OK ? text : reply->u.reply.text);
}

static void on_before_deleted(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    (void)arg;
    (void)err; /* what is left over has no name, and is seen in the list of jobs */
    (void)msg;
}

static void on_job_deleted(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    struct changing *c = arg;
    struct shoal_mesh_service service = c->service;

    if (err != SHOAL_OK && err != SHOAL_ERR_NOT_FOUND) { /* it may have been deleted by somebody else */
        change_end(c, err, msg->text);
        return;
    }
    if (!shoal_job_id_is_mesh(c->service.before))
        backend_change_id(c->agent, &c->caller, c->service.before, SHOAL_SCHED_DELETE, on_before_deleted, NULL);
    service.before = c->service.job;
    backend_change_mesh(c->agent, &c->caller, SHOAL_MESH_REMOVE_SERVICE, &service, on_removed, c);
}

static void edit_again(struct changing *c);

static void on_other_edited(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    (void)arg;
    (void)err; /* it stands until the current one is started and ready, and is edited again by the next verb */
    (void)msg;
}

/* Of a service that is started or stopped, the other version, too. */
static void edit_other(const struct changing *c, enum service_doc_edit_kind kind)
{
    struct changing *other = calloc(1, sizeof(*other));

    SHOAL_ASSERT(other != NULL);
    *other = *c;
    other->verb = SHOAL_SERVICE_VERBS;
    other->edit = (struct service_doc_edit){ .kind = kind, .name = other->service.name, .now_s = c->edit.now_s };
    other->other = true;
    other->tries = 0;
    other->service.job = c->service.before;
    other->done = on_other_edited;
    other->arg = NULL;
    edit_again(other);
}

/* Both documents say of a canary: the version that gets kernels first gets requests last. False: both are edited. */
static bool edit_the_other(struct changing *c)
{
    struct shoal_job_id job = c->service.job;

    if (c->switches == (c->edit.canary > 0 ? 2 : 1) || shoal_job_id_is_mesh(c->service.before))
        return false;
    c->switches++;
    c->other = !c->other;
    c->tries = 0;
    c->service.job = c->service.before;
    c->service.before = job;
    edit_again(c);
    return true;
}

static void say_back(const struct changing *c, char *text, size_t cap)
{
    if (c->to > 0)
        (void)snprintf(text, cap, "the service %s goes back to version %u", c->service.name, c->to);
    else if (c->verb == SHOAL_SERVICE_PROMOTE)
        (void)snprintf(text, cap, "the canary of the service %s is its current version now", c->service.name);
    else
        (void)snprintf(text, cap, "the service %s goes back to the version before", c->service.name);
}

static void say_canary(const struct changing *c, char *text, size_t cap)
{
    if (c->edit.canary == 0)
        (void)snprintf(text, cap, "the service %s has no canary any more", c->service.name);
    else
        (void)snprintf(text, cap, "of the requests for %s, %u %% go to version %u as soon as it is ready", c->service.name,
                       c->edit.canary - 1, c->edit.canary_version);
}

static void on_edited(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct changing *c = arg;
    char text[200] = "";

    if (err == SHOAL_ERR_STALE && ++c->tries < EDITS_MAX) {
        edit_again(c);
        return;
    }
    if (c->edit.kind == SERVICE_DOC_CANARY && c->switches == 1)
        agent_fault_point("canary-half");
    if (err == SHOAL_OK && c->edit.kind == SERVICE_DOC_CANARY && edit_the_other(c))
        return;
    if (err == SHOAL_OK && c->verb == SHOAL_SERVICE_START && c->canaried)
        edit_other(c, SERVICE_DOC_START);
    if (c->edit.kind == SERVICE_DOC_CANARY)
        say_canary(c, text, sizeof(text));
    else if (c->verb == SHOAL_SERVICE_STOP || (c->verb == SHOAL_SERVICE_SCALE && c->edit.replicas == 0))
        (void)snprintf(text, sizeof(text), "the service %s stops", c->service.name);
    else if (c->verb == SHOAL_SERVICE_BACK || c->verb == SHOAL_SERVICE_PROMOTE)
        say_back(c, text, sizeof(text));
    else if (c->verb == SHOAL_SERVICE_START || c->verb == SHOAL_SERVICE_SCALE)
        (void)snprintf(text, sizeof(text), "the service %s is to have %u replica%s", c->service.name, c->edit.replicas,
                       c->edit.replicas == 1 ? "" : "s");
    change_end(c, err, err == SHOAL_OK ? text : reply->u.reply.text);
}

/* How many replicas the service is to have after this edit. */
static uint8_t replicas_after(const struct changing *c, struct shoal_view doc, uint32_t now)
{
    struct service_knobs knobs;

    service_doc_knobs(doc, now, &knobs);
    if (!knobs.started)
        return 0;
    if (c->other && c->edit.kind == SERVICE_DOC_CANARY && c->edit.canary == 0)
        return 0;
    if (c->other && c->edit.kind == SERVICE_DOC_CANARY && now == 0)
        return (uint8_t)(knobs.kernels_min > 0 ? knobs.kernels_min : 1);
    if (c->other && c->edit.kind == SERVICE_DOC_CANARY)
        return (uint8_t)now;
    if (c->verb == SHOAL_SERVICE_BACK || c->verb == SHOAL_SERVICE_PROMOTE)
        return (uint8_t)(c->floor > knobs.kernels_min ? c->floor : knobs.kernels_min);
    if (c->edit.kind == SERVICE_DOC_START && now == 0)
        return (uint8_t)knobs.kernels_min;
    if (c->edit.kind == SERVICE_DOC_SCALE)
        return (uint8_t)c->edit.replicas;
    if (now < knobs.kernels_min)
        return (uint8_t)knobs.kernels_min;
    return (uint8_t)(now > knobs.kernels_max ? knobs.kernels_max : now);
}

/* A request waits for a kernel only where there may be one. */
static enum shoal_err check_start(const struct changing *c, struct shoal_view doc, struct shoal_msg *msg)
{
    struct service_knobs knobs;

    service_doc_knobs(doc, 0, &knobs);
    if (knobs.kernels_max > 0)
        return SHOAL_OK;
    return shoal_fail(msg, SHOAL_ERR_EXISTS,
                      "the profile of %s allows no kernel (policy.kernel_max 0), so nothing would start: shoal service "
                      "scale %s N says how many",
                      c->service.name, c->service.name);
}

static void on_edit_facts(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct changing *c = arg;
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_EDIT, .job = c->service.job, .deadline_ms = REQUEST_MS };
    struct shoal_job_facts *facts = calloc(1, sizeof(*facts));
    struct shoal_buf doc = { 0 };
    struct shoal_msg msg = { "the answer of the service's leader does not decode" };
    uint8_t *command = malloc(SHOAL_SERVICE_DOCUMENT_BYTES_MAX + SHOAL_EDIT_HEAD_BYTES);
    struct shoal_writer w = shoal_writer_init(command, SHOAL_SERVICE_DOCUMENT_BYTES_MAX + SHOAL_EDIT_HEAD_BYTES);
    char token[SHOAL_TOKEN_TEXT_BYTES];
    struct service_knobs knobs;

    SHOAL_ASSERT(facts != NULL && command != NULL);
    if (err != SHOAL_OK)
        (void)snprintf(msg.text, sizeof(msg.text), "%s", reply->u.reply.text);
    else
        err = shoal_job_facts_decode(reply->u.reply.bytes, facts);
    if (err == SHOAL_OK)
        err = service_doc_edit(facts->document, &c->edit, &doc, &msg);
    if (err == SHOAL_OK && c->verb == SHOAL_SERVICE_START)
        err = check_start(c, shoal_buf_view(&doc), &msg);
    if (err == SHOAL_OK) {
        uint8_t replicas = replicas_after(c, shoal_buf_view(&doc), facts->replicas);

        if (c->verb == SHOAL_SERVICE_START)
            c->edit.replicas = replicas;
        service_doc_knobs(shoal_buf_view(&doc), facts->replicas, &knobs);
        c->canaried = knobs.canary > 0 && knobs.canary_at == c->service.version;
        shoal_put_u32(&w, facts->revision);
        shoal_put_u8(&w, replicas);
        shoal_put_raw(&w, doc.bytes, doc.len);
        request.token = agent_token_of(c->agent, &c->caller, token);
        request.command = shoal_writer_view(&w);
        (void)snprintf(request.by, sizeof(request.by), "%s", c->caller.name);
        agent_request(c->agent, &request, on_edited, c);
    } else {
        change_end(c, err, msg.text);
    }
    shoal_buf_deinit(&doc);
    free(command);
    free(facts);
}

static void edit_again(struct changing *c)
{
    struct shoal_sched_request get = {
        .kind = SHOAL_SCHED_GET, .job = c->service.job, .linearizable = true, .deadline_ms = REQUEST_MS
    };

    agent_request(c->agent, &get, on_edit_facts, c);
}

/* ---- back to the version before ---- */

/* The name stands for the version before: it begins with as many replicas as there were; until they are ready, the other
 * one answers. */
static void on_back(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct changing *c = arg;
    char text[200];

    agent_fault_point("back-named");
    say_back(c, text, sizeof(text));
    if (err != SHOAL_OK || c->floor == 0) {
        change_end(c, err, err == SHOAL_OK ? text : reply->u.reply.text);
        return;
    }
    c->service.job = c->service.before;
    c->edit.kind = SERVICE_DOC_START;
    edit_again(c);
}

static void go_back(struct changing *c);

static void on_back_facts(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct changing *c = arg;
    struct shoal_job_facts *facts = calloc(1, sizeof(*facts));
    struct shoal_mesh_service service = c->service;

    SHOAL_ASSERT(facts != NULL);
    if (err != SHOAL_OK || shoal_job_facts_decode(reply->u.reply.bytes, facts) != SHOAL_OK) {
        change_end(c, err == SHOAL_OK ? SHOAL_ERR_MALFORMED : err, reply->u.reply.text);
    } else {
        c->floor = facts->replicas;
        service.job = c->service.before;
        service.before = c->service.job;
        backend_change_mesh(c->agent, &c->caller, SHOAL_MESH_SET_SERVICE, &service, on_back, c);
    }
    free(facts);
}

/* The name stands for it already. Where the other one has kernels still, it is to have as many: nobody may have said so yet. */
static void on_other_floor(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct changing *c = arg;
    struct shoal_job_facts *facts = calloc(1, sizeof(*facts));
    char text[200];

    SHOAL_ASSERT(facts != NULL);
    say_back(c, text, sizeof(text));
    if (err == SHOAL_OK && shoal_job_facts_decode(reply->u.reply.bytes, facts) == SHOAL_OK)
        c->floor = facts->replicas;
    free(facts);
    if (err != SHOAL_OK || c->floor == 0) {
        change_end(c, err, err == SHOAL_OK ? text : reply->u.reply.text);
        return;
    }
    c->edit.kind = SERVICE_DOC_START;
    edit_again(c);
}

static void end_back(struct changing *c)
{
    struct shoal_sched_request get = {
        .kind = SHOAL_SCHED_GET, .job = c->service.before, .linearizable = true, .deadline_ms = REQUEST_MS
    };
    char text[200];

    say_back(c, text, sizeof(text));
    if (shoal_job_id_is_mesh(c->service.before))
        change_end(c, SHOAL_OK, text);
    else
        agent_request(c->agent, &get, on_other_floor, c);
}

static void on_back_found(void *arg, enum shoal_err err, const char *text, const struct backend_version *found)
{
    struct changing *c = arg;

    if (err != SHOAL_OK) {
        change_end(c, err, text);
        return;
    }
    c->service = *found->service;
    if (found->current)
        end_back(c);
    else
        go_back(c);
}

static void go_back(struct changing *c)
{
    struct shoal_sched_request get = {
        .kind = SHOAL_SCHED_GET, .job = c->service.job, .linearizable = true, .deadline_ms = REQUEST_MS
    };
    char text[200];

    if (shoal_job_id_is_mesh(c->service.before)) {
        (void)snprintf(text, sizeof(text), "the service %s has no version before this one", c->service.name);
        change_end(c, SHOAL_ERR_EXISTS, text);
        return;
    }
    agent_request(c->agent, &get, on_back_facts, c);
}

/* ---- a canary ---- */

/* Its kernels are there and its requests are not: who gave it its part ended between the two documents. */
static void on_half_facts(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct changing *c = arg;
    struct shoal_job_facts *facts = calloc(1, sizeof(*facts));
    struct service_knobs knobs = { .started = false };
    char text[200];

    SHOAL_ASSERT(facts != NULL);
    if (err == SHOAL_OK && shoal_job_facts_decode(reply->u.reply.bytes, facts) == SHOAL_OK)
        service_doc_knobs(facts->document, facts->replicas, &knobs);
    free(facts);
    (void)snprintf(text, sizeof(text), "the service %s has no canary", c->service.name);
    if (err != SHOAL_OK)
        change_end(c, err, reply->u.reply.text);
    else if (knobs.canary == 0 || knobs.canary_at != c->service.version)
        change_end(c, SHOAL_ERR_EXISTS, text);
    else
        edit_again(c);
}

static void look_for_half(struct changing *c)
{
    struct shoal_sched_request get = {
        .kind = SHOAL_SCHED_GET, .job = c->service.before, .linearizable = true, .deadline_ms = REQUEST_MS
    };
    char text[200];

    (void)snprintf(text, sizeof(text), "the service %s has no canary", c->service.name);
    if (shoal_job_id_is_mesh(c->service.before))
        change_end(c, SHOAL_ERR_EXISTS, text);
    else
        agent_request(c->agent, &get, on_half_facts, c);
}

static void on_canary_facts(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct changing *c = arg;
    struct shoal_job_facts *facts = calloc(1, sizeof(*facts));
    struct service_knobs knobs = { .started = false };
    char text[sizeof(((struct shoal_msg *)0)->text)] = "";

    SHOAL_ASSERT(facts != NULL);
    if (err == SHOAL_OK && shoal_job_facts_decode(reply->u.reply.bytes, facts) == SHOAL_OK)
        service_doc_knobs(facts->document, facts->replicas, &knobs);
    if (err != SHOAL_OK)
        (void)snprintf(text, sizeof(text), "%s", reply->u.reply.text);
    else if (!knobs.started)
        (void)snprintf(text, sizeof(text), "the service %s is stopped; start it first", c->service.name);
    else if (c->edit.canary == 0 && (knobs.canary == 0 || knobs.canary_at != c->service.version))
        (void)snprintf(text, sizeof(text), "the service %s has no canary", c->service.name);
    free(facts);
    if (text[0] != '\0' && knobs.started && c->verb == SHOAL_SERVICE_PROMOTE && knobs.canary > 0 &&
        knobs.canary_at + 1 == c->service.version)
        end_back(c); /* the name's last change was its promotion */
    else if (text[0] != '\0' && knobs.started && c->verb == SHOAL_SERVICE_CANARY_END)
        look_for_half(c);
    else if (text[0] != '\0')
        change_end(c, err == SHOAL_OK ? SHOAL_ERR_EXISTS : err, text);
    else if (c->verb == SHOAL_SERVICE_PROMOTE)
        go_back(c);
    else if (c->edit.canary == 0)
        edit_again(c); /* the current version's document first */
    else if (!edit_the_other(c))
        change_end(c, SHOAL_ERR_STALE, "the service was changed by somebody else; look again");
}

static void look_for_canary(struct changing *c)
{
    struct shoal_sched_request get = {
        .kind = SHOAL_SCHED_GET, .job = c->service.job, .linearizable = true, .deadline_ms = REQUEST_MS
    };

    agent_request(c->agent, &get, on_canary_facts, c);
}

static void on_canary_found(void *arg, enum shoal_err err, const char *text, const struct backend_version *found)
{
    struct changing *c = arg;
    char why[200];

    if (err == SHOAL_OK)
        c->service = *found->service;
    if (err != SHOAL_OK) {
        change_end(c, err, text);
    } else if (!may_change(c, why, sizeof(why))) {
        change_end(c, SHOAL_ERR_DENIED, why);
    } else if (found->current) {
        (void)snprintf(why, sizeof(why), "version %u is the current one of the service %s; a canary is another one",
                       c->edit.canary_version, c->service.name);
        change_end(c, SHOAL_ERR_EXISTS, why);
    } else {
        c->edit.canary_at = c->service.version;
        look_for_canary(c);
    }
}

static void on_canary_settled(void *arg, enum shoal_err err, const char *text, const struct shoal_mesh_service *service,
                              bool settled)
{
    struct changing *c = arg;

    (void)service;
    (void)settled;
    if (err == SHOAL_OK)
        backend_version_find(c->agent, c->service.name, c->number, true, on_canary_found, c);
    else
        change_end(c, err, text);
}

/* ---- from the name on ---- */

static void back_found(struct changing *c, bool settled)
{
    char text[200];

    say_back(c, text, sizeof(text));
    if (c->to > 0)
        backend_version_find(c->agent, c->service.name, c->number, true, on_back_found, c);
    else if (settled)
        change_end(c, SHOAL_OK, text); /* which was the way back */
    else
        go_back(c);
}

static void on_change_found(void *arg, enum shoal_err err, const char *text, const struct shoal_mesh_service *service,
                            bool settled)
{
    struct changing *c = arg;
    char why[200];

    if (err != SHOAL_OK) {
        change_end(c, err, text);
        return;
    }
    c->service = *service;
    if (!may_change(c, why, sizeof(why))) {
        change_end(c, SHOAL_ERR_DENIED, why);
        return;
    }
    switch (c->verb) {
    case SHOAL_SERVICE_STOP:
        if (!shoal_job_id_is_mesh(service->before))
            edit_other(c, SERVICE_DOC_STOP);
        edit_again(c);
        return;
    case SHOAL_SERVICE_START:
    case SHOAL_SERVICE_SCALE: edit_again(c); return;
    case SHOAL_SERVICE_DELETE:
        backend_change_id(c->agent, &c->caller, service->job, SHOAL_SCHED_DELETE, on_job_deleted, c);
        return;
    case SHOAL_SERVICE_BACK: back_found(c, settled); return;
    case SHOAL_SERVICE_PROMOTE: look_for_canary(c); return;
    case SHOAL_SERVICE_CANARY_END:
        c->edit.kind = SERVICE_DOC_CANARY;
        look_for_canary(c);
        return;
    case SHOAL_SERVICE_VERBS: break;
    }
    edit_again(c); /* an edit with a body */
}

static struct changing *begin(void *ctx, const struct shoal_user *caller, const char *name,
                              enum shoal_service_verb verb, shoal_backend_done_fn *done, void *arg)
{
    struct changing *c = calloc(1, sizeof(*c));

    SHOAL_ASSERT(c != NULL);
    c->agent = ctx;
    c->caller = *caller;
    c->verb = verb;
    c->done = done;
    c->arg = arg;
    c->edit.name = c->service.name;
    c->edit.now_s = agent_wall_ms() / 1000;
    (void)snprintf(c->service.name, sizeof(c->service.name), "%.63s", name);
    return c;
}

void backend_service_change(void *ctx, const struct shoal_user *caller, const char *name, enum shoal_service_verb verb,
                            unsigned replicas, shoal_backend_done_fn *done, void *arg)
{
    struct changing *c = begin(ctx, caller, name, verb, done, arg);

    c->edit.kind = verb == SHOAL_SERVICE_START  ? SERVICE_DOC_START
                   : verb == SHOAL_SERVICE_STOP ? SERVICE_DOC_STOP
                                                : SERVICE_DOC_SCALE;
    c->edit.replicas = replicas;
    if (verb == SHOAL_SERVICE_BACK) {
        c->to = replicas;
        (void)snprintf(c->number, sizeof(c->number), "%u", replicas);
    }
    if (verb == SHOAL_SERVICE_SCALE && replicas > SHOAL_SERVICE_REPLICAS_MAX) {
        char text[100];

        (void)snprintf(text, sizeof(text), "a service has at most %u replicas; ask for fewer",
                       SHOAL_SERVICE_REPLICAS_MAX);
        change_end(c, SHOAL_ERR_INVALID, text);
        return;
    }
    backend_service_settle(ctx, caller, name, on_change_found, c);
}

void backend_service_edit(void *ctx, const struct shoal_user *caller, const char *name,
                          const struct service_doc_edit *edit, shoal_backend_done_fn *done, void *arg)
{
    struct changing *c = begin(ctx, caller, name, SHOAL_SERVICE_VERBS, done, arg);

    c->edit.kind = edit->kind;
    c->edit.body = edit->body;
    c->edit.replicas = edit->replicas;
    backend_service_settle(ctx, caller, name, on_change_found, c);
}

void backend_service_canary(void *ctx, const struct shoal_user *caller, const char *name, const char *version,
                            unsigned percent, shoal_backend_done_fn *done, void *arg)
{
    struct changing *c = begin(ctx, caller, name, SHOAL_SERVICE_VERBS, done, arg);

    SHOAL_ASSERT(percent < SHOAL_SERVICE_CANARY_MAX);
    c->edit.kind = SERVICE_DOC_CANARY;
    c->edit.canary = percent + 1;
    c->edit.canary_version = (uint32_t)strtoul(version, NULL, 10);
    (void)snprintf(c->number, sizeof(c->number), "%.11s", version);
    backend_service_settle(ctx, caller, name, on_canary_settled, c);
}
