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
 * W3. An order that a server does not carry out goes to the spawn helper: the run starts cold, and is never lost.
 *
 * A server of kind FRAMEWORK has imported torch, too (docs/decisions/0028-a-framework-that-waits.md). The driver of an elastic
 * job and its engine server are forked from it, and find their imports done.
 *
 * W4. It is made after a job that wanted one has ended, is asked once it has said that it is ready, and belongs to one user:
 *     USER and all that a framework reads while it is loaded are equal in it and in what it becomes (W1).
 * W5. It has loaded with one thread, as engine servers do, so only for jobs whose slots have one. It holds no GPU (W2).
 * W6. Nothing that it has loaded would be found elsewhere by the script: a file of that name in the script's folder, or
 *     another PYTHONPATH, makes it execute the program. What it has drawn by chance is drawn anew. */
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
bool warm_keeps(const char *pair, enum shoal_warm kind);

/* The search path of a server of kind FRAMEWORK: a job's PYTHONPATH without the job's own folder. */
#define WARM_PATH_ENV "SHOAL_WARM_PATH"
/* Room at the end of the environment that the kernel shows of a server, for that of a script. */
#define WARM_ROOM_ENV "SHOAL_WARM_ROOM"
#define WARM_ROOM_BYTES (32 * SHOAL_KIB)

/* ---- the agent's side: a server's key and its process (warm_start.c) ---- */

/* All that a server is made from, and that a start must be equal in: the kind, the program as it is now, and one NAME=VALUE a
 * line. False: too long, or there is no such program. */
SHOAL_MUST_CHECK bool warm_key_of(const struct shoal_runner_start *start, char key[SHOAL_WARM_KEY_BYTES]);
enum shoal_warm warm_key_kind(const char *key);
/* A server made from `key`, with its end of the socket. 0, or errno. */
SHOAL_MUST_CHECK int warm_process_start(const char *native, const char *key, int socket, pid_t *pid);
/* Memory of a process's own; 0: not known. And what the host has free. */
uint64_t warm_process_bytes(pid_t pid);
uint64_t warm_free_bytes(void);

/* ---- the agent's side (warm_uv.c): the servers of this host ---- */

struct uv_loop_s;
struct warm;

struct warm_options {
    struct uv_loop_s *loop;
    const char *native;          /* the folder with warm.py and libshoal-warm.so */
    uint64_t memory_bytes;       /* what servers of kind FRAMEWORK may hold; 0: there are none */
    bool (*is_quiet)(void *arg); /* no job runs here */
    void *arg;
};

SHOAL_MUST_CHECK enum shoal_err warm_create(struct warm **warm, const struct warm_options *options,
                                            struct shoal_msg *msg);
/* As spawner_runner(), to the server that fits `start`; `server` names it. SCRIPT: it is started if there is none. FRAMEWORK:
 * it is wanted, and made when warm_ended() has said that the job of this order is over. The order may still be lost with the
 * server. UNREACHABLE: the message says why this run is to start cold; it is empty where nobody needs to hear it. */
SHOAL_MUST_CHECK enum shoal_err warm_runner(struct warm *warm, const struct shoal_runner_start *start,
                                            const struct spawn_order *order, const struct spawn_fds *fds,
                                            uint64_t *server, struct shoal_msg *msg);
void warm_ended(struct warm *warm, const char *job);
void warm_answered(struct warm *warm, uint64_t server); /* a runner that it forked has said WELCOME */
/* An order was lost with it, or not carried out in time. It is ended, and one that never answered is not started again
 * for a while. */
void warm_failed(struct warm *warm, uint64_t server);
void warm_stop(struct warm *warm, void (*done)(void *arg), void *arg);

#endif
