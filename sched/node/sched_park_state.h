/* The fields of the parked groups, and what sched_park.c and sched_park_queue.c share. Picture and rules: sched_park.c. */
#ifndef SCHED_PARK_STATE_H
#define SCHED_PARK_STATE_H

#include "sched_park.h"

#define HEAP_NONE UINT32_MAX
#define LOOK_IDLE_NS                                                                                                   \
    (500 * SHOAL_MS) /* between two looks while there is nothing to do: hosts die, heads of the queue stay stuck */

/* A node that is named in rows. */
struct park_host {
    struct shoal_node_id node;
    uint32_t rows;
    bool alive; /* as the queue was made with */
};

/* Jobs that ask for one kind of device: those that wait for another are not in their way. */
struct queue {
    struct sched_parked **heap; /* those whose turn is decided here, the first claim on top */
    size_t count;
    uint32_t shown, held;
    uint32_t widened;  /* shown beyond loaded_max, since those at the head are stuck */
    uint64_t taken_ns; /* when one that is shown left the queue last */
};

struct sched_park {
    struct sched_parked **rows; /* in order of ids */
    size_t count, cap;
    struct queue queues[SHOAL_JOB_DEVICE_COUNT];
    struct park_host *hosts;
    size_t host_count, host_cap;
    size_t care_at;   /* where the next look at guardians begins */
    uint64_t care_ns; /* and when: it walks, and the queue is looked at far more often */
    uint32_t loading;
    uint64_t look_ns, looked_ns;
    struct sched_group **list; /* scratch: held groups, in order of claims */
};

/* sched_park.c */
bool sched_park_is_alive(const struct shoal_sched *s, struct shoal_node_id id);
bool sched_park_is_mine(const struct shoal_sched *s, const struct sched_parked *row); /* this node brings it back: Q4 */
bool sched_park_needs_care(const struct shoal_sched *s, const struct sched_parked *row); /* Q7 */
bool sched_park_ask_or_park(struct shoal_sched *s, struct sched_group *g);               /* true: it is parked */

/* sched_park_queue.c */
void sched_park_queue_put(struct shoal_sched *s, struct sched_parked *row); /* if its turn is decided here */
void sched_park_queue_take(struct sched_park *p, struct sched_parked *row);
bool sched_park_only_waits(const struct sched_group *g);        /* it has nothing to do but to wait */
void sched_park_look_at(struct shoal_sched *s, uint64_t at_ns); /* the queue, then or soon after */

#endif
