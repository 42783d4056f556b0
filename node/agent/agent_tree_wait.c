/* Waits until the files of a job that other hosts have written are here: train() raises after them, and a log ends with them.
 *
 *   this host --PEER_PUSH_FILE, kind TREE_SETTLE[_LOGS], job--> hosts of the job     each looks at its folder, pushes what is new
 *             <------------------ answer -----------------------------------  and answers when nothing is due to the asker
 *
 * Whoever asks waits WAIT_MAX_MS at most. An agent of the version before calls the kind malformed: of its files nothing is known. */
#include "shoal/job.h"
#include "shoal/sched_look.h"

#include "agent.h"

#include "node/blob/tree_disk.h"

#include "shoal/banned.h"

#define WAIT_MAX_MS 5000u
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
    bool logs; /* alone */
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
    bool sent = job == NULL || agent_tree_sent(job, s->asker, s->logs);

    if (!sent && !s->agent->stopping && agent_now_ns() < s->until_ns)
        return;
    if (!s->agent->stopping)
        peer_answer(s->question, sent ? SHOAL_OK : SHOAL_ERR_TIMEOUT, sent ? "" : "files are still on their way",
                    (struct shoal_view){ 0 });
    uv_close((uv_handle_t *)timer, on_settling_closed);
}

void agent_tree_settle(struct agent *agent, struct shoal_node_id from, struct shoal_job_id id, bool logs,
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
                            .logs = logs,
                            .until_ns = agent_now_ns() + ANSWER_NS };
    (void)uv_timer_init(&agent->loop, &s->timer);
    s->timer.data = s;
    (void)uv_timer_start(&s->timer, on_look, 0, LOOK_MS);
}

/* ---- the host that waits ---- */

struct awaiting {
    unsigned open;
    bool late;
    void (*done)(void *arg, bool all);
    void *arg;
};

static void one_less(struct awaiting *a)
{
    if (--a->open > 0)
        return;
    a->done(a->arg, !a->late);
    free(a);
}

/* Who cannot be reached has nothing more to say. Who was not asked, since too much waits here, or does not say it in time, may
 * have files. */
static void on_settled(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct awaiting *a = arg;

    (void)msg;
    (void)answer;
    a->late = a->late || err == SHOAL_ERR_TIMEOUT || err == SHOAL_ERR_FULL;
    one_less(a);
}

/* ---- where a job ran ---- */

static struct agent_ran *ran_find(struct agent *agent, struct shoal_job_id id)
{
    for (unsigned i = 0; i < AGENT_RAN_MAX; i++)
        if (shoal_job_id_equal(agent->ran[i].job, id))
            return &agent->ran[i];
    return NULL;
}

static size_t add_node(struct shoal_node_id *nodes, size_t count, size_t cap, struct shoal_node_id node)
{
    for (size_t i = 0; i < count; i++)
        if (shoal_node_id_equal(nodes[i], node))
            return count;
    if (count < cap)
        nodes[count++] = node;
    return count;
}

void agent_tree_note_hosts(struct agent *agent, struct shoal_job_id id)
{
    const struct shoal_job *job = shoal_sched_job(agent->sched, id);
    struct agent_ran *ran = ran_find(agent, id);
    size_t count;

    if (job == NULL || job->placement_count == 0)
        return;
    if (ran == NULL) {
        ran = &agent->ran[agent->ran_next++ % AGENT_RAN_MAX];
        *ran = (struct agent_ran){ .job = id };
    }
    count = ran->host_count;
    for (uint32_t i = 0; i < job->placement_count; i++)
        if (!shoal_node_id_equal(job->placements[i].node, agent->identity.node))
            count = add_node(ran->hosts, count, AGENT_RAN_HOSTS_MAX, job->placements[i].node);
    ran->host_count = (unsigned)count;
}

size_t agent_tree_hosts(struct agent *agent, struct shoal_job_id id, struct shoal_node_id *nodes, size_t cap)
{
    const struct agent_ran *ran = ran_find(agent, id);
    struct shoal_node_id guardians[NODES_MAX];
    size_t guardian_count, count = 0;
    size_t known = agent_job_nodes(agent, id, guardians, NODES_MAX, &guardian_count);

    for (unsigned i = 0; ran != NULL && i < ran->host_count; i++)
        count = add_node(nodes, count, cap, ran->hosts[i]);
    for (size_t i = 0; i < known && i < NODES_MAX; i++)
        count = add_node(nodes, count, cap, guardians[i]);
    return count;
}

void agent_tree_await(struct agent *agent, struct shoal_job_id id, bool logs, unsigned wait_ms,
                      void (*done)(void *arg, bool all), void *arg)
{
    struct awaiting *a = calloc(1, sizeof(*a));
    struct shoal_node_id nodes[NODES_MAX];
    uint8_t args[32];
    struct shoal_writer w = shoal_writer_init(args, sizeof(args));
    size_t count = agent_tree_hosts(agent, id, nodes, NODES_MAX);

    SHOAL_ASSERT(a != NULL && wait_ms <= WAIT_MAX_MS);
    *a = (struct awaiting){ .open = 1, .done = done, .arg = arg };
    shoal_put_u8(&w, logs ? TREE_SETTLE_LOGS : TREE_SETTLE);
    shoal_put_job_id(&w, id);
    SHOAL_ASSERT(!w.failed);
    for (size_t i = 0; i < count; i++) {
        a->open++;
        peer_ask(agent->calls, nodes[i], PEER_PUSH_FILE, shoal_writer_view(&w), wait_ms * SHOAL_MS, on_settled, a);
    }
    one_less(a);
}
