/* Replicas of services on this host: the link to each kernel (node/serve), and what others hear of them by gossip. */
#include "agent.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "shoal/below.h"
#include "shoal/disk.h"
#include "shoal/mesh.h"
#include "shoal/sched_look.h"
#include "shoal/http.h"
#include "shoal/service_doc.h"

#include "agent_settings.h"

#include "shoal/banned.h"

/* Others hear at most so often how much is in hand here; that a replica is ready, or gone, they hear at once. */
#define TOLD_TICKS 3 /* more often than A4 of autoscale.h needs */
#define DOCUMENT_NAME "service.json"
#define MODEL_NAME "model.json" /* beside it */

static void on_changed(void *arg)
{
    struct agent *agent = arg;

    agent->serving_changed = true;
}

/* Its end comes by itself, and the next one is started later. */
static void on_broken(void *arg, uint64_t worker_id, const char *text)
{
    struct agent *agent = arg;
    struct agent_job *job = NULL;
    const struct agent_run *run = agent_run_find(agent, worker_id, &job);

    agent_log(agent, "%s: replica %u is ended: %s", job == NULL ? "a service" : job->text, run == NULL ? 0 : run->index,
              text);
    workers_kill(agent->workers, worker_id, 0);
}

static void on_drained(void *arg, uint64_t worker_id, uint64_t grace_ns)
{
    struct agent *agent = arg;

    workers_kill(agent->workers, worker_id, grace_ns);
}

void agent_serve_stop(struct agent *agent, uint64_t worker_id, uint64_t grace_ns)
{
    struct agent_job *job = NULL;
    struct agent_run *run = agent_run_find(agent, worker_id, &job);

    if (run != NULL)
        run->ordered = true;
    if (grace_ns == 0 || !serve_host_drain(agent->serve, worker_id, grace_ns))
        workers_kill(agent->workers, worker_id, grace_ns);
}

void agent_serve_create(struct agent *agent)
{
    agent->serve = serve_host_create(&(struct serve_host_options){
        .loop = &agent->loop, .arg = agent, .changed = on_changed, .broken = on_broken, .drained = on_drained });
    agent->serving_told.count = UINT8_MAX; /* an earlier life of this host may have told of replicas */
}

void agent_serve_socket(const struct agent *agent, const struct agent_job *job, const struct agent_run *run, char *path,
                        size_t cap)
{
    char folder[AGENT_PATH_BYTES];

    agent_job_folder(agent, job->id, folder, sizeof(folder));
    (void)snprintf(path, cap, "%s/k%u.sock", folder, run->index);
}

void agent_serve_knobs(const struct agent *agent, const struct agent_job *job, struct service_knobs *knobs)
{
    char folder[AGENT_PATH_BYTES];
    struct shoal_buf document = { 0 };
    struct shoal_msg msg;

    *knobs = (struct service_knobs){ .timeout_s = 0 };
    agent_job_folder(agent, job->id, folder, sizeof(folder));
    if (shoal_disk_read_below(folder, DOCUMENT_NAME, SHOAL_SERVICE_DOCUMENT_BYTES_MAX, &document, &msg) == SHOAL_OK)
        service_doc_knobs(shoal_buf_view(&document), 0, knobs);
    shoal_buf_deinit(&document);
}

void agent_serve_started(struct agent *agent, const struct agent_job *job, const struct agent_run *run)
{
    char path[AGENT_PATH_BYTES + 32];
    struct service_knobs knobs;

    if (!shoal_job_spec_serves(&job->spec) || run->role != SHOAL_JOB_TASK)
        return;
    agent_serve_socket(agent, job, run, path, sizeof(path));
    agent_serve_knobs(agent, job, &knobs);
    serve_host_start(agent->serve, &(struct serve_start){ .job = job->id,
                                                          .service = job->spec.service,
                                                          .version = job->spec.version,
                                                          .worker_id = run->worker_id,
                                                          .index = run->index,
                                                          .path = path,
                                                          .limit_s = knobs.timeout_s });
}

/* ---- the document of a service, and its runtime's where that is an administrator's ---- */

#define DOCUMENT_MS 5000

struct asking {
    struct agent *agent;
    struct shoal_job_id job;
    char runtime[SHOAL_RUNTIME_NAME_BYTES];
};

void agent_serve_document(const struct agent *agent, const struct agent_job *job, char *path, size_t cap)
{
    char folder[AGENT_PATH_BYTES];

    agent_job_folder(agent, job->id, folder, sizeof(folder));
    (void)snprintf(path, cap, "%s/" DOCUMENT_NAME, folder);
}

bool agent_serve_write(const struct agent *agent, struct shoal_job_id job, const char *name, struct shoal_view document)
{
    char folder[AGENT_PATH_BYTES], path[AGENT_PATH_BYTES + 32], next[AGENT_PATH_BYTES + 40];
    bool whole;
    int fd;

    agent_job_folder(agent, job, folder, sizeof(folder));
    (void)snprintf(path, sizeof(path), "%s/%.30s", folder, name);
    (void)snprintf(next, sizeof(next), "%s.next", path);
    fd = shoal_open_below(folder, next + strlen(folder) + 1, O_WRONLY | O_CREAT | O_TRUNC);
    if (fd < 0)
        return false;
    whole = pwrite(fd, document.bytes, document.len, 0) == (ssize_t)document.len;
    (void)close(fd);
    return whole && rename(next, path) == 0;
}

/* The kernel reads it beside the document: pyedt/kernel_host.py. There is none: the kernel says that. */
static bool write_runtime(const struct agent *agent, const struct agent_job *job, const char *name)
{
    const struct shoal_mesh *mesh = shoal_sched_mesh(agent->sched);
    const struct shoal_mesh_framework *row;
    char folder[AGENT_PATH_BYTES], path[AGENT_PATH_BYTES + 32], key[SHOAL_MESH_FRAMEWORK_BYTES];

    (void)snprintf(key, sizeof(key), SHOAL_MESH_RUNTIME_PREFIX "%.*s", (int)SHOAL_RUNTIME_NAME_BYTES - 1, name);
    row = mesh == NULL ? NULL : shoal_mesh_framework_find(mesh, key);
    agent_job_folder(agent, job->id, folder, sizeof(folder));
    (void)snprintf(path, sizeof(path), "%s/runtime.json", folder);
    if (row != NULL)
        return agent_serve_write(agent, job->id, "runtime.json", shoal_view_text(row->settings));
    (void)unlink(path);
    return true;
}

/* Writes down the model object as its API shows it, for the kernel to be told (pyedt/kernel_host.py). The mesh group's copy here may
 * not have the service yet: then it was made when this version was. */
static bool write_model(const struct agent *agent, const struct agent_job *job, const struct shoal_job_facts *facts)
{
    const struct shoal_mesh *mesh = shoal_sched_mesh(agent->sched);
    const struct shoal_mesh_service *service = mesh == NULL ? NULL : shoal_mesh_service_find(mesh, job->spec.service);
    char url[AGENT_URL_BYTES], uri[AGENT_URL_BYTES + SHOAL_JOB_TEXT_BYTES + 32];
    struct service_doc_facts said = { .name = job->spec.service,
                                      .creator = job->spec.creator,
                                      .service_uri = uri,
                                      .created_s = service == NULL ? facts->create_ms / 1000 : service->created_s,
                                      .updated_s = service == NULL ? facts->create_ms / 1000 : service->updated_s,
                                      .values = true };
    struct shoal_buf model = { 0 };
    bool fine;

    agent_api_url(&agent->settings, agent->http == NULL ? agent->settings.api_port : shoal_http_port(agent->http), url);
    (void)snprintf(uri, sizeof(uri), "%s/dlim/v1/inference/%s", url, job->spec.service);
    fine = service_doc_model(facts->document, &said, &model) != SHOAL_OK || /* of a broken one the kernel says what is wrong */
           agent_serve_write(agent, job->id, MODEL_NAME, shoal_buf_view(&model));
    shoal_buf_deinit(&model);
    return fine;
}

/* Called when the question has been asked, or cannot be. */
static void asked(struct asking *asking, struct agent_job *job)
{
    struct agent *agent = asking->agent;

    free(asking);
    if (job == NULL || agent->stopping)
        return;
    job->document_asked = false;
    agent_job_asked(agent, job);
}

static void on_runtime(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct asking *asking = arg;
    struct agent *agent = asking->agent;
    struct agent_job *job = agent_job_find(agent, asking->job);

    if (job != NULL && err != SHOAL_OK)
        agent_log(agent, "%s: the mesh group does not say what runtime %s is now (%s): as before", job->text,
                  asking->runtime, reply->u.reply.text);
    else if (job != NULL && !write_runtime(agent, job, asking->runtime))
        agent_log(agent, "%s: runtime %s cannot be written down here: as before", job->text, asking->runtime);
    asked(asking, job);
}

/* If the group does not answer in time, the newest document that this host has seen must do. */
static void on_document(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct shoal_sched_request read = { .kind = SHOAL_SCHED_MESH_READ, .deadline_ms = DOCUMENT_MS };
    struct asking *asking = arg;
    struct agent *agent = asking->agent;
    struct agent_job *job = agent_job_find(agent, asking->job);
    struct shoal_job_facts *facts = calloc(1, sizeof(*facts));

    SHOAL_ASSERT(facts != NULL);
    if (job != NULL && err != SHOAL_OK)
        agent_log(agent, "%s: its group does not say how the service is to run now (%s): as before", job->text,
                  reply->u.reply.text);
    else if (job != NULL && (shoal_job_facts_decode(reply->u.reply.bytes, facts) != SHOAL_OK ||
                             !agent_serve_write(agent, job->id, DOCUMENT_NAME, facts->document) ||
                             !write_model(agent, job, facts)))
        agent_log(agent, "%s: how the service is to run cannot be written down here: as before", job->text);
    else if (job != NULL)
        service_doc_runtime(facts->document, asking->runtime, sizeof(asking->runtime));
    free(facts);
    if (job == NULL || agent->stopping || service_doc_runtime_is_ours(asking->runtime))
        asked(asking, job);
    else
        agent_request(agent, &read, on_runtime, asking);
}

void agent_serve_ask(struct agent *agent, struct agent_job *job)
{
    struct shoal_sched_request get = {
        .kind = SHOAL_SCHED_GET, .job = job->id, .linearizable = true, .deadline_ms = DOCUMENT_MS
    };
    struct asking *asking;

    if (job->document_asked)
        return;
    asking = calloc(1, sizeof(*asking));
    SHOAL_ASSERT(asking != NULL);
    *asking = (struct asking){ .agent = agent, .job = job->id };
    job->document_asked = true;
    agent_request(agent, &get, on_document, asking);
}

void agent_serve_ended(struct agent *agent, uint64_t worker_id) { serve_host_end(agent->serve, worker_id); }

void agent_serve_forget(struct agent *agent, struct shoal_job_id job) { serve_host_forget(agent->serve, job); }

/* Nothing of it is here any more but what was counted (H6 of serve_host.h). */
static bool is_past(const struct shoal_serving *s) { return s->ready == 0 && s->open == 0; }

/* What was counted, of those that are told already and of those that have no ready kernel here: these come last. */
static void add_counted(const struct agent *agent, struct shoal_serving_record *serving)
{
    struct serve_counted c;

    for (size_t place = 0; serve_host_counted(agent->serve, place, &c); place++) {
        unsigned at = 0;

        while (at < serving->count && !shoal_job_id_equal(serving->services[at].job, c.job))
            at++;
        if (at == SHOAL_SERVING_MAX || c.counts->answered + c.counts->failed == 0)
            continue;
        if (at == serving->count)
            serving->services[serving->count++] = (struct shoal_serving){ .job = c.job };
        serving->services[at].answered = c.counts->answered;
        serving->services[at].failed = c.counts->failed;
    }
}

/* The record has no room for more: the rest is not told. */
static void tell(struct agent *agent, const struct shoal_serving_record *all)
{
    struct shoal_serving_record fits = *all;
    uint8_t bytes[SHOAL_RECORD_PAYLOAD_MAX];
    struct shoal_record record = { .kind = SHOAL_RECORD_SERVICE };
    size_t len;

    memcpy(record.key.bytes, agent->identity.node.bytes, sizeof(record.key.bytes));
    while (fits.count > 0 && is_past(&fits.services[fits.count - 1]) &&
           shoal_serving_record_encode(&fits, bytes, sizeof(bytes), &len) != SHOAL_OK)
        fits.count--;
    if (shoal_serving_record_encode(&fits, bytes, sizeof(bytes), &len) != SHOAL_OK)
        for (unsigned i = 0; i < fits.count; i++) /* who serves comes before how much it served */
            fits.services[i].answered = fits.services[i].failed = 0;
    while (shoal_serving_record_encode(&fits, bytes, sizeof(bytes), &len) != SHOAL_OK)
        if (fits.count-- == 0)
            return;
    record.payload = shoal_view_of(bytes, len);
    agent_publish(agent, &record);
    agent->serving_told = *all;
}

void agent_serve_look(struct agent *agent)
{
    struct shoal_serving_record serving = { .pieces = true };
    struct serve_facts facts[SERVE_FACTS_MAX];
    size_t count;

    if (!agent->serving_changed && agent->health_ticks % TOLD_TICKS != 0)
        return;
    count = serve_host_facts(agent->serve, facts, SERVE_FACTS_MAX);
    for (size_t i = 0; i < count && serving.count < SHOAL_SERVING_MAX; i++) {
        if (facts[i].ready > 0)
            serving.services[serving.count++] =
                (struct shoal_serving){ .job = facts[i].job,
                                        .ready = facts[i].ready,
                                        .room = facts[i].room < UINT16_MAX ? facts[i].room : UINT16_MAX,
                                        .open = facts[i].open,
                                        .limit_s = facts[i].limit_s };
    }
    if (agent->services_held != NULL) /* no kernel is ready, and so many wait for one */
        serving.count = (uint8_t)(serving.count + agent->services_held(agent, serving.services + serving.count,
                                                                       SHOAL_SERVING_MAX - serving.count));
    add_counted(agent, &serving);
    if (memcmp(&serving, &agent->serving_told, sizeof(serving)) != 0)
        tell(agent, &serving);
    agent->serving_changed = false;
}
