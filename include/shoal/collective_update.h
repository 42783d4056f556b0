/* The update of the weights, made by libshoal: element by element, divided among the workers of a host.
 *
 *   shoal_step_assign
 *   shoal_step_update    <- what the update does with each element, and where weights and state lie now
 *   ... publish, reduce: as soon as a slice of the sum is final, its owner updates it, out of place, in its region
 *   ... complete, apply_allowed
 *   shoal_step_updated   -> the new vectors, whole; or NOT_FOUND: the caller updates all by itself, by shoal_update_run
 *
 * U1. The old vectors stand until the step after is assigned everywhere: a death in between leaves the old state or the
 *     new one, whole. The new ones belong to the result of a step: they count once the step may be applied.
 * U2. The bits do not depend on who updates what, nor on the instruction set: no rule mixes elements, none is fused.
 * U3. What is shown is private to the process: what it writes there is seen by nobody else, and is read by its own next
 *     update. It stands until the step after the next one is reduced.
 * U4. Members whose updates differ, or of whom one gives none, update by themselves. */
#ifndef SHOAL_COLLECTIVE_UPDATE_H
#define SHOAL_COLLECTIVE_UPDATE_H

#include "shoal/collective.h"

/* Weights, and at most three vectors of state. */
#define SHOAL_UPDATE_VECTORS 4
#define SHOAL_UPDATE_NUMBERS 8

/* g: the gradient; p: vector 0; a, b, c: vectors 1, 2, 3 of those that the flags ask for. WEIGHT_DECAY adds decay * p to
 * g, which MAXIMIZE has negated before. */
enum shoal_update_rule {
    SHOAL_UPDATE_SGD,     /* lr, momentum, 1 - dampening, decay. MOMENTUM: a = momentum * a + (1 - dampening) * g */
    SHOAL_UPDATE_ADAM,    /* lr / bias 1, 1 - beta 1, beta 2, 1 - beta 2, root of bias 2, epsilon, decay. a mean, b of squares */
    SHOAL_UPDATE_RMSPROP, /* lr, alpha, 1 - alpha, epsilon, momentum, decay. a of squares; MOMENTUM, then CENTERED, one more */
    SHOAL_UPDATE_ADAGRAD, /* lr of this step, epsilon, -, decay. a sum of squares */
    SHOAL_UPDATE_RULES,
};

enum shoal_update_flag {
    SHOAL_UPDATE_MOMENTUM = 1,
    SHOAL_UPDATE_NESTEROV = 2,
    SHOAL_UPDATE_MAXIMIZE = 4,
    SHOAL_UPDATE_WEIGHT_DECAY = 8,
    SHOAL_UPDATE_DECOUPLED = 16, /* Adam: p is multiplied with `decay` instead */
    SHOAL_UPDATE_AMSGRAD = 32,   /* Adam: c is the greatest b so far */
    SHOAL_UPDATE_CENTERED = 64,
};

/* Elements [begin, end) of the vector, mostly one parameter. `from` and `into` point to element `begin`. */
struct shoal_update_part {
    uint64_t begin;
    uint64_t end;
    uint32_t rule;
    uint32_t flags;
    float numbers[SHOAL_UPDATE_NUMBERS];
    const float *from[SHOAL_UPDATE_VECTORS];
    float *into[SHOAL_UPDATE_VECTORS]; /* of shoal_update_run; may be `from` */
};

/* The update of the step that was assigned: parts in order, without a gap, for the whole vector. Not more vectors than the
 * plan says. `turn`: how many steps of this call were train steps, with it: the same in all members. INVALID: something of
 * that is not so, or a part of a gradient was given already. */
SHOAL_API enum shoal_err shoal_step_update(struct shoal_comm *comm, uint64_t turn, const struct shoal_update_part *parts,
                                           uint32_t count);
/* Of the applied step: `now[i]` is vector i, NULL where the plan has none. NOT_FOUND: not made here (one worker on this
 * host, another update elsewhere, a result that was fetched). */
SHOAL_API enum shoal_err shoal_step_updated(struct shoal_comm *comm, float *now[SHOAL_UPDATE_VECTORS]);
/* The whole update of the applied step, here, by its gradient in the result. STALE: the old vectors were overwritten
 * meanwhile, since others went on without me: the state of this worker is lost. */
SHOAL_API enum shoal_err shoal_update_run(struct shoal_comm *comm, const struct shoal_update_part *parts, uint32_t count);
/* The vectors that shoal_step_updated has shown, with vector 0 at `weights`, stay where they are, as memory of the caller's
 * own, until the process ends: something else holds their addresses. INVALID: none are shown there. */
SHOAL_API enum shoal_err shoal_update_keep(struct shoal_comm *comm, const float *weights);

#endif
