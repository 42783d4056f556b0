/* The view: all that this node knows of hosts and jobs, and the allocation that says who deserves what.
 *
 *     nodes, summaries, own leads --> view --> allocate --> TARGET to each lead here, TARGET to the slots here
 *
 * Views are evaluated in batches, and not more often than a pause. */
#include "sched_view.h"
#include "sched_group.h"
#include "sched_lead.h"
#include "sched_node.h"
#include "sched_slots.h"
#include "sched_state.h"

#include "shoal/allocate.h"
#include "shoal/job_facts.h"

#include "shoal/banned.h"

/* Both are short, since a submitted job waits for them, often just after the end of another; a view of many jobs and
 * hosts costs more, and the pause grows with them, so that evaluating takes a bounded share of a core. */
#define VIEW_GATHER_NS (2 * SHOAL_MS)
#define VIEW_PAUSE_NS (5 * SHOAL_MS)
#define VIEW_PAUSE_EACH_NS (20 * 1000ull)
/* Y3 of sched_summary.c: a lease lasts 15 s, and whoever is elected meanwhile says so within seconds. */
#define VIEW_ORPHAN_NS (30 * SHOAL_S)

void sched_view_free(struct sched_view *view)
{
    SHOAL_ASSERT(view->work == NULL || view->hosts != NULL);
    shoal_allocate_destroy(view->work);
    free(view->hosts);
    free(view->slots);
    free(view->given);
    free(view->numbers);
    free(view->jobs);
    free(view->grants);
    free(view->list);
}

void sched_view_changed(struct shoal_sched *s)
{
    uint64_t pause = VIEW_PAUSE_NS + (s->view.job_count + s->view.host_count) * VIEW_PAUSE_EACH_NS;
    uint64_t at = s->now + VIEW_GATHER_NS;

    SHOAL_ASSERT(s->view.done_ns <= s->now);
    if (at < s->view.done_ns + pause && s->view.done_ns != 0)
        at = s->view.done_ns + pause;
    if (at < s->view.due_ns)
        s->view.due_ns = at;
}

static uint32_t grown(uint32_t old, size_t need)
{
    uint32_t cap = old == 0 ? 16 : old;

    SHOAL_ASSERT(need <= UINT32_MAX / 2);
    while (cap < need)
        cap *= 2;
    return cap;
}

static bool view_room(struct sched_view *view, size_t hosts, size_t slots, size_t jobs)
{
    struct sched_view bigger = { 0 };

    SHOAL_ASSERT(view->host_count <= view->hosts_max && view->job_count <= view->jobs_max);
    if (view->work != NULL && hosts <= view->hosts_max && slots <= view->slots_max && jobs <= view->jobs_max)
        return true;
    bigger.hosts_max = grown(view->hosts_max, hosts);
    bigger.slots_max = grown(view->slots_max, slots);
    bigger.jobs_max = grown(view->jobs_max, jobs);
    bigger.hosts = calloc(bigger.hosts_max, sizeof(*bigger.hosts));
    bigger.slots = calloc(bigger.slots_max, sizeof(*bigger.slots));
    bigger.given = calloc(bigger.slots_max, sizeof(*bigger.given));
    bigger.numbers = calloc(bigger.slots_max, sizeof(*bigger.numbers));
    bigger.list = calloc(bigger.slots_max, sizeof(*bigger.list));
    bigger.jobs = calloc(bigger.jobs_max, sizeof(*bigger.jobs));
    bigger.grants = calloc(bigger.jobs_max, sizeof(*bigger.grants));
    if (bigger.hosts == NULL || bigger.slots == NULL || bigger.given == NULL || bigger.numbers == NULL || bigger.list == NULL ||
        bigger.jobs == NULL || bigger.grants == NULL ||
        shoal_allocate_create(&bigger.work, bigger.hosts_max, bigger.slots_max, bigger.jobs_max) != SHOAL_OK) {
        sched_view_free(&bigger);
        return false;
    }
    sched_view_free(view);
    memcpy(bigger.waiting, view->waiting, sizeof(bigger.waiting));
    bigger.waiting_count = view->waiting_count;
    bigger.due_ns = view->due_ns;
    bigger.done_ns = view->done_ns;
    *view = bigger;
    return true;
}

static bool takes_workers(const struct sched_node *node) { return node->info.slots > 0; }

/* Hosts that are there and offer nothing: their Python has no framework. */
static uint32_t slotless_hosts(const struct shoal_sched *s)
{
    uint32_t count = 0;

    SHOAL_ASSERT(s->node_count <= SHOAL_MEMBERS_MAX);
    for (size_t i = 0; i < s->node_count; i++)
        count += !takes_workers(&s->nodes[i]) && s->nodes[i].info.state == SHOAL_SCHED_NODE_ALIVE;
    return count;
}

static void view_hosts(const struct shoal_sched *s, struct sched_view *view)
{
    SHOAL_ASSERT(s->node_count <= SHOAL_MEMBERS_MAX);
    view->host_count = 0;
    view->slot_count = 0;
    for (size_t i = 0; i < s->node_count; i++) {
        const struct sched_node *node = &s->nodes[i];
        const struct shoal_cards *cards = sched_node_cards(node);
        struct shoal_allocate_host *host = &view->hosts[view->host_count];
        uint32_t count = node->info.slots > SHOAL_SLOTS_MAX ? SHOAL_SLOTS_MAX : node->info.slots;
        uint64_t free_slots = node->info.slots_free;
        struct shoal_slots_record record;

        if (!takes_workers(node))
            continue;
        if (sched_is_self(s, node->info.id)) {
            shoal_slots_record(s->slots.core, &record);
            free_slots = record.free;
            cards = &record.cards;
        }
        *host = (struct shoal_allocate_host){
            .id = node->info.id,
            .device = node->info.device == SHOAL_SCHED_GPU ? SHOAL_JOB_DEVICE_GPU : SHOAL_JOB_DEVICE_CPU,
            .class_hash = node->info.class_hash,
            .serves = node->info.serves,
            .usable = sched_health_of(s, node) == SHOAL_LEAD_HOST_WELL && node->info.state == SHOAL_SCHED_NODE_ALIVE &&
                      !node->info.draining && !sched_is_removed(s, node->info.id),
            .draining = node->info.draining && !sched_is_removed(s, node->info.id),
            .first_slot = view->slot_count,
            .slot_count = count,
        };
        for (uint32_t b = 0; b < count; b++) {
            view->numbers[view->slot_count] = (uint8_t)b;
            view->slots[view->slot_count++] = free_slots >> b & 1 ? SHOAL_ALLOCATE_FREE : SHOAL_ALLOCATE_OTHER;
        }
        view->host_count++;
        if (cards->count > 0)
            sched_view_cards(view, cards);
    }
}

static void hold(struct sched_view *view, struct shoal_node_id node, uint32_t slot, uint32_t job)
{
    SHOAL_ASSERT(job <= view->job_count);
    for (uint32_t i = 0; i < view->host_count; i++) {
        const struct shoal_allocate_host *host = &view->hosts[i];

        if (!shoal_node_id_equal(host->id, node))
            continue;
        for (uint32_t at = host->first_slot; at < host->first_slot + host->slot_count; at++)
            if (view->numbers[at] == slot)
                view->slots[at] = (int32_t)job;
    }
}

/* Slots that are promised to a lead here are its own: taken for another's, they would take the ground from under the
 * target that they were asked for, and it would give them back, for ever. */
static void hold_reserved(struct sched_view *view, const struct shoal_lead *lead)
{
    struct shoal_lead_slot slot;

    for (uint32_t i = 0; shoal_lead_reserved(lead, i, &slot); i++)
        hold(view, slot.node, slot.slot, view->job_count);
}

/* It has ended, and neither holds a slot nor is promised one: nothing is left to say to it. After a burst most jobs of a
 * leader are, until they are in the archive. */
static bool is_over(const struct sched_group *g)
{
    struct shoal_lead_slot slot;

    SHOAL_ASSERT(g->lead != NULL && g->job != NULL); /* J1 */
    return shoal_job_state_ended((enum shoal_job_state)g->job->state) && g->job->placement_count == 0 &&
           !shoal_lead_reserved(g->lead, 0, &slot);
}

/* A part of a card is another device to the allocation; a whole one is as any job's. */
static void take_need(struct shoal_allocate_job *job, struct shoal_gpu_need need)
{
    job->device = need.pack == 0 ? need.device : SHOAL_ALLOCATE_SHARE;
    job->gpu_mib = need.mib;
    job->pack = need.pack;
}

/* Until it is told what its kernels need, a service keeps what it holds, and asks for nothing. */
static void wait_for_need(struct shoal_allocate_job *job, const struct sched_group *g)
{
    uint32_t held = 0;

    for (uint32_t p = 0; p < g->job->placement_count; p++)
        held += shoal_lead_holds(g->lead, &g->job->placements[p]);
    job->max = job->max < held ? job->max : held;
    job->min = job->min < job->max ? job->min : job->max;
}

static void view_led(const struct shoal_sched *s, struct sched_view *view)
{
    SHOAL_ASSERT(view->job_count <= view->jobs_max);
    for (size_t i = 0; i < s->group_count; i++) {
        const struct sched_group *g = s->groups[i];
        struct shoal_allocate_job *job = &view->jobs[view->job_count];
        struct shoal_gpu_need need;
        bool current;

        if (g->lead == NULL || is_over(g))
            continue;
        /* view_room() has put new memory where it freed the old; the analyzer loses that copy of a large struct. */
        /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
        *job = (struct shoal_allocate_job){
            .id = g->id,
            .priority = g->job->spec.priority,
            .ticket_ms = g->job->ticket_ms,
            .needs = shoal_framework_needs(g->job->spec.framework, shoal_job_spec_serves(&g->job->spec)),
            .elastic = g->job->spec.elastic || g->job->tasks != NULL, /* an array takes what there is */
            .service = shoal_job_spec_serves(&g->job->spec),
            .stays = !g->job->spec.elastic && !shoal_job_spec_serves(&g->job->spec),
        };
        shoal_lead_demand(g->lead, &job->min, &job->max);
        job->unfit = shoal_lead_unfit(g->lead, &job->unfit_count);
        current = shoal_lead_need(g->lead, &need);
        take_need(job, need);
        if (!current && s->options.tells_needs)
            wait_for_need(job, g);
        for (uint32_t p = 0; p < g->job->placement_count; p++) {
            if (shoal_lead_holds(g->lead, &g->job->placements[p]))
                hold(view, g->job->placements[p].node, g->job->placements[p].slot, view->job_count);
        }
        hold_reserved(view, g->lead);
        view->job_count++;
    }
}

/* Y3. When the job counts no more; SCHED_NEVER: its leader is there. */
static uint64_t counts_until_ns(const struct shoal_sched *s, const struct shoal_job_summary *summary)
{
    const struct sched_node *leader = sched_node_find(s, summary->leader);
    uint64_t since_ns = leader == NULL ? s->options.start_ns : leader->since_ns;

    if (leader != NULL && leader->info.state != SHOAL_SCHED_NODE_DEAD && leader->info.state != SHOAL_SCHED_NODE_LEFT)
        return SCHED_NEVER;
    return since_ns + VIEW_ORPHAN_NS;
}

static void view_others(const struct shoal_sched *s, struct sched_view *view)
{
    SHOAL_ASSERT(view->job_count <= view->jobs_max);
    for (size_t i = 0; i < s->summaries.count; i++) {
        const struct shoal_job_summary *summary = &s->summaries.list[i].summary;
        const struct sched_group *g;
        uint64_t until_ns;

        if (summary->want_max == 0 && summary->host_count == 0)
            continue;
        g = sched_group_find(s, summary->id);
        if (g != NULL && g->lead != NULL)
            continue;
        until_ns = counts_until_ns(s, summary);
        if (s->now >= until_ns)
            continue;
        if (until_ns < view->due_ns)
            view->due_ns = until_ns;
        /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): see above */
        view->jobs[view->job_count] = (struct shoal_allocate_job){
            .id = summary->id,
            .priority = summary->priority,
            .ticket_ms = summary->ticket_ms,
            .min = summary->want_min,
            .max = summary->want_max,
            .class_hash = summary->class_hash,
            .needs = shoal_framework_needs(summary->framework, summary->serves),
            .elastic = summary->elastic || summary->tasks_all > 0,
            .service = summary->serves && summary->tasks_all > 0,
            .stays = !summary->elastic && !summary->serves,
            .unfit = summary->unfit,
            .unfit_count = summary->unfit_count,
        };
        take_need(&view->jobs[view->job_count],
                  (struct shoal_gpu_need){ summary->device, summary->gpu_mib, summary->gpu_pack });
        for (unsigned h = 0; h < summary->host_count; h++) {
            for (uint32_t slot = 0; slot < SHOAL_SLOTS_MAX; slot++) {
                if (summary->hosts[h].slots >> slot & 1)
                    hold(view, summary->hosts[h].node, slot, view->job_count);
            }
        }
        view->job_count++;
    }
}

static uint32_t slot_host(const struct sched_view *view, uint32_t slot)
{
    uint32_t host = 0;

    SHOAL_ASSERT(slot < view->slot_count);
    while (slot < view->hosts[host].first_slot || slot >= view->hosts[host].first_slot + view->hosts[host].slot_count)
        host++;
    return host;
}

/* Slots given to job `job`: those it holds first, then those to ask for. */
static uint32_t list_slots(struct sched_view *view, int32_t job)
{
    uint32_t count = 0;

    SHOAL_ASSERT(job >= 0 && (uint32_t)job < view->job_count);
    for (unsigned pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < view->slot_count; i++) {
            uint32_t host;

            if (view->given[i] != job || (view->slots[i] == job) != (pass == 0))
                continue;
            host = slot_host(view, i);
            view->list[count++] = (struct shoal_lead_slot){
                .node = view->hosts[host].id,
                .slot = view->numbers[i],
            };
        }
    }
    return count;
}

/* Of all that a job which is given nothing is told: most of many waiting jobs are told the same each time, and for those
 * neither the text is written nor its hash taken. */
static uint64_t waiting_mark(const struct shoal_allocate_input *view, const struct shoal_allocate_out *out,
                             uint32_t job)
{
    const struct shoal_allocate_grant *grant = &out->grants[job];
    const uint64_t words[] = { grant->why,         grant->avail,    grant->mesh,     view->jobs[job].min, view->jobs[job].max,
                               view->host_count > 0, out->pools > 0, view->slotless > 0 };
    uint64_t mark = 1469598103934665603ull; /* FNV-1a over words */

    SHOAL_ASSERT(job < view->job_count);
    for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        mark = (mark ^ words[i]) * 1099511628211ull;
    for (unsigned i = 0; grant->head >= 0 && i < sizeof(view->jobs[grant->head].id.bytes); i++)
        mark = (mark ^ view->jobs[grant->head].id.bytes[i]) * 1099511628211ull;
    return mark | 1;
}

static void tell_target(struct shoal_sched *s, struct sched_group *g, const struct shoal_allocate_input *view,
                        const struct shoal_allocate_out *out, uint32_t job)
{
    struct shoal_lead_event event = { .kind = SHOAL_LEAD_TARGET };
    char why[SHOAL_JOB_REASON_BYTES] = "";

    SHOAL_ASSERT(g->lead != NULL); /* J1 */
    SHOAL_ASSERT(job < view->job_count);
    if (sched_lead_waits_as(g, out->grants[job].count > 0 ? 0 : waiting_mark(view, out, job)))
        return;
    shoal_allocate_explain(view, out, job, why, sizeof(why));
    event.u.target.count = out->grants[job].count;
    event.u.target.slot_count = list_slots(&s->view, (int32_t)job);
    event.u.target.slots = s->view.list;
    event.u.target.why = why;
    sched_lead_target(s, g, &event);
}

static void tell_slots_target(struct shoal_sched *s, const struct shoal_allocate_input *view)
{
    struct shoal_slots_event event = { .kind = SHOAL_SLOTS_TARGET };
    bool self = false;

    for (uint32_t i = 0; i < view->host_count; i++) {
        if (!sched_is_self(s, view->hosts[i].id))
            continue;
        self = true;
        for (uint32_t at = view->hosts[i].first_slot; at < view->hosts[i].first_slot + view->hosts[i].slot_count; at++) {
            int32_t job = s->view.given[at];

            if (job >= 0 && s->view.numbers[at] != SCHED_NO_SLOT)
                event.u.target.jobs[s->view.numbers[at]] = view->jobs[job].id;
        }
    }
    if (self)
        shoal_ignore(sched_slots_step(s, &event));
}

/* The leaders of the first jobs that wait, in the view's order; this node is left out. */
static void note_waiting(struct shoal_sched *s, const struct shoal_allocate_input *in,
                         const struct shoal_allocate_out *out)
{
    struct sched_view *view = &s->view;

    view->waiting_count = 0;
    for (uint32_t i = 0; i < in->job_count && view->waiting_count < SCHED_NEWS_NODES; i++) {
        const struct shoal_job_summary *summary;
        bool known = false;

        if (in->jobs[i].max == 0 || out->grants[i].held >= in->jobs[i].max)
            continue;
        summary = sched_summary_find(s, in->jobs[i].id);
        if (summary == NULL || sched_is_self(s, summary->leader) || sched_node_find(s, summary->leader) == NULL)
            continue;
        for (uint32_t w = 0; w < view->waiting_count; w++)
            known = known || shoal_node_id_equal(view->waiting[w], summary->leader);
        if (!known)
            view->waiting[view->waiting_count++] = summary->leader;
    }
}

/* Nothing to give to anybody: a mesh without work does not look at its hosts, each time that one of them is heard of. */
static bool nobody_wants(const struct shoal_sched *s)
{
    SHOAL_ASSERT(s->group_count <= s->groups_max);
    for (size_t i = 0; i < s->group_count; i++)
        if (s->groups[i]->lead != NULL)
            return false;
    for (size_t i = 0; i < s->summaries.count; i++)
        if (s->summaries.list[i].summary.want_max != 0 || s->summaries.list[i].summary.host_count != 0)
            return false;
    return true;
}

void sched_view_due(struct shoal_sched *s)
{
    struct sched_view *view = &s->view;
    size_t hosts = s->node_count;
    size_t slots = 0;
    uint64_t due_ns;
    struct shoal_allocate_input in;
    struct shoal_allocate_out out;

    SHOAL_ASSERT(s->actions != NULL);   /* within a step */
    due_ns = sched_summaries_expire(s); /* before: it may say that the view has changed */
    view->due_ns = due_ns;
    view->done_ns = s->now;
    if (nobody_wants(s)) {
        view->job_count = 0;
        return;
    }
    for (size_t i = 0; i < s->node_count; i++) {
        slots += s->nodes[i].info.slots > SHOAL_SLOTS_MAX ? SHOAL_SLOTS_MAX : s->nodes[i].info.slots;
        hosts += sched_view_cards_hosts(sched_node_cards(&s->nodes[i]));
        slots += sched_view_cards_slots(sched_node_cards(&s->nodes[i]));
    }
    if (!view_room(view, hosts + 1, slots + 1, s->summaries.count + s->group_count + 1))
        return; /* no memory: the next change tries again */
    view->job_count = 0;
    view_hosts(s, view);
    view_led(s, view);
    view_others(s, view);
    if (view->job_count == 0)
        return;
    sched_view_cards_held(view);
    in = (struct shoal_allocate_input){
        .hosts = view->hosts,
        .host_count = view->host_count,
        .slots = view->slots,
        .slot_count = view->slot_count,
        .jobs = view->jobs,
        .job_count = view->job_count,
        .slotless = slotless_hosts(s),
    };
    out = (struct shoal_allocate_out){ .grants = view->grants, .slots = view->given };
    if (shoal_allocate(view->work, &in, &out) != SHOAL_OK)
        return;
    note_waiting(s, &in, &out);
    for (uint32_t i = 0; i < view->job_count; i++) {
        struct sched_group *g = sched_group_find(s, view->jobs[i].id);

        if (g != NULL && g->lead != NULL && sched_has_room(s))
            tell_target(s, g, &in, &out, i);
    }
    tell_slots_target(s, &in);
}
