/* Nodes as gossip knows them, and support between hosts (PROTOCOLS 5) as groups hear of it.
 *
 *     support core: edges --> groups of that host become dirty --> each tells its raft the difference
 *                                                                  before its next event
 *
 * N1. What a raft was told of a host is kept in the group (sched_told); the support core holds the truth; the
 *     difference is told before any other event (C1), so that an edge can neither be lost nor come late.
 * N2. A host is a peer of interest once per group it shares with this one.
 * N3. Who was removed from the mesh guards nothing, gets no work, and is not heard. A node that gossip has forgotten is
 *     kept as long as a ticket of its may come back, or until the table is full: then the one forgotten first goes.
 * N4. Datagrams may pass where the control link does not. A host that leads a group towards this one, and from which no
 *     frame has come for a second, is asked; without an answer within another one it gets no further support. */
#include "sched_node.h"
#include "sched_archive.h"
#include "sched_archive_table.h"
#include "sched_copy.h"
#include "sched_group.h"
#include "sched_request.h"
#include "sched_slots.h"
#include "sched_state.h"
#include "sched_view.h"

#include "shoal/banned.h"

#define FORGOTTEN_NS (7ull * 24 * 3600 * SHOAL_S) /* as long as a ticket lives */

#define LINK_ASK_NS SHOAL_S            /* nothing has come for so long */
#define LINK_ANSWER_NS SHOAL_S         /* PROTOCOLS 5 */
#define LINK_AGAIN_NS (300 * SHOAL_MS) /* what is sent while no link stands is lost */
#define LINK_LATE_NS (500 * SHOAL_MS)  /* of the support timer, which comes each 100 ms */
#define LINK_ASK_ID UINT64_MAX         /* no serial of a request */

/* The first node not before `id`. */
static size_t node_place(const struct shoal_sched *s, struct shoal_node_id id)
{
    size_t low = 0;
    size_t high = s->node_count;

    SHOAL_ASSERT(s->node_count <= s->node_cap);
    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (shoal_node_id_cmp(s->nodes[mid].info.id, id) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

struct sched_node *sched_node_find(const struct shoal_sched *s, struct shoal_node_id id)
{
    size_t at = node_place(s, id);

    SHOAL_ASSERT(s->node_count <= SHOAL_MEMBERS_MAX);
    return at < s->node_count && shoal_node_id_equal(s->nodes[at].info.id, id) ? &s->nodes[at] : NULL;
}

bool sched_is_removed(const struct shoal_sched *s, struct shoal_node_id id)
{
    return s->mesh != NULL && shoal_mesh_evicted(s->mesh, id);
}

bool sched_node_is_gone(const struct shoal_sched *s, const struct sched_node *node)
{
    return node->info.state == SHOAL_SCHED_NODE_DEAD || node->info.state == SHOAL_SCHED_NODE_LEFT ||
           node->info.state == SHOAL_SCHED_NODE_FORGOTTEN || sched_is_removed(s, node->info.id);
}

bool sched_gone_for_good(const struct shoal_sched *s, struct shoal_node_id id)
{
    const struct sched_node *node = sched_node_find(s, id);
    const struct shoal_support_peer *peer = shoal_support_find(s->support, id);
    uint64_t since_ns = sched_silent_since(s, id);

    if (sched_is_self(s, id))
        return false;
    if (sched_is_removed(s, id) || (node != NULL && node->info.state == SHOAL_SCHED_NODE_LEFT))
        return true;
    if (node != NULL && node->info.state == SHOAL_SCHED_NODE_FORGOTTEN)
        return peer == NULL || peer->silent; /* else gossip tells of it late: sched_node_expect() */
    /* After a start of this agent gossip may never have heard of it. */
    return (node == NULL || node->info.state == SHOAL_SCHED_NODE_DEAD) && since_ns != 0 &&
           s->now >= since_ns + s->options.lost_ns;
}

bool sched_node_available(const struct shoal_sched *s, const struct sched_node *node)
{
    SHOAL_ASSERT(node->info.state <= SHOAL_SCHED_NODE_FORGOTTEN);
    return node->info.state == SHOAL_SCHED_NODE_ALIVE &&
           !shoal_store_id_equal(node->info.store, (struct shoal_store_id){ { 0 } }) && !node->info.draining &&
           !sched_is_removed(s, node->info.id);
}

bool sched_node_takes(const struct shoal_sched *s, const struct sched_node *node, uint32_t workers)
{
    SHOAL_ASSERT(node->info.state <= SHOAL_SCHED_NODE_FORGOTTEN);
    return workers <= SHOAL_JOB_WORKERS_PLAIN || sched_is_self(s, node->info.id) || node->info.cpus == 0 ||
           node->info.job_workers >= workers;
}

bool sched_is_draining(const struct shoal_sched *s, struct shoal_node_id id)
{
    const struct sched_node *node = sched_node_find(s, id);

    return node != NULL && node->info.draining;
}

uint64_t sched_score(const struct shoal_sched *s, struct shoal_job_id job, struct shoal_node_id node)
{
    uint8_t bytes[sizeof(job.bytes) + sizeof(node.bytes)];
    struct shoal_hash hash;
    uint64_t score = 0;

    memcpy(bytes, job.bytes, sizeof(job.bytes));
    memcpy(bytes + sizeof(job.bytes), node.bytes, sizeof(node.bytes));
    hash = sched_hash(s, shoal_view_of(bytes, sizeof(bytes)));
    for (unsigned i = 0; i < 8; i++)
        score = score << 8 | hash.bytes[i];
    return score;
}

/* N3. The node that was forgotten first goes, if that was before `before_ns`. */
static void node_drop_oldest(struct shoal_sched *s, uint64_t before_ns)
{
    size_t oldest = s->node_count;

    for (size_t i = 0; i < s->node_count; i++)
        if (s->nodes[i].info.state == SHOAL_SCHED_NODE_FORGOTTEN &&
            (oldest == s->node_count || s->nodes[i].since_ns < s->nodes[oldest].since_ns))
            oldest = i;
    if (oldest == s->node_count || s->nodes[oldest].since_ns >= before_ns)
        return;
    SHOAL_ASSERT(!sched_is_self(s, s->nodes[oldest].info.id)); /* N3: nobody forgets itself */
    s->nodes_dropped++;
    s->node_count--;
    free(s->nodes[oldest].rare);
    memmove(&s->nodes[oldest], &s->nodes[oldest + 1], (s->node_count - oldest) * sizeof(s->nodes[0]));
}

/* NULL: the table is full or there is no memory; gossip says it again. */
static struct sched_node *node_add(struct shoal_sched *s, struct shoal_node_id id)
{
    size_t at;

    SHOAL_ASSERT(sched_node_find(s, id) == NULL); /* a node is here once */
    if (s->node_count == SHOAL_MEMBERS_MAX)
        node_drop_oldest(s, UINT64_MAX);
    if (s->node_count == SHOAL_MEMBERS_MAX)
        return NULL;
    at = node_place(s, id);
    if (s->node_count == s->node_cap) {
        size_t cap = s->node_cap == 0 ? 16 : s->node_cap * 2;
        struct sched_node *grown = realloc(s->nodes, cap * sizeof(*grown));

        if (grown == NULL)
            return NULL;
        s->nodes = grown;
        s->node_cap = cap;
    }
    memmove(&s->nodes[at + 1], &s->nodes[at], (s->node_count - at) * sizeof(s->nodes[0]));
    s->node_count++;
    s->nodes[at] = (struct sched_node){ .info = { .id = id, .state = SHOAL_SCHED_NODE_DEAD }, .since_ns = s->now };
    return &s->nodes[at];
}

struct sched_node *sched_node_expect(struct shoal_sched *s, struct shoal_node_id id)
{
    struct sched_node *node = sched_node_find(s, id);

    SHOAL_ASSERT(s->node_count <= SHOAL_MEMBERS_MAX);
    if (node != NULL)
        return node;
    node = node_add(s, id);
    if (node != NULL)
        node->info.state = SHOAL_SCHED_NODE_FORGOTTEN; /* nobody counts on it, and it is the first to go */
    return node;
}

void sched_nodes_changed(struct shoal_sched *s)
{
    sched_keep_all(s);
    sched_archive_nodes(s);
    sched_view_changed(s);
}

static const struct sched_node_rare nothing_rare;

const struct shoal_cards *sched_node_cards(const struct sched_node *node)
{
    SHOAL_ASSERT(nothing_rare.cards.count == 0);
    return node->rare == NULL ? &nothing_rare.cards : &node->rare->cards;
}

const char *sched_node_domain(const struct sched_node *node)
{
    SHOAL_ASSERT(nothing_rare.domain[0] == '\0');
    return node->rare == NULL ? nothing_rare.domain : node->rare->domain;
}

/* Without memory it has neither, until gossip says it again. */
static void set_rare(struct sched_node *node, const struct shoal_cards *cards, const char *domain)
{
    if (node->rare == NULL && (cards->count > 0 || domain[0] != '\0'))
        node->rare = calloc(1, sizeof(*node->rare));
    if (node->rare == NULL)
        return;
    SHOAL_ASSERT(cards->count <= SHOAL_CARDS_MAX);
    if (cards != &node->rare->cards)
        node->rare->cards = *cards;
    if (domain != node->rare->domain)
        (void)snprintf(node->rare->domain, sizeof(node->rare->domain), "%.*s", SHOAL_SCHED_DOMAIN_BYTES - 1, domain);
}

void sched_node_set_cards(struct sched_node *node, const struct shoal_cards *cards)
{
    SHOAL_ASSERT(cards->count <= SHOAL_CARDS_MAX);
    set_rare(node, cards, sched_node_domain(node));
}

void sched_nodes_free(struct shoal_sched *s)
{
    SHOAL_ASSERT(s->node_count <= s->node_cap);
    for (size_t i = 0; i < s->node_count; i++)
        free(s->nodes[i].rare);
    free(s->nodes);
}

/* Of a text that may lack its end. */
static uint32_t class_of(const char numeric_class[SHOAL_CLASS_TEXT_BYTES])
{
    char text[SHOAL_CLASS_TEXT_BYTES];

    if (numeric_class[0] == '\0')
        return 0;
    (void)snprintf(text, sizeof(text), "%.*s", SHOAL_CLASS_TEXT_BYTES - 1, numeric_class);
    return shoal_class_hash(text);
}

/* All of it but what is rare. */
static struct sched_node_info info_of(const struct shoal_sched_node *told)
{
    SHOAL_ASSERT(told->state <= SHOAL_SCHED_NODE_FORGOTTEN);
    return (struct sched_node_info){
        .id = told->id,
        .store = told->store,
        .state = (uint8_t)told->state,
        .device = told->device,
        .draining = told->draining,
        .incarnation = told->incarnation,
        .slots = told->slots,
        .slots_free = told->slots_free,
        .rules = told->rules,
        .serves = told->serves,
        .job_workers = told->job_workers,
        .mesh_version = told->mesh_version,
        .mesh_config = told->mesh_config,
        .cpus = told->cpus,
        .class_hash = class_of(told->numeric_class),
        .slot_stamp = told->slot_stamp,
        .record_seq = told->record_seq,
    };
}

/* Its latest word, beside what is known from elsewhere. */
static void info_take(struct sched_node *node, const struct shoal_sched_node *told)
{
    const struct sched_node_info old = node->info;
    bool ahead = old.incarnation.host_epoch == told->incarnation.host_epoch && old.slot_stamp > told->slot_stamp;

    SHOAL_ASSERT(shoal_node_id_equal(old.id, told->id));
    node->info = info_of(told);
    if (old.mesh_version > told->mesh_version) { /* by the shared record, or its answer to a request */
        node->info.mesh_version = old.mesh_version;
        node->info.mesh_config = old.mesh_config;
    }
    if (ahead) {
        node->info.slots_free = old.slots_free; /* W2 of sched_news.c: its news was ahead of gossip */
        node->info.slot_stamp = old.slot_stamp;
        node->info.record_seq = old.record_seq;
    }
    set_rare(node, ahead ? sched_node_cards(node) : &told->cards, told->domain);
}

void sched_on_node(struct shoal_sched *s, const struct shoal_sched_node *info)
{
    struct sched_node *node = sched_node_find(s, info->id);
    struct sched_node_info old;
    bool was;

    SHOAL_ASSERT(info->state <= SHOAL_SCHED_NODE_FORGOTTEN);
    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    if (info->state == SHOAL_SCHED_NODE_FORGOTTEN && s->now > FORGOTTEN_NS)
        node_drop_oldest(s, s->now - FORGOTTEN_NS);
    if (node == NULL && info->state == SHOAL_SCHED_NODE_FORGOTTEN)
        return;
    node = sched_node_find(s, info->id);
    if (node == NULL)
        node = node_add(s, info->id);
    if (node == NULL)
        return;
    was = sched_node_available(s, node);
    if (node->info.state != info->state)
        node->since_ns = s->now;
    old = node->info;
    info_take(node, info);
    if (!sched_is_self(s, info->id) && (old.rules == 0 || info->rules == 0))
        s->rules_lacked_ns = s->now;
    if (sched_is_self(s, info->id) && old.draining != info->draining)
        shoal_ignore(
            sched_slots_step(s, &(struct shoal_slots_event){ .kind = SHOAL_SLOTS_DRAIN, .u.drain = info->draining }));
    if (was != sched_node_available(s, node) || info->state == SHOAL_SCHED_NODE_LEFT ||
        info->state == SHOAL_SCHED_NODE_FORGOTTEN)
        sched_nodes_changed(s);
    else
        sched_view_changed(s);
    if (!was && sched_node_available(s, node))
        sched_archive_tell_back(s, info->id);
    sched_copy_look(s, sched_node_find(s, info->id));
}

/* ---- Support ---------------------------------------------------------------------------------------------------- */

static void dirty_with(struct shoal_sched *s, struct shoal_node_id node)
{
    for (size_t i = 0; i < s->group_count; i++) {
        struct sched_group *g = s->groups[i];

        for (unsigned t = 0; t < g->told_count; t++) {
            if (shoal_node_id_equal(g->told[t].node, node)) {
                if (g->leads)
                    g->keep_ns = s->now; /* a member went silent, or is back */
                sched_group_dirty(s, g);
                break;
            }
        }
    }
    sched_view_changed(s);
}

void sched_support_remove(struct shoal_sched *s, struct shoal_node_id node)
{
    bool was_silent = sched_silent_since(s, node) != 0;

    SHOAL_ASSERT(!sched_is_self(s, node));
    shoal_support_remove(s->support, node);
    if (was_silent && sched_silent_since(s, node) == 0)
        dirty_with(s, node); /* nobody listens any more, so nobody will hear that it is back */
}

static void fatal(struct shoal_sched *s, const char *text)
{
    struct shoal_sched_action *action = sched_act(s, SHOAL_SCHED_FATAL);

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    SHOAL_ASSERT(text[0] != '\0');
    (void)snprintf(action->u.fatal.text, sizeof(action->u.fatal.text), "%s", text);
}

static void support_actions(struct shoal_sched *s)
{
    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    for (uint32_t i = 0; i < s->support_actions.count; i++) {
        const struct shoal_support_action *from = &s->support_actions.list[i];
        struct shoal_sched_action *action;
        struct sched_group *g;

        switch (from->kind) {
        case SHOAL_SUPPORT_SEND:
            if (s->actions->count + 48 > SHOAL_SCHED_ACTIONS_MAX) {
                s->stats.sends_dropped++; /* the next heartbeat says the same */
                break;
            }
            action = sched_act(s, SHOAL_SCHED_SEND_DATAGRAM);
            action->u.send.to = from->node;
            action->u.send.bytes = sched_pool_copy(s, from->bytes);
            break;
        case SHOAL_SUPPORT_SUPPORTED:
        case SHOAL_SUPPORT_LOST:
        case SHOAL_SUPPORT_SUPPORTING:
        case SHOAL_SUPPORT_SUPPORTING_LOST:
        case SHOAL_SUPPORT_PEER_SILENT:
        case SHOAL_SUPPORT_PEER_HEARD:
        case SHOAL_SUPPORT_PEER_RESTARTED: dirty_with(s, from->node); break;
        case SHOAL_SUPPORT_CLAIM:
        case SHOAL_SUPPORT_UNCLAIM:
            g = sched_group_find(s, from->group);
            if (g != NULL)
                sched_group_dirty(s, g);
            break;
        case SHOAL_SUPPORT_ROLLED_BACK:
            fatal(s,
                  "another node knows a later life of this one: this data folder was rolled back or cloned; stop it, "
                  "remove the folder, and join again as a new node");
            break;
        }
    }
}

/* True: this host hears a majority of its peers of interest. */
static bool quorum_connected(const struct shoal_sched *s)
{
    size_t count = shoal_support_count(s->support);
    size_t heard = 0;

    SHOAL_ASSERT(s->support != NULL);
    for (size_t i = 0; i < count; i++)
        heard += shoal_support_at(s->support, i)->silent ? 0 : 1;
    return 2 * (heard + 1) > count + 1;
}

static void support_step(struct shoal_sched *s, const struct shoal_support_event *event, enum shoal_err *err)
{
    SHOAL_ASSERT(s->support != NULL);
    *err = shoal_support_step(s->support, event, s->now, &s->support_actions);
    support_actions(s);
}

static void ask_over_link(struct shoal_sched *s, struct sched_node *node)
{
    struct frame frame = { .kind = FRAME_WHO };

    frame.u.who.id = LINK_ASK_ID; /* any answer will do */
    sched_send(s, node->info.id, &frame);
    if (node->asked_ns == 0)
        node->asked_ns = s->now;
    node->again_ns = s->now + LINK_AGAIN_NS;
}

/* N4. When this loop stood still itself, answers wait unread: they are given their time anew. */
static void watch_links(struct shoal_sched *s)
{
    bool was_late = s->now > s->links_ns + LINK_LATE_NS;
    size_t count = shoal_support_count(s->support);

    s->links_ns = s->now;
    for (size_t i = 0; i < count; i++) {
        struct sched_node *node = sched_node_find(s, shoal_support_at(s->support, i)->node);

        if (node == NULL)
            continue;
        if (!shoal_support_claims_any(s->support, i) || (node->asked_ns != 0 && was_late))
            node->asked_ns = 0;
        else if (node->asked_ns == 0 ? s->now >= node->frame_ns + LINK_ASK_NS : s->now >= node->again_ns)
            ask_over_link(s, node);
        shoal_support_unanswered(s->support, node->info.id,
                                 node->asked_ns != 0 && s->now >= node->asked_ns + LINK_ANSWER_NS);
    }
}

void sched_link_heard(struct shoal_sched *s, struct shoal_node_id id)
{
    struct sched_node *node = sched_node_find(s, id);

    if (node == NULL)
        return;
    node->frame_ns = s->now;
    node->asked_ns = 0;
}

void sched_support_timer(struct shoal_sched *s)
{
    struct shoal_support_event event = { .kind = SHOAL_SUPPORT_EVENT_TIMER, .health = s->health };
    enum shoal_err err;

    SHOAL_ASSERT(s->support != NULL);
    event.health.slot_stamp = s->now;
    event.health.quorum_connected = quorum_connected(s);
    watch_links(s);
    support_step(s, &event, &err);
    SHOAL_ASSERT(err == SHOAL_OK);
}

enum shoal_err sched_on_datagram(struct shoal_sched *s, struct shoal_node_id from, struct shoal_view bytes)
{
    const struct shoal_support_event event = { .kind = SHOAL_SUPPORT_EVENT_DATAGRAM, .node = from, .bytes = bytes };
    enum shoal_err err;

    if (sched_is_removed(s, from)) { /* N3 */
        s->stats.removed_refused++;
        return SHOAL_OK;
    }
    support_step(s, &event, &err);
    return err;
}

void sched_on_link(struct shoal_sched *s, struct shoal_node_id node, enum shoal_sched_link_state state)
{
    const struct shoal_support_event refused = { .kind = SHOAL_SUPPORT_EVENT_REFUSED, .node = node };
    enum shoal_err err;

    SHOAL_ASSERT(state <= SHOAL_SCHED_LINK_REFUSED);
    switch (state) {
    case SHOAL_SCHED_LINK_UP:
        if (sched_node_find(s, node) != NULL)
            sched_node_find(s, node)->links++;
        dirty_with(s, node); /* what leads have sent meanwhile was lost */
        sched_slots_link(s, node);
        sched_requests_link_up(s, node);
        break;
    case SHOAL_SCHED_LINK_REFUSED:
        support_step(s, &refused, &err);
        (void)err; /* of a node that is no peer of interest: nothing to end */
        sched_requests_link_down(s, node);
        break;
    case SHOAL_SCHED_LINK_DOWN: sched_requests_link_down(s, node); break;
    }
}

uint64_t sched_silent_since(const struct shoal_sched *s, struct shoal_node_id node)
{
    const struct shoal_support_peer *peer = shoal_support_find(s->support, node);

    SHOAL_ASSERT(s->support != NULL);
    if (peer == NULL || !peer->silent)
        return 0;
    return peer->heard_ns > s->options.start_ns ? peer->heard_ns : s->options.start_ns;
}

/* ---- What groups tell and are told ---- */

static struct sched_told *told_find(struct sched_group *g, struct shoal_node_id node)
{
    SHOAL_ASSERT(g->told_count <= SCHED_TOLD_MAX);
    for (unsigned i = 0; i < g->told_count; i++) {
        if (shoal_node_id_equal(g->told[i].node, node))
            return &g->told[i];
    }
    return NULL;
}

static void told_drop(struct shoal_sched *s, struct sched_group *g, struct sched_told *told)
{
    SHOAL_ASSERT(g->told_count > 0); /* N2 */
    if (told->claim != 0)
        shoal_support_unclaim(s->support, told->node, g->id);
    sched_support_remove(s, told->node);
    *told = g->told[--g->told_count];
}

void sched_group_untell(struct shoal_sched *s, struct sched_group *g)
{
    SHOAL_ASSERT(g->told_count <= SCHED_TOLD_MAX);
    while (g->told_count > 0)
        told_drop(s, g, &g->told[0]);
}

void sched_group_told(struct shoal_sched *s, struct sched_group *g)
{
    const struct shoal_raft_config *config = shoal_raft_config(g->raft);

    SHOAL_ASSERT(g->raft != NULL);
    for (unsigned i = 0; i < g->told_count;) {
        if (shoal_raft_config_find(config, g->told[i].node) == NULL)
            told_drop(s, g, &g->told[i]);
        else
            i++;
    }
    for (unsigned i = 0; i < config->count; i++) {
        struct shoal_node_id node = config->members[i].id.node;

        if (sched_is_self(s, node) || told_find(g, node) != NULL || g->told_count == SCHED_TOLD_MAX)
            continue;
        if (shoal_support_add(s->support, node) != SHOAL_OK)
            continue; /* too many peers: the group goes on without this one's support; keep looks again */
        g->told[g->told_count++] = (struct sched_told){ .node = node };
    }
    sched_group_claims(s, g);
}

void sched_group_claims(struct shoal_sched *s, struct sched_group *g)
{
    SHOAL_ASSERT(!g->leads || g->term > 0); /* a leader has a term */
    for (unsigned i = 0; i < g->told_count; i++) {
        struct sched_told *told = &g->told[i];
        uint64_t want = g->leads ? g->term : 0;

        if (told->claim == want)
            continue;
        if (want == 0)
            shoal_support_unclaim(s->support, told->node, g->id);
        else if (shoal_support_claim(s->support, told->node, g->id, want) != SHOAL_OK)
            continue;
        told->claim = want;
    }
}

static void tell(struct shoal_sched *s, struct sched_group *g, const struct shoal_raft_event *event)
{
    enum shoal_err err = shoal_raft_step(g->raft, event, s->now, &s->raft_actions);

    SHOAL_ASSERT(err == SHOAL_OK);
    SHOAL_ASSERT(g->raft != NULL); /* N1 */
    sched_carry_out(s, g);
}

/* A claim in another lineage says nothing to this replica: its leader's messages do (sched_recover.c). */
static uint64_t claim_of(const struct shoal_sched *s, const struct sched_group *g, struct shoal_node_id node)
{
    uint64_t claimed = shoal_support_claimed(s->support, node, g->id);

    SHOAL_ASSERT(g->raft != NULL);
    return sched_lineage(claimed) == sched_group_lineage(g) ? claimed : 0;
}

/* N1, for one host. Losses first: they may end a leadership. */
static void sync_one(struct shoal_sched *s, struct sched_group *g, struct shoal_node_id node)
{
    const struct shoal_support_peer *peer = shoal_support_find(s->support, node);
    bool supported = peer != NULL && peer->supported;
    bool supporting = peer != NULL && peer->supporting;
    uint64_t claimed = claim_of(s, g, node);
    struct sched_told *told = told_find(g, node);
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_PEER_SUPPORT };

    SHOAL_ASSERT(told_find(g, node) != NULL); /* N1 */
    if (told->supported != supported) {
        told->supported = supported;
        event.u.peer_support.node = node;
        event.u.peer_support.until_ns = supported ? UINT64_MAX : 0;
        tell(s, g, &event);
        told = told_find(g, node);
    }
    if (told != NULL && told->supporting != supporting) {
        told->supporting = supporting;
        event.kind = SHOAL_RAFT_EVENT_SUPPORTING;
        event.u.supporting.node = node;
        event.u.supporting.on = supporting;
        tell(s, g, &event);
        told = told_find(g, node);
    }
    if (told != NULL && told->claimed != claimed) {
        event.kind = claimed != 0 ? SHOAL_RAFT_EVENT_CLAIM : SHOAL_RAFT_EVENT_UNCLAIMED;
        event.u.claim.node = node;
        event.u.claim.term = claimed != 0 ? claimed : told->claimed;
        told->claimed = claimed;
        tell(s, g, &event);
    }
}

void sched_group_sync(struct shoal_sched *s, struct sched_group *g)
{
    struct shoal_node_id nodes[SCHED_TOLD_MAX];
    unsigned count = g->told_count;

    SHOAL_ASSERT(g->told_count <= SCHED_TOLD_MAX);
    for (unsigned i = 0; i < count; i++)
        nodes[i] = g->told[i].node;
    for (unsigned i = 0; i < count; i++) {
        if (told_find(g, nodes[i]) != NULL)
            sync_one(s, g, nodes[i]);
    }
}
