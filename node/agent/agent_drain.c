/* This host is drained by an operator, and leaves (PROTOCOLS 3): its own word, kept in <data>/drain, told in its facts.
 *
 *     drain: nothing new comes here; groups' places and elastic workers move --> nothing is left: drained --> leave
 *
 * D1. The word survives a restart of the agent; a host that has left and starts again is a member as any other. */
#include "agent.h"

#include <unistd.h>

#include "shoal/banned.h"

#define LEAVE_NS (1500 * SHOAL_MS) /* in which gossip says goodbye */

static void drain_path(const struct agent *agent, char path[AGENT_PATH_BYTES + 16])
{
    (void)snprintf(path, AGENT_PATH_BYTES + 16, "%s/drain", agent->settings.data);
}

void agent_drain_read(struct agent *agent)
{
    char path[AGENT_PATH_BYTES + 16];

    drain_path(agent, path);
    agent->draining = access(path, F_OK) == 0;
}

enum shoal_err agent_drain(struct agent *agent, bool on, struct shoal_msg *msg)
{
    char path[AGENT_PATH_BYTES + 16];

    drain_path(agent, path);
    if (on) {
        FILE *file = fopen(path, "we");

        if (file == NULL)
            return shoal_fail(msg, SHOAL_ERR_STORAGE, "%s cannot be written; is the disk full?", path);
        (void)fclose(file);
    } else {
        (void)unlink(path);
    }
    if (agent->draining != on)
        agent_log(agent, "%s", on ? "is drained: nothing new comes here, what is here moves" : "is drained no more");
    agent->draining = on;
    agent->drained = false;
    agent_publish_facts(agent);
    return SHOAL_OK;
}

enum shoal_err agent_leave(struct agent *agent, bool force, struct shoal_msg *msg)
{
    char left[160];
    struct shoal_msg ignored;

    if (!shoal_sched_is_empty(agent->sched, left, sizeof(left)) && !force)
        return shoal_fail(msg, SHOAL_ERR_EXISTS, "%s cannot leave yet: %s; %s", agent->settings.name, left,
                          agent->draining ? "wait until it is drained" : "drain it first (shoal node drain)");
    shoal_ignore(agent_drain(agent, false, &ignored)); /* D1 */
    agent_log(agent, "leaves the mesh; start the agent again to come back");
    agent->leave_ns = agent_now_ns() + LEAVE_NS;
    membership_leave(agent->membership);
    return SHOAL_OK;
}

void agent_drain_look(struct agent *agent)
{
    char left[160];
    bool drained = agent->draining && shoal_sched_is_empty(agent->sched, left, sizeof(left));

    if (agent->leave_ns != 0 && agent_now_ns() >= agent->leave_ns) {
        agent_stop(agent, 0);
        return;
    }
    if (drained == agent->drained)
        return;
    agent->drained = drained;
    if (drained)
        agent_log(agent, "is drained: nothing is left to be moved");
    agent_publish_facts(agent);
}
