/* One job's verbs, carried to the control plane: get, stop, delete, recover, why. Whose job it is was asked before
 * (backend_verbs.c). */
#include "shoal/sched_ticket.h"
#include "shoal/job_facts.h"
#include "agent_backend.h"

#include "shoal/banned.h"

#define REQUEST_MS 5000

/* ---- calls that wait ---- */

struct backend_call *backend_call_create(struct agent *agent, backend_any_fn *done, void *arg)
{
    struct backend_call *w = calloc(1, sizeof(*w));

    SHOAL_ASSERT(w != NULL);
    w->agent = agent;
    w->done = done;
    w->arg = arg;
    w->fd = -1;
    return w;
}

void backend_call_free(struct backend_call *w)
{
    shoal_buf_deinit(&w->spec);
    shoal_buf_deinit(&w->ticket);
    if (w->fd >= 0)
        (void)close(w->fd);
    free(w);
}

struct shoal_msg backend_reply_msg(const struct shoal_sched_action *reply)
{
    struct shoal_msg msg;

    (void)snprintf(msg.text, sizeof(msg.text), "%s", reply->u.reply.text);
    return msg;
}

void backend_on_done(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct backend_call *w = arg;
    shoal_backend_done_fn *done = (shoal_backend_done_fn *)w->done;
    struct shoal_msg msg = backend_reply_msg(reply);

    done(w->arg, err, &msg);
    backend_call_free(w);
}

/* ---- get ---- */

static void on_got(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct backend_call *w = arg;
    shoal_backend_job_fn *done = (shoal_backend_job_fn *)w->done;
    struct shoal_msg msg = backend_reply_msg(reply);
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
    backend_call_free(w);
}

void backend_get_id(struct agent *agent, struct shoal_job_id id, bool linearizable, shoal_backend_job_fn *done,
                    void *arg)
{
    struct shoal_sched_request request = {
        .kind = SHOAL_SCHED_GET, .job = id, .linearizable = linearizable, .deadline_ms = REQUEST_MS
    };

    agent_request(agent, &request, on_got, backend_call_create(agent, (backend_any_fn *)done, arg));
}

/* ---- stop, delete, recover, why ---- */

void backend_change_id(struct agent *agent, const struct shoal_user *caller, struct shoal_job_id id,
                       enum shoal_sched_request_kind kind, shoal_backend_done_fn *done, void *arg)
{
    struct shoal_sched_request request = { .kind = kind, .job = id, .deadline_ms = REQUEST_MS };
    char token[SHOAL_TOKEN_TEXT_BYTES];

    request.token = agent_token_of(agent, caller, token);
    (void)snprintf(request.by, sizeof(request.by), "%s", caller->name);
    agent_request(agent, &request, backend_on_done, backend_call_create(agent, (backend_any_fn *)done, arg));
}

static void on_recovered(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct backend_call *w = arg;
    shoal_backend_recovery_fn *done = (shoal_backend_recovery_fn *)w->done;
    struct shoal_msg msg = backend_reply_msg(reply);
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
    backend_call_free(w);
}

static void ask_recovery(struct agent *agent, const struct shoal_user *caller, struct shoal_sched_request *request,
                         shoal_backend_recovery_fn *done, void *arg)
{
    char token[SHOAL_TOKEN_TEXT_BYTES];

    request->kind = SHOAL_SCHED_RECOVER;
    request->token = agent_token_of(agent, caller, token);
    (void)snprintf(request->by, sizeof(request->by), "%s", caller->name);
    agent_request(agent, request, on_recovered, backend_call_create(agent, (backend_any_fn *)done, arg));
}

void backend_recover_id(struct agent *agent, const struct shoal_user *caller, struct shoal_job_id id, bool confirmed,
                        shoal_backend_recovery_fn *done, void *arg)
{
    struct shoal_sched_request request = { .job = id, .confirmed = confirmed };

    ask_recovery(agent, caller, &request, done, arg);
}

void backend_recover_mesh(struct agent *agent, const struct shoal_user *caller, bool confirmed,
                          shoal_backend_recovery_fn *done, void *arg)
{
    struct shoal_sched_request request = { .of_mesh = true, .confirmed = confirmed };

    ask_recovery(agent, caller, &request, done, arg);
}

static void on_why(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct backend_call *w = arg;
    shoal_backend_text_fn *done = (shoal_backend_text_fn *)w->done;
    struct shoal_msg msg = backend_reply_msg(reply);
    struct shoal_buf json = { 0 };

    if (err == SHOAL_OK)
        err = backend_why_json(w->agent, w->id, reply->u.reply.bytes, &json);
    done(w->arg, err, &msg, shoal_buf_view(&json));
    shoal_buf_deinit(&json);
    backend_call_free(w);
}

void backend_why_id(struct agent *agent, struct shoal_job_id id, shoal_backend_text_fn *done, void *arg)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_WHY, .job = id, .deadline_ms = REQUEST_MS };
    struct backend_call *w = backend_call_create(agent, (backend_any_fn *)done, arg);

    w->id = id;
    agent_request(agent, &request, on_why, w);
}

static void on_tasks(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct backend_call *w = arg;
    shoal_backend_tasks_fn *done = (shoal_backend_tasks_fn *)w->done;
    struct shoal_msg msg = backend_reply_msg(reply);
    struct shoal_tasks_page *page = calloc(1, sizeof(*page));
    struct shoal_task_info *tasks = calloc(SHOAL_TASKS_PAGE_MAX, sizeof(*tasks));

    SHOAL_ASSERT(page != NULL && tasks != NULL);
    if (err == SHOAL_OK && shoal_tasks_page_decode(reply->u.reply.bytes, page) != SHOAL_OK)
        err = shoal_fail(&msg, SHOAL_ERR_MALFORMED, "the leader's answer does not decode; is it of another version?");
    for (uint32_t i = 0; err == SHOAL_OK && i < page->row_count; i++) {
        tasks[i].row = page->rows[i];
        if (!shoal_node_id_is_zero(tasks[i].row.node))
            (void)backend_node_name(w->agent, tasks[i].row.node, tasks[i].node, sizeof(tasks[i].node));
    }
    done(w->arg, err, &msg, tasks, err == SHOAL_OK ? page->row_count : 0, page->next);
    free(tasks);
    free(page);
    backend_call_free(w);
}

void backend_tasks_id(struct agent *agent, struct shoal_job_id id, const struct shoal_tasks_ask *ask,
                      shoal_backend_tasks_fn *done, void *arg)
{
    struct shoal_sched_request request = {
        .kind = SHOAL_SCHED_TASKS, .job = id, .linearizable = true, .deadline_ms = REQUEST_MS
    };
    uint8_t question[SHOAL_TASKS_ASK_BYTES];
    struct backend_call *w = backend_call_create(agent, (backend_any_fn *)done, arg);

    request.command = shoal_view_of(question, shoal_tasks_ask_encode(ask, question));
    agent_request(agent, &request, on_tasks, w);
}
