/* The table of the index of jobs (shoal/job_index.h): what its threads do. Each call is one transaction; a write and any
 * number of walks may run at one time, in different threads. */
#ifndef NODE_INDEX_TABLE_H
#define NODE_INDEX_TABLE_H

#include "shoal/job_index.h"

struct index_table;

/* A value that is in memory. Owned by the index; a thread only reads it. */
struct index_row {
    struct index_row *next;
    struct shoal_job_id id;
    unsigned refs; /* the loop's thread counts */
    bool active;
    uint32_t len; /* 0: removed */
    uint8_t bytes[];
};

/* STORAGE. What was there is gone. */
SHOAL_MUST_CHECK enum shoal_err index_table_open(struct index_table **table, const char *dir, struct shoal_msg *msg);
void index_table_close(struct index_table *table);
/* All of them or none. FULL, STORAGE. */
SHOAL_MUST_CHECK enum shoal_err index_table_write(struct index_table *table, struct index_row *const *rows,
                                                  size_t count);
/* Appended to `value`. NOT_FOUND. */
SHOAL_MUST_CHECK enum shoal_err index_table_get(struct index_table *table, struct shoal_job_id id,
                                                struct shoal_buf *value);
/* As the scan says, without `done`; `newest`, `count` of them in order of ids, stand before what the table has. */
SHOAL_MUST_CHECK enum shoal_err index_table_walk(struct index_table *table, const struct shoal_index_scan *scan,
                                                 struct index_row *const *newest, size_t count);

#endif
