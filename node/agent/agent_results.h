/* The files of a job's RESULT_DIR that its user may fetch, as they lie on this host (agent_results.c). */
#ifndef SHOAL_NODE_AGENT_RESULTS_H
#define SHOAL_NODE_AGENT_RESULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AGENT_RESULT_PATH_BYTES 256
#define AGENT_RESULT_DEPTH_MAX 16u /* files below more folders are counted, and not listed */

struct agent_result {
    char path[AGENT_RESULT_PATH_BYTES]; /* relative to RESULT_DIR */
    uint64_t bytes;
    uint64_t mtime_s;
    bool executable;
};

struct agent_results {
    struct agent_result *list; /* by path; the caller's to free */
    size_t count, cap;
    size_t left_out; /* more than SHOAL_RESULT_FILES_MAX, too deep, or named so that no list can show it */
};

/* A name that whoever writes it means to rename or remove. */
bool agent_result_is_temporary(const char *path);
/* A path that a list of results can hold: relative, UTF-8, without control characters, empty parts or parts that begin
 * with a dot. Foreign lists are checked by it, too. */
bool agent_result_is_shown(const char *path);

/* The files below `root`, on any thread; none where there is no such folder. */
void agent_results_walk(const char *root, struct agent_results *results);

#endif
