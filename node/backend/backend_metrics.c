/* An agent's counters of itself, as OpenMetrics: its rooms' counters, the turns of its loop, its slots, the jobs here.
 *
 * Labels are bounded: a slot of this host (at most SHOAL_SLOTS_MAX), a job of which something runs here (SHOAL_HOST_JOBS_MAX).
 * A job that is not here any more has no sample any more. */
#include "agent_backend.h"

#include "shoal/metric_text.h"
#include "shoal/sched_look.h"
#include "shoal/slots.h"

#include "node/agent/agent_files.h"
#include "node/agent/agent_ledger.h"

#include "shoal/banned.h"

static enum shoal_err put_counters(struct agent *agent, struct shoal_buf *text)
{
    struct shoal_swim_stats swim;
    struct shoal_sched_stats sched;
    const struct shoal_link_stats *link = shoal_link_stats(agent->link);
    const struct shoal_store_stats *store = shoal_store_stats(agent->store);
    const struct shoal_datagram_stats *datagram = shoal_datagram_stats(agent->datagram);
    enum shoal_err err = SHOAL_OK;

    shoal_swim_stats(membership_swim(agent->membership), &swim);
    shoal_sched_stats(agent->sched, &sched);
    const struct {
        const char *name, *help;
        uint64_t value;
    } rows[] = {
        { "shoal_members_live", "nodes that gossip holds for alive, this one among them", swim.live },
        { "shoal_members_suspect", "nodes that have not answered, and are given a last chance", swim.suspects },
        { "shoal_gossip_records", "records that gossip spreads: of hosts, and of jobs", swim.records },
        { "shoal_gossip_datagrams_sent_total", "gossip's datagrams", swim.sent_datagrams },
        { "shoal_gossip_deaths_total", "nodes that were found dead here", swim.deaths },
        { "shoal_datagrams_unopened_total", "datagrams that no known key opens: of strangers, or of another mesh",
          datagram->drop_unopened },
        { "shoal_datagrams_replayed_total", "datagrams that came twice", datagram->drop_replayed },
        { "shoal_links_up", "links to other agents", link->peers_up },
        { "shoal_link_refused_total",
          "handshakes that were refused: another mesh, another version, a host that was removed", link->drop_refused },
        { "shoal_link_malformed_total", "links that were closed for what came over them", link->drop_malformed },
        { "shoal_groups", "groups whose replica this node holds in memory", sched.groups },
        { "shoal_groups_led", "of them, those that it leads", sched.groups_led },
        { "shoal_groups_parked", "groups of waiting jobs that lie on disk", sched.parked },
        { "shoal_group_parkings_total", "how often one went there", sched.parks },
        { "shoal_groups_loaded_total", "how often one came back", sched.loads },
        { "shoal_jobs_pending_shown", "waiting jobs led here that may be placed", sched.pending_shown },
        { "shoal_jobs_pending_held", "waiting jobs led here that are in memory", sched.pending_held },
        { "shoal_terms_led_total", "elections that this node has won", sched.terms_led },
        { "shoal_requests_total", "requests to the control plane", sched.requests },
        { "shoal_requests_refused_total", "of them, those that found no room", sched.requests_refused_full },
        { "shoal_foundings_total", "groups that were founded through this node", sched.foundings },
        { "shoal_groups_archived_total", "ended jobs that went into the archive here", sched.archived },
        { "shoal_archive_records", "records of the archive on this node", shoal_sched_archive_count(agent->sched) },
        { "shoal_archive_loads_total", "how often one was read from disk", sched.archive_loads },
        { "shoal_digest_mismatches_total", "replicas that differed and were made anew: should stay 0",
          sched.digest_mismatches },
        { "shoal_store_commits_total", "transactions of the durable store", store->commits },
        { "shoal_store_bytes_used", "what is used of store-map; above 55 % no new jobs are taken", store->used_bytes },
        { "shoal_disk_free_bytes",
          "room on the fullest disk below the data folder; under 64 MiB no job that brings files starts here", agent->room_bytes },
        { "shoal_files_refused_total", "writes of files that found too much waiting for the disk: should stay 0",
          agent_files_refused(agent) },
        { "shoal_jobs_here", "jobs of which something is on this host", agent_jobs_count(agent) },
        { "shoal_loop_turns_late_total", "turns longer than 20 ms", agent->turns_late },
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && err == SHOAL_OK; i++)
        err = shoal_metric_value(text, rows[i].name, rows[i].help, rows[i].value);
    return err;
}

static enum shoal_err put_times(struct agent *agent, struct shoal_buf *text)
{
    const struct {
        const char *name, *help;
        uint64_t value_ns;
    } rows[] = {
        { "shoal_store_flush_last_seconds", "how long the disk took for the last transaction",
          shoal_store_stats(agent->store)->flush_last_ns },
        { "shoal_loop_lag_seconds", "how late the loop's timer was, the worst of the last second", agent->loop_lag_ns },
        { "shoal_loop_turn_longest_seconds", "the longest turn of the loop since the start", agent->turn_longest_ns },
        { "shoal_loop_turn_cpu_longest_seconds",
          "the most that the loop's thread has computed in a turn; a turn also waits for its core",
          agent->turn_cpu_longest_ns },
    };
    enum shoal_err err = SHOAL_OK;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && err == SHOAL_OK; i++)
        err = shoal_metric_seconds(text, rows[i].name, rows[i].help, rows[i].value_ns);
    return err;
}

/* The job whose worker is on each slot of this host. */
static enum shoal_err put_slots(struct agent *agent, struct shoal_buf *text)
{
    const char *jobs[SHOAL_SLOTS_MAX] = { NULL };
    enum shoal_err err =
        shoal_metric_family(text, "shoal_slot_busy", "gauge", "1: a worker of the job is on the slot; 0: none is");

    for (unsigned i = 0; i < AGENT_JOBS_MAX; i++)
        for (unsigned j = 0; agent->jobs[i] != NULL && j < SHOAL_RUNNER_WORKERS_MAX; j++) {
            const struct agent_run *run = &agent->jobs[i]->runs[j];

            if (run->used && run->slot < SHOAL_SLOTS_MAX)
                jobs[run->slot] = agent->jobs[i]->text;
        }
    for (unsigned slot = 0; slot < agent_slots_all(&agent->settings) && slot < SHOAL_SLOTS_MAX && err == SHOAL_OK; slot++)
        err = shoal_metric_put(text, "shoal_slot_busy{slot=\"%u\",job=\"%s\"} %d\n", slot,
                               jobs[slot] == NULL ? "" : jobs[slot], jobs[slot] != NULL);
    return err;
}

/* Cards that services may share: their memory, and what is leased of it. */
static enum shoal_err put_cards(struct agent *agent, struct shoal_buf *text)
{
    struct shoal_slots_record record;
    enum shoal_err err = SHOAL_OK;

    if (agent->settings.shares == 0)
        return SHOAL_OK;
    shoal_slots_record(shoal_sched_slots(agent->sched), &record);
    for (unsigned leased = 0; leased < 2 && err == SHOAL_OK; leased++) {
        const char *name = leased ? "shoal_gpu_memory_leased_bytes" : "shoal_gpu_memory_bytes";

        err = shoal_metric_family(text, name, "gauge",
                                  leased ? "of the card's memory, what jobs and kernels have leased; all, where one has it whole"
                                         : "the card's memory");
        for (uint32_t i = 0; i < record.cards.count && err == SHOAL_OK; i++) {
            const struct shoal_card *card = &record.cards.list[i];
            uint64_t mib = leased ? card->mib - card->room : card->mib;

            err = shoal_metric_put(text, "%s{gpu=\"%s\"} %llu\n", name, agent->settings.devices.list[i].uuid,
                                   (unsigned long long)(mib * SHOAL_MIB));
        }
    }
    return err;
}

static unsigned workers_of(const struct agent_job *job)
{
    unsigned count = 0;

    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++)
        count += job->runs[i].used && job->runs[i].slot != SHOAL_SLOT_NONE;
    return count;
}

enum of_job { OF_WORKERS, OF_STEPS, OF_RATE, OF_LOSS, OF_JOB };

static enum shoal_err put_of_job(const struct agent_job *job, enum of_job what, const char *name,
                                 struct shoal_buf *text)
{
    struct ledger_progress progress = { .step = 0 };
    bool known = what == OF_WORKERS || agent_ledger_progress(job, &progress);

    if (!known || (what == OF_LOSS && !progress.has_metrics))
        return SHOAL_OK;
    return shoal_metric_put(text, "%s{job=\"%s\"} %.9g\n", name, job->text,
                            what == OF_WORKERS ? (double)workers_of(job)
                            : what == OF_STEPS ? (double)progress.train_steps
                            : what == OF_RATE  ? progress.rate_milli / 1000.0
                                               : progress.loss);
}

static enum shoal_err put_jobs(struct agent *agent, struct shoal_buf *text)
{
    static const struct {
        const char *name, *help;
    } families[OF_JOB] = {
        [OF_WORKERS] = { "shoal_job_workers", "workers of the job on slots of this host" },
        [OF_STEPS] = { "shoal_job_steps", "train steps of the job that are committed, as this host has heard" },
        [OF_RATE] = { "shoal_job_steps_per_second", "train steps of the job in a second, over about two" },
        [OF_LOSS] = { "shoal_job_loss", "mean loss of the last train step" },
    };
    enum shoal_err err = SHOAL_OK;

    for (unsigned what = 0; what < OF_JOB && err == SHOAL_OK; what++) {
        err = shoal_metric_family(text, families[what].name, "gauge", families[what].help);
        for (unsigned i = 0; i < AGENT_JOBS_MAX && err == SHOAL_OK; i++)
            if (agent->jobs[i] != NULL && agent->jobs[i]->opened)
                err = put_of_job(agent->jobs[i], (enum of_job)what, families[what].name, text);
    }
    return err;
}

enum shoal_err backend_metrics(void *ctx, struct shoal_buf *text)
{
    struct agent *agent = ctx;
    enum shoal_err err = put_counters(agent, text);

    if (err == SHOAL_OK)
        err = put_times(agent, text);
    if (err == SHOAL_OK)
        err = shoal_metric_histogram(text, "shoal_loop_turn_seconds", "turns of the loop, without what it waited for",
                                     &agent->turns);
    if (err == SHOAL_OK)
        err = put_slots(agent, text);
    if (err == SHOAL_OK)
        err = put_cards(agent, text);
    if (err == SHOAL_OK)
        err = put_jobs(agent, text);
    return err == SHOAL_OK ? backend_service_metrics(agent, text) : err; /* the end mark comes behind the server's own */
}
