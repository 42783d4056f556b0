/* A tiny network for gossip's tests: a few cores, datagrams in flight, virtual time, links that can be cut. Keys are
 * toys: a signature is a hash of the key and the bytes, so a wrong key or a changed byte is noticed. */
#ifndef GOSSIP_NET_H
#define GOSSIP_NET_H

#include "shoal/gossip.h"
#include "shoal/rand.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef NET_SWIM_STEP
#define NET_SWIM_STEP shoal_swim_step /* a test may look at each step */
#endif
#define NET_NODES_MAX 64
#define NET_FLIGHT_MAX 8192

struct net;

struct net_node {
    struct net *net;
    char name[16];
    struct shoal_swim_options options;
    struct shoal_swim *swim;
    bool up, paused;
    uint64_t expelled; /* bit i: node i was removed from the mesh, as this one knows */
};

struct net_datagram {
    uint64_t due_ns, order;
    int from; /* place */
    struct shoal_address source, address;
    struct shoal_node_id to;
    size_t len;
    uint8_t bytes[SHOAL_DATAGRAM_PAYLOAD_MAX];
};

struct net {
    struct shoal_gossip_pool *pool;
    struct net_node nodes[NET_NODES_MAX];
    int count;
    bool cut[NET_NODES_MAX][NET_NODES_MAX];
    struct net_datagram *flight;
    size_t flight_count;
    uint64_t now_ns, order, latency_ns, sent, sent_bytes;
    unsigned loss_percent, unchecked;
    struct shoal_rand chance;
    struct shoal_swim_actions actions;
    /* Every action that is no send. */
    void (*on_action)(struct net *net, struct net_node *node, const struct shoal_swim_action *action);
    /* False: drop it; may change it. NULL: none. */
    bool (*on_datagram)(struct net *net, struct net_datagram *datagram);
    void *arg;
};

static inline uint64_t net_mix(const uint8_t *bytes, size_t len, uint64_t h)
{
    for (size_t i = 0; i < len; i++)
        h = (h ^ bytes[i]) * 0x100000001b3u;
    return h ^ h >> 31;
}

static inline struct shoal_signature net_signature(const struct shoal_public_key *key, struct shoal_view view)
{
    struct shoal_signature signature;
    uint64_t h = net_mix(view.bytes, view.len, net_mix(key->bytes, sizeof(key->bytes), 0xcbf29ce484222325u));

    for (size_t i = 0; i < sizeof(signature.bytes); i++)
        signature.bytes[i] = (uint8_t)(shoal_splitmix64(&h) >> 8);
    return signature;
}

/* `arg` is the signer's options. */
static inline struct shoal_signature net_sign(void *arg, struct shoal_view view)
{
    const struct net_node *node = arg;

    return net_signature(&node->options.public_key, view);
}

static inline bool net_verify(void *arg, const struct shoal_public_key *key, struct shoal_view view,
                              const struct shoal_signature *signature)
{
    struct shoal_signature good = net_signature(key, view);

    (void)arg;
    return memcmp(good.bytes, signature->bytes, sizeof(good.bytes)) == 0;
}

static inline struct shoal_node_id net_node_id(void *arg, const struct shoal_public_key *key)
{
    struct shoal_node_id id;
    uint64_t h = net_mix(key->bytes, sizeof(key->bytes), 7);

    (void)arg;
    for (size_t i = 0; i < sizeof(id.bytes); i++)
        id.bytes[i] = (uint8_t)(shoal_splitmix64(&h) >> 8);
    return id;
}

static inline bool net_admits(void *arg, struct shoal_node_id id);

static inline void net_init(struct net *net, uint64_t seed)
{
    memset(net, 0, sizeof(*net));
    net->pool = shoal_gossip_pool_create(8u << 20);
    net->flight = calloc(NET_FLIGHT_MAX, sizeof(*net->flight));
    SHOAL_ASSERT(net->pool != NULL && net->flight != NULL);
    net->latency_ns = 5 * SHOAL_MS;
    net->now_ns = SHOAL_S;
    shoal_rand_init(&net->chance, seed);
}

static inline void net_deinit(struct net *net)
{
    for (int i = 0; i < net->count; i++)
        shoal_swim_destroy(net->nodes[i].swim);
    shoal_gossip_pool_destroy(net->pool);
    free(net->flight);
}

static inline struct net_node *net_find(struct net *net, const char *name)
{
    for (int i = 0; i < net->count; i++)
        if (strcmp(net->nodes[i].name, name) == 0)
            return &net->nodes[i];
    return NULL;
}

static inline const char *net_name_of(struct net *net, struct shoal_node_id id)
{
    for (int i = 0; i < net->count; i++)
        if (shoal_node_id_equal(net->nodes[i].options.id, id))
            return net->nodes[i].name;
    return "somebody";
}

static inline void net_start(struct net_node *node)
{
    struct shoal_msg msg;
    enum shoal_err err = shoal_swim_create(&node->swim, &node->options, &msg);

    if (err != SHOAL_OK) {
        (void)fprintf(stderr, "%s\n", msg.text);
        abort();
    }
    node->up = true;
}

/* Named, with a key, a store and an address of its own; not started. */
static inline struct net_node *net_add(struct net *net, const char *name)
{
    int place = net->count++;
    struct net_node *node = &net->nodes[place];
    struct shoal_swim_options *options = &node->options;

    SHOAL_ASSERT(place < NET_NODES_MAX);
    node->net = net;
    (void)snprintf(node->name, sizeof(node->name), "%s", name);
    memset(options->public_key.bytes, place + 1, sizeof(options->public_key.bytes));
    memset(options->store.bytes, place + 101, sizeof(options->store.bytes));
    options->id = net_node_id(NULL, &options->public_key);
    options->host_epoch = 1;
    options->agent = 1;
    options->address.ip[15] = (uint8_t)(place + 1);
    options->address.port = 7000;
    options->link_port = 7001;
    options->http_port = 7002;
    (void)snprintf(options->name, sizeof(options->name), "%s", name);
    options->env =
        (struct shoal_swim_env){ .arg = node, .sign = net_sign, .verify = net_verify, .node_id = net_node_id };
    options->env.admits = net_admits;
    options->pool = net->pool;
    options->seed = shoal_rand_u64(&net->chance);
    options->members_max = 256;
    options->records_max = 1024;
    return node;
}

static inline void net_post(struct net *net, struct net_node *from, const struct shoal_swim_action *action)
{
    struct net_datagram *d = &net->flight[net->flight_count];

    SHOAL_ASSERT(net->flight_count < NET_FLIGHT_MAX);
    SHOAL_ASSERT(action->send.bytes.len <= SHOAL_DATAGRAM_PAYLOAD_MAX);
    *d = (struct net_datagram){ .due_ns = net->now_ns + net->latency_ns,
                                .order = net->order++,
                                .from = (int)(from - net->nodes),
                                .source = from->options.address,
                                .address = action->send.address,
                                .to = action->send.to,
                                .len = action->send.bytes.len };
    memcpy(d->bytes, action->send.bytes.bytes, d->len);
    net->sent++;
    net->sent_bytes += d->len;
    if (net->loss_percent > 0 && shoal_rand_below(&net->chance, 100) < net->loss_percent)
        return;
    if (net->on_datagram == NULL || net->on_datagram(net, d))
        net->flight_count++;
}

static inline enum shoal_err net_step(struct net_node *node, const struct shoal_swim_event *event)
{
    struct net *net = node->net;
    enum shoal_err err = NET_SWIM_STEP(node->swim, event, net->now_ns, &net->actions);

    /* It looks at all that is held: the larger the tables, the less often. */
    if (++net->unchecked > (shoal_records_count(node->swim) + shoal_swim_live_count(node->swim)) / 8) {
        net->unchecked = 0;
        shoal_swim_check(node->swim);
    }
    for (size_t i = 0; i < net->actions.count; i++) {
        const struct shoal_swim_action *action = &net->actions.items[i];

        if (action->kind == SHOAL_SWIM_SEND)
            net_post(net, node, action);
        else if (net->on_action != NULL)
            net->on_action(net, node, action);
    }
    return err;
}

static inline void net_join(struct net_node *node, const struct net_node *seed)
{
    struct shoal_swim_event event = { .kind = SHOAL_SWIM_JOIN, .join = { &seed->options.address, 1 } };

    (void)net_step(node, &event);
}

/* `arg` is who asks. */
static inline bool net_admits(void *arg, struct shoal_node_id id)
{
    const struct net_node *node = arg;

    for (int i = 0; i < node->net->count; i++)
        if (node->expelled >> i & 1 && shoal_node_id_equal(node->net->nodes[i].options.id, id))
            return false;
    return true;
}

/* As the owner of a core is told that `gone` was removed from the mesh. */
static inline void net_expel(struct net_node *node, struct net_node *gone)
{
    struct shoal_swim_event event = { .kind = SHOAL_SWIM_EXPEL, .peer = gone->options.id };

    node->expelled |= 1ull << (gone - node->net->nodes);
    (void)net_step(node, &event);
}

/* To whoever listens there and, where the sender named one, is that one (the seal would not open otherwise), unless the
 * name is wrong on purpose: a datagram for another id is delivered, since the core itself must notice. */
static inline void net_deliver(struct net *net, const struct net_datagram *d)
{
    for (int i = 0; i < net->count; i++) {
        struct net_node *node = &net->nodes[i];
        struct shoal_swim_event event = { .kind = SHOAL_SWIM_DATAGRAM };

        if (!node->up || node->paused || net->cut[d->from][i] || node->expelled >> d->from & 1 ||
            !shoal_address_equal(node->options.address, d->address))
            continue;
        event.datagram.from = net->nodes[d->from].options.id;
        event.datagram.address = d->source;
        event.datagram.bytes = shoal_view_of(d->bytes, d->len);
        (void)net_step(node, &event);
        return;
    }
}

/* The next thing that happens at or before `until_ns`; false: nothing. */
static inline bool net_next(struct net *net, uint64_t until_ns)
{
    uint64_t best_ns = UINT64_MAX, best_order = UINT64_MAX;
    size_t datagram = SIZE_MAX;
    int timer = -1;

    for (size_t i = 0; i < net->flight_count; i++) {
        const struct net_datagram *d = &net->flight[i];

        if (d->due_ns < best_ns || (d->due_ns == best_ns && d->order < best_order)) {
            best_ns = d->due_ns;
            best_order = d->order;
            datagram = i;
        }
    }
    for (int i = 0; i < net->count; i++) {
        uint64_t at_ns;

        if (!net->nodes[i].up || net->nodes[i].paused)
            continue;
        at_ns = shoal_swim_deadline_ns(net->nodes[i].swim);
        if (at_ns < net->now_ns)
            at_ns = net->now_ns;
        if (at_ns < best_ns) {
            best_ns = at_ns;
            timer = i;
        }
    }
    if (best_ns > until_ns)
        return false;
    net->now_ns = best_ns;
    if (timer >= 0) {
        (void)net_step(&net->nodes[timer], &(struct shoal_swim_event){ .kind = SHOAL_SWIM_TIMER });
    } else {
        struct net_datagram d = net->flight[datagram];

        net->flight[datagram] = net->flight[--net->flight_count];
        net_deliver(net, &d);
    }
    return true;
}

static inline void net_run(struct net *net, uint64_t ns)
{
    uint64_t until_ns = net->now_ns + ns;
    unsigned long turns = 0;

    while (net_next(net, until_ns))
        SHOAL_ASSERT(++turns < 5000000); /* a core that spins at one moment */
    net->now_ns = until_ns;
}

static inline enum shoal_member_state net_state(struct net_node *of, const struct net_node *about)
{
    struct shoal_member member;

    return shoal_swim_member_find(of->swim, about->options.id, &member) ? member.state : SHOAL_MEMBER_NONE;
}

/* `count` more nodes named n0, n1, ..., all joined through the first and in step. */
static inline void net_mesh(struct net *net, int count)
{
    for (int i = 0; i < count; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "n%d", i);
        net_start(net_add(net, name));
        if (i > 0)
            net_join(&net->nodes[i], &net->nodes[0]);
    }
    net_run(net, 15 * SHOAL_S);
}

/* ---- statements written by hand, after the byte tables of gossip/swim_wire.h ------------------------------------- */

struct craft {
    uint8_t bytes[SHOAL_DATAGRAM_PAYLOAD_MAX];
    struct shoal_writer w;
};

enum craft_message {
    CRAFT_PING = 1,
    CRAFT_ACK,
    CRAFT_NACK,
    CRAFT_ASK,
    CRAFT_NOT_ME,
    CRAFT_GOSSIP,
    CRAFT_ROOT,
    CRAFT_ITEMS = 11
};
#define CRAFT_BODY 8 /* where a datagram's body begins */
enum craft_verdict { CRAFT_SUSPECT, CRAFT_DEAD, CRAFT_GONE };

static inline void craft_begin(struct craft *c, enum craft_message message)
{
    c->w = shoal_writer_init(c->bytes, sizeof(c->bytes));
    shoal_put_raw(&c->w, "\x47\x01\x01", 3);
    shoal_put_u8(&c->w, (uint8_t)message);
    shoal_put_u8(&c->w, 0);
    shoal_put_u8(&c->w, 0);
    shoal_put_u16(&c->w, 0);
}

/* Append a signed statement with its length and age. `spoil`: a wrong signature. */
static inline void craft_statement(struct craft *c, struct shoal_writer *statement, uint16_t age_s,
                                   const struct shoal_public_key *key, bool spoil)
{
    struct shoal_signature signature = net_signature(key, shoal_writer_view(statement));

    if (spoil)
        signature.bytes[5] ^= 1;
    shoal_put_raw(statement, signature.bytes, sizeof(signature.bytes));
    SHOAL_ASSERT(!statement->failed);
    shoal_put_u16(&c->w, (uint16_t)statement->len);
    shoal_put_u16(&c->w, age_s);
    shoal_put_raw(&c->w, statement->bytes, statement->len);
}

struct craft_card {
    struct shoal_incarnation incarnation;
    bool leaving, spoil, foreign_id;
    uint16_t age_s; /* 0: it lives (0xffff on the wire) */
};

static inline void craft_card(struct craft *c, const struct net_node *of, const struct craft_card *card)
{
    uint8_t bytes[400];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    struct shoal_node_id id = of->options.id;

    if (card->foreign_id)
        id.bytes[0] ^= 1;
    shoal_put_raw(&w, "\x01\x01\x01", 3);
    shoal_put_bool(&w, card->leaving);
    shoal_put_node_id(&w, id);
    shoal_put_incarnation(&w, card->incarnation);
    shoal_put_raw(&w, of->options.public_key.bytes, 32);
    shoal_put_store_id(&w, of->options.store);
    shoal_put_address(&w, of->options.address);
    shoal_put_u16(&w, of->options.link_port);
    shoal_put_u16(&w, of->options.http_port);
    shoal_put_u8(&w, (uint8_t)strlen(of->options.name));
    shoal_put_raw(&w, of->options.name, strlen(of->options.name));
    craft_statement(c, &w, card->age_s == 0 ? 0xffff : card->age_s, &of->options.public_key, card->spoil);
}

static inline void craft_accuse(struct craft *c, enum craft_verdict verdict, const struct net_node *target,
                                struct shoal_incarnation incarnation, const struct net_node *by, bool spoil)
{
    uint8_t bytes[200];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));

    shoal_put_raw(&w, "\x02\x01\x01", 3);
    shoal_put_u8(&w, (uint8_t)verdict);
    shoal_put_node_id(&w, target->options.id);
    shoal_put_incarnation(&w, incarnation);
    shoal_put_node_id(&w, by->options.id);
    craft_statement(c, &w, 0xffff, &by->options.public_key, spoil);
}

struct craft_record {
    enum shoal_record_kind kind;
    uint64_t version;
    const char *payload; /* NULL: a tombstone */
    uint16_t age_s;      /* of a tombstone */
    bool spoil, foreign_key;
    uint8_t key;
};

static inline void craft_record(struct craft *c, const struct net_node *by, const struct craft_record *record)
{
    uint8_t bytes[SHOAL_DATAGRAM_PAYLOAD_MAX];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    struct shoal_record_key key = { { record->key } };
    size_t len = record->payload == NULL ? 0 : strlen(record->payload);
    struct shoal_public_key signer = by->options.public_key;

    if (record->foreign_key)
        signer.bytes[3] ^= 1;
    shoal_put_raw(&w, "\x03\x01\x01", 3);
    shoal_put_u8(&w, (uint8_t)record->kind);
    shoal_put_u8(&w, record->payload == NULL ? 1 : 0);
    shoal_put_node_id(&w, by->options.id);
    shoal_put_raw(&w, key.bytes, 16);
    shoal_put_u64(&w, 0);
    shoal_put_u64(&w, 0);
    shoal_put_u64(&w, record->version);
    if (shoal_record_is_shared(record->kind))
        shoal_put_raw(&w, signer.bytes, 32);
    shoal_put_u16(&w, (uint16_t)len);
    shoal_put_raw(&w, record->payload, len);
    craft_statement(c, &w, record->payload == NULL ? record->age_s : 0xffff, &signer, record->spoil);
}

/* Hand the datagram to `to` as if `from` had sent it. */
static inline enum shoal_err craft_deliver(struct craft *c, struct net_node *to, const struct net_node *from)
{
    struct shoal_swim_event event = { .kind = SHOAL_SWIM_DATAGRAM };

    SHOAL_ASSERT(!c->w.failed);
    event.datagram.from = from->options.id;
    event.datagram.address = from->options.address;
    event.datagram.bytes = shoal_writer_view(&c->w);
    return net_step(to, &event);
}

/* Time goes on for `node` alone, whose every ping is answered by the one it names: healthy neighbours. What it sends
 * goes to `seen` (may be NULL). */
static inline void net_run_answered(struct net_node *node, uint64_t ns,
                                    void (*seen)(const struct net_datagram *datagram))
{
    struct net *net = node->net;
    uint64_t until_ns = net->now_ns + ns;

    for (;;) {
        uint64_t at_ns = shoal_swim_deadline_ns(node->swim);

        while (net->flight_count > 0) {
            struct net_datagram d = net->flight[--net->flight_count];
            struct craft c;

            if (seen != NULL)
                seen(&d);
            if (d.bytes[3] != CRAFT_PING)
                continue;
            for (int i = 0; i < net->count; i++) {
                if (!shoal_node_id_equal(net->nodes[i].options.id, d.to))
                    continue;
                craft_begin(&c, CRAFT_ACK);
                shoal_put_raw(&c.w, d.bytes + CRAFT_BODY, 4);
                (void)craft_deliver(&c, node, &net->nodes[i]);
            }
        }
        if (at_ns > until_ns)
            break;
        net->now_ns = at_ns > net->now_ns ? at_ns : net->now_ns;
        (void)net_step(node, &(struct shoal_swim_event){ .kind = SHOAL_SWIM_TIMER });
    }
    net->now_ns = until_ns;
}

#endif
