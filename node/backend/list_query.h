/* A list asks with a query, and a node answers with rows: pure, and safe in any thread.
 *
 * Both travel as MessagePack maps: a node that does not know a field of a question leaves it out of account, and whoever
 * asked looks at each row again. */
#ifndef NODE_BACKEND_LIST_QUERY_H
#define NODE_BACKEND_LIST_QUERY_H

#include "shoal/backend.h"
#include "shoal/job.h"
#include "shoal/job_facts.h"
#include "shoal/sched.h"
#include "shoal/sched_look.h"

#define LIST_QUERY_BYTES_MAX (16 * SHOAL_KIB)
#define LIST_ANSWER_BYTES_MAX (960 * SHOAL_KIB)
#define LIST_NAME_BYTES 128
_Static_assert(LIST_ANSWER_BYTES_MAX + 4 * SHOAL_KIB <= SHOAL_FRAME_BYTES_MAX, "an answer fits a frame");

struct list_query {
    char creator[SHOAL_JOB_TEXT_BYTES]; /* "": anybody's */
    char name[LIST_NAME_BYTES];         /* a part of the job's name */
    char ending[SHOAL_JOB_ID_DIGITS + 1];
    uint32_t states; /* bit s: enum shoal_job_state; 0: all */
    uint64_t since_ms, until_ms;
    enum shoal_job_sort sort;
    bool descending;
    uint32_t limit;
    struct shoal_list_place after;
    /* Of these jobs alone, whatever else is asked for. */
    struct shoal_job_id ids[SHOAL_LIST_ROWS_MAX];
    uint32_t id_count;
};

void list_query_of(const struct shoal_job_filter *filter, struct list_query *query);
SHOAL_MUST_CHECK enum shoal_err list_query_encode(const struct list_query *query, uint8_t *bytes, size_t cap,
                                                  size_t *len);
SHOAL_MUST_CHECK enum shoal_err list_query_decode(struct shoal_view bytes, struct list_query *query);
/* Every state that is asked for is one of a job that has not ended. */
bool list_query_is_active(const struct list_query *query);
/* It depends on what changes during a job's life. */
bool list_query_is_mutable(const struct list_query *query);
/* The ids between which its jobs lie. */
void list_query_range(const struct list_query *query, struct shoal_job_id *low, struct shoal_job_id *high);
bool list_query_takes_id(const struct list_query *query, struct shoal_job_id id);
/* All but the place. */
bool list_query_takes(const struct list_query *query, const struct shoal_job_facts *facts);
void list_place_of(enum shoal_job_sort sort, const struct shoal_job_facts *facts, struct shoal_list_place *place);
/* In the order of the list. */
int list_place_cmp(const struct list_query *query, const struct shoal_list_place *a, const struct shoal_list_place *b);

/* ---- Rows ---- */

/* As a node tells of a job. */
struct list_row {
    struct shoal_job_id id;
    struct shoal_sched_version version;
    bool leads, tail, deleted; /* as in struct shoal_sched_row; deleted: there may be no facts */
    struct shoal_view facts;
};

/* A value of the index: version byte, deleted, version (3 x u64), facts. */
#define LIST_VALUE_HEAD_BYTES 26
void list_value_encode(bool deleted, struct shoal_sched_version version, struct shoal_view facts,
                       struct shoal_buf *value);
SHOAL_MUST_CHECK bool list_value_decode(struct shoal_view value, struct list_row *row);
/* V1. The row of a job on this node: what its group says (`live`; NULL: it is not loaded), else what the index says
 * (`value`; empty: nothing). False: neither, or the value does not decode. */
SHOAL_MUST_CHECK bool list_row_now(struct shoal_job_id id, const struct shoal_sched_row *live, struct shoal_view value,
                                   struct list_row *row);

/* A node's answer: rows in order, and up to where it has looked (`more`: there may be others behind). */
struct list_answer {
    bool more;
    bool broken; /* its index is not whole */
    struct shoal_list_place upto;
    uint32_t count;
    struct list_row *rows; /* views into the bytes; free() it */
};
SHOAL_MUST_CHECK enum shoal_err list_answer_encode(const struct list_answer *answer, struct shoal_buf *bytes);
SHOAL_MUST_CHECK enum shoal_err list_answer_decode(struct shoal_view bytes, struct list_answer *answer);

#endif
