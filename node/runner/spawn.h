/* The spawn helper: a small process, started with the agent, that forks the runners (PROTOCOLS 6 and 13).
 *
 *   agent --SEQPACKET: folder, job, generation + listening socket, lock--> helper --fork--> runner of a job
 *                                                                                  --fork--> runner of another
 *
 * A fork copies page tables: of an agent with a gigabyte that takes 200 ms, in which its loop stands still. An exec of
 * the whole program links its libraries anew: 6 ms of a core. The helper is small and has its code loaded already.
 *
 * P1. A runner outlives the helper and the agent. When its agent has ended, the helper takes no order any more, and ends
 *     after the last runner that it has forked. One that stands still (SIGSTOP) goes on when its agent ends.
 * P2. A runner gets the socket that came with its order, and what it says of itself goes where the agent's log goes;
 *     nothing else of the agent's or the helper's is open in it.
 * P3. An order that is lost (the helper was killed, or has no process to give) closes the runner's listening socket: the
 *     agent's connection to it breaks before a WELCOME, and the agent asks again. Before that, the helper says why as bare text on
 *     its socket, if it can: the only thing that it says.
 * P4. What does not decode, or has not exactly two descriptors, is dropped: it harms neither the helper nor a runner.
 * P5. The helper is subreaper of its runners: whoever a runner leaves behind, killed by its own job perhaps, becomes a child
 *     of the helper, which kills it, whatever environment, session and descriptors it has. The helper holds the lock that
 *     came with an order until the runner has ended and nobody is left behind; so does the kernel say that a job is gone.
 *
 * Every message: u8 kind, u8 version, u8 oldest, text folder, text job, u32 generation. */
#ifndef NODE_SPAWN_H
#define NODE_SPAWN_H

#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/ids.h"

#define SPAWN_VERSION 1
#define SPAWN_RUNNER 1 /* the only kind */
#define SPAWN_DIR_BYTES 560
#define SPAWN_MESSAGE_MAX 1024
#define SPAWN_WHY_BYTES 160
#define SPAWN_REMEDY "raise the limit of processes of this host's agent (ulimit -u, TasksMax=)"
/* Runners of one helper, and those that have ended and left somebody behind. */
#define SPAWN_RUNNERS_MAX 256

struct spawn_order {
    char dir[SPAWN_DIR_BYTES]; /* the job's folder, which becomes the runner's working directory */
    char job[SHOAL_JOB_ID_TEXT_BYTES];
    uint32_t generation;
};

/* The descriptors that come with an order; both stay the caller's, who closes them. */
struct spawn_fds {
    int listener; /* the runner's */
    int lock;     /* P5 */
};

/* spawn_wire.c. TOO_BIG: over `cap`. */
SHOAL_MUST_CHECK enum shoal_err spawn_encode(const struct spawn_order *order, uint8_t *bytes, size_t cap, size_t *len);
/* MALFORMED; `order` is set only on success. */
SHOAL_MUST_CHECK enum shoal_err spawn_decode(struct shoal_view datagram, struct spawn_order *order);

/* ---- spawn_helper.c: in the helper's process ---- */

/* The memory whose words `ps` shows of this process. */
struct spawn_title {
    char *at;
    size_t cap;
};

/* As many words as there is room for. A runner is found by its words, with the job's folder as the third: by people, and
 * by tests. */
void spawn_title_put(const struct spawn_title *title, const char *const *words, unsigned count);
/* Forks a runner for each order, until the other end of `socket` is closed, and watches over them until the last has
 * ended. `name` is this process's, for `ps`. */
void spawn_serve(int socket, const struct spawn_title *title, const char *name);

/* ---- the agent's side ---- */

/* One order and its descriptors, without waiting. 0, or errno. */
SHOAL_MUST_CHECK int spawn_send(int socket, const struct spawn_order *order, const struct spawn_fds *fds);

struct uv_loop_s;
struct spawner;

/* spawner_uv.c. A helper that dies is started again with the next order.
 * UNREACHABLE: a process cannot be started; the message says why. */
SHOAL_MUST_CHECK enum shoal_err spawner_create(struct spawner **spawner, struct uv_loop_s *loop, struct shoal_msg *msg);
/* UNREACHABLE: no helper runs or can be started. */
SHOAL_MUST_CHECK enum shoal_err spawner_runner(struct spawner *spawner, const struct spawn_order *order,
                                               const struct spawn_fds *fds, struct shoal_msg *msg);
/* Why the helper has not started the last runner of the job, by its own word; "" if it has said nothing. Valid until the next call. */
const char *spawner_why(struct spawner *spawner, const char *job);
/* The helper ends when its runners have; `done` runs when nothing of the spawner is left. */
void spawner_stop(struct spawner *spawner, void (*done)(void *arg), void *arg);

#endif
