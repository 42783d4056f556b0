/* Guardians of a group say these messages to each other; here are their bytes, too (shoal/raft.h). */
#ifndef SHOAL_RAFT_MESSAGE_H
#define SHOAL_RAFT_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/raft_entry.h"

enum shoal_raft_message_kind {
    SHOAL_RAFT_PREVOTE,       /* would you vote for me in `vote.for_term`? changes nothing */
    SHOAL_RAFT_PREVOTE_REPLY, /* `term` is the replier's own */
    SHOAL_RAFT_VOTE,
    SHOAL_RAFT_VOTE_REPLY,
    SHOAL_RAFT_APPEND, /* with or without entries */
    SHOAL_RAFT_APPEND_REPLY,
    SHOAL_RAFT_READ, /* a read-index round: do you still follow me? */
    SHOAL_RAFT_READ_REPLY,
    SHOAL_RAFT_INSTALL, /* a piece of a snapshot */
    SHOAL_RAFT_INSTALL_REPLY,
    SHOAL_RAFT_TIMEOUT_NOW, /* leadership transfer: campaign at once */
    SHOAL_RAFT_GONE,        /* from a leader to one that is no member of its configuration any more */
};
#define SHOAL_RAFT_MESSAGE_KINDS 12

struct shoal_raft_snapshot {
    uint64_t index;
    uint64_t term;
    struct shoal_raft_config config; /* as of `index` */
};

struct shoal_raft_message {
    enum shoal_raft_message_kind kind;
    struct shoal_raft_id from;
    struct shoal_raft_id to;
    uint64_t term; /* the sender's */
    union {
        struct {
            uint64_t for_term;
            uint64_t last_index;
            uint64_t last_term;
            bool transfer; /* the leader asked for this election: support does not stand against it */
        } vote;
        struct {
            uint64_t for_term;
            bool granted;
        } vote_reply;
        struct {
            uint64_t prev_index;
            uint64_t prev_term;
            uint64_t commit;
            uint64_t seq; /* rises with each append of a leader's; the reply names the newest seen */
            uint32_t count;
            struct shoal_entry *entries[SHOAL_RAFT_BATCH_ENTRIES_MAX]; /* index prev_index + 1 and on */
        } append;
        struct {
            bool rejected;
            uint64_t index;     /* accepted: durable and equal up to here. rejected: the prev_index that failed */
            uint64_t hint;      /* rejected: the newest index worth trying */
            uint64_t hint_term; /* rejected: its term here, 0 if unknown */
            uint64_t commit;    /* what the follower knows to be committed */
            uint64_t seq;       /* 0: unasked */
        } append_reply;
        struct {
            uint64_t seq;
        } read;
        struct {
            struct shoal_raft_snapshot snapshot;
            uint64_t offset;
            uint64_t total;
            struct shoal_view bytes; /* borrowed */
        } install;
        struct {
            uint64_t index;  /* of the snapshot */
            uint64_t offset; /* bytes received so far; equal to the total: installed or not needed */
            uint64_t match;  /* durable and equal up to here, once installed or not needed; else 0 */
        } install_reply;
    } u;
};

/* Encode into caller's memory. TOO_BIG: does not fit `cap`. SHOAL_FRAME_BYTES_MAX - 64 is always enough. */
SHOAL_MUST_CHECK enum shoal_err shoal_raft_message_encode(const struct shoal_raft_message *message, uint8_t *bytes,
                                                          size_t cap, size_t *len);
/* Decode; makes the entries (one reference each), so deinit the message afterwards. Views point into `bytes`.
 * MALFORMED: nothing made. FULL: no memory, nothing made. */
SHOAL_MUST_CHECK enum shoal_err shoal_raft_message_decode(struct shoal_view bytes, struct shoal_raft_message *message);
/* A copy that outlives the step: takes a reference on each entry (install bytes stay borrowed). */
void shoal_raft_message_copy(const struct shoal_raft_message *message, struct shoal_raft_message *copy);
void shoal_raft_message_deinit(struct shoal_raft_message *message);

#endif
