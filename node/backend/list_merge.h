/* Rows of many nodes become one list, by job: pure, no I/O and no clock. list_ask.c asks and gives the answers here.
 *
 * K1. Of one job the newest row counts: (configuration, term, applied). A deletion that anybody knows of counts more.
 * K2. A row is beyond doubt if the group's leader gave it, or if two nodes or more have it, none of them holds entries
 *     that it has not applied, and what is asked for cannot hide a newer one: the job has ended, or all rows of it were
 *     asked for. Otherwise its leader has just died, or is elsewhere with another state: it is asked for by its id.
 * K4. Memory: twice N rows and one answer. When more jobs match, the last are dropped, and the list ends there.
 * K5. No row lies behind that end, whoever answers last: the next page begins there, and would show it again. */
#ifndef NODE_BACKEND_LIST_MERGE_H
#define NODE_BACKEND_LIST_MERGE_H

#include "shoal/job_facts.h"
#include "list_query.h"

struct merged {
    struct shoal_list_place place;
    struct shoal_job_facts *facts; /* NULL: deleted */
    struct shoal_sched_version version;
    unsigned seen; /* nodes that gave it */
    bool leads, tail, deleted;
};

/* Zeroes and a query are an empty one. */
struct list_merge {
    struct list_query query;
    bool by_id;          /* the answers are to `doubts`: everybody was asked for these jobs by their ids */
    struct merged *rows; /* in order, up to `upto` */
    size_t count, cap;
    bool cut; /* there may be rows behind `upto` */
    struct shoal_list_place upto;
    struct list_query doubts;
};

void list_merge_deinit(struct list_merge *m);
/* One node's answer. False: it does not decode, its index is not whole, or there is no memory; what was read counts. */
SHOAL_MUST_CHECK bool list_merge_answer(struct list_merge *m, struct shoal_view bytes);
/* The jobs in doubt (K2) into `doubts`. How many. */
uint32_t list_merge_doubt(struct list_merge *m);
/* The rows in doubt leave the list: the answers to `doubts` bring them back. */
void list_merge_forget(struct list_merge *m);
/* Rows that nobody could settle: they count, and the page says how many they are. */
unsigned list_merge_unsettled(const struct list_merge *m);
/* The rows that match, in order, to the end of `page`, up to `max` in all; `end`: the place up to which it goes. The
 * list is empty then, and `query`, `cut` and `upto` stay. */
void list_merge_take(struct list_merge *m, struct shoal_job_facts **page, size_t *count, size_t max,
                     struct shoal_list_place *end);

#endif
