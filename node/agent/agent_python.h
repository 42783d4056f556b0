/* The Python that this host's jobs run in: which it is, whether it has what the frameworks import, and one of our own
 * where there is none. */
#ifndef AGENT_PYTHON_H
#define AGENT_PYTHON_H

#include "agent.h"

/* `wanted`, "" for python3, through its own sys.executable. Where it lacks what the frameworks import, this host offers
 * no slots. NOT_FOUND: it does not run. */
SHOAL_MUST_CHECK enum shoal_err agent_python_find(struct agent_settings *settings, const char *wanted,
                                                  struct shoal_msg *msg);

/* For init and join: `wanted` itself if it has torch and numpy, else an environment in `data` that pip puts them into,
 * from the index that it is configured for. What pip says goes to standard error. */
SHOAL_MUST_CHECK enum shoal_err agent_python_make(const char *data, const char *wanted, char python[AGENT_PATH_BYTES],
                                                  struct shoal_msg *msg);

/* Imports the frameworks and libshoal in a child, for at most `seconds`. True: `said` is their versions; else the last
 * line of what went wrong. */
bool agent_python_try(const struct agent_settings *settings, unsigned seconds, char *said, size_t cap);

/* The transport of training data between hosts there: true, and `said` is UCX's version and path; else why there is none. */
bool agent_python_try_ucx(const struct agent_settings *settings, unsigned seconds, char *said, size_t cap);

#endif
