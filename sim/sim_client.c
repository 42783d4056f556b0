/* Clients that read, at any host, and the history that their answers must fit.
 *
 *     submit  told                     delete        told
 *       |------|                          |------------|
 *                 get                                       get
 *                  |--| must find it                         |--| must not find it
 *
 * L1. An answer "no such job" is wrong between the answer to the submit and the question to delete it.
 * L2. An answer that shows the job, and not that it is about to go, is wrong when it was asked for after the deletion had
 *     been acknowledged.
 * L3. A linearizable answer is not older than another that came before it was asked for: neither its generation, nor
 *     what was applied, nor an end.
 * L4. After an acknowledged stop the job has ended or is about to.
 * L5. "Cannot tell now" (503) is always allowed, but for the probe: when all faults are healed every host answers, about
 *     every job, and every free slot can be given (a script of one worker for each of them runs at the same time). */
#include "sim.h"
#include "sim_service.h"

#include "shoal/job_facts.h"
#include "shoal/sched_look.h"

#include "shoal/banned.h"

#define PROBE_NS (60 * SHOAL_S)
#define PROBE_SLOTS_MAX 32u
#define PROBE_STEPS 30000u /* 10 ms each, at least half of them: longer than the probe waits */

/* ---- the history ---- */

static void check_found(struct sim *sim, const struct sim_request *request, const struct sim_job *job,
                        const struct shoal_job_facts *facts)
{
    bool ended = shoal_job_state_ended((enum shoal_job_state)facts->state);
    unsigned number = request->job + 1;

    if (job->deleted_ns != 0 && job->deleted_ns <= request->asked_ns && request->linearizable && !facts->deleted)
        sim_fail(sim, "h%u shows job %u, which was deleted before the question", request->host + 1, number); /* L2 */
    if (!request->linearizable || facts->generation < job->generation || job->recovered)
        return;
    if (facts->generation < job->seen_generation && job->seen_ns <= request->asked_ns)
        sim_fail(sim, "h%u shows generation %u of job %u after generation %u was shown", request->host + 1,
                 facts->generation, number, job->seen_generation); /* L3 */
    if (!ended && job->seen_ended_ns != 0 && job->seen_ended_ns <= request->asked_ns &&
        facts->generation <= job->seen_generation)
        sim_fail(sim, "h%u shows job %u as %s after its end was shown", request->host + 1, number,
                 shoal_job_state_name((enum shoal_job_state)facts->state)); /* L3 */
    if (!ended && job->seen_ns != 0 && job->seen_ns <= request->asked_ns && facts->applied < job->seen_applied &&
        facts->generation == job->seen_generation)
        sim_fail(sim, "h%u shows job %u at %llu after %llu was shown", request->host + 1, number,
                 (unsigned long long)facts->applied, (unsigned long long)job->seen_applied); /* L3 */
    if (!ended && !facts->stop && job->stop_told_ns != 0 && job->stop_told_ns <= request->asked_ns)
        sim_fail(sim, "h%u shows job %u as %s after its stop was acknowledged", request->host + 1, number,
                 shoal_job_state_name((enum shoal_job_state)facts->state)); /* L4 */
}

static void remember(struct sim *sim, const struct sim_request *request, struct sim_job *job,
                     const struct shoal_job_facts *facts)
{
    if (!request->linearizable)
        return;
    if (facts->generation > job->seen_generation || job->seen_ns == 0) {
        job->seen_generation = facts->generation;
        job->seen_applied = 0;
        job->seen_ended_ns = 0;
    }
    if (facts->generation < job->seen_generation)
        return;
    /* The newest answer counts from when it came; one that shows less keeps the time of the one that showed more. */
    if (facts->applied > job->seen_applied) {
        job->seen_applied = facts->applied;
        job->seen_ns = sim->now_ns;
    }
    if (shoal_job_state_ended((enum shoal_job_state)facts->state) && job->seen_ended_ns == 0)
        job->seen_ended_ns = sim->now_ns;
}

void sim_client_told(struct sim *sim, const struct sim_request *request, const struct shoal_sched_action *action)
{
    struct sim_job *job = &sim->jobs[request->job];
    struct shoal_job_facts facts;

    if (request->err == SHOAL_OK) {
        if (shoal_job_facts_decode(action->u.reply.bytes, &facts) != SHOAL_OK) {
            sim_fail(sim, "h%u answers for job %u what cannot be read", request->host + 1, request->job + 1);
            return;
        }
        check_found(sim, request, job, &facts);
        sim_service_shown(sim, request, &facts);
        remember(sim, request, job, &facts);
        return;
    }
    if (request->err == SHOAL_ERR_NOT_FOUND) {
        if (job->acknowledged && job->acknowledged_ns <= request->asked_ns && job->delete_asked_ns == 0)
            sim_fail(sim, "h%u knows no job %u, which was acknowledged before the question: %s", request->host + 1,
                     request->job + 1, action->u.reply.text); /* L1 */
        return;
    }
    sim->reads_refused++;
}

/* ---- the clients ---- */

static bool ask(struct sim *sim, uint32_t at, uint32_t index, bool linearizable, bool probe)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_GET, .linearizable = linearizable };

    if (!sim->hosts[at].agent || sim->hosts[at].paused_ns > sim->now_ns || !sim->jobs[index].known ||
        shoal_sched_mesh(sim->hosts[at].sched) == NULL)
        return false; /* an agent that stands still, or knows no users yet, takes no request */
    request.job = sim->jobs[index].id;
    sim->next_read = true;
    sim->next_probe = probe;
    (void)sim_request(&sim->hosts[at], &request, index);
    sim->next_read = sim->next_probe = false;
    sim->reads++;
    return true;
}

void sim_client(struct sim *sim, uint32_t client)
{
    struct shoal_rand *chance = &sim->reader_chance;
    uint32_t at = (uint32_t)shoal_rand_below(chance, sim->host_count);
    uint64_t job = sim->job_count == 0 ? 0 : shoal_rand_below(chance, sim->job_count);
    bool linearizable = shoal_rand_below(chance, 2) == 0;

    if (sim->settling)
        return;
    if (sim->job_count > 0)
        (void)ask(sim, at, (uint32_t)job, linearizable, false);
    if (sim->services > 0)
        sim_service_client(sim, at);
    sim_push(sim, SIM_CLIENT, 0, sim_about(chance, sim->options.think_ns))->word = client;
}

/* ---- the probe ---- */

static uint32_t slots_of(const struct sim *sim)
{
    uint32_t slots = 0;

    for (uint32_t i = 0; i < sim->host_count; i++)
        slots += sim->hosts[i].agent ? sim->hosts[i].slots : 0;
    return slots;
}

/* Every host is asked for some jobs; then as many scripts are submitted as there are slots. */
void sim_probe_begin(struct sim *sim)
{
    struct sim_command c = { .verb = SIM_SUBMIT, .script = true, .workers_min = 1, .workers_max = 1, .times = 1 };
    uint32_t slots = slots_of(sim);
    uint32_t jobs = sim->job_count;

    sim_trace(sim, "the probe begins: %u slots", slots);
    sim->probe_ns = sim->now_ns;
    for (uint32_t i = 0; i < sim->host_count; i++)
        for (uint32_t job = 0; job < jobs && job < 8 && !sim->failed; job++)
            (void)ask(sim, i, (uint32_t)((job + i) % jobs), true, true);
    c.number = PROBE_STEPS;
    for (uint32_t n = 0; n < slots && slots <= PROBE_SLOTS_MAX && !sim->failed; n++) {
        do
            c.a = (uint32_t)shoal_rand_below(&sim->reader_chance, sim->host_count);
        while (!sim->hosts[c.a].agent);
        sim_command(sim, &c);
        sim->jobs[sim->job_count - 1].probe = true;
    }
}

static bool runs(const struct sim *sim, uint32_t job)
{
    for (uint32_t i = 0; i < sim->host_count; i++)
        for (const struct sim_worker *worker = sim->hosts[i].workers; worker != NULL; worker = worker->next)
            if (worker->job == job)
                return true;
    return false;
}

/* For a trace, shortly before the probe is given up: which slots are held, and what the jobs wait for. */
static void explain(struct sim *sim)
{
    struct shoal_slot_status slot;
    char job[SHOAL_JOB_ID_TEXT_BYTES];

    for (uint32_t i = 0; i < sim->host_count; i++)
        for (uint32_t n = 0; sim->hosts[i].agent && n < sim->hosts[i].slots; n++) {
            shoal_slots_slot(shoal_sched_slots(sim->hosts[i].sched), n, &slot);
            shoal_job_id_text(slot.job, job);
            sim_trace(sim, "%s: slot %u is in state %d, of worker %llx of %s", sim->hosts[i].name, n, (int)slot.state,
                      (unsigned long long)slot.worker_id, job);
        }
    for (uint32_t n = 0; n < sim->job_count; n++) {
        struct shoal_sched_request request = { .kind = SHOAL_SCHED_WHY, .job = sim->jobs[n].id };

        if (sim->jobs[n].probe && !runs(sim, n) && sim->jobs[n].known && sim->hosts[sim->jobs[n].from].agent)
            (void)sim_request(&sim->hosts[sim->jobs[n].from], &request, n);
    }
}

/* R4 of sched_request.c: of a job that nobody has any more, "unknown" is said by who can ask the host that is named in its id,
 * until that one is removed. Where it was lost for good, and took the only word of a deletion or a refusal along, 503 it is. */
static bool founder_took_it_along(const struct sim *sim, const struct sim_request *request)
{
    const struct sim_job *job = &sim->jobs[request->job];

    return request->err == SHOAL_ERR_UNREACHABLE && sim->hosts[job->from].destroyed &&
           (job->delete_asked || !job->acknowledged);
}

bool sim_probe_done(struct sim *sim, char *why, size_t cap)
{
    uint32_t slots = slots_of(sim);
    uint32_t run = 0;

    for (uint64_t id = 1; id <= sim->request_count; id++) {
        const struct sim_request *request = &sim->requests[id];

        if (request->probe && request->answered && request->err != SHOAL_OK && request->err != SHOAL_ERR_NOT_FOUND &&
            !founder_took_it_along(sim, request))
            sim_fail(sim, "all is healed, but h%u cannot say how job %u is: %s", request->host + 1, request->job + 1,
                     shoal_err_name(request->err)); /* L5 */
    }
    for (uint32_t i = 0; i < sim->host_count; i++)
        for (const struct sim_worker *worker = sim->hosts[i].workers; worker != NULL; worker = worker->next)
            run += sim->jobs[worker->job].probe;
    (void)snprintf(why, cap, "%u of %u slots can be given", run, slots);
    if (slots > PROBE_SLOTS_MAX || run == slots)
        return true;
    if (sim->trace && !sim->explained && sim->now_ns > sim->probe_ns + PROBE_NS - SHOAL_S) {
        sim->explained = true;
        explain(sim);
    }
    if (sim->now_ns > sim->probe_ns + PROBE_NS)
        sim_fail(sim, "all is healed and nothing else runs, but only %s, for %u s", why,
                 (unsigned)(PROBE_NS / SHOAL_S)); /* L5 */
    return false;
}
