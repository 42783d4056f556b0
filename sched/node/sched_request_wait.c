/* A request's waiting ends here: by a deadline, a retry, or news of its job (sched_request.c has the rules). */
#include "shoal/job_facts.h"
#include "sched_request.h"
#include "sched_archive.h"
#include "sched_found.h"
#include "sched_group.h"
#include "sched_state.h"
#include "sched_store.h"
#include "sched_view.h"

#include "shoal/banned.h"

static const struct shoal_view nothing;

/* ---- Ends of waiting ---- */

void sched_add_name(char *text, size_t cap, struct shoal_node_id node)
{
    size_t len = strlen(text);

    SHOAL_ASSERT(cap > 0 && strlen(text) < cap);
    if (len + 12 > cap)
        return;
    if (len > 0)
        text[len++] = ' ';
    shoal_hex_text(node.bytes, 4, text + len);
}

/* Nothing linearizable was asked for: what gossip says of the job will do. */
static bool end_with_summary(struct shoal_sched *s, struct sched_request *r)
{
    const struct shoal_job_summary *summary = sched_summary_find(s, r->job);
    struct shoal_job_facts facts = { 0 };
    size_t len;

    SHOAL_ASSERT(r->state != REQUEST_FREE); /* R1 */
    if (r->kind != SHOAL_SCHED_GET || r->linearizable || summary == NULL)
        return false;
    facts.id = summary->id;
    facts.state = summary->state;
    facts.elastic = summary->elastic;
    facts.has_metrics = summary->has_metrics;
    memcpy(facts.framework, summary->framework, sizeof(facts.framework));
    memcpy(facts.creator, summary->creator, sizeof(facts.creator));
    memcpy(facts.app_name, summary->app_name, sizeof(summary->app_name));
    memcpy(shoal_job_state_ended((enum shoal_job_state)summary->state) ? facts.reason : facts.pending, summary->pending,
           sizeof(summary->pending));
    facts.workers_min = summary->workers_min;
    facts.workers_max = summary->workers_max;
    facts.workers_now = summary->held;
    facts.priority = summary->priority;
    facts.device = summary->device;
    facts.exit_code = -1;
    facts.ticket_ms = summary->ticket_ms;
    facts.create_ms = summary->create_ms;
    facts.start_ms = summary->start_ms;
    facts.end_ms = summary->end_ms;
    facts.leader = summary->leader;
    facts.term = summary->term;
    facts.epoch = summary->epoch;
    facts.step = summary->step;
    facts.data_epoch = summary->data_epoch;
    facts.rate_milli = summary->rate_milli;
    facts.loss_micro = summary->loss_micro;
    facts.metric_micro = summary->metric_micro;
    if (shoal_job_facts_encode(&facts, s->scratch.bytes, s->scratch.cap, &len) != SHOAL_OK)
        return false;
    sched_request_end(s, r, SHOAL_OK, shoal_view_of(s->scratch.bytes, len), "stale: no guardian of the job answered");
    return true;
}

/* Of the mesh group. */
static bool told_majority(const struct sched_request *r)
{
    return __builtin_popcount(r->answered & r->quorum) >= r->quorum_need;
}

bool sched_request_asked_enough(const struct sched_request *r)
{
    SHOAL_ASSERT(r->state == REQUEST_DELETING || r->state == REQUEST_CONFIRMING); /* A10 */
    return (r->answered & r->must) == r->must && told_majority(r);
}

/* Those that have not answered. */
static const char *silent_ones(const struct sched_request *r)
{
    if (r->kind == SHOAL_SCHED_RECOVER)
        return "no node that could hold a replica of this job";
    if (r->state == REQUEST_DELETING || r->state == REQUEST_CONFIRMING)
        return "the job is in the archive, and no majority of the mesh group";
    return "no leader of the group";
}

static void expire(struct shoal_sched *s, struct sched_request *r)
{
    char names[160] = "";
    const struct sched_group *g = sched_group_find(s, r->job);

    SHOAL_ASSERT(s->now >= r->deadline_ns);
    SHOAL_ASSERT(r->state != REQUEST_FREE); /* R1 */
    s->stats.requests_timed_out++;
    if (r->kind == SHOAL_SCHED_SUBMIT) {
        const struct sched_founding *f = sched_founding_of(s, r->serial);

        for (unsigned i = 0; f != NULL && i < f->ticket.guardian_count; i++) {
            if (f->answers[i] == GUARDIAN_SILENT)
                sched_add_name(names, sizeof(names), f->ticket.guardians[i].node);
        }
        sched_request_end(
            s, r, SHOAL_ERR_UNREACHABLE, nothing,
            "no majority of the guardians has answered (silent: %s); the outcome is open, try again with the "
            "ticket",
            names);
        return;
    }
    if (r->state == REQUEST_COPY) {
        sched_request_end(s, r, SHOAL_OK,
                          r->kind == SHOAL_SCHED_MESH_READ && !r->foreign ? shoal_buf_view(&s->copy) : nothing,
                          "committed; this node's copy is not that new yet");
        return;
    }
    if (r->sent && r->kind == SHOAL_SCHED_MESH_CHANGE) {
        sched_request_end(s, r, SHOAL_ERR_TIMEOUT, nothing,
                          "the change was sent to the mesh group and not answered; look whether it took effect");
        return;
    }
    if (r->state == REQUEST_DELETING && sched_gone_is_durable(s, r->job) && told_majority(r)) {
        sched_request_end(s, r, SHOAL_OK, nothing,
                          "deleted; a host that does not answer forgets it when it comes back");
        return;
    }
    if (end_with_summary(s, r))
        return;
    for (unsigned i = 0; i < r->ask_count; i++) {
        if (!(r->answered & 1u << i))
            sched_add_name(names, sizeof(names), r->ask[i]);
    }
    if (r->state == REQUEST_FORWARDED)
        sched_add_name(names, sizeof(names), r->asked);
    for (unsigned i = 0; g != NULL && i < g->told_count; i++)
        sched_add_name(names, sizeof(names), g->told[i].node);
    sched_request_end(s, r, SHOAL_ERR_UNREACHABLE, nothing, "%s has answered (asked: %s); %stry again", silent_ones(r),
                      names[0] == '\0' ? "nobody is known" : names,
                      r->kind == SHOAL_SCHED_RECOVER ? "start one of its guardians, or " : "");
}

void sched_requests_due(struct shoal_sched *s)
{
    SHOAL_ASSERT(s->now >= s->requests_ns);
    s->requests_ns = SCHED_NEVER;
    for (size_t i = 0; s->request_count > 0 && i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        struct sched_request *r = &s->requests[i];
        uint64_t at;

        if (r->state == REQUEST_FREE)
            continue;
        if (!sched_has_room(s)) {
            s->requests_ns = s->now;
            return;
        }
        if (s->now >= r->deadline_ns) {
            expire(s, r);
            continue;
        }
        if (s->now >= r->retry_ns) {
            r->retry_ns = SCHED_NEVER;
            if (r->state == REQUEST_FORWARDED) {
                r->hops = r->hops < UINT8_MAX ? (uint8_t)(r->hops + 1) : r->hops;
                r->ask_count = 0;
                sched_request_try(s, r);
            } else if (r->state == REQUEST_WAITING) {
                sched_request_try(s, r);
            } else if (r->state == REQUEST_ASKING) {
                sched_request_ask_around(s, r);
            } else if (r->state == REQUEST_DELETING) {
                sched_archive_delete_due(s, r);
            } else if (r->state == REQUEST_CONFIRMING) {
                sched_archive_confirm_due(s, r);
            } else if (r->state == REQUEST_SURVEY) {
                sched_recover_due(s, r);
            }
        }
        if (r->state == REQUEST_FREE)
            continue;
        at = r->retry_ns < r->deadline_ns ? r->retry_ns : r->deadline_ns;
        if (at < s->requests_ns)
            s->requests_ns = at;
    }
}

static void wake(struct shoal_sched *s, struct sched_request *r)
{
    SHOAL_ASSERT(r->state != REQUEST_FREE); /* R1 */
    r->retry_ns = s->now;
    s->requests_ns = s->now;
}

void sched_requests_led(struct shoal_sched *s, struct shoal_job_id job, struct shoal_node_id leader)
{
    SHOAL_ASSERT(s->request_count <= SHOAL_SCHED_REQUESTS_MAX);
    for (size_t i = 0; s->request_count > 0 && i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        struct sched_request *r = &s->requests[i];
        bool reads = r->kind == SHOAL_SCHED_GET || r->kind == SHOAL_SCHED_WHY ||
                     r->kind == SHOAL_SCHED_TASKS; /* else it may be done already */
        bool misled = reads && r->state == REQUEST_FORWARDED && !shoal_node_id_is_zero(leader) &&
                      !shoal_node_id_equal(r->asked, leader);

        if ((r->state == REQUEST_WAITING || misled) && shoal_job_id_equal(r->job, job)) {
            r->hops = 0;
            wake(s, r);
        }
    }
}

void sched_requests_restart(struct shoal_sched *s, struct sched_group *g)
{
    SHOAL_ASSERT(g->raft != NULL);
    for (size_t i = 0; s->request_count > 0 && i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        struct sched_request *r = &s->requests[i];

        if ((r->state == REQUEST_PROPOSED || r->state == REQUEST_READING) && shoal_job_id_equal(r->job, g->id))
            sched_request_retry(s, r, SCHED_RETRY_NS / 4);
    }
}

void sched_requests_link_down(struct shoal_sched *s, struct shoal_node_id node)
{
    SHOAL_ASSERT(s->request_count <= SHOAL_SCHED_REQUESTS_MAX);
    for (size_t i = 0; s->request_count > 0 && i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        struct sched_request *r = &s->requests[i];

        if (r->state == REQUEST_FORWARDED && shoal_node_id_equal(r->asked, node) && r->kind != SHOAL_SCHED_MESH_CHANGE)
            wake(s, r);
    }
}

void sched_requests_link_up(struct shoal_sched *s, struct shoal_node_id node)
{
    SHOAL_ASSERT(s->request_count <= SHOAL_SCHED_REQUESTS_MAX);
    for (size_t i = 0; s->request_count > 0 && i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        struct sched_request *r = &s->requests[i];

        if (r->state == REQUEST_FORWARDED && shoal_node_id_equal(r->asked, node) && r->kind != SHOAL_SCHED_MESH_CHANGE)
            sched_request_retry(s, r, 0); /* what was sent before was lost with the link: it counts as no try */
    }
}

void sched_requests_deleted(struct shoal_sched *s, struct shoal_node_id from, struct shoal_job_id job, bool deleted)
{
    SHOAL_ASSERT(s->request_count <= SHOAL_SCHED_REQUESTS_MAX);
    for (size_t i = 0; s->request_count > 0 && i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        struct sched_request *r = &s->requests[i];

        if (r->state != REQUEST_DELETING)
            continue;
        for (unsigned a = 0; deleted && shoal_job_id_equal(r->job, job) && a < r->ask_count; a++)
            if (shoal_node_id_equal(r->ask[a], from))
                r->answered |= (uint8_t)(1u << a);
        if (sched_request_asked_enough(r))
            wake(s, r);
    }
}
