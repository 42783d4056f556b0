/* The watchdog: a library thread that stands still while this loop keeps time, a step that was applied, an end that a runner does not
 * tell, an interpreter that does not fork. */
#include "workers_state_uv.h"

#include <time.h>

#include "ended.h"

#include "shoal/banned.h"

#define WATCHDOG_MS 100
#define WATCHDOG_STUCK_TICKS 10
#define STANDS_TICKS 600 /* a minute */
#define STANDS_AGAIN_TICKS 100
#define ENDS_TICKS 5  /* of the watchdog: half a second */
#define ENDED_LOOKS 3 /* a runner that is well tells within milliseconds */

static void watch_runner(struct workers *workers, struct runner_link *runner)
{
    for (size_t i = 0; i < runner->alive_count; i++) {
        uint32_t slot = runner->alive[i].slot;
        const struct shoal_control_slot *words;
        uint64_t beat;

        if (slot >= SHOAL_SLOTS_MAX || runner->page == NULL)
            continue;
        words = &runner->page->slots[slot];
        beat = atomic_load(&words->heartbeat);
        if (beat == 0 || beat != runner->beats[slot] || atomic_load(&words->frozen) != 0 ||
            atomic_load(&words->worker_id) != runner->alive[i].worker_id) {
            runner->beats[slot] = beat;
            runner->still[slot] = 0;
        } else if (++runner->still[slot] == WATCHDOG_STUCK_TICKS) {
            workers->options.on_stuck(workers->options.arg, runner->alive[i].worker_id);
        } else if (runner->still[slot] > 200) {
            runner->still[slot] = WATCHDOG_STUCK_TICKS + 1;
        }
    }
}

/* Training needs no agent: how far it is stands in the workers' own words. */
static void watch_steps(struct workers *workers, struct runner_link *runner)
{
    uint64_t epoch = 0, step = 0, worker_id = 0;

    for (size_t i = 0; runner->page != NULL && i < runner->alive_count; i++) {
        const struct shoal_control_slot *words;
        uint64_t its_epoch, its_step;

        if (runner->alive[i].slot >= SHOAL_SLOTS_MAX)
            continue;
        words = &runner->page->slots[runner->alive[i].slot];
        its_epoch = atomic_load(&words->epoch_word);
        its_step = atomic_load(&words->applied_step);
        if (atomic_load(&words->worker_id) != runner->alive[i].worker_id || its_epoch < epoch ||
            (its_epoch == epoch && its_step <= step))
            continue;
        epoch = its_epoch;
        step = its_step;
        worker_id = runner->alive[i].worker_id;
    }
    if (worker_id == 0 || (epoch == runner->stepped_epoch && step == runner->stepped))
        return;
    runner->stepped_epoch = epoch;
    runner->stepped = step;
    workers->options.on_stepped(workers->options.arg, worker_id, epoch, step);
}

/* What a worker does by itself: who reduces, waits for the others. */
static bool works(uint32_t activity)
{
    return activity == SHOAL_ACTIVITY_ENTERING || activity == SHOAL_ACTIVITY_COMPUTING || activity == SHOAL_ACTIVITY_APPLYING ||
           activity == SHOAL_ACTIVITY_VALIDATING || activity == SHOAL_ACTIVITY_CALLBACK;
}

static void watch_stands(struct workers *workers, struct runner_link *runner)
{
    for (size_t i = 0; runner->page != NULL && i < runner->alive_count; i++) {
        const struct workers_alive *one = &runner->alive[i];
        const struct shoal_control_slot *words;
        uint64_t epoch, at;
        uint32_t activity;

        if (one->slot >= SHOAL_SLOTS_MAX)
            continue;
        words = &runner->page->slots[one->slot];
        activity = atomic_load(&words->activity);
        epoch = atomic_load(&words->epoch_word);
        at = (atomic_load(&words->worker_id) * 31 + epoch) * 31 * 31 + atomic_load(&words->applied_step) * 31 + activity;
        if (at != runner->stands_at[one->slot] || !works(activity) || epoch == 0 || atomic_load(&words->frozen) != 0 ||
            atomic_load(&words->worker_id) != one->worker_id) {
            runner->stands_at[one->slot] = at;
            runner->stands[one->slot] = 0;
        } else if (++runner->stands[one->slot] >= STANDS_TICKS) {
            runner->stands[one->slot] -= STANDS_AGAIN_TICKS;
            workers->options.on_stands(workers->options.arg, one->worker_id, epoch, (uint8_t)activity);
        }
    }
}

/* Training goes on without one that is lost; how a script has ended is for its runner to say, however late. */
static bool is_engine(const struct runner_link *runner, const struct workers_alive *one)
{
    const struct shoal_control_slot *words =
        runner->page == NULL || one->slot >= SHOAL_SLOTS_MAX ? NULL : &runner->page->slots[one->slot];

    return words != NULL && atomic_load(&words->worker_id) == one->worker_id && atomic_load(&words->heartbeat) != 0;
}

/* A runner that stands still (stopped, or starved) reaps nobody and tells nothing: a job of which it held the last worker
 * would wait for it. Its dead engines are told as they are found; their slots stay taken as long as the runner holds the locks. */
static void watch_ends(struct workers *workers, struct runner_link *runner)
{
    if (!runner->reported || ++runner->ends_ticks < ENDS_TICKS)
        return;
    runner->ends_ticks = 0;
    for (size_t i = 0; i < runner->alive_count; i++) {
        struct workers_alive *one = &runner->alive[i];
        uint64_t worker_id = one->worker_id;

        one->ended = is_engine(runner, one) && ended_process(one->pid) ? one->ended + 1 : 0;
        if (one->ended < ENDED_LOOKS)
            continue;
        workers_alive_remove(workers, runner, worker_id);
        worker_links_hear(workers, worker_id);
        workers->options.on_exited(workers->options.arg, worker_id, -1, false,
                                   "it ended, and its runner, which stands still, does not say how");
        return; /* the others at the next look */
    }
}

/* A job may stop its runner: it would hold its slots for ever, and nobody could end it. */
static void watch_kills(struct workers *workers, struct runner_link *runner, uint64_t now)
{
    char folder[600];
    char job[SHOAL_JOB_ID_TEXT_BYTES];

    for (size_t i = 0; i < runner->alive_count; i++) {
        if (runner->alive[i].end_by_ns == 0 || now < runner->alive[i].end_by_ns)
            continue;
        runner->alive[i].end_by_ns = now + STOPPED_RUNNER_NS; /* and again, should it be stopped later */
        shoal_job_id_text(runner->job, job);
        (void)snprintf(folder, sizeof(folder), "%s/%s", workers->jobs_dir, job);
        runner->was_stopped = ended_stopped_runner(folder, job) || runner->was_stopped;
        return;
    }
}

/* Every process of the job can write to its page: epochs would be revoked that were not, or not be that were. */
static void watch_page(struct workers *workers, struct runner_link *runner)
{
    if (runner->page == NULL ||
        (atomic_load(&runner->page->revoked) == runner->revoked && atomic_load(&runner->page->published) == runner->published &&
         memcmp(runner->page, runner->page_head, sizeof(runner->page_head)) == 0))
        return;
    memcpy(runner->page, runner->page_head, sizeof(runner->page_head));
    atomic_store(&runner->page->revoked, runner->revoked);
    atomic_store(&runner->page->published, runner->published);
    workers->options.on_page(workers->options.arg, runner->job);
}

/* W3: a warm interpreter that does not carry out its order is ended, and the order given elsewhere. */
static void watch_warm(struct workers *workers, struct runner_link *runner, uint64_t now)
{
    if (runner->lost || runner->welcomed || runner->warm_server == 0 || now < runner->asked_ns + SHOAL_WARM_ANSWER_NS)
        return;
    warm_failed(workers->warm, runner->warm_server);
    workers_runner_lost(runner);
}

static void on_watchdog(uv_timer_t *timer)
{
    struct workers *workers = timer->data;
    uint64_t now = uv_hrtime();
    bool kept_time = now - workers->last_watch_ns < 3 * WATCHDOG_MS * SHOAL_MS;
    bool any = false;

    workers->last_watch_ns = now;
    for (unsigned i = 0; i < JOBS_HERE_MAX; i++) {
        if (!workers->runners[i].used)
            continue;
        any = true;
        if (kept_time)
            watch_runner(workers, &workers->runners[i]);
        else
            memset(workers->runners[i].still, 0, sizeof(workers->runners[i].still));
        watch_page(workers, &workers->runners[i]);
        watch_steps(workers, &workers->runners[i]);
        watch_stands(workers, &workers->runners[i]);
        if (kept_time)
            watch_ends(workers, &workers->runners[i]);
        if (kept_time)
            watch_warm(workers, &workers->runners[i], now);
        if (kept_time)
            watch_kills(workers, &workers->runners[i], now);
    }
    if (!any)
        (void)uv_timer_stop(&workers->watchdog);
}

void workers_watch_start(struct workers *workers)
{
    workers->last_watch_ns = uv_hrtime();
    if (!uv_is_active((uv_handle_t *)&workers->watchdog))
        (void)uv_timer_start(&workers->watchdog, on_watchdog, WATCHDOG_MS, WATCHDOG_MS);
}
