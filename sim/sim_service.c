/* Services in the mesh: requests enter at any host, go by shoal/route.h to kernels, and the leader of each service scales it by
 * shoal/autoscale.h, all with what each host knows by gossip.
 *
 *     burst --> ingress: route --> link --> host: queue --> kernel --> answer --> ingress
 *                 |  nobody fits: held       | gossip: ready, open       looks of the leader: SCALE
 *
 * V1. A service has as many replicas as its document allows, and an autoscaler asks for no others.
 * V2. A burst that no kernel takes (A4 of shoal/autoscale.h) is answered by more replicas within its bound.
 * V3. No request goes to a host that its ingress knows to be dead or without replicas, while another fits.
 * V4. A request ends once, and no second kernel gets it, but where the first's host was lost while it waited there.
 * V5. A replica that is drained answers what it has, as far as there is time.
 * V6. A service that is started holds requests when it has no replica: none is refused; after all faults each is answered.
 * The shells that this stands for: node/backend/backend_infer*.c, backend_scale.c, node/serve/serve_host_uv.c. */
#include "shoal/autoscale.h"
#include "shoal/control_record.h"
#include "shoal/job_facts.h"
#include "shoal/job_spec.h"
#include "shoal/route.h"
#include "shoal/sched_look.h"
#include "sim.h"
#include "sim_service.h"

#include "shoal/banned.h"

#define LOOK_NS (100 * SHOAL_MS)
#define TOLD_LOOKS 10u
#define KERNEL_NS (40 * SHOAL_MS)
#define FLOOR_NS (2 * SHOAL_S)
#define HELD_ASK_NS (2 * SHOAL_S)
#define MARGIN_NS (5 * SHOAL_S)
#define LIMIT_NS (60 * SHOAL_S)
#define ANSWER_NS (5 * SHOAL_S)
#define CALM_NS (15 * SHOAL_S)
#define INFERS_MAX 50000u
#define NONE UINT32_MAX

/* ---- the document: what a simulated service says of itself ---- */

size_t sim_document(const struct sim_job *job, bool started, uint32_t edit, char *text, size_t cap)
{
    int len = snprintf(text, cap, "min %u max %u batch %u started %d edit %u", job->kernels_min, job->kernels_max,
                       job->batch, started, edit);

    SHOAL_ASSERT(len > 0 && (size_t)len < cap);
    return (size_t)len;
}

bool sim_document_read(struct shoal_view view, struct sim_knobs *knobs)
{
    char text[200];
    size_t len = view.len < sizeof(text) - 1 ? view.len : sizeof(text) - 1;
    int started;

    memcpy(text, view.bytes, len);
    text[len] = '\0';
    if (sscanf(text, "min %u max %u batch %u started %d edit %u", &knobs->min, &knobs->max, &knobs->batch, &started,
               &knobs->edit) != 5)
        return false;
    knobs->started = started != 0;
    return true;
}

bool sim_service_runs(const struct shoal_job *replica)
{
    struct sim_knobs knobs;

    return sim_document_read(shoal_view_of(replica->document, replica->document_len), &knobs) && knobs.started;
}

/* ---- the end of a request ---- */

static struct sim_infer *infer_of(struct sim *sim, uint64_t number) { return &sim->infers[number]; }

static void infer_end(struct sim *sim, struct sim_infer *infer, enum shoal_err err, const char *why)
{
    bool fine = err == SHOAL_OK || err == SHOAL_ERR_TIMEOUT || err == SHOAL_ERR_RANK_LOST || err == SHOAL_ERR_FULL ||
                sim->jobs[infer->job].stop_asked;

    if (infer->state == SIM_INFER_OVER)
        sim_fail(sim, "request %u of service %u is ended twice", infer->number, infer->job + 1); /* V4 */
    infer->state = SIM_INFER_OVER;
    infer->err = err;
    sim->infers_open--;
    sim->infers_answered += err == SHOAL_OK;
    sim_trace(sim, "h%u: request %u of service %u ends: %s %s", infer->from + 1, infer->number, infer->job + 1,
              shoal_err_name(err), why);
    if (infer->probe && err != SHOAL_OK)
        sim_fail(sim, "all is healed, but request %u of service %u at h%u is not answered: %s %s", infer->number,
                 infer->job + 1, infer->from + 1, shoal_err_name(err), why); /* V6 */
    if (!fine && !infer->may_refuse)
        sim_fail(sim, "request %u of service %u, which is started, is refused at h%u: %s %s", infer->number,
                 infer->job + 1, infer->from + 1, shoal_err_name(err), why); /* V6 */
}

/* ---- replicas on a host ---- */

static bool is_kernel(const struct sim *sim, const struct sim_worker *worker)
{
    return worker->role == SHOAL_JOB_TASK && sim->jobs[worker->job].service;
}

static bool takes(const struct sim *sim, const struct sim_worker *worker, uint32_t job)
{
    return worker->job == job && is_kernel(sim, worker) && worker->connected && !worker->draining && !worker->dying;
}

static struct shoal_serving facts_of(const struct sim_host *host, uint32_t job)
{
    struct shoal_serving s = { .job = host->sim->jobs[job].id };

    for (const struct sim_worker *w = host->workers; w != NULL; w = w->next) {
        s.open += w->job == job ? w->in_hand : 0;
        s.ready += takes(host->sim, w, job);
    }
    for (const struct sim_served *at = host->served; at != NULL; at = at->next)
        s.open += at->worker == 0 && infer_of(host->sim, at->infer)->job == job;
    s.room = s.ready * host->sim->jobs[job].batch;
    return s;
}

static struct sim_served *served_remove(struct sim_host *host, uint32_t infer)
{
    struct sim_served **at = &host->served, *found;

    while (*at != NULL && (*at)->infer != infer)
        at = &(*at)->next;
    found = *at;
    if (found != NULL)
        *at = found->next;
    return found;
}

/* A word of the host of a request to the node that was asked. */
static void tell(struct sim_host *host, const struct sim_infer *infer, enum sim_kind kind, uint32_t what)
{
    struct sim *sim = host->sim;
    uint64_t number = 0;
    struct sim_event *event;

    if (infer->from != host->index && !sim_link_is_up(sim, host->index, infer->from, &number))
        return; /* it hears that the link broke */
    event = sim_push(sim, kind, infer->from, infer->from == host->index ? 0 : sim->options.latency_ns);
    event->word = infer->number;
    event->from = what;
    event->link = number;
}

static void answer(struct sim_host *host, uint32_t infer, enum shoal_err err)
{
    tell(host, infer_of(host->sim, infer), SIM_INFER_ANSWER, (uint32_t)err);
}

static void kernel_take(struct sim_host *host, struct sim_worker *worker, struct sim_served *served)
{
    struct sim *sim = host->sim;
    struct sim_infer *infer = infer_of(sim, served->infer);

    served->worker = worker->id;
    worker->in_hand++;
    infer->runs++;
    if (infer->runs > 1 + infer->lost_waiting)
        sim_fail(sim, "request %u of service %u is in a second kernel, on %s", infer->number, infer->job + 1,
                 host->name); /* V4 */
    tell(host, infer, SIM_INFER_WORD, 0);
    sim_push(sim, SIM_KERNEL, host->index, sim_about(&sim->service_chance, KERNEL_NS))->word = (uint64_t)served->infer;
}

static void dispatch(struct sim_host *host, uint32_t job)
{
    for (struct sim_served *served = host->served; served != NULL; served = served->next) {
        struct sim_worker *best = NULL;

        if (served->worker != 0 || infer_of(host->sim, served->infer)->job != job)
            continue;
        for (struct sim_worker *w = host->workers; w != NULL; w = w->next)
            if (takes(host->sim, w, job) && w->in_hand < host->sim->jobs[job].batch &&
                (best == NULL || w->in_hand < best->in_hand))
                best = w;
        if (best == NULL)
            return;
        kernel_take(host, best, served);
    }
}

static bool any_takes(const struct sim_host *host, uint32_t job)
{
    for (const struct sim_worker *w = host->workers; w != NULL; w = w->next)
        if (takes(host->sim, w, job))
            return true;
    return false;
}

/* Those that wait here for a service without a kernel go elsewhere. */
static void refuse_waiting(struct sim_host *host, uint32_t job)
{
    struct sim_served **at = &host->served;

    while (*at != NULL && !any_takes(host, job)) {
        struct sim_served *served = *at;

        if (served->worker != 0 || infer_of(host->sim, served->infer)->job != job) {
            at = &served->next;
            continue;
        }
        *at = served->next;
        answer(host, served->infer, SHOAL_ERR_STALE);
        free(served);
    }
}

bool sim_kernel_connected(struct sim_host *host, struct sim_worker *worker)
{
    if (!is_kernel(host->sim, worker))
        return false;
    if (!worker->connected)
        sim_trace(host->sim, "%s: the kernel %llx of service %u is ready", host->name, (unsigned long long)worker->id,
                  worker->job + 1);
    worker->connected = true;
    host->serving_changed = true;
    dispatch(host, worker->job);
    return true;
}

/* H4 of node/serve/serve_host.h. */
bool sim_kernel_drain(struct sim_host *host, struct sim_worker *worker, uint64_t grace_ns)
{
    if (!is_kernel(host->sim, worker) || grace_ns == 0)
        return false;
    host->serving_changed = true;
    if (worker->draining)
        return true;
    worker->draining = true;
    worker->drain_ns = host->sim->now_ns + grace_ns;
    refuse_waiting(host, worker->job);
    return worker->in_hand > 0;
}

/* Its process has ended, however. */
void sim_kernel_ended(struct sim_host *host, const struct sim_worker *worker)
{
    struct sim_served **at = &host->served;

    if (!is_kernel(host->sim, worker))
        return;
    if (worker->draining && !worker->dead && worker->in_hand > 0 && host->sim->now_ns < worker->drain_ns &&
        !sim_worker_stands(worker) && worker->connected)
        sim_fail(host->sim, "%s: a replica of service %u was drained and ended with %u requests", host->name,
                 worker->job + 1, worker->in_hand); /* V5 */
    while (*at != NULL) {
        struct sim_served *served = *at;

        if (served->worker != worker->id) {
            at = &served->next;
            continue;
        }
        *at = served->next;
        answer(host, served->infer, SHOAL_ERR_RANK_LOST);
        free(served);
    }
    host->serving_changed = true;
    refuse_waiting(host, worker->job);
}

/* A kernel has computed a request. */
static void on_kernel(struct sim_host *host, uint32_t number)
{
    struct sim_served *served = host->served;
    struct sim_worker *worker = NULL;

    while (served != NULL && served->infer != number)
        served = served->next;
    if (served == NULL || served->worker == 0)
        return; /* the kernel, or its agent, has ended meanwhile */
    worker = sim_worker_find(host->sim, served->worker);
    if (worker == NULL || worker->host != host->index)
        return;
    if (sim_worker_stands(worker)) {
        sim_push(host->sim, SIM_KERNEL, host->index, 50 * SHOAL_MS)->word = number;
        return;
    }
    free(served_remove(host, number));
    answer(host, number, SHOAL_OK);
    worker->in_hand--;
    if (worker->draining && worker->in_hand == 0)
        sim_worker_kill(host, worker, worker->drain_ns > host->sim->now_ns ? worker->drain_ns - host->sim->now_ns : 1);
    dispatch(host, infer_of(host->sim, number)->job);
}

/* A request has come to the host of a kernel. */
static void on_asked(struct sim_host *host, uint32_t number)
{
    struct sim_infer *infer = infer_of(host->sim, number);
    struct sim_served *served, **at = &host->served;
    uint32_t waiting = 0;

    if (!any_takes(host, infer->job)) {
        answer(host, number, SHOAL_ERR_STALE);
        return;
    }
    for (; *at != NULL; at = &(*at)->next)
        waiting += (*at)->worker == 0;
    if (waiting >= SHOAL_SERVICE_QUEUE_MAX) {
        answer(host, number, SHOAL_ERR_FULL);
        return;
    }
    served = sim_alloc(sizeof(*served));
    served->infer = number;
    *at = served;
    dispatch(host, infer->job);
    if (served->worker == 0)
        tell(host, infer, SIM_INFER_WORD, 1);
}

/* ---- the node that was asked ---- */

static uint32_t chance(void *arg) { return (uint32_t)shoal_rand_u64(arg); }

static bool was_tried(const struct sim_infer *infer, uint32_t host)
{
    for (uint32_t i = 0; i < infer->tries; i++)
        if (infer->tried[i] == host)
            return true;
    return false;
}

static bool reaches(const struct sim_host *host, struct shoal_node_id node)
{
    uint32_t peer = sim_host_find(host->sim, node);
    struct shoal_member member;
    uint64_t number;

    return peer != NONE && shoal_swim_member_find(host->swim, node, &member) &&
           (member.state == SHOAL_MEMBER_ALIVE || member.state == SHOAL_MEMBER_SUSPECT) &&
           sim_link_is_up(host->sim, host->index, peer, &number);
}

static uint64_t sent_to(const struct sim_host *host, uint32_t peer)
{
    uint64_t count = 0;

    for (uint32_t i = host->sim->infer_first; i < host->sim->infer_count; i++) {
        const struct sim_infer *infer = &host->sim->infers[i];

        count += infer->state == SIM_INFER_OUT && infer->from == host->index && infer->at == peer;
    }
    return count;
}

/* V3, told apart from how the route is chosen. */
static void check_sent(const struct sim_host *host, const struct sim_infer *infer, const struct shoal_route_host *best,
                       bool another)
{
    bool here = shoal_node_id_equal(best->node, host->id);

    if (another && (best->ready == 0 || best->tried || (!here && !reaches(host, best->node))))
        sim_fail(host->sim, "%s sends request %u of service %u to h%u, which it knows not to serve, while another does",
                 host->name, infer->number, infer->job + 1, sim_host_find(host->sim, best->node) + 1);
}

static bool choose(struct sim_host *host, const struct sim_infer *infer, struct shoal_route_host *chosen)
{
    struct shoal_serving own = facts_of(host, infer->job);
    struct shoal_route route = { 0 };
    struct shoal_serving_record serving;
    struct shoal_record record;
    uint32_t cursor = 0;
    bool another;
    const struct shoal_route_host *best;
    struct shoal_route_host one = { .node = host->id,
                                    .ready = own.ready,
                                    .room = own.room,
                                    .open = own.open,
                                    .reached = true,
                                    .tried = was_tried(infer, host->index) };

    shoal_route_offer(&route, &one, chance, &host->sim->service_chance);
    another = one.ready > 0 && !one.tried;
    while (shoal_records_next(host->swim, SHOAL_RECORD_SERVICE, &cursor, &record)) {
        uint32_t peer = sim_host_find(host->sim, record.author);

        if (record.tombstone || peer == NONE || peer == host->index ||
            shoal_serving_record_decode(record.payload, &serving) != SHOAL_OK)
            continue;
        for (unsigned i = 0; i < serving.count; i++) {
            if (!shoal_job_id_equal(serving.services[i].job, own.job))
                continue;
            one = (struct shoal_route_host){ .node = record.author,
                                             .ready = serving.services[i].ready,
                                             .room = serving.services[i].room,
                                             .open = serving.services[i].open + sent_to(host, peer),
                                             .reached = reaches(host, record.author),
                                             .tried = was_tried(infer, peer) };
            shoal_route_offer(&route, &one, chance, &host->sim->service_chance);
            another = another || (one.ready > 0 && one.reached && !one.tried);
        }
    }
    best = shoal_route_best(&route);
    if (best == NULL)
        return false;
    check_sent(host, infer, best, another);
    *chosen = *best;
    return true;
}

static void hold(struct sim_host *host, struct sim_infer *infer)
{
    struct shoal_sched_request get = { .kind = SHOAL_SCHED_GET,
                                       .job = host->sim->jobs[infer->job].id,
                                       .linearizable = true,
                                       .deadline_ms = (uint32_t)(ANSWER_NS / SHOAL_MS) };
    uint32_t number = infer->number;

    infer->state = SIM_INFER_HELD;
    infer->tries = 0; /* who had no kernel may have one then */
    host->serving_changed = true;
    if (infer->asked_ns != 0 && host->sim->now_ns < infer->asked_ns + HELD_ASK_NS)
        return;
    infer->asked_ns = host->sim->now_ns;
    infer->state = SIM_INFER_ASKING;
    host->sim->next_infer = number + 1;
    (void)sim_request(host, &get, infer->job);
    host->sim->next_infer = 0;
}

void sim_infer_facts(struct sim *sim, const struct sim_request *request, const struct shoal_sched_action *action)
{
    struct sim_infer *infer = infer_of(sim, request->infer - 1);
    struct shoal_job_facts facts;
    struct sim_knobs knobs = { 0 };
    bool told = request->err == SHOAL_OK && shoal_job_facts_decode(action->u.reply.bytes, &facts) == SHOAL_OK &&
                sim_document_read(facts.document, &knobs);

    if (infer->state != SIM_INFER_ASKING || sim->hosts[infer->from].life != infer->life)
        return;
    infer->state = SIM_INFER_HELD;
    if (told && knobs.started && knobs.max > 0 && strncmp(facts.pending, "a replica ended with ", 21) != 0)
        return;
    infer->may_refuse = true; /* its group did not answer, or it is stopped, or its replicas end one after the other */
    infer_end(sim, infer, SHOAL_ERR_UNREACHABLE, "the service is not available");
}

static void send_to(struct sim_host *host, struct sim_infer *infer, const struct shoal_route_host *best)
{
    struct sim *sim = host->sim;
    uint32_t at = sim_host_find(sim, best->node);
    struct sim_event *event;
    uint64_t number = 0;

    infer->tried[infer->tries++] = at;
    infer->state = SIM_INFER_OUT;
    infer->at = at;
    infer->waits = true; /* no kernel can have it before its last bytes are there */
    if (at != host->index && !sim_link_is_up(sim, host->index, at, &number)) {
        infer->link = 0; /* the next look finds it lost */
        return;
    }
    infer->link = number;
    event = sim_push(sim, SIM_INFER_ASK, at, at == host->index ? 0 : sim->options.latency_ns);
    event->word = infer->number;
    event->link = number;
    infer->waits = false;
}

static void infer_next(struct sim_host *host, struct sim_infer *infer)
{
    struct shoal_route_host best;
    struct shoal_route_facts facts = { .was_full = infer->full };

    facts.found = infer->tries < SIM_TRIES_MAX && choose(host, infer, &best);
    facts.late = host->sim->now_ns >= infer->deadline_ns;
    switch (shoal_route_next(&facts)) {
    case SHOAL_ROUTE_LATE: infer_end(host->sim, infer, SHOAL_ERR_TIMEOUT, "before a kernel was free"); break;
    case SHOAL_ROUTE_FULL: infer_end(host->sim, infer, SHOAL_ERR_FULL, ""); break;
    case SHOAL_ROUTE_HOLD: hold(host, infer); break;
    case SHOAL_ROUTE_SEND: send_to(host, infer, &best); break;
    case SHOAL_ROUTE_GIVEN_UP:
    case SHOAL_ROUTE_OUT_FULL: break; /* nobody gives up here, and there is room */
    }
}

static void on_answer(struct sim_host *host, struct sim_infer *infer, enum shoal_err err)
{
    if (infer->state != SIM_INFER_OUT)
        return;
    if (shoal_route_elsewhere(err, infer->waits)) {
        infer->lost_waiting += err == SHOAL_ERR_UNREACHABLE && infer->waits;
        infer->full = infer->full || err == SHOAL_ERR_FULL;
        infer_next(host, infer);
        return;
    }
    infer_end(host->sim, infer, err == SHOAL_ERR_UNREACHABLE ? SHOAL_ERR_RANK_LOST : err, "");
}

static void infer_begin(struct sim_host *host, uint32_t job, bool probe)
{
    struct sim *sim = host->sim;
    struct sim_infer *infer;

    if (sim->infer_count == INFERS_MAX || !sim->jobs[job].known || sim->jobs[job].stop_asked)
        return;
    sim->infers = sim_grow(sim->infers, &sim->infer_cap, sim->infer_count + 1, sizeof(*sim->infers));
    infer = &sim->infers[sim->infer_count];
    *infer = (struct sim_infer){ .number = sim->infer_count++,
                                 .job = job,
                                 .from = host->index,
                                 .life = host->life,
                                 .deadline_ns = sim->now_ns + LIMIT_NS,
                                 .probe = probe };
    sim->infers_open++;
    infer_next(host, infer);
}

/* ---- looks ---- */

/* Of this agent's requests: those whose link broke, those that are too late, those that are held. */
static void look_asked(struct sim_host *host)
{
    struct sim *sim = host->sim;

    while (sim->infer_first < sim->infer_count && sim->infers[sim->infer_first].state == SIM_INFER_OVER)
        sim->infer_first++;
    for (uint32_t i = sim->infer_first; i < sim->infer_count && !sim->failed; i++) {
        struct sim_infer *infer = &sim->infers[i];
        uint64_t number = 0;
        bool up;

        if (infer->from != host->index || infer->state == SIM_INFER_OVER)
            continue;
        up = infer->at == host->index || sim_link_is_up(sim, host->index, infer->at, &number);
        if (infer->state == SIM_INFER_HELD)
            infer_next(host, infer);
        else if (infer->state == SIM_INFER_OUT && (!up || number != infer->link))
            on_answer(host, infer, SHOAL_ERR_UNREACHABLE);
        else if (infer->state == SIM_INFER_OUT && sim->now_ns > infer->deadline_ns + MARGIN_NS)
            infer_end(sim, infer, SHOAL_ERR_TIMEOUT, "nothing is heard of it");
    }
}

/* Of this host's queues. */
static void look_served(struct sim_host *host)
{
    struct sim_served **at = &host->served;

    for (struct sim_worker *w = host->workers; w != NULL; w = w->next)
        if (w->draining && !w->dying && host->sim->now_ns >= w->drain_ns)
            sim_worker_kill(host, w, 1);
    while (*at != NULL) {
        struct sim_served *served = *at;

        if (served->worker != 0 || host->sim->now_ns < infer_of(host->sim, served->infer)->deadline_ns) {
            at = &served->next;
            continue;
        }
        *at = served->next;
        answer(host, served->infer, SHOAL_ERR_TIMEOUT);
        free(served);
    }
}

static uint32_t held_for(const struct sim_host *host, uint32_t job)
{
    uint32_t count = 0;

    for (uint32_t i = host->sim->infer_first; i < host->sim->infer_count; i++) {
        const struct sim_infer *infer = &host->sim->infers[i];

        count += infer->job == job && infer->from == host->index &&
                 (infer->state == SIM_INFER_HELD || infer->state == SIM_INFER_ASKING);
    }
    return count;
}

static void look_told(struct sim_host *host)
{
    struct shoal_serving_record serving = { .pieces = true };
    struct shoal_record record = { .kind = SHOAL_RECORD_SERVICE };
    uint8_t bytes[SHOAL_RECORD_PAYLOAD_MAX];
    size_t len;

    if (!host->serving_changed && host->serve_looks++ % TOLD_LOOKS != 0)
        return;
    host->serving_changed = false;
    for (uint32_t job = 0; job < host->sim->job_count && serving.count < SHOAL_SERVING_MAX; job++) {
        struct shoal_serving one;

        if (!host->sim->jobs[job].service || !host->sim->jobs[job].known)
            continue;
        one = facts_of(host, job);
        one.open += held_for(host, job);
        if (one.ready > 0 || one.open > 0)
            serving.services[serving.count++] = one;
    }
    if (shoal_serving_record_encode(&serving, bytes, sizeof(bytes), &len) != SHOAL_OK)
        return;
    memcpy(record.key.bytes, host->id.bytes, sizeof(record.key.bytes));
    record.payload = shoal_view_of(bytes, len);
    sim_host_publish(host, &record);
}

static bool is_dead(const struct sim_host *host, struct shoal_node_id node)
{
    struct shoal_member member;

    return !shoal_swim_member_find(host->swim, node, &member) ||
           (member.state != SHOAL_MEMBER_ALIVE && member.state != SHOAL_MEMBER_SUSPECT);
}

static void count_mesh(const struct sim_host *host, uint32_t job, uint32_t *ready, uint32_t *open)
{
    struct shoal_serving_record serving;
    struct shoal_record record;
    uint32_t cursor = 0;

    *ready = *open = 0;
    while (shoal_records_next(host->swim, SHOAL_RECORD_SERVICE, &cursor, &record)) {
        if (record.tombstone || (!shoal_node_id_equal(record.author, host->id) && is_dead(host, record.author)) ||
            shoal_serving_record_decode(record.payload, &serving) != SHOAL_OK)
            continue;
        for (unsigned i = 0; i < serving.count; i++)
            if (shoal_job_id_equal(serving.services[i].job, host->sim->jobs[job].id)) {
                *ready += serving.services[i].ready;
                *open += serving.services[i].open;
            }
    }
}

/* V2, by a clock of its own. A change that is under way is waited for. */
static void check_burst(struct sim_host *host, struct sim_scale *scale, const struct shoal_autoscale_facts *facts,
                        uint32_t want)
{
    uint64_t now_ns = host->sim->now_ns;
    bool burst = facts->have > 0 && facts->have < facts->max && facts->ready >= facts->have &&
                 facts->load >= 2 * facts->have * facts->batch;

    if (!burst || want > facts->have || scale->burst_have != facts->have)
        scale->burst_ns = burst ? now_ns : 0;
    scale->burst_have = facts->have;
    if (scale->burst_ns != 0 && now_ns > scale->burst_ns + SHOAL_AUTOSCALE_BURST_NS + host->sim->look_late_ns)
        sim_fail(host->sim, "%s: a service has %u replicas and %u requests for %llu ms, and grows no more", host->name,
                 facts->have, facts->load, (unsigned long long)((now_ns - scale->burst_ns) / SHOAL_MS));
}

static void scale_to(struct sim_host *host, struct sim_scale *scale, uint32_t job, uint32_t want)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_SCALE,
                                           .job = host->sim->jobs[job].id,
                                           .deadline_ms = (uint32_t)(ANSWER_NS / SHOAL_MS) };
    const uint8_t count = (uint8_t)want;

    sim_trace(host->sim, "%s: service %u is to have %u replicas", host->name, job + 1, want);
    request.command = shoal_view_of(&count, 1);
    (void)snprintf(request.by, sizeof(request.by), "ann");
    scale->request = host->sim->request_count + 1; /* the answer may come within the step */
    (void)sim_request(host, &request, job);
}

static void tell_floor(struct sim_host *host, struct sim_scale *scale, uint32_t job, const struct sim_knobs *knobs)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_FLOOR };

    if (scale->floor_ns != 0 && host->sim->now_ns < scale->floor_ns + FLOOR_NS)
        return;
    scale->floor_ns = host->sim->now_ns;
    event.u.floor.job = host->sim->jobs[job].id;
    event.u.floor.count = knobs->min >= knobs->max ? UINT32_MAX : knobs->min;
    sim_sched_step(host, &event);
}

static void look_scale(struct sim_host *host, uint32_t job)
{
    struct sim *sim = host->sim;
    const struct shoal_job *replica = shoal_sched_job(host->sched, sim->jobs[job].id);
    struct shoal_autoscale_facts facts = { .now_ns = sim_host_now(host) + 1, .interval_ns = 3 * SHOAL_S };
    struct shoal_sched_group_status status;
    struct sim_knobs knobs;
    struct sim_scale *scale = &host->scales[job];
    uint32_t want;

    if (replica == NULL || replica->tasks == NULL || replica->stop ||
        !shoal_sched_group_find(host->sched, sim->jobs[job].id, &status) || !status.leads ||
        !sim_document_read(shoal_view_of(replica->document, replica->document_len), &knobs)) {
        scale->burst_ns = 0;
        return;
    }
    facts.have = replica->tasks->replicas;
    facts.release_ns = 10 * SHOAL_S;
    facts.batch = knobs.batch;
    facts.min = knobs.min;
    facts.max = knobs.max;
    tell_floor(host, scale, job, &knobs);
    if (!knobs.started || knobs.min >= knobs.max || (scale->request != 0 && !sim->requests[scale->request].answered)) {
        scale->burst_ns = 0;
        return;
    }
    count_mesh(host, job, &facts.ready, &facts.load);
    want = shoal_autoscale(&scale->autoscale, &facts);
    if (want < knobs.min || want > knobs.max)
        sim_fail(sim, "%s asks for %u replicas of service %u, which has %u to %u", host->name, want, job + 1, knobs.min,
                 knobs.max); /* V1 */
    check_burst(host, scale, &facts, want);
    if (want != facts.have)
        scale_to(host, scale, job, want);
}

static void on_look(struct sim_host *host)
{
    struct sim *sim = host->sim;
    uint64_t late_ns = host->look_ns == 0 ? 0 : sim->now_ns - host->look_ns;

    host->look_ns = sim->now_ns;
    sim->look_late_ns = late_ns + 2 * LOOK_NS;
    (void)sim_push(sim, SIM_SERVE_LOOK, host->index, LOOK_NS);
    host->scales = sim_grow(host->scales, &host->scale_cap, sim->job_count, sizeof(*host->scales));
    look_asked(host);
    look_served(host);
    look_told(host);
    for (uint32_t job = 0; job < sim->job_count && !sim->failed; job++)
        if (sim->jobs[job].service && sim->jobs[job].known)
            look_scale(host, job);
}

/* ---- events and commands ---- */

void sim_service_event(struct sim_host *host, const struct sim_event *event)
{
    struct sim_infer *infer;
    uint64_t number = 0;

    if (event->kind == SIM_SERVE_LOOK) {
        on_look(host);
        return;
    }
    if (event->kind == SIM_KERNEL) {
        on_kernel(host, (uint32_t)event->word);
        return;
    }
    infer = infer_of(host->sim, event->word);
    if (infer->from != infer->at &&
        (!sim_link_is_up(host->sim, infer->from, infer->at, &number) || number != event->link))
        return; /* lost with its link */
    if (event->kind == SIM_INFER_ASK)
        on_asked(host, infer->number);
    else if (event->kind == SIM_INFER_ANSWER)
        on_answer(host, infer, (enum shoal_err)event->from);
    else if (infer->state == SIM_INFER_OUT)
        infer->waits = event->from != 0;
}

/* The agent starts; services are looked after from the first one on. */
void sim_service_start(struct sim_host *host)
{
    if (host->sim->services > 0 && host->agent)
        (void)sim_push(host->sim, SIM_SERVE_LOOK, host->index, LOOK_NS);
    host->look_ns = 0;
    host->serving_changed = true;
}

static void served_free(struct sim_host *host)
{
    while (host->served != NULL) {
        struct sim_served *next = host->served->next;

        free(host->served);
        host->served = next;
    }
}

/* The agent ends: its queues, its clients' connections and what it remembers of services that it leads. */
void sim_service_end(struct sim_host *host)
{
    struct sim *sim = host->sim;

    served_free(host);
    for (struct sim_worker *w = host->workers; w != NULL; w = w->next) {
        w->in_hand = 0;
        w->draining = false;
    }
    if (host->scale_cap > 0)
        memset(host->scales, 0, host->scale_cap * sizeof(*host->scales));
    for (uint32_t i = sim->infer_first; i < sim->infer_count; i++)
        if (sim->infers[i].from == host->index && sim->infers[i].state != SIM_INFER_OVER) {
            sim->infers[i].may_refuse = true;
            infer_end(sim, &sim->infers[i], SHOAL_ERR_UNREACHABLE, "its agent ended");
        }
}

void sim_service_deinit(struct sim_host *host)
{
    served_free(host);
    free(host->scales);
}

void sim_service_made(struct sim *sim)
{
    if (sim->services++ > 0)
        return;
    for (uint32_t i = 0; i < sim->host_count; i++)
        sim_service_start(&sim->hosts[i]);
}

void sim_burst(struct sim *sim, uint32_t at, uint32_t service, uint64_t count)
{
    uint32_t job = 0;

    while (job < sim->job_count && (!sim->jobs[job].service || service-- > 0))
        job++;
    if (job == sim->job_count || !sim->hosts[at].agent || sim->hosts[at].paused_ns > sim->now_ns ||
        shoal_sched_mesh(sim->hosts[at].sched) == NULL)
        return;
    sim_trace(sim, "h%u: %llu requests for service %u", at + 1, (unsigned long long)count, job + 1);
    for (uint64_t i = 0; i < count && !sim->failed; i++)
        infer_begin(&sim->hosts[at], job, false);
}

/* ---- the end ---- */

/* A replica of each can run at one time: else one waits for the others' slots, and its requests time out. */
static bool all_fit(const struct sim *sim)
{
    uint32_t slots = 0, need = 0;

    for (uint32_t i = 0; i < sim->host_count; i++)
        slots += sim->hosts[i].agent ? sim->hosts[i].slots : 0;
    for (uint32_t job = 0; job < sim->job_count; job++)
        if (sim->jobs[job].service)
            need += sim->jobs[job].kernels_min > 0 ? sim->jobs[job].kernels_min : 1;
    return need <= slots;
}

/* By the newest replica. */
static bool is_started(const struct sim *sim, uint32_t job)
{
    const struct shoal_job *newest = NULL;

    for (uint32_t i = 0; i < sim->host_count; i++) {
        const struct shoal_job *one =
            sim->hosts[i].agent ? shoal_sched_job(sim->hosts[i].sched, sim->jobs[job].id) : NULL;

        if (one != NULL && (newest == NULL || one->applied > newest->applied))
            newest = one;
    }
    return newest != NULL && sim_service_runs(newest);
}

static void probe(struct sim *sim)
{
    sim->services_probed = true;
    if (!all_fit(sim))
        return;
    for (uint32_t job = 0; job < sim->job_count; job++)
        for (uint32_t i = 0; i < sim->host_count; i++)
            if (sim->jobs[job].service && sim->jobs[job].acknowledged && sim->hosts[i].agent && is_started(sim, job) &&
                shoal_sched_mesh(sim->hosts[i].sched) != NULL)
                infer_begin(&sim->hosts[i], job, true);
}

/* All is healed: what is open ends, then each host's request for each service is answered, then the services are stopped. */
bool sim_services_done(struct sim *sim, char *why, size_t cap)
{
    bool done = true;

    (void)snprintf(why, cap, "%u requests for services are open", sim->infers_open);
    if (sim->services == 0)
        return true;
    if (sim->infers_open > 0)
        return false;
    if (sim->services_calm_ns == 0)
        sim->services_calm_ns = sim->now_ns;
    if (sim->now_ns < sim->services_calm_ns + CALM_NS)
        return false; /* replicas of hosts that were away are still ended */
    if (!sim->services_probed) {
        probe(sim);
        return false;
    }
    for (uint32_t job = 0; job < sim->job_count; job++) {
        const struct sim_job *service = &sim->jobs[job];
        const struct sim_request *asked = &sim->requests[service->stop_request];
        bool unknown = service->stop_request != 0 && asked->answered && asked->err == SHOAL_ERR_NOT_FOUND;

        if (!service->service || !service->known || service->stop_told_ns != 0 || service->deleted)
            continue;
        if (unknown && (!service->acknowledged || service->delete_asked))
            continue; /* its founding was refused after all, or a deletion that nobody answered for was done */
        done = false;
        (void)snprintf(why, cap, "service %u is not stopped", job + 1);
        if (service->stop_request == 0 || asked->answered || asked->life != sim->hosts[asked->host].life)
            sim_ask_about(sim, job, SHOAL_SCHED_STOP);
    }
    return done;
}
