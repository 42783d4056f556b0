/* Links: authenticated, encrypted TCP between agents. One link per pair of nodes, made of two connections (lanes), so
 * that control never waits behind bulk.
 *
 * Between on_up and on_down of a peer, the frames of a lane arrive in order, none missing, none twice. When either
 * connection breaks, both are closed: on_down. What was in flight then may or may not have arrived.
 *
 * Everything here belongs to the loop's thread. Callbacks may call any function here but destroy. */
#ifndef SHOAL_LINK_H
#define SHOAL_LINK_H

#include "shoal/address.h"
#include "shoal/identity.h"
#include "shoal/limits.h"

struct uv_loop_s;
struct shoal_link;

enum shoal_lane {
    SHOAL_LANE_CONTROL,
    SHOAL_LANE_BULK,
    SHOAL_LANES,
};

/* The peer has proved node and key, and said the rest. Borrowed for the call. */
struct shoal_link_peer {
    struct shoal_node_id node;
    struct shoal_public_key key;
    struct shoal_store_id store;
    struct shoal_incarnation incarnation;
    struct shoal_address address; /* where the connection goes, the port of a dialled one only */
    uint16_t listen_port;         /* where the peer listens */
    bool dialled;                 /* by us */
};

/* A dial that came to nothing. */
struct shoal_link_failure {
    struct shoal_node_id node;
    struct shoal_address address;
    enum shoal_err err; /* UNREACHABLE, TIMEOUT, DENIED (another mesh secret, or not the node expected), MALFORMED */
    bool refused;       /* the host answered that nothing listens there: the agent is down, the host is not */
    const char *text;   /* for a person, with the remedy */
};

/* What a probe has found. `err` is OK: an agent of this mesh; EXISTS: an agent with this node's own key; DENIED: an agent of
 * another mesh, or one that refuses this node; MALFORMED: no agent; UNREACHABLE, TIMEOUT, UNSUPPORTED, FULL. */
struct shoal_link_probe {
    struct shoal_node_id node; /* who has shown its key; zero: nobody */
    struct shoal_address address;
    enum shoal_err err;
    const char *text; /* for a person */
};

struct shoal_link_handlers {
    void *arg;
    /* The control lane is open; bulk follows, frames sent on it before that are queued. */
    void (*on_up)(void *arg, const struct shoal_link_peer *peer);
    void (*on_down)(void *arg, struct shoal_node_id node);
    void (*on_frame)(void *arg, struct shoal_node_id node, enum shoal_lane lane, uint8_t channel,
                     struct shoal_view frame);
    /* After a send was answered FULL: half of the lane's queue is free. May be NULL. */
    void (*on_writable)(void *arg, struct shoal_node_id node, enum shoal_lane lane);
    /* May be NULL. */
    void (*on_failure)(void *arg, const struct shoal_link_failure *failure);
    /* The end of a probe. May be NULL. */
    void (*on_probed)(void *arg, const struct shoal_link_probe *probe);
    /* A line for the log, at most one per second and cause. May be NULL. */
    void (*on_note)(void *arg, const char *text);
    /* May this node, whose key is proved, be linked? It was removed from the mesh otherwise. NULL: all may. */
    bool (*admits)(void *arg, struct shoal_node_id node);
};

struct shoal_link_options {
    struct uv_loop_s *loop;
    const struct shoal_identity *identity; /* copied */
    struct shoal_address listen;           /* port 0: any */
    bool probes_only;                      /* it listens nowhere, and of the handlers on_probed is called alone */
    struct shoal_link_handlers handlers;
    /* 0: the default in brackets. */
    uint64_t handshake_timeout_ns; /* connect to welcome [5 s] */
    uint64_t idle_ping_ns;         /* silence after which a ping is sent [5 s] */
    uint64_t idle_dead_ns;         /* silence after which the link is down [15 s] */
    uint64_t redial_min_ns;        /* [100 ms], doubled each time with jitter */
    uint64_t redial_max_ns;        /* [5 s] */
};

struct shoal_link_stats {
    uint64_t frames_in, frames_out, bytes_in, bytes_out;
    uint64_t writes;         /* system calls: the frames of one turn to one peer share one */
    uint64_t drop_malformed; /* a connection ended by bytes that do not decode or authenticate, replays included */
    uint64_t drop_truncated; /* a connection ended inside a message */
    uint64_t drop_refused;   /* handshakes without the mesh secret, or with another node's key */
    uint64_t drop_removed;   /* handshakes with a node that was removed from the mesh */
    uint64_t drop_crowded;   /* unauthenticated connections closed to make room */
    uint64_t drop_duplicate; /* simultaneous dials that lost */
    uint64_t dials, dial_failures, ups, downs, send_full;
    uint64_t handshakes_open; /* now */
    uint64_t peers_up;        /* now */
};

/* Bind and listen. STORAGE never; UNREACHABLE: cannot bind, the message says what holds the port. */
SHOAL_MUST_CHECK enum shoal_err shoal_link_create(struct shoal_link **link, const struct shoal_link_options *options,
                                                  struct shoal_msg *msg);
uint16_t shoal_link_port(const struct shoal_link *link);

/* Keep a link to `node`, dialling again until unwanted; a later call gives a newer address. FULL: too many peers. */
SHOAL_MUST_CHECK enum shoal_err shoal_link_want(struct shoal_link *link, struct shoal_node_id node,
                                                struct shoal_address address);
/* Stop dialling; a link that is up stays until it breaks, or is closed. */
void shoal_link_unwant(struct shoal_link *link, struct shoal_node_id node);
/* Close the link now, if any: on_down comes on a later turn. */
void shoal_link_close(struct shoal_link *link, struct shoal_node_id node);

/* Ask, once, who listens at an address. Nothing changes there: a link that this node has with it stays. It ends in on_probed.
 * FULL: too many probes at once. */
SHOAL_MUST_CHECK enum shoal_err shoal_link_probe(struct shoal_link *link, struct shoal_address address);

/* The frame is copied. FULL: the lane's queue is full, wait for on_writable. UNREACHABLE: no link. TOO_BIG: larger than
 * SHOAL_FRAME_BYTES_MAX. */
SHOAL_MUST_CHECK enum shoal_err shoal_link_send(struct shoal_link *link, struct shoal_node_id node,
                                                enum shoal_lane lane, uint8_t channel, struct shoal_view frame);

/* The same of a frame in two parts, so that a large one needs no copy with its head before it. */
#define SHOAL_LINK_START_MAX 512u
SHOAL_MUST_CHECK enum shoal_err shoal_link_send_two(struct shoal_link *link, struct shoal_node_id node,
                                                    enum shoal_lane lane, uint8_t channel, struct shoal_view start,
                                                    struct shoal_view rest);

bool shoal_link_is_up(const struct shoal_link *link, struct shoal_node_id node);
/* NULL: no link. Valid until the loop's next turn. */
const struct shoal_link_peer *shoal_link_find(const struct shoal_link *link, struct shoal_node_id node);
const struct shoal_link_stats *shoal_link_stats(const struct shoal_link *link);
/* Each peer that is up, in no order. */
void shoal_link_each(const struct shoal_link *link, void (*each)(void *arg, const struct shoal_link_peer *peer),
                     void *arg);

/* Close everything; no callback but `stopped` runs from now on. `stopped` may free the loop's owner: the link is
 * gone. */
void shoal_link_stop(struct shoal_link *link, void (*stopped)(void *arg), void *arg);

#endif
