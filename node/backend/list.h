/* Lists of jobs: what this node answers (list_serve.c), and the list that it makes of all nodes' answers
 * (list_ask.c). */
#ifndef NODE_BACKEND_LIST_H
#define NODE_BACKEND_LIST_H

#include "shoal/job_facts.h"
#include "list_query.h"
#include "node/agent/agent.h"

/* The answer of this node, encoded. Exactly once, maybe before this returns; the view is borrowed for the call. */
typedef void list_served_fn(void *arg, enum shoal_err err, const char *text, struct shoal_view answer);
void list_serve(struct agent *agent, const struct list_query *query, list_served_fn *done, void *arg);

/* A list of the whole mesh. `rows` in order; facts decoded. Borrowed for the call. */
struct list_page {
    const struct shoal_job_facts *const *rows;
    size_t count;
    struct shoal_list_place next; /* set: more may follow */
    bool complete;
    const char *const *missing;
    size_t missing_count;
    unsigned unsettled;
};
typedef void list_page_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct list_page *page);
/* FULL: too many lists at once. Exactly once, never before this returns OK. */
SHOAL_MUST_CHECK enum shoal_err list_ask(struct agent *agent, const struct list_query *query, list_page_fn *done,
                                         void *arg);

#endif
