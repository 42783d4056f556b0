/* Password checks beside the loop.
 *
 *   loop --pointer--> pipe --> thread (ordinary class, nice) --pointer--> pipe --> loop --> done()
 *
 * P1. A check costs a core for a tenth of a second, and whoever reaches the API may ask for one: the threads have the
 *     ordinary class and are nice, whatever the agent's own class is, so that no stranger takes time from a job.
 * P2. The threads and the loop share no lock and no uv_async, on which a loop of a real-time class would wait or spin
 *     while the other side is not scheduled (decision 0002): a pointer goes through a pipe each way.
 * P3. At most PASSWORDS_THREADS checks hold Argon2's memory at once; callers bound how many wait. */
#ifndef NODE_BACKEND_PASSWORDS_UV_H
#define NODE_BACKEND_PASSWORDS_UV_H

#include <stdbool.h>
#include <uv.h>

#include "shoal/crypto.h"

struct passwords;

typedef void passwords_fn(void *arg, bool good);

/* Threads and pipes are made at the first check: an agent that nobody logs on to has none. *passwords begins as NULL and
 * lives as long as the process. `done` runs once, from the loop. FULL: no memory or no thread; nothing has begun. */
SHOAL_MUST_CHECK enum shoal_err passwords_check(struct passwords **passwords, uv_loop_t *loop, const char *password,
                                                const char *hash, passwords_fn *done, void *arg);

#endif
