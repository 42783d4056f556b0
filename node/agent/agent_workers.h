/* Between workers_uv.c and the control plane: what workers say, and what the shell does with it before the core hears.
 */
#ifndef SHOAL_NODE_AGENT_WORKERS_H
#define SHOAL_NODE_AGENT_WORKERS_H

#include "agent.h"

enum shoal_err agent_workers_create(struct agent *agent, struct shoal_msg *msg) SHOAL_MUST_CHECK;
void agent_workers_reattach(struct agent *agent);
/* A message of the core to a worker; "blob:" texts are made into paths, a driver's records come before its end. */
void agent_worker_send(struct agent *agent, const struct shoal_host_order *order);

#endif
