/* Who listens at some addresses, asked before an agent runs, or beside one: by `shoal doctor`, and by an agent whose folder may
 * be a copy. Nothing changes there (shoal_link_probe). */
#ifndef SHOAL_AGENT_PROBE_H
#define SHOAL_AGENT_PROBE_H

#include "shoal/link.h"

struct agent_probe {
    struct shoal_address address;
    struct shoal_node_id node; /* whose key was shown; zero: nobody's */
    enum shoal_err err;        /* as of struct shoal_link_probe */
    char text[240];
};

/* Fills what follows the addresses of `probes`. Waits for the last answer, or for `timeout_ms`; at most SHOAL_LINK_CONTACTS_MAX
 * of them. */
void agent_probe_all(const struct shoal_identity *identity, struct agent_probe *probes, size_t count, unsigned timeout_ms);

#endif
