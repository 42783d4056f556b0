/* The tasks of an array: what their ends mean for the log, and when the whole has ended. Placing them is part of
 * lead_place.c; rules T1 to T4 are in shoal/array.h.
 *
 *     report EXITED, and the slot kept --> TASKS { ends, placements } committed --> CONFIRM, on that same slot
 *
 * One entry is under way at a time (L1), so what ends meanwhile goes into the next one together. */
#include <signal.h>

#include "shoal/job_entry.h"
#include "lead_state.h"
#include "shoal/banned.h"

/* A replica that ends by itself is started again, later each time, until one has stood for a while. */
#define AGAIN_MIN_NS (250 * SHOAL_MS)
#define AGAIN_MAX_NS (30 * SHOAL_S)
#define STOOD_NS (20 * SHOAL_S)
/* The allocation has to take a replica away for so long: views differ for a moment. */
#define YIELD_NS (2 * SHOAL_S)

static int16_t exit_code_of(const struct shoal_worker_report *report)
{
    int32_t code = report->signalled ? 128 + report->status : report->status;

    SHOAL_ASSERT(report->phase == SHOAL_PHASE_EXITED); /* L5 */
    return (int16_t)(code < 0 ? -1 : code & 255);
}

static struct shoal_task_end end_of(const struct shoal_lead *lead, const struct lworker *w)
{
    struct shoal_task_end end = { .worker_id = w->place.worker_id, .exit_code = -1 };

    SHOAL_ASSERT(w->dead); /* L5 */
    SHOAL_ASSERT(w->used);
    SHOAL_ASSERT(w->place.role == SHOAL_JOB_TASK); /* an array has nothing else */
    if (!w->lost && (w->ended_ns == 0 || exit_code_of(&w->report) == 0)) {
        end.outcome = SHOAL_TASK_ENDED;
        end.exit_code = exit_code_of(&w->report);
    } else if (!w->lost) {
        end.outcome = SHOAL_TASK_ABANDONED; /* this leader had it stopped */
    } else if (!w->report.ran) {
        end.outcome = SHOAL_TASK_UNSTARTED;
    } else {
        end.outcome = w->place.attempt >= lead->options.attempts_max ? SHOAL_TASK_ABANDONED : SHOAL_TASK_AGAIN;
    }
    return end;
}

uint32_t lead_array_ends(const struct shoal_lead *lead, struct shoal_job_entry *entry)
{
    uint32_t count = 0;

    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_TASKS);
    SHOAL_ASSERT(lead->job->tasks != NULL);
    for (uint32_t i = 0; i < lead->worker_cap && count < SHOAL_TASK_ENDS_MAX; i++)
        if (lead->workers[i].used && lead->workers[i].dead)
            entry->u.tasks.ends[count++] = end_of(lead, &lead->workers[i]);
    entry->u.tasks.end_count = count;
    return count;
}

bool lead_array_drop(struct lead_step *s)
{
    const struct shoal_lead *lead = s->lead;
    struct shoal_job_entry *entry;
    bool any = false;

    SHOAL_ASSERT(s->lead->job->tasks != NULL);
    for (uint32_t i = 0; i < lead->worker_cap && !any; i++)
        any = lead->workers[i].used && lead->workers[i].dead;
    if (!any)
        return false;
    entry = lead_entry(s, SHOAL_JOB_ENTRY_TASKS);
    if (entry == NULL)
        return true;
    (void)lead_array_ends(lead, entry);
    return lead_propose(s);
}

/* Placements that have ended, but not in the log, make room: they end in the entry that places the next (T3). */
void lead_array_want(const struct shoal_lead *lead, uint32_t *min, uint32_t *max)
{
    const struct shoal_tasks *tasks = lead->job->tasks;
    uint32_t left = tasks->counts[SHOAL_TASK_PENDING] + tasks->counts[SHOAL_TASK_RUNNING];
    uint32_t room = shoal_job_tasks_room(lead->job) + lead->job->placement_count;

    SHOAL_ASSERT(lead->job->tasks != NULL);
    *max = left < room ? left : room;
    if (shoal_job_spec_serves(&lead->job->spec) && *max > tasks->replicas)
        *max = tasks->replicas; /* T5 */
    *min = *max > 0 ? 1 : 0;
    if (shoal_job_spec_serves(&lead->job->spec) && *max > 0 && lead->floor > 1)
        *min = lead->floor < *max ? lead->floor : *max;
}

/* From so many ends in a row on its requests are refused where no replica is ready; before, they wait for the next one. */
#define FAILING_COUNT 5

/* Hosts that hold requests for this service look for how it begins: "a replica ended with" refuses them. A host that ends a
 * replica, because its kernel has said that it cannot serve, kills it: then its last words say why, and the signal would
 * mislead. */
static void say_again(struct shoal_lead *lead, const struct shoal_worker_report *report, unsigned wait_ms)
{
    bool has_words = report->text[0] != '\0';
    const char *ended = lead->again_count < FAILING_COUNT ? "has ended" : "ended";

    if ((report->status == SHOAL_STATUS_UNSTARTED || (report->signalled && report->status == SIGKILL)) && has_words)
        (void)snprintf(lead->again_text, sizeof(lead->again_text),
                       "a replica %s with the words \"%.200s\"; the next one is started in %u ms", ended, report->text,
                       wait_ms);
    else
        (void)snprintf(lead->again_text, sizeof(lead->again_text),
                       "a replica %s with %s %d%s%.200s; the next one is started in %u ms", ended,
                       report->signalled ? "signal" : "exit status", report->status, has_words ? ": " : "", report->text,
                       wait_ms);
}

void lead_array_ended(struct lead_step *s, const struct lworker *worker)
{
    struct shoal_lead *lead = s->lead;
    uint64_t wait_ns;

    SHOAL_ASSERT(worker->dead); /* L5 */
    if (!shoal_job_spec_serves(&lead->job->spec) || worker->ended_ns != 0 ||
        (!worker->report.ran && worker->report.status != SHOAL_STATUS_UNSTARTED))
        return;
    if (worker->ready_ns != 0 && s->now_ns >= worker->ready_ns + STOOD_NS)
        lead->again_count = 0;
    wait_ns = AGAIN_MIN_NS << (lead->again_count < 7 ? lead->again_count : 7);
    lead->again_ns = s->now_ns + (wait_ns < AGAIN_MAX_NS ? wait_ns : AGAIN_MAX_NS);
    lead->again_count++;
    say_again(lead, &worker->report, (unsigned)((lead->again_ns - s->now_ns) / SHOAL_MS));
}

static void stop_replica(struct lead_step *s, struct lworker *w, const char *why)
{
    SHOAL_ASSERT(shoal_job_spec_serves(&s->lead->job->spec)); /* T5 */
    if (w->ended_ns == 0)
        w->ended_ns = s->now_ns;
    if (s->now_ns >= w->ended_ns + s->lead->options.stop_grace_ns)
        lead_order(s, w, SHOAL_ORDER_KILL, 0, "", 0, 0);
    else
        lead_order(s, w, SHOAL_ORDER_STOP, 0, why, SHOAL_STOP_USER, s->lead->options.stop_grace_ns);
}

/* Whether the allocation says anything of it: it counts hosts that are heard. */
static bool is_counted(struct lead_step *s, const struct lworker *w)
{
    const struct lhost *host = lead_find_host(s->lead, w->place.node);

    SHOAL_ASSERT(w->used);
    return host != NULL && host->health == SHOAL_LEAD_HOST_WELL && !host->draining;
}

/* How many replicas may stand: as many as are to run, and no more than the allocation yields, once that has lasted. */
static uint32_t may_stand(struct lead_step *s, uint32_t stand, uint32_t counted)
{
    struct shoal_lead *lead = s->lead;
    uint32_t most = lead->job->tasks->replicas;

    SHOAL_ASSERT(counted <= stand);
    if (!lead->has_target || lead->target >= counted) {
        lead->surplus_ns = 0;
        return most;
    }
    if (lead->surplus_ns == 0)
        lead->surplus_ns = s->now_ns;
    if (s->now_ns < lead->surplus_ns + YIELD_NS) {
        lead_wake(s, lead->surplus_ns + YIELD_NS);
        return most;
    }
    stand = stand - counted + lead->target;
    return stand < most ? stand : most;
}

/* The next to go: one that the allocation does not name, then the highest number. */
static struct lworker *next_to_go(struct shoal_lead *lead)
{
    struct lworker *last = NULL;
    bool last_named = false;

    SHOAL_ASSERT(lead->job->tasks != NULL);
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        struct lworker *w = &lead->workers[i];
        bool named;

        if (!lworker_lives(w) || w->ended_ns != 0)
            continue;
        named = lead->has_target && lead->target < lead->job->tasks->replicas && lead_in_target(lead, &w->place);
        if (last == NULL || (named != last_named ? !named : w->place.rank > last->place.rank)) {
            last = w;
            last_named = named;
        }
    }
    return last;
}

/* UINT64_MAX: it has not started. */
static uint64_t young_until(const struct lworker *w)
{
    SHOAL_ASSERT(w->used);
    return w->ready_ns == 0 ? UINT64_MAX : w->ready_ns + STOOD_NS;
}

/* Nobody takes the place of a replica that may still run. */
static void say_silent(struct shoal_lead *lead, uint32_t silent)
{
    SHOAL_ASSERT(lead->again_count == 0); /* else it says how replicas end */
    lead->again_text[0] = '\0';
    if (silent > 0)
        (void)snprintf(lead->again_text, sizeof(lead->again_text),
                       "%u of its replicas are on hosts that are not heard; others are started %u s after these fell "
                       "silent, when their leases there have ended",
                       silent, (unsigned)(lead->options.lease_ns / SHOAL_S + 1));
}

const char *lead_array_waits(const struct shoal_lead *lead)
{
    uint32_t stand = 0;

    SHOAL_ASSERT(lead->job->tasks != NULL);
    if (lead->again_text[0] != '\0')
        return lead->again_text;
    for (uint32_t i = 0; i < lead->worker_cap; i++)
        stand += lworker_lives(&lead->workers[i]) && lead->workers[i].ended_ns == 0;
    if (stand >= lead->job->tasks->replicas)
        return "";
    return lead->has_target && lead->target < lead->job->tasks->replicas ? lead->target_why : lead->pending;
}

/* One replica at a time leaves a host that is drained, when all stand (until `young_ns` they do not) and the allocation has a slot for it elsewhere. It
 * ends before it starts there: the log places no more than `replicas` (T5). */
static void move_one(struct lead_step *s, uint32_t stand, uint32_t counted, uint64_t young_ns)
{
    struct shoal_lead *lead = s->lead;

    SHOAL_ASSERT(counted <= stand);
    if (stand != lead->job->tasks->replicas || lead->again_count > 0 || !lead->has_target || lead->target <= counted)
        return;
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        struct lworker *w = &lead->workers[i];
        const struct lhost *host = lworker_lives(w) ? lead_find_host(lead, w->place.node) : NULL;

        if (host == NULL || !host->draining || host->health != SHOAL_LEAD_HOST_WELL)
            continue;
        if (s->now_ns >= young_ns)
            stop_replica(s, w, "its host is drained");
        else if (young_ns != UINT64_MAX)
            lead_wake(s, young_ns);
        return;
    }
}

/* T5. */
static void shrink(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    uint32_t stand = 0, counted = 0, silent = 0, ending = 0, most;
    uint64_t young_ns = 0;

    if (lead->job->tasks == NULL || !shoal_job_spec_serves(&lead->job->spec))
        return;
    for (uint32_t i = 0; i < lead->worker_cap; i++) {
        struct lworker *w = &lead->workers[i];

        if (!lworker_lives(w))
            continue;
        if (w->ready_ns == 0 && w->report.phase >= SHOAL_PHASE_STARTED)
            w->ready_ns = s->now_ns;
        if (young_until(w) > young_ns)
            young_ns = young_until(w);
        if (w->ended_ns != 0)
            stop_replica(s, w, "fewer replicas are asked for");
        ending += w->ended_ns != 0;
        stand += w->ended_ns == 0;
        counted += w->ended_ns == 0 && is_counted(s, w);
        silent += w->ended_ns == 0 && host_lost(lead_find_host(lead, w->place.node));
    }
    if (lead->job->tasks->replicas == 0) { /* the next one is another time's, and asked for then */
        lead->again_count = 0;
        lead->again_ns = 0;
    }
    if (stand > 0 && s->now_ns >= young_ns && s->now_ns >= lead->again_ns + STOOD_NS)
        lead->again_count = 0; /* the loop is over: what else it waits for is said again */
    if (lead->again_count == 0)
        say_silent(lead, silent);
    most = may_stand(s, stand, counted);
    if (ending == 0 && stand <= most)
        move_one(s, stand, counted, young_ns);
    for (; stand > most; stand--) {
        struct lworker *last = next_to_go(lead);

        SHOAL_ASSERT(last != NULL); /* `stand` of them were counted */
        stop_replica(s, last,
                     stand > lead->job->tasks->replicas ? "fewer replicas are asked for"
                                                        : "its slot goes to a job that needs it at least");
    }
}

static bool any_started(const struct shoal_lead *lead)
{
    SHOAL_ASSERT(lead->job->tasks != NULL);
    for (uint32_t i = 0; i < lead->worker_cap; i++)
        if (lead->workers[i].used && lead->workers[i].report.phase >= SHOAL_PHASE_STARTED && !lead->workers[i].dead)
            return true;
    return false;
}

static bool propose_end(struct lead_step *s)
{
    const struct shoal_job *job = s->lead->job;
    uint32_t position;
    int32_t code = shoal_job_tasks_exit(job, &position);
    char text[160] = "";

    SHOAL_ASSERT(job->placement_count == 0);                            /* T1: nothing runs */
    SHOAL_ASSERT(s->lead->job->tasks->counts[SHOAL_TASK_PENDING] == 0); /* T1: every task has ended */
    if (position != SHOAL_ARRAY_NONE && code >= 0)
        (void)snprintf(text, sizeof(text), "%u of %u tasks failed; the first of them is task %u, with exit status %d",
                       job->tasks->counts[SHOAL_TASK_FAILED], job->tasks->array.task_count,
                       shoal_array_index(&job->tasks->array, position), code);
    else if (position != SHOAL_ARRAY_NONE)
        (void)snprintf(text, sizeof(text), "%u of %u tasks failed; the first of them is task %u, %s",
                       job->tasks->counts[SHOAL_TASK_FAILED], job->tasks->array.task_count,
                       shoal_array_index(&job->tasks->array, position),
                       job->tasks->tasks[position].attempts < s->lead->options.attempts_max
                           ? "which was stopped"
                           : "whose host was lost in each attempt, also the last one allowed");
    return lead_propose_state(s, job->state, code, true, text);
}

bool lead_array_finish(struct lead_step *s)
{
    struct shoal_lead *lead = s->lead;
    const struct shoal_job *job = lead->job;

    SHOAL_ASSERT(s->lead->job->tasks != NULL);
    shrink(s);
    if (lead->fail_text[0] != '\0')
        return lead_propose_state(s, SHOAL_JOB_ERROR, lead->fail_code, false, lead->fail_text);
    if (job->tasks->counts[SHOAL_TASK_PENDING] + job->tasks->counts[SHOAL_TASK_RUNNING] == 0)
        return propose_end(s);
    if ((job->state == SHOAL_JOB_LAUNCHING || job->state == SHOAL_JOB_RECOVERING) && any_started(lead))
        return lead_propose_state(s, SHOAL_JOB_RUNNING, -1, false, "");
    return false;
}
