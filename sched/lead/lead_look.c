/* A job as others see it: its summary in gossip, its facts, and why it waits. */
#include "shoal/job_facts.h"
#include "sched/job/job_wire.h"
#include "lead_state.h"
#include "shoal/banned.h"

#define SUMMARY_NS SHOAL_S
#define WAITS_BYTES (SHOAL_JOB_REASON_BYTES + 300) /* why it waits, and which host takes no part */
#define WHY_LINKS_MAX 4u /* data connections that are named, each on a line */
#define WHY_STANDS_MAX 4u /* workers that are waited for, likewise */
#define RATE_NS (10 * SHOAL_S)   /* after so long without a step, and some usual ones, it makes none */
#define RATE_STEPS 3
#define STANDS_NS (60 * SHOAL_S) /* and after so long it stands, and `why` says so */
#define STANDS_STEPS 10
#define STANDS_TOLD_NS (30 * SHOAL_S) /* hosts say each ten seconds who stands there */

static void put_holding(struct shoal_job_summary *summary, const struct shoal_placement *place)
{
    SHOAL_ASSERT(summary->host_count <= SHOAL_SUMMARY_HOSTS_MAX);
    if (place->slot == SHOAL_SLOT_NONE)
        return;
    summary->held++;
    for (uint32_t i = 0; i < summary->host_count; i++) {
        if (shoal_node_id_equal(summary->hosts[i].node, place->node)) {
            summary->hosts[i].slots |= 1ull << place->slot;
            return;
        }
    }
    if (summary->host_count == SHOAL_SUMMARY_HOSTS_MAX)
        return;
    summary->hosts[summary->host_count].node = place->node;
    summary->hosts[summary->host_count++].slots = 1ull << place->slot;
}

/* The reason why the job waits, newest first: the controller's own word, else the allocation's. */
static const char *waits(const struct shoal_lead *lead)
{
    SHOAL_ASSERT(lead->job->state < SHOAL_JOB_STATE_COUNT);
    if (shoal_job_state_ended((enum shoal_job_state)lead->job->state))
        return "";
    if (shoal_job_spec_serves(&lead->job->spec) && lead_array_waits(lead)[0] != '\0')
        return lead_array_waits(lead);
    if (lead->job->state <= SHOAL_JOB_PENDING_CRD_SCHEDULER && lead->target_why[0] != '\0')
        return lead->target_why;
    if (lead->job->state <= SHOAL_JOB_PENDING_CRD_SCHEDULER || lead->job->state == SHOAL_JOB_RECOVERING ||
        lead->revoking)
        return lead->pending[0] != '\0' ? lead->pending : lead->target_why;
    return lead->cut_off;
}

/* And, after it, which host takes no part. */
static void waits_for(const struct shoal_lead *lead, char text[static WAITS_BYTES])
{
    const char *why = waits(lead);
    const bool ended = shoal_job_state_ended((enum shoal_job_state)lead->job->state);

    _Static_assert(sizeof(lead->pending) + sizeof(lead->unfit_why) + 2 <= WAITS_BYTES, "both fit");
    SHOAL_ASSERT(!ended || why[0] == '\0');
    if (ended || lead->unfit_count == 0)
        job_cut_text(text, WAITS_BYTES, why);
    else
        (void)snprintf(text, WAITS_BYTES, "%s%s%s", why, why[0] != '\0' ? "; " : "", lead->unfit_why);
}

bool shoal_lead_holds(const struct shoal_lead *lead, const struct shoal_placement *place)
{
    const struct lworker *worker = lead_find_worker(lead, place->worker_id);

    return place->slot != SHOAL_SLOT_NONE && (worker == NULL || !worker->dead);
}

bool shoal_lead_reserved(const struct shoal_lead *lead, uint32_t i, struct shoal_lead_slot *slot)
{
    SHOAL_ASSERT(lead->grant_count <= lead->job->placement_cap); /* add_grant keeps it */
    if (i >= lead->grant_count)
        return false;
    *slot = (struct shoal_lead_slot){ .node = lead->grants[i].node, .slot = lead->grants[i].slot };
    return true;
}

void shoal_lead_demand(const struct shoal_lead *lead, uint32_t *min, uint32_t *max)
{
    SHOAL_ASSERT(lead->job != NULL);
    lead_want(lead, min, max);
}

bool shoal_lead_need(const struct shoal_lead *lead, struct shoal_gpu_need *need)
{
    const struct shoal_job *job = lead->job;

    SHOAL_ASSERT(job != NULL);
    *need = lead->need;
    if (need->device == SHOAL_JOB_DEVICE_AUTO)
        need->device = job->spec.device;
    return !shoal_job_spec_serves(&job->spec) || job->document_len == 0 ||
           (lead->need_told && lead->need_revision == job->revision);
}

void shoal_lead_summary(const struct shoal_lead *lead, struct shoal_job_summary *summary)
{
    const struct shoal_job *job = lead->job;
    const struct shoal_call *call = shoal_job_call(job, job->call_count);
    struct shoal_gpu_need need;
    char why[WAITS_BYTES];

    SHOAL_ASSERT(lead->job->placement_count <= lead->job->placement_cap);
    SHOAL_ASSERT(lead->options.term > 0);
    memset(summary, 0, sizeof(*summary));
    summary->id = job->id;
    summary->state = job->state;
    (void)shoal_lead_need(lead, &need);
    summary->device = need.device;
    summary->gpu_mib = need.mib;
    summary->gpu_pack = need.pack;
    summary->elastic = job->spec.elastic;
    summary->serves = shoal_job_spec_serves(&job->spec);
    summary->has_metrics = lead->has_metrics;
    memcpy(summary->creator, job->spec.creator, sizeof(summary->creator));
    memcpy(summary->framework, job->spec.framework, sizeof(summary->framework));
    job_cut_text(summary->app_name, sizeof(summary->app_name), job->spec.app_name);
    waits_for(lead, why);
    job_cut_text(summary->pending, sizeof(summary->pending),
                 shoal_job_state_ended((enum shoal_job_state)job->state) ? job->reason : why);
    summary->priority = job->spec.priority;
    summary->ticket_ms = job->ticket_ms;
    lead_want(lead, &summary->want_min, &summary->want_max);
    summary->workers_min = job->spec.workers_min;
    summary->workers_max = job->spec.workers_max;
    /* class_hash stays 0: engines name their framework's build in it, which no host's record does. A host whose engines
     * turn out to be of another class is left out by the controller itself. */
    summary->leader = lead->options.self;
    summary->term = lead->options.term;
    if (job->epoch != NULL)
        summary->epoch = job->epoch->epoch;
    summary->step = call != NULL && call->state >= SHOAL_CALL_DONE ? call->final_step : lead->step;
    summary->data_epoch = lead->data_epoch;
    summary->rate_milli = lead->rate_milli;
    summary->loss_micro = lead->loss_micro;
    summary->metric_micro = lead->metric_micro;
    summary->create_ms = job->create_ms;
    summary->start_ms = job->start_ms;
    summary->end_ms = job->end_ms;
    for (uint32_t i = 0; i < job->placement_count; i++)
        if (shoal_lead_holds(lead, &job->placements[i]))
            put_holding(summary, &job->placements[i]);
    summary->unfit_count = (uint8_t)(lead->unfit_count < SHOAL_SUMMARY_UNFIT_MAX ? lead->unfit_count : SHOAL_SUMMARY_UNFIT_MAX);
    if (summary->unfit_count > 0)
        memcpy(summary->unfit, lead->unfit, summary->unfit_count * sizeof(summary->unfit[0]));
    summary->version = job->spec.version;
    summary->canary = lead->canary;
    if (job->tasks != NULL) {
        summary->tasks_all = job->tasks->array.task_count;
        summary->tasks_done = job->tasks->counts[SHOAL_TASK_DONE];
        summary->tasks_failed = job->tasks->counts[SHOAL_TASK_FAILED];
    }
}

void shoal_lead_facts(const struct shoal_lead *lead, struct shoal_job_facts *facts)
{
    char why[WAITS_BYTES];

    SHOAL_ASSERT(lead->options.term > 0);
    shoal_job_facts(lead->job, facts);
    waits_for(lead, why);
    job_cut_text(facts->pending, sizeof(facts->pending), why);
    facts->leader = lead->options.self;
    facts->term = lead->options.term;
    if (lead->step_call != 0 && lead->step_call == facts->call) {
        if (lead->step > facts->step)
            facts->step = lead->step;
        if (lead->logged_step > facts->logged_step)
            facts->logged_step = lead->logged_step;
        facts->rate_milli = shoal_job_state_ended((enum shoal_job_state)facts->state) ? 0 : lead->rate_milli;
        if (lead->has_metrics) {
            facts->has_metrics = true;
            facts->data_epoch = lead->data_epoch;
            facts->loss_micro = lead->loss_micro;
            facts->metric_micro = lead->metric_micro;
        }
    }
}

/* Text of which `*used` bytes of `cap` are taken grows by a line; one that does not fit is cut. */
static void add_line(char *text, size_t cap, size_t *used, const char *line)
{
    SHOAL_ASSERT(*used < cap);
    (void)snprintf(text + *used, cap - *used, "%s\n", line);
    *used += strlen(text + *used);
}

/* The ranks that this member of the epoch does not hear, each on a line; returns how many lines would be needed. */
static uint32_t why_unheard(const struct shoal_worker_epoch *epoch, uint32_t rank, const struct lworker *w, char *text,
                            size_t cap, size_t *used, uint32_t lines)
{
    uint32_t count = 0;

    SHOAL_ASSERT(rank < epoch->member_count);
    for (uint32_t i = 0; i < epoch->member_count; i++) {
        char here[33], there[33], line[320];

        if (!shoal_ranks_has(&w->report.unheard, i) || lines + count++ >= WHY_LINKS_MAX)
            continue;
        shoal_hex_text(w->place.node.bytes, sizeof(w->place.node.bytes), here);
        shoal_hex_text(epoch->members[i].node.bytes, sizeof(epoch->members[i].node.bytes), there);
        (void)snprintf(line, sizeof(line),
                       "worker %llu (rank %u) on host %s waits for its data connection with worker %llu (rank %u) on "
                       "host %s",
                       (unsigned long long)w->place.worker_id, rank, here,
                       (unsigned long long)epoch->members[i].worker_id, i, there);
        add_line(text, cap, used, line);
    }
    return count;
}

/* Data connections that hold the workers up, or broke just before the running epoch. */
static void why_links(const struct shoal_lead *lead, char *text, size_t cap, size_t *used)
{
    const struct shoal_worker_epoch *epoch = lead->job->epoch;
    uint32_t lines = 0;
    char line[256];

    SHOAL_ASSERT(*used < cap);
    for (uint32_t rank = 0; epoch != NULL && rank < epoch->member_count; rank++) {
        const struct lworker *w = lead_find_worker(lead, epoch->members[rank].worker_id);

        if (w == NULL || !lworker_lives(w) || !w->reported)
            continue;
        if (shoal_epoch_cmp(w->report.epoch, epoch->epoch) == 0)
            lines += why_unheard(epoch, rank, w, text, cap, used, lines);
        if (shoal_ranks_any(&w->broken) && w->broken_epoch.e + 1 >= epoch->epoch.e && lines++ < WHY_LINKS_MAX) {
            (void)snprintf(line, sizeof(line),
                           "data connections of worker %llu (rank %u) broke in epoch %u, and are made anew",
                           (unsigned long long)w->place.worker_id, rank, (unsigned)w->broken_epoch.e);
            add_line(text, cap, used, line);
        }
    }
    if (lines > WHY_LINKS_MAX) {
        (void)snprintf(line, sizeof(line), "%u more data connections are waited for", lines - WHY_LINKS_MAX);
        add_line(text, cap, used, line);
    }
    if (lines > 0)
        add_line(text, cap, used,
                 "data connections that do not come up: look at the network between these hosts, and at who else "
                 "connects to the workers' ports there");
}

/* The script's own word, where it is what bounds the job. */
static void why_bounded(const struct shoal_lead *lead, char *text, size_t cap, size_t *used)
{
    const struct shoal_call *call = shoal_job_running_call(lead->job);
    uint32_t most = lead->job->spec.workers_max;
    char line[160];

    SHOAL_ASSERT(*used < cap);
    if (call == NULL)
        return;
    if (call->engines_max > 0 && call->engines_max < most)
        most = call->engines_max;
    if (call->sizes.virtual_workers > 0 && call->sizes.virtual_workers < most)
        most = call->sizes.virtual_workers;
    if (most == lead->job->spec.workers_max)
        return;
    (void)snprintf(line, sizeof(line),
                   "call %u of train() takes %u of %u workers: its engines_number or effective_batch_size asks for no more",
                   call->call, most, lead->job->spec.workers_max);
    add_line(text, cap, used, line);
}

/* Of a call that is trained, for how long there has been no step; 0: of others. */
static uint64_t idle_ns(const struct shoal_lead *lead)
{
    const uint64_t since_ns = lead->stepped_ns > lead->epoch_seen_ns ? lead->stepped_ns : lead->epoch_seen_ns;

    SHOAL_ASSERT(lead->stepped_ns <= lead->looked_ns && lead->epoch_seen_ns <= lead->looked_ns); /* time does not go back */
    if (shoal_job_running_call(lead->job) == NULL || lead->job->epoch == NULL || since_ns == 0)
        return 0;
    return lead->looked_ns - since_ns;
}

static uint64_t most_ns(uint64_t floor_ns, uint64_t steps, uint64_t usual_ns)
{
    SHOAL_ASSERT(usual_ns <= 1000 * SHOAL_S); /* a rate is at least a thousandth a second, or none */
    return steps * usual_ns > floor_ns ? steps * usual_ns : floor_ns;
}

/* A rate is of the last steps: where none follow, it is none. */
void lead_pace(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    const uint64_t until_ns = lead->stepped_ns + most_ns(RATE_NS, RATE_STEPS, lead->usual_ns);

    SHOAL_ASSERT(lead->looked_ns <= s->now_ns); /* time does not go back */
    lead->looked_ns = s->now_ns;
    if (lead->rate_milli == 0)
        return;
    if (s->now_ns < until_ns && !shoal_job_state_ended((enum shoal_job_state)lead->job->state))
        lead_wake(s, until_ns);
    else
        lead->rate_milli = 0;
}

static const char *stands_text(uint8_t activity)
{
    static const char *const texts[SHOAL_ACTIVITY_COUNT] = {
        [SHOAL_ACTIVITY_ENTERING] = "takes or gives the state",   [SHOAL_ACTIVITY_COMPUTING] = "computes a mini-batch",
        [SHOAL_ACTIVITY_APPLYING] = "updates the weights, or runs a callback", [SHOAL_ACTIVITY_VALIDATING] = "validates",
        [SHOAL_ACTIVITY_CALLBACK] = "runs a callback, or writes files",
    };

    return activity < SHOAL_ACTIVITY_COUNT && texts[activity] != NULL ? texts[activity] : "does the same";
}

/* That training stands, since when, and for whom the others wait. */
static void why_stands(const struct shoal_lead *lead, char *text, size_t cap, size_t *used)
{
    const struct shoal_worker_epoch *epoch = lead->job->epoch;
    const uint64_t idle = idle_ns(lead), seconds = idle / SHOAL_S;
    uint32_t named = 0;
    char line[320];
    size_t len;

    SHOAL_ASSERT(*used < cap);
    if (idle < most_ns(STANDS_NS, STANDS_STEPS, lead->usual_ns))
        return;
    len = (size_t)snprintf(line, sizeof(line), "no step for %llu %s; ", (unsigned long long)(seconds < 120 ? seconds : seconds / 60),
                           seconds < 120 ? "s" : "min");
    if (lead->step > 0)
        (void)snprintf(line + len, sizeof(line) - len, "the last one was %llu", (unsigned long long)lead->step);
    else
        (void)snprintf(line + len, sizeof(line) - len, "there was none yet");
    add_line(text, cap, used, line);
    for (uint32_t rank = 0; rank < epoch->member_count && named < WHY_STANDS_MAX; rank++) {
        const struct lworker *w = lead_find_worker(lead, epoch->members[rank].worker_id);
        char host[33];

        if (w == NULL || !lworker_lives(w) || w->stands_ns == 0 || lead->looked_ns - w->stands_ns > STANDS_TOLD_NS ||
            w->stands_ns < lead->epoch_seen_ns)
            continue;
        named++;
        shoal_hex_text(w->place.node.bytes, sizeof(w->place.node.bytes), host);
        (void)snprintf(line, sizeof(line), "it waits for worker %llu (rank %u) on host %s, which %s all that time",
                       (unsigned long long)w->place.worker_id, rank, host, stands_text(w->stands));
        add_line(text, cap, used, line);
    }
}

/* Workers that die and are replaced look well at most moments. */
static void why_deaths(const struct shoal_lead *lead, char *text, size_t cap, size_t *used)
{
    char line[sizeof(lead->last_death) + 120];

    SHOAL_ASSERT(*used < cap);
    if (lead->failures == 0 || lead->last_death[0] == '\0')
        return;
    (void)snprintf(line, sizeof(line), "workers died %u time%s without one step in between, and the job ends at the %uth: %s",
                   lead->failures, lead->failures == 1 ? "" : "s", LEAD_FAILURES_MAX, lead->last_death);
    add_line(text, cap, used, line);
}

void shoal_lead_why(const struct shoal_lead *lead, char *text, size_t cap)
{
    const struct shoal_job *job = lead->job;
    uint32_t alive = 0, silent = 0;
    bool twice = lead->target_why[0] != '\0' && strstr(lead->pending, lead->target_why) != NULL;
    char others[SHOAL_JOB_REASON_BYTES];
    size_t used;

    SHOAL_ASSERT(cap > 0);
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        if (!lworker_lives(&lead->workers[i]) || lead->workers[i].place.slot == SHOAL_SLOT_NONE) /* a driver */
            continue;
        alive++;
        silent += !lead->workers[i].reported;
    }
    if (shoal_job_state_ended((enum shoal_job_state)job->state)) {
        (void)snprintf(text, cap, "%s.%s%s\n", shoal_job_state_name((enum shoal_job_state)job->state),
                       job->reason[0] == '\0' ? "" : " ", job->reason);
        return;
    }
    (void)snprintf(text, cap,
                   "%s, led here in term %llu; %u workers live (%u not heard of yet); the allocation yields %u "
                   "slots%s%s%s%s%s%s\n",
                   shoal_job_state_name((enum shoal_job_state)job->state), (unsigned long long)lead->options.term,
                   alive, silent, lead->target, twice || lead->target_why[0] == '\0' ? "" : "\n", twice ? "" : lead->target_why,
                   lead->pending[0] != '\0' ? "\n" : "", lead->pending, lead->cut_off[0] != '\0' ? "\n" : "",
                   lead->cut_off);
    used = strlen(text);
    why_bounded(lead, text, cap, &used);
    if (lead->unfit_count > 0)
        add_line(text, cap, &used, lead->unfit_why);
    lead_unfit_others(lead, others, sizeof(others));
    if (others[0] != '\0')
        add_line(text, cap, &used, others);
    why_deaths(lead, text, cap, &used);
    lead_idle_text(lead, others, sizeof(others));
    if (others[0] != '\0')
        add_line(text, cap, &used, others);
    why_stands(lead, text, cap, &used);
    why_links(lead, text, cap, &used);
}

size_t shoal_lead_hosts(const struct shoal_lead *lead, struct shoal_node_id *nodes, size_t cap)
{
    size_t count = 0;

    SHOAL_ASSERT(nodes != NULL || cap == 0);
    SHOAL_ASSERT(lead->host_cap <= LEAD_HOSTS_MAX);
    for (uint32_t i = 0; i < lead->host_cap; i++) {
        bool works = false;

        for (uint32_t p = 0; lead->hosts[i].used && p < lead->job->placement_count; p++)
            works = works || shoal_node_id_equal(lead->job->placements[p].node, lead->hosts[i].node);
        if (!works)
            continue;
        if (count < cap)
            nodes[count] = lead->hosts[i].node;
        count++;
    }
    return count;
}

void shoal_lead_stats(const struct shoal_lead *lead, struct shoal_lead_stats *stats)
{
    SHOAL_ASSERT(stats != NULL);
    *stats = lead->stats;
}

/* A mark of what the summary says of slots: what it wants, what it holds, and where, and how many hosts will not do. */
static uint64_t demand_mark(const struct shoal_lead *lead, const struct shoal_job_summary *summary)
{
    uint64_t mark = 1469598103934665603ull; /* FNV-1a over words */
    const uint64_t words[] = { summary->want_min, summary->want_max, summary->held, summary->host_count,
                               summary->canary, lead->unfit_count };

    SHOAL_ASSERT(summary->host_count <= SHOAL_SUMMARY_HOSTS_MAX);
    for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        mark = (mark ^ words[i]) * 1099511628211ull;
    for (unsigned h = 0; h < summary->host_count; h++) {
        for (unsigned i = 0; i < sizeof(summary->hosts[h].node.bytes); i++)
            mark = (mark ^ summary->hosts[h].node.bytes[i]) * 1099511628211ull;
        mark = (mark ^ summary->hosts[h].slots) * 1099511628211ull;
    }
    return mark;
}

static bool say(struct lead_step *s, enum shoal_lead_action_kind kind, const uint8_t *bytes, size_t len,
                bool demand_new)
{
    uint8_t *at = s->actions->pool + s->actions->pool_used;

    SHOAL_ASSERT(kind == SHOAL_LEAD_SUMMARY || kind == SHOAL_LEAD_DEMAND);
    SHOAL_ASSERT(len <= SHOAL_RECORD_PAYLOAD_MAX);
    if (s->actions->count == SHOAL_LEAD_ACTIONS_MAX || SHOAL_LEAD_POOL_BYTES - s->actions->pool_used < len) {
        s->lead->blocked = true;
        return false;
    }
    memcpy(at, bytes, len);
    s->actions->list[s->actions->count++] =
        (struct shoal_lead_action){ .kind = kind, .bytes = shoal_view_of(at, len), .demand_new = demand_new };
    s->actions->pool_used += (len + 15) & ~(size_t)15;
    return true;
}

/* To gossip a change of state goes at once, anything else at most each second. A change of demand is told to those who
 * wait for slots at once. */
void lead_publish(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    struct shoal_job_summary summary;
    uint8_t bytes[SHOAL_RECORD_PAYLOAD_MAX];
    uint64_t mark;
    size_t len;

    SHOAL_ASSERT(s->lead->summary_len <= SHOAL_RECORD_PAYLOAD_MAX);
    shoal_lead_summary(lead, &summary);
    if (shoal_job_summary_encode(&summary, bytes, sizeof(bytes), &len) != SHOAL_OK)
        return;
    mark = demand_mark(lead, &summary);
    if (mark != lead->demand_said && say(s, SHOAL_LEAD_DEMAND, bytes, len, true))
        lead->demand_said = mark;
    if (len == lead->summary_len && memcmp(bytes, lead->summary, len) == 0)
        return;
    if (summary.state == lead->summary_state && s->now_ns < lead->summary_ns + SUMMARY_NS) {
        lead_wake(s, lead->summary_ns + SUMMARY_NS);
        return;
    }
    if (!say(s, SHOAL_LEAD_SUMMARY, bytes, len, mark != lead->summary_demand))
        return;
    lead->summary_demand = mark;
    memcpy(lead->summary, bytes, len);
    lead->summary_len = len;
    lead->summary_state = summary.state;
    lead->summary_ns = s->now_ns;
}

void shoal_lead_summary_lost(struct shoal_lead *lead)
{
    SHOAL_ASSERT(lead->summary_len <= SHOAL_RECORD_PAYLOAD_MAX);
    lead->summary_len = 0;
    lead->summary_demand = 0;
}
