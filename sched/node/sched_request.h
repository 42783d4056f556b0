/* Requests: answered here, forwarded, asked around. */
#ifndef SCHED_REQUEST_H
#define SCHED_REQUEST_H

#include "shoal/sched.h"
#include "sched_wire.h"

struct shoal_sched;
struct sched_group;

#define SCHED_REQUEST_NS (2500 * SHOAL_MS)
#define SCHED_SUBMIT_NS (30 * SHOAL_S)
#define SCHED_RETRY_NS (100 * SHOAL_MS)
/* A forwarded request that is not answered in this time is asked again elsewhere. */
#define SCHED_ANSWER_NS (600 * SHOAL_MS)
#define SCHED_HOPS_MAX 3
#define SCHED_ASKED_MAX 8

enum request_state {
    REQUEST_FREE,      /* the place is not in use: its request has been answered (R1) */
    REQUEST_WAITING,   /* tried again at retry_ns */
    REQUEST_FORWARDED, /* to `asked` */
    REQUEST_ASKING,    /* who knows this job? */
    REQUEST_PROPOSED,  /* answered when (index, term) is applied */
    REQUEST_READING,   /* waits for a read round of its group */
    REQUEST_FOUNDING,
    REQUEST_SURVEY,   /* RECOVER: what the other guardians hold */
    REQUEST_COPY,     /* waits for this node's copy of the mesh to reach `version` */
    REQUEST_DELETING,   /* an archived job: waits for the other holders to forget it, and a majority of the mesh group */
    REQUEST_CONFIRMING, /* an archived job's linearizable read: has a majority of the mesh group heard of no deletion? */
};
#define REQUEST_STATES (REQUEST_CONFIRMING + 1)

struct sched_request {
    enum request_state state;
    uint64_t serial;
    uint64_t id; /* the shell's, or the origin's */
    bool foreign;
    struct shoal_node_id origin;
    uint8_t hops;
    uint8_t pauses; /* waited for an election here */
    enum shoal_sched_request_kind kind;
    struct shoal_job_id job;
    bool linearizable;
    bool local_only;
    bool sent;      /* forwarded once: a change must not be sent twice */
    bool recovered; /* RECOVER: founded here, to be told once it leads */
    char by[SHOAL_SCHED_BY_BYTES];
    uint64_t deadline_ns;
    uint64_t retry_ns;
    struct shoal_node_id asked;
    struct shoal_node_id hint;   /* who might lead; zero: unknown */
    struct shoal_node_id rumour; /* a leader that one who does not hold the group has heard of */
    struct shoal_node_id away;   /* the founder, where one of those asked knows it and does not hear it either */
    uint64_t index, term;
    uint64_t read_serial; /* 0: waits for the next round */
    uint64_t read_index;  /* serve when applied up to here; 0: not confirmed yet */
    uint64_t version;
    uint8_t ask_count;
    uint8_t answered;    /* bit i: ask[i] has answered */
    uint8_t must;        /* bits of those that must all answer */
    uint8_t quorum;      /* bits of hosts of the mesh group, of which */
    uint8_t quorum_need; /* so many must answer */
    struct shoal_node_id ask[SCHED_ASKED_MAX];
    struct shoal_buf command;
    struct shoal_buf token; /* of the user; of a foreign request: "caller" is who it says */
    bool proven;            /* foreign: by a token, so that its caller may do what the caller may, and no more */
    struct shoal_sched_caller caller;
};

/* sched_request.c */
void sched_on_request(struct shoal_sched *s, const struct shoal_sched_request *request);
void sched_on_foreign(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_on_response(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_on_who(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
unsigned sched_could_know(const struct shoal_sched *s, struct shoal_job_id job,
                          struct shoal_node_id nodes[SCHED_ASKED_MAX]);
void sched_on_who_reply(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
/* The only way from one state to another: a move that the table does not know is a bug (R1). */
void sched_request_move(struct sched_request *r, enum request_state to);
bool sched_request_open(const struct shoal_sched *s, struct shoal_job_id job);         /* one names it */
uint64_t sched_request_first(struct shoal_incarnation incarnation);                      /* the serial that its life counts on from */
struct sched_request *sched_request_get(const struct shoal_sched *s, uint64_t serial); /* NULL: ended */
__attribute__((format(printf, 5, 6))) void sched_request_end(struct shoal_sched *s, struct sched_request *r,
                                                             enum shoal_err err, struct shoal_view bytes,
                                                             const char *format, ...);
void sched_requests_due(struct shoal_sched *s);
/* Another leads the job now, or nobody (zero): who waits looks again, and so does a read that asked another one. */
void sched_requests_led(struct shoal_sched *s, struct shoal_job_id job, struct shoal_node_id leader);
void sched_requests_link_down(struct shoal_sched *s, struct shoal_node_id node);
void sched_requests_link_up(struct shoal_sched *s, struct shoal_node_id node);
void sched_requests_applied(struct shoal_sched *s, struct sched_group *g, uint64_t index, uint64_t term,
                            enum shoal_err err, const char *text);
void sched_requests_rejected(struct shoal_sched *s, struct sched_group *g, uint64_t ctx, enum shoal_err err);
void sched_requests_read(struct shoal_sched *s, struct sched_group *g, uint64_t serial, uint64_t index);
void sched_requests_readable(struct shoal_sched *s, struct sched_group *g); /* applied has moved */
void sched_requests_read_round(struct shoal_sched *s, struct sched_group *g);
void sched_requests_copy(struct shoal_sched *s); /* the copy is newer */
/* All that must, and enough of the mesh group. */
bool sched_request_asked_enough(const struct sched_request *r);
/* An archived job's deletion: what `from` said of it; it is looked at again. */
void sched_requests_deleted(struct shoal_sched *s, struct shoal_node_id from, struct shoal_job_id job, bool deleted);
void sched_request_retry(struct shoal_sched *s, struct sched_request *r, uint64_t after_ns);
/* To a better node: forwarded, or, of a foreign request, its origin is told to ask there. */
void sched_request_pass(struct shoal_sched *s, struct sched_request *r, struct shoal_node_id to);
void sched_requests_restart(struct shoal_sched *s, struct sched_group *g); /* its log begins anew: tried once more */

/* May who asks do this to a job of that user? DENIED: it is answered so, and over. R5. */
bool sched_request_may(struct shoal_sched *s, struct sched_request *r, const char *creator);

/* sched_request.c, for the files of requests alone */
void sched_request_release(struct shoal_sched *s, struct sched_request *r);

/* sched_request_serve.c, for the files of requests alone */
void sched_request_end_with_facts(struct shoal_sched *s, struct sched_request *r, const struct sched_group *g);
void sched_request_serve_leading(struct shoal_sched *s, struct sched_request *r, struct sched_group *g);

/* sched_request_route.c, for the files of requests alone */
/* Why this host, cut off, decides nothing about what is in the archive; NULL: it hears the mesh group. */
const char *sched_request_cut_off(const struct shoal_sched *s);
void sched_request_ask_around(struct shoal_sched *s, struct sched_request *r);
void sched_request_try(struct shoal_sched *s, struct sched_request *r);

#endif
