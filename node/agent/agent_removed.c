/* Hosts that were removed from the mesh (PROTOCOLS 4): the copy of the mesh says who, and everything here honours it.
 *
 *     a link     refused in the handshake, with the reason, whoever dials
 *     a datagram dropped; its sender is told why, at most once a second
 *     gossip     its card is taken from nobody, and it counts as having left
 *
 * A host that finds itself in the copy stops: what it holds is void, and the others go on without it. */
#include "agent.h"

#include "shoal/mesh.h"

#include "shoal/banned.h"

#define TELL_NS SHOAL_S
#define SAY_NS (30 * SHOAL_S)

static struct {
    uint64_t told_ns, said_ns;
} removed; /* of this process's one agent; owned by its loop */

bool agent_admits(const struct agent *agent, struct shoal_node_id node)
{
    const struct shoal_mesh *mesh = agent->sched == NULL ? NULL : shoal_sched_mesh(agent->sched);

    return mesh == NULL || !shoal_mesh_evicted(mesh, node);
}

void agent_removed_look(struct agent *agent)
{
    const struct shoal_mesh *mesh = shoal_sched_mesh(agent->sched);

    if (mesh == NULL || agent->stopping)
        return;
    if (!agent_admits(agent, agent->identity.node)) {
        agent_log(agent,
                  "stops: this host was removed from the mesh; to come back, have an administrator readmit it (shoal "
                  "node readmit, at another host), or join it with a new data folder");
        agent_stop(agent, 1);
        return;
    }
    for (size_t i = 0; i < shoal_mesh_eviction_count(mesh); i++) {
        struct shoal_node_id node = shoal_mesh_eviction_at(mesh, i);

        membership_expel(agent->membership, node);
        shoal_link_unwant(agent->link, node);
        shoal_link_close(agent->link, node);
    }
}

void agent_removed_tell(struct agent *agent, struct shoal_node_id node, struct shoal_address address)
{
    static const uint8_t word = AGENT_DATAGRAM_REMOVED;
    uint64_t now = agent_now_ns();

    if (removed.told_ns != 0 && now < removed.told_ns + TELL_NS)
        return;
    removed.told_ns = now;
    shoal_ignore(shoal_datagram_send(agent->datagram, node, address, shoal_view_of(&word, 1))); /* it asks again */
}

void agent_removed_heard(struct agent *agent, struct shoal_address address)
{
    uint64_t now = agent_now_ns();
    char text[SHOAL_ADDRESS_TEXT_BYTES];

    if (removed.said_ns != 0 && now < removed.said_ns + SAY_NS)
        return;
    removed.said_ns = now;
    shoal_address_text(address, text);
    agent_log(agent,
              "%s refuses this host: it was removed from the mesh; to come back, have an administrator readmit it "
              "(shoal node "
              "readmit, at another host), or join it with a new data folder",
              text);
}
