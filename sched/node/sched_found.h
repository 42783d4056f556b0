/* Foundings, those that find no majority, and recoveries. */
#ifndef SCHED_FOUND_H
#define SCHED_FOUND_H

#include "shoal/raft.h"
#include "shoal/sched.h"
#include "shoal/sched_ticket.h"
#include "sched_wire.h"

struct shoal_sched;
struct sched_group;
struct sched_request;

#define SCHED_FOUND_RETRY_NS (500 * SHOAL_MS)

enum guardian_answer { GUARDIAN_SILENT, GUARDIAN_STORED, GUARDIAN_OTHER, GUARDIAN_REFUSED, GUARDIAN_SETTLED };

struct sched_founding {
    bool used;
    uint64_t request; /* serial */
    struct shoal_sched_ticket ticket;
    struct shoal_buf record;
    enum guardian_answer answers[SHOAL_SCHED_SOURCES_MAX];
    char text[SCHED_TEXT_BYTES];
    bool founded; /* it is committed */
    uint32_t tries;
    uint64_t retry_ns;
};

/* A founding that waits for its bundle on this guardian. */
struct sched_fetching {
    bool used;
    struct shoal_node_id from;
    uint64_t nonce;
    struct shoal_hash hash;
    struct shoal_buf record;
    uint64_t deadline_ns;
};
#define SCHED_FETCHING_MAX 64

/* A founding that this node said no to: settled later, with it as a witness. */
struct sched_refusal {
    bool used;
    struct shoal_job_id id;
    uint64_t settle_ns;
    struct shoal_raft_config config; /* the ticket's guardians */
};
#define SCHED_REFUSALS_MAX 64

/* The answer of a member of a group about its replica. */
struct sched_replica {
    struct shoal_raft_member member;
    bool answered;
    bool holds;
    uint64_t term, last_index, last_term;
};

struct sched_survey {
    bool used;
    uint64_t request; /* serial */
    uint64_t end_ns;
    unsigned count, self;
    struct sched_replica list[SHOAL_GROUP_NODES_MAX];
};
#define SCHED_SURVEYS_MAX 8u

/* sched_found.c */
void sched_submit(struct shoal_sched *s, struct sched_request *r, const struct shoal_sched_request *request);
void sched_ticket(struct shoal_sched *s, struct sched_request *r, const struct shoal_sched_request *request);
enum shoal_err sched_on_found(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_on_found_reply(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_founding_end(struct shoal_sched *s, uint64_t request_serial); /* the request has ended */
struct sched_founding *sched_founding_of(const struct shoal_sched *s, uint64_t request_serial);
void sched_foundings_due(struct shoal_sched *s);
void sched_found_durable(struct shoal_sched *s, struct sched_group *g);
void sched_on_bundle(struct shoal_sched *s, struct shoal_hash hash, bool ok, const char *text);
void sched_bundle_want(struct shoal_sched *s, struct sched_group *g);
void sched_found_complete(struct shoal_sched *s, struct sched_group *g); /* offer the record to the other guardians */
void sched_mesh_init(struct shoal_sched *s, struct sched_request *r);

/* sched_settle.c */
void sched_settle_later(struct shoal_sched *s, const struct shoal_sched_ticket *t); /* this node has said no */
void sched_settle_forget(struct shoal_sched *s, struct shoal_job_id id);            /* yes after all */
bool sched_settle_waits(struct shoal_sched *s, struct shoal_job_id id);
void sched_settle_due(struct shoal_sched *s);
void sched_settle_lead(struct shoal_sched *s, struct sched_group *g);

/* sched_recover.c */
/* The mesh group, when no guardian of it is left: from this node's copy. False: one may be left, who is to be asked. */
bool sched_recover_from_copy(struct shoal_sched *s, struct sched_request *r);
void sched_recover(struct shoal_sched *s, struct sched_request *r, struct sched_group *g);
void sched_recover_due(struct shoal_sched *s, struct sched_request *r);
void sched_on_replica_ask(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_on_replica(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);

#endif
