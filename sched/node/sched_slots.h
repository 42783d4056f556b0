/* This host's slots, and what leads and slots of this node tell each other. */
#ifndef SCHED_SLOTS_H
#define SCHED_SLOTS_H

#include "shoal/sched.h"
#include "shoal/slots.h"

struct shoal_sched;

/* This host's slots: sched_slots.c. */
struct sched_slots {
    struct shoal_slots *core;
    struct shoal_slots_actions *actions;
    uint64_t due_ns; /* when its deadline was met last, and how often at that instant */
    uint32_t due_count;
    uint64_t floor_ns;     /* not due again before */
    uint64_t kept_version; /* of the table that was kept last */
    uint64_t kept_ns;
    struct shoal_buf bytes;
    uint64_t news_free; /* free slots, as told by news last */
};

/* Messages between leads and slots of this node: sched_local.c. */
struct sched_local {
    struct shoal_view list[SHOAL_SCHED_LOCAL_MAX]; /* point into `pool` */
    size_t count, at;
    struct shoal_buf pool;
};

/* sched_slots.c */
SHOAL_MUST_CHECK enum shoal_err sched_slots_create(struct shoal_sched *s);
void sched_slots_destroy(struct shoal_sched *s);
SHOAL_MUST_CHECK enum shoal_err sched_slots_restore(struct shoal_sched *s, struct shoal_view bytes);
SHOAL_MUST_CHECK enum shoal_err sched_slots_step(struct shoal_sched *s, const struct shoal_slots_event *event);
struct shoal_host_order *sched_order(struct shoal_sched *s, enum shoal_host_order_kind kind);
void sched_on_host(struct shoal_sched *s, const struct shoal_host_event *event);
void sched_slots_ended(struct shoal_sched *s, struct shoal_job_id job); /* its group is gone for good: S12 */
void sched_slots_link(struct shoal_sched *s, struct shoal_node_id node);
void sched_slots_due(struct shoal_sched *s);
uint64_t sched_slots_deadline(const struct shoal_sched *s);

/* sched_local.c */
SHOAL_MUST_CHECK enum shoal_err sched_local_create(struct shoal_sched *s);
void sched_host_send(struct shoal_sched *s, struct shoal_node_id to, struct shoal_view bytes);
SHOAL_MUST_CHECK enum shoal_err sched_on_host_frame(struct shoal_sched *s, struct shoal_node_id from,
                                                    struct shoal_view bytes);
void sched_local_run(struct shoal_sched *s);

#endif
