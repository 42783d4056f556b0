/* The table behind the HTTP API (backend.h): users and tokens from this node's copy of the mesh, jobs from the control
 * plane. Lists are in backend_list.c, logs and results in agent_read.c; whose a job is, backend_verbs.c asks. */
#include "agent_backend.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "shoal/control_record.h"
#include "shoal/mesh.h"
#include "shoal/slots.h"

#include "node/agent/agent_ledger.h"

#include "shoal/banned.h"

#define REQUEST_MS 5000
#define SUBMIT_MS 30000

/* ---- ids ---- */

static bool summary_next(struct agent *agent, uint32_t *cursor, struct shoal_job_summary *summary)
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

/* ---- what is known of a job ---- */

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
    out->info.pending = out->pending;
    out->info.detail = out->detail;
}

static void paths_of(struct agent *agent, struct backend_info *out, struct shoal_job_id id)
{
    struct agent_job *job = agent_job_find(agent, id);
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    shoal_job_id_text(id, text);
    (void)snprintf(out->result_dir, sizeof(out->result_dir), "%s/results/%s/batchworkdir/%s", agent->settings.data,
                   out->creator, text);
    if (job != NULL && job->work_dir[0] != '\0')
        (void)snprintf(out->work_dir, sizeof(out->work_dir), "%s", job->work_dir);
    else
        (void)snprintf(out->work_dir, sizeof(out->work_dir), "%.500s/_submitted_code", out->result_dir);
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
    struct agent_job *job = agent_job_find(agent, id);
    struct ledger_progress progress;

    if (job == NULL || !out->info.elastic || !agent_ledger_progress(agent, job, &progress) || progress.step == 0)
        return;
    /* The ledger counts train steps alone, but waits for rank 0's agent; what goes beyond it is taken as such. */
    out->info.steps = progress.train_steps + (out->info.steps > progress.step ? out->info.steps - progress.step : 0);
    out->info.data_epoch = progress.data_epoch;
    if (!out->info.ended)
        out->info.rate_milli = progress.rate_milli;
    if (progress.has_metrics) {
        out->info.has_metrics = true;
        out->info.loss = progress.loss;
        out->info.accuracy = progress.metric;
    }
}

void backend_info_of_facts(struct agent *agent, const struct shoal_job_facts *facts, struct backend_info *out)
{
    struct shoal_job_info *info = &out->info;

    memset(out, 0, sizeof(*out));
    info->id = facts->id;
    (void)snprintf(out->creator, sizeof(out->creator), "%s", facts->creator);
    (void)snprintf(out->framework, sizeof(out->framework), "%s", facts->framework);
    (void)snprintf(out->app_name, sizeof(out->app_name), "%s", facts->app_name);
    (void)snprintf(out->pending, sizeof(out->pending), "%s", facts->pending);
    (void)snprintf(out->detail, sizeof(out->detail), "%s", facts->reason[0] != '\0' ? facts->reason : facts->pending);
    if (facts->args.len < sizeof(out->args))
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
    info->exit_code = facts->exit_code;
    info->create_ms = facts->create_ms;
    info->start_ms = facts->start_ms;
    info->end_ms = facts->end_ms;
    info->epoch = facts->epoch;
    info->term = facts->term & UINT32_MAX; /* the rest names the recovery generation */
    info->generation = facts->generation;
    info->steps = facts->step;
    info->data_epoch = facts->data_epoch;
    info->rate_milli = facts->rate_milli;
    info->join_pause_us = facts->join_pause_us;
    info->has_metrics = facts->has_metrics;
    info->loss = (double)facts->loss_micro / 1e6;
    info->accuracy = (double)facts->metric_micro / 1e6;
    paths_of(agent, out, facts->id);
    pause_of(agent, out, facts->id);
    progress_of(agent, out, facts->id);
    info_texts(out);
}

/* ---- calls that wait ---- */

/* Any callback: cast back to its own type before it is called. */
typedef void any_fn(void);

struct waiting {
    struct agent *agent;
    any_fn *done;
    void *arg;
    struct shoal_job_id id;
    struct shoal_sched_request request;
    struct shoal_buf spec;
    struct shoal_buf ticket;
    int fd;
};

static struct waiting *waiting_create(struct agent *agent, any_fn *done, void *arg)
{
    struct waiting *w = calloc(1, sizeof(*w));

    SHOAL_ASSERT(w != NULL);
    w->agent = agent;
    w->done = done;
    w->arg = arg;
    w->fd = -1;
    return w;
}

static void waiting_free(struct waiting *w)
{
    shoal_buf_deinit(&w->spec);
    shoal_buf_deinit(&w->ticket);
    if (w->fd >= 0)
        (void)close(w->fd);
    free(w);
}

static struct shoal_msg reply_msg(const struct shoal_sched_action *reply)
{
    struct shoal_msg msg;

    (void)snprintf(msg.text, sizeof(msg.text), "%s", reply->u.reply.text);
    return msg;
}

/* ---- get ---- */

static void on_got(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct waiting *w = arg;
    shoal_backend_job_fn *done = (shoal_backend_job_fn *)w->done;
    struct shoal_msg msg = reply_msg(reply);
    struct shoal_job_facts *facts = calloc(1, sizeof(*facts));
    struct backend_info *info = calloc(1, sizeof(*info));

    SHOAL_ASSERT(facts != NULL && info != NULL);
    if (err == SHOAL_OK)
        err = shoal_job_facts_decode(reply->u.reply.bytes, facts);
    if (err == SHOAL_OK)
        backend_info_of_facts(w->agent, facts, info);
    done(w->arg, err, &msg, err == SHOAL_OK ? &info->info : NULL);
    free(info);
    free(facts);
    waiting_free(w);
}

void backend_get_id(struct agent *agent, struct shoal_job_id id, bool linearizable, shoal_backend_job_fn *done,
                    void *arg)
{
    struct shoal_sched_request request = {
        .kind = SHOAL_SCHED_GET, .job = id, .linearizable = linearizable, .deadline_ms = REQUEST_MS
    };

    agent_request(agent, &request, on_got, waiting_create(agent, (any_fn *)done, arg));
}

/* ---- submit ---- */

static bool put_texts(struct shoal_buf *buf, const struct shoal_texts *texts)
{
    for (size_t i = 0; i < texts->count; i++)
        if (shoal_buf_append(buf, texts->items[i], strlen(texts->items[i]) + 1) != SHOAL_OK)
            return false;
    return true;
}

static struct shoal_job_texts texts_in(const struct shoal_buf *buf, size_t *at, const struct shoal_texts *texts)
{
    struct shoal_job_texts list = { .count = (uint32_t)texts->count };
    size_t from = *at;

    for (size_t i = 0; i < texts->count; i++)
        *at += strlen(texts->items[i]) + 1;
    if (*at > from) /* no list has bytes: there is no memory to point into */
        list.bytes = shoal_view_of(buf->bytes + from, *at - from);
    return list;
}

static enum shoal_err copy_text(char *to, size_t cap, const char *from, const char *what, struct shoal_msg *msg)
{
    if (strlen(from) >= cap)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "%s is longer than %zu bytes", what, cap - 1);
    memcpy(to, from, strlen(from) + 1);
    return SHOAL_OK;
}

/* The texts of a specification that have a place of their own in it. */
static enum shoal_err copy_texts(struct shoal_job_spec *spec, const struct shoal_submit *submit, struct shoal_msg *msg)
{
    const struct shoal_job_options *o = submit->options;
    const struct {
        char *to;
        size_t cap;
        const char *text;
        const char *what;
    } texts[] = {
        { spec->framework, sizeof(spec->framework), o->framework, "--exec-start" },
        { spec->creator, sizeof(spec->creator), submit->caller->name, "the user's name" },
        { spec->submit_user, sizeof(spec->submit_user), o->submit_user, "--submit-user" },
        { spec->app_name, sizeof(spec->app_name), o->app_name, "--appName" },
        { spec->main_file, sizeof(spec->main_file), o->main, "--model-main" },
        { spec->model_dir, sizeof(spec->model_dir), o->model_dir, "--model-dir" },
        { spec->data_path, sizeof(spec->data_path), o->data_path, "data_path" },
        { spec->debug_level, sizeof(spec->debug_level), o->debug_level, "--debug-level" },
    };
    enum shoal_err err = SHOAL_OK;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]) && err == SHOAL_OK; i++)
        err = copy_text(texts[i].to, texts[i].cap, texts[i].text, texts[i].what, msg);
    return err;
}

/* The lists of a specification, one behind the other in `lists`, which they point into. */
static enum shoal_err copy_lists(struct shoal_job_spec *spec, const struct shoal_job_options *o,
                                 struct shoal_buf *lists, struct shoal_msg *msg)
{
    size_t at = 0;

    if (!put_texts(lists, &o->script_argv) || !put_texts(lists, &o->env) || !put_texts(lists, &o->attrs) ||
        !put_texts(lists, &o->labels) || !put_texts(lists, &o->notes))
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for the lists of a job; try again later");
    spec->argv = texts_in(lists, &at, &o->script_argv);
    spec->env = texts_in(lists, &at, &o->env);
    spec->attrs = texts_in(lists, &at, &o->attrs);
    spec->labels = texts_in(lists, &at, &o->labels);
    spec->notes = texts_in(lists, &at, &o->notes);
    return SHOAL_OK;
}

static void copy_numbers(struct shoal_job_spec *spec, const struct shoal_submit *submit, struct shoal_hash bundle)
{
    const struct shoal_job_options *o = submit->options;

    spec->elastic = o->elastic;
    spec->user_cmd = o->user_cmd;
    spec->uid = submit->caller->uid;
    spec->workers_min = o->workers_min == 0 ? 1 : o->workers_min;
    spec->workers_max = o->workers_max == 0 ? 1 : o->workers_max;
    spec->devices_per_worker = o->devices_per_worker == 0 ? 1 : o->devices_per_worker;
    spec->device = o->device == SHOAL_DEVICE_CPU   ? SHOAL_JOB_DEVICE_CPU
                   : o->device == SHOAL_DEVICE_GPU ? SHOAL_JOB_DEVICE_GPU
                                                   : SHOAL_JOB_DEVICE_AUTO;
    spec->priority = o->priority;
    spec->pending_timeout_ms = (uint64_t)o->pending_timeout_s * 1000;
    spec->worker_memory_bytes = o->worker_memory_bytes;
    spec->driver_memory_bytes = o->driver_memory_bytes;
    spec->submit_ms = agent_wall_ms();
    spec->bundle_hash = bundle;
    spec->bundle_bytes = shoal_hash_is_zero(bundle) ? 0 : submit->bundle_bytes;
}

static enum shoal_err spec_of(const struct shoal_submit *submit, struct shoal_hash bundle, struct shoal_buf *bytes,
                              struct shoal_msg *msg)
{
    const struct shoal_job_options *o = submit->options;
    struct shoal_job_spec *spec = calloc(1, sizeof(*spec));
    struct shoal_buf lists = { 0 };
    size_t len = 0;
    enum shoal_err err;

    SHOAL_ASSERT(spec != NULL);
    copy_numbers(spec, submit, bundle);
    spec->args = shoal_view_text(submit->args);
    spec->data_json = shoal_view_text(submit->data_json);
    spec->datastore_meta = shoal_view_text(o->datastore_meta);
    err = copy_texts(spec, submit, msg);
    if (err == SHOAL_OK)
        err = copy_lists(spec, o, &lists, msg);
    if (err == SHOAL_OK)
        err = shoal_job_spec_check(spec, msg);
    if (err == SHOAL_OK)
        err = shoal_buf_reserve(bytes, SHOAL_JOB_SPEC_BYTES_MAX);
    if (err == SHOAL_OK) {
        err = shoal_job_spec_encode(spec, bytes->bytes, bytes->cap, &len);
        bytes->len = err == SHOAL_OK ? len : 0;
        if (err != SHOAL_OK)
            (void)shoal_fail(msg, err,
                             "arguments and environment exceed %u bytes; put them into a file of the model directory",
                             (unsigned)SHOAL_JOB_SPEC_BYTES_MAX);
    }
    shoal_buf_deinit(&lists);
    free(spec);
    return err;
}

static void submit_end(struct waiting *w, enum shoal_err err, const struct shoal_msg *msg,
                       const struct shoal_sched_action *reply)
{
    shoal_backend_submit_fn *done = (shoal_backend_submit_fn *)w->done;
    struct shoal_job_spec *spec = calloc(1, sizeof(*spec));
    struct shoal_job_facts *facts = calloc(1, sizeof(*facts));
    struct backend_info *info = calloc(1, sizeof(*info));

    SHOAL_ASSERT(spec != NULL && facts != NULL && info != NULL);
    if (err == SHOAL_OK && shoal_job_spec_decode(shoal_buf_view(&w->spec), spec) == SHOAL_OK) {
        facts->id = reply->u.reply.job;
        facts->state = SHOAL_JOB_SUBMITTED;
        facts->elastic = spec->elastic;
        memcpy(facts->framework, spec->framework, sizeof(facts->framework));
        memcpy(facts->creator, spec->creator, sizeof(facts->creator));
        memcpy(facts->app_name, spec->app_name, sizeof(facts->app_name));
        facts->workers_min = spec->workers_min;
        facts->workers_max = spec->workers_max;
        facts->priority = spec->priority;
        facts->exit_code = -1;
        facts->create_ms = spec->submit_ms;
        facts->args = spec->args;
        facts->data_json = spec->data_json;
        facts->leader = w->agent->identity.node;
        backend_info_of_facts(w->agent, facts, info);
    }
    done(w->arg, err, msg, err == SHOAL_OK ? &info->info : NULL,
         reply != NULL ? reply->u.reply.ticket : (struct shoal_view){ 0 });
    free(info);
    free(facts);
    free(spec);
    waiting_free(w);
}

static void on_submitted(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct shoal_msg msg = reply_msg(reply);

    submit_end(arg, err, &msg, reply);
}

static void submit_now(struct waiting *w)
{
    w->request.kind = SHOAL_SCHED_SUBMIT;
    w->request.deadline_ms = SUBMIT_MS;
    w->request.spec = shoal_buf_view(&w->spec);
    w->request.ticket = shoal_buf_view(&w->ticket);
    agent_request(w->agent, &w->request, on_submitted, w);
}

static void on_bundle_stored(void *arg, enum shoal_err err, const char *text, struct shoal_hash hash)
{
    struct waiting *w = arg;
    struct shoal_msg msg;
    struct shoal_job_spec *spec = calloc(1, sizeof(*spec));
    uint8_t *again = malloc(SHOAL_JOB_SPEC_BYTES_MAX);
    size_t len = 0;

    SHOAL_ASSERT(spec != NULL && again != NULL);
    (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
    if (err == SHOAL_ERR_UNREACHABLE)
        err = SHOAL_OK; /* the guardians fetch it before they accept the founding */
    if (err == SHOAL_OK)
        err = shoal_job_spec_decode(shoal_buf_view(&w->spec), spec);
    if (err == SHOAL_OK) {
        spec->bundle_hash = hash;
        w->request.bundle_hash = hash;
        err = shoal_job_spec_encode(spec, again, SHOAL_JOB_SPEC_BYTES_MAX, &len);
    }
    free(spec);
    if (err == SHOAL_OK) {
        w->spec.len = 0;
        err = shoal_buf_append(&w->spec, again, len);
    }
    free(again);
    if (err == SHOAL_OK)
        submit_now(w);
    else
        submit_end(w, err, &msg, NULL);
}

static void on_ticket_for_bundle(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct waiting *w = arg;
    struct shoal_msg msg = reply_msg(reply);
    char path[64];

    if (err == SHOAL_OK)
        err = shoal_buf_append(&w->ticket, reply->u.reply.ticket.bytes, reply->u.reply.ticket.len);
    if (err != SHOAL_OK) {
        submit_end(w, err, &msg, reply);
        return;
    }
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", w->fd);
    agent_store_file(w->agent, reply->u.reply.job, path, on_bundle_stored, w);
}

static void backend_submit(void *ctx, const struct shoal_submit *submit, shoal_backend_submit_fn *done, void *arg)
{
    struct agent *agent = ctx;
    struct waiting *w = waiting_create(agent, (any_fn *)done, arg);
    struct shoal_msg msg = { "" };
    bool empty = submit->bundle_bytes <= 16;
    bool inline_bundle = submit->bundle_bytes <= SHOAL_BUNDLE_INLINE_MAX;
    struct shoal_hash name = { { 0 } };
    enum shoal_err err;

    if (!empty)
        name = inline_bundle ? shoal_blob_name(submit->bundle) : submit->bundle_hash;
    err = spec_of(submit, name, &w->spec, &msg);
    if (err == SHOAL_OK && submit->ticket.len > 0)
        err = shoal_buf_append(&w->ticket, submit->ticket.bytes, submit->ticket.len);
    if (err != SHOAL_OK) {
        submit_end(w, err, &msg, NULL);
        return;
    }
    w->request.spec_hash = submit->spec_hash;
    w->request.hosts_wanted = submit->options->workers_max;
    w->request.bundle_hash = name;
    if (empty || inline_bundle) {
        w->request.bundle = empty ? (struct shoal_view){ 0 } : submit->bundle;
        submit_now(w);
        return;
    }
    w->fd = dup(submit->bundle_fd);
    if (w->ticket.len > 0) {
        struct shoal_sched_ticket ticket;
        char path[64];

        if (shoal_sched_ticket_decode(shoal_buf_view(&w->ticket), &ticket) != SHOAL_OK) {
            (void)shoal_fail(&msg, SHOAL_ERR_INVALID,
                             "the ticket does not decode; take a new one from POST /v1/tickets");
            submit_end(w, SHOAL_ERR_INVALID, &msg, NULL);
            return;
        }
        (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", w->fd);
        agent_store_file(agent, ticket.job, path, on_bundle_stored, w);
    } else {
        struct shoal_sched_request request = w->request;

        request.kind = SHOAL_SCHED_TICKET;
        request.spec = shoal_buf_view(&w->spec);
        agent_request(agent, &request, on_ticket_for_bundle, w);
    }
}

static void on_ticket(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct waiting *w = arg;
    shoal_backend_ticket_fn *done = (shoal_backend_ticket_fn *)w->done;
    struct shoal_msg msg = reply_msg(reply);

    done(w->arg, err, &msg, reply->u.reply.job, reply->u.reply.ticket);
    waiting_free(w);
}

static void backend_ticket(void *ctx, const struct shoal_user *caller, const struct shoal_hash *spec_hash,
                           shoal_backend_ticket_fn *done, void *arg)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_TICKET, .spec_hash = *spec_hash };

    (void)caller;
    agent_request(ctx, &request, on_ticket, waiting_create(ctx, (any_fn *)done, arg));
}

/* ---- stop, delete, recover, why ---- */

static void on_done(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct waiting *w = arg;
    shoal_backend_done_fn *done = (shoal_backend_done_fn *)w->done;
    struct shoal_msg msg = reply_msg(reply);

    done(w->arg, err, &msg);
    waiting_free(w);
}

void backend_change_id(struct agent *agent, struct shoal_job_id id, enum shoal_sched_request_kind kind,
                       shoal_backend_done_fn *done, void *arg)
{
    struct shoal_sched_request request = { .kind = kind, .job = id, .deadline_ms = REQUEST_MS };

    agent_request(agent, &request, on_done, waiting_create(agent, (any_fn *)done, arg));
}

static void on_recovered(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct waiting *w = arg;
    shoal_backend_recovery_fn *done = (shoal_backend_recovery_fn *)w->done;
    struct shoal_msg msg = reply_msg(reply);
    struct shoal_sched_recovery told;
    struct shoal_recovery_info info = { .id = reply->u.reply.job };
    char names[SHOAL_GROUP_NODES_MAX + 1][64];
    const char *lost[SHOAL_GROUP_NODES_MAX];

    if (err == SHOAL_OK && shoal_sched_recovery_decode(reply->u.reply.bytes, &told) != SHOAL_OK)
        err = shoal_fail(&msg, SHOAL_ERR_MALFORMED, "the answer of the node that holds the replica does not decode");
    if (err == SHOAL_OK) {
        for (unsigned i = 0; i <= told.lost_count; i++) {
            struct shoal_node_id node = i < told.lost_count ? told.lost[i] : told.node;

            if (backend_node_name(w->agent, node, names[i], sizeof(names[i]))[0] == '\0')
                shoal_hex_text(node.bytes, 4, names[i]);
            if (i < told.lost_count)
                lost[i] = names[i];
        }
        info.done = told.done;
        info.node = names[told.lost_count];
        info.generation = told.generation;
        info.term = told.term & UINT32_MAX;
        info.index = told.index;
        info.commit = told.commit;
        info.guardians = told.guardian_count;
        info.lost_count = told.lost_count;
        info.lost = lost;
    }
    done(w->arg, err, &msg, &info);
    waiting_free(w);
}

void backend_recover_id(struct agent *agent, const struct shoal_user *caller, struct shoal_job_id id, bool confirmed,
                        shoal_backend_recovery_fn *done, void *arg)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_RECOVER, .job = id, .confirmed = confirmed };

    (void)snprintf(request.by, sizeof(request.by), "%s", caller->name);
    agent_request(agent, &request, on_recovered, waiting_create(agent, (any_fn *)done, arg));
}

static void on_why(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct waiting *w = arg;
    shoal_backend_text_fn *done = (shoal_backend_text_fn *)w->done;
    struct shoal_msg msg = reply_msg(reply);
    struct shoal_buf json = { 0 };

    if (err == SHOAL_OK)
        err = backend_why_json(w->id, reply->u.reply.bytes, &json);
    done(w->arg, err, &msg, shoal_buf_view(&json));
    shoal_buf_deinit(&json);
    waiting_free(w);
}

void backend_why_id(struct agent *agent, struct shoal_job_id id, shoal_backend_text_fn *done, void *arg)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_WHY, .job = id, .deadline_ms = REQUEST_MS };
    struct waiting *w = waiting_create(agent, (any_fn *)done, arg);

    w->id = id;
    agent_request(agent, &request, on_why, w);
}

/* ---- users and tokens ---- */

static void user_of(const struct shoal_mesh_user *from, struct shoal_user *user)
{
    *user = (struct shoal_user){ .uid = from->uid, .admin = from->admin, .tokens_from_s = from->tokens_from_s };
    (void)snprintf(user->name, sizeof(user->name), "%s", from->name);
}

static bool backend_user_find(void *ctx, const char *name, struct shoal_user *user)
{
    struct agent *agent = ctx;
    const struct shoal_mesh *mesh = shoal_sched_mesh(agent->sched);
    const struct shoal_mesh_user *found = mesh == NULL ? NULL : shoal_mesh_user_find(mesh, name);

    if (found == NULL || found->disabled)
        return false;
    user_of(found, user);
    return true;
}

struct logon {
    uv_work_t work;
    char password[SHOAL_PASSWORD_BYTES_MAX + 1];
    char hash[SHOAL_PASSWORD_HASH_BYTES];
    struct shoal_user user;
    bool good;
    shoal_backend_user_fn *done;
    void *arg;
};

static void logon_work(uv_work_t *work)
{
    struct logon *l = work->data;

    l->good = shoal_password_verify(shoal_view_text(l->password), l->hash) && l->user.name[0] != '\0';
}

static void logon_done(uv_work_t *work, int status)
{
    struct logon *l = work->data;
    struct shoal_msg msg = { "" };
    enum shoal_err err = SHOAL_OK;

    (void)status;
    if (!l->good)
        err = shoal_fail(&msg, SHOAL_ERR_DENIED, "wrong user name or password");
    l->done(l->arg, err, &msg, l->good ? &l->user : NULL);
    shoal_wipe(l->password, sizeof(l->password));
    free(l);
}

static void backend_logon(void *ctx, const char *user, const char *password, shoal_backend_user_fn *done, void *arg)
{
    struct agent *agent = ctx;
    const struct shoal_mesh *mesh = shoal_sched_mesh(agent->sched);
    const struct shoal_mesh_user *found = mesh == NULL ? NULL : shoal_mesh_user_find(mesh, user);
    struct shoal_msg msg = { "" };
    struct logon *l;

    if (mesh == NULL || strlen(password) > SHOAL_PASSWORD_BYTES_MAX) {
        enum shoal_err err = mesh == NULL
                                 ? shoal_fail(&msg, SHOAL_ERR_UNREACHABLE,
                                              "this node has not got the mesh's users yet; try again in a second")
                                 : shoal_fail(&msg, SHOAL_ERR_DENIED, "wrong user name or password");

        done(arg, err, &msg, NULL);
        return;
    }
    l = calloc(1, sizeof(*l));
    SHOAL_ASSERT(l != NULL);
    l->work.data = l;
    l->done = done;
    l->arg = arg;
    memcpy(l->password, password, strlen(password) + 1);
    /* An unknown user costs the same time as a wrong password. */
    if (found == NULL)
        found = shoal_mesh_user_at(mesh, 0);
    else if (!found->disabled)
        user_of(found, &l->user);
    if (found != NULL)
        memcpy(l->hash, found->password, sizeof(l->hash));
    (void)uv_queue_work(&agent->loop, &l->work, logon_work, logon_done);
}

static void backend_logoff(void *ctx, const uint8_t token_id[SHOAL_TOKEN_ID_BYTES], uint64_t exp_s,
                           shoal_backend_done_fn *done, void *arg)
{
    struct shoal_mesh_command *command = calloc(1, sizeof(*command));
    uint8_t bytes[SHOAL_MESH_COMMAND_BYTES_MAX];
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_MESH_CHANGE, .deadline_ms = REQUEST_MS };
    size_t len;

    SHOAL_ASSERT(command != NULL);
    command->kind = SHOAL_MESH_REVOKE;
    command->now_s = agent_wall_ms() / 1000;
    memcpy(command->revocation.token, token_id, SHOAL_MESH_TOKEN_ID_BYTES);
    command->revocation.exp_s = exp_s;
    if (shoal_mesh_command_encode(command, bytes, sizeof(bytes), &len) == SHOAL_OK)
        request.command = shoal_view_of(bytes, len);
    free(command);
    agent_request(ctx, &request, on_done, waiting_create(ctx, (any_fn *)done, arg));
}

static void backend_token_keys(void *ctx, struct shoal_token_keys *keys)
{
    struct agent *agent = ctx;
    const struct shoal_mesh *mesh = shoal_sched_mesh(agent->sched);

    keys->count = mesh == NULL ? 0 : shoal_mesh_token_keys(mesh, keys->keys);
}

static bool backend_token_revoked(void *ctx, const uint8_t token_id[SHOAL_TOKEN_ID_BYTES])
{
    struct agent *agent = ctx;
    const struct shoal_mesh *mesh = shoal_sched_mesh(agent->sched);

    return mesh != NULL && shoal_mesh_token_revoked(mesh, token_id);
}

static const struct shoal_framework *backend_frameworks(void *ctx, size_t *count)
{
    (void)ctx;
    return shoal_frameworks_builtin(count);
}

/* ---- the mesh ---- */

/* What the host says of its slots; all zero: nothing yet. */
static struct shoal_slots_record slots_of(struct agent *agent, struct shoal_node_id node)
{
    struct shoal_slots_record slots = { 0 };
    struct shoal_record record;

    if (!shoal_records_find(membership_swim(agent->membership), SHOAL_RECORD_NODE_SLOTS, node,
                            (struct shoal_record_key){ { 0 } }, &record) ||
        shoal_slots_record_decode(record.payload, &slots) != SHOAL_OK)
        slots = (struct shoal_slots_record){ 0 };
    return slots;
}

/* All but jobs_led. */
static void node_of(struct agent *agent, const struct shoal_member *member, struct shoal_node_info *info)
{
    static const char *const states[] = { "unknown", "alive", "suspect", "dead", "left" };
    struct shoal_slots_record slots = slots_of(agent, member->id);
    struct shoal_facts_record facts;
    struct shoal_record record;
    uint32_t pause = 0;

    *info = (struct shoal_node_info){ .id = member->id, .incarnation = member->incarnation };
    (void)snprintf(info->name, sizeof(info->name), "%s", member->name);
    shoal_address_text(member->address, info->address);
    info->self = shoal_node_id_equal(member->id, agent->identity.node);
    (void)snprintf(info->state, sizeof(info->state), "%s",
                   member->state < SHOAL_MEMBER_STATES ? states[member->state] : "");
    info->age_ms = (agent_now_ns() - member->since_ns) / SHOAL_MS;
    info->slots_total = slots.slots;
    info->slots_free = (unsigned)__builtin_popcountll(slots.free);
    info->gpus = slots.device == SHOAL_JOB_DEVICE_GPU ? slots.slots : 0;
    (void)agent_load_of(agent, member->id, (struct shoal_job_id){ { 0 } }, &info->load_milli, &pause);
    if (shoal_records_find(membership_swim(agent->membership), SHOAL_RECORD_NODE_FACTS, member->id,
                           (struct shoal_record_key){ { 0 } }, &record) &&
        shoal_facts_record_decode(record.payload, &facts) == SHOAL_OK)
        memcpy(info->api_url, facts.api_url, sizeof(info->api_url));
}

/* One walk over the jobs for all nodes. */
static void count_led(struct agent *agent, struct shoal_node_info *nodes, size_t count)
{
    static struct shoal_job_summary summary;
    uint32_t cursor = 0;

    while (summary_next(agent, &cursor, &summary)) {
        size_t i = 0;

        if (shoal_job_state_ended((enum shoal_job_state)summary.state))
            continue;
        while (i < count && !shoal_node_id_equal(summary.leader, nodes[i].id))
            i++;
        if (i < count)
            nodes[i].jobs_led++;
    }
}

static size_t backend_nodes(void *ctx, struct shoal_node_info *nodes, size_t max)
{
    struct agent *agent = ctx;
    struct shoal_member member;
    uint32_t cursor = 0;
    size_t count = 0;

    while (shoal_swim_member_next(membership_swim(agent->membership), &cursor, &member)) {
        if (count < max)
            node_of(agent, &member, &nodes[count]);
        count++;
    }
    if (max > 0)
        count_led(agent, nodes, count < max ? count : max);
    return count;
}

/* Every job that is told of asks for this: no walk over jobs in here. */
static void backend_status(void *ctx, struct shoal_mesh_status *status)
{
    struct agent *agent = ctx;
    struct shoal_member member;
    uint32_t cursor = 0;

    *status = (struct shoal_mesh_status){ .node_id = agent->identity.node };
    (void)snprintf(status->version, sizeof(status->version), "%s", SHOAL_VERSION);
    (void)snprintf(status->node_name, sizeof(status->node_name), "%s", agent->settings.name);
    (void)snprintf(status->mesh_name, sizeof(status->mesh_name), "%s", agent->identity.mesh_name);
    (void)snprintf(status->api_url, sizeof(status->api_url), "%s://%.60s:%u",
                   agent->settings.api_plain ? "http" : "https", agent->settings.api_host,
                   shoal_http_port(agent->http));
    status->mesh_writable = shoal_sched_mesh_writable(agent->sched);
    while (shoal_swim_member_next(membership_swim(agent->membership), &cursor, &member)) {
        status->members_known++;
        if (member.state == SHOAL_MEMBER_ALIVE || member.state == SHOAL_MEMBER_SUSPECT)
            status->members_alive++;
    }
}

void agent_backend(struct agent *agent, struct shoal_backend *backend)
{
    *backend = (struct shoal_backend){ .ctx = agent,
                                       .submit = backend_submit,
                                       .ticket_new = backend_ticket,
                                       .get = backend_get,
                                       .list = backend_list,
                                       .stop = backend_stop,
                                       .del = backend_del,
                                       .recover = backend_recover,
                                       .delete_all = backend_delete_all,
                                       .log_read = backend_log_read,
                                       .result_open = backend_result_open,
                                       .result_read = backend_result_read,
                                       .result_close = backend_result_close,
                                       .ledger = backend_ledger,
                                       .why = backend_why,
                                       .logon = backend_logon,
                                       .logoff = backend_logoff,
                                       .user_find = backend_user_find,
                                       .token_keys = backend_token_keys,
                                       .token_revoked = backend_token_revoked,
                                       .frameworks = backend_frameworks,
                                       .nodes = backend_nodes,
                                       .status = backend_status,
                                       .metrics = backend_metrics,
                                       .debug = backend_debug };
    agent_read_create(agent);
}
