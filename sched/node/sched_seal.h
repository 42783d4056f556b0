/* The seals that make a copy of the mesh genuine (sched_seal.c). */
#ifndef SCHED_SEAL_H
#define SCHED_SEAL_H

#include "shoal/buf.h"
#include "shoal/sched.h"
#include "sched_wire.h"

struct shoal_sched;
struct sched_group;

/* A guardian's word on a version, as it was heard. */
struct sched_seal_heard {
    struct shoal_node_id node;
    uint64_t version, config;
    struct mesh_seal seal;
};
#define SCHED_SEALS_HEARD_MAX (2 * SHOAL_SCHED_SOURCES_MAX)

/* The copy that this guardian would give, until a majority has sealed it. */
struct sched_sealing {
    struct mesh_copy copy;  /* its state is `state`; version 0: nothing waits */
    struct shoal_buf state; /* encoded */
    struct shoal_hash hash; /* of the state */
    struct mesh_seal own;
    uint64_t retry_ns;
    struct sched_seal_heard heard[SCHED_SEALS_HEARD_MAX];
    uint32_t heard_count;
};

/* sched_seal.c */
/* This guardian's own copy is to be sealed; it is taken when enough have. */
void sched_seal_begin(struct shoal_sched *s, const struct sched_group *g);
void sched_seal_due(struct shoal_sched *s);
void sched_on_seal(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
/* May this sealed copy replace the one that is held here? `seals` of a majority of those that it names are left in it.
 * DENIED: no. */
SHOAL_MUST_CHECK enum shoal_err sched_seal_check(struct shoal_sched *s, struct mesh_copy *copy);
/* A majority of its guardians say that this mesh is bound to the rules (L4). */
bool sched_seal_binds(const struct mesh_copy *copy);

#endif
