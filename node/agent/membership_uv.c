/* Events in, one step, actions out (gossip.h says the rules). Steps do not nest: who is told of
 * a member or a record may not publish in the same turn. */
#include "membership.h"

#include <time.h>
#include <uv.h>

#include "shoal/banned.h"

struct membership {
    struct membership_options options;
    struct shoal_swim *swim;
    struct shoal_gossip_pool *pool;
    struct shoal_swim_actions *actions;
    uv_timer_t timer;
    bool stepping;
    uint64_t sequence; /* of our own records */
};

static uint64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * SHOAL_S + (uint64_t)now.tv_nsec;
}

static struct shoal_signature env_sign(void *arg, struct shoal_view view)
{
    const struct membership *m = arg;
    const struct shoal_identity *identity = m->options.identity;

    return shoal_sign(&identity->secret_key, view);
}

static bool env_verify(void *arg, const struct shoal_public_key *key, struct shoal_view view,
                       const struct shoal_signature *signature)
{
    (void)arg;
    return shoal_verify(key, view, signature);
}

static struct shoal_node_id env_node_id(void *arg, const struct shoal_public_key *key)
{
    (void)arg;
    return shoal_node_id_of(key);
}

static bool env_admits(void *arg, struct shoal_node_id node)
{
    const struct membership *m = arg;

    return m->options.admits(m->options.arg, node);
}

static void on_timer(uv_timer_t *timer);

static void arm(struct membership *m)
{
    uint64_t deadline_ns = shoal_swim_deadline_ns(m->swim);
    uint64_t now = now_ns();
    uint64_t wait_ms = deadline_ns <= now ? 0 : (deadline_ns - now) / SHOAL_MS + 1;

    (void)uv_timer_start(&m->timer, on_timer, wait_ms, 0);
}

static void carry_out(struct membership *m, const struct shoal_swim_action *action)
{
    switch (action->kind) {
    case SHOAL_SWIM_SEND:
        m->options.send(m->options.arg, action->send.to, action->send.address, action->send.bytes);
        break;
    case SHOAL_SWIM_MEMBER: m->options.on_member(m->options.arg, &action->member.member, action->member.old); break;
    case SHOAL_SWIM_RECORD: m->options.on_record(m->options.arg, &action->record); break;
    case SHOAL_SWIM_CLONED: m->options.on_cloned(m->options.arg, action->cloned.address); break;
    case SHOAL_SWIM_NOTE: break;
    }
}

static enum shoal_err step(struct membership *m, const struct shoal_swim_event *event)
{
    enum shoal_err err;

    SHOAL_ASSERT(!m->stepping);
    m->stepping = true;
    err = shoal_swim_step(m->swim, event, now_ns(), m->actions);
    for (size_t i = 0; i < m->actions->count; i++)
        carry_out(m, &m->actions->items[i]);
    m->stepping = false;
    arm(m);
    return err;
}

static void on_timer(uv_timer_t *timer)
{
    (void)step(timer->data, &(struct shoal_swim_event){ .kind = SHOAL_SWIM_TIMER });
}

enum shoal_err membership_create(struct membership **membership, const struct membership_options *options,
                                 struct shoal_msg *msg)
{
    const struct shoal_identity *identity = options->identity;
    struct membership *m = calloc(1, sizeof(*m));
    struct shoal_swim_options swim = {
        .id = identity->node,
        .public_key = identity->public_key,
        .store = identity->store,
        .host_epoch = identity->incarnation.host_epoch,
        .agent = identity->incarnation.agent,
        .address = options->address,
        .link_port = options->link_port,
        .http_port = options->http_port,
        .env = { .sign = env_sign, .verify = env_verify, .node_id = env_node_id, .admits = env_admits }
    };
    enum shoal_err err;

    if (m == NULL || (m->actions = malloc(sizeof(*m->actions))) == NULL) {
        free(m);
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for gossip");
    }
    m->options = *options;
    m->pool = shoal_gossip_pool_create(0);
    swim.pool = m->pool;
    swim.env.arg = m;
    (void)snprintf(swim.name, sizeof(swim.name), "%s", options->name);
    shoal_random(&swim.seed, sizeof(swim.seed));
    err = shoal_swim_create(&m->swim, &swim, msg);
    if (err != SHOAL_OK) {
        shoal_gossip_pool_destroy(m->pool);
        free(m->actions);
        free(m);
        return err;
    }
    (void)uv_timer_init(options->loop, &m->timer);
    m->timer.data = m;
    if (options->seed_count > 0)
        (void)step(
            m, &(struct shoal_swim_event){ .kind = SHOAL_SWIM_JOIN, .join = { options->seeds, options->seed_count } });
    arm(m);
    *membership = m;
    return SHOAL_OK;
}

void membership_datagram(struct membership *m, struct shoal_node_id from, struct shoal_address address,
                         struct shoal_view bytes)
{
    struct shoal_swim_event event = { .kind = SHOAL_SWIM_DATAGRAM };

    event.datagram.from = from;
    event.datagram.address = address;
    event.datagram.bytes = bytes;
    (void)step(m, &event); /* malformed: counted by the core */
}

void membership_refused(struct membership *m, struct shoal_node_id node)
{
    (void)step(m, &(struct shoal_swim_event){ .kind = SHOAL_SWIM_REFUSED, .peer = node });
}

void membership_health(struct membership *m, uint64_t loop_lag_ns)
{
    struct shoal_swim_event event = { .kind = SHOAL_SWIM_HEALTH };

    event.health.loop_lag_ns = loop_lag_ns;
    (void)step(m, &event);
}

void membership_leave(struct membership *m) { (void)step(m, &(struct shoal_swim_event){ .kind = SHOAL_SWIM_LEAVE }); }

void membership_expel(struct membership *m, struct shoal_node_id node)
{
    (void)step(m, &(struct shoal_swim_event){ .kind = SHOAL_SWIM_EXPEL, .peer = node });
}

enum shoal_err membership_publish(struct membership *m, struct shoal_record *record)
{
    static const struct shoal_record_version none;

    if (shoal_record_version_cmp(record->version, none) == 0) {
        record->version.word[0] = m->options.identity->incarnation.host_epoch;
        record->version.word[1] = m->options.identity->incarnation.agent;
        record->version.word[2] = ++m->sequence;
    }
    return step(m, &(struct shoal_swim_event){ .kind = SHOAL_SWIM_PUBLISH, .record = record });
}

const struct shoal_swim *membership_swim(const struct membership *m) { return m->swim; }
