/* The content of a job's result folder, as one look over it finds it.
 *
 *   root --openat, no link followed--> folders --fstatat--> regular files: path, size, time
 *
 * A job may change anything under the walker's feet, lay links and pipes, or make more than anybody asked for: so a walk
 * follows no link, opens nothing but folders, and ends at the first bound that it reaches. */
#ifndef SHOAL_NODE_TREE_WALK_H
#define SHOAL_NODE_TREE_WALK_H

#include "shoal/buf.h"

/* Files below more folders are counted, and not replicated. */
#define TREE_WALK_DEPTH_MAX 16u
/* A folder below more is a bound of the job, too. */
#define TREE_WALK_COUNTED_MAX 64u

enum tree_walk_end {
    TREE_WALK_WHOLE,
    TREE_WALK_CUT,  /* more than `looks_max` names: who must not wait asks for a walk elsewhere */
    TREE_WALK_OVER, /* more files and links, folders, or bytes than a job may have, or folders within too many others */
    TREE_WALK_FAILED
};

struct tree_found {
    size_t path_at; /* in `paths`; relative to the root, ended by a zero */
    uint64_t bytes;
    uint64_t mtime_ns;
    uint32_t mode;
};

struct tree_walk {
    /* asked for */
    uint64_t looks_max;
    uint64_t files_max, bytes_max; /* bounds of the job; as many folders again, besides those that a bundle's files lie in */
    uint64_t code_files;           /* so many files below _submitted_code/ are the bundle's, and do not count */
    /* found */
    enum tree_walk_end end;
    struct tree_found *found; /* those that are replicated: no hidden ones, no caches, no parts of files on their way;
                                 the order of a folder's logs after these, and at least as new as they are */
    size_t count, cap;
    struct shoal_buf paths;
    uint64_t looks;
    uint64_t files;        /* every name but a folder's: links, pipes and hidden ones, too */
    uint64_t bytes;        /* of the regular ones; lengths, so that holes count */
    uint64_t code;         /* of `files`, those below _submitted_code/ */
    uint64_t folders;
    uint64_t outside;      /* regular files that are not replicated since they lie too deep, or their paths are too long */
    bool too_deep;         /* TREE_WALK_OVER by folders within folders */
    bool too_wide;         /* ... by their number */
    bool shut;             /* a folder, or what lies in it, may not be looked at: the job has taken its rights away */
    bool blind;            /* something could not be looked at: what is not found may be there all the same */
};

/* Fills in what is found below `root`. Waits for the disk. */
void tree_walk(const char *root, struct tree_walk *walk);
const char *tree_walk_path(const struct tree_walk *walk, size_t i);
/* The path of a log that says in which order two others were printed (shoal/log_order.h)? */
bool tree_walk_is_order(const char *path);
void tree_walk_deinit(struct tree_walk *walk);

#endif
