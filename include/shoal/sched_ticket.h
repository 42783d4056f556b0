/* Requests about a founding and a recovery give these back, as bytes: tickets (PROTOCOLS 2), what is left of a job
 * whose guardians' majority is lost (PROTOCOLS 3). */
#ifndef SHOAL_SCHED_TICKET_H
#define SHOAL_SCHED_TICKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/sched_event.h"

/* ---- Recovery (PROTOCOLS 3) -------------------------------------------------------------------------------------- */

/* A job whose guardians' majority is lost has this left: entries up to `index` of term `term` on `node`. Whatever was
 * acknowledged after them is missing. */
struct shoal_sched_recovery {
    bool done; /* founded, and led by `node` */
    struct shoal_node_id node;
    uint32_t generation; /* now */
    uint64_t term, index;
    uint64_t commit; /* known to be committed up to here; the rest is taken as committed */
    uint8_t guardian_count;
    uint8_t lost_count;
    struct shoal_node_id lost[SHOAL_GROUP_NODES_MAX];
};
#define SHOAL_SCHED_RECOVERY_BYTES_MAX 320
size_t shoal_sched_recovery_encode(const struct shoal_sched_recovery *recovery, uint8_t *bytes);
/* MALFORMED. */
SHOAL_MUST_CHECK enum shoal_err shoal_sched_recovery_decode(struct shoal_view bytes,
                                                            struct shoal_sched_recovery *recovery);

/* ---- Tickets (PROTOCOLS 2) -------------------------------------------------------------------------------------- */

struct shoal_sched_ticket {
    struct shoal_job_id job;
    struct shoal_hash spec_hash;
    uint64_t wall_ms; /* of issue; the order of claims */
    struct shoal_node_id issuer;
    struct shoal_incarnation incarnation; /* the issuer leads term 1 only in this one */
    uint64_t nonce;
    uint8_t target; /* guardians wanted */
    uint8_t guardian_count;
    struct {
        struct shoal_node_id node;
        struct shoal_store_id store;
    } guardians[SHOAL_SCHED_SOURCES_MAX];
    uint8_t key[SHOAL_SCHED_KEY_BYTES]; /* the issuer's */
    uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES];
};
/* Encode with the signature as it is. TOO_BIG: does not fit. */
SHOAL_MUST_CHECK enum shoal_err shoal_sched_ticket_encode(const struct shoal_sched_ticket *ticket, uint8_t *bytes,
                                                          size_t cap, size_t *len);
/* MALFORMED; signature and issuer are not checked here. */
SHOAL_MUST_CHECK enum shoal_err shoal_sched_ticket_decode(struct shoal_view bytes, struct shoal_sched_ticket *ticket);

#endif
