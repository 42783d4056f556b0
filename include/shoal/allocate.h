/* The allocation says which job deserves which slots: a pure function of a view, the same on every node that has the
 * same view (DESIGN 3, idea 3).
 *
 *     hosts, slots, jobs --canonical order--> counts --> places
 *
 * Counts do not look at who holds what, except that a running job keeps its minimum:
 *   1. A running job (it holds its minimum) keeps that minimum. Not elastic: minimum = maximum, it is never moved. A
 *      service keeps what it holds of its minimum.
 *   2. Services get what is missing of their minima, one slot at a time. Then waiting jobs get their minimum, all or nothing, in the order (priority descending, ticket time, id). The first
 *      that finds too little holds what there is for it: later ones are admitted only out of what it could not use. One
 *      that asks for more than the whole mesh has, holds nothing.
 *   3. The rest goes to services, then to elastic jobs, one slot at a time to the one with the fewest, higher priorities
 *      first; also what is held in step 2, since it is given back when it is enough. So what a service asks for comes out
 *      of what elastic jobs have above their minima, and nothing else (decision 0033).
 * Places: a job keeps what it holds as far as its count goes, then takes slots on hosts where it is already, then on
 * the hosts with the most free slots, ties by rendezvous of job and host. A service is spread: it goes where it has the fewest,
 * and gives back where it has the most, so that a host's death takes few of its replicas; but those that share cards fill one
 * card before the next (decision 0065).
 *
 * A1. The order of hosts and jobs in the view does not matter.
 * A2. f(apply(f(v))) = f(v): what it yields, once done, yields itself.
 * A3. Integers only; no chance, no clock; memory is taken at create.
 * Source: max-min fairness on a polymatroid (progressive filling; Bertsekas and Gallager, Data Networks, 6.5.2): a set
 * of counts is feasible if it flows from jobs to pools of alike slots, and a greedy step never has to be taken back. */
#ifndef SHOAL_ALLOCATE_H
#define SHOAL_ALLOCATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/error.h"
#include "shoal/ids.h"
#include "shoal/job.h"
#include "shoal/limits.h"

/* Kinds of slots that differ for some job: (device, numeric class, frameworks, jobs that cannot run there; of cards that services
 * share, their room and their pack). Slots of further kinds are not used (counted); of shares first. */
#define SHOAL_ALLOCATE_POOLS_MAX 32

#define SHOAL_ALLOCATE_FREE (-1)
#define SHOAL_ALLOCATE_OTHER (-2) /* held by a job that is not in the view, or not to be used */

/* A device beside those of enum shoal_job_device. Of a host: slots of one card that services share now. Of a job: a service
 * that needs a part of a card; it takes slots of cards that are shared by its pack and have the room, else whole ones. */
#define SHOAL_ALLOCATE_SHARE 3u
/* How many different parts of cards are told apart; services that need other ones, the largest, wait. */
#define SHOAL_ALLOCATE_PARTS_MAX 16

struct shoal_allocate_host {
    struct shoal_node_id id;
    uint8_t part;        /* of a host: cards that are shared are hosts of their own */
    uint8_t device;      /* enum shoal_job_device: CPU or GPU; or SHARE */
    uint32_t room_mib;   /* of each of its cards; SHARE: what is left. 0: none of it can be shared */
    uint64_t pack;       /* SHARE */
    uint32_t class_hash; /* shoal_class_hash(); 0: not known, fits all */
    uint32_t serves;     /* SHOAL_SERVES_*; 0: not told, fits all */
    bool usable;         /* false: nothing new goes there, what is held there does not count */
    bool draining;       /* not usable, either: what jobs that stay hold there is theirs, in place of slots elsewhere */
    uint32_t first_slot; /* into the view's slots */
    uint32_t slot_count;
};

struct shoal_allocate_job {
    struct shoal_job_id id;
    uint32_t priority;
    uint64_t ticket_ms;
    uint32_t min, max;   /* 0, 0: wants nothing */
    uint8_t device;      /* AUTO: any that are not shared */
    uint32_t gpu_mib;    /* SHARE */
    uint64_t pack;
    uint32_t class_hash; /* 0: any */
    uint32_t needs;      /* SHOAL_SERVES_*, all of them; 0: none */
    bool elastic;
    bool service; /* elastic, too, and its minimum is what it gives to nobody */
    bool stays;   /* what it has on a host that is drained goes on there to its end: scripts and tasks. Engines and replicas move */
    const struct shoal_node_id *unfit; /* hosts that will not do for it, whatever else they have; borrowed */
    uint32_t unfit_count;
};

struct shoal_allocate_input {
    const struct shoal_allocate_host *hosts;
    uint32_t host_count;
    const int32_t *slots; /* owner: index of a job of the view, or FREE, or OTHER */
    uint32_t slot_count;
    const struct shoal_allocate_job *jobs;
    uint32_t job_count;
    uint32_t slotless; /* hosts beside these that offer no slots, since their Python has no framework: for the explanation */
};

enum shoal_allocate_why {
    SHOAL_ALLOCATE_GIVEN,     /* all it wants */
    SHOAL_ALLOCATE_SHARED,    /* elastic: its fair share, below its maximum */
    SHOAL_ALLOCATE_NONE,      /* wants nothing */
    SHOAL_ALLOCATE_TOO_LARGE, /* the whole mesh has fewer slots of its kind than its minimum */
    SHOAL_ALLOCATE_HEAD,      /* first in the queue: what is free is held for it */
    SHOAL_ALLOCATE_BEHIND,    /* slots are held for the head of the queue */
    SHOAL_ALLOCATE_FULL,      /* all slots of its kind are taken by minima */
};

struct shoal_allocate_grant {
    uint32_t count;
    uint32_t held; /* as in the view, on usable hosts */
    enum shoal_allocate_why why;
    uint32_t mesh;  /* slots of its kind in the mesh */
    uint32_t avail; /* slots that it could have had as its minimum; HEAD: held for it */
    int32_t head;   /* BEHIND: index of the job that waits in front of it; else -1 */
};

struct shoal_allocate_out {
    /* Memory of the caller: one per job, one per slot. */
    struct shoal_allocate_grant *grants;
    int32_t *slots; /* new owner; OTHER stays OTHER */
    uint32_t pools;
    uint32_t slots_unused; /* of kinds beyond SHOAL_ALLOCATE_POOLS_MAX */
};

struct shoal_allocate; /* working memory */
/* FULL: no memory. */
SHOAL_MUST_CHECK enum shoal_err shoal_allocate_create(struct shoal_allocate **work, uint32_t hosts_max,
                                                      uint32_t slots_max, uint32_t jobs_max);
void shoal_allocate_destroy(struct shoal_allocate *work); /* accepts NULL */

/* TOO_BIG: larger than at create. INVALID: indices that do not fit together; two hosts or two jobs with one id. */
SHOAL_MUST_CHECK enum shoal_err shoal_allocate(struct shoal_allocate *work, const struct shoal_allocate_input *view,
                                               struct shoal_allocate_out *out);
/* One line for a person: the binding constraint and what would help. */
void shoal_allocate_explain(const struct shoal_allocate_input *view, const struct shoal_allocate_out *out, uint32_t job,
                            char *text, size_t cap);

#endif
