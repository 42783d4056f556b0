/* Deaths of workers, from the robust futex that each one's library thread holds (worker.h): the kernel marks it before
 * it tears the memory of the dead down, which takes about 30 ms a GB; only then does the runner hear of the end. */
#ifndef NODE_DEATHS_UV_H
#define NODE_DEATHS_UV_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shoal/error.h"

struct uv_loop_s;
struct deaths;

/* `on_death` runs on the loop's thread, at most once a watch. FULL: no memory, or no thread. */
SHOAL_MUST_CHECK enum shoal_err deaths_create(struct deaths **deaths, struct uv_loop_s *loop,
                                              void (*on_death)(void *arg, uint64_t worker_id), void *arg);
/* The word is borrowed until deaths_forget(). False: as many are watched as can be; the runner tells of this one. */
bool deaths_watch(struct deaths *deaths, uint64_t worker_id, _Atomic uint32_t *word);
void deaths_forget(struct deaths *deaths, uint64_t worker_id); /* one that is not watched is ignored */
/* No call of on_death after this; `stopped` when the memory is gone. */
void deaths_stop(struct deaths *deaths, void (*stopped)(void *arg), void *arg);

#endif
