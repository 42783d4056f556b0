/* Hosts that take no part in a job, since no engine of it can run there: they have another version of Python or of the
 * framework than the driver, or are of another numeric class than the call's (decision 0077). For a while, of any job: those that
 * could not start a process of it.
 *
 *     an engine there --UNFIT, why--> the host is left out --> the allocation yields slots elsewhere (shoal/allocate.h)
 *
 * U1. A host that is left out is asked for no slot, and its engines' ends are no failures of the job.
 * U2. It is left out as long as this leader is in office. The next leader tries it once more: so there is no loop.
 * U3. A driver can have engines on its own host. One on a host that was left out is a successor, whose next call is made of other
 *     versions than the calls before it: all hosts are tried anew for it.
 * U4. A host whose agent is of a version that takes no job of so many workers is left out, and engines there go: it would refuse
 *     their epochs. (Such a job is founded where every host takes it; this is one that has come, or gone back, since.)
 * U5. A host that could not start a worker (it has no process, no descriptor or no room for one) is left out for a while, each time
 *     for longer, until it has started one. Nothing of the user's code ran: no attempt is counted. A job that one host could not
 *     start so often ends; a service goes on trying. The next leader knows nothing of it. */
#include "shoal/job_entry.h"
#include "sched/job/job_wire.h"
#include "lead_state.h"

#include "shoal/banned.h"

#define NAMED_MAX 4u /* hosts that `why` names beside the last one */
#define OUT_MIN_NS (5 * SHOAL_S)
#define OUT_MAX_NS (300 * SHOAL_S)
#define UNSTARTED_MAX 10u /* times in a row that one host may fail to start a job: half an hour in all */

bool lead_is_unfit(const struct shoal_lead *lead, struct shoal_node_id node)
{
    SHOAL_ASSERT(lead->unfit_count <= LEAD_HOSTS_MAX);
    for (uint32_t i = 0; i < lead->unfit_count; i++)
        if (shoal_node_id_equal(lead->unfit[i], node))
            return true;
    return false;
}

void lead_leave_out(struct shoal_lead *lead, struct shoal_node_id node, const char *why)
{
    char name[SHOAL_NODE_ID_TEXT_BYTES];

    SHOAL_ASSERT(lead->unfit_count <= lead->unfit_cap);
    if (lead_is_unfit(lead, node))
        return;
    if (lead->unfit_count == lead->unfit_cap) {
        lead_fail(lead, -1, "no engine of it can run on %u hosts; on the last one: %s", lead->unfit_count, why);
        return;
    }
    lead->unfit[lead->unfit_count++] = node;
    shoal_hex_text(node.bytes, sizeof(node.bytes), name);
    (void)snprintf(lead->unfit_why, sizeof(lead->unfit_why), "host %s takes no part: %s", name, why);
}

void lead_on_plain_jobs(struct shoal_lead *lead, struct shoal_node_id node)
{
    char why[SHOAL_HOST_WHY_BYTES];

    SHOAL_ASSERT(shoal_job_spec_is_wide(&lead->job->spec)); /* any version takes the others */
    if (!lead->job->spec.elastic || (lead->unfit_count == lead->unfit_cap && !lead_is_unfit(lead, node)))
        return; /* of so many one more changes nothing: what it is asked it refuses */
    (void)snprintf(why, sizeof(why), "its agent is of a version that takes at most %d workers of a job, and this one may have %u; exchange it",
                   SHOAL_JOB_WORKERS_PLAIN, lead->job->spec.workers_max);
    lead_leave_out(lead, node, why);
    for (uint32_t i = 0; i < lead->worker_cap; i++)
        if (lworker_lives(&lead->workers[i]) && lead->workers[i].place.role == SHOAL_JOB_ENGINE &&
            shoal_node_id_equal(lead->workers[i].place.node, node))
            lead->workers[i].leaving = true;
}

void lead_on_unfit(struct lead_step *s, const struct lhost *host)
{
    struct shoal_lead *lead = s->lead;
    const struct lworker *w = lead_worker(lead, lead->scratch->in.u.unfit.worker_id);

    SHOAL_ASSERT(lead->scratch->in.kind == SHOAL_HOST_UNFIT);
    if (w == NULL || w->place.role != SHOAL_JOB_ENGINE || !shoal_node_id_equal(w->place.node, host->node)) {
        lead->stats.stale++;
        return;
    }
    lead_leave_out(lead, host->node, lead->scratch->in.u.unfit.text);
}

void lead_unfit_for_call(struct shoal_lead *lead)
{
    const struct shoal_placement *driver = shoal_job_driver(lead->job);

    SHOAL_ASSERT(lead->train_due); /* it is about to be committed */
    if (driver != NULL && lead_is_unfit(lead, driver->node))
        lead->unfit_count = 0;
}

void lead_unfit_others(const struct shoal_lead *lead, char *text, size_t cap)
{
    const uint32_t others = lead->unfit_count > 0 ? lead->unfit_count - 1 : 0;
    size_t used = 0;

    SHOAL_ASSERT(cap > 0);
    text[0] = '\0';
    for (uint32_t i = 0; i < others && i < NAMED_MAX; i++) {
        char name[SHOAL_NODE_ID_TEXT_BYTES];

        shoal_hex_text(lead->unfit[i].bytes, sizeof(lead->unfit[i].bytes), name);
        (void)snprintf(text + used, cap - used, "%s%s", i == 0 ? "left out as well: " : ", ", name);
        used += strlen(text + used);
    }
    if (others > NAMED_MAX)
        (void)snprintf(text + used, cap - used, " and %u more", others - NAMED_MAX);
}

/* ---- U5 ---- */

static struct lout *find_out(struct shoal_lead *lead, struct shoal_node_id node)
{
    for (uint32_t i = 0; i < LEAD_OUTS_MAX; i++)
        if (lead->outs[i].count > 0 && shoal_node_id_equal(lead->outs[i].node, node))
            return &lead->outs[i];
    return NULL;
}

/* It may have slots of the job again. */
static void let_in(struct shoal_lead *lead, struct lout *out)
{
    char name[SHOAL_NODE_ID_TEXT_BYTES];
    uint32_t kept = 0;

    SHOAL_ASSERT(lead->unfit_count <= lead->unfit_cap);
    out->until_ns = 0;
    for (uint32_t i = 0; i < lead->unfit_count; i++)
        if (!shoal_node_id_equal(lead->unfit[i], out->node))
            lead->unfit[kept++] = lead->unfit[i];
    lead->unfit_count = kept;
    shoal_hex_text(out->node.bytes, sizeof(out->node.bytes), name);
    if (kept == 0 || strstr(lead->unfit_why, name) == NULL)
        return;
    shoal_hex_text(lead->unfit[kept - 1].bytes, sizeof(lead->unfit[kept - 1].bytes), name);
    (void)snprintf(lead->unfit_why, sizeof(lead->unfit_why), "host %s takes no part", name);
}

/* Its place in the table: that of the one that comes back first, if none is free. */
static struct lout *take_out(struct shoal_lead *lead, struct shoal_node_id node)
{
    struct lout *out = find_out(lead, node);

    for (uint32_t i = 0; out == NULL && i < LEAD_OUTS_MAX; i++)
        if (lead->outs[i].count == 0)
            out = &lead->outs[i];
    if (out == NULL) {
        out = &lead->outs[0];
        for (uint32_t i = 1; i < LEAD_OUTS_MAX; i++)
            if (lead->outs[i].until_ns < out->until_ns)
                out = &lead->outs[i];
        let_in(lead, out);
        out->count = 0;
    }
    out->node = node;
    return out;
}

void lead_unstarted(struct lead_step *s, const struct lworker *w)
{
    struct shoal_lead *lead = s->lead;
    char why[SHOAL_HOST_WHY_BYTES];
    struct lout *out;
    uint64_t wait_ns;

    SHOAL_ASSERT(w->dead && !w->report.ran);
    if (lead_is_unfit(lead, w->place.node))
        return; /* of several at once, this is not the first */
    out = take_out(lead, w->place.node);
    wait_ns = OUT_MIN_NS << (out->count < 6 ? out->count : 6);
    out->count++;
    out->until_ns = s->now_ns + (wait_ns < OUT_MAX_NS ? wait_ns : OUT_MAX_NS);
    (void)snprintf(why, sizeof(why), "it could not start a process: %.160s", w->report.text);
    lead_leave_out(lead, out->node, why);
    if (out->count >= UNSTARTED_MAX && !shoal_job_spec_serves(&lead->job->spec))
        lead_fail(lead, -1, "it could not be started in %u tries, without an end to that in sight: %s", out->count, lead->unfit_why);
}

void lead_started(struct shoal_lead *lead, struct shoal_node_id node)
{
    struct lout *out = find_out(lead, node);

    if (out == NULL)
        return;
    if (out->until_ns != 0)
        let_in(lead, out);
    out->count = 0;
}

void lead_let_in(struct lead_step *s)
{
    SHOAL_ASSERT(s->now_ns >= s->lead->started_ns); /* time does not go back */
    for (uint32_t i = 0; i < LEAD_OUTS_MAX; i++) {
        struct lout *out = &s->lead->outs[i];

        if (out->until_ns == 0)
            continue;
        if (s->now_ns >= out->until_ns)
            let_in(s->lead, out);
        else
            lead_wake(s, out->until_ns);
    }
}

bool lead_starts_nothing(const struct shoal_lead *lead, struct shoal_node_id node)
{
    for (uint32_t i = 0; i < LEAD_OUTS_MAX; i++)
        if (lead->outs[i].until_ns != 0 && shoal_node_id_equal(lead->outs[i].node, node))
            return true;
    return false;
}

const struct shoal_node_id *shoal_lead_unfit(const struct shoal_lead *lead, uint32_t *count)
{
    SHOAL_ASSERT(lead->unfit_count <= lead->unfit_cap);
    *count = lead->unfit_count;
    return lead->unfit;
}
