/* The control plane speaks and hears by gossip through this one place: the agent's shell and the simulator's use
 * these functions, so that neither can know a record that the other does not.
 *
 *     to gossip:    shoal_sched_action --PUBLISH_*--> shoal_control_publish() --> shoal_record
 *     from gossip:  shoal_record, shoal_member --> shoal_control_heard(), shoal_control_node() --> shoal_sched_event
 *
 * Pure: no I/O, no allocation. Records come from other nodes: what does not decode is as if it had not been said. A
 * later version may add fields to a map, which are passed over. */
#ifndef SHOAL_CONTROL_RECORD_H
#define SHOAL_CONTROL_RECORD_H

#include "shoal/gossip.h"
#include "shoal/sched.h"

/* A node says this of itself at start (SHOAL_RECORD_NODE_FACTS). On the wire: a head of kind FACTS and a map. */
struct shoal_facts_record {
    uint32_t cpus;
    bool simulated;
    uint32_t rules;                     /* SHOAL_SCHED_RULES */
    uint32_t serves;                    /* SHOAL_SERVES_*: what its Python has; 0: not told */
    uint32_t job_workers;               /* SHOAL_JOB_WORKERS_MAX of the version it runs; 0: not told, as of versions that take 64 */
    uint64_t mesh_version, mesh_config; /* as PUBLISH_MESH says them of its own */
    bool draining, drained;             /* see shoal/sched_event.h; nothing is left to move */
    char domain[SHOAL_SCHED_DOMAIN_BYTES];
    char numeric_class[SHOAL_CLASS_TEXT_BYTES];
    char api_url[96];
};
/* TOO_BIG: does not fit into `cap`; nothing is said. */
SHOAL_MUST_CHECK enum shoal_err shoal_facts_record_encode(const struct shoal_facts_record *facts, uint8_t *bytes,
                                                          size_t cap, size_t *len);
SHOAL_MUST_CHECK enum shoal_err shoal_facts_record_decode(struct shoal_view bytes, struct shoal_facts_record *facts);

/* Jobs whose pauses one load record tells. */
#define SHOAL_LOAD_JOBS_MAX 16

/* A hint for people, every few seconds (SHOAL_RECORD_NODE_LOAD). On the wire: a head of kind LOAD and a map; the pause is
 * the last one of the job's workers there, for a join or another change of epoch. */
struct shoal_load_record {
    uint32_t load_milli;
    uint64_t archive; /* another number: its part of the archive has changed; 0: not told */
    uint8_t count;
    struct {
        struct shoal_job_id job;
        uint32_t pause_us;
    } jobs[SHOAL_LOAD_JOBS_MAX];
};
SHOAL_MUST_CHECK enum shoal_err shoal_load_record_encode(const struct shoal_load_record *load, uint8_t *bytes,
                                                         size_t cap, size_t *len);
SHOAL_MUST_CHECK enum shoal_err shoal_load_record_decode(struct shoal_view bytes, struct shoal_load_record *load);

/* Services of which one host has ready replicas, in its own word (SHOAL_RECORD_SERVICE); what does not fit is not told. A
 * hint: who is asked says himself whether he serves. On the wire: a head of kind SERVING and a map. */
#define SHOAL_SERVING_MAX 32
struct shoal_serving_record {
    uint8_t count;
    bool pieces; /* its author takes bodies, and gives answers, in pieces */
    struct shoal_serving {
        struct shoal_job_id job;
        uint32_t ready; /* kernels */
        uint32_t room;  /* requests that these take at one time */
        uint32_t open;  /* requests that are there */
        uint32_t limit_s; /* time of one request, by the profile that they started with; 0: not told */
        uint64_t answered, failed; /* requests, since its first kernel came to this host */
    } services[SHOAL_SERVING_MAX];
};
SHOAL_MUST_CHECK enum shoal_err shoal_serving_record_encode(const struct shoal_serving_record *serving, uint8_t *bytes,
                                                            size_t cap, size_t *len);
SHOAL_MUST_CHECK enum shoal_err shoal_serving_record_decode(struct shoal_view bytes,
                                                            struct shoal_serving_record *serving);

/* A PUBLISH_SUMMARY, PUBLISH_SLOTS or PUBLISH_MESH as the record to publish; its payload is the action's. A version of
 * zeroes: gossip gives the next one of this node. */
void shoal_control_publish(const struct shoal_sched_action *action, struct shoal_record *record);

/* Does a record of this kind change what shoal_control_node() says of its author? */
static inline bool shoal_control_tells_node(enum shoal_record_kind kind)
{
    return kind == SHOAL_RECORD_NODE_FACTS || kind == SHOAL_RECORD_NODE_SLOTS;
}

/* The NODE event of a member; `slots` and `facts` are its newest records, NULL where gossip has none. */
void shoal_control_node(const struct shoal_member *member, const struct shoal_record *slots,
                        const struct shoal_record *facts, struct shoal_sched_event *event);

/* The event of a record that is heard: a job's summary or the mesh's state. False: it is of another kind. The event
 * borrows the record's payload. */
bool shoal_control_heard(const struct shoal_record *record, struct shoal_sched_event *event);

#endif
