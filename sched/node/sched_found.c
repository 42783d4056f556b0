/* Founding a job, once (PROTOCOLS 2).
 *
 *   conductor (any node)                     guardian of the ticket
 *     | FOUND (record: ticket, spec, bundle) -> | checks the ticket, fetches a large bundle,
 *     |                                         | makes entries 1 and 2 of term 1
 *     | <------------- FOUND_REPLY(stored) ---- | after the flush
 *     majority stored: "submitted"              | the issuer, in the incarnation named, leads term 1; else they elect
 *
 * F1. The record is computed from ticket and body alone: every guardian's entries 1 and 2 are the same bytes, whoever
 *     conducts. The submit's time is the ticket's, never a conductor's. A retry finds what is there; another body for the
 *     same id is refused (OTHER, 409).
 * F2. A guardian answers "stored" only after the flush, and only with the bundle at hand.
 * F3. The issuer leads term 1 only in the incarnation that its ticket names, and only when it founds the group afresh.
 * F4. A holder of an uncommitted record goes on offering it to the other guardians: it completes the founding.
 *     Committed once, it is founded: one guardian of today that says so is enough, or gossip that tells of the job, where
 *     the ticket's guardians were replaced.
 * F5. An id that was removed or refused is not founded again.
 *
 * What finds no majority is settled by sched_settle.c. */
#include "shoal/sched_ticket.h"
#include "sched_found.h"
#include "sched_archive.h"
#include "sched_group.h"
#include "sched_index.h"
#include "sched_node.h"
#include "sched_park.h"
#include "sched_request.h"
#include "sched_slots.h"
#include "sched_state.h"
#include "sched_store.h"
#include "sched_view.h"

#include "shoal/banned.h"

/* ---- Guardians and tickets ---- */

struct candidate {
    const struct sched_node *node;
    uint64_t score;
};

#define CANDIDATES_MAX 32
#define FOUNDED_TEXT "founded" /* with STORED: not only flushed here, but committed */
#define GOSSIP_TRIES 4         /* so long a deletion would have been told by the guardians */

/* The best of all available nodes but this one, in rendezvous order; returns how many, at most CANDIDATES_MAX. */
static size_t rank_nodes(const struct shoal_sched *s, struct shoal_job_id job, struct candidate *best)
{
    size_t count = 0;

    SHOAL_ASSERT(s->node_count <= SHOAL_MEMBERS_MAX);
    for (size_t i = 0; i < s->node_count; i++) {
        const struct sched_node *node = &s->nodes[i];
        struct candidate one = { .node = node };
        size_t at;

        if (sched_is_self(s, node->info.id) || !sched_node_available(s, node))
            continue;
        one.score = sched_score(s, job, node->info.id);
        for (at = count; at > 0 && best[at - 1].score < one.score; at--) {
            if (at < CANDIDATES_MAX)
                best[at] = best[at - 1];
        }
        if (at < CANDIDATES_MAX)
            best[at] = one;
        if (count < CANDIDATES_MAX)
            count++;
    }
    return count;
}

static bool same_domain(const char *a, const char *b) { return a[0] != '\0' && strcmp(a, b) == 0; }

static bool domain_taken(const struct shoal_sched *s, const struct shoal_sched_ticket *t, const struct sched_node *node)
{
    SHOAL_ASSERT(t->guardian_count <= SHOAL_SCHED_SOURCES_MAX);
    for (unsigned i = 0; i < t->guardian_count; i++) {
        const struct sched_node *other = sched_node_find(s, t->guardians[i].node);
        const char *domain = other != NULL ? sched_node_domain(other) : "";

        if (i == 0) /* the first is this node */
            domain = s->options.domain;
        if (same_domain(domain, sched_node_domain(node)))
            return true;
    }
    return false;
}

static bool is_guardian(const struct shoal_sched_ticket *t, struct shoal_node_id node)
{
    SHOAL_ASSERT(t->guardian_count <= SHOAL_SCHED_SOURCES_MAX);
    for (unsigned i = 0; i < t->guardian_count; i++) {
        if (shoal_node_id_equal(t->guardians[i].node, node))
            return true;
    }
    return false;
}

static void add_guardian(struct shoal_sched_ticket *t, struct shoal_node_id node, struct shoal_store_id store)
{
    SHOAL_ASSERT(t->guardian_count < SHOAL_SCHED_SOURCES_MAX);
    SHOAL_ASSERT(!is_guardian(t, node));
    t->guardians[t->guardian_count].node = node;
    t->guardians[t->guardian_count].store = store;
    t->guardian_count++;
}

/* This node first; then the nearest in domains of their own; then the nearest that are left. */
static void choose_guardians(const struct shoal_sched *s, struct shoal_sched_ticket *t)
{
    struct candidate best[CANDIDATES_MAX];
    size_t count = rank_nodes(s, t->job, best);

    SHOAL_ASSERT(t->guardian_count == 0);
    SHOAL_ASSERT(t->target == 3 || t->target == 5);
    add_guardian(t, s->self, s->store);
    for (unsigned pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < count && t->guardian_count < t->target; i++) {
            if (is_guardian(t, best[i].node->info.id) || (pass == 0 && domain_taken(s, t, best[i].node)))
                continue;
            add_guardian(t, best[i].node->info.id, best[i].node->info.store);
        }
    }
    if (t->guardian_count == 4) /* four survive no more than three do */
        t->guardian_count = 3;
}

/* 44 bits of milliseconds, 16 bits of this node's id, 20 bits of the hash of (spec hash, nonce). */
static struct shoal_job_id make_id(const struct shoal_sched *s, const struct shoal_sched_ticket *t)
{
    uint8_t bytes[sizeof(t->spec_hash.bytes) + 8];
    struct shoal_job_id id;
    struct shoal_hash hash;
    uint64_t ms = t->wall_ms & ((1ull << 44) - 1);

    SHOAL_ASSERT(shoal_node_id_equal(t->issuer, s->self)); /* a ticket is made by its issuer */
    memcpy(bytes, t->spec_hash.bytes, sizeof(t->spec_hash.bytes));
    for (unsigned i = 0; i < 8; i++)
        bytes[sizeof(t->spec_hash.bytes) + i] = (uint8_t)(t->nonce >> (8 * i));
    hash = sched_hash(s, shoal_view_of(bytes, sizeof(bytes)));
    for (unsigned i = 0; i < 5; i++)
        id.bytes[i] = (uint8_t)(ms >> (36 - 8 * i));
    id.bytes[5] = (uint8_t)((ms & 15) << 4 | s->self.bytes[0] >> 4);
    id.bytes[6] = (uint8_t)(s->self.bytes[0] << 4 | s->self.bytes[1] >> 4);
    id.bytes[7] = (uint8_t)(s->self.bytes[1] << 4 | (hash.bytes[0] & 15));
    id.bytes[8] = hash.bytes[1];
    id.bytes[9] = hash.bytes[2];
    return id;
}

static void make_ticket(struct shoal_sched *s, const struct shoal_sched_request *request, struct shoal_sched_ticket *t)
{
    uint8_t body[SHOAL_SCHED_TICKET_BYTES_MAX];
    struct shoal_writer w = shoal_writer_init(body, sizeof(body));
    bool fits;

    SHOAL_ASSERT(request->kind == SHOAL_SCHED_SUBMIT || request->kind == SHOAL_SCHED_TICKET);
    *t = (struct shoal_sched_ticket){
        .spec_hash = request->spec_hash,
        .wall_ms = s->wall_ms,
        .issuer = s->self,
        .incarnation = s->incarnation,
        .nonce = shoal_rand_u64(&s->chance),
        .target = request->hosts_wanted >= 64 ? 5 : 3,
    };
    memcpy(t->key, s->options.public_key, sizeof(t->key));
    t->job = make_id(s, t);
    choose_guardians(s, t);
    fits = sched_ticket_encode_body(t, &w);
    SHOAL_ASSERT(fits);
    s->options.env.sign(s->options.env.arg, shoal_writer_view(&w), t->signature);
}

/* `from`: the node whose link brought the ticket; zero: a client did. A link proves its peer's key, so what the issuer
 * brings itself needs no second proof: verifying it costs a guardian more than all the rest of a founding. A guardian
 * that is offered the record by another holder checks the signature then. */
static bool ticket_is_genuine(const struct shoal_sched *s, struct shoal_node_id from,
                              const struct shoal_sched_ticket *t)
{
    uint8_t body[SHOAL_SCHED_TICKET_BYTES_MAX];
    struct shoal_writer w = shoal_writer_init(body, sizeof(body));
    const struct shoal_sched_env *env = &s->options.env;

    SHOAL_ASSERT(t->guardian_count <= SHOAL_SCHED_SOURCES_MAX);
    if (!sched_is_self(s, t->issuer) && sched_node_find(s, t->issuer) == NULL)
        return false;
    if (!shoal_node_id_equal(env->node_of_key(env->arg, t->key), t->issuer) || !sched_ticket_encode_body(t, &w))
        return false;
    if (shoal_node_id_equal(from, t->issuer))
        return true;
    return env->verify(env->arg, t->key, shoal_writer_view(&w), t->signature);
}

static struct shoal_view ticket_bytes(struct shoal_sched *s, const struct shoal_sched_ticket *t)
{
    uint8_t *bytes = sched_pool(s, SHOAL_SCHED_TICKET_BYTES_MAX, 0);
    size_t len;

    SHOAL_ASSERT(t->guardian_count > 0);
    if (bytes == NULL || shoal_sched_ticket_encode(t, bytes, SHOAL_SCHED_TICKET_BYTES_MAX, &len) != SHOAL_OK)
        return (struct shoal_view){ 0 };
    return shoal_view_of(bytes, len);
}

void sched_ticket(struct shoal_sched *s, struct sched_request *r, const struct shoal_sched_request *request)
{
    struct shoal_sched_ticket ticket;

    SHOAL_ASSERT(r->kind == SHOAL_SCHED_TICKET);
    make_ticket(s, request, &ticket);
    r->job = ticket.job;
    sched_request_end(s, r, SHOAL_OK, ticket_bytes(s, &ticket), "%s", "");
}

/* ---- The guardian's side ---- */

static void take_answer(struct shoal_sched *s, struct shoal_node_id from, struct shoal_job_id job, uint64_t nonce,
                        enum found_answer answer, const char *text);

static void answer(struct shoal_sched *s, struct shoal_node_id to, struct shoal_job_id job, uint64_t nonce,
                   enum found_answer what, const char *text)
{
    struct frame frame = { .kind = FRAME_FOUND_REPLY };

    SHOAL_ASSERT(what < FOUND_ANSWERS);
    if (sched_is_self(s, to)) {
        take_answer(s, to, job, nonce, what, text);
        return;
    }
    frame.u.found_reply.job = job;
    frame.u.found_reply.nonce = nonce;
    frame.u.found_reply.answer = (uint8_t)what;
    (void)snprintf(frame.u.found_reply.text, sizeof(frame.u.found_reply.text), "%s", text);
    sched_send(s, to, &frame);
}

static bool bundle_pending(const struct sched_group *g)
{
    SHOAL_ASSERT(!g->mesh_is || shoal_hash_is_zero(g->bundle_hash));
    return !g->bundle_here && !shoal_hash_is_zero(g->bundle_hash);
}

void sched_found_durable(struct shoal_sched *s, struct sched_group *g)
{
    unsigned count = g->waiter_count;

    SHOAL_ASSERT(g->waiter_count <= SCHED_WAITERS_MAX);
    if (!g->record_known || !g->found_durable || bundle_pending(g))
        return;
    sched_index_dirty(s, g); /* X2 */
    g->waiter_count = 0;
    for (unsigned i = 0; i < count; i++)
        answer(s, g->waiters[i].node, g->id, g->waiters[i].nonce, FOUND_STORED,
               g->founded && !shoal_node_id_is_zero(g->leader) ? FOUNDED_TEXT : "");
}

/* Ask for the bundle once: from the record when it is inside, else from the other guardians. */
void sched_bundle_want(struct shoal_sched *s, struct sched_group *g)
{
    struct founding_record record;
    struct shoal_view bytes = sched_group_record(g);
    struct shoal_sched_action *action;
    struct shoal_host_order *order;
    struct shoal_node_id nodes[SHOAL_GROUP_NODES_MAX];
    size_t count;

    SHOAL_ASSERT(g->raft != NULL);
    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    if (g->bundle_asked || shoal_hash_is_zero(g->bundle_hash))
        return;
    g->bundle_asked = true;
    if (bytes.len > 0 && sched_record_decode(bytes, &record) == SHOAL_OK && record.bundle.len > 0) {
        g->bundle_here = true;
        action = sched_act(s, SHOAL_SCHED_BLOB_PUT);
        action->u.blob.job = g->id;
        action->u.blob.hash = g->bundle_hash;
        action->u.blob.bytes = record.bundle; /* into the entry, which the group keeps at least until the next step */
        return;
    }
    order = sched_order(s, SHOAL_HOST_DO_FETCH);
    order->u.fetch.job = g->id;
    order->u.fetch.hash = g->bundle_hash;
    count = sched_group_guardians(g, nodes, SHOAL_GROUP_NODES_MAX);
    for (size_t i = 0; i < count && order->u.fetch.source_count < SHOAL_HOST_SOURCES_MAX; i++) {
        if (!sched_is_self(s, nodes[i]))
            order->u.fetch.sources[order->u.fetch.source_count++] = nodes[i];
    }
}

static enum shoal_err make_group(struct shoal_sched *s, const struct founding_record *record, struct shoal_view bytes,
                                 struct sched_group **made)
{
    const struct shoal_sched_ticket *t = &record->ticket;
    uint8_t config_bytes[SHOAL_RAFT_CONFIG_BYTES_MAX];
    struct shoal_raft_options options;
    struct shoal_entry *entries[2];
    struct sched_group *g;
    bool leads;
    enum shoal_err err = sched_group_admit(s, t->job, &g);

    SHOAL_ASSERT(record->ticket.guardian_count > 0);
    if (err != SHOAL_OK)
        return err;
    sched_raft_options(s, &options);
    for (unsigned i = 0; i < t->guardian_count; i++)
        options.config.members[options.config.count++] = (struct shoal_raft_member){
            .id = { .node = t->guardians[i].node, .store = t->guardians[i].store },
            .bits = SHOAL_RAFT_VOTER,
        };
    entries[0] = shoal_entry_create_at(
        1, 1, SHOAL_ENTRY_CONFIG, shoal_view_of(config_bytes, shoal_raft_config_encode(&options.config, config_bytes)));
    entries[1] = shoal_entry_create_at(1, 2, SHOAL_ENTRY_USER, bytes);
    err = entries[0] == NULL || entries[1] == NULL ? SHOAL_ERR_FULL : shoal_raft_create(&g->raft, &options);
    if (err == SHOAL_OK) {
        g->record_known = true;
        g->spec_hash = t->spec_hash;
        g->bundle_hash = record->bundle_hash;
        g->target = t->target;
        g->complete_ns = s->now + 2 * SHOAL_S;
        sched_group_told(s, g);
        leads = sched_is_self(s, t->issuer) && shoal_incarnation_cmp(t->incarnation, s->incarnation) == 0; /* F3 */
        err = shoal_raft_found(g->raft, entries, 2, t->issuer, leads, s->now, &s->raft_actions);
    }
    shoal_entry_unref(entries[0]);
    shoal_entry_unref(entries[1]);
    if (err != SHOAL_OK) {
        sched_group_remove(s, g);
        return err;
    }
    sched_carry_out(s, g);
    sched_bundle_want(s, g);
    sched_group_dirty(s, g);
    s->stats.foundings++;
    *made = g;
    return SHOAL_OK;
}

static struct sched_fetching *fetching_find(struct shoal_sched *s, struct shoal_hash hash, uint64_t nonce)
{
    for (size_t i = 0; i < SCHED_FETCHING_MAX; i++) {
        if (s->fetching[i].used && shoal_hash_equal(s->fetching[i].hash, hash) && s->fetching[i].nonce == nonce)
            return &s->fetching[i];
    }
    return NULL;
}

/* F2: a large bundle first. The record waits meanwhile; the conductor repeats anyway. */
static enum shoal_err fetch_first(struct shoal_sched *s, struct shoal_node_id from,
                                  const struct founding_record *record, struct shoal_view bytes)
{
    struct sched_fetching *f = fetching_find(s, record->bundle_hash, record->ticket.nonce);
    struct shoal_host_order *order;

    SHOAL_ASSERT(record->bundle.len == 0 && !shoal_hash_is_zero(record->bundle_hash)); /* F2 */
    if (f != NULL) {
        f->from = from;
        return SHOAL_OK;
    }
    for (size_t i = 0; i < SCHED_FETCHING_MAX && f == NULL; i++) {
        if (!s->fetching[i].used)
            f = &s->fetching[i];
    }
    if (f == NULL)
        return SHOAL_ERR_FULL;
    f->record.len = 0;
    if (shoal_buf_append(&f->record, bytes.bytes, bytes.len) != SHOAL_OK)
        return SHOAL_ERR_FULL;
    f->used = true;
    f->from = from;
    f->nonce = record->ticket.nonce;
    f->hash = record->bundle_hash;
    order = sched_order(s, SHOAL_HOST_DO_FETCH);
    order->u.fetch.job = record->ticket.job;
    order->u.fetch.hash = record->bundle_hash;
    if (!sched_is_self(s, from))
        order->u.fetch.sources[order->u.fetch.source_count++] = from;
    for (unsigned i = 0; i < record->ticket.guardian_count; i++) {
        struct shoal_node_id node = record->ticket.guardians[i].node;

        if (!sched_is_self(s, node) && !shoal_node_id_equal(node, from) &&
            order->u.fetch.source_count < SHOAL_HOST_SOURCES_MAX)
            order->u.fetch.sources[order->u.fetch.source_count++] = node;
    }
    return SHOAL_OK;
}

static void wait_for_flush(struct shoal_sched *s, struct sched_group *g, struct shoal_node_id node, uint64_t nonce)
{
    SHOAL_ASSERT(g->waiter_count <= SCHED_WAITERS_MAX);
    for (unsigned i = 0; i < g->waiter_count; i++) {
        if (shoal_node_id_equal(g->waiters[i].node, node) && g->waiters[i].nonce == nonce)
            return;
    }
    if (g->waiter_count < SCHED_WAITERS_MAX)
        g->waiters[g->waiter_count++] = (struct sched_waiter){ .node = node, .nonce = nonce };
    sched_found_durable(s, g);
}

/* NULL: it is read; else why not. */
static const char *why_no_spec(enum shoal_err err)
{
    if (err == SHOAL_OK)
        return NULL;
    return err == SHOAL_ERR_UNSUPPORTED ? "the specification needs a newer version of shoal than this node's"
                                        : "the specification does not decode";
}

/* NULL: fine; else why this node is no guardian of it. What is conducted here has a ticket that was made or checked
 * here (sched_submit); a frame from a link never comes from this node. */
static const char *why_not(struct shoal_sched *s, struct shoal_node_id from, const struct founding_record *record)
{
    struct shoal_job_spec spec;

    SHOAL_ASSERT(sched_group_find(s, record->ticket.job) == NULL);
    if (!sched_is_self(s, from) && !ticket_is_genuine(s, from, &record->ticket))
        return "the ticket's signature is not that of a node known here";
    if (!sched_may_found(s, record->ticket.job))
        return "other nodes guard this job by now";
    for (unsigned i = 0; i < record->ticket.guardian_count; i++) {
        if (!sched_is_self(s, record->ticket.guardians[i].node))
            continue;
        if (!shoal_store_id_equal(record->ticket.guardians[i].store, s->store))
            return "the ticket names another store of this node";
        return why_no_spec(shoal_job_spec_decode(record->spec, &spec));
    }
    return "the ticket names other guardians";
}

static void found_here(struct shoal_sched *s, struct shoal_node_id from, const struct founding_record *record,
                       struct shoal_view bytes, bool bundle_here)
{
    struct shoal_job_id job = record->ticket.job;
    struct sched_group *g = sched_group_find(s, job);
    const char *why = NULL;
    bool guardian = false;
    bool same;
    enum shoal_err err;

    SHOAL_ASSERT(s->restored); /* what is stored comes first */
    SHOAL_ASSERT(record->ticket.guardian_count > 0);
    if (g == NULL && sched_park_wake(s, job))
        return; /* it comes back; the conductor repeats */
    if (g == NULL && sched_archive_same(s, job, record->ticket.spec_hash, &same)) {
        answer(s, from, job, record->ticket.nonce, same ? FOUND_STORED : FOUND_OTHER, "");
        return;
    }
    if (g != NULL ? g->refused : sched_is_gone(s, job) || sched_gone_is_forgotten(s, job)) {
        answer(s, from, job, record->ticket.nonce, FOUND_SETTLED, "");
        return;
    }
    if (g != NULL && !g->record_known) {
        /* The group came first: its leader's entries bring the record. */
        wait_for_flush(s, g, from, record->ticket.nonce);
        return;
    }
    if (g != NULL && !shoal_hash_equal(g->spec_hash, record->ticket.spec_hash)) {
        answer(s, from, job, record->ticket.nonce, FOUND_OTHER, "");
        return;
    }
    if (g == NULL)
        why = why_not(s, from, record);
    guardian = why == NULL;
    if (g == NULL && guardian && s->store_percent >= SHOAL_STORE_SUBMIT_PERCENT)
        why = "its store keeps what is left for the jobs that run; delete finished jobs";
    if (why == NULL && g == NULL && !bundle_here && record->bundle.len == 0 &&
        !shoal_hash_is_zero(record->bundle_hash)) {
        if (fetch_first(s, from, record, bytes) == SHOAL_OK)
            return;
        why = "too many foundings wait for their bundles here";
    }
    if (why == NULL && g == NULL) {
        err = make_group(s, record, bytes, &g);
        if (err != SHOAL_OK)
            why = "this node guards as many jobs as it can";
        else if (bundle_here)
            g->bundle_here = true;
    }
    if (why != NULL) {
        s->stats.foundings_refused++;
        if (guardian)
            sched_settle_later(s, &record->ticket);
        answer(s, from, job, record->ticket.nonce, FOUND_REFUSED, why);
        return;
    }
    sched_settle_forget(s, job);
    wait_for_flush(s, g, from, record->ticket.nonce);
}

enum shoal_err sched_on_found(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct founding_record record;
    enum shoal_err err = sched_record_decode(frame->u.found.record, &record);

    SHOAL_ASSERT(frame->kind == FRAME_FOUND);
    SHOAL_ASSERT(!sched_is_self(s, from)); /* on_frame() has looked */
    if (err != SHOAL_OK)
        return err;
    if (s->restored) /* what is stored comes first; the conductor repeats */
        found_here(s, from, &record, frame->u.found.record, false);
    return SHOAL_OK;
}

void sched_on_bundle(struct shoal_sched *s, struct shoal_hash hash, bool ok, const char *text)
{
    for (size_t i = 0; i < SCHED_FETCHING_MAX; i++) {
        struct sched_fetching *f = &s->fetching[i];
        struct founding_record record;

        if (!f->used || !shoal_hash_equal(f->hash, hash))
            continue;
        f->used = false;
        if (sched_record_decode(shoal_buf_view(&f->record), &record) == SHOAL_OK) {
            if (ok) {
                found_here(s, f->from, &record, shoal_buf_view(&f->record), true);
            } else {
                if (sched_group_find(s, record.ticket.job) == NULL)
                    sched_settle_later(s, &record.ticket);
                answer(s, f->from, record.ticket.job, f->nonce, FOUND_REFUSED, text);
            }
        }
        shoal_buf_deinit(&f->record);
    }
    for (size_t i = 0; i < s->group_count; i++) {
        struct sched_group *g = s->groups[i];

        if (!shoal_hash_equal(g->bundle_hash, hash) || g->bundle_here)
            continue;
        g->bundle_here = ok;
        g->bundle_asked = ok; /* not to be had now: asked for again when this node is needed */
        sched_found_durable(s, g);
    }
}

/* F4. */
void sched_found_complete(struct shoal_sched *s, struct sched_group *g)
{
    struct frame frame = { .kind = FRAME_FOUND };

    SHOAL_ASSERT(!g->mesh_is);
    g->complete_ns = SCHED_NEVER;
    frame.u.found.record = sched_group_record(g);
    if (g->founded || g->refused || frame.u.found.record.len == 0)
        return;
    for (unsigned i = 0; i < g->told_count; i++)
        sched_send(s, g->told[i].node, &frame);
    g->complete_tries++;
    g->complete_ns = s->now + (g->complete_tries < 6 ? SHOAL_S << g->complete_tries : 60 * SHOAL_S);
}

/* ---- The conductor's side ---- */

struct sched_founding *sched_founding_of(const struct shoal_sched *s, uint64_t request)
{
    SHOAL_ASSERT(s->foundings != NULL);
    for (size_t i = 0; i < SHOAL_SCHED_FOUNDINGS_MAX; i++) {
        if (s->foundings[i].used && s->foundings[i].request == request)
            return &s->foundings[i];
    }
    return NULL;
}

void sched_founding_end(struct shoal_sched *s, uint64_t request)
{
    struct sched_founding *f = sched_founding_of(s, request);

    SHOAL_ASSERT(s->foundings != NULL);
    if (f == NULL)
        return;
    f->used = false;
    shoal_buf_deinit(&f->record);
}

static const char *survives(unsigned guardians)
{
    SHOAL_ASSERT(guardians > 0 && guardians <= SHOAL_SCHED_SOURCES_MAX);
    if (guardians >= 5)
        return "survives the loss of any two nodes";
    if (guardians >= 3)
        return "survives the loss of any one node";
    if (guardians == 2)
        return "two nodes: stale reads survive the loss of one, progress does not; add a third node";
    return "one node: nothing survives its loss; add nodes";
}

/* F4. Its summary is that of this ticket's job, since the id and the issuer's signature bind the body. */
static bool in_gossip(const struct shoal_sched *s, const struct sched_founding *f)
{
    SHOAL_ASSERT(f->used);
    return sched_summary_find(s, f->ticket.job) != NULL && !sched_is_gone(s, f->ticket.job);
}

static void settle_founding(struct shoal_sched *s, struct sched_founding *f)
{
    struct sched_request *r = sched_request_get(s, f->request);
    unsigned total = f->ticket.guardian_count;
    unsigned stored = 0;
    unsigned refused = 0;
    bool other = false, settled = false;

    SHOAL_ASSERT(f->used);
    for (unsigned i = 0; i < total; i++) {
        stored += f->answers[i] == GUARDIAN_STORED ? 1 : 0;
        refused += f->answers[i] == GUARDIAN_REFUSED ? 1 : 0;
        other = other || f->answers[i] == GUARDIAN_OTHER;
        settled = settled || f->answers[i] == GUARDIAN_SETTLED;
    }
    if (r == NULL)
        return;
    if (other)
        sched_request_end(s, r, SHOAL_ERR_EXISTS, (struct shoal_view){ 0 },
                          "this ticket's job exists already with another body; take a new ticket");
    else if (settled)
        sched_request_end(s, r, SHOAL_ERR_STALE, (struct shoal_view){ 0 },
                          "this ticket's job was deleted, or its founding was refused by a majority of its guardians; "
                          "take a new ticket");
    else if (2 * stored > total || f->founded || (2 * (total - refused) <= total && in_gossip(s, f)))
        sched_request_end(s, r, SHOAL_OK, (struct shoal_view){ 0 }, "%s", survives(total));
    else if (2 * (total - refused) <= total)
        sched_request_end(
            s, r, SHOAL_ERR_UNREACHABLE, (struct shoal_view){ 0 },
            "%u of %u guardians did not take the job (%s); the outcome is open, try again with the ticket", refused,
            total, f->text);
}

static void take_answer(struct shoal_sched *s, struct shoal_node_id from, struct shoal_job_id job, uint64_t nonce,
                        enum found_answer what, const char *text)
{
    SHOAL_ASSERT(what < FOUND_ANSWERS);
    for (size_t i = 0; i < SHOAL_SCHED_FOUNDINGS_MAX; i++) {
        struct sched_founding *f = &s->foundings[i];

        if (!f->used || !shoal_job_id_equal(f->ticket.job, job) || f->ticket.nonce != nonce)
            continue;
        for (unsigned g = 0; g < f->ticket.guardian_count; g++) {
            if (!shoal_node_id_equal(f->ticket.guardians[g].node, from))
                continue;
            switch (what) {
            case FOUND_STORED:
                f->answers[g] = GUARDIAN_STORED;
                f->founded = f->founded || strcmp(text, FOUNDED_TEXT) == 0;
                break;
            case FOUND_OTHER: f->answers[g] = GUARDIAN_OTHER; break;
            case FOUND_SETTLED: f->answers[g] = GUARDIAN_SETTLED; break;
            case FOUND_REFUSED:
                f->answers[g] = GUARDIAN_REFUSED;
                (void)snprintf(f->text, sizeof(f->text), "%s", text);
                break;
            case FOUND_ANSWERS: break;
            }
        }
        settle_founding(s, f);
    }
}

void sched_on_found_reply(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    SHOAL_ASSERT(frame->kind == FRAME_FOUND_REPLY);
    SHOAL_ASSERT(!sched_is_self(s, from)); /* on_frame() has looked */
    take_answer(s, from, frame->u.found_reply.job, frame->u.found_reply.nonce,
                (enum found_answer)frame->u.found_reply.answer, frame->u.found_reply.text);
}

/* The record to every guardian that has not answered. Ends (and frees) the founding when this node's own answer
 * does. */
static void offer(struct shoal_sched *s, struct sched_founding *f)
{
    struct frame frame = { .kind = FRAME_FOUND };
    struct founding_record record;
    uint64_t request = f->request;
    bool self = false;

    SHOAL_ASSERT(f->used && f->record.len > 0);
    SHOAL_ASSERT(f->ticket.guardian_count <= SHOAL_SCHED_SOURCES_MAX);
    frame.u.found.record = shoal_buf_view(&f->record);
    for (unsigned i = 0; i < f->ticket.guardian_count; i++) {
        if (f->answers[i] != GUARDIAN_SILENT)
            continue;
        if (sched_is_self(s, f->ticket.guardians[i].node))
            self = true;
        else
            sched_send(s, f->ticket.guardians[i].node, &frame);
    }
    f->retry_ns = s->now + SCHED_FOUND_RETRY_NS;
    if (f->retry_ns < s->foundings_ns)
        s->foundings_ns = f->retry_ns;
    if (self && sched_record_decode(shoal_buf_view(&f->record), &record) == SHOAL_OK &&
        sched_request_get(s, request) != NULL)
        found_here(s, s->self, &record, shoal_buf_view(&f->record), true);
}

void sched_foundings_due(struct shoal_sched *s)
{
    SHOAL_ASSERT(s->now >= s->foundings_ns);
    s->foundings_ns = SCHED_NEVER;
    for (size_t i = 0; i < SHOAL_SCHED_FOUNDINGS_MAX; i++) {
        struct sched_founding *f = &s->foundings[i];

        if (!f->used)
            continue;
        if (s->now >= f->retry_ns && sched_has_room(s)) {
            f->tries++;
            f->founded = f->founded || (f->tries >= GOSSIP_TRIES && in_gossip(s, f));
            settle_founding(s, f);
            if (f->used)
                offer(s, f);
        }
        if (f->used && f->retry_ns < s->foundings_ns)
            s->foundings_ns = f->retry_ns;
    }
}

static enum shoal_err check_submit(struct shoal_sched *s, const struct shoal_sched_request *request,
                                   struct shoal_msg *msg)
{
    struct shoal_job_spec spec;
    enum shoal_err err;

    SHOAL_ASSERT(request->kind == SHOAL_SCHED_SUBMIT);
    if (s->store_percent >= SHOAL_STORE_SUBMIT_PERCENT)
        return shoal_fail(
            msg, SHOAL_ERR_NO_SPACE,
            "this node's store is %u %% full, and the rest is kept for the jobs that run; delete finished "
            "jobs, submit to another node, or start the agent with a larger --store-map",
            s->store_percent);
    if (request->spec.len > SHOAL_SCHED_SPEC_BYTES_MAX || request->bundle.len > SHOAL_BUNDLE_INLINE_MAX)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG,
                          "specification of %zu bytes, bundle of %zu; at most %u and %u fit a record",
                          request->spec.len, request->bundle.len, (unsigned)SHOAL_SCHED_SPEC_BYTES_MAX,
                          (unsigned)SHOAL_BUNDLE_INLINE_MAX);
    err = shoal_job_spec_decode(request->spec, &spec);
    if (err == SHOAL_ERR_UNSUPPORTED)
        return shoal_fail(msg, err, "%s; upgrade this node, or submit at an upgraded one", why_no_spec(err));
    if (err != SHOAL_OK)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "%s", why_no_spec(err));
    return shoal_job_spec_check(&spec, msg);
}

static enum shoal_err read_ticket(struct shoal_sched *s, const struct shoal_sched_request *request,
                                  struct shoal_sched_ticket *ticket, struct shoal_msg *msg)
{
    bool same;

    SHOAL_ASSERT(request->ticket.len > 0);
    if (shoal_sched_ticket_decode(request->ticket, ticket) != SHOAL_OK)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "the ticket does not decode");
    if (!ticket_is_genuine(s, (struct shoal_node_id){ 0 }, ticket))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "the ticket was not issued by a node of this mesh");
    if (!shoal_hash_equal(ticket->spec_hash, request->spec_hash))
        return shoal_fail(msg, SHOAL_ERR_EXISTS,
                          "the ticket was issued for another body; take a new ticket for this one");
    if (sched_is_gone(s, ticket->job) ||
        (sched_gone_is_forgotten(s, ticket->job) && !sched_archive_same(s, ticket->job, ticket->spec_hash, &same)))
        return shoal_fail(msg, SHOAL_ERR_STALE,
                          "this ticket's job was removed, or the ticket is too old; take a new one");
    return SHOAL_OK;
}

/* F1. The specification as it stands in the record, in the scratch: whoever conducts has a clock of its own. */
static enum shoal_err stamp_spec(struct shoal_sched *s, struct shoal_view given,
                                 const struct shoal_sched_ticket *ticket, struct shoal_view *stamped,
                                 struct shoal_msg *msg)
{
    struct shoal_job_spec spec;
    size_t len = 0;
    enum shoal_err err = shoal_job_spec_decode(given, &spec);

    SHOAL_ASSERT(err == SHOAL_OK); /* check_submit has read it */
    SHOAL_ASSERT(s->scratch.cap >= SHOAL_SCHED_SPEC_BYTES_MAX);
    spec.submit_ms = ticket->wall_ms;
    if (shoal_job_spec_encode(&spec, s->scratch.bytes, SHOAL_SCHED_SPEC_BYTES_MAX, &len) != SHOAL_OK)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "specification of %zu bytes; at most %u fit a record", given.len,
                          (unsigned)SHOAL_SCHED_SPEC_BYTES_MAX);
    *stamped = shoal_view_of(s->scratch.bytes, len);
    return SHOAL_OK;
}

static struct sched_founding *take_founding(struct shoal_sched *s, const struct shoal_sched_request *request,
                                            const struct shoal_sched_ticket *ticket, struct shoal_view spec)
{
    struct founding_record record = {
        .ticket = *ticket,
        .generation = 1,
        .spec = spec,
        .bundle_hash = request->bundle_hash,
        .bundle = request->bundle,
    };
    struct sched_founding *f = NULL;
    struct shoal_writer w;
    bool fits;

    SHOAL_ASSERT(ticket->guardian_count > 0);
    SHOAL_ASSERT(spec.len <= SHOAL_SCHED_SPEC_BYTES_MAX); /* stamp_spec() has looked */
    for (size_t i = 0; i < SHOAL_SCHED_FOUNDINGS_MAX && f == NULL; i++) {
        if (!s->foundings[i].used)
            f = &s->foundings[i];
    }
    if (f == NULL ||
        shoal_buf_reserve(&f->record, SHOAL_SCHED_TICKET_BYTES_MAX + spec.len + request->bundle.len + 128) != SHOAL_OK)
        return NULL;
    w = shoal_writer_init(f->record.bytes, f->record.cap);
    fits = sched_record_encode(&record, &w);
    SHOAL_ASSERT(fits);
    f->record.len = w.len;
    f->used = true;
    f->ticket = *ticket;
    f->text[0] = '\0';
    f->founded = false;
    f->tries = 0;
    for (unsigned i = 0; i < SHOAL_SCHED_SOURCES_MAX; i++)
        f->answers[i] = GUARDIAN_SILENT;
    return f;
}

void sched_submit(struct shoal_sched *s, struct sched_request *r, const struct shoal_sched_request *request)
{
    struct shoal_sched_ticket ticket;
    struct sched_founding *f;
    struct shoal_view spec = request->spec;
    struct shoal_msg msg = { "" };
    enum shoal_err err = check_submit(s, request, &msg);

    SHOAL_ASSERT(r->kind == SHOAL_SCHED_SUBMIT);
    if (err == SHOAL_OK && request->ticket.len > 0)
        err = read_ticket(s, request, &ticket, &msg);
    else if (err == SHOAL_OK)
        make_ticket(s, request, &ticket);
    if (err == SHOAL_OK)
        err = stamp_spec(s, request->spec, &ticket, &spec, &msg);
    if (err != SHOAL_OK) {
        sched_request_end(s, r, err, (struct shoal_view){ 0 }, "%s", msg.text);
        return;
    }
    r->job = ticket.job;
    f = take_founding(s, request, &ticket, spec);
    if (f == NULL) {
        sched_request_end(s, r, SHOAL_ERR_FULL, request->ticket,
                          "this node conducts %d foundings; try again in a second", SHOAL_SCHED_FOUNDINGS_MAX);
        return;
    }
    f->request = r->serial;
    sched_request_move(r, REQUEST_FOUNDING);
    offer(s, f);
}

/* ---- The mesh ---- */

/* One voter, this node; it grows as nodes join. Only where no mesh is known: `shoal init`. */
void sched_mesh_init(struct shoal_sched *s, struct sched_request *r)
{
    const struct shoal_job_id mesh = { { 0 } };
    uint8_t config_bytes[SHOAL_RAFT_CONFIG_BYTES_MAX];
    struct shoal_raft_options options;
    struct shoal_entry *entries[2];
    struct shoal_msg msg = { "" };
    struct sched_group *g;
    enum shoal_err err;

    SHOAL_ASSERT(r->kind == SHOAL_SCHED_MESH_INIT);
    if (sched_group_find(s, mesh) != NULL || s->mesh != NULL) {
        sched_request_end(s, r, SHOAL_ERR_EXISTS, (struct shoal_view){ 0 }, "this node belongs to a mesh already");
        return;
    }
    err = sched_group_admit(s, mesh, &g);
    if (err == SHOAL_OK) {
        sched_raft_options(s, &options);
        options.config.count = 1;
        options.config.members[0] = (struct shoal_raft_member){ .id = options.self, .bits = SHOAL_RAFT_VOTER };
        entries[0] =
            shoal_entry_create_at(1, 1, SHOAL_ENTRY_CONFIG,
                                  shoal_view_of(config_bytes, shoal_raft_config_encode(&options.config, config_bytes)));
        entries[1] = shoal_entry_create_at(1, 2, SHOAL_ENTRY_USER, shoal_buf_view(&r->command));
        err = shoal_mesh_check(g->mesh, shoal_buf_view(&r->command), &msg);
        if (err == SHOAL_OK)
            err = entries[0] == NULL || entries[1] == NULL ? SHOAL_ERR_FULL : shoal_raft_create(&g->raft, &options);
        if (err == SHOAL_OK)
            err = shoal_raft_found(g->raft, entries, 2, s->self, true, s->now, &s->raft_actions);
        shoal_entry_unref(entries[0]);
        shoal_entry_unref(entries[1]);
        if (err != SHOAL_OK)
            sched_group_remove(s, g);
    }
    if (err != SHOAL_OK) {
        sched_request_end(s, r, err, (struct shoal_view){ 0 }, "%s", msg.text[0] == '\0' ? "no memory" : msg.text);
        return;
    }
    sched_request_move(r, REQUEST_PROPOSED);
    r->index = 2;
    r->term = 1;
    sched_carry_out(s, g);
    sched_group_dirty(s, g);
}
