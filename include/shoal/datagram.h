/* Sealed datagrams between agents: gossip and support.
 *
 * Each ordered pair of nodes has its own key, from both static keys and the mesh secret. Every datagram names its
 * sender's key, the sender's start and a sequence, so that a receiver needs to know nothing beforehand, a replay is
 * dropped, and a restarted sender is believed at once. Order is not kept.
 *
 * To seal, the receiver's key must be known: from shoal_datagram_learn, from a datagram that came from it, or asked for
 * (the send is then answered NOT_FOUND, and a question goes to the address; the next send finds the key). */
#ifndef SHOAL_DATAGRAM_H
#define SHOAL_DATAGRAM_H

#include "shoal/address.h"
#include "shoal/identity.h"
#include "shoal/limits.h"

struct uv_loop_s;
struct shoal_datagram;

struct shoal_datagram_handlers {
    void *arg;
    void (*on_datagram)(void *arg, struct shoal_node_id from, struct shoal_address address, struct shoal_view payload);
    /* A line for the log, at most one per 10 s. May be NULL. */
    void (*on_note)(void *arg, const char *text);
};

struct shoal_datagram_options {
    struct uv_loop_s *loop;
    const struct shoal_identity *identity; /* copied */
    struct shoal_address listen;           /* port 0: any */
    struct shoal_datagram_handlers handlers;
    unsigned peers_max; /* keys kept, least recently used forgotten first; 0: 4,096 */
};

struct shoal_datagram_stats {
    uint64_t in, out, bytes_in, bytes_out;
    uint64_t drop_malformed; /* too short, too long, another kind or version */
    uint64_t drop_unopened;  /* another mesh secret, not for us, or altered */
    uint64_t drop_replayed;  /* seen before, or older than the window */
    uint64_t drop_stale;     /* from an earlier start of the sender */
    uint64_t drop_unsent;    /* the socket took no more, or the kernel refused */
    uint64_t drop_busy;      /* more unknown senders in one second than are worth a key */
    uint64_t keys_asked, keys_derived, keys_forgotten;
};

SHOAL_MUST_CHECK enum shoal_err shoal_datagram_create(struct shoal_datagram **datagram,
                                                      const struct shoal_datagram_options *options,
                                                      struct shoal_msg *msg);
uint16_t shoal_datagram_port(const struct shoal_datagram *datagram);

/* A peer's key, heard elsewhere (a link, gossip). DENIED: not a key. */
SHOAL_MUST_CHECK enum shoal_err shoal_datagram_learn(struct shoal_datagram *datagram,
                                                     const struct shoal_public_key *key);
bool shoal_datagram_knows(const struct shoal_datagram *datagram, struct shoal_node_id node);

/* `to` zero: whoever is at the address, once a question has been answered from there.
 * TOO_BIG: larger than SHOAL_DATAGRAM_PAYLOAD_MAX. NOT_FOUND: the key was not known, it has been asked for.
 * FULL: the socket takes no more now. Nothing is queued: who sends gossip sends again. */
SHOAL_MUST_CHECK enum shoal_err shoal_datagram_send(struct shoal_datagram *datagram, struct shoal_node_id to,
                                                    struct shoal_address address, struct shoal_view payload);

const struct shoal_datagram_stats *shoal_datagram_stats(const struct shoal_datagram *datagram);
void shoal_datagram_stop(struct shoal_datagram *datagram, void (*stopped)(void *arg), void *arg);

/* The socket's callback does this with received bytes; for tests and fuzzing. */
void shoal_datagram_receive(struct shoal_datagram *datagram, struct shoal_address from, struct shoal_view bytes);

#endif
