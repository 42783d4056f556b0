/* The rows by which lists show jobs: made here whenever a group, a record or a deletion changes. */
#ifndef SCHED_INDEX_H
#define SCHED_INDEX_H

#include "shoal/sched.h"

struct shoal_sched;
struct sched_group;

/* sched_index.c */
void sched_index_dirty(struct shoal_sched *s, struct sched_group *g);  /* its row may have changed */
void sched_index_forget(struct shoal_sched *s, struct sched_group *g); /* it is about to be freed */
void sched_index_id(struct shoal_sched *s, struct shoal_job_id id);    /* group, record or deletion came or went */
/* Keep in a group's mark what lists show of it, when it is parked; and tell the lists of a parked one, at start. */
struct shoal_view sched_index_row(struct shoal_sched *s, const struct sched_group *g,
                                  uint8_t bytes[SHOAL_SCHED_ROW_BYTES_MAX], struct shoal_sched_version *version);
/* The row of an archive record; empty: it does not decode. */
struct shoal_view sched_index_archived(struct shoal_view facts, bool final, uint8_t bytes[SHOAL_SCHED_ROW_BYTES_MAX],
                                       struct shoal_sched_version *version);
void sched_index_parked(struct shoal_sched *s, struct shoal_job_id id, struct shoal_sched_version version,
                        struct shoal_view row);
void sched_index_restored(struct shoal_sched *s);
void sched_index_flush(struct shoal_sched *s); /* at the end of each step */

#endif
