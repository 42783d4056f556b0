/* Clients that edit, start and stop services at any host, and the history of their documents.
 *
 *     edit 7 of revision 2 ---- told: it is revision 3        another reads at any host
 *                                   |                           |--| revision 3 or later, and 3 is edit 7
 *
 * R1. An answer to an edit, or a linearizable one that shows a revision, is not followed by an older one: what is asked after it
 *     came shows that revision or a later one.
 * R2. A revision is one document: every answer that shows it shows the same edit, and the one that was told so.
 * A start is an edit that says so and asks for the least replicas; a stop asks for none. */
#include "shoal/job_facts.h"
#include "shoal/job_entry.h"
#include "shoal/sched_look.h"
#include "shoal/wire.h"
#include "sim.h"
#include "sim_service.h"

#include "shoal/banned.h"

/* R2. */
static void know(struct sim *sim, const struct sim_request *request, uint32_t revision, uint32_t edit)
{
    struct sim_job *job = &sim->jobs[request->job];
    struct sim_revision *known;

    job->revisions = sim_grow(job->revisions, &job->revision_cap, revision + 1, sizeof(*job->revisions));
    known = &job->revisions[revision];
    if (known->known_ns != 0 && known->edit != edit)
        sim_fail(sim, "revision %u of service %u is edit %u at h%u, and was edit %u", revision, request->job + 1, edit,
                 request->host + 1, known->edit);
    if (known->known_ns == 0)
        *known = (struct sim_revision){ .known_ns = sim->now_ns, .edit = edit };
    if (revision + 1 > job->revision_count)
        job->revision_count = revision + 1;
}

void sim_service_edited(struct sim *sim, const struct sim_request *request)
{
    sim_trace(sim, "edit %u of service %u is revision %u", request->edit, request->job + 1, request->revision + 1);
    know(sim, request, request->revision + 1, request->edit);
}

void sim_service_shown(struct sim *sim, const struct sim_request *request, const struct shoal_job_facts *facts)
{
    const struct sim_job *job = &sim->jobs[request->job];
    struct sim_knobs knobs;

    if (!job->service || !request->linearizable || job->recovered || facts->deleted)
        return;
    for (size_t later = facts->revision + 1; later < job->revision_count; later++)
        if (job->revisions[later].known_ns != 0 && job->revisions[later].known_ns <= request->asked_ns)
            sim_fail(sim, "h%u shows revision %u of service %u, and revision %zu was told before the question",
                     request->host + 1, facts->revision, request->job + 1, later); /* R1 */
    if (sim_document_read(facts->document, &knobs))
        know(sim, request, facts->revision, knobs.edit);
}

static void edit(struct sim *sim, struct sim_host *host, uint32_t index)
{
    static uint8_t bytes[256];
    struct sim_job *job = &sim->jobs[index];
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_EDIT, .job = job->id };
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    struct sim_request *asked;
    uint64_t what = shoal_rand_below(&sim->service_chance, 4); /* 0: stop, 1: start, else neither */
    char text[200];
    size_t len = sim_document(job, what != 0, ++sim->edits, text, sizeof(text));

    shoal_put_u32(&w, job->revision_count == 0 ? 0 : (uint32_t)job->revision_count - 1);
    shoal_put_u8(&w, (uint8_t)(what == 0 ? 0 : job->kernels_min));
    shoal_put_raw(&w, text, len);
    request.command = shoal_writer_view(&w);
    (void)snprintf(request.by, sizeof(request.by), "ann");
    sim->requests = sim_grow(sim->requests, &sim->request_cap, sim->request_count + 3, sizeof(*sim->requests));
    asked = &sim->requests[sim->request_count + 1]; /* the answer may come within the step */
    asked->edit = sim->edits;
    asked->revision = job->revision_count == 0 ? 0 : (uint32_t)job->revision_count - 1;
    (void)sim_request(host, &request, index);
}

void sim_service_client(struct sim *sim, uint32_t at)
{
    struct shoal_sched_request get = { .kind = SHOAL_SCHED_GET, .linearizable = true };
    struct sim_host *host = &sim->hosts[at];
    uint32_t index = (uint32_t)shoal_rand_below(&sim->service_chance, sim->job_count);
    bool reads = shoal_rand_below(&sim->service_chance, 3) > 0;

    if (!sim->jobs[index].service || !sim->jobs[index].known || !host->agent || host->paused_ns > sim->now_ns ||
        shoal_sched_mesh(host->sched) == NULL)
        return;
    if (!reads) {
        edit(sim, host, index);
        return;
    }
    get.job = sim->jobs[index].id;
    sim->next_read = true;
    (void)sim_request(host, &get, index);
    sim->next_read = false;
    sim->reads++;
}
