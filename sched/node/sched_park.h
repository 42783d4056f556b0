/* Pending jobs that leave memory, and come back. */
#ifndef SCHED_PARK_H
#define SCHED_PARK_H

#include "shoal/sched.h"
#include "shoal/sched_look.h"
#include "sched_wire.h"

struct shoal_sched;
struct sched_group;

/* A group that has left memory. */
enum parked_state {
    PARKED_WRITING, /* its mark is on its way to the disk */
    PARKED_QUIET,
    PARKED_LOADING, /* the shell reads it */
};
#define PARKED_STATES 3

struct sched_parked {
    struct shoal_job_id id;
    uint8_t state; /* enum parked_state */
    uint8_t guardian_count;
    uint8_t target;
    uint8_t device; /* enum shoal_job_device: whose queue */
    bool behind;    /* a guardian had not got all of it */
    bool wanted;    /* somebody asked for it */
    bool turn;      /* it is loaded since its turn has come */
    bool first;     /* it is wanted by this node: the others are woken, and this one campaigns */
    uint16_t owner; /* places in the table of hosts */
    uint16_t guardians[SHOAL_SCHED_SOURCES_MAX];
    uint32_t priority;
    uint32_t heap_at;
    uint64_t ticket_ms;
    uint64_t mark; /* of the write that parked it */
};

struct sched_park; /* rows and queue: sched_park_state.h */

/* The ways in which a RESTORE concerns the parked groups. */
enum parked_how {
    PARKED_NOT,   /* nothing: it is restored */
    PARKED_STAYS, /* it is dealt with */
    PARKED_COMES, /* it is restored; then sched_park_came() or sched_park_fails() */
};

/* sched_park.c */
enum shoal_err sched_park_create(struct shoal_sched *s);
void sched_park_destroy(struct shoal_sched *s);
/* True: this pending job, led here, gets no lead yet. */
bool sched_park_holds(struct shoal_sched *s, struct sched_group *g);
void sched_park_count(struct shoal_sched *s, struct sched_group *g);  /* after its lead or its job has changed */
void sched_park_forget(struct shoal_sched *s, struct sched_group *g); /* it is about to be removed */
/* True: it has left memory. */
bool sched_park_tend(struct shoal_sched *s, struct sched_group *g);
void sched_on_park(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
bool sched_park_stored(struct shoal_sched *s, struct shoal_job_id id, struct shoal_sched_mark mark);
bool sched_is_parked(const struct shoal_sched *s, struct shoal_job_id id);
/* The node that brings it back when its turn comes. False: it is not parked here. */
bool sched_park_owner(const struct shoal_sched *s, struct shoal_job_id id, struct shoal_node_id *owner);
/* It is wanted now. False: it is not parked here. */
bool sched_park_wake(struct shoal_sched *s, struct shoal_job_id id);
void sched_park_want(struct shoal_sched *s, struct shoal_job_id id); /* by this node, of one that is parked here */
enum parked_how sched_park_restore(struct shoal_sched *s, const struct shoal_sched_event *event);
/* The time at which a group that comes back campaigns, if nobody leads it; 0: it was not parked. */
uint64_t sched_park_campaign(struct shoal_sched *s, struct shoal_job_id id);
void sched_park_came(struct shoal_sched *s, struct sched_group *g);
void sched_park_fails(struct shoal_sched *s, struct shoal_job_id id);
void sched_park_due(struct shoal_sched *s);
uint64_t sched_park_deadline(const struct shoal_sched *s);
size_t sched_park_count_unspared(const struct shoal_sched *s); /* those that this node is missed by: sched_keep_spares() */
void sched_park_stats(const struct shoal_sched *s, struct shoal_sched_stats *stats);

#endif
