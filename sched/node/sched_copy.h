/* The mesh's sealed copy. */
#ifndef SCHED_COPY_H
#define SCHED_COPY_H

#include "shoal/sched.h"
#include "sched_wire.h"

struct shoal_sched;
struct sched_group;
struct sched_sealing;

/* sched_copy.c */
/* The version of the copy that a replica would give. */
uint64_t sched_mesh_version(const struct sched_group *g);
void sched_copy_make(struct shoal_sched *s); /* or what waits for seals is due */
/* The state of the group's machine, encoded, takes the place of what is in `state`. False: no memory, nothing has changed. */
bool sched_copy_state(const struct sched_group *g, struct shoal_buf *state);
/* A step begins: no action names the bytes of copies that were replaced in the last one. */
void sched_copy_begin(struct shoal_sched *s);
enum shoal_err sched_copy_take(struct shoal_sched *s, struct shoal_view bytes, bool trusted);
/* A copy that sched_seal.c has checked. FULL: not now. */
SHOAL_MUST_CHECK enum shoal_err sched_copy_replace(struct shoal_sched *s, const struct mesh_copy *copy);
/* As the version before would, where most guardians are of that version. */
SHOAL_MUST_CHECK enum shoal_err sched_copy_make_old(struct shoal_sched *s, const struct sched_sealing *sealing);
/* `author` says that it holds this version. */
void sched_copy_heard(struct shoal_sched *s, struct shoal_node_id author, uint64_t version, uint64_t config);
/* There is news of that node: it may be asked now. */
struct sched_node;
void sched_copy_look(struct shoal_sched *s, const struct sched_node *node);
/* Somebody has a newer one, as it says. */
bool sched_copy_is_behind(const struct shoal_sched *s);
void sched_on_mesh_heard(struct shoal_sched *s, struct shoal_node_id author, struct shoal_view payload);
void sched_on_mesh_get(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_on_mesh_part(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_copy_due(struct shoal_sched *s);

#endif
