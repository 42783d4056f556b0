/* Inside of agent_tree.c, which looks at result folders, and agent_tree_push.c, which pushes what is found. */
#ifndef SHOAL_NODE_AGENT_TREE_H
#define SHOAL_NODE_AGENT_TREE_H

#include "agent.h"

#include "agent_files.h"
#include "node/blob/tree_disk.h"
#include "node/blob/tree_walk.h"

#define TREE_TARGETS_MAX 8

struct entry {
    char *path; /* relative to the result folder */
    uint64_t bytes;
    uint64_t mtime_ns;
    uint32_t mode;
    bool foreign; /* received, and not changed here since */
    bool log;
    bool order;        /* a log that says in which order two others were printed */
    bool gone;         /* it was removed */
    bool found;        /* it was there before this agent, and has not changed since (T4) */
    bool fresh;        /* its content was made here, in this agent's time */
    uint32_t version;  /* counted up when it changes here */
    uint32_t prepared; /* version that is flushed, and of which `content` is */
    uint64_t above;    /* a change made here must have a higher number; of an agent of the version before */
    struct tree_version content;
    uint32_t sent[TREE_TARGETS_MAX];      /* version that target i has whole */
    uint64_t offset[TREE_TARGETS_MAX];    /* bytes of it that target i has */
    uint32_t under_way[TREE_TARGETS_MAX]; /* version of which pieces are being sent */
    uint64_t seen;                   /* the look that found it last */
    uint64_t changed_ns;             /* when a look found it changed */
};

/* Files that may be due to a target. */
struct due {
    bool dirty;    /* some may be */
    size_t cursor; /* where to look for them */
};

/* What a host is told that it lacks (tree_owed.h). */
enum tree_debt {
    TREE_DEBT_NONE,
    TREE_DEBT_UNKNOWN, /* by an agent of this host before this one, or nobody is being told */
    TREE_DEBT_LATE,    /* files are on their way */
    TREE_DEBT_OUTSIDE, /* files lie where none are copied */
    TREE_DEBT_SHUT,    /* folders may not be looked into */
    TREE_DEBT_OVER,    /* there is more than a job may have: what lies behind the bound was not looked at */
};

struct target {
    struct shoal_node_id node;
    bool named; /* it keeps the job's files, as far as is known now */
    bool asking;
    bool answered; /* it knows of versions */
    bool previous; /* it does not */
    bool deaf;     /* it knows of no removals */
    bool gone;     /* the piece under way says that a file was removed */
    bool chunks;   /* ... names a long file by its chunks */
    bool plain;    /* it knows of none */
    bool dirty_logs;     /* a log may be due to it */
    struct due files[2]; /* small ones, long ones */
    unsigned failures;   /* one after the other */
    enum tree_debt owed, telling; /* what it was told last that it lacks; what it is being told */
    bool mute;                    /* an agent of a version before: it is not told */
    uint64_t due_ns;              /* since when something is due to it; 0: nothing is */
    size_t entry;        /* of the piece under way */
    uint32_t version;
    uint64_t piece_next; /* what follows it */
    struct tree *tree;
};

/* A look at a large folder: on the thread first, then taken over by the loop, a part in each turn. */
struct looking {
    struct agent_file_job file;
    struct tree *tree;
    char root[AGENT_PATH_BYTES];
    struct tree_walk walk;
    uint64_t took_ns;
    size_t merged;
    bool walked;
};

/* Who waits for a look that begins after it was asked for. */
struct tree_after {
    struct tree_after *next;
    uint64_t look; /* the number of that look */
    void (*fn)(void *arg);
    void *arg;
};

struct tree {
    struct agent *agent;
    struct agent_job *job;
    struct entry *entries; /* grows */
    size_t count, cap;
    size_t gone; /* of them, removed */
    uint32_t *places; /* by the path's hash: index + 1, 0: free */
    size_t place_cap; /* a power of two, at least twice `count` */
    struct looking *looking;
    uint64_t looks;
    uint64_t begun; /* looks that have begun */
    struct tree_after *after;
    uint64_t rests_until_ns;
    bool again; /* look once more after this look: something has ended since it began */
    bool large; /* looked at on the thread */
    uint64_t outside; /* files that are copied to no host */
    bool shut;        /* some folders may not be looked into */
    bool over;        /* the newest look ended at a bound of the job */
    bool spoke; /* a log holds something */
    struct target targets[TREE_TARGETS_MAX];
    size_t target_count;
    unsigned open_asks;
    bool preparing[2]; /* a small file, a long one */
    uint64_t prepare_rests_ns[2];
    uint64_t progress_ns; /* when something was taken by a host, or hashed to be sent to one */
    uint64_t scanned_ns;
    bool baseline; /* the bundle's files have been noted */
    bool closing;
};

/* Something may be due to each target from here on. */
void agent_tree_touch(struct tree *tree);
/* The hosts that keep the job's files now. */
void agent_tree_targets(struct tree *tree);
void agent_tree_push(struct tree *tree);
/* Tells hosts what they lack, four times a second. */
void agent_tree_owe(struct tree *tree);
void agent_tree_free(struct tree *tree);

#endif
