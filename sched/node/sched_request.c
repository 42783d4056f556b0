/* Requests: answered here, forwarded to who leads, or asked around (PROTOCOLS 8, last paragraph).
 *
 *     WAITING --> group here?  leads: PROPOSED or READING --> applied: REPLY
 *        ^            |  else: leader known: FORWARDED --> RESPONSE: REPLY, or "not me, ask X": WAITING, at most 3 hops
 *        |            no group: a summary's leader: FORWARDED;  else ASKING the founder and the rendezvous hosts: WHO
 *        +---- not answered in time, link down, leadership lost: again until the deadline, then UNREACHABLE with names
 *
 * R1. Exactly one REPLY (or RESPONSE) per request: sched_request_end() frees the place in the book.
 * R2. A change of the mesh that was sent once is not sent again: an answer that got lost leaves the outcome unknown
 *     (TIMEOUT). Stop, delete and reads may be repeated.
 * R3. "Unknown" only when every live node that could know has said so. */
#include <stdarg.h>

#include "sched_request.h"
#include "sched_archive.h"
#include "sched_found.h"
#include "sched_group.h"
#include "sched_lead.h"
#include "sched_node.h"
#include "sched_park.h"
#include "sched_state.h"
#include "sched_store.h"
#include "sched_view.h"

#include "shoal/banned.h"

static const struct shoal_view nothing;
static const struct shoal_node_id nobody;

/* ---- States ---- */

#define BIT(state) (1u << (state))

/* Bit N of a row says that a request in this state may become one in state N. A request that is tried is WAITING, or
 * FORWARDED when the answer did not come in time. */
#define TRIED                                                                                                          \
    (BIT(REQUEST_FREE) | BIT(REQUEST_WAITING) | BIT(REQUEST_FORWARDED) | BIT(REQUEST_ASKING) | BIT(REQUEST_PROPOSED) | \
     BIT(REQUEST_READING) | BIT(REQUEST_SURVEY) | BIT(REQUEST_DELETING))

static const unsigned request_moves[REQUEST_STATES] = {
    [REQUEST_FREE] = BIT(REQUEST_WAITING),
    [REQUEST_WAITING] = TRIED | BIT(REQUEST_FOUNDING),
    [REQUEST_FORWARDED] = TRIED | BIT(REQUEST_COPY),
    [REQUEST_ASKING] = BIT(REQUEST_FREE) | BIT(REQUEST_WAITING) | BIT(REQUEST_ASKING),
    [REQUEST_PROPOSED] = BIT(REQUEST_FREE) | BIT(REQUEST_WAITING) | BIT(REQUEST_COPY),
    [REQUEST_READING] = BIT(REQUEST_FREE) | BIT(REQUEST_WAITING) | BIT(REQUEST_COPY),
    [REQUEST_FOUNDING] = BIT(REQUEST_FREE),
    [REQUEST_SURVEY] = BIT(REQUEST_FREE) | BIT(REQUEST_WAITING) | BIT(REQUEST_FORWARDED) | BIT(REQUEST_SURVEY),
    [REQUEST_COPY] = BIT(REQUEST_FREE),
    [REQUEST_DELETING] = BIT(REQUEST_FREE),
};

void sched_request_move(struct sched_request *r, enum request_state to)
{
    SHOAL_ASSERT((request_moves[r->state] & BIT(to)) != 0); /* R1 */
    r->state = to;
}

/* ---- The book ---- */

/* The request has been answered, or was never taken in: its place is free for another. */
static void release(struct shoal_sched *s, struct sched_request *r)
{
    SHOAL_ASSERT(s->request_count > 0);
    sched_request_move(r, REQUEST_FREE);
    s->request_count--;
}

bool sched_request_open(const struct shoal_sched *s, struct shoal_job_id job)
{
    for (size_t i = 0; s->request_count > 0 && i < SHOAL_SCHED_REQUESTS_MAX; i++)
        if (s->requests[i].state != REQUEST_FREE && shoal_job_id_equal(s->requests[i].job, job))
            return true;
    return false;
}

struct sched_request *sched_request_get(const struct shoal_sched *s, uint64_t serial)
{
    struct sched_request *r = &s->requests[serial % SHOAL_SCHED_REQUESTS_MAX];

    return r->state != REQUEST_FREE && r->serial == serial ? r : NULL;
}

static struct sched_request *book(struct shoal_sched *s)
{
    for (size_t i = 0; i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        uint64_t serial = ++s->request_serial;
        struct sched_request *r = &s->requests[serial % SHOAL_SCHED_REQUESTS_MAX];
        struct shoal_buf command = r->command;

        if (r->state != REQUEST_FREE)
            continue;
        command.len = 0;
        *r = (struct sched_request){ .state = REQUEST_FREE, .serial = serial, .command = command };
        sched_request_move(r, REQUEST_WAITING);
        s->request_count++;
        return r;
    }
    return NULL;
}

void sched_request_retry(struct shoal_sched *s, struct sched_request *r, uint64_t after_ns)
{
    sched_request_move(r, REQUEST_WAITING);
    r->retry_ns = s->now + after_ns;
    if (r->retry_ns < s->requests_ns)
        s->requests_ns = r->retry_ns;
}

static void respond(struct shoal_sched *s, struct shoal_node_id to, uint64_t id, enum shoal_err err, const char *text,
                    struct shoal_view bytes, uint64_t version)
{
    struct frame frame = { .kind = FRAME_RESPONSE };

    frame.u.response.id = id;
    frame.u.response.err = (uint16_t)err;
    frame.u.response.version = version;
    frame.u.response.bytes = bytes;
    (void)snprintf(frame.u.response.text, sizeof(frame.u.response.text), "%s", text);
    sched_send(s, to, &frame);
}

static void reply(struct shoal_sched *s, uint64_t id, enum shoal_err err, const char *text, struct shoal_job_id job,
                  struct shoal_view bytes)
{
    struct shoal_sched_action *action = sched_act(s, SHOAL_SCHED_REPLY);

    action->u.reply.request = id;
    action->u.reply.err = err;
    action->u.reply.job = job;
    action->u.reply.bytes = sched_pool_copy(s, bytes);
    (void)snprintf(action->u.reply.text, sizeof(action->u.reply.text), "%s", text);
    s->stats.replies++;
}

/* The ticket of a founding goes with every answer to a submit that may be tried again. */
static struct shoal_view submit_ticket(struct shoal_sched *s, const struct sched_request *r)
{
    const struct sched_founding *f = sched_founding_of(s, r->serial);
    uint8_t *bytes = f == NULL ? NULL : sched_pool(s, SHOAL_SCHED_TICKET_BYTES_MAX, 0);
    size_t len;

    if (bytes == NULL || shoal_sched_ticket_encode(&f->ticket, bytes, SHOAL_SCHED_TICKET_BYTES_MAX, &len) != SHOAL_OK)
        return nothing;
    return shoal_view_of(bytes, len);
}

void sched_request_end(struct shoal_sched *s, struct sched_request *r, enum shoal_err err, struct shoal_view bytes,
                       const char *format, ...)
{
    char text[SCHED_TEXT_BYTES];
    va_list args;

    SHOAL_ASSERT(r->state != REQUEST_FREE); /* R1 */
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (r->foreign) {
        respond(s, r->origin, r->id, err, text, bytes, r->version);
    } else {
        struct shoal_view ticket = r->kind == SHOAL_SCHED_TICKET ? bytes : submit_ticket(s, r);

        reply(s, r->id, err, text, r->job, r->kind == SHOAL_SCHED_TICKET ? nothing : bytes);
        s->actions->list[s->actions->count - 1].u.reply.ticket = ticket;
    }
    sched_founding_end(s, r->serial);
    release(s, r);
}

/* ---- Serving here ---- */

static void end_with_facts(struct shoal_sched *s, struct sched_request *r, const struct sched_group *g)
{
    struct shoal_job_facts facts;
    size_t len;

    if (g->job == NULL) {
        sched_request_end(s, r, SHOAL_ERR_UNREACHABLE, nothing,
                          "the founding of this job is not settled yet; try again");
        return;
    }
    if (g->job->deleted && shoal_job_state_ended((enum shoal_job_state)g->job->state)) {
        sched_request_end(s, r, SHOAL_ERR_NOT_FOUND, nothing, "the job was deleted");
        return;
    }
    sched_job_facts(g, &facts);
    if (shoal_job_facts_encode(&facts, s->scratch.bytes, s->scratch.cap, &len) != SHOAL_OK) {
        sched_request_end(s, r, SHOAL_ERR_TOO_BIG, nothing, "what is known of this job does not fit an answer");
        return;
    }
    sched_request_end(s, r, SHOAL_OK, shoal_view_of(s->scratch.bytes, len), "%s", "");
}

static void end_with_why(struct shoal_sched *s, struct sched_request *r, const struct sched_group *g)
{
    char text[2048] = "";

    if (g->lead != NULL)
        shoal_lead_why(g->lead, text, sizeof(text));
    else if (g->held)
        (void)snprintf(text, sizeof(text),
                       "waits in the queue: its leader has %u jobs before it that may be placed now.\n",
                       s->options.loaded_max);
    else if (g->job != NULL)
        (void)snprintf(text, sizeof(text), "%s", g->job->reason);
    sched_request_end(s, r, SHOAL_OK, shoal_view_text(text), "%s", "");
}

static void end_with_tasks(struct shoal_sched *s, struct sched_request *r, const struct sched_group *g)
{
    struct shoal_tasks_page *page = &s->tasks_page;
    struct shoal_tasks_ask ask;
    struct shoal_msg msg = { "the question about tasks does not decode" };
    enum shoal_err err = shoal_tasks_ask_decode(shoal_buf_view(&r->command), &ask);

    if (g->job == NULL || (g->job->deleted && shoal_job_state_ended((enum shoal_job_state)g->job->state))) {
        end_with_facts(s, r, g); /* which says why there are none */
        return;
    }
    if (err == SHOAL_OK)
        err = shoal_job_tasks_page(g->job, &ask, page, &msg);
    if (err != SHOAL_OK) {
        sched_request_end(s, r, err, nothing, "%s", msg.text);
        return;
    }
    sched_request_end(s, r, SHOAL_OK,
                      shoal_view_of(s->scratch.bytes, shoal_tasks_page_encode(page, s->scratch.bytes, s->scratch.cap)),
                      "%s", "");
}

/* Propose what the request asks of its group; answered when applied, or by a rejection. */
static void propose(struct shoal_sched *s, struct sched_request *r, struct sched_group *g)
{
    uint8_t bytes[256];
    struct shoal_view view = shoal_buf_view(&r->command);
    struct shoal_entry *entry;
    uint64_t serial = r->serial;

    if (r->kind == SHOAL_SCHED_STOP)
        view = shoal_view_of(bytes, shoal_job_entry_stop(bytes, sizeof(bytes), r->by, s->wall_ms));
    else if (r->kind == SHOAL_SCHED_DELETE)
        view = shoal_view_of(bytes, shoal_job_entry_delete(bytes, sizeof(bytes), r->by, s->wall_ms));
    sched_request_move(r, REQUEST_PROPOSED);
    r->index = 0;
    entry = sched_propose(s, g, view, serial);
    r = sched_request_get(s, serial);
    if (r != NULL && entry == NULL)
        sched_request_end(s, r, SHOAL_ERR_FULL, nothing, "no memory for the change on the leader; try again");
    else if (r != NULL && entry->index != 0 && r->state == REQUEST_PROPOSED) {
        r->index = entry->index;
        r->term = entry->term;
        r->sent = true;
    }
    shoal_entry_unref(entry);
}

static bool is_change(const struct sched_request *r)
{
    return r->kind == SHOAL_SCHED_STOP || r->kind == SHOAL_SCHED_DELETE || r->kind == SHOAL_SCHED_MESH_CHANGE;
}

static void serve_leading(struct shoal_sched *s, struct sched_request *r, struct sched_group *g)
{
    struct shoal_msg msg = { "" };
    enum shoal_err err;

    if (r->kind == SHOAL_SCHED_MESH_CHANGE) {
        err = shoal_mesh_check(g->mesh, shoal_buf_view(&r->command), &msg);
        /* Only what cannot come right by entries under way is refused before the log. */
        if (err == SHOAL_ERR_MALFORMED || err == SHOAL_ERR_INVALID) {
            sched_request_end(s, r, err, nothing, "%s", msg.text);
            return;
        }
    }
    if (is_change(r)) {
        if (!g->mesh_is && g->job == NULL)
            sched_request_retry(s, r, SCHED_RETRY_NS);
        else
            propose(s, r, g);
        return;
    }
    sched_request_move(r, REQUEST_READING);
    r->read_serial = 0;
    r->read_index = 0;
    g->reads_waiting = true;
    sched_group_dirty(s, g);
}

static void finish_read(struct shoal_sched *s, struct sched_request *r, struct sched_group *g)
{
    if (r->kind == SHOAL_SCHED_GET)
        end_with_facts(s, r, g);
    else if (r->kind == SHOAL_SCHED_WHY)
        end_with_why(s, r, g);
    else if (r->kind == SHOAL_SCHED_TASKS)
        end_with_tasks(s, r, g);
    else {
        r->version = shoal_mesh_version(g->mesh);
        if (r->foreign)
            sched_request_end(s, r, SHOAL_OK, nothing, "%s", "");
        else
            sched_request_move(r, REQUEST_COPY);
    }
}

/* ---- Where to ---- */

static bool node_is_dead(const struct shoal_sched *s, struct shoal_node_id id)
{
    const struct sched_node *node = sched_node_find(s, id);

    return node != NULL && (node->info.state == SHOAL_SCHED_NODE_DEAD || node->info.state == SHOAL_SCHED_NODE_LEFT);
}

void sched_request_forward(struct shoal_sched *s, struct sched_request *r, struct shoal_node_id to)
{
    struct frame frame = { .kind = FRAME_REQUEST };
    uint64_t wait = SCHED_ANSWER_NS;

    frame.u.request.id = r->serial;
    frame.u.request.hops = r->hops;
    frame.u.request.kind = (uint8_t)r->kind;
    frame.u.request.job = r->job;
    frame.u.request.linearizable = r->linearizable;
    frame.u.request.deadline_ms = (uint32_t)((r->deadline_ns - s->now) / SHOAL_MS);
    frame.u.request.command = shoal_buf_view(&r->command);
    memcpy(frame.u.request.by, r->by, sizeof(frame.u.request.by));
    sched_send(s, to, &frame);
    s->stats.forwarded++;
    sched_request_move(r, REQUEST_FORWARDED);
    r->asked = to;
    r->hint = nobody;
    if (r->kind == SHOAL_SCHED_MESH_CHANGE) {
        r->sent = true;
        wait = r->deadline_ns - s->now; /* R2 */
    }
    if (r->kind == SHOAL_SCHED_RECOVER) /* the other one looks around for a while */
        wait = SCHED_REQUEST_NS + SHOAL_S;
    r->retry_ns = s->now + wait;
    if (r->retry_ns < s->requests_ns)
        s->requests_ns = r->retry_ns;
}

static bool founder_matches(struct shoal_job_id job, struct shoal_node_id node)
{
    unsigned named = (unsigned)(job.bytes[5] & 15) << 12 | (unsigned)job.bytes[6] << 4 | job.bytes[7] >> 4;

    return named == ((unsigned)node.bytes[0] << 8 | node.bytes[1]);
}

/* Who could know an id: the founder named in it, then the nearest by rendezvous, all of them alive and not this node.
 */
unsigned sched_could_know(const struct shoal_sched *s, struct shoal_job_id job,
                          struct shoal_node_id nodes[SCHED_ASKED_MAX])
{
    uint64_t scores[SCHED_ASKED_MAX];
    unsigned count = 0;

    for (size_t i = 0; i < s->node_count; i++) {
        struct shoal_node_id node = s->nodes[i].info.id;
        uint64_t score = founder_matches(job, node) ? UINT64_MAX : sched_score(s, job, node);
        unsigned at = count;

        if (sched_is_self(s, node) || node_is_dead(s, node))
            continue;
        while (at > 0 && score > scores[at - 1])
            at--;
        if (at == SCHED_ASKED_MAX)
            continue;
        count += count < SCHED_ASKED_MAX ? 1 : 0;
        memmove(&scores[at + 1], &scores[at], (count - 1 - at) * sizeof(scores[0]));
        memmove(&nodes[at + 1], &nodes[at], (count - 1 - at) * sizeof(nodes[0]));
        scores[at] = score;
        nodes[at] = node;
    }
    return count;
}

static void ask_around(struct shoal_sched *s, struct sched_request *r)
{
    struct frame frame = { .kind = FRAME_WHO };

    if (r->ask_count == 0) {
        r->ask_count = (uint8_t)sched_could_know(s, r->job, r->ask);
        r->answered = 0;
    }
    if (r->ask_count == 0) {
        sched_request_end(s, r, SHOAL_ERR_NOT_FOUND, nothing, "no such job (this node knows no other node to ask)");
        return;
    }
    frame.u.who.id = r->serial;
    frame.u.who.job = r->job;
    for (unsigned i = 0; i < r->ask_count; i++) {
        if (!(r->answered & 1u << i))
            sched_send(s, r->ask[i], &frame);
    }
    sched_request_move(r, REQUEST_ASKING);
    r->retry_ns = s->now + SCHED_ANSWER_NS / 2;
    if (r->retry_ns < s->requests_ns)
        s->requests_ns = r->retry_ns;
}

static struct shoal_node_id any_alive(struct shoal_sched *s)
{
    size_t first = s->node_count == 0 ? 0 : shoal_rand_below(&s->chance, s->node_count);

    for (size_t i = 0; i < s->node_count; i++) {
        const struct shoal_sched_node *node = &s->nodes[(first + i) % s->node_count].info;

        if (node->state == SHOAL_SCHED_NODE_ALIVE && !sched_is_self(s, node->id))
            return node->id;
    }
    return nobody;
}

/* A mesh request from a node outside the group: to the leader heard of, else to one guardian after the other. */
static void try_mesh(struct shoal_sched *s, struct sched_request *r)
{
    struct shoal_node_id to = r->hint;

    if (shoal_node_id_is_zero(to) && !node_is_dead(s, s->mesh_leader) && !sched_is_self(s, s->mesh_leader) &&
        r->hops == 0)
        to = s->mesh_leader;
    for (unsigned i = 0; shoal_node_id_is_zero(to) && i < s->mesh_hint.count; i++) {
        struct shoal_node_id guardian = s->mesh_hint.guardians[(i + r->hops) % s->mesh_hint.count];

        if (!sched_is_self(s, guardian) && !node_is_dead(s, guardian))
            to = guardian;
    }
    if (shoal_node_id_is_zero(to))
        to = any_alive(s); /* the guardians known here are gone: somebody knows the new ones */
    if (shoal_node_id_is_zero(to))
        sched_request_retry(s, r, SCHED_RETRY_NS);
    else
        sched_request_forward(s, r, to);
}

static void try_elsewhere(struct shoal_sched *s, struct sched_request *r)
{
    const struct shoal_job_summary *summary = sched_summary_find(s, r->job);

    if (shoal_job_id_is_mesh(r->job)) {
        try_mesh(s, r);
        return;
    }
    if (!shoal_node_id_is_zero(r->hint) && !sched_is_self(s, r->hint))
        sched_request_forward(s, r, r->hint);
    else if (r->hops == 0 && r->kind != SHOAL_SCHED_RECOVER && summary != NULL && !sched_is_self(s, summary->leader) &&
             !node_is_dead(s, summary->leader))
        sched_request_forward(s, r, summary->leader);
    else
        ask_around(s, r);
}

static void redirect(struct shoal_sched *s, struct sched_request *r, struct shoal_node_id leader)
{
    struct frame frame = { .kind = FRAME_RESPONSE };

    frame.u.response.id = r->id;
    frame.u.response.err = SHOAL_ERR_NOT_LEADER;
    frame.u.response.retry = true;
    frame.u.response.leader = leader;
    sched_send(s, r->origin, &frame);
    sched_founding_end(s, r->serial);
    release(s, r);
}

void sched_request_pass(struct shoal_sched *s, struct sched_request *r, struct shoal_node_id to)
{
    if (r->foreign)
        redirect(s, r, to);
    else
        sched_request_forward(s, r, to);
}

/* An election is under way, and its end wakes us; but this replica may be one that was left behind, so after a while
 * who leads by gossip is asked too. */
static void pause_for_election(struct shoal_sched *s, struct sched_request *r)
{
    const struct shoal_job_summary *summary = sched_summary_find(s, r->job);

    if (r->pauses < 3 || summary == NULL || sched_is_self(s, summary->leader) || node_is_dead(s, summary->leader)) {
        r->pauses++;
        sched_request_retry(s, r, SCHED_RETRY_NS);
        return;
    }
    r->pauses = 0;
    sched_request_forward(s, r, summary->leader);
}

/* A parked job: its owner brings it back; here only when that is this node, or nobody else would. */
static void wake_parked(struct shoal_sched *s, struct sched_request *r, struct shoal_node_id owner)
{
    if (!sched_is_self(s, owner) && !r->local_only && r->kind != SHOAL_SCHED_RECOVER && r->hops < SCHED_HOPS_MAX &&
        !node_is_dead(s, owner)) {
        sched_request_pass(s, r, owner);
        return;
    }
    sched_park_want(s, r->job);
    sched_request_retry(s, r, SCHED_RETRY_NS);
}

static void request_try(struct shoal_sched *s, struct sched_request *r)
{
    struct sched_group *g = sched_group_find(s, r->job);
    struct sched_archived *a = sched_archive_find(s, r->job);
    bool stale_read = r->kind == SHOAL_SCHED_GET && !r->linearizable;
    struct shoal_node_id owner;

    if (a != NULL) {
        sched_archive_serve(s, r, a);
        return;
    }
    if (g == NULL && sched_park_owner(s, r->job, &owner)) {
        wake_parked(s, r, owner);
        return;
    }
    if (g != NULL && (g->stopped || (r->kind == SHOAL_SCHED_RECOVER && !g->record_known)))
        g = NULL;
    if (g != NULL && g->refused) {
        sched_request_end(s, r, SHOAL_ERR_NOT_FOUND, nothing, "the founding of this job was refused; submit it again");
        return;
    }
    if (g != NULL && g->job != NULL && stale_read) {
        end_with_facts(s, r, g);
        return;
    }
    if (g != NULL && r->kind == SHOAL_SCHED_RECOVER) {
        sched_recover(s, r, g);
        return;
    }
    if (g != NULL && g->leads && g->gone_archived) {
        sched_request_retry(s, r, SCHED_RETRY_NS); /* it ends: then the archive answers */
        return;
    }
    if (g != NULL && g->leads) {
        serve_leading(s, r, g);
        return;
    }
    if (r->local_only) {
        sched_request_end(s, r, SHOAL_ERR_NOT_FOUND, nothing, "this node holds no replica of the job");
        return;
    }
    if (g == NULL && sched_is_gone(s, r->job)) {
        sched_request_end(s, r, SHOAL_ERR_NOT_FOUND, nothing, "the job was deleted, or its founding was refused");
        return;
    }
    if (r->foreign) {
        const struct shoal_node_id led_by = shoal_job_id_is_mesh(r->job) ? s->mesh_leader : nobody;

        redirect(s, r, g != NULL ? g->leader : led_by);
        return;
    }
    if (g == NULL)
        try_elsewhere(s, r);
    else if (!shoal_node_id_is_zero(g->leader) && !sched_is_self(s, g->leader) && r->hops < SCHED_HOPS_MAX)
        sched_request_forward(s, r, g->leader);
    else
        pause_for_election(s, r);
}

/* ---- Ends of waiting ---- */

void sched_add_name(char *text, size_t cap, struct shoal_node_id node)
{
    size_t len = strlen(text);

    if (len + 12 > cap)
        return;
    if (len > 0)
        text[len++] = ' ';
    shoal_hex_text(node.bytes, 4, text + len);
}

/* Nothing linearizable was asked for: what gossip says of the job will do. */
static bool end_with_summary(struct shoal_sched *s, struct sched_request *r)
{
    const struct shoal_job_summary *summary = sched_summary_find(s, r->job);
    struct shoal_job_facts facts = { 0 };
    size_t len;

    if (r->kind != SHOAL_SCHED_GET || r->linearizable || summary == NULL)
        return false;
    facts.id = summary->id;
    facts.state = summary->state;
    facts.elastic = summary->elastic;
    facts.has_metrics = summary->has_metrics;
    memcpy(facts.framework, summary->framework, sizeof(facts.framework));
    memcpy(facts.creator, summary->creator, sizeof(facts.creator));
    memcpy(facts.app_name, summary->app_name, sizeof(summary->app_name));
    memcpy(shoal_job_state_ended((enum shoal_job_state)summary->state) ? facts.reason : facts.pending, summary->pending,
           sizeof(summary->pending));
    facts.workers_min = summary->workers_min;
    facts.workers_max = summary->workers_max;
    facts.workers_now = summary->held;
    facts.priority = summary->priority;
    facts.exit_code = -1;
    facts.ticket_ms = summary->ticket_ms;
    facts.create_ms = summary->create_ms;
    facts.start_ms = summary->start_ms;
    facts.end_ms = summary->end_ms;
    facts.leader = summary->leader;
    facts.term = summary->term;
    facts.epoch = summary->epoch;
    facts.step = summary->step;
    facts.data_epoch = summary->data_epoch;
    facts.rate_milli = summary->rate_milli;
    facts.loss_micro = summary->loss_micro;
    facts.metric_micro = summary->metric_micro;
    if (shoal_job_facts_encode(&facts, s->scratch.bytes, s->scratch.cap, &len) != SHOAL_OK)
        return false;
    sched_request_end(s, r, SHOAL_OK, shoal_view_of(s->scratch.bytes, len), "stale: no guardian of the job answered");
    return true;
}

static void expire(struct shoal_sched *s, struct sched_request *r)
{
    char names[160] = "";
    const struct sched_group *g = sched_group_find(s, r->job);

    s->stats.requests_timed_out++;
    if (r->kind == SHOAL_SCHED_SUBMIT) {
        const struct sched_founding *f = sched_founding_of(s, r->serial);

        for (unsigned i = 0; f != NULL && i < f->ticket.guardian_count; i++) {
            if (f->answers[i] == GUARDIAN_SILENT)
                sched_add_name(names, sizeof(names), f->ticket.guardians[i].node);
        }
        sched_request_end(
            s, r, SHOAL_ERR_UNREACHABLE, nothing,
            "no majority of the guardians has answered (silent: %s); the outcome is open, try again with the "
            "ticket",
            names);
        return;
    }
    if (r->sent && r->kind == SHOAL_SCHED_MESH_CHANGE) {
        sched_request_end(s, r, SHOAL_ERR_TIMEOUT, nothing,
                          "the change was sent to the mesh group and not answered; look whether it took effect");
        return;
    }
    if (r->state == REQUEST_COPY) {
        sched_request_end(s, r, SHOAL_OK, r->kind == SHOAL_SCHED_MESH_READ ? shoal_buf_view(&s->copy) : nothing,
                          "committed; this node's copy is not that new yet");
        return;
    }
    if (r->state == REQUEST_DELETING && sched_gone_is_durable(s, r->job) && r->answered != 0) {
        sched_request_end(s, r, SHOAL_OK, nothing,
                          "deleted; a host that does not answer forgets it when it comes back");
        return;
    }
    if (end_with_summary(s, r))
        return;
    for (unsigned i = 0; i < r->ask_count; i++) {
        if (!(r->answered & 1u << i))
            sched_add_name(names, sizeof(names), r->ask[i]);
    }
    if (r->state == REQUEST_FORWARDED)
        sched_add_name(names, sizeof(names), r->asked);
    for (unsigned i = 0; g != NULL && i < g->told_count; i++)
        sched_add_name(names, sizeof(names), g->told[i].node);
    sched_request_end(s, r, SHOAL_ERR_UNREACHABLE, nothing,
                      r->kind == SHOAL_SCHED_RECOVER
                          ? "no node that could hold a replica of this job has answered (asked: %s); start one of its "
                            "guardians, or try again"
                          : "no leader of the group has answered (asked: %s); try again",
                      names[0] == '\0' ? "nobody is known" : names);
}

void sched_requests_due(struct shoal_sched *s)
{
    s->requests_ns = SCHED_NEVER;
    for (size_t i = 0; s->request_count > 0 && i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        struct sched_request *r = &s->requests[i];
        uint64_t at;

        if (r->state == REQUEST_FREE)
            continue;
        if (!sched_has_room(s)) {
            s->requests_ns = s->now;
            return;
        }
        if (s->now >= r->deadline_ns) {
            expire(s, r);
            continue;
        }
        if (s->now >= r->retry_ns) {
            r->retry_ns = SCHED_NEVER;
            if (r->state == REQUEST_FORWARDED) {
                r->hops = r->hops < UINT8_MAX ? (uint8_t)(r->hops + 1) : r->hops;
                r->ask_count = 0;
                request_try(s, r);
            } else if (r->state == REQUEST_WAITING) {
                request_try(s, r);
            } else if (r->state == REQUEST_ASKING) {
                ask_around(s, r);
            } else if (r->state == REQUEST_DELETING) {
                sched_archive_delete_due(s, r);
            } else if (r->state == REQUEST_SURVEY) {
                sched_recover_due(s, r);
            }
        }
        if (r->state == REQUEST_FREE)
            continue;
        at = r->retry_ns < r->deadline_ns ? r->retry_ns : r->deadline_ns;
        if (at < s->requests_ns)
            s->requests_ns = at;
    }
}

static void wake(struct shoal_sched *s, struct sched_request *r)
{
    r->retry_ns = s->now;
    s->requests_ns = s->now;
}

void sched_requests_led(struct shoal_sched *s, struct shoal_job_id job, struct shoal_node_id leader)
{
    for (size_t i = 0; s->request_count > 0 && i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        struct sched_request *r = &s->requests[i];
        bool reads = r->kind == SHOAL_SCHED_GET || r->kind == SHOAL_SCHED_WHY ||
                     r->kind == SHOAL_SCHED_TASKS; /* else it may be done already */
        bool misled = reads && r->state == REQUEST_FORWARDED && !shoal_node_id_is_zero(leader) &&
                      !shoal_node_id_equal(r->asked, leader);

        if ((r->state == REQUEST_WAITING || misled) && shoal_job_id_equal(r->job, job)) {
            r->hops = 0;
            wake(s, r);
        }
    }
}

void sched_requests_restart(struct shoal_sched *s, struct sched_group *g)
{
    for (size_t i = 0; s->request_count > 0 && i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        struct sched_request *r = &s->requests[i];

        if ((r->state == REQUEST_PROPOSED || r->state == REQUEST_READING) && shoal_job_id_equal(r->job, g->id))
            sched_request_retry(s, r, SCHED_RETRY_NS / 4);
    }
}

void sched_requests_link_down(struct shoal_sched *s, struct shoal_node_id node)
{
    for (size_t i = 0; s->request_count > 0 && i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        struct sched_request *r = &s->requests[i];

        if (r->state == REQUEST_FORWARDED && shoal_node_id_equal(r->asked, node) && r->kind != SHOAL_SCHED_MESH_CHANGE)
            wake(s, r);
    }
}

void sched_requests_deleted(struct shoal_sched *s, struct shoal_node_id from, struct shoal_job_id job, bool deleted)
{
    for (size_t i = 0; s->request_count > 0 && i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        struct sched_request *r = &s->requests[i];

        if (r->state != REQUEST_DELETING)
            continue;
        for (unsigned a = 0; deleted && shoal_job_id_equal(r->job, job) && a < r->ask_count; a++)
            if (shoal_node_id_equal(r->ask[a], from))
                r->answered |= (uint8_t)(1u << a);
        if (r->answered == (1u << r->ask_count) - 1)
            wake(s, r);
    }
}

/* ---- Of a group ---- */

void sched_requests_applied(struct shoal_sched *s, struct sched_group *g, uint64_t index, uint64_t term,
                            enum shoal_err err, const char *text)
{
    for (size_t i = 0; s->request_count > 0 && i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        struct sched_request *r = &s->requests[i];

        if (r->state != REQUEST_PROPOSED || r->index != index || !shoal_job_id_equal(r->job, g->id))
            continue;
        if (r->term != term) { /* another leader's entry took the place: ours is not in the log */
            r->sent = false;
            r->hops = 0;
            sched_request_retry(s, r, 0);
            continue;
        }
        r->version = index;
        if (err == SHOAL_OK && g->mesh_is && !r->foreign)
            sched_request_move(r, REQUEST_COPY); /* told when this node serves it */
        else
            sched_request_end(s, r, err, nothing, "%s", text);
    }
}

void sched_requests_rejected(struct shoal_sched *s, struct sched_group *g, uint64_t ctx, enum shoal_err err)
{
    struct sched_request *r;

    if (ctx & SCHED_CTX_READ) {
        g->read_serial = 0;
        for (size_t i = 0; i < SHOAL_SCHED_REQUESTS_MAX; i++) {
            r = &s->requests[i];
            if (r->state == REQUEST_READING && shoal_job_id_equal(r->job, g->id))
                sched_request_retry(s, r, err == SHOAL_ERR_FULL ? 10 * SHOAL_MS : SCHED_RETRY_NS / 4);
        }
        return;
    }
    r = sched_request_get(s, ctx);
    if (r == NULL || r->state != REQUEST_PROPOSED)
        return;
    if (err == SHOAL_ERR_TOO_BIG || err == SHOAL_ERR_INVALID)
        sched_request_end(s, r, err, nothing, "the change does not fit the log: %s", shoal_err_name(err));
    else
        sched_request_retry(s, r, SCHED_RETRY_NS / 4);
}

/* All that wait share one round; those that come later share the next. */
void sched_requests_read_round(struct shoal_sched *s, struct sched_group *g)
{
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_READ };
    uint64_t serial = ++s->request_serial;
    bool any = false;
    enum shoal_err err;

    if (g->read_serial != 0)
        return;
    g->reads_waiting = false;
    for (size_t i = 0; s->request_count > 0 && i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        struct sched_request *r = &s->requests[i];

        if (r->state != REQUEST_READING || r->read_serial != 0 || !shoal_job_id_equal(r->job, g->id))
            continue;
        r->read_serial = serial;
        any = true;
    }
    if (!any)
        return;
    g->read_serial = serial;
    event.u.read.ctx = SCHED_CTX_READ | serial;
    err = sched_group_step(s, g, &event);
    SHOAL_ASSERT(err == SHOAL_OK);
}

void sched_requests_readable(struct shoal_sched *s, struct sched_group *g)
{
    for (size_t i = 0; s->request_count > 0 && i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        struct sched_request *r = &s->requests[i];

        if (r->state == REQUEST_READING && r->read_index != 0 && r->read_index <= g->applied &&
            shoal_job_id_equal(r->job, g->id) && s->actions->count + 64 < SHOAL_SCHED_ACTIONS_MAX)
            finish_read(s, r, g);
    }
}

void sched_requests_read(struct shoal_sched *s, struct sched_group *g, uint64_t serial, uint64_t index)
{
    for (size_t i = 0; s->request_count > 0 && i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        struct sched_request *r = &s->requests[i];

        if (r->state == REQUEST_READING && r->read_serial == serial && shoal_job_id_equal(r->job, g->id))
            r->read_index = index == 0 ? 1 : index;
    }
    if (g->read_serial == serial)
        g->read_serial = 0;
    if (g->reads_waiting)
        sched_group_dirty(s, g);
    sched_requests_readable(s, g);
}

void sched_requests_copy(struct shoal_sched *s)
{
    for (size_t i = 0; s->request_count > 0 && i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        struct sched_request *r = &s->requests[i];

        if (r->state == REQUEST_COPY && r->version <= s->copy_version &&
            s->actions->count + 64 < SHOAL_SCHED_ACTIONS_MAX)
            sched_request_end(s, r, SHOAL_OK, r->kind == SHOAL_SCHED_MESH_READ ? shoal_buf_view(&s->copy) : nothing,
                              "%s", "");
    }
}

/* ---- In and out ---- */

static bool take_command(struct sched_request *r, struct shoal_view command)
{
    return shoal_buf_append(&r->command, command.bytes, command.len) == SHOAL_OK;
}

static void refuse_full(struct shoal_sched *s, const struct shoal_sched_request *request)
{
    char text[120];

    s->stats.requests_refused_full++;
    (void)snprintf(text, sizeof(text), "%d requests are open on this node; try again in a second",
                   SHOAL_SCHED_REQUESTS_MAX);
    reply(s, request->id, SHOAL_ERR_FULL, text, request->job, nothing);
}

void sched_on_request(struct shoal_sched *s, const struct shoal_sched_request *request)
{
    bool mesh = request->kind == SHOAL_SCHED_MESH_INIT || request->kind == SHOAL_SCHED_MESH_CHANGE ||
                request->kind == SHOAL_SCHED_MESH_READ;
    const uint8_t confirmed = request->confirmed ? 1 : 0;
    uint64_t wait = request->kind == SHOAL_SCHED_SUBMIT    ? SCHED_SUBMIT_NS
                    : request->kind == SHOAL_SCHED_RECOVER ? 4 * SCHED_REQUEST_NS
                                                           : SCHED_REQUEST_NS;
    struct sched_request *r = book(s);
    struct shoal_view command = mesh || request->kind == SHOAL_SCHED_TASKS ? request->command
                                : request->kind == SHOAL_SCHED_RECOVER     ? shoal_view_of(&confirmed, 1)
                                                                           : nothing;

    s->stats.requests++;
    if (r == NULL || !take_command(r, command)) {
        if (r != NULL) {
            release(s, r);
        }
        refuse_full(s, request);
        return;
    }
    if (request->deadline_ms > 0)
        wait = request->deadline_ms * SHOAL_MS;
    r->id = request->id;
    r->kind = request->kind;
    if (!mesh) /* the mesh group's id is all zeroes */
        r->job = request->job;
    r->linearizable = request->linearizable;
    r->local_only = request->local_only;
    memcpy(r->by, request->by, sizeof(r->by));
    r->by[sizeof(r->by) - 1] = '\0';
    r->deadline_ns = s->now + wait;
    r->retry_ns = SCHED_NEVER;
    if (r->deadline_ns < s->requests_ns)
        s->requests_ns = r->deadline_ns;
    switch (request->kind) {
    case SHOAL_SCHED_SUBMIT: sched_submit(s, r, request); break;
    case SHOAL_SCHED_TICKET: sched_ticket(s, r, request); break;
    case SHOAL_SCHED_MESH_INIT: sched_mesh_init(s, r); break;
    case SHOAL_SCHED_RECOVER:
    case SHOAL_SCHED_GET:
    case SHOAL_SCHED_STOP:
    case SHOAL_SCHED_DELETE:
    case SHOAL_SCHED_WHY:
    case SHOAL_SCHED_TASKS:
        if (shoal_job_id_is_mesh(request->job)) {
            sched_request_end(s, r, SHOAL_ERR_INVALID, nothing, "the id is empty");
            break;
        }
        request_try(s, r);
        break;
    case SHOAL_SCHED_MESH_CHANGE:
    case SHOAL_SCHED_MESH_READ: request_try(s, r); break;
    }
}

void sched_on_foreign(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    enum shoal_sched_request_kind kind = (enum shoal_sched_request_kind)frame->u.request.kind;
    struct sched_request *r;
    uint64_t wait = frame->u.request.deadline_ms * SHOAL_MS;

    if (kind == SHOAL_SCHED_SUBMIT || kind == SHOAL_SCHED_TICKET || kind == SHOAL_SCHED_MESH_INIT) {
        respond(s, from, frame->u.request.id, SHOAL_ERR_INVALID, "this request is not forwarded", nothing, 0);
        return;
    }
    r = book(s);
    if (r == NULL || !take_command(r, frame->u.request.command)) {
        if (r != NULL) {
            release(s, r);
        }
        s->stats.requests_refused_full++;
        respond(s, from, frame->u.request.id, SHOAL_ERR_FULL, "the leader has too many requests open; try again",
                nothing, 0);
        return;
    }
    r->id = frame->u.request.id;
    r->foreign = true;
    r->origin = from;
    r->hops = frame->u.request.hops;
    r->kind = kind;
    r->job = frame->u.request.job;
    r->linearizable = frame->u.request.linearizable;
    memcpy(r->by, frame->u.request.by, sizeof(r->by));
    r->deadline_ns = s->now + (wait > SCHED_REQUEST_NS * 4 ? SCHED_REQUEST_NS * 4 : wait);
    r->retry_ns = SCHED_NEVER;
    if (r->deadline_ns < s->requests_ns)
        s->requests_ns = r->deadline_ns;
    request_try(s, r);
}

void sched_on_response(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct sched_request *r = sched_request_get(s, frame->u.response.id);
    enum shoal_err err = (enum shoal_err)frame->u.response.err;

    if (r == NULL || r->foreign || r->state != REQUEST_FORWARDED || !shoal_node_id_equal(r->asked, from))
        return; /* late, or asked again elsewhere: the later answer counts */
    if (frame->u.response.retry) {
        r->sent = false;
        r->hops++;
        r->ask_count = 0;
        r->hint = frame->u.response.leader;
        if (sched_is_self(s, r->hint) || shoal_node_id_equal(r->hint, from))
            r->hint = nobody;
        if (shoal_job_id_is_mesh(r->job) && !shoal_node_id_is_zero(r->hint))
            s->mesh_leader = r->hint;
        /* At most 3 hops in one go; then a pause, in which an election may end. */
        if (r->hops < SCHED_HOPS_MAX && !shoal_node_id_is_zero(r->hint))
            sched_request_retry(s, r, 0);
        else {
            sched_request_retry(s, r, SCHED_RETRY_NS);
            if (!shoal_job_id_is_mesh(r->job))
                r->hops = 1; /* not by the summary again: it has just misled us */
        }
        return;
    }
    if (shoal_job_id_is_mesh(r->job))
        s->mesh_leader = from;
    if (err == SHOAL_OK && shoal_job_id_is_mesh(r->job)) {
        sched_request_move(r, REQUEST_COPY);
        r->version = frame->u.response.version;
        if (s->getting.heard < r->version)
            s->getting.heard = r->version;
        s->getting.from = from;
        if (s->copy_version < r->version && s->getting.retry_ns > s->now)
            s->getting.retry_ns = s->now;
        sched_requests_copy(s);
        return;
    }
    sched_request_end(s, r, err, frame->u.response.bytes, "%s", frame->u.response.text);
}

void sched_on_who(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct sched_group *g = sched_group_find(s, frame->u.who.job);
    const struct shoal_job_summary *summary = sched_summary_find(s, frame->u.who.job);
    struct frame answer = { .kind = FRAME_WHO_REPLY };
    bool parked;

    if (frame->u.who.id == 0) {
        if (g == NULL && sched_park_wake(s, frame->u.who.job))
            return; /* it comes back; the sender repeats */
        if (g != NULL)
            sched_say_removed(s, g, from);
        else if (sched_is_gone(s, frame->u.who.job))
            sched_say_gone(s, from, frame->u.who.job);
        else
            (void)sched_archive_say_ended(s, from, frame->u.who.job);
        return;
    }
    answer.u.who_reply.id = frame->u.who.id;
    answer.u.who_reply.job = frame->u.who.job;
    parked = g == NULL && sched_park_owner(s, frame->u.who.job, &answer.u.who_reply.leader);
    answer.u.who_reply.holds =
        parked || (g != NULL && g->record_known && !g->stopped) || sched_archive_find(s, frame->u.who.job) != NULL;
    answer.u.who_reply.gone = g == NULL && sched_is_gone(s, frame->u.who.job);
    if (g != NULL)
        answer.u.who_reply.leader = g->leader;
    else if (!parked && summary != NULL)
        answer.u.who_reply.leader = summary->leader;
    sched_send(s, from, &answer);
}

void sched_on_who_reply(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct sched_request *r = sched_request_get(s, frame->u.who_reply.id);
    unsigned all;

    if (r == NULL || r->state != REQUEST_ASKING || !shoal_job_id_equal(r->job, frame->u.who_reply.job))
        return;
    for (unsigned i = 0; i < r->ask_count; i++) {
        if (shoal_node_id_equal(r->ask[i], from))
            r->answered |= (uint8_t)(1u << i);
    }
    all = (1u << r->ask_count) - 1;
    if (frame->u.who_reply.gone) {
        sched_request_end(s, r, SHOAL_ERR_NOT_FOUND, nothing, "the job was deleted, or its founding was refused");
        return;
    }
    if (frame->u.who_reply.holds) {
        r->hint = frame->u.who_reply.leader;
        if (r->kind == SHOAL_SCHED_RECOVER || shoal_node_id_is_zero(r->hint) || sched_is_self(s, r->hint) ||
            node_is_dead(s, r->hint))
            r->hint = from;
        sched_request_retry(s, r, 0);
        return;
    }
    /* Hearsay counts only when nobody holds it, and not if it has just misled us. */
    if (r->kind != SHOAL_SCHED_RECOVER && !shoal_node_id_is_zero(frame->u.who_reply.leader) &&
        !sched_is_self(s, frame->u.who_reply.leader) && !shoal_node_id_equal(frame->u.who_reply.leader, r->asked) &&
        !node_is_dead(s, frame->u.who_reply.leader))
        r->rumour = frame->u.who_reply.leader;
    if (r->answered == all && !shoal_node_id_is_zero(r->rumour)) {
        r->hint = r->rumour;
        r->rumour = nobody;
        sched_request_retry(s, r, 0);
        return;
    }
    if (r->answered == all)
        sched_request_end(s, r, SHOAL_ERR_NOT_FOUND, nothing, "no such job: all %u nodes that could know it were asked",
                          (unsigned)r->ask_count); /* R3 */
}
