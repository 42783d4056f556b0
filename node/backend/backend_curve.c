/* The loss curve of a job, read where its ledger lies: on this node, else on another. Where this node's ledger is short, another node
 * that has it whole is asked. */
#include "shoal/sched_look.h"
#include "agent_backend.h"

#include "node/agent/agent_metrics.h"

#include "shoal/banned.h"

#define OTHER_TIMEOUT_NS (10 * SHOAL_S) /* a ledger of a million steps is read in a second or two */

struct curve_call {
    struct agent *agent;
    struct shoal_job_id id;
    struct agent_metrics_ask ask;
    struct shoal_buf own; /* empty: this node has nothing */
    struct shoal_node_id nodes[9];
    size_t node_count, node;
    char said[200];
    shoal_backend_text_fn *done;
    void *arg;
};

static void ask_others(struct curve_call *call);

static void curve_end(struct curve_call *call, enum shoal_err err, const char *text, struct shoal_view json)
{
    struct shoal_msg msg;

    (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
    call->done(call->arg, err, &msg, json);
    shoal_buf_deinit(&call->own);
    free(call);
}

static bool says_whole(struct shoal_view json)
{
    static const char whole[] = "\"whole\":true";

    return memmem(json.bytes, json.len < 200 ? json.len : 200, whole, sizeof(whole) - 1) != NULL;
}

static void on_other(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct curve_call *call = arg;

    if (err == SHOAL_OK && (says_whole(answer) || call->own.len == 0)) {
        curve_end(call, SHOAL_OK, "", answer);
        return;
    }
    if (err != SHOAL_OK)
        (void)snprintf(call->said, sizeof(call->said), "%.199s", msg->text);
    call->node++;
    ask_others(call);
}

static void ask_others(struct curve_call *call)
{
    uint8_t args[64];
    struct shoal_writer w = shoal_writer_init(args, sizeof(args));

    while (call->node < call->node_count && !shoal_link_is_up(call->agent->link, call->nodes[call->node]))
        call->node++;
    if (call->node == call->node_count) {
        if (call->own.len > 0)
            curve_end(call, SHOAL_OK, "", shoal_buf_view(&call->own));
        else
            curve_end(call, SHOAL_ERR_UNREACHABLE,
                      call->said[0] == '\0' ? "no host that keeps this job's ledger is reachable from here"
                                            : call->said,
                      (struct shoal_view){ 0 });
        return;
    }
    shoal_put_job_id(&w, call->id);
    shoal_put_u64(&w, call->ask.from);
    shoal_put_u64(&w, call->ask.to);
    shoal_put_u32(&w, call->ask.points_max);
    peer_ask(call->agent->calls, call->nodes[call->node], PEER_METRICS, shoal_writer_view(&w), OTHER_TIMEOUT_NS,
             on_other, call);
}

static void on_own(void *arg, enum shoal_err err, const char *text, struct shoal_view json, bool whole)
{
    struct curve_call *call = arg;

    if (err != SHOAL_OK || whole || shoal_buf_append(&call->own, json.bytes, json.len) != SHOAL_OK)
        curve_end(call, err, text, json);
    else
        ask_others(call);
}

void backend_curve_id(struct agent *agent, struct shoal_job_id id, const struct shoal_curve_ask *ask,
                      shoal_backend_text_fn *done, void *arg)
{
    struct curve_call *call = calloc(1, sizeof(*call));
    struct shoal_node_id node;
    size_t guardians;
    bool here = shoal_sched_job(agent->sched, id) != NULL || backend_has_files(agent, id, &node);

    SHOAL_ASSERT(call != NULL);
    *call = (struct curve_call){ .agent = agent, .id = id, .done = done, .arg = arg };
    call->ask = (struct agent_metrics_ask){ .from = ask->from, .to = ask->to, .points_max = ask->points_max };
    if (!here && !shoal_node_id_is_zero(node))
        call->nodes[call->node_count++] = node;
    call->node_count += agent_job_nodes(agent, id, &call->nodes[call->node_count], 8, &guardians);
    if (here)
        agent_metrics_read(agent, id, &call->ask, on_own, call);
    else
        ask_others(call);
}

/* ---- for others ---- */

struct serving {
    struct agent *agent;
    struct peer_question *question;
};

static void on_served(void *arg, enum shoal_err err, const char *text, struct shoal_view json, bool whole)
{
    struct serving *s = arg;

    (void)whole; /* the JSON says it */
    if (!s->agent->stopping)
        peer_answer(s->question, err, text, json);
    free(s);
}

void backend_serve_curve(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct agent *agent = arg;
    struct shoal_reader r = shoal_reader_init(args);
    struct shoal_job_id id = shoal_get_job_id(&r);
    struct agent_metrics_ask ask;
    struct serving *s;

    (void)from;
    ask.from = shoal_get_u64(&r);
    ask.to = shoal_get_u64(&r);
    ask.points_max = shoal_get_u32(&r);
    if (!shoal_reader_done(&r) || ask.points_max == 0 || ask.points_max > SHOAL_METRIC_POINTS_MAX) {
        peer_answer(question, SHOAL_ERR_MALFORMED, "not a question for metrics", (struct shoal_view){ 0 });
        return;
    }
    if (shoal_sched_job(agent->sched, id) == NULL && backend_serves_files(agent, id) == NULL) {
        peer_answer(question, SHOAL_ERR_NOT_FOUND, "this host keeps no ledger of the job", (struct shoal_view){ 0 });
        return;
    }
    s = malloc(sizeof(*s));
    SHOAL_ASSERT(s != NULL);
    *s = (struct serving){ .agent = agent, .question = question };
    agent_metrics_read(agent, id, &ask, on_served, s);
}
