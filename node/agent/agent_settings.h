/* The settings of an agent, from its options and its data folder (agent_settings.c). */
#ifndef SHOAL_NODE_AGENT_SETTINGS_H
#define SHOAL_NODE_AGENT_SETTINGS_H

#include "agent.h"

#define AGENT_PORT 7410
#define AGENT_API_PORT 9243

/* An option that was given stands above the folder's agent.conf. Starts the Python that is named, and waits for the disk. */
SHOAL_MUST_CHECK enum shoal_err agent_settings_of(struct agent_settings *settings, const struct shoal_cli_agent *given,
                                                  struct shoal_msg *msg);
/* Whether an agent would take these options: for whoever keeps them for later. Nothing is written. */
SHOAL_MUST_CHECK enum shoal_err agent_settings_check(const struct shoal_cli_agent *options, struct shoal_msg *msg);
/* What --join takes: as shoal_address_parse(), but an IPv6 address stands in brackets. The last group of one that does not
 * is taken for a port by whoever types it. */
SHOAL_MUST_CHECK enum shoal_err agent_join_parse(const char *text, struct shoal_address *address, struct shoal_msg *msg);
/* An address without its port, and without brackets. */
void agent_host_text(struct shoal_address address, char text[SHOAL_ADDRESS_TEXT_BYTES]);
/* Training data goes over loopback: to no other host. */
bool agent_fabric_is_loopback(const struct agent_settings *settings);
/* The address at which other hosts reach the API: of one that listens on all addresses, the host's. */
#define AGENT_URL_BYTES 96
void agent_api_url(const struct agent_settings *settings, uint16_t port, char url[AGENT_URL_BYTES]);

#endif
