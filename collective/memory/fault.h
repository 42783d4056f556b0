/* Faults at named points, for tests: SHOAL_FAULT="point:step:action[:once][,...]". `step` may be * for any. Actions:
 * kill (SIGKILL), stop (SIGSTOP), exit (status 3), pause (0.1 s), break (its TCP connections). Many workers share one
 * environment: with `once`, the path of a file, only the process that creates the file strikes, and it writes its pid
 * there. Compiled in: a point costs one comparison when unset. */
#ifndef COLLECTIVE_FAULT_H
#define COLLECTIVE_FAULT_H

#include <stdint.h>

#include "shoal/error.h"

enum fault_point {
    FAULT_BEFORE_READY,
    FAULT_ENTERING,
    FAULT_FETCHING,
    FAULT_BEFORE_PUBLISH,
    FAULT_AFTER_PUBLISH,
    FAULT_MID_PARTS, /* some of a mini-batch is final and told, the rest is not there yet */
    FAULT_MID_EARLY, /* in the middle of a sum of such parts */
    FAULT_BEFORE_REDUCE,
    FAULT_MID_REDUCE,
    FAULT_MID_UPDATE,  /* some of my slices' weights are updated, out of place; the rest is not */
    FAULT_SLICES_DONE, /* my slices are, the others' I do not have yet */
    FAULT_AFTER_REDUCE,
    FAULT_BEFORE_COMPLETE,
    FAULT_AFTER_COMPLETE,
    FAULT_BEFORE_APPLY,
    FAULT_JOIN_COPY,
    FAULT_GIVE_COPY,
    FAULT_DONE,
    FAULT_BEFORE_FILES,
    FAULT_POINT_COUNT,
};

#define FAULT_RULES_MAX 4
struct fault_rule {
    uint32_t point;
    uint32_t action;
    uint64_t step;  /* UINT64_MAX: any */
    char once[112]; /* empty: every process strikes */
};
struct fault {
    uint32_t count;
    struct fault_rule rules[FAULT_RULES_MAX];
};

/* INVALID: `text` is not understood. NULL is no fault. */
enum shoal_err fault_init(struct fault *fault, const char *text, struct shoal_msg *msg);
void fault_strike(const struct fault *fault, enum fault_point point, uint64_t step);

static inline void fault_point(const struct fault *fault, enum fault_point point, uint64_t step)
{
    if (__builtin_expect(fault->count != 0, 0))
        fault_strike(fault, point, step);
}

#endif
