/* The files of a job's RESULT_DIR, on this node or on another that has them (backend_files.c). */
#ifndef SHOAL_NODE_BACKEND_FILES_H
#define SHOAL_NODE_BACKEND_FILES_H

#include "agent_backend.h"

struct backend_files {
    struct shoal_node_id node;   /* that has them; zero: this one */
    char root[AGENT_PATH_BYTES]; /* on this one */
    struct shoal_view lines;     /* as in a result's manifest, with a hash of zeros; for the call */
    uint64_t left_out;           /* that are not listed */
    char owed[AGENT_OWED_BYTES];  /* what else is missing: a host has not brought it; "": nothing that anybody knows of */
};

/* The job has ended a moment ago, and its hosts push to this node, a guardian of it, what is not here yet: agent_tree_await()
 * before its folder counts as whole (backend_logs.c). */
bool backend_files_may_come(struct agent *agent, struct shoal_job_id id);

/* From a host that lacks nothing; if all who answer lack something, from the first one, and `owed` says what. OK with no
 * lines: nobody who answered has a file. UNREACHABLE: nobody answered, or none has all of them yet. */
typedef void backend_files_fn(void *arg, enum shoal_err err, const char *text, const struct backend_files *files);
void backend_files_list(struct agent *agent, struct shoal_job_id id, backend_files_fn *done, void *arg);

/* A piece of a file as it is now, from the node that listed it; fewer bytes than `max` at its end only, if `max` is at most
 * BACKEND_FILE_PIECE_BYTES. */
#define BACKEND_FILE_PIECE_BYTES (512 * SHOAL_KIB)
void backend_file_read(struct agent *agent, struct shoal_job_id id, struct shoal_node_id node, const char *path,
                       uint64_t offset, size_t max, shoal_backend_bytes_fn *done, void *arg);

void backend_serve_files(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question);

#endif
