/* The mesh's signed copy. */
#ifndef SCHED_COPY_H
#define SCHED_COPY_H

#include "shoal/sched.h"
#include "sched_wire.h"

struct shoal_sched;
struct sched_group;

/* sched_copy.c */
/* Of the copy that a replica would give. */
uint64_t sched_mesh_version(const struct sched_group *g);
void sched_copy_make(struct shoal_sched *s);
/* A step begins: no action names the bytes of copies that were replaced in the last one. */
void sched_copy_begin(struct shoal_sched *s);
enum shoal_err sched_copy_take(struct shoal_sched *s, struct shoal_view bytes, bool trusted);
void sched_on_mesh_heard(struct shoal_sched *s, struct shoal_node_id author, struct shoal_view payload);
void sched_on_mesh_get(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_on_mesh_part(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_copy_due(struct shoal_sched *s);

#endif
