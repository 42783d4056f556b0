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
 * R3. "Unknown" only when every live node that could know has said so.
 * R4. And only by a node that could know: one that has not just started, that hears a majority of the mesh group and of
 *     the hosts that it knows, those of its earlier lives too, and the host that is named in the id, unless that has left
 *     or was removed. Else: 503.
 * R5. A change that another host passes on counts as its user's own: the token goes with it, and the host that acts looks
 *     at it itself, and at what that user may do. What a host of the version before passes on has none: it is taken until
 *     the rules bind (L4 of sched_seal.c).
 * R6. What a host answers to an earlier life of this one ends no request of this life: their serials differ. */
#include <stdarg.h>

#include "shoal/sched_ticket.h"
#include "sched_request.h"
#include "sched_copy.h"
#include "sched_found.h"
#include "sched_group.h"
#include "sched_node.h"
#include "sched_state.h"

#include "shoal/banned.h"

static const struct shoal_view nothing;
static const struct shoal_node_id nobody;

/* ---- States ---- */

#define BIT(state) (1u << (state))

/* Bit N of a row says that a request in this state may become one in state N. A request that is tried is WAITING, or
 * FORWARDED when the answer did not come in time. */
#define TRIED                                                                                                          \
    (BIT(REQUEST_FREE) | BIT(REQUEST_WAITING) | BIT(REQUEST_FORWARDED) | BIT(REQUEST_ASKING) | BIT(REQUEST_PROPOSED) | \
     BIT(REQUEST_READING) | BIT(REQUEST_SURVEY) | BIT(REQUEST_DELETING) | BIT(REQUEST_CONFIRMING))

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
    [REQUEST_CONFIRMING] = BIT(REQUEST_FREE) | BIT(REQUEST_WAITING) | BIT(REQUEST_CONFIRMING),
};

void sched_request_move(struct sched_request *r, enum request_state to)
{
    SHOAL_ASSERT((request_moves[r->state] & BIT(to)) != 0); /* R1 */
    SHOAL_ASSERT(to < REQUEST_STATES);
    r->state = to;
}

/* ---- The book ---- */

/* The request has been answered, or was never taken in: its place is free for another. */
void sched_request_release(struct shoal_sched *s, struct sched_request *r)
{
    SHOAL_ASSERT(s->request_count > 0);
    sched_request_move(r, REQUEST_FREE);
    s->request_count--;
}

bool sched_request_open(const struct shoal_sched *s, struct shoal_job_id job)
{
    SHOAL_ASSERT(s->request_count <= SHOAL_SCHED_REQUESTS_MAX);
    for (size_t i = 0; s->request_count > 0 && i < SHOAL_SCHED_REQUESTS_MAX; i++)
        if (s->requests[i].state != REQUEST_FREE && shoal_job_id_equal(s->requests[i].job, job))
            return true;
    return false;
}

/* R6. 2^32 requests of each life, and 2^28 lives, stay below SCHED_CTX_READ. */
uint64_t sched_request_first(struct shoal_incarnation incarnation)
{
    const uint64_t life = incarnation.agent & ((1u << 28) - 1);

    _Static_assert(1ull << 60 < SCHED_CTX_READ, "the highest serial does not look like a read's");
    return life << 32;
}

struct sched_request *sched_request_get(const struct shoal_sched *s, uint64_t serial)
{
    struct sched_request *r = &s->requests[serial % SHOAL_SCHED_REQUESTS_MAX];

    SHOAL_ASSERT(s->requests != NULL);
    return r->state != REQUEST_FREE && r->serial == serial ? r : NULL;
}

static struct sched_request *book(struct shoal_sched *s)
{
    SHOAL_ASSERT(s->request_count <= SHOAL_SCHED_REQUESTS_MAX);
    for (size_t i = 0; i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        uint64_t serial = ++s->request_serial;
        struct sched_request *r = &s->requests[serial % SHOAL_SCHED_REQUESTS_MAX];
        struct shoal_buf command = r->command, token = r->token;

        if (r->state != REQUEST_FREE)
            continue;
        command.len = 0;
        token.len = 0;
        *r = (struct sched_request){ .state = REQUEST_FREE, .serial = serial, .command = command, .token = token };
        sched_request_move(r, REQUEST_WAITING);
        s->request_count++;
        return r;
    }
    return NULL;
}

void sched_request_retry(struct shoal_sched *s, struct sched_request *r, uint64_t after_ns)
{
    SHOAL_ASSERT(after_ns < SCHED_NEVER - s->now);
    sched_request_move(r, REQUEST_WAITING);
    r->retry_ns = s->now + after_ns;
    if (r->retry_ns < s->requests_ns)
        s->requests_ns = r->retry_ns;
}

static void respond(struct shoal_sched *s, struct shoal_node_id to, uint64_t id, enum shoal_err err, const char *text,
                    struct shoal_view bytes, uint64_t version)
{
    struct frame frame = { .kind = FRAME_RESPONSE };

    SHOAL_ASSERT(!sched_is_self(s, to));
    SHOAL_ASSERT(err < SHOAL_ERRS);
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

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
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

    SHOAL_ASSERT(r->state != REQUEST_FREE); /* R1 */
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
    SHOAL_ASSERT(s->request_count > 0);     /* R1 */
    SHOAL_ASSERT(s->actions != NULL);       /* within a step */
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
    sched_request_release(s, r);
}

/* ---- In and out ---- */

static bool take_command(struct sched_request *r, struct shoal_view command, struct shoal_view token)
{
    SHOAL_ASSERT(r->command.len == 0 && r->token.len == 0);
    return shoal_buf_append(&r->command, command.bytes, command.len) == SHOAL_OK &&
           shoal_buf_append(&r->token, token.bytes, token.len) == SHOAL_OK;
}

static bool is_change(enum shoal_sched_request_kind kind)
{
    return kind == SHOAL_SCHED_STOP || kind == SHOAL_SCHED_DELETE || kind == SHOAL_SCHED_RECOVER ||
           kind == SHOAL_SCHED_MESH_CHANGE || kind == SHOAL_SCHED_SCALE || kind == SHOAL_SCHED_EDIT;
}

/* R5: what every user may do to itself. */
static bool is_about_itself(const struct sched_request *r)
{
    struct shoal_mesh_command *command = calloc(1, sizeof(*command));
    bool own = false;

    SHOAL_ASSERT(r->kind == SHOAL_SCHED_MESH_CHANGE);
    if (command != NULL && shoal_mesh_command_decode(shoal_buf_view(&r->command), command) == SHOAL_OK) {
        if (command->kind == SHOAL_MESH_REVOKE)
            own = memcmp(command->revocation.token, r->caller.token_id, sizeof(r->caller.token_id)) == 0;
        else if (command->kind == SHOAL_MESH_SET_SERVICE || command->kind == SHOAL_MESH_REMOVE_SERVICE)
            own = strcmp(command->service.creator, r->caller.name) == 0; /* the group looks whose the service is */
        else if (command->kind == SHOAL_MESH_SET_PASSWORD || command->kind == SHOAL_MESH_VOID_TOKENS)
            own = strcmp(command->user.name, r->caller.name) == 0;
    }
    free(command);
    return own;
}

/* R5. */
static bool is_permitted(struct shoal_sched *s, struct sched_request *r)
{
    const struct sched_node *origin = sched_node_find(s, r->origin);
    struct shoal_msg msg = { "" };

    SHOAL_ASSERT(r->foreign);
    if (!is_change(r->kind) || s->options.env.who == NULL)
        return true;
    if (r->token.len == 0) {
        if (!s->copy_bound && origin != NULL && origin->info.rules == 0)
            return true;
        s->stats.requests_denied++;
        sched_request_end(
            s, r, SHOAL_ERR_DENIED, nothing,
            "the host that passes this on gave no user's token with it; exchange its agent for one of this "
            "version, or ask another host");
        return false;
    }
    if (s->options.env.who(s->options.env.arg, shoal_buf_view(&r->token), s->wall_ms, &r->caller, &msg) != SHOAL_OK) {
        s->stats.requests_denied++;
        sched_request_end(s, r, SHOAL_ERR_DENIED, nothing, "%s", msg.text);
        return false;
    }
    r->proven = true;
    memcpy(r->by, r->caller.name, sizeof(r->by));
    if (r->caller.admin || r->kind == SHOAL_SCHED_STOP || r->kind == SHOAL_SCHED_DELETE ||
        r->kind == SHOAL_SCHED_SCALE || r->kind == SHOAL_SCHED_EDIT ||
        (r->kind == SHOAL_SCHED_MESH_CHANGE && is_about_itself(r)))
        return true;
    s->stats.requests_denied++;
    sched_request_end(s, r, SHOAL_ERR_DENIED, nothing, "only an administrator may do this; ask one");
    return false;
}

bool sched_request_may(struct shoal_sched *s, struct sched_request *r, const char *creator)
{
    SHOAL_ASSERT(r->state != REQUEST_FREE); /* R1 */
    if (!r->proven || r->caller.admin || strcmp(r->caller.name, creator) == 0)
        return true;
    s->stats.requests_denied++;
    sched_request_end(s, r, SHOAL_ERR_DENIED, nothing, "this job belongs to %s", creator);
    return false;
}

static void refuse(struct shoal_sched *s, const struct shoal_sched_request *request, bool booked)
{
    char text[120];
    bool too_long = request->token.len > SHOAL_SCHED_TOKEN_BYTES_MAX;

    SHOAL_ASSERT(s->request_count <= SHOAL_SCHED_REQUESTS_MAX);
    if (too_long)
        (void)snprintf(text, sizeof(text), "the token has more than %d bytes: it is none of this mesh; log on again",
                       SHOAL_SCHED_TOKEN_BYTES_MAX);
    else if (booked)
        (void)snprintf(text, sizeof(text), "this node has no memory for a request; try again in a second");
    else
        (void)snprintf(text, sizeof(text), "%d requests are open on this node; try again in a second",
                       SHOAL_SCHED_REQUESTS_MAX);
    s->stats.requests_refused_full += too_long ? 0 : 1;
    reply(s, request->id, too_long ? SHOAL_ERR_INVALID : SHOAL_ERR_FULL, text, request->job, nothing);
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
    bool said = mesh || request->kind == SHOAL_SCHED_TASKS || request->kind == SHOAL_SCHED_SCALE ||
                request->kind == SHOAL_SCHED_EDIT;
    struct shoal_view command = said                                   ? request->command
                                : request->kind == SHOAL_SCHED_RECOVER ? shoal_view_of(&confirmed, 1)
                                                                       : nothing;

    SHOAL_ASSERT((unsigned)request->kind < SHOAL_SCHED_REQUEST_KINDS);
    s->stats.requests++;
    if (r == NULL || request->token.len > SHOAL_SCHED_TOKEN_BYTES_MAX || !take_command(r, command, request->token)) {
        if (r != NULL)
            sched_request_release(s, r);
        refuse(s, request, r != NULL);
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
    case SHOAL_SCHED_SCALE:
    case SHOAL_SCHED_EDIT:
        if (shoal_job_id_is_mesh(request->job) && !(request->kind == SHOAL_SCHED_RECOVER && request->of_mesh)) {
            sched_request_end(s, r, SHOAL_ERR_INVALID, nothing, "the id is empty");
            break;
        }
        sched_request_try(s, r);
        break;
    case SHOAL_SCHED_MESH_CHANGE:
    case SHOAL_SCHED_MESH_READ: sched_request_try(s, r); break;
    }
}

/* What is asked of the mesh is not asked of a job, nor the other way round: a member's word may say anything. */
static bool may_be_forwarded(enum shoal_sched_request_kind kind, bool of_mesh)
{
    switch (kind) {
    case SHOAL_SCHED_SUBMIT:
    case SHOAL_SCHED_TICKET:
    case SHOAL_SCHED_MESH_INIT: return false;
    case SHOAL_SCHED_RECOVER: return true;
    case SHOAL_SCHED_MESH_CHANGE:
    case SHOAL_SCHED_MESH_READ: return of_mesh;
    case SHOAL_SCHED_GET:
    case SHOAL_SCHED_STOP:
    case SHOAL_SCHED_DELETE:
    case SHOAL_SCHED_WHY:
    case SHOAL_SCHED_TASKS:
    case SHOAL_SCHED_SCALE:
    case SHOAL_SCHED_EDIT: return !of_mesh;
    }
    return false;
}

void sched_on_foreign(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    enum shoal_sched_request_kind kind = (enum shoal_sched_request_kind)frame->u.request.kind;
    struct sched_request *r;
    uint64_t wait = frame->u.request.deadline_ms * SHOAL_MS;

    SHOAL_ASSERT(frame->kind == FRAME_REQUEST);
    SHOAL_ASSERT(!sched_is_self(s, from)); /* on_frame() has looked */
    if (!may_be_forwarded(kind, shoal_job_id_is_mesh(frame->u.request.job))) {
        respond(s, from, frame->u.request.id, SHOAL_ERR_INVALID, "this request is not forwarded", nothing, 0);
        return;
    }
    r = book(s);
    if (r == NULL || !take_command(r, frame->u.request.command, frame->u.request.token)) {
        if (r != NULL) {
            sched_request_release(s, r);
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
    if (is_permitted(s, r))
        sched_request_try(s, r);
}

void sched_on_response(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct sched_request *r = sched_request_get(s, frame->u.response.id);
    enum shoal_err err = (enum shoal_err)frame->u.response.err;

    SHOAL_ASSERT(frame->kind == FRAME_RESPONSE);
    SHOAL_ASSERT(!sched_is_self(s, from)); /* on_frame() has looked */
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
    if (err == SHOAL_OK && shoal_job_id_is_mesh(r->job) && r->kind != SHOAL_SCHED_RECOVER) {
        sched_request_move(r, REQUEST_COPY);
        r->version = frame->u.response.version;
        sched_copy_heard(s, from, r->version, 0);
        sched_requests_copy(s);
        return;
    }
    sched_request_end(s, r, err, frame->u.response.bytes, "%s", frame->u.response.text);
}
