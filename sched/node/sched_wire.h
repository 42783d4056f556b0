/* The frames between the control planes of two nodes: one byte of kind, (version, oldest readable), then the fields.
 * Decoded views point into the frame. */
#ifndef SCHED_WIRE_H
#define SCHED_WIRE_H

#include "shoal/sched.h"
#include "shoal/sched_ticket.h"

#define SCHED_WIRE_VERSION 1
#define SCHED_TEXT_BYTES 400

enum frame_kind {
    FRAME_RAFT,        /* a Raft message of a group */
    FRAME_FOUND,       /* founding record: to a guardian of the ticket */
    FRAME_FOUND_REPLY, /* it is durable here, or not wanted and why */
    FRAME_HOST,        /* a host_wire message: a job's leader to a host's slots, back, or host to host */
    FRAME_REQUEST,     /* a client's request, forwarded */
    FRAME_RESPONSE,
    FRAME_WHO, /* do you know this job? */
    FRAME_WHO_REPLY,
    FRAME_GONE,     /* that group was removed for good (id 0), or: you are no member as of configuration `id` */
    FRAME_MESH_GET, /* the copy of the mesh's state, from this offset */
    FRAME_MESH_PART,
    FRAME_DIGEST,      /* my state at this index (lineage above it) */
    FRAME_REPLICA_ASK, /* what do you hold of this group? */
    FRAME_REPLICA,
    FRAME_REBUILD, /* my replica is no good: drop me, and take me in again (`id`: lineage and configuration) */
    FRAME_ARCHIVE, /* about an ended job's record: sched_archive.c */
    FRAME_PARK,    /* a group leaves memory, or comes back: sched_park.c */
    FRAME_NEWS,    /* my free slots, or what a job that I lead wants now, before gossip says so: sched_news.c */
    FRAME_SEAL,    /* my seal on a version of the mesh: sched_seal.c */
    FRAME_KINDS,
};

enum park_word {
    PARK_ASK,  /* from the leader: park this group, which stands at (term, index) */
    PARK_DONE, /* it is parked here */
    PARK_WAKE, /* it is wanted: bring it back */
    PARK_WORDS,
};

enum archive_word {
    ARCHIVE_HAVE,   /* I hold the record of this hash. You? */
    ARCHIVE_TAKE,   /* hold this record; I have its blobs */
    ARCHIVE_STATE,  /* what I hold: the answer */
    ARCHIVE_DELETE, /* it was deleted: forget it. Answered by STATE */
    ARCHIVE_ENDED,  /* its group has ended: the job is in the archive */
    ARCHIVE_WORDS,
};

enum found_answer {
    FOUND_STORED,  /* flushed here */
    FOUND_OTHER,   /* this id exists with another body */
    FOUND_REFUSED, /* not here: full, bundle not to be had */
    FOUND_SETTLED, /* never: deleted, or refused by a majority */
    FOUND_ANSWERS,
};

/* A guardian's signature on what a copy of the mesh says (sched_seal.c). */
struct mesh_seal {
    uint8_t key[SHOAL_SCHED_KEY_BYTES];
    bool binds; /* it says, too, that the rules bind (L4) */
    uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES];
};

struct frame {
    enum frame_kind kind;
    union {
        struct {
            struct shoal_job_id group;
            struct shoal_view message;
        } raft;
        struct {
            struct shoal_view record; /* the founding record as it stands in the log; the ticket is in it */
        } found;
        struct {
            struct shoal_job_id job;
            uint64_t nonce; /* the ticket's */
            uint8_t answer; /* enum found_answer */
            char text[SCHED_TEXT_BYTES];
        } found_reply;
        struct {
            struct shoal_view bytes;
        } host;
        struct {
            uint64_t id; /* the sender's, for the response */
            uint8_t hops;
            uint8_t kind; /* enum shoal_sched_request_kind */
            struct shoal_job_id job;
            bool linearizable;
            uint32_t deadline_ms;
            char by[SHOAL_SCHED_BY_BYTES];
            struct shoal_view command;
            struct shoal_view token; /* empty: none, and the frame is as the version before wrote it */
        } request;
        struct {
            uint64_t id;
            uint16_t err;
            bool retry;                  /* not the leader: nothing was done, ask elsewhere */
            struct shoal_node_id leader; /* retry: who might be, zero if unknown */
            uint64_t version;            /* MESH_*: of the mesh once done */
            char text[SCHED_TEXT_BYTES];
            struct shoal_view bytes;
        } response;
        struct {
            uint64_t id;
            struct shoal_job_id job;
        } who; /* GONE too. WHO with id 0: am I a member still? */
        struct {
            uint64_t id;
            struct shoal_job_id job;
            bool holds; /* a guardian */
            bool gone;
            struct shoal_node_id leader; /* zero: unknown */
        } who_reply;
        struct {
            uint64_t version;
            uint64_t offset;
        } mesh_get;
        struct {
            uint64_t version;
            uint64_t offset;
            uint64_t total;
            struct shoal_view bytes;
        } mesh_part;
        struct {
            struct shoal_job_id group;
            uint64_t index;
            uint64_t digest;
        } digest;
        struct {
            uint64_t id;
            struct shoal_job_id job; /* REPLICA_ASK: up to here */
            struct shoal_store_id store;
            bool holds;
            uint64_t term, last_index, last_term;
        } replica;
        struct {
            struct shoal_job_id job;
            uint8_t word;             /* enum archive_word */
            bool final;               /* HAVE, TAKE, STATE: the group has committed it */
            bool deleted;             /* STATE */
            struct shoal_hash hash;   /* of the record; zero: none. ENDED: of the specification */
            struct shoal_view record; /* TAKE */
        } archive;
        struct {
            struct shoal_job_id job;
            uint8_t word;         /* enum park_word */
            uint64_t term, index; /* ASK, DONE: of the last entry, which is committed */
        } park;
        struct {
            bool is_summary;                    /* else the payload is a slots record */
            struct shoal_sched_version version; /* of the summary */
            struct shoal_view payload;
        } news;
        struct {
            uint64_t version, config;
            bool wanted; /* yours is not here */
            struct mesh_seal seal;
        } seal;
    } u;
};

/* False: it does not fit. */
bool sched_frame_encode(const struct frame *frame, struct shoal_writer *w);
SHOAL_MUST_CHECK enum shoal_err sched_frame_decode(struct shoal_view bytes, struct frame *frame);

/* The bytes that a ticket's signature covers. */
bool sched_ticket_encode_body(const struct shoal_sched_ticket *ticket, struct shoal_writer *w);

/* Entry 2 of term 1: the founding record of a job, computed from ticket and body alone, so that all guardians' are
 * equal. In the log every USER entry of a job begins with a byte of enum record_kind. */
enum record_kind { RECORD_COMMAND, RECORD_FOUND, RECORD_REFUSED };
#define RECORD_KINDS 3

struct founding_record {
    struct shoal_sched_ticket ticket;
    uint32_t generation;
    struct shoal_view spec;
    struct shoal_hash bundle_hash;
    struct shoal_view bundle;
};
bool sched_record_encode(const struct founding_record *record, struct shoal_writer *w);
SHOAL_MUST_CHECK enum shoal_err sched_record_decode(struct shoal_view bytes, struct founding_record *record);

/* An ended job as the archive keeps it; signed by who led its group. Views point into the bytes. */
struct archive_record {
    struct shoal_job_id job;
    struct shoal_sched_version version; /* of what it says: of two that are not final the newer one stays */
    struct shoal_hash spec_hash;
    struct shoal_hash list; /* blob: a line for each blob of the job (node/agent/agent_archive_lines.c); zero: none */
    char user[SHOAL_SCHED_BY_BYTES]; /* whose folder its results lie in */
    uint8_t guardian_count;
    struct shoal_node_id guardians[SHOAL_SCHED_SOURCES_MAX]; /* of the group as it ended */
    struct shoal_view facts, summary;                        /* encoded as in job.h */
    uint8_t key[SHOAL_SCHED_KEY_BYTES];
    uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES]; /* over all before the key */
};
bool sched_archive_encode_body(const struct archive_record *record, struct shoal_writer *w);
SHOAL_MUST_CHECK enum shoal_err sched_archive_decode(struct shoal_view bytes, struct archive_record *record,
                                                     size_t *signed_len);

/* A record as it lies in the store. The view points into the bytes. */
bool sched_kept_encode(bool final, struct shoal_view record, struct shoal_writer *w);
SHOAL_MUST_CHECK enum shoal_err sched_kept_decode(struct shoal_view bytes, bool *final, struct shoal_view *record);

/* The part of a parked group that stays in memory, as it lies in its hard state. */
struct park_mark {
    uint64_t commit;
    bool behind; /* a guardian had not got all of it */
    uint8_t target;
    uint8_t device; /* enum shoal_job_device */
    uint32_t priority;
    uint64_t ticket_ms;
    struct shoal_node_id owner; /* whose turn it is to bring it back */
    uint8_t guardian_count;
    struct shoal_node_id guardians[SHOAL_SCHED_SOURCES_MAX];
    struct shoal_sched_version version; /* of what lists show, and that: as SHOAL_SCHED_INDEX says it */
    struct shoal_view row;
};
bool sched_park_mark_encode(const struct park_mark *mark, struct shoal_writer *w);
/* MALFORMED: it does not decode, or is that of a group that is not parked. */
SHOAL_MUST_CHECK enum shoal_err sched_park_mark_decode(struct shoal_view bytes, struct park_mark *mark);
/* A final record of the archive whose bytes are in the store alone. */
struct cold_mark {
    struct shoal_hash hash;
    uint64_t spec_mark;
    struct shoal_sched_version version; /* of what lists show, and that */
    struct shoal_view row;
};
bool sched_cold_mark_encode(const struct cold_mark *mark, struct shoal_writer *w);
SHOAL_MUST_CHECK enum shoal_err sched_cold_mark_decode(struct shoal_view bytes, struct cold_mark *mark);
/* The commit index that a hard state tells, parked or not; 0: none. */
#define SCHED_HARD_FORMAT 1
#define SCHED_HARD_PARKED 2
#define SCHED_HARD_COLD 3
uint64_t sched_hard_commit(struct shoal_view bytes);

/* A group's snapshot: what the machine does not hold, then the machine's own bytes. */
struct group_head {
    struct shoal_view config; /* of Raft, encoded */
    uint64_t config_index;
    struct shoal_hash spec_hash; /* jobs */
    struct shoal_hash bundle_hash;
    uint8_t target;
    bool refused;
    struct shoal_view machine;
};
bool sched_head_encode(const struct group_head *head, struct shoal_writer *w);
SHOAL_MUST_CHECK enum shoal_err sched_head_decode(struct shoal_view bytes, struct group_head *head);

/* The record of a mesh version in gossip. */
struct mesh_hint {
    uint64_t version;
    uint64_t config; /* index of the configuration that names these guardians: the higher one is the newer */
    uint8_t count;
    struct shoal_node_id guardians[SHOAL_SCHED_SOURCES_MAX]; /* as this node knows */
};
bool sched_mesh_hint_encode(const struct mesh_hint *hint, struct shoal_writer *w);
SHOAL_MUST_CHECK enum shoal_err sched_mesh_hint_decode(struct shoal_view bytes, struct mesh_hint *hint);

/* A copy of the mesh's state, as nodes keep and exchange it: sealed by a majority of the guardians that it names. The
 * version before knew one signature, of any node that had it (`seal_count` 0). */
struct mesh_copy {
    uint64_t version;
    uint64_t config;
    uint8_t count;
    struct shoal_node_id guardians[SHOAL_SCHED_SOURCES_MAX];
    struct shoal_view state;
    uint8_t seal_count;
    struct mesh_seal seals[SHOAL_SCHED_SOURCES_MAX];
    uint8_t key[SHOAL_SCHED_KEY_BYTES];
    uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES]; /* over all before the key */
};
/* Beside the state. */
#define MESH_COPY_REST_MAX 1024u
bool sched_mesh_copy_encode(const struct mesh_copy *copy, struct shoal_writer *w); /* with seals */
bool sched_mesh_copy_encode_body(const struct mesh_copy *copy, struct shoal_writer *w);
/* `*signed_len`: what the one signature covers; 0: it has seals. */
SHOAL_MUST_CHECK enum shoal_err sched_mesh_copy_decode(struct shoal_view bytes, struct mesh_copy *copy,
                                                       size_t *signed_len);
/* The bytes that a seal signs: version, configuration and guardians of the copy, the hash of its state, and whether it binds. */
#define MESH_STATEMENT_BYTES_MAX 192
bool sched_mesh_statement_encode(const struct mesh_copy *copy, struct shoal_hash state, bool binds,
                                 struct shoal_writer *w);

#endif
