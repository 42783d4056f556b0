/* Requests that are answered by a group of this node (sched_request.c has the picture and the rules). */
#include "shoal/job_facts.h"
#include "shoal/job_entry.h"
#include "sched_request.h"
#include "sched_copy.h"
#include "sched_group.h"
#include "sched_lead.h"
#include "sched_state.h"

#include "shoal/banned.h"

static const struct shoal_view nothing;

/* ---- Serving here ---- */

void sched_request_end_with_facts(struct shoal_sched *s, struct sched_request *r, const struct sched_group *g)
{
    struct shoal_job_facts facts;
    size_t len;

    SHOAL_ASSERT(r->state != REQUEST_FREE); /* R1 */
    if (g->job == NULL) {
        sched_request_end(s, r, SHOAL_ERR_UNREACHABLE, nothing,
                          "the founding of this job is not settled yet; try again");
        return;
    }
    if (g->job->deleted && shoal_job_state_ended((enum shoal_job_state)g->job->state)) {
        sched_request_end(s, r, SHOAL_ERR_NOT_FOUND, nothing, "the job was deleted");
        return;
    }
    sched_job_facts(s, g, &facts);
    if (shoal_job_facts_encode(&facts, s->scratch.bytes, s->scratch.cap, &len) != SHOAL_OK) {
        sched_request_end(s, r, SHOAL_ERR_TOO_BIG, nothing, "what is known of this job does not fit an answer");
        return;
    }
    sched_request_end(s, r, SHOAL_OK, shoal_view_of(s->scratch.bytes, len), "%s", "");
}

static void end_with_why(struct shoal_sched *s, struct sched_request *r, const struct sched_group *g)
{
    char text[2048] = "";

    SHOAL_ASSERT(r->state != REQUEST_FREE); /* R1 */
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

    SHOAL_ASSERT(r->state != REQUEST_FREE); /* R1 */
    SHOAL_ASSERT(r->kind == SHOAL_SCHED_TASKS);
    if (g->job == NULL || (g->job->deleted && shoal_job_state_ended((enum shoal_job_state)g->job->state))) {
        sched_request_end_with_facts(s, r, g); /* which says why there are none */
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

    SHOAL_ASSERT(g->leads);                 /* R2 */
    SHOAL_ASSERT(r->state != REQUEST_FREE); /* R1 */
    if (r->kind == SHOAL_SCHED_STOP)
        view = shoal_view_of(bytes, shoal_job_entry_stop(bytes, sizeof(bytes), r->by, s->wall_ms));
    else if (r->kind == SHOAL_SCHED_DELETE)
        view = shoal_view_of(bytes, shoal_job_entry_delete(bytes, sizeof(bytes), r->by, s->wall_ms));
    else if (r->kind == SHOAL_SCHED_SCALE)
        view =
            shoal_view_of(bytes, shoal_job_entry_scale(bytes, sizeof(bytes), r->command.bytes[0], r->by, s->wall_ms));
    else if (r->kind == SHOAL_SCHED_EDIT) /* checked: it fits */
        view = shoal_view_of(s->scratch.bytes, shoal_job_entry_edit(s->scratch.bytes, s->scratch.cap,
                                                                    shoal_buf_view(&r->command), r->by, s->wall_ms));
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
    SHOAL_ASSERT(r->state != REQUEST_FREE); /* R1 */
    return r->kind == SHOAL_SCHED_STOP || r->kind == SHOAL_SCHED_DELETE || r->kind == SHOAL_SCHED_SCALE ||
           r->kind == SHOAL_SCHED_EDIT || r->kind == SHOAL_SCHED_MESH_CHANGE;
}

static enum shoal_err check_edit(const struct sched_request *r, const struct sched_group *g, struct shoal_msg *msg)
{
    struct shoal_reader reader = shoal_reader_init(shoal_buf_view(&r->command));
    uint32_t revision = shoal_get_u32(&reader);
    uint8_t replicas = shoal_get_u8(&reader);

    SHOAL_ASSERT(r->kind == SHOAL_SCHED_EDIT);
    if (reader.failed || shoal_reader_left(&reader) > SHOAL_SERVICE_DOCUMENT_BYTES_MAX)
        return shoal_fail(msg, SHOAL_ERR_INVALID,
                          "a service's model, profile and readme have at most %u bytes; shorten them",
                          (unsigned)SHOAL_SERVICE_DOCUMENT_BYTES_MAX);
    if (replicas != SHOAL_REPLICAS_KEEP && replicas > SHOAL_SERVICE_REPLICAS_MAX)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "a service has 0 to %u replicas", SHOAL_SERVICE_REPLICAS_MAX);
    if (revision != g->job->revision)
        return shoal_fail(msg, SHOAL_ERR_STALE, "the service was changed by somebody else; look again");
    return SHOAL_OK;
}

/* Answers what can be said of a change of a service before it is in the log. */
static enum shoal_err check_service(const struct sched_request *r, const struct sched_group *g, struct shoal_msg *msg)
{
    SHOAL_ASSERT(r->kind == SHOAL_SCHED_SCALE || r->kind == SHOAL_SCHED_EDIT);
    if (g->mesh_is || g->job == NULL || !shoal_job_spec_serves(&g->job->spec))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "this job is no service: it has no replicas");
    if (g->job->stop || shoal_job_state_ended((enum shoal_job_state)g->job->state))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "the service's job has ended: %s", g->job->reason);
    if (r->kind == SHOAL_SCHED_EDIT)
        return check_edit(r, g, msg);
    if (r->command.len != 1 || r->command.bytes[0] > SHOAL_SERVICE_REPLICAS_MAX)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "a service has 0 to %u replicas", SHOAL_SERVICE_REPLICAS_MAX);
    return SHOAL_OK;
}

void sched_request_serve_leading(struct shoal_sched *s, struct sched_request *r, struct sched_group *g)
{
    struct shoal_msg msg = { "" };
    enum shoal_err err;

    SHOAL_ASSERT(g->leads); /* R2 */
    SHOAL_ASSERT(r->state == REQUEST_WAITING || r->state == REQUEST_FORWARDED);
    if (r->kind == SHOAL_SCHED_MESH_CHANGE) {
        err = shoal_mesh_check(g->mesh, shoal_buf_view(&r->command), &msg);
        /* Only what cannot come right by entries under way is refused before the log. */
        if (err == SHOAL_ERR_MALFORMED || err == SHOAL_ERR_INVALID) {
            sched_request_end(s, r, err, nothing, "%s", msg.text);
            return;
        }
    }
    if (is_change(r)) {
        bool of_service = r->kind == SHOAL_SCHED_SCALE || r->kind == SHOAL_SCHED_EDIT;

        if (!g->mesh_is && g->job == NULL)
            sched_request_retry(s, r, SCHED_RETRY_NS);
        else if (of_service && (err = check_service(r, g, &msg)) != SHOAL_OK)
            sched_request_end(s, r, err, nothing, "%s", msg.text);
        else if (g->mesh_is || sched_request_may(s, r, g->job->spec.creator))
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
    SHOAL_ASSERT(r->state == REQUEST_READING && r->read_index <= g->applied);
    SHOAL_ASSERT(shoal_job_id_equal(r->job, g->id));
    if (r->kind == SHOAL_SCHED_GET)
        sched_request_end_with_facts(s, r, g);
    else if (r->kind == SHOAL_SCHED_WHY)
        end_with_why(s, r, g);
    else if (r->kind == SHOAL_SCHED_TASKS)
        end_with_tasks(s, r, g);
    else {
        r->version = sched_mesh_version(g);
        sched_request_move(r, REQUEST_COPY);
        sched_requests_copy(s); /* which may be that new already */
    }
}

/* ---- Of a group ---- */

void sched_requests_applied(struct shoal_sched *s, struct sched_group *g, uint64_t index, uint64_t term,
                            enum shoal_err err, const char *text)
{
    SHOAL_ASSERT(index > 0 && term > 0); /* G1 */
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
        r->version = sched_lineage(term) << SCHED_LINEAGE_SHIFT | (uint32_t)index; /* of the mesh: K1 of sched_copy.c */
        if (err == SHOAL_OK && g->mesh_is)
            sched_request_move(r, REQUEST_COPY); /* told when this node serves it, and gives it to who asked for it */
        else
            sched_request_end(s, r, err, nothing, "%s", text);
    }
}

void sched_requests_rejected(struct shoal_sched *s, struct sched_group *g, uint64_t ctx, enum shoal_err err)
{
    struct sched_request *r;

    SHOAL_ASSERT(err != SHOAL_OK);
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

    SHOAL_ASSERT(g->raft != NULL);
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
    SHOAL_ASSERT(s->request_count <= SHOAL_SCHED_REQUESTS_MAX);
    for (size_t i = 0; s->request_count > 0 && i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        struct sched_request *r = &s->requests[i];

        if (r->state == REQUEST_READING && r->read_index != 0 && r->read_index <= g->applied &&
            shoal_job_id_equal(r->job, g->id) && s->actions->count + 64 < SHOAL_SCHED_ACTIONS_MAX)
            finish_read(s, r, g);
    }
}

void sched_requests_read(struct shoal_sched *s, struct sched_group *g, uint64_t serial, uint64_t index)
{
    SHOAL_ASSERT(index <= shoal_raft_commit(g->raft)); /* a read waits for what is committed */
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
    SHOAL_ASSERT(s->request_count <= SHOAL_SCHED_REQUESTS_MAX);
    for (size_t i = 0; s->request_count > 0 && i < SHOAL_SCHED_REQUESTS_MAX; i++) {
        struct sched_request *r = &s->requests[i];

        if (r->state == REQUEST_COPY && r->version <= s->copy_version &&
            s->actions->count + 64 < SHOAL_SCHED_ACTIONS_MAX)
            sched_request_end(s, r, SHOAL_OK,
                              r->kind == SHOAL_SCHED_MESH_READ && !r->foreign ? shoal_buf_view(&s->copy) : nothing,
                              "%s", "");
    }
}
