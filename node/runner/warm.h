/* Scripts forked from a warm interpreter (docs/decisions/0014-warm-interpreters.md).
 *
 *   agent --folder, job, generation + listening socket--> warm server --fork--> runner --fork--> script
 *                                                          (a Python that has come up, and waits)
 *
 * A warm server is a spawn helper (spawn.h, P1 to P5) that happens to be a Python interpreter. The runners that it forks
 * are interpreters, too, and what such a runner would execute as `python main.py ...` it forks instead. So a warm script
 * has the same parent, lock, session, logs and deadlines as a cold one, by the same code.
 *
 * W1. A process becomes a script only if a fresh interpreter would have come up as the server did: the same program, and
 *     equal values of all variables that are read while an interpreter starts (warm_keeps). Else it executes the program.
 * W2. The server forks while it has one thread, and while nothing that it has loaded from has changed on disk; else it
 *     ends. The only other thread of a runner is that of its logs, which takes no lock of the C library or of Python.
 * W3. An order that a server does not carry out goes to the spawn helper: the run starts cold, and is never lost. */
#ifndef NODE_WARM_H
#define NODE_WARM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "shoal/error.h"
#include "shoal/runner.h"

#include "spawn.h"

/* ---- in the server's process, and in runners forked from it (warm_python.c) ---- */

/* How a runner makes processes; both NULL in one that is no interpreter. */
struct runner_hooks {
    pid_t (*fork)(void);
    /* In the new process, where all is ready for the program: becomes the script and does not return, or returns and
     * the program is executed. */
    void (*become)(const struct shoal_runner_start *start, const int *kept, unsigned kept_count);
    bool (*may_fork)(void); /* W2, for the server */
};

void runner_hooks_use(const struct runner_hooks *hooks); /* runner_start.c; they stay the caller's */
const struct runner_hooks *runner_hooks_now(void);

/* ---- both sides (warm_key.c) ---- */

/* Is this NAME=VALUE read while an interpreter starts, so that it must be equal in the server and in a start? PYTHONPATH
 * is not: a script gets its own. */
bool warm_keeps(const char *pair);

/* ---- the agent's side (warm_uv.c): the servers of this host ---- */

struct uv_loop_s;
struct warm;

/* `native`: the folder with warm.py and libshoal-warm.so. */
SHOAL_MUST_CHECK enum shoal_err warm_create(struct warm **warm, struct uv_loop_s *loop, const char *native,
                                            struct shoal_msg *msg);
/* As spawner_runner(), to the server that fits `start`, which is started if there is none; `server` names it. The order
 * may still be lost with it. UNREACHABLE: the message says why this run is to start cold. */
SHOAL_MUST_CHECK enum shoal_err warm_runner(struct warm *warm, const struct shoal_runner_start *start,
                                            const struct spawn_order *order, const struct spawn_fds *fds, uint64_t *server,
                                            struct shoal_msg *msg);
void warm_answered(struct warm *warm, uint64_t server); /* a runner that it forked has said WELCOME */
/* An order was lost with it, or not carried out in time. It is ended, and one that never answered is not started again
 * for a while. */
void warm_failed(struct warm *warm, uint64_t server);
void warm_stop(struct warm *warm, void (*done)(void *arg), void *arg);

#endif
