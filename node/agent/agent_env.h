/* The environment and the arguments of a process that is about to start: agent_env.c. */
#ifndef SHOAL_NODE_AGENT_ENV_H
#define SHOAL_NODE_AGENT_ENV_H

#include "agent.h"

#define AGENT_ENV_TEXT_BYTES (48 * SHOAL_KIB)

/* A start, and the texts that it points to. */
struct agent_start_text {
    char bytes[AGENT_ENV_TEXT_BYTES];
    size_t used;
    bool full; /* something did not fit: it must not be started */
    struct shoal_runner_start start;
};

const char *agent_start_keep(struct agent_start_text *t, const char *text); /* "" and full: it does not fit any more */
void agent_env_fill(struct agent *agent, struct agent_job *job, const struct agent_run *run, const char *log_dir,
                    struct agent_start_text *t);
/* The folders that a process finds in its environment, a line each, as WMLA's launcher says them. */
#define AGENT_ENV_EXPOSED_BYTES 4096
void agent_env_exposed(const struct agent_start_text *t, char *text, size_t cap);

#endif
