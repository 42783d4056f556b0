/* Whether a process has ended, though nobody has reaped it: its runner may stand still. */
#ifndef NODE_ENDED_H
#define NODE_ENDED_H

#include <stdbool.h>
#include <stdint.h>

/* True: no thread of it runs any more, and it waits for its parent. False: it lives, or is gone, or it is not known. */
bool ended_process(int32_t pid);
/* Kills the job's runner where somebody has stopped or traced it: it carries out no order, and whom it has started is ended by the
 * process that forked it. True: there was one. */
bool ended_stopped_runner(const char *folder, const char *job);

#endif
