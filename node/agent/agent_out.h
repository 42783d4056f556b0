/* What the agent writes to its stderr goes through a buffer and a thread of its own: a log that nobody reads (a logger that is stuck,
 * ^S on a terminal) must not hold the loop.
 *
 *   fprintf(stderr) --> buffer of SHOAL_LOG_WAITS_BYTES --thread--> fd
 *
 * Whole writes are dropped when it is full, and counted; one line says how many when there is room again. */
#ifndef NODE_AGENT_OUT_H
#define NODE_AGENT_OUT_H

#include "shoal/error.h"

/* From here on `stderr` of this process is the buffer; what it starts has the descriptor itself, as before. Once.
 * FULL: no memory, or no thread. */
SHOAL_MUST_CHECK enum shoal_err agent_out_start(int fd, struct shoal_msg *msg);
/* Before the process ends: waits until all is written, for at most a second. An abort() does the same. */
void agent_out_flush(void);

#endif
