/* The tasks of an array, as the files of this room share them. Rules T1 to T5: shoal/array.h. */
#ifndef SHOAL_JOB_ARRAY_H
#define SHOAL_JOB_ARRAY_H

#include "shoal/job.h"
#include "shoal/job_entry.h"
#include "shoal/wire.h"

/* The table of an array as its specification says, all tasks PENDING. MALFORMED: the text is none. FULL: no memory. */
SHOAL_MUST_CHECK enum shoal_err job_tasks_create(struct shoal_tasks **tasks, const char *text);
unsigned job_apply_tasks(struct shoal_job *job, const struct shoal_job_entry *entry);
unsigned job_apply_scale(struct shoal_job *job, const struct shoal_job_entry *entry);
unsigned job_apply_edit(struct shoal_job *job, const struct shoal_job_entry *entry);
/* Of a service: room for its document, and the one that it was deployed with. FULL, MALFORMED. */
SHOAL_MUST_CHECK enum shoal_err job_document_create(struct shoal_job *job);
/* The job has ended: no task starts any more. */
void job_tasks_stop(struct shoal_job *job);
/* A recovery generation begins: placements of before are void, and their tasks run again. */
void job_tasks_recover(struct shoal_job *job);
/* For the digest. */
uint64_t job_tasks_word(const struct shoal_job *job);
void job_put_tasks(struct shoal_writer *w, const struct shoal_tasks *tasks);
void job_get_tasks(struct shoal_reader *r, struct shoal_tasks *tasks);
bool job_tasks_valid(const struct shoal_job *job); /* T1, of foreign bytes */

/* Of job.c. */
void job_drop_worker(struct shoal_job *job, uint64_t worker_id);
unsigned job_move_state(struct shoal_job *job, uint8_t state, uint64_t wall_ms);

#endif
