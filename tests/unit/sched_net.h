/* A tiny mesh of sched cores for tests: virtual time, a network that delays and loses, disks that forget what was not
 * flushed, gossip as a rumour that always arrives. One seed decides everything. */
#ifndef TESTS_SCHED_NET_H
#define TESTS_SCHED_NET_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shoal/job.h"
#include "shoal/job_facts.h"
#include "shoal/mesh.h"
#include "sched/node/sched_wire.h"
#include "shoal/sched.h"
#include "shoal/sched_look.h"
#include "shoal/slots.h"

#ifndef NET_SCHED_STEP
#define NET_SCHED_STEP shoal_sched_step /* a test may look at each step */
#endif
#define NET_NODES_MAX 9
#define NET_REPLIES_MAX 16384
#define NET_MS SHOAL_MS
#define NET_S SHOAL_S

struct disk_group {
    struct shoal_job_id id;
    bool used;
    bool has_hard;
    struct shoal_sched_hard hard;
    uint8_t hard_config[SHOAL_SCHED_CONFIG_BYTES_MAX];
    bool has_snapshot;
    struct shoal_sched_snapshot snapshot; /* bytes owned */
    struct shoal_sched_entry *entries;    /* bytes owned */
    size_t entry_count, entry_cap;
};

struct net_reply {
    uint64_t id;
    unsigned count; /* must become 1 and stay so */
    enum shoal_err err;
    char text[400];
    struct shoal_job_id job;
    struct shoal_buf ticket, bytes;
    uint64_t at_ns;
};

/* The shell's row of a job in its index. */
struct net_row {
    struct shoal_job_id job;
    enum shoal_sched_index_what what;
    struct shoal_sched_version version;
    uint8_t state;
};

struct net_node {
    struct shoal_sched *sched;
    bool up;
    bool member; /* known to the others */
    bool draining;
    bool previous; /* it says nothing of rules, as the version before */
    bool untold;   /* gossip knows it, and has not brought its facts yet */
    bool restored;
    uint32_t life;
    struct shoal_incarnation incarnation;
    uint8_t key[SHOAL_SCHED_KEY_BYTES];
    struct shoal_node_id id;
    struct shoal_store_id store;
    char domain[16];
    struct disk_group *disk;
    size_t disk_count;
    struct net_row *rows; /* rebuilt with each start */
    size_t row_count, row_cap;
    struct shoal_buf mesh_copy;
    struct shoal_buf mesh_said;         /* newest PUBLISH_MESH */
    uint64_t flush_end_ns, next_end_ns; /* one flush runs; what comes meanwhile shares the next one */
    uint64_t flush_ns;
    uint32_t slots;
    uint64_t slots_free, slots_version, slots_stamp;
    unsigned runs; /* workers started here */
    unsigned blobs_put;
    unsigned verified; /* signatures looked at */
    int64_t wall_ms;   /* how far its wall clock is ahead of the true one */
    unsigned deleted;
    struct shoal_job_id blobs[16]; /* jobs of which all archived blobs are here */
    unsigned blob_jobs;
    unsigned said;      /* SAY actions */
    uint64_t terms_led; /* ROLE actions with leads */
};

enum net_kind {
    NET_FRAME,
    NET_DATAGRAM,
    NET_WRITE,
    NET_SUMMARY,
    NET_MESH,
    NET_STATE,
    NET_BLOB,
    NET_REMOVE,
    NET_HOST,
    NET_LOAD,
};

struct net_event {
    uint64_t at;
    uint64_t seq; /* ties in order of making */
    enum net_kind kind;
    unsigned to, from;
    uint32_t life; /* of `to`: a write of an earlier life is lost */
    struct shoal_job_id job;
    uint8_t *bytes;
    size_t len;
    struct disk_group write; /* NET_WRITE: what this batch adds */
    uint64_t truncate_from;
    struct shoal_sched_mark mark;
    unsigned state; /* NET_STATE: of node `from` as gossip says */
    struct shoal_sched_version version;
    struct shoal_hash hash;
    struct shoal_sched_event host; /* NET_HOST: what this host's shell says */
};

/* A worker that was started, while it runs. */
struct net_worker {
    unsigned node;
    uint64_t id;
    bool frozen, ended;
};
#define NET_WORKERS_MAX 1024

/* The leader of each term: one node at most. */
struct net_term {
    struct shoal_job_id group;
    uint64_t term;
    unsigned node;
};

struct net_summary {
    struct shoal_job_id job;
    struct shoal_sched_version version;
    bool tombstone;
    bool archived;
    uint8_t bytes[SHOAL_RECORD_PAYLOAD_MAX];
    size_t len;
};

struct net {
    uint64_t now;
    uint64_t seed;
    struct shoal_rand chance, news_chance;
    unsigned count;
    struct net_node nodes[NET_NODES_MAX];
    bool cut[NET_NODES_MAX][NET_NODES_MAX];
    bool links_cut[NET_NODES_MAX][NET_NODES_MAX]; /* frames alone: datagrams pass */
    unsigned loss_per_mille;
    unsigned
        damage_per_mille; /* frames with a bit flipped: members that lie. Nothing is promised then but to live on */
    uint64_t delay_ns, delay_jitter_ns;
    uint64_t bulk_ns;         /* what the bulk lane takes longer: frames overtake each other */
    struct net_event **queue; /* heap */
    size_t queue_count, queue_cap;
    uint64_t seq;
    uint64_t request;
    struct net_reply *replies;
    size_t reply_count;
    struct net_summary *summaries;
    size_t summary_count;
    struct shoal_sched_actions *actions;
    uint64_t grow_ns, replace_ns, archive_ns;
    uint64_t work_ns; /* how long a worker works */
    struct net_worker workers[NET_WORKERS_MAX];
    size_t worker_count;
    bool generations_apart; /* no worker starts while one of another job, or recovery generation, runs */
    uint32_t groups_max, loaded_max, archive_warm_max, archive_early_max, gone_max;
    uint64_t steps;
    struct net_term *terms;
    size_t term_count, term_cap;
    unsigned deaf;       /* bit i: no request reaches node i */
    uint64_t late_ns[NET_NODES_MAX]; /* until then the node's loop stands still: what comes to it waits */
    unsigned blobs_fail; /* bit i: node i cannot fetch any */
    bool archive_progress; /* the ledgers of ended jobs have records, and their last loss is no number */
    uint64_t frames;
    bool gossip_is_silent; /* no record reaches another node */
    bool dead_are_untold;  /* who starts is not told of those that are down: it has them from its life before */
};

/* ---- Toy cryptography: stable, and wrong keys do not verify ---- */

static struct shoal_hash net_hash(void *arg, struct shoal_view bytes)
{
    struct shoal_hash hash;
    uint64_t h = 0xcbf29ce484222325u ^ bytes.len;

    (void)arg;
    for (size_t i = 0; i < bytes.len; i++)
        h = (h ^ bytes.bytes[i]) * 0x100000001b3u;
    for (unsigned i = 0; i < 4; i++) {
        uint64_t word = shoal_splitmix64(&h);

        memcpy(hash.bytes + 8 * i, &word, 8);
    }
    return hash;
}

static void net_signature(const uint8_t *key, struct shoal_view bytes, uint8_t *signature)
{
    struct shoal_hash hash = net_hash(NULL, bytes);
    uint8_t both[64];

    memcpy(both, key, 32);
    memcpy(both + 32, hash.bytes, 32);
    hash = net_hash(NULL, shoal_view_of(both, 64));
    memcpy(signature, hash.bytes, 32);
    memcpy(signature + 32, hash.bytes, 32);
}

static void net_sign(void *arg, struct shoal_view bytes, uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES])
{
    net_signature(((struct net_node *)arg)->key, bytes, signature);
}

static bool net_verify(void *arg, const uint8_t key[SHOAL_SCHED_KEY_BYTES], struct shoal_view bytes,
                       const uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES])
{
    uint8_t want[SHOAL_SCHED_SIGNATURE_BYTES];

    ((struct net_node *)arg)->verified++;
    net_signature(key, bytes, want);
    return memcmp(want, signature, sizeof(want)) == 0;
}

static struct shoal_node_id net_node_of_key(void *arg, const uint8_t key[SHOAL_SCHED_KEY_BYTES])
{
    struct shoal_hash hash = net_hash(arg, shoal_view_of(key, SHOAL_SCHED_KEY_BYTES));
    struct shoal_node_id id;

    memcpy(id.bytes, hash.bytes, sizeof(id.bytes));
    return id;
}

/* A token is a user's name; "admin" is the administrator; what begins with '!' is nobody's. */
static enum shoal_err net_who(void *arg, struct shoal_view token, uint64_t wall_ms, struct shoal_sched_caller *caller,
                              struct shoal_msg *msg)
{
    (void)arg, (void)wall_ms;
    if (token.bytes[0] == '!')
        return shoal_fail(msg, SHOAL_ERR_DENIED, "the token is not one of this mesh");
    *caller = (struct shoal_sched_caller){ .admin = shoal_view_equal(token, shoal_view_text("admin")) };
    (void)snprintf(caller->name, sizeof(caller->name), "%.*s", (int)token.len, (const char *)token.bytes);
    memcpy(caller->token_id, "the token's id..", sizeof(caller->token_id));
    return SHOAL_OK;
}

/* ---- The queue ---- */

static bool net_before(const struct net_event *a, const struct net_event *b)
{
    return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

static void net_push(struct net *net, struct net_event *event)
{
    size_t at = net->queue_count++;

    event->seq = ++net->seq;
    if (net->queue_count > net->queue_cap) {
        net->queue_cap = net->queue_cap == 0 ? 1024 : net->queue_cap * 2;
        net->queue = realloc(net->queue, net->queue_cap * sizeof(*net->queue));
        assert_non_null(net->queue);
    }
    while (at > 0 && net_before(event, net->queue[(at - 1) / 2])) {
        net->queue[at] = net->queue[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    net->queue[at] = event;
}

static struct net_event *net_pop(struct net *net)
{
    struct net_event *first = net->queue[0];
    struct net_event *last = net->queue[--net->queue_count];
    size_t at = 0;

    for (;;) {
        size_t child = 2 * at + 1;

        if (child >= net->queue_count)
            break;
        if (child + 1 < net->queue_count && net_before(net->queue[child + 1], net->queue[child]))
            child++;
        if (!net_before(net->queue[child], last))
            break;
        net->queue[at] = net->queue[child];
        at = child;
    }
    net->queue[at] = last;
    return first;
}

static struct net_event *net_event_of(struct net *net, enum net_kind kind, unsigned to, uint64_t delay)
{
    struct net_event *event = calloc(1, sizeof(*event));

    assert_non_null(event);
    event->kind = kind;
    event->to = to;
    event->life = net->nodes[to].life;
    event->at = net->now + delay;
    return event;
}

static void net_bytes(struct net_event *event, struct shoal_view bytes)
{
    event->bytes = malloc(bytes.len + 1);
    assert_non_null(event->bytes);
    if (bytes.len > 0)
        memcpy(event->bytes, bytes.bytes, bytes.len);
    event->len = bytes.len;
}

static void disk_clear(struct disk_group *g)
{
    for (size_t i = 0; i < g->entry_count; i++)
        free((void *)(uintptr_t)g->entries[i].bytes.bytes);
    free(g->entries);
    free((void *)(uintptr_t)g->snapshot.bytes.bytes);
    memset(g, 0, sizeof(*g));
}

static void net_event_free(struct net_event *event)
{
    free(event->bytes);
    disk_clear(&event->write);
    free(event);
}

static unsigned net_find(const struct net *net, struct shoal_node_id id)
{
    for (unsigned i = 0; i < net->count; i++) {
        if (shoal_node_id_equal(net->nodes[i].id, id))
            return i;
    }
    return NET_NODES_MAX;
}

/* ---- Disks ---- */

static struct shoal_view net_copy(struct shoal_view view)
{
    uint8_t *bytes = malloc(view.len + 1);

    assert_non_null(bytes);
    if (view.len > 0)
        memcpy(bytes, view.bytes, view.len);
    return shoal_view_of(bytes, view.len);
}

static struct disk_group *disk_find(struct net_node *node, struct shoal_job_id id, bool make)
{
    for (size_t i = 0; i < node->disk_count; i++) {
        if (node->disk[i].used && shoal_job_id_equal(node->disk[i].id, id))
            return &node->disk[i];
    }
    if (!make)
        return NULL;
    node->disk = realloc(node->disk, (node->disk_count + 1) * sizeof(*node->disk));
    assert_non_null(node->disk);
    memset(&node->disk[node->disk_count], 0, sizeof(node->disk[0]));
    node->disk[node->disk_count].id = id;
    node->disk[node->disk_count].used = true;
    return &node->disk[node->disk_count++];
}

static void disk_add(struct disk_group *g, struct shoal_sched_entry entry)
{
    if (g->entry_count == g->entry_cap) {
        g->entry_cap = g->entry_cap == 0 ? 8 : g->entry_cap * 2;
        g->entries = realloc(g->entries, g->entry_cap * sizeof(*g->entries));
        assert_non_null(g->entries);
    }
    entry.bytes = net_copy(entry.bytes);
    g->entries[g->entry_count++] = entry;
}

static void disk_drop(struct disk_group *g, size_t from, size_t count)
{
    for (size_t i = from; i < from + count; i++)
        free((void *)(uintptr_t)g->entries[i].bytes.bytes);
    if (count > 0)
        memmove(&g->entries[from], &g->entries[from + count], (g->entry_count - from - count) * sizeof(g->entries[0]));
    g->entry_count -= count;
}

/* One batch becomes durable: snapshot, truncate, entries, hard. */
static void disk_write(struct net_node *node, const struct net_event *event)
{
    struct disk_group *g = disk_find(node, event->job, true);
    const struct disk_group *w = &event->write;

    if (w->has_snapshot) {
        size_t drop = 0;

        free((void *)(uintptr_t)g->snapshot.bytes.bytes);
        g->snapshot = w->snapshot;
        g->snapshot.bytes = net_copy(w->snapshot.bytes);
        g->has_snapshot = true;
        while (drop < g->entry_count && g->entries[drop].index <= w->snapshot.index)
            drop++;
        disk_drop(g, 0, drop);
    }
    if (event->truncate_from != 0) {
        size_t keep = 0;

        while (keep < g->entry_count && g->entries[keep].index < event->truncate_from)
            keep++;
        disk_drop(g, keep, g->entry_count - keep);
    }
    for (size_t i = 0; i < w->entry_count; i++) {
        uint64_t last =
            g->entry_count > 0 ? g->entries[g->entry_count - 1].index : (g->has_snapshot ? g->snapshot.index : 0);

        assert_int_equal(w->entries[i].index, last + 1);
        disk_add(g, w->entries[i]);
    }
    if (w->has_hard) {
        g->has_hard = true;
        g->hard = w->hard;
        memcpy(g->hard_config, w->hard_config, sizeof(g->hard_config));
        g->hard.config.bytes = NULL;
    }
}

/* ---- Actions ---- */

static void net_step(struct net *net, unsigned at, const struct shoal_sched_event *event);

static bool net_lost(struct net *net, unsigned from, unsigned to)
{
    return net->cut[from][to] ||
           (net->loss_per_mille > 0 && shoal_rand_below(&net->chance, 1000) < net->loss_per_mille);
}

static void net_send_any(struct net *net, unsigned from, const struct shoal_sched_action *action, enum net_kind kind)
{
    unsigned to = net_find(net, action->u.send.to);
    uint64_t jitter = net->delay_jitter_ns == 0 ? 0 : shoal_rand_below(&net->chance, net->delay_jitter_ns);
    struct net_event *event;

    net->frames++;
    if (to == NET_NODES_MAX || !net->nodes[to].up || net_lost(net, from, to))
        return;
    if (kind == NET_FRAME && (net->deaf & 1u << to) != 0 && action->u.send.bytes.len > 0 &&
        action->u.send.bytes.bytes[0] == FRAME_REQUEST)
        return;
    if (kind == NET_FRAME && action->u.send.bulk)
        jitter += net->bulk_ns;
    event = net_event_of(net, kind, to, net->delay_ns + jitter);
    event->from = from;
    net_bytes(event, action->u.send.bytes);
    if (kind == NET_FRAME && event->len > 0 && shoal_rand_below(&net->chance, 1000) < net->damage_per_mille)
        event->bytes[shoal_rand_below(&net->chance, event->len)] ^= (uint8_t)(1u << shoal_rand_below(&net->chance, 8));
    net_push(net, event);
}

/* News has chance of its own: what a seed did without it, it does. */
static void net_send(struct net *net, unsigned from, const struct shoal_sched_action *action, enum net_kind kind)
{
    bool news = kind == NET_FRAME && action->u.send.bytes.len > 0 && action->u.send.bytes.bytes[0] == FRAME_NEWS;
    struct shoal_rand others = net->chance;

    if (news)
        net->chance = net->news_chance;
    net_send_any(net, from, action, kind);
    if (!news)
        return;
    net->news_chance = net->chance;
    net->chance = others;
}

/* The time at which a write given to the disk now is durable. */
static uint64_t net_flushed(struct net *net, struct net_node *node)
{
    uint64_t flush = node->flush_ns / 2 + shoal_rand_below(&net->chance, node->flush_ns);

    if (net->now >= node->next_end_ns) {
        node->flush_end_ns = net->now + flush;
        node->next_end_ns = node->flush_end_ns;
    } else if (net->now >= node->flush_end_ns) {
        node->flush_end_ns = node->next_end_ns;
        node->next_end_ns += flush;
    } else if (node->next_end_ns == node->flush_end_ns) {
        node->next_end_ns += flush;
    }
    return node->next_end_ns;
}

static void net_persist(struct net *net, unsigned at, const struct shoal_sched_action *action)
{
    struct net_node *node = &net->nodes[at];
    struct net_event *event = net_event_of(net, NET_WRITE, at, 0);

    event->at = net_flushed(net, node);
    event->job = action->u.persist.group;
    event->mark = action->u.persist.mark;
    event->truncate_from = action->u.persist.truncate_from;
    if (action->u.persist.has_snapshot) {
        event->write.has_snapshot = true;
        event->write.snapshot = action->u.persist.snapshot;
        event->write.snapshot.bytes = net_copy(action->u.persist.snapshot.bytes);
    }
    for (size_t i = 0; i < action->u.persist.entry_count; i++)
        disk_add(&event->write, action->u.persist.entries[i]);
    if (action->u.persist.has_hard) {
        event->write.has_hard = true;
        event->write.hard = action->u.persist.hard;
        assert_true(action->u.persist.hard.config.len <= SHOAL_SCHED_CONFIG_BYTES_MAX);
        memcpy(event->write.hard_config, action->u.persist.hard.config.bytes, action->u.persist.hard.config.len);
    }
    net_push(net, event);
}

static struct net_reply *net_reply_find(struct net *net, uint64_t id)
{
    for (size_t i = 0; i < net->reply_count; i++) {
        if (net->replies[i].id == id)
            return &net->replies[i];
    }
    return NULL;
}

static void net_reply(struct net *net, const struct shoal_sched_action *action)
{
    struct net_reply *reply = net_reply_find(net, action->u.reply.request);

    assert_non_null(reply);
    reply->count++;
    assert_int_equal(reply->count, 1); /* exactly one */
    reply->err = action->u.reply.err;
    reply->job = action->u.reply.job;
    reply->at_ns = net->now;
    (void)snprintf(reply->text, sizeof(reply->text), "%s", action->u.reply.text);
    assert_int_equal(shoal_buf_append(&reply->ticket, action->u.reply.ticket.bytes, action->u.reply.ticket.len),
                     SHOAL_OK);
    assert_int_equal(shoal_buf_append(&reply->bytes, action->u.reply.bytes.bytes, action->u.reply.bytes.len), SHOAL_OK);
}

static void net_rumour(struct net *net, unsigned from, enum net_kind kind, struct shoal_view bytes,
                       struct shoal_job_id job)
{
    for (unsigned i = 0; i < net->count; i++) {
        struct net_event *event;

        if (i == from || !net->nodes[i].up || !net->nodes[from].member || net->gossip_is_silent)
            continue;
        event = net_event_of(net, kind, i, 30 * NET_MS + shoal_rand_below(&net->chance, 200 * NET_MS));
        event->from = from;
        event->job = job;
        net_bytes(event, bytes);
        net_push(net, event);
    }
}

static void net_summary(struct net *net, unsigned from, const struct shoal_sched_action *action)
{
    struct net_summary *summary = NULL;

    for (size_t i = 0; i < net->summary_count && summary == NULL; i++) {
        if (shoal_job_id_equal(net->summaries[i].job, action->u.summary.job))
            summary = &net->summaries[i];
    }
    if (summary == NULL) {
        net->summaries = realloc(net->summaries, (net->summary_count + 1) * sizeof(*summary));
        assert_non_null(net->summaries);
        summary = &net->summaries[net->summary_count++];
        memset(summary, 0, sizeof(*summary));
        summary->job = action->u.summary.job;
    } else if (shoal_sched_version_cmp(action->u.summary.version, summary->version) < 0 || summary->tombstone) {
        return;
    }
    assert_true(action->u.summary.payload.len <= SHOAL_RECORD_PAYLOAD_MAX);
    summary->version = action->u.summary.version;
    summary->tombstone = action->u.summary.tombstone;
    summary->archived = action->u.summary.archived;
    summary->len = action->u.summary.payload.len;
    if (summary->len > 0)
        memcpy(summary->bytes, action->u.summary.payload.bytes, summary->len);
    net_rumour(net, from, NET_SUMMARY, action->u.summary.payload, action->u.summary.job);
}

static void net_fetch(struct net *net, unsigned at, const struct shoal_host_order *order)
{
    struct net_event *event = net_event_of(net, NET_BLOB, at, 20 * NET_MS);

    event->hash = order->u.fetch.hash;
    event->state = net->blobs_fail >> at & 1;
    net_push(net, event);
}

static void net_keep(struct shoal_buf *to, struct shoal_view bytes)
{
    to->len = 0;
    assert_int_equal(shoal_buf_append(to, bytes.bytes, bytes.len), SHOAL_OK);
}

static void net_later(struct net *net, unsigned at, const struct shoal_sched_event *event, uint64_t delay)
{
    struct net_event *later = net_event_of(net, NET_HOST, at, delay);

    later->host = *event;
    net_push(net, later);
}

static void net_host_later(struct net *net, unsigned at, const struct shoal_host_event *event, uint64_t delay)
{
    net_later(net, at, &(struct shoal_sched_event){ .kind = SHOAL_SCHED_HOST, .u.host = *event }, delay);
}

static struct net_worker *net_worker_find(struct net *net, uint64_t id)
{
    for (size_t i = 0; i < net->worker_count; i++) {
        if (net->workers[i].id == id)
            return &net->workers[i];
    }
    return NULL;
}

/* The high bits of a worker's name are of its job and recovery generation. */
static void net_worker_add(struct net *net, unsigned at, uint64_t id)
{
    for (size_t i = 0; net->generations_apart && i < net->worker_count; i++) {
        const struct net_worker *other = &net->workers[i];

        if (other->id >> 24 != id >> 24 && !other->frozen && !other->ended)
            fail_msg("seed %llu: worker %llx starts on node %u while %llx runs on node %u",
                     (unsigned long long)net->seed, (unsigned long long)id, at, (unsigned long long)other->id,
                     other->node);
    }
    assert_true(net->worker_count < NET_WORKERS_MAX);
    net->workers[net->worker_count++] = (struct net_worker){ .node = at, .id = id };
}

/* Its worker exits; after a kill only the first of the two ends counts. */
static void net_exit_worker(struct net *net, unsigned at, uint64_t worker_id, uint32_t slot, int32_t status,
                            bool signalled, uint64_t delay)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_EXITED };

    event.u.exited.worker_id = worker_id;
    event.u.exited.status = status;
    event.u.exited.signalled = signalled;
    net_host_later(net, at, &event, delay);
    if (slot == UINT32_MAX)
        return;
    memset(&event, 0, sizeof(event));
    event.kind = SHOAL_HOST_ON_SLOT_IDLE;
    event.u.idle.slot = slot;
    net_host_later(net, at, &event, delay + 2 * NET_MS);
}

static void net_kill_worker(struct net *net, unsigned at, uint64_t worker_id)
{
    struct shoal_slot_status slot;

    for (uint32_t i = 0; i < net->nodes[at].slots; i++) {
        shoal_slots_slot(shoal_sched_slots(net->nodes[at].sched), i, &slot);
        if (slot.worker_id == worker_id)
            net_exit_worker(net, at, worker_id, i, 9, true, 5 * NET_MS);
    }
}

/* A worker that needs no library: it starts, works for a while, and exits 0. */
static void net_run_worker(struct net *net, unsigned at, const struct shoal_host_order *order)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_STARTED };

    net->nodes[at].runs++;
    net_worker_add(net, at, order->u.run.placement.worker_id);
    event.u.started.worker_id = order->u.run.placement.worker_id;
    event.u.started.pid = 100;
    net_host_later(net, at, &event, 5 * NET_MS);
    net_exit_worker(net, at, order->u.run.placement.worker_id, order->u.run.placement.slot, 0, false, net->work_ns);
}

static void net_on_order(struct net *net, unsigned at, const struct shoal_host_order *order)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_MANIFEST };

    switch (order->kind) {
    case SHOAL_HOST_DO_RUN: net_run_worker(net, at, order); break;
    case SHOAL_HOST_DO_KILL: net_kill_worker(net, at, order->u.worker.worker_id); break;
    case SHOAL_HOST_DO_FREEZE:
    case SHOAL_HOST_DO_THAW:
        net_worker_find(net, order->u.worker.worker_id)->frozen = order->kind == SHOAL_HOST_DO_FREEZE;
        break;
    case SHOAL_HOST_DO_MANIFEST:
        event.u.manifest.job = order->u.manifest.job;
        event.u.manifest.call = order->u.manifest.call;
        event.u.manifest.ok = true;
        memset(event.u.manifest.hash.bytes, 5, sizeof(event.u.manifest.hash.bytes));
        net_host_later(net, at, &event, 30 * NET_MS);
        break;
    case SHOAL_HOST_DO_FETCH: net_fetch(net, at, order); break;
    case SHOAL_HOST_DO_JOB_OPEN:
    case SHOAL_HOST_DO_JOB_CLOSED:
    case SHOAL_HOST_DO_RENEW:
    case SHOAL_HOST_DO_SEND:
    case SHOAL_HOST_DO_GUARDIANS:
    case SHOAL_HOST_DO_REVOKE: break;
    }
}

static void net_publish_slots(struct net *net, unsigned at, struct shoal_view payload)
{
    struct shoal_slots_record record;

    assert_int_equal(shoal_slots_record_decode(payload, &record), SHOAL_OK);
    net->nodes[at].slots_free = record.free;
    net->nodes[at].slots_version = record.version;
    net->nodes[at].slots_stamp = record.stamp;
    for (unsigned i = 0; i < net->count; i++) {
        struct net_event *said;

        if (i == at || !net->nodes[i].up || !net->nodes[i].member || !net->nodes[at].member || net->gossip_is_silent)
            continue;
        said = net_event_of(net, NET_STATE, i, 50 * NET_MS);
        said->from = at;
        said->state = SHOAL_SCHED_NODE_ALIVE;
        net_push(net, said);
    }
}

static inline void net_print_group(struct net *net, struct shoal_job_id job);

static bool net_blobs_here(const struct net_node *node, struct shoal_job_id job)
{
    for (unsigned i = 0; i < node->blob_jobs; i++)
        if (shoal_job_id_equal(node->blobs[i], job))
            return true;
    return false;
}

static void net_blobs_drop(struct net_node *node, struct shoal_job_id job)
{
    for (unsigned i = 0; i < node->blob_jobs; i++)
        if (shoal_job_id_equal(node->blobs[i], job))
            node->blobs[i--] = node->blobs[--node->blob_jobs];
}

static void net_blobs_add(struct net_node *node, struct shoal_job_id job)
{
    if (net_blobs_here(node, job))
        return;
    assert_true(node->blob_jobs < 16);
    node->blobs[node->blob_jobs++] = job;
}

/* A job's things are made where its leader is, and comes from any source that has it. */
static void net_archive(struct net *net, unsigned at, const struct shoal_sched_action *action)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_ARCHIVE_MADE };
    struct shoal_job_id job = action->u.archive.job;

    event.u.archive.job = job;
    event.u.archive.list = net_hash(NULL, shoal_view_of(job.bytes, sizeof(job.bytes)));
    event.u.archive.ok = (net->blobs_fail >> at & 1) == 0;
    event.u.archive.has_progress = net->archive_progress;
    if (action->kind == SHOAL_SCHED_ARCHIVE_FETCH) {
        event.kind = SHOAL_SCHED_ARCHIVE_FETCHED;
        event.u.archive.ok = false;
        for (unsigned i = 0; i < action->u.archive.source_count && (net->blobs_fail >> at & 1) == 0; i++) {
            unsigned source = net_find(net, action->u.archive.sources[i]);

            if (source < NET_NODES_MAX && net->nodes[source].up && !net->cut[source][at] && !net->cut[at][source] &&
                net_blobs_here(&net->nodes[source], job))
                event.u.archive.ok = true;
        }
    }
    net_later(net, at, &event, 20 * NET_MS);
}

/* SHOAL_TRACE=1 tells what happened, to find out why. */
__attribute__((format(printf, 2, 3))) static void net_trace(const struct net *net, const char *format, ...)
{
    uint64_t ms = (net->now - 1000 * NET_S) / NET_MS;
    char text[600];
    va_list args;

    if (getenv("SHOAL_TRACE") == NULL)
        return;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    print_message("[%6llu] %s\n", (unsigned long long)ms, text);
}

static void net_trace_action(const struct net *net, unsigned at, const struct shoal_sched_action *action)
{
    char job[SHOAL_JOB_ID_TEXT_BYTES];

    if (action->kind == SHOAL_SCHED_ROLE) {
        shoal_job_id_text(action->u.role.group, job);
        net_trace(net, "node %u: %s term %llu, %s, leader %u", at, job, (unsigned long long)action->u.role.term,
                  action->u.role.leads ? "leads" : "follows", net_find(net, action->u.role.leader));
    } else if (action->kind == SHOAL_SCHED_REMOVE_GROUP || action->kind == SHOAL_SCHED_JOB_DELETED) {
        shoal_job_id_text(action->u.group.group, job);
        net_trace(net, "node %u: %s %s", at, job, action->kind == SHOAL_SCHED_REMOVE_GROUP ? "removed" : "deleted");
    } else if (action->kind == SHOAL_SCHED_REPLY) {
        shoal_job_id_text(action->u.reply.job, job);
        net_trace(net, "node %u: %s reply %llu %s %s", at, job, (unsigned long long)action->u.reply.request,
                  shoal_err_name(action->u.reply.err), action->u.reply.text);
    }
}

/* Election safety, checked at every change of role. */
static void net_led(struct net *net, unsigned at, struct shoal_job_id group, uint64_t term)
{
    for (size_t i = net->term_count; i > 0; i--) {
        const struct net_term *t = &net->terms[i - 1];

        if (t->term != term || !shoal_job_id_equal(t->group, group))
            continue;
        if (t->node == at || net->damage_per_mille > 0)
            return;
        net_print_group(net, group);
        fail_msg("seed %llu: nodes %u and %u both lead term %llu of a group", (unsigned long long)net->seed, t->node,
                 at, (unsigned long long)term);
    }
    if (net->term_count == net->term_cap) {
        net->term_cap = net->term_cap == 0 ? 256 : net->term_cap * 2;
        net->terms = realloc(net->terms, net->term_cap * sizeof(*net->terms));
        assert_non_null(net->terms);
    }
    net->terms[net->term_count++] = (struct net_term){ group, term, at };
}

static inline struct net_row *net_row(struct net *net, unsigned at, struct shoal_job_id job)
{
    struct net_node *node = &net->nodes[at];

    for (size_t i = 0; i < node->row_count; i++)
        if (shoal_job_id_equal(node->rows[i].job, job))
            return &node->rows[i];
    return NULL;
}

static void net_index(struct net *net, unsigned at, const struct shoal_sched_action *action)
{
    struct net_node *node = &net->nodes[at];
    struct net_row *row = net_row(net, at, action->u.index.job);
    struct shoal_job_facts facts = { .state = 0 };

    if (row == NULL && node->row_count == node->row_cap) {
        node->row_cap = node->row_cap == 0 ? 64 : 2 * node->row_cap;
        node->rows = realloc(node->rows, node->row_cap * sizeof(*node->rows));
        assert_non_null(node->rows);
    }
    if (row == NULL)
        row = &node->rows[node->row_count++];
    if (action->u.index.what == SHOAL_SCHED_INDEX_ROW) {
        assert_true(action->u.index.row.len <= SHOAL_SCHED_ROW_BYTES_MAX);
        assert_int_equal(shoal_job_facts_decode(action->u.index.row, &facts), SHOAL_OK);
        assert_true(shoal_job_id_equal(facts.id, action->u.index.job));
    } else {
        assert_int_equal(action->u.index.row.len, 0);
    }
    *row = (struct net_row){ action->u.index.job, action->u.index.what, action->u.index.version, facts.state };
}

static void net_act(struct net *net, unsigned at, const struct shoal_sched_action *action)
{
    struct net_node *node = &net->nodes[at];
    struct net_event *event;

    net_trace_action(net, at, action);
    switch (action->kind) {
    case SHOAL_SCHED_SEND: net_send(net, at, action, NET_FRAME); break;
    case SHOAL_SCHED_SEND_DATAGRAM: net_send(net, at, action, NET_DATAGRAM); break;
    case SHOAL_SCHED_PERSIST: net_persist(net, at, action); break;
    case SHOAL_SCHED_REMOVE_GROUP:
        event = net_event_of(net, NET_REMOVE, at, 0);
        event->at = net_flushed(net, node);
        event->job = action->u.group.group;
        net_push(net, event);
        break;
    case SHOAL_SCHED_LOAD:
        event = net_event_of(net, NET_LOAD, at, 300000);
        event->job = action->u.group.group;
        net_push(net, event);
        break;
    case SHOAL_SCHED_REPLY: net_reply(net, action); break;
    case SHOAL_SCHED_PUBLISH_SUMMARY: net_summary(net, at, action); break;
    case SHOAL_SCHED_PUBLISH_MESH:
        net_keep(&node->mesh_said, action->u.publish.payload);
        net_rumour(net, at, NET_MESH, action->u.publish.payload, (struct shoal_job_id){ { 0 } });
        break;
    case SHOAL_SCHED_KEEP_MESH: net_keep(&node->mesh_copy, action->u.publish.payload); break;
    case SHOAL_SCHED_INDEX: net_index(net, at, action); break;
    case SHOAL_SCHED_BLOB_PUT: node->blobs_put++; break;
    case SHOAL_SCHED_JOB_DELETED:
        node->deleted++;
        net_blobs_drop(node, action->u.group.group);
        break;
    case SHOAL_SCHED_JOB_ARCHIVED:
        if (!action->u.group.keep)
            net_blobs_drop(node, action->u.group.group);
        break;
    case SHOAL_SCHED_ARCHIVE_MAKE:
    case SHOAL_SCHED_ARCHIVE_FETCH: net_archive(net, at, action); break;
    case SHOAL_SCHED_ROLE:
        node->terms_led += action->u.role.leads ? 1 : 0;
        if (action->u.role.leads)
            net_led(net, at, action->u.role.group, action->u.role.term);
        break;
    case SHOAL_SCHED_SAY:
        net_trace(net, "node %u: %s", at, action->u.fatal.text);
        node->said++;
        break;
    case SHOAL_SCHED_FATAL: fail_msg("node %u: fatal: %s", at, action->u.fatal.text); break;
    case SHOAL_SCHED_PUBLISH_SLOTS: net_publish_slots(net, at, action->u.publish.payload); break;
    case SHOAL_SCHED_KEEP_SLOTS: break;
    case SHOAL_SCHED_ORDER: net_on_order(net, at, &action->u.order); break;
    }
}

static uint64_t net_wall_ms(const struct net *net, unsigned at)
{
    return (uint64_t)(1700000000000ll + (int64_t)(net->now / NET_MS) + net->nodes[at].wall_ms);
}

static void net_step(struct net *net, unsigned at, const struct shoal_sched_event *event)
{
    struct shoal_sched_event copy = *event;
    enum shoal_err err;

    copy.wall_ms = net_wall_ms(net, at);
    err = NET_SCHED_STEP(net->nodes[at].sched, &copy, net->now, net->actions);
    net->steps++;
    if ((event->kind == SHOAL_SCHED_FRAME && net->damage_per_mille == 0) || event->kind == SHOAL_SCHED_RESTORE)
        assert_int_equal(err, SHOAL_OK);
    for (uint32_t i = 0; i < net->actions->count; i++)
        net_act(net, at, &net->actions->list[i]);
}

/* ---- Nodes ---- */

static void net_tell_node(struct net *net, unsigned to, unsigned of, enum shoal_sched_node_state state)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_NODE };
    const struct net_node *node = &net->nodes[of];

    event.u.node.id = node->id;
    event.u.node.store = node->store;
    event.u.node.state = state;
    event.u.node.incarnation = node->incarnation;
    event.u.node.slots = node->slots;
    event.u.node.slots_free = node->slots_free;
    event.u.node.record_seq = node->slots_version;
    event.u.node.slot_stamp = node->slots_stamp;
    event.u.node.cpus = node->untold ? 0 : 4;
    event.u.node.rules = node->previous || node->untold ? 0 : SHOAL_SCHED_RULES;
    event.u.node.job_workers = node->previous || node->untold ? 0 : SHOAL_JOB_WORKERS_MAX;
    event.u.node.draining = node->draining;
    memcpy(event.u.node.domain, node->domain, sizeof(node->domain));
    if (net->nodes[to].up)
        net_step(net, to, &event);
}

static void net_tell_all(struct net *net, unsigned of, enum shoal_sched_node_state state)
{
    for (unsigned i = 0; i < net->count; i++) {
        if (net->nodes[i].up && net->nodes[i].member)
            net_tell_node(net, i, of, state);
    }
}

/* Of one that is parked the shell reads the hard state alone, unless it is asked for it. */
static void net_restore_group(struct net *net, unsigned at, const struct disk_group *g)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_RESTORE };

    event.u.restore.group = g->id;
    event.u.restore.has_hard = g->has_hard;
    event.u.restore.hard = g->hard;
    event.u.restore.hard.config = shoal_view_of(g->hard_config, g->hard.config.len);
    if (net->nodes[at].restored || !g->has_hard || !shoal_sched_is_parked(event.u.restore.hard.config)) {
        event.u.restore.has_snapshot = g->has_snapshot;
        event.u.restore.snapshot = g->snapshot;
        event.u.restore.entries = g->entries;
        event.u.restore.entry_count = g->entry_count;
    }
    net_step(net, at, &event);
}

static void net_restore(struct net *net, unsigned at)
{
    struct net_node *node = &net->nodes[at];
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_MESH_COPY };

    if (node->mesh_copy.len > 0) {
        event.u.mesh_copy.bytes = shoal_buf_view(&node->mesh_copy);
        net_step(net, at, &event);
    }
    for (size_t i = 0; i < node->disk_count; i++) {
        struct disk_group *g = &node->disk[i];

        if (g->used)
            net_restore_group(net, at, g);
    }
    memset(&event, 0, sizeof(event));
    event.kind = SHOAL_SCHED_RESTORED;
    net_step(net, at, &event);
}

static void net_start(struct net *net, unsigned at)
{
    struct net_node *node = &net->nodes[at];
    net_trace(net, "node %u starts", at);
    struct shoal_sched_options options = {
        .self = node->id,
        .store = node->store,
        .env = { .arg = node,
                 .hash = net_hash,
                 .sign = net_sign,
                 .verify = net_verify,
                 .node_of_key = net_node_of_key,
                 .who = net_who },
        .start_ns = net->now,
        .slots = node->slots,
        .grow_ns = net->grow_ns,
        .replace_ns = net->replace_ns,
        .archive_ns = net->archive_ns,
        .groups_max = net->groups_max,
        .loaded_max = net->loaded_max,
        .archive_warm_max = net->archive_warm_max,
        .archive_early_max = net->archive_early_max,
        .gone_max = net->gone_max,
    };

    node->incarnation.host_epoch = 1;
    node->incarnation.agent++;
    node->life++;
    node->row_count = 0;
    node->flush_end_ns = net->now;
    node->next_end_ns = net->now;
    for (unsigned i = 0; i < net->count && net->dead_are_untold; i++)
        if (i != at && net->nodes[i].member)
            options.peers[options.peer_count++] = net->nodes[i].id;
    options.incarnation = node->incarnation;
    memcpy(options.public_key, node->key, sizeof(options.public_key));
    memcpy(options.domain, node->domain, sizeof(node->domain));
    shoal_rand_init(&options.chance, shoal_rand_u64(&net->chance));
    assert_int_equal(shoal_sched_create(&node->sched, &options), SHOAL_OK);
    node->up = true;
    node->restored = false;
    net_restore(net, at);
    node->restored = true;
    for (unsigned i = 0; i < net->count && node->member; i++) {
        if (net->nodes[i].member && (net->nodes[i].up || !net->dead_are_untold))
            net_tell_node(net, at, i, net->nodes[i].up ? SHOAL_SCHED_NODE_ALIVE : SHOAL_SCHED_NODE_DEAD);
    }
    if (node->member) {
        net_tell_all(net, at, SHOAL_SCHED_NODE_ALIVE);
        for (unsigned i = 0; i < net->count; i++) {
            struct net_event *event;

            if (i == at || !net->nodes[i].up || net->nodes[i].mesh_said.len == 0)
                continue;
            event = net_event_of(net, NET_MESH, at, 100 * NET_MS);
            event->from = i;
            net_bytes(event, shoal_buf_view(&net->nodes[i].mesh_said));
            net_push(net, event);
        }
        for (size_t i = 0; i < net->summary_count; i++) {
            struct net_event *event = net_event_of(net, NET_SUMMARY, at, 100 * NET_MS);

            event->job = net->summaries[i].job;
            net_bytes(event, shoal_view_of(net->summaries[i].bytes, net->summaries[i].len));
            net_push(net, event);
        }
    }
}

/* Power off: what was not flushed is lost, what is on the wire is dropped. Gossip says so after 2 s. */
static inline void net_crash(struct net *net, unsigned at)
{
    struct net_node *node = &net->nodes[at];

    net_trace(net, "node %u crashes", at);
    node->up = false;
    node->life++;
    for (size_t i = 0; i < net->worker_count; i++)
        net->workers[i].ended = net->workers[i].ended || net->workers[i].node == at;
    shoal_sched_destroy(node->sched);
    node->sched = NULL;
    for (unsigned i = 0; i < net->count; i++) {
        struct net_event *event;

        if (i == at || !net->nodes[i].up)
            continue;
        event = net_event_of(net, NET_STATE, i, 2 * NET_S);
        event->from = at;
        event->state = SHOAL_SCHED_NODE_DEAD;
        net_push(net, event);
    }
}

/* The node becomes known to all members, and they to it. */
static inline void net_join(struct net *net, unsigned at)
{
    net->nodes[at].member = true;
    for (unsigned i = 0; i < net->count; i++) {
        if (net->nodes[i].member)
            net_tell_node(net, at, i, net->nodes[i].up ? SHOAL_SCHED_NODE_ALIVE : SHOAL_SCHED_NODE_DEAD);
    }
    net_tell_all(net, at, SHOAL_SCHED_NODE_ALIVE);
    for (unsigned i = 0; i < net->count; i++) {
        if (i != at && net->nodes[i].mesh_said.len > 0) {
            struct net_event *event = net_event_of(net, NET_MESH, at, 50 * NET_MS);

            event->from = i;
            net_bytes(event, shoal_buf_view(&net->nodes[i].mesh_said));
            net_push(net, event);
        }
    }
}

static struct net *net_create_with(uint64_t seed, unsigned count, bool joined, uint32_t slots)
{
    struct net *net = calloc(1, sizeof(*net));

    assert_non_null(net);
    net->seed = seed;
    shoal_rand_init(&net->chance, seed);
    shoal_rand_init(&net->news_chance, seed ^ 0x6e657773);
    net->now = 1000 * NET_S;
    net->count = count;
    net->delay_ns = 200000;
    net->delay_jitter_ns = 300000;
    net->grow_ns = 0;
    net->work_ns = 400 * NET_MS;
    net->actions = malloc(sizeof(*net->actions));
    net->replies = calloc(NET_REPLIES_MAX, sizeof(*net->replies));
    assert_non_null(net->actions);
    assert_non_null(net->replies);
    for (unsigned i = 0; i < count; i++) {
        struct net_node *node = &net->nodes[i];

        memset(node->key, (int)(i + 1), sizeof(node->key));
        node->id = net_node_of_key(NULL, node->key);
        memset(node->store.bytes, (int)(i + 101), sizeof(node->store.bytes));
        (void)snprintf(node->domain, sizeof(node->domain), "d%u", i);
        node->flush_ns = NET_MS;
        node->member = joined;
        node->slots = slots;
        node->slots_free = ((uint64_t)1 << slots) - 1;
    }
    for (unsigned i = 0; i < count; i++)
        net_start(net, i);
    return net;
}

static inline struct net *net_create(uint64_t seed, unsigned count, bool joined)
{
    return net_create_with(seed, count, joined, 0);
}

static void net_destroy(struct net *net)
{
    while (net->queue_count > 0)
        net_event_free(net_pop(net));
    for (unsigned i = 0; i < net->count; i++) {
        struct net_node *node = &net->nodes[i];

        shoal_sched_destroy(node->sched);
        for (size_t g = 0; g < node->disk_count; g++)
            disk_clear(&node->disk[g]);
        free(node->disk);
        free(node->rows);
        shoal_buf_deinit(&node->mesh_copy);
        shoal_buf_deinit(&node->mesh_said);
    }
    for (size_t i = 0; i < net->reply_count; i++) {
        shoal_buf_deinit(&net->replies[i].ticket);
        shoal_buf_deinit(&net->replies[i].bytes);
    }
    free(net->replies);
    free(net->summaries);
    free(net->terms);
    free(net->queue);
    free(net->actions);
    free(net);
}

/* ---- Running ---- */

static void net_deliver_write(struct net *net, struct net_event *event)
{
    struct shoal_sched_event stored = { .kind = SHOAL_SCHED_STORED };
    struct net_node *node = &net->nodes[event->to];

    if (event->kind == NET_REMOVE) {
        struct disk_group *g = disk_find(node, event->job, false);

        if (g != NULL)
            disk_clear(g);
        return;
    }
    disk_write(node, event);
    if (event->mark.seq == 0)
        return;
    stored.u.stored.group = event->job;
    stored.u.stored.mark = event->mark;
    net_step(net, event->to, &stored);
}

static void net_deliver(struct net *net, struct net_event *event)
{
    struct shoal_sched_event out = { .kind = SHOAL_SCHED_FRAME };
    const struct shoal_view bytes = shoal_view_of(event->bytes, event->len);

    if (event->life != net->nodes[event->to].life || !net->nodes[event->to].up)
        return;
    switch (event->kind) {
    case NET_FRAME:
    case NET_DATAGRAM:
        if (net->cut[event->from][event->to] || (event->kind == NET_FRAME && net->links_cut[event->from][event->to]))
            return;
        out.kind = event->kind == NET_FRAME ? SHOAL_SCHED_FRAME : SHOAL_SCHED_DATAGRAM;
        out.u.frame.from = net->nodes[event->from].id;
        out.u.frame.bytes = bytes;
        break;
    case NET_LOAD: net_restore_group(net, event->to, disk_find(&net->nodes[event->to], event->job, true)); return;
    case NET_WRITE:
    case NET_REMOVE: net_deliver_write(net, event); return;
    case NET_SUMMARY:
        out.kind = SHOAL_SCHED_SUMMARY;
        out.u.summary.job = event->job;
        for (size_t i = 0; i < net->summary_count; i++) { /* gossip never goes back to an older version */
            if (!shoal_job_id_equal(net->summaries[i].job, event->job))
                continue;
            out.u.summary.payload = shoal_view_of(net->summaries[i].bytes, net->summaries[i].len);
            out.u.summary.version = net->summaries[i].version;
            out.u.summary.archived = net->summaries[i].archived;
        }
        break;
    case NET_MESH:
        out.kind = SHOAL_SCHED_MESH_HEARD;
        out.u.mesh_heard.author = net->nodes[event->from].id;
        out.u.mesh_heard.payload = bytes;
        break;
    case NET_STATE:
        if (net->nodes[event->from].up == (event->state == SHOAL_SCHED_NODE_ALIVE))
            net_tell_node(net, event->to, event->from, (enum shoal_sched_node_state)event->state);
        return;
    case NET_HOST:
        if (event->host.kind == SHOAL_SCHED_HOST && event->host.u.host.kind == SHOAL_HOST_ON_EXITED)
            net_worker_find(net, event->host.u.host.u.exited.worker_id)->ended = true;
        if ((event->host.kind == SHOAL_SCHED_ARCHIVE_MADE || event->host.kind == SHOAL_SCHED_ARCHIVE_FETCHED) &&
            event->host.u.archive.ok)
            net_blobs_add(&net->nodes[event->to], event->host.u.archive.job); /* all of them are here now */
        net_step(net, event->to, &event->host);
        return;
    case NET_BLOB:
        out.kind = SHOAL_SCHED_HOST;
        out.u.host.kind = SHOAL_HOST_ON_BLOB;
        out.u.host.u.blob.hash = event->hash;
        out.u.host.u.blob.ok = event->state == 0;
        (void)snprintf(out.u.host.u.blob.text, sizeof(out.u.host.u.blob.text), "%s",
                       event->state == 0 ? "" : "nobody has it");
        break;
    }
    net_step(net, event->to, &out);
}

static void net_run_until(struct net *net, uint64_t until)
{
    const struct shoal_sched_event timer = { .kind = SHOAL_SCHED_TIMER };

    for (;;) {
        uint64_t next = net->queue_count > 0 ? net->queue[0]->at : UINT64_MAX;
        unsigned who = NET_NODES_MAX;

        for (unsigned i = 0; i < net->count; i++) {
            uint64_t at = net->nodes[i].up ? shoal_sched_deadline_ns(net->nodes[i].sched) : UINT64_MAX;

            at = at < net->late_ns[i] ? net->late_ns[i] : at;
            if (at < next) {
                next = at;
                who = i;
            }
        }
        if (next > until)
            break;
        if (next > net->now)
            net->now = next;
        if (who < NET_NODES_MAX) {
            net_step(net, who, &timer);
        } else {
            struct net_event *event = net_pop(net);

            if (event->at < net->late_ns[event->to]) {
                event->at = net->late_ns[event->to];
                net_push(net, event);
                continue;
            }
            net_deliver(net, event);
            net_event_free(event);
        }
    }
    if (until > net->now)
        net->now = until;
}

static void net_run(struct net *net, uint64_t ns) { net_run_until(net, net->now + ns); }

/* ---- Requests ---- */

static uint64_t net_request(struct net *net, unsigned at, struct shoal_sched_request *request)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_REQUEST };
    uint64_t id = ++net->request;

    assert_true(net->reply_count < NET_REPLIES_MAX);
    net->replies[net->reply_count++].id = id;
    request->id = id;
    if (request->token.len == 0)
        request->token = shoal_view_text("admin");
    event.u.request = *request;
    net_step(net, at, &event);
    return id;
}

/* Runs until the reply is there (or `ns` have passed: fails). */
static struct net_reply *net_wait(struct net *net, uint64_t id, uint64_t ns)
{
    uint64_t end = net->now + ns;
    struct net_reply *reply = net_reply_find(net, id);

    while (reply->count == 0 && net->now < end)
        net_run(net, 5 * NET_MS);
    if (reply->count == 0)
        fail_msg("seed %llu: no reply to request %llu", (unsigned long long)net->seed, (unsigned long long)id);
    return reply;
}

static struct shoal_hash net_spec_hash(unsigned number)
{
    struct shoal_hash hash = { { 0 } };

    hash.bytes[0] = (uint8_t)number;
    hash.bytes[1] = (uint8_t)(number >> 8);
    hash.bytes[2] = 77;
    return hash;
}

/* Numbers from 1000 on: scripts of two workers, which run and end by themselves; from 3000 on they want GPUs. */
static size_t net_spec_at(unsigned number, uint64_t submit_ms, uint8_t *bytes, size_t cap)
{
    struct shoal_job_spec spec = { .elastic = true, .workers_min = 1, .workers_max = 4, .devices_per_worker = 1 };
    size_t len;

    if (number >= 1000) {
        spec.elastic = false;
        spec.user_cmd = true;
        spec.workers_min = spec.workers_max = 2;
        spec.device = number >= 3000 ? SHOAL_JOB_DEVICE_GPU : SHOAL_JOB_DEVICE_AUTO;
        spec.argv = (struct shoal_job_texts){ 1, { (const uint8_t *)"true", 5 } };
    }

    (void)snprintf(spec.framework, sizeof(spec.framework), "edtPyTorch");
    (void)snprintf(spec.creator, sizeof(spec.creator), "ann");
    (void)snprintf(spec.submit_user, sizeof(spec.submit_user), "ann");
    (void)snprintf(spec.app_name, sizeof(spec.app_name), "job %u", number);
    (void)snprintf(spec.main_file, sizeof(spec.main_file), "main.py");
    (void)snprintf(spec.model_dir, sizeof(spec.model_dir), "model");
    spec.submit_ms = submit_ms;
    spec.args = shoal_view_text("--model-main main.py");
    assert_int_equal(shoal_job_spec_encode(&spec, bytes, cap, &len), SHOAL_OK);
    return len;
}

static inline size_t net_spec(unsigned number, uint8_t *bytes, size_t cap)
{
    return net_spec_at(number, 1, bytes, cap);
}

static inline uint64_t net_submit(struct net *net, unsigned at, unsigned number, struct shoal_view ticket)
{
    static uint8_t spec[SHOAL_JOB_SPEC_BYTES_MAX];
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_SUBMIT,
                                           .spec_hash = net_spec_hash(number),
                                           .ticket = ticket };

    request.spec = shoal_view_of(spec, net_spec_at(number, net_wall_ms(net, at), spec, sizeof(spec)));
    request.bundle = shoal_view_text("the bundle");
    request.bundle_hash = net_spec_hash(number);
    request.bundle_hash.bytes[9] = 1;
    return net_request(net, at, &request);
}

static inline uint64_t net_ask(struct net *net, unsigned at, enum shoal_sched_request_kind kind,
                               struct shoal_job_id job, bool linearizable)
{
    struct shoal_sched_request request = { .kind = kind, .job = job, .linearizable = linearizable };

    (void)snprintf(request.by, sizeof(request.by), "ann");
    return net_request(net, at, &request);
}

static inline uint64_t net_mesh(struct net *net, unsigned at, enum shoal_sched_request_kind kind,
                                struct shoal_mesh_command *command)
{
    uint8_t bytes[SHOAL_MESH_COMMAND_BYTES_MAX];
    struct shoal_sched_request request = { .kind = kind };
    size_t len = 0;

    if (command != NULL)
        assert_int_equal(shoal_mesh_command_encode(command, bytes, sizeof(bytes), &len), SHOAL_OK);
    request.command = shoal_view_of(bytes, len);
    return net_request(net, at, &request);
}

/* The node that leads the group, or NET_NODES_MAX; in the highest term if several believe so. */
static inline unsigned net_leader(struct net *net, struct shoal_job_id job)
{
    unsigned leader = NET_NODES_MAX;
    uint64_t term = 0;

    for (unsigned i = 0; i < net->count; i++) {
        struct shoal_sched_group_status status;

        if (net->nodes[i].up && shoal_sched_group_find(net->nodes[i].sched, job, &status) && status.leads &&
            status.term > term) {
            term = status.term;
            leader = i;
        }
    }
    return leader;
}

/* Prints what every node holds of a group, for a failure's report. */
static inline void net_print_group(struct net *net, struct shoal_job_id job)
{
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    shoal_job_id_text(job, text);
    print_message("  group %s\n", text);
    for (unsigned i = 0; i < net->count; i++) {
        struct shoal_sched_group_status g;

        if (!net->nodes[i].up || !shoal_sched_group_find(net->nodes[i].sched, job, &g)) {
            print_message("  node %u: %s\n", i, net->nodes[i].up ? "nothing" : "down");
            continue;
        }
        print_message("  node %u: term %llu commit %llu applied %llu last %llu%s%s%s, leader %u, voters", i,
                      (unsigned long long)g.term, (unsigned long long)g.commit, (unsigned long long)g.applied,
                      (unsigned long long)g.last, g.leads ? ", leads" : "", g.stopped ? ", stopped" : "",
                      g.founded ? "" : ", not founded", net_find(net, g.leader));
        for (unsigned v = 0; v < g.voters; v++)
            print_message(" %u", net_find(net, g.guardians[v]));
        print_message(", learners %u\n", g.learners);
    }
}

#endif
