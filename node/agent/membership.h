/* The shell of the gossip core: its timer, its datagrams, its news handed on. */
#ifndef SHOAL_NODE_MEMBERSHIP_H
#define SHOAL_NODE_MEMBERSHIP_H

#include "shoal/datagram.h"
#include "shoal/gossip.h"

struct uv_loop_s;
struct membership;

struct membership_options {
    struct uv_loop_s *loop;
    const struct shoal_identity *identity; /* borrowed until stopped */
    struct shoal_address address;          /* advertised, datagrams */
    uint16_t link_port;
    uint16_t http_port;
    const char *name;
    const struct shoal_address *seeds;
    size_t seed_count;
    void *arg;
    /* Sealed and sent; what is lost, gossip repeats. */
    void (*send)(void *arg, struct shoal_node_id to, struct shoal_address address, struct shoal_view bytes);
    void (*on_member)(void *arg, const struct shoal_member *member, enum shoal_member_state old);
    void (*on_record)(void *arg, const struct shoal_record *record);
    bool (*admits)(void *arg, struct shoal_node_id node); /* false: it was removed from the mesh */
    /* A later life of this node is at `address`: this data folder was rolled back or cloned. Stop. */
    void (*on_cloned)(void *arg, struct shoal_address address);
};

SHOAL_MUST_CHECK enum shoal_err membership_create(struct membership **membership,
                                                  const struct membership_options *options, struct shoal_msg *msg);

void membership_datagram(struct membership *membership, struct shoal_node_id from, struct shoal_address address,
                         struct shoal_view bytes);
void membership_refused(struct membership *membership, struct shoal_node_id node);
void membership_health(struct membership *membership, uint64_t loop_lag_ns);
void membership_leave(struct membership *membership);
void membership_expel(struct membership *membership, struct shoal_node_id node); /* it was removed from the mesh */

/* Sign and spread. A record of the node itself gets the next version by itself (version all zero). */
SHOAL_MUST_CHECK enum shoal_err membership_publish(struct membership *membership, struct shoal_record *record);

const struct shoal_swim *membership_swim(const struct membership *membership);

#endif
