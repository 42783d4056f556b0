/* Links between agents: which connections live, and for whom (link.h; link_conn_uv.c draws one connection).
 *
 *   want b
 *      dial CONTROL --handshake--> OPEN: on_up, then dial BULK with the same session
 *      any of the two breaks, or is silent too long: both close, on_down, dial again after a jittered, doubled pause
 *
 * I1. A peer has at most one link: one CONTROL and one BULK connection of one session.
 * I2. Two agents that dial each other at once keep the dial of the lower node id. The lower one refuses the other's
 *     dial when its own has come as far as an answer, or has just opened; otherwise it gives its own up. The higher one
 *     always gives way. Since the lower sends its third message only after that answer, not both dials can be kept.
 * I3. Otherwise a new CONTROL connection replaces an old one: who dials has none.
 * I4. A peer record without a connection that nobody wants is forgotten by the tick, never inside a callback.
 * I5. Owner's callbacks run from the stream's or the timer's callbacks only, never from inside the owner's own
 *     calls. */
#include "shoal/link.h"

#include "link_conn_uv.h"

#include "shoal/banned.h"

#define BUCKETS 1024
#define NOTE_PAUSE_NS SHOAL_S
#define NARROW_NS (600 * SHOAL_S) /* after a link that fell silent, or stalled */
/* How often in a row the other's dial with large segments is turned away meanwhile: it may be the only one that can dial. */
#define NARROW_TURNS 3
#define TICK_MIN_NS (5 * SHOAL_MS)
#define TICK_MAX_NS (250 * SHOAL_MS)

struct peer {
    struct peer *next;
    struct shoal_node_id node;
    struct shoal_link_peer info;
    struct conn *lanes[SHOAL_LANES];
    struct conn *dial; /* of CONTROL */
    struct shoal_address address;
    bool wanted;
    bool up;
    bool close_asked;
    bool early_full;
    struct shoal_buf early; /* frames for BULK, sent before it is open */
    unsigned attempts;
    uint64_t redial_ns;
    uint64_t up_ns;
    uint64_t narrow_until_ns; /* dials until then ask for small segments */
    unsigned narrow_turns;    /* the other's dials that may still be turned away for one of our own */
};

static void on_tick(uv_timer_t *timer);

/* ---- peers -------------------------------------------------------------------------------------- */

static struct peer **bucket_of(const struct shoal_link *link, struct shoal_node_id node)
{
    return &link->buckets[(node.bytes[0] | (unsigned)node.bytes[1] << 8) % BUCKETS]; /* ids are hashes */
}

static struct peer *peer_find(const struct shoal_link *link, struct shoal_node_id node)
{
    struct peer *peer = *bucket_of(link, node);

    while (peer != NULL && !shoal_node_id_equal(peer->node, node))
        peer = peer->next;
    return peer;
}

static struct peer *peer_make(struct shoal_link *link, struct shoal_node_id node)
{
    struct peer *peer = peer_find(link, node);
    struct peer **bucket = bucket_of(link, node);

    if (peer != NULL)
        return peer;
    if (link->peers_count == SHOAL_LINK_PEERS_MAX)
        return NULL;
    peer = calloc(1, sizeof(*peer));
    if (peer == NULL)
        return NULL;
    peer->node = node;
    peer->next = *bucket;
    *bucket = peer;
    link->peers_count++;
    return peer;
}

static void peer_free(struct peer *peer)
{
    shoal_buf_deinit(&peer->early);
    free(peer);
}

static void kick(struct shoal_link *link)
{
    if (!link->stopping && !link->in_tick)
        (void)uv_timer_start(&link->timer, on_tick, 0, link->period_ns / SHOAL_MS);
}

static void note(struct shoal_link *link, struct shoal_address address, const char *text)
{
    char line[400], where[SHOAL_ADDRESS_TEXT_BYTES];
    uint64_t now_ns = conn_now_ns();

    if (link->options.handlers.on_note == NULL || (link->noted_ns != 0 && now_ns - link->noted_ns < NOTE_PAUSE_NS))
        return;
    link->noted_ns = now_ns;
    shoal_address_text(address, where);
    (void)snprintf(line, sizeof(line), "link with %s: %s", where, text);
    link->options.handlers.on_note(link->options.handlers.arg, line);
}

static void report_failure(struct shoal_link *link, struct shoal_link_failure *failure, const char *text)
{
    char line[400], where[SHOAL_ADDRESS_TEXT_BYTES];

    link->stats.dial_failures++;
    if (link->options.handlers.on_failure == NULL)
        return;
    shoal_address_text(failure->address, where);
    (void)snprintf(line, sizeof(line), "cannot link with %s: %s", where, text);
    failure->text = line;
    link->options.handlers.on_failure(link->options.handlers.arg, failure);
}

static void report_probe(struct shoal_link *link, const struct shoal_link_probe *probe)
{
    if (link->options.handlers.on_probed != NULL)
        link->options.handlers.on_probed(link->options.handlers.arg, probe);
}

/* Doubled each time up to the cap, then between half of it and all of it. */
static void schedule_redial(struct shoal_link *link, struct peer *peer)
{
    uint64_t pause = link->options.redial_min_ns << (peer->attempts < 20 ? peer->attempts : 20);

    if (pause > link->options.redial_max_ns)
        pause = link->options.redial_max_ns;
    pause = pause / 2 + shoal_rand_below(&link->chance, pause / 2 + 1);
    peer->attempts++;
    peer->redial_ns = conn_now_ns() + pause;
}

/* Close what the peer has; on_down if it was up. The peer stays, for the tick to dial or forget. */
static void peer_down(struct shoal_link *link, struct peer *peer)
{
    struct shoal_node_id node = peer->node;
    bool was_up = peer->up;

    for (unsigned lane = 0; lane < SHOAL_LANES; lane++) {
        struct conn *conn = peer->lanes[lane];

        peer->lanes[lane] = NULL;
        if (conn != NULL)
            conn_close(conn);
    }
    shoal_buf_deinit(&peer->early);
    peer->early_full = false;
    peer->close_asked = false;
    if (!was_up)
        return;
    peer->up = false;
    link->stats.downs++;
    link->stats.peers_up--;
    if (conn_now_ns() - peer->up_ns >= link->options.redial_max_ns)
        peer->attempts = 0; /* it held; a link that breaks at once is dialled ever more slowly */
    schedule_redial(link, peer);
    link->options.handlers.on_down(link->options.handlers.arg, node);
}

static void peer_up(struct shoal_link *link, struct peer *peer, struct conn *conn)
{
    peer->lanes[SHOAL_LANE_CONTROL] = conn;
    conn->peer = peer;
    peer->up = true;
    peer->up_ns = conn_now_ns();
    peer->info = (struct shoal_link_peer){ .node = conn->node,
                                           .key = conn->hello.key,
                                           .store = conn->hello.store,
                                           .incarnation = conn->hello.incarnation,
                                           .address = conn->address,
                                           .listen_port = conn->hello.listen_port,
                                           .dialled = conn->dialled };
    link->stats.ups++;
    link->stats.peers_up++;
    link->options.handlers.on_up(link->options.handlers.arg, &peer->info);
}

/* ---- dialling ---- */

static struct conn *dial_create(struct shoal_link *link, struct shoal_address address, enum shoal_lane lane)
{
    struct conn *conn = conn_create(link, true);

    if (conn == NULL)
        return NULL;
    conn->address = address;
    conn->lane = lane;
    return conn;
}

static void dial_peer(struct shoal_link *link, struct peer *peer)
{
    struct conn *conn = dial_create(link, peer->address, SHOAL_LANE_CONTROL);

    if (conn == NULL) {
        schedule_redial(link, peer);
        return;
    }
    conn->expected = peer->node;
    conn->narrow = conn->started_ns < peer->narrow_until_ns;
    conn->session = shoal_rand_u64(&link->chance);
    conn->peer = peer;
    peer->dial = conn;
    if (conn_dial(conn) != SHOAL_OK)
        link_on_broken(conn, SHOAL_ERR_UNREACHABLE, false, "no route, or no socket left");
}

static void dial_bulk(struct shoal_link *link, struct peer *peer)
{
    struct conn *control = peer->lanes[SHOAL_LANE_CONTROL];
    struct conn *conn = dial_create(link, control->address, SHOAL_LANE_BULK);

    if (conn == NULL) {
        peer_down(link, peer);
        return;
    }
    conn->expected = peer->node;
    conn->narrow = conn->started_ns < peer->narrow_until_ns;
    conn->session = control->session;
    conn->peer = peer;
    peer->lanes[SHOAL_LANE_BULK] = conn;
    if (conn_dial(conn) != SHOAL_OK)
        link_on_broken(conn, SHOAL_ERR_UNREACHABLE, false, "no route, or no socket left");
}

/* The dial of CONTROL is over, and not by an opening. */
static void dial_ended(struct peer *peer)
{
    struct conn *conn = peer->dial;

    peer->dial = NULL;
    if (conn != NULL)
        conn_close(conn);
}

static bool is_admitted(const struct shoal_link *link, struct shoal_node_id node)
{
    const struct shoal_link_handlers *handlers = &link->options.handlers;

    return handlers->admits == NULL || handlers->admits(handlers->arg, node);
}

void link_on_key(struct conn *conn)
{
    struct shoal_link *link = conn->link;

    SHOAL_ASSERT(conn->dialled);
    if (shoal_node_id_equal(conn->node, link->identity.node)) {
        link_on_broken(conn, SHOAL_ERR_EXISTS, false, "this node itself listens there");
        return;
    }
    if (!is_admitted(link, conn->node)) {
        link->stats.drop_removed++;
        link_on_broken(conn, SHOAL_ERR_DENIED, false, "the node there was removed from this mesh");
        return;
    }
    if (!conn->probe && !shoal_node_id_equal(conn->expected, conn->node))
        link_on_broken(conn, SHOAL_ERR_DENIED, false, "another node answers there than the one that was expected");
}

void link_on_open(struct conn *conn)
{
    struct shoal_link *link = conn->link;
    struct peer *peer = conn->peer;

    if (conn->probe) {
        link_on_broken(conn, SHOAL_ERR_MALFORMED, false, "it welcomes a session that there is not");
        return;
    }
    SHOAL_ASSERT(peer != NULL);
    if (conn->lane == SHOAL_LANE_BULK) {
        SHOAL_ASSERT(peer->lanes[SHOAL_LANE_BULK] == conn);
        kick(link); /* what was sent early */
        return;
    }
    SHOAL_ASSERT(peer->dial == conn);
    peer->dial = NULL;
    if (peer->up)
        peer_down(link, peer);
    if (link->stopping || conn->state == CONN_CLOSED)
        return;
    peer_up(link, peer, conn);
    if (!link->stopping && peer->lanes[SHOAL_LANE_CONTROL] == conn)
        dial_bulk(link, peer);
}

void link_on_refused(struct conn *conn, enum link_refusal why)
{
    struct shoal_link *link = conn->link;

    if (why == LINK_REFUSE_DUPLICATE && conn->lane == SHOAL_LANE_CONTROL && conn->peer != NULL) {
        link->stats.drop_duplicate++;
        schedule_redial(link, conn->peer);
        dial_ended(conn->peer);
        return;
    }
    if (why == LINK_REFUSE_SESSION && conn->probe) { /* it has our proof that we know the mesh secret, and we have its */
        link_on_broken(conn, SHOAL_OK, false, "an agent of this mesh answers");
        return;
    }
    switch (why) {
    case LINK_REFUSE_DUPLICATE: link_on_broken(conn, SHOAL_ERR_EXISTS, false, "its own dial to us wins"); break;
    case LINK_REFUSE_SELF: link_on_broken(conn, SHOAL_ERR_EXISTS, false, "this node itself listens there"); break;
    case LINK_REFUSE_CROWDED: link_on_broken(conn, SHOAL_ERR_FULL, false, "it has too many peers"); break;
    case LINK_REFUSE_REMOVED:
        link_on_broken(
            conn, SHOAL_ERR_DENIED, false,
            "this host was removed from the mesh; to come back, have an administrator readmit it (shoal node readmit, "
            "at another host), or join it with a new data folder");
        break;
    case LINK_REFUSE_SESSION:
    case LINK_REFUSALS: link_on_broken(conn, SHOAL_ERR_STALE, false, "it has closed this link meanwhile"); break;
    }
}

/* ---- being dialled ---- */

/* I2, on the responder's side: does the dial that arrived lose against ours? */
static bool inbound_loses(struct shoal_link *link, struct peer *peer, uint64_t now_ns)
{
    struct conn *open = peer->lanes[SHOAL_LANE_CONTROL];

    if (shoal_node_id_cmp(link->identity.node, peer->node) > 0)
        return false;
    if (peer->dial != NULL && peer->dial->shaken >= 2)
        return true;
    if (open == NULL || !open->dialled || now_ns - open->opened_ns >= link->options.handshake_timeout_ns)
        return false;
    conn_ping(open); /* if the other side has lost it, this one shall notice */
    return true;
}

/* The other side did not see that large packets are lost on their way to it, and dials as ever: what is sent on that connection
 * would not arrive either. Our own dial, which asks for small segments, goes out instead. */
static bool inbound_is_wide(struct peer *peer, const struct conn *conn, uint64_t now_ns)
{
    if (peer->up || !peer->wanted || peer->narrow_turns == 0 || now_ns >= peer->narrow_until_ns || conn_is_narrow(conn))
        return false;
    peer->narrow_turns--;
    peer->redial_ns = now_ns;
    return true;
}

static void accept_bulk(struct shoal_link *link, struct conn *conn)
{
    struct peer *peer = peer_find(link, conn->node);
    struct conn *control = peer == NULL ? NULL : peer->lanes[SHOAL_LANE_CONTROL];

    if (control == NULL || control->dialled || control->session != conn->session ||
        peer->lanes[SHOAL_LANE_BULK] != NULL) {
        conn_refuse(conn, LINK_REFUSE_SESSION);
        return;
    }
    conn->peer = peer;
    peer->lanes[SHOAL_LANE_BULK] = conn;
    conn_welcome(conn);
    kick(link);
}

void link_on_hello(struct conn *conn)
{
    struct shoal_link *link = conn->link;
    struct peer *peer;

    if (shoal_node_id_equal(conn->node, link->identity.node)) {
        conn_refuse(conn, LINK_REFUSE_SELF);
        return;
    }
    if (!is_admitted(link, conn->node)) {
        link->stats.drop_removed++;
        note(link, conn->address, "a host that was removed from this mesh is refused");
        conn_refuse(conn, LINK_REFUSE_REMOVED);
        return;
    }
    if (conn->lane == SHOAL_LANE_BULK) {
        accept_bulk(link, conn);
        return;
    }
    peer = peer_make(link, conn->node);
    if (peer == NULL) {
        link->stats.drop_crowded++;
        conn_refuse(conn, LINK_REFUSE_CROWDED);
        return;
    }
    if (inbound_loses(link, peer, conn_now_ns()) || inbound_is_wide(peer, conn, conn_now_ns())) {
        link->stats.drop_duplicate++;
        conn_refuse(conn, LINK_REFUSE_DUPLICATE);
        kick(link);
        return;
    }
    if (peer->dial != NULL) {
        link->stats.drop_duplicate++;
        dial_ended(peer);
    }
    if (peer->up)
        peer_down(link, peer); /* I3 */
    if (link->stopping || conn->state == CONN_CLOSED)
        return;
    conn_welcome(conn);
    peer_up(link, peer, conn);
}

/* Make room for one more: the oldest that has not proved anything goes. */
static void crowd_out(struct shoal_link *link)
{
    struct conn *oldest = NULL;
    unsigned count = 0;

    for (struct conn *conn = link->conns; conn != NULL; conn = conn->next) {
        if (conn->dialled || conn->state == CONN_OPEN)
            continue;
        count++;
        oldest = conn; /* the list is newest first */
    }
    if (count < SHOAL_LINK_HANDSHAKES_MAX)
        return;
    link->stats.drop_crowded++;
    note(link, oldest->address, "too many unauthenticated connections, the oldest is closed");
    conn_close(oldest);
}

static void on_connection(uv_stream_t *server, int status)
{
    struct shoal_link *link = server->data;
    struct conn *conn;

    if (status < 0 || link->stopping)
        return;
    crowd_out(link);
    conn = conn_create(link, false);
    if (conn == NULL)
        return;
    if (conn_accept(conn, server) != SHOAL_OK)
        conn_close(conn);
    kick(link);
}

/* ---- frames ---- */

void link_on_frame(struct conn *conn, uint8_t channel, struct shoal_view frame)
{
    struct shoal_link *link = conn->link;

    link->options.handlers.on_frame(link->options.handlers.arg, conn->node, conn->lane, channel, frame);
}

void link_on_writable(struct conn *conn)
{
    struct shoal_link *link = conn->link;

    if (link->options.handlers.on_writable != NULL && conn->peer != NULL)
        link->options.handlers.on_writable(link->options.handlers.arg, conn->node, conn->lane);
}

static enum shoal_err send_early(struct shoal_link *link, struct peer *peer, uint8_t channel, struct shoal_view start,
                                 struct shoal_view rest)
{
    size_t len = start.len + rest.len;
    uint8_t head[5];
    struct shoal_writer w = shoal_writer_init(head, sizeof(head));
    enum shoal_err err;

    if (peer->early.len + len + sizeof(head) > SHOAL_LINK_BULK_QUEUE_MAX / 2) {
        peer->early_full = true;
        link->stats.send_full++;
        return SHOAL_ERR_FULL;
    }
    shoal_put_u32(&w, (uint32_t)len);
    shoal_put_u8(&w, channel);
    err = shoal_buf_reserve(&peer->early, sizeof(head) + len);
    if (err != SHOAL_OK)
        return err;
    err = shoal_buf_append(&peer->early, head, sizeof(head));
    SHOAL_ASSERT(err == SHOAL_OK);
    err = shoal_buf_append(&peer->early, start.bytes, start.len);
    SHOAL_ASSERT(err == SHOAL_OK);
    return shoal_buf_append(&peer->early, rest.bytes, rest.len);
}

/* BULK is open: what waited goes first. It fits, being at most half of the lane's queue. */
static void flush_early(struct shoal_link *link, struct peer *peer)
{
    struct conn *conn = peer->lanes[SHOAL_LANE_BULK];
    struct shoal_reader r = shoal_reader_init(shoal_buf_view(&peer->early));
    const struct shoal_view none = { 0 };
    bool was_full = peer->early_full;

    while (shoal_reader_left(&r) > 0) {
        size_t len = shoal_get_u32(&r);
        uint8_t channel = shoal_get_u8(&r);

        if (conn_send(conn, channel, none, shoal_view_of(shoal_get_space(&r, len), len)) != SHOAL_OK) {
            peer_down(link, peer); /* no memory; a frame must not be lost silently */
            return;
        }
    }
    shoal_buf_deinit(&peer->early);
    peer->early_full = false;
    if (was_full)
        link_on_writable(conn);
}

enum shoal_err shoal_link_send(struct shoal_link *link, struct shoal_node_id node, enum shoal_lane lane,
                               uint8_t channel, struct shoal_view frame)
{
    return shoal_link_send_two(link, node, lane, channel, (struct shoal_view){ 0 }, frame);
}

enum shoal_err shoal_link_send_two(struct shoal_link *link, struct shoal_node_id node, enum shoal_lane lane,
                                   uint8_t channel, struct shoal_view start, struct shoal_view rest)
{
    struct peer *peer = peer_find(link, node);
    struct conn *conn;

    if (start.len > SHOAL_LINK_START_MAX || rest.len > SHOAL_FRAME_BYTES_MAX - start.len)
        return SHOAL_ERR_TOO_BIG;
    if (peer == NULL || !peer->up || link->stopping)
        return SHOAL_ERR_UNREACHABLE;
    conn = peer->lanes[lane];
    if (lane == SHOAL_LANE_BULK && (conn == NULL || conn->state != CONN_OPEN || peer->early.len > 0))
        return send_early(link, peer, channel, start, rest);
    return conn_send(conn, channel, start, rest);
}

/* ---- ends ---- */

static void inbound_broken(struct shoal_link *link, struct conn *conn, enum shoal_err err, const char *text)
{
    if (err == SHOAL_ERR_DENIED || err == SHOAL_ERR_MALFORMED || err == SHOAL_ERR_UNSUPPORTED)
        note(link, conn->address, text);
    conn_close(conn);
}

void link_on_broken(struct conn *conn, enum shoal_err err, bool refused, const char *text)
{
    struct shoal_link_failure failure = { .err = err, .refused = refused };
    struct shoal_link_probe probe = { .err = err, .text = text, .node = conn->node, .address = conn->address };
    struct shoal_link *link = conn->link;
    struct peer *peer = conn->peer;
    bool is_probe = conn->probe;

    if (peer != NULL && peer->dial != conn) {
        if (conn->lane == SHOAL_LANE_BULK && conn->state != CONN_OPEN)
            note(link, conn->address, text);
        peer_down(link, peer);
        return;
    }
    if (!conn->dialled) {
        inbound_broken(link, conn, err, text);
        return;
    }
    if (peer != NULL) {
        peer->dial = NULL;
        schedule_redial(link, peer);
    }
    link->probes_count -= is_probe;
    failure.node = conn->expected;
    failure.address = conn->address;
    if (err == SHOAL_ERR_UNSUPPORTED)
        note(link, conn->address, text); /* a person must act */
    conn_close(conn);
    if (is_probe)
        report_probe(link, &probe);
    else
        report_failure(link, &failure, text);
}

/* The next connection to it sends smaller segments: perhaps large packets were what did not arrive. */
static void dial_narrow(const struct conn *conn, uint64_t now_ns)
{
    if (conn->peer == NULL)
        return;
    conn->peer->narrow_until_ns = now_ns + NARROW_NS;
    conn->peer->narrow_turns = NARROW_TURNS;
}

static void check_lane(struct shoal_link *link, struct conn *conn, uint64_t now_ns)
{
    if (now_ns - conn->heard_ns >= link->options.idle_dead_ns) {
        dial_narrow(conn, now_ns);
        note(link, conn->address, "nothing heard for too long, closed");
        link_on_broken(conn, SHOAL_ERR_TIMEOUT, false, "nothing heard for too long");
    } else if (now_ns - conn->heard_ns >= link->options.idle_ping_ns &&
               now_ns - conn->pinged_ns >= link->options.idle_ping_ns) {
        conn_ping(conn);
    }
}

/* One connection per pass changes the list; so start over after each, and each pass ends something. The pass has its own time:
 * what the one before it dialled is younger than the tick. */
static bool check_conns(struct shoal_link *link, bool was_late)
{
    uint64_t now_ns = conn_now_ns();

    for (struct conn *conn = link->conns; conn != NULL; conn = conn->next) {
        if (conn->state == CONN_QUEUED && conn->probe) {
            if (conn_dial(conn) == SHOAL_OK)
                continue;
            link_on_broken(conn, SHOAL_ERR_UNREACHABLE, false, "no route, or no socket left");
            return true;
        }
        if (was_late)
            continue;
        if (conn->state == CONN_OPEN && now_ns - conn->heard_ns >= link->options.idle_ping_ns) {
            bool dead = now_ns - conn->heard_ns >= link->options.idle_dead_ns;

            check_lane(link, conn, now_ns);
            if (dead)
                return true;
        } else if (conn_is_stalled(conn, now_ns)) {
            dial_narrow(conn, now_ns);
            note(link, conn->address,
                 "what is sent does not arrive though the node is heard; is the path's MTU too small?");
            link_on_broken(conn, SHOAL_ERR_TIMEOUT, false, "what is sent does not arrive");
            return true;
        } else if (conn->state != CONN_OPEN && now_ns - conn->started_ns >= link->options.handshake_timeout_ns) {
            link_on_broken(conn, SHOAL_ERR_TIMEOUT, false, "no answer in time; is a firewall between the nodes?");
            return true;
        }
    }
    return false;
}

/* One thing at most, since each may call the owner. */
static void check_peer(struct shoal_link *link, struct peer *peer, uint64_t now_ns)
{
    struct conn *bulk = peer->lanes[SHOAL_LANE_BULK];

    if (peer->close_asked) {
        peer->close_asked = false;
        peer_down(link, peer);
    } else if (peer->up && bulk != NULL && bulk->state == CONN_OPEN && peer->early.len > 0) {
        flush_early(link, peer);
    } else if (peer->up && bulk == NULL && now_ns - peer->up_ns >= 2 * link->options.handshake_timeout_ns) {
        note(link, peer->info.address, "the second connection did not come, closed");
        peer_down(link, peer);
    } else if (peer->wanted && !peer->up && peer->dial == NULL && now_ns >= peer->redial_ns) {
        dial_peer(link, peer);
    }
}

static void check_peers(struct shoal_link *link, uint64_t now_ns)
{
    for (unsigned i = 0; i < BUCKETS && !link->stopping; i++) {
        struct peer **at = &link->buckets[i];

        while (*at != NULL && !link->stopping) {
            struct peer *peer = *at;

            /* Callbacks may add peers at the bucket's head, but only this loop removes any (I4). */
            check_peer(link, peer, now_ns);
            if (link->stopping)
                return;
            for (at = &link->buckets[i]; *at != peer; at = &(*at)->next) {
            }
            if (peer->wanted || peer->up || peer->dial != NULL) {
                at = &peer->next;
                continue;
            }
            *at = peer->next;
            link->peers_count--;
            peer_free(peer);
        }
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct shoal_link *link = timer->data;
    uint64_t now_ns = conn_now_ns();
    /* If this loop itself has stood still, its peers' words wait unread in the sockets: judge them next time. */
    bool was_late = link->ticked_ns != 0 && now_ns - link->ticked_ns >= 2 * link->period_ns + TICK_MIN_NS;

    link->ticked_ns = was_late ? 0 : now_ns; /* twice in a row is no excuse */
    link->in_tick = true;
    for (unsigned i = 0; i < 2 * SHOAL_LINK_PEERS_MAX && !link->stopping; i++)
        if (!check_conns(link, was_late))
            break;
    if (!link->stopping)
        check_peers(link, now_ns);
    link->in_tick = false;
    if (link->stopping)
        return;
    if (link->conns == NULL && link->peers_count == 0) {
        link->ticked_ns = 0;
        (void)uv_timer_stop(&link->timer);
        return;
    }
    (void)uv_timer_start(&link->timer, on_tick, link->period_ns / SHOAL_MS, link->period_ns / SHOAL_MS);
}

/* ---- the owner's calls ---- */

enum shoal_err shoal_link_want(struct shoal_link *link, struct shoal_node_id node, struct shoal_address address)
{
    struct peer *peer;

    if (shoal_node_id_equal(node, link->identity.node))
        return SHOAL_ERR_INVALID;
    peer = peer_make(link, node);
    if (peer == NULL)
        return SHOAL_ERR_FULL;
    if (!peer->wanted || !shoal_address_equal(peer->address, address)) {
        peer->wanted = true;
        peer->address = address;
        peer->redial_ns = 0;
        kick(link);
    }
    return SHOAL_OK;
}

void shoal_link_unwant(struct shoal_link *link, struct shoal_node_id node)
{
    struct peer *peer = peer_find(link, node);

    if (peer != NULL)
        peer->wanted = false;
}

void shoal_link_close(struct shoal_link *link, struct shoal_node_id node)
{
    struct peer *peer = peer_find(link, node);

    if (peer == NULL || !peer->up)
        return;
    peer->close_asked = true;
    kick(link);
}

enum shoal_err shoal_link_probe(struct shoal_link *link, struct shoal_address address)
{
    struct conn *conn;

    if (link->probes_count == SHOAL_LINK_PROBES_MAX || link->stopping)
        return SHOAL_ERR_FULL;
    conn = dial_create(link, address, SHOAL_LANE_BULK);
    if (conn == NULL)
        return SHOAL_ERR_FULL;
    conn->probe = true;
    conn->session = shoal_rand_u64(&link->chance);
    link->probes_count++;
    kick(link);
    return SHOAL_OK;
}

bool shoal_link_is_up(const struct shoal_link *link, struct shoal_node_id node)
{
    const struct peer *peer = peer_find(link, node);

    return peer != NULL && peer->up;
}

const struct shoal_link_peer *shoal_link_find(const struct shoal_link *link, struct shoal_node_id node)
{
    const struct peer *peer = peer_find(link, node);

    return peer != NULL && peer->up ? &peer->info : NULL;
}

void shoal_link_each(const struct shoal_link *link, void (*each)(void *arg, const struct shoal_link_peer *peer),
                     void *arg)
{
    for (unsigned i = 0; i < BUCKETS; i++)
        for (const struct peer *peer = link->buckets[i]; peer != NULL; peer = peer->next)
            if (peer->up)
                each(arg, &peer->info);
}

const struct shoal_link_stats *shoal_link_stats(const struct shoal_link *link) { return &link->stats; }

uint16_t shoal_link_port(const struct shoal_link *link) { return link->port; }

/* ---- start and stop ---- */

void link_on_closed(struct shoal_link *link)
{
    void (*stopped)(void *arg) = link->stopped;
    void *arg = link->stopped_arg;

    if (--link->handles_open > 0)
        return;
    shoal_identity_wipe(&link->identity);
    shoal_wipe(link->static_secret, sizeof(link->static_secret));
    shoal_wipe(link->psk, sizeof(link->psk));
    free(link->buckets);
    free(link);
    if (stopped != NULL)
        stopped(arg);
}

static void on_handle_close(uv_handle_t *handle) { link_on_closed(handle->data); }

void shoal_link_stop(struct shoal_link *link, void (*stopped)(void *arg), void *arg)
{
    SHOAL_ASSERT(!link->stopping);
    link->stopping = true;
    link->stopped = stopped;
    link->stopped_arg = arg;
    for (unsigned i = 0; i < BUCKETS; i++) {
        while (link->buckets[i] != NULL) {
            struct peer *peer = link->buckets[i];

            link->buckets[i] = peer->next;
            peer_free(peer);
        }
    }
    while (link->conns != NULL)
        conn_close(link->conns);
    uv_close((uv_handle_t *)&link->server, on_handle_close);
    uv_close((uv_handle_t *)&link->timer, on_handle_close);
    uv_close((uv_handle_t *)&link->writer, on_handle_close);
}

static void defaults(struct shoal_link_options *options)
{
    if (options->handshake_timeout_ns == 0)
        options->handshake_timeout_ns = 5 * SHOAL_S;
    if (options->idle_ping_ns == 0)
        options->idle_ping_ns = 5 * SHOAL_S;
    if (options->idle_dead_ns == 0)
        options->idle_dead_ns = 15 * SHOAL_S;
    if (options->redial_min_ns == 0)
        options->redial_min_ns = 100 * SHOAL_MS;
    if (options->redial_max_ns == 0)
        options->redial_max_ns = 5 * SHOAL_S;
}

static uint64_t tick_of(const struct shoal_link_options *options)
{
    uint64_t shortest = options->redial_min_ns;

    if (options->handshake_timeout_ns < shortest)
        shortest = options->handshake_timeout_ns;
    if (options->idle_ping_ns < shortest)
        shortest = options->idle_ping_ns;
    shortest /= 2;
    if (shortest < TICK_MIN_NS)
        return TICK_MIN_NS;
    return shortest > TICK_MAX_NS ? TICK_MAX_NS : shortest;
}

static enum shoal_err listen_start(struct shoal_link *link, struct shoal_msg *msg)
{
    struct sockaddr_storage at;
    char text[SHOAL_ADDRESS_TEXT_BYTES];
    struct shoal_address bound;
    int len = sizeof(at);
    int rc;

    shoal_address_text(link->options.listen, text);
    shoal_address_to_sockaddr(link->options.listen, &at);
    rc = uv_tcp_bind(&link->server, (const struct sockaddr *)&at, 0);
    if (rc == 0)
        rc = uv_listen((uv_stream_t *)&link->server, 128, on_connection);
    if (rc == 0)
        rc = uv_tcp_getsockname(&link->server, (struct sockaddr *)&at, &len);
    if (rc != 0)
        return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "cannot listen on %s (TCP): %s; %s", text, uv_strerror(rc),
                          shoal_address_remedy(-rc));
    if (shoal_address_of_sockaddr((const struct sockaddr *)&at, &bound) != SHOAL_OK)
        return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "listening on %s gave no IP address", text);
    link->port = bound.port;
    return SHOAL_OK;
}

enum shoal_err shoal_link_create(struct shoal_link **link, const struct shoal_link_options *options,
                                 struct shoal_msg *msg)
{
    struct shoal_link *made = calloc(1, sizeof(*made));
    struct shoal_secret psk;
    uint64_t seed;
    enum shoal_err err;
    int rc;

    if (made == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for links");
    made->buckets = calloc(BUCKETS, sizeof(struct peer *));
    if (made->buckets == NULL) {
        free(made);
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for links");
    }
    made->loop = options->loop;
    made->options = *options;
    defaults(&made->options);
    made->period_ns = tick_of(&made->options);
    made->identity = *options->identity;
    shoal_noise_secret_of(&made->identity.secret_key, made->static_secret);
    psk = shoal_secret_derive(&made->identity.mesh_secret, "shoal link psk");
    memcpy(made->psk, psk.bytes, sizeof(made->psk));
    shoal_wipe(&psk, sizeof(psk));
    shoal_random(&seed, sizeof(seed));
    shoal_rand_init(&made->chance, seed);
    rc = uv_tcp_init(made->loop, &made->server);
    rc |= uv_timer_init(made->loop, &made->timer);
    rc |= uv_prepare_init(made->loop, &made->writer);
    SHOAL_ASSERT(rc == 0); /* none of the three takes anything from the system */
    made->server.data = made;
    made->timer.data = made;
    made->writer.data = made;
    made->handles_open = 3;
    err = options->probes_only ? SHOAL_OK : listen_start(made, msg);
    if (err != SHOAL_OK) {
        shoal_link_stop(made, NULL, NULL);
        return err;
    }
    *link = made;
    return SHOAL_OK;
}
