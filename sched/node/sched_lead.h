/* The controllers (shoal_lead) of the jobs that this node leads. */
#ifndef SCHED_LEAD_H
#define SCHED_LEAD_H

#include "shoal/job.h"
#include "shoal/job_facts.h"
#include "shoal/lead.h"
#include "shoal/sched.h"

struct shoal_sched;
struct sched_group;
struct sched_node;

/* sched_lead.c */
void sched_lead_tend(struct shoal_sched *s, struct sched_group *g); /* made, told, stepped as needed */
void sched_lead_end(struct sched_group *g);
/* Ended and deleted: the other guardians are told, then this one forgets it; who missed it asks, and is told (GONE). */
void sched_lead_delete(struct shoal_sched *s, struct sched_group *g);
void sched_lead_event(struct shoal_sched *s, struct sched_group *g, struct shoal_lead_event *event);
/* True: the lead was last given nothing, for what this mark stands for; it is from now on. 0: it is given something. */
bool sched_lead_waits_as(struct sched_group *g, uint64_t mark);
/* TARGET, unless it says what the lead was told last. */
void sched_lead_target(struct shoal_sched *s, struct sched_group *g, struct shoal_lead_event *event);
void sched_lead_floor(struct shoal_sched *s, const struct shoal_sched_event *from);
void sched_lead_records_mark(struct shoal_sched *s, const struct shoal_host_event *from);
enum shoal_lead_health sched_health_of(const struct shoal_sched *s, const struct sched_node *node);
void sched_job_facts(const struct shoal_sched *s, const struct sched_group *g, struct shoal_job_facts *facts);

#endif
