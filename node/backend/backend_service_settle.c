/* Puts right what the interrupted deployment of a canary has left, before a verb of the service does what it is to.
 *
 *     the name stands for a version that is stopped, whose document says that it is the canary of the name's next change
 *     (its deployment ended between the two, decision 0058) --> SET_SERVICE: the name stands for the current version again
 *
 * The mesh group changes a name for a user alone, so no host does this by itself: the verb's user does. Of two that do it at one
 * time the group takes one, and the other one finds the name as it is to be. */
#include "shoal/job_facts.h"
#include "shoal/service_doc.h"

#include "agent_backend.h"
#include "backend_services.h"

#include "shoal/banned.h"

#define READ_MS 5000

struct settling {
    struct agent *agent;
    struct shoal_user caller;
    struct shoal_mesh_service service;
    bool settled;
    backend_settled_fn *done;
    void *arg;
};

bool backend_service_is_half(const struct service_knobs *knobs, const struct shoal_mesh_service *service)
{
    return !knobs->started && knobs->canary > 0 && knobs->canary_at == service->version + 1 &&
           !shoal_job_id_is_mesh(service->before);
}

static void settle_end(struct settling *s, enum shoal_err err, const char *text)
{
    s->done(s->arg, err, text, err == SHOAL_OK ? &s->service : NULL, s->settled);
    free(s);
}

static void on_found_again(void *arg, enum shoal_err err, const char *text, const struct shoal_mesh_service *service)
{
    struct settling *s = arg;

    if (err == SHOAL_OK)
        s->service = *service;
    settle_end(s, err, text);
}

static void on_put_back(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct settling *s = arg;

    if (err == SHOAL_OK || err == SHOAL_ERR_STALE) /* another one has done it */
        backend_service_find(s->agent, s->service.name, true, on_found_again, s);
    else
        settle_end(s, err, reply->u.reply.text);
}

static void on_facts(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct settling *s = arg;
    struct shoal_job_facts *facts = calloc(1, sizeof(*facts));
    struct service_knobs knobs = { .started = true };
    struct shoal_mesh_service service = s->service;

    SHOAL_ASSERT(facts != NULL);
    if (err == SHOAL_OK && shoal_job_facts_decode(reply->u.reply.bytes, facts) == SHOAL_OK)
        service_doc_knobs(facts->document, facts->replicas, &knobs);
    free(facts);
    if (!backend_service_is_half(&knobs, &s->service)) {
        settle_end(s, SHOAL_OK, ""); /* where its group did not answer, the verb says so */
        return;
    }
    s->settled = true;
    service.job = s->service.before;
    service.before = s->service.job;
    backend_change_mesh(s->agent, &s->caller, SHOAL_MESH_SET_SERVICE, &service, on_put_back, s);
}

static void on_name(void *arg, enum shoal_err err, const char *text, const struct shoal_mesh_service *service)
{
    struct settling *s = arg;
    struct shoal_sched_request get = { .kind = SHOAL_SCHED_GET, .linearizable = true, .deadline_ms = READ_MS };

    if (err == SHOAL_OK)
        s->service = *service;
    if (err != SHOAL_OK || shoal_job_id_is_mesh(s->service.before)) {
        settle_end(s, err, text);
        return;
    }
    get.job = s->service.job;
    agent_request(s->agent, &get, on_facts, s);
}

void backend_service_settle(struct agent *agent, const struct shoal_user *caller, const char *name, backend_settled_fn *done,
                            void *arg)
{
    struct settling *s = calloc(1, sizeof(*s));

    SHOAL_ASSERT(s != NULL);
    s->agent = agent;
    s->caller = *caller;
    s->done = done;
    s->arg = arg;
    backend_service_find(agent, name, true, on_name, s);
}
