/* A request for a model, on any node: which hosts have ready replicas, one of two by chance, and there the queue.
 *
 *     infer --> name to job (this node's copy of the mesh; where it has no such name, the mesh group is asked)
 *           --> hosts that say by gossip that they serve it --> two by chance, the cheaper --> its queue, its kernel
 *                      ^                                            |
 *                      +-- it serves no more, is full, or its link broke while the request waited there
 *
 * I1. A request is handed to one kernel at most: it goes elsewhere only when its host says that no kernel has it, or said
 *     last that it waits and then was lost. (Where the host hands it on just then and is lost with that word, a second
 *     kernel gets it: one answer comes all the same.)
 * I2. Each request ends once, with the kernel's answer or with the reason.
 * I3. Where no kernel is ready, the service's group is asked: of a service that is started the request is held here until one
 *     comes or its time is over, and gossip says how many are held; unless its kernels end one after the other.
 * I4. A request whose client is gone ends silently: at once, or where a callback has it, when that comes.
 * I5. A request has the time, from its acceptance on, that the profile gives (its kernels' hosts tell it by gossip, of a service
 *     without a ready kernel its group), and no more than its client gives.
 * I6. A request that names a version gets that one or none. Of the others, the part that the profile's owner says is drawn for the
 *     canary, evenly: it gets the current version where the canary is not ready or full, and the canary's answer, be it an
 *     error, where a kernel of it has it. Never more: where the current version has no kernel, its requests wait for one.
 * I7. A request that waits at a host while gossip says that a kernel of the same version is free at another goes there, if its host
 *     gives it back, which it does as long as no kernel has it; INFER_MOVES_MAX times at most.
 * I8. Who has waited longest comes first: of those that are held all in one look, of those that wait at hosts BACK_LOOKS_MAX in a
 *     look, which goes on where the look before it ended.
 *
 * What goes to another host and comes back: backend_infer_out.c; what that host does: backend_infer_serve.c. */
#include "shoal/job_facts.h"
#include "shoal/mesh.h"
#include "shoal/route.h"
#include "shoal/sched_look.h"
#include "shoal/service_doc.h"

#include "backend_infer.h"

#include "shoal/banned.h"

#define READ_MS 5000
/* Of the questions to other nodes that may be open (peer_call_uv.c): the rest is for jobs. */
#define OUT_MAX 256
#define INFER_MOVES_MAX 4
/* Waiting requests for which one look asks whether another host has a free kernel. */
#define BACK_LOOKS_MAX 8

/* How often the group of a service is asked whether its requests are to be held on. */
#define HELD_ASK_NS (2 * SHOAL_S)
#define FAILING "a replica ended with "

static void hold(struct infer_call *call);

void backend_infer_end(struct infer_call *call, enum shoal_err err, const char *text,
                      const struct shoal_inferred *inferred)
{
    struct infer_call **at = &call->agent->infer_calls;
    struct shoal_msg msg;

    (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
    while (*at != call)
        at = &(*at)->all_next;
    *at = call->all_next;
    if (!call->gone)
        call->done(call->arg, err, &msg, inferred);
    call->agent->infer_answer_bytes -= call->answer.len;
    shoal_buf_deinit(&call->answer);
    free(call);
}

/* ---- choosing ---- */

static bool was_tried(const struct infer_call *call, struct shoal_node_id node)
{
    for (unsigned i = 0; i < call->tries; i++)
        if (shoal_node_id_equal(call->tried[i], node))
            return true;
    return false;
}

/* Requests that this node has sent there itself count at once; the host's own word is some time old. */
static uint64_t sent_to(const struct agent *agent, struct shoal_node_id node)
{
    uint64_t count = 0;

    for (const struct infer_call *c = agent->infers; c != NULL; c = c->next)
        count += shoal_node_id_equal(c->tried[c->tries - 1], node);
    return count;
}

static bool reaches(struct agent *agent, struct shoal_node_id node)
{
    struct shoal_member member;

    return shoal_swim_member_find(membership_swim(agent->membership), node, &member) &&
           (member.state == SHOAL_MEMBER_ALIVE || member.state == SHOAL_MEMBER_SUSPECT) &&
           shoal_link_is_up(agent->link, node);
}

static uint32_t chance(void *arg)
{
    uint32_t drawn = 0;

    (void)arg;
    shoal_random(&drawn, sizeof(drawn));
    return drawn;
}

/* I5. `limit_s` 0: nobody has told. */
static void limit(struct infer_call *call, uint32_t limit_s)
{
    uint64_t ms = limit_s == 0 ? SHOAL_INFER_TIMEOUT_MS : limit_s * 1000ull;

    if (call->infer.timeout_ms > 0 && (call->infer.timeout_ms < ms || limit_s == 0))
        ms = call->infer.timeout_ms;
    call->deadline_ns = call->begun_ns + (ms < SHOAL_INFER_TIMEOUT_MS_MAX ? ms : SHOAL_INFER_TIMEOUT_MS_MAX) * SHOAL_MS;
}

static void offer_others(struct infer_call *call, struct shoal_route *route)
{
    struct agent *agent = call->agent;
    struct shoal_serving_record serving;
    struct shoal_record record;
    uint32_t cursor = 0;

    while (shoal_records_next(membership_swim(agent->membership), SHOAL_RECORD_SERVICE, &cursor, &record)) {
        if (record.tombstone || shoal_node_id_equal(record.author, agent->identity.node) ||
            was_tried(call, record.author) || shoal_serving_record_decode(record.payload, &serving) != SHOAL_OK ||
            (call->infer.body.len > INFER_WHOLE_BYTES_MAX && !serving.pieces))
            continue;
        for (unsigned i = 0; i < serving.count; i++) {
            const struct shoal_serving *s = &serving.services[i];

            if (s->ready > 0 && shoal_job_id_equal(s->job, call->job))
                shoal_route_offer(route,
                                  &(struct shoal_route_host){ .node = record.author,
                                                              .ready = s->ready,
                                                              .room = s->room,
                                                              .open = s->open + sent_to(agent, record.author),
                                                              .limit_s = s->limit_s,
                                                              .pieces = serving.pieces,
                                                              .reached = reaches(agent, record.author) },
                                  chance, NULL);
        }
    }
}

static void offer_all(struct infer_call *call, struct shoal_route *route)
{
    struct agent *agent = call->agent;
    struct serve_facts facts[SERVE_FACTS_MAX];
    size_t count = serve_host_facts(agent->serve, facts, SERVE_FACTS_MAX);

    for (size_t i = 0; i < count; i++)
        if (shoal_job_id_equal(facts[i].job, call->job))
            shoal_route_offer(route,
                              &(struct shoal_route_host){ .node = agent->identity.node,
                                                          .ready = facts[i].ready,
                                                          .room = facts[i].room,
                                                          .open = facts[i].open,
                                                          .limit_s = facts[i].limit_s,
                                                          .pieces = true,
                                                          .reached = true,
                                                          .tried = was_tried(call, agent->identity.node) },
                              chance, NULL);
    offer_others(call, route);
}

static bool choose_of(struct infer_call *call, struct shoal_node_id *node)
{
    struct shoal_route route = { 0 };
    const struct shoal_route_host *best;

    offer_all(call, &route);
    best = shoal_route_best(&route);
    if (best == NULL)
        return false;
    *node = best->node;
    call->pieces = best->pieces;
    limit(call, best->limit_s);
    return true;
}

bool backend_infer_may_move(struct infer_call *call)
{
    struct shoal_route route = { 0 };
    const struct shoal_route_host *best;

    if (call->moves >= INFER_MOVES_MAX || call->tries >= INFER_TRIES_MAX)
        return false;
    offer_all(call, &route);
    best = shoal_route_best(&route);
    return best != NULL && best->open < best->room;
}

/* A canary that is not ready leaves its requests to the current version, and a current one to the one before: but not to a
 * canary, which would have all of them while the current one has no kernels. */
static bool choose(struct infer_call *call, struct shoal_node_id *node)
{
    const struct shoal_job_id order[] = { call->canary, call->current, call->before };

    for (unsigned i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        call->job = order[i];
        if (!shoal_job_id_is_mesh(order[i]) && choose_of(call, node))
            return true;
    }
    call->job = call->current;
    return false;
}

void backend_infer_elsewhere(struct infer_call *call, bool full)
{
    if (!shoal_job_id_is_mesh(call->canary) && shoal_job_id_equal(call->job, call->canary)) { /* I6 */
        call->canary = (struct shoal_job_id){ { 0 } };
        call->tries = 0;
    } else {
        call->full = call->full || full;
    }
    backend_infer_next(call);
}

/* Where no other takes it any more, it goes to whoever is the cheapest now. */
void backend_infer_moved(struct infer_call *call)
{
    if (!backend_infer_may_move(call))
        call->tries = 0;
    backend_infer_next(call);
}

/* ---- on this host ---- */

static void on_local(void *arg, enum shoal_err err, const char *text, const struct serve_answer *answer)
{
    struct infer_call *call = arg;
    struct shoal_inferred inferred;

    call->kernel_id = 0;
    if (err == SHOAL_ERR_STALE || err == SHOAL_ERR_FULL) {
        backend_infer_elsewhere(call, err == SHOAL_ERR_FULL);
        return;
    }
    if (answer != NULL)
        inferred = (struct shoal_inferred){ answer->status, answer->header_len, answer->content_type, answer->body };
    backend_infer_end(call, err, text, answer == NULL ? NULL : &inferred);
}

static void on_local_piece(void *arg, struct shoal_view piece)
{
    const struct infer_call *call = arg;

    call->infer.piece(call->arg, piece);
}

static void on_local_handed(void *arg) { ((struct infer_call *)arg)->waits = false; }

static void run_here(struct infer_call *call, uint32_t timeout_ms)
{
    const struct shoal_infer *i = &call->infer;
    struct serve_ask ask = { .job = call->job,
                             .body = i->body,
                             .timeout_ms = timeout_ms,
                             .gone = i->gone,
                             .id = &call->kernel_id,
                             .piece = i->piece == NULL ? NULL : on_local_piece,
                             .handed = on_local_handed,
                             .done = on_local,
                             .arg = call,
                             .head = { .path = i->path,
                                       .method = i->method,
                                       .content_type = i->content_type,
                                       .model = i->model,
                                       .version = i->version,
                                       .user = i->caller->name,
                                       .header_len = i->header_len } };

    call->waits = false;
    if (serve_host_infer(call->agent->serve, &ask)) /* else it may be freed already */
        call->waits = true;
}

/* I7, of one that waits on this host. */
static void here_back(struct infer_call *call)
{
    if (call->kernel_id == 0 || !backend_infer_may_move(call) ||
        !serve_host_take_back(call->agent->serve, call->kernel_id))
        return;
    call->kernel_id = 0;
    call->waits = false;
    call->moves++;
    backend_infer_next(call);
}

/* The oldest BACK_LOOKS_MAX of those that wait and came after request `id`. Returns how many. */
static unsigned waits_after(const struct agent *agent, uint64_t id, uint64_t ids[BACK_LOOKS_MAX])
{
    unsigned count = 0, found = 0;

    for (const struct infer_call *c = agent->infer_calls; c != NULL && c->id > id; c = c->all_next) /* the newest first */
        if (c->waits && !c->gone)
            ids[found++ % BACK_LOOKS_MAX] = c->id;
    count = found < BACK_LOOKS_MAX ? found : BACK_LOOKS_MAX;
    for (unsigned i = 1; i < count; i++) /* a few: by their age */
        for (unsigned at = i; at > 0 && ids[at] < ids[at - 1]; at--) {
            uint64_t older = ids[at];

            ids[at] = ids[at - 1];
            ids[at - 1] = older;
        }
    return count;
}

/* I8. By their numbers: what one brings about may end others. */
static void look_back(struct agent *agent)
{
    uint64_t ids[BACK_LOOKS_MAX];
    unsigned count = waits_after(agent, agent->infer_looked, ids);

    agent->infer_looked = count < BACK_LOOKS_MAX ? 0 : ids[count - 1];
    for (unsigned i = 0; i < count; i++) {
        struct infer_call *call = backend_infer_find(agent, ids[i]);

        if (call == NULL || !call->waits)
            continue;
        if (call->kernel_id != 0)
            here_back(call);
        else
            backend_infer_out_back(call);
    }
}

static bool out_is_full(const struct agent *agent)
{
    unsigned count = 0;

    for (const struct infer_call *c = agent->infers; c != NULL && count < OUT_MAX; c = c->next)
        count++;
    return count == OUT_MAX;
}

static void send_to(struct infer_call *call, struct shoal_node_id node, uint64_t now)
{
    uint32_t left_ms = (uint32_t)((call->deadline_ns - now - 1) / SHOAL_MS) + 1;

    call->held = false;
    call->tried[call->tries++] = node;
    if (shoal_node_id_equal(node, call->agent->identity.node))
        run_here(call, left_ms);
    else
        backend_infer_out(call, node, left_ms);
}

void backend_infer_next(struct infer_call *call)
{
    uint64_t now = agent_now_ns();
    struct shoal_node_id node;
    struct shoal_route_facts facts = { .gone = call->gone || (call->infer.gone != NULL && *call->infer.gone),
                                       .was_full = call->full || call->crowded };

    facts.found = !facts.gone && call->tries < INFER_TRIES_MAX && choose(call, &node);
    facts.late = now >= call->deadline_ns;
    facts.here = facts.found && shoal_node_id_equal(node, call->agent->identity.node);
    facts.out_full = facts.found && !facts.here && out_is_full(call->agent);
    switch (shoal_route_next(&facts)) {
    case SHOAL_ROUTE_GIVEN_UP:
        backend_infer_end(call, SHOAL_ERR_TIMEOUT, "its client has given it up", NULL);
        break;
    case SHOAL_ROUTE_LATE:
        backend_infer_end(call, SHOAL_ERR_TIMEOUT, "its time was over before a kernel was free" SERVE_LIMIT_TEXT, NULL);
        break;
    case SHOAL_ROUTE_FULL:
        backend_infer_end(call, SHOAL_ERR_FULL,
                          call->full ? "the queues of this model are full; send it again in a second"
                                     : "the way to this model's hosts is full; send it again in a second, or ask another node",
                          NULL);
        break;
    case SHOAL_ROUTE_HOLD: hold(call); break;
    case SHOAL_ROUTE_OUT_FULL:
        backend_infer_end(call, SHOAL_ERR_FULL, "this node passes on as many requests as it may; send it again in a second",
                          NULL);
        break;
    case SHOAL_ROUTE_SEND: send_to(call, node, now); break;
    }
}

/* ---- held, until a kernel is ready ---- */

static void refuse_held(struct infer_call *call)
{
    char text[300];

    (void)snprintf(text, sizeof(text), "Inference service for model <%s> is currently unavailable.", call->infer.model);
    backend_infer_end(call, SHOAL_ERR_UNREACHABLE, text, NULL);
}

/* The newest is first in the list. */
static void held_put(struct infer_call *call)
{
    struct infer_call **at = &call->agent->held;

    while (*at != NULL && (*at)->id > call->id)
        at = &(*at)->next;
    call->tries = 0; /* who had no kernel may have one then */
    call->next = *at;
    *at = call;
    call->agent->serving_changed = true;
}

/* All of them, the oldest first (I8). */
static struct infer_call *held_take(struct agent *agent)
{
    struct infer_call *oldest = NULL;

    while (agent->held != NULL) {
        struct infer_call *call = agent->held;

        agent->held = call->next;
        call->next = oldest;
        oldest = call;
    }
    return oldest;
}

/* Why the version that is asked for has no kernel: of another one than the current, gossip says it. */
static void say_waits(const struct infer_call *call, const char *pending, char *why, size_t cap)
{
    struct shoal_job_summary *summary;

    (void)snprintf(why, cap, "%s", pending);
    if (shoal_job_id_equal(call->group, call->current))
        return;
    summary = calloc(1, sizeof(*summary));
    SHOAL_ASSERT(summary != NULL);
    (void)backend_summary(call->agent, call->current, summary);
    (void)snprintf(why, cap, "%s", summary->pending);
    free(summary);
}

/* Its group is that of a canary whose deployment was interrupted, and which the name stands for meanwhile. */
static bool waits_for_half(const struct infer_call *call, const struct service_knobs *knobs)
{
    const struct shoal_mesh *mesh = shoal_sched_mesh(call->agent->sched);
    const struct shoal_mesh_service *service = mesh == NULL ? NULL : shoal_mesh_service_find(mesh, call->infer.model);

    return service != NULL && shoal_job_id_equal(service->job, call->current) &&
           shoal_job_id_equal(service->before, call->before) && backend_service_is_half(knobs, service);
}

static void on_held_facts(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct infer_call *call = arg;
    struct shoal_job_facts *facts = calloc(1, sizeof(*facts));
    struct service_knobs knobs = { .started = false };
    char why[sizeof(facts->pending)];

    SHOAL_ASSERT(facts != NULL);
    if (err == SHOAL_OK && shoal_job_facts_decode(reply->u.reply.bytes, facts) == SHOAL_OK)
        service_doc_knobs(facts->document, facts->replicas, &knobs);
    if (!call->gone && waits_for_half(call, &knobs)) {
        free(facts);
        call->job = call->current = call->group = call->before; /* as if its client had pinned it, which wakes it */
        call->before = (struct shoal_job_id){ { 0 } };
        call->asked_ns = 0;
        hold(call);
        return;
    }
    if (knobs.timeout_s > 0)
        limit(call, knobs.timeout_s);
    say_waits(call, facts->pending, why, sizeof(why));
    if (call->gone)
        backend_infer_end(call, SHOAL_ERR_STALE, "", NULL);
    else if (knobs.started && knobs.kernels_max > 0 && strncmp(why, FAILING, sizeof(FAILING) - 1) != 0)
        held_put(call);
    else
        refuse_held(call);
    free(facts);
}

/* Those whose group is being asked count too: all of them may come back to be held. */
static bool held_full(const struct agent *agent)
{
    unsigned count = 0;

    for (const struct infer_call *c = agent->infer_calls; c != NULL && count < SHOAL_SERVICE_QUEUE_MAX; c = c->all_next)
        count += c->held;
    return count == SHOAL_SERVICE_QUEUE_MAX;
}

/* I3. */
static void hold(struct infer_call *call)
{
    struct shoal_sched_request get = {
        .kind = SHOAL_SCHED_GET, .job = call->group, .linearizable = true, .deadline_ms = READ_MS
    };

    if (!call->held && held_full(call->agent)) {
        backend_infer_end(call, SHOAL_ERR_FULL, "as many requests wait here for kernels as may; send it again in a second",
                  NULL);
        return;
    }
    call->held = true;
    if (call->asked_ns != 0 && agent_now_ns() < call->asked_ns + HELD_ASK_NS) {
        held_put(call);
        return;
    }
    call->asked_ns = agent_now_ns();
    agent_request(call->agent, &get, on_held_facts, call);
}

void backend_infer_look(struct agent *agent)
{
    struct infer_call *call;

    backend_infer_serve_look(agent);
    look_back(agent);
    call = held_take(agent);
    while (call != NULL) { /* SHOAL_SERVICE_QUEUE_MAX at most (held_full); those that are held again are in a new list */
        struct infer_call *next = call->next;

        call->next = NULL;
        if (agent->stopping && !call->gone)
            refuse_held(call);
        else
            backend_infer_next(call);
        call = next;
    }
}

size_t backend_infer_held(struct agent *agent, struct shoal_serving *held, size_t cap)
{
    size_t count = 0, at;

    for (const struct infer_call *c = agent->held; c != NULL; c = c->next) {
        for (at = 0; at < count && !shoal_job_id_equal(held[at].job, c->current);)
            at++;
        if (at == count && count == cap)
            continue;
        if (at == count)
            held[count++] = (struct shoal_serving){ .job = c->current };
        held[at].open++;
    }
    return count;
}

/* ---- from the name on ---- */

/* I6. The numbers of requests, times the golden ratio, are spread evenly, whichever of them are this service's. */
static bool is_drawn(const struct infer_call *call, uint8_t part)
{
    uint64_t place = (uint32_t)(call->id * 2654435769u);

    return part > 0 && place * 100 < (part - 1ull) << 32;
}

static void infer_found(void *arg, enum shoal_err err, const char *text, const struct shoal_mesh_service *service)
{
    struct infer_call *call = arg;
    uint8_t part;

    if (err != SHOAL_OK || call->gone) {
        backend_infer_end(call, err, text, NULL);
        return;
    }
    call->job = call->current = call->group = service->job;
    part = shoal_job_id_is_mesh(service->before) ? 0 : backend_canary_part(call->agent, service->job);
    if (part == 0)
        call->before = service->before;
    else if (is_drawn(call, part))
        call->canary = service->before; /* which has its part, and answers for the current version no more than that */
    backend_infer_next(call);
}

static void version_found(void *arg, enum shoal_err err, const char *text, const struct backend_version *found)
{
    struct infer_call *call = arg;

    if (err != SHOAL_OK || call->gone) {
        backend_infer_end(call, err, text, NULL);
        return;
    }
    call->job = call->current = found->job;
    call->group = found->service->job;
    backend_infer_next(call);
}

void backend_infer(void *ctx, struct shoal_infer *infer, shoal_backend_infer_fn *done, void *arg)
{
    struct infer_call *call = calloc(1, sizeof(*call));

    SHOAL_ASSERT(call != NULL);
    call->agent = ctx;
    call->id = infer->number = ++call->agent->infer_next;
    call->all_next = call->agent->infer_calls;
    call->agent->infer_calls = call;
    call->infer = *infer;
    call->begun_ns = agent_now_ns();
    limit(call, 0);
    call->done = done;
    call->arg = arg;
    if (infer->version != NULL && infer->version[0] != '\0')
        backend_version_find(ctx, infer->model, infer->version, false, version_found, call);
    else
        backend_service_find(ctx, infer->model, false, infer_found, call);
}

struct infer_call *backend_infer_find(const struct agent *agent, uint64_t number)
{
    struct infer_call *call = agent->infer_calls;

    while (call != NULL && call->id != number)
        call = call->all_next;
    return call != NULL && !call->gone ? call : NULL;
}

void backend_infer_more(void *ctx, uint64_t number, size_t bytes)
{
    struct agent *agent = ctx;
    struct infer_call *call = backend_infer_find(agent, number);

    if (call != NULL && call->kernel_id != 0)
        serve_host_more(agent->serve, call->kernel_id, bytes);
    else if (call != NULL)
        backend_infer_out_more(call, bytes);
}

static bool held_remove(const struct infer_call *call)
{
    struct infer_call **at = &call->agent->held;

    while (*at != NULL && *at != call)
        at = &(*at)->next;
    if (*at == NULL)
        return false;
    *at = call->next;
    call->agent->serving_changed = true;
    return true;
}

void backend_infer_cancel(void *ctx, uint64_t number)
{
    struct agent *agent = ctx;
    struct infer_call *call = backend_infer_find(agent, number);

    if (call == NULL)
        return;
    call->gone = true;
    if (call->kernel_id != 0)
        serve_host_cancel(agent->serve, call->kernel_id);
    if (call->kernel_id != 0 || held_remove(call))
        backend_infer_end(call, SHOAL_ERR_STALE, "", NULL);
    else
        backend_infer_out_cancel(call); /* else a callback has it, and ends it */
}
