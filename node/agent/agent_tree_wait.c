/* Waits until the files of a job that other hosts have written are here: train() raises after them.
 *
 *   this host --PEER_PUSH_FILE, kind TREE_SETTLE, job--> hosts of the job     each looks at its folder, pushes what is new
 *             <------------------ answer -----------------------------------  and answers when nothing is due to the asker
 *
 * Whoever asks waits WAIT_NS at most. An agent of the version before calls the kind malformed: of its files nothing is known. */
#include "agent.h"

#include "node/blob/tree_disk.h"

#include "shoal/banned.h"

#define WAIT_NS (5 * SHOAL_S)
#define ANSWER_NS (4 * SHOAL_S) /* sooner than the asker gives up */
#define LOOK_MS 20
#define NODES_MAX 16
/* More questions than this host may wait with at once are answered as if their time was over. */
#define SETTLING_MAX 64

/* ---- the host that has written ---- */

struct settling {
    struct agent *agent;
    struct peer_question *question;
    struct shoal_job_id job;
    struct shoal_node_id asker;
    uint64_t until_ns;
    uv_timer_t timer;
};

static unsigned settling_count; /* of this process's one agent */

static void on_settling_closed(uv_handle_t *handle)
{
    settling_count--;
    free(handle->data);
}

static void on_look(uv_timer_t *timer)
{
    struct settling *s = timer->data;
    const struct agent_job *job = agent_job_find(s->agent, s->job);
    bool sent = job == NULL || agent_tree_sent(job, s->asker);

    if (!sent && !s->agent->stopping && agent_now_ns() < s->until_ns)
        return;
    if (!s->agent->stopping)
        peer_answer(s->question, sent ? SHOAL_OK : SHOAL_ERR_TIMEOUT, sent ? "" : "files are still on their way",
                    (struct shoal_view){ 0 });
    uv_close((uv_handle_t *)timer, on_settling_closed);
}

void agent_tree_settle(struct agent *agent, struct shoal_node_id from, struct shoal_job_id id,
                       struct peer_question *question)
{
    struct agent_job *job = agent_job_find(agent, id);
    struct settling *s = settling_count < SETTLING_MAX ? calloc(1, sizeof(*s)) : NULL;

    if (job != NULL)
        agent_tree_scan(agent, job);
    if (s == NULL) {
        peer_answer(question, SHOAL_ERR_TIMEOUT, "too many wait for files of this host", (struct shoal_view){ 0 });
        return;
    }
    settling_count++;
    *s = (struct settling){ .agent = agent,
                            .question = question,
                            .job = id,
                            .asker = from,
                            .until_ns = agent_now_ns() + ANSWER_NS };
    (void)uv_timer_init(&agent->loop, &s->timer);
    s->timer.data = s;
    (void)uv_timer_start(&s->timer, on_look, 0, LOOK_MS);
}

/* ---- the host that waits ---- */

struct awaiting {
    unsigned open;
    void (*done)(void *arg);
    void *arg;
};

static void one_less(struct awaiting *a)
{
    if (--a->open > 0)
        return;
    a->done(a->arg);
    free(a);
}

/* Whatever the answer is: who cannot be reached has nothing more to say. */
static void on_settled(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    (void)err;
    (void)msg;
    (void)answer;
    one_less(arg);
}

void agent_tree_await(struct agent *agent, struct shoal_job_id id, void (*done)(void *arg), void *arg)
{
    struct awaiting *a = calloc(1, sizeof(*a));
    struct shoal_node_id nodes[NODES_MAX];
    uint8_t args[32];
    struct shoal_writer w = shoal_writer_init(args, sizeof(args));
    size_t guardians;
    size_t count = agent_job_nodes(agent, id, nodes, NODES_MAX, &guardians);

    SHOAL_ASSERT(a != NULL);
    *a = (struct awaiting){ .open = 1, .done = done, .arg = arg };
    shoal_put_u8(&w, TREE_SETTLE);
    shoal_put_job_id(&w, id);
    SHOAL_ASSERT(!w.failed);
    for (size_t i = 0; i < count && i < NODES_MAX; i++) {
        a->open++;
        peer_ask(agent->calls, nodes[i], PEER_PUSH_FILE, shoal_writer_view(&w), WAIT_NS, on_settled, a);
    }
    one_less(a);
}
