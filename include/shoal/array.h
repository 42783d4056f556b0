/* Array jobs: one job, one specification, many tasks that differ in their index alone.
 *
 *     0-9      1-100:7      3,5,9-12      0-999%8
 *     range    with a step  a list        at most 8 at one time
 *
 *     PENDING --placed--> RUNNING --exit status 0--> DONE
 *        ^  |                | | \--anything else--> FAILED
 *        |  |                | |
 *        |  +--the job ends--|-+-------------------> STOPPED
 *        +----its host was lost, or it never started
 *
 * T1. A task is RUNNING exactly while one placement of the job names its index.
 * T2. DONE, FAILED and STOPPED never change: a result is committed once.
 * T3. At most `at_once_max` tasks are RUNNING.
 * T5. The tasks of a service are its replicas: at most `replicas` are placed, none is ever DONE or FAILED, and one that
 *     has ended is PENDING again until the job ends.
 * T6. The document of a service changes only by an edit that was made from the revision which it has.
 * T4. Only an entry of kind TASKS, a recovery or the end of the job moves a task. */
#ifndef SHOAL_ARRAY_H
#define SHOAL_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/ids.h"
#include "shoal/limits.h"

/* The text of an array as a user writes it, with its NUL. */
#define SHOAL_ARRAY_TEXT_BYTES 256
#define SHOAL_ARRAY_RANGES_MAX 32
/* So that nine digits name a task. */
#define SHOAL_ARRAY_INDEX_MAX 999999999u

#define SHOAL_ARRAY_NONE UINT32_MAX

struct shoal_array_range {
    uint32_t first;
    uint32_t step; /* at least 1 */
    uint32_t count;
};

/* Tasks in the order of the text: position 0 is the first index of the first range. */
struct shoal_array {
    uint32_t task_count;
    uint32_t at_once_max; /* 0: no limit of its own */
    uint32_t index_min, index_max;
    uint32_t range_count;
    struct shoal_array_range ranges[SHOAL_ARRAY_RANGES_MAX];
};

/* INVALID with cause and remedy: not a range, reversed, overlapping, no task, more than SHOAL_ARRAY_TASKS_MAX. */
SHOAL_MUST_CHECK enum shoal_err shoal_array_parse(const char *text, struct shoal_array *array, struct shoal_msg *msg);
/* The index of the task at a position below task_count. */
uint32_t shoal_array_index(const struct shoal_array *array, uint32_t position);
/* SHOAL_ARRAY_NONE: the array has no such index. */
uint32_t shoal_array_position(const struct shoal_array *array, uint32_t index);

/* ---- Tasks ------------------------------------------------------------------------------------------------------- */

enum shoal_task_state {
    SHOAL_TASK_PENDING,
    SHOAL_TASK_RUNNING,
    SHOAL_TASK_DONE,
    SHOAL_TASK_FAILED,
    SHOAL_TASK_STOPPED,
    SHOAL_TASK_STATE_COUNT,
};
const char *shoal_task_state_name(enum shoal_task_state state);

/* How a placement of a task ended. */
enum shoal_task_outcome {
    SHOAL_TASK_ENDED,     /* it exited: DONE or FAILED by its exit code */
    SHOAL_TASK_AGAIN,     /* its host was lost: PENDING, and the attempt counts */
    SHOAL_TASK_UNSTARTED, /* it never started: PENDING, and the attempt does not count */
    SHOAL_TASK_ABANDONED, /* its host was lost too often, or the job stops */
    SHOAL_TASK_OUTCOME_COUNT,
};

/* Hosts of one job that its tasks remember; a task of a later host shows none. */
#define SHOAL_ARRAY_HOSTS_MAX 255
#define SHOAL_ARRAY_HOST_NONE 255

struct shoal_task {
    uint32_t start_ms; /* after the job's creation, as committed; of the newest attempt */
    uint32_t end_ms;
    int16_t exit_code; /* -1: none, or not known */
    uint8_t state;     /* enum shoal_task_state */
    uint8_t attempts;  /* started */
    uint8_t host;      /* of the newest attempt: into hosts, or SHOAL_ARRAY_HOST_NONE */
};
_Static_assert(sizeof(struct shoal_task) == 16, "an array of the largest size takes 1.6 MB a replica");

/* The tasks of one job. `tasks` lies behind it, by position. */
struct shoal_tasks {
    struct shoal_array array;
    uint32_t counts[SHOAL_TASK_STATE_COUNT];
    uint32_t replicas;     /* of a service: how many are to run (T5) */
    uint32_t pending_from; /* no task below this position is PENDING */
    uint32_t touched;      /* no task at or above this position has ever been placed */
    uint32_t host_count;
    struct shoal_node_id hosts[SHOAL_ARRAY_HOSTS_MAX];
    struct shoal_task tasks[];
};

/* One line of `job tasks`. */
struct shoal_task_row {
    uint32_t index;
    uint8_t state; /* enum shoal_task_state */
    uint8_t attempts;
    int32_t exit_code;         /* -1: none, or not known */
    struct shoal_node_id node; /* zero: none, or not known */
    uint64_t start_ms, end_ms; /* wall clock; 0: not yet */
};

/* ---- Pages of the table ------------------------------------------------------------------------------------------ */

/* Rows of one page: an answer stays small beside what else goes over a link. */
#define SHOAL_TASKS_PAGE_MAX 500

/* A question for tasks: those behind `after_index` (SHOAL_ARRAY_NONE: from the first), of the states whose bits are
 * set (0: all). */
struct shoal_tasks_ask {
    uint32_t after_index;
    uint8_t states;
    uint16_t limit; /* 1 to SHOAL_TASKS_PAGE_MAX */
};
#define SHOAL_TASKS_ASK_BYTES 7

struct shoal_tasks_page {
    uint32_t next; /* what `after` of the next page is; SHOAL_ARRAY_NONE: this was the last */
    uint32_t row_count;
    struct shoal_task_row rows[SHOAL_TASKS_PAGE_MAX];
};
#define SHOAL_TASKS_PAGE_BYTES (8 + SHOAL_TASKS_PAGE_MAX * 42)

size_t shoal_tasks_ask_encode(const struct shoal_tasks_ask *ask, uint8_t bytes[SHOAL_TASKS_ASK_BYTES]);
SHOAL_MUST_CHECK enum shoal_err shoal_tasks_ask_decode(struct shoal_view bytes, struct shoal_tasks_ask *ask);
/* `cap` is at least SHOAL_TASKS_PAGE_BYTES. */
size_t shoal_tasks_page_encode(const struct shoal_tasks_page *page, uint8_t *bytes, size_t cap);
SHOAL_MUST_CHECK enum shoal_err shoal_tasks_page_decode(struct shoal_view bytes, struct shoal_tasks_page *page);

#endif
