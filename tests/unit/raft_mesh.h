/* A mesh in a box for tests of Raft and support together: production cores on a virtual clock, network and disk.
 *
 * Every message passes through its codec. The network may lose, delay, reorder and repeat; a disk finishes writes in
 * order, some time later, and a crash loses a random tail of the unfinished ones. After every event the four safety
 * properties of Raft are checked for all nodes, and each read against what was committed when it was asked. */
#ifndef RAFT_MESH_H
#define RAFT_MESH_H

#include <inttypes.h>
#include <stdio.h>

#include "shoal/raft.h"
#include "shoal/rand.h"
#include "shoal/support.h"

#define MESH_NODES_MAX 7
#define MESH_LOG_MAX 4096
#define MESH_PACKETS_MAX 8192
#define MESH_WRITES_MAX 512
#define MESH_SNAPSHOT_BYTES 300 /* three pieces of 120 */
#define MESH_PIECE_BYTES 120
#define MESH_READS_MAX 64

struct mesh_packet {
    uint64_t at;
    uint64_t order;
    uint32_t from;
    uint32_t to;
    bool support;
    uint8_t *bytes;
    size_t len;
};

struct mesh_snapshot {
    struct shoal_raft_snapshot what;
    uint8_t bytes[MESH_SNAPSHOT_BYTES]; /* the state machine's chain, then filling */
};

struct mesh_write {
    uint64_t at;
    struct shoal_raft_action action; /* a PERSIST */
    struct shoal_entry **entries;
    struct mesh_snapshot snapshot;
};

struct mesh_node {
    bool up;
    bool paused;
    uint64_t paused_until;
    uint32_t agent; /* incarnation */
    struct shoal_raft_id id;
    struct shoal_raft *raft;
    struct shoal_support *support;
    struct shoal_raft_config base;
    /* The disk. */
    uint64_t write_ns; /* each write takes up to this long; UINT64_MAX: hangs */
    struct shoal_raft_hard_state hard;
    bool has_snapshot;
    struct mesh_snapshot snapshot;
    struct shoal_entry *log[MESH_LOG_MAX];
    uint64_t log_first;
    uint64_t log_count;
    struct mesh_write writes[MESH_WRITES_MAX];
    uint32_t writes_count;
    /* The state machine: a hash over all that was applied. */
    uint64_t applied;
    uint64_t chain;
    struct mesh_snapshot incoming;
    /* The log as it was last seen, for log matching: the chain of hashes up to each index. */
    struct shoal_entry *seen[MESH_LOG_MAX];
    uint64_t seen_term[MESH_LOG_MAX];
    uint64_t seen_chain[MESH_LOG_MAX];
    uint64_t seen_last;
    bool claimed;
    uint64_t claimed_term;
    uint64_t raft_sent; /* messages of the group */
};

struct mesh_read {
    uint64_t ctx;
    uint64_t floor; /* committed anywhere when it was asked */
    uint64_t index;
    bool done;
    bool failed;
};

struct mesh {
    uint64_t now;
    struct shoal_rand chance;
    uint32_t count;
    struct mesh_node nodes[MESH_NODES_MAX];
    bool cut[MESH_NODES_MAX][MESH_NODES_MAX]; /* from, to */
    /* No support is told to followers, no loss of it to leaders, no start is quiet: elections all the time, and leaders
     * that do not know of the next. Safety must not lean on support. */
    bool wild;
    uint32_t loss_percent;
    uint32_t repeat_percent;
    uint64_t delay_ns; /* up to */
    struct mesh_packet packets[MESH_PACKETS_MAX];
    uint32_t packets_count;
    uint64_t order;
    uint64_t packets_dropped;
    /* Facts of the whole. */
    uint64_t committed;
    uint64_t committed_term[MESH_LOG_MAX];
    uint64_t committed_chain[MESH_LOG_MAX];
    uint32_t leader_of_term[MESH_LOG_MAX]; /* node + 1 */
    struct mesh_read reads[MESH_READS_MAX];
    uint32_t reads_count;
    uint64_t rejects;
    enum shoal_err last_reject;
    uint64_t elections;
    uint64_t installs;
    /* Optional trace. */
    void (*trace)(void *arg, const struct mesh *mesh, uint32_t node, const struct shoal_raft_action *action);
    void *trace_arg;
    char broken[256]; /* the first violation */
};

static const struct shoal_job_id mesh_group = { { 1 } };

#define MESH_BROKEN(mesh, ...)                                                                                         \
    do {                                                                                                               \
        if ((mesh)->broken[0] == '\0')                                                                                 \
            (void)snprintf((mesh)->broken, sizeof((mesh)->broken), __VA_ARGS__);                                       \
    } while (0)

static inline uint64_t mesh_mix(uint64_t a, uint64_t b)
{
    uint64_t z = a * 0x9e3779b97f4a7c15u + b;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint64_t mesh_entry_hash(uint64_t chain, const struct shoal_entry *entry)
{
    uint64_t hash = mesh_mix(mesh_mix(chain, entry->term), (uint64_t)entry->kind);

    for (uint32_t i = 0; i < entry->len; i++)
        hash = mesh_mix(hash, entry->bytes[i]);
    return hash;
}

static inline struct shoal_raft_id mesh_id(uint32_t i)
{
    struct shoal_raft_id id = { .node = { { 0 } } };

    id.node.bytes[0] = (uint8_t)('a' + i);
    id.store.bytes[0] = (uint8_t)('A' + i);
    return id;
}

static inline uint32_t mesh_index(struct shoal_node_id node) { return (uint32_t)(node.bytes[0] - 'a'); }

static void mesh_raft_event(struct mesh *mesh, uint32_t i, const struct shoal_raft_event *event);

/* ---- The network ---- */

static inline void mesh_post(struct mesh *mesh, uint32_t from, uint32_t to, bool support, const uint8_t *bytes,
                             size_t len, uint64_t delay)
{
    struct mesh_packet *packet;

    if (mesh->packets_count == MESH_PACKETS_MAX) {
        mesh->packets_dropped++;
        return;
    }
    packet = &mesh->packets[mesh->packets_count++];
    *packet = (struct mesh_packet){ .at = mesh->now + delay, .order = mesh->order++, .from = from, .to = to };
    packet->support = support;
    packet->bytes = malloc(len);
    packet->len = len;
    memcpy(packet->bytes, bytes, len);
}

static inline void mesh_send(struct mesh *mesh, uint32_t from, uint32_t to, bool support, const uint8_t *bytes,
                             size_t len)
{
    uint32_t copies = 1;

    if (to >= mesh->count || mesh->cut[from][to] || shoal_rand_below(&mesh->chance, 100) < mesh->loss_percent)
        return;
    if (shoal_rand_below(&mesh->chance, 100) < mesh->repeat_percent)
        copies = 2;
    for (uint32_t i = 0; i < copies; i++)
        mesh_post(mesh, from, to, support, bytes, len, 100000 + shoal_rand_below(&mesh->chance, mesh->delay_ns));
}

/* ---- The disk ---- */

static inline void mesh_disk_truncate(struct mesh_node *node, uint64_t from)
{
    while (node->log_count > 0 && node->log_first + node->log_count > from)
        shoal_entry_unref(node->log[--node->log_count]);
}

static inline void mesh_disk_apply(struct mesh_node *node, struct mesh_write *write)
{
    if (write->action.u.persist.has_hard)
        node->hard = write->action.u.persist.hard;
    if (write->action.u.persist.has_snapshot) {
        mesh_disk_truncate(node, 0);
        node->has_snapshot = true;
        node->snapshot = write->snapshot;
    }
    if (write->action.u.persist.truncate_from != 0)
        mesh_disk_truncate(node, write->action.u.persist.truncate_from);
    for (uint64_t i = write->action.u.persist.first; i <= write->action.u.persist.last; i++) {
        if (node->log_count == 0)
            node->log_first = i;
        if (node->log_first + node->log_count != i)
            abort(); /* the core handed out a gap */
        node->log[node->log_count++] = shoal_entry_ref(write->entries[i - write->action.u.persist.first]);
    }
}

static inline void mesh_write_free(struct mesh_write *write)
{
    for (uint64_t i = write->action.u.persist.first; i <= write->action.u.persist.last; i++)
        shoal_entry_unref(write->entries[i - write->action.u.persist.first]);
    free(write->entries);
}

static inline void mesh_persist(struct mesh *mesh, struct mesh_node *node, const struct shoal_raft_action *action)
{
    struct mesh_write *write = &node->writes[node->writes_count++];
    uint64_t first = action->u.persist.first;
    uint64_t last = action->u.persist.last;
    uint64_t earliest = node->writes_count > 1 ? node->writes[node->writes_count - 2].at : mesh->now;

    if (node->writes_count == MESH_WRITES_MAX)
        abort();
    *write = (struct mesh_write){ .action = *action };
    write->at =
        node->write_ns == UINT64_MAX ? UINT64_MAX : mesh->now + shoal_rand_below(&mesh->chance, node->write_ns + 1);
    if (write->at < earliest)
        write->at = earliest;
    if (last >= first) {
        write->entries = calloc(last - first + 1, sizeof(struct shoal_entry *));
        for (uint64_t i = first; i <= last; i++)
            write->entries[i - first] = shoal_entry_ref(shoal_raft_entry(node->raft, i));
    }
    if (action->u.persist.has_snapshot) {
        write->snapshot = node->incoming;
        write->snapshot.what = action->u.persist.snapshot;
        memcpy(&node->chain, node->incoming.bytes, 8);
        node->applied = action->u.persist.snapshot.index;
        mesh->installs++;
    }
}

/* ---- What must always hold ---- */

static inline void mesh_check_commit(struct mesh *mesh, uint32_t i, uint64_t index, uint64_t term, uint64_t chain)
{
    if (index >= MESH_LOG_MAX)
        abort();
    if (index <= mesh->committed) {
        if (mesh->committed_chain[index] != chain)
            MESH_BROKEN(
                mesh, "state machine safety: %c applied another entry %" PRIu64 " (term %" PRIu64 ", not %" PRIu64 ")",
                'a' + (int)i, index, term, mesh->committed_term[index]);
        return;
    }
    mesh->committed = index;
    mesh->committed_term[index] = term;
    mesh->committed_chain[index] = chain;
}

static inline void mesh_check_leader(struct mesh *mesh, uint32_t i)
{
    struct shoal_raft_status status;

    shoal_raft_status(mesh->nodes[i].raft, &status);
    if (status.term >= MESH_LOG_MAX)
        abort();
    if (mesh->leader_of_term[status.term] != 0 && mesh->leader_of_term[status.term] != i + 1)
        MESH_BROKEN(mesh, "election safety: %c and %c lead term %" PRIu64,
                    'a' + (int)mesh->leader_of_term[status.term] - 1, 'a' + (int)i, status.term);
    if (mesh->leader_of_term[status.term] == 0)
        mesh->elections++;
    mesh->leader_of_term[status.term] = i + 1;
    for (uint64_t at = status.first; at <= mesh->committed; at++) {
        if (shoal_raft_term_at(mesh->nodes[i].raft, at) != mesh->committed_term[at]) {
            MESH_BROKEN(mesh, "leader completeness: %c leads term %" PRIu64 " without committed entry %" PRIu64,
                        'a' + (int)i, status.term, at);
            return;
        }
    }
}

/* Log matching: where two logs hold the same (index, term), all before is equal too. Only what changed is looked at. */
static inline void mesh_check_log(struct mesh *mesh, uint32_t i)
{
    struct mesh_node *node = &mesh->nodes[i];
    struct shoal_raft_status status;
    uint64_t from;

    shoal_raft_status(node->raft, &status);
    from = status.last + 1;
    while (from > status.first &&
           (from - 1 > node->seen_last || node->seen[from - 1] != shoal_raft_entry(node->raft, from - 1) ||
            node->seen_term[from - 1] != shoal_raft_term_at(node->raft, from - 1)))
        from--;
    for (uint64_t at = from; at <= status.last; at++) {
        struct shoal_entry *entry = shoal_raft_entry(node->raft, at);

        if (at == status.first && at > 1) { /* right behind a snapshot, and so of what is committed */
            node->seen_chain[at - 1] = mesh->committed_chain[at - 1];
            node->seen_term[at - 1] = mesh->committed_term[at - 1];
        }
        node->seen[at] = entry;
        node->seen_term[at] = entry->term;
        node->seen_chain[at] = mesh_entry_hash(at == 1 ? 0 : node->seen_chain[at - 1], entry);
        node->seen_last = at;
        for (uint32_t j = 0; j < mesh->count; j++) {
            const struct mesh_node *other = &mesh->nodes[j];

            if (j != i && other->up && at <= other->seen_last && at < MESH_LOG_MAX &&
                other->seen_term[at] == entry->term && other->seen_chain[at] != node->seen_chain[at])
                MESH_BROKEN(mesh, "log matching: %c and %c differ at (%" PRIu64 ", term %" PRIu64 ")", 'a' + (int)i,
                            'a' + (int)j, at, entry->term);
        }
    }
    node->seen_last = status.last;
}

/* ---- The owner of one node: carries actions out ---- */

static inline void mesh_apply(struct mesh *mesh, uint32_t i, uint64_t upto)
{
    struct mesh_node *node = &mesh->nodes[i];

    while (node->applied < upto) {
        struct shoal_entry *entry = shoal_raft_entry(node->raft, node->applied + 1);

        if (entry == NULL)
            abort(); /* committed but not held */
        node->applied++;
        node->chain = mesh_entry_hash(node->chain, entry);
        mesh_check_commit(mesh, i, node->applied, entry->term, node->chain);
    }
}

static inline void mesh_claims(struct mesh *mesh, uint32_t i)
{
    struct mesh_node *node = &mesh->nodes[i];
    struct shoal_raft_status status;
    const struct shoal_raft_config *config = shoal_raft_config(node->raft);

    shoal_raft_status(node->raft, &status);
    for (uint32_t j = 0; j < mesh->count; j++) {
        struct shoal_node_id to = mesh_id(j).node;

        if (j == i)
            continue;
        if (status.role != SHOAL_RAFT_LEADER || shoal_raft_config_find(config, to) == NULL)
            shoal_support_unclaim(node->support, to, mesh_group);
        else if (shoal_support_claim(node->support, to, mesh_group, status.term) != SHOAL_OK)
            abort();
    }
}

static inline void mesh_read_done(struct mesh *mesh, uint64_t ctx, uint64_t index, bool failed)
{
    for (uint32_t r = 0; r < mesh->reads_count; r++) {
        struct mesh_read *read = &mesh->reads[r];

        if (read->ctx != ctx || read->done)
            continue;
        read->done = true;
        read->failed = failed;
        read->index = index;
        if (!failed && index < read->floor)
            MESH_BROKEN(mesh, "a read at %" PRIu64 " misses entry %" PRIu64 ", committed before it was asked", index,
                        read->floor);
    }
}

/* Answers NEED_SNAPSHOT with one piece. */
static inline void mesh_feed_snapshot(struct mesh *mesh, uint32_t i, const struct shoal_raft_action *need)
{
    struct mesh_node *node = &mesh->nodes[i];
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_SNAPSHOT_CHUNK };
    uint64_t offset = need->u.need_snapshot.index == node->snapshot.what.index ? need->u.need_snapshot.offset : 0;
    size_t len =
        MESH_SNAPSHOT_BYTES - offset < MESH_PIECE_BYTES ? MESH_SNAPSHOT_BYTES - (size_t)offset : MESH_PIECE_BYTES;

    if (!node->has_snapshot)
        abort();
    event.u.chunk.peer = need->u.need_snapshot.peer;
    event.u.chunk.snapshot = node->snapshot.what;
    event.u.chunk.offset = offset;
    event.u.chunk.total = MESH_SNAPSHOT_BYTES;
    event.u.chunk.bytes = shoal_view_of(node->snapshot.bytes + offset, len);
    mesh_raft_event(mesh, i, &event);
}

static inline void mesh_act(struct mesh *mesh, uint32_t i, const struct shoal_raft_action *action)
{
    static uint8_t wire[SHOAL_FRAME_BYTES_MAX];
    struct mesh_node *node = &mesh->nodes[i];
    size_t len;

    switch (action->kind) {
    case SHOAL_RAFT_ACTION_SEND:
        node->raft_sent++;
        if (shoal_raft_message_encode(&action->u.send, wire, sizeof(wire), &len) != SHOAL_OK)
            abort();
        mesh_send(mesh, i, mesh_index(action->u.send.to.node), false, wire, len);
        break;
    case SHOAL_RAFT_ACTION_PERSIST: mesh_persist(mesh, node, action); break;
    case SHOAL_RAFT_ACTION_COMMIT: mesh_apply(mesh, i, action->u.commit.index); break;
    case SHOAL_RAFT_ACTION_READ_READY:
        mesh_read_done(mesh, action->u.read_ready.ctx, action->u.read_ready.index, false);
        break;
    case SHOAL_RAFT_ACTION_ROLE:
        if (action->u.role.role == SHOAL_RAFT_LEADER)
            mesh_check_leader(mesh, i);
        break;
    case SHOAL_RAFT_ACTION_SNAPSHOT_PART:
        memcpy(node->incoming.bytes + action->u.part.offset, action->u.part.bytes.bytes, action->u.part.bytes.len);
        break;
    case SHOAL_RAFT_ACTION_REJECT:
        mesh->rejects++;
        mesh->last_reject = action->u.reject.err;
        mesh_read_done(mesh, action->u.reject.ctx, 0, true);
        break;
    case SHOAL_RAFT_ACTION_CONFIG:
    case SHOAL_RAFT_ACTION_NEED_SNAPSHOT:
    case SHOAL_RAFT_ACTION_REMOVED: break;
    }
    if (mesh->trace != NULL)
        mesh->trace(mesh->trace_arg, mesh, i, action);
}

static inline void mesh_carry_out(struct mesh *mesh, uint32_t i, struct shoal_raft_actions *actions)
{
    struct mesh_node *node = &mesh->nodes[i];
    struct shoal_raft_action needs[SHOAL_GROUP_NODES_MAX];
    uint32_t needs_count = 0;

    for (uint32_t a = 0; a < actions->count; a++) {
        mesh_act(mesh, i, &actions->list[a]);
        if (actions->list[a].kind == SHOAL_RAFT_ACTION_NEED_SNAPSHOT && needs_count < SHOAL_GROUP_NODES_MAX)
            needs[needs_count++] = actions->list[a];
    }
    if (actions->wants_reserve && shoal_raft_reserve(node->raft) != SHOAL_OK)
        abort();
    mesh_check_log(mesh, i);
    mesh_claims(mesh, i);
    free(actions);
    for (uint32_t n = 0; n < needs_count; n++)
        mesh_feed_snapshot(mesh, i, &needs[n]);
}

static inline void mesh_support_step(struct mesh *mesh, uint32_t i, const struct shoal_support_event *event);

static void mesh_raft_event(struct mesh *mesh, uint32_t i, const struct shoal_raft_event *event)
{
    struct mesh_node *node = &mesh->nodes[i];
    struct shoal_raft_actions *actions = malloc(sizeof(*actions));
    enum shoal_err err;

    err = shoal_raft_step(node->raft, event, mesh->now, actions);
    shoal_raft_check(node->raft);
    if (err != SHOAL_OK)
        MESH_BROKEN(mesh, "%c: step of event %d says %s", 'a' + (int)i, (int)event->kind, shoal_err_name(err));
    mesh_carry_out(mesh, i, actions);
}

static inline void mesh_on_support(struct mesh *mesh, uint32_t i, const struct shoal_support_action *action)
{
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_TIMER };

    if (mesh->wild && action->kind != SHOAL_SUPPORT_SEND && action->kind != SHOAL_SUPPORT_SUPPORTED)
        return;
    switch (action->kind) {
    case SHOAL_SUPPORT_SEND:
        mesh_send(mesh, i, mesh_index(action->node), true, action->bytes.bytes, action->bytes.len);
        return;
    case SHOAL_SUPPORT_SUPPORTED:
    case SHOAL_SUPPORT_LOST:
        event.kind = SHOAL_RAFT_EVENT_PEER_SUPPORT;
        event.u.peer_support.node = action->node;
        event.u.peer_support.until_ns = action->kind == SHOAL_SUPPORT_SUPPORTED ? UINT64_MAX : 0;
        break;
    case SHOAL_SUPPORT_SUPPORTING:
    case SHOAL_SUPPORT_SUPPORTING_LOST:
        event.kind = SHOAL_RAFT_EVENT_SUPPORTING;
        event.u.supporting.node = action->node;
        event.u.supporting.on = action->kind == SHOAL_SUPPORT_SUPPORTING;
        break;
    case SHOAL_SUPPORT_CLAIM:
    case SHOAL_SUPPORT_UNCLAIM:
        event.kind = action->kind == SHOAL_SUPPORT_CLAIM ? SHOAL_RAFT_EVENT_CLAIM : SHOAL_RAFT_EVENT_UNCLAIMED;
        event.u.claim.node = action->node;
        event.u.claim.term = action->term;
        break;
    case SHOAL_SUPPORT_PEER_SILENT:
    case SHOAL_SUPPORT_PEER_HEARD:
    case SHOAL_SUPPORT_PEER_RESTARTED: return;
    case SHOAL_SUPPORT_ROLLED_BACK: MESH_BROKEN(mesh, "%c is said to be rolled back", 'a' + (int)i); return;
    }
    mesh_raft_event(mesh, i, &event);
}

static inline void mesh_support_step(struct mesh *mesh, uint32_t i, const struct shoal_support_event *event)
{
    struct shoal_support_actions *actions = malloc(sizeof(*actions));

    if (shoal_support_step(mesh->nodes[i].support, event, mesh->now, actions) != SHOAL_OK)
        MESH_BROKEN(mesh, "%c: a support datagram did not decode", 'a' + (int)i);
    shoal_support_check(mesh->nodes[i].support);
    for (uint32_t a = 0; a < actions->count; a++)
        mesh_on_support(mesh, i, &actions->list[a]);
    free(actions);
}

/* Support first: no leader runs on support that has expired. */
static inline void mesh_wake(struct mesh *mesh, uint32_t i)
{
    struct mesh_node *node = &mesh->nodes[i];
    struct shoal_support_event timer = { .kind = SHOAL_SUPPORT_EVENT_TIMER };

    /* A disk that hangs shows as the age of its oldest unfinished flush. */
    if (node->writes_count > 0 && node->writes[0].at == UINT64_MAX)
        timer.health.flush_age_ns = 2 * SHOAL_S;
    for (uint32_t n = 0; n < 8 && shoal_support_deadline_ns(node->support) <= mesh->now; n++)
        mesh_support_step(mesh, i, &timer);
}

/* ---- Life and death ---- */

static inline void mesh_start(struct mesh *mesh, uint32_t i)
{
    struct mesh_node *node = &mesh->nodes[i];
    struct shoal_raft_options options = { .self = node->id, .config = node->base };
    struct shoal_raft_restored restored = { .hard = node->hard, .has_snapshot = node->has_snapshot };
    struct shoal_support_options support = { .self = node->id.node, .start_ns = mesh->now };

    node->agent++;
    support.incarnation = (struct shoal_incarnation){ .host_epoch = 1, .agent = node->agent };
    shoal_rand_init(&options.chance, shoal_rand_u64(&mesh->chance));
    options.quiet_until_ns = mesh->now + (node->agent == 1 ? 0 : 600 * SHOAL_MS);
    if (mesh->wild) {
        options.quiet_until_ns = 0;
        options.support_ns = 100 * SHOAL_MS;
        options.jitter_ns = 20 * SHOAL_MS;
    }
    restored.snapshot = node->snapshot.what;
    restored.entries = node->log;
    restored.count = node->log_count;
    if (shoal_raft_restore(&node->raft, &options, &restored) != SHOAL_OK ||
        shoal_support_create(&node->support, &support))
        abort();
    node->up = true;
    node->applied = 0;
    node->chain = 0;
    node->seen_last = 0;
    if (node->has_snapshot) {
        node->applied = node->snapshot.what.index;
        memcpy(&node->chain, node->snapshot.bytes, 8);
    }
    mesh_apply(mesh, i, shoal_raft_commit(node->raft));
    mesh_check_log(mesh, i);
    for (uint32_t j = 0; j < mesh->count; j++) {
        if (j != i && shoal_support_add(node->support, mesh_id(j).node) != SHOAL_OK)
            abort();
    }
}

/* `kept`: how many of the unfinished writes survive; more than there are: all. */
static inline void mesh_crash(struct mesh *mesh, uint32_t i, uint32_t kept)
{
    struct mesh_node *node = &mesh->nodes[i];

    if (!node->up)
        return;
    for (uint32_t w = 0; w < node->writes_count; w++) {
        if (w < kept)
            mesh_disk_apply(node, &node->writes[w]);
        mesh_write_free(&node->writes[w]);
    }
    node->writes_count = 0;
    node->up = false;
    node->seen_last = 0;
    shoal_raft_destroy(node->raft);
    shoal_support_destroy(node->support);
    node->raft = NULL;
    node->support = NULL;
}

static inline void mesh_config(struct shoal_raft_config *config, const char *voters, const char *learners)
{
    *config = (struct shoal_raft_config){ 0 };
    for (; *voters != '\0'; voters++)
        config->members[config->count++] =
            (struct shoal_raft_member){ .id = mesh_id((uint32_t)(*voters - 'a')), .bits = SHOAL_RAFT_VOTER };
    for (; *learners != '\0'; learners++)
        config->members[config->count++] =
            (struct shoal_raft_member){ .id = mesh_id((uint32_t)(*learners - 'a')), .bits = SHOAL_RAFT_LEARNER };
}

static inline struct mesh *mesh_create(uint64_t seed, uint32_t count, const char *voters)
{
    struct mesh *mesh = calloc(1, sizeof(*mesh));

    shoal_rand_init(&mesh->chance, seed);
    mesh->count = count;
    mesh->delay_ns = 500000;
    mesh->now = SHOAL_S;
    for (uint32_t i = 0; i < count; i++) {
        mesh->nodes[i].id = mesh_id(i);
        mesh->nodes[i].write_ns = 2 * SHOAL_MS;
        mesh_config(&mesh->nodes[i].base, voters, "");
    }
    for (uint32_t i = 0; i < count; i++)
        mesh_start(mesh, i);
    return mesh;
}

static inline void mesh_destroy(struct mesh *mesh)
{
    for (uint32_t i = 0; i < mesh->count; i++) {
        mesh_crash(mesh, i, UINT32_MAX);
        mesh_disk_truncate(&mesh->nodes[i], 0);
    }
    for (uint32_t p = 0; p < mesh->packets_count; p++)
        free(mesh->packets[p].bytes);
    free(mesh);
}

/* Everyone restarts, gently, into wild or civil times. */
static inline void mesh_set_wild(struct mesh *mesh, bool wild)
{
    mesh->wild = wild;
    for (uint32_t i = 0; i < mesh->count; i++) {
        mesh_crash(mesh, i, UINT32_MAX);
        mesh_start(mesh, i);
    }
}

/* ---- Time ---- */

static inline void mesh_deliver(struct mesh *mesh, uint32_t p)
{
    struct mesh_packet packet = mesh->packets[p];
    struct mesh_node *node = &mesh->nodes[packet.to];
    struct shoal_support_event event = { .kind = SHOAL_SUPPORT_EVENT_DATAGRAM };
    struct shoal_raft_event step = { .kind = SHOAL_RAFT_EVENT_MESSAGE };
    struct shoal_raft_message message;

    mesh->packets[p] = mesh->packets[--mesh->packets_count];
    if (node->up && !node->paused && !mesh->cut[packet.from][packet.to]) {
        mesh_wake(mesh, packet.to);
        if (packet.support) {
            event.node = mesh_id(packet.from).node;
            event.bytes = shoal_view_of(packet.bytes, packet.len);
            mesh_support_step(mesh, packet.to, &event);
        } else if (shoal_raft_message_decode(shoal_view_of(packet.bytes, packet.len), &message) == SHOAL_OK) {
            step.u.message = &message;
            mesh_raft_event(mesh, packet.to, &step);
            shoal_raft_message_deinit(&message);
        } else {
            MESH_BROKEN(mesh, "a message of %c did not decode", 'a' + (int)packet.from);
        }
    }
    free(packet.bytes);
}

static inline void mesh_stored(struct mesh *mesh, uint32_t i)
{
    struct mesh_node *node = &mesh->nodes[i];
    struct mesh_write write = node->writes[0];
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_STORED };

    node->writes_count--;
    memmove(node->writes, node->writes + 1, node->writes_count * sizeof(node->writes[0]));
    mesh_disk_apply(node, &write);
    event.u.stored = write.action.u.persist.mark;
    mesh_write_free(&write);
    mesh_wake(mesh, i);
    mesh_raft_event(mesh, i, &event);
}

/* Finds when the next thing happens, and does it if that is not after `until`; false: nothing before `until`. */
static inline bool mesh_next(struct mesh *mesh, uint64_t until)
{
    uint64_t best = UINT64_MAX;
    uint32_t packet = UINT32_MAX;
    uint32_t node = UINT32_MAX;
    uint32_t what = 0;

    for (uint32_t p = 0; p < mesh->packets_count; p++) {
        const struct mesh_packet *one = &mesh->packets[p];

        if (one->at < best || (one->at == best && packet != UINT32_MAX && one->order < mesh->packets[packet].order)) {
            best = one->at;
            packet = p;
        }
    }
    for (uint32_t i = 0; i < mesh->count; i++) {
        struct mesh_node *one = &mesh->nodes[i];
        uint64_t deadlines[3] = { UINT64_MAX, UINT64_MAX, UINT64_MAX };

        if (!one->up || one->paused)
            continue;
        deadlines[0] = shoal_raft_deadline_ns(one->raft);
        deadlines[1] = shoal_support_deadline_ns(one->support);
        deadlines[2] = one->writes_count > 0 ? one->writes[0].at : UINT64_MAX;
        for (uint32_t d = 0; d < 3; d++) {
            if (deadlines[d] >= best)
                continue;
            best = deadlines[d];
            node = i;
            what = d;
            packet = UINT32_MAX;
        }
    }
    if (best > until || best == UINT64_MAX)
        return false;
    if (best > mesh->now)
        mesh->now = best;
    if (packet != UINT32_MAX) {
        mesh_deliver(mesh, packet);
    } else if (what == 0) {
        struct shoal_raft_event timer = { .kind = SHOAL_RAFT_EVENT_TIMER };

        mesh_wake(mesh, node);
        mesh_raft_event(mesh, node, &timer);
    } else if (what == 1) {
        mesh_wake(mesh, node);
    } else {
        mesh_stored(mesh, node);
    }
    return true;
}

static inline void mesh_run(struct mesh *mesh, uint64_t ns)
{
    uint64_t until = mesh->now + ns;

    while (mesh->broken[0] == '\0' && mesh_next(mesh, until)) {
    }
    mesh->now = until;
}

/* ---- What a test asks of a node ---- */

static inline bool mesh_propose(struct mesh *mesh, uint32_t i, const char *text)
{
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_PROPOSE };
    uint64_t rejects = mesh->rejects;

    mesh_wake(mesh, i);
    event.u.propose.ctx = UINT64_MAX;
    event.u.propose.entry = shoal_entry_create(SHOAL_ENTRY_USER, shoal_view_text(text));
    mesh_raft_event(mesh, i, &event);
    shoal_entry_unref(event.u.propose.entry);
    return mesh->rejects == rejects;
}

static inline struct mesh_read *mesh_read(struct mesh *mesh, uint32_t i)
{
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_READ };
    struct mesh_read *read;

    if (mesh->reads_count == MESH_READS_MAX)
        mesh->reads_count = 0;
    read = &mesh->reads[mesh->reads_count++];
    mesh_wake(mesh, i);
    event.u.read.ctx = mesh->order++;
    *read = (struct mesh_read){ .ctx = event.u.read.ctx, .floor = mesh->committed };
    mesh_raft_event(mesh, i, &event);
    return read;
}

static inline bool mesh_change(struct mesh *mesh, uint32_t i, const char *voters, const char *learners)
{
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_CHANGE_CONFIG };
    struct shoal_raft_config target;
    uint64_t rejects = mesh->rejects;

    mesh_config(&target, voters, learners);
    mesh_wake(mesh, i);
    event.u.change.ctx = UINT64_MAX;
    event.u.change.target = &target;
    mesh_raft_event(mesh, i, &event);
    return mesh->rejects == rejects;
}

static inline bool mesh_transfer(struct mesh *mesh, uint32_t i, uint32_t to)
{
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_TRANSFER };
    uint64_t rejects = mesh->rejects;

    mesh_wake(mesh, i);
    event.u.transfer.ctx = UINT64_MAX;
    event.u.transfer.to = mesh_id(to).node;
    mesh_raft_event(mesh, i, &event);
    return mesh->rejects == rejects;
}

/* The state machine's snapshot at what it has applied: durable at once. */
static inline void mesh_snapshot(struct mesh *mesh, uint32_t i)
{
    struct mesh_node *node = &mesh->nodes[i];
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_SNAPSHOT_READY };
    struct shoal_raft_status status;
    struct mesh_snapshot *snapshot = &node->snapshot;

    mesh_wake(mesh, i);
    shoal_raft_status(node->raft, &status);
    if (node->applied <= status.snapshot_index || node->writes_count > 0)
        return; /* as a store would: in order with the log's own writes */
    snapshot->what.index = node->applied;
    snapshot->what.term = shoal_raft_term_at(node->raft, node->applied);
    if (shoal_raft_config_at(node->raft, node->applied, &snapshot->what.config) != SHOAL_OK)
        abort();
    memset(snapshot->bytes, 7, sizeof(snapshot->bytes));
    memcpy(snapshot->bytes, &node->chain, 8);
    node->has_snapshot = true;
    event.u.snapshot_ready.index = node->applied;
    mesh_raft_event(mesh, i, &event);
}

/* The leader of the highest term among those up; count if there is none. */
static inline uint32_t mesh_leader(const struct mesh *mesh)
{
    uint32_t best = mesh->count;
    uint64_t best_term = 0;

    for (uint32_t i = 0; i < mesh->count; i++) {
        struct shoal_raft_status status;

        if (!mesh->nodes[i].up || mesh->nodes[i].paused)
            continue;
        shoal_raft_status(mesh->nodes[i].raft, &status);
        if (status.role == SHOAL_RAFT_LEADER && status.term > best_term) {
            best = i;
            best_term = status.term;
        }
    }
    return best;
}

static inline void mesh_heal(struct mesh *mesh)
{
    memset(mesh->cut, 0, sizeof(mesh->cut));
    mesh->loss_percent = 0;
    mesh->repeat_percent = 0;
    mesh->delay_ns = 500000;
    for (uint32_t i = 0; i < mesh->count; i++) {
        mesh->nodes[i].paused = false;
        mesh->nodes[i].write_ns = 2 * SHOAL_MS;
        for (uint32_t w = 0; w < mesh->nodes[i].writes_count; w++) {
            if (mesh->nodes[i].writes[w].at == UINT64_MAX)
                mesh->nodes[i].writes[w].at = mesh->now + 1;
        }
        if (!mesh->nodes[i].up)
            mesh_start(mesh, i);
    }
}

#endif
