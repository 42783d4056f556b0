/* Each leader of a service's group looks after it, some times a second.
 *
 *     load by gossip: requests in kernels and queues, and those that ingresses hold --> shoal_autoscale() --> SCALE
 *     a version that another one took the place of: when that one has as many ready kernels --> the mesh group says so, too
 *         --> EDIT to none, of the revision that was looked at (L2)
 *
 *     the other version, with a canary: as its own profile says, one at least;  pinned by requests: from none, and back to it
 *
 *     what the profile has at least --> the lead: above it, replicas yield to jobs that need their slots at least
 *
 * L1. Only a leader changes the number, through its own log: of two that believe to lead, one is refused by the group.
 * L2. A roll-back names the version, then edits it. This node's copy of the mesh may be older than both: a version loses its
 *     kernels only by a name that was read after the revision, and that revision still stands. */
#include "shoal/autoscale.h"
#include "shoal/job_entry.h"
#include "shoal/job.h"
#include "shoal/mesh.h"
#include "shoal/sched_look.h"
#include "shoal/service_doc.h"

#include "agent_backend.h"
#include "backend_services.h"

#include "shoal/banned.h"

#define REQUEST_MS 5000
#define FLOOR_NS (2 * SHOAL_S)

/* This node's memory of a service that it leads. */
struct scale_state {
    struct scale_state *next;
    struct agent *agent;
    struct shoal_job_id job;
    uint32_t revision;
    bool read; /* the knobs are those of `revision` */
    bool busy; /* a change is under way */
    bool seen; /* in this look */
    const struct backend_serving *all; /* what the hosts say, for this look */
    struct shoal_mesh_service service; /* of a version that is to have no kernels: as the look saw it */
    bool woken; /* the other version, which requests have asked for by its number */
    uint32_t floor_told, revision_told;
    uint8_t canary_told;
    uint64_t floor_ns; /* when; a leader that was away has forgotten it */
    struct service_knobs knobs;
    struct shoal_autoscale autoscale;
};

static struct scale_state *state_need(struct agent *agent, struct shoal_job_id job)
{
    struct scale_state *state = agent->scales;

    while (state != NULL && !shoal_job_id_equal(state->job, job))
        state = state->next;
    if (state != NULL)
        return state;
    state = calloc(1, sizeof(*state));
    SHOAL_ASSERT(state != NULL);
    state->agent = agent;
    state->job = job;
    state->next = agent->scales;
    agent->scales = state;
    return state;
}

static void forget_unseen(struct agent *agent)
{
    struct scale_state **at = &agent->scales;

    while (*at != NULL) {
        struct scale_state *state = *at;

        if (state->seen || state->busy) {
            state->seen = false;
            at = &state->next;
        } else {
            *at = state->next;
            free(state);
        }
    }
}

static void on_scaled(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct scale_state *state = arg;

    (void)err; /* the next look sees what came of it */
    (void)reply;
    state->busy = false;
}

static void scale_to(struct scale_state *state, uint32_t replicas)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_SCALE, .job = state->job, .deadline_ms = REQUEST_MS };
    const uint8_t count = (uint8_t)replicas;

    request.command = shoal_view_of(&count, 1);
    state->busy = true;
    agent_request(state->agent, &request, on_scaled, state);
}

/* Its document's word of a canary counts until the service's name changes. */
static bool has_canary(const struct scale_state *state, const struct shoal_mesh_service *service)
{
    return state->read && state->knobs.started && state->knobs.canary > 0 &&
           state->knobs.canary_at == service->version && !shoal_job_id_is_mesh(service->before);
}

/* Above what the profile has at least, a fixed number has nothing. */
static uint32_t floor_of(const struct scale_state *state)
{
    return !state->read || state->knobs.kernels_min >= state->knobs.kernels_max ? UINT32_MAX : state->knobs.kernels_min;
}

/* With it goes what the kernels need of a card: no kernel of the document of that revision is placed before. */
static void tell_floor(struct scale_state *state, uint32_t count, uint8_t canary)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_FLOOR, .u.floor = { .job = state->job, .count = count, .canary = canary, .revision = state->revision } };
    uint64_t now = agent_now_ns();

    if (state->floor_ns != 0 && now < state->floor_ns + FLOOR_NS && state->floor_told == event.u.floor.count &&
        state->canary_told == canary && state->revision_told == state->revision)
        return;
    event.u.floor.need = state->knobs.need;
    state->revision_told = state->revision;
    state->canary_told = canary;
    state->floor_ns = now;
    state->floor_told = event.u.floor.count;
    agent_event(state->agent, &event);
}

static void read_knobs(struct scale_state *state, const struct shoal_job *job)
{
    if (!state->read || state->revision != job->revision)
        service_doc_knobs(shoal_view_of(job->document, job->document_len), job->tasks->replicas, &state->knobs);
    state->revision = job->revision;
    state->read = job->document_len > 0;
}

/* As the profile's knobs say, from `min` on. Returns how many there are to be. */
static uint32_t follow_load(struct scale_state *state, const struct shoal_job *job, uint32_t min)
{
    struct shoal_autoscale_facts facts = { .now_ns = agent_now_ns(), .have = job->tasks->replicas };
    struct backend_tally tally;
    uint32_t want;

    facts.interval_ns = state->knobs.interval_s * SHOAL_S;
    facts.release_ns = state->knobs.release_s * SHOAL_S;
    facts.batch = state->knobs.batch == 0 ? 1 : state->knobs.batch;
    facts.min = min;
    facts.max = state->knobs.kernels_max < min ? min : state->knobs.kernels_max;
    backend_serving_tally(state->all, state->job, &tally);
    facts.ready = tally.ready;
    facts.load = tally.open;
    want = shoal_autoscale(&state->autoscale, &facts);
    if (want != facts.have)
        scale_to(state, want);
    return want;
}

/* As it is after a step of the core, which may have ended its group. NULL: it has. */
static const struct shoal_job *job_now(const struct scale_state *state)
{
    const struct shoal_job *job = shoal_sched_job(state->agent->sched, state->job);

    return job == NULL || job->tasks == NULL ? NULL : job;
}

static void look_current(struct scale_state *state, const struct shoal_job *job,
                         const struct shoal_mesh_service *service)
{
    read_knobs(state, job);
    state->woken = false;
    tell_floor(state, floor_of(state),
               has_canary(state, service) ? (uint8_t)state->knobs.canary : 0);
    job = job_now(state);
    if (job == NULL || !state->read || !state->knobs.started || state->knobs.kernels_min >= state->knobs.kernels_max)
        return; /* it is stopped, or its number is fixed */
    (void)follow_load(state, job, state->knobs.kernels_min);
}

/* Its document stays as it is. */
static void retire(struct scale_state *state, const struct shoal_job *job)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_EDIT, .job = state->job, .deadline_ms = REQUEST_MS };
    uint8_t *command = malloc(job->document_len + SHOAL_EDIT_HEAD_BYTES);
    struct shoal_writer w = shoal_writer_init(command, job->document_len + SHOAL_EDIT_HEAD_BYTES);

    SHOAL_ASSERT(command != NULL);
    shoal_put_u32(&w, job->revision);
    shoal_put_u8(&w, 0);
    shoal_put_raw(&w, job->document, job->document_len);
    request.command = shoal_writer_view(&w);
    agent_request(state->agent, &request, on_scaled, state);
    free(command);
}

static void on_name(void *arg, enum shoal_err err, const char *text, const struct shoal_mesh_service *service)
{
    struct scale_state *state = arg;
    const struct shoal_job *job = shoal_sched_job(state->agent->sched, state->job);

    (void)text;
    if (err == SHOAL_OK && shoal_job_id_equal(service->job, state->service.job) && job != NULL && job->document_len > 0 &&
        job->revision == state->revision)
        retire(state, job);
    else
        state->busy = false; /* the next look sees what there is now */
}

/* The name stands for another job, which takes over. */
static void look_before(struct scale_state *state, const struct shoal_job *job, const struct shoal_mesh_service *service)
{
    struct shoal_job_summary *summary = calloc(1, sizeof(*summary));
    struct backend_tally tally;
    uint32_t enough = job->tasks->replicas;

    SHOAL_ASSERT(summary != NULL);
    if (enough > 0 && backend_summary(state->agent, service->job, summary)) {
        if (summary->want_max < enough)
            enough = summary->want_max;
        backend_serving_tally(state->all, service->job, &tally);
        if (tally.ready > 0 && tally.ready >= enough) {
            state->service = *service;
            state->busy = true;
            backend_service_find(state->agent, state->service.name, true, on_name, state);
        }
    }
    free(summary);
}

static void look_other(struct scale_state *state, const struct shoal_job *job,
                       const struct shoal_mesh_service *service)
{
    struct backend_tally tally;

    read_knobs(state, job);
    if (has_canary(state, service)) {
        tell_floor(state, state->knobs.kernels_min, 0);
        job = job_now(state);
        if (job != NULL)
            (void)follow_load(state, job, state->knobs.kernels_min == 0 ? 1 : state->knobs.kernels_min);
        return;
    }
    if (state->canary_told > 0) /* it was the current one */
        tell_floor(state, floor_of(state), 0);
    else
        tell_floor(state, state->floor_ns == 0 ? UINT32_MAX : state->floor_told, 0);
    job = job_now(state);
    if (job == NULL)
        return;
    backend_serving_tally(state->all, state->job, &tally);
    if (job->tasks->replicas == 0) /* a host's word of what its kernels have may be older than their end */
        state->woken = tally.held > 0;
    if (!state->woken)
        look_before(state, job, service);
    else if (follow_load(state, job, 0) == 0)
        state->woken = false;
}

void backend_scale_look(struct agent *agent)
{
    const struct shoal_mesh *mesh = shoal_sched_mesh(agent->sched);
    size_t count = mesh == NULL ? 0 : shoal_mesh_service_count(mesh);
    struct backend_serving all;

    if (count == 0 && agent->scales == NULL)
        return;
    if (!backend_serving_read(agent, &all))
        return; /* the next look may have memory */
    for (size_t i = 0; i < count; i++) {
        struct shoal_mesh_service service = *shoal_mesh_service_at(mesh, i); /* a request may change the copy */
        const struct shoal_job_id ids[] = { service.job, service.before };

        for (unsigned k = 0; k < 2; k++) {
            const struct shoal_job *job = shoal_job_id_is_mesh(ids[k]) ? NULL : shoal_sched_job(agent->sched, ids[k]);
            struct shoal_sched_group_status status;
            struct scale_state *state;

            if (job == NULL || job->tasks == NULL || job->document == NULL || job->stop ||
                !shoal_sched_group_find(agent->sched, ids[k], &status) || !status.leads)
                continue;
            state = state_need(agent, ids[k]);
            state->seen = true;
            state->all = &all;
            if (state->busy)
                continue;
            if (k == 0)
                look_current(state, job, &service);
            else
                look_other(state, job, &service);
            mesh = shoal_sched_mesh(agent->sched);
            count = mesh == NULL ? 0 : shoal_mesh_service_count(mesh);
        }
    }
    backend_serving_free(&all);
    forget_unseen(agent);
}

void backend_scale_end(struct agent *agent)
{
    while (agent->scales != NULL) {
        struct scale_state *state = agent->scales;

        agent->scales = state->next;
        free(state);
    }
}
