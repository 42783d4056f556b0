/* Nodes as they are known here, and what their support means to groups. */
#ifndef SCHED_NODE_H
#define SCHED_NODE_H

#include "shoal/sched.h"
#include "sched_wire.h"

struct shoal_sched;
struct sched_group;

/* What few hosts tell of themselves: a table of thousands has room for it where it is told. */
struct sched_node_rare {
    struct shoal_cards cards;
    char domain[SHOAL_SCHED_DOMAIN_BYTES];
};

/* The latest of struct shoal_sched_node, by the same names. */
struct sched_node_info {
    struct shoal_node_id id;
    struct shoal_store_id store;
    uint8_t state; /* enum shoal_sched_node_state */
    uint8_t device;
    bool draining;
    struct shoal_incarnation incarnation;
    uint32_t slots;
    uint64_t slots_free;
    uint32_t rules;
    uint32_t serves;
    uint32_t job_workers;
    uint64_t mesh_version, mesh_config;
    uint32_t cpus;
    uint32_t class_hash; /* of its numeric class: shoal_class_hash(); 0: it tells none */
    uint64_t slot_stamp;
    uint64_t record_seq;
};

struct sched_node {
    struct sched_node_info info;
    struct sched_node_rare *rare; /* NULL: it has told of neither cards nor a domain */
    uint64_t since_ns; /* of its state */
    uint32_t links;    /* how often its link came up */
    /* Its control link (N4). */
    uint64_t frame_ns;    /* the newest frame came then */
    uint64_t asked_ns;    /* nothing has come since this was asked; 0: nothing is asked */
    uint64_t again_ns;    /* it is asked once more then */
    uint64_t mesh_ask_ns; /* it is asked for its copy of the mesh not before: K3 of sched_copy.c */
    uint8_t mesh_denials;
};

/* sched_node.c */
struct sched_node *sched_node_find(const struct shoal_sched *s, struct shoal_node_id id);
/* One that gossip has not told of yet has its place from now on. NULL: the table is full, or no memory. */
struct sched_node *sched_node_expect(struct shoal_sched *s, struct shoal_node_id id);
/* A node of whose return nobody knows: dead, left, forgotten, removed. */
bool sched_node_is_gone(const struct shoal_sched *s, const struct sched_node *node);
/* It has left, was removed, or has been away for gossip's whole grace: what it held is to be made good without it. */
bool sched_gone_for_good(const struct shoal_sched *s, struct shoal_node_id id);
bool sched_is_draining(const struct shoal_sched *s, struct shoal_node_id id);
/* It has told that its version takes jobs of so many workers, or has told nothing of itself yet. */
bool sched_node_takes(const struct shoal_sched *s, const struct sched_node *node, uint32_t workers);
bool sched_is_removed(const struct shoal_sched *s, struct shoal_node_id id);           /* from the mesh */
bool sched_node_available(const struct shoal_sched *s, const struct sched_node *node); /* may guard */
const struct shoal_cards *sched_node_cards(const struct sched_node *node);
const char *sched_node_domain(const struct sched_node *node); /* "": a domain of its own */
void sched_node_set_cards(struct sched_node *node, const struct shoal_cards *cards);
void sched_nodes_free(struct shoal_sched *s);
void sched_nodes_changed(struct shoal_sched *s); /* who may guard or work has changed */
void sched_on_node(struct shoal_sched *s, const struct shoal_sched_node *node);
void sched_on_link(struct shoal_sched *s, struct shoal_node_id node, enum shoal_sched_link_state state);
void sched_support_timer(struct shoal_sched *s);
void sched_link_heard(struct shoal_sched *s, struct shoal_node_id node); /* a frame has come over it */
enum shoal_err sched_on_datagram(struct shoal_sched *s, struct shoal_node_id from, struct shoal_view bytes);
void sched_group_told(struct shoal_sched *s, struct sched_group *g); /* told hosts = members */
void sched_group_untell(struct shoal_sched *s, struct sched_group *g);
void sched_group_claims(struct shoal_sched *s, struct sched_group *g);
/* 0: heard, or never of interest; else since when nothing was heard of it. */
uint64_t sched_silent_since(const struct shoal_sched *s, struct shoal_node_id node);
/* No more support is wanted of it from here; who counted it as silent looks again. */
void sched_support_remove(struct shoal_sched *s, struct shoal_node_id node);
/* Rendezvous order: the higher the nearer. */
uint64_t sched_score(const struct shoal_sched *s, struct shoal_job_id job, struct shoal_node_id node);

#endif
