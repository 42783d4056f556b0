/* A request that this node cannot answer goes on from here; others are asked about a job (sched_request.c: R2, R3). */
#include "shoal/job_facts.h"
#include "sched_request.h"
#include "sched_archive.h"
#include "sched_found.h"
#include "sched_group.h"
#include "sched_node.h"
#include "sched_park.h"
#include "sched_state.h"
#include "sched_store.h"
#include "sched_view.h"

#include "shoal/banned.h"

static const struct shoal_view nothing;
static const struct shoal_node_id nobody;

#define MAJORITY_OF_GUARDIANS 2u      /* of three: what was acknowledged is with so many, and may be with no others */
#define JUST_STARTED_NS (3 * SHOAL_S) /* gossip has told of all hosts by then, and they of their jobs */

/* ---- Where to ---- */

static bool node_is_dead(const struct shoal_sched *s, struct shoal_node_id id)
{
    const struct sched_node *node = sched_node_find(s, id);

    SHOAL_ASSERT(s->node_count <= SHOAL_MEMBERS_MAX);
    return node != NULL && sched_node_is_gone(s, node);
}

static void forward(struct shoal_sched *s, struct sched_request *r, struct shoal_node_id to)
{
    const struct sched_node *node = sched_node_find(s, to);
    struct frame frame = { .kind = FRAME_REQUEST };
    uint64_t wait = SCHED_ANSWER_NS;

    SHOAL_ASSERT(!r->foreign); /* R1: its origin is told where to ask */
    SHOAL_ASSERT(!sched_is_self(s, to));
    SHOAL_ASSERT(s->now < r->deadline_ns); /* expire() comes first */
    frame.u.request.id = r->serial;
    frame.u.request.hops = r->hops;
    frame.u.request.kind = (uint8_t)r->kind;
    frame.u.request.job = r->job;
    frame.u.request.linearizable = r->linearizable;
    frame.u.request.deadline_ms = (uint32_t)((r->deadline_ns - s->now) / SHOAL_MS);
    frame.u.request.command = shoal_buf_view(&r->command);
    memcpy(frame.u.request.by, r->by, sizeof(frame.u.request.by));
    if (node == NULL || node->info.rules > 0) /* one of the version before does not read it */
        frame.u.request.token = shoal_buf_view(&r->token);
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

/* The nodes that could know an id: the founder named in it, then the nearest by rendezvous; alive, not this one. */
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

/* It said goodbye, or was removed. One that is only silent, for however long, may hold what nobody else does. */
static bool has_left(const struct shoal_sched *s, struct shoal_node_id id)
{
    const struct sched_node *node = sched_node_find(s, id);

    return sched_is_removed(s, id) || (node != NULL && node->info.state == SHOAL_SCHED_NODE_LEFT);
}

/* A mesh of this host: nobody else is in its group, in another group of this node, in gossip, or was there once. */
static bool is_alone(const struct shoal_sched *s)
{
    if (s->mesh_hint.count != 1 || !sched_is_self(s, s->mesh_hint.guardians[0]))
        return false;
    for (uint32_t i = 0; i < s->options.peer_count; i++)
        if (!has_left(s, s->options.peers[i]))
            return false;
    for (size_t i = 0; i < s->group_count; i++)
        if (s->groups[i]->told_count > 0)
            return false;
    for (size_t i = 0; i < s->node_count; i++)
        if (!sched_is_self(s, s->nodes[i].info.id) && !has_left(s, s->nodes[i].info.id))
            return false;
    return true;
}

static bool is_heard(const struct shoal_sched *s, struct shoal_node_id id)
{
    return sched_is_self(s, id) || (sched_node_find(s, id) != NULL && !node_is_dead(s, id));
}

const char *sched_request_cut_off(const struct shoal_sched *s)
{
    unsigned heard = 0, guardians = s->mesh_hint.count;

    SHOAL_ASSERT(guardians <= SHOAL_SCHED_SOURCES_MAX);
    for (unsigned i = 0; i < guardians; i++)
        heard += is_heard(s, s->mesh_hint.guardians[i]) ? 1 : 0;
    return 2 * heard <= guardians && guardians > 0 ? "it hears less than a majority of the mesh group" : NULL;
}

/* Hosts of an earlier life of which nobody has told in this one, so that nobody who is up can have heard what they guard:
 * all of those were started later. They are waited for as long as others wait for one that is silent. */
static uint32_t unheard_peers(const struct shoal_sched *s, struct shoal_node_id *one)
{
    uint32_t count = 0;

    SHOAL_ASSERT(s->options.peer_count <= SHOAL_SCHED_PEERS_MAX);
    for (uint32_t i = 0; i < s->options.peer_count && s->now < s->options.start_ns + s->options.lost_ns; i++) {
        struct shoal_node_id id = s->options.peers[i];

        if (sched_is_self(s, id) || sched_node_find(s, id) != NULL || has_left(s, id))
            continue;
        *one = id;
        count++;
    }
    return count;
}

/* R4. NULL: what nobody here knows of is not there; else why this node cannot tell. `away`: whom it would have to ask, as
 * far as others have told, and as this node knows. */
static const char *why_unsure(const struct shoal_sched *s, struct shoal_job_id job, struct shoal_node_id *away)
{
    const char *cut_off = sched_request_cut_off(s);
    struct shoal_node_id unheard = nobody;
    const uint32_t unheard_count = unheard_peers(s, &unheard);
    size_t known = unheard_count, live = 0;

    if (is_alone(s))
        return NULL;
    for (size_t i = 0; i < s->node_count; i++) {
        struct shoal_node_id id = s->nodes[i].info.id;

        if (sched_is_self(s, id) || has_left(s, id))
            continue;
        if (founder_matches(job, id) && !is_heard(s, id))
            *away = id;
        if (sched_gone_for_good(s, id))
            continue;
        known++;
        live += is_heard(s, id) ? 1 : 0;
    }
    for (uint32_t i = 0; i < s->options.peer_count; i++)
        if (founder_matches(job, s->options.peers[i]) && !is_heard(s, s->options.peers[i]) &&
            !has_left(s, s->options.peers[i]))
            *away = s->options.peers[i];
    if (s->now < s->options.start_ns + JUST_STARTED_NS)
        return "it has just started";
    if (cut_off != NULL)
        return cut_off;
    if (2 * (live + 1) <= known + 1 || live == 0)
        return "it hears less than a majority of the hosts that it knows";
    if (unheard_count >= MAJORITY_OF_GUARDIANS) {
        *away = shoal_node_id_is_zero(*away) ? unheard : *away;
        return "hosts that may guard it have not been heard since this one started (remove those that are lost)";
    }
    return shoal_node_id_is_zero(*away) ? NULL : "the host at which it was submitted is away (remove it if it is lost)";
}

/* Soon it knows more; a deadline that comes first says 503. */
static void ask_again(struct shoal_sched *s, struct sched_request *r)
{
    SHOAL_ASSERT(!r->foreign); /* R1 */
    r->ask_count = 0;
    sched_request_retry(s, r, SCHED_RETRY_NS);
}

/* The host that is named in the id came back after the others had been asked. */
static bool founder_is_unasked(const struct shoal_sched *s, const struct sched_request *r)
{
    SHOAL_ASSERT(r->ask_count <= SCHED_ASKED_MAX);
    for (size_t i = 0; i < s->node_count; i++) {
        struct shoal_node_id id = s->nodes[i].info.id;
        bool asked = sched_is_self(s, id) || !founder_matches(r->job, id) || !is_heard(s, id);

        for (unsigned n = 0; n < r->ask_count && !asked; n++)
            asked = shoal_node_id_equal(r->ask[n], id);
        if (!asked)
            return true;
    }
    return false;
}

/* R3, R4. What gossip tells of exists: its guardians are away, or lost. */
static void end_unknown(struct shoal_sched *s, struct sched_request *r)
{
    const struct shoal_job_summary *summary = sched_summary_find(s, r->job);
    struct shoal_node_id away = is_heard(s, r->away) || has_left(s, r->away) ? nobody : r->away;
    const char *why = why_unsure(s, r->job, &away);
    char name[16] = "";

    if (r->kind != SHOAL_SCHED_RECOVER && founder_is_unasked(s, r)) {
        ask_again(s, r);
        return;
    }
    if (r->kind == SHOAL_SCHED_RECOVER || (summary == NULL && why == NULL)) {
        sched_request_end(s, r, SHOAL_ERR_NOT_FOUND, nothing, "no such job: all %u nodes that could know it were asked",
                          (unsigned)r->ask_count);
        return;
    }
    sched_add_name(name, sizeof(name), summary != NULL ? summary->leader : away);
    if (summary != NULL)
        sched_request_end(
            s, r, SHOAL_ERR_UNREACHABLE, nothing,
            "none of its guardians is there (its leader was %s): start their agents; if they are lost for "
            "good, submit the job again",
            name);
    else if (s->now < s->options.start_ns + JUST_STARTED_NS)
        ask_again(s, r);
    else
        sched_request_end(s, r, SHOAL_ERR_UNREACHABLE, nothing,
                          "this node cannot tell whether there is such a job: %s%s%s; ask another node, or try again",
                          why, name[0] == '\0' ? "" : ": ", name);
}

void sched_request_ask_around(struct shoal_sched *s, struct sched_request *r)
{
    struct frame frame = { .kind = FRAME_WHO };

    SHOAL_ASSERT(!r->foreign); /* R1 */
    SHOAL_ASSERT(r->ask_count <= SCHED_ASKED_MAX);
    if (r->ask_count == 0) {
        r->ask_count = (uint8_t)sched_could_know(s, r->job, r->ask);
        r->answered = 0;
    }
    if (r->ask_count == 0) {
        end_unknown(s, r);
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

/* Another node, by chance; zero: there is none. */
static struct shoal_node_id any_alive(struct shoal_sched *s)
{
    size_t first = s->node_count == 0 ? 0 : shoal_rand_below(&s->chance, s->node_count);

    SHOAL_ASSERT(s->node_count <= SHOAL_MEMBERS_MAX);
    for (size_t i = 0; i < s->node_count; i++) {
        const struct sched_node_info *node = &s->nodes[(first + i) % s->node_count].info;

        if (node->state == SHOAL_SCHED_NODE_ALIVE && !sched_is_self(s, node->id))
            return node->id;
    }
    return nobody;
}

/* Silent: of those alone that this node follows (sched_silent_since()). */
static bool may_answer(const struct shoal_sched *s, struct shoal_node_id node)
{
    SHOAL_ASSERT(s->support != NULL);
    return !shoal_node_id_is_zero(node) && !sched_is_self(s, node) && !node_is_dead(s, node) &&
           sched_silent_since(s, node) == 0;
}

/* A mesh request from a node outside the group, or left behind by it: to the leader heard of, else to one guardian after the
 * other. */
static void try_mesh(struct shoal_sched *s, struct sched_request *r)
{
    struct shoal_node_id to = r->hint;

    SHOAL_ASSERT(!r->foreign); /* R1 */
    SHOAL_ASSERT(s->mesh_hint.count <= SHOAL_SCHED_SOURCES_MAX);
    if (shoal_node_id_is_zero(to) && r->hops == 0 && may_answer(s, s->mesh_leader))
        to = s->mesh_leader;
    for (unsigned i = 0; shoal_node_id_is_zero(to) && i < s->mesh_hint.count; i++) {
        struct shoal_node_id guardian = s->mesh_hint.guardians[(i + r->hops) % s->mesh_hint.count];

        if (may_answer(s, guardian))
            to = guardian;
    }
    if (shoal_node_id_is_zero(to))
        to = any_alive(s); /* the guardians known here are gone: somebody knows the new ones */
    if (shoal_node_id_is_zero(to))
        sched_request_retry(s, r, SCHED_RETRY_NS);
    else
        forward(s, r, to);
}

static void try_elsewhere(struct shoal_sched *s, struct sched_request *r)
{
    const struct shoal_job_summary *summary = sched_summary_find(s, r->job);

    SHOAL_ASSERT(!r->foreign); /* R1 */
    if (shoal_job_id_is_mesh(r->job)) {
        try_mesh(s, r);
        return;
    }
    if (!shoal_node_id_is_zero(r->hint) && !sched_is_self(s, r->hint))
        forward(s, r, r->hint);
    else if (r->hops == 0 && r->kind != SHOAL_SCHED_RECOVER && summary != NULL && !sched_is_self(s, summary->leader) &&
             !node_is_dead(s, summary->leader))
        forward(s, r, summary->leader);
    else
        sched_request_ask_around(s, r);
}

static void redirect(struct shoal_sched *s, struct sched_request *r, struct shoal_node_id leader)
{
    struct frame frame = { .kind = FRAME_RESPONSE };

    SHOAL_ASSERT(r->foreign);               /* R1 */
    SHOAL_ASSERT(r->state != REQUEST_FREE); /* R1 */
    frame.u.response.id = r->id;
    frame.u.response.err = SHOAL_ERR_NOT_LEADER;
    frame.u.response.retry = true;
    frame.u.response.leader = leader;
    sched_send(s, r->origin, &frame);
    sched_founding_end(s, r->serial);
    sched_request_release(s, r);
}

void sched_request_pass(struct shoal_sched *s, struct sched_request *r, struct shoal_node_id to)
{
    SHOAL_ASSERT(r->state != REQUEST_FREE); /* R1 */
    if (r->foreign)
        redirect(s, r, to);
    else
        forward(s, r, to);
}

/* An election is under way, and its end wakes us; but this replica may be one that was left behind, so after a while
 * who leads by gossip is asked too (of the mesh group: a guardian that is heard, so that no change is lost with one that
 * has died). A leader that is known here and did not answer as often as a request may be passed on
 * may have been out of reach: it is asked again, until the deadline. */
static void pause_for_election(struct shoal_sched *s, struct sched_request *r, struct shoal_node_id leader)
{
    const struct shoal_job_summary *summary = sched_summary_find(s, r->job);

    SHOAL_ASSERT(!r->foreign); /* R1 */
    if (r->pauses >= 3 && !shoal_node_id_is_zero(leader) && !sched_is_self(s, leader)) {
        r->pauses = 0;
        r->hops = 0;
        forward(s, r, leader);
        return;
    }
    if (r->pauses >= 3 && shoal_job_id_is_mesh(r->job)) {
        r->pauses = 0;
        try_mesh(s, r);
        return;
    }
    if (r->pauses < 3 || summary == NULL || sched_is_self(s, summary->leader) || node_is_dead(s, summary->leader)) {
        r->pauses++;
        sched_request_retry(s, r, SCHED_RETRY_NS);
        return;
    }
    r->pauses = 0;
    forward(s, r, summary->leader);
}

/* A parked job: its owner brings it back; here only when that is this node, or nobody else would. */
static void wake_parked(struct shoal_sched *s, struct sched_request *r, struct shoal_node_id owner)
{
    SHOAL_ASSERT(r->state != REQUEST_FREE); /* R1 */
    if (!sched_is_self(s, owner) && !r->local_only && r->kind != SHOAL_SCHED_RECOVER && r->hops < SCHED_HOPS_MAX &&
        !node_is_dead(s, owner)) {
        sched_request_pass(s, r, owner);
        return;
    }
    sched_park_want(s, r->job);
    sched_request_retry(s, r, SCHED_RETRY_NS);
}

void sched_request_try(struct shoal_sched *s, struct sched_request *r)
{
    struct sched_group *g = sched_group_find(s, r->job);
    struct sched_archived *a = sched_archive_find(s, r->job);
    bool stale_read = r->kind == SHOAL_SCHED_GET && !r->linearizable;
    struct shoal_node_id owner;

    SHOAL_ASSERT(r->state == REQUEST_WAITING ||
                 r->state == REQUEST_FORWARDED); /* R1: it is tried, and not while it is answered */
    if (a != NULL) {
        sched_archive_serve(s, r, a);
        return;
    }
    if (g == NULL && sched_park_owner(s, r->job, &owner)) {
        wake_parked(s, r, owner);
        return;
    }
    if (g != NULL && (g->stopped || (r->kind == SHOAL_SCHED_RECOVER && !g->record_known && !g->mesh_is)))
        g = NULL;
    if (g != NULL && g->refused) {
        sched_request_end(s, r, SHOAL_ERR_NOT_FOUND, nothing, "the founding of this job was refused; submit it again");
        return;
    }
    if (g != NULL && g->job != NULL && stale_read) {
        sched_request_end_with_facts(s, r, g);
        return;
    }
    if (g != NULL && r->kind == SHOAL_SCHED_RECOVER) {
        sched_recover(s, r, g);
        return;
    }
    if (g == NULL && r->kind == SHOAL_SCHED_RECOVER && shoal_job_id_is_mesh(r->job) && sched_recover_from_copy(s, r))
        return;
    if (g != NULL && g->leads && g->gone_archived) {
        sched_request_retry(s, r, SCHED_RETRY_NS); /* it ends: then the archive answers */
        return;
    }
    if (g != NULL && g->leads) {
        sched_request_serve_leading(s, r, g);
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
        struct shoal_node_id led_by = shoal_job_id_is_mesh(r->job) ? s->mesh_leader : nobody;

        if (g == NULL && sched_archive_has_ended(s, r->job))
            led_by = sched_archive_holder(s, r->job);
        redirect(s, r, g != NULL ? g->leader : led_by);
        return;
    }
    if (g == NULL)
        try_elsewhere(s, r);
    else if (!shoal_node_id_is_zero(g->leader) && !sched_is_self(s, g->leader) && r->hops < SCHED_HOPS_MAX)
        forward(s, r, g->leader);
    else
        pause_for_election(s, r, g->leader);
}

/* ---- Who knows a job ---- */

/* The founder named in an id, if this node knows it and does not hear it; else nobody. */
static struct shoal_node_id founder_away(const struct shoal_sched *s, struct shoal_job_id job)
{
    SHOAL_ASSERT(s->options.peer_count <= SHOAL_SCHED_PEERS_MAX);
    for (size_t i = 0; i < s->node_count; i++) {
        struct shoal_node_id id = s->nodes[i].info.id;

        if (founder_matches(job, id) && !is_heard(s, id) && !has_left(s, id))
            return id;
    }
    for (uint32_t i = 0; i < s->options.peer_count; i++) {
        struct shoal_node_id id = s->options.peers[i];

        if (founder_matches(job, id) && !is_heard(s, id) && !has_left(s, id))
            return id;
    }
    return nobody;
}

void sched_on_who(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct sched_group *g = sched_group_find(s, frame->u.who.job);
    const struct shoal_job_summary *summary = sched_summary_find(s, frame->u.who.job);
    struct frame answer = { .kind = FRAME_WHO_REPLY };
    bool archived;
    bool parked;

    SHOAL_ASSERT(frame->kind == FRAME_WHO);
    SHOAL_ASSERT(!sched_is_self(s, from)); /* on_frame() has looked */
    if (!s->restored)
        return; /* what is stored comes first; the sender repeats */
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
    archived = sched_archive_find(s, frame->u.who.job) != NULL;
    answer.u.who_reply.holds = parked || (g != NULL && g->record_known && !g->stopped) || archived;
    /* A group that has given the job to the archive decides nothing about it any more. */
    answer.u.who_reply.gone =
        sched_is_gone(s, frame->u.who.job) &&
        (g == NULL || g->told_elsewhere || (g->job != NULL && !shoal_hash_is_zero(g->job->archived)));
    if (g == NULL && !archived && !parked && sched_archive_has_ended(s, frame->u.who.job)) {
        answer.u.who_reply.leader = sched_archive_holder(s, frame->u.who.job);
        answer.u.who_reply.holds = true; /* R3: it exists, whatever the asker knows of who has it now */
    }
    if (g != NULL)
        answer.u.who_reply.leader = g->leader;
    else if (!answer.u.who_reply.holds && summary != NULL) /* who has the record answers: the leader may have gone */
        answer.u.who_reply.leader = summary->leader;
    else if (!answer.u.who_reply.holds)
        answer.u.who_reply.leader = founder_away(s, frame->u.who.job);
    sched_send(s, from, &answer);
}

void sched_on_who_reply(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct sched_request *r = sched_request_get(s, frame->u.who_reply.id);
    unsigned all;

    SHOAL_ASSERT(frame->kind == FRAME_WHO_REPLY);
    SHOAL_ASSERT(!sched_is_self(s, from)); /* on_frame() has looked */
    if (r == NULL || !shoal_job_id_equal(r->job, frame->u.who_reply.job))
        return;
    if (r->state == REQUEST_CONFIRMING)
        sched_archive_confirm(s, r, from, frame->u.who_reply.gone);
    if (r->state != REQUEST_ASKING)
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
    if (founder_matches(r->job, frame->u.who_reply.leader) && !is_heard(s, frame->u.who_reply.leader) &&
        !has_left(s, frame->u.who_reply.leader))
        r->away = frame->u.who_reply.leader;
    /* Hearsay counts only when nobody holds it, and not if it has just misled us. */
    else if (r->kind != SHOAL_SCHED_RECOVER && !shoal_node_id_is_zero(frame->u.who_reply.leader) &&
             !sched_is_self(s, frame->u.who_reply.leader) &&
             !shoal_node_id_equal(frame->u.who_reply.leader, r->asked) && !node_is_dead(s, frame->u.who_reply.leader))
        r->rumour = frame->u.who_reply.leader;
    if (r->answered == all && !shoal_node_id_is_zero(r->rumour)) {
        r->hint = r->rumour;
        r->rumour = nobody;
        sched_request_retry(s, r, 0);
        return;
    }
    if (r->answered == all)
        end_unknown(s, r);
}
