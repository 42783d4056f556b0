/* This node knows something of a job without asking anybody: from gossip, the archive, its own group and files. */
#include "agent_backend.h"
#include "backend_services.h"

#include "shoal/control_record.h"
#include "shoal/sched_look.h"
#include "shoal/job_facts.h"

#include "list.h"
#include "node/agent/agent_ledger.h"

#include "shoal/banned.h"

bool backend_summary_next(struct agent *agent, uint32_t *cursor, struct shoal_job_summary *summary)
{
    struct shoal_record record;

    while (shoal_records_next(membership_swim(agent->membership), SHOAL_RECORD_JOB_SUMMARY, cursor, &record))
        if (shoal_job_summary_decode(record.payload, summary) == SHOAL_OK)
            return true;
    return false;
}

static bool gossip_summary(struct agent *agent, struct shoal_job_id id, struct shoal_job_summary *summary)
{
    struct shoal_record_key key = { { 0 } };
    struct shoal_record record;

    memcpy(key.bytes, id.bytes, sizeof(id.bytes));
    return shoal_records_find(membership_swim(agent->membership), SHOAL_RECORD_JOB_SUMMARY,
                              (struct shoal_node_id){ { 0 } }, key, &record) &&
           !record.tombstone && shoal_job_summary_decode(record.payload, summary) == SHOAL_OK;
}

bool backend_in_gossip(struct agent *agent, struct shoal_job_id id)
{
    static struct shoal_job_summary summary;

    return gossip_summary(agent, id, &summary);
}

bool backend_summary(struct agent *agent, struct shoal_job_id id, struct shoal_job_summary *summary)
{
    const struct shoal_job_summary *archived;
    struct shoal_node_id source;

    if (gossip_summary(agent, id, summary))
        return true;
    archived = agent_archive_find(agent, id, &source);
    if (archived != NULL)
        *summary = *archived;
    return archived != NULL;
}

/* The row that lists show of it here: its group's live one, or the index's. False: this node has no part in it. */
bool backend_facts_here(struct agent *agent, struct shoal_job_id id, struct shoal_job_facts *facts)
{
    static uint8_t bytes[SHOAL_SCHED_ROW_BYTES_MAX];
    struct list_row row = { .leads = false };
    struct shoal_buf value = { 0 };
    struct shoal_sched_row live;
    bool known = shoal_sched_row_find(agent->sched, id, bytes, &live);

    if (known)
        row.facts = live.facts;
    else
        known = shoal_index_get(agent->index, id, &value) && list_value_decode(shoal_buf_view(&value), &row);
    known = known && row.facts.len > 0 && shoal_job_facts_decode(row.facts, facts) == SHOAL_OK;
    facts->args = facts->data_json = facts->document = (struct shoal_view){ 0 }; /* their bytes go */
    shoal_buf_deinit(&value);
    return known;
}

const char *backend_node_name(struct agent *agent, struct shoal_node_id id, char *name, size_t cap)
{
    struct shoal_member member;

    name[0] = '\0';
    if (!shoal_node_id_is_zero(id) && shoal_swim_member_find(membership_swim(agent->membership), id, &member))
        (void)snprintf(name, cap, "%s", member.name);
    return name;
}

size_t agent_job_nodes(struct agent *agent, struct shoal_job_id id, struct shoal_node_id *nodes, size_t cap,
                       size_t *guardians)
{
    static struct shoal_job_summary summary;
    struct shoal_sched_group_status status;
    struct agent_job *job = agent_job_find(agent, id);
    struct shoal_node_id all[SHOAL_GROUP_NODES_MAX + SHOAL_SCHED_SOURCES_MAX + SHOAL_SUMMARY_HOSTS_MAX + 1];
    size_t all_count = 0;
    size_t count = 0;

    if (shoal_sched_group_find(agent->sched, id, &status))
        for (unsigned i = 0; i < (unsigned)status.voters + status.learners && i < SHOAL_GROUP_NODES_MAX; i++)
            all[all_count++] = status.guardians[i];
    else if (job != NULL)
        for (unsigned i = 0; i < job->guardian_count; i++)
            all[all_count++] = job->guardians[i];
    *guardians = all_count;
    if (agent->membership != NULL && all_count == 0 && !backend_in_gossip(agent, id)) {
        struct shoal_node_id source;

        if (agent_archive_find(agent, id, &source) != NULL)
            all[all_count++] = source;
        all_count += shoal_sched_archive_hosts(agent->sched, id, &all[all_count]);
        *guardians = all_count;
    } else if (agent->membership != NULL && gossip_summary(agent, id, &summary)) {
        all[all_count++] = summary.leader;
        for (unsigned i = 0; i < summary.host_count && i < SHOAL_SUMMARY_HOSTS_MAX; i++)
            all[all_count++] = summary.hosts[i].node;
    }
    for (size_t i = 0; i < all_count; i++) {
        bool known = shoal_node_id_equal(all[i], agent->identity.node) || shoal_node_id_is_zero(all[i]);

        for (size_t j = 0; j < count && !known; j++)
            known = shoal_node_id_equal(nodes[j], all[i]);
        if (known && i < *guardians)
            continue;
        if (!known && count < cap)
            nodes[count++] = all[i];
    }
    /* Guardians come first; this node and repeats are left out, so count again how many of them stand. */
    {
        size_t standing = 0;

        for (size_t j = 0; j < count; j++)
            for (size_t i = 0; i < *guardians; i++)
                if (shoal_node_id_equal(nodes[j], all[i])) {
                    standing++;
                    break;
                }
        *guardians = standing;
    }
    return count;
}

/* ---- a job as the API shows it ---- */

static void info_texts(struct backend_info *out)
{
    out->info.creator = out->creator;
    out->info.framework = out->framework;
    out->info.app_name = out->app_name;
    out->info.args = out->args;
    out->info.data_json = out->data;
    out->info.work_dir = out->work_dir;
    out->info.result_dir = out->result_dir;
    out->info.leader_name = out->leader;
    out->info.driver_node = out->driver;
    out->info.service = out->service;
    out->info.pending = out->pending;
    out->info.detail = out->detail;
}

static void paths_of(struct agent *agent, struct backend_info *out, const struct shoal_job_facts *facts)
{
    struct agent_job *job = agent_job_find(agent, facts->id);
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    shoal_job_id_text(facts->id, text);
    (void)snprintf(out->result_dir, sizeof(out->result_dir), "%s/results/%s/batchworkdir/%s", agent->settings.data,
                   out->creator, text);
    if (job != NULL && job->work_dir[0] != '\0')
        (void)snprintf(out->work_dir, sizeof(out->work_dir), "%s", job->work_dir);
    else
        (void)snprintf(out->work_dir, sizeof(out->work_dir), "%.380s/_submitted_code%s%.127s", out->result_dir,
                       facts->work[0] == '\0' ? "" : "/", facts->work);
}

/* The longest of the last pauses that its hosts tell of. */
static void pause_of(struct agent *agent, struct backend_info *out, struct shoal_job_id id)
{
    struct shoal_member member;
    uint32_t cursor = 0;
    uint32_t load;

    while (!out->info.ended && shoal_swim_member_next(membership_swim(agent->membership), &cursor, &member))
        (void)agent_load_of(agent, member.id, id, &load, &out->info.join_pause_us);
}

static void progress_of(struct agent *agent, struct backend_info *out, struct shoal_job_id id)
{
    struct ledger_progress progress;

    if (!out->info.elastic || !agent_ledger_look(agent, id, &progress) || progress.step == 0)
        return;
    /* The ledger counts train steps alone, but waits for rank 0's agent; what goes beyond it is taken as such. */
    out->info.steps = progress.train_steps + (out->info.steps > progress.step ? out->info.steps - progress.step : 0);
    out->info.data_epoch = progress.data_epoch;
    if (out->info.rate_milli > 0 && progress.rate_milli > 0) /* its leader knows whether it has ended, or stands */
        out->info.rate_milli = progress.rate_milli;
    if (progress.has_metrics) {
        out->info.has_metrics = true;
        out->info.loss = progress.loss;
        out->info.accuracy = progress.metric;
    }
}

void backend_info_of_facts(struct agent *agent, const struct shoal_job_facts *facts, struct backend_info *out)
{
    const struct shoal_mesh_service *service = backend_service_of(agent, facts->id);
    struct shoal_job_info *info = &out->info;

    memset(out, 0, sizeof(*out));
    (void)snprintf(out->service, sizeof(out->service), "%s", service == NULL ? "" : service->name);
    info->id = facts->id;
    (void)snprintf(out->creator, sizeof(out->creator), "%s", facts->creator);
    (void)snprintf(out->framework, sizeof(out->framework), "%s", facts->framework);
    (void)snprintf(out->app_name, sizeof(out->app_name), "%s", facts->app_name);
    backend_name_hosts(agent, facts->pending, out->pending, sizeof(out->pending));
    (void)snprintf(out->detail, sizeof(out->detail), "%s", facts->reason[0] != '\0' ? facts->reason : out->pending);
    if (facts->args.len > 0 && facts->args.len < sizeof(out->args))
        memcpy(out->args, facts->args.bytes, facts->args.len);
    if (facts->data_json.len < sizeof(out->data) && facts->data_json.len > 0)
        memcpy(out->data, facts->data_json.bytes, facts->data_json.len);
    (void)backend_node_name(agent, facts->leader, out->leader, sizeof(out->leader));
    (void)backend_node_name(agent, facts->driver_node, out->driver, sizeof(out->driver));
    info->state = shoal_job_state_name((enum shoal_job_state)facts->state);
    info->elastic = facts->elastic;
    info->ended = shoal_job_state_ended((enum shoal_job_state)facts->state);
    info->workers_min = facts->workers_min;
    info->workers_max = facts->workers_max;
    info->workers_now = facts->workers_now;
    info->priority = facts->priority;
    info->gpu = facts->device == SHOAL_JOB_DEVICE_GPU;
    info->worker_mib = facts->worker_mib;
    info->exit_code = facts->exit_code;
    info->create_ms = facts->create_ms;
    info->start_ms = facts->start_ms;
    info->end_ms = facts->end_ms;
    info->epoch = facts->epoch;
    memcpy(info->transport, facts->transport, sizeof(info->transport));
    info->term = facts->term & UINT32_MAX; /* the rest names the recovery generation */
    info->generation = facts->generation;
    info->steps = facts->step;
    info->data_epoch = facts->data_epoch;
    info->rate_milli = facts->rate_milli;
    info->join_pause_us = facts->join_pause_us;
    for (unsigned i = 0; i < SHOAL_TASK_STATE_COUNT; i++)
        info->tasks_all += facts->task_counts[i];
    info->tasks_done = facts->task_counts[SHOAL_TASK_DONE];
    info->tasks_failed = facts->task_counts[SHOAL_TASK_FAILED];
    info->tasks_running = facts->task_counts[SHOAL_TASK_RUNNING];
    info->has_metrics = facts->has_metrics;
    info->loss = (double)facts->loss_micro / 1e6;
    info->accuracy = (double)facts->metric_micro / 1e6;
    paths_of(agent, out, facts);
    pause_of(agent, out, facts->id);
    progress_of(agent, out, facts->id);
    info_texts(out);
}
