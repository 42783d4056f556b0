/* A submit: the specification made of what the API has read, the bundle into the blob store, then the founding. */
#include "shoal/sched_ticket.h"
#include "shoal/job_facts.h"
#include "agent_backend.h"

#include <fcntl.h>
#include <unistd.h>

#include "shoal/banned.h"

#define SUBMIT_MS 30000

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

/* Whoever guards or runs it reads its entries and epochs: a host of the version before takes none of more than 64 workers. */
static enum shoal_err check_hosts(struct agent *agent, const struct shoal_job_options *o, struct shoal_msg *msg)
{
    struct shoal_node_id node;
    char name[64];

    if (!shoal_sched_refuses_workers(agent->sched, o->workers_max, &node))
        return SHOAL_OK;
    return shoal_fail(msg, SHOAL_ERR_UNSUPPORTED,
                      "%u workers: host %s runs an agent of a version that takes at most %d of one job; exchange it first, or "
                      "ask for at most %d",
                      o->workers_max, backend_node_name(agent, node, name, sizeof(name)), SHOAL_JOB_WORKERS_PLAIN,
                      SHOAL_JOB_WORKERS_PLAIN);
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
        { spec->array, sizeof(spec->array), o->service[0] != '\0' ? SHOAL_SERVICE_ARRAY : o->array, "--msd-array" },
        { spec->service, sizeof(spec->service), o->service, "the service's name" },
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
    spec->user_cmd = o->user_cmd || o->service[0] != '\0';
    spec->replicas = o->replicas;
    spec->version = o->service_version;
    spec->warm = o->warm;
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
    spec->bundle_hash = bundle;
    spec->bundle_bytes = shoal_hash_is_zero(bundle) ? 0 : submit->bundle_bytes;
}

/* What a process cannot be started with is refused here: it would miss its last arguments. */
static enum shoal_err check_start(const struct shoal_job_options *o, struct shoal_msg *msg)
{
    if (o->script_argv.count > SHOAL_JOB_ARGV_MAX)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG,
                          "%zu arguments for the script; at most %d are taken: put them into a file of the model directory",
                          o->script_argv.count, SHOAL_JOB_ARGV_MAX);
    if (o->env.count > SHOAL_JOB_ENV_MAX)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG,
                          "--msd-env: %zu variables; at most %d are taken: put them into a file of the model directory",
                          o->env.count, SHOAL_JOB_ENV_MAX);
    for (size_t i = 0; i < o->env.count; i++)
        if (strcspn(o->env.items[i], "=") >= SHOAL_JOB_ENV_NAME_BYTES)
            return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "--msd-env: a name of %zu bytes; at most %d are taken: give a shorter one",
                              strcspn(o->env.items[i], "="), SHOAL_JOB_ENV_NAME_BYTES - 1);
    return SHOAL_OK;
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
    spec->profile = shoal_view_text(o->profile);
    err = check_start(o, msg);
    if (err == SHOAL_OK)
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

static void submit_end(struct backend_call *w, enum shoal_err err, const struct shoal_msg *msg,
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
        shoal_job_facts_asked(spec, facts);
        facts->exit_code = -1;
        facts->create_ms = shoal_job_id_ms(reply->u.reply.job);
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
    backend_call_free(w);
}

static void on_submitted(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct shoal_msg msg = backend_reply_msg(reply);

    submit_end(arg, err, &msg, reply);
}

static void submit_now(struct backend_call *w)
{
    w->request.kind = SHOAL_SCHED_SUBMIT;
    w->request.deadline_ms = SUBMIT_MS;
    w->request.spec = shoal_buf_view(&w->spec);
    w->request.ticket = shoal_buf_view(&w->ticket);
    agent_request(w->agent, &w->request, on_submitted, w);
}

static void on_bundle_stored(void *arg, enum shoal_err err, const char *text, struct shoal_hash hash)
{
    struct backend_call *w = arg;
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
    struct backend_call *w = arg;
    struct shoal_msg msg = backend_reply_msg(reply);

    if (err == SHOAL_OK)
        err = shoal_buf_append(&w->ticket, reply->u.reply.ticket.bytes, reply->u.reply.ticket.len);
    if (err != SHOAL_OK) {
        submit_end(w, err, &msg, reply);
        return;
    }
    agent_store_fd(w->agent, reply->u.reply.job, w->fd, on_bundle_stored, w);
}

void backend_submit(void *ctx, const struct shoal_submit *submit, shoal_backend_submit_fn *done, void *arg)
{
    struct agent *agent = ctx;
    struct backend_call *w = backend_call_create(agent, (backend_any_fn *)done, arg);
    struct shoal_msg msg = { "" };
    bool empty = submit->bundle_bytes <= 16;
    bool inline_bundle = submit->bundle_bytes <= SHOAL_BUNDLE_INLINE_MAX;
    struct shoal_hash name = { { 0 } };
    enum shoal_err err;

    if (!empty)
        name = inline_bundle ? shoal_blob_name(submit->bundle) : submit->bundle_hash;
    err = check_hosts(agent, submit->options, &msg);
    if (err == SHOAL_OK)
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
    w->fd = fcntl(submit->bundle_fd, F_DUPFD_CLOEXEC, 0);
    if (w->ticket.len > 0) {
        struct shoal_sched_ticket ticket;

        if (shoal_sched_ticket_decode(shoal_buf_view(&w->ticket), &ticket) != SHOAL_OK) {
            (void)shoal_fail(&msg, SHOAL_ERR_INVALID,
                             "the ticket does not decode; take a new one from POST /v1/tickets");
            submit_end(w, SHOAL_ERR_INVALID, &msg, NULL);
            return;
        }
        agent_store_fd(agent, ticket.job, w->fd, on_bundle_stored, w);
    } else {
        struct shoal_sched_request request = w->request;

        request.kind = SHOAL_SCHED_TICKET;
        request.spec = shoal_buf_view(&w->spec);
        agent_request(agent, &request, on_ticket_for_bundle, w);
    }
}

static void on_ticket(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct backend_call *w = arg;
    shoal_backend_ticket_fn *done = (shoal_backend_ticket_fn *)w->done;
    struct shoal_msg msg = backend_reply_msg(reply);

    done(w->arg, err, &msg, reply->u.reply.job, reply->u.reply.ticket);
    backend_call_free(w);
}

void backend_ticket(void *ctx, const struct shoal_user *caller, const struct shoal_hash *spec_hash,
                    shoal_backend_ticket_fn *done, void *arg)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_TICKET, .spec_hash = *spec_hash };

    (void)caller;
    agent_request(ctx, &request, on_ticket, backend_call_create(ctx, (backend_any_fn *)done, arg));
}
