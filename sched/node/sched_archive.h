/* Ended jobs: from groups to records on three hosts. */
#ifndef SCHED_ARCHIVE_H
#define SCHED_ARCHIVE_H

#include "shoal/sched.h"
#include "sched_wire.h"

struct shoal_sched;
struct sched_group;
struct sched_request;

/* A host that should hold a record, and whether it does. */
struct sched_held_record {
    struct shoal_node_id node;
    bool holds : 1;
    bool final : 1;
    bool given : 1; /* since this host looked last: what it was given it may not want */
};

struct archived_body {
    struct shoal_buf bytes;
    struct archive_record record; /* points into `bytes` */
};

/* How far a record of the archive has come here. From HELD on it is durable, from FINAL on as final. */
enum archived_state {
    ARCHIVED_NEW,      /* its row has just been made; never seen outside the function that makes it */
    ARCHIVED_FETCHING, /* its blobs are on their way */
    ARCHIVED_WRITING,  /* its blobs are here; it is not durable yet */
    ARCHIVED_HELD,     /* durable, but not as final */
    ARCHIVED_FINAL,    /* durable as final, and its bytes are in memory */
    ARCHIVED_COLD,     /* as FINAL, but its bytes are in the store alone (A8) */
    ARCHIVED_LOADING,  /* as COLD, and the shell reads its bytes */
};
#define ARCHIVED_STATES (ARCHIVED_LOADING + 1)

/* A record of the archive that is here, or on its way here. */
struct sched_archived {
    struct shoal_job_id id;
    struct shoal_hash hash; /* of its bytes */
    enum archived_state state;
    struct archived_body *body; /* NULL: COLD or LOADING */
    uint64_t spec_mark;
    size_t heap_at;
    struct sched_archived *warm_next, *warm_prev; /* final ones with a body, the longest in memory first */
    uint64_t stay_ns;                             /* it was loaded: not cold before */
    bool warm;
    bool marked;               /* its hard state says that it is final: an agent that starts reads no more of it */
    bool final;                /* somebody to whom it is final has said so (A3); durable only from FINAL on */
    uint64_t writes;           /* counts what was given to the store: its index there */
    uint64_t written;          /* mark of the first write of this life; 0: none yet */
    uint64_t final_write;      /* mark of the write that says final; 0: none yet */
    uint64_t since;            /* archive_version */
    struct shoal_node_id from; /* offered it: told when it is stored */
    uint64_t look_ns;
    uint64_t drop_ns; /* not fetched by then: forgotten */
    uint8_t looks;    /* in a row that found something missing */
    uint8_t host_count;
    struct sched_held_record hosts[SHOAL_ARCHIVE_COPIES]; /* who should hold it; this node too */
};

/* sched_archive.c */
void sched_archive_lead(struct shoal_sched *s, struct sched_group *g); /* an ended job that is led here */
bool sched_archive_awaits(const struct sched_group *g);                 /* its job has ended, and is not in the archive yet */
void sched_archive_hurry(struct shoal_sched *s, struct sched_group *g); /* one that does: it does not wait for its time (U8) */
void sched_archive_count(struct shoal_sched *s, struct sched_group *g, bool ended);
bool sched_archive_holds(const struct shoal_sched *s, struct shoal_job_id id); /* its final record, durable */
void sched_archive_due(struct shoal_sched *s);
/* Blobs of a job have come here, or were made; where nothing of it is left they go again. */
void sched_archive_unowned(struct shoal_sched *s, struct shoal_job_id id);
void sched_archive_nodes(struct shoal_sched *s); /* came or went */
enum shoal_err sched_on_archive(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_archive_made(struct shoal_sched *s, const struct shoal_sched_event *event);
void sched_archive_fetched(struct shoal_sched *s, const struct shoal_sched_event *event);
bool sched_archive_is_kept(struct shoal_job_id stored, struct shoal_job_id *id); /* a record's place in the store */
void sched_archive_stored(struct shoal_sched *s, struct shoal_job_id id, struct shoal_sched_mark mark);
void sched_archive_restore(struct shoal_sched *s, const struct shoal_sched_event *event, struct shoal_job_id id);
/* The record that answers for the job here; NULL: none, or its group is to be asked. */
struct sched_archived *sched_archive_find(const struct shoal_sched *s, struct shoal_job_id id);
void sched_archive_serve(struct shoal_sched *s, struct sched_request *r, struct sched_archived *a);
void sched_archive_delete_due(struct shoal_sched *s, struct sched_request *r);
void sched_archive_confirm_due(struct shoal_sched *s, struct sched_request *r);
/* A linearizable read: `from` has heard of a deletion, or not. */
void sched_archive_confirm(struct shoal_sched *s, struct sched_request *r, struct shoal_node_id from, bool deleted);
/* Deleted while it was a group's still, or as gossip says: whoever holds a record is told. */
void sched_archive_deleted(struct shoal_sched *s, struct shoal_job_id id);
/* To one that asks after, or speaks for, a group that has ended. False: it is not known to have ended. */
/* A host that should have its record, and is there; nobody: none is known. */
struct shoal_node_id sched_archive_holder(struct shoal_sched *s, struct shoal_job_id id);
bool sched_archive_has_ended(const struct shoal_sched *s, struct shoal_job_id id); /* a final record says so */
bool sched_archive_say_ended(struct shoal_sched *s, struct shoal_node_id to, struct shoal_job_id id);
void sched_archive_bury(struct shoal_sched *s, struct shoal_job_id id); /* no group and no summary of it is left here */
bool sched_archive_same(const struct shoal_sched *s, struct shoal_job_id id, struct shoal_hash spec_hash, bool *same);
/* At most SHOAL_ARCHIVE_COPIES nodes, in order. */
size_t sched_archive_hosts(const struct shoal_sched *s, struct shoal_job_id id, struct shoal_node_id *nodes);
void sched_archive_destroy(struct shoal_sched *s);

#endif
