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
 *     comes or its time is over, and gossip says how many are held; unless its kernels end one after the other. */
#include "shoal/job_facts.h"
#include "shoal/mesh.h"
#include "shoal/sched_look.h"
#include "shoal/service_doc.h"

#include "agent_backend.h"
#include "backend_services.h"

#include "shoal/banned.h"

#define TRIES_MAX 8
#define READ_MS 5000
#define NOTICE_NS (2 * SHOAL_S)
/* The host's own clock ends a request; this one only when nothing is heard of it any more. */
#define MARGIN_NS (5 * SHOAL_S)
#define PIECE_BYTES SHOAL_MIB
/* Of the questions to other nodes that may be open (peer_call_uv.c): the rest is for jobs. */
#define OUT_MAX 256

enum infer_word { WORD_RUN, WORD_WAITS, WORD_HANDED, WORD_LOOK = BACKEND_INFER_LOOK, WORD_COUNT };

struct infer_call {
    struct infer_call *next; /* of those that another host has */
    struct agent *agent;
    uint64_t id;
    struct shoal_infer infer;
    struct shoal_job_id job;     /* whose kernels are asked */
    struct shoal_job_id current; /* that the service's name stands for */
    uint64_t deadline_ns;
    struct shoal_node_id tried[TRIES_MAX]; /* the last one has it now */
    unsigned tries;
    bool sent;   /* to that host */
    bool waits;  /* there, by its word */
    bool locked; /* within its own sending: what ends at once is looked at after it */
    bool again;
    bool full;                  /* a host was */
    bool started;               /* by its group's word: a kernel will come */
    uint64_t asked_ns;          /* when its group was asked; 0: it was not */
    struct shoal_job_id before; /* of a version that is not ready yet: the one that it takes the place of */
    shoal_backend_infer_fn *done;
    void *arg;
};

/* How often the group of a service is asked whether its requests are to be held on. */
#define HELD_ASK_NS (2 * SHOAL_S)
#define FAILING "a replica ended with "

static void infer_next(struct infer_call *call);
static void hold(struct infer_call *call);

static void infer_end(struct infer_call *call, enum shoal_err err, const char *text,
                      const struct shoal_inferred *inferred)
{
    struct shoal_msg msg;

    (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
    call->done(call->arg, err, &msg, inferred);
    free(call);
}

static void out_remove(const struct infer_call *call)
{
    struct infer_call **at = &call->agent->infers;

    while (*at != NULL && *at != call)
        at = &(*at)->next;
    if (*at != NULL)
        *at = call->next;
}

/* ---- choosing ---- */

struct candidate {
    struct shoal_node_id node;
    uint64_t cost; /* requests in hand for each that its kernels take */
};

static bool was_tried(const struct infer_call *call, struct shoal_node_id node)
{
    for (unsigned i = 0; i < call->tries; i++)
        if (shoal_node_id_equal(call->tried[i], node))
            return true;
    return false;
}

/* What this node has sent there itself counts at once; the host's own word is some time old. */
static uint64_t sent_to(const struct agent *agent, struct shoal_node_id node)
{
    uint64_t count = 0;

    for (const struct infer_call *c = agent->infers; c != NULL; c = c->next)
        count += shoal_node_id_equal(c->tried[c->tries - 1], node);
    return count;
}

static uint64_t cost_of(uint64_t open, uint32_t room) { return open * 1000 / (room == 0 ? 1 : room); }

static bool reaches(struct agent *agent, struct shoal_node_id node)
{
    struct shoal_member member;

    return shoal_swim_member_find(membership_swim(agent->membership), node, &member) &&
           (member.state == SHOAL_MEMBER_ALIVE || member.state == SHOAL_MEMBER_SUSPECT) &&
           shoal_link_is_up(agent->link, node);
}

/* Two of all by chance, each pair as likely as another: the n-th takes a place with chance 2 in n. */
static void offer(struct candidate two[2], unsigned *seen, const struct candidate *one)
{
    uint32_t chance = 0;

    (*seen)++;
    if (*seen <= 2) {
        two[*seen - 1] = *one;
        return;
    }
    shoal_random(&chance, sizeof(chance));
    if (chance % *seen < 2)
        two[chance % *seen] = *one;
}

static bool choose_of(struct infer_call *call, struct shoal_node_id *node)
{
    struct agent *agent = call->agent;
    struct serve_facts facts[SERVE_FACTS_MAX];
    struct shoal_serving_record serving;
    struct shoal_record record;
    struct candidate two[2];
    unsigned seen = 0;
    uint32_t cursor = 0;
    size_t count = serve_host_facts(agent->serve, facts, SERVE_FACTS_MAX);

    for (size_t i = 0; i < count; i++)
        if (facts[i].ready > 0 && shoal_job_id_equal(facts[i].job, call->job) && !was_tried(call, agent->identity.node))
            offer(two, &seen, &(struct candidate){ agent->identity.node, cost_of(facts[i].open, facts[i].room) });
    while (shoal_records_next(membership_swim(agent->membership), SHOAL_RECORD_SERVICE, &cursor, &record)) {
        if (record.tombstone || shoal_node_id_equal(record.author, agent->identity.node) ||
            call->infer.body.len > PIECE_BYTES || was_tried(call, record.author) ||
            shoal_serving_record_decode(record.payload, &serving) != SHOAL_OK)
            continue;
        for (unsigned i = 0; i < serving.count; i++)
            if (serving.services[i].ready > 0 && shoal_job_id_equal(serving.services[i].job, call->job) &&
                reaches(agent, record.author))
                offer(two, &seen,
                      &(struct candidate){ record.author,
                                           cost_of(serving.services[i].open + sent_to(agent, record.author),
                                                   serving.services[i].room) });
    }
    if (seen == 0)
        return false;
    *node = seen > 1 && two[1].cost < two[0].cost ? two[1].node : two[0].node;
    return true;
}

/* A version that is not ready yet leaves its requests to the one before. */
static bool choose(struct infer_call *call, struct shoal_node_id *node)
{
    struct shoal_job_id current = call->current;

    call->job = current;
    if (choose_of(call, node))
        return true;
    if (shoal_job_id_is_mesh(call->before))
        return false;
    call->job = call->before;
    if (choose_of(call, node))
        return true;
    call->job = current;
    return false;
}

/* ---- on this host ---- */

static void on_local(void *arg, enum shoal_err err, const char *text, const struct serve_answer *answer)
{
    struct infer_call *call = arg;
    struct shoal_inferred inferred;

    if (err == SHOAL_ERR_STALE || err == SHOAL_ERR_FULL) {
        call->full = call->full || err == SHOAL_ERR_FULL;
        infer_next(call);
        return;
    }
    if (answer != NULL)
        inferred = (struct shoal_inferred){ answer->status, answer->header_len, answer->content_type, answer->body };
    infer_end(call, err, text, answer == NULL ? NULL : &inferred);
}

static void run_here(struct infer_call *call, uint32_t timeout_ms)
{
    const struct shoal_infer *i = &call->infer;
    struct serve_ask ask = { .job = call->job,
                             .body = i->body,
                             .timeout_ms = timeout_ms,
                             .gone = i->gone,
                             .done = on_local,
                             .arg = call,
                             .head = { .path = i->path,
                                       .method = i->method,
                                       .content_type = i->content_type,
                                       .model = i->model,
                                       .version = i->version,
                                       .user = i->caller->name,
                                       .header_len = i->header_len } };

    (void)serve_host_infer(call->agent->serve, &ask);
}

/* ---- on another ---- */

static void on_remote(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct infer_call *call = arg;
    struct shoal_reader r = shoal_reader_init(answer);
    struct shoal_inferred inferred = { 0 };
    char type[KERNEL_TYPE_BYTES];
    bool elsewhere = err == SHOAL_ERR_STALE || err == SHOAL_ERR_FULL || (err == SHOAL_ERR_UNREACHABLE && call->waits);

    out_remove(call);
    if (call->locked) { /* it was not even sent */
        call->again = true;
        return;
    }
    if (elsewhere) { /* I1 */
        call->full = call->full || err == SHOAL_ERR_FULL;
        infer_next(call);
        return;
    }
    if (err == SHOAL_ERR_UNREACHABLE) {
        infer_end(call, SHOAL_ERR_RANK_LOST, "its host was lost while it was computed; send it again", NULL);
        return;
    }
    if (err != SHOAL_OK) {
        infer_end(call, err, msg->text, NULL);
        return;
    }
    inferred.status = shoal_get_u32(&r);
    inferred.header_len = shoal_get_u32(&r);
    shoal_get_text(&r, type, sizeof(type));
    inferred.content_type = type;
    inferred.body = shoal_view_of(r.bytes + r.at, shoal_reader_left(&r));
    if (r.failed || inferred.status < 200 || inferred.status > 599 || inferred.header_len > inferred.body.len ||
        strpbrk(type, "\r\n") != NULL)
        infer_end(call, SHOAL_ERR_MALFORMED, "the other host's answer does not decode", NULL);
    else
        infer_end(call, SHOAL_OK, "", &inferred);
}

static void run_there(struct infer_call *call, struct shoal_node_id node, uint32_t timeout_ms)
{
    const struct shoal_infer *i = &call->infer;
    size_t cap = i->body.len + KERNEL_HEAD_BYTES_MAX;
    uint8_t *bytes = malloc(cap);
    struct shoal_writer w = shoal_writer_init(bytes, bytes == NULL ? 0 : cap);

    shoal_put_u8(&w, WORD_RUN);
    shoal_put_u64(&w, call->id);
    shoal_put_job_id(&w, call->job);
    shoal_put_u32(&w, timeout_ms);
    shoal_put_u32(&w, i->header_len);
    shoal_put_text(&w, i->path);
    shoal_put_text(&w, i->method);
    shoal_put_text(&w, i->content_type);
    shoal_put_text(&w, i->model);
    shoal_put_text(&w, i->version);
    shoal_put_text(&w, i->caller->name);
    shoal_put_raw(&w, i->body.bytes, i->body.len);
    call->waits = false;
    call->again = false;
    call->locked = true;
    call->next = call->agent->infers;
    call->agent->infers = call;
    peer_ask(call->agent->calls, node, PEER_INFER, shoal_writer_view(&w), timeout_ms * SHOAL_MS + MARGIN_NS, on_remote,
             call);
    call->locked = false;
    free(bytes);
    if (call->again) {
        call->full = true;
        infer_next(call);
    }
}

static bool out_is_full(const struct agent *agent)
{
    unsigned count = 0;

    for (const struct infer_call *c = agent->infers; c != NULL && count < OUT_MAX; c = c->next)
        count++;
    return count == OUT_MAX;
}

static void infer_next(struct infer_call *call)
{
    uint64_t now = agent_now_ns();
    struct shoal_node_id node;

    if (call->infer.gone != NULL && *call->infer.gone) {
        infer_end(call, SHOAL_ERR_TIMEOUT, "its client has given it up", NULL);
        return;
    }
    if (now >= call->deadline_ns) {
        infer_end(call, SHOAL_ERR_TIMEOUT, "its time was over before a kernel was free", NULL);
        return;
    }
    if (call->tries == TRIES_MAX || !choose(call, &node)) {
        if (call->infer.body.len > PIECE_BYTES)
            infer_end(call, SHOAL_ERR_TOO_BIG,
                      "requests above 1 MiB are answered by hosts that have a replica alone; ask one of them", NULL);
        else if (call->full)
            infer_end(call, SHOAL_ERR_FULL, "the queues of this model are full; send it again in a second", NULL);
        else
            hold(call);
        return;
    }
    if (!shoal_node_id_equal(node, call->agent->identity.node) && out_is_full(call->agent)) {
        infer_end(call, SHOAL_ERR_FULL, "this node passes on as many requests as it may; send it again in a second",
                  NULL);
        return;
    }
    call->tried[call->tries++] = node;
    if (shoal_node_id_equal(node, call->agent->identity.node))
        run_here(call, (uint32_t)((call->deadline_ns - now) / SHOAL_MS) + 1);
    else
        run_there(call, node, (uint32_t)((call->deadline_ns - now) / SHOAL_MS) + 1);
}

/* ---- held, until a kernel is ready ---- */

static void refuse_held(struct infer_call *call)
{
    char text[300];

    (void)snprintf(text, sizeof(text), "Inference service for model <%s> is currently unavailable.", call->infer.model);
    infer_end(call, SHOAL_ERR_UNREACHABLE, text, NULL);
}

static void held_put(struct infer_call *call)
{
    call->tries = 0; /* who had no kernel may have one then */
    call->next = call->agent->held;
    call->agent->held = call;
    call->agent->serving_changed = true;
}

static void on_held_facts(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct infer_call *call = arg;
    struct shoal_job_facts *facts = calloc(1, sizeof(*facts));
    struct service_knobs knobs = { .started = false };

    SHOAL_ASSERT(facts != NULL);
    if (err == SHOAL_OK && shoal_job_facts_decode(reply->u.reply.bytes, facts) == SHOAL_OK)
        service_doc_knobs(facts->document, facts->replicas, &knobs);
    if (knobs.started && knobs.kernels_max > 0 && strncmp(facts->pending, FAILING, sizeof(FAILING) - 1) != 0)
        held_put(call);
    else
        refuse_held(call);
    free(facts);
}

static bool held_full(const struct agent *agent)
{
    unsigned count = 0;

    for (const struct infer_call *c = agent->held; c != NULL && count < SHOAL_SERVICE_QUEUE_MAX; c = c->next)
        count++;
    return count == SHOAL_SERVICE_QUEUE_MAX;
}

/* I3. */
static void hold(struct infer_call *call)
{
    struct shoal_sched_request get = {
        .kind = SHOAL_SCHED_GET, .job = call->current, .linearizable = true, .deadline_ms = READ_MS
    };

    if (held_full(call->agent)) {
        infer_end(call, SHOAL_ERR_FULL, "as many requests wait here for kernels as may; send it again in a second",
                  NULL);
        return;
    }
    if (call->asked_ns != 0 && agent_now_ns() < call->asked_ns + HELD_ASK_NS) {
        held_put(call);
        return;
    }
    call->asked_ns = agent_now_ns();
    agent_request(call->agent, &get, on_held_facts, call);
}

void backend_infer_look(struct agent *agent)
{
    struct infer_call *call = agent->held;
    unsigned left = SHOAL_SERVICE_QUEUE_MAX;

    agent->held = NULL;
    while (call != NULL && left-- > 0) { /* those that are held again are put before */
        struct infer_call *next = call->next;

        call->next = NULL;
        if (agent->stopping)
            refuse_held(call);
        else
            infer_next(call);
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

static void infer_found(void *arg, enum shoal_err err, const char *text, const struct shoal_mesh_service *service)
{
    struct infer_call *call = arg;

    if (err != SHOAL_OK) {
        infer_end(call, err, text, NULL);
        return;
    }
    call->job = call->current = service->job;
    call->before = service->before;
    infer_next(call);
}

void backend_infer(void *ctx, const struct shoal_infer *infer, shoal_backend_infer_fn *done, void *arg)
{
    struct infer_call *call = calloc(1, sizeof(*call));
    uint32_t timeout_ms = infer->timeout_ms == 0 ? SHOAL_INFER_TIMEOUT_MS : infer->timeout_ms;

    SHOAL_ASSERT(call != NULL);
    call->agent = ctx;
    call->id = ++call->agent->infer_next;
    call->infer = *infer;
    call->deadline_ns = agent_now_ns() + timeout_ms * SHOAL_MS;
    call->done = done;
    call->arg = arg;
    backend_service_find(ctx, infer->model, false, infer_found, call);
}

/* ---- for others ---- */

struct served {
    struct agent *agent;
    struct peer_question *question;
    struct shoal_node_id from;
    uint64_t id;
    bool over;
};

static void on_notice(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    (void)arg;
    (void)err;
    (void)msg;
    (void)answer;
}

static void notice(const struct served *served, enum infer_word word)
{
    uint8_t bytes[16];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));

    shoal_put_u8(&w, (uint8_t)word);
    shoal_put_u64(&w, served->id);
    peer_ask(served->agent->calls, served->from, PEER_INFER, shoal_writer_view(&w), NOTICE_NS, on_notice, NULL);
}

static void on_handed(void *arg) { notice(arg, WORD_HANDED); }

static void on_served(void *arg, enum shoal_err err, const char *text, const struct serve_answer *answer)
{
    struct served *served = arg;
    size_t cap = (answer == NULL ? 0 : answer->body.len) + 256;
    uint8_t *bytes = malloc(cap);
    struct shoal_writer w = shoal_writer_init(bytes, bytes == NULL ? 0 : cap);

    if (answer != NULL) {
        shoal_put_u32(&w, answer->status);
        shoal_put_u32(&w, answer->header_len);
        shoal_put_text(&w, answer->content_type);
        shoal_put_raw(&w, answer->body.bytes, answer->body.len);
        if (w.len > PIECE_BYTES)
            peer_answer(served->question, SHOAL_ERR_TOO_BIG,
                        "the answer is larger than what goes from one host to another; ask the replica's own host",
                        (struct shoal_view){ 0 });
        else
            peer_answer(served->question, w.failed ? SHOAL_ERR_FULL : SHOAL_OK, "", shoal_writer_view(&w));
    } else {
        peer_answer(served->question, err, text, (struct shoal_view){ 0 });
    }
    free(bytes);
    free(served);
}

static void on_word(struct agent *agent, uint64_t id, struct shoal_node_id from, bool waits)
{
    for (struct infer_call *c = agent->infers; c != NULL; c = c->next)
        if (c->id == id && shoal_node_id_equal(c->tried[c->tries - 1], from))
            c->waits = waits;
}

struct run_texts {
    char path[1024], method[16], type[KERNEL_TYPE_BYTES], model[KERNEL_NAME_BYTES], version[KERNEL_NAME_BYTES],
        user[SHOAL_USER_BYTES_MAX];
};

static bool get_run(struct shoal_reader *r, struct serve_ask *ask, struct run_texts *t)
{
    ask->job = shoal_get_job_id(r);
    ask->timeout_ms = shoal_get_u32(r);
    ask->head.header_len = shoal_get_u32(r);
    shoal_get_text(r, t->path, sizeof(t->path));
    shoal_get_text(r, t->method, sizeof(t->method));
    shoal_get_text(r, t->type, sizeof(t->type));
    shoal_get_text(r, t->model, sizeof(t->model));
    shoal_get_text(r, t->version, sizeof(t->version));
    shoal_get_text(r, t->user, sizeof(t->user));
    ask->body = shoal_view_of(r->bytes + r->at, shoal_reader_left(r));
    ask->head.path = t->path;
    ask->head.method = t->method;
    ask->head.content_type = t->type;
    ask->head.model = t->model;
    ask->head.version = t->version;
    ask->head.user = t->user;
    return !r->failed && ask->timeout_ms > 0 && ask->timeout_ms <= SHOAL_INFER_TIMEOUT_MS_MAX &&
           ask->head.header_len <= ask->body.len;
}

static void answer_look(struct agent *agent, struct shoal_job_id job, struct peer_question *question)
{
    struct shoal_buf rows = { 0 };
    bool fine = backend_kernels_here(agent, job, &rows);

    peer_answer(question, fine ? SHOAL_OK : SHOAL_ERR_FULL, "", shoal_buf_view(&rows));
    shoal_buf_deinit(&rows);
}

void backend_serve_infer(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct agent *agent = arg;
    struct shoal_reader r = shoal_reader_init(args);
    uint8_t word = shoal_get_enum(&r, WORD_COUNT);
    uint64_t id = shoal_get_u64(&r);
    struct serve_ask ask = { .handed = on_handed, .done = on_served };
    struct run_texts texts;
    struct served *served;

    if (word == WORD_LOOK && !r.failed) {
        answer_look(agent, shoal_get_job_id(&r), question);
        return;
    }
    if (word != WORD_RUN) {
        on_word(agent, id, from, word == WORD_WAITS);
        peer_answer(question, SHOAL_OK, "", (struct shoal_view){ 0 });
        return;
    }
    if (!get_run(&r, &ask, &texts)) {
        peer_answer(question, SHOAL_ERR_MALFORMED, "the request does not decode", (struct shoal_view){ 0 });
        return;
    }
    served = calloc(1, sizeof(*served));
    SHOAL_ASSERT(served != NULL);
    *served = (struct served){ .agent = agent, .question = question, .from = from, .id = id };
    ask.arg = served;
    if (serve_host_infer(agent->serve, &ask))
        notice(served, WORD_WAITS);
}
