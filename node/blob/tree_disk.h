/* A job's result folder on this host's disk: replicated files, and what is noted of them (tree_disk.c). */
#ifndef SHOAL_NODE_TREE_DISK_H
#define SHOAL_NODE_TREE_DISK_H

#include <sys/stat.h>

#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/ids.h"

#include "tree_digest.h"

#define TREE_PATH_BYTES 400
#define TREE_ROOT_BYTES 720
#define TREE_VERSIONED 2 /* of a pushed piece's first byte: which content it is follows */
#define TREE_GONE 4      /* that content is none: the file was removed */
#define TREE_SETTLE 8    /* no piece: the job's id follows, and the answer comes when nothing is due to the asker */
#define TREE_SETTLE_LOGS 16 /* the same of the logs alone */
#define TREE_CHUNKS 32 /* of a piece's first byte: the hash is that of the chunks of a long file (tree_digest.c) */

#define TREE_OWED 64   /* no piece: the job's id, and a line that says what the asker has not brought here; "": nothing */

/* Whose changes they are, and during which call of train() they were made: that call's come after those of an earlier one,
 * whatever the clocks say. */
struct tree_author {
    struct shoal_node_id node;
    uint32_t call;
};

/* The number of a path's content. The higher number wins, then the higher author. 0: its content is not proven. A file
 * that was removed has no bytes and a hash of zeros. A change's number is above TREE_TIMED: it says when it was made; below it
 * is one of an agent of the version before, which counted. */
#define TREE_TIMED (1ull << 40)
struct tree_version {
    uint64_t number;
    struct shoal_node_id author;
    uint64_t bytes;
    struct shoal_hash hash;
    bool by_bytes; /* the hash of a long file is that of its bytes, not of its chunks: of an agent of the version before */
};

/* What is done in several calls, so that a long file takes the thread for no more than a slice in each (tree_digest.h). All
 * zeros before the first call, with the same place and piece in each. */
struct tree_work {
    bool more; /* call again: nothing else that the call tells is true yet */
    bool put;  /* the piece's bytes are in the part */
    struct tree_digest here, part;
    struct tree_digest here_bytes, part_bytes; /* by_bytes */
};

struct tree_place {
    char root[TREE_ROOT_BYTES];  /* the result folder */
    char notes[TREE_ROOT_BYTES]; /* the folder of what is noted */
    char path[TREE_PATH_BYTES];  /* below root; the caller has checked it */
};

struct tree_piece {
    bool log, last;
    bool gone;      /* the path's content is none any more */
    bool versioned; /* of an agent that says which content it is */
    bool doubted;   /* this host has started anew since the files that it found were written */
    uint32_t mode;
    uint64_t mtime_ns, offset;
    struct tree_version version;
    struct shoal_node_id from;
    struct tree_author here; /* who takes it: a change made here that nobody has noted yet has a place in the order, too */
    struct shoal_view bytes;
};

enum tree_outcome { TREE_TAKEN, TREE_KEPT };

struct tree_taken {
    enum tree_outcome outcome;
    struct tree_version ours; /* TREE_KEPT: what is here, which is not older */
    struct stat facts;        /* of the file, after a last piece or a piece of a log */
};

/* A change that was made here. */
struct tree_change {
    struct tree_author self;
    bool doubted;   /* it was there when this host started anew, so it counts only as what was noted */
    uint64_t above; /* a number that it must exceed */
};

/* -1, 0, 1: a is older, the same, newer. */
int tree_version_cmp(const struct tree_version *a, const struct tree_version *b);

/* The file as it is now, flushed, and which content it is. `*fresh`: it is a change that was made here and is noted now.
 * NOT_FOUND: it is not there. STALE: it has changed between two calls. */
SHOAL_MUST_CHECK enum shoal_err tree_prepare(const struct tree_place *place, const struct tree_change *change,
                                             struct tree_work *work, struct tree_version *version, bool *fresh);

/* The same for a file that was removed here: the content that it has now is none. NOT_FOUND: it is there again. */
SHOAL_MUST_CHECK enum shoal_err tree_forget(const struct tree_place *place, const struct tree_change *change,
                                            struct tree_version *version, bool *fresh);

/* Up to `cap` bytes from `offset`, no link followed; -1: it cannot be read. */
ssize_t tree_read(const struct tree_place *place, uint64_t offset, uint8_t *bytes, size_t cap);

/* The begin of the piece after `from` in a file of `bytes`: behind a hole, but no later than the last piece, of `piece`
 * bytes, which tells how long the file is. */
uint64_t tree_next(const struct tree_place *place, uint64_t from, uint64_t bytes, uint64_t piece);

/* A piece that another host sent. */
SHOAL_MUST_CHECK enum shoal_err tree_take(const struct tree_place *place, const struct tree_piece *piece,
                                          struct tree_work *work, struct tree_taken *taken);

struct agent;
/* agent_tree.c: where what is noted of a job's files lies; a file that was received. */
void agent_tree_notes(const struct agent *agent, struct shoal_job_id id, char notes[TREE_ROOT_BYTES]);
void agent_tree_received(struct agent *agent, struct shoal_job_id id, const char *path, const struct stat *facts);
void agent_tree_removed(struct agent *agent, struct shoal_job_id id, const char *path);
/* agent_tree_take.c */
void agent_tree_take_create(struct agent *agent);

#endif
